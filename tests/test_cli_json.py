"""What every command that computes takes alike, and that docs/howto/json.md lists what `--json` prints."""

import importlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from cyclopts import App
from small_runs import GRID, ZOO_OPTIONS, SmallRun, trained_zoo
from type_checks import no_type_checks

from assay.app.cli.parsing import app
from assay.app.delivery import KINDS
from assay.page.blocks import Page
from assay.page.form import PAGES, PageForm, schema_of
from assay.page.html import render_pages
from assay.report.record import pages_of_result
from assay.store import Store


PAGE = Path(__file__).parents[1] / "docs" / "howto" / "json.md"
BENCHMARK = ("--methods", "eap,eap-ig-inputs,random", "--n", "6")
HEADS = ("--circuit", "a3.h4,a3.h6")
BATCHES = ("--window", "8", "--known-batches", "0")
RATED = ("--rated", "20", "--least", "10", "--corruptions", "fog-1,fog-5", "--subset-size", "1")
PLAN = """
name = "small"
n = 6
models = ["mini"]
tasks = ["ioi"]
methods = ["eap"]
sizes = [40]
[limits]
workers = 1
"""
# Later commands read what earlier ones wrote.
COMMANDS: dict[str, tuple[str, ...]] = {
    "discover": ("--n", "4", "--top", "40"),
    "measure": ("--n", "4", *HEADS, "--metric", "kl"),
    "audit": ("--n", "6", "--skip", "attack,random,curve,calibrate"),
    "attack": (*HEADS, "--n-clean", "6", "--n-corrupted", "6"),
    "calibrate": ("C11", *HEADS, "--prompts", "10"),
    "benchmark discovery": BENCHMARK,
    "zoo train": ZOO_OPTIONS,
    "zoo list": ("zoo",),
    "zoo index": ("zoo", "--shapes", "sketch", "--n", "12"),
    "zoo select": ("zoo", "grid.toml", "--save", "second.json"),
    "rank": ("--zoo", "zoo", "--shapes", "sketch", "--n", "12", "--metrics", "rankme", "--draws", "20"),
    "monitor": ("--images", "shapes:flat", "--n", "8", *BATCHES, "--threshold", "1"),
    "monitor evaluate": ("--images", "shapes:sketch", "--n", "12", *RATED, "--steps", "2"),
    "select": ("--digits-models", "32", "--size", "20", "--permutations", "0"),
    "sweep": ("plan.toml",),
}
KEPT = {
    "benchmark discovery": "benchmark",
    "zoo train": "zoo",
    "zoo index": "correctness",
    "monitor": "monitor",
    "monitor evaluate": "domain-evaluation",
}
COMPUTING = [name for name in COMMANDS if name not in ("zoo list", "zoo select")]
UNTYPED = ("zoo train", "select")  # trained in float32; runs no model


TEXTS = {"grid.toml": GRID, "plan.toml": PLAN}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory of all commands; a zoo is trained."""
    path = tmp_path_factory.mktemp("json")
    shutil.copytree(trained_zoo().folder / "zoo", path / "zoo")
    for name, text in TEXTS.items():
        (path / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, SmallRun]:
    """Every command, run with `--json`."""
    found = {}
    for name, arguments in COMMANDS.items():
        store = ("--store", folder / "store") if name in COMPUTING else ()
        with no_type_checks():
            outcome = invoke(*name.split(), *arguments, *store, "--json", "--quiet")
        assert outcome.exit_code in (0, 3), f"{name}: {outcome.output}"
        found[name] = SmallRun(folder, json.loads(outcome.stdout))
    return found


@pytest.fixture(scope="module")
def documents(runs: dict[str, SmallRun]) -> dict[str, Any]:
    """What every command prints with `--json`."""
    return {name: run.document for name, run in runs.items()}


def row_of(name: str, document: Any) -> str:
    """What the page says of a command's document."""
    one = document[0] if isinstance(document, list) else document
    schema = one.get("schema") or one.get("format") or ""
    keys = ", ".join(f"`{key}`" for key in one)
    listed = "a list; of each: " if isinstance(document, list) else ""
    return f"| `assay {name}` | {f'`{schema}`' if schema else ''} | {listed}{keys} |"


def command_of(words: str) -> App:
    found = app
    for word in words.split():
        found = found[word]
    return found


# ---- the page -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_lists_the_entries_of_every_document(documents: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [row for row in map(row_of, documents, documents.values()) if row not in text]
    assert not missing, "docs/howto/json.md lacks these rows:\n" + "\n".join(missing)


def test_the_page_names_classes_that_exist() -> None:
    named = re.findall(r"`(assay(?:\.\w+)*)\.(\w+)\.to_dict`", PAGE.read_text(encoding="utf-8"))
    assert named
    for module, name in named:
        assert hasattr(getattr(importlib.import_module(module), name), "to_dict")


# ---- the store ----------------------------------------------------------------------------------


def test_every_result_is_kept_and_shown(documents: dict[str, Any], folder: Path) -> None:
    found = {each.kind: each.id for each in Store(folder / "store").query()}
    assert set(found) <= set(KINDS)
    for name, kind in KEPT.items():
        stored = json.loads(invoke("show", found[kind], "--store", folder / "store", "--json").stdout)
        one = documents[name][0] if isinstance(documents[name], list) else documents[name]
        assert stored["payload"].keys() == one.keys(), name
        assert found[kind] in invoke("show", found[kind], "--store", folder / "store").stdout


@pytest.mark.parametrize("kind", ["benchmark", "correctness", "zoo"])
def test_a_result_is_shown_by_the_page_of_its_kind(
    kind: str, documents: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(folder / "store")
    result = store.get(store.query(kind)[0].id)
    form = PageForm(
        noun=kind,
        schema=schema_of(result.payload),
        again="it",
        make=lambda document: Page(kind=kind, title=f"A page of {document['kind']}"),
    )
    monkeypatch.setitem(PAGES._entries, kind, form)
    assert f"A page of {kind}" in render_pages(pages_of_result(result))
    assert f"A page of {kind}" in invoke("show", result.id, "--store", folder / "store").stdout
    invoke("report", result.id, "--store", folder / "store", "--save", folder / "page.html")
    assert f"A page of {kind}" in (folder / "page.html").read_text()


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPUTING)
def test_every_command_that_computes_takes_the_same_options(name: str) -> None:
    collection = command_of(name).assemble_argument_collection()
    options = {option for argument in collection for option in argument.names}
    wanted = {"--store", "--json", "--config", "--device", "--quiet"}
    assert wanted | (set() if name in UNTYPED else {"--dtype"}) <= options


def test_a_number_type_reaches_the_model(folder: Path) -> None:
    asked = ("--dtype", "float64", "--json", "--quiet", "--store", folder / "other")
    with no_type_checks():
        judged = json.loads(invoke("benchmark", "discovery", *BENCHMARK, *asked).stdout)
    assert judged["model"]["dtype"] == "float64"

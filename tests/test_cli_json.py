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
from counted_passes import counted
from cyclopts import App
from small_runs import GRID, ZOO_OPTIONS, SmallRun, trained_zoo
from type_checks import no_type_checks

from assay.app.cli.parsing import app
from assay.app.option_groups import KINDS
from assay.page.blocks import Page
from assay.page.form import PAGES, PageForm, schema_of
from assay.report.record import result_page
from assay.store import Store


PAGE = Path(__file__).parents[1] / "docs" / "howto" / "json.md"
BENCHMARK = ("--methods", "eap,eap-ig-inputs,random", "--n", "6")
HEADS = ("--circuit", "a3.h4,a3.h6")
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
    "monitor": (
        "--images",
        "shapes:flat",
        "--n",
        "8",  # a batch: plans count one
        "--window",
        "8",
        "--known-batches",
        "0",
        "--threshold",
        "1",
    ),
    "monitor evaluate": (
        "--images",
        "shapes:sketch",
        "--n",
        "12",
        "--rated",
        "20",
        "--least",
        "10",
        "--corruptions",
        "fog-1,fog-5",
        "--subset-size",
        "1",
        "--steps",
        "2",
    ),
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
BLOCKS = dict.fromkeys(COMMANDS, 4) | {"zoo index": 2}  # of the model that a command runs
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
        with no_type_checks(), counted(BLOCKS[name]) as passes:
            outcome = invoke(*name.split(), *arguments, *store, "--json", "--quiet")
        assert outcome.exit_code in (0, 3), f"{name}: {outcome.output}"
        found[name] = SmallRun(folder, json.loads(outcome.stdout), sum(passes))
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
    assert f"A page of {kind}" in result_page(result)
    assert f"A page of {kind}" in invoke("show", result.id, "--store", folder / "store").stdout
    invoke("report", result.id, "--store", folder / "store", "--save", folder / "page.html")
    assert f"A page of {kind}" in (folder / "page.html").read_text()


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPUTING)
def test_every_command_that_computes_takes_the_same_options(name: str) -> None:
    collection = command_of(name).assemble_argument_collection()
    options = {option for argument in collection for option in argument.names}
    wanted = {"--store", "--dry-run", "--json", "--config", "--device", "--quiet"}
    assert wanted | (set() if name in UNTYPED else {"--dtype"}) <= options


# Those of an audit are in tests/runner/test_audit_plan.py.
PLANNED = (
    "attack",
    "benchmark discovery",
    "zoo train",
    "zoo index",
    "monitor",
    "monitor evaluate",
)
DRY = {name: COMMANDS[name] for name in COMMANDS if name not in ("zoo list", "zoo index", "zoo select")}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRY)
def test_a_dry_run_tells_passes_seconds_and_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, text in TEXTS.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    arguments = [each for each in DRY[name] if each not in ("--zoo", "zoo")] if name == "rank" else DRY[name]
    with no_type_checks():
        plan = json.loads(invoke(*name.split(), *arguments, "--dry-run", "--json", "--quiet").stdout)
    assert plan["passes"] == sum(stage["passes"] for stage in plan["stages"]) > 0
    if name != "select":
        assert plan["unit"] == "forward passes over one prompt or image"
        assert plan["seconds"] > 0
        assert plan["bytes"] > 0
    assert {path.name for path in tmp_path.iterdir()} == TEXTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_is_an_upper_bound_and_not_a_loose_one(
    name: str, runs: dict[str, SmallRun], folder: Path
) -> None:
    ran = {"zoo train": trained_zoo()}
    passes = ran.get(name, runs[name]).passes
    with no_type_checks():
        plan = json.loads(invoke(*name.split(), *COMMANDS[name], "--dry-run", "--json", "--quiet").stdout)
    # How often a method is timed goes by the clock: the plan counts the most, a loaded machine makes fewer.
    timed = sum(stage["passes"] for stage in plan["stages"] if stage["stage"] == "timed passes")
    assert passes <= plan["passes"] <= 2 * passes + timed


def test_dry_runs_of_a_zoo_count_its_models(documents: dict[str, Any], folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    plan = json.loads(
        invoke("zoo", "index", *COMMANDS["zoo index"], "--circuits", "--dry-run", "--json").stdout
    )
    assert [(each["stage"], each["passes"]) for each in plan["stages"]] == [
        ("predict", 2 * 12),
        ("discover", 2 * 12 * 14),
    ]
    assert plan["seconds"] > 0
    chosen = json.loads(
        invoke("zoo", "select", "zoo", "grid.toml", "--save", "x.json", "--dry-run", "--json").stdout
    )
    assert chosen["passes"] == 2
    assert sorted(folder.rglob("*")) == before


def test_a_number_type_reaches_the_model(folder: Path) -> None:
    asked = ("--dtype", "float64", "--json", "--quiet", "--store", folder / "other")
    with no_type_checks():
        judged = json.loads(invoke("benchmark", "discovery", *BENCHMARK, *asked).stdout)
        planned = json.loads(invoke("sweep", "plan.toml", "--dry-run", *asked).stdout)
        usual = json.loads(invoke("sweep", "plan.toml", "--dry-run", *asked[2:]).stdout)
    assert judged["model"]["dtype"] == "float64"
    assert {job["id"] for job in planned["listed"]}.isdisjoint(job["id"] for job in usual["listed"])

"""What all commands do alike: help, unknown options, missing models, documents, results that `show` finds."""

import importlib
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, invoke
from small_runs import GRID, ZOO_OPTIONS, trained_zoo
from type_checks import no_type_checks

from assay.app.cli.parsing import HELP_ALL, app, every_command
from assay.app.options import RareGroup
from assay.page.blocks import PAGES, Page, PageForm, schema_of
from assay.store import Store


PAGE = Path(__file__).parents[1] / "docs" / "howto" / "json.md"
EVERY = {" ".join(words): command for words, command in every_command(app)}
HEADS = ("--circuit", "a3.h4,a3.h6")
BATCHES = ("--window", "8", "--known-batches", "0")
RATED = ("--rated", "20", "--least", "10", "--corruptions", "fog-1,fog-5")
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
    "audit": ("--n", "6", "--target", "0.98", "--skip", "attack,random,curve,calibrate"),
    "lock": ("assay-out", "--n", "25"),
    "check": ("circuits.lock.toml", "--most", "25"),
    "attack": (*HEADS, "--n-clean", "6", "--n-corrupted", "6"),
    "calibrate": ("C11", *HEADS, "--prompts", "10"),
    "benchmark discovery": ("--methods", "eap,eap-ig-inputs,random", "--n", "6"),
    "zoo train": ZOO_OPTIONS,
    "zoo list": ("zoo",),
    "zoo index": ("zoo", "--images", "shapes:sketch", "--n", "12"),
    "rank": ("--zoo", "zoo", "--images", "shapes:sketch", "--n", "12", "--metrics", "rankme"),
    "monitor": ("--images", "shapes:flat", "--n", "8", *BATCHES, "--threshold", "1"),
    "monitor evaluate": ("--images", "shapes:sketch", "--n", "12", *RATED, "--steps", "2"),
    "select": ("digits:32", "--sizes", "20", "--permutations", "0"),
    "sweep": ("plan.toml",),
}
KEPT = {
    "discover": "circuit",
    "measure": "measurement",
    "audit": "audit",
    "attack": "worst_case",
    "calibrate": "calibration",
    "benchmark discovery": "benchmark",
    "zoo train": "zoo",
    "rank": "ranking",
    "monitor evaluate": "domain-evaluation",
    "select": "subset-path",
    "sweep": "sweep",
}
OF_ONE = ("table", "jobs", "graph")  # what one of the two says more of
UNTYPED = ("zoo train", "rank", "monitor", "monitor evaluate", "select")  # the model as it is; runs no model
OF_A_MODEL = (
    "discover",
    "measure",
    "audit",
    "attack",
    "calibrate C11",
    "benchmark discovery",
    "monitor --reference shapes:flat --images shapes:flat",
    "monitor evaluate --reference shapes:flat --images shapes:neon",
    "rank --images shapes:sketch --zoo",
)


def run(*arguments: object) -> Outcome:
    with no_type_checks():  # the parts are checked in their own tests
        return invoke(*arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory of all commands; a zoo is trained."""
    path = tmp_path_factory.mktemp("json")
    shutil.copytree(trained_zoo().folder / "zoo", path / "zoo")
    for name, text in (("grid.toml", GRID), ("plan.toml", PLAN)):
        (path / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


@pytest.fixture(scope="module")
def documents(folder: Path) -> dict[str, Any]:
    """What every command prints with `--json`, and nothing else."""
    found = {}
    for name, arguments in COMMANDS.items():
        store = ("--store", folder / "store") if name in KEPT else ()
        outcome = run(*name.split(), *arguments, *store, "--json", "--quiet")
        assert outcome.exit_code == 0, f"{name}: {outcome.output}"
        assert not [line for line in outcome.stderr.splitlines() if not line.startswith("note: ")], name
        found[name] = json.loads(outcome.stdout)
    return found


def row_of(name: str, document: Any) -> str:
    """What the page says of a command's document."""
    one = document[0] if isinstance(document, list) else document
    schema = one.get("schema") or one.get("format") or ""
    keys = ", ".join(f"`{key}`" for key in one)
    listed = "a list; of each: " if isinstance(document, list) else ""
    return f"| `assay {name}` | {f'`{schema}`' if schema else ''} | {listed}{keys} |"


# ---- documents ----------------------------------------------------------------------------------


def test_the_page_lists_the_entries_of_every_document(documents: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [row for row in map(row_of, documents, documents.values()) if row not in text]
    assert not missing, "docs/howto/json.md lacks these rows:\n" + "\n".join(missing)
    named = re.findall(r"`(assay(?:\.\w+)*)\.(\w+)\.to_dict`", text)
    assert named
    for module, name in named:
        assert hasattr(getattr(importlib.import_module(module), name), "to_dict")


@pytest.mark.parametrize("name", KEPT)
def test_a_result_is_kept_shown_and_has_a_page(name: str, documents: dict[str, Any], folder: Path) -> None:
    store = ("--store", folder / "store")
    found = Store(folder / "store").query()
    identity = next(each.id for each in found if each.kind == KEPT[name])  # others store such results later
    document = documents[name][0] if isinstance(documents[name], list) else documents[name]
    stored = json.loads(run("show", identity[:12], *store, "--json").stdout)
    common = (stored["payload"].keys() & document.keys()) - {*OF_ONE}
    assert {key: stored["payload"][key] for key in common} == {key: document[key] for key in common}
    assert common or name == "sweep"
    assert identity in run("show", identity, *store).stdout
    assert run("report", identity, *store, "--save", folder / "page.html").exit_code == 0
    assert "<h1>" in (folder / "page.html").read_text()


@pytest.mark.usefixtures("documents")
def test_a_result_is_shown_by_the_page_of_its_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(folder / "store")
    result = store.get(store.query("zoo")[0].id)
    facts = {"noun": "zoo", "schema": schema_of(result.payload), "again": "it"}
    form = PageForm(**facts, make=lambda document: Page(kind="zoo", title=f"A page of {document['kind']}"))
    monkeypatch.setitem(PAGES._entries, "zoo", form)
    assert "A page of zoo" in run("show", result.id, "--store", folder / "store").stdout


# ---- options and errors -------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_every_command_that_computes_takes_the_same_options(name: str) -> None:
    options = {option for each in EVERY[name].assemble_argument_collection() for option in each.names}
    wanted = {"--store", "--json", "--config", "--quiet"} | (set() if name == "select" else {"--device"})
    assert wanted | (set() if name in UNTYPED else {"--dtype"}) <= options


@pytest.mark.parametrize("name", EVERY)
def test_a_help_page_is_short_and_its_example_parses(name: str) -> None:
    command, words = EVERY[name], name.split()
    page, whole = run(*words, "--help").stdout, run(*words, HELP_ALL).stdout
    options = [each for each in command.assemble_argument_collection(parse_docstring=True) if each.show]
    assert all(each.parameter.help for each in options)
    usual = [each for each in options if not isinstance(each.parameter.group[0], RareGroup)]
    assert len(usual) <= (34 if name == "select" else 25)
    assert all(each.name in page for each in usual)
    assert all(each.name in whole for each in options)
    assert ("--traceback" in page, "--traceback" in whole) == (False, True)
    program, *example = shlex.split(page.partition("Example:")[2])
    function, *_ = app.parse_args(example, exit_on_error=False)
    assert (program, function) == ("assay", command.default_command)


def test_the_overview_shows_every_command_whole_and_in_its_group() -> None:
    page = " ".join(run("--help").stdout.split())
    for name, each in EVERY.items():
        first = each.help.splitlines()[0]
        assert len(first) < 60
        assert " " in name or f"{name} {first}" in page, name
    places = [page.index(f" {group} ") for group in ("Circuits", "Trust", "Image", "Subsets", "Store")]
    assert places == sorted(places)
    script = app.generate_completion(shell="bash")
    assert all(each in script for each in ("discover", "--metric", "--dtype"))


@pytest.mark.parametrize("command", OF_A_MODEL)
def test_a_missing_model_is_one_document_and_leaves_nothing(command: str, tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    words = command.split()
    words += ["./nowhere"] if words[-1] == "--zoo" else ["--model", "./nowhere"]
    outcome = run(*words, "--out" if words[:2] == ["monitor", "--reference"] else "--store", "new", "--json")
    document = json.loads(outcome.stdout)
    assert document["code"] == outcome.exit_code == 1
    assert "nowhere" in document["error"]
    assert outcome.stderr.splitlines()[-1] == f"error: {document['error']}"
    assert list(tmp_path.iterdir()) == []


def test_a_number_type_reaches_the_model(folder: Path) -> None:
    hashes = {}
    for dtype in ("auto", "float64"):
        given = ("measure", *COMMANDS["measure"], "--dtype", dtype, "--json", "--quiet", "--store", "other")
        (record,) = json.loads(run(*given).stdout)
        hashes[record["provenance"]["model"]["dtype"]] = record["hash"]
    assert hashes.keys() == {"float32", "float64"}
    assert len({*hashes.values()}) == 2
    judged = run("benchmark", "discovery", "--methods", "eap", "--n", "4", "--dtype", "float64", "--json")
    assert json.loads(judged.stdout)["model"]["dtype"] == "float64"

"""`assay store`, `assay show` and `assay report` on both kinds of store."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest


sys.path.insert(0, str(Path(__file__).resolve().parent / "report"))
from command_line import Outcome, invoke
from synthetic_store import Filled, fill

from assay.app.cli import run as command
from assay.store import About, Store


HOSTILE = '\x1b[31m=cmd,"x"\nnext'


def run(*arguments: object, code: int = 0) -> Outcome:
    outcome = invoke(*arguments)
    assert outcome.exit_code == code, outcome.output
    return outcome


@pytest.fixture
def filled(location: str) -> list[str]:
    """A store of three measurements and one result with a hostile name; the options that name it."""
    store = Store(location)
    for seed in range(3):
        value = 0.25 * seed
        payload = {"name": "kl", "value": value, "unit": "nats", "n": 5, "status": "pass"}
        about = About(model="mini", task="ioi", metric="kl", seed=seed, value=value, low=0.0, high=1.0)
        store.put("measurement", {"seed": seed}, payload, about=about)
    store.put("scores", {"method": "eap"}, {"details": {}}, about=About(task=HOSTILE, method="eap"))
    return ["--store", store.location]


def ids(filled: list[str], *arguments: str) -> list[str]:
    return [each["id"] for each in json.loads(run("store", "ls", *filled, *arguments, "--json").stdout)]


def test_results_are_listed_by_their_columns_and_shown(filled: list[str]) -> None:
    found = json.loads(run("store", "ls", *filled, "--model", "mini", "--metric", "kl", "--json").stdout)
    assert [each["seed"] for each in found] == [0, 1, 2]
    assert found[0]["about"] == "kl on ioi in mini"
    best = ("--kind", "measurement", "--order=-value", "--limit", "1")
    table = run("store", "ls", *filled, *best).stdout
    assert re.search(r"mini +ioi +kl +0\.5 \[0, 1\]", table)
    header = table.splitlines()[0].split()
    assert header == ["id", "kind", "created", "model", "task", "name", "value", "status"]
    (identity,) = ids(filled, *best)
    assert run("show", identity, *filled).stdout.startswith(f"measurement {identity}")
    assert json.loads(run("show", identity, *filled, "--json").stdout)["payload"]["value"] == 0.5
    assert ids(filled, "--method", "eap") == ids(filled, "--offset", "3")
    first, second = (ids(filled, "--limit", "2", "--offset", each) for each in "02")
    assert first + second == ids(filled)
    rows = list(csv.DictReader(io.StringIO(run("store", "ls", *filled, "--csv").stdout)))
    assert [row["value"] for row in rows] == ["0.0", "0.25", "0.5", ""]
    assert rows[3]["task"] == HOSTILE
    none = run("store", "ls", *filled, "--kind", "score", "--task", "ioi", "--json")
    assert json.loads(none.stdout) == []
    assert none.stderr == "note: the store does not hold a result with kind 'score'\n"
    wrong = {("--order", "vlaue"): "did you mean 'value'", ("--csv", "--json"): "one of"}
    for arguments, message in wrong.items():
        assert message in run("store", "ls", *arguments, *filled, code=2).stderr


def test_ids_and_hostile_names_in_a_terminal(filled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    every = ids(filled)
    for width in (80, 50):
        shown = io.StringIO()
        monkeypatch.setattr(shown, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        with monkeypatch.context() as terminal:
            terminal.setattr("sys.stdout", shown)
            assert command(["store", "ls", *filled]) == 0
        lines = re.sub("\x1b\\[[0-9;]*m", "", shown.getvalue()).splitlines()
        assert all(len(line) <= width for line in lines)
        assert [line.split()[0] for line in lines if line.split()[0] in every] == every
    assert "\x1b" not in run("store", "ls", *filled).stdout
    assert "\x1b" not in run("show", every[3][:8], *filled).stdout


def test_rm_removes_what_it_is_told_to(filled: list[str]) -> None:
    every = ids(filled)
    refused = run("store", "rm", every[0], *filled, code=2)
    assert "pass --yes to remove these" in refused.stderr
    assert every[0] in refused.stderr
    removed = run("store", "rm", every[0], every[1][:8], every[2], "--yes", "--json", *filled)
    assert json.loads(removed.stdout) == {"removed": every[:3]}
    assert ids(filled) == every[3:]
    run("store", "rm", "--yes", *filled, code=2)
    run("store", "rm", every[0], "--yes", *filled, code=2)


def test_merge_verify_and_clean(filled: list[str], tmp_path: Path) -> None:
    other = ("--store", tmp_path / "merged")
    assert run("store", "merge", filled[1], *other).stdout == "4 added, 0 already there\n"
    assert json.loads(run("store", "merge", filled[1], *other, "--json").stdout)["added"] == []
    assert run("store", "verify", *other).stdout == "4 results, 0 problems\n"
    run("store", "clean", *other)
    run("store", "merge", tmp_path / "nowhere", *other, code=2)


def test_errors_hide_passwords() -> None:
    url = "postgresql+psycopg://u:s3cret@/x?host=/nowhere/at/all&arrays=/tmp/x"
    failed = run("store", "ls", "--store", url, code=1)
    assert "s3cret" not in failed.stderr
    assert "cannot use the results store at postgresql+psycopg://u:***@" in failed.stderr


# ---- report -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Filled]:
    place = tmp_path_factory.mktemp("filled") / "store"
    return place, fill(Store(place))


def test_sweeps_results_and_comparisons_are_written(reported: tuple[Path, Filled], tmp_path: Path) -> None:
    place, made = reported
    page = ("--store", place, "--save", tmp_path / "made" / "page.html")
    for arguments, title in (
        (("methods",), "<h1>Sweep methods</h1>"),
        ((made.sweep,), "<h1>Sweep methods</h1>"),
        ((made.measurement,), "<h1>Measurement: faithfulness on ioi in mini</h1>"),
        (("--compare", *made.audits), "What both measured"),
    ):
        run("report", *arguments, *page)
        assert title in (tmp_path / "made" / "page.html").read_text()
    assert json.loads(run("report", *page, "--json").stdout)["id"] == made.audits[1]  # the newest audit
    compare = ("report", "--compare", *made.audits, "--store", place)
    assert "What both measured" in run(*compare).stdout
    rows = json.loads(run(*compare, "--json").stdout)
    numbers = {f"{side}{end}" for side in ("a", "b", "difference") for end in ("", "_low", "_high")}
    assert {"measure"} | numbers == set(rows[0])
    for arguments, message in (
        (("a", "--compare", "b", "c"), "ID and --compare select different pages"),
        (("--compare", "0123456789abcdef", "0123456789abcdef"), "no result in"),
    ):
        refused = run("report", *arguments, "--store", place, "--save", tmp_path / "none.html", code=2)
        assert message in refused.stderr
    assert not (tmp_path / "none.html").exists()

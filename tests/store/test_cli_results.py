"""`assay show` and the commands of `assay store`, on both kinds of store."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, invoke

from assay.app.cli import run as command
from assay.app.delivery import KINDS
from assay.store import About, Store


def run(*arguments: str) -> Outcome:
    return invoke(*arguments)


@pytest.fixture
def filled(location: str) -> list[str]:
    """A store of three measurements and one result with a hostile name; the options that name it."""
    store = Store(location)
    for seed in range(3):
        provenance = {"model": {"id": "mini"}, "task": {"name": "ioi"}, "metric": {"key": "kl"}, "seed": seed}
        payload = {"name": "kl", "value": 0.25 * seed, "unit": "nats", "n": 5, "status": "pass"}
        value = 0.25 * seed
        about = About(model="mini", task="ioi", metric="kl", seed=seed, value=value, low=0.0, high=1.0)
        store.put("measurement", provenance, payload, about=about)
    about = About(task='\x1b[31m=cmd,"x"\nnext', method="eap")
    store.put("scores", {"method": "eap"}, {"details": {}}, about=about)
    return ["--store", store.location]


def test_results_are_listed_by_their_columns(filled: list[str]) -> None:
    found = json.loads(run("store", "ls", *filled, "--metric", "kl", "--json").stdout)
    assert [each["seed"] for each in found] == [0, 1, 2]
    assert found[0]["about"] == "kl on ioi in mini"
    table = run("store", "ls", *filled, "--kind", "measurement", "--order=-value", "--limit", "1")
    assert re.search(r"mini +ioi +kl +0\.5 \[0, 1\]", table.stdout)
    assert len(table.stdout.splitlines()) == 2


def test_ids_stay_in_one_piece_on_a_narrow_terminal(
    filled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [each["id"] for each in json.loads(run("store", "ls", *filled, "--json").stdout)]
    for width in (80, 50):
        shown = io.StringIO()
        monkeypatch.setattr(shown, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        with monkeypatch.context() as terminal:
            terminal.setattr("sys.stdout", shown)
            assert command(["store", "ls", *filled]) == 0
        lines = re.sub("\x1b\\[[0-9;]*m", "", shown.getvalue()).splitlines()
        assert all(len(line) <= width for line in lines)
        assert [line.split()[0] for line in lines if line.split()[0] in ids] == ids


def test_store_ls_narrows_by_model_task_and_method(filled: list[str]) -> None:
    listed = run("store", "ls", *filled, "--model", "mini", "--task", "ioi", "--offset", "1", "--json")
    assert [each["seed"] for each in json.loads(listed.stdout)] == [1, 2]
    assert [
        each["kind"] for each in json.loads(run("store", "ls", *filled, "--method", "eap", "--json").stdout)
    ] == ["scores"]
    header, *rows = run("store", "ls", *filled).stdout.splitlines()
    assert header.split() == ["id", "kind", "created", "model", "task", "name", "value", "status"]
    assert len(rows) == 4


def test_store_rm_asks_and_removes(filled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [each["id"] for each in json.loads(run("store", "ls", *filled, "--json").stdout)]
    refused = run("store", "rm", ids[0], *filled)
    assert refused.exit_code == 2
    assert "cannot ask for confirmation without a terminal; pass --yes" in refused.stderr
    for answer, code in (("n\n", 1), ("y\n", 0)):
        stdin = io.StringIO(answer)
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", stdin)
        assert run("store", "rm", ids[0], *filled).exit_code == code
    removed = run("store", "rm", ids[1][:8], ids[2], "--yes", "--json", *filled)
    assert json.loads(removed.stdout) == {"removed": ids[1:3]}
    assert [each["id"] for each in json.loads(run("store", "ls", *filled, "--json").stdout)] == ids[3:]
    assert run("store", "rm", "--yes", *filled).exit_code == 2
    assert run("store", "rm", ids[0], "--yes", *filled).exit_code == 2


def test_store_merge_verify_and_clean(filled: list[str], tmp_path: Path) -> None:
    other = str(tmp_path / "merged")
    merged = run("store", "merge", filled[1], "--store", other)
    assert merged.stdout == "4 added, 0 already there\n"
    assert json.loads(run("store", "merge", filled[1], "--store", other, "--json").stdout)["added"] == []
    assert run("store", "verify", "--store", other).stdout == "4 results, 0 problems\n"
    assert run("store", "clean", "--store", other).exit_code == 0
    assert run("store", "merge", tmp_path / "nowhere", "--store", other).exit_code == 2


def test_pages_of_results_follow_each_other(filled: list[str]) -> None:
    whole, pages = json.loads(run("store", "ls", *filled, "--json").stdout), []
    for offset in range(0, 4, 2):
        page = run("store", "ls", *filled, "--json", "--limit", "2", "--offset", str(offset))
        pages += json.loads(page.stdout)
    assert pages == whole


def test_csv_holds_every_column(filled: list[str]) -> None:
    rows: list[dict[str, Any]] = list(
        csv.DictReader(io.StringIO(run("store", "ls", *filled, "--csv").stdout))
    )
    assert [row["value"] for row in rows] == ["0.0", "0.25", "0.5", ""]
    assert rows[3]["task"] == '\x1b[31m=cmd,"x"\nnext'


def test_a_hostile_name_does_not_reach_the_terminal(filled: list[str]) -> None:
    listed = run("store", "ls", *filled)
    assert "\x1b" not in listed.stdout
    (found,) = json.loads(run("store", "ls", *filled, "--kind", "scores", "--json").stdout)
    shown = run("show", found["id"][:8], *filled)
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout


def test_a_result_is_shown(filled: list[str]) -> None:
    (found,) = json.loads(run("store", "ls", *filled, "--order=-value", "--limit", "1", "--json").stdout)
    shown = run("show", found["id"], *filled)
    assert shown.stdout.startswith(f"measurement {found['id']}")
    assert "kl on ioi in mini" in shown.stdout
    assert json.loads(run("show", found["id"], *filled, "--json").stdout)["payload"]["value"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--order", "vlaue"], "did you mean 'value'"),
        (["--csv", "--json"], "give one of them"),
    ],
)
def test_a_wrong_question_says_what_is_right(filled: list[str], arguments: list[str], message: str) -> None:
    result = run("store", "ls", *arguments, *filled)
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_empty_answer_says_what_no_result_has(filled: list[str]) -> None:
    result = run("store", "ls", *filled, "--kind", "score", "--task", "ioi", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])
    assert result.stderr == "note: the store does not hold a result with kind 'score'\n"
    assert run("store", "ls", *filled, "--kind", "score", "--quiet").stderr == ""


def test_help_names_every_kind_that_is_stored() -> None:
    shown = "".join(run("store", "ls", "--help").stdout.split())  # lines are broken inside names too
    assert all(kind in shown for kind in KINDS)


def test_a_store_that_cannot_be_reached_hides_its_password() -> None:
    result = run(
        "store", "ls", "--store", "postgresql+psycopg://u:s3cret@/x?host=/nowhere/at/all&arrays=/tmp/x"
    )
    assert result.exit_code == 1
    assert "s3cret" not in result.stderr
    assert "cannot use the results store at postgresql+psycopg://u:***@" in result.stderr

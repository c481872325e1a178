"""`assay calibrate`: what it prints, writes, takes from the store and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from small_runs import write_prompts


Run = Callable[..., Any]
FEW = ("--circuit", "a0.h1,a1.h5,a2.h3", "--prompts", "14", "--quiet")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Any:
        return invoke("calibrate", *arguments)

    return call


def test_a_table_of_verdicts_with_what_to_do(run: Run) -> None:
    first = run("C11", "certified-stability", "C23", *FEW)
    assert first.exit_code == 0
    lines = first.stdout.splitlines()
    top = next(place for place, line in enumerate(lines) if "check" in line.split())
    assert [line.split()[0] for line in lines[top + 1 : top + 4]] == ["C11", "C23", "M3b"]
    assert "C23 nomological validity (the circuit’s heads have no roles) does not apply" in first.stdout
    again = run("C11", "M3b", "C23", *FEW)
    assert again.stdout.splitlines()[:-1] == lines[:-1]
    assert again.stdout.splitlines()[-1] == f"{lines[-1]} (taken from the store)"


def test_all_sixteen_written_as_json_and_page(run: Run, tmp_path: Path) -> None:
    found = run(*FEW, "--groups", "object", "--json", "--report", "new/page.html", "--save", "new/g.json")
    document = json.loads(found.stdout)
    assert len(document["gates"]) == 16
    assert document["kind"] == "calibration"
    assert json.loads((tmp_path / "new/g.json").read_text()) == document
    page = (tmp_path / "new/page.html").read_text()
    assert all(gate["name"] in page for gate in document["gates"])
    again = invoke("report", document["id"], "--save", "again.html")
    assert again.exit_code == 0
    assert (tmp_path / "again.html").read_text() == page


def test_against_another_task_a_circuit_is_found_for_it(run: Run) -> None:
    found = run("C17", *FEW, "--against", "greater-than", "--n", "12", "--steps", "1", "--json")
    document = json.loads(found.stdout)
    assert document["against"] == ["greater-than"]
    assert document["gates"][0]["verdict"]["values"]["ratio"] is not None


FOUND = ("--steps", "1", "--top", "40", "--quiet", "--json")


def test_a_file_is_divided_and_what_the_table_leaves_is_the_pool(run: Run, tmp_path: Path) -> None:
    write_prompts(tmp_path / "own.jsonl", 44)
    found = run("C11", "M3b", "C30", "--task", "own.jsonl", "--prompts", "8", *FOUND)
    assert found.exit_code == 0, found.stderr
    document = json.loads(found.stdout)
    assert (document["table"]["n_prompts"], document["table"]["n_pool"]) == (8, 22)
    assert all("same_prompts" not in gate["verdict"].get("warnings", ()) for gate in document["gates"])
    again = json.loads(run("C11", "--task", "own.jsonl", "--prompts", "8", "--seed", "1", *FOUND).stdout)
    assert again["table"]["hash"] != document["table"]["hash"]


def test_a_small_file_says_nothing_with_confidence(run: Run, tmp_path: Path) -> None:
    write_prompts(tmp_path / "own.jsonl", 12)
    found = run("C11", "M3b", "E1b", "--task", "own.jsonl", "--gate", *FOUND[:-2], "--json")
    assert found.exit_code == 0, found.stderr
    assert "measured on the prompts that it was found on" in found.stderr
    document = json.loads(found.stdout)
    for gate in document["gates"]:
        assert gate["verdict"]["status"] == "inconclusive"
        assert "same_prompts" in gate["verdict"]["warnings"]
    assert {gate["verdict"]["published"] for gate in document["gates"]} - {"inconclusive"}


def test_a_circuit_of_the_same_file_is_known_by_its_record(run: Run, tmp_path: Path) -> None:
    write_prompts(tmp_path / "own.jsonl", 12)
    discover = ["discover", "--task", "own.jsonl", "--steps", "1", "--top", "40", "--save", "c.safetensors"]
    assert invoke(*discover, "--quiet").exit_code == 0
    asked = ("C11", "--circuit", "c.safetensors", "--prompts", "8", "--quiet", "--json")
    document = json.loads(run(*asked, "--task", "own.jsonl").stdout)
    assert "same_prompts" in document["gates"][0]["verdict"]["warnings"]
    document = json.loads(run(*asked).stdout)  # on other prompts
    assert "same_prompts" not in document["gates"][0]["verdict"].get("warnings", ())


def test_files_of_their_own_to_discover_and_to_measure_on(run: Run, tmp_path: Path) -> None:
    write_prompts(tmp_path / "own.jsonl", 20)
    lines = (tmp_path / "own.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(lines[:12]))
    (tmp_path / "b.jsonl").write_text("".join(lines[12:]))
    named = ("--discover-on", "a.jsonl", "--measure-on", "b.jsonl")
    document = json.loads(run("C11", *named, *FOUND).stdout)
    assert document["task"]["name"] == "b"
    assert document["table"]["n_prompts"] == 8
    assert "same_prompts" not in document["gates"][0]["verdict"].get("warnings", ())
    refused = run("C11", "--discover-on", "a.jsonl", "--measure-on", "own.jsonl", *FOUND)
    assert refused.exit_code == 2
    assert "12 of the 20 prompts to measure on are also prompts to discover on" in refused.stderr
    refused = run("C11", "--discover-on", "a.jsonl", "--circuit", "a0.h1", "--quiet")
    assert refused.exit_code == 2
    assert "--discover-on has no effect with --circuit" in refused.stderr


def test_a_failing_gate_is_an_exit_code(run: Run) -> None:
    quiet = run("S1", *FEW)
    assert quiet.exit_code == 0
    assert "fail" in quiet.stdout
    fired = run("S1", *FEW, "--gate")
    assert fired.exit_code == 3
    assert "S1 fail" in fired.stderr
    assert run("C23", *FEW, "--gate").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["C99"], "C99"),
        (["C11", "--circuit", "a9.h0"], "out of range"),
        (["C11", *FEW, "--against", "chess"], "chess"),
        (["C17", *FEW, "--against", "ioi"], "the task itself"),
        (["C11", *FEW, "--published", "nobody"], "nobody"),
    ],
)
def test_wrong_usage_is_told_before_any_work(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "assay-out" / "tables").exists()

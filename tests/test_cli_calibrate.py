"""`assay calibrate`: what it prints, writes, takes from the store and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import invoke
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from assay.models import load_model
from assay.tasks import load_task


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
    assert lines[1].startswith("Faithfulness")
    assert "3 of 32 heads" in lines[1]
    top = next(place for place, line in enumerate(lines) if "check" in line.split())
    assert [line.split()[0] for line in lines[top + 1 : top + 4]] == ["C11", "C23", "M3b"]
    assert "not applicable" in lines[top + 2]
    assert "C23 nomological validity (the circuit’s heads have no roles) does not apply" in first.stdout
    assert "roles" in first.stdout
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
    listed = invoke("store", "ls", "--json")
    assert [line["kind"] for line in json.loads(listed.stdout)] == ["calibration"]
    again = invoke("report", document["id"], "--save", "again.html")
    assert again.exit_code == 0
    assert (tmp_path / "again.html").read_text() == page


def test_against_another_task_a_circuit_is_found_for_it(run: Run) -> None:
    found = run("C17", *FEW, "--against", "greater-than", "--n", "12", "--steps", "1", "--json")
    document = json.loads(found.stdout)
    assert document["against"] == ["greater-than"]
    assert document["gates"][0]["verdict"]["values"]["ratio"] is not None


def write_prompts(path: Path, n: int) -> None:
    """A file of `n` different prompts in the order of their text."""
    task = load_task("ioi", load_model("mini"), n=3 * n + 40)
    names = (task.fields["IO"], task.fields["S"])
    rows = zip(task.texts or (), task.corrupted_texts or (), *names, strict=True)
    distinct = {clean: (corrupted, right, wrong) for clean, corrupted, right, wrong in rows}
    lines = [
        {"clean": clean, "corrupted": corrupted, "answers": [f" {right}"], "wrong": [f" {wrong}"]}
        for clean, (corrupted, right, wrong) in sorted(distinct.items())[:n]
    ]
    assert len(lines) == n
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


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
    words = run("S1", "--task", "own.jsonl", *FOUND[:-1]).stdout
    assert "a file of 40 or more distinct prompts" in words


def test_a_circuit_of_the_same_file_is_known_by_its_record(run: Run, tmp_path: Path) -> None:
    write_prompts(tmp_path / "own.jsonl", 12)
    discover = ["discover", "--task", "own.jsonl", "--steps", "1", "--top", "40", "--save", "c.safetensors"]
    assert invoke(*discover, "--quiet").exit_code == 0
    asked = ("C11", "--circuit", "c.safetensors", "--prompts", "8", "--quiet", "--json")
    document = json.loads(run(*asked, "--task", "own.jsonl").stdout)
    assert "same_prompts" in document["gates"][0]["verdict"]["warnings"]
    document = json.loads(run(*asked, "--task", "own.jsonl", "--n", "10").stdout)  # some of them
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
        (["C11", "--circuit", "ioi_gpt2_wang26"], "12 layers"),
        (["C13", *FEW, "--groups", "colour"], "colour"),
        (["C11", *FEW, "--ablation", "median"], "median"),
        (["C11", *FEW, "--against", "chess"], "chess"),
        (["C17", *FEW, "--against", "ioi"], "the task itself"),
        (["C11", "--circuit", "2.1,3.2"], "a0.h3,a2.h1"),
        (["C11", *FEW, "--published", "nobody"], "nobody"),
        (["C11", "--circuit", "a0.h1", "--top", "4"], "--top"),
    ],
)
def test_wrong_usage_is_told_before_any_work(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "assay-out" / "tables").exists()


def test_a_half_written_table_is_named(run: Run, tmp_path: Path) -> None:
    assert run("M3b", *FEW).exit_code == 0
    for file in (tmp_path / "assay-out").glob("tables/*/y_drop1*"):
        file.write_bytes(file.read_bytes()[:100])
    result = run("C23", "M3b", *FEW)
    assert result.exit_code == 1
    assert "delete it" in result.stderr


@pytest.mark.slow
def test_the_published_ioi_heads_on_the_shape_of_gpt2(
    run: Run, tmp_path: Path, shared: Callable[[str], Path]
) -> None:
    """All paths of the 26 heads, with GPT-2's tokenizer and random weights: the numbers mean nothing."""
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(n_embd=24)).save_pretrained(tmp_path / "gpt2")
    AutoTokenizer.from_pretrained(shared("data/gpt2_tokenizer")).save_pretrained(tmp_path / "gpt2")
    found = run(
        *("--model", str(tmp_path / "gpt2"), "--circuit", "ioi_gpt2_wang26", "--prompts", "16", "--json"),
        *("--published", "ioi_gpt2_wang26", "--quiet"),
    )
    assert found.exit_code == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["circuit"]["k"] == 26
    assert document["circuit"]["n_heads"] == 144
    verdicts = {gate["code"]: gate["verdict"] for gate in document["gates"]}
    assert len(verdicts) == 16
    assert verdicts["C23"]["reason"] is None
    assert verdicts["C23"]["status"] == "pass"
    assert verdicts["C14"]["sub_results"]["node_overlap_jaccard"]["values"]["value"] == 1.0
    assert verdicts["C14"]["sub_results"]["ov_composition_pval"]["values"]["value"] is not None

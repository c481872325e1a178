"""`assay attack`: what it prints, writes, takes from the store and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke

from assay.analyses.worst_case import WorstCase
from assay.circuits import Circuit
from assay.models import load_model


Run = Callable[..., Any]
TINY = ("--n-clean", "2", "--n-corrupted", "2")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Any:
        return invoke("attack", *arguments)

    return call


@pytest.fixture(scope="module")
def circuit_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A circuit of `mini` that needs no discovery: all but the last MLP's edges."""
    graph = load_model("mini").graph
    mask = graph.valid.clone()
    mask[graph.mlp_source(graph.n_layers - 1)] = False
    return str(Circuit(graph=graph, mask=mask).save(tmp_path_factory.mktemp("circuit") / "c.safetensors"))


def test_json_is_one_document_and_the_second_call_takes_it_from_the_store(
    run: Run, circuit_file: str
) -> None:
    arguments = ("--circuit", circuit_file, "--protocol", "iid", "--n-pairs", "70", "--threshold", "0.01")
    first = run(*arguments, "--json")
    document = json.loads(first.stdout)
    assert document["kind"] == "worst_case"
    assert document["n_pairs"] == 70
    assert [each["threshold"] for each in document["summary"]["above"]] == [0.01]
    assert [each["percentile"] for each in document["certificates"]] == [0.95, 0.99, 0.999]
    assert document["search"] is document["outside"] is document["explanation"] is None
    second = run(*arguments)
    assert "(taken from the store)" in second.stdout
    assert json.loads(run(*arguments, "--json").stdout) == document


def test_a_circuit_of_a_given_size_is_discovered(run: Run) -> None:
    arguments = ("--top", "60", "--n", "8", "--steps", "1", "--protocol", "matched", "--n-pairs", "5")
    result = run(*arguments, "--json", "--quiet")
    document = json.loads(result.stdout)
    assert 0 < document["circuit"]["n_edges"] <= 60
    assert document["circuit"]["name"] == "eap-ig-inputs"
    assert "attack" not in result.stderr


def test_files_and_pages(run: Run, circuit_file: str, tmp_path: Path) -> None:
    arguments = ("--circuit", circuit_file, "--n-clean", "6", "--n-corrupted", "5")
    files = ("--save", "deep/w.safetensors", "--report", "deep/w.html", "--resume", "blocks")
    assert run(*arguments, *files).exit_code == 0
    loaded = WorstCase.load(tmp_path / "deep/w.safetensors")
    assert loaded.divergence.shape == (6, 5)
    assert (tmp_path / "blocks/job.json").exists()
    assert run(*arguments, "--save", "w.json").exit_code == 0
    assert json.loads((tmp_path / "w.json").read_text())["n_pairs"] == 30
    assert "over 30 distinct pairs" in invoke("show", loaded.id).stdout
    assert invoke("report", loaded.id, "--save", "again.html").exit_code == 0
    assert (tmp_path / "again.html").read_text() == (tmp_path / "deep/w.html").read_text()


def test_a_jsonl_file_of_pairs(run: Run, circuit_file: str, tmp_path: Path) -> None:
    lines = [{"clean": [5, 6, 7], "corrupted": [8, 6, 7], "answers": [9], "kind": kind} for kind in "ab"]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = run("--task", "own.jsonl", "--circuit", circuit_file, "--json")
    document = json.loads(result.stdout)
    assert (document["protocol"], document["n_pairs"], document["n_distinct_clean"]) == ("file", 2, 1)
    crossed = run("--task", "own.jsonl", "--circuit", circuit_file, "--n-clean", "4")
    assert crossed.exit_code == 2
    assert "--protocol all combines the prompts of a file" in crossed.stderr
    crossed = run("--task", "own.jsonl", "--circuit", circuit_file, "--protocol", "all", *TINY, "--json")
    assert json.loads(crossed.stdout)["protocol"] == "all"


def test_findings_stand_beside_the_statistics(run: Run, circuit_file: str, tmp_path: Path) -> None:
    """Searched, own and explained pairs are reported and change nothing else."""
    (tmp_path / "mine.txt").write_text("dog\nbox\n")
    plain = ("--circuit", circuit_file, "--n-clean", "6", "--n-corrupted", "5")
    extra = ("--search", "100", "--explain", "--words", "objects=ring,letter", "--words", "places=@mine.txt")
    alone = json.loads(run(*plain, "--json").stdout)
    shown = run(*plain, *extra, "--save", "found.json", "--report", "page.html").stdout
    document = json.loads((tmp_path / "found.json").read_text())
    assert {key for key in document if document[key] != alone[key]} == {"search", "outside", "explanation"}
    assert document["search"]["n_evaluations"] <= 100
    assert [entry["options"] for entry in document["outside"]] == [
        {"objects": ["ring", "letter"]},
        {"places": ["dog", "box"]},
    ]
    missing = document["explanation"]["missing"]
    assert missing["total"] == pytest.approx(document["explanation"]["mean"], rel=0.2)
    for text in ("Worst pairs found by search", "Inputs from outside the grammar", "What the circuit lacks"):
        assert text in shown
    assert "Inputs from outside the grammar" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--protocol", "iid", "--n-clean", "5"), "protocol 'iid' does not use --n-clean"),
        (("--n-pairs", "5"), "it takes --n-clean and --n-corrupted"),
        (("--divergence", "tv", "--explain"), "cannot be attributed to edges"),
        (("--save", "w.pt"), "give NAME.safetensors, or NAME.json"),
        (("--top", "5", "--circuit", "x"), "use only one"),
        (("--percentile", "1.2"), "percentile"),
        (("--percentile", "0.9999", "--epsilon", "0.0005"), "Use epsilon < 0.0001"),
    ],
)
def test_wrong_usage_is_named_and_ends_with_2(arguments: tuple[str, ...], message: str, run: Run) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_printed_circuit_can_be_shown_reported_and_measured(run: Run, tmp_path: Path) -> None:
    printed = invoke("discover", "--method", "eap", "--n", "4", "--top", "60", "--quiet")
    assert printed.exit_code == 0, printed.stderr
    identity = printed.stdout.splitlines()[-1].split()[1]
    assert "circuit" in invoke("show", identity[:8]).stdout.splitlines()[0]
    assert invoke("report", identity, "--save", "circuit.html").exit_code == 0
    assert identity in (tmp_path / "circuit.html").read_text()
    given = ("--n", "4", "--metric", "kl", "--json", "--quiet")
    (record,) = json.loads(invoke("measure", "--circuit", identity, *given).stdout)
    assert record["provenance"]["circuit"] == identity
    (scores,) = json.loads(invoke("store", "ls", "--kind", "scores", "--json").stdout)
    refused = invoke("measure", "--circuit", scores["id"], *given)
    assert refused.exit_code == 2
    assert "is a scores and does not hold a circuit" in refused.stderr


@pytest.mark.parametrize("circuit", ["a2.h3,a3.h0", "file.safetensors"])
def test_circuits_mean_the_same_in_every_verb(circuit: str, run: Run, tmp_path: Path) -> None:
    own = Circuit.from_heads(load_model("mini").graph, [(2, 3), (3, 0)])
    own.save(tmp_path / "file.safetensors")
    options = ("--circuit", circuit, "--json", "--quiet")
    worst = json.loads(run(*options, *TINY).stdout)
    (record,) = json.loads(invoke("measure", *options, "--n", "4").stdout)
    assert worst["circuit"]["hash"] == record["provenance"]["circuit"] == own.hash
    gates = invoke("calibrate", "C11", *options, "--prompts", "4")
    assert json.loads(gates.stdout)["circuit"]["k"] == 2
    wrong = run("--circuit", "ioi_gpt2", *TINY)
    assert wrong.exit_code == 2
    assert "belongs to another model" in wrong.stderr


def test_ablations_that_need_no_second_input_take_single_prompts(run: Run, circuit_file: str) -> None:
    arguments = ("--circuit", circuit_file, "--ablation", "mean")
    found = run(*arguments, "--n-clean", "60")
    assert "over 60 distinct prompts" in found.stdout
    for extra, message in (
        (("--protocol", "all"), "use protocol 'inputs' instead of 'all'"),
        (("--n-pairs", "5"), "it takes --n-clean"),
    ):
        refused = run(*arguments, *extra)
        assert refused.exit_code == 2
        assert message in refused.stderr


def test_images_are_attacked_by_their_name(run: Run) -> None:
    arguments = ("--model", "colour-digits", "--top", "60", "--n", "20", "--steps", "1")
    found = run(*arguments)
    assert found.exit_code == 0, found.stderr
    assert "over 20 distinct pairs" in found.stdout
    donors = json.loads(
        run(*arguments, "--images", "colour-digits:0.5", "--ablation", "resample-donor", "--json").stdout
    )
    assert (donors["protocol"], donors["n_pairs"]) == ("all", 400)
    for extra, message in (
        (("--words", "objects=ring,letter"), "--words needs the grammar of a registered task"),
        (("--ablation", "zero", "--n-clean", "5"), "--n-clean needs the grammar"),
    ):
        refused = run(*arguments, *extra)
        assert refused.exit_code == 2
        assert message in refused.stderr

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


@pytest.mark.parametrize("task", ["ioi", "greater_than", "docstring"])
def test_each_task_of_the_embedded_model(task: str, run: Run, circuit_file: str) -> None:
    result = run("--task", task, "--circuit", circuit_file, "--n-clean", "12", "--n-corrupted", "9")
    assert result.exit_code == 0, result.stderr
    for piece in (" distinct pairs", "empty", "percentile 95", "1. ", "clean: ", "corrupted: ", "result "):
        assert piece in result.stdout, piece
    assert "percentile 99.9" not in result.stdout  # at most 108 pairs do not resolve it
    assert "note: " in result.stderr


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
    assert run(*arguments, "--save", "deep/w.safetensors", "--report", "deep/w.html").exit_code == 0
    loaded = WorstCase.load(tmp_path / "deep/w.safetensors")
    assert loaded.divergence.shape == (6, 5)
    assert "<html" in (tmp_path / "deep/w.html").read_text()[:200]
    assert run(*arguments, "--save", "w.json").exit_code == 0
    assert json.loads((tmp_path / "w.json").read_text())["n_pairs"] == 30
    identity = loaded.id
    shown = invoke("show", identity)
    assert "over 30 distinct pairs" in shown.stdout
    page = invoke("report", identity, "--save", "again.html")
    assert page.exit_code == 0
    assert (tmp_path / "again.html").exists()


def test_a_directory_of_blocks_is_used(run: Run, circuit_file: str, tmp_path: Path) -> None:
    arguments = ("--circuit", circuit_file, "--n-clean", "6", "--n-corrupted", "5", "--resume", "blocks")
    assert run(*arguments).exit_code == 0
    assert {path.name for path in (tmp_path / "blocks").iterdir()} == {
        "job.json",
        "block-000000.safetensors",
    }


def test_certificates_as_asked(run: Run, circuit_file: str) -> None:
    arguments = ("--circuit", circuit_file, "--protocol", "iid", "--n-pairs", "80", "--json")
    found = json.loads(run(*arguments, "--percentile", "0.9", "--epsilon", "0.05").stdout)
    assert [(each["percentile"], each["order"]) for each in found["certificates"]] == [(0.9, 76)]


def test_a_jsonl_file_of_pairs(run: Run, circuit_file: str, tmp_path: Path) -> None:
    lines = [{"clean": [5, 6, 7], "corrupted": [8, 6, 7], "answers": [9], "kind": kind} for kind in "ab"]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = run("--task", "own.jsonl", "--circuit", circuit_file, "--json")
    document = json.loads(result.stdout)
    assert (document["protocol"], document["n_pairs"], document["n_distinct_clean"]) == ("file", 2, 1)
    shown = run("--task", "own.jsonl", "--circuit", circuit_file, "--report", "own.html").stdout
    assert "over 1 distinct pair" in shown
    assert "percentile 25" not in shown
    assert "1 distinct pairs (2 rows) of the task" in (tmp_path / "own.html").read_text()
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
        (("--protocol", "mached"), "did you mean 'matched'"),
        (("--protocol", "iid", "--n-clean", "5"), "protocol 'iid' does not use --n-clean"),
        (("--n-pairs", "5"), "it takes --n-clean and --n-corrupted"),
        (("--enumerate", "--n-clean", "5"), "an enumeration does not use --n-clean"),
        (("--enumerate", "--circuit", "FILE"), r"620,928 distinct clean and 60,230,016 distinct"),
        (("--divergence", "klx"), "unknown divergence 'klx'"),
        (("--save", "w.pt"), "give NAME.safetensors, or NAME.json"),
        (("--top", "5", "--circuit", "x"), "use only one"),
        (("--percentile", "1.2", "--circuit", "FILE", *TINY), "percentile"),
        (
            ("--percentile", "0.9999", "--epsilon", "0.0005", "--circuit", "FILE", *TINY),
            "Use epsilon < 0.0001",
        ),
    ],
)
def test_wrong_usage_is_named_and_ends_with_2(
    arguments: tuple[str, ...], message: str, run: Run, circuit_file: str
) -> None:
    result = run(*(circuit_file if each == "FILE" else each for each in arguments))
    assert result.exit_code == 2
    assert message in result.stderr


def test_every_printed_circuit_can_be_shown_reported_measured_and_attacked(run: Run, tmp_path: Path) -> None:
    def call(*arguments: str) -> Any:
        return invoke(*arguments)

    found = call("discover", "--method", "eap", "--n", "4", "--top", "60", "--quiet")
    assert found.exit_code == 0, found.stderr
    identity = found.stdout.splitlines()[-1].split()[1]
    assert call("show", identity).exit_code == 0
    assert "circuit" in call("show", identity[:8]).stdout.splitlines()[0]
    assert call("report", identity, "--save", "circuit.html").exit_code == 0
    assert identity in (tmp_path / "circuit.html").read_text()
    measured = call("measure", "--circuit", identity, "--n", "4", "--metric", "kl", "--json", "--quiet")
    (record,) = json.loads(measured.stdout)
    assert record["provenance"]["circuit"] == identity
    worst = json.loads(run("--circuit", identity, *TINY, "--json", "--quiet").stdout)
    assert worst["circuit"]["hash"] == identity
    scores = call("store", "ls", "--kind", "scores", "--json")
    (stored,) = json.loads(scores.stdout)
    assert call("report", stored["id"], "--save", "scores.html").exit_code == 0
    refused = call("measure", "--circuit", stored["id"], "--n", "4")
    assert refused.exit_code == 2
    assert "is a scores and does not hold a circuit" in refused.stderr


@pytest.mark.parametrize("circuit", ["a2.h3,a3.h0", "own.json", "file.safetensors"])
def test_circuits_mean_the_same_in_every_verb(circuit: str, run: Run, tmp_path: Path) -> None:
    model = load_model("mini")
    own = Circuit.from_heads(model.graph, [(2, 3), (3, 0)])
    own.save(tmp_path / "file.safetensors")
    described = {
        "schema": "head_circuit/1",
        "index_base": 0,
        "id": "own",
        "model": {"n_layers": 4, "n_heads": 8},
        "heads": [[2, 3], [3, 0]],
    }
    (tmp_path / "own.json").write_text(json.dumps(described))
    options = ("--circuit", circuit, "--json", "--quiet")
    worst = json.loads(run(*options, *TINY).stdout)
    (record,) = json.loads(invoke("measure", *options, "--n", "4").stdout)
    assert worst["circuit"]["hash"] == record["provenance"]["circuit"] == own.hash
    gates = invoke("calibrate", "C11", *options, "--prompts", "4")
    assert json.loads(gates.stdout)["circuit"]["k"] == 2
    wrong = run("--circuit", "ioi_gpt2", *TINY)
    assert wrong.exit_code == 2
    assert "belongs to another model" in wrong.stderr
    assert "ioi_gpt2" in invoke("list", "circuits").stdout


@pytest.mark.slow
@pytest.mark.parametrize("ablation", ["resample", "resample-donor", "zero", "mean", "mean-positional"])
def test_every_ablation_runs(ablation: str, run: Run, circuit_file: str) -> None:
    few = ("--n-clean", "40") if ablation in ("zero", "mean", "mean-positional") else TINY
    arguments = ("--circuit", circuit_file, "--ablation", ablation, *few, "--json", "--quiet")
    outcome = run(*arguments)
    assert outcome.exit_code == 0, outcome.stderr
    assert json.loads(outcome.stdout)["ablation"] == ablation


def test_ablations_that_need_no_second_input_take_single_prompts(
    run: Run, circuit_file: str, tmp_path: Path
) -> None:
    arguments = ("--circuit", circuit_file, "--ablation", "mean")
    found = run(*arguments, "--n-clean", "60", "--report", "w.html")
    assert "over 60 distinct prompts" in found.stdout
    assert "The worst prompts" in (tmp_path / "w.html").read_text()
    for extra, message in (
        (("--protocol", "all"), "use protocol 'inputs' instead of 'all'"),
        (("--n-pairs", "5"), "it takes --n-clean"),
    ):
        refused = run(*arguments, *extra)
        assert refused.exit_code == 2
        assert message in refused.stderr


@pytest.mark.parametrize("ablation", ["mean", "resample-donor"])
def test_findings_are_made_under_the_ablation_of_the_attack(
    ablation: str, run: Run, circuit_file: str
) -> None:
    few = ("--n-clean", "6") if ablation == "mean" else ("--n-clean", "6", "--n-corrupted", "5")
    extra = ("--search", "100", "--explain", "--words", "objects=ring,letter")
    found = run("--circuit", circuit_file, "--ablation", ablation, *few, *extra, "--json")
    assert found.exit_code == 0, found.stderr
    document = json.loads(found.stdout)
    sides = {row["side"] for row in document["outside"][0]["fillers"]}
    assert sides == ({"clean"} if ablation == "mean" else {"clean", "corrupted"})
    missing = document["explanation"]["missing"]
    worst = sum(pair["divergence"] for pair in document["worst"]) / len(document["worst"])
    assert missing["difference"] == pytest.approx(worst, rel=1e-3)
    assert missing["completeness_gap"] < 0.05
    for pair in document["search"]["pairs"]:
        assert (pair["clean"]["text"] == pair["corrupted"]["text"]) is (ablation == "mean")


@pytest.mark.slow
def test_the_report_of_a_search_names_the_larger_maximum(run: Run, circuit_file: str) -> None:
    """A search of a few pairs may meet less than a sample of many."""
    arguments = ("--task", "docstring", "--circuit", circuit_file, "--n-clean", "20", "--n-corrupted", "20")
    document = json.loads(run(*arguments, "--search", "100", "--json").stdout)
    searched, sampled = document["search"], document["summary"]["absolute"]["max"]
    assert searched["largest"] == max(searched["max"], sampled)
    assert searched["largest_from"] == ("search" if searched["max"] >= sampled else "sample")
    assert f"{searched['largest']:.4g}" in searched["note"]


def test_images_are_attacked_by_their_name(run: Run, tmp_path: Path) -> None:
    arguments = ("--model", "colour-digits", "--top", "60", "--n", "20", "--steps", "1")
    found = run(*arguments, "--report", "w.html")
    assert found.exit_code == 0, found.stderr
    assert "over 20 distinct pairs" in found.stdout
    assert "counterpart of image" in found.stdout
    assert "<img" in (tmp_path / "w.html").read_text()
    donors = json.loads(
        run(*arguments, "--images", "colour-digits:0.5", "--ablation", "resample-donor", "--json").stdout
    )
    assert (donors["protocol"], donors["n_pairs"]) == ("all", 400)
    for extra, message in (
        (("--words", "objects=ring,letter"), "a set of images does not have one"),
        (("--ablation", "zero", "--search", "100"), "all of them are run; remove --search"),
        (("--ablation", "zero", "--n-clean", "5"), "a set of images, is run whole"),
    ):
        refused = run(*arguments, *extra)
        assert refused.exit_code == 2
        assert message in refused.stderr

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import assay
from assay.circuits import Circuit, EdgeScores, load_circuit, load_scores
from assay.core.errors import AssayWarning, InputError, OutputError
from assay.discovery.edges import discover
from assay.execution import ABLATIONS, CircuitRuns, run_circuit
from assay.graph import build_graph
from assay.models import Model, load_model
from assay.objectives import OBJECTIVES
from assay.pipeline import (
    Audit,
    PairCounts,
    check_options,
    check_writable,
    discover_stored,
    draw_prompts,
    find_circuit,
    load_audit,
    measure_stored,
    prompts_to_measure,
    runs_of,
    usual_prompts,
)
from assay.pipeline.audit import audit
from assay.pipeline.checks import registered
from assay.pipeline.inputs import draw_inputs, read_inputs
from assay.pipeline.sizing import recovery
from assay.pipeline.stage import Memo, Stage
from assay.pipeline.worst import usual_sizes
from assay.store import Store
from assay.tasks import PairTask, draw_shapes, load_task
from assay.tasks.seen import found_on
from assay.zoo import Zoo


def silent(stage: str, done: int, total: int) -> None:
    del stage, done, total


@pytest.fixture(scope="module")
def tiny(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("gpt2"))


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def task(tiny: Model) -> PairTask:
    """Random prompts whose right answer is what the model itself prefers, so that there is a margin."""
    generator = torch.Generator().manual_seed(3)
    clean, corrupted = torch.randint(1, 61, (2, 24, 6), generator=generator)
    with torch.no_grad():
        logits = tiny.read(tiny.forward(clean), torch.full((24,), 5))
    return PairTask(
        clean=clean,
        corrupted=corrupted,
        answers=logits.argmax(1, keepdim=True),
        wrong=logits.argmin(1, keepdim=True),
    )


@pytest.fixture(scope="module")
def found(tiny: Model, task: PairTask) -> Audit:
    return audit(tiny, task, n_random=2, full=True)


# ---- the audit ----------------------------------------------------------------------------------


def test_the_document_agrees_with_what_was_found(found: Audit, tiny: Model, task: PairTask) -> None:
    document, circuit = found.to_dict(), found.circuit
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["circuit"]["n_edges"] == circuit.n_edges <= document["circuit"]["size"]
    assert document["circuit"]["id"] == circuit.hash
    edges = {f"{edge['source']}->{edge['target']}" for edge in document["edges"] if edge["kept"]}
    assert edges == set(circuit.edges())
    for edge in document["edges"][:5]:
        row, column = tiny.graph.source_index(edge["source"]), tiny.graph.target_index(edge["target"])
        assert edge["score"] == pytest.approx(float(found.scores.values[row, column]))
    total = float(found.scores.values.abs().sum())
    assert np.sum(document["per_layer"]["values"]) == pytest.approx(total, rel=1e-5)
    head = float(found.scores.values[tiny.graph.head_source(1, 2)].sum())
    assert document["per_head"][1][2] == pytest.approx(head, rel=1e-5)
    assert (document["task"]["accuracy"], document["task"]["n"]) == (1.0, task.n)


def test_the_circuit_meets_its_target_on_the_discovery_prompts(
    found: Audit, tiny: Model, task: PairTask
) -> None:
    """Here discovery and measurement share their prompts, so the reported number is the same."""
    runs = CircuitRuns(tiny, task, Circuit.full(tiny.graph))
    value = recovery(runs, found.circuit)
    assert value >= 0.9
    assert recovery(runs, Circuit.full(tiny.graph)) == pytest.approx(1.0, abs=1e-5)
    assert recovery(runs, Circuit.empty(tiny.graph)) == pytest.approx(0.0, abs=1e-5)
    document = found.to_dict()
    assert document["circuit"]["discovery_faithfulness"] == pytest.approx(value)
    assert document["circuit"]["faithfulness"]["value"] == pytest.approx(value)
    assert document["discovery"]["held_out"] is False


def test_every_metric_is_measured_once_with_random_circuits_where_promised(found: Audit) -> None:
    by_name = {record["name"]: record for record in found.measurements}
    assert len(by_name) == len(found.measurements)
    usual = {"faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk"}
    assert set(by_name) == {*usual, "minimality"}
    random = by_name["faithfulness-norm"]["baseline"]["random"]["values"]
    assert len(random) == 2
    assert found.to_dict()["random"]["values"] == random
    assert found.to_dict()["topk"]["agreement"][0] == by_name["topk"]["value"]


def test_the_same_call_gives_the_same_result(found: Audit, tiny: Model, task: PairTask) -> None:
    again = audit(tiny, task, n_random=2, full=True, batch_size=5)
    assert again.id == found.id
    assert again.circuit == found.circuit
    for one, other in zip(again.measurements, found.measurements, strict=True):
        assert one["name"] == other["name"]
        assert one["value"] == pytest.approx(other["value"], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"target": 0.8},
        {"n_random": 3},
        {"steps": 4},
        {"ablation": "zero"},
        {"objective": "kl"},
        {"method": "random"},
        {"full": False},
        {"skip": ["curve"]},
    ],
)
def test_every_choice_is_part_of_the_identity(
    tiny: Model, task: PairTask, found: Audit, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        Stage, "run", lambda self, store: seen.append(self.id) or Memo(value=found, cached=True)
    )
    audit(tiny, task, **{"n_random": 2, "full": True, **change})
    assert seen[0] != found.id


@pytest.mark.parametrize("choice", [{"objective": "kl"}, {"ablation": "zero", "method": "eap"}], ids=str)
def test_other_objectives_and_ablations_make_a_report_too(
    tiny: Model, task: PairTask, choice: dict[str, Any], tmp_path: Path
) -> None:
    other = audit(tiny, task, n_random=1, metrics=[], out=tmp_path, **choice)
    assert other.to_dict()["circuit"]["faithfulness"]["value"] >= 0.9 - 1e-6
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_an_ablation_of_edges_alone_is_no_end_of_an_audit(
    tiny: Model, task: PairTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package may register one that no intervention on heads goes by the name of."""
    hushed = type("Hushed", (type(ABLATIONS["zero"]),), {"key": "hushed"})()
    monkeypatch.setitem(ABLATIONS._entries, "hushed", hushed)
    document = audit(tiny, task, n_random=1, metrics=[], ablation="hushed", full=True).to_dict()
    assert document["calibration"]["table"]["ablation"] == "mean"
    assert len(document["calibration"]["gates"]) == 16
    document = audit(tiny, task, n_random=1, metrics=[], ablation="hushed").to_dict()
    assert document["calibration"] is None
    reasons = {each["stage"]: each["reason"] for each in document["left_out"]}
    assert reasons["calibrate"].startswith("the ablation is defined for edges alone")


def test_a_finished_audit_is_looked_up_not_repeated(
    tiny: Model, task: PairTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = audit(tiny, task, n_random=1, metrics=["kl"], store=tmp_path)
    monkeypatch.setattr("assay.pipeline.sizing.discover_stored", _forbidden)
    second = audit(tiny, task, n_random=1, metrics=["kl"], store=Store(tmp_path))
    assert (first.cached, second.cached) == (False, True)
    assert second.to_dict() == first.to_dict()
    assert second.circuit == first.circuit
    assert torch.equal(second.scores.values, first.scores.values)
    assert load_audit(Store(tmp_path), first.id[:6]).to_dict() == first.to_dict()


def _forbidden(*args: object, **kwargs: object) -> None:
    raise AssertionError("this was computed before")


def test_an_interrupted_audit_goes_on_where_it_stopped(
    tiny: Model, task: PairTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("assay.pipeline.audit.faithfulness_curve", interrupt)
        with pytest.raises(KeyboardInterrupt):
            audit(tiny, task, n_random=1, store=tmp_path)
    assert [result.kind for result in Store(tmp_path).results()] == ["scores"]
    monkeypatch.setattr("assay.pipeline.discovery.discover", _forbidden)
    assert not audit(tiny, task, n_random=1, store=tmp_path).cached


def test_saving_writes_four_files_that_read_back(
    found: Audit, tiny: Model, task: PairTask, tmp_path: Path
) -> None:
    page = found.save(tmp_path / "out")
    out = page.parent
    names = ["audit.json", "circuit.safetensors", "report.html", "scores.safetensors"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert found.id in page.read_text()
    assert json.loads((out / "audit.json").read_text()) == found.to_dict()
    assert torch.equal(load_scores(out / "scores.safetensors").values, found.scores.values)
    circuit = load_circuit(out / "circuit.safetensors", tiny.graph)
    assert circuit == found.circuit
    assert torch.equal(run_circuit(tiny, task, circuit), run_circuit(tiny, task, found.circuit))


def test_an_unwritable_place_is_refused_before_any_work(
    tiny: Model, task: PairTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("assay.pipeline.inputs.draw_prompts", _forbidden)
    with pytest.raises(OutputError, match="cannot write to .*file/out: .*; choose a writable directory"):
        audit(tiny, task, out=tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 1}, "n is 1"),
        ({"n_random": 0}, "n_random is 0"),
        ({"target": 0.0}, r"target is 0.0; .* in \(0, 1\]"),
        ({"target": 1.5}, "target is 1.5"),
        ({"method": "eap-ig-input"}, "did you mean 'eap-ig-inputs'"),
        ({"task": "iio"}, "did you mean 'ioi'"),
        ({"task": "my/own.json"}, "unknown task"),
        ({"ablation": "resampled"}, "did you mean 'resample'"),
        ({"objective": "logit-dif"}, "unknown objective"),
        ({"metrics": ["fathfulness"]}, "did you mean 'faithfulness'"),
        ({"skip": ["atack"]}, "did you mean 'attack'"),
        ({"device": "gpu"}, "device 'gpu' does not exist"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit("no-such-model", **change)


def test_an_audit_on_the_embedded_model_holds_prompts_out(mini: Model) -> None:
    stages: list[str] = []
    options: dict[str, Any] = {"n": 12, "n_random": 1, "steps": 1, "metrics": []}
    small = audit(mini, "ioi", **options, progress=lambda *step: stages.append(step[0])).to_dict()
    assert small["discovery"]["held_out"] is True
    assert small["task"]["data_hash"] != small["discovery"]["data_hash"]
    assert small["task"]["examples"][0]["answers"]
    assert all("same_prompts" not in record["warnings"] for record in small["measurements"])
    expected = ["load", "discover", "sweep sizes", "faithfulness curve", "measure", "attack", "calibrate"]
    assert list(dict.fromkeys(stages)) == expected
    assert [record["name"] for record in small["measurements"]] == [
        "faithfulness-norm",
        "faithfulness",
        "topk",
    ]


# ---- prompts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ioi", "sva"])
def test_no_prompt_is_discovered_on_and_measured_on(name: str, mini: Model) -> None:
    draws, again, other = (draw_prompts(mini, name, n=60, seed=seed) for seed in (1, 1, 2))
    assert draws.held_out
    assert draws.discovery.n + draws.measured.n == 120
    assert not cleans(draws.discovery) & cleans(draws.measured)
    assert draws.measured.data_hash == again.measured.data_hash != other.measured.data_hash


def ioi_lines(mini: Model, n: int, **fields: list[Any]) -> list[dict[str, Any]]:
    """Lines of a file of different prompts, in the order of their text."""
    task = load_task("ioi", mini, n=2 * n + 60)
    texts = zip(task.texts or (), task.corrupted_texts or (), strict=True)
    distinct = sorted(dict(texts).items())[:n]
    assert len(distinct) == n
    lines = [
        {"clean": clean, "corrupted": corrupted, "answers": [" Kelly"], "wrong": [" Lisa"]}
        for clean, corrupted in distinct
    ]
    return [line | {name: values[row] for name, values in fields.items()} for row, line in enumerate(lines)]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def cleans(task: PairTask) -> set[tuple[int, ...]]:
    return {tuple(row) for row in task.clean.tolist()}


def test_few_prompts_of_a_file_or_own_task_serve_for_both(
    mini: Model, tiny: Model, task: PairTask, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "own.jsonl", 3 * ioi_lines(mini, 39))  # 117 lines of 39 prompts
    for draws, n in (
        (draw_prompts(tiny, task, n=None, seed=0), task.n),
        (draw_prompts(mini, path, n=None, seed=0), 117),
        (draw_prompts(mini, path, n=2, seed=0), 2),
    ):
        assert draws.measured is draws.discovery
        assert not draws.held_out
        assert draws.measured.n == n


def test_a_file_and_an_own_task_are_dealt_to_two_halves(mini: Model, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "own.jsonl", 2 * ioi_lines(mini, 40))
    for source in (path, load_task(path, mini)):
        draws, again, other = (draw_prompts(mini, source, n=None, seed=seed) for seed in (1, 1, 2))
        assert draws.held_out
        assert draws.measured.data_hash == again.measured.data_hash != other.measured.data_hash
        discovered, measured = cleans(draws.discovery), cleans(draws.measured)
        assert len(discovered) == len(measured) == 20
        assert not discovered & measured
        assert draws.discovery.n == draws.measured.n == 40  # both lines of a prompt are on one side
        lines = [*draws.discovery.ids.tolist(), *draws.measured.ids.tolist()]
        assert sorted(lines) == list(range(1, 81)) != lines
        few = draw_prompts(mini, source, n=5, seed=1)
        assert few.discovery.n == few.measured.n == 5
        assert cleans(few.measured) <= measured


def test_a_field_says_what_lines_are_for(mini: Model, tmp_path: Path) -> None:
    def marked(*marks: str) -> str:
        return write_lines(tmp_path / "own.jsonl", ioi_lines(mini, 12, split=[*marks] * 4))

    path = marked("discover", "measure", "discover")
    draws = draw_prompts(mini, path, n=None, seed=0)
    assert draws.held_out  # the user's own halves may be small
    assert list(draws.discovery.fields["split"]) == ["discover"] * 8
    assert list(draws.measured.fields["split"]) == ["measure"] * 4
    assert prompts_to_measure(mini, path, n=None, seed=0).n == 4
    for marks, message in (
        (("discover", "measure", "train"), "'split' of 'own' is 'train' for pair 3"),
        (("measure",) * 3, "no pair of 'own' has 'discover' in its field 'split'"),
    ):
        with pytest.raises(InputError, match=message):
            draw_prompts(mini, marked(*marks), n=None, seed=0)


PARTS = {"a.jsonl": slice(8), "b.jsonl": slice(8, None)}


def test_files_of_their_own_to_discover_and_to_measure_on(mini: Model, tmp_path: Path) -> None:
    lines = ioi_lines(mini, 12)
    one, other = (write_lines(tmp_path / name, lines[part]) for name, part in PARTS.items())
    for source, places in (("ioi", {"discover_on": one, "measure_on": other}), (one, {"measure_on": other})):
        draws = draw_prompts(mini, source, n=None, seed=0, **places)
        assert draws.held_out
        assert (draws.discovery.n, draws.measured.n) == (8, 4)
    with pytest.raises(InputError, match="8 of the 8 prompts to measure on are also prompts to discover on"):
        draw_prompts(mini, one, n=None, seed=0, discover_on=one)


def test_a_circuit_is_measured_on_prompts_it_was_not_found_on(mini: Model, tmp_path: Path) -> None:
    drawn = load_task("ioi", mini, n=30, seed=0)
    circuit = discover(mini, drawn, "eap").top(60)
    plain = prompts_to_measure(mini, "ioi", n=20, seed=0)
    assert cleans(plain) <= cleans(drawn)  # the same stream of prompts
    fresh = prompts_to_measure(mini, "ioi", n=20, seed=0, circuit=circuit)
    assert fresh.n == 20
    assert not cleans(fresh) & cleans(drawn)
    path = write_lines(tmp_path / "own.jsonl", ioi_lines(mini, 50))
    whole = load_task(path, mini)
    for n_seen, rest in ((30, range(31, 51)), (31, range(1, 51))):  # line numbers; 19 others are too few
        circuit = discover(mini, whole.subset(list(range(n_seen))), "eap").top(60)
        fresh = prompts_to_measure(mini, path, n=None, seed=0, circuit=circuit)
        assert sorted(fresh.ids.tolist()) == list(rest)
        if n_seen == 30:
            (note,) = assay.measure(circuit, mini, fresh, "kl").notes
            assert note.startswith("30 of the 50 prompts of 'own' are skipped")


def test_scores_out_of_a_store_know_their_prompts(mini: Model, tmp_path: Path) -> None:
    drawn, store = load_task("ioi", mini, n=6, seed=0), Store(tmp_path / "store")
    fresh, stored = (discover_stored(mini, drawn, "eap", store=store) for _ in range(2))
    assert stored.provenance["task"] == fresh.provenance["task"]
    assert found_on(stored.top(5).provenance, drawn)


def test_more_prompts_than_there_are_is_said(mini: Model, tmp_path: Path) -> None:
    few = write_lines(tmp_path / "few.jsonl", ioi_lines(mini, 12))
    with pytest.warns(AssayWarning, match="'few' has 12 prompts to discover and measure on, fewer than"):
        both = draw_prompts(mini, few, n=20, seed=1)
    assert both.measured.data_hash == load_task(few, mini).data_hash
    with pytest.warns(AssayWarning, match="'few' has 12 prompts to measure on, fewer than"):
        assert prompts_to_measure(mini, few, n=20, seed=1).data_hash == both.measured.data_hash
    many = write_lines(tmp_path / "many.jsonl", ioi_lines(mini, 50))
    with pytest.warns(AssayWarning, match="'many' has 25 prompts to (discover|measure) on") as warned:
        assert draw_prompts(mini, many, n=40, seed=0).measured.n == 25
    assert len(warned) == 2


def test_examples_that_serve_for_both_are_said(mini: Model, tmp_path: Path) -> None:
    few = write_lines(tmp_path / "few.jsonl", ioi_lines(mini, 12))
    with pytest.warns(AssayWarning, match="'few' is measured on the prompts that it was found on"):
        assert not draw_inputs(mini, few, n=None, seed=0).held_out
    zoo = Zoo.embedded()
    model = zoo.load(zoo.keys[0])
    path = tmp_path / "few"
    for place, pixels in enumerate(draw_shapes("flat", 12).pixels):
        folder = path / zoo.classes[place % 6]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels)).save(folder / f"{place}.png")
    with pytest.warns(AssayWarning, match="on the images that it was found on.*20 or more images, of which"):
        assert not draw_inputs(model, f"images:{path}", n=10, seed=0).held_out
    assert draw_inputs(model, f"images:{path}", n=6, seed=0).held_out


def test_a_seed_that_draws_no_lines_is_passed_without_a_word(mini: Model, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "own.jsonl", ioi_lines(mini, 12))
    whole = load_task(path, mini)
    assert read_inputs(path, None, mini, n=None, seed=5).data_hash == whole.data_hash
    runs = runs_of(mini, path, Circuit.empty(mini.graph), method="eap", seed=5, progress=silent)
    assert runs.task.data_hash == whole.data_hash
    one, other = (read_inputs(path, None, mini, n=6, seed=seed).ids.tolist() for seed in (0, 5))
    assert one != other


def test_a_table_of_a_file_is_a_random_draw_and_the_rest_its_pool(mini: Model, tmp_path: Path) -> None:
    whole = load_task(write_lines(tmp_path / "own.jsonl", ioi_lines(mini, 50)), mini)
    found = usual_prompts(whole, 20, seed=3)
    assert found.pool is not None
    assert (found.task.n, found.pool.n) == (20, 30)
    assert sorted([*found.task.ids.tolist(), *found.pool.ids.tolist()]) == list(range(1, 51))
    assert max(found.task.ids.tolist()) > 30  # not the first lines
    other = usual_prompts(whole, 20, seed=4).task
    assert other.ids.tolist() != found.task.ids.tolist()
    assert usual_prompts(whole, 50, seed=3) == (whole, None)
    drawn = load_task("ioi", mini, n=30)
    assert usual_prompts(drawn, 20).task.data_hash == drawn.subset(range(20)).data_hash


def test_an_audit_on_the_same_prompts_says_nothing_with_confidence(found: Audit) -> None:
    document = found.to_dict()
    for record in document["measurements"]:
        assert "same_prompts" in record["warnings"]
        assert {record["status"], record["verdict"]["status"]} <= {"inconclusive", "none"}
    (section,) = (each for each in found.page().sections if each.title == "Every number")
    rows = section.blocks[0].blocks[0].texts()
    assert len(rows) == 6
    assert all("inconclusive found on these examples" in row[-1] for row in rows)
    verdicts = [gate["verdict"] for gate in document["calibration"]["gates"]]
    assert all("same_prompts" in each["warnings"] for each in verdicts)
    assert {each["status"] for each in verdicts} == {"inconclusive"}
    assert any(each["reason"] == "same_prompts" for each in verdicts)
    assert any(each["published"] != "inconclusive" for each in verdicts)


# ---- the size of a circuit ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranked() -> EdgeScores:
    graph = build_graph(3, 4)
    values = torch.randn(graph.n_sources, graph.n_targets, generator=torch.Generator().manual_seed(0))
    return EdgeScores(graph, values)


@pytest.mark.parametrize("needed", [1, 7, 60, 131, 200])
def test_the_sweep_finds_the_smallest_size_of_a_growing_curve(ranked: EdgeScores, needed: int) -> None:
    sizes: list[int] = []

    def faithfulness(circuit: Circuit) -> float:
        sizes.append(circuit.n_edges)
        return float(circuit.n_edges >= needed)

    found = find_circuit(ranked, faithfulness, target=0.9, progress=silent)
    assert found.circuit.n_edges >= needed
    smaller = ranked.top(found.size - max(1, found.size // 50)).connected(warn=False)
    assert smaller.n_edges < needed
    assert len(sizes) < 20
    assert [step["size"] for step in found.sweep] == sorted(step["size"] for step in found.sweep)


def test_only_the_model_itself_meets_what_nothing_else_does(ranked: EdgeScores) -> None:
    for value in (0.0, float("nan")):
        found = find_circuit(ranked, lambda circuit, value=value: value, target=0.5, progress=silent)
        assert found.circuit == Circuit.full(ranked.graph)
        assert found.faithfulness == 1.0


def test_a_size_can_be_confirmed_on_other_prompts(ranked: EdgeScores) -> None:
    def at_least(needed: int) -> Callable[[Circuit], float]:
        return lambda circuit: float(circuit.n_edges >= needed)

    found = find_circuit(ranked, at_least(60), target=0.9, progress=silent, elsewhere=at_least(80))
    assert found.confirmed
    assert 80 <= found.circuit.n_edges <= 86
    *before, last = [step["elsewhere"] for step in found.sweep if "elsewhere" in step]
    assert set(before) == {0.0}
    assert last == 1.0

    never = find_circuit(ranked, at_least(60), target=0.9, progress=silent, elsewhere=lambda circuit: 0.5)
    alone = find_circuit(ranked, at_least(60), target=0.9, progress=silent)
    assert (never.confirmed, alone.confirmed) == (False, None)
    assert never.circuit == alone.circuit
    assert max(step["size"] for step in never.sweep) == max(128, 2 * never.size)


# ---- stages and plans ---------------------------------------------------------------------------


def test_stored_scores_and_measurements_come_back_unchanged(
    tiny: Model, task: PairTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    scores = discover_stored(tiny, task, "eap", store=store)
    runs = CircuitRuns(tiny, task, scores.top(20).connected())
    record = measure_stored(runs, "kl", store=store)
    monkeypatch.setattr("assay.pipeline.discovery.discover", _forbidden)
    monkeypatch.setattr("assay.pipeline.runs.measure", _forbidden)
    again = discover_stored(tiny, task, "eap", store=store)
    assert torch.equal(again.values, scores.values)
    assert again.details == scores.details
    assert measure_stored(runs, "kl", store=store) == record
    with pytest.raises(AssertionError, match="computed before"):
        measure_stored(runs, "kl", random_circuits=2, store=store)
    (stored,) = store.results("scores")
    with pytest.raises(InputError, match="is a scores, not an audit"):
        load_audit(store, stored.id)


def test_results_under_unregistered_objectives_and_ablations_stay_out_of_the_store(
    tiny: Model, task: PairTask, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    usual = OBJECTIVES["logit_diff"]
    double = replace(usual, loss=lambda logits, clean, batch: 2 * usual.loss(logits, clean, batch))
    plain, doubled = (discover_stored(tiny, task, "eap", objective=o, store=store) for o in (usual, double))
    assert torch.allclose(doubled.values, 2 * plain.values, rtol=1e-3, atol=1e-5)
    circuit = plain.top(20).connected()
    for objective in (usual, double):
        measure_stored(CircuitRuns(tiny, task, circuit, objective=objective), "kl", store=store)
    silent_ablation = type("Silent", (type(ABLATIONS["zero"]),), {"key": "resample"})()
    resampled = discover_stored(tiny, task, "eap", ablation="resample", store=store)
    silenced = discover_stored(tiny, task, "eap", ablation=silent_ablation, store=store)
    assert torch.equal(resampled.values, plain.values)
    assert not torch.allclose(silenced.values, resampled.values)
    assert [result.kind for result in store.results()] == ["scores", "measurement"]
    audit(tiny, task, n_random=1, metrics=[], objective=double, store=store)
    assert store.count() == 2
    assert all(registered(usual, ablation) for ablation in ABLATIONS.values())
    assert not registered(replace(usual), ABLATIONS["zero"])


def test_a_circuit_found_on_the_way_is_measured_on_other_prompts(mini: Model) -> None:
    runs = runs_of(mini, "ioi", None, n=8, steps=1, top=40, progress=silent)
    assert runs.circuit.n_edges <= 40
    assert runs.task.data_hash == draw_prompts(mini, "ioi", n=8, seed=0).measured.data_hash
    given = runs_of(mini, "ioi", runs.circuit, n=8, progress=silent)
    assert given.circuit is runs.circuit
    assert given.task.n == 8


def test_writable_places_are_made_on_request_and_others_named(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    check_writable(tmp_path / "a" / "b", make=True)
    assert list(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a" / "b"]


def test_devices_are_named_when_there_is_no_such_one(monkeypatch: pytest.MonkeyPatch) -> None:
    check_options(device="cpu")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    for name in ("cuda", "cuda:1"):
        check_options(device=name)
    for name in ("cuda:2", "gpu", "meta", ""):
        with pytest.raises(InputError, match="here has cpu, cuda:0, cuda:1"):
            check_options(device=name)


def test_an_audit_shows_its_circuit_at_its_worst(tmp_path: Path) -> None:
    """Pairs of fresh prompts, an article of the page; single prompts where no corrupted one is used."""
    model = load_model("mini")
    small: dict[str, Any] = {"n": 8, "steps": 1, "n_random": 1, "metrics": ["kl"]}
    found = audit(model, "greater-than", full=True, out=tmp_path, **small)
    worst = found.to_dict()["worst_case"]
    assert (worst["protocol"], worst["n_pairs"]) == ("all", 49)
    assert worst["circuit"]["hash"] == found.circuit.hash
    page = (tmp_path / "report.html").read_text()
    assert "A circuit of mini at its worst on greater-than" in page
    other = audit(model, "greater-than", ablation="mean", **small)
    assert other.to_dict()["worst_case"]["protocol"] == "inputs"
    assert other.to_dict()["worst_case"]["ablation"] == "mean"


def test_the_pairs_of_an_audit_suit_its_task() -> None:
    model = load_model("mini")
    drawn = load_task("ioi", model, n=90)
    assert usual_sizes(drawn) == ("all", PairCounts(n_clean=60, n_corrupted=60))
    assert usual_sizes(load_task("ioi", model, n=60))[1] == PairCounts(n_clean=59, n_corrupted=59)
    own = replace(drawn, grammar=None)
    assert usual_sizes(own) == ("file", PairCounts(n_clean=90, n_corrupted=90))
    lengths = drawn.lengths.clone()
    lengths[0] -= 1
    ragged = replace(drawn, lengths=lengths, corrupted_lengths=lengths, positions=lengths - 1)
    assert usual_sizes(ragged) == ("matched", PairCounts(n_clean=90, n_corrupted=90))

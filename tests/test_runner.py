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
from assay.core.errors import AssayWarning, InputError, OutputError, UnknownNameError
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
from assay.report import save_report
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


def test_the_document_is_finite_json_that_a_report_can_show(found: Audit, tmp_path: Path) -> None:
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text) == found.to_dict()
    page = save_report(tmp_path / "report.html", found).read_text()
    assert found.id in page
    assert found.circuit.hash in page


def test_the_document_agrees_with_what_was_found(found: Audit, tiny: Model, task: PairTask) -> None:
    document, circuit = found.to_dict(), found.circuit
    assert document["circuit"]["n_edges"] == circuit.n_edges
    assert document["circuit"]["id"] == circuit.hash
    assert document["circuit"]["size"] >= circuit.n_edges
    kept = {f"{edge['source']}->{edge['target']}" for edge in document["edges"] if edge["kept"]}
    assert kept == set(circuit.edges())
    for edge in document["edges"][:5]:
        row, column = tiny.graph.source_index(edge["source"]), tiny.graph.target_index(edge["target"])
        assert edge["score"] == pytest.approx(float(found.scores.values[row, column]))
    assert np.sum(document["per_layer"]["values"]) == pytest.approx(
        float(found.scores.values.abs().sum()), rel=1e-5
    )
    head = float(found.scores.values[tiny.graph.head_source(1, 2)].sum())
    assert document["per_head"][1][2] == pytest.approx(head, rel=1e-5)
    assert document["task"]["accuracy"] == 1.0
    assert document["task"]["n"] == task.n


def test_the_circuit_meets_its_target_on_the_discovery_prompts(
    found: Audit, tiny: Model, task: PairTask
) -> None:
    runs = CircuitRuns(tiny, task, Circuit.full(tiny.graph))
    value = recovery(runs, found.circuit)
    assert value >= 0.9
    assert found.to_dict()["circuit"]["discovery_faithfulness"] == pytest.approx(value)
    # Here discovery and measurement share their prompts, so the reported number is the same.
    assert found.to_dict()["circuit"]["faithfulness"]["value"] == pytest.approx(value)
    assert found.to_dict()["discovery"]["held_out"] is False


def test_every_metric_is_measured_once_with_random_circuits_where_promised(found: Audit) -> None:
    names = [record["name"] for record in found.measurements]
    assert names == [
        "faithfulness-norm",
        "faithfulness",
        "completeness",
        "kl",
        "ce-delta",
        "topk",
        "minimality",
    ]
    by_name = dict(zip(names, found.measurements, strict=True))
    assert len(by_name["faithfulness-norm"]["baseline"]["random"]["values"]) == 2
    assert found.to_dict()["random"]["values"] == by_name["faithfulness-norm"]["baseline"]["random"]["values"]
    assert found.to_dict()["topk"]["agreement"][0] == by_name["topk"]["value"]


def test_the_same_call_gives_the_same_result(found: Audit, tiny: Model, task: PairTask) -> None:
    again = audit(tiny, task, n_random=2, full=True, batch_size=5)
    assert again.id == found.id
    assert again.circuit == found.circuit
    machine = ("created", "provenance", "method")
    one, other = (
        {key: value for key, value in each.to_dict().items() if key not in machine} for each in (found, again)
    )
    assert _close(one, other)


def _close(one: Any, other: Any) -> bool:
    """Equal but for rounding: another batch size adds floats in another order."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            key in ("hash", "provenance") or _close(one[key], other[key]) for key in one
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if isinstance(one, float):
        return other is not None and bool(np.isclose(one, other, rtol=1e-3, atol=1e-4))
    return bool(one == other)


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


@pytest.mark.parametrize(
    "choice",
    [{"objective": "kl"}, {"ablation": "mean"}, {"ablation": "zero", "method": "eap"}],
    ids=str,
)
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


def test_saving_writes_four_files_that_read_back(found: Audit, tiny: Model, tmp_path: Path) -> None:
    page = found.save(tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    assert sorted(path.name for path in page.parent.iterdir()) == [
        "audit.json",
        "circuit.safetensors",
        "report.html",
        "scores.safetensors",
    ]
    assert load_circuit(page.parent / "circuit.safetensors", tiny.graph) == found.circuit
    assert torch.equal(load_scores(page.parent / "scores.safetensors").values, found.scores.values)
    assert json.loads((page.parent / "audit.json").read_text()) == found.to_dict()


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
        ({"n": 1}, "n is 1; an audit needs at least 2 prompts"),
        ({"n_random": 0}, "n_random is 0; give at least 1"),
        ({"target": 0.0}, r"target is 0.0; .* in \(0, 1\]"),
        ({"target": 1.5}, r"target is 1.5"),
        ({"method": "eap-ig-input"}, "unknown method 'eap-ig-input'; did you mean 'eap-ig-inputs'"),
        ({"task": "iio"}, "unknown task 'iio'; did you mean 'ioi'"),
        ({"ablation": "resampled"}, "unknown ablation 'resampled'; did you mean 'resample'"),
        ({"objective": "logit-dif"}, "unknown objective"),
        ({"metrics": ["fathfulness"]}, "unknown metric 'fathfulness'; did you mean 'faithfulness'"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit("no-such-model", **change)


def test_an_audit_on_the_embedded_model_holds_prompts_out(mini: Model) -> None:
    told = []
    small = audit(
        mini, "ioi", n=12, n_random=1, steps=1, metrics=[], progress=lambda *step: told.append(step[0])
    )
    assert small.to_dict()["discovery"]["held_out"] is True
    assert small.to_dict()["task"]["data_hash"] != small.to_dict()["discovery"]["data_hash"]
    assert small.to_dict()["task"]["examples"][0]["answers"]
    stages = ["load", "discover", "sweep sizes", "faithfulness curve", "measure", "attack", "calibrate"]
    assert list(dict.fromkeys(told)) == stages
    names = [record["name"] for record in small.measurements]
    assert names == ["faithfulness-norm", "faithfulness", "topk"]


# ---- prompts ------------------------------------------------------------------------------------


def test_no_prompt_is_discovered_on_and_measured_on(mini: Model) -> None:
    for name in ("ioi", "sva"):
        draws = draw_prompts(mini, name, n=60, seed=1)
        one = {tuple(row) for row in draws.discovery.clean.tolist()}
        other = {tuple(row) for row in draws.measured.clean.tolist()}
        assert draws.held_out
        assert one
        assert other
        assert not one & other
        assert draws.discovery.n + draws.measured.n == 120


def test_draws_depend_on_the_seed_alone(mini: Model) -> None:
    hashes = [draw_prompts(mini, "ioi", n=10, seed=seed).measured.data_hash for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]


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
    own = draw_prompts(tiny, task, n=None, seed=0)
    assert own.discovery is own.measured is task
    assert not own.held_out
    path = write_lines(tmp_path / "own.jsonl", 3 * ioi_lines(mini, 39))  # 117 lines of 39 prompts
    file = draw_prompts(mini, path, n=None, seed=0)
    assert not file.held_out
    assert file.measured is file.discovery
    assert file.measured.n == 117
    assert draw_prompts(mini, path, n=2, seed=0).measured.n == 2


def test_a_file_and_an_own_task_are_dealt_to_two_halves(mini: Model, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "own.jsonl", 2 * ioi_lines(mini, 40))
    whole = load_task(path, mini)
    for source in (path, whole):
        draws = draw_prompts(mini, source, n=None, seed=1)
        assert draws.held_out
        one, other = cleans(draws.discovery), cleans(draws.measured)
        assert len(one) == len(other) == 20
        assert not one & other
        assert draws.discovery.n == draws.measured.n == 40  # both lines of a prompt are on one side
        lines = [*draws.discovery.ids.tolist(), *draws.measured.ids.tolist()]
        assert sorted(lines) == list(range(1, 81))
        assert lines != sorted(lines)
        again = draw_prompts(mini, source, n=None, seed=1)
        assert again.measured.data_hash == draws.measured.data_hash
        assert draw_prompts(mini, source, n=None, seed=2).measured.data_hash != draws.measured.data_hash
        few = draw_prompts(mini, source, n=5, seed=1)
        assert few.discovery.n == few.measured.n == 5
        assert cleans(few.measured) <= other


def test_a_field_says_what_lines_are_for(mini: Model, tmp_path: Path) -> None:
    marks = ["discover", "measure", "discover"] * 4
    path = write_lines(tmp_path / "own.jsonl", ioi_lines(mini, 12, split=marks))
    draws = draw_prompts(mini, path, n=None, seed=0)
    assert draws.held_out  # the user's own halves may be small
    assert set(draws.discovery.fields["split"]) == {"discover"}
    assert set(draws.measured.fields["split"]) == {"measure"}
    assert (draws.discovery.n, draws.measured.n) == (8, 4)
    assert prompts_to_measure(mini, path, n=None, seed=0).n == 4
    marks[3] = "train"
    path = write_lines(tmp_path / "other.jsonl", ioi_lines(mini, 12, split=marks))
    with pytest.raises(InputError, match="'split' of 'other' is 'train' for pair 4; give 'discover' or"):
        draw_prompts(mini, path, n=None, seed=0)
    path = write_lines(tmp_path / "one.jsonl", ioi_lines(mini, 12, split=["measure"] * 12))
    with pytest.raises(InputError, match="no pair of 'one' has 'discover' in its field 'split'"):
        draw_prompts(mini, path, n=None, seed=0)


def test_files_of_their_own_to_discover_and_to_measure_on(mini: Model, tmp_path: Path) -> None:
    lines = ioi_lines(mini, 12)
    one, other = (
        write_lines(tmp_path / name, part) for name, part in (("a.jsonl", lines[:8]), ("b.jsonl", lines[8:]))
    )
    draws = draw_prompts(mini, "ioi", n=None, seed=0, discover_on=one, measure_on=other)
    assert draws.held_out
    assert (draws.discovery.n, draws.measured.n) == (8, 4)
    draws = draw_prompts(mini, one, n=None, seed=0, measure_on=other)
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
    circuit = discover(mini, whole.subset(list(range(30))), "eap").top(60)
    fresh = prompts_to_measure(mini, str(path), n=None, seed=0, circuit=circuit)
    note = "30 of the 50 prompts of 'own' are skipped, because the circuit was found on them"
    assert fresh.notes == (note,)
    assert assay.measure(circuit, mini, fresh, "kl").notes == (note,)
    assert sorted(fresh.ids.tolist()) == list(range(31, 51))  # line numbers
    circuit = discover(mini, whole.subset(list(range(31))), "eap").top(60)
    assert (
        prompts_to_measure(mini, str(path), n=None, seed=0, circuit=circuit).n == 50
    )  # 19 others are too few


def test_scores_out_of_a_store_know_their_prompts(mini: Model, tmp_path: Path) -> None:
    drawn, store = load_task("ioi", mini, n=6, seed=0), Store(tmp_path / "store")
    fresh, stored = (discover_stored(mini, drawn, "eap", store=store) for _ in range(2))
    assert stored.provenance["task"] == fresh.provenance["task"]
    assert found_on(stored.top(5).provenance, drawn)


def test_more_prompts_than_there_are_is_said(mini: Model, tmp_path: Path) -> None:
    few = write_lines(tmp_path / "few.jsonl", ioi_lines(mini, 12))
    with pytest.warns(
        AssayWarning, match="'few' has 12 prompts to discover and measure on, fewer than the requested 20"
    ):
        both = draw_prompts(mini, few, n=20, seed=1)
    assert both.measured.data_hash == load_task(few, mini).data_hash
    with pytest.warns(AssayWarning, match="'few' has 12 prompts to measure on, fewer than the requested 20"):
        assert prompts_to_measure(mini, few, n=20, seed=1).data_hash == both.measured.data_hash
    many = write_lines(tmp_path / "many.jsonl", ioi_lines(mini, 50))
    with pytest.warns(AssayWarning) as said:
        assert draw_prompts(mini, many, n=40, seed=0).measured.n == 25
    assert [str(each.message).partition(";")[0] for each in said] == [
        f"'many' has 25 prompts to {part} on, fewer than the requested 40" for part in ("discover", "measure")
    ]


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
    circuit = Circuit.empty(mini.graph)
    runs = runs_of(mini, path, circuit, method="eap", seed=5, progress=silent)
    assert runs.task.data_hash == whole.data_hash
    drawn = [read_inputs(path, None, mini, n=6, seed=seed).ids.tolist() for seed in (0, 5)]
    assert drawn[0] != drawn[1]


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
    assert document["discovery"]["held_out"] is False
    for record in document["measurements"]:
        assert "same_prompts" in record["warnings"]
        assert record["status"] in ("inconclusive", "none")
        assert record["verdict"]["status"] in ("inconclusive", "none")
    table = next(each for each in found.page().sections if each.title == "Every number").blocks[0].blocks[0]
    assert len(table.rows) == 6
    assert all("inconclusive found on these examples" in row[-1] for row in table.texts())
    gates = document["calibration"]["gates"]
    assert all("same_prompts" in gate["verdict"]["warnings"] for gate in gates)
    assert {gate["verdict"]["status"] for gate in gates} == {"inconclusive"}
    assert any(gate["verdict"]["reason"] == "same_prompts" for gate in gates)
    assert any(gate["verdict"]["published"] != "inconclusive" for gate in gates)


def test_an_audit_of_a_file_holds_half_of_it_out(mini: Model, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "own.jsonl", ioi_lines(mini, 44))
    found = audit(mini, path, n_random=1, steps=1, metrics=[])
    assert found.to_dict()["discovery"]["held_out"] is True
    assert found.to_dict()["discovery"]["n"] == found.to_dict()["task"]["n"] == 22
    assert all("same_prompts" not in record["warnings"] for record in found.measurements)


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


def test_recovery_is_one_for_the_model_and_zero_for_nothing(tiny: Model, task: PairTask) -> None:
    runs = CircuitRuns(tiny, task, Circuit.full(tiny.graph))
    assert recovery(runs, Circuit.full(tiny.graph)) == pytest.approx(1.0, abs=1e-5)
    assert recovery(runs, Circuit.empty(tiny.graph)) == pytest.approx(0.0, abs=1e-5)


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


def test_what_is_registered_is_known_by_its_key() -> None:
    usual = OBJECTIVES["kl"]
    assert all(registered(usual, ablation) for ablation in ABLATIONS.values())
    assert all(registered(objective, ABLATIONS["zero"]) for objective in OBJECTIVES.values())
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
    assert (tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to"):
        check_writable(tmp_path / "file")


def test_options_are_checked_by_name() -> None:
    check_options(method="eap", task="greater_than", ablation="mean", objective="kl", metrics=["D05"])
    check_options(task="my/own.jsonl")
    with pytest.raises(UnknownNameError, match="unknown task"):
        check_options(task="my/own.json")


def test_devices_are_named_when_there_is_no_such_one(monkeypatch: pytest.MonkeyPatch) -> None:
    check_options(device="cpu")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for name in ("cuda", "cuda:0", "gpu", "meta", ""):
        with pytest.raises(InputError, match=f"device '{name}' does not exist: PyTorch .* here has cpu$"):
            check_options(device=name)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    check_options(device="cuda")
    check_options(device="cuda:1")
    with pytest.raises(InputError, match="here has cpu, cuda:0, cuda:1"):
        check_options(device="cuda:2")


def test_another_kind_of_result_is_no_audit(tiny: Model, task: PairTask, tmp_path: Path) -> None:
    store = Store(tmp_path)
    discover_stored(tiny, task, "eap", store=store)
    (stored,) = store.results()
    with pytest.raises(InputError, match="is a scores, not an audit"):
        load_audit(store, stored.id)


def test_a_saved_circuit_runs_identically(found: Audit, tiny: Model, task: PairTask, tmp_path: Path) -> None:
    found.circuit.save(tmp_path / "c.safetensors")
    again = load_circuit(tmp_path / "c.safetensors")
    assert torch.equal(run_circuit(tiny, task, again), run_circuit(tiny, task, found.circuit))


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

"""Which prompts a circuit is found on and measured on, and what of both is kept in a store."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import assay
from assay.core.errors import AssayWarning, InputError
from assay.discovery.edges import discover
from assay.execution import ABLATIONS, CircuitRuns
from assay.models import Model, load_model
from assay.objectives import OBJECTIVES
from assay.pipeline.gates import usual_prompts
from assay.pipeline.prompts import divide, draw_prompts, prompts_to_measure
from assay.pipeline.stage import discovery_stage, measure_stored
from assay.pipeline.worst import usual_sizes
from assay.store import Store
from assay.tasks import PairTask, load_task


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


def lines_of(mini: Model, n: int) -> list[dict[str, Any]]:
    """Lines of a file of different prompts, in the order of their text."""
    task = load_task("ioi", mini, n=2 * n + 60)
    texts = zip(task.texts or (), task.corrupted_texts or (), strict=True)
    distinct = sorted(dict(texts).items())[:n]
    assert len(distinct) == n
    answers = {"answers": [" Kelly"], "wrong": [" Lisa"]}
    return [{"clean": clean, "corrupted": corrupted, **answers} for clean, corrupted in distinct]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def cleans(task: PairTask) -> set[tuple[int, ...]]:
    return {tuple(row) for row in task.clean.tolist()}


def test_no_prompt_is_discovered_on_and_measured_on(mini: Model, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "own.jsonl", 2 * lines_of(mini, 40))
    for source, n in (("ioi", 60), ("sva", 60), (path, None), (load_task(path, mini), None)):
        draws, again, other = (draw_prompts(mini, source, n=n, seed=seed) for seed in (1, 1, 2))
        assert draws.held_out
        assert not cleans(draws.discovery) & cleans(draws.measured)
        assert draws.measured.data_hash == again.measured.data_hash != other.measured.data_hash
        if n is None:  # both lines of a prompt are on one side, and all lines are dealt
            lines = [*draws.discovery.ids.tolist(), *draws.measured.ids.tolist()]
            assert sorted(lines) == list(range(1, 81)) != lines
            assert len(cleans(draws.discovery)) == len(cleans(draws.measured)) == 20
    task = draw_prompts(mini, "ioi", n=300, seed=0).measured
    assert [half.n for half in (divide(mini, task).discovery, divide(mini, task).measured)] == [100, 100]
    whole = divide(mini, task, full=True)
    assert whole.discovery.n + whole.measured.n == task.n


def test_few_prompts_serve_for_both_and_it_is_said(mini: Model, tmp_path: Path) -> None:
    few = write_lines(tmp_path / "few.jsonl", lines_of(mini, 12))
    with pytest.warns(AssayWarning, match="'few' has 12 prompts to discover and measure on, fewer than"):
        both = draw_prompts(mini, few, n=20, seed=1)
    assert both.measured is both.discovery
    assert not both.held_out
    with pytest.warns(AssayWarning, match="'few' has 12 prompts to measure on, fewer than"):
        assert prompts_to_measure(mini, few, n=20, seed=1).data_hash == both.measured.data_hash
    many = write_lines(tmp_path / "many.jsonl", lines_of(mini, 50))
    with pytest.warns(AssayWarning, match="'many' has 25 prompts to (discover|measure) on") as warned:
        assert draw_prompts(mini, many, n=40, seed=0).measured.n == 25
    assert len(warned) == 2


def test_files_of_their_own_say_what_lines_are_for(mini: Model, tmp_path: Path) -> None:
    lines = lines_of(mini, 12)
    one, other = (write_lines(tmp_path / f"{n}.jsonl", part) for n, part in enumerate((lines[:8], lines[8:])))
    draws = draw_prompts(mini, "ioi", n=None, seed=0, discover_on=one, measure_on=other)
    assert (draws.held_out, draws.discovery.n, draws.measured.n) == (True, 8, 4)
    with pytest.raises(InputError, match="8 prompts to measure on are also prompts to discover on"):
        draw_prompts(mini, one, n=None, seed=0, discover_on=one)


def test_a_circuit_is_measured_on_prompts_it_was_not_found_on(mini: Model, tmp_path: Path) -> None:
    drawn = load_task("ioi", mini, n=30, seed=0)
    circuit = discover(mini, drawn, "eap").top(60)
    same = prompts_to_measure(mini, "ioi", n=20, seed=0)  # the same stream of prompts
    assert cleans(same) <= cleans(drawn)
    fresh = prompts_to_measure(mini, "ioi", n=20, seed=0, circuit=circuit)
    assert fresh.n == 20
    assert not cleans(fresh) & cleans(drawn)
    path = write_lines(tmp_path / "own.jsonl", lines_of(mini, 50))
    whole = load_task(path, mini)
    for n_seen, rest in ((30, range(31, 51)), (31, range(1, 51))):  # line numbers; 19 others are too few
        circuit = discover(mini, whole.subset(list(range(n_seen))), "eap").top(60)
        fresh = prompts_to_measure(mini, path, n=None, seed=0, circuit=circuit)
        assert sorted(fresh.ids.tolist()) == list(rest)
        if n_seen == 30:
            (note,) = assay.measure(circuit, mini, fresh, "kl").notes
            assert note.startswith("30 of the 50 prompts of 'own' are skipped")


def test_a_table_of_a_file_is_a_random_draw_and_the_rest_its_pool(mini: Model, tmp_path: Path) -> None:
    whole = load_task(write_lines(tmp_path / "own.jsonl", lines_of(mini, 50)), mini)
    table, pool = usual_prompts(whole, 20, seed=3)
    assert (table.n, pool.n) == (20, 30)
    assert sorted([*table.ids.tolist(), *pool.ids.tolist()]) == list(range(1, 51))
    assert max(table.ids.tolist()) > 30  # not the first lines
    assert usual_prompts(whole, 20, seed=4)[0].ids.tolist() != table.ids.tolist()
    assert usual_prompts(whole, 50, seed=3) == (whole, None)


def test_the_pairs_of_an_audit_suit_its_task(mini: Model) -> None:
    drawn = load_task("ioi", mini, n=90)
    assert usual_sizes(drawn) == ("all", (60, 60))
    assert usual_sizes(load_task("ioi", mini, n=60))[1] == (59, 59)
    assert usual_sizes(replace(drawn, grammar=None)) == ("file", (90, 90))
    lengths = drawn.lengths.clone()
    lengths[0] -= 1
    ragged = replace(drawn, lengths=lengths, positions=lengths - 1)
    assert usual_sizes(ragged) == ("matched", (90, 90))


# ---- the store ----------------------------------------------------------------------------------


def forbidden(*args: object, **kwargs: object) -> None:
    raise AssertionError("this was computed before")


def test_only_what_is_registered_is_stored(mini: Model, tmp_path: Path, monkeypatch: Any) -> None:
    store, task = Store(tmp_path), load_task("ioi", mini, n=6, seed=0)
    usual = OBJECTIVES["logit_diff"]
    double = replace(usual, loss=lambda logits, clean, batch: 2 * usual.loss(logits, clean, batch))
    stages = (discovery_stage(mini, task, "eap", objective=each) for each in (usual, double))
    plain, doubled = (each.run(store).value for each in stages)
    assert torch.allclose(doubled.values, 2 * plain.values, rtol=1e-3, atol=1e-5)
    hushed = type("Hushed", (type(ABLATIONS["zero"]),), {"key": "resample"})()
    silenced = discovery_stage(mini, task, "eap", ablation=hushed).run(store).value
    assert not torch.allclose(silenced.values, plain.values)
    circuit = plain.top(60).connected()
    runs = CircuitRuns(mini, task, circuit, objective=usual)
    record = measure_stored(runs, "kl", store=store)
    measure_stored(CircuitRuns(mini, task, circuit, objective=double), "kl", store=store)
    assert [result.kind for result in store.results()] == ["scores", "measurement"]
    monkeypatch.setattr("assay.pipeline.stage.discover", forbidden)
    monkeypatch.setattr("assay.pipeline.stage.measure", forbidden)
    again = discovery_stage(mini, task, "eap").run(store).value
    assert torch.equal(again.values, plain.values)
    assert (again.details, again.provenance["task"]) == (plain.details, plain.provenance["task"])
    assert measure_stored(runs, "kl", store=store) == record
    with pytest.raises(AssertionError, match="computed before"):
        measure_stored(runs, "kl", random_circuits=2, store=store)

"""The run over all pairs: golden values, streaming, resuming, refusing."""

import copy
import json
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from single_runs import half_of
from torch import nn

import assay
from assay.analyses.worst_case import WorstCase, evaluation, sample_pairs, worst_case
from assay.analyses.worst_case.sanity import check_known_runs
from assay.circuits import Circuit
from assay.core.errors import (
    GraphMismatchError,
    InconsistentRunError,
    InputError,
    NonFiniteError,
    UnknownNameError,
)
from assay.execution import PairRunner, run_circuit, run_model
from assay.execution.plan import compile_plan
from assay.models import Model, load_model
from assay.tasks import PairTask


GOLDEN = Path(__file__).parent.parent / "golden" / "adversarial"
TaskMaker = Callable[..., PairTask]


@pytest.fixture(scope="module")
def circuit(tiny: Model) -> Circuit:
    return half_of(tiny)


@pytest.mark.parametrize("name", ["gpt2_tiny", "llama_tiny", "neox_tiny"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_pairs_of_every_golden_circuit(
    name: str, dtype: torch.dtype, golden_model: Callable[..., tuple[Model, dict]]
) -> None:
    model, described = golden_model(name, dtype)
    case = np.load(GOLDEN / f"{name}_case.npz")
    clean, corrupted = (torch.from_numpy(case[f"{side}_tokens"]) for side in ("clean", "corrupted"))
    n = max(len(clean), len(corrupted))
    task = PairTask(
        clean=clean[torch.arange(n) % len(clean)],
        corrupted=corrupted[torch.arange(n) % len(corrupted)],
        answers=torch.zeros(n, 1).long(),
    )
    if dtype == torch.float32:
        close = {"atol": 1e-4, "rtol": 1e-4}
    else:
        close = {"atol": 1e-9 if name == "gpt2_tiny" else 1e-5, "rtol": 1e-9}
    expected_empty = case["kl_last__empty"]
    for circuit_name, stored in described["circuits"].items():
        circuit = Circuit.from_edges(model.graph, stored["edges"])
        worst = worst_case(circuit, model, task, "all", n_clean=n, n_corrupted=n)
        part = np.ix_(range(len(clean)), range(len(corrupted)))
        np.testing.assert_allclose(worst.divergence[part], case[f"kl_last__{circuit_name}"], **close)
        np.testing.assert_allclose(worst.empty[part], expected_empty, **close)
        assert ("disconnected_circuit" in worst.warnings) == (circuit.connected(warn=False).n_edges == 0)


def test_a_callable_of_the_users_and_its_answers(tiny: Model, circuit: Circuit, ids_task: TaskMaker) -> None:
    def squared(model: torch.Tensor, circuit: torch.Tensor) -> torch.Tensor:
        return (model - circuit).square().mean(1)

    task = ids_task()
    full, kept = run_model(tiny, task), run_circuit(circuit, tiny, task)
    worst = worst_case(circuit, tiny, task, "file", divergence=squared)
    np.testing.assert_allclose(worst.divergence, squared(full, kept), rtol=1e-4, atol=1e-6)
    assert (worst.facts["divergence"], worst.unit) == ("squared", "user")
    gap = worst_case(circuit, tiny, task, "file", divergence="logit-diff-gap").divergence
    margins = [(run.gather(1, task.answers) - run.gather(1, task.wrong))[:, 0] for run in (full, kept)]
    np.testing.assert_allclose(gap, (margins[0] - margins[1]).abs(), rtol=1e-4, atol=1e-5)
    # Equal tokens with other answers are told apart where answers count.
    same = replace(task, clean=task.clean[:1].expand(8, -1), corrupted=task.corrupted[:1].expand(8, -1))
    gap = worst_case(circuit, tiny, same, "file", divergence="logit-diff-gap").divergence
    assert len(np.unique(gap)) == 8
    assert len(np.unique(worst_case(circuit, tiny, same, "file").divergence)) == 1


def test_repeated_inputs_are_run_once_and_counted_as_often_as_drawn(
    tiny: Model, circuit: Circuit, ids_task: TaskMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ids_task(3)  # two distinct rows
    ran: list[int] = []
    whole = evaluation.PairEvaluator.pairs

    def counted(*arguments: Any) -> Any:
        found = whole(*arguments)
        ran.append(found.divergence.size)
        return found

    monkeypatch.setattr(evaluation.PairEvaluator, "pairs", counted)
    worst = worst_case(circuit, tiny, task, "iid", 500)
    assert sum(ran) == 4
    assert worst.divergence.shape == (500,)
    for kind in np.unique(worst.divergence):
        rows = np.flatnonzero(worst.divergence == kind)
        clean = worst.sample.clean.distinct.inverse[rows]
        corrupted = worst.sample.corrupted.distinct.inverse[rows]
        assert len(set(zip(clean.tolist(), corrupted.tolist(), strict=True))) == 1
    assert sum(each.multiplicity for each in worst.worst(4)) == 500


def test_blocks_do_not_change_values_beyond_rounding(
    tiny: Model, circuit: Circuit, ids_task: TaskMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ids_task(20)
    asked: list[Any] = [("all", 20, 20), ("matched", 30)]
    whole = [worst_case(circuit, tiny, task, *each).divergence for each in asked]
    monkeypatch.setattr(evaluation, "TILE", 3)
    monkeypatch.setattr(evaluation, "LISTED", 4)
    for each, expected in zip(asked, whole, strict=True):
        found = worst_case(circuit, tiny, task, *each).divergence
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_full_circuit_never_departs_and_an_empty_one_is_its_anchor(
    tiny: Model, ids_task: TaskMaker
) -> None:
    task = ids_task()
    full = worst_case(Circuit.full(tiny.graph), tiny, task, n_clean=8, n_corrupted=8)
    assert full.divergence.max() < 1e-5
    assert not full.argmax_differs.any()
    empty = worst_case(Circuit.empty(tiny.graph), tiny, task, n_clean=8, n_corrupted=8)
    np.testing.assert_allclose(empty.divergence, empty.empty, atol=1e-5)
    assert "no kept path" in empty.warnings["disconnected_circuit"]


def test_file_pairs_of_a_jsonl_task_of_unequal_lengths(tiny: Model, circuit: Circuit, tmp_path: Path) -> None:
    lines = [
        {"clean": [1, 2, 3], "corrupted": [4, 5, 6], "answers": [7], "kind": "short"},
        {"clean": [1, 2, 3, 4, 5], "corrupted": [6, 5, 4, 3, 2], "answers": [8], "kind": "long"},
        {"clean": [9, 2, 3], "corrupted": [4, 5, 6], "answers": [7], "kind": "short"},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    worst = worst_case(circuit, tiny, path, "file")
    for row, line in enumerate(lines):
        one = {name: torch.tensor([line[name]]) for name in ("clean", "corrupted", "answers")}
        alone = worst_case(circuit, tiny, PairTask(**one), "file")
        np.testing.assert_allclose(worst.divergence[row], alone.divergence[0], rtol=1e-4, atol=1e-6)
    assert worst.by_field("kind").rows == ("long", "short")
    assert worst.worst(1)[0].clean.split()[0] in ("1", "9")


def run_in(directory: Path, model: Model, circuit: Circuit, task: PairTask, **options: Any) -> WorstCase:
    return worst_case(circuit, model, task, n_clean=20, n_corrupted=15, directory=directory, **options)


def test_missing_and_damaged_blocks_are_run_again_to_the_same_numbers(
    tiny: Model, circuit: Circuit, ids_task: TaskMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "TILE", 4)
    first = run_in(tmp_path, tiny, circuit, ids_task(12))
    files = sorted(tmp_path.glob("block.*"))
    before = [path.read_bytes() for path in files]
    assert len(files) > 4
    files[1].unlink()
    files[2].write_bytes(before[2][:-7])
    files[3].write_bytes(before[3][:-1] + bytes([before[3][-1] ^ 1]))  # in a number
    second = run_in(tmp_path, tiny, circuit, ids_task(12))
    assert (first.divergence == second.divergence).all()
    after = [path.read_bytes() for path in files]
    assert [len(each) for each in after] == [len(each) for each in before]
    assert (after[0], after[4]) == (before[0], before[4])  # what was whole stays as it is


def test_a_directory_serves_one_job(
    tiny: Model, circuit: Circuit, ids_task: TaskMaker, tmp_path: Path
) -> None:
    run_in(tmp_path, tiny, circuit, ids_task(12))
    for kept, change, named in (
        (circuit, {"seed": 1}, "sample"),
        (circuit, {"divergence": "js"}, "divergence"),
        (half_of(tiny, seed=4), {}, "circuit"),
    ):
        with pytest.raises(InputError, match=f"belong to another {named}: .* own folder"):
            run_in(tmp_path, tiny, kept, ids_task(12), **change)


def test_a_killed_run_goes_on_to_the_same_bytes(
    tiny: Model, circuit: Circuit, ids_task: TaskMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = tmp_path / "job", tmp_path / "other"
    monkeypatch.setattr(evaluation, "TILE", 4)

    def work() -> None:
        run_in(job, tiny, circuit, ids_task(12), progress=lambda _, done, total: time.sleep(0.4 * bool(done)))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    deadline = time.monotonic() + 120
    while len(list(job.glob("block.*"))) < 2:
        assert process.is_alive(), process.exitcode
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    stamps = {path: path.stat().st_mtime_ns for path in job.glob("block.*")}
    whole = run_in(other, tiny, circuit, ids_task(12))
    assert 2 <= len(stamps) < len(list(other.glob("block.*")))
    resumed = run_in(job, tiny, circuit, ids_task(12))
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert (resumed.divergence == whole.divergence).all()


def without_an_edge(graph: Any, mask: torch.Tensor, **options: Any) -> Any:
    """A plan of another mask than was asked for: the first kept edge into `logits` is cut."""
    broken = mask.clone()
    broken[mask[:, -1].nonzero()[0], -1] = False
    return compile_plan(graph, broken, **options)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox"])
def test_the_sanity_run_sees_a_wrong_mask(
    kind: str, tiny_module: Callable[..., nn.Module], ids_task: TaskMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong mask leaves C(x, x) = M(x), and both ways with a plan agree about it."""
    model = load_model(tiny_module(kind))
    circuit = half_of(model, seed=3)
    check_known_runs(model, circuit, sample_pairs(ids_task(), "all", 5, 5))
    monkeypatch.setattr("assay.execution.runner.compile_plan", without_an_edge)
    with pytest.raises(InconsistentRunError, match="the logits of the circuit differ"):
        worst_case(circuit, model, ids_task(), "all", 5, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox"])
def test_below_float32_the_sanity_run_goes_by_the_model_s_own_rounding(
    kind: str,
    dtype: torch.dtype,
    tiny_module: Callable[..., nn.Module],
    ids_task: TaskMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load_model(copy.deepcopy(tiny_module(kind)).to(dtype))
    circuit, sample = half_of(model, seed=3), sample_pairs(ids_task(), "all", 5, 5)
    check_known_runs(model, circuit, sample)
    true_pairs = PairRunner.pairs

    def shifted(*arguments: Any) -> torch.Tensor:
        logits = true_pairs(*arguments)
        return logits + 0.05 * max(1.0, float(logits.abs().max()))

    monkeypatch.setattr(PairRunner, "pairs", shifted)
    with pytest.raises(InconsistentRunError, match="the logits of the circuit differ"):
        check_known_runs(model, circuit, sample)


def test_nan_logits_name_the_pair(tiny_module: Callable[..., nn.Module], ids_task: TaskMaker) -> None:
    module = copy.deepcopy(tiny_module("neox"))  # its unembedding is not its embedding
    model = load_model(module)
    task = ids_task(6)
    poisoned = int(task.clean[4, 2])
    assert [row for row in range(6) if poisoned in task.clean[row]] == [4]
    assert poisoned not in task.corrupted
    with torch.no_grad():
        module.gpt_neox.embed_in.weight[poisoned] = torch.nan
    with pytest.raises(NonFiniteError, match=r"clean input 4, .*, and corrupted input \d, "):
        worst_case(Circuit.full(model.graph), model, task, n_clean=6, n_corrupted=6)


def test_bad_arguments_are_named(tiny: Model, circuit: Circuit, ids_task: TaskMaker) -> None:
    with pytest.raises(UnknownNameError, match="unknown divergence 'klm'"):
        worst_case(circuit, tiny, ids_task(), divergence="klm")
    with pytest.raises(InputError, match="n_clean is 0"):
        worst_case(circuit, tiny, ids_task(), n_clean=0)
    with pytest.raises(GraphMismatchError, match="belongs to another model"):
        worst_case(Circuit.full(assay.build_graph(1, 1)), tiny, ids_task())
    with pytest.raises(InputError, match="vocabulary ends at 60"):
        worst_case(circuit, tiny, ids_task(vocabulary=99, seed=3))


def test_rows_give_a_certificate_only_if_declared_independent(tiny: Model, ids_task: TaskMaker) -> None:
    task = ids_task(60)
    circuit = assay.discover(tiny, task, "eap").top(20)
    for rows in (task, ids_task(60, seed=1)):
        worst = worst_case(circuit, tiny, rows, "file")
        with pytest.raises(InputError, match="were not declared independent"):
            worst.certificate(0.95)
        assert (worst.to_dict()["certificates"], "not_certified" in worst.warnings) == ([], True)
    assert worst_case(circuit, tiny, task, "file", independent=True).certificate(0.95).bound is not None
    redrawn = worst_case(circuit, tiny, ids_task(20), "iid", n_clean=400, independent=True)
    with pytest.raises(InputError, match="drawn more than once"):
        redrawn.certificate(0.95)


@pytest.mark.parametrize("protocol", ["file", "all"])
def test_a_certificate_counts_different_rows_that_are_ablated(
    protocol: str, tiny: Model, ids_task: TaskMaker
) -> None:
    task, circuit = ids_task(21).subset(range(1, 21)), Circuit.random(tiny.graph, 30, seed=0)
    once = worst_case(circuit, tiny, task, protocol, independent=True)
    copied = worst_case(circuit, tiny, task.subset([*range(20)] * 4), protocol, independent=True)
    for percentile in (0.5, 0.95):
        assert copied.certificate(percentile) == once.certificate(percentile)
    assert copied.certificate(0.95).bound is None  # 59 are needed
    assert copied.maximum_exceedance() == once.maximum_exceedance()
    assert "60 of the 80 rows" in copied.warnings["rows_not_counted"]
    assert "rows_not_counted" not in once.warnings
    same = worst_case(circuit, tiny, replace(task, corrupted=task.clean), protocol, independent=True)
    assert "nothing is ablated" in same.warnings["not_certified"]


def test_a_task_without_a_grammar_has_its_own_pairs_unless_others_are_asked_for(
    tiny: Model, circuit: Circuit, ids_task: Callable[..., PairTask], tmp_path: Path
) -> None:
    task = ids_task()
    own = worst_case(circuit, tiny, task)
    assert (own.protocol, own.divergence.shape) == ("file", (8,))
    assert worst_case(circuit, tiny, task, n_clean=5, n_corrupted=4).protocol == "all"
    names = ("clean", "corrupted", "answers")
    rows = zip(*(getattr(task, name).tolist() for name in names), strict=True)
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    assert worst_case(circuit, tiny, path).protocol == "file"
    with pytest.raises(InputError, match="protocol='all' to combine its prompts"):
        worst_case(circuit, tiny, path, n_clean=5, n_corrupted=4)
    crossed = worst_case(circuit, tiny, path, "all", n_clean=30, n_corrupted=30)
    document = crossed.to_dict()
    assert (crossed.divergence.shape, document["n_pairs"]) == ((30, 30), 900)
    assert document["n_distinct_pairs"] == document["summary"]["absolute"]["count"] <= 7 * 7

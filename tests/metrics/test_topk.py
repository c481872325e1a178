"""Top-K agreement: golden values, worked cases, invariances, verdicts, every edge case."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_runs import ArrayRuns
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rich.console import Console

from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.core.random import stream
from assay.metrics import measure_runs
from assay.metrics.page import measurements_page
from assay.metrics.topk import judge_agreement, order_agreement, overlap, reading_patterns, tied_at, top_k
from assay.page.terminal import print_page
from assay.stats import clopper_pearson, mean_of


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "topk_agreement.json").read_text())


def golden_runs(case: dict) -> ArrayRuns:
    return ArrayRuns(
        full=case["full_logits"], keep=case["circuit_logits"], answers=[[token] for token in case["labels"]]
    )


def number(value: Any) -> float:
    """Golden files write NaN as text, undefined as null."""
    return math.nan if value in (None, "nan") else float(value)


TAUS = {"full": "tau_b_on_full_topk", "intersection": "tau_b_on_intersection", "union": "fagin_tau"}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["mode"])
def test_golden_lists_overlaps_and_rank_agreement(case: dict) -> None:
    full, keep = np.array(case["full_logits"]), np.array(case["circuit_logits"])
    for row, prompt in enumerate(case["per_prompt"]):
        for key, entry in prompt.items():
            tops = top_k(full, int(key)), top_k(keep, int(key))
            assert [top[row].tolist() for top in tops] == [entry["top_full"], entry["top_circuit"]]
            assert overlap(*tops)[row] == pytest.approx(entry["overlap"], rel=1e-9)
            for support, name in TAUS.items() if int(key) > 1 else ():
                found = order_agreement(full, keep, *tops, support)[row]
                assert found == pytest.approx(number(entry[name]), rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["mode"])
def test_golden_summaries(case: dict) -> None:
    ks = [int(k) for k in case["acc_at_k"]]
    details = measure_runs(golden_runs(case), "topk", K=ks).details
    assert details["K"] == ks
    for name, key in (
        ("acc", "acc_at_k"),
        ("chance", "chance_overlap_K_over_V"),
        ("n_defined", "tau_k_n_defined"),
    ):
        for k, value in details[name].items():
            assert value == pytest.approx(case[key][str(k)], rel=1e-9)
    for run in ("full", "circuit"):
        assert details[f"label_top1_{run}"] == pytest.approx(case[f"label_top1_accuracy_{run}"])
    for support, name in (
        ("full", "tau_k_mean_over_defined"),
        ("intersection", "tau_intersection_mean_over_defined"),
        ("union", "fagin_tau_mean"),
    ):
        taus = measure_runs(golden_runs(case), "topk", K=ks, support=support).details["tau"]
        for k in ks[1:]:
            assert taus[k] == pytest.approx(number(case[name][str(k)]), rel=1e-9, nan_ok=True)


@given(hnp.arrays(np.float32, (4, 9), elements=st.integers(-3, 3)), st.integers(1, 9))
def test_top_k_sorts_by_logit_then_index(logits: np.ndarray, k: int) -> None:
    literal = [sorted(range(9), key=lambda index: (-row[index], index))[:k] for row in logits]
    assert top_k(logits, k).tolist() == literal


def test_a_tie_at_the_edge_is_seen_and_reported_and_one_inside_is_not() -> None:
    logits = np.array([[3.0, 2.0, 2.0, 1.0], [3.0, 3.0, 2.0, 1.0], [3.0, 2.0, 1.0, 1.0]])
    assert tied_at(logits, top_k(logits, 3)).tolist() == [True, False, False]
    assert tied_at(logits, top_k(logits, 2)).tolist() == [False, True, False]
    tied = [[1.0, 1.0, 0.0, -1.0]]
    measured = measure_runs(ArrayRuns(full=tied, keep=tied, answers=[[0]]), "topk", K=[1, 2])
    assert measured.details["tie_fraction"] == {1: 1.0, 2: 0.0}
    assert "many_ties" in measured.warnings
    assert "many_ties" not in measure_runs(random_runs(), "topk").warnings


def test_rank_agreement_is_undefined_where_one_side_ties_throughout() -> None:
    full = np.array([[3.0, 2.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    keep = np.array([[1.0, 1.0, 0.0, 0.0], [3.0, 2.0, 1.0, 0.0]])
    tops = top_k(full, 2), top_k(keep, 2)
    assert np.isnan(order_agreement(full, keep, *tops)).all()
    assert order_agreement(full, keep, *tops, "union").tolist() == [1.0, 1.0]


def agreement(full: np.ndarray, keep: np.ndarray, **options: Any) -> Measurement:
    runs = ArrayRuns(full=full, keep=keep, answers=[[0]] * len(full))
    return measure_runs(runs, "topk", K=[1, 3, 5], **options)


def test_agreement_is_with_the_model_not_with_the_label() -> None:
    full, keep = [[0.0, 5.0, 0.1, 0.2]] * 2, [[0.0, 5.0, 0.1, 0.2], [7.0, 5.0, 0.1, 0.2]]
    measured = measure_runs(ArrayRuns(full=full, keep=keep, answers=[[0], [0]]), "topk", K=[1])
    details = measured.details
    assert (measured.value, details["label_top1_full"], details["label_top1_circuit"]) == (0.5, 0.0, 0.5)


def random_runs(n: int = 60, noise: float = 0.05, n_outputs: int = 40, **facts: Any) -> ArrayRuns:
    rng = stream(4, "agreement")
    full = rng.normal(size=(n, n_outputs))
    return ArrayRuns(full=full, keep=full + noise * rng.normal(size=full.shape), answers=[[0]] * n, **facts)


def test_the_value_is_acc_at_1_with_an_exact_interval() -> None:
    measured = measure_runs(random_runs(), "topk")
    assert (measured.details["K"], measured.id) == ([1, 5, 10], "D05.acc_at_K")
    assert measured.value == measured.details["acc"][1] == measured.parts["acc@1"].value
    assert measured.interval() == clopper_pearson(round(60 * measured.value), 60)
    methods = {"acc@5": "betting", "label-top1-full": "clopper-pearson"}
    assert {key: measured.parts[key].interval().method for key in methods} == methods
    tau = measured.parts["tau@10"]
    assert tau.interval().low < measured.details["tau"][10]
    assert tau.rule.pass_at == 0.9
    assert set(np.unique(measured.per_example)) <= {0.0, 1.0}


def test_outputs_without_a_token_are_not_ranked() -> None:
    full, keep = (
        [[1.0, 0.0, -1.0, 9.0], [0.0, 1.0, -1.0, 9.0]],
        [[1.0, 0.0, -1.0, -9.0], [1.0, 0.0, -1.0, 9.0]],
    )
    everything = ArrayRuns(full=full, keep=keep, answers=[[0], [0]])
    assert measure_runs(everything, "topk", K=[1]).value == 0.5
    named = ArrayRuns(full=full, keep=keep, answers=[[0], [0]], tokenizer=["a", "b", "c"])
    measured = measure_runs(named, "topk", K=[1])
    assert measured.per_example.tolist() == [1.0, 0.0]
    assert (measured.details["n_outputs"], measured.details["label_top1_full"]) == (3, 0.5)


def test_impossible_options_are_refused(unchecked: None) -> None:
    wrong = [{"K": ks} for ks in ([40], [0], [2.0], [True], [1, 5, 5], [])]
    for options, message in (
        *((each, "give integers from 1 to 39, each once") for each in wrong),
        ({"support": "both"}, "unknown support 'both'"),
    ):
        with pytest.raises(InputError, match=message):
            measure_runs(random_runs(), "topk", **options)


def test_reading_patterns() -> None:
    for values, expected in (
        ((0.96, 0.91, 0.9, 0.95), "best core fine"),
        ((0.95, 0.90, 0.9, 0.9), ""),
        ((0.97, 0.80, 0.69, 0.1), "best dominant narrow"),
        ((0.90, 0.80, 0.60, 0.1), "narrow"),
        ((0.90, 0.95, 0.60, 0.1), "core"),
        ((0.97,), "best"),
    ):
        patterns = reading_patterns(dict(zip(("acc@1", "acc@5", "acc@10", "tau@10"), values, strict=False)))
        assert [code.split("_")[0] for code in patterns] == expected.split()


def share(successes: int, n: int) -> Measurement:
    values = np.array([1.0] * successes + [0.0] * (n - successes))
    facts: dict[str, Any] = {"id": "D05.acc", "name": "acc", "interval_method": "clopper-pearson"}
    facts |= {"statistic": mean_of("x"), "components": {"x": values}, "per_example": values}
    return Measurement(value=successes / n, n=n, **facts)


@pytest.mark.parametrize(
    ("first", "second", "n", "published", "status"),
    [
        (1.0, 1.0, 200, "pass", "pass"),
        (1.0, 0.5, 200, "moderate", "moderate"),
        (0.5, 0.5, 200, "fail", "fail"),
        (0.96, 0.92, 50, "pass", "inconclusive"),
        (0.94, 0.88, 50, "fail", "inconclusive"),
        (0.5, 0.92, 50, "moderate", "fail"),
    ],
)
def test_published_and_rigorous_verdicts(
    first: float, second: float, n: int, published: str, status: str
) -> None:
    parts = {"acc@1": share(round(first * n), n), "acc@5": share(round(second * n), n)}
    verdict = judge_agreement(parts)
    assert (verdict.published, verdict.status) == (published, status)
    assert (verdict.n_needed is not None) == (status == "inconclusive")


@pytest.mark.parametrize(("n", "status"), [(20, "fail"), (100, "moderate")])
def test_a_verdict_is_shown_with_the_size_that_keeps_it_from_a_pass(n: int, status: str) -> None:
    rng = stream(0, "same first token")
    full, keep = rng.normal(size=(2, n, 40))
    keep[np.arange(n), full.argmax(axis=1)] = 9.0
    measured = agreement(full, keep)
    assert (measured.value, measured.status) == (1.0, status)
    text = io.StringIO()
    print_page(measurements_page([measured.to_dict()]), Console(file=text, width=200))
    row = next(line for line in text.getvalue().splitlines() if line.startswith("topk "))
    assert row.rstrip().endswith(f"{status} acc@5 {measured.parts['acc@5'].value:.2f}, limit 0.90")

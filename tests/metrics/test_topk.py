"""Top-K agreement: golden values, worked cases, invariances, verdicts, every edge case."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_runs import ArrayRuns
from hypothesis import given, settings
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


# ------------------------------------------------------------------------------------------- golden


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["mode"])
def test_golden_lists_and_overlaps(case: dict) -> None:
    full, keep = np.array(case["full_logits"]), np.array(case["circuit_logits"])
    for row, prompt in enumerate(case["per_prompt"]):
        for key, entry in prompt.items():
            k = int(key)
            tops = top_k(full, k), top_k(keep, k)
            assert tops[0][row].tolist() == entry["top_full"]
            assert tops[1][row].tolist() == entry["top_circuit"]
            assert overlap(*tops)[row] == pytest.approx(entry["overlap"], rel=1e-9)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["mode"])
@pytest.mark.parametrize(
    ("support", "name"),
    [("full", "tau_b_on_full_topk"), ("intersection", "tau_b_on_intersection"), ("union", "fagin_tau")],
)
def test_golden_rank_agreement(case: dict, support: str, name: str) -> None:
    full, keep = np.array(case["full_logits"]), np.array(case["circuit_logits"])
    for row, prompt in enumerate(case["per_prompt"]):
        for key, entry in prompt.items():
            if int(key) > 1:
                tops = top_k(full, int(key)), top_k(keep, int(key))
                found = order_agreement(full, keep, *tops, support)[row]
                assert found == pytest.approx(number(entry[name]), rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["mode"])
def test_golden_summaries(case: dict) -> None:
    ks = [int(k) for k in case["acc_at_k"]]
    measured = measure_runs(golden_runs(case), "topk", K=ks)
    assert measured.details["K"] == ks
    for k in ks:
        assert measured.details["acc"][k] == pytest.approx(case["acc_at_k"][str(k)], rel=1e-9)
        assert measured.details["chance"][k] == pytest.approx(case["chance_overlap_K_over_V"][str(k)])
    for k in ks[1:]:
        expected = number(case["tau_k_mean_over_defined"][str(k)])
        assert measured.details["tau"][k] == pytest.approx(expected, rel=1e-9, nan_ok=True)
        assert measured.details["n_defined"][k] == case["tau_k_n_defined"][str(k)]
    assert measured.details["label_top1_full"] == pytest.approx(case["label_top1_accuracy_full"])
    assert measured.details["label_top1_circuit"] == pytest.approx(case["label_top1_accuracy_circuit"])
    for support, name in (
        ("intersection", "tau_intersection_mean_over_defined"),
        ("union", "fagin_tau_mean"),
    ):
        other = measure_runs(golden_runs(case), "topk", K=ks, support=support)
        for k in ks[1:]:
            expected = number(case[name][str(k)])
            assert other.details["tau"][k] == pytest.approx(expected, rel=1e-9, nan_ok=True)


# ------------------------------------------------------------------------------------------- kernels


@given(hnp.arrays(np.float32, (4, 9), elements=st.integers(-3, 3)), st.integers(1, 9))
def test_top_k_sorts_by_logit_then_index(logits: np.ndarray, k: int) -> None:
    literal = [sorted(range(9), key=lambda index: (-row[index], index))[:k] for row in logits]
    assert top_k(logits, k).tolist() == literal


def test_a_tie_at_the_edge_is_seen_and_one_inside_is_not() -> None:
    logits = np.array([[3.0, 2.0, 2.0, 1.0], [3.0, 3.0, 2.0, 1.0], [3.0, 2.0, 1.0, 1.0]])
    assert tied_at(logits, top_k(logits, 3)).tolist() == [True, False, False]
    assert tied_at(logits, top_k(logits, 2)).tolist() == [False, True, False]


def test_rank_agreement_is_undefined_where_one_side_ties_throughout() -> None:
    full = np.array([[3.0, 2.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    keep = np.array([[1.0, 1.0, 0.0, 0.0], [3.0, 2.0, 1.0, 0.0]])
    tops = top_k(full, 2), top_k(keep, 2)
    assert np.isnan(order_agreement(full, keep, *tops)).all()
    assert order_agreement(full, keep, *tops, "union").tolist() == [1.0, 1.0]


# ------------------------------------------------------------------------------------------- properties


def agreement(full: np.ndarray, keep: np.ndarray, **options: Any) -> Measurement:
    runs = ArrayRuns(full=full, keep=keep, answers=[[0]] * len(full))
    return measure_runs(runs, "topk", K=[1, 3, 5], **options)


@settings(max_examples=25)
@given(hnp.arrays(np.float64, (5, 12), elements=st.floats(-4, 4), unique=True))
def test_identical_runs_agree_exactly(logits: np.ndarray) -> None:
    details = agreement(logits, logits).details
    assert details["acc"] == {1: 1.0, 3: 1.0, 5: 1.0}
    assert details["tau"] == {3: 1.0, 5: 1.0}


def test_agreement_is_with_the_model_not_with_the_label() -> None:
    full = np.array([[0.0, 5.0, 0.1, 0.2], [0.0, 5.0, 0.1, 0.2]])
    keep = np.array([[0.0, 5.0, 0.1, 0.2], [7.0, 5.0, 0.1, 0.2]])
    measured = measure_runs(ArrayRuns(full=full, keep=keep, answers=[[0], [0]]), "topk", K=[1])
    assert measured.value == 0.5
    assert measured.details["label_top1_full"] == 0.0
    assert measured.details["label_top1_circuit"] == 0.5


# ------------------------------------------------------------------------------------------- result


def random_runs(n: int = 60, noise: float = 0.05, n_outputs: int = 40, **facts: Any) -> ArrayRuns:
    rng = stream(4, "agreement")
    full = rng.normal(size=(n, n_outputs))
    return ArrayRuns(full=full, keep=full + noise * rng.normal(size=full.shape), answers=[[0]] * n, **facts)


def test_the_value_is_acc_at_1_with_an_exact_interval() -> None:
    measured = measure_runs(random_runs(), "topk")
    assert measured.details["K"] == [1, 5, 10]
    assert measured.value == measured.details["acc"][1] == measured.parts["acc@1"].value
    assert measured.interval() == clopper_pearson(round(60 * measured.value), 60)
    assert measured.parts["acc@5"].interval().method == "betting"
    tau = measured.parts["tau@10"]
    assert tau.interval().low < measured.details["tau"][10]
    assert tau.rule is not None
    assert tau.rule.pass_at == 0.9
    assert measured.parts["label-top1-full"].interval().method == "clopper-pearson"
    assert set(np.unique(measured.per_example)) <= {0.0, 1.0}
    assert measured.id == "D05.acc_at_K"
    assert measured.parts["acc@5"].name == "topk/acc@5"


def test_outputs_without_a_token_are_not_ranked() -> None:
    full = np.array([[1.0, 0.0, -1.0, 9.0], [0.0, 1.0, -1.0, 9.0]])
    keep = np.array([[1.0, 0.0, -1.0, -9.0], [1.0, 0.0, -1.0, 9.0]])
    everything = ArrayRuns(full=full, keep=keep, answers=[[0], [0]])
    assert measure_runs(everything, "topk", K=[1]).value == 0.5
    named = ArrayRuns(full=full, keep=keep, answers=[[0], [0]], tokenizer=["a", "b", "c"])
    measured = measure_runs(named, "topk", K=[1])
    assert measured.per_example is not None
    assert measured.per_example.tolist() == [1.0, 0.0]
    assert measured.details["n_outputs"] == 3
    assert measured.details["label_top1_full"] == 0.5
    assert measure_runs(everything, "topk", K=[1], vocabulary=3).value == measured.value


def test_ties_at_the_edge_are_reported() -> None:
    tied = [[1.0, 1.0, 0.0, -1.0]]
    measured = measure_runs(ArrayRuns(full=tied, keep=tied, answers=[[0]]), "topk", K=[1, 2])
    assert measured.details["tie_fraction"] == {1: 1.0, 2: 0.0}
    assert "many_ties" in measured.warnings
    assert "many_ties" not in measure_runs(random_runs(), "topk").warnings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"K": ks}, "give integers from 1 to 39, each once")
            for ks in ([40], [0], [2.0], [True], [1, 5, 5], [])
        ),
        ({"support": "both"}, "unknown support 'both'"),
        ({"vocabulary": 41}, "vocabulary is 41; expected 2 to 40"),
    ],
)
def test_impossible_options_are_refused(options: dict, message: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=message):
        measure_runs(random_runs(), "topk", **options)


# ------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"acc@1": 0.96, "acc@5": 0.91, "acc@10": 0.9, "tau@10": 0.95}, "best core fine"),
        ({"acc@1": 0.95, "acc@5": 0.90, "acc@10": 0.9, "tau@10": 0.9}, ""),
        ({"acc@1": 0.97, "acc@5": 0.80, "acc@10": 0.69, "tau@10": 0.1}, "best dominant narrow"),
        ({"acc@1": 0.90, "acc@5": 0.80, "acc@10": 0.60, "tau@10": 0.1}, "narrow"),
        ({"acc@1": 0.90, "acc@5": 0.95, "acc@10": 0.60, "tau@10": 0.1}, "core"),
        ({"acc@1": 0.97}, "best"),
    ],
)
def test_reading_patterns(values: dict[str, float], expected: str) -> None:
    assert [code.split("_")[0] for code in reading_patterns(values)] == expected.split()


def share(successes: int, n: int) -> Measurement:
    values = np.array([1.0] * successes + [0.0] * (n - successes))
    return Measurement(
        id="D05.acc",
        name="acc",
        value=successes / n,
        n=n,
        statistic=mean_of("x"),
        components={"x": values},
        per_example=values,
        interval_method="clopper-pearson",
    )


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

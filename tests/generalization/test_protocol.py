"""Correlation with performance: golden values, worked cases, properties, refusals."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.analyses.generalization import (
    TaskCorrelation,
    correlate,
    dependency_depth_bias,
    ratio_ablation,
    summarize_correlations,
)
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, GraphMismatchError, InputError, NonFiniteError
from assay.graph import build_graph


GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "generalization" / "aggregation.json").read_text()
)


@pytest.mark.parametrize("task", GOLDEN["tasks"], ids=lambda task: task["task"])
def test_correlations_equal_the_golden_values(task: dict) -> None:
    found = correlate(task["metric"], task["gt"])
    expected = [task[name] for name in ("r2", "srcc", "krcc")]
    assert [found.r2, found.srcc, found.krcc] == pytest.approx(expected, rel=1e-9)
    assert found.n == len(task["gt"])


def test_the_summary_equals_the_golden_one() -> None:
    groups = itertools.groupby(GOLDEN["tasks"], key=lambda task: task["dataset"])
    tasks = {name: [correlate(task["metric"], task["gt"]) for task in group] for name, group in groups}
    summary = summarize_correlations(tasks)
    assert summary["average"] == pytest.approx(GOLDEN["average"], rel=1e-9)
    assert summary["sem"] == pytest.approx(GOLDEN["sem"], rel=1e-9)
    for name, expected in GOLDEN["per_dataset"].items():
        cells = [summary[f"{name} {key}"] for key in ("r2", "srcc", "krcc")]
        assert cells == pytest.approx([expected["r2"], expected["abs_srcc"], expected["abs_krcc"]], rel=1e-9)


def test_correlations_worked_by_hand() -> None:
    found = correlate([1.0, 2.0, 3.0, 4.0], [0.9, 0.7, 0.8, 0.1])
    assert found.srcc == pytest.approx(1 - 6 * (9 + 0 + 0 + 9) / (4 * 15))  # ranks 4 2 3 1
    assert found.krcc == pytest.approx((1 - 5) / 6)
    assert found.r2 == pytest.approx(1.15**2 / (5 * 0.3875))


def test_signs_are_kept_if_asked_for() -> None:
    tasks = {"a": [TaskCorrelation(r2=0.5, srcc=s, krcc=s / 2, n=9) for s in (0.4, -0.8)]}
    sizes, signed = (summarize_correlations(tasks, absolute=each) for each in (True, False))
    names = ("a r2", "a srcc", "a krcc")
    assert [sizes[name] for name in names] == pytest.approx([0.5, 0.6, 0.3])
    assert [signed[name] for name in names] == pytest.approx([0.5, -0.2, -0.1])
    assert signed["sem"] == pytest.approx(np.std([0.5, -0.2, -0.1]) / math.sqrt(3))


@pytest.mark.parametrize(
    ("metric", "reason"), [([1.0, 2.0], "2 pair"), ([1.0, 1.0, 1.0], "one side is constant")]
)
def test_undefined_correlations_are_nan(metric: list[float], reason: str) -> None:
    with pytest.warns(DegenerateDataWarning, match=reason):
        found = correlate(metric, [0.1, 0.2, 0.3][: len(metric)])
    assert all(math.isnan(each) for each in (found.r2, found.srcc, found.krcc))
    assert math.isnan(summarize_correlations({"a": [found]})["average"])


def test_each_ratio_is_that_of_the_bias_itself() -> None:
    graph = build_graph(10, 2)
    generator = torch.Generator().manual_seed(0)
    zoo = [
        EdgeScores(graph, torch.randn(graph.n_sources, graph.n_targets, generator=generator))
        for _ in range(6)
    ]
    performance = [0.3, 0.5, 0.4, 0.9, 0.7, 0.6]
    for targets in ("output", "deep", "global"):
        found = ratio_ablation(zoo, performance, targets=targets)
        assert list(found) == [0.1, 0.2, 0.3, 0.4, 0.5]
        for ratio, correlation in found.items():
            biases = [dependency_depth_bias(each, targets=targets, ratio=ratio) for each in zoo]
            assert correlation.r2 == pytest.approx(correlate(biases, performance).r2)
    zoo[3] = EdgeScores(build_graph(9, 2), torch.zeros(28, 64))
    with pytest.raises(GraphMismatchError, match="different graphs"):
        ratio_ablation(zoo, performance)


def test_models_found_in_different_ways_are_not_ranked_together() -> None:
    graph = build_graph(2, 1)
    zoo = [EdgeScores(graph, torch.ones(5, 9), provenance={"steps": steps}) for steps in (5, 5, 3)]
    with pytest.raises(InputError, match="steps is 5 and 3"):
        ratio_ablation(zoo, [0.1, 0.2, 0.3])


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"scores have shape \(2,\), performance \(3,\)"):
        correlate([1.0, 2.0], [0.1, 0.2, 0.3])
    with pytest.raises(NonFiniteError, match="performance 1 is nan"):
        correlate([1.0, 2.0, 3.0], [0.1, math.nan, 0.3])
    with pytest.raises(InputError, match="at least one task"):
        summarize_correlations({"a": [correlate([0.0, 1.0, 2.0], [0.0, 1.0, 3.0])], "b": []})

"""The p-values of a run: those the gates computed, each with the claim that it speaks for."""

from typing import Any

import numpy as np

from assay.analyses.calibration import (
    PooledResult,
    bootstrap_stability,
    certified_stability,
    derived_metrics,
    discriminant_validity,
    distributional_stability,
    incremental_validity,
    measurement_invariance,
    multiple_comparisons,
    pooled_results,
)
from assay.core.measurement import Verdict
from assay.core.random import stream


N, H = 60, 24


def normal(name: str, *shape: int) -> np.ndarray:
    return stream(0, f"pooling/{name}").normal(size=shape)


def members(k: int = 6) -> np.ndarray:
    return np.arange(H) < k


def only(verdict: Verdict, gate: str, **options: Any) -> list[PooledResult]:
    """What one gate brings."""
    found = pooled_results({gate: verdict}, "some task", **options)
    assert all(each.task == "some task" and each.name.startswith(gate) for each in found)
    return found


def test_heads_one_by_one_but_those_without_a_test() -> None:
    effects = normal("effects", N, 3) * 0.1 + np.array([1.0, 0.0, -1.0])
    verdict = certified_stability(effects)
    found = only(verdict, "M3b", heads=[(0, 1), (2, 3), (4, 5)])
    assert [each.name for each in found] == [
        f"M3b: {each} contributes" for each in ("a0.h1", "a2.h3", "a4.h5")
    ]
    np.testing.assert_array_equal([each.p for each in found], verdict.details["p"])
    assert [each.passed for each in found] == [label == "certified" for label in verdict.details["labels"]]
    assert {each.p_kind for each in found} == {"permutation"}
    untested = np.stack([np.ones(10), np.full(10, np.nan), normal("effects", 10)], axis=1)
    (last,) = only(certified_stability(untested), "M3b")
    assert (last.name, last.p_kind) == ("M3b: head 3 of the circuit contributes", "exact")


def test_heads_that_depend_on_groups() -> None:
    groups = np.repeat(["x", "y"], N // 2)
    table = 1 + 0.1 * normal("stable", N, 3)
    table[:, 1] += 3 * (groups == "y")
    table[:, 0] = np.nan
    verdict = distributional_stability(table, groups=groups)
    assert verdict.sub_results["groups"].status == "fail"
    found = only(verdict, "S3", heads=[(0, 0), (0, 1), (0, 2)])
    names = [
        f"S3: the {kind} of a0.h{at} differs between groups" for kind in ("mean", "spread") for at in (1, 2)
    ]
    assert [each.name for each in found] == names
    p = verdict.sub_results["groups"].details["p"].reshape(-1)
    np.testing.assert_array_equal([each.p for each in found], p)
    assert [each.passed for each in found] == [True, None, True, None]
    assert [each.p for each in only(distributional_stability(table), "S3")] == [None]


def test_groups_of_prompts_differ_where_the_gate_fails() -> None:
    full = 3 + 0.1 * normal("full", 300)
    groups = np.arange(300) % 3
    shift = np.array([-1.0, 0.0, 1.0])[groups]
    verdict = measurement_invariance(full, full * (0.8 + 0.1 * normal("noise", 300) + shift), groups)
    (found,) = only(verdict, "C13")
    assert verdict.status == "fail"
    assert (found.p, found.p_kind, found.passed) == (verdict.values["welch_p"], "F", True)
    invariant = measurement_invariance(full, full * (0.8 + 0.1 * normal("noise", 300)), groups)
    assert invariant.status == "pass"
    assert [each.passed for each in only(invariant, "C13")] == [False]


def test_a_copy_of_the_same_test_counts_once() -> None:
    full = 3 + 0.1 * normal("full", N)
    invariance = measurement_invariance(full, full * (0.8 + 0.1 * normal("noise", N)), np.arange(N) % 3)
    derived = derived_metrics(members(), normal("scores", H), partial_eta_sq=invariance)
    pool = pooled_results({"C13": invariance, "C14": derived}, "t")
    assert [each.p for each in pool] == [invariance.values["welch_p"]] * 2
    found = multiple_comparisons(pool)
    assert (found.values["m"], found.details["duplicates"]) == (1.0, 1)


def test_random_sets_of_heads() -> None:
    full = 3 + 0.1 * normal("full", N)
    random = full[:, None] * stream(0, "sets").uniform(0.1, 0.5, size=(1, 49))
    others = {"random": random, "layer-matched": random + 0.1, "attribution": 0.4 * full}
    verdict = incremental_validity(full, 0.9 * full, 0.5 * full, others=others)
    found = only(verdict, "C36")
    assert [each.p for each in found] == [0.02, 0.02]
    assert [each.name for each in found] == [
        "C36: the circuit is more faithful than random",
        "C36: the circuit is more faithful than layer-matched",
    ]
    assert all(each.passed for each in found)


def test_gates_without_a_p_value_leave_their_word() -> None:
    full = 3 + 0.1 * normal("full", N)
    scattered = bootstrap_stability(full, full * (1 + 5 * normal("noise", N)))
    assert only(scattered, "C11") == [PooledResult(name="C11", task="some task", passed=False)]
    assert only(bootstrap_stability(full, 0.9 * full), "C11")[0].passed is True
    assert only(bootstrap_stability(full[:2], full[:2]), "C11") == []
    effects = {name: np.abs(normal(name, N, H)) for name in ("a", "b")}
    circuits = {"a": members(), "b": ~members()}
    assert [each.p for each in only(discriminant_validity(effects, circuits, own="a"), "C17")] == [None]

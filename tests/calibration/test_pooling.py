"""The p-values of a run: those the gates computed, each with the claim that it speaks for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.analyses.calibration import (
    GATES,
    PooledResult,
    bootstrap_stability,
    calibrate,
    certified_stability,
    convergent_validity,
    derived_metrics,
    discriminant_validity,
    distributional_characterization,
    distributional_stability,
    incremental_validity,
    inter_rater,
    measurement_invariance,
    multiple_comparisons,
    nomological_validity,
    pooled_results,
)
from assay.circuits import load_head_circuit
from assay.core.errors import InputError, UnknownNameError
from assay.core.random import stream
from assay.core.verdict import Verdict


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


def test_pairs_of_methods() -> None:
    common = normal("heads", H)
    scores = {name: common + 0.3 * normal(name, H) for name in ("a", "b")} | {"c": -common}
    agreeing = convergent_validity({name: scores[name] for name in ("a", "b")})
    (found,) = only(agreeing, "C12")
    assert agreeing.status == "pass"
    assert (found.p, found.p_kind) == (agreeing.details["p_values"]["a/b"], "permutation")
    assert (found.passed, found.baseline, found.n) == (True, 0.0, H)
    assert found.value == pytest.approx(agreeing.details["pairs"]["a/b"])
    opposed = only(convergent_validity(scores), "C12")
    assert len(opposed) == 3
    assert [each.passed for each in opposed] == [False, False, False]  # the mean over pairs does not pass


def test_a_pair_that_disagrees_is_never_claimed() -> None:
    """Among many methods the gate may pass although one pair is of opposite order."""
    verdict = convergent_validity({name: normal("heads", H) + 0.1 * normal(name, H) for name in ("a", "b")})
    turned = replace(verdict, details={**verdict.details, "pairs": {"a/b": -0.9}})
    assert [each.passed for each in only(turned, "C12")] == [False]


def test_few_heads_have_exact_p_values() -> None:
    common = normal("few", 7)
    verdict = convergent_validity({name: common + 0.1 * normal(name, 7) for name in ("a", "b")})
    assert [each.p_kind for each in only(verdict, "C12")] == ["exact"]


def test_raters() -> None:
    common = np.abs(normal("heads", H))
    verdict = inter_rater({name: common + 0.1 * np.abs(normal(name, H)) for name in "abc"})
    (found,) = only(verdict, "F59")
    assert verdict.status == "pass"
    assert (found.p, found.passed) == (verdict.values["p_permutation"], True)
    assert (found.value, found.baseline) == (verdict.values["w"], pytest.approx(1 / 3))


def test_members_in_direct_effect() -> None:
    table = 0.1 * normal("direct", N, H) + np.where(members(), 5.0, 0.3)
    verdict = distributional_characterization(table, members(), n_perm=999)
    (found,) = only(verdict, "S1")
    assert (found.p, found.passed) == (pytest.approx(0.001), True)
    assert (found.value, found.baseline, found.n) == (1.0, 0.5, N)


def test_heads_one_by_one() -> None:
    effects = normal("effects", N, 3) * 0.1 + np.array([1.0, 0.0, -1.0])
    verdict = certified_stability(effects)
    found = only(verdict, "M3b", heads=[(0, 1), (2, 3), (4, 5)])
    assert [each.name for each in found] == [
        "M3b: a0.h1 contributes",
        "M3b: a2.h3 contributes",
        "M3b: a4.h5 contributes",
    ]
    np.testing.assert_array_equal([each.p for each in found], verdict.details["p"])
    assert [each.passed for each in found] == [label == "certified" for label in verdict.details["labels"]]
    assert found[0].passed is True
    assert found[2].passed is False
    assert {each.p_kind for each in found} == {"permutation"}
    with pytest.raises(InputError, match="head 2 of the circuit, but heads lists only 2"):
        only(verdict, "M3b", heads=[(0, 1), (2, 3)])


def test_opposing_heads_are_tested_below_zero() -> None:
    effects = normal("effects", N, 2) * 0.1 + np.array([1.0, -1.0])
    found = only(certified_stability(effects, signs=np.array([1.0, -1.0])), "M3b")
    assert [each.passed for each in found] == [True, True]
    assert [np.sign(each.value or 0.0) for each in found] == [1, -1]


def test_heads_without_a_test_stay_out() -> None:
    effects = np.stack([np.ones(10), np.full(10, np.nan), normal("effects", 10)], axis=1)
    verdict = certified_stability(effects)
    found = only(verdict, "M3b")
    assert [each.name for each in found] == ["M3b: head 2 contributes"]
    assert [each.p_kind for each in found] == ["exact"]


def test_heads_that_depend_on_groups() -> None:
    groups = np.repeat(["x", "y"], N // 2)
    table = 1 + 0.1 * normal("stable", N, 3)
    table[:, 1] += 3 * (groups == "y")
    table[:, 0] = np.nan
    verdict = distributional_stability(table, groups=groups)
    found = only(verdict, "S3", heads=[(0, 0), (0, 1), (0, 2)])
    assert [each.name for each in found] == [
        "S3: the mean of a0.h1 differs between groups",
        "S3: the mean of a0.h2 differs between groups",
        "S3: the spread of a0.h1 differs between groups",
        "S3: the spread of a0.h2 differs between groups",
    ]
    np.testing.assert_array_equal(
        [each.p for each in found], verdict.sub_results["groups"].details["p"].reshape(-1)
    )
    assert [each.passed for each in found] == [True, None, True, None]
    without = only(distributional_stability(table), "S3")
    assert [each.p for each in without] == [None]


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


def test_composition_on_head_edges() -> None:
    table = np.abs(normal("composition", 16, 16))
    table[0, 12] = table[1, 13] = 9.0
    low = np.abs(normal("composition", 16, 16)) + 3
    low[0, 12] = low[1, 13] = 0.0
    low[1, 13] = 0.01
    table[1, 13] = 9.1
    edges = [(0, 0, 3, 0), (0, 1, 3, 1)]
    flags = np.arange(16) < 4
    verdict = derived_metrics(
        flags, composition={"v": table, "q": low, "k": np.ones((16, 16))}, head_edges=edges, n_heads=4
    )
    found = only(verdict, "C14")
    rows = verdict.sub_results
    assert [each.p for each in found] == [
        rows[f"{at}_composition_pval"].values["value"] for at in ("ov", "q")
    ]
    assert [rows[f"{at}_composition_pval"].status for at in ("ov", "q")] == ["pass", "inconclusive"]
    assert rows["q_composition_pval"].values["value"] < 0.05  # type: ignore[operator]
    assert rows["q_composition_pval"].reason == "composes_less"
    assert [each.passed for each in found] == [True, False]  # edges that compose less are not a claim


def test_order_of_roles() -> None:
    verdict = nomological_validity(load_head_circuit("ioi_gpt2_wang26"))
    (found,) = only(verdict, "C23")
    assert (found.p, found.p_kind) == (verdict.values["role_level_p"], "exact")
    assert found.passed == (verdict.status == "pass")


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


@pytest.mark.parametrize("gate", list(GATES))
def test_undefined_verdicts_bring_nothing(gate: str) -> None:
    empty = Verdict(status="inconclusive", published="inconclusive", reason="not_applicable")
    assert pooled_results({gate: empty}) == []


def test_the_pool_is_adjusted_for_its_size() -> None:
    """Of forty heads without effect a few have p < 0.05, and none survives."""
    effects = normal("null", N, 40)
    verdict = certified_stability(effects)
    p = np.array(verdict.details["p"])
    found = calibrate("M93", {"M3b": verdict})
    assert found.values["m"] == 40
    assert found.values["n_nominal"] == (p < 0.05).sum() > 0
    assert found.values["n_bh"] == 0


def test_names_that_are_no_gates() -> None:
    verdict = Verdict(status="pass", published="pass")
    with pytest.raises(UnknownNameError, match="unknown gate 'C99'"):
        pooled_results({"C99": verdict})
    assert pooled_results({"M93": verdict}) == []
    (found,) = calibrate("M93", {"mine": verdict, "other": 0.01}).details["results"]
    assert found["name"] == "other"

"""Invariance over groups of prompts: golden values, degenerate data, what changes nothing."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from planted import allowed_errors, runs

from assay.analyses.calibration.invariance import choose_groups, measurement_invariance
from assay.core.measurement import Verdict
from assay.core.random import stream


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
CASES = json.loads((GOLDEN / "welch_anova.json").read_text())
SHIFTED = (-0.12, 0.0, 0.12)
SAME = (0.0, 0.0, 0.0)


def world(n: int, shifts: tuple[float, ...], seed: int = 0, n_boot: int = 50) -> Verdict:
    made = runs(stream(seed, f"C13 {n} {shifts}"), n, sd=0.2, shifts=shifts)
    return measurement_invariance(made.y_full, made.y_circuit, made.groups, n_boot=n_boot)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(len(case["groups"])))
def test_comparison_of_groups_matches_golden_values(case: dict) -> None:
    """With a full model of 1 everywhere, the values themselves are compared."""
    values = np.concatenate([np.array(group) for group in case["groups"]])
    groups = np.repeat(np.arange(len(case["groups"])), [len(group) for group in case["groups"]])
    found = measurement_invariance(np.ones(len(values)), values, groups)
    for ours, theirs in (
        ("eta_squared", "partial_eta_sq"),
        ("omega_squared", "omega_sq"),
        ("epsilon_squared", "epsilon_sq"),
        ("welch_f", "welch_F"),
        ("welch_p", "welch_p"),
        ("brown_forsythe_p", "brown_forsythe_p"),
        ("kruskal_wallis_p", "kruskal_p"),
        ("range", "range_of_means"),
    ):
        assert found.values[ours] == pytest.approx(case[theirs], rel=1e-9, abs=1e-12)
    bounds = found.details["comparison"]["eta_squared"]["interval"]
    ends = [bounds["low"], bounds["high"]]
    assert found.interval.low <= ends[0]  # judged by bounds that hold for skewed scores, too
    assert found.interval.high >= ends[1]
    assert ends == pytest.approx(case["eta_pop_one_sided_95"], rel=1e-7, abs=1e-9)
    assert list(found.details["groups"].values()) == pytest.approx(case["group_means"], rel=1e-9)
    words = {"invariant": "pass", "moderate": "moderate"}
    assert found.published == words.get(case["published_verdict"], "fail")


def test_the_dependent_variable_is_the_score_plus_influence() -> None:
    """Group means are the groups' ratios of sums to first order, unlike means of ratios."""
    made = runs(stream(0, "influence"), 300, sd=0.2, shifts=SHIFTED)
    found = measurement_invariance(made.y_full, made.y_circuit, made.groups)
    for at in range(3):
        members = made.groups == at
        score = made.y_circuit[members].sum() / made.y_full[members].sum()
        assert found.details["groups"][str(at)] == pytest.approx(score, rel=1e-12)
    ratio = measurement_invariance(made.y_full, made.y_circuit, made.groups, dependent="ratio")
    assert ratio.values["eta_squared"] == pytest.approx(found.values["eta_squared"], abs=0.05)
    clean = measurement_invariance(made.y_full, made.y_circuit, made.groups, dependent="clean_logit_diff")
    assert clean.status != "fail"  # the published code's: blind to the circuit
    assert found.status == "fail"


def test_the_pair_furthest_apart_has_a_simultaneous_interval() -> None:
    covered = 0
    for seed in range(40):
        largest = world(300, (-0.2, 0.0, 0.0), seed, n_boot=300).details["largest_difference"]
        assert "0" in largest["pair"]
        covered += largest["low"] <= 0.2 <= largest["high"]
    assert covered >= 40 - allowed_errors(40)


def test_names_of_groups_order_of_prompts_and_scale_change_nothing() -> None:
    made = runs(stream(0, "names"), 90, sd=0.2, shifts=SHIFTED)
    found = measurement_invariance(made.y_full, made.y_circuit, made.groups)
    order = stream(1, "names").permutation(90)
    names = np.array(["z", "a", "m"])[made.groups]
    moved = measurement_invariance(3 * made.y_full[order], 3 * made.y_circuit[order], names[order])
    for name, value in found.values.items():
        assert moved.values[name] == pytest.approx(value, rel=1e-9)
    affine = measurement_invariance(np.ones(90), 2 + 5 * made.y_circuit, made.groups)
    plain = measurement_invariance(np.ones(90), made.y_circuit, made.groups)
    assert affine.values["eta_squared"] == pytest.approx(plain.values["eta_squared"], rel=1e-9)


# ------------------------------------------------------------------------------------------------ the groups


@pytest.mark.parametrize(
    ("labels", "lengths", "source"),
    [
        ({"type": 2, "template": 1}, np.arange(12), "type"),
        ({"category": 2, "template": 12}, None, "category"),
        ({"template": 1}, np.arange(12), "length"),
        ({"template": 1}, None, ""),
        ({}, np.arange(8), ""),
        ({}, np.full(12, 7), ""),
    ],
)
def test_groups_come_from_templates_then_types_then_length(
    labels: dict[str, int], lengths: np.ndarray | None, source: str
) -> None:
    found, of = choose_groups({name: np.arange(12) % n for name, n in labels.items()}, lengths)
    assert (of, found is None) == (source, source == "")
    if source == "length":
        assert found.tolist() == ["short"] * 4 + ["medium"] * 4 + ["long"] * 4


# ----------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize(("shifts", "truth"), [(SAME, "pass"), ((-0.3, 0.0, 0.3), "fail")])
def test_one_image_under_many_corruptions_is_judged_by_images(shifts: tuple[float, ...], truth: str) -> None:
    """Half of the variance belongs to the image, shared by its three prompts."""
    verdicts: Counter[str] = Counter()
    for seed in range(20):
        rng = stream(seed, f"images {shifts}")
        own = np.repeat(rng.normal(0.8, 0.2, 150), 3)
        groups = np.tile(np.arange(3), 150)
        values = own + np.array(shifts)[groups] + rng.normal(0.0, 0.2, 450)
        found = measurement_invariance(
            np.ones(450), values, groups, unit_id=np.repeat(np.arange(150), 3), n_boot=300
        )
        assert found.warnings == ("units_cross_groups",)
        verdicts[found.status] += 1
    assert verdicts[truth] >= 18
    assert verdicts[{"pass": "fail", "fail": "pass"}[truth]] <= allowed_errors(20)

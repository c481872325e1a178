"""Order of roles and gain over baselines: golden values, worked cases, degenerate ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from planted import paired_runs, role_circuit

from assay.analyses.calibration.validity import incremental_validity, nomological_validity
from assay.circuits import HeadCircuit
from assay.circuits.heads import Role, load_head_circuit
from assay.core.errors import InputError, ShapeError
from assay.stats import RatioOfSums, top_members


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
NOMOLOGICAL = json.loads((GOLDEN / "nomological.json").read_text())
INCREMENTAL = json.loads((GOLDEN / "incremental.json").read_text())


def circuit(of: dict) -> HeadCircuit:
    band = {role: name for name, roles in of["bands"].items() for role in roles}
    roles = {
        name: Role(heads=tuple((a, b) for a, b in heads), band=band.get(name))
        for name, heads in of["roles"].items()
    }
    return HeadCircuit(
        id="golden",
        n_layers=of["n_layers"],
        n_heads=of["n_heads"],
        heads=tuple(head for role in roles.values() for head in role.heads),
        roles=roles,
        pathways=tuple((a, b) for a, b in of["pathways"]),
    )


# --------------------------------------------------------------------------------------------- C23


@pytest.mark.parametrize("case", NOMOLOGICAL)
def test_correlations_with_depth_match_golden_values(case: dict) -> None:
    found = nomological_validity(circuit(case["circuit"]))
    density = found.sub_results["layer_density_correlation"]
    assert density.values["rho"] == pytest.approx(case["layer_density_rho"], rel=1e-9, abs=1e-12)
    assert density.values["p"] == pytest.approx(case["layer_density_p"], rel=1e-9)
    assert density.status == density.published == "none"
    np.testing.assert_array_equal(density.details["counts"], case["layer_counts"])
    assert found.values["role_depth_rho"] == pytest.approx(case["role_depth_rho"], rel=1e-9)
    assert found.values["role_depth_p"] == pytest.approx(case["role_depth_p"], rel=1e-9)
    assert found.values["role_level_rho"] == pytest.approx(case["role_level_rho"], rel=1e-9)
    assert found.values["role_level_p"] == pytest.approx(case["role_level_exact_p_greater"], rel=1e-9)
    passes = case["role_depth_rho"] > 0 and case["role_depth_p"] < 0.05
    assert found.published == ("pass" if passes else "fail")


def test_four_ordered_roles_suffice_and_three_do_not() -> None:
    four, two, three = (nomological_validity(circuit(case["circuit"])) for case in NOMOLOGICAL)
    assert (four.status, four.values["smallest_p"]) == ("pass", pytest.approx(1 / 24))
    for few in (two, three):
        assert (few.status, few.reason) == ("inconclusive", "too_few")


def test_bands_cut_from_the_layers_are_circular() -> None:
    assert nomological_validity(circuit(NOMOLOGICAL[0]["circuit"])).warnings == ("circular_bands",)
    assert nomological_validity(circuit(NOMOLOGICAL[2]["circuit"])).warnings == ()


def test_opposite_order_fails() -> None:
    """Layers fall along the pathway: the one order in 24 that is worst."""
    of = NOMOLOGICAL[0]["circuit"]
    turned = {**of, "roles": {n: [[11 - a, b] for a, b in heads] for n, heads in of["roles"].items()}}
    found = nomological_validity(circuit(turned))
    assert (found.status, found.published) == ("fail", "fail")
    assert found.values["role_level_p_opposite"] == pytest.approx(1 / 24)


def test_the_published_circuit_of_indirect_objects_follows_depth() -> None:
    found = nomological_validity(load_head_circuit("ioi_gpt2_wang26"))
    assert (found.status, found.details["n_layers"]) == ("pass", 12)
    assert found.values["smallest_p"] == pytest.approx(12 / 5040)  # 2! 3! orders of tied depths among 7!


def test_circuits_without_roles_heads_or_spread_have_no_correlation() -> None:
    bare = HeadCircuit(id="bare", n_layers=4, n_heads=2, heads=((0, 0), (1, 0), (2, 0)))
    assert nomological_validity(bare).reason == "not_applicable"
    assert nomological_validity(bare).sub_results["layer_density_correlation"].values["rho"] is not None
    two = circuit({**NOMOLOGICAL[1]["circuit"], "roles": {"A": [[4, 1]], "B": [[0, 2]]}})
    assert nomological_validity(two).reason == "too_few"
    flat = circuit({**NOMOLOGICAL[1]["circuit"], "roles": {"A": [[2, 1], [2, 2]], "B": [[2, 3], [2, 0]]}})
    found = nomological_validity(flat)
    assert (found.published, found.status, found.reason) == ("inconclusive", "inconclusive", "zero_variance")


def test_bands_that_do_not_differ_say_nothing_of_depth() -> None:
    """Four roles in rising layers (p = 1/24 over roles), all of them in one band."""
    one = circuit({**NOMOLOGICAL[0]["circuit"], "bands": {"mid": ["A", "B", "C", "D"]}})
    found = nomological_validity(one)
    assert found.values["role_level_p"] == pytest.approx(1 / 24)
    assert (found.published, found.status, found.reason) == ("inconclusive", "inconclusive", "zero_variance")


def test_a_role_without_a_band_is_an_error() -> None:
    with pytest.raises(InputError, match="has no role with a band"):
        nomological_validity(circuit({**NOMOLOGICAL[0]["circuit"], "bands": {"early": ["A"]}}))


def test_role_names_do_not_matter() -> None:
    made = role_circuit(np.random.default_rng(0), ordered=True).to_dict()
    text = json.dumps(made)
    for i in range(6):
        text = text.replace(f'"r{i}"', f'"role {9 - i}"')
    first, second = (nomological_validity(HeadCircuit.from_dict(of)) for of in (made, json.loads(text)))
    assert (first.status, first.values) == (second.status, second.values)


# --------------------------------------------------------------------------------------------- C36


@pytest.mark.parametrize("case", [case for case in INCREMENTAL if "den" in case])
def test_gain_over_a_baseline_matches_golden_values(case: dict) -> None:
    full = np.array(case["den"])
    random = full[:, None] * np.array(case["random_circuit_faithfulness"])
    found = incremental_validity(
        full, np.array(case["num_circuit"]), np.array(case["num_topk"]), others={"random": random}
    )
    assert found.values["value"] == pytest.approx(case["delta"], rel=1e-9)
    assert found.values["standard_error"] == pytest.approx(case["se_delta"], rel=1e-9)
    assert found.interval is not None
    # Student's bound, which the one that allows for skewness does not exceed.
    values = np.stack([case["num_circuit"], case["num_topk"], full])
    student = RatioOfSums(numerator={"keep": 1.0, "base": -1.0}, denominator={"full": 1.0}).interval(
        values, level=0.9, method="delta"
    )
    assert student.low == pytest.approx(case["t_lower_95"], rel=1e-9)
    assert found.interval.low <= student.low + 1e-12
    assert found.details["others"]["random"]["p"] == pytest.approx(case["random_p_value"], rel=1e-9)
    assert (found.published == "pass") == case["published_pass"]
    assert (found.sub_results["substantial"].published == "pass") == case["published_substantial"]
    assert (found.status == "pass") == (found.interval.low > 0 and len(full) >= 20)


def test_the_baseline_set_breaks_ties_as_published() -> None:
    (case,) = [case for case in INCREMENTAL if "magnitudes" in case]
    table = np.array(case["magnitudes"])
    chosen = np.flatnonzero(top_members(table.ravel(), case["k"]))
    expected = sorted(layer * table.shape[1] + head for layer, head in case["top_heads"])
    np.testing.assert_array_equal(chosen, expected)


def test_overshooting_is_not_better() -> None:
    """A circuit at 1.4 against a baseline at 0.9: delta +0.5, but 0.3 further from 1."""
    full = np.linspace(2, 4, 20)
    found = incremental_validity(full, 1.4 * full, 0.9 * full)
    assert found.values["value"] == pytest.approx(0.5)
    assert found.values["delta_abs"] == pytest.approx(-0.3)


def test_identical_prompts_are_judged_by_sign_and_flagged() -> None:
    few = np.full(7, 0.3)
    found = incremental_validity(few, few * 0.6, few * 0.5)
    assert (found.status, found.reason, found.n_needed) == ("inconclusive", "too_few", 20)
    full = np.full(20, 0.3)
    for sign, word in ((1, "pass"), (-1, "fail")):
        found = incremental_validity(full, full * (0.5 + 0.1 * sign), full * 0.5)
        assert (found.status, found.warnings) == (word, ("zero_variance",))
    sets = {"members": np.array([True, False]), "baseline_members": np.array([False, True])}
    equal = incremental_validity(full, full * 0.5, full * 0.5, **sets)
    assert (equal.status, equal.published, equal.reason) == ("inconclusive", "fail", None)


def test_the_same_set_settles_nothing() -> None:
    runs = paired_runs(np.random.default_rng(0), delta=0.2)
    members = np.arange(10) < 3
    found = incremental_validity(
        runs.y_full, runs.y_keep, runs.y_keep, members=members, baseline_members=members
    )
    assert (found.status, found.reason, found.values["value"]) == ("inconclusive", "same_set", 0.0)
    assert (found.values["overlap"], found.values["jaccard"]) == (3.0, 1.0)
    runs_alone = incremental_validity(runs.y_full, runs.y_keep, runs.y_keep)
    for each in (found, runs_alone, runs_alone.sub_results["substantial"]):
        assert (each.status, each.published, each.reason) == ("inconclusive", "inconclusive", "same_set")


def test_a_prompt_that_is_left_out_does_not_make_runs_differ() -> None:
    runs = paired_runs(np.random.default_rng(0), delta=0.2)
    holed = runs.y_keep.copy()
    holed[3] = np.nan
    assert incremental_validity(runs.y_full, runs.y_keep, holed).reason == "same_set"


@pytest.mark.parametrize(
    ("n", "members", "reason"),
    [
        (0, None, "no_valid_prompt"),
        (2, None, "too_few"),
        (9, np.zeros(4, bool), "no_members"),
        (9, np.ones(4, bool), "no_others"),
    ],
)
def test_no_verdict_without_prompts_or_a_proper_circuit(
    n: int, members: np.ndarray | None, reason: str
) -> None:
    y = np.linspace(1, 2, n)
    found = incremental_validity(y, y, y * 0.5, members=members)
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_a_model_without_a_margin_has_no_faithfulness() -> None:
    y = np.array([1.0, -1.0, 2.0, -2.0])
    assert incremental_validity(y, y, y * 0.5).reason == "zero_denominator"
    found = incremental_validity(y + 0.3, y, y * 0.5)
    assert "unstable_denominator" in found.warnings
    assert found.status == "inconclusive"


def test_a_prompt_that_is_not_finite_leaves_all_runs() -> None:
    runs = paired_runs(np.random.default_rng(1), delta=0.1)
    holed = runs.y_baseline.copy()
    holed[5] = np.inf
    kept = np.arange(40) != 5
    found = incremental_validity(runs.y_full, runs.y_keep, holed)
    expected = incremental_validity(runs.y_full[kept], runs.y_keep[kept], runs.y_baseline[kept])
    assert (found.values, found.details["n_dropped"]) == (expected.values, 1)
    assert found.warnings == ("prompts_dropped",)


def test_order_and_scale_of_prompts_change_nothing_and_units_widen_the_bounds() -> None:
    runs = paired_runs(np.random.default_rng(2), delta=0.1)
    first = incremental_validity(runs.y_full, runs.y_keep, runs.y_baseline)
    order = np.random.default_rng(3).permutation(40)
    moved = incremental_validity(*(-3 * y[order] for y in (runs.y_full, runs.y_keep, runs.y_baseline)))
    for key, value in first.values.items():
        assert moved.values[key] == pytest.approx(value, rel=1e-9)
    doubled = [np.tile(y, 4) for y in (runs.y_full, runs.y_keep, runs.y_baseline)]
    naive = incremental_validity(*doubled)
    clustered = incremental_validity(*doubled, unit_id=np.tile(np.arange(40), 4))
    assert naive.interval is not None
    assert clustered.interval is not None
    assert first.interval is not None
    assert clustered.interval.low == pytest.approx(first.interval.low, rel=1e-9)
    assert naive.interval.low > first.interval.low


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named() -> None:
    y = np.linspace(1, 2, 9)
    with pytest.raises(ShapeError, match="full"):
        incremental_validity(y, y[:-1], y)
    with pytest.raises(ShapeError, match="baseline_members"):
        incremental_validity(y, y, y, members=np.arange(4) < 2, baseline_members=np.arange(5) < 2)
    with pytest.raises(InputError, match="0 random sets"):
        incremental_validity(y, y, y, others={"random": np.empty((9, 0))})
    json.dumps(incremental_validity(y, y * 0.9, y * 0.5).to_dict(), allow_nan=False)


@pytest.mark.parametrize("sign", [1, -1])
def test_skewed_differences_at_the_limit_are_judged_rarely(sign: int) -> None:
    """Exponential differences of mean 0 at 20 prompts: Student's bounds were wrong in 11 % of samples."""
    judged = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        full = rng.normal(3, 0.5, 20)
        base = 0.5 * full
        keep = base + sign * (rng.exponential(size=20) - 1)
        judged.append(incremental_validity(full, keep, base).status)
    assert max(judged.count("pass"), judged.count("fail")) <= 14

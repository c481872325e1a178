"""Order of roles and gain over baselines: golden values, worked cases, degenerate ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from planted import paired_runs

from assay.analyses.calibration.validity import incremental_validity, nomological_validity
from assay.circuits import HeadCircuit
from assay.circuits.heads import Role, load_head_circuit
from assay.core.errors import InputError
from assay.stats import RatioOfSums


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
    """Turned round, layers fall along the pathway: the one order in 24 that is worst."""
    four, two, three = (nomological_validity(circuit(case["circuit"])) for case in NOMOLOGICAL)
    assert (four.status, four.values["smallest_p"]) == ("pass", pytest.approx(1 / 24))
    assert (four.warnings, three.warnings) == (("circular_bands",), ())
    for few in (two, three):
        assert (few.status, few.reason) == ("inconclusive", "too_few")
    of = NOMOLOGICAL[0]["circuit"]
    turned = {**of, "roles": {n: [[11 - a, b] for a, b in heads] for n, heads in of["roles"].items()}}
    found = nomological_validity(circuit(turned))
    assert (found.status, found.published) == ("fail", "fail")
    assert found.values["role_level_p_opposite"] == pytest.approx(1 / 24)
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
    with pytest.raises(InputError, match="has no role with a band"):
        nomological_validity(circuit({**NOMOLOGICAL[0]["circuit"], "bands": {"early": ["A"]}}))


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

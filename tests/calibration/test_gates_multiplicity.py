"""Pools of results against golden values and worked cases."""

import json
from pathlib import Path

import numpy as np
import pytest

from assay.analyses.calibration.multiplicity import PooledResult, multiple_comparisons, published_p_value


GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "calibrations" / "multiplicity.json").read_text()
)


def results(p_values: list[float], **more: object) -> list[PooledResult]:
    return [
        PooledResult(name=f"r{i}", p=p, p_kind="t", passed=p < 0.05, **more)  # type: ignore[arg-type]
        for i, p in enumerate(p_values)
    ]


@pytest.mark.parametrize("case", GOLDEN["sets"])
def test_survivors_match_golden_values(case: dict) -> None:
    found = multiple_comparisons(results(case["p"]))
    assert found.values["n_nominal"] == case["n_nominal"]
    assert found.values["n_bh"] == case["n_bh"]
    assert found.values["n_bonferroni"] == case["n_bonferroni"]
    for key, name in (("fdr_bh", "bh"), ("fdr_by", "by"), ("holm", "holm"), ("bonferroni", "bonferroni")):
        adjusted = [row[name] for row in found.details["results"]]
        np.testing.assert_allclose(adjusted, case[key]["adjusted"], rtol=1e-9)
    if case["n_nominal"]:
        assert found.values["value"] == pytest.approx(case["bh_survival_rate"], rel=1e-9)
        assert found.status == ("pass" if found.values["share_proven"] > 0.5 else "inconclusive")
        claimed = {f"r{i}" for i, p in enumerate(case["p"]) if p < 0.05}
        kept = {f"r{i}" for i, kept in enumerate(case["fdr_bh"]["reject"]) if kept}
        assert set(found.details["lost"]) == claimed - kept
    else:
        assert (found.status, found.reason) == ("inconclusive", "not_applicable")


@pytest.mark.parametrize("case", GOLDEN["approximate_p"])
def test_published_stand_ins_match_golden_values(case: dict) -> None:
    ci = None if case["ci_low"] is None else (case["ci_low"], case["ci_high"])
    found = published_p_value(
        PooledResult(name="x", value=case["value"], baseline=case["baseline"], n=case["n"], ci=ci)
    )
    assert found == (None if case["p"] is None else pytest.approx(case["p"], rel=1e-9))


def test_flags_make_the_published_rule_vacuous() -> None:
    """A fifth of the checks passed: 0.01 <= 0.2 * 0.05, so all of them 'survive'; none has a real p."""
    pool = [PooledResult(name=f"r{i}", passed=i < 4) for i in range(20)]
    found = multiple_comparisons(pool)
    assert (found.published, found.values["published_value"]) == ("pass", 1.0)
    assert (found.status, found.reason, found.values["m"]) == ("inconclusive", "not_applicable", 0.0)
    assert found.details["without_p"] == 20
    fewer = multiple_comparisons([PooledResult(name=f"r{i}", passed=i < 3) for i in range(20)])
    assert (fewer.published, fewer.values["published_value"]) == ("fail", 0.0)


def test_tasks_are_judged_apart_and_together() -> None:
    good = [PooledResult(name=f"a{i}", task="ioi", p=1e-6, p_kind="exact", passed=True) for i in range(3)]
    bad = [
        PooledResult(name=f"b{i}", task="sva", p=0.04 + 0.02 * i, p_kind="t", passed=i == 0) for i in range(9)
    ]
    found = multiple_comparisons(good + bad)
    assert found.sub_results["ioi"].status == "pass"
    assert (found.sub_results["sva"].status, found.sub_results["sva"].details["lost"]) == (
        "inconclusive",
        ["b0"],
    )
    assert found.sub_results["sva"].reason == "not_proven"
    assert (found.status, found.values["n_claimed"], found.values["n_survivors"]) == ("pass", 4.0, 3.0)
    renamed = [PooledResult(**{**vars(each), "task": each.task + "x"}) for each in good + bad]
    assert multiple_comparisons(renamed).values == found.values


def test_e_values_enter_with_their_own_adjustment() -> None:
    pool = [PooledResult(name=f"e{i}", e=e, passed=True) for i, e in enumerate((100.0, 50.0, 1.0))]
    found = multiple_comparisons(pool)
    assert found.values["n_e_bh"] == 2  # the second needs 3 / (2 * 0.05) = 30
    assert [row["p"] for row in found.details["results"]] == [0.01, 0.02, 1.0]


def test_nothing_to_test_is_no_verdict() -> None:
    for pool in ([], results([1.0, 1.0])):
        found = multiple_comparisons(pool)
        assert (found.status, found.reason) == ("inconclusive", "not_applicable")
    assert multiple_comparisons([]).published == "inconclusive"

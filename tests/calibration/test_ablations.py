"""Invariance over ablations: golden values, what is undefined, what changes nothing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from planted import methods
from scipy import stats

from assay.analyses.calibration.ablations import ablation_invariance, method_invariance
from assay.core.measurement import Verdict
from assay.core.random import stream


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
CASES = json.loads((GOLDEN / "ablation_invariance.json").read_text())
NAMES = ("zero", "mean", "resample-donor")


def world(n: int, shifts: tuple[float, ...], seed: int = 0, sd: float = 0.3) -> Verdict:
    return ablation_invariance(
        *methods(stream(seed, f"M98 {n} {shifts}"), n, sd=sd, shifts=shifts, names=NAMES)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['max_divergence']:.2f}")
def test_divergence_and_intervals_match_golden_values(case: dict) -> None:
    full = np.array(case["den"])
    runs = {name: np.array(values) for name, values in case["num"].items()}
    found = ablation_invariance(full, runs)
    assert found.values["divergence"] == pytest.approx(case["max_divergence"], rel=1e-9)
    for name, score in case["faithfulness"].items():
        assert found.values[name] == pytest.approx(score, rel=1e-9)
    assert found.published == ("pass" if case["published_pass"] else "fail")
    assert (found.status == "pass") == case["rigorous_pass"]
    for pair, expected in case["tost"].items():
        ours = found.details["pairs"][pair.replace("_vs_", " - ")]
        assert ours["difference"] == pytest.approx(expected["diff"], rel=1e-9, abs=1e-12)
        ends = [ours["interval"]["low"], ours["interval"]["high"]]
        assert ends == pytest.approx(expected["ci90"], rel=1e-9, abs=1e-12)
    runs["noise-additive"] = runs.pop("resample")
    also = method_invariance(full, runs)
    assert also.values["method_invariance"] == pytest.approx(case["value_E1b"], rel=1e-9)
    assert (also.status, also.published) == (found.status, found.published)
    assert also.thresholds["pass"] == pytest.approx(0.8)


@pytest.mark.parametrize("inner", ["faithfulness", "completeness"])
def test_scores_near_zero_agree_without_passing(inner: str) -> None:
    """Equal scores pass from 0.20 on, in either direction, where their mean is proven to lie there."""
    full = np.full(40, 3.0)
    noise = 0.1 * np.tile([1.0, -1.0], 20)

    def judged(score: float, sd: float = 1.0) -> Verdict:
        kept = score if inner == "faithfulness" else 1 - score
        runs = {name: full * (kept + at * 0.01 + sd * noise) for at, name in enumerate(NAMES)}
        return ablation_invariance(full, runs, inner=inner)

    for score in (-0.03, 0.0, 0.15):
        found = judged(score)
        assert (found.status, found.published, found.reason) == ("inconclusive", "pass", "near_zero")
        assert found.n_needed is None
    for score in (-0.4, 0.4):
        assert (judged(score).status, judged(score).reason) == ("pass", None)
    wide = judged(0.3, sd=5.0)  # a mean of 0.3 with standard error 0.08
    assert (wide.status, wide.reason) == ("inconclusive", "near_zero")
    assert wide.n_needed is not None
    assert 40 < wide.n_needed < 120
    assert wide.values["average"] == pytest.approx(0.31 if inner == "faithfulness" else 0.29)
    assert "0.20 of 0" in wide.judged["because"]


def gaps(n: int, shifts: tuple[float, ...], sds: tuple[float, ...]) -> Verdict:
    """Methods whose shares of a margin of 1 have exactly these means and spreads, independent at even n."""
    signs = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]])[:, np.arange(n) % 4]
    runs = {
        name: 0.5 + shift + sd * math.sqrt((n - 1) / n) * np.where(order == 0, 1, sign)
        for order, (name, shift, sd, sign) in enumerate(zip(NAMES, shifts, sds, signs, strict=True))
    }
    return ablation_invariance(np.ones(n), runs)


def test_the_clearest_pair_that_would_fail_settles_it_or_the_last_one_to_pass() -> None:
    """One pair is a hair beyond the limit and hopeless, another far beyond it and nearly clear."""
    found = gaps(40, (0.0, 0.201, 0.5), (0.0, 0.4, 1.0))
    assert (found.status, found.published) == ("inconclusive", "fail")
    t = stats.t.ppf(1 - 0.05 / 3, 39)
    half_width = t * 1.0 / math.sqrt(40)
    assert 40 * (t * 0.4 / math.sqrt(40) / 0.001) ** 2 > 600_000
    assert found.n_needed == math.ceil(40 * (half_width / 0.3) ** 2)
    assert 40 < found.n_needed < 60
    found = gaps(40, (0.0, 0.05, 0.15), (0.0, 0.1, 0.4))
    assert (found.status, found.published) == ("inconclusive", "pass")
    last = 40 * (stats.t.ppf(0.95, 39) * 0.4 / math.sqrt(40) / 0.05) ** 2
    assert found.n_needed == math.ceil(last)
    # One difference of 0.25 with standard error 0.0275: beyond 0.2 at 95 %, not at 98.3 %.
    found = gaps(100, (0.0, -0.05, -0.25), (0.0, 0.0, 0.275))
    assert (found.status, found.published, found.reason) == ("inconclusive", "fail", "stricter_level")
    assert found.interval.low < 0.2
    assert found.n_needed is not None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_value_interval_and_thresholds_are_of_one_scale(sign: float) -> None:
    """A fail asks for 5 % over three pairs, so the lower end is further out than the upper."""
    found = world(400, (0.0, sign * 0.3, 0.0))
    assert found.status == "fail"
    assert 0.2 < found.interval.low < found.values["divergence"] < found.interval.high  # type: ignore[operator]
    pair = found.details["pairs"][" - ".join(found.details["pair"])]
    reach = abs(pair["difference"]) - (pair["interval"]["high"] - pair["interval"]["low"]) / 2
    assert found.interval.low < reach  # Student's end at 95 %
    assert found.details["levels"] == pytest.approx({"pass": 0.95, "fail": 1 - 0.05 / 3})


def test_a_method_that_failed_is_left_out_and_named() -> None:
    full, runs = methods(stream(0, "failed"), 30, sd=0.1, shifts=(0.0, 0.0, 0.9), names=NAMES)
    without = ablation_invariance(full, {**runs, "resample-donor": np.full(30, np.nan)})
    assert (without.status, without.published) == ("inconclusive", "pass")
    assert (without.reason, without.warnings) == ("method_missing", ("method_missing",))
    assert (without.interval, without.n_needed) != (None, 1)
    assert without.details["missing"] == ["resample-donor"]
    absent = ablation_invariance(full, {name: runs[name] for name in NAMES[:2]})
    assert absent.values == without.values
    assert absent.details["missing"] == ["resample-donor"]
    alone = ablation_invariance(full, {"zero": runs["zero"]})
    assert (alone.status, alone.published, alone.reason) == ("inconclusive", "inconclusive", "not_applicable")


def test_a_full_model_near_zero_leaves_differences_unbounded() -> None:
    runs = {name: stream(0, f"near zero {name}").normal(size=20) for name in NAMES}
    found = ablation_invariance(np.tile([1.05, -0.95], 10), runs)
    assert (found.status, found.reason) == ("inconclusive", "unbounded")

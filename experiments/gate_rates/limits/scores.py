"""C11, C16 (test-retest) and C30: the standard error of a score, in its own unit and beside the score."""

from collections.abc import Callable

import numpy as np

from assay.analyses.calibration.reliability import retest
from assay.analyses.calibration.resampling import bootstrap_stability, seed_variance
from assay.core.measurement import Verdict
from limits.cells import PROMISED, Cell, Judge, draw, seed_of


_SCORE = 0.8
_MARGIN = 3.0
_SAMPLES = 3  # a pool has three times the prompts of a sample


def _runs(rng: np.random.Generator, shape: str, n: int, sd: float) -> tuple[np.ndarray, np.ndarray]:
    """Margins of model and circuit: sd of the influence is `sd`, whatever the margins of the model do."""
    y_full = _MARGIN * (1 + draw(shape, rng, n) / 6)
    return y_full, _SCORE * y_full + _MARGIN * sd * draw(shape, rng, n)


def _stability(shape: str, n: int, error: float) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        runs = _runs(rng, shape, n, error * n**0.5)
        # Two resamples for the published rule, which is not counted here.
        return bootstrap_stability(*runs, draws=rng.integers(0, n, (2, n)), seed=seed_of(rng))

    return judge


def _retest(shape: str, n: int, relative: float) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        runs = _runs(rng, shape, n, _SCORE * relative * (n / _SAMPLES) ** 0.5)
        return retest(*runs, seed=seed_of(rng))

    return judge


def _seeds(shape: str, n: int, relative: float) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        size = n // _SAMPLES
        runs = _runs(rng, shape, n, _SCORE * relative * size**0.5)
        return seed_variance(*runs, n_prompts=size)

    return judge


def _cells(
    gate: str,
    part: str,
    judge: Callable[[str, int, float], Judge],
    error: float,
    truth: str,
    at: dict[int, tuple[str, ...]],
) -> tuple[Cell, ...]:
    words = {"limit": ", the limit", "not-pass": ", the limit of a pass", "not-fail": ", the limit of a fail"}
    unit = "SE" if gate == "C11" else "relative SE"
    return tuple(
        Cell(
            gate=gate,
            part=part,
            world=f"{unit} {error:.2f}{words.get(truth, '')}",
            shape=shape,
            n=n,
            truth=truth,
            judge=judge(shape, n, error),
            promised=shape in PROMISED,
        )
        for n, shapes in at.items()
        for shape in shapes
    )


_ALL = (*PROMISED, "5 % outliers")
_TAILS = ("t5", "mirrored exponential")

CELLS: tuple[Cell, ...] = (
    *_cells(
        "C11",
        "",
        _stability,
        0.1,
        "limit",
        {40: _ALL, 100: ("t5", "exponential"), 250: ("t5", "exponential"), 1000: ("t5",)},
    ),
    *_cells("C11", "", _stability, 0.09, "pass", {40: ("exponential",)}),
    *_cells("C11", "", _stability, 0.11, "fail", {40: ("exponential", "t5")}),
    *_cells(
        "C16", "test-retest", _retest, 0.2, "limit", {100: _ALL, 150: _TAILS, 300: _TAILS, 1000: ("t5",)}
    ),
    *_cells("C16", "test-retest", _retest, 0.18, "pass", {100: ("normal",)}),
    *_cells("C16", "test-retest", _retest, 0.22, "fail", {100: ("t5",)}),
    *_cells("C30", "", _seeds, 0.1, "not-pass", {100: _ALL, 150: _TAILS, 300: _TAILS, 1000: ("t5",)}),
    *_cells(
        "C30", "", _seeds, 0.2, "not-fail", {100: ("normal", "t5", "mirrored exponential"), 300: ("normal",)}
    ),
)

"""D05: shares and means of overlaps exactly at their thresholds."""

from collections.abc import Callable

import numpy as np

from assay.core.measurement import Measurement, Rule, Verdict
from assay.metrics.metric import find_metric, record
from assay.metrics.topk import THRESHOLDS, judge_agreement
from assay.stats import mean_of
from limits.cells import Cell, Judge


Draw = Callable[[np.random.Generator, int, float], np.ndarray]

_OVERLAPS: dict[str, Draw] = {
    "two-valued": lambda rng, n, mean: (rng.random(n) < mean).astype(np.float64),
    "binomial/5": lambda rng, n, mean: rng.binomial(5, mean, n) / 5,
    "Beta": lambda rng, n, mean: rng.beta(5 * mean, 5 * (1 - mean), n),
}
_NAMES = {"acc@1": "Acc@1", "acc@5": "Acc@5", "tau@10": "tau@10"}


def _part(key: str, values: np.ndarray) -> Measurement:
    """The part that `topk` makes of values per example."""
    bounds = (-1.0, 1.0) if key.startswith("tau") else (0.0, 1.0)
    return record(
        find_metric("topk"),
        {key: values},
        mean_of(key, bounds=bounds),
        used=np.ones(len(values), dtype=np.bool_),
        rule=Rule(pass_at=THRESHOLDS[key]),
        interval_method="clopper-pearson" if key == "acc@1" else None,
    )


def _alone(key: str, shape: str, n: int, mean: float) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        if key.startswith("tau"):
            return _part(key, 2 * _OVERLAPS[shape](rng, n, (mean + 1) / 2) - 1).verdict
        return _part(key, _OVERLAPS[shape](rng, n, mean)).verdict

    return judge


def _both(shape: str, n: int, first: float, five: float) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        parts = {
            "acc@1": _part("acc@1", _OVERLAPS["two-valued"](rng, n, first)),
            "acc@5": _part("acc@5", _OVERLAPS[shape](rng, n, five)),
        }
        return judge_agreement(parts)

    return judge


def _parts(
    key: str, n: int, *shapes: str, mean: float | None = None, truth: str = "limit"
) -> tuple[Cell, ...]:
    at = THRESHOLDS[key] if mean is None else mean
    return tuple(
        Cell(
            gate="D05",
            part=_NAMES[key],
            world=f"mean {at:.2f}{', the limit' if truth == 'limit' else ''}",
            shape=shape,
            n=n,
            truth=truth,
            judge=_alone(key, shape, n, at),
        )
        for shape in shapes
    )


def _whole(world: str, n: int, first: float, five: float, truth: str) -> tuple[Cell, ...]:
    return tuple(
        Cell(gate="D05", world=world, shape=shape, n=n, truth=truth, judge=_both(shape, n, first, five))
        for shape in _OVERLAPS
    )


CELLS: tuple[Cell, ...] = (
    *(cell for n in (5, 20, 100, 1000) for cell in _parts("acc@5", n, *_OVERLAPS)),
    *_parts("acc@5", 100, *_OVERLAPS, mean=0.88, truth="fail"),
    *_parts("acc@5", 100, *_OVERLAPS, mean=0.92, truth="pass"),
    *(cell for n in (5, 100, 1000) for cell in _parts("tau@10", n, "two-valued", "Beta")),
    *(cell for n in (5, 60, 200, 1000) for cell in _parts("acc@1", n, "two-valued")),
    *_whole("Acc@5 at its limit, Acc@1 1", 100, 1.0, 0.9, "not-pass"),
    *_whole("Acc@1 at its limit, Acc@5 0.99", 100, 0.95, 0.99, "not-pass"),
    *_whole("both at their limits", 100, 0.95, 0.9, "limit"),
    *_whole("both at their limits", 1000, 0.95, 0.9, "limit"),
)

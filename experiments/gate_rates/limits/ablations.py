"""M98 and E1b: three ablation methods of which some pair is exactly 0.20 apart, or whose scores are 0.20."""

from collections.abc import Callable

import numpy as np

from assay.analyses.calibration.ablations import ablation_invariance, method_invariance
from assay.core.measurement import Verdict
from limits.cells import PROMISED, Cell, Judge, draw


_MARGIN, _SPREAD, _SCORE = 3.0, 0.5, 0.8  # of the model over prompts; of the circuit
_ALONE, _SHARED = (0.03, 0.03, 0.3), (0.03, 0.03, 0.03)  # spread of each method's score by itself
_GATES: dict[str, tuple[Callable[..., Verdict], tuple[str, ...]]] = {
    "M98": (ablation_invariance, ("zero", "mean", "resample-donor")),
    "E1b": (method_invariance, ("zero", "mean", "noise-additive")),
}
_WORLDS = {  # shift of each method's score, and the truth
    "one pair 0.20 apart, the limit": ((0.0, -0.1, -0.2), "limit"),
    "two pairs 0.20 apart, the limit": ((0.0, 0.0, -0.2), "limit"),
    "one pair 0.15 apart": ((0.0, -0.1, -0.15), "pass"),
    "one pair 0.25 apart": ((0.0, -0.1, -0.25), "fail"),
}
_SCORES = {  # of every method, whose noise is shared, and the truth
    "equal scores of 0": (0.0, "not-pass"),
    "equal scores of 0.10": (0.1, "not-pass"),
    "equal scores of 0.20, the limit": (0.2, "not-pass"),
    "equal scores of 0.35": (0.35, "pass"),
}


def _judge(
    gate: str, shifts: tuple[float, ...], shape: str, n: int, *, score: float = _SCORE, shared: float = 0.0
) -> Judge:
    """Noise of one method alone, so that a difference is as skewed as the shape, or shared by all of them."""
    function, names = _GATES[gate]
    spreads = _SHARED if shared else _ALONE

    def judge(rng: np.random.Generator) -> Verdict:
        y_full = _MARGIN + _SPREAD * draw("normal", rng, n)
        common = score * y_full + (_MARGIN * shared * draw(shape, rng, n) if shared else 0.0)
        runs = {
            name: common + _MARGIN * (shift + sd * draw(shape, rng, n))
            for name, shift, sd in zip(names, shifts, spreads, strict=True)
        }
        return function(y_full, runs)

    return judge


def _cell(gate: str, world: str, shape: str, n: int, *, promised: bool = True) -> Cell:
    if world in _SCORES:
        score, truth = _SCORES[world]
        judge = _judge(gate, (0.0, 0.0, 0.0), shape, n, score=score, shared=0.3)
    else:
        shifts, truth = _WORLDS[world]
        judge = _judge(gate, shifts, shape, n)
    return Cell(gate=gate, world=world, shape=shape, n=n, truth=truth, judge=judge, promised=promised)


_LIMITS = tuple(world for world, (_, truth) in _WORLDS.items() if truth == "limit")
_NEAR = tuple(world for world in _WORLDS if world not in _LIMITS)

CELLS = (
    *(
        _cell("M98", world, shape, n)
        for world in _LIMITS
        for shape in PROMISED
        for n in (5, 10, 20, 40, 100, 1000)
    ),
    *(_cell("M98", world, shape, n) for world in _NEAR for shape in PROMISED for n in (40, 200)),
    *(_cell("M98", _LIMITS[0], "5 % outliers", n, promised=False) for n in (40, 400)),
    *(_cell("E1b", _LIMITS[0], shape, n) for shape in PROMISED for n in (5, 40, 400)),
    *(_cell("E1b", world, shape, 100) for world in _NEAR for shape in PROMISED),
    *(
        _cell("M98", "equal scores of 0.20, the limit", shape, n)
        for shape in PROMISED
        for n in (5, 10, 20, 40, 100, 1000)
    ),
    *(_cell("M98", "equal scores of 0", shape, n) for shape in PROMISED for n in (5, 40, 1000)),
    *(_cell("M98", "equal scores of 0.10", shape, n) for shape in PROMISED for n in (10, 100)),
    *(_cell("M98", "equal scores of 0.35", shape, n) for shape in PROMISED for n in (40, 200)),
    *(_cell("E1b", "equal scores of 0.20, the limit", shape, n) for shape in PROMISED for n in (5, 40)),
)

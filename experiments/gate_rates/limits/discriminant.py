"""C17: an own effect that is exactly three times the mean of the effects on other tasks, or no effect."""

import numpy as np

from assay.analyses.calibration.discriminant import discriminant_validity
from assay.core.measurement import Verdict
from limits.cells import PROMISED, Cell, Judge, draw_heads, seed_of


_WORLDS = {  # own effect, effects on the other tasks, truth
    "own 0.3, others 0.1, the limit": (0.3, (0.1, 0.1, 0.1), "limit"),
    "own 0.3, others -0.2, 0, -0.1, the limit": (0.3, (-0.2, 0.0, -0.1), "limit"),
    "no effect at all": (0.0, (0.0, 0.0, 0.0), "none"),
    "own 0.33, others 0.1": (0.33, (0.1, 0.1, 0.1), "pass"),
    "own 0.27, others 0.1": (0.27, (0.1, 0.1, 0.1), "fail"),
}
_HEADS, _MEMBERS, _NOISE = 12, 4, 0.3


def _judge(own: float, others: tuple[float, ...], shape: str, n: int) -> Judge:
    """Prompts move all heads of a task together, so that a mean over heads is as skewed as the shape."""
    members = np.arange(_HEADS) < _MEMBERS
    elsewhere = {f"other{at}": np.roll(members, _MEMBERS * (1 + at % 2)) for at in range(len(others))}
    means = {"own": own, **dict(zip(elsewhere, others, strict=True))}

    def judge(rng: np.random.Generator) -> Verdict:
        effects = {
            name: mean * members + _NOISE * draw_heads(shape, rng, n, _HEADS, correlation=0.5)
            for name, mean in means.items()
        }
        return discriminant_validity(effects, {"own": members, **elsewhere}, own="own", seed=seed_of(rng))

    return judge


def _cell(world: str, shape: str, n: int, *, promised: bool = True) -> Cell:
    own, others, truth = _WORLDS[world]
    judge = _judge(own, others, shape, n)
    return Cell(gate="C17", world=world, shape=shape, n=n, truth=truth, judge=judge, promised=promised)


_LIMITS = tuple(world for world, (_, _, truth) in _WORLDS.items() if truth in ("limit", "none"))
_NEAR = tuple(world for world in _WORLDS if world not in _LIMITS)

CELLS = (
    *(_cell(world, shape, n) for world in _LIMITS for shape in PROMISED for n in (5, 20, 40, 200)),
    _cell(_LIMITS[0], "exponential", 1000),
    *(_cell(world, shape, 40) for world in _NEAR for shape in PROMISED),
    *(_cell(_LIMITS[0], "5 % outliers", n, promised=False) for n in (40, 200)),
)

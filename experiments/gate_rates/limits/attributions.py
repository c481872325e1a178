"""S1: the circuit's heads at exactly twice the magnitude of the others, at several levels of noise."""

from collections.abc import Iterator

import numpy as np
from scipy import stats as scipy_stats

from assay.analyses.calibration.distribution import distributional_characterization
from assay.core.measurement import Verdict
from limits.cells import Cell, Judge, draw_heads, seed_of


SIZE = 0.1  # mean magnitude of the others


def ratio(
    shape: str,
    n: int,
    heads: tuple[int, int] = (15, 129),
    *,
    value: float = 2.0,
    noise: float = 0.3,
    correlation: float = 0.0,
    uneven: bool = False,
) -> Judge:
    """Effects of either sign, even within a side or exponential; heads may share half of a prompt's noise."""
    members = np.arange(sum(heads)) < heads[0]
    sizes = [
        scipy_stats.expon.ppf((np.arange(side) + 0.5) / side) if uneven else np.ones(side) for side in heads
    ]
    magnitudes = SIZE * np.concatenate([value * sizes[0] / sizes[0].mean(), sizes[1] / sizes[1].mean()])

    def judge(rng: np.random.Generator) -> Verdict:
        expected = rng.choice([-1.0, 1.0], len(members)) * magnitudes
        scores = expected + noise * draw_heads(shape, rng, n, len(members), correlation)
        return distributional_characterization(scores, members, n_boot=199, n_perm=1, seed=seed_of(rng))

    return judge


def _cells() -> Iterator[Cell]:
    worlds = (
        (
            "15 of 144 heads",
            {},
            (("normal", 5), ("t5", 10), ("exponential", 40), ("normal", 100), ("t5", 1000)),
        ),
        (
            "15 of 144 heads that share half of the noise",
            {"correlation": 0.5},
            (("exponential", 5), ("mirrored exponential", 10), ("normal", 40), ("mirrored exponential", 400)),
        ),
        ("15 of 144 heads, three times the noise", {"noise": 1.0}, (("exponential", 40), ("normal", 100))),
        (
            "15 of 144 heads, a third of the noise",
            {"noise": 0.1},
            (("normal", 5), ("mirrored exponential", 10)),
        ),
        (
            "3 of 16 uneven heads that share half of the noise",
            {"heads": (3, 13), "correlation": 0.5, "uneven": True},
            (("exponential", 5), ("mirrored exponential", 20), ("t5", 100)),
        ),
        (
            "3 of 8 heads, others that change sign in resamples",
            {"heads": (3, 5)},
            (("normal", 6), ("exponential", 8), ("mirrored exponential", 12), ("t5", 40)),
        ),
        (
            "1 of 16 heads, a third of the noise",
            {"heads": (1, 15), "noise": 0.1},
            (("exponential", 5), ("mirrored exponential", 10), ("t5", 40)),
        ),
    )
    for name, options, draws in worlds:
        for shape, n in draws:
            yield Cell(
                gate="S1",
                world=f"ratio 2, the limit, {name}",
                shape=shape,
                n=n,
                truth="limit",
                judge=ratio(shape, n, **options),
            )
    for value, truth in ((1.8, "fail"), (2.2, "pass")):
        yield Cell(
            gate="S1",
            world=f"ratio {value}, a little off the limit, 15 of 144 heads",
            shape="exponential",
            n=40,
            truth=truth,
            judge=ratio("exponential", 40, value=value, correlation=0.5),
        )
    yield Cell(
        gate="S1",
        world="ratio 2, the limit, 15 of 144 heads",
        shape="5 % outliers",
        n=40,
        truth="limit",
        judge=ratio("5 % outliers", 40),
        promised=False,
    )


CELLS = tuple(_cells())

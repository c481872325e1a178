"""C36 and C13: differences of faithfulness between sets of heads, and between groups of prompts."""

import numpy as np

from assay.analyses.calibration.invariance import measurement_invariance
from assay.analyses.calibration.validity import incremental_validity
from assay.core.measurement import Verdict
from limits.cells import PROMISED, Cell, Judge, draw, seed_of


def _c36(shape: str, n: int, delta: float, spread: float, part: str) -> Judge:
    """The circuit keeps `delta` more of the margin; the margin itself varies by `spread` of its mean."""

    def judge(rng: np.random.Generator) -> Verdict:
        full = 3 * (1 + spread * draw(shape, rng, n))
        base = 0.5 * full + draw(shape, rng, n)
        found = incremental_validity(full, base + delta * full + draw(shape, rng, n), base)
        return found.sub_results[part] if part else found

    return judge


def _c36_cells() -> list[Cell]:
    cells = []
    for shape in (*PROMISED, "5 % outliers"):
        for part, limit in (("", 0.0), ("substantial", 0.1)):
            for n, spread in ((20, 0.3), (40, 1.0), (100, 0.3), (1000, 1.0), (20, 1.5)):
                if shape == "5 % outliers" and n != 40:
                    continue
                cells.append(
                    Cell(
                        gate="C36",
                        part=part,
                        world=f"delta {limit:g}, the limit, margins vary by {spread:g}",
                        shape=shape,
                        n=n,
                        truth="limit",
                        judge=_c36(shape, n, limit, spread, part),
                        promised=shape in PROMISED,
                    )
                )
        cells.append(
            Cell(
                gate="C36",
                world="delta 0.03",
                shape=shape,
                n=40,
                truth="pass",
                judge=_c36(shape, 40, 0.03, 0.3, ""),
                promised=shape in PROMISED,
            )
        )
    return cells


LAYOUTS = {
    "two groups": ((0.5, 0.5), (-1.0, 1.0)),
    "three groups": ((1 / 3, 1 / 3, 1 / 3), (-1.0, 0.0, 1.0)),
    "a small group apart": ((0.2, 0.8), (0.8, -0.2)),
    "eight groups, one apart": ((0.125,) * 8, (7.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0)),
}


def _c13(shape: str, n: int, layout: str, eta_squared: float) -> Judge:
    """Faithfulness 0.8 with spread 0.2 within groups, whose means make that share of the variance."""
    shares, means = (np.array(each) for each in LAYOUTS[layout])
    means = means - shares @ means
    means = means / np.sqrt(shares @ means**2) * np.sqrt(eta_squared / (1 - eta_squared))
    groups = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(n) + 0.5) / n)

    def judge(rng: np.random.Generator) -> Verdict:
        full = 3 + 0.5 * rng.normal(size=n)
        values = 0.2 * (means[groups] + draw(shape, rng, n))
        return measurement_invariance(full, 0.8 * full + 3 * values, groups, n_boot=1, seed=seed_of(rng))

    return judge


def _c13_cells() -> list[Cell]:
    cells = []
    worlds = (
        (40, "two groups"),
        (40, "three groups"),
        (100, "a small group apart"),
        (100, "eight groups, one apart"),
        (300, "three groups"),
        (1000, "a small group apart"),
    )
    for shape in (*PROMISED, "5 % outliers"):
        for n, layout in worlds:
            if shape == "5 % outliers" and n != 300:
                continue
            cells.append(
                Cell(
                    gate="C13",
                    world=f"eta² 0.06, the limit, {layout}",
                    shape=shape,
                    n=n,
                    truth="limit",
                    judge=_c13(shape, n, layout, 0.06),
                    promised=shape in PROMISED,
                )
            )
        for eta, truth in ((0.0, "pass"), (0.08, "fail")):
            cells.append(
                Cell(
                    gate="C13",
                    world=f"eta² {eta:g}, three groups",
                    shape=shape,
                    n=60,
                    truth=truth,
                    judge=_c13(shape, 60, "three groups", eta),
                    promised=shape in PROMISED,
                )
            )
    return cells


CELLS: tuple[Cell, ...] = (*_c36_cells(), *_c13_cells())

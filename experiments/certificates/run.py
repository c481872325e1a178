"""Does the stated probability of a percentile certificate hold? Coverage in simulation.

Samples whose percentile is known are drawn again and again, certified by every method, and the share of
bounds at or above the true percentile is set against the stated probability, with a 99.9 % Clopper-Pearson
interval. Independent values: continuous and discrete. Crossed samples (every clean with every corrupted
input): noise of the pair only, an effect of the clean input only, effects of both, and the latter rounded
down to steps. `as if independent` is the mistake of taking crossed pairs for independent draws.

Writes coverage.json and coverage.png beside this file; twenty minutes on one core.

    python experiments/certificates/run.py [--trials 3000]
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import special

from assay.core.random import stream
from assay.stats import certificate, clopper_pearson


DELTA, LEVEL = 0.95, 0.999
INDEPENDENT = "order-statistic"
CROSSED = ("ustat", "published")
SIZES, SHARES = (60, 300, 1000, 3000), (0.9, 0.95, 0.99, 0.999)
# Inputs on the two sides, and the trials of that size as a share of those asked for.
SHAPES = (((100, 100), 1.0), ((100, 300), 0.5), ((300, 300), 0.5), ((1000, 1000), 0.1))
# Weights of the effects of the clean input, of the corrupted one, and of the pair itself.
EFFECTS = {
    "pair only": (0.0, 0.0, 1.0),
    "clean input only": (1.0, 0.0, 0.0),
    "both inputs": (1.0, 1.0, 0.3),
    "both inputs, in steps": (1.0, 1.0, 0.3),
}
Draw = Callable[[np.random.Generator], np.ndarray]


def crossed(effects: tuple[float, float, float], shape: tuple[int, int], *, steps: bool) -> Draw:
    rows, columns, noise = effects

    def draw(rng: np.random.Generator) -> np.ndarray:
        values = np.zeros(shape)
        if rows:
            values = values + rows * rng.normal(size=(shape[0], 1))
        if columns:
            values = values + columns * rng.normal(size=(1, shape[1]))
        if noise:
            values = values + noise * rng.normal(size=shape)
        return np.floor(2 * values) if steps else values

    return draw


def quantile(effects: tuple[float, float, float], p: float, *, steps: bool) -> float:
    """x_p of the sum of the effects; a step function that never falls maps quantiles to quantiles."""
    value = math.hypot(*effects) * float(special.ndtri(p))
    return float(math.floor(2 * value)) if steps else value


def coverage(
    draw: Draw, truths: dict[float, float], methods: tuple[str, ...], trials: int, name: str, **options: Any
) -> Iterator[dict[str, Any]]:
    """One record per percentile and method that gives a bound on samples of this kind."""
    rng = stream(0, name)
    held: dict[tuple[float, str], int] = {}
    stated: dict[tuple[float, str], float] = {}
    for _ in range(trials):
        values = draw(rng)
        for p, truth in truths.items():
            for method in methods:
                naive = method == "as if independent"
                made = certificate(
                    values.ravel() if naive else values,
                    p,
                    delta=DELTA,
                    method=INDEPENDENT if naive else method,
                    **options,
                )
                if made.bound is not None:
                    stated[p, method] = made.confidence
                    held[p, method] = held.get((p, method), 0) + (made.bound >= truth)
    for (p, method), confidence in stated.items():
        interval = clopper_pearson(held[p, method], trials, level=LEVEL)
        yield {
            "percentile": p,
            "method": method,
            "stated": round(confidence, 5),
            "observed": round(held[p, method] / trials, 5),
            "low": round(interval.low, 5),
            "high": round(interval.high, 5),
            "trials": trials,
            "holds": bool(interval.high >= confidence),
        }


def simulate(trials: int) -> Iterator[dict[str, Any]]:
    draws: dict[str, tuple[Callable[[np.random.Generator, int], np.ndarray], Callable[[float], float]]] = {
        "independent, continuous": (lambda rng, n: rng.exponential(size=n), lambda p: -math.log1p(-p)),
        "independent, discrete": (
            lambda rng, n: rng.geometric(0.3, size=n).astype(float),
            lambda p: float(math.ceil(math.log1p(-p) / math.log1p(-0.3))),
        ),
    }
    for kind, (make, truth) in draws.items():
        for n in SIZES:
            found = coverage(
                lambda rng, make=make, n=n: make(rng, n),  # type: ignore[misc]
                {p: truth(p) for p in SHARES},
                (INDEPENDENT,),
                trials,
                f"{kind} {n}",
            )
            yield from ({"sample": kind, "n": [n], **each} for each in found)
    for kind, effects in EFFECTS.items():
        steps = kind.endswith("steps")
        for shape, part in SHAPES:
            methods = (*CROSSED, "as if independent") if shape == (100, 100) else CROSSED
            found = coverage(
                crossed(effects, shape, steps=steps),
                {p: quantile(effects, p, steps=steps) for p in SHARES if p < 0.999},
                methods,
                int(part * trials),
                f"{kind} {shape}",
            )
            yield from ({"sample": f"crossed, {kind}", "n": [*shape], **each} for each in found)
    # The smallest case in which the published rule claims too much: failure 1/4 stated, 5/16 true.
    found = coverage(
        crossed((0.0, 0.0, 1.0), (2, 2), steps=False),
        {0.5: 0.0},
        ("ustat", "published"),
        5 * trials,
        "two",
        epsilon=0.01,
    )
    yield from ({"sample": "crossed, pair only", "n": [2, 2], **each} for each in found)


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """A panel per kind of sample, a row per method; what is stated against what was seen."""
    kinds = list(dict.fromkeys(each["sample"] for each in records))
    colours = {"order-statistic": "#0b67a8", "ustat": "#0b67a8"}
    figure = Figure(figsize=(10.5, 7.2), layout="constrained")
    for place, kind in enumerate(kinds, start=1):
        ax = figure.add_subplot(2, 3, place)
        shown = [each for each in records if each["sample"] == kind and each["n"] != [2, 2]]
        methods = list(dict.fromkeys(each["method"] for each in shown))
        for row, method in enumerate(methods):
            mine = [each for each in shown if each["method"] == method]
            for offset, each in zip(np.linspace(-0.36, 0.36, len(mine)), mine, strict=True):
                colour = colours.get(method, "#c5501c")
                ax.plot([each["low"], each["high"]], [row + offset] * 2, color=colour, linewidth=1.4)
                ax.plot(each["observed"], row + offset, "o", color=colour, markersize=3)
                ax.plot(each["stated"], row + offset, "|", color="#22262b", markersize=6)
        ax.axvline(DELTA, color="#666d76", linewidth=0.7, linestyle=(0, (1, 2.5)))
        ax.set_yticks(range(len(methods)), methods, fontsize=8)
        ax.set_ylim(len(methods) - 0.4, -0.6)
        ax.set_title(kind, fontsize=9, loc="left")
        ax.tick_params(labelsize=8)
        if place > 3:
            ax.set_xlabel("share of bounds that hold", fontsize=8)
    figure.suptitle(
        "Ticks: stated probability. Points: observed, with 99.9 % intervals; within a method from small to "
        "large samples.\nBlue: a theorem. Orange: an approximation, or a mistake.",
        fontsize=9,
        ha="left",
        x=0.01,
    )
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3000)
    trials = parser.parse_args().trials
    records = []
    for each in simulate(trials):
        records.append(each)
        print(json.dumps(each), flush=True)
    sound = [each for each in records if each["method"] in (INDEPENDENT, "ustat")]
    print(f"{sum(each['holds'] for each in sound)} of {len(sound)} sound certificates hold")
    lines = ",\n  ".join(json.dumps(each) for each in records)
    text = f'{{\n "delta": {DELTA},\n "interval_level": {LEVEL},\n "records": [\n  {lines}\n ]\n}}\n'
    here = Path(__file__).parent
    (here / "coverage.json").write_text(text)
    plot(records, here / "coverage.png")


if __name__ == "__main__":
    main()

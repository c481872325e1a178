"""How often the rule of `assay rank --until stable` drops the best model, and how many images a pick takes.

Worlds of 2 and 12 models whose metric is a mean over images (as confidence) or a depth bias (the log ratio
of two sums of magnitudes of mean scores). The noise of an image is shared by the models in part; it is
normal, Student with 3 degrees of freedom, log-normal (skewed), or contaminated (1 image of 50 with ten times
the noise). Gaps between the best model and the next are 0, small (0.1 standard deviations of the difference
of two images) and larger; at a gap of 0 every drop among the best counts as wrong. Truth is the value of an
endless number of images. Rule and statistic are those of the product (`assay.stats.elimination`), with 200
multinomial resamples.

Writes results.json beside this file after every cell, and goes on from the cells that are there; about ten
minutes on one core.

    python experiments/stable_pick/run.py [--worlds 400]
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from assay.stats import clopper_pearson
from assay.stats.elimination import Candidates, eliminate, look_sizes
from assay.stats.intervals import draw_counts


HERE = Path(__file__).parent
DRAWS, IMAGES, SOURCES = 200, 1024, 8
SHARED = 0.5  # share of the variance of an image's noise that all models have in common
GAPS = (0.0, 0.1, 0.3)
MODELS = (2, 12)
CELL = ("metric", "noise", "models", "gap")
Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _contaminated(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape) * np.where(rng.random(shape) < 0.02, 10.0, 1.0) / np.sqrt(0.98 + 2.0)


NOISES: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "student-3": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3.0),
    "log-normal": lambda rng, shape: (rng.lognormal(size=shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e),
    "contaminated": _contaminated,
}


def mixed(rng: np.random.Generator, noise: Noise, models: int, *rest: int) -> np.ndarray:
    """Noise of variance 1 of every image and model, half of it common: `[images, models, ...]`."""
    common = noise(rng, (IMAGES, 1, *rest))
    return np.sqrt(SHARED) * common + np.sqrt(1 - SHARED) * noise(rng, (IMAGES, models, *rest))


def mean_world(
    rng: np.random.Generator, noise: Noise, models: int, gap: float
) -> tuple[np.ndarray, Callable[[np.ndarray, int], np.ndarray]]:
    """Truth of each model, and the metric from weights of the images: a mean."""
    truth = np.zeros(models)
    truth[0] = gap
    x = truth + mixed(rng, noise, models)
    return truth, lambda weights, n: weights @ x[:n] / n


def bias_world(
    rng: np.random.Generator, noise: Noise, models: int, gap: float
) -> tuple[np.ndarray, Callable[[np.ndarray, int], np.ndarray]]:
    """The same with a depth bias: half of the sources of a model are deep; noise is 8 times the mean score.

    Models differ in how noisy their shallow scores are: so do the errors that magnitudes bring in.
    """
    truth = np.zeros(models)
    truth[0] = gap
    means = np.ones((models, SOURCES))
    means[:, : SOURCES // 2] *= np.exp(truth)[:, None]
    spread = np.full((models, SOURCES), 8.0)
    spread[:, SOURCES // 2 :] *= np.linspace(0.5, 1.5, models)[:, None]
    x = means + spread * mixed(rng, noise, models, SOURCES)
    deep = np.arange(SOURCES) < SOURCES // 2

    def metric(weights: np.ndarray, n: int) -> np.ndarray:
        sums = np.abs(weights @ x[:n].reshape(n, -1) / n).reshape(len(weights), models, SOURCES)
        return np.log(sums[..., deep].sum(-1) / sums[..., ~deep].sum(-1))

    return truth, metric


WORLDS = {"mean": mean_world, "depth bias": bias_world}


def one(kind: str, noise: Noise, models: int, gap: float, seed: int) -> tuple[bool, bool, int]:
    """Whether the best was dropped, whether the pick was decided, and the images it took."""
    rng = np.random.default_rng([seed, models, round(100 * gap)])
    truth, metric = WORLDS[kind](rng, noise, models, gap)

    def measure(n: int, remaining: tuple[int, ...]) -> Candidates:
        counts = draw_counts(n, DRAWS, rng)
        values, draws = metric(np.ones((1, n)), n)[0], metric(counts, n)
        return Candidates(values=values[list(remaining)], draws=draws[:, list(remaining)])

    looks = eliminate(models, look_sizes(IMAGES), measure)
    best = set(np.flatnonzero(truth == truth.max()).tolist())
    dropped = {each for look in looks for each in look.dropped}
    return bool(best & dropped), len(looks[-1].left) == 1, looks[-1].n


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=400)
    options = parser.parse_args()
    path = HERE / "results.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    done = {tuple(row[name] for name in CELL) for row in rows}
    for kind in WORLDS:
        for name, noise in NOISES.items():
            for models in MODELS:
                for gap in GAPS:
                    if (kind, name, models, gap) in done:
                        continue
                    runs = [one(kind, noise, models, gap, seed) for seed in range(options.worlds)]
                    wrong, decided, images = (np.array(each) for each in zip(*runs, strict=True))
                    interval = clopper_pearson(int(wrong.sum()), len(wrong))
                    rows.append(
                        {
                            "metric": kind,
                            "noise": name,
                            "models": models,
                            "gap": gap,
                            "best dropped": float(wrong.mean()),
                            "interval": [round(interval.low, 4), round(interval.high, 4)],
                            "decided": float(decided.mean()),
                            "median images": float(np.median(images)),
                        }
                    )
                    print(json.dumps(rows[-1]), flush=True)
                    facts = {"worlds of each": options.worlds, "images": IMAGES, "draws": DRAWS}
                    text = json.dumps({**facts, "rows": rows}, indent=1) + "\n"
                    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""How often intervals from resamples hold what they are for; writes coverage.json beside this file.

Two worlds. In the first, scores of single images are a mean plus noise: normal, or with a scale of its own
per image, factors that all edges share and heavy tails (`shared`). The second model of a pair
differs from the mean by an effect of 0, 5 or 50 % per edge. In the second, logits and
features of images come from classes, and the metrics of `assay rank` that read no circuit are computed of
them.

`coverage` is that of the mean of the number over sets of so many images, taken over all sets of a setting;
`limit` that of the number at infinitely many images. Beside the intervals of the package stand percentiles of
the same resamples, plain (`percentile`) and corrected for bias (`bc`). `error` is the root mean square of the
standard errors over the standard deviation of the number.

    python experiments/resampled_intervals/coverage.py [SETS]
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy import special

from assay.analyses.generalization import resampled_depth_bias
from assay.analyses.generalization.baselines import once, performance_of
from assay.analyses.generalization.inspection import Inspection, answers_of
from assay.analyses.generalization.metrics import METRICS as TABLE
from assay.analyses.generalization.metrics import Weights, estimate
from assay.analyses.generalization.picking import interval_of
from assay.analyses.generalization.spectra import SpectrumSums
from assay.circuits import EdgeScores
from assay.discovery.edges.sums import WeightedSums
from assay.graph import build_graph
from assay.stats import ResampledValue, poisson_weights


GRAPH = build_graph(4, 3)
EDGES, RESAMPLES, SIZES = GRAPH.n_edges, 200, (30, 100, 300, 1000)
RATIOS, EFFECTS, KINDS = (1.0, 3.0, 10.0), (0.0, 0.05, 0.5), ("normal", "shared")
TARGETS = ("output", "deep", "global")
CLASSES, WIDTH = 5, 32
METRICS = ("average-confidence", "negative-entropy", "energy", "rankme", "alpha-req", "atc", "doc")
OUT = Path(__file__).with_name("coverage.json")


class Tally:
    """What a number was in each set of images, and its intervals."""

    def __init__(self, limit: float = np.nan) -> None:
        self.limit = limit
        self.rows: list[list[float]] = []

    def add(self, value: float, low: float, high: float, draws: np.ndarray) -> None:
        defined = draws[np.isfinite(draws)]
        below = ((defined < value).mean() + (defined <= value).mean()) / 2
        tails = np.array([0.025, 0.975])
        corrected = special.ndtr(2 * special.ndtri(below) + special.ndtri(tails)) if 0 < below < 1 else tails
        self.rows.append([value, low, high, *np.quantile(defined, [*tails, *corrected]), defined.std(ddof=1)])

    def facts(self) -> dict[str, float]:
        value, low, high, *percentiles, corrected_low, corrected_high, error = np.array(self.rows).T
        mean = value.mean()
        found = {
            "coverage": np.mean((low <= mean) & (mean <= high)),
            "error": np.sqrt((error**2).mean()) / value.std(ddof=1),
        }
        found["percentile"] = np.mean((percentiles[0] <= mean) & (mean <= percentiles[1]))
        found["bc"] = np.mean((corrected_low <= mean) & (mean <= corrected_high))
        if np.isfinite(self.limit):
            found["limit"] = np.mean((low <= self.limit) & (self.limit <= high))
            found["bc limit"] = np.mean((corrected_low <= self.limit) & (self.limit <= corrected_high))
        return {name: round(float(each), 4) for name, each in found.items()}


def scores(values: np.ndarray, drawn: torch.Tensor | None = None, n: int = 0) -> EdgeScores:
    matrix = torch.zeros(GRAPH.valid.shape, dtype=torch.float64)
    matrix[GRAPH.valid] = torch.from_numpy(values)
    return EdgeScores(GRAPH, matrix, resampled=drawn, details={"n": n})


def noise(rng: np.random.Generator, n: int, kind: str, factors: np.ndarray) -> np.ndarray:
    own = rng.standard_normal((n, EDGES), dtype=np.float32)
    if kind == "normal":
        return own
    own /= np.sqrt(rng.chisquare(5, (n, EDGES)) / 3).astype(np.float32)
    scale = np.exp(0.5 * rng.standard_normal((n, 1)) - 0.25)
    return (scale * (0.8 * own + 0.6 * rng.standard_normal((n, 4)) @ factors)).astype(np.float32)


def departures(each: np.ndarray, first: int) -> tuple[np.ndarray, torch.Tensor]:
    """The mean of the noise of images `first`, ..., and how far each resample departs from it."""
    table = torch.from_numpy(each)
    sums = WeightedSums.of(table, torch.arange(first, first + len(each)), RESAMPLES, 0)
    mean = table.double().mean(0)
    return mean.numpy(), sums.means(table.double().sum(0), len(each)).double() - mean


def of_circuits(n: int, kind: str, sets: int) -> list[dict[str, object]]:
    rng = np.random.default_rng([n, len(kind)])
    mean = np.exp(rng.standard_normal(EDGES)) * rng.choice([-1, 1], EDGES)
    mean /= np.abs(mean).mean()
    others, _ = (  # the second draw keeps the committed numbers
        [mean * np.exp(effect * rng.standard_normal(EDGES)) for effect in EFFECTS] for _ in range(2)
    )
    factors = rng.standard_normal((4, EDGES)) / 2
    tallies: dict[tuple[float, str], Tally] = {}

    def note(ratio: float, name: str, found: ResampledValue, exact: ResampledValue) -> None:
        ends = found.interval()
        tally = tallies.setdefault((ratio, name), Tally(exact.value))
        tally.add(found.value, ends.low, ends.high, found.draws)

    def biases(values: np.ndarray, drawn: torch.Tensor) -> dict[str, ResampledValue]:
        made = scores(values, drawn, n)
        return {targets: resampled_depth_bias(made, targets=targets) for targets in TARGETS}

    still = torch.zeros(RESAMPLES, EDGES, dtype=torch.float64)
    exact = biases(mean, still + torch.from_numpy(mean))
    exact_others = [biases(each, still + torch.from_numpy(each)) for each in others]
    for place in range(sets):
        own = noise(rng, n, kind, factors)
        second = np.float32(np.sqrt(0.5)) * (own + noise(rng, n, kind, factors))
        (centre, away), (centre_2, away_2) = (departures(each, place * n) for each in (own, second))
        for ratio in RATIOS:
            values = mean + ratio * centre
            drawn = torch.from_numpy(values) + ratio * away
            found = biases(values, drawn)
            for targets in TARGETS:
                note(ratio, f"ddb {targets}", found[targets], exact[targets])
            for at, effect in enumerate(EFFECTS):
                values_2 = others[at] + ratio * centre_2
                other = biases(values_2, torch.from_numpy(values_2) + ratio * away_2)
                for targets in TARGETS:
                    difference = exact[targets] - exact_others[at][targets]
                    note(
                        ratio, f"ddb {targets}, pair {effect:g}", found[targets] - other[targets], difference
                    )
    facts = {"n": n, "noise": kind, "sets": sets}
    return [{**facts, "ratio": r, "number": name, **each.facts()} for (r, name), each in tallies.items()]


def seen(rng: np.random.Generator, n: int, centres: np.ndarray, head: np.ndarray, blur: float) -> Inspection:
    labels = rng.integers(0, CLASSES, n)
    features = centres[labels] + blur * rng.standard_normal((n, WIDTH))
    spectra = SpectrumSums(n, 0)
    spectra.add(np.arange(n), features)
    return Inspection(
        graph=GRAPH,
        n_classes=CLASSES,
        **answers_of(features @ head),
        labels=labels,
        ids=np.arange(n),
        classes=None,
        spectra=spectra.spectra(),
    )


def of_outputs(n: int, sets: int) -> list[dict[str, object]]:
    rng = np.random.default_rng([n, 1])
    centres = rng.standard_normal((CLASSES, WIDTH))
    head = 0.5 * centres.T
    tallies: dict[str, Tally] = {}
    for place in range(sets):
        target, known = (seen(rng, n, centres, head, blur) for blur in (4.0, 2.5))
        counts = poisson_weights(np.arange(2 * n) + 2 * n * place, RESAMPLES).astype(np.float64)
        first, second = (np.concatenate([once(n), each]) for each in (counts[:, :n], counts[:, n:]))
        weights = Weights(target=first, known=second)
        found = {key: estimate(TABLE[key], [(target, known)], weights).rows[:, 0] for key in METRICS}
        found["id-accuracy"] = performance_of(target.predictions, target.labels, weights.target)
        for key, numbers in found.items():
            if not np.isfinite(numbers).all():  # alpha-ReQ needs 20 eigenvalues beyond the 10th
                continue
            ends = interval_of(numbers, n, TABLE[key])
            tallies.setdefault(key, Tally()).add(numbers[0], ends.low, ends.high, numbers[1:])
    names = {"id-accuracy": "accuracy"}
    facts = {"n": n, "sets": sets}
    return [{**facts, "number": names.get(key, key), **each.facts()} for key, each in tallies.items()]


def main() -> None:
    torch.set_num_threads(1)
    sets, rows, started = int(sys.argv[1]) if len(sys.argv) > 1 else 300, [], time.process_time()
    for n in SIZES:
        rows += of_outputs(n, sets)
        for kind in KINDS:
            rows += of_circuits(n, kind, sets)
            print(n, kind, round(time.process_time() - started), "s", flush=True)
        OUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()

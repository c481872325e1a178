"""Coverage of the intervals of a ranking before and after they came from sums, where their widths differ.

Worlds draw 400 images, with replacement, of 2,000 drawn sketches whose scores and outputs are known for a few
models of the embedded zoo, and intervals are made from the 400 alone:

- of the depth bias of the output: 1,000 multinomial resamples and percentiles corrected for bias (`before`);
  200 Poisson resamples with the same percentiles (`poisson`), or with Student's quantile times their spread
  (`now`);
- of COT: leaving out each of twenty groups of images, then of labels, with percentiles (`before`); the prices
  of its linear programme with the same percentiles (`prices`), or with Student's quantile (`now`).

Two truths: the number on all 2,000 (`limit`), and its mean over the worlds (`mean`), which is what an
interval from 400 images is for. Writes `coverage.json`; a minute and a half for each model on one core.

    python experiments/ranking_intervals/coverage.py [--worlds 200] [--models 2]
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special
from scipy import stats as scipy_stats

from assay.analyses.generalization.baselines import matched, mean_of
from assay.analyses.generalization.batches import outputs_of
from assay.analyses.generalization.dependency import DepthRule
from assay.analyses.generalization.predictor import group_shifts, pulls_of
from assay.analyses.generalization.spectra import image_groups
from assay.core.random import stream
from assay.discovery.edges import output_scores
from assay.discovery.edges.sums import WeightedSums
from assay.stats import poisson_weights
from assay.stats.intervals import draw_counts
from assay.stats.resampled import ResampledValue
from assay.tasks import EvalTransform, draw_shapes
from assay.zoo import Zoo


POPULATION, IMAGES, LEVEL = 2_000, 400, 0.95
Intervals = dict[str, tuple[float, float]]


def percentiles(value: float, draws: np.ndarray) -> tuple[float, float]:
    """Percentiles of the replicates, moved by how many of them lie below the value (BC)."""
    tails = np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    below = ((draws < value).mean() + (draws <= value).mean()) / 2
    if 0 < below < 1:
        tails = special.ndtr(2 * special.ndtri(below) + special.ndtri(tails))
    low, high = np.quantile(draws, tails)
    return float(low), float(high)


def student(value: float, draws: np.ndarray, n: int) -> tuple[float, float]:
    """The interval of a ranking."""
    found = ResampledValue(value=value, draws=draws, n=n).interval(level=LEVEL)
    return found.low, found.high


def depth_biases(model: Any, images: Any) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Scores of the edges into the logits on every image, and the depth bias of rows of mean scores."""
    task = images.task(EvalTransform.for_model(model))
    scores = output_scores(model, task, steps=5, per_example=True).per_example.double().numpy()
    layers = model.graph.source_layer.numpy()
    deep, shallow = (
        (layers >= first) & (layers <= last) for first, last in DepthRule().layers(model.graph.n_layers)[::-1]
    )
    return scores, lambda means: np.log(np.abs(means)[:, deep].sum(1) / np.abs(means)[:, shallow].sum(1))


def of_depth_bias(
    scores: np.ndarray, bias: Callable[[np.ndarray], np.ndarray], world: int
) -> tuple[float, Intervals]:
    ids, n = np.arange(len(scores)) + world * len(scores), len(scores)
    value = float(bias(scores.mean(0)[None])[0])
    multinomial = draw_counts(n, 1000, np.random.default_rng([1, world])) @ scores / n
    sums = WeightedSums.of(torch.from_numpy(scores), torch.from_numpy(ids), 200, 0)
    scaled = sums.means(torch.from_numpy(scores.sum(0)), n).double().numpy()
    return value, {
        "before": percentiles(value, bias(multinomial)),
        "poisson": percentiles(value, bias(scaled)),
        "now": student(value, bias(scaled), n),
    }


def of_transport(logits: np.ndarray, labels: np.ndarray, world: int) -> tuple[float, Intervals]:
    n, m = len(logits), len(labels)
    match = matched(labels, logits)
    old, new = {}, {}
    for name, size, seed in (("images", n, 1), ("labels", m, 2)):
        old[name] = draw_counts(size, 1000, np.random.default_rng([seed, world]))
        new[name] = poisson_weights(np.arange(size) + (seed + 2 * world) * 10_000, 200).astype(np.float64)
    images = [matched(labels, np.delete(logits, group, axis=0)).gain for group in image_groups(n, 0)]
    known = [matched(np.delete(labels, group), logits).gain for group in image_groups(m, 0)]
    groups = pulls_of(np.array(images)) @ group_shifts(old["images"], 0)
    groups = match.gain + groups + pulls_of(np.array(known)) @ group_shifts(old["labels"], 0)
    prices = mean_of(match.of_examples, new["images"])
    prices = prices + mean_of(match.of_classes[labels], new["labels"])
    return match.gain, {
        "before": percentiles(match.gain, groups),
        "prices": percentiles(match.gain, prices),
        "now": student(match.gain, prices, n),
    }


def summary(limit: float, worlds: list[tuple[float, Intervals]]) -> dict[str, Any]:
    """Share of the intervals that hold each truth, with its own interval, and their mean width."""
    mean = float(np.mean([value for value, _ in worlds]))
    found: dict[str, Any] = {"limit": limit, "mean": mean, "worlds": len(worlds)}
    found["width of 95 % of the worlds"] = float(
        np.diff(np.quantile([v for v, _ in worlds], [0.025, 0.975]))[0]
    )
    for name in worlds[0][1]:
        ends = np.array([intervals[name] for _, intervals in worlds])
        found[name] = {"mean width": float(np.diff(ends).mean())}
        for truth, number in (("limit", limit), ("mean", mean)):
            hits = int(((ends[:, 0] <= number) & (number <= ends[:, 1])).sum())
            exact = scipy_stats.binomtest(hits, len(ends)).proportion_ci(0.95)
            found[name][truth] = {"coverage": hits / len(ends), "low": exact.low, "high": exact.high}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--models", type=int, default=2)
    options = parser.parse_args()
    zoo = Zoo.embedded()
    images = draw_shapes("sketch", POPULATION, seed=0, start=20_000)
    known = draw_shapes("flat", POPULATION, seed=0, start=1_000_000).labels
    drawn = stream(0, "ranking-intervals").integers(0, POPULATION, (options.worlds, 2, IMAGES))
    results: dict[str, Any] = {"level": LEVEL, "population": POPULATION, "images": IMAGES, "models": {}}
    for key in zoo.keys[:: len(zoo.keys) // options.models][: options.models]:
        model = zoo.load(key)
        scores, bias = depth_biases(model, images)
        logits = outputs_of(model, images.task(EvalTransform.for_model(model))).logits.numpy()
        worlds = list(enumerate(drawn))
        results["models"][key] = {
            "ddb-output": summary(
                float(bias(scores.mean(0)[None])[0]),
                [of_depth_bias(scores[rows], bias, world) for world, (rows, _) in worlds],
            ),
            "cot": summary(
                matched(known, logits).gain,
                [
                    of_transport(logits[rows], known[labels], w)
                    for w, (rows, labels) in worlds[: options.worlds // 8]
                ],
            ),
        }
        text = json.dumps(results, indent=1)
        (Path(__file__).parent / "coverage.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

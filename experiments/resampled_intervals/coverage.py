"""How often intervals from resamples hold what they are for; writes coverage.json beside this file.

Scores of single images are a mean plus noise: normal, or with a scale of its own per image, factors that all
edges share and heavy tails (`shared`). The second model of a pair differs from the first by 5 %. What an
interval is for is the mean reading of so many images, taken over all trials of a setting.

    python experiments/resampled_intervals/coverage.py [TRIALS]
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from assay.analyses.generalization import resampled_depth_bias, resampled_shift
from assay.circuits import EdgeScores
from assay.discovery.edges.sums import WeightedSums
from assay.graph import build_graph
from assay.stats import ResampledValue


GRAPH = build_graph(4, 3)
EDGES, RESAMPLES, NEAR = GRAPH.n_edges, 200, 0.05
TARGETS, DISTANCES = ("output", "deep", "global"), ("spearman", "cosine", "l2")
OUT = Path(__file__).with_name("coverage.json")


def scores(values: np.ndarray, each: np.ndarray | None = None) -> EdgeScores:
    matrix = torch.zeros(GRAPH.valid.shape, dtype=torch.float64)
    matrix[GRAPH.valid] = torch.from_numpy(values)
    if each is None:
        return EdgeScores(GRAPH, matrix)
    table = torch.from_numpy(each)
    sums = WeightedSums.of(table.float(), torch.arange(len(each)), RESAMPLES, 0)
    return EdgeScores(GRAPH, matrix, resampled=sums.means(table.sum(0), len(each)), details={"n": len(each)})


def noise(rng: np.random.Generator, n: int, kind: str, factors: np.ndarray) -> np.ndarray:
    if kind == "normal":
        return rng.standard_normal((n, EDGES))
    own = rng.standard_t(5, (n, EDGES)) / np.sqrt(5 / 3)
    scale = np.exp(0.5 * rng.standard_normal((n, 1)) - 0.25)
    return scale * (0.8 * own + 0.6 * rng.standard_normal((n, 4)) @ factors)


def readings(known: EdgeScores, first: EdgeScores, second: EdgeScores) -> dict[str, ResampledValue]:
    found: dict[str, ResampledValue] = {}
    for name, of in [(f"ddb {t}", lambda s, t=t: resampled_depth_bias(s, targets=t)) for t in TARGETS] + [
        (f"css {d}", lambda s, d=d: resampled_shift(known, s, distance=d)) for d in DISTANCES
    ]:
        found[name] = of(first)
        found[f"{name}, paired"] = found[name] - of(second)
    return found


def setting(n: int, ratio: float, kind: str, trials: int) -> list[dict[str, object]]:
    rng = np.random.default_rng([n, int(ratio), len(kind)])
    mean = np.exp(rng.standard_normal(EDGES)) * rng.choice([-1, 1], EDGES)
    mean /= np.abs(mean).mean()
    other = mean * np.exp(NEAR * rng.standard_normal(EDGES))
    known = scores(mean * np.exp(NEAR * rng.standard_normal(EDGES)))
    factors = rng.standard_normal((4, EDGES)) / 2
    values: dict[str, list[tuple[float, float]]] = {}
    for _ in range(trials):
        own = noise(rng, n, kind, factors)
        first = mean + ratio * own
        second = other + ratio * np.sqrt(0.5) * (own + noise(rng, n, kind, factors))
        pair = (scores(each.mean(0), each) for each in (first, second))
        for name, found in readings(known, *pair).items():
            interval = found.interval()
            values.setdefault(name, []).append((found.value, (interval.high - interval.low) / 2))
    rows = []
    for name, listed in values.items():
        value, margin = np.array(listed).T
        covered = np.abs(value - value.mean()) <= margin
        facts = {"n": n, "ratio": ratio, "noise": kind, "number": name, "trials": trials}
        rows.append(facts | {"coverage": round(float(covered.mean()), 4)})
    return rows


def main() -> None:
    trials, rows = int(sys.argv[1]) if len(sys.argv) > 1 else 400, []
    for n in (30, 100, 1000):
        for kind in ("normal", "shared"):
            for ratio in (1.0, 3.0, 10.0):
                rows += setting(n, ratio, kind, trials if n < 1000 else trials // 2)
                OUT.write_text(json.dumps(rows, indent=1) + "\n")
                print(n, kind, ratio, [row["coverage"] for row in rows[-12:]], flush=True)


if __name__ == "__main__":
    main()

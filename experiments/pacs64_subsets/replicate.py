"""The authors' published subsets of PACS on our models, and their overlap with ours.

python experiments/pacs64_subsets/replicate.py --published PACS.npz
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from analyse import SEED, read, write
from images import RESULTS
from published import load_published
from scipy import stats

from assay.analyses.subsets import CorrectnessData, correlate, fit_line
from assay.analyses.subsets.coherence import example_correlations
from assay.analyses.subsets.copies import unit_codes
from assay.analyses.subsets.line import line_correlations
from assay.analyses.subsets.overlap import expected_jaccard
from assay.core.random import stream
from assay.stats import auroc


DRAWS = 1000
RESAMPLES = 1000
COLLAPSED = 0.9  # share of one class among the answers to sketches from which a model counts as collapsed
KEPT = (10, 20, 50, 100, 250, 500, 750, 1000)  # sizes whose examples are committed


def alike(data: CorrectnessData, examples: np.ndarray, counts: np.ndarray, name: str) -> np.ndarray:
    """R on random subsets with `counts` examples of each class (one class for all: any examples)."""
    assert data.labels is not None
    pools = (
        [np.flatnonzero(data.labels == code) for code in range(len(counts))]
        if len(counts) > 1
        else [np.arange(data.n_examples)]
    )
    rng = stream(SEED, f"alike/{name}/{len(examples)}")
    masks = np.zeros((DRAWS, data.n_examples), dtype=np.float32)
    for mask in masks:
        for pool, count in zip(pools, counts, strict=True):
            mask[rng.choice(pool, count, replace=False)] = 1
    # Counts below 2^24 are exact in single precision.
    right = masks @ data.correct.astype(np.float32).T
    return line_correlations(data.id_accuracy, right.astype(np.float64) / len(examples))


def band(values: np.ndarray, observed: float) -> dict[str, Any]:
    """Mean and 95 % of random subsets, and the share of them at or below the observed R."""
    low, high = np.quantile(values, [0.025, 0.975])
    return {"mean": values.mean(), "low": low, "high": high, "share_as_low": np.mean(values <= observed)}


def overlap(ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Common examples of two subsets, by chance given sizes, and given both class compositions as well."""
    n = len(labels)
    common = len(np.intersect1d(ours, theirs))
    chance = np.ones(1)
    expected = 0.0
    for code in range(labels.max() + 1):
        members, a, b = (int((part == code).sum()) for part in (labels, labels[ours], labels[theirs]))
        chance = np.convolve(chance, stats.hypergeom(members, a, b).pmf(np.arange(min(a, b) + 1)))
        expected += a * b / members
    return {
        "common": common,
        "jaccard": common / len(np.union1d(ours, theirs)),
        "expected_jaccard": expected_jaccard(len(ours), len(theirs), n),
        "expected_common": len(ours) * len(theirs) / n,
        "p": stats.hypergeom(n, len(ours), len(theirs)).sf(common - 1),
        "expected_common_given_classes": expected,
        "p_given_classes": min(1.0, float(chance[common:].sum())),
    }


def photos(example_ids: np.ndarray) -> np.ndarray:
    """Code of the photo that a sketch was drawn from: several sketches share one (`n02103406_1011-2.png`)."""
    return unit_codes(
        np.array([name.rsplit("/", 1)[1].rsplit(".", 1)[0].split("-")[0] for name in example_ids])
    )


def membership(data: CorrectnessData, theirs: np.ndarray, r: np.ndarray, code: int) -> dict[str, Any]:
    """Whether, inside a class, our models find the published examples to be the harmful ones."""
    assert data.labels is not None
    members = np.flatnonzero((data.labels == code) & np.isfinite(r))
    inside = np.isin(members, theirs)
    units = photos(data.example_ids[members])
    found = auroc(-r[members], inside).value
    rng = stream(SEED, f"membership/{len(theirs)}/{code}")
    rows_of = [np.flatnonzero(units == unit) for unit in range(units.max() + 1)]
    drawn = []
    for _ in range(RESAMPLES):
        rows = np.concatenate([rows_of[unit] for unit in rng.integers(0, len(rows_of), len(rows_of))])
        if 0 < inside[rows].sum() < len(rows):
            drawn.append(auroc(-r[members][rows], inside[rows]).value)
    low, high = np.quantile(drawn, [0.025, 0.975])
    mean = {"selected": r[members][inside].mean(), "others": r[members][~inside].mean()}
    return {"auroc": found, "low": low, "high": high, "n_selected": int(inside.sum()), "mean_r": mean}


def thirds(data: CorrectnessData, examples: np.ndarray, models: np.ndarray) -> list[float]:
    """Mean accuracy on examples of the models with the lowest, middle and highest third of ID accuracies."""
    ordered = models[np.argsort(data.id_accuracy[models], kind="stable")]
    return [float(data.accuracy(examples)[part].mean()) for part in np.array_split(ordered, 3)]


def varied_test(
    data: CorrectnessData, examples: np.ndarray, test: np.ndarray, varied: np.ndarray
) -> dict[str, Any]:
    """R on those test models that have not collapsed onto one class."""
    kept = np.intersect1d(test, varied)
    found = correlate(data.id_accuracy[kept], data.accuracy(examples)[kept], data.units()[kept], seed=SEED)
    return {"r": found.r, "low": found.low, "high": found.high, "n": len(kept)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--published", type=Path, required=True, help="released selections of PACS, .npz")
    given = parser.parse_args()
    data, models = read()
    assert data.labels is not None
    assert data.label_names is not None
    released = load_published(given.published)
    place = {name: column for column, name in enumerate(data.example_ids.tolist())}
    ours = json.loads((RESULTS / "path.json").read_text(encoding="utf-8"))
    ours_of = {row["size"]: np.array(row["indices"]) for row in ours["sizes"] if row["indices"] is not None}
    kinds = unit_codes(np.array([row["kind"] for row in models]))
    per_example = example_correlations(data.correct, data.id_accuracy)
    y, units = data.id_accuracy, data.units()
    every, test = np.arange(data.n_models), np.array(ours["split"]["test"])
    answers = np.array([[float(row[f"predicts_{name}"]) for name in data.label_names] for row in models])
    varied = np.flatnonzero(answers.max(axis=1) <= COLLAPSED)
    rows = []
    for size, names in released.items():
        theirs = np.array([place[f"sketch/{name}"] for name in names.tolist()])
        accuracy = data.accuracy(theirs)
        found = correlate(y, accuracy, units, seed=SEED)
        of_varied = correlate(y[varied], accuracy[varied], units[varied], seed=SEED)
        by_kind = correlate(y, accuracy, kinds, seed=SEED)
        counts = np.bincount(data.labels[theirs], minlength=len(data.label_names))
        largest = int(counts.argmax())
        row = {
            "size": size,
            "classes": counts,
            "correlation": found.to_dict(),
            "by_kind": {"low": by_kind.low, "high": by_kind.high, "n_units": by_kind.n_units},
            "varied": {"r": of_varied.r, "low": of_varied.low, "high": of_varied.high},
            "thirds": thirds(data, theirs, every),
            "line": fit_line(y, accuracy).to_dict(),
            "random": band(alike(data, theirs, np.array([size]), "any"), found.r),
            "same_classes": band(alike(data, theirs, counts, "classes"), found.r),
            "overlap": overlap(ours_of[size], theirs, data.labels) if size in ours_of else None,
            "indices": theirs if size in KEPT else None,
            "mean_r": per_example[theirs][np.isfinite(per_example[theirs])].mean(),
        }
        if 10 <= counts[largest] < (data.labels == largest).sum():
            row["membership"] = {
                "class": data.label_names[largest],
                **membership(data, theirs, per_example, largest),
            }
        rows.append(row)
        print(size, counts, f"R {found.r:+.3f} [{found.low:+.3f}, {found.high:+.3f}]", flush=True)
    sketches = np.arange(data.n_examples)
    write(
        "published",
        {
            "sizes": rows,
            "draws": DRAWS,
            "n_varied": len(varied),
            "all_varied": correlate(y[varied], data.accuracy()[varied], units[varied], seed=SEED).to_dict(),
            "ours": [
                {
                    "size": size,
                    "thirds": thirds(data, examples, test),
                    "varied": varied_test(data, examples, test, varied),
                }
                for size, examples in (ours_of | {data.n_examples: sketches}).items()
            ],
        },
    )


if __name__ == "__main__":
    main()

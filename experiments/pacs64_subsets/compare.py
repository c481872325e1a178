"""Selections beside baselines, with and without fixed class shares, on family-disjoint and random splits.

python experiments/pacs64_subsets/compare.py

Writes `results/splits.json` and `results/holdout.json`. The selections on family-disjoint splits are those of
`path.json` and `strata.json` again.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from analyse import SEED, baseline_records, read, write
from images import RESULTS
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from assay.analyses.subsets import (
    CorrectnessData,
    Problem,
    Subset,
    cross_fit,
    line_correlation,
    probit,
    selection_path,
)
from assay.analyses.subsets.baselines import baseline_values
from assay.analyses.subsets.swap import Pool
from assay.analyses.subsets.verdict import combine, unit_jackknife
from assay.core.random import stream
from assay.stats import auroc


SIZES = (20, 100, 250, 500, 1000)
HELD_OUT_SIZES = (100, 250, 500, 1000)
KINDS = ("hard", "marginal")
ENDS = {"mean": "r", "low": "low", "high": "high"}


def z_of(y: np.ndarray, accuracy: np.ndarray, fold_of: np.ndarray) -> float:
    """The atanh of R_cf from accuracies on subsets that were chosen without the fold of the model."""
    folds = range(fold_of.max() + 1)
    each = [[line_correlation(y[fold_of == fold], accuracy[fold_of == fold])] for fold in folds]
    return math.atanh(float(combine(np.array(each), np.bincount(fold_of))[0]))


def difference(
    y: np.ndarray, ours: np.ndarray, other: np.ndarray, units: np.ndarray, fold_of: np.ndarray
) -> dict[str, float]:
    """atanh(R_cf) of the selection minus that of a baseline, with the jackknife over units."""

    def between(kept: np.ndarray) -> float:
        z = [z_of(y[kept], each[kept], fold_of[kept]) for each in (ours, other)]
        return z[0] - z[1]

    without = np.array([between(units != unit) for unit in np.unique(units)])
    n = len(without)
    found = between(np.ones(len(y), dtype=bool))
    half = 1.96 * math.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    return {"z": found, "low": found - half, "high": found + half}


def chosen_by(problem: Problem, kind: str, sizes: Sequence[int]) -> list[np.ndarray]:
    """The examples of a baseline at each size."""
    settings, values = problem.settings, dict(baseline_values(problem))[kind]
    pools = [Pool(problem.data.n_examples, size, settings.strata, settings.allowed) for size in sizes]
    return [np.flatnonzero(pool.lowest(values)) for pool in pools]


def cross_fitted(problem: Problem, sizes: Sequence[int]) -> dict[str, Any]:
    """R_cf of the selections and of the baselines that are chosen on the same folds, by size."""
    data, fit = problem.data, cross_fit(problem, sizes)
    units, y = data.units(), data.id_accuracy
    fold_of = np.argmax([np.isin(np.arange(data.n_models), split.test) for split in fit.splits], axis=0)
    problems = [replace(problem, split=split) for split in fit.splits]
    found: dict[str, Any] = {
        "selection": [
            {"r": fit.r[row], "low": fit.low[row], "high": fit.high[row]} for row in range(len(sizes))
        ]
    }
    for kind in KINDS:
        chosen = [chosen_by(fold, kind, sizes) for fold in problems]
        rows = []
        for row in range(len(sizes)):
            accuracy = np.empty(data.n_models)
            for fold, of_fold in zip(problems, chosen, strict=True):
                accuracy[fold.split.test] = fold.accuracy(of_fold[row])
            low, high = unit_jackknife(probit(y), probit(accuracy), units, fold_of)
            r = math.tanh(z_of(y, accuracy, fold_of))
            lower = difference(y, fit.accuracy[row], accuracy, units, fold_of)
            rows.append({"r": r, "low": low, "high": high, "difference": lower})
        found[kind] = rows
    return found


def splits(data: CorrectnessData) -> dict[str, Any]:
    """The four cells: families kept whole or models at random, any class mix or that of all sketches."""
    found: dict[str, Any] = {"sizes": SIZES}
    for split in ("family", "random"):
        # Without families, every model is a unit of its own in the folds, too.
        given = data if split == "family" else replace(data, families=None)
        for mix, strata in (("any", None), ("fixed", "label")):
            path = selection_path(given, sizes=SIZES, split=split, seed=SEED, strata=strata)
            found[f"{split}, {mix}"] = {
                "test": [each.correlation["test"].to_dict() for each in path],
                "baselines": baseline_records(path),
                "cross_fitted": cross_fitted(path.problem, SIZES),
            }
            print(split, mix, flush=True)
    return found


def predicted(subset: Subset, phi: np.ndarray, folds: int = 5) -> tuple[np.ndarray, float]:
    """For each fold of the examples the set that looks most like what is selected among the others; AUROC."""
    problem, size, rng = subset.problem, subset.size, stream(0, "example folds")
    fold_of = np.empty(len(phi), dtype=np.int64)
    fold_of[rng.permutation(problem.pool)] = np.arange(len(phi)) % folds
    found, areas = [], []
    for fold in range(folds):
        n, here = size // folds + (fold < size % folds), np.flatnonzero(fold_of == fold)
        among = replace(problem, settings=replace(problem.settings, allowed=fold_of != fold))
        (chosen,) = among.select_all([size - n], [problem.data.id_accuracy])[0]
        rows = np.concatenate([chosen, np.setdiff1d(np.flatnonzero(fold_of != fold), chosen)])
        parts = StratifiedKFold(3, shuffle=True, random_state=int(rng.integers(2**31)))
        logistic = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
        strengths = {"logisticregression__C": [1e-3, 1e-2, 1e-1, 1.0, 10.0]}
        fitted = GridSearchCV(logistic, strengths, scoring="roc_auc", cv=parts)
        score = fitted.fit(phi[rows], np.arange(len(rows)) < len(chosen)).decision_function(phi[here])
        found.append(here[np.argsort(-score, kind="stable")[:n]])
        areas.append(auroc(score, np.isin(here, subset.indices)).value)
    return np.sort(np.concatenate(found)), float(np.mean(areas))


def holdout(data: CorrectnessData) -> dict[str, Any]:
    """Whether features of a sketch tell if it is in a subset; and the sketches furthest from other images."""
    with np.load(RESULTS / "embedding.npz") as archive:
        embedding, known = (archive[name].astype(np.float32) for name in ("embedding", "id_embedding"))
        facts = json.loads(str(archive["facts"]))
    data = replace(data, embedding=embedding, id_embedding=known)
    assert data.labels is not None
    one_hot = np.asarray(data.labels[:, None] == np.arange(7), dtype=np.float64)
    features: dict[str, Any] = {
        "embedding": embedding.astype(np.float64),
        "class": one_hot,
        "both": np.concatenate([embedding.astype(np.float64), one_hot], axis=1),
    }
    found: dict[str, Any] = {"sizes": HELD_OUT_SIZES, "network": facts}
    for mix, strata in (("any", None), ("fixed", "label")):
        path = selection_path(data, sizes=HELD_OUT_SIZES, split="family", seed=SEED, strata=strata)
        furthest = chosen_by(path.problem, "distance", HELD_OUT_SIZES)
        cell: dict[str, Any] = {
            "selection": [each.correlation["test"].to_dict() for each in path],
            "distance": baseline_records(path)["distance"],
        }
        for name, phi in features.items():
            rows = []
            for each, far in zip(path, furthest, strict=True):
                members, area = predicted(each, phi)
                random = path.baselines.query(f"kind == 'random' and size == {each.size}").iloc[0]
                held = path.problem.correlate(members)
                record: dict[str, Any] = {"correlation": held.to_dict(), "auroc": area}
                record |= {f"random_{key}": random[of] for key, of in ENDS.items()}
                record["describable"] = bool(held.r < random["low"] and held.high < 0)
                rows.append(record | {"common_with_furthest": len(np.intersect1d(members, far))})
            cell[name] = rows
        found[mix] = cell
    return found


def main() -> None:
    data, _ = read()
    write("splits", splits(data))
    write("holdout", holdout(data))


if __name__ == "__main__":
    main()

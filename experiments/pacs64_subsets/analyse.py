"""Subsets of the sketches on our models: sweep, verdicts, class mix; writes `results/*.json`.

python experiments/pacs64_subsets/analyse.py [--permutations 99] [--workers 1]
"""

import argparse
import csv
import json
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from images import RESULTS

from assay.analyses.subsets import (
    CorrectnessData,
    SelectionPath,
    Subset,
    correlate,
    cross_fit,
    fit_line,
    models_needed,
    replicate_examples,
    selection_path,
)
from assay.analyses.subsets.coherence import example_correlations
from assay.core.record import plain


SEED = 0
DIGITS = 6
# Lists of plain values go on one line.
PLAIN_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


def rounded(value: Any) -> Any:
    """Finite JSON with few digits, so that files stay small and diffs readable."""
    if isinstance(value, dict):
        return {str(key): rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def write(name: str, record: Any) -> None:
    """A results file."""
    text = json.dumps(rounded(plain(record)), indent=1, allow_nan=False)
    text = PLAIN_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def models() -> list[dict[str, str]]:
    """What each model of the archive is, in its order."""
    with (RESULTS / "models.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read() -> tuple[CorrectnessData, list[dict[str, str]]]:
    """The committed archive and its list of models."""
    data, rows = CorrectnessData.load(RESULTS / "correctness.npz"), models()
    if list(data.model_ids) != [row["name"] for row in rows]:
        raise SystemExit("models.csv and correctness.npz list different models; run collect.py again")
    return data, rows


def judged(path: SelectionPath, n_permutations: int, workers: int) -> SelectionPath:
    """The path with its verdicts."""
    began = time.monotonic()
    path.judge(
        n_permutations=n_permutations,
        workers=workers,
        progress=lambda stage, done, of: print(
            f"  {stage} {done}/{of} {time.monotonic() - began:.0f} s", flush=True
        ),
    )
    return path


def size_record(selection: Subset) -> dict[str, Any]:
    """R on the test models and the verdict of a size."""
    verdict = selection.verdict.to_dict()
    return {
        "size": selection.size,
        "test": selection.correlation["test"].to_dict(),
        "verdict": {name: value for name, value in verdict.items() if name not in ("null", "sizes")},
    }


def baseline_records(path: SelectionPath) -> dict[str, Any]:
    """Baselines by kind, a row per size."""
    return {str(kind): rows.to_dict("records") for kind, rows in path.baselines.groupby("kind")}


def path_record(path: SelectionPath) -> dict[str, Any]:
    """A sweep, small enough to commit: sets, correlations, verdicts, baselines, classes."""
    data, split = path.problem.data, path.problem.split
    assert data.labels is not None
    y, rows = data.id_accuracy[split.test], []
    for selection in path:
        each = replicate_examples(selection)
        sides = {"": each[each["chosen"]], "pool_": each[~each["chosen"]]}
        examples = {f"{side}share_negative": (of["r"].dropna() < 0).mean() for side, of in sides.items()}
        examples |= {f"{side}share_discovered": (of["q_value"] <= 0.05).mean() for side, of in sides.items()}
        rows.append(
            size_record(selection)
            | {
                "r": {part: found.r for part, found in selection.correlation.items()},
                "line": fit_line(y, data.accuracy(selection.indices)[split.test]).to_dict(),
                "examples": examples,
                "classes": np.bincount(data.labels[selection.indices], minlength=7),
                "indices": None if selection.size == data.n_examples else selection.indices,
            }
        )
    largest = {rule: path.largest_aotil(rule) for rule in ("val", "ci", "paper")}
    return {
        "split": {part: split.part(part) for part in ("train", "validation", "test")},
        "null_minimum": path.verdicts[0].null,
        "sizes": rows,
        "baselines": baseline_records(path),
        "consistency": path.consistency.to_numpy(),
        "largest": {rule: None if found is None else found.size for rule, found in largest.items()},
        "headline": path.headline.size,
    }


def coarse(data: CorrectnessData, names: Sequence[str], n_permutations: int, workers: int) -> dict[str, Any]:
    """Verdicts with other families."""
    path = selection_path(CorrectnessData.of(data, families=names), split="family", seed=SEED)
    found = judged(path, n_permutations, workers)
    return {
        "n_families": len(set(names)),
        "test_families": sorted({names[place] for place in path.problem.split.test}),
        "sizes": [size_record(selection) for selection in found],
    }


def whole(data: CorrectnessData, rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """All models: quality, full correlation, each class by itself, and what models answer."""
    assert data.labels is not None
    assert data.label_names is not None
    y, units = data.id_accuracy, data.units()
    classes = {}
    for code, name in enumerate(data.label_names):
        members = np.flatnonzero(data.labels == code)
        accuracy = data.accuracy(members)
        answers = np.array([float(row[f"predicts_{name}"]) for row in rows])
        classes[name] = {
            "n": len(members),
            "accuracy": {"mean": accuracy.mean(), "low": accuracy.min(), "high": accuracy.max()},
            "correlation": correlate(y, accuracy, units, seed=SEED).to_dict(),
            "share_of_answers": answers.mean(),
            "answers_with_id_accuracy": correlate(y, answers, units=units, seed=SEED).to_dict(),
        }
    needed = models_needed(y, data.accuracy(), seed=SEED)
    per_example = example_correlations(data.correct, y)
    return {
        "quality": data.describe().to_dict(),
        "accuracy": correlate(y, data.accuracy(), units=units, seed=SEED).to_dict(),
        "classes": classes,
        "examples": {
            "share_negative": np.mean(per_example < 0),
            "share_negative_by_class": {
                name: np.mean(per_example[data.labels == code] < 0)
                for code, name in enumerate(data.label_names)
            },
        },
        "models_needed": {
            "k": needed.k,
            "mean": needed.mean,
            "low": np.nanmin(needed.curves, axis=0),
            "high": np.nanmax(needed.curves, axis=0),
            "stable": needed.stable,
            "median": needed.median,
        },
        "estimators": by(rows, data, "estimator"),
        "kinds": by(rows, data, "kind"),
        "subsets": by(rows, data, "subset"),
    }


def by(rows: Sequence[dict[str, str]], data: CorrectnessData, column: str) -> dict[str, Any]:
    """Models and accuracies for each value of a column of the list of models."""
    values = np.array([row[column] for row in rows])
    found = {}
    for value in sorted(set(values.tolist())):
        inside = np.flatnonzero(values == value)
        y, accuracy = data.id_accuracy[inside], data.accuracy()[inside]
        r = correlate(y, accuracy, units=data.units()[inside], seed=SEED)
        found[value] = {
            "n": len(inside),
            "id_accuracy": [y.min(), np.median(y), y.max()],
            "accuracy": [accuracy.min(), np.median(accuracy), accuracy.max()],
            "r": r.r,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--permutations", type=int, default=99)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=["whole", "path", "strata", "kind", "estimator", "full"])
    given = parser.parse_args()
    options = {"n_permutations": given.permutations, "workers": given.workers}
    data, rows = read()
    print(f"{data.n_models} models, {data.n_examples} sketches", flush=True)
    if "whole" in given.only:
        write("whole", whole(data, rows))
    if "path" in given.only:
        write("path", path_record(judged(selection_path(data, split="family", seed=SEED), **options)))
    if "strata" in given.only:
        stratified = selection_path(data, split="family", seed=SEED, strata="label")
        write("strata", path_record(judged(stratified, **options)))
    for column in ("kind", "estimator"):
        if column in given.only:
            write(f"families_{column}", coarse(data, [row[column] for row in rows], **options))
    if "full" in given.only:
        part = np.array([place for place, row in enumerate(rows) if row["subset"] == "all"], dtype=np.int64)
        trained = data.take(models=part)
        path = selection_path(trained, split="family", seed=SEED)
        fit = cross_fit(path.problem, path.sizes)
        names = ("sizes", "r", "low", "high", "fold_correlations", "n_units")
        record = {name: getattr(fit, name) for name in names}
        record |= {"n_models": len(part), "test": [each.correlation["test"].r for each in path]}
        record["full"] = path.subsets[0].full["test"].to_dict()
        write("full_training", record)


if __name__ == "__main__":
    main()

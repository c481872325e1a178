"""The guide to subsets says what the committed results say, and these follow from the archive."""

import csv
import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from assay.analyses.subsets import (
    CorrectnessData,
    ModelSplit,
    correlate,
    fit_line,
    line_correlation,
    oodselect,
)
from assay.analyses.subsets.swap import stratum_quota
from assay.analyses.subsets.verdict import combine


REPOSITORY = Path(__file__).resolve().parent.parent
EXPERIMENT = REPOSITORY / "experiments" / "pacs64_subsets"
PAGE = REPOSITORY / "docs" / "howto" / "select.md"
# Numbers are committed with six decimals.
TOLERANCE = 2e-6
PARTS = ("train", "validation", "test")


def results(name: str) -> Any:
    return json.loads((EXPERIMENT / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def data() -> CorrectnessData:
    return CorrectnessData.load(EXPERIMENT / "results" / "correctness.npz")


@pytest.fixture(scope="module")
def script() -> Any:
    return SimpleNamespace(**runpy.run_path(str(EXPERIMENT / "run.py")))


def parts(record: Any) -> dict[str, np.ndarray]:
    return {part: np.array(record["split"][part], dtype=np.int64) for part in PARTS}


def chosen(row: Any, data: CorrectnessData) -> np.ndarray:
    """The indices of a size; the full set is committed as null."""
    if row["indices"] is None:
        assert row["size"] == data.n_examples
        return np.arange(data.n_examples)
    return np.array(row["indices"], dtype=np.int64)


def by_name(names: Any) -> np.ndarray:
    """Units in the order of their names, in which the committed run dealt and drew them."""
    return np.unique(np.asarray(names), return_inverse=True)[1].astype(np.int64)


def committed_folds(units: np.ndarray) -> list[ModelSplit]:
    """The folds of the committed run: largest unit first, then by name, each to the smallest fold."""
    counts, sizes = np.bincount(units), np.zeros(5, dtype=np.int64)
    fold_of = np.empty(len(counts), dtype=np.int64)
    for unit in np.argsort(-counts, kind="stable"):
        fold_of[unit] = np.argmin(sizes)
        sizes[fold_of[unit]] += counts[unit]
    own = fold_of[units]
    masks = [(own == fold, own == (fold + 1) % 5) for fold in range(5)]
    return [
        ModelSplit(
            train=np.flatnonzero(~(test | validation)),
            validation=np.flatnonzero(validation),
            test=np.flatnonzero(test),
            kind="fold",
        )
        for test, validation in masks
    ]


def same(record: Any, found: Any, names: tuple[str, ...] = ("r", "low", "high", "spearman")) -> None:
    for name in names:
        assert getattr(found, name) == pytest.approx(record[name], abs=TOLERANCE), name


def test_every_row_of_the_table_stands_on_the_page(script: Any) -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    rows = list(script.table())
    assert len(rows) == len(script.SHOWN)
    for row in rows:
        assert row in page, row


@pytest.mark.parametrize("name", ["path", "strata"])
def test_every_size_of_a_sweep_follows_from_its_committed_examples(name: str, data: CorrectnessData) -> None:
    found, labels = results(name), data.labels
    models = parts(found)
    families, units = np.array(data.families), by_name(data.families)
    assert sorted(np.concatenate(list(models.values())).tolist()) == list(range(data.n_models))
    for part in PARTS:
        for other in set(PARTS) - {part}:
            assert not set(families[models[part]]) & set(families[models[other]])
    for row in found["sizes"]:
        examples = chosen(row, data)
        assert len(set(examples.tolist())) == row["size"]
        for part in PARTS:
            y, accuracy = data.id_accuracy[models[part]], data.accuracy(examples)[models[part]]
            assert line_correlation(y, accuracy) == pytest.approx(row["r"][part], abs=TOLERANCE)
        # The last part is test.
        same(row["test"], correlate(y, accuracy, units=units[models["test"]]))
        assert fit_line(y, accuracy).slope == pytest.approx(row["line"]["slope"], abs=TOLERANCE)
        counts = np.bincount(labels[examples], minlength=7)
        assert counts.tolist() == row["classes"]
        if name == "strata":
            assert counts.tolist() == stratum_quota(labels, row["size"]).tolist()


@pytest.mark.parametrize("name", ["path", "strata"])
def test_the_verdicts_follow_from_their_folds_and_their_null(name: str, data: CorrectnessData) -> None:
    found = results(name)
    null = np.array([np.nan if value is None else value for value in found["null_minimum"]])
    tested = [len(fold.test) for fold in committed_folds(by_name(data.families))]
    for row in found["sizes"]:
        verdict = row["verdict"]
        assert verdict["fold_sizes"] == tested
        each = np.array(verdict["fold_correlations"], dtype=np.float64)
        r = float(combine(each[:, None], np.array(tested, dtype=np.int64))[0])
        assert r == pytest.approx(verdict["r"], abs=1e-5)
        assert verdict["n_permutations"] == len(null)
        p = (1 + np.sum(null <= verdict["r"])) / (len(null) + 1)
        assert p == pytest.approx(verdict["p_value"], abs=1e-5)
        supported = verdict["r"] < 0 and p <= 0.05
        assert (verdict["status"] == "supported") == supported
        assert verdict["aotil"] == (supported and verdict["r"] <= -0.3)
        assert (verdict["reasons"] == []) == supported


def test_selecting_again_gives_the_committed_examples(data: CorrectnessData) -> None:
    row = next(row for row in results("path")["sizes"] if row["size"] == 250)
    again = oodselect(data, size=250, split=ModelSplit(**parts(results("path"))), seed=0)
    # Near-ties may fall differently with another linear algebra library.
    assert len(set(again.indices.tolist()) & set(row["indices"])) >= 240
    assert again.correlation["test"].r == pytest.approx(row["r"]["test"], abs=0.02)


def test_the_published_subsets_follow_from_their_examples(data: CorrectnessData) -> None:
    with (EXPERIMENT / "results" / "models.csv").open(newline="", encoding="utf-8") as file:
        kinds = by_name([row["kind"] for row in csv.DictReader(file)])
    ours = {row["size"]: row["indices"] for row in results("path")["sizes"]}
    rows = {row["size"]: row for row in results("published")["sizes"]}
    with_indices = [row for row in rows.values() if row["indices"] is not None]
    assert len(with_indices) == 8
    for row in with_indices:
        theirs = np.array(row["indices"], dtype=np.int64)
        assert len(np.unique(theirs)) == row["size"]
        assert np.bincount(data.labels[theirs], minlength=7).tolist() == row["classes"]
        accuracy = data.accuracy(theirs)
        same(row["correlation"], correlate(data.id_accuracy, accuracy, units=by_name(data.families)))
        by_kind = correlate(data.id_accuracy, accuracy, units=kinds)
        assert by_kind.low == pytest.approx(row["by_kind"]["low"], abs=TOLERANCE)
        assert by_kind.high == pytest.approx(row["by_kind"]["high"], abs=TOLERANCE)
        assert len(set(theirs.tolist()) & set(ours[row["size"]])) == row["overlap"]["common"]
    # What was published: at three sizes all are dogs.
    for size in (100, 250, 500):
        assert rows[size]["classes"] == [size, 0, 0, 0, 0, 0, 0]


def test_the_digits_of_the_guide_are_those_of_the_committed_result() -> None:
    folder = REPOSITORY / "experiments" / "digits_subsets"
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    line = runpy.run_path(str(folder / "run.py"))["line"]
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert [row["size"] for row in found["rows"]] == [50, 100, 200]
    for row in found["rows"]:
        assert line(row) in page, row["size"]
    misleads = next(row for row in found["cues"] if row["value"] == "misleads")
    assert (round(100 * misleads["pool"]), round(100 * misleads["selected"])) == (24, 52)
    assert round(found["full"]["test"]["r"], 2) == 0.74

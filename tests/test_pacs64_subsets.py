"""The page on subsets of PACS says what the committed results say, and these follow from the archive."""

import csv
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from assay.analyses.subsets import (
    CorrectnessData,
    ModelSplit,
    Problem,
    Settings,
    correlate,
    distance_scores,
    fit_line,
    line_correlation,
    oodselect,
)
from assay.analyses.subsets.baselines import baseline_values
from assay.analyses.subsets.swap import Pool, stratum_quota
from assay.analyses.subsets.verdict import combine


REPOSITORY = Path(__file__).resolve().parent.parent
EXPERIMENT = REPOSITORY / "experiments" / "pacs64_subsets"
PAGE = REPOSITORY / "docs" / "pacs64-subsets.md"
# Numbers are committed with six decimals.
TOLERANCE = 2e-6
PARTS = ("train", "validation", "test")


def results(name: str) -> Any:
    return json.loads((EXPERIMENT / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def data() -> CorrectnessData:
    return CorrectnessData.load(EXPERIMENT / "results" / "correctness.npz")


@pytest.fixture(scope="module")
def models() -> list[dict[str, str]]:
    with (EXPERIMENT / "results" / "models.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pacs64_subsets_tables", EXPERIMENT / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_every_row_of_the_tables_stands_on_the_page(tables: ModuleType) -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    for name, table in tables.TABLES.items():
        for row in table():
            assert row in page, (name, row)


def test_every_picture_of_the_page_is_there() -> None:
    pictures = re.findall(r"\]\((images/\S+\.png)\)", PAGE.read_text(encoding="utf-8"))
    assert len(pictures) >= 4
    for picture in pictures:
        assert (PAGE.parent / picture).stat().st_size > 10_000, picture


def test_the_archive_holds_all_sketches_and_several_hundred_models(
    data: CorrectnessData, models: list[dict[str, str]]
) -> None:
    assert data.n_examples == 3929
    assert data.n_models == len(models) >= 400
    assert data.label_names is not None
    assert data.labels is not None
    for name, label in zip(data.example_ids.tolist(), data.labels.tolist(), strict=True):
        domain, kind, file = name.split("/")
        assert (domain, kind) == ("sketch", data.label_names[label])
        assert file.endswith(".png")
    assert data.groups.tolist() == data.model_ids.tolist()  # every model is a run of its own


def test_the_list_of_models_fits_the_archive(data: CorrectnessData, models: list[dict[str, str]]) -> None:
    assert [row["name"] for row in models] == list(data.model_ids)
    assert [row["family"] for row in models] == data.families.tolist()
    np.testing.assert_allclose([float(row["id_accuracy"]) for row in models], data.id_accuracy, atol=1e-5)
    np.testing.assert_allclose([float(row["accuracy"]) for row in models], data.accuracy(), atol=1e-5)
    answers = [[float(row[name]) for name in row if name.startswith("predicts_")] for row in models]
    np.testing.assert_allclose(np.sum(answers, axis=1), 1, atol=1e-4)


def test_the_correlations_of_all_models_follow_from_the_archive(data: CorrectnessData) -> None:
    found = results("whole")
    assert data.labels is not None
    units = by_name(data.families)
    same(found["accuracy"], correlate(data.id_accuracy, data.accuracy(), units))
    for code, record in enumerate(found["classes"].values()):
        members = np.flatnonzero(data.labels == code)
        assert len(members) == record["n"]
        same(record["correlation"], correlate(data.id_accuracy, data.accuracy(members), units))


@pytest.mark.parametrize("name", ["path", "strata"])
def test_every_size_of_a_sweep_follows_from_its_committed_examples(name: str, data: CorrectnessData) -> None:
    found, labels = results(name), data.labels
    assert labels is not None
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


def test_the_published_subsets_on_these_models_follow_from_their_examples(
    data: CorrectnessData, models: list[dict[str, str]]
) -> None:
    kinds = by_name([row["kind"] for row in models])
    assert data.labels is not None
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


def test_answers_to_the_selected_sketches_fit_the_archive(data: CorrectnessData) -> None:
    found = results("answers")
    assert found["classes"] == list(data.label_names or ())
    assert data.labels is not None
    rows = {str(row["size"]): row for row in results("path")["sizes"]}
    thirds = np.array_split(np.argsort(data.id_accuracy, kind="stable"), 3)
    for size, classes in found["sizes"].items():
        chosen = np.array(rows[size]["indices"], dtype=np.int64)
        for name, record in classes.items():
            code = found["classes"].index(name)
            members = chosen[data.labels[chosen] == code]
            assert record["n"] == len(members)
            for third, models in zip(("lowest", "middle", "highest"), thirds, strict=True):
                assert sum(record[third]) == pytest.approx(1, abs=1e-5)
                right = data.accuracy(members)[models].mean()
                assert record[third][code] == pytest.approx(right, abs=TOLERANCE)


@pytest.mark.parametrize(("mix", "strata", "name"), [("any", None, "path"), ("fixed", "label", "strata")])
def test_baselines_side_by_side_follow_from_the_archive(
    mix: str, strata: str | None, name: str, data: CorrectnessData
) -> None:
    found = results("splits")
    cell, sizes = found[f"family, {mix}"], found["sizes"]
    committed = {row["size"]: row for row in results(name)["sizes"]}
    for size, test, fitted in zip(sizes, cell["test"], cell["cross_fitted"]["selection"], strict=True):
        assert test["r"] == pytest.approx(committed[size]["test"]["r"], abs=TOLERANCE)
        assert fitted["r"] == pytest.approx(committed[size]["verdict"]["r"], abs=TOLERANCE)
    settings = Settings.of(data, strata=strata)
    pool = Pool(data.n_examples, 250, settings.strata)
    splits = committed_folds(by_name(data.families))
    counts = np.array([len(split.test) for split in splits])
    place = sizes.index(250)
    for kind in ("hard", "marginal"):
        r = []
        for split in splits:
            values = dict(baseline_values(Problem(data, split, settings)))[kind]
            examples = np.flatnonzero(pool.lowest(values))
            assert data.labels is not None
            if strata is not None:
                classes = np.bincount(data.labels[examples], minlength=7)
                assert classes.tolist() == stratum_quota(data.labels, 250).tolist()
            y, accuracy = data.id_accuracy[split.test], data.accuracy(examples)[split.test]
            r.append([line_correlation(y, accuracy)])
        wanted = cell["cross_fitted"][kind][place]
        assert float(combine(np.array(r), counts)[0]) == pytest.approx(wanted["r"], abs=TOLERANCE)
        # The difference on the page is that of the two numbers beside it.
        ours = cell["cross_fitted"]["selection"][place]["r"]
        z = np.arctanh(ours) - np.arctanh(wanted["r"])
        assert wanted["difference"]["z"] == pytest.approx(z, abs=1e-5)
        assert wanted["difference"]["low"] < z < wanted["difference"]["high"]


def test_no_rule_describes_a_subset() -> None:
    found = results("holdout")
    for mix in ("any", "fixed"):
        for name in ("embedding", "class", "both"):
            assert len(found[mix][name]) == len(found["sizes"])
            for row in found[mix][name]:
                r = row["correlation"]
                assert row["describable"] == (r["r"] < row["random_low"] and r["high"] < 0)
                assert not row["describable"]
    common = [row["common_with_furthest"] for row in found["any"]["embedding"]]
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "{} of 100 sketches are in both, {} of 250, {} of 500 and {} of 1,000".format(*common) in page


def test_the_furthest_sketches_follow_from_the_committed_embedding(data: CorrectnessData) -> None:
    with np.load(EXPERIMENT / "results" / "embedding.npz") as archive:
        embedding, known = (archive[name].astype(np.float32) for name in ("embedding", "id_embedding"))
    assert embedding.shape == (3929, 32)
    assert known.shape == (1212, 32)
    found = results("holdout")
    furthest = np.argsort(-distance_scores(embedding, known).round(12), kind="stable")
    test = parts(results("path"))["test"]
    for place, size in enumerate(found["sizes"]):
        accuracy = data.accuracy(furthest[:size])[test]
        r = line_correlation(data.id_accuracy[test], accuracy)
        assert found["any"]["distance"][place]["r"] == pytest.approx(r, abs=TOLERANCE)

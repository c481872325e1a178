"""Selecting a subset, evaluating it, keeping it."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from goldens import FOLDER, arrays, values
from planted_subsets import planted_matrix

import assay
from assay.analyses.subsets.line import fit_line, line_correlation
from assay.core.errors import FileFormatError, InputError, ShapeError, UnknownNameError


pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def planted():
    return planted_matrix(120, 400, planted=0.2, slope=0.6, n_families=12, seed=5)


@pytest.fixture(scope="module")
def selected(planted):
    return assay.oodselect(planted.correct, planted.id_accuracy, 60, families=planted.families)


def test_the_example_of_the_specification():
    given = arrays("planted_301")
    sub = assay.oodselect(given["X"], given["y"], 200, compat=True, seed=0, families=given["family"])
    expected = values("planted_301")["splits"]["split42"]["sizes"]["200"]["prototype_fast"]
    test = sub.correlation["test"]
    assert test.r <= expected["test"] + 0.02
    assert test.low < test.r < test.high < 0
    assert (test.n, sub.split.kind) == (96, "random")
    planted = np.load(FOLDER / "planted_301_index.npy")
    assert np.isin(sub.indices, planted).mean() >= expected["precision"] - 0.05


def test_every_reported_number_is_that_of_its_definition(planted, selected):
    for part in ("train", "validation", "test"):
        models = selected.split.part(part)
        accuracy = planted.correct[models][:, selected.indices].mean(axis=1)
        expected = line_correlation(planted.id_accuracy[models], accuracy)
        assert selected.correlation[part].r == pytest.approx(expected, abs=1e-12)
        everything = line_correlation(planted.id_accuracy[models], planted.correct[models].mean(axis=1))
        assert selected.full[part].r == pytest.approx(everything, abs=1e-12)
        assert selected.correlation[part].n == len(models)
    assert selected.lines["selected"].slope < 0
    assert (np.diff(selected.scores) >= 0).all()
    assert len(set(selected.indices.tolist())) == selected.size == 60
    assert selected.example_ids[0] == f"row_{selected.indices[0]}"


def test_the_same_call_gives_the_same_subset(planted, selected):
    again = assay.oodselect(planted.correct, planted.id_accuracy, 60, families=planted.families)
    np.testing.assert_array_equal(again.indices, selected.indices)
    assert again.id == selected.id
    packed = assay.oodselect(
        planted.correct, planted.id_accuracy, 60, families=planted.families, layout="packed"
    )
    assert packed.correlation["test"].r == pytest.approx(selected.correlation["test"].r, abs=1e-3)
    assert packed.id == selected.id


def test_everything_selected_is_the_whole_set(planted):
    sub = assay.oodselect(planted.correct, planted.id_accuracy, 400, families=planted.families)
    assert sorted(sub.indices.tolist()) == list(range(400))
    assert sub.correlation["test"].r == pytest.approx(sub.full["test"].r, abs=1e-12)


def test_strata_allowed_and_included(planted):
    strata = np.arange(400) % 4
    allowed = np.arange(400) >= 20
    sub = assay.oodselect(
        planted.correct,
        planted.id_accuracy,
        40,
        families=planted.families,
        strata=strata,
        allowed=allowed,
        must_include=[399, 21],
    )
    assert np.bincount(strata[sub.indices]).tolist() == [10, 10, 10, 10]
    assert sub.indices.min() >= 20
    assert {399, 21} <= set(sub.indices.tolist())
    data = assay.CorrectnessData.of(
        planted.correct, planted.id_accuracy, families=planted.families, labels=strata
    )
    by_name = assay.oodselect(
        data, size=40, strata="label", allowed=np.arange(20, 400), must_include=[21, 399]
    )
    assert set(by_name.indices.tolist()) == set(sub.indices.tolist())


# ----------------------------------------------------------------------------------------- other models


def test_the_models_it_was_selected_with_evaluate_to_the_same_numbers(planted, selected):
    models = selected.split.test
    families = np.asarray(planted.families)[models]
    found = selected.evaluate(
        planted.correct[models], planted.id_accuracy[models], families=families, order="data"
    )
    test = selected.correlation["test"]
    assert (found.r, found.low, found.high) == pytest.approx((test.r, test.low, test.high))
    assert found.full.r == pytest.approx(selected.full["test"].r)
    assert found.line.slope == pytest.approx(selected.lines["selected"].slope)
    assert len(found.accuracy) == found.n == len(models)
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_other_models_are_aligned_by_example_id(planted, selected):
    models = selected.split.test
    order = np.random.default_rng(0).permutation(400)
    ids = [f"row_{place}" for place in order]
    shuffled = planted.correct[models][:, order]
    found = selected.evaluate(shuffled, planted.id_accuracy[models], example_ids=ids)
    assert found.r == pytest.approx(selected.correlation["test"].r)
    kept = np.isin(order, selected.indices)
    fewer = selected.evaluate(shuffled[:, kept], planted.id_accuracy[models], example_ids=np.array(ids)[kept])
    assert fewer.r == pytest.approx(found.r)
    missing = np.array(ids)[kept]
    missing[0] = "elsewhere"
    with pytest.raises(InputError, match="1 of the 60 examples"):
        selected.evaluate(shuffled[:, kept], planted.id_accuracy[models], example_ids=missing)
    with pytest.raises(ShapeError, match="60 examples, but the subset was selected from 400"):
        selected.evaluate(shuffled[:, kept], planted.id_accuracy[models], order="data")


def test_columns_without_names_are_refused(planted, selected):
    """Reversed columns would pass for the same examples."""
    models = selected.split.test
    turned = planted.correct[models][:, ::-1]
    with pytest.raises(InputError, match=r"Give example_ids=.*or order='data'"):
        selected.evaluate(turned, planted.id_accuracy[models])
    with pytest.raises(InputError, match="order='data'"):
        selected.evaluate(assay.CorrectnessData.of(turned, planted.id_accuracy[models]))
    with pytest.raises(UnknownNameError, match="order of columns"):
        selected.evaluate(turned, planted.id_accuracy[models], order="reversed")


def test_one_model_and_frames_are_evaluated(planted, selected):
    one = selected.evaluate(planted.correct[3], float(planted.id_accuracy[3]), order="data")
    assert one.n == 1
    assert np.isnan(one.r)
    assert one.accuracy == (pytest.approx(planted.correct[3, selected.indices].mean()),)
    assert json.dumps(one.to_dict(), allow_nan=False)
    models = selected.split.test
    ids = [f"row_{place}" for place in range(400)]
    frame = pd.DataFrame(planted.correct[models], index=[f"m{each}" for each in models], columns=ids)
    found = selected.evaluate(frame[ids[::-1]], planted.id_accuracy[models])
    assert found.r == pytest.approx(selected.correlation["test"].r)
    assert selected.evaluate(frame.iloc[:2], planted.id_accuracy[models][:2]).n == 2
    with pytest.raises(InputError, match="remove example_ids"):
        selected.evaluate(frame, planted.id_accuracy[models], example_ids=ids)
    counted = frame.T.reset_index(drop=True)  # rows are examples that only their places name
    with pytest.raises(InputError, match="have no names"):
        selected.evaluate(counted, planted.id_accuracy[models])


def test_names_that_look_like_places_are_names(planted):
    """A table whose examples are called row_1042, ... is matched by name, also where an order is given."""
    names = [f"row_{place}" for place in np.random.default_rng(0).permutation(400) + 1000]
    frame = pd.DataFrame(planted.correct, index=[f"m{n}" for n in range(len(planted.correct))], columns=names)
    own = assay.CorrectnessData.from_frame(frame, id_accuracy=planted.id_accuracy)
    chosen = assay.oodselect(own, size=20)
    turned = assay.CorrectnessData.from_frame(frame[names[::-1]], id_accuracy=planted.id_accuracy)
    assert chosen.evaluate(turned).r == chosen.evaluate(own).r
    partly = frame[names[::-1]].rename(columns={chosen.example_ids[0]: "another"})
    with pytest.raises(
        InputError, match="19 of the 20 examples of the subset are given by name in another p"
    ):
        chosen.evaluate(partly, planted.id_accuracy, order="data")


def test_numbered_columns_are_matched_by_place_only(planted, selected):
    # Generated ids name columns, not examples: other columns must not pass for the same ones.
    other = assay.CorrectnessData.of(planted.correct[:, :300], planted.id_accuracy)
    with pytest.raises(ShapeError, match="300 examples"):
        selected.evaluate(other, order="data")


def test_what_the_caller_changes_later_changes_nothing(planted):
    correct, accuracy = planted.correct.copy(), planted.id_accuracy.copy()
    sub = assay.oodselect(correct, accuracy, 20, families=planted.families)
    before = sub.accuracies()
    correct[:], accuracy[:] = 1 - correct, 0.5
    np.testing.assert_array_equal(sub.accuracies(), before)
    assert sub.data.hash == sub.facts["hash"]


def test_half_an_example_clips_the_line_as_it_clips_the_correlation(planted):
    sub = assay.oodselect(planted.correct, planted.id_accuracy, 6, families=planted.families, clip="half")
    assert sub.lines["selected"].r == pytest.approx(sub.correlation["test"].r)
    models = sub.split.test
    found = sub.evaluate(planted.correct[models], planted.id_accuracy[models], order="data")
    assert found.line.r == pytest.approx(found.r)


# ------------------------------------------------------------------------------------------------- files


def test_a_subset_survives_its_file(planted, selected, tmp_path):
    path = selected.save(tmp_path / "made" / "subset.json")
    again = assay.load_subset(path)
    np.testing.assert_array_equal(again.indices, selected.indices)
    assert again.correlation["test"] == selected.correlation["test"]
    assert again.id == selected.id
    assert again.to_dict() == selected.to_dict()
    models = selected.split.test
    found = again.evaluate(planted.correct[models], planted.id_accuracy[models], order="data")
    assert found.r == pytest.approx(selected.correlation["test"].r)
    assert again.lines == selected.lines
    with pytest.raises(InputError, match="a verdict needs the data"):
        assert again.verdict
    data = assay.CorrectnessData.of(planted.correct, planted.id_accuracy, families=planted.families)
    line = selected.lines["selected"]
    direct = fit_line(data.id_accuracy[models], data.accuracy_on(selected.indices, models))
    assert (line.slope, line.intercept) == (direct.slope, direct.intercept)
    assert len(assay.load_subset(path, data).accuracies(models)) == line.n
    with pytest.raises(InputError, match="selected on other data"):
        assay.load_subset(path, data.take_examples(np.arange(399)))


def test_constraints_survive_the_file(planted, tmp_path):
    sub = assay.oodselect(
        planted.correct,
        planted.id_accuracy,
        40,
        families=planted.families,
        strata=np.arange(400) % 4,
        allowed=np.arange(20, 400),
        must_include=[399],
    )
    again = assay.load_subset(sub.save(tmp_path / "subset.json"), sub.data)
    assert again.settings.record() == sub.settings.record()
    assert again.id == sub.id


def test_a_file_of_the_first_release_is_read(tmp_path):
    kept = Path(__file__).with_name("subset-1.json")
    again = assay.load_subset(kept)
    assert again.sweep == (6, 9)
    assert again.settings.allowed.sum() == 54
    assert again.judged
    assert again.to_dict() == json.loads(kept.read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not a subset"),
        (lambda text: text.replace("assay-selection/1", "assay-selection/9"), "this version reads"),
        (
            lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "indices"}),
            "complete subset",
        ),
        (lambda text: json.dumps(json.loads(text) | {"indices": [5] * 60}), "do not describe one set"),
        (lambda text: json.dumps(json.loads(text) | {"indices": list(range(400, 460))}), "lies outside"),
        (lambda text: json.dumps(json.loads(text) | {"cells": {}}), "'cells' is {}; expected the kind"),
        (
            lambda text: json.dumps(json.loads(text) | {"cells": {"kind": "scores", "ends": ["a", 2]}}),
            "expected the kind of the answers and their ends",
        ),
        (lambda text: "[1, 2]", "is not a subset but JSON of another kind; this version"),
    ],
)
def test_a_bad_file_is_named(selected, tmp_path, change, message):
    path = tmp_path / "subset.json"
    selected.save(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(FileFormatError, match=message):
        assay.load_subset(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        assay.load_subset(tmp_path / "none.json")


# --------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": 401}, "expected 1 to 400"),
        ({"size": 10.5}, "whole number"),
        ({"size": None}, "size is missing"),
        ({"id_accuracy": None}, "id_accuracy is missing"),
        ({"solver": "gurobi"}, "unknown solver"),
        ({"solver": "greedy"}, "only a test reference.*'swap'.*'adam'"),
        ({"solver": "exhaustive"}, "solver is 'exhaustive', which is now only"),
        ({"objective": "r3"}, "unknown objective"),
        ({"steps": 4}, "unknown option of the solver 'swap'"),
        ({"start": [1, 2]}, "unknown option of the solver 'swap'"),
        ({"strata": "label"}, "column to stratify by"),
        ({"strata": [1, 2]}, "one stratum per example"),
        ({"allowed": [True, False]}, "a mask over the 400"),
        ({"must_include": [400]}, "must_include holds 400"),
        ({"must_include": [3, 3]}, "more than once"),
        ({"allowed": np.arange(30)}, "size is 60"),
        ({"clip": "no"}, "unknown clip 'no'; known: eps, half"),
        ({"families": ["a"]}, "families holds 1 names"),
    ],
)
def test_bad_arguments_are_named(unchecked, planted, change, message):
    given = {"id_accuracy": planted.id_accuracy, "size": 60, "families": planted.families} | change
    with pytest.raises(InputError, match=message):
        assay.oodselect(planted.correct, **given)


def test_unknown_names_are_refused_with_near_matches(planted):
    with pytest.raises(UnknownNameError, match="did you mean 'swap'"):
        assay.oodselect(planted.correct, planted.id_accuracy, 10, solver="swop")


def test_models_that_do_not_differ_are_refused(planted):
    y = planted.id_accuracy.copy()
    validation = assay.oodselect(planted.correct, y, 5, families=planted.families).split.validation
    y[validation] = 0.7
    with pytest.raises(InputError, match="id_accuracy is the same for all .* validation models"):
        assay.oodselect(planted.correct, y, 5, families=planted.families)


def test_more_strata_than_places_are_refused(planted):
    with pytest.raises(InputError, match="size is 20, but strata has 400 values"):
        assay.oodselect(
            planted.correct, planted.id_accuracy, 20, families=planted.families, strata=np.arange(400)
        )


def test_a_degenerate_subset_is_reported_not_hidden():
    rng = np.random.default_rng(2)
    correct = np.zeros((30, 12), dtype=np.uint8)
    correct[:, 6:] = rng.integers(0, 2, (30, 6))
    sub = assay.oodselect(correct, rng.uniform(0.5, 0.9, 30), 3, groups=range(30), allowed=np.arange(6))
    assert sub.correlation["test"].degenerate
    assert math.isnan(sub.correlation["test"].r)
    assert json.dumps(sub.to_dict(), allow_nan=False)

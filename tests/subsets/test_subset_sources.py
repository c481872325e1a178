"""Correctness data from frames, estimators and a zoo, worked by hand; and what must be refused."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.analyses.subsets.data import CorrectnessData
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.tasks import draw_shapes
from assay.zoo import Zoo


MODELS = ("a", "b", "c", "d")
CORRECT = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]], dtype=np.uint8)
ACCURACY = {"d": 0.6, "a": 0.9, "b": 0.8, "c": 0.7}


def matrix(data: CorrectnessData) -> list[list[int]]:
    assert isinstance(data.correct, np.ndarray)
    return data.correct.tolist()


def wide() -> pd.DataFrame:
    return pd.DataFrame(CORRECT, index=list(MODELS), columns=["x", "y", "z"])


def long(correct: np.ndarray = CORRECT) -> pd.DataFrame:
    rows = [
        {"model": model, "example_id": example, "correct": int(correct[i, j])}
        for i, model in enumerate(MODELS)
        for j, example in enumerate("xyz")
    ]
    return pd.DataFrame(rows)


def with_domains() -> pd.DataFrame:
    """Two more rows per model in distribution: a and b have both right, c one, d none."""
    within = [
        {"model": model, "example_id": f"in {k}", "correct": int(k < right), "domain": "id"}
        for model, right in zip(MODELS, (2, 2, 1, 0), strict=True)
        for k in range(2)
    ]
    return pd.concat([long().assign(domain="ood"), pd.DataFrame(within)], ignore_index=True)


# ----------------------------------------------------------------------------------------------- frames


def test_a_wide_frame_in_one_call() -> None:
    data = CorrectnessData.from_frame(wide(), id_accuracy=ACCURACY, n_id=50)
    assert matrix(data) == CORRECT.tolist()
    assert data.model_ids == MODELS
    assert data.example_ids.tolist() == ["x", "y", "z"]
    assert data.id_accuracy.tolist() == [0.9, 0.8, 0.7, 0.6]  # by name, not by place
    assert data.n_id is not None
    assert data.n_id.tolist() == [50] * 4


def test_a_wide_frame_may_hold_what_belongs_to_the_models() -> None:
    frame = wide().assign(accuracy=[0.9, 0.8, 0.7, 0.6], family=["u", "u", "v", "v"], run=[1, 1, 2, 3])
    data = CorrectnessData.from_frame(frame, id_accuracy="accuracy", group="run")
    assert matrix(data) == CORRECT.tolist()
    assert data.groups == ("1", "1", "2", "3")
    assert data.families == ("u", "u", "v", "v")


@pytest.mark.parametrize("given", [pd.Series(ACCURACY), ACCURACY, [0.9, 0.8, 0.7, 0.6]], ids=type)
def test_accuracies_are_matched_by_name_or_by_place(given: Any) -> None:
    assert CorrectnessData.from_frame(wide(), id_accuracy=given).id_accuracy.tolist() == [0.9, 0.8, 0.7, 0.6]


def test_a_long_frame_keeps_the_order_of_first_appearance() -> None:
    frame = long().iloc[::-1]
    data = CorrectnessData.from_frame(frame, id_accuracy=ACCURACY)
    assert data.model_ids == ("d", "c", "b", "a")
    assert data.example_ids.tolist() == ["z", "y", "x"]
    assert matrix(data) == CORRECT[::-1, ::-1].tolist()
    assert data.id_accuracy.tolist() == [0.6, 0.7, 0.8, 0.9]


def test_rows_in_distribution_give_the_accuracies() -> None:
    data = CorrectnessData.from_frame(with_domains())
    assert matrix(data) == CORRECT.tolist()
    assert data.id_accuracy.tolist() == [1.0, 1.0, 0.5, 0.0]
    assert data.n_id is not None
    assert data.n_id.tolist() == [2] * 4


def test_predictions_are_compared_with_labels() -> None:
    truth = {"x": "cat", "y": "dog", "z": "cat"}
    frame = long()
    frame["label"] = frame["example_id"].map(truth)
    frame["prediction"] = np.where(frame["correct"] == 1, frame["label"], "elk")
    data = CorrectnessData.from_frame(frame.drop(columns="correct"), id_accuracy=ACCURACY)
    assert matrix(data) == CORRECT.tolist()
    assert data.label_names == ("cat", "dog")
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, 0]


def test_facts_about_models_and_examples_are_columns_of_a_long_frame() -> None:
    frame = long()
    frame["family"] = frame["model"].map({"a": "u", "b": "u", "c": "v", "d": "v"})
    frame["site"] = frame["example_id"].map({"x": "north", "y": None, "z": "south"})
    frame["age"] = frame["example_id"].map({"x": 3.0, "y": np.nan, "z": 5.0})
    data = CorrectnessData.from_frame(frame, id_accuracy=ACCURACY, meta=["site", "age"])
    assert data.families == ("u", "u", "v", "v")
    assert data.groups is None
    assert data.meta["site"].tolist() == ["north", "", "south"]
    np.testing.assert_array_equal(data.meta["age"], [3.0, np.nan, 5.0])


def test_a_second_frame_tells_of_the_examples() -> None:
    known = pd.DataFrame({"label": [1, 0, 1, 2], "year": [4, 5, 6, 7]}, index=["z", "x", "y", "unused"])
    data = CorrectnessData.from_frame(wide(), id_accuracy=ACCURACY, examples=known, cells="correct")
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, 1]
    assert data.meta["year"].tolist() == [5, 6, 4]


@settings(max_examples=25)
@given(
    correct=hnp.arrays(np.uint8, st.tuples(st.integers(4, 8), st.integers(1, 6)), elements=st.integers(0, 1)),
    seed=st.integers(0, 2**16),
)
def test_long_and_wide_agree_in_any_order_of_rows(correct: np.ndarray, seed: int) -> None:
    m, n = correct.shape
    frame = pd.DataFrame(correct, index=[f"m{i}" for i in range(m)], columns=[f"e{j}" for j in range(n)])
    accuracy = {f"m{i}": i / m for i in range(m)}
    melted = (
        frame.rename_axis("model")
        .reset_index()
        .melt(id_vars="model", var_name="example_id", value_name="correct")
    )
    melted = melted.sample(frac=1, random_state=seed)
    one = CorrectnessData.from_frame(frame, id_accuracy=accuracy)
    other = CorrectnessData.from_frame(melted, id_accuracy=accuracy)
    models = np.array([other.model_ids.index(name) for name in one.model_ids])
    examples = np.array([other.example_ids.tolist().index(name) for name in one.example_ids.tolist()])
    assert one.hash == other.take_models(models).take_examples(examples).hash


def holed(frame: pd.DataFrame, model: str, example: str, value: Any) -> pd.DataFrame:
    at = (frame["model"] == model) & (frame["example_id"] == example)
    frame = frame.astype({"correct": object})
    frame.loc[at, "correct"] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (holed(long(), "b", "z", np.nan), "answer of model 'b' on example 'z' is missing"),
        (holed(long(), "b", "z", 2), "answer of model 'b' on example 'z' is 2"),
        (holed(long(), "b", "z", "yes"), "answer of model 'b' on example 'z' is 'yes'"),
        (long().drop(index=5), r"answer of model 'b' on example 'z' is missing \(1 of 12 cells are\)"),
        (pd.concat([long(), long().iloc[[5]]]), "model 'b' has 2 rows for example 'z'"),
        (long().replace({"model": {"b": None}}), r"frame\['model'\] is missing in row 3"),
        (long().drop(columns="correct"), "nor beside 'label' a 'prediction' or probabilities 'p_0', 'p_1'"),
        (long().iloc[:0], "table has no row"),
        (
            pd.DataFrame({"model": list("abcd"), "id_accuracy": [0.9, 0.8, 0.7, 0.6]}),
            "no answers beside model, id_accuracy. The table was read as wide",
        ),
        (wide().astype(float).replace(0, np.nan), "answer of model 'a' on example 'y' is missing"),
        (wide() * 3, "answer of model 'a' on example 'x' is 3"),
        (wide().set_axis(["a", "b", "c", "a"]), "two models are named 'a'"),
        (wide().set_axis(["x", "y", "x"], axis=1), "two columns of the table are named 'x'"),
        (
            long().rename(columns={"model": "name"}),
            "names example 'x' more than once, as a long table does, but has no column 'model'",
        ),
        (long().assign(family=list("uvw" * 4)), "model 'a' has two values of 'family'"),
        (long().assign(label=range(12)), "example 'x' has two values of 'label'"),
        (with_domains().replace({"domain": {"id": "train"}}), r"frame\['domain'\] holds 'train'"),
        (with_domains().replace({"domain": {"ood": "id"}}), "is never 'ood'"),
    ],
)
def test_a_frame_that_cannot_be_meant_is_refused(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CorrectnessData.from_frame(frame, id_accuracy=ACCURACY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "id_accuracy is missing, and the frame has no in-distribution rows"),
        ({"id_accuracy": {"a": 0.5}}, r"id_accuracy lacks model 'b' \(3 are missing\)"),
        ({"id_accuracy": {name: 100 * y for name, y in ACCURACY.items()}}, "divide them by 100"),
        ({"id_accuracy": [0.5]}, r"id_accuracy has shape \(1,\)"),
        ({"id_accuracy": ACCURACY, "meta": ["site"]}, "unknown column of the table 'site'"),
        ({"id_accuracy": ACCURACY, "group": "site"}, "unknown column of the table 'site'"),
        ({"id_accuracy": ACCURACY, "examples": pd.DataFrame(index=["x", "y"])}, "examples has no row 'z'"),
        ({"id_accuracy": ACCURACY, "examples": pd.DataFrame(index=["x", "x"])}, "examples lists 'x' twice"),
    ],
)
def test_options_that_do_not_fit_the_frame_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CorrectnessData.from_frame(long(), **options)


def test_a_wide_frame_has_no_columns_of_facts() -> None:
    with pytest.raises(InputError, match="give examples=FRAME .* instead"):
        CorrectnessData.from_frame(wide(), id_accuracy=ACCURACY, meta=["site"])


def test_a_model_without_rows_in_distribution_has_no_accuracy() -> None:
    frame = with_domains()
    frame = frame[~((frame["model"] == "c") & (frame["domain"] == "id"))]
    with pytest.raises(InputError, match="model 'c' has no in-distribution row"):
        CorrectnessData.from_frame(frame)


def test_the_nearest_name_of_a_column_is_offered() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'correct'"):
        CorrectnessData.from_frame(long(), id_accuracy="corect")


# ----------------------------------------------------------------------------------------------- estimators


class Constant:
    """Predicts one class."""

    def __init__(self, answer: Any):
        self.answer = answer

    def predict(self, X: Any) -> np.ndarray:
        return np.full(len(X), self.answer)


X_ID, Y_ID = np.zeros((4, 2)), np.array([0, 0, 0, 1])
X_OOD, Y_OOD = np.zeros((3, 2)), np.array([1, 0, 2])


def test_estimators_are_asked_about_both_parts() -> None:
    pairs = [(f"says {answer}", Constant(answer)) for answer in (0, 1, 2, 3)]
    data = CorrectnessData.from_estimators(pairs, X_ID, Y_ID, X_OOD, Y_OOD, example_ids=["x", "y", "z"])
    assert matrix(data) == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert data.id_accuracy.tolist() == [0.75, 0.25, 0.0, 0.0]
    assert data.n_id is not None
    assert data.n_id.tolist() == [4] * 4
    assert data.families == ("Constant",) * 4
    assert data.groups is None
    assert data.model_ids[1] == "says 1"
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 2]
    same = CorrectnessData.from_estimators(dict(pairs), X_ID, Y_ID, X_OOD, Y_OOD, example_ids=["x", "y", "z"])
    assert same.hash == data.hash


def test_the_family_is_that_of_the_classifier_inside() -> None:
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), np.where(np.arange(40) % 2, "odd", "even")
    kinds = {
        "pipe": make_pipeline(StandardScaler(), LogisticRegression()),
        "search": GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2]}, cv=2),
        "both": GridSearchCV(make_pipeline(StandardScaler(), RidgeClassifier()), {}, cv=2),
        "plain": RidgeClassifier(),
    }
    fitted = {name: kind.fit(X, y) for name, kind in kinds.items()}
    data = CorrectnessData.from_estimators(fitted, X, y, X[:7], y[:7], groups={name: name for name in kinds})
    assert data.families == (
        "LogisticRegression",
        "DecisionTreeClassifier",
        "RidgeClassifier",
        "RidgeClassifier",
    )
    assert data.groups == tuple(kinds)
    assert data.label_names == ("even", "odd")
    given = CorrectnessData.from_estimators(fitted, X, y, X[:7], y[:7], families=["u", "u", "v", "v"])
    assert given.families == ("u", "u", "v", "v")


def four(odd: Any) -> list[tuple[str, Any]]:
    return [("a", Constant(0)), ("b", Constant(0)), ("c", Constant(0)), ("odd", odd)]


class Unfitted:
    def predict(self, X: Any) -> np.ndarray:
        raise AttributeError("coef_")


class Short:
    def predict(self, X: Any) -> np.ndarray:
        return np.zeros(1)


@pytest.mark.parametrize(
    ("odd", "error", "message"),
    [
        (object(), InputError, "estimator 'odd' is a object without predict"),
        (Unfitted(), InputError, "estimator 'odd' cannot predict: coef_"),
        (Short(), ShapeError, r"estimator 'odd' predicts \(1,\) for 4 rows"),
        (Constant(0.5), InputError, "estimator 'odd' predicts numbers such as 0.5"),
        (Constant("cat"), InputError, "estimator 'odd' predicts .*'cat'.* where the class is"),
    ],
)
def test_an_estimator_that_cannot_answer_is_named(odd: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        CorrectnessData.from_estimators(four(odd), X_ID, Y_ID, X_OOD, Y_OOD)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_id": Y_ID[:3]}, r"y_id has shape \(3,\), but X_id has 4 rows"),
        ({"y_ood": np.array([0, np.nan, 1])}, r"y_ood\[1\] is NaN"),
        ({"X_id": X_ID[:0], "y_id": Y_ID[:0]}, "X_id has no row"),
        ({"estimators": four(Constant(0))[:3]}, "3 models; expected at least 4"),
        ({"estimators": [*four(Constant(0)), ("a", Constant(1))]}, "two models are named 'a'"),
        ({"families": {"a": "u"}}, "families lacks model 'b'"),
        ({"groups": ["u"]}, "groups holds 1 names"),
        ({"example_ids": ["x", "x", "y"]}, "'x' 2 times"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    given = {"estimators": four(Constant(1)), "X_id": X_ID, "y_id": Y_ID, "X_ood": X_OOD, "y_ood": Y_OOD}
    with pytest.raises(InputError, match=message):
        CorrectnessData.from_estimators(**{**given, **changed})


# ----------------------------------------------------------------------------------------------- zoo


def test_every_model_of_a_zoo_is_a_run_of_the_family_it_started_from() -> None:
    zoo = Zoo.embedded()
    images = draw_shapes("sketch", 24, seed=3)
    data = CorrectnessData.from_zoo(zoo, images)
    assert data.n_models == len(zoo.keys)
    assert data.groups == zoo.keys
    assert set(data.families or ()) == {"scratch", "masked", "styles"}
    assert data.n_id is not None
    assert data.n_id[0] == 600
    assert data.images is not None
    assert data.images.shape == images.pixels.shape
    assert data.label_names == images.classes
    assert data.example_ids[0] == f"{images.domain}/{images.ids[0]}"
    assert matrix(data) == zoo.correctness(images).correct.tolist()


def test_facts_about_images_come_along_unless_they_only_name_them() -> None:
    images = draw_shapes("sketch", 6, seed=3)
    fields = {
        "path": [f"{k}.png" for k in range(6)],
        "site": ["a", "b"] * 3,
        "size": range(6),
        "boxes": [(1, 2)] * 6,
    }
    data = CorrectnessData.from_zoo(
        Zoo.embedded(), dataclasses.replace(images, fields={k: list(v) for k, v in fields.items()})
    )
    assert data.meta["site"].tolist() == ["a", "b"] * 3
    assert data.meta["size"].tolist() == list(range(6))
    assert not {"path", "boxes"} & set(data.meta)


def test_accuracies_that_the_zoo_does_not_know_are_measured_or_missed() -> None:
    zoo = Zoo.embedded()
    unknown = dataclasses.replace(
        zoo, entries=tuple(dataclasses.replace(entry, id_accuracy=None) for entry in zoo.entries[:4])
    )
    images, within = draw_shapes("sketch", 6, seed=3), draw_shapes("flat", 12, seed=4)
    with pytest.raises(
        InputError, match="accuracy of 4 models of the zoo is not known.*give id_images= .--id-images."
    ):
        CorrectnessData.from_zoo(unknown, images)
    data = CorrectnessData.from_zoo(unknown, images, id_images=within)
    assert data.n_id is not None
    assert data.n_id.tolist() == [12] * 4
    assert data.id_accuracy.tolist() == zoo.correctness(within).accuracy[:4].tolist()

"""Is a subset a describable kind of input? Predict its members from features, on examples held out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets.baselines import baseline_rows
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import Correlation
from assay.analyses.subsets.members import SelectedExamples
from assay.analyses.subsets.problem import Problem
from assay.core.errors import InputError, ShapeError, check_least, check_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import auroc


if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

EXAMPLE_FOLDS = 5
_INNER_FOLDS = 3
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # C of the logistic regression
_MOST_TAUGHT = 20_000  # selected and unselected examples each that the membership model is trained on
_MOST_VALUES = 50  # values of a column of text beyond which it is not a category


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleHoldout(Record):
    """A subset predicted from features of the examples, on examples that took no part in selecting.

    Attributes:
        correlation: Of the test models on the pooled predicted set.
        random_mean: Mean R of random sets of that size on the same models.
        random_low: 2.5 % point of those.
        random_high: 97.5 % point.
        auroc: How well the features tell the members of the given subset from the rest, in folds held out;
            mean over the folds with both. 0.5 is chance.
        fold_aurocs: Per fold; NaN where a fold has no member or nothing else.
        predicted: Places of the predicted set.
        size: Its size.
        features: What the features are.
        n_features: How many.
        strengths: C chosen in each fold.
    """

    derived = ("describable",)

    correlation: Correlation
    random_mean: float
    random_low: float
    random_high: float
    auroc: float
    fold_aurocs: tuple[float, ...]
    predicted: Int64[np.ndarray, " size"]
    size: int
    features: str
    n_features: int
    strengths: tuple[float, ...]

    @property
    def describable(self) -> bool:
        """Whether R of the predicted set is below the range of 95 % of random sets, its interval below 0."""
        return self.correlation.r < self.random_low and self.correlation.high < 0


def example_holdout(
    selection: SelectedExamples,
    features: str | Float64[np.ndarray, "n d"] | np.ndarray | Sequence[str] | None = None,
    *,
    folds: int = EXAMPLE_FOLDS,
    seed: int | None = None,
) -> ExampleHoldout:
    """Is the subset a describable kind of input, or a list of single examples?

    For each of K folds of the examples: select S (K - 1) / K examples among the other folds, teach a logistic
    regression on features to tell them from the rest, and predict the S / K examples of the fold that look
    most like them. R of the test models on the pooled predictions, clearly below that of random sets, says
    that the features describe what makes better models fail.

    Args:
        selection: With its data.
        features: `embedding`; `meta` (metadata columns and class labels); names of metadata columns (`label`
            is the class); or an array `[N, d]`. Default: the embedding where the data have one, else `meta`.
        folds: Folds of the examples, at least 2.
        seed: Root seed. Default: that of the selection.

    Raises:
        InputError: For a selection without data, unknown or missing features, or a subset smaller than
            `folds`.
        ShapeError: If `features` has not one row per example.

    Notes:
        L2 penalty, classes balanced, C by cross-validation inside the training folds (AUROC). Of more than
        20 000 selected or unselected examples a random 20 000 train the regression. Quotas of the selection
        are kept within the folds; examples that must be included are not forced.
    """
    check_least(2, folds=folds)
    data, settings, size = selection.require_data("example hold-out"), selection.settings, selection.size
    if size < folds:
        raise InputError(f"a subset of {size} examples cannot fill {folds} folds; use at most {size} folds")
    phi, name = example_features(data, features)
    seed = settings.seed if seed is None else seed
    predictions = _predict_folds(selection, phi, folds, stream(seed, "example folds"))
    pooled = np.concatenate([each.examples for each in predictions])
    problem = Problem(data, selection.split, replace(settings, seed=seed))
    (random,) = baseline_rows(problem, [size], kinds=["random"])["random"]
    defined = [each.auroc for each in predictions if not math.isnan(each.auroc)]
    return ExampleHoldout(
        correlation=problem.correlate(pooled, unit_kind=data.unit_kind),
        random_mean=random.r,
        random_low=random.low,
        random_high=random.high,
        auroc=float(np.mean(defined)) if defined else math.nan,
        fold_aurocs=tuple(each.auroc for each in predictions),
        predicted=np.sort(pooled),
        size=size,
        features=name,
        n_features=phi.shape[1],
        strengths=tuple(each.strength for each in predictions),
    )


class _Prediction(NamedTuple):
    """Examples of one fold that look most like those selected among the others, and how well that worked."""

    examples: Int64[np.ndarray, " k"]
    auroc: float
    strength: float


def _predict_folds(
    selection: SelectedExamples, phi: Float64[np.ndarray, "n d"], folds: int, rng: np.random.Generator
) -> list[_Prediction]:
    """A prediction for each fold of the examples that could be selected."""
    data, size = selection.problem.data, selection.size
    possible = rng.permutation(selection.pool)
    fold_of = np.full(data.n_examples, -1, dtype=np.int64)
    fold_of[possible] = np.arange(len(possible)) % folds
    member = np.zeros(data.n_examples, dtype=bool)
    member[selection.indices] = True
    predictions = []
    for fold in range(folds):
        n_predicted = size // folds + (fold < size % folds)
        others, here = (fold_of >= 0) & (fold_of != fold), np.flatnonzero(fold_of == fold)
        if size - n_predicted >= others.sum() or n_predicted > len(here):
            raise InputError(
                f"a subset of {size} of {len(possible)} examples leaves too few examples to predict in "
                f"{folds} folds; choose a smaller subset"
            )
        chosen = selection.problem.solve(size - n_predicted, allowed=others, must_include=None).indices
        model, strength = _membership(phi, chosen, np.flatnonzero(others), rng)
        score = np.asarray(model.decision_function(phi[here]), dtype=np.float64)
        predictions.append(
            _Prediction(
                examples=here[np.argsort(-score, kind="stable")[:n_predicted]],
                auroc=auroc(score, member[here]).value if 0 < member[here].sum() < len(here) else math.nan,
                strength=strength,
            )
        )
    return predictions


def _membership(
    phi: Float64[np.ndarray, "n d"], chosen: Places, pool: Places, rng: np.random.Generator
) -> "tuple[Pipeline, float]":
    """A logistic regression of being chosen on standardised features, and its C."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    others, chosen = (
        each if len(each) <= _MOST_TAUGHT else rng.choice(each, _MOST_TAUGHT, replace=False)
        for each in (np.setdiff1d(pool, chosen), chosen)
    )
    rows = np.concatenate([chosen, others])
    is_member = np.arange(len(rows)) < len(chosen)
    pipeline = make_pipeline(
        StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000, C=_STRENGTHS[0])
    )
    inner = min(_INNER_FOLDS, len(chosen), len(others))
    if inner < 2:
        return pipeline.fit(phi[rows], is_member), _STRENGTHS[0]
    search = GridSearchCV(
        pipeline,
        {"logisticregression__C": list(_STRENGTHS)},
        scoring="roc_auc",
        cv=StratifiedKFold(inner, shuffle=True, random_state=int(rng.integers(2**31))),
    )
    search.fit(phi[rows], is_member)
    return search.best_estimator_, float(search.best_params_["logisticregression__C"])


def example_features(
    data: CorrectnessData, features: str | np.ndarray | Sequence[str] | None = None
) -> tuple[Float64[np.ndarray, "n d"], str]:
    """Features of the examples as numbers, and what they are.

    Categories become one column per value, a missing value being one of its own; numbers stay, a missing one
    takes the mean and a column that marks it.

    Args:
        data: With an embedding, metadata or labels.
        features: As in `example_holdout`.
    """
    if isinstance(features, np.ndarray):
        numbers = np.asarray(features, dtype=np.float64)
        if numbers.ndim != 2 or len(numbers) != data.n_examples:
            raise ShapeError(
                f"features has shape {numbers.shape}; expected one row for each of {data.n_examples} examples"
            )
        if not np.isfinite(numbers).all():
            raise InputError("features holds NaN or infinite numbers")
        return numbers, "given"
    if features is None:
        features = "embedding" if data.embedding is not None else "meta"
    if isinstance(features, str) and features == "embedding":
        if data.embedding is None:
            raise InputError(
                "features='embedding', but the data have no embedding; give embedding= or other features"
            )
        return data.embedding.astype(np.float64), "embedding"
    columns: dict[str, np.ndarray] = dict(data.meta)
    if data.labels is not None:
        columns["label"] = data.labels.astype(str)
    if isinstance(features, str) and features == "meta":
        if not columns:
            raise InputError(
                "the data have no embedding, metadata or labels; give features= as an array [N, d]"
            )
        name, names = "meta", [name for name, column in columns.items() if _usable(column)]
    else:
        names = [features] if isinstance(features, str) else list(features)
        for each in names:
            check_name("column of the examples", each, columns)
        name = ", ".join(names)
    if not names:
        raise InputError(
            "no metadata column is usable: it must hold numbers, or 2 to 50 values. Give features="
        )
    return np.concatenate([_encoded(columns[each]) for each in names], axis=1), name


def _usable(column: np.ndarray) -> bool:
    return column.dtype.kind in "fiub" or 2 <= len(np.unique(column.astype(str))) <= _MOST_VALUES


def _encoded(column: np.ndarray) -> Float64[np.ndarray, "n d"]:
    if column.dtype.kind in "fiu" and len(np.unique(column)) > 2:
        values = column.astype(np.float64)
        missing = ~np.isfinite(values)
        if not missing.any():
            return values[:, None]
        mean = values[~missing].mean() if (~missing).any() else 0.0
        return np.stack([np.where(missing, mean, values), missing.astype(np.float64)], axis=1)
    codes = np.unique(column.astype(str), return_inverse=True)[1]
    return np.asarray(codes[:, None] == np.arange(codes.max() + 1), dtype=np.float64)

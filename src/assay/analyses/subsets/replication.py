"""Does a subset come back: example by example, from other models, or from other examples of its kind?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64, Int64
from scipy import special

from assay.analyses.subsets.baselines import random_baseline
from assay.analyses.subsets.consistency import consistency_within
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import Matrix
from assay.analyses.subsets.line import Correlation, correlate, probit
from assay.analyses.subsets.members import SelectedExamples
from assay.analyses.subsets.permutation import (
    Exchange,
    Kind,
    n_workers,
    run_permutations,
)
from assay.analyses.subsets.problem import Problem, Progress
from assay.analyses.subsets.splits import halves
from assay.core.errors import InputError, ShapeError, unknown_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import auroc, benjamini_hochberg


if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

LEVEL = 0.05
N_HALVES_NULL = 19
EXAMPLE_FOLDS = 5
N_BINS = 40
_LEAST_DF = 1.0
_COLUMNS = 1 << 21  # entries worked on at a time
_INNER_FOLDS = 3
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # C of the logistic regression
_MOST_OTHERS = 20_000  # unselected examples the membership model is trained on
_MOST_VALUES = 50  # values of a column of text beyond which it is no category


# ------------------------------------------------------------------------------------ example by example


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleReplication(Record):
    """Each example by itself on the test models: is a right answer rarer among better models?

    Attributes:
        r: Correlation over test models of being right with probit(y), of each selected example in rank order;
            NaN where all models agree.
        degrees_of_freedom: n_eff - 2 of the test of each; NaN where it is undefined.
        n_models: Test models.
        share_negative: Share of the subset with r < 0, of those that vary.
        share_discovered: Share of the subset with Benjamini-Hochberg q <= 0.05; constant examples have p = 1.
        pool_share_negative: The same of the unselected examples.
        pool_share_discovered: The same of the unselected examples, corrected among themselves.
        n_constant: Selected examples on which all test models agree.
        edges: `[41]` ends of the bins of r.
        counts: Selected examples per bin.
        pool_counts: Unselected examples per bin.
        level: Of the false discovery rate.
    """

    r: Float64[np.ndarray, " size"]
    degrees_of_freedom: float
    n_models: int
    share_negative: float
    share_discovered: float
    pool_share_negative: float
    pool_share_discovered: float
    n_constant: int
    edges: Float64[np.ndarray, " n_edges"]
    counts: Int64[np.ndarray, " n_bins"]
    pool_counts: Int64[np.ndarray, " n_bins"]
    level: float = LEVEL

    @property
    def p_values(self) -> Float64[np.ndarray, " size"]:
        """One-sided t p-value of each selected example; 1 where all models agree."""
        return slope_p_values(self.r, self.degrees_of_freedom)


def replicate_examples(selection: SelectedExamples, *, level: float = LEVEL) -> ExampleReplication:
    """Test every selected example, and every other one, on the models that took no part in selecting.

    r_j = correlation over test models of X_j with probit(y); one-sided t test of r_j < 0 with n_eff - 2
    degrees of freedom, n_eff the independent models that would spread as much as the cluster bootstrap of the
    test R; Benjamini-Hochberg among the selected and among the others.

    Args:
        selection: With its data.
        level: Of the false discovery rate, in (0, 1).

    Returns:
        Shares in [0, 1]; those discovered NaN where n_eff is undefined, those negative NaN where no example
        varies.

    Raises:
        InputError: For a selection loaded without data, or a level outside (0, 1).

    Notes:
        In simulations the share discovered was .7 to .9 in strong planted sets, and 0 where no example had a
        negative slope. n_eff is at most the number of models: resampling can only say that they are fewer.
    """
    if not 0 < level < 1:
        raise InputError(f"level is {level}; a share above 0 and below 1 is needed")
    data = selection.require_data("replication of examples")
    models = selection.split.test
    matrix = data.matrix(models, layout=selection.settings.layout, device=selection.settings.device)
    r = example_correlations(matrix, data.id_accuracy[models], eps=selection.settings.eps)
    n_eff = selection.correlation["test"].n_eff
    df = max(_LEAST_DF, min(n_eff, float(len(models))) - 2) if not math.isnan(n_eff) else math.nan
    chosen = np.zeros(data.n_examples, dtype=bool)
    chosen[selection.indices] = True
    edges = np.linspace(-1.0, 1.0, N_BINS + 1)
    allowed = selection.settings.allowed
    inside, outside = r[selection.indices], r[~chosen if allowed is None else allowed & ~chosen]
    return ExampleReplication(
        r=inside,
        degrees_of_freedom=df,
        n_models=len(models),
        share_negative=_share_negative(inside),
        share_discovered=_share_discovered(inside, df, level),
        pool_share_negative=_share_negative(outside),
        pool_share_discovered=_share_discovered(outside, df, level),
        n_constant=int(np.isnan(inside).sum()),
        edges=edges,
        counts=np.histogram(inside[np.isfinite(inside)], edges)[0].astype(np.int64),
        pool_counts=np.histogram(outside[np.isfinite(outside)], edges)[0].astype(np.int64),
        level=level,
    )


def example_correlations(
    matrix: Matrix, id_accuracy: Float64[np.ndarray, " m"], *, eps: float | int = 1e-6
) -> Float64[np.ndarray, " n"]:
    """Pearson correlation over models of being right on an example with probit(y), for every example.

    Args:
        matrix: Models by examples, in any layout; read in chunks of columns.
        id_accuracy: Of the same models.
        eps: Clip of the accuracies.

    Returns:
        In [-1, 1]; NaN where all models agree, and everywhere where all have one in-distribution accuracy.
    """
    z = probit(id_accuracy, eps=eps)
    z = z - z.mean()
    length = math.sqrt(float(z @ z))
    found = np.full(matrix.n_examples, np.nan)
    if length * length < 1e-18:
        return found
    m = matrix.n_models
    for columns in column_chunks(matrix.n_examples, m):
        x = matrix.dense(columns).astype(np.float64)
        count = x.sum(axis=0)
        spread = np.sqrt(count * (m - count) / m)
        r = np.full(len(columns), np.nan)
        np.divide(z @ x, spread * length, out=r, where=spread > 0)
        found[columns] = np.clip(r, -1.0, 1.0)
    return found


def slope_p_values(r: Float64[np.ndarray, " n"], df: float | int) -> Float64[np.ndarray, " n"]:
    """One-sided p of a correlation below 0: P(T <= r sqrt(df / (1 - r^2))), T Student's with df degrees.

    Args:
        r: Correlations; NaN (no variation) gives 1.
        df: Degrees of freedom; NaN gives NaN.
    """
    if math.isnan(df):
        return np.full(len(r), np.nan)
    with np.errstate(divide="ignore"):
        t = np.where(np.isnan(r), 0.0, r) * np.sqrt(df / (1 - np.nan_to_num(r) ** 2))
    return np.where(np.isnan(r), 1.0, special.stdtr(df, t))


def column_chunks(n_examples: int, n_models: int) -> Iterator[Int64[np.ndarray, " k"]]:
    """Places of examples, so many at a time that a dense chunk over the models stays small."""
    width = max(1, _COLUMNS // max(n_models, 1))
    for start in range(0, n_examples, width):
        yield np.arange(start, min(start + width, n_examples))


def _share_negative(r: Float64[np.ndarray, " n"]) -> float:
    varying = r[np.isfinite(r)]
    return float(np.mean(varying < 0)) if len(varying) else math.nan


def _share_discovered(r: Float64[np.ndarray, " n"], df: float, level: float) -> float:
    if math.isnan(df) or len(r) == 0:
        return math.nan
    return float(np.mean(benjamini_hochberg(slope_p_values(r, df)) <= level))


# ---------------------------------------------------------------------------------- halves of the models


@dataclass(frozen=True, kw_only=True, eq=False)
class HalfReplication(Record):
    """Two selections from halves of the training models that share no unit.

    Attributes:
        normalised: J_norm of the two: 1 the same set, 0 as alike as two random draws; NaN where undefined.
        jaccard: |A and B| / |A or B|.
        null: J_norm of two such selections under permuted in-distribution accuracies.
        p_value: (1 + number of null values at least as high) / (B + 1); NaN where `normalised` is.
        n_models: Models of the two halves.
        n_units: Their units.
        kind: What was permuted: `group` (units) or `free` (models).
    """

    normalised: float
    jaccard: float
    null: tuple[float, ...]
    p_value: float
    n_models: tuple[int, int]
    n_units: tuple[int, int]
    kind: str


def replicate_halves(
    selection: SelectedExamples,
    *,
    n_permutations: int = N_HALVES_NULL,
    kind: Kind | None = None,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> HalfReplication:
    """Select twice, on disjoint halves of the training units, and compare the two sets with each other.

    Both are stopped by the same validation models, which alone makes them alike: the number means something
    only beside the same number under permuted in-distribution accuracies.

    Args:
        selection: With its data; its size, settings and split are used.
        n_permutations: Permutations behind the null, at least 1.
        kind: `group` permutes units, `free` models; see `permute_accuracy`. Default: `group` where training
            runs or families are known.
        seed: Root seed. Default: that of the selection.
        workers: Threads. Default: one per core. The result does not depend on it.
        progress: Called with stage, permutations done and their number.

    Raises:
        InputError: For a selection without data, or if a half would hold fewer than 4 models.

    Notes:
        Overlap over sizes of one path is no evidence; overlap over models is, and this is the variant that
        tells them apart. Two selections per permutation.
    """
    if n_permutations < 1:
        raise InputError(
            f"n_permutations is {n_permutations}; at least 1 is needed, {N_HALVES_NULL} by default"
        )
    data, settings = selection.require_data("replication on halves"), selection.settings
    seed = settings.seed if seed is None else seed
    split, size = selection.split, selection.size
    first, second = halves(split.train, data.units, seed=seed)
    problems = [Problem.of(data, replace(split, train=half), settings) for half in (first, second)]
    exchange = Exchange.of(data, kind)

    def overlap(y: Float64[np.ndarray, " m"]) -> tuple[float, float]:
        found = consistency_within(
            [problem.solve(size, id_accuracy=y).indices for problem in problems], selection.pool
        )
        return float(found.normalised[0, 1]), float(found.jaccard[0, 1])

    normalised, jaccard = run_permutations(lambda _: overlap(data.id_accuracy), 1)[0]
    drawn = run_permutations(
        lambda place: overlap(exchange.draw(data.id_accuracy, seed, place))[0],
        n_permutations,
        workers=n_workers(workers, settings),
        progress=progress,
        stage="halves under permuted accuracies",
    )
    null = np.array(drawn)
    # An undefined overlap is no evidence against chance.
    reached = int(np.sum(np.isnan(null) | (null >= normalised)))
    return HalfReplication(
        normalised=normalised,
        jaccard=jaccard,
        null=tuple(drawn),
        p_value=math.nan if math.isnan(normalised) else (1 + reached) / (1 + n_permutations),
        n_models=(len(first), len(second)),
        n_units=(len(np.unique(data.units[first])), len(np.unique(data.units[second]))),
        kind=exchange.kind,
    )


# ------------------------------------------------------------------------------------------ other examples


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
        """Whether R of the predicted set lies below 95 % of random sets and below 0."""
        return self.correlation.r < min(self.random_low, 0.0)


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
        L2 penalty, classes balanced, C by cross-validation inside the training folds (AUROC). Beyond 20 000
        unselected examples a random 20 000 of them train the regression. Quotas of the selection are kept
        within the folds; examples that must be included are not forced.
    """
    if folds < 2:
        raise InputError(f"folds is {folds}; at least 2 are needed")
    data, settings, size = selection.require_data("example hold-out"), selection.settings, selection.size
    if size < folds:
        raise InputError(f"a subset of {size} examples cannot fill {folds} folds; use at most {size} folds")
    phi, name = example_features(data, features)
    seed = settings.seed if seed is None else seed
    rng = stream(seed, "example folds")
    allowed = np.ones(data.n_examples, dtype=bool) if settings.allowed is None else settings.allowed
    fold_of = np.full(data.n_examples, -1, dtype=np.int64)
    possible = rng.permutation(np.flatnonzero(allowed))
    fold_of[possible] = np.arange(len(possible)) % folds
    member = np.zeros(data.n_examples, dtype=bool)
    member[selection.indices] = True
    base = Problem.of(data, selection.split, settings)
    predicted, aurocs, strengths = [], [], []
    for fold in range(folds):
        n_predicted = size // folds + (fold < size % folds)
        others, here = (fold_of >= 0) & (fold_of != fold), np.flatnonzero(fold_of == fold)
        if size - n_predicted > others.sum() or n_predicted > len(here):
            raise InputError(
                f"a subset of {size} of {len(possible)} examples leaves nothing to predict in {folds} folds; "
                "choose a smaller subset"
            )
        problem = replace(base, settings=replace(settings, allowed=others, must_include=None))
        chosen = problem.solve(size - n_predicted).indices
        model, strength = _membership(phi, chosen, np.flatnonzero(others), rng)
        score = np.asarray(model.decision_function(phi[here]), dtype=np.float64)
        predicted.append(here[np.argsort(-score, kind="stable")[:n_predicted]])
        aurocs.append(auroc(score, member[here]).value if 0 < member[here].sum() < len(here) else math.nan)
        strengths.append(strength)
    pooled = np.concatenate(predicted)
    models = selection.split.test
    baseline = random_baseline(
        data,
        models,
        size,
        seed=seed,
        eps=settings.eps,
        clip=settings.clip,
        allowed=settings.allowed,
        strata=settings.strata,
    )
    defined = [each for each in aurocs if not math.isnan(each)]
    return ExampleHoldout(
        correlation=correlate(
            data.id_accuracy[models],
            data.accuracy_on(pooled, models),
            units=data.units[models],
            size=size,
            eps=settings.eps,
            clip=settings.clip,
            seed=seed,
        ),
        random_mean=baseline.mean,
        random_low=baseline.low,
        random_high=baseline.high,
        auroc=float(np.mean(defined)) if defined else math.nan,
        fold_aurocs=tuple(aurocs),
        predicted=np.sort(pooled),
        size=size,
        features=name,
        n_features=phi.shape[1],
        strengths=tuple(strengths),
    )


def _membership(
    phi: Float64[np.ndarray, "n d"],
    chosen: Int64[np.ndarray, " k"],
    pool: Int64[np.ndarray, " p"],
    rng: np.random.Generator,
) -> "tuple[Pipeline, float]":
    """A logistic regression of being chosen on standardised features, and its C."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    others = np.setdiff1d(pool, chosen)
    if len(others) > _MOST_OTHERS:
        others = rng.choice(others, _MOST_OTHERS, replace=False)
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
        given = np.asarray(features, dtype=np.float64)
        if given.ndim != 2 or len(given) != data.n_examples:
            raise ShapeError(
                f"features has shape {given.shape}; one row for each of {data.n_examples} examples is needed"
            )
        if not np.isfinite(given).all():
            raise InputError("features holds NaN or infinite numbers")
        return given, "given"
    columns: dict[str, np.ndarray] = dict(data.meta)
    if data.labels is not None:
        columns["label"] = data.labels.astype(str)
    if features is None:
        features = "embedding" if data.embedding is not None else "meta"
    if isinstance(features, str) and features == "embedding":
        if data.embedding is None:
            raise InputError("features='embedding' and the data have none; give embedding= or other features")
        return data.embedding.astype(np.float64), "embedding"
    if isinstance(features, str) and features == "meta":
        if not columns:
            raise InputError(
                "the data have no embedding, metadata or labels; give features= as an array [N, d]"
            )
        names = [name for name, column in columns.items() if _usable(column)]
        label = "meta"
    else:
        names = [features] if isinstance(features, str) else list(features)
        for name in names:
            if name not in columns:
                raise unknown_name("column of the examples", name, columns)
        label = ", ".join(names)
    encoded = [_encoded(columns[name]) for name in names]
    if not encoded:
        raise InputError("no metadata column has between 2 and 50 values or holds numbers; give features=")
    return np.concatenate(encoded, axis=1), label


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

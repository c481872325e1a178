"""What predicts performance without circuits: confidence, energy, features, sharpness, agreement.

Logits in, numbers out, in float64. Each function says whether it needs labels and which way it is expected
to go with performance. Sharpness, the one that runs a model, has a module of its own.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int, Int64, Real
from scipy import linalg, optimize, sparse
from scipy import stats as scipy_stats
from scipy.special import log_softmax, logsumexp
from torch import Tensor

from assay.analyses.generalization.sharpness import sharpness
from assay.core.errors import (
    DegenerateDataWarning,
    InconsistentRunError,
    InputError,
    NonFiniteError,
    ShapeError,
    unknown_name,
)


__all__ = [
    "AgreementLine",
    "agreement_on_the_line",
    "alpha_req",
    "atc",
    "atc_threshold",
    "average_confidence",
    "average_negative_entropy",
    "cot",
    "doc",
    "energy",
    "fit_temperature",
    "id_accuracy",
    "rankme",
    "sharpness",
]

Table = Real[Tensor, "n c"] | Real[np.ndarray, "n c"]
NewTable = Real[Tensor, "m c"] | Real[np.ndarray, "m c"]
Labels = Int[Tensor, " n"] | Int[np.ndarray, " n"]
Predictions = Int[Tensor, "models n"] | Int[np.ndarray, "models n"]
NewPredictions = Int[Tensor, "models m"] | Int[np.ndarray, "models m"]

MEASURES = ("accuracy", "macro-f1")
ATC_SCORES = ("maxconf", "negentropy")
PROBIT_MARGIN = 1e-6  # keeps the probit of accuracies 0 and 1 finite


# ------------------------------------------------------------------------------------ outputs alone


def average_confidence(logits: Table) -> float:
    """Mean largest probability (AC).

    Args:
        logits: `[n_examples, n_classes]` on the target data.

    Returns:
        In [1 / n_classes, 1]; expected to rise with performance. Needs no labels.

    Raises:
        ShapeError, NonFiniteError: For what is no table of finite logits.

    References:
        Hendrycks and Gimpel (2017), arXiv:1610.02136.

    Example:
        >>> average_confidence(np.array([[0.0, 0.0], [math.log(3), 0.0]]))
        0.625
    """
    return float(np.exp(_log_probabilities(logits)).max(1).mean())


def average_negative_entropy(logits: Table) -> float:
    """Mean of sum_c p_c log p_c, p_c from below at 1e-12 inside the logarithm (ANE).

    Args:
        logits: `[n_examples, n_classes]` on the target data.

    Returns:
        Nats, in [-log n_classes, 0]; expected to rise with performance. Needs no labels.

    Raises:
        ShapeError, NonFiniteError: For what is no table of finite logits.
    """
    return float(_negative_entropy(_log_probabilities(logits)).mean())


def energy(logits: Table, *, log: bool = True, center: bool = False, temperature: float = 1.0) -> float:
    """Meta-distribution energy (MDE): how unevenly the energies of the examples are spread.

    Z_i = -T logsumexp(l_i / T); MDE = log(-mean_i log softmax_i(Z)), softmax over the examples.

    Args:
        logits: `[n_examples, n_classes]` on the target data.
        log: Take the outer logarithm.
        center: Subtract log n_examples, the value of equal energies, first: for sets of different sizes.
        temperature: T, > 0.

    Returns:
        Real; the inner value is >= log n_examples, so uncentred values compare only between sets of one size.
        Needs no labels.

    Raises:
        InputError: For a temperature that is not above 0.
        ShapeError, NonFiniteError: For what is no table of finite logits.

    Notes:
        Equal energies (one example, too) have centred inner value 0, whose logarithm is NaN with a
        `DegenerateDataWarning`.

    References:
        Peng et al. (2024), "Energy-based automated model evaluation", arXiv:2401.12689.
    """
    if not temperature > 0:
        raise InputError(f"temperature is {temperature}; it must be above 0")
    values = _table(logits, "logits")
    energies = -temperature * logsumexp(values / temperature, axis=1)
    inner = -float(log_softmax(energies).mean())
    if center:
        inner = max(inner - math.log(len(values)), 0.0)
    if not log:
        return inner
    if inner <= 1e-15:
        warnings.warn(
            "the energy has no logarithm: all examples have one energy", DegenerateDataWarning, stacklevel=2
        )
        return math.nan
    return math.log(inner)


# ----------------------------------------------------------------------------------------- features


def rankme(features: Table, *, center: bool = False, variant: str = "published") -> float:
    """Effective rank of the features: exp of the entropy of the normalised singular values (RankMe).

    p_k = s_k / sum s + 1e-7; exp(-sum_k p_k log p_k).

    Args:
        features: `[n_examples, n_features]`: what enters the head (final-norm CLS token).
        center: Subtract the mean feature first.
        variant: `"published"`, or `"eigenvalue_ratio"` for the authors' code of the circuit metrics: centred,
            p_k = s_k^2 / sum s^2 + 1e-7.

    Returns:
        Between 1 and min(n_examples, n_features), up to 1e-7 per value; expected to rise with performance.
        Needs no labels. NaN with a `DegenerateDataWarning` for features that are 0 throughout.

    Raises:
        UnknownNameError: For another `variant`.
        ShapeError, NonFiniteError: For what is no table of finite features.

    References:
        Garrido et al. (2023), arXiv:2210.02885, Eq. 1.
    """
    if variant not in ("published", "eigenvalue_ratio"):
        raise unknown_name("variant", variant, ("published", "eigenvalue_ratio"))
    values = _table(features, "features")
    squared = variant == "eigenvalue_ratio"
    if center or squared:
        values = values - values.mean(0)
    sizes = linalg.svdvals(values)
    if not sizes[0] > 0:
        warnings.warn("RankMe is undefined: the features do not vary", DegenerateDataWarning, stacklevel=2)
        return math.nan
    sizes = sizes / sizes[0]
    if squared:
        sizes = sizes**2
    p = sizes / sizes.sum() + 1e-7
    return float(np.exp(-(p * np.log(p)).sum()))


def alpha_req(features: Table, *, start: int = 11, stop: int = 100) -> float:
    """Decay of the spectrum of the features: -slope of log eigenvalue on log index (alpha-ReQ).

    Weighted least squares over the indices `start` to `stop` (from 1) of the eigenvalues of the centred
    covariance, descending, with weights 1 / index.

    Args:
        features: `[n_examples, n_features]`: what enters the head.
        start: First index used.
        stop: Last index used; fewer eigenvalues end it earlier.

    Returns:
        The exponent alpha; 1 is the critical decay. Needs no labels.

    Raises:
        InputError: For fewer than 20 non-zero eigenvalues, or fewer than 2 in the range.
        ShapeError, NonFiniteError: For what is no table of finite features.

    References:
        Agrawal et al. (2022), "alpha-ReQ", NeurIPS.
    """
    values = _table(features, "features")
    sizes = linalg.svdvals(values - values.mean(0))
    usable = sizes[sizes > max(values.shape) * np.finfo(np.float64).eps * sizes[0]] ** 2
    last = min(stop, len(usable))
    if len(usable) < 20 or last - start < 1 or start < 1:
        raise InputError(
            f"features of shape {values.shape} have {len(usable)} non-zero eigenvalues; alpha-ReQ fits the "
            f"{start}th to the {stop}th and needs 20: give more examples"
        )
    index = np.arange(start, last + 1, dtype=np.float64)
    x, y = np.log(index), np.log(usable[start - 1 : last])
    weights = 1 / index / (1 / index).sum()
    x_off, y_off = x - weights @ x, y - weights @ y
    return -float((weights * x_off) @ y_off / ((weights * x_off) @ x_off))


# --------------------------------------------------------------------------- estimates of accuracy


def id_accuracy(logits: Table, labels: Labels, *, measure: str = "accuracy") -> float:
    """Performance on labelled in-distribution data, as a predictor of performance elsewhere.

    Args:
        logits: `[n_examples, n_classes]`; the largest predicts, the first of equals.
        labels: `[n_examples]`, 0 to n_classes - 1.
        measure: `"accuracy"`, or `"macro-f1"`: mean F1 of the classes that occur in the labels (as WILDS).

    Returns:
        In [0, 1]; expected to rise with performance. Use the measure of the target.

    Raises:
        InputError: For labels that are missing or outside the classes.
        UnknownNameError: For another `measure`.

    Example:
        >>> id_accuracy(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
        0.5
    """
    if measure not in MEASURES:
        raise unknown_name("measure", measure, MEASURES)
    values = _table(logits, "logits")
    truth = _labels(labels, values)
    predicted = values.argmax(1)
    if measure == "accuracy":
        return float((predicted == truth).mean())
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, labels=np.unique(truth), average="macro", zero_division=0))


def atc_threshold(scores: Real[np.ndarray, " n"], correct: Bool[np.ndarray, " n"]) -> float:
    """The score above which, on labelled data, as many examples lie as are correct.

    Scanning the scores in ascending order, wrong answers above the i-th minus right ones up to it are
    n_wrong - i; the threshold is the score where this is 0, the n_wrong-th. With no wrong answer it stays at
    the 0 that the scan starts from.
    """
    wrong = int((~correct).sum())
    return float(np.sort(scores)[wrong - 1]) if wrong else 0.0


def atc(
    id_logits: Table, id_labels: Labels, logits: NewTable, *, score: str = "maxconf", calibrate: bool = False
) -> float:
    """Accuracy on unlabelled data from a confidence threshold learned on labelled data (ATC).

    Args:
        id_logits: `[n, n_classes]` on labelled in-distribution data.
        id_labels: `[n]`.
        logits: `[m, n_classes]` on the target data.
        score: `"maxconf"`: largest probability; `"negentropy"`: sum_c p_c log p_c.
        calibrate: Scale all logits first by the temperature that fits the labelled data best.

    Returns:
        Share of target examples whose score reaches the threshold, in [0, 1]; estimates accuracy.

    Raises:
        InputError: For labels that are missing or outside the classes.
        UnknownNameError: For another `score`.

    Notes:
        On the labelled data themselves the estimate exceeds the accuracy by 1/n: the threshold counts, as in
        the authors' code. With no wrong answer there the published scan ends where it starts, at threshold 0,
        which every largest probability reaches (estimate 1) and hardly any negative entropy (near 0).

    References:
        Garg et al. (2022), arXiv:2201.04234.
    """
    if score not in ATC_SCORES:
        raise unknown_name("score", score, ATC_SCORES)
    known, new = _table(id_logits, "id_logits"), _table(logits, "logits")
    if known.shape[1] != new.shape[1]:
        raise ShapeError(
            f"logits have {new.shape[1]} classes and id_logits {known.shape[1]}; both are of one model"
        )
    truth = _labels(id_labels, known)
    scale = 1 / fit_temperature(known, truth) if calibrate else 1.0
    known_scores, new_scores = (_confidence(_log_probabilities(each * scale), score) for each in (known, new))
    threshold = atc_threshold(known_scores, known.argmax(1) == truth)
    return float((new_scores >= threshold).mean())


def fit_temperature(logits: Table, labels: Labels) -> float:
    """The temperature T under which softmax(logits / T) has the least negative log-likelihood.

    Args:
        logits: `[n, n_classes]`.
        labels: `[n]`.

    Returns:
        T in [0.01, 100].

    References:
        Guo et al. (2017), arXiv:1706.04599.
    """
    values = _table(logits, "logits")
    truth = _labels(labels, values)
    rows = np.arange(len(truth))

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(values / math.exp(log_temperature), axis=1)[rows, truth].mean())

    found = optimize.minimize_scalar(loss, bounds=(math.log(0.01), math.log(100)), method="bounded")
    return math.exp(float(found.x))


def doc(id_logits: Table, id_labels: Labels, logits: NewTable) -> float:
    """Accuracy on unlabelled data: in-distribution accuracy less the drop of mean confidence (DoC).

    Args:
        id_logits: `[n, n_classes]` on labelled in-distribution data.
        id_labels: `[n]`.
        logits: `[m, n_classes]` on the target data.

    Returns:
        accuracy - (AC(id) - AC(target)), clipped to [0, 1]; estimates accuracy.

    Raises:
        InputError: For labels that are missing or outside the classes.

    References:
        Guillory et al. (2021), "Predicting with confidence on unseen distributions", arXiv:2107.03315 (the
        difference itself, without a regression on other data).
    """
    drop = average_confidence(id_logits) - average_confidence(logits)
    return min(max(id_accuracy(id_logits, id_labels) - drop, 0.0), 1.0)


def cot(id_labels: Labels, logits: NewTable) -> float:
    """Accuracy on unlabelled data from the cheapest match of its predictions to known label shares (COT).

    1 - the optimal transport cost between the predicted distributions of the examples (mass 1/m each) and the
    one-hot labels (mass = share of each class in `id_labels`), at cost ||p - e_c||_inf = 1 - p_c.

    Args:
        id_labels: `[n]` of labelled in-distribution data; only their shares count.
        logits: `[m, n_classes]` on the target data.

    Returns:
        In [0, 1]; estimates accuracy, never above the mean confidence.

    Raises:
        InputError: For labels that are missing or outside the classes.

    Notes:
        Assumes that the target has the label shares of the labelled data. A linear programme of m x n_classes
        unknowns, of which the solver gets those that can matter: a second for 10,000 examples of 7 classes,
        a quarter of a minute for 2,000 of 1,000.

    References:
        Lu et al. (2023), "Characterizing out-of-distribution error via optimal transport", arXiv:2305.15640.
    """
    p = np.exp(_log_probabilities(logits))
    n_classes = p.shape[1]
    labels = _label_array(id_labels, n_classes)
    shares = np.bincount(labels, minlength=n_classes) / len(labels)
    return float(np.clip(_transported(p, shares), 0.0, 1.0))


def _transported(gain: Float64[np.ndarray, "m c"], shares: Float64[np.ndarray, " c"]) -> float:
    """Largest sum of x * gain over plans x >= 0 with row sums 1 / m and column sums `shares`.

    By column generation: solved with few cells, then again with those that would raise the sum, as the prices
    of the solution say, until there is none; the plan is then the best of all.
    """
    m, n_classes = gain.shape
    used = np.zeros(gain.shape, dtype=bool)
    likely = np.argsort(-gain, axis=1, kind="stable")[:, :2]
    np.put_along_axis(used, likely, True, axis=1)
    # A plan that exists: examples in order of their class fill the shares one after the other.
    order, ends = np.argsort(likely[:, 0], kind="stable"), np.concatenate([[0.0], np.cumsum(shares)]) * m
    for column in range(n_classes):
        first, last = math.floor(ends[column] - 1e-6), math.ceil(ends[column + 1] + 1e-6)
        used[order[max(first, 0) : last], column] = True
    totals = np.concatenate([np.full(m, 1 / m), shares])
    while True:
        rows, columns = used.nonzero()
        n = len(rows)
        cells = (np.concatenate([rows, m + columns]), np.tile(np.arange(n), 2))
        found = optimize.linprog(  # type: ignore[call-overload]  # the stubs know no sparse constraints
            -gain[rows, columns],
            A_eq=sparse.csr_array((np.ones(2 * n), cells), shape=(m + n_classes, n)),
            b_eq=totals,
            method="highs",
        )
        if not found.success:
            raise InconsistentRunError(f"optimal transport did not solve: {found.message}")
        prices = found.eqlin.marginals
        missed = np.where(used, 0.0, gain + prices[:m, None] + prices[m:])
        best = missed.argmax(1)
        better = missed[np.arange(m), best] > 1e-9
        if not better.any():
            return -float(found.fun)
        used[better, best[better]] = True


@dataclass(frozen=True, kw_only=True, eq=False)
class AgreementLine:
    """Accuracies of several models read off the line on which their agreements lie.

    Attributes:
        estimates: Estimated target accuracy of each model, in (0, 1).
        slope: Of the line, between probits.
        bias: Of the line.
        r2: Share of the variance of agreement that the line explains; low values (below 0.95, say) mean that
            the estimates should not be believed.
    """

    estimates: Float64[np.ndarray, " models"]
    slope: float
    bias: float
    r2: float


def agreement_on_the_line(
    id_predictions: Predictions, id_labels: Labels, predictions: NewPredictions, *, method: str = "D"
) -> AgreementLine:
    """Accuracies on unlabelled data from how often pairs of models agree there (ALine).

    Where the probits of agreement of pairs on target data lie on a line over those on known data, so do the
    accuracies, on the same line.

    Args:
        id_predictions: Class that each model predicts on labelled data, `[n_models, n]`.
        id_labels: `[n]`.
        predictions: Of the same models on the target data, `[n_models, m]`.
        method: `"S"`: put each model's known accuracy on the line; `"D"`: solve for the accuracies whose pair
            means differ from the agreements as on known data.

    Returns:
        Estimates with the line and its fit.

    Raises:
        InputError: For fewer than 3 models, labels of another length, or agreement that does not vary.
        UnknownNameError: For another `method`.

    References:
        Baek et al. (2022), "Agreement-on-the-line: predicting the performance of neural networks under
        distribution shift", arXiv:2206.13089, algorithms ALine-S and ALine-D.
    """
    if method not in ("S", "D"):
        raise unknown_name("method", method, ("S", "D"))
    known, new = (_array(each).astype(np.int64) for each in (id_predictions, predictions))
    truth = _array(id_labels).astype(np.int64)
    if known.ndim != 2 or new.ndim != 2 or len(known) != len(new) or truth.shape != known.shape[1:]:
        raise ShapeError(
            f"predictions have shapes {known.shape} and {new.shape}, labels {truth.shape}; give [models, n], "
            "[models, m] and [n]"
        )
    if len(known) < 3:
        raise InputError(f"a line through agreements needs at least 3 models; got {len(known)}")
    first, second = np.triu_indices(len(known), k=1)
    agree_known, agree_new = (_probit((each[first] == each[second]).mean(1)) for each in (known, new))
    if np.ptp(agree_known) == 0 or np.ptp(agree_new) == 0:
        raise InputError("every pair of models agrees equally often; give models that differ")
    line = scipy_stats.linregress(agree_known, agree_new)
    slope, bias = float(line.slope), float(line.intercept)
    accuracy = _probit((known == truth).mean(1))
    if method == "S":
        estimates = slope * accuracy + bias
    else:
        design = np.zeros((len(first), len(known)))
        rows = np.arange(len(first))
        design[rows, first] = design[rows, second] = 0.5
        means = (accuracy[first] + accuracy[second]) / 2
        estimates = np.linalg.lstsq(design, agree_new + slope * (means - agree_known), rcond=None)[0]
    return AgreementLine(
        estimates=np.asarray(scipy_stats.norm.cdf(estimates)),
        slope=slope,
        bias=bias,
        r2=float(line.rvalue) ** 2,
    )


# ------------------------------------------------------------------------------------------- inputs


def _array(values: Tensor | np.ndarray) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return np.asarray((values.double() if values.is_floating_point() else values).numpy())


def _table(values: Table, name: str) -> Float64[np.ndarray, "n c"]:
    table = np.asarray(_array(values), dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise ShapeError(f"{name} have shape {table.shape}; a table with a row per example is needed")
    bad = np.flatnonzero(~np.isfinite(table).all(1))
    if len(bad):
        raise NonFiniteError(
            f"{name} of example {bad[0]} hold NaN or infinity; leave it out or check the model"
        )
    return table


def _label_array(labels: Labels, n_classes: int) -> Int64[np.ndarray, " n"]:
    if labels is None:  # as of images without labels
        raise InputError("labels are missing; this metric needs the class of every example")
    truth = _array(labels).astype(np.int64)
    if truth.ndim != 1 or not len(truth):
        raise InputError(f"labels have shape {truth.shape}; one per example is needed")
    outside = np.flatnonzero((truth < 0) | (truth >= n_classes))
    if len(outside):
        raise InputError(
            f"label {truth[outside[0]]} of example {outside[0]} is none of the {n_classes} classes; the "
            "class lists of model and data must agree"
        )
    return truth


def _labels(labels: Labels, table: Float64[np.ndarray, "n c"]) -> Int64[np.ndarray, " n"]:
    truth = _label_array(labels, table.shape[1])
    if len(truth) != len(table):
        raise InputError(f"{len(truth)} labels for {len(table)} examples; one per example is needed")
    return truth


def _log_probabilities(logits: Table) -> Float64[np.ndarray, "n c"]:
    return np.asarray(log_softmax(_table(logits, "logits"), axis=1))


def _negative_entropy(log_p: Float64[np.ndarray, "n c"]) -> Float64[np.ndarray, " n"]:
    return np.asarray((np.exp(log_p) * np.maximum(log_p, math.log(1e-12))).sum(1))


def _confidence(log_p: Float64[np.ndarray, "n c"], score: str) -> Float64[np.ndarray, " n"]:
    return np.asarray(np.exp(log_p).max(1)) if score == "maxconf" else _negative_entropy(log_p)


def _probit(rates: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    return np.asarray(scipy_stats.norm.ppf(np.clip(rates, PROBIT_MARGIN, 1 - PROBIT_MARGIN)))

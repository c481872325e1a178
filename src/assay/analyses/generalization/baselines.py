"""What predicts performance without circuits: confidence, energy, features, sharpness, agreement.

Each number is computed once, for resamples of the images: `w[draws, n]` says how often each image counts in
each of them, and a row of ones gives the number itself. Functions of logits take such a row for granted.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Real
from scipy.special import log_softmax, logsumexp
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from assay.core.errors import (
    DegenerateDataWarning,
    InconsistentRunError,
    InputError,
    NonFiniteError,
    check_name,
)
from assay.models import Model


MEASURES = {"accuracy": "accuracy", "macro-f1": "macro-F1"}  # key -> name
PROBIT_MARGIN = 1e-6  # keeps the probit of accuracies 0 and 1 finite
FIRST, LAST, FEWEST = 11, 100, 20  # eigenvalues that alpha-ReQ fits, and how many it needs

Values = Float64[np.ndarray, " n"]
NewValues = Float64[np.ndarray, " m"]
Classes = Int64[np.ndarray, " n"]
Draws = Float64[np.ndarray, " draws"]
Weights = Float64[np.ndarray, "draws n"]
NewWeights = Float64[np.ndarray, "draws m"]
Table = Real[Tensor | np.ndarray, "n c"]
NewTable = Real[Tensor | np.ndarray, "m c"]
Labels = Int[Tensor | np.ndarray, " n"]
Parameters = Float[Tensor, " n"]  # of a model, all in one row
Loss = Callable[[Tensor], Tensor]  # of the parameters


# ------------------------------------------------------------------------------------- of resamples


def once(n: int) -> Weights:
    """Every image as often as it is there."""
    return np.ones((1, n))


def scaled(w: Weights) -> Weights:
    """Weights of each resample that add up to n; NaN for one without any image."""
    totals = w.sum(1, keepdims=True)
    return np.asarray(w * (w.shape[1] / np.where(totals > 0, totals, np.nan)))


def mean_of(values: Values, w: Weights) -> Draws:
    """The mean of a number per image."""
    return np.asarray(scaled(w) @ values / len(values))


def spread_of_energies(energies: Values, w: Weights, *, log: bool = True) -> Draws:
    """`energy` of examples whose energies Z_i are known; a resample counts as one of n images."""
    counts, top = scaled(w), energies.max()
    inner = np.log(counts @ np.exp(energies - top)) + top - counts @ energies / len(energies)
    if not log:
        return np.asarray(inner)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal energies have no logarithm
        return np.where(inner > 1e-15, np.log(inner), np.nan)


def performance_of(
    predicted: Classes, truth: Classes, w: Weights | None = None, *, measure: str = "accuracy"
) -> Draws:
    """Accuracy, or the mean F1 of the classes that occur in the labels (as WILDS)."""
    check_name("measure", measure, MEASURES)
    w = once(len(truth)) if w is None else w
    if measure == "accuracy":
        return mean_of((predicted == truth).astype(np.float64), w)
    classes = np.union1d(predicted, truth)
    true, said = ((each[:, None] == classes).astype(np.float64) for each in (truth, predicted))
    present, named, hits = w @ true, w @ said, w @ (true * said)
    f1 = np.divide(2 * hits, present + named, out=np.zeros_like(hits), where=present + named > 0)
    occurring = (present > 0).sum(1)
    return np.asarray((f1 * (present > 0)).sum(1) / np.where(occurring > 0, occurring, np.nan))


def passing(
    known: Values, correct: Bool[np.ndarray, " n"], scores: NewValues, v: Weights, w: NewWeights
) -> Draws:
    """`atc` from scores: the share that reaches the score above which as many known images lie as are right.

    Scanning the known scores in ascending order, wrong answers above the i-th minus right ones up to it are
    n_wrong - i; the threshold is the score where this is 0, the n_wrong-th. With no wrong answer it stays at
    the 0 that the scan starts from.
    """
    order, ranked = np.argsort(known, kind="stable"), np.argsort(scores, kind="stable")
    wrong = v @ (~correct).astype(np.float64)
    place = (np.cumsum(v[:, order], axis=1) < wrong[:, None]).sum(1)
    thresholds = np.where(wrong > 0, known[order][np.minimum(place, len(known) - 1)], 0.0)
    below = np.searchsorted(scores[ranked], thresholds, side="left")
    left = np.concatenate([np.zeros((len(w), 1)), np.cumsum(scaled(w)[:, ranked], axis=1)], axis=1)
    return np.asarray(1 - left[np.arange(len(w)), below] / len(scores))


# ------------------------------------------------------------------------------------ outputs alone


def _table(values: Table, name: str) -> Float64[np.ndarray, "n c"]:
    """Numbers with a row per example, finite."""
    table: np.ndarray = torch.as_tensor(values).detach().cpu().double().numpy()
    for row in np.flatnonzero(~np.isfinite(table).all(1)):
        raise InputError(f"{name} of example {row} hold NaN or infinity; expected finite numbers")
    return table


def label_array(labels: Labels, n_classes: int) -> Classes:
    """Labels between 0 and the number of classes; others are refused."""
    truth: np.ndarray = torch.as_tensor(labels).cpu().long().numpy()
    for row in np.flatnonzero((truth < 0) | (truth >= n_classes)):
        raise InputError(f"label {truth[row]} of example {row} is outside the {n_classes} classes")
    return truth


def _log_probabilities(logits: Table) -> Float64[np.ndarray, "n c"]:
    return np.asarray(log_softmax(_table(logits, "logits"), axis=1))


def negative_entropies(log_p: Float64[np.ndarray, "n c"]) -> Float64[np.ndarray, " n"]:
    """sum_c p_c log p_c of each example, from log probabilities; p_c from below at 1e-12 in the logarithm."""
    return np.asarray((np.exp(log_p) * np.maximum(log_p, math.log(1e-12))).sum(1))


def average_confidence(logits: Table) -> float:
    """Mean largest probability (AC).

    Args:
        logits: `[n_examples, n_classes]` on the target data.

    Returns:
        In [1 / n_classes, 1]; expected to rise with performance. Needs no labels.

    Raises:
        InputError: For what is not a table of finite logits.

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
        InputError: For what is not a table of finite logits.
    """
    return float(negative_entropies(_log_probabilities(logits)).mean())


def energy(logits: Table, *, log: bool = True) -> float:
    """Meta-distribution energy (MDE): how unevenly the energies of the examples are spread.

    Z_i = -logsumexp(l_i); MDE = log(-mean_i log softmax_i(Z)), softmax over the examples.

    Args:
        logits: `[n_examples, n_classes]` on the target data.
        log: Take the outer logarithm.

    Returns:
        Real; the inner value is >= log n_examples, so values compare only between sets of one size. Needs no
        labels. NaN with a `DegenerateDataWarning` for a single example, whose inner value is 0.

    Raises:
        InputError: For what is not a table of finite logits.

    References:
        Peng et al. (2024), "Energy-based automated model evaluation", arXiv:2401.12689.
    """
    energies = -logsumexp(_table(logits, "logits"), axis=1)
    (value,) = spread_of_energies(energies, once(len(energies)), log=log)
    if math.isnan(value):
        warnings.warn("MDE is undefined: there is one example", DegenerateDataWarning, stacklevel=2)
    return float(value)


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
        InputError: For what is not a table of finite features.

    References:
        Garrido et al. (2023), arXiv:2210.02885, Eq. 1.
    """
    check_name("variant", variant, ("published", "eigenvalue_ratio"))
    values = _table(features, "features")
    squared = variant == "eigenvalue_ratio"
    if center or squared:
        values = values - values.mean(0)
    return effective_rank(scipy.linalg.svdvals(values), squared=squared)


def effective_rank(sizes: Float64[np.ndarray, " k"], *, squared: bool = False) -> float:
    """`rankme` of features whose singular values are known, descending; `squared`: of their squares."""
    if not sizes[0] > 0:
        warnings.warn("RankMe is undefined: the features do not vary", DegenerateDataWarning, stacklevel=2)
        return math.nan
    sizes = sizes / sizes[0]
    if squared:
        sizes = sizes**2
    p = sizes / sizes.sum() + 1e-7
    return float(np.exp(-(p * np.log(p)).sum()))


def alpha_req(features: Table) -> float:
    """Decay of the spectrum of the features: -slope of log eigenvalue on log index (alpha-ReQ).

    Weighted least squares over the indices 11 to 100 (from 1) of the eigenvalues of the centred
    covariance, descending, with weights 1 / index.

    Args:
        features: `[n_examples, n_features]`: what enters the head.

    Returns:
        The exponent alpha; 1 is the critical decay. Needs no labels.

    Raises:
        InputError: For fewer than 20 non-zero eigenvalues, or fewer than 2 in the range.
        InputError: For what is not a table of finite features.

    References:
        Agrawal et al. (2022), "alpha-ReQ", NeurIPS.
    """
    values = _table(features, "features")
    return spectral_decay(scipy.linalg.svdvals(values - values.mean(0)), values.shape)


def spectral_decay(sizes: Float64[np.ndarray, " k"], shape: tuple[int, ...]) -> float:
    """`alpha_req` of features of a shape whose centred singular values are known, descending."""
    usable = sizes[sizes > max(shape) * np.finfo(np.float64).eps * sizes[0]] ** 2
    if len(usable) < FEWEST:
        raise InputError(f"features {shape} have {len(usable)} nonzero eigenvalues; alpha-ReQ needs {FEWEST}")
    index = np.arange(FIRST, min(LAST, len(usable)) + 1, dtype=np.float64)
    x, y, weights = np.log(index), np.log(usable[FIRST - 1 : LAST]), 1 / index / (1 / index).sum()
    x, y = x - weights @ x, y - weights @ y
    return -float((weights * x) @ y / ((weights * x) @ x))


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
    values = _table(logits, "logits")
    (value,) = performance_of(values.argmax(1), label_array(labels, values.shape[1]), measure=measure)
    return float(value)


def atc(id_logits: Table, id_labels: Labels, logits: NewTable, *, score: str = "maxconf") -> float:
    """Accuracy on unlabelled data from a confidence threshold learned on labelled data (ATC).

    Args:
        id_logits: `[n, n_classes]` on labelled in-distribution data.
        id_labels: `[n]`.
        logits: `[m, n_classes]` on the target data.
        score: `"maxconf"`: largest probability; `"negentropy"`: sum_c p_c log p_c.

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
    check_name("score", score, ("maxconf", "negentropy"))
    logs = (_log_probabilities(each) for each in (id_logits, logits))
    before, after = (np.exp(p).max(1) if score == "maxconf" else negative_entropies(p) for p in logs)
    known = _table(id_logits, "id_logits")
    correct = known.argmax(1) == label_array(id_labels, known.shape[1])
    (value,) = passing(before, correct, after, once(len(before)), once(len(after)))
    return float(value)


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


def agreement_line(
    known: Int64[np.ndarray, "models n"],
    labels: Classes,
    new: Int64[np.ndarray, "models m"],
    v: Weights | None = None,
    w: NewWeights | None = None,
) -> Float64[np.ndarray, "draws models"]:
    """Accuracies on unlabelled data from how often pairs of models agree there (ALine-D).

    Where the probits of agreement of pairs on target data lie on a line over those on known data, so do the
    accuracies, on the same line: the accuracies are those whose pair means differ from the agreements as on
    known data.

    Args:
        known: Class that each model predicts on labelled data, `[n_models, n]`.
        labels: `[n]`.
        new: Of the same models on the target data, `[n_models, m]`.
        v: How often each labelled image counts, `[draws, n]`. Default: once.
        w: How often each target image counts, `[draws, m]`. Default: once.

    Returns:
        Estimated target accuracy of each model, in (0, 1), `[draws, n_models]`; NaN where every pair agrees
        equally often.

    Raises:
        InputError: For fewer than 3 models.

    References:
        Baek et al. (2022), "Agreement-on-the-line: predicting the performance of neural networks under
        distribution shift", arXiv:2206.13089, algorithm ALine-D.
    """
    if len(known) < 3:
        raise InputError(f"a line through agreements needs at least 3 models; got {len(known)}")
    v, w = once(known.shape[1]) if v is None else v, once(new.shape[1]) if w is None else w
    first, second = np.triu_indices(len(known), k=1)

    def probits(right: np.ndarray, weights: np.ndarray) -> np.ndarray:
        rates = scaled(weights) @ right.T.astype(np.float64) / right.shape[1]
        return np.asarray(scipy.stats.norm.ppf(np.clip(rates, PROBIT_MARGIN, 1 - PROBIT_MARGIN)))

    before, after = probits(known[first] == known[second], v), probits(new[first] == new[second], w)
    accuracy = probits(known == labels, v)
    x, y = before - before.mean(1, keepdims=True), after - after.mean(1, keepdims=True)
    varies = (np.ptp(before, axis=1) > 0) & (np.ptp(after, axis=1) > 0)
    slope = np.divide((x * y).sum(1), (x * x).sum(1), out=np.full(len(x), np.nan), where=varies)[:, None]
    design = np.zeros((len(first), len(known)))
    design[np.arange(len(first)), first] = design[np.arange(len(first)), second] = 0.5
    sides = after + slope * ((accuracy[:, first] + accuracy[:, second]) / 2 - before)
    return np.asarray(scipy.stats.norm.cdf(sides @ np.linalg.pinv(design).T))


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
    return float(np.clip(matched(id_labels, logits).gain, 0.0, 1.0))


class Matching(NamedTuple):
    """The best match of predictions to label shares, and what one more example or label would change.

    gain = mean of `of_examples` + sum over classes of share * `of_classes`, and to first order that holds for
    other weights of the examples and other shares, too (the prices of the linear programme).

    `gain` is 1 - transport cost.
    """

    gain: float
    of_examples: Float64[np.ndarray, " m"]
    of_classes: Float64[np.ndarray, " c"]


def matched(id_labels: Labels, logits: NewTable) -> Matching:
    """The programme of `cot` with its prices; arguments, errors and cost as there.

    The largest sum of x * p over plans x >= 0 with row sums 1 / m and column sums of the label shares, by
    column generation: solved with few cells, then again with those that would raise the sum, as the prices
    of the solution say, until there is none; the plan is then the best of all.
    """
    gain = np.exp(_log_probabilities(logits))
    m, n_classes = gain.shape
    labels = label_array(id_labels, n_classes)
    shares = np.bincount(labels, minlength=n_classes) / len(labels)
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
        plan: Any = scipy.sparse.csr_array((np.ones(2 * n), cells), shape=(m + n_classes, n))
        solution: Any = scipy.optimize.linprog(-gain[rows, columns], A_eq=plan, b_eq=totals, method="highs")
        if not solution.success:
            raise InconsistentRunError(f"optimal transport failed: {solution.message}")
        prices = solution.eqlin.marginals
        missed = np.where(used, 0.0, gain + prices[:m, None] + prices[m:])
        best = missed.argmax(1)
        better = missed[np.arange(m), best] > 1e-9
        if not better.any():
            return Matching(gain=-float(solution.fun), of_examples=-prices[:m], of_classes=-prices[m:])
        used[better, best[better]] = True


# ---------------------------------------------------------------------------------------- sharpness


def sharpness(
    model: nn.Module | Model,
    batches: Iterable[tuple[Tensor, Tensor | None]],
    *,
    normalize_logits: bool = True,
    **search: Any,
) -> float:
    """How much the loss can rise when every weight moves a little: worst case in an l-infinity ball.

    Args:
        model: A classifier in evaluation mode: images in, logits (or an output with `logits`) out.
        batches: In-distribution validation data, (images, labels) at a time. The worst direction is one for
            the whole batch, so values compare only between equal batch sizes; published with 256 images.
        normalize_logits: Centre the logits of an example and scale them to length 1, so that their scale does
            not count.
        search: `rho`, `iterations` and `adaptive` of `worst_case_rise`.

    Returns:
        Mean over batches of the rise of the cross-entropy, nats, >= 0; expected to fall with performance.

    Raises:
        InputError: For a model in training mode, no batch, labels outside the model's classes, or a radius or
            number of steps below or at 0.
        NonFiniteError: If the loss is not finite.

    Notes:
        Costs `iterations` forward and backward passes, and 1 + `iterations` forward passes, per batch, and
        the memory of about nine copies of the weights. The model's own weights are never written to.

    References:
        Andriushchenko et al. (2023), arXiv:2302.07011; auto-PGD: Croce and Hein (2020), arXiv:2003.01690.
    """
    module = model if isinstance(model, nn.Module) else model.module
    if any(part.training for part in module.modules()):
        raise InputError("the model, or a part of it, is in training mode; call model.eval() first")
    weights = dict(module.named_parameters())
    start = parameters_to_vector(weights.values()).detach()
    rises = []
    for images, labels in batches:
        assert labels is not None, "sharpness needs labels"
        seen, truth = images.to(start), labels.to(start.device).long()

        def loss(moved: Tensor, images: Tensor = seen, labels: Tensor = truth) -> Tensor:
            parts = moved.split([each.numel() for each in weights.values()])
            shaped = {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}
            output = torch.func.functional_call(module, shaped, (images,))
            logits: Tensor = output if isinstance(output, Tensor) else output.logits
            if not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[-1]:
                raise InputError(f"a label is outside the {logits.shape[-1]} classes of the model")
            if normalize_logits:
                logits = logits - logits.mean(1, keepdim=True)
                logits = logits / logits.norm(dim=1, keepdim=True).clamp_min(1e-10)
            return nn.functional.cross_entropy(logits, labels)

        rises.append(worst_case_rise(loss, start, **search))
    if not rises:
        raise InputError("sharpness needs at least one batch of (images, labels)")
    return float(np.mean(rises))


def worst_case_rise(
    loss: Loss, start: Parameters, *, rho: float = 0.001, iterations: int = 20, adaptive: bool = True
) -> float:
    """Largest rise of a loss found by auto-PGD when each weight moves by at most rho (times its magnitude).

    Args:
        loss: From weights to a scalar.
        start: Weights where the search starts; not changed.
        rho: Radius, > 0.
        iterations: Gradient steps, >= 1.
        adaptive: Scale radius and steps by the magnitude of each weight.

    Returns:
        loss at the worst weights - loss at the start, >= 0.

    Raises:
        InputError: For a radius or number of steps out of range.
        NonFiniteError: If the loss is not finite.

    References:
        Croce and Hein (2020), arXiv:2003.01690, algorithm 1, with the momentum of 0.25 on the last position.
    """
    if not rho > 0 or iterations < 1:
        raise InputError(f"rho is {rho} and iterations {iterations}; give a rho above 0 and 1 step or more")
    scale = start.abs() if adaptive else torch.ones_like(start)
    previous = delta = at = best = torch.zeros_like(start)
    step, improved, last = 2 * rho, 0, 0
    first = worst = _value(loss, start)
    checkpoints = auto_pgd_checkpoints(iterations)
    for iteration in range(iterations):
        moved = (start + at).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(moved), moved)
        target = (delta + step * scale * gradient.sign()).clamp(-rho * scale, rho * scale)
        at = 0.75 * target + 0.25 * previous
        previous, delta = delta, at
        value = _value(loss, start + delta)
        if value > worst:
            worst, best, improved = value, delta, improved + 1
        # The other published condition, no progress at an unchanged step, is a case of this one.
        if iteration in checkpoints:
            if improved < 0.75 * (iteration - last):
                step, at = step / 2, best
            improved, last = 0, iteration
    return worst - first


def auto_pgd_checkpoints(iterations: int) -> tuple[int, ...]:
    """Iterations after which auto-PGD may halve its step: ceil(p_j iterations) below `iterations`.

    p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06).

    Example:
        >>> auto_pgd_checkpoints(20)
        (5, 9, 12, 15, 16, 18, 19)
    """
    checkpoints: list[int] = []
    before, now = 0.0, 0.22
    while math.ceil(now * iterations) < iterations:
        checkpoints.append(math.ceil(now * iterations))
        before, now = now, now + max(now - before - 0.03, 0.06)
    return tuple(dict.fromkeys(checkpoints))


def _value(loss: Loss, weights: Parameters) -> float:
    with torch.no_grad():
        value = float(loss(weights))
    if not math.isfinite(value):
        raise NonFiniteError(f"the loss is {value}; check the weights and the images for NaN")
    return value

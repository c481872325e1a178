"""Accuracy from confidences calibrated on labelled data (CBPE, M-CBPE), and the norm of outputs (MaNo)."""

import math

import numpy as np
from jaxtyping import Bool, Float64
from scipy.special import log_softmax

from assay.analyses.generalization.tables import (
    Features,
    Labels,
    NewFeatures,
    NewTable,
    Table,
    labels_of_rows,
    table_of,
)
from assay.core.errors import InputError, ShapeError


CERTAIN = 5.0  # mean cross-entropy from the uniform distribution above which MaNo takes the softmax
NORM = 4  # its order


def cbpe(id_logits: Table, id_labels: Labels, logits: NewTable) -> float:
    """Accuracy on unlabelled data as the mean of calibrated confidences (CBPE).

    g(s): probability that a prediction with largest probability s is right, an isotonic regression on
    labelled data; the estimate is mean_i g(max_c p_ic).

    Args:
        id_logits: `[n, n_classes]` on labelled in-distribution data.
        id_labels: `[n]`.
        logits: `[m, n_classes]` on the target data.

    Returns:
        In [0, 1]; estimates accuracy. Right under covariate shift if the calibration stays the same.

    Raises:
        InputError: For labels that are missing or outside the classes.
        ShapeError, NonFiniteError: For what is not a table of finite logits, or other classes.

    Notes:
        The published estimator is for two classes. Here the largest of any number of probabilities is
        calibrated against being right. NannyML's code calibrates each class against the others instead, and
        scales them to sum 1.

    References:
        Kivimäki et al. (2025), "Performance estimation in binary classification using calibrated confidence",
        arXiv:2505.05295; as a baseline: Kivimäki et al. (2024), arXiv:2407.08649.
    """
    known, truth, new = _tables(id_logits, id_labels, logits)
    return _calibrated(known, truth, new, np.ones(len(known)))


def m_cbpe(
    id_logits: Table,
    id_labels: Labels,
    logits: NewTable,
    *,
    id_features: Features | None = None,
    features: NewFeatures | None = None,
) -> float:
    """CBPE whose calibration is fitted anew for the target, with importance weights (M-CBPE).

    As `cbpe`, but the labelled example j has the weight r_j = w_j / (1 - w_j) * n / m in the isotonic
    regression, where w_j is the probability by which a classifier takes it for a target example: r estimates
    the ratio of the densities.

    Args:
        id_logits: `[n, n_classes]` on labelled in-distribution data.
        id_labels: `[n]`.
        logits: `[m, n_classes]` on the target data.
        id_features: `[n, n_features]`, what the classifier sees. Default: log probabilities.
        features: `[m, n_features]` of the target; with `id_features` or not at all.

    Returns:
        In [0, 1]; estimates accuracy.

    Raises:
        InputError: For labels that are missing or outside the classes, or features of one side only.
        ShapeError, NonFiniteError: For what is not a table of finite numbers, or other columns.

    Notes:
        The classifier is a logistic regression on standardised columns with ridge penalty 1; the published
        one, for tables, is gradient boosting on the inputs. The later version of the paper calls the method
        PAPE.

    References:
        Bialek et al. (2024), "Estimating model performance under covariate shift without labels",
        arXiv:2401.08348.
    """
    from sklearn.linear_model import LogisticRegression

    known, truth, new = _tables(id_logits, id_labels, logits)
    if (id_features is None) != (features is None):
        raise InputError("features are given for one side only; give id_features and features, or neither")
    here = log_softmax(known, axis=1) if id_features is None else table_of(id_features, "id_features")
    there = log_softmax(new, axis=1) if features is None else table_of(features, "features")
    if (len(here), len(there)) != (len(known), len(new)) or here.shape[1] != there.shape[1]:
        raise ShapeError(
            f"features have shapes {here.shape} and {there.shape} for {len(known)} and {len(new)} examples; "
            "give a row per example and the same columns"
        )
    both = np.concatenate([here, there])
    spread = both.std(0)
    both = (both - both.mean(0)) / np.where(spread > 0, spread, 1.0)
    is_new = np.repeat([0, 1], [len(here), len(there)])
    odds = LogisticRegression(max_iter=1000).fit(both, is_new).decision_function(both[: len(here)])
    weights = np.exp(np.clip(odds, -30.0, 30.0)) * len(here) / len(there)
    return _calibrated(known, truth, new, weights)


def mano(logits: Table, *, p: int = NORM, threshold: float = CERTAIN) -> float:
    """Norm of the matrix of normalised outputs (MaNo): how far examples lie from the decision boundaries.

    (1 / (n K) sum_ik q_ik^p)^(1/p), K classes. If the mean of -1/K sum_k log softmax(l_i)_k exceeds
    `threshold`, q_i = softmax(l_i). Else q_i = (v_i - min_k v_ik) / sum_k (v_ik - min_k v_ik), where
    v = 1 + l + l^2 / 2.

    Args:
        logits: `[n, K]` on the target data.
        p: Order of the norm, at least 1.
        threshold: Between the two normalisations.

    Returns:
        In [0, K^(-1/p)]; expected to rise with performance. Not in the unit of accuracy. Needs no labels.

    Raises:
        InputError: For an order below 1.
        ShapeError, NonFiniteError: For what is not a table of finite logits.

    Notes:
        Not invariant to a constant added to logits, as v is not. An example whose v are all equal counts 0,
        as in the authors' code.

    References:
        Xie et al. (2024), arXiv:2405.18979, Eq. 6.
    """
    if not p >= 1:
        raise InputError(f"p is {p}; expected an order of at least 1")
    values = table_of(logits, "logits")
    log_p = log_softmax(values, axis=1)
    if -float(log_p.mean()) > threshold:
        q = np.exp(log_p)
    else:
        q = 1 + values + values**2 / 2
        q -= q.min(1, keepdims=True)
        total = q.sum(1, keepdims=True)
        q = np.divide(q, total, out=np.zeros_like(q), where=total > 0)
    return math.pow(float((q**p).mean()), 1 / p)


def _tables(
    id_logits: Table, id_labels: Labels, logits: NewTable
) -> tuple[Float64[np.ndarray, "n c"], Bool[np.ndarray, " n"], Float64[np.ndarray, "m c"]]:
    """Known logits, whether each is right, and new logits of the same classes."""
    known, new = table_of(id_logits, "id_logits"), table_of(logits, "logits")
    if known.shape[1] != new.shape[1]:
        raise ShapeError(
            f"logits have {new.shape[1]} classes, but id_logits {known.shape[1]}; give logits of one model"
        )
    return known, known.argmax(1) == labels_of_rows(id_labels, known), new


def _calibrated(
    known: Float64[np.ndarray, "n c"],
    right: Bool[np.ndarray, " n"],
    new: Float64[np.ndarray, "m c"],
    weights: Float64[np.ndarray, " n"],
) -> float:
    """Mean over new examples of the isotonic regression of being right on the largest probability."""
    from sklearn.isotonic import IsotonicRegression

    largest, sought = (np.exp(log_softmax(each, axis=1)).max(1) for each in (known, new))
    curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    curve.fit(largest, right.astype(np.float64), sample_weight=weights)
    return float(np.clip(curve.predict(sought), 0.0, 1.0).mean())

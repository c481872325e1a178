"""Accuracies of several models read off how often pairs of them agree."""

from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64

from assay.analyses.generalization.tables import Labels, NewPredictions, Predictions, array_of
from assay.core.errors import InputError, ShapeError, unknown_name


PROBIT_MARGIN = 1e-6  # keeps the probit of accuracies 0 and 1 finite


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
    known, new = (array_of(each).astype(np.int64) for each in (id_predictions, predictions))
    truth = array_of(id_labels).astype(np.int64)
    if known.ndim != 2 or new.ndim != 2 or len(known) != len(new) or truth.shape != known.shape[1:]:
        raise ShapeError(
            f"predictions have shapes {known.shape} and {new.shape}, labels {truth.shape}; expected "
            "[models, n], [models, m] and [n]"
        )
    if len(known) < 3:
        raise InputError(f"a line through agreements needs at least 3 models; got {len(known)}")
    first, second = np.triu_indices(len(known), k=1)
    agree_known, agree_new = (probits((each[first] == each[second]).mean(1)) for each in (known, new))
    if np.ptp(agree_known) == 0 or np.ptp(agree_new) == 0:
        raise InputError("every pair of models agrees equally often; give models that differ")
    line = scipy.stats.linregress(agree_known, agree_new)
    slope, bias = float(line.slope), float(line.intercept)
    accuracy = probits((known == truth).mean(1))
    if method == "S":
        estimates = slope * accuracy + bias
    else:
        design = np.zeros((len(first), len(known)))
        rows = np.arange(len(first))
        design[rows, first] = design[rows, second] = 0.5
        means = (accuracy[first] + accuracy[second]) / 2
        estimates = np.linalg.lstsq(design, agree_new + slope * (means - agree_known), rcond=None)[0]
    return AgreementLine(
        estimates=np.asarray(scipy.stats.norm.cdf(estimates)),
        slope=slope,
        bias=bias,
        r2=float(line.rvalue) ** 2,
    )


def probits(rates: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Normal quantiles of rates, clipped to [1e-6, 1 - 1e-6]."""
    return np.asarray(scipy.stats.norm.ppf(np.clip(rates, PROBIT_MARGIN, 1 - PROBIT_MARGIN)))

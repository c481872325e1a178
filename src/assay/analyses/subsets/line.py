"""Accuracy on the line: the correlation over models of in- and out-of-distribution accuracy in probits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float64, Int64, Real

from assay.core.errors import InputError, ShapeError
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import fisher_z_interval, spearman


Accuracies = Float64[np.ndarray, " m"]  # a number per model: its accuracy, as a share or in probits
Units = Int64[np.ndarray, " m"]  # per model, the code of its training run or family
Places = Int64[np.ndarray, " _"]  # of some models or examples, counted from 0
Progress = Callable[[str, int, int], None]  # stage, done, total

EPS = 1e-6  # accuracies are clipped to [EPS, 1 - EPS] before the probit
LEVEL = 0.05  # the largest p-value that supports a subset
AOTIL = -0.3  # at most this correlation is called accuracy on the inverse line (Cohen's weak effect)
N_RESAMPLES = 1000
MIN_MODELS = 4  # in any part: below that the Fisher interval does not exist
RELIABLE_UNITS = 8
DEGENERATE = 1e-18  # centred sum of squares at or below which a side is constant
_ROUNDING = 1e-12  # of a replicate's sum of squares, relative to that of all models
_CERTAIN = 1 - 1e-9  # |R| of a replicate beyond which atanh says nothing


def probit(p: Real[np.ndarray, "*shape"] | float | int, *, eps: float = EPS) -> Any:
    """Standard normal quantile of clipped shares, Phi^-1(clip(p, eps, 1 - eps)).

    Args:
        p: Shares in [0, 1], any shape.
        eps: Clip, in (0, 0.5).

    Returns:
        Float64 of the shape of `p`; in [-4.753, 4.753] for the default clip.

    Example:
        >>> float(probit(0.5))
        0.0
    """
    return scipy.special.ndtri(np.clip(np.asarray(p, dtype=np.float64), eps, 1 - eps))


@dataclass(frozen=True, kw_only=True)
class Correlation(Record):
    """Pearson correlation of two accuracies over models in probit axes, with what it rests on.

    Attributes:
        r: Eq. 4, in [-1, 1]; NaN where a side is constant (`degenerate`).
        low: Lower end of the cluster bootstrap over units; NaN where undefined.
        high: Its upper end.
        level: Two-sided coverage of all intervals.
        fisher_low: Lower end of the interval through atanh, which takes models as independent.
        fisher_high: Its upper end.
        spearman: Rank correlation of the accuracies.
        spearman_low: Lower end, standard error of Bonett and Wright.
        spearman_high: Its upper end.
        n: Models.
        n_units: Training runs or families among them; models, where neither is known.
        n_eff: Independent models that would spread as much as the resamples do, 3 + 1 / var(atanh R_b), at
            most n.
        n_degenerate: Resamples without a correlation; left out.
        frac_clipped: Share of models whose accuracy is exactly 0 or 1.
        degenerate: Whether the correlation is undefined.
        caution: Why the interval is unreliable, else None.
    """

    r: float
    low: float
    high: float
    level: float
    fisher_low: float
    fisher_high: float
    spearman: float
    spearman_low: float
    spearman_high: float
    n: int
    n_units: int
    n_eff: float
    n_degenerate: int
    frac_clipped: float
    degenerate: bool
    caution: str | None = None


@dataclass(frozen=True, kw_only=True)
class Line(Record):
    """Least squares of probit out-of-distribution accuracy on probit in-distribution accuracy.

    Attributes:
        slope: Above 0 on the line, below 0 on the inverse line.
        intercept: In probits.
        r: Correlation; R^2 = 1 - (residual_sd / sd)^2 with population standard deviations.
        residual_sd: Population standard deviation around the line, in probits.
        max_residual: Largest distance from the line: eta of the correlation property, in probits.
    """

    slope: float
    intercept: float
    r: float
    residual_sd: float
    max_residual: float


def line_correlation(id_accuracy: Accuracies, accuracy: Accuracies) -> float:
    """R(s) of Eq. 4: Pearson correlation over models of probit accuracies.

    Args:
        id_accuracy: In-distribution accuracy per model, in [0, 1].
        accuracy: Out-of-distribution accuracy per model, in [0, 1].

    Returns:
        In [-1, 1]; NaN where either side is constant over the models.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 4; Miller et al. (2021), arXiv:2107.04649.
    """
    return float(line_correlations(id_accuracy, accuracy[None])[0])


def line_correlations(id_accuracy: Accuracies, accuracy: np.ndarray) -> Float64[np.ndarray, " k"]:
    """`line_correlation` with each row of `accuracy`, `[k, m]`."""
    x, y = probit(id_accuracy), probit(accuracy)
    x = x - x.mean()
    y = y - y.mean(axis=1, keepdims=True)
    sxx, syy = x @ x, (y * y).sum(axis=1)
    correlations = np.full(len(y), np.nan)
    defined = (syy >= DEGENERATE) & (sxx >= DEGENERATE)
    np.divide(y @ x, np.sqrt(syy * sxx), out=correlations, where=defined)
    return np.asarray(np.clip(correlations, -1.0, 1.0))


def correlate(
    id_accuracy: Accuracies,
    accuracy: Accuracies,
    units: Units | None = None,
    *,
    n_resamples: int = N_RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> Correlation:
    """The correlation of Eq. 4 with its intervals.

    Args:
        id_accuracy: In-distribution accuracy per model, in [0, 1]; all NaN where not known.
        accuracy: Out-of-distribution accuracy per model, in [0, 1].
        units: Training run or family of each model, as codes. Default: each model by itself.
        n_resamples: Resamples of the units.
        level: Two-sided coverage.
        seed: Root seed of the resamples.

    Raises:
        InputError: If an accuracy is outside [0, 1].
        ShapeError: If the vectors are of different lengths.

    References:
        Fisher (1921); Bonett and Wright (2000), doi:10.1007/BF02294183.
    """
    x, y = np.asarray(id_accuracy, dtype=np.float64), checked_shares(accuracy, "accuracy")
    unknown = bool(len(x)) and bool(np.isnan(x).all())
    x = x if unknown else checked_shares(x, "id_accuracy")
    units = np.arange(len(x)) if units is None else units
    if not x.shape == y.shape == units.shape:
        raise ShapeError(f"got {x.shape}, {y.shape} and {units.shape}; give vectors over the same models")
    names, r = np.unique(units), math.nan if unknown else line_correlation(x, y)
    n_units, finite, low, high, n_eff = len(names), np.empty(0), math.nan, math.nan, math.nan
    if not math.isnan(r):
        draws = names[stream(seed, "cluster-bootstrap").integers(0, n_units, (n_resamples, n_units))]
        replicates = cluster_replicates(x, y, draws, units)
        finite = replicates[np.isfinite(replicates)]
    if n_units > 1 and len(finite) > 1:
        low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2]).tolist()
        spread = float(np.arctanh(np.clip(finite, -_CERTAIN, _CERTAIN)).var(ddof=1))
        n_eff = min(float(len(x)), 3 + 1 / spread if spread > 0 else math.inf)
    rho = math.nan if math.isnan(r) else spearman(x, y)
    fisher = fisher_z_interval(r, len(x), level=level)
    ranks = fisher_z_interval(rho, len(x), level=level, kind="spearman")
    caution = None
    if math.isnan(r):
        caution = "accuracies in distribution are unknown" if unknown else "all models have the same accuracy"
    elif n_units < RELIABLE_UNITS:
        caution = f"{n_units} independent units: with fewer than {RELIABLE_UNITS} the interval is unreliable"
    return Correlation(
        r=r,
        low=low,
        high=high,
        level=level,
        fisher_low=fisher.low,
        fisher_high=fisher.high,
        spearman=rho,
        spearman_low=ranks.low,
        spearman_high=ranks.high,
        n=len(x),
        n_units=n_units,
        n_eff=n_eff,
        n_degenerate=n_resamples - len(finite),
        frac_clipped=float(np.mean((y == 0) | (y == 1))) if len(y) else math.nan,
        degenerate=math.isnan(r),
        caution=caution,
    )


def cluster_replicates(
    id_accuracy: Accuracies, accuracy: Accuracies, draws: np.ndarray, units: Units
) -> Float64[np.ndarray, " n_resamples"]:
    """Correlation over the models of drawn units, for each row of draws; NaN where a side is constant.

    Args:
        id_accuracy: In-distribution accuracy per model.
        accuracy: Out-of-distribution accuracy per model.
        draws: Units drawn with replacement, `[n_resamples, n_drawn]`: codes that occur in `units`.
        units: Unit of each model.
    """
    names = np.unique(units)
    code = np.searchsorted(names, draws) + len(names) * np.arange(len(draws))[:, None]
    counts = np.bincount(code.ravel(), minlength=len(draws) * len(names)).reshape(len(draws), -1)
    return UnitSums(probit(id_accuracy), probit(accuracy), units).correlations(counts)[1]


class UnitSums:
    """Sums of two numbers per model over its unit, from which any choice of units has its correlation.

    Args:
        x: A number per model.
        y: Another one.
        units: Unit of each model.
    """

    def __init__(self, x: Accuracies, y: Accuracies, units: Units):
        x, y = x - x.mean(), y - y.mean()
        place = np.unique(units, return_inverse=True)[1]
        products = (np.ones_like(x), x, y, x * x, y * y, x * y)
        self.sums = np.stack([np.bincount(place, weights=each) for each in products])
        # Squares below these are rounding, beside those of all models.
        self.floors = tuple(max(DEGENERATE, _ROUNDING * float(side @ side)) for side in (x, y))

    def correlations(self, weights: np.ndarray, among: Any = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Models and correlation, for each row of weights `[k, units]` of the units (`among` them, some); NaN
        where a side is constant.
        """
        n, sx, sy, sxx, syy, sxy = self.sums[:, among] @ weights.T
        each = np.maximum(n, 1)
        sxx, syy, sxy = sxx - sx * sx / each, syy - sy * sy / each, sxy - sx * sy / each
        defined, r = (sxx >= self.floors[0]) & (syy >= self.floors[1]), np.full(n.shape, np.nan)
        np.divide(sxy, np.sqrt(sxx * syy, where=defined, out=np.ones_like(sxx)), out=r, where=defined)
        return n, np.clip(r, -1.0, 1.0)


def checked_shares(values: Any, name: str, models: Sequence[str] = ()) -> Accuracies:
    """Accuracies as float64; errors name the model where `models` are named.

    Raises:
        ShapeError: If they are not a vector.
        InputError: For a value that is not a share; both name the argument.
    """
    shares = np.asarray(values, dtype=np.float64)
    if shares.ndim != 1:
        raise ShapeError(f"{name} has shape {shares.shape}; expected one accuracy per model")
    bad = np.flatnonzero(~((shares >= 0) & (shares <= 1)))
    if len(bad):
        per_cent = np.isfinite(shares).all() and shares.min() >= 0 and 1 < shares.max() <= 100
        hint = "; these look like percentages: divide them by 100" if per_cent else ""
        which = f"{name} of model {models[bad[0]]!r}" if models else f"{name}[{bad[0]}]"
        raise InputError(f"{which} is {shares[bad[0]]}; accuracies are fractions between 0 and 1{hint}")
    return shares


def fit_line(id_accuracy: Accuracies, accuracy: Accuracies) -> Line:
    """Least-squares line in probit axes, out-of-distribution on in-distribution accuracy.

    Args:
        id_accuracy: In-distribution accuracy per model, in [0, 1].
        accuracy: Out-of-distribution accuracy per model, in [0, 1].

    Returns:
        All NaN where the in-distribution accuracies are constant or NaN; `r` NaN where the others are.

    References:
        Miller et al. (2021), arXiv:2107.04649, Def. 1; Salaudeen et al. (2025), arXiv:2510.24884, Eq. 2.
    """
    x, y = probit(id_accuracy), probit(accuracy)
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx)) if dx @ dx >= DEGENERATE else math.nan
    residual = dy - slope * dx
    return Line(
        slope=slope,
        intercept=float(y.mean() - slope * x.mean()),
        r=line_correlation(id_accuracy, accuracy),
        residual_sd=float(np.sqrt(np.mean(residual**2))),
        max_residual=float(np.abs(residual).max()),
    )

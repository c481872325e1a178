"""Accuracy on the line: the correlation over models of in- and out-of-distribution accuracy in probits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import scipy
from jaxtyping import Float64, Int64, Real

from assay.analyses.subsets._arrays import Accuracies, Units
from assay.core.errors import InputError, ShapeError, check_least, check_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import fisher_z_interval, spearman


EPS = 1e-6  # accuracies are clipped to [EPS, 1 - EPS] before the probit
LEVEL = 0.05  # the largest p-value that supports a subset
AOTIL = -0.3  # at most this correlation is called accuracy on the inverse line (Cohen's weak effect)
N_RESAMPLES = 1000
MIN_MODELS = 4  # in any part: below that the Fisher interval does not exist
RELIABLE_UNITS = 8
DEGENERATE = 1e-18  # centred sum of squares at or below which a side is constant
_ROUNDING = 1e-12  # of a replicate's sum of squares, relative to that of all models
_CERTAIN = 1 - 1e-9  # |R| of a replicate beyond which atanh says nothing
UNRATED = "the models have no accuracies in distribution"
_SAME = "all models have the same accuracy"
_ENDS = ("low", "high", "fisher_low", "fisher_high", "spearman_low", "spearman_high", "n_eff")


def probit(p: Real[np.ndarray, "*shape"] | float | int, *, eps: float | int = EPS) -> Any:
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
    if not 0 < eps < 0.5:
        raise InputError(f"eps is {eps}; expected a clip between 0 and 0.5 ({EPS} by default)")
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
        n_eff: Independent models that would spread as much as the resamples do, 3 + 1 / var(atanh R_b).
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


@dataclass(frozen=True, kw_only=True)
class FittedLine(Line):
    """A line with what a prediction from it needs.

    Attributes:
        n: Models it was fitted to.
        n_units: Training runs or families among them; models, where neither is known.
        centre: Mean probit in-distribution accuracy of the models.
        variance: Population variance of the same.
        eps: Clip of the out-of-distribution accuracies.
        id_eps: Clip of the in-distribution accuracies.
    """

    n: int
    n_units: int
    centre: float
    variance: float
    eps: float
    id_eps: float

    def predict(self, id_accuracy: Accuracies, *, level: float = 0.95) -> Float64[np.ndarray, "3 k"]:
        """Where the accuracy of one more model is expected, by its in-distribution accuracy.

        intercept + slope x, and around it t s sqrt(1 + (1 + (x - centre)^2 / variance) / U): the prediction
        interval of least squares with U units in the place of models, s^2 = residual_sd^2 U / (U - 2), t the
        quantile of Student's t with U - 2 degrees of freedom. With a unit per model it is the usual one;
        models of one unit count as one, which is exact where they have one residual and wide where not.

        Args:
            id_accuracy: In-distribution accuracy of each model, in [0, 1].
            level: Two-sided coverage.

        Returns:
            The value and the ends of the interval, in probits; the ends are NaN below three units, all is
            NaN where the line is undefined.

        References:
            Draper and Smith (1998), Applied Regression Analysis, section 3.1.
        """
        x, units = probit(id_accuracy, eps=self.id_eps), self.n_units
        value, half = self.intercept + self.slope * x, np.full_like(x, math.nan)
        if units > 2 and self.variance > 0:
            leverage = (1 + (x - self.centre) ** 2 / self.variance) / units
            spread = self.residual_sd * math.sqrt(units / (units - 2))
            half = scipy.stats.t.ppf((1 + level) / 2, units - 2) * spread * np.sqrt(1 + leverage)
        return np.stack([value, value - half, value + half])


def clip_of(clip: str, size: int | None, eps: float | int = EPS) -> float:
    """The clip of out-of-distribution accuracies: `eps`, or half an example of the subset (`half`).

    Raises:
        InputError: For another `clip`, or `half` without a size.
    """
    check_name("clip", clip, ("eps", "half"))
    if clip == "eps":
        return float(eps)
    if size is None or size < 2:
        raise InputError(f"clip='half' clips at 0.5 / size and needs a size of at least 2; got {size}")
    return 0.5 / size


def line_correlation(
    id_accuracy: Accuracies, accuracy: Accuracies, *, eps: float | int = EPS, id_eps: float | int = EPS
) -> float:
    """R(s) of Eq. 4: Pearson correlation over models of probit accuracies.

    Args:
        id_accuracy: In-distribution accuracy per model, in [0, 1].
        accuracy: Out-of-distribution accuracy per model, in [0, 1].
        eps: Clip of `accuracy`.
        id_eps: Clip of `id_accuracy`.

    Returns:
        In [-1, 1]; NaN where either side is constant over the models.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 4; Miller et al. (2021), arXiv:2107.04649.
    """
    x, y = np.asarray(id_accuracy, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    _check_vectors(x, y)
    return float(line_correlations(x, y[None], eps=eps, id_eps=id_eps)[0])


def line_correlations(
    id_accuracy: Accuracies,
    accuracy: Float64[np.ndarray, "k m"],
    *,
    eps: float | int = EPS,
    id_eps: float | int = EPS,
) -> Float64[np.ndarray, " k"]:
    """`line_correlation` with each row of `accuracy`."""
    x = probit(id_accuracy, eps=id_eps)
    y = probit(accuracy, eps=eps)
    x = x - x.mean()
    y = y - y.mean(axis=1, keepdims=True)
    sxx, syy = x @ x, (y * y).sum(axis=1)
    correlations = np.full(len(y), np.nan)
    defined = (syy >= DEGENERATE) & (sxx >= DEGENERATE)
    np.divide(y @ x, np.sqrt(syy * sxx), out=correlations, where=defined)
    return np.asarray(np.clip(correlations, -1.0, 1.0))


def cluster_replicates(
    id_accuracy: Accuracies,
    accuracy: Accuracies,
    draws: Int64[np.ndarray, "n_resamples n_drawn"],
    units: Units,
    *,
    eps: float | int = EPS,
    id_eps: float | int = EPS,
) -> Float64[np.ndarray, " n_resamples"]:
    """Correlation over the models of drawn units, for each row of draws.

    Args:
        id_accuracy: In-distribution accuracy per model.
        accuracy: Out-of-distribution accuracy per model.
        draws: Units drawn with replacement: codes that occur in `units`.
        units: Unit of each model.
        eps: Clip of `accuracy`.
        id_eps: Clip of `id_accuracy`.

    Returns:
        NaN for a resample in which a side is constant.
    """
    names = np.unique(units)
    sums = UnitSums(probit(id_accuracy, eps=id_eps), probit(accuracy, eps=eps), units)
    code = np.searchsorted(names, draws) + len(names) * np.arange(len(draws))[:, None]
    counts = np.bincount(code.ravel(), minlength=len(draws) * len(names)).reshape(len(draws), -1)
    return sums.correlations(counts)[1]


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

    def correlations(
        self, weights: Real[np.ndarray, "k units"], among: Any = slice(None), *, at_least: int = 1
    ) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
        """Models and correlation, for each row of weights of the units (`among` them, some); NaN where a side
        is constant or models are fewer than `at_least`.
        """
        n, sx, sy, sxx, syy, sxy = self.sums[:, among] @ weights.T
        models = np.maximum(n, 1)
        sxx, syy, sxy = sxx - sx * sx / models, syy - sy * sy / models, sxy - sx * sy / models
        defined = (n >= at_least) & (sxx >= self.floors[0]) & (syy >= self.floors[1])
        r = np.full(len(n), np.nan)
        np.divide(sxy, np.sqrt(sxx * syy, where=defined, out=np.ones_like(sxx)), out=r, where=defined)
        return n, np.clip(r, -1.0, 1.0)


def correlate(
    id_accuracy: Accuracies,
    accuracy: Accuracies,
    *,
    units: Units | None = None,
    size: int | None = None,
    eps: float | int = EPS,
    clip: str = "eps",
    on_degenerate: Literal["nan", "zero"] = "nan",
    n_resamples: int = N_RESAMPLES,
    level: float = 0.95,
    se: Literal["bonett-wright", "fisher"] = "bonett-wright",
    seed: int = 0,
) -> Correlation:
    """The correlation of Eq. 4 with its intervals.

    Args:
        id_accuracy: In-distribution accuracy per model, in [0, 1]; all NaN where not known.
        accuracy: Out-of-distribution accuracy per model, in [0, 1].
        units: Training run or family of each model, as codes. Default: each model by itself.
        size: Examples behind `accuracy`; needed by `clip="half"`.
        eps: Clip of both accuracies.
        clip: `eps`, or `half`: clip `accuracy` at half an example.
        on_degenerate: What an undefined correlation is: NaN, or 0 as the authors print it.
        n_resamples: Resamples of the units.
        level: Two-sided coverage.
        se: Standard error behind the interval of the rank correlation.
        seed: Root seed of the resamples.

    Raises:
        InputError: If an option is out of range or an accuracy outside [0, 1].
        ShapeError: If the vectors are of different lengths.

    References:
        Fisher (1921); Bonett and Wright (2000), doi:10.1007/BF02294183.
    """
    for name, value, choices in (
        ("on_degenerate", on_degenerate, ("nan", "zero")),
        ("se", se, ("bonett-wright", "fisher")),
    ):
        if value not in choices:
            raise InputError(f"{name} is {value!r}; choose {choices[0]!r} or {choices[1]!r}")
    check_least(1, n_resamples=n_resamples)
    x, y = np.asarray(id_accuracy, dtype=np.float64), checked_shares(accuracy, "accuracy")
    unknown = bool(len(x)) and bool(np.isnan(x).all())
    x = x if unknown else checked_shares(x, "id_accuracy")
    units = np.arange(len(x)) if units is None else np.asarray(units, dtype=np.int64)
    if units.shape != x.shape:
        raise ShapeError(f"units has shape {units.shape}, id_accuracy {x.shape}; give one unit per model")
    ood_eps = clip_of(clip, size, eps)
    r = math.nan if unknown else line_correlation(x, y, eps=ood_eps, id_eps=eps)
    names = np.unique(units)
    undefined = Correlation(
        r=0.0 if on_degenerate == "zero" else math.nan,
        spearman=0.0 if on_degenerate == "zero" else math.nan,
        level=level,
        n=len(x),
        n_units=len(names),
        n_degenerate=n_resamples,
        frac_clipped=float(np.mean((y == 0) | (y == 1))) if len(y) else math.nan,
        degenerate=True,
        caution=f"{UNRATED if unknown else _SAME}, so the correlation is undefined",
        **dict.fromkeys(_ENDS, math.nan),
    )
    if math.isnan(r):
        return undefined
    rho = spearman(x, y) if np.ptp(x) > 0 and np.ptp(y) > 0 else math.nan
    fisher = fisher_z_interval(r, len(x), level=level)
    ranks = fisher_z_interval(rho, len(x), level=level, kind="pearson" if se == "fisher" else "spearman")
    draws = names[stream(seed, "cluster-bootstrap").integers(0, len(names), (n_resamples, len(names)))]
    replicates = cluster_replicates(x, y, draws, units, eps=ood_eps, id_eps=eps)
    finite = replicates[np.isfinite(replicates)]
    low, high, n_eff = math.nan, math.nan, math.nan
    if len(names) > 1 and len(finite) > 1:
        low, high = (float(end) for end in np.quantile(finite, [(1 - level) / 2, (1 + level) / 2]))
        spread = float(np.arctanh(np.clip(finite, -_CERTAIN, _CERTAIN)).var(ddof=1))
        n_eff = 3 + 1 / spread if spread > 0 else math.inf
    return replace(
        undefined,
        r=r,
        low=low,
        high=high,
        fisher_low=fisher.low,
        fisher_high=fisher.high,
        spearman=rho,
        spearman_low=ranks.low,
        spearman_high=ranks.high,
        n_eff=n_eff,
        n_degenerate=n_resamples - len(finite),
        degenerate=False,
        caution=_few_units(len(names)),
    )


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


def _few_units(n_units: int) -> str | None:
    """What makes an interval over so few units unreliable."""
    if n_units >= RELIABLE_UNITS:
        return None
    return (
        f"{n_units} independent unit{'s' if n_units != 1 else ''}: with fewer than {RELIABLE_UNITS} the "
        "interval is unreliable"
    )


def fit_line(
    id_accuracy: Accuracies, accuracy: Accuracies, *, eps: float | int = EPS, id_eps: float | int = EPS
) -> Line:
    """Least-squares line in probit axes, out-of-distribution on in-distribution accuracy.

    Args:
        id_accuracy: In-distribution accuracy per model, in [0, 1].
        accuracy: Out-of-distribution accuracy per model, in [0, 1].
        eps: Clip of `accuracy`.
        id_eps: Clip of `id_accuracy`.

    Returns:
        All NaN where the in-distribution accuracies are constant or NaN; `r` NaN where the others are.

    References:
        Miller et al. (2021), arXiv:2107.04649, Def. 1; Salaudeen et al. (2025), arXiv:2510.24884, Eq. 2.
    """
    if len(id_accuracy) and np.isnan(id_accuracy).all():
        return Line(**dict.fromkeys((each.name for each in fields(Line)), math.nan))
    x, y = probit(id_accuracy, eps=id_eps), probit(accuracy, eps=eps)
    _check_vectors(x, y)
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx)) if dx @ dx >= DEGENERATE else math.nan
    residual = dy - slope * dx
    return Line(
        slope=slope,
        intercept=float(y.mean() - slope * x.mean()),
        r=line_correlation(np.asarray(id_accuracy), np.asarray(accuracy), eps=eps, id_eps=id_eps),
        residual_sd=float(np.sqrt(np.mean(residual**2))),
        max_residual=float(np.abs(residual).max()),
    )


def fitted_line(
    id_accuracy: Accuracies, accuracy: Accuracies, units: Units, *, eps: float | int, id_eps: float | int
) -> FittedLine:
    """`fit_line` with what a prediction needs; `units` has the training run or family of each model."""
    x = probit(id_accuracy, eps=id_eps)
    return FittedLine(
        **vars(fit_line(id_accuracy, accuracy, eps=eps, id_eps=id_eps)),
        n=len(x),
        n_units=len(np.unique(units)),
        centre=float(x.mean()),
        variance=float(x.var()),
        eps=float(eps),
        id_eps=float(id_eps),
    )


def _check_vectors(x: np.ndarray, y: np.ndarray) -> None:
    if x.ndim != 1 or x.shape != y.shape:
        raise ShapeError(
            f"id_accuracy has shape {x.shape} and accuracy {y.shape}; give two vectors over the same models"
        )

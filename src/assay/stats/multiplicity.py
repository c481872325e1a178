"""Many hypotheses at once: p-values and e-values adjusted for their number.

Each function returns the smallest level at which each hypothesis is rejected, so "rejected at level a" reads
`adjusted <= a`. NaN marks what was not tested: it stays NaN and does not count.

| function | controls | under |
|---|---|---|
| `bonferroni`, `holm` | any false rejection | any dependence |
| `benjamini_hochberg` | share of false rejections | independence or positive dependence |
| `benjamini_yekutieli`, `e_benjamini_hochberg` | share of false rejections | any dependence |

Two ask how many are false: `partial_conjunction`, whether at least so many of all are, and
`true_discoveries`, how many of some that were picked after looking.
"""

from collections.abc import Callable

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.core.errors import InputError


def _adjusted(
    p_values: Float64[np.ndarray, "..."], rule: Callable[[np.ndarray], np.ndarray]
) -> Float64[np.ndarray, "..."]:
    """The rule applied to what was tested."""
    tested = ~np.isnan(p_values)
    adjusted = np.full(p_values.shape, np.nan)
    if tested.any():
        adjusted[tested] = rule(_checked(p_values[tested]))
    return adjusted


def _checked(p_values: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, " m"]:
    if not ((p_values >= 0) & (p_values <= 1)).all():
        raise InputError(f"p-values are {p_values}; expected values in [0, 1]")
    return p_values


def bonferroni(p_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Adjusted p-values min(1, m p): at level a the chance of any false rejection is at most a.

    Args:
        p_values: In [0, 1], any shape; NaN marks what was not tested.

    Raises:
        InputError: A p-value outside [0, 1].

    Example:
        >>> bonferroni(np.array([0.01, 0.04, np.nan]))
        array([0.02, 0.08,  nan])
    """
    return _adjusted(p_values, lambda p: np.minimum(1.0, len(p) * p))


def holm(p_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Adjusted p-values of the step-down rule: max over j <= i of (m - j + 1) p_(j), at most 1.

    The same promise as `bonferroni`, and never larger.

    Args:
        p_values: In [0, 1], any shape; NaN marks what was not tested.

    Raises:
        InputError: A p-value outside [0, 1].

    References:
        Holm (1979), Scandinavian Journal of Statistics 6, 65-70.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03]))
        array([0.03, 0.06, 0.06])
    """

    def rule(p: np.ndarray) -> np.ndarray:
        order = np.argsort(p, kind="stable")
        stepped = np.empty(len(p))
        stepped[order] = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
        return np.minimum(1.0, stepped)

    return _adjusted(p_values, rule)


def benjamini_hochberg(p_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Smallest false discovery rate at which each hypothesis would be rejected.

    q_(i) = min over j >= i of m p_(j) / j, with p_(1) <= ... <= p_(m).

    Args:
        p_values: In [0, 1], any shape; NaN marks what was not tested and does not count into m.

    Returns:
        In [0, 1], in the shape given, never below the p-value; NaN where that was NaN.

    Raises:
        InputError: A p-value outside [0, 1].

    References:
        Benjamini and Hochberg (1995), doi:10.1111/j.2517-6161.1995.tb02031.x.

    Example:
        >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5]))
        array([0.04      , 0.05333333, 0.05333333, 0.5       ])
    """
    return _adjusted(p_values, lambda p: scipy.stats.false_discovery_control(p, method="bh"))


def benjamini_yekutieli(p_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """As `benjamini_hochberg`, times 1 + 1/2 + ... + 1/m: valid however the p-values depend on each other.

    Args:
        p_values: In [0, 1], any shape; NaN marks what was not tested.

    Raises:
        InputError: A p-value outside [0, 1].

    References:
        Benjamini and Yekutieli (2001), doi:10.1214/aos/1013699998.

    Example:
        >>> benjamini_yekutieli(np.array([0.01, 0.04]))
        array([0.03, 0.06])
    """
    return _adjusted(p_values, lambda p: scipy.stats.false_discovery_control(p, method="by"))


def e_benjamini_hochberg(e_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Smallest false discovery rate at which each e-value would be rejected, however they depend.

    Rejecting at level a takes the i* largest, i* the largest i with e_(i) >= m / (i a): q_(i) = min over j >=
    i of m / (j e_(j)), at most 1, with e_(1) >= ... >= e_(m).

    Args:
        e_values: >= 0, infinity allowed, any shape; expectation at most 1 under the null. NaN marks what was
            not tested.

    Returns:
        In [0, 1], in the shape given; NaN where that was NaN.

    Raises:
        InputError: A negative e-value.

    References:
        Wang and Ramdas (2022), arXiv:2009.02824.

    Example:
        >>> e_benjamini_hochberg(np.array([80.0, 10.0, 0.0, 40.0]))
        array([0.05      , 0.13333333, 1.        , 0.05      ])
    """
    if (e_values < 0).any():
        raise InputError(f"the smallest e-value is {np.nanmin(e_values):g}; expected values of at least 0")
    # 1 / e is a p-value by Markov's inequality; the cap at 1 keeps it in range and changes no rejection.
    return benjamini_hochberg(1 / np.maximum(1.0, e_values))


def partial_conjunction(p_values: Float64[np.ndarray, " m"], least: int) -> float:
    """p-value of "fewer than `least` of these hypotheses are false", however strongly the false ones are so.

    min over j >= u of (m - u + 1) / (j - u + 1) p_(j), with u = `least` and p_(1) <= ... <= p_(m): of any set
    of m - u + 1 hypotheses, one of which is then false, Simes' p-value, for the set with the largest.

    Args:
        p_values: In [0, 1], at least one.
        least: From 1 to m. A count of rejections is not such a test: some of the rejected may be true.

    Returns:
        In [0, 1]. At level a the statement "at least u are false" is wrong with probability at most a, where
        the p-values are independent or positively dependent, as those of heads that share prompts are.

    Raises:
        InputError: A p-value outside [0, 1] or NaN, or a number that is not from 1 to m.

    References:
        Benjamini and Heller (2008), doi:10.1111/j.1541-0420.2007.00984.x; Simes (1986),
        doi:10.1093/biomet/73.3.751.

    Example:
        >>> partial_conjunction(np.array([0.001, 0.02, 0.03, 0.9]), 2)
        0.045
    """
    m = len(p_values)
    if not 1 <= least <= m:
        raise InputError(f"least is {least} of {m} p-values; expected a number from 1 to {m}")
    ranks = np.arange(1, m - least + 2)
    return float(min(1.0, ((m - least + 1) / ranks * np.sort(_checked(p_values))[least - 1 :]).min()))


def true_discoveries(
    p_values: Float64[np.ndarray, " m"], selected: Bool[np.ndarray, " m"], *, alpha: float = 0.05
) -> int:
    """Lower bound of how many of the selected hypotheses are false, whatever they were selected by.

    max over u of 1 - u + #{selected: h p <= u alpha}, at least 0, with Hommel's h, the largest i such that
    p_(m - i + j) > j alpha / i for all j = 1..i: the closed testing procedure of Simes' tests.

    Args:
        p_values: Of all that was tested, in [0, 1].
        selected: Which of them the bound is of.
        alpha: Probability that any such bound, of any selection, is above the truth, where the p-values are
            independent or positively dependent.

    Raises:
        InputError: A p-value outside [0, 1] or NaN.

    References:
        Goeman and Solari (2011), doi:10.1214/11-STS356; Goeman, Meijer, Krebs and Solari (2019),
        doi:10.1093/biomet/asz041.

    Example:
        >>> p = np.array([0.001, 0.004, 0.03, 0.6])
        >>> true_discoveries(p, p < 0.05)
        2
    """
    m, ordered = len(p_values), np.sort(_checked(p_values))
    sizes = np.arange(1, m + 1)
    # All of the i largest beyond the line through alpha: Simes' test does not reject them.
    kept = [i for i in sizes.tolist() if (i * ordered[m - i :] > alpha * sizes[:i]).all()]
    h = max(kept, default=0)
    chosen = np.sort(p_values[selected])
    places = np.arange(len(chosen))
    if h == 0:
        return len(chosen)
    return int((np.searchsorted(chosen, alpha * (places + 1) / h, side="right") - places).max(initial=0))

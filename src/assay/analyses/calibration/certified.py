"""M3b: do single heads of a circuit have an effect? Certified signs, and a proof about half of them.

A verdict on many heads is a proof about a majority of them by the partial-conjunction test: heads share
prompts, so that a count of those which pass a test of their own is not binomial, and is not a bound.
"""

import math
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int, Real

from assay.analyses.calibration.gate import Found, Quantity, Sampling, gate, named
from assay.analyses.calibration.samples import ALPHA, HALF, by_p, finite_heads, majorities
from assay.core.errors import InputError, ShapeError
from assay.stats import benjamini_hochberg, mean_above, mean_tests, partial_conjunction
from assay.stats.estimate import varies
from assay.stats.intervals import FEWEST_FOR_MEANS
from assay.stats.significance import EXACT_SIGNS


CERTIFIED, CONTINGENT = 0.95, 0.50  # published pass rates


def _columns(c: Any) -> dict[str, Any]:
    """Effects of the heads; below a hundredth of the margin lost by corrupting they are negligible."""
    gap = c.get("y_full") - c.get("y_cor")
    lost = float(gap[np.isfinite(gap)].mean()) if np.isfinite(gap).any() else 0.0
    return {"effects": c.effects("y_drop1/circuit"), "smallest": 0.01 * lost if lost > 0 else None}


@gate(
    code="M3b",
    criterion="Head-level stability",
    question="Do the heads of the circuit contribute, whichever prompts are looked at?",
    on_pass="At least half of the members contribute individually.",
    on_fail="More than half of the members contribute less than what counts: prune the negligible heads.",
    weakness="A head without effect is certified a quarter of the time, at any number of prompts.",
    source="mechanistic-validity framework; Anani et al. (2026), arXiv:2602.22968",
    number=Quantity(
        label="share of heads with an effect above 0 that is not negligible",
        value="share_positive",
        published="published_share_certified",
        rule=HALF,
        fewest=FEWEST_FOR_MEANS,
    ),
    reasons={"not_applicable": ("The circuit has no heads.", "Give a circuit with at least one head.")},
    when_open="The deciding heads lie too close to a limit to predict the number of prompts needed.",
    columns=_columns,
)
def certified_stability(
    effects: Real[np.ndarray, "n k"],
    *,
    smallest: float | None = None,
    signs: Real[np.ndarray, " k"] | None = None,
    fraction: float = 0.8,
    n_draws: int = 20,
    subsamples: Int[np.ndarray, "n_draws size"] | None = None,
    how: Sampling,
) -> Found:
    """Whether half of a circuit's heads have an effect above 0, or more than half a negligible one.

    Published: a head is certified where its mean effect is above 0 in 95 % of random subsamples, contingent
    in half, else unstable; half of the heads certified pass. With confidence: a pass proves that at least
    ceil(k / 2) of the k mean effects are above 0, a fail that more than half lie below `smallest`, both by
    the partial-conjunction test of one-sided p-values (`assay.stats.mean_above`) at 0.05. A head whose effect
    is below `smallest` with p <= 0.05 is negligible, and then not positive.

    Args:
        effects: Effect of dropping each head of the circuit on each prompt, `y_full - y_drop1`.
        smallest: Mean effect below which a head is negligible, in the unit of the effects, at least 0.
            Default: 0, with the warning `smallest_is_zero`; a fail then needs heads of negative effect.
        signs: -1 for heads declared to oppose the task, whose effect is tested to be below 0; else 1.
        fraction: Of the prompts in a subsample, rounded down; half of them, in 200 draws, is sounder.
        n_draws: Subsamples.
        subsamples: Given ones instead, indices of units.
        how: Units are drawn whole.

    Returns:
        Undefined below five prompts; not applicable to an empty circuit. Below 20 prompts inconclusive
        (`too_few`): the p-values of skewed effects do not hold. `n_needed`: smallest n at which, at today's
        means and spreads, one of the tests reaches 0.05; None where a head that it hinges on lies within a
        standard error of its limit. A head without a finite effect is unstable (`head_not_finite`). A head
        with the same effect on every prompt is certified if that is above 0 (`zero_variance`).
        `details["labels"]` of single heads: certified where a one-sided sign-flip test certifies them after
        Benjamini and Hochberg at 0.05, unstable where the mean effect is not above 0, else contingent.

    References:
        Benjamini and Heller (2008), doi:10.1111/j.1541-0420.2007.00984.x; Fisher (1935); Benjamini and
        Hochberg (1995).
    """
    if not 0 < fraction <= 1:
        raise InputError(f"fraction is {fraction}; expected a share of the prompts above 0 and at most 1")
    least = 0.0 if smallest is None else smallest
    if not 0 <= least < math.inf:
        raise InputError(f"smallest is {smallest}; give a mean effect of at least 0, or None")
    data, finite = finite_heads(effects, how.unit_id)
    (x,) = data.vectors
    n, k = x.shape
    direction = np.ones(k) if signs is None else signs
    if direction.shape != (k,) or not np.isin(direction, (-1, 1)).all():
        raise ShapeError(f"signs are {direction}; expected 1 or -1 for each of {k} heads")
    found = data.found("M3b.certified_stability", fewest=None, n_heads=k)
    found.thresholds = {"smallest": least}
    found.warn(head_not_finite=not finite.all())
    found.stop_if(data.missing(5) if k else "not_applicable")
    found.warn(smallest_is_zero=smallest is None)
    rng = how.stream("M3b")
    if subsamples is None:
        size = max(1, math.floor(fraction * n + 1e-9))  # 0.8 * 35 is a little less than 28
        subsamples = rng.permuted(np.broadcast_to(np.arange(n), (n_draws, n)), axis=1)[:, :size]
    rates = np.where(finite, (x[subsamples].mean(axis=1) > 0).mean(axis=0), 0.0)
    published = _labels(rates >= CERTIFIED, rates >= CONTINGENT)
    signed = x * direction
    means, tests = signed.mean(axis=0), mean_tests(signed, rng=rng)
    constant = ~varies(signed, axis=0) & signed.any(axis=0)
    found.warn(zero_variance=bool(constant.any()))
    p = np.where(constant & (means > 0), 0.0, [each.sign_flip.p_value for each in tests])
    p[~finite] = np.nan
    adjusted = benjamini_hochberg(p)
    certified = (adjusted <= ALPHA) & (means > 0) & finite
    labels, halves = _labels(certified, (means > 0) & finite), prove_halves(signed, finite, least)
    positive = (means > 0) & ~halves.details["negligible"] & finite
    found.details |= {"pass_rates": rates, "published_labels": published, "mean_effects": means * direction}
    found.details |= {"labels": labels, "p": p, "adjusted_p": adjusted}
    found.details["t_p"] = [each.t.p_value for each in tests]
    found.details |= halves.details
    found.values = {"share_positive": float(positive.mean()), "share_certified": float(certified.mean())}
    found.values["published_share_certified"] = float((published == "certified").mean())
    found.values |= halves.values
    kind = "exact" if n <= EXACT_SIGNS else "permutation"
    for at in np.flatnonzero(p > 0):  # a sign-flip p is at least 2^-n: 0 marks an effect that is not tested
        numbers = {"head": int(at), "value": float((means * direction)[at]), "baseline": 0.0, "n": n}
        found.claim(f"M3b/{at}", "{} contributes", p[at], kind, claimed=bool(certified[at]), **numbers)
    counts = [f"{(labels == word).sum()} {word}" for word in ("certified", "contingent", "unstable")]
    found.details["finding"] = f"Of {k} heads, {named(counts)}."
    found.status = halves.status
    found.n_needed = halves.n_needed if halves.status == "inconclusive" else None
    return found


def _labels(certified: Bool[np.ndarray, " k"], contingent: Bool[np.ndarray, " k"]) -> Any:
    """A label per head; the others are unstable."""
    return np.where(certified, "certified", np.where(contingent, "contingent", "unstable"))


def prove_halves(x: Float64[np.ndarray, "n k"], finite: Bool[np.ndarray, " k"], least: float) -> Found:
    """Whether half of the heads are positive, or more than half negligible.

    Args:
        x: Effects in the declared direction.
        finite: Heads that have one; the others are neither positive nor negligible.
        least: Mean effect below which a head is negligible.

    Returns:
        The status of `certified_stability`, `n_needed`, and p of each head: of "the effect is at most 0"
        (1 where it is negligible), and of "the effect is at least the smallest".
    """
    n, k = x.shape
    half, most = majorities(k)
    p_negligible = np.where(finite, mean_above(-x, -least), 1.0)
    negligible = p_negligible <= ALPHA
    p_positive = np.where(finite & ~negligible, mean_above(x), 1.0)
    error = np.array([column.std(ddof=1) if varies(column) else 0.0 for column in x.T])
    mean, needed = x.mean(axis=0), []
    for distance, number, usable in ((mean, half, finite & ~negligible), (least - mean, most, finite)):
        # A constant head is settled at every n.
        ratios = np.where(distance > 0, np.inf, -np.inf)
        np.divide(distance, error, out=ratios, where=finite & (error > 0))
        needed.append(_n_to_prove(np.where(usable, ratios, -np.inf), number, n))
    p_pass, p_fail = partial_conjunction(p_positive, half), partial_conjunction(p_negligible, most)
    found = Found(
        values={"p_half_positive": p_pass, "p_most_negligible": p_fail}, status=by_p(p_pass, p_fail)
    )
    found.n_needed = min((each for each in needed if each is not None), default=None)
    found.details = {"p_positive": p_positive, "p_negligible": p_negligible, "negligible": negligible}
    return found


def _n_to_prove(ratios: Float64[np.ndarray, " k"], least: int, n: int) -> int | None:
    """Smallest number of prompts above n at which Student's p prove `least` heads beyond their limit.

    Skewed effects need more.

    Args:
        ratios: Distance of each mean from its limit over its standard deviation.
        least: Heads to prove.
        n: Prompts there are.

    Returns:
        None where one of the `least` best heads lies within a standard error of its limit, or beyond it.
    """
    if math.sqrt(n) * np.sort(ratios)[-least] <= 1:
        return None

    def proven(size: int) -> bool:
        return partial_conjunction(scipy.stats.t.sf(math.sqrt(size) * ratios, size - 1), least) <= ALPHA

    low, high = n, n + 1
    while not proven(high):  # ends: root(size) times the ratio of each of the best exceeds any quantile
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if proven(middle) else (middle, high)
    return high

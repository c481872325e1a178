"""S1: do a circuit's heads stand out in direct effect, and how are their attributions distributed?"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.analyses.calibration.gate import Found, Quantity, Sampling, gate
from assay.analyses.calibration.samples import cautious_alpha, halves, sample, scored_heads
from assay.core.errors import InputError
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, undefined_interval
from assay.discovery.heads.weights import EffectiveRank, effective_rank
from assay.stats import auroc, draw_counts
from assay.stats.estimate import EQUAL
from assay.stats.intervals import FEWEST_FOR_MEANS, mean_above


NO_EFFECT = 1e-8  # mean magnitude below which the other heads give no scale
FEWEST = 5  # prompts
HALVINGS = 5  # of an interval at once, in one pass over the prompts
MOST = 1000  # times that an end of the interval may be moved, where all of an effect may be noise

Sizes = Float64[np.ndarray, " n"]
Flags = Bool[np.ndarray, " n"]
Rng = np.random.Generator

_RATIO = Quantity(label="attribution inside over outside the circuit", rule=Rule(pass_at=2.0), fewest=FEWEST)


def moments(values: Float64[np.ndarray, "P H"]) -> dict[str, Float64[np.ndarray, " H"]]:
    """Shape of each column over prompts.

    Returns:
        `mean`; `variance` (ddof 1); `skewness` n / ((n - 1)(n - 2)) sum ((x - m) / s)^3; `kurtosis`
        m4 / s^4 - 3 with s of ddof 1; `sparsity`, the share with |x| < 0.01. By the published convention
        skewness is 0 below three prompts, kurtosis below four, and both where s < 1e-12.

    Example:
        >>> found = moments(np.array([[1.0], [2.0], [6.0]]))
        >>> found["mean"], found["skewness"].round(4)
        (array([3.]), array([1.4579]))
    """
    n = len(values)
    mean = values.mean(axis=0)
    deviation = values - mean
    variance = deviation.var(axis=0, ddof=1) if n > 1 else np.full(values.shape[1], np.nan)
    spread = np.sqrt(variance)
    flat = ~(spread >= 1e-12)
    standard = deviation / np.where(flat, 1.0, spread)
    skewness = (standard**3).sum(axis=0) * n / ((n - 1) * (n - 2)) if n > 2 else np.zeros(len(mean))
    kurtosis = (standard**4).mean(axis=0) - 3 if n > 3 else np.zeros(len(mean))
    found = {"mean": mean, "variance": variance, "sparsity": (np.abs(values) < 0.01).mean(axis=0)}
    return found | {"skewness": np.where(flat, 0.0, skewness), "kurtosis": np.where(flat, 0.0, kurtosis)}


def _ratio(size: Sizes, inside: Flags, outside: Flags) -> float | None:
    """Mean over the circuit's heads over that elsewhere; None where that is below 1e-8."""
    below = float(size[outside].mean()) if outside.any() else 0.0
    return float(size[inside].mean()) / below if below >= NO_EFFECT else None


@gate(
    code="S1",
    criterion="S1 Distributional Characterization",
    question="Do the circuit's heads stand out in direct effect?",
    on_pass="members stand out in direct effect",
    on_fail="members act indirectly, or the circuit is noise: check patching and mediation before concluding",
    weakness="direct effects grow with depth, and magnitudes of noisy means are biased upwards",
    number=_RATIO,
    parts={"difference": replace(_RATIO, label="the same of effects on right less wrong answer")},
    columns=lambda c: {
        "attributions": c.get("dla_correct"),
        "outputs": c.get("z_last"),
        "n_heads": c.table.model.n_heads,
    },
    # Beside the published attribution (correct output, no final norm) that to the margin, norm frozen.
    beside=lambda c: {"difference": {"attributions": c.find("dla"), "outputs": None}},
    reads=("task", "seed", "unit_id", "n_boot", "n_perm"),
)
def distributional_characterization(
    attributions: Any,
    members: Bool[np.ndarray, " H"],
    *,
    outputs: Float64[np.ndarray, "P H d_head"] | None = None,
    n_heads: int | None = None,
    how: Sampling,
) -> Found:
    """Mean magnitude of the attribution of the circuit's heads over that of the others.

    Args:
        attributions: `[P, H]` direct effects; NaN marks a head without one (a whole column) or a prompt to
            drop.
        members: The circuit's heads.
        outputs: Outputs of the heads at the answer, for their effective rank.
        n_heads: Heads per layer, for the ratio within layers that hold members.
        how: Permutations of membership are behind the p of the AUROC.

    Returns:
        Passes where the ratio of mean |mean over prompts| is above 2. `values`: it, `ratio_mean_of_abs` (mean
        of |x|, the source's wording), `ratio_layer_matched`, `auroc` of |mean| with `auroc_p`.
        `details["per_head"]`: mean with a 95 % bootstrap interval, variance, skewness, excess kurtosis,
        sparsity and effective rank (singular-value participation). Undefined for an empty circuit or one of
        all heads, below three prompts, and where the others' mean is below 1e-8 (`zero_denominator`).

    Notes:
        The lower bound exists, and may pass, where the others' effect cannot be distinguished from 0.
    """
    table, k = np.asarray(attributions, dtype=np.float64), len(members)
    if n_heads is not None and (n_heads < 1 or k % n_heads):
        raise InputError(f"n_heads is {n_heads}; expected heads per layer, of {k} in total")
    heads = scored_heads(table) if len(table) else np.ones(k, dtype=np.bool_)
    kept, inside = sample(how.unit_id, table=table[:, heads]), members[heads]
    found = Found(n=kept.n)
    found.warn(missing_heads=not heads.all())
    found.warnings += kept.warnings
    found.stop_if(not kept.n, "no_valid_prompt")
    found.stop_if(inside.all() or not inside.any(), "no_others" if inside.any() else "no_members")
    found.stop_if(kept.missing())
    units, used = kept.vectors[0], table[kept.used][:, heads]
    size, rng = np.abs(units.mean(axis=0)), how.stream("S1")
    means = draw_counts(kept.n, how.n_boot, rng) @ units / kept.n
    layer = np.flatnonzero(heads) // (n_heads or len(heads))
    near = np.isin(layer, layer[inside]) & (n_heads is not None)
    spread = moments(used)
    found.values = {"value": _ratio(size, inside, ~inside), "auroc": auroc(size, inside).value}
    found.values["ratio_mean_of_abs"] = _ratio(np.abs(used).mean(axis=0), inside, ~inside)
    found.values["ratio_layer_matched"] = _ratio(size, inside, near & ~inside)
    for name, side in (("circuit", inside), ("others", ~inside)):
        found.values[f"{name}_mean_variance"] = float(spread["variance"][side].mean())
    found.values["auroc_p"] = _permuted(size, inside, rng, how.n_perm)
    spread |= dict(zip(("mean_low", "mean_high"), np.quantile(means, [0.025, 0.975], axis=0), strict=True))
    if outputs is not None:
        singular = np.linalg.svd(outputs[kept.used][:, heads].swapaxes(0, 1), compute_uv=False)
        spread["effective_rank"] = effective_rank(singular, EffectiveRank.SINGULAR_VALUES)
    per_head = {name: np.full(k, np.nan) for name in spread}
    for name, column in spread.items():
        per_head[name][heads] = column
    found.details = {"n": kept.n, "n_dropped": kept.n_dropped, "per_head": per_head}
    claim, area = "members rank above the other heads in direct effect", found.values["auroc"]
    about = {"value": area, "baseline": 0.5, "n": kept.n}
    found.claim("S1/auroc", claim, found.values["auroc_p"], "permutation", **about)
    found.stop_if(found.values["value"] is None, "zero_denominator")
    found.interval = _bounds(units, inside, rng)
    found.warn(zero_variance=found.interval.reason == "degenerate")
    return found


def _permuted(size: Sizes, inside: Flags, rng: Rng, n_perm: int) -> float:
    """Share of random sets of as many heads that rank at least as high."""
    ranks = np.rint(2 * scipy.stats.rankdata(size)).astype(np.int64)  # whole: ties are exact
    observed = int(ranks[inside].sum())
    shuffled = rng.permuted(np.broadcast_to(ranks, (n_perm, len(ranks))), axis=1)
    reached = int(np.count_nonzero(shuffled[:, : int(inside.sum())].sum(axis=1) >= observed))
    return (1 + reached) / (1 + n_perm)


def _bounds(units: Float64[np.ndarray, "P n"], inside: Flags, rng: Rng) -> Interval:
    """Bounds of the ratio of the magnitudes that the heads' expected effects have.

    With the sign of each head's mean fixed the ratio is one of means over prompts, a / b. Its lower bound is
    the largest t up to which a - t b is proven positive on average, its upper bound the smallest from which
    it is proven negative (Fieller's argument with Hall's bounds of a mean), at most 1,000 times the larger of
    the ratio and 1; b may be 0 as far as these prompts tell. But |mean| exceeds |expectation| on average. The
    sign from one half of the prompts times the mean of the other falls short of it, so the difference,
    averaged over halves, is taken off a in the lower bound and off b in the upper.
    """
    n = len(units)
    if n < FEWEST:
        return undefined_interval(ONE_SIDED_95, "hall", "too_few")
    aligned = np.where(units.mean(axis=0) < 0, -units, units)
    above, below = aligned[:, inside].mean(axis=1), aligned[:, ~inside].mean(axis=1)
    ratio = float(above.mean() / below.mean())
    if np.abs(above - ratio * below).max() <= EQUAL * np.abs(above).max():
        return Interval(low=ratio, high=ratio, level=ONE_SIDED_95, method="hall", reason="degenerate")
    alpha, most = cautious_alpha(n, FEWEST_FOR_MEANS), MOST * max(ratio, 1.0)

    def proven(sign: float, t: Any) -> Bool[np.ndarray, " _"]:
        return np.asarray(mean_above(sign * (above[:, None] - np.atleast_1d(t) * below[:, None])) <= alpha)

    low = _last(lambda t: proven(1.0, t), most) if proven(1.0, 0.0)[0] else 0.0
    high = _last(lambda t: ~proven(-1.0, t), most)
    first, second = halves(n, 50, rng) @ units
    crossed = (np.sign(first) * second + np.sign(second) * first).mean(axis=0) / 2
    kept = (crossed[inside].mean() / above.mean(), crossed[~inside].mean() / below.mean())
    less, more = (float(np.clip(share, 1 / MOST, 1.0)) for share in kept)
    return Interval(low=low * less, high=high / more, level=ONE_SIDED_95, method="hall")


def _last(holds: Callable[[Any], Bool[np.ndarray, " _"]], most: float) -> float:
    """The largest number up to `most` that something holds for, if it holds from 0 on: by halving logarithms.

    Args:
        holds: Of several numbers, which it holds for.
        most: Where the search ends.
    """
    if holds(most)[0]:
        return most
    low, high = most / MOST**4, most
    while high / low > 1 + EQUAL:
        grid = np.array([low, high])
        for _ in range(HALVINGS):
            grid = np.insert(grid, range(1, len(grid)), np.sqrt(grid[:-1] * grid[1:]))
        at = bisect_left(~holds(grid[1:-1]), True)
        low, high = map(float, grid[at : at + 2])
    return low

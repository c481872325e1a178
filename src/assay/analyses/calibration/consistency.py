"""Do parts of one measurement agree: halves of the prompts, and heads as items of one scale."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64, Real, Shaped

from assay.analyses.calibration._tables import finite_heads
from assay.analyses.calibration.gate import SEED, gate_stream, undefined
from assay.analyses.calibration.samples import judged, limits, sample
from assay.core.errors import ShapeError, check_least
from assay.core.verdict import ONE_SIDED_95, Rule, Verdict, undefined_interval
from assay.stats import (
    Estimate,
    cronbach_alpha,
    fisher_z_interval,
    intraclass_correlation,
    pearson_matrix,
    resampled_alpha_bounds,
    spearman_brown,
)
from assay.stats._checks import varies


N_HALVES = 200
SMALLEST_FOR_ALPHA = 20  # prompts below which no bound of alpha holds for exponential effects
SHARE_FOR_ALPHA = 0.4  # of the allowed error for each bound: tails that have not shown make all too short
ERRATIC = 0.2  # item-rest correlation below which a head is listed
_RELIABLE = Rule(pass_at=0.7)


def split_half(
    effects: Real[np.ndarray, "n H"],
    *,
    heads: Bool[np.ndarray, " H"] | None = None,
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    n_halves: int = N_HALVES,
    level: float = ONE_SIDED_95,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """C16.split_half: whether the profile of head effects is the same on two halves of the prompts.

    Value: correlation over heads of the mean effects on two random halves, averaged over halves as Fisher's z
    and stepped up. With confidence: ICC(3,k) of heads by prompts, which is its expectation, against 0.7.

    Args:
        effects: Effect of dropping each head on each prompt, `y_full - y_drop1`.
        heads: Which heads make up the profile; None: all.
        unit_id: Prompts that belong together.
        n_halves: Random halves.
        level: Two-sided coverage of the bounds.
        task: Names the random stream.
        seed: Its root.

    Returns:
        Undefined below six prompts or two heads (`too_few`) and without variance (`zero_variance`). Heads
        without a finite effect are left out (`head_dropped`).

    References:
        Spearman (1910); Brown (1910); Shrout and Fleiss (1979), doi:10.1037/0033-2909.86.2.420.
    """
    check_least(1, n_halves=n_halves)
    table = np.asarray(effects, dtype=np.float64)
    if heads is not None and heads.shape != table.shape[1:]:
        raise ShapeError(
            f"effects have shape {table.shape}, heads {heads.shape}; prompts by heads and one flag per head "
            "are needed"
        )
    data, finite = finite_heads(table if heads is None else table[:, heads], unit_id)
    x = np.ascontiguousarray(data.vectors[0][:, finite])
    draft = data.draft(_RELIABLE, "C16.split_half", n_heads=x.shape[1])
    draft.warn("head_dropped", not finite.all())
    reason = data.missing(6) or ("too_few" if x.shape[1] < 2 else None)
    profile = intraclass_correlation(x.T, level=level).consistency_mean
    reason = reason or ("zero_variance" if not (x.max(axis=0) > x.min(axis=0)).any() else profile.reason)
    if reason is None:
        rng = gate_stream("C16.split_half", task, seed=seed)
        orders = rng.permuted(np.broadcast_to(np.arange(data.n), (n_halves, data.n)), axis=1)
        first = np.zeros((n_halves, data.n))
        np.put_along_axis(first, orders[:, : data.n // 2], 1.0, axis=1)
        n_first = data.n // 2
        means = np.stack([first @ x / n_first, (1 - first) @ x / (data.n - n_first)], axis=1)
        r = pearson_matrix(means)[:, 0, 1]
        if np.isnan(r).any():
            reason = "zero_variance"
    if reason is not None:
        return draft.undefined(reason)
    # Two halves that agree exactly have infinite z; one such among many must not decide the mean.
    mean_r = float(np.tanh(np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15)).mean()))
    stepped = spearman_brown(mean_r)
    assert profile.interval is not None
    draft.values = {"split_half": stepped.value, "mean_r": mean_r, "icc": profile.value}
    return draft.verdict(judged(_RELIABLE, stepped.value, profile.value, profile.interval, data.n))


def split_half_published(
    y_full: Real[np.ndarray, " n"],
    y_circuit: Real[np.ndarray, " n"],
    *,
    pair_id: Shaped[np.ndarray, " n"] | None = None,
    level: float = ONE_SIDED_95,
) -> Verdict:
    """C16.split_half_published: ratios at odd positions of the list against those at even positions.

    Pearson's r of y_circuit / y_full, stepped up, published pass above 0.7. Prompts that stand next to each
    other have nothing in common, so its expectation is that of r = 0 for any sample whose order means
    nothing: the published rule fails nearly every reliable measurement.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: Of the circuit alone.
        pair_id: Which two prompts form a natural pair (two orders of one sentence); r is then over pairs and
            means something; it has an interval, after Fisher.
        level: Two-sided coverage of the bounds.

    Returns:
        Inconclusive whatever the value: without `pair_id` as `order_means_nothing`, with it as `normal_only`,
        since Fisher's bounds do not hold for skewed ratios. Undefined below six prompts
        and for a half without variance (published code: 0). Prompts with y_full = 0 are left out.
    """
    full = np.asarray(y_full, dtype=np.float64)
    ratios = np.divide(y_circuit, full, out=np.full(full.shape, np.nan), where=full != 0)
    data = sample(None, ratio=ratios)
    draft = data.draft(_RELIABLE, "C16.split_half_published")
    (x,) = data.vectors
    if pair_id is None:
        n_pairs = data.n // 2
        first, second = x[0 : 2 * n_pairs : 2], x[1 : 2 * n_pairs : 2]
    else:
        codes = np.unique(data.label(pair_id, "pair_id"), return_inverse=True)[1].reshape(-1)
        members = [np.flatnonzero(codes == each) for each in np.unique(codes)]
        pairs = [rows for rows in members if len(rows) == 2]
        draft.warn("unpaired_prompts", len(pairs) < len(members))
        first, second = (x[[rows[at] for rows in pairs]] for at in (0, 1))
    draft.details["n_pairs"] = len(first)
    reason = "no_valid_prompt" if data.n == 0 else "too_few" if data.n < 6 or len(first) < 3 else None
    if reason is None and not (varies(first) and varies(second)):
        reason = "zero_variance"
    if reason is not None:
        return draft.undefined(reason)
    r = float(pearson_matrix(np.stack([first, second]))[0, 1])
    stepped = spearman_brown(r)
    draft.values = {"split_half": stepped.value, "r": r}
    published = _RELIABLE.published(stepped.value)
    if pair_id is None:
        return draft.undefined("order_means_nothing", published=published)
    bounds = fisher_z_interval(r, len(first), level=level)
    low, high = (spearman_brown(end).value for end in (bounds.low, bounds.high))
    interval = replace(bounds, low=low, high=high)
    return draft.undefined("normal_only", published=published, interval=interval)


def cronbach_items(
    effects: Real[np.ndarray, "n k"],
    *,
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    level: float = ONE_SIDED_95,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """C16.cronbach_alpha: whether the heads of a circuit act as one instrument.

    Heads are items and prompts are cases; alpha above 0.7 passes, by the outermost of three bounds over
    prompts (bootstrap-t, percentiles, Feldt's). Heads that oppose the task depress it; alpha after aligning
    signs has a verdict of its own in `sub_results`.

    Args:
        effects: Effect of dropping each head of the circuit on each prompt, `y_full - y_drop1`.
        unit_id: Prompts that belong together.
        level: Two-sided coverage of the bounds.
        task: Names the random stream.
        seed: Its root.

    Returns:
        Inconclusive below 20 prompts, undefined below two heads or three prompts (`too_few`) and where the
        summed effect has no variance (`zero_variance`; published code: 0). `erratic` lists the columns with
        item-rest r below 0.2.

    References:
        Cronbach (1951), doi:10.1007/BF02310555; Feldt (1965), doi:10.1007/BF02289499.
    """
    data, finite = finite_heads(effects, unit_id)
    x, columns = np.ascontiguousarray(data.vectors[0][:, finite]), np.flatnonzero(finite)
    draft = data.draft(_RELIABLE, "C16.cronbach_alpha", n_items=x.shape[1])
    draft.warn("head_dropped", not finite.all())
    reason = data.missing() or ("too_few" if x.shape[1] < 2 else None)
    found = cronbach_alpha(x, level=level) if reason is None else None
    reason = reason or (found.alpha.reason if found else None)
    if reason is not None or found is None:
        return draft.undefined(reason or "undefined")
    low = np.flatnonzero(found.item_rest < ERRATIC)
    draft.details |= {
        "item_rest": found.item_rest,
        "columns": columns,
        "erratic": columns[low],
        "signs": found.signs,
        "standardised": found.standardised.value,
        "feldt": found.alpha.interval.to_dict() if found.alpha.interval else None,
    }

    def verdict(items: Float64[np.ndarray, "n k"], alpha: Estimate) -> Verdict:
        return _alpha_verdict(items, alpha, gate_stream("C16.cronbach_alpha", task, seed=seed), level)

    plain = verdict(x, found.alpha)
    aligned = plain if (found.signs > 0).all() else verdict(x * found.signs, found.sign_aligned)
    draft.values = dict(plain.values)
    return draft.verdict(plain, sub_results={"sign_aligned": aligned})


def _alpha_verdict(
    items: Float64[np.ndarray, "n k"], alpha: Estimate, rng: np.random.Generator, level: float
) -> Verdict:
    """Judged by the wider of Feldt's bounds and those of resampled prompts."""
    if alpha.reason:
        return undefined(alpha.reason, thresholds=limits(_RELIABLE))
    n = len(items)
    interval = undefined_interval(level, "outermost", "too_few")
    if n >= SMALLEST_FOR_ALPHA:
        taken = 1 - (1 - level) * SHARE_FOR_ALPHA
        feldt = cronbach_alpha(items, level=taken)
        bounds = feldt.alpha.interval
        assert bounds is not None
        low, high = resampled_alpha_bounds(items, level=taken, rng=rng)
        interval = replace(
            bounds,
            low=min(low, bounds.low),
            high=max(high, bounds.high),
            level=level,
            method="outermost",
        )
    return judged(
        _RELIABLE,
        alpha.value,
        alpha.value,
        interval,
        n,
        fewest=SMALLEST_FOR_ALPHA,
        values={"alpha": alpha.value},
    )

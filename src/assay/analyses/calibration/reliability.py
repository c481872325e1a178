"""Would the number come out the same? Fresh samples, halves of the prompts, heads as items of one scale."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Real, Shaped

from assay.analyses.calibration._relative import (
    by_relative_error,
    near_zero,
    relative_error,
    scores_of,
    shuffled,
    unit_labels,
)
from assay.analyses.calibration._samples import (
    Sample,
    circuit_flags,
    conjunction,
    inner_metric,
    judged,
    limits,
    sample,
)
from assay.analyses.calibration.gate import ALPHA, SEED, gate, gate_stream, positive, undefined
from assay.core.errors import InputError, ShapeError
from assay.core.measurement import ONE_SIDED_95, Rule, Verdict, undefined_interval
from assay.stats import (
    Estimate,
    coefficient_of_variation,
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

_RETEST = Rule(pass_at=0.8)
_RETEST_ERROR = Rule(pass_at=0.2, higher=False)
_RELIABLE = Rule(pass_at=0.7)


def retest(
    y_full: Real[np.ndarray, " n"],
    y_circuit: Real[np.ndarray, " n"],
    *,
    sample_id: Shaped[np.ndarray, " n"] | None = None,
    prompt_hash: Shaped[np.ndarray, " n"] | None = None,
    n_samples: int = 3,
    inner: str = "faithfulness",
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    strata: Shaped[np.ndarray, " n"] | None = None,
    level: float = ONE_SIDED_95,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """C16.test_retest: whether independent samples of prompts give the same score.

    value = clip(1 - sd (ddof 0) / |mean|, 0, 1) of the samples' scores, published pass above 0.8. With
    confidence: relative standard error at the size of a sample, from all of them pooled, against 0.2. It is
    no correlation; the name is the source's.

    Args:
        y_full: Logit difference of the full model, samples one after the other.
        y_circuit: Of the circuit, as `inner` says.
        sample_id: Which sample a prompt belongs to; None deals a pool into disjoint random blocks.
        prompt_hash: Identity of each prompt, to find samples that repeat each other.
        n_samples: Blocks, at least 2, without `sample_id`.
        inner: `faithfulness` or `completeness`.
        unit_id: Prompts that belong together.
        strata: Classes that blocks hold in the proportions of the pool.
        level: Two-sided coverage of the bounds.
        task: Names the random stream.
        seed: Its root.

    Returns:
        Undefined (`identical_samples`) where the samples hold the same prompts, (`zero_variance`) where all
        prompts are alike; inconclusive (`too_few`) below 100 in all. A sample without a usable prompt is left
        out (`sample_missing`). A score within three standard errors of 0 is flagged (`score_near_zero`): no
        error relative to it is small.
    """
    if n_samples < 2:
        raise InputError(f"n_samples is {n_samples}; at least 2 are needed, 3 by default")
    statistic = inner_metric(inner)
    data = sample(unit_id, y_circuit=y_circuit, y_full=y_full)
    warnings = data.warnings
    details: dict[str, Any] = {"metric": "C16.test_retest", **data.counts}

    def none(reason: str) -> Verdict:
        return undefined(reason, thresholds=limits(_RETEST_ERROR), warnings=warnings, details=details)

    if reason := data.missing():
        return none(reason)
    table = data.table
    n_given = n_samples
    if sample_id is None:
        codes = None if strata is None else unit_labels(data, data.label(strata, "strata"))[0]
        block = np.empty(data.n, dtype=np.int64)
        block[shuffled(gate_stream("C16.test_retest", task, seed=seed), data.n, codes)] = (
            np.arange(data.n) * n_samples // data.n
        )
    else:
        block, unsplit = unit_labels(data, data.label(sample_id, "sample_id"))
        n_given = len(np.unique(sample_id))
        if not unsplit:
            warnings += ("overlapping_samples",)
    blocks = [np.flatnonzero(block == each) for each in np.unique(block)]
    if len(blocks) < n_given:
        warnings += ("sample_missing",)
    if not varies(statistic.linearised(table)) and not any(varies(row) for row in table):
        return none("zero_variance")
    if prompt_hash is not None:
        hashes = data.label(prompt_hash, "prompt_hash")
        held = [set(hashes[np.isin(data.unit, rows)].tolist()) for rows in blocks]
        if len(held) > 1 and all(each == held[0] for each in held):
            return none("identical_samples")
        if sum(map(len, held)) > len(set().union(*held)):
            warnings += ("overlapping_samples",)
    elif len(blocks) > 1 and _repeated(table, blocks):
        return none("identical_samples")
    scores = scores_of(statistic, table, blocks)
    details["scores"] = scores
    if statistic.unstable(table):
        warnings += ("unstable_denominator",)
    if len(scores) < 2:
        return none("too_few_samples")
    spread = coefficient_of_variation(scores)
    if spread.reason:
        return none(spread.reason)
    value = min(max(1 - spread.value, 0.0), 1.0)
    warnings += near_zero(statistic, table)
    rng = gate_stream("C16.test_retest.bounds", task, seed=seed)
    error = relative_error(statistic, table, data.n / len(blocks), rng=rng, level=level)
    return by_relative_error(
        _RETEST,
        value,
        error,
        data,
        on_error=_RETEST_ERROR,
        warnings=tuple(dict.fromkeys(warnings)),
        details=details,
        values={"test_retest": value, "mean": float(scores.mean())},
    )


def _repeated(table: Float64[np.ndarray, "2 n"], blocks: Sequence[Int64[np.ndarray, " _"]]) -> bool:
    """Whether every block holds the same values, in any order."""
    held = [sorted(map(tuple, table[:, rows].T.tolist())) for rows in blocks]
    return all(each == held[0] for each in held)


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
    positive("n_halves", n_halves)
    data, _, warnings = _effect_table(effects, heads, unit_id)
    (x,) = data.vectors
    details: dict[str, Any] = {"metric": "C16.split_half", **data.counts, "n_heads": x.shape[1]}
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
        return undefined(reason, thresholds=limits(_RELIABLE), warnings=warnings, details=details)
    # Two halves that agree exactly have infinite z; one such among many must not decide the mean.
    mean_r = float(np.tanh(np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15)).mean()))
    stepped = spearman_brown(mean_r)
    assert profile.interval is not None
    return judged(
        _RELIABLE,
        stepped.value,
        profile.value,
        profile.interval,
        data.n,
        values={"split_half": stepped.value, "mean_r": mean_r, "icc": profile.value},
        warnings=warnings,
        details=details,
    )


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
    warnings = data.warnings
    details: dict[str, Any] = {"metric": "C16.split_half_published", **data.counts}
    (x,) = data.vectors
    if pair_id is None:
        n_pairs = data.n // 2
        first, second = x[0 : 2 * n_pairs : 2], x[1 : 2 * n_pairs : 2]
    else:
        codes = np.unique(data.label(pair_id, "pair_id"), return_inverse=True)[1].reshape(-1)
        members = [np.flatnonzero(codes == each) for each in np.unique(codes)]
        pairs = [rows for rows in members if len(rows) == 2]
        if len(pairs) < len(members):
            warnings += ("unpaired_prompts",)
        first, second = (x[[rows[at] for rows in pairs]] for at in (0, 1))
    details["n_pairs"] = len(first)
    reason = "no_valid_prompt" if data.n == 0 else "too_few" if data.n < 6 or len(first) < 3 else None
    if reason is None and not (varies(first) and varies(second)):
        reason = "zero_variance"
    if reason is not None:
        return undefined(reason, thresholds=limits(_RELIABLE), warnings=warnings, details=details)
    r = float(pearson_matrix(np.stack([first, second]))[0, 1])
    stepped = spearman_brown(r)
    values = {"split_half": stepped.value, "r": r}
    published = _RELIABLE.published(stepped.value)
    if pair_id is None:
        return undefined(
            "order_means_nothing",
            published=published,
            values=values,
            thresholds=limits(_RELIABLE),
            warnings=warnings,
            details=details,
        )
    bounds = fisher_z_interval(r, len(first), level=level)
    ends = [spearman_brown(end).value for end in (bounds.low, bounds.high)]
    interval = replace(bounds, low=ends[0], high=ends[1])
    return undefined(
        "normal_only",
        published=published,
        values=values,
        thresholds=limits(_RELIABLE),
        interval=interval,
        warnings=warnings,
        details=details,
    )


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
    data, columns, warnings = _effect_table(effects, None, unit_id)
    (x,) = data.vectors
    details: dict[str, Any] = {"metric": "C16.cronbach_alpha", **data.counts, "n_items": x.shape[1]}
    reason = data.missing() or ("too_few" if x.shape[1] < 2 else None)
    found = cronbach_alpha(x, level=level) if reason is None else None
    reason = reason or (found.alpha.reason if found else None)
    if reason is not None or found is None:
        return undefined(
            reason or "undefined", thresholds=limits(_RELIABLE), warnings=warnings, details=details
        )
    low = np.flatnonzero(found.item_rest < ERRATIC)
    details |= {
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
    return replace(
        plain,
        sub_results={"sign_aligned": aligned},
        warnings=warnings,
        details=details,
    )


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


def _effect_table(
    effects: Real[np.ndarray, "n H"],
    heads: Bool[np.ndarray, " H"] | None,
    unit_id: Shaped[np.ndarray, " n"] | None,
) -> tuple[Sample, Int64[np.ndarray, " kept"], tuple[str, ...]]:
    """Heads chosen and finite somewhere, prompts finite at all of them."""
    table = np.asarray(effects, dtype=np.float64)
    if table.ndim != 2 or (heads is not None and heads.shape != table.shape[1:]):
        raise ShapeError(
            f"effects have shape {table.shape}, heads {None if heads is None else heads.shape}; prompts by "
            "heads and one flag per head are needed"
        )
    chosen = np.flatnonzero(np.ones(table.shape[1], dtype=np.bool_) if heads is None else heads)
    columns = chosen[np.isfinite(table[:, chosen]).any(axis=0)] if len(table) else chosen
    data = sample(unit_id, effects=table[:, columns])
    return data, columns, data.warnings + (("head_dropped",) if len(columns) < len(chosen) else ())


@gate(
    key="reliability-suite",
    code="C16",
    name="Reliability suite",
    criterion="M1 reliability",
    needs=("y_full", "y_circuit", "effects", "members"),
    question="Do fresh prompts, halves of the prompts and the heads among themselves agree?",
    on_pass="The score is repeatable, the profile of head effects reproducible, the heads one instrument.",
    on_fail="Scores depend on the sample, or some heads contribute erratically; see which part and heads.",
    weakness="One minus the spread of three scores is no correlation; the published halves pair prompts that "
    "have nothing in common, so nearly every reliable measurement fails; opposing heads depress alpha.",
)
def reliability_suite(
    y_full: Real[np.ndarray, " m"],
    y_circuit: Real[np.ndarray, " m"],
    effects: Real[np.ndarray, "n H"],
    members: Bool[np.ndarray, " H"],
    *,
    sample_id: Shaped[np.ndarray, " m"] | None = None,
    prompt_hash: Shaped[np.ndarray, " m"] | None = None,
    pair_id: Shaped[np.ndarray, " m"] | None = None,
    unit_id: Shaped[np.ndarray, " m"] | None = None,
    effect_units: Shaped[np.ndarray, " n"] | None = None,
    strata: Shaped[np.ndarray, " m"] | None = None,
    inner: str = "faithfulness",
    n_heads: int | None = None,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """Test-retest, split halves and internal consistency together.

    Passes where `retest`, `split_half` and `cronbach_items` all do. Fails where one of them does with
    its share of the 5 %: a false fail of any of three has probability at most 5 %, too. The published word
    is the conjunction of the published three, `split_half_published` in the place of `split_half`.

    Args:
        y_full: Logit difference of the full model: of several samples, or of a pool that is dealt into three.
            A pool has three times the prompts of `effects`, if the size of a sample is to be theirs.
        y_circuit: Of the circuit, as `inner` says.
        effects: Effect of dropping each head, all heads, `y_full - y_drop1`; their prompts may be others.
        members: Which heads form the circuit.
        sample_id: Which sample a prompt belongs to; None deals the prompts into three blocks.
        prompt_hash: Identity of each prompt.
        pair_id: Natural pairs of prompts.
        unit_id: Prompts that belong together.
        effect_units: The same for `effects`; None: `unit_id`.
        strata: Classes that blocks hold in equal shares.
        inner: `faithfulness` or `completeness`.
        n_heads: Heads of the model, if `effects` has fewer; for the flags of odd circuits.
        task: Names the random streams.
        seed: Their root.
    """
    if effects.ndim != 2 or members.shape != effects.shape[1:]:
        raise ShapeError(
            f"effects have shape {effects.shape}, members {members.shape}; prompts by heads and one flag per "
            "head are needed"
        )
    if effect_units is None:
        effect_units = unit_id
    if effect_units is not None and len(effect_units) != len(effects):
        raise ShapeError(
            f"there are {len(effect_units)} units for {len(effects)} prompts of effects; where y_full has "
            "other prompts, name the units of these in effect_units"
        )
    judges: dict[str, Callable[..., Verdict]] = {
        "test_retest": partial(
            retest,
            y_full,
            y_circuit,
            sample_id=sample_id,
            prompt_hash=prompt_hash,
            unit_id=unit_id,
            strata=strata,
            inner=inner,
            task=task,
            seed=seed,
        ),
        "split_half": partial(split_half, effects, unit_id=effect_units, task=task, seed=seed),
        "cronbach_alpha": partial(
            cronbach_items, effects[:, members], unit_id=effect_units, task=task, seed=seed
        ),
    }
    parts = {name: judge() for name, judge in judges.items()}
    shared = 1 - 2 * ALPHA / len(judges)
    failing = any(judge(level=shared).status == "fail" for judge in judges.values())
    status = "fail" if failing else conjunction([part.status for part in parts.values()])
    if status == "fail" and not failing:
        status = "inconclusive"  # one part fails at its own 5 %, none at a third of it
    parts["split_half_published"] = split_half_published(y_full, y_circuit, pair_id=pair_id)
    published = [parts[name].published for name in ("test_retest", "split_half_published", "cronbach_alpha")]
    open_parts = [name for name, part in parts.items() if name in judges and part.status == "inconclusive"]
    reasons = [parts[name].reason for name in open_parts if parts[name].reason]
    needs = [parts[name].n_needed for name in open_parts]
    return Verdict(
        status=status,
        published=conjunction(published),
        values={
            "test_retest": parts["test_retest"].values.get("test_retest"),
            "split_half": parts["split_half"].values.get("split_half"),
            "split_half_published": parts["split_half_published"].values.get("split_half"),
            "cronbach_alpha": parts["cronbach_alpha"].values.get("alpha"),
        },
        n_needed=max((each for each in needs if each), default=None) if status == "inconclusive" else None,
        reason=reasons[0] if status == "inconclusive" and reasons else None,
        sub_results=parts,
        warnings=circuit_flags(int(members.sum()), effects.shape[1] if n_heads is None else n_heads),
        details={"open": open_parts},
    )

"""C16: would the number come out the same? Fresh samples, halves of prompts, heads as items of one scale."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Real, Shaped

from assay import stats
from assay.analyses.calibration.gate import Found, Quantity, Sampling, gate, named
from assay.analyses.calibration.resampling import SMALLEST_POOL, Score
from assay.analyses.calibration.samples import ALPHA, conjunction, finite_heads, sample
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, Verdict, undefined_interval
from assay.stats.estimate import varies


N_SAMPLES = 3
_PARTS = ("test_retest", "split_half", "cronbach_alpha")
FEWEST = 20  # prompts from which bounds of alpha hold for exponential effects

_RELIABLE = Rule(pass_at=0.7)
_RETEST = Quantity(
    label="test-retest: standard error over the score",
    value="relative_standard_error",
    rule=Rule(pass_at=0.2, higher=False),
    published=None,
    fewest=SMALLEST_POOL,
)
_HALVES = Quantity(
    label="split halves: reliability of the heads’ profile",
    value="icc",
    published="split_half",
    rule=_RELIABLE,
)
_HALVES_PUBLISHED = replace(_HALVES, label="split halves as published", value="split_half")
_ITEMS = Quantity(
    label="internal consistency: Cronbach’s α",
    value="alpha",
    published="alpha",
    rule=_RELIABLE,
    fewest=FEWEST,
)

Run = Real[np.ndarray, " n"]
Effects = Real[np.ndarray, "n H"]
_Labels = Shaped[np.ndarray, " n"] | None


@_RETEST.judges
def retest(
    y_full: Run, y_circuit: Run, *, sample_id: _Labels = None, inner: str = "faithfulness", how: Sampling
) -> Found:
    """C16.test_retest: whether independent samples of prompts give the same score.

    value = clip(1 - sd (ddof 0) / |mean|, 0, 1) of the samples' scores, published pass above 0.8. With
    confidence: relative standard error at the size of a sample, from all of them pooled, against 0.2. It is
    no correlation; the name is the source's.

    Args:
        y_full: Logit difference of the full model, samples one after the other.
        y_circuit: Of the circuit, as `inner` says.
        sample_id: Which sample a prompt belongs to; None deals a pool into three disjoint random blocks.
        inner: `faithfulness` or `completeness`.
        how: Units are dealt whole.

    Returns:
        Undefined (`identical_samples`) where the samples hold the same prompts, (`zero_variance`) where all
        prompts are alike; inconclusive (`too_few`) below 100 in all. A sample without a usable prompt is left
        out (`sample_missing`). A score within three standard errors of 0 is flagged (`score_near_zero`): no
        error relative to it is small.
    """
    data = sample(how.unit_id, y_circuit=y_circuit, y_full=y_full)
    found, table = data.found("C16.test_retest"), data.table
    score = Score(inner, table, found)
    if sample_id is None:
        blocks = np.array_split(data.shuffled(how.stream("C16.test_retest"), how.strata), N_SAMPLES)
    else:
        block, whole = data.unit_labels(sample_id, "sample_id")
        blocks = [np.flatnonzero(block == each) for each in np.unique(block)]
        missing = len(blocks) < len(np.unique(sample_id))
        found.warn(overlapping_samples=not whole, sample_missing=missing)
    varied = varies(score.statistic.linearised(table)) or any(varies(row) for row in table)
    found.stop_if(not varied, "zero_variance")
    held = [sorted(map(tuple, table[:, rows].T.tolist())) for rows in blocks]
    found.stop_if(len(held) > 1 and all(each == held[0] for each in held), "identical_samples")
    scores = found.details["scores"] = score.of(blocks)
    found.warn(unstable_denominator=score.statistic.unstable(table))
    found.stop_if(len(scores) < 2, "too_few_samples")
    spread = stats.coefficient_of_variation(scores)
    found.stop_if(spread.reason)
    value = min(max(1 - spread.value, 0.0), 1.0)
    found.values = {"test_retest": value, "mean": float(scores.mean())}
    score.relative_error(data.n / len(blocks), how.stream("C16.test_retest.bounds"), how.level)
    found.published = Rule(pass_at=0.8).published(value)
    return found


@_HALVES.judges
def split_half(effects: Effects, *, n_halves: int = 200, how: Sampling) -> Found:
    """C16.split_half: whether the profile of head effects is the same on two halves of the prompts.

    Value: correlation over heads of the mean effects on two random halves, averaged over halves as Fisher's z
    and stepped up. With confidence: ICC(3,k) of heads by prompts, which is its expectation, against 0.7.

    Args:
        effects: Effect of dropping each head on each prompt, `y_full - y_drop1`.
        n_halves: Random halves.
        how: Units are halved whole.

    Returns:
        Undefined below six prompts or two heads (`too_few`) and without variance (`zero_variance`). Heads
        without a finite effect are left out (`head_dropped`).

    References:
        Spearman (1910); Brown (1910); Shrout and Fleiss (1979), doi:10.1037/0033-2909.86.2.420.
    """
    x, _, found = _items(effects, how, "C16.split_half", "n_heads", fewest=6)
    profile = stats.intraclass_correlation(x.T, level=how.level).consistency_mean
    n, half, first = len(x), len(x) // 2, np.zeros((n_halves, len(x)))
    order = how.stream("C16.split_half").permuted(np.broadcast_to(np.arange(n), first.shape), axis=1)
    np.put_along_axis(first, order[:, :half], 1.0, axis=1)
    means = np.stack([first @ x / half, (1 - first) @ x / (n - half)], axis=1)
    r = stats.pearson_matrix(means)[:, 0, 1]
    found.stop_if(not (x.max(axis=0) > x.min(axis=0)).any(), "zero_variance")
    found.stop_if(profile.reason)
    found.stop_if(np.isnan(r).any(), "zero_variance")
    # Two halves that agree exactly have infinite z; one such among many must not decide the mean.
    mean_r = float(np.tanh(np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15)).mean()))
    found.values = {"split_half": stats.spearman_brown(mean_r).value, "mean_r": mean_r, "icc": profile.value}
    found.interval = profile.interval
    return found


def _items(effects: Effects, how: Sampling, metric: str, counted: str, fewest: int) -> tuple[Any, Any, Found]:
    """Effects of the heads that have finite ones, their columns, and what is to be found of them."""
    data, finite = finite_heads(effects, how.unit_id)
    x = np.ascontiguousarray(data.vectors[0][:, finite])
    dropped = () if finite.all() else ("head_dropped",)
    found = data.found(metric, *dropped, fewest=fewest, **{counted: x.shape[1]})
    found.stop_if(x.shape[1] < 2, "too_few")
    return x, np.flatnonzero(finite), found


@_HALVES_PUBLISHED.judges
def split_half_published(y_full: Run, y_circuit: Run, *, pair_id: _Labels = None) -> Found:
    """C16.split_half_published: ratios at odd positions of the list against those at even positions.

    Pearson's r of y_circuit / y_full, stepped up, published pass above 0.7. Prompts that stand next to each
    other have nothing in common, so its expectation is that of r = 0 for any sample whose order means
    nothing: the published rule fails nearly every reliable measurement.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: Of the circuit alone.
        pair_id: Which two prompts form a natural pair (two orders of one sentence); r is then over pairs and
            means something. It has an interval, after Fisher.

    Returns:
        Inconclusive whatever the value: without `pair_id` as `order_means_nothing`, with it as `normal_only`,
        since Fisher's bounds do not hold for skewed ratios. Undefined below six prompts or three pairs and
        for a half without variance (published code: 0). Prompts with y_full = 0 are left out, as are those
        without a partner (`unpaired_prompts`).
    """
    full = np.asarray(y_full, dtype=np.float64)
    data = sample(None, ratio=np.divide(y_circuit, full, out=np.full(full.shape, np.nan), where=full != 0))
    found, ratios = data.found("C16.split_half_published", fewest=6), data.vectors[0]
    places = np.arange(2 * (data.n // 2)).reshape(-1, 2)
    if pair_id is not None:
        labels = data.label(pair_id, "pair_id")
        groups = [np.flatnonzero(labels == each) for each in np.unique(labels)]
        places = np.array([rows for rows in groups if len(rows) == 2], dtype=np.int64).reshape(-1, 2)
        found.warn(unpaired_prompts=len(places) < len(groups))
    found.details["n_pairs"] = len(places)
    found.stop_if(len(places) < 3, "too_few")
    first, second = ratios[places].T
    found.stop_if(not (varies(first) and varies(second)), "zero_variance")
    r = float(stats.pearson_matrix(np.stack([first, second]))[0, 1])
    found.values = {"split_half": stats.spearman_brown(r).value, "r": r}
    found.published = _RELIABLE.published(stats.spearman_brown(r).value)
    found.stop_if(pair_id is None, "order_means_nothing")
    found.interval = stats.fisher_z_interval(r, len(places), level=ONE_SIDED_95)
    low, high = (stats.spearman_brown(end).value for end in (found.interval.low, found.interval.high))
    found.interval = replace(found.interval, low=low, high=high)
    found.open("normal_only")
    return found


@_ITEMS.judges
def cronbach_items(effects: Effects, *, how: Sampling) -> Found:
    """C16.cronbach_alpha: whether the heads of a circuit act as one instrument.

    Heads are items and prompts are cases; alpha above 0.7 passes, by the outermost of three bounds over
    prompts (bootstrap-t, percentiles, Feldt's). Heads that oppose the task depress it; alpha after aligning
    signs has a verdict of its own in `sub_results`.

    Args:
        effects: Effect of dropping each head of the circuit on each prompt, `y_full - y_drop1`.
        how: Units are resampled whole.

    Returns:
        Inconclusive below 20 prompts, undefined below two heads or three prompts (`too_few`) and where the
        summed effect has no variance (`zero_variance`; published code: 0). `erratic` lists the columns with
        item-rest r below 0.2.

    References:
        Cronbach (1951), doi:10.1007/BF02310555; Feldt (1965), doi:10.1007/BF02289499.
    """
    x, columns, found = _items(effects, how, "C16.cronbach_alpha", "n_items", fewest=3)
    items = stats.cronbach_alpha(x, level=how.level)
    found.stop_if(items.alpha.reason)
    feldt = items.alpha.interval.to_dict() if items.alpha.interval else None
    found.details |= {"item_rest": items.item_rest, "columns": columns, "signs": items.signs}
    found.details |= {"erratic": columns[items.item_rest < 0.2], "feldt": feldt}
    found.details["standardised"] = items.standardised.value
    aligned = Found(values={"alpha": items.sign_aligned.value}, n=len(x), reason=items.sign_aligned.reason)
    found.values["alpha"] = items.alpha.value
    for each, table in ((found, x), (aligned, x * items.signs)):
        each.interval = _alpha_bounds(table, how.stream("C16.cronbach_alpha"), how.level)
    found.parts = {"sign_aligned": _ITEMS.judge(aligned)}
    return found


def _alpha_bounds(items: Float64[np.ndarray, "n k"], rng: np.random.Generator, level: float) -> Interval:
    """The wider of Feldt's bounds and those of resampled prompts."""
    if len(items) < FEWEST:
        return undefined_interval(level, "outermost", "too_few")
    taken = 1 - (1 - level) * 0.4  # of the allowed error: tails that have not shown make each bound too short
    bounds = stats.cronbach_alpha(items, level=taken).alpha.interval
    assert bounds is not None
    low, high = stats.resampled_alpha_bounds(items, level=taken, rng=rng)
    low, high = min(low, bounds.low), max(high, bounds.high)
    return replace(bounds, low=low, high=high, level=level, method="outermost")


@gate(
    code="C16",
    criterion="M1 Reliability",
    question="Do fresh prompts, halves of the prompts and the heads among themselves agree?",
    on_pass="The score is repeatable, the profile of head effects reproducible, the heads one instrument.",
    on_fail="Scores depend on the sample, or some heads contribute erratically; see which part and heads.",
    weakness="The published halves pair prompts that have nothing in common, so reliable measurements fail.",
    number=Quantity(label="the part that decides", published=None),
    parts={
        "test_retest": _RETEST,
        "split_half": _HALVES,
        "cronbach_alpha": _ITEMS,
        "cronbach_alpha.sign_aligned": replace(_ITEMS, label="the same, signs of opposing heads reversed"),
        "split_half_published": _HALVES_PUBLISHED,
    },
    decisive=_PARTS,
    reasons={
        "too_few": ("It needs 100 fresh prompts and 20 for the effects of heads.", "Measure more prompts.")
    },
    when_open="Measure more prompts; a part that fails alone counts only at a third of the 5 %.",
    sized=True,
    columns=lambda c: {**c.pool_runs, "effects": c.effects(), "effect_units": c.unit_id},
    reads=("task", "seed", "unit_id", "strata"),
)
def reliability_suite(
    y_full: Any,
    y_circuit: Any,
    effects: Effects,
    members: Bool[np.ndarray, " H"],
    *,
    sample_id: _Labels = None,
    pair_id: _Labels = None,
    effect_units: _Labels = None,
    inner: str = "faithfulness",
    how: Sampling,
) -> Found:
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
        pair_id: Natural pairs of prompts.
        effect_units: Units of the prompts of `effects`; None: those of the others.
        inner: `faithfulness` or `completeness`.
        how: Of all parts.
    """
    units = how.unit_id if effect_units is None else effect_units

    def judged(level: float) -> dict[str, Verdict]:
        pool, heads = replace(how, level=level), replace(how, level=level, unit_id=units)
        return {
            "test_retest": retest(y_full, y_circuit, sample_id=sample_id, inner=inner, how=pool),
            "split_half": split_half(effects, how=heads),
            "cronbach_alpha": cronbach_items(effects[:, members], how=heads),
        }

    parts = judged(ONE_SIDED_95)
    failing = any(part.status == "fail" for part in judged(1 - 2 * ALPHA / len(parts)).values())
    # One part may fail at its own 5 %, and none at a third of it.
    words = [part.status.replace("fail", "inconclusive") for part in parts.values()]
    found = Found(status="fail" if failing else conjunction(words))
    undecided = {name: part for name, part in parts.items() if part.status == "inconclusive"}
    if found.status == "inconclusive":
        needs = [part.n_needed or 0 for part in undecided.values()]
        reason = next((part.reason for part in undecided.values() if part.reason), None)
        found.open(reason, max(needs, default=0) or None)
    parts["split_half_published"] = split_half_published(y_full, y_circuit, pair_id=pair_id)
    published = ("test_retest", "split_half_published", "cronbach_alpha")
    found.published = conjunction([parts[name].published for name in published])
    numbers = zip(parts, ("test_retest", "split_half", "alpha", "split_half"), strict=True)
    found.values = {part: parts[part].values.get(number) for part, number in numbers}
    found.parts, found.details = parts, {"open": list(undecided)}
    states = [f"{name.replace('_', ' ')} {parts[name].status}" for name in _PARTS]
    found.details["finding"] = f"The parts: {named(states)}."
    return found

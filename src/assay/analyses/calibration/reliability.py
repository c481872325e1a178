"""Would the number come out the same? Fresh samples, halves of the prompts, heads as items of one scale."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Bool, Int64, Real, Shaped

from assay.analyses.calibration._relative import (
    by_relative_error,
    near_zero,
    relative_error,
    scores_of,
    shuffled,
    unit_labels,
)
from assay.analyses.calibration.consistency import cronbach_items, split_half, split_half_published
from assay.analyses.calibration.gate import ALPHA, SEED, gate, gate_stream
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.samples import Sample, circuit_flags, conjunction, inner_metric, sample
from assay.core.errors import ShapeError, check_least
from assay.core.verdict import ONE_SIDED_95, Rule, Verdict
from assay.stats import coefficient_of_variation
from assay.stats._checks import varies


_RETEST = Rule(pass_at=0.8)
_RETEST_ERROR = Rule(pass_at=0.2, higher=False)
_ALPHA_OF_HEADS = Quantity(
    label="internal consistency: Cronbach’s α", value="alpha", published="alpha", most=1.0
)


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
    check_least(2, n_samples=n_samples)
    statistic = inner_metric(inner)
    data = sample(unit_id, y_circuit=y_circuit, y_full=y_full)
    draft = data.draft(_RETEST_ERROR, "C16.test_retest")
    if reason := data.missing():
        return draft.undefined(reason)
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
        draft.warn("overlapping_samples", not unsplit)
    blocks = [np.flatnonzero(block == each) for each in np.unique(block)]
    draft.warn("sample_missing", len(blocks) < n_given)
    if not varies(statistic.linearised(table)) and not any(varies(row) for row in table):
        return draft.undefined("zero_variance")
    hashes = None if prompt_hash is None else data.label(prompt_hash, "prompt_hash")
    identical, overlapping = _repeated(data, blocks, hashes)
    if identical:
        return draft.undefined("identical_samples")
    draft.warn("overlapping_samples", overlapping)
    scores = scores_of(statistic, table, blocks)
    draft.details["scores"] = scores
    draft.warn("unstable_denominator", statistic.unstable(table))
    if len(scores) < 2:
        return draft.undefined("too_few_samples")
    spread = coefficient_of_variation(scores)
    if spread.reason:
        return draft.undefined(spread.reason)
    value = min(max(1 - spread.value, 0.0), 1.0)
    draft.values = {"test_retest": value, "mean": float(scores.mean())}
    draft.warnings += near_zero(statistic, table)
    rng = gate_stream("C16.test_retest.bounds", task, seed=seed)
    error = relative_error(statistic, table, data.n / len(blocks), rng=rng, level=level)
    return by_relative_error(_RETEST, value, error, data, draft, on_error=_RETEST_ERROR)


def _repeated(
    data: Sample,
    blocks: Sequence[Int64[np.ndarray, " _"]],
    hashes: Shaped[np.ndarray, " n_prompts"] | None,
) -> tuple[bool, bool]:
    """Whether all samples hold the same prompts, or without identities the same values, and whether some."""
    if hashes is None:
        values = [sorted(map(tuple, data.table[:, rows].T.tolist())) for rows in blocks]
        return len(values) > 1 and all(each == values[0] for each in values), False
    prompts = [set(hashes[np.isin(data.unit, rows)].tolist()) for rows in blocks]
    identical = len(prompts) > 1 and all(each == prompts[0] for each in prompts)
    return identical, sum(map(len, prompts)) > len(set().union(*prompts))


@gate(
    key="reliability-suite",
    code="C16",
    name="Reliability suite",
    criterion="M1 Reliability",
    question="Do fresh prompts, halves of the prompts and the heads among themselves agree?",
    on_pass="The score is repeatable, the profile of head effects reproducible, the heads one instrument.",
    on_fail="Scores depend on the sample, or some heads contribute erratically; see which part and heads.",
    weakness="One minus the spread of three scores is not a correlation; the published halves pair prompts "
    "that have nothing in common, so nearly every reliable measurement fails; opposing heads depress alpha.",
    number=Quantity(label="the part that decides", published=None),
    parts={
        "test_retest": Quantity(
            label="test-retest: standard error over the score",
            value="relative_standard_error",
            published=None,
            higher=False,
            least=0.0,
        ),
        "split_half": Quantity(
            label="split halves: reliability of the profile of heads",
            value="icc",
            published="split_half",
            most=1.0,
        ),
        "cronbach_alpha": _ALPHA_OF_HEADS,
        "cronbach_alpha.sign_aligned": replace(
            _ALPHA_OF_HEADS, label="the same, signs of opposing heads reversed"
        ),
        "split_half_published": Quantity(
            label="split halves as published", value="split_half", published="split_half", most=1.0
        ),
    },
    decisive=("test_retest", "split_half", "cronbach_alpha"),
    reasons={
        "too_few": (
            "A relative error needs 100 prompts over all samples, alpha 20 and a profile of heads 6.",
            "Measure more prompts; the parts show which of them needs more.",
        )
    },
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
            f"got {len(effect_units)} units for {len(effects)} prompts of effects; if y_full has other "
            "prompts, name the units of these in effect_units"
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

"""Predictions, controls and rivals as directed tests on per-prompt margins, corrected for their number.

"The share by which dropping the heads lowers the margin exceeds c" is, for a model whose mean margin is above
0, the statement that full - run - c full has a mean above 0. So every prediction is a test of a mean over
prompts, and no ratio of noisy sums is involved. A test's p-value is the larger one of Student's t and
of sign flips, valid where either is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy import stats as scipy_stats

from assay.analyses.calibration import PooledResult, multiple_comparisons
from assay.analyses.calibration.gate import ALPHA
from assay.analyses.calibration.samples import sample
from assay.analyses.claims.claim import Prediction
from assay.core.record import Record, plain
from assay.core.verdict import ONE_SIDED_95, Interval, Verdict, undefined_interval
from assay.stats import delta_interval, fieller_interval, holm, mean_tests, ratio_of


FEWEST = 3  # prompts below which the spread of anything is unknown
HELD, LOST, OPEN, CONTRADICTED = "held", "lost", "open", "contradicted"
_SHARE = ratio_of("change", "full")
_LARGEST_N = 10**9


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome(Record):
    """One directed test.

    Attributes:
        kind: `prediction`, `control` or `rival`.
        name: What was tested; differs between the tests of a claim.
        of: Number of the prediction, control or rival it belongs to, from 0.
        task: Task whose prompts were run.
        n: Prompts used.
        n_dropped: Prompts left out because a run is not finite there.
        value: What was measured, in the unit of the size it is compared with.
        size: What was said about it.
        interval: Its two one-sided 95 % bounds.
        p: One-sided, of the statement being false; NaN where undefined.
        p_kind: `t`, `permutation` or `exact`, whichever gave the larger p.
        p_against: One-sided, of the opposite statement being false.
        q: p after Benjamini and Hochberg over all tests of the claim.
        state: `held` (p and q at most 0.05), `lost` (only p), `contradicted` (the opposite holds after Holm's
            correction over all tests of the claim), else `open`.
        reason: Why it is undefined: `too_few` prompts, `no_behaviour` (the model's mean margin is not clearly
            above 0, so shares of it mean nothing).
        n_needed: Prompts at which an open statement would hold at the present mean and spread.
        details: Further numbers.
    """

    kind: str
    name: str
    of: int
    task: str
    n: int
    n_dropped: int
    value: float
    size: float
    interval: Interval
    p: float = math.nan
    p_kind: str | None = None
    p_against: float = math.nan
    q: float = math.nan
    state: str = OPEN
    reason: str | None = None
    n_needed: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


def predicted(
    prediction: Prediction,
    full: Float64[np.ndarray, " n"],
    run: Float64[np.ndarray, " n"],
    *,
    of: int,
    name: str,
    rng: np.random.Generator,
    opposed: bool = False,
    kind: str = "prediction",
    avoided: bool = False,
) -> Outcome:
    """The test of one prediction.

    Args:
        prediction: What is said of the run.
        full: Margins of the model.
        run: Margins with the heads dropped or kept.
        of: Number of what it belongs to.
        name: Name of the test.
        rng: Source of sign flips.
        opposed: The head works against the task: what is said to lower must raise, and the reverse.
        kind: `prediction` or `control`.
        avoided: Test that the run does not reach the size (a control).
    """
    pairs = sample(full=full, run=run)
    full, run = pairs.vectors
    relation = prediction.relation
    # A head that works against the task is dropped to the opposite effect.
    lowering = (relation == "lowers_by_at_least") != opposed
    change = (
        run
        if relation in ("retains_at_least", "retains_at_most")
        else full - run
        if lowering or relation == "changes_at_most"
        else run - full
    )
    shared = prediction.unit == "share"
    limit = prediction.size * (full if shared else np.ones(pairs.n))
    below = relation == "retains_at_most" or avoided
    sides = [limit - change, limit + change] if relation == "changes_at_most" else [change - limit]
    if below:
        sides = [limit - change]
    return _test(
        sides,
        change,
        full if shared else None,
        kind=kind,
        of=of,
        name=name,
        task=prediction.on,
        size=prediction.size,
        n_dropped=pairs.n_dropped,
        rng=rng,
    )


def rivalled(
    full: Float64[np.ndarray, " n"],
    own: Float64[np.ndarray, " n"],
    other: Float64[np.ndarray, " n"],
    *,
    of: int,
    name: str,
    task: str,
    rng: np.random.Generator,
) -> Outcome:
    """The test that a circuit kept alone departs less from the model, prompt by prompt, than another one.

    The value is the mean of |other - full| - |own - full|, as a share of the model's mean margin:
    overshooting the model counts as departing from it.
    """
    pairs = sample(full=full, own=own, other=other)
    full, own, other = pairs.vectors
    gain = np.abs(other - full) - np.abs(own - full)
    outcome = _test(
        [gain],
        gain,
        full,
        kind="rival",
        of=of,
        name=name,
        task=task,
        size=0.0,
        n_dropped=pairs.n_dropped,
        rng=rng,
    )
    total = float(full.sum())
    shares = {
        key: float(run.sum()) / total if total else math.nan
        for key, run in (("faithfulness", own), ("faithfulness_of_rival", other))
    }
    return replace(outcome, details=plain(shares))


def _test(
    sides: Sequence[Float64[np.ndarray, " n"]],
    change: Float64[np.ndarray, " n"],
    full: Float64[np.ndarray, " n"] | None,
    *,
    rng: np.random.Generator,
    **facts: Any,
) -> Outcome:
    """Whether every side has a mean above 0; `change` over `full` (over 1 if None) is the value."""
    n = len(change)
    reason = "too_few" if n < FEWEST else None
    if reason is None and full is not None and not _clearly_positive(full):
        reason = "no_behaviour"
    if reason is not None:
        nothing = undefined_interval(ONE_SIDED_95, "none", reason)
        return Outcome(n=n, value=math.nan, interval=nothing, reason=reason, **facts)
    table = np.stack([*sides, *(-side for side in sides)], axis=1)
    found = mean_tests(table, rng=rng)
    tests = [
        (each.t.p_value, "t", each.sign_flip.p_value, "exact" if each.exact else "permutation")
        for each in found
    ]
    # NaN, a t test of zeros, gives way to the sign flips, whose p is then 1.
    p_and_kind = [(flip, kind) if not t > flip else (t, of_t) for t, of_t, flip, kind in tests]
    towards, against = p_and_kind[: len(sides)], p_and_kind[len(sides) :]
    p, p_kind = max(towards)
    if full is None:
        value = float(change.mean())
        interval = delta_interval(value, change, level=ONE_SIDED_95)
    else:
        value = float(change.sum() / full.sum())
        interval = fieller_interval(change, full, level=ONE_SIDED_95)
    return Outcome(
        n=n,
        value=value,
        interval=interval,
        p=p,
        p_kind=p_kind,
        p_against=min(1.0, len(sides) * min(each for each, _ in against)),
        n_needed=_n_needed(sides) if p > ALPHA else None,
        **facts,
    )


def _clearly_positive(full: Float64[np.ndarray, " n"]) -> bool:
    """Whether the model does the task: a mean margin above 0 by three standard errors."""
    return bool(full.mean() > 0) and not _SHARE.unstable(np.stack([full, full]))


def _n_needed(sides: Sequence[Float64[np.ndarray, " n"]]) -> int | None:
    """Prompts at which the t tests would reject at the present means and spreads; None if never."""
    needed = 0
    for side in sides:
        mean, spread = float(side.mean()), float(side.std(ddof=1))
        if not mean > 0:
            return None
        t = float(scipy_stats.t.ppf(1 - ALPHA, len(side) - 1))
        count = (t * spread / mean) ** 2
        if count > _LARGEST_N:
            return None
        needed = max(needed, math.ceil(count))
    return max(needed, FEWEST)


def settle(outcomes: Sequence[Outcome]) -> tuple[tuple[Outcome, ...], Verdict]:
    """The outcomes with their states, after correction for how many there are, and M93's verdict on them."""
    pool = [
        PooledResult(
            name=each.name,
            task=each.task,
            value=None if math.isnan(each.value) else each.value,
            baseline=None if math.isnan(each.value) else each.size,
            n=each.n,
            ci=(each.interval.low, each.interval.high) if each.interval.defined else None,
            passed=each.p < ALPHA,
            p=None if math.isnan(each.p) else each.p,
            p_kind=each.p_kind,
        )
        for each in outcomes
    ]
    verdict = multiple_comparisons(pool)
    q = {(each["task"], each["name"]): each["bh"] for each in verdict.details.get("results", ())}
    opposite = holm(np.array([each.p_against for each in outcomes], dtype=np.float64))
    settled = []
    for each, adjusted in zip(outcomes, opposite, strict=True):
        corrected = q.get((each.task, each.name), 1.0 if each.p == 1 else math.nan)
        state = (
            HELD
            if each.p < ALPHA and corrected <= ALPHA
            else LOST
            if each.p < ALPHA
            else CONTRADICTED
            if adjusted <= ALPHA
            else OPEN
        )
        settled.append(replace(each, q=corrected, state=state))
    return tuple(settled), verdict


def joint_state(parts: Sequence[Outcome]) -> str:
    """State of what several tests say together: contradicted by one, held by all."""
    states = {each.state for each in parts}
    for state in (CONTRADICTED, OPEN, LOST):
        if state in states:
            return state
    return HELD if states else OPEN

"""How far outputs of a circuit's runs are from the model's: divergences, and cross-entropy of the answers.

Kernels take logits of any real scale, one row per example; log-softmax and everything after it is float64.
Rows are taken in blocks, so a large vocabulary costs time but not memory.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Float64, Int

from assay.core.errors import InputError, ShapeError, check_name
from assay.core.measurement import Measurement, Rule
from assay.execution import CircuitRuns
from assay.execution.runs import Which
from assay.metrics.metric import MetricSpec, finite_examples, record
from assay.stats import RatioOfSums, mean_of


UNITS = {"kl": "nats", "reverse-kl": "nats", "js": "nats", "tv": "fraction"}
DIVERGENCES = tuple(UNITS)
_BLOCK = 1 << 22  # logits converted to float64 at a time
_ROUNDING = 1e-9  # nats below zero that rounding can explain


# ------------------------------------------------------------------------------------------- kernels


def _by_rows(
    kernel: Callable[..., Float64[np.ndarray, "rows m"]], *tables: Float[np.ndarray, "n d_vocab"]
) -> Float64[np.ndarray, "n m"]:
    """`kernel` over blocks of rows of tables of one shape."""
    shapes = [table.shape for table in tables]
    if len({*shapes}) > 1:
        raise ShapeError(f"runs to compare have different shapes: {', '.join(map(str, shapes))}")
    n, width = shapes[0]
    rows = max(1, _BLOCK // max(width, 1))
    starts = range(0, max(n, 1), rows)
    return np.concatenate([kernel(*(table[at : at + rows] for table in tables)) for at in starts])


def _mean_log_ratio(
    log_p: Float64[np.ndarray, "n d_vocab"], log_q: Float64[np.ndarray, "n d_vocab"]
) -> Float64[np.ndarray, " n"]:
    """sum_v p_v (log p_v - log q_v); outputs of probability 0 under p add nothing."""
    terms = np.exp(log_p) * (log_p - log_q)
    total = np.where(np.isneginf(log_p), 0.0, terms).sum(axis=1)
    assert not (total < -_ROUNDING).any(), "a divergence is negative beyond rounding"
    return np.asarray(np.where(total < 0, 0.0, total))


def divergences(
    full: Float[np.ndarray, "n d_vocab"],
    circuit: Float[np.ndarray, "n d_vocab"],
    *,
    kinds: tuple[str, ...] = ("kl",),
) -> dict[str, Float64[np.ndarray, " n"]]:
    """How far the circuit's output distribution is from the full model's, per example.

    With p = softmax(full), q = softmax(circuit), m = (p + q) / 2: `kl` = sum p log(p / q),
    `reverse-kl` = sum q log(q / p), `js` = (KL(p, m) + KL(q, m)) / 2, `tv` = sum |p - q| / 2.

    Args:
        full: Logits of the unablated model.
        circuit: Logits of the same examples in the circuit's run.
        kinds: Which of the four to compute.

    Returns:
        By kind, one per example, 0 where the distributions agree: nats, >= 0 for KL; [0, ln 2] for `js`;
        [0, 1] without unit for `tv`. NaN where a row holds NaN or +inf.

    Raises:
        ShapeError: If the tables differ in shape.
    """
    for kind in kinds:
        check_name("divergence", kind, DIVERGENCES)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        # Rows with NaN or infinite logits come out as NaN; who compares counts them.
        with np.errstate(invalid="ignore"):
            log_p, log_q = (scipy.special.log_softmax(run.astype(np.float64), axis=1) for run in (a, b))
            return np.stack([_divergence(kind, log_p, log_q) for kind in kinds], axis=1)

    return dict(zip(kinds, _by_rows(kernel, full, circuit).T, strict=True))


def _divergence(
    kind: str, log_p: Float64[np.ndarray, "n d_vocab"], log_q: Float64[np.ndarray, "n d_vocab"]
) -> Float64[np.ndarray, " n"]:
    if kind == "kl":
        return _mean_log_ratio(log_p, log_q)
    if kind == "reverse-kl":
        return _mean_log_ratio(log_q, log_p)
    if kind == "tv":
        return np.asarray(np.abs(np.exp(log_p) - np.exp(log_q)).sum(axis=1) / 2)
    log_m = np.logaddexp(log_p, log_q) - np.log(2)
    return np.asarray((_mean_log_ratio(log_p, log_m) + _mean_log_ratio(log_q, log_m)) / 2)


def _restrict(
    logits: Float[np.ndarray, "n d_vocab"], ids: Int[np.ndarray, "n n_ids"]
) -> Float64[np.ndarray, "n n_ids"]:
    """Logits of a set of outputs alone, so that probabilities renormalise on it.

    `ids` are padded with -1; padding and repeated ids get `-inf`.
    """
    ordered = np.sort(ids, axis=1)
    repeated = np.zeros(ids.shape, dtype=bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    picked = np.take_along_axis(logits, np.maximum(ordered, 0), axis=1).astype(np.float64)
    return np.where((ordered < 0) | repeated, -np.inf, picked)


def answer_log_probability(
    logits: Float[np.ndarray, "n d_vocab"], answers: Int[np.ndarray, "n n_answers"]
) -> Float64[np.ndarray, " n"]:
    """Log of the probability mass on the answers, nats, <= 0; its negative is the cross-entropy.

    Args:
        logits: Logits over the vocabulary.
        answers: Ids of all valid answers, padded with -1.
    """
    check_answers(answers, logits.shape[1])
    sums = _by_rows(lambda block: scipy.special.logsumexp(block.astype(np.float64), axis=1)[:, None], logits)
    return np.asarray(scipy.special.logsumexp(_restrict(logits, answers), axis=1) - sums[:, 0])


def answer_is_top(
    logits: Float[np.ndarray, "n d_vocab"], answers: Int[np.ndarray, "n n_answers"]
) -> Bool[np.ndarray, " n"]:
    """Whether the largest logit (the smaller index on a tie) is one of the valid answers."""
    check_answers(answers, logits.shape[1])
    return np.asarray((logits.argmax(axis=1)[:, None] == answers).any(axis=1))


def check_answers(answers: Int[np.ndarray, "n n_answers"], d_vocab: int) -> None:
    """Refuse answers outside the vocabulary and examples without one."""
    bad = (answers >= d_vocab).any(axis=1) | (answers < 0).all(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"example {row} has answer ids {answers[row].tolist()}; expected at least one, below {d_vocab}"
        )


# ------------------------------------------------------------------------------------------- metrics


def run_logits(runs: CircuitRuns, which: Which) -> Float[np.ndarray, "n d_vocab"]:
    """Logits of a run as an array, a row per prompt."""
    return np.asarray(runs.logits(which).numpy())


def _divergences_of(
    runs: CircuitRuns, which: Which, *, kinds: tuple[str, ...] = ("kl",)
) -> dict[str, Float64[np.ndarray, " n"]]:
    """How far the outputs of a run are from the model's, per prompt; see `divergences`."""
    return divergences(run_logits(runs, "full"), run_logits(runs, which), kinds=kinds)


def _output_divergence(runs: CircuitRuns, spec: MetricSpec, *, divergence: str = "kl") -> Measurement:
    """Mean divergence of the circuit's output distribution from the model's.

    Options:
        divergence: `kl` = KL(full || circuit), `reverse-kl`, `js` or `tv`. The thresholds are those of
            the published page, which does not name the divergence.

    References:
        Conmy et al. 2023, arXiv:2304.14997.
    """
    check_name("divergence", divergence, DIVERGENCES)
    used = finite_examples(runs, "full", "keep")
    values = _divergences_of(runs, "keep", kinds=(divergence,))
    details = {"divergence": divergence}
    return record(spec, values, mean_of(divergence), used=used, details=details, unit=UNITS[divergence])


def _kl(
    runs: CircuitRuns, spec: MetricSpec, *, restricted_to: str | Sequence[int] | None = None
) -> Measurement:
    """Mean KL(full || circuit), with reverse KL, Jensen-Shannon and total variation beside it.

    Options:
        restricted_to: Renormalise both distributions on a set of outputs first: `answers` (the right and
            wrong answers of each example) or a list of ids. The id then ends in `_restricted`.

    The details have the median and the 95th percentile over examples (linear interpolation).

    References:
        Conmy et al. 2023, arXiv:2304.14997.
    """
    used = finite_examples(runs, "full", "keep")
    logits, id_ = [run_logits(runs, "full"), run_logits(runs, "keep")], spec.id
    if restricted_to is not None:
        ids, id_ = _answer_set(runs, restricted_to, logits[0].shape), f"{spec.id}_restricted"
        logits = [_restrict(each, ids) for each in logits]
    values = divergences(*logits, kinds=DIVERGENCES)
    parts = {
        kind: record(spec, values, mean_of(kind), used=used, id=f"D03.{kind}", unit=UNITS[kind], rule=None)
        for kind in DIVERGENCES[1:]
    }
    details: dict[str, Any] = {}
    if used.any():
        nats, js = values["kl"][used], values["js"][used].mean()
        details = dict(zip(("median", "p95"), np.percentile(nats, [50, 95]).tolist(), strict=True))
        # JS far below KL says that the circuit loses modes rather than inventing them.
        details["drops_modes"] = bool(nats.mean() >= 0.1 and js < 0.1 * nats.mean())
    facts: dict[str, Any] = {"reading": kl_reading, "details": details, "parts": parts, "id": id_}
    return record(spec, values, mean_of("kl"), used=used, **facts)


def kl_reading(nats: float) -> str:
    """The published reading of a mean KL divergence."""
    if nats < 0.1:
        return "near_perfect" if nats < 0.01 else "good"
    return "components_missing" if nats <= 1 else "another_prediction"


def _answer_set(
    runs: CircuitRuns, restricted_to: str | Sequence[int], shape: tuple[int, ...]
) -> Int[np.ndarray, "n n_ids"]:
    """Ids of the answer set of each example, padded with -1."""
    n, d_vocab = shape
    if isinstance(restricted_to, str):
        check_name("restricted_to", restricted_to, ("answers",))
        sets = [runs.task.answers, *([] if runs.task.wrong is None else [runs.task.wrong])]
        return np.asarray(torch.cat(sets, dim=1).numpy())
    ids = np.array(restricted_to, dtype=np.int64)
    if not len(ids) or ids.min() < 0 or ids.max() >= d_vocab:
        raise InputError(
            f"restricted_to is {restricted_to!r}; give at least one output id, from 0 to {d_vocab - 1}"
        )
    return np.broadcast_to(ids, (n, len(ids)))


# ------------------------------------------------------------------------------------------- cross-entropy


def _cross_entropies(
    runs: CircuitRuns,
) -> tuple[dict[str, Float64[np.ndarray, " n"]], Bool[np.ndarray, " n"]]:
    """-log probability mass on the answers in each run, nats, and which examples count."""
    answers = runs.task.answers.numpy()
    which: tuple[Which, ...] = ("full", "keep", "drop")
    losses = {str(each): -answer_log_probability(run_logits(runs, each), answers) for each in which}
    return losses, finite_examples(runs, *which)


_CE_RATIO = RatioOfSums(numerator={"drop": 1.0, "full": -1.0}, denominator={"keep": 1.0, "full": -1.0})


def drop_reading(nats: float) -> str:
    """The published reading of the cross-entropy increase when the circuit is dropped."""
    if nats >= 0.5:
        return "critical" if nats > 2 else "significant"
    return "not_necessary" if nats < 0.1 else "minor"


def _ce_delta(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Mean increase of the cross-entropy of the answer when the circuit is dropped.

    CE = -log of the probability mass on the valid answers. The part `keep` is the increase when only the
    circuit is kept (sufficiency, lower is better), `ratio` that of dropping over that of keeping.

    References:
        Conmy et al. 2023, arXiv:2304.14997.
    """
    losses, used = _cross_entropies(runs)
    keep, drop = (RatioOfSums(numerator={each: 1.0, "full": -1.0}) for each in ("keep", "drop"))
    facts: dict[str, Any] = {"id": "D04.ce_delta_keep", "direction": "lower", "rule": None}
    parts = {
        "keep": record(spec, losses, keep, used=used, **facts),
        "ratio": record(spec, losses, _CE_RATIO, used=used, id="D04.ce_ratio", unit="fraction", rule=None),
    }
    return record(spec, losses, drop, used=used, reading=drop_reading, parts=parts)


SPECS = (
    MetricSpec(
        key="output-divergence",
        id="D01.output_divergence",
        name="mean divergence of output distributions",
        range=(0.0, math.inf),
        direction="lower",
        rule=Rule(pass_at=0.05, fail_at=0.5, higher=False),
        unit="nats",
        meaning="Mean divergence between the output distributions of circuit and model.",
        compute=_output_divergence,
    ),
    MetricSpec(
        key="kl",
        id="D03.kl",
        name="KL(full, circuit)",
        range=(0.0, math.inf),
        direction="lower",
        rule=Rule(pass_at=0.1, fail_at=1.0, higher=False),
        unit="nats",
        meaning="Mean information lost when the circuit’s output replaces the model’s.",
        compute=_kl,
    ),
    MetricSpec(
        key="ce-delta",
        id="D04.ce_delta_drop",
        name="cross-entropy increase when the circuit is dropped",
        criterion="I1 necessity",
        direction="higher",
        rule=Rule(pass_at=0.5, fail_at=0.1),
        unit="nats",
        runs=("full", "keep", "drop"),
        meaning="Increase of the cross-entropy of the right answer when the circuit is ablated.",
        compute=_ce_delta,
    ),
)

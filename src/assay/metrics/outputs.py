"""Comparisons of output distributions, one number per example: numpy kernels, no model.

Logits of any real scale come in; log-softmax and everything after it is float64. Rows are taken in
blocks, so a large vocabulary costs time but not memory.
"""

from collections.abc import Callable

import numpy as np
import scipy
from jaxtyping import Bool, Float, Float64, Int

from assay.core.errors import InputError, ShapeError, check_name


DIVERGENCES = ("kl", "reverse-kl", "js", "tv")
_BLOCK = 1 << 22  # logits converted to float64 at a time
_ROUNDING = 1e-9  # nats below zero that rounding can explain


def _by_rows(
    kernel: Callable[..., Float64[np.ndarray, "rows m"]], *tables: Float[np.ndarray, "n d_vocab"]
) -> Float64[np.ndarray, "n m"]:
    """`kernel` over blocks of rows of tables of one shape."""
    if len({table.shape for table in tables}) > 1:
        raise ShapeError(
            f"runs to compare have different shapes: {', '.join(str(table.shape) for table in tables)}"
        )
    n, width = tables[0].shape
    rows = max(1, _BLOCK // max(width, 1))
    blocks = [
        kernel(*(table[start : start + rows] for table in tables)) for start in range(0, max(n, 1), rows)
    ]
    return np.concatenate(blocks)


def log_probabilities(logits: Float[np.ndarray, "n d_vocab"]) -> Float64[np.ndarray, "n d_vocab"]:
    """Log-softmax over the vocabulary in float64, nats."""
    return np.asarray(scipy.special.log_softmax(logits.astype(np.float64), axis=1))


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
            log_p, log_q = log_probabilities(a), log_probabilities(b)
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


def restrict(
    logits: Float[np.ndarray, "n d_vocab"], ids: Int[np.ndarray, "n n_ids"]
) -> Float64[np.ndarray, "n n_ids"]:
    """Logits of a set of outputs alone, so that probabilities renormalise on it.

    Args:
        logits: Logits over the whole vocabulary.
        ids: The set of each example, padded with -1; repeated ids count once.

    Returns:
        `-inf` at padding and repetitions.
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
    return np.asarray(scipy.special.logsumexp(restrict(logits, answers), axis=1) - sums[:, 0])


def answer_is_top(
    logits: Float[np.ndarray, "n d_vocab"], answers: Int[np.ndarray, "n n_answers"]
) -> Bool[np.ndarray, " n"]:
    """Whether the largest logit (the smaller index on a tie) is one of the valid answers."""
    check_answers(answers, logits.shape[1])
    return np.asarray((logits.argmax(axis=1)[:, None] == answers).any(axis=1))


def check_answers(answers: Int[np.ndarray, "n n_answers"], d_vocab: int) -> None:
    """Refuse answers outside the vocabulary and examples without one."""
    if (answers >= d_vocab).any():
        row = int((answers >= d_vocab).any(axis=1).argmax())
        raise InputError(
            f"example {row} has answer id {answers[row].max()}, but the vocabulary ends at {d_vocab - 1}"
        )
    if (answers < 0).all(axis=1).any():
        raise InputError(
            f"example {int((answers < 0).all(axis=1).argmax())} has no answer id; give each at least one"
        )

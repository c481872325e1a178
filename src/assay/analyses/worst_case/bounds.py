"""What a sample of pairs guarantees about percentiles, by how it was drawn."""

import math

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.row_by_row import DONOR
from assay.core.errors import InputError, unknown_name
from assay.stats import (
    Certificate,
    all_pairs_order_failure,
    best_all_pairs_order,
    certificate,
    percentile_sample_size,
)
from assay.stats.certificates import order_of


CERTIFIED = (0.95, 0.99, 0.999)  # percentiles of the default certificates
NOT_CERTIFIED = "this sample does not support a certificate: "  # before the reason
_OF_ROWS = ("ustat", "published")  # methods for a task's own rows, crossed


def counted_rows(sample: PairSample) -> Int64[np.ndarray, " k"]:
    """Rows of a task's own that count as draws: one of copies, none equal to the counterpart that is read."""
    clean, corrupted = sample.clean, sample.corrupted
    both = np.stack([clean.distinct.inverse, corrupted.distinct.inverse])
    counted = np.zeros(clean.n, dtype=np.bool_)
    counted[np.unique(both, axis=1, return_index=True)[1]] = True
    if sample.ablation == "resample":
        counted &= (clean.tokens != corrupted.tokens).any(dim=1).numpy()
    return np.flatnonzero(counted)


def not_certified(sample: PairSample) -> str | None:
    """Why a sample supports no certificate; None where it supports one or needs none."""
    if sample.reuse_clean:
        return (
            "its corrupted inputs were made from its clean ones (reuse_clean), so the two sides are not "
            "independent; sample again without reuse_clean"
        )
    if not sample.independent:
        own = "inputs" if sample.protocol == "inputs" else "all" if sample.ablation == DONOR else "file"
        return (
            "its inputs are rows of the task that were not declared independent, that were drawn more than "
            f"once, or that the circuit was discovered on; run the rows unchanged (protocol {own!r}) with "
            "independent=True if they are independent and new to the circuit"
        )
    if sample.own_rows and not len(counted_rows(sample)):
        return "each of its inputs equals its counterpart, so nothing is ablated"
    if sample.reference is not None and "baseline" not in sample.streams:
        return (
            f"the values of {sample.ablation!r} ablation were measured on the inputs that were run, so the "
            "divergence of each input depends on all others; a task with a grammar draws others for them"
        )
    return None


def sample_certificate(
    values: Float64[np.ndarray, "..."],
    sample: PairSample,
    percentile: float,
    *,
    delta: float = 0.95,
    epsilon: float | None = None,
    method: str | None = None,
) -> Certificate:
    """The certificate of `assay.stats.certificate` that fits the sample.

    Notes:
        Of a task's
        own n rows, crossed in order, corrupted input i is the counterpart of clean input i; the n (n - 1)
        values off the diagonal are then a U-statistic of degree 2 of n independent rows, which is as good as
        floor(n / 2) independent values (Hoeffding 1963, section 5b). Copies of a row count once, rows equal
        to their counterparts not at all; fresh draws of a grammar are independent as they come.

    Raises:
        InputError: The sample supports no certificate, or an argument is out of range.
    """
    reason = not_certified(sample)
    if reason is not None:
        raise InputError(NOT_CERTIFIED + reason)
    if sample.own_rows:
        rows = counted_rows(sample)
        values = values[rows] if sample.pairs is not None else values[np.ix_(rows, rows)]
    if sample.paired and method != "published":
        if method not in (None, *_OF_ROWS):
            if method != "order-statistic":
                raise unknown_name("certificate method", method, _OF_ROWS)
            raise InputError(
                f"method {method!r} needs clean and corrupted inputs that are independent of each other, "
                "but the task's own rows are not; choose 'ustat'"
            )
        return _of_rows(values, percentile, delta, epsilon)
    return certificate(values, percentile, delta=delta, epsilon=epsilon, method=method)


def _of_rows(
    values: Float64[np.ndarray, "n n"], p: float, delta: float, epsilon: float | None
) -> Certificate:
    """`ustat` over the pairs of different rows."""
    n = len(values)
    m, n_values = n // 2, n * (n - 1)
    failure, order = math.nan, None
    best = best_all_pairs_order(max(m, 1), max(m, 1), p, delta)
    n_needed = 2 * best.n_needed
    if epsilon is not None and m:
        n_needed = 2 * percentile_sample_size(p, delta, epsilon, "chernoff")
        order = order_of(n_values, p, epsilon)
        # Rounded down to a rank among m^2, whose failure is the larger.
        failure = all_pairs_order_failure(m, m, p, max(order * m * m // n_values, 1))
    elif best.order is not None and m:
        # Rounded up to a rank among the values there are: the failure is at most the one stated.
        order, failure = math.ceil(best.order * n_values / (m * m)), best.failure
    bound = None
    if order is not None:
        off_diagonal = values[~np.eye(n, dtype=bool)]
        bound = float(np.partition(off_diagonal, order - 1)[order - 1])
    short = bound is None or failure > 1 - delta + 1e-12
    return Certificate(
        bound=bound,
        percentile=p,
        failure=failure,
        delta=delta,
        n=m,
        n_values=n_values,
        order=order,
        method="ustat",
        rigorous=True,
        reason=None if not short else "too_few" if bound is None else "below_delta",
        n_needed=n_needed if short else None,
    )

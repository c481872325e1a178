"""Decisions that no small edit of the sample can change: certified by deleting examples at random."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Real

from assay.core.errors import InputError, check_fraction, check_least
from assay.core.record import Record
from assay.stats._checks import finite
from assay.stats.estimate import Estimate, undefined_estimate
from assay.stats.intervals import clopper_pearson


N_DRAWS = 1000
_ROUNDING = 1e-12
_BLOCK = 1 << 22  # deletions drawn at a time


@dataclass(frozen=True, kw_only=True)
class CertifiedInclusion(Record):
    """Whether "the mean effect is positive" holds for most random parts of a sample, and what cannot undo it.

    Attributes:
        share: Random parts of the sample with a positive mean.
        lower: One-sided lower bound of that share among all random parts.
        radius: Examples that may be inserted, deleted or replaced without changing the majority decision;
            None where it abstains.
        largest_radius: The radius if every draw had agreed: what this deletion rate and number of draws can
            certify at most.
    """

    derived = ("certified",)

    share: Estimate
    lower: float
    radius: int | None
    largest_radius: int | None

    @property
    def certified(self) -> bool:
        """Whether the majority decision is known to be positive; else it abstains."""
        return self.radius is not None


def edit_radius(lower: float, deletion: float) -> int | None:
    """Edits that a majority of random parts survives: floor(ln(3/2 - lower) / ln deletion).

    An edit of R examples goes unnoticed by a part from which all of them are deleted, a share deletion^R of
    the parts, so it moves the share of positive parts by at most 1 - deletion^R.

    Args:
        lower: Lower bound of the share of parts that agree, in [0, 1].
        deletion: Probability with which each example is deleted, in (0, 1).

    Returns:
        None where `lower` <= 1/2; else at most floor(ln(1/2) / ln deletion).

    References:
        Huang et al. (2023), arXiv:2302.01757; Anani et al. (2026), arXiv:2602.22968.

    Example:
        >>> [edit_radius(1.0, deletion) for deletion in (0.2, 0.5, 0.9)]
        [0, 1, 6]
    """
    check_fraction(deletion=deletion)
    if not 0 <= lower <= 1:
        raise InputError(f"lower is {lower}; expected a fraction in [0, 1]")
    return math.floor(math.log(1.5 - lower) / math.log(deletion)) if lower > 0.5 else None


def certified_inclusion(
    effects: Real[np.ndarray, "P k"],
    *,
    deletion: float,
    rng: np.random.Generator,
    failure: float = 0.05,
    n_draws: int = N_DRAWS,
) -> tuple[CertifiedInclusion, ...]:
    """Certify for each column that its mean is positive whatever happens to a few examples.

    Each example is deleted with probability `deletion`; the decision on a part is whether its mean is above 0
    (an empty part: no). The bound of the share of positive parts is Clopper and Pearson's, one-sided at
    1 - failure / k, so all k columns hold together.

    Args:
        effects: Finite; examples by columns (heads).
        deletion: In (0, 1). Small rates certify nothing: the radius is at most ln(1/2) / ln(deletion).
        rng: Source of the deletions, shared by the columns.
        failure: Probability that any certificate is wrong, in (0, 1).
        n_draws: Random parts, at least 1.

    Returns:
        One per column; without examples the share is undefined (`too_few`) and every column abstains.

    References:
        Huang et al. (2023), arXiv:2302.01757; Anani et al. (2026), arXiv:2602.22968.

    Example:
        >>> effects = np.ones((40, 1))
        >>> (found,) = certified_inclusion(effects, deletion=0.9, rng=np.random.default_rng(0))
        >>> found.share.value > 0.9, found.radius
        (True, 6)
    """
    check_fraction(failure=failure)
    check_least(1, n_draws=n_draws)
    n, k = map(int, effects.shape)
    if k == 0:
        return ()
    level = 1 - 2 * failure / k  # two-sided, of which only the lower end is used
    largest = edit_radius((failure / k) ** (1 / n_draws), deletion)
    if n == 0:
        nothing = CertifiedInclusion(
            share=undefined_estimate("too_few"), lower=math.nan, radius=None, largest_radius=largest
        )
        return tuple(nothing for _ in range(k))
    x = finite(effects, "effects")
    slack = _ROUNDING * np.abs(x).sum(axis=0)
    positive = np.zeros(k, dtype=np.int64)
    rows = max(1, _BLOCK // n)
    for start in range(0, n_draws, rows):
        kept = rng.random((min(rows, n_draws - start), n)) >= deletion
        positive += np.count_nonzero(kept.astype(np.float64) @ x > slack, axis=0)
    certificates = []
    for count in positive.tolist():
        lower = clopper_pearson(count, n_draws, level=level).low
        certificates.append(
            CertifiedInclusion(
                share=Estimate(value=count / n_draws),
                lower=lower,
                radius=edit_radius(lower, deletion),
                largest_radius=largest,
            )
        )
    return tuple(certificates)

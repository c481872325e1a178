"""Which of several is the best, from a sample that grows until the others are out.

At look j of a growing sample all pairs are compared with intervals that hold together with probability
1 - error / (j (j + 1)). These errors add up to less than `error` over any number of looks, so whoever is
dropped because another one leads it was the best with probability below `error`, whenever one stops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64

from assay.core.errors import InputError


FIRST_LOOK = 64
ERROR = 0.05
UNDEFINED_SHARE = 0.05  # replicates that may be undefined before a comparison is


def look_sizes(total: int, first: int = FIRST_LOOK) -> tuple[int, ...]:
    """Sample sizes at which one looks: `first`, doubled again and again, and all there is.

    Example:
        >>> look_sizes(400)
        (64, 128, 256, 400)
    """
    if total < 1 or first < 1:
        raise InputError(f"a sample of {total} with a first look at {first}; expected at least 1 each")
    sizes = []
    while first < total:
        sizes.append(first)
        first *= 2
    return (*sizes, total)


def look_error(look: int, error: float = ERROR) -> float:
    """What look 1, 2, ... may spend: error / (look (look + 1)); all looks up to j spend error j / (j + 1)."""
    return error / (look * (look + 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """An estimate of each candidate from one sample, and its bootstrap replicates; higher is better.

    Attributes:
        values: `[m]`; NaN where undefined, which neither drops nor is dropped.
        draws: `[n_draws, m]`, each row from one resample for all: differences are paired.
    """

    values: Float64[np.ndarray, " m"]
    draws: Float64[np.ndarray, "n_draws m"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedLeads:
    """All pairs of candidates at one look.

    Attributes:
        leads: `[m, m]`: value of the row - value of the column.
        margins: `[m, m]`: how far a lead may be from 0 by chance, all pairs together; infinite where unknown.
    """

    leads: Float64[np.ndarray, "m m"]
    margins: Float64[np.ndarray, "m m"]

    def beaten(self) -> dict[int, int]:
        """Whoever is behind another one by more than the margin -> who leads it most surely."""
        with np.errstate(invalid="ignore"):
            excess = self.leads - self.margins
        excess = np.where(np.isfinite(excess), excess, -np.inf)
        return {
            behind: int(excess[:, behind].argmax()) for behind in np.flatnonzero(excess.max(0) > 0).tolist()
        }


def paired_leads(sample: Candidates, n: int, *, error: float, n_pairs: int) -> PairedLeads:
    """Simultaneous intervals of the differences of all pairs.

    margin = t SE + 2 |bias|, with SE the standard deviation of the paired replicates of the difference, bias
    their mean less the difference itself, and t the quantile of Student's distribution at
    1 - error / (2 n_pairs).

    Args:
        sample: The candidates.
        n: Size of the sample.
        error: Of all pairs together, in (0, 1).
        n_pairs: Pairs among all candidates there ever were: those dropped earlier count on.

    Notes:
        The degrees of freedom are min(n, n_draws) - 1: a small sample and few replicates both make t wider.
        A sum of magnitudes, as in the depth bias, is too large in small samples, and by different amounts
        for different candidates; the bias term keeps such a difference from counting as a lead. It is taken
        twice because replicates of a noisy magnitude show about half of its bias. NaN differences and those
        with more than 5 % undefined replicates have infinite margins.
    """
    m = len(sample.values)
    leads = sample.values[:, None] - sample.values[None]
    quantile = float(scipy.stats.t.isf(error / (2 * n_pairs), max(1, min(n, len(sample.draws)) - 1)))
    margins = np.full((m, m), np.inf)
    for row in range(m):
        apart = sample.draws[:, row, None] - sample.draws
        defined = np.isfinite(apart)
        enough = np.isfinite(leads[row]) & (defined.mean(0) >= 1 - UNDEFINED_SHARE) & (defined.sum(0) > 1)
        if enough.any():
            kept = np.where(defined[:, enough], apart[:, enough], np.nan)
            bias = np.abs(np.nanmean(kept, axis=0) - leads[row, enough])
            margins[row, enough] = quantile * np.nanstd(kept, axis=0, ddof=1) + 2 * bias
    return PairedLeads(leads=leads, margins=margins)


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """What one look saw and decided.

    Attributes:
        n: Size of the sample.
        error: What this look may be wrong by, over all pairs.
        remaining: Candidates that were still in, by their numbers.
        sample: Their estimates.
        dropped: Candidate that is out from here on -> the one that leads it most surely.
    """

    n: int
    error: float
    remaining: tuple[int, ...]
    sample: Candidates
    dropped: dict[int, int]

    @property
    def left(self) -> tuple[int, ...]:
        """Candidates that are in after it."""
        return tuple(each for each in self.remaining if each not in self.dropped)


def eliminate(
    n_candidates: int,
    sizes: Sequence[int],
    measure: Callable[[int, tuple[int, ...]], Candidates],
    *,
    error: float = ERROR,
) -> list[Look]:
    """Drop candidates that cannot be the best, until one is left or the sample is used up.

    Args:
        n_candidates: At least 2.
        sizes: Sizes of the growing sample, ascending, see `look_sizes`.
        measure: Gives the candidates of these numbers on the first n of the sample.
        error: Probability, over all looks, that the best one is dropped; in (0, 1).

    Returns:
        The looks. One candidate is left after the last: decided. More: undecided.

    Raises:
        InputError: For fewer than 2 candidates, or an error outside (0, 1).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal([0.0, 1.0], 1.0, (512, 2))
        >>> def measure(n, remaining):
        ...     counts = rng.multinomial(n, np.full(n, 1 / n), 200)
        ...     return Candidates(values=x[:n].mean(0), draws=counts @ x[:n] / n)
        >>> [(look.n, look.dropped) for look in eliminate(2, look_sizes(512), measure)]
        [(64, {0: 1})]
    """
    if n_candidates < 2 or not 0 < error < 1:
        raise InputError(
            f"{n_candidates} candidates with an error of {error}; expected 2 or more, and an error in (0, 1)"
        )
    n_pairs = n_candidates * (n_candidates - 1) // 2
    looks: list[Look] = []
    remaining = tuple(range(n_candidates))
    for number, n in enumerate(sizes, start=1):
        sample = measure(n, remaining)
        spent = look_error(number, error)
        beaten = paired_leads(sample, n, error=spent, n_pairs=n_pairs).beaten()
        dropped = {remaining[behind]: remaining[ahead] for behind, ahead in beaten.items()}
        looks.append(Look(n=n, error=spent, remaining=remaining, sample=sample, dropped=dropped))
        remaining = looks[-1].left
        if len(remaining) == 1:
            break
    return looks

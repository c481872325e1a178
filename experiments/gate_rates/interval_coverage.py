"""How often the intervals behind the gates hold their truth."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import planted
from scipy.special import ndtri

from assay.core.random import stream
from assay.core.verdict import ONE_SIDED_95, Interval
from assay.stats import (
    clopper_pearson,
    cronbach_alpha,
    group_differences,
    intraclass_correlation,
    ratio_of,
)
from assay.stats.relative_error import bonett_logs, trimmed_kurtosis


SEED = 42
SCORE = 0.8  # faithfulness of the planted circuit
F = ratio_of("circuit", "full")


@dataclass(frozen=True, kw_only=True)
class Case:
    """An interval in a world.

    Attributes:
        interval: What it is called.
        world: What is planted.
        claim: `two-sided 95 %`, `one-sided 95 %` (each end by itself) or `always 95 %` (at every n at once).
        truth: What the interval must hold.
        draw: Draws the world anew and returns the interval.
    """

    interval: str
    world: str
    claim: str
    truth: float
    draw: Callable[[np.random.Generator], Interval]


def _ratio(method: str, n: int, *, skewed: bool = False) -> Callable[[np.random.Generator], Interval]:
    def draw(rng: np.random.Generator) -> Interval:
        if skewed:
            full = rng.gamma(2.0, 1.5, n)
            circuit = SCORE * full * rng.gamma(1.0, 1.0, n)
        else:
            made = planted.runs(rng, n, sd=0.3, faithfulness=SCORE)
            full, circuit = made.y_full, made.y_circuit
        table = np.stack([circuit, full])
        return F.interval(table, level=0.95, method=method, seed=int(rng.integers(2**31)))

    return draw


def _error(n: int) -> Callable[[np.random.Generator], Interval]:
    def draw(rng: np.random.Generator) -> Interval:
        made = planted.runs(rng, n, sd=0.3, faithfulness=SCORE)
        values = F.linearised(np.stack([made.y_circuit, made.y_full]))
        logs = bonett_logs(np.array(ndtri((1 + ONE_SIDED_95) / 2)), n, trimmed_kurtosis(values))
        low, high = values.std(ddof=1) / n**0.5 * np.exp(logs)
        return Interval(low=float(low), high=float(high), level=ONE_SIDED_95, method="bonett")

    return draw


def _alpha(alpha: float) -> Callable[[np.random.Generator], Interval]:
    def draw(rng: np.random.Generator) -> Interval:
        found = cronbach_alpha(planted.items(rng, 40, 15, alpha=alpha)).alpha.interval
        assert found is not None
        return found

    return draw


def _profile(n_heads: int, reliability: float) -> Callable[[np.random.Generator], Interval]:
    def draw(rng: np.random.Generator) -> Interval:
        effects = planted.profile(rng, 40, n_heads, reliability=reliability)
        found = intraclass_correlation(effects.T, level=ONE_SIDED_95).consistency_mean.interval
        assert found is not None
        return found

    return draw


def _eta(n: int, shift: float) -> Callable[[np.random.Generator], Interval]:
    def draw(rng: np.random.Generator) -> Interval:
        values = np.array([-shift, 0.0, shift])[:, None] + rng.normal(0.0, 0.2, (3, n // 3))
        found = group_differences(list(values)).eta_squared.interval
        assert found is not None
        return found

    return draw


def _share(p: float, n: int) -> Callable[[np.random.Generator], Interval]:
    return lambda rng: clopper_pearson(int(rng.binomial(n, p)), n, level=ONE_SIDED_95)


def _cases() -> Iterator[Case]:
    def case(interval: str, world: str, claim: str, truth: float, draw: object) -> Case:
        return Case(interval=interval, world=world, claim=claim, truth=truth, draw=draw)  # type: ignore[arg-type]

    for name, method in (("BCa", "bca"), ("Student t, delta method", "delta")):
        yield case(name, "F of 100 prompts", "two-sided 95 %", SCORE, _ratio(method, 100))
        skewed = _ratio(method, 100, skewed=True)
        yield case(name, "F of 100 prompts, skewed", "two-sided 95 %", SCORE, skewed)
    for n in (40, 100):
        yield case("Bonett", f"SE(F) of {n} prompts", "one-sided 95 %", 0.3 / n**0.5, _error(n))
    for alpha in (0.3, 0.7, 0.88):
        yield case("Feldt", f"alpha {alpha}, 40 x 15", "one-sided 95 %", alpha, _alpha(alpha))
    for n_heads, reliability in ((15, 0.7), (144, 0.7), (15, 0.3)):
        world = f"ICC(3,k) {reliability}, 40 prompts, {n_heads} heads"
        yield case(
            "ICC, F distribution", world, "one-sided 95 %", reliability, _profile(n_heads, reliability)
        )
    for n, shift in ((300, 0.12), (300, 0.062), (60, 0.12)):
        eta = (ratio := 2 / 3 * shift**2 / 0.2**2) / (1 + ratio)
        world = f"eta² {eta:.3f}, 3 groups, N {n}"
        yield case("eta², noncentral F", world, "one-sided 95 %", eta, _eta(n, shift))
    for p, n in ((0.5, 40), (0.95, 200), (0.99, 60)):
        yield case("Clopper-Pearson", f"share {p} of {n}", "one-sided 95 %", p, _share(p, n))


CASES: tuple[Case, ...] = tuple(_cases())


def tally(case: Case, repetitions: int) -> dict[str, int]:
    """Worlds in which the interval held the truth, and in which the truth lay below or above it."""
    found = {"covered": 0, "below": 0, "above": 0, "undefined": 0}
    for repetition in range(repetitions):
        interval = case.draw(stream(SEED, f"{case.world} {repetition}"))
        if not interval.defined:
            found["undefined"] += 1
        elif case.truth < interval.low:
            found["below"] += 1
        else:
            found["above" if case.truth > interval.high else "covered"] += 1
    return found

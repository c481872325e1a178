"""What gates on per-prompt runs share: independent units, the ratio under study, flags of odd circuits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from assay.analyses.calibration.gate import ALPHA, Draft
from assay.core.errors import InputError, ShapeError, check_name
from assay.core.verdict import Interval, Rule, Verdict
from assay.stats import RatioOfSums, ratio_of


FEWEST = 3  # prompts, or units, below which nothing about their spread is known
FEWEST_AT_A_THIRD = 5  # from which bounds of a skewed mean hold 5 % when they are taken at a third of it

_INNER = {
    "faithfulness": ratio_of("circuit", "full"),
    "completeness": ratio_of("circuit", "full", offset=1.0, scale=-1.0),
}


def inner_metric(name: str) -> RatioOfSums:
    """Of sums (circuit, full): `faithfulness` of kept circuits, `completeness` of dropped ones."""
    check_name("inner metric", name, _INNER)
    return _INNER[name]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Runs on the same prompts, summed within units that are independent of each other.

    Attributes:
        vectors: `[n, ...]` each: sums within a unit, scaled so that means over units are means over prompts.
        n: Units; prompts where none are named.
        n_prompts: Prompts left after paired deletion.
        n_dropped: Prompts at which some run is not finite.
        used: `[n_given]` prompts left in.
        unit: `[n_prompts]` the unit of each prompt left in.
    """

    vectors: tuple[Float64[np.ndarray, "..."], ...]
    n: int
    n_prompts: int
    n_dropped: int
    used: Bool[np.ndarray, " n_given"]
    unit: Int64[np.ndarray, " n_prompts"]

    @property
    def table(self) -> Float64[np.ndarray, "n_vectors n"]:
        """The vectors, each `[n]`, as rows: what statistics of sums take."""
        return np.stack(self.vectors)

    @property
    def warnings(self) -> tuple[str, ...]:
        """`prompts_dropped` where there are any."""
        return ("prompts_dropped",) if self.n_dropped else ()

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of prompts and units, for details."""
        return {"n_prompts": self.n_prompts, "n_dropped": self.n_dropped, "n_units": self.n}

    def missing(self, fewest: int = FEWEST) -> str | None:
        """Why there is nothing to say, or None."""
        return "no_valid_prompt" if self.n == 0 else "too_few" if self.n < fewest else None

    def draft(self, rule: Rule, metric: str, *warnings: str, **details: Any) -> Draft:
        """What a gate notes about these runs, begun: its limits, codes, name and numbers of prompts."""
        return Draft(
            thresholds=limits(rule),
            warnings=(*self.warnings, *warnings),
            details={"metric": metric, **self.counts, **details},
        )

    def label(self, labels: Shaped[np.ndarray, " n_given"], name: str) -> Shaped[np.ndarray, " n_prompts"]:
        """Labels of the prompts left in."""
        if labels.shape != self.used.shape:
            raise ShapeError(f"{name} has shape {labels.shape}; one per prompt, {self.used.shape}, is needed")
        return np.asarray(labels[self.used])


def sample(unit_id: Shaped[np.ndarray, " n_given"] | None = None, **vectors: Any) -> Sample:
    """Vectors without the prompts at which any of them is NaN or infinite, summed within units.

    Args:
        unit_id: Which prompts belong together (one image, one sentence), `[n_given]`; None: each by itself.
        **vectors: `[n_given]` or `[n_given, ...]` each.

    Raises:
        ShapeError: If their numbers of prompts differ; the names given are in the message.
    """
    arrays = {name: np.asarray(vector, dtype=np.float64) for name, vector in vectors.items()}
    lengths = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ShapeError(f"arrays to compare have different numbers of prompts: {shapes}")
    used = np.ones(next(iter(arrays.values())).shape[0], dtype=np.bool_)
    for array in arrays.values():
        used &= np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    n_prompts = int(used.sum())
    kept, codes = [array[used] for array in arrays.values()], np.arange(n_prompts)
    if unit_id is not None:
        if unit_id.shape != used.shape:
            raise ShapeError(f"unit_id has shape {unit_id.shape}; one per prompt, {used.shape}, is needed")
        codes = np.unique(unit_id[used], return_inverse=True)[1].reshape(-1).astype(np.int64)
        kept = [summed(vector, codes) for vector in kept]
    return Sample(
        vectors=tuple(kept),
        n=int(codes.max()) + 1 if len(codes) else 0,
        n_prompts=n_prompts,
        n_dropped=len(used) - n_prompts,
        used=used,
        unit=codes,
    )


def summed(
    vector: Float64[np.ndarray, "n_prompts ..."], codes: Int64[np.ndarray, " n_prompts"]
) -> Float64[np.ndarray, "n_units ..."]:
    """Sums within units 0..n_units-1, scaled so that the mean over units is the mean over prompts."""
    if not len(codes):
        return vector
    n_units = int(codes.max()) + 1
    sums = np.zeros((n_units, *vector.shape[1:]))
    np.add.at(sums, codes, vector)
    return sums * (n_units / len(codes))


def cautious_alpha(n: int, plain_from: int) -> float:
    """One-sided level at which bounds of a mean of `n` values hold 5 % for normal, t5 and exponential ones.

    Args:
        n: Values, 5 or more.
        plain_from: Number from which the bounds hold what they say; below, a third of 0.05 is taken, since at
            0.05 exponential values are missed in up to 7 % of samples.
    """
    return ALPHA if n >= plain_from else ALPHA / 3


def circuit_flags(circuit_size: int | None, n_heads: int | None) -> tuple[str, ...]:
    """`empty_circuit` and `trivial_circuit` (every head), where the sizes are known."""
    if circuit_size is None:
        return ()
    if circuit_size < 0 or (n_heads is not None and circuit_size > n_heads):
        raise InputError(f"circuit_size is {circuit_size} of n_heads {n_heads}; expected 0 to n_heads")
    return (
        ("empty_circuit",) if circuit_size == 0 else ("trivial_circuit",) if circuit_size == n_heads else ()
    )


def judged(
    rule: Rule,
    published: float,
    value: float,
    interval: Interval,
    n: int,
    *,
    fewest: int | None = None,
    **more: Any,
) -> Verdict:
    """The published rule on one number and the same rule with confidence on what it estimates.

    Args:
        rule: Of both.
        published: The source's point estimate.
        value: Estimate of the quantity judged with confidence.
        interval: Its bounds.
        n: Examples behind them.
        fewest: Examples below which the interval is `too_few`.
        **more: Other fields of `Verdict`.
    """
    verdict = rule.judge(value, interval, n)
    needed = fewest if interval.reason == "too_few" else verdict.n_needed
    return replace(verdict, published=rule.published(published), **{"n_needed": needed, **more})


def conjunction(parts: Sequence[str]) -> str:
    """`fail` where any part fails, `pass` where all pass; else `moderate` where none is open."""
    if "fail" in parts:
        return "fail"
    if not parts or "inconclusive" in parts:
        return "inconclusive"
    return "moderate" if "moderate" in parts else "pass"


def limits(rule: Rule) -> dict[str, float | None]:
    """Thresholds of a rule, for a verdict without a judgement."""
    return {"pass": rule.pass_at, "fail": rule.pass_at if rule.fail_at is None else rule.fail_at}

"""Methods that score the same heads, and bounds of how far they agree."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration._correlations import FEWEST_PROMPTS, Matrix, over_heads, over_prompts
from assay.analyses.calibration._tables import Profiles, profiles, scored_heads
from assay.analyses.calibration.samples import judged
from assay.core.errors import ShapeError
from assay.core.verdict import Interval, Rule, Verdict


Scores = Mapping[str, Any]
Orient = Callable[[str, Float64[np.ndarray, "*rows n"]], Float64[np.ndarray, "*rows n"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class InCommon:
    """Methods that vary, on the heads that all of them score."""

    names: tuple[str, ...]
    scores: Float64[np.ndarray, "m n"]
    tables: Mapping[str, Float64[np.ndarray, "n_units n"]]
    n_units: int
    orient: Orient
    heads: Bool[np.ndarray, " H"]
    warnings: tuple[str, ...]
    constant: tuple[str, ...]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(itertools.combinations(self.names, 2))

    def averaged(self, weights: Float64[np.ndarray, "rows n_units"]) -> Float64[np.ndarray, "rows m n"]:
        """Scores from weighted means over the units; those without a score per prompt as they are."""
        fixed = np.broadcast_to(self.scores, (len(weights), *self.scores.shape))
        columns = [
            self.orient(name, weights @ self.tables[name]) if name in self.tables else fixed[:, place]
            for place, name in enumerate(self.names)
        ]
        return np.stack(columns, axis=1)


def in_common(found: Profiles, orient: Orient) -> InCommon:
    """Drop heads that a method lacks, then methods that do not tell heads apart."""
    scored = np.array([scored_heads(mean) for mean in found.means]).reshape(found.means.shape)
    heads = np.asarray(scored.all(axis=0))
    scores = all_oriented(found.names, found.means[:, heads], orient)
    varies = (
        np.array([bool((row != row[0]).any()) for row in scores])
        if heads.any()
        else np.ones(len(scores), bool)
    )
    names = tuple(name for name, kept in zip(found.names, varies, strict=True) if kept)
    warnings = (
        *(("constant_method",) if not varies.all() else ()),
        *(("missing_heads",) if not heads.all() else ()),
        *(("prompts_dropped",) if found.n_dropped else ()),
    )
    return InCommon(
        names=names,
        scores=scores[varies],
        tables={name: table[:, heads] for name, table in found.tables.items() if name in names},
        n_units=found.n_units,
        orient=orient,
        heads=heads,
        warnings=warnings,
        constant=tuple(name for name, kept in zip(found.names, varies, strict=True) if not kept),
    )


def all_oriented(
    names: Sequence[str], scores: Float64[np.ndarray, "m n"], orient: Orient
) -> Float64[np.ndarray, "m n"]:
    return np.stack([orient(name, row) for name, row in zip(names, scores, strict=True)])


def checked_profiles(
    scores: Scores, members: Bool[np.ndarray, " H"] | None, unit_id: Shaped[np.ndarray, " P"] | None
) -> Profiles:
    """Scores of the same heads as the flags of the circuit."""
    found = profiles(scores, unit_id=unit_id)
    if members is not None and members.shape != found.means.shape[1:]:
        raise ShapeError(
            f"members has shape {members.shape} for scores of {found.means.shape[1]} heads; expected one "
            "flag per head"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class _Bounds:
    """Bounds of a mean correlation and what they were resampled over."""

    interval: Interval
    n: int
    resampled: str
    reliabilities: Mapping[str, float]

    @property
    def details(self) -> dict[str, Any]:
        return {"resampled": self.resampled, "n": self.n, "reliabilities": dict(self.reliabilities)}

    def judge(self, rule: Rule, value: float, scale: Callable[[float], float] | None = None) -> Verdict:
        """The rule on a value, with the bounds on its scale; `n_needed` counts prompts, of heads no more."""
        interval = self.interval
        if scale is not None and interval.defined:
            interval = replace(interval, low=scale(interval.low), high=scale(interval.high))
        verdict = judged(rule, value, value, interval, self.n, fewest=FEWEST_PROMPTS)
        return verdict if self.resampled == "prompts" else replace(verdict, n_needed=None)


def correlation_bounds(
    common: InCommon, matrix: Matrix, *, ranked: bool, n_boot: int, rng: np.random.Generator
) -> _Bounds:
    """Over the prompts where any method has scores per prompt, else over the heads."""
    if not common.tables:
        interval = over_heads(common.scores, ranked=ranked, n_boot=n_boot, rng=rng)
        return _Bounds(interval=interval, n=common.scores.shape[1], resampled="heads", reliabilities={})
    sampled = np.array([name in common.tables for name in common.names])
    interval, found = over_prompts(common.averaged, sampled, common.n_units, matrix, n_boot=n_boot, rng=rng)
    reliabilities = dict(zip(common.names, found.tolist(), strict=True))
    return _Bounds(interval=interval, n=common.n_units, resampled="prompts", reliabilities=reliabilities)


def pair_names(pairs: list[tuple[str, str]], values: Float64[np.ndarray, " _"]) -> dict[str, float]:
    return {f"{a}/{b}": float(value) for (a, b), value in zip(pairs, values, strict=True)}


def mean_defined(values: list[float]) -> float | None:
    """Mean of what is defined; None if nothing is."""
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else None

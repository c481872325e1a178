"""What the divergences of pairs say: statistics, guarantees, and the inputs and fields behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.analyses.worst_case.bounds import CERTIFIED, counted_rows, not_certified, sample_certificate
from assay.analyses.worst_case.fields import (
    FieldTable,
    field_tests,
    field_trends,
    heatmaps,
    known_fields,
    table_by_field,
)
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.rows import WorstInputs, count_pairs, rank_inputs
from assay.core.errors import InputError, check_least
from assay.core.record import Record
from assay.stats import (
    Certificate,
    Histogram,
    Summary,
    compare_with_anchor,
    histogram,
    maximum_exceedance,
    summarize,
)


SHOWN_INPUTS = 5


@dataclass(frozen=True, kw_only=True)
class Anchor(Record):
    """The empty circuit on the same pairs.

    Attributes:
        absolute: Its moments and percentiles, as in `PairStatistics.summary()["absolute"]`.
        ratio_of_means: Mean divergence of the circuit over that of the empty one; NaN where the latter is 0.
        share_above: Share of pairs on which the circuit is worse than no circuit.
        spearman: Rank correlation of the two; NaN where either is constant.
    """

    absolute: Mapping[str, int | float | None]
    ratio_of_means: float
    share_above: float
    spearman: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PairStatistics:
    """Divergences on the pairs of a sample, and the questions one can ask of them.

    Attributes:
        divergence: `[n_clean, n_corrupted]`, or `[n_pairs]` for listed pairs.
        empty: The same of the empty circuit, whose output is the model's on the corrupted input.
        argmax_differs: Whether the circuit's likeliest token is another than the model's.
        sample: The inputs and how they were drawn.
        thresholds: Shares of pairs above these are reported.
    """

    divergence: Float64[np.ndarray, "..."]
    empty: Float64[np.ndarray, "..."]
    argmax_differs: Bool[np.ndarray, "..."]
    sample: PairSample
    thresholds: tuple[float, ...] = ()

    # ---- statistics -------------------------------------------------------------------------------

    @cached_property
    def statistics(self) -> Summary:
        """Everything that describes the sample."""
        return summarize(self.divergence, thresholds=self.thresholds).resolved(self.n_distinct_pairs)

    @cached_property
    def n_distinct_pairs(self) -> int:
        """Distinct pairs of inputs; a pair that was drawn several times counts once."""
        return count_pairs(self.sample)

    def summary(self) -> dict[str, dict[str, int | float | None]]:
        """Moments, percentiles and z-scores of the divergences.

        Returns:
            `absolute`: count (of distinct pairs), mean, std, min, p25, p50, p75, p95, p99, p99.9, p99.99,
            max. `z`: the same from min on, less the mean, in standard deviations; NaN where those are 0.
            Percentiles describe the sample (type 7); for bounds on those of the distribution see
            `certificate`. Percentile p is None where (1 - p) times the count is below 1.
        """
        statistics = self.statistics
        return {"absolute": dict(statistics.absolute), "z": dict(statistics.z)}

    @property
    def mean_standard_error(self) -> float:
        """Standard error of the mean, two-way for all pairs of two samples; NaN with one input a side."""
        return self.statistics.standard_error

    @property
    def share_argmax_differs(self) -> float:
        """Share of pairs on which circuit and model disagree about the likeliest token."""
        return float(self.argmax_differs.mean())

    def share_above(self, threshold: float) -> float:
        """Share of pairs whose divergence exceeds a threshold."""
        return float((self.divergence > threshold).mean())

    @cached_property
    def anchor(self) -> Anchor:
        """The empty circuit on the same pairs, and how the circuit compares with it."""
        empty = summarize(self.empty).resolved(self.n_distinct_pairs)
        compared = compare_with_anchor(self.divergence, self.empty)
        return Anchor(absolute=empty.absolute, **vars(compared))

    def histogram(self, *, n_bins: int = 100, maximum: float | None = None) -> Histogram:
        """Counts of divergences in equal bins on [0, maximum], the last bin closed.

        Args:
            n_bins: Number of bins; there is one where the maximum is 0.
            maximum: Right end; give the largest value over several results to compare them. Default: this
                result's own.
        """
        return histogram(self.divergence, n_bins=n_bins, maximum=maximum)

    # ---- guarantees -------------------------------------------------------------------------------

    def certificate(
        self,
        percentile: float,
        *,
        epsilon: float | None = None,
        delta: float = 0.95,
        method: str | None = None,
    ) -> Certificate:
        """An upper bound on a percentile of the distribution that the pairs were drawn from.

        Args:
            percentile: Share in (0, 1): 0.99 for the 99th percentile.
            epsilon: The paper's form: the order statistic this far above the percentile, whatever its
                confidence. Default: the smallest order statistic whose confidence reaches `delta`.
            delta: Confidence, in (0, 1).
            method: For protocol `all`: `ustat` (default, rigorous) or `published`.

        Returns:
            See `assay.stats.Certificate`; `bound` is None, with the number of inputs needed, where the sample
            is too small for any bound.

        Raises:
            InputError: An argument out of range, or a sample that supports no certificate (`reuse_clean`, or
                rows that are not independent draws).
        """
        return sample_certificate(
            self.divergence, self.sample, percentile, delta=delta, epsilon=epsilon, method=method
        )

    def certificates(
        self,
        percentiles: Sequence[float] = CERTIFIED,
        *,
        family: bool = False,
        delta: float = 0.95,
        method: str | None = None,
    ) -> tuple[Certificate, ...]:
        """Certificates of several percentiles.

        Args:
            percentiles: Shares in (0, 1), at least one.
            family: Whether all of them are to hold at once with confidence `delta` (Bonferroni); otherwise
                each does by itself.
            delta: Confidence, in (0, 1).
            method: As for `certificate`.
        """
        if not percentiles:
            raise InputError("percentiles are missing; give at least one")
        each = 1 - (1 - delta) / len(percentiles) if family else delta
        return tuple(self.certificate(share, delta=each, method=method) for share in percentiles)

    def maximum_exceedance(self, *, delta: float = 0.95) -> float:
        """Share of the distribution that may exceed the largest divergence seen, with confidence `delta`."""
        reason = not_certified(self.sample)
        if reason is not None:
            raise InputError(f"this sample bounds nothing beyond itself: {reason}")
        n = len(counted_rows(self.sample)) if self.sample.own_rows else min(self.divergence.shape)
        return maximum_exceedance(max(n // 2, 1) if self.sample.paired else n, delta=delta)

    def worst_inputs(self, k: int = SHOWN_INPUTS) -> WorstInputs:
        """The k distinct inputs of each side with the largest mean divergence over their pairs."""
        check_least(1, k=k)
        return WorstInputs(
            clean=rank_inputs(self.divergence, self.sample, "clean", k),
            corrupted=rank_inputs(self.divergence, self.sample, "corrupted", k),
        )

    # ---- fields -----------------------------------------------------------------------------------

    @property
    def fields(self) -> tuple[str, ...]:
        """Names that `by_field` knows; those of the corrupted input begin with `corrupted.`."""
        return known_fields(self.sample)

    def by_field(
        self, field: str, other: str | None = None, *, percentile: float | None = None
    ) -> FieldTable:
        """Divergences grouped by what the prompts were filled with.

        Args:
            field: A field of the clean input (`object`) or of the corrupted one (`corrupted.object`).
            other: A second field, for a matrix.
            percentile: Share in [0, 1], 1 the maximum. Default: all percentiles of `summary` and the maximum
                for one field, the maximum for two.

        Returns:
            Count, mean and percentiles per cell, cells in ascending order of the values; `.values` is the
            percentile asked for as a matrix.

        Raises:
            UnknownNameError: If there is no such field.
            InputError: If the percentile is outside [0, 1].
        """
        return table_by_field(self.divergence, self.sample, field, other, percentile=percentile)

    @cached_property
    def field_tests(self) -> list[dict[str, Any]]:
        """Values of fields, tested for more pairs above the pooled 99th percentile than by chance.

        Permutation tests over inputs, Benjamini-Hochberg at 5 % over the values of each field.

        Returns:
            Records `field`, `value`, `n_inputs`, `n_pairs`, `mean`, `exceed`, `pooled`, `p_value`, `q_value`,
            `significant`, by ascending p-value.
        """
        return field_tests(self.divergence, self.sample, seed=self.sample.seed)

    @cached_property
    def field_trends(self) -> list[dict[str, Any]]:
        """Numeric fields with which the divergence rises or falls, by ascending p-value.

        Records `field`, `n_inputs`, `n_values`, `rho` (Spearman, over distinct inputs), `p_value`, `q_value`,
        `significant`.
        """
        return field_trends(self.divergence, self.sample, seed=self.sample.seed)

    @cached_property
    def heatmaps(self) -> list[dict[str, Any]]:
        """Max, p99.9 and p99.99 over the pairs of fields that the task names, with tests of the cells."""
        return heatmaps(self.divergence, self.sample, self.sample.heatmap_fields, seed=self.sample.seed)

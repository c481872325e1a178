"""What a worst-case run found: divergences of every pair, and the questions one can ask them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from assay.analyses.worst_case.bounds import not_certified, sample_certificate
from assay.analyses.worst_case.document import CERTIFIED, SHOWN_INPUTS, as_document
from assay.analyses.worst_case.exact import exact_comparison, exact_summary
from assay.analyses.worst_case.fields import (
    FieldTable,
    field_tests,
    field_trends,
    heatmaps,
    known_fields,
    table_by_field,
)
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.rows import (
    WorstInput,
    WorstPair,
    count_pairs,
    describe_pairs,
    rank_inputs,
    rank_pairs,
)
from assay.circuits import Circuit
from assay.core import display
from assay.core.errors import InconsistentRunError, InputError, unknown_name
from assay.core.record import record_id
from assay.stats import (
    AnchorComparison,
    Certificate,
    Histogram,
    Summary,
    compare_with_anchor,
    histogram,
    maximum_exceedance,
    summarize,
)


if TYPE_CHECKING:
    import pandas as pd

    from assay.models import Model

RERUN_ABSOLUTE, RERUN_RELATIVE = 1e-3, 1e-3  # by how much a second run may differ


class Logits(NamedTuple):
    """Logits of the same pairs in three runs, each `[k, d_vocab]`."""

    model: Float[Tensor, "k d_vocab"]
    circuit: Float[Tensor, "k d_vocab"]
    corrupted: Float[Tensor, "k d_vocab"]


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """How pairs of a result are run once more.

    Attributes:
        logits: `(clean rows, corrupted rows, exact) -> Logits`, a fresh batch; `exact` in float64.
        divergence: `(Logits, clean rows) -> [k]` float64.
        tolerance: By how much a second run may differ, absolutely and relative to the first; more for
            number types below float32, whose logits have a few units in the last place to play with.
    """

    logits: Callable[..., Logits]
    divergence: Callable[..., Float64[np.ndarray, " k"]]
    tolerance: tuple[float, float] = (RERUN_ABSOLUTE, RERUN_RELATIVE)


class WorstInputs(NamedTuple):
    """The inputs behind the tail, by mean divergence over their pairs."""

    clean: tuple[WorstInput, ...]
    corrupted: tuple[WorstInput, ...]


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """The empty circuit on the same pairs.

    Attributes:
        absolute: Its moments and percentiles, as in `WorstCase.summary()["absolute"]`.
        ratio_of_means: Mean divergence of the circuit over that of the empty one; NaN where the latter is 0.
        share_above: Share of pairs on which the circuit is worse than no circuit.
        spearman: Rank correlation of the two; NaN where either is constant.
    """

    absolute: Mapping[str, int | float | None]
    ratio_of_means: float
    share_above: float
    spearman: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WorstCase:
    """Divergence of a circuit from its model on many pairs of a clean and a corrupted input.

    Attributes:
        divergence: `[n_clean, n_corrupted]`, or `[n_pairs]` for listed pairs; nats unless `unit` says
            otherwise.
        empty: The same of the empty circuit, whose output is the model's on the corrupted input.
        argmax_differs: Whether the circuit's likeliest token is another than the model's.
        sample: The inputs and how they were drawn.
        facts: `model`, `task`, `circuit`, `ablation`, `divergence`, `unit`, `provenance`: what the document
            says of them.
        thresholds: Shares of pairs above these are reported.
        notes: Named warnings, name to message.
        seconds: Time the run took, resumed parts not counted.
        rerun: Runs pairs again; None for a loaded result without its model.
        document: The document a loaded result came with.
        search: What a search for worse pairs found, plain JSON; never part of the statistics.
        outside: Inputs from outside the grammar, plain JSON, reported apart.
        explanation: Which missing edges would repair the worst pairs, plain JSON.
    """

    divergence: Float64[np.ndarray, "..."]
    empty: Float64[np.ndarray, "..."]
    argmax_differs: Bool[np.ndarray, "..."]
    sample: PairSample
    facts: Mapping[str, Any]
    thresholds: tuple[float, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    rerun: Rerun | None = None
    document: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None
    outside: Sequence[Mapping[str, Any]] | None = None
    explanation: Mapping[str, Any] | None = None

    @property
    def protocol(self) -> str:
        """`all`, `matched`, `iid` or `file`."""
        return self.sample.protocol

    @property
    def unit(self) -> str:
        """Unit of the divergences."""
        return str(self.facts["unit"])

    @cached_property
    def id(self) -> str:
        """Identity of the result: hash of how it came to be."""
        return record_id("worst_case", self.facts["provenance"])

    def to_frame(self) -> "pd.DataFrame":
        """One row per pair: clean and corrupted index, divergence, empty, argmax_differs, weight if any."""
        import pandas as pd

        pairs = self.sample.pairs
        if pairs is None:
            pairs = np.stack(np.unravel_index(np.arange(self.divergence.size), self.divergence.shape), axis=1)
        weights = self.sample.weights
        return pd.DataFrame(
            {
                "clean": pairs[:, 0],
                "corrupted": pairs[:, 1],
                "divergence": self.divergence.ravel(),
                "empty": self.empty.ravel(),
                "argmax_differs": self.argmax_differs.ravel(),
            }
            | ({} if weights is None else {"weight": weights.ravel()})
        )

    def _repr_html_(self) -> str:
        found = self.summary()["absolute"]
        return display.card(
            f"divergence of a circuit on {self.n_distinct_pairs:,} pairs of inputs",
            (
                ("protocol", self.protocol),
                *(
                    (name, f"{display.number(found[name])} {self.unit}")
                    for name in ("mean", "p95", "p99", "max")
                    if found[name] is not None
                ),
                ("standard error of the mean", self.mean_standard_error),
                ("another likeliest token", f"{self.share_argmax_differs:.2%} of the pairs"),
                ("notes", ", ".join(self.notes) or None),
            ),
            id=self.id,
        )

    # ---- statistics -------------------------------------------------------------------------------

    @cached_property
    def statistics(self) -> Summary:
        """Everything that describes the sample; exact for an enumerated population."""
        if self.sample.weights is not None:
            found = exact_summary(self.divergence, self.sample.weights, thresholds=self.thresholds)
        else:
            found = summarize(self.divergence, thresholds=self.thresholds)
        return found.resolved(self.n_distinct_pairs)

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
        found = self.statistics
        return {"absolute": dict(found.absolute), "z": dict(found.z)}

    @property
    def mean_standard_error(self) -> float:
        """Of the mean; for all pairs of two samples by the two-way formula. NaN with one input a side."""
        return self.statistics.standard_error

    @property
    def share_argmax_differs(self) -> float:
        """Share of pairs on which circuit and model disagree about the likeliest token."""
        return self._share(self.argmax_differs)

    def share_above(self, threshold: float) -> float:
        """Share of pairs whose divergence exceeds a threshold."""
        return self._share(self.divergence > threshold)

    def _share(self, condition: Bool[np.ndarray, "..."]) -> float:
        weights = self.sample.weights
        return float(condition.mean() if weights is None else weights[condition].sum())

    @cached_property
    def anchor(self) -> Anchor:
        """The empty circuit on the same pairs, and how the circuit compares with it."""
        weights = self.sample.weights
        compared: AnchorComparison
        if weights is None:
            found = summarize(self.empty)
            compared = compare_with_anchor(self.divergence, self.empty)
        else:
            found = exact_summary(self.empty, weights)
            compared = exact_comparison(self.divergence, self.empty, weights)
        absolute = found.resolved(self.n_distinct_pairs).absolute
        return Anchor(absolute=absolute, **vars(compared))

    def histogram(self, *, n_bins: int = 100, maximum: float | None = None) -> Histogram:
        """Counts of divergences in equal bins on [0, maximum], the last bin closed.

        The pairs of an enumerated population count by their probability.

        Args:
            n_bins: Number of bins; there is one where the maximum is 0.
            maximum: Right end; give the largest value over several results to compare them. Default: this
                result's own.
        """
        return histogram(self.divergence, n_bins=n_bins, maximum=maximum, weights=self.sample.weights)

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
            method: For protocol `all`: `ustat` (default, rigorous), `disjoint`, `asymptotic` or `published`.

        Returns:
            See `assay.stats.Certificate`; `bound` is None, with the number of inputs needed, where the sample
            is too small for any bound. For an enumerated population the percentile itself, failure 0.

        Raises:
            InputError: An argument out of range, or a sample that supports no certificate (`reuse_clean`, or
                rows that are no independent draws).
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
            raise InputError("no percentiles were given; at least one is needed")
        each = 1 - (1 - delta) / len(percentiles) if family else delta
        return tuple(self.certificate(share, delta=each, method=method) for share in percentiles)

    def maximum_exceedance(self, *, delta: float = 0.95) -> float:
        """Share of the distribution that may exceed the largest divergence seen, with confidence `delta`."""
        reason = not_certified(self.sample)
        if reason is not None:
            raise InputError(f"this sample bounds nothing beyond itself: {reason}")
        if self.sample.enumerated:
            return 0.0
        n = min(self.divergence.shape)
        return maximum_exceedance(max(n // 2, 1) if self.sample.paired else n, delta=delta)

    # ---- which pairs ------------------------------------------------------------------------------

    def worst(
        self,
        k: int = 10,
        *,
        distinct: bool = True,
        logits: Literal["raw", "centered"] = "raw",
        exact: bool = False,
    ) -> tuple[WorstPair, ...]:
        """The k pairs of largest divergence, run once more.

        Args:
            k: How many, at least 1; all, with a warning, where there are fewer.
            distinct: List pairs of equal token sequences once, with their multiplicity.
            logits: `raw`, or `centered`: less the mean over the vocabulary.
            exact: Run them again in float64; divergences shown stay those of the sample.

        Returns:
            Worst first; ties by clean, then corrupted index.

        Raises:
            InconsistentRunError: If the second run differs from the first by more than 1e-3 + 1e-3 K (wider
                for half precision).
            InputError: If the result was loaded without its model.
        """
        if logits not in ("raw", "centered"):
            raise unknown_name("kind of logits", logits, ("raw", "centered"))
        if self.rerun is None:
            raise InputError(
                "worst pairs are run again, and this result was loaded without its model; give it: "
                "WorstCase.load(path, model=model, circuit=circuit)"
            )
        ranking = rank_pairs(self.divergence, self.sample, k, distinct=distinct)
        found = self.rerun.logits(ranking.clean_index, ranking.corrupted_index, exact)
        again = self.rerun.divergence(found, ranking.clean_index)
        stored = self.divergence.ravel()[ranking.place]
        # Not `>`: a NaN of the second run is a disagreement too.
        absolute, relative = self.rerun.tolerance
        agrees = np.abs(again - stored) <= absolute + relative * np.abs(stored)
        if not agrees.all():
            at = int(np.flatnonzero(~agrees)[0])
            raise InconsistentRunError(
                f"inconsistent_rerun: pair (clean {ranking.clean_index[at]}, corrupted "
                f"{ranking.corrupted_index[at]}) has divergence {stored[at]:.6g} in the run and "
                f"{again[at]:.6g} when run again; the numbers of one of them are not "
                "those of this circuit, so do not use them"
            )
        return describe_pairs(
            ranking, self.divergence, self.empty, self.sample, found, centred=logits == "centered"
        )

    def worst_inputs(self, k: int = SHOWN_INPUTS) -> WorstInputs:
        """The k distinct inputs of each side with the largest mean divergence over their pairs."""
        if k < 1:
            raise InputError(f"k is {k}; at least 1 is needed")
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
            percentile asked for as a matrix. Pairs of an enumerated population count by their probability.

        Raises:
            UnknownNameError: If there is no such field.
            InputError: If the percentile is outside [0, 1].
        """
        return table_by_field(self.divergence, self.sample, field, other, percentile=percentile)

    def significant_fields(self) -> list[dict[str, Any]]:
        """Values of fields whose pairs exceed the pooled 99th percentile more often than chance.

        Permutation tests over inputs, Benjamini-Hochberg at 5 % over the values of each field.

        Returns:
            Records `field`, `value`, `n_inputs`, `n_pairs`, `mean`, `exceed`, `pooled`, `p_value`, `q_value`.
        """
        return [record for record in self.field_tests if record["significant"]]

    @cached_property
    def field_tests(self) -> list[dict[str, Any]]:
        """The records of every value that was tested, by ascending p-value."""
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

    # ---- documents and files ----------------------------------------------------------------------

    @property
    def warnings(self) -> dict[str, str]:
        """Named warnings of this result and what they mean."""
        found = dict(self.notes)
        few = self.statistics.few_tail_points
        if few:
            named = [each for each in (", ".join(few[:-1]), few[-1]) if each]
            found["few_tail_points"] = (
                f"{' and '.join(named)} {'are' if len(few) > 1 else 'is'} left out: less than one of "
                f"{self.n_distinct_pairs:,} distinct pairs lies beyond"
            )
        reason = not_certified(self.sample)
        if reason is not None:
            found["not_certified"] = f"this sample supports no certificate: {reason}"
        return found

    def to_dict(self) -> dict[str, Any]:
        """The result as one JSON document: what `--json`, the store and the report read."""
        return as_document(self)

    def arrays(self) -> dict[str, np.ndarray]:
        """The values of all pairs by name, in float32 where that loses nothing."""
        return {
            "divergence": narrowed(self.divergence),
            "empty": narrowed(self.empty),
            "argmax_differs": self.argmax_differs,
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `path` (`.safetensors`: divergences, indices, token ids) and a JSON document beside it.

        Raises:
            OutputError: If either cannot be written.
        """
        from assay.analyses.worst_case.files import save_result

        return save_result(self, Path(path))

    @staticmethod
    def load(
        path: str | os.PathLike[str], *, model: "Model | None" = None, circuit: Circuit | None = None
    ) -> "WorstCase":
        """Read what `save` wrote.

        Args:
            path: The `.safetensors` file; its JSON document lies beside it.
            model: Give model and circuit to run the worst pairs again.
            circuit: The circuit; its hash must be the stored one.

        Raises:
            FileFormatError: If a file is missing, truncated, tampered with or too new.
            GraphMismatchError: If model or circuit are not those of the result.
        """
        from assay.analyses.worst_case.files import load_result

        return load_result(Path(path), model=model, circuit=circuit)

    def __repr__(self) -> str:
        absolute = self.statistics.absolute
        circuit = self.facts["circuit"]
        lines = [
            f"WorstCase({self.protocol!r}, {' x '.join(f'{n:,}' for n in self.divergence.shape)} pairs, "
            f"circuit of {circuit['n_edges']:,} edges, {self.facts['divergence']} in {self.unit})"
        ]
        for name, values in (("circuit", absolute), ("empty circuit", self.anchor.absolute)):
            rows = {key: values[key] for key in ("mean", "p50", "p99", "p99.9", "max")}
            shown = "  ".join(f"{key} {value:.4g}" for key, value in rows.items() if value is not None)
            lines.append(f"  {name:<14}{shown}")
        lines += [f"  note: {message}" for message in self.warnings.values()]
        return "\n".join(lines)


def narrowed(values: Float64[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """float32 where that loses nothing, as for every result of a model in float32 or less."""
    narrow = values.astype(np.float32)
    return narrow if (narrow == values).all() else values

"""What a worst-case run found: divergences of every pair, what they say and certify, the worst pairs."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from assay.analyses.worst_case.divergence import Divergence
from assay.analyses.worst_case.fields import FieldLabels, field_table, field_tests, heatmaps
from assay.analyses.worst_case.files import read_pairs, write_pairs
from assay.analyses.worst_case.rows import (
    Rerun,
    WorstInputs,
    WorstPair,
    count_pairs,
    describe_pairs,
    rank_inputs,
    rank_pairs,
)
from assay.analyses.worst_case.sampling import ClassNames, PairSample, pictures_of
from assay.circuits import Circuit
from assay.core.errors import GraphMismatchError, InputError, check_least, check_name, unknown_name
from assay.core.record import Plotted, Record, laid_out, library_version, plain, record_id, same
from assay.core.untrusted import malformed
from assay.models import Model
from assay.stats import CellTable, Certificate, Summary, certificate, maximum_exceedance, spearman, summarize
from assay.stats.summary import PERCENTILES


if TYPE_CHECKING:
    import pandas as pd

SHOWN_PAIRS, SHOWN_INPUTS = 10, 5
BINS = 100  # of a histogram
SMALLEST_SHOWN = 1e-6  # of the largest divergence, where logarithmic bins begin
CERTIFIED = (0.95, 0.99, 0.999)  # percentiles of the default certificates
NOT_CERTIFIED = "this sample does not support a certificate: "  # before the reason
FACTS = ("model", "task", "circuit", "ablation", "divergence", "unit", "provenance")
FINDINGS = ("search", "explanation")  # are reported beside the pairs and enter no statistics
_VALUES = ("divergence", "empty", "argmax_differs")

_DISTRIBUTION = {
    **same("protocol", "independent", "reuse_clean", "own_rows", of="sample"),
    **same("n_pairs", "seed", of="sample"),
    "n_clean": "sample.clean.n",
    "n_corrupted": "sample.corrupted.n",
    "unit": "unit",
    "summary": {
        **same("absolute", "z", of="statistics"),
        "argmax_differs": "argmax_differs.mean",
        "above": "_exceedances",
        "mean_standard_error": "statistics.standard_error",
    },
    "anchor": "anchor",
    "histogram": "_histogram",
    "logarithmic_histogram": "_logarithmic_histogram",
    "certificates": "_usual_certificates",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WorstCase(Plotted, Record):
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
        explanation: Which missing edges would repair the worst pairs, plain JSON.
    """

    drawn_by = "assay.analyses.worst_case.page:plot_worst_case"
    record_kind = "worst_case"
    record_schema = "assay-worst-case/1"
    record_layout = {
        "id": "id",
        **_DISTRIBUTION,
        "n_distinct_pairs": "n_distinct_pairs",
        "n_distinct_clean": "sample.clean.distinct.first_index.size",
        "n_distinct_corrupted": "sample.corrupted.distinct.first_index.size",
        **same("**facts"),
        "maximum_exceedance": "_largest_exceedance",
        "worst": "_shown_pairs",
        "worst_clean": "worst_inputs.clean",
        "worst_corrupted": "worst_inputs.corrupted",
        "pictures": "pictures",
        "fields": {"tests": "field_tests", "heatmaps": "heatmaps"},
        **same(*FINDINGS),
        "warnings": "_listed_warnings",
        "seconds": "seconds",
    }

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
    explanation: Mapping[str, Any] | None = None

    @property
    def protocol(self) -> str:
        """`all`, `matched`, `iid`, `file` or `inputs`."""
        return self.sample.protocol

    @property
    def unit(self) -> str:
        """Unit of the divergences."""
        return str(self.facts["unit"])

    @cached_property
    def id(self) -> str:
        """Identity of the result: hash of how it came to be."""
        return record_id("worst_case", self.facts["provenance"])

    # ---- statistics -------------------------------------------------------------------------------

    @cached_property
    def statistics(self) -> Summary:
        """Everything that describes the sample."""
        return summarize(self.divergence, thresholds=self.thresholds, n_distinct=self.n_distinct_pairs)

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
        return {"absolute": dict(self.statistics.absolute), "z": dict(self.statistics.z)}

    @cached_property
    def anchor(self) -> dict[str, Any]:
        """The empty circuit on the same pairs, and how the circuit compares with it.

        Returns:
            `absolute`: its moments and percentiles, as in `summary`. `ratio_of_means`: mean divergence of the
            circuit over its own; NaN where that is 0. `share_above`: share of pairs on which the circuit is
            worse than no circuit. `spearman`: rank correlation of the two; NaN where either is constant.
        """
        absolute, ours = summarize(self.empty, n_distinct=self.n_distinct_pairs).absolute, self.divergence
        mean = float(self.empty.mean())
        return {
            "absolute": absolute,
            "ratio_of_means": float(ours.mean()) / mean if mean else math.nan,
            "share_above": float((ours > self.empty).mean()),
            "spearman": spearman(ours.ravel(), self.empty.ravel()),
        }

    def to_frame(self) -> "pd.DataFrame":
        """One row per pair: clean and corrupted index, divergence, empty, argmax_differs."""
        import pandas as pd

        pairs = self.sample.pairs
        if pairs is None:
            pairs = np.argwhere(np.ones(self.divergence.shape, dtype=np.bool_))
        values = {name: getattr(self, name).ravel() for name in _VALUES}
        return pd.DataFrame({"clean": pairs[:, 0], "corrupted": pairs[:, 1], **values})

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

        Notes:
            Of a task's own n rows, crossed in order, corrupted input i is the counterpart of clean input i;
            the n (n - 1) values off the diagonal are then a U-statistic of degree 2 of n independent rows,
            which is as good as floor(n / 2) independent values (Hoeffding 1963, section 5b). Copies of a row
            count once, rows equal to their counterparts not at all; fresh draws of a grammar are independent
            as they come.
        """
        reason, sample, values = not_certified(self.sample), self.sample, self.divergence
        if reason is not None:
            raise InputError(NOT_CERTIFIED + reason)
        if sample.own_rows:
            rows = counted_rows(sample)
            values = values[rows] if sample.pairs is not None else values[np.ix_(rows, rows)]
        if sample.paired:
            n = len(values)
            values = values[~np.eye(n, dtype=bool)].reshape(n, n - 1)
            if method != "published":
                if method not in (None, "ustat"):
                    raise unknown_name(
                        "certificate method of a task's own rows", method, ("ustat", "published")
                    )
                return _of_rows(values, percentile, delta, epsilon)
        return certificate(values, percentile, delta=delta, epsilon=epsilon, method=method)

    def maximum_exceedance(self, *, delta: float = 0.95) -> float:
        """Share of the distribution that may exceed the largest divergence seen, with confidence `delta`."""
        if (reason := not_certified(self.sample)) is not None:
            raise InputError(NOT_CERTIFIED + reason)
        n = len(counted_rows(self.sample)) if self.sample.own_rows else min(self.divergence.shape)
        return maximum_exceedance(max(n // 2, 1) if self.sample.paired else n, delta=delta)

    def listed_certificates(
        self, percentiles: Sequence[float] = CERTIFIED, *, delta: float = 0.95
    ) -> list[dict[str, Any]]:
        """Records of `certificate`; for crossed inputs the published bound beside the sound one."""
        methods = (None, "published") if self.sample.pairs is None else (None,)
        return [
            self.certificate(share, delta=delta, method=method).to_dict()
            for share in percentiles
            for method in methods
        ]

    # ---- which pairs and inputs -------------------------------------------------------------------

    def worst(
        self, k: int = 10, *, distinct: bool = True, logits: Literal["raw", "centered"] = "raw"
    ) -> tuple[WorstPair, ...]:
        """The k pairs of largest divergence, run once more.

        Args:
            k: How many, at least 1; all, with a warning, where there are fewer.
            distinct: List pairs of equal token sequences once, with their multiplicity.
            logits: `raw`, or `centered`: less the mean over the vocabulary.

        Returns:
            Worst first; ties by clean, then corrupted index.

        Raises:
            InconsistentRunError: If the second run differs from the first by more than 1e-3 + 1e-3 K (wider
                for half precision).
            InputError: If the result was loaded without its model.
        """
        check_name("kind of logits", logits, ("raw", "centered"))
        if self.rerun is None:
            raise InputError(
                "worst pairs are run again, but this result was loaded without its model; use "
                "WorstCase.load(path, model=model, circuit=circuit)"
            )
        ranking = rank_pairs(self.divergence, self.sample, k, distinct=distinct)
        runs = self.rerun.confirmed(ranking, self.divergence.ravel()[ranking.place])
        values = self.divergence, self.empty, self.sample
        return describe_pairs(ranking, *values, runs, centred=logits == "centered")

    def worst_inputs(self, k: int = SHOWN_INPUTS) -> WorstInputs:
        """The k distinct inputs of each side with the largest mean divergence over their pairs."""
        check_least(1, k=k)
        return WorstInputs(
            clean=rank_inputs(self.divergence, self.sample, "clean", k),
            corrupted=rank_inputs(self.divergence, self.sample, "corrupted", k),
        )

    def by_field(self, field: str, other: str | None = None, *, percentile: float | None = None) -> CellTable:
        """Divergences grouped by what the prompts were filled with.

        Args:
            field: A field of the clean input (`object`) or of the corrupted one (`corrupted.object`).
            other: A second field, for a matrix.
            percentile: Share in [0, 1], 1 the maximum. Default: all percentiles of `summary` and the maximum
                for one field, the maximum for two.

        Returns:
            `n`, `mean` and `quantiles` per cell, cells in ascending order of the values.

        Raises:
            UnknownNameError: If there is no such field.
            InputError: If the percentile is outside [0, 1].
        """
        if percentile is not None and not 0 <= percentile <= 1:
            raise InputError(f"percentile is {percentile}; give a share in [0, 1], 1 for the maximum")
        labels = [FieldLabels.of(self.sample, name) for name in (field, other) if name is not None]
        shares = (*PERCENTILES, 1.0) if other is None else (1.0,)
        return field_table(self.divergence, labels, shares if percentile is None else (float(percentile),))

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
    def heatmaps(self) -> list[dict[str, Any]]:
        """Max, p99.9 and p99.99 over the pairs of fields that the task names, with tests of the cells."""
        return heatmaps(self.divergence, self.sample, seed=self.sample.seed)

    # ---- the document -----------------------------------------------------------------------------

    @property
    def warnings(self) -> dict[str, str]:
        """Named warnings of this result and what they mean."""
        messages, few = dict(self.notes), self.statistics.few_tail_points
        if few:
            what = "inputs" if self.protocol == "inputs" else "pairs"
            messages["few_tail_points"] = (
                f"left out: {' and '.join(few)}, beyond which less than one of {self.n_distinct_pairs:,} "
                f"distinct {what} lies"
            )
        reason = not_certified(self.sample)
        return messages | ({} if reason is None else {"not_certified": NOT_CERTIFIED + reason})

    def distribution(self) -> dict[str, Any]:
        """The part of `to_dict` that the divergences of the sample alone give; nothing is run for it."""
        entries: dict[str, Any] = plain(laid_out(self, _DISTRIBUTION))
        return entries

    def _exceedances(self) -> list[dict[str, float]]:
        shares = self.statistics.exceedance
        return [{"threshold": threshold, "share": share} for threshold, share in shares.items()]

    def _largest_exceedance(self) -> float | None:
        return None if not_certified(self.sample) else self.maximum_exceedance()

    def _usual_certificates(self) -> list[dict[str, Any]]:
        return [] if not_certified(self.sample) else self.listed_certificates()

    def _listed_warnings(self) -> list[dict[str, str]]:
        return [{"name": name, "message": message} for name, message in self.warnings.items()]

    def _histogram(self) -> dict[str, Any]:
        """Circuit and empty circuit in the same bins of equal width."""
        return self._counted(np.linspace(0.0, 1.0, BINS + 1))

    def _logarithmic_histogram(self) -> dict[str, Any]:
        """The same in bins of equal ratio; the first holds all that is less."""
        return self._counted(np.geomspace(SMALLEST_SHOWN, 1.0, BINS + 1))

    def _counted(self, ends: Float64[np.ndarray, " ends"]) -> dict[str, Any]:
        """Pairs between some shares of the largest divergence; one bin where all are 0."""
        largest = max(float(self.divergence.max()), float(self.empty.max()))
        edges = largest * ends if largest else np.zeros(2)
        runs = (np.clip(values, edges[0], edges[-1]) for values in (self.divergence, self.empty))
        counts, anchor = (np.histogram(values, edges)[0] for values in runs)
        return {"edges": edges, "counts": counts, "anchor_counts": anchor}

    @cached_property
    def _shown_pairs(self) -> list[Any]:
        """The worst pairs; of a result without its model those it was saved with."""
        if self.rerun is None:
            return list((self.document or {}).get("worst", []))
        return [pair.to_dict() for pair in self.worst(min(SHOWN_PAIRS, self.n_distinct_pairs))]

    @property
    def pictures(self) -> dict[str, dict[str, str]] | None:
        """The images of the listed pairs, by side and row, as PNG data URIs; None for prompts."""
        found, config = dict[str, dict[str, str]](), self.sample.task.get("config", {})
        for side in ("clean", "corrupted"):
            inputs = getattr(self.sample, side)
            if inputs.images is None:
                return None
            order = sorted({pair[f"{side}_index"] for pair in self._shown_pairs})
            shown = pictures_of(inputs.images, inputs.tokens[order, 0].tolist(), config)
            found[side] = {str(row): picture for row, picture in zip(order, shown, strict=True)}
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """The values of all pairs by name, in float32 where that loses nothing."""
        arrays: dict[str, np.ndarray] = {name: getattr(self, name) for name in _VALUES}
        narrow = {name: arrays[name].astype(np.float32) for name in ("divergence", "empty")}
        return arrays | {name: each for name, each in narrow.items() if (each == arrays[name]).all()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `path` (`.safetensors`): divergences, indices, token ids, and the document.

        Raises:
            OutputError: If it cannot be written.
        """
        record = {"document": self.to_dict(), "thresholds": self.thresholds, "notes": dict(self.notes)}
        return write_pairs(Path(path), self.sample, self.arrays(), record)

    @staticmethod
    def load(
        path: str | os.PathLike[str], *, model: Model | None = None, circuit: Circuit | None = None
    ) -> "WorstCase":
        """Read what `save` wrote.

        Args:
            path: The `.safetensors` file.
            model: Give model and circuit to run the worst pairs again.
            circuit: The circuit; its hash must be the stored one.

        Raises:
            FileFormatError: If the file is missing, truncated, tampered with or too new.
            GraphMismatchError: If model or circuit are not those of the result.
        """
        if (model is None) != (circuit is None):
            raise InputError("give both model and circuit to run pairs again, or neither")
        with malformed(Path(path), "a worst-case result"):
            sample, arrays, record = read_pairs(Path(path), _VALUES)
            document, rerun = record["document"], None
            if not isinstance(document.get("worst", []), list):
                raise ValueError("its worst pairs are not a list")
            if model is not None and circuit is not None:
                for what, stored, given in (
                    ("model", document["model"]["weight_hash"], model.weight_hash),
                    ("circuit", document["circuit"]["hash"], circuit.hash),
                ):
                    if stored != given:
                        raise GraphMismatchError(
                            f"the result belongs to the {what} {stored}, and {given} was given; give the "
                            f"{what} it was made with"
                        )
                names = model.tokenizer if model.vision is None else ClassNames(model.classes)
                sample = replace(sample, tokenizer=names)
                rerun = Rerun(model=model, circuit=circuit, sample=sample, divergence=document["divergence"])
            return WorstCase(
                divergence=arrays["divergence"].double().numpy(),
                empty=arrays["empty"].double().numpy(),
                argmax_differs=arrays["argmax_differs"].bool().numpy(),
                sample=sample,
                facts={name: document[name] for name in FACTS},
                thresholds=tuple(record["thresholds"]),
                notes=dict(record["notes"]),
                rerun=rerun,
                document=document,
                **{name: document[name] for name in ("seconds", *FINDINGS)},
            )

    def __repr__(self) -> str:
        circuit, ablation = self.facts["circuit"], self.facts["ablation"]
        lines = [
            f"WorstCase({self.protocol!r}, {' x '.join(f'{n:,}' for n in self.divergence.shape)} "
            f"{'inputs' if self.protocol == 'inputs' else 'pairs'}, "
            f"{'' if ablation == 'resample' else ablation + ' ablation, '}"
            f"circuit of {circuit['n_edges']:,} edges, {self.facts['divergence']} in {self.unit})"
        ]
        brief = {"circuit": self.statistics.absolute, "empty circuit": self.anchor["absolute"]}
        for name, values in brief.items():
            known = {key: values[key] for key in ("mean", "p50", "p99", "p99.9", "max")}
            shown = "  ".join(f"{key} {value:.4g}" for key, value in known.items() if value is not None)
            lines.append(f"  {name:<14}{shown}")
        lines += [f"  note: {message}" for message in self.warnings.values()]
        return "\n".join(lines)


# ---------------------------------------------------------------------------- what a sample guarantees


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
    """Why a sample supports no certificate; None where it supports one."""
    if sample.reuse_clean:
        return (
            "its corrupted inputs were made from its clean ones (reuse_clean), so the two sides are not "
            "independent; sample again without reuse_clean"
        )
    if not sample.independent:
        drawn = sample.own_rows and "clean" in sample.streams
        return (
            "its inputs are rows of the task that were "
            f"{'drawn more than once' if drawn else 'not declared independent'}; run them unchanged with "
            "independent=True (assay attack --independent) if they are independent and new to the circuit"
        )
    if sample.own_rows and not len(counted_rows(sample)):
        return "each of its inputs equals its counterpart, so nothing is ablated"
    if sample.reference is not None and "baseline" not in sample.streams:
        return (
            f"the values of {sample.ablation!r} ablation were measured on the inputs that were run, so the "
            "divergence of each input depends on all others; a task with a grammar draws others for them"
        )
    return None


def _of_rows(
    values: Float64[np.ndarray, "n n_others"], p: float, delta: float, epsilon: float | None
) -> Certificate:
    """`ustat` over the pairs of different rows: that of half as many inputs on each of two sides."""
    m = max(len(values) // 2, 1)
    half = certificate(np.zeros((m, m)), p, delta=delta, epsilon=epsilon, method="ustat")
    # Rounded up to a rank among the values there are: the failure is at most the one stated.
    order = None if half.order is None else math.ceil(half.order * values.size / (m * m))
    return replace(
        half,
        bound=None if order is None else float(np.partition(values, order - 1, axis=None)[order - 1]),
        n_values=values.size,
        order=order,
        n_needed=None if half.n_needed is None else 2 * half.n_needed,
    )


# --------------------------------------------------------------------------------- what it was made of


def facts_of(
    circuit: Circuit, model: Model, sample: PairSample, divergence: Divergence, thresholds: Sequence[float]
) -> dict[str, Any]:
    """What the document says of model, task and circuit, and the record behind the result."""
    named = (circuit.provenance.get(key) for key in ("published", "method"))
    described = {"ablation": sample.ablation, "divergence": divergence.key}
    return {
        "model": {**model.describe(), "n_parameters": model.n_parameters},
        "task": {"data_hash": sample.data_hash, **sample.task},
        "circuit": {
            "hash": circuit.hash,
            "name": next((name for name in named if isinstance(name, str)), "circuit"),
            "n_edges": circuit.n_edges,
            "n_graph_edges": circuit.graph.n_edges,
            **circuit.level_facts,
        },
        **described,
        "unit": divergence.unit,
        "provenance": {
            "library": library_version(),
            "model": model.describe(),
            "sample": sample.describe(),
            "circuit": circuit.hash,
            "graph": circuit.graph.fingerprint,
            **described,
            "thresholds": [float(threshold) for threshold in thresholds],
            "machine": {"device": str(model.device), "torch": str(torch.__version__)},
        },
    }


def notes_on(circuit: Circuit, sample: PairSample) -> dict[str, str]:
    """Named warnings about a circuit and a sample."""
    left_out = sample.task.get("notes")
    notes = {"examples_left_out": ". ".join(left_out)} if left_out else {}
    left = sample.clean.n - len(counted_rows(sample)) if sample.own_rows and sample.independent else 0
    if left:
        notes["rows_not_counted"] = (
            f"{left:,} of the {sample.clean.n:,} rows are copies of others or equal their counterparts; "
            "certificates do not count them"
        )
    if circuit.spans is None and circuit.connected(warn=False).n_edges == 0:
        notes["disconnected_circuit"] = (
            "no kept path leads from the input to the logits: the output of the circuit is that of the "
            "model on the corrupted input, whatever the clean input"
        )
    if sample.reference is not None and "baseline" in sample.streams:
        notes["given_baseline"] = (
            f"the values of {sample.ablation!r} ablation were measured on {sample.reference.n:,} prompts "
            "drawn apart from the sample: certificates hold for these values, not for those that other "
            "prompts give"
        )
    return notes

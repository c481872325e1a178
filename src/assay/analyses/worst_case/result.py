"""What a worst-case run found: divergences of every pair, the worst pairs, and the document of both."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Float64

from assay.analyses.worst_case.bounds import CERTIFIED, NOT_CERTIFIED, not_certified
from assay.analyses.worst_case.files import check_origin, read_result, write_result
from assay.analyses.worst_case.image_inputs import ClassNames, pictures_of
from assay.analyses.worst_case.rerun import Rerun
from assay.analyses.worst_case.rows import WorstPair, describe_pairs, rank_pairs
from assay.analyses.worst_case.statistics import PairStatistics
from assay.circuits import Circuit
from assay.core.errors import InputError, check_name
from assay.core.plotted import Plotted
from assay.core.record import Record, laid_out, plain, record_id, same
from assay.core.untrusted import malformed
from assay.models import Model
from assay.stats import histogram


if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "assay-worst-case/1"
SHOWN_PAIRS = 10
FACTS = ("model", "task", "circuit", "ablation", "divergence", "unit", "provenance")
FINDINGS = ("search", "explanation")  # are reported beside the pairs and enter no statistics

_DISTRIBUTION = {
    **same("protocol", "independent", "reuse_clean", "own_rows", of="sample"),
    **same("n_pairs", "seed", of="sample"),
    "n_clean": "sample.clean.n",
    "n_corrupted": "sample.corrupted.n",
    "unit": "unit",
    "summary": {
        **same("absolute", "z", of="statistics"),
        "argmax_differs": "share_argmax_differs",
        "above": "exceedances",
        "mean_standard_error": "mean_standard_error",
    },
    "anchor": "anchor",
    "histogram": "_histograms",
    "certificates": "_usual_certificates",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WorstCase(Plotted, PairStatistics, Record):
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

    drawn_by = "assay.analyses.worst_case.plots:plot_worst_case"
    record_kind = "worst_case"
    record_schema = SCHEMA
    record_layout = {
        "id": "id",
        **_DISTRIBUTION,
        "n_distinct_pairs": "n_distinct_pairs",
        "n_distinct_clean": "sample.clean.distinct.first_index.size",
        "n_distinct_corrupted": "sample.corrupted.distinct.first_index.size",
        "population": "sample.population",
        **same("**facts"),
        "maximum_exceedance": "largest_exceedance",
        "worst": "_shown_pairs",
        "worst_clean": "worst_inputs.clean",
        "worst_corrupted": "worst_inputs.corrupted",
        "pictures": "pictures",
        "fields": {"tests": "field_tests", "trends": "field_trends", "heatmaps": "heatmaps"},
        **same(*FINDINGS),
        "warnings": "listed_warnings",
        "seconds": "seconds",
    }

    facts: Mapping[str, Any]
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

    def to_frame(self) -> "pd.DataFrame":
        """One row per pair: clean and corrupted index, divergence, empty, argmax_differs."""
        import pandas as pd

        pairs = self.sample.pairs
        if pairs is None:
            pairs = np.stack(np.unravel_index(np.arange(self.divergence.size), self.divergence.shape), axis=1)
        return pd.DataFrame(
            {
                "clean": pairs[:, 0],
                "corrupted": pairs[:, 1],
                "divergence": self.divergence.ravel(),
                "empty": self.empty.ravel(),
                "argmax_differs": self.argmax_differs.ravel(),
            }
        )

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
        check_name("kind of logits", logits, ("raw", "centered"))
        if self.rerun is None:
            raise InputError(
                "worst pairs are run again, but this result was loaded without its model; use "
                "WorstCase.load(path, model=model, circuit=circuit)"
            )
        ranking = rank_pairs(self.divergence, self.sample, k, distinct=distinct)
        stored = self.divergence.ravel()[ranking.place]
        runs = self.rerun.confirmed(ranking, stored, exact=exact)
        return describe_pairs(
            ranking,
            self.divergence,
            self.empty,
            self.sample,
            runs,
            centred=logits == "centered",
        )

    # ---- documents and files ----------------------------------------------------------------------

    @property
    def warnings(self) -> dict[str, str]:
        """Named warnings of this result and what they mean."""
        messages = dict(self.notes)
        few = self.statistics.few_tail_points
        if few:
            named = [each for each in (", ".join(few[:-1]), few[-1]) if each]
            messages["few_tail_points"] = (
                f"{' and '.join(named)} {'are' if len(few) > 1 else 'is'} left out: less than one of "
                f"{self.n_distinct_pairs:,} distinct {'inputs' if self.protocol == 'inputs' else 'pairs'} "
                "lies beyond"
            )
        reason = not_certified(self.sample)
        if reason is not None:
            messages["not_certified"] = NOT_CERTIFIED + reason
        return messages

    def distribution(self) -> dict[str, Any]:
        """The part of `to_dict` that the divergences of the sample alone give; nothing is run for it."""
        entries: dict[str, Any] = plain(laid_out(self, _DISTRIBUTION))
        return entries

    @property
    def exceedances(self) -> list[dict[str, float]]:
        """Share of pairs above each threshold."""
        shares = self.statistics.exceedance
        return [{"threshold": threshold, "share": share} for threshold, share in shares.items()]

    @property
    def largest_exceedance(self) -> float | None:
        """Share of the distribution that may exceed the largest divergence; None without a certificate."""
        return None if not_certified(self.sample) else self.maximum_exceedance()

    @property
    def listed_warnings(self) -> list[dict[str, str]]:
        """The warnings as rows."""
        return [{"name": name, "message": message} for name, message in self.warnings.items()]

    def _histograms(self) -> dict[str, Any]:
        """Circuit and empty circuit in the same bins."""
        largest = max(float(self.divergence.max()), float(self.empty.max()))
        own = self.histogram(maximum=largest)
        anchor = histogram(self.empty, maximum=largest)
        return {"edges": own.edges, "counts": own.counts, "anchor_counts": anchor.counts}

    def _usual_certificates(self) -> list[dict[str, Any]]:
        return [] if not_certified(self.sample) else self.listed_certificates()

    def listed_certificates(
        self, percentiles: Sequence[float] = CERTIFIED, *, delta: float = 0.95, epsilon: float | None = None
    ) -> list[dict[str, Any]]:
        """Records of `certificate`; for crossed inputs the published bound beside the sound one."""
        crossed = self.sample.pairs is None
        methods = (None, "published") if crossed else (None,)
        return [
            self.certificate(share, delta=delta, epsilon=epsilon, method=method).to_dict()
            for share in percentiles
            for method in methods
        ]

    @cached_property
    def _shown_pairs(self) -> list[Any]:
        """The worst pairs; of a result without its model those it was saved with."""
        if self.rerun is None:
            return list((self.document or {}).get("worst", []))
        return [pair.to_dict() for pair in self.worst(min(SHOWN_PAIRS, self.n_distinct_pairs))]

    @property
    def pictures(self) -> dict[str, dict[str, str]] | None:
        """The images of what the document lists, by side and row, as PNG data URIs; None for prompts."""
        if self.sample.clean.images is None:
            return None
        found = {}
        for side in ("clean", "corrupted"):
            rows = {pair[f"{side}_index"] for pair in self._shown_pairs}
            rows |= {each.index for each in getattr(self.worst_inputs(), side)}
            inputs, order = getattr(self.sample, side), sorted(rows)
            numbers = inputs.tokens[order, 0].tolist()
            shown = pictures_of(inputs.images, numbers, self.sample.task["config"])
            found[side] = {str(row): picture for row, picture in zip(order, shown, strict=True)}
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """The values of all pairs by name, in float32 where that loses nothing."""
        return {
            "divergence": narrowed(self.divergence),
            "empty": narrowed(self.empty),
            "argmax_differs": self.argmax_differs,
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `path` (`.safetensors`): divergences, indices, token ids, and the document.

        Raises:
            OutputError: If it cannot be written.
        """
        record = {
            "document": self.to_dict(),
            "thresholds": self.thresholds,
            "notes": dict(self.notes),
        }
        return write_result(Path(path), self.sample, self.arrays(), record)

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
        path = Path(path)
        record, sample, arrays = read_result(path)
        with malformed(path, "a worst-case result"):
            document = record["document"]
            if not isinstance(document.get("worst", []), list):
                raise ValueError("its worst pairs are not a list")
            rerun = None
            if model is not None and circuit is not None:
                check_origin(document, model, circuit)
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
        absolute = self.statistics.absolute
        circuit, resampled = self.facts["circuit"], self.facts["ablation"] == "resample"
        lines = [
            f"WorstCase({self.protocol!r}, {' x '.join(f'{n:,}' for n in self.divergence.shape)} "
            f"{'inputs' if self.protocol == 'inputs' else 'pairs'}, "
            f"{'' if resampled else self.facts['ablation'] + ' ablation, '}"
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

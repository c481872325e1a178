"""What a benchmark of discovery methods found: a row per method, paired differences, files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.analyses.benchmark.detection import Detected
from assay.analyses.benchmark.files import read_record, write_record
from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.core.plotted import Plotted
from assay.core.record import HIDDEN, Record


if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Bounded(Record):
    """A number with its 95 % bootstrap interval over examples; NaN where undefined."""

    value: float
    low: float
    high: float

    def __format__(self, style: str) -> str:
        style = style or ".3f"
        if math.isnan(self.value):
            return "undefined"
        shown = f"{self.value:{style}}"
        return shown if math.isnan(self.low) else f"{shown} [{self.low:{style}}, {self.high:{style}}]"


@dataclass(frozen=True, kw_only=True)
class Ranked(Record):
    """Faithfulness of the circuits that one ranking of the edges gives.

    Attributes:
        cpr: Area under the faithfulness curve; higher is better, at most about 1 where F is.
        cmd: Area between the curve and 1; lower is better, 0 is the least.
        faithfulness: F at each fraction of the benchmark.
        kept_edges: Edges left at each after pruning to paths from `input` to `logits`.
    """

    cpr: Bounded
    cmd: Bounded
    faithfulness: tuple[float, ...]
    kept_edges: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow(Record):
    """One competitor.

    Attributes:
        name: What it is called.
        method: Registered key of the method; None for imported scores.
        options: How its options were set, where not at their defaults.
        objective: What it attributed; None for imported scores.
        selection: How circuits were chosen from its scores: `top` or `greedy`.
        signed, absolute: Circuits by signed score and by |score|; None where the method did not serve.
        reason: Why it did not, in its own words.
        seconds: Time of the discovery; NaN where there was none.
        plain_seconds: Time of one plain forward pass over the same examples in batches of the same size, with
            logits at every position, measured right before.
        peak_memory: Bytes that the discovery added to what was in use; None where unknown.
        passes: Forward and backward passes per example, as the method counts them.
        truth: How well it finds the true edges of a planted model; None for other models.
        warnings: What it warned of, such as masks that did not converge.
        details: What else it reports.
    """

    derived = ("forward_equivalents",)

    name: str
    method: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    objective: str | None = None
    selection: str = "top"
    signed: Ranked | None = None
    absolute: Ranked | None = None
    reason: str | None = None
    seconds: float = math.nan
    plain_seconds: float = math.nan
    peak_memory: int | None = None
    passes: Mapping[str, float] = field(default_factory=dict)
    truth: Detected | None = None
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def served(self) -> bool:
        """Whether there are scores to judge."""
        return self.signed is not None

    @property
    def cpr(self) -> Bounded | None:
        """CPR as MIB publishes it: edges by signed score."""
        return None if self.signed is None else self.signed.cpr

    @property
    def cmd(self) -> Bounded | None:
        """CMD as MIB publishes it: edges by |score|."""
        return None if self.absolute is None else self.absolute.cmd

    @property
    def forward_equivalents(self) -> float:
        """Cost in plain forward passes over the same examples; NaN where unknown."""
        return self.seconds / self.plain_seconds if self.plain_seconds > 0 else math.nan


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """CPR of one competitor less that of another on the same examples, MIB convention."""

    first: str
    second: str
    cpr: Bounded


@dataclass(frozen=True, kw_only=True)
class DiscoveryBenchmark(Plotted, Record):
    """Discovery methods judged on one model and task.

    Attributes:
        model: The model's record.
        discovered_on, evaluated_on: Records of the examples; equal where methods were judged on the examples
            they saw.
        settings: Objective, ablation, fractions, seed, clock and the like, JSON-able.
        rows: One per competitor, in the order they were given.
        differences: Of every pair of rows that have a CPR, with intervals from the same resamples for both.
        scores: Edge scores by name of the row; not part of `to_dict`.
    """

    drawn_by = "assay.analyses.benchmark.plots:plot_benchmark"
    record_header = {
        "format": "assay-discovery-benchmark/1",
        "convention": "MIB: CPR by signed score (signed.cpr), CMD by |score| (absolute.cmd)",
    }

    model: Mapping[str, Any]
    discovered_on: Mapping[str, Any]
    evaluated_on: Mapping[str, Any]
    settings: Mapping[str, Any]
    rows: tuple[BenchmarkRow, ...]
    differences: tuple[Difference, ...] = ()
    scores: Mapping[str, EdgeScores] = field(default_factory=dict, compare=False, metadata=HIDDEN)

    def __repr__(self) -> str:
        return f"DiscoveryBenchmark({self.model.get('id')}, {self.task!r}, {len(self.rows)} methods)"

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.evaluated_on.get("name", ""))

    @property
    def held_out(self) -> bool:
        """Whether methods were judged on other examples than they saw."""
        return bool(self.settings.get("evaluate") == "held-out")

    def row(self, name: str) -> BenchmarkRow:
        """The row of one competitor.

        Raises:
            InputError: If there is none of that name.
        """
        for each in self.rows:
            if each.name == name:
                return each
        raise InputError(
            f"the benchmark has no row {name!r}; its rows are {', '.join(each.name for each in self.rows)}"
        )

    def difference(self, first: str, second: str) -> Bounded | None:
        """CPR of `first` less that of `second`; None where one of them has none."""
        for each in self.differences:
            if (each.first, each.second) == (first, second):
                return each.cpr
            if (each.first, each.second) == (second, first):
                return Bounded(value=-each.cpr.value, low=-each.cpr.high, high=-each.cpr.low)
        return None

    def ranking(self) -> list[BenchmarkRow]:
        """Rows by CPR, best first; those without one come last."""
        return sorted(self.rows, key=lambda row: math.inf if row.cpr is None else -_low_if_nan(row.cpr.value))

    def to_frame(self) -> "pd.DataFrame":
        """One row per competitor: the four integrals, cost, truth."""
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self.rows])

    def save(self, path: str | Path) -> Path:
        """Write the benchmark as one JSON file, whole or not at all; edge scores are not in it."""
        return write_record(path, self)

    @classmethod
    def load(cls, path: str | Path) -> "DiscoveryBenchmark":
        """Read what `save` wrote.

        Raises:
            FileFormatError: If the file is missing or holds something else.
        """
        return read_record(path, cls, "a discovery benchmark")


def _flat(row: BenchmarkRow) -> dict[str, Any]:
    record: dict[str, Any] = {"name": row.name, "method": row.method, "selection": row.selection}
    for ranking in ("signed", "absolute"):
        ranked: Ranked | None = getattr(row, ranking)
        for integral in ("cpr", "cmd"):
            bounded = None if ranked is None else getattr(ranked, integral)
            for part, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
                record[f"{integral}_{ranking}{suffix}"] = (
                    math.nan if bounded is None else getattr(bounded, part)
                )
    record["forward_equivalents"] = row.forward_equivalents
    record["seconds"] = row.seconds
    record["peak_memory_mib"] = math.nan if row.peak_memory is None else row.peak_memory / 2**20
    record["auroc"] = math.nan if row.truth is None else row.truth.auroc
    record["reason"] = row.reason
    return record


def _low_if_nan(value: float) -> float:
    return -math.inf if math.isnan(value) else value

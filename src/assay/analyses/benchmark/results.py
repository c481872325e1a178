"""What a benchmark of discovery methods found: a row per method, paired differences, files."""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from assay.circuits import Circuit, EdgeScores, write_atomically
from assay.core.errors import check_name
from assay.core.record import BRIEF, HIDDEN, Plotted, Record
from assay.core.untrusted import read_object
from assay.stats import auroc, average_precision, precision_at


if TYPE_CHECKING:
    import pandas as pd


INTEGRALS = ("cpr", "cmd", "clipped_cpr", "clipped_cmd", "overshoot", "kl")  # of a ranking
PAIRED = ("cpr", "clipped_cpr", "cmd", "kl")  # of two rankings on the same examples


@dataclass(frozen=True, kw_only=True)
class Detected(Record):
    """How well edge scores tell the true edges from the others, by |score| and by signed score.

    Attributes:
        auroc, auroc_signed: Probability that a true edge outscores another, ties counting half; in [0, 1],
            1/2 at chance. NaN where every edge is true or none.
        average_precision, average_precision_signed: Mean precision at the ranks of the true edges, in (0, 1].
        recall, recall_signed: Share of true edges among as many best ones, which is their precision too.
    """

    auroc: float
    auroc_signed: float
    average_precision: float
    average_precision_signed: float
    recall: float
    recall_signed: float


def detect(scores: EdgeScores, edges: Collection[str]) -> Detected:
    """Score a ranking of edges against the true edge set.

    Args:
        scores: Edge scores.
        edges: Names of the true edges.

    Raises:
        UnknownNameError: For the first edge that the graph does not have.

    References:
        Mann and Whitney (1947), doi:10.1214/aoms/1177730491 (AUROC, ties counting half).

    Example:
        >>> graph = assay.build_graph(1, 1, mlps=False)
        >>> values = torch.zeros(graph.n_sources, graph.n_targets)
        >>> values[0, 0] = -2.0
        >>> found = detect(assay.EdgeScores(graph, values), ["input->a0.h0.q"])
        >>> found.auroc, found.auroc_signed
        (1.0, 0.0)
    """
    valid = scores.graph.valid
    members = Circuit.from_edges(scores.graph, edges).mask[valid].numpy()
    values: Float[Tensor, " n_edges"] = scores.values[valid].double()
    numbers = {}
    for suffix, ranking in (("", values.abs().numpy()), ("_signed", values.numpy())):
        numbers[f"auroc{suffix}"] = auroc(ranking, members).value
        numbers[f"average_precision{suffix}"] = average_precision(ranking, members).value
        numbers[f"recall{suffix}"] = precision_at(ranking, members, int(members.sum())).value
    return Detected(**numbers)


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
        clipped_cpr, clipped_cmd: Both with F cut at 1.
        overshoot: The area above 1 that CPR and CMD have beside these.
        kl: KL(model || circuit) at the read position in nats, its mean over the fractions; lower is better.
        faithfulness, divergence: F, and mean KL, at each fraction of the benchmark.
        kept_edges: Edges left at each after pruning to paths from `input` to `logits`.
    """

    cpr: Bounded
    cmd: Bounded
    faithfulness: tuple[float, ...]
    kept_edges: tuple[int, ...]
    clipped_cpr: Bounded | None = field(default=None, metadata=BRIEF)
    clipped_cmd: Bounded | None = field(default=None, metadata=BRIEF)
    overshoot: Bounded | None = field(default=None, metadata=BRIEF)
    kl: Bounded | None = field(default=None, metadata=BRIEF)
    divergence: tuple[float, ...] = field(default=(), metadata=BRIEF)


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
    def cpr(self) -> Bounded | None:
        """CPR as MIB publishes it: edges by signed score."""
        return None if self.signed is None else self.signed.cpr

    @property
    def forward_equivalents(self) -> float:
        """Cost in plain forward passes over the same examples; NaN where unknown."""
        return self.seconds / self.plain_seconds if self.plain_seconds > 0 else math.nan


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """Integrals of one competitor less those of another on the same examples.

    Attributes:
        first, second: Names of their rows.
        cpr: Of CPR, as MIB publishes it: both by signed score.
        clipped_cpr: Of the same with F cut at 1.
        cmd: Of CMD, as MIB publishes it: both by |score|.
        kl: Of the mean KL over sizes: both by |score|.
    """

    first: str
    second: str
    cpr: Bounded
    clipped_cpr: Bounded | None = field(default=None, metadata=BRIEF)
    cmd: Bounded | None = field(default=None, metadata=BRIEF)
    kl: Bounded | None = field(default=None, metadata=BRIEF)


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

    drawn_by = "assay.analyses.benchmark.page:plot_benchmark"
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
            UnknownNameError: If there is none of that name.
        """
        names = [each.name for each in self.rows]
        check_name("row of the benchmark", name, names)
        return self.rows[names.index(name)]

    def difference(self, first: str, second: str, of: str = "cpr") -> Bounded | None:
        """One integral of `first` less that of `second`; None where one of them has none.

        Args:
            first: Name of a row.
            second: Name of another.
            of: `cpr`, `clipped_cpr`, `cmd` or `kl`, each by the ranking that `Difference` names.
        """
        check_name("integral", of, PAIRED)
        for each in self.differences:
            gap: Bounded | None = getattr(each, of)
            if (each.first, each.second) == (first, second):
                return gap
            if (each.first, each.second) == (second, first):
                return gap and Bounded(value=-gap.value, low=-gap.high, high=-gap.low)
        return None

    def ranking(self) -> list[BenchmarkRow]:
        """Rows by CPR, best first; those without one come last."""

        def place(row: BenchmarkRow) -> float:
            value = math.nan if row.cpr is None else row.cpr.value
            return math.inf if math.isnan(value) else -value

        return sorted(self.rows, key=place)

    def to_frame(self) -> "pd.DataFrame":
        """One row per competitor: the integrals of both rankings, cost, truth."""
        import pandas as pd

        unknown = Bounded(value=math.nan, low=math.nan, high=math.nan)
        facts = ("name", "method", "selection", "forward_equivalents", "seconds", "reason")
        table = pd.DataFrame({name: [getattr(row, name) for row in self.rows] for name in facts})
        for ranking, integral in product(("signed", "absolute"), INTEGRALS):
            found = [getattr(getattr(row, ranking), integral, None) or unknown for row in self.rows]
            for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
                table[f"{integral}_{ranking}{suffix}"] = [getattr(each, end) for each in found]
        sizes = [row.peak_memory for row in self.rows]
        table["peak_memory_mib"] = [math.nan if size is None else size / 2**20 for size in sizes]
        table["auroc"] = [math.nan if row.truth is None else row.truth.auroc for row in self.rows]
        return table

    def save(self, path: str | Path) -> Path:
        """Write the benchmark as one JSON file, whole or not at all; edge scores are not in it."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
        return write_atomically(Path(path), (text + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> "DiscoveryBenchmark":
        """Read what `save` wrote.

        Raises:
            FileFormatError: If the file is missing or holds something else.
        """
        return cls.from_dict(read_object(Path(path), "a discovery benchmark"))

"""What an audit found: everything that its page shows, and the files it is kept in."""

import json
import math
import os
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from assay.circuits import Circuit, EdgeScores, NodeScores, Scores, write_atomically
from assay.core.record import BRIEF, HIDDEN, Plotted, Record
from assay.metrics import faithfulness_curve
from assay.metrics.page import CurveData
from assay.page import text as words
from assay.page.blocks import Page
from assay.pipeline.stage import check_writable


if TYPE_CHECKING:
    import pandas as pd

    from assay.execution import CircuitRuns
    from assay.pipeline.sizing import SizedCircuit

SCHEMA = "assay-audit/1"
OPENED_EDGES = 150  # of a larger circuit, a drawing opens on so many at most
STRONGEST = 5  # heads that a sentence names
LISTED_EDGES = 600  # edges that a drawing shows at least, so that its circuit can be enlarged


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit(Plotted, Record):
    """What an audit found: everything that its page shows, finite JSON, and the circuit itself.

    Attributes:
        created: When it was made, UTC, ISO 8601.
        model: `Model.describe` with its width and parameters.
        task: The measured examples: counts, the model's own success, a few examples, notes.
        discovery: The examples that edges were scored on.
        graph: The model's graph.
        method: How the edges were scored.
        edges: The strongest edges by rank, as far as they can be drawn.
        curve: Faithfulness by size; None where the stage was left out.
        worst_case: `WorstCase.to_dict`; None where it was left out.
        calibration: `CalibrationReport.to_dict`; None where it was left out.
        distribution: Share of the output distribution kept, 1 - KL(circuit) / KL(empty circuit), measured.
        other_ablations: The first measurement with other values on the cut edges.
        excerpt: What a drawing of a large circuit opens on.
        left_out: What was not run (a stage or the key of a metric; `full`: the larger forms), and why.
        reported: The circuit's size, nodes, faithfulness, and the sweep that found it.
        measurements: `Measurement.to_dict` of each metric.
        per_head: `[layer][head]`: summed signed score of the edges that leave each head.
        provenance: How it came to be; its id is its key in a store.
        notes: Warnings that were given while it was made.
        scores: Edge scores on the discovery prompts.
        circuit: The smallest swept circuit that meets the targets.
        cached: Whether a store already held it.
    """

    record_kind = "audit"
    record_schema = SCHEMA
    drawn_by = "assay.pipeline.audit_page:plot_audit"

    created: str
    model: Mapping[str, Any]
    task: Mapping[str, Any]
    discovery: Mapping[str, Any]
    graph: Mapping[str, Any]
    method: Mapping[str, Any]
    edges: tuple[Mapping[str, Any], ...]
    curve: CurveData | None
    worst_case: Mapping[str, Any] | None
    calibration: Mapping[str, Any] | None
    distribution: Mapping[str, Any]
    other_ablations: tuple[Mapping[str, Any], ...] = ()
    excerpt: Mapping[str, Any] | None = field(default=None, metadata=BRIEF)
    left_out: Mapping[str, str]
    reported: Mapping[str, Any] = field(metadata={"key": "circuit"})
    measurements: tuple[Mapping[str, Any], ...]
    per_head: tuple[tuple[float, ...], ...]
    provenance: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=(), metadata=BRIEF)
    scores: Scores = field(default=cast(EdgeScores, None), metadata=HIDDEN)
    circuit: Circuit = field(default=cast(Circuit, None), metadata=HIDDEN)
    cached: bool = field(default=False, metadata=HIDDEN)

    def __repr__(self) -> str:
        return f"Audit({self.id}, {self.circuit!r})"

    @property
    def id(self) -> str:
        """Hash of the record behind it, and its key in a store."""
        return str(self.provenance["id"])

    def to_frame(self) -> "pd.DataFrame":
        """One row per measurement, under other ablations last: name, value, low, high, unit, n, status."""
        import pandas as pd

        columns = ["name", "value", "low", "high", "unit", "n", "status"]
        measured = (*self.measurements, self.distribution, *self.other_ablations)
        rows = [{**(each["interval"] or {}), **each} for each in measured]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def pages(self) -> list[Page]:
        """Its page, then those of its worst case and its gates, where it has them."""
        from assay.report.save import pages_of

        return pages_of(self.to_dict())

    def page(self) -> Page:
        """Its page."""
        return self.pages[0]

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write `report.html`, `audit.json`, `circuit.safetensors` and `scores.safetensors`.

        Returns:
            The path of the report.

        Raises:
            OutputError: If the directory cannot be written.
        """
        from assay.report.save import save_report

        folder = Path(directory)
        check_writable(folder, make=True)
        self.circuit.save(folder / "circuit.safetensors")
        self.scores.save(folder / "scores.safetensors")
        document = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        write_atomically(folder / "audit.json", document.encode())
        return save_report(folder / "report.html", self)  # last: `is_saved` looks for the id in it

    def is_saved(self, directory: str | os.PathLike[str]) -> bool:
        """Whether `save` has left its files in a directory, and the report there is still its."""
        names = ("circuit.safetensors", "scores.safetensors", "audit.json", "report.html")
        files = [Path(directory) / name for name in names]
        return all(map(Path.is_file, files)) and self.id.encode() in files[-1].read_bytes()


def drawn_edges(sized: "SizedCircuit", runs: "CircuitRuns") -> dict[str, Any]:
    """The strongest edges by rank: those the circuit was cut from and more, as far as can be drawn.

    The drawing of a large circuit opens on an `excerpt`: as many of the strongest edges as leave at most 150
    that are connected (more where those leave none), with their share of the circuit's attribution and what
    they keep alone.
    """
    scores, graph, circuit = sized.scores, sized.scores.graph, sized.circuit
    if isinstance(scores, NodeScores):
        return {"edges": _edges_of_nodes(scores, circuit), "excerpt": None}
    absolute, connected = sized.ranking.absolute, sized.ranking.circuit
    shown, excerpt = None, None
    if circuit.n_edges > OPENED_EDGES:
        sizes = range(1, min(sized.size, words.EDGES_LIMIT))
        size = bisect(sizes, OPENED_EDGES, key=lambda size: connected(size).n_edges)
        size += not connected(size).n_edges
        shown, shares = connected(size), [(size + 0.5) / graph.n_edges, 1.0]
        curve = faithfulness_curve(
            scores, runs.model, runs.task, runs=runs, fractions=shares, absolute=absolute
        )
        part, whole = (float(scores.values[each.mask].abs().sum()) for each in (shown, circuit))
        record = curve.points[0].to_dict()
        excerpt = {
            "size": size,
            "n_edges": shown.n_edges,
            "attribution": part / whole if whole else None,
            "faithfulness": {"value": record["value"], **record["interval"]},
        }
    values = scores.values.double()
    flat = (values.abs() if absolute else values).masked_fill(~graph.valid, -torch.inf).flatten()
    count = min(graph.n_edges, max(LISTED_EDGES, min(sized.size, words.EDGES_LIMIT)))
    order = torch.sort(flat, descending=True, stable=True).indices[:count]
    edges = []
    for rank, place in enumerate(order.tolist(), start=1):
        row, column = divmod(place, graph.n_targets)
        edge = {"source": graph.sources[row], "target": graph.targets[column], "rank": rank}
        edge |= {"score": float(scores.values[row, column]), "kept": bool(circuit.mask[row, column])}
        edges.append(edge | ({"shown": True} if shown is not None and shown.mask[row, column] else {}))
    return {"edges": edges, "excerpt": excerpt}


def _edges_of_nodes(scores: NodeScores, circuit: Circuit) -> list[dict[str, Any]]:
    """The edges of a circuit of nodes, the strongest source first, each with the score of its source."""
    graph, places = circuit.graph, circuit.mask.nonzero()
    values = scores.values[places[:, 0]]
    order = torch.sort(values.double().abs(), descending=True, stable=True).indices[: words.EDGES_LIMIT]
    edges = []
    for rank, place in enumerate(order.tolist(), start=1):
        row, column = places[place].tolist()
        ends = {"source": graph.sources[row], "target": graph.targets[column]}
        edges.append({**ends, "rank": rank, "score": float(values[place]), "kept": True})
    return edges


def heads_by_strength(audit: Audit) -> dict[str, float]:
    """Summed outgoing attribution of the circuit's heads, the strongest first, by name."""
    inside = {*audit.reported["nodes"]}
    heads = {
        name: value
        for layer, row in enumerate(audit.per_head)
        for head, value in enumerate(row)
        if (name := f"a{layer}.h{head}") in inside and math.isfinite(value)
    }
    return dict(sorted(heads.items(), key=lambda each: -abs(each[1])))

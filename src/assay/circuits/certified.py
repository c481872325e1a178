"""Circuits whose edges are decided by the vote of many random parts of the examples, and their files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from assay.circuits.circuit import Circuit
from assay.circuits.files import read_edges, write_edges
from assay.core.errors import InputError
from assay.core.plotted import Plotted
from assay.core.record import Record, laid_out, same
from assay.core.untrusted import malformed
from assay.graph import Graph


if TYPE_CHECKING:
    import pandas as pd

UNCERTIFIED = -1
_SETTINGS = same("how", "deletion", "n_examples", "resamples", "level", "correction", "required_radius")


@dataclass(frozen=True, kw_only=True, eq=False)
class CertifiedCircuit(Plotted, Record):
    """Edges of a graph included, excluded or left open by the vote of many random parts of the examples.

    Matrices are `[n_sources, n_targets]`; where the graph has no edge, `frequency` is 0, the limits NaN.

    Attributes:
        graph: The graph of the edges.
        frequency: Share of the resamples that select the edge, in [0, 1].
        low: Lower Clopper-Pearson limit of the probability that a resample selects the edge.
        high: Upper limit.
        decision: 1 included, -1 excluded, 0 abstained (or no edge).
        radius: Examples that may be inserted, deleted or replaced, together, without changing the majority
            decision on the edge; -1 where it abstains, and everywhere for `how="bootstrap"`.
        how: `deletion` or `bootstrap`.
        deletion: Probability with which an example is deleted; None for the bootstrap.
        n_examples: Examples resampled.
        resamples: Random parts drawn.
        level: Confidence of the decisions: all of them together under a correction, each by itself without.
        correction: `bonferroni`, `holm` or `none`.
        required_radius: Radius that an edge must reach to be decided at all.
        provenance: What produced it, JSON-able.
    """

    drawn_by = "assay.circuits.plots:plot_certified"
    record_layout = {
        **_SETTINGS,
        **same("n_included", "n_excluded", "n_abstained"),
        "edges": "_rows",
        "provenance": "provenance",
    }

    graph: Graph
    frequency: Float64[Tensor, "n_sources n_targets"]
    low: Float64[Tensor, "n_sources n_targets"]
    high: Float64[Tensor, "n_sources n_targets"]
    decision: Int[Tensor, "n_sources n_targets"]
    radius: Int[Tensor, "n_sources n_targets"]
    how: str
    deletion: float | None
    n_examples: int
    resamples: int
    level: float
    correction: str
    required_radius: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def circuit(self) -> Circuit:
        """The included edges."""
        return self._edges(1, "included")

    @cached_property
    def excluded(self) -> Circuit:
        """The edges decided to stay out, as a set of edges."""
        return self._edges(-1, "excluded")

    @cached_property
    def abstained(self) -> Circuit:
        """The edges left open, as a set of edges: too close to half, or short of the required radius."""
        return self._edges(0, "abstained")

    @property
    def n_included(self) -> int:
        """Number of included edges."""
        return self.circuit.n_edges

    @property
    def n_excluded(self) -> int:
        """Number of excluded edges."""
        return self.excluded.n_edges

    @property
    def n_abstained(self) -> int:
        """Number of edges left open."""
        return self.abstained.n_edges

    def certified(self, radius: int) -> Circuit:
        """The included edges that no `radius` edits of the examples can move out.

        Raises:
            InputError: For a negative radius, or for bootstrap frequencies, which certify nothing.
        """
        if self.how != "deletion":
            raise InputError("bootstrap frequencies carry no certificate; use certify(..., how='deletion')")
        if radius < 0:
            raise InputError(f"radius is {radius}; expected a number of edits, 0 or more")
        mask = (self.decision == 1) & (self.radius >= radius)
        return Circuit(
            graph=self.graph,
            mask=mask,
            provenance={**self.provenance, "decision": "included", "radius": radius},
        )

    def _edges(self, decision: int, name: str) -> Circuit:
        mask = (self.decision == decision) & self.graph.valid
        return Circuit(graph=self.graph, mask=mask, provenance={**self.provenance, "decision": name})

    def __repr__(self) -> str:
        return (
            f"CertifiedCircuit({self.how}, {self.n_included} included, {self.n_excluded} excluded, "
            f"{self.n_abstained} abstained of {self.graph.n_edges} edges, {self.resamples} resamples of "
            f"{self.n_examples} examples, level {self.level:g} {self.correction})"
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row per edge that is included or left open, most frequent first: edge to radius."""
        import pandas as pd

        columns = ("edge", "decision", "frequency", "low", "high", "radius")
        frame = pd.DataFrame(self._rows(), columns=columns)
        return frame.sort_values("frequency", ascending=False, kind="stable", ignore_index=True)

    def _rows(self) -> list[dict[str, Any]]:
        """The edges that are included or left open."""
        rows = []
        for row, column in ((self.decision >= 0) & self.graph.valid).nonzero().tolist():
            radius = int(self.radius[row, column])
            rows.append(
                {
                    "edge": self.graph.edge_name(row, column),
                    "decision": "included" if self.decision[row, column] == 1 else "abstained",
                    "frequency": float(self.frequency[row, column]),
                    "low": float(self.low[row, column]),
                    "high": float(self.high[row, column]),
                    "radius": None if radius == UNCERTIFIED else radius,
                }
            )
        return rows

    def save(self, path: str | Path) -> Path:
        """Write one `.safetensors` file with JSON metadata; the write is atomic."""
        arrays = {
            "frequency": self.frequency,
            "low": self.low,
            "high": self.high,
            "decision": self.decision.to(torch.int8),
            "radius": self.radius,
        }
        return write_edges(
            path,
            self.graph,
            arrays,
            kind="certified-circuit",
            settings=laid_out(self, _SETTINGS),
            provenance=dict(self.provenance),
        )


def load_certified(path: str | Path, graph: Graph | None = None) -> CertifiedCircuit:
    """Read what `CertifiedCircuit.save` wrote.

    Args:
        path: The file.
        graph: The graph it must belong to; default: the one it was saved with.

    Raises:
        FileFormatError: If the file is truncated, tampered with, of another kind or too new.
        GraphMismatchError: If it belongs to another graph.
    """
    stored, arrays, metadata = read_edges(path, "certified-circuit", graph)
    with malformed(path, "a certified circuit written by .save()"):
        return CertifiedCircuit(
            graph=stored,
            frequency=arrays["frequency"],
            low=arrays["low"],
            high=arrays["high"],
            decision=arrays["decision"].long(),
            radius=arrays["radius"].long(),
            **metadata["settings"],
            provenance=metadata["provenance"],
        )

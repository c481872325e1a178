"""Scores of edges, and the ways to choose a circuit from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from assay.circuits.circuit import Circuit, Level, edge_slots, slot_frame, slot_names
from assay.circuits.files import read_edges, real_numbers, write_edges
from assay.circuits.spans import Spans, check_everywhere, check_n_edges
from assay.core.errors import InputError, NonFiniteError, ShapeError
from assay.core.record import Plotted
from assay.core.untrusted import malformed
from assay.graph import Graph


if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class EdgeScores(Plotted):
    """One signed number per edge: the estimated damage of ablating it (positive: ablation hurts).

    Attributes:
        graph: The graph that is scored.
        values: `[n_sources, n_targets]`, mean over examples; 0 where the graph has no edge. With spans
            `[n_spans, n_sources, n_targets]`, the sum over the positions of each span: their sum over spans
            is the ordinary score.
        per_example: `[n_examples, n_sources, n_targets]`, or None when not asked for.
        resampled: Mean scores of the edges (row-major over `graph.valid`) in each resample of a Poisson
            bootstrap, float32 `[B, n_edges]`, or None when not asked for. Resample b weighs an example by
            `poisson_weights`, so scores of two models on the same images and seed pair up by b. Its departure
            from the mean is divided by that of its weights (docs/theory/intervals-verdicts.md). A resample is
            empty, and NaN throughout, with probability exp(-n_examples).
        provenance: What produced the scores, JSON-able.
        details: Measured facts: `completeness_gap`, `passes`, `seconds`, ...
        spans: Spans of positions that edges are scored at; None: one score per edge.

    Raises:
        ShapeError: If a tensor does not fit graph and spans.
        NonFiniteError: If a score is NaN or infinite; the message names the first such edge.
    """

    drawn_by = "assay.circuits.plots:plot_scores"

    graph: Graph
    values: Float[Tensor, "... n_sources n_targets"]
    per_example: Float[Tensor, "n_examples n_sources n_targets"] | None = field(default=None, kw_only=True)
    provenance: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    details: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    spans: Spans | None = field(default=None, kw_only=True)
    resampled: Float32[Tensor, "n_resamples n_edges"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        shape = tuple(self.slots.shape)
        if tuple(self.values.shape) != shape:
            raise ShapeError(f"values has shape {tuple(self.values.shape)}; expected {shape}")
        for name, of in (("per_example", shape), ("resampled", (self.graph.n_edges,))):
            each = getattr(self, name)
            if each is not None and (self.spans is not None or tuple(each.shape[1:]) != of):
                raise ShapeError(
                    f"{name} has shape {tuple(each.shape)}; expected [n, *{of}], and none for scores at spans"
                )
        bad = ~torch.isfinite(self.values) & self.slots
        if bool(bad.any()):
            name, value = slot_names(self.graph, self.spans, bad)[0], self.values[bad][0].item()
            raise NonFiniteError(f"score of {name} is {value}; check the model's logits and weights for NaN")
        object.__setattr__(self, "values", self.values.where(self.slots, 0))

    def __repr__(self) -> str:
        method = self.provenance.get("method", "given")
        where = "" if self.spans is None else f" at {len(self.spans)} spans"
        return f"EdgeScores({method}, {self.graph.n_edges} edges{where}, sum {self.values.sum():.4g})"

    def __getitem__(self, edge: str) -> float:
        """The score of one edge, `scores["a0.h1->a1.h1.k"]`; at spans the sum over them.

        Raises:
            UnknownNameError: For an edge that the graph does not have.
        """
        return float(self.total().values[self.graph.edge_index(edge)])

    level: ClassVar[Level] = "edge"

    @cached_property
    def slots(self) -> Bool[Tensor, "... n_sources n_targets"]:
        """True where there is an edge; with spans where there is one at the span."""
        return edge_slots(self.graph, self.spans)

    @property
    def n_items(self) -> int:
        """Number of edges, or of (edge, span) pairs, that a circuit is chosen from."""
        return int(self.slots.sum())

    def total(self) -> "EdgeScores":
        """The ordinary scores: sum over spans."""
        values = self.values if self.spans is None else self.values.sum(0)
        return replace(self, values=values, spans=None)

    def top(self, k: int, *, absolute: bool = True) -> Circuit:
        """The k edges of largest |score| (or largest signed score); with spans the k (edge, span) pairs.

        Args:
            k: Edges or pairs to keep, 1 to all.
            absolute: Rank by magnitude; False ranks by sign, as CPR does.

        Notes:
            Ties go to the smaller index (row-major over span, source, target).
        """
        check_n_edges(k, self.slots)
        mask = strongest(self.values, self.slots, k, absolute=absolute)
        return self._circuit(mask, {"selection": "top", "k": k, "absolute": absolute})

    def threshold(self, minimum: float | int, *, absolute: bool = True) -> Circuit:
        """Every edge, or (edge, span) pair, whose |score| (or signed score) is at least `minimum`."""
        if math.isnan(minimum):
            raise InputError("threshold is NaN; give a number in the unit of the scores")
        values = self.values.abs() if absolute else self.values
        mask = (values >= minimum) & self.slots
        return self._circuit(mask, {"selection": "threshold", "minimum": minimum, "absolute": absolute})

    def greedy(self, k: int, *, absolute: bool = True) -> Circuit:
        """Grow from `logits`: k times add the best edge into a node that is already in the circuit.

        The result is pruned to the edges on a path from `input` to `logits`, so it may hold fewer
        than k edges. (Hanna et al. 2024, arXiv:2403.17806.)
        """
        check_everywhere(self.spans, "greedy growth", "scores.total()")
        check_n_edges(k, self.graph.valid)
        values, graph = self.values.abs() if absolute else self.values, self.graph
        mask, opened = torch.zeros_like(graph.valid), torch.zeros(graph.n_targets, dtype=torch.bool)
        opened[-1] = True
        for _ in range(k):
            candidates = graph.valid & opened & ~mask
            if not candidates.any():
                break
            best = int(values.masked_fill(~candidates, -torch.inf).argmax())  # the first where several are
            row, column = divmod(best, graph.n_targets)
            mask[row, column] = True
            opened |= graph.feeds[:, row]
        record = {"selection": "greedy", "k": k, "absolute": absolute}
        return self._circuit(mask, record).connected(warn=False)

    def _circuit(self, mask: Bool[Tensor, "... n_sources n_targets"], selection: dict[str, Any]) -> Circuit:
        provenance = {**self.provenance, **selection}
        return Circuit(graph=self.graph, mask=mask, provenance=provenance, spans=self.spans)

    def to_frame(self) -> "pd.DataFrame":
        """One row per edge: source, target, score; strongest first. With spans the span first."""
        frame = slot_frame(self.graph, self.spans, self.slots)
        frame["score"] = self.values[self.slots].double().numpy()
        return frame.sort_values(
            "score", key=lambda score: score.abs(), ascending=False, kind="stable", ignore_index=True
        )

    def save(self, path: str | Path) -> Path:
        """Write one `.safetensors` file with JSON metadata; the write is atomic."""
        arrays = {"values": self.values, "per_example": self.per_example, "resampled": self.resampled}
        return write_edges(
            path,
            self.graph,
            {name: array for name, array in arrays.items() if array is not None},
            kind="scores",
            provenance=dict(self.provenance),
            details=dict(self.details),
            spans=self.spans,
        )


def load_scores(path: str | Path, graph: Graph | None = None) -> EdgeScores:
    """Read edge scores written by `EdgeScores.save`; errors as in `load_circuit`."""
    stored, arrays, metadata = read_edges(path, "scores", graph)
    with malformed(path, "edge scores written by .save()"):
        return EdgeScores(
            stored,
            real_numbers(arrays["values"]),
            per_example=None if (each := arrays.get("per_example")) is None else real_numbers(each),
            resampled=arrays.get("resampled"),
            provenance=dict(metadata["provenance"]),
            details=dict(metadata["details"]),
            spans=Spans.restored(metadata.get("spans")),
        )


def strongest(
    values: Float[Tensor, "*slots"], candidates: Bool[Tensor, "*slots"], k: int, *, absolute: bool
) -> Bool[Tensor, "*slots"]:
    """The k candidates of largest (absolute) value, or all of them if they are fewer; ties by index."""
    values = values.abs() if absolute else values
    ranked = values.double().masked_fill(~candidates, -torch.inf).flatten()
    order = torch.sort(ranked, descending=True, stable=True).indices[: min(k, int(candidates.sum()))]
    mask = torch.zeros(ranked.numel(), dtype=torch.bool)
    mask[order] = True
    return mask.view_as(candidates)

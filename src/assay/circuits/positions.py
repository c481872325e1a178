"""Position-aware edges: scores and circuits whose edges are kept or cut span by span.

The edge u->v at span p carries the output of u at the positions of p into the input of v at the same
positions. For the channels k and v of a head that is where keys and values stand, for q, MLPs and logits
where they read. Attention then moves information to later positions: nothing else does.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.circuits.circuit import Circuit
from assay.circuits.files import flags, read_edges, real_numbers, write_edges
from assay.circuits.paths import prune_spans
from assay.circuits.scores import EdgeScores, strongest
from assay.circuits.spans import Spans
from assay.core.errors import InputError, NonFiniteError, ShapeError
from assay.core.untrusted import malformed
from assay.graph import Graph


if TYPE_CHECKING:
    import pandas as pd


def position_slots(graph: Graph, spans: Spans) -> Bool[Tensor, "n_spans n_sources n_targets"]:
    """True where an edge exists at a span: everywhere but into logits that are not read there."""
    slots = graph.valid.expand(len(spans), -1, -1).clone()
    slots[~spans.read, :, -1] = False
    return slots


@dataclass(frozen=True, eq=False)
class PositionScores:
    """One signed number per edge and span: the estimated damage of ablating the edge there.

    Attributes:
        graph: The graph that is scored.
        spans: Names of the spans and what reaches what.
        values: `[n_spans, n_sources, n_targets]`, mean over examples of the sum over the positions of the
            span; 0 where there is no edge. Their sum over spans is the ordinary score of the edge.
        provenance: What produced the scores, JSON-able.
        details: Measured facts, as of `EdgeScores`.

    Raises:
        ShapeError: If the values do not fit graph and spans.
        NonFiniteError: If a score is NaN or infinite; the message names the first such edge.
    """

    graph: Graph
    spans: Spans
    values: Float[Tensor, "n_spans n_sources n_targets"]
    provenance: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    details: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        slots = self.slots
        if tuple(self.values.shape) != tuple(slots.shape):
            raise ShapeError(
                f"values has shape {tuple(self.values.shape)}; these spans and this graph need "
                f"{tuple(slots.shape)}"
            )
        bad = ~torch.isfinite(self.values) & slots
        if bool(bad.any()):
            span, row, column = bad.nonzero()[0].tolist()
            raise NonFiniteError(
                f"score of {self.graph.edge_name(row, column)}@{self.spans.names[span]} is "
                f"{self.values[span, row, column].item()}; check the model's logits and weights for NaN"
            )
        object.__setattr__(self, "values", self.values.where(slots, 0))

    def __repr__(self) -> str:
        method = self.provenance.get("method", "given")
        where = f"{self.graph.n_edges} edges at {len(self.spans)} spans"
        return f"PositionScores({method}, {where}, {self.n_slots} pairs)"

    @cached_property
    def slots(self) -> Bool[Tensor, "n_spans n_sources n_targets"]:
        """True where an edge exists at a span."""
        return position_slots(self.graph, self.spans)

    @cached_property
    def n_slots(self) -> int:
        """Number of (edge, span) pairs."""
        return int(self.slots.sum())

    def total(self) -> EdgeScores:
        """The ordinary scores: sum over spans."""
        return EdgeScores(
            self.graph, self.values.sum(0), provenance=dict(self.provenance), details=dict(self.details)
        )

    def at(self, span: str) -> EdgeScores:
        """The scores of the edges at one span."""
        return EdgeScores(
            self.graph, self.values[self.spans.index(span)], provenance={**self.provenance, "span": span}
        )

    def top(self, k: int, *, absolute: bool = True) -> "PositionCircuit":
        """The k (edge, span) pairs of largest |score| (or largest signed score).

        Args:
            k: Pairs to keep, 1 to `n_slots`.
            absolute: Rank by magnitude; False ranks by sign.

        Notes:
            Ties go to the smaller index (row-major over span, source, target).
        """
        if isinstance(k, bool) or not 1 <= k <= self.n_slots:
            raise InputError(
                f"cannot keep {k!r} edges: there are {self.n_slots} pairs of an edge and a span; choose k "
                f"from 1 to {self.n_slots}"
            )
        mask = strongest(self.values, self.slots, k, absolute=absolute)
        return self._circuit(mask, {"selection": "top", "k": k, "absolute": absolute})

    def threshold(self, minimum: float | int, *, absolute: bool = True) -> "PositionCircuit":
        """Every (edge, span) pair whose |score| (or signed score) is at least `minimum`."""
        if math.isnan(minimum):
            raise InputError("threshold is NaN; give a number in the unit of the scores")
        values = self.values.abs() if absolute else self.values
        mask = (values >= minimum) & self.slots
        return self._circuit(mask, {"selection": "threshold", "minimum": minimum, "absolute": absolute})

    def _circuit(self, mask: Tensor, selection: dict[str, Any]) -> "PositionCircuit":
        return PositionCircuit(
            graph=self.graph, spans=self.spans, mask=mask, provenance={**self.provenance, **selection}
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row per edge and span: span, source, target, score; strongest first."""
        frame = _frame(self.graph, self.spans, self.slots)
        frame["score"] = self.values[self.slots].double().numpy()
        return frame.sort_values(
            "score", key=lambda score: score.abs(), ascending=False, kind="stable", ignore_index=True
        )

    def save(self, path: str | Path) -> Path:
        """Write one `.safetensors` file with JSON metadata; the write is atomic."""
        return write_edges(
            path,
            self.graph,
            {"values": self.values},
            kind="position scores",
            spans=self.spans.describe(),
            provenance=dict(self.provenance),
            details=dict(self.details),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionCircuit:
    """Edges kept at some spans; at all others they are ablated when the circuit runs.

    Attributes:
        graph: The graph the mask indexes.
        spans: Names of the spans and what reaches what.
        mask: `[n_spans, n_sources, n_targets]`, true = keep; false where there is no edge.
        provenance: What produced it, JSON-able.

    Raises:
        ShapeError: If the mask does not fit graph and spans.
        InputError: If the mask keeps what is not an edge.
    """

    graph: Graph
    spans: Spans
    mask: Bool[Tensor, "n_spans n_sources n_targets"]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        slots = position_slots(self.graph, self.spans)
        if tuple(self.mask.shape) != tuple(slots.shape) or self.mask.dtype != torch.bool:
            raise ShapeError(
                f"mask is {self.mask.dtype} {tuple(self.mask.shape)}; these spans and this graph need a "
                f"torch.bool mask of shape {tuple(slots.shape)}"
            )
        outside = self.mask & ~slots
        if bool(outside.any()):
            span, row, column = outside.nonzero()[0].tolist()
            raise InputError(
                f"mask keeps {self._name(span, row, column)}, which is not an edge there; start from "
                "position_slots()"
            )

    # ---- making ---------------------------------------------------------------------------------

    @classmethod
    def full(cls, graph: Graph, spans: Spans) -> "PositionCircuit":
        """Every edge kept everywhere: the model itself."""
        return cls(graph=graph, spans=spans, mask=position_slots(graph, spans))

    @classmethod
    def empty(cls, graph: Graph, spans: Spans) -> "PositionCircuit":
        """Every edge ablated everywhere."""
        return cls(graph=graph, spans=spans, mask=torch.zeros_like(position_slots(graph, spans)))

    @classmethod
    def everywhere(cls, circuit: Circuit, spans: Spans) -> "PositionCircuit":
        """The edges of an ordinary circuit, kept at every span."""
        mask = position_slots(circuit.graph, spans) & circuit.mask
        return cls(graph=circuit.graph, spans=spans, mask=mask, provenance=dict(circuit.provenance))

    @classmethod
    def from_edges(cls, graph: Graph, spans: Spans, edges: Iterable[str]) -> "PositionCircuit":
        """The circuit of named edges, `a0.h1->a2.h0.q@subject`; without `@` the edge is kept at every span.

        Raises:
            UnknownNameError: For the first edge or span that there is not.
            InputError: For an edge into `logits` at a span where they are not read.
        """
        slots = position_slots(graph, spans)
        mask = torch.zeros_like(slots)
        for edge in edges:
            name, at, span = edge.partition("@")
            row, column = graph.edge_index(name)
            if not at:
                mask[:, row, column] = slots[:, row, column]
                continue
            number = spans.index(span)
            if not bool(slots[number, row, column]):
                raise InputError(f"edge {edge!r}: the logits are not read in span {span!r}")
            mask[number, row, column] = True
        return cls(graph=graph, spans=spans, mask=mask)

    # ---- looking --------------------------------------------------------------------------------

    def _name(self, span: int, row: int, column: int) -> str:
        return f"{self.graph.edge_name(row, column)}@{self.spans.names[span]}"

    @cached_property
    def n_edges(self) -> int:
        """Number of kept (edge, span) pairs."""
        return int(self.mask.sum())

    def edges(self) -> list[str]:
        """Names of the kept pairs, `a0.h1->a2.h0.q@subject`, span by span."""
        return [self._name(*index) for index in self.mask.nonzero().tolist()]

    def edge_circuit(self) -> Circuit:
        """The ordinary circuit of the edges that are kept at some span."""
        provenance = {**self.provenance, "union_of": self.hash}
        return Circuit(graph=self.graph, mask=self.mask.any(0), provenance=provenance)

    def at(self, span: str) -> Circuit:
        """The edges kept at one span."""
        return Circuit(
            graph=self.graph,
            mask=self.mask[self.spans.index(span)],
            provenance={"span": span, "part_of": self.hash},
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row per kept pair: span, source, target."""
        return _frame(self.graph, self.spans, self.mask)

    @cached_property
    def hash(self) -> str:
        """Identity of graph, spans and mask (16 hex digits)."""
        digest = hashlib.sha256(self.graph.fingerprint.encode())
        digest.update(repr(sorted(self.spans.describe().items())).encode())
        digest.update(self.mask.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        n_slots = int(position_slots(self.graph, self.spans).sum())
        return (
            f"PositionCircuit({self.n_edges} of {n_slots} edges at {len(self.spans)} spans, "
            f"{self.n_edges / n_slots:.1%}, hash {self.hash})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionCircuit) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def __invert__(self) -> "PositionCircuit":
        slots = position_slots(self.graph, self.spans)
        return replace(self, mask=slots & ~self.mask, provenance={"complement_of": self.hash})

    def emptied(self) -> "PositionCircuit":
        """Nothing kept anywhere."""
        return PositionCircuit.empty(self.graph, self.spans)

    def connected(self) -> "PositionCircuit":
        """Only the pairs on a kept path from `input` to `logits` through spans; no logit changes under
        resampling.

        A head that reads k or v at one span writes at every span that `reach` allows; everything else stays
        where it is.
        """
        return replace(self, mask=prune_spans(self.graph, self.spans.reach, self.mask))

    def save(self, path: str | Path) -> Path:
        """Write one `.safetensors` file with JSON metadata; the write is atomic."""
        return write_edges(
            path,
            self.graph,
            {"mask": self.mask},
            kind="position circuit",
            spans=self.spans.describe(),
            provenance=dict(self.provenance),
        )


def load_position_scores(path: str | Path, graph: Graph | None = None) -> PositionScores:
    """Read scores written by `PositionScores.save`; errors as in `load_circuit`."""
    stored, arrays, metadata = read_edges(path, "position scores", graph)
    with malformed(path, "position scores written by .save()"):
        return PositionScores(
            stored,
            Spans.restored(metadata["spans"]),
            real_numbers(arrays["values"]),
            provenance=dict(metadata["provenance"]),
            details=dict(metadata["details"]),
        )


def load_position_circuit(path: str | Path, graph: Graph | None = None) -> PositionCircuit:
    """Read a circuit written by `PositionCircuit.save`; errors as in `load_circuit`."""
    stored, arrays, metadata = read_edges(path, "position circuit", graph)
    with malformed(path, "a position circuit written by .save()"):
        return PositionCircuit(
            graph=stored,
            spans=Spans.restored(metadata["spans"]),
            mask=flags(arrays["mask"]),
            provenance=dict(metadata["provenance"]),
        )


def _frame(graph: Graph, spans: Spans, mask: Bool[Tensor, "n_spans n_sources n_targets"]) -> "pd.DataFrame":
    import pandas as pd

    numbers, rows, columns = (index.tolist() for index in mask.nonzero(as_tuple=True))
    return pd.DataFrame(
        {
            "span": [spans.names[number] for number in numbers],
            "source": [graph.sources[row] for row in rows],
            "target": [graph.targets[column] for column in columns],
        }
    )

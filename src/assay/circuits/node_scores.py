"""Scores of nodes and of neurons, and the ways to choose a circuit from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Bool, Float
from torch import Tensor

from assay.circuits.circuit import Circuit, Level, cell_frame, level_of
from assay.circuits.files import read_edges, real_numbers, write_edges
from assay.circuits.scores import EdgeScores, strongest
from assay.circuits.spans import check_n_edges
from assay.core.errors import InputError, NonFiniteError, ShapeError
from assay.core.record import Plotted
from assay.core.untrusted import malformed
from assay.graph import Graph


if TYPE_CHECKING:
    import pandas as pd

KIND = "node scores"


@dataclass(frozen=True, eq=False)
class NodeScores(Plotted):
    """One signed number per node, or per neuron: the estimated damage of ablating it (positive: it hurts).

    A node is a source: `input`, a head or an MLP. A neuron is one dimension of a source's output in the
    residual stream, as in EAP-IG and MIB, not a hidden unit of an MLP.

    Attributes:
        graph: The graph that is scored.
        values: `[n_sources]`, or `[n_sources, d_model]` for neurons; mean over examples. NaN: not scored, and
            kept by every selection.
        per_example: Those of each example, or None when not asked for.
        provenance: What produced the scores, JSON-able.
        details: Measured facts: `completeness_gap`, `passes`, `seconds`, ...

    Raises:
        ShapeError: If a tensor does not fit the graph.
        NonFiniteError: If a score is infinite.

    References:
        Hanna et al. (2024), arXiv:2403.17806; Mueller et al. (2025), arXiv:2504.13151.
    """

    drawn_by = "assay.circuits.plots:plot_node_scores"

    graph: Graph
    values: Float[Tensor, "n_sources ..."]
    per_example: Float[Tensor, "n_examples n_sources ..."] | None = field(default=None, kw_only=True)
    provenance: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    details: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        n, shape = self.graph.n_sources, tuple(self.values.shape)
        if self.values.ndim not in (1, 2) or shape[0] != n:
            raise ShapeError(f"values has shape {shape}; expected ({n},), or ({n}, d_model) for neurons")
        if self.per_example is not None and tuple(self.per_example.shape[1:]) != shape:
            raise ShapeError(f"per_example has shape {tuple(self.per_example.shape)}; expected [n, *{shape}]")
        if bool((infinite := self.values.isinf()).any()):
            name = self.graph.sources[int(infinite.nonzero()[0, 0])]
            raise NonFiniteError(f"a score of {name} is infinite; check the model's logits and weights")

    @classmethod
    def of(cls, scores: "Scores") -> "NodeScores":
        """Scores of the nodes: sums over their outgoing edges, or over their neurons."""
        if isinstance(scores, EdgeScores):
            scores_of_node, each = scores.total().values.sum(-1), scores.per_example
        else:
            scores_of_node, each = scores.values.reshape(len(scores.values), -1).sum(1), scores.per_example
        if each is not None and each.ndim == 3:
            each = each.sum(-1)
        how: dict[str, Any] = {"provenance": scores.provenance, "details": scores.details}
        return cls(scores.graph, scores_of_node, per_example=each, **how)

    def __repr__(self) -> str:
        method = self.provenance.get("method", "given")
        return f"NodeScores({method}, {self.n_items} {self.level}s, sum {self.values.nansum():.4g})"

    def __getitem__(self, node: str) -> float:
        """The score of one node, `scores["a0.h1"]`; of its neurons the sum."""
        return float(self.values[self.graph.source_index(node)].sum())

    @property
    def level(self) -> Level:
        """What is scored: `node` or `neuron`."""
        return level_of(self.values)

    @cached_property
    def slots(self) -> Bool[Tensor, "n_sources *d_model"]:
        """True where there is a score."""
        return ~self.values.isnan()

    @property
    def n_items(self) -> int:
        """Number of nodes or neurons that have a score."""
        return int(self.slots.sum())

    def top(self, k: int, *, absolute: bool = True) -> Circuit:
        """The k nodes or neurons of largest |score| (or largest signed score), and those without a score.

        Args:
            k: Nodes or neurons to keep, 1 to all that have a score.
            absolute: Rank by magnitude; False ranks by sign, as CPR does.

        Notes:
            Ties go to the smaller index (row-major over source, dimension).
        """
        check_n_edges(k, self.slots, level=self.level)
        cells = strongest(self.values, self.slots, k, absolute=absolute)
        return self._circuit(cells, {"selection": "top", "k": k, "absolute": absolute})

    def threshold(self, minimum: float | int, *, absolute: bool = True) -> Circuit:
        """Every node or neuron whose |score| (or signed score) is at least `minimum`, or that has none."""
        if math.isnan(minimum):
            raise InputError("threshold is NaN; give a number in the unit of the scores")
        values = self.values.abs() if absolute else self.values
        record = {"selection": "threshold", "minimum": minimum, "absolute": absolute}
        return self._circuit(values >= minimum, record)

    def _circuit(self, cells: Bool[Tensor, "n_sources *d_model"], selection: dict[str, Any]) -> Circuit:
        return Circuit.from_cells(self.graph, cells | ~self.slots, {**self.provenance, **selection})

    def to_frame(self) -> "pd.DataFrame":
        """One row per scored node or neuron: node, (neuron,) score; strongest first."""
        frame = cell_frame(self.graph, self.slots).assign(score=self.values[self.slots].double().numpy())
        return frame.sort_values("score", key=abs, ascending=False, kind="stable", ignore_index=True)

    def save(self, path: str | Path) -> Path:
        """Write one `.safetensors` file with JSON metadata; the write is atomic."""
        arrays = {"values": self.values, "per_example": self.per_example}
        return write_edges(
            path,
            self.graph,
            {name: array for name, array in arrays.items() if array is not None},
            kind=KIND,
            provenance=dict(self.provenance),
            details=dict(self.details),
        )


Scores = EdgeScores | NodeScores


def load_node_scores(path: str | Path, graph: Graph | None = None) -> NodeScores:
    """Read scores written by `NodeScores.save`; errors as in `load_circuit`."""
    stored, arrays, metadata = read_edges(path, KIND, graph)
    with malformed(path, "scores of nodes written by .save()"):
        return NodeScores(
            stored,
            real_numbers(arrays["values"]),
            per_example=None if (each := arrays.get("per_example")) is None else real_numbers(each),
            provenance=dict(metadata["provenance"]),
            details=dict(metadata["details"]),
        )

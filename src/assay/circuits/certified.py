"""Circuits whose edges are decided by the vote of many random parts of the examples, and their files.

A random part is a row of weights over the examples, 0 where one is deleted. The scores of all parts are one
matrix product with the scores per example, so no example is run again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.stats
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from assay.circuits.circuit import Circuit
from assay.circuits.files import read_edges, write_edges
from assay.circuits.scores import EdgeScores
from assay.circuits.slots import check_everywhere, check_n_edges
from assay.core.errors import InputError, check_fraction, check_least
from assay.core.plotted import Plotted
from assay.core.random import stream
from assay.core.record import Record, laid_out, same
from assay.core.untrusted import malformed
from assay.graph import Graph


if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 1000
DELETION = 0.6
UNCERTIFIED = -1  # radius of an edge without a decision
SHARED_BASELINES = ("mean", "mean-positional", "noise")  # ablated values taken from the whole data set
_CELLS = 1 << 23  # parts times edges held at a time: 32 MB in float32
_SETTINGS = same("deletion", "n_examples", "resamples", "level", "required_radius")


@dataclass(frozen=True, kw_only=True, eq=False)
class CertifiedCircuit(Plotted, Record):
    """Edges of a graph included, excluded or left open by the vote of many random parts of the examples.

    Matrices are `[n_sources, n_targets]`; where the graph has no edge, `frequency` is 0, the limits NaN.

    Attributes:
        graph: The graph of the edges.
        frequency: Share of the parts that select the edge, in [0, 1].
        low: Lower Clopper-Pearson limit of the probability that a part selects the edge.
        high: Upper limit.
        decision: 1 included, -1 excluded, 0 abstained (or no edge).
        radius: Examples that may be inserted, deleted or replaced, together, without changing the majority
            decision on the edge; -1 where it abstains.
        deletion: Probability with which an example is deleted.
        n_examples: Examples resampled.
        resamples: Random parts drawn.
        level: Confidence of all decisions together.
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
    deletion: float
    n_examples: int
    resamples: int
    level: float
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
            InputError: For a negative radius.
        """
        check_least(0, radius=radius)
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
            f"CertifiedCircuit({self.n_included} included, {self.n_excluded} excluded, "
            f"{self.n_abstained} abstained of {self.graph.n_edges} edges, {self.resamples} parts of "
            f"{self.n_examples} examples, level {self.level:g})"
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


def certify(
    scores: EdgeScores,
    k: int,
    *,
    deletion: float | int = DELETION,
    resamples: int = RESAMPLES,
    level: float | int = 0.95,
    radius: int = 0,
    absolute: bool = True,
    seed: int = 0,
) -> CertifiedCircuit:
    r"""Which edges stay in, or out of, a circuit of k edges whatever happens to a few examples.

    Each resample deletes every example independently with probability `deletion` and selects k edges from the
    mean score over what is left. An edge has the probability mu of being selected. Its decision is

    - included where the lower Clopper-Pearson limit of mu exceeds 1/2 (beyond what `radius` edits can take),
    - excluded where the upper limit is below 1/2,
    - abstained otherwise.

    Included and excluded edges hold for every data set within their `radius` in edit distance:

        radius = floor(ln(3/2 - mu_low) / ln deletion),       excluded edges: 1 - mu_high for mu_low.

    *Proof.* Let D' come from D by r edits, and let C be what both share: d <= r examples of D and i <= r of
    D' are outside it. A random part of D holds none of those d with probability p^d, and is then a random
    part of C; likewise p^i for D'. So the probabilities mu, mu', mu_C of selecting an edge obey
    mu <= p^d mu_C + 1 - p^d and mu' >= p^i mu_C, hence mu' >= p^(i-d) (mu - 1 + p^d). Over 0 <= d, i <= r
    that is smallest at d = i = r (all edits replacements): mu' >= mu - (1 - p^r). The same for "not selected"
    gives mu' <= mu + (1 - p^r). Hence mu > 1/2 + (1 - p^r) keeps mu' above 1/2; solve for r.

    Args:
        scores: With scores per example: `discover(..., per_example=True)`.
        k: Edges that each part selects, 1 to n_edges; ties go to the smaller edge index.
        deletion: Probability p of deleting an example, in (0, 1). The largest radius possible is
            floor(ln(1/2) / ln p): 0 below p = 1/2, 1 at 0.6, 6 at 0.9. A larger p votes on smaller parts, so
            fewer edges reach a decision.
        resamples: Random parts, at least 1; 1000 as published.
        level: Confidence of all decisions and radii together, in (0, 1): each limit holds at
            1 - (1 - level) / n_edges (Bonferroni).
        radius: Edits that a decision must survive; edges that cannot promise it abstain. 0: any majority.
        absolute: Rank by magnitude; False ranks by sign.
        seed: Root of the random parts.

    Returns:
        Frequencies, limits, decisions and radii per edge, and the circuit of the included edges, which
        are fewer than 2k, mostly fewer than k, not always connected (`.circuit.connected()`).

    Raises:
        InputError: Without scores per example, without examples, for arguments out of range, or where no
            number of agreeing parts could reach the radius asked for.

    Notes:
        The promise is about this procedure on edited data: the vote of random parts of the edited examples
        comes out the same way. It is not about the circuit's faithfulness, and not about scores that use the
        other examples (ablations `mean`, `mean-positional` and `noise`; learned masks): there an edit changes
        the other examples' scores too. `provenance["assumes"]` states it where the ablation is known.
        An empty part selects nothing. No forward passes: one matrix product per call.

    References:
        Anani et al. (2026), arXiv:2602.22968 (certified circuits); Huang et al. (2023), arXiv:2302.01757
        (randomised deletion); Clopper and Pearson (1934), doi:10.1093/biomet/26.4.404.

    Example:
        >>> graph = build_graph(1, 1)
        >>> per_example = torch.zeros(12, graph.n_sources, graph.n_targets)
        >>> per_example[:, 0, 3] = 1.0  # input->m0, the same on every example
        >>> scores = EdgeScores(graph, per_example.mean(0), per_example=per_example)
        >>> certify(scores, 1, radius=1).circuit.edges()
        ['input->m0']
    """
    check_everywhere(scores.spans, "certify", "scores.total()")
    check_fraction(level=level, deletion=deletion)
    check_least(1, resamples=resamples)
    check_least(0, radius=radius)
    check_n_edges(scores.graph, k)
    table = _edge_table(scores)
    kept = stream(seed, "resampled-selection/deletion").random((resamples, len(table))) >= deletion
    counts = top_counts(table, torch.from_numpy(kept), k, absolute=absolute)
    votes = decide(counts.numpy(), resamples, level=level, deletion=deletion, radius=radius)
    if radius > votes.largest_radius:
        raise InputError(
            f"radius is {radius}, but even {resamples} agreeing parts certify at most {votes.largest_radius} "
            f"edits at deletion {deletion} with this level and number of edges; use a smaller radius, more "
            "resamples or a larger deletion"
        )
    valid = scores.graph.valid

    def spread(values: Tensor, outside: float | int) -> Tensor:
        matrix = torch.full(valid.shape, outside, dtype=values.dtype)
        matrix[valid] = values
        return matrix

    return CertifiedCircuit(
        graph=scores.graph,
        frequency=spread(counts.double() / resamples, 0.0),
        low=spread(torch.from_numpy(votes.low), math.nan),
        high=spread(torch.from_numpy(votes.high), math.nan),
        decision=spread(torch.from_numpy(votes.decision), 0),
        radius=spread(torch.from_numpy(votes.radius), UNCERTIFIED),
        deletion=deletion,
        n_examples=len(table),
        resamples=resamples,
        level=level,
        required_radius=radius,
        provenance={
            **scores.provenance,
            "selection": "certified",
            "k": k,
            "absolute": absolute,
            "deletion": deletion,
            "resamples": resamples,
            "level": level,
            "radius": radius,
            "seed": seed,
            **_assumption(scores),
        },
    )


def _edge_table(scores: EdgeScores) -> Float[Tensor, "N E"]:
    """Scores per example of the graph's edges, in edge order, in the dtype they have (at least float32)."""
    if scores.per_example is None:
        raise InputError(
            "certify needs a score per example, but these scores hold only their mean; make them with "
            "discover(..., per_example=True)"
        )
    table = scores.per_example[:, scores.graph.valid]
    table = table if table.dtype in (torch.float32, torch.float64) else table.float()
    if len(table) == 0:
        raise InputError("certify needs at least 1 example, but these scores have none")
    if not bool(table.isfinite().all()):
        example, edge = (~table.isfinite()).nonzero()[0].tolist()
        row, column = scores.graph.valid.nonzero()[edge].tolist()
        raise InputError(
            f"the score of {scores.graph.edge_name(row, column)} on example {example} is "
            f"{table[example, edge].item()}, but certify needs finite scores"
        )
    return table


def _assumption(scores: EdgeScores) -> dict[str, str]:
    """What the radii take for granted and these scores break."""
    ablation = scores.provenance.get("ablation")
    if scores.provenance.get("method") == "consensus":
        what, they = "the weight of each method keeps its value", "it"
    elif ablation in SHARED_BASELINES:
        what, they = f"replaced values of ablation {ablation!r} keep their values", "they"
    else:
        return {}
    return {
        "assumes": f"{what} from all examples; if recomputed after an edit {they} would move, and the radii "
        "would not be certified"
    }


def top_counts(
    table: Float[Tensor, "N E"], kept: Bool[Tensor, "B N"], k: int, *, absolute: bool
) -> Int[Tensor, " E"]:
    """In how many parts each edge is among the k of largest (absolute) mean.

    The ranking by mean is that by sum. Ties at the cut go to the smaller edge index, as in `EdgeScores.top`.
    An empty part has no mean and selects nothing.
    """
    weights = kept[kept.any(1)].to(table.dtype)
    counts = torch.zeros(table.shape[1], dtype=torch.int64)
    for rows in weights.split(max(1, _CELLS // table.shape[1])):
        values = rows @ table
        values = values.abs_() if absolute else values
        cut = values.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
        members = values >= cut
        tied = members.sum(1) > k
        if bool(tied.any()):
            some, at = values[tied], cut[tied]
            equal = some == at
            room = k - (some > at).sum(1, keepdim=True)
            members[tied] = (some > at) | (equal & (equal.cumsum(1) <= room))
        counts += members.sum(0)
    return counts


class Votes(NamedTuple):
    """What a count of selections means, per edge."""

    low: Float64[np.ndarray, " E"]
    high: Float64[np.ndarray, " E"]
    decision: Int64[np.ndarray, " E"]
    radius: Int64[np.ndarray, " E"]
    largest_radius: int


def decide(
    counts: Int64[np.ndarray, " E"], n: int, *, level: float, deletion: float, radius: int = 0
) -> Votes:
    """Limits, decisions and radii of counts out of n, read off a table of the n + 1 possible counts."""
    from assay.stats.inclusion import edit_radius

    failure = (1 - level) / max(1, len(counts))
    count = np.arange(n + 1)
    low, high = np.zeros(n + 1), np.ones(n + 1)
    low[1:] = scipy.stats.beta.ppf(failure / 2, count[1:], n - count[1:] + 1)
    high[:-1] = scipy.stats.beta.isf(failure / 2, count[:-1] + 1, n - count[:-1])
    margin = 1 - deletion**radius
    decision = (low > 0.5 + margin).astype(np.int64) - (high < 0.5 - margin).astype(np.int64)
    edits = [edit_radius(float(sure), deletion) for sure in np.maximum(low, 1 - high)]
    reached = np.array([UNCERTIFIED if each is None else each for each in edits])
    return Votes(
        low=low[counts],
        high=high[counts],
        decision=decision[counts],
        radius=np.where(decision != 0, reached, UNCERTIFIED)[counts],
        largest_radius=int(reached.max()),
    )

"""Circuits whose edges are decided by the vote of many random parts of the examples.

A random part is a row of weights over the examples, 0 where one is deleted. The scores of all parts are one
matrix product with the scores per example, so no example is run again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from assay.circuits.circuit import Circuit
from assay.circuits.scores import EdgeScores
from assay.circuits.spans import check_everywhere, check_n_edges
from assay.core.errors import InputError, check_fraction, check_least
from assay.core.random import stream
from assay.core.record import Plotted
from assay.graph import Graph


if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 1000
DELETION = 0.6
UNCERTIFIED = -1  # radius of an edge without a decision
SHARED_BASELINES = ("mean", "mean-positional", "noise")  # ablated values taken from the whole data set
_CELLS = 1 << 23  # parts times edges held at a time: 32 MB in float32
_MATRICES = ("decision", "frequency", "low", "high", "radius")


@dataclass(frozen=True, kw_only=True, eq=False)
class CertifiedCircuit(Plotted):
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

    @property
    def circuit(self) -> Circuit:
        """The included edges."""
        return self._edges(1, {"decision": "included"})

    @property
    def excluded(self) -> Circuit:
        """The edges decided to stay out, as a set of edges."""
        return self._edges(-1, {"decision": "excluded"})

    @property
    def abstained(self) -> Circuit:
        """The edges left open, as a set of edges: too close to half, or short of the required radius."""
        return self._edges(0, {"decision": "abstained"})

    def certified(self, radius: int) -> Circuit:
        """The included edges that no `radius` edits of the examples can move out."""
        return self._edges(1, {"decision": "included", "radius": radius}, radius)

    def _edges(self, decision: int, record: Mapping[str, Any], least: int = UNCERTIFIED) -> Circuit:
        mask = (self.decision == decision) & (self.radius >= least) & self.graph.valid
        return Circuit(graph=self.graph, mask=mask, provenance={**self.provenance, **record})

    def __repr__(self) -> str:
        return (
            f"CertifiedCircuit({self.circuit.n_edges} included, {self.excluded.n_edges} excluded, "
            f"{self.abstained.n_edges} abstained of {self.graph.n_edges} edges, {self.resamples} parts of "
            f"{self.n_examples} examples, level {self.level:g})"
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row per edge that is included or left open, most frequent first: edge to radius."""
        import pandas as pd

        rows, columns = ((self.decision >= 0) & self.graph.valid).nonzero(as_tuple=True)
        names = [self.graph.edge_name(*edge) for edge in zip(rows.tolist(), columns.tolist(), strict=True)]
        values = {name: getattr(self, name)[rows, columns].numpy() for name in _MATRICES}
        frame = pd.DataFrame({"edge": names} | values)
        frame["decision"] = np.where(frame["decision"] == 1, "included", "abstained")
        frame["radius"] = frame["radius"].where(frame["radius"] != UNCERTIFIED).astype("Int64")
        return frame.sort_values("frequency", ascending=False, kind="stable", ignore_index=True)


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
    check_n_edges(k, scores.graph.valid)
    valid = scores.graph.valid
    if scores.per_example is None or not len(scores.per_example):
        raise InputError(
            "certify needs a score per example, but these scores hold none; make them with "
            "discover(..., per_example=True)"
        )
    table = scores.per_example[:, valid]  # in edge order
    if not bool(table.isfinite().all()):
        raise InputError("certify needs finite scores per example, but some are NaN or infinite")
    table = table if table.dtype == torch.float64 else table.float()
    kept = stream(seed, "resampled-selection/deletion").random((resamples, len(table))) >= deletion
    counts = top_counts(table, torch.from_numpy(kept), k, absolute=absolute)
    votes = decide(resamples, int(valid.sum()), level=level, deletion=deletion, radius=radius)
    if radius and not votes["decision"].any():
        raise InputError(
            f"radius is {radius}, but not even {resamples} agreeing parts certify so many edits at deletion "
            f"{deletion} with this level and number of edges; use a smaller radius, more resamples or a "
            "larger deletion"
        )
    votes["frequency"] = np.arange(resamples + 1) / resamples
    outside = {"frequency": 0.0, "low": math.nan, "high": math.nan, "decision": 0, "radius": UNCERTIFIED}
    matrices: dict[str, Any] = {}
    for name in _MATRICES:
        of_edges = torch.from_numpy(votes[name])[counts]
        matrices[name] = torch.full(valid.shape, outside[name], dtype=of_edges.dtype)
        matrices[name][valid] = of_edges
    settings: dict[str, Any] = {"deletion": deletion, "resamples": resamples, "level": level}
    record = {
        "selection": "certified",
        "k": k,
        "absolute": absolute,
        **settings,
        "radius": radius,
        "seed": seed,
    }
    ablation = str(scores.provenance.get("ablation"))
    if ablation in SHARED_BASELINES:  # not those of a reference
        record["assumes"] = (
            f"replaced values of ablation {ablation!r} keep their values from all examples; if recomputed "
            "after an edit they would move, and the radii would not be certified"
        )
    return CertifiedCircuit(
        graph=scores.graph,
        **matrices,
        **settings,
        n_examples=len(table),
        required_radius=radius,
        provenance={**scores.provenance, **record},
    )


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
        above, equal = values > cut, values == cut
        room = k - above.sum(1, keepdim=True)
        counts += (above | (equal & (equal.cumsum(1) <= room))).sum(0)
    return counts


def decide(
    n: int, n_edges: int, *, level: float, deletion: float, radius: int = 0
) -> dict[str, Float64[np.ndarray, " counts"] | Int[np.ndarray, " counts"]]:
    """Limits, decision and radius of an edge by the number of parts, 0 to n, that select it."""
    from assay.stats.certificates import edit_radius

    failure = (1 - level) / max(1, n_edges)
    count = np.arange(n + 1)
    low, high = np.zeros(n + 1), np.ones(n + 1)
    low[1:] = scipy.stats.beta.ppf(failure / 2, count[1:], n - count[1:] + 1)
    high[:-1] = scipy.stats.beta.isf(failure / 2, count[:-1] + 1, n - count[:-1])
    margin = 1 - deletion**radius
    decision = (low > 0.5 + margin).astype(np.int64) - (high < 0.5 - margin).astype(np.int64)
    edits = [edit_radius(float(sure), deletion) for sure in np.maximum(low, 1 - high)]
    reached = np.array([UNCERTIFIED if each is None else each for each in edits])
    return {
        "low": low,
        "high": high,
        "decision": decision,
        "radius": np.where(decision != 0, reached, UNCERTIFIED),
    }

"""Circuits whose edges are decided by the vote of many random parts of the examples.

A random part is a row of weights over the examples, 0 where one is deleted. The scores of all parts are one
matrix product with the scores per example, so no example is run again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.circuits.circuit import Circuit, slot_names
from assay.circuits.scores import EdgeScores
from assay.circuits.spans import check_everywhere, check_n_edges
from assay.core.errors import InputError, check_fraction, check_least, check_name
from assay.core.random import stream
from assay.core.record import Plotted
from assay.graph import Graph


if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 1000
DELETION = 0.6
DECISIONS = ("included", "excluded", "abstained")
SHARED_BASELINES = ("mean", "mean-positional")  # ablated values taken from the whole data set
_CELLS = 1 << 23  # parts times edges held at a time: 32 MB in float32


@dataclass(frozen=True, kw_only=True, eq=False)
class CertifiedCircuit(Plotted):
    """Edges of a graph included, excluded or left open by the vote of many random parts of the examples.

    Attributes:
        graph: The graph of the edges.
        edges: One row per edge, in the order of the graph: `edge`; `decision`, one of `DECISIONS`;
            `frequency`, the share of the parts that select the edge, in [0, 1]; `low` and `high`, the
            Clopper-Pearson limits of the probability that a part selects it; `radius`, the examples that may
            be inserted, deleted or replaced, together, without changing the majority decision, missing where
            it abstains.
        n_examples: Examples resampled.
        resamples: Random parts drawn.
        provenance: What produced it, JSON-able: of the scores, and the arguments of `certify`.
    """

    drawn_by = "assay.circuits.plots:plot_certified"

    graph: Graph
    edges: "pd.DataFrame"
    n_examples: int
    resamples: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def circuit(self) -> Circuit:
        """The included edges."""
        return self.select("included")

    def select(self, decision: str, radius: int = 0) -> Circuit:
        """The edges of a decision as a set of edges, with a radius those that so many edits cannot change.

        Args:
            decision: `included`; `excluded`, decided to stay out; `abstained`, left open: too close to half,
                or short of the required radius.
            radius: Least radius, for the first two.

        Raises:
            UnknownNameError: For another decision.
        """
        check_name("decision", decision, DECISIONS)
        chosen = self.edges["decision"] == decision
        record: dict[str, Any] = {"decision": decision}
        if radius:
            chosen &= self.edges["radius"].fillna(0) >= radius
            record["radius"] = radius
        mask = torch.zeros_like(self.graph.valid)
        mask[self.graph.valid] = torch.tensor(chosen.tolist())
        return Circuit(graph=self.graph, mask=mask, provenance={**self.provenance, **record})

    def __repr__(self) -> str:
        counts = ", ".join(f"{(self.edges['decision'] == each).sum()} {each}" for each in DECISIONS)
        parts = f"{self.resamples} parts of {self.n_examples} examples, level {self.provenance['level']:g}"
        return f"CertifiedCircuit({counts} of {self.graph.n_edges} edges, {parts})"

    def to_frame(self) -> "pd.DataFrame":
        """The rows of `edges` that are included or left open, most frequent first."""
        listed = self.edges[self.edges["decision"] != "excluded"]
        return listed.sort_values("frequency", ascending=False, kind="stable", ignore_index=True)


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
        Decision, frequency, limits and radius of each edge, and the circuit of the included edges, which are
        fewer than 2k, mostly fewer than k, not always connected (`.circuit.connected()`).

    Raises:
        InputError: Without scores per example, without examples, for arguments out of range, or where no
            number of agreeing parts could reach the radius asked for.

    Notes:
        The promise is about this procedure on edited data: the vote of random parts of the edited examples
        comes out the same way. It is not about the circuit's faithfulness, and not about scores that use the
        other examples (ablations `mean` and `mean-positional`; learned masks): there an edit changes
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
    if scores.level != "edge":
        raise InputError(f"certify takes scores of edges; these are of {scores.level}s")
    check_everywhere(scores.spans, "certify", "scores.total()")
    check_fraction(level=level, deletion=deletion)
    check_least(1, resamples=resamples)
    check_least(0, radius=radius)
    check_n_edges(k, scores.graph.valid)
    valid = scores.graph.valid
    if scores.per_example is None or not len(scores.per_example):
        raise InputError("certify needs scores per example; make them with discover(..., per_example=True)")
    table = scores.per_example[:, valid]  # in edge order
    if not bool(table.isfinite().all()):
        raise InputError("certify needs finite scores per example, but some are NaN or infinite")
    table = table if table.dtype == torch.float64 else table.float()
    kept = stream(seed, "resampled-selection/deletion").random((resamples, len(table))) >= deletion
    counts = top_counts(table, torch.from_numpy(kept), k, absolute=absolute)
    votes = decide(resamples, int(valid.sum()), level=level, deletion=deletion, radius=radius)
    if radius and (votes["decision"] == "abstained").all():
        text = f"radius is {radius}, but not even {resamples} agreeing parts certify so many edits"
        raise InputError(f"{text}; use a smaller radius, more resamples or a larger deletion")
    edges = votes.iloc[counts.numpy()].reset_index(drop=True)
    edges.insert(0, "edge", slot_names(scores.graph, None, valid))
    record: dict[str, Any] = {"selection": "certified", "k": k, "absolute": absolute, "deletion": deletion}
    record |= {"resamples": resamples, "level": level, "radius": radius, "seed": seed}
    ablation = str(scores.provenance.get("ablation"))
    if ablation in SHARED_BASELINES:  # not those of a reference
        record["assumes"] = (
            f"replaced values of ablation {ablation!r} keep their values from all examples; if recomputed "
            "after an edit they would move, and the radii would not be certified"
        )
    return CertifiedCircuit(
        graph=scores.graph,
        edges=edges,
        n_examples=len(table),
        resamples=resamples,
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


def decide(n: int, n_edges: int, *, level: float, deletion: float, radius: int = 0) -> "pd.DataFrame":
    """Decision, frequency, limits and radius of an edge by the number of parts, 0 to n, that select it."""
    import pandas as pd

    from assay.stats.certificates import edit_radius

    failure = (1 - level) / max(1, n_edges)
    count = np.arange(n + 1)
    low, high = np.zeros(n + 1), np.ones(n + 1)
    low[1:] = scipy.stats.beta.ppf(failure / 2, count[1:], n - count[1:] + 1)
    high[:-1] = scipy.stats.beta.isf(failure / 2, count[:-1] + 1, n - count[:-1])
    margin = 1 - deletion**radius
    decision = np.select([low > 0.5 + margin, high < 0.5 - margin], DECISIONS[:2], DECISIONS[2])
    votes = pd.DataFrame({"decision": decision, "frequency": count / n, "low": low, "high": high})
    reached = [edit_radius(float(sure), deletion) for sure in np.maximum(low, 1 - high)]
    votes["radius"] = pd.array(reached, dtype="Int64")
    votes.loc[decision == "abstained", "radius"] = pd.NA
    return votes

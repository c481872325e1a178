"""Certified discovery: which edges a small edit of the examples cannot move in or out of the circuit."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from assay.circuits.certified import UNCERTIFIED, CertifiedCircuit
from assay.circuits.circuit import Circuit
from assay.circuits.given import takes_text
from assay.circuits.resampling import (
    RESAMPLES,
    check_resamples,
    edge_table,
    resample_weights,
    top_counts,
)
from assay.circuits.scores import EdgeScores
from assay.circuits.slots import check_n_edges
from assay.core.errors import GraphMismatchError, InputError, check_fraction, check_name, unknown_name


DELETION = 0.6
HOW = ("deletion", "bootstrap")
CORRECTIONS = ("bonferroni", "holm", "none")
SELECTIONS = ("top", "greedy")
SHARED_BASELINES = ("mean", "mean-positional", "noise")  # ablated values taken from the whole data set
Selection = Callable[[EdgeScores, int], Circuit]


@takes_text(reads=True)
def certify(
    scores: EdgeScores,
    k: int,
    *,
    how: str = "deletion",
    deletion: float | int = DELETION,
    resamples: int = RESAMPLES,
    level: float | int = 0.95,
    radius: int = 0,
    correction: str = "bonferroni",
    selection: str | Selection = "top",
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
        k: Edges that each resample selects, 1 to n_edges.
        how: `deletion`; or `bootstrap`, which draws as many examples with replacement. Bootstrap frequencies
            get the same limits and abstentions but no radius: a bootstrap resample of an edited data set has
            no part in common with which to compare.
        deletion: Probability p of deleting an example, in (0, 1). The largest radius possible is
            floor(ln(1/2) / ln p): 0 below p = 1/2, 1 at 0.6, 6 at 0.9. A larger p votes on smaller parts, so
            fewer edges reach a decision.
        resamples: Random parts, at least 1; 1000 as published.
        level: Confidence of the limits, in (0, 1).
        radius: Edits that a decision must survive; edges that cannot promise it abstain. 0: any majority.
        correction: `bonferroni` (default): limits at 1 - (1 - level) / n_edges each, so all decisions and
            radii hold together with probability `level`. `holm`: decides a few more edges under the same
            promise, each certified at `radius` and no further (the limits shown stay Bonferroni's). `none`:
            each edge by itself.
        selection: `top`; `greedy`; or a deterministic function `(EdgeScores, k) -> Circuit`. Only `top` is
            array work; the others run once per resample.
        absolute: Rank by magnitude; False ranks by sign. A function ranks as it likes.
        seed: Root of the random parts.

    Returns:
        Frequencies, limits, decisions and radii per edge, and the circuit of the included edges, which
        are fewer than 2k, mostly fewer than k, not always connected (`.circuit.connected()`).

    Raises:
        InputError: Without scores per example, without examples, for arguments out of range, or where no
            number of agreeing resamples could reach the radius asked for.

    Notes:
        The promise is about this procedure on edited data: the vote of random parts of the edited examples
        comes out the same way. It is not about the circuit's faithfulness, and not about scores that use the
        other examples (ablations `mean`, `mean-positional` and `noise`; learned masks): there an edit changes
        the other examples' scores too. `provenance["assumes"]` states it where the ablation is known.
        An empty part selects nothing. No forward passes: with `top` one matrix product per call.

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
    _check(how, deletion, radius, correction, selection)
    check_resamples(resamples, level)
    check_n_edges(scores.graph, k)
    table = edge_table(scores.graph, scores.per_example, "certified discovery", at_least=1)
    weights = resample_weights(how, table.shape[0], resamples, deletion, seed)
    if selection == "top":
        counts = top_counts(table, torch.from_numpy(weights).to(table.dtype), k, absolute=absolute)
    else:
        chooser = selection if callable(selection) else _greedy(absolute)
        counts = _chosen_counts(scores, weights, k, chooser)
    rate = deletion if how == "deletion" else None
    table_of = _decisions(
        counts.numpy(), resamples, level=level, correction=correction, deletion=rate, radius=radius
    )
    if correction == "bonferroni" and rate is not None and radius > table_of.largest_radius:
        raise InputError(_unreachable(radius, table_of.largest_radius, deletion, resamples))
    return _result(
        scores,
        counts,
        table_of,
        how=how,
        deletion=rate,
        n_examples=table.shape[0],
        resamples=resamples,
        level=level,
        correction=correction,
        required_radius=radius,
        provenance={
            **scores.provenance,
            "selection": "certified",
            "base": selection if isinstance(selection, str) else getattr(selection, "__name__", "function"),
            "k": k,
            "absolute": absolute,
            "how": how,
            "deletion": rate,
            "resamples": resamples,
            "level": level,
            "radius": radius,
            "correction": correction,
            "seed": seed,
            **_assumption(scores, how),
        },
    )


def _assumption(scores: EdgeScores, how: str) -> dict[str, str]:
    """What the radii take for granted and the ablation of these scores breaks."""
    ablation = scores.provenance.get("ablation")
    if how == "deletion" and scores.provenance.get("method") == "consensus":
        return {
            "assumes": "the weight of each method keeps its value from all examples; if recomputed after an "
            "edit it would move, and the radii would not be certified"
        }
    if how != "deletion" or ablation not in SHARED_BASELINES:
        return {}
    return {
        "assumes": f"replaced values of ablation {ablation!r} keep their values from all examples; if "
        "recomputed after an edit they would move, and the radii would not be certified"
    }


def _check(how: str, deletion: float | int, radius: int, correction: str, selection: str | Selection) -> None:
    check_name("way to resample", how, HOW)
    check_name("correction", correction, CORRECTIONS)
    if isinstance(selection, str) and selection not in SELECTIONS:
        raise unknown_name("selection", selection, SELECTIONS)
    check_fraction(deletion=deletion)
    if radius < 0:
        raise InputError(f"radius is {radius}; expected a number of edits, 0 or more")
    if how == "bootstrap" and radius > 0:
        raise InputError(
            f"radius is {radius}, but bootstrap frequencies certify nothing; use how='deletion' or radius=0"
        )
    if how == "deletion" and deletion**radius <= 0.5 and radius > 0:
        reach = math.floor(math.log(0.5) / math.log(deletion))
        raise InputError(
            f"deleting examples with probability {deletion} certifies at most {reach} edits, but radius is "
            f"{radius}; use deletion above {0.5 ** (1 / radius):.4f} or a smaller radius"
        )


def _unreachable(radius: int, largest: int, deletion: float, resamples: int) -> str:
    return (
        f"radius is {radius}, but even {resamples} agreeing resamples certify at most {largest} edits at "
        f"deletion {deletion} with this level and number of edges; use more resamples or a larger deletion"
    )


def _greedy(absolute: bool) -> Selection:
    return lambda scores, k: scores.greedy(k, absolute=absolute)


def _chosen_counts(
    scores: EdgeScores, drawn: Float64[np.ndarray, "B N"], k: int, chooser: Selection
) -> Int[Tensor, " E"]:
    """How often each edge is chosen when the chooser runs on every resample; an empty one chooses nothing."""
    if scores.per_example is None:  # refused before
        raise InputError("scores per example are missing")
    weights = torch.from_numpy(drawn).to(scores.per_example.dtype)
    counts = torch.zeros(scores.graph.n_edges, dtype=torch.int64)
    for row in weights[weights.sum(1) > 0]:
        mean = torch.tensordot(row / row.sum(), scores.per_example, dims=1)
        chosen = chooser(EdgeScores(scores.graph, mean, provenance=scores.provenance), k)
        if chosen.graph.fingerprint != scores.graph.fingerprint:
            raise GraphMismatchError(
                "the selection returned a circuit for another graph than that of the scores"
            )
        counts += chosen.mask[scores.graph.valid]
    return counts


@dataclass(frozen=True, kw_only=True)
class _Decisions:
    """What a count of selections means, per edge."""

    low: Float64[np.ndarray, " E"]
    high: Float64[np.ndarray, " E"]
    decision: Int64[np.ndarray, " E"]
    radius: Int64[np.ndarray, " E"]
    largest_radius: int


def clopper_pearson_limits(
    n: int, failure: float
) -> tuple[Float64[np.ndarray, " n1"], Float64[np.ndarray, " n1"]]:
    """Lower and upper limits of a share at 0, 1, ..., n successes of n, failing with `failure` / 2 each."""
    count = np.arange(n + 1)
    low, high = np.zeros(n + 1), np.ones(n + 1)
    low[1:] = scipy.stats.beta.ppf(failure / 2, count[1:], n - count[1:] + 1)
    high[:-1] = scipy.stats.beta.isf(failure / 2, count[:-1] + 1, n - count[:-1])
    return low, high


def _decisions(
    counts: Int64[np.ndarray, " E"],
    n: int,
    *,
    level: float,
    correction: str,
    deletion: float | None,
    radius: int = 0,
) -> _Decisions:
    """Limits, decisions and radii of counts out of n, read off a table of n + 1."""
    from assay.stats.inclusion import edit_radius

    failure = (1 - level) / (1 if correction == "none" else max(1, len(counts)))
    low, high = clopper_pearson_limits(n, failure)
    margin = 0.0 if deletion is None else 1 - deletion**radius
    if correction == "holm":
        decision = _holm_decisions(counts, n, margin, level)
        reached = np.where(decision != 0, radius, UNCERTIFIED)
        largest = radius
    else:
        votes = (low > 0.5 + margin).astype(np.int64) - (high < 0.5 - margin).astype(np.int64)
        decision = votes[counts]
        if deletion is not None:
            sure = np.maximum(low, 1 - high)
            within = [edit_radius(float(bound), deletion) for bound in sure]
            by_count = np.array([UNCERTIFIED if each is None else each for each in within])
            reached = np.where(decision != 0, by_count[counts], UNCERTIFIED)
            largest = int(by_count.max())
    if deletion is None:
        reached, largest = np.full(len(counts), UNCERTIFIED), 0
    return _Decisions(
        low=low[counts],
        high=high[counts],
        decision=decision.astype(np.int64),
        radius=reached.astype(np.int64),
        largest_radius=largest,
    )


def _holm_decisions(
    counts: Int64[np.ndarray, " E"], n: int, margin: float, level: float
) -> Int64[np.ndarray, " E"]:
    """Step-down decisions on the two one-sided hypotheses of each edge: mu <= 1/2 + m and mu >= 1/2 - m.

    At most one of the two is rejected, and the 2 E hypotheses together keep the chance of any false rejection
    at 1 - level whatever their dependence (Holm 1979).
    """
    from assay.stats.multiplicity import holm

    every = np.arange(n + 1)
    above = scipy.stats.binom.sf(every - 1, n, 0.5 + margin)[counts]
    below = scipy.stats.binom.cdf(every, n, 0.5 - margin)[counts]
    inside, outside = (holm(np.stack([above, below])) <= 1 - level).astype(np.int64)
    decision: Int64[np.ndarray, " E"] = inside - outside
    return decision


def _result(
    scores: EdgeScores, counts: Int[Tensor, " E"], found: _Decisions, *, resamples: int, **settings: Any
) -> CertifiedCircuit:
    valid = scores.graph.valid

    def spread(values: Tensor, outside: float | int) -> Tensor:
        matrix = torch.full(valid.shape, outside, dtype=values.dtype)
        matrix[valid] = values
        return matrix

    return CertifiedCircuit(
        graph=scores.graph,
        frequency=spread(counts.double() / resamples, 0.0),
        low=spread(torch.from_numpy(found.low), math.nan),
        high=spread(torch.from_numpy(found.high), math.nan),
        decision=spread(torch.from_numpy(found.decision), 0),
        radius=spread(torch.from_numpy(found.radius), UNCERTIFIED),
        resamples=resamples,
        **settings,
    )


def selection_probability(
    scores: EdgeScores, k: int, *, deletion: float | int = DELETION, absolute: bool = True
) -> Float64[Tensor, "n_sources n_targets"]:
    """Exact probability that a random part of the examples selects each edge: all 2^N parts are gone through.

    What `certify` estimates, for up to 16 examples.

    Args:
        scores: With scores per example.
        k: Edges that each part selects.
        deletion: Probability of deleting an example, in (0, 1).
        absolute: Rank by magnitude; False ranks by sign.

    Raises:
        InputError: With more than 16 examples, or as `certify`.
    """
    _check("deletion", deletion, 0, "none", "top")
    check_n_edges(scores.graph, k)
    table = edge_table(scores.graph, scores.per_example, "the exact selection probability", at_least=0)
    n = table.shape[0]
    if n > 16:
        raise InputError(f"{n} examples have 2^{n} subsets; the exact probability is limited to 16 examples")
    probability = torch.zeros(table.shape[1], dtype=torch.float64)
    parts = torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=table.dtype).view(2**n, n)
    for size in range(1, n + 1):
        counts = top_counts(table, parts[parts.sum(1) == size], k, absolute=absolute)
        probability += counts.double() * (1 - deletion) ** size * deletion ** (n - size)
    matrix = torch.zeros(scores.graph.valid.shape, dtype=torch.float64)
    matrix[scores.graph.valid] = probability
    return matrix

"""Resamples of the examples as array work: what a selection would be on other data, without another pass.

A resample is a row of weights over the examples (drawn counts, or 0 and 1 where examples were deleted), so
the scores of all resamples are one matrix product with the scores per example.
"""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from assay.core.errors import InputError, check_fraction, check_least
from assay.core.random import stream
from assay.graph import Graph


RESAMPLES = 1000
_CELLS = 1 << 23  # resamples times edges held at a time: 32 MB in float32


def resample_weights(
    how: str, n: int, resamples: int, deletion: float | int, seed: int
) -> Float64[np.ndarray, "B N"]:
    """Weights of the examples in each resample: drawn counts (`bootstrap`), or 0 where deleted, else 1.

    The draws of a kind depend on the seed, the number of examples and of resamples alone.
    """
    if how == "bootstrap":
        from assay.stats.intervals import draw_counts  # brings SciPy, which loading a circuit does not need

        return draw_counts(n, resamples, stream(seed, "resampled-selection/bootstrap"))
    return (stream(seed, "resampled-selection/deletion").random((resamples, n)) >= deletion).astype(
        np.float64
    )


def edge_table(
    graph: Graph,
    per_example: Float[Tensor, "N n_sources n_targets"] | None,
    purpose: str,
    *,
    at_least: int,
) -> Float[Tensor, "N E"]:
    """Scores per example of the graph's edges, in edge order, in the dtype they have (at least float32).

    Raises:
        InputError: Without scores per example, with too few examples, or with a score that is not finite.
    """
    if per_example is None:
        raise InputError(
            f"{purpose} needs a score per example, but these scores hold only their mean; make them with "
            "discover(..., per_example=True)"
        )
    n = per_example.shape[0]
    if n < at_least:
        raise InputError(
            f"{purpose} needs at least {at_least} examples to resample, but these scores have {n}"
        )
    table = per_example.flatten(1)[:, graph.valid.flatten()]
    table = table if table.dtype in (torch.float32, torch.float64) else table.float()
    bad = ~torch.isfinite(table)
    if bool(bad.any()):
        example, edge = bad.nonzero()[0].tolist()
        row, column = graph.valid.nonzero()[edge].tolist()
        raise InputError(
            f"the score of {graph.edge_name(row, column)} on example {example} is "
            f"{table[example, edge].item()}, but {purpose} needs finite scores"
        )
    return table


def check_resamples(resamples: int, level: float | int) -> None:
    """Refuse a level outside (0, 1), or too few resamples to resolve it."""
    check_fraction(level=level)
    check_least(1, resamples=resamples)


def consistent_edges(
    table: Float[Tensor, "N E"], *, level: float | int = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Bool[Tensor, " E"]:
    """Edges whose mean score keeps its sign over bootstrap resamples of the examples.

    True where the percentile interval of the mean excludes 0: at most a share (1 - level) / 2 of the resample
    means is not strictly on one side.

    Raises:
        InputError: As `EdgeScores.consistent`.
    """
    check_resamples(resamples, level)
    allowed = math.floor(resamples * (1 - level) / 2 + 1e-9)
    if allowed < 1:
        raise InputError(
            f"{resamples} resamples are too few for a {level:.6g} interval, whose ends are the "
            f"{(1 - level) / 2:.3g} quantiles; use at least {math.ceil(2 / (1 - level) - 1e-9)} resamples"
        )
    counts = resample_weights("bootstrap", table.shape[0], resamples, 0.0, seed)
    weights = torch.from_numpy(counts).to(table.dtype)
    kept = torch.zeros(table.shape[1], dtype=torch.bool)
    width = max(1, _CELLS // resamples)
    ones = torch.ones(resamples, dtype=table.dtype)
    for first in range(0, table.shape[1], width):
        sums = weights @ table[:, first : first + width]
        below, above = ones @ (sums <= 0).to(table.dtype), ones @ (sums >= 0).to(table.dtype)
        kept[first : first + width] = (below <= allowed) | (above <= allowed)
    return kept


def top_counts(
    table: Float[Tensor, "N E"], weights: Float[Tensor, "B N"], k: int, *, absolute: bool
) -> Int[Tensor, " E"]:
    """In how many resamples each edge is among the k of largest (absolute) weighted mean.

    Ties at the cut go to the smaller edge index, as in `EdgeScores.top`. A resample of weight 0 has no mean
    and selects nothing.

    Notes:
        The ranking by weighted mean is that by weighted sum. Only edges that can reach the cut in some
        resample are ranked: the cut among the strongest edges bounds the true cut from below, and an edge
        below that bound everywhere is never selected. One matrix product over all edges, then work over the
        survivors, which are a small multiple of k where scores differ in size.
    """
    weights = weights[weights.sum(1) > 0]
    counts = torch.zeros(table.shape[1], dtype=torch.int64)
    if len(weights) == 0:
        return counts
    candidates = _can_be_selected(table, weights, k, absolute=absolute)
    narrow = table[:, candidates].contiguous()
    found = torch.zeros(len(candidates), dtype=table.dtype)
    rows = max(1, _CELLS // len(candidates))
    for first in range(0, len(weights), rows):
        found += _top_masks(_ranks(weights[first : first + rows], narrow, absolute), k).sum(0)
    counts[candidates] = found.long()
    return counts


def _ranks(weights: Tensor, table: Tensor, absolute: bool) -> Tensor:
    sums = weights @ table
    return sums.abs_() if absolute else sums


def _top_masks(values: Float[Tensor, "B E"], k: int) -> Float[Tensor, "B E"]:
    """1 for the k largest of each row, ties by index, else 0."""
    cut = values.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
    members = (values >= cut).to(values.dtype)
    tied = members.sum(1) > k
    if bool(tied.any()):
        some, at = values[tied], cut[tied]
        equal = some == at
        room = k - (some > at).sum(1, keepdim=True)
        members[tied] = ((some > at) | (equal & (equal.cumsum(1) <= room))).to(values.dtype)
    return members


def _can_be_selected(
    table: Float[Tensor, "N E"], weights: Float[Tensor, "B N"], k: int, *, absolute: bool
) -> Int[Tensor, " C"]:
    """Edges, in index order, that may be among the k largest of some resample: at least those that are."""
    n_edges = table.shape[1]
    n_strong = max(3 * k, 64)
    if 2 * n_strong >= n_edges:
        return torch.arange(n_edges)
    strong = _ranks(torch.ones(1, len(table), dtype=table.dtype), table, absolute)[0].topk(n_strong).indices
    cut = _ranks(weights, table[:, strong].contiguous(), absolute).topk(k, dim=1, sorted=False).values.amin(1)
    heaviest = weights.amax(0)
    up = heaviest @ table.clamp(min=0)
    down = heaviest @ table.clamp(max=0).neg()
    # A sum is computed up to rounding, and not in the same order in products of other shapes.
    slack = 16 * len(table) * torch.finfo(table.dtype).eps * (up + down)
    reach = (torch.maximum(up, down) if absolute else up) + slack
    possible = reach >= cut.min()
    possible[strong] = True
    left = (possible.nonzero().squeeze(1) if bool(possible.any()) else strong).tolist()
    return _reaching(table, weights, cut, slack, torch.tensor(left), absolute=absolute)


def _reaching(
    table: Float[Tensor, "N E"],
    weights: Float[Tensor, "B N"],
    cut: Float[Tensor, " B"],
    slack: Float[Tensor, " E"],
    edges: Int[Tensor, " D"],
    *,
    absolute: bool,
) -> Int[Tensor, " C"]:
    """Those of `edges` whose sum comes up to the cut in some resample."""
    narrow = table[:, edges].contiguous()
    best = torch.full((len(edges),), -torch.inf, dtype=table.dtype)
    rows = max(1, _CELLS // len(edges))
    for first in range(0, len(weights), rows):
        above = _ranks(weights[first : first + rows], narrow, absolute) - cut[first : first + rows, None]
        best = torch.maximum(best, above.amax(0))
    return edges[best >= -slack[edges]]

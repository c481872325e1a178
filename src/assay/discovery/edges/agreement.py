"""Scores that several methods agree on."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from assay.circuits import EdgeScores
from assay.circuits.slots import check_n_edges
from assay.core.errors import GraphMismatchError, InputError, check_name


RULES = ("mean-rank", "mean-score", "vote")


def consensus(
    scores: Sequence[EdgeScores],
    rule: str = "mean-rank",
    *,
    k: int | None = None,
    weights: Sequence[float | int] | None = None,
) -> EdgeScores:
    r"""One score per edge from those of several methods, whatever their units.

    With weights w_i that sum to 1, and s_i(e) the score of edge e by method i,

    - `mean-rank`: sign(e) * sum_i w_i (1 - (r_i(e) - 1) / n_edges), r_i(e) the rank of |s_i(e)|, 1 the
      largest, ties sharing their mean rank. In [-1, 1].
    - `mean-score`: sum_i w_i s_i(e) / mean |s_i|: each method counts in units of its own mean absolute score.
    - `vote`: sign(e) * sum of the w_i of the methods that have e in their top k by |s_i|. In [-1, 1].

    sign(e) is the sign with the larger total weight among the methods; equal weights are decided by the
    larger sum of w_i times the rank term, then by the first method listed that has a sign. An edge that every
    method scores 0 gets 0.

    Args:
        scores: At least two, of one graph; at best of the same objective and ablation.
        rule: `mean-rank`, `mean-score` or `vote`.
        k: For `vote`: edges that each method names, 1 to n_edges. Ties go to the smaller edge index.
        weights: One per method, at least 0, not all 0; only their proportion counts. Default: equal.

    Returns:
        Scores in float64, positive: ablation hurts. `mean-score` joins scores per example too, where all
        methods have them for the same task; the other rules are not means over examples and have none.
        `details["agreement"]` is the mean Spearman correlation of |scores| over the pairs of methods.

    Raises:
        InputError: Fewer than two scores, k missing or out of place, weights that do not fit, or for
            `mean-score` a method whose scores are all 0.
        GraphMismatchError: Scores of different graphs.
        UnknownNameError: Another rule.

    Notes:
        No passes. Ranks throw sizes away, so `mean-rank` is for selecting edges, not for sums of scores; its
        values have no ties at 0 even where most edges do nothing. `vote(k)` is for `threshold(0.5)`: the
        edges that half of the weight or more names.

    References:
        Mondorf et al. (2025), arXiv:2510.06811 (averaged scores of attribution methods on MIB); Borda counts
        for the mean rank: Dwork et al. (2001), doi:10.1145/371920.372165.

    Example:
        >>> from assay.graph import build_graph
        >>> graph = build_graph(1, 1)
        >>> large, small = (EdgeScores(graph, unit * torch.ones(3, 5).cumsum(1)) for unit in (1.0, 1e-6))
        >>> consensus([large, small], "mean-score").top(1).edges()
        ['input->logits']
    """
    rankings = tuple(scores)
    share = _check(rankings, rule, k, weights)
    graph = rankings[0].graph
    values = torch.stack([each.values[graph.valid].double() for each in rankings])
    if not bool(torch.isfinite(values).all()):  # EdgeScores refuses these; a changed tensor may hold them
        raise InputError("a score is not finite; compute the scores again")
    strength = _rank_strength(values)
    per_example = None
    if rule == "mean-score":
        unit = values.abs().mean(1)
        if bool((unit == 0).any()):
            index = int((unit == 0).nonzero()[0])
            raise InputError(
                f"the scores of {_name(rankings[index], index)} are all 0, so they have no scale; remove "
                "them or use rule='mean-rank'"
            )
        joined = ((share / unit)[:, None] * values).sum(0)
        per_example = _joined_examples(rankings, share / unit)
    else:
        size = strength if rule == "mean-rank" else _votes(rankings, k)
        joined = _signs(values, strength, share) * (share[:, None] * size).sum(0)
    matrix = torch.zeros(graph.valid.shape, dtype=torch.float64)
    matrix[graph.valid] = joined
    return EdgeScores(
        graph,
        matrix,
        per_example=per_example,
        provenance=_provenance(rankings, rule, k, share),
        details={
            "agreement": _agreement(strength),
            "methods": [_name(each, i) for i, each in enumerate(rankings)],
        },
    )


def _check(
    given: tuple[EdgeScores, ...], rule: str, k: int | None, weights: Sequence[float | int] | None
) -> Float64[Tensor, " M"]:
    """The weights, scaled to a sum of 1."""
    check_name("consensus rule", rule, RULES)
    if len(given) < 2:
        raise InputError(f"a consensus needs the scores of at least 2 methods; got {len(given)}")
    for index, each in enumerate(given):
        if each.graph.fingerprint != given[0].graph.fingerprint:
            raise GraphMismatchError(
                f"{_name(each, index)} scores the graph {each.graph.describe()}, but {_name(given[0], 0)} "
                f"scores {given[0].graph.describe()}; a consensus needs one graph"
            )
    if rule == "vote":
        if k is None:
            raise InputError("rule='vote' needs k, the number of edges that each method selects")
        check_n_edges(given[0].graph, k)
    elif k is not None:
        raise InputError(
            f"k belongs to rule='vote'; {rule!r} uses every score, so select with .top(k) afterwards"
        )
    if weights is None:
        return torch.full((len(given),), 1 / len(given), dtype=torch.float64)
    if len(weights) != len(given):
        raise InputError(f"got {len(weights)} weights for {len(given)} methods; give one each")
    if any(not math.isfinite(each) or each < 0 for each in weights) or sum(weights) <= 0:
        raise InputError(f"weights are {list(weights)}; they must be finite, at least 0, and not all 0")
    share = torch.tensor([float(each) for each in weights], dtype=torch.float64)
    return share / share.sum()


def _rank_strength(values: Float64[Tensor, "M E"]) -> Float64[Tensor, "M E"]:
    """1 for the largest |score| of a method down to 1 / E for the smallest; ties share their mean."""
    from scipy.stats import rankdata

    ranks = rankdata(values.abs().numpy(), axis=1)  # 1 for the smallest
    return torch.from_numpy(np.asarray(ranks)) / values.shape[1]


def _votes(given: tuple[EdgeScores, ...], k: int | None) -> Float64[Tensor, "M E"]:
    if k is None:  # refused before
        raise InputError("rule='vote' needs k")
    return torch.stack([each.top(k).mask[each.graph.valid] for each in given]).double()


def _signs(
    values: Float64[Tensor, "M E"], strength: Float64[Tensor, "M E"], share: Float64[Tensor, " M"]
) -> Float64[Tensor, " E"]:
    """Sign of each edge by weight, then by weighted strength, then by the first method that has one."""
    sign = values.sign()
    result = torch.zeros(values.shape[1], dtype=torch.float64)
    by_weight = (share[:, None] * sign).sum(0)
    by_strength = (share[:, None] * sign * strength).sum(0)
    rounding = 1e-12  # equal weights add up in different orders
    for ballot in (by_weight, by_strength, *sign):
        result = torch.where((result == 0) & (ballot.abs() > rounding), ballot.sign(), result)
    return result


def _joined_examples(
    given: tuple[EdgeScores, ...], factors: Float64[Tensor, " M"]
) -> Float64[Tensor, "N S R"] | None:
    """The weighted sum of the scores per example, if all methods saw the same examples."""
    tables = [each.per_example for each in given if each.per_example is not None]
    tasks = [each.provenance.get("task") for each in given]
    same = all(task == tasks[0] for task in tasks) and len({len(table) for table in tables}) == 1
    if len(tables) < len(given) or not same:
        return None
    total = torch.zeros(tables[0].shape, dtype=torch.float64)
    for factor, table in zip(factors.tolist(), tables, strict=True):
        total += factor * table.double()
    return total


def _agreement(strength: Float64[Tensor, "M E"]) -> float:
    """Mean Spearman correlation over pairs; NaN where a method's scores are all of one size."""
    centred = strength - strength.mean(1, keepdim=True)
    length = centred.norm(dim=1)
    defined: Bool[Tensor, " M"] = length > 0
    if not bool(defined.all()):
        return math.nan
    unit = centred / length[:, None]
    correlation = unit @ unit.T
    pairs = len(strength) * (len(strength) - 1)
    return float((correlation.sum() - correlation.diagonal().sum()) / pairs)


def _name(scores: EdgeScores, index: int) -> str:
    return str(scores.provenance.get("method", f"scores {index + 1}"))


def _provenance(
    given: tuple[EdgeScores, ...], rule: str, k: int | None, share: Float64[Tensor, " M"]
) -> dict[str, Any]:
    """What all methods share at the top, the method `consensus`, and each method's own record."""
    first = given[0].provenance
    common = {
        key: first[key]
        for key in ("library", "model", "task", "graph", "objective", "ablation")
        if key in first and all(each.provenance.get(key) == first[key] for each in given)
    }
    record = {"rule": rule, "weights": share.tolist(), "of": [dict(each.provenance) for each in given]}
    return {**common, "method": "consensus", **record, **({"k": k} if k is not None else {})}

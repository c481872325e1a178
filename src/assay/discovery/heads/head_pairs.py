"""How much of what a head writes a later head can read, and whether the edges of a circuit compose more."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float64

from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.record import Record
from assay.discovery.heads.scores import provenance_of
from assay.discovery.heads.weights import layer_weights, product_singular_values, rotary
from assay.models import Model


_PERMUTATIONS = 999
_AT_ONCE = 100  # permutations in memory
CHANNELS = ("q", "k", "v")


@dataclass(frozen=True, kw_only=True, eq=False)
class Composition:
    """How much of what a head writes a later head can read, by query, key and value.

    Attributes:
        n_heads: Heads per layer.
        q: `[H, H]` sender by receiver, into queries, in [0, 1]; NaN unless the sender's layer is earlier, and
            for heads of zero weight.
        k: The same into keys.
        v: The same into values.
        details: `relative_offset` for rotary models.
        provenance: The model.
    """

    n_heads: int
    q: Float64[np.ndarray, "H H"]
    k: Float64[np.ndarray, "H H"]
    v: Float64[np.ndarray, "H H"]
    details: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


def composition(model: Model) -> Composition:
    """Q-, K- and V-composition of all pairs of heads in different layers.

    For a sender A and a receiver B in a later layer: Q ||W_OV^A W_QK^B||, K ||W_OV^A (W_QK^B)^T||,
    V ||W_OV^A W_OV^B||, Frobenius norms, each over the product of the norms of its two factors.

    Notes:
        No forward pass; one product of d_model x d_model size per pair of layers and channel. Rotary
        models: W_QK at relative offset 0.

        Random heads have a positive composition too, about 1 / sqrt(d_model):
        compare with other pairs, see `edge_test`.

    References:
        Elhage et al. (2021), A Mathematical Framework for Transformer Circuits.
    """
    heads = model.n_heads
    layers = [layer_weights(model, layer) for layer in range(model.n_layers)]
    table = {name: np.full((model.n_layers * heads,) * 2, np.nan) for name in CHANNELS}
    ov_norms = [product_singular_values(each.v, each.o).norm(dim=1) for each in layers]
    qk_norms = [product_singular_values(each.q, each.k.mT).norm(dim=1) for each in layers]
    for later, receiver in enumerate(layers):
        # The outer factor of each receiving matrix keeps its length under the R of its QR.
        reading = {
            "q": receiver.q @ receiver.uppers["k"].mT,
            "k": receiver.k @ receiver.uppers["q"].mT,
            "v": receiver.v @ receiver.uppers["o"].mT,
        }
        for earlier in range(later):
            sender = layers[earlier]
            writing = (sender.uppers["v"] @ sender.o).flatten(0, 1)
            for name, read in reading.items():
                product = writing @ read.transpose(0, 1).flatten(1)
                blocks = product.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))
                norms = blocks.square().sum((1, 3)).sqrt()
                receiving = ov_norms[later] if name == "v" else qk_norms[later]
                scaled = norms / (ov_norms[earlier][:, None] * receiving)
                rows, columns = (slice(each * heads, (each + 1) * heads) for each in (earlier, later))
                table[name][rows, columns] = scaled.cpu().numpy()
    return Composition(
        n_heads=heads,
        details={"relative_offset": 0} if rotary(model) else {},
        provenance=provenance_of(model, score="composition"),
        **table,
    )


@dataclass(frozen=True, kw_only=True)
class EdgeTest(Record):
    """Whether the pairs a circuit joins compose more (or less) than other pairs.

    Attributes:
        statistic: Welch's t; positive: the circuit's pairs compose more. NaN where undefined.
        p_value: Two-sided, of Welch's t distribution; NaN where undefined.
        permutation_p: Two-sided, of t among 999 random choices of as many pairs: it holds for skewed values,
            where few edges make Welch's too small. NaN where undefined.
        degrees_of_freedom: Welch-Satterthwaite.
        mean_edges, mean_others: Mean composition of either side.
        n_edges: Pairs that the circuit joins.
        n_others: Other pairs.
        reason: `too_few` (fewer than 2 pairs on a side) or `zero_variance`, else None.
    """

    statistic: float
    p_value: float
    degrees_of_freedom: float
    mean_edges: float
    mean_others: float
    n_edges: int
    n_others: int
    reason: str | None = None
    permutation_p: float = math.nan


def edge_test(
    table: Float64[np.ndarray, "H H"], head_edges: Iterable[Sequence[int]], *, n_heads: int, seed: int = 0
) -> EdgeTest:
    """Welch's t test of a circuit's head edges against all other pairs of heads in different layers.

    Args:
        table: Sender by receiver, e.g. `composition(model).q`; NaN pairs do not count.
        head_edges: (layer, head, layer, head), e.g. `HeadCircuit.head_edges`.
        n_heads: Heads per layer.
        seed: Root of the random choices behind `permutation_p`.

    Raises:
        InputError: For an edge outside the table, or one that does not go to a later layer.

    Notes:
        Pairs that share a head are not independent, so p is too small where few heads make many edges.
    """
    n = len(table)
    layer = np.arange(n) // n_heads
    later = (layer[:, None] < layer[None, :]) & ~np.isnan(table)
    chosen = np.zeros((n, n), dtype=bool)
    for edge in head_edges:
        sender, receiver = edge[0] * n_heads + edge[1], edge[2] * n_heads + edge[3]
        inside = all(0 <= flat < n for flat in (sender, receiver)) and max(edge[1], edge[3]) < n_heads
        if not inside or edge[0] >= edge[2]:
            raise InputError(
                f"head edge {list(edge)} does not join two heads of the model to a later layer; write "
                "(layer, head, layer, head), counted from 0"
            )
        chosen[sender, receiver] = True
    edges, others = table[chosen & later], table[~chosen & later]
    sizes: dict[str, Any] = {
        "mean_edges": float(edges.mean()) if len(edges) else math.nan,
        "mean_others": float(others.mean()) if len(others) else math.nan,
        "n_edges": len(edges),
        "n_others": len(others),
    }
    reason = None
    if min(len(edges), len(others)) < 2:
        reason = "too_few"
    elif np.ptp(edges) == 0 and np.ptp(others) == 0:
        reason = "zero_variance"
    if reason:
        return EdgeTest(
            statistic=math.nan, p_value=math.nan, degrees_of_freedom=math.nan, reason=reason, **sizes
        )
    found = scipy.stats.ttest_ind(edges, others, equal_var=False)
    return EdgeTest(
        statistic=float(found.statistic),
        p_value=float(found.pvalue),
        degrees_of_freedom=float(found.df),
        permutation_p=_permutation_p(edges, others, abs(float(found.statistic)), stream(seed, "edge-test")),
        **sizes,
    )


def _permutation_p(
    edges: Float64[np.ndarray, " n_edges"],
    others: Float64[np.ndarray, " n_others"],
    statistic: float,
    rng: np.random.Generator,
) -> float:
    """Share of random choices of as many values whose Welch's t is as far from 0, the sample's included."""
    values = np.concatenate([edges, others])
    values = values - values.mean()
    sizes = np.array([len(edges), len(others)])
    totals = np.array([values.sum(), (values**2).sum()])
    as_far = 0
    for start in range(0, _PERMUTATIONS, _AT_ONCE):
        draws = rng.random((min(_AT_ONCE, _PERMUTATIONS - start), len(values)))
        chosen = values[np.argpartition(draws, len(edges) - 1, axis=1)[:, : len(edges)]]
        inside = np.stack([chosen.sum(axis=1), (chosen**2).sum(axis=1)])
        sums = np.stack([inside, totals[:, None] - inside], axis=2)  # [2, draws, side]
        means = sums[0] / sizes
        squared = np.maximum(sums[1] - sizes * means**2, 0.0) / (sizes * (sizes - 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.abs(means[:, 0] - means[:, 1]) / np.sqrt(squared.sum(axis=1))
        as_far += int((t >= statistic * (1 - 1e-9)).sum())
    return (1 + as_far) / (1 + _PERMUTATIONS)

"""What a head's weights alone say about it: spectra, writing along the answer, composition of pairs.

A head reads and writes the stream through two matrices of rank d_head, W_QK = W_Q W_K^T and W_OV =
W_V W_O (row vectors: out = x W). They are never formed: with QR factors of the thin matrices every norm and
singular value is that of a d_head x d_head product.

(Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.)
"""

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor, nn

from assay.core.errors import InputError, UnsupportedModelError
from assay.core.random import stream
from assay.core.record import Record
from assay.discovery.heads.scores import HeadScores, provenance_of
from assay.models import Model
from assay.tasks import Task


_SMALLEST = 1e-12  # singular values below this share of the largest are rounding, not signal
MATRICES = ("ov", "qk")


class EffectiveRank(enum.StrEnum):
    """Four numbers that are all called effective rank; a result names the one it holds."""

    ENTROPY = "entropy-rank"
    SINGULAR_VALUES = "singular-value-participation"
    EIGENVALUES = "eigenvalue-participation"
    STABLE = "stable-rank"


# ---- singular values --------------------------------------------------------------------------------


def _upper(thin: Tensor) -> Tensor:
    """The R of a QR factorisation; any norm of `thin @ x` is that of `R @ x`."""
    factor: Tensor = torch.linalg.qr(thin, mode="r").R
    return factor


def sv_entropy(singular_values: Float64[np.ndarray, "*batch rank"]) -> Float64[np.ndarray, "*batch"]:
    """Shannon entropy of the singular values as shares: -sum p ln p, p = s / sum s, over s > 1e-12 s_1.

    Returns:
        Nats, in [0, ln rank]; NaN for a zero matrix.
    """
    largest = singular_values.max(axis=-1, keepdims=True)
    counted = np.where(singular_values > _SMALLEST * largest, singular_values, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = counted / counted.sum(axis=-1, keepdims=True)
        terms = np.where(counted > 0, shares * np.log(shares), 0.0)
    return np.where(largest[..., 0] > 0, np.abs(terms.sum(axis=-1)), np.nan)


def effective_rank(
    singular_values: Float64[np.ndarray, "*batch rank"], kind: EffectiveRank
) -> Float64[np.ndarray, "*batch"]:
    """How many directions a matrix really uses, by one of four definitions.

    entropy-rank: exp(sv_entropy). singular-value-participation: (sum s)^2 / sum s^2.
    eigenvalue-participation: (sum s^2)^2 / sum s^4. stable-rank: sum s^2 / s_1^2.

    Args:
        singular_values: >= 0, any order.
        kind: Which definition; they differ, and published numbers rarely say which they are.

    Returns:
        In [1, rank]; 0 for a zero matrix.

    References:
        Roy and Vetterli (2007), The effective rank (entropy); Rudelson and Vershynin (2007),
        arXiv:math/0503442 (stable rank).

    Example:
        >>> effective_rank(np.array([3.0, 2.0, 1.0]), EffectiveRank.EIGENVALUES)
        array(2.)
    """
    largest = singular_values.max(axis=-1)
    # Scaled by the largest value first: fourth powers of small weights would underflow.
    s = singular_values / np.where(largest > 0, largest, 1.0)[..., None]
    square = (s**2).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rank = {
            EffectiveRank.ENTROPY: lambda: np.exp(sv_entropy(singular_values)),
            EffectiveRank.SINGULAR_VALUES: lambda: s.sum(axis=-1) ** 2 / square,
            EffectiveRank.EIGENVALUES: lambda: square**2 / (s**4).sum(axis=-1),
            EffectiveRank.STABLE: lambda: square,
        }[kind]()
    return np.where(largest > 0, rank, 0.0)


# ---- a model's heads --------------------------------------------------------------------------------


def layer_weights(model: Model, layer: int) -> dict[str, Float64[Tensor, "n_heads _ _"]]:
    """Weights of the heads of one layer; with grouped-query attention K and V are those of the group.

    Biases, norms and the scale of the attention are left out.

    Returns:
        `q`, `k`, `v` `[n_heads, d_model, d_head]` and `o` `[n_heads, d_head, d_model]`.
    """
    block = model.uncut.blocks[layer]
    channels = block.qkv_weight().double().transpose(0, 1)
    group = torch.tensor([block.kv_head(head) for head in range(block.n_heads)], device=channels.device)
    keys = block.n_heads + group
    q, k, v = channels[: block.n_heads], channels[keys], channels[keys + block.n_kv_heads]
    return {"q": q, "k": k, "v": v, "o": block.out_weight().double()}


def _spectra(weights: Mapping[str, Tensor]) -> dict[str, Float64[Tensor, "n_heads d_head"]]:
    """Singular values of W_OV and W_QK of the heads of one layer, falling.

    With left = Q_1 R_1 and right = Q_2 R_2 they are those of R_1 R_2^T.
    """
    pairs = {"ov": (weights["v"], weights["o"].mT), "qk": (weights["q"], weights["k"])}
    return {name: torch.linalg.svdvals(_upper(a) @ _upper(b).mT) for name, (a, b) in pairs.items()}


def weight_scores(model: Model) -> dict[str, HeadScores]:
    """Spectral scores of W_OV and W_QK of every head.

    Returns:
        By name, `ov-` or `qk-` and: `spectral-norm` (s_1), `sv-entropy` (nats), the four `EffectiveRank`s,
        `frobenius-norm`, `sv-gap` ((s_1 - s_2) / s_1, in [0, 1]; 0 for a zero matrix); and `ov-copying`, sum
        of the eigenvalues of W_OV over the sum of their magnitudes, in [-1, 1] (NaN for a zero matrix).

    Notes:
        No forward pass. Rotary models: W_QK is the matrix at relative offset 0; norms between projection and
        attention (Qwen3) are left out. `ov-copying` is taken in the stream; Elhage et al. put embedding and
        unembedding around W_OV, which a vision model does not have.
    """
    layers = [layer_weights(model, layer) for layer in range(model.n_layers)]
    spectra = [_spectra(each) for each in layers]
    found: dict[str, Float64[np.ndarray, " H"]] = {}
    for matrix in MATRICES:
        s = torch.cat([each[matrix] for each in spectra]).cpu().numpy()
        first, second = s[:, 0], s[:, 1] if s.shape[1] > 1 else np.zeros(len(s))
        gap = 1 - second / np.where(first > 0, first, 1.0)
        found[f"{matrix}-spectral-norm"] = first
        found[f"{matrix}-sv-entropy"] = sv_entropy(s)
        found |= {f"{matrix}-{kind}": effective_rank(s, kind) for kind in EffectiveRank}
        found[f"{matrix}-frobenius-norm"] = np.sqrt((s**2).sum(axis=1))
        found[f"{matrix}-sv-gap"] = np.where(first > 0, gap, 0.0)
    # The non-zero eigenvalues of V O are those of O V, which is d_head x d_head.
    eigenvalues = torch.cat([torch.linalg.eigvals(each["o"] @ each["v"]) for each in layers]).cpu().numpy()
    with np.errstate(invalid="ignore"):
        found["ov-copying"] = eigenvalues.real.sum(axis=1) / np.abs(eigenvalues).sum(axis=1)
    return {name: _of_weights(model, name, values) for name, values in found.items()}


def _of_weights(model: Model, name: str, values: np.ndarray, **more: Any) -> HeadScores:
    return HeadScores.from_flat(
        name,
        model.n_heads,
        values.astype(np.float64),
        sign="larger = stronger" if "norm" in name else "",
        unit="nats" if name.endswith("sv-entropy") else "",
        provenance=provenance_of(model, score=name),
        **more,
    )


# ---- the answer direction ---------------------------------------------------------------------------


def unembedding_rows(model: Model, ids: Int[Tensor, "*batch"]) -> Float64[Tensor, "*batch d_model"]:
    """Unembedding vectors u_v of outputs (columns of W_U), for tokens or classes.

    Raises:
        UnsupportedModelError: If the unembedding is not one linear map.
    """
    module = model.unembed_module
    if not isinstance(module, nn.Linear):
        raise UnsupportedModelError(
            f"the unembedding is a {type(module).__name__}; expected one torch.nn.Linear"
        )
    weight = module.weight.detach()
    return weight[ids.to(weight.device)].to(model.device).double()


def answer_directions(
    model: Model, correct: Int[Tensor, " P"], incorrect: Int[Tensor, " P"], *, max_pairs: int | None = 10
) -> Float64[Tensor, "pairs d_model"]:
    """Unit vectors (u_c - u_w) / ||u_c - u_w|| of the distinct (c, w) pairs, in order of appearance.

    Args:
        model: Its unembedding is read.
        correct: Right output of each example.
        incorrect: Output it is compared with.
        max_pairs: Most pairs taken; None takes all.

    Returns:
        Pairs with c = w, or with equal unembedding vectors, are skipped: there may be none.
    """
    pairs = list(dict.fromkeys(zip(correct.tolist(), incorrect.tolist(), strict=True)))
    ids = torch.tensor([pair for pair in pairs if pair[0] != pair[1]], dtype=torch.long).reshape(-1, 2)
    rows = unembedding_rows(model, ids)
    difference = rows[:, 0] - rows[:, 1]
    length = difference.norm(dim=1, keepdim=True)
    directions: Tensor = (difference / length)[length[:, 0] > 0]
    return directions[:max_pairs]


def ov_norm(model: Model, directions: Float64[Tensor, "pairs d_model"]) -> HeadScores:
    """How strongly each head can write along some directions: the mean of || W_V (W_O u) ||.

    Args:
        model: The model.
        directions: Unit vectors of the stream before the unembedding, e.g. `answer_directions`.

    Returns:
        Non-negative; NaN with reason `no_direction` where there is none.

    Notes:
        No forward pass. The final norm's gain is left out, as in the published score.
    """
    if len(directions) == 0:
        empty = np.full(model.n_layers * model.n_heads, np.nan)
        return _of_weights(model, "ov-norm", empty, reason="no_direction")
    values = []
    for layer in range(model.n_layers):
        weights = layer_weights(model, layer)
        written = weights["v"] @ (weights["o"] @ directions.to(weights["o"].device).T)
        values.append(written.norm(dim=1).mean(dim=1).cpu().numpy())
    return _of_weights(model, "ov-norm", np.concatenate(values), details={"n_directions": len(directions)})


def answer_norm(model: Model, task: Task) -> HeadScores:
    """`ov_norm` along ten directions between the first right and the first wrong outputs of a task.

    Raises:
        InputError: For a task without wrong outputs.
    """
    if task.wrong is None:
        raise InputError(
            f"ov-norm compares correct with wrong outputs, but task {task.name!r} has no wrong ones; give "
            "it wrong="
        )
    return ov_norm(model, answer_directions(model, task.answers[:, 0], task.wrong[:, 0]))


def member_ratio(values: Float64[np.ndarray, " H"], members: Bool[np.ndarray, " H"]) -> float:
    """Mean over a circuit's heads over the mean of the others; heads without a value (NaN) do not count.

    Returns:
        NaN where undefined: no head inside or none outside, or others that average to 0.
    """
    defined = ~np.isnan(values)
    inside, outside = values[members & defined], values[~members & defined]
    if not len(inside) or not len(outside):
        return math.nan
    below = math.fsum(outside) / len(outside)
    return math.fsum(inside) / len(inside) / below if below else math.nan


_PERMUTATIONS = 999
_AT_ONCE = 100  # permutations in memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Composition:
    """How much of what a head writes a later head can read, by query, key and value.

    Attributes:
        q: `[H, H]` sender by receiver, into queries, in [0, 1]; NaN unless the sender's layer is earlier, and
            for heads of zero weight.
        k: The same into keys.
        v: The same into values.
        provenance: The model.
    """

    q: Float64[np.ndarray, "H H"]
    k: Float64[np.ndarray, "H H"]
    v: Float64[np.ndarray, "H H"]
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
    table = {name: np.full((model.n_layers * heads,) * 2, np.nan) for name in "qkv"}
    norms = [{name: s.norm(dim=1) for name, s in _spectra(each).items()} for each in layers]
    writing = [(_upper(each["v"]) @ each["o"]).flatten(0, 1) for each in layers]
    for later, receiver in enumerate(layers):
        # The outer factor of each receiving matrix keeps its length under the R of its QR.
        reading = {
            "q": receiver["q"] @ _upper(receiver["k"]).mT,
            "k": receiver["k"] @ _upper(receiver["q"]).mT,
            "v": receiver["v"] @ _upper(receiver["o"].mT).mT,
        }
        for earlier in range(later):
            for name, read in reading.items():
                product = writing[earlier] @ read.transpose(0, 1).flatten(1)
                blocks = product.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))
                joint = blocks.square().sum((1, 3)).sqrt()
                scaled = joint / (norms[earlier]["ov"][:, None] * norms[later]["ov" if name == "v" else "qk"])
                rows, columns = (slice(each * heads, (each + 1) * heads) for each in (earlier, later))
                table[name][rows, columns] = scaled.cpu().numpy()
    return Composition(provenance=provenance_of(model, score="composition"), **table)


@dataclass(frozen=True, kw_only=True)
class EdgeTest(Record):
    """Whether the pairs a circuit joins compose more (or less) than other pairs.

    Attributes:
        statistic: Welch's t; positive: the circuit's pairs compose more. NaN where undefined.
        p_value: Two-sided, of Welch's t distribution; NaN where undefined.
        permutation_p: Two-sided, of t among 999 random choices of as many pairs: it holds for skewed values,
            where few edges make Welch's too small. NaN where undefined.
        mean_edges, mean_others: Mean composition of either side.
        n_edges: Pairs that the circuit joins.
        n_others: Other pairs.
        reason: `too_few` (fewer than 2 pairs on a side) or `zero_variance`, else None.
    """

    statistic: float = math.nan
    p_value: float = math.nan
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
        return EdgeTest(reason=reason, **sizes)
    found = scipy.stats.ttest_ind(edges, others, equal_var=False)
    statistic = float(found.statistic)
    return EdgeTest(
        statistic=statistic,
        p_value=float(found.pvalue),
        permutation_p=_permutation_p(edges, others, abs(statistic), stream(seed, "edge-test")),
        **sizes,
    )


def _permutation_p(
    edges: Float64[np.ndarray, " n_edges"],
    others: Float64[np.ndarray, " n_others"],
    statistic: float,
    rng: np.random.Generator,
) -> float:
    """Share of random choices of as many values whose Welch's t is as far from 0, the sample's included."""
    values, k = np.concatenate([edges, others]), len(edges)
    as_far = 0
    for start in range(0, _PERMUTATIONS, _AT_ONCE):
        draws = rng.random((min(_AT_ONCE, _PERMUTATIONS - start), len(values)))
        shuffled = values[np.argpartition(draws, k - 1, axis=1)]
        inside, rest = shuffled[:, :k], shuffled[:, k:]
        spread = np.sqrt(inside.var(1, ddof=1) / k + rest.var(1, ddof=1) / len(others))
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (inside.mean(1) - rest.mean(1)) / spread
        as_far += int((np.abs(t) >= statistic * (1 - 1e-9)).sum())
    return (1 + as_far) / (1 + _PERMUTATIONS)

"""What a head's weights alone say about it: spectra, writing along the answer, composition of pairs.

A head reads and writes the stream through two matrices of rank d_head, W_QK = W_Q W_K^T and W_OV =
W_V W_O (row vectors: out = x W). They are never formed: with QR factors of the thin matrices every norm and
singular value is that of a d_head x d_head product.

(Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.)
"""

import enum
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor, nn

from assay.core.errors import InputError, ShapeError, UnsupportedModelError
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


def product_singular_values(
    left: Float64[Tensor, "*batch d_in rank"], right: Float64[Tensor, "*batch rank d_out"]
) -> Float64[Tensor, "*batch rank"]:
    """Singular values of `left @ right`, falling, without forming the product.

    With left = Q_1 R_1 and right^T = Q_2 R_2 they are those of R_1 R_2^T, a rank x rank matrix.

    Args:
        left: Thin or square: d_in >= rank, or the surplus values are 0.
        right: Its partner.

    Returns:
        min(d_in, rank, d_out) values, >= 0.
    """
    values: Tensor = torch.linalg.svdvals(_upper(left) @ _upper(right.mT).mT)
    return values


def _upper(thin: Tensor) -> Tensor:
    """The R of a QR factorisation; any norm of `thin @ x` is that of `R @ x`."""
    factor: Tensor
    _, factor = torch.linalg.qr(thin, mode="r")
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


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerWeights:
    """Float64 weights of the heads of one layer; with grouped-query attention K and V are those of the group.

    Attributes:
        q, k, v: `[n_heads, d_model, d_head]`.
        o: `[n_heads, d_head, d_model]`.
    """

    q: Float64[Tensor, "n_heads d_model d_head"]
    k: Float64[Tensor, "n_heads d_model d_head"]
    v: Float64[Tensor, "n_heads d_model d_head"]
    o: Float64[Tensor, "n_heads d_head d_model"]

    @cached_property
    def uppers(self) -> dict[str, Tensor]:
        """R factors of q, k, v and of o^T."""
        thin = {"q": self.q, "k": self.k, "v": self.v, "o": self.o.mT}
        return {name: _upper(weight) for name, weight in thin.items()}


def layer_weights(model: Model, layer: int) -> LayerWeights:
    """The heads of one layer; biases, norms and the scale of the attention are left out."""
    block = model.uncut.blocks[layer]
    channels = block.qkv_weight().double().transpose(0, 1)
    group = torch.tensor([block.kv_head(head) for head in range(block.n_heads)], device=channels.device)
    keys = block.n_heads + group
    return LayerWeights(
        q=channels[: block.n_heads],
        k=channels[keys],
        v=channels[keys + block.n_kv_heads],
        o=block.out_weight().double(),
    )


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
    spectra: dict[str, list[np.ndarray]] = {matrix: [] for matrix in MATRICES}
    copying = []
    for layer in range(model.n_layers):
        weights = layer_weights(model, layer)
        spectra["ov"].append(product_singular_values(weights.v, weights.o).cpu().numpy())
        spectra["qk"].append(product_singular_values(weights.q, weights.k.mT).cpu().numpy())
        # The non-zero eigenvalues of V O are those of O V, which is d_head x d_head.
        eigenvalues = torch.linalg.eigvals(weights.o @ weights.v).cpu().numpy()
        with np.errstate(invalid="ignore"):
            copying.append(eigenvalues.real.sum(axis=1) / np.abs(eigenvalues).sum(axis=1))
    found: dict[str, Float64[np.ndarray, " H"]] = {}
    for matrix, layers in spectra.items():
        s = np.concatenate(layers)
        found[f"{matrix}-spectral-norm"] = s[:, 0]
        found[f"{matrix}-sv-entropy"] = sv_entropy(s)
        found |= {f"{matrix}-{kind}": effective_rank(s, kind) for kind in EffectiveRank}
        found[f"{matrix}-frobenius-norm"] = np.sqrt((s**2).sum(axis=1))
        second = s[:, 1] if s.shape[1] > 1 else np.zeros(len(s))
        gap = 1 - second / np.where(s[:, 0] > 0, s[:, 0], 1.0)
        found[f"{matrix}-sv-gap"] = np.where(s[:, 0] > 0, gap, 0.0)
    found["ov-copying"] = np.concatenate(copying)
    return {name: _of_weights(model, name, values) for name, values in found.items()}


def _of_weights(model: Model, name: str, values: np.ndarray, **more: Any) -> HeadScores:
    details = {"relative_offset": 0} if name.startswith("qk-") and rotary(model) else {}
    return HeadScores.from_flat(
        name,
        model.n_heads,
        values.astype(np.float64),
        sign="larger = stronger" if "norm" in name else "",
        unit="nats" if name.endswith("sv-entropy") else "",
        details=details | more.pop("details", {}),
        provenance=provenance_of(model, score=name),
        **more,
    )


def rotary(model: Model) -> bool:
    """Whether positions turn queries and keys, so that W_QK depends on the distance."""
    config: Any = model.module.config
    return bool(getattr(config, "rope_parameters", None))


# ---- the answer direction ---------------------------------------------------------------------------


def unembedding_rows(model: Model, ids: Int[Tensor, "*batch"]) -> Float64[Tensor, "*batch d_model"]:
    """Unembedding vectors u_v of outputs (columns of W_U), for tokens or classes.

    Raises:
        UnsupportedModelError: If the unembedding is not one linear map.
        InputError: For an output the model does not have.
    """
    module = model.unembed_module
    if not isinstance(module, nn.Linear):
        raise UnsupportedModelError(
            f"the unembedding is a {type(module).__name__}; expected one torch.nn.Linear"
        )
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < module.out_features):
        raise InputError(
            f"output ids run from {int(ids.min())} to {int(ids.max())}, but the model has outputs 0 to "
            f"{module.out_features - 1}"
        )
    weight = module.weight.detach()
    return weight[ids.to(weight.device)].to(model.device).double()


def answer_directions(
    model: Model,
    correct: Int[Tensor, " P"],
    incorrect: Int[Tensor, " P"],
    *,
    max_pairs: int | None = 10,
) -> Float64[Tensor, "pairs d_model"]:
    """Unit vectors (u_c - u_w) / ||u_c - u_w|| of the distinct (c, w) pairs, in order of appearance.

    Args:
        model: Its unembedding is read.
        correct: Right output of each example.
        incorrect: Output it is compared with.
        max_pairs: Most pairs taken; None takes all.

    Returns:
        Pairs with c = w, or with equal unembedding vectors, are skipped: there may be none.

    Raises:
        ShapeError: If the two lists differ in length.
        InputError: If `max_pairs` is below 1.
    """
    if correct.shape != incorrect.shape:
        raise ShapeError(
            f"correct outputs have shape {tuple(correct.shape)}, incorrect outputs "
            f"{tuple(incorrect.shape)}; give one each per example"
        )
    if max_pairs is not None and max_pairs < 1:
        raise InputError(f"max_pairs is {max_pairs}; give at least 1, or None for all")
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

    Raises:
        ShapeError: If the directions are not as wide as the stream.

    Notes:
        No forward pass. The final norm's gain is left out, as in the published score.
    """
    if directions.ndim != 2 or directions.shape[1] != model.d_model:
        raise ShapeError(
            f"directions has shape {tuple(directions.shape)}; expected [n, {model.d_model}], one row each"
        )
    if len(directions) == 0:
        empty = np.full(model.n_layers * model.n_heads, np.nan)
        return _of_weights(model, "ov-norm", empty, reason="no_direction")
    values = []
    for layer in range(model.n_layers):
        weights = layer_weights(model, layer)
        written = weights.v @ (weights.o @ directions.to(weights.o.device).T)
        values.append(written.norm(dim=1).mean(dim=1).cpu().numpy())
    return _of_weights(model, "ov-norm", np.concatenate(values), details={"n_directions": len(directions)})


def answer_norm(model: Model, task: Task, *, max_pairs: int | None = 10) -> HeadScores:
    """`ov_norm` along the directions between the first right and the first wrong outputs of a task.

    Raises:
        InputError: For a task without wrong outputs.
    """
    if task.wrong is None:
        raise InputError(
            f"ov-norm compares correct with wrong outputs, but task {task.name!r} has no wrong ones; give "
            "it wrong="
        )
    pairs = answer_directions(model, task.answers[:, 0], task.wrong[:, 0], max_pairs=max_pairs)
    return ov_norm(model, pairs)


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

"""What each head writes straight into the answer, and how large its output is.

A final norm whose scale is frozen at the clean run is linear, so the margin is a sum over everything that
writes into the stream: the embedding, the heads, the MLPs, the biases. (Elhage et al. 2021, A Mathematical
Framework for Transformer Circuits.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from assay.core.errors import InconsistentRunError, InputError, check_name
from assay.discovery.heads.scores import HeadScores, provenance_of
from assay.discovery.heads.weights import unembedding_rows
from assay.execution.batches import choose_batch_size
from assay.models import Model
from assay.models.model import at_reads
from assay.tasks import Task


ADDITIVITY = 1e-4  # largest gap between a margin and the sum of its parts, as a share of their size


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadOutputs:
    """What every part of a model wrote at the read position of each example.

    Attributes:
        z: `[P, H, d_head]`, outputs of the heads before the output projection.
        input: `[P, d_model]`, the stream entering block 0.
        mlp: `[P, L, d_model]`, outputs of the MLPs.
        final: `[P, d_model]`, the stream entering the final norm.
        normed: `[P, d_model]`, the model's own final norm of it.
        provenance: Model and examples.
    """

    z: Float[Tensor, "P H d_head"]
    input: Float[Tensor, "P d_model"]
    mlp: Float[Tensor, "P L d_model"]
    final: Float[Tensor, "P d_model"]
    normed: Float[Tensor, "P d_model"]
    provenance: Mapping[str, Any] = field(default_factory=dict)


def head_outputs(model: Model, task: Task, *, batch_size: int | None = None) -> HeadOutputs:
    """One plain pass per example; keeps what stands at its read position.

    Args:
        model: The model.
        task: The clean inputs are run.
        batch_size: Examples per pass; default: by free memory.

    Returns:
        Tensors on the CPU, float32 (float64 for a float64 model).
    """
    model, task = model.uncut, model.bind(task)
    extra = 12 * model.n_layers * model.d_model * task.length * model.result_dtype.itemsize
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra)
    parts = []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        with torch.no_grad(), model.tracing() as trace:
            model.forward(batch.clean)
        assert trace.final_in is not None
        streams = (trace.input, trace.final_in, *trace.z, *trace.mlp)
        first, final, *each = (at_reads(stream, batch.positions).to(model.result_dtype) for stream in streams)
        z, mlp = torch.stack(each[: model.n_layers], 1), torch.stack(each[model.n_layers :], 1)
        with torch.no_grad():
            normed = model.final_norm(final.to(model.dtype)).to(model.result_dtype)
        z = z.unflatten(2, (model.n_heads, model.d_head)).flatten(1, 2)
        parts.append([part.cpu() for part in (z, first, mlp, final, normed)])
    z, first, mlp, final, normed = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    facts = provenance_of(model, task)
    return HeadOutputs(z=z, input=first, mlp=mlp, final=final, normed=normed, provenance=facts)


def margin_directions(model: Model, task: Task, kind: str = "difference") -> Float64[Tensor, "P d_model"]:
    """Per example, the direction of the stream after the final norm that the margin reads.

    Args:
        model: Its unembedding is read.
        task: Right and wrong outputs of each example.
        kind: `difference`: mean unembedding vector of the right outputs less that of the wrong ones (u_c -
            u_w); `correct`: the former alone.

    Raises:
        InputError: For another kind, and for `difference` on a task without wrong outputs.
    """
    check_name("direction", kind, ("difference", "correct"))
    direction = _mean_rows(model, task.answers)
    if kind == "correct":
        return direction
    if task.wrong is None:
        raise InputError(
            f"task {task.name!r} has no wrong outputs; give it wrong=, or use the direction 'correct'"
        )
    return direction - _mean_rows(model, task.wrong)


def _mean_rows(model: Model, ids: Int[Tensor, "P n"]) -> Float64[Tensor, "P d_model"]:
    present = (ids >= 0)[..., None].to(model.device)
    rows = unembedding_rows(model, ids.clamp(min=0))
    return (rows * present).sum(1) / present.sum(1)


def direct_attribution(
    model: Model, outputs: HeadOutputs, directions: Float64[Tensor, "P d_model"], *, norm: str = "frozen"
) -> HeadScores:
    """Direct logit attribution: what each head adds to the margin by its own path to the logits.

    D_ij = o_ij . ((gamma u_i) - mean(gamma u_i)) / s_i, with o_ij = z_ij W_O,j, gamma the gain of the final
    LayerNorm and s_i = sqrt(var + eps) of the stream it reads, frozen; without the mean for RMSNorm. With
    `norm="none"` D_ij = o_ij . u_i.

    Args:
        model: The model the outputs are of.
        outputs: What `head_outputs` returned.
        directions: Per example, e.g. `margin_directions(model, task)`.
        norm: `frozen` or `none` (as published, where the final norm is ignored).

    Returns:
        Per example and head, logits; positive: the head raises the margin. `details`, under `frozen` only:
        `rest`, what embedding, MLPs and biases add, and `margin`, both `[P]` and in logits (the bias of the
        unembedding apart), and `additivity_gap`, the largest |margin - sum of all parts| as a share of their
        size.

    Raises:
        UnknownNameError: For another norm.
        InconsistentRunError: If the parts do not add up to the margin within 1e-4, in a float32 or float64
            model.

    Notes:
        No forward pass beyond `head_outputs`. Examples with non-finite activations have NaN rows.

    References:
        Elhage et al. (2021), A Mathematical Framework for Transformer Circuits.
    """
    check_name("norm", norm, ("frozen", "none"))
    model = model.uncut
    u = directions.cpu()
    read = u
    if norm == "frozen":
        _, inverse = model.final_norm.standardise(outputs.final.double())
        read = model.final_norm.centre(model.final_norm.scaled_by_gain(u)) * inverse
    z = outputs.z.double().unflatten(1, (model.n_layers, model.n_heads))
    written = []
    for layer, block in enumerate(model.blocks):
        through = torch.einsum("pd,hcd->phc", read, block.out_weight().double().cpu())
        written.append((z[:, layer] * through).sum(2))
    per_example = torch.cat(written, 1)
    details = _rest(model, outputs, read, u, per_example) if norm == "frozen" else {}
    return HeadScores.from_flat(
        "direct-attribution",
        model.n_heads,
        per_example=per_example.numpy(),
        sign="positive = raises the margin",
        unit="logits",
        details=details,
        provenance={**outputs.provenance, "score": "direct-attribution", "norm": norm},
    )


def _rest(
    model: Model, outputs: HeadOutputs, read: Tensor, u: Tensor, heads: Tensor
) -> dict[str, Float64[np.ndarray, " P"] | float]:
    """Everything but the heads, the margin it all makes up, and how well it does."""
    stream = outputs.input.double() + outputs.mlp.double().sum(1)
    for block in model.blocks:
        bias = block.out_bias()
        stream = stream if bias is None else stream + bias.double().cpu()
    rest = (stream * read).sum(1)
    shift = model.final_norm.shift
    if shift is not None:
        rest = rest + u @ shift.double().cpu()
    margin = (outputs.normed.double() * u).sum(1)
    parts = heads.abs().sum(1) + rest.abs()
    gap = (margin - heads.sum(1) - rest).abs() / torch.where(parts > 0, parts, 1)
    gap = gap[gap.isfinite()]
    largest = float(gap.max()) if len(gap) else math.nan
    if model.dtype in (torch.float32, torch.float64) and largest > ADDITIVITY:
        raise InconsistentRunError(
            f"the parts of the stream differ from the margin by {largest:.1e} of their size (allowed: "
            f"{ADDITIVITY:g}): either a module besides heads and MLPs writes into the stream of "
            f"{model.id!r}, or its classifier reads other positions"
        )
    return {"rest": rest.numpy(), "margin": margin.numpy(), "additivity_gap": largest}


def activation_magnitude(model: Model, outputs: HeadOutputs) -> HeadScores:
    """Mean |z| over examples and features at the read position: a baseline that knows nothing of the task.

    Returns:
        Per example and head, >= 0, in units of the activations.
    """
    table = outputs.z.double().abs().mean(2).numpy()
    return HeadScores.from_flat(
        "activation-magnitude",
        model.n_heads,
        per_example=table,
        sign="larger = more active",
        provenance={**outputs.provenance, "score": "activation-magnitude"},
    )

"""Scores of heads by the gradients at what they read and write."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import check_least
from assay.discovery.heads.scores import HeadScores, provenance_of
from assay.execution.batches import choose_batch_size
from assay.models import Block, Model
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Batch, Task
from assay.tasks.task import draw_rows


def _back_and_forth(
    model: Model, batch: Batch, loss: Objective, *wanted: str
) -> tuple[dict[str, list[Tensor]], list[tuple[Tensor, ...]]]:
    """A clean pass and the gradients of its loss; parameters are left out, so both cost about the same.

    Returns:
        Per layer what stands at `stream`, the normed input of the values `[batch, pos, d_model]`; `value`,
        the output of the module that makes them, others perhaps with them; `z`, the input of the output
        projection `[batch, pos, n_heads * d_head]`; `out`, its output. Then the gradients at the layers of
        each name wanted.
    """
    record: dict[str, list[Tensor]] = {name: [] for name in ("stream", "value", "z", "out")}

    def leaf(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (args[0].detach().requires_grad_(), *args[1:]), kwargs  # gradients end at block 0

    def keep(given: str, made: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            record[given].append(args[0])
            record[made].append(output)

        return hook

    with ExitStack() as stack:
        stack.enter_context(model.frozen())
        stack.enter_context(torch.enable_grad())
        entry = model.blocks[0].module.register_forward_pre_hook(leaf, with_kwargs=True)
        stack.callback(entry.remove)
        for block in model.blocks:
            values = block.qkv[_value_columns(block)[0]]
            stack.callback(values.register_forward_hook(keep("stream", "value")).remove)
            stack.callback(block.out.register_forward_hook(keep("z", "out")).remove)
        logits = model.read(model.forward(batch.clean), batch.positions).to(model.result_dtype)
        sites = [tensor for name in wanted for tensor in record[name]]
        gradients = torch.autograd.grad(loss(logits, logits.detach(), batch).sum(), sites)
    by_name = [gradients[at : at + model.n_layers] for at in range(0, len(gradients), model.n_layers)]
    return record, by_name


def attribution_patching(
    model: Model,
    task: Task,
    *,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
) -> HeadScores:
    """First-order estimate of what the margin loses when a head gets its output on the corrupted input.

    A_ij = sum_t < z_itj - z~_itj, dy_i / dz_itj >, with z the head's output before the output projection, z~
    that of the corrupted run, y the margin (the negative loss), and the gradient taken at the clean run.

    Args:
        model: The model.
        task: Clean and corrupted inputs of equal length.
        objective: Loss whose negative is y; default: the task's own.
        batch_size: Examples per pass; default: by free memory. Results do not depend on it.

    Returns:
        Per example and head, in the unit of the objective; positive: the head helps (corrupting it lowers y).
        Published scores have the other sign and are ranked by magnitude: `scores.top(k, magnitude=True)`.

    Raises:
        InputError: If the task lacks what the objective reads.

    Notes:
        Cost per example: a forward and a backward pass on the clean input, a forward pass on the corrupted
        one. Exact where y is linear in the head; poor where attention saturates. Examples whose activations
        or gradients are not finite have NaN rows.

    References:
        Nanda (2023), Attribution Patching; Syed et al. (2023), arXiv:2310.10348.
    """
    chosen = get_objective(objective or task.objective)
    model, task = model.uncut, model.bind(task)
    extra = 30 * model.n_layers * model.d_model * task.length * model.result_dtype.itemsize
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra)
    rows = []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        with torch.no_grad(), model.tracing() as corrupted:
            model.forward(batch.corrupted)
        clean, [gradients] = _back_and_forth(model, batch, chosen, "z")
        real = torch.arange(batch.width, device=model.device) < batch.lengths[:, None]
        layers = []
        for before, after, gradient in zip(clean["z"], corrupted.head_z, gradients, strict=True):
            difference = (after - before.detach().to(model.device)).double()  # the margin is -loss
            product = difference * gradient.to(model.device).double() * real[..., None]
            layers.append(product.unflatten(2, (model.n_heads, model.d_head)).sum((1, 3)))
        rows.append(torch.cat(layers, 1).cpu())
    table = torch.cat(rows).numpy()
    return HeadScores.from_flat(
        "attribution-patching",
        model.n_heads,
        per_example=table,
        sign="positive = helps the margin",
        unit=chosen.unit,
        provenance=provenance_of(model, task, score="attribution-patching", objective=chosen.key),
    )


_ACTIVE = 0.01  # share of the largest gradient variance above which a coordinate counts


def fisher_count(
    model: Model, task: Task, *, n: int = 20, batch_size: int | None = None, seed: int = 0
) -> HeadScores:
    """Count of active directions of each head, on the scale of a learning coefficient.

    #{v > 0.01 max v} / (2 ln n), with v the variance over examples of each coordinate of the gradient of the
    cross-entropy of the answers with respect to (W_V, W_O) of the head. It is not an estimate of the learning
    coefficient, only as cheap as a backward pass.

    Args:
        model: The model.
        task: `n` clean inputs are used: the first of a task drawn from its grammar, a random sample of any
            other.
        n: Examples.
        batch_size: Examples per pass; default: by free memory. Results do not depend on it.
        seed: Of the sample.

    Returns:
        >= 0; lower = simpler. 0 for a head whose gradient never varies. `details["counts"]` holds the
        counts. With fewer than 2 examples 0 everywhere, with the reason `too_few`.

    Notes:
        Examples whose activations or gradients are not finite are left out; `details["n"]` counts the others.
        Cost per example: a forward and a backward pass. Under grouped-query attention W_V is that of the
        group. The published code takes the same slice of the layer's W_O for every head of the layer.

    References:
        Wang et al. (2024), arXiv:2410.02984, for what is being approximated.
    """
    check_least(1, n=n)
    drawn = getattr(task, "grammar", None) is not None  # one prompt after the other, so in no order
    rows = np.arange(min(n, task.n)) if drawn else draw_rows(task.n, n, seed=seed, what="examples")
    used = model.bind(task).subset(rows.tolist())
    loss = get_objective("ce")
    sites = _gradient_sites(model, used, loss, batch_size)
    # An example that is not finite would make all variances undefined.
    finite = torch.stack([part.isfinite().flatten(1).all(1) for site in sites for part in site]).all(0)
    details: dict[str, Any] = {"n": int(finite.sum())}
    values = np.zeros(model.n_layers * model.n_heads)
    if details["n"] >= 2:
        details["counts"] = [
            _active(site, model.blocks[layer], head)
            for layer, site in enumerate([[part[finite] for part in site] for site in sites])
            for head in range(model.n_heads)
        ]
        values = np.array(details["counts"]) / (2 * math.log(details["n"]))
    return HeadScores.from_flat(
        "llc-fisher-count",
        model.n_heads,
        values,
        sign="lower = simpler",
        reason=None if details["n"] >= 2 else "too_few",
        details=details,
        provenance=provenance_of(model, used, score="llc-fisher-count", objective=loss.key, active=_ACTIVE),
    )


def _gradient_sites(model: Model, task: Task, loss: Objective, asked: int | None) -> list[list[Tensor]]:
    """What the gradients of each layer's W_V and W_O are made of, per example and position.

    Returns:
        Input of the value projection, gradient at its output `[n, pos, n_kv_heads, d_head]`, input of the
        output projection `[n, pos, n_heads, d_head]`, gradient at its output.
    """
    extra = 40 * model.n_layers * model.d_model * task.length * model.result_dtype.itemsize
    size = choose_batch_size(model, task, asked=asked, bytes_per_example=extra)
    found = []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        record, [at_value, at_out] = _back_and_forth(model, batch, loss, "value", "out")
        layers = zip(record["stream"], at_value, record["z"], at_out, strict=True)
        sites = [[part.detach().to(model.device) for part in layer] for layer in layers]
        for site, block in zip(sites, model.blocks, strict=True):
            site[1] = site[1][..., _value_columns(block)[1].to(model.device)]
            site[2] = site[2].unflatten(-1, (model.n_heads, model.d_head))
        found.append(sites)
    return [[torch.cat(parts) for parts in zip(*layer, strict=True)] for layer in zip(*found, strict=True)]


def _active(site: Sequence[Tensor], block: Block, head: int) -> int:
    """Coordinates of one head's gradient whose variance over examples is not negligible."""
    stream, value_gradient, z, output_gradient = site
    kv_head = block.kv_head(head)
    value = torch.einsum("ptd,ptc->pdc", stream.double(), value_gradient[:, :, kv_head].double())
    output = torch.einsum("ptc,ptd->pcd", z[:, :, head].double(), output_gradient.double())
    variance = torch.cat([each.flatten(1).var(dim=0) for each in (value, output)])
    return int((variance > _ACTIVE * variance.max()).sum())


def _value_columns(block: Block) -> tuple[int, Tensor]:
    """Which projection module makes the values, and its output columns per key/value head."""
    separate = len(block.qkv) == 3
    heads = [block.n_heads, block.n_kv_heads, block.n_kv_heads] if separate else [block.n_channels]
    widths = [count * block.d_head for count in heads]
    # Numbering the outputs and laying them out as channels says where each channel stands.
    numbered = block.channels([torch.arange(width, dtype=torch.float64) for width in widths])
    return len(heads) - 1, numbered[block.n_heads + block.n_kv_heads :].long()

"""Counts of the active directions of heads: one backward pass in place of a learning coefficient."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import check_least
from assay.discovery.heads.recording import recording
from assay.discovery.heads.scores import HeadScores, provenance_of
from assay.execution.batches import choose_batch_size
from assay.models import Block, Model, Separate
from assay.objectives import Objective, get_objective
from assay.tasks import Task
from assay.tasks.rows import draw_rows


_ACTIVE = 0.01  # share of the largest gradient variance above which a coordinate counts


def fisher_count(
    model: Model,
    task: Task,
    *,
    n: int = 20,
    objective: str | Objective = "ce",
    batch_size: int | None = None,
    seed: int = 0,
) -> HeadScores:
    """Count of active directions of each head, on the scale of a learning coefficient.

    #{v > 0.01 max v} / (2 ln n), with v the variance over examples of each coordinate of the gradient of the
    loss with respect to (W_V, W_O) of the head. It is not an estimate of the learning coefficient, only
    as cheap as a backward pass.

    Args:
        model: The model.
        task: `n` clean inputs are used: the first of a task drawn from its grammar, a random sample of any
            other.
        n: Examples.
        objective: Loss; cross-entropy of the answers unless told otherwise.
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
    used = _some_examples(model, task, n, seed)
    loss = get_objective(objective)
    settings = {"objective": loss.key, "active": _ACTIVE}
    sites = _finite(_gradient_sites(model, used, loss, batch_size))
    n_finite = len(sites[0].z)
    if n_finite < 2:
        zeros = np.zeros(model.n_layers * model.n_heads)
        return _scores(model, used, zeros, settings, reason="too_few", details={"n": n_finite})
    counts = [
        _active(site, model.blocks[layer], head)
        for layer, site in enumerate(sites)
        for head in range(model.n_heads)
    ]
    values = np.array(counts) / (2 * math.log(n_finite))
    details = {"counts": counts, "n": n_finite}
    return _scores(model, used, values, settings, details=details)


def _scores(
    model: Model, task: Task, values: np.ndarray, settings: dict[str, Any], **more: Any
) -> HeadScores:
    name = "llc-fisher-count"
    provenance = provenance_of(model, task, score=name, **settings)
    return HeadScores.from_flat(
        name, model.n_heads, values, sign="lower = simpler", provenance=provenance, **more
    )


def _some_examples(model: Model, task: Task, n: int, seed: int) -> Task:
    """The first n inputs of a task drawn from its grammar, a random sample of any other."""
    check_least(1, n=n)
    drawn = getattr(task, "grammar", None) is not None  # one prompt after the other, so in no order
    rows = np.arange(min(n, task.n)) if drawn else draw_rows(task.n, n, seed=seed, what="examples")
    return model.bind(task).subset(rows.tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class _Site:
    """What the gradients of one layer's W_V and W_O are made of, per example and position.

    Attributes:
        stream: Input of the value projection.
        value_gradient: Gradient at its output, `[n, pos, n_kv_heads, d_head]`.
        z: Input of the output projection, `[n, pos, n_heads, d_head]`.
        output_gradient: Gradient at its output.
    """

    stream: Tensor
    value_gradient: Tensor
    z: Tensor
    output_gradient: Tensor


def _finite(sites: Sequence[_Site]) -> list[_Site]:
    """The examples on which everything is finite: one that is not would make all variances undefined."""
    each = [value.isfinite().flatten(1).all(1) for site in sites for value in vars(site).values()]
    rows = torch.stack(each).all(0)
    if bool(rows.all()):
        return list(sites)
    return [_Site(**{name: value[rows] for name, value in vars(site).items()}) for site in sites]


def _gradient_sites(model: Model, task: Task, loss: Objective, asked: int | None) -> list[_Site]:
    extra = 40 * model.n_layers * model.d_model * task.length * 4
    size = choose_batch_size(model, task, asked=asked, bytes_per_example=extra)
    found: list[list[_Site]] = [[] for _ in range(model.n_layers)]
    for batch in task.batches(size):
        batch = batch.to(model.device)
        with recording(model) as record:
            logits = model.read(model.forward(batch.clean), batch.positions).to(model.result_dtype)
            each = loss(logits, logits.detach(), batch)
            values = [
                parts[_value_columns(block)[0]] for parts, block in zip(record.qkv, model.blocks, strict=True)
            ]
            found_at = torch.autograd.grad(each.sum(), [*values, *record.out])
            gradients = [gradient.to(model.device) for gradient in found_at]
        heads = (model.n_heads, model.d_head)
        for layer, block in enumerate(model.blocks):
            columns = _value_columns(block)[1].to(model.device)
            found[layer].append(
                _Site(
                    stream=record.stream[layer].detach().to(model.device),
                    value_gradient=gradients[layer][..., columns],
                    z=record.z[layer].detach().to(model.device).unflatten(-1, heads),
                    output_gradient=gradients[model.n_layers + layer],
                )
            )
    return [
        _Site(**{name: torch.cat([getattr(site, name) for site in sites]) for name in vars(sites[0])})
        for sites in found
    ]


def _active(site: _Site, block: Block, head: int) -> int:
    """Coordinates of one head's gradient whose variance over examples is not negligible."""
    value = torch.einsum(
        "ptd,ptc->pdc", site.stream.double(), site.value_gradient[:, :, block.kv_head(head)].double()
    )
    output = torch.einsum("ptc,ptd->pcd", site.z[:, :, head].double(), site.output_gradient.double())
    variance = torch.cat([each.flatten(1).var(dim=0) for each in (value, output)])
    return int((variance > _ACTIVE * variance.max()).sum())


def _value_columns(block: Block) -> tuple[int, Tensor]:
    """Which projection module makes the values, and its output columns per key/value head."""
    if isinstance(block.family.qkv, Separate):
        widths = [block.n_heads * block.d_head, *[block.n_kv_heads * block.d_head] * 2]
        module = 2
    else:
        widths, module = [block.n_channels * block.d_head], 0
    # Numbering the outputs and laying them out as channels says where each channel stands.
    numbered = block.channels([torch.arange(width, dtype=torch.float64) for width in widths])
    return module, numbered[block.n_heads + block.n_kv_heads :].long()

"""Scores of the edges into the logits with the graph of their computation: what a circuit loss is made of."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.errors import InputError, UnsupportedModelError, unknown_name
from assay.models import Block, Model, Trace


VARIANTS = ("eap_ig_detach_g", "eap_ig_detach_actdiff")
SECOND_ORDER = "eap_ig_detach_actdiff"


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveScores:
    """Scores of the edges into the logits, with the graph of their computation.

    Attributes:
        values: Signed score of each source, in the order of `graph.sources`, `[n_sources]`.
        gradient: What the outputs were multiplied with, at the positions the classifier reads (one, unless it
            pools), without its graph.
    """

    values: Float[Tensor, " n_sources"]
    gradient: Float[Tensor, "batch read d_model"]


def live_scores(
    model: Model,
    images: Float[Tensor, "batch 3 h w"],
    *,
    variant: str = "eap_ig_detach_g",
    steps: int = 4,
) -> LiveScores:
    """Scores of the edges from every source to the logits on one batch, differentiable in the weights.

    score(u) = sum over images and positions of <r_u - o_u, g>: o_u is what node u adds to the stream, r_u its
    mean over the batch (a constant), g the gradient with respect to the stream leaving the last block:
    g = (1/m) sum_{k=1}^{m-1} of the gradient of KL(clean || interpolated) /
    n_classes, meant over the batch, with the stream entering block 0 at mean + (k/m) (image - mean).

    Args:
        model: An image classifier; parameters that should learn must ask for gradients. It is run in
            evaluation mode, whatever mode it is in, and put back.
        images: Normalised images, 2 or more: the mean of one image is the image, and every score 0.
        variant: One of `VARIANTS`, see `CircuitSettings`.
        steps: m, 2 or more.

    Returns:
        Scores in the unit nats / n_classes; their scale is that of the public
        code, not that of `discover`, and cancels in the depth bias.

    Raises:
        InputError: If the model reads no images, the batch holds one, or m < 2.
        UnknownNameError: If there is no such variant.

    Notes:
        Cost: one forward and one backward pass, and m - 1 forward passes that keep nothing (first order), or
        m - 1 forward and backward passes through everything (second order).

    References:
        Peng et al. (2026), arXiv:2604.08192, public code.
    """
    if variant not in VARIANTS:
        raise unknown_name("variant of the circuit loss", variant, VARIANTS)
    if model.vision is None:
        raise InputError(
            f"{model.id} is a language model, but the circuit loss is defined for image classifiers"
        )
    if len(images) < 2:
        raise InputError(
            f"a batch of {len(images)} image equals its mean, so every score would be 0; use batches of 2 "
            "or more"
        )
    if steps < 2:
        raise InputError(f"steps (m) is {steps}; give 2 or more")
    with evaluating(model.module), torch.enable_grad():
        run = _record(model, images)
        gradient = _divergence_gradient(model, images, run, steps, second=variant == SECOND_ORDER)
        gradient = torch.where(torch.isfinite(gradient.detach()), gradient, 0.0)
        values = _contract(model, run, gradient, second=variant == SECOND_ORDER)
    return LiveScores(values=values, gradient=gradient.detach())


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every submodule is put back into its own mode afterwards."""
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, mode in modes:
            each.training = mode


def _record(model: Model, images: Tensor, replace: Tensor | None = None) -> Trace:
    """One native pass with its graph; with `replace`, the stream entering block 0 is that."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del module
        return None if replace is None else ((replace, *args[1:]), kwargs)

    handle = model.blocks[0].module.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with model.tracing(sources=replace is None, attached=True) as trace:
            model.forward(images)
    finally:
        handle.remove()
    return trace


def _read(model: Model) -> slice:
    """Positions that the classifier reads."""
    return slice(None) if model.pools else slice(0, 1)


def _final(model: Model, run: Trace) -> Float[Tensor, "batch read d_model"]:
    """The stream leaving the last block, at the positions that are read."""
    assert run.final_in is not None
    return run.final_in[:, _read(model)]


def _logits(model: Model, final: Tensor) -> Float[Tensor, "batch n_classes"]:
    return model.finish(final if model.pools else final[:, 0])


def _divergence_gradient(
    model: Model, images: Tensor, run: Trace, steps: int, *, second: bool
) -> Float[Tensor, "batch read d_model"]:
    """Gradient of KL(clean || interpolated) / n_classes, meant along the path; with its graph if `second`."""
    clean = _logits(model, _final(model, run)).detach().log_softmax(-1)
    entering = run.input if second else run.input.detach()
    mean = entering.detach().mean(0, keepdim=True)
    total = torch.zeros_like(_final(model, run))
    for step in range(1, steps):
        with torch.set_grad_enabled(second):
            final = _final(model, _record(model, images, mean + step / steps * (entering - mean)))
        if not second:
            final = final.detach().requires_grad_()
        reached = _logits(model, final).log_softmax(-1)
        divergence = (clean.exp() * (clean - reached)).sum(-1).mean() / clean.shape[-1]
        total = total + torch.autograd.grad(divergence, final, create_graph=second)[0] / steps
    return total if second else total.detach()


def _live_out_weight(block: Block) -> Float[Tensor, "n_heads d_head d_model"]:
    """Output projection per head with the scale of the branch, as parameters that learn."""
    if not isinstance(block.out, nn.Linear):
        raise UnsupportedModelError(
            f"the output projection of a block is {type(block.out).__name__}, but the circuit loss "
            "needs a Linear"
        )
    weight = block.out.weight.to(block.home)
    per_head: Tensor = weight.T.unflatten(0, (block.n_heads, block.d_head))
    if block.attention_scale is None:
        return per_head
    (gamma,) = block.attention_scale.parameters()
    return per_head * gamma.to(block.home)


def _contract(model: Model, run: Trace, gradient: Tensor, *, second: bool) -> Float[Tensor, " n_sources"]:
    """<r_u - o_u, g> summed over images and positions, sources in the order of the graph."""

    def along(outputs: Tensor) -> Tensor:
        kept = outputs[:, _read(model)]
        kept = kept.detach() if second else kept
        return ((kept.detach().mean(0) - kept) * gradient).sum()

    scores = [along(run.input)]
    for block, z, mlp in zip(model.blocks, run.z, run.mlp, strict=True):
        heads = z[:, _read(model)].unflatten(-1, (block.n_heads, block.d_head))
        weight = _live_out_weight(block)
        if second:
            heads, weight = heads.detach(), weight.detach()
        # g W_O^T meets the heads' small outputs: the same sum without each head's write to the stream.
        projected = torch.einsum("npm,hdm->nphd", gradient, weight)
        replaced = projected if second else projected.detach()
        scores += [(heads.detach().mean(0) * replaced - heads * projected).sum((0, 1, 3)), along(mlp)]
    return torch.cat([each.reshape(-1) for each in scores])

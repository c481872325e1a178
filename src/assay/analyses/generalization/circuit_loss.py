"""The depth bias as a loss: scores of the edges into the logits that a gradient can flow through."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.analyses.generalization.dependency import FLOOR, LayerSets, layer_sets
from assay.core.errors import InputError, UnsupportedModelError, unknown_name
from assay.core.record import Record
from assay.graph import Graph
from assay.models import Block, Model, load_model
from assay.zoo import LossTerm


VARIANTS = ("eap_ig_detach_g", "eap_ig_detach_actdiff", "target_logit", "accumulated")
LOSSES = ("log", "ratio")
SECOND_ORDER = "eap_ig_detach_actdiff"


@dataclass(frozen=True, kw_only=True)
class CircuitSettings(Record):
    """How the circuit enters the loss: `cross-entropy + weight * circuit loss`.

    Args:
        weight: lambda of the circuit loss, 0 or more; 0 trains plainly. Published: 0.05, 0.1 and 0.2.
        variant: Which part of a score, <replacement - output, gradient>, the training signal flows through:

            - `eap_ig_detach_g`: the outputs of the nodes; gradients are constants (first order, the default);
            - `eap_ig_detach_actdiff`: the gradients; outputs are constants (second order);
            - `target_logit`: the outputs, with the constant gradient of the mean logit of the labelled class
              at the clean input;
            - `accumulated`: the outputs, with the gradient averaged over the last `memory` batches.
        loss: `log`: -log(deep / shallow), the negative depth bias; `ratio`: shallow / deep.
        steps: m: the gradient is (1/m) times its sum over the m - 1 points k/m between mean and image; 2 or
            more.
        ratio: Fraction of the blocks that count as shallow, and as deep, in (0, 0.5].
        shallow: First and last block (0-based, both included) instead of the share `ratio`; give both sets.
        deep: The same for the deep blocks.
        memory: Batches that `accumulated` averages over, the current one included; published: 4 and 8.

    Raises:
        InputError: If a value is out of range, one set is given without the other, or the sets overlap.
        UnknownNameError: If there is no such variant or loss.

    References:
        Peng et al. (2026), arXiv:2604.08192, public code.

    Example:
        >>> CircuitSettings(shallow=(0, 3), deep=(9, 11)).sets(12)
        LayerSets(low=(1, 4), high=(10, 12))
    """

    weight: float | int = 0.1
    variant: str = "eap_ig_detach_g"
    loss: str = "log"
    steps: int = 4
    ratio: float | int = 0.3
    shallow: tuple[int, int] | None = None
    deep: tuple[int, int] | None = None
    memory: int = 4

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("variant of the circuit loss", self.variant, VARIANTS),
            ("circuit loss", self.loss, LOSSES),
        ):
            if value not in known:
                raise unknown_name(kind, value, known)
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise InputError(
                f"weight (lambda) of the circuit loss is {self.weight}; give 0 or more: a negative one would "
                "train towards shallow circuits"
            )
        if self.steps < 2:
            raise InputError(
                f"steps (m) is {self.steps}; give 2 or more: the points k/m with 0 < k < m are evaluated"
            )
        if self.memory < 1:
            raise InputError(f"memory is {self.memory} batches; give 1 or more")
        if not 0 < self.ratio <= 0.5:
            raise InputError(f"ratio is {self.ratio}; it is a fraction of the blocks in (0, 0.5]")
        if (self.shallow is None) != (self.deep is None):
            raise InputError(f"shallow is {self.shallow} and deep {self.deep}; give both sets or neither")
        if self.shallow is None or self.deep is None:
            return
        for name, (first, last) in (("shallow", self.shallow), ("deep", self.deep)):
            if not 0 <= first <= last:
                raise InputError(f"{name} is {first} to {last}; give the first and the last block, from 0 on")
        if self.shallow[1] >= self.deep[0]:
            raise InputError(
                f"shallow blocks {self.shallow[0]} to {self.shallow[1]} and deep blocks {self.deep[0]} to "
                f"{self.deep[1]} overlap or are in the wrong order"
            )

    def sets(self, n_layers: int) -> LayerSets:
        """The two sets for a model of so many blocks, as layers (block l is layer l + 1).

        Raises:
            InputError: If the model has too few blocks.
        """
        if self.shallow is None or self.deep is None:
            return layer_sets(n_layers, self.ratio)
        if self.deep[1] >= n_layers:
            raise InputError(
                f"deep blocks end at {self.deep[1]}, but the model has {n_layers}: 0 to {n_layers - 1}"
            )
        return LayerSets(
            (self.shallow[0] + 1, self.shallow[1] + 1),
            (self.deep[0] + 1, self.deep[1] + 1),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CircuitSettings":
        """The settings of a record; those left out have their defaults.

        Raises:
            UnknownNameError: If there is no such setting.
        """
        known = {each.name for each in fields(cls)}
        for name in values:
            if name not in known:
                raise unknown_name("setting of the circuit loss", name, known)
        sets = {name: tuple(value) for name in ("shallow", "deep") if (value := values.get(name)) is not None}
        return cls(**{**values, **sets})


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveScores:
    """Scores of the edges into the logits, with the graph of their computation.

    Attributes:
        values: Signed score of each source, in the order of `graph.sources`, `[n_sources]`.
        gradient: What the outputs were multiplied with, at the positions the classifier reads (one, unless it
            pools), without its graph.
        guarded: Entries of that gradient that were NaN or infinite and count as 0.
    """

    values: Float[Tensor, " n_sources"]
    gradient: Float[Tensor, "batch read d_model"]
    guarded: int


def live_scores(
    model: Model,
    images: Float[Tensor, "batch 3 h w"],
    labels: Int[Tensor, " batch"] | None = None,
    *,
    variant: str = "eap_ig_detach_g",
    steps: int = 4,
    past: Sequence[Float[Tensor, "_ _ _"]] = (),
) -> LiveScores:
    """Scores of the edges from every source to the logits on one batch, differentiable in the weights.

    score(u) = sum over images and positions of <r_u - o_u, g>: o_u is what node u adds to the stream, r_u its
    mean over the batch (a constant), g the gradient with respect to the stream leaving the last block. For
    the variants of EAP-IG, g = (1/m) sum_{k=1}^{m-1} of the gradient of KL(clean || interpolated) /
    n_classes, meant over the batch, with the stream entering block 0 at mean + (k/m) (image - mean).

    Args:
        model: An image classifier; parameters that should learn must ask for gradients. It is run in
            evaluation mode, whatever mode it is in, and put back.
        images: Normalised images, 2 or more: the mean of one image is the image, and every score 0.
        labels: Class of each image; needed by `target_logit` alone.
        variant: One of `VARIANTS`, see `CircuitSettings`.
        steps: m, 2 or more.
        past: For `accumulated`, `gradient` of earlier batches; those of batches of another size are left out.

    Returns:
        Scores in the unit nats / n_classes (logits for `target_logit`); their scale is that of the public
        code, not that of `discover`, and cancels in the depth bias.

    Raises:
        InputError: If the model reads no images, the batch holds one, labels are missing, or m < 2.
        UnknownNameError: If there is no such variant.

    Notes:
        Cost: one forward and one backward pass, and m - 1 forward passes that keep nothing (first order), or
        m - 1 forward and backward passes through everything (second order).
        `accumulated` averages row by row, as the gradients of different images cannot be averaged before they
        meet the outputs: with a gradient equal for all images every score is 0, since r_u is the mean of o_u.
        Rows of different batches are unrelated images, so that earlier batches add noise of mean 0 and the
        signal shrinks with the memory.

    References:
        Peng et al. (2026), arXiv:2604.08192, public code.
    """
    if variant not in VARIANTS:
        raise unknown_name("variant of the circuit loss", variant, VARIANTS)
    if model.vision is None:
        raise InputError(f"{model.id} is a language model; the circuit loss is defined for image classifiers")
    if len(images) < 2:
        raise InputError(
            f"a batch of {len(images)} image has no mean to compare it with: every score would be 0; use "
            "batches of 2 or more"
        )
    if steps < 2:
        raise InputError(f"steps (m) is {steps}; give 2 or more")
    if variant == "target_logit" and labels is None:
        raise InputError("the variant target_logit needs labels: it follows the logit of the right class")
    with evaluating(model.module), torch.enable_grad():
        run = _record(model, images)
        if variant == "target_logit":
            assert labels is not None
            gradient = _logit_gradient(model, run.final, labels)
        else:
            gradient = _divergence_gradient(model, images, run, steps, second=variant == SECOND_ORDER)
        bad = ~torch.isfinite(gradient.detach())
        gradient = torch.where(bad, 0.0, gradient)
        now = gradient.detach()
        if variant == "accumulated":
            same = [each.to(now) for each in past if each.shape == now.shape]
            gradient = torch.stack([*same, now]).mean(0)
        values = _contract(model, run, gradient, second=variant == SECOND_ORDER)
    return LiveScores(values=values, gradient=now, guarded=int(bad.sum()))


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


@dataclass(kw_only=True, eq=False)
class _Run:
    """What a pass with its graph left: the stream entering block 0 and leaving the last, node outputs."""

    reads: slice
    entering: list[Tensor] = field(default_factory=list)
    z: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)
    leaving: list[Tensor] = field(default_factory=list)

    @property
    def final(self) -> Float[Tensor, "batch read d_model"]:
        """The stream leaving the last block, at the positions that are read."""
        return self.leaving[0][:, self.reads]


def _record(model: Model, images: Tensor, replace: Tensor | None = None) -> _Run:
    """One native pass; with `replace`, the stream entering block 0 is that."""
    run = _Run(reads=slice(None) if model.pools else slice(0, 1))

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del module
        run.entering.append(args[0])
        return None if replace is None else ((replace, *args[1:]), kwargs)

    with ExitStack() as hooks:
        first = model.blocks[0].module.register_forward_pre_hook(enter, with_kwargs=True)
        hooks.callback(first.remove)
        last = model.final_norm.module.register_forward_pre_hook(
            lambda module, args: run.leaving.append(args[0])
        )
        hooks.callback(last.remove)
        for block in model.blocks if replace is None else ():
            out = block.out.register_forward_pre_hook(lambda module, args: run.z.append(args[0]))
            hooks.callback(out.remove)
            mlp = block.mlp_out.register_forward_hook(lambda module, args, output: run.mlp.append(output))
            hooks.callback(mlp.remove)
        model.forward(images)
    return run


def _logits(model: Model, final: Tensor) -> Float[Tensor, "batch n_classes"]:
    return model.finish(final if model.pools else final[:, 0])


def _logit_gradient(model: Model, final: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean logit of the labelled class at the clean input."""
    leaf = final.detach().requires_grad_()
    chosen = _logits(model, leaf).gather(1, labels.to(leaf.device).view(-1, 1))
    return torch.autograd.grad(chosen.mean(), leaf)[0]


def _divergence_gradient(
    model: Model, images: Tensor, run: _Run, steps: int, *, second: bool
) -> Float[Tensor, "batch read d_model"]:
    """Gradient of KL(clean || interpolated) / n_classes, meant along the path; with its graph if `second`."""
    clean = _logits(model, run.final).detach().log_softmax(-1)
    entering = run.entering[0] if second else run.entering[0].detach()
    mean = entering.detach().mean(0, keepdim=True)
    total = torch.zeros_like(run.final)
    for step in range(1, steps):
        with torch.set_grad_enabled(second):
            final = _record(model, images, mean + step / steps * (entering - mean)).final
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
            f"the output projection of a block is {type(block.out).__name__}; the circuit loss needs a Linear"
        )
    weight = block.out.weight
    per_head: Tensor = weight.T.unflatten(0, (block.n_heads, block.d_head))
    if block.attention_scale is None:
        return per_head
    gamma = block.attention_scale.gamma
    assert isinstance(gamma, Tensor)
    return per_head * gamma


def _contract(model: Model, run: _Run, gradient: Tensor, *, second: bool) -> Float[Tensor, " n_sources"]:
    """<r_u - o_u, g> summed over images and positions, sources in the order of the graph."""

    def along(outputs: Tensor) -> Tensor:
        kept = outputs[:, run.reads]
        kept = kept.detach() if second else kept
        return ((kept.detach().mean(0) - kept) * gradient).sum()

    scores = [along(run.entering[0])]
    for block, z, mlp in zip(model.blocks, run.z, run.mlp, strict=True):
        heads = z[:, run.reads].unflatten(-1, (block.n_heads, block.d_head))
        weight = _live_out_weight(block)
        if second:
            heads, weight = heads.detach(), weight.detach()
        # g W_O^T meets the heads' small outputs: the same sum without each head's write to the stream.
        projected = torch.einsum("npm,hdm->nphd", gradient, weight)
        replaced = projected if second else projected.detach()
        scores += [(heads.detach().mean(0) * replaced - heads * projected).sum((0, 1, 3)), along(mlp)]
    return torch.cat([each.reshape(-1) for each in scores])


@dataclass(frozen=True, kw_only=True, eq=False)
class DepthLoss:
    """The circuit loss on one batch, and the two sums it is made of.

    Attributes:
        value: The loss, one number.
        deep: Num: sum of |score| over the deep sources.
        shallow: Den: sum of |score| over the shallow sources.
        defined: False where every score in both sets is 0, so that there is no ratio; the loss is then 0.
    """

    value: Float[Tensor, ""]
    deep: Float[Tensor, ""]
    shallow: Float[Tensor, ""]
    defined: bool


def depth_loss(
    graph: Graph, scores: Float[Tensor, " n_sources"], sets: LayerSets, *, loss: str = "log"
) -> DepthLoss:
    """Loss that falls when the scores into the logits move from shallow to deep sources.

    `log`: -log(max(deep / (shallow + eps), eps)); `ratio`: shallow / (deep + eps); eps = 1e-12.

    Args:
        graph: Graph of the model.
        scores: Scores of the edges into the logits, as `live_scores` gives them.
        sets: Layers on the two sides.
        loss: `log` or `ratio`.

    Returns:
        The loss with its graph. 0 and `defined=False` where both sums are 0, as under a classifier whose
        weights are still 0.

    Raises:
        UnknownNameError: If there is no such loss.
    """
    if loss not in LOSSES:
        raise unknown_name("circuit loss", loss, LOSSES)
    layers = graph.source_layer.to(scores.device)

    def total(bounds: tuple[int, int]) -> Tensor:
        return scores[(layers >= bounds[0]) & (layers <= bounds[1])].abs().sum()

    deep, shallow = total(sets.high), total(sets.low)
    if float(deep.detach()) == 0 and float(shallow.detach()) == 0:
        return DepthLoss(value=deep * 0.0, deep=deep, shallow=shallow, defined=False)
    if loss == "log":
        value = -torch.log((deep / (shallow + FLOOR)).clamp_min(FLOOR))
    else:
        value = shallow / (deep + FLOOR)
    return DepthLoss(value=value, deep=deep, shallow=shallow, defined=True)


@final
class CircuitLoss(LossTerm):
    """The circuit term of a training loss, for `assay.zoo.train(..., loss_term=CircuitLoss(settings))`.

    Args:
        settings: Variant, sets, weight and the rest; a weight of 0 measures without training on it.

    Attributes:
        guarded: Entries of gradients so far that were NaN or infinite and counted as 0.
        undefined: Batches so far on which every score was 0, so that the term was left out.

    Notes:
        The scores are those of the module in evaluation mode, without dropout, so the logits of the training
        pass are not used. Only the variant `accumulated` has a memory from batch to batch.
    """

    def __init__(self, settings: CircuitSettings) -> None:
        self.settings = settings
        self.guarded = self.undefined = 0
        self._past: list[Tensor] = []
        self._model: Model | None = None
        self._readings: dict[str, float] = {}

    def __call__(
        self,
        module: nn.Module,
        images: Float[Tensor, "batch 3 h w"],
        labels: Int[Tensor, " batch"],
        logits: Float[Tensor, "batch n_classes"],
    ) -> Float[Tensor, ""]:
        """Weighted circuit loss of one batch.

        Args:
            module: An image classifier that `load_model` accepts.
            images: Normalised images, 2 or more.
            labels: Their classes.
            logits: Not used.

        Raises:
            InputError: If the module reads no images, has too few blocks for the sets, or the batch holds one
                image.
            UnsupportedModelError: If `load_model` does not accept the module.
        """
        del logits
        model = self._seen(module)
        settings = self.settings
        with torch.set_grad_enabled(settings.weight > 0):
            found = live_scores(
                model,
                images,
                labels,
                variant=settings.variant,
                steps=settings.steps,
                past=self._past,
            )
            sets = settings.sets(model.n_layers)
            term = depth_loss(model.graph, found.values, sets, loss=settings.loss)
        if settings.variant == "accumulated":
            # The batch of the next step is the last of its `memory`.
            self._past = [*self._past, found.gradient][max(0, len(self._past) + 2 - settings.memory) :]
        self.guarded += found.guarded
        self.undefined += not term.defined
        self._readings = {
            "deep": float(term.deep.detach()),
            "shallow": float(term.shallow.detach()),
            "guarded": float(found.guarded),
            "undefined": float(not term.defined),
        }
        return settings.weight * term.value

    def _seen(self, module: nn.Module) -> Model:
        if self._model is None or self._model.module is not module:
            self._model = load_model(module)
        return self._model

    def describe(self) -> dict[str, Any]:
        return {"kind": "circuit", **self.settings.to_dict()}

    def readings(self) -> dict[str, float]:
        """`deep` (Num) and `shallow` (Den) of the last batch, and what was guarded or left out on it."""
        return dict(self._readings)

    def state(self) -> dict[str, Tensor]:
        counts = torch.tensor([self.guarded, self.undefined])
        return {"counts": counts} | {f"past.{i}": each for i, each in enumerate(self._past)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.guarded, self.undefined = (int(each) for each in state["counts"])
        self._past = [state[f"past.{i}"] for i in range(len(state) - 1)]

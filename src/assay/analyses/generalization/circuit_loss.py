"""The depth bias as a training loss, and along a training run: both its sides at every checkpoint."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.analyses.generalization.dependency import FLOOR, DepthRule, resampled_depth_bias
from assay.core.errors import InputError, check_name
from assay.core.record import Plotted, Record, same
from assay.discovery.edges import output_scores
from assay.graph import Graph
from assay.models import Block, Model, Trace, load_model
from assay.tasks import EvalTransform, ImageTask
from assay.zoo import LossTerm, Recipe, Term, TrainingRun, train
from assay.zoo.training import score_of


if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SECOND_ORDER = "eap_ig_detach_actdiff"
VARIANTS = ("eap_ig_detach_g", SECOND_ORDER)
LOSSES = ("log", "ratio")
RESAMPLES = 200  # behind the intervals of a depth bias along a run
# The published settings (batch 32, lr 1e-4, weight decay 5e-7, no clipping); published runs last 40 epochs.
DEFAULT_RECIPE = Recipe(
    lr=1e-4, batch_size=32, weight_decay=5e-7, warmup=0, optimiser="adamw", clip=None, head_dropout=0.0
)


# ------------------------------------------------------------------------------------------------- scores


def live_scores(
    model: Model, images: Float[Tensor, "batch 3 h w"], *, variant: str = VARIANTS[0], steps: int = 4
) -> tuple[Float[Tensor, " n_sources"], Float[Tensor, "batch read d_model"]]:
    """Scores of the edges from every source to the logits on one batch, differentiable in the weights.

    score(u) = sum over images and positions of <r_u - o_u, g>: o_u is what node u adds to the stream, r_u its
    mean over the batch (a constant), g the gradient with respect to the stream leaving the last block:
    g = (1/m) sum_{k=1}^{m-1} of the gradient of KL(clean || interpolated) /
    n_classes, averaged over the batch, with the stream entering block 0 at mean + (k/m) (image - mean).

    Args:
        model: An image classifier in evaluation mode; parameters that should learn must ask for gradients.
        images: Normalised images, 2 or more: the mean of one image is the image, and every score 0.
        variant: One of `VARIANTS`, see `CircuitLoss`.
        steps: m, 2 or more.

    Returns:
        Signed score of each source, in the order of `graph.sources`, in the unit nats / n_classes; their
        scale is that of the public code, not that of `discover`, and cancels in the depth bias. And g, what
        the outputs were multiplied with, at the positions the classifier reads (one, unless it pools),
        without its graph.

    Raises:
        InputError: If the model reads no images or is in training mode, or the batch holds one image.

    Notes:
        Cost: one forward and one backward pass, and m - 1 forward passes that keep nothing (first order), or
        m - 1 forward and backward passes through everything (second order).

    References:
        Peng et al. (2026), arXiv:2604.08192, public code.
    """
    if model.vision is None:
        raise InputError(f"{model.id} is a language model, but the circuit loss is for image classifiers")
    if len(images) < 2:
        raise InputError("a batch of 1 image equals its mean, so every score would be 0; use 2 or more")
    second, read = variant == SECOND_ORDER, slice(None) if model.pools else slice(0, 1)
    with torch.enable_grad():
        with model.tracing(attached=True) as run:
            model.forward(images)
        gradient = _divergence_gradient(model, run, steps, read, second=second)
        gradient = torch.where(torch.isfinite(gradient.detach()), gradient, 0.0)

        def along(outputs: Tensor) -> Tensor:
            shown = outputs[:, read].detach() if second else outputs[:, read]
            return ((shown.detach().mean(0) - shown) * gradient).sum().reshape(1)

        scores = [along(run.input)]
        for block, z, mlp in zip(model.blocks, run.z, run.mlp, strict=True):
            heads, weight = z[:, read].unflatten(-1, (block.n_heads, block.d_head)), _out_weight(block)
            if second:
                heads, weight = heads.detach(), weight.detach()
            # g W_O^T meets the heads' small outputs: the same sum without each head's write to the stream.
            projected = torch.einsum("npm,hdm->nphd", gradient, weight)
            replaced = projected if second else projected.detach()
            scores += [(heads.detach().mean(0) * replaced - heads * projected).sum((0, 1, 3)), along(mlp)]
    return torch.cat(scores), gradient.detach()


def _divergence_gradient(
    model: Model, run: Trace, steps: int, read: slice, *, second: bool
) -> Float[Tensor, "batch read d_model"]:
    """Gradient of KL(clean || interpolated) / n_classes averaged over a path, with its graph if `second`."""

    def log_p(final: Tensor) -> Tensor:
        return model.finish(final if model.pools else final[:, 0]).log_softmax(-1)

    assert run.final_in is not None
    clean = log_p(run.final_in[:, read].detach()).detach()
    entering = run.input if second else run.input.detach()
    mean = entering.detach().mean(0, keepdim=True)
    total = torch.zeros_like(run.final_in[:, read])
    for step in range(1, steps):
        with torch.set_grad_enabled(second):
            final = model.through(mean + step / steps * (entering - mean), run)[:, read]
        if not second:
            final = final.detach().requires_grad_()
        divergence = (clean.exp() * (clean - log_p(final))).sum(-1).mean() / clean.shape[-1]
        total = total + torch.autograd.grad(divergence, final, create_graph=second)[0] / steps
    return total if second else total.detach()


def _out_weight(block: Block) -> Float[Tensor, "n_heads d_head d_model"]:
    """Output projection per head with the scale of the branch, as parameters that learn."""
    weight: Any = block.out.weight
    per_head: Tensor = weight.to(block.home).T.unflatten(0, (block.n_heads, block.d_head))
    if block.attention_scale is None:
        return per_head
    (gamma,) = block.attention_scale.parameters()
    return per_head * gamma.to(block.home)


# --------------------------------------------------------------------------------------------------- loss


def depth_loss(
    graph: Graph, scores: Float[Tensor, " n_sources"], sides: tuple[slice, slice], *, loss: str = "log"
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss that falls when the scores into the logits move from shallow to deep sources.

    `log`: -log(max(deep / (shallow + eps), eps)); `ratio`: shallow / (deep + eps); eps = 1e-12.

    Args:
        graph: Graph of the model.
        scores: Scores of the edges into the logits, as `live_scores` gives them.
        sides: Shallow and deep layers, see `DepthRule.layers`.
        loss: `log` or `ratio`.

    Returns:
        The loss, one number, 0 where both sums are 0, so that there is no ratio; Num, the sum of |score| over
        the deep sources; Den, that over the shallow sources.
    """
    layers = graph.source_layer.to(scores.device)
    shallow, deep = (scores[(layers >= side.start) & (layers < side.stop)].abs().sum() for side in sides)
    if not (deep + shallow).detach() > 0:  # as under a classifier whose weights are still 0
        value = deep * 0.0
    elif loss == "log":
        value = -torch.log((deep / (shallow + FLOOR)).clamp_min(FLOOR))
    else:
        value = shallow / (deep + FLOOR)
    return value, deep, shallow


@final
@dataclass(frozen=True, kw_only=True)
class CircuitLoss(Record, LossTerm):
    """The circuit term of a training loss, `cross-entropy + weight * circuit loss`.

    Args:
        weight: lambda of the circuit loss, 0 or more; 0 measures without training on it. Published: 0.05, 0.1
            and 0.2.
        variant: Which part of a score, <replacement - output, gradient>, the training signal flows through:

            - `eap_ig_detach_g`: the outputs of the nodes; gradients are constants (first order, the default);
            - `eap_ig_detach_actdiff`: the gradients; outputs are constants (second order).

        loss: `log`: -log(deep / shallow), the negative depth bias; `ratio`: shallow / deep.
        steps: m: the gradient is (1/m) times its sum over the m - 1 points k/m between mean and image; 2 or
            more.
        ratio: Fraction of the blocks that count as shallow, and as deep, in (0, 0.5].
        sets: `symmetric`, or `reference` for the published sets of 12 blocks: 4 shallow and 3 deep at 0.3.

    Raises:
        InputError: If a value is out of range.
        UnknownNameError: If there is no such variant, loss or rule for the sets.

    References:
        Peng et al. (2026), arXiv:2604.08192, public code.
    """

    weight: float | int = 0.1
    variant: str = VARIANTS[0]
    loss: str = "log"
    steps: int = 4
    ratio: float | int = 0.3
    sets: str = "symmetric"

    def __post_init__(self) -> None:
        check_name("variant of the circuit loss", self.variant, VARIANTS)
        check_name("circuit loss", self.loss, LOSSES)
        DepthRule(ratio=self.ratio, sets=self.sets)
        if not (0 <= self.weight < math.inf and self.steps >= 2):
            raise InputError(f"weight is {self.weight} and steps {self.steps}; give 0 or more and 2 or more")

    def on(self, module: nn.Module) -> Callable[[Float[Tensor, "batch 3 h w"]], Term]:
        """The term of a module, which must be in evaluation mode when images come.

        Its readings are `deep` (Num) and `shallow` (Den).

        Raises:
            InputError: If the module reads no images, or has too few blocks for the sets.
            UnsupportedModelError: If `load_model` does not accept the module.
        """
        model = load_model(module)
        sides = DepthRule(ratio=self.ratio, sets=self.sets).layers(model.n_layers)

        def term(images: Float[Tensor, "batch 3 h w"]) -> Term:
            with torch.set_grad_enabled(self.weight > 0):
                scores = live_scores(model, images, variant=self.variant, steps=self.steps)[0]
                value, deep, shallow = depth_loss(model.graph, scores, sides, loss=self.loss)
            readings = {"deep": float(deep.detach()), "shallow": float(shallow.detach())}
            return Term(self.weight * value, readings)

        return term


# --------------------------------------------------------------------------------------------- fine-tuning


def finetune(
    model: Model | str | Path | nn.Module,
    train_set: ImageTask,
    validation_set: ImageTask,
    folder: str | Path,
    *,
    circuit: CircuitLoss | None = None,
    recipe: Recipe = DEFAULT_RECIPE,
    **options: Any,
) -> TrainingRun:
    """Train an image classifier on cross-entropy plus a loss on its circuit.

    The circuit loss asks for larger scores of the edges from deep blocks into the logits relative to those
    from shallow blocks. The step with the best validation score is kept. `training_dynamics` of the folder
    shows what the training did to the circuit.

    Args:
        model: The classifier to start from: a model, a module, or anything that `load_model` reads. Not
            changed.
        train_set: Labelled 8-bit images of the size that the model reads.
        validation_set: More of them from the same distribution; it chooses the step.
        folder: Directory of the run. Ends as a model directory with `training.json`, and `checkpoints/STEP/`
            for step 0 and every validation. The same call goes on with a run that was stopped, to identical
            results.
        circuit: The circuit loss. Default: first order, weight 0.1. A weight of 0 trains plainly.
        recipe: Learning rate, batch size and the rest. Default: the published ones.
        options: Of `assay.zoo.train`: `device`, `progress` and so on; `transform` is the model's own
            where none is given.

    Raises:
        InputError: If the batches hold one image, `mode="linear"` is asked for with a circuit loss that does
            not reach the head, classes differ, sets overlap, or the folder holds another run.
        ShapeError: If the model does not take images of this size.
        NonFiniteError: If a weight or the loss is NaN or infinite.

    Notes:
        Cost of a step in forward passes with backward ones counted double: 3 plainly, about 6 + (m - 1) with
        the first-order loss, about 6 + 4 (m - 1) with the second-order one. The circuit is that of the model
        in evaluation mode; dropout acts on the cross-entropy alone.

    References:
        Peng et al. (2026), arXiv:2604.08192, named there as future work; the loss follows the public code.
    """
    circuit = circuit or CircuitLoss()
    if circuit.weight and recipe.mode == "linear" and circuit.variant != SECOND_ORDER:
        text = f"mode 'linear' trains the head alone, which the variant {circuit.variant} keeps constant"
        raise InputError(f"{text}; use mode 'full', or {SECOND_ORDER}")
    start = model if isinstance(model, Model) else load_model(model, device=None)
    rule = options.get("transform") or EvalTransform.for_model(start)
    start.bind(validation_set.with_transform(rule))  # classes and size, before hours of training
    steps = [*range(0, recipe.steps, recipe.validate_every), recipe.steps]
    options = {"checkpoints": steps, **options, "loss_term": circuit if circuit.weight else None}
    return train(start.module, train_set, validation_set, recipe, folder, **(options | {"transform": rule}))


# ------------------------------------------------------------------------------------------ along a run


@dataclass(frozen=True, kw_only=True)
class Dynamics(Plotted, Record):
    """Readings along a training run.

    Attributes:
        readings: Of each checkpoint, by step, ascending: `step`; `deep` (Num) and `shallow` (Den), the sums
            of |score| of the edges from these blocks into the logits, nats; `depth_bias`,
            log(deep / shallow), NaN where both are 0, and `low` and `high`, its 95 % interval over images;
            `scores`, accuracy on each watched set.
        facts: What they are a function of: weights of the checkpoints, images, watched sets, sets of blocks,
            estimator.
    """

    drawn_by = "assay.analyses.generalization.circuit_loss:plot_course"
    record_schema = "assay-dynamics/1"
    record_layout = same("**facts", "readings")

    readings: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Dynamics({len(self.readings)} checkpoints)"

    def to_frame(self) -> "pd.DataFrame":
        """One row per checkpoint: step, deep, shallow, depth_bias, low, high, and each score by its name."""
        import pandas as pd

        rows = [{**row, **row["scores"]} for row in self.readings]
        return pd.DataFrame(rows).drop(columns="scores").astype(float).astype({"step": int})


def training_dynamics(
    run: str | Path | Mapping[int, str | Path | Model],
    images: ImageTask,
    *,
    rule: DepthRule | None = None,
    watch: Mapping[str, ImageTask] | None = None,
    transform: EvalTransform | None = None,
    device: str | None = None,
) -> Dynamics:
    """Depth bias, both its sides, and scores at every checkpoint of a training run.

    Args:
        run: Folder of a run with `checkpoints/STEP/` directories, as `assay.zoo.train` and `finetune` write
            it; or step to model or model directory.
        images: Images that the circuits are measured on, 2 or more, of the training distribution or of
            another; no labels are needed. They should be none of those trained on.
        rule: Which blocks are compared. Default: 0.3 of them on each side.
        watch: Labelled sets, e.g. out of distribution, whose accuracy is reported beside; by name.
        transform: Normalisation of the images. Default: each model's own.
        device: Where to run. Default: the CPU.

    Returns:
        A reading per checkpoint. `depth_bias` is `dependency_depth_bias(..., targets="output")` of EAP-IG
        scores (KL objective, mean ablation, midpoint rule): not the training estimate, so that a loss which
        only fools its own estimate shows.

    Raises:
        InputError: If there is no checkpoint, a watched set has no labels, or there is one image.
        FileFormatError: If a checkpoint cannot be read.

    Notes:
        Cost per checkpoint: about 7 forward passes over the images, one over each watched set.

    References:
        Peng et al. (2026), arXiv:2604.08192: on PACS a model that generalises goes from 2.6 to 4.1, one that
        does not stays near -0.9.
    """
    rule, watch = rule or DepthRule(), watch or {}
    places = run if isinstance(run, Mapping) else checkpoints_of(run)
    if not places or images.n < 2:  # circuits are compared with the mean of the images
        raise InputError(f"got {len(places)} checkpoints and {images.n} images; give 1 and 2, or more")
    readings, weights = [], {}
    for step, place in sorted(places.items()):
        model = place if isinstance(place, Model) else load_model(place, device=device)
        weights[step] = model.weight_hash
        reads = transform or EvalTransform.for_model(model)
        scores = output_scores(model, images.with_transform(reads), per_example=False, resamples=RESAMPLES)
        sides = rule.layers(model.n_layers)
        _, deep, shallow = depth_loss(scores.graph, scores.values.double(), sides)
        bias = resampled_depth_bias(scores, **vars(rule))
        numbers = {"deep": float(deep), "shallow": float(shallow), "depth_bias": bias.value}
        numbers |= {"low": bias.interval().low, "high": bias.interval().high}
        seen = {n: score_of(model.module, each, reads, device=device)[0] for n, each in watch.items()}
        readings.append({"step": step, **numbers, "scores": seen})
    low, high = ([side.start - 1, side.stop - 2] for side in sides)
    watched = {name: {"n": each.n, "hash": each.source_hash[:16]} for name, each in watch.items()}
    facts = {"checkpoints": weights, "watched": watched, "estimator": dict(scores.provenance)}
    facts |= {"images": {"name": images.name, "domain": images.domain, "n": images.n}}
    return Dynamics(readings=tuple(readings), facts=facts | {"shallow_blocks": low, "deep_blocks": high})


def checkpoints_of(run: str | Path) -> dict[int, Path]:
    """Step to checkpoint of the folder of a training run, the selected step among them.

    Raises:
        InputError: If there is no checkpoint.
    """
    folder = Path(run) / "checkpoints"
    folders = {int(each.name): each for each in folder.glob("*") if each.name.isdigit()}
    if not folders:
        raise InputError(f"{folder} has no checkpoint; train with checkpoints=, or give step to directory")
    if (finished := TrainingRun.read(run)) is not None:
        folders.setdefault(finished.best_step, Path(run))
    return folders


def plot_course(dynamics: Dynamics, ax: "Axes | None" = None) -> "Axes":
    """Draw the depth bias along a run with its 95 % interval over images, and the scores beside it."""
    from assay.page.draw import INK, MUTED, OPPOSES, SUPPORTS, axes_of

    ax, frame = axes_of(ax, 5.2, 3.2), dynamics.to_frame()
    ax.axhline(0, color=MUTED, linewidth=0.7)
    ax.fill_between(frame["step"], frame["low"], frame["high"], color=INK, alpha=0.15, linewidth=0)
    ax.plot(frame["step"], frame["depth_bias"], color=INK, marker="o", markersize=3.5, linewidth=1.2)
    ax.set(xlabel=f"training steps (circuits of {dynamics.facts['images']['n']} images)")
    ax.set_ylabel("depth bias, log(deep / shallow)")
    beside, names = axes_of(ax.twinx(), 0.0, 0.0), [*frame.columns[6:]]
    for name, colour in zip(names, cycle((SUPPORTS, OPPOSES, MUTED, INK)), strict=False):
        beside.plot(frame["step"], frame[name], "s--", color=colour, markersize=3.5, label=name)
    if names:
        beside.legend(frameon=False, fontsize=7.5)
    beside.set(ylim=(0, 1), ylabel="score (dashed)")
    return ax

"""The depth bias as a loss: its settings, its value on a batch, and the term of a training."""

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.analyses.generalization.dependency import FLOOR, DepthRule, LayerSets
from assay.analyses.generalization.live_scores import VARIANTS, live_scores
from assay.core.errors import InputError, unknown_name
from assay.core.record import Record
from assay.graph import Graph
from assay.models import Model, load_model
from assay.zoo import LossTerm


LOSSES = ("log", "ratio")


@dataclass(frozen=True, kw_only=True)
class CircuitSettings(Record):
    """How the circuit enters the loss: `cross-entropy + weight * circuit loss`.

    Args:
        weight: lambda of the circuit loss, 0 or more; 0 trains plainly. Published: 0.05, 0.1 and 0.2.
        variant: Which part of a score, <replacement - output, gradient>, the training signal flows through:

            - `eap_ig_detach_g`: the outputs of the nodes; gradients are constants (first order, the default);
            - `eap_ig_detach_actdiff`: the gradients; outputs are constants (second order).

        loss: `log`: -log(deep / shallow), the negative depth bias; `ratio`: shallow / deep.
        steps: m: the gradient is (1/m) times its sum over the m - 1 points k/m between mean and image; 2 or
            more.
        ratio: Fraction of the blocks that count as shallow, and as deep, in (0, 0.5].
        shallow: First and last block (0-based, both included) instead of the share `ratio`; give both sets.
        deep: The same for the deep blocks.

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

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("variant of the circuit loss", self.variant, VARIANTS),
            ("circuit loss", self.loss, LOSSES),
        ):
            if value not in known:
                raise unknown_name(kind, value, known)
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise InputError(
                f"weight (lambda) of the circuit loss is {self.weight}; give 0 or more, because a negative "
                "weight would train towards shallow circuits"
            )
        if self.steps < 2:
            raise InputError(
                f"steps (m) is {self.steps}; give 2 or more, because the points k/m with 0 < k < m are "
                "evaluated"
            )
        if not 0 < self.ratio <= 0.5:
            raise InputError(f"ratio is {self.ratio}; expected a fraction of the blocks in (0, 0.5]")
        if (self.shallow is None) != (self.deep is None):
            raise InputError(f"shallow is {self.shallow} and deep {self.deep}; give both sets or neither")
        if self.shallow is None or self.deep is None:
            return
        for name, (first, last) in (("shallow", self.shallow), ("deep", self.deep)):
            if not 0 <= first <= last:
                raise InputError(
                    f"{name} is {first} to {last}; give the first and the last block, counted from 0"
                )
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
            return DepthRule(ratio=self.ratio).layers(n_layers)
        if self.deep[1] >= n_layers:
            raise InputError(
                f"deep blocks end at {self.deep[1]}, but the model has {n_layers} blocks: 0 to {n_layers - 1}"
            )
        return LayerSets(
            (self.shallow[0] + 1, self.shallow[1] + 1),
            (self.deep[0] + 1, self.deep[1] + 1),
        )


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

    Notes:
        The scores are those of the module in evaluation mode, without dropout, so the logits of the training
        pass are not used.
    """

    def __init__(self, settings: CircuitSettings) -> None:
        self.settings = settings
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
            labels: Not used.
            logits: Not used.

        Raises:
            InputError: If the module reads no images, has too few blocks for the sets, or the batch holds one
                image.
            UnsupportedModelError: If `load_model` does not accept the module.
        """
        del labels, logits
        model = self._seen(module)
        settings = self.settings
        with torch.set_grad_enabled(settings.weight > 0):
            scores = live_scores(model, images, variant=settings.variant, steps=settings.steps)
            sets = settings.sets(model.n_layers)
            term = depth_loss(model.graph, scores.values, sets, loss=settings.loss)
        self._readings = {
            "deep": float(term.deep.detach()),
            "shallow": float(term.shallow.detach()),
        }
        return settings.weight * term.value

    def _seen(self, module: nn.Module) -> Model:
        if self._model is None or self._model.module is not module:
            self._model = load_model(module)
        return self._model

    def describe(self) -> dict[str, Any]:
        return {"kind": "circuit", **self.settings.to_dict()}

    def readings(self) -> dict[str, float]:
        """`deep` (Num) and `shallow` (Den) of the last batch."""
        return dict(self._readings)

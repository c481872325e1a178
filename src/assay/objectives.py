"""What a run is judged by: one loss per example, differentiable, higher = the behaviour is damaged.

The same functions drive discovery (their gradient is what attribution propagates) and measurement
(their negative is the margin that faithfulness averages), so one quantity has one definition.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.errors import InputError, ShapeError
from assay.core.registry import Registry


# Logits, those of the clean run, and the batch, whose `answers` and `wrong` are token ids padded with -1: to
# the loss of each example.
Loss = Callable[[Tensor, Tensor, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A per-example loss and what is known about it.

    Attributes:
        key: Registered name, or the name of a user's callable.
        loss: `(logits, clean_logits, batch) -> loss`, `[batch, d_vocab]` twice and the batch to `[batch]`.
        needs_answers: Whether `batch.answers` is read.
        needs_wrong: Whether `batch.wrong` is read.
        stationary: True where the gradient at the clean run vanishes (divergences from it).
        unit: Unit of the loss.
        source: Where the definition comes from.
    """

    key: str
    loss: Loss
    needs_answers: bool = False
    needs_wrong: bool = False
    stationary: bool = False
    unit: str = "logits"
    source: str = ""

    def __call__(
        self,
        logits: Float[Tensor, "batch d_vocab"],
        clean_logits: Float[Tensor, "batch d_vocab"],
        batch: Any,
    ) -> Float[Tensor, " batch"]:
        """Loss of each example; higher means the behaviour is more damaged."""
        if self.needs_wrong and batch.wrong is None:
            raise InputError(
                f"objective {self.key!r} compares answers with wrong answers, but the task has no `wrong`; "
                "give the task wrong=, or choose objective='kl' or 'ce'"
            )
        loss: object = self.loss(logits, clean_logits, batch)
        if not isinstance(loss, Tensor) or loss.shape != logits.shape[:1] or not loss.is_floating_point():
            came = f"{loss.dtype} {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ShapeError(
                f"objective {self.key!r} returned {came}; expected one floating-point loss per example, "
                f"shape ({len(logits)},); do not average over the batch"
            )
        return loss


OBJECTIVES: Registry[Objective] = Registry("objective", holds=Objective)


def get_objective(objective: "str | Objective | Loss") -> Objective:
    """The objective behind a key or a callable `(logits, clean_logits, batch) -> [batch]`."""
    if isinstance(objective, Objective):
        return objective
    if callable(objective):
        return Objective(
            key=getattr(objective, "__name__", type(objective).__name__), loss=objective, unit="user"
        )
    key = objective.replace("-", "_")
    return OBJECTIVES[key if key in OBJECTIVES else objective]


def is_registered(objective: Objective) -> bool:
    """Whether an objective is what its key names; records hold keys, so what is kept can tell only these."""
    return objective.key in OBJECTIVES and OBJECTIVES[objective.key] is objective


def _registered(key: str, **facts: Any) -> Callable[[Loss], Loss]:
    """Register a loss as an objective, with what is known about it."""

    def add(loss: Loss) -> Loss:
        OBJECTIVES.add(key, Objective(key=key, loss=loss, **facts))
        return loss

    return add


def _gather(
    values: Float[Tensor, "batch d_vocab"], ids: Int[Tensor, "batch n"]
) -> tuple[Float[Tensor, "batch n"], Bool[Tensor, "batch n"]]:
    """Values at ids, and which ids are real rather than padding."""
    return values.gather(1, ids.clamp(min=0)), ids >= 0


def _sum_at(values: Float[Tensor, "batch d_vocab"], ids: Int[Tensor, "batch n"]) -> Float[Tensor, " batch"]:
    picked, present = _gather(values, ids)
    return picked.where(present, 0).sum(1)


def _mean_at(values: Float[Tensor, "batch d_vocab"], ids: Int[Tensor, "batch n"]) -> Float[Tensor, " batch"]:
    return _sum_at(values, ids) / (ids >= 0).sum(1)


_PAIRED = {"needs_answers": True, "needs_wrong": True}


@_registered("logit_diff", **_PAIRED, source="Wang et al. 2022, arXiv:2211.00593")
def _logit_diff(logits: Tensor, clean_logits: Tensor, batch: Any) -> Tensor:
    """-(mean logit of the answers - mean logit of the wrong answers)."""
    return _mean_at(logits, batch.wrong) - _mean_at(logits, batch.answers)


@_registered("logit_diff_max", **_PAIRED, source="Conmy et al. 2023, arXiv:2304.14997")
def _logit_diff_max(logits: Tensor, clean_logits: Tensor, batch: Any) -> Tensor:
    """-(mean logit of the answers - largest logit of the wrong answers)."""
    picked, present = _gather(logits, batch.wrong)
    return picked.masked_fill(~present, -torch.inf).amax(1) - _mean_at(logits, batch.answers)


@_registered("prob_diff", **_PAIRED, unit="probability", source="Hanna et al. 2023, arXiv:2305.00586")
def _prob_diff(logits: Tensor, clean_logits: Tensor, batch: Any) -> Tensor:
    """-(probability of the answers - probability of the wrong answers)."""
    probabilities = logits.softmax(1)
    return _sum_at(probabilities, batch.wrong) - _sum_at(probabilities, batch.answers)


@_registered("ce", needs_answers=True, unit="nats")
def _cross_entropy(logits: Tensor, clean_logits: Tensor, batch: Any) -> Tensor:
    """-log of the probability mass on the answers, in nats."""
    picked, present = _gather(logits.log_softmax(1), batch.answers)
    return -picked.masked_fill(~present, -torch.inf).logsumexp(1)


@_registered("kl", stationary=True, unit="nats", source="Conmy et al. 2023, arXiv:2304.14997")
def _kl(logits: Tensor, clean_logits: Tensor, batch: Any) -> Tensor:
    """KL(clean || run) over the whole vocabulary, in nats."""
    clean, run = clean_logits.log_softmax(1), logits.log_softmax(1)
    return (clean.exp() * (clean - run)).sum(1)


@_registered("js", stationary=True, unit="nats", source="Peng et al. 2026, arXiv:2604.08192")
def _js(logits: Tensor, clean_logits: Tensor, batch: Any) -> Tensor:
    """Jensen-Shannon divergence between clean and run, in nats, range [0, ln 2]."""
    clean, run = clean_logits.log_softmax(1), logits.log_softmax(1)
    middle = torch.logaddexp(clean, run) - torch.log(torch.tensor(2.0, dtype=run.dtype))
    return ((clean.exp() * (clean - middle)).sum(1) + (run.exp() * (run - middle)).sum(1)) / 2


@_registered("pseudo_margin", source="Peng et al. 2026, arXiv:2604.08192")
def _pseudo_margin(logits: Tensor, clean_logits: Tensor, batch: Any) -> Tensor:
    """-(logit of the clean prediction - sum of all other logits); needs no labels."""
    predicted = logits.gather(1, clean_logits.argmax(1, keepdim=True)).squeeze(1)
    return logits.sum(1) - 2 * predicted

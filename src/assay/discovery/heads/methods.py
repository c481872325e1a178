"""`discover_heads`: one registered score of every head, found by key or published code."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from assay.core.errors import check_name, unknown_name
from assay.core.registry import Registry
from assay.discovery.heads.attribution import attribution_patching
from assay.discovery.heads.direct import (
    HeadOutputs,
    activation_magnitude,
    direct_attribution,
    head_outputs,
    margin_directions,
)
from assay.discovery.heads.fisher import fisher_count
from assay.discovery.heads.information import causation_entropy
from assay.discovery.heads.scores import HeadScores
from assay.discovery.heads.single_heads import activation_patching, drop_effect, mediation
from assay.discovery.heads.weights import MATRICES, answer_norm, weight_scores
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Task


Objectives = str | Objective | Loss | None
Score = Callable[..., HeadScores]


@dataclass(frozen=True, kw_only=True)
class HeadMethod:
    """A score of heads and what is known about it.

    Attributes:
        key: Registered name, unique.
        id: Published code with the quantity, e.g. `C2.activation_patching`; unique.
        summary: What it measures, one line.
        unit: Of the score under the default objective.
        signed: Whether its sign has a meaning, which then is the same for all: positive, where ablating the
            head lowers the margin. Else it is a size, and does not tell whether the head helps.
        reference: Where the definition comes from.
        version: Raised when the same input would give another number.
        compute: `(model, task, **options) -> HeadScores`.
    """

    key: str
    id: str
    summary: str
    unit: str = ""
    signed: bool = True
    reference: str
    version: int = 1
    compute: Score

    @property
    def code(self) -> str:
        """Published code without the quantity, e.g. `C2`."""
        return self.id.partition(".")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Option names of `discover_heads` for this method, with their defaults."""
        parameters = inspect.signature(self.compute).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


HEAD_METHODS: Registry[HeadMethod] = Registry("head method", plural="head_methods", holds=HeadMethod)


def head_method(*, key: str, **facts: Any) -> Callable[[Score], Score]:
    """Register the decorated `(model, task, *, options) -> HeadScores` under `key`, described by `facts`."""

    def register(compute: Score) -> Score:
        HEAD_METHODS.add(key, HeadMethod(key=key, compute=compute, **facts))
        return compute

    return register


def find_head_method(name: str) -> HeadMethod:
    """The method of a key (`drop-effect`, `drop_effect`), an id (`C5.mediation`) or a code (`C10`)."""
    key = name.replace("_", "-").lower()
    if key in HEAD_METHODS:
        return HEAD_METHODS[key]
    known = HEAD_METHODS.values()
    codes = [spec.code for spec in known]
    for spec in known:
        # X and B occur in many scores, so they name none.
        if name.lower() in (spec.id.lower(), spec.code.lower() if codes.count(spec.code) == 1 else None):
            return spec
    raise unknown_name("head method", name, [*HEAD_METHODS, *(spec.id for spec in known)])


def discover_heads(
    model: Model, task: Task, method: str = "activation-patching", **options: Any
) -> HeadScores:
    """Score every head of a model on a task.

    Args:
        model: The model.
        task: The examples; scores of weights read its answers at most.
        method: Key (`activation-patching`, `mediation`, `drop-effect`, `dla`, `attribution-patching`, `ocse`,
            `llc`, `ov-norm`, `activation-magnitude`, ...; see `assay.list("head-methods")`) or published code
            (`C2`).
        options: Of the method, e.g. `batch_size=`, `objective=`, `ablation=`; those it does not have are
            refused.

    Returns:
        `values` `[n_layers, n_heads]`; `per_example` `[N, n_layers, n_heads]` where the score has one value
        per example. Positive: ablating the head lowers the margin, in every method that has a sign
        (`HeadMethod.signed`); the others are sizes.

    Raises:
        UnknownNameError: For an unknown method or option; near matches are named.
        InputError: For options that the method cannot serve.

    Example:
        >>> model = assay.load_model("mini")
        >>> task = assay.load_task("ioi", model, n=8, seed=0)
        >>> assay.discover_heads(model, task, "drop-effect").per_example.shape
        (8, 4, 8)
    """
    spec = find_head_method(method)
    for name in options:
        check_name(f"option of head method {spec.key!r}", name, spec.options)
    found = spec.compute(model.uncut, model.bind(task), **options)
    how = {"key": spec.key, "id": spec.id, "version": spec.version}
    return replace(found, provenance={**found.provenance, "method": how})


# ---- by runs ----------------------------------------------------------------------------------------

head_method(
    key="activation-patching",
    id="C2.activation_patching",
    summary="share of the margin that a head's clean output restores in the corrupted run",
    unit="fraction",
    reference="Heimersheim and Nanda 2024, arXiv:2404.15255",
    version=2,
)(activation_patching)

head_method(
    key="mediation",
    id="C5.mediation",
    summary="effect of corrupting the prompt that goes through a head",
    unit="logits",
    reference="Pearl 2001, arXiv:1301.2300",
)(mediation)

head_method(
    key="drop-effect",
    id="X.drop_effect",
    summary="margin lost when only this head is ablated",
    unit="logits",
    reference="mechanistic-validity framework",
)(drop_effect)


# ---- by one pass ------------------------------------------------------------------------------------


@head_method(
    key="dla",
    id="X.dla",
    summary="direct logit attribution: contribution of a head to the margin by its direct path to the logits",
    unit="logits",
    reference="Elhage et al. 2021",
)
def _direct(
    model: Model,
    task: Task,
    *,
    direction: str = "difference",
    norm: str = "frozen",
    batch_size: int | None = None,
) -> HeadScores:
    check_name("direction", direction, ("difference", "correct"))
    check_name("norm", norm, ("frozen", "none"))
    directions = margin_directions(model, task, "correct" if direction == "correct" else "difference")
    outputs = head_outputs(model, task, batch_size=batch_size)
    return direct_attribution(model, outputs, directions, norm="none" if norm == "none" else "frozen")


head_method(
    key="attribution-patching",
    id="X.attribution_patching",
    summary="first-order estimate of the margin lost when a head is corrupted",
    unit="logits",
    reference="Nanda 2023; Syed et al. 2023, arXiv:2310.10348",
    version=2,
)(attribution_patching)


@head_method(
    key="ocse",
    id="C7.ocse",
    summary="causation entropy: information in a head's direct effect about the margin beyond other heads",
    unit="nats",
    signed=False,
    reference="Sun et al. 2015, doi:10.1137/140956166",
)
def _causation(
    model: Model,
    task: Task,
    *,
    max_parents: int = 20,
    permutations: int = 100,
    objective: Objectives = None,
    batch_size: int | None = None,
    seed: int = 42,
) -> HeadScores:
    directions = margin_directions(model, task)
    outputs = head_outputs(model, task, batch_size=batch_size)
    return causation_entropy(
        direct_attribution(model, outputs, directions),
        _margins(model, task, outputs, get_objective(objective or task.objective)),
        max_parents=max_parents,
        permutations=permutations,
        seed=seed,
    )


@torch.no_grad()
def _margins(
    model: Model, task: Task, outputs: HeadOutputs, objective: Objective
) -> Float64[np.ndarray, " P"]:
    """Margins of the pass that the outputs are of."""
    found = []
    for batch in task.batches(256):
        normed = outputs.normed[batch.indices].to(model.device, model.dtype)
        logits = model.unembed(normed).double().cpu()
        found.append(-objective(logits, logits, batch))
    return torch.cat(found).numpy()


@head_method(
    key="activation-magnitude",
    id="X.activation_magnitude",
    summary="mean size of a head's output: a baseline without knowledge of the task",
    signed=False,
    reference="mechanistic-validity framework, C36",
)
def _magnitude(model: Model, task: Task, *, batch_size: int | None = None) -> HeadScores:
    return activation_magnitude(model, head_outputs(model, task, batch_size=batch_size))


# ---- by weights -------------------------------------------------------------------------------------


head_method(
    key="llc",
    id="C10.llc",
    summary="active directions of a head's weights, on the scale of a learning coefficient",
    signed=False,
    reference="Lau et al. 2023, arXiv:2308.12108; Wang et al. 2024, arXiv:2410.02984",
)(fisher_count)


head_method(
    key="ov-norm",
    id="B.ov_norm",
    summary="how strongly a head's W_V W_O can write along the answer directions",
    signed=False,
    reference="mechanistic-validity framework, F59",
)(answer_norm)


def _spectrum(quantity: str) -> Score:
    """A score of the singular values of one of a head's two matrices."""

    def compute(model: Model, task: Task, *, matrix: str = "ov") -> HeadScores:
        check_name("matrix", matrix, MATRICES)
        return weight_scores(model)[f"{matrix}-{quantity}"]

    return compute


for _quantity, _summary, _unit, _reference in (
    ("spectral-norm", "largest singular value", "", "mechanistic-validity framework"),
    ("sv-entropy", "entropy of the singular values", "nats", "Roy and Vetterli 2007"),
):
    head_method(
        key=_quantity,
        id=f"B.{_quantity.replace('-', '_')}",
        summary=f"{_summary} of a head's W_V W_O",
        unit=_unit,
        signed=False,
        reference=_reference,
    )(_spectrum(_quantity))

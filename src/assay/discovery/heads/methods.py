"""`discover_heads`: one registered score of every head, found by key or published code."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from assay.core.errors import check_name, unknown_name
from assay.core.registry import Registry
from assay.discovery.heads import direct
from assay.discovery.heads.effects import activation_patching, drop_effect, mediation
from assay.discovery.heads.gradients import attribution_patching, fisher_count
from assay.discovery.heads.information import causation_entropy
from assay.discovery.heads.scores import HeadScores
from assay.discovery.heads.weights import MATRICES, answer_norm, weight_scores
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Task


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
        version: Raised when the same input would give another number.
        compute: `(model, task, **options) -> HeadScores`.
    """

    key: str
    id: str
    summary: str
    unit: str = ""
    signed: bool = True
    version: int = 1
    compute: Callable[..., HeadScores]

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


# ---- the methods ----


def _direct(
    model: Model,
    task: Task,
    *,
    direction: str = "difference",
    norm: str = "frozen",
    batch_size: int | None = None,
) -> HeadScores:
    directions = direct.margin_directions(model, task, direction)
    return direct.direct_attribution(
        model, direct.head_outputs(model, task, batch_size=batch_size), directions, norm=norm
    )


def _causation(
    model: Model,
    task: Task,
    *,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    seed: int = 42,
) -> HeadScores:
    directions = direct.margin_directions(model, task)
    outputs = direct.head_outputs(model, task, batch_size=batch_size)
    loss = get_objective(objective or task.objective)
    margins = []
    for batch in task.batches(256):  # of the pass that the outputs are of
        with torch.no_grad():
            logits = model.unembed(outputs.normed[batch.indices].to(model.device, model.dtype)).double().cpu()
        margins.append(-loss(logits, logits, batch))
    scores = direct.direct_attribution(model, outputs, directions)
    return causation_entropy(scores, torch.cat(margins).numpy(), seed=seed)


def _magnitude(model: Model, task: Task, *, batch_size: int | None = None) -> HeadScores:
    return direct.activation_magnitude(model, direct.head_outputs(model, task, batch_size=batch_size))


def _spectrum(quantity: str, model: Model, task: Task, *, matrix: str = "ov") -> HeadScores:
    """A score of the singular values of one of a head's two matrices."""
    check_name("matrix", matrix, MATRICES)
    return weight_scores(model)[f"{matrix}-{quantity}"]


_LOGITS, _SIZE, _NATS = {"unit": "logits"}, {"signed": False}, {"unit": "nats", "signed": False}
for _id, _compute, _facts, _summary in (
    (
        "C2.activation_patching",
        activation_patching,
        {"unit": "fraction", "version": 2},
        "share of the margin that a head's clean output restores in the corrupted run",
    ),
    ("C5.mediation", mediation, _LOGITS, "effect of corrupting the prompt that goes through a head"),
    ("X.drop_effect", drop_effect, _LOGITS, "margin lost when only this head is ablated"),
    (
        "X.dla",
        _direct,
        _LOGITS,
        "direct logit attribution: contribution of a head to the margin by its direct path to the logits",
    ),
    (
        "X.attribution_patching",
        attribution_patching,
        {"unit": "logits", "version": 2},
        "first-order estimate of the margin lost when a head is corrupted",
    ),
    (
        "C7.ocse",
        _causation,
        _NATS,
        "causation entropy: information in a head's direct effect about the margin beyond other heads",
    ),
    ("X.activation_magnitude", _magnitude, _SIZE, "size of a head's output: a baseline without the task"),
    ("C10.llc", fisher_count, _SIZE, "active directions of a head's weights, as a learning coefficient"),
    ("B.ov_norm", answer_norm, _SIZE, "how strongly a head's W_V W_O can write along the answer directions"),
    ("B.spectral_norm", partial(_spectrum, "spectral-norm"), _SIZE, "largest singular value of W_V W_O"),
    ("B.sv_entropy", partial(_spectrum, "sv-entropy"), _NATS, "entropy of the singular values of W_V W_O"),
):
    _key = _id.partition(".")[2].replace("_", "-")
    HEAD_METHODS.add(_key, HeadMethod(key=_key, id=_id, compute=_compute, summary=_summary, **_facts))

"""Running a discovery method over a task: batches, quadrature, and the scores they add up to."""

import time
import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from assay.circuits import EdgeScores
from assay.core.errors import AssayWarning
from assay.discovery.edges.feeding import check_kept_apart, completeness_gap, scores_of
from assay.discovery.edges.method import (
    BatchMethod,
    Choices,
    EdgeMethod,
    get_method,
    provenance_of,
)
from assay.discovery.edges.sums import Sweep
from assay.execution import Ablation
from assay.execution.batches import choose_batch_size, free_memory, with_room
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import Task


TOLERANCE = 0.02  # of steps="auto": completeness gap, and share of the strongest edges that moved
WIDE_BYTES = 8 * 2**30  # a float32 copy for `drift` takes no more, so that a pass decides the peak of memory


def discover(
    model: Model,
    task: Task,
    method: str | EdgeMethod = "eap-ig-inputs",
    *,
    objective: str | Objective | Loss | None = None,
    ablation: str | Ablation | None = None,
    steps: int | str = 5,
    quadrature: str = "midpoint",
    batch_size: int | None = None,
    memory: int | None = None,
    per_example: bool = False,
    resamples: int = 0,
    seed: int = 0,
    post_norm: str | None = None,
    **options: Any,
) -> EdgeScores:
    """Score every edge by the damage that ablating it would do.

    score(u, v) = E_x [ sum_t (a~_u,t - a_u,t) . g_v,t ], with a~ the ablated activation and g_v what the
    method takes for the gradient of the loss at the input of v; `exact` measures the damage instead.

    Args:
        model: The model.
        task: The examples.
        method: Key of a registered method (see `assay.list("methods")`), or a method with its options set.
        objective: Loss to attribute; default: the method's own (`kl` for `acdc` and the learned masks), else
            the task's.
        ablation: What a cut edge carries; default: the task's own.
        steps: Quadrature nodes of the integrated-gradient methods, or "auto": 3 nodes, refined to 9 while
            the completeness gap exceeds 2 % or the 200 strongest edges move by more than 2 %.
        quadrature: `midpoint` (default), `left` (the published rule), `right` or `gauss-legendre`.
        batch_size: Examples per pass; default: by free memory. Results do not depend on it.
        memory: Bytes that a pass may take; default: 60 % of what is free.
        per_example: Also keep the scores of each example (same passes). For small data; for any other:
        resamples: Also keep the mean scores in so many resamples of the examples (same passes), for intervals
            that need no scores of single examples: 200 is usual, 0 keeps none. A Poisson bootstrap, whose
            weights follow `seed` and the id of each example (`poisson_weights`); adds 4 bytes per edge and
            resample. Ablated values are those of all examples in every resample.
        seed: Root seed.
        post_norm: Treatment of norms behind branches (Gemma 2 and 3, OLMo 2): `exact` (default) or
            `eap-ig`; see `Model.treating`.
        **options: Options of the method, such as `threshold` of `acdc`.

    Returns:
        Signed scores, mean over examples, in the unit of the objective; positive: ablation hurts.
        `details` has the passes spent; for `eap-ig-inputs` the completeness gap; for a half-precision model
        `drift`, the relative L2 distance of the scores of at most 8 examples from those of a float32
        copy under the same treatment: a fraction, >= 0. It is NaN, and `drift_reason` says why, where the
        copy would take more than 8 GiB (2.1 billion weights) or than `memory`.

    Raises:
        UnknownNameError: For an unknown method, option, objective or ablation; near matches are named.
        InputError: For settings that the method cannot serve.
        NonFiniteError: If a logit, gradient or score is NaN or infinite.
    """
    model = model.treating(post_norm)
    configured = get_method(method, **options)
    settings = configured.choices(
        task,
        objective=objective,
        ablation=ablation,
        steps=steps,
        quadrature=quadrature,
        per_example=per_example,
        resamples=resamples,
        seed=seed,
    )
    asked = resolve(model, task, configured, settings, batch_size=batch_size, memory=memory)
    started = time.perf_counter()

    def run(size: int) -> tuple[Asked, Sweep, dict[str, Any]]:
        return replace(asked, size=size), *_sweeps(asked.method, model, asked.task, asked.settings, size)

    asked, sweep, details = with_room(run, asked.size)
    return asked.scores(sweep, details | {"seconds": time.perf_counter() - started})


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A call of `discover`, checked and with its defaults filled in.

    Attributes:
        model: The model.
        task: The examples, bound to the model.
        method: The method with its options.
        settings: What else was chosen.
        size: Examples per pass.
        memory: Bytes that a pass may take; None: 60 % of what is free.
    """

    model: Model
    task: Task
    method: EdgeMethod
    settings: Choices
    size: int
    memory: int | None = None

    def scores(self, sweep: Sweep, details: dict[str, Any]) -> EdgeScores:
        """Mean scores, provenance and details of a sweep over all examples."""
        details = details | {"batch_size": self.size}
        provenance = provenance_of(self.model, self.task, self.method, self.settings)
        scores = scores_of(self.model, sweep, self.task.n, provenance, details)
        details = dict(scores.details)
        half = self.model.dtype in (torch.bfloat16, torch.float16)
        if half and self.method.needs_gradients and isinstance(self.method, BatchMethod):
            details |= _drift(self)
        return replace(scores, details=details)


def resolve(
    model: Model,
    task: Task,
    method: EdgeMethod,
    settings: Choices,
    *,
    batch_size: int | None = None,
    memory: int | None = None,
) -> Asked:
    """What `discover` runs; raises what it raises."""
    check_kept_apart(method, settings)
    method.check(settings)
    task = model.bind(task)
    extra = method.bytes_per_example(model, task.length, settings)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra, memory=memory)
    return Asked(model=model, task=task, method=method, settings=settings, size=size, memory=memory)


def _drift(asked: Asked) -> dict[str, Any]:
    """`drift`: relative L2 distance of half-precision scores from those of a float32 copy; or why not."""
    model = asked.model
    free = free_memory(model.device) * 6 // 10 if asked.memory is None else asked.memory
    takes, most = 4 * model.n_parameters, min(free, WIDE_BYTES)
    if takes > most:
        reason = (
            f"no drift: a float32 copy of {model.id} takes {takes / 2**30:.3g} GiB, where {most / 2**30:.3g} "
            "GiB may be used; run some examples with dtype=torch.float32 to compare"
        )
        return {"drift": float("nan"), "drift_reason": reason}
    few = asked.task.subset(torch.arange(min(asked.task.n, asked.size, 8)))
    wide = Model(deepcopy(model.module).float(), model.family, name=model.id)
    wide = wide.treating(model.post_norm)
    low, high = (asked.method.sweep(each, few, asked.settings, few.n).total for each in (model, wide))
    return {"drift": float((low - high).norm() / high.norm())}


def _sweeps(
    method: EdgeMethod, model: Model, task: Task, settings: Choices, size: int
) -> tuple[Sweep, dict[str, Any]]:
    """One sweep over the data, or the nested ones of steps="auto".

    The midpoint rules of 1, 3 and 9 nodes are nested. The first sweep visits 3 nodes, and its middle one
    is the coarser rule to compare with; a second sweep brings the 6 nodes that make 9.
    """
    if settings.steps != "auto" or not method.integrates:
        return method.sweep(model, task, settings, size), {}
    sweep = method.sweep(model, task, settings, size)
    assert sweep.coarse is not None
    moved = _moved(model, sweep.coarse, sweep.total)
    if moved <= TOLERANCE and _gap(sweep) <= TOLERANCE:
        return sweep, {"steps": 3, "top_moved": moved}
    finer = _merge(sweep, method.sweep(model, task, replace(settings, steps="auto, refined"), size))
    moved = _moved(model, sweep.total, finer.total)
    if _gap(finer) > TOLERANCE:
        warnings.warn(
            f"9 steps leave a completeness gap of {_gap(finer):.1%}; give more steps, e.g. steps=27",
            AssayWarning,
            stacklevel=4,
        )
    return finer, {"steps": 9, "top_moved": moved}


def _gap(sweep: Sweep) -> float:
    """Completeness gap of a sweep; 0 where the method measures none."""
    return 0.0 if sweep.input_effect is None else completeness_gap(sweep.total, sweep.input_effect)


def _merge(coarse: Sweep, new: Sweep) -> Sweep:
    """Join a midpoint rule with the nodes that triple it: a third of the old mean, two thirds of the new."""
    apart = None
    if coarse.per_example is not None and new.per_example is not None:
        apart = (coarse.per_example + 2 * new.per_example) / 3
    drawn = None
    if coarse.resampled is not None and new.resampled is not None:
        both = (coarse.resampled.departures + 2 * new.resampled.departures) / 3
        drawn = replace(coarse.resampled, departures=both)
    passes = {name: coarse.passes[name] + new.passes[name] for name in coarse.passes}
    return Sweep(
        total=(coarse.total + 2 * new.total) / 3,
        per_example=apart,
        resampled=drawn,
        passes=passes,
        input_effect=coarse.input_effect,
    )


def _moved(model: Model, before: Tensor, after: Tensor) -> float:
    """Share of the strongest edges (at most 200) that changed."""
    k = min(200, model.graph.n_edges)
    first, second = (EdgeScores(model.graph, values.float()).top(k).mask for values in (before, after))
    return 1 - int((first & second).sum()) / k

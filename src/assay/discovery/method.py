"""What a discovery method is, and the one loop over the data that all of them share."""

import abc
import time
import warnings
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.circuits import EdgeScores
from assay.discovery.quadrature import quadrature_nodes
from assay.errors import AssayWarning, InputError, NonFiniteError
from assay.execution import Ablation, Prepared, get_ablation
from assay.execution.ablation import KeptRuns, Mean
from assay.execution.forward import choose_batch_size, free_memory
from assay.measurement import library_version
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective
from assay.registry import Registry
from assay.tasks import Batch, Task, map_tensors


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """What the caller of `discover` chose.

    Attributes:
        objective: Loss whose increase is attributed.
        ablation: What a cut edge carries.
        steps: Nodes of the quadrature, or "auto".
        quadrature: Rule that places them.
        per_example: Keep the scores of each example.
        seed: Root seed.
    """

    objective: Objective
    ablation: Ablation
    steps: int | str
    quadrature: str
    per_example: bool
    seed: int


@dataclass(kw_only=True, eq=False)
class BatchScores:
    """Scores of one batch.

    Attributes:
        scores: `[batch, S, R]` if examples are kept apart, else `[1, S, R]`, their sum.
        coarse: Sum over the batch of the scores of a coarser rule that the same passes gave, if any.
        forward, backward: Passes over the batch that were spent.
        input_effect: Sum over the batch of J(run with `input` ablated) - J(clean), where known.
    """

    scores: Float[Tensor, "rows n_sources n_targets"]
    coarse: Float[Tensor, "1 n_sources n_targets"] | None = None
    forward: float | int = 0
    backward: int = 0
    input_effect: float | None = None


class EdgeMethod(abc.ABC):
    """Abstract: scores the edges of a model on a task, batch by batch.

    Attributes:
        key: Registered name.
        needs_gradients: Whether backward passes are made.
        integrates: Whether `steps` and `quadrature` are used.
        source: Author, year, arXiv id.
    """

    key: str
    needs_gradients: bool
    integrates: bool = False
    source: str

    def check(self, settings: Settings) -> None:
        """Refuse settings the method cannot serve, naming those that it can."""
        return

    @abc.abstractmethod
    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Settings) -> BatchScores:
        """Damage of ablating each edge, for the examples of one batch."""

    def most_passes(self, model: Model, nodes: int) -> int:
        """Forward and backward passes per example, at most, with `nodes` quadrature nodes."""
        return 2

    def bytes_per_example(self, model: Model, length: int, settings: Settings) -> int:
        """Memory of one example beyond a plain pass."""
        return 24 * model.n_layers * model.d_model * length * 4


METHODS: Registry[EdgeMethod] = Registry("method")

KEPT_BYTES = 2**30  # of clean passes that measuring the means made

TOLERANCE = 0.02  # of steps="auto": completeness gap, and share of the strongest edges that moved


@dataclass(kw_only=True, eq=False)
class Sweep:
    """Sums of one sweep over the data."""

    total: Tensor
    per_example: Tensor | None
    coarse: Tensor | None = None
    passes: dict[str, float] = field(default_factory=dict)
    input_effect: float | None = None


def discover(
    model: Model,
    task: Task,
    method: str = "eap-ig-inputs",
    *,
    objective: str | Objective | Loss | None = None,
    ablation: str | Ablation | None = None,
    steps: int | str = 5,
    quadrature: str = "midpoint",
    batch_size: int | None = None,
    memory: int | None = None,
    per_example: bool = False,
    seed: int = 0,
) -> EdgeScores:
    """Score every edge by the damage that ablating it would do.

    score(u, v) = E_x [ sum_t (a~_u,t - a_u,t) . g_v,t ], with a~ the ablated activation and g_v what the
    method takes for the gradient of the loss at the input of v; `exact` measures the damage instead.

    Args:
        model: The model.
        task: The examples.
        method: Key of a registered method; see `assay.list("methods")`.
        objective: Loss to attribute; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        steps: Quadrature nodes of the integrated-gradient methods, or "auto": 3 nodes, refined to 9 while
            the completeness gap exceeds 2 % or the 200 strongest edges move by more than 2 %.
        quadrature: `midpoint` (default), `left` (the published rule), `right` or `gauss-legendre`.
        batch_size: Examples per pass; default: by free memory. Results do not depend on it.
        memory: Bytes that a pass may take; default: 60 % of what is free.
        per_example: Also keep the scores of each example (same passes).
        seed: Root seed.

    Returns:
        Signed scores, mean over examples, in the unit of the objective; positive: ablation hurts.
        `details` has the passes spent; for `eap-ig-inputs` the completeness gap; for a half-precision
        model `drift`, the relative L2 distance of the scores of some examples from float32 scores.

    Raises:
        UnknownNameError: For an unknown method, objective or ablation; near matches are named.
        InputError: For settings that the method cannot serve.
        NonFiniteError: If a logit, gradient or score is NaN or infinite.
    """
    chosen = METHODS[method]
    settings = Settings(
        objective=get_objective(objective or task.objective),
        ablation=get_ablation(ablation or task.ablation),
        steps=steps,
        quadrature=quadrature,
        per_example=per_example,
        seed=seed,
    )
    chosen.check(settings)
    task = model.bind(task)
    extra = chosen.bytes_per_example(model, task.length, settings)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra, memory=memory)
    started = time.perf_counter()
    sweep, details = _sweeps(chosen, model, task, settings, size)
    passes = {name: round(count, 3) for name, count in sweep.passes.items()}
    details |= {"passes": passes, "seconds": time.perf_counter() - started, "batch_size": size}
    values = (sweep.total / task.n).to(model.result_dtype)
    if sweep.input_effect is not None:
        details["completeness_gap"] = completeness_gap(values, sweep.input_effect / task.n)
    if model.dtype in (torch.bfloat16, torch.float16) and chosen.needs_gradients:
        details["drift"] = _drift(chosen, model, task, settings, size)
    return EdgeScores(
        model.graph,
        values,
        per_example=sweep.per_example,
        provenance=provenance_of(model, task, chosen, settings),
        details=details,
    )


def _drift(method: EdgeMethod, model: Model, task: Task, settings: Settings, size: int) -> float:
    """Relative L2 distance of half-precision scores from those of a float32 copy, on a few examples."""
    few = task.subset(torch.arange(min(task.n, size, 8)))
    wide = Model(deepcopy(model.module).float(), model.family, name=model.id)
    low, high = (_sweep(method, each, few, settings, few.n).total for each in (model, wide))
    return float((low - high).norm() / high.norm())


def completeness_gap(values: Float[Tensor, "n_sources n_targets"], input_effect: float) -> float:
    """|sum of the scores out of `input` - effect of ablating it| / |effect|; NaN where the effect is 0."""
    return (
        abs(float(values[0].double().sum()) - input_effect) / abs(input_effect)
        if input_effect
        else float("nan")
    )


def _sweeps(
    method: EdgeMethod, model: Model, task: Task, settings: Settings, size: int
) -> tuple[Sweep, dict[str, Any]]:
    """One sweep over the data, or the nested ones of steps="auto".

    The midpoint rules of 1, 3 and 9 nodes are nested. The first sweep visits 3 nodes, and its middle one
    is the coarser rule to compare with; a second sweep brings the 6 nodes that make 9.
    """
    if settings.steps != "auto" or not method.integrates:
        return _sweep(method, model, task, settings, size), {}
    sweep = _sweep(method, model, task, settings, size)
    assert sweep.coarse is not None
    moved = _moved(model, sweep.coarse, sweep.total)
    if _gap(sweep) <= TOLERANCE and moved <= TOLERANCE:
        return sweep, {"steps": 3, "top_moved": moved}
    finer = _merge(sweep, _sweep(method, model, task, replace(settings, steps="auto, refined"), size))
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
    passes = {name: coarse.passes[name] + new.passes[name] for name in coarse.passes}
    return Sweep(
        total=(coarse.total + 2 * new.total) / 3,
        per_example=apart,
        passes=passes,
        input_effect=coarse.input_effect,
    )


def _moved(model: Model, before: Tensor, after: Tensor) -> float:
    """Share of the strongest edges (at most 200) that changed."""
    k = min(200, model.graph.n_edges)
    first, second = (EdgeScores(model.graph, values.float()).top(k).mask for values in (before, after))
    return 1 - int((first & second).sum()) / k


def _sweep(method: EdgeMethod, model: Model, task: Task, settings: Settings, size: int) -> Sweep:
    prepared = _prepared(model, task, settings, size)
    shape = (model.graph.n_sources, model.graph.n_targets)
    # float64 sums: the mean must not depend on how examples fall into batches.
    sweep = Sweep(
        total=torch.zeros(shape, dtype=torch.float64),
        per_example=None,
        passes={"forward": 0.0, "backward": 0.0},
    )
    kept = []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        result = method.score(model, batch, prepared, settings)
        scores = result.scores.double().cpu()
        if result.coarse is not None:
            coarse = result.coarse[0].double().cpu()
            sweep.coarse = coarse if sweep.coarse is None else sweep.coarse + coarse
        if not bool(torch.isfinite(scores).all()):
            example = _first_bad(method, model, batch, prepared, settings)
            raise NonFiniteError(
                f"method {method.key!r} gave NaN or infinite scores for example {example}; check the model's "
                "weights and number type (float16 gradients overflow)"
            )
        sweep.total += scores.sum(0)
        if settings.per_example:
            kept.append(result.scores.to(model.result_dtype).cpu())
        share = len(batch.indices) / task.n
        sweep.passes["forward"] += result.forward * share
        sweep.passes["backward"] += result.backward * share
        if result.input_effect is not None:
            sweep.input_effect = (sweep.input_effect or 0.0) + result.input_effect
    if not settings.ablation.paired and settings.ablation.key != "zero":
        sweep.passes["forward"] += 1  # the pass that measured means or deviations
    sweep.per_example = torch.cat(kept) if kept else None
    return sweep


def _prepared(model: Model, task: Task, settings: Settings, size: int) -> Prepared:
    """The ablation, with the clean passes that measured its means where these can be used again."""
    ablation = settings.ablation
    if isinstance(ablation, Mean):
        kept = KeptRuns(min(KEPT_BYTES, free_memory(model.device) // 10))
        return ablation.prepare(model, task, batch_size=size, seed=settings.seed, keep=kept)
    return ablation.prepare(model, task, batch_size=size, seed=settings.seed)


def _first_bad(method: EdgeMethod, model: Model, batch: Batch, prepared: Prepared, settings: Settings) -> int:
    """Row of the first example whose own scores are not finite."""
    for row in range(len(batch.indices)):
        here = slice(row, row + 1)
        one = map_tensors(batch, lambda tensor: tensor[here])  # noqa: B023 - called within this round
        alone = method.score(model, one, prepared, settings).scores
        if not bool(torch.isfinite(alone).all()):
            break
    return int(batch.indices[row])


def provenance_of(model: Model, task: Task, method: EdgeMethod, settings: Settings) -> dict[str, Any]:
    """How scores come to be, JSON-able; equal records mean equal numbers."""
    return {
        "library": library_version(),
        "model": model.describe(),
        "task": task.describe(),
        "graph": model.graph.fingerprint,
        "method": method.key,
        "objective": settings.objective.key,
        "ablation": settings.ablation.key,
        "steps": settings.steps if method.integrates else None,
        "quadrature": settings.quadrature if method.integrates else None,
        "seed": settings.seed,
    }


def check_steps(steps: int | str, quadrature: str) -> None:
    """Refuse a step count that is neither a positive integer nor "auto"."""
    if steps == "auto":
        if quadrature != "midpoint":
            raise InputError(
                f"steps='auto' refines the midpoint rule, but quadrature is {quadrature!r}; give a number of "
                "steps"
            )
    elif not isinstance(steps, int) or isinstance(steps, bool):
        raise InputError(f"steps is {steps!r}; give a positive integer or 'auto'")
    else:
        quadrature_nodes(steps, quadrature)

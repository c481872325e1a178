"""Running a discovery method over a task, or over batches that are given one at a time."""

import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from assay.circuits import EdgeScores, Level, NodeScores, Spans
from assay.circuits.spans import Place
from assay.core.errors import InputError, check_name
from assay.discovery.edges.method import (
    LEVELS,
    METHODS,
    BatchMethod,
    Choices,
    EdgeMethod,
    Sweep,
    get_method,
    measures,
    provenance_of,
)
from assay.discovery.edges.positions import TaskSpans
from assay.execution import Ablation, Prepared
from assay.execution.batches import choose_batch_size, free_memory, with_room
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import Batch, Task


WIDE_BYTES = 8 * 2**30  # a float32 copy for `drift` takes no more, so that a pass decides the peak of memory


@overload
def discover(
    model: Model, task: Task, method: str | EdgeMethod = ..., *, level: Literal["edge"] = ..., **how: Any
) -> EdgeScores: ...


@overload
def discover(
    model: Model, task: Task, method: str | EdgeMethod = ..., *, level: Literal["node", "neuron"], **how: Any
) -> NodeScores: ...


@overload
def discover(
    model: Model, task: Task, method: str | EdgeMethod = ..., *, level: Level, **how: Any
) -> EdgeScores | NodeScores: ...


def discover(
    model: Model,
    task: Task,
    method: str | EdgeMethod = "eap-ig-inputs",
    *,
    level: Level = "edge",
    objective: str | Objective | Loss | None = None,
    ablation: str | Ablation | None = None,
    steps: int = 5,
    quadrature: str = "midpoint",
    batch_size: int | None = None,
    per_example: bool = False,
    resamples: int = 0,
    spans: str | Mapping[str, Place] | None = None,
    seed: int = 0,
    **options: Any,
) -> EdgeScores | NodeScores:
    """Score every edge, node or neuron by the damage that ablating it would do.

    score(u, v) = E_x [ sum_t (a~_u,t - a_u,t) . g_v,t ], with a~ the ablated activation and g_v what the
    method takes for the gradient of the loss at the input of v; `exact` measures the damage instead.
    A node's score is the sum over v. Of neuron d of u, one dimension of a_u in the residual stream, it is
    E_x [ sum_t (a~_u,t - a_u,t)[d] sum_v g_v,t[d] ]; those of a node add up to its own.

    Args:
        model: The model.
        task: The examples.
        method: Key of a registered method (see `assay.list("methods")`), or a method with its options set.
        level: `edge`, `node` or `neuron`. Methods by gradients score all three.
        objective: Loss to attribute; default: the method's own (`kl` for `acdc` and the learned masks), else
            the task's.
        ablation: What a cut edge carries; default: the task's own.
        steps: Quadrature nodes of the integrated-gradient methods.
        quadrature: `midpoint` (default), `left` (the published rule), `right` or `gauss-legendre`.
        batch_size: Examples per pass; default: by free memory. Results do not depend on it.
        per_example: Also keep the scores of each example (same passes). For small data; for any other:
        resamples: Also keep the mean scores in so many resamples of the examples (same passes), for intervals
            that need no scores of single examples: 200 is usual, 0 keeps none. A Poisson bootstrap, whose
            weights follow `seed` and the id of each example (`poisson_weights`); adds 4 bytes per edge and
            resample. Ablated values are those of all examples in every resample.
        spans: Score every edge at every span of positions; `eap`, `eap-ig-inputs`, `clean-corrupted`, `relp`
            and `gim` can. `"each"`: every position by itself, for prompts of one length. `"slots"`: the slots
            of the task's template, what lies between them and the read position. A mapping of names to places
            in each prompt: an int, a list of ints or a slice, negative ones counted from its end.
        seed: Root seed.
        **options: Options of the method, such as `threshold` of `acdc`.

    Returns:
        Signed scores, mean over examples, in the unit of the objective; positive: ablation hurts:
        `EdgeScores`, or `NodeScores` of nodes `[S]` or neurons `[S, d_model]`. At spans
        `[P, S, R]`; a longer span sums more terms, and their sum over spans is the ordinary score.
        `details` has the passes spent; for `eap-ig-inputs` the completeness gap; for a half-precision model
        `drift`, the relative L2 distance of the scores of at most 8 examples from those of a float32
        copy under the same treatment: a fraction, >= 0. It is NaN, and `drift_reason` says why, where the
        copy would take more than 8 GiB (2.1 billion weights) or than 60 % of what is free.

    Raises:
        UnknownNameError: For an unknown method, option, objective or ablation; near matches are named.
        InputError: For settings that the method cannot serve.
        NonFiniteError: If a logit, gradient or score is NaN or infinite.
    """
    configured = get_method(method, **options)
    settings = configured.choices(
        task,
        objective=objective,
        ablation=ablation,
        steps=steps,
        quadrature=quadrature,
        per_example=per_example,
        resamples=resamples,
        level=level,
        seed=seed,
    )
    _check_level(configured, settings, spans)
    check_kept_apart(configured, settings)
    configured.check(settings)
    task = model.bind(task)
    at = None if spans is None else TaskSpans.of(configured, model, task, spans, settings)
    extra = configured.bytes_per_example(model, task.length, settings) * (1 if at is None else 2)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra)
    started, sizes = time.perf_counter(), [size]

    def run(size: int) -> Sweep:
        sizes.append(size)
        return (configured if at is None else at).sweep(model, task, settings, size)

    sweep = with_room(run, size)
    details = {"seconds": time.perf_counter() - started, "batch_size": sizes[-1]}
    if model.dtype in (torch.bfloat16, torch.float16) and isinstance(configured, BatchMethod):
        details |= _drift(model, task, configured, settings, sizes[-1])
    provenance = provenance_of(model, task, configured, settings) | ({} if at is None else at.describe())
    where = None if at is None else at.spans
    return scores_of(model, sweep, task.n, provenance, details, spans=where, level=level)


def _check_level(method: EdgeMethod, settings: Choices, spans: object) -> None:
    """Refuse a level that the method has no scores for, and what only edges have.

    Raises:
        UnknownNameError: For another level.
        InputError: Naming the methods that can, or the option to remove.
    """
    level = settings.level
    check_name("level", level, LEVELS)
    if level not in method.levels:
        able = ", ".join(key for key, known in METHODS.items() if level in known.levels)
        raise InputError(f"{method.key} does not score {level}s; use one of {able}")
    if level != "edge" and (spans is not None or settings.resamples):
        option = "spans" if spans is not None else "resamples"
        raise InputError(f"{option} needs scores of edges, not of {level}s; remove it, or use level='edge'")


def _drift(model: Model, task: Task, method: EdgeMethod, settings: Choices, size: int) -> dict[str, Any]:
    """`drift`: relative L2 distance of half-precision scores from those of a float32 copy; or why not."""
    if not method.needs_gradients:
        return {}
    takes = 4 * model.n_parameters
    most = min(free_memory(model.device) * 6 // 10, WIDE_BYTES)
    if takes > most:
        reason = (
            f"no drift: a float32 copy of {model.id} takes {takes / 2**30:.3g} GiB, where {most / 2**30:.3g} "
            "GiB may be used; run some examples with dtype=torch.float32 to compare"
        )
        return {"drift": float("nan"), "drift_reason": reason}
    few = task.subset(torch.arange(min(task.n, size, 8)))
    wide = Model(deepcopy(model.module).float(), model.family, name=model.id).treating(model.post_norm)
    low, high = (method.sweep(each, few, settings, few.n).total for each in (model, wide))
    return {"drift": float((low - high).norm() / high.norm())}


class ScoreSums:
    """The scores of a method over batches that are given one at a time.

    `discover` pulls batches from one task through one model. Here the caller feeds them: each decoded batch
    can go to several models. What is held does not grow with the examples, unless `per_example` is set.

    Args:
        model: The model, in evaluation mode.
        method: A method that scores each batch by itself.
        settings: From `method.choices(...)`: `resamples` for sums under a bootstrap.
        prepared: The ablation, such as `MeanSums.prepared()` or `Ablation.prepare`.

    Raises:
        InputError: For a method that decides on all examples together, or settings that the method cannot
            serve.

    Example:
        >>> from assay.execution import Mean, MeanSums
        >>> from assay.models import load_model
        >>> from assay.tasks import load_task
        >>> model = load_model("mini")
        >>> task = load_task("ioi", model, n=6)
        >>> means = MeanSums(model, Mean())
        >>> for batch in task.batches(2):
        ...     means.add(batch)
        >>> method = METHODS["eap"]
        >>> settings = method.choices(task, ablation="mean", resamples=200)
        >>> sums = ScoreSums(model, method, settings, means.prepared())
        >>> for batch in task.batches(2):
        ...     sums.add(batch)
        >>> sums.n, sums.scores().resampled.shape
        (6, torch.Size([200, 1519]))
    """

    def __init__(self, model: Model, method: EdgeMethod, settings: Choices, prepared: Prepared) -> None:
        check_kept_apart(method, settings)
        if not isinstance(method, BatchMethod) or type(method).sweep is not BatchMethod.sweep:
            raise InputError(
                f"{method.key!r} does not score each batch by itself, so batches cannot be fed to it one at "
                "a time; use discover(), or another method such as 'eap-ig-inputs'"
            )
        if settings.level != "edge":
            raise InputError(
                f"batches cannot be fed for scores of {settings.level}s; use discover(level=...)"
            )
        method.check(settings)
        self.model, self.method, self.settings, self.prepared = model, method, settings, prepared
        self._sweep = Sweep.empty(model.graph)

    @property
    def n(self) -> int:
        """Examples so far."""
        return self._sweep.n

    def add(self, batch: Batch) -> None:
        """Score a batch: the passes of the method.

        Args:
            batch: Of a task that is bound to the model (`Model.bind`).

        Raises:
            NonFiniteError: If a score is NaN or infinite.
            InputError: If an image whose weights are drawn comes a second time.
        """
        self.method.add(self._sweep, self.model, batch, self.prepared, self.settings)

    def scores(
        self, provenance: Mapping[str, Any] | None = None, details: Mapping[str, Any] | None = None
    ) -> EdgeScores:
        """The scores over all batches so far; more may be added afterwards.

        Args:
            provenance: How they come to be, such as `provenance_of` gives.
            details: Facts to note beside the passes.

        Raises:
            InputError: Before the first batch.
        """
        n, measured = self.counted(), measures(self.settings.ablation)
        scores = scores_of(self.model, self._sweep, n, provenance or {}, details or {}, measured=measured)
        assert isinstance(scores, EdgeScores)
        return scores

    def counted(self) -> int:
        """Examples so far, at least one."""
        if self.n == 0:
            raise InputError("no batch has been added, so there are no scores; add at least one batch")
        return self.n


def scores_of(
    model: Model,
    sweep: Sweep,
    n: int,
    provenance: Mapping[str, Any],
    details: Mapping[str, Any],
    *,
    measured: bool = False,
    spans: Spans | None = None,
    level: Level = "edge",
) -> EdgeScores | NodeScores:
    """Mean scores of a sweep over `n` examples, with the passes it took and its completeness gap.

    `measured`: a pass over all examples was made for the ablation outside the sweep, and counts.
    """
    passes = {"forward": round(sweep.forward / n + measured, 3), "backward": round(sweep.backward / n, 3)}
    facts = {**details, **sweep.details, "passes": passes}
    values = (sweep.total / n).to(model.result_dtype)
    if sweep.input_effect is not None:
        everywhere = values if spans is None else values.sum(0)
        facts["completeness_gap"] = completeness_gap(everywhere, sweep.input_effect / n)
    resampled = None
    if sweep.resampled is not None:
        resampled = sweep.resampled.means(sweep.total[model.graph.valid], n)
        facts |= {"n": n, "resamples_key": sweep.resampled.key}
    how: dict[str, Any] = {"provenance": provenance, "details": facts}
    how["per_example"] = torch.cat(sweep.parts) if sweep.parts else None
    if level == "neuron" or values.ndim == 1:
        return NodeScores(model.graph, values, **how)
    scores = EdgeScores(model.graph, values, resampled=resampled, spans=spans, **how)
    return scores if level == "edge" else NodeScores.of(scores)


def completeness_gap(values: Float[Tensor, "n_sources n_targets"], input_effect: float) -> float:
    """|sum of the scores out of `input` - effect of ablating it| / |effect|; NaN where the effect is 0."""
    if not input_effect:
        return float("nan")
    return abs(float(values[0].double().sum()) - input_effect) / abs(input_effect)


def check_kept_apart(method: EdgeMethod, settings: Choices) -> None:
    """Refuse what single examples cannot give: resamples of one, examples that a method does not keep apart.

    Raises:
        InputError: Naming the methods that can.
    """
    if settings.resamples and settings.resamples < 2:
        raise InputError(f"resamples is {settings.resamples}; give at least 2 (200 is usual), or 0 for none")
    if settings.apart and not method.keeps_examples:
        able = ", ".join(key for key, known in METHODS.items() if known.keeps_examples)
        option = "per_example" if settings.per_example else "resamples"
        raise InputError(
            f"{method.key} decides on all examples together, so it has no scores of single examples; remove "
            f"{option}, or use one of {able}"
        )

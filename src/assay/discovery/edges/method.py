"""What a discovery method is, the sums over batches that it fills, and the loop that all of them share."""

import abc
import dataclasses
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from assay.circuits import Circuit, EdgeScores, Level, NodeScores
from assay.core.errors import InputError, NonFiniteError, check_name
from assay.core.record import library_version
from assay.core.registry import Registry
from assay.discovery.edges.gradients import TARGETS_TOGETHER
from assay.execution import Ablation, Mean, get_ablation
from assay.execution.ablation import KeptRuns, Prepared
from assay.execution.batches import free_memory
from assay.graph import Graph
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective
from assay.stats import poisson_weights
from assay.tasks import Batch, Task
from assay.tasks.examples import describe_discovery


LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """What the caller of `discover` chose.

    Attributes:
        objective: Loss whose increase is attributed.
        ablation: What a cut edge carries.
        steps: Nodes of the quadrature.
        quadrature: Rule that places them.
        per_example: Keep the scores of each example.
        resamples: Resamples of the examples whose mean scores are kept; 0: none.
        level: What is scored: edges, nodes or neurons.
        seed: Root seed of all random draws.
    """

    objective: Objective
    ablation: Ablation
    steps: int
    quadrature: str
    per_example: bool
    seed: int
    resamples: int = 0
    level: Level = "edge"

    @property
    def apart(self) -> bool:
        """Whether the scores of a batch are wanted example by example."""
        return self.per_example or self.resamples > 0


@dataclass(kw_only=True, eq=False)
class WeightedSums:
    """Sums over examples under the weights of a Poisson bootstrap.

    Kept as sums of (w - 1) times the scores: rounding is then relative to how far a resample departs from the
    examples, not to the total.

    Attributes:
        departures: Sum over examples of (w_bx - 1) s_x, `[B, n]`.
        weights: Sum over examples of w_bx, float64 `[B]`.
        squares: Sum over examples of w_bx^2, float64 `[B]`.
    """

    departures: Float[Tensor, "n_resamples n"]
    weights: Float[Tensor, " n_resamples"]
    squares: Float[Tensor, " n_resamples"]

    @classmethod
    def of(
        cls, scores: Float[Tensor, "batch n"], ids: Int[Tensor, " batch"], n_resamples: int, seed: int
    ) -> "WeightedSums":
        """Those of some examples."""
        weights = torch.from_numpy(poisson_weights(ids.cpu().numpy(), n_resamples, seed=seed))
        return cls(
            departures=(weights - 1).to(scores) @ scores,
            weights=weights.double().sum(1),
            squares=weights.double().square().sum(1),
        )

    @property
    def key(self) -> str:
        """What tells resamples apart, 16 hex digits: equal for the same ids, seed and number."""
        drawn = torch.cat([self.weights, self.squares])
        return hashlib.sha256(drawn.cpu().numpy().tobytes()).hexdigest()[:16]

    def __add__(self, other: "WeightedSums") -> "WeightedSums":
        return WeightedSums(
            departures=self.departures + other.departures,
            weights=self.weights + other.weights,
            squares=self.squares + other.squares,
        )

    def means(self, total: Float[Tensor, " n"], n: int) -> Float32[Tensor, "n_resamples n"]:
        """Mean scores m + d_b / c_b of each resample, given the plain sum over `n` examples.

        d_b is the departure of the weighted mean from m, and c_b = sqrt(n sum (w - mean w)^2) / sum w that of
        its weights. With more edges than examples the length of d_b is that of its weights, whose relative
        spread is sqrt(3 / n) / 2 beyond that of sets of examples; this takes it off. NaN for a resample
        without examples, or one that weighs all the same.
        """
        mean = total.double() / n
        away = self.departures.cpu().double() - (self.weights - n)[:, None] * mean
        spread = (n * (self.squares - self.weights.square() / n)).clamp(min=0).sqrt()
        return (mean + away / spread.where(spread > 0, torch.nan)[:, None]).float()


@dataclass(kw_only=True, eq=False)
class BatchScores:
    """Scores of one batch.

    Attributes:
        scores: `[batch, S, R]` if examples are kept apart, else `[1, S, R]`, their sum; of neurons
            `[.., S, d_model]`.
        forward, backward: Passes over the batch that were spent.
        input_effect: Sum over the batch of J(run with `input` ablated) - J(clean), where known.
    """

    scores: Float[Tensor, "rows ..."]
    forward: float | int = 0
    backward: int = 0
    input_effect: float | None = None


@dataclass(kw_only=True, eq=False)
class Sweep:
    """Scores added up over examples.

    Attributes:
        total: Sum over the examples of the scores, float64 `[S, R]`: the mean must not depend on how examples
            fall into batches. Of neurons `[S, d_model]`; of nodes `[S]`, or those of their edges.
        n: Examples so far, where batches are added.
        parts: Scores of each example, batch by batch, where asked for.
        resampled: Weighted sums of the scores of the edges, where asked for.
        forward, backward: Passes spent, over the examples.
        input_effect: Sum over the examples of J(run with `input` ablated) - J(clean), where known.
        details: What the method reports beside: JSON-able values.
    """

    total: Float[Tensor, "..."]
    n: int = 0
    parts: list[Tensor] = field(default_factory=list)
    resampled: WeightedSums | None = None
    forward: float = 0.0
    backward: float = 0.0
    input_effect: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)

    @classmethod
    def empty(cls, graph: Graph, width: int | None = None) -> "Sweep":
        """No example yet; with so many scores of each source, by default one per target."""
        return cls(total=torch.zeros(graph.n_sources, width or graph.n_targets, dtype=torch.float64))

    def add(self, batch: BatchScores, n: int) -> None:
        """Take in the scores of a batch of `n` examples."""
        self.n += n
        self.total = self.total + batch.scores.double().cpu().sum(0)
        self.forward += batch.forward * n
        self.backward += batch.backward * n
        if batch.input_effect is not None:
            self.input_effect = (self.input_effect or 0.0) + batch.input_effect

    def resample(
        self, scores: Float[Tensor, "batch n"], ids: Int[Tensor, " batch"], n_resamples: int, seed: int
    ) -> None:
        """Take the scores of a batch into the weighted sums.

        Raises:
            InputError: If an example comes again: its weights would be tied. It is named.
        """
        numbers = set(ids.tolist())
        again = self.ids & numbers
        if again or len(numbers) < len(ids):
            twice = min(again or (each for each in numbers if ids.tolist().count(each) > 1))
            raise InputError(
                f"image id {twice} came twice, so both would have the same weights in every resample and "
                "intervals would be wrong; give every image an id of its own, or use resamples=0"
            )
        self.ids |= numbers
        sums = WeightedSums.of(scores, ids, n_resamples, seed)
        self.resampled = sums if self.resampled is None else self.resampled + sums


@dataclass(frozen=True, kw_only=True)
class EdgeMethod(abc.ABC):
    """Abstract: scores the edges of a model on a task. Its fields are the method's own options.

    Attributes:
        key: Registered name.
        needs_gradients: Whether backward passes are made.
        integrates: Whether `steps` and `quadrature` are used.
        source: Author, year, arXiv id.
        objective: What it attributes unless told otherwise; None: the task's own.
        keeps_examples: Whether the scores of each example can be kept.
        cuts: Whether its scores speak of runs with edges cut, so that treatments of norms behind branches
            change them.
        levels: What it can score. The score of a node is the sum over its outgoing edges, unless the method
            scores nodes itself.
    """

    key: ClassVar[str]
    needs_gradients: ClassVar[bool]
    integrates: ClassVar[bool] = False
    source: ClassVar[str]
    objective: ClassVar[str | None] = None
    keeps_examples: ClassVar[bool] = True
    cuts: ClassVar[bool] = True
    levels: ClassVar[tuple[Level, ...]] = ("edge", "node")

    def check_options(self) -> None:
        """Refuse options of another kind or out of range.

        Raises:
            InputError: Naming the option.
        """
        for each in dataclasses.fields(self):
            value, kind = getattr(self, each.name), type(each.default)
            accepted = (float, int) if kind is float else (kind,)
            if kind in (bool, int, float, str) and type(value) not in accepted:
                raise InputError(
                    f"option {each.name} of {self.key} is {value!r}; expected the type of its default, "
                    f"{each.default!r}"
                )

    def configured(self, /, **options: Any) -> "EdgeMethod":
        """The same method with other options; an error names an option that it does not have."""
        names = [each.name for each in dataclasses.fields(self)]
        for name in options:
            check_name(f"{self.key} option", name, names)
        made = replace(self, **options)
        made.check_options()
        return made

    def select(self, scores: EdgeScores, k: int) -> Circuit:
        """The circuit that the method selects by default: usually the k strongest edges."""
        return scores.top(min(k, scores.graph.n_edges))

    def uses_steps(self) -> bool:
        """Whether `steps` and `quadrature` change its numbers."""
        return self.integrates

    def options(self) -> dict[str, Any]:
        """Its options that are not the defaults, as they enter provenance, JSON-able."""
        given = [(each, getattr(self, each.name)) for each in dataclasses.fields(self)]
        return {each.name: plain_option(value) for each, value in given if value != each.default}

    def describe(self, model: Model) -> dict[str, Any]:
        """What else enters provenance, JSON-able: how the method treats this model."""
        return {}

    def choices(
        self,
        task: Task,
        *,
        objective: str | Objective | Loss | None = None,
        ablation: str | Ablation | None = None,
        steps: int = 5,
        quadrature: str = "midpoint",
        per_example: bool = False,
        resamples: int = 0,
        level: Level = "edge",
        seed: int = 0,
    ) -> Choices:
        """Choices of a discovery; objective and ablation default to those of the method and the task."""
        return Choices(
            objective=get_objective(objective or self.objective or task.objective),
            ablation=get_ablation(ablation or task.ablation),
            steps=steps,
            quadrature=quadrature,
            per_example=per_example,
            resamples=resamples,
            level=level,
            seed=seed,
        )

    def check(self, settings: Choices) -> None:
        """Refuse settings the method cannot serve, naming those that it can."""
        return

    @abc.abstractmethod
    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        """Damage of ablating each edge, over all examples; `size` of them fit into a pass."""

    def bytes_per_example(self, model: Model, length: int, settings: Choices) -> int:
        """Rough memory of one example beyond a plain pass: what passes keep, and the product of it all."""
        steps = settings.steps if self.integrates else 1
        # See `GradientSums.contract`.
        expanded = model.graph.n_sources + max(TARGETS_TOGETHER, model.blocks[0].n_channels + 1)
        streams = (36 + 2 * steps) * model.n_layers + (expanded if self.needs_gradients else 0)
        scores = 2 * model.graph.valid.numel() if settings.apart else 0
        return model.result_dtype.itemsize * (streams * model.d_model * length + scores)


def plain_option(value: Any) -> Any:
    """A value of an option as it enters provenance: scores by their record, methods by key and options."""
    if isinstance(value, EdgeMethod):
        return {"method": value.key, **value.options()}
    if isinstance(value, EdgeScores | NodeScores):
        digest = hashlib.sha256(value.values.contiguous().numpy().tobytes()).hexdigest()[:16]
        return {"scores": dict(value.provenance), "values": digest}
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]  # an instance


@dataclass(frozen=True, kw_only=True)
class BatchMethod(EdgeMethod):
    """Abstract: a method that scores each batch by itself; the sum over batches is its result."""

    @abc.abstractmethod
    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        """Damage of ablating each edge, for the examples of one batch."""

    def add(self, sweep: Sweep, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> None:
        """Score a batch and take it into a sweep.

        Raises:
            NonFiniteError: If a score is NaN or infinite; the message names the examples of the batch.
            InputError: If an image whose weights are drawn comes a second time.
        """
        batch = batch.to(model.device)
        result = self.score(model, batch, prepared, settings)
        check_scores(result.scores, self, batch)
        if settings.resamples:
            edges = result.scores.to(model.result_dtype)
            if edges.ndim == 3:  # not of the edges into one target
                edges = edges[:, model.graph.valid.to(edges.device)]
            sweep.resample(edges, batch.ids.cpu(), settings.resamples, settings.seed)
        if settings.per_example:
            sweep.parts.append(result.scores.to(model.result_dtype).cpu())
        sweep.add(result, len(batch.indices))

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        keep: dict[str, KeptRuns] = {}
        if isinstance(settings.ablation, Mean):  # the clean passes that measure the means are read again here
            keep = {"keep": KeptRuns(min(KEPT_BYTES, free_memory(model.device) // 10))}
        prepared = settings.ablation.prepare(model, task, batch_size=size, seed=settings.seed, **keep)
        sweep = Sweep.empty(model.graph, model.d_model if settings.level == "neuron" else None)
        for batch in task.batches(size):
            self.add(sweep, model, batch, prepared, settings)
        sweep.forward += task.n * measures(settings.ablation)
        return sweep


def measures(ablation: Ablation) -> bool:
    """Whether the values of cut edges take a pass of their own over the examples, not over a reference."""
    elsewhere = isinstance(ablation, Mean) and ablation.reference is not None
    return not ablation.paired and ablation.key != "zero" and not elsewhere


METHODS: Registry[EdgeMethod] = Registry("method", holds=EdgeMethod)

KEPT_BYTES = 2**29  # of clean passes that measuring the means made


def get_method(method: str | EdgeMethod, **options: Any) -> EdgeMethod:
    """The method behind a key, or the one given, with some of its options changed.

    Raises:
        UnknownNameError: For an unknown method or option; near matches are named.
    """
    entry = METHODS[method] if isinstance(method, str) else method.configured()
    return entry.configured(**options) if options else entry


def check_scores(scores: Tensor, method: EdgeMethod, batch: Batch) -> None:
    """Refuse scores that are NaN or infinite, naming the first and the last example of the batch."""
    if not bool(torch.isfinite(scores).all()):
        raise NonFiniteError(
            f"method {method.key!r} gave NaN or infinite scores for an example from {int(batch.indices[0])} "
            f"to {int(batch.indices[-1])}; check the model's weights and dtype (float16 gradients overflow)"
        )


def provenance_of(model: Model, task: Task, method: EdgeMethod, settings: Choices) -> dict[str, Any]:
    """How scores come to be, JSON-able; equal records mean equal numbers."""
    record = {
        "library": library_version(),
        "model": (model if method.cuts else model.uncut).describe(),
        "task": describe_discovery(task),
        "graph": model.graph.fingerprint,
        "method": method.key,
        "objective": settings.objective.key,
        **settings.ablation.describe(model),
        "steps": settings.steps if method.uses_steps() else None,
        "quadrature": settings.quadrature if method.uses_steps() else None,
        "seed": settings.seed,
        **method.describe(model),
        **model.machine(),
    }
    level = {} if settings.level == "edge" else {"level": settings.level}
    return record | level | ({"options": method.options()} if method.options() else {})


def check_differentiable(loss: Tensor, settings: Choices) -> Tensor:
    """The loss itself, after checking that a gradient can be taken of it.

    Raises:
        InputError: For an objective that is flat wherever it is defined, such as an accuracy.
    """
    if not loss.requires_grad:
        raise InputError(
            f"objective {settings.objective.key!r} has no gradient, so gradient methods and learned masks "
            "cannot use it; use method='acdc' or 'exact', or another objective"
        )
    return loss

"""What a command other than an audit would run, counted before it does."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from assay.analyses.benchmark import Contender
from assay.analyses.benchmark.contenders import SHARED_OPTIONS
from assay.analyses.benchmark.cost import TURNS, most_turns
from assay.analyses.benchmark.discovery import WARM_UP
from assay.analyses.generalization.batches import BatchTask, batch_task
from assay.analyses.generalization.known_parts import learning_size
from assay.core.errors import AssayError
from assay.discovery.edges.method import EdgeMethod, get_method
from assay.execution.memory import weight_bytes
from assay.metrics.curve import FRACTIONS
from assay.models import Model, load_model
from assay.pipeline.cost import Forecast, Workload, batch_memory, cost_of, cost_of_several
from assay.pipeline.discovery import plan_discovery
from assay.pipeline.domain_evaluation import EvaluationPlan, check_domains
from assay.pipeline.image_stream import known_images
from assay.pipeline.inputs import FEW
from assay.pipeline.monitor_plan import METHOD, STEPS, MonitorPlan
from assay.pipeline.monitor_reference import known_inputs
from assay.pipeline.zoo_training import step_passes, training_passes
from assay.tasks import EvalTransform, ImageSet, ImageStream, ReadOptions, Task
from assay.zoo import Grid, Recipe, Zoo, initial_module, split
from assay.zoo.building import transform_for
from assay.zoo.feeding import Images, size_of
from assay.zoo.training import step_seconds


def plan_entries(
    entries: Iterable[Contender],
    model: Model,
    task: Task,
    *,
    n: int,
    objectives: Sequence[str | None],
    ablation: str | None = None,
) -> list[Workload]:
    """Passes of every discovery of a benchmark, at most; one that a method refuses costs nothing.

    Args:
        entries: The methods that compete.
        model: The model.
        task: Some of the examples.
        n: Examples.
        objectives: What each attributes in turn; None: its own.
        ablation: What a cut edge carries; None: as the task says.
    """
    stages = []
    for entry in entries:
        options = dict(entry.options)
        asked = {name: options.pop(name) for name in SHARED_OPTIONS if name in options}
        asked.pop("batch_size", None)
        method, steps = get_method(entry.key, **options), asked.get("steps", 5)
        shared = {"ablation": ablation, **asked}
        runs = sum(_serves(method, task, **{"objective": each, **shared}) for each in objectives)
        plan = plan_discovery(model, method=entry.key, n=runs * n, steps=steps, options=options)
        stages.append(Workload(stage=entry.name, runs=runs, passes=plan.passes))
    return stages


def _serves(method: EdgeMethod, task: Task, **asked: Any) -> bool:
    """Whether a method takes these settings on a task."""
    try:
        method.check(method.choices(task, **asked))
    except AssayError:
        return False
    return True


def benchmark_cost(
    entries: Sequence[Contender],
    model: Model,
    task: Task,
    *,
    imports: int = 0,
    objective: str | None = None,
    ablation: str | None = None,
    batch_size: int | None = None,
) -> Forecast:
    """What a benchmark of discovery methods costs: scores, then circuits of each size twice.

    Args:
        entries: The methods that compete.
        model: The model.
        task: Examples to discover on, and as many to judge on.
        imports: Scores from elsewhere that are judged too.
        objective: What methods attribute; None: each its own.
        ablation: What a cut edge carries; None: as the task says.
        batch_size: Examples of a pass.
    """
    n, sizes = task.n, len(FRACTIONS) - 1  # the last is the model itself
    cost = cost_of(model, n, [], task, batch_size=batch_size, ablation=ablation)
    assert cost.pass_seconds is not None
    # Once at the usual batch size; a method that needs smaller batches, so with long passes, once more.
    plain = len(entries) * (1 + most_turns(n * cost.pass_seconds) + 1 + TURNS)
    warm_up = plan_discovery(model, method=METHOD, n=min(n, WARM_UP), steps=1)
    runs = 2 + 2 * sizes * (len(entries) + imports)  # with the model on both sides of the pairs
    stages = (
        *plan_entries(entries, model, task, n=n, objectives=[objective], ablation=ablation),
        Workload(stage="timed passes", runs=plain, passes=plain * n + warm_up.passes),
        Workload(stage="faithfulness of circuits", runs=runs, passes=runs * n),
    )
    return replace(cost, stages=stages)


def index_cost(
    zoo: Zoo, sets: Sequence[ImageSet], *, extra: int = 0, discovers: Workload | None = None, **placed: Any
) -> Forecast:
    """What it costs to record every model of a zoo on images, all models taken for as fast as the first.

    Args:
        zoo: The zoo.
        sets: Images of each domain.
        extra: Images in distribution that are predicted for each domain too.
        discovers: What discovery costs on all of them, where circuits are recorded; None: they are not.
        placed: `device`, `dtype` and `batch_size`.
    """
    batch_size = placed.pop("batch_size", None)
    first, models, n = zoo.load(zoo.keys[0], **placed), len(zoo.keys), sum(each.n for each in sets)
    predicted = n + extra * len(sets)
    stages = [Workload(stage="predict", runs=models * len(sets), passes=models * predicted)]
    if discovers is not None:
        runs = models * len(sets)
        stages.append(Workload(stage="discover", runs=runs, passes=models * discovers.passes))
    task = few_images(first, sets[0])
    cost = cost_of(first, n, stages, task, batch_size=batch_size)
    return replace(cost, model={"id": f"{models} models of {zoo.name}"})


def few_images(model: Model, images: ImageSet | ImageStream) -> BatchTask:
    """A few images as a model reads them, to time a pass on."""
    return batch_task(model, images.subset(range(min(images.n, FEW))))


def monitor_cost(model: Model, plan: MonitorPlan) -> Forecast:
    """What a monitor costs: its start, and each batch; time is known where its known images are at hand.

    Args:
        model: The deployed model.
        plan: What it starts from.
    """
    steps = STEPS if plan.steps is None else plan.steps
    each = plan_discovery(model, method=plan.method or METHOD, n=plan.window, steps=steps)

    def stage(name: str, runs: int, extra: int = 0) -> Workload:
        return Workload(stage=name, runs=runs, passes=runs * (each.passes + extra))

    rated = 2 if plan.target is not None else 1  # what labels teach is learned for the domains and to watch
    stages = [
        stage("reference", plan.reference_batches),
        stage("known batches", plan.most_batches),
        Workload(stage="labelled images", runs=rated, passes=rated * plan.most_labelled),
    ]
    task = None
    if plan.known_source is not None:
        transform = EvalTransform.for_model(model) if model.vision else None
        known = known_inputs(plan, plan.known_source, model, transform)
        task = batch_task(model, known.subset(range(min(known.n, FEW))), transform)
        if plan.target is not None:
            n = known.n - (plan.reference_size(known.n) if plan.known is None else 0)
            stages.append(stage("corrupted domains", 40, n - learning_size(n, plan.window)))
    stages.append(stage("each batch", 1, plan.window))
    return cost_of(model, plan.window, stages, task, batch_size=plan.batch_size)


def evaluation_cost(model: Model, plan: EvaluationPlan) -> tuple[Forecast, list[str]]:
    """What an evaluation over domains costs, at most, and the names of its test domains.

    Args:
        model: The deployed model.
        plan: What is evaluated.

    Raises:
        InputError: As `check_domains`.
    """
    domains = [each.name for each in check_domains(model, plan)]
    start, n = plan.start, plan.settings.n
    steps = STEPS if start.steps is None else start.steps
    each = plan_discovery(model, method=start.method or METHOD, n=n, steps=steps)
    rated = max(plan.rated, n)

    def stage(name: str, runs: int, extra: int) -> Workload:
        return Workload(stage=name, runs=runs, passes=runs * (each.passes + extra))

    known = start.known_source is not None
    stages = [
        stage("reference", start.reference_batches, 0),
        Workload(stage="labelled images", runs=int(known), passes=int(known) * start.most_labelled),
        stage("in distribution", int(known), plan.changed),
        stage("corrupted domains", len(plan.corruptions), plan.changed),
        stage("test domains", len(domains) * plan.parts, rated),
    ]
    task = None
    if start.known_source is not None:
        images = known_images(
            start.known_source,
            EvalTransform.for_model(model),
            n=FEW,
            classes=model.classes,
            options=ReadOptions(seed=start.seed, skip_bad=start.skip_bad),
        )
        task = few_images(model, images)
    return cost_of(model, n, stages, task, batch_size=start.batch_size), domains


def zoo_cost(grid: Grid, images: Images | None, *, holdout: float, device: str | None = None) -> Forecast:
    """What it costs to train the models of a grid; time is known where there are images.

    Args:
        grid: The recipes.
        images: The domain, training and validation together; None: not given yet.
        holdout: Share that validates.
        device: Where they train; None: the CPU.
    """
    parts = []
    timed: dict[tuple[str, str], Forecast] = {}
    n_validated = 0 if images is None else split(images, holdout)[1].n
    for recipe in grid.recipes():
        passes = training_passes(recipe, n_validated)
        stage = Workload(stage=recipe.key, runs=recipe.steps, passes=passes)
        if images is None:
            parts.append(Forecast(model={}, n=0, stages=(stage,)))
            continue
        kind = (recipe.init, recipe.mode)
        if kind not in timed:
            timed[kind] = training_cost(grid, recipe, images, device=device)
        parts.append(replace(timed[kind], stages=(stage,)))
    title = f"{len(parts)} models of {grid.name}"
    return cost_of_several(title, 0 if images is None else images.n, parts)


def training_cost(grid: Grid, recipe: Recipe, images: Images, *, device: str | None) -> Forecast:
    """A pass of a training, from steps of the recipe run here, and the memory of its weights and batch.

    Args:
        grid: Says what the recipe starts from.
        recipe: One of the grid's.
        images: Of the domain.
        device: Where it trains; None: the CPU.
    """
    origin, size = grid.initialisations[recipe.init], size_of(images)
    start = initial_module(
        origin.source, images.classes or (), architecture=origin.architecture, image_size=size, seed=0
    )
    transform = transform_for(start, images)
    batch = min(recipe.batch_size, images.n)
    seconds = step_seconds(start.module, images, recipe, transform, device=device)
    model = load_model(start.module)
    few = images.subset(range(min(images.n, FEW)))
    task = few.task(transform) if isinstance(few, ImageSet) else few.with_transform(transform).loaded()
    _, peak = batch_memory(model, task, batch)
    return Forecast(
        model={},
        n=0,
        stages=(),
        pass_seconds=seconds / (batch * step_passes(recipe)),
        bytes=weight_bytes(model) + peak,
    )

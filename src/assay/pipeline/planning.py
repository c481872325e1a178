"""What a command other than an audit would run, counted before it does."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from assay.analyses.benchmark import Contender, planted_task
from assay.analyses.benchmark.contenders import SHARED_OPTIONS
from assay.analyses.benchmark.cost import MOST_TURNS
from assay.analyses.claims.claim import Claim
from assay.analyses.claims.sets import head_sets, shape_of
from assay.analyses.worst_case.explain import STEPS as STEPS_OF_EXPLAIN
from assay.analyses.worst_case.repair_search import BATCH_SIZE, CHECKS, EXPLAINED, ROUNDS
from assay.discovery.edges.masks import MaskSettings
from assay.metrics.curve import FRACTIONS
from assay.models import Model, load_model
from assay.models.planted import planted_model
from assay.pipeline.cost import Forecast, Workload, cost_of, cost_of_several
from assay.pipeline.discovery import plan_discovery
from assay.pipeline.gates import plan_calibration
from assay.pipeline.image_stream import known_images
from assay.pipeline.inputs import FEW
from assay.pipeline.monitoring import METHOD, STEPS, USUAL_BATCHES, MonitorPlan
from assay.tasks import EvalTransform, ImageSet, ImageTask, ReadOptions
from assay.zoo import Grid, Recipe, Zoo, initial_module


TRAINED = 3  # passes of a training step per image, the backward one counted as two
LEARNED = 5  # passes of a learned mask per pair: clean, corrupted, masked forward and backward


def plan_repair(*, by: str, n_train: int, n_pairs: int, train_steps: int | None = None) -> list[Workload]:
    """Passes of a repair over single prompts, at most; one with a stream per target counts as one.

    Args:
        by: `mask` or `swap`.
        n_train: Pairs to train on, and as many to choose by.
        n_pairs: Pairs that judge both circuits.
        train_steps: Steps of `mask`.
    """
    validated = 3 * n_train  # clean, corrupted and the circuit
    explained = EXPLAINED * (5 + 4 * STEPS_OF_EXPLAIN)
    if by == "mask":
        steps = MaskSettings.steps if train_steps is None else train_steps
        search = [
            Workload(stage="explain the start", runs=1, passes=explained),
            Workload(stage="train the mask", runs=steps, passes=steps * BATCH_SIZE * LEARNED),
            Workload(stage="worst pairs", runs=CHECKS, passes=CHECKS * validated),
        ]
        tried = CHECKS
    else:
        search = [
            Workload(stage="worst pairs", runs=ROUNDS, passes=ROUNDS * validated),
            Workload(stage="explain them", runs=ROUNDS, passes=ROUNDS * explained),
        ]
        tried = ROUNDS
    return [
        *search,
        Workload(stage="choose", runs=1 + tried, passes=(1 + tried) * validated),
        Workload(stage="judge", runs=2, passes=2 * 3 * n_pairs),
    ]


def plan_claim(claim: Claim, model: Model, *, max_passes: float | None = None) -> list[Workload]:
    """Passes of a claim over single prompts, at most.

    Args:
        claim: The claim.
        model: Its model.
        max_passes: Budget of the tables over all heads.

    Raises:
        InputError: For heads that the model does not have.
    """
    k, n, others = len(claim.heads), claim.n, len(claim.tasks) - 1
    sets = sum(map(len, head_sets(claim, shape_of(model)).values()))
    tests = 3 + len(claim.predictions) + k  # the model, its means, a run per prediction and head
    table = plan_calibration(model, n, n_heads=k, against=others, max_passes=max_passes)
    return [
        *table,
        Workload(stage="controls and rivals", runs=2 * sets, passes=2 * sets * n),
        Workload(stage="predictions on other tasks", runs=others * tests, passes=others * tests * n),
        Workload(stage="replication", runs=(1 + others) * tests, passes=(1 + others) * tests * n),
    ]


def plan_entries(
    entries: Iterable[Contender], model: Model, *, n: int, objectives: int = 1
) -> list[Workload]:
    """Passes of every discovery of a benchmark, at most.

    Args:
        entries: The methods that compete.
        model: The model.
        n: Examples.
        objectives: How many objectives each attributes in turn.
    """
    stages = []
    for entry in entries:
        own = {name: value for name, value in entry.options.items() if name not in SHARED_OPTIONS}
        steps = entry.options.get("steps", 5)
        plan = plan_discovery(model, method=entry.key, n=objectives * n, steps=steps, options=own)
        stages.append(Workload(stage=entry.name, runs=objectives, passes=plan.passes))
    return stages


def plan_benchmark(entries: Sequence[Contender], model: Model, *, n: int, imports: int = 0) -> list[Workload]:
    """Passes of a benchmark of discovery methods, at most: scores, then circuits of each size twice.

    Args:
        entries: The methods that compete.
        model: The model.
        n: Examples to discover on, and as many to judge on.
        imports: Scores from elsewhere that are judged too.
    """
    runs = 1 + 2 * len(FRACTIONS) * (len(entries) + imports)
    plain = 2 * (1 + MOST_TURNS) * len(entries)
    return [
        *plan_entries(entries, model, n=n),
        Workload(stage="timed passes", runs=plain, passes=plain * n),
        Workload(stage="faithfulness of circuits", runs=runs, passes=2 * runs * n),
    ]


def truth_cost(
    models: Sequence[str],
    entries: Sequence[Contender],
    *,
    n: int,
    objectives: int,
    dtype: torch.dtype | None = None,
    batch_size: int | None = None,
) -> Forecast:
    """What it costs to judge methods on planted models, a pass of each timed here.

    Args:
        models: Names of planted models.
        entries: The methods.
        n: Examples of each model.
        objectives: How many objectives.
        dtype: Number type of the weights; None: float32.
        batch_size: Examples of a pass.
    """
    parts = []
    for name in models:
        planted = planted_model(name, dtype=dtype or torch.float32)
        stages = plan_entries(entries, planted.model, n=n, objectives=objectives)
        task = planted_task(planted, n=min(n, FEW))
        parts.append(cost_of(planted.model, n, stages, task, batch_size=batch_size))
    return cost_of_several(f"{len(models)} planted models", n, parts)


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


def few_images(model: Model, images: ImageSet) -> ImageTask:
    """A few images as a model reads them, to time a pass on."""
    return images.subset(range(min(images.n, FEW))).task(EvalTransform.for_model(model))


def monitor_cost(model: Model, plan: MonitorPlan) -> Forecast:
    """What a monitor costs: its start, and each batch; time is known where its known images are at hand.

    Args:
        model: The deployed model.
        plan: What it starts from.
    """
    steps = STEPS if plan.steps is None else plan.steps
    each = plan_discovery(model, method=plan.method or METHOD, n=plan.window, steps=steps)

    def stage(name: str, runs: int, extra: int = 0) -> Workload:
        return Workload(stage=name, runs=runs, passes=runs * (each.passes + extra * plan.window))

    batches = USUAL_BATCHES if plan.known_batches is None else plan.known_batches
    stages = [stage("reference", 0 if plan.given else 1), stage("known batches", batches)]
    if plan.target is not None:
        stages.append(stage("corrupted domains", 39, 1))
    source = plan.known or (None if plan.given else plan.reference)
    task = None
    if source is not None:
        images = known_images(
            source,
            EvalTransform.for_model(model),
            n=FEW,
            classes=model.classes,
            options=ReadOptions(seed=plan.seed, skip_bad=plan.skip_bad),
        )
        task = few_images(model, images)
    return cost_of(model, plan.window, [*stages, stage("each batch", 1, 1)], task, batch_size=plan.batch_size)


def zoo_cost(grid: Grid, images: ImageSet | None, *, holdout: float) -> Forecast:
    """What it costs to train the models of a grid; time is known where there are images.

    Args:
        grid: The recipes.
        images: The domain, training and validation together; None: not given yet.
        holdout: Share that validates.
    """
    parts = []
    speeds = (
        {} if images is None else {name: _start_cost(grid, name, images) for name in grid.initialisations}
    )
    n_validated = 0 if images is None else math.ceil(holdout * images.n)
    for recipe in grid.recipes():
        evaluations = 2 + recipe.steps // recipe.validate_every
        passes = TRAINED * recipe.steps * recipe.batch_size + evaluations * n_validated
        stage = Workload(stage=recipe.key, runs=recipe.steps, passes=passes)
        known = speeds.get(recipe.init)
        speed, size = (None, None) if known is None else (known.pass_seconds, known.bytes)
        parts.append(Forecast(model={}, n=0, stages=(stage,), pass_seconds=speed, bytes=size))
    title = f"{len(parts)} models of {grid.name}"
    return cost_of_several(title, 0 if images is None else images.n, parts)


def _start_cost(grid: Grid, name: str, images: ImageSet) -> Forecast:
    """A pass of what a recipe starts from."""
    origin, size = grid.initialisations[name], (images.pixels.shape[1], images.pixels.shape[2])
    start = initial_module(
        origin.source, images.classes or (), architecture=origin.architecture, image_size=size, seed=0
    )
    model = load_model(start.module)
    return cost_of(model, images.n, [], few_images(model, images))


def finetune_cost(
    model: Model, recipe: Recipe, per_image: int, *, n_images: int, images: ImageSet | None, validated: int
) -> Forecast:
    """What a fine-tuning costs; time is known where there are images.

    Args:
        model: What it starts from.
        recipe: Steps, batch and evaluations.
        per_image: Passes of a step over one image, a backward pass counted as two.
        n_images: Images that circuits are measured on.
        images: The domain; None: not given yet.
        validated: Images that are scored at every evaluation.
    """
    evaluations = 2 + recipe.steps // recipe.validate_every
    circuits = plan_discovery(model, method=METHOD, n=n_images, steps=STEPS)
    stages = [
        Workload(stage="train", runs=recipe.steps, passes=recipe.steps * recipe.batch_size * per_image),
        Workload(stage="validate", runs=evaluations, passes=evaluations * validated),
        Workload(stage="circuits", runs=evaluations, passes=evaluations * circuits.passes),
    ]
    task = None if images is None else few_images(model, images)
    return cost_of(model, 0 if images is None else images.n, stages, task)

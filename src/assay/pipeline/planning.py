"""What repairs, claims, benchmarks and recordings of a zoo would run, counted before they do."""

from collections.abc import Iterable, Sequence

import torch

from assay.analyses.benchmark import Contender, planted_task
from assay.analyses.benchmark.contenders import SHARED_OPTIONS
from assay.analyses.benchmark.cost import MOST_TURNS
from assay.analyses.claims.claim import Claim
from assay.analyses.claims.sets import head_sets, shape_of
from assay.analyses.worst_case.repair_search import CHECKS, EXPLAINED
from assay.discovery.edges.masks import MaskSettings
from assay.metrics.curve import FRACTIONS
from assay.models import Model
from assay.models.planted import planted_model
from assay.pipeline.cost import Forecast, Workload, cost_of, cost_of_several
from assay.pipeline.discovery import plan_discovery
from assay.pipeline.gates import plan_calibration


MASK_BATCH, ROUNDS, EXPLAIN_STEPS = 32, 10, 8  # the defaults of `repair` and `explain`
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
    explained = EXPLAINED * (5 + 4 * EXPLAIN_STEPS)
    if by == "mask":
        steps = MaskSettings.steps if train_steps is None else train_steps
        search = [
            Workload(stage="explain the start", runs=1, passes=explained),
            Workload(stage="train the mask", runs=steps, passes=steps * MASK_BATCH * LEARNED),
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
        task = planted_task(planted, n=min(n, 16))
        parts.append(cost_of(planted.model, n, stages, task, batch_size=batch_size))
    return cost_of_several(f"{len(models)} planted models", n, parts)

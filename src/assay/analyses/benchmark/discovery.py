"""Every discovery method on one model and task: faithfulness of its circuits, and what it costs."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch

from assay.analyses.benchmark.contenders import Contender, choose_entries, clock_of, plain_seconds, take_turn
from assay.analyses.benchmark.results import (
    PAIRED,
    BenchmarkRow,
    Bounded,
    Difference,
    DiscoveryBenchmark,
    Ranked,
    detect,
)
from assay.circuits import Circuit, EdgeScores
from assay.core.errors import AssayError, GraphMismatchError, InputError, check_name
from assay.core.measurement import Measurement
from assay.core.random import stream
from assay.core.record import library_version
from assay.discovery.edges import discover
from assay.execution import Ablation, CircuitRuns
from assay.execution.batches import choose_batch_size
from assay.metrics.curve import FRACTIONS, FaithfulnessCurve, faithfulness_curve
from assay.metrics.metric import METRICS, record
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.stats import RatioOfSums
from assay.tasks import PairTask, Task, draw_task


EVALUATIONS = ("held-out", "same")
WARM_UP = 2  # examples of the discovery before the first that is timed
N_RESAMPLES = 2000  # of the examples, for differences between methods
MORE = 4  # prompts drawn per prompt wanted, to leave out those already seen

Progress = Callable[[str, int, int], None]
Turn = tuple[BenchmarkRow, EdgeScores | None]  # what a method did, and its scores if it gave any


def benchmark_discovery(
    model: Model,
    task: Task,
    methods: Sequence[str] | None = None,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    objective: str | Objective | Loss | None = None,
    ablation: str | Ablation | None = None,
    fractions: Sequence[float] | None = None,
    evaluate: str = "held-out",
    held_out: Task | None = None,
    imports: Mapping[str, EdgeScores] | None = None,
    truth: Collection[str] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> DiscoveryBenchmark:
    """Judge discovery methods by the faithfulness of their circuits and by what they cost.

    Every method scores the edges on one sample of examples. Circuits of growing size are cut from its scores
    twice, by signed score and by |score|, and run on another sample, the same for all. Each ranking gives a
    faithfulness curve with CPR and CMD, and the mean of KL(model || circuit) over its sizes; MIB publishes
    CPR by signed score and CMD by |score|.

    Args:
        model: The model.
        task: The examples that methods score edges on.
        methods: Keys of methods, or `KEY@WORD` for a second one with options of its own. Default: all.
        options: Options by name of the competitor, e.g. `{"ugs": {"updates": 300}}`.
        objective: What methods attribute and faithfulness is measured by. Default: faithfulness by the task's
            own, and each method attributes its own default (`kl` for some), else the task's.
        ablation: What a cut edge carries; default: the task's own.
        fractions: Shares of all edges at which circuits run; default: the ten published ones.
        evaluate: `held-out`: on other examples than methods saw, so that a mask learned on few examples earns
            nothing by fitting them. `same`: on those examples.
        held_out: The other examples. Default: as many, drawn anew from the task's grammar with the next seed,
            less prompts that methods saw; a task without a grammar is cut in two halves at random.
        imports: Scores made elsewhere, by name: rows without a cost.
        truth: Names of the true edges of a planted model.
        batch_size: Examples per pass; default: by free memory.
        seed: Root seed of all random draws.
        progress: Called with (name, methods done, methods in all).

    Returns:
        A row per competitor. A method that refuses these settings has a row with its reason.

    Raises:
        UnknownNameError: For an unknown method, option, objective or ablation.
        InputError: For contradictory settings.
        GraphMismatchError: If imported scores are of another graph.

    Notes:
        Costs, besides the discoveries, two ablated runs per fraction and competitor, and some plain passes.
        Intervals resample the evaluation examples; they do not cover the choice of the discovery examples.

    References:
        Mueller et al. (2025), arXiv:2504.13151 (CPR, CMD).

    Example:
        >>> model = load_model("mini")
        >>> task = load_task("ioi", model, n=8)
        >>> found = benchmark_discovery(model, task, ["random", "relp"], fractions=[0.1, 1.0])
        >>> [row.name for row in found.ranking()]
        ['relp', 'random']
    """
    entries, imported = choose_entries(methods, options), dict(imports or {})
    check_name("evaluate", evaluate, EVALUATIONS)
    for name, scores in imported.items():
        if name in {entry.name for entry in entries}:
            raise InputError(f"imported scores are named {name!r}, like a method judged; rename them")
        if scores.graph.fingerprint != model.graph.fingerprint:
            raise GraphMismatchError(
                f"the imported scores {name!r} are of {scores.graph.describe()}, but the model is "
                f"{model.graph.describe()}"
            )
    if evaluate == "same":
        seen, unseen = task, task
    else:
        seen, unseen = (task, held_out) if held_out is not None else seen_and_unseen(task, seed)
    seen, unseen = model.bind(seen), model.bind(unseen)
    how: dict[str, Any] = {"objective": objective, "ablation": ablation}
    how |= {"batch_size": batch_size, "seed": seed}
    total = len(entries) + len(imported)
    told = progress or (lambda *step: None)

    def turns() -> Iterator[Turn]:
        for done, entry in enumerate(entries):
            told(entry.name, done, total)
            yield take_timed_turn(entry, model, seen, warm_up=not done, **how)
        for done, (name, scores) in enumerate(imported.items(), len(entries)):
            told(name, done, total)
            yield BenchmarkRow(name=name, method=None), scores

    runs = CircuitRuns(model, unseen, Circuit.full(model.graph), **how)
    found = judge_turns(turns(), runs, seen, fractions=fractions, truth=truth, evaluate=evaluate)
    told("done", total, total)
    return found


def judge_turns(
    turns: Iterable[Turn],
    runs: CircuitRuns,
    seen: Task,
    *,
    fractions: Sequence[float] | None = None,
    truth: Collection[str] | None = None,
    evaluate: str = "held-out",
) -> DiscoveryBenchmark:
    """Judge rankings of edges, each when its turn comes.

    Args:
        turns: A row of each competitor, and its scores if it gave any.
        runs: Runs of any circuit on the examples to judge on.
        seen: The examples that methods saw.
        fractions: Shares of all edges at which circuits run.
        truth: Names of the true edges of a planted model.
        evaluate: What `runs` are on: `held-out` examples, or the `same` as seen.
    """
    judge = _Judge(runs, fractions, truth)
    rows: list[BenchmarkRow] = []
    kept: dict[str, EdgeScores] = {}
    for row, scores in turns:
        if scores is not None:
            kept[row.name] = scores
        rows.append(row if scores is None else judge.judged(row, scores))
    return DiscoveryBenchmark(
        model=runs.model.describe(),
        discovered_on=seen.describe(),
        evaluated_on=runs.task.describe(),
        settings=judge.settings(evaluate),
        rows=tuple(rows),
        differences=judge.differences(),
        scores=kept,
    )


def seen_and_unseen(task: Task, seed: int) -> tuple[Task, Task]:
    """Examples to discover on and others to judge on."""
    if isinstance(task, PairTask) and task.grammar is not None:
        drawn = task.config.get("seed", seed)
        options = task.config.get("options", {})
        more = draw_task(task.grammar, MORE * task.n, seed=int(drawn) + 1, options=options)
        seen = {tuple(row) for row in task.clean.tolist()}
        rows = [place for place, row in enumerate(more.clean.tolist()) if tuple(row) not in seen][: task.n]
        if len(rows) >= 2:
            return task, more.subset(rows)
        raise InputError(
            f"{MORE * task.n} more prompts of {task.name!r} contain only {len(rows)} that are not among the "
            f"{task.n} of discovery. Give fewer examples, other ones as held_out=, or evaluate='same'"
        )
    if task.n < 4:
        raise InputError(
            f"{task.name!r} has {task.n} examples, too few to hold some out; give held_out=, or "
            "evaluate='same'"
        )
    order = stream(seed, "benchmark-halves").permutation(task.n)
    first, second = sorted(order[: task.n // 2].tolist()), sorted(order[task.n // 2 :].tolist())
    return task.subset(first), task.subset(second)


def take_timed_turn(entry: Contender, model: Model, task: Task, *, warm_up: bool = False, **how: Any) -> Turn:
    """A turn with the cost of plain passes over batches of the same size; see `take_turn`.

    Args:
        entry: The method.
        model: The model.
        task: The examples, bound to the model.
        warm_up: First let another method run: the first backward pass pays for what later ones find ready.
        how: Arguments of `discover`, of them `batch_size`.
    """
    asked = how["batch_size"]
    if warm_up:
        few, more = task.subset(list(range(min(task.n, WARM_UP)))), {"ablation": how["ablation"]}
        with contextlib.suppress(AssayError):  # whoever competes will say what is wrong
            discover(model, few, "eap-ig-inputs", steps=1, batch_size=asked, **more)
    size = choose_batch_size(model, task, asked=asked)
    unit = plain_seconds(model, task, size)
    row, scores = take_turn(entry, model, task, **how)
    if scores is None:
        return row, None
    used = int(row.details.get("batch_size", size))
    return replace(row, plain_seconds=unit if used == size else plain_seconds(model, task, used)), scores


class _Judge:
    """Runs circuits on the evaluation examples, each run of all competitors kept for the next."""

    def __init__(
        self, runs: CircuitRuns, fractions: Sequence[float] | None, truth: Collection[str] | None
    ) -> None:
        self.runs, self.fractions, self.truth = runs, fractions, truth
        self.divergence = runs.judged_by("kl")
        self.areas: dict[str, dict[str, Measurement]] = {}  # by row, then by name of `Difference`

    def settings(self, evaluate: str) -> dict[str, Any]:
        """What all rows have in common."""
        model = self.runs.model
        return {
            "library": library_version(),
            "objective": self.runs.objective,
            "ablation": self.runs.ablation,
            "fractions": list(FRACTIONS if self.fractions is None else self.fractions),
            "evaluate": evaluate,
            "seed": self.runs.seed,
            "clock": clock_of(model),
            "threads": torch.get_num_threads(),
            "device": model.device.type,
            "n_edges": model.graph.n_edges,
            "n_true": None if self.truth is None else len(set(self.truth)),
        }

    def judged(self, row: BenchmarkRow, scores: EdgeScores) -> BenchmarkRow:
        """The row with its circuits judged."""
        how: dict[str, Any] = {"fractions": self.fractions, "selection": row.selection, "runs": self.runs}
        signed, absolute = (
            faithfulness_curve(scores, self.runs.model, self.runs.task, absolute=absolute, **how)
            for absolute in (False, True)
        )
        signed_kl, absolute_kl = (mean_kl(self.divergence, curve.circuits) for curve in (signed, absolute))
        paired = (signed.area, signed.area.parts["clipped"], absolute.distance, absolute_kl)
        self.areas[row.name] = dict(zip(PAIRED, paired, strict=True))
        truth = None if self.truth is None else detect(scores, self.truth)
        by_sign, by_size = _ranked(signed, signed_kl), _ranked(absolute, absolute_kl)
        return replace(row, signed=by_sign, absolute=by_size, truth=truth)

    def differences(self) -> tuple[Difference, ...]:
        """The integrals of each pair, each resample of the examples drawn once for all."""
        counted = self.runs.counted
        rows = np.flatnonzero(counted if counted.any() else ~counted)
        n = len(rows)
        draws = rows[stream(self.runs.seed, "benchmark-differences").integers(0, n, (N_RESAMPLES, n))]
        resampled = {
            name: {key: (area.value, area.value_on(draws)) for key, area in areas.items()}
            for name, areas in self.areas.items()
        }
        differences = []
        for first, second in combinations(resampled, 2):
            apart = {}
            for key, (value, values) in resampled[first].items():
                other, others = resampled[second][key]
                gaps = values - others
                gaps = gaps[np.isfinite(gaps)]
                low, high = np.quantile(gaps, [0.025, 0.975]).tolist() if len(gaps) else (np.nan, np.nan)
                apart[key] = Bounded(value=float(value - other), low=low, high=high)
            differences.append(Difference(first=first, second=second, **apart))
        return tuple(differences)


def mean_kl(runs: CircuitRuns, circuits: Sequence[Circuit]) -> Measurement:
    """KL(model || circuit) at the read position in nats, averaged over circuits; interval over examples.

    Args:
        runs: Of any circuit, judged by `kl`.
        circuits: Of all edges: the model itself, 0.
    """
    components = {
        f"kl/{place}": -runs.margins_of(each) if each.n_edges < each.graph.n_edges else np.zeros(runs.task.n)
        for place, each in enumerate(circuits)
    }
    mean = RatioOfSums(numerator=dict.fromkeys(components, 1 / len(circuits)))
    return record(METRICS["kl"], components, mean, used=runs.counted, seed=runs.seed)


def _ranked(curve: FaithfulnessCurve, kl: Measurement) -> Ranked:
    return Ranked(
        cpr=_bounded(curve.area),
        cmd=_bounded(curve.distance),
        clipped_cpr=_bounded(curve.area.parts["clipped"]),
        clipped_cmd=_bounded(curve.distance.parts["clipped"]),
        overshoot=_bounded(curve.area.parts["overshoot"]),
        kl=_bounded(kl),
        divergence=tuple(float(np.nanmean(each)) for each in kl.components.values()),
        faithfulness=tuple(curve.values.tolist()),
        kept_edges=tuple(curve.kept_edges.tolist()),
    )


def _bounded(measurement: Measurement) -> Bounded:
    interval = measurement.interval()
    return Bounded(value=float(measurement.value), low=float(interval.low), high=float(interval.high))

"""How large a circuit is: the smallest that keeps a behaviour, on prompts it was found on and on others."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from assay.circuits import Circuit, Level, Scores
from assay.core.errors import InputError
from assay.core.machine import COUNTING, entered
from assay.execution import CircuitRuns
from assay.metrics.metric import measure_runs
from assay.models import Model
from assay.objectives import get_objective
from assay.pipeline.prompts import Division, DrawnPrompts, draw_prompts, warn_same
from assay.pipeline.stage import Progress, RunSettings, discovery_stage, silent
from assay.store import Store
from assay.tasks import ImageTask, Task


FIRST_SIZES = {"edge": 8, "node": 1, "neuron": 8}  # of the smallest circuit of a sweep
# Where no method is named; the first usually needs the fewest edges, so the search of the other ends early.
USUAL_METHODS = ("two-target", "eap-ig-inputs")

FINE, COARSE = 50, 10  # the sweep ends when it has bracketed the size to within 1 part in so many
GROWTH = 25  # until a size is confirmed on other examples, it grows by 1 part in so many


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How much of a behaviour a circuit keeps on some examples; 0: the empty circuit, 1: the model.

    Attributes:
        faithfulness: Normalised; NaN where the empty circuit has the model's margin.
        low, high: Ends of its 95 % interval; the value itself where it has none.
        distribution: Share of the output distribution kept, 1 - KL(circuit) / KL(empty circuit); at most 1.
    """

    faithfulness: float = 1.0
    low: float = 1.0
    high: float = 1.0
    distribution: float = 1.0

    @classmethod
    def by(cls, runs: CircuitRuns, circuit: Circuit) -> "Kept":
        """That of a circuit on the examples of some runs."""
        runs = runs.of(circuit)
        margin, divergence = (
            measure_runs(each, "faithfulness-norm") for each in (runs, runs.judged_by("kl"))
        )
        interval = margin.interval()
        low, high = (margin.value if math.isnan(end) else end for end in (interval.low, interval.high))
        return cls(faithfulness=margin.value, low=low, high=high, distribution=divergence.value)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What a circuit has to keep.

    Attributes:
        faithfulness: Its normalised faithfulness differs from 1 by no more than this does: the whole interval
            lies in [t, 2 - t]. In (0, 1].
        distribution: Share of the output distribution, at least; in [0, 1], 0: not asked.
    """

    faithfulness: float = 0.9
    distribution: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.faithfulness <= 1:
            raise InputError(
                f"target is {self.faithfulness}; expected a normalised faithfulness in (0, 1], e.g. 0.9"
            )
        if not 0 <= self.distribution <= 1:
            raise InputError(
                f"target_kl is {self.distribution}; expected a share of the output distribution in [0, 1], "
                "0 to ask for none"
            )

    def met(self, kept: Kept) -> tuple[bool, bool]:
        """Whether faithfulness lies in its band, and whether enough of the distribution is kept."""
        inside = self.faithfulness <= kept.low and kept.high <= 2 - self.faithfulness
        return inside, not self.distribution or kept.distribution >= self.distribution


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedItems:
    """Edges, nodes or neurons in an order.

    Attributes:
        scores: They rank what sizes count.
        absolute: By size of score; False: by signed score, highest first.
    """

    scores: Scores
    absolute: bool = True

    def circuit(self, size: int) -> Circuit:
        """So many of the first, of them those that are connected."""
        return self.scores.top(size, absolute=self.absolute).connected(warn=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class SizedCircuit:
    """A circuit of the first edges of a ranking, its size given or chosen by a sweep.

    Attributes:
        ranking: What it was cut from.
        circuit: The connected circuit.
        size: First edges, nodes or neurons it was cut from; `circuit.n_items` of them lie on a path.
        kept: What it keeps on the prompts of the sweep; None without a sweep.
        confirmed: Whether it meets the targets on other prompts too; None where that was not asked.
        sweep: Each size tried, ascending: `size`, `n_edges`, `faithfulness`, `distribution`, and `elsewhere`
            (a faithfulness) where the other prompts were tried.
        tried: Each ranking: `method`, whether it is `absolute`, `passes` that its scores took per example,
            `circuits` run for it, and the `size` that it needs (None: not below an earlier one's).
        runs: Of the circuit on the other examples, with what was run for its size; None without a sweep.
    """

    ranking: RankedItems
    circuit: Circuit
    size: int
    kept: Kept | None = None
    confirmed: bool | None = None
    sweep: tuple[Mapping[str, Any], ...] = ()
    tried: tuple[Mapping[str, Any], ...] = ()
    runs: CircuitRuns | None = None

    @property
    def scores(self) -> Scores:
        """Scores of the ranking."""
        return self.ranking.scores


Judge = Callable[[Circuit], Kept]


@dataclass(kw_only=True, eq=False)
class _Sweep:
    """Circuits of one ranking that were run to find its size."""

    ranking: RankedItems
    judge: Judge
    targets: Targets
    progress: Progress
    found: dict[int, Kept] = field(default_factory=dict)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def meets(self, size: int) -> bool:
        """Whether the circuit of a size meets the targets; the whole model meets any."""
        if size not in self.found:
            circuit = self.ranking.circuit(size)
            whole = size == self.ranking.scores.n_items
            kept = self.found[size] = Kept() if whole else self.judge(circuit)
            shares = {"faithfulness": kept.faithfulness, "distribution": kept.distribution}
            self.rows[size] = {"size": size, "n_edges": circuit.n_edges, **shares}
            self.progress("sweep sizes", len(self.found), 0)
        return all(self.targets.met(self.found[size]))

    def holds(self, size: int, elsewhere: Judge) -> bool:
        """The same on other examples."""
        circuit = self.ranking.circuit(size)
        kept = Kept() if size == self.ranking.scores.n_items else elsewhere(circuit)
        self.rows[size]["elsewhere"] = kept.faithfulness
        return all(self.targets.met(kept))

    def _too_much(self, size: int) -> bool:
        """Whether the margin of a circuit that was run passes the band."""
        kept = self.found[size]
        return kept.faithfulness > 1 and not self.targets.met(kept)[0]

    def _between(self, low: int, high: int) -> int | None:
        """A size that meets the targets between one that keeps too little and one that keeps too much.

        Searched for closely, since the next that meets them may be many times larger.
        """
        while high - low > max(1, high // FINE):
            middle = (low + high) // 2
            if self.meets(middle):
                return middle
            low, high = (low, middle) if self._too_much(middle) else (middle, high)
        return None

    def smallest(self, most: int, resolution: int) -> int | None:
        """The smallest swept size up to `most` that meets the targets, if there is one."""
        low, high = 0, min(FIRST_SIZES[self.ranking.scores.level], most)
        while not (high and self.meets(high)):  # `most` is 0 below a circuit of one edge
            first = high and self._too_much(high) and not (low and self._too_much(low))
            inside = self._between(low, high) if first else None
            if inside is not None:
                high = inside
                break
            if high == most:
                return None
            low, high = high, min(2 * high, most)
        while high - low > max(1, high // resolution):
            middle = (low + high) // 2
            low, high = (low, middle) if self.meets(middle) else (middle, high)
        return high


def find_circuit(
    rankings: Sequence[RankedItems],
    judge: Judge,
    *,
    targets: Targets,
    progress: Progress,
    elsewhere: Judge | None = None,
    resolution: int = FINE,
) -> SizedCircuit:
    """The smallest swept circuit of some rankings that meets the targets.

    Sizes 8, 16, 32, ... (of nodes 1, 2, 4, ...) first edges of a ranking, each pruned to what is connected,
    until one meets the targets, or keeps too much margin and one between it and that before, looked for to
    within 2 %, meets them; then bisection below it, to within 2 % unless told otherwise. A later ranking is
    followed only below the size that an earlier one needs. Where the targets have to be met on other prompts
    too, sizes then grow by steps of 4 %, to at most twice the size found, until one meets them on both; if
    none does, the circuit of the first search stays. Faithfulness need not grow with size, so a smaller
    circuit may exist between the sizes tried. NaN meets no target; the whole model meets any.

    Args:
        rankings: Orders of the edges, at least one.
        judge: What a circuit keeps, e.g. `Kept.by` on some runs.
        targets: What it has to keep.
        progress: Told of each size.
        elsewhere: The same as `judge` on other prompts, if the size is to be confirmed there.
        resolution: How closely to search, `FINE` or `COARSE`.
    """
    best, high, sweeps, tried = None, rankings[0].scores.n_items, [], []
    for ranking in rankings:
        sweep = _Sweep(ranking=ranking, judge=judge, targets=targets, progress=progress)
        size = sweep.smallest(high if best is None else high - 1, resolution)
        if size is not None:
            best, high = sweep, size
        of, passes = ranking.scores.provenance.get("method"), ranking.scores.details.get("passes")
        how = {"method": of, "absolute": ranking.absolute, "passes": passes}
        tried.append({**how, "size": size})
        sweeps.append(sweep)
    assert best is not None  # the whole model meets any target
    size, confirmed = high, None
    if elsewhere is not None:
        last = min(2 * high, best.ranking.scores.n_items)
        while not (confirmed := best.meets(size) and best.holds(size, elsewhere)) and size < last:
            size = min(max(size + 1, size * (GROWTH + 1) // GROWTH), last)
        size = size if confirmed else high
    return SizedCircuit(
        ranking=best.ranking,
        circuit=best.ranking.circuit(size),
        size=size,
        kept=best.found[size],
        confirmed=confirmed,
        sweep=tuple(best.rows[each] for each in sorted(best.rows)),
        tried=tuple({**row, "circuits": len(each.found)} for row, each in zip(tried, sweeps, strict=True)),
    )


def size_circuit(
    rankings: Sequence[RankedItems],
    draws: Division,
    settings: RunSettings,
    *,
    size: int | None = None,
    targets: Targets = Targets(),
    resolution: int = FINE,
    progress: Progress = silent,
) -> SizedCircuit:
    """The connected circuit of the first edges: so many of the first ranking, or as few as the targets need.

    Args:
        rankings: Orders of the edges.
        draws: Examples the sizes are tried on and, where they are held out, those they are confirmed on.
        settings: How circuits are run.
        size: Edges of the first ranking; None: as the targets ask for.
        targets: What the circuit has to keep.
        resolution: How closely to search, `FINE` or `COARSE`.
        progress: Told of each size.
    """
    first = rankings[0]
    if size is not None:
        circuit = first.scores.top(size, absolute=first.absolute).connected()
        return SizedCircuit(ranking=first, circuit=circuit, size=size)
    whole = Circuit.full(first.scores.graph)
    sweep = settings.on(draws.discovery, whole)
    other = settings.on(draws.measured, whole) if draws.held_out else sweep
    elsewhere = partial(Kept.by, other) if draws.held_out else None
    how: dict[str, Any] = {"targets": targets, "resolution": resolution, "progress": progress}
    sized = find_circuit(rankings, partial(Kept.by, sweep), elsewhere=elsewhere, **how)
    return replace(sized, runs=other.of(sized.circuit))


def discover_circuit(
    draws: Division,
    settings: RunSettings,
    *,
    method: str | None,
    steps: int,
    store: Store | None,
    progress: Progress,
    level: Level = "edge",
    **sizing: Any,
) -> SizedCircuit:
    """Discover and choose the size; `sizing` is `size`, `targets` or `resolution` of `size_circuit`.

    Edges are ranked by the size of their scores and, where some are negative, by signed score. Where no
    method is named, by those of `USUAL_METHODS`; for a given size by the last of them alone.
    """
    n, rankings = draws.discovery.n, []
    divergence = get_objective(settings.objective or draws.discovery.objective).stationary
    last_alone = divergence or sizing.get("size") is not None  # the first needs a margin
    for key in USUAL_METHODS[last_alone:] if method is None else (method,):
        progress("discover", 0, n)
        how: dict[str, Any] = {"method": key, "steps": steps, "level": level}
        stage = discovery_stage(task=draws.discovery, **how, **vars(settings))
        with entered(COUNTING, lambda *done: progress("discover", *done)):
            scores = stage.run(store).value
        progress("discover", n, n)
        signs = (True, False) if bool((scores.values < 0).any()) else (True,)
        rankings += [RankedItems(scores=scores, absolute=absolute) for absolute in signs]
    return size_circuit(rankings, draws, settings, progress=progress, **sizing)


def runs_of(
    model: Model,
    task: Task | str | Division,
    circuit: Circuit | None,
    *,
    method: str | None = None,
    objective: str | None = None,
    ablation: str | None = None,
    n: int | None = None,
    steps: int = 5,
    target: float = 0.9,
    target_kl: float = 0.9,
    top: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    store: Store | None = None,
    progress: Progress,
) -> CircuitRuns:
    """Runs of a circuit on a task; without a circuit, of one discovered for that task.

    Args:
        model: The model.
        task: What a circuit is measured on. Without one: key, JSONL file or task; or its prompts or images as
            they were divided into two halves.
        circuit: What to measure; None discovers one on other prompts than those it is measured on.
        method: Discovery method; default: the usual ones, of which the one that needs the fewest edges.
        objective: Loss whose negative is the margin; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        n: Prompts to measure on (and as many to discover on); default: 200, all of a file.
        steps: Quadrature nodes of the method.
        target: Normalised faithfulness that a discovered circuit must keep, see `Targets`.
        target_kl: Share of the output distribution that it must keep.
        top: Its size instead.
        batch_size: Prompts per pass.
        seed: Root seed of all random draws.
        store: Where scores are taken from and kept.
        progress: Told of each stage.
    """
    settings = RunSettings(
        model=model, objective=objective, ablation=ablation, batch_size=batch_size, seed=seed
    )
    if circuit is not None:
        return settings.on(cast(Task, task), circuit)
    if isinstance(task, ImageTask):
        raise InputError("images need a circuit: run `assay discover --images` and pass it with --circuit")
    draws = task if isinstance(task, Division) else draw_prompts(model, task, n=n, seed=seed)
    if isinstance(draws, DrawnPrompts):
        warn_same(draws)
    targets = Targets(faithfulness=target, distribution=target_kl)
    how: dict[str, Any] = {"method": method, "steps": steps, "size": top, "targets": targets}
    sized = discover_circuit(draws, settings, **how, store=store, progress=progress)
    return settings.on(draws.measured, sized.circuit)

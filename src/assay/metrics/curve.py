"""Faithfulness as a circuit grows: the curve, its area (CPR) and its distance from 1 (CMD)."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int, Real

from assay.circuits import Circuit, EdgeScores, NodeScores
from assay.circuits.circuit import edges_among
from assay.circuits.files import check_graph
from assay.circuits.spans import check_everywhere
from assay.core.errors import GraphMismatchError, InputError, check_name
from assay.core.measurement import SAME_PROMPTS, Measurement, Rule
from assay.core.random import stream
from assay.core.record import Plotted
from assay.execution import Ablation, CircuitRuns
from assay.graph import Graph
from assay.metrics.metric import METRICS, over_different, record, task_warnings
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.stats import FunctionOfSums, RatioOfSums, recovery_of
from assay.tasks import Task
from assay.tasks.examples import found_on


if TYPE_CHECKING:
    import pandas as pd


FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_SMALLEST = 1e-12  # mean margin gained by the whole model over the empty circuit, below which F is undefined

# Integrals over the curve by name: id, area of which function of F (None: F itself), direction, meaning.
_INTEGRALS: Mapping[str, tuple[str, str | None, str, str]] = {
    "cpr": ("MIB.cpr", None, "higher", "Area under the faithfulness curve."),
    "cpr/clipped": ("curve.clipped_cpr", "clipped-area", "higher", "The same with faithfulness cut at 1."),
    "cpr/overshoot": ("curve.overshoot", "overshoot-area", "lower", "Area above 1, a part of CPR and CMD."),
    "cmd": ("MIB.cmd", "distance-area", "lower", "Area between the curve and 1."),
    "cmd/clipped": ("curve.clipped_cmd", "clipped-distance-area", "lower", "The part of it below 1."),
}
_PUBLISHED = Rule(pass_at=0.5)  # of CPR
# Phrases for how circuits are pruned, and for the axis that integrals run over.
_PRUNED = {
    True: "pruned to the paths from input to logits",
    False: "not pruned",
    "early-stop": "pruned in one round, as by MIB's pinned revision of EAP-IG",
}
_AXES = {
    "asked": "the shares asked for",
    "kept": "the shares of all edges that the circuits keep",
    "counted": "the shares of all edges that MIB counts",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class FaithfulnessCurve(Plotted):
    """Faithfulness F of the best n edges, nodes or neurons for growing n, or of given circuits.

    One curve, and so one ranking, gives both integrals. The published ones take a curve each: CPR ranks by
    signed score (`absolute=False`), CMD by |score| (`absolute=True`). Where F is above 1, a circuit has more
    margin than the model: this *overshoot* raises CPR and CMD alike. Over an axis of width w,

        CPR = clipped CPR + overshoot,  CMD = clipped CMD + overshoot,  clipped CPR + clipped CMD = w.

    Attributes:
        fractions: Shares of all edges (or of all nodes or neurons that have a score), ascending.
        n_edges: Edges (nodes, neurons) asked for at each, int(fraction * their number); of given circuits,
            those that they hold.
        kept_edges: Edges left after pruning; of neurons, each by the kept share of what its source writes.
        circuits: The circuits that ran.
        points: Baseline-corrected faithfulness of each, with interval and per-example components.
        area: CPR as a measurement; its parts are `clipped` (F cut at 1) and `overshoot`.
        distance: CMD as a measurement; its part is `clipped`.
        random: Faithfulness of random circuits of equal size, `[n_draws, n_fractions]`, or None.
        absolute: Whether edges were ranked by magnitude.
        log_scale: Whether the integrals run over the logarithm of the axis.
        scores: The scores that circuits were chosen by; None for given circuits.
        provenance: How it came to be.
    """

    drawn_by = "assay.metrics.page:plot_faithfulness"

    fractions: Float64[np.ndarray, " n_fractions"]
    n_edges: Int[np.ndarray, " n_fractions"]
    kept_edges: Real[np.ndarray, " n_fractions"]
    circuits: tuple[Circuit, ...]
    points: tuple[Measurement, ...]
    area: Measurement
    distance: Measurement
    random: Float64[np.ndarray, "n_draws n_fractions"] | None = None
    absolute: bool = True
    log_scale: bool = False
    scores: EdgeScores | NodeScores | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        numbers = f"CPR {self.cpr:.4g}, CMD {self.cmd:.4g}, overshoot {self.overshoot:.4g}"
        return f"FaithfulnessCurve({len(self.fractions)} sizes, {numbers})"

    def to_frame(self) -> "pd.DataFrame":
        """One row per size: fraction, n_edges, kept_edges, faithfulness, low, high (95 %), random_mean."""
        import pandas as pd

        low, high = self.band()
        columns = {"fraction": self.fractions, "n_edges": self.n_edges, "kept_edges": self.kept_edges}
        random = math.nan if self.random is None else self.random.mean(axis=0)
        ends = {"faithfulness": self.values, "low": low, "high": high, "random_mean": random}
        return pd.DataFrame(columns | ends)

    @cached_property
    def values(self) -> Float64[np.ndarray, " n_fractions"]:
        """F at each fraction; NaN where undefined."""
        return np.array([point.value for point in self.points])

    @property
    def cpr(self) -> float:
        """Trapezoid integral of F over the axis; higher is better. Published: `absolute=False`."""
        return self.area.value

    @property
    def cmd(self) -> float:
        """Trapezoid integral of |1 - F| over the axis; lower is better. Published: `absolute=True`."""
        return self.distance.value

    @property
    def clipped_cpr(self) -> float:
        """Trapezoid integral of min(F, 1): what circuits have of the model's margin; higher is better."""
        return self.area.parts["clipped"].value

    @property
    def clipped_cmd(self) -> float:
        """Trapezoid integral of |1 - min(F, 1)|: what circuits lack of the margin; lower is better."""
        return self.distance.parts["clipped"].value

    @property
    def overshoot(self) -> float:
        """CPR - clipped CPR, the integral of max(F - 1, 0); 0 where no circuit exceeds the model."""
        return self.area.parts["overshoot"].value

    @property
    def level(self) -> str:
        """What is kept or cut: `edge`, `node` or `neuron`."""
        return self.circuits[-1].level if self.scores is None else self.scores.level

    @property
    def convention(self) -> str:
        """How circuits were chosen and pruned, and what the integrals run over: a phrase."""
        how = self.provenance
        chosen = f"the strongest {self.level}s by {'|score|' if self.absolute else 'signed score'}"
        grown = ", grown from logits" if how["selection"] == "greedy" else ""
        chosen = f"{chosen}{grown}" if self.scores else "given circuits"
        over = f"{'the logarithm of ' * self.log_scale}{_AXES[how['axis']]}"
        pruned = _PRUNED[how["prune"] if self.level == "edge" else False]
        return f"{chosen}; {pruned}; integrated over {over}"

    def band(self, level: float = 0.95) -> Float64[np.ndarray, "2 n_fractions"]:
        """Lower and upper ends of pointwise bootstrap intervals over examples."""
        intervals = [point.interval(level) for point in self.points]
        return np.array([(each.low, each.high) for each in intervals]).T


def trapezoid_weights(
    axis: Float64[np.ndarray, " n_fractions"], *, log_scale: bool = False
) -> Float64[np.ndarray, " n_fractions"]:
    """Weights w with sum w F = the trapezoid integral of F over the axis, or over its logarithm."""
    x = np.log(axis) if log_scale else axis
    widths = np.diff(x) / 2
    return np.asarray(np.append(widths, 0.0) + np.append(0.0, widths))


def faithfulness_curve(
    scores: EdgeScores | NodeScores | Sequence[Circuit],
    model: Model,
    task: Task,
    *,
    fractions: Sequence[float] | None = None,
    absolute: bool = True,
    selection: str = "top",
    prune: bool | Literal["early-stop"] = True,
    axis: str = "asked",
    log_scale: bool = False,
    random_circuits: int = 0,
    ablation: str | Ablation | None = None,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    runs: CircuitRuns | None = None,
) -> FaithfulnessCurve:
    """Faithfulness of growing circuits, with CPR, CMD, both clipped, and overshoot.

    F(C) = (m(C) - m(empty)) / (m(model) - m(empty)), m the mean margin (negative objective); under `kl`
    F = 1 - KL(C) / KL(empty). The defaults are the conventions of MIB's evaluation, which takes CPR from a
    curve with `absolute=False` and CMD from one with `absolute=True`.

    Args:
        scores: Signed scores of the edges, nodes or neurons of the model's graph. Or given circuits, one for
            each fraction but the last, which is the model: they are put in order of (kept edges, F), whatever
            their true sizes.
        model: The model. MIB's graph has a key and a value for each query head, `model.ungrouped()`, and its
            treatment of norms behind branches is `model.treating("eap-ig")`.
        task: The examples.
        fractions: Shares k of all edges in (0, 1], ascending; default .001 to 1 in ten steps. A circuit gets
            n = int(k |E|) edges; n = 0 is the empty circuit, F = 0. Of scores of nodes or neurons, |E| is the
            number that have one; those without are always kept.
        absolute: Rank edges by |score|, as CMD is published; False ranks by signed score, as CPR is. Numbers
            to set beside published ones need a curve of each kind.
        selection: `top` or `greedy` (grown from `logits`, and so connected).
        prune: Run only edges on a kept path from `input` to `logits`. `early-stop` drops once, not until
            nothing changes, the edges at nodes that no kept edge enters or leaves: the revision that MIB
            pins. No logit depends on the edges that this leaves dangling under resampling, `kept_edges` does.
            False runs what was chosen, as all do for nodes and neurons.
        axis: What integrals run over: `asked`, the fractions; `kept`, the share of all edges that each
            circuit keeps, which MIB reports and does not integrate over; or `counted`, the same as MIB counts
            it: for circuits of nodes and neurons also where there is no edge, up to S R / |E|.
        log_scale: Integrate over the logarithm of the axis.
        random_circuits: Random circuits of each size to run beside.
        ablation: What replaces ablated edges; None means the task's own default.
        objective: What m is the negative of; None means the task's own default.
        batch_size: Examples per pass.
        seed: Root of resampling, random circuits and noise.
        runs: Runs on this model and task made earlier; ablation, objective, batch size and seed are then
            theirs.

    Returns:
        The curve. With F <= 1 the largest CPR over the default fractions is 0.999. All values are NaN
        (`zero_denominator`) where the empty circuit already has the model's margin.

    Raises:
        InputError: For fractions outside (0, 1] or not ascending, a number of given circuits that does not
            fit them, an empty circuit on a logarithmic axis, or `runs` of something else.
        GraphMismatchError: For scores or circuits of another graph.

    Notes:
        Costs one ablated run per fraction, plus the model, the empty circuit and the random circuits.

    References:
        Mueller et al. (2025), arXiv:2504.13151, and the code of its circuit track (June 2025).
    """
    shares = _check_fractions(FRACTIONS if fractions is None else fractions)
    check_name("selection", selection, ("top", "greedy"))
    check_name("axis", axis, _AXES)
    if prune not in _PRUNED:
        raise InputError(f"prune is {prune!r}; expected True, False or 'early-stop'")
    circuits = _chosen(scores, model.graph, shares, absolute=absolute, selection=selection)
    if runs is None:
        how: dict[str, Any] = {"ablation": ablation, "objective": objective, "batch_size": batch_size}
        runs = CircuitRuns(model, task, Circuit.full(model.graph), **how, seed=seed)
    elif runs.model is not model or runs.task is not task:
        raise InputError("runs= was made for another model or task; remove it")
    pruned = [_pruned(circuit, prune) for circuit in circuits]
    margins = _Margins(
        full=runs.margins("full"),
        empty=runs.margins_of(Circuit.empty(model.graph)),
        points=[_margins_of(runs, circuit) for circuit in pruned],
    )
    if isinstance(scores, EdgeScores | NodeScores):
        sizes = [int(share * scores.n_items) for share in shares]
    else:
        order = margins.order(runs, [circuit.n_edges for circuit in pruned])
        margins = margins._replace(points=[margins.points[place] for place in order])
        circuits, pruned = [circuits[place] for place in order], [pruned[place] for place in order]
        sizes = [circuit.n_items for circuit in circuits]
    provenance = {
        **{key: value for key, value in runs.provenance.items() if key != "circuit"},
        "scores": _provenance_of(scores),
        "fractions": list(shares),
        "absolute": absolute,
        "selection": selection,
        "prune": prune,
        "axis": axis,
        "log_scale": log_scale,
        "random_circuits": random_circuits,
    }
    along = np.array(shares) if axis == "asked" else _shares_kept(pruned, axis, log_scale=log_scale)
    weights = trapezoid_weights(along, log_scale=log_scale)
    points, area, distance = integrate(runs, margins, np.array(shares), weights, provenance=provenance)
    unscored = int((~scores.slots).sum()) if isinstance(scores, NodeScores) else 0  # which all keep
    equal = [size + unscored for size in sizes]
    drawn = _random_reference(runs, margins, pruned[-1], equal, n_circuits=random_circuits, prune=prune)
    return FaithfulnessCurve(
        fractions=np.array(shares),
        n_edges=np.array(sizes),
        kept_edges=np.array([_count(circuit) for circuit in pruned]),
        circuits=tuple(pruned),
        points=points,
        area=area,
        distance=distance,
        random=drawn if random_circuits else None,
        absolute=absolute,
        log_scale=log_scale,
        scores=scores if isinstance(scores, EdgeScores | NodeScores) else None,
        provenance=provenance,
    )


def _chosen(
    scores: EdgeScores | NodeScores | Sequence[Circuit],
    graph: Graph,
    shares: Sequence[float],
    *,
    absolute: bool,
    selection: str,
) -> list[Circuit]:
    """A circuit for each share, not yet pruned; of given circuits, those and the model."""
    if not isinstance(scores, EdgeScores | NodeScores):
        if len(scores) != len(shares) - 1:
            raise InputError(
                f"{len(scores)} circuits were given for {len(shares)} fractions; give one for each but the "
                "last, which is the model"
            )
        for circuit in scores:
            check_graph("a given circuit", circuit.graph, graph)
        return [*scores, Circuit.full(graph)]
    if scores.graph.fingerprint != graph.fingerprint:
        raise GraphMismatchError(
            f"the scores are of {scores.graph.describe()}, but the model is {graph.describe()}"
        )
    if isinstance(scores, EdgeScores):
        check_everywhere(scores.spans, "faithfulness_curve", "scores.total()")
        choose, empty = getattr(scores, selection), Circuit.empty(graph)
    elif selection == "top":
        choose, empty = scores.top, Circuit.from_cells(graph, ~scores.slots)
    else:
        raise InputError(f"greedy selection grows edges; scores of {scores.level}s take selection='top'")
    sizes = [int(share * scores.n_items) for share in shares]
    return [choose(size, absolute=absolute) if size else empty for size in sizes]


def _provenance_of(scores: EdgeScores | NodeScores | Sequence[Circuit]) -> dict[str, Any]:
    """How the scores came to be, and their numbers; of given circuits, how the first did."""
    if isinstance(scores, EdgeScores | NodeScores):
        numbers = scores.values.contiguous().numpy().tobytes()
        return {**scores.provenance, "values": hashlib.sha256(numbers).hexdigest()[:16]}
    return {**scores[0].provenance, "given": [circuit.hash for circuit in scores]}


def _pruned(circuit: Circuit, prune: bool | str) -> Circuit:
    """The circuit as it runs; see `prune` of `faithfulness_curve`."""
    if not prune or circuit.cells is not None:
        return circuit
    if prune != "early-stop":
        return circuit.connected(warn=False)
    graph, mask = circuit.graph, circuit.mask
    entered = (graph.feeds & mask.any(0)[:, None]).any(0)
    entered[0] = True
    nodes = entered & mask.any(1)
    return replace(circuit, mask=mask & edges_among(graph, nodes))


def _count(circuit: Circuit, *, cells: bool = False) -> int | float:
    """Kept edges, of neurons by the kept share of their source; `cells`: also where there is no edge."""
    if circuit.cells is None:
        return circuit.n_edges
    graph, shares = circuit.graph, circuit.cells.reshape(circuit.graph.n_sources, -1).double().mean(1)
    read = int((graph.feeds & (shares > 0)).any(1).sum()) + 1  # by any kept node, or `logits`
    count = float(shares.sum() * read if cells else shares @ circuit.mask.double().sum(1))
    return count if circuit.level == "neuron" else round(count)


def _shares_kept(
    circuits: Sequence[Circuit], axis: str, *, log_scale: bool
) -> Float64[np.ndarray, " n_fractions"]:
    """Share of all edges that each circuit keeps, or that MIB counts of it."""
    counts = np.array([_count(circuit, cells=axis == "counted") for circuit in circuits])
    if log_scale and not counts.all():
        raise InputError("an empty circuit has no place on a logarithmic axis; give larger fractions")
    return np.asarray(counts / circuits[0].graph.n_edges)


class _Margins(NamedTuple):
    full: Float64[np.ndarray, " n"]
    empty: Float64[np.ndarray, " n"]
    points: list[Float64[np.ndarray, " n"]]

    def used(self, runs: CircuitRuns) -> Bool[np.ndarray, " n"]:
        return runs.counted & np.isfinite([self.full, self.empty, *self.points]).all(axis=0)

    def order(self, runs: CircuitRuns, counts: Sequence[int]) -> list[int]:
        """Places of the points by their counts, and by margin where these are equal."""
        means = [point[self.used(runs)].mean() for point in self.points]
        return sorted(range(len(counts)), key=lambda place: (counts[place], means[place]))


def _check_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    values = tuple(float(share) for share in fractions)
    if len(values) < 2 or not all(a < b for a, b in pairwise((0.0, *values))) or values[-1] > 1:
        raise InputError(f"fractions is {list(values)}; give two or more ascending shares of edges in (0, 1]")
    return values


def _margins_of(runs: CircuitRuns, circuit: Circuit) -> Float64[np.ndarray, " n"]:
    """Margins of a circuit; a circuit of all edges is the model itself."""
    whole = circuit.n_edges == circuit.graph.n_edges and not circuit.partial
    return runs.margins("full") if whole else runs.margins_of(circuit)


def integrate(
    runs: CircuitRuns,
    margins: _Margins,
    fractions: Float64[np.ndarray, " n_fractions"],
    weights: Float64[np.ndarray, " n_fractions"],
    *,
    provenance: Mapping[str, Any],
) -> tuple[tuple[Measurement, ...], Measurement, Measurement]:
    """Every point of the curve, CPR and CMD with their parts, from per-example margins."""
    used = margins.used(runs)
    warnings = task_warnings(runs, used)
    same = (SAME_PROMPTS,) if found_on(provenance["scores"], runs.task) else ()
    ends = {"empty": margins.empty, "full": margins.full}

    def of(statistic: RatioOfSums | FunctionOfSums, points: Mapping[str, Any], **own: Any) -> Measurement:
        how: dict[str, Any] = {"warnings": warnings, "seed": runs.seed, **own}
        found = record(METRICS["faithfulness-norm"], {**ends, **points}, statistic, used=used, **how)
        return over_different(found, runs, *same)

    recovery = recovery_of("keep", smallest=_SMALLEST)
    points = tuple(
        of(recovery, {"keep": keep}, provenance={**provenance, "fraction": float(share)})
        for share, keep in zip(fractions, margins.points, strict=True)
    )
    all_points = {f"keep/{index}": keep for index, keep in enumerate(margins.points)}
    linear = RatioOfSums(
        numerator={**dict(zip(all_points, weights.tolist(), strict=True)), "empty": -float(weights.sum())},
        denominator={"full": 1.0, "empty": -1.0},
        smallest=_SMALLEST,
    )
    how: dict[str, Any] = {"components": ("empty", "full", *all_points)}
    how |= {"parameters": {"weights": weights.tolist(), "smallest": _SMALLEST}}

    def integral(name: str) -> Measurement:
        identity, function, direction, meaning = _INTEGRALS[name]
        statistic = FunctionOfSums(function=function, **how) if function else linear
        facts: dict[str, Any] = {"id": identity, "name": name, "direction": direction, "meaning": meaning}
        facts |= {"rule": _PUBLISHED if name == "cpr" else None}
        return of(statistic, all_points, **facts, provenance={**provenance, "integral": name})

    parts = {"clipped": integral("cpr/clipped"), "overshoot": integral("cpr/overshoot")}
    distance = replace(integral("cmd"), parts={"clipped": integral("cmd/clipped")})
    return points, replace(integral("cpr"), parts=parts), distance


def _random_reference(
    runs: CircuitRuns,
    margins: _Margins,
    like: Circuit,
    sizes: Sequence[int],
    *,
    n_circuits: int,
    prune: bool | str,
) -> Float64[np.ndarray, "n_draws n_fractions"]:
    """F of random circuits of each size, of the level of `like`; the curve's examples count."""
    used, level, width = margins.used(runs), like.level, like.items.shape[-1]
    recovered = np.full((n_circuits, len(sizes)), np.nan)
    gained = margins.full[used].sum() - margins.empty[used].sum()
    if not used.any() or abs(gained) < _SMALLEST * used.sum():
        return recovered
    for index in range(n_circuits):
        rng = stream(runs.seed, f"random-curve/{index}")
        for column, (size, seed) in enumerate(zip(sizes, rng.integers(2**31, size=len(sizes)), strict=True)):
            drawn = Circuit.random(like.graph, size, seed=int(seed), level=level, d_model=width)
            margin = _margins_of(runs, _pruned(drawn, prune))
            recovered[index, column] = (margin[used].sum() - margins.empty[used].sum()) / gained
    return recovered

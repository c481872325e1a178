"""Faithfulness as a circuit grows: the curve, its area (CPR) and its distance from 1 (CMD)."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int

from assay.circuits import Circuit, EdgeScores
from assay.circuits.spans import check_everywhere
from assay.core.errors import GraphMismatchError, InputError, check_name
from assay.core.measurement import SAME_PROMPTS, Measurement, Rule
from assay.core.random import stream
from assay.core.record import Plotted
from assay.execution import Ablation, CircuitRuns
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

# What sets both integrals apart from the metric of the points.
_AREA = {"id": "MIB.cpr", "name": "cpr", "direction": "higher", "rule": Rule(pass_at=0.5)}
_DISTANCE = {"id": "MIB.cmd", "name": "cmd", "direction": "lower", "rule": None}


@dataclass(frozen=True, kw_only=True, eq=False)
class FaithfulnessCurve(Plotted):
    """Faithfulness of the best n edges for growing n.

    One curve, and so one ranking, gives both integrals. The published ones take a curve each: CPR ranks by
    signed score (`absolute=False`), CMD by |score| (`absolute=True`).

    Attributes:
        fractions: Shares of all edges, ascending.
        n_edges: Edges asked for at each, int(fraction * |E|).
        kept_edges: Edges left after pruning to paths from `input` to `logits`.
        circuits: The circuits that ran.
        points: Baseline-corrected faithfulness of each, with interval and per-example components.
        area: CPR as a measurement.
        distance: CMD as a measurement.
        random: Faithfulness of random circuits of equal size, `[n_draws, n_fractions]`, or None.
        absolute: Whether edges were ranked by magnitude.
        log_scale: Whether the integrals run over ln fraction.
        provenance: How it came to be.
    """

    drawn_by = "assay.metrics.page:plot_faithfulness"

    fractions: Float64[np.ndarray, " n_fractions"]
    n_edges: Int[np.ndarray, " n_fractions"]
    kept_edges: Int[np.ndarray, " n_fractions"]
    circuits: tuple[Circuit, ...]
    points: tuple[Measurement, ...]
    area: Measurement
    distance: Measurement
    random: Float64[np.ndarray, "n_draws n_fractions"] | None = None
    absolute: bool = True
    log_scale: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"FaithfulnessCurve({len(self.fractions)} sizes, CPR {self.cpr:.4g}, CMD {self.cmd:.4g})"

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
        """Trapezoid integral of F over the fractions; higher is better. Published: `absolute=False`."""
        return self.area.value

    @property
    def cmd(self) -> float:
        """Trapezoid integral of |1 - F| over the fractions; lower is better. Published: `absolute=True`."""
        return self.distance.value

    def band(self, level: float = 0.95) -> Float64[np.ndarray, "2 n_fractions"]:
        """Lower and upper ends of pointwise bootstrap intervals over examples."""
        intervals = [point.interval(level) for point in self.points]
        return np.array([(each.low, each.high) for each in intervals]).T


def trapezoid_weights(
    fractions: Float64[np.ndarray, " n_fractions"], *, log_scale: bool = False
) -> Float64[np.ndarray, " n_fractions"]:
    """Weights w with sum w F = the trapezoid integral of F over the fractions, or over their logarithm."""
    x = np.log(fractions) if log_scale else fractions
    widths = np.diff(x) / 2
    return np.asarray(np.append(widths, 0.0) + np.append(0.0, widths))


def faithfulness_curve(
    scores: EdgeScores,
    model: Model,
    task: Task,
    *,
    fractions: Sequence[float] | None = None,
    absolute: bool = True,
    selection: str = "top",
    prune: bool = True,
    log_scale: bool = False,
    random_circuits: int = 0,
    ablation: str | Ablation | None = None,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    runs: CircuitRuns | None = None,
) -> FaithfulnessCurve:
    """Faithfulness of growing circuits chosen from edge scores, with CPR and CMD.

    F(C) = (m(C) - m(empty)) / (m(model) - m(empty)), m the mean margin (negative objective); under `kl`
    F = 1 - KL(C) / KL(empty).

    Args:
        scores: Signed edge scores of the model's graph.
        model: The model.
        task: The examples.
        fractions: Shares k of all edges in (0, 1], ascending; default .001 to 1 in ten steps. A circuit gets
            n = int(k |E|) edges; n = 0 is the empty circuit, F = 0.
        absolute: Rank edges by |score|, as CMD is published; False ranks by signed score, as CPR is. Numbers
            to set beside published ones need a curve of each kind.
        selection: `top` or `greedy` (grown from `logits`).
        prune: Run only edges on a kept path from `input` to `logits`.
        log_scale: Integrate over ln k.
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
        InputError: For fractions outside (0, 1] or not ascending, or `runs` of something else.
        GraphMismatchError: For scores of another graph.

    Notes:
        Costs one ablated run per fraction, plus the model, the empty circuit and the random circuits.

    References:
        Mueller et al. (2025), arXiv:2504.13151.
    """
    shares = _check_fractions(FRACTIONS if fractions is None else fractions)
    check_name("selection", selection, ("top", "greedy"))
    check_everywhere(scores.spans, "faithfulness_curve", "scores.total()")
    if scores.graph.fingerprint != model.graph.fingerprint:
        raise GraphMismatchError(
            f"the scores are of {scores.graph.describe()}, but the model is {model.graph.describe()}"
        )
    if runs is None:
        how: dict[str, Any] = {"ablation": ablation, "objective": objective, "batch_size": batch_size}
        runs = CircuitRuns(model, task, Circuit.full(model.graph), **how, seed=seed)
    elif runs.model is not model or runs.task is not task:
        raise InputError("runs= was made for another model or task; remove it")
    sizes = [int(share * scores.graph.n_edges) for share in shares]
    chosen_by = scores.top if selection == "top" else scores.greedy
    empty = Circuit.empty(scores.graph)
    circuits = [chosen_by(size, absolute=absolute) if size else empty for size in sizes]
    if prune:
        circuits = [circuit.connected(warn=False) for circuit in circuits]
    numbers = scores.values.contiguous().numpy()
    provenance = {
        **{key: value for key, value in runs.provenance.items() if key != "circuit"},
        "scores": {**scores.provenance, "values": hashlib.sha256(numbers.tobytes()).hexdigest()[:16]},
        "fractions": list(shares),
        "absolute": absolute,
        "selection": selection,
        "prune": prune,
        "log_scale": log_scale,
        "random_circuits": random_circuits,
    }
    margins = _Margins(
        full=runs.margins("full"),
        empty=runs.margins_of(empty),
        points=[_margins_of(runs, circuit) for circuit in circuits],
    )
    how = {"log_scale": log_scale, "provenance": provenance}
    points, area, distance = integrate(runs, margins, np.array(shares), **how)
    return FaithfulnessCurve(
        fractions=np.array(shares),
        n_edges=np.array(sizes),
        kept_edges=np.array([circuit.n_edges for circuit in circuits]),
        circuits=tuple(circuits),
        points=points,
        area=area,
        distance=distance,
        random=_random_reference(runs, margins, sizes, random_circuits, prune) if random_circuits else None,
        absolute=absolute,
        **how,
    )


class _Margins(NamedTuple):
    full: Float64[np.ndarray, " n"]
    empty: Float64[np.ndarray, " n"]
    points: list[Float64[np.ndarray, " n"]]

    def used(self, runs: CircuitRuns) -> Bool[np.ndarray, " n"]:
        return runs.counted & np.isfinite([self.full, self.empty, *self.points]).all(axis=0)


def _check_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    values = tuple(float(share) for share in fractions)
    if len(values) < 2 or not all(a < b for a, b in pairwise((0.0, *values))) or values[-1] > 1:
        raise InputError(f"fractions is {list(values)}; give two or more ascending shares of edges in (0, 1]")
    return values


def _margins_of(runs: CircuitRuns, circuit: Circuit) -> Float64[np.ndarray, " n"]:
    """Margins of a circuit; a circuit of all edges is the model itself."""
    return runs.margins("full") if circuit.n_edges == circuit.graph.n_edges else runs.margins_of(circuit)


def integrate(
    runs: CircuitRuns,
    margins: _Margins,
    fractions: Float64[np.ndarray, " n_fractions"],
    *,
    log_scale: bool,
    provenance: Mapping[str, Any],
) -> tuple[tuple[Measurement, ...], Measurement, Measurement]:
    """Every point of the curve, CPR and CMD from per-example margins."""
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
    weights = trapezoid_weights(fractions, log_scale=log_scale).tolist()
    area = RatioOfSums(
        numerator={**dict(zip(all_points, weights, strict=True)), "empty": -sum(weights)},
        denominator={"full": 1.0, "empty": -1.0},
        smallest=_SMALLEST,
    )
    distance = FunctionOfSums(
        function="distance-area",
        components=("empty", "full", *all_points),
        parameters={"weights": weights, "smallest": _SMALLEST},
    )
    cpr = of(area, all_points, provenance={**provenance, "integral": "cpr"}, **_AREA)
    return points, cpr, of(distance, all_points, provenance={**provenance, "integral": "cmd"}, **_DISTANCE)


def _random_reference(
    runs: CircuitRuns, margins: _Margins, sizes: Sequence[int], n_circuits: int, prune: bool
) -> Float64[np.ndarray, "n_draws n_fractions"]:
    """F of random circuits of each size, the same examples counting as on the curve."""
    graph, used = runs.circuit.graph, margins.used(runs)
    recovered = np.full((n_circuits, len(sizes)), np.nan)
    gained = margins.full[used].sum() - margins.empty[used].sum()
    if not used.any() or abs(gained) < _SMALLEST * used.sum():
        return recovered
    for index in range(n_circuits):
        rng = stream(runs.seed, f"random-curve/{index}")
        for column, (size, seed) in enumerate(zip(sizes, rng.integers(2**31, size=len(sizes)), strict=True)):
            circuit = Circuit.random(graph, size, seed=int(seed))
            margin = _margins_of(runs, circuit.connected(warn=False) if prune else circuit)
            recovered[index, column] = (margin[used].sum() - margins.empty[used].sum()) / gained
    return recovered

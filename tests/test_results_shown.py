"""Every result can be drawn, tabulated and named in a line."""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from planted_subsets import planted_matrix
from planted_zoo import SETTINGS, inspected, planted
from report.synthetic_store import made_audit

import assay
from assay.analyses.benchmark import DiscoveryBenchmark
from assay.analyses.generalization import motif
from assay.analyses.generalization.circuit_loss import Dynamics
from assay.analyses.generalization.monitor import Monitor, Reading
from assay.analyses.generalization.ranking import rank_inspections
from assay.core.record import Plotted


BENCHMARK = Path(__file__).parents[1] / "experiments" / "discovery_benchmark" / "mini-ioi.json"


@functools.cache
def mini() -> SimpleNamespace:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=8, seed=0)
    scores = assay.discover(model, task, "eap", per_example=True)
    return SimpleNamespace(model=model, task=task, scores=scores, circuit=scores.top(30).connected())


@functools.cache
def ranking(seed: int = 0) -> Any:
    shown = {f"q{quality:g}": planted(quality, seed=seed) for quality in (0.1, 0.5, 0.9)}
    metrics = ["ddb-output", "ddb-global", "rankme"]
    return rank_inspections(inspected(shown), metrics=metrics, settings=SETTINGS)


def found_motif() -> Any:
    matrices = [each.dependency for each in ranking().inspections]
    return motif(np.stack(matrices), ranking().performance.values)


@functools.cache
def path() -> assay.SelectionPath:
    data = planted_matrix(60, 120, planted=0.3, slope=0.6, n_families=12, seed=5)
    return assay.selection_path(data.correct, data.id_accuracy, [20, 40], families=data.families)


def curve() -> Any:
    made = mini()
    return assay.faithfulness_curve(made.scores, made.model, made.task, fractions=[0.01, 0.1, 1.0])


def calibration() -> Any:
    made = mini()
    return assay.calibrate_all([(3, 4), (3, 6)], made.model, made.task, gates=["C11", "C23"])


def monitor() -> Monitor:
    watched = Monitor(mini().model, mini().scores, threshold=0.3, rule="threshold")
    for index, shift in enumerate((0.1, 0.2, 0.6)):
        watched.readings.append(Reading(index=index, time="2026-01-01", n=9, shift=shift, alarm=shift > 0.3))
    return watched


def dynamics() -> Dynamics:
    numbers = {"deep": 0.2, "shallow": 0.1, "depth_bias": 0.7, "low": 0.5, "high": 0.9}
    first = {**numbers, "depth_bias": None, "low": None, "high": None}  # undefined: a gap
    rows = zip((0, 100), (first, numbers), strict=True)
    readings = tuple({"step": step, **each, "scores": {"validation": 0.8}} for step, each in rows)
    facts = {"images": {"n": 32}, "shallow_blocks": [0, 2], "deep_blocks": [9, 9]}
    return Dynamics(readings=readings, facts=facts)


def measurement() -> assay.Measurement:
    return assay.measure(mini().circuit, mini().model, mini().task, "kl")


def worst() -> assay.WorstCase:
    return assay.worst_case(mini().circuit, mini().model, mini().task, n_clean=4, n_corrupted=4)


# Makes a result, and says how many rows its table has.
MADE: dict[str, tuple[Callable[[], Any], Callable[[Any], int]]] = {
    "Audit": (made_audit, lambda each: len(each.measurements) + 1 + len(each.other_ablations)),
    "CalibrationReport": (calibration, len),
    "CertifiedCircuit": (
        lambda: assay.certify(mini().scores, 30, resamples=200),
        lambda each: (each.edges["decision"] != "excluded").sum(),
    ),
    "Circuit": (lambda: mini().circuit, lambda each: each.n_edges),
    "DiscoveryBenchmark": (lambda: DiscoveryBenchmark.load(BENCHMARK), lambda each: len(each.rows)),
    "Dynamics": (dynamics, lambda each: len(each.readings)),
    "EdgeScores": (lambda: mini().scores, lambda each: each.graph.n_edges),
    "FaithfulnessCurve": (curve, lambda each: len(each.fractions)),
    "HeadScores": (lambda: assay.discover_heads(mini().model, mini().task), lambda each: each.values.size),
    "Measurement": (measurement, lambda each: each.n + each.n_excluded),
    "Monitor": (monitor, lambda each: len(each.readings)),
    "Motif": (found_motif, lambda each: each.used.numel()),
    "NodeScores": (lambda: assay.NodeScores.of(mini().scores), lambda each: each.graph.n_sources),
    "Ranking": (ranking, lambda each: len(each.names) * (1 + len(each.columns))),
    "SelectionPath": (path, lambda each: len(each.sizes) + len(each.baselines)),
    "Subset": (lambda: path()[20], lambda each: each.size),
    "WorstCase": (worst, lambda each: each.divergence.size),
}


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_result_with_a_picture_is_tried_here() -> None:
    for module in pkgutil.walk_packages(assay.__path__, "assay."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert {each.__name__ for each in subclasses(Plotted)} == MADE.keys()


def label_of(ax: Axes) -> None:
    assert any(each.get_xlabel() for each in ax.get_shared_x_axes().get_siblings(ax)), ax.get_title()
    shared = ax.get_shared_y_axes().get_siblings(ax)
    assert any(each.get_ylabel() or any(_.get_text() for _ in each.get_yticklabels()) for each in shared)


@pytest.mark.filterwarnings("ignore::assay.core.errors.AssayWarning")
@pytest.mark.parametrize("name", sorted(MADE))
def test_a_result_is_drawn_tabulated_and_named(name: str) -> None:
    make, n_rows = MADE[name]
    result, settings = make(), dict(mpl.rcParams)
    drawn = result.plot()
    panels = drawn.ravel().tolist() if isinstance(drawn, np.ndarray) else [drawn]
    assert len(panels) == len(panels[0].get_figure().axes)
    for ax in panels:
        label_of(ax)
    given = Figure().subplots()
    assert result.plot(given) is given
    assert given.get_xlabel()
    assert given.lines or given.patches or given.collections or given.images

    named = repr(result)
    assert named.startswith(name)
    assert len(named.splitlines()[0]) < 200

    table = result.to_frame()
    assert len(table) == n_rows(result)
    assert all(isinstance(column, str) for column in table.columns)
    assert dict(mpl.rcParams) == settings

"""The audit: find a circuit, choose its size, measure it, look for its worst case, judge it, write a page.

An audit is a pure function of its record (model weights, prompts, method, every option, seed). The hash
of that record is the result's id: asking again for what a store holds costs one look-up, and an
interrupted audit finds its scores and measurements where it left them.
"""

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from assay.circuits import Circuit, EdgeScores, write_atomically
from assay.circuits.given import IMAGES, takes_text
from assay.core.errors import InputError, check_least, check_name
from assay.core.machine import counting_examples
from assay.core.plotted import Plotted
from assay.core.record import BRIEF, HIDDEN, MACHINE, Record, library_version, named, plain
from assay.discovery.edges import get_method
from assay.execution import Ablation, CircuitRuns, get_ablation
from assay.metrics import find_metric
from assay.metrics.plots import CurveData
from assay.models import Model, load_model
from assay.objectives import Objective, get_objective
from assay.page.graph import graph_of
from assay.pipeline import audit_facts as facts
from assay.pipeline.checks import check_options, check_writable, registered, usual_replacement
from assay.pipeline.gates import calibrate_measured, calibrate_runs
from assay.pipeline.prompts import Division, N, divide
from assay.pipeline.runs import RunSettings, measure_stored
from assay.pipeline.sizing import COARSE, FINE, SizedCircuit, discover_circuit
from assay.pipeline.stage import Content, Progress, Stage, silent
from assay.pipeline.worst import USUAL_SIDE, pairs_of, usual_sizes, worst_case_stage, worst_measured
from assay.store import About, Store, StoredResult
from assay.tasks import ImageRows, ImageTask, PairTask, Task


if TYPE_CHECKING:
    import pandas as pd

    from assay.page.blocks import Page

SCHEMA = "assay-audit/1"
# Raised when an audit looks at other pairs, other runs or prompts, or comes to another size than before.
RULES = {"worst_case": "usual-sizes/1", "calibration": "gates/3", "size_rule": "sweep/2"}
STAGES = ("attack", "random", "curve", "minimality", "calibrate")  # that an audit can do without
METRICS = ("faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk")
HEADLINE = ("faithfulness-norm", "faithfulness", "topk")  # what the first sentence of a report needs
BASELINED = ("faithfulness-norm", "topk")  # measured on random circuits of equal size too
SHAPE = ("d_model", "n_parameters")  # what a report says of a model beside what identifies it
OF_LABELS = ("ce-delta", "topk")  # need right answers
OTHER_ABLATIONS = ("zero", "mean")  # that the first number of a report is shown under beside its own
MINIMALITY_HEADS = 64  # models of at most so many heads get minimality in a full audit: one run per head
RANDOM, RANDOM_FULL = 5, 20  # random circuits of the chosen size

# Why a stage is not run, and what runs it.
CAUSES = {
    "skip": "left out by --skip",
    "images": "needs prompts; the inputs are images",
    "reads": "serves prompts that are read at one position each",
    "lengths": "serves pairs whose prompts are of one length",
    "edges": "the ablation is defined for edges alone; with --full, gates take the mean",
    "draws": "the ablation draws other values in every run, so no divergence belongs to an input",
    "heads": f"more than {MINIMALITY_HEADS} heads: `assay measure --metric minimality`",
    "labels": "the images have no labels",
    "full": (
        f"--full adds a finer curve with {facts.RANDOM_PER_SIZE} random circuits at each size, the worst "
        "case over fresh prompts or all pairs of images, minimality, and the gates that need further runs"
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit(Plotted, Record):
    """What an audit found: everything that its page shows, finite JSON, and the circuit itself.

    Attributes:
        created: When it was made, UTC, ISO 8601.
        model: `Model.describe` with its width and parameters.
        task: The measured examples: counts, the model's own success, a few examples, notes.
        discovery: The examples that edges were scored on.
        graph: The model's graph.
        method: How the edges were scored.
        edges: The strongest edges by rank, as far as they can be drawn.
        curve: Faithfulness by size; None where the stage was left out.
        worst_case: `WorstCase.to_dict`; None where it was left out.
        calibration: `CalibrationReport.to_dict`; None where it was left out.
        other_ablations: The first measurement with other values on the cut edges.
        excerpt: What a drawing of a large circuit opens on.
        left_out: What was not run (a stage or the key of a metric; `full`: the larger forms), and why.
        reported: The circuit's size, nodes, faithfulness, and the sweep that found it.
        measurements: `Measurement.to_dict` of each metric.
        per_head: `[layer][head]`: summed signed score of the edges that leave each head.
        provenance: How it came to be; `id` is its key in a store.
        scores: Edge scores on the discovery prompts.
        circuit: The smallest swept circuit that meets the target.
        cached: Whether a store already held it.
    """

    record_kind = "audit"
    record_schema = SCHEMA
    drawn_by = "assay.pipeline.audit_page:plot_audit"

    created: str
    model: Mapping[str, Any]
    task: Mapping[str, Any]
    discovery: Mapping[str, Any]
    graph: Mapping[str, Any]
    method: Mapping[str, Any]
    edges: tuple[Mapping[str, Any], ...]
    curve: CurveData | None
    worst_case: Mapping[str, Any] | None
    calibration: Mapping[str, Any] | None
    other_ablations: tuple[Mapping[str, Any], ...] = ()
    excerpt: Mapping[str, Any] | None = field(default=None, metadata=BRIEF)
    left_out: Mapping[str, str]
    reported: Mapping[str, Any] = field(metadata=named("circuit"))
    measurements: tuple[Mapping[str, Any], ...]
    per_head: tuple[tuple[float, ...], ...]
    provenance: Mapping[str, Any]
    scores: EdgeScores = field(default=cast(EdgeScores, None), metadata=HIDDEN)
    circuit: Circuit = field(default=cast(Circuit, None), metadata=HIDDEN)
    cached: bool = field(default=False, metadata=HIDDEN)

    def __repr__(self) -> str:
        return f"Audit({self.id}, {self.circuit!r})"

    @property
    def id(self) -> str:
        """Hash of the record behind it, and its key in a store."""
        return str(self.provenance["id"])

    def to_frame(self) -> "pd.DataFrame":
        """One row per measurement, under other ablations last: name, value, low, high, unit, n, status."""
        import pandas as pd

        columns = ["name", "value", "low", "high", "unit", "n", "status"]
        rows = [{**(each["interval"] or {}), **each} for each in (*self.measurements, *self.other_ablations)]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def pages(self) -> "list[Page]":
        """Its page, then those of its worst case and its gates, where it has them."""
        from assay.report.save import pages_of

        parts = filter(None, (self.worst_case, self.calibration))
        return [self.page(), *(page for part in parts for page in pages_of(part))]

    def page(self) -> "Page":
        """Its page."""
        return self._page

    @cached_property
    def _page(self) -> "Page":
        from assay.pipeline.audit_page import audit_page

        return audit_page(self)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write `report.html`, `audit.json`, `circuit.safetensors` and `scores.safetensors`.

        Returns:
            The path of the report.

        Raises:
            OutputError: If the directory cannot be written.
        """
        from assay.report import save_report

        folder = Path(directory)
        check_writable(folder, make=True)
        self.circuit.save(folder / "circuit.safetensors")
        self.scores.save(folder / "scores.safetensors")
        document = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        write_atomically(folder / "audit.json", document.encode())
        return save_report(folder / "report.html", self)  # last: `is_saved` looks for the id in it

    def is_saved(self, directory: str | os.PathLike[str]) -> bool:
        """Whether `save` has left its files in a directory, and the report there is still its."""
        names = ("circuit.safetensors", "scores.safetensors", "audit.json", "report.html")
        files = [Path(directory) / name for name in names]
        return all(map(Path.is_file, files)) and self.id.encode() in files[-1].read_bytes()


def load_audit(store: Store, identity: str) -> Audit:
    """An audit out of a store, without running anything.

    Args:
        store: Where it was kept.
        identity: Its id or the beginning of it.

    Raises:
        UnknownNameError: No result of this id.
        InputError: The result is not an audit.
    """
    stored = store.get(identity)
    if stored.kind != "audit":
        raise InputError(f"{stored.id} is a {stored.kind}, not an audit; see `assay store ls --kind audit`")
    return _restored(stored)


def stored_answer(request: str, location: str | Path) -> Audit | None:
    """The audit that a store holds for a request; None where there is none, or no store.

    Args:
        request: What `assay.pipeline.request.request_of` gives.
        location: Of the store.
    """
    try:
        store = Store(location, create=False)
    except InputError:  # nothing was stored there yet
        return None
    identity = store.answer(request)
    return None if identity is None else load_audit(store, identity)


def _restored(stored: StoredResult) -> Audit:
    audit, graph = Audit.from_dict(stored.payload), graph_of(stored.payload["graph"])
    scores = EdgeScores(
        graph, stored.arrays["scores"], provenance=audit.provenance["scores"], details=audit.method
    )
    provenance = audit.reported["provenance"]
    circuit = Circuit(graph=graph, mask=stored.arrays["mask"].bool(), provenance=provenance)
    return replace(audit, scores=scores, circuit=circuit, cached=True)


def _content(audit: Audit) -> Content:
    """What is stored; an audit is found by the faithfulness of its circuit."""
    first = audit.measurements[0]
    about = About(
        model=audit.model["id"],
        task=audit.task["name"],
        method=audit.method["key"],
        metric=first["name"],
        **{key: first[key] for key in ("n", "value", "status")},
        **{key: first["interval"][key] for key in ("low", "high")},
        seed=audit.discovery["seed"],
        name=f"{audit.circuit.n_edges:,} edges",
        circuit=audit.circuit.hash,
        size=audit.circuit.n_edges,
        ablation=audit.task["ablation"],
    )
    arrays = {"scores": audit.scores.values, "mask": audit.circuit.mask}
    return Content(payload=audit.to_dict(), about=about, arrays=arrays)


# ---- the straight line --------------------------------------------------------------------------


@takes_text(untouched=("model", "task"), lengths=True)
def audit(
    model: Model | str | os.PathLike[str] = "mini",
    task: Task | str = "ioi",
    *,
    method: str = "eap-ig-inputs",
    objective: str | Objective | None = None,
    ablation: str | None = None,
    n: int | None = None,
    steps: int | str = 5,
    target: float = 0.9,
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    n_random: int | None = None,
    batch_size: int | None = None,
    discover_on: PairTask | str | Path | None = None,
    measure_on: PairTask | str | Path | None = None,
    images: str | None = None,
    skip_bad: bool = False,
    full: bool = False,
    skip: Collection[str] = (),
    device: str | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Find the smallest circuit that keeps a task's behaviour, and measure how far it can be trusted.

    Edges are scored on one draw of prompts and ranked by |score|. The size is the smallest of a
    geometric sweep, refined by bisection, whose connected circuit reaches a normalised faithfulness of
    `target` on those prompts, and on the other prompts of the same generator on which everything reported
    is measured.

    The default audit reads everything from the runs of a few dozen circuits. A full audit adds a finer search
    and curve, all pairs of fresh prompts, minimality and the gates that need further runs. `left_out` lists
    what was not run.

    Args:
        model: `mini`, a hub id, a directory, or a loaded model.
        task: Key of a registered task, a JSONL file, or a task of your own. The last two are divided: by
            their field `split` (`discover` or `measure`), else their distinct clean prompts are dealt to two
            halves with the seed. Below 20 distinct prompts per half all serve for both, and every verdict is
            marked `same_prompts` and at most inconclusive. Images are halved likewise.
        method: Discovery method.
        objective: Loss whose negative is the margin; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        n: Prompts of each of the two draws, >= 2; default: 100, also of a longer file or own task. Of a full
            audit: 200, and all prompts of a file or own task.
        steps: Quadrature nodes of the method, or "auto": 3 nodes, refined to 9 where that changes the scores.
        target: Normalised faithfulness to reach, in (0, 1].
        seed: Root seed of prompts, random circuits and resampling.
        metrics: Keys of what to measure beside faithfulness, normalised and plain, and top-K; default:
            completeness, KL, cross-entropy, and in a full audit minimality for models of at most 64 heads.
        n_random: Random circuits of the chosen size, >= 1; default: 5, of a full audit 20 (and 4 at each size
            of the curve).
        batch_size: Prompts per pass; default: by free memory. Never changes a result.
        discover_on: File or task to discover on; `task` is then measured on.
        measure_on: File or task to measure on; with both, `task` is not read.
        images: What `assay.load_images` takes, instead of `task`, for an image classifier.
        skip_bad: Leave out image files that cannot be decoded, with a warning.
        full: Run every stage in its larger form.
        skip: Stages to leave out: `attack`, `random`, `curve`, `minimality`, `calibrate`.
        device: Where to load the model, if it is loaded here.
        store: Results store to read from and write to, or its directory, made once model and task are loaded.
            Unused under your own objective: its name does not identify it.
        out: Directory for the report and the results; checked before the work begins.
        progress: Called with stage, steps done and steps in all (0: unknown).

    Returns:
        The audit.

    Raises:
        UnknownNameError: An unknown method, task, metric, objective, ablation or stage.
        InputError: An option out of range.
        OutputError: `out` or `store` cannot be written.

    Example:
        >>> found = audit("mini", "ioi", n=20, n_random=2)
        >>> found.circuit.n_edges < found.circuit.graph.n_edges
        True
    """
    named_task = task if images is None else f"{IMAGES}{images}"
    of_images = isinstance(named_task, str) and named_task.startswith(IMAGES)
    check_options(
        method=method,
        task=None if of_images else named_task,
        ablation=ablation,
        objective=objective,
        metrics=metrics,
        device=device,
    )
    check_least(2, n=N if n is None else n)
    check_least(1, n_random=RANDOM if n_random is None else n_random)
    if not 0 < target <= 1:
        raise InputError(f"target is {target}; expected a normalised faithfulness in (0, 1], e.g. 0.9")
    for name in skip:
        check_name("stage to skip", name, STAGES)
    for place in (out, store):
        if place is not None and not isinstance(place, Store) and "://" not in os.fspath(place):
            check_writable(Path(place))
    progress = progress or silent

    progress("load", 0, 1)
    if not isinstance(model, Model):
        model = load_model(Path(model) if isinstance(model, os.PathLike) else model, device=device)
    if full:
        model.check_together("a full audit")
    apart: dict[str, Any] = {"discover_on": discover_on, "measure_on": measure_on}
    halves = divide(model, named_task, n=n, full=full, seed=seed, skip_bad=skip_bad, **apart)
    store = store if isinstance(store, Store) or store is None else Store(store)
    progress("load", 1, 1)

    measured = halves.measured
    loss = get_objective(objective or measured.objective)
    replacement = get_ablation(ablation or measured.ablation)
    causes = _causes(measured, replacement, full=full, skip=skip)
    search = FINE if full else COARSE
    settings = RunSettings(
        model=model, objective=loss, ablation=replacement.key, batch_size=batch_size, seed=seed
    )
    record = {
        "job": "audit",
        "schema": SCHEMA,
        "library": library_version(),
        "model": model.describe(),
        "graph": model.graph.fingerprint,
        "discovery": halves.discovery.describe(),
        "measured": measured.describe(),
        "held_out": halves.held_out,
        "method": {"key": method, "steps": steps, "quadrature": "midpoint"},
        "objective": loss.key,
        "ablation": replacement.key,
        "target": target,
        "metrics": _metric_keys(model, measured, metrics, causes),
        "other_ablations": [key for key in OTHER_ABLATIONS if not replacement.key.startswith(key)],
        "n_random": 0 if "random" in causes else n_random or (RANDOM_FULL if full else RANDOM),
        "random_per_size": facts.RANDOM_PER_SIZE,
        "scope": {
            "larger": sorted(STAGES) if full else [],
            "left_out": dict(sorted(causes.items())),
            "search": [search.resolution, search.growth],
        },
        **RULES,
        "seed": seed,
    }
    store = store if registered(loss, replacement) else None
    run = _Run(record=record, halves=halves, settings=settings, store=store, progress=progress)
    result = run.stage.run(store).value
    if out is not None:
        result.save(out)
    return result


def _causes(task: Task, ablation: Ablation, *, full: bool, skip: Collection[str]) -> dict[str, str]:
    """Stages that are not run at all, each with its key of `CAUSES`, or `default`."""
    causes = {} if full else {"minimality": "default"}
    if isinstance(task, ImageTask):
        causes["calibrate"] = "images"
    causes |= dict.fromkeys(skip, "skip")
    if task.positions.ndim > 1:
        causes.setdefault("calibrate", "reads")
    if isinstance(task, PairTask) and task.alignment is not None:
        causes = {"attack": "lengths", "calibrate": "lengths", **causes}
    if not full and usual_replacement(ablation.key) != ablation.key:
        causes.setdefault("calibrate", "edges")
    return causes


def _metric_keys(
    model: Model, task: Task, metrics: Sequence[str] | None, causes: Mapping[str, str]
) -> list[str]:
    """What is measured: what a report needs first, then what was asked for or is usual."""
    keys = [*METRICS] if metrics is None else [*HEADLINE, *(find_metric(key).key for key in metrics)]
    if metrics is None and "minimality" not in causes and _few_heads(model):
        keys.append("minimality")
    return [key for key in dict.fromkeys(keys) if _labelled(task) or key not in OF_LABELS]


def _few_heads(model: Model) -> bool:
    return model.n_layers * model.n_heads <= MINIMALITY_HEADS


def _labelled(task: Task) -> bool:
    return not isinstance(task, ImageTask) or task.labels is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """An audit that is made: `compute` goes through its stages in their order.

    Attributes:
        record: All that the audit is a function of.
        halves: The examples.
        settings: How circuits are run; its objective is looked up already.
        store: Where results are kept; None under an objective whose name does not identify it.
        progress: Told of each stage.
    """

    record: Mapping[str, Any]
    halves: Division
    settings: RunSettings
    store: Store | None
    progress: Progress

    @property
    def full(self) -> bool:
        """Whether every stage takes its larger form."""
        return bool(self.record["scope"]["larger"])

    @cached_property
    def stage(self) -> Stage[Audit]:
        """The whole as one result of a store."""
        return Stage(kind="audit", record=self.record, compute=self.compute, write=_content, read=_restored)

    def compute(self) -> Audit:
        """Find the circuit, then everything that is asked of it."""
        began, record = time.perf_counter(), self.record
        causes = record["scope"]["left_out"]
        how: dict[str, Any] = {"method": record["method"]["key"], "steps": record["method"]["steps"]}
        how |= {"target": record["target"], "search": FINE if self.full else COARSE}
        how |= {"store": self.store, "progress": self.progress}
        sized = discover_circuit(self.halves, self.settings, **how)
        runs = cast(CircuitRuns, sized.runs)  # on the other half; everything below reads them
        measured = self.measurements(runs)
        curve = None
        if "curve" not in causes:
            with counting_examples(partial(self.progress, "faithfulness curve")):
                curve = facts.curve_facts(sized, runs, measured[0], target=record["target"], full=self.full)
        document = {
            "kind": "audit",
            "schema": SCHEMA,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": runs.model.describe() | {key: getattr(runs.model, key) for key in SHAPE},
            "task": facts.task_facts(runs),
            **self.found(sized, measured[0]),
            **facts.drawing_facts(sized, runs),
            "curve": curve,
            "measurements": measured,
            "other_ablations": self.under_other_ablations(runs),
            "worst_case": None if "attack" in causes else self.worst_case(runs),
            "calibration": None if "calibrate" in causes else self.calibration(runs),
            "left_out": self.left_out(runs),
            "provenance": {
                "id": self.stage.id,
                "library": f"assay {library_version()}",
                "record": record,
                "scores": dict(sized.scores.provenance),
                MACHINE: {
                    "device": str(runs.model.device),
                    "dtype": str(runs.model.dtype).removeprefix("torch."),
                    "torch": torch.__version__,
                    "seconds": round(time.perf_counter() - began, 1),
                },
            },
        }
        return replace(Audit.from_dict(plain(document)), scores=sized.scores, circuit=sized.circuit)

    def found(self, sized: SizedCircuit, faithfulness: Mapping[str, Any]) -> dict[str, Any]:
        """The circuit, its graph and how its edges were scored."""
        circuit, scores, graph = sized.circuit, sized.scores, sized.scores.graph
        how, discovery = self.record["method"], self.halves.discovery
        steps = scores.details.get("steps", how["steps"]) if get_method(how["key"]).integrates else None
        sums = scores.values.double().sum(1)
        return {
            "discovery": {
                "n": discovery.n,
                "seed": self.settings.seed,
                "data_hash": discovery.data_hash,
                "held_out": self.halves.held_out,
            },
            "graph": {**graph.describe(), "n_edges": graph.n_edges, "fingerprint": graph.fingerprint},
            "method": {**scores.details, **how, "steps": steps},
            "circuit": {
                "id": circuit.hash,
                "size": sized.size,
                "n_edges": circuit.n_edges,
                "nodes": circuit.nodes(),
                "target": self.record["target"],
                "faithfulness": {"value": faithfulness["value"], **faithfulness["interval"]},
                "discovery_faithfulness": sized.faithfulness,
                "confirmed": sized.confirmed,
                "sweep": list(sized.sweep),
                "provenance": dict(circuit.provenance),
            },
            "per_head": [
                [float(sums[graph.head_source(layer, head)]) for head in range(graph.n_heads)]
                for layer in range(graph.n_layers)
            ],
        }

    def measurements(self, runs: CircuitRuns) -> list[dict[str, Any]]:
        """Record of each metric; the first is the normalised faithfulness."""
        records, keys = [], self.record["metrics"]
        for place, key in enumerate(keys):
            self.progress("measure", place, len(keys))
            circuits = self.record["n_random"] if key in BASELINED else 0
            records.append(measure_stored(runs, key, random_circuits=circuits, store=self.store))
        self.progress("measure", len(keys), len(keys))
        return records

    def under_other_ablations(self, runs: CircuitRuns) -> list[dict[str, Any]]:
        """Records of the normalised faithfulness with other values on the cut edges."""
        first = HEADLINE[0]
        return [
            {**measure_stored(runs.under(key), first, store=self.store), "name": f"{first}, {key} ablation"}
            for key in self.record["other_ablations"]
            if runs.counted.any()  # else there is no number to stand beside
        ]

    def worst_case(self, runs: CircuitRuns) -> dict[str, Any] | None:
        """The circuit on fresh prompts, on pairs of images, or on what was measured."""
        task = runs.task
        if runs.ablation_object.draws > 1:
            return None
        self.progress("attack", 0, 1)
        if self.full:
            if isinstance(task, ImageRows):
                task = task.subset(range(min(task.n, USUAL_SIDE)))
            usual = usual_sizes(task, runs.ablation)
            sample = pairs_of(task, *usual, ablation=runs.ablation, seed=runs.seed)
            stage = worst_case_stage(runs.circuit, runs.model, sample, progress=self.progress)
            worst = stage.run(self.store).value
        else:
            worst = worst_measured(runs, store=self.store)
            self.progress("attack", 1, 1)
        document = worst.to_dict()
        document["fields"]["heatmaps"] = []  # so few inputs leave nothing to see in their cells
        return document

    def calibration(self, runs: CircuitRuns) -> dict[str, Any]:
        """The gates on what the audit measured, under its own objective and ablation."""
        assert isinstance(runs.task, PairTask)  # images have a cause
        kept: dict[str, Any] = {"store": self.store, "progress": self.progress}
        if self.full:
            return calibrate_measured(runs.circuit, runs.task, self.settings, **kept).document
        return calibrate_runs(runs, **kept).document

    def left_out(self, runs: CircuitRuns) -> dict[str, str]:
        """What is not run, and why."""
        causes = dict(self.record["scope"]["left_out"])
        if runs.ablation_object.draws > 1:
            causes["attack"] = "draws"
        if self.full and not _few_heads(runs.model) and "minimality" not in self.record["metrics"]:
            causes.setdefault("minimality", "heads")
        if not _labelled(runs.task):
            causes |= dict.fromkeys(OF_LABELS, "labels")
        if not self.full:
            causes["full"] = "full"
        return {stage: CAUSES[cause] for stage, cause in causes.items() if cause != "default"}

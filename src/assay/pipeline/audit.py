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
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from assay.circuits import Circuit, EdgeScores, write_atomically
from assay.circuits.given import IMAGES, takes_text
from assay.core.errors import InputError
from assay.core.plotted import Plotted
from assay.core.record import BRIEF, HIDDEN, MACHINE, Record, library_version, named, plain
from assay.execution import CircuitRuns, get_ablation
from assay.graph import Graph
from assay.metrics import faithfulness_curve
from assay.models import Model, load_model
from assay.objectives import Objective, get_objective
from assay.page.graph import graph_of
from assay.pipeline.audit_facts import curve_facts, drawn_fractions, facts_of, random_of_curve
from assay.pipeline.audit_scope import HEADLINE, RANDOM_PER_SIZE, LeftOut, Scope, check_counts, scope_of
from assay.pipeline.checks import check_options, check_writable, registered
from assay.pipeline.gates import calibrate_measured, calibrate_runs
from assay.pipeline.inputs import divide
from assay.pipeline.prompts import Division
from assay.pipeline.runs import RunSettings, measure_stored
from assay.pipeline.sizing import SizedCircuit, discover_circuit
from assay.pipeline.stage import Content, Progress, Stage, silent
from assay.pipeline.worst import USUAL_SIDE, usual_sizes, worst_case_stored, worst_measured
from assay.store import About, Store, StoredResult
from assay.tasks import ImageRows, PairTask, Task


if TYPE_CHECKING:
    import pandas as pd

    from assay.page.blocks import Page

SCHEMA = "assay-audit/1"
# Raised when an audit looks at other pairs, other runs or prompts, or comes to another size than before.
RULES = {"worst_case": "usual-sizes/1", "calibration": "gates/3", "size_rule": "sweep/2"}
BASELINED = ("faithfulness-norm", "topk")  # measured on random circuits of equal size too


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit(Plotted, Record):
    """What an audit found: everything that its page shows, finite JSON, and the circuit itself.

    Attributes:
        title: Heading of its page.
        created: When it was made, UTC, ISO 8601.
        model: `Model.describe` with its shape.
        task: The measured examples: counts, the model's own success, a few examples, notes.
        discovery: The examples that edges were scored on.
        graph: The model's graph.
        method: How the edges were scored.
        edges: The strongest edges by rank, as far as they can be drawn.
        curve: Faithfulness by size: `fractions`, `n_edges`, `values`, `low`, `high`, `random`, `cpr`, `cmd`.
            None where the stage was left out.
        worst_case: `WorstCase.to_dict`; None where it was left out.
        calibration: `CalibrationReport.to_dict`; None where it was left out.
        other_ablations: The first measurement with other values on the cut edges.
        excerpt: What a drawing of a large circuit opens on.
        left_out: What was not run, why, and the option that runs it.
        reported: The circuit's size, share, faithfulness, and the sweep that found it.
        random: Random circuits of the same size.
        measurements: `Measurement.to_dict` of each metric.
        topk: Top-K agreement by K.
        per_layer: Sum of |score| over the edges between each writing and each reading layer.
        per_head: `[layer][head]`: summed signed score of the edges that leave each head.
        provenance: How it came to be; `id` is its key in a store.
        scores: Edge scores on the discovery prompts.
        circuit: The smallest swept circuit that meets the target.
        cached: Whether a store already held it.
    """

    record_schema = SCHEMA
    drawn_by = "assay.pipeline.audit_plots:plot_audit"

    title: str
    created: str
    model: Mapping[str, Any]
    task: Mapping[str, Any]
    discovery: Mapping[str, Any]
    graph: Mapping[str, Any]
    method: Mapping[str, Any]
    edges: tuple[Mapping[str, Any], ...]
    curve: Mapping[str, Any] | None
    worst_case: Mapping[str, Any] | None
    calibration: Mapping[str, Any] | None
    other_ablations: tuple[Mapping[str, Any], ...] = ()
    excerpt: Mapping[str, Any] | None = field(default=None, metadata=BRIEF)
    left_out: tuple[LeftOut, ...]
    reported: Mapping[str, Any] = field(metadata=named("circuit"))
    random: Mapping[str, Any] | None
    measurements: tuple[Mapping[str, Any], ...]
    topk: Mapping[str, Any] | None
    per_layer: Mapping[str, Any]
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
        rows = [
            {**each, **{end: (each["interval"] or {}).get(end) for end in ("low", "high")}}
            for each in (*self.measurements, *self.other_ablations)
        ]
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
        from assay.page.text import bounded
        from assay.report.save import page_of

        return page_of(bounded(self.to_dict()))

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
        page: Path = save_report(folder / "report.html", self)
        write_atomically(folder / "audit.json", self._json())
        return page

    def _json(self) -> bytes:
        return json.dumps(self.to_dict(), indent=1, allow_nan=False).encode()

    def is_saved(self, directory: str | os.PathLike[str]) -> bool:
        """Whether `save` has left its files in a directory, and the report and the document are still its."""
        folder = Path(directory)
        try:
            page, document = ((folder / name).read_bytes() for name in ("report.html", "audit.json"))
        except OSError:
            return False
        arrays = all((folder / f"{name}.safetensors").is_file() for name in ("circuit", "scores"))
        return arrays and document == self._json() and self.id.encode() in page


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
    return _restored(stored, graph_of(stored.payload["graph"]))


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


def _restored(stored: StoredResult, graph: Graph) -> Audit:
    audit = Audit.from_dict(stored.payload)
    scores = EdgeScores(
        graph, stored.arrays["scores"], provenance=audit.provenance["scores"], details=audit.method
    )
    provenance = audit.reported["provenance"]
    circuit = Circuit(graph=graph, mask=stored.arrays["mask"].bool(), provenance=provenance)
    return replace(audit, scores=scores, circuit=circuit, cached=True)


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
    check_options(
        method=method,
        task=None if isinstance(named_task, str) and named_task.startswith(IMAGES) else named_task,
        ablation=ablation,
        objective=objective,
        metrics=metrics,
        device=device,
    )
    check_counts(n=n, n_random=n_random, target=target, skip=skip, full=full)
    for place in (out, store):
        if place is not None and not isinstance(place, Store) and "://" not in os.fspath(place):
            check_writable(Path(place))
    progress = progress or silent

    progress("load", 0, 1)
    if not isinstance(model, Model):
        model = load_model(Path(model) if isinstance(model, os.PathLike) else model, device=device)
    if full:
        model.check_together("a full audit")
    halves = divide(
        model,
        named_task,
        n=n,
        full=full,
        seed=seed,
        discover_on=discover_on,
        measure_on=measure_on,
        skip_bad=skip_bad,
    )
    store = store if isinstance(store, Store) or store is None else Store(store)
    progress("load", 1, 1)

    measured = halves.measured
    loss, replacement = (
        get_objective(objective or measured.objective),
        get_ablation(ablation or measured.ablation),
    )
    making = _Making(
        halves=halves,
        settings=RunSettings(
            model=model, objective=loss, ablation=replacement.key, batch_size=batch_size, seed=seed
        ),
        scope=scope_of(
            model, measured, replacement, metrics=metrics, n_random=n_random, full=full, skip=skip
        ),
        method=method,
        steps=steps,
        target=target,
        store=store if registered(loss, replacement) else None,
        progress=progress,
    )
    result = making.stage.run(making.store).value
    if out is not None:
        result.save(out)
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class _Making:
    """An audit that is made: `run` goes through its stages in their order.

    Attributes:
        halves: The examples.
        settings: How circuits are run; its objective is looked up already.
        scope: What is run.
        method, steps, target: How the circuit is found.
        store: Where results are kept; None under an objective whose name does not identify it.
        progress: Told of each stage.
    """

    halves: Division
    settings: RunSettings
    scope: Scope
    method: str
    steps: int | str
    target: float
    store: Store | None
    progress: Progress

    @cached_property
    def record(self) -> dict[str, Any]:
        """All that the audit is a function of."""
        model, objective = self.settings.model, self.settings.objective
        assert isinstance(objective, Objective)
        return {
            "job": "audit",
            "schema": SCHEMA,
            "library": library_version(),
            "model": model.describe(),
            "graph": model.graph.fingerprint,
            "discovery": self.halves.discovery.describe(),
            "measured": self.halves.measured.describe(),
            "held_out": self.halves.held_out,
            "method": {"key": self.method, "steps": self.steps, "quadrature": "midpoint"},
            "objective": objective.key,
            "ablation": self.settings.ablation,
            "target": self.target,
            **self.scope.describe(),
            **RULES,
            "seed": self.settings.seed,
        }

    @cached_property
    def stage(self) -> Stage[Audit]:
        """The whole as one result of a store."""
        graph = self.settings.model.graph
        return Stage(
            kind="audit",
            record=self.record,
            compute=self.run,
            write=_content,
            read=lambda stored: _restored(stored, graph),
        )

    def run(self) -> Audit:
        """Find the circuit, then everything that is asked of it."""
        began = time.perf_counter()
        how: dict[str, Any] = {"method": self.method, "steps": self.steps, "target": self.target}
        sized = discover_circuit(
            self.halves,
            self.settings,
            **how,
            search=self.scope.search,
            store=self.store,
            progress=self.progress,
        )
        runs = cast(CircuitRuns, sized.runs)  # on the other half; everything below reads them
        curve = self.curve(sized, runs)
        records = self.measurements(runs)
        if curve is not None and curve["random"] is None:
            curve["random"] = random_of_curve(records["faithfulness-norm"], sized)
        document = {
            "schema": SCHEMA,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **facts_of(self.halves, self.settings, sized, runs, records, **how),
            "curve": curve,
            "worst_case": self.worst_case(runs),
            "calibration": self.calibration(runs),
            "other_ablations": self.under_other_ablations(runs),
            "left_out": self.scope.left_out,
            "provenance": {
                "id": self.stage.id,
                "library": f"assay {library_version()}",
                "record": self.record,
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

    def curve(self, sized: SizedCircuit, runs: CircuitRuns) -> dict[str, Any] | None:
        """Faithfulness by size: the published sizes; in full random circuits and a finer grid, too."""
        if "curve" in self.scope.causes:
            return None
        self.progress("faithfulness curve", 0, 1)
        of, full = (sized.scores, runs.model, runs.task), self.scope.full
        curve = faithfulness_curve(*of, runs=runs, random_circuits=RANDOM_PER_SIZE if full else 0)
        shares = drawn_fractions(runs.model.graph.n_edges, sized.size, finer=full)
        drawn = faithfulness_curve(*of, runs=runs, fractions=shares)
        self.progress("faithfulness curve", 1, 1)
        return curve_facts(curve, drawn)

    def measurements(self, runs: CircuitRuns) -> dict[str, dict[str, Any]]:
        """Record of each metric."""
        records = {}
        for place, key in enumerate(self.scope.metrics):
            self.progress("measure", place, len(self.scope.metrics))
            circuits = self.scope.n_random if key in BASELINED else 0
            records[key] = measure_stored(runs, key, random_circuits=circuits, store=self.store)
        self.progress("measure", len(records), len(records))
        return records

    def under_other_ablations(self, runs: CircuitRuns) -> list[dict[str, Any]]:
        """Records of the normalised faithfulness with other values on the cut edges."""
        return [
            {
                **measure_stored(runs.under(key), HEADLINE[0], random_circuits=0, store=self.store),
                "name": f"{HEADLINE[0]}, {key} ablation",
            }
            for key in self.scope.other_ablations
            if runs.counted.any()  # else there is no number to stand beside
        ]

    def worst_case(self, runs: CircuitRuns) -> dict[str, Any] | None:
        """The circuit on fresh prompts, on pairs of images, or on what was measured."""
        if "attack" in self.scope.causes or runs.ablation_object.draws > 1:
            return None
        task = runs.task
        self.progress("attack", 0, 1)
        if self.scope.full:
            if isinstance(task, ImageRows):
                task = task.subset(range(min(task.n, USUAL_SIDE)))
            worst = worst_case_stored(
                *(runs.circuit, runs.model, task, *usual_sizes(task, runs.ablation)),
                ablation=runs.ablation,
                seed=runs.seed,
                store=self.store,
                progress=self.progress,
            ).value
        else:
            worst = worst_measured(runs, store=self.store)
            self.progress("attack", 1, 1)
        document = worst.to_dict()
        document["fields"]["heatmaps"] = []  # so few inputs leave nothing to see in their cells
        # Time and machine are facts of the audit.
        document["provenance"] = _without(document["provenance"], MACHINE)
        return _without(document, "seconds")

    def calibration(self, runs: CircuitRuns) -> dict[str, Any] | None:
        """The gates on what the audit measured, under its own objective and ablation."""
        if "calibrate" in self.scope.causes or not isinstance(runs.task, PairTask):
            return None
        kept: dict[str, Any] = {"store": self.store, "progress": self.progress}
        if self.scope.full:
            judged = calibrate_measured(runs.circuit, runs.task, self.settings, **kept)
        else:
            judged = calibrate_runs(runs, **kept)
        document = judged.document
        # What was run now and what a store already held, and how long it took, are not part of the result.
        table = _without(document["table"], "passes", "columns")
        gates = [_without(gate, "seconds") for gate in document["gates"]]
        return _without(document, "seconds") | {"gates": gates, "table": table}


def _without(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in names}


def _content(audit: Audit) -> Content:
    """What is stored; an audit is found by the faithfulness of its circuit."""
    record = next(each for each in audit.measurements if each["name"] == "faithfulness-norm")
    about = About(
        model=audit.model["id"],
        task=audit.task["name"],
        method=audit.method["key"],
        metric="faithfulness-norm",
        **{key: record[key] for key in ("n", "value", "status")},
        **{key: record["interval"][key] for key in ("low", "high")},
        seed=audit.discovery["seed"],
        name=f"{audit.circuit.n_edges:,} edges",
        circuit=audit.circuit.hash,
        size=audit.circuit.n_edges,
        ablation=audit.task["ablation"],
    )
    arrays = {"scores": audit.scores.values, "mask": audit.circuit.mask}
    return Content(payload=audit.to_dict(), about=about, arrays=arrays)

"""The audit: discover a circuit, choose its size, measure it beside random circuits, keep everything.

An audit is a pure function of its record (model weights, prompts, method, every option, seed). The hash
of that record is the result's id: asking again for what a store holds costs one look-up, and an
interrupted audit finds its scores and measurements where it left them.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from assay.analyses.calibration.battery import USUAL_PROMPTS, gates_on_same_prompts
from assay.circuits import Circuit, EdgeScores, write_atomically
from assay.circuits.given import takes_text
from assay.core import display
from assay.core.errors import InputError
from assay.core.record import MACHINE, library_version, record_id
from assay.discovery.edges import get_method
from assay.execution import CircuitRuns, get_ablation
from assay.metrics import faithfulness_curve, find_metric
from assay.models import Model, load_model
from assay.objectives import Objective, get_objective
from assay.page.circuit import graph_of
from assay.pipeline import document
from assay.pipeline.gates import calibrate_stored, plan_calibration, usual_prompts
from assay.pipeline.prompts import Draws, draw_prompts
from assay.pipeline.stages import (
    FIRST_SIZE,
    Found,
    Progress,
    Stage,
    check_options,
    check_writable,
    discover_stored,
    find_circuit,
    measure_stored,
    recovery,
    registered,
    usual_replacement,
)
from assay.pipeline.worst import USUAL_SIDE, Sizes, plan_worst_case, usual_sizes, worst_case_stored
from assay.report import save_report
from assay.store import Store
from assay.tasks import PairTask
from assay.tasks.load import DEFAULT_N


METRIC_KEYS = ("faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk")
BASELINED = ("faithfulness-norm", "topk")  # measured on random circuits of equal size too
HEADLINE = ("faithfulness-norm", "faithfulness", "topk")  # what the first sentence of a report needs
MINIMALITY_HEADS = 64  # models of at most so many heads get minimality too: it needs one run per head
REFINED_STEPS = (3, 6)  # nodes of the two sweeps that steps="auto" makes, at most
WORST_CASE_RULE = "usual-sizes/1"  # raised when the worst case of an audit draws other pairs than before
CALIBRATION_RULE = "gates/2"  # raised when the gates of an audit look at other prompts or runs than before
SIZE_RULE = "sweep/2"  # raised when the same scores and prompts lead to another size than before
RANDOM_PER_SIZE = 4  # random circuits at each published size of the curve
CURVE_RUNS = 25 + 10 * RANDOM_PER_SIZE


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """What an audit found.

    Attributes:
        id: Hash of the record behind it, and its key in a store.
        document: Everything a report shows, plain JSON.
        scores: Edge scores on the discovery prompts.
        circuit: The smallest swept circuit that meets the target.
        cached: Whether a store already held it.
    """

    id: str
    document: Mapping[str, Any]
    scores: EdgeScores
    circuit: Circuit
    cached: bool = False

    def __repr__(self) -> str:
        return f"Audit({self.id}, {self.circuit!r})"

    def _repr_html_(self) -> str:
        rows = [
            (
                each["name"],
                display.number(each["value"]),
                display.ends(each["interval"]["low"], each["interval"]["high"], each["interval"]["level"]),
                each["n"],
                each["status"],
            )
            for each in self.measurements
        ]
        return display.table(
            f"audit: {self.circuit.n_edges} of {self.circuit.graph.n_edges} edges",
            ("metric", "value", "interval", "n", "verdict"),
            rows,
            id=self.id,
        )

    @property
    def curve(self) -> Mapping[str, Any]:
        """Faithfulness by size: `fractions`, `n_edges`, `values`, `low`, `high`, `random`, `cpr`, `cmd`."""
        curve: Mapping[str, Any] = self.document["curve"]
        return curve

    @property
    def measurements(self) -> tuple[Mapping[str, Any], ...]:
        """Records of the measurements, as `Measurement.to_dict` writes them."""
        return tuple(self.document["measurements"])

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write `report.html`, `audit.json`, `circuit.safetensors` and `scores.safetensors`.

        Returns:
            The path of the report.

        Raises:
            OutputError: If the directory cannot be written.
        """
        folder = Path(directory)
        check_writable(folder, make=True)
        text = json.dumps(self.document, indent=1, allow_nan=False)
        write_atomically(folder / "audit.json", text.encode())
        self.circuit.save(folder / "circuit.safetensors")
        self.scores.save(folder / "scores.safetensors")
        return save_report(folder / "report.html", self.document)


@takes_text(untouched=("model", "task"))
def audit(
    model: Model | str | os.PathLike[str] = "mini",
    task: PairTask | str = "ioi",
    *,
    method: str = "eap-ig-inputs",
    objective: str | Objective | None = None,
    ablation: str | None = None,
    n: int | None = None,
    steps: int | str = 5,
    target: float = 0.9,
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    n_random: int = 20,
    batch_size: int | None = None,
    discover_on: PairTask | str | Path | None = None,
    measure_on: PairTask | str | Path | None = None,
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

    Args:
        model: `mini`, a hub id, a directory, or a loaded model.
        task: Key of a registered task, a JSONL file, or a task of your own. The last two are divided: by
            their field `split` (`discover` or `measure`), else their distinct clean prompts are dealt to two
            halves with the seed. Below 20 distinct prompts per half all serve for both, and every verdict is
            marked `same_prompts` and at most inconclusive.
        method: Discovery method.
        objective: Loss whose negative is the margin; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        n: Prompts of each of the two draws, >= 2; default: 200, and all prompts of a file or own task.
        steps: Quadrature nodes of the method, or "auto": 3 nodes, refined to 9 where that changes the scores.
        target: Normalised faithfulness to reach, in (0, 1].
        seed: Root seed of prompts, random circuits and resampling.
        metrics: Keys of what to measure beside faithfulness, normalised and plain, and top-K; default:
            completeness, KL, cross-entropy, and minimality for models of at most 64 heads.
        n_random: Random circuits of the chosen size, >= 1 (4 at each size of the curve).
        batch_size: Prompts per pass; default: by free memory. Never changes a result.
        discover_on: File or task to discover on; `task` is then measured on.
        measure_on: File or task to measure on; with both, `task` is not read.
        device: Where to load the model, if it is loaded here.
        store: Results store to read from and write to, or its directory, made once model and task are loaded.
            Unused under your own objective: its name does not identify it.
        out: Directory for the report and the results; checked before the work begins.
        progress: Called with stage, steps done and steps in all (0: unknown).

    Returns:
        The audit; `.document` is what the report shows.

    Raises:
        UnknownNameError: An unknown method, task, metric, objective or ablation.
        InputError: An option out of range.
        OutputError: `out` or `store` cannot be written.

    Example:
        >>> found = audit("mini", "ioi", n=20, n_random=2)
        >>> found.circuit.n_edges < found.circuit.graph.n_edges
        True
    """
    check_options(
        method=method, task=task, ablation=ablation, objective=objective, metrics=metrics, device=device
    )
    _check_numbers(n=n, n_random=n_random, target=target)
    for place in (out, store):
        if place is not None and not isinstance(place, Store) and "://" not in os.fspath(place):
            check_writable(Path(place))
    report = progress or _silent
    report("load", 0, 1)
    loaded = (
        model
        if isinstance(model, Model)
        else load_model(Path(model) if isinstance(model, os.PathLike) else model, device=device)
    )
    draws = draw_prompts(loaded, task, n=n, seed=seed, discover_on=discover_on, measure_on=measure_on)
    keep = store if isinstance(store, Store) or store is None else Store(store)
    report("load", 1, 1)
    loss = get_objective(objective or draws.measured.objective)
    replacement = get_ablation(ablation or draws.measured.ablation)
    keep = keep if registered(loss, replacement) else None
    job = _Job(
        model=loaded,
        draws=draws,
        method=method,
        objective=loss,
        ablation=replacement.key,
        steps=steps,
        target=target,
        seed=seed,
        metrics=metric_keys(loaded, metrics),
        n_random=n_random,
        batch_size=batch_size,
        store=keep,
        progress=report,
    )
    identity = record_id("audit", job.record)
    if keep is not None and keep.has(identity):
        found = load_audit(keep, identity, model=loaded)
    else:
        found = job.run()
    if out is not None:
        found.save(out)
    return found


def load_audit(store: Store, identity: str, *, model: Model | None = None) -> Audit:
    """An audit out of a store, without running anything.

    Args:
        store: Where it was kept.
        identity: Its id or the beginning of it.
        model: Not needed; given, its graph is used instead of one built anew.

    Raises:
        UnknownNameError: No result of this id.
        InputError: The result is not an audit.
    """
    found = store.get(identity)
    if found.kind != "audit":
        raise InputError(f"{found.id} is a {found.kind}, not an audit; see `assay list results --kind audit`")
    graph = model.graph if model is not None else graph_of(found.payload["graph"])
    origin = found.payload["provenance"]["scores"]
    scores = EdgeScores(graph, found.arrays["scores"], provenance=origin, details=found.payload["method"])
    circuit = Circuit(
        graph=graph, mask=found.arrays["mask"].bool(), provenance=found.payload["circuit"]["provenance"]
    )
    return Audit(id=found.id, document=found.payload, scores=scores, circuit=circuit, cached=True)


def metric_keys(model: Model, metrics: Sequence[str] | None) -> tuple[str, ...]:
    """What an audit measures: what a report needs first, then those asked for or the default ones."""
    if metrics is None:
        small = model.n_layers * model.n_heads <= MINIMALITY_HEADS
        return (*METRIC_KEYS, "minimality") if small else METRIC_KEYS
    return tuple(dict.fromkeys([*HEADLINE, *(find_metric(key).key for key in metrics)]))


def plan_audit(
    model: Model,
    *,
    method: str = "eap-ig-inputs",
    n: int = DEFAULT_N,
    steps: int | str = 5,
    metrics: Sequence[str] | None = None,
    n_random: int = 20,
) -> list[Stage]:
    """What an audit would run, at most, and what that costs.

    Returns:
        Stages in order.
    """
    sweeps = max(1, (model.graph.n_edges // FIRST_SIZE).bit_length()) + 6 + 2 * 18  # found, then confirmed
    return [
        plan_discovery(model, method=method, n=n, steps=steps),
        Stage(name="sweep sizes", runs=sweeps, passes=sweeps * n),
        Stage(name="faithfulness curve", runs=CURVE_RUNS, passes=CURVE_RUNS * n),
        plan_measurement(model, metric_keys(model, metrics), n=n, n_random=n_random),
        plan_worst_case("all", Sizes(n_clean=min(n, USUAL_SIDE), n_corrupted=min(n, USUAL_SIDE))),
        Stage(
            name="calibrate",
            runs=1,
            passes=sum(stage.passes for stage in plan_calibration(model, min(n, USUAL_PROMPTS))),
        ),
    ]


def plan_discovery(
    model: Model, *, method: str, n: int, steps: int | str, options: Mapping[str, Any] | None = None
) -> Stage:
    """Cost of scoring all edges, at most, as the method states it."""
    chosen = get_method(method, **(options or {}))
    usual = REFINED_STEPS if chosen.integrates else (1,)
    sweeps = usual if isinstance(steps, str) else (steps,)
    per_prompt = sum(chosen.most_passes(model, nodes) for nodes in sweeps)
    return Stage(name="discover", runs=1, passes=per_prompt * n)


def plan_measurement(model: Model, metrics: Sequence[str], *, n: int, n_random: int) -> Stage:
    """Cost of shared runs, random circuits, one run per head where needed, and what metrics run alone."""
    specs = [find_metric(key) for key in metrics]
    heads = model.n_layers * model.n_heads if any(spec.runs_per_head for spec in specs) else 0
    own = sum(spec.own_runs for spec in specs) * (1 + n_random)
    runs = len({run for spec in specs for run in spec.runs}) + n_random + heads + own
    return Stage(name="measure", runs=runs, passes=runs * n)


def _check_numbers(*, n: int | None, n_random: int, target: float) -> None:
    if n is not None and n < 2:
        raise InputError(f"n is {n}; an audit needs at least 2 prompts (default 200)")
    if n_random < 1:
        raise InputError(
            f"n_random is {n_random}; give at least 1 random circuit to compare with (default 20)"
        )
    if not 0 < target <= 1:
        raise InputError(f"target is {target}; the normalised faithfulness to reach lies in (0, 1], e.g. 0.9")


def _silent(stage: str, done: int, total: int) -> None:
    del stage, done, total


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """One audit with everything resolved."""

    model: Model
    draws: Draws
    method: str
    objective: Objective
    ablation: str
    steps: int | str
    target: float
    seed: int
    metrics: tuple[str, ...]
    n_random: int
    batch_size: int | None
    store: Store | None
    progress: Progress

    @property
    def record(self) -> dict[str, Any]:
        """What the result is a function of."""
        return {
            "job": "audit",
            "schema": document.SCHEMA,
            "library": library_version(),
            "model": self.model.describe(),
            "graph": self.model.graph.fingerprint,
            "discovery": self.draws.discovery.describe(),
            "measured": self.draws.measured.describe(),
            "held_out": self.draws.held_out,
            "method": {"key": self.method, "steps": self.steps, "quadrature": "midpoint"},
            "objective": self.objective.key,
            "ablation": self.ablation,
            "target": self.target,
            "size_rule": SIZE_RULE,
            "metrics": list(self.metrics),
            "n_random": self.n_random,
            "random_per_size": RANDOM_PER_SIZE,
            "worst_case": WORST_CASE_RULE,
            "calibration": CALIBRATION_RULE,
            "seed": self.seed,
        }

    def runs(self, task: PairTask, circuit: Circuit) -> CircuitRuns:
        """Runs of a circuit under the audit's objective and ablation."""
        return CircuitRuns(
            self.model,
            task,
            circuit,
            ablation=self.ablation,
            objective=self.objective,
            batch_size=self.batch_size,
            seed=self.seed,
        )

    def run(self) -> Audit:
        """Do the work and keep it."""
        started = time.perf_counter()
        self.progress("discover", 0, 1)
        scores = discover_stored(
            self.model,
            self.draws.discovery,
            self.method,
            objective=self.objective,
            ablation=self.ablation,
            steps=self.steps,
            batch_size=self.batch_size,
            seed=self.seed,
            store=self.store,
        )
        self.progress("discover", 1, 1)
        sweep = self.runs(self.draws.discovery, Circuit.full(self.model.graph))
        other = self.runs(self.draws.measured, Circuit.full(self.model.graph))
        found = find_circuit(
            scores,
            lambda circuit: recovery(sweep, circuit),
            target=self.target,
            progress=self.progress,
            elsewhere=(lambda circuit: recovery(other, circuit)) if self.draws.held_out else None,
        )
        del sweep, other
        runs = self.runs(self.draws.measured, found.circuit)
        self.progress("faithfulness curve", 0, 1)
        measured = self.draws.measured
        curve = faithfulness_curve(scores, self.model, measured, runs=runs, random_circuits=RANDOM_PER_SIZE)
        shares = document.fine_fractions(self.model.graph.n_edges, found.size)
        fine = faithfulness_curve(scores, self.model, measured, runs=runs, fractions=shares)
        self.progress("faithfulness curve", 1, 1)
        records = {}
        for place, key in enumerate(self.metrics):
            self.progress("measure", place, len(self.metrics))
            n_random = self.n_random if key in BASELINED else 0
            found_here = measure_stored(runs, key, random_circuits=n_random, store=self.store)
            held_out = self.draws.held_out
            records[key] = found_here if held_out else document.on_same_prompts(found_here)
        self.progress("measure", len(self.metrics), len(self.metrics))
        worst = self.worst_case(found.circuit)
        calibration = self.calibration(found.circuit)
        seconds = round(time.perf_counter() - started, 1)
        facts = {
            "curve": document.curve_facts(curve, fine),
            "worst_case": worst,
            "calibration": calibration,
        }
        made = self.assemble(scores, found, runs, facts, records, seconds)
        if self.store is not None:
            arrays = {"scores": scores.values, "mask": found.circuit.mask}
            self.store.put("audit", self.record, made, arrays)
        return Audit(id=made["provenance"]["id"], document=made, scores=scores, circuit=found.circuit)

    def worst_case(self, circuit: Circuit) -> dict[str, Any] | None:
        """The circuit on pairs of fresh prompts; None under an ablation that uses no corrupted prompt."""
        if self.ablation != "resample":
            return None
        protocol, size = usual_sizes(self.draws.measured)
        found = worst_case_stored(
            circuit,
            self.model,
            self.draws.measured,
            protocol,
            size,
            seed=self.seed,
            store=self.store,
            progress=self.progress,
        )
        made = found.result.to_dict()
        made["fields"]["heatmaps"] = []  # so few inputs leave nothing to see in their cells
        # Time and machine are facts of the audit.
        return {key: value for key, value in made.items() if key != "seconds"} | {
            "provenance": {key: value for key, value in made["provenance"].items() if key != MACHINE}
        }

    def calibration(self, circuit: Circuit) -> dict[str, Any]:
        """The gates on what the audit measured, under its own objective and ablation.

        An ablation that is defined for edges alone cannot replace single heads; `mean` is used instead.
        """
        table = usual_prompts(self.draws.measured, seed=self.seed)
        found = calibrate_stored(
            circuit,
            self.model,
            table.task,
            pool=table.pool,
            same_prompts=gates_on_same_prompts(circuit, self.draws.measured),
            objective=self.objective,
            ablation=usual_replacement(self.ablation),
            batch_size=self.batch_size,
            store=self.store,
            progress=self.progress,
        ).document
        # What was run now and what was found in the store, and how long it took, are not part of the result.
        gates = [{key: value for key, value in gate.items() if key != "seconds"} for gate in found["gates"]]
        columns = {key: value for key, value in found["table"].items() if key not in ("passes", "columns")}
        return {key: value for key, value in found.items() if key != "seconds"} | {
            "gates": gates,
            "table": columns,
        }

    def assemble(
        self,
        scores: EdgeScores,
        found: Found,
        runs: CircuitRuns,
        facts: Mapping[str, Any],
        records: Mapping[str, Mapping[str, Any]],
        seconds: float,
    ) -> dict[str, Any]:
        """Everything a report shows, from what the stages gave."""
        faithfulness = records["faithfulness-norm"]
        identity = record_id("audit", self.record)
        return document.as_document(
            {
                "title": document.title(self.model, self.draws.measured),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "model": document.model_facts(self.model),
                "task": document.task_facts(self.draws, runs),
                "discovery": {
                    "n": self.draws.discovery.n,
                    "seed": self.seed,
                    "data_hash": self.draws.discovery.data_hash,
                    "held_out": self.draws.held_out,
                },
                "graph": {
                    **self.model.graph.describe(),
                    "n_edges": self.model.graph.n_edges,
                    "n_sources": self.model.graph.n_sources,
                    "n_targets": self.model.graph.n_targets,
                    "fingerprint": self.model.graph.fingerprint,
                },
                "method": {
                    "key": self.method,
                    "objective": self.objective.key,
                    "ablation": self.ablation,
                    "steps": scores.details.get("steps", self.steps)
                    if get_method(self.method).integrates
                    else None,
                    "quadrature": "midpoint",
                    "completeness_gap": scores.details.get("completeness_gap"),
                    "seconds": scores.details.get("seconds"),
                    "passes": scores.details.get("passes"),
                },
                "edges": document.listed_edges(scores, found.circuit, found.size),
                **facts,
                "circuit": {
                    **document.circuit_facts(found, self.target, faithfulness),
                    "provenance": dict(found.circuit.provenance),
                },
                "random": document.random_facts(faithfulness, found.circuit.n_edges),
                "measurements": list(records.values()),
                "topk": document.agreement_facts(records["topk"]),
                "per_layer": document.layer_table(scores),
                "per_head": document.head_table(scores),
                "provenance": {
                    "id": identity,
                    "library": f"assay {library_version()}",
                    "record": self.record,
                    "scores": dict(scores.provenance),
                    "machine": {
                        "device": str(self.model.device),
                        "dtype": str(self.model.dtype).removeprefix("torch."),
                        "torch": torch.__version__,
                        "seconds": seconds,
                    },
                },
            }
        )

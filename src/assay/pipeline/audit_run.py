"""An audit as a plan of stages: discover, choose the size, measure, attack, calibrate, write the document."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import torch

from assay.circuits import EdgeScores
from assay.core.measurement import Measurement
from assay.core.record import MACHINE, library_version
from assay.discovery.edges import get_method
from assay.execution import CircuitRuns
from assay.metrics import faithfulness_curve
from assay.models import Model
from assay.pipeline import document
from assay.pipeline.audit_plan import HEADLINE, RANDOM_PER_SIZE, AuditPlan
from assay.pipeline.audit_result import Audit, restored
from assay.pipeline.gates import calibrate_measured, calibrate_runs
from assay.pipeline.prompts import Division
from assay.pipeline.runs import RunSettings, measure_stored
from assay.pipeline.sizing import SizedCircuit, discover_circuit
from assay.pipeline.stage import Content, Progress, Stage
from assay.pipeline.worst import USUAL_SIDE, usual_sizes, worst_case_stored, worst_measured
from assay.store import About, Store
from assay.tasks import ImageRows, PairTask


BASELINED = ("faithfulness-norm", "topk")  # measured on random circuits of equal size too
WORST_CASE_RULE = "usual-sizes/1"  # raised when the worst case of an audit draws other pairs than before
CALIBRATION_RULE = "gates/3"  # raised when the gates of an audit look at other prompts or runs than before
SIZE_RULE = "sweep/2"  # raised when the same scores and prompts lead to another size than before


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditRun:
    """One audit with everything resolved.

    Attributes:
        draws: Prompts to discover on and to measure on.
        settings: How circuits are run.
        objective, ablation: Keys of both.
        target: Normalised faithfulness to reach.
        plan: Method, metrics, and which stages run.
        store: Where stages are taken from and kept.
        progress: Told of each stage.
    """

    draws: Division
    settings: RunSettings
    objective: str
    ablation: str
    target: float
    plan: AuditPlan
    store: Store | None
    progress: Progress

    @cached_property
    def stage(self) -> Stage[Audit]:
        """The audit as one result."""
        return Stage(
            kind="audit",
            record=self.record,
            compute=self.run,
            write=self.content,
            read=lambda stored: restored(stored, self.model.graph),
        )

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
            "method": {"key": self.plan.method, "steps": self.plan.steps, "quadrature": "midpoint"},
            "objective": self.objective,
            "ablation": self.ablation,
            "target": self.target,
            "size_rule": SIZE_RULE,
            "metrics": list(self.plan.metric_keys),
            "other_ablations": list(self.plan.other_ablations),
            "n_random": self.plan.random_circuits,
            "random_per_size": RANDOM_PER_SIZE,
            "scope": self.plan.scope.record(),
            "worst_case": WORST_CASE_RULE,
            "calibration": CALIBRATION_RULE,
            "seed": self.settings.seed,
        }

    @property
    def model(self) -> Model:
        """The model."""
        return self.settings.model

    def content(self, audit: Audit) -> Content:
        """What is stored; an audit is found by the faithfulness of its circuit."""
        record = next(each for each in audit.measurements if each["name"] == "faithfulness-norm")
        about = About(
            model=self.model.id,
            task=self.draws.measured.name,
            method=self.plan.method,
            metric="faithfulness-norm",
            **{key: record[key] for key in ("n", "value", "status")},
            **{key: record["interval"][key] for key in ("low", "high")},
            seed=self.settings.seed,
            name=f"{audit.circuit.n_edges:,} edges",
            circuit=audit.circuit.hash,
            size=audit.circuit.n_edges,
            ablation=self.ablation,
        )
        arrays = {"scores": audit.scores.values, "mask": audit.circuit.mask}
        return Content(payload=dict(audit.document), about=about, arrays=arrays)

    def run(self) -> Audit:
        """Do the work; every stage that has a record of its own is kept."""
        started = time.perf_counter()
        scope = self.plan.scope
        sized = discover_circuit(
            self.draws,
            self.settings,
            method=self.plan.method,
            steps=self.plan.steps,
            target=self.target,
            search=scope.search,
            store=self.store,
            progress=self.progress,
        )
        assert sized.runs is not None
        runs = sized.runs
        curve = self.curve(sized, runs) if scope.runs("curve") else None
        records = self.measure(runs)
        if curve is not None and curve["random"] is None:
            curve["random"] = document.random_of_curve(records["faithfulness-norm"], sized)
        worst, gates = self.worst_case(runs), self.calibration(runs)
        others = self.under_other_ablations(runs)
        shown = document.opening(sized)
        findings = {
            "edges": document.listed_edges(sized, shown),
            "curve": curve,
            "worst_case": worst,
            "calibration": gates,
            "other_ablations": others,
        }
        if shown is not sized:
            findings["excerpt"] = document.excerpt_facts(shown, sized, self.alone(shown, runs))
        seconds = round(time.perf_counter() - started, 1)
        made = self.assemble(sized, runs, findings, records, seconds)
        return Audit(id=self.stage.id, document=made, scores=sized.scores, circuit=sized.circuit)

    def curve(self, sized: SizedCircuit, runs: CircuitRuns) -> dict[str, Any]:
        """Faithfulness by size: the published sizes; in full random circuits and a finer grid, too."""
        self.progress("faithfulness curve", 0, 1)
        of = sized.scores, self.model, runs.task
        larger = "curve" in self.plan.scope.larger
        curve = faithfulness_curve(*of, runs=runs, random_circuits=RANDOM_PER_SIZE if larger else 0)
        shares = document.drawn_fractions(self.model.graph.n_edges, sized.size, finer=larger)
        fine = faithfulness_curve(*of, runs=runs, fractions=shares)
        self.progress("faithfulness curve", 1, 1)
        return document.curve_facts(curve, fine)

    def alone(self, shown: SizedCircuit, runs: CircuitRuns) -> Measurement:
        """Normalised faithfulness of what a drawing opens on: the point of a curve, one ablated run."""
        shares = [(shown.size + 0.5) / self.model.graph.n_edges, 1.0]
        return faithfulness_curve(shown.scores, self.model, runs.task, runs=runs, fractions=shares).points[0]

    def measure(self, runs: CircuitRuns) -> dict[str, dict[str, Any]]:
        """Record of each metric."""
        records, keys = {}, self.plan.metric_keys
        for place, key in enumerate(keys):
            self.progress("measure", place, len(keys))
            n_random = self.plan.random_circuits if key in BASELINED else 0
            records[key] = measure_stored(runs, key, random_circuits=n_random, store=self.store)
        self.progress("measure", len(keys), len(keys))
        return records

    def under_other_ablations(self, runs: CircuitRuns) -> list[dict[str, Any]]:
        """Records of the normalised faithfulness with other values on the cut edges."""
        return [
            {
                **measure_stored(runs.under(key), HEADLINE[0], random_circuits=0, store=self.store),
                "name": f"{HEADLINE[0]}, {key} ablation",
            }
            for key in self.plan.other_ablations
            if runs.counted.any()  # else there is no number to stand beside
        ]

    def worst_case(self, runs: CircuitRuns) -> dict[str, Any] | None:
        """The circuit on fresh prompts, on pairs of images, or on what was measured; None if left out."""
        task = runs.task
        if not self.plan.scope.runs("attack") or not self.plan.repeatable:
            return None
        self.progress("attack", 0, 1)
        if "attack" in self.plan.scope.larger:
            if isinstance(task, ImageRows):
                task = task.subset(range(min(task.n, USUAL_SIDE)))
            worst = worst_case_stored(
                runs.circuit,
                self.model,
                task,
                *usual_sizes(task, self.ablation),
                ablation=self.ablation,
                seed=self.settings.seed,
                store=self.store,
                progress=self.progress,
            ).result
        else:
            worst = worst_measured(runs, store=self.store)
            self.progress("attack", 1, 1)
        made = worst.to_dict()
        made["fields"]["heatmaps"] = []  # so few inputs leave nothing to see in their cells
        # Time and machine are facts of the audit.
        return {key: value for key, value in made.items() if key != "seconds"} | {
            "provenance": {key: value for key, value in made["provenance"].items() if key != MACHINE}
        }

    def calibration(self, runs: CircuitRuns) -> dict[str, Any] | None:
        """The gates on what the audit measured, under its own objective and ablation."""
        if not self.plan.scope.runs("calibrate") or not isinstance(runs.task, PairTask):
            return None
        common: dict[str, Any] = {"store": self.store, "progress": self.progress}
        if "calibrate" in self.plan.scope.larger:
            found = calibrate_measured(runs.circuit, runs.task, self.settings, **common).document
        else:
            found = calibrate_runs(runs, **common).document
        # What was run now and what was found in the store, and how long it took, are not part of the result.
        gates = [{key: value for key, value in gate.items() if key != "seconds"} for gate in found["gates"]]
        columns = {key: value for key, value in found["table"].items() if key not in ("passes", "columns")}
        return {key: value for key, value in found.items() if key != "seconds"} | {
            "gates": gates,
            "table": columns,
        }

    def assemble(
        self,
        sized: SizedCircuit,
        runs: CircuitRuns,
        findings: Mapping[str, Any],
        records: Mapping[str, Mapping[str, Any]],
        seconds: float,
    ) -> dict[str, Any]:
        """Everything a report shows, from what the stages gave."""
        scores, faithfulness = sized.scores, records["faithfulness-norm"]
        return document.as_document(
            {
                "title": document.title(self.model, runs.task),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "model": document.model_facts(self.model),
                "task": document.task_facts(runs),
                "discovery": {
                    "n": self.draws.discovery.n,
                    "seed": self.settings.seed,
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
                "method": self.method_facts(scores),
                **findings,
                "left_out": [each.to_dict() for each in self.plan.left_out],
                "circuit": {
                    **document.circuit_facts(sized, self.target, faithfulness),
                    "provenance": dict(sized.circuit.provenance),
                },
                "random": document.random_facts(faithfulness, sized.circuit.n_edges),
                "measurements": list(records.values()),
                "topk": document.agreement_facts(records["topk"]) if "topk" in records else None,
                "per_layer": document.layer_table(scores),
                "per_head": document.head_table(scores),
                "provenance": self.provenance(scores, seconds),
            }
        )

    def method_facts(self, scores: EdgeScores) -> dict[str, Any]:
        """How the edges were scored, and what that took."""
        details = scores.details
        integrates = get_method(self.plan.method).integrates
        return {
            "key": self.plan.method,
            "objective": self.objective,
            "ablation": self.ablation,
            "steps": details.get("steps", self.plan.steps) if integrates else None,
            "quadrature": "midpoint",
            **{key: details.get(key) for key in ("completeness_gap", "seconds", "passes")},
            **{key: details[key] for key in ("routing",) if key in details},
        }

    def provenance(self, scores: EdgeScores, seconds: float) -> dict[str, Any]:
        """How the document came to be."""
        return {
            "id": self.stage.id,
            "library": f"assay {library_version()}",
            "record": self.record,
            "scores": dict(scores.provenance),
            "machine": {
                "device": str(self.model.device),
                "dtype": str(self.model.dtype).removeprefix("torch."),
                "torch": torch.__version__,
                "seconds": seconds,
            },
        }

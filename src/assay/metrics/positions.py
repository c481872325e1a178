"""Measuring a position-aware circuit by the metrics of ordinary ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from assay.circuits import Circuit
from assay.circuits.positions import PositionCircuit
from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.execution import Ablation, CircuitRuns
from assay.execution.positions import run_position_circuit
from assay.execution.runs import Which
from assay.metrics.measuring import measure_runs
from assay.metrics.metric import METRICS, find_metric
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import Task


def measure_positions(
    circuit: PositionCircuit,
    model: Model,
    task: Task,
    metric: str = "faithfulness-norm",
    *,
    labels: Int64[Tensor, "n pos"] | None = None,
    ablation: str | Ablation | None = None,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    shared: CircuitRuns | None = None,
    **options: Any,
) -> Measurement:
    """Measure a position-aware circuit by a registered metric.

    Args:
        circuit: Edges kept at some spans.
        model: The model it belongs to.
        task: The examples.
        metric: Any that reads runs of the whole circuit: `faithfulness-norm` (recovery between the empty
            circuit, 0, and the model, 1), `faithfulness`, `completeness`, `kl`, `topk`, ...
        labels: Span of every position `[N, T]`; needed for spans that were given as labels.
        ablation: What replaces ablated edges; None means the task's own default.
        objective: What the margin is the negative of; None means the task's own default.
        batch_size: Examples per pass; None fits it to free memory.
        seed: Root of noise.
        shared: `CircuitRuns` of any circuit on this model and task, whose runs of the model and of the empty
            circuit are taken; ablation, objective, batch size and seed are then theirs.
        options: Options of the metric.

    Returns:
        The value with per-example components, interval, verdict and provenance.

    Raises:
        InputError: For unknown metrics or options, metrics that look at single edges or heads, `shared` of
            another model or task.
    """
    spec = find_metric(metric)
    if spec.compute is None or spec.own_runs or spec.runs_per_head:
        able = [
            key for key, each in METRICS.items() if each.compute and not each.own_runs + each.runs_per_head
        ]
        raise InputError(
            f"{spec.key} changes single edges or heads of a circuit, or many circuits, and a position-aware "
            f"circuit keeps its edges at some positions only; use {', '.join(able)}, or measure "
            "circuit.edge_circuit()"
        )
    if shared is None:
        empty = Circuit.empty(model.graph)
        shared = CircuitRuns(
            model, task, empty, ablation=ablation, objective=objective, batch_size=batch_size, seed=seed
        )
    elif shared.model is not model or shared.task.data_hash != task.data_hash:
        raise InputError("shared= was made for another model or task than the ones given; leave it out")
    runs = _PositionRuns(base=shared, positions=circuit, labels=labels)
    return measure_runs(runs, metric, **options)


@dataclass(frozen=True, kw_only=True, eq=False)
class _PositionRuns:
    """The runs of a position-aware circuit; those of the model and of the empty circuit are the base's."""

    base: CircuitRuns
    positions: PositionCircuit
    labels: Tensor | None

    @property
    def circuit(self) -> Circuit:
        """The edges that are kept somewhere."""
        return self.positions.edge_circuit()

    @property
    def model(self) -> Model:
        """The model of `base`."""
        return self.base.model

    @property
    def task(self) -> Task:
        """The task of `base`."""
        return self.base.task

    @property
    def ablation(self) -> str:
        """The ablation of `base`."""
        return self.base.ablation

    @property
    def objective(self) -> str:
        """The objective of `base`."""
        return self.base.objective

    @property
    def seed(self) -> int:
        """The seed of `base`."""
        return self.base.seed

    @property
    def batch_size(self) -> int | None:
        """The batch size of `base`."""
        return self.base.batch_size

    @property
    def provenance(self) -> Mapping[str, Any]:
        """That of `base` with the circuit replaced."""
        return {
            **self.base.provenance,
            "circuit": self.positions.hash,
            "spans": list(self.positions.spans.names),
        }

    @cached_property
    def _own(self) -> dict[str, Tensor]:
        return {}

    def logits(self, which: Which) -> Float[Tensor, "n d_vocab"]:
        """Logits of one of the four runs."""
        if which == "full":
            return self.base.logits("full")
        if which == "empty":
            return self.base.logits_of(Circuit.empty(self.model.graph))
        if which not in self._own:
            kept = self.positions if which == "keep" else ~self.positions
            self._own[which] = run_position_circuit(
                self.model,
                self.task,
                kept,
                labels=self.labels,
                ablation=self.base.ablation_object,
                batch_size=self.batch_size,
                seed=self.seed,
                check=False,
            )
        return self._own[which]

    def margins(self, which: Which) -> Float64[np.ndarray, " n"]:
        """Margins of one of the four runs."""
        return self.base.margins_from(self.logits(which))

    def logits_of(self, circuit: Circuit) -> Float[Tensor, "n d_vocab"]:
        """Logits of an ordinary circuit."""
        return self.base.logits_of(circuit)

    def margins_of(self, circuit: Circuit) -> Float64[np.ndarray, " n"]:
        """Margins of an ordinary circuit."""
        return self.base.margins_of(circuit)

    def margins_from(self, logits: Float[Tensor, "n d_vocab"]) -> Float64[np.ndarray, " n"]:
        """Margins of a run made elsewhere."""
        return self.base.margins_from(logits)

"""Circuits of half the edges, and divergences by single runs of a circuit: the slow way."""

from typing import Any

import numpy as np
import torch

from assay.circuits import Circuit
from assay.execution import run_circuit, run_model
from assay.models import Model
from assay.tasks import Task


def half_of(model: Model, seed: int = 0) -> Circuit:
    draw = torch.rand(model.graph.valid.shape, generator=torch.Generator().manual_seed(seed))
    return Circuit(graph=model.graph, mask=model.graph.valid & (draw < 0.6))


def literal(model: Model, task: Task, circuit: Circuit, **options: Any) -> np.ndarray:
    """KL of single runs of the circuit."""
    runs = run_model(model, task), run_circuit(circuit, model, task, **options)
    full, kept = (logits.double().log_softmax(1) for logits in runs)
    return np.asarray((full.exp() * (full - kept)).sum(1))

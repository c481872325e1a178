"""`exact`: many edges a pass, each run from its target on, against one run of a circuit per edge."""

from typing import Any

import pytest
import torch

from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.discovery.edges import discover
from assay.execution import run_circuit, run_model
from assay.models import Model, load_model
from assay.objectives import get_objective
from assay.tasks import load_task


def check(model: Model, task: Any, chosen: Circuit, **options: Any) -> None:
    """The scores of some edges are by how much a run without one of them is worse."""
    found = discover(model, task, "exact", per_example=True, batch_size=2, **options)
    damage_of, (batch,) = get_objective(task.objective), task.batches(task.n)
    logits = run_model(model, task)
    for row, column in chosen.mask.nonzero().tolist():
        mask = model.graph.valid.clone()
        mask[row, column] = False
        circuit = Circuit(graph=model.graph, mask=mask)
        cut = run_circuit(circuit, model, task)
        damage = damage_of(cut, logits, batch) - damage_of(logits, logits, batch)
        torch.testing.assert_close(found.per_example[:, row, column], damage, rtol=1e-7, atol=1e-9)
    assert bool((found.values[~chosen.mask] == 0).all())


def test_some_edges() -> None:
    model = load_model("mini", dtype=torch.float64)
    names = [f"a0.h{head}->a{layer}.h1.{part}" for head in (0, 2) for layer in (1, 2) for part in "qkv"]
    names += ["input->m0", "m1->logits"]
    chosen, task = Circuit.from_edges(model.graph, names), load_task("ioi", model, n=2, seed=0)
    check(model, task, chosen, edges=chosen)
    part = discover(model, task, "exact", edges=", ".join(names))
    assert set(part.provenance["options"]["edges"]) == set(names)
    assert part.details["passes"]["forward"] == len(names) + 1 + 1
    with pytest.raises(UnknownNameError, match="a9"):
        discover(model, task, "exact", edges=["a9.h0->logits"])
    with pytest.raises(InputError, match="edges of exact is empty"):
        discover(model, task, "exact", edges=[])

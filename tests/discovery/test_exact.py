"""`exact`: many edges a pass, each run from its target on, against one run of the whole model per edge."""

from typing import Any

import pytest
import torch
import vit_goldens

from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.discovery.edges import discover
from assay.execution import CircuitRunner, get_ablation
from assay.models import Model, load_model
from assay.tasks import load_task


def one_edge_at_a_time(model: Model, task: Any, ablation: str, objective: str | None = None) -> torch.Tensor:
    """The definition: a run of the circuit without one edge, per edge, in one batch."""
    from assay.objectives import get_objective

    task = model.bind(task)
    (batch,) = task.batches(task.n)
    damage_of = get_objective(objective or task.objective)
    chosen = get_ablation(ablation)
    baseline = chosen.prepare(model, task, batch_size=task.n, seed=0).baseline(batch)
    with torch.no_grad(), model.tracing() as clean:
        hidden = model.forward(batch.clean)
    clean_logits = model.read(hidden, batch.positions)
    whole = damage_of(clean_logits, clean_logits, batch)
    scores = torch.zeros(task.n, *model.graph.valid.shape, dtype=model.result_dtype)
    for row, column in model.graph.valid.nonzero().tolist():
        mask = model.graph.valid.clone()
        mask[row, column] = False
        circuit = Circuit(graph=model.graph, mask=mask)
        runner = CircuitRunner(model, circuit, resample=chosen.paired)
        logits = runner.logits(clean, baseline, batch.positions)
        scores[:, row, column] = damage_of(logits, clean_logits, batch) - whole
    return scores


@pytest.mark.parametrize("ablation", ["mean-positional", "resample", "zero"])
@pytest.mark.parametrize("name", vit_goldens.NAMES)
def test_images(name: str, ablation: str) -> None:
    model, task = vit_goldens.model(name), vit_goldens.task(name).subset(range(3))
    expected = one_edge_at_a_time(model, task, ablation)
    found = discover(model, task, "exact", ablation=ablation, per_example=True, batch_size=2)
    torch.testing.assert_close(found.per_example, expected, rtol=1e-8, atol=1e-12)


def test_prompts() -> None:
    model = load_model("mini", dtype=torch.float64)
    task = load_task("ioi", model, n=2, seed=0)
    edges = [f"a0.h{head}->a{layer}.h1.{part}" for head in (0, 2) for layer in (1, 2) for part in "qkv"]
    edges += ["input->m0", "m1->logits"]
    chosen = Circuit.from_edges(model.graph, edges)
    found = discover(model, task, "exact", edges=chosen, per_example=True)
    batch = next(model.bind(task).batches(2))
    prepared = get_ablation("resample").prepare(model, task, batch_size=2, seed=0)
    with torch.no_grad(), model.tracing() as clean:
        hidden = model.forward(batch.clean)
    logits = model.read(hidden, batch.positions)
    from assay.objectives import get_objective

    damage_of = get_objective(task.objective)
    for row, column in chosen.mask.nonzero().tolist():
        mask = model.graph.valid.clone()
        mask[row, column] = False
        runner = CircuitRunner(model, Circuit(graph=model.graph, mask=mask), resample=True)
        cut = runner.logits(clean, prepared.baseline(batch), batch.positions)
        damage = damage_of(cut, logits, batch) - damage_of(logits, logits, batch)
        torch.testing.assert_close(found.per_example[:, row, column], damage, rtol=1e-7, atol=1e-9)
    assert int((found.values != 0).sum()) <= chosen.n_edges


def test_a_subset_is_what_all_edges_give() -> None:
    model, task = vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a").subset(range(3))
    whole = discover(model, task, "exact")
    names = ["input->a0.h0.q", "m0->logits", "a0.h1->m0"]
    part = discover(model, task, "exact", edges=", ".join(names))
    mask = Circuit.from_edges(model.graph, names).mask
    torch.testing.assert_close(part.values[mask], whole.values[mask], rtol=1e-8, atol=1e-12)
    assert bool((part.values[~mask] == 0).all())
    assert part.provenance["options"] == {"edges": tuple(names)}
    assert part.details["passes"]["forward"] == 3 + 1 + 1
    assert whole.provenance.get("options") is None


def test_edges_that_cannot_be_measured() -> None:
    model, task = vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a").subset(range(2))
    with pytest.raises(UnknownNameError, match="a9"):
        discover(model, task, "exact", edges=["a9.h0->logits"])
    with pytest.raises(InputError, match="edges of exact is empty"):
        discover(model, task, "exact", edges=[])

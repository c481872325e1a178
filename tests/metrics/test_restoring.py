"""The circuit's heads restored in a model whose heads are all ablated."""

import numpy as np
import pytest
import torch
from head_runs import every_head, golden_model, golden_task, literal_logits, margins, outputs, stored

from assay.circuits import Circuit
from assay.core.errors import UnknownNameError
from assay.execution import Ablation, Prepared, get_ablation
from assay.metrics import measure
from assay.models import Model
from assay.tasks import PairTask


@pytest.fixture(scope="module")
def model() -> Model:
    return golden_model()


@pytest.fixture(scope="module")
def task() -> PairTask:
    return golden_task()


def restore(model: Model, task: PairTask, circuit: Circuit, ablation: str = "mean", **options: object):
    return measure(circuit, model, task, "corrupt-restore", ablation=ablation, **options)


@pytest.mark.parametrize("ablation", ["mean", "zero", "resample"])
def test_restored_heads_have_their_clean_outputs(model: Model, task: PairTask, ablation: str) -> None:
    circuit = Circuit.from_heads(model.graph, stored()["circuit"])
    found = restore(model, task, circuit, ablation, batch_size=7)
    clean = outputs(model, task.clean)
    instead = {
        "mean": [z.mean((0, 1), keepdim=True).expand_as(z) for z in clean],
        "zero": [torch.zeros_like(z) for z in clean],
        "resample": outputs(model, task.corrupted),
    }[ablation]
    mixed = [z.clone() for z in instead]
    for layer, head in circuit.kept_heads():
        columns = slice(head * model.d_head, (head + 1) * model.d_head)
        mixed[layer][:, :, columns] = clean[layer][:, :, columns]
    heads = every_head(model)
    full = margins(literal_logits(model, task, [], clean), task)
    ablated = margins(literal_logits(model, task, heads, instead), task)
    restored = margins(literal_logits(model, task, heads, mixed), task)
    np.testing.assert_allclose(found.components["ablated"], ablated, rtol=1e-8)
    np.testing.assert_allclose(found.components["restored"], restored, rtol=1e-8)
    assert found.value == pytest.approx(
        (restored.sum() - ablated.sum()) / (full.sum() - ablated.sum()), rel=1e-8
    )
    # The ablated model is the empty circuit, but heads that read what it left them write something else.
    norm = measure(circuit, model, task, "faithfulness-norm", ablation=ablation)
    np.testing.assert_allclose(norm.components["empty"], ablated, rtol=1e-6, atol=1e-8)
    assert abs(found.value - norm.value) > 1e-3


def test_all_heads_restore_everything_and_none_nothing(model: Model, task: PairTask) -> None:
    whole = restore(model, task, Circuit.from_heads(model.graph, every_head(model)))
    assert whole.value == pytest.approx(1, abs=1e-12)
    nothing = restore(model, task, Circuit.from_heads(model.graph, []))
    assert nothing.value == 0
    assert nothing.details["heads"] == []


def test_the_heads_of_an_edge_circuit_are_restored(model: Model, task: PairTask) -> None:
    edges = Circuit.random(model.graph, 80, seed=2).connected()
    heads = edges.kept_heads()
    assert 0 < len(heads) < len(every_head(model))
    of_edges = restore(model, task, edges)
    assert of_edges.value == restore(model, task, Circuit.from_heads(model.graph, heads)).value
    assert of_edges.details["heads"] == [f"a{layer}.h{head}" for layer, head in heads]


def test_draws_of_noise_are_averaged(model: Model, task: PairTask) -> None:
    circuit = Circuit.from_heads(model.graph, stored()["circuit"])
    first, second = (
        restore(model, task, circuit, "noise-additive", seed=3, batch_size=size) for size in (24, 5)
    )
    assert first.value == pytest.approx(second.value, rel=1e-9)
    assert restore(model, task, circuit, "noise-additive", seed=4).value != first.value


class Borrowed(Ablation):
    """Somebody's ablation of edges, which no intervention on heads bears the name of."""

    key = "meen"

    def prepare(self, model: Model, task: PairTask, *, batch_size: int, seed: int) -> Prepared:
        return get_ablation("mean").prepare(model, task, batch_size=batch_size, seed=seed)


def test_ablations_that_are_none_of_heads_are_refused(model: Model, task: PairTask) -> None:
    circuit = Circuit.from_heads(model.graph, [(0, 1)])
    with pytest.raises(UnknownNameError, match="ablation of heads 'meen'; did you mean 'mean'"):
        measure(circuit, model, task, "corrupt-restore", ablation=Borrowed())

"""Spread of faithfulness over ablations of everything outside the circuit."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from head_runs import every_head, golden_model, golden_task, stored

from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.metrics import measure
from assay.metrics.ablation_spread import METHODS
from assay.models import Model
from assay.tasks import PairTask


@pytest.fixture(scope="module")
def model() -> Model:
    return golden_model()


@pytest.fixture(scope="module")
def task() -> PairTask:
    return golden_task()


@pytest.fixture(scope="module")
def circuit(model: Model) -> Circuit:
    return Circuit.from_heads(model.graph, stored()["circuit"])


def test_the_spread_is_that_of_the_eight_faithfulnesses(
    model: Model, task: PairTask, circuit: Circuit
) -> None:
    found = measure(circuit, model, task, "sigma-ablation", draws=1)
    assert found.details["methods"] == list(found.parts) == list(METHODS)
    assert found.details["left_out"] == {}
    golden = stored()["faithfulness"]
    for method in ("zero", "mean", "soft", "attn-uniform", "mean-last"):  # nothing is drawn in these
        assert found.parts[method].value == pytest.approx(golden[method], rel=1e-9)
    values = np.array([part.value for part in found.parts.values()])
    assert found.value == pytest.approx(values.std() / abs(values.mean()), rel=1e-9)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_prompt_without_a_donor_counts_for_the_other_ablations(
    model: Model, task: PairTask, circuit: Circuit
) -> None:
    found = measure(circuit, model, task, "sigma-ablation", draws=1)
    counts = task.answers[:, 0].unique(return_counts=True)[1]
    alone = int((counts == 1).sum())
    assert found.details["without_donor"] == {"resample-donor-same-class": alone}
    assert (found.n, found.parts["zero"].n) == (task.n, task.n)
    assert found.parts["resample-donor-same-class"].n == task.n - alone


def test_five_draws_are_averaged_and_batches_do_not_matter(
    model: Model, task: PairTask, circuit: Circuit
) -> None:
    methods = ["zero", "noise-additive", "resample-donor"]
    first, second = (
        measure(circuit, model, task, "sigma-ablation", methods=methods, batch_size=size) for size in (24, 7)
    )
    assert first.value == pytest.approx(second.value, rel=1e-8)
    one = measure(circuit, model, task, "sigma-ablation", methods=methods, draws=1)
    assert one.parts["zero"].value == first.parts["zero"].value
    assert one.parts["noise-additive"].value != first.parts["noise-additive"].value


def test_the_whole_model_does_not_depend_on_the_ablation(model: Model, task: PairTask) -> None:
    whole = Circuit.from_heads(model.graph, every_head(model))
    assert measure(whole, model, task, "sigma-ablation", draws=1).value == pytest.approx(0, abs=1e-12)


def test_a_circuit_of_edges_knows_ablations_of_edges_only(
    model: Model, task: PairTask, circuit: Circuit
) -> None:
    edges = Circuit(graph=model.graph, mask=circuit.mask)
    found = measure(edges, model, task, "sigma-ablation", draws=1)
    assert found.details["methods"] == [
        "zero",
        "mean",
        "resample-donor",
        "noise-additive",
        "resample-donor-same-class",
    ]
    assert found.details["left_out"] == dict.fromkeys(
        ("soft", "attn-uniform", "mean-last"), "no_edge_ablation"
    )
    by_heads = measure(circuit, model, task, "sigma-ablation", draws=1)
    for method in ("zero", "mean", "resample-donor", "resample-donor-same-class"):
        assert found.parts[method].value == pytest.approx(by_heads.parts[method].value, rel=1e-6)


def test_fewer_than_two_ablations_have_no_spread(model: Model, task: PairTask, circuit: Circuit) -> None:
    edges = Circuit(graph=model.graph, mask=circuit.mask)
    found = measure(edges, model, task, "sigma-ablation", methods=("zero", "soft"))
    assert (found.reason, math.isnan(found.value)) == ("too_few_methods", True)
    nobody = replace(task, answers=torch.arange(task.n)[:, None], wrong=torch.full((task.n, 1), 90))
    only = measure(circuit, model, nobody, "sigma-ablation", methods=("zero", "resample-donor-same-class"))
    assert only.details["left_out"] == {"resample-donor-same-class": "no_donor"}
    assert only.reason == "too_few_methods"


def test_wrong_options_are_named(model: Model, task: PairTask, circuit: Circuit) -> None:
    with pytest.raises(InputError, match="give two methods, and 1 draw or more"):
        measure(circuit, model, task, "sigma-ablation", methods=("zero", "zero"))
    with pytest.raises(InputError, match="draws 0; give two methods"):
        measure(circuit, model, task, "sigma-ablation", draws=0)
    with pytest.raises(UnknownNameError, match="intervention 'soften'"):
        measure(circuit, model, task, "sigma-ablation", methods=("zero", "soften"))

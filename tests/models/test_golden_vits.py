"""Edges, circuits and faithfulness of the two golden vision transformers, edge by edge."""

import numpy as np
import pytest
import torch
import vit_goldens
from torch import Tensor
from vit_goldens import NAMES

from assay.circuits import Circuit, EdgeScores
from assay.discovery.edges import discover
from assay.execution import run_circuit, run_model
from assay.metrics import faithfulness_curve
from assay.models import Model


BATCH = 6  # the reference averages over batches of this size and over classes


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> Model:
    return vit_goldens.model(name)


def in_reference_scale(name: str, key: str) -> Tensor:
    """Reference scores in the library's scale: mean over examples, sum over classes."""
    classes = vit_goldens.facts(name)["config"]["num_classes"] if "kl" in key else 1
    return vit_goldens.tensor(name, key) * BATCH * classes


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-7, atol=1e-12)


def test_the_graph_is_the_golden_one(name: str, model: Model) -> None:
    facts = vit_goldens.facts(name)
    assert list(model.graph.sources) == facts["source_order"]
    targets = [target.replace("<", ".").replace(">", "") for target in facts["destination_order"]]
    assert list(model.graph.targets) == targets
    assert model.graph.n_edges == facts["n_edges"]
    assert np.array_equal(model.graph.valid.numpy(), vit_goldens.arrays(name)["ref/real_edge_mask"])


def test_logits(name: str, model: Model) -> None:
    task = vit_goldens.task(name)
    close(run_model(model, task), vit_goldens.tensor(name, "ref/logits"))
    close(run_model(model, task, corrupted=True), vit_goldens.tensor(name, "ref/logits_corrupt"))


LEFT = {"steps": 5, "quadrature": "left"}
SCORES = [
    ("ref/eap_ig_inputs_kl", "eap-ig-inputs", {"objective": "kl", **LEFT}),
    ("ref/eap_ig_inputs_pld", "eap-ig-inputs", {"objective": "pseudo_margin", **LEFT}),
    ("ref/eap_pld", "eap", {"objective": "pseudo_margin"}),
    ("ref/eap_ig_inputs_kl_patching", "eap-ig-inputs", {"objective": "kl", "ablation": "resample", **LEFT}),
    ("ref/eap_ig_inputs_kl_zero", "eap-ig-inputs", {"objective": "kl", "ablation": "zero", **LEFT}),
    ("ref/clean_corrupted_kl_patching", "clean-corrupted", {"objective": "kl", "ablation": "resample"}),
]


@pytest.mark.parametrize(("key", "method", "options"), SCORES, ids=[key for key, _, _ in SCORES])
def test_scores_of_the_reference(name: str, model: Model, key: str, method: str, options: dict) -> None:
    found = discover(model, vit_goldens.task(name), method, **options)
    close(found.values, in_reference_scale(name, key))


DIRECT = [
    ("direct/ig_inputs", "eap-ig-inputs", {"quadrature": "left"}),
    ("direct/ig_inputs_midpoint", "eap-ig-inputs", {}),
    ("direct/ig_activations_own", "eap-ig-activations", {"quadrature": "right"}),
]


@pytest.mark.parametrize(("key", "method", "options"), DIRECT, ids=[key for key, _, _ in DIRECT])
def test_scores_of_the_formula(name: str, model: Model, key: str, method: str, options: dict) -> None:
    """Objective and ablation are the task's own: kl and mean-positional."""
    found = discover(model, vit_goldens.task(name), method, steps=5, **options)
    close(found.values, vit_goldens.tensor(name, key))


@pytest.mark.parametrize(("key", "objective"), [("kl", "kl"), ("pld", "pseudo_margin")])
def test_exact_scores(name: str, model: Model, key: str, objective: str) -> None:
    """One edge cut at a time; the reference divides the divergence by the number of classes."""
    classes = vit_goldens.facts(name)["config"]["num_classes"] if key == "kl" else 1
    found = discover(model, vit_goldens.task(name), "exact", objective=objective)
    close(found.values, vit_goldens.tensor(name, f"ref/exact_{key}") * classes)


def test_scores_of_single_images_and_batches(name: str, model: Model) -> None:
    """The reference's are of a batch of 6, averaged over classes; its means depend on the batch size."""
    task, settings = vit_goldens.task(name), {"quadrature": "left", "steps": 5}
    found = discover(model, task, "eap-ig-inputs", per_example=True, batch_size=5, **settings)
    close(found.per_example[:2], in_reference_scale(name, "ref/eap_ig_inputs_kl_perexample_first2"))
    close(found.per_example.mean(0), found.values)
    close(found.values, vit_goldens.tensor(name, "direct/ig_inputs"))
    weighted = in_reference_scale(name, "ref/eap_ig_inputs_kl_bs5") / BATCH * 5
    assert float((found.values - weighted).abs().max()) > 1e-3 * float(found.values.abs().max())


def test_float32_scores(name: str) -> None:
    """Largest error at most 1e-4 of the largest score."""
    model, task = vit_goldens.model(name, torch.float32), vit_goldens.task(name, torch.float32)
    found = discover(model, task, "eap-ig-inputs", quadrature="left", steps=5).values.double()
    expected = vit_goldens.tensor(name, "direct/ig_inputs")
    assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


def test_circuit_of_twenty_edges(name: str, model: Model) -> None:
    scores = EdgeScores(model.graph, in_reference_scale(name, "ref/eap_ig_inputs_kl"))
    circuit = scores.top(20).connected()
    assert np.array_equal(circuit.mask.numpy(), vit_goldens.arrays(name)["ref/top20_in_graph"])
    task = vit_goldens.task(name)
    found = run_circuit(circuit, model, task)
    torch.testing.assert_close(found, vit_goldens.tensor(name, "ref/top20_logits"), rtol=1e-6, atol=1e-7)
    empty = run_circuit(Circuit.empty(model.graph), model, task)
    torch.testing.assert_close(empty, vit_goldens.tensor(name, "ref/empty_logits"), rtol=1e-6, atol=1e-7)


CURVES = [
    f"eap_ig_inputs_{scores}|abs={absolute}|{metric}"
    for scores in ("kl", "pld")
    for absolute in ("True", "False")
    for metric in ("kl", "pld")
]


@pytest.mark.parametrize("key", CURVES)
def test_faithfulness_curves(name: str, model: Model, key: str) -> None:
    expected = vit_goldens.facts(name)["faithfulness"][key]
    source, absolute, metric = key.split("|")
    scores = EdgeScores(model.graph, vit_goldens.tensor(name, f"ref/{source}"))
    curve = faithfulness_curve(
        scores,
        model,
        vit_goldens.task(name),
        objective={"kl": "kl", "pld": "pseudo_margin"}[metric],
        absolute=absolute == "abs=True",
    )
    np.testing.assert_allclose(curve.values, expected["f"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose([curve.cpr, curve.cmd], [expected["cpr"], expected["cmd"]], rtol=1e-6)

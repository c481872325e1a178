"""Scores and runs position by position, against ordinary ones and against literal twins."""

import literal
import pytest
import torch
import vit_goldens
from cut_models import random_prompts
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.circuits.circuit import edge_slots
from assay.circuits.spans import Spans
from assay.core.errors import GraphMismatchError, InputError, UnknownNameError
from assay.discovery.edges import METHODS, discover
from assay.execution import run_circuit, run_model
from assay.models import Model, load_model


METHOD_KEYS = ("eap", "eap-ig-inputs", "clean-corrupted")
OTHERS = ("gim", "relp")  # their own tests compare them with twins
# Llama's norms round to float32 even in a float64 model.
EXACT = {"gpt2": 1e-10, "neox": 1e-10, "llama": 2e-5}


def every(length: int, *, causal: bool = True, pools: bool = False, read: int = -1) -> Spans:
    """Every position of prompts or images by itself."""
    reach, reads = torch.ones(length, length).bool(), torch.full((length,), pools)
    reads[read] = True
    names = tuple(map(str, range(length)))
    return Spans(names=names, reach=reach.triu() if causal else reach, read=reads, rule={"kind": "each"})


def random_circuit(model: Model, spans: Spans, *, share: float = 0.6, seed: int = 0) -> Circuit:
    generator = torch.Generator().manual_seed(seed)
    slots = edge_slots(model.graph, spans)
    mask = slots & (torch.rand(slots.shape, generator=generator) < share)
    return Circuit(graph=model.graph, spans=spans, mask=mask)


# ------------------------------------------------------------------------------------------------ scores


@pytest.mark.parametrize("method", METHOD_KEYS)
def test_terms_of_each_position_are_the_literal_ones(module64: nn.Module, method: str) -> None:
    model = load_model(module64)
    task = random_prompts(model)
    found = discover(model, task, method, steps=2, spans="each")
    batch = next(iter(task.batches(task.n)))
    logits, clean = literal.run_plain(model, task.clean)
    loss = literal.loss_of(model, "logit_diff", batch, task.positions, logits[:, -1].detach())
    ablated = literal.ablated_outputs(model, task, "resample")
    runs: list[tuple[float, Tensor]] = {
        "eap": [(1.0, clean["input"])],
        "eap-ig-inputs": [
            (0.5, ablated["input"] + alpha * (clean["input"] - ablated["input"])) for alpha in (0.25, 0.75)
        ],
        "clean-corrupted": [(0.5, clean["input"]), (0.5, ablated["input"])],
    }[method]
    gradients: dict[str, Tensor] = {}
    for weight, embed in runs:
        for name, gradient in literal.edge_gradients(model, task.clean, loss, embed=embed).items():
            gradients[name] = gradients.get(name, 0) + weight * gradient
    expected = torch.zeros_like(found.values)
    for row, column in model.graph.valid.nonzero().tolist():
        source, target = model.graph.sources[row], model.graph.targets[column]
        term = ((ablated[source] - clean[source]) * gradients[target]).sum(2)
        expected[:, row, column] = term.mean(0).detach()
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("ablation", ["resample", "zero", "mean", "noise-additive"])
def test_the_sum_over_spans_is_the_ordinary_score(module64: nn.Module, ablation: str) -> None:
    model = load_model(module64)
    task = random_prompts(model, ragged=True)
    ordinary = discover(model, task, ablation=ablation, steps=2)
    for spans in ({"first": 0, "last": -1}, {"second": 1, "ends": [0, -1]}):
        found = discover(model, task, ablation=ablation, steps=2, spans=spans)
        close = {"rtol": 0, "atol": 1e-12 * float(ordinary.values.abs().max())}
        torch.testing.assert_close(found.total().values, ordinary.values, **close)
        for name, passes in ordinary.details["passes"].items():
            # Ordinary means keep their clean passes for the gradients.
            assert found.details["passes"][name] <= passes + (ablation == "mean")
        gap = ordinary.details["completeness_gap"]
        assert found.details["completeness_gap"] == pytest.approx(gap, abs=1e-9)


def test_methods_without_this_form_are_refused(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    task = random_prompts(model)
    for key in set(METHODS) - {*METHOD_KEYS, *OTHERS}:
        with pytest.raises(InputError, match=f"{key} has no scores by position"):
            discover(model, task, key, spans="each")
    with pytest.raises(InputError, match="needs prompts of one length"):
        discover(model, random_prompts(model, ragged=True), spans="each")
    with pytest.raises(InputError, match="has zero gradient"):
        discover(model, task, "eap", objective="kl", spans="each")
    with pytest.raises(UnknownNameError, match="unknown spans 'word'"):
        discover(model, task, spans="word")


# -------------------------------------------------------------------------------------------------- runs


def test_ends_and_what_is_not_connected(module64: nn.Module, family: str) -> None:
    """The model, the ablated run; and edges without a way to the logits change none."""
    model = load_model(module64)
    task, spans, close = random_prompts(model), every(7), {"rtol": 0, "atol": EXACT[family]}
    full = run_circuit(Circuit.full(model.graph, spans), model, task)
    torch.testing.assert_close(full, run_model(model, task), **close)
    for ablation in ("resample", "mean"):
        found, expected = (
            run_circuit(Circuit.empty(model.graph, at), model, task, ablation=ablation)
            for at in (spans, None)
        )
        torch.testing.assert_close(found, expected, **close)
    for share, seed in ((0.15, 0), (0.15, 1), (0.4, 2), (0.4, 3)):
        circuit = random_circuit(model, spans, share=share, seed=seed)
        connected = circuit.connected(warn=False)
        assert connected.n_edges < circuit.n_edges
        before, after = (run_circuit(each, model, task) for each in (circuit, connected))
        torch.testing.assert_close(before, after, **close)


@pytest.mark.parametrize("ablation", ["resample", "mean"])
def test_mixed_positions_equal_the_literal_run(module64: nn.Module, family: str, ablation: str) -> None:
    model = load_model(module64)
    task = random_prompts(model, ragged=True)
    spans = Spans.of(task, {"first": [0, 2], "second": 1}, causal=True)
    labels = spans.label(task)
    circuit = random_circuit(model, spans, seed=7)
    found = run_circuit(circuit, model, task, ablation=ablation, batch_size=3)
    ablated = literal.ablated_outputs(model, task, ablation)
    graph = model.graph

    def stream_of(target: str, outputs: literal.Outputs, biases: Tensor) -> Tensor:
        column = graph.target_index(target)
        rows = []
        for prompt in range(task.n):
            places = []
            for place in range(task.length):
                total = biases.clone()
                span = max(int(labels[prompt, place]), 0)
                for name, value in outputs.items():
                    row = graph.source_index(name)
                    if graph.valid[row, column]:
                        kept = bool(circuit.mask[span, row, column])
                        total = total + (value if kept else ablated[name])[prompt, place]
                places.append(total)
            rows.append(torch.stack(places))
        return torch.stack(rows)

    with torch.no_grad():
        logits, _ = literal.run(model, task.clean, stream_of)
    expected = logits[torch.arange(task.n), task.positions]
    torch.testing.assert_close(found, expected, rtol=0, atol=max(EXACT[family], 1e-9))


def test_images_with_mixed_positions_equal_the_literal_run() -> None:
    model = vit_goldens.model("vit_edges_a")
    task = model.bind(vit_goldens.task("vit_edges_a").subset([0, 4, 7]))
    spans = every(model.n_tokens, causal=False, read=0)
    circuit = random_circuit(model, spans, seed=8)
    found = run_circuit(circuit, model, task, ablation="resample")
    _, ablated = literal.run_plain(model, next(task.batches(3)).corrupted)
    graph = model.graph

    def stream_of(target: str, outputs: literal.Outputs, biases: Tensor) -> Tensor:
        column = graph.target_index(target)
        total = torch.zeros_like(outputs["input"]) + biases
        for name, value in outputs.items():
            row = graph.source_index(name)
            if graph.valid[row, column]:
                kept = circuit.mask[:, row, column][None, :, None]
                total = total + torch.where(kept, value, ablated[name])
        return total

    with torch.no_grad():
        expected, _ = literal.run(model, task.clean, stream_of)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    full = run_circuit(Circuit.full(graph, spans), model, task)
    torch.testing.assert_close(full, run_model(model, task), rtol=0, atol=1e-10)


def test_circuits_that_do_not_fit_are_refused(gpt2_tiny: nn.Module, llama_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    task = random_prompts(model)
    other = Circuit.full(load_model(llama_tiny64).graph, every(7))
    with pytest.raises(GraphMismatchError, match="the circuit belongs to another model"):
        run_circuit(other, model, task)
    with pytest.raises(InputError, match="has a span '4', but the circuit has 0, 1, 2, 3"):
        run_circuit(Circuit.full(model.graph, every(4)), model, task)

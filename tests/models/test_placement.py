"""Models whose blocks lie on several devices give the numbers of those on one.

The devices are pretended ones: an operation that mixes two of them raises (`pretend_devices`).
"""

import copy
from typing import Any

import pytest
import torch
from pretend_devices import FIRST, SECOND, place, pretending
from small_models import IMAGES, TEXT, build, image_task, text_task
from soft_pairs import soft_pairs
from thorough import one_of
from torch import Tensor, nn

import assay
from assay.circuits import Circuit
from assay.execution import PairRunner, run_circuit, run_model
from assay.execution.soft import SoftRunner
from assay.models import Model, load_model


def apart(model: Model) -> nn.Module:
    """A copy of a module, its first half on the first pretend device, all the rest on the second."""
    module, family = copy.deepcopy(model.module), model.family
    device_of = {"": FIRST}
    names = [name for name, _ in module.named_modules() if name]
    blocks = [name for name in names if name.rpartition(".")[0] == family.blocks]
    behind = {family.final_norm, family.unembed} & set(names)
    device_of |= dict.fromkeys([*blocks[len(blocks) // 2 :], *behind], SECOND)
    place(module, device_of)
    return module


def test_pretend_devices_refuse_what_accelerators_refuse() -> None:
    with pretending():
        here, there = torch.ones(3, device=FIRST), torch.ones(3, device=SECOND)
        assert (here.device, (here + 1).device) == (torch.device(FIRST), torch.device(FIRST))
        assert (here + there.to(FIRST)).tolist() == [2.0] * 3
        for mixed in (lambda: here + there, lambda: here @ torch.ones(3), lambda: torch.stack([here, there])):
            with pytest.raises(RuntimeError, match="several devices"):
                mixed()


def everything(model: Model) -> dict[str, Tensor]:
    """Numbers of every path of the engine that serves all families."""
    task: Any = text_task(model) if model.vision is None else image_task(model, 3)
    kept = torch.rand(model.graph.valid.shape, generator=torch.Generator().manual_seed(4)) < 0.6
    circuit = Circuit(graph=model.graph, mask=model.graph.valid & kept)
    found = {
        "model": run_model(model, task),
        "circuit": run_circuit(circuit, model, task),
        "means": run_circuit(circuit, model, task, ablation="mean"),
        "scores": assay.discover(model, task, "eap-ig-inputs", objective="ce", steps=2).values,
        "zeros": run_circuit(circuit, model, task, ablation="zero"),
    }
    if model.vision is None:
        clean, corrupted = task.clean.to(model.device), task.corrupted.to(model.device)
        runner, soft = PairRunner(model, circuit), SoftRunner(model)
        sides = runner.prepare(clean, clean=True), runner.prepare(corrupted, clean=False)
        found["pairs"] = runner.product(*sides)
        mask = circuit.mask.double().to(model.device).requires_grad_()
        logits = soft.logits(soft_pairs(soft, clean, corrupted), mask)
        found["weights"] = logits.detach()
        [found["slope"]] = torch.autograd.grad(logits.logsumexp(1).sum(), mask)
    return found


@pytest.mark.parametrize("name", one_of([*TEXT, *IMAGES], "gpt2", "gemma2", "vit"))
def test_every_path_of_the_engine_on_two_devices(name: str) -> None:
    plain = load_model(build(name))
    expected = everything(plain)
    with pretending():
        model = load_model(apart(plain))
        weights = {weight.device for weight in model.module.parameters()}
        assert weights == {torch.device(FIRST), torch.device(SECOND)}
        found = {path: value.detach().cpu() for path, value in everything(model).items()}
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)

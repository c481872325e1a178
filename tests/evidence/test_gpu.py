"""The engine on an accelerator against float64 on the CPU: `pytest -m gpu tests/evidence`.

Without an accelerator the CPU takes its place, which rehearses the tests.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import assay
from assay.circuits import Circuit
from assay.execution import PairRunner, run_circuit, run_model
from assay.models import Model, load_model
from assay.pipeline.jobs import expand
from assay.pipeline.plan import parse_plan
from assay.tasks import PairTask


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("unchecked"),
    # Weights in another number type have another hash.
    pytest.mark.filterwarnings("ignore:the circuit was discovered on:assay.core.errors.AssayWarning"),
]
SMALL = {"vocab_size": 199, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 16}
ENDS = ("bos_token_id", "eos_token_id")
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 199, "n_embd": 64, "n_layer": 3, "n_head": 4, **dict.fromkeys(ENDS, 0)},
    "gpt_neox": {**SMALL, "intermediate_size": 96},
    "llama": GROUPED,
    "gemma2": GROUPED,
}
NEAR = {torch.float32: 2e-4, torch.bfloat16: 0.15}  # of the largest value
DEVICES = [f"{kind}:0" for kind in [getattr(torch.accelerator.current_accelerator(), "type", "cpu")]]


@pytest.fixture(params=CONFIGS)
def module(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(request.param, **CONFIGS[request.param])
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def task_of(n: int = 12, length: int = 11) -> PairTask:
    tokens = torch.randint(1, 199, (2, n, length), generator=torch.Generator().manual_seed(0))
    answers = tokens[0][:, :1]
    return PairTask(clean=tokens[0], corrupted=tokens[1], answers=answers, wrong=(answers + 1) % 199)


def on(module: nn.Module, device: str, dtype: torch.dtype) -> Model:
    return load_model(deepcopy(module).to(device, dtype))


def all_pairs(model: Model, task: PairTask, circuit: Circuit) -> torch.Tensor:
    """Logits of every pair of three clean and four corrupted prompts."""
    runner = PairRunner(model, circuit)
    clean = runner.prepare(task.clean[:3].to(model.device), clean=True)
    return runner.product(clean, runner.prepare(task.corrupted[:4].to(model.device), clean=False))


# A path of the engine -> what it gives for a model, a task and a circuit.
PATHS: dict[str, Callable[[Model, PairTask, Circuit], torch.Tensor]] = {
    "forward": lambda model, task, circuit: run_model(model, task),
    "circuit": lambda model, task, circuit: run_circuit(circuit, model, task),
    "mean ablation": lambda model, task, circuit: run_circuit(circuit, model, task, ablation="mean"),
    "pairs": all_pairs,
    "eap": lambda model, task, circuit: assay.discover(model, task, "eap").values,
    "eap-ig-inputs": lambda model, task, circuit: assay.discover(model, task, "eap-ig-inputs").values,
    "ifr": lambda model, task, circuit: assay.discover(model, task, "ifr").values,
}


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_the_engine_gives_float64(module: nn.Module, path: str, dtype: torch.dtype) -> None:
    task = task_of()
    exact = on(module, "cpu", torch.float64)
    circuit = assay.discover(exact, task, "eap").top(60)
    expected = PATHS[path](exact, task, circuit).double()
    found = PATHS[path](on(module, DEVICES[0], dtype), task, circuit).double().cpu()
    assert float((found - expected).abs().max()) <= NEAR[dtype] * float(expected.abs().max())


def test_the_batch_size_changes_nothing_but_rounding(module: nn.Module) -> None:
    model, task = on(module, DEVICES[0], torch.float32), task_of()
    whole, parts = (assay.discover(model, task, "eap-ig-inputs", batch_size=n).values for n in (12, 5))
    assert float((whole - parts).abs().max()) <= 1e-4 * float(whole.abs().max())


@pytest.mark.parametrize("path", PATHS)
def test_a_spread_model_gives_the_same(module: Any, path: str, tmp_path: Path) -> None:
    """`balanced` uses all accelerators there are: two or more test the hooks between them."""
    module.save_pretrained(tmp_path)
    task, whole = task_of(), load_model(tmp_path, device=DEVICES[0])
    circuit = assay.discover(whole, task, "eap").top(60)
    expected, found = (
        PATHS[path](model, task, circuit).cpu()
        for model in (whole, load_model(tmp_path, device_map="balanced"))
    )
    assert float((found - expected).abs().max()) <= NEAR[torch.float32] * float(expected.abs().max())


@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two accelerators")
def test_blocks_lie_on_two_devices(module: Any, tmp_path: Path) -> None:
    module.save_pretrained(tmp_path)
    model = load_model(tmp_path, device_map="balanced")
    assert len({weight.device for weight in model.module.parameters()}) > 1


@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two accelerators")
def test_two_devices_give_the_same(module: nn.Module) -> None:
    task, kind = task_of(), DEVICES[0].partition(":")[0]
    first, second = (
        assay.discover(on(module, f"{kind}:{number}", torch.float32), task, "eap-ig-inputs").values.cpu()
        for number in (0, 1)
    )
    torch.testing.assert_close(first, second)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_process_that_deals_jobs_uses_the_device_it_was_given() -> None:
    plan = {"name": "small", "n": 6, "models": ["mini"], "tasks": ["ioi"], "methods": ["eap"], "sizes": [50]}
    before = torch.cuda.memory_allocated(0)
    expand(parse_plan(plan), device="cuda:0", here="cuda:1")
    assert torch.cuda.memory_allocated(0) == before

"""Models whose weights stay in their checkpoint: the numbers of those in memory, to the last byte."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_families
import torch
from command_line import invoke
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import assay
from assay.circuits import Circuit
from assay.core.errors import (
    AssayError,
    FileFormatError,
    InputError,
    MissingExtraError,
    UnsafeFileError,
    UnsupportedModelError,
)
from assay.execution import run_circuit, run_model
from assay.execution.forward import plain_run
from assay.execution.memory import peak_bytes, weight_bytes
from assay.models import Model, load_model
from assay.models.placing import PartsPlacement, accelerator, place_parts
from assay.models.streaming import StoredWeight, StreamedWeight, check_ties, streams
from assay.tasks import PairTask


def task_of(model: Model, n: int = 4, length: int = 7) -> PairTask:
    clean = test_families.tokens(model, n, length)
    return PairTask(clean=clean, corrupted=clean.flip(0), answers=clean[:, :1], wrong=clean[:, 1:2])


def saved(name: str, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    module: Any = test_families.build(name).to(dtype)
    module.save_pretrained(folder, **options)
    return folder


# ---- numbers ----------------------------------------------------------------------------------------


READINGS: dict[str, Callable[[Model, PairTask, Circuit], Any]] = {
    "eap": lambda model, task, circuit: assay.discover(model, task, "eap").values,
    "eap-ig-inputs": lambda model, task, circuit: assay.discover(model, task, "eap-ig-inputs").values,
    "run": lambda model, task, circuit: run_circuit(model, task, circuit),
    "means": lambda model, task, circuit: run_circuit(model, task, circuit, ablation="mean"),
    "measure": lambda model, task, circuit: assay.measure(circuit, model, task, "kl").value,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["gpt2", "llama", "gemma2", "gpt_neox parallel", "llama with tied embeddings", "mixtral", "olmoe"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_streamed_weights_give_the_same_bytes(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = saved(name, tmp_path, dtype, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").is_file()
    held, streamed = load_model(folder), load_model(folder, device_map="stream")
    assert streams(streamed.module)
    assert not streams(held.module)
    assert streamed.weight_hash == held.weight_hash
    task, circuit = task_of(held), assay.discover(held, task_of(held), "eap").top(20)
    for what, reading in READINGS.items():
        found, expected = reading(streamed, task, circuit), reading(held, task, circuit)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected), err_msg=what)


def test_of_a_mixture_the_experts_that_are_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved("mixtral", tmp_path)
    held, streamed = load_model(folder), load_model(folder, device_map="stream")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    whole, weight = (model.module.get_parameter(name) for model in (held, streamed))
    read, mapped = [], StoredWeight.mapped

    def watched(stored: StoredWeight) -> Tensor:
        read.append(stored.key)
        return mapped(stored)

    monkeypatch.setattr(StoredWeight, "mapped", watched)
    last = len(whole) - 1
    for part, experts in (
        (lambda weight: weight[last], [last]),
        (lambda weight: weight[torch.tensor(1)].T, [1]),
        (lambda weight: weight[1:], list(range(1, last + 1))),
        (lambda weight: weight.transpose(1, 2)[0], list(range(last + 1))),
    ):
        read.clear()
        assert torch.equal(part(weight).clone(), part(whole))
        assert {int(key.split("experts.")[1].split(".")[0]) for key in read} == set(experts)
        assert len(read) == 2 * len(experts)


def test_worst_cases_are_the_same() -> None:
    held, streamed = load_model("mini"), load_model("mini", device_map="stream")
    circuit = assay.discover(held, assay.load_task("ioi", held, n=2), "eap").top(40)
    found, expected = (
        assay.worst_case(circuit, model, "ioi", n_clean=2, n_corrupted=2) for model in (streamed, held)
    )
    np.testing.assert_array_equal(found.divergence, expected.divergence)


def test_one_part_may_be_streamed_and_the_rest_held(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path)
    mixed = load_model(folder, device_map={"": "cpu", "model.layers.1": "disk"})
    found = {name for name, each in mixed.module.named_parameters() if isinstance(each, StreamedWeight)}
    assert found == {
        name
        for name, each in mixed.module.named_parameters()
        if name.startswith("model.layers.1.") and each.ndim > 1
    }
    held = load_model(folder)
    task = task_of(held)
    assert torch.equal(*(assay.discover(model, task, "eap").values for model in (mixed, held)))


def test_what_does_not_fit_into_memory_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` on a machine without accelerators, with room for all, then for part of the weights."""
    module = test_families.build("llama").to(torch.float32)
    meta = copy.deepcopy(module).to("meta")
    cpu = torch.device("cpu")
    assert place_parts(meta, "auto", "auto", torch.float32) == PartsPlacement(main=cpu, parts={"": cpu})
    folder = saved("llama", tmp_path)
    held = load_model(folder, device_map="auto")
    assert not streams(held.module)
    room = {"cpu": sum(each.nbytes for each in held.module.parameters()) // 2}
    monkeypatch.setattr("accelerate.utils.get_balanced_memory", lambda module, **options: room)
    partly = load_model(folder, device_map="auto")
    kept = [isinstance(each, StreamedWeight) for each in partly.module.parameters() if each.ndim > 1]
    assert any(kept)
    assert not all(kept)
    task = task_of(held)
    assert torch.equal(*(assay.discover(model, task, "eap").values for model in (partly, held)))


def test_a_discovery_leaves_a_model_in_half_precision_as_it_was(tmp_path: Path) -> None:
    model = load_model(saved("llama", tmp_path), dtype=torch.bfloat16, device_map="stream")
    task = task_of(model)
    logits, hashed = run_model(model, task), model.weight_hash
    details = assay.discover(model, task, "eap").details
    assert np.isnan(details["drift"])
    assert "stay in its checkpoint" in details["drift_reason"]
    assert (model.dtype, model.weight_hash) == (torch.bfloat16, hashed)
    assert torch.equal(run_model(model, task), logits)
    copy.deepcopy(model.module).float()
    assert torch.equal(run_model(model, task), logits)


def test_parts_are_dealt_by_the_number_type_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, dealt = saved("llama", tmp_path, torch.bfloat16), []

    def room(module: nn.Module, **options: Any) -> dict[str, int]:
        dealt.append(options["dtype"])
        return {"cpu": 2**30}

    monkeypatch.setattr("accelerate.utils.get_balanced_memory", room)
    for dtype in ("auto", torch.float64):
        load_model(folder, device="auto", dtype=dtype, device_map="auto")
    expected = torch.float32 if accelerator() is None else torch.bfloat16
    assert dealt == [expected, torch.float64]


def test_a_tied_matrix_in_the_checkpoint_beside_several_devices_is_refused(tmp_path: Path) -> None:
    module = load_model(saved("llama with tied embeddings", tmp_path), device_map="stream").module
    parts = {"": None, "model.layers.0": torch.device("cuda:0"), "model.layers.1": torch.device("cuda:1")}
    placement = PartsPlacement(main=torch.device("cuda:0"), parts=parts)
    with pytest.raises(InputError, match=r"embed_tokens.weight and lm_head.weight, which are one matrix"):
        check_ties(module, placement)


def test_memory_of_a_streamed_model_is_not_predicted_as_if_it_were_held(tmp_path: Path) -> None:
    streamed, held = (load_model(saved("llama", tmp_path), device_map=way) for way in ("stream", None))
    assert peak_bytes(streamed, task_of(streamed), plain_run) is None
    assert peak_bytes(held, task_of(held), plain_run) is not None
    vectors = sum(each.nbytes for each in streamed.module.parameters() if each.ndim < 2)
    assert weight_bytes(streamed) == vectors < weight_bytes(held)


# ---- what is in memory ------------------------------------------------------------------------------


def test_a_pass_with_gradients_holds_no_weight(tmp_path: Path) -> None:
    """Autograd keeps for the backward pass what it would read, not its numbers."""
    model = load_model(saved("llama", tmp_path), device_map="stream")
    matrices = {tuple(each.shape) for each in model.module.parameters() if each.ndim > 1}
    matrices |= {shape[::-1] for shape in matrices}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        model.tracing(gradients=True) as trace,
    ):
        hidden = model.forward(test_families.tokens(model))
    lazy = [each for each in kept if isinstance(each, StreamedWeight)]
    assert len(lazy) >= 7 * model.n_layers  # of the projections of each block
    assert not [
        each for each in kept if tuple(each.shape) in matrices and not isinstance(each, StreamedWeight)
    ]
    torch.autograd.grad(hidden.sum(), trace.leaf)


def test_views_wait_and_rows_are_read_alone(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path, torch.bfloat16)
    stored = load_file(folder / "model.safetensors")["model.embed_tokens.weight"].float()
    weight: Any = load_model(folder, device_map="stream").module.get_parameter("model.embed_tokens.weight")
    for view in (
        weight.T,
        weight.detach()[3:9, 1],
        weight.unflatten(1, (4, 6)).transpose(0, 1),
        weight[None],
    ):
        assert isinstance(view, StreamedWeight)
    ids = torch.tensor([[5, 0], [5, 60]])
    for found, expected in (
        (weight.T + 0, stored.T),
        (weight[3:9, 1] * 2, stored[3:9, 1] * 2),
        (weight.unflatten(1, (4, 6)).sum(1), stored.unflatten(1, (4, 6)).sum(1)),
        (weight[ids], stored[ids]),
        (nn.functional.embedding(ids, weight), stored[ids]),
    ):
        assert type(found) is Tensor
        assert torch.equal(found, expected)


# ---- refusals ---------------------------------------------------------------------------------------


def test_streamed_weights_cannot_be_changed(tmp_path: Path) -> None:
    model = load_model(saved("gpt2", tmp_path), device_map="stream")
    with pytest.raises(InputError, match=r"stay in its checkpoint and cannot be changed; load it without"):
        model.module.get_parameter("lm_head.weight").mul_(2)


def test_a_checkpoint_that_changes_is_noticed(tmp_path: Path) -> None:
    model = load_model(saved("gpt2", tmp_path), device_map="stream")
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "more": torch.zeros(1)}, file, metadata={"format": "pt"})
    with pytest.raises(FileFormatError, match=r"model.safetensors has changed since its model was loaded"):
        model.forward(test_families.tokens(model))
    file.unlink()
    with pytest.raises(FileFormatError, match=r"cannot read '.*' of .*model.safetensors"):
        model.forward(test_families.tokens(model))


def lacking(folder: Path) -> Path:
    saved("llama", folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without_an_expert(folder: Path) -> Path:
    saved("mixtral", folder)
    weights = load_file(folder / "model.safetensors")
    del weights[next(name for name in weights if "layers.1." in name and ".1.w1." in name)]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def pickled(folder: Path) -> Path:
    module: Any = test_families.build("gpt2")
    module.config.save_pretrained(folder)
    torch.save(module.state_dict(), folder / "pytorch_model.bin")
    return folder


def with_nan(folder: Path) -> Path:
    saved("llama", folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 2] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


BAD: list[tuple[Callable[[Path], Any], dict[str, Any], type[AssayError], str]] = [
    (
        lambda folder: "mini",
        {"device_map": "spread"},
        InputError,
        r"'spread'; expected auto, .*stream, or a dict",
    ),
    (
        lambda folder: "mini",
        {"device_map": "auto", "device": "cpu"},
        InputError,
        r"device='cpu' and device_map='auto' both say where",
    ),
    (lambda folder: "mini", {"device_map": {"": "cuda:7"}}, InputError, r"device 'cuda:7' does not exist"),
    (lambda folder: "mini", {"device_map": {"": 7}}, InputError, r"device 'cuda:7' does not exist"),
    (
        lambda folder: "mini",
        {"device_map": {"model.h": "cpu"}},
        InputError,
        r"'model.h', but .* has no such part",
    ),
    (
        lambda folder: "mini",
        {"device_map": {"transformer.h": "cpu"}},
        InputError,
        r"says nothing about 'transformer.wte.weight' and \d+ more",
    ),
    (
        lambda folder: "planted:induction",
        {"device_map": "stream"},
        InputError,
        r"does not apply to 'planted:",
    ),
    (
        lambda folder: test_families.build("gpt2"),
        {"device_map": "auto"},
        InputError,
        r"live module .*device_map=",
    ),
    (
        pickled,
        {"device_map": "stream", "allow_pickle": True},
        UnsafeFileError,
        r"as pickles \(pytorch_model.bin\)",
    ),
    (
        lacking,
        {"device_map": "stream"},
        FileFormatError,
        r"no weights under the names model.layers.1.mlp.up_proj.weight \(1 of \d+\)",
    ),
    (
        without_an_expert,
        {"device_map": "stream"},
        FileFormatError,
        r"no weights under the names model.layers.1.mlp.experts.gate_up_proj .*makes them of others",
    ),
    (with_nan, {"device_map": "stream"}, AssayError, r"'model.layers.1.mlp.up_proj.weight' .* NaN"),
]


@pytest.mark.parametrize(("make", "options", "error", "message"), BAD)
def test_bad_placements(
    make: Callable[[Path], Any],
    options: dict[str, Any],
    error: type[AssayError],
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=message):
        load_model(make(tmp_path), **options)


def test_a_module_that_accelerate_keeps_off_its_devices_is_refused() -> None:
    import accelerate

    module = accelerate.cpu_offload(test_families.build("llama"))
    with pytest.raises(
        UnsupportedModelError, match=r"no values \(device 'meta'\).*give load_model the folder"
    ):
        load_model(module)


def test_a_missing_accelerate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'circuit-assay\[placement\]'"):
        load_model("mini", device_map="stream")


# ---- the command ------------------------------------------------------------------------------------


def test_the_command_takes_a_device_map(tmp_path: Path) -> None:
    found = []
    for name, more in (("held", ()), ("streamed", ("--device-map", "stream"))):
        out = tmp_path / f"{name}.safetensors"
        ran = invoke("discover", "--method", "eap", "--n", "3", "--device", "cpu", "--scores-out", out, *more)
        assert ran.exit_code == 0, ran.output
        found.append(load_file(out))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])
    ran = invoke("discover", "--n", "3", "--device", "cpu", "--device-map", "auto", "--json")
    assert ran.exit_code == 2
    assert "both say where the model goes" in ran.output

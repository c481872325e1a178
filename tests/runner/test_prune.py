"""Pruned checkpoints compute what the ablated run does, read by transformers itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_models import build, examples
from torch import Tensor

import assay
from assay.circuits import Circuit
from assay.core.errors import InputError, OutputError, UnsupportedModelError
from assay.execution import CircuitRuns, run_circuit
from assay.metrics import measure
from assay.models import Model, load_model
from assay.tasks import Task


# A layout of projections, MLPs, norms or shared keys each.
FAMILIES = (
    *("gpt2", "attention_only", "gptj", "gpt_neox parallel", "opt", "bloom", "falcon with two norms", "phi"),
    *(
        "llama with biases",
        "llama with tied embeddings",
        "mixtral",
        "gemma",
        "gemma2",
        "gemma3_text",
        "olmo2",
    ),
    *("vit", "dinov2", "dinov2 with gated MLPs", "clip", "siglip"),
)


def small(name: str) -> tuple[Model, Task]:
    """A random model and examples of it in float32."""
    model = load_model(build(name).float())
    task: Any = examples(model)
    if model.vision is not None:
        task = replace(task, images=task.images.float(), corrupted=task.corrupted.float())
    return model, task


def native(folder: Path, model: Model, task: Any) -> Tensor:
    """Logits of the checkpoint in a folder by transformers, at the read position."""
    kind = "CausalLM" if model.vision is None else "ImageClassification"
    module = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder).eval()
    with torch.no_grad():
        if model.vision is not None:
            return module(task.images).logits
        return module(task.clean).logits[torch.arange(task.n), task.positions]


def nodes_but(model: Model, *left_out: str) -> Circuit:
    return Circuit.from_nodes(model.graph, [name for name in model.graph.sources if name not in left_out])


def neurons(model: Model) -> Circuit:
    """All of `input`, and of every other node about two thirds of its dimensions."""
    draw = torch.rand(model.graph.n_sources, model.d_model, generator=torch.Generator().manual_seed(3))
    return Circuit.from_cells(model.graph, (draw < 0.65).index_fill(0, torch.tensor([0]), True))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pruned_checkpoint_is_the_ablated_run(name: str, tmp_path: Path) -> None:
    model, task = small(name)
    before, split = model.weight_hash, nodes_but(model, "a1.h0", "m0")  # a head of two that share keys
    cases = [(model, split), (model, neurons(model))]
    if model.coupling == "heads":
        for _, circuit in cases:
            with pytest.raises(
                UnsupportedModelError, match=r"cannot be pruned .*prune model.treating\('eap-ig'\)"
            ):
                assay.prune(circuit, model, tmp_path / "refused")
        cases = [(model.treating("eap-ig"), circuit) for _, circuit in cases]
        cases.append((model, nodes_but(model, "a0.h0", "a0.h1", "m1")))
    for number, (treated, circuit) in enumerate(cases):
        folder = assay.prune(circuit, treated, tmp_path / str(number))
        ablated = run_circuit(circuit, treated, task, ablation="zero")
        torch.testing.assert_close(native(folder, model, task), ablated, rtol=0, atol=1e-5)
    model.refresh()
    assert model.weight_hash == before
    assert len(list(tmp_path.iterdir())) == len(cases)


def test_the_whole_way_on_mini(tmp_path: Path) -> None:
    """Prune, load, measure; an edge circuit is refused with its nearest circuit of nodes."""
    model = load_model("mini")
    task = assay.load_task("ioi", model, n=12, seed=0)
    strongest = assay.discover(model, task, "eap", level="node").top(16)
    circuit = strongest | Circuit.from_nodes(model.graph, "input")
    faithfulness = measure(circuit, model, task, "faithfulness", ablation="zero").value
    pruned = load_model(assay.prune(circuit, model, tmp_path / "new" / "mini"))
    again = assay.load_task("ioi", pruned, n=12, seed=0)  # with the tokenizer of the folder
    whole, part = (
        CircuitRuns(each, prompts, Circuit.full(model.graph)).margins("full").mean()
        for each, prompts in ((model, task), (pruned, again))
    )
    assert part / whole == pytest.approx(faithfulness, rel=1e-5)
    stored = assay.load_circuit(tmp_path / "new/mini/circuit.safetensors", pruned.graph)
    explained = measure(stored, pruned, again, "faithfulness", ablation="zero").value
    assert explained == pytest.approx(1, abs=1e-5)

    edges = assay.discover(model, task, "eap").top(40).connected()
    nearest = Circuit.from_nodes(model.graph, edges.nodes())
    value = measure(nearest, model, task, "faithfulness", ablation="zero").value
    with pytest.raises(InputError, match=rf"the {len(nearest.nodes())} nodes .* faithfulness {value:.3f}"):
        assay.prune(edges, model, tmp_path / "edges", task=task)
    whole_edges = Circuit(graph=model.graph, mask=nearest.mask)  # as edges, all of them among its nodes
    assay.prune(whole_edges, model, tmp_path / "edges")


def test_number_types_and_ties_stay(tmp_path: Path) -> None:
    module = build("llama with tied embeddings").bfloat16()
    model = load_model(module)
    folder = assay.prune(nodes_but(model, "a0.h3", "m1"), model, tmp_path / "half")
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    changed = {
        name
        for (name, old), new in zip(module.state_dict().items(), loaded.state_dict().values(), strict=True)
        if not torch.equal(old, new)
    }
    assert changed == {"model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"}


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = small("gpt2")
    circuit = nodes_but(model, "m0")
    with pytest.raises(InputError, match="does not keep all of 'input'"):
        assay.prune(nodes_but(model, "input"), model, tmp_path / "new")
    with pytest.raises(
        InputError, match=r"the \d+ nodes with at least one kept edge \(input, a0.h0, logits\)"
    ):
        assay.prune(Circuit.from_edges(model.graph, ["input->a0.h0.q", "a0.h0->logits"]), model, tmp_path)

    def full(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(model.module), "save_pretrained", lambda module, folder: full(folder))
        with pytest.raises(OutputError, match="cannot write .*new: No space left"):
            assay.prune(circuit, model, tmp_path / "new")
    assert not any(tmp_path.iterdir())
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assay.prune(circuit, model, ".")
    assert (tmp_path / "empty" / "config.json").is_file()
    (tmp_path / "kept").write_text("")
    with pytest.raises(OutputError, match="not an empty directory"):
        assay.prune(circuit, model, tmp_path)
    model.module.__class__ = torch.nn.Module  # of another library
    with pytest.raises(UnsupportedModelError, match="family 'gpt2'.*is not a model of transformers"):
        assay.prune(circuit, model, tmp_path / "new")

"""A circuit of whole nodes as a checkpoint: the weights that write what it leaves out are zero."""

import copy
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import InputError, OutputError, UnsupportedModelError, writing
from assay.execution import run_circuit, run_model
from assay.execution.forward import check_circuit
from assay.metrics import measure
from assay.models import Block, Model
from assay.models.block import bind_blocks
from assay.models.conformance import short_input
from assay.models.loading import without_progress_bars
from assay.tasks import ImageTask, PairTask, Task


# By how much logits may differ, relative to the largest; below float32 a run rounds otherwise than a module.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
_HALF = 0.1
_SHOWN = 8  # names of nodes in an error
_SHARED_NORM = (
    ". The norm behind its heads is taken over cut neurons too, and over cut heads that share keys with a "
    "kept one. Keep or cut whole groups of heads, or prune model.treating('eap-ig')"
)


def prune(circuit: Circuit, model: Model, out: str | os.PathLike[str], *, task: Task | None = None) -> Path:
    """Write a checkpoint whose logits are those of the circuit under zero ablation.

    The weights that write what heads, MLPs or neurons outside the circuit add to the residual stream are
    zero: slices of the output projection of an attention, the last map of an MLP with its bias, the gain of a
    norm or scale behind it. The bias of an output projection belongs to no head and stays. Shapes stay too,
    so `transformers` loads the checkpoint as it loads the model's own, in the number type of the model.

    Args:
        circuit: A circuit of nodes, heads or neurons, or of all edges among its nodes; it keeps `input`.
        model: Its model, which is not changed.
        out: Directory of the checkpoint, new or empty; it appears when all of it is written. The tokenizer,
            or how images are prepared, and the circuit (`circuit.safetensors`) lie beside the weights.
        task: Where given, a refused circuit of edges is named with the faithfulness of its nearest circuit of
            nodes, under zero ablation on these examples.

    Returns:
        The directory.

    Raises:
        InputError: If the circuit keeps some edges of a node and cuts others, or some positions. The error
            names the nearest circuit of nodes: the nodes with at least one kept edge. Also without `input`.
        GraphMismatchError: If the circuit belongs to another graph.
        UnsupportedModelError: For models of timm, and where zeroed weights do not give the ablated run on a
            short input: norms behind heads (Gemma 2 and 3, OLMo 2) are taken over cut heads that share keys
            with a kept one, and over cut neurons, unless they are treated as `eap-ig` (`Model.treating`).
        OutputError: If the directory holds files or cannot be written.

    Example:
        >>> import tempfile
        >>> from assay.models import load_model
        >>> model = load_model("mini")
        >>> circuit = Circuit.from_heads(model.graph, "a0.h1,a2.h3")
        >>> load_model(prune(circuit, model, tempfile.mkdtemp())).graph == model.graph
        True
    """
    place, module = Path(out).absolute(), model.module
    check_circuit(model, circuit)
    cells = _kept_cells(circuit, model, task)
    if not hasattr(module, "save_pretrained"):
        raise UnsupportedModelError(
            f"{model.id} ({type(module).__name__}, family {model.family.key!r}) is not a model of "
            "transformers, so it cannot be written as one"
        )
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise OutputError(f"{place} exists and is not an empty directory. Choose a new one")
    # The copy shares all weights but those that are zeroed.
    pruned: Any = copy.deepcopy(
        module, {id(each): each for each in (*module.parameters(), *module.buffers())}
    )
    with torch.no_grad():
        _zero_outside(pruned, model, cells)
    _check_logits(circuit, model, pruned)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with writing(f"write {place}", "choose a writable directory"), without_progress_bars():
            temporary.mkdir(parents=True)
            pruned.save_pretrained(temporary)
            if model.tokenizer is not None:
                model.tokenizer.save_pretrained(temporary)
            if model.preprocessing is not None:
                text = json.dumps(dict(model.preprocessing), indent=1)
                (temporary / "preprocessor_config.json").write_text(text, encoding="utf-8")
            circuit.save(temporary / "circuit.safetensors")
            if place.exists():  # Windows moves nothing onto a directory, not even an empty one
                place.rmdir()
            temporary.replace(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Path(out)


def _kept_cells(circuit: Circuit, model: Model, task: Task | None) -> Bool[Tensor, "n_sources d_model"]:
    """The kept dimensions of every source's output, of a circuit that such dimensions describe."""
    nearest = circuit if circuit.cells is not None else Circuit.from_nodes(circuit.graph, circuit.nodes())
    if circuit.spans is not None or not torch.equal(circuit.mask, nearest.mask):
        names, measured = nearest.nodes(), ""
        if task is not None:
            value = measure(nearest, model, task, "faithfulness", ablation="zero").value
            measured = f", with faithfulness {value:.3f} under zero ablation"
        listed = ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
        raise InputError(
            f"{circuit!r} cuts some edges of its nodes and keeps others, which no zeroed weight does. The "
            "nearest circuit that can be pruned is Circuit.from_nodes(circuit.graph, circuit.nodes()): the "
            f"{len(names)} nodes with at least one kept edge ({listed}){measured}"
        )
    assert nearest.cells is not None
    cells = nearest.cells.view(circuit.graph.n_sources, -1).expand(-1, model.d_model)
    if not bool(cells[0].all()):
        raise InputError(
            f"{circuit!r} does not keep all of 'input', and embeddings are not zeroed. Keep it too: "
            "circuit | Circuit.from_nodes(circuit.graph, 'input')"
        )
    return cells


def _zero_outside(module: nn.Module, model: Model, cells: Bool[Tensor, "n_sources d_model"]) -> None:
    """Give a module new weights where they write what is not kept."""
    graph, family = model.graph, model.family
    for layer, block in enumerate(bind_blocks(module, family, family.sizes(module))):
        first = graph.head_source(layer)
        if not bool((heads := cells[first : first + graph.n_heads]).all()):
            rows = heads.repeat_interleave(block.d_head, 0)
            _zero(block.out, "weight", rows.T if isinstance(block.out, nn.Linear) else rows)
            if block.rule.couples:
                _zero_queries_and_keys(block, heads.any(1))
        for kept in cells[graph.mlp_sources(layer)]:
            if not bool(kept.all()):
                _zero_mlp(block, kept)


def _zero_queries_and_keys(block: Block, heads: Bool[Tensor, " n_heads"]) -> None:
    """Those of heads outside: the others are normed with them, and in an ablated run they read nothing."""
    groups = heads.view(block.n_kv_heads, -1).any(1)
    for projection, kept in zip(block.qkv, (heads, groups), strict=False):
        _zero(projection, "weight", kept.repeat_interleave(block.d_head)[:, None])


def _zero_mlp(block: Block, kept: Bool[Tensor, " d_model"]) -> None:
    """The scale or norm behind an MLP, or its last map; of experts the last map of each."""
    # In the order of their use, in all families; logits are compared afterwards.
    *_, last = (part for part in block.mlp_out.modules() if any(True for _ in part.parameters(False)))
    for name, values in [*last.named_parameters(recurse=False)]:
        if values.ndim == 3 and not name.startswith("down"):
            continue
        column = values.ndim == 3 or (values.ndim == 2 and isinstance(last, nn.Linear))
        gain_of_one = last is block.mlp_scale and block.family.norm == "rms1"
        _zero(last, name, kept[:, None] if column else kept, -1.0 if gain_of_one else 0.0)


def _zero(part: nn.Module, name: str, kept: Bool[Tensor, "..."], zero: float = 0.0) -> None:
    """Give a module a new parameter, which is zero, or what counts as such, where nothing is kept."""
    old = part.get_parameter(name)
    new = old.detach().masked_fill(~kept.to(old.device), zero)
    setattr(part, name, nn.Parameter(new, requires_grad=old.requires_grad))


def _check_logits(circuit: Circuit, model: Model, module: nn.Module) -> None:
    """Refuse a module whose logits are not those of the ablated run on a short input."""
    inputs = short_input(model)
    task: Task
    if model.vision is None:
        task = PairTask(clean=inputs, corrupted=inputs, answers=inputs[:, :1])
    else:
        task = ImageTask(images=inputs)
    found = run_model(Model(module, model.family, name=model.id), task)
    expected = run_circuit(circuit, model, task, ablation="zero")
    difference, largest = float((found - expected).abs().max()), float(expected.abs().max())
    if not difference <= _TOLERANCE.get(model.dtype, _HALF) * largest:
        shared = "" if model.coupling != "heads" else _SHARED_NORM
        raise UnsupportedModelError(
            f"{model.id} (family {model.family.key!r}) cannot be pruned to {circuit!r}: with zeroed weights "
            f"its logits differ from the ablated run by {difference:.3g}, of at most {largest:.3g}{shared}"
        )

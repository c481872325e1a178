"""A converter of attention-only checkpoints, named as TransformerLens names parameters."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from assay.core.errors import FileFormatError, ShapeError, UnsafeFileError, writing
from assay.core.untrusted import refuse_pickle
from assay.models.loading import file_errors


_MASKS = ("attn.mask", "attn.IGNORE")  # buffers: which positions may attend, and what the others get


def convert_attention_only(
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    directory: str | os.PathLike[str],
    *,
    allow_pickle: bool = False,
) -> Path:
    """Write the weights of an attention-only model of TransformerLens as a directory that `load_model` reads.

    Args:
        source: Parameters by TransformerLens's names (`embed.W_E`, `pos_embed.W_pos`,
            `blocks.0.attn.W_Q`, ..., `unembed.W_U`), or a file of them: `.safetensors`, or a PyTorch
            checkpoint such as `model_final.pth`. Gains, shifts and biases may be left out.
        directory: Where `config.json` and `model.safetensors` go; made if it does not exist. A tokenizer
            beside them is used by tasks of text.
        allow_pickle: Accept a PyTorch checkpoint. Only tensors are read of it.

    Returns:
        The directory.

    Raises:
        UnsafeFileError: If the file is a pickle and `allow_pickle` is false.
        FileFormatError: If the file cannot be read, or parameters are missing or unknown, e.g. those of MLPs.
        ShapeError: If the shapes do not fit together.

    Example:
        >>> import tempfile
        >>> weights = {"embed.W_E": torch.zeros(9, 4), "pos_embed.W_pos": torch.zeros(5, 4)}
        >>> weights |= {f"blocks.0.attn.W_{name}": torch.zeros(2, 4, 2) for name in "QKV"}
        >>> weights |= {"blocks.0.attn.W_O": torch.zeros(2, 2, 4), "unembed.W_U": torch.zeros(4, 9)}
        >>> load_model(convert_attention_only(weights, tempfile.mkdtemp())).graph.describe()["mlps"]
        False
    """
    origin = "the parameters" if isinstance(source, Mapping) else str(source)
    with file_errors(origin, "a state dict", ""):
        weights = source if isinstance(source, Mapping) else _read(Path(source), allow_pickle=allow_pickle)
        state, config = _converted({name: weights[name] for name in weights if not name.endswith(_MASKS)})
    place = Path(directory)
    with writing(f"write {place}", "choose another place"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        save_file({name: each.contiguous() for name, each in state.items()}, place / "model.safetensors")
    return place


def _read(path: Path, *, allow_pickle: bool) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        refuse_pickle(path)
        return load_file(path)
    if not allow_pickle:
        raise UnsafeFileError(
            f"{path} is not a safetensors file, and opening a pickle can run any code; "
            "pass allow_pickle=True if you trust its origin"
        )
    return dict(torch.load(path, map_location="cpu", weights_only=True))


def _converted(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The parameters under GPT-2's names and in its layouts, and the configuration that fits them."""
    left = dict(weights)

    def take(name: str, *shape: int, default: float | None = None) -> Tensor:
        """A parameter, or all entries `default` where one that may be left out is."""
        if name not in left and default is None:
            raise FileFormatError(
                f"the checkpoint has no {name!r}; expected the parameters of an attention-only model as "
                "TransformerLens names them"
            )
        weight = left.pop(name).float() if name in left else torch.full(shape, default or 0.0)
        if shape and tuple(weight.shape) != shape:
            raise ShapeError(
                f"{name!r} has shape {tuple(weight.shape)}; expected {shape} to match the other parameters"
            )
        return weight

    embedding, positions = take("embed.W_E"), take("pos_embed.W_pos")
    (vocabulary, width), heads = embedding.shape, len(weights.get("blocks.0.attn.W_Q", [0]))
    inner = width // heads  # blocks of GPT-2 need the heads to make up the width
    layers = sorted({int(name.split(".")[1]) for name in weights if name.startswith("blocks.")})
    state = {"transformer.wte.weight": embedding, "transformer.wpe.weight": positions}
    norms = {f"blocks.{layer}.ln1": f"transformer.h.{layer}.ln_1" for layer in layers}
    for theirs, ours in {**norms, "ln_final": "transformer.ln_f"}.items():
        state[f"{ours}.weight"] = take(f"{theirs}.w", width, default=1.0)
        state[f"{ours}.bias"] = take(f"{theirs}.b", width, default=0.0)
    for layer in layers:
        theirs, ours = f"blocks.{layer}.attn", f"transformer.h.{layer}.attn"
        projections = [take(f"{theirs}.W_{name}", heads, width, inner) for name in "QKV"]
        biases = [take(f"{theirs}.b_{name}", heads, inner, default=0.0) for name in "QKV"]
        columns = [each.transpose(0, 1).flatten(1) for each in projections]
        state[f"{ours}.c_attn.weight"] = torch.cat(columns, 1)
        state[f"{ours}.c_attn.bias"] = torch.cat([each.flatten() for each in biases])
        state[f"{ours}.c_proj.weight"] = take(f"{theirs}.W_O", heads, inner, width).flatten(0, 1)
        state[f"{ours}.c_proj.bias"] = take(f"{theirs}.b_O", width, default=0.0)
    state["lm_head.weight"] = take("unembed.W_U", width, vocabulary).T.contiguous()
    state["lm_head.bias"] = take("unembed.b_U", vocabulary, default=0.0)
    if left:
        raise FileFormatError(
            f"the checkpoint holds {', '.join(sorted(left)[:5])}, which do not belong to an "
            "attention-only model; expected the parameters that TransformerLens names"
        )
    config = {
        "model_type": "attention_only",
        "vocab_size": vocabulary,
        "n_positions": len(positions),
        "n_embd": width,
        "n_layer": len(layers),
        "n_head": heads,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return state, config

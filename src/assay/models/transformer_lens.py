"""A converter of attention-only checkpoints, named as TransformerLens names parameters."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from assay.core.errors import (
    FileFormatError,
    ShapeError,
    UnsafeFileError,
    UnsupportedModelError,
    writing,
)
from assay.core.untrusted import MALFORMED, refuse_pickle


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
        FileFormatError: If the file cannot be read, or parameters are missing or unknown.
        UnsupportedModelError: If the model has MLPs.
        ShapeError: If the shapes do not fit together.

    Example:
        >>> import tempfile
        >>> weights = {"embed.W_E": torch.zeros(9, 4), "pos_embed.W_pos": torch.zeros(5, 4)}
        >>> weights |= {f"blocks.0.attn.W_{name}": torch.zeros(2, 4, 2) for name in "QKV"}
        >>> weights |= {"blocks.0.attn.W_O": torch.zeros(2, 2, 4), "unembed.W_U": torch.zeros(4, 9)}
        >>> load_model(convert_attention_only(weights, tempfile.mkdtemp())).graph.describe()["mlps"]
        False
    """
    weights = dict(source) if isinstance(source, Mapping) else _read(Path(source), allow_pickle=allow_pickle)
    names = {name for name in weights if not name.endswith(_MASKS)}
    mlps = sorted(name for name in names if ".mlp." in name or ".ln2." in name)
    if mlps:
        raise UnsupportedModelError(
            f"the checkpoint has MLPs ({mlps[0]}), but only attention-only models are supported"
        )
    state, config = _state(_Given(weights, names))
    place = Path(directory)
    with writing(f"write {place}", "choose another place"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        save_file({name: each.contiguous() for name, each in state.items()}, place / "model.safetensors")
    return place


def _read(path: Path, *, allow_pickle: bool) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        refuse_pickle(path)
        try:
            return load_file(path)
        except (SafetensorError, OSError, *MALFORMED) as error:
            raise FileFormatError(f"cannot read {path} as safetensors: {error}") from error
    if not allow_pickle:
        raise UnsafeFileError(
            f"{path} is not a safetensors file, and opening a pickle can run any code; "
            "pass allow_pickle=True if you trust its origin"
        )
    try:
        weights: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails with whatever its first wrong byte brings about
        raise FileFormatError(f"cannot read {path} as a PyTorch checkpoint: {error}") from error
    if not isinstance(weights, dict) or not all(isinstance(each, Tensor) for each in weights.values()):
        raise FileFormatError(f"{path} must hold tensors by name only; expected a state dict")
    return weights


class _Given:
    """The parameters of a checkpoint, each to be taken once."""

    def __init__(self, weights: Mapping[str, Tensor], names: set[str]) -> None:
        self.weights, self.left = weights, names

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self.weights:
            raise FileFormatError(
                f"the checkpoint has no {name!r}; expected the parameters of an attention-only model as "
                "TransformerLens names them"
            )
        self.left.discard(name)
        weight = self.weights[name].float()
        if shape and tuple(weight.shape) != shape:
            raise ShapeError(
                f"{name!r} has shape {tuple(weight.shape)}; expected {shape} to match the other parameters"
            )
        return weight

    def or_else(self, name: str, value: float, *shape: int) -> Tensor:
        """A parameter that may be left out; then all its entries are `value`."""
        return self.take(name, *shape) if name in self.weights else torch.full(shape, value)


def _state(given: _Given) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The parameters under GPT-2's names and in its layouts, and the configuration that fits them."""
    embedding, positions = given.take("embed.W_E"), given.take("pos_embed.W_pos")
    first = given.take("blocks.0.attn.W_Q")
    if embedding.ndim != 2 or positions.ndim != 2 or first.ndim != 3:
        raise ShapeError(
            f"embed.W_E, pos_embed.W_pos and blocks.0.attn.W_Q have shapes {tuple(embedding.shape)}, "
            f"{tuple(positions.shape)} and {tuple(first.shape)}; expected [d_vocab, d_model], "
            "[n_ctx, d_model] and [n_heads, d_model, d_head]"
        )
    (vocabulary, width), (heads, _, inner) = embedding.shape, first.shape
    if heads * inner != width:
        raise ShapeError(
            f"{heads} heads of {inner} make {heads * inner}, but the stream has width {width}; blocks of "
            "GPT-2 need the two to be equal"
        )
    n_layers = 1 + max(
        int(name.split(".")[1]) for name in given.left | {"blocks.0."} if name[:7] == "blocks."
    )
    state = {"transformer.wte.weight": embedding, "transformer.wpe.weight": positions}

    def norm(theirs: str, ours: str) -> None:
        state[f"{ours}.weight"] = given.or_else(f"{theirs}.w", 1.0, width)
        state[f"{ours}.bias"] = given.or_else(f"{theirs}.b", 0.0, width)

    for layer in range(n_layers):
        theirs, ours = f"blocks.{layer}.attn", f"transformer.h.{layer}.attn"
        norm(f"blocks.{layer}.ln1", f"transformer.h.{layer}.ln_1")
        projections = [given.take(f"{theirs}.W_{name}", heads, width, inner) for name in "QKV"]
        biases = [given.or_else(f"{theirs}.b_{name}", 0.0, heads, inner) for name in "QKV"]
        state[f"{ours}.c_attn.weight"] = torch.cat(
            [each.transpose(0, 1).flatten(1) for each in projections], 1
        )
        state[f"{ours}.c_attn.bias"] = torch.cat([each.flatten() for each in biases])
        state[f"{ours}.c_proj.weight"] = given.take(f"{theirs}.W_O", heads, inner, width).flatten(0, 1)
        state[f"{ours}.c_proj.bias"] = given.or_else(f"{theirs}.b_O", 0.0, width)
    norm("ln_final", "transformer.ln_f")
    state["lm_head.weight"] = given.take("unembed.W_U", width, vocabulary).T.contiguous()
    state["lm_head.bias"] = given.or_else("unembed.b_U", 0.0, vocabulary)
    if given.left:
        raise FileFormatError(
            f"the checkpoint holds {', '.join(sorted(given.left)[:5])}, which do not belong to an "
            "attention-only model; expected the parameters that TransformerLens names"
        )
    config = {
        "model_type": "attention_only",
        "architectures": ["AttentionOnlyForCausalLM"],
        "vocab_size": vocabulary,
        "n_positions": len(positions),
        "n_embd": width,
        "n_layer": n_layers,
        "n_head": heads,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return state, config

"""Decoder families, and loading models by hub id, directory, live module or `mini`."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.errors import FileFormatError, InputError, UnsafeFileError, UnsupportedModelError
from assay.models.adapter import Config, Family, Fused, Model, Separate
from assay.registry import Registry


FAMILIES: Registry[Family] = Registry("family", plural="families")

FAMILIES.add(
    "gpt2",
    Family(
        key="gpt2",
        model_types=("gpt2",),
        backbone="transformer",
        blocks="transformer.h",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="transformer.ln_f",
        unembed="lm_head",
        learned_positions=True,
        attention="attn",
        qkv=Fused(path="attn.c_attn"),
        out="attn.c_proj",
        mlp="mlp",
        norm="layer",
        refuse=lambda config: (
            "cross-attention adds a second reader per block that the graph does not have"
            if config.add_cross_attention
            else None
        ),
    ),
)
FAMILIES.add(
    "gpt-neox",
    Family(
        key="gpt-neox",
        model_types=("gpt_neox",),
        backbone="gpt_neox",
        blocks="gpt_neox.layers",
        attention_norm="input_layernorm",
        mlp_norm="post_attention_layernorm",
        final_norm="gpt_neox.final_layer_norm",
        unembed="lm_head",
        attention="attention",
        qkv=Fused(path="attention.query_key_value", per_head=True),
        out="attention.dense",
        mlp="mlp",
        norm="layer",
        parallel=lambda config: bool(config.use_parallel_residual),
    ),
)
FAMILIES.add(
    "llama",
    Family(
        key="llama",
        model_types=("llama", "mistral", "qwen2", "qwen3"),
        backbone="model",
        blocks="model.layers",
        attention_norm="input_layernorm",
        mlp_norm="post_attention_layernorm",
        final_norm="model.norm",
        unembed="lm_head",
        attention="self_attn",
        qkv=Separate(q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj"),
        out="self_attn.o_proj",
        mlp="mlp",
        norm="rms",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
    ),
)

# Layouts that are not additive pre-norm streams: the module that shows it, and why it matters.
_REFUSED = {
    "bert": ("attention.output.LayerNorm", "normalises after the addition (post-norm)"),
    "roberta": ("attention.output.LayerNorm", "normalises after the addition (post-norm)"),
    "distilbert": ("sa_layer_norm", "normalises after the addition (post-norm)"),
    "openai-gpt": ("ln_1", "normalises after the addition (post-norm)"),
    "opt": ("self_attn_layer_norm", "may normalise after the addition (OPT-350m) and is not described yet"),
    "gemma2": ("post_attention_layernorm", "normalises the branch output before adding it"),
    "gemma3_text": ("post_attention_layernorm", "normalises the branch output before adding it"),
    "olmo2": ("post_attention_layernorm", "normalises the branch output before adding it"),
}

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

MINI = Path(__file__).parent / "mini"


def family_of(module: nn.Module) -> Family:
    """The description that fits a live module.

    Raises:
        UnsupportedModelError: Naming the module found and why it is not served.
    """
    config: Config = getattr(module, "config", None)
    model_type = getattr(config, "model_type", None)
    for family in FAMILIES.values():
        if model_type in family.model_types:
            return family
    if model_type in _REFUSED:
        suffix, why = _REFUSED[model_type]
        found = next((name for name, _ in module.named_modules() if name.endswith(suffix)), suffix)
        raise UnsupportedModelError(
            f"{type(module).__name__}: module {found!r} {why}, so the residual stream is not a sum of "
            "node outputs; "
            "only pre-norm models are supported"
        )
    served = ", ".join(sorted(name for _, family in FAMILIES.items() for name in family.model_types))
    raise UnsupportedModelError(
        f"{type(module).__name__} (model type {model_type!r}) belongs to no described family; served "
        f"model types: {served}"
    )


def load_model(
    source: str | Path | nn.Module,
    *,
    tokenizer: Any = None,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    allow_pickle: bool = False,
) -> Model:
    """Load a transformer and describe it as a residual-stream graph.

    Args:
        source: `"mini"` (the embedded model, no network), a hub id, a directory written by
            `save_pretrained`, or a live module of a known family, which is used as it is.
        tokenizer: Tokenizer to use; default: the one stored with the weights, if any.
        dtype: Number type of the weights. Default: float32 when loading, unchanged for a module.
        device: Where to put the weights. Default: where they are (CPU when loading).
        allow_pickle: Accept checkpoints that are pickles, which can run any code when opened.

    Raises:
        UnsupportedModelError: If the layout is not a pre-norm residual stream of a known family.
        UnsafeFileError: If the checkpoint is a pickle and `allow_pickle` is false.
        FileFormatError: If the files cannot be read as a checkpoint.
        NonFiniteError: If a weight is NaN or infinite.

    Example:
        >>> load_model("mini").graph.n_layers
        4
    """
    if isinstance(source, nn.Module):
        module, name = source, type(source).__name__
        family = family_of(module)
        if dtype is not None or device is not None:
            raise InputError(
                "a live module is used as it is; convert or move it yourself instead of passing "
                "dtype= or device="
            )
        return Model(module, family, tokenizer=tokenizer, name=name)
    path = MINI if str(source) == "mini" else Path(source)
    location = str(path) if path.is_dir() else str(source)
    if path.is_dir():
        _check_directory(path, allow_pickle=allow_pickle)
    module = _from_pretrained(location, dtype=dtype or torch.float32, allow_pickle=allow_pickle)
    if device is not None:
        module.to(device)
    tokenizer = tokenizer if tokenizer is not None else _load_tokenizer(location)
    name = path.name if path.is_dir() else location
    return Model(module.eval(), family_of(module), tokenizer=tokenizer, name=name)


def _check_directory(path: Path, *, allow_pickle: bool) -> None:
    if not (path / "config.json").is_file():
        raise FileFormatError(f"{path} holds no config.json; expected a directory written by save_pretrained")
    if any(path.glob("*.safetensors")):
        return
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in path.glob(pattern))
    if not pickles:
        raise FileFormatError(f"{path} holds no weights; expected model.safetensors beside config.json")
    if not allow_pickle:
        raise UnsafeFileError(
            f"{path} holds only pickled weights ({', '.join(pickles)}), and opening a pickle can run "
            "any code; convert them "
            "to safetensors, or pass allow_pickle=True if you trust their origin"
        )


def _from_pretrained(location: str, *, dtype: torch.dtype, allow_pickle: bool) -> nn.Module:
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(location)
        _refuse_early(config, location)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            location,
            config=config,
            dtype=dtype,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise FileFormatError(
            f"cannot load {location!r} as a causal language model: {error}. Expected 'mini', a hub id, or a "
            "directory with config.json and model.safetensors"
        ) from error
    # transformers fills missing weights with random numbers; a measurement of those would mean nothing.
    module: nn.Module
    module, info = loaded
    for problem in ("missing_keys", "mismatched_keys"):
        if info[problem]:
            names = sorted(str(key) for key in info[problem])
            raise FileFormatError(
                f"{location!r} is not a complete checkpoint: {problem.replace('_', ' ')} "
                f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}; save the model again with "
                "save_pretrained"
            )
    return module


def _refuse_early(config: Config, location: str) -> None:
    """Refuse a post-norm configuration before its weights are read."""
    if config.model_type in _REFUSED:
        suffix, why = _REFUSED[config.model_type]
        raise UnsupportedModelError(
            f"{location}: a {config.model_type!r} block has {suffix!r}, which {why}, so the residual "
            "stream is not a sum of "
            "node outputs; only pre-norm models are supported"
        )


def _load_tokenizer(location: str) -> Any:
    from transformers import AutoTokenizer

    directory = Path(location)
    if directory.is_dir() and not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        return None  # transformers would make up an empty tokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return AutoTokenizer.from_pretrained(location)
        except (OSError, ValueError, KeyError):  # the checkpoint carries no tokenizer; tasks of ids need none
            return None

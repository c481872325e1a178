"""Loading models by hub id, directory, live module, timm name, or name of an embedded or planted model."""

import math
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from assay.errors import (
    AssayError,
    FileFormatError,
    InputError,
    MissingExtraError,
    UnsafeFileError,
    UnsupportedModelError,
)
from assay.models import decoders, vits  # noqa: F401 - decoders registers the families of text
from assay.models.adapter import FAMILIES, Config, Family, Model
from assay.untrusted import MALFORMED, malformed, parse_json, printable, refuse_pickle


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
# What comes with the package: name to directory.
EMBEDDED = {"mini": MINI, "colour-digits": Path(__file__).parent / "colour_digits"}
_PLANTED = "planted:"
_NAMED = f"{', '.join(map(repr, EMBEDDED))}, 'planted:NAME'"


def family_of(module: nn.Module) -> Family:
    """The description that fits a live module.

    Raises:
        UnsupportedModelError: Naming the module found and why it is not served.
    """
    if vits.is_timm_vit(module):
        return FAMILIES["timm-vit"]
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
        f"model types: {served}, and timm's VisionTransformer"
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
        source: `"mini"` or `"colour-digits"` (the embedded language model and image classifier, no network);
            `"planted:NAME"`, a model whose circuit is known (`assay.models.planted.planted_names()`); a hub
            id; a directory written by `save_pretrained`, or by timm's
            `save_for_hf(..., safe_serialization=True)`; `"timm:NAME"`, or
            `"timm:NAME@checkpoint.safetensors"` for weights of your own; or a live module of a known family,
            which is used as it is.
        tokenizer: Tokenizer to use; default: the one stored with the weights, if any.
        dtype: Number type of the weights. Default: float32 when loading, unchanged for a module.
        device: Where to put the weights. Default: where they are (CPU when loading).
        allow_pickle: Accept checkpoints that are pickles, which can run any code when opened.

    Raises:
        UnsupportedModelError: If the layout is not a pre-norm residual stream of a known family.
        UnknownNameError: If there is no planted model of that name.
        UnsafeFileError: If the checkpoint is a pickle and `allow_pickle` is false.
        FileFormatError: If the files cannot be read as a checkpoint.
        MissingExtraError: If the model is timm's and timm is not installed.
        NonFiniteError: If a weight is NaN or infinite.

    Example:
        >>> load_model("mini").graph.n_layers
        4
    """
    if isinstance(source, nn.Module):
        if dtype is not None or device is not None:
            raise InputError(
                "a live module is used as it is; convert or move it yourself instead of passing "
                "dtype= or device="
            )
        stored = vits.timm_preprocessing(source) if vits.is_timm_vit(source) else None
        return _bound(source, tokenizer=tokenizer, name=type(source).__name__, preprocessing=stored)
    if str(source).startswith(_PLANTED):
        return _planted(str(source), tokenizer=tokenizer, dtype=dtype, device=device)
    path = EMBEDDED.get(str(source), Path(source))
    name = str(source) if str(source) in EMBEDDED else path.name if path.is_dir() else _short(str(source))
    location = str(path) if path.is_dir() else str(source)
    if path.is_dir():
        _check_directory(path, allow_pickle=allow_pickle)
        _check_sizes(path)
    preprocessing: Mapping[str, Any] | None
    if location.startswith("timm:") or (path.is_dir() and _is_timm_directory(path)):
        module = _from_timm(location, allow_pickle=allow_pickle).to(dtype or torch.float32)
        preprocessing = vits.timm_preprocessing(module)
    else:
        module = _from_pretrained(location, dtype=dtype or torch.float32, allow_pickle=allow_pickle)
        preprocessing = _image_processor(location) if family_of(module).vision is not None else None
    if device is not None:
        module.to(device)
    if tokenizer is None and family_of(module).vision is None:
        tokenizer = _load_tokenizer(location)
    with malformed(location, "a model whose configuration makes sense"):
        return _bound(module.eval(), tokenizer=tokenizer, name=name, preprocessing=preprocessing)


def _planted(
    source: str, *, tokenizer: Any, dtype: torch.dtype | None, device: str | torch.device | None
) -> Model:
    """A model whose weights were written by hand; a fresh one for every call."""
    from assay.models.planted import planted_model  # which needs this package's adapters

    model = planted_model(source.removeprefix(_PLANTED), dtype=dtype or torch.float32).model
    if device is not None:
        model.module.to(device)
    if tokenizer is not None:
        model.tokenizer = tokenizer
    return model


def _bound(module: nn.Module, *, tokenizer: Any, name: str, preprocessing: Mapping[str, Any] | None) -> Model:
    family = family_of(module)
    if family.vision is not None:
        vits.check_vision_weights(module, name)
    return Model(module, family, tokenizer=tokenizer, name=name, preprocessing=preprocessing)


# --------------------------------------------------------------------------------------------------- timm


def _short(source: str) -> str:
    """A source as results name it: of a checkpoint its name, since where it lies changes no number."""
    name, at, checkpoint = source.partition("@")
    return f"{name}@{Path(checkpoint).name}" if at and name.startswith("timm:") else source


def _is_timm_directory(path: Path) -> bool:
    """Whether `config.json` is timm's: it names an architecture and no model type."""
    config = _json(path / "config.json")
    return "architecture" in config and "model_type" not in config


def _json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} holds {type(content).__name__}; expected a JSON object")
    return content


def _from_timm(location: str, *, allow_pickle: bool) -> nn.Module:
    _check_checkpoint(location, allow_pickle=allow_pickle)
    try:
        # By name, since a folder called timm is found as an empty package; torchvision, which timm imports,
        # fails with RuntimeError where it was built for another PyTorch.
        from timm import create_model
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"{location!r} is a timm model and timm cannot be imported ({error}); install it with "
            "pip install 'assay[vision]'"
        ) from error
    name, _, checkpoint = location.removeprefix("timm:").partition("@")
    try:
        module: nn.Module
        if not location.startswith("timm:"):
            module = create_model(f"local-dir:{location}", pretrained=True)
        elif checkpoint:
            module = _timm_checkpoint(name, Path(checkpoint))
        else:
            module = create_model(name, pretrained=True)
    except FileFormatError:
        raise
    except (
        OSError,
        ValueError,
        RuntimeError,
        TypeError,  # a config.json with arguments that the architecture does not take
        AssertionError,  # or with such that exclude each other
        SafetensorError,
    ) as error:
        raise FileFormatError(
            f"cannot load {location!r} with timm: {error}. Expected 'timm:NAME', "
            "'timm:NAME@checkpoint.safetensors', or a directory with timm's config.json and model.safetensors"
        ) from error
    return module


def _check_checkpoint(location: str, *, allow_pickle: bool) -> None:
    """Refuse a checkpoint that is missing or a pickle, before timm is asked for."""
    name, _, checkpoint = location.removeprefix("timm:").partition("@")
    if not location.startswith("timm:") or not checkpoint:
        return
    path = Path(checkpoint)
    if not path.is_file():
        raise FileFormatError(f"there is no file {path}; expected timm:{name}@checkpoint.safetensors")
    if path.suffix == ".safetensors":
        refuse_pickle(path)
    elif not allow_pickle:
        raise UnsafeFileError(
            f"{path} is not a safetensors file, and opening a pickle can run any code; convert it, or pass "
            "allow_pickle=True if you trust its origin"
        )


def _timm_checkpoint(name: str, path: Path) -> nn.Module:
    """A timm architecture with weights of the user's own; class count and image size follow the weights."""
    from timm import create_model

    if path.suffix == ".safetensors":
        weights = load_file(path)
    else:
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle fails with whatever its first wrong byte brings about
            raise FileFormatError(f"cannot read {path} as a PyTorch checkpoint: {error}") from error
        weights = weights.get("state_dict", weights)
    arguments = vits.head_shape(weights)
    module: nn.Module = create_model(name, pretrained=False, **arguments)
    if vits.is_timm_vit(module) and (side := vits.image_side(weights, module)) is not None:
        module = create_model(name, pretrained=False, img_size=side, **arguments)
    module.load_state_dict(weights)
    return module


# ------------------------------------------------------------------------------------------- Hugging Face


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """No bars of transformers inside: a zoo of small models would print hundreds."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _image_processor(location: str) -> dict[str, Any] | None:
    """The stored `preprocessor_config.json`; None if there is none."""
    from transformers.utils.hub import cached_file

    found = cached_file(
        location,
        "preprocessor_config.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else _json(Path(found))


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


def _check_sizes(path: Path) -> None:
    """Refuse a configuration of a far larger model than the weights are, before it is built.

    Every parameter is in the checkpoint, or tied to one that is.
    """
    from safetensors import safe_open

    files = sorted(path.glob("*.safetensors"))
    tensors = elements = 0
    try:
        for each in files:
            refuse_pickle(each)
            with safe_open(each, framework="pt") as file:
                names = file.keys()
                shapes = [file.get_slice(name).get_shape() for name in names]
            tensors += len(shapes)
            elements += sum(map(math.prod, shapes))
    except UnsafeFileError:
        raise
    except (SafetensorError, OSError, *MALFORMED):
        return  # whoever loads them says what is wrong
    if not files:
        return
    config = _json(path / "config.json")
    arguments = config.get("model_args")
    for name, least in _least_sizes(config | (arguments if isinstance(arguments, dict) else {})):
        most = tensors if name == "layers" else elements
        if least > most:
            raise FileFormatError(
                f"{path / 'config.json'} describes at least {least:,} {name}, and the weights are "
                f"{tensors:,} tensors of {elements:,} numbers together; the two do not belong together"
            )


def _least_sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What any model of a configuration has at least: layers, and numbers in one kind of weight."""

    def size(*names: str, default: int = 1) -> int:
        return next((config[name] for name in names if type(config.get(name)) is int), default)

    layers = size("num_hidden_layers", "n_layer", "depth")
    width = size("hidden_size", "n_embd", "embed_dim")
    patch = max(1, size("patch_size"))
    yield "layers", layers
    yield "numbers in its layers", layers * width * max(width, size("intermediate_size", "n_inner"))
    yield "numbers in its embedding", width * size("vocab_size")
    yield (
        "numbers in its positions",
        width * size("n_positions", default=(size("image_size", "img_size") // patch) ** 2),
    )
    yield "numbers in its patches", width * patch**2 * size("num_channels")


def _from_pretrained(location: str, *, dtype: torch.dtype, allow_pickle: bool) -> nn.Module:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification

    what = "a causal language model or image classifier"
    try:
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        _refuse_early(config, location)
        family = next((each for each in FAMILIES.values() if config.model_type in each.model_types), None)
        sees = family is not None and family.vision is not None
        what = "an image classifier" if sees else "a causal language model"
        auto = AutoModelForImageClassification if sees else AutoModelForCausalLM
        with without_progress_bars():
            loaded: Any = auto.from_pretrained(
                location,
                config=config,
                dtype=dtype,
                use_safetensors=None if allow_pickle else True,
                output_loading_info=True,
                trust_remote_code=False,  # code of a checkpoint is never run
            )
    except AssayError:
        raise
    except pickle.UnpicklingError as error:
        raise UnsafeFileError(
            f"{location!r} holds a pickle of more than weights, which is refused: "
            f"{printable(str(error))[:300]}"
        ) from error
    except (OSError, SafetensorError, StrictDataclassError, *MALFORMED) as error:
        raise FileFormatError(
            f"cannot load {location!r} as {what}: {error}. Expected {_NAMED}, a hub id, or a "
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
            return AutoTokenizer.from_pretrained(location, trust_remote_code=False)
        except (OSError, ValueError, KeyError):  # the checkpoint carries no tokenizer; tasks of ids need none
            return None

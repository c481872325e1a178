"""Loading models by hub id, directory, live module, timm name, or name of an embedded or planted model."""

import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from assay.core.errors import (
    AssayError,
    FileFormatError,
    InputError,
    UnsafeFileError,
    UnsupportedModelError,
)
from assay.core.untrusted import MALFORMED, malformed, printable, refuse_pickle
from assay.models.adapter import FAMILIES, Model
from assay.models.conformance import check_conformance
from assay.models.families import timm_vit  # the package registers all descriptions
from assay.models.family import Config, Family
from assay.models.timm_import import timm_create_model
from assay.models.weight_files import (
    INDEX,
    WEIGHTS,
    check_shapes,
    check_sizes,
    find_checkpoint,
    read_json,
    weight_files,
)


# Layouts that are not additive pre-norm streams: the module that shows it, and why it matters.
_REFUSED = {
    "bert": ("attention.output.LayerNorm", "normalises after the addition (post-norm)"),
    "roberta": ("attention.output.LayerNorm", "normalises after the addition (post-norm)"),
    "distilbert": ("sa_layer_norm", "normalises after the addition (post-norm)"),
    "openai-gpt": ("ln_1", "normalises after the addition (post-norm)"),
}

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

MINI = Path(__file__).parent / "mini"
# What comes with the package: name to directory.
EMBEDDED = {"mini": MINI, "colour-digits": Path(__file__).parent / "colour_digits"}
_PLANTED = "planted:"
_TIMM_DIRECTORY = "timm:local-dir:"
_NAMED = f"{', '.join(map(repr, EMBEDDED))}, 'planted:NAME'"


def family_of(module: nn.Module) -> Family:
    """The description that fits a live module.

    Raises:
        UnsupportedModelError: Naming the module found and why it is not served.
    """
    if timm_vit.is_timm_vit(module):
        return FAMILIES["timm-vit"]
    config: Config = getattr(module, "config", None)
    model_type = getattr(config, "model_type", None)
    for family in FAMILIES.values():
        if model_type in family.model_types:
            return family
    if model_type in _REFUSED:
        suffix, why = _REFUSED[model_type]
        name_found = next((name for name, _ in module.named_modules() if name.endswith(suffix)), suffix)
        raise UnsupportedModelError(
            f"{type(module).__name__}: module {name_found!r} {why}, so the residual stream is not a sum of "
            "node outputs; "
            "only pre-norm models are supported"
        )
    served = ", ".join(sorted(name for _, family in FAMILIES.items() for name in family.model_types))
    raise UnsupportedModelError(
        f"{type(module).__name__} (model type {model_type!r}) is not supported; supported model types: "
        f"{served}, and timm's VisionTransformer"
    )


def number_type(name: str | None) -> torch.dtype | None:
    """The number type of a name such as `float64`; None leaves it to the loader."""
    return None if name is None else getattr(torch, name)


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
                "a live module is used unchanged; convert or move it yourself instead of passing dtype= or "
                "device="
            )
        stored = timm_vit.timm_preprocessing(source) if timm_vit.is_timm_vit(source) else None
        return _bound(source, tokenizer=tokenizer, name=type(source).__name__, preprocessing=stored)
    if str(source).startswith(_PLANTED):
        return _planted(str(source), tokenizer=tokenizer, dtype=dtype, device=device)
    path = EMBEDDED.get(str(source), Path(source))
    name = str(source) if str(source) in EMBEDDED else path.name if path.is_dir() else _short(str(source))
    location = str(path) if path.is_dir() else str(source)
    if location.startswith(_TIMM_DIRECTORY):  # a directory like any other
        path = Path(location.removeprefix(_TIMM_DIRECTORY))
        location, name = str(path), path.name
        if not path.is_dir():
            raise FileFormatError(f"directory {path} does not exist; expected one with timm's config.json")
    if path.is_dir() and not (path / "config.json").is_file():
        raise FileFormatError(f"{path} has no config.json; expected a directory written by save_pretrained")
    preprocessing: Mapping[str, Any] | None
    if location.startswith("timm:") or (path.is_dir() and _is_timm_directory(path)):
        module = _from_timm(location, allow_pickle=allow_pickle).to(dtype or torch.float32)
        preprocessing = timm_vit.timm_preprocessing(module)
    else:
        module = _from_pretrained(location, dtype=dtype or torch.float32, allow_pickle=allow_pickle)
        preprocessing = _image_processor(location) if family_of(module).vision is not None else None
    if device is not None:
        module.to(device)
    if tokenizer is None and family_of(module).vision is None:
        tokenizer = _load_tokenizer(location)
    with malformed(location, "a model with a consistent configuration"):
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
        timm_vit.check_vision_weights(module, name)
    model = Model(module, family, tokenizer=tokenizer, name=name, preprocessing=preprocessing)
    check_conformance(model)
    return model


# --------------------------------------------------------------------------------------------------- timm


def _short(source: str) -> str:
    """A source as results name it: of a checkpoint its name, since where it lies changes no number."""
    name, at, checkpoint = source.partition("@")
    return f"{name}@{Path(checkpoint).name}" if at and name.startswith("timm:") else source


def _is_timm_directory(path: Path) -> bool:
    """Whether `config.json` is timm's: it names an architecture and no model type."""
    config = read_json(path / "config.json")
    return "architecture" in config and "model_type" not in config


def _from_timm(location: str, *, allow_pickle: bool) -> nn.Module:
    config, shapes = Path(location, "config.json"), None
    if location.startswith("timm:"):
        _check_checkpoint(location, allow_pickle=allow_pickle)
    else:
        files = weight_files(location, timm=True, allow_pickle=allow_pickle)
        shapes = check_sizes(config, files, timm=True)
    create_model = timm_create_model(location)
    name, _, checkpoint = location.removeprefix("timm:").partition("@")
    try:
        if not location.startswith("timm:"):
            source = f"local-dir:{location}"
            if shapes is not None:
                check_shapes(lambda: create_model(source, pretrained=False), shapes, config)
            module = create_model(source, pretrained=True)
        elif checkpoint:
            module = _timm_checkpoint(name, Path(checkpoint))
        else:
            module = create_model(name, pretrained=True)
    except AssayError:
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
    if not checkpoint:
        return
    path = Path(checkpoint)
    if not path.is_file():
        raise FileFormatError(f"file {path} does not exist; expected timm:{name}@checkpoint.safetensors")
    if path.suffix == ".safetensors":
        refuse_pickle(path)
    elif not allow_pickle:
        raise UnsafeFileError(
            f"{path} is not a safetensors file, and opening a pickle can run any code. Convert it, or pass "
            "allow_pickle=True if you trust its origin"
        )


def _timm_checkpoint(name: str, path: Path) -> nn.Module:
    """A timm architecture with weights of the user's own; class count and image size follow the weights."""
    create_model = timm_create_model(f"timm:{name}")
    if path.suffix == ".safetensors":
        weights = load_file(path)
    else:
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle fails with whatever its first wrong byte brings about
            raise FileFormatError(f"cannot read {path} as a PyTorch checkpoint: {error}") from error
        weights = weights.get("state_dict", weights)
    arguments = timm_vit.head_shape(weights)
    module = create_model(name, pretrained=False, **arguments)
    if timm_vit.is_timm_vit(module) and (side := timm_vit.image_side(weights, module)) is not None:
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
    path = find_checkpoint(location, "preprocessor_config.json")
    return None if path is None else read_json(path)


def _from_pretrained(location: str, *, dtype: torch.dtype, allow_pickle: bool) -> nn.Module:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification

    from assay.models import attention_only  # which needs transformers

    attention_only.register()
    what = "a causal language model or image classifier"
    try:
        described = find_checkpoint(location, "config.json")
        shapes = None
        if described is not None:
            _refuse_elsewhere(described)
            files = weight_files(location, timm=False, allow_pickle=allow_pickle)
            shapes = check_sizes(described, files) if files else None
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        _refuse_early(config, location)
        # How attention is computed is ours to say: a name of a repository here would load a kernel from it.
        config._attn_implementation = None
        family = next((each for each in FAMILIES.values() if config.model_type in each.model_types), None)
        sees = family is not None and family.vision is not None
        what = "an image classifier" if sees else "a causal language model"
        auto = AutoModelForImageClassification if sees else AutoModelForCausalLM
        if described is not None and shapes is not None:
            build: Callable[..., nn.Module] = auto.from_config
            check_shapes(lambda: build(config, trust_remote_code=False), shapes, described)
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
            f"{location!r} holds a pickle with more than weights, which is rejected: "
            f"{printable(str(error))[:300]}"
        ) from error
    # ImportError: a configuration may ask for a library that is not installed.
    except (OSError, ImportError, SafetensorError, StrictDataclassError, *MALFORMED) as error:
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


def _refuse_elsewhere(config: Path) -> None:
    """Refuse a configuration that names its weights itself."""
    if (named := read_json(config).get("transformers_weights")) is not None:
        raise UnsafeFileError(
            f"{config} names its own weight files ({printable(repr(named))[:200]}), but weights are read "
            f"only from {WEIGHTS} or {INDEX}; remove transformers_weights"
        )


def _refuse_early(config: Config, location: str) -> None:
    """Refuse a post-norm or quantised configuration before its weights are read."""
    for field in ("quantization_config", "compression_config"):
        if getattr(config, field, None) is not None:
            raise UnsupportedModelError(
                f"{location}: its configuration has {field}, so the stored weights differ from the numbers "
                "it computes with; dequantise it and save it again"
            )
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
    local = directory.is_dir()
    if local and not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        return None  # transformers would make up an empty tokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
            tokenizer("a")  # some damage shows only in use
            return tokenizer
        except Exception as error:  # the library of tokenizers raises no other type for a damaged file
            if not local and isinstance(error, OSError | ValueError | KeyError):
                return None  # the repository carries no tokenizer; tasks of ids need none
            raise FileFormatError(
                f"cannot read the tokenizer of {location!r} ({type(error).__name__}: "
                f"{printable(str(error))[:300]}); restore its files, or give tokenizer="
            ) from error

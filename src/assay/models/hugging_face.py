"""Models, tokenizers and image processors of Hugging Face, from a directory whose files are checked first."""

import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from assay.core.errors import AssayError, FileFormatError, UnsafeFileError
from assay.core.untrusted import MALFORMED, printable, read_object
from assay.models.placing import Device, DeviceMap, NumberType, choose_device, choose_dtype, place_parts
from assay.models.recognition import family_of_type, refuse_config
from assay.models.streaming import streamed
from assay.models.weight_files import (
    INDEX,
    WEIGHTS,
    check_shapes,
    check_sizes,
    stored_dtype,
    weight_files,
)


_GENERAL_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")  # tokenizer.json says all
_EXPECTED = ". Expected a directory with config.json and model.safetensors, written by save_pretrained"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@contextmanager
def without_progress_bars(*, report: bool = True) -> Iterator[None]:
    """No bars of transformers inside: a zoo of small models would print hundreds.

    Args:
        report: Let it tell which weights it left out.
    """
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    if not report:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def image_processor(directory: Path) -> dict[str, Any] | None:
    """The stored `preprocessor_config.json`, or that part of `processor_config.json`; None without either."""
    path = directory / "preprocessor_config.json"
    if path.is_file():
        return read_object(path)
    path = directory / "processor_config.json"
    found = read_object(path).get("image_processor") if path.is_file() else None
    return found if isinstance(found, dict) else None


def check_description(directory: Path, name: str | None = None) -> None:
    """Refuse a `config.json` that names its own weights, or of a model (`name`) that is not served."""
    path = directory / "config.json"
    config = read_object(path)
    if (named := config.get("transformers_weights")) is not None:
        raise UnsafeFileError(
            f"{path} names its own weight files ({printable(repr(named))[:200]}), but weights are read "
            f"only from {WEIGHTS} or {INDEX}; remove transformers_weights"
        )
    refuse_config(config, name or str(directory))


def from_pretrained(
    directory: Path,
    *,
    dtype: NumberType,
    device: Device,
    allow_pickle: bool,
    device_map: DeviceMap = None,
) -> nn.Module:
    """The model of a directory, with all of its weights, in its place.

    Args:
        directory: As `save_pretrained` writes it.
        dtype: Number type of the weights; `auto` or None: see `choose_dtype`.
        device: Where the model goes.
        allow_pickle: Accept checkpoints that are pickles.
        device_map: Where its parts go instead; see `load_model`.
    """
    with warnings.catch_warnings():
        # Of tqdm, in a notebook without ipywidgets: its bars are off here.
        warnings.filterwarnings("ignore", message="IProgress not found")
        from transformers import AutoModelForCausalLM, AutoModelForImageClassification

    location, described = str(directory), directory / "config.json"
    with file_errors(location, "a causal language model or image classifier"):
        check_description(directory)
        files = weight_files(directory, timm=False, allow_pickle=allow_pickle)
        shapes = check_sizes(described, files)
        config = checked_config(location)
    family = family_of_type(config.model_type)
    sees = family is not None and family.vision is not None
    auto = AutoModelForImageClassification if sees else AutoModelForCausalLM
    build: Callable[..., nn.Module] = partial(auto.from_config, config, trust_remote_code=False)
    with file_errors(location, "an image classifier" if sees else "a causal language model"):
        stored = config.dtype
        if shapes is not None:
            check_shapes(build, shapes, described)
            stored = stored_dtype(files)
        placement = None
        if device_map is not None:
            dealt = choose_dtype(dtype, choose_device(device or "auto"), stored)
            placement = place_parts(_empty(build), device_map, device, dealt)
        main = choose_device(device) if placement is None else placement.main
        number_type = choose_dtype(dtype, main, stored)
        if placement is not None and placement.streams:
            # Some modules compute constants in the number type that they are built with.
            return streamed(_empty(partial(build, dtype=number_type)), files, placement, number_type)
        with without_progress_bars():
            loaded: Any = auto.from_pretrained(
                location,
                config=config,
                dtype=number_type,
                use_safetensors=None if allow_pickle else True,
                output_loading_info=True,
                trust_remote_code=False,  # code of a checkpoint is never run
                device_map=None if placement is None else dict(placement.parts),
            )
    module: nn.Module
    module, info = loaded
    refuse_missing(location, info, len(list(module.parameters())))
    return module if placement is not None else module.to(main)


def encoder_from_pretrained(directory: Path, *, allow_pickle: bool) -> nn.Module:
    """The model of a directory without its head, of whatever layout, in float32 on the CPU.

    A pooler that the checkpoint lacks, as those of classifiers do, is left out.

    Args:
        directory: As `save_pretrained` writes it.
        allow_pickle: Accept checkpoints that are pickles.
    """
    from transformers import AutoConfig, AutoModel

    location, described = str(directory), directory / "config.json"
    with file_errors(location, "an encoder"), without_progress_bars(report=False):
        files = weight_files(directory, timm=False, allow_pickle=allow_pickle)
        shapes = check_sizes(described, files)
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        config._attn_implementation = None  # a name of a repository here would load a kernel from it
        if shapes is not None:
            check_shapes(lambda: AutoModel.from_config(config, trust_remote_code=False), shapes, described)
        loaded: Any = AutoModel.from_pretrained(
            location,
            config=config,
            dtype=torch.float32,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    module, info = loaded
    if any(str(key).startswith("pooler.") for key in info["missing_keys"]):
        module.pooler = None
    missing = {key for key in info["missing_keys"] if not str(key).startswith("pooler.")}
    refuse_missing(location, {**info, "missing_keys": missing}, len(list(module.parameters())))
    encoder: nn.Module = module
    return encoder


@contextmanager
def file_errors(location: str, what: str, expected: str = _EXPECTED) -> Iterator[None]:
    """What transformers raises inside about the files of a model, as errors that name them."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except AssayError:
        raise
    except pickle.UnpicklingError as error:
        raise UnsafeFileError(
            f"{location!r} holds a pickle with more than weights, which is rejected: "
            f"{printable(str(error))[:300]}"
        ) from error
    # ImportError: a configuration may ask for a library that is not installed.
    except (OSError, ImportError, SafetensorError, StrictDataclassError, *MALFORMED) as error:
        said = str(error).rstrip(".")
        raise FileFormatError(f"cannot load {location!r} as {what}: {said}{expected}") from error


def checked_config(location: str, **more: Any) -> Any:
    """The configuration of a model that is served, with attention left to be chosen here."""
    from transformers import AutoConfig

    from assay.models import attention_only  # which needs transformers

    attention_only.register()
    config = AutoConfig.from_pretrained(location, trust_remote_code=False, **more)
    refuse_config({**vars(config), "model_type": config.model_type}, location)
    # How attention is computed is ours to say: a name of a repository here would load a kernel from it.
    config._attn_implementation = None
    return config


def _empty(build: Callable[[], nn.Module]) -> nn.Module:
    """A module whose parameters have no memory; what it computes for itself it has."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        return build()


def refuse_missing(location: str, info: dict[str, Any], n_weights: int) -> None:
    """Refuse a model of which transformers filled weights with random numbers, which mean nothing."""
    for problem in ("missing_keys", "mismatched_keys"):
        if info[problem]:
            names = sorted(str(key) for key in info[problem])
            raise FileFormatError(
                f"{location!r} is not a complete checkpoint: {problem.replace('_', ' ')} "
                f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''} ({len(names)} of {n_weights} "
                "weights); save the model again with save_pretrained"
            )


def _tokenizer_class(directory: Path) -> str | None:
    """The class that the tokenizer of a directory names; None where that is left to the model type."""
    described = directory / "tokenizer_config.json"
    return read_object(described).get("tokenizer_class") if described.is_file() else None


def stored_tokenizer(directory: Path) -> Any:
    """The tokenizer of a directory; None if it holds none."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        return None  # transformers would make up an empty tokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # AutoTokenizer gives some model types a class of their own, which reads a general file as empty.
            general = _tokenizer_class(directory) in _GENERAL_TOKENIZERS
            found = PreTrainedTokenizerFast if general else AutoTokenizer
            tokenizer = found.from_pretrained(str(directory), trust_remote_code=False)
            tokenizer("a")  # some damage shows only in use
            return tokenizer
        except Exception as error:  # the library of tokenizers raises no other type for a damaged file
            raise FileFormatError(
                f"cannot read the tokenizer of {str(directory)!r} ({type(error).__name__}: "
                f"{printable(str(error))[:300]}); restore its files, or give tokenizer="
            ) from error

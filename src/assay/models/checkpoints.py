"""Checkpoints of transformers: models, tokenizers and image processors of a directory.

Weights are read from safetensors, and code of a checkpoint is never run.
"""

import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from assay.core.errors import AssayError, FileFormatError, UnsafeFileError, UnsupportedModelError
from assay.core.extras import needs_extra
from assay.core.untrusted import MALFORMED, printable, read_object, refuse_pickle
from assay.models.placing import Device, DeviceMap, NumberType, choose_device, choose_dtype
from assay.models.recognition import family_of_type, refuse_config


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_GENERAL_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")  # tokenizer.json says all
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_EXPECTED = ". Expected a directory with config.json and model.safetensors, written by save_pretrained"


def check_weight_files(directory: Path, *, allow_pickle: bool) -> None:
    """Refuse a directory whose weights are not in `model.safetensors`, or in the files its index names.

    Raises:
        UnsafeFileError: If they are pickles and `allow_pickle` is false, or lie elsewhere.
        FileFormatError: If there are none, or one of an index is missing.
        UnsupportedModelError: If the directory holds an adapter, which transformers would load by itself.
    """
    if (directory / "adapter_config.json").is_file():
        raise UnsupportedModelError(
            f"{directory} holds an adapter of PEFT; merge it (merge_and_unload()) and save the merged model"
        )
    index = directory / INDEX
    if (directory / WEIGHTS).is_file():
        names = [WEIGHTS]
    elif index.is_file():
        names = sorted({str(name) for name in (read_object(index).get("weight_map") or {}).values()})
    else:
        names = sorted(path.name for suffix in ("bin", "pt", "pth") for path in directory.glob(f"*.{suffix}"))
    for name in names or [WEIGHTS]:
        elsewhere, pickled = Path(name).name != name, not name.endswith(".safetensors")
        if elsewhere or (pickled and not allow_pickle):
            raise UnsafeFileError(
                f"{directory} has its weights in {printable(name)[:200]!r}, not in {WEIGHTS}. Opening a "
                "pickle can run any code, and files elsewhere are not read; convert them to safetensors, or "
                "pass allow_pickle=True if you trust the origin of the pickles beside config.json"
            )
        if not (directory / name).is_file():
            raise FileFormatError(
                f"{directory} has no weights {name}; expected {WEIGHTS} beside config.json, or all files its "
                "index names (pickles of a repository are fetched only with allow_pickle=True)"
            )
        if not pickled:
            refuse_pickle(directory / name)


def check_description(directory: Path) -> None:
    """Refuse a `config.json` that names its own weights, or of a model that is not served."""
    path = directory / "config.json"
    config = read_object(path)
    if (named := config.get("transformers_weights")) is not None:
        raise UnsafeFileError(
            f"{path} names its own weight files ({printable(repr(named))[:200]}), but weights are read "
            f"only from {WEIGHTS} or {INDEX}; remove transformers_weights"
        )
    refuse_config(config, str(directory))


def from_directory(
    directory: Path, *, dtype: NumberType, device: Device, allow_pickle: bool, device_map: DeviceMap = None
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
        import transformers

        from assay.models import attention_only  # which needs transformers

    location = str(directory)
    attention_only.register()
    if device_map is not None:
        with needs_extra("placement", "device_map needs accelerate"):
            import accelerate  # noqa: F401
    with file_errors(location, "a causal language model or image classifier"):
        check_description(directory)
        check_weight_files(directory, allow_pickle=allow_pickle)
        config = _config(location)
        refuse_config({**vars(config), "model_type": config.model_type}, location)
        family = family_of_type(config.model_type)
        kind = "CausalLM" if family is None or family.vision is None else "ImageClassification"
        place = choose_device(device if device_map is None else "auto")
        module = _with_weights(
            getattr(transformers, f"AutoModelFor{kind}"),
            location,
            config=config,
            dtype=choose_dtype(dtype, place, config.dtype),
            use_safetensors=None if allow_pickle else True,
            device_map=dict(device_map) if isinstance(device_map, Mapping) else device_map,
        )
    return module.to(place) if device_map is None else module


def _config(location: str) -> Any:
    """The configuration of a directory, with attention left to be chosen here."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(location, trust_remote_code=False)
    config._attn_implementation = None  # a name of a repository here would load a kernel from it
    return config


def _with_weights(auto: Any, location: str, **options: Any) -> nn.Module:
    """A model of which no weight was made up by transformers."""
    module: nn.Module
    with without_progress_bars():
        module, info = auto.from_pretrained(
            location, output_loading_info=True, trust_remote_code=False, **options
        )
    refuse_missing(location, info, len(list(module.parameters())))
    return module


def refuse_missing(location: str, info: Mapping[str, Any], n_weights: int) -> None:
    """Refuse a model of which transformers filled weights with random numbers, which mean nothing."""
    for problem in ("missing_keys", "mismatched_keys"):
        if names := sorted(str(key) for key in info[problem]):
            raise FileFormatError(
                f"{location!r} is not a complete checkpoint: {problem.replace('_', ' ')} "
                f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''} ({len(names)} of {n_weights} "
                "weights); save the model again with save_pretrained"
            )


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


def image_processor(directory: Path) -> dict[str, Any] | None:
    """The stored `preprocessor_config.json`, or that part of `processor_config.json`; None without either."""
    path = directory / "preprocessor_config.json"
    if path.is_file():
        return read_object(path)
    path = directory / "processor_config.json"
    stored = read_object(path).get("image_processor") if path.is_file() else None
    return stored if isinstance(stored, dict) else None


def stored_tokenizer(directory: Path) -> Any:
    """The tokenizer of a directory; None if it holds none."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        return None  # transformers would make up an empty tokenizer
    described = directory / "tokenizer_config.json"
    kind = read_object(described).get("tokenizer_class") if described.is_file() else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # AutoTokenizer gives some model types a class of their own, which reads a general file as empty.
            reader = PreTrainedTokenizerFast if kind in _GENERAL_TOKENIZERS else AutoTokenizer
            tokenizer = reader.from_pretrained(str(directory), trust_remote_code=False)
            tokenizer("a")  # some damage shows only in use
            return tokenizer
        except Exception as error:  # the library of tokenizers raises no other type for a damaged file
            raise FileFormatError(
                f"cannot read the tokenizer of {str(directory)!r} ({type(error).__name__}: "
                f"{printable(str(error))[:300]}); restore its files, or give tokenizer="
            ) from error

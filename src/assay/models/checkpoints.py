"""Checkpoints of transformers: models, tokenizers and image processors of a directory.

Weights are read from safetensors, and code of a checkpoint is never run.
"""

import math
import pickle
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from assay.core.errors import AssayError, FileFormatError, InputError, UnsafeFileError, UnsupportedModelError
from assay.core.extras import needs_extra
from assay.core.untrusted import MALFORMED, printable, read_object, refuse_pickle
from assay.models.placing import Device, DeviceMap, NumberType, choose_device, choose_dtype
from assay.models.recognition import family_of_type, refuse_config


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_GENERAL_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")  # tokenizer.json says all
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_EXPECTED = ". Expected a directory with config.json and model.safetensors, written by save_pretrained"


def weight_files(directory: Path, *, allow_pickle: bool) -> list[Path]:
    """The files that weights are read from: `model.safetensors`, or what its index names.

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
    unsafe = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    if unsafe and not (allow_pickle and all(Path(name).name == name for name in unsafe)):
        raise UnsafeFileError(
            f"{directory} has its weights in {printable(unsafe[0])[:200]!r}, not in {WEIGHTS}. Opening a "
            "pickle can run any code, and files elsewhere are not read; convert them to safetensors, or pass "
            "allow_pickle=True if you trust the origin of the pickles beside config.json"
        )
    absent = [name for name in names if not (directory / name).is_file()]
    if absent or not names:
        raise FileFormatError(
            f"{directory} has no weights; expected {WEIGHTS} beside config.json (pickles of a repository are "
            "fetched only with allow_pickle=True)"
            if not names
            else f"{index} names {len(names)} files of weights, but {len(absent)} of them do not exist: "
            f"{', '.join(absent[:5])}{', ...' if len(absent) > 5 else ''}; fetch or copy them again"
        )
    for name in names:
        if name.endswith(".safetensors"):
            refuse_pickle(directory / name)
    return [directory / name for name in names]


def stored_dtype(files: list[Path]) -> torch.dtype | None:
    """The number type that most weights of safetensors have; None of other files and other types."""
    counts: Counter[str] = Counter()
    for path in files:
        if path.suffix != ".safetensors":
            return None
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                part = file.get_slice(name)
                counts[part.get_dtype()] += math.prod(part.get_shape())
    return _DTYPES.get(counts.most_common(1)[0][0]) if counts else None


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
        from transformers import AutoModelForCausalLM, AutoModelForImageClassification

    location = str(directory)
    if device_map is not None:
        with needs_extra("placement", "device_map needs accelerate"):
            import accelerate  # noqa: F401
    with file_errors(location, "a causal language model or image classifier"):
        check_description(directory)
        files = weight_files(directory, allow_pickle=allow_pickle)
        config = checked_config(location)
    family = family_of_type(config.model_type)
    sees = family is not None and family.vision is not None
    main = choose_device(device if device_map is None else "auto")
    with file_errors(location, "an image classifier" if sees else "a causal language model"):
        module = _with_weights(
            AutoModelForImageClassification if sees else AutoModelForCausalLM,
            location,
            config=config,
            dtype=choose_dtype(dtype, main, stored_dtype(files) or config.dtype),
            use_safetensors=None if allow_pickle else True,
            device_map=device_map if device_map is None or isinstance(device_map, str) else dict(device_map),
        )
    if device_map is None:
        return module.to(main)
    if any(parameter.is_meta for parameter in module.parameters()):
        raise InputError(
            f"device_map={device_map!r} leaves weights of {location} on a disk or in memory that is not a "
            "device's, and circuits read weights directly; give a map whose devices hold all of them"
        )
    return module


def encoder_from_directory(directory: Path, *, allow_pickle: bool) -> nn.Module:
    """The model of a directory without its head, of whatever layout, in float32 on the CPU.

    A pooler that the checkpoint lacks, as those of classifiers do, is left out.
    """
    from transformers import AutoConfig, AutoModel

    location = str(directory)
    with file_errors(location, "an encoder"):
        weight_files(directory, allow_pickle=allow_pickle)
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        config._attn_implementation = None  # a name of a repository here would load a kernel from it
        safe = None if allow_pickle else True
        return _with_weights(
            AutoModel, location, config=config, dtype=torch.float32, use_safetensors=safe, optional="pooler."
        )


def _with_weights(auto: Any, location: str, *, optional: str | None = None, **options: Any) -> nn.Module:
    """A model of which no weight was made up by transformers, but for those of a part that is left out."""
    with without_progress_bars(report=optional is None):
        module, info = auto.from_pretrained(
            location, output_loading_info=True, trust_remote_code=False, **options
        )
    if optional is not None:
        left_out = {name for name in info["missing_keys"] if str(name).startswith(optional)}
        if left_out:
            setattr(module, optional.removesuffix("."), None)
        info = {**info, "missing_keys": set(info["missing_keys"]) - left_out}
    refuse_missing(location, info, len(list(module.parameters())))
    loaded: nn.Module = module
    return loaded


def refuse_missing(location: str, info: Mapping[str, Any], n_weights: int) -> None:
    """Refuse a model of which transformers filled weights with random numbers, which mean nothing."""
    for problem in ("missing_keys", "mismatched_keys"):
        if info[problem]:
            names = sorted(str(key) for key in info[problem])
            raise FileFormatError(
                f"{location!r} is not a complete checkpoint: {problem.replace('_', ' ')} "
                f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''} ({len(names)} of {n_weights} "
                "weights); save the model again with save_pretrained"
            )


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
    found = read_object(path).get("image_processor") if path.is_file() else None
    return found if isinstance(found, dict) else None


def stored_tokenizer(directory: Path) -> Any:
    """The tokenizer of a directory; None if it holds none."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        return None  # transformers would make up an empty tokenizer
    described = directory / "tokenizer_config.json"
    named = read_object(described).get("tokenizer_class") if described.is_file() else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # AutoTokenizer gives some model types a class of their own, which reads a general file as empty.
            reader = PreTrainedTokenizerFast if named in _GENERAL_TOKENIZERS else AutoTokenizer
            tokenizer = reader.from_pretrained(str(directory), trust_remote_code=False)
            tokenizer("a")  # some damage shows only in use
            return tokenizer
        except Exception as error:  # the library of tokenizers raises no other type for a damaged file
            raise FileFormatError(
                f"cannot read the tokenizer of {str(directory)!r} ({type(error).__name__}: "
                f"{printable(str(error))[:300]}); restore its files, or give tokenizer="
            ) from error

"""Loading models by hub id, directory, live module, or name (timm, embedded, planted).

Weights are read from safetensors, and code of a checkpoint is never run. Here is also which family a model
belongs to, and where it goes.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn

import assay.models.vision  # noqa: F401 - importing it registers all descriptions
from assay.core.errors import (
    AssayError,
    FileFormatError,
    HubError,
    InputError,
    UnsafeFileError,
    UnsupportedModelError,
    near_matches,
)
from assay.core.untrusted import MALFORMED, malformed, printable, read_object, refuse_pickle
from assay.models.conformance import check_conformance
from assay.models.family import FAMILIES, Config, Family
from assay.models.model import Model
from assay.models.timm_models import from_timm, preprocessing


Device = str | torch.device | None
NumberType = torch.dtype | Literal["auto"] | None
# Where the parts of a model go: a way to deal them out, or path of a part -> device.
DeviceMap = str | Mapping[str, str | int | torch.device] | None

MINI = Path(__file__).parent / "mini"
# What comes with the package: name to directory.
EMBEDDED = {"mini": MINI, "colour-digits": Path(__file__).parent / "colour_digits"}
_PLANTED, _TIMM = "planted:", "timm:"

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_GENERAL_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")  # tokenizer.json says all
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_EXPECTED = (
    ". Expected a directory with config.json and model.safetensors, or all files of its index, written by "
    "save_pretrained"
)
# ImportError: a configuration may ask for a library that is not installed. Pickles are read as weights only.
_DAMAGED = (OSError, ImportError, SafetensorError, UnpicklingError, *MALFORMED)
# What describes a model and its tokenizer: kilobytes to a few megabytes, never code or pickles.
DESCRIPTION = ("*config.json", "*.index.json", "*token*.json", "vocab.*", "merges.txt", "*.model", "*.jinja")
WEIGHT_FILES = ("model.safetensors", "model-*-of-*.safetensors")
PICKLES = "pytorch_model*.bin"


def load_model(
    source: str | Path | nn.Module,
    *,
    tokenizer: Any = None,
    dtype: NumberType = "auto",
    device: Device = "auto",
    device_map: DeviceMap = None,
    revision: str | None = None,
    token: str | None = None,
    allow_pickle: bool = False,
) -> Model:
    """Load a transformer and describe it as a residual-stream graph.

    Args:
        source: `"mini"` or `"colour-digits"` (the embedded language model and image classifier, no network);
            `"planted:NAME"`, a model whose circuit is known (`assay.models.planted.planted_names()`); a hub
            id, also as `"OWNER/NAME@REVISION"`; a directory written by `save_pretrained`, or by timm's
            `save_for_hf(..., safe_serialization=True)`; `"timm:NAME"`; or a live module of a known family,
            which is used as it is.
        tokenizer: Tokenizer to use; default: the one stored with the weights, if any.
        dtype: Number type of the weights. `"auto"` or None: float64 if the checkpoint is stored in it, else
            float32 on a CPU and the checkpoint's own on an accelerator. timm's models and planted ones are
            float32. A module is left unchanged.
        device: Where to put the weights, without a `device_map`. `"auto"`: the first accelerator that knows
            float64, else the CPU. None: the CPU. A module is left where it is, also if accelerate spread it
            over several devices.
        device_map: Of a checkpoint of transformers: how its parts are dealt to several devices, as
            transformers takes it (`"auto"`, `"balanced"`, `"sequential"`, or a dict from paths of parts to
            devices). All weights must be on a device: none on a disk.
        revision: Branch, tag or commit of a hub id. Default: its main branch.
        token: Access token for gated and private hub ids. Default: `HF_TOKEN`, or the login of
            `hf auth login`. It is not stored anywhere.
        allow_pickle: Accept checkpoints that are pickles, which can run any code when opened.

    Raises:
        UnsupportedModelError: If the layout is not a pre-norm residual stream of a known family.
        UnknownNameError: If there is no planted model of that name.
        HubError: If a repository is missing, gated or out of reach, or has no such revision.
        InputError: If a device does not exist, a module is to be converted or moved, or a revision or device
            map does not apply.
        UnsafeFileError: If the checkpoint is a pickle and `allow_pickle` is false.
        FileFormatError: If the files cannot be read as a checkpoint, some of its weights are missing, or a
            device map needs accelerate and it is not installed.
        MissingExtraError: If the model needs timm, and it is not installed.
        NonFiniteError: If a weight is NaN or infinite.

    Example:
        >>> load_model("mini").graph.n_layers
        4
    """
    if isinstance(source, nn.Module):
        if {dtype, device} - {"auto", None} or (device_map, revision) != (None, None):
            raise InputError(
                "a live module is used unchanged; convert or move it yourself instead of passing dtype=, "
                "device=, device_map= or revision="
            )
        stored = preprocessing(source) if family_of(source).classes else None
        return _bound(source, tokenizer, type(source).__name__, stored)
    text, place = str(source), choose_device(device)
    path = EMBEDDED.get(text, Path(text))
    name, origin = text if text in EMBEDDED else path.name, dict[str, Any]()
    local = text.startswith((_PLANTED, _TIMM)) or path.is_dir()
    if revision is not None and local:
        raise InputError(f"revision applies only to ids of the Hugging Face Hub, but the model is {text!r}")
    if text.startswith(_PLANTED):
        from assay.models.planted import planted_model  # which needs this module

        _refuse_map(device_map, text)
        planted = planted_model(text.removeprefix(_PLANTED), dtype=choose_dtype(dtype, place, None)).model
        planted.module.to(place)
        planted.tokenizer = tokenizer
        return planted
    of_timm = text.startswith(_TIMM)
    if not local:
        name, path = _fetched(text, revision=revision, token=token, allow_pickle=allow_pickle)
        origin = {"revision": path.name}
    if of_timm or is_timm_directory(path):
        _refuse_map(device_map, text)
        if not of_timm:
            check_weight_files(path, allow_pickle=allow_pickle)
        module = from_timm(text if of_timm else path).to(place, choose_dtype(dtype, place, None))
        return _bound(module, tokenizer, text if of_timm else name, preprocessing(module), origin)
    module = from_directory(
        path, dtype=dtype, device=device, allow_pickle=allow_pickle, device_map=device_map
    )
    with malformed(path, "a model with a consistent configuration"):
        if family_of(module).vision is not None:
            return _bound(module, tokenizer, name, image_processor(path), origin)
        tokenizer = stored_tokenizer(path) if tokenizer is None else tokenizer
        return _bound(module, tokenizer, name, None, origin)


def _refuse_map(device_map: DeviceMap, text: str) -> None:
    if device_map is not None:
        raise InputError(f"device_map applies only to checkpoints of transformers, but the model is {text!r}")


def _fetched(text: str, *, revision: str | None, token: str | None, allow_pickle: bool) -> tuple[str, Path]:
    """Id and folder of a hub repository; what is not served is refused before its weights are fetched."""
    import huggingface_hub
    from huggingface_hub import errors

    name, _, behind = text.partition("@")

    def fetch(*patterns: str) -> Path:
        folder = huggingface_hub.snapshot_download(
            name, revision=behind or revision, token=token, allow_patterns=list(patterns)
        )
        return Path(folder)  # whose name is the commit

    try:
        path = fetch(*DESCRIPTION)
        if (path / "config.json").is_file() and not is_timm_directory(path):
            check_description(path)
        fetch(*WEIGHT_FILES)
        if allow_pickle and not any(path.glob("*.safetensors")):
            fetch(PICKLES)
    except errors.HFValidationError as error:
        raise FileFormatError(
            f"cannot load {printable(name)[:200]!r}: it is neither a directory nor an id of the Hugging Face "
            "Hub (OWNER/NAME); check the path"
        ) from error
    except (OSError, errors.HfHubHTTPError) as error:  # of the client, whose texts say what to do
        raise HubError(
            f"cannot load {name!r}: it is not a directory, and the Hugging Face Hub does not give it. "
            f"{printable(str(error)).strip()[:600]}"
        ) from error
    return name, path


def _bound(
    module: nn.Module,
    tokenizer: Any,
    name: str,
    stored: dict[str, Any] | None,
    origin: Mapping[str, Any] = MappingProxyType({}),
) -> Model:
    """A module as a checked model."""
    family = family_of(module)
    convolution = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    if family.vision is not None and convolution is not None and convolution.in_channels != 3:
        raise UnsupportedModelError(
            f"{name} reads images of {convolution.in_channels} channels, but image tasks are RGB, 3 channels"
        )
    model = Model(module, family, tokenizer=tokenizer, name=name, preprocessing=stored, origin=origin)
    check_conformance(model)
    return model


# ---- devices and number types


def accelerator() -> torch.device | None:
    """The first accelerator of this machine that knows float64; None without one."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if kind is None or kind.type == "mps" else torch.device(kind.type, 0)


def check_device(name: str | torch.device) -> torch.device:
    """The device of a name.

    Raises:
        InputError: If this PyTorch does not have it, naming the devices there are.
    """
    devices = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        devices += [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
    try:
        asked = torch.device(name)
    except RuntimeError:  # no such type of device
        asked = None
    if asked is None or (asked.type != "cpu" and f"{asked.type}:{asked.index or 0}" not in devices):
        raise InputError(
            f"device {str(name)!r} does not exist: PyTorch {torch.__version__} here has {', '.join(devices)}"
        )
    return asked


def choose_device(device: Device) -> torch.device:
    """Where a model is put: `auto` is the accelerator if there is one, None the CPU.

    Raises:
        InputError: If the device does not exist.
    """
    if device == "auto":
        return accelerator() or torch.device("cpu")
    return check_device("cpu" if device is None else device)


def choose_dtype(dtype: NumberType, device: torch.device, stored: torch.dtype | None) -> torch.dtype:
    """The number type of the weights.

    Args:
        dtype: What was asked for; `auto` or None: float64 where the checkpoint has it, else the checkpoint's
            on an accelerator and float32 on a CPU.
        device: Where the model goes.
        stored: Number type of the checkpoint, if it is known.

    Raises:
        InputError: For anything but a floating-point type.
    """
    half = (torch.bfloat16, torch.float16)
    if isinstance(dtype, torch.dtype) and dtype in (*half, torch.float32, torch.float64):
        return dtype
    if dtype not in ("auto", None):
        raise InputError(f"dtype is {dtype}; expected 'auto', or torch.bfloat16, float16, float32 or float64")
    if stored == torch.float64 or (stored in half and device.type != "cpu"):
        return stored
    return torch.float32


def number_type(name: str | None) -> torch.dtype | None:
    """The number type of a name such as `float64`; None leaves it to the loader."""
    return None if name is None else getattr(torch, name)


# ---- directories


def check_weight_files(directory: Path, *, allow_pickle: bool) -> None:
    """Refuse weights that are pickles, unless they are allowed, or that lie outside the directory.

    Raises:
        UnsafeFileError: For such weights.
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
    for name in names:
        elsewhere, pickled = Path(name).name != name, not name.endswith(".safetensors")
        if elsewhere or (pickled and not allow_pickle):
            raise UnsafeFileError(
                f"{directory} has its weights in {printable(name)[:200]!r}, not in {WEIGHTS}. Opening a "
                "pickle can run any code, and files elsewhere are not read; convert them to safetensors, or "
                "pass allow_pickle=True if you trust the origin of the pickles beside config.json"
            )
        if not pickled and (directory / name).is_file():
            refuse_pickle(directory / name)


def is_timm_directory(path: Path) -> bool:
    """Whether `config.json` is timm's: it names an architecture and no model type."""
    config = read_object(path / "config.json")
    return "architecture" in config and "model_type" not in config


def check_description(directory: Path) -> dict[str, Any]:
    """The entries of `config.json`, seen before weights are fetched or read.

    Raises:
        UnsafeFileError: If they name files of weights.
        UnsupportedModelError: For quantised weights, a post-norm layout or an unknown model type.
    """
    path = directory / "config.json"
    config = read_object(path)
    if (named := config.get("transformers_weights")) is not None:
        raise UnsafeFileError(
            f"{path} names its own weight files ({printable(repr(named))[:200]}), but weights are read "
            f"only from {WEIGHTS} or {INDEX}; remove transformers_weights"
        )
    for field in ("quantization_config", "compression_config"):
        if config.get(field) is not None:
            raise UnsupportedModelError(
                f"{directory}: its configuration has {field}, so the stored weights differ from the numbers "
                "it computes with; dequantise it (model.dequantize() of transformers) and save it again"
            )
    model_type = config.get("model_type")
    if isinstance(model_type, str) and family_of_type(model_type) is None:
        raise _unknown(str(directory), model_type, kind=model_type, config=config)
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
        import transformers
    location = str(directory)
    with file_errors(location, "a causal language model or image classifier"):
        if check_description(directory).get("model_type") == "attention_only":
            from assay.models import attention_only  # which imports transformers, too

            attention_only.register()
        check_weight_files(directory, allow_pickle=allow_pickle)
        config = transformers.AutoConfig.from_pretrained(location, trust_remote_code=False)
        config._attn_implementation = None  # a name of a repository here would load a kernel from it
        family = family_of_type(config.model_type)
        kind = "CausalLM" if family is None or family.vision is None else "ImageClassification"
        place = choose_device(device if device_map is None else "auto")
        with without_progress_bars():
            module, info = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
                location,
                output_loading_info=True,
                trust_remote_code=False,
                config=config,
                dtype=choose_dtype(dtype, place, config.dtype),
                use_safetensors=None if allow_pickle else True,
                device_map=dict(device_map) if isinstance(device_map, Mapping) else device_map,
            )
        # transformers fills such weights with random numbers, which mean nothing.
        for problem in ("missing_keys", "mismatched_keys"):
            if names := sorted(str(key) for key in info[problem]):
                raise FileFormatError(
                    f"{location!r} is not a complete checkpoint: {problem.replace('_', ' ')} "
                    f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''} ({len(names)} of "
                    f"{len(list(module.parameters()))} weights); save the model again with save_pretrained"
                )
    placed: nn.Module = module.to(place) if device_map is None else module
    return placed


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
    except (*_DAMAGED, StrictDataclassError) as error:
        said = printable(str(error)).rstrip(".")
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


# ---- which family a model belongs to

# Why models have no stream from input to output -> starts of their model types and classes of timm.
_NO_STREAM = {
    "it normalises after the addition (post-norm)": ("bert", "roberta", "distilbert", "openai-gpt"),
    "its stages merge patches, so the stream changes its length and width": ("swin",),
    "its layers carry a state from position to position": ("mamba", "rwkv", "falcon_mamba"),
    "some of its layers carry a state from position to position": ("jamba", "bamba", "recurrent_gemma"),
}


def family_of(module: nn.Module) -> Family:
    """The description that fits a live module; timm need not be importable.

    Raises:
        UnsupportedModelError: Naming the module and why it is not served, or the nearest model type.
    """
    of_timm = {cls.__name__ for cls in type(module).__mro__ if cls.__module__.startswith("timm.")}
    config: Config = getattr(module, "config", None)
    model_type = getattr(config, "model_type", None)
    for family in FAMILIES.values():
        if of_timm & set(family.classes) or model_type in family.model_types:
            return family
    name = type(module).__name__
    raise _unknown(name, model_type, kind=model_type or name, config=getattr(config, "__dict__", {}))


def family_of_type(model_type: object) -> Family | None:
    """The description of a Hugging Face model type; None if there is none."""
    return next((family for family in FAMILIES.values() if model_type in family.model_types), None)


def _unknown(what: str, model_type: object, *, kind: str, config: dict[str, Any]) -> UnsupportedModelError:
    """The error for a model without a description: the reason, or the nearest type that has one."""
    reason = next((why for why, starts in _NO_STREAM.items() if kind.lower().startswith(starts)), None)
    if reason is None and config.get("is_encoder_decoder"):
        reason = "it is an encoder-decoder, where the decoder reads a second stream"
    if reason is not None:
        return UnsupportedModelError(
            f"{what}: {reason}. The residual stream is not a sum of node outputs, so it has no graph here"
        )
    served = sorted(name for family in FAMILIES.values() for name in family.model_types)
    of_timm = sorted(name for family in FAMILIES.values() for name in family.classes)
    near = near_matches(model_type, served, limit=1) if isinstance(model_type, str) else ()
    return UnsupportedModelError(
        f"{what} (model type {printable(repr(model_type))[:80]}) is not supported; supported model types: "
        f"{', '.join(served)}, and timm's {', '.join(of_timm)}."
        + (f" Nearest by name: {near[0]!r}." if near else "")
        + " docs/howto/own-model.md shows how to add a family ('If a model is rejected')"
    )

"""Loading models by hub id, directory, GGUF file, live module, or name (timm, embedded, planted)."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.core.errors import FileFormatError, InputError
from assay.core.untrusted import malformed
from assay.models.adapter import Model
from assay.models.checkpoints import (
    check_description,
    from_directory,
    image_processor,
    stored_tokenizer,
)
from assay.models.conformance import check_conformance
from assay.models.gguf_file import from_gguf
from assay.models.hub import DESCRIPTION, PICKLES, WEIGHTS, fetch, split_revision
from assay.models.placing import Device, DeviceMap, NumberType, choose_device, choose_dtype
from assay.models.recognition import family_of
from assay.models.timm_loading import check_channels, from_timm, is_timm_directory, short_name
from assay.models.timm_reading import preprocessing as timm_preprocessing


MINI = Path(__file__).parent / "mini"
# What comes with the package: name to directory.
EMBEDDED = {"mini": MINI, "colour-digits": Path(__file__).parent / "colour_digits"}
_PLANTED, _TIMM, _TIMM_DIRECTORY = "planted:", "timm:", "timm:local-dir:"


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
            `save_for_hf(..., safe_serialization=True)`; a GGUF file (`"model.gguf"`), with its tokenizer
            and with its weights dequantised; `"timm:NAME"`, or
            `"timm:NAME@checkpoint.safetensors"` for weights of your own; or a live module of a known family,
            which is used as it is.
        tokenizer: Tokenizer to use; default: the one stored with the weights, if any.
        dtype: Number type of the weights. `"auto"` or None: float64 if the checkpoint has it, else float32 on
            a CPU and the checkpoint's own on an accelerator. timm's models and planted ones are float32. A
            module is left unchanged.
        device: Where to put the weights. `"auto"`: the first accelerator that knows float64, else the CPU.
            None: the CPU. A module is left where it is, also where accelerate spread it over several devices.
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
        InputError: If a device does not exist, a module is to be converted or moved, or a device map or a
            revision does not apply.
        UnsafeFileError: If the checkpoint is a pickle and `allow_pickle` is false.
        FileFormatError: If the files cannot be read as a checkpoint, or some of its weights are missing.
        MissingExtraError: If the model needs timm or gguf, or a device map accelerate, and it is not
            installed.
        NonFiniteError: If a weight is NaN or infinite.

    Example:
        >>> load_model("mini").graph.n_layers
        4
    """
    if isinstance(source, nn.Module):
        if dtype not in ("auto", None) or device not in ("auto", None) or device_map is not None:
            raise InputError(
                "a live module is used unchanged; convert or move it yourself instead of passing dtype=, "
                "device= or device_map="
            )
        _check_revision(revision, type(source).__name__)
        stored = timm_preprocessing(source) if family_of(source).classes else None
        return _bound(source, tokenizer, type(source).__name__, stored)
    text, place = str(source), choose_device(device)
    if device_map is not None and device not in ("auto", None):
        raise InputError(
            f"device={str(device)!r} and device_map both say where the model goes; leave one out"
        )
    by_name = text.startswith(_TIMM) and not text.startswith(_TIMM_DIRECTORY)
    path, origin = EMBEDDED.get(text, Path(text.removeprefix(_TIMM_DIRECTORY))), dict[str, Any]()
    name = short_name(text) if by_name else text if text in EMBEDDED else path.name
    local = text.startswith((_PLANTED, _TIMM)) or path.suffix.lower() == ".gguf" or path.is_dir()
    if local:
        _check_revision(revision, text)
    if text.startswith(_PLANTED):
        _check_device_map(device_map, text)
        return _planted(text.removeprefix(_PLANTED), tokenizer, choose_dtype(dtype, place, None), place)
    if path.suffix.lower() == ".gguf":
        _check_device_map(device_map, text)
        module, tokenizer, origin = from_gguf(path, dtype=dtype, device=place, tokenizer=tokenizer)
        return _bound(module, tokenizer, path.name, None, origin)
    if not local:
        name, revision = split_revision(text, revision)
        path = fetch(name, DESCRIPTION, revision=revision, token=token)
        origin = {"revision": path.name}
    if not by_name and not (path / "config.json").is_file():
        raise FileFormatError(f"{path} has no config.json; expected a directory written by save_pretrained")
    timm = by_name or is_timm_directory(path)
    if not local:
        if not timm:
            check_description(path)  # before gigabytes are fetched
        fetch(name, WEIGHTS, revision=revision, token=token)
        if allow_pickle and not any(path.glob("*.safetensors")):
            fetch(name, PICKLES, revision=revision, token=token)
    if timm:
        _check_device_map(device_map, text)
        location = text if by_name else str(path)
        module = from_timm(location, allow_pickle=allow_pickle).to(place, choose_dtype(dtype, place, None))
        with malformed(location, "a model with a consistent configuration"):
            return _bound(module.eval(), tokenizer, name, timm_preprocessing(module), origin)
    module = from_directory(
        path, dtype=dtype, device=device, allow_pickle=allow_pickle, device_map=device_map
    )
    sees = family_of(module).vision is not None
    tokenizer = stored_tokenizer(path) if tokenizer is None and not sees else tokenizer
    with malformed(path, "a model with a consistent configuration"):
        return _bound(module, tokenizer, name, image_processor(path) if sees else None, origin)


def _check_revision(revision: str | None, source: str) -> None:
    if revision is not None:
        raise InputError(f"revision applies only to ids of the Hugging Face Hub, but the model is {source!r}")


def _check_device_map(device_map: DeviceMap, source: str) -> None:
    if device_map is not None:
        raise InputError(f"device_map applies only to checkpoints of transformers, not to {source!r}")


def _planted(name: str, tokenizer: Any, dtype: torch.dtype, device: torch.device) -> Model:
    """A model whose weights were written by hand; a fresh one for every call."""
    from assay.models.planted import planted_model  # which needs this package's models

    model = planted_model(name, dtype=dtype).model
    model.module.to(device)
    if tokenizer is not None:
        model.tokenizer = tokenizer
    return model


def _bound(
    module: nn.Module,
    tokenizer: Any,
    name: str,
    preprocessing: dict[str, Any] | None,
    origin: dict[str, Any] | None = None,
) -> Model:
    """A module as a checked model."""
    family = family_of(module)
    if family.vision is not None:
        check_channels(module, name)
    model = Model(
        module, family, tokenizer=tokenizer, name=name, preprocessing=preprocessing, origin=origin or {}
    )
    check_conformance(model)
    return model

"""Loading models by hub id, directory, GGUF file, live module, or name (timm, embedded, planted)."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import torch
from torch import nn

from assay.core.errors import FileFormatError, InputError, UnsupportedModelError, check_name
from assay.core.untrusted import malformed
from assay.models.adapter import Model
from assay.models.conformance import check_conformance, check_same
from assay.models.family import ExpertNodes
from assay.models.folding import folded
from assay.models.gguf_file import from_gguf
from assay.models.hub import Repository, check_revision, fetch_description, split_revision
from assay.models.hugging_face import check_description, from_pretrained, image_processor, stored_tokenizer
from assay.models.merging import CONFIG as ADAPTER
from assay.models.merging import attach, base_of, is_adapted, merge_adapters
from assay.models.module_facts import hash_weights
from assay.models.placing import Device, DeviceMap, NumberType, check_device_map, choose_device, choose_dtype
from assay.models.recognition import family_of
from assay.models.streaming import streams
from assay.models.timm_loading import check_channels, from_timm, is_timm_directory, short_name
from assay.models.timm_reading import preprocessing as timm_preprocessing


MINI = Path(__file__).parent / "mini"
# What comes with the package: name to directory.
EMBEDDED = {"mini": MINI, "colour-digits": Path(__file__).parent / "colour_digits"}
_PLANTED = "planted:"
_TIMM = "timm:"
_TIMM_DIRECTORY = "timm:local-dir:"


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
    experts: str = "together",
) -> Model:
    """Load a transformer and describe it as a residual-stream graph.

    Args:
        source: `"mini"` or `"colour-digits"` (the embedded language model and image classifier, no network);
            `"planted:NAME"`, a model whose circuit is known (`assay.models.planted.planted_names()`); a hub
            id, also as `"OWNER/NAME@REVISION"`; a directory written by `save_pretrained`, or by timm's
            `save_for_hf(..., safe_serialization=True)`; a GGUF file (`"model.gguf"`), with its tokenizer
            and with its weights dequantised; `"timm:NAME"`, or
            `"timm:NAME@checkpoint.safetensors"` for weights of your own; or a live module of a known family,
            which is used as it is, or as a copy that shares most weights (EVA, BEiT: bare parameters go into
            projections). Adapters of PEFT (LoRA, DoRA), as a directory or hub id with
            `adapter_config.json` or as a live `PeftModel`, are merged on a copy.
        tokenizer: Tokenizer to use; default: the one stored with the weights, if any.
        dtype: Number type of the weights. `"auto"` or None: float64 if the checkpoint has it, else float32 on
            a CPU and the checkpoint's own on an accelerator. timm's models and planted ones are float32. A
            module is left unchanged.
        device: Where to put the weights. `"auto"`: the first accelerator that knows float64, else the CPU.
            None: the CPU. A module is left where it is, also where accelerate spread it over several devices.
        device_map: Where the parts of a checkpoint of transformers go, if not all to one device. `"auto"`,
            `"balanced"` or `"sequential"`: over the accelerators of this machine, as accelerate deals them;
            what does not fit (on a machine without: what does not fit its memory) is streamed. `"stream"`:
            all blocks are streamed, and run on `device`. Or a dict from paths of parts to devices, `"disk"`
            for those that are streamed. A streamed matrix stays in its file of safetensors; it is read when
            something is computed with it, and let go.
        revision: Branch, tag or commit of a hub id. Default: its main branch.
        token: Access token for gated and private hub ids. Default: `HF_TOKEN`, or the login of
            `hf auth login`. It is not stored anywhere.
        allow_pickle: Accept checkpoints that are pickles, which can run any code when opened.
        experts: Of a mixture of experts: `together`, one MLP node per block, or `nodes`, a node per expert
            with the routing of the clean run; see `Model.with_experts`.

    Raises:
        UnsupportedModelError: If the layout is not a pre-norm residual stream of a known family.
        UnknownNameError: If there is no planted model of that name.
        HubError: If a repository is missing, gated or out of reach, or has no such revision.
        InputError: If a device does not exist, a module is to be converted or moved, or a device map does not
            apply.
        UnsafeFileError: If the checkpoint is a pickle and `allow_pickle` is false.
        FileFormatError: If the files cannot be read as a checkpoint, or some of its weights are missing.
        MissingExtraError: If the model needs timm, peft or gguf, or a device map accelerate, and it is not
            installed.
        NonFiniteError: If a weight is NaN or infinite.

    Example:
        >>> load_model("mini").graph.n_layers
        4
    """
    check_name("form of experts", experts, get_args(ExpertNodes))
    if experts != "together":
        _refuse_device_map(
            device_map, str(source), "experts are nodes only where all weights are on one device"
        )
    model = _loaded(
        source,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        device_map=device_map,
        revision=revision,
        token=token,
        allow_pickle=allow_pickle,
    )
    if experts == "together":
        return model
    model = model.with_experts(experts)
    check_conformance(model)
    return model


def _loaded(
    source: str | Path | nn.Module,
    *,
    tokenizer: Any,
    dtype: NumberType,
    device: Device,
    device_map: DeviceMap,
    revision: str | None,
    token: str | None,
    allow_pickle: bool,
) -> Model:
    """`load_model`, with a mixture of experts as one node."""
    if isinstance(source, nn.Module):
        if dtype not in ("auto", None) or device not in ("auto", None) or device_map is not None:
            raise InputError(
                "a live module is used unchanged; convert or move it yourself instead of passing dtype=, "
                "device= or device_map="
            )
        check_revision(revision, type(source).__name__)
        return _live(source, tokenizer=tokenizer)
    place, text = choose_device(device), str(source)
    if device_map is not None:
        check_device_map(device_map, device)
    if text.startswith(_PLANTED):
        check_revision(revision, text)
        _refuse_device_map(device_map, text, "a planted model is small")
        return _planted(text, tokenizer=tokenizer, dtype=dtype, device=place)
    if Path(text).suffix.lower() == ".gguf":
        check_revision(revision, text)
        _refuse_device_map(device_map, text, "the weights of a GGUF file are dequantised in memory")
        module, tokenizer, origin = from_gguf(Path(text), dtype=dtype, device=place, tokenizer=tokenizer)
        name = Path(text).name
        return _bound(module.eval(), tokenizer=tokenizer, name=name, preprocessing=None, origin=origin)
    named = text.startswith(_TIMM) and not text.startswith(_TIMM_DIRECTORY)
    path, origin = EMBEDDED.get(text, Path(text.removeprefix(_TIMM_DIRECTORY))), {}
    name = short_name(text) if named else text if text in EMBEDDED else path.name
    if named or path.is_dir():
        check_revision(revision, text)
    elif text.startswith(_TIMM_DIRECTORY):
        raise FileFormatError(f"directory {path} does not exist; expected one with timm's config.json")
    else:
        text, revision = split_revision(text, revision)
        if text in EMBEDDED:
            check_revision(revision, text)
        repository = _fetched(text, revision=revision, token=token, allow_pickle=allow_pickle)
        path, name, origin = repository.folder, text, {"revision": repository.commit}
    if not named and (path / ADAPTER).is_file():
        _refuse_device_map(device_map, text, "adapters are merged in memory: merge them and save the model")
        base = base_of(path, text)
        at = None if Path(base.name).is_dir() else base.revision
        start = load_model(
            base.name, dtype=dtype, device=place, revision=at, token=token, allow_pickle=allow_pickle
        )
        return _adapted(start, path, tokenizer=tokenizer, name=name, origin=origin)
    if not named and not (path / "config.json").is_file():
        raise FileFormatError(f"{path} has no config.json; expected a directory written by save_pretrained")
    location = text if named else str(path)
    if named or is_timm_directory(path):
        _refuse_device_map(device_map, text, "only checkpoints of transformers can be spread or streamed")
        number_type = choose_dtype(dtype, place, None)
        module = from_timm(location, allow_pickle=allow_pickle).to(place, number_type)
        preprocessing = timm_preprocessing(module)
    else:
        module = from_pretrained(
            path, dtype=dtype, device=device, allow_pickle=allow_pickle, device_map=device_map
        )
        sees = family_of(module).vision is not None
        preprocessing = image_processor(path) if sees else None
        tokenizer = stored_tokenizer(path) if tokenizer is None and not sees else tokenizer
    with malformed(location, "a model with a consistent configuration"):
        module.eval()
        return _bound(module, tokenizer=tokenizer, name=name, preprocessing=preprocessing, origin=origin)


def _refuse_device_map(device_map: DeviceMap, source: str, why: str) -> None:
    if device_map is not None:
        raise InputError(f"device_map does not apply to {source!r}: {why}; leave it out")


def _live(module: nn.Module, *, tokenizer: Any) -> Model:
    """A live module, used as it is, or the merged copy of an adapted one."""
    if is_adapted(module):
        return _merged(module, tokenizer=tokenizer)
    stored = timm_preprocessing(module) if family_of(module).classes else None
    name = type(module).__name__
    return _bound(module, tokenizer=tokenizer, name=name, preprocessing=stored, origin={})


def _fetched(name: str, *, revision: str | None, token: str | None, allow_pickle: bool) -> Repository:
    """A repository of the hub; what is not served is refused before its weights are fetched."""
    repository = fetch_description(name, revision=revision, token=token)
    if (repository.folder / ADAPTER).is_file():
        return repository
    if not (repository.folder / "config.json").is_file():
        raise FileFormatError(f"the repository {name!r} has no config.json; expected one of transformers")
    check_description(repository.folder, name)
    repository.fetch_weights(allow_pickle=allow_pickle)
    return repository


def _planted(source: str, *, tokenizer: Any, dtype: NumberType, device: torch.device) -> Model:
    """A model whose weights were written by hand; a fresh one for every call."""
    from assay.models.planted import planted_model  # which needs this package's adapters

    model = planted_model(source.removeprefix(_PLANTED), dtype=choose_dtype(dtype, device, None)).model
    model.module.to(device)
    if tokenizer is not None:
        model.tokenizer = tokenizer
    return model


def _adapted(start: Model, path: Path, *, tokenizer: Any, name: str, origin: Mapping[str, Any]) -> Model:
    """A model with the adapter of a directory."""
    return _merged(
        attach(start.module, path),
        tokenizer=tokenizer or stored_tokenizer(path) or start.tokenizer,
        name=name,
        preprocessing=start.preprocessing,
        origin=origin,
        base={"id": start.id, **start.origin},
    )


def _merged(
    adapted: nn.Module,
    *,
    tokenizer: Any,
    name: str | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] = MappingProxyType({}),
    base: Mapping[str, Any] | None = None,
) -> Model:
    """A model with its adapters merged on a copy; `base` says where the model without them comes from."""
    merged = merge_adapters(adapted)
    kind = type(merged.module).__name__
    facts = family_of(merged.module).facts(merged.module)
    based_on = {**(base or {"id": kind}), "weight_hash": hash_weights(facts, sorted(merged.base.items()))}
    model = _bound(
        merged.module.eval(),
        tokenizer=tokenizer,
        name=name or kind,
        preprocessing=preprocessing,
        origin={**origin, "adapters": merged.adapters, "base": based_on},
    )
    check_same(model, adapted, "merged adapters")
    return model


def _bound(
    module: nn.Module,
    *,
    tokenizer: Any,
    name: str,
    preprocessing: Mapping[str, Any] | None,
    origin: Mapping[str, Any],
) -> Model:
    family = family_of(module)
    if family.vision is not None:
        check_channels(module, name)
    if family.fold is not None and streams(module):
        raise UnsupportedModelError(
            f"{name} has bare parameters that are folded into its projections, which therefore cannot stay "
            "in its checkpoint; load it without device_map"
        )
    own = folded(module, family)
    origin = origin if own is module else {**origin, "folded": True}
    model = Model(own, family, tokenizer=tokenizer, name=name, preprocessing=preprocessing, origin=origin)
    check_conformance(model)
    if own is not module:
        check_same(model, module, "bare parameters, folded into projections,")
    return model

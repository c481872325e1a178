"""Loading models by hub id, directory, live module, or name (timm, embedded, planted)."""

from pathlib import Path
from typing import Any

from torch import nn

from assay.core.errors import FileFormatError, HubError, InputError, UnsupportedModelError
from assay.core.untrusted import malformed, printable
from assay.models.checkpoints import (
    Device,
    DeviceMap,
    NumberType,
    check_description,
    choose_device,
    choose_dtype,
    family_of,
    from_directory,
    image_processor,
    is_timm_directory,
    stored_tokenizer,
)
from assay.models.conformance import check_conformance
from assay.models.model import Model
from assay.models.timm_models import from_timm, preprocessing


MINI = Path(__file__).parent / "mini"
# What comes with the package: name to directory.
EMBEDDED = {"mini": MINI, "colour-digits": Path(__file__).parent / "colour_digits"}
_PLANTED, _TIMM = "planted:", "timm:"
_APPLIES = {"revision": "ids of the Hugging Face Hub", "device_map": "checkpoints of transformers"}


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
        InputError: If a device does not exist, a module is to be converted or moved, or a device map or a
            revision does not apply.
        UnsafeFileError: If the checkpoint is a pickle and `allow_pickle` is false.
        FileFormatError: If the files cannot be read as a checkpoint, or some of its weights are missing.
        MissingExtraError: If the model needs timm, or a device map accelerate, and it is not installed.
        NonFiniteError: If a weight is NaN or infinite.

    Example:
        >>> load_model("mini").graph.n_layers
        4
    """
    if isinstance(source, nn.Module):
        name = type(source).__name__
        if dtype not in ("auto", None) or device not in ("auto", None) or device_map is not None:
            raise InputError(
                "a live module is used unchanged; convert or move it yourself instead of passing dtype=, "
                "device= or device_map="
            )
        _refuse_given(name, revision=revision)
        stored = preprocessing(source) if family_of(source).classes else None
        return _bound(source, tokenizer, name, stored)
    text, place = str(source), choose_device(device)
    path = EMBEDDED.get(text, Path(text))
    name, origin = text if text in EMBEDDED else path.name, dict[str, Any]()
    if text.startswith(_PLANTED):
        from assay.models.planted import planted_model  # which needs this module

        _refuse_given(text, revision=revision, device_map=device_map)
        planted = planted_model(text.removeprefix(_PLANTED), dtype=choose_dtype(dtype, place, None)).model
        planted.module.to(place)
        planted.tokenizer = tokenizer
        return planted
    of_timm = text.startswith(_TIMM)
    if of_timm or path.is_dir():
        _refuse_given(text, revision=revision)
    else:
        name, path = _fetched(text, revision=revision, token=token, allow_pickle=allow_pickle)
        origin = {"revision": path.name}
    if not of_timm and not (path / "config.json").is_file():
        raise FileFormatError(f"{path} has no config.json; expected a directory written by save_pretrained")
    if of_timm or is_timm_directory(path):
        _refuse_given(text, device_map=device_map)
        module = from_timm(text if of_timm else path, allow_pickle=allow_pickle)
        module = module.to(place, choose_dtype(dtype, place, None))
        return _bound(module, tokenizer, text if of_timm else name, preprocessing(module), origin)
    module = from_directory(
        path, dtype=dtype, device=device, allow_pickle=allow_pickle, device_map=device_map
    )
    with malformed(path, "a model with a consistent configuration"):
        if family_of(module).vision is not None:
            return _bound(module, tokenizer, name, image_processor(path), origin)
        tokenizer = stored_tokenizer(path) if tokenizer is None else tokenizer
        return _bound(module, tokenizer, name, None, origin)


def _refuse_given(source: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise InputError(f"{name} applies only to {_APPLIES[name]}, but the model is {source!r}")


def _fetched(text: str, *, revision: str | None, token: str | None, allow_pickle: bool) -> tuple[str, Path]:
    """Id and folder of a hub repository; what is not served is refused before its weights are fetched."""
    name, _, behind = text.partition("@")
    revision = behind or revision
    path = fetch(name, DESCRIPTION, revision=revision, token=token)
    if (path / "config.json").is_file() and not is_timm_directory(path):
        check_description(path)
    fetch(name, WEIGHTS, revision=revision, token=token)
    if allow_pickle and not any(path.glob("*.safetensors")):
        fetch(name, PICKLES, revision=revision, token=token)
    return name, path


def _bound(
    module: nn.Module,
    tokenizer: Any,
    name: str,
    stored: dict[str, Any] | None,
    origin: dict[str, Any] | None = None,
) -> Model:
    """A module as a checked model."""
    family = family_of(module)
    convolution = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    if family.vision is not None and convolution is not None and convolution.in_channels != 3:
        raise UnsupportedModelError(
            f"{name} reads images of {convolution.in_channels} channels, but image tasks are RGB, 3 channels"
        )
    model = Model(module, family, tokenizer=tokenizer, name=name, preprocessing=stored, origin=origin or {})
    check_conformance(model)
    return model


# ---- files of the hub

# What describes a model and its tokenizer: kilobytes to a few megabytes, never code or pickles.
DESCRIPTION = ("*config.json", "*.index.json", "*token*.json", "vocab.*", "merges.txt", "*.model", "*.jinja")
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
PICKLES = ("pytorch_model*.bin",)


def fetch(name: str, patterns: tuple[str, ...], *, revision: str | None, token: str | None) -> Path:
    """The folder of a repository in the cache, with the files of some patterns; its name is the commit.

    Args:
        name: Id of the repository, `OWNER/NAME`.
        patterns: Of names of files.
        revision: Branch, tag or commit; None: its main branch.
        token: Access token; None: that of `HF_TOKEN` or of `hf auth login`.

    Raises:
        FileFormatError: If the name is neither that of a directory nor one of the hub.
        HubError: If the repository is missing, gated or out of reach, or has no such revision.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, token=token, allow_patterns=list(patterns)
        )
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
    return Path(folder)

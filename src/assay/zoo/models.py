"""The models of a zoo: what they start from, their heads and hashes, and how they are written."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from assay.core.errors import InputError, OutputError, UnsupportedModelError, check_name
from assay.core.random import stream
from assay.models import load_model
from assay.models.loading import without_progress_bars
from assay.models.timm_models import timm_create_model
from assay.tasks import EvalTransform
from assay.tasks.image_transform import RESAMPLE


# Where the two libraries keep what turns features into logits.
_HEADS = ("classifier", "cls_classifier", "distillation_classifier", "head", "head_dist")


class Initial(NamedTuple):
    """A classifier to be trained, and how it wants its images.

    Attributes:
        module: In evaluation mode, with a new head for the classes.
        transform: Of the checkpoint; None where none is stored.
    """

    module: nn.Module
    transform: EvalTransform | None


def initial_module(
    source: str,
    classes: Sequence[str],
    *,
    architecture: str | Mapping[str, Any] | None = None,
    image_size: tuple[int, int] | None = None,
    seed: int = 0,
) -> Initial:
    """A classifier to start training from, its head new and random.

    Args:
        source: `scratch`, for random weights of `architecture`; a directory or hub id of a transformers or
            timm image classifier; or `timm:NAME`.
        classes: Names of the classes, label 0 first.
        architecture: For `scratch`: `timm:NAME`, or settings of `transformers.ViTConfig`.
        image_size: For settings that do not name one: height and width of the images.
        seed: Seed of the random weights, stream `zoo/initial`.

    Raises:
        InputError: If `scratch` comes without an architecture, a setting does not exist, or there are fewer
            than two classes.
        UnsupportedModelError: If the source is not an image classifier.

    Example:
        >>> small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
        >>> start = initial_module("scratch", ["cat", "dog"], architecture=small, image_size=(32, 32))
        >>> start.module.classifier.out_features
        2
    """
    if len(classes) < 2:
        raise InputError(f"the classes are {list(classes)}; a classifier needs at least two")
    name = architecture if source == "scratch" else source
    with torch.random.fork_rng(devices=[]):  # the global generator comes back as it was
        torch.manual_seed(int(stream(seed, "zoo/initial").integers(2**63 - 1)))
        if isinstance(name, str) and name.startswith("timm:"):
            options = {"pretrained": source != "scratch", "num_classes": len(classes)}
            module = timm_create_model(name)(name.removeprefix("timm:"), **options).eval()
            transform = None if source == "scratch" else EvalTransform.for_model(load_model(module))
            return Initial(module=module, transform=transform)
        if source == "scratch":
            return Initial(module=_scratch(architecture, classes, image_size), transform=None)
        model = load_model(source, device=None)
        if not model.vision:
            raise UnsupportedModelError(f"{source} reads text; a zoo starts from image classifiers")
        transform = None if model.preprocessing is None else EvalTransform.for_model(model)
        return Initial(module=_new_head(model.module, len(classes)), transform=transform)


def _scratch(architecture: object, classes: Sequence[str], image_size: tuple[int, int] | None) -> nn.Module:
    """A ViT of random weights."""
    from transformers import ViTConfig, ViTForImageClassification

    if not isinstance(architecture, Mapping):
        raise InputError(
            f"the architecture of scratch is {architecture!r}; write timm:NAME, or a table of settings of "
            "transformers.ViTConfig, e.g. hidden_size, num_hidden_layers, num_attention_heads, patch_size"
        )
    known = {name for name in ViTConfig().to_dict() if not name.startswith("_")}
    for name in architecture:
        check_name("setting of a ViT", name, known)
    settings = {"num_labels": len(classes), **architecture}
    if "image_size" not in settings and image_size is not None:
        settings["image_size"] = image_size[0] if image_size[0] == image_size[1] else image_size
    if "intermediate_size" not in settings and "hidden_size" in settings:
        settings["intermediate_size"] = 4 * settings["hidden_size"]
    module: nn.Module = ViTForImageClassification(ViTConfig(**settings))
    return module.eval()


def _new_head(module: nn.Module, n_classes: int) -> nn.Module:
    """The module with random heads of `n_classes` outputs; it was loaded for this call and is changed."""
    if _of_timm(module):
        module.reset_classifier(n_classes)  # type: ignore[operator]  # of timm, unknown to nn.Module
        return module
    config: Any = module.config
    for name in head_names(module):
        old = module.get_submodule(name)
        if not isinstance(old, nn.Linear):
            raise UnsupportedModelError(f"the head {name} of {type(module).__name__} is not a linear layer")
        new = nn.Linear(old.in_features, n_classes)
        nn.init.trunc_normal_(new.weight, std=config.initializer_range)
        nn.init.zeros_(new.bias)
        setattr(module, name, new)
    config.num_labels = n_classes
    module.num_labels = n_classes  # type: ignore[assignment]  # a number, no submodule
    return module


# ------------------------------------------------------------------------------------------------- a module


def head_names(module: nn.Module) -> tuple[str, ...]:
    """Names of the submodules that turn features into logits.

    Raises:
        UnsupportedModelError: If there is none under a name that transformers or timm use.
    """
    children = module.named_children()
    names = tuple(name for name, child in children if name in _HEADS and [*child.parameters()])
    if not names:
        raise UnsupportedModelError(f"{type(module).__name__} has none of the heads {', '.join(_HEADS)}")
    return names


def stated_size(module: nn.Module) -> tuple[int, int] | None:
    """Height and width that a model is built for, where it declares them."""
    size = getattr(getattr(module, "config", None), "image_size", None)
    if size is None:
        size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    return None if size is None else height_and_width(size)


def height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Two numbers, where libraries write one for a square."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def module_logits(module: nn.Module, images: Tensor) -> Tensor:
    """Logits of a module, whatever it wraps them in."""
    output = module(images)
    return output if isinstance(output, Tensor) else output.logits


def weights_hash(module: nn.Module) -> str:
    """SHA-256 over names, types and bytes of all parameters and buffers, 16 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _of_timm(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "timm"


# --------------------------------------------------------------------------------------------------- on disk


def save_model(
    module: nn.Module, folder: str | Path, *, transform: EvalTransform, classes: Sequence[str] | None = None
) -> Path:
    """Write an image classifier, how it wants its images, and the names of its classes.

    Args:
        module: A Hugging Face model (written by `save_pretrained`) or a timm one (in the layout of its
            `save_for_hf_hub`).
        folder: Directory, made if it does not exist.
        transform: Its evaluation transform.
        classes: Names of the classes, label 0 first; None writes none.

    Raises:
        UnsupportedModelError: If the module is of neither library.
        OutputError: If the directory cannot be written.
    """
    from transformers import PreTrainedModel

    if not (_of_timm(module) or isinstance(module, PreTrainedModel)):
        raise UnsupportedModelError(f"{type(module).__name__} belongs to neither transformers nor timm")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (_write_timm if _of_timm(module) else _write_hugging_face)(module, folder, transform, classes)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error}; choose a writable directory") from error
    return folder


def _write_hugging_face(
    module: Any, folder: Path, transform: EvalTransform, classes: Sequence[str] | None
) -> None:
    """By `save_pretrained`, with the processor that `EvalTransform.from_config` reads back."""
    if classes is not None:
        module.config.id2label = dict(enumerate(classes))
        module.config.label2id = {name: number for number, name in enumerate(classes)}
    with without_progress_bars():
        module.save_pretrained(folder)
    config: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": transform.resize is not None,
        "do_center_crop": transform.crop is not None,
        "do_rescale": True,
        "do_normalize": True,
        "resample": int(RESAMPLE[transform.resample]),
        "rescale_factor": transform.rescale,
        "image_mean": list(transform.mean),
        "image_std": list(transform.std),
    }
    for name, size in (("size", transform.resize), ("crop_size", transform.crop)):
        if isinstance(size, int):
            config[name] = {"shortest_edge": size}
        elif size is not None:
            config[name] = dict(zip(("height", "width"), size, strict=True))
    text = json.dumps(config, indent=1)
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")


def _write_timm(
    module: nn.Module, folder: Path, transform: EvalTransform, classes: Sequence[str] | None
) -> None:
    """By timm, with what `EvalTransform.from_timm` reads back; it has one crop share for both sides."""
    from timm.models import save_for_hf

    share, mode = 1.0, "squash"
    if transform.crop is not None and transform.resize is not None:
        whole = transform.resize if isinstance(transform.resize, int) else transform.resize[0]
        share, mode = transform.crop[0] / whole, "center" if isinstance(transform.resize, int) else "squash"
    config = {
        "mean": list(transform.mean),
        "std": list(transform.std),
        "interpolation": transform.resample,
        "crop_pct": share,
        "crop_mode": mode,
    }
    about: dict[str, Any] = {"pretrained_cfg": config}
    if classes is not None:
        about["label_names"] = list(classes)
    save_for_hf(module, str(folder), model_config=about, safe_serialization=True)

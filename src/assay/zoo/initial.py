"""What the models of a zoo start from: random weights, a checkpoint on disk or on a hub, or a function."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from assay.core.errors import InputError, UnsupportedModelError, unknown_name
from assay.core.random import stream
from assay.models import load_model
from assay.models.folding import check_unfolded
from assay.models.timm_import import timm_create_model
from assay.tasks import EvalTransform
from assay.zoo.scoring import head_names


Factory = Callable[[int, int], nn.Module]
"""From the number of classes and a seed to a new classifier."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Initial:
    """A classifier to be trained, and how it wants its images.

    Attributes:
        module: In evaluation mode, with a new head for the classes.
        transform: Of the checkpoint; None where none is stored.
    """

    module: nn.Module
    transform: EvalTransform | None


def initial_module(
    source: str | Factory,
    classes: Sequence[str],
    *,
    architecture: str | Mapping[str, Any] | None = None,
    image_size: tuple[int, int] | None = None,
    seed: int = 0,
) -> Initial:
    """A classifier to start training from, its head new and random.

    Args:
        source: `scratch`, for random weights of `architecture`; a directory or hub id of a transformers or
            timm image classifier; `timm:NAME`; or a function of the number of classes and the seed.
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
    with _seeded(seed):
        if not isinstance(source, str):
            return Initial(module=source(len(classes), seed).eval(), transform=None)
        if source == "scratch":
            return Initial(module=_scratch(architecture, classes, image_size), transform=None)
        if source.startswith("timm:"):
            module = _timm(source.removeprefix("timm:"), len(classes), pretrained=True)
            return Initial(module=module, transform=EvalTransform.for_model(load_model(module)))
        model = load_model(source, device=None)
        check_unfolded(model)
        if not model.vision:
            raise UnsupportedModelError(
                f"{source} reads text, but a zoo of image classifiers starts from images"
            )
        transform = None if model.preprocessing is None else EvalTransform.for_model(model)
        return Initial(module=_new_head(model.module, len(classes)), transform=transform)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random weights from a stream of their own; the global generator comes back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "zoo/initial").integers(2**63 - 1)))
        yield


def _scratch(
    architecture: str | Mapping[str, Any] | None,
    classes: Sequence[str],
    image_size: tuple[int, int] | None,
) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    if architecture is None:
        raise InputError(
            "scratch needs an architecture: timm:NAME, or settings of transformers.ViTConfig such as "
            "hidden_size, num_hidden_layers, num_attention_heads and patch_size"
        )
    if isinstance(architecture, str):
        if not architecture.startswith("timm:"):
            raise InputError(f"the architecture is {architecture!r}; write timm:NAME or a table of settings")
        return _timm(architecture.removeprefix("timm:"), len(classes), pretrained=False)
    known = {name for name in ViTConfig().to_dict() if not name.startswith("_")}
    for name in architecture:
        if name not in known:
            raise unknown_name("setting of a ViT", name, known)
    settings = {"num_labels": len(classes), **architecture}
    if "image_size" not in settings and image_size is not None:
        settings["image_size"] = image_size[0] if image_size[0] == image_size[1] else image_size
    _check_patches(settings)
    if "intermediate_size" not in settings and "hidden_size" in settings:
        settings["intermediate_size"] = 4 * settings["hidden_size"]
    module: nn.Module = ViTForImageClassification(ViTConfig(**settings))
    return module.eval()


def _check_patches(settings: Mapping[str, Any]) -> None:
    """Refuse images that patches do not cover: what is left over would be read by nothing."""
    sides, patch = settings.get("image_size"), settings.get("patch_size")
    for side in sides if isinstance(sides, tuple | list) else (sides,):
        if isinstance(side, int) and isinstance(patch, int) and patch > 0 and side % patch:
            raise InputError(
                f"patches of {patch} do not cover images of side {side}: the last {side % patch} pixels "
                f"would be ignored. Give a side of {side - side % patch} or {side - side % patch + patch}"
            )


def _timm(name: str, n_classes: int, *, pretrained: bool) -> nn.Module:
    create_model = timm_create_model(f"timm:{name}")
    return create_model(name, pretrained=pretrained, num_classes=n_classes).eval()


def _new_head(module: nn.Module, n_classes: int) -> nn.Module:
    """The module with random heads of `n_classes` outputs; it was loaded for this call and is changed."""
    if type(module).__module__.partition(".")[0] == "timm":
        module.reset_classifier(n_classes)  # type: ignore[operator]
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
    module.num_labels = n_classes  # type: ignore[assignment]
    return module

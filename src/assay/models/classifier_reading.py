"""What the image classifiers of Hugging Face share: how they are run and read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.family import Config, Vision, config_facts, config_sizes, pair


@dataclass(frozen=True, kw_only=True)
class ClassifierReading:
    """How one class of classifiers reads the final stream.

    Attributes:
        backbone: Its module whose `last_hidden_state` that is.
        heads: Its classifiers, over which logits are averaged.
        features: From the module and the final stream to what each classifier reads.
        pools: From the configuration to whether more positions than the first are read.
        prefix: From the configuration to how many positions come before those of the patches.
    """

    backbone: str
    heads: tuple[str, ...] = ("classifier",)
    features: Callable[[Any, Tensor], tuple[Tensor, ...]] = lambda module, hidden: (hidden[:, 0],)
    pools: Callable[[Config], bool] = lambda config: False
    prefix: Callable[[Config], int] = lambda config: 1

    def hidden(self, module: nn.Module, images: Tensor) -> Tensor:
        """The final stream of images."""
        stream: Tensor = module.get_submodule(self.backbone)(images).last_hidden_state
        return stream

    def read(self, module: nn.Module, hidden: Tensor) -> Tensor:
        """What the classifier reads; the mean where there are several."""
        return _mean(list(self.features(module, hidden)))

    def logits(self, module: nn.Module, hidden: Tensor) -> Tensor:
        """The final stream to logits."""
        read = zip(self.heads, self.features(module, hidden), strict=True)
        return _mean([module.get_submodule(head)(part).to(hidden.device) for head, part in read])

    def n_tokens(self, module: nn.Module) -> int:
        """Positions of the stream."""
        config = vision_config(module)
        height, width = pair(config.image_size)
        down, across = pair(config.patch_size)
        return (height // down) * (width // across) + self.prefix(config)


def _mean(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)


def vision_config(module: nn.Module) -> Config:
    """The configuration of the vision tower."""
    config: Config = module.config
    return getattr(config, "vision_config", config)


def read_by(readings: Mapping[str, ClassifierReading]) -> dict[str, Any]:
    """Entries of a description whose classifiers are of some classes, or inherit from one."""

    def of(module: nn.Module) -> ClassifierReading | None:
        return next(
            (readings[cls.__name__] for cls in type(module).__mro__ if cls.__name__ in readings), None
        )

    def found(module: nn.Module) -> ClassifierReading:
        reading = of(module)
        assert reading is not None  # `refuse` comes first
        return reading

    def refuse(module: nn.Module) -> str | None:
        reading = of(module)
        if reading is None:
            return f"it is not an image classifier; supported classes: {', '.join(readings)}"
        if any(isinstance(module.get_submodule(head), nn.Identity) for head in reading.heads):
            return "it has no classification head (num_labels is 0); save it with one"
        return None

    return {
        "refuse": refuse,
        "sizes": lambda module: config_sizes(vision_config(module)),
        "facts": _facts,
        "vision": Vision(
            hidden=lambda module, images: found(module).hidden(module, images),
            logits=lambda module, hidden: found(module).logits(module, hidden),
            features=lambda module, hidden: found(module).read(module, hidden),
            pools=lambda module: found(module).pools(vision_config(module)),
            image_size=lambda module: pair(vision_config(module).image_size),
            n_tokens=lambda module: found(module).n_tokens(module),
            n_classes=_n_classes,
            classes=_classes,
        ),
    }


def _n_classes(module: nn.Module) -> int:
    config: Config = module.config
    return int(config.num_labels)


def _classes(module: nn.Module) -> tuple[str, ...] | None:
    config: Config = module.config
    names = tuple(str(config.id2label[index]) for index in range(int(config.num_labels)))
    made_up = all(name == f"LABEL_{index}" for index, name in enumerate(names))
    return None if made_up else names


def _facts(module: nn.Module) -> dict[str, Any]:
    """The configuration without class names, which change no number."""
    return {key: v for key, v in config_facts(module).items() if key not in ("id2label", "label2id")}

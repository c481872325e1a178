"""What a ranking is given: models by name, and images as each model reads them."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from assay.analyses.generalization.batches import decoded_once
from assay.core.errors import InputError
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask, digits_source, load_images
from assay.zoo import Zoo


Images = ImageTask | Callable[[Model], ImageTask] | str | Path
OneModel = Model | str | Path | nn.Module | Callable[[], Model]
Models = Zoo | Mapping[str, OneModel] | Sequence[OneModel] | str | Path


ARITHMETIC = ("mean", "std", "rescale")  # of a transform: applied to decoded pixels


def geometry_of(transform: EvalTransform) -> dict[str, Any]:
    """Size, crop and filter: what of a transform decides which pixels are decoded."""
    return {name: value for name, value in transform.to_dict().items() if name not in ARITHMETIC}


def named_loaders(models: Models) -> list[tuple[str, Callable[[], Model]]]:
    """Names and functions that give the models; a list of models is named by their ids, numbered where equal.

    Raises:
        InputError: For fewer than 2 models; of a zoo it names those that are missing.
    """
    if isinstance(models, str | Path):
        models = Zoo.open(models)
    loaders: list[tuple[str, Callable[[], Model]]]
    if isinstance(models, Mapping):
        loaders = [(name, _loader(each)) for name, each in models.items()]
    elif isinstance(models, Zoo):
        models.check_done(2)
        loaders = [(key, functools.partial(models.load, key)) for key in models.keys]
    elif isinstance(models, Sequence):
        ids = [each.id if isinstance(each, Model) else str(each) for each in models]
        names = [
            name if ids.count(name) == 1 else f"{name} ({ids[: place + 1].count(name)})"
            for place, name in enumerate(ids)
        ]
        loaders = [(name, _loader(each)) for name, each in zip(names, models, strict=True)]
    else:
        raise InputError(
            f"models is a {type(models).__name__}; give a zoo or its folder, a list of models, or a mapping "
            "from names to models"
        )
    if len(loaders) < 2:
        raise InputError(f"got {len(loaders)} model(s); give at least 2 to rank")
    return loaders


def missing_models(models: Models) -> dict[str, str]:
    """Models of a zoo that are planned and not trained -> their state; of other models none."""
    if isinstance(models, str | Path):
        models = Zoo.open(models)
    return models.missing if isinstance(models, Zoo) else {}


def _loader(model: object) -> Callable[[], Model]:
    """A function that gives one model, whatever it is named by."""
    if isinstance(model, Model):
        return lambda: model
    if isinstance(model, str | Path | nn.Module):
        return functools.partial(load_model, model)
    if callable(model):
        return model
    raise InputError(
        f"a model to rank is a {type(model).__name__}; expected a loaded model, what `load_model` takes, or "
        "a function that gives one"
    )


class SharedImages:
    """Images of one domain for many models, listed or drawn once for all that want the same pixels.

    Args:
        read: From a model to its images.
        note: Told once what was left out of them.
    """

    def __init__(
        self, read: Callable[[Model], ImageTask], note: Callable[[str], None] = lambda text: None
    ) -> None:
        self._read, self._note = read, note
        self._images: dict[str, ImageTask] = {}

    def __call__(self, model: Model) -> ImageTask:
        """The images as a model reads them."""
        transform = EvalTransform.for_model(model)
        key = json.dumps([geometry_of(transform), model.classes], sort_keys=True)
        if key not in self._images:
            images = self._read(model)
            for text in () if self._images else images.notes:
                self._note(text)
            self._images[key] = decoded_once(images)
        return self._images[key].with_transform(transform)


def shared(images: Images) -> Images:
    """Images that many models can ask for: those that await a transform are listed and decoded once."""
    if isinstance(images, ImageTask):
        ready = images.images is not None or images.transform is not None
        return images if ready else SharedImages(images.for_model)
    if digits_source(images) is not None:  # drawn with their counterparts for each model
        return lambda model: load_images(images, model)
    if isinstance(images, str | Path):
        return SharedImages(lambda model: load_images(images, model, hold=False))
    return images


def task_for(images: Images, model: Model, *, labels: bool | None = None) -> ImageTask:
    """The images as a model reads them, with the labels that may be used; many models ask `shared` ones."""
    images = shared(images)
    if isinstance(images, ImageTask):
        task: ImageTask = images
    elif callable(images):
        task = images(model)
    else:
        raise InputError(
            f"target is a {type(images).__name__}; expected images, what `load_images` takes, or a function "
            "from a model to its images"
        )
    if labels is True and task.labels is None:
        raise InputError(
            f"labels of {task.domain or task.name!r} were requested, but it has none; give labelled images, "
            "or remove labels"
        )
    return replace(task, labels=None) if labels is False else task

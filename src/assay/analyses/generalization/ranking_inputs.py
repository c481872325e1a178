"""What a ranking is given: models by name, and images as each model reads them."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from assay.core.errors import InputError
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageInputs, ImageSet, load_images
from assay.zoo import Zoo


Images = ImageSet | ImageInputs | Callable[[Model], ImageInputs] | str | Path
OneModel = Model | str | Path | nn.Module | Callable[[], Model]
Models = Zoo | Mapping[str, OneModel] | Sequence[OneModel] | str | Path


def named_loaders(models: Models) -> list[tuple[str, Callable[[], Model]]]:
    """Names and functions that give the models; a list of models is named by their ids, numbered where equal.

    Raises:
        InputError: For fewer than 2 models.
    """
    if isinstance(models, str | Path):
        models = Zoo.open(models)
    loaders: list[tuple[str, Callable[[], Model]]]
    if isinstance(models, Mapping):
        loaders = [(name, _loader(each)) for name, each in models.items()]
    elif isinstance(models, Zoo):
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


def tasks_for(images: Images, models: Sequence[Model], *, labels: bool | None = None) -> list[ImageInputs]:
    """The images as each model reads them; equal ones are held once."""
    held: dict[str, ImageInputs] = {}
    tasks = []
    for model in models:
        key = json.dumps([EvalTransform.for_model(model).to_dict(), model.classes])
        if not isinstance(images, ImageSet) or key not in held:
            held[key] = task_for(images, model, labels=labels)
        tasks.append(held[key])
    return tasks


def task_for(images: Images, model: Model, *, labels: bool | None = None) -> ImageInputs:
    """The images as a model reads them, with the labels that may be used."""
    if isinstance(images, ImageInputs):
        task: ImageInputs = images
    elif isinstance(images, ImageSet):
        task = images.stream(EvalTransform.for_model(model))
    elif isinstance(images, str | Path):
        task = load_images(images, model)
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

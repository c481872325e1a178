"""Building a zoo: one training run per recipe of a grid, each kept as soon as it is done."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from assay.core.errors import InputError, NonFiniteError
from assay.core.random import stream
from assay.models import load_model
from assay.tasks import EvalTransform, ImageSet, ImageStream
from assay.zoo.archive import Checkpoint, Zoo, ZooEntry
from assay.zoo.feeding import Images, labels_of, size_of
from assay.zoo.grid import Grid
from assay.zoo.initial import Initial, initial_module
from assay.zoo.recipe import Recipe
from assay.zoo.run_folder import TrainingRun, Validation
from assay.zoo.scoring import images_hash, score_of
from assay.zoo.selection import Selection
from assay.zoo.training import Progress, train


AnyImages = TypeVar("AnyImages", bound=ImageSet | ImageStream)


def split(images: AnyImages, share: float, *, seed: int = 0) -> tuple[AnyImages, AnyImages]:
    """Images to train on and images to validate on, drawn at random within each class.

    Args:
        images: Labelled images of one domain.
        share: Share of every class that is held out, rounded, at least one image; between 0 and 1.
        seed: Seed of the stream `zoo/split`.

    Raises:
        InputError: If labels are missing, the share is out of range, or a class has a single image.
    """
    labels = labels_of(images)
    if labels is None:
        raise InputError(f"the images of {images.domain!r} have no labels, but training needs them")
    if not 0 < share < 1:
        raise InputError(f"the held-out share is {share}; expected a fraction between 0 and 1")
    rng = stream(seed, "zoo/split")
    held = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < 2:
            raise InputError(
                f"class {label} of {images.domain!r} has only one image, which cannot be both trained on "
                "and held out; add images or remove the class"
            )
        held.append(rows[: max(1, min(len(rows) - 1, round(share * len(rows))))])
    held_out = np.sort(np.concatenate(held))
    kept = np.setdiff1d(np.arange(images.n), held_out)
    return cast(AnyImages, images.subset(kept.tolist())), cast(AnyImages, images.subset(held_out.tolist()))


def train_zoo(
    grid: Grid,
    images: Images,
    folder: str | Path,
    *,
    validation: Images | None = None,
    holdout: float = 0.2,
    split_seed: int = 0,
    transform: EvalTransform | None = None,
    checkpoints: Sequence[int] = (),
    selection: Selection | None = None,
    device: str | None = None,
    precision: str = "float32",
    progress: Progress | None = None,
    validated: Callable[[str, Validation], None] | None = None,
) -> Zoo:
    """Train a model for every recipe of a grid on one domain.

    The same call goes on where an earlier one stopped, also in the middle of a model. Recipes of another grid
    are added to a zoo of the same images. A model that diverges is written down as failed, and the rest is
    trained.

    Args:
        grid: The recipes and what they start from.
        images: Labelled images of the in-distribution domain with class names: in memory, of the size the
            models read, or a stream.
        folder: Directory of the zoo; made if it does not exist.
        validation: Images to validate on. Default: held out from `images`.
        holdout: Share of each class to hold out, if `validation` is not given.
        split_seed: Seed of that draw.
        transform: Kept with every model. Default: the normalisation a checkpoint was stored with, else to
            [-1, 1], and resizing to the size of the images. Images of a stream are read with the whole
            transform of a checkpoint.
        checkpoints: Training steps after which every model is kept as well.
        selection: How the configurations of the grid were chosen, to be written down.
        device: Where to train and score. Default: the CPU.
        precision: Number type of the passes of a step, as of `train`.
        progress: Called with the key of a model, the steps done and all steps.
        validated: Called after each validation with the key of the model and what it showed.

    Returns:
        The zoo.

    Raises:
        InputError: If class names or labels are missing, or the folder holds a zoo of other images.
        AssayError: Of `initial_module` and `train`.
    """
    folder = Path(folder)
    if validation is None:
        images, validation = split(images, holdout, seed=split_seed)
    zoo = enrol(grid, images, validation, folder)
    if selection is not None:
        zoo = replace(zoo, selection=selection.to_dict())
        zoo.save()
    for recipe in grid.recipes():
        entry = _pending(recipe, grid)
        if zoo.entry(entry.key).status == "done" and (folder / entry.path / "training.json").exists():
            continue
        try:
            run = train_recipe(
                grid,
                recipe,
                images,
                validation,
                folder / entry.path,
                transform=transform,
                checkpoints=checkpoints,
                device=device,
                precision=precision,
                progress=_named(progress, entry.key),
                validated=None if validated is None else partial(validated, entry.key),
            )
        except NonFiniteError as error:
            zoo = zoo.with_entry(replace(entry, status="failed", reason=str(error)))
            zoo.save()
            continue
        done = replace(
            entry,
            status="done",
            id_accuracy=_accuracy(run, validation, device),
            best_step=run.best_step,
            weight_hash=load_model(run.folder, device=None).weight_hash,
            kept=tuple(
                Checkpoint(step=step, path=place.relative_to(folder).as_posix())
                for step, place in run.checkpoints.items()
            ),
        )
        zoo = zoo.with_entry(done)
        zoo.save()
    return zoo


def enrol(grid: Grid, images: Images, validation: Images, folder: Path) -> Zoo:
    """The zoo of a folder with an entry for every recipe of a grid, written down; new ones are pending.

    Processes that train different recipes may do this at the same time: all write the same.

    Args:
        grid: The recipes.
        images: To train on.
        validation: To validate on.
        folder: Directory of the zoo; made if it does not exist.

    Raises:
        InputError: If class names are missing, or the folder holds a zoo of other images.
    """
    if images.classes is None:
        raise InputError(
            f"the images of {images.domain!r} have no class names; give classes= when reading them"
        )
    zoo = before = _opened(folder, grid, images, _facts(images, validation))
    for recipe in grid.recipes():
        zoo = _enrolled(zoo, _pending(recipe, grid))
    if zoo.entries != before.entries or not (folder / "zoo.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        zoo.save()
    return zoo


def train_recipe(
    grid: Grid,
    recipe: Recipe,
    images: Images,
    validation: Images,
    folder: Path,
    *,
    transform: EvalTransform | None = None,
    **options: Any,
) -> TrainingRun:
    """Train one model of a zoo; a finished run is read from its folder.

    Args:
        grid: Says what the recipe starts from.
        recipe: One of the grid's.
        images: To train on.
        validation: To choose the best step by.
        folder: Of this run.
        transform: As of `train_zoo`.
        options: Further options of `train`.
    """
    size = size_of(images)
    origin = grid.initialisations[recipe.init]
    start = initial_module(
        origin.source,
        images.classes or (),
        architecture=origin.architecture,
        image_size=size,
        seed=recipe.seed,
    )
    if transform is None:
        transform = transform_for(start, images)
    if isinstance(images, ImageStream) and isinstance(validation, ImageStream):
        images, validation = (each.with_transform(transform) for each in (images, validation))
    return train(start.module, images, validation, recipe, folder, transform=transform, **options)


def transform_for(start: Initial, images: Images) -> EvalTransform:
    """How a model of a zoo reads its images: as its checkpoint says, else resized and scaled to [-1, 1]."""
    if start.transform is not None and isinstance(images, ImageStream):
        return start.transform
    # Images in memory have their size: a checkpoint's arithmetic holds, its geometry was never applied.
    return replace(start.transform or EvalTransform(), resize=size_of(images), crop=None, fit="squash")


def _accuracy(run: TrainingRun, validation: Images, device: str | None) -> float:
    """Accuracy of a finished run on its validation images; known already where it chose the best step."""
    if run.recipe.score == "accuracy":
        return run.best_score
    transform = EvalTransform.for_model(load_model(run.folder, device=None))
    return score_of(run.module.to(device or "cpu"), validation, transform, device=device)[0]


def _facts(images: Images, validation: Images) -> dict[str, Any]:
    """What `zoo.json` says of the training images."""
    return {
        "name": images.name,
        "config": dict(images.config),
        "n_train": images.n,
        "n_validation": validation.n,
        "train_hash": images_hash(images),
        "validation_hash": images_hash(validation),
        "image_size": list(size_of(images)),
    }


def _pending(recipe: Recipe, grid: Grid) -> ZooEntry:
    facts = {**recipe.to_dict(), "start": grid.initialisations[recipe.init].to_dict()}
    return ZooEntry(key=recipe.key, path=f"models/{recipe.key}", status="pending", recipe=facts)


def _enrolled(zoo: Zoo, entry: ZooEntry) -> Zoo:
    """The zoo with an entry for this recipe; one that is there already must start from the same."""
    earlier = next((each for each in zoo.entries if each.key == entry.key), None)
    if earlier is None:
        return zoo.with_entry(entry)
    if earlier.recipe.get("start") != entry.recipe["start"]:
        raise InputError(
            f"{zoo.path} holds {entry.key} started from {earlier.recipe.get('start')}, but this grid starts "
            f"it from {entry.recipe['start']}; rename the initialisation or give another folder"
        )
    return zoo


def _opened(folder: Path, grid: Grid, images: Images, data: dict[str, Any]) -> Zoo:
    """The zoo of this folder if it is one of the same images, or a new one."""
    if not folder.exists() or not any(folder.iterdir()):
        return Zoo(
            path=folder,
            name=grid.name,
            entries=(),
            id_domain=images.domain,
            classes=images.classes,
            data=data,
        )
    if not (folder / "zoo.json").exists():
        raise InputError(f"{folder} is not empty and is not a zoo; give a new directory")
    zoo = Zoo.open(folder)
    there = {"id_domain": zoo.id_domain, "classes": zoo.classes, **zoo.data}
    here = {"id_domain": images.domain, "classes": images.classes, **data}
    for name in ("id_domain", "classes", "train_hash", "validation_hash"):
        if there.get(name) != here[name]:
            raise InputError(
                f"{folder} holds another zoo, {zoo.name!r}: {name} is {there.get(name)} there, but "
                f"{here[name]} here; give another directory"
            )
    return zoo


def _named(progress: Progress | None, key: str) -> Progress | None:
    if progress is None:
        return None
    return lambda stage, done, total: progress(f"{stage} {key}", done, total)

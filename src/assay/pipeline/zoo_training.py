"""The images that a zoo is trained on, what training costs, and a zoo as a stored result."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.core.errors import InputError
from assay.store import About
from assay.tasks import EvalTransform, ReadOptions, find_domains, is_shapes
from assay.zoo import Grid, Zoo
from assay.zoo.feeding import Images


ANY_SIZE = 32  # side of images for models that read any size
DRAWN = 1200  # images of a drawn domain


def training_images(source: str | Path, grid: Grid, *, size: int | None, options: ReadOptions) -> Images:
    """The images that a zoo is trained on: drawn ones in memory, others as a stream.

    Args:
        source: Folder or archive of one domain, or `shapes:STYLE`.
        grid: Its starts say which size they read.
        size: Height and width instead; None: what the starts state, else 32.
        options: Sample, seed, bad files, workers; its transform does not count.

    Raises:
        InputError: If the source holds several domains, or starts read different sizes.
        FileFormatError: If the images cannot be read.
    """
    domains = find_domains(source, drawn=DRAWN)
    if len(domains) != 1:
        names = ", ".join(each.name for each in domains)
        raise InputError(f"{source} holds {len(domains)} domains ({names}); a zoo is trained on one, name it")
    sides = grid.image_size() if size is None else (size, size)
    options = replace(options, transform=EvalTransform(resize=sides or (ANY_SIZE, ANY_SIZE)))
    return domains[0].read(options, None) if is_shapes(source) else domains[0].stream(options, None)


def zoo_document(zoo: Zoo) -> dict[str, Any]:
    """A zoo as the JSON document of `assay zoo`."""
    classes = None if zoo.classes is None else list(zoo.classes)
    facts = {"name": zoo.name, "path": str(zoo.path), "id_domain": zoo.id_domain, "classes": classes}
    models: Sequence[Mapping[str, Any]] = [entry.to_dict() for entry in zoo.entries]
    return {**facts, "data": dict(zoo.data), "selection": zoo.selection, "models": models}


def zoo_identity(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the result of a trained zoo is found by."""
    return {key: document[key] for key in ("name", "data", "models")}


def about_zoo(zoo: Zoo, seed: int) -> About:
    """What the row of a trained zoo is found by."""
    return About(
        task=zoo.id_domain,
        metric="accuracy",
        n=len(zoo.keys),
        seed=seed,
        value=max((each.id_accuracy for each in zoo.entries if each.id_accuracy is not None), default=None),
        name=zoo.name,
    )

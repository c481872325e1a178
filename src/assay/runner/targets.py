"""Images to rank models on: folders by domain and class, single files, archives, or drawn shapes."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from assay.errors import FileFormatError, InputError, unknown_name
from assay.models import Model
from assay.tasks import (
    SHAPE_DOMAINS,
    EvalTransform,
    ImageSet,
    ImageTask,
    ReadOptions,
    draw_shapes,
    read_domains,
    read_image_folder,
    read_npz,
)
from assay.tasks.image_files import SUFFIXES, read_images


# Numbers of drawn images that no model of the embedded zoo was trained on; targets and known ones differ.
FIRST_TARGET, FIRST_KNOWN = 20_000, 1_000_000
N_SHAPES = 400


@dataclass(frozen=True, kw_only=True)
class Target:
    """One domain that models are run on.

    Attributes:
        name: Of the domain.
        labelled: Whether its images have labels; None: not known before they are read.
        read: From a model to its images, read or drawn at the model's size, normalised as it wants them.
            Models that want the same pixels share one reading.
    """

    name: str
    labelled: bool | None
    read: Callable[[Model], ImageTask]


def targets(
    images: list[Path],
    shapes: list[str],
    *,
    n: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    labels: bool | None = None,
    first: int = FIRST_TARGET,
    note: Callable[[str], None] | None = None,
) -> list[Target]:
    """The domains that paths and styles name.

    Args:
        images: Each a folder of domains (`DIR/DOMAIN/CLASS/*`), one domain (`DIR/CLASS/*`), a folder of
            images without labels, or an `.npz` archive.
        shapes: Styles of the drawn shapes.
        n: Images per domain; None: all of a folder, 400 drawn ones.
        seed: Of samples and drawn images.
        skip_bad: Leave out files that cannot be decoded.
        labels: False: folders are no classes; every image below a path belongs to one domain without labels.
        first: Number of the first drawn image.
        note: Told about files that were left out.

    Raises:
        FileFormatError: If a path does not exist.
        InputError: For a folder without images, or no path and no style.
        UnknownNameError: For an unknown style.
    """
    if not images and not shapes:
        raise InputError("no images are given; name a domain with --images DIR, or --shapes STYLE")
    options = ReadOptions(n=n, seed=seed, skip_bad=skip_bad)
    found = []
    for style in shapes:
        if style not in SHAPE_DOMAINS:
            raise unknown_name("style of shapes", style, SHAPE_DOMAINS)
        found.append(
            Target(
                name=style, labelled=True, read=_Drawn(style=style, n=n or N_SHAPES, seed=seed, first=first)
            )
        )
    for path in images:
        found += _of_path(path, options, labels=labels, note=note or (lambda text: None))
    return found


def _of_path(
    path: Path, options: ReadOptions, *, labels: bool | None, note: Callable[[str], None]
) -> Iterator[Target]:
    """The domain of a path, or the domains of a folder of them."""
    if path.suffix == ".npz":
        read = _Reader(lambda model, given: read_npz(path, options=given), options, note)
        yield Target(name=path.stem, labelled=None, read=read)
        return
    if not path.is_dir():
        raise FileFormatError(f"{path} is neither a folder nor an .npz archive; give images")
    folders = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    if labels is False or not folders:
        read = _Reader(
            lambda model, given: read_images(_files(path), domain=path.name, options=given), options, note
        )
        yield Target(name=path.name, labelled=False, read=read)
        return
    if not any(each.is_dir() for folder in folders for each in folder.iterdir()):
        read = _Reader(
            lambda model, given: read_image_folder(path, classes=model.classes, options=given), options, note
        )
        yield Target(name=path.name, labelled=True, read=read)
        return
    for folder in folders:
        yield Target(name=folder.name, labelled=True, read=_Reader(_one_of(path, folder.name), options, note))


def _one_of(root: Path, domain: str) -> Callable[[Model, ReadOptions], ImageSet]:
    """One domain of a root, with the labels that all domains share."""
    return lambda model, given: read_domains(root, domains=[domain], classes=model.classes, options=given)[
        domain
    ]


def _files(folder: Path) -> list[Path]:
    """All image files below a folder, by name."""
    found = sorted(each for each in folder.rglob("*") if each.suffix.lower() in SUFFIXES)
    if not found:
        raise InputError(f"{folder} has no image; give files such as .png or .jpg")
    return found


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """Shapes of one style at the size of a model."""

    style: str
    n: int
    seed: int
    first: int

    def __call__(self, model: Model) -> ImageTask:
        height, width = model.image_size
        if height != width:
            raise InputError(f"{model.id} reads {height} x {width} pixels; shapes are drawn in squares")
        drawn = draw_shapes(self.style, self.n, seed=self.seed, size=height, start=self.first)
        return drawn.task(EvalTransform.for_model(model))


class _Reader:
    """Files read at the geometry of a model, once for all models of one geometry."""

    def __init__(
        self,
        read: Callable[[Model, ReadOptions], ImageSet],
        options: ReadOptions,
        note: Callable[[str], None],
    ) -> None:
        self._read, self._options, self._note = read, options, note
        self._key: str | None = None
        self._images: ImageSet | None = None

    def __call__(self, model: Model) -> ImageTask:
        transform = EvalTransform.for_model(model)
        geometry = {name: transform.to_dict()[name] for name in ("resize", "crop", "resample", "centre")}
        key = json.dumps([geometry, model.classes], sort_keys=True)
        if self._images is None or key != self._key:
            images = self._read(model, replace(self._options, transform=transform))
            if images.skipped and self._key is None:
                self._note(f"{len(images.skipped)} files of {images.domain} were skipped")
            self._key, self._images = key, images
        return self._images.task(transform)

"""Images to rank models on: folders by domain and class, single files, or drawn shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from assay.analyses.generalization.ranking_inputs import SharedImages
from assay.core.errors import InputError
from assay.models import Model
from assay.tasks import SHAPE_DOMAINS, ImageTask, find_domains, is_shapes, one_domain
from assay.tasks.image_source import FIRST_FREE, SHAPES
from assay.zoo import Zoo


# Numbers of drawn images that no model of the embedded zoo was trained on; targets and known ones differ.
FIRST_TARGET, FIRST_KNOWN = FIRST_FREE, 1_000_000
N_SHAPES = 400


@dataclass(frozen=True, kw_only=True)
class Domain:
    """One domain that models are run on.

    Attributes:
        name: Of the domain.
        read: From a model to its images as it reads them; models that want the same pixels share them.
        dataset: What the domain is part of: the folder of domains, or `shapes`.
    """

    name: str
    read: Callable[[Model], ImageTask]
    dataset: str = ""


def targets(
    images: list[Path],
    shapes: list[str],
    *,
    n: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    labels: bool | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Domain]:
    """The domains that paths and styles name.

    Args:
        images: Each a folder of domains (`DIR/DOMAIN/CLASS/*`), one domain (`DIR/CLASS/*`), or a folder
            of images without labels.
        shapes: Styles of the drawn shapes.
        n: Images per domain; None: all of a folder, 400 drawn ones.
        seed: Of samples and drawn images.
        skip_bad: Leave out files that cannot be decoded.
        labels: False: folders are not classes; every image below a path belongs to one domain without labels.
        note: Told what was left out.

    Raises:
        FileFormatError: If a path does not exist.
        InputError: For a folder without images, or no path and no style.
        UnknownNameError: For an unknown style.
    """
    if not images and not shapes:
        raise InputError("images are missing; name a domain with --images DIR or shapes:STYLE")
    sources: list[str | Path] = [*(f"{SHAPES}:{style}" for style in shapes), *images]
    return [
        Domain(
            name=name,
            read=SharedImages(partial(_read, found, skip_bad=skip_bad), note),
            dataset=SHAPES if is_shapes(source) else Path(source).absolute().name,
        )
        for source in sources
        for name, found in find_domains(
            source, labels=labels, n=n, seed=seed, start=FIRST_TARGET, drawn=N_SHAPES
        ).items()
    ]


def known_target(
    zoo: Zoo, path: Path | None, *, n: int | None, seed: int = 0, skip_bad: bool = False
) -> Domain | None:
    """Labelled images of the models' own domain: those given, or drawn for zoos trained on shapes.

    Args:
        zoo: The models.
        path: Folder of one domain; None: drawn where the zoo's domain can be, else there is none.
        n: Images; None: all of a folder, 400 drawn ones.
        seed: Of the sample.
        skip_bad: Leave out files that cannot be decoded.

    Raises:
        InputError: If the path holds several domains.
    """
    if path is None and (zoo.id_domain not in SHAPE_DOMAINS or zoo.data.get("name", "shapes") != "shapes"):
        return None
    source = f"{SHAPES}:{zoo.id_domain}" if path is None else path
    found = one_domain(find_domains(source, n=n, seed=seed, start=FIRST_KNOWN, drawn=N_SHAPES), source)
    return Domain(name=found.domain, read=SharedImages(partial(_read, found, skip_bad=skip_bad)))


def _read(images: ImageTask, model: Model, *, skip_bad: bool) -> ImageTask:
    ready = images.for_model(model)
    return ready.readable() if skip_bad else ready

"""Images to rank models on: folders by domain and class, single files, archives, or drawn shapes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from assay.analyses.generalization.ranking_inputs import SharedStreams
from assay.core.errors import InputError
from assay.models import Model
from assay.tasks import (
    SHAPE_DOMAINS,
    DomainSource,
    EvalTransform,
    ImageInputs,
    ImageStream,
    ReadOptions,
    find_domains,
    is_shapes,
)
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
        labelled: Whether its images have labels; None: not known before they are read.
        read: From a model to its images at the model's size, normalised as it wants them; files are decoded
            when the task is run. Models that want the same pixels share the listing, and what is decoded.
        dataset: What the domain is part of: the folder of domains, or `shapes`.
    """

    name: str
    labelled: bool | None
    read: Callable[[Model], ImageInputs]
    dataset: str = ""


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
) -> list[Domain]:
    """The domains that paths and styles name.

    Args:
        images: Each a folder of domains (`DIR/DOMAIN/CLASS/*`), one domain (`DIR/CLASS/*`), a folder of
            images without labels, or an `.npz` archive.
        shapes: Styles of the drawn shapes.
        n: Images per domain; None: all of a folder, 400 drawn ones.
        seed: Of samples and drawn images.
        skip_bad: Leave out files that cannot be decoded.
        labels: False: folders are not classes; every image below a path belongs to one domain without labels.
        first: Number of the first drawn image.
        note: Told about files that were left out.

    Raises:
        FileFormatError: If a path does not exist.
        InputError: For a folder without images, or no path and no style.
        UnknownNameError: For an unknown style.
    """
    if not images and not shapes:
        raise InputError("images are missing; name a domain with --images DIR, or --shapes STYLE")
    options = ReadOptions(n=n, seed=seed, skip_bad=skip_bad)
    tell = note or (lambda text: None)
    sources: list[str | Path] = [*(f"{SHAPES}:{style}" for style in shapes), *images]
    return [
        Domain(
            name=domain.name,
            labelled=domain.labelled,
            read=SharedStreams(partial(_stream, domain, options), tell),
            dataset=SHAPES if is_shapes(source) else Path(source).absolute().name,
        )
        for source in sources
        for domain in find_domains(source, labels=labels, start=first, drawn=N_SHAPES)
    ]


def known_target(
    zoo: Zoo, path: Path | None, *, n: int | None, seed: int = 0, skip_bad: bool = False
) -> Domain | None:
    """Labelled images of the models' own domain: those given, or drawn for zoos trained on shapes.

    Args:
        zoo: The models.
        path: Folder or archive of one domain; None: drawn where the zoo's domain can be, else there is none.
        n: Images; None: all of a folder, 400 drawn ones.
        seed: Of the sample.
        skip_bad: Leave out files that cannot be decoded.

    Raises:
        InputError: If the path holds several domains.
    """
    if path is None and (zoo.id_domain not in SHAPE_DOMAINS or zoo.data.get("name", "shapes") != "shapes"):
        return None
    domains = targets(
        [] if path is None else [path],
        [] if path is not None or zoo.id_domain is None else [zoo.id_domain],
        n=n,
        seed=seed,
        skip_bad=skip_bad,
        first=FIRST_KNOWN,
    )
    if len(domains) != 1:
        names = ", ".join(each.name for each in domains)
        raise InputError(
            f"--id-images holds {len(domains)} domains ({names}); give the folder of one, DIR/CLASS/*"
        )
    return domains[0]


def _stream(domain: DomainSource, options: ReadOptions, model: Model) -> ImageStream:
    return domain.stream(replace(options, transform=EvalTransform.for_model(model)), model.classes)

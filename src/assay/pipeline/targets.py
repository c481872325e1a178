"""Images to rank models on: folders by domain and class, single files, or drawn shapes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from assay.tasks import SHAPE_DOMAINS, ImageTask, find_domains, is_shapes, one_domain
from assay.tasks.image_source import FIRST_FREE, SHAPES
from assay.zoo import Zoo


# Numbers of drawn images that no model of the embedded zoo was trained on; targets and known ones differ.
FIRST_TARGET, FIRST_KNOWN = FIRST_FREE, 1_000_000
N_SHAPES = 400
NAMED = 5  # files that a note names


def targets(
    sources: Sequence[str], *, n: int | None = None, seed: int = 0, skip_bad: bool = False
) -> list[tuple[str, ImageTask]]:
    """The domains that paths and styles name, each with what it is part of: a folder's name, or `shapes`.

    Args:
        sources: Each a folder of domains (`DIR/DOMAIN/CLASS/*`), one domain (`DIR/CLASS/*`), a folder of
            images without labels, or drawn shapes (`shapes:STYLE`).
        n: Images per domain; None: all of a folder, 400 drawn ones.
        seed: Of samples and drawn images.
        skip_bad: Leave out files that cannot be decoded.

    Raises:
        FileFormatError: If a path does not exist.
        InputError: For a folder without images.
        UnknownNameError: For an unknown style.
    """
    return [
        (SHAPES if is_shapes(source) else Path(source).absolute().name, _readable(found, skip_bad))
        for source in sources
        for found in find_domains(source, n=n, seed=seed, start=FIRST_TARGET, drawn=N_SHAPES).values()
    ]


def known_target(
    zoo: Zoo, path: Path | None, *, n: int | None, seed: int = 0, skip_bad: bool = False
) -> ImageTask | None:
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
    return _readable(found, skip_bad)


def _readable(images: ImageTask, skip_bad: bool) -> ImageTask:
    """All images, or those that can be decoded, whose notes name the first files that cannot."""
    if not skip_bad or not (found := images.readable()).skipped:
        return images
    more = ", ..." if len(found.skipped) > NAMED else ""
    return replace(found, notes=(*found.notes, f"not readable: {', '.join(found.skipped[:NAMED])}{more}"))

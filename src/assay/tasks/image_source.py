"""Images by name or place: one function behind every command and every `load_task` of an image classifier."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from assay.core.errors import FileFormatError, InputError, unknown_name
from assay.tasks.digits import COLOUR_DIGITS, digits_source, draw_digits
from assay.tasks.image_files import (
    SUFFIXES,
    image_files,
    list_domains,
    list_files,
    list_image_folder,
    list_imagenet_c,
)
from assay.tasks.image_listing import DEFAULTS, ImageListing, ReadOptions
from assay.tasks.image_set import ImageSet
from assay.tasks.image_shards import SHARDS, list_shards
from assay.tasks.image_stream import ImageStream
from assay.tasks.image_tables import ImageTable, is_table, table_source
from assay.tasks.image_transform import EvalTransform
from assay.tasks.shapes import SHAPE_DOMAINS, draw_shapes


SHAPES = "shapes"
FIRST_FREE = 20_000  # number of the first drawn image that no model of the embedded zoo was trained on
T = TypeVar("T")
Find = Callable[[ReadOptions, Sequence[str] | None], ImageListing | ImageSet]


def is_shapes(source: str | Path) -> bool:
    """Whether a source is drawn, `shapes` or `shapes:DOMAIN`.

    Raises:
        UnknownNameError: If there is no such domain.
    """
    name, _, domain = str(source).partition(":")
    if name != SHAPES:
        return False
    if domain and domain not in SHAPE_DOMAINS:
        raise unknown_name("style of shapes", domain, SHAPE_DOMAINS)
    return True


@dataclass(frozen=True, kw_only=True)
class DomainSource:
    """Images of one domain that can be read.

    Attributes:
        name: Of the domain.
        labelled: Whether its images have labels; None where only reading tells.
        find: From options and class names, or None for the data's own, to the images: listed, or drawn.
        classes: Classes that its folders or its table name; None where only reading tells.
        place: Folder or file of the images; None for drawn ones and rows of a table.
    """

    name: str
    labelled: bool | None
    find: Find
    classes: tuple[str, ...] | None = None
    place: Path | None = None

    def read(self, options: ReadOptions, classes: Sequence[str] | None) -> ImageSet:
        """The images in memory, after the geometry of the options' transform."""
        found = self.find(options, classes)
        return found if isinstance(found, ImageSet) else found.read(options)

    def stream(self, options: ReadOptions, classes: Sequence[str] | None) -> ImageStream:
        """The images as a task that decodes them whenever it is run; drawn ones stay in memory, in 8 bits."""
        found = self.find(options, classes)
        return found.stream(options.transform) if isinstance(found, ImageSet) else found.stream(options)


def find_domains(
    source: str | Path,
    *,
    labels: bool | None = None,
    start: int = 0,
    drawn: int = 300,
    by: Sequence[str] | None = None,
) -> list[DomainSource]:
    """The domains that a name or a path stands for; no image is read yet.

    Args:
        source: As in `read_source`.
        labels: False: folders are not classes, every image below a folder belongs to one unlabelled domain.
        start: Number of the first drawn image: images of other numbers are other images.
        drawn: Images per drawn domain where the options give no `n`.
        by: Columns of a table: a domain for each combination of their values. Empty: those of its layout.
            None: the table is one domain.

    Raises:
        UnknownNameError: If there is no such drawn domain, or no such column.
        FileFormatError: If nothing is at the path.
        InputError: If a folder holds no image, or things of several kinds.
    """
    if is_table(source):
        return _of_table(table_source(source), by)
    if by:
        raise InputError(
            f"domains by {', '.join(by)} need a table, and {source} is not one; give LAYOUT:DIR or a .csv"
        )
    if is_shapes(source):
        wanted = str(source).partition(":")[2]
        return [
            DomainSource(
                name=name, labelled=True, find=_drawn(partial(draw_shapes, name, start=start), drawn)
            )
            for name in ([wanted] if wanted else sorted(SHAPE_DOMAINS))
        ]
    if (digits := digits_source(source)) is not None:
        draw = partial(draw_digits, split="test", start=start)
        return [
            DomainSource(
                name=f"agreement-{agreement:g}",
                labelled=True,
                find=_drawn(partial(draw, agreement=agreement), drawn),
            )
            for agreement in sorted(digits.domains)
        ]
    path = Path(source)
    if path.suffix in SHARDS and path.is_file():
        return [_shards([path], path.stem)]
    if "*" in path.name and path.parent.is_dir():
        return [_shards(sorted(path.parent.glob(path.name)), path.parent.name)]
    if not path.is_dir():
        raise FileFormatError(
            f"{path} has no images; expected a folder, an .npz, .parquet, .tar or .csv file, shards as "
            f"'FOLDER/*.tar', '{COLOUR_DIGITS}' or '{COLOUR_DIGITS}:AGREEMENT', 'shapes' or "
            f"'shapes:DOMAIN' with a domain of {', '.join(SHAPE_DOMAINS)}"
        )
    return _folder(path, labels)


def read_source(
    source: str | Path,
    *,
    transform: EvalTransform,
    classes: Sequence[str] | None = None,
    options: ReadOptions = DEFAULTS,
    start: int = 0,
    drawn: int = 300,
) -> dict[str, ImageSet]:
    """The images that a name or a path stands for, by domain.

    Args:
        source: `shapes` or `shapes:DOMAIN`; `colour-digits` or `colour-digits:AGREEMENT` (of digits that no
            model was trained on); an `.npz`, `.parquet` or `.tar` file; a folder of such files, one per
            domain (a folder of `.tar` shards is one); shards of one domain as `folder/*.parquet`;
            `folder/DOMAIN/CLASS/IMAGE`; `folder/CORRUPTION/SEVERITY/CLASS/IMAGE`; `folder/CLASS/IMAGE`; a
            folder of unlabelled images; or a table as in `table_source`, which is one domain.
        transform: The model's; its geometry is applied while reading.
        classes: The model's class names, label 0 first; default: those of the data.
        options: Sample, seed, bad files; its transform does not count.
        start: Number of the first drawn image.
        drawn: Images per drawn domain where `options.n` is None.

    Returns:
        Domain to its images, sorted by domain.

    Raises:
        UnknownNameError: If there is no such drawn domain.
        FileFormatError: If nothing is at the path, or an image cannot be read and is not skipped.
        InputError: If a folder holds no image, or classes differ.

    Example:
        >>> sets = read_source("shapes:flat", transform=EvalTransform(resize=(32, 32)), drawn=4)
        >>> {domain: images.n for domain, images in sets.items()}
        {'flat': 4}
    """
    options = replace(options, transform=transform)
    domains = find_domains(source, start=start, drawn=drawn)
    return {each.name: each.read(options, classes) for each in domains}


def _drawn(draw: Callable[..., ImageSet], drawn: int) -> Find:
    """What `draw` makes of a number of images, a seed and a size."""

    def read(options: ReadOptions, classes: Sequence[str] | None) -> ImageSet:
        n = drawn if options.n is None else options.n
        side = _square(options.transform or EvalTransform(resize=None))
        return draw(n, seed=options.seed, size=side)

    return read


def _shards(paths: list[Path], name: str) -> DomainSource:
    return DomainSource(
        name=name,
        labelled=None,
        find=lambda options, classes: list_shards(paths, domain=name),
        place=paths[0] if len(paths) == 1 else None,
    )


def _folder(path: Path, labels: bool | None) -> list[DomainSource]:
    inside = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    folders = [each for each in inside if each.is_dir()]
    tables = [each for each in inside if each.suffix in SHARDS]
    images = [each for each in inside if each.suffix.lower() in SUFFIXES]
    if labels is False or not (folders or tables):
        return [_files(path)]
    if sum(map(bool, (folders, tables, images))) > 1:
        raise InputError(
            f"{path} mixes folders, archives and images ({len(folders)}, {len(tables)}, {len(images)}); "
            "give a folder with only one of the three"
        )
    if tables and all(each.suffix == ".tar" for each in tables):
        return [_shards(tables, path.name)]
    if tables:
        return [_shards([each], each.stem) for each in tables]
    below = {each.name for folder in folders for each in _folders(folder)}
    if below and below <= set("12345"):
        return _severities(path, folders)
    if below:
        return [_one_of(path, folder.name) for folder in folders]
    return [
        DomainSource(
            name=path.name,
            labelled=True,
            find=lambda options, classes: list_image_folder(path, classes=classes),
            classes=tuple(each.name for each in folders),
            place=path,
        )
    ]


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def _severities(root: Path, corruptions: list[Path]) -> list[DomainSource]:
    """The layout of ImageNet-C: a domain per corruption and severity, whose labels mean the same in all."""
    places = [severity for corruption in corruptions for severity in _folders(corruption)]
    every = sorted({each.name for place in places for each in _folders(place)})

    def one(place: Path) -> DomainSource:
        corruption, severity = place.parent.name, place.name
        return DomainSource(
            name=f"{corruption}/{severity}",
            labelled=True,
            find=lambda options, classes: list_imagenet_c(
                root, corruptions=[corruption], severities=[int(severity)], classes=classes or every
            )[f"{corruption}/{severity}"],
            classes=tuple(each.name for each in _folders(place)),
            place=place,
        )

    return [one(place) for place in places]


def _of_table(table: ImageTable, by: Sequence[str] | None) -> list[DomainSource]:
    """The rows of a table as one domain, or as one per combination of values of some columns."""
    if by is None:
        parts = {table.chosen or table.root.name: table}
    elif columns := by or table.layout.by:
        parts = table.by(columns)
    else:
        raise InputError(
            f"{table.root / table.layout.table} does not say which columns make domains; name them"
        )
    return [_rows_of(name, part) for name, part in parts.items()]


def _rows_of(name: str, table: ImageTable) -> DomainSource:
    return DomainSource(
        name=name,
        labelled=True,
        find=lambda options, classes: table.listing(domain=name),
        classes=table.class_names,
    )


def _one_of(root: Path, domain: str) -> DomainSource:
    """One domain of a root, with the labels that all its domains share."""
    return DomainSource(
        name=domain,
        labelled=True,
        find=lambda options, classes: list_domains(root, domains=[domain], classes=classes)[domain],
        classes=tuple(each.name for each in _folders(root / domain)),
        place=root / domain,
    )


def _files(folder: Path) -> DomainSource:
    """Every image below a folder, by name, without labels."""
    files = image_files(folder)
    if not files:
        raise InputError(f"{folder} has no images; give files such as .png or .jpg")
    return DomainSource(
        name=folder.name,
        labelled=False,
        find=lambda options, classes: list_files(files, domain=folder.name),
    )


def _square(transform: EvalTransform) -> int:
    """Side of drawn images, which are square."""
    side = transform.crop or transform.resize or 32
    height, width = (side, side) if isinstance(side, int) else side
    if height != width:
        raise InputError(
            f"images are drawn square, but the model reads {height} x {width}; give other images"
        )
    return height


def one_domain(sets: Mapping[str, T], source: str | Path) -> T:
    """The only domain of a source.

    Raises:
        InputError: If there are several; they are named.
    """
    if len(sets) != 1:
        raise InputError(
            f"{source} holds {len(sets)} domains ({', '.join(sorted(sets))}); name one of them, e.g. "
            f"{_named(source, min(sets))}"
        )
    return next(iter(sets.values()))


def _named(source: str | Path, domain: str) -> str:
    """How one domain of a source is named."""
    if digits_source(source) is not None:
        return f"{COLOUR_DIGITS}:{domain.removeprefix('agreement-')}"
    return f"{source}{':' if is_shapes(source) else '/'}{domain}"

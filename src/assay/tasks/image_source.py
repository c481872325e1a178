"""Images by name or place: one function behind every command and every `load_task` of an image classifier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assay.core.errors import FileFormatError, InputError, unknown_name
from assay.tasks.digits import COLOUR_DIGITS, digits_source, draw_digits
from assay.tasks.image_files import (
    DEFAULTS,
    SUFFIXES,
    ReadOptions,
    read_domains,
    read_image_folder,
    read_imagenet_c,
    read_images,
    read_npz,
    read_parquet,
)
from assay.tasks.image_set import ImageSet
from assay.tasks.image_tables import ImageTable, is_table, table_source
from assay.tasks.image_transform import EvalTransform
from assay.tasks.shapes import SHAPE_DOMAINS, draw_shapes


SHAPES = "shapes"
FIRST_FREE = 20_000  # number of the first drawn image that no model of the embedded zoo was trained on
_READERS = {".npz": read_npz, ".parquet": read_parquet}


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
        read: From options (their transform is applied) and class names, or None for the data's own, to the
            images.
        classes: Classes that its folders or its table name; None where only reading tells.
        place: Folder or file of the images; None for drawn ones and rows of a table.
    """

    name: str
    labelled: bool | None
    read: Callable[[ReadOptions, Sequence[str] | None], ImageSet]
    classes: tuple[str, ...] | None = None
    place: Path | None = None


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
            DomainSource(name=name, labelled=True, read=_drawn(name, start, drawn))
            for name in ([wanted] if wanted else sorted(SHAPE_DOMAINS))
        ]
    if (digits := digits_source(source)) is not None:
        return [
            DomainSource(
                name=f"agreement-{agreement:g}", labelled=True, read=_drawn_digits(agreement, start, drawn)
            )
            for agreement in sorted(digits.domains)
        ]
    path = Path(source)
    if path.suffix in _READERS and path.is_file():
        return [_archive(path)]
    if not path.is_dir():
        raise FileFormatError(
            f"{path} has no images; expected a folder, an .npz, .parquet or .csv file, '{COLOUR_DIGITS}' or "
            f"'{COLOUR_DIGITS}:AGREEMENT', 'shapes' or 'shapes:DOMAIN' with a domain of "
            f"{', '.join(SHAPE_DOMAINS)}"
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
            model was trained on); an `.npz` or `.parquet` file; a folder of such files, one per domain;
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


def _drawn(name: str, start: int, drawn: int) -> Callable[[ReadOptions, Sequence[str] | None], ImageSet]:
    def read(options: ReadOptions, classes: Sequence[str] | None) -> ImageSet:
        n = drawn if options.n is None else options.n
        side = _square(options.transform or EvalTransform(resize=None))
        return draw_shapes(name, n, seed=options.seed, size=side, start=start)

    return read


def _drawn_digits(
    agreement: float, start: int, drawn: int
) -> Callable[[ReadOptions, Sequence[str] | None], ImageSet]:
    def read(options: ReadOptions, classes: Sequence[str] | None) -> ImageSet:
        n = drawn if options.n is None else options.n
        side = _square(options.transform or EvalTransform(resize=None))
        return draw_digits(n, agreement=agreement, seed=options.seed, split="test", size=side, start=start)

    return read


def _archive(path: Path) -> DomainSource:
    reader = _READERS[path.suffix]
    return DomainSource(
        name=path.stem,
        labelled=None,
        read=lambda options, classes: reader(path, options=options),
        place=path,
    )


def _folder(path: Path, labels: bool | None) -> list[DomainSource]:
    inside = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    folders = [each for each in inside if each.is_dir()]
    tables = [each for each in inside if each.suffix in _READERS]
    images = [each for each in inside if each.suffix.lower() in SUFFIXES]
    if labels is False or not (folders or tables):
        return [_files(path)]
    if sum(map(bool, (folders, tables, images))) > 1:
        raise InputError(
            f"{path} mixes folders, archives and images ({len(folders)}, {len(tables)}, {len(images)}); "
            "give a folder with only one of the three"
        )
    if tables:
        return [_archive(each) for each in tables]
    below = {each.name for folder in folders for each in _folders(folder)}
    if below and below <= set("12345"):
        return _severities(path, folders)
    if below:
        return [_one_of(path, folder.name) for folder in folders]
    return [
        DomainSource(
            name=path.name,
            labelled=True,
            read=lambda options, classes: read_image_folder(path, classes=classes, options=options),
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
            read=lambda options, classes: read_imagenet_c(
                root,
                corruptions=[corruption],
                severities=[int(severity)],
                classes=classes or every,
                options=options,
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
        read=lambda options, classes: table.read(domain=name, options=options),
        classes=table.class_names,
    )


def _one_of(root: Path, domain: str) -> DomainSource:
    """One domain of a root, with the labels that all its domains share."""
    return DomainSource(
        name=domain,
        labelled=True,
        read=lambda options, classes: read_domains(root, domains=[domain], classes=classes, options=options)[
            domain
        ],
        classes=tuple(each.name for each in _folders(root / domain)),
        place=root / domain,
    )


def _files(folder: Path) -> DomainSource:
    """Every image below a folder, by name, without labels."""
    files = sorted(each for each in folder.rglob("*") if each.suffix.lower() in SUFFIXES)
    if not files:
        raise InputError(f"{folder} has no images; give files such as .png or .jpg")
    return DomainSource(
        name=folder.name,
        labelled=False,
        read=lambda options, classes: read_images(files, domain=folder.name, options=options),
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


def one_domain(sets: dict[str, ImageSet], source: str | Path) -> ImageSet:
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

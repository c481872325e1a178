"""Images by name or place: folders, tables of WILDS and others, drawn domains. No image is decoded here."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from assay.core.errors import FileFormatError, InputError, check_name, unknown_name
from assay.core.untrusted import malformed
from assay.tasks.digits import COLOUR_DIGITS, digits_source, draw_digits
from assay.tasks.image_reading import Files, Pictures, endings, image_paths, left_out
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask, by_size
from assay.tasks.shapes import SHAPE_DOMAINS, draw_shapes


SHAPES = "shapes"
FIRST_FREE = 20_000  # number of the first drawn image that no model of the embedded zoo was trained on


def is_shapes(source: str | Path) -> bool:
    """Whether a source is drawn, `shapes` or `shapes:DOMAIN`.

    Raises:
        UnknownNameError: If there is no such domain.
    """
    name, _, domain = str(source).partition(":")
    if name != SHAPES:
        return False
    if domain:
        check_name("style of shapes", domain, SHAPE_DOMAINS)
    return True


def find_domains(
    source: str | Path,
    *,
    labels: bool | None = None,
    by: Sequence[str] | None = None,
    n: int | None = None,
    seed: int = 0,
    start: int = 0,
    drawn: int = 300,
) -> dict[str, ImageTask]:
    """The images that a name or a path stands for, by domain; none is read yet.

    Args:
        source: `shapes` or `shapes:DOMAIN`; `colour-digits` or `colour-digits:AGREEMENT` (of digits that no
            model was trained on); `folder/DOMAIN/CLASS/IMAGE`; `folder/CORRUPTION/SEVERITY/CLASS/IMAGE`;
            `folder/CLASS/IMAGE`; a folder of unlabelled images; or a table as in `read_table`.
        labels: False: folders are not classes, every image below a folder belongs to one unlabelled domain.
        by: Columns of a table: a domain for each combination of their values. Empty: those of its layout.
            None: the table is one domain.
        n: A random sample of this many images of each domain; None, or more than there are: all.
        seed: Of the sample, or of the drawing.
        start: Number of the first drawn image: images of other numbers are other images.
        drawn: Images per drawn domain where there is no `n`.

    Returns:
        Domain to its images, sorted by domain; labels mean the same in all domains of a folder, also where
        one lacks a class. The `transform` is the model's that they are run on.

    Raises:
        UnknownNameError: If there is no such drawn domain, or no such column.
        FileFormatError: If nothing is at the path.
        InputError: If a folder holds no image, or things of several kinds.

    Example:
        >>> {domain: images.n for domain, images in find_domains("shapes:flat", n=4).items()}
        {'flat': 4}
    """
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the images")
    if is_table(source):
        domains = _of_table(str(source), by)
    elif by:
        raise InputError(
            f"domains by {', '.join(by)} need a table, and {source} is not one; give LAYOUT:DIR or a .csv"
        )
    elif is_shapes(source):
        wanted = str(source).partition(":")[2]
        return {
            name: _drawn(partial(draw_shapes, name), n or drawn, seed, start)
            for name in ([wanted] if wanted else sorted(SHAPE_DOMAINS))
        }
    elif (digits := digits_source(source)) is not None:
        return {
            f"agreement-{agreement:g}": _drawn(
                partial(draw_digits, agreement=agreement, split="test"), n or drawn, seed, start
            )
            for agreement in sorted(digits.domains)
        }
    elif not Path(source).is_dir():
        raise FileFormatError(
            f"{source} has no images; expected a folder, a .csv file, '{COLOUR_DIGITS}' or "
            f"'{COLOUR_DIGITS}:AGREEMENT', 'shapes' or 'shapes:DOMAIN' with a domain of "
            f"{', '.join(SHAPE_DOMAINS)}"
        )
    else:
        domains = _of_folder(Path(source), labels)
    sampled = {"n": n, "seed": seed}
    return {
        name: replace(
            images if n is None else images.sample(n, seed=seed), config={**images.config, **sampled}
        )
        for name, images in domains.items()
    }


def one_domain(domains: Mapping[str, ImageTask], source: str | Path) -> ImageTask:
    """The only domain of a source.

    Raises:
        InputError: If there are several; they are named.
    """
    if len(domains) == 1:
        return next(iter(domains.values()))
    first = min(domains)
    if digits_source(source) is not None:
        example = f"{COLOUR_DIGITS}:{first.removeprefix('agreement-')}"
    else:
        example = f"{source}{':' if is_shapes(source) else '/'}{first}"
    raise InputError(
        f"{source} holds {len(domains)} domains ({', '.join(sorted(domains))}); name one of them, e.g. "
        f"{example}"
    )


# -------------------------------------------------------------------------------------------------- drawn


class _Drawn(Pictures):
    """Pictures that are drawn at the size that a model reads."""

    def __init__(self, draw: partial[ImageTask], facts: ImageTask, seed: int) -> None:
        super().__init__()
        self._draw, self._name, self._ids, self._seed = draw, facts.name, facts.ids.tolist(), seed

    def __len__(self) -> int:
        return len(self._ids)

    def name(self, row: int) -> str:
        return f"{self._name}, image {self._ids[row]}"

    def content(self, row: int) -> None:
        """There is none: see `decoded`."""

    def decoded(self, row: int, transform: EvalTransform | None) -> tuple[UInt8[np.ndarray, "h w 3"], bool]:
        side = None if transform is None else transform.crop or transform.resize
        height, width = (side or 32, side or 32) if not isinstance(side, tuple) else side
        if height != width:
            raise InputError(
                f"images are drawn square, but the model reads {height} x {width}; give other images"
            )
        pixels = self._draw(1, seed=self._seed, size=height, start=self._ids[row]).pixels
        assert pixels is not None
        return pixels[0], False

    def marks(self, rows: Sequence[int]) -> Any:
        how = (self._draw.func.__name__, self._draw.args, self._draw.keywords)  # no address in memory
        yield f"{self._name} {how} {self._seed} {[self._ids[row] for row in rows]}"


def _drawn(draw: partial[ImageTask], n: int, seed: int, start: int) -> ImageTask:
    """Images of one drawn domain, numbered from `start`."""
    facts = draw(n, seed=seed, size=16, start=start)
    config = {name: value for name, value in facts.config.items() if name != "size"}
    return replace(facts, pixels=None, source=_Drawn(draw, facts, seed), config=config)


# ------------------------------------------------------------------------------------------------- folders


def read_files(
    paths: Sequence[str | Path],
    *,
    root: Path | None = None,
    domain: str = "",
    layout: str = "files",
    **facts: Any,
) -> ImageTask:
    """Single files, in the order given; without labels, what arrives at a deployed model.

    Args:
        paths: Image files.
        root: What they are relative to.
        domain: Name of the domain.
        layout: What the record calls their arrangement.
        facts: Further arguments of `ImageTask`, e.g. `labels`.

    Raises:
        InputError: If there is none.
    """
    names = [str(path) for path in paths]
    name = domain if root is None else root.name
    return ImageTask(
        source=Files(names, root),
        domain=domain,
        name=name,
        config={"layout": layout, "source": name},
        **{"fields": {"path": names}, **facts},
    )


def _of_folder(root: Path, labels: bool | None) -> dict[str, ImageTask]:
    """Domains of a folder: its classes one level below, or two, or three (ImageNet-C)."""
    folders = _folders(root)
    if labels is False or not folders:
        paths, others = image_paths(root)
        if not paths:
            raise InputError(f"{root} has no images; give files such as .png or .jpg")
        return {root.name: read_files(paths, domain=root.name, notes=left_out(others, root.name))}
    below = {each.name for folder in folders for each in _folders(folder)}
    if not below:
        domains = {root.name: root}
    elif below <= set("12345"):
        domains = {f"{each.name}/{part.name}": part for each in folders for part in _folders(each)}
    else:
        domains = {each.name: each for each in folders}
    classes = sorted({each.name for folder in domains.values() for each in _folders(folder)})
    for folder in {root, *domains.values()}:
        loose = [
            each.name for each in folder.iterdir() if each.suffix.lower() in endings() and each.is_file()
        ]
        if loose:
            raise InputError(
                f"{folder} mixes {len(_folders(folder))} folders and {len(loose)} images, e.g. {loose[0]}; "
                "give a folder with only one of the two"
            )
    return {name: _of_classes(folder, classes, name) for name, folder in domains.items()}


def _of_classes(folder: Path, classes: Sequence[str], domain: str) -> ImageTask:
    """One domain, `folder/CLASS/*`: the layout of ImageNet, its V2 and Sketch."""
    paths, others = image_paths(folder)
    names = [path.relative_to(folder) for path in paths]
    names = [name for name in names if name.parts[0] in classes]  # not those in hidden folders
    if not names:
        raise InputError(f"domain {domain!r} has no images; expected {folder.name}/CLASS/IMAGE")
    labels = torch.tensor([classes.index(name.parts[0]) for name in names])
    return read_files(
        names,
        root=folder,
        domain=domain,
        layout="image-folder",
        labels=labels,
        classes=tuple(classes),
        notes=left_out(others, domain),
    )


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


# -------------------------------------------------------------------------------------------------- tables


Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """How a CSV file describes images beside it.

    Attributes:
        table: The CSV file below the root.
        path: Where an image lies below the root, with columns in braces; `{row}` is the number of the row.
        label: Column of the class.
        classes: Value of that column to the name of the class, in the order of labels; None: those present in
            the table, sorted (whole numbers by size).
        derive: Adds columns: from a row and the region of each country to a new row, None to leave it out.
        by: Columns that make domains unless others are named.
        no_domain: Column -> values that are not a domain of that column.
    """

    table: str = "metadata.csv"
    path: str = "{path}"
    label: str = "label"
    classes: Mapping[str, str] | None = None
    derive: Callable[[Row, Mapping[str, str]], Row | None] = lambda row, regions: row
    by: tuple[str, ...] = ()
    no_domain: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _camelyon17(row: Row, regions: Mapping[str, str]) -> Row:
    """Official split of WILDS: hospital 1 validates out of distribution, hospital 2 tests."""
    split = {"0": "train", "1": "id_val"}.get(row["split"], row["split"])
    held_out = {"1": "val", "2": "test"}
    return {**row, "hospital": row["center"], "wilds_split": held_out.get(row["center"], split)}


def _fmow(row: Row, regions: Mapping[str, str]) -> Row | None:
    """Official split of WILDS by time and region; sequestered images are left out."""
    if row["split"] == "seq":
        return None
    year = int(row["timestamp"][:4])
    period = "val" if year < 2016 else "test"
    if year < 2013:
        split = {"val": "id_val", "test": "id_test"}.get(row["split"], row["split"])
    else:
        split = period if row["split"] == period else ""
    region = regions.get(row["country_code"], "Other")
    return {**row, "wilds_split": split, "region": region, "year": str(year)}


_WILDS: Mapping[str, _Layout] = {
    "camelyon17": _Layout(
        path="patches/patient_{patient}_node_{node}/"
        "patch_patient_{patient}_node_{node}_x_{x_coord}_y_{y_coord}.png",
        label="tumor",
        classes={"0": "normal", "1": "tumor"},
        derive=_camelyon17,
        by=("hospital", "slide"),
    ),
    "fmow": _Layout(
        table="rgb_metadata.csv",
        path="images/rgb_img_{row}.png",
        label="category",
        derive=_fmow,
        by=("region", "wilds_split"),
        no_domain={"region": ("Other",), "wilds_split": ("",)},
    ),
    "iwildcam": _Layout(
        path="train/{filename}",
        label="y",
        derive=lambda row, regions: {**row, "wilds_split": row["split"]},
        by=("location_remapped",),
    ),
}


def is_table(source: str | Path) -> bool:
    """Whether a source names a table, `camelyon17:DIR`, `fmow:DIR`, `iwildcam:DIR` or a `.csv` file."""
    return str(source).partition(":")[0] in _WILDS or _parted(str(source))[0].endswith(".csv")


def read_table(source: str | Path) -> ImageTask:
    """Images that a table describes; every column becomes a field, and no image is read yet.

    `ImageTask.by_field` then makes domains of columns (hospital, slide, region).

    Args:
        source: A `.csv` file with the columns `path` (relative to the file) and `label`; or `LAYOUT:DIR`, one
            of the layouts `camelyon17`, `fmow` and `iwildcam` of WILDS and the folder of its table, which get
            the column `wilds_split` (train, id_val, id_test, val, test), Camelyon17 also `hospital`, and FMoW
            `region` and `year`. Behind it any number of `:COLUMN=VALUE,VALUE` (rows to keep) and
            `:COLUMN!=VALUE,VALUE` (rows to leave out).

    Raises:
        FileFormatError: If the table is missing or cannot be read.
        UnknownNameError: If there is no such column.
        InputError: If no row is left.

    References:
        Koh et al. 2021, WILDS, arXiv:2012.07421.

    Example:
        `fmow:data/fmow_v1.1:wilds_split=val,test` are the images of FMoW's later years.
    """
    text = str(source)
    if text.partition(":")[0] in _WILDS:
        key, _, text = text.partition(":")
        layout, root = _WILDS[key], Path(_parted(text)[0])
    else:
        file = Path(_parted(text)[0])
        layout, root = _Layout(table=file.name), file.parent
    table = root / layout.table
    conditions = _parted(text)[1]
    with malformed(table, "a table of this layout"):
        try:
            rows = _rows(root, layout)
            names = sorted({row[layout.label] for row in rows.values()}, key=by_size)
            for column, is_kept, values in conditions:
                rows = {number: row for number, row in rows.items() if (row[column] in values) is is_kept}
            paths = [_below(root, layout.path.format(**row)) for row in rows.values()]
        except KeyError as error:
            columns = {column for row in _table(table) for column in row}
            raise unknown_name(f"column of {table}", error.args[0], columns) from error
    chosen = "+".join(
        f"{column}{'=' if is_kept else '!='}{','.join(values)}" for column, is_kept, values in conditions
    )
    if not rows:
        raise InputError(f"no row of {table} has {chosen or 'an image'}; check its values")
    classes = layout.classes or {name: name for name in names}
    place = {value: label for label, value in enumerate(classes)}
    if strange := sorted({row[layout.label] for row in rows.values()} - place.keys()):
        raise InputError(f"column {layout.label!r} of {table} holds {strange}, not among {list(place)}")
    shown = [name for name in next(iter(rows.values())) if name]
    images = read_files(
        paths,
        root=root,
        domain=chosen or root.name,
        layout="table",
        labels=torch.tensor([place[row[layout.label]] for row in rows.values()]),
        ids=torch.tensor(list(rows)),
        fields={name: [row[name] for row in rows.values()] for name in shown},
        classes=tuple(classes.values()),
    )
    return replace(images, config={**images.config, "where": chosen})


def _of_table(source: str, by: Sequence[str] | None) -> dict[str, ImageTask]:
    """The rows of a table as one domain, or as one per combination of values of some columns."""
    images, layout = read_table(source), _WILDS.get(source.partition(":")[0], _Layout())
    if by is None:
        return {images.domain: images}
    columns = tuple(by) or layout.by
    if not columns:
        raise InputError(f"{source} does not say which columns make domains; name them")
    for column in set(columns) & layout.no_domain.keys():
        values = images.fields[column]
        images = images.subset(
            [row for row in range(images.n) if values[row] not in layout.no_domain[column]]
        )
    return images.by_field(*columns)


def _parted(text: str) -> tuple[str, list[tuple[str, bool, list[str]]]]:
    """A source without the conditions behind it; and of each the column, whether to keep, and the values."""
    pieces, conditions = text.split(":"), []
    while len(pieces) > 1 and "=" in pieces[-1]:
        column, _, values = pieces.pop().partition("=")
        conditions.append((column.removesuffix("!"), not column.endswith("!"), values.split(",")))
    return ":".join(pieces), conditions[::-1]


def _rows(root: Path, layout: _Layout) -> dict[int, Row]:
    """Rows of a table by their number, with the columns that its layout adds."""
    listed = [{**row, "row": str(number)} for number, row in enumerate(_table(root / layout.table))]
    regions: dict[str, str] = {}
    if layout.derive is _fmow:
        regions = {row["alpha-3"]: row["region"] for row in _table(root / "country_code_mapping.csv")}
    derived = {number: layout.derive(row, regions) for number, row in enumerate(listed)}
    return {number: row for number, row in derived.items() if row is not None}


def _below(root: Path, path: str) -> str:
    """The path of a row's image, which a table cannot send elsewhere."""
    if "\0" in path or ".." in Path(path).parts or Path(path).is_absolute():
        raise FileFormatError(
            f"a row of the table in {root} names the image {path!r}, which must lie below {root}"
        )
    return path


def _table(path: Path) -> list[Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"cannot read the table {path}: {error}") from error
    short = [number for number, row in enumerate(rows) if None in row or None in row.values()]
    if not rows or short:
        fact = f"row {short[0]} and the header differ in the number of columns" if short else "it has no rows"
        raise FileFormatError(f"cannot use the table {path}: {fact}")
    return rows

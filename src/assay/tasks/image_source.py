"""Images by name or place: folders, tables of WILDS and others, drawn domains. No image is decoded here."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import UInt8

from assay.core.errors import FileFormatError, InputError, check_name
from assay.core.untrusted import malformed
from assay.tasks.digits import COLOUR_DIGITS, digits_source, draw_digits
from assay.tasks.image_reading import Files, Pictures, endings, image_paths, left_out
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask
from assay.tasks.rows import by_size
from assay.tasks.shapes import SHAPE_DOMAINS, draw_shapes


if TYPE_CHECKING:
    from pandas import DataFrame


SHAPES = "shapes"
FIRST_FREE = 20_000  # number of the first drawn image that no model of the embedded zoo was trained on


def is_shapes(source: str | Path) -> bool:
    """Whether a source is drawn, `shapes` or `shapes:DOMAIN`.

    Raises:
        UnknownNameError: If there is no such domain.
    """
    name, _, domain = str(source).partition(":")
    if name == SHAPES and domain:
        check_name("style of shapes", domain, SHAPE_DOMAINS)
    return name == SHAPES


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
    if by and not is_table(source):
        raise InputError(
            f"domains by {', '.join(by)} need a table, and {source} is not one; give LAYOUT:DIR or a .csv"
        )
    if is_shapes(source):
        wanted = str(source).partition(":")[2]
        styles = [wanted] if wanted else sorted(SHAPE_DOMAINS)
        return {name: _drawn(partial(draw_shapes, name), n or drawn, seed, start) for name in styles}
    if (digits := digits_source(source)) is not None:
        draws = {share: partial(draw_digits, agreement=share, split="test") for share in digits.domains}
        return {
            f"agreement-{share:g}": _drawn(draws[share], n or drawn, seed, start) for share in sorted(draws)
        }
    if is_table(source):
        domains = _of_table(str(source), by)
    elif Path(source).is_dir():
        domains = _of_folder(Path(source), labels)
    else:
        raise FileFormatError(
            f"{source} has no images; expected a folder, a .csv file, '{COLOUR_DIGITS}' or "
            f"'{COLOUR_DIGITS}:AGREEMENT', 'shapes' or 'shapes:DOMAIN' with a domain of "
            f"{', '.join(SHAPE_DOMAINS)}"
        )
    if n is not None:
        domains = {name: images.sample(n, seed=seed) for name, images in domains.items()}
    return {
        name: replace(images, config={**images.config, "n": n, "seed": seed})
        for name, images in domains.items()
    }


def one_domain(domains: Mapping[str, ImageTask], source: str | Path) -> ImageTask:
    """The only domain of a source.

    Raises:
        InputError: If there are several; they are named.
    """
    if len(domains) == 1:
        return next(iter(domains.values()))
    first = min(domains).removeprefix("agreement-")
    between = ":" if is_shapes(source) or digits_source(source) is not None else "/"
    raise InputError(
        f"{source} holds {len(domains)} domains ({', '.join(sorted(domains))}); name one of them, e.g. "
        f"{source}{between}{first}"
    )


# -------------------------------------------------------------------------------------------------- drawn


class _Drawn(Pictures):
    """Pictures that are drawn at the size that a model reads."""

    def __init__(self, draw: partial[ImageTask], name: str, ids: Sequence[int], seed: int) -> None:
        super().__init__(len(ids), name)
        self._draw, self._ids, self._seed = draw, ids, seed

    def name(self, row: int) -> str:
        return f"{self._title}, image {self._ids[row]}"

    def content(self, row: int) -> None:
        """There is none: see `decoded`."""

    def decoded(self, row: int, transform: EvalTransform | None) -> tuple[UInt8[np.ndarray, "h w 3"], bool]:
        side = (transform and (transform.crop or transform.resize)) or 32
        height, width = side if isinstance(side, tuple) else (side, side)
        if height != width:
            raise InputError(
                f"images are drawn square, but the model reads {height} x {width}; give other images"
            )
        pixels = self._draw(1, seed=self._seed, size=height, start=self._ids[row]).pixels
        assert pixels is not None
        return pixels[0], False

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        how = (self._draw.func.__name__, self._draw.args, self._draw.keywords)  # no address in memory
        yield f"{self._title} {how} {self._seed} {[self._ids[row] for row in rows]}"


def _drawn(draw: partial[ImageTask], n: int, seed: int, start: int) -> ImageTask:
    """Images of one drawn domain, numbered from `start`."""
    facts = draw(n, seed=seed, size=16, start=start)
    source = _Drawn(draw, facts.name, facts.ids.tolist(), seed)
    config = {name: value for name, value in facts.config.items() if name != "size"}
    return replace(facts, pixels=None, source=source, config=config)


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
    for folder in {root, *domains.values()}:
        files = [each.name for each in folder.iterdir() if each.suffix.lower() in endings()]
        if files:
            raise InputError(
                f"{folder} mixes {len(_folders(folder))} folders and {len(files)} images, e.g. {files[0]}; "
                "give a folder with only one of the two"
            )
    classes = sorted({each.name for folder in domains.values() for each in _folders(folder)})
    return {name: _of_classes(folder, classes, name) for name, folder in domains.items()}


def _of_classes(folder: Path, classes: Sequence[str], domain: str) -> ImageTask:
    """One domain, `folder/CLASS/*`: the layout of ImageNet, its V2 and Sketch."""
    paths, others = image_paths(folder)
    names = [path.relative_to(folder) for path in paths]
    names = [name for name in names if name.parts[0] in classes]  # not those in hidden folders
    if not names:
        raise InputError(f"domain {domain!r} has no images; expected {folder.name}/CLASS/IMAGE")
    return read_files(
        names,
        root=folder,
        domain=domain,
        layout="image-folder",
        labels=torch.tensor([classes.index(name.parts[0]) for name in names]),
        classes=tuple(classes),
        notes=left_out(others, domain),
    )


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


# -------------------------------------------------------------------------------------------------- tables
#
# A layout of WILDS adds to the rows of its table `path`, `label` and what the benchmark splits by.


def _camelyon17(table: "DataFrame", root: Path) -> "DataFrame":
    """Official split of WILDS: hospital 1 validates out of distribution, hospital 2 tests."""
    patch = "patient_" + table["patient"] + "_node_" + table["node"]
    place = "_x_" + table["x_coord"] + "_y_" + table["y_coord"] + ".png"
    within = table["split"].replace({"0": "train", "1": "id_val"})
    return table.assign(
        hospital=table["center"],
        wilds_split=table["center"].map({"1": "val", "2": "test"}).fillna(within),
        path="patches/" + patch + "/patch_" + patch + place,
        label=table["tumor"].replace({"0": "normal", "1": "tumor"}),
    )


def _fmow(table: "DataFrame", root: Path) -> "DataFrame":
    """Official split of WILDS by time and region; sequestered images are left out."""
    regions = _read_csv(root / "country_code_mapping.csv").set_index("alpha-3")["region"]
    year, split = table["timestamp"].str[:4].astype(int), table["split"]
    period = np.where(year < 2016, "val", "test")
    later, early = np.where(split == period, period, ""), split.replace({"val": "id_val", "test": "id_test"})
    known = table.assign(
        wilds_split=np.where(year < 2013, early, later),
        region=table["country_code"].map(regions).fillna("Other"),
        year=year.astype(str),
        path="images/rgb_img_" + table.index.astype(str) + ".png",
        label=table["category"],
    )
    return known[split != "seq"]


def _iwildcam(table: "DataFrame", root: Path) -> "DataFrame":
    return table.assign(wilds_split=table["split"], path="train/" + table["filename"], label=table["y"])


# Of each layout: its table, what it adds, and the columns whose values are domains unless others are named.
_WILDS = {
    "camelyon17": ("metadata.csv", _camelyon17, ("hospital", "slide")),
    "fmow": ("rgb_metadata.csv", _fmow, ("region", "wilds_split")),
    "iwildcam": ("metadata.csv", _iwildcam, ("location_remapped",)),
}
_NO_DOMAIN = {"region": "Other", "wilds_split": ""}  # values of FMoW that are not a domain of their column


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
    text, conditions = _parted(str(source))
    layout, _, root = text.partition(":")
    file = Path(root) / _WILDS[layout][0] if layout in _WILDS else Path(text)
    table = _read_csv(file)
    if layout in _WILDS:
        with malformed(file, f"a table of {layout}"):
            table = _WILDS[layout][1](table, file.parent)
    for column in ("path", "label", *(column for column, _, _ in conditions)):
        check_name(f"column of {file}", column, list(map(str, table)))
    classes = sorted(set(table["label"]), key=by_size)
    for column, keep, values in conditions:
        table = table[table[column].isin(values) == keep]
    chosen = "+".join(
        f"{column}{'=' if keep else '!='}{','.join(values)}" for column, keep, values in conditions
    )
    if table.empty:
        raise InputError(f"no row of {file} has {chosen or 'an image'}; check its values")
    for path in table["path"]:
        if "\0" in path or ".." in Path(path).parts or Path(path).is_absolute():
            raise FileFormatError(f"a row of {file} names the image {path!r}, which must lie beside it")
    images = read_files(
        list(table["path"]),
        root=file.parent,
        domain=chosen or file.parent.name,
        layout="table",
        labels=torch.tensor([classes.index(label) for label in table["label"]]),
        ids=torch.tensor(table.index),
        fields={str(column): list(table[column]) for column in table},
        classes=tuple(classes),
    )
    return replace(images, config={**images.config, "where": chosen})


def _of_table(source: str, by: Sequence[str] | None) -> dict[str, ImageTask]:
    """The rows of a table as one domain, or as one per combination of values of some columns."""
    images = read_table(source)
    if by is None:
        return {images.domain: images}
    layout = source.partition(":")[0]
    columns = tuple(by) or (_WILDS[layout][2] if layout in _WILDS else ())
    if not columns:
        raise InputError(f"{source} does not say which columns make domains; name them")
    if layout == "fmow":
        limits = [(images.fields[column], _NO_DOMAIN[column]) for column in columns if column in _NO_DOMAIN]
        rows = range(images.n)
        images = images.subset([row for row in rows if all(values[row] != none for values, none in limits)])
    return images.by_field(*columns)


def _parted(text: str) -> tuple[str, list[tuple[str, bool, list[str]]]]:
    """A source without the conditions behind it; and of each the column, whether to keep, and the values."""
    pieces, conditions = text.split(":"), []
    while len(pieces) > 1 and "=" in pieces[-1]:
        column, _, values = pieces.pop().partition("=")
        conditions.append((column.removesuffix("!"), not column.endswith("!"), values.split(",")))
    return ":".join(pieces), conditions[::-1]


def _read_csv(path: Path) -> "DataFrame":
    """The cells of a table as text, without a column of row numbers that has no name."""
    import pandas as pd  # not above: folders are read without it

    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = pd.DataFrame(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"cannot read the table {path}: {error}") from error
    if table.empty or None in table or table.isna().any(axis=None):
        raise FileFormatError(f"the table {path} has no rows, or some do not have the columns of the header")
    return table.drop(columns="", errors="ignore")

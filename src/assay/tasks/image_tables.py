"""Images listed by a table: WILDS and any CSV or Parquet of paths, labels and domains."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.core.errors import (
    FileFormatError,
    InputError,
    unknown_name,
)
from assay.tasks.image_decoding import Files
from assay.tasks.image_files import checked_folder
from assay.tasks.image_listing import DEFAULTS, ImageListing, ReadOptions
from assay.tasks.image_set import ImageSet


Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """How a CSV file describes images beside it.

    Attributes:
        table: The CSV file below the root.
        path: Where an image lies below the root, with columns in braces; `{row}` is the number of the row.
        label: Column of the class.
        classes: Values of that column in the order of labels; None: those present in the table, sorted.
        class_names: What to call them, if not by their values.
        derive: Adds columns: from the rows and the root to new rows, None for a row to leave out.
    """

    table: str = "metadata.csv"
    path: str
    label: str
    classes: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    derive: Callable[[list[Row], Path], list[Row | None]] | None = None


def _camelyon17(rows: list[Row], root: Path) -> list[Row | None]:
    """Official split of WILDS: hospital 1 validates out of distribution, hospital 2 tests."""
    splits = {"0": "train", "1": "id_val"}
    held_out = {"1": "val", "2": "test"}
    return [
        {**row, "wilds_split": held_out.get(row["center"], splits.get(row["split"], row["split"]))}
        for row in rows
    ]


def _fmow(rows: list[Row], root: Path) -> list[Row | None]:
    """Official split of WILDS by time and region; sequestered images are left out."""
    regions = {row["alpha-3"]: row["region"] for row in _table(root / "country_code_mapping.csv")}
    derived: list[Row | None] = []
    for row in rows:
        year = int(row["timestamp"][:4])
        if year < 2013:
            split = {"val": "id_val", "test": "id_test"}.get(row["split"], row["split"])
        else:
            period = "val" if year < 2016 else "test"
            split = period if row["split"] == period else ""
        facts = {**row, "wilds_split": split, "region": regions.get(row["country_code"], "Other")}
        derived.append(None if row["split"] == "seq" else facts)
    return derived


WILDS_LAYOUTS: Mapping[str, TableLayout] = {
    "camelyon17": TableLayout(
        path="patches/patient_{patient}_node_{node}/"
        "patch_patient_{patient}_node_{node}_x_{x_coord}_y_{y_coord}.png",
        label="tumor",
        classes=("0", "1"),
        class_names=("normal", "tumor"),
        derive=_camelyon17,
    ),
    "fmow": TableLayout(
        table="rgb_metadata.csv", path="images/rgb_img_{row}.png", label="category", derive=_fmow
    ),
}


def read_table(
    root: str | Path,
    layout: TableLayout | str,
    *,
    where: Mapping[str, str | Sequence[str]] | None = None,
    domain: str | None = None,
    options: ReadOptions = DEFAULTS,
) -> ImageSet:
    """`list_table`, read; the sample is drawn after `where`."""
    return list_table(root, layout, where=where, domain=domain).read(options)


def list_table(
    root: str | Path,
    layout: TableLayout | str,
    *,
    where: Mapping[str, str | Sequence[str]] | None = None,
    domain: str | None = None,
) -> ImageListing:
    """Images that a table of metadata describes; every column becomes a field.

    `ImageSet.by_field` then makes domains of a column (hospital, slide, region).

    Args:
        root: Folder that the table and the paths are relative to.
        layout: A description, or `camelyon17` or `fmow` for those of WILDS, which get the columns
            `wilds_split` (train, id_val, id_test, val, test) and, for FMoW, `region`.
        where: Column to the value or values to keep, e.g. `{"center": "1"}`.
        domain: Name of the domain. Default: the values kept, or the folder's name.

    Raises:
        FileFormatError: If the table is missing or cannot be read.
        UnknownNameError: If there is no such layout or column.
        InputError: If no row is kept, or a label is none of the classes.

    References:
        Koh et al. 2021, WILDS, arXiv:2012.07421.
    """
    root = checked_folder(root)
    if isinstance(layout, str):
        if layout not in WILDS_LAYOUTS:
            raise unknown_name("layout", layout, WILDS_LAYOUTS)
        layout = WILDS_LAYOUTS[layout]
    rows: list[Row | None] = [
        {**row, "row": str(number)} for number, row in enumerate(_table(root / layout.table))
    ]
    try:
        if layout.derive is not None:
            rows = layout.derive([row for row in rows if row is not None], root)
        kept = {number: row for number, row in enumerate(rows) if row is not None}
        names = layout.classes or tuple(sorted({row[layout.label] for row in kept.values()}))
        for column, values in (where or {}).items():
            allowed = {values} if isinstance(values, str) else set(values)
            kept = {number: row for number, row in kept.items() if row[column] in allowed}
        sources = [_below(root, layout.path.format(**row)) for row in kept.values()]
        held = {row[layout.label] for row in kept.values()}
    except KeyError as error:
        columns = {name for row in rows if row is not None for name in row}
        raise unknown_name(f"column of {root / layout.table}", error.args[0], columns) from error
    chosen = "+".join(f"{c}={v if isinstance(v, str) else ','.join(v)}" for c, v in (where or {}).items())
    if not kept:
        raise InputError(f"no row of {root / layout.table} has {chosen or 'an image'}; check its values")
    strange = sorted(held - set(names))
    if strange:
        raise InputError(
            f"column {layout.label!r} of {root / layout.table} holds {strange}, not among {names}"
        )
    named = [name for name in next(iter(kept.values())) if name]
    return ImageListing(
        pictures=Files(sources, root),
        labels=np.array([names.index(row[layout.label]) for row in kept.values()], dtype=np.int64),
        ids=np.array(list(kept), dtype=np.int64),
        fields={name: [row.get(name, "") for row in kept.values()] for name in named},
        classes=layout.class_names or names,
        domain=domain or chosen or root.name,
        config={"layout": "table", "source": root.name, "where": chosen},
    )


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

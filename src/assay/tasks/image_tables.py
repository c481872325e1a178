"""Images listed by a table: WILDS and any CSV of paths, labels and domains."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from assay.core.errors import (
    FileFormatError,
    InputError,
    check_name,
    unknown_name,
)
from assay.core.untrusted import malformed
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
        classes: Values of that column in the order of labels; None: those present in the table, sorted
            (whole numbers by size).
        class_names: What to call them, if not by their values.
        derive: Adds columns: from the rows and the root to new rows, None for a row to leave out.
        by: Columns that make domains unless others are named.
        no_domain: Column -> values that are not a domain of that column.
    """

    table: str = "metadata.csv"
    path: str
    label: str
    classes: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    derive: Callable[[list[Row], Path], list[Row | None]] | None = None
    by: tuple[str, ...] = ()
    no_domain: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _camelyon17(rows: list[Row], root: Path) -> list[Row | None]:
    """Official split of WILDS: hospital 1 validates out of distribution, hospital 2 tests."""
    splits = {"0": "train", "1": "id_val"}
    held_out = {"1": "val", "2": "test"}
    return [
        {
            **row,
            "hospital": row["center"],
            "wilds_split": held_out.get(row["center"], splits.get(row["split"], row["split"])),
        }
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
        region = regions.get(row["country_code"], "Other")
        facts = {**row, "wilds_split": split, "region": region, "year": str(year)}
        derived.append(None if row["split"] == "seq" else facts)
    return derived


def _iwildcam(rows: list[Row], root: Path) -> list[Row | None]:
    """Official split of WILDS, by camera."""
    return [{**row, "wilds_split": row["split"]} for row in rows]


WILDS_LAYOUTS: Mapping[str, TableLayout] = {
    "camelyon17": TableLayout(
        path="patches/patient_{patient}_node_{node}/"
        "patch_patient_{patient}_node_{node}_x_{x_coord}_y_{y_coord}.png",
        label="tumor",
        classes=("0", "1"),
        class_names=("normal", "tumor"),
        derive=_camelyon17,
        by=("hospital", "slide"),
    ),
    "fmow": TableLayout(
        table="rgb_metadata.csv",
        path="images/rgb_img_{row}.png",
        label="category",
        derive=_fmow,
        by=("region", "wilds_split"),
        no_domain={"region": ("Other",), "wilds_split": ("",)},
    ),
    "iwildcam": TableLayout(path="train/{filename}", label="y", derive=_iwildcam, by=("location_remapped",)),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTable:
    """Rows of a table of images, before any image is read.

    Attributes:
        root: Folder that the table and the paths are relative to.
        layout: How it describes them.
        rows: Number of the row in the file -> its columns.
        classes: Values of the column of labels, label 0 first.
        chosen: The condition on the rows, for names; empty without one.
    """

    root: Path
    layout: TableLayout
    rows: Mapping[int, Row]
    classes: tuple[str, ...]
    chosen: str = ""

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called, label 0 first."""
        return self.layout.class_names or self.classes

    def where(self, conditions: Mapping[str, str | Sequence[str]], *, exclude: bool = False) -> "ImageTable":
        """The rows whose columns have these values.

        Args:
            conditions: Column to the value or values.
            exclude: Keep the other rows instead.

        Raises:
            UnknownNameError: If there is no such column.
            InputError: If no row is left.
        """
        rows = dict(self.rows)
        sign = "!=" if exclude else "="
        texts = [self.chosen] if self.chosen else []
        for column, values in conditions.items():
            self._check_column(column)
            allowed = {values} if isinstance(values, str) else set(values)
            rows = {number: row for number, row in rows.items() if (row[column] in allowed) != exclude}
            texts.append(f"{column}{sign}{values if isinstance(values, str) else ','.join(values)}")
        chosen = "+".join(texts)
        if not rows:
            raise InputError(
                f"no row of {self.root / self.layout.table} has {chosen or 'an image'}; check its values"
            )
        return replace(self, rows=rows, chosen=chosen)

    def by(self, columns: Sequence[str]) -> "dict[str, ImageTable]":
        """One table per combination of values of some columns that occurs, sorted; it is named by them.

        Values that are numbers are named with their column, as `slide 7`. Values that the layout does not
        count as domains (FMoW's region `Other`) are left out.

        Raises:
            UnknownNameError: If there is no such column.
        """
        parts: dict[tuple[str, ...], dict[int, Row]] = {}
        for column in columns:
            self._check_column(column)
        for number, row in self.rows.items():
            values = tuple(row[column] for column in columns)
            left_out = (self.layout.no_domain.get(column, ()) for column in columns)
            if not any(value in none for value, none in zip(values, left_out, strict=True)):
                parts.setdefault(values, {})[number] = row
        found = {}
        for values in sorted(parts, key=lambda each: [_by_size(value) for value in each]):
            named = zip(columns, values, strict=True)
            name = "/".join(f"{column} {value}" if value.isdecimal() else value for column, value in named)
            found[name] = replace(self, rows=parts[values])
        return found

    def listing(self, *, domain: str | None = None) -> ImageListing:
        """The images of the rows, see `list_table`."""
        table = self.root / self.layout.table
        try:
            sources = [_below(self.root, self.layout.path.format(**row)) for row in self.rows.values()]
        except KeyError as error:
            raise unknown_name(f"column of {table}", error.args[0], self._columns) from error
        strange = sorted({row[self.layout.label] for row in self.rows.values()} - set(self.classes))
        if strange:
            raise InputError(
                f"column {self.layout.label!r} of {table} holds {strange}, not among {self.classes}"
            )
        place = {name: label for label, name in enumerate(self.classes)}
        named = [name for name in next(iter(self.rows.values())) if name]
        return ImageListing(
            pictures=Files(sources, self.root),
            labels=np.array([place[row[self.layout.label]] for row in self.rows.values()], dtype=np.int64),
            ids=np.array(list(self.rows), dtype=np.int64),
            fields={name: [row.get(name, "") for row in self.rows.values()] for name in named},
            classes=self.class_names,
            domain=domain or self.chosen or self.root.name,
            config={"layout": "table", "source": self.root.name, "where": self.chosen},
        )

    @property
    def _columns(self) -> set[str]:
        return {name for row in self.rows.values() for name in row}

    def _check_column(self, column: str) -> None:
        if any(column not in row for row in self.rows.values()):
            raise unknown_name(f"column of {self.root / self.layout.table}", column, self._columns)


def _by_size(value: str) -> tuple[int, str]:
    """Sorts numbers by size, and before words."""
    return (int(value), "") if value.isdecimal() else (2**63, value)


def open_table(root: str | Path, layout: TableLayout | str) -> ImageTable:
    """A table of images with the columns that its layout adds; no image is read.

    Raises:
        FileFormatError: If the table is missing or cannot be read.
        UnknownNameError: If there is no such layout or column.
    """
    root = checked_folder(root)
    if isinstance(layout, str):
        check_name("layout", layout, WILDS_LAYOUTS)
        layout = WILDS_LAYOUTS[layout]
    path = root / layout.table
    listed = [{**row, "row": str(number)} for number, row in enumerate(_table(path))]
    rows: list[Row | None] = [*listed]
    with malformed(path, "a table of this layout"):
        try:
            if layout.derive is not None:
                rows = layout.derive(listed, root)
            kept = {number: row for number, row in enumerate(rows) if row is not None}
            names = {row[layout.label] for row in kept.values()}
        except KeyError as error:
            columns = {name for row in listed for name in row}
            raise unknown_name(f"column of {path}", error.args[0], columns) from error
    return ImageTable(
        root=root, layout=layout, rows=kept, classes=layout.classes or tuple(sorted(names, key=_by_size))
    )


def is_table(source: str | Path) -> bool:
    """Whether a source names a table, `camelyon17:DIR`, `fmow:DIR`, `iwildcam:DIR` or a `.csv` file."""
    return str(source).partition(":")[0] in WILDS_LAYOUTS or _file_of(str(source)).endswith(".csv")


def table_source(source: str | Path) -> ImageTable:
    """The table that a source names, with the rows that it asks for.

    Args:
        source: `LAYOUT:DIR`, a layout of WILDS and the folder of its table, or a `.csv` file with the columns
            `path` (relative to the file) and `label`; behind it any number of `:COLUMN=VALUE,VALUE` (rows to
            keep) and `:COLUMN!=VALUE,VALUE` (rows to leave out).

    Raises:
        FileFormatError: If the table is missing or cannot be read.
        UnknownNameError: If there is no such column.
        InputError: If no row is left.

    Example:
        `fmow:data/fmow_v1.1:wilds_split=val,test` are the images of FMoW's later years.
    """
    text = str(source)
    layout: TableLayout | str
    if text.partition(":")[0] in WILDS_LAYOUTS:
        layout, _, text = text.partition(":")
        root = Path(_file_of(text))
    else:
        file = Path(_file_of(text))
        layout, root = TableLayout(table=file.name, path="{path}", label="label"), file.parent
    table = open_table(root, layout)
    for condition in _conditions_of(text):
        column, _, values = condition.partition("=")
        exclude = column.endswith("!")
        table = table.where({column.removesuffix("!"): values.split(",")}, exclude=exclude)
    return table


def _file_of(text: str) -> str:
    """A source without the conditions behind it."""
    pieces = text.split(":")
    while len(pieces) > 1 and "=" in pieces[-1]:
        pieces.pop()
    return ":".join(pieces)


def _conditions_of(text: str) -> list[str]:
    rest = text[len(_file_of(text)) :]
    return rest.split(":")[1:]


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
        layout: A description, or `camelyon17`, `fmow` or `iwildcam` for those of WILDS, which get the column
            `wilds_split` (train, id_val, id_test, val, test), Camelyon17 also `hospital`, and FMoW `region`
            and `year`.
        where: Column to the value or values to keep, e.g. `{"center": "1"}`.
        domain: Name of the domain. Default: the values kept, or the folder's name.

    Raises:
        FileFormatError: If the table is missing or cannot be read.
        UnknownNameError: If there is no such layout or column.
        InputError: If no row is kept, or a label is none of the classes.

    References:
        Koh et al. 2021, WILDS, arXiv:2012.07421.
    """
    return open_table(root, layout).where(where or {}).listing(domain=domain)


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

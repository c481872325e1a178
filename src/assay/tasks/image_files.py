"""Images in files: single ones, folders, tables (CSV files and layouts of WILDS). None is read here."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from assay.core.errors import FileFormatError, InputError, check_name
from assay.core.untrusted import malformed
from assay.tasks.image_reading import Files, endings, image_paths
from assay.tasks.image_rows import by_size
from assay.tasks.images import ImageTask


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


def of_folder(root: Path) -> dict[str, ImageTask]:
    """Domains of a folder: its classes one level below, or two, or three (ImageNet-C); or loose images."""
    folders = _folders(root)
    if not folders:
        paths, notes = image_paths(root)
        if not paths:
            raise InputError(f"{root} has no images; give files such as .png or .jpg")
        return {root.name: read_files(paths, domain=root.name, notes=notes)}
    below = {each.name for folder in folders for each in _folders(folder)}
    if not below:
        places = {root.name: root}
    elif below <= set("12345"):
        places = {f"{each.name}/{part.name}": part for each in folders for part in _folders(each)}
    else:
        places = {each.name: each for each in folders}
    for folder in {root, *places.values()}:
        if files := [each.name for each in folder.iterdir() if each.suffix.lower() in endings()]:
            text = f"{len(_folders(folder))} folders and {len(files)} images, e.g. {files[0]}"
            raise InputError(f"{folder} mixes {text}; give a folder with only one of the two")
    classes = sorted({each.name for folder in places.values() for each in _folders(folder)})
    domains = {}
    for domain, folder in places.items():
        paths, notes = image_paths(folder, domain)
        names = [path.relative_to(folder) for path in paths]
        names = [name for name in names if name.parts[0] in classes]  # not those in hidden folders
        if not names:
            raise InputError(f"domain {domain!r} has no images; expected {folder.name}/CLASS/IMAGE")
        labels = torch.tensor([classes.index(name.parts[0]) for name in names])
        facts = {"labels": labels, "classes": tuple(classes), "notes": notes}
        domains[domain] = read_files(names, root=folder, domain=domain, layout="image-folder", **facts)
    return domains


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


# ------------------------------------------------------------------------------------------------- tables
#
# A layout of WILDS adds to the rows of its table `path`, `label` and what the benchmark splits by.

Rows = dict[int, dict[str, str]]  # by their number in the table


def _camelyon17(rows: Rows, root: Path) -> Rows:
    """Official split of WILDS: hospital 1 validates out of distribution, hospital 2 tests."""
    known, splits, classes = {"1": "val", "2": "test"}, {"0": "train", "1": "id_val"}, ("normal", "tumor")
    patch = "patient_{patient}_node_{node}"
    path = f"patches/{patch}/patch_{patch}_x_{{x_coord}}_y_{{y_coord}}.png"
    return {
        number: row
        | {"hospital": row["center"], "wilds_split": known.get(row["center"]) or splits.get(row["split"], "")}
        | {"path": path.format_map(row), "label": classes[int(row["tumor"])]}
        for number, row in rows.items()
    }


def _fmow(rows: Rows, root: Path) -> Rows:
    """Official split of WILDS by time and region; sequestered images are left out."""
    countries = _read_csv(root / "country_code_mapping.csv").values()
    regions = {each["alpha-3"]: each["region"] for each in countries}
    known = {}
    for number, row in rows.items():
        year, split = int(row["timestamp"][:4]), row["split"]
        period = "id" if year < 2013 else "val" if year < 2016 else "test"
        within = split if split == "train" else f"id_{split}"
        known[number] = row | {
            "wilds_split": within if period == "id" else split if split == period else "",
            "region": regions.get(row["country_code"], "Other"),
            "year": str(year),
            "path": f"images/rgb_img_{number}.png",
            "label": row["category"],
        }
    return {number: row for number, row in known.items() if row["split"] != "seq"}


def _iwildcam(rows: Rows, root: Path) -> Rows:
    return {
        number: row | {"wilds_split": row["split"], "path": f"train/{row['filename']}", "label": row["y"]}
        for number, row in rows.items()
    }


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
    rows = _read_csv(file)
    if layout in _WILDS:
        with malformed(file, f"a table of {layout}"):
            rows = _WILDS[layout][1](rows, file.parent)
    columns = list(next(iter(rows.values()), {}))
    for column in ("path", "label", *(column for column, _, _ in conditions)):
        check_name(f"column of {file}", column, columns)
    classes = sorted({row["label"] for row in rows.values()}, key=by_size)
    for column, keep, values in conditions:
        rows = {number: row for number, row in rows.items() if (row[column] in values) == keep}
    chosen = "+".join(f"{name}{'=' if keep else '!='}{','.join(few)}" for name, keep, few in conditions)
    if not rows:
        raise InputError(f"no row of {file} has {chosen or 'an image'}; check its values")
    fields = {column: [row[column] for row in rows.values()] for column in columns}
    for path in fields["path"]:
        if "\0" in path or ".." in Path(path).parts or Path(path).is_absolute():
            raise FileFormatError(f"a row of {file} names the image {path!r}, which must lie beside it")
    images = read_files(
        fields["path"],
        root=file.parent,
        domain=chosen or file.parent.name,
        layout="table",
        labels=torch.tensor([classes.index(label) for label in fields["label"]]),
        ids=torch.tensor(list(rows)),
        fields=fields,
        classes=tuple(classes),
    )
    return replace(images, config={**images.config, "where": chosen})


def of_table(source: str, by: Sequence[str] | None) -> dict[str, ImageTask]:
    """The rows of a table as one domain, or as one per combination of values of some columns."""
    images = read_table(source)
    if by is None:
        return {images.domain: images}
    layout = source.partition(":")[0]
    columns = tuple(by) or (_WILDS[layout][2] if layout in _WILDS else ())
    if not columns:
        raise InputError(f"{source} does not say which columns make domains; name them")
    if layout == "fmow":
        limits = [(images.fields[name], _NO_DOMAIN[name]) for name in columns if name in _NO_DOMAIN]
        rows = [row for row in range(images.n) if all(values[row] != none for values, none in limits)]
        images = images.subset(rows)
    return images.by_field(*columns)


def _parted(text: str) -> tuple[str, list[tuple[str, bool, list[str]]]]:
    """A source without the conditions behind it; and of each the column, whether to keep, and the values."""
    pieces, conditions = text.split(":"), []
    while len(pieces) > 1 and "=" in pieces[-1]:
        column, _, values = pieces.pop().partition("=")
        conditions.append((column.removesuffix("!"), not column.endswith("!"), values.split(",")))
    return ":".join(pieces), conditions[::-1]


def _read_csv(path: Path) -> Rows:
    """The cells of a table as text, without a column of row numbers that has no name."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = dict(enumerate(csv.DictReader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"cannot read the table {path}: {error}") from error
    if not rows or any(None in row or None in row.values() for row in rows.values()):
        raise FileFormatError(f"the table {path} has no rows, or some do not have the columns of the header")
    return {number: {name: row[name] for name in row if name} for number, row in rows.items()}

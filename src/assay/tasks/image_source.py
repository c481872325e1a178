"""Where images come from: folders, tables, loaded data sets, drawn domains. None is decoded here."""

import csv
import hashlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from assay.core.errors import FileFormatError, InputError, check_name
from assay.core.untrusted import malformed
from assay.tasks.digits import digits_task
from assay.tasks.files import check_loaded, name_of
from assay.tasks.image_reading import Files, Pictures, endings, image_paths
from assay.tasks.image_transform import EvalTransform, read_rgb
from assay.tasks.images import ImageTask, by_size
from assay.tasks.load import DEFAULT_N, digits_source
from assay.tasks.shapes import SHAPE_DOMAINS, draw_shapes
from assay.tasks.task import draw_rows


SHAPES = "shapes"
_CONDITION = re.compile(r":(?=[^:=]*=)")  # before a condition behind the name of a table
FIRST_FREE = 20_000  # number of the first drawn image that no model of the embedded zoo was trained on
FIRST_KNOWN = 1_000_000  # the same for known images, which are no targets
MARKED = 64  # images whose pixels identify a data set without names of files

# Of each layout of WILDS: its table, and path and label of an image by the columns of its row.
_PATCH = (
    "patches/patient_{patient}_node_{node}/patch_patient_{patient}_node_{node}_x_{x_coord}_y_{y_coord}.png"
)
WILDS = {
    "camelyon17": ("metadata.csv", _PATCH, "{tumor}"),
    "fmow": ("rgb_metadata.csv", "images/rgb_img_{row}.png", "{category}"),
    "iwildcam": ("metadata.csv", "train/{filename}", "{y}"),
}


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
    by: Sequence[str] = (),
    n: int | None = None,
    seed: int = 0,
    start: int = 0,
    drawn: int = 300,
) -> dict[str, ImageTask]:
    """The images of a name or a path, by domain; none is read yet.

    Args:
        source: `shapes` or `shapes:DOMAIN`; `folder/DOMAIN/CLASS/IMAGE`;
            `folder/CORRUPTION/SEVERITY/CLASS/IMAGE`, with severities 1 to 5; `folder/CLASS/IMAGE`; a folder
            of unlabelled images; or a table as in `read_table`.
        by: Columns of a table: a domain for each combination of their values. Empty: it is one domain.
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
        InputError: If a folder holds no image, or mixes kinds of entries.

    Example:
        >>> {domain: images.n for domain, images in find_domains("shapes:flat", n=4).items()}
        {'flat': 4}
    """
    domains: dict[str, ImageTask]
    if by and not is_table(source):
        raise InputError(f"domains by {', '.join(by)} need a table, and {source} is not one")
    if is_shapes(source):
        styles = sorted([style] if (style := str(source).partition(":")[2]) else SHAPE_DOMAINS)
        return {each: _shapes(each, drawn if n is None else n, seed, start) for each in styles}
    if is_table(source):
        images = read_table(source)
        domains = images.by_field(*by) if by else {images.domain: images}
    elif Path(source).is_dir():
        domains = _of_folder(Path(source))
    else:
        raise FileFormatError(f"{source} has no images; expected a folder, a .csv file or shapes:DOMAIN")
    for name, images in domains.items():
        sample = images if n is None else images.sample(n, seed=seed)
        domains[name] = replace(sample, config={**images.config, "n": n, "seed": seed})
    return domains


def one_domain(domains: Mapping[str, ImageTask], source: str | Path) -> ImageTask:
    """The only domain of a source.

    Raises:
        InputError: If there are several; they are named.
    """
    if len(domains) > 1:
        raise InputError(f"{source} holds {len(domains)} domains; name one of {', '.join(sorted(domains))}")
    return next(iter(domains.values()))


def load_images(
    source: Any,
    model: Any,
    *,
    n: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    workers: int | None = None,
    hold: bool = True,
) -> ImageTask:
    """Images of one domain, as an image classifier reads them.

    Args:
        source: `shapes:DOMAIN` (drawn, no download; numbers from 20,000 on, which no model of the embedded
            zoo was trained on), `colour-digits[:AGREEMENT[/SWAP]]` (as `digits_task` draws
            them; default 0.9 and `both`), a folder with a folder per class, a folder of unlabelled images, a
            table as in `read_table`; or a data set of PyTorch or of the `datasets` library, as `read_dataset`
            takes it.
        model: A loaded image classifier; its stored transform is applied, its class names give the labels.
        n: Number of images, a random sample. Default: 200 drawn ones, all of a file or folder.
        seed: Seed of the sample, or of the drawing.
        skip_bad: Leave out files that cannot be decoded, and count them, instead of failing. Each image is
            decoded once for it.
        workers: Threads that decode beside this one; see `ImageTask`.
        hold: Decode the images now, once, and hold them in 8 bits. False: decode them whenever the task is
            run, for more images than the memory holds; coloured digits are always held.

    Raises:
        InputError: If the model reads prompts, the source holds several domains, or classes differ.
        FileFormatError: If nothing is there, or an image cannot be read.

    Example:
        >>> from assay.zoo import Zoo
        >>> zoo = Zoo.embedded()
        >>> load_images("shapes:flat", zoo.load(zoo.keys[0]), n=3).clean.shape
        torch.Size([3, 3, 32, 32])
    """
    if getattr(model, "vision", None) is None:
        name = getattr(model, "id", model)
        raise InputError(f"{name} reads prompts, not images; use load_task(name, model)")
    if (digits := digits_source(source)) is not None:
        return digits_task(model, DEFAULT_N if n is None else n, seed=seed, **digits)
    if isinstance(source, str | Path):
        # Drawn images are those that no model was trained on.
        domains = find_domains(source, n=n, seed=seed, start=FIRST_FREE, drawn=DEFAULT_N)
        images = one_domain(domains, source)
    else:
        images = read_dataset(source, n=n, seed=seed)
    images = replace(images.for_model(model), workers=workers)
    if hold:
        return images.held(skip_bad=skip_bad)
    return images.readable() if skip_bad else images


# ---- files


def read_files(
    paths: Sequence[str | Path], *, root: Path | None = None, domain: str = "", **facts: Any
) -> ImageTask:
    """Single files, in the order given; without labels, what arrives at a deployed model.

    Args:
        paths: Image files.
        root: What they are relative to.
        domain: Name of the domain.
        facts: Further arguments of `ImageTask`, e.g. `labels`.

    Raises:
        InputError: If there is none.
    """
    names = [str(path) for path in paths]
    name = domain if root is None else root.name
    usual: dict[str, Any] = {"fields": {"path": names}, "config": {"layout": "files", "source": name}}
    return ImageTask(source=Files(names, root), domain=domain, name=name, **(usual | facts))


def _of_folder(root: Path) -> dict[str, ImageTask]:
    """Domains of a folder: its classes one level below, or two, or three (ImageNet-C); or loose images."""
    folders = _folders(root)
    if not folders:
        paths, notes = image_paths(root)
        return {root.name: read_files(paths, domain=root.name, notes=notes)}
    deeper = [part for each in folders for part in _folders(each)]
    if not deeper:
        places = {root.name: root}
    elif {each.name for each in deeper} <= set("12345") and any(map(_folders, deeper)):  # else classes
        places = {f"{each.parent.name}/{each.name}": each for each in deeper}
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
        labels = torch.tensor([classes.index(name.parts[0]) for name in names], dtype=torch.long)
        facts = {"labels": labels, "classes": tuple(classes), "notes": notes}
        facts["config"] = {"layout": "image-folder", "source": folder.name}
        domains[domain] = read_files(names, root=folder, domain=domain, **facts)
    return domains


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def is_table(source: str | Path) -> bool:
    """Whether a source names a table, `camelyon17:DIR`, `fmow:DIR`, `iwildcam:DIR` or a `.csv` file."""
    return str(source).partition(":")[0] in WILDS or _CONDITION.split(str(source))[0].endswith(".csv")


def read_table(source: str | Path) -> ImageTask:
    """Images that a table describes; every column becomes a field, and no image is read yet.

    `ImageTask.by_field` then makes domains of columns (hospital, slide).

    Args:
        source: A `.csv` file with the columns `path` (relative to the file) and `label`; or `LAYOUT:DIR`, one
            of the layouts `camelyon17`, `fmow` and `iwildcam` of WILDS and the folder of its table, which has
            the columns of that table besides. Behind it any number of `:COLUMN=VALUE,VALUE` (rows to keep)
            and `:COLUMN!=VALUE,VALUE` (rows to leave out).

    Raises:
        FileFormatError: If the table is missing or cannot be read.
        UnknownNameError: If there is no such column.
        InputError: If no row is left.

    References:
        Koh et al. 2021, WILDS, arXiv:2012.07421.

    Example:
        `fmow:data/fmow_v1.1:split=val,test` are the images of FMoW that it does not train on.
    """
    text, *conditions = _CONDITION.split(str(source))
    layout, _, root = text.partition(":")
    file = Path(root, WILDS[layout][0]) if layout in WILDS else Path(text)
    rows = dict(enumerate(_read_csv(file)))
    if layout in WILDS:
        with malformed(file, f"a table of {layout}"):
            for number, row in rows.items():
                path, label = (each.format_map({**row, "row": number}) for each in WILDS[layout][1:])
                rows[number] = row | {"path": path, "label": label}
    columns = list(rows[0])
    for column in ("path", "label"):
        check_name(f"column of {file}", column, columns)
    classes = sorted({row["label"] for row in rows.values()}, key=by_size)
    for condition in conditions:
        name, _, values = condition.partition("=")
        column, keep = name.removesuffix("!"), not name.endswith("!")
        check_name(f"column of {file}", column, columns)
        rows = {number: row for number, row in rows.items() if (row[column] in values.split(",")) == keep}
    chosen = "+".join(conditions)
    if not rows:
        raise InputError(f"no row of {file} has {chosen or 'an image'}; check its values")
    fields = {column: [row[column] for row in rows.values()] for column in columns}
    for path in fields["path"]:
        if "\0" in path or ".." in Path(path).parts or Path(path).is_absolute():
            raise FileFormatError(f"a row of {file} names the image {path!r}, which must lie beside it")
    return read_files(
        fields["path"],
        root=file.parent,
        domain=chosen or file.parent.name,
        labels=torch.tensor([classes.index(label) for label in fields["label"]]),
        ids=torch.tensor(list(rows)),
        fields=fields,
        classes=tuple(classes),
        config={"layout": "table", "source": file.parent.name, "where": chosen},
    )


def _read_csv(path: Path) -> list[dict[str, str]]:
    """The cells of a table as text, without a column of row numbers that has no name."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"cannot read the table {path}: {error}") from error
    if not rows or any(None in row or None in row.values() for row in rows):
        raise FileFormatError(f"the table {path} has no rows, or some do not have the columns of the header")
    return [{name: row[name] for name in row if name} for row in rows]


# ---- loaded data sets


def read_dataset(
    dataset: Any, *, image: str | None = None, label: str | None = None, n: int | None = None, seed: int = 0
) -> ImageTask:
    """One domain from a data set that is loaded already; images are decoded when they are needed.

    Args:
        dataset: A map-style data set of PyTorch, whose items are `(image, label)` or images (of PIL, or 8-bit
            or 0..1 tensors `[C, H, W]` and arrays `[H, W, C]`, before any normalisation); or a
            `datasets.Dataset`, of which a format or transform that was set does not count.
        image: Column of the images. Default: the only column of the type `Image`.
        label: Column of the labels. Default: the only column of the type `ClassLabel`; without one the images
            are unlabelled.
        n: A random sample of this many rows; None: all.
        seed: Of the sample.

    Returns:
        The images; every other column of plain values is a field.

    Raises:
        InputError: If the data set has no rows, a column cannot be told, or labels are not as expected.
        UnknownNameError: If there is no such column.

    Notes:
        The items of a data set of PyTorch give their labels with their images, so the items of the sample are
        read once for them.

    Example:
        >>> drawn = torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 1, 0]))
        >>> read_dataset(drawn).labels.tolist()
        [0, 1, 1, 0]
    """
    loaded = check_loaded(dataset)
    name, split = name_of(dataset)
    columns = hasattr(loaded, "column_names")
    source = _Columns(loaded, name, image, label) if columns else _Items(loaded, name)
    rows = draw_rows(len(loaded), n, seed=seed).tolist()
    labels = [each.item() if hasattr(each, "item") else each for each in map(source.label, rows)]
    unlabelled = all(each is None for each in labels)
    if not unlabelled and (strange := [each for each in labels if type(each) is not int]):
        text = "expected the number of a class in every row, e.g. by dataset.class_encode_column('label')"
        raise InputError(f"the data set has the label {str(strange[0])[:80]!r}; {text}")
    return ImageTask(
        source=source,
        rows=torch.tensor(rows),
        labels=None if unlabelled else torch.tensor(labels),
        fields={key: [values[row] for row in rows] for key, values in source.fields.items()},
        classes=None if source.classes is None else tuple(source.classes),
        domain=name,
        name=name,
        config={"layout": "dataset", "source": name, **split, "n": n, "seed": seed},
    )


class _Items(Pictures):
    """Items `(image, label)` or images, as PyTorch's data sets give them."""

    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(len(dataset), name)
        self._dataset, self._lock = dataset, threading.Lock()
        named = getattr(dataset, "classes", None)
        self.classes: Sequence[str] | None = named if isinstance(named, list | tuple) else None
        self.fields: Mapping[str, Sequence[Any]] = {}

    def _item(self, row: int) -> Sequence[Any]:
        with self._lock:  # a data set may seek in one file, or keep other state
            item = self._dataset[row]
        return item if isinstance(item, tuple | list) else (item,)

    def content(self, row: int) -> Any:
        return self._item(row)[0]

    def label(self, row: int) -> Any:
        """The label of a row, for which its item is read; None if it has none."""
        return (*self._item(row), None)[1]

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._title} {len(self)} {list(rows)}"
        # Neither class nor length tells two data sets apart, so some images speak for all.
        for row in list(rows)[:: max(1, len(rows) // MARKED)]:
            pixels = np.asarray(read_rgb(self.content(row))[0])
            yield f"{row} {pixels.shape} {hashlib.sha256(pixels.tobytes()).hexdigest()}"


class _Columns(Pictures):
    """The columns of a `datasets.Dataset`, whose images are decoded as files of a folder are."""

    def __init__(self, dataset: Any, name: str, image: str | None, label: str | None) -> None:
        super().__init__(len(dataset), name)
        types = {column: type(kind).__name__ for column, kind in dataset.features.items()}
        picture = _column(image, "Image", "image", types)
        labelled = _column(label, "ClassLabel", "label", types)
        if picture is None or types[picture] != "Image":
            text = f"the data set has the columns {', '.join(types)}; none, or {image!r}, is of type Image"
            raise InputError(f"{text}; use dataset.cast_column('COLUMN', datasets.Image())")
        plain = dataset.with_format(None)
        undecoded = type(dataset.features[picture])(decode=False)
        self._pictures = plain.select_columns([picture]).cast_column(picture, undecoded)
        self._picture, self._print = picture, str(getattr(dataset, "_fingerprint", ""))
        self._labels = None if labelled is None else plain[labelled]
        self.classes: Sequence[str] | None = getattr(dataset.features.get(labelled), "names", None)
        values = [column for column, kind in types.items() if kind in ("Value", "ClassLabel")]
        self.fields = {column: plain[column] for column in values if column != labelled}

    def content(self, row: int) -> Path | bytes:
        cell = self._pictures[row][self._picture] or {"bytes": None, "path": None}
        if cell["bytes"] is None and cell["path"] is None:
            raise InputError(f"row {row} of the data set has no image; drop such rows with filter")
        return Path(cell["path"]) if cell["bytes"] is None else cell["bytes"]

    def label(self, row: int) -> Any:
        """The label of a row; None if there are none."""
        return None if self._labels is None else self._labels[row]

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._title} {self._print} {self._picture} {list(rows)}"


def _column(name: str | None, kind: str, option: str, types: Mapping[str, str]) -> str | None:
    """The column that is named, or the only one of the type."""
    if name is not None:
        check_name("column of the data set", name, types)
    typed = [each for each in types if types[each] == kind] if name is None else [name]
    if len(typed) > 1:
        text = f"the data set has the columns {', '.join(typed)} of type {kind}"
        raise InputError(f"{text}; choose one with {option}={typed[0]!r}")
    return typed[0] if typed else None


# ---- drawn


class _Shapes(Pictures):
    """Shapes of one style that are drawn at the size that a model reads."""

    def __init__(self, style: str, ids: Sequence[int], seed: int) -> None:
        super().__init__(len(ids), SHAPES)
        self._style, self._ids, self._seed = style, ids, seed

    def name(self, row: int) -> str:
        return f"{self._title}, image {self._ids[row]}"

    def content(self, row: int) -> None:
        """There is none: see `decoded`."""

    def decoded(self, row: int, transform: EvalTransform) -> UInt8[np.ndarray, "h w 3"]:
        side = transform.crop or transform.resize or 32
        height, width = side if isinstance(side, tuple) else (side, side)
        if height != width:
            raise InputError(f"images are drawn square, but the model reads {height} x {width}")
        pixels = draw_shapes(self._style, 1, seed=self._seed, size=height, start=self._ids[row]).pixels
        return np.asarray(pixels).reshape(height, width, 3)

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        ids = [self._ids[row] for row in rows]
        # The words of this text are part of keys that were written.
        yield f"{self._title} {(draw_shapes.__name__, (self._style,), {})} {self._seed} {ids}"


def _shapes(style: str, n: int, seed: int, start: int) -> ImageTask:
    """Shapes of one style that are not drawn yet, numbered from `start`."""
    facts = draw_shapes(style, n, seed=seed, size=16, start=start)
    config = {name: value for name, value in facts.config.items() if name != "size"}
    return replace(facts, pixels=None, source=_Shapes(style, facts.ids.tolist(), seed), config=config)

"""Images from local files: folders by class and domain, ImageNet-C, tables of metadata, npz and parquet.

Every reader samples before it decodes, keeps the place of an image in the full listing as its id, and names
the file that cannot be read; with `skip_bad` such files are left out and counted instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from assay.core.errors import (
    FileFormatError,
    InputError,
    ShapeError,
    unknown_name,
)
from assay.core.machine import free_memory
from assay.core.untrusted import load_npz, malformed, parse_json, read_parquet_file
from assay.tasks.image_set import ImageSet, draw_rows
from assay.tasks.image_transform import BROKEN, EvalTransform, as_rgb, read_rgb


SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What every reader of images does with the files it finds.

    Attributes:
        transform: Geometry applied while reading; None keeps the images as they are, all of one size.
        n: Read a random sample of this many images; None or more than there are: all.
        seed: Seed of the sample.
        skip_bad: Leave out files that cannot be decoded, and list them in `skipped`, instead of failing.
    """

    transform: EvalTransform | None = None
    n: int | None = None
    seed: int = 0
    skip_bad: bool = False


DEFAULTS = ReadOptions()


def read_image_folder(
    folder: str | Path,
    *,
    classes: Sequence[str] | None = None,
    domain: str | None = None,
    options: ReadOptions = DEFAULTS,
) -> ImageSet:
    """One domain, `folder/CLASS/*`: the layout of ImageNet, its V2 and Sketch.

    Args:
        folder: Has a folder per class; nested folders below it are searched.
        classes: Folder names in the order of labels. Default: those present, sorted.
        domain: Name of the domain. Default: the folder's.
        options: Transform, sample, bad files.

    Raises:
        FileFormatError: If the folder does not exist, or an image cannot be read and is not skipped.
        InputError: If there is no image, or a folder is none of the `classes`.
        ShapeError: If images differ in size and no transform makes them equal.
    """
    folder = checked_folder(folder)
    folders = _subfolders(folder)
    names = tuple(folders if classes is None else classes)
    if not folders:
        raise InputError(f"{folder} has no class folders; expected {folder.name}/CLASS/IMAGE")
    if not set(folders) <= set(names):
        raise InputError(
            f"{folder} has class folders {sorted(set(folders) - set(names))} outside the classes "
            f"{list(names)}; rename them, or give the classes of the data"
        )
    paths, labels = [], []
    for name in folders:
        files = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in SUFFIXES)
        paths += files
        labels += [names.index(name)] * len(files)
    return decoded_set(
        [RawImage(str(path.relative_to(folder)), path) for path in paths],
        labels=np.array(labels, dtype=np.int64),
        fields={"path": [str(path.relative_to(folder)) for path in paths]},
        classes=names,
        domain=folder.name if domain is None else domain,
        config={"layout": "image-folder", "source": folder.name},
        options=options,
    )


def read_domains(
    root: str | Path,
    *,
    domains: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    options: ReadOptions = DEFAULTS,
) -> dict[str, ImageSet]:
    """Several domains, `root/DOMAIN/CLASS/*`: the layout of PACS and Terra Incognita.

    Labels mean the same in all of them, also where a domain lacks a class.

    Args:
        root: Has a folder per domain.
        domains: Those to read. Default: all, sorted.
        classes: Class folders in the order of labels. Default: the union over all domains, sorted.
        options: Transform, sample (per domain), bad files.

    Raises:
        UnknownNameError: If there is no such domain.
        FileFormatError: If the root does not exist, or an image cannot be read and is not skipped.
        InputError: If a domain has no image, or a folder is none of the `classes`.
    """
    root = checked_folder(root)
    present = _subfolders(root)
    for name in domains or ():
        if name not in present:
            raise unknown_name(f"domain of {root}", name, present)
    if not present:
        raise InputError(f"{root} has no folders; expected {root.name}/DOMAIN/CLASS/IMAGE")
    if classes is None:
        classes = sorted({name for domain in present for name in _subfolders(root / domain)})
    return {
        name: read_image_folder(root / name, classes=classes, domain=name, options=options)
        for name in domains or present
    }


def read_imagenet_c(
    root: str | Path,
    *,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    classes: Sequence[str] | None = None,
    options: ReadOptions = DEFAULTS,
) -> dict[str, ImageSet]:
    """The layout of ImageNet-C, `root/CORRUPTION/SEVERITY/CLASS/*`, as domains named `CORRUPTION/SEVERITY`.

    Labels mean the same in all of them, also where a domain lacks a class.

    Args:
        root: Has a folder per corruption.
        corruptions: Those to read. Default: all, sorted.
        severities: Those to read; each must be there.
        classes: Class folders in the order of labels. Default: the union over these domains, sorted.
        options: Transform, sample (per domain), bad files.

    Raises:
        UnknownNameError: If there is no such corruption.
        FileFormatError: If a folder does not exist, or an image cannot be read and is not skipped.
        InputError: If there is no corruption, a domain has no image, or a folder is none of the `classes`.
    """
    root = checked_folder(root)
    present = _subfolders(root)
    for name in corruptions or ():
        if name not in present:
            raise unknown_name(f"corruption of {root}", name, present)
    folders = {
        f"{name}/{severity}": checked_folder(root / name / str(severity))
        for name in corruptions or present
        for severity in severities
    }
    if not folders:
        raise InputError(f"{root} has no folders; expected {root.name}/CORRUPTION/SEVERITY/CLASS/IMAGE")
    if classes is None:
        classes = sorted({name for folder in folders.values() for name in _subfolders(folder)})
    return {
        domain: read_image_folder(folder, classes=classes, domain=domain, options=options)
        for domain, folder in folders.items()
    }


def read_images(
    paths: Sequence[str | Path], *, domain: str = "", options: ReadOptions = DEFAULTS
) -> ImageSet:
    """Single files without labels, in the order given: what arrives at a deployed model.

    Args:
        paths: Image files.
        domain: Name of the domain.
        options: Transform, sample, bad files; their paths are then in `skipped`.

    Raises:
        FileFormatError: If an image cannot be read and is not skipped.
        InputError: If there is none, or none can be read.
        ShapeError: If images differ in size and no transform makes them equal.
    """
    return decoded_set(
        [RawImage(str(path), Path(path)) for path in paths],
        labels=None,
        fields={"path": [str(path) for path in paths]},
        classes=None,
        domain=domain,
        config={"layout": "files", "source": domain},
        options=options,
    )


# ------------------------------------------------------------------------------------- tables of metadata


# ------------------------------------------------------------------------------------------------ archives


def read_npz(path: str | Path, *, domain: str | None = None, options: ReadOptions = DEFAULTS) -> ImageSet:
    """One domain from a NumPy archive without pickles.

    Args:
        path: Holds `images` (uint8 `[N, H, W, 3]` or grey `[N, H, W]`), or encoded files back to back as
            `blob` (uint8) with `offsets` (`[N + 1]`). Optional: `labels` `[N]`, `class_names`; every other
            array of length N becomes a field.
        domain: Name of the domain. Default: the file's name.
        options: Transform, sample, bad images.

    Raises:
        FileFormatError: If the file is no such archive, or an image cannot be decoded and is not skipped.
        UnsafeFileError: If an array of the archive is a pickle.
    """
    path = Path(path)
    arrays = load_npz(path)
    with malformed(path, "an archive of images"):
        return _archived(path, arrays, domain, options)


def _archived(
    path: Path, arrays: dict[str, np.ndarray], domain: str | None, options: ReadOptions
) -> ImageSet:
    sources = _array_sources(path, arrays)
    n = len(sources)
    labels, names = arrays.pop("labels", None), arrays.pop("class_names", None)
    if labels is not None and (labels.shape != (n,) or labels.dtype.kind not in "iu"):
        raise FileFormatError(f"labels of {path} are {labels.dtype} {labels.shape}; expected {n} integers")
    if names is not None and names.ndim != 1:
        raise FileFormatError(f"class_names of {path} have shape {names.shape}; expected a list of names")
    return decoded_set(
        sources,
        labels=None if labels is None else labels.astype(np.int64),
        fields={name: values.tolist() for name, values in arrays.items() if values.shape == (n,)},
        classes=None if names is None else tuple(str(name) for name in names),
        domain=path.stem if domain is None else domain,
        config={"layout": "npz", "source": path.name},
        options=options,
    )


def _array_sources(path: Path, arrays: dict[str, np.ndarray]) -> list["RawImage"]:
    """Takes the images out of `arrays`."""
    if "images" in arrays:
        images = arrays.pop("images")
        if images.ndim == 3:
            images = np.repeat(images[..., None], 3, axis=3)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise FileFormatError(
                f"images of {path} are {images.dtype} {images.shape}; expected uint8 [N, H, W, 3] or "
                "[N, H, W]"
            )
        return [RawImage(f"{path.name}, image {i}", image) for i, image in enumerate(images)]
    if {"blob", "offsets"} <= arrays.keys():
        blob, offsets = arrays.pop("blob"), arrays.pop("offsets")
        ordered = blob.dtype == np.uint8 and blob.ndim == 1 and offsets.ndim == 1 and len(offsets) > 1
        ordered = ordered and offsets.dtype.kind in "iu"
        if (
            not ordered
            or (np.diff(offsets.astype(np.int64)) < 0).any()
            or offsets[0] < 0
            or offsets[-1] > len(blob)
        ):
            raise FileFormatError(f"offsets of {path} do not cut its blob of {len(blob)} bytes into images")
        return [
            RawImage(f"{path.name}, image {i}", blob[start:stop].tobytes())
            for i, (start, stop) in enumerate(pairwise(offsets))
        ]
    raise FileFormatError(f"{path} holds {sorted(arrays)}; expected images, or blob and offsets")


def read_parquet(path: str | Path, *, domain: str | None = None, options: ReadOptions = DEFAULTS) -> ImageSet:
    """One domain from a parquet file as the `datasets` library writes it; needs the extra `vision`.

    Args:
        path: Column `image` holds encoded files (`bytes`, or a struct with `bytes`), column `label` integers
            (optional); every other column of plain values becomes a field. Class names come from the file's
            own description.
        domain: Name of the domain. Default: the file's name.
        options: Transform, sample, bad images.

    Raises:
        MissingExtraError: If pyarrow is not installed.
        FileFormatError: If the file is no such table, or an image cannot be decoded and is not skipped.
    """
    path = Path(path)
    table = read_parquet_file(path, extra="vision")
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    cells = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in columns.pop("image", [])]
    files = [cell for cell in cells if isinstance(cell, bytes)]
    if not files or len(files) < len(cells):
        raise FileFormatError(
            f"{path} holds {table.column_names}; expected a column image with encoded files"
        )
    labels = columns.pop("label", None)
    if labels is not None and not all(isinstance(label, int) for label in labels):
        raise FileFormatError(f"column label of {path} must hold integers only")
    with malformed(path, "a table of the datasets library"):
        described = parse_json((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        names = described.get("info", {}).get("features", {}).get("label", {}).get("names")
        names = None if names is None else tuple(map(str, names))
    return decoded_set(
        [RawImage(f"{path.name}, image {i}", file) for i, file in enumerate(files)],
        labels=None if labels is None else np.array(labels, dtype=np.int64),
        fields={
            name: values
            for name, values in columns.items()
            if not any(isinstance(value, dict | list | bytes) for value in values)
        },
        classes=names,
        domain=path.stem if domain is None else domain,
        config={"layout": "parquet", "source": path.name},
        options=options,
    )


# ------------------------------------------------------------------------------------------------ decoding


@dataclass(frozen=True)
class RawImage:
    """An image that is not decoded yet, and how to call it in a message."""

    name: str
    content: Path | bytes | UInt8[np.ndarray, "h w 3"] | Callable[[], Any]  # what is called gives the others

    def decode(self, transform: EvalTransform | None) -> UInt8[np.ndarray, "h w 3"]:
        content = self.content() if callable(self.content) else self.content
        if isinstance(content, np.ndarray):
            return content if transform is None else self._transformed(Image.fromarray(content), transform)
        if isinstance(content, Image.Image):
            return self._transformed(as_rgb(content), transform or EvalTransform(resize=None))
        where = content if isinstance(content, Path) else self.name
        try:
            rgb = read_rgb(content)
        except BROKEN as error:
            raise FileFormatError(
                f"the image {where} cannot be decoded ({error}); repair it, or skip such files with "
                "skip_bad (--skip-bad)"
            ) from error
        return self._transformed(rgb, transform or EvalTransform(resize=None))

    def _transformed(self, image: Image.Image, transform: EvalTransform) -> UInt8[np.ndarray, "h w 3"]:
        try:
            return transform.pixels(image)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from error


def decoded_set(
    sources: list[RawImage],
    *,
    labels: Int64[np.ndarray, " n"] | None,
    fields: Mapping[str, Sequence[Any]],
    classes: tuple[str, ...] | None,
    domain: str,
    config: dict[str, Any],
    options: ReadOptions,
    ids: Int64[np.ndarray, " n"] | None = None,
) -> ImageSet:
    """The images, decoded and checked, as one set."""
    if not sources:
        raise InputError(f"domain {domain!r} has no images; supported file types: {sorted(SUFFIXES)}")
    pixels: UInt8[np.ndarray, "_ _ _ 3"] | None = None
    kept: list[int] = []
    skipped: list[str] = []
    rows = draw_rows(len(sources), options.n, seed=options.seed)
    for row in rows.tolist():
        try:
            image = sources[row].decode(options.transform)
        except FileFormatError:
            if not options.skip_bad:
                raise
            skipped.append(sources[row].name)
            continue
        if pixels is None:
            _check_room(len(rows), image, domain)
            pixels = np.empty((len(rows), *image.shape), dtype=np.uint8)
        if image.shape != pixels.shape[1:]:
            raise ShapeError(
                f"{sources[row].name} is {image.shape[0]} x {image.shape[1]}, but {sources[kept[0]].name} "
                f"is {pixels.shape[1]} x {pixels.shape[2]}; give a transform that makes the images of "
                f"{domain!r} equal in size"
            )
        pixels[len(kept)] = image
        kept.append(row)
    if pixels is None:
        raise InputError(f"none of the {len(skipped)} images of {domain!r} can be decoded, e.g. {skipped[0]}")
    transform = options.transform
    geometry = (
        None if transform is None else {k: transform.to_dict()[k] for k in ("resize", "crop", "resample")}
    )
    return ImageSet(
        pixels=pixels[: len(kept)],
        labels=None if labels is None else labels[kept],
        ids=np.array(kept, dtype=np.int64) if ids is None else ids[kept],
        domain=domain,
        fields={name: [values[row] for row in kept] for name, values in fields.items()},
        classes=classes,
        name=str(config["source"]),
        config={**config, "geometry": geometry, "n": options.n, "seed": options.seed},
        skipped=tuple(skipped),
    )


def _check_room(n: int, image: UInt8[np.ndarray, "h w 3"], domain: str) -> None:
    """Refuse more images than the memory holds, before the second is decoded."""
    needed, free = n * image.nbytes, free_memory()
    if needed > free:
        raise InputError(
            f"{n:,} images of {domain!r} with {image.shape[0]} x {image.shape[1]} pixels take "
            f"{needed / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; read a sample with n="
        )


def checked_folder(path: str | Path) -> Path:
    """The path, if it is a directory."""
    path = Path(path)
    if not path.is_dir():
        raise FileFormatError(f"{path} is not a folder; give one that holds the images")
    return path


def _subfolders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))

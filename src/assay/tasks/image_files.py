"""Images from local files: folders by class and domain, ImageNet-C, single files.

What is found is a listing, which is read whole or streamed. Every reader samples before it decodes, keeps the
place of an image in the full listing as its id, and names the file that cannot be read; with `skip_bad` such
files are left out and counted instead.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from assay.core.errors import FileFormatError, InputError, check_name
from assay.tasks.image_decoding import Files
from assay.tasks.image_listing import DEFAULTS, ImageListing, ReadOptions
from assay.tasks.image_set import ImageSet


SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))


def list_image_folder(
    folder: str | Path, *, classes: Sequence[str] | None = None, domain: str | None = None
) -> ImageListing:
    """One domain, `folder/CLASS/*`: the layout of ImageNet, its V2 and Sketch.

    Args:
        folder: Has a folder per class; nested folders below it are searched.
        classes: Folder names in the order of labels. Default: those present, sorted.
        domain: Name of the domain. Default: the folder's.

    Raises:
        FileFormatError: If the folder does not exist.
        InputError: If there is no image, or a folder is none of the `classes`.
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
    paths: list[str] = []
    labels: list[int] = []
    for name in folders:
        files = [str(path.relative_to(folder)) for path in image_files(folder / name)]
        paths += files
        labels += [names.index(name)] * len(files)
    return ImageListing(
        pictures=Files(paths, folder),
        labels=np.array(labels, dtype=np.int64),
        fields={"path": paths},
        classes=names,
        domain=folder.name if domain is None else domain,
        config={"layout": "image-folder", "source": folder.name},
    )


def list_domains(
    root: str | Path, *, domains: Sequence[str] | None = None, classes: Sequence[str] | None = None
) -> dict[str, ImageListing]:
    """Several domains, `root/DOMAIN/CLASS/*`: the layout of PACS and Terra Incognita.

    Labels mean the same in all of them, also where a domain lacks a class.

    Args:
        root: Has a folder per domain.
        domains: Those to list. Default: all, sorted.
        classes: Class folders in the order of labels. Default: the union over all domains, sorted.

    Raises:
        UnknownNameError: If there is no such domain.
        FileFormatError: If the root does not exist.
        InputError: If a domain has no image, or a folder is none of the `classes`.
    """
    root = checked_folder(root)
    present = _subfolders(root)
    for name in domains or ():
        check_name(f"domain of {root}", name, present)
    if not present:
        raise InputError(f"{root} has no folders; expected {root.name}/DOMAIN/CLASS/IMAGE")
    if classes is None:
        classes = sorted({name for domain in present for name in _subfolders(root / domain)})
    return {name: list_image_folder(root / name, classes=classes, domain=name) for name in domains or present}


def list_imagenet_c(
    root: str | Path,
    *,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    classes: Sequence[str] | None = None,
) -> dict[str, ImageListing]:
    """The layout of ImageNet-C, `root/CORRUPTION/SEVERITY/CLASS/*`, as domains named `CORRUPTION/SEVERITY`.

    Labels mean the same in all of them, also where a domain lacks a class.

    Args:
        root: Has a folder per corruption.
        corruptions: Those to list. Default: all, sorted.
        severities: Those to list; each must be there.
        classes: Class folders in the order of labels. Default: the union over these domains, sorted.

    Raises:
        UnknownNameError: If there is no such corruption.
        FileFormatError: If a folder does not exist.
        InputError: If there is no corruption, a domain has no image, or a folder is none of the `classes`.
    """
    root = checked_folder(root)
    present = _subfolders(root)
    for name in corruptions or ():
        check_name(f"corruption of {root}", name, present)
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
        domain: list_image_folder(folder, classes=classes, domain=domain)
        for domain, folder in folders.items()
    }


def list_files(paths: Sequence[str | Path], *, domain: str = "") -> ImageListing:
    """Single files without labels, in the order given: what arrives at a deployed model.

    Args:
        paths: Image files.
        domain: Name of the domain.

    Raises:
        InputError: If there is none.
    """
    names = [str(path) for path in paths]
    return ImageListing(
        pictures=Files(names),
        fields={"path": names},
        domain=domain,
        config={"layout": "files", "source": domain},
    )


def read_image_folder(
    folder: str | Path,
    *,
    classes: Sequence[str] | None = None,
    domain: str | None = None,
    options: ReadOptions = DEFAULTS,
) -> ImageSet:
    """`list_image_folder`, read; see there and `ImageListing.read` for arguments and errors."""
    return list_image_folder(folder, classes=classes, domain=domain).read(options)


def read_domains(
    root: str | Path,
    *,
    domains: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    options: ReadOptions = DEFAULTS,
) -> dict[str, ImageSet]:
    """`list_domains`, read; the sample is drawn per domain."""
    listings = list_domains(root, domains=domains, classes=classes)
    return {name: listing.read(options) for name, listing in listings.items()}


def read_imagenet_c(
    root: str | Path,
    *,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    classes: Sequence[str] | None = None,
    options: ReadOptions = DEFAULTS,
) -> dict[str, ImageSet]:
    """`list_imagenet_c`, read; the sample is drawn per domain."""
    listings = list_imagenet_c(root, corruptions=corruptions, severities=severities, classes=classes)
    return {name: listing.read(options) for name, listing in listings.items()}


def read_images(
    paths: Sequence[str | Path], *, domain: str = "", options: ReadOptions = DEFAULTS
) -> ImageSet:
    """`list_files`, read: the paths of files that were left out are in `skipped`."""
    return list_files(paths, domain=domain).read(options)


def image_files(folder: Path) -> list[Path]:
    """Every image below a folder, sorted by path."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def checked_folder(path: str | Path) -> Path:
    """The path, if it is a directory."""
    path = Path(path)
    if not path.is_dir():
        raise FileFormatError(f"{path} is not a folder; give one that holds the images")
    return path


def _subfolders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))

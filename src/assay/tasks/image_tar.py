"""Shards of WebDataset: tar files whose members `KEY.jpg`, `KEY.cls`, `KEY.json` make one example."""

import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from assay.core.errors import FileFormatError
from assay.core.untrusted import malformed, parse_json
from assay.tasks.image_decoding import PerProcess, Pictures
from assay.tasks.image_files import SUFFIXES
from assay.tasks.image_listing import ImageListing


_LARGEST_FACT = 1 << 20  # bytes of a .cls or .json


def list_tar(path: str | Path, *, domain: str | None = None) -> ImageListing:
    """One domain from a tar file of the layout of WebDataset, not compressed.

    Args:
        path: Its members are named `KEY.SUFFIX`, those of one key side by side: an image, its class as
            `KEY.cls` (a number) or as `label` of `KEY.json` (optional); plain values of `KEY.json` become
            fields.
        domain: Name of the domain. Default: the file's name.

    Raises:
        FileFormatError: If the file is not such a tar file, is compressed or cut off, a label is not a
            number, or only some images have one.

    Notes:
        Headers are read once, images when they are needed, in any order.
    """
    path = Path(path)
    examples = list(_examples(path))
    pictures = TarRows(path, [each["image"] for each in examples], [each["key"] for each in examples])
    labels = [each.get("label") for each in examples]
    if None in labels and any(label is not None for label in labels):
        raise FileFormatError(
            f"{path}: {pictures.name(labels.index(None))} has no label, but others do; label all, or none"
        )
    records = [each.get("facts", {}) for each in examples]
    names = [name for name in (records[0] if records else {}) if all(name in record for record in records)]
    with malformed(path, "labels that are class numbers"):
        numbers = None if not labels or labels[0] is None else np.array(labels, dtype=np.int64)
    return ImageListing(
        pictures=pictures,
        labels=numbers,
        fields={
            "key": [each["key"] for each in examples],
            **{name: [record[name] for record in records] for name in names},
        },
        domain=path.stem if domain is None else domain,
        config={"layout": "webdataset", "source": path.name},
    )


def _examples(path: Path) -> Iterator[dict[str, Any]]:
    """Of each example its key, place of its image, label and facts, where it has an image."""
    example: dict[str, Any] = {}
    count = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if not member.isreg() or Path(member.name).name.startswith("."):
                    continue
                key, _, suffix = member.name.rpartition("/")[2].partition(".")
                key = f"{member.name.rpartition('/')[0]}/{key}".lstrip("/")
                if example.get("key") != key:
                    if "image" in example:
                        count += 1
                        yield example
                    example = {"key": key}
                _add(example, archive, member, f".{suffix.lower()}", path)
                archive.members = []  # type: ignore[attr-defined]  # tarfile keeps every header it has read
        _check_end(path)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise FileFormatError(
            f"{path} is not a plain tar file, or is cut off after {count} images ({error}); unpack "
            "compressed shards, restore damaged ones"
        ) from error
    if "image" in example:
        yield example


def _check_end(path: Path) -> None:
    """Refuse a file without the block of zeros that ends a tar: a header that is cut off ends it, too."""
    with path.open("rb") as file:
        file.seek(-tarfile.BLOCKSIZE, os.SEEK_END)
        if any(file.read()):
            raise tarfile.ReadError("its end is missing")


def _add(
    example: dict[str, Any], archive: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, path: Path
) -> None:
    """What one member says of its example."""
    if suffix in SUFFIXES:
        example.setdefault("image", (member.offset_data, member.size))
        return
    if suffix not in (".cls", ".json") or member.size > _LARGEST_FACT:
        return
    file = archive.extractfile(member)
    assert file is not None  # a regular file
    text = file.read()
    where = f"{member.name} of {path}"
    if suffix == ".cls":
        try:
            example["label"] = int(text)
        except ValueError:
            raise FileFormatError(
                f"{where} holds {text[:40]!r}; expected the number of a class, counted from 0"
            ) from None
        return
    with malformed(where, "a JSON document"):
        facts = dict(parse_json(text))
    if isinstance(label := facts.pop("label", None), int) and "label" not in example:
        example["label"] = label
    example["facts"] = {name: value for name, value in facts.items() if not isinstance(value, dict | list)}


class TarRows(Pictures):
    """Members of a tar file.

    Args:
        path: The file.
        places: First byte and size of each image.
        keys: Their names.
    """

    def __init__(self, path: Path, places: Sequence[tuple[int, int]], keys: Sequence[str]) -> None:
        self._path, self._keys = path, keys
        self._places: Int64[np.ndarray, "n 2"] = np.array(places, dtype=np.int64).reshape(-1, 2)
        self._open = PerProcess(self._opened)

    def _opened(self) -> Any:
        return self._path.open("rb")

    def __len__(self) -> int:
        return len(self._places)

    def name(self, row: int) -> str:
        return f"{self._keys[row]} of {self._path.name}"

    def content(self, row: int) -> bytes:
        start, size = self._places[row].tolist()
        file = self._open()
        file.seek(start)
        found: bytes = file.read(size)
        if len(found) < size:
            raise FileFormatError(f"{self.name(row)} is cut off; restore {self._path}")
        return found

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        for row in rows:
            yield f"{self._keys[row]} {self._places[row, 1]}"

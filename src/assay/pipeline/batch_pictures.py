"""Small pictures of some images of the batches that a monitor observed, for its page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.analyses.generalization.journal import Reading
from assay.core.errors import AssayError
from assay.core.untrusted import MALFORMED, parse_json
from assay.page.thumbnail import png_source, thumbnail
from assay.pipeline.image_stream import Batch


EACH = 6  # images of a batch
KEPT = 24  # batches: a page of all of them has room for as many
ALARMS = 16  # of these, at least so many that raised the alarm, where there are


class BatchPictures:
    """Pictures of the newest batches, and of those that raised the alarm for longer.

    Args:
        document: File that holds those of an earlier run under `pictures`. One that cannot be read has none:
            it is written anew.
    """

    def __init__(self, document: Path) -> None:
        self._kept: dict[int, list[dict[str, str]]] = _read(document)

    def add(self, batch: Batch, reading: Reading, alarmed: frozenset[int]) -> None:
        """Take pictures of a batch; drop those of another where there are too many.

        Args:
            batch: Its images.
            reading: What was observed.
            alarmed: Numbers of all batches that raised the alarm.
        """
        rows = np.unique(np.linspace(0, batch.inputs.n - 1, min(EACH, batch.inputs.n)).round().astype(int))
        self._kept[reading.index] = [
            {"name": Path(batch.sources[row]).name, "image": thumbnail(batch.inputs.pixels[row])}
            for row in rows
        ]
        for index in sorted(set(self._kept) - _worth_keeping(self._kept, alarmed)):
            del self._kept[index]

    def to_dict(self) -> dict[str, list[dict[str, str]]]:
        """Number of a batch, from 0, to `name` and `image` (PNG, a data URI) of some images."""
        return {str(index): list(pictures) for index, pictures in sorted(self._kept.items())}


def _worth_keeping(kept: Mapping[int, object], alarmed: frozenset[int]) -> set[int]:
    alarms = sorted(set(kept) & alarmed)[-ALARMS:]
    rest = sorted(set(kept) - set(alarms))
    return {*alarms, *rest[len(rest) - (KEPT - len(alarms)) :]} if len(kept) > KEPT else set(kept)


def _read(document: Path) -> dict[int, list[dict[str, str]]]:
    try:
        content: Any = parse_json(document.read_bytes())
        return {
            int(index): [{"name": str(each["name"]), "image": png_source(each["image"])} for each in pictures]
            for index, pictures in content.get("pictures", {}).items()
        }
    except (
        OSError,
        AssayError,
        *MALFORMED,
    ):  # pictures only: whatever else the file says is made of the readings
        return {}

"""Documents of records that are laid out other than their fields."""

from dataclasses import dataclass

import numpy as np
import pytest

from assay.core.errors import FileFormatError
from assay.core.record import Record, same


@dataclass(frozen=True, kw_only=True)
class Part:
    size: int
    values: np.ndarray

    def mean(self) -> float:
        return float(self.values.mean())


@dataclass(frozen=True, kw_only=True)
class Whole(Record):
    record_kind = "whole"
    record_schema = "whole/1"
    record_layout = {
        "name": "title",
        **same("**facts"),
        "part": {**same("size", "mean", of="part"), "n": "part.values.size"},
        "other": "other.size",
        "keys": "facts.keys",
    }

    title: str
    facts: dict[str, int]
    part: Part
    other: Part | None = None


WHOLE = Whole(title="a", facts={"x": 1, "y": 2}, part=Part(size=3, values=np.array([1.0, np.nan])))


def test_a_layout_gives_paths_parts_and_spread_mappings_in_order() -> None:
    document = WHOLE.to_dict()
    assert list(document) == ["kind", "schema", "name", "x", "y", "part", "other", "keys"]
    assert document["part"] == {"size": 3, "mean": None, "n": 2}
    assert (document["name"], document["x"], document["other"]) == ("a", 1, None)
    assert document["keys"] == ["x", "y"]


def test_a_laid_out_document_is_not_read() -> None:
    with pytest.raises(FileFormatError, match="only written"):
        Whole.from_dict(WHOLE.to_dict())

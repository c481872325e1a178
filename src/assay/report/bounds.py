"""What keeps a page small: long texts are cut with the length they had, long lists with their number."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from assay.core.record import plain


PAGE_LIMIT = 3_000_000  # bytes of a page, whatever its results hold
TEXT_LIMIT = 1_000  # characters of a name or a prompt
RECORD_LIMIT = 20_000  # characters of a record behind an id
EDGES_LIMIT = 2_000  # edges that a page draws and lists
LIST_LIMIT = 2_000  # entries of any other list of records

_PICTURE = "data:image/"
Item = TypeVar("Item")


def cut_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its beginning and how long it was."""
    if not text.isascii():  # JSON can hold half of a surrogate pair, a page cannot
        text = text.encode("utf-8", "replace").decode()
    if len(text) <= limit or text.startswith(_PICTURE):
        return text
    return f"{text[:limit]}\N{HORIZONTAL ELLIPSIS} (the first {limit:,} of {len(text):,} characters)"


def bounded(value: Any, *, limit: int = TEXT_LIMIT) -> Any:
    """A document whose texts are cut to a length; pictures and numbers are as they were."""
    if isinstance(value, str):
        return cut_text(value, limit)
    if isinstance(value, Mapping):
        return {bounded(key, limit=limit): bounded(item, limit=limit) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # Most long lists are numbers, which need no look at each.
        if value and all(type(item) is float or type(item) is int for item in value):
            return value
        return [bounded(item, limit=limit) for item in value]
    return value


def record_text(record: Any) -> str:
    """A record as indented JSON, at most `RECORD_LIMIT` characters of it."""
    return cut_text(json.dumps(plain(record), indent=2, sort_keys=True, ensure_ascii=False), RECORD_LIMIT)


def first(found: Sequence[Item], limit: int = LIST_LIMIT) -> tuple[Sequence[Item], int]:
    """The first entries of a list and how many were left out."""
    return found[:limit], max(0, len(found) - limit)

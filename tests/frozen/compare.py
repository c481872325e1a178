"""Whether a document still holds every number that a frozen one holds.

Keys may be added and sentences may be written anew. Every number, every code word and the length of every
list stay. Identities, times, paths and versions are exempt.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any


EXACT = 1e-12  # relative, of runs in float64
SINGLE = 1e-6  # relative, of runs in float32
# Relative, of differences in float32 in which logits cancel: divergences of pairs, scores of edges, audits of
# these. Of 733 such numbers of `audit-command` the engine that froze them was 8.1e-7 off the same run in
# float64 in the median, the one that runs them now 6.9e-7; z-scores near 0 lose two more digits.
PAIRS = 5e-5
# Smaller numbers are compared as this one: they are differences of logits about a thousand times as large.
LEAST = 2e-3
# Relative, of runs in float64 on a machine that rounds otherwise: differences of logits cancel.
ELSEWHERE = 1e-7
# Relative, of ends of intervals whose resamples tie: rounding chooses the order of those that are equal.
TIES = 5e-2

# Keys whose values name a run and do not describe its result.
EXEMPT = re.compile(
    r"^(id|ids|hash|\w+_hash|table|created|time|times|seconds|\w+_seconds|started|finished|path|paths|file|files"
    r"|directory|library|version|versions|host|machine|fingerprint|digest|processor_seconds|peak_memory|forward_equivalents"
    r"|threads|cpus|device|jobs|results)$"
)
_CODE = re.compile(r"^[\w.:+/@\-]+$")  # a word for programs; sentences hold a space
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:")
_HEX = re.compile(r"^[0-9a-f]{8,}$")


def differences(frozen: Any, new: Any, *, relative: float, place: str = "$") -> Iterator[str]:
    """A line for each number that moved, each code that changed and each key that is gone.

    Args:
        frozen: A parsed document.
        new: The document of the same run by the code under test.
        relative: Allowed difference of two floats, as a share of the largest number beside them: of the list,
            or of all values under one key of a list of records. A number near 0 among large ones carries the
            rounding of the large ones.
        place: Where both were found.
    """
    yield from _walk(frozen, new, relative, place, _scale(frozen))


def _walk(frozen: Any, new: Any, relative: float, place: str, scale: float) -> Iterator[str]:
    if isinstance(frozen, dict):
        if not isinstance(new, dict):
            yield f"{place}: was a record, is {_shown(new)}"
            return
        for key, value in frozen.items():
            inside = f"{place}.{key}"
            if EXEMPT.match(key):
                continue
            if key not in new:
                yield f"{inside}: is gone (was {_shown(value)})"
            else:
                yield from _walk(value, new[key], relative, inside, max(_scale(value), 0.0))
    elif isinstance(frozen, list):
        if not isinstance(new, list) or len(new) != len(frozen):
            length = len(new) if isinstance(new, list) else _shown(new)
            yield f"{place}: was a list of {len(frozen)}, is {length}"
            return
        scales = _scales_of_columns(frozen)
        for row, (one, other) in enumerate(zip(frozen, new, strict=True)):
            inside = f"{place}[{row}]"
            if isinstance(one, dict) and isinstance(other, dict):
                yield from _walk_row(one, other, relative, inside, scales)
            else:
                yield from _walk(one, other, relative, inside, scale)
    elif isinstance(frozen, bool) or frozen is None or isinstance(frozen, int):
        if frozen != new or isinstance(frozen, bool) != isinstance(new, bool):
            yield f"{place}: was {frozen!r}, is {_shown(new)}"
    elif isinstance(frozen, float):
        number = isinstance(new, int | float) and not isinstance(new, bool)
        if not number or not _close(frozen, new, relative, scale):
            yield f"{place}: was {frozen!r}, is {_shown(new)}"
    elif _CODE.match(frozen) and not (_HEX.match(frozen) or _TIME.match(frozen)) and frozen != new:
        yield f"{place}: was {frozen!r}, is {_shown(new)}"


def _walk_row(
    one: dict[str, Any], other: dict[str, Any], relative: float, place: str, scales: dict[str, float]
) -> Iterator[str]:
    for key, value in one.items():
        if EXEMPT.match(key):
            continue
        if key not in other:
            yield f"{place}.{key}: is gone (was {_shown(value)})"
        else:
            yield from _walk(
                value, other[key], relative, f"{place}.{key}", max(scales.get(key, 0.0), _scale(value))
            )


def _close(frozen: float, new: float, relative: float, scale: float) -> bool:
    if math.isnan(frozen) or math.isinf(frozen):
        return repr(frozen) == repr(float(new))
    return abs(frozen - new) <= relative * max(abs(frozen), abs(new), scale, LEAST)


def _scale(value: Any) -> float:
    """Largest magnitude among the numbers of a list of lists of numbers, or a number's own."""
    if isinstance(value, float) and math.isfinite(value):
        return abs(value)
    if isinstance(value, list):
        return max((_scale(each) for each in value), default=0.0)
    return 0.0


def _scales_of_columns(rows: list[Any]) -> dict[str, float]:
    scales: dict[str, float] = {}
    for row in rows:
        for key, value in row.items() if isinstance(row, dict) else ():
            scales[key] = max(scales.get(key, 0.0), _scale(value))
    return scales


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else text[:57] + "..."

"""How far a sweep is; durations as they are written and read."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from assay.core.errors import InputError


UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """A sweep at one moment.

    Attributes:
        total: Jobs in all.
        done: Jobs whose results are in the store, those found there included.
        running: Names of the jobs that run here now.
        failed: Jobs given up, and those that needed them.
    """

    total: int
    done: int
    running: tuple[str, ...]
    failed: int

    def __str__(self) -> str:
        parts = [f"{self.done}/{self.total} done", f"{len(self.running)} running"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)


Report = Callable[[SweepProgress], None]


def duration(seconds: float | int) -> str:
    """Seconds for reading.

    Example:
        >>> duration(0.4), duration(75), duration(3700), duration(200_000)
        ('1 s', '1 min 15 s', '1 h 1 min', '2 d 7 h')
    """
    whole = max(1, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for place, (name, size) in enumerate(units):
        if whole >= size:
            count, rest = divmod(whole, size)
            if place + 1 == len(units):
                return f"{count} {name}"
            below, smaller = units[place + 1]
            return f"{count} {name} {rest // smaller} {below}" if rest // smaller else f"{count} {name}"
    raise AssertionError("a whole number of seconds from 1 has a unit")


def seconds_of(text: str | float | int) -> float:
    """A duration: seconds, or a number with a unit, `45s`, `10m`, `2h`, `1d`.

    Raises:
        InputError: For anything else, and for what is negative or infinite.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([smhd]?)\s*", str(text))
    if match is None or not math.isfinite(found := float(match[1]) * UNITS[match[2]]):
        raise InputError(
            f"{text!r} is not a duration; give seconds, or a number with a unit: 45s, 10m, 2h, 1d"
        )
    return found

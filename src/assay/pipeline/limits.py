"""What a sweep may use: workers, attempts, time and memory of a job; and the texts that say so."""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from assay.core.errors import InputError
from assay.core.machine import usable_cores
from assay.models.placing import SPREADING


T = TypeVar("T")

LEAST_MEMORY = 64 << 20  # bytes; no interpreter with PyTorch runs in less
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)")
_BYTES = {f"{prefix}{unit}": base**power
          for unit, base in (("B", 1000), ("iB", 1024))
          for power, prefix in enumerate("KMGT", start=1)}  # fmt: skip


def parse_duration(value: Any) -> float:
    """Seconds of a number of them or of a text such as `"45s"`, `"10m"`, `"2h"`, `"1d"`.

    Raises:
        InputError: For everything else, and unless it is above 0.

    Example:
        >>> parse_duration("1.5m")
        90.0
    """
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _SECONDS[match[2]]
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"{value!r} is not a duration; write seconds, or '45s', '10m', '2h'")
    return seconds


def parse_size(value: Any) -> int:
    """Bytes of a number of them or of a text such as `"512 MiB"`, `"4 GiB"`, `"4GB"`.

    Raises:
        InputError: For everything else, and for less than any worker needs.

    Example:
        >>> parse_size("4 GiB") == 4 * 2**30
        True
    """
    size = None
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        size = round(float(match[1]) * _BYTES[match[2]])
    if size is None:
        raise InputError(f"{value!r} is not a size; write bytes, or '512 MiB', '4 GiB', '4 GB'")
    if size < LEAST_MEMORY:
        raise InputError(f"{value!r} is {size:,} bytes; a worker needs at least 64 MiB")
    return size


def _unless_none(parse: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else parse(value)


class Limits(BaseModel):
    """What a sweep may use.

    Attributes:
        workers: Jobs at a time; None: as many as there are cores for `threads` each.
        retries: Further attempts of a job that failed by other than its input, died or ran out of time.
        timeout: Seconds that one attempt may take, read from `90`, `"45s"`, `"10m"`, `"2h"`; None: no limit.
        memory: Bytes that a worker's process may hold (its resident set), the interpreter and PyTorch
            included (some 400 MiB); read from `"4 GiB"`. None: no limit.
        threads: Threads of each worker.
        device_map: Where the parts of each model go, as `--device-map` says; None: all to one device.
        batch_size: Examples per pass of every job. Fixed by the plan and not by free memory, so that the
            bytes of a result do not depend on who computed it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    workers: Annotated[int, Field(ge=1)] | None = None
    retries: Annotated[int, Field(ge=0, le=100)] = 2
    timeout: Annotated[float | None, BeforeValidator(_unless_none(parse_duration))] = None
    memory: Annotated[int | None, BeforeValidator(_unless_none(parse_size))] = None
    threads: Annotated[int, Field(ge=1)] = 1
    device_map: Literal["auto", "balanced", "sequential", "stream"] | None = None
    batch_size: Annotated[int, Field(ge=1)] = 32

    @property
    def n_workers(self) -> int:
        """Workers on this machine: as asked for, else one for every `threads` cores that may be used.

        One where a model is spread over all devices.
        """
        if self.workers is not None:
            return self.workers
        if self.device_map in SPREADING:
            return 1
        return max(1, usable_cores() // self.threads)

"""The one engine of work that is kept: a stage is computed once and read from the store after that."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from assay.core.errors import UnknownNameError
from assay.core.record import record_id
from assay.store import About, Store, StoredResult


T = TypeVar("T")
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Progress that is not shown."""
    del stage, done, total


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """What a stage leaves in a store.

    Attributes:
        payload: The result, JSON values.
        about: What it is found by.
        arrays: Its large parts by name.
    """

    payload: dict[str, Any]
    about: About = field(default_factory=About)
    arrays: Mapping[str, Tensor | np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Memo(Generic[T]):
    """The value of a stage, and whether a store already held it."""

    value: T
    cached: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage(Generic[T]):
    """One result as a function of its record.

    Attributes:
        kind: What it is; the kind of its row in a store.
        record: All that the result is a function of. Its hash under `kind` is the identity of the result.
        compute: Makes the value.
        write: What of the value is stored.
        read: The value of a stored result.
        identified: Whether the record tells the result from all others. Your own objective or ablation is
            known by a name that does not identify it, so nothing is stored under one.
    """

    kind: str
    record: Mapping[str, Any]
    compute: Callable[[], T]
    write: Callable[[T], Content]
    read: Callable[[StoredResult], T]
    identified: bool = True

    @cached_property
    def id(self) -> str:
        """Identity of the result, and its key in a store."""
        return record_id(self.kind, self.record)

    def run(self, store: Store | None = None) -> Memo[T]:
        """The value from the store, else computed and stored there."""
        store = store if self.identified else None
        if store is not None and store.has(self.id):
            with suppress(UnknownNameError):  # removed since
                return Memo(value=self.read(store.get(self.id)), cached=True)
        value = self.compute()
        if store is not None:
            content = self.write(value)
            store.put(self.kind, self.record, content.payload, content.arrays, about=content.about)
        return Memo(value=value, cached=False)


def document_stage(
    kind: str, record: Mapping[str, Any], compute: Callable[[], Content], *, identified: bool = True
) -> Stage[Content]:
    """A stage whose value is what is stored; out of a store it comes without arrays."""
    return Stage(
        kind=kind,
        record=record,
        compute=compute,
        write=lambda content: content,
        read=lambda stored: Content(payload=stored.payload, about=stored),
        identified=identified,
    )

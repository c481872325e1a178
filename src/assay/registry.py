"""One registry for every plug-in kind: methods, metrics, tasks, ablations, objectives.

A kind owns one `Registry`; an entry is any object with a kebab-case key. Entries of other
packages join through the entry-point group `assay.<kinds>` and are loaded when a look-up
misses or everything is listed.
"""

import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from assay.errors import InputError, unknown_name


T = TypeVar("T")


class Registry(Generic[T]):
    """Named objects of one kind, in order of registration.

    Args:
        kind: Singular name used in messages, e.g. `"method"`.
        plural: Names the entry-point group, `assay.<plural>`; default: `kind` with an s.
    """

    def __init__(self, kind: str, *, plural: str | None = None) -> None:
        self.kind = kind
        self.plural = plural or f"{kind}s"
        self._entries: dict[str, T] = {}
        self._entry_points_loaded = False

    def add(self, key: str, entry: T) -> T:
        """Register `entry` under `key`; a second entry of that key is an error."""
        if key in self._entries:
            raise InputError(f"{self.kind} {key!r} is registered twice; choose another key")
        self._entries[key] = entry
        return entry

    def register(self, key: str) -> Callable[[T], T]:
        """Decorator form of `add`."""
        return lambda entry: self.add(key, entry)

    def __getitem__(self, key: str) -> T:
        if key not in self._entries:
            self._load_entry_points()
        if key not in self._entries:
            raise unknown_name(self.kind, key, self._entries)
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        if key not in self._entries:
            self._load_entry_points()
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load_entry_points()
        return len(self._entries)

    def items(self) -> list[tuple[str, T]]:
        """All `(key, entry)` pairs in order of registration."""
        self._load_entry_points()
        return list(self._entries.items())

    def values(self) -> list[T]:
        """All entries in order of registration."""
        self._load_entry_points()
        return list(self._entries.values())

    def _load_entry_points(self) -> None:
        if self._entry_points_loaded:
            return
        self._entry_points_loaded = True
        for point in importlib.metadata.entry_points(group=f"assay.{self.plural}"):
            if point.name not in self._entries:
                self._entries[point.name] = point.load()

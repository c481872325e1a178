"""Names that are found on first use: entries of registries, and public names of packages.

There is one registry for every plug-in kind: methods, metrics, tasks, ablations, objectives.

A kind owns one `Registry`; an entry is any object with a kebab-case key. Entries of other
packages join through the entry-point group `assay.<kinds>` and are loaded when a look-up
misses or everything is listed. One that cannot be used breaks its own name alone.
"""

import ast
import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from assay.core.errors import AssayWarning, InputError, PluginError, check_name


T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Named objects of one kind, in order of registration.

    Args:
        kind: Singular name used in messages, e.g. `"method"`.
        plural: Names the entry-point group, `assay.<plural>`; default: `kind` with an s.
        holds: Class that entries of other packages are objects of; None takes anything.
        classes: Whether they are subclasses of it instead.
    """

    def __init__(
        self, kind: str, *, plural: str | None = None, holds: type | None = None, classes: bool = False
    ) -> None:
        self.kind = kind
        self.plural = plural or f"{kind}s"
        self._holds, self._classes = holds, classes
        self._entries: dict[str, T] = {}
        self._entry_points_loaded = False
        self._broken: dict[str, PluginError] = {}
        self._untold: list[str] = []  # what a list leaves out, until one was asked for

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
        if key not in self and key in self._broken:
            raise self._broken[key]
        check_name(self.kind, key, self._entries)
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        if key not in self._entries:
            self._load_entry_points()
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        while self._untold:
            warnings.warn(self._untold.pop(0), AssayWarning, stacklevel=3)
        return iter(self._entries)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load_entry_points(self) -> None:
        if self._entry_points_loaded:
            return
        self._entry_points_loaded = True
        for point in importlib.metadata.entry_points(group=f"assay.{self.plural}"):
            origin = "unknown" if point.dist is None else f"{point.dist.name} {point.dist.version}"
            try:
                self.add(point.name, self._checked(point.name, point.load()))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - code of other people may raise anything
                broken = self._broken[point.name] = PluginError(
                    f"{self.kind} {point.name!r} of the package {origin} ({point.value}) cannot be used: "
                    f"{type(error).__name__}: {error}; repair or uninstall the package"
                )
                broken.__cause__ = error
                self._untold.append(str(broken))

    def _checked(self, name: str, entry: T) -> T:
        """An entry of another package, if it is one."""
        wanted, kind = self._holds, entry if self._classes else type(entry)
        if wanted is not None and not (isinstance(kind, type) and issubclass(kind, wanted)):
            a = "a subclass of" if self._classes else "an object of"
            raise PluginError(f"it is {entry!r}, not {a} {wanted.__module__}.{wanted.__qualname__}")
        if (key := getattr(entry, "key", name)) != name:
            raise PluginError(f"its key is {key!r}; the entry point must have the same name")
        return entry


def homes_of(file: str) -> dict[str, tuple[str, str]]:
    """Module and name there of each public name of a package.

    Args:
        file: `__file__` of the package, beside which `__init__.pyi` holds a line
            `from MODULE import NAME as PUBLIC` for each.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [each for each in stub.body if isinstance(each, ast.ImportFrom)]
    return {str(alias.asname): (str(each.module), alias.name) for each in imports for alias in each.names}


def lazy_names(package: str, file: str) -> tuple[Callable[[str], object], tuple[str, ...]]:
    """The `__getattr__` of a package, which imports a public name from its home, and its `__all__`."""
    homes = homes_of(file)

    def load(name: str) -> object:
        if name not in homes:
            names = ", ".join(sorted(homes))
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {names}")
        module, own = homes[name]
        return getattr(importlib.import_module(module), own)

    return load, tuple(sorted(homes))

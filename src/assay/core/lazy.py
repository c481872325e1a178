"""Public names of a package, imported on first use, so that importing the package costs next to nothing."""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path


def lazy_names(package: str, file: str) -> tuple[dict[str, tuple[str, str]], Callable[[str], object]]:
    """The names that the stub beside a package's `__init__.py` imports, and the package's `__getattr__`.

    The stub, which type checkers read, is the one list of them: `from MODULE import NAME as NAME`.

    Args:
        package: `__name__` of the package.
        file: `__file__` of it.

    Returns:
        Each name with its module and its name there; and what finds a name.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        str(alias.asname): (str(statement.module), alias.name)
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def find(name: str) -> object:
        if name not in homes:
            names = ", ".join(sorted(homes))
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {names}")
        module, own = homes[name]
        return getattr(importlib.import_module(module), own)

    return homes, find

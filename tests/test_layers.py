"""Imports go one way: a part may use the parts below it, never those above or beside it."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import assay


SOURCE = Path(assay.__file__).resolve().parent

# From the bottom up; the parts of one row are independent of each other.
LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "core",
        "stats",
        "graph objectives",
        "page",
        "models tasks",
        "circuits",
        "execution",
        "discovery",
        "metrics",
        "zoo",
        "analyses/benchmark analyses/calibration analyses/generalization "
        "analyses/subsets analyses/worst_case",
        "store catalogue",
        "report",
        "pipeline",
        "app",
        "__main__",
    )
)
RANK = {part: rank for rank, row in enumerate(LAYERS) for part in row}

# A slow import stands at module level only at home, given by how paths begin or end; elsewhere inside the
# function that needs it.
HEAVY_HOMES: dict[str, tuple[str, ...]] = {
    # The latter holds classes of transformers' kind, and is itself imported where one is loaded.
    "transformers": ("models/loading.py", "models/attention_only.py"),
    "matplotlib": ("page/", "report/", "page.py", "plots.py"),
    "jinja2": ("page/", "report/"),
    "sqlalchemy": ("store/",),
    "cyclopts": ("app/",),
    "starlette": ("app/",),
    "uvicorn": ("app/",),
    "psutil": (),
    "pandas": ("analyses/subsets/",),  # tables go in and come out
    "sklearn": ("stats/",),
    "networkx": (),
    "timm": (),
    "torchvision": (),
    "ray": (),
    "huggingface_hub": (),
    "psycopg": (),
}


class Import(NamedTuple):
    """One imported module: dotted name, line, whether it runs when the importing module is loaded."""

    module: str
    line: int
    at_load: bool


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(tree: ast.AST, *, package: str, at_load: bool = True) -> Iterator[Import]:
    """Every import below `tree`, relative ones resolved against `package`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_load)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from assay import store` imports a module, `from assay.store import Store` a name of one.
                namespace = base in ("assay", "assay.analyses")
                yield Import(f"{base}.{alias.name}" if namespace else base, node.lineno, at_load)
        else:
            deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node)
            yield from imports(node, package=package, at_load=at_load and not deferred)


def part_of(path: Path) -> str:
    """The top-level module or folder that a file belongs to; each analysis is a part of its own."""
    return part_of_module(path.relative_to(SOURCE).with_suffix("").parts)


def part_of_module(parts: Sequence[str]) -> str:
    """The part of a dotted name below `assay`."""
    return "/".join(parts[:2]) if parts[0] == "analyses" and len(parts) > 1 else parts[0]


NAMESPACES = (SOURCE / "__init__.py", SOURCE / "analyses/__init__.py")
FILES = sorted(path for path in SOURCE.rglob("*.py") if path not in NAMESPACES)


def imports_of(path: Path) -> list[Import]:
    package = ".".join(["assay", *path.relative_to(SOURCE).parts[:-1]])
    return list(imports(ast.parse(path.read_text(), filename=str(path)), package=package))


def test_every_part_has_a_layer() -> None:
    unplaced = {part_of(path) for path in FILES} - RANK.keys()
    assert not unplaced, f"give these a layer in tests/test_layers.py and docs/architecture.md: {unplaced}"


def test_imports_go_down_the_layers() -> None:
    wrong = [line for path in FILES for line in upward_imports(path)]
    assert not wrong, "\n".join(wrong)


def upward_imports(path: Path) -> Iterator[str]:
    """A line for each import of a part above or beside the file's own."""
    own, name = part_of(path), path.relative_to(SOURCE)
    for found in imports_of(path):
        parts = found.module.split(".")
        if parts[0] != "assay":
            continue
        other = part_of_module(parts[1:]) if len(parts) > 1 else ""
        if other not in RANK:
            yield f"{name}:{found.line}: import the home of a name, not `assay` itself ({found.module})"
        elif other != own and RANK[other] >= RANK[own]:
            direction = "beside" if RANK[other] == RANK[own] else "above"
            yield f"{name}:{found.line}: {other} is {direction} {own}"


def test_heavy_imports_at_module_level_are_only_at_home() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{found.line}: import {found.module} inside the function that needs it"
        for path in FILES
        for found in imports_of(path)
        if found.at_load and found.module.split(".")[0] in HEAVY_HOMES and not _at_home(path, found.module)
    ]
    assert not wrong, "\n".join(wrong)


def _at_home(path: Path, module: str) -> bool:
    name, homes = path.relative_to(SOURCE).as_posix(), HEAVY_HOMES[module.split(".")[0]]
    return any(name.startswith(home) if home.endswith("/") else name.endswith(home) for home in homes)


def test_analyses_load_without_the_libraries_of_pages() -> None:
    analyses = [path.parent.name for path in SOURCE.glob("analyses/*/__init__.py")]
    modules = ", ".join(["assay", *(f"assay.analyses.{name}" for name in sorted(analyses))])
    program = f"import sys, {modules}; print(*{{'matplotlib', 'jinja2'}} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not result.stdout.strip()


def test_the_command_line_loads_only_what_help_needs() -> None:
    allowed = (
        "assay.core.errors",
        "assay.core.machine",
        "assay.core.untrusted",
        "assay.app.cli",
        "assay.app.delivery",
        "assay.app.options",
        "assay.app.settings",
    )
    slow = {"torch", "numpy", "scipy", "safetensors", "jaxtyping", "rich"}
    slow |= HEAVY_HOMES.keys() - {"cyclopts"}
    settings = [SOURCE / "app" / name for name in ("delivery.py", "options.py", "settings.py")]
    cli = [*settings, *(path for path in FILES if path.is_relative_to(SOURCE / "app/cli"))]
    wrong = [
        f"{path.name} line {found.line}: {found.module}"
        for path in cli
        for found in imports_of(path)
        if found.at_load
        and (
            found.module.split(".")[0] in slow
            or (found.module.startswith("assay.") and not found.module.startswith(allowed))
        )
    ]
    assert not wrong, "; ".join(wrong)


FORMS = """
import torch
from assay.store import Store
from assay import store
from .files import load
from .. import graph
def f():
    import pandas
if TYPE_CHECKING:
    import pandas
if x:
    import timm
class A:
    import ray
"""


def test_the_walk_sees_each_form_of_import() -> None:
    found = imports(ast.parse(FORMS), package="assay.circuits")
    at_load = ["torch", "assay.store", "assay.store", "assay.circuits.files", "assay.graph", "timm", "ray"]
    seen = [(each.module, each.at_load) for each in found]
    assert [name for name, early in seen if early] == at_load
    assert [name for name, early in seen if not early] == ["pandas", "pandas"]

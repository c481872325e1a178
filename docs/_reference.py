"""Sphinx extension: the reference pages, one per package, and docstrings as the package writes them.

The pages are made from the `__all__` of each package when a build starts, so a new public name cannot be
forgotten. Docstrings are Google sections over plain text with Markdown's back-ticks; what reStructuredText
would take for markup in them is escaped here.
"""

import importlib
import inspect
import re
from pathlib import Path

from sphinx.application import Sphinx

import assay
from assay.core.registry import homes_of


PAGES = {
    "models": ("Models", ["assay.models", "assay.models.planted"]),
    "graph": ("Graph", ["assay.graph"]),
    "tasks": ("Tasks", ["assay.tasks"]),
    "objectives": ("Objectives", ["assay.objectives"]),
    "discovery": ("Discovery", ["assay.discovery.edges"]),
    "circuits": ("Circuits", ["assay.circuits"]),
    "execution": ("Ablated execution", ["assay.execution"]),
    "heads": (
        "Single heads",
        [
            "assay.discovery.heads",
            *(
                f"assay.discovery.heads.{module}"
                for module in ("effects", "direct", "gradients", "information", "weights", "membership")
            ),
        ],
    ),
    "metrics": (
        "Metrics",
        ["assay.metrics", "assay.core.measurement", "assay.core.record"],
    ),
    "worst-case": ("Worst case", ["assay.analyses.worst_case"]),
    "calibration": ("Calibrations", ["assay.analyses.calibration"]),
    "benchmark": ("Benchmark of methods", ["assay.analyses.benchmark"]),
    "zoo": ("Zoos", ["assay.zoo"]),
    "generalization": ("Generalization", ["assay.analyses.generalization"]),
    "subsets": ("Subsets", ["assay.analyses.subsets"]),
    "stats": ("Statistics", ["assay.stats"]),
    "store": ("Store", ["assay.store", "assay.catalogue"]),
    "pipeline": (
        "Audit, sweeps and report",
        [
            "assay.pipeline.audit",
            "assay.pipeline.audit_result",
            "assay.pipeline.prune",
            "assay.pipeline.lock",
            "assay.pipeline.check",
            "assay.pipeline.plan",
            "assay.pipeline.jobs",
            "assay.pipeline.sweep",
            "assay.pipeline.workers",
            "assay.report.save",
            "assay.report.circuit_page",
            "assay.report.sweep",
            "assay.page.terminal",
        ],
    ),
    "service": (
        "Services",
        [
            "assay.app.site.web",
            "assay.app.watch",
            "assay.pipeline.evaluation",
        ],
    ),
    "errors": ("Errors and seeds", ["assay.core.errors", "assay.core.registry", "assay.core.random"]),
}


def public_names(package: str) -> list[str]:
    """What a package promises: its `__all__`, or the public functions and classes a module defines."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == package
    ]
    return [
        name
        for name in names
        if inspect.isclass(getattr(module, name)) or inspect.isroutine(getattr(module, name))
    ]


def page(title: str, packages: list[str]) -> str:
    """One reference page: each package's own description, then its public names."""
    top_level = {home: name for name, home in homes_of(assay.__file__).items()}
    lines = [f"# {title}", ""]
    for package in packages:
        lines += ["```{eval-rst}", f".. automodule:: {package}", "   :no-members:", ""]
        module = importlib.import_module(package)
        # Names of the top level first: they are what most readers look for.
        names = sorted(
            public_names(package), key=lambda name: ((package, name) not in top_level, name.lower())
        )
        for name in names:
            shown = top_level.get((package, name))
            path = f"assay.{shown}" if shown else f"{package}.{name}"
            directive = "autoclass" if inspect.isclass(getattr(module, name)) else "autofunction"
            lines += [f".. {directive}:: {path}"]
            lines += ["   :members:", ""] if directive == "autoclass" else [""]
        lines += ["```", ""]
    return "\n".join(lines)


def write_pages(app: Sphinx) -> None:
    """Write the pages that changed, so that unchanged ones are not built again."""
    directory = Path(app.srcdir) / "reference" / "generated"
    directory.mkdir(parents=True, exist_ok=True)
    for name, (title, packages) in PAGES.items():
        text, path = page(title, packages), directory / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


SECTION = re.compile(r"^\s*(Args|Attributes|Returns|Raises|Notes|References|Example|Examples|Yields):$")
LIST_ITEM = re.compile(r"^\s*([-*]|\d+[.)]) ")


def escaped(text: str) -> str:
    """Plain text with back-ticked code, as reStructuredText."""
    pieces = re.split(r"(`[^`]+`)", text)
    for index, piece in enumerate(pieces):
        if index % 2:
            follows = pieces[index + 1][:1]
            precedes = pieces[index - 1][-1:]
            left = "\\ " if precedes and not precedes.isspace() and precedes not in "([{\"'/-" else ""
            pieces[index] = f"{left}``{piece[1:-1]}``" + ("\\ " if follows.isalnum() else "")
        else:
            pieces[index] = re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", lambda match: "\\" + match.group(), piece)
    return "".join(pieces)


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def rewrite(lines: list[str]) -> list[str]:
    """A docstring of the package as reStructuredText for napoleon."""
    result: list[str] = []
    fenced = doctest = in_section = False
    for line in lines:
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
            result += ["", f"{line[: indent_of(line)]}::", ""] if fenced else [""]
            continue
        doctest = bool(stripped) and (doctest or stripped.startswith(">>>"))
        in_section = in_section or bool(SECTION.match(line))
        if fenced:
            result.append(f"    {line}")
            continue
        if doctest:
            result.append(line)
            continue
        before = result[-1] if result else ""
        item = LIST_ITEM.match(line)
        in_list = item or LIST_ITEM.match(before)
        if (
            before.strip()
            and stripped
            and not (in_section or in_list)
            and indent_of(line) != indent_of(before)
        ):
            result.append("")  # a formula set off by its indentation alone is a block of its own
        head = item.group() if item else ""
        result.append(head + escaped(line[len(head) :]))
    return result


def process(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    lines[:] = rewrite(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", process, priority=400)  # napoleon listens at 500
    return {"parallel_read_safe": True}

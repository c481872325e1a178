"""Sphinx extension: a page of the site for each executed notebook of `notebooks/`."""

import base64
import re
from pathlib import Path

import nbformat
from _commands import write_if_changed
from sphinx.application import Sphinx


# Links of a notebook lead from `notebooks/` to `docs/` and to its neighbours; pages lie in
# `docs/notebooks/generated/`.
LINKS = ((r"\]\(\.\./docs/", "](../../"), (r"\]\((\w+)\.ipynb\)", r"](\1.md)"))


PRINTED = "{code-block} text\n:class: printed\n"  # what a cell prints: long lines are broken


def fenced(language: str, text: str) -> list[str]:
    """A block of code or text, between more back-ticks than are in it."""
    mark = "`" * max([3, *(len(each) + 1 for each in re.findall("`+", text))])
    return [f"{mark}{language}", text.rstrip("\n"), mark, ""]


def output(shown: nbformat.NotebookNode, picture: Path) -> list[str]:
    """One output of a cell; a PNG is written as `picture`."""
    if shown.output_type == "stream":
        return fenced(PRINTED, shown.text)
    if "image/png" in shown.data:
        picture.write_bytes(base64.b64decode(shown.data["image/png"]))
        return [f"![output of the cell above]({picture.name})", ""]
    return fenced(PRINTED, shown.data["text/plain"])


def page(path: Path, directory: Path) -> str:
    """The page of a notebook; its PNG pictures are written into the directory."""
    lines: list[str] = []
    for place, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "markdown":
            text = cell.source
            for found, instead in LINKS:
                text = re.sub(found, instead, text)
            lines += [text, ""]
            if place == 0:
                lines += [f"[Download this notebook](../../../notebooks/{path.name}).", ""]
            continue
        lines += fenced("python", cell.source)
        for number, shown in enumerate(cell.outputs):
            lines += output(shown, directory / f"{path.stem}-{place}-{number}.png")
    return "\n".join(lines)


def write_pages(app: Sphinx) -> None:
    """Write the pages that changed."""
    source = Path(app.srcdir)
    directory = source / "notebooks" / "generated"
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted((source.parent / "notebooks").glob("*.ipynb")):
        write_if_changed(directory / f"{path.stem}.md", page(path, directory))


def link_pages(_: Sphinx, name: str, source: list[str]) -> None:
    """On the site, the gallery leads to the pages instead of the files."""
    if name == "notebooks/index":
        source[0] = re.sub(r"\]\(\.\./\.\./notebooks/(\w+)\.ipynb\)", r"](generated/\1.md)", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    app.connect("source-read", link_pages)
    return {"parallel_read_safe": True}

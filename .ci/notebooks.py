"""Execute the notebooks: python .ci/notebooks.py FOLDER [NAME ...].

Each `notebooks/NAME.py` is a notebook in jupytext's percent format. It is run in an empty folder, and written
with its outputs as `FOLDER/NAME.ipynb`. An error in a cell stops the run, and so do lines on stderr.
"""

import argparse
import base64
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient


SOURCES = Path(__file__).resolve().parents[1] / "notebooks"
LONGEST = 240  # seconds of a cell
# Nothing that differs between two machines.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read(source: Path) -> nbformat.NotebookNode:
    """The notebook of a source, not executed. Cells are numbered: the same source gives the same file."""
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    for place, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{place}", nbformat.from_dict({})
    return notebook


def execute(source: Path) -> nbformat.NotebookNode:
    """The notebook of a source with its outputs.

    Raises:
        CellExecutionError: A cell failed.
        RuntimeError: A cell wrote on stderr.
    """
    notebook = read(source)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],  # a warning that loopback is not encrypted
            timeout=LONGEST,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env={**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"})
    notebook.metadata = nbformat.from_dict(METADATA)  # the kernel adds its version
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stderr":
                raise RuntimeError(f"{source.name}, {cell.id} wrote on stderr: {output.text}")
    nbformat.validate(notebook)
    return notebook


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    """The pictures of its results, as PNG."""
    return [
        base64.b64decode(output.data["image/png"])
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", ())
    ]


def run(name: str, folder: Path, gallery: Path | None) -> None:
    """Execute a notebook and write it, and its last picture into the gallery."""
    start = time.monotonic()
    notebook = execute(SOURCES / f"{name}.py")
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook, path)
    if gallery is not None:
        (gallery / f"notebook-{name}.png").write_bytes(pictures(notebook)[-1])
    print(f"{path}: {time.monotonic() - start:.0f} s, {path.stat().st_size / 1000:.0f} kB", flush=True)


def main() -> None:
    """Execute the notebooks that the command line names."""
    names = [path.stem for path in sorted(SOURCES.glob("*.py"))]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the executed notebooks go")
    parser.add_argument("names", nargs="*", help=f"only these of {', '.join(names)}")
    parser.add_argument("--gallery", type=Path, help="folder for the last picture of each")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(names):
        sys.exit(f"{SOURCES} has no notebook {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        done = [pool.submit(run, name, asked.folder, asked.gallery) for name in asked.names or names]
    for each in done:
        each.result()


if __name__ == "__main__":
    main()

"""The notebooks are what their sources say, they ran without an error, and one of them runs here."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest


nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupytext")
pytest.importorskip("nbclient")

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "notebooks"
NAMES = ("circuit", "classifier", "own_model", "subset", "trust")
MOST_BYTES = 1_500_000
# Folders of a machine, wherever a path begins.
PLACE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|usr|opt|var|mnt|private)/\S*")
runner = SimpleNamespace(**runpy.run_path(str(REPOSITORY / ".ci" / "notebooks.py")))


def written(name: str) -> "nbformat.NotebookNode":
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def cells(notebook: "nbformat.NotebookNode") -> list[tuple[str, str, str]]:
    """What a source decides of each cell."""
    return [(cell.id, cell.cell_type, cell.source) for cell in notebook.cells]


def kinds(notebook: "nbformat.NotebookNode") -> list[list[tuple[str, tuple[str, ...]]]]:
    """Of each cell: the outputs, by type and by what they hold."""
    return [
        [(each.output_type, tuple(sorted(each.get("data", ())))) for each in cell.get("outputs", ())]
        for cell in notebook.cells
    ]


def texts(notebook: "nbformat.NotebookNode") -> list[str]:
    """Everything readable in the outputs."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    data = [text for each in outputs for kind, text in each.get("data", {}).items() if kind != "image/png"]
    return [*(each.text for each in outputs if "text" in each), *data]


def test_every_source_has_a_notebook_and_every_notebook_a_source() -> None:
    for ending in ("py", "ipynb"):
        assert tuple(sorted(path.stem for path in FOLDER.glob(f"*.{ending}"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_what_its_source_says(name: str) -> None:
    source, notebook = runner.read(FOLDER / f"{name}.py"), written(name)
    assert cells(notebook) == cells(source), "run: make notebooks-update"
    assert notebook.metadata == source.metadata
    nbformat.validate(notebook)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_ran_from_top_to_bottom_without_an_error(name: str) -> None:
    code = [cell for cell in written(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert len(outputs) > len(code) / 2
    assert not [each for each in outputs if each.output_type == "error" or each.get("name") == "stderr"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_small_shows_pictures_and_names_no_folder_of_a_machine(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").stat().st_size < MOST_BYTES
    notebook = written(name)
    assert not [found for text in texts(notebook) for found in PLACE.findall(text)]
    pictures = runner.pictures(notebook)
    assert len(pictures) >= 2
    assert (REPOSITORY / "docs" / "images" / f"notebook-{name}.png").read_bytes() == pictures[-1]


@pytest.mark.parametrize("name", NAMES)
def test_prose_types_no_decimals(name: str) -> None:
    """A number in the text would stay when the cell below it says another one; limits are named in code."""
    allowed = {"0.9", "0.8", "0.05"}  # thresholds and levels that the text explains
    prose = "\n".join(cell.source for cell in written(name).cells if cell.cell_type == "markdown")
    assert set(re.findall(r"\d+\.\d+", prose)) <= allowed


@pytest.mark.slow
def test_one_notebook_runs_and_shows_what_the_written_one_shows() -> None:
    made = runner.execute(FOLDER / "own_model.py")
    assert kinds(made) == kinds(written("own_model"))


# ---- the tests' own -----------------------------------------------------------------------------


def source_of(folder: Path, *lines: str) -> Path:
    path = folder / "source.py"
    path.write_text("\n".join(("# %% [markdown]", "# # Title", "", "# %%", *lines, "")))
    return path


def test_an_error_and_a_line_on_stderr_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="ZeroDivisionError"):
        runner.execute(source_of(tmp_path, "1 / 0"))
    source = source_of(tmp_path, "import sys", 'print("seen", file=sys.stderr)')
    with pytest.raises(RuntimeError, match=r"source.py, cell-1 wrote on stderr: seen"):
        runner.execute(source)

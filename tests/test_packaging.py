"""What is built and installed: names, bounds, extras, both distributions, a clean environment."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from packaging.requirements import Requirement
from planted_subsets import planted_matrix

import assay
from assay.core.errors import DISTRIBUTION, MissingExtraError, install_command, needs_extra


REPOSITORY = Path(__file__).resolve().parents[1]


PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
MEGABYTE = 1_000_000
# What a checkout holds besides its files: environments, caches, what was built.
IGNORED = shutil.ignore_patterns(
    *(line.rstrip("/").split("/")[-1] for line in (REPOSITORY / ".gitignore").read_text().split()), ".git"
)


# ---- declarations -------------------------------------------------------------------------------


def test_the_code_and_the_project_declare_the_same_distribution_and_extras() -> None:
    declared = PROJECT["optional-dependencies"]
    assert PROJECT["name"] == DISTRIBUTION
    (everything,) = map(Requirement, declared["all"])
    assert everything.name == DISTRIBUTION
    assert everything.extras == declared.keys() - {"all", "dev", "docs"}


def test_the_oldest_constraints_are_the_lower_bounds() -> None:
    rows = (REPOSITORY / "requirements-oldest.txt").read_text().splitlines()
    extras = (PROJECT["optional-dependencies"][each] for each in ("serve", "parquet", "postgres"))
    direct = map(Requirement, [*PROJECT["dependencies"], *(row for extra in extras for row in extra)])
    lowest = {each.name: str(each.specifier).removeprefix(">=") for each in direct}
    del lowest["torch"]  # named in the Makefile
    assert dict(row.split("==") for row in rows if row[:1] != "#") == lowest


def test_every_requirement_of_the_lock_is_pinned_with_hashes_and_names_no_host() -> None:
    text = (REPOSITORY / "requirements.lock").read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 100
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==[^\s;]+( ; .+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry
    assert "://" not in text


def test_pages_name_the_distribution_and_extras_that_exist() -> None:
    places = ("*.md", "docs/*.md", "docs/[!_]*/**/*.md")
    for page in (each for place in places for each in REPOSITORY.glob(place)):
        for name, extra in re.findall(r"['\"/]([\w-]*assay[\w-]*)\[([\w,]+)\]['\"]", page.read_text()):
            assert name == DISTRIBUTION, page
            assert set(extra.split(",")) <= set(PROJECT["optional-dependencies"]), page


def test_a_missing_extra_is_named_with_its_command() -> None:
    with pytest.raises(MissingExtraError) as caught, needs_extra("serve", "this needs that"):
        import a_package_that_nobody_has  # noqa: F401
    assert str(caught.value) == "this needs that; run: pip install 'circuit-assay[serve]'"
    assert install_command("serve") in str(caught.value)
    code = (
        "import runpy, sys; sys.modules['uvicorn'] = None; sys.argv = ['assay', 'serve']; "
        "runpy.run_module('assay', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("run: pip install 'circuit-assay[serve]'")


# ---- what is built ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel built from what it holds."""
    folder = tmp_path_factory.mktemp("built")
    tree, out = folder / "tree", folder / "out"
    shutil.copytree(REPOSITORY, tree, ignore=IGNORED)

    def build(kind: str, source: Path) -> Path:
        code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
        command = [sys.executable, "-c", code, str(out)]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return max(out.iterdir(), key=lambda path: path.stat().st_mtime_ns)

    out.mkdir()
    sdist = build("sdist", tree)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return sdist, build("wheel", folder / sdist.name.removesuffix(".tar.gz"))


def test_the_source_distribution_holds_the_checkout(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tree = built[0].parents[1] / "tree"
    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert not {each for each in files if ".egg-info" not in each} - held


def test_the_wheel_is_small_and_holds_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    wheel = built[1]
    assert wheel.name == f"circuit_assay-{assay.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 12 * MEGABYTE
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("assay/")}
    source = REPOSITORY / "src"
    assert held == {
        path.relative_to(source).as_posix()
        for path in source.glob("assay/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }


# ---- a clean environment ------------------------------------------------------------------------


def required(distribution: importlib.metadata.Distribution, seen: set[str]) -> Iterator[str]:
    """Names of what pip would install for a distribution without extras, each once."""
    for row in map(Requirement, distribution.requires or ()):
        if row.name not in seen and (row.marker is None or row.marker.evaluate({"extra": ""})):
            seen.add(row.name)
            yield row.name
            yield from required(importlib.metadata.distribution(row.name), seen)


def install(name: str, place: Path) -> None:
    """A distribution of this environment, linked into another one."""
    distribution = importlib.metadata.distribution(name)
    roots = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for root in roots:
        if not (place / root).exists():
            (place / root).symlink_to(distribution.locate_file(root))


@pytest.fixture(scope="module")
def clean(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the wheel and what it requires; no extras, no checkout."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    there = ("--python", str(folder / "bin" / "python"), "--disable-pip-version-check")
    pip = [sys.executable, "-m", "pip", *there, "install", "-qq", "--no-deps", "--no-index", str(built[1])]
    subprocess.run(pip, check=True, timeout=120)
    (place,) = folder.glob("lib/python*/site-packages")
    (wheel,) = importlib.metadata.distributions(name=DISTRIBUTION, path=[str(place)])
    for name in required(wheel, {DISTRIBUTION}):
        install(name, place)
    return folder / "bin"


def run(clean: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A program of the clean environment, in a folder of its own."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ASSAY_"))}
    whole = [str(clean / command[0]), *command[1:]]
    given: dict[str, Any] = {"cwd": folder, "env": variables, "timeout": 240}
    return subprocess.run(whole, capture_output=True, text=True, check=False, **given)


def test_audit_and_select_run_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    home = run(clean, tmp_path, "python", "-c", "import assay; print(assay.__file__)")
    assert home.stdout.startswith(str(clean.parent)), home.stderr

    audit = ["--model", "mini", "--task", "ioi", "--n", "8", "--n-random", "1", "--out", "audited"]
    done = run(clean, tmp_path, "assay", "audit", *audit, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "audited" / "report.html").read_text()

    data = planted_matrix(40, 120)
    table = pd.DataFrame(data.correct)
    table.insert(0, "model", [f"run-{place}" for place in range(len(table))])
    table.insert(1, "id_accuracy", data.id_accuracy)
    table.to_csv(tmp_path / "table.csv", index=False)
    choice = ["table.csv", "--groups", "model", "--sizes", "30", "--permutations", "5", "--folds", "3"]
    done = run(clean, tmp_path, "assay", "select", *choice, "--out", "selected", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "selected" / "report.html").read_text()

"""What runs on the forge names commands, files and versions that exist; the metadata of a release."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import assay


REPOSITORY = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]


FORGE = REPOSITORY / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
URL = "https://forge.example/somebody/assay"


def steps(path: Path) -> list[str]:
    """Commands of a workflow."""
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job.get("steps", ()) if "run" in step]


@pytest.mark.parametrize("path", sorted(FORGE.rglob("*.yml")), ids=lambda path: path.stem)
def test_every_file_of_the_forge_is_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_files_and_extras_that_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    commands = " && ".join(steps(path))
    assert set(re.findall(r"\bmake ([\w-]+)", commands)) <= targets
    for file in re.findall(r"(?:@|python |bash |pytest )((?:tests|\.ci)/[\w./-]+)", commands):
        assert (REPOSITORY / file).exists(), file
    for extras in re.findall(r'"\.\[([\w,]+)\]"', commands):
        assert set(extras.split(",")) <= set(EXTRAS)


def test_actions_get_no_more_rights_than_reading_by_default() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}, path


def test_the_quick_tests_exist_and_are_not_all() -> None:
    named = (REPOSITORY / "tests" / "quick.txt").read_text().split()
    assert named == sorted(named)
    assert all((REPOSITORY / each).exists() for each in named)


# ---- the metadata of a release ------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that a release changes."""
    for name in (".ci/release_metadata.py", "README.md", "pyproject.toml", "src/assay/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def prepare(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / ".ci/release_metadata.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_release_has_project_urls_and_absolute_links(checkout: Path) -> None:
    tag = f"v{assay.__version__}"
    done = prepare(checkout, URL, tag)
    assert done.returncode == 0, done.stderr
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Repository"] == URL
    links = re.findall(r"\]\(([^)]+)\)", (checkout / "README.md").read_text())
    assert f"{URL}/raw/{tag}/docs/images/report.png" in links
    assert f"{URL}/blob/{tag}/LICENSE" in links
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    for link in links:
        if link.startswith(URL):
            assert (REPOSITORY / link.split(tag + "/", 1)[1].split("#")[0]).exists(), link


def test_a_tag_that_is_not_the_version_stops_the_release(checkout: Path) -> None:
    before = (checkout / "README.md").read_text()
    done = prepare(checkout, URL, "v99")
    assert done.returncode == 1
    assert f"the tag is v99, the package {assay.__version__}" in done.stderr
    assert "is not the address of a repository" in prepare(checkout, "here", f"v{assay.__version__}").stderr
    assert (checkout / "README.md").read_text() == before

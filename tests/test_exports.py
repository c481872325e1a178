"""What can be imported from `assay` is what is promised, and importing it costs next to nothing."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import assay
from assay.core.registry import homes_of


SOURCE = Path(assay.__file__).resolve()
HOMES = homes_of(assay.__file__)


@pytest.mark.parametrize("name", assay.__all__)
def test_every_promised_name_resolves_to_its_home(name: str) -> None:
    module, attribute = HOMES[name]
    assert getattr(assay, name) is getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("package", sorted({module for module, _ in HOMES.values()}))
def test_packages_promise_what_the_top_level_takes_from_them(package: str) -> None:
    module = importlib.import_module(package)
    if not hasattr(module, "__path__"):
        return  # a plain module: its public names are those without an underscore
    assert {name for home, name in HOMES.values() if home == package} <= set(module.__all__)
    for name in module.__all__:
        getattr(module, name)


def test_dir_lists_every_public_name() -> None:
    assert set(assay.__all__) <= set(dir(assay))


def test_no_module_bears_the_name_of_a_public_function() -> None:
    """A submodule would replace the function of its name on the package after its first import."""
    modules = {path.stem for path in SOURCE.parent.glob("*.py")} | {
        path.parent.name for path in SOURCE.parent.glob("*/__init__.py")
    }
    assert not modules & set(assay.__all__)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'discovr'; public names: .*discover"):
        assay.discovr  # noqa: B018


def _fresh(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "transformers", "matplotlib", "sqlalchemy", "pandas", "scipy", "cyclopts"]
    code = f"import sys, assay; print([name for name in {heavy} if name in sys.modules])"
    assert _fresh(code).stdout.strip() == "[]"


def test_help_of_the_command_line_loads_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "transformers", "matplotlib", "sqlalchemy", "pandas", "scipy"]
    code = (
        "import sys; sys.argv = ['assay', '--help']\nfrom assay.app.cli import main\n"
        f"try: main()\nexcept SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    assert _fresh(code).stdout.splitlines()[-1] == "[]"


def test_an_installed_package_has_every_file_of_the_tree() -> None:
    package = SOURCE.parent
    settings = tomllib.loads((package.parents[1] / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["assay"]
    declared = {pattern: set(package.glob(pattern)) for pattern in patterns}
    assert [pattern for pattern, files in declared.items() if not files] == []
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert files <= set().union(*declared.values())

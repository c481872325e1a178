"""Every snippet of the documentation and every example of a docstring runs."""

import doctest
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hub_cache import draw_photos, fill_cache
from thorough import one_of

import assay
from assay.catalogue import KINDS


REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    if "_build" not in path.parts and "generated" not in path.parts
)
FENCE = re.compile(
    r"^(?P<mark>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=mark)\s*$", re.MULTILINE | re.DOTALL
)
DOCTEST_OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


class Block(NamedTuple):
    """A fenced block: its language, the rest of its info string, its text and first line number."""

    language: str
    options: str
    body: str
    line: int


def blocks(text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        language, _, options = match["info"].strip().partition(" ")
        found.append(Block(language, options, match["body"], text.count("\n", 0, match.start("body")) + 1))
    return found


def commands(body: str) -> list[str]:
    """The commands of a console block: lines after `$ `, with continuation lines joined."""
    joined = body.replace("\\\n", " ")
    return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


def run_doctest(source: str, namespace: dict[str, Any], name: str, path: str, line: int) -> None:
    examples = doctest.DocTestParser().get_doctest(source, namespace, name, path, line)
    examples.globs = namespace  # the parser copies it; later blocks of a page go on with the same names
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=DOCTEST_OPTIONS, verbose=False)
    runner.run(examples, out=output.append, clear_globs=False)
    if runner.failures:
        pytest.fail("".join(output), pytrace=False)


def run_python(block: Block, namespace: dict[str, Any], path: Path) -> None:
    if block.body.lstrip().startswith(">>>"):
        run_doctest(block.body, namespace, path.stem, str(path), block.line - 1)
        return
    code = compile("\n" * (block.line - 1) + block.body, str(path), "exec")
    exec(code, namespace)


def run_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One `assay ...` command in this process, or through a shell where it needs one."""
    if re.search(r"[|<>;&$]", command):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        finished = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": path},
            check=False,
        )
        assert finished.returncode == 0, f"{command}\n{finished.stdout}{finished.stderr}"
        return
    from assay.app.cli import main

    monkeypatch.setattr(sys, "argv", shlex.split(command))
    status: int | str | None = 0
    try:
        main()
    except SystemExit as stop:
        status = stop.code
    assert status in (0, None), f"{command}: exit status {status}"


def snippets(path: Path) -> list[Block]:
    found = []
    for block in blocks(path.read_text(encoding="utf-8")):
        python = block.language == "python" and block.options != "no-run"
        console = block.language == "console" and any(
            command.startswith("assay ") for command in commands(block.body)
        )
        if python or console:
            found.append(block)
    return found


@pytest.fixture
def registries_restored() -> Iterator[None]:
    """What a page registers is gone afterwards: other tests compare the registries with written lists."""
    registries = [getattr(importlib.import_module(module), name) for module, name in KINDS.values()]
    before = [dict(registry._entries) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry._entries = entries


WITH_SNIPPETS = [path for path in PAGES if snippets(path)]


@pytest.mark.usefixtures("registries_restored", "unchecked")  # unchecked, as for a reader
@pytest.mark.parametrize(
    "path",
    one_of(WITH_SNIPPETS, REPOSITORY / "README.md", REPOSITORY / "docs" / "tutorial.md"),
    ids=lambda path: str(path.relative_to(REPOSITORY)),
)
def test_the_snippets_of_a_page_run_in_order(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    if path.parent.name == "guides":  # their models are random ones of the same type and id
        fill_cache(tmp_path / "hub")
        draw_photos(tmp_path / "photos")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in snippets(path):
        if block.language == "python":
            run_python(block, namespace, path)
            continue
        for command in commands(block.body):
            if command.startswith("assay "):
                run_command(command, monkeypatch)


def test_python_of_a_page_is_fenced_so_that_it_runs() -> None:
    """Directives and other spellings of the language would hide a snippet from the test above."""
    hidden = [
        f"{path.relative_to(REPOSITORY)}:{block.line}"
        for path in PAGES
        for block in blocks(path.read_text(encoding="utf-8"))
        if block.language in ("py", "python3", "pycon", "ipython") or block.language.startswith("{code")
    ]
    assert not hidden, f"fence these as ```python: {hidden}"


# ---------------------------------------------------------------------------------------------- docstrings


SOURCE = Path(assay.__file__).resolve().parent
MODULES = sorted(
    ".".join(["assay", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.name != "__main__.py"
)


def documented(module_name: str) -> Iterator[tuple[str, str]]:
    """Name and docstring of a module and of the classes, methods and functions it defines."""
    module = importlib.import_module(module_name)
    yield module_name, module.__doc__ or ""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module_name:
            continue
        if inspect.isclass(value):
            for attribute, member in [("", value), *vars(value).items()]:
                own = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                yield f"{name}.{attribute}".rstrip("."), getattr(own, "__doc__", None) or ""
        elif callable(value):
            yield name, value.__doc__ or ""


@pytest.mark.parametrize("module_name", MODULES)
def test_the_examples_of_docstrings_run(
    module_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, docstring in documented(module_name):
        if ">>>" in docstring:
            public = {each: getattr(assay, each) for each in assay.__all__ if each != "list"}
            given = {**public, "assay": assay, "torch": torch, "np": np, "tmp_path": tmp_path}
            module = vars(importlib.import_module(module_name))
            run_doctest(inspect.cleandoc(docstring), {**module, **given}, name, module_name, 0)


# ------------------------------------------------------------------------------------------- the test's own


def test_blocks_are_found_with_their_lines() -> None:
    text = "a\n```python\nx = 1\n```\n\n````text\n```python\nno\n```\n````\n```python no-run\ny\n```\n"
    assert blocks(text) == [
        Block("python", "", "x = 1\n", 3),
        Block("text", "", "```python\nno\n```\n", 7),
        Block("python", "no-run", "y\n", 12),
    ]
    assert commands("$ assay list \\\n    tasks\nioi\n$ assay show ab\n") == [
        "assay list      tasks",
        "assay show ab",
    ]


def test_a_wrong_example_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="Expected"):
        run_doctest(">>> 1 + 1\n3\n", {}, "wrong", "nowhere", 0)

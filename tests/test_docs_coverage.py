"""The documentation speaks of everything that is registered, and of nothing that does not exist."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import assay


REPOSITORY = Path(__file__).resolve().parent.parent
THEORY = "\n".join(path.read_text("utf-8") for path in (REPOSITORY / "docs" / "theory").glob("*.md"))
PAGES = sorted(
    path
    for path in [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        REPOSITORY / "examples/README.md",
        *(REPOSITORY / "notebooks").glob("*.py"),
    ]
    if "_build" not in path.parts and "generated" not in path.parts
)
SYMBOL = re.compile(r"`(assay(?:\.\w+)+)(?:\(.*?\))?`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
DESCRIBED = "methods metrics ablations objectives tasks head-methods interventions corruptions distances"
FILES = "db rules.yml rules.test.yml version NAME NAME.id NAME.verdict"  # and names of no one in particular
GROUPS = f"{DESCRIBED} divergences families gates pages".replace("-", "_")  # of entry points
NOT_SYMBOLS = {f"assay.{name}" for name in f"{GROUPS} {FILES}".split()}
KEYS = [(kind, key) for kind in DESCRIBED.split() for key in assay.list(kind).keys]


@pytest.mark.parametrize(("kind", "key"), KEYS)
def test_whatever_is_registered_has_a_theory_page(kind: str, key: str) -> None:
    assert f"`{key}`" in THEORY, f"no page of docs/theory speaks of {kind[:-1]} `{key}`"


@pytest.mark.parametrize("key", assay.list("methods").keys)
def test_a_method_has_a_page_of_its_own(key: str) -> None:
    assert (REPOSITORY / "docs" / "theory" / f"{key}.md").is_file()


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute reached from one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            if not hasattr(value, name):
                return False
            value = getattr(value, name)
        return True
    return False


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_names_of_the_package_that_a_page_gives_exist(path: Path) -> None:
    named = {match[1] for match in SYMBOL.finditer(path.read_text(encoding="utf-8"))}
    missing = sorted(name for name in named - NOT_SYMBOLS if not exists(name))
    assert not missing


def anchors(path: Path) -> set[str]:
    """Headings of a page as its links name them: lower case, hyphens for spaces, no other signs."""
    text = re.sub(r"^(`{3,}).*?^\1\s*$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#{1,3} (.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether a link inside the repository names a file and, in a page, one of its headings."""
    name, _, anchor = target.partition("#")
    file = page if not name else page.parent / name
    if "generated/" in name:  # made by the build
        return True
    return file.exists() and (not anchor or file.suffix != ".md" or anchor in anchors(file))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_links_of_a_page_lead_somewhere(path: Path) -> None:
    targets = {match[1] for match in LINK.finditer(path.read_text(encoding="utf-8"))}
    assert not sorted(target for target in targets if not leads_somewhere(path, target))


def test_a_link_to_a_missing_page_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Two `words`, more\n\n```text\n# no heading\n```\n")
    assert leads_somewhere(page, "#two-words-more")
    assert leads_somewhere(page, "page.md#two-words-more")
    assert not leads_somewhere(page, "#no-heading")
    assert not leads_somewhere(page, "other.md")


PAPERS = sorted((REPOSITORY / "docs" / "papers").glob("*.md"))


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_files_that_a_page_of_a_paper_names_exist(path: Path) -> None:
    named = re.findall(r"`((?:experiments|tests|benchmarks)/[^`]+)`", path.read_text(encoding="utf-8"))
    assert not [name for name in named if not (REPOSITORY / name).exists()]


# ---- pages made by the build --------------------------------------------------------------------


@pytest.fixture(scope="module")
def builders() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The extensions of the documentation that write pages."""
    pytest.importorskip("sphinx")
    sys.path.insert(0, str(REPOSITORY / "docs"))
    yield importlib.import_module("_commands"), importlib.import_module("_choices")
    sys.path.pop(0)


def test_every_option_of_every_command_has_a_row(builders: tuple[ModuleType, ModuleType]) -> None:
    commands, _ = builders
    documents = commands.json_rows(REPOSITORY / "docs")
    pages = {name: commands.page(name, each, documents.get(name)) for name, each in commands.commands()}
    assert documents.keys() <= pages.keys()
    assert {"audit", "store ls", "zoo train"} <= pages.keys()
    for name, command in commands.commands():
        for argument in command.assemble_argument_collection(parse_docstring=True):
            row = rf"^\| `{re.escape(argument.name)}` \| \S.* \| .+ \| .+ \|$"
            assert not argument.show or re.search(row, pages[name], re.MULTILINE), (name, argument.name)
    target = "Normalised faithfulness that a discovered circuit must reach; its interval lies in T to 2 - T."
    assert f"| `--target` | {target} | number | `0.9` |" in pages["audit"]
    assert "whole number, at least 1" in pages["audit"]
    assert "with `--full` 200" in pages["audit"]
    assert "| 3 | a gate or alarm fired |" in pages["calibrate"]
    assert "| 3 |" not in pages["discover"]
    assert "Schema: `assay-audit/1`." in pages["audit"]


def test_the_file_of_a_command_has_its_options_in_a_table(builders: tuple[ModuleType, ModuleType]) -> None:
    commands, _ = builders
    for name, command in commands.commands():
        body = "\n".join(commands.toml_of(name, commands.arguments(command))[1:-2])
        values = tomllib.loads(body)
        for word in name.split():
            values = values[word]
        options = {each for argument in command.assemble_argument_collection() for each in argument.names}
        assert {f"--{key}" for key in values} <= options
        assert values or name in ("show", "store show"), name


def test_the_tables_that_help_to_choose_have_every_entry(builders: tuple[ModuleType, ModuleType]) -> None:
    _, choices = builders
    source = REPOSITORY / "docs"
    for kind in ("methods", "metrics", "gates"):
        text = "\n".join(getattr(choices, kind)(source))
        assert all(f"`{key}`" in text for key in assay.list(kind).keys)
        for target in re.findall(r"\]\((?!http)([^)\s]+)\)", text):
            assert leads_somewhere(source / "choose" / f"{kind}.md", target), target
    assert "`timm>=1.0.9`" in "\n".join(choices.extras(source))

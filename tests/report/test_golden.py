"""One text per kind of page, as a terminal shows it, and what every page keeps to whatever it is made of.

`ASSAY_GOLDEN=write pytest tests/report/test_golden.py -k golden` writes the texts again; read their diff.
"""

import copy
import functools
import html
import io
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages import KINDS, VARIANTS, documents
from rich.console import Console
from test_html import HOSTILE, Page

from assay.core.errors import AssayError, InputError
from assay.page.blocks import Block, Details, Figure, Interactive, Note, Section, Table
from assay.page.blocks import Page as Blocks
from assay.page.terminal import print_page
from assay.report.save import pages_of, render


GOLDEN = Path(__file__).parent / "golden"


@functools.cache
def document_of(kind: str, names: str | None = None) -> Any:
    return documents(names)[kind]()


@functools.cache
def text_of(kind: str, names: str | None = None) -> str:
    document = document_of(kind, names)
    return render(*document) if isinstance(document, list) else render(document)


def unfolded(block: Block) -> Block:
    """A block with its captions and all that is behind a click."""
    match block:
        case Table():
            return _open(block, Note(text=block.caption))
        case Details():
            return _open(Note(text=block.summary), *block.blocks)
        case Figure():
            return _open(*block.blocks, Note(text=block.caption), Note(text=block.note), *block.more)
        case Interactive(template="checks.html"):
            checks = block.values["checks"]
            return _open(*block.blocks, *(part for check in checks for part in _checked(check)))
        case Section() | Interactive():
            return replace(block, blocks=[unfolded(each) for each in block.blocks])
    return block


def _open(*blocks: Block) -> Details:
    parts = [each if isinstance(each, Table) else unfolded(each) for each in blocks]
    return Details(summary="", open=True, blocks=parts)


def _checked(check: dict[str, Any]) -> list[Block]:
    """What the page alone shows of a gate."""
    heading = f"{check['gate']['code']}: {check['value']} {check['passes']} {check['lacking']}"
    return [Note(text=heading), *check["words"], *check["more"]]


def written(page: Blocks) -> str:
    sections = [replace(each, blocks=[unfolded(block) for block in each.blocks]) for each in page.sections]
    head = [Note(text=page.lede), *(unfolded(each) for each in page.head)]
    console = Console(width=200, file=io.StringIO())
    print_page(replace(page, head=head, sections=sections), console)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS + VARIANTS)
def test_the_text_of_a_page_is_the_golden_one(kind: str) -> None:
    text = "".join(written(page) for page in pages_of(document_of(kind)))
    if kind == "sweep":  # of a store that was filled now
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "(now)", text)
    path = GOLDEN / f"{kind.replace(' ', '-')}.txt"
    if os.environ.get("ASSAY_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_every_word_and_number_of_the_terminal(kind: str) -> None:
    shown = words_of(html.unescape(re.sub(r"<[^>]+>", " ", text_of(kind))))
    said = words_of("".join(written(page) for page in pages_of(document_of(kind))))
    assert len(said) > 15
    assert said - shown <= {"what"}, "the heading of a column that only a terminal has"


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w(?:[\w.,\N{MINUS SIGN}-]*\w)?", text))


@pytest.mark.parametrize("kind", KINDS + VARIANTS)
def test_a_page_is_well_formed_small_named_and_asks_for_nothing(kind: str) -> None:
    text = text_of(kind)
    page = Page(text)
    assert len(text.encode()) < 600_000
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert page.tags["h1"] == page.tags["article"] == 1
    assert [link for link in page.links if not link.startswith(("#", "data:image/"))] == []
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", text)
    assert page.tags["link"] == page.tags["iframe"] == 0
    pictures = re.findall(r"<svg[^>]*>", text)
    assert [each for each in pictures if "role=" not in each and 'aria-hidden="true"' not in each] == []
    for word in ("Figure", "Table"):
        numbers = [int(each) for each in re.findall(rf"<b>{word} ([0-9]+)\.</b>", text)]
        assert numbers == list(range(1, len(numbers) + 1))


def assert_harmless(kind: str, text: str) -> None:
    page, harmless = Page(text), Page(text_of(kind))
    assert page.tags["script"] == harmless.tags["script"]
    assert page.tags["img"] == harmless.tags["img"]
    assert {name for name, _ in page.attributes if name.startswith("on")} == set()
    # A comparison shows what both measured, and no names.
    assert any(HOSTILE in "".join(texts) for texts in page.data.values()) is (kind != "comparison")


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_stay_text(kind: str) -> None:
    assert_harmless(kind, text_of(kind, HOSTILE))


# Texts without which there is no page, as what they name does not exist.
CHOOSING = {
    "audit": {"source", "target"},
    "worst case with search": set[str](),
    "calibration": set[str](),
    "ranking": {"measure"},
    "subset": {"image", "interval_units", "rule", "status", "unit_kind"},
    "monitor": set[str](),
    "evaluation": {"distance", "granularity"},
}


def hostile(value: Any, choosing: set[str], inside: str = "") -> Any:
    """Every text of a document replaced, and one more entry where the names of entries are other people's."""
    if isinstance(value, dict):
        changed = {key: hostile(each, choosing, key) for key, each in value.items()}
        free = inside in ("provenance", "record", "machine", "search")
        return changed | {HOSTILE: {HOSTILE: HOSTILE}} if free else changed
    if isinstance(value, list):
        return [hostile(each, choosing, inside) for each in value]
    return HOSTILE if isinstance(value, str) and inside not in choosing else value


@pytest.mark.parametrize("kind", CHOOSING)
def test_every_text_of_a_document_can_be_hostile(kind: str) -> None:
    changed = hostile(document_of(kind), CHOOSING[kind] | {"kind", "schema"})
    if kind == "calibration":
        for gate in changed["gates"]:
            gate["verdict"]["values"][HOSTILE] = 1.0
            if parts := gate["verdict"].get("sub_results"):
                parts[HOSTILE] = next(iter(parts.values()))
    assert_harmless(kind, render(changed))


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("audit", "circuit"),
        ("worst case", "summary"),
        ("calibration", "table"),
        ("ranking", "metrics"),
        ("subset", "rows"),
        ("monitor", "guarantee"),
        ("evaluation", "test"),
    ],
)
def test_documents_of_another_schema_or_with_a_part_missing_are_refused(kind: str, part: str) -> None:
    document = document_of(kind)
    with pytest.raises(InputError, match=r"schema 'assay-other/9'; this version reads"):
        render(document | {"schema": "assay-other/9"})
    with pytest.raises(AssayError, match=rf"lacks {part}|required field missing"):
        render({key: value for key, value in document.items() if key != part})


@pytest.mark.parametrize("kind", KINDS[:7])
def test_a_document_is_left_alone_and_gives_the_same_page_again(kind: str) -> None:
    document = documents()[kind]()
    before = copy.deepcopy(document)
    assert render(document) == text_of(kind)
    assert document == before

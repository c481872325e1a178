"""What a page of any kind keeps to, whatever it is made of, and one text per kind as a terminal shows it.

`ASSAY_GOLDEN=write pytest tests/report/test_pages.py -k golden` writes the texts again; read their diff.
"""

import base64
import hashlib
import html
import io
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from pages import DOCUMENTS, MAKERS, document, large_document
from rich.console import Console
from synthetic_store import HOSTILE
from synthetic_store import measurement as made_up

from assay.core.errors import AssayError, InputError, OutputError
from assay.page import terminal
from assay.page.blocks import Block, Details, Figure, Interactive, Note, Section, Table
from assay.page.blocks import Page as Blocks
from assay.page.graph import UNSCRIPTED, WRITTEN_ROWS
from assay.page.html import source
from assay.page.text import bounded, cut_text
from assay.report import save
from assay.report.save import pages_of, render, save_report


PAGE_LIMIT = 3_000_000  # bytes, whatever its results hold
GOLDEN = Path(__file__).parent / "golden"
VOID = {"meta", "br", "input", "img", "link", "hr", "col", "wbr"}


class Page(HTMLParser):
    """Collects what a test asks about and insists that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def named(self, *names: str) -> list[str]:
        """Values of attributes."""
        return [value for name, value in self.attributes if name in names]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> out of order"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def made(result: Any) -> str:
    return render(*result) if isinstance(result, list) else render(result)


@cache
def text_of(kind: str) -> str:
    return made(document(kind))


# ---- one text per kind --------------------------------------------------------------------------


def unfolded(block: Block) -> Block:
    """A block with its captions and all that is behind a click, less records."""
    match block:
        case Table():
            return _open(block, Note(text=block.caption))
        case Details():
            return _open(Note(text=block.summary), *block.blocks)
        case Figure():
            return _open(*block.blocks, Note(text=block.caption), Note(text=block.note), *block.more)
        case Section() | Interactive():
            return replace(block, blocks=[unfolded(each) for each in block.blocks])
    return block


def _open(*blocks: Block) -> Details:
    parts = [each if isinstance(each, Table) else unfolded(each) for each in blocks]
    return Details(summary="", printed=True, blocks=parts)


def written(page: Blocks) -> str:
    sections = [replace(each, blocks=[unfolded(block) for block in each.blocks]) for each in page.sections]
    head = [Note(text=page.lede), *(unfolded(each) for each in page.head)]
    console = Console(width=200, file=io.StringIO())
    terminal.print_page(replace(page, head=head, sections=sections), console)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
OF_THIS_RUN = re.compile(  # ids, times, versions
    r"\b[0-9a-f]{16}\b|\d{4}-\d\d-\d\d.\d\d:\d\d(?::\d\d)?|\d+\.\d+\.\d+(?:\+\w+)?"
    r"|\d[\d.,]*(?= s\b)|(?<=seconds )[\d.]+"
)


def pieces(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each line without its numbers and without its spacing, and its numbers."""
    for line in OF_THIS_RUN.sub("\N{HORIZONTAL ELLIPSIS}", text).splitlines():
        yield " ".join(NUMBER.sub("#", line).split()), NUMBER.findall(line)


def assert_alike(text: str, golden: str) -> None:
    """Equal words, and numbers equal up to the last place: other builds of torch add in another order."""
    for (words, numbers), (expected, others) in zip_longest(pieces(text), pieces(golden), fillvalue=("", [])):
        assert words == expected
        for one, other in zip(numbers, others, strict=True):
            last = 10.0 ** -len(other.partition(".")[2])
            found, wanted = (float(each.replace(",", "")) for each in (one, other))
            assert found == pytest.approx(wanted, rel=0.01, abs=last)


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "calibration"])
def test_the_text_of_a_page_is_the_golden_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SHOWN_ROWS", 3)
    monkeypatch.setattr(terminal, "SHOWN_PAIRS", 1)
    page, *others = pages_of(document(kind))
    text = written(page) if kind != "whole audit" else "".join(f"{each.title}\n" for each in (page, *others))
    path = GOLDEN / f"{kind.replace(' ', '-').replace('_', '-')}.txt"
    if os.environ.get("ASSAY_GOLDEN") == "write":
        path.write_text(OF_THIS_RUN.sub("\N{HORIZONTAL ELLIPSIS}", text), encoding="utf-8")
    assert_alike(text, path.read_text(encoding="utf-8"))


def test_every_kind_of_document_is_tried_here() -> None:
    assert set(save._MODULES) - {"subset"} == set(DOCUMENTS)  # a subset alone is refused


@pytest.mark.parametrize("kind", MAKERS)
def test_a_page_says_every_word_and_number_of_the_terminal(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(terminal, "SHOWN_ROWS", 10_000)
    own = document(kind)
    if "audit" in kind:
        own["excerpt"] = None  # which a page draws
    text = re.sub(r"</?sup>", "", made(own))
    shown = words_of(html.unescape(re.sub(r"<[^>]+>", " ", text)))
    said = words_of("".join(written(page) for page in pages_of(own)))
    assert len(said) > 15
    assert said - shown <= {"what"}, "the heading of a column that only a terminal has"


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w(?:[\w.,\N{MINUS SIGN}-]*\w)?", text))


# ---- whatever it is made of ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
def test_a_page_is_well_formed_small_named_and_asks_for_nothing(kind: str) -> None:
    text = text_of(kind)
    page = Page(text)
    assert len(text.encode()) < 600_000
    assert [name for name, count in Counter(page.named("id")).items() if count > 1] == []
    assert page.tags["h1"] == page.tags["article"] == len(pages_of(document(kind)))
    links = page.named("src", "href", "data", "action", "poster", "srcset")
    assert [link for link in links if not link.startswith(("#", "data:image/"))] == []
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", text)
    assert page.tags["link"] == page.tags["iframe"] == 0
    assert ">nan<" not in text.lower()
    pictures = re.findall(r"<svg[^>]*>", text)
    assert [each for each in pictures if "role=" not in each and 'aria-hidden="true"' not in each] == []
    for article in text.split("<article")[1:]:
        for word in ("Figure", "Table"):
            numbers = [int(each) for each in re.findall(rf"<b>{word} ([0-9]+)\.</b>", article)]
            assert numbers == list(range(1, len(numbers) + 1))


def test_the_policy_of_a_page_names_its_scripts_alone() -> None:
    text = text_of("audit")
    (policy,) = (value for value in Page(text).named("content") if "default-src 'none'" in value)
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}';" in policy
    assert source("viewer.js") not in text_of("measurements"), "a page that draws no circuit"


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_document_is_left_alone_and_gives_the_same_page_again(kind: str) -> None:
    own = document(kind)
    assert render(own) == text_of(kind)
    assert own == document(kind)


PARTS = {
    "audit": "circuit",
    "worst_case": "summary",
    "calibration": "table",
    "ranking": "metrics",
    "ranking-comparison": "rankings",
    "subset-path": "subsets",
    "monitor": "guarantee",
    "domain-evaluation": "test",
    "benchmark": "rows",
    "check": "circuits",
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_documents_of_another_schema_or_with_a_part_missing_are_refused(kind: str) -> None:
    own, part = document(kind), PARTS[kind]
    with pytest.raises(InputError, match=r"schema 'assay-other/9'; this version reads"):
        render(own | {"schema": "assay-other/9"})
    with pytest.raises(AssayError, match=rf"lacks {part}|required field missing"):
        render({key: value for key, value in own.items() if key != part})


# ---- hostile texts ------------------------------------------------------------------------------


def assert_harmless(kind: str, text: str) -> None:
    page, harmless = Page(text), Page(text_of(kind))
    assert page.tags["script"] == harmless.tags["script"]
    assert page.tags["img"] == harmless.tags["img"]
    assert {name for name, _ in page.attributes if name.startswith("on")} == set()
    assert HOSTILE in "".join(page.texts)


# Texts without which there is no page, as what they name does not exist.
CHOOSING: dict[str, set[str]] = {
    "audit": {"source", "target"},
    "benchmark": {"format", "convention"},
    "check": {"verdict"},
    "ranking": {"measure"},
    "ranking-comparison": {"measure", "metric"},
    "subset-path": {"image", "interval_units", "part", "rule", "status", "unit_kind"},
    "domain-evaluation": {"distance"},
}


def hostile(value: Any, choosing: set[str], inside: str = "") -> Any:
    """Every text of a document replaced, and one more entry where the names of entries are other people's."""
    if isinstance(value, dict):
        changed = {key: hostile(each, choosing, key) for key, each in value.items()}
        free = inside in ("provenance", "record", "machine", "search")
        return changed | {HOSTILE: {HOSTILE: HOSTILE}} if free else changed
    if isinstance(value, list | tuple):
        return [hostile(each, choosing, inside) for each in value]
    return HOSTILE if isinstance(value, str) and inside not in choosing else value


@pytest.mark.parametrize("kind", [*DOCUMENTS, "worst case with extras"])
def test_every_text_of_a_document_can_be_hostile(kind: str) -> None:
    changed = hostile(document(kind), CHOOSING.get(kind, set()) | {"kind", "schema"})
    if kind == "calibration":
        for gate in changed["gates"]:
            gate["verdict"]["values"][HOSTILE] = 1.0
            if parts := gate["verdict"].get("sub_results"):
                parts[HOSTILE] = next(iter(parts.values()))
    assert_harmless(kind, render(changed))


# ---- sizes --------------------------------------------------------------------------------------


LONG = "a long prompt, word by word " * 4_000  # more than 100,000 characters


def lengthened(value: Any, inside: str = "") -> Any:
    if isinstance(value, dict):
        return {key: lengthened(each, key) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [lengthened(each, inside) for each in value]
    free = ("clean", "text", "title", "domain", "label", "name", "id", "summary", "token")
    return LONG if isinstance(value, str) and inside in free else value


@pytest.mark.parametrize("kind", ["audit", "worst_case", "calibration", "ranking", "subset-path", "monitor"])
def test_names_and_prompts_of_100_000_characters(kind: str) -> None:
    text = render(lengthened(document(kind)))
    assert len(text.encode()) < PAGE_LIMIT
    assert "of 112,000 characters)" in text


def test_a_graph_of_gpt2_with_every_edge_listed() -> None:
    made = large_document()
    made["edges"] += [{**made["edges"][-1], "rank": rank, "kept": False} for rank in range(5_001, 32_492)]
    text = render(made)
    assert len(text.encode()) < PAGE_LIMIT / 2
    assert text.count('class="edge') <= UNSCRIPTED + 10
    assert text.count("<tr>") < 3 * WRITTEN_ROWS


def test_texts_are_cut_and_numbers_left_as_they_are() -> None:
    assert cut_text("x" * 1_000) == "x" * 1_000
    assert cut_text("x" * 1_001).endswith("\N{HORIZONTAL ELLIPSIS} (the first 1,000 of 1,001 characters)")
    picture = "data:image/png;base64," + "x" * 5_000
    assert cut_text(picture) == picture
    assert cut_text("\ud800x") == "?x"  # half of a pair can be in JSON, not in UTF-8
    own: dict[str, Any] = {"a": [1.5] * 5_000, "b": {"c": None, "d": [True, "x" * 2_000]}}
    cut = bounded(own)
    assert cut["a"] is own["a"]
    assert cut["b"]["c"] is None
    assert cut["b"]["d"][0] is True
    assert len(cut["b"]["d"][1]) < 1_100 < len(own["b"]["d"][1])


# ---- what a report is made from -----------------------------------------------------------------


@pytest.mark.parametrize("result", [3, [3], [[]], None], ids=repr)
def test_other_objects_are_refused(result: Any) -> None:
    accepted = "Pass audits, worst cases, calibrations, rankings, subsets, monitors, their "
    accepted += "documents, measurements or lists of measurements"
    with pytest.raises(InputError, match=f"cannot make a report from (int|list|NoneType). {accepted}"):
        render(result)


def test_measurements_share_a_table_and_other_results_follow() -> None:
    one, other = made_up(), made_up(task="sva")
    page = Page(render(one, [other]))
    assert page.tags["article"] == page.tags["table"] == 1
    assert "Measurements on ioi and sva in mini" in page.texts
    assert page.tags["tr"] == 3
    text = render(document("circuit-view"), one)
    assert Page(text).tags["article"] == 2
    assert "Measurement: kl on ioi in mini" in text
    assert one.id_hash in text


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    class Result:
        document = document("subset-path")

    first = save_report(tmp_path / "new" / "a.html", Result.document)
    second = save_report(tmp_path / "b.html", Result())
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(OutputError, match=r"cannot make .*b\.html for the report"):
        save_report(tmp_path / "b.html" / "report.html", Result())
    (tmp_path / "directory.html").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        save_report(tmp_path / "directory.html", Result())
    assert second.read_bytes() == first.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.html", "directory.html", "new"]

import base64
import copy
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic import synthetic_document

from assay.core.errors import AssayError, InputError, OutputError
from assay.core.measurement import Measurement
from assay.core.random import stream
from assay.page.html import source
from assay.report import save_report
from assay.report.save import render
from assay.stats.statistic import mean_of


Document = dict[str, Any]
VOID = {"meta", "br", "input", "img", "link", "hr", "col", "wbr"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def page_text() -> str:
    """The page of the unchanged document, made once."""
    return render(synthetic_document())


class Page(HTMLParser):
    """Collects what a test asks about and insists that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.data: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes.append((name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "data", "action", "poster", "srcset"):
                self.links.append(value or "")
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
        if self.open:
            self.data.setdefault(self.open[-1], []).append(data)


def test_the_page_is_well_formed_and_small(page_text: str) -> None:
    text = page_text
    page = Page(text)
    assert len(text.encode()) < 3_000_000
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert page.tags["h1"] == 1
    assert page.tags["figure"] == 6


def test_the_page_asks_the_network_for_nothing(page_text: str) -> None:
    text = page_text
    page = Page(text)
    assert [link for link in page.links if not link.startswith("#")] == []
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", text)
    assert page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0
    # An SVG name space of a picture is not in the page either, so no address occurs at all.
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}
    policy = next(value for name, value in page.attributes if "default-src 'none'" in value)
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}';" in policy
    assert "http" not in policy


def test_hostile_names_stay_text(document: Document, page_text: str) -> None:
    harmless = Page(page_text)
    bad = copy.deepcopy(document)
    bad["title"] = bad["model"]["id"] = bad["task"]["name"] = bad["created"] = HOSTILE
    bad["model"]["weight_hash"] = bad["provenance"]["id"] = bad["method"]["key"] = HOSTILE
    bad["task"]["examples"][0] |= {"clean": HOSTILE, "corrupted": "x", "answers": [HOSTILE]}
    bad["measurements"][0] |= {"name": HOSTILE, "id": HOSTILE, "unit": HOSTILE, "warnings": [HOSTILE]}
    bad["measurements"][1] |= {"value": None, "reason": HOSTILE}
    bad["provenance"]["record"] = {HOSTILE: HOSTILE}
    bad["provenance"]["machine"] = {HOSTILE: HOSTILE}
    bad["topk"]["patterns"] = [HOSTILE]
    page = Page(render(bad))
    assert page.tags["script"] == harmless.tags["script"]
    assert page.tags["img"] == 0
    assert {name for name, _ in page.attributes if name.startswith("on")} == set()
    assert any("alert(2)" in text and "{{ 7 * 7 }}" in text for text in page.data["h1"])


def test_hostile_edges_are_refused_by_the_graph(document: Document) -> None:
    document["edges"][0]["source"] = HOSTILE
    with pytest.raises(InputError, match="unknown source"):
        render(document)


def test_the_script_gets_the_edges_it_draws(document: Document, page_text: str) -> None:
    (text,) = re.findall('<script type="text/plain" class="data">(.*?)</script>', page_text)
    data = json.loads(zlib.decompress(base64.b64decode(text)))
    columns, scores = data["edges"], [edge["score"] for edge in document["edges"]]
    assert columns["score"] == pytest.approx(scores, rel=1e-4)
    names = [
        (data["nodes"][row], data["targets"][c])
        for row, c in zip(columns["source"], columns["target"], strict=True)
    ]
    assert names == [(edge["source"], edge["target"]) for edge in document["edges"]]
    assert data["size"] == document["circuit"]["size"]
    assert data["nodes"][0] == "input"
    assert data["nodes"][-1] == "logits"


def test_without_a_script_the_strongest_edges_of_the_circuit_are_drawn(
    document: Document, page_text: str
) -> None:
    drawing = page_text.partition('<g class="edges"')[2].partition("</g>")[0]
    kept = [edge for edge in document["edges"] if edge["kept"]]
    assert drawing.count("<path") == len(kept)
    assert drawing.count("minus") == sum(edge["score"] < 0 for edge in kept)


def test_the_area_says_how_edges_were_ranked(document: Document, page_text: str) -> None:
    assert "With edges ranked by |score|, the area under the curve (CPR) is" in page_text
    document["curve"]["ranking"] = "signed score"
    assert "With edges ranked by signed score, the area" in render(document)


def test_undefined_numbers_say_why(page_text: str) -> None:
    text = page_text
    assert "n/a" in text
    assert "undefined: all values are equal" in text


def test_long_lists_of_answers_are_shortened(document: Document) -> None:
    document["task"]["examples"][0] |= {
        "answers": [str(year) for year in range(56, 100)],
        "wrong": ["54", "55"],
    }
    text = render(document)
    shown = re.findall(r'<span class="word">([^<]+)</span>', text)[:8]
    assert shown == ["56", "57", "58", "…", "99", "(44 in all)", "54", "55"]


def test_every_measurement_and_part_has_a_row(document: Document) -> None:
    whole = document["measurements"][0] | {"statistic": {"kind": "mean", "of": "a"}}
    document["measurements"][0] = {
        **whole,
        "parts": {
            "other": {**whole, "id": "X.other", "statistic": {"kind": "mean", "of": "b"}},
            "same": {**whole, "id": "X.same"},
        },
    }
    text = render(document)
    for measurement in document["measurements"]:
        assert measurement["id"] in text
    assert "faithfulness norm: other" in text
    assert "X.same" not in text, "a part that is the measurement itself is left out"


def test_the_method_and_the_facts_name_number_type_and_revision(document: Document) -> None:
    document["model"] |= {"dtype": "bfloat16", "revision": "0123456789abcdef"}
    text = " ".join(render(document).split())
    assert ", with weights in bfloat16." in text
    assert "revision 0123456789ab, bfloat16, hash of the weights" in text


@pytest.mark.slow
def test_several_audits_share_a_page(document: Document, make_document: Callable[..., Document]) -> None:
    page = Page(render(document, make_document(n_layers=2, n_heads=4, size=60)))
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert page.tags["article"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [{"n_kv_heads": 2}, {"n_layers": 1, "n_heads": 1, "size": 3}, {"n_layers": 12, "n_heads": 12}]
)
def test_other_shapes_are_drawn(make_document: Callable[..., Document], shape: dict[str, int]) -> None:
    document = make_document(**shape)
    text = render(document)
    Page(text)
    assert ("Keys and values are shared by 4 heads" in text) == ("n_kv_heads" in shape)


def test_an_audit_without_a_solved_task_says_so(document: Document) -> None:
    document["measurements"][0]["warnings"] = ["task_not_solved"]
    document["circuit"]["faithfulness"] = {"value": None, "low": None, "high": None}
    document["measurements"][0]["value"] = None
    document["curve"] |= {
        "values": [None] * 10,
        "low": [None] * 10,
        "high": [None] * 10,
        "random": None,
        "cpr": None,
        "cmd": None,
    }
    document["task"] |= {"accuracy": 0.51}
    text = render(document)
    assert "mini does not solve ioi (right on 51" in text


def test_the_same_document_gives_the_same_page(document: Document, page_text: str) -> None:
    assert render(document) == page_text


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"schema": "assay-audit/9"}, r"schema 'assay-audit/9'; this version reads 'assay-audit/1'"),
        (
            {"schema": "assay-audit/1", "title": "x"},
            "required field missing",
        ),
    ],
)
def test_other_documents_are_refused(result: Document, message: str) -> None:
    with pytest.raises(AssayError, match=message):
        render(result)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("result", [3, [3], [[]], None], ids=repr)
def test_other_objects_are_refused(result: Any) -> None:
    accepted = "Pass audits, worst cases, calibrations, rankings, subsets, monitors, their "
    accepted += "documents, measurements or lists of measurements"
    with pytest.raises(InputError, match=f"cannot make a report from (int|list|NoneType). {accepted}"):
        render(result)


def measurement(**changes: Any) -> Measurement:
    values = stream(0, "measured").normal(0.9, 0.1, 20)
    facts: dict[str, Any] = {
        "id": "D03.kl",
        "name": "kl",
        "statistic": mean_of("kl"),
        "components": {"kl": values},
        "value": float(values.mean()),
        "n": 20,
        "provenance": {"task": {"name": "ioi"}, "model": {"id": "mini"}, "metric": {"key": "kl"}},
    }
    return Measurement(**{**facts, **changes})


def test_measurements_make_a_table(document: Document, tmp_path: Path) -> None:
    one = measurement()
    other = measurement(provenance={"task": {"name": "sva"}, "model": {"id": "mini"}})
    alone = save_report(tmp_path / "m.html", one, [other]).read_text()
    assert source("page.js") in alone
    assert source("viewer.js") not in alone, "a page that draws no circuit"
    page = Page(alone)
    assert page.tags["article"] == page.tags["table"] == 1
    assert "Measurements on ioi and sva in mini" in page.data["h1"]
    assert page.tags["tr"] == 3
    text = render(document, one)
    assert Page(text).tags["article"] == 2
    assert ">Measurement: faithfulness on ioi in mini<" in text or "on ioi in mini<" in text
    assert one.id_hash in text


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InputError, match="one of the lists of measurements is empty"):
        render([])


def test_no_result_is_refused() -> None:
    with pytest.raises(InputError, match="at least one audit"):
        render()


def test_save_report_takes_results_and_documents(document: Document, tmp_path: Path) -> None:
    class Result:
        def __init__(self) -> None:
            self.document = document

    first = save_report(tmp_path / "new" / "a.html", document)
    second = save_report(tmp_path / "b.html", Result())
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.html", "new"]


def test_an_unwritable_place_is_refused_and_nothing_is_left(document: Document, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="cannot make .*file for the report"):
        save_report(tmp_path / "file" / "report.html", document)
    (tmp_path / "directory.html").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        save_report(tmp_path / "directory.html", document)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory.html", "file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_captions_are_numbered_in_the_order_of_their_article(document: Document) -> None:
    articles = render(document, document).split("<article")[1:]
    assert len(articles) == 2
    for article in articles:  # what its sentences call figure 1 is its own
        for kind in ("Figure", "Table"):
            numbers = [int(each) for each in re.findall(rf"<b>{kind} ([0-9]+)\.</b>", article)]
            assert numbers == list(range(1, len(numbers) + 1))
            assert numbers
    own = copy.deepcopy(document)
    own["task"]["seed"] = None  # a file: nothing was drawn
    assert "seed None" not in render(own)
    assert "drawn with seed" not in render(own)

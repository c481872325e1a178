import base64
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
from synthetic_store import measurement

from assay.core.errors import InputError, OutputError
from assay.page.html import source
from assay.report import save_report
from assay.report.save import render


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


def test_the_policy_of_a_page_names_its_scripts_alone(page_text: str) -> None:
    text, page = page_text, Page(page_text)
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}
    policy = next(value for name, value in page.attributes if "default-src 'none'" in value)
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}';" in policy
    assert "http" not in policy


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
    for each in document["measurements"]:
        assert each["id"] in text
    assert "faithfulness norm: other" in text
    assert "X.same" not in text, "a part that is the measurement itself is left out"


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [{"n_kv_heads": 2}, {"n_layers": 1, "n_heads": 1, "size": 3}, {"n_layers": 12, "n_heads": 12}]
)
def test_other_shapes_are_drawn(make_document: Callable[..., Document], shape: dict[str, int]) -> None:
    document = make_document(**shape)
    text = render(document)
    Page(text)
    assert ("Keys and values are shared by 4 heads" in text) == ("n_kv_heads" in shape)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("result", [3, [3], [[]], None], ids=repr)
def test_other_objects_are_refused(result: Any) -> None:
    accepted = "Pass audits, worst cases, calibrations, rankings, subsets, monitors, their "
    accepted += "documents, measurements or lists of measurements"
    with pytest.raises(InputError, match=f"cannot make a report from (int|list|NoneType). {accepted}"):
        render(result)


def test_measurements_make_a_table(document: Document, tmp_path: Path) -> None:
    one = measurement()
    other = measurement(task="sva")
    alone = save_report(tmp_path / "m.html", one, [other]).read_text()
    assert source("page.js") in alone
    assert source("viewer.js") not in alone, "a page that draws no circuit"
    page = Page(alone)
    assert page.tags["article"] == page.tags["table"] == 1
    assert "Measurements on ioi and sva in mini" in page.data["h1"]
    assert page.tags["tr"] == 3
    text = render(document, one)
    assert Page(text).tags["article"] == 2
    assert "Measurement: kl on ioi in mini" in text
    assert one.id_hash in text


def test_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="one of the lists of measurements is empty"):
        render([])
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

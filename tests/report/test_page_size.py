"""A page stays below 3 MB whatever it is made of, and says what it left out."""

import io
import re
from typing import Any

import numpy as np
import pytest
from pages import documents, renamed
from rich.console import Console
from synthetic import large_document, synthetic_document
from synthetic_store import measurement
from test_monitor_page import monitor_document

from assay.page import html
from assay.page.draw import to_svg
from assay.page.graph import UNSCRIPTED, WRITTEN_ROWS
from assay.page.html import PAGE_LIMIT
from assay.page.matrix import Matrix, plot_matrix
from assay.page.terminal import print_page
from assay.page.text import EDGES_LIMIT, bounded, cut_text
from assay.report.save import pages_of, render


LONG = "a long prompt, word by word " * 4_000  # more than 100,000 characters


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["audit", "worst case", "calibration", "ranking", "subset", "monitor"])
def test_names_and_prompts_of_100_000_characters(kind: str) -> None:
    document = renamed(documents()[kind](), LONG)
    text = render(document)
    assert len(text.encode()) < PAGE_LIMIT
    assert "of 112,000 characters)" in text


def test_a_graph_of_gpt2_with_every_edge_listed() -> None:
    document = synthetic_document(n_layers=12, n_heads=12, size=500, listed=32_491)
    assert len(document["edges"]) > 32_000
    text = render(document)
    assert len(text.encode()) < PAGE_LIMIT
    assert text.count('class="edge') <= UNSCRIPTED + 10
    assert text.count("<tr>") < 3 * WRITTEN_ROWS
    assert f"The strongest {EDGES_LIMIT:,} of {len(document['edges']):,} edges listed in the result" in text


def test_the_drawing_of_a_large_circuit_opens_on_its_strongest_edges() -> None:
    document = large_document()
    (page,) = pages_of(document)[:1]
    text = render(document)
    n = document["excerpt"]["n_edges"]
    drawn = text.partition('<g class="edges"')[2].partition("</g>")[0]
    assert drawn.count("<path") == n
    said = (
        f"opens on the {n} strongest edges that are connected. They carry 25 % of the circuit’s attribution"
    )
    assert said in text.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "a normalised faithfulness of 0.20 [0.10, 0.30]." in text
    assert 'value="60"' in text
    console = Console(width=4_000, file=io.StringIO())
    print_page(page, console)
    shown = console.file.getvalue().partition("strongest edges that are connected")[2]  # type: ignore[attr-defined]
    assert (
        len(re.findall(r" \([+\N{MINUS SIGN}][\d.e\N{MINUS SIGN}]+\)", shown.partition("Where it lives")[0]))
        == n
    )
    del document["excerpt"]  # as an audit from before holds none
    assert "opens on" not in render(document)


def test_a_picture_of_many_boxes_is_short_and_the_same() -> None:
    values = np.random.default_rng(0).normal(size=(30, 20))
    names = [tuple(map(str, range(n))) for n in values.shape]
    matrix = Matrix(rows=names[0], columns=names[1], values=values, row_title="", column_title="")
    text = to_svg(plot_matrix(matrix), label="", key="k")
    assert len(text) < 60 * values.size * 2
    assert (
        len(re.findall(r"M\S+ \S+H\S+V\S+H\S+z", text)) >= 1.9 * values.size
    )  # an ink of one cell is a box alone


def test_more_measurements_than_a_table_shows() -> None:
    text = render([measurement()] * 1_000)
    assert len(text.encode()) < PAGE_LIMIT
    assert "600 more rows are omitted" in text


@pytest.mark.slow
def test_a_monitor_of_more_batches_than_its_pictures_show() -> None:
    document = monitor_document()
    one = document["readings"][0]
    document["readings"] = [{**one, "index": i, "shift": 0.2 + (i % 7) / 100} for i in range(6_000)]
    text = render(document)
    assert len(text.encode()) < PAGE_LIMIT
    assert "The figures show the newest 2,000 of 6,000 batches" in text


@pytest.mark.slow
def test_many_results_on_one_page_end_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "PAGE_LIMIT", 1_000_000)
    text = render(*[synthetic_document()] * 12)
    assert len(text.encode()) < 1_000_000
    assert 0 < text.count('class="page"') < 12
    assert "are left out, so that the page stays below 1 MB" in text


def test_cut_texts_say_how_long_they_were() -> None:
    assert cut_text("x" * 1_000) == "x" * 1_000
    assert cut_text("x" * 1_001).endswith("\N{HORIZONTAL ELLIPSIS} (the first 1,000 of 1,001 characters)")
    picture = "data:image/png;base64," + "x" * 5_000
    assert cut_text(picture) == picture
    assert cut_text("\ud800x") == "?x"  # half of a pair can be in JSON, not in UTF-8


def test_numbers_are_left_as_they_are() -> None:
    document: dict[str, Any] = {"a": [1.5] * 5_000, "b": {"c": None, "d": [True, "x" * 2_000]}}
    found = bounded(document)
    assert found["a"] is document["a"]
    assert found["b"]["c"] is None
    assert found["b"]["d"][0] is True
    assert len(found["b"]["d"][1]) < 1_100


def test_bounding_does_not_change_what_it_was_given() -> None:
    document = synthetic_document()
    document["title"] = LONG
    render(document)
    assert document["title"] == LONG

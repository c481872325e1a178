"""A page stays below 3 MB whatever it is made of, and says what it left out."""

from typing import Any

import pytest
from pages import documents, renamed
from synthetic import synthetic_document
from synthetic_store import measurement
from test_monitor_page import monitor_document

from assay.page import html
from assay.page.html import PAGE_LIMIT
from assay.page.text import EDGES_LIMIT, bounded, cut_text
from assay.page.viewer import UNSCRIPTED, WRITTEN_ROWS
from assay.report.save import render


LONG = "a long prompt, word by word " * 4_000  # more than 100,000 characters


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["audit", "worst case", "calibration", "ranking", "subset", "monitor", "claim"]
)
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
    assert text.count("<tr>") < 2 * WRITTEN_ROWS  # the script makes the other rows when they are asked for
    assert f"The strongest {EDGES_LIMIT:,} of {len(document['edges']):,} edges listed in the result" in text


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
    text = render(*[synthetic_document()] * 5)
    assert len(text.encode()) < 1_000_000
    assert 0 < text.count('class="page"') < 5
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

"""Every kind of page in a real browser: silent, offline, reachable, printable, and deaf to hostile names."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import synthetic_subset
from chromium import Visit
from pages import KINDS, documents
from synthetic_store import HOSTILE
from thorough import one_of

from assay.report.save import render


@functools.cache
def page_of(kind: str, names: str | None = None) -> str:
    made = documents(names)[kind]()
    return render(*made) if isinstance(made, list) else render(made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_loads_in_silence_sorts_and_fits_a_telephone(kind: str, visit: Visit) -> None:
    page = visit.open(page_of(kind))
    assert page.locator("h1").count() >= 1
    for table in page.locator("table.sortable").all():
        if table.is_visible():
            _sorts(table)
            break
    page.set_viewport_size({"width": 360, "height": 780})
    assert visit.sideways() <= 0
    visit.check()


def test_letters_in_a_figure_are_no_larger_than_the_text(visit: Visit) -> None:
    """Also those of a small drawing, here of the overlap of two sizes, on a telephone."""
    document = synthetic_subset.document()
    overlap = document["consistency"]
    overlap |= {"sizes": overlap["sizes"][:2], "normalised": [row[:2] for row in overlap["normalised"][:2]]}
    page = visit.open(render(document))
    largest = """texts => Math.max(...texts.map(text => {
      const scale = text.getScreenCTM();
      return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(scale.a, scale.b);
    }))"""
    body = page.evaluate("() => parseFloat(getComputedStyle(document.body).fontSize)")
    for width in (1200, 390):
        page.set_viewport_size({"width": width, "height": 900})
        figures = page.locator("svg.plot").all()
        assert len(figures) >= 9
        assert max(each.locator("text").evaluate_all(largest) for each in figures) < body


@pytest.mark.parametrize("kind", one_of(["audit", "subset", "worst case"]))
def test_nothing_in_a_figure_lies_on_its_caption(kind: str, visit: Visit) -> None:
    page = visit.open(page_of(kind))
    overlap = """caption => {
      const above = caption.previousElementSibling;
      return above ? above.getBoundingClientRect().bottom - caption.getBoundingClientRect().top : -1;
    }"""
    captions = [
        each for each in page.locator("figure:not(.beside, .viewer) > figcaption").all() if each.is_visible()
    ]
    assert captions
    for caption in captions:
        assert caption.evaluate(overlap) <= 0.5, caption.text_content()


def test_the_widest_table_by_size_is_shown_whole_at_1200_pixels(visit: Visit) -> None:
    found = synthetic_subset.document()
    for row in found["rows"]:
        row |= dict.fromkeys(("random", "hard", "marginal", "distance"), synthetic_subset.correlation(-0.5))
        row["verdict"]["p_value"] = 0.025
    page = visit.open(render(found))
    page.set_viewport_size({"width": 1200, "height": 900})
    assert page.locator(".scroll:has(> .subset-sizes)").evaluate("e => e.scrollWidth - e.clientWidth") <= 0


def _sorts(table: Any) -> None:
    """A column goes up, down and back, by click and by keyboard."""
    button = table.locator("thead button").first
    head = table.locator("th:has(button)").first
    column = head.evaluate("cell => cell.cellIndex")

    def cells() -> list[str]:
        script = """(table, i) => [...table.tBodies[0].rows].map(
          (row) => row.cells[i].dataset.value ?? row.cells[i].textContent.trim())"""
        return list(table.evaluate(script, column))

    before = cells()
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    up = cells()
    assert sorted(up) == sorted(before)
    button.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    down = cells()
    if len(set(before)) == len(before) and "" not in before:
        assert down == up[::-1]
    button.press("Space")
    assert head.get_attribute("aria-sort") is None
    assert cells() == before


@pytest.mark.parametrize("kind", one_of(KINDS))
def test_hostile_names_stay_text(kind: str, visit: Visit) -> None:
    page = visit.open(page_of(kind, HOSTILE))
    visit.check()
    assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    n_scripts = 1 + (page.locator("figure.viewer").count() > 0)
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == n_scripts
    if kind != "comparison":  # which shows what both measured, and no names
        assert page.locator("body").evaluate("body => body.textContent").count(HOSTILE) >= 1
    links = page.evaluate("[...document.querySelectorAll('[href]')].map(e => e.getAttribute('href'))")
    assert [link for link in links if not link.startswith("#")] == []
    page.keyboard.press("Tab")  # the script still works
    assert page.evaluate("document.documentElement.className") == "script"
    page.set_viewport_size({"width": 360, "height": 780})
    assert visit.sideways() <= 0


def test_a_script_that_got_into_a_page_would_not_run(visit: Visit) -> None:
    """The page's own policy names the one script that may run."""
    text = page_of("measurements").replace("</main>", "<script>document.title = 'run'</script></main>")
    page = visit.open(text)
    assert page.title() != "run"
    assert any("Content Security Policy" in said for said in visit.said)


@pytest.mark.parametrize("kind", one_of(["audit", "sweep"]))
def test_a_page_can_be_read_without_its_script(kind: str, new_visit: Callable[..., Visit]) -> None:
    visit = new_visit(java_script_enabled=False)
    page = visit.open(page_of(kind))
    assert page.locator("h1").first.is_visible()
    assert page.locator(".verdict").first.is_visible()
    assert page.locator(".controls:visible, .script-only:visible").count() == 0
    assert page.locator("table:visible").count() >= 1
    visit.check()

"""Every kind of page in a real browser: silent, offline, sortable, deaf to hostile names; and the viewer."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from chromium import Visit
from pages import KINDS, document, large_document, stored
from synthetic_store import HOSTILE, made_audit, mini
from thorough import one_of

from assay.report.save import render
from assay.report.sweep import sweep_page


DRAWN = 1_500  # lines of a drawing at most
# By how much the letters of a figure are larger than those of the page.
LETTERS = """figure => Math.max(...[...figure.querySelectorAll('text')].map(text => {
  const scale = text.getScreenCTM();
  return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(scale.a, scale.b);
})) - parseFloat(getComputedStyle(document.body).fontSize)"""
# By how much a caption lies on what is above it.
OVERLAP = """caption => {
  const above = caption.previousElementSibling;
  return above ? above.getBoundingClientRect().bottom - caption.getBoundingClientRect().top : -1;
}"""


@cache
def page_of(kind: str) -> str:
    made = document(kind)
    return render(*made) if isinstance(made, list) else render(made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_loads_in_silence_sorts_and_fits_a_telephone(kind: str, visit: Visit) -> None:
    page = visit.open(page_of(kind))
    assert page.locator("h1").count() >= 1
    for table in page.locator("table.sortable").all():
        if table.is_visible():
            _sorts(table)
            break
    captions = page.locator("figure:not(.beside, .viewer) > figcaption").all()
    for caption in captions:
        if caption.is_visible():
            assert caption.evaluate(OVERLAP) <= 0.5, caption.text_content()
    for width in (1200, 360):
        page.set_viewport_size({"width": width, "height": 780})
        assert visit.sideways() <= 0
        for figure in page.locator("svg.plot:has(text)").all():
            if figure.is_visible():
                assert figure.evaluate(LETTERS) < 0
    visit.check()


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


def test_hostile_names_stay_text(visit: Visit) -> None:
    audit = document("audit")
    audit["model"]["id"] = audit["task"]["name"] = HOSTILE
    page = visit.open(render(audit, sweep_page(stored(HOSTILE)[0], "methods")))
    visit.check()
    assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == 2
    assert page.locator("body").evaluate("body => body.textContent").count(HOSTILE) >= 3
    links = page.evaluate("[...document.querySelectorAll('[href]')].map(e => e.getAttribute('href'))")
    assert [link for link in links if not link.startswith("#")] == []
    page.keyboard.press("Tab")  # the script still works
    assert page.evaluate("document.documentElement.className") == "script"
    page.set_viewport_size({"width": 360, "height": 780})
    assert visit.sideways() <= 0


def test_a_script_that_got_into_a_page_would_not_run(visit: Visit) -> None:
    """The page's own policy names the scripts that may run."""
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


# ---- the viewer of a circuit --------------------------------------------------------------------


def figure(page: Any, name: str) -> int:
    """How many lines are drawn, or lit above the dimmed rest."""
    return int(page.locator(".viewer").evaluate("(figure, name) => figure.dataset[name]", name))


def opened(visit: Visit, text: str) -> Any:
    page = visit.open(text)
    page.locator(".controls output b").wait_for()
    return page


def chosen(page: Any) -> str:
    return str(page.locator(".inspector h3").text_content())


def place_of_an_edge(page: Any) -> tuple[float, float]:
    """Where a line of the drawing is under the pointer."""
    box = page.locator(".stage").bounding_box()
    tip = page.locator(".tip")
    for x in range(120, int(box["width"]) - 60, 45):
        for y in range(40, int(box["height"]) - 20, 5):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if tip.is_visible() and "\u2192" in str(tip.text_content()):
                return box["x"] + x, box["y"] + y
    raise AssertionError("no edge answers to the pointer")


def test_nodes_and_edges_answer_to_pointer_keyboard_and_search(visit: Visit) -> None:
    page = opened(visit, page_of("circuit-view"))
    page.locator(".stage").evaluate("stage => stage.scrollIntoView({block: 'center'})")
    place = place_of_an_edge(page)
    assert figure(page, "hot") == 1
    page.mouse.click(*place)
    assert chosen(page).endswith("(picked)")
    page.mouse.click(*place)
    page.mouse.move(1, 1)
    assert not page.locator(".tip").is_visible()
    assert figure(page, "hot") == 0
    name = next(name for name in mini().scores.top(40).nodes() if ".h" in name)
    page.locator(f".node[aria-label='{name}']").focus()
    page.keyboard.press("Enter")
    assert chosen(page) == f"{name} (picked)"
    assert figure(page, "hot") == page.locator(".edge.hot").count() > 0
    panel = page.locator(".attention")
    picture = panel.locator("canvas")
    before = picture.evaluate("canvas => canvas.toDataURL()")
    picture.hover(position={"x": 90, "y": 5})
    assert "attends to" in str(panel.text_content())
    panel.locator("select").select_option(index=1)
    assert picture.evaluate("canvas => canvas.toDataURL()") != before
    page.keyboard.press("Escape")
    assert figure(page, "hot") == 0
    page.get_by_label("Search").fill(name)
    assert "1 node" in str(page.locator(".inspector").text_content())
    assert figure(page, "hot") > 0
    page.locator(".inspector").get_by_role("button", name=name, exact=True).click()
    assert chosen(page) == f"{name} (picked)"
    page.locator(".inspector .lists button").first.click()
    assert "\u2192" in chosen(page)
    visit.check()


def test_slider_layers_and_reset_change_what_is_drawn(visit: Visit) -> None:
    audit, made = made_audit(), document("audit")
    del made["excerpt"]  # as an audit of a small circuit has none
    page = opened(visit, render(made))
    graph, kept = audit.scores.graph, [edge for edge in made["edges"] if edge["kept"]]

    def layers(edge: dict[str, Any]) -> tuple[int, int]:
        row, column = graph.source_index(edge["source"]), graph.target_index(edge["target"])
        return int(graph.source_layer[row]), int(graph.target_layer[column])

    assert figure(page, "drawn") == len(kept)
    page.get_by_label("Written in").select_option("layer 1")
    assert figure(page, "drawn") == sum(layers(edge)[0] == 2 for edge in kept)
    page.get_by_label("Read in").select_option("logits")
    assert figure(page, "drawn") == sum(layers(edge) == (2, graph.n_layers + 1) for edge in kept)
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Strongest edges").fill("20")
    assert figure(page, "drawn") == audit.scores.top(20).connected().n_edges
    page.get_by_role("button", name="Reset").click()
    assert figure(page, "drawn") == len(kept)
    visit.check()


def test_a_large_circuit_opens_on_its_strongest_edges_and_grows(visit: Visit) -> None:
    large = large_document()
    text = render(large)
    assert len(text.encode()) < 1_500_000
    page = opened(visit, text)
    output, n = page.locator(".controls output"), large["excerpt"]["n_edges"]
    assert f"60, {n} of them connected" in str(output.text_content())
    assert "normalised faithfulness about 0.20" in str(output.text_content())
    page.get_by_label("Strongest edges").fill("5000")
    assert figure(page, "drawn") == DRAWN
    assert "the strongest 1500 are drawn" in str(output.text_content())
    visit.check()

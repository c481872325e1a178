"""The circuit viewer in a real browser: pointer, keyboard, search, slider, layers, attention."""

import functools
from typing import Any

from chromium import Visit
from pages import documents
from synthetic import _connected, large_document, synthetic_document

from assay.page.graph import graph_of
from assay.page.html import PAGE_LIMIT
from assay.report.save import render


DRAWN = 1_500  # lines of a drawing at most


@functools.cache
def audit() -> str:
    return render(documents()["audit"]())


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


def test_nodes_and_edges_answer_to_pointer_and_keyboard(visit: Visit) -> None:
    page = opened(visit, audit())
    page.locator(".stage").evaluate("stage => stage.scrollIntoView({block: 'center'})")
    place = place_of_an_edge(page)
    assert figure(page, "hot") == 1
    page.mouse.click(*place)
    assert chosen(page).endswith("(picked)")
    page.mouse.click(*place)
    page.mouse.move(1, 1)
    assert not page.locator(".tip").is_visible()
    assert figure(page, "hot") == 0
    node = page.locator(".node[aria-label='a1.h7']")
    node.focus()
    page.keyboard.press("Enter")
    assert chosen(page) == "a1.h7 (picked)"
    assert figure(page, "hot") == page.locator(".edge.hot").count() > 0
    page.keyboard.press("Escape")
    assert figure(page, "hot") == 0
    visit.check()


def test_slider_layers_and_reset_change_what_is_drawn(visit: Visit) -> None:
    document = synthetic_document()
    page = opened(visit, render(document))
    graph, kept = graph_of(document["graph"]), [edge for edge in document["edges"] if edge["kept"]]

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
    assert figure(page, "drawn") == len(_connected(graph, document["edges"][:20]))
    page.get_by_role("button", name="Reset").click()
    assert figure(page, "drawn") == len(kept)
    visit.check()


def test_a_search_lights_what_it_names_and_leads_to_it(visit: Visit) -> None:
    page = opened(visit, audit())
    page.get_by_label("Search").fill("a1.h7")
    assert "1 node" in str(page.locator(".inspector").text_content())
    assert figure(page, "hot") > 0
    page.locator(".inspector").get_by_role("button", name="a1.h7", exact=True).click()
    assert chosen(page) == "a1.h7 (picked)"
    page.locator(".inspector .lists button").first.click()
    assert "\u2192" in chosen(page)
    visit.check()


def test_a_large_circuit_opens_on_its_strongest_edges_and_grows(visit: Visit) -> None:
    document = large_document()
    text = render(document)
    assert len(text.encode()) < PAGE_LIMIT / 2
    page = opened(visit, text)
    output, n = page.locator(".controls output"), document["excerpt"]["n_edges"]
    assert f"60, {n} of them connected" in str(output.text_content())
    assert "normalised faithfulness about 0.20" in str(output.text_content())
    page.get_by_label("Strongest edges").fill("400")
    kept = len(_connected(graph_of(document["graph"]), document["edges"][:400]))
    assert f"400, {kept} of them connected" in str(output.text_content())
    page.get_by_label("Strongest edges").fill("5000")
    assert figure(page, "drawn") == DRAWN
    assert "the strongest 1500 are drawn" in str(output.text_content())
    visit.check()

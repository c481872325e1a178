"""The circuit viewer in a real browser: pointer, keyboard, names, filters, roles, size, paper."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import Visit
from pages import documents
from synthetic import _connected, large_document, synthetic_document

from assay.page.circuit import graph_of
from assay.page.html import PAGE_LIMIT, source
from assay.report.save import render


LINES = 800  # most edges of a frame that are drawn one by one


@functools.cache
def page_of(kind: str) -> str:
    if kind == "5,000 edges":
        return render(synthetic_document(n_layers=12, n_heads=12, size=5_000, listed=5_000))
    return render(documents()[kind]())


def figures(page: Any) -> dict[str, int]:
    """What the last frame drew: lines and bands, and lines above the dimmed rest."""
    drawn = page.locator(".viewer").first.evaluate("figure => ({...figure.dataset})")
    return {name: int(drawn[name]) for name in ("drawn", "bundles", "hot")}


def chosen(page: Any) -> str:
    return str(page.locator(".inspector h3").first.text_content())


def place_of_an_edge(page: Any) -> tuple[float, float]:
    """Where a line of the drawing is under the pointer."""
    box = page.locator(".stage").first.bounding_box()
    tip = page.locator(".tip").first
    for x in range(120, int(box["width"]) - 60, 45):
        for y in range(40, int(box["height"]) - 20, 5):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if tip.is_visible() and "\u2192" in str(tip.text_content()):
                return box["x"] + x, box["y"] + y
    raise AssertionError("no edge answers to the pointer")


def test_a_drawing_answers_to_pointer_and_keyboard(visit: Visit) -> None:
    page = visit.open(page_of("audit"))
    tip = page.locator(".tip").first
    assert not tip.is_visible()
    page.locator(".stage").first.evaluate("stage => stage.scrollIntoView({block: 'center'})")
    place = place_of_an_edge(page)
    assert figures(page)["hot"] == 1
    page.mouse.click(*place)
    assert "(picked)" in chosen(page)
    page.mouse.click(*place)
    page.mouse.move(1, 1)
    assert not tip.is_visible()
    assert figures(page)["hot"] == 0

    nodes = page.locator(".node[tabindex='0']")
    assert nodes.count() == 1  # one stop of the tab key
    nodes.focus()
    first = chosen(page)
    page.keyboard.press("ArrowRight")
    assert chosen(page) != first
    page.keyboard.press("Enter")
    assert "(picked)" in chosen(page)
    said = page.locator(".status").first
    assert str(said.text_content()).startswith("Picked: ")
    page.keyboard.press("Escape")
    assert said.text_content() == "Nothing picked"

    stepper = page.locator(".stepper")
    stepper.focus()
    assert figures(page)["hot"] == 1
    strongest = str(stepper.text_content())
    assert strongest.startswith("Edge 1 of ")
    page.keyboard.press("ArrowDown")
    assert str(stepper.text_content()).startswith("Edge 2 of ")
    page.keyboard.press("Home")
    assert stepper.text_content() == strongest
    page.keyboard.press("Enter")
    assert "(picked)" in chosen(page)
    visit.check()


def test_the_slider_changes_drawing_numbers_and_table(visit: Visit) -> None:
    page = visit.open(page_of("audit"))
    slider, output = page.locator("input[name=size]"), page.locator(".controls output")
    before = figures(page)["drawn"], output.text_content()
    page.get_by_text("The edges as a table").click()
    slider.focus()
    for _ in range(3):
        page.keyboard.press("PageDown")
    after = figures(page)["drawn"], output.text_content()
    assert after[0] < before[0]
    assert after[1] != before[1]
    rows = page.locator(".edges-table tbody tr:not([hidden])")

    page.wait_for_timeout(200)  # the table follows the drawing
    assert rows.filter(has=page.locator("td:last-child", has_text="yes")).count() == after[0]
    page.get_by_role("button", name="Reset").click()
    assert (figures(page)["drawn"], output.text_content()) == before
    visit.check()


@pytest.mark.slow
def test_filters_by_layer_sign_and_weight_change_the_drawing(visit: Visit) -> None:
    document = synthetic_document()
    page = visit.open(render(document))
    graph, kept = graph_of(document["graph"]), [edge for edge in document["edges"] if edge["kept"]]

    def layers(edge: dict[str, Any]) -> tuple[int, int]:
        row, column = graph.source_index(edge["source"]), graph.target_index(edge["target"])
        return int(graph.source_layer[row]), int(graph.target_layer[column])

    def drawn() -> int:
        return figures(page)["drawn"]

    assert drawn() == len(kept)
    page.locator("[name=sign]").select_option("minus")
    assert drawn() == sum(edge["score"] < 0 for edge in kept)
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Written in").select_option("layer 1")
    assert drawn() == sum(layers(edge)[0] == 2 for edge in kept)
    page.get_by_label("Read in").select_option("logits")
    assert drawn() == sum(layers(edge) == (2, graph.n_layers + 1) for edge in kept)
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Least weight").fill("500")
    largest = max(abs(edge["score"]) for edge in document["edges"])
    assert drawn() == sum(abs(edge["score"]) >= largest / 8 for edge in kept)
    assert "the filter shows" in str(page.locator(".controls output").text_content())
    visit.check()


def test_a_search_lists_nodes_and_edges_and_goes_to_them(visit: Visit) -> None:
    page = visit.open(page_of("audit"))
    page.locator("h1").click()
    page.keyboard.press("/")
    page.keyboard.type("a1.h7")
    found = page.locator(".found")
    assert "1 node and " in str(found.text_content())
    assert figures(page)["hot"] > 0
    page.keyboard.press("Enter")
    assert chosen(page) == "a1.h7 (picked)"
    assert page.evaluate("document.activeElement.classList.contains('node')")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "\u2192" in chosen(page)
    page.keyboard.press("Escape")
    page.get_by_label("Search").press("Escape")
    assert not found.is_visible()
    visit.check()


@pytest.mark.slow
def test_roles_and_labels_are_given_saved_and_loaded(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(page_of("audit"))
    page.get_by_text("Roles and labels", exact=True).click()
    page.get_by_label("Role", exact=True).fill("name movers")
    page.get_by_role("button", name="Add to role").click()
    said = page.locator(".roles-panel .said")
    assert "Pick a node first" in str(said.text_content())
    for node in ("a3.h0", "a3.h1"):
        page.locator(f".node[aria-label^='{node}']").focus()
        page.keyboard.press("Enter")
        page.get_by_label("Role", exact=True).fill("name movers")
        page.get_by_role("button", name="Add to role").click()
    page.get_by_label("Label", exact=True).fill("mover")
    page.get_by_role("button", name="Set label").click()
    assert page.locator(".node[aria-label^='a3.h1, mover, role name movers:']").count() == 1
    page.locator("[name=role]").first.select_option("name movers")
    assert 0 < figures(page)["drawn"] < 63
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as file").click()
    saved = tmp_path / "roles.json"
    download.value.save_as(saved)
    content = json.loads(saved.read_text())
    assert content["roles"] == {"name movers": ["a3.h0", "a3.h1"]}
    assert content["labels"] == {"a3.h1": "mover"}
    assert content["graph"] == {
        **graph_of(content["graph"]).describe(),
        "fingerprint": graph_of(content["graph"]).fingerprint,
    }

    page = visit.open(page_of("audit"))
    page.get_by_text("Roles and labels", exact=True).click()
    page.locator("[name=file]").set_input_files(saved)
    page.locator(".said", has_text="Loaded 1 role").wait_for()
    assert page.locator(".roles-list li").count() == 1
    page.get_by_role("button", name="Remove a3.h0 from name movers").click()
    assert page.locator(".node circle.badge").count() == 1
    visit.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ('{"schema": "other"}', "not a roles file"),
        ('{"schema": "assay-roles/1", "roles": null, "labels": {}}', "not a roles file"),
        ('{"schema": "assay-roles/1", "roles": {"a": "a0.h0"}, "labels": {}}', "not a roles file"),
        (
            '{"schema": "assay-roles/1", "roles": {}, "labels": {}, "graph": '
            '{"fingerprint": "0", "n_layers": 9, "n_heads": 3}}',
            "belongs to another graph (9 layers of 3 heads",
        ),
    ],
)
def test_a_roles_file_that_does_not_fit_is_refused_in_a_sentence(
    content: str, message: str, visit: Visit, tmp_path: Path
) -> None:
    page = visit.open(page_of("audit"))
    page.get_by_text("Roles and labels", exact=True).click()
    wrong = tmp_path / "wrong.json"
    wrong.write_text(content)
    page.locator("[name=file]").set_input_files(wrong)
    said = page.locator(".said.wrong")
    said.wait_for()
    assert message in str(said.text_content())
    assert page.locator(".roles-list li").count() == 0
    visit.check()


def test_every_control_has_an_accessible_name(visit: Visit) -> None:
    page = visit.open(page_of("audit"))
    page.get_by_text("Roles and labels", exact=True).click()
    page.get_by_label("Search").fill("a1")
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "combobox", "searchbox", "textbox", "checkbox", "listbox", "option", "link"}
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(controls) > 40
    unnamed = [node for node in controls if not node.get("name", {}).get("value", "").strip()]
    assert unnamed == []
    live = page.locator(".viewer [role=status], .viewer output")
    assert live.count() >= 3


def test_a_large_circuit_opens_on_its_strongest_edges_and_grows(visit: Visit) -> None:
    document = large_document()
    page = visit.open(render(document))
    output = page.locator(".controls output")
    output.locator("b").wait_for()
    n = document["excerpt"]["n_edges"]
    assert f"60, {n} of them connected" in str(output.text_content())
    assert "normalised faithfulness about 0.20" in str(output.text_content())
    page.locator("input[name=size]").fill("400")
    kept = len(_connected(graph_of(document["graph"]), document["edges"][:400]))
    assert f"400, {kept} of them connected" in str(output.text_content())
    page.get_by_role("button", name="Reset").click()
    assert f"60, {n} of them connected" in str(output.text_content())
    page.get_by_text("The edges as a table").click()
    page.locator(".edges-table tbody tr:nth-child(5000)").wait_for(state="attached")
    visit.check()


@pytest.mark.slow
def test_five_thousand_edges_take_bounded_work_and_little_room(visit: Visit) -> None:
    text = page_of("5,000 edges")
    assert len(text.encode()) < PAGE_LIMIT / 2
    page = visit.open(text)
    assert f"SINGLE_EDGES = {LINES};" in source("viewer_drawing.js")
    assert page.locator("body *").count() < 9_000  # elements; edges are none
    frame = figures(page)
    assert frame["drawn"] == LINES
    assert 0 < frame["bundles"] <= 13 + 12 * 15 / 2  # one per pair of layers, a layer and itself among them
    assert page.locator(".legend .bundles").is_visible()
    page.get_by_label("Written in").select_option("layer 3")
    assert figures(page)["drawn"] <= LINES
    page.get_by_role("button", name="Reset").click()
    for _ in range(4):
        page.get_by_role("button", name="Zoom in").click()
    near = figures(page)
    assert near["drawn"] <= LINES
    assert page.locator(".stage").evaluate("stage => stage.scrollWidth / stage.clientWidth") > 3.5
    page.get_by_label("Search").fill("a")
    assert figures(page)["hot"] <= LINES / 2
    page.get_by_text("The edges as a table").click()
    assert page.locator(".edges-table tbody tr").count() == 5_000
    visit.check()


@pytest.mark.slow
def test_paper_takes_the_whole_drawing_in_light_colours(new_visit: Callable[..., Visit]) -> None:
    visit = new_visit(color_scheme="dark", viewport={"width": 400, "height": 700})
    page = visit.open(page_of("audit"))
    script = """() => { window.dispatchEvent(new Event('beforeprint'));
      const canvas = document.querySelector('canvas.base');
      const drawing = document.querySelector('.graph').viewBox.baseVal;
      const style = getComputedStyle(document.documentElement);
      const seen = [canvas.width / drawing.width, style.getPropertyValue('--paper').trim()];
      window.dispatchEvent(new Event('afterprint'));
      return [...seen, style.getPropertyValue('--paper').trim()]; }"""
    scale, paper, after = page.evaluate(script)
    assert scale == pytest.approx(3, rel=0.01)
    assert paper != after
    assert page.pdf()[:5] == b"%PDF-"
    visit.check()

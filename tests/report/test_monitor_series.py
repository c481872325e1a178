"""The series of a monitor in a browser: values, zoom, range, batches that open; its words and pictures."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Visit
from test_monitor_page import monitor_document, reading

from assay.analyses.generalization import monitor_words
from assay.analyses.generalization.journal import Reading
from assay.page import html
from assay.page.thumbnail import thumbnail
from assay.pipeline.batch_pictures import ALARMS, EACH, KEPT, BatchPictures
from assay.pipeline.image_stream import Batch
from assay.report.save import render
from assay.tasks import draw_shapes


N = 40
DRAWN = draw_shapes("sketch", 12)


def long_document() -> dict[str, Any]:
    """Forty batches, the last eight with alarm and pictures."""
    document = monitor_document()
    document["readings"] = [
        reading(
            index, 0.1 + 0.01 * index, alarm=index >= 32, time=f"2026-03-02T{index % 24:02}:00:00.000+00:00"
        )
        for index in range(N)
    ]
    picture = thumbnail(DRAWN.pixels[0])
    document["pictures"] = {
        str(index): [{"name": f"{index}-{place}.png", "image": picture} for place in range(3)]
        for index in range(32, N)
    }
    return document


# ---- in the browser -----------------------------------------------------------------------------


def view(page: Any) -> tuple[Any, Any, dict[str, float]]:
    """The control, what it says, and where the plot is."""
    figure = page.locator("figure.series")
    figure.scroll_into_view_if_needed()
    box = figure.locator(".box .u-over").bounding_box()
    return figure.get_by_role("slider"), figure.locator("output"), box


def shown(page: Any) -> list[float]:
    """Where the range that is shown begins, and how wide it is, as shares of all batches."""
    script = """() => {
      const [part, all] = ['select', 'over'].map(
        (each) => document.querySelector(`figure.series .range .u-${each}`).getBoundingClientRect());
      return [(part.left - all.left) / all.width, part.width / all.width]; }"""
    return list(page.evaluate(script))


def test_a_pointer_reads_values_and_a_drag_zooms(visit: Visit) -> None:
    page = visit.open(render(long_document()))
    _, said, box = view(page)
    assert page.locator("figure.series .still").is_hidden()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 50)
    assert said.inner_text().startswith(
        "Batch 40, 2026-03-02 15:00 UTC, sketch, 24 images, shift 0.490 [0.440,"
    )
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    middle = int(re.match(r"Batch (\d+),", said.inner_text())[1])  # type: ignore[index]
    assert 15 <= middle <= 25
    assert said.inner_text().endswith("its images were not kept")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60)
    page.mouse.up()
    assert shown(page)[1] == pytest.approx(0.25, abs=0.02)
    page.mouse.move(box["x"] + 1, box["y"] + 50)
    assert abs(int(re.match(r"Batch (\d+),", said.inner_text())[1]) - middle) <= 1  # type: ignore[index]
    page.mouse.dblclick(box["x"] + 40, box["y"] + 60)
    assert shown(page)[1] == pytest.approx(1, abs=0.02)
    visit.check()


def test_the_strip_below_chooses_what_is_shown(visit: Visit) -> None:
    page = visit.open(render(long_document()))
    view(page)
    strip = page.locator("figure.series .range .u-over").bounding_box()
    y = strip["y"] + strip["height"] / 2
    page.mouse.move(strip["x"] + strip["width"] * 0.6, y)
    page.mouse.down()
    page.mouse.move(strip["x"] + strip["width"] * 0.9, y)
    page.mouse.up()
    assert shown(page) == pytest.approx([0.6, 0.3], abs=0.03)
    visit.check()


def test_a_click_opens_the_images_of_a_batch(visit: Visit) -> None:
    page = visit.open(render(long_document()))
    _, _, box = view(page)
    assert page.locator("details.batch img").first.is_hidden()
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 50)
    batch = page.locator("details.batch[open]")
    assert batch.count() == 1
    assert batch.locator("summary").inner_text().startswith("Batch 40,")
    assert batch.locator("summary").evaluate("each => each === document.activeElement")
    assert [each.is_visible() for each in batch.locator("img").all()] == [True] * 3
    assert "above the limit of 0.200 that 3 known batches set" in batch.inner_text()
    visit.check()


def test_the_keyboard_steps_zooms_and_opens(visit: Visit) -> None:
    page = visit.open(render(long_document()))
    slider, said, _ = view(page)
    slider.focus()
    assert (
        slider.get_attribute("aria-label")
        == "Batch; arrow keys step, plus and minus zoom, Enter opens its images"
    )
    for key, batch in (("ArrowLeft", 39), ("Home", 1), ("ArrowRight", 2), ("PageUp", 12), ("End", 40)):
        page.keyboard.press(key)
        assert slider.get_attribute("aria-valuenow") == str(batch)
        assert slider.get_attribute("aria-valuetext") == said.inner_text()
        assert said.inner_text().startswith(f"Batch {batch},")
    page.keyboard.press("+")
    page.keyboard.press("+")
    start, wide = shown(page)
    assert wide == pytest.approx(0.25, abs=0.02)
    assert start == pytest.approx(0.75, abs=0.03)  # around the last batch
    page.keyboard.press("Home")  # the range follows
    assert shown(page)[0] < 0.1
    page.keyboard.press("Escape")
    assert shown(page)[1] == pytest.approx(1, abs=0.02)
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert page.locator("details.batch[open] summary").inner_text().startswith("Batch 40,")
    visit.check()


def test_buttons_have_names_and_are_off_where_they_do_nothing(visit: Visit) -> None:
    page = visit.open(render(long_document()))
    view(page)
    group = page.get_by_role("group", name="Batches that are shown")
    names = ["Earlier", "Zoom in", "Zoom out", "Later", "All batches", "Open the batch"]
    assert [each.inner_text() for each in group.get_by_role("button").all()] == names
    off = [name for name in names if group.get_by_role("button", name=name).is_disabled()]
    assert off == ["Earlier", "Zoom out", "Later", "All batches"]
    group.get_by_role("button", name="Zoom in").click()
    before = shown(page)
    group.get_by_role("button", name="Earlier").click()
    assert shown(page)[0] < before[0]
    assert shown(page)[1] == pytest.approx(before[1], abs=0.01)
    group.get_by_role("button", name="All batches").click()
    assert shown(page)[1] == pytest.approx(1, abs=0.02)
    visit.check()


def test_without_a_script_the_picture_and_the_images_are_there(new_visit: Any) -> None:
    found = new_visit(java_script_enabled=False)
    page = found.open(render(long_document()))
    assert page.locator("figure.series svg.plot").is_visible()
    assert page.locator("figure.series .chart").is_hidden()
    page.locator("summary", has_text="Images of 8 batches").click()
    page.locator("details.batch summary").first.click()
    assert page.locator("details.batch[open] img").first.is_visible()


def test_a_telephone_and_a_dark_screen_show_it_too(new_visit: Any) -> None:
    found = new_visit(viewport={"width": 360, "height": 780}, color_scheme="dark")
    page = found.open(render(long_document()))
    view(page)
    assert found.sideways() <= 0
    page.set_viewport_size({"width": 700, "height": 780})
    # Not `wait_for_function`: it polls by `eval`, which the policy of the page forbids.
    page.evaluate(
        """() => new Promise((done, failed) => {
            const look = (left) => {
                if (document.querySelector('figure.series .box canvas').clientWidth > 400) done();
                else if (!left) failed(new Error('the chart stays narrow'));
                else setTimeout(look, 20, left - 1);
            };
            look(500);
        })"""
    )
    page.emulate_media(color_scheme="light")
    found.check()


def test_one_reading_is_a_series(visit: Visit) -> None:
    document = monitor_document()
    document["readings"] = document["readings"][:1]
    page = visit.open(render(document))
    slider, _, _ = view(page)
    slider.focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuenow") == "1"
    visit.check()


def test_batches_below_the_noise_floor_are_in_the_chart(visit: Visit) -> None:
    document = monitor_document()
    document["readings"] = [reading(index, 0.01 * index - 0.05) for index in range(6)]
    page = visit.open(render(document))
    slider, said, box = view(page)
    slider.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    assert "shift −0.050" in said.inner_text()
    mark = page.locator("figure.series .box .mark").bounding_box()
    middle = mark["y"] + mark["height"] / 2
    assert box["y"] + box["height"] / 2 < middle < box["y"] + box["height"]
    visit.check()


def test_only_pages_with_a_series_carry_its_script() -> None:
    text = render(monitor_document())
    assert "uPlot" in text
    assert "Permission is hereby granted, free of charge" in text  # of uPlot's licence
    assert "uPlot" not in html.frame("<p>no series</p>", title="none")
    data = re.search(r'<script type="application/json">(.*?)</script>', text, re.S)
    assert data is not None
    assert json.loads(data[1])["batch"] == [1, 2, 3, 4]


# ---- words --------------------------------------------------------------------------------------


def test_the_reason_names_statistic_limit_and_since_when() -> None:
    document = monitor_document()
    why, may, do = monitor_words.alarm_reasons(document)
    assert why == (
        "The alarm is on since batch 3 (2026-03-03 10:00 UTC), for 2 batches in a row. The circuit shift "
        "(spearman) of batch 4 is 0.400, above the limit of 0.200 that 3 known batches set (p = 0.050; the "
        "alarm is raised at 0.05 or less)."
    )
    assert may.startswith("It may mean that the images come from another source")
    assert do.startswith("What to do: look at the images of these batches")
    document["readings"].append(reading(4, 0.1))
    assert monitor_words.alarm_reasons(document)[0].startswith(
        "The last alarm lasted from batch 3 (2026-03-03 10:00 UTC) to batch 4; 1 batch since then did not "
        "raise it."
    )


def test_the_reason_follows_the_rule() -> None:
    document = monitor_document()
    document |= {
        "rule": "threshold",
        "threshold": {"value": 0.3, "domain": "fog-1", "performance": 0.71, "target": 0.7},
    }
    why, may, _ = monitor_words.alarm_reasons(document)
    assert why.endswith("above the threshold of 0.300, which was read off fog-1, where performance is 0.71.")
    assert may.endswith("On domains like the calibration's, performance this far away is below 0.70.")
    document |= {"rule": "sequential"}
    why, *_ = monitor_words.alarm_reasons(document)
    assert "(e-value) is 1,000 at batch 4; it has reached 20, and the sequential rule stays on" in why


def test_without_an_alarm_there_is_no_reason() -> None:
    document = monitor_document()
    for each in document["readings"]:
        each["alarm"] = False
    assert monitor_words.alarm_reasons(document) == []
    assert monitor_words.reason(document, document["readings"][0]) == ""


# ---- pictures -----------------------------------------------------------------------------------


def batch_of(n: int) -> Batch:
    return Batch(inputs=DRAWN.subset(range(n)), sources=tuple(f"inbox/{place}.png" for place in range(n)))


def observed(index: int) -> Reading:
    return Reading.from_dict({**reading(index, 0.3), "alarms": {}})


def test_pictures_of_a_batch_are_spread_over_it(tmp_path: Path) -> None:
    pictures = BatchPictures(tmp_path / "none.json")
    pictures.add(batch_of(12), observed(0), frozenset())
    (found,) = pictures.to_dict().values()
    assert [each["name"] for each in found] == ["0.png", "2.png", "4.png", "7.png", "9.png", "11.png"]
    assert len(found) == EACH
    assert found[5]["image"] == thumbnail(DRAWN.pixels[11])
    pictures.add(batch_of(2), observed(1), frozenset())
    assert [each["name"] for each in pictures.to_dict()["1"]] == ["0.png", "1.png"]


def test_the_newest_batches_are_kept_and_longer_those_with_an_alarm(tmp_path: Path) -> None:
    pictures = BatchPictures(tmp_path / "none.json")
    alarmed = frozenset(range(20))
    for index in range(100):
        pictures.add(batch_of(2), observed(index), alarmed)
        assert len(pictures.to_dict()) <= KEPT
    kept = set(map(int, pictures.to_dict()))
    assert kept == {*range(20 - ALARMS, 20), *range(100 - (KEPT - ALARMS), 100)}


def test_pictures_go_on_where_a_document_ended(tmp_path: Path) -> None:
    first = BatchPictures(tmp_path / "monitor.json")
    first.add(batch_of(2), observed(0), frozenset())
    (tmp_path / "monitor.json").write_text(json.dumps({"pictures": first.to_dict()}))
    assert BatchPictures(tmp_path / "monitor.json").to_dict() == first.to_dict()
    for damaged in ("", "[]", '{"pictures": {"0": [{"name": "a", "image": "http://192.0.2.1/a.png"}]}}'):
        (tmp_path / "monitor.json").write_text(damaged)
        assert BatchPictures(tmp_path / "monitor.json").to_dict() == {}


def test_thumbnails_keep_the_size_of_a_page() -> None:
    noise = np.random.default_rng(0).integers(
        0, 256, (256, 256, 3), dtype=np.uint8
    )  # the worst that compresses
    assert KEPT * EACH * len(thumbnail(noise)) < 2_600_000

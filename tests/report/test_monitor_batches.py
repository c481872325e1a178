"""The batches of a monitor that open to their images; its words and pictures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from chromium import Visit
from test_monitor_page import monitor_document, reading

from assay.analyses.generalization import monitor_words
from assay.analyses.generalization.journal import Reading
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


def test_batches_open_to_their_images_below_the_picture(visit: Visit) -> None:
    page = visit.open(render(long_document()))
    assert page.locator("svg.plot").first.is_visible()
    assert page.locator("details.batch img").first.is_hidden()
    page.locator("summary", has_text="Images of 8 batches").click()
    page.locator("details.batch summary").first.click()
    batch = page.locator("details.batch[open]")
    assert (
        batch.locator("summary")
        .inner_text()
        .startswith("Batch 40, 2026-03-02 15:00 UTC, sketch, 24 images, shift 0.490 [0.440,")
    )
    assert [each.is_visible() for each in batch.locator("img").all()] == [True] * 3
    assert "above the limit of 0.200 that 3 known batches set" in batch.inner_text()
    visit.check()


# ---- words --------------------------------------------------------------------------------------


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

"""The page of a monitor: data of its pictures, its words, and that it is one self-contained document."""

import copy
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from assay.analyses.generalization import monitor_page, monitor_plots
from assay.core.errors import InputError
from assay.page.blocks import Block, Details, Table
from assay.report.save import render


def reading(index: int, shift: float, *, alarm: bool | None = False, **more: Any) -> dict[str, Any]:
    layers = np.zeros((5, 5))
    layers[0, 2], layers[2, 3], layers[1, 1] = 0.125, -0.25, 0.0625
    return {
        "index": index,
        "time": f"2026-03-0{index + 1}T10:00:00.000+00:00",
        "n": 24,
        "shift": shift,
        "interval": {"low": shift - 0.05, "high": shift + 0.05, "level": 0.9, "method": "resampled"},
        "alarm": alarm,
        "alarms": {} if alarm is None else {"conformal": alarm, "sequential": index > 2},
        "p_value": 0.05 if alarm else 0.5,
        "e_value": 10.0**index,
        "baselines": {"ac": 0.9 - 0.1 * index, "ane": -0.5},
        "layers": layers.tolist(),
        "domain": "photo" if index < 2 else "sketch",
        "data_hash": f"{index}",
        "sources": [f"{index}.png"],
        "skipped": [],
        "seconds": 1.0,
        **more,
    }


def monitor_document() -> dict[str, Any]:
    """A made-up document with a few readings."""
    return {
        "schema": "assay-monitor/1",
        "kind": "monitor",
        "id": "0123456789abcdef",
        "model": {"id": "a <b>model</b>", "weight_hash": "abc"},
        "graph": {"n_layers": 3, "n_heads": 2, "n_kv_heads": 2, "parallel": False, "mlps": True},
        "reference": {"task": {"name": "pacs", "domain": "photo", "n": 24}},
        "settings": {
            "method": "eap-ig-inputs",
            "objective": "kl",
            "ablation": "mean-positional",
            "steps": 5,
            "quadrature": "midpoint",
            "seed": 0,
        },
        "distance": {"key": "spearman", "summary": "1 - rank correlation", "published": "CSS_v,SRCC"},
        "rule": "conformal",
        "alpha": 0.05,
        "level": 0.9,
        "threshold": None,
        "seed": 0,
        "calibration": {"shifts": [0.1, 0.2, 0.15], "n": 24, "domain": "photo"},
        "conformal": {"limit": 0.2, "smallest_alpha": 0.25, "rate_bound": 0.3},
        "guarantee": {"rule": "conformal", "rate": 0.05, "statement": "At most 0.05 false alarms."},
        "readings": [
            reading(0, 0.15),
            reading(1, 0.12),
            reading(2, 0.5, alarm=True),
            reading(3, 0.4, alarm=True, interval={"low": None, "high": None, "level": 0.9, "method": "x"}),
        ],
    }


@pytest.fixture
def document() -> dict[str, Any]:
    return monitor_document()


@pytest.fixture
def domains() -> dict[str, Any]:
    def row(name: str, performance: float, shift: float) -> dict[str, Any]:
        return {
            "domain": name,
            "n": 24,
            "performance": performance,
            "shifts": {"spearman": shift, "l2": 1.0},
            "baselines": {"ac": performance},
        }

    def curve(top: float | None) -> dict[str, Any]:
        return {
            "deltas": [0.5, 0.6],
            "mean": [top, 0.5],
            "std": [0.1, 0.1],
            "low": [0.2, 0.2],
            "high": [1, 1],
        }

    return {
        "schema": "assay-domain-shifts/1",
        "measure": "accuracy",
        "known": [row("fog-1", 0.8, 0.2), row("fog-5", 0.5, 0.6)],
        "test": [row("sketch", 0.55, 0.5)],
        "provenance": {},
        "curves": {"spearman": curve(0.9), "ac": curve(None)},
    }


def points(ax: Axes, marker: str) -> list[list[tuple[float, float]]]:
    """Places of the marks of a kind, a list for each line."""
    lines = [line for line in ax.lines if line.get_marker() == marker]
    return [[(float(x), float(y)) for x, y in line.get_xydata()] for line in lines]  # type: ignore[union-attr]


def test_the_picture_of_the_shift_shows_the_readings(document: dict[str, Any]) -> None:
    ax = monitor_plots.plot_shift(document)
    known, calm = points(ax, "o")
    assert [y for _, y in known] == [0.1, 0.2, 0.15]
    assert max(x for x, _ in known) < 0
    assert calm == [(1, 0.15), (2, 0.12)]
    assert points(ax, "D") == [[(3, 0.5), (4, 0.4)]]  # they raised the alarm
    (band,) = ax.collections
    corners = {(round(float(x), 3), round(float(y), 3)) for x, y in band.get_paths()[0].vertices}  # type: ignore[union-attr]
    assert {(1, 0.1), (3, 0.55)} <= corners
    assert max(x for x, _ in corners) == 3  # the last interval is undefined
    texts = {text.get_text(): text for text in ax.texts}
    assert texts.keys() == {"known", "conformal limit", "photo", "sketch"}
    assert texts["sketch"].xy[0] == pytest.approx(2.6)  # type: ignore[attr-defined]
    assert ax.get_ylabel() == "circuit shift (spearman)"


def test_the_newest_of_many_readings_are_inside_the_picture(document: dict[str, Any]) -> None:
    document["readings"] = [{**document["readings"][0], "index": place} for place in range(100, 2100)]
    left, right = monitor_plots.plot_shift(document).get_xlim()
    assert left < 101 - 0.05 * 2000
    assert 2100 < right < 2101
    assert monitor_plots.plot_evidence(document).get_xticks()[0] == 200


def test_the_evidence_needs_a_sequential_test(document: dict[str, Any]) -> None:
    ax = monitor_plots.plot_evidence(document)
    assert points(ax, "o") == [[(1, 1.0), (2, 10.0)]]
    assert points(ax, "D") == [[(3, 100.0), (4, 1000.0)]]
    assert [text.get_text() for text in ax.texts] == ["alarm at 20"]
    assert "Evidence that batches" in render(document)
    for each in document["readings"]:
        each["e_value"] = None
    assert "Evidence that batches" not in render(document)


def test_the_map_has_a_cell_where_edges_join_two_layers(document: dict[str, Any]) -> None:
    data = monitor_plots.layers_matrix(document["graph"], document["readings"][0])
    assert data is not None
    assert data.rows == ("input", "0", "1", "2")
    assert data.columns == ("0", "1", "2", "logits")
    assert data.values[0, 1] == 0.125
    assert data.values[2, 2] == -0.25
    assert data.values[1, 0] == 0.0625  # heads of a block to its own MLP
    assert np.isnan(data.values[2, 0])
    assert np.isfinite(data.values).sum() == 4 + 4 + 3 + 2
    document["graph"]["parallel"] = True
    data = monitor_plots.layers_matrix(document["graph"], document["readings"][0])
    assert data is not None
    assert np.isnan(data.values[1, 0])


def test_the_verdict_says_what_happened(document: dict[str, Any]) -> None:
    said = monitor_page.verdict(document)
    assert "2 of 4 batches raised the alarm, the first at batch 3, 2026-03-03 10:00 UTC" in said
    assert "3 batches in distribution have 0.100 to 0.200" in said
    for each in document["readings"]:
        each["alarm"] = False
    assert monitor_page.verdict(document).startswith("No alarm in 4 batches.")
    document["rule"] = None
    assert monitor_page.verdict(document).endswith("No alarm is set.")


def test_caveats_name_sizes_far_thresholds_and_files_left_out(document: dict[str, Any]) -> None:
    assert monitor_page.caveats(document) == []
    document["calibration"] = None
    document["reference"]["task"]["n"] = 400
    document["threshold"] = {"value": 0.3, "domain": "fog-1", "performance": 0.9, "target": 0.5}
    document["readings"][1]["skipped"] = ["bad.png"]
    sizes, threshold, skipped = monitor_page.caveats(document)
    assert "is based on 400 images, the batches on 24" in sizes
    assert "corresponds to a performance of 0.90, that of fog-1" in threshold
    assert "1 image file could not be read and was left out" in skipped
    page = render(document)
    assert "(1 unreadable)" in page


def test_the_threshold_is_said_to_be_what_it_is(document: dict[str, Any]) -> None:
    threshold = {"value": 0.3, "domain": "fog-1", "performance": 0.8, "target": 0.8, "method": "isotonic"}
    facts = dict(monitor_page._facts({**document, "threshold": threshold}, {}))
    assert facts["threshold"][1].text == (
        " interpolated between corrupted domains, where performance is 0.80; the target is 0.80"
    )
    threshold |= {"method": "nearest", "performance": 0.78}
    facts = dict(monitor_page._facts({**document, "threshold": threshold}, {}))
    assert facts["threshold"][1].text.startswith(" read off fog-1, where performance is 0.78;")


def test_a_sequential_rule_states_no_drop_of_one_batch(document: dict[str, Any]) -> None:
    stated = {"domains": {"known": []}, "detectable": []}
    (note,) = monitor_page._detectable({**document, **stated, "rule": "sequential"})
    assert "no drop is stated" in note.text
    assert monitor_page._detectable({**document, **stated, "rule": "conformal"}) == []


def test_the_page_is_whole_and_escapes_what_it_is_given(
    document: dict[str, Any], domains: dict[str, Any]
) -> None:
    text = render({**document, "domains": domains})
    assert "<b>model</b>" not in text
    assert "a &lt;b&gt;model&lt;/b&gt;" in text
    for piece in (
        "Shift over time",
        "Where in the network",
        "What a shift means",
        "At most 0.05 false alarms.",
    ):
        assert piece in text
    assert text.count('<svg class="plot"') == 6
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "<td>sketch</td>" in text
    assert '<th class="n" data-sort title="average confidence">AC</th>' in text
    assert "conformal p-value" in text


def test_the_page_does_without_what_is_not_there(document: dict[str, Any]) -> None:
    document |= {"calibration": None, "conformal": None, "rule": None}
    document["readings"] = [
        reading(0, 0.2, alarm=None, p_value=None, e_value=None, layers=[], baselines={}),
    ]
    text = render(document)
    assert text.count('<svg class="plot"') == 1
    assert "Where in the network" not in text
    assert "What a shift means" not in text


def tables(document: dict[str, Any], title: str) -> list[Table]:
    """The tables behind a click of a section."""
    (section,) = (each for each in monitor_page.monitor_page(document).sections if each.title == title)
    folded: list[Block] = [
        each for block in section.blocks if isinstance(block, Details) for each in block.blocks
    ]
    return [block for block in folded if isinstance(block, Table)]


def test_one_map_where_the_last_reading_is_the_worst(document: dict[str, Any]) -> None:
    document["readings"] = document["readings"][:3]
    (table,) = tables(document, "Where in the network")
    assert table.columns[0].name == "batch 3: from"
    assert table.rows[0] == ["1", "2", "−0.250"]


def test_the_curve_lists_shift_first(document: dict[str, Any], domains: dict[str, Any]) -> None:
    domains["curves"] = {"ac": domains["curves"]["ac"], "spearman": domains["curves"]["spearman"]}
    curve, _ = tables({**document, "domains": domains}, "What a shift means")
    assert [each.name for each in curve.columns[1:]] == ["shift (spearman)", "average confidence"]
    assert curve.rows[0] == ["0.50", "0.90", "n/a"]


def test_other_documents_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="schema 'old'"):
        render({**document, "schema": "old"})
    lacking = copy.deepcopy(document)
    del lacking["guarantee"]
    with pytest.raises(InputError, match="lacks guarantee"):
        render(lacking)
    with pytest.raises(InputError, match="no reading yet"):
        render({**document, "readings": []})

"""The page of a monitor: data of its pictures, its words, and that it is one self-contained document."""

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from assay.analyses.generalization import monitor_page, monitor_plots
from assay.core.errors import InputError
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


def domain_shifts() -> dict[str, Any]:
    """Shifts and performances of three domains, with two curves."""

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


def test_a_monitor_without_a_reading_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no reading yet"):
        render({**document, "readings": []})

"""Metrics of a monitor: the text format, served over HTTP."""

import urllib.error
import urllib.request
from typing import Any

import pytest

from assay.errors import OutputError
from assay.runner.endpoint import MetricsEndpoint, metrics_text


def document(n: int) -> dict[str, Any]:
    return {
        "model": {"id": 'vit "a"\\b'},
        "distance": {"key": "spearman"},
        "threshold": None,
        "conformal": {"limit": 0.25},
        "readings": [
            {
                "n": 10,
                "shift": 0.5,
                "interval": {"low": None, "high": 0.75},
                "alarm": place == 1,
                "p_value": 0.05,
                "e_value": None,
                "skipped": ["x.png"],
                "time": "1970-01-01T00:01:40.000+00:00",
                "baselines": {"ac": 0.9},
            }
            for place in range(n)
        ],
    }


def test_the_text_has_help_type_and_escaped_labels() -> None:
    lines = metrics_text(document(3)).splitlines()
    label = 'model="vit \\"a\\"\\\\b",distance="spearman"'
    assert f"assay_monitor_batches_total{{{label}}} 3" in lines
    assert f"assay_monitor_images_total{{{label}}} 30" in lines
    assert f"assay_monitor_alarms_total{{{label}}} 1" in lines
    assert f"assay_monitor_unreadable_files_total{{{label}}} 3" in lines
    assert f"assay_monitor_alarm{{{label}}} 0" in lines
    assert f"assay_monitor_shift{{{label}}} 0.5" in lines
    assert f"assay_monitor_last_reading_timestamp_seconds{{{label}}} 100.0" in lines
    assert f'assay_monitor_baseline{{{label},baseline="ac"}} 0.9' in lines
    assert f"assay_monitor_conformal_limit{{{label}}} 0.25" in lines
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    assert {line.split()[2] for line in lines if line.startswith("# TYPE")} == names
    assert {line.split()[2] for line in lines if line.startswith("# HELP")} == names


def test_what_does_not_exist_is_left_out() -> None:
    text = metrics_text(document(1))
    for name in ("shift_low", "e_value", "assay_monitor_threshold"):
        assert name not in text
    assert "assay_monitor_shift" not in metrics_text(document(0))
    assert "assay_monitor_batches_total" in metrics_text(document(0))


def test_it_is_served_and_follows_what_is_published() -> None:
    with MetricsEndpoint(0) as served:
        address = f"http://127.0.0.1:{served.port}"
        served.publish(document(1))
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == metrics_text(document(1))
        served.publish(document(2))
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            assert b"batches_total" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/other")
        with pytest.raises(OutputError, match="choose another port"):
            MetricsEndpoint(served.port)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{address}/metrics", timeout=2)

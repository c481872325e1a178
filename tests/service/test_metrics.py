"""Metrics of monitors: the text, its labels, and what is served over HTTP."""

import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from assay.app.monitor.metrics import CONTENT_TYPE, MetricsServer, metrics_text
from assay.core.errors import OutputError


def document(n: int, **more: object) -> dict[str, Any]:
    readings = [
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
    ]
    return {
        "id": "0123456789abcdef",
        "model": {"id": "vit"},
        "distance": {"key": "spearman"},
        "threshold": None,
        "conformal": {"limit": 0.25},
        "readings": readings,
        **more,
    }


def samples(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What Prometheus' own reader of the format makes of it."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_every_number_has_its_name_type_help_and_labels() -> None:
    text = metrics_text([document(3)])
    label = {"monitor": "0123456789abcdef", "model": "vit", "distance": "spearman"}
    assert samples(text) == {
        "assay_monitor_batches_total": [(label, 3.0)],
        "assay_monitor_images_total": [(label, 30.0)],
        "assay_monitor_unreadable_files_total": [(label, 3.0)],
        "assay_monitor_alarms_total": [(label, 1.0)],
        "assay_monitor_conformal_limit": [(label, 0.25)],
        "assay_monitor_shift": [(label, 0.5)],
        "assay_monitor_shift_high": [(label, 0.75)],
        "assay_monitor_alarm": [(label, 0.0)],
        "assay_monitor_p_value": [(label, 0.05)],
        "assay_monitor_last_reading_timestamp_seconds": [(label, 100.0)],
        "assay_monitor_baseline": [({**label, "baseline": "ac"}, 0.9)],
    }
    lines = text.decode().splitlines()
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    for fact in ("# TYPE", "# HELP"):
        assert {line.split()[2] for line in lines if line.startswith(fact)} == names
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        name for name in names if name.endswith("_total")
    }


def test_what_does_not_exist_is_left_out() -> None:
    assert metrics_text([]) == b""
    assert set(samples(metrics_text([document(0)]))) == {
        "assay_monitor_batches_total",
        "assay_monitor_images_total",
        "assay_monitor_unreadable_files_total",
        "assay_monitor_alarms_total",
        "assay_monitor_conformal_limit",
    }
    none = document(1)
    none["readings"][0]["alarm"] = None
    assert "assay_monitor_alarm" not in samples(metrics_text([none]))


@pytest.mark.parametrize(
    "name",
    [
        'quote " brace } # HELP',
        "line\nassay_monitor_alarm 1",
        "back\\slash\\n",
        "ünï ☠",
        '",evil="1',
        "\r\x00",
    ],
)
def test_hostile_names_stay_label_values(name: str) -> None:
    hostile = document(1, name=name, model={"id": name})
    hostile["readings"][0]["baselines"] = {name: 0.5}
    found = samples(metrics_text([hostile]))
    ((label, value),) = found["assay_monitor_baseline"]
    assert label == {"monitor": name, "model": name, "baseline": name, "distance": "spearman"}
    assert value == 0.5
    assert set(found) == set(samples(metrics_text([document(1)])))


def test_names_that_are_no_unicode_are_shown_as_they_can_be(tmp_path: Path) -> None:
    name = bytes([0x61, 0xFF]).decode("utf-8", "surrogateescape")  # as a path on disk may be
    ((label, _),) = samples(metrics_text([document(0, name=name)]))["assay_monitor_batches_total"]
    assert label["monitor"] == "a\\udcff"


def test_two_monitors_of_one_name_are_two_series() -> None:
    found = samples(metrics_text([document(1), document(2), document(3, name="c")]))
    assert [(each["monitor"], value) for each, value in found["assay_monitor_batches_total"]] == [
        ("0123456789abcdef", 1.0),
        ("0123456789abcdef#2", 2.0),
        ("c", 3.0),
    ]


def test_it_is_served_on_loopback_and_follows_what_is_published() -> None:
    with MetricsServer(0) as served:
        address = f"http://127.0.0.1:{served.port}/metrics"
        for n in (1, 2):
            served.publish(document(n))
            with urllib.request.urlopen(address) as answer:
                assert answer.headers["Content-Type"].startswith(CONTENT_TYPE.partition(";")[0])
                assert samples(answer.read()) == samples(metrics_text([document(n)]))
        with pytest.raises(OutputError, match="choose another port"):
            MetricsServer(served.port)
        with pytest.raises(OutputError, match="choose another port"):
            MetricsServer(99999)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=2)

"""Metrics of a monitor: the text and its labels."""

import re
from typing import Any

import pytest

from assay.app.monitor.metrics import metrics_text


LABEL = r'(\w+)="((?:[^"\\]|\\.)*)"'


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
        "passed": [],
        **more,
    }


def unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def samples(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Name -> labels and value of each line, read by the grammar of the format."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.decode().split("\n")[:-1]:
        if not line.startswith("#"):
            sample = re.fullmatch(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)', line)
            assert sample is not None, line
            labels = {name: re.sub(r"\\(.)", unescaped, said) for name, said in re.findall(LABEL, sample[2])}
            found.setdefault(sample[1], []).append((labels, float(sample[3])))
    return found


def test_every_number_has_its_name_type_help_and_labels() -> None:
    text = metrics_text(document(3), "door")
    label = {"monitor": "door", "model": "vit", "distance": "spearman"}
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
    assert set(samples(metrics_text(document(0), "door"))) == {
        "assay_monitor_batches_total",
        "assay_monitor_images_total",
        "assay_monitor_unreadable_files_total",
        "assay_monitor_alarms_total",
        "assay_monitor_conformal_limit",
    }
    none = document(1)
    none["readings"][0]["alarm"] = None
    assert "assay_monitor_alarm" not in samples(metrics_text(none, "door"))


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
    hostile = document(1, model={"id": name})
    hostile["readings"][0]["baselines"] = {name: 0.5}
    found = samples(metrics_text(hostile, name))
    ((label, value),) = found["assay_monitor_baseline"]
    assert label == {"monitor": name, "model": name, "baseline": name, "distance": "spearman"}
    assert value == 0.5
    assert set(found) == set(samples(metrics_text(document(1), "door")))


def test_names_that_are_no_unicode_are_shown_as_they_can_be() -> None:
    name = bytes([0x61, 0xFF]).decode("utf-8", "surrogateescape")  # as a path on disk may be
    ((label, _),) = samples(metrics_text(document(0), name))["assay_monitor_batches_total"]
    assert label["monitor"] == "a\\udcff"

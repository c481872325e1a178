"""State of a monitor as a text file for Prometheus."""

from datetime import datetime
from typing import TYPE_CHECKING

from assay.analyses.generalization.alarms import CIRCUIT, OUTPUTS


if TYPE_CHECKING:
    from assay.analyses.generalization.monitor import Monitor


def metrics_text(monitor: "Monitor", name: str) -> bytes:
    """The state of a monitor in the Prometheus text format.

    Args:
        monitor: That of a started monitor.
        name: What to call it (label `monitor`).

    Returns:
        Lines `assay_monitor_NAME{monitor="...",model="...",distance="..."} VALUE` with their help, in UTF-8.
        Numbers that do not exist are left out.
    """
    readings, rules = monitor.readings, monitor.rules
    threshold = None if rules.threshold is None else rules.threshold.value
    skipped = sum(len(each.skipped) for each in readings) + len(monitor.skipped)
    # Name after `assay_monitor_`, value, help; `_total` names a counter.
    found: list[tuple[str, float | int | None, str]] = [
        ("batches_total", len(readings), "Batches observed."),
        ("images_total", sum(each.n for each in readings), "Images observed."),
        ("unreadable_files_total", skipped, "Image files skipped because they could not be read."),
        ("alarms_total", sum(bool(each.alarm) for each in readings), "Batches that raised the alarm."),
        ("threshold", threshold, "Shift that raises the alarm."),
        ("conformal_limit", rules.limits.get(CIRCUIT), "Shift that raises the alarm by the conformal rule."),
        ("output_limit", rules.limits.get(OUTPUTS), "The same of the outputs."),
    ]
    for last in readings[-1:]:
        observed = datetime.fromisoformat(last.time).timestamp()
        found += [
            ("shift", last.shift, "Circuit shift of the last batch."),
            ("output_shift", last.output_shift, "Shift of the outputs of the last batch."),
            ("output_p_value", last.output_p_value, "Conformal p-value of that."),
            ("alarm", last.alarm, "1 if the last batch raised the alarm."),
            ("p_value", last.p_value, "Conformal p-value of the last batch."),
            ("e_value", last.e_value, "Capital of the sequential test."),
            ("last_reading_timestamp_seconds", observed, "Time at which the last batch was observed."),
        ]
    labels = {"monitor": name, "model": monitor.model.id, "distance": monitor.distance}
    lines = [
        f"{_head(key, text)}{_sample(key, labels, value)}" for key, value, text in found if value is not None
    ]
    baselines = readings[-1].baselines if readings else {}
    lines += [_head("baseline", "Label-free baselines of the last batch.")] if baselines else []
    lines += [_sample("baseline", {**labels, "baseline": key}, value) for key, value in baselines.items()]
    return "".join(lines).encode()


def _head(key: str, text: str) -> str:
    kind = "counter" if key.endswith("_total") else "gauge"
    return f"# HELP assay_monitor_{key} {text}\n# TYPE assay_monitor_{key} {kind}\n"


def _sample(key: str, labels: dict[str, str], value: float | int) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"assay_monitor_{key}{{{shown}}} {float(value)}\n"


def _escaped(text: str) -> str:
    """A label as the format wants it. A name of a directory may hold what UTF-8 cannot say."""
    known = text.encode("utf-8", "backslashreplace").decode()
    return known.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

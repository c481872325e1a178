"""State of a monitor as a text file for Prometheus."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any


Document = Mapping[str, Any]
Value = float | int | None
# What a document says: name after `assay_monitor_`, help, and where it stands. `_total` names a counter.
OF_MONITOR: tuple[tuple[str, str, Callable[[Document], Value]], ...] = (
    ("batches_total", "Batches observed.", lambda each: len(each["readings"])),
    ("images_total", "Images observed.", lambda each: sum(one["n"] for one in each["readings"])),
    (
        "unreadable_files_total",
        "Image files skipped because they could not be read.",
        lambda each: sum(len(one["skipped"]) for one in each["readings"]) + len(each["passed"]),
    ),
    (
        "alarms_total",
        "Batches that raised the alarm.",
        lambda each: sum(bool(one["alarm"]) for one in each["readings"]),
    ),
    (
        "threshold",
        "Shift above which the threshold rule raises the alarm.",
        lambda each: (each["threshold"] or {}).get("value"),
    ),
    (
        "conformal_limit",
        "Shift above which the conformal rule raises the alarm.",
        lambda each: (each["conformal"] or {}).get("limit"),
    ),
    ("output_limit", "The same of the outputs.", lambda each: (each["outputs"] or {}).get("limit")),
)
# The same of its last reading.
OF_LAST: tuple[tuple[str, str, Callable[[Document], Value]], ...] = (
    ("shift", "Circuit shift of the last batch.", lambda last: last["shift"]),
    ("output_shift", "Shift of the outputs of the last batch.", lambda last: last["output_shift"]),
    ("output_p_value", "Conformal p-value of that.", lambda last: last["output_p_value"]),
    ("alarm", "1 if the last batch raised the alarm.", lambda last: last["alarm"]),
    ("p_value", "Conformal p-value of the last batch.", lambda last: last["p_value"]),
    ("e_value", "Capital of the sequential test.", lambda last: last["e_value"]),
    (
        "last_reading_timestamp_seconds",
        "Time at which the last batch was observed.",
        lambda last: datetime.fromisoformat(last["time"]).timestamp(),
    ),
)


def metrics_text(document: Document, name: str) -> bytes:
    """The state of a monitor in the Prometheus text format.

    Args:
        document: That of a started monitor.
        name: What to call it (label `monitor`).

    Returns:
        Lines `assay_monitor_NAME{monitor="...",model="...",distance="..."} VALUE` with their help, in UTF-8.
        Numbers that do not exist are left out.
    """
    return "".join(_lines(document, name)).encode()


def _lines(document: Document, name: str) -> Iterator[str]:
    labels = {"monitor": name, "model": document["model"]["id"], "distance": document["distance"]["key"]}
    found = [(key, text, take(document)) for key, text, take in OF_MONITOR]
    if document["readings"]:
        last = document["readings"][-1]
        found += [(key, text, take(last)) for key, text, take in OF_LAST]
    for key, text, value in found:
        if value is not None:
            yield _head(key, text)
            yield _sample(key, labels, value)
    last = document["readings"][-1] if document["readings"] else {"baselines": {}}
    if baselines := {key: value for key, value in last["baselines"].items() if value is not None}:
        yield _head("baseline", "Label-free baselines of the last batch.")
        for key, value in baselines.items():
            yield _sample("baseline", {**labels, "baseline": key}, value)


def _head(key: str, text: str) -> str:
    kind = "counter" if key.endswith("_total") else "gauge"
    return f"# HELP assay_monitor_{key} {text}\n# TYPE assay_monitor_{key} {kind}\n"


def _sample(key: str, labels: Mapping[str, str], value: float | int) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"assay_monitor_{key}{{{shown}}} {float(value)}\n"


def _escaped(text: str) -> str:
    """A label as the format wants it. A name of a directory may hold what UTF-8 cannot say."""
    known = text.encode("utf-8", "backslashreplace").decode()
    return known.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

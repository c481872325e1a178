"""Readings of a monitor for Prometheus: the text format, and the smallest server of it."""

import math
import threading
from collections.abc import Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from assay.errors import OutputError


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Name, kind, help, and where a reading has it.
_OF_LAST = (
    ("shift", "Circuit shift of the last batch.", lambda each: each["shift"]),
    ("shift_low", "Lower end of its interval.", lambda each: each["interval"]["low"]),
    ("shift_high", "Upper end of its interval.", lambda each: each["interval"]["high"]),
    ("alarm", "1 where the last batch raised the alarm.", lambda each: _flag(each["alarm"])),
    ("p_value", "Conformal p-value of the last batch.", lambda each: each["p_value"]),
    ("e_value", "Capital of the sequential test.", lambda each: each["e_value"]),
    (
        "last_reading_timestamp_seconds",
        "When the last batch was observed.",
        lambda each: datetime.fromisoformat(each["time"]).timestamp(),
    ),
)


def metrics_text(document: Mapping[str, Any]) -> str:
    """The state of a monitor in the Prometheus text format.

    Args:
        document: What `Monitor.to_dict` gave.

    Returns:
        Lines `assay_monitor_NAME{model="..."} VALUE` with their help; numbers that do not exist are left out.
    """
    readings = document["readings"]
    label = f'model="{_escaped(str(document["model"]["id"]))}",distance="{document["distance"]["key"]}"'
    lines: list[str] = []

    def add(name: str, kind: str, text: str, values: Mapping[str, float | int | None]) -> None:
        found = {more: value for more, value in values.items() if value is not None}
        if found:
            lines.extend((f"# HELP assay_monitor_{name} {text}", f"# TYPE assay_monitor_{name} {kind}"))
            lines.extend(
                f"assay_monitor_{name}{{{label}{more}}} {_number(value)}" for more, value in found.items()
            )

    add("batches_total", "counter", "Batches observed.", {"": len(readings)})
    add("images_total", "counter", "Images observed.", {"": sum(each["n"] for each in readings)})
    add(
        "unreadable_files_total",
        "counter",
        "Image files passed over.",
        {"": sum(len(each["skipped"]) for each in readings)},
    )
    add("alarms_total", "counter", "Batches that raised the alarm.", {"": sum(map(_raised, readings))})
    threshold = (document.get("threshold") or {}).get("value")
    limit = (document.get("conformal") or {}).get("limit")
    add("threshold", "gauge", "Shift above which the threshold rule goes off.", {"": threshold})
    add("conformal_limit", "gauge", "Shift above which the conformal rule goes off.", {"": limit})
    if readings:
        last = readings[-1]
        for name, text, take in _OF_LAST:
            add(name, "gauge", text, {"": take(last)})
        add(
            "baseline",
            "gauge",
            "Label-free baselines of the last batch.",
            {f',baseline="{name}"': value for name, value in last["baselines"].items()},
        )
    return "\n".join(lines) + "\n"


def _flag(alarm: bool | None) -> int | None:
    return None if alarm is None else int(alarm)


def _raised(reading: Mapping[str, Any]) -> int:
    return int(bool(reading["alarm"]))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float | int) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


class MetricsEndpoint:
    """Serves `/metrics` on this host while it is entered.

    Args:
        port: 0 takes a free one, see `port`.
        host: Address to listen on.

    Raises:
        OutputError: If the port cannot be taken.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._text = b""

        def content() -> bytes:
            return self._text

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.split("?")[0] == "/metrics"
                body = content() if known else b"see /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
                """Requests are not news."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise OutputError(
                f"cannot serve metrics on {host}:{port}: {error}; choose another port"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def publish(self, document: Mapping[str, Any]) -> None:
        """Serve this document from now on."""
        self._text = metrics_text(document).encode()

    def __enter__(self) -> "MetricsEndpoint":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""State of monitors for Prometheus: the text, and a small server of it."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal
from wsgiref.simple_server import WSGIServer

from assay.core.errors import OutputError
from assay.core.extras import needs_extra


with needs_extra("serve", "metrics for Prometheus need prometheus-client"):
    from prometheus_client import CollectorRegistry, generate_latest, start_wsgi_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of `metrics_text`
LABELS = ("monitor", "model", "distance")
Document = Mapping[str, Any]
Value = float | int | None
Take = Callable[[Document], Value]
# What a document says: name after `assay_monitor_`, kind, help, and where it stands.
OF_MONITOR: tuple[tuple[str, Literal["counter", "gauge"], str, Take], ...] = (
    ("batches", "counter", "Batches observed.", lambda each: len(each["readings"])),
    ("images", "counter", "Images observed.", lambda each: sum(one["n"] for one in each["readings"])),
    (
        "unreadable_files",
        "counter",
        "Image files skipped because they could not be read.",
        lambda each: sum(len(one["skipped"]) for one in each["readings"]) + len(each.get("passed", ())),
    ),
    (
        "alarms",
        "counter",
        "Batches that raised the alarm.",
        lambda each: sum(bool(one["alarm"]) for one in each["readings"]),
    ),
    (
        "threshold",
        "gauge",
        "Shift above which the threshold rule raises the alarm.",
        lambda each: (each.get("threshold") or {}).get("value"),
    ),
    (
        "conformal_limit",
        "gauge",
        "Shift above which the conformal rule raises the alarm.",
        lambda each: (each.get("conformal") or {}).get("limit"),
    ),
)
# What its last reading says, all gauges.
OF_LAST: tuple[tuple[str, str, Take], ...] = (
    ("shift", "Circuit shift of the last batch.", lambda last: last["shift"]),
    ("shift_low", "Lower end of its interval.", lambda last: last["interval"]["low"]),
    ("shift_high", "Upper end of its interval.", lambda last: last["interval"]["high"]),
    (
        "alarm",
        "1 if the last batch raised the alarm.",
        lambda last: None if last["alarm"] is None else int(last["alarm"]),
    ),
    ("p_value", "Conformal p-value of the last batch.", lambda last: last["p_value"]),
    ("e_value", "Capital of the sequential test.", lambda last: last["e_value"]),
    (
        "last_reading_timestamp_seconds",
        "Time at which the last batch was observed.",
        lambda last: datetime.fromisoformat(last["time"]).timestamp(),
    ),
)


def metrics_text(documents: Sequence[Document]) -> bytes:
    """The state of monitors in the Prometheus text format.

    Args:
        documents: What `Monitor.to_dict` gave, one for each monitor. Under `name` they may say what to call
            it (label `monitor`; default: its id).

    Returns:
        Lines `assay_monitor_NAME{monitor="...",model="...",distance="..."} VALUE` with their help, in UTF-8.
        Numbers that do not exist are left out.
    """
    return generate_latest(_registry(lambda: documents))


def _registry(documents: Callable[[], Sequence[Document]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Monitors(documents))
    return registry


class _Monitors(Collector):
    """Metrics of whatever the documents are when it is asked."""

    def __init__(self, documents: Callable[[], Sequence[Document]]) -> None:
        self._documents = documents

    def describe(self) -> list[Metric]:
        """Nothing in advance, so that registering does not read the documents."""
        return []

    def collect(self) -> Iterator[Metric]:
        documents = list(self._documents())
        labels = _labels(documents)
        for name, kind, text, take in OF_MONITOR:
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            yield from _filled(family(f"assay_monitor_{name}", text, labels=LABELS), labels, documents, take)
        for name, text, take in OF_LAST:
            gauge = GaugeMetricFamily(f"assay_monitor_{name}", text, labels=LABELS)
            yield from _filled(gauge, labels, documents, _of_last(take))
        baselines = GaugeMetricFamily(
            "assay_monitor_baseline",
            "Label-free baselines of the last batch.",
            labels=(*LABELS, "baseline"),
        )
        for label, document in zip(labels, documents, strict=True):
            found = document["readings"][-1]["baselines"] if document["readings"] else {}
            for name, value in found.items():
                if value is not None:
                    baselines.add_metric((*label, _utf8(name)), value)
        if baselines.samples:
            yield baselines


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily,
    labels: Sequence[Sequence[str]],
    documents: Sequence[Document],
    take: Take,
) -> Iterator[Metric]:
    for label, document in zip(labels, documents, strict=True):
        value = take(document)
        if value is not None:
            family.add_metric(label, value)
    if family.samples:
        yield family


def _of_last(take: Take) -> Take:
    return lambda each: take(each["readings"][-1]) if each["readings"] else None


def _labels(documents: Sequence[Document]) -> list[tuple[str, ...]]:
    """One tuple per document, no two alike: Prometheus refuses a page that says the same series twice."""
    found: list[tuple[str, ...]] = []
    for document in documents:
        name = _utf8(str(document.get("name") or document.get("id", "")))
        rest = (_utf8(str(document["model"]["id"])), _utf8(str(document["distance"]["key"])))
        label, number = (name, *rest), 1
        while label in found:
            number += 1
            label = (f"{name}#{number}", *rest)
        found.append(label)
    return found


def _utf8(text: str) -> str:
    """A name of a directory may hold what UTF-8 cannot say."""
    return text.encode("utf-8", "backslashreplace").decode()


class MetricsServer:
    """Serves the metrics of monitors over HTTP until it is left.

    Args:
        port: 0 takes a free one, see `port`.
        host: Address to listen on.

    Raises:
        OutputError: If the port cannot be taken.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._documents: Sequence[Document] = ()
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_wsgi_server(
                port, host, registry=_registry(lambda: self._documents)
            )
        except (OSError, OverflowError) as error:
            raise OutputError(
                f"cannot serve metrics on {host}:{port}: {error}; choose another port"
            ) from error

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def publish(self, *documents: Document) -> None:
        """Serve these from now on."""
        self._documents = documents

    def __enter__(self) -> "MetricsServer":
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

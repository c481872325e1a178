"""The pages of `assay serve`, each made when it is asked for from the store or from a monitor."""

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from assay.app.monitor.metrics import CONTENT_TYPE, metrics_text
from assay.app.monitor.watched import WatchedMonitor
from assay.app.option_groups import KINDS
from assay.app.site import pages
from assay.app.site.query import conditions, identity_of, whole
from assay.core.errors import InputError
from assay.report import sweep_page
from assay.report.record import result_page
from assay.report.save import pages_of, render
from assay.store import Store


PAGE_SIZE = 100  # results of one page of the list
FILTERS = ("kind", "model", "task", "metric", "status")
ORDERS = ("kind", "model", "task", "method", "metric", "n", "seed", "value", "status", "created")
# Pictures come from one library whose settings are global, so pages are drawn one at a time.
_DRAWING = threading.Lock()


class Answers:
    """The answers; plain functions of the store, run outside the event loop."""

    def __init__(self, store: Store, monitors: Sequence[WatchedMonitor]) -> None:
        self._store = store
        self._monitors = list(monitors)

    def results(self, request: Request) -> Response:
        """The list of results."""
        asked = request.query_params
        filters = {name: asked.get(name, "").strip() for name in FILTERS}
        typed = asked.get("where", "").strip()
        order = asked.get("order") or "-created"
        if order.removeprefix("-") not in ORDERS:
            raise InputError(f"cannot order by {order!r}; columns are {', '.join(ORDERS)}")
        where = conditions(filters, typed)
        start = whole(asked.get("start"), "start")
        n = self._store.count(where=where)
        found = self._store.query(where=where, order=order, limit=PAGE_SIZE, offset=start)
        kinds = sorted({*KINDS, filters["kind"]} - {""})
        return HTMLResponse(
            pages.results_page(
                found,
                n=n,
                start=start,
                filters=filters,
                where=typed,
                order=order,
                kinds=kinds,
                size=PAGE_SIZE,
            )
        )

    def result(self, request: Request) -> Response:
        """One result."""
        found = self._store.get(identity_of(request.path_params["identity"]))
        if found.kind == "sweep":
            return self._drawn(lambda: render(sweep_page(self._store, found.id), served=True))
        return self._drawn(lambda: result_page(found))

    def monitors(self, request: Request) -> Response:
        """All monitors with their state."""
        del request
        return HTMLResponse(pages.monitors_page([_state(each) for each in self._monitors]))

    def monitor(self, request: Request) -> Response:
        """One monitor."""
        place = request.path_params["place"]
        if not re.fullmatch(r"[0-9]{1,4}", place) or int(place) >= len(self._monitors):
            raise HTTPException(404)
        found = self._monitors[int(place)]
        document, error = found.document, found.error
        if not document or not document.get("readings"):
            return HTMLResponse(pages.waiting_page(found.name, error))

        def draw() -> str:
            if error is None:
                return render(document, served=True)
            return pages.failed_page(pages_of(document), found.name, error)

        return self._drawn(draw)

    def metrics(self, request: Request) -> Response:
        """State of the monitors for Prometheus."""
        del request
        documents = [{**each.document, "name": each.name} for each in self._monitors if each.document]
        registry = CollectorRegistry()
        up = Gauge(
            "assay_monitor_up",
            "1 while the monitor runs, 0 once it has ended.",
            ["monitor"],
            registry=registry,
        )
        for name, runs in sorted(
            ((each.name, each.running and each.error is None) for each in self._monitors), reverse=True
        ):
            up.labels(monitor=name).set(int(runs))  # of one name the one that ended counts
        return Response(
            metrics_text(documents) + generate_latest(registry), headers={"Content-Type": CONTENT_TYPE}
        )

    @staticmethod
    def _drawn(draw: Callable[[], str]) -> Response:
        with _DRAWING:
            return HTMLResponse(draw())


def _state(monitor: WatchedMonitor) -> dict[str, Any]:
    readings = (monitor.document or {}).get("readings") or []
    last = readings[-1] if readings else {}
    return {
        "name": monitor.name,
        "error": monitor.error,
        "running": monitor.running,
        "n": len(readings),
        "alarms": sum(bool(each.get("alarm")) for each in readings),
        "alarm": bool(last.get("alarm")),
        "shift": last.get("shift"),
        "time": str(last.get("time") or ""),
    }

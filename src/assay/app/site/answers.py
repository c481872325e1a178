"""The pages of `assay serve`, each made when it is asked for from the store."""

import threading
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from assay.app.option_groups import KINDS
from assay.app.site import pages
from assay.app.site.query import identity_of, whole
from assay.core.errors import InputError
from assay.report import sweep_page
from assay.report.record import result_page
from assay.report.save import render
from assay.store import Store


PAGE_SIZE = 100  # results of one page of the list
FILTERS = ("kind", "model", "task", "metric", "status")
ORDERS = ("kind", "model", "task", "method", "metric", "n", "seed", "value", "status", "created")
# Pictures come from one library whose settings are global, so pages are drawn one at a time.
_DRAWING = threading.Lock()


class Answers:
    """The answers; plain functions of the store, run outside the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def results(self, request: Request) -> Response:
        """The list of results."""
        asked = request.query_params
        filters = {name: asked.get(name, "").strip() for name in FILTERS}
        order = asked.get("order") or "-created"
        if order.removeprefix("-") not in ORDERS:
            raise InputError(f"cannot order by {order!r}; columns are {', '.join(ORDERS)}")
        wanted = {name: value for name, value in filters.items() if value}
        start = whole(asked.get("start"), "start")
        n = self._store.count(**wanted)
        found = self._store.query(**wanted, order=order, limit=PAGE_SIZE, offset=start)
        kinds = sorted({*KINDS, filters["kind"]} - {""})
        return HTMLResponse(
            pages.results_page(
                found,
                n=n,
                start=start,
                filters=filters,
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

    @staticmethod
    def _drawn(draw: Callable[[], str]) -> Response:
        with _DRAWING:
            return HTMLResponse(draw())

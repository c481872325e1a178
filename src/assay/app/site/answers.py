"""The pages of `assay serve`, each made when it is asked for from the store."""

import threading
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from assay.app.option_groups import KINDS
from assay.app.site import pages
from assay.app.site.query import conditions, identity_of, whole
from assay.core.errors import InputError
from assay.report import compare_document, overview_document
from assay.report.comparison_sides import COMPARED
from assay.report.record import result_page
from assay.report.save import render
from assay.store import Store


PAGE_SIZE = 100  # results of one page of the list
NAMED = 2_000  # newest results whose models and tasks the index names
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
            return self._drawn(lambda: render(overview_document(self._store, sweep=found.id), served=True))
        return self._drawn(lambda: result_page(found))

    def index(self, request: Request) -> Response:
        """Models, tasks and sweeps by name."""
        del request
        newest = self._store.query(order="-created", limit=NAMED)
        sweeps = self._store.query("sweep", order="-created", limit=PAGE_SIZE)
        groups = [
            ("Models", "/model", sorted({each.model for each in newest if each.model})),
            ("Tasks", "/task", sorted({each.task for each in newest if each.task})),
            ("Sweeps", "/sweep", list(dict.fromkeys(each.name or each.id for each in sweeps))),
        ]
        return HTMLResponse(pages.index_page(groups, cut=NAMED if len(newest) == NAMED else None))

    def overview(self, of: str) -> Callable[[Request], Response]:
        """The page of a model, a task or a sweep."""

        def answer(request: Request) -> Response:
            name = request.query_params.get("name", "")
            if not name:
                raise InputError(f"the address does not name a {of}: add ?name=...")
            return self._drawn(lambda: render(overview_document(self._store, **{of: name}), served=True))

        return answer

    def compare(self, request: Request) -> Response:
        """Two results, or a form that asks for them."""
        a, b = (request.query_params.get(name, "").strip() for name in ("a", "b"))
        if not (a and b):
            choices = [
                each
                for kind in COMPARED
                for each in self._store.query(kind, order="-created", limit=PAGE_SIZE // 4)
            ]
            newest = sorted(choices, key=lambda each: each.created, reverse=True)[:PAGE_SIZE]
            return HTMLResponse(pages.compare_form(newest, a=a, b=b))
        pair = identity_of(a), identity_of(b)
        return self._drawn(lambda: render(compare_document(self._store, *pair, files=False), served=True))

    @staticmethod
    def _drawn(draw: Callable[[], str]) -> Response:
        with _DRAWING:
            return HTMLResponse(draw())

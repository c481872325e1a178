"""The JSON API of `assay serve`: lists results and returns one. Requests pass the same door as the pages."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.app.site.query import conditions, identity_of, whole
from assay.core.errors import InputError, UnknownNameError, unknown_name
from assay.core.record import plain
from assay.store import Store


ROOT = "/api/"
PATH = f"{ROOT}results"
ADDRESSES = f"GET {PATH} lists results, GET {PATH}/ID returns one"
FILTERS = ("kind", "model", "task", "method", "metric", "status")
NAMES = (*FILTERS, "where", "limit", "cursor", "token")
USUAL, MOST = 100, 1_000  # results of one answer
_CURSOR = re.compile(r"(?P<created>[0-9T:.+-]{1,40})~(?P<id>[0-9a-f]{16})")


def listing(store: Store, request: Request) -> Response:
    """Results in brief, the oldest first: the page behind a cursor, and the cursor of the next."""
    try:
        return JSONResponse(plain(_page(store, request.query_params)))
    except UnknownNameError as error:  # a parameter or a column: the address itself is right
        raise InputError(str(error)) from error


def _page(store: Store, asked: Mapping[str, str]) -> dict[str, Any]:
    if unknown := [name for name in asked if name not in NAMES]:
        raise unknown_name("parameter", unknown[0], NAMES)
    limit = whole(asked.get("limit"), "limit") or USUAL
    if limit > MOST:
        raise InputError(f"limit is {limit}; give at most {MOST:,} results per answer")
    filters = {name: asked.get(name, "").strip() for name in FILTERS}
    where = conditions(filters, asked.get("where", ""))
    n, last = store.count(where=where), ("", "")
    skipped = 0
    if cursor := asked.get("cursor"):
        place = _CURSOR.fullmatch(cursor)
        if place is None:
            raise InputError(f"cursor is {cursor!r}; give the cursor that the previous page returned")
        last = (place["created"], place["id"])
        skipped = store.count(where=[*where, f'created = "{last[0]}"'])  # of one moment, some may be known
        where.append(f'created >= "{last[0]}"')
    results = store.query(where=where, order="created", limit=limit + skipped + 1)
    page = [each for each in results if (each.created, each.id) > last]
    shown, more = page[:limit], len(page) > limit
    return {
        "results": [asdict(each) | {"about": each.about} for each in shown],
        "n": n,
        "cursor": f"{shown[-1].created}~{shown[-1].id}" if more else None,
    }


def result(store: Store, request: Request) -> Response:
    """One result: provenance, payload, names of its arrays."""
    return JSONResponse(plain(store.get(identity_of(request.path_params["identity"])).document()))


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """What went wrong, as JSON."""
    return JSONResponse({"status": status, "error": message}, status_code=status, headers=headers)

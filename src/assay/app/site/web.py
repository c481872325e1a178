"""`assay serve`: a read-only site over a results store, and over monitors that run.

Every answer is made when it is asked for. Ids are checked before they reach the store, and no path of the
file system is ever built from a request.
"""

import hmac
import ipaddress
import logging
import re
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlencode

import uvicorn
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.app.monitor.metrics import CONTENT_TYPE, metrics_text
from assay.app.options import KINDS
from assay.app.site import api, pages
from assay.app.site.query import conditions, identity_of, whole
from assay.core.errors import AssayError, InputError, OutputError, UnknownNameError
from assay.page.html import content_policy
from assay.report import compare_document, overview_document
from assay.report.comparison import COMPARED
from assay.report.record import result_page
from assay.report.save import pages_of, render
from assay.store import Store


PORT = 8651
PAGE_SIZE = 100  # results of one page of the list
NAMED = 2_000  # newest results whose models and tasks the index names
LONGEST = 2_000  # characters of one value of a query
COOKIE = "assay-session"
FILTERS = ("kind", "model", "task", "metric", "status")
ORDERS = ("kind", "model", "task", "method", "metric", "n", "seed", "value", "status", "created")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Pictures come from one library whose settings are global, so pages are drawn one at a time.
_DRAWING = threading.Lock()
_LOG = logging.getLogger("assay.serve")


@runtime_checkable
class Watched(Protocol):
    """A monitor as the site sees it; `assay.app.monitor.watched.watched` makes them."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def document(self) -> Mapping[str, Any] | None:
        """Its document, `Monitor.to_dict`; None before there is one."""

    @property
    def error(self) -> str | None:
        """Why it failed; None while all is well."""

    @property
    def running(self) -> bool:
        """Whether it observes."""

    def start(self) -> None:
        """Begin to observe, or to look."""

    def stop(self) -> None:
        """End what `start` began."""


def is_loopback(host: str) -> bool:
    """Whether a server on this address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def create_app(
    store: Store,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    monitors: Sequence[Watched] = (),
    allowed_hosts: Iterable[str] = (),
) -> ASGIApp:
    """The site as an ASGI application.

    Args:
        store: What it shows; only read.
        host: The address it will be bound to.
        token: What a visitor must show; needed unless `host` is a loopback address.
        monitors: Shown at `/monitors` and `/metrics`; started and stopped by `serve`.
        allowed_hosts: Further names under which the site is visited. Addresses, `localhost` and this
            machine's own name always are.

    Raises:
        InputError: Without a token on an address that others can reach, or with an empty one.
    """
    if token is None and not is_loopback(host):
        raise InputError(
            f"others can reach the store on {host}: give --token TEXT (16 characters or more), or use "
            "127.0.0.1"
        )
    if token is not None and (
        len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token
    ):
        raise InputError(
            "a token is 16 or more ASCII characters without spaces, e.g. the output of "
            "`python -c 'import secrets; print(secrets.token_urlsafe())'`"
        )
    pages = _Pages(store, monitors)
    app = Starlette(
        routes=[
            Route("/", pages.results),
            Route("/result/{identity}", pages.result),
            Route("/overviews", pages.index),
            Route("/model", pages.overview("model")),
            Route("/task", pages.overview("task")),
            Route("/sweep", pages.overview("sweep")),
            Route("/compare", pages.compare),
            Route("/monitors", pages.monitors),
            Route("/monitor/{place}", pages.monitor),
            Route("/metrics", pages.metrics),
            Route(api.PATH, partial(api.listing, store)),
            Route(f"{api.PATH}/{{identity}}", partial(api.result, store)),
            Route("/healthz", _health),
        ],
        exception_handlers={HTTPException: _http_error, AssayError: _assay_error, Exception: _failure},
    )
    return _Door(app, token=token, hosts={host, *allowed_hosts, *_own_names()})


def serve(
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    monitors: Sequence[Watched] = (),
    allowed_hosts: Iterable[str] = (),
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the site until Ctrl-C or SIGTERM.

    Args:
        store: What it shows.
        host: Address to bind to; anything but a loopback address needs `token`.
        port: 0 takes a free one.
        token: See `create_app`.
        monitors: Observed or watched meanwhile.
        allowed_hosts: See `create_app`.
        ready: Told the address once the site can be visited.

    Raises:
        InputError: See `create_app`.
        OutputError: If the port is taken or the address is not one of this machine.
    """
    app = create_app(store, host=host, token=token, monitors=monitors, allowed_hosts=allowed_hosts)
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=3,
    )
    started = []
    try:
        for monitor in monitors:
            monitor.start()
            started.append(monitor)
        if ready is not None:
            ready(address)
        try:
            with _sigterm_as_interrupt():
                uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:
            return  # the usual end; uvicorn has closed its connections by now
    finally:
        for monitor in started:
            monitor.stop()
        listening.close()


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the site as Ctrl-C does: uvicorn sends it on when it is done, while monitors still run."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a taken port is our own error."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(
            f"cannot serve on port {port} of {host}: {reason}; choose another with --port (0 picks a free "
            "one)"
        ) from error
    return listening


def _own_names() -> set[str]:
    return {"localhost", socket.gethostname().lower()}


# ---- who may come in ----------------------------------------------------------------------------


class _Door:
    """What stands before every page: method, host, token; and the headers of every answer."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Iterable[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = {each.strip("[]").lower() for each in hosts}
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"{COOKIE}-{secrets.token_hex(4)}"  # cookies are shared by all ports of a host
        self._link_used = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the site serves HTTP only, not {scope['type']}")

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                extra = HEADERS | {"Content-Security-Policy": f"{content_policy()}; frame-ancestors 'none'"}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.lower().encode(), value.encode())
                        for name, value in extra.items()
                        if name.lower().encode() not in given
                    ),
                ]
            await send(message)

        request = Request(scope)
        answer = self._refusal(request)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """An answer instead of the page, or None to let the visitor in."""
        if request.method not in ("GET", "HEAD"):
            return _message(
                request, 405, "Read only", "This site is read-only.", headers={"Allow": "GET, HEAD"}
            )
        # A name that points here only in the visitor's browser: DNS rebinding.
        if not self._known_host(request.headers.get("host", "")):
            return _message(
                request,
                400,
                "Unknown host",
                "This site was opened under an unknown host name. Visit it by its address, or start it with "
                "--allow-host NAME.",
            )
        if any(len(value) > LONGEST for _, value in parse_qsl(request.url.query, keep_blank_values=True)):
            return _message(
                request, 400, "Too long", f"A value in the address has more than {LONGEST:,} characters."
            )
        if self._token is None or request.url.path == "/healthz":
            return None
        return self._unknown_visitor(request)

    def _known_host(self, header: str) -> bool:
        host = header.rsplit(":", 1)[0] if re.search(r":\d*$", header) else header
        host = host.strip("[]").lower()
        if host in self._hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def _unknown_visitor(self, request: Request) -> Response | None:
        assert self._token is not None
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(shown.strip(), self._token):
            return None
        if _same(request.cookies.get(self._cookie, ""), self._session):
            return None
        asked = parse_qsl(request.url.query, keep_blank_values=True)
        given = [value for name, value in asked if name == "token"]
        if given and _same(given[0], self._token) and not self._link_used.is_set():
            self._link_used.set()
            rest = urlencode([pair for pair in asked if pair[0] != "token"])
            # The path alone, with one slash in front: an address of another site begins with two.
            place = "/" + request.url.path.lstrip("/") + (f"?{rest}" if rest else "")
            answer = RedirectResponse(place, status_code=303)
            answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
            return answer
        return _message(
            request,
            401,
            "Token required",
            "Send the header Authorization: Bearer TOKEN, or open the link with ?token=TOKEN once after the "
            "site starts: it sets a cookie and works only once.",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _same(given: str, wanted: str) -> bool:
    """Compared in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _message(
    request: Request, status: int, title: str, message: str, *, headers: Mapping[str, str] | None = None
) -> Response:
    if request.url.path.startswith(api.ROOT):
        return api.refusal(status, message, headers)
    text = pages.message_page(title, message, navigation=status not in (400, 401))
    return HTMLResponse(text, status_code=status, headers=headers)


# ---- errors -------------------------------------------------------------------------------------


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and request.url.path.startswith(api.ROOT):
        return _message(request, 404, "", f"{request.url.path} is not an address of the API: {api.ADDRESSES}")
    if error.status_code == 404:
        return _message(
            request,
            404,
            "Nothing here",
            "This page does not exist. The first page lists the results of the store.",
        )
    return _message(request, error.status_code, "Not possible", str(error.detail))


def _assay_error(request: Request, error: Exception) -> Response:
    """A page that explains a visitor's mistake; other errors go to the log."""
    if isinstance(error, UnknownNameError):
        return _message(request, 404, "Not found", str(error))
    if isinstance(error, InputError):
        return _message(request, 400, "Not understood", str(error))
    _LOG.error("%s failed", request.url.path, exc_info=error)
    return _failure(request, error)


def _failure(request: Request, error: Exception) -> Response:
    """A plain page; unforeseen errors are raised again behind it, for uvicorn to log."""
    del error
    text = "The page could not be built. See the log of the server for the reason."
    return _message(request, 500, "Something failed", text)


def _health(request: Request) -> Response:
    del request
    return PlainTextResponse("ok\n")


# ---- pages --------------------------------------------------------------------------------------


class _Pages:
    """The answers; plain functions of the store, run outside the event loop."""

    def __init__(self, store: Store, monitors: Sequence[Watched]) -> None:
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


def _state(monitor: Watched) -> dict[str, Any]:
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

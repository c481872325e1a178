"""`assay serve`: a read-only site over a results store.

Every answer is made when it is asked for. Ids are checked before they reach the store, and no path of the
file system is ever built from a request.
"""

import base64
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from assay.app.site.pages import HANDLERS, Pages, notice
from assay.core.errors import InputError, OutputError
from assay.page.html import content_policy
from assay.store import Store


PORT = 8651
HEADERS = {
    "Content-Security-Policy": f"{content_policy()}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


# ---- who may see the site ---------------------------------------------------------------------


class Door(BaseHTTPMiddleware):
    """What stands before every page: host and token; and the headers of every answer."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Iterable[str]) -> None:
        super().__init__(app)
        self._token = token
        self._hosts = {each.strip("[]").lower() for each in hosts}

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """The answer to a request."""
        answer = self._refusal(request) or await call_next(request)
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

    def _refusal(self, request: Request) -> Response | None:
        """An answer instead of the page, or None to let the visitor in."""
        # A name that points here only in the visitor's browser: DNS rebinding.
        host = re.sub(r":\d*$", "", request.headers.get("host", "")).strip("[]").lower()
        if host not in self._hosts and address_of(host) is None:
            text = "Unknown host name. Visit the site by its address, or start it with --allow-host."
            return notice(400, "Unknown host", text)
        if self._token is None or request.url.path == "/healthz":
            return None
        if hmac.compare_digest(_credentials(request).encode(), self._token.encode()):
            return None
        text = "Give the token as the password, with any name. Programs may send it as a bearer token."
        asked = {"WWW-Authenticate": 'Basic realm="assay", charset="UTF-8"'}
        return notice(401, "Token required", text, headers=asked)


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The network address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _credentials(request: Request) -> str:
    """The token that a visitor shows: as a password, which browsers ask for, or by itself."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return text.strip() if scheme.lower() == "bearer" else ""
    try:
        return base64.b64decode(text).decode().partition(":")[2]
    except ValueError:  # not base64, or not UTF-8
        return ""


def create_app(
    store: Store,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
) -> ASGIApp:
    """The site as an ASGI application.

    Args:
        store: What it shows; only read.
        host: The address it will be bound to.
        token: What a visitor must show; needed unless `host` is a loopback address.
        allowed_hosts: Further names under which the site is visited. Addresses, `localhost` and this
            machine's own name always are.

    Raises:
        InputError: Without a token on an address that others can reach, or with an empty one.
    """
    address = address_of(host)
    alone = host == "localhost" or (address is not None and address.is_loopback)
    if token is None and not alone:
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
    pages = Pages(store)
    app = Starlette(
        routes=[
            Route("/", pages.results),
            Route("/result/{identity}", pages.result),
            Route("/healthz", _health),
        ],
        exception_handlers=HANDLERS,
    )
    return Door(app, token=token, hosts={host, *allowed_hosts, "localhost", socket.gethostname()})


def serve(
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the site until Ctrl-C.

    Args:
        store: What it shows.
        host: Address to bind to; anything but a loopback address needs `token`.
        port: 0 takes a free one.
        token: See `create_app`.
        allowed_hosts: See `create_app`.
        ready: Told the address once the site can be visited.

    Raises:
        InputError: See `create_app`.
        OutputError: If the port is taken or the address is not one of this machine.
    """
    app = create_app(store, host=host, token=token, allowed_hosts=allowed_hosts)
    listening = _listen(host, port)
    shown, port = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
    address = f"http://{shown}:{port}/"
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=3,
    )
    try:
        if ready is not None:
            ready(address)
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        return  # the usual end; uvicorn has closed its connections by now
    finally:
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a taken port is our own error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(
            f"cannot serve on port {port} of {host}: {reason}; choose another with --port (0 picks a free "
            "one)"
        ) from error


def _health(request: Request) -> Response:
    del request
    return PlainTextResponse("ok\n")

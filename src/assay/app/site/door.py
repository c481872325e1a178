"""Who may see the site: the check before every answer of `assay serve`."""

import hmac
import ipaddress
import re
import secrets
import threading
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.app.site.notices import notice
from assay.page.html import content_policy


LONGEST = 2_000  # characters of one value of a query
COOKIE = "assay-session"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Door:
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
            return notice(405, "Read only", "This site is read-only.", headers={"Allow": "GET, HEAD"})
        # A name that points here only in the visitor's browser: DNS rebinding.
        if not self._known_host(request.headers.get("host", "")):
            return notice(
                400,
                "Unknown host",
                "This site was opened under an unknown host name. Visit it by its address, or start it with "
                "--allow-host NAME.",
            )
        if any(len(value) > LONGEST for _, value in parse_qsl(request.url.query, keep_blank_values=True)):
            return notice(400, "Too long", f"A value in the address has more than {LONGEST:,} characters.")
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
        return notice(
            401,
            "Token required",
            "Send the header Authorization: Bearer TOKEN, or open the link with ?token=TOKEN once after the "
            "site starts: it sets a cookie and works only once.",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _same(given: str, wanted: str) -> bool:
    """Compared in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())

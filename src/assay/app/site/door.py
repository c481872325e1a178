"""Who may see the site: the check before every answer of `assay serve`."""

import base64
import hmac
import ipaddress
import re
from collections.abc import Iterable

from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from assay.app.site.pages import notice
from assay.page.html import content_policy


HEADERS = {
    "Content-Security-Policy": f"{content_policy()}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Door(BaseHTTPMiddleware):
    """What stands before every page: method, host, token; and the headers of every answer."""

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
        if request.method not in ("GET", "HEAD"):
            return notice(405, "Read only", "This site is read-only.", headers={"Allow": "GET, HEAD"})
        # A name that points here only in the visitor's browser: DNS rebinding.
        host = re.sub(r":\d*$", "", request.headers.get("host", "")).strip("[]").lower()
        if host not in self._hosts and address_of(host) is None:
            return notice(
                400,
                "Unknown host",
                "This site was opened under an unknown host name. Visit it by its address, or start it with "
                "--allow-host NAME.",
            )
        if self._token is None or request.url.path == "/healthz":
            return None
        if hmac.compare_digest(_credentials(request).encode(), self._token.encode()):
            return None
        return notice(
            401,
            "Token required",
            "Give the token as the password, with any name. Programs may also send the header Authorization: "
            "Bearer TOKEN.",
            headers={"WWW-Authenticate": 'Basic realm="assay", charset="UTF-8"'},
        )


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The network address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _credentials(request: Request) -> str:
    """The token that a visitor shows: as a password, which browsers ask for, or by itself."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return text.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(text).decode().partition(":")[2]
    except ValueError:  # not base64, or not UTF-8
        return ""

"""What the site says when it has no page to show: refusals, mistakes of visitors, failures."""

import logging
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from assay.app.site import pages
from assay.core.errors import AssayError, InputError, UnknownNameError


_LOG = logging.getLogger("assay.serve")


def notice(status: int, title: str, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """A page with a message."""
    text = pages.message_page(title, message, navigation=status not in (400, 401))
    return HTMLResponse(text, status_code=status, headers=headers)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    del request
    if error.status_code == 404:
        return notice(
            404,
            "Nothing here",
            "This page does not exist. The first page lists the results of the store.",
        )
    return notice(error.status_code, "Not possible", str(error.detail), headers=error.headers)


def _assay_error(request: Request, error: Exception) -> Response:
    """A page that explains a visitor's mistake; other errors go to the log."""
    if isinstance(error, UnknownNameError):
        return notice(404, "Not found", str(error))
    if isinstance(error, InputError):
        return notice(400, "Not understood", str(error))
    _LOG.error("%s failed", request.url.path, exc_info=error)
    return _failure(request, error)


def _failure(request: Request, error: Exception) -> Response:
    """A plain page; unforeseen errors are raised again behind it, for uvicorn to log."""
    del request, error
    text = "The page could not be built. See the log of the server for the reason."
    return notice(500, "Something failed", text)


HANDLERS = {HTTPException: _http_error, AssayError: _assay_error, Exception: _failure}

"""Requests by POST that follow no redirect, and what went wrong with one, without any part of the request."""

import http.client
import urllib.error
import urllib.request


def opener_without_redirects() -> urllib.request.OpenerDirector:
    """An opener of http and https alone, for which a redirect is an error.

    A redirected POST loses its content, and its headers may go to another host or scheme.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


FAILURES = (OSError, ValueError, http.client.HTTPException)  # URLError and HTTPError are of OSError


def failure(error: Exception) -> str:
    """Why a request failed."""
    if isinstance(error, urllib.error.HTTPError):
        if 300 <= error.code < 400:
            return f"status {error.code}, a redirect; redirects are not followed. Give the final address"
        return f"status {error.code}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str((isinstance(cause, OSError) and cause.strerror) or type(cause).__name__)

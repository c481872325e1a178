"""`POST /observe` of `assay serve`: images in, how many wait and the last reading out.

A request is taken as a whole or refused as a whole, and answered at once: the monitor observes in its thread.
"""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from assay.app.monitor.spool import PostedImage, Spool, SpoolClosedError, SpoolFullError
from assay.app.monitor.watched import WatchedMonitor
from assay.core.errors import InputError, UnknownNameError, unknown_name
from assay.core.untrusted import parse_json


PATH = "/observe"
MOST_BYTES = 32 << 20  # of a request
MOST_IMAGES = 256  # of a request
PATIENCE = 60.0  # seconds that a request may take to arrive
AT_ONCE = 8  # requests whose bytes are held
DECODING = 2  # of these, whose images are decoded
LATER = {"Retry-After": "10"}
LEFT_OUT = ("layers", "sources", "skipped")  # of a reading in an answer; the page has them
KINDS = "image/png, image/jpeg, image/webp (one image as it is) or application/json"


class Observing:
    """Hands images to the monitors that are posted theirs.

    Args:
        monitors: All monitors of the site, in its order.
    """

    def __init__(self, monitors: Sequence[WatchedMonitor]) -> None:
        self._places = {each.name: place for place, each in enumerate(monitors) if each.spool is not None}
        self._monitors = list(monitors)
        self._held = 0
        self._decoding = asyncio.Semaphore(DECODING)

    async def answer(self, request: Request) -> Response:
        """Take images, or with GET say how things are."""
        monitor, spool = self._monitor(request.query_params.get("monitor", ""))
        names: list[str] = []
        if request.method == "POST":
            names = await self._accepted(monitor, spool, request)
        document = monitor.document or {}
        readings = document.get("readings") or [None]
        last = readings[-1]
        answer = {
            "monitor": monitor.name,
            "accepted": names,
            "waiting": spool.waiting,
            "window": spool.window,
            "reading": last and {key: value for key, value in last.items() if key not in LEFT_OUT},
            "page": f"/monitor/{self._places[monitor.name]}",
        }
        return JSONResponse(answer, status_code=202 if names else 200)

    async def _accepted(self, monitor: WatchedMonitor, spool: Spool, request: Request) -> list[str]:
        if monitor.error is not None:
            raise HTTPException(503, f"monitor {monitor.name} has failed: {monitor.error}")
        if self._held >= AT_ONCE:
            raise HTTPException(429, f"{AT_ONCE} requests arrive already; send this one later", LATER)
        kind, name = _kind(request), request.query_params.get("name", "")
        self._held += 1
        try:
            content = await _content(request)
            async with self._decoding:
                return await run_in_threadpool(_take, spool, kind, content, name)
        except SpoolFullError as error:
            raise HTTPException(429, str(error), LATER) from error
        except SpoolClosedError as error:
            raise HTTPException(503, str(error), LATER) from error
        finally:
            self._held -= 1

    def _monitor(self, name: str) -> tuple[WatchedMonitor, Spool]:
        if not self._places:
            raise UnknownNameError(
                'none of the monitors is posted its images; give --monitor FILE.toml with images = "posted"'
            )
        if not name and len(self._places) > 1:
            raise InputError(f"several monitors take images ({', '.join(self._places)}); add ?monitor=NAME")
        if name and name not in self._places:
            raise unknown_name("monitor that is posted its images", name, self._places)
        monitor = self._monitors[self._places[name or next(iter(self._places))]]
        assert monitor.spool is not None, "only such monitors have a place"
        return monitor, monitor.spool


def _kind(request: Request) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("image/png", "image/jpeg", "image/webp", "application/json"):
        raise HTTPException(415, f"the content type is {kind[:80]!r}; send {KINDS}")
    return kind


async def _content(request: Request) -> bytes:
    """The body, never more of it than is taken."""
    too_large = HTTPException(413, f"the request has more than {MOST_BYTES:,} bytes; send fewer images")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MOST_BYTES:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                content += part
                if len(content) > MOST_BYTES:
                    raise too_large
    except ClientDisconnect as error:  # nobody hears the answer; the log should not call it a failure
        raise HTTPException(400, "the request ended early") from error
    except TimeoutError as error:
        raise HTTPException(408, f"the request did not arrive within {PATIENCE:g} s") from error
    return bytes(content)


def _take(spool: Spool, kind: str, content: bytes, name: str) -> list[str]:
    """Decode a body and hand over its images; runs in a thread."""
    images = _images(content) if kind == "application/json" else [PostedImage(content=content, name=name)]
    return spool.add(images)


def _images(content: bytes) -> list[PostedImage]:
    """The images of a JSON body."""
    form = 'expected {"images": [{"name": "a.png", "data": "BASE64"}, ...]}'
    try:
        body: Any = parse_json(content)
    except ValueError as error:
        raise InputError(f"the body is not JSON ({str(error)[:200]}); {form}") from error
    images = body.get("images") if isinstance(body, dict) else None
    if not isinstance(images, list) or not images:
        raise InputError(f"the body has no list of images; {form}")
    if len(images) > MOST_IMAGES:
        raise HTTPException(413, f"the request has {len(images)} images; send at most {MOST_IMAGES}")
    found = []
    for place, each in enumerate(images, 1):
        data, name = (each.get("data"), each.get("name", "")) if isinstance(each, dict) else (None, "")
        if not isinstance(data, str) or not isinstance(name, str):
            raise InputError(f"image {place} has no text under 'data', or its name is not text; {form}")
        try:
            found.append(PostedImage(content=base64.b64decode(data, validate=True), name=name))
        except (binascii.Error, ValueError) as error:
            raise InputError(f"image {place} is not base64 ({error}); {form}") from error
    return found

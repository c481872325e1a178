"""Where alarms go: a file of JSON lines, a webhook."""

import base64
import json
import os
import re
import stat
import threading
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from assay.app.monitor.webhook_bodies import KEY, body_of
from assay.core.errors import AssayError, InputError, OutputError
from assay.core.posting import FAILURES, failure, opener_without_redirects
from assay.core.record import library_version, plain
from assay.core.untrusted import is_json


TIMEOUT = 5.0  # seconds that a webhook has for its whole answer
TAIL = 1 << 16  # bytes at the end of an alarm file in which an event is looked for


class DeliveryError(AssayError):
    """An event did not arrive; the message holds no secret."""


class Sink(ABC):
    """Where events go.

    Attributes:
        key: `webhook` or `alarm_file`.
        shown: What to call it in messages, without secrets.
    """

    key: str
    shown: str

    @abstractmethod
    def deliver(self, event: Mapping[str, Any]) -> None:
        """Hand over one event.

        Raises:
            DeliveryError: If it did not arrive.
        """


class AlarmFile(Sink):
    """A file of JSON lines that several monitors may share.

    A line is added under a lock, whole or not at all, and forced to the disk. What a kill or a full disk left
    of an earlier one is cut off. An event that stands near the end already is not added again.

    Args:
        path: The file; made with the first event.

    Raises:
        OutputError: If it cannot be written.
    """

    key = "alarm_file"

    def __init__(self, path: Path) -> None:
        self.path, self.shown = path, str(path)
        nearest = next((each for each in path.absolute().parents if each.exists()), Path("/"))
        if path.is_dir() or not os.access(path if path.exists() else nearest, os.W_OK):
            raise OutputError(f"cannot write alarm file {path}; choose a writable place")

    def deliver(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(plain(event), allow_nan=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise DeliveryError(f"alarm file {self.path} is not a regular file")
                lock_descriptor(file.fileno())
                self._append(file, line, str(event["id"]))
        except OSError as error:
            raise DeliveryError(f"alarm file {self.path}: {error.strerror}") from error

    @staticmethod
    def _append(file: FileIO, line: bytes, key: str) -> None:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        file.seek(max(0, size - TAIL))
        tail = file.read(TAIL)
        if key.encode() in tail[: tail.rfind(b"\n") + 1]:
            return
        torn = tail[tail.rfind(b"\n") + 1 :]
        if torn and (is_json(torn) or not _begun(torn)):
            line = b"\n" + line  # a last line that only lacks its break, or is not of ours
        elif torn:
            size -= len(torn)
            os.ftruncate(descriptor, size)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(28, "No space left on device")
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise


def _begun(text: bytes) -> bool:
    """Whether it may be the beginning of an event that was cut off."""
    start = b'{"schema": "assay-alarm'
    return text.startswith(start) or start.startswith(text)


class Webhook(Sink):
    """A JSON POST per event. Any 2xx answer counts; redirects are not followed, bodies not read.

    Args:
        url: `http` or `https`; a name and password in it become basic authentication. No message or file
            shows more of it than scheme and host.
        form: Of the body: `generic`, the event itself, `slack`, `teams` or `pagerduty`; the last takes
            `routing_key` out of the query of the URL.
        timeout: Seconds for one request, all in all.

    Raises:
        InputError: For another scheme or form, no host, or no routing key where one is needed.
    """

    key = "webhook"

    def __init__(self, url: str, *, form: str = "generic", timeout: float = TIMEOUT) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise InputError("the webhook is not a URL; give https://HOST/PATH") from None
        if parts.scheme not in ("http", "https"):
            raise InputError(f"the webhook has scheme {parts.scheme!r}; expected http or https")
        if not host or not re.fullmatch(r"[!-~]+", url):
            raise InputError(
                "the webhook has no host, or characters that a URL cannot have; give https://HOST/PATH"
            )
        place = f"[{host}]" if ":" in host else host
        place += "" if port is None else f":{port}"
        self.shown = f"{parts.scheme}://{place}/..."
        query, key = parts.query, ""
        if form == "pagerduty":
            asked = urllib.parse.parse_qsl(query)
            key = dict(asked).get(KEY, "")
            query = urllib.parse.urlencode([pair for pair in asked if pair[0] != KEY])
        self._body = body_of(form, key)
        self._url = urllib.parse.urlunsplit((parts.scheme, place, parts.path or "/", query, ""))
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"assay/{library_version()}",
        }
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._timeout = timeout
        self._opener = opener_without_redirects()
        self._asking: threading.Thread | None = None

    def deliver(self, event: Mapping[str, Any]) -> None:
        if self._asking is not None and self._asking.is_alive():
            raise DeliveryError(f"webhook {self.shown}: the previous request is still unanswered")
        body = json.dumps(plain(self._body(event)), allow_nan=False).encode()
        headers = {**self._headers, "Idempotency-Key": str(event["id"])}
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        answer: list[str] = []
        # In a thread: the time-out of a socket starts again with every byte, a host that drips has none.
        self._asking = threading.Thread(target=lambda: answer.append(self._ask(request)), daemon=True)
        self._asking.start()
        self._asking.join(self._timeout)
        problem = answer[0] if answer else f"no answer within {self._timeout:g} s"
        if problem:
            raise DeliveryError(f"webhook {self.shown}: {problem}")

    def _ask(self, request: urllib.request.Request) -> str:
        """Why the request failed, without any part of the request; empty where it succeeded."""
        try:
            answer = self._opener.open(request, timeout=self._timeout)
        except FAILURES as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            return failure(error)
        answer.close()
        return ""

"""Alarms as events: one when an alarm is raised, one when it is resolved, to a file and to a webhook.

An episode lasts from the first reading that raises the alarm to the first that does not. It is told once,
however many readings it has and however often the monitor is started again: what was told, and what still
waits to be, is kept in the monitor's directory. Every event has an id. It is written down before it is sent,
so a kill in between may send it twice, never not at all.
"""

import base64
import http.client
import json
import math
import os
import re
import stat
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from assay.analyses.generalization.monitoring import Monitor, Reading
from assay.circuits import write_atomically
from assay.core.errors import AssayError, InputError, OutputError
from assay.core.record import library_version, plain, record_id


SCHEMA, STATE_SCHEMA = "assay-alarm/1", "assay-alarms-told/1"
STATE = "alarms-told.json"  # beside the readings
TIMEOUT = 5.0  # seconds that a webhook has for its whole answer
FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0  # seconds between tries; each wait is twice the one before
TRIES_AT_THE_END = 3  # of an event that is still waiting when the monitor ends
MOST_WAITING = 1000  # events; beyond it the oldest go
TAIL = 1 << 16  # bytes at the end of an alarm file in which an event is looked for
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Tell = Callable[[str], None]


def seconds_of(text: str | float | int) -> float:
    """A duration: seconds, or a number with a unit, `45s`, `10m`, `2h`, `1d`.

    Raises:
        InputError: For anything else, and for what is negative or infinite.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([smhd]?)\s*", str(text))
    if match is None or not math.isfinite(found := float(match[1]) * UNITS[match[2]]):
        raise InputError(
            f"{text!r} is not a duration; give seconds, or a number with a unit: 45s, 10m, 2h, 1d"
        )
    return found


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
        if torn and (_is_json(torn) or not _begun(torn)):
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


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class Webhook(Sink):
    """A JSON POST per event. Any 2xx answer counts; redirects are not followed, bodies not read.

    Args:
        url: `http` or `https`; a name and password in it become basic authentication. No message or file
            shows more of it than scheme and host.
        timeout: Seconds for one request, all in all.

    Raises:
        InputError: For another scheme, or no host.
    """

    key = "webhook"

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
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
        self._url = urllib.parse.urlunsplit((parts.scheme, place, parts.path or "/", parts.query, ""))
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"assay/{library_version()}",
        }
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._timeout = timeout
        # Without the handler of redirects: a redirected POST loses its content, and may go to another scheme.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)
        self._asking: threading.Thread | None = None

    def deliver(self, event: Mapping[str, Any]) -> None:
        if self._asking is not None and self._asking.is_alive():
            raise DeliveryError(f"webhook {self.shown}: the previous request is still unanswered")
        body = json.dumps(plain(event), allow_nan=False).encode()
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
        except urllib.error.HTTPError as error:
            error.close()
            if 300 <= error.code < 400:
                return f"status {error.code}, a redirect; redirects are not followed. Give the final address"
            return f"status {error.code}"
        except urllib.error.URLError as error:
            reason = error.reason
            known = isinstance(reason, OSError) and reason.strerror
            return str(known or type(reason).__name__)
        except (OSError, ValueError, http.client.HTTPException) as error:
            return (isinstance(error, OSError) and error.strerror) or type(error).__name__
        answer.close()
        return ""


@dataclass(kw_only=True)
class _Queue:
    """Events on their way to one sink."""

    sink: Sink
    waiting: list[dict[str, Any]] = field(default_factory=list)
    tries: int = 0  # of the first one
    next_try: float = 0.0
    failures: int = 0
    down: bool = False  # whether the last try failed, which was told then


class Notifier:
    """Tells sinks of the alarms of one monitor.

    Nothing that goes wrong with a sink stops the monitor: it is told, counted, and tried again until the sink
    takes it, with waits that grow to some minutes. `MOST_WAITING` events wait at most.

    Args:
        monitor: Whose alarms.
        sinks: Where they go.
        name: What to call the monitor.
        cool_down: Seconds after an alarm was told in which no other is. One that is still raised then is told
            then; one that is over by then never. That an alarm is resolved is told at once, if the alarm was.
        state: Where it is kept what was told.
        clock: Seconds that no one sets.
        tell: Hears what goes wrong.

    Raises:
        OutputError: If the state cannot be written.
    """

    def __init__(
        self,
        monitor: Monitor,
        sinks: Sequence[Sink],
        *,
        name: str,
        cool_down: float = 0.0,
        state: Path,
        clock: Callable[[], float] = time.monotonic,
        tell: Tell,
    ) -> None:
        self._monitor, self._name, self._cool_down = monitor, name, cool_down
        self._path, self._clock, self._tell = state, clock, tell
        self._queues = [_Queue(sink=each, next_try=clock()) for each in sinks]
        self._seen = -1  # the last reading that was taken
        self._first: int | None = None  # of the episode; None where no alarm is raised
        self._told = False  # whether the episode was
        self._quiet_until = clock()
        self._last: Reading | None = None
        if not self._restore():
            self._begin(monitor.readings)
        for reading in monitor.readings:  # those that a kill kept from being taken
            self.take(reading)

    # --------------------------------------------------------------------------------------------- taking

    def take(self, reading: Reading) -> None:
        """Look at one more reading and send the notifications it calls for."""
        self._last = reading
        if reading.index <= self._seen:
            return
        self._seen = reading.index
        if reading.alarm:
            if self._first is None:
                self._first, self._told = reading.index, False
            self._raise(reading)
        elif self._first is not None:
            if self._told:
                self._add("resolved", reading)
            self._first, self._told = None, False
        self._save()
        self.send()

    def _raise(self, reading: Reading) -> bool:
        """Whether there was something to say, and it is time to say it."""
        if self._told or self._clock() < self._quiet_until:
            return False
        self._add("alarm", reading)
        self._told, self._quiet_until = True, self._clock() + self._cool_down
        return True

    def _add(self, event: str, reading: Reading) -> None:
        made = self._event(event, reading)
        for queue in self._queues:
            queue.waiting.append(made)
            if len(queue.waiting) > MOST_WAITING:
                del queue.waiting[0]
                queue.tries = 0
                self._tell(
                    f"{queue.sink.shown} has not accepted {MOST_WAITING} events; the oldest is dropped"
                )

    def _event(self, event: str, reading: Reading) -> dict[str, Any]:
        # Batches are counted from 1 as on the page; the id has their places, as it always had.
        facts = {"event": event, "monitor_id": self._monitor.id, "first_batch": self._first}
        first = None if self._first is None else self._first + 1
        return plain(  # type: ignore[no-any-return] # a mapping comes back as one
            {
                "schema": SCHEMA,
                "id": record_id("alarm", {**facts, "since": self._monitor.readings[self._first or 0].time}),
                **facts,
                "first_batch": first,
                "monitor": self._name,
                "model": self._monitor.model.id,
                "rule": self._monitor.rule,
                "batch": reading.index + 1,
                "time": reading.time,
                "shift": reading.shift,
                "interval": reading.interval.to_dict(),
                "p_value": reading.p_value,
                "guarantee": self._monitor.guarantee.statement,
            }
        )

    # -------------------------------------------------------------------------------------------- sending

    def send(self) -> None:
        """Tell what waits and whose time has come; to be called now and then."""
        if self._first is not None and self._last is not None and self._raise(self._last):
            self._save()
        for queue in self._queues:
            if queue.waiting and self._clock() >= queue.next_try:
                self._send(queue)

    def _send(self, queue: _Queue) -> None:
        while queue.waiting:
            try:
                queue.sink.deliver(queue.waiting[0])
            except DeliveryError as error:
                queue.failures += 1
                queue.tries += 1
                queue.next_try = self._clock() + min(FIRST_WAIT * 2 ** min(queue.tries - 1, 30), LONGEST_WAIT)
                if not queue.down:
                    self._tell(f"{error}; the alarm is kept and sent again later")
                queue.down = True
                self._save()
                return
            del queue.waiting[0]
            queue.tries = 0
            if queue.down:
                self._tell(f"{queue.sink.shown} accepts alarms again")
            queue.down = False
            self._save()

    def finish(self, wait: Callable[[float], object]) -> None:
        """Try what still waits a few times more, then leave it to the next start.

        Args:
            wait: Waits so many seconds.
        """
        for _ in range(TRIES_AT_THE_END):
            if not any(queue.waiting for queue in self._queues):
                return
            soonest = min(queue.next_try for queue in self._queues if queue.waiting)
            wait(min(max(soonest - self._clock(), 0.0), FIRST_WAIT * 4))
            for queue in self._queues:
                self._send(queue)
        if left := sum(len(queue.waiting) for queue in self._queues):
            self._tell(f"{left} event(s) could not be delivered; the next start of this monitor tries again")

    # ----------------------------------------------------------------------------------------------- state

    def to_dict(self) -> dict[str, Any]:
        """What became of the alarms so far, for a document: plain JSON without secrets."""
        return {
            "raised": self._first is not None,
            "told": self._told,
            "undelivered": sum(len(queue.waiting) for queue in self._queues),
            "sinks": [f"{queue.sink.key}: {queue.sink.shown}" for queue in self._queues],
            **{f"{queue.sink.key}_failures": queue.failures for queue in self._queues},
        }

    def _save(self) -> None:
        record = {
            "schema": STATE_SCHEMA,
            "monitor_id": self._monitor.id,
            "seen": self._seen,
            "first": self._first,
            "told": self._told,
            # Of a clock that starts anew with the machine only what is left means something.
            "quiet": max(0.0, self._quiet_until - self._clock()),
            "sinks": {
                queue.sink.key: {
                    "shown": queue.sink.shown,
                    "waiting": queue.waiting,
                    "tries": queue.tries,
                    "failures": queue.failures,
                }
                for queue in self._queues
            },
            "notifications": self.to_dict(),
        }
        try:
            write_atomically(self._path, json.dumps(record, indent=1, allow_nan=False).encode())
        except OutputError as error:
            # Worst, an event is told twice after a kill; that is not a reason to stop looking at images.
            self._tell(f"cannot save the record of sent alarms: {error}")

    def _restore(self) -> bool:
        """Whether the state of an earlier run of this monitor was found."""
        try:
            record = json.loads(self._path.read_bytes())
            if record["schema"] != STATE_SCHEMA or record["monitor_id"] != self._monitor.id:
                raise ValueError("of another monitor")
            seen, first = int(record["seen"]), record["first"]
            if seen >= len(self._monitor.readings):
                raise ValueError("it refers to readings that no longer exist")
            quiet = float(record["quiet"])
            self._seen, self._told = seen, bool(record["told"])
            self._first = None if first is None else int(first)
            self._quiet_until = self._clock() + min(max(quiet, 0.0), self._cool_down)
            for queue in self._queues:
                kept = record["sinks"].get(queue.sink.key) or {}
                queue.waiting = [dict(each) for each in kept.get("waiting", ())]
                queue.failures = int(kept.get("failures", 0))
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._tell(f"cannot use {self._path} ({error}); an alarm that is still raised is sent again")
            return False
        return True

    def _begin(self, readings: Sequence[Reading]) -> None:
        """Without a state: alarms of the past are past, one that is raised is news."""
        self._seen, self._first, self._told = len(readings) - 1, None, False
        for reading in reversed(readings):
            if not reading.alarm:
                break
            self._first = reading.index
        self._last = readings[-1] if readings else None

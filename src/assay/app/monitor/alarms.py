"""Alarms as events: one when an alarm is raised, one when it is resolved, to a file and to a webhook.

An episode lasts from the first reading that raises the alarm to the first that does not. It is told once,
however many readings it has and however often the monitor is started again: what was told, and what still
waits to be, is kept in the monitor's directory. Every event has an id. It is written down before it is sent,
so a kill in between may send it twice, never not at all.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.analyses.generalization.journal import Reading
from assay.analyses.generalization.monitoring import Monitor
from assay.app.monitor.sinks import DeliveryError, Sink
from assay.circuits import write_atomically
from assay.core.errors import OutputError
from assay.core.record import Record, plain, record_id, same


SCHEMA, STATE_SCHEMA = "assay-alarm/1", "assay-alarms-told/1"
STATE = "alarms-told.json"  # beside the readings
FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0  # seconds between tries; each wait is twice the one before
TRIES_AT_THE_END = 3  # of an event that is still waiting when the monitor ends
MOST_WAITING = 1000  # events; beyond it the oldest go

Tell = Callable[[str], None]


@dataclass(kw_only=True)
class _Queue:
    """Events on their way to one sink."""

    sink: Sink
    waiting: list[dict[str, Any]] = field(default_factory=list)
    tries: int = 0  # of the first one
    next_try: float = 0.0
    failures: int = 0
    down: bool = False  # whether the last try failed, which was told then


class Notifier(Record):
    """Tells sinks of the alarms of one monitor.

    Nothing that goes wrong with a sink stops the monitor: it is told, counted, and tried again until the sink
    takes it, with waits that grow to some minutes. `MOST_WAITING` events wait at most.

    Args:
        monitor: Whose alarms.
        sinks: Where they go.
        name: What to call the monitor.
        cool_down: Seconds after an alarm was told in which no other is. One that is still raised then is told
            then; one that is over by then never. That an alarm is resolved is told at once, if the alarm was.
        address: Of the monitor's page; events then hold that of their batch.
        state: Where it is kept what was told.
        clock: Seconds that no one sets.
        tell: Hears what goes wrong.

    Raises:
        OutputError: If the state cannot be written.
    """

    record_layout = {"raised": "raised", "told": "_told", **same("undelivered", "sinks", "**failures")}

    def __init__(
        self,
        monitor: Monitor,
        sinks: Sequence[Sink],
        *,
        name: str,
        cool_down: float = 0.0,
        address: str | None = None,
        state: Path,
        clock: Callable[[], float] = time.monotonic,
        tell: Tell,
    ) -> None:
        self._monitor, self._name, self._cool_down = monitor, name, cool_down
        self._address = address
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
                "page": None if self._address is None else f"{self._address}#batch-{reading.index + 1}",
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
        if left := self.undelivered:
            self._tell(f"{left} event(s) could not be delivered; the next start of this monitor tries again")

    # ----------------------------------------------------------------------------------------------- state

    @property
    def raised(self) -> bool:
        """Whether an alarm is raised now."""
        return self._first is not None

    @property
    def undelivered(self) -> int:
        """Events that still wait."""
        return sum(len(queue.waiting) for queue in self._queues)

    @property
    def sinks(self) -> list[str]:
        """Where events go, without secrets."""
        return [f"{queue.sink.key}: {queue.sink.shown}" for queue in self._queues]

    @property
    def failures(self) -> dict[str, int]:
        """How often each sink failed."""
        return {f"{queue.sink.key}_failures": queue.failures for queue in self._queues}

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

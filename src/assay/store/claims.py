"""Who works on what, so that several runners share a plan without doing the same job twice at once.

Advice, not locks: results are idempotent, so two runners on one job waste time and nothing else. No clock is
compared between machines. Each runner counts up; who looks on and has not seen the count move for
`STALE_SECONDS` of its own monotonic clock takes the runner for dead.
"""

import time
from collections.abc import Callable

import sqlalchemy as sa

from assay.core.errors import InputError
from assay.store.database import Database, insert_new
from assay.store.tables import CLAIMS, NAME_LENGTH, RUNNERS


STALE_SECONDS = 60.0


class ClaimBook:
    """The claims of one store, as one observer sees them.

    Args:
        database: The store's database.
        stale_seconds: How long a silent runner is waited for; runners should beat several times as often.
        clock: Seconds that never go back.

    Example:
        >>> from assay.store import Store
        >>> claims = Store(tmp_path).claims
        >>> claims.claim("a" * 16, "first"), claims.claim("a" * 16, "second")
        (True, False)
        >>> claims.release("a" * 16, "first")
        >>> claims.claim("a" * 16, "second")
        True
    """

    def __init__(
        self,
        database: Database,
        *,
        stale_seconds: float = STALE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stale_seconds = stale_seconds
        self._database = database
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # of each other runner: its count, and since when

    def claim(self, job_id: str, runner: str) -> bool:
        """Take a job; False while another live runner holds it.

        Args:
            job_id: Any text of up to 128 characters.
            runner: Name of the runner, its own among all, e.g. host, process id and something random.
        """
        _check(job_id, runner)

        def work(connection: sa.Connection) -> tuple[str, int | None]:
            insert_new(connection, RUNNERS, {"runner": runner, "beats": 0})
            insert_new(connection, CLAIMS, {"job": job_id, "runner": runner})
            return _holder(connection, job_id)

        holder, beats = self._database.write(work)
        if holder == runner:
            return True
        if beats is not None and not self._silent(holder, beats):
            return False
        return self._database.write(lambda connection: _take(connection, job_id, holder, beats, runner))

    def release(self, job_id: str, runner: str) -> None:
        """Give a job back; nothing happens where another runner holds it."""
        _check(job_id, runner)
        held = sa.delete(CLAIMS).where(CLAIMS.c.job == job_id, CLAIMS.c.runner == runner)

        def work(connection: sa.Connection) -> None:
            connection.execute(held)

        self._database.write(work)

    def beat(self, runner: str) -> None:
        """Show that a runner lives."""
        _check("", runner)
        counted = sa.update(RUNNERS).where(RUNNERS.c.runner == runner).values(beats=RUNNERS.c.beats + 1)

        def work(connection: sa.Connection) -> None:
            if connection.execute(counted).rowcount == 0:
                insert_new(connection, RUNNERS, {"runner": runner, "beats": 1})

        self._database.write(work)

    def leave(self, runner: str) -> None:
        """Forget a runner and all it holds."""
        _check("", runner)

        def work(connection: sa.Connection) -> None:
            connection.execute(sa.delete(CLAIMS).where(CLAIMS.c.runner == runner))
            connection.execute(sa.delete(RUNNERS).where(RUNNERS.c.runner == runner))

        self._database.write(work)

    def holders(self) -> dict[str, str]:
        """Runner of each claimed job."""
        rows = self._database.read(lambda connection: connection.execute(sa.select(CLAIMS)).all())
        return {row.job: row.runner for row in rows}

    def _silent(self, runner: str, beats: int) -> bool:
        now = self._clock()
        seen = self._seen.get(runner)
        if seen is None or seen[0] != beats:
            self._seen[runner] = (beats, now)
            return False
        return now - seen[1] >= self.stale_seconds


def _holder(connection: sa.Connection, job_id: str) -> tuple[str, int | None]:
    """Who holds a job, and the count of that runner; None: it has left."""
    query = (
        sa.select(CLAIMS.c.runner, RUNNERS.c.beats)
        .select_from(CLAIMS.outerjoin(RUNNERS, RUNNERS.c.runner == CLAIMS.c.runner))
        .where(CLAIMS.c.job == job_id)
    )
    row = connection.execute(query).first()
    return ("", None) if row is None else (row.runner, row.beats)


def _take(connection: sa.Connection, job_id: str, holder: str, beats: int | None, runner: str) -> bool:
    """Take over from a runner that has gone, unless it beat or another one took over in the meantime."""
    if not holder:  # released while we looked
        return insert_new(connection, CLAIMS, {"job": job_id, "runner": runner})
    count = sa.select(RUNNERS.c.beats).where(RUNNERS.c.runner == holder).scalar_subquery()
    taken = (
        sa.update(CLAIMS)
        .where(CLAIMS.c.job == job_id, CLAIMS.c.runner == holder)
        .where(count.is_(None) if beats is None else count == beats)
        .values(runner=runner)
    )
    return connection.execute(taken).rowcount == 1


def _check(job_id: str, runner: str) -> None:
    for what, text in (("job id", job_id), ("runner", runner)):
        if len(text) > NAME_LENGTH or "\0" in text:
            raise InputError(f"a {what} is text of up to {NAME_LENGTH} characters, got {text!r}")
    if not runner:
        raise InputError("the runner has no name; give one")

"""The database under a store: one transaction at a time, each kind of failure with its own error."""

import json
import os
import re
import sqlite3
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa

from assay.core.errors import AssayError, FileFormatError, OutputError
from assay.core.extras import needs_extra
from assay.store.location import Location


T = TypeVar("T")

BUSY_SECONDS = 120.0  # how long a writer waits for the others
RETRY_SECONDS = 120.0  # how long a server that went away is waited for
FIRST_SECONDS = 10.0  # the same before it ever answered: a typing error should not take minutes
_LONGEST_PAUSE = 5.0
_INHERITED: list[Any] = []  # connections of the parent process, which must not be closed here
# Going down, coming up, full of connections, two transactions in each other's way.
_PASSING = {"57P01", "57P02", "57P03", "53300", "40001", "40P01"}
_LASTING = re.compile(
    r"authentication failed|no password supplied|does not exist|pg_hba|not permitted|translate host name|"
    r"resolve host|name or service",
    re.IGNORECASE,
)


class Database:
    """Runs pieces of work in transactions.

    A piece of work may run more than once: a connection that is lost is made anew and the work repeated, also
    where the answer to a commit was lost. So it must do no harm when repeated.

    Args:
        location: Which database.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.engine = _engine(location)
        read, write = _transactions(location)
        self._reading = self.engine.execution_options(**read)
        self._writing = self.engine.execution_options(**write)
        self._answered = False
        weakref.finalize(self, _close, self.engine, os.getpid())

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Work in one read transaction: all its queries see the same state.

        Raises:
            OutputError: The database is locked, or its server cannot be reached.
            FileFormatError: It cannot be read as a results store.
        """
        return self._run(work, write=False)

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Work in one transaction that holds the write lock of SQLite from its start.

        Raises:
            OutputError: Nothing could be written.
            FileFormatError: It is not a results store.
        """
        return self._run(work, write=True)

    def _run(self, work: Callable[[sa.Connection], T], *, write: bool) -> T:
        patience = RETRY_SECONDS if self._answered else FIRST_SECONDS
        deadline = time.monotonic() + patience
        pause = 0.05
        while True:
            try:
                with (self._writing if write else self._reading).begin() as connection:
                    self._answered = True
                    return work(connection)
            except sa.exc.DBAPIError as error:
                if not _passing(error) or time.monotonic() + pause > deadline:
                    raise self._explained(error, write=write, patience=patience) from error
            except AssayError:
                raise
            # Columns that hold what this package never writes: no UTF-8, no JSON, deep nesting, unknown ids.
            except (LookupError, RecursionError, TypeError, ValueError) as error:
                raise FileFormatError(
                    f"a row of the results store at {self.location.shown} was damaged "
                    f"({type(error).__name__}: {str(error)[:200]}); `assay store verify` says which"
                ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _explained(self, error: sa.exc.DBAPIError, *, write: bool, patience: float) -> AssayError:
        """What a failure means to the person who meets it."""
        place, cause = self.location.shown, " ".join(str(error.orig).split())
        action = "write to" if write else "read"
        if isinstance(error.orig, sqlite3.Error):
            return _explained_sqlite(error.orig, self.location, action)
        if _passing(error):
            return OutputError(
                f"lost the results store at {place} and could not reconnect within {patience:.0f} s: "
                f"{cause}. Check that PostgreSQL runs there and run the same command again; stored results "
                "are kept"
            )
        if isinstance(error, sa.exc.OperationalError | sa.exc.ProgrammingError | sa.exc.InternalError):
            return OutputError(f"cannot {action} the results store at {place}: {cause}")
        return FileFormatError(f"cannot use {place} as a results store: {cause}")


def _passing(error: sa.exc.DBAPIError) -> bool:
    """Whether the same may well succeed a little later; SQLite waits by itself."""
    if isinstance(error.orig, sqlite3.Error):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state in _PASSING:
        return True
    unreachable = isinstance(error, sa.exc.OperationalError) and state is None
    return unreachable and not _LASTING.search(str(error.orig))


def _explained_sqlite(error: sqlite3.Error, location: Location, action: str) -> AssayError:
    name, place = getattr(error, "sqlite_errorname", None) or "", location.directory
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return OutputError(
            f"cannot {action} the results store at {place}: {error}; another process held it for more than "
            f"{BUSY_SECONDS:.0f} s. `fuser {location.file}` lists who has it open: let that run end or "
            "stop it, then run the same command again"
        )
    if name.startswith("SQLITE_FULL"):
        return OutputError(
            f"cannot {action} the results store at {place}: {error}; free some space and run the same "
            "command again. Stored results are kept"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return FileFormatError(
            f"cannot {action} {location.file} as a results store: {error}. It is damaged or another file: "
            "restore it from a copy, or move it away to start again"
        )
    if isinstance(error, sqlite3.OperationalError) and action != "read":
        return OutputError(f"cannot {action} the results store at {place}: {error}")
    return FileFormatError(f"cannot {action} {location.file} as a results store: {error}")


def _transactions(location: Location) -> tuple[dict[str, Any], dict[str, Any]]:
    """How reading and writing transactions begin."""
    if location.sqlite:
        return {"assay_write": False}, {"assay_write": True}
    return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}, {}


def _engine(location: Location) -> sa.Engine:
    if location.sqlite:
        # A connection is quick to make, so none is kept open, and none is shared after a fork.
        engine = sa.create_engine(
            location.url, poolclass=sa.pool.NullPool, connect_args={"timeout": BUSY_SECONDS}
        )
        _take_over_transactions(engine)
        return engine
    usual = {"connect_timeout": "10", "application_name": "assay"}
    with needs_extra("postgres", "a PostgreSQL store needs psycopg"):
        engine = sa.create_engine(
            location.url,
            pool_size=1,  # of each process; a thread more gets one for the time it needs it
            max_overflow=-1,
            connect_args={key: value for key, value in usual.items() if key not in location.url.query},
            json_serializer=_json_of_unicode,
        )
    _leave_to_the_parent(engine)
    return engine


def _close(engine: sa.Engine, process: int) -> None:
    if os.getpid() == process:
        engine.dispose()


def _leave_to_the_parent(engine: sa.Engine) -> None:
    """After a fork each process makes a connection of its own and does not touch its parent's."""

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        del connection
        record.info["process"] = os.getpid()

    @sa.event.listens_for(engine, "checkout")
    def checkout(connection: Any, record: Any, proxy: Any) -> None:
        if record.info["process"] != os.getpid():
            _INHERITED.append(connection)
            record.dbapi_connection = proxy.dbapi_connection = None
            raise sa.exc.DisconnectionError("this database connection was opened by the parent process")


def _json_of_unicode(value: object) -> str:
    """JSON in which only what PostgreSQL cannot hold is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


def _take_over_transactions(engine: sa.Engine) -> None:
    """Let SQLite transactions begin when we say: the driver's own habit delays BEGIN past the first read.

    See SQLAlchemy's SQLite dialect notes, "Serializable isolation / Savepoints / Transactional DDL".
    """

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        del record
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        write = connection.get_execution_options().get("assay_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def insert_new(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """Insert a row unless its key is there; whether it was inserted."""
    from sqlalchemy.dialects import postgresql, sqlite

    made = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[connection.dialect.name]
    statement: Any = made(table)  # of either dialect, which share no type with this method
    statement = statement.values(row).on_conflict_do_nothing()
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount == 1

"""Making a store and bringing an old one up to date, in one transaction, once, however many open it."""

import os
import secrets
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from assay.circuits.files import new_file, temporary_name
from assay.core.errors import AssayWarning, FileFormatError, InputError, OutputError
from assay.store.database import Database
from assay.store.location import DATABASE_NAME, DEFAULT_DIRECTORY, POSTGRES_DRIVER
from assay.store.summary import summarise
from assay.store.tables import RESULTS, SCHEMA, SCHEMA_VERSION, SETTINGS, SUMMARIES


MIGRATIONS = Path(__file__).parent / "migrations"
ARRAYS = "arrays"  # settings of a PostgreSQL store: the directory of its arrays,
MARK = "mark"  # and the content of a file there by which an opener knows that it sees the right one
MARK_NAME = "assay-store"
_LOCK = 0x61737361  # of the transactions that change the schema, on PostgreSQL
_CHUNK = 500


def open_schema(database: Database, *, create: bool) -> Path:
    """See that the database is a store of this version; make it one where there is none.

    Returns:
        The directory of the arrays.

    Raises:
        InputError: There is no store and `create` is false, or its arrays cannot be seen from here.
        OutputError: It cannot be made or upgraded there.
        FileFormatError: It is something else, damaged, or newer than this version.
    """
    location = database.location
    if location.directory is not None and location.sqlite and not location.file.exists():
        if not create:
            raise InputError(f"no results store at {location.shown}: nothing was stored there yet")
        _make_directory(location.directory)
    version = _found_version(database)
    if version == 0 and not create:
        raise InputError(f"no results store at {location.shown}: nothing was stored there yet")
    if version > SCHEMA_VERSION:
        raise FileFormatError(
            f"{location.shown} was written by a newer version of assay: its schema is {version}, this "
            f"version reads up to {SCHEMA_VERSION}; upgrade assay or choose another store"
        )
    if version < SCHEMA_VERSION:
        _bring_up_to_date(database)
    if location.sqlite:
        assert location.directory is not None
        return location.directory
    return _directory_of_arrays(database)


def _found_version(database: Database) -> int:
    """Schema version; 0 where nothing has been made yet."""
    if database.location.sqlite and not database.location.file.exists():
        return 0
    return database.read(lambda connection: _version(connection, database))


def _version(connection: sa.Connection, database: Database) -> int:
    shown = database.location.shown
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        _refuse_emptied(database)
        return 0
    if SCHEMA.name not in tables:
        raise FileFormatError(f"{shown} is a database, but no results store; give another place")
    version = connection.execute(sa.select(sa.func.max(SCHEMA.c.version))).scalar()
    if not isinstance(version, int) or version < 1:
        raise FileFormatError(f"{shown} holds no schema version: it is not a results store")
    return version


def _refuse_emptied(database: Database) -> None:
    """A database without tables beside arrays was emptied: a new store there would hide the loss."""
    location = database.location
    if location.sqlite and location.directory is not None and (location.directory / "arrays").is_dir():
        raise FileFormatError(
            f"{location.file} is empty, but arrays of results lie beside it: it was truncated. Restore it "
            "from a copy, or move the directory away to begin anew"
        )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make a results store at {directory}: {error.strerror}") from error


# ---- upgrading ----------------------------------------------------------------------------------


def _bring_up_to_date(database: Database) -> None:
    """All revisions that are missing, the version, and the summaries, in one transaction."""

    def work(connection: sa.Connection) -> tuple[int, Path | None]:
        if not database.location.sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        before = _version(connection, database)  # again: another process may have been first
        if before >= SCHEMA_VERSION:
            return before, None
        backup = _back_up(database, before) if before and database.location.sqlite else None
        migrate(connection, before)
        if before == 0 and not database.location.sqlite:
            _record_directory(connection, database)
        return before, backup

    try:
        before, backup = database.write(work)
    except OutputError as error:
        if not (database.location.sqlite and database.location.file.stat().st_size):
            raise
        raise OutputError(
            f"the results store at {database.location.shown} was made by an earlier version and must be "
            f"upgraded before it can be read, which failed: {error}. It was left as it is; make the "
            "directory writable with room for a second copy, or copy it to such a place and open the copy"
        ) from error
    if backup is not None:
        warnings.warn(
            f"the results store at {database.location.shown} was upgraded from schema {before} to "
            f"{SCHEMA_VERSION}; the database as it was lies in {backup}",
            AssayWarning,
            stacklevel=4,
        )


def migrate(connection: sa.Connection, before: int) -> None:
    """Run the revisions after `before`, then make what is derived from the results anew."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(MIGRATIONS))
    revisions = sorted(scripts.walk_revisions(), key=lambda script: int(script.revision))
    with Operations.context(MigrationContext.configure(connection)):
        for script in revisions:
            if int(script.revision) > before:
                script.module.upgrade()
    connection.execute(sa.delete(SCHEMA))
    connection.execute(sa.insert(SCHEMA), {"version": SCHEMA_VERSION})
    connection.execute(sa.delete(SUMMARIES))
    for rows in _chunks(connection):
        connection.execute(sa.insert(SUMMARIES), [summary_row(row) for row in rows])


def summary_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `summaries` for a row of `results`."""
    facts = {name: row[name] for name in ("id", "kind", "created")}
    return facts | summarise(row["kind"], row["provenance"], row["payload"])


def _chunks(connection: sa.Connection) -> Iterator[list[Mapping[str, Any]]]:
    """All results, some at a time, in the order of their ids."""
    last = ""
    while True:
        query = sa.select(RESULTS).where(RESULTS.c.id > last).order_by(RESULTS.c.id).limit(_CHUNK)
        rows = connection.execute(query).mappings().all()
        if not rows:
            return
        yield [dict(row) for row in rows]
        last = rows[-1]["id"]


def _back_up(database: Database, version: int) -> Path:
    """A copy of the SQLite file beside it; the caller holds the write lock, so nothing changes it."""
    file = database.location.file
    copy = file.with_name(f"{file.name}.schema-{version}.backup")
    if copy.exists():
        copy = copy.with_name(f"{copy.name}.{secrets.token_hex(4)}")
    temporary = temporary_name(copy)
    try:
        os.close(new_file(temporary, like=file))
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(temporary)) as target:
            source.backup(target)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(copy)
    except (OSError, sqlite3.Error) as error:
        raise OutputError(f"cannot copy {file} to {copy}: {error}") from error
    finally:
        with suppress(OSError):  # a read-only disk refuses even to remove what is not there
            temporary.unlink(missing_ok=True)
    return copy


# ---- arrays of a PostgreSQL store ---------------------------------------------------------------


def _record_directory(connection: sa.Connection, database: Database) -> None:
    """Choose the directory of the arrays and mark it, once for all openers."""
    directory = database.location.directory or Path(DEFAULT_DIRECTORY).absolute()
    _make_directory(directory)
    if (directory / DATABASE_NAME).exists():
        raise InputError(
            f"{directory} is a results store of its own; name another directory for the arrays of "
            f"{database.location.shown} by ?arrays=DIR"
        )
    file = directory / MARK_NAME
    found = file.read_text(encoding="ascii", errors="replace") if file.exists() else ""
    if found and (directory / "arrays").exists():
        raise InputError(
            f"{directory} holds the arrays of another results store; name another directory for those of "
            f"{database.location.shown} by ?arrays=DIR"
        )
    # A mark with no arrays beside it may be of an attempt at this that was cut off: it is taken over as it
    # is, so that another store, if it has one, keeps its directory too.
    mark = found or secrets.token_hex(16)
    try:
        file.write_text(mark, encoding="ascii")
    except OSError as error:
        raise OutputError(f"cannot write {file}: {error.strerror}; name another directory") from error
    connection.execute(
        sa.insert(SETTINGS), [{"name": ARRAYS, "value": str(directory)}, {"name": MARK, "value": mark}]
    )


def _directory_of_arrays(database: Database) -> Path:
    """The directory that was named, else the recorded one, if it is the store's."""
    query = sa.select(SETTINGS.c.name, SETTINGS.c.value)
    settings = {
        row.name: row.value for row in database.read(lambda connection: connection.execute(query).all())
    }
    directory = database.location.directory or Path(settings.get(ARRAYS, DEFAULT_DIRECTORY))
    try:
        found = (directory / MARK_NAME).read_text(encoding="ascii")
    except (OSError, ValueError):
        found = ""
    if found != settings.get(MARK):
        raise InputError(
            f"the arrays of {database.location.shown} cannot be seen from here: {directory} is not the "
            f"directory that the store was made with (no matching file {MARK_NAME} in it). Mount it there, "
            f"or say where it is: {POSTGRES_DRIVER}://...?arrays=DIR"
        )
    return directory

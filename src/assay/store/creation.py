"""Making a store, once, however many open it; stores of other versions are refused."""

import secrets
from pathlib import Path

import sqlalchemy as sa

from assay.core.errors import FileFormatError, InputError, writing
from assay.store.database import Database
from assay.store.location import DATABASE_NAME, DEFAULT_DIRECTORY, POSTGRES_DRIVER
from assay.store.tables import METADATA, SCHEMA, SCHEMA_VERSION, SETTINGS


ARRAYS = "arrays"  # settings of a PostgreSQL store: the directory of its arrays,
MARK = "mark"  # and the content of a file there by which an opener knows that it sees the right one
MARK_NAME = "assay-store"
_LOCK = 0x61737361  # of the transactions that make the tables, on PostgreSQL


def open_schema(database: Database, *, create: bool) -> Path:
    """See that the database is a store of this version; make it one where there is none.

    Returns:
        The directory of the arrays.

    Raises:
        InputError: There is no store and `create` is false, or its arrays cannot be seen from here.
        OutputError: It cannot be made there.
        FileFormatError: It is something else, damaged, or of another version.
    """
    location = database.location
    if location.directory is not None and location.sqlite and not location.file.exists():
        if not create:
            raise InputError(f"there is no results store at {location.shown}: nothing was stored there yet")
        _make_directory(location.directory)
    version = _found_version(database)
    if version == 0 and not create:
        raise InputError(f"there is no results store at {location.shown}: nothing was stored there yet")
    if version > SCHEMA_VERSION:
        raise FileFormatError(
            f"{location.shown} was written by a newer version of assay: its schema is {version}, this "
            f"version reads up to {SCHEMA_VERSION}; upgrade assay or choose another store"
        )
    if 0 < version < SCHEMA_VERSION:
        raise FileFormatError(
            f"the results store at {location.shown} was written by assay 0.1.0 and cannot be read. Give "
            "another directory or database, and run again what you need there"
        )
    if version == 0:
        _make_tables(database)
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
        raise FileFormatError(f"{shown} is a database, but not a results store; give another place")
    version = connection.execute(sa.select(sa.func.max(SCHEMA.c.version))).scalar()
    if not isinstance(version, int) or version < 1:
        raise FileFormatError(f"{shown} has no schema version: it is not a results store")
    return version


def _refuse_emptied(database: Database) -> None:
    """A database without tables beside arrays was emptied: a new store there would hide the loss."""
    location = database.location
    if location.sqlite and location.directory is not None and (location.directory / "arrays").is_dir():
        raise FileFormatError(
            f"{location.file} is empty, but arrays of results lie beside it: it was truncated. Restore it "
            "from a copy, or move the directory away to start again"
        )


def _make_directory(directory: Path) -> None:
    with writing(f"make a results store at {directory}"):
        directory.mkdir(parents=True, exist_ok=True)


def _make_tables(database: Database) -> None:
    """The tables and the version, in one transaction, once however many open the store."""

    def work(connection: sa.Connection) -> None:
        if not database.location.sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        if _version(connection, database):  # another process was first
            return
        METADATA.create_all(connection, checkfirst=False)
        connection.execute(sa.insert(SCHEMA), {"version": SCHEMA_VERSION})
        if not database.location.sqlite:
            _record_directory(connection, database)

    database.write(work)


# ---- arrays of a PostgreSQL store ---------------------------------------------------------------


def _record_directory(connection: sa.Connection, database: Database) -> None:
    """Choose the directory of the arrays and mark it, once for all openers."""
    directory = database.location.directory or Path(DEFAULT_DIRECTORY).absolute()
    _make_directory(directory)
    if (directory / DATABASE_NAME).exists():
        raise InputError(
            f"{directory} is a separate results store; name another directory for the arrays of "
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
    with writing(f"write {file}", "name another directory"):
        file.write_text(mark, encoding="ascii")
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
            f"cannot find the arrays of {database.location.shown} here: {directory} is not the directory "
            f"that the store was made with (no matching file {MARK_NAME} in it). Mount it there, or give "
            f"its place: {POSTGRES_DRIVER}://...?arrays=DIR"
        )
    return directory

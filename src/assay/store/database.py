"""What a store holds, results in brief and whole, and its database: tables, place and transactions."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import sqlalchemy as sa
from safetensors import SafetensorError
from torch import Tensor

from assay.core.errors import FileFormatError, InputError, StoreError, needs_extra, writing
from assay.core.record import Record


DATABASE_NAME = "assay.db"
SCHEMA_VERSION = 5
BUSY_SECONDS = 120.0  # how long a writer of SQLite waits for the others


@dataclass(frozen=True, kw_only=True)
class About(Record):
    """Facts by which a result is found; missing ones are None.

    Attributes:
        model: Id of the model.
        task: Name of the task or data set.
        method: Discovery method; of a measurement the one that found its circuit.
        metric: Metric; of a worst case its divergence, of an audit `faithfulness-norm`.
        n: Examples or pairs measured.
        seed: Root seed of all random draws.
        value: The number itself: of a worst case the largest divergence, of an audit the faithfulness of its
            circuit.
        low: Lower end of the interval of `value`.
        high: Upper end.
        status: Verdict, or state of a job.
        name: What people call it: a job, a sweep; of an audit or a measurement the size of its circuit.
        circuit: Hash of the circuit.
        size: Edges of the circuit.
        ablation: What a cut edge carried.
    """

    model: str | None = None
    task: str | None = None
    method: str | None = None
    metric: str | None = None
    n: int | None = None
    seed: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str | None = None
    name: str | None = None
    circuit: str | None = None
    size: int | None = None
    ablation: str | None = None


@dataclass(frozen=True, kw_only=True)
class ResultSummary(About):
    """One stored result in brief.

    Attributes:
        id: 16 hex digits, see `assay.core.record.record_id`.
        kind: `measurement`, `scores`, `audit`, ...
        created: UTC, ISO 8601, of the first `put`.
    """

    id: str
    kind: str
    created: str

    @property
    def title(self) -> str:
        """What it is, less task and model: its metric, how its circuit was found, and what edges carried."""
        under = f"({self.ablation} ablation)" if self.ablation else ""
        if self.kind == "measurement":
            made = ", ".join(part for part in (self.method, self.name) if part)
            return " ".join(part for part in (self.metric, made and f"of {made}", under) if part)
        usual = self.name or (self.metric if self.kind != "scores" else None) or self.method or ""
        return " ".join(part for part in (usual, under) if part)

    @property
    def about(self) -> str:
        """One line: what of which task in which model."""
        parts = (self.title, self.task and f"on {self.task}", self.model and f"in {self.model}")
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class StoredResult(ResultSummary):
    """One result as it was stored.

    Attributes:
        provenance: How it came to be, facts about the machine included.
        payload: The result itself, less its arrays.
        file: Where its arrays lie; None: it has none.
        digest: SHA-256 of that file.
    """

    provenance: dict[str, Any]
    payload: dict[str, Any]
    file: Path | None = field(default=None, repr=False)
    digest: str | None = field(default=None, repr=False)

    @cached_property
    def arrays(self) -> Mapping[str, Tensor]:
        """CPU tensors by name, read and checked when they are first asked for.

        Raises:
            FileFormatError: If the file is missing or was changed.
        """
        if self.file is None:
            return {}
        try:
            return safetensors.torch.load(self.read_file())
        except SafetensorError as error:
            raise FileFormatError(f"cannot read {self.file}: {error}; restore it") from error

    def read_file(self) -> bytes:
        """The file of the arrays, its bytes checked against their hash."""
        assert self.file is not None
        try:
            data = self.file.read_bytes()
        except OSError as error:
            raise FileFormatError(
                f"cannot read {self.file}, the arrays of {self.id}: {error.strerror}; restore it, or pass "
                "?arrays=DIR"
            ) from error
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise FileFormatError(f"{self.file} was changed after it was stored; restore it")
        return data

    def document(self) -> dict[str, Any]:
        """The result as one JSON document: what `assay show --json` prints."""
        names = ("id", "kind", "created", "provenance", "payload")
        return {name: getattr(self, name) for name in names} | {"arrays": list(self.arrays)}


COLUMNS = tuple(each.name for each in fields(ResultSummary))


# ---- the database -------------------------------------------------------------------------------

# Text that sorts by code point on every database, as it does in Python.
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    **dict.fromkeys(("n", "seed", "size"), sa.BigInteger()),
    **dict.fromkeys(("value", "low", "high"), sa.Double()),
}
METADATA = sa.MetaData()
SCHEMA = sa.Table("schema", METADATA, sa.Column("version", sa.Integer, primary_key=True))
RESULTS = sa.Table(
    "results",
    METADATA,
    *(sa.Column(name, _TYPES.get(name, TEXT), primary_key=name == "id") for name in COLUMNS),
    sa.Column("digest", sa.Text),
    sa.Column("request", sa.Text),
    # Last: a question about the other columns does not read on to them.
    sa.Column("provenance", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index("by_kind", "kind", "created"),
    sa.Index("by_circuit", "circuit"),
    sa.Index("by_request", "request"),
)


class Database:
    """A table of results, on SQLite or PostgreSQL; the arguments are those of `Store`.

    Attributes:
        location: What opens the store again; of a URL with its password.
        shown: The same for people, without a password.
        directory: Where the arrays and other files of the store lie.
    """

    def __init__(self, location: str | os.PathLike[str], *, create: bool = True) -> None:
        url, self.directory = _located(os.fspath(location))
        self._sqlite = url.get_backend_name() == "sqlite"
        self.location = str(self.directory) if self._sqlite else os.fspath(location)
        self.shown = str(self.directory) if self._sqlite else url.set(query={}).render_as_string()
        if self._sqlite and not (self.directory / DATABASE_NAME).exists():
            if not create:
                raise InputError(f"there is no results store at {self.shown}: nothing was stored there yet")
            with writing(f"make a results store at {self.directory}"):
                self.directory.mkdir(parents=True, exist_ok=True)
        self._engine = _engine(url)
        self._open(create=create)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"

    def _open(self, *, create: bool) -> None:
        """Check the version of the schema, and make the tables where there are none."""
        with self._transaction() as connection:
            version = _version(connection, self.shown)
        if version is None:
            if self._sqlite and (self.directory / "arrays").is_dir():
                raise FileFormatError(
                    f"the database in {self.shown} is empty, but arrays of results lie beside it: restore "
                    f"{DATABASE_NAME} from a copy, or move the directory away to start again"
                )
            if not create:
                raise InputError(f"there is no results store at {self.shown}: nothing was stored there yet")
            with self._transaction(write=True) as connection:
                if not self._sqlite:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(SCHEMA_VERSION)))
                version = _version(connection, self.shown)
                if version is None:  # no other process was first
                    METADATA.create_all(connection, checkfirst=False)
                    connection.execute(sa.insert(SCHEMA).values(version=SCHEMA_VERSION))
                    version = SCHEMA_VERSION
        if version != SCHEMA_VERSION:
            raise FileFormatError(
                f"the results store at {self.shown} has version {version}, and this version of assay reads "
                f"{SCHEMA_VERSION}; use another directory or database"
            )

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sa.Connection]:
        """One transaction; of SQLite, a writing one holds the write lock from its start."""
        try:
            with self._engine.execution_options(assay_write=write).begin() as connection:
                yield connection
        except sa.exc.IntegrityError:
            raise
        except sa.exc.OperationalError as error:
            cause = " ".join(str(error.orig).split())
            raise StoreError(f"cannot use the results store at {self.shown}: {cause}") from error
        except (sa.exc.DatabaseError, UnicodeDecodeError) as error:
            cause = " ".join(str(getattr(error, "orig", error)).split())
            raise FileFormatError(
                f"{self.shown} is damaged, or is not a results store: {cause}; restore it from a copy"
            ) from error

    def _rows(
        self,
        columns: Sequence[Any],
        *conditions: sa.ColumnElement[bool],
        order: Iterable[Any] = (),
        limit: int | None = None,
        offset: int = 0,
    ) -> "list[sa.Row[Any]]":
        if limit is None and offset and self._sqlite:
            limit = -1  # SQLite has no offset without a limit
        query = sa.select(*columns).select_from(RESULTS).where(*conditions)
        with self._transaction() as connection:
            return list(connection.execute(query.order_by(*order).limit(limit).offset(offset or None)))


def _located(text: str) -> tuple[sa.URL, Path]:
    """The database and the directory of the arrays that a text names."""
    if "://" not in text:
        directory = Path(text).expanduser().absolute()
        return sa.URL.create("sqlite", database=str(directory / DATABASE_NAME)), directory
    wanted = "a results store is a directory or postgresql+psycopg://USER@HOST/DATABASE?arrays=DIR"
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise InputError(f"{wanted}; the URL given cannot be read") from None  # it may hold a password
    if url.get_backend_name() != "postgresql" or not url.database or "arrays" not in url.query:
        raise InputError(f"{wanted}, got {url.set(query={}).render_as_string()!r}")
    directory = Path(str(url.query["arrays"])).expanduser().absolute()
    return url.set(drivername="postgresql+psycopg").difference_update_query(["arrays"]), directory


def _engine(url: sa.URL) -> sa.Engine:
    """No connection is kept open, and none is shared after a fork."""
    if url.get_backend_name() == "postgresql":
        with needs_extra("postgres", "a PostgreSQL store needs psycopg"):
            return sa.create_engine(url, poolclass=sa.pool.NullPool)
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args={"timeout": BUSY_SECONDS})

    # The driver's own habit delays BEGIN past the first read; see SQLAlchemy's notes on SQLite, "Serializable
    # isolation / Savepoints / Transactional DDL".
    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        del record
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        write = connection.get_execution_options().get("assay_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _version(connection: sa.Connection, shown: str) -> int | None:
    """Version of the schema; None where there are no tables."""
    tables = sa.inspect(connection).get_table_names()
    if tables and SCHEMA.name not in tables:
        raise FileFormatError(f"{shown} is a database, but not a results store; give another place")
    return connection.scalar(sa.select(sa.func.max(SCHEMA.c.version))) if tables else None

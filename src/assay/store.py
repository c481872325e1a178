"""The results store: what was computed, under the identity of how it was computed.

A store is a directory holding one database, `assay.db`, and the arrays of the results beside it:

```
DIR/assay.db                     kind, provenance, payload, array names of each result
DIR/arrays/ab/abcdef….safetensors   one array per file, named by the SHA-256 of the file
```

A result's id is the hash of its kind and provenance less machine facts (`assay.measurement.record_id`),
so asking whether work was done already is one look-up, and storing the same work twice changes nothing.
Writers in several processes are serialised by the database; array files are written to a temporary name
and renamed before the row that names them is committed, so a reader never sees half a result.
"""

import hashlib
import os
from collections.abc import Iterator, KeysView, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import sqlalchemy as sa
import torch
from sqlalchemy.pool import NullPool
from torch import Tensor

from assay.circuits import write_atomically
from assay.errors import FileFormatError, InputError, OutputError, UnknownNameError, unknown_name
from assay.measurement import plain, record_id


if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
DATABASE_NAME = "assay.db"
ID_LENGTH = 16
BUSY_SECONDS = 120.0  # how long a writer waits for the others

_METADATA = sa.MetaData()
_SCHEMA = sa.Table("schema", _METADATA, sa.Column("version", sa.Integer, primary_key=True))
_RESULTS = sa.Table(
    "results",
    _METADATA,
    sa.Column("id", sa.String(ID_LENGTH), primary_key=True),
    sa.Column("kind", sa.String(64), nullable=False, index=True),
    sa.Column("created", sa.String(32), nullable=False),
    sa.Column("provenance", sa.JSON, nullable=False),
    sa.Column("payload", sa.JSON, nullable=False),
)
_ARRAYS = sa.Table(
    "arrays",
    _METADATA,
    sa.Column("result", sa.ForeignKey("results.id"), primary_key=True),
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("content", sa.String(64), nullable=False),
)


class StoredArrays:
    """The arrays of one stored result by name, each read and verified when it is asked for.

    Not a `Mapping`: run-time type checks of that type would read an array of every result they meet.
    """

    def __init__(self, directory: Path, contents: Mapping[str, str]) -> None:
        self._directory = directory
        self._contents = dict(contents)

    def __getitem__(self, name: str) -> Tensor:
        """The array as a CPU tensor.

        Raises:
            UnknownNameError: The result has no array of this name.
            FileFormatError: The file is missing or its content changed.
        """
        if name not in self._contents:
            raise unknown_name("array", name, self._contents)
        return _read_array(self._directory, self._contents[name])

    def keys(self) -> KeysView[str]:
        """Names of the arrays; with `[]` this lets `dict(arrays)` read them all."""
        return self._contents.keys()

    def __contains__(self, name: object) -> bool:
        return name in self._contents

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)

    def __repr__(self) -> str:
        return f"StoredArrays({', '.join(self._contents)})"


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """One result as it was stored.

    Attributes:
        id: 16 hex digits, see `assay.measurement.record_id`.
        kind: What it is: `"measurement"`, `"circuit"`, `"scores"`, ...
        created: UTC, ISO 8601, of the first `put`.
        provenance: How it came to be, machine facts included.
        payload: The result itself, less its arrays.
        arrays: CPU tensors by name, read from disk and verified on access.
    """

    id: str
    kind: str
    created: str
    provenance: dict[str, Any]
    payload: dict[str, Any]
    arrays: StoredArrays


class Store:
    """A directory of results. Opening is cheap; several processes may write to one store.

    Args:
        location: A directory, or the URL of a SQLite database (`sqlite:///DIR/assay.db`), whose arrays lie
            in `DIR/arrays`.
        create: Make the directory and an empty store if there is none; `False` for readers, to whom a
            missing store is an error.

    Raises:
        OutputError: The store is missing and cannot be made there.
        InputError: There is no store and `create` is false, or the URL's database is not supported.
        FileFormatError: A file that is no store, or a store written by a newer version.

    Example:
        >>> store = Store(tmp_path)
        >>> key = store.put("measurement", {"metric": "kl", "seed": 0}, {"value": 0.25})
        >>> store.get(key[:6]).payload
        {'value': 0.25}
    """

    def __init__(self, location: str | os.PathLike[str], *, create: bool = True) -> None:
        self.url, self.directory = _locate(location)
        self._engine = sa.create_engine(
            self.url,
            poolclass=NullPool,  # no connection survives a fork or is left open
            connect_args={"timeout": BUSY_SECONDS},
        )
        _take_over_transactions(self._engine)
        if not (self.directory / DATABASE_NAME).exists():
            if not create:
                raise InputError(f"no results store at {self.directory}: nothing was stored there yet")
            self._make_directory()
        self._open(create=create)

    def __repr__(self) -> str:
        return f"Store({str(self.directory)!r})"

    def put(
        self,
        kind: str,
        provenance: Mapping[str, Any],
        payload: Mapping[str, Any],
        arrays: Mapping[str, Tensor | np.ndarray] | None = None,
    ) -> str:
        """Store one result; the same kind and provenance again leave the first result as it is.

        Args:
            kind: What it is, e.g. `"measurement"`.
            provenance: How it came to be, all that tells it from other results of its kind (of a measurement
                the metric with its arguments too). Facts under `"machine"` are kept but do not count.
            payload: The result. Like the provenance it is kept as JSON: tuples and small arrays become
                lists, non-finite numbers None.
            arrays: Large parts by name, numeric or boolean; kept in their own dtype.

        Returns:
            The result's id, see `assay.measurement.record_id`.

        Raises:
            InputError: A value that JSON or safetensors cannot hold; nothing is stored.
            OutputError: The store cannot be written; nothing of the result is then visible.
        """
        identity = record_id(kind, provenance)
        row = {
            "id": identity,
            "kind": kind,
            "created": datetime.now(UTC).isoformat(timespec="microseconds"),
            "provenance": plain(provenance),
            "payload": plain(payload),
        }
        if self.has(identity):
            return identity
        contents = {name: self._write_array(name, value) for name, value in (arrays or {}).items()}
        with self._writing() as connection:
            if connection.execute(sa.select(_RESULTS.c.id).where(_RESULTS.c.id == identity)).first() is None:
                connection.execute(sa.insert(_RESULTS), row)
                for name, content in contents.items():
                    named = {"result": identity, "name": name, "content": content}
                    connection.execute(sa.insert(_ARRAYS), named)
        return identity

    def has(self, identity: str) -> bool:
        """Whether a result of this full id is stored."""
        with self._reading() as connection:
            found = connection.execute(sa.select(_RESULTS.c.id).where(_RESULTS.c.id == identity)).first()
        return found is not None

    def get(self, identity: str) -> StoredResult:
        """The result of an id or of an id's beginning.

        Raises:
            UnknownNameError: No stored id begins so.
            InputError: Several do; the message lists them.
        """
        prefix = identity.strip().lower()
        if not prefix or set(prefix) - set("0123456789abcdef"):
            raise UnknownNameError(
                f"a result id is up to {ID_LENGTH} hex digits, got {identity!r}; see `assay list results`"
            )
        query = sa.select(_RESULTS).where(_RESULTS.c.id.startswith(prefix)).order_by(_RESULTS.c.id)
        with self._reading() as connection:
            rows = connection.execute(query.limit(11)).all()
            contents = self._contents(connection, [row.id for row in rows[:1]])
        if not rows:
            raise UnknownNameError(
                f"no result in {self.directory} begins with {prefix!r}; see `assay list results`"
            )
        if len(rows) > 1:
            shown = ", ".join(f"{row.id} ({row.kind}, {row.created})" for row in rows[:10])
            more = ", and more" if len(rows) > 10 else ""
            raise InputError(f"{prefix!r} is ambiguous, give more digits: {shown}{more}")
        return self._result(rows[0], contents)

    def find(self, kind: str | None = None, **filters: Any) -> list[StoredResult]:
        """Results of a kind whose provenance holds the given values, oldest first.

        Args:
            kind: Only results of this kind.
            **filters: Provenance key and value (text, number, boolean); `task__name="ioi"` looks inside the
                dict under `task`. A result without the key does not match.
        """
        query = sa.select(_RESULTS).order_by(_RESULTS.c.created, _RESULTS.c.id)
        if kind is not None:
            query = query.where(_RESULTS.c.kind == kind)
        for key, wanted in filters.items():
            query = query.where(_provenance_equals(tuple(key.split("__")), wanted))
        with self._reading() as connection:
            rows = connection.execute(query).all()
            contents = self._contents(connection, [row.id for row in rows])
        return [self._result(row, contents) for row in rows]

    def to_frame(self, kind: str | None = None, **filters: Any) -> "pd.DataFrame":
        """The results of `find` as a pandas frame, one row each, indexed by id.

        Nested dicts become columns with dotted names: `payload.value`, `provenance.task.name`; lists are
        left out.
        """
        import pandas as pd

        results = self.find(kind, **filters)
        rows = [
            {
                "kind": result.kind,
                "created": result.created,
                **dict(_scalars("payload", result.payload)),
                **dict(_scalars("provenance", result.provenance)),
            }
            for result in results
        ]
        return pd.DataFrame(rows, index=pd.Index([result.id for result in results], name="id"))

    # ------------------------------------------------------------------------------------------ database

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make a results store at {self.directory}: {error.strerror}") from error

    def _open(self, *, create: bool) -> None:
        """Make the tables if there are none yet, and check the schema version."""
        # Connecting makes an empty file of a missing one, so a failure there is one of writing.
        with self._reading() if (self.directory / DATABASE_NAME).exists() else self._writing() as connection:
            tables = sa.inspect(connection).get_table_names()
        if not tables and create:
            with self._writing() as connection:
                _METADATA.create_all(connection)  # makes what another process has not made meanwhile
                if connection.execute(sa.select(_SCHEMA.c.version)).first() is None:
                    connection.execute(sa.insert(_SCHEMA), {"version": SCHEMA_VERSION})
        elif _SCHEMA.name not in tables:
            raise FileFormatError(f"{self.url} is a database, but no results store")
        with self._reading() as connection:
            version = connection.execute(sa.select(sa.func.max(_SCHEMA.c.version))).scalar()
        if not isinstance(version, int) or version < 1:
            raise FileFormatError(f"{self.url} holds no schema version: it is no results store")
        if version > SCHEMA_VERSION:
            raise FileFormatError(
                f"{self.directory} was written by a newer version of assay: its schema is {version}, this "
                f"version reads up to {SCHEMA_VERSION}; upgrade assay or choose another store"
            )

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """One transaction that holds the write lock from its start."""
        try:
            with self._engine.execution_options(assay_write=True).begin() as connection:
                yield connection
        except sa.exc.OperationalError as error:
            raise OutputError(
                f"cannot write to the results store at {self.directory}: {error.orig}"
            ) from error
        except sa.exc.DatabaseError as error:
            raise FileFormatError(f"{self.url} is not a results store: {error.orig}") from error

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """One read transaction: all its queries see the same state."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DatabaseError as error:
            raise FileFormatError(f"cannot read {self.url} as a results store: {error.orig}") from error

    @staticmethod
    def _contents(connection: sa.Connection, identities: list[str]) -> dict[str, dict[str, str]]:
        """Array names and content hashes by result."""
        contents: dict[str, dict[str, str]] = {identity: {} for identity in identities}
        for start in range(0, len(identities), 500):  # below every database's limit of bound parameters
            chunk = identities[start : start + 500]
            query = sa.select(_ARRAYS).where(_ARRAYS.c.result.in_(chunk)).order_by(_ARRAYS.c.name)
            for row in connection.execute(query):
                contents[row.result][row.name] = row.content
        return contents

    def _result(self, row: sa.Row[Any], contents: Mapping[str, Mapping[str, str]]) -> StoredResult:
        return StoredResult(
            id=row.id,
            kind=row.kind,
            created=row.created,
            provenance=row.provenance,
            payload=row.payload,
            arrays=StoredArrays(self.directory, contents[row.id]),
        )

    # -------------------------------------------------------------------------------------------- arrays

    def _write_array(self, name: str, value: Tensor | np.ndarray) -> str:
        """Write one array under its content hash, unless it is there; returns the hash."""
        try:
            tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
            data = safetensors.torch.save({"value": tensor.detach().cpu().contiguous()})
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(f"array {name!r} must be a dense array of real numbers: {error}") from error
        content = hashlib.sha256(data).hexdigest()
        path = _array_path(self.directory, content)
        if not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(f"cannot make {path.parent} for an array: {error.strerror}") from error
            write_atomically(path, data)
        return content


def _locate(location: str | os.PathLike[str]) -> tuple[str, Path]:
    """Database URL and directory of the arrays."""
    text = os.fspath(location)
    if "://" not in text:
        directory = Path(text).expanduser().absolute()
        return f"sqlite:///{directory / DATABASE_NAME}", directory
    url = sa.make_url(text)
    if url.get_backend_name() != "sqlite":
        raise InputError(
            f"a results store lives in SQLite for now, got {url.render_as_string(hide_password=True)!r}; "
            "give a directory"
        )
    if not url.database or Path(url.database).name != DATABASE_NAME:
        raise InputError(
            f"the database of a results store is DIR/{DATABASE_NAME}, got {text!r}; give the directory"
        )
    database = Path(url.database).absolute()
    return f"sqlite:///{database}", database.parent


def _take_over_transactions(engine: sa.Engine) -> None:
    """Let SQLite transactions begin when we say: the driver's own habit delays BEGIN past the first read.

    See SQLAlchemy's SQLite dialect notes, "Serializable isolation / Savepoints / Transactional DDL".
    """

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        write = connection.get_execution_options().get("assay_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _provenance_equals(path: tuple[str, ...], wanted: object) -> sa.ColumnElement[bool]:
    found = _RESULTS.c.provenance[path]
    equal: sa.ColumnElement[bool]
    if isinstance(wanted, bool):
        equal = found.as_boolean() == wanted
    elif isinstance(wanted, int):
        equal = found.as_integer() == wanted
    elif isinstance(wanted, float):
        equal = found.as_float() == wanted
    elif isinstance(wanted, str):
        equal = found.as_string() == wanted
    else:
        raise InputError(f"filter {'__'.join(path)!r} must be text, a number or a boolean, got {wanted!r}")
    return equal


def _scalars(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """Dotted name and value of every scalar inside nested dicts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _scalars(f"{prefix}.{key}", inner)
    elif not isinstance(value, list):
        yield prefix, value


def _array_path(directory: Path, content: str) -> Path:
    return directory / "arrays" / content[:2] / f"{content}.safetensors"


def _read_array(directory: Path, content: str) -> Tensor:
    path = _array_path(directory, content)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise FileFormatError(f"the array file {path} of a stored result is missing") from error
    if hashlib.sha256(data).hexdigest() != content:
        raise FileFormatError(f"{path} was changed after it was stored: its content does not match its name")
    return safetensors.torch.load(data)["value"]

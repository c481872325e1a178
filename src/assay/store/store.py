"""The store: put, look up, search."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import sqlalchemy as sa
import torch
from torch import Tensor

from assay.circuits.files import TEMPORARY, write_atomically
from assay.core.errors import FileFormatError, InputError, UnknownNameError, check_name, writing
from assay.core.record import plain, record_id
from assay.store.database import COLUMNS, RESULTS, About, Database, ResultSummary, StoredResult


if TYPE_CHECKING:
    import pandas as pd

Content = tuple[Mapping[str, Any], bytes | None]  # a row of the database, and its file of arrays

SETTLED = 3600.0  # seconds: a file unchanged for so long is not being written any more
CHUNK = 500  # below every database's limit of bound parameters
NAMED = 10  # ids in a message
_OWN_FILE = re.compile(rf"[0-9a-f]{{16}}\.safetensors|{TEMPORARY.pattern}")  # in the folder of arrays


class Store(Database):
    """Results under the hash of how they came to be. Opening is cheap; several processes may write at once.

    Args:
        location: A directory, whose database is `assay.db`; or `postgresql+psycopg://USER@HOST/DATABASE`,
            whose arrays lie in the directory that `?arrays=DIR` names, which belongs to that store alone.
        create: Make the directory and an empty store if there is none; False for readers, to whom a missing
            store is an error.

    Attributes:
        location: What opens the store again; of a URL with its password.
        shown: The same for people, without a password.
        directory: Where the arrays and other files of the store lie.

    Raises:
        OutputError: The store cannot be made there.
        StoreError: Its server cannot be reached.
        InputError: There is no store and `create` is false, or the location cannot be read.
        FileFormatError: A file that is not a store, or a store of another version.
        MissingExtraError: PostgreSQL needs the extra `postgres`.

    Example:
        >>> store = Store(tmp_path)
        >>> about = About(metric="kl", value=0.25)
        >>> key = store.put("measurement", {"metric": "kl", "seed": 0}, {"value": 0.25}, about=about)
        >>> store.get(key[:6]).payload
        {'value': 0.25}
        >>> [found.value for found in store.query("measurement", metric="kl")]
        [0.25]
    """

    # ---- one result ---------------------------------------------------------------------------------

    def put(
        self,
        kind: str,
        provenance: Mapping[str, Any],
        payload: Mapping[str, Any],
        arrays: Mapping[str, Tensor | np.ndarray] | None = None,
        *,
        about: About | None = None,
    ) -> str:
        """Store one result; the same kind and provenance again leave the first result as it is.

        Args:
            kind: What it is, e.g. `"measurement"`.
            provenance: How it came to be, all that tells it from other results of its kind. Facts under
                `"machine"` are kept but do not count.
            payload: The result. Like the provenance it is kept as JSON: tuples and small arrays become
                lists, non-finite numbers None.
            arrays: Large parts by name, numeric or boolean; kept in their own dtype.
            about: What the result is found, listed and compared by.

        Returns:
            The result's id, see `assay.core.record.record_id`.

        Raises:
            InputError: A value that JSON or safetensors cannot hold; nothing is stored.
            OutputError: The store cannot be written; nothing of the result is then visible.
        """
        identity = record_id(kind, provenance)
        if self.has(identity):
            return identity
        facts = about or About()
        row = {each.name: _storable(getattr(facts, each.name)) for each in fields(About)}
        row |= {"id": identity, "kind": kind, "created": _now()}
        documents = {"provenance": provenance, "payload": payload}
        row |= {name: json.dumps(plain(document)) for name, document in documents.items()}
        self._keep(row, _packed(arrays) if arrays else None)
        return identity

    def _keep(self, row: Mapping[str, Any], data: bytes | None) -> None:
        """Add a row with its file of arrays, both or none, unless another process was first."""
        digest = None if data is None else hashlib.sha256(data).hexdigest()
        try:
            with self._transaction(write=True) as connection:
                connection.execute(sa.insert(RESULTS).values(**row, digest=digest))
                if data is not None:
                    path = self._file(row["id"])
                    with writing(f"write {path}", "nothing was stored"):
                        path.parent.mkdir(parents=True, exist_ok=True)
                        write_atomically(path, data)
                        _sync(path.parent)
        except sa.exc.IntegrityError:
            return  # the same result

    def add(self, contents: Iterable[Content]) -> None:
        """Add what was put into an `Outbox`; what is here stays as it is."""
        for row, data in contents:
            if not self.has(row["id"]):
                self._keep(row, data)

    def _file(self, identity: str) -> Path:
        return self.directory / "arrays" / f"{identity}.safetensors"

    def has(self, identity: str) -> bool:
        """Whether a result of this full id is stored."""
        return bool(self._rows([RESULTS.c.id], RESULTS.c.id == identity))

    def get(self, identity: str) -> StoredResult:
        """The result of an id or of an id's beginning.

        Args:
            identity: The id or its beginning; or those of a circuit's hash: then the circuit, the audit that
                found it, or else the newest result about it.

        Raises:
            UnknownNameError: No stored id begins so.
            InputError: Several do; the message lists them.
            FileFormatError: If its row was damaged.
        """
        return self._whole(self._summary(identity).id)

    def _whole(self, identity: str) -> StoredResult:
        """The result of a full id."""
        rows = self._rows([RESULTS], RESULTS.c.id == identity)
        if not rows:
            raise UnknownNameError(f"{identity} was removed from {self.shown} meanwhile")
        return _result(rows[0], self._file(identity))

    def _summary(self, identity: str) -> ResultSummary:
        """The result that `get` finds, in brief."""
        start = identity.strip().lower()
        if not start or set(start) - set("0123456789abcdef"):
            raise UnknownNameError(
                f"a result id is up to 16 hex digits, got {identity!r}; see `assay store ls`"
            )
        names = [RESULTS.c[name] for name in COLUMNS]
        rows = self._rows(names, _begins(RESULTS.c.id, start), limit=NAMED + 1)
        if not rows:
            rank = sa.case((RESULTS.c.kind == "circuit", 0), (RESULTS.c.kind == "audit", 1), else_=2)
            order = (rank, RESULTS.c.created.desc())
            about = self._rows(names, _begins(RESULTS.c.circuit, start), order=order)
            rows = list({row.circuit: row for row in reversed(about)}.values())
        if not rows:
            raise UnknownNameError(f"no result in {self.shown} begins with {start!r}; see `assay store ls`")
        if len(rows) > 1:
            shown = ", ".join(f"{row.id} ({row.kind}, {row.created})" for row in rows[:NAMED])
            raise InputError(f"{start!r} is ambiguous, give more digits: {shown}")
        return ResultSummary(**rows[0]._mapping)

    def answer(self, request: str) -> str | None:
        """Id of the result that last answered a request, if there is one; see `keep_request`."""
        rows = self._rows([RESULTS.c.id], RESULTS.c.request == request)
        return str(rows[0].id) if rows else None

    def keep_request(self, request: str, identity: str) -> None:
        """Note by which request a result is found, besides by its record.

        Args:
            request: A hash of what was asked for; that of a record needs the loaded model.
            identity: Full id of the result.
        """
        with self._transaction(write=True) as connection:
            connection.execute(sa.update(RESULTS).where(RESULTS.c.id == identity).values(request=request))

    # ---- many results -------------------------------------------------------------------------------

    def query(
        self,
        kind: str | None = None,
        *,
        order: str = "created",
        limit: int | None = None,
        offset: int = 0,
        **columns: Any,
    ) -> list[ResultSummary]:
        """Results in brief, found by their columns; no payload is read.

        Args:
            kind: Only results of this kind.
            order: Column to order by, `-created` for the newest first; results that lack it come last.
            limit: At most so many.
            offset: Number of results to skip.
            columns: Column of `ResultSummary` and the value it has, None, or a list of values.

        Raises:
            UnknownNameError: For an unknown column; near matches are named.
        """
        names = [RESULTS.c[name] for name in COLUMNS]
        rows = self._rows(names, *_equal(kind, columns), order=_ordered(order), limit=limit, offset=offset)
        if any(row.id is None for row in rows):
            raise FileFormatError(f"a row of {self.shown} lost its id; restore the database from a copy")
        return [ResultSummary(**row._mapping) for row in rows]

    def count(self, kind: str | None = None, **columns: Any) -> int:
        """How many results `query` would find."""
        return int(self._rows([sa.func.count()], *_equal(kind, columns))[0][0])

    def results(self, kind: str | None = None, **columns: Any) -> Iterator[StoredResult]:
        """Whole results, the oldest first; the columns are those of `query`."""
        identities = [each.id for each in self.query(kind, **columns)]
        for start in range(0, len(identities), CHUNK):
            chunk = identities[start : start + CHUNK]
            for row in self._rows([RESULTS], RESULTS.c.id.in_(chunk), order=_ordered("created")):
                yield _result(row, self._file(row.id))

    def to_frame(self, kind: str | None = None, **columns: Any) -> "pd.DataFrame":
        """Results as a pandas frame, one row each, indexed by id.

        The columns of `ResultSummary` come first. Nested dicts become columns with dotted names:
        `payload.value`, `provenance.task.name`.
        """
        import pandas as pd

        found = list(self.results(kind, **columns))
        rows = [{name: getattr(each, name) for name in (*COLUMNS, "payload", "provenance")} for each in found]
        return pd.json_normalize(rows).set_index("id") if rows else pd.DataFrame(columns=COLUMNS[1:])

    # ---- the whole ----------------------------------------------------------------------------------

    def remove(self, identities: Iterable[str], *, force: bool = False) -> list[ResultSummary]:
        """Remove results, all or none of them.

        Args:
            identities: Ids, or their beginnings.
            force: Also remove what other results refer to.

        Returns:
            What was removed.

        Raises:
            UnknownNameError: No stored id begins so.
            InputError: Several ids begin so, or another result refers to one of them.
        """
        found = {each.id: each for each in map(self._summary, identities)}
        for each in () if force else found.values():
            texts = [column.contains(each.id) for column in (RESULTS.c.provenance, RESULTS.c.payload)]
            about = [RESULTS.c.circuit == each.circuit] if each.kind == "circuit" and each.circuit else []
            others = self._rows([RESULTS.c.id], sa.or_(*texts, *about), RESULTS.c.id.not_in([*found]))
            if others:
                named = ", ".join(row.id for row in others[:NAMED])
                raise InputError(
                    f"{each.id} cannot be removed, because {named} refer to it. Remove these too, or pass "
                    "--force"
                )
        with self._transaction(write=True) as connection:
            connection.execute(sa.delete(RESULTS).where(RESULTS.c.id.in_([*found])))
        self.clean(settled=0, only=[*found])
        return [*found.values()]

    def merge(self, other: "Store") -> list[str]:
        """Take over the results of another store that are not here; returns their ids.

        Raises:
            FileFormatError: A result of the other store was changed, or its arrays are damaged; those before
                it are taken over.
        """
        added = []
        for each in other.results():
            if self.has(each.id):
                continue
            if record_id(each.kind, each.provenance) != each.id:
                raise FileFormatError(f"the provenance of {each.id} in {other.shown} was changed")
            row = {name: getattr(each, name) for name in COLUMNS}
            row |= {name: json.dumps(getattr(each, name)) for name in ("provenance", "payload")}
            self._keep(row, None if each.file is None else each.read_file())
            added.append(each.id)
        return added

    def verify(self) -> list[str]:
        """What is wrong with the store, one line each; empty where every result is whole."""
        problems = []
        for each in self.query():
            try:
                result = self._whole(each.id)
                if record_id(result.kind, result.provenance) != result.id:
                    raise FileFormatError("its provenance was changed and does not give this id")
                if result.file is not None:
                    result.read_file()
            except UnknownNameError:
                continue  # removed meanwhile
            except FileFormatError as error:
                problems.append(f"{each.id} ({each.kind}): {error}")
        return problems

    def clean(self, *, settled: float | int = SETTLED, only: Sequence[str] | None = None) -> list[Path]:
        """Remove files of arrays that no result names, and return them: what killed writers left.

        Args:
            settled: Seconds since the last change of a file, at least; what is younger may be being written.
            only: Ids whose files alone may be removed; default: all of this store's files.
        """
        with self._transaction(write=True) as connection:
            if not self._sqlite:  # no result is stored meanwhile; writers of SQLite exclude each other anyway
                connection.execute(sa.text("LOCK TABLE results IN SHARE ROW EXCLUSIVE MODE"))
            stored = sa.select(RESULTS.c.id).where(RESULTS.c.digest.is_not(None))
            if only is None:
                folder = (self.directory / "arrays").glob("*")
                files = [path for path in folder if _OWN_FILE.fullmatch(path.name)]
            else:
                stored = stored.where(RESULTS.c.id.in_(only))
                files = [path for path in map(self._file, only) if path.exists()]
            named = {self._file(identity) for identity in connection.scalars(stored)}
            oldest = time.time() - settled
            left = [path for path in files if path not in named and path.stat().st_mtime <= oldest]
            for path in left:
                with writing(f"remove {path}"):
                    path.unlink(missing_ok=True)
        return sorted(left)


class Outbox(Store):
    """A store that is read, and whose new results are kept in a list until another process adds them.

    Args:
        location: As of `Store`; it must exist.
        contents: Takes what is put; for `Store.add`.
    """

    def __init__(self, location: str | os.PathLike[str], contents: list[Content]) -> None:
        super().__init__(location, create=False)
        self._contents = contents

    def _keep(self, row: Mapping[str, Any], data: bytes | None) -> None:
        self._contents.append((row, data))


def _begins(column: sa.ColumnElement[Any], start: str) -> sa.ColumnElement[bool]:
    return sa.and_(column >= start, column < start + "g")  # a range that an index knows


def _equal(kind: str | None, columns: Mapping[str, Any]) -> list[sa.ColumnElement[bool]]:
    """Conditions on columns, by keyword."""
    conditions = [] if kind is None else [RESULTS.c.kind == kind]
    for name, value in columns.items():
        check_name("column", name, COLUMNS)
        several = isinstance(value, list | tuple | set)
        conditions.append(RESULTS.c[name].in_(value) if several else RESULTS.c[name] == value)
    return conditions


def _ordered(order: str) -> list[sa.ColumnElement[Any]]:
    name = order.removeprefix("-")
    check_name("column", name, COLUMNS)
    column = RESULTS.c[name]
    return [column.is_(None), column.desc() if order.startswith("-") else column.asc(), RESULTS.c.id]


def _packed(arrays: Mapping[str, Tensor | np.ndarray]) -> bytes:
    """The bytes of a file of arrays."""
    try:
        tensors = {
            name: value.detach().cpu().contiguous()
            if isinstance(value, Tensor)
            else torch.from_numpy(np.array(value, order="C"))
            for name, value in arrays.items()
        }
        return safetensors.torch.save(tensors)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"arrays must be dense and of real numbers, each its own: {error}") from error


def _storable(value: Any) -> Any:
    """A value as columns hold it: text without NUL and halves of surrogate pairs, undefined numbers None.

    Raises:
        InputError: A whole number that no column holds.
    """
    value = plain(value)
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, int) and abs(value) >= 2**63:
        raise InputError(f"a result is described by whole numbers below 2^63, got {value}")
    return value


def _result(row: "sa.Row[Any]", file: Path) -> StoredResult:
    """A whole row as a result.

    Raises:
        FileFormatError: If one of its documents is not JSON of a table.
    """
    columns = {name: value for name, value in row._mapping.items() if name != "request"}
    for name in ("provenance", "payload"):
        try:
            columns[name] = json.loads(columns[name])
            if not isinstance(columns[name], dict):
                raise TypeError("not a table")
        except (TypeError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"the {name} of result {row.id} was damaged ({error}); restore the database from a copy"
            ) from error
    return StoredResult(**columns, file=None if row.digest is None else file)


def _sync(folder: Path) -> None:
    """A new name survives a power cut once its folder is on disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

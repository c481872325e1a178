"""The store: put, look up, search."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from torch import Tensor

from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.core.record import MACHINE, canonical_json, plain, record_id
from assay.store.arrays import StoredArrays, array_path, read_array, write_array
from assay.store.claims import ClaimBook
from assay.store.database import Database, insert_new
from assay.store.leftovers import SETTLED, Leftover, find_leftovers, remove_leftovers
from assay.store.location import locate
from assay.store.summary import COLUMNS, ResultSummary
from assay.store.tables import ARRAYS, ID_LENGTH, KIND_LENGTH, NAME_LENGTH, RESULTS, SUMMARIES
from assay.store.upgrade import open_schema, summary_row
from assay.store.where import Condition, first_methods, parse_order, parse_where, provenance_filter


if TYPE_CHECKING:
    import pandas as pd

_CHUNK = 500  # below every database's limit of bound parameters
_ABOUT_METHODS = tuple(SUMMARIES.c[name] for name in ("kind", "method", "circuit", "model", "task"))
_NOT_CONTENT = frozenset({"machine", "seconds", "created"})  # facts of a run, wherever they are in a payload


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """One result as it was stored.

    Attributes:
        id: 16 hex digits, see `assay.core.measurement.record_id`.
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

    @property
    def summary(self) -> ResultSummary:
        """The result in brief; unlike `Store.query` it looks at no other result for a circuit's method."""
        return ResultSummary(**summary_row(vars(self)))


class Store:
    """Results under the hash of how they came to be. Opening is cheap; several processes may write at once.

    Args:
        location: A directory, or the URL of a database: `sqlite:///DIR/assay.db`, whose arrays lie in
            `DIR/arrays`, or `postgresql+psycopg://USER@HOST/DATABASE`, whose arrays lie in the directory that
            `?arrays=DIR` names, else in the one it was made with (`assay-out` where that named none).
        create: Make the directory and an empty store if there is none; `False` for readers, to whom a
            missing store is an error.

    Attributes:
        location: What opens the store again; of a URL with its password.
        url: The same for display: a password is shown as stars.
        directory: Where the arrays and other files of the store lie.
        claims: Who works on what, see `ClaimBook`.

    Raises:
        OutputError: The store is missing and cannot be made there, or its server cannot be reached.
        InputError: There is no store and `create` is false, the URL's database is not supported, or the
            directory of its arrays cannot be seen from here.
        FileFormatError: A file that is not a store, or a store written by a newer version.
        MissingExtraError: PostgreSQL needs the extra `postgres`.

    Notes:
        A store of an earlier version is upgraded when it is opened; the SQLite file as it was is kept beside
        it, and a warning says where.

    Example:
        >>> store = Store(tmp_path)
        >>> key = store.put("measurement", {"metric": "kl", "seed": 0}, {"value": 0.25})
        >>> store.get(key[:6]).payload
        {'value': 0.25}
        >>> [found.value for found in store.query("measurement", where=["metric = kl", "value < 0.5"])]
        [0.25]
    """

    def __init__(self, location: str | os.PathLike[str], *, create: bool = True) -> None:
        place = locate(location)
        self.location = place.text
        self.url = f"sqlite:///{place.file}" if place.sqlite else place.shown
        self._shown = place.shown
        self._database = Database(place)
        self.directory = open_schema(self._database, create=create)
        self.claims = ClaimBook(self._database)

    def __repr__(self) -> str:
        return f"Store({self._shown!r})"

    # ---- one result ---------------------------------------------------------------------------------

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
            The result's id, see `assay.core.measurement.record_id`.

        Raises:
            InputError: A value that JSON or safetensors cannot hold; nothing is stored.
            OutputError: The store cannot be written; nothing of the result is then visible.
        """
        _check_name("kind", kind, KIND_LENGTH)
        for name in arrays or {}:
            _check_name("name of an array", name, NAME_LENGTH)
        identity = _identity(kind, provenance)
        row = {
            "id": identity,
            "kind": kind,
            "created": datetime.now(UTC).isoformat(timespec="microseconds"),
            "provenance": plain(provenance),
            "payload": plain(payload),
        }
        if self.has(identity):
            return identity
        contents = {name: write_array(self.directory, name, value) for name, value in (arrays or {}).items()}
        summary = summary_row(row)

        def work(connection: sa.Connection) -> None:
            if insert_new(connection, RESULTS, row):
                for name, content in contents.items():
                    named = {"result": identity, "name": name, "content": content}
                    connection.execute(sa.insert(ARRAYS), named)
                    # Between its writing and here an array is not referred to, so it may have been removed.
                    if not array_path(self.directory, content).exists():
                        write_array(self.directory, name, (arrays or {})[name])
                connection.execute(sa.insert(SUMMARIES), summary)

        self._database.write(work)
        return identity

    def has(self, identity: str) -> bool:
        """Whether a result of this full id is stored."""
        query = sa.select(RESULTS.c.id).where(RESULTS.c.id == identity)
        return self._database.read(lambda connection: connection.execute(query).first()) is not None

    def get(self, identity: str) -> StoredResult:
        """The result of an id or of an id's beginning.

        Args:
            identity: The id or its beginning; or those of a circuit's hash: then the circuit, the audit that
                found it, or else the newest result about it.

        Raises:
            UnknownNameError: No stored id begins so.
            InputError: Several do; the message lists them.
        """
        prefix = identity.strip().lower()
        if not prefix or set(prefix) - set("0123456789abcdef"):
            raise UnknownNameError(
                f"a result id is up to {ID_LENGTH} hex digits, got {identity!r}; see `assay list results`"
            )
        begins = sa.and_(SUMMARIES.c.id >= prefix, SUMMARIES.c.id < prefix + "g")  # a range the index knows
        query = sa.select(SUMMARIES).where(begins).order_by(SUMMARIES.c.id).limit(11)

        of_circuit = sa.and_(SUMMARIES.c.circuit >= prefix, SUMMARIES.c.circuit < prefix + "g")
        holds = sa.case((SUMMARIES.c.kind == "circuit", 0), (SUMMARIES.c.kind == "audit", 1), else_=2)
        newest = (holds, SUMMARIES.c.created.desc(), SUMMARIES.c.id)

        def work(connection: sa.Connection) -> tuple[Any, list[StoredResult]]:
            rows = connection.execute(query).all()
            if not rows:
                hashes = sa.select(SUMMARIES.c.circuit).where(of_circuit).distinct().limit(11)
                found = connection.scalars(hashes).all()
                # One result of each circuit: several are as ambiguous as several ids.
                rows = [
                    connection.execute(
                        sa.select(SUMMARIES).where(SUMMARIES.c.circuit == each).order_by(*newest).limit(1)
                    ).one()
                    for each in found
                ]
            return rows, self._results(connection, [rows[0].id]) if len(rows) == 1 else []

        rows, results = self._database.read(work)
        if not rows:
            raise UnknownNameError(
                f"no result in {self._shown} begins with {prefix!r}; see `assay list results`"
            )
        if len(rows) > 1:
            shown = ", ".join(f"{row.id} ({row.kind}, {row.created})" for row in rows[:10])
            more = ", and more" if len(rows) > 10 else ""
            raise InputError(f"{prefix!r} is ambiguous, give more digits: {shown}{more}")
        return results[0]

    # ---- many results -------------------------------------------------------------------------------

    def query(
        self,
        kind: str | None = None,
        where: str | Iterable[str] = (),
        order: str = "created",
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ResultSummary]:
        """Results in brief, found by their columns; no payload is read unless a condition looks inside one.

        Args:
            kind: Only results of this kind.
            where: Conditions `KEY OP VALUE` that must all hold. KEY is a column of `ResultSummary` or a path
                such as `provenance.task.name` or `payload.details.median`; OP is one of = != < <= > >= or ~
                (text that contains VALUE, whatever the case of A to Z); VALUE is a number, true, false, null
                or text, in double quotes where it would mean something else. Where a result has nothing, only
                `= null` holds.
            order: Column to order by, `-created` for the newest first; results that lack it come last.
            limit: At most so many.
            offset: So many of the first are left out.

        Raises:
            InputError: A condition or order that cannot be read; near matches of unknown columns are named.
        """
        for name, number in (("limit", limit), ("offset", offset)):
            if number is not None and not 0 <= number < 2**63:
                raise InputError(f"{name} counts results, from 0 and below 2^63; got {number}")
        columns = [SUMMARIES.c[name] for name in COLUMNS]
        statement = self._matching(columns, kind, parse_where(where))
        statement = statement.order_by(*parse_order(order)).limit(limit).offset(offset or None)
        if limit is None and offset and self._database.dialect == "sqlite":
            statement = statement.limit(-1)  # SQLite has no offset without a limit

        def work(connection: sa.Connection) -> list[ResultSummary]:
            rows = connection.execute(statement).all()
            _check_ids(row.id for row in rows)
            methods = _methods(connection, rows)
            return [ResultSummary(**{**row._mapping, "method": methods[row.id]}) for row in rows]

        return self._database.read(work)

    def count(self, kind: str | None = None, where: str | Iterable[str] = ()) -> int:
        """How many results `query` would find."""
        statement = self._matching([sa.func.count()], kind, parse_where(where))
        return int(self._database.read(lambda connection: connection.execute(statement).scalar_one()))

    def find(self, kind: str | None = None, **filters: Any) -> list[StoredResult]:
        """Results of a kind whose provenance holds the given values, oldest first, payloads and all.

        Args:
            kind: Only results of this kind.
            **filters: Provenance key and value (text, number, boolean); `task__name="ioi"` looks inside the
                dict under `task`. A result without the key does not match.
        """
        chosen = self._chosen(kind, (), "created", None, filters)

        def work(connection: sa.Connection) -> list[StoredResult]:
            return self._results(connection, list(connection.execute(chosen).scalars()))

        return self._database.read(work)

    def to_frame(
        self,
        kind: str | None = None,
        where: str | Iterable[str] = (),
        order: str = "created",
        limit: int | None = None,
        **filters: Any,
    ) -> "pd.DataFrame":
        """Results as a pandas frame, one row each, indexed by id.

        Columns `kind`, `created` and `method` are as `query` has them. Nested dicts become columns with
        dotted names: `payload.value`, `provenance.task.name`. Lists are left out, and so is the copy of the
        provenance that a measurement's payload holds.

        Args:
            kind: Only results of this kind.
            where: Conditions as `query` has them.
            order: As `query` has it.
            limit: At most so many.
            **filters: As `find` has them.
        """
        import pandas as pd

        chosen = self._chosen(kind, where, order, limit, filters)

        def work(connection: sa.Connection) -> tuple[list[str], dict[str, list[object]]]:
            found = connection.execute(chosen.add_columns(*_ABOUT_METHODS)).all()
            identities = [row.id for row in found]
            methods = _methods(connection, found)
            places = {identity: place for place, identity in enumerate(identities)}
            columns: dict[str, list[object]] = {name: [None] * len(places) for name in ("kind", "created")}
            columns["method"] = [methods[identity] for identity in identities]
            payload, provenance = (_Spread(columns, name, len(places)) for name in ("payload", "provenance"))
            for row in _rows(connection, identities):  # let go one by one: garbage collection takes longer
                place = places[row.id]
                columns["kind"][place], columns["created"][place] = row.kind, row.created
                content = row.payload
                if row.kind == "measurement":
                    content = {key: content[key] for key in content if key != "provenance"}
                payload.row(content, place)
                provenance.row(row.provenance, place)
            return identities, columns

        identities, columns = self._database.read(work)
        return pd.DataFrame(columns, index=pd.Index(identities, name="id"))

    def _chosen(
        self,
        kind: str | None,
        where: str | Iterable[str],
        order: str,
        limit: int | None,
        filters: Mapping[str, Any],
    ) -> sa.Select[Any]:
        """Ids of results in order."""
        conditions = parse_where(where) + [provenance_filter(key, value) for key, value in filters.items()]
        return self._matching([SUMMARIES.c.id], kind, conditions).order_by(*parse_order(order)).limit(limit)

    def _matching(
        self, columns: "list[Any]", kind: str | None, conditions: list[Condition]
    ) -> sa.Select[Any]:
        """Rows of `summaries`; `results` takes part only where a document is looked into."""
        source: sa.FromClause = SUMMARIES
        if any(condition.in_document for condition in conditions):
            source = SUMMARIES.join(RESULTS, RESULTS.c.id == SUMMARIES.c.id)
        statement = sa.select(*columns).select_from(source)
        if kind is not None:
            statement = statement.where(SUMMARIES.c.kind == kind)
        return statement.where(*(condition.sql(self._database.dialect) for condition in conditions))

    def _results(self, connection: sa.Connection, identities: list[str]) -> list[StoredResult]:
        """Whole results, in the order of their ids given."""
        contents = _contents(connection, identities)
        found = {
            row.id: StoredResult(
                id=row.id,
                kind=row.kind,
                created=row.created,
                provenance=row.provenance,
                payload=row.payload,
                arrays=StoredArrays(self.directory, contents[row.id]),
            )
            for row in _rows(connection, identities)
        }
        return [found[identity] for identity in identities]

    # ---- the whole ----------------------------------------------------------------------------------

    def digest(self, kinds: Iterable[str] | None = None) -> str:
        """SHA-256 of all that was stored, the same for stores that hold the same results.

        Facts of the run do not count: what stands under `machine` in a provenance, and under `machine`,
        `seconds` and `created` anywhere in a payload. Nor does the order of the puts, or the database.

        Args:
            kinds: Only results of these kinds.
        """
        hashed = hashlib.sha256()
        wanted = None if kinds is None else sorted(set(kinds))
        for result in self._all(wanted):
            provenance = {key: value for key, value in result.provenance.items() if key != MACHINE}
            content = [
                result.id,
                result.kind,
                provenance,
                _content(plain(result.payload)),
                result.arrays.hashes,
            ]
            hashed.update(canonical_json({"result": content}).encode("utf-8", "surrogatepass") + b"\n")
        return hashed.hexdigest()

    def verify(self) -> list[str]:
        """What is wrong with the store, one line each; empty where every result is whole.

        Reads every array file and compares its bytes with its name, and every row with its id and summary.
        """
        problems: list[str] = []
        known: dict[str, str] = {}
        for result in self._whole(problems):
            about = f"{result.id} ({result.kind})"
            try:
                same = record_id(result.kind, result.provenance) == result.id
            except (InputError, UnicodeEncodeError):  # what `put` refuses
                same = False
            if not same:
                problems.append(f"{about}: its provenance was changed, it does not give this id")
            for name, content in result.arrays.hashes.items():
                if content not in known:
                    try:
                        read_array(self.directory, content)
                        known[content] = ""
                    except FileFormatError as error:
                        known[content] = str(error)
                if known[content]:
                    problems.append(f"{about}: array {name!r}: {known[content]}")
        return problems + self._database.read(_wrong_summaries)

    def leftovers(self, *, settled: float = SETTLED) -> list[Leftover]:
        """What killed writers left: temporary files, and arrays that no result names. They harm nothing.

        Args:
            settled: Seconds since the last change of a file, at least; what is younger may be being written.
        """
        return self._database.read(
            lambda connection: find_leftovers(connection, self.directory, settled=settled)
        )

    def remove_leftovers(self, *, settled: float = SETTLED) -> list[Leftover]:
        """Remove what `leftovers` finds, and return it; other processes may write meanwhile.

        Raises:
            OutputError: A file cannot be removed.
        """
        return self._database.write(
            lambda connection: remove_leftovers(connection, self.directory, settled=settled)
        )

    def _whole(self, problems: list[str]) -> Iterator[StoredResult]:
        """Every result that can be read; of the others a line each is added to the problems."""
        last = ""
        while True:
            query = sa.select(RESULTS.c.id).where(RESULTS.c.id > last).order_by(RESULTS.c.id).limit(_CHUNK)

            def identities(connection: sa.Connection, query: sa.Select[Any] = query) -> list[str]:
                return _check_ids(connection.execute(query).scalars())

            chunk = self._database.read(identities)
            if not chunk:
                return
            try:
                yield from self._get_all(chunk)
            except FileFormatError:
                for identity in chunk:
                    try:
                        found = self._get_all([identity])
                    except FileFormatError as error:
                        problems.append(f"{identity}: {error}")
                    else:
                        yield from found
            last = chunk[-1]

    def _get_all(self, identities: list[str]) -> list[StoredResult]:
        return self._database.read(lambda connection: self._results(connection, identities))

    def _all(self, kinds: list[str] | None = None) -> Iterator[StoredResult]:
        """Every result by id, a chunk at a time: a result put meanwhile may be missed, none is changed."""
        last = ""
        while True:
            query = sa.select(RESULTS.c.id).where(RESULTS.c.id > last).order_by(RESULTS.c.id).limit(_CHUNK)
            if kinds is not None:
                query = query.where(RESULTS.c.kind.in_(kinds))

            def work(connection: sa.Connection, query: sa.Select[Any] = query) -> list[StoredResult]:
                return self._results(connection, _check_ids(connection.execute(query).scalars()))

            results = self._database.read(work)
            if not results:
                return
            yield from results
            last = results[-1].id


def _check_ids(identities: Iterable[Any]) -> list[str]:
    """The ids of rows, if they are ids: a damaged page of SQLite may hold anything in a column."""
    found = list(identities)
    if not all(isinstance(each, str) for each in found):
        raise FileFormatError("a row of the results store was damaged: it has no id; restore the database")
    return found


def _rows(connection: sa.Connection, identities: list[str]) -> "Iterator[sa.Row[Any]]":
    """Rows of `results` of the given ids, in the order of the ids."""
    ordered = sorted(identities)
    for start in range(0, len(ordered), _CHUNK):
        chunk = RESULTS.c.id.in_(ordered[start : start + _CHUNK])
        for row in connection.execute(sa.select(RESULTS).where(chunk).order_by(RESULTS.c.id)):
            if not (isinstance(row.payload, dict) and isinstance(row.provenance, dict)):
                raise FileFormatError(
                    f"result {row.id} was damaged: its payload or provenance is not a table; `assay store "
                    "verify` says what else is wrong"
                )
            yield row


def _methods(connection: sa.Connection, rows: "Sequence[sa.Row[Any]]") -> dict[str, str | None]:
    """The methods of rows of `summaries`, by id: their own, or of a measurement the one of its circuit."""
    asked = [row for row in rows if row.kind == "measurement" and row.method is None and row.circuit]
    circuits = sorted({row.circuit for row in asked})
    first: dict[tuple[str, str, str], str] = {}
    for start in range(0, len(circuits), _CHUNK):
        for row in connection.execute(first_methods(circuits[start : start + _CHUNK])):
            first[row.circuit, row.model, row.task] = row.method
    inherited = {row.id: first.get((row.circuit, row.model or "", row.task or "")) for row in asked}
    return {row.id: row.method or inherited.get(row.id) for row in rows}


def _contents(connection: sa.Connection, identities: list[str]) -> dict[str, dict[str, str]]:
    """Array names and content hashes by result."""
    contents: dict[str, dict[str, str]] = {identity: {} for identity in identities}
    for start in range(0, len(identities), _CHUNK):
        chunk = identities[start : start + _CHUNK]
        query = sa.select(ARRAYS).where(ARRAYS.c.result.in_(chunk)).order_by(ARRAYS.c.name)
        for row in connection.execute(query):
            contents[row.result][row.name] = row.content
    return contents


def _wrong_summaries(connection: sa.Connection) -> list[str]:
    """Results without a summary or the other way round."""
    joined = RESULTS.outerjoin(SUMMARIES, SUMMARIES.c.id == RESULTS.c.id)
    without = sa.select(RESULTS.c.id, RESULTS.c.kind).select_from(joined).where(SUMMARIES.c.id.is_(None))
    return [
        f"{row.id} ({row.kind}): it has no summary, so no search finds it; put it again into a new store"
        for row in connection.execute(without)
    ]


def _identity(kind: str, provenance: Mapping[str, Any]) -> str:
    try:
        return record_id(kind, provenance)
    except UnicodeEncodeError as error:
        raise InputError(f"a provenance holds half a surrogate pair, which is not text: {error}") from error


def _check_name(what: str, text: str, longest: int) -> None:
    if not 0 < len(text) <= longest or "\0" in text:
        raise InputError(f"a {what} is text of 1 to {longest} characters, got {text!r}")


def _content(value: object) -> object:
    """A payload less the facts of the run."""
    if isinstance(value, dict):
        return {key: _content(inner) for key, inner in value.items() if key not in _NOT_CONTENT}
    if isinstance(value, list):
        return [_content(inner) for inner in value]
    return value


class _Spread:
    """Columns of the scalars inside nested dicts, by their dotted names, filled row by row.

    Names are put together once per column, not once per value: a frame is mostly this.
    """

    def __init__(self, columns: dict[str, list[object]], prefix: str, length: int) -> None:
        self._columns, self._prefix, self._length = columns, prefix, length
        self._values: dict[str, list[object]] = {}
        self._inside: dict[str, _Spread] = {}

    def row(self, record: dict[str, Any], place: int) -> None:
        """Put one record into its row."""
        values = self._values
        for key, value in record.items():
            kind = type(value)  # of what the JSON parser made, so no subclasses
            if kind is dict:
                if key not in self._inside:
                    self._inside[key] = _Spread(self._columns, f"{self._prefix}.{key}", self._length)
                self._inside[key].row(value, place)
            elif kind is not list:
                if key not in values:
                    name = f"{self._prefix}.{key}"
                    values[key] = self._columns.setdefault(name, [None] * self._length)
                values[key][place] = value

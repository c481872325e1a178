"""The store: put, look up, search."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from torch import Tensor

from assay.core.errors import InputError, UnknownNameError
from assay.core.record import plain, record_id
from assay.store.about import COLUMNS, About, ResultSummary
from assay.store.arrays import array_path, write_array
from assay.store.changing import check_identity, copy_array, listed, remove_files, remove_rows
from assay.store.columns import documents_to_read, narrowed, parse_order
from assay.store.creation import open_schema
from assay.store.database import Database, insert_new
from assay.store.frame import Spread
from assay.store.leftovers import SETTLED, Leftover, find_leftovers, remove_leftovers
from assay.store.location import locate
from assay.store.reading import (
    CHUNK,
    StoredResult,
    check_ids,
    methods_of,
    read_rows,
    results_of,
    rows_beginning,
    summaries_of,
)
from assay.store.tables import ARRAYS, ID_LENGTH, KIND_LENGTH, NAME_LENGTH, RESULTS, SUMMARIES
from assay.store.where import Condition, parse_where, provenance_filter
from assay.store.whole import content_of, digest_of, every_result, problems_of


if TYPE_CHECKING:
    import pandas as pd


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

    Raises:
        OutputError: The store is missing and cannot be made there, or its server cannot be reached.
        InputError: There is no store and `create` is false, the URL's database is not supported, or the
            directory of its arrays cannot be seen from here.
        FileFormatError: A file that is not a store, or a store written by another version.
        MissingExtraError: PostgreSQL needs the extra `postgres`.

    Example:
        >>> store = Store(tmp_path)
        >>> about = About(metric="kl", value=0.25)
        >>> key = store.put("measurement", {"metric": "kl", "seed": 0}, {"value": 0.25}, about=about)
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

    def __repr__(self) -> str:
        return f"Store({self._shown!r})"

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
            provenance: How it came to be, all that tells it from other results of its kind (of a measurement
                the metric with its arguments too). Facts under `"machine"` are kept but do not count.
            payload: The result. Like the provenance it is kept as JSON: tuples and small arrays become
                lists, non-finite numbers None.
            arrays: Large parts by name, numeric or boolean; kept in their own dtype.
            about: What the result is found, listed and compared by; a summary of another result will do.

        Returns:
            The result's id, see `assay.core.record.record_id`.

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
        writers = {
            name: functools.partial(write_array, self.directory, name, value)
            for name, value in (arrays or {}).items()
        }
        summary = (about or About()).row() | {name: row[name] for name in ("id", "kind", "created")}
        self._keep(row, summary, writers)
        return identity

    def _keep(
        self, row: Mapping[str, Any], summary: Mapping[str, Any], writers: Mapping[str, Callable[[], str]]
    ) -> None:
        """Write a result: its arrays first, each by its writer, which returns the hash; its rows at once."""
        contents = {name: write() for name, write in writers.items()}

        def work(connection: sa.Connection) -> None:
            if insert_new(connection, RESULTS, dict(row)):
                for name, content in contents.items():
                    named = {"result": row["id"], "name": name, "content": content}
                    connection.execute(sa.insert(ARRAYS), named)
                    # Between its writing and here an array is not referred to, so it may have been removed.
                    if not array_path(self.directory, content).exists():
                        writers[name]()
                connection.execute(sa.insert(SUMMARIES), dict(summary))

        self._database.write(work)

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
                f"a result id is up to {ID_LENGTH} hex digits, got {identity!r}; see `assay store ls`"
            )

        def work(connection: sa.Connection) -> tuple[Any, list[StoredResult]]:
            rows = rows_beginning(connection, prefix)
            return rows, results_of(connection, self.directory, [rows[0].id]) if len(rows) == 1 else []

        rows, results = self._database.read(work)
        if not rows:
            raise UnknownNameError(f"no result in {self._shown} begins with {prefix!r}; see `assay store ls`")
        if len(rows) > 1:
            shown = ", ".join(f"{row.id} ({row.kind}, {row.created})" for row in rows[:10])
            more = ", and more" if len(rows) > 10 else ""
            raise InputError(f"{prefix!r} is ambiguous, give more digits: {shown}{more}")
        return results[0]

    # ---- many results -------------------------------------------------------------------------------

    def results(self, identities: Sequence[str]) -> list[StoredResult]:
        """The results of these full ids, in their order."""
        return self._database.read(lambda connection: results_of(connection, self.directory, identities))

    def summaries(self, identities: Sequence[str]) -> dict[str, ResultSummary]:
        """Results in brief by their full ids, those that are stored."""
        return self._database.read(lambda connection: summaries_of(connection, identities))

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
        conditions = parse_where(where)

        def work(connection: sa.Connection) -> list[ResultSummary]:
            rows = self._matching(connection, kind, conditions, order, limit, offset)
            methods = methods_of(connection, rows)
            return [
                ResultSummary(**{name: row._mapping[name] for name in COLUMNS} | {"method": methods[row.id]})
                for row in rows
            ]

        return self._database.read(work)

    def count(self, kind: str | None = None, where: str | Iterable[str] = ()) -> int:
        """How many results `query` would find."""
        conditions = parse_where(where)
        if any(condition.in_document for condition in conditions):
            return len(self._database.read(lambda each: self._matching(each, kind, conditions)))
        statement = narrowed([sa.func.count()], kind, conditions)
        return int(self._database.read(lambda connection: connection.execute(statement).scalar_one()))

    def find(self, kind: str | None = None, **filters: Any) -> list[StoredResult]:
        """Results of a kind whose provenance holds the given values, oldest first, payloads and all.

        Args:
            kind: Only results of this kind.
            **filters: Provenance key and value (text, number, boolean); `task__name="ioi"` looks inside the
                dict under `task`. A result without the key does not match.
        """
        conditions = [provenance_filter(key, value) for key, value in filters.items()]

        def work(connection: sa.Connection) -> list[StoredResult]:
            return results_of(
                connection, self.directory, [row.id for row in self._matching(connection, kind, conditions)]
            )

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

        conditions = parse_where(where) + [provenance_filter(key, value) for key, value in filters.items()]

        def work(connection: sa.Connection) -> tuple[list[str], dict[str, list[object]]]:
            rows = self._matching(connection, kind, conditions, order, limit)
            identities = [row.id for row in rows]
            methods = methods_of(connection, rows)
            places = {identity: place for place, identity in enumerate(identities)}
            columns: dict[str, list[object]] = {name: [None] * len(places) for name in ("kind", "created")}
            columns["method"] = [methods[identity] for identity in identities]
            payload, provenance = (Spread(columns, name, len(places)) for name in ("payload", "provenance"))
            # Let go one by one: garbage collection takes longer.
            for row in read_rows(connection, identities):
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

    def _matching(
        self,
        connection: sa.Connection,
        kind: str | None,
        conditions: Sequence[Condition],
        order: str = "created",
        limit: int | None = None,
        offset: int = 0,
    ) -> "list[sa.Row[Any]]":
        """Rows of `summaries` in order: SQL narrows by columns, documents are looked into here."""
        inside = [condition for condition in conditions if condition.in_document]
        sqlite = connection.dialect.name == "sqlite"
        columns = [SUMMARIES, *documents_to_read(inside, sqlite)]
        statement = narrowed(columns, kind, conditions, sqlite).order_by(*parse_order(order))
        if inside:
            end = None if limit is None else offset + limit
            with closing(connection.execute(statement, execution_options={"yield_per": CHUNK})) as read:
                held = (row for row in read if row.sure or all(each.holds(row._mapping) for each in inside))
                rows = list(islice(held, offset, end))
        else:
            if limit is None and offset and sqlite:
                limit = -1  # SQLite has no offset without a limit
            rows = list(connection.execute(statement.limit(limit).offset(offset or None)))
        check_ids(row.id for row in rows)
        return rows

    # ---- changing it --------------------------------------------------------------------------------

    def remove(self, identities: Iterable[str], *, force: bool = False) -> list[ResultSummary]:
        """Remove results, all or none of them, and the files of arrays that no other result has.

        Args:
            identities: Ids, or their beginnings.
            force: Also remove what other results refer to.

        Returns:
            What was removed.

        Raises:
            UnknownNameError: No stored id begins so; a circuit's hash names no result here.
            InputError: Several ids begin so, or another result refers to one of them.
            OutputError: A file cannot be removed; the results are gone, and `leftovers` finds it.
        """
        results = {}
        for each in identities:
            result = self.get(each)
            if not result.id.startswith(each.strip().lower()):
                raise UnknownNameError(f"no result id begins with {each!r}; it begins the hash of a circuit")
            results[result.id] = result
        contents = [content for result in results.values() for content in result.arrays.hashes.values()]
        self._database.write(lambda connection: remove_rows(connection, [*results], force=force))
        self._database.write(lambda connection: remove_files(connection, self.directory, contents))
        return [result.summary for result in results.values()]

    def merge(self, other: "Store") -> list[str]:
        """Take over the results of another store; again, or after an interruption, only what is missing.

        Args:
            other: Only read.

        Returns:
            Ids of the results that were added.

        Raises:
            InputError: Both hold a result of one id with another content. Nothing is then added.
            FileFormatError: A result of the other store was changed, or one of its arrays is damaged.
        """
        different, missing = [], []
        for result in every_result(other._database, other.directory):
            check_identity(result)
            if not self.has(result.id):
                missing.append(result.id)
            elif content_of(self.get(result.id)) != content_of(result):
                different.append(result.id)
        if different:
            raise InputError(
                f"both stores hold {listed(different)}, but with different content; nothing was merged. "
                "Remove these from one of the stores"
            )
        for identity in missing:
            result = other.get(identity)
            writers = {
                name: functools.partial(copy_array, other.directory, self.directory, content)
                for name, content in result.arrays.hashes.items()
            }
            self._keep(result.row(), result.summary.row(), writers)
        return missing

    # ---- the whole ----------------------------------------------------------------------------------

    def digest(self, kinds: Iterable[str] | None = None) -> str:
        """SHA-256 of all that was stored, the same for stores that hold the same results.

        Facts of the run do not count: what stands under `machine` in a provenance, and under `machine`,
        `seconds` and `created` anywhere in a payload. Nor does the order of the puts, or the database.

        Args:
            kinds: Only results of these kinds.
        """
        return digest_of(self._database, self.directory, kinds)

    def verify(self) -> list[str]:
        """What is wrong with the store, one line each; empty where every result is whole.

        Reads every array file and compares its bytes with its name, and every row with its id and summary.
        """
        return problems_of(self._database, self.directory)

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


def _identity(kind: str, provenance: Mapping[str, Any]) -> str:
    try:
        return record_id(kind, provenance)
    except UnicodeEncodeError as error:
        raise InputError(
            f"a provenance holds half a surrogate pair, which is not valid text: {error}"
        ) from error


def _check_name(what: str, text: str, longest: int) -> None:
    if not 0 < len(text) <= longest or "\0" in text:
        raise InputError(f"a {what} is text of 1 to {longest} characters, got {text!r}")

"""Results out of the tables of a store, some at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from assay.core.errors import FileFormatError
from assay.store.about import ResultSummary
from assay.store.arrays import StoredArrays
from assay.store.columns import first_methods
from assay.store.tables import ARRAYS, RESULTS, SUMMARIES


CHUNK = 500  # below every database's limit of bound parameters
MOST_NAMED = 11  # results that begin alike: ten to list, and one to show that there are more


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """One result as it was stored.

    Attributes:
        id: 16 hex digits, see `assay.core.record.record_id`.
        kind: What it is: `"measurement"`, `"circuit"`, `"scores"`, ...
        created: UTC, ISO 8601, of the first `put`.
        provenance: How it came to be, machine facts included.
        payload: The result itself, less its arrays.
        arrays: CPU tensors by name, read from disk and verified on access.
        summary: The result in brief; unlike `Store.query` it looks at no other result for a circuit's method.
    """

    id: str
    kind: str
    created: str
    provenance: dict[str, Any]
    payload: dict[str, Any]
    arrays: StoredArrays
    summary: ResultSummary

    def document(self) -> dict[str, Any]:
        """The result as one JSON document: what `assay show --json` prints."""
        return self.row() | {"arrays": list(self.arrays.keys())}

    def row(self) -> dict[str, Any]:
        """The result as a row of `results`."""
        return {name: getattr(self, name) for name in ("id", "kind", "created", "provenance", "payload")}


def results_of(connection: sa.Connection, directory: Path, identities: Sequence[str]) -> list[StoredResult]:
    """Whole results, in the order of their ids given."""
    contents, summaries = contents_of(connection, identities), summaries_of(connection, identities)
    results = {
        row.id: StoredResult(
            id=row.id,
            kind=row.kind,
            created=row.created,
            provenance=row.provenance,
            payload=row.payload,
            arrays=StoredArrays(directory, contents[row.id]),
            # A damaged store may have lost it.
            summary=summaries.get(row.id) or ResultSummary(id=row.id, kind=row.kind, created=row.created),
        )
        for row in read_rows(connection, identities)
    }
    return [results[identity] for identity in identities]


def rows_beginning(connection: sa.Connection, prefix: str) -> "Sequence[sa.Row[Any]]":
    """Rows of `summaries` whose id begins so; else one row for each circuit whose hash does.

    Of a circuit it is its own row, or the audit that found it, or the newest result about it.
    """

    def begins(column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.and_(column >= prefix, column < prefix + "g")  # a range the index knows

    query = sa.select(SUMMARIES).where(begins(SUMMARIES.c.id)).order_by(SUMMARIES.c.id)
    if rows := connection.execute(query.limit(MOST_NAMED)).all():
        return rows
    hashes = sa.select(SUMMARIES.c.circuit).where(begins(SUMMARIES.c.circuit)).distinct().limit(MOST_NAMED)
    holds = sa.case((SUMMARIES.c.kind == "circuit", 0), (SUMMARIES.c.kind == "audit", 1), else_=2)
    newest = (holds, SUMMARIES.c.created.desc(), SUMMARIES.c.id)
    # One result of each circuit: several are as ambiguous as several ids.
    return [
        connection.execute(
            sa.select(SUMMARIES).where(SUMMARIES.c.circuit == each).order_by(*newest).limit(1)
        ).one()
        for each in connection.scalars(hashes).all()
    ]


def check_ids(identities: Iterable[Any]) -> list[str]:
    """The ids of rows, if they are ids: a damaged page of SQLite may hold anything in a column."""
    found = list(identities)
    if not all(isinstance(each, str) for each in found):
        raise FileFormatError("a row of the results store was damaged: it has no id; restore the database")
    return found


def read_rows(connection: sa.Connection, identities: Sequence[str]) -> "Iterator[sa.Row[Any]]":
    """Rows of `results` of the given ids, in the order of the ids."""
    ordered = sorted(identities)
    for start in range(0, len(ordered), CHUNK):
        chunk = RESULTS.c.id.in_(ordered[start : start + CHUNK])
        for row in connection.execute(sa.select(RESULTS).where(chunk).order_by(RESULTS.c.id)):
            if not (isinstance(row.payload, dict) and isinstance(row.provenance, dict)):
                raise FileFormatError(
                    f"result {row.id} was damaged: its payload or provenance is not a table; `assay store "
                    "verify` says what else is wrong"
                )
            yield row


def methods_of(connection: sa.Connection, rows: "Sequence[sa.Row[Any]]") -> dict[str, str | None]:
    """The methods of rows of `summaries`, by id: their own, or of a measurement the one of its circuit."""
    asked = [row for row in rows if row.kind == "measurement" and row.method is None and row.circuit]
    circuits = sorted({row.circuit for row in asked})
    first: dict[tuple[str, str, str], str] = {}
    for start in range(0, len(circuits), CHUNK):
        for row in connection.execute(first_methods(circuits[start : start + CHUNK])):
            first[row.circuit, row.model, row.task] = row.method
    inherited = {row.id: first.get((row.circuit, row.model or "", row.task or "")) for row in asked}
    return {row.id: row.method or inherited.get(row.id) for row in rows}


def summaries_of(connection: sa.Connection, identities: Sequence[str]) -> dict[str, ResultSummary]:
    """Summaries by id, those that are there."""
    summaries = {}
    for start in range(0, len(identities), CHUNK):
        query = sa.select(SUMMARIES).where(SUMMARIES.c.id.in_(identities[start : start + CHUNK]))
        for row in connection.execute(query):
            summaries[row.id] = ResultSummary(**row._mapping)
    return summaries


def contents_of(connection: sa.Connection, identities: Sequence[str]) -> dict[str, dict[str, str]]:
    """Array names and content hashes by result."""
    contents: dict[str, dict[str, str]] = {identity: {} for identity in identities}
    for start in range(0, len(identities), CHUNK):
        chunk = identities[start : start + CHUNK]
        query = sa.select(ARRAYS).where(ARRAYS.c.result.in_(chunk)).order_by(ARRAYS.c.name)
        for row in connection.execute(query):
            contents[row.result][row.name] = row.content
    return contents

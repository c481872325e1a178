"""A store as a whole: the hash of its content, and what is wrong with it."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from assay.core.errors import FileFormatError, InputError
from assay.core.record import MACHINE, canonical_json, plain, record_id
from assay.store.arrays import read_array
from assay.store.database import Database
from assay.store.reading import CHUNK, StoredResult, check_ids, results_of
from assay.store.tables import RESULTS, SUMMARIES


_NOT_CONTENT = frozenset({"machine", "seconds", "created"})  # facts of a run, wherever they are in a payload


def digest_of(database: Database, directory: Path, kinds: Iterable[str] | None) -> str:
    """SHA-256 over all results, see `Store.digest`."""
    hashed = hashlib.sha256()
    for result in every_result(database, directory, kinds):
        hashed.update(content_of(result) + b"\n")
    return hashed.hexdigest()


def every_result(
    database: Database, directory: Path, kinds: Iterable[str] | None = None
) -> Iterator[StoredResult]:
    """All results in the order of their ids, some at a time."""
    for identities in _chunks(database, kinds):
        yield from _results(database, directory, identities)


def content_of(result: StoredResult) -> bytes:
    """A result less the facts of its run: the same for results that say the same."""
    provenance = {key: value for key, value in result.provenance.items() if key != MACHINE}
    payload = _content(plain(result.payload))
    content = [result.id, result.kind, provenance, payload, result.arrays.hashes]
    return canonical_json({"result": content}).encode("utf-8", "surrogatepass")


def problems_of(database: Database, directory: Path) -> list[str]:
    """One line per problem, see `Store.verify`."""
    problems: list[str] = []
    arrays: dict[str, str] = {}  # problem of each file by its hash
    for result in _readable(database, directory, problems):
        about = f"{result.id} ({result.kind})"
        try:
            same = record_id(result.kind, result.provenance) == result.id
        except (InputError, UnicodeEncodeError):  # what `put` refuses
            same = False
        if not same:
            problems.append(f"{about}: its provenance was changed and does not give this id")
        for name, content in result.arrays.hashes.items():
            if content not in arrays:
                try:
                    read_array(directory, content)
                    arrays[content] = ""
                except FileFormatError as error:
                    arrays[content] = str(error)
            if arrays[content]:
                problems.append(f"{about}: array {name!r}: {arrays[content]}")
    return problems + database.read(_without_summary)


def _readable(database: Database, directory: Path, problems: list[str]) -> Iterator[StoredResult]:
    """Every result that can be read; a line for each of the others is added to the problems."""
    for identities in _chunks(database):
        try:
            yield from _results(database, directory, identities)
        except FileFormatError:
            for identity in identities:
                try:
                    results = _results(database, directory, [identity])
                except FileFormatError as error:
                    problems.append(f"{identity}: {error}")
                else:
                    yield from results


def _results(database: Database, directory: Path, identities: list[str]) -> list[StoredResult]:
    return database.read(lambda connection: results_of(connection, directory, identities))


def _chunks(database: Database, kinds: Iterable[str] | None = None) -> Iterator[list[str]]:
    """Ids of all results in order, some at a time: one put meanwhile may be missed, none is changed."""
    everything = sa.select(RESULTS.c.id).order_by(RESULTS.c.id).limit(CHUNK)
    if kinds is not None:
        everything = everything.where(RESULTS.c.kind.in_(sorted(set(kinds))))
    last = ""
    while True:
        query = everything.where(RESULTS.c.id > last)

        def read(connection: sa.Connection, query: sa.Select[Any] = query) -> list[str]:
            return check_ids(connection.execute(query).scalars())

        identities = database.read(read)
        if not identities:
            return
        yield identities
        last = identities[-1]


def _without_summary(connection: sa.Connection) -> list[str]:
    """Results without a summary or the other way round."""
    joined = RESULTS.outerjoin(SUMMARIES, SUMMARIES.c.id == RESULTS.c.id)
    without = sa.select(RESULTS.c.id, RESULTS.c.kind).select_from(joined).where(SUMMARIES.c.id.is_(None))
    return [
        f"{row.id} ({row.kind}): it has no summary, so searches cannot find it; put it again into a new store"
        for row in connection.execute(without)
    ]


def _content(value: object) -> object:
    """A payload less the facts of the run."""
    if isinstance(value, dict):
        return {key: _content(inner) for key, inner in value.items() if key not in _NOT_CONTENT}
    if isinstance(value, list):
        return [_content(inner) for inner in value]
    return value

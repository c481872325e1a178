"""Results leave a store, or come from another one, whole or not at all."""

import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError, writing
from assay.core.record import record_id
from assay.store.arrays import array_path, read_array
from assay.store.leftovers import lock_arrays
from assay.store.reading import CHUNK, StoredResult
from assay.store.tables import ARRAYS, RESULTS, SUMMARIES


NAMED = 10  # ids in a message
_ID = re.compile(r"\b[0-9a-f]{16}\b")


def referrers_of(connection: sa.Connection, identities: Collection[str]) -> dict[str, set[str]]:
    """Which other results refer to these: the id is in their record, or is that of their circuit.

    Returns:
        Id -> ids of the results that refer to it; only those that have any.
    """
    removed, referrers = set(identities), dict[str, set[str]]()
    texts = [sa.cast(column, sa.Text) for column in (RESULTS.c.payload, RESULTS.c.provenance)]
    query = sa.select(RESULTS.c.id, *texts)
    with closing(connection.execute(query, execution_options={"yield_per": CHUNK})) as rows:
        for identity, *records in rows:
            named = removed.intersection(*[_ID.findall(" ".join(map(str, records)))])
            for each in named if identity not in removed else ():
                referrers.setdefault(each, set()).add(identity)
    circuits = sa.select(SUMMARIES.c.id, SUMMARIES.c.circuit, SUMMARIES.c.kind)
    about = connection.execute(circuits.where(SUMMARIES.c.circuit.is_not(None))).all()
    for row in about:
        if row.id in removed and row.kind == "circuit":
            for other in about:
                if other.circuit == row.circuit and other.kind != "circuit" and other.id not in removed:
                    referrers.setdefault(row.id, set()).add(other.id)
    return referrers


def remove_rows(connection: sa.Connection, identities: Sequence[str], *, force: bool) -> None:
    """Remove results in one transaction; what their arrays leave is for `remove_files`.

    Raises:
        InputError: If other results refer to one of them, unless forced.
    """
    referrers = {} if force else referrers_of(connection, identities)
    if referrers:
        identity, others = min(referrers.items())
        raise InputError(
            f"{identity} cannot be removed, because {listed(sorted(others))} refer to it. Remove these too, "
            "or pass --force"
        )
    for start in range(0, len(identities), CHUNK):
        chunk = identities[start : start + CHUNK]
        for column in (ARRAYS.c.result, SUMMARIES.c.id, RESULTS.c.id):
            connection.execute(sa.delete(column.table).where(column.in_(chunk)))


def remove_files(connection: sa.Connection, directory: Path, contents: Iterable[str]) -> None:
    """Remove files of arrays that no result names any more; nothing is stored meanwhile.

    Raises:
        OutputError: If a file cannot be removed. It harms nothing: `assay store gc` finds it.
    """
    lock_arrays(connection)
    named = set(connection.scalars(sa.select(ARRAYS.c.content)))
    for content in sorted(set(contents) - named):
        path = array_path(directory, content)
        with writing(f"remove {path}"):
            path.unlink(missing_ok=True)


def copy_array(source: Path, target: Path, content: str) -> str:
    """Copy the file of an array, its bytes checked, unless it is there; returns its hash.

    Raises:
        FileFormatError: If the file of the source is missing or damaged.
        OutputError: If it cannot be written.
    """
    try:
        read_array(target, content)
    except FileFormatError:
        path = array_path(target, content)
        with writing(f"make {path.parent} for an array"):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, read_array(source, content))
    return content


def check_identity(result: StoredResult) -> None:
    """Refuse a result whose provenance was changed after it was stored.

    Raises:
        FileFormatError: With its id.
    """
    if record_id(result.kind, result.provenance) != result.id:
        raise FileFormatError(f"{result.id} was changed after it was stored: its provenance gives another id")


def listed(identities: Sequence[str]) -> str:
    """Ids in a message."""
    more = f" and {len(identities) - NAMED} more" if len(identities) > NAMED else ""
    return ", ".join(identities[:NAMED]) + more

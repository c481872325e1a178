"""Results as Parquet, for DuckDB, Polars and pandas."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from assay.circuits import write_atomically
from assay.core.errors import InputError, writing
from assay.store.about import COLUMNS, COUNTS, NUMBERS, ResultSummary
from assay.store.reading import CHUNK
from assay.store.results import Store
from assay.store.where import DOCUMENTS


def export_results(
    store: Store, path: str | os.PathLike[str], kind: str | None = None, where: str | Iterable[str] = ()
) -> dict[Path, int]:
    """Write results as Parquet, a row each: the columns of a summary, `provenance` and `payload` as JSON.

    Args:
        store: Where they are.
        path: A `.parquet` file for all of them, or a directory for a file per kind.
        kind: Only results of this kind.
        where: Conditions as `Store.query` has them.

    Returns:
        The files written, each whole or not at all, with their numbers of rows.

    Raises:
        InputError: If the path is another kind of file, or there is nothing to export.
        OutputError: If a file cannot be written.
        MissingExtraError: Without pyarrow.
    """
    path = Path(path)
    single = path.suffix == ".parquet"
    if not single and (path.is_file() or path.suffix):
        raise InputError(f"{path} is not a directory and does not end in .parquet; give one of the two")
    groups: dict[str, list[ResultSummary]] = {}
    for each in store.query(kind, where):
        groups.setdefault("" if single else each.kind, []).append(each)
    if not groups:
        raise InputError("nothing to export, because no result matches")
    folder = path.parent if single else path
    with writing(f"make {folder}", "choose another place"):
        folder.mkdir(parents=True, exist_ok=True)
    return {
        write_atomically(path if single else path / f"{name}.parquet", _parquet(store, found)): len(found)
        for name, found in groups.items()
    }


def _parquet(store: Store, summaries: Sequence[ResultSummary]) -> bytes:
    """A file of these results, in their order; their records are read some at a time."""
    from assay.analyses.subsets.parquet import pyarrow_modules

    arrow, parquet = pyarrow_modules()
    types = dict.fromkeys(NUMBERS, arrow.float64()) | dict.fromkeys(COUNTS, arrow.int64())
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in (*COLUMNS, *DOCUMENTS)])
    sink = arrow.BufferOutputStream()
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for start in range(0, len(summaries), CHUNK):
            chunk = summaries[start : start + CHUNK]
            rows = [
                {name: getattr(summary, name) for name in COLUMNS}
                | {name: json.dumps(getattr(result, name)) for name in DOCUMENTS}
                for summary, result in zip(chunk, store.results([each.id for each in chunk]), strict=True)
            ]
            writer.write_table(arrow.Table.from_pylist(rows, schema))
    return bytes(sink.getvalue().to_pybytes())

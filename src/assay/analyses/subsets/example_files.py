"""What is given of single examples beside their answers: ids to select among, embeddings, crossed facts."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets._columns import Coded, coded_column, crossed_column, numeric_names, plain_column
from assay.analyses.subsets.archive import naming_arrays
from assay.analyses.subsets.composition import coded_labels
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.header import ROLES
from assay.analyses.subsets.prevalence import LABEL
from assay.analyses.subsets.table_files import SUFFIXES, read_table
from assay.core.errors import FileFormatError, InputError
from assay.core.untrusted import load_npz, malformed


_OF_ENCODER = ("encoder", "embedding_from", "id_embedding_from")  # of a source


# ------------------------------------------------------------------------------------------------- ids


def read_places(path: Path, data: CorrectnessData, option: str) -> Places:
    """Places of the examples that a file names.

    Args:
        path: A table with a column `example_id`, or with the names in its first column, as `assay select
            --ids` writes; or a text file with a name per line.
        data: Where the examples are.
        option: What the file was given as, for errors.

    Raises:
        InputError: If names are not among the examples, with their number, or one is given twice; if the file
            names nothing, has rows without a name, or cannot be read as what its ending says.
    """
    known = data.example_ids.tolist()
    if path.suffix in SUFFIXES:
        try:
            frame = read_table(path, 0)
        except FileFormatError as error:
            raise InputError(f"--{option}: {error}") from error
        column = _id_column(frame) or next(iter(frame.columns), None)
        cells = None if column is None else frame[column]
        held = [] if cells is None else cells.astype(str).where(cells.notna(), "").tolist()
        names = [str(column), *held] if str(column) in known else held  # a list without a header
        if blank := sum(not name.strip() for name in names):
            raise InputError(
                f"--{option}: {path} has {blank:,} of {len(names):,} rows without a name in the column "
                f"{str(column)!r}; name every example"
            )
    else:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            raise InputError(f"--{option}: cannot read {path}: {error}") from error
        names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InputError(f"--{option}: {path} names no example; give one per line")
    lacking = "are not among the examples of the data"
    return _matched(names, known, f"--{option}: {path}", "examples that it names", lacking)


def _id_column(frame: Any) -> Any:
    """The column of a table that names examples, by the usual names."""
    return next((name for name in ROLES["example"] if name in frame.columns), None)


def _matched(names: Sequence[str], known: Sequence[str], where: str, what: str, lacking: str) -> Places:
    """The place of each name among the known ones; an error counts those without."""
    place = {name: at for at, name in enumerate(known)}
    for listed in (names, known):
        name, n = Counter(listed).most_common(1)[0]
        if n > 1:
            raise InputError(f"{where} names the example {name!r} more than once; name it once")
    if missing := [name for name in names if name not in place]:
        raise InputError(
            f"{where}: {len(missing):,} of the {len(names):,} {what} {lacking}, the first is {missing[0]!r}. "
            f"There the first is {known[0]!r}; give the same ids"
        )
    return np.array([place[name] for name in names], dtype=np.int64)


# ------------------------------------------------------------------------------------------ embeddings


def read_embeddings(path: Path) -> tuple[list[str] | None, dict[str, np.ndarray]]:
    """Names of examples, where a file has them, and their embeddings.

    Args:
        path: `.npz` of `embedding`, `id_embedding` or both and, if known, `example_id`, as in archives;
            `.npy` of the embeddings alone; or a table with a column of names (`example_id`) and either a
            column `embedding` of lists or a column per number.

    Raises:
        FileFormatError: If it is none of these, or not rows of one or more numbers, one per name.
    """
    with malformed(path, "a file of embeddings: .npz, .npy or a table with a column example_id"):
        if not path.is_file():
            raise InputError(f"{path} is not a file; give embeddings as .npz, .npy or a table")
        names, arrays = _named_rows(path)
        for name, given in arrays.items():
            rows = arrays[name] = np.asarray(given, np.float32)
            if rows.ndim != 2 or not rows.size:
                raise FileFormatError(
                    f"{path}: {name!r} has shape {rows.shape}; expected one or more rows of numbers"
                )
        n = len(arrays.get("embedding", names or ()))
        if names is not None and len(names) != n:
            raise FileFormatError(f"{path}: 'example_id' has {len(names)} names for {n} rows; name each row")
    return names, arrays


def _named_rows(path: Path) -> tuple[list[str] | None, dict[str, Any]]:
    """Names and embeddings of a file, unchecked."""
    if path.suffix == ".npy":  # mapped: a size that the file only declares is not allocated
        return None, {"embedding": np.array(np.load(path, mmap_mode="r", allow_pickle=False), np.float32)}
    if path.suffix == ".npz":
        arrays = load_npz(path)
        kinds = ("embedding", "id_embedding")
        found: dict[str, Any] = {name: arrays[name] for name in kinds if name in arrays}
        if not found:
            raise FileFormatError(f"{path} holds {', '.join(arrays)}; expected an array 'embedding'")
        if (names := arrays.get("example_id")) is None:
            return None, found
        if names.ndim != 1:
            raise FileFormatError(f"{path}: 'example_id' has shape {names.shape}; give one name per row")
        return names.astype(str).tolist(), found
    frame = read_table(path)
    if (column := _id_column(frame)) is None:
        raise FileFormatError(f"{path} has no column 'example_id'; name the column of examples so")
    rest = frame.drop(columns=column)
    held = np.stack(rest["embedding"].tolist()) if "embedding" in rest else rest.to_numpy()
    return frame[column].astype(str).tolist(), {"embedding": held}


def with_embeddings(
    data: CorrectnessData,
    embeddings: Path | None,
    id_embeddings: Path | None,
) -> CorrectnessData:
    """The data with embeddings from files, for the distance baseline and `example_holdout`.

    Args:
        data: The examples. Embeddings that they have, of both kinds, give way to those of `embeddings`.
        embeddings: Of the examples, matched by name; a file without names must hold all of them in order.
        id_embeddings: Of in-distribution examples, by the same encoder, if not in the file of the others: its
            array `id_embedding`, else `embedding`.

    Raises:
        InputError: If an example has no embedding, a row is zero where there are both kinds, or widths differ
            (`ShapeError`).
        FileFormatError: As `read_embeddings`.
    """
    if embeddings is None:
        if id_embeddings is not None and data.embedding is None:
            raise InputError(
                "--id-embeddings needs the embeddings of the examples to select from; give --embeddings or "
                "--encoder"
            )
        if id_embeddings is None:
            return data
    arrays: dict[str, Any] = {}
    notes = list(data.source.get("notes", ()))
    if embeddings is not None:
        names, found = read_embeddings(embeddings)
        if "embedding" not in found:
            raise InputError(f"{embeddings} has no array 'embedding'; give its rows by --id-embeddings")
        arrays |= found
        if names is not None:
            lacking = "have no embedding there"
            where = f"--embeddings: {embeddings}"
            places = _matched(data.example_ids.tolist(), names, where, "examples of the data", lacking)
            arrays["embedding"] = arrays["embedding"][places]
        told = "by name" if names is not None else "in the order of the examples, as the file has no names"
        if names is not None and (unused := len(names) - data.n_examples):
            told += f"; {unused:,} of its {len(names):,} rows are of no example of the data and not used"
        notes.append(f"embeddings of {embeddings.name} are matched {told}")
        data = without_embeddings(data)
    if id_embeddings is not None:
        _, found = read_embeddings(id_embeddings)
        arrays["id_embedding"] = found["id_embedding" if "id_embedding" in found else "embedding"]
    named = f"the data with {id_embeddings}" if embeddings is None else embeddings
    with naming_arrays(named, id_embedding=id_embeddings):
        described = CorrectnessData.of(data, **arrays)
    return replace(described, source={**data.source, "notes": notes})


def without_embeddings(data: CorrectnessData) -> CorrectnessData:
    """The data without embeddings, and without what their source tells of the encoder."""
    source = {name: value for name, value in data.source.items() if name not in _OF_ENCODER}
    return replace(data, embedding=None, id_embedding=None, source=source)


def rows_digest(rows: np.ndarray) -> str:
    """16 hex digits of the numbers of an embedding."""
    return hashlib.sha256(f"{rows.shape}".encode() + np.ascontiguousarray(rows).tobytes()).hexdigest()[:16]


def made_from(source: Mapping[str, Any], name: str, rows: np.ndarray) -> str | None:
    """Hash of what the array `name` of data is a function of, if an encoder of this package made it.

    None for rows that were given, and for rows other than those that the encoder made.
    """
    origin, _, digest = str(source.get(f"{name}_from", "")).partition(" ")
    return origin if digest and rows_digest(rows) == digest else None


# --------------------------------------------------------------------------------------- crossed facts


def with_crossed(data: CorrectnessData, crossed: Sequence[str]) -> CorrectnessData:
    """The data with combinations of facts as facts of their own, `sex x age` from `sex,age`.

    Args:
        data: With facts or classes (`label`).
        crossed: Names of two or more categorical facts each, separated by commas.

    Raises:
        InputError: For an unknown or numeric fact, one alone, or more than 1,000 combinations.
    """
    meta = {name: plain_column(column) for name, column in data.meta.items()}
    means = numeric_names(meta, None)
    coded = {name: coded_column(column) for name, column in meta.items() if name not in means}
    if data.labels is not None:
        coded[LABEL] = Coded(*coded_labels(data.labels, data.label_names))
    if not coded:
        raise InputError("--cross needs facts of the examples; give them by --facts or --examples")
    columns = dict(data.meta)
    for text in crossed:
        names = [each.strip() for each in text.split(",")]
        if len(set(names)) < 2:
            raise InputError(f"--cross is {text!r}; give two or more different facts, e.g. sex,age")
        together = crossed_column(names, coded)
        columns[" x ".join(names)] = np.array(together.names)[together.codes]
    return replace(data, meta=columns)

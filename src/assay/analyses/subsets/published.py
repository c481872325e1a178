"""The authors' released selections as data: rankings, example ids, classes, and whose ids can be trusted."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets.consistency import SelectionConsistency, selection_consistency
from assay.core.errors import AssayWarning, FileFormatError, InputError
from assay.core.untrusted import load_npz, malformed


_LARGEST = 100_000_000  # examples of a pool
_NEEDED = ("ids", "index", "labels", "offsets", "score", "sizes", "universe")
_CORRECTION = "corrected_of_published"


@dataclass(frozen=True, kw_only=True, eq=False)
class PublishedSelections:
    """The released rankings of one data set, one for each size.

    Attributes:
        name: Of the data set, from the file name.
        sizes: Ascending.
        rankings: For each size, positions in `ids`, most harmful first.
        scores: For each size, the solver's relaxed membership of these examples, in (0, 1).
        ids: `class/file` of each example that is listed.
        labels: Class of each, as a code.
        label_names: Class names, by code.
        n_examples: Size of the pool; more than `len(ids)` where only examples of some selection are listed.
        corrected: Whether the positions were mapped back to the selected examples. Where not, `ids` and
            `labels` belong to other examples than the selected ones, and only set algebra on the positions
            means anything.
    """

    name: str
    sizes: Int64[np.ndarray, " k"]
    rankings: tuple[Int64[np.ndarray, " _"], ...]
    scores: tuple[Float32[np.ndarray, " _"], ...]
    ids: np.ndarray
    labels: Int64[np.ndarray, " n"]
    label_names: tuple[str, ...]
    n_examples: int
    corrected: bool

    def ranking(self, size: int) -> Places:
        """The selection of one published size.

        Raises:
            InputError: A size that was not published.
        """
        places = np.flatnonzero(self.sizes == size)
        if not len(places):
            sizes = ", ".join(map(str, self.sizes.tolist()))
            raise InputError(f"{self.name} has no published selection of {size} examples; sizes: {sizes}")
        return self.rankings[int(places[0])]

    def consistency(self) -> SelectionConsistency:
        """Overlap of the selections over their sizes (Eq. 6), whether or not they were corrected."""
        return selection_consistency(self.rankings, self.n_examples)


def load_published(
    path: str | PathLike[str],
    *,
    corrected: bool = True,
    pool: Sequence[str] | None = None,
    n_examples: int | None = None,
) -> PublishedSelections:
    """Read the authors' released selections: their CSV files, or an archive of them.

    The released file names do not belong to the selected examples: rows were shuffled on loading and not put
    back on export. Where the file holds the correction (`corrected_of_published`, PACS), positions are mapped
    to the selected examples. For CSV files the correction follows from the pool in the order of the rows of
    the prediction files: the example of column k is row p_k, p the permutation of `sample(random_state=0)`.

    Args:
        path: `.npz` with ids, labels, sizes, index, offsets, score and universe; or a folder of
            `selected_files_NAME_ENVS_ENV_SIZE.csv` of one data set.
        corrected: Apply the correction; False keeps the positions as published.
        pool: For CSV files: `class/file` of every example, in the order in which the models predicted them.
        n_examples: For CSV files without a pool: its size.

    Raises:
        FileFormatError: Not such a file, or one whose parts contradict each other.
        InputError: For CSV files, if neither the pool nor its size is given, or the pool repeats a name.

    Warns:
        AssayWarning: The file holds no correction, or it was not asked for: ids and labels belong to other
            examples than the selected ones.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884; repository olawalesalaudeen/OODSELECT.
    """
    file = Path(path)
    arrays = _released(file, pool, n_examples) if file.is_dir() else load_npz(file)
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise FileFormatError(
            f"{file} lacks {', '.join(missing)}; published selections hold {', '.join(_NEEDED)}"
        )
    with malformed(file, "an archive of published selections"):
        return _selections(file, arrays, corrected=corrected)


def _released(folder: Path, pool: Sequence[str] | None, n_examples: int | None) -> dict[str, np.ndarray]:
    """The CSV files of a folder as the arrays of an archive."""
    import pandas as pd

    files = sorted(folder.glob("selected_files_*.csv"), key=lambda file: int(file.stem.rpartition("_")[2]))
    if not files:
        raise FileFormatError(f"{folder} holds no selected_files_*_SIZE.csv; give the folder of one data set")
    if pool is None and n_examples is None:
        raise InputError(f"the files of {folder} do not tell how large the pool is; give pool or n_examples")
    with malformed(folder, "a folder of released selections of one data set"):
        lists = [pd.read_csv(file, usecols=["file_path", "label", "selection_score"]) for file in files]
        table = pd.concat(lists)
        names = table["file_path"].str.split("/").str[-2:].str.join("/")
        listed = np.unique(names.to_numpy(dtype=str))
        codes = dict(zip(names.str.partition("/")[0], table["label"], strict=True))
        ids = listed if pool is None else np.array(pool, dtype=str)
        folders = [name.partition("/")[0] for name in ids.tolist()]
        for folder_name in sorted(set(folders) - codes.keys()):  # no example of it was selected
            codes[folder_name] = max(codes.values(), default=-1) + 1
        place = {name: k for k, name in enumerate(ids.tolist())}
        if len(place) < len(ids):
            twice = pd.Series(ids)[pd.Series(ids).duplicated()].iloc[0]
            raise InputError(f"pool names {str(twice)!r} more than once; each name must be one example")
        if absent := [name for name in listed.tolist() if name not in place]:
            raise InputError(f"pool lacks {absent[0]!r} ({len(absent)} of {len(listed)} listed examples)")
        arrays = {
            "ids": ids,
            "labels": np.array([codes[name] for name in folders]),
            "index": np.array([place[name] for name in names]),
            "score": table["selection_score"].to_numpy(dtype=np.float32),
            "sizes": np.array([len(each) for each in lists]),
            "offsets": np.cumsum([0, *map(len, lists)]),
            "universe": np.array(n_examples or len(ids)),
        }
    if pool is not None:
        arrays[_CORRECTION] = np.random.RandomState(0).permutation(len(ids))
    return arrays


def _selections(file: Path, arrays: dict[str, np.ndarray], *, corrected: bool) -> PublishedSelections:
    sizes, offsets = arrays["sizes"].astype(np.int64), arrays["offsets"].astype(np.int64)
    ids, index = arrays["ids"], arrays["index"].astype(np.int64)
    correction = arrays.get(_CORRECTION)
    if correction is not None and not np.array_equal(np.sort(correction), np.arange(len(ids))):
        raise FileFormatError(f"{file}: {_CORRECTION} is not a permutation of the {len(ids)} ids")
    _check(file, sizes, offsets, index, arrays)
    if corrected and correction is not None:
        index = correction.astype(np.int64)[index]
    else:
        why = f"{file.name} holds no {_CORRECTION}" if correction is None else "corrected=False"
        warnings.warn(
            f"{why}: the published ids and labels do not match the selected examples; use the positions "
            "only for set operations",
            AssayWarning,
            stacklevel=3,
        )
    labels = arrays["labels"].astype(np.int64)
    return PublishedSelections(
        name=file.stem,
        sizes=sizes,
        rankings=tuple(np.split(index, offsets[1:-1])),
        scores=tuple(np.split(arrays["score"].astype(np.float32), offsets[1:-1])),
        ids=ids,
        labels=labels,
        label_names=_names(file, ids, labels),
        n_examples=int(arrays["universe"]),
        corrected=bool(corrected and correction is not None),
    )


def _check(
    file: Path,
    sizes: Places,
    offsets: Places,
    index: Int64[np.ndarray, " total"],
    arrays: dict[str, np.ndarray],
) -> None:
    """That the parts fit together."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    if not np.array_equal(offsets, ends) or len(index) != ends[-1] or len(arrays["score"]) != len(index):
        raise FileFormatError(
            f"{file}: sizes, offsets, index and score disagree: sizes add up to {ends[-1]}, index holds "
            f"{len(index)}, score {len(arrays['score'])}"
        )
    n = len(arrays["ids"])
    if len(arrays["labels"]) != n or not n <= int(arrays["universe"]) <= _LARGEST:
        raise FileFormatError(
            f"{file}: {n} ids, {len(arrays['labels'])} labels, a universe of {int(arrays['universe'])}; "
            f"expected one label for each id and a universe of at least as many and at most {_LARGEST:,}"
        )
    if len(index) and not 0 <= index.min() <= index.max() < n:
        raise FileFormatError(
            f"{file}: index runs from {index.min()} to {index.max()}, but there are {n} ids"
        )


def _names(file: Path, ids: np.ndarray, labels: Int64[np.ndarray, " n"]) -> tuple[str, ...]:
    """Class names by code, from the folder in the ids."""
    folders = np.array([str(each).partition("/")[0] for each in ids])
    codes, first = np.unique(labels, return_index=True)
    names = dict(zip(codes.tolist(), folders[first].tolist(), strict=True))
    if any(names[code] != folder for code, folder in zip(labels.tolist(), folders.tolist(), strict=True)):
        raise FileFormatError(f"{file}: a class code belongs to more than one folder in ids")
    return tuple(names.get(code, f"class {code}") for code in range(int(labels.max()) + 1))

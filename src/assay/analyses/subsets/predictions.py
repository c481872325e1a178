"""Prediction files of OODSelect's authors: one CSV per checkpoint, `domain,label,p_0,...,p_{C-1}`.

Rows carry no id, so files can only be aligned by position. The reader never reorders rows, and refuses files
whose out-of-distribution rows do not name the same labels and domains in the same order.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from assay.analyses.subsets._contents import gather_rows, must_pack
from assay.core.errors import AlignmentError, FileFormatError, InputError


if TYPE_CHECKING:
    import pandas as pd


Progress = Callable[[str, int, int], None]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

PATTERN = "global_step_*_predictions.csv"
_STEP = re.compile(r"global_step_(\d+)_predictions\.csv")
_DOMAIN = r"env(\d+)_(in|out)"
_SCORE = re.compile(r"p_(\d+)")
_ROWS = 8  # files whose answers wait to be packed together


def read_predictions(
    paths: Paths,
    *,
    ood_env: int | Sequence[int],
    id_envs: Sequence[int] | None = None,
    run_of: Callable[[Path], object] | None = None,
    family_of: Callable[[Path], object] | None = None,
    checkpoints: str | Sequence[int] = "last",
    example_ids: Sequence[object] | np.ndarray | None = None,
    label_names: Sequence[object] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Read prediction CSVs, one at a time, as one row of answers each.

    y_i is the share of right answers over all rows of `env<e>_out`, e in `id_envs`, pooled. Row i of the
    matrix says for each row of `env<t>_in` and `env<t>_out`, t the out-of-distribution environment, whether
    the largest score (the first of equals) is that of the label; several such environments are put side by
    side.

    Args:
        paths: A folder, searched for `global_step_<k>_predictions.csv` at any depth; or files and folders.
        ood_env: Environment that no model was trained on, or several, in the order of the examples.
        id_envs: Environments whose held-out part gives y. Default: all others in the first file.
        run_of: Training run of a file. Default: its folder.
        family_of: Architecture family of a file. Default: not known.
        checkpoints: `last` (one row per run, its highest step), `all`, or the steps to keep.
        example_ids: Unique names of the out-of-distribution rows in order. Default: `row_0`, ...
        label_names: Names of the classes.
        progress: Called with `read`, the files done and all files.

    Returns:
        Arguments of `CorrectnessData.of`: models in the order of their sorted paths, named by path and step
        below the common folder; the domain of each row as the column `domain`.

    Raises:
        FileFormatError: If a file is missing, cut off, or no such table; with the file and the row.
        AlignmentError: If the out-of-distribution rows of two files differ in number, label or domain.
        InputError: If no file is found, a score is NaN, or an environment is missing.

    Notes:
        The authors' loader shuffles the rows of every file the same way before it selects; published indices
        count those shuffled rows.
    """
    outside = tuple([int(ood_env)] if isinstance(ood_env, int | np.integer) else ood_env)
    files = _files(paths)
    root = Path(os.path.commonpath([file.parent for file in files]))
    runs = [str(run_of(file)) if run_of else _name(file.parent, root) for file in files]
    kept = _checkpoints(files, runs, checkpoints)
    files, runs = [files[place] for place in kept], [runs[place] for place in kept]
    if len(set(runs)) == 1 and run_of is None and checkpoints == "last":
        raise InputError(
            f"all files lie in {files[0].parent}, so they count as checkpoints of one run and only one row "
            "is left. Give each run a folder of its own, or checkpoints='all' (--checkpoints all); in "
            "Python, `run_of` may be a function from the path of a file to its run"
        )
    first = _read(files[0], outside, _id_environments(files[0], outside, id_envs))
    accuracies, counts = np.empty(len(files)), np.empty(len(files), dtype=np.int64)

    def blocks() -> Iterator[UInt8[np.ndarray, "rows n"]]:
        waiting: list[np.ndarray] = []
        for place, file in enumerate(files):
            answers = first if place == 0 else _read(file, outside, first.inside)
            _check_alignment(answers, file, first, files[0])
            accuracies[place], counts[place] = answers.id_accuracy, answers.n_id
            waiting.append(answers.correct)
            if progress is not None:
                progress("read", place + 1, len(files))
            if len(waiting) == _ROWS or place == len(files) - 1:
                yield np.stack(waiting)
                waiting.clear()

    n = len(first.labels)
    matrix = gather_rows(
        blocks(),
        len(files),
        n,
        pack=must_pack(len(files), n, what="the matrix"),
        named=lambda row, column: f"row {column} of {files[row]}",
    )
    return {
        "correct": matrix,
        "id_accuracy": accuracies,
        "groups": runs,
        "families": None if family_of is None else [str(family_of(file)) for file in files],
        "model_ids": [_name(file.parent, root, _step(file) or file.stem) for file in files],
        "example_ids": example_ids,
        "n_id": counts,
        "labels": first.labels,
        "label_names": label_names,
        "meta": {"domain": first.domains},
        "source": {
            "kind": "predictions",
            "n_files": len(files),
            "id_envs": list(first.inside),
            "ood_env": list(outside),
            "checkpoints": checkpoints if isinstance(checkpoints, str) else list(checkpoints),
        },
    }


# ----------------------------------------------------------------------------------------------- files


def _files(paths: Paths) -> list[Path]:
    """Files in the order of their sorted paths."""
    files: list[Path] = []
    for each in map(Path, [paths] if isinstance(paths, str | os.PathLike) else paths):
        if not each.exists():
            raise FileFormatError(f"{each} is not a file or a folder; give prediction files")
        inside = list(each.rglob(PATTERN)) if each.is_dir() else [each]
        if not inside:
            raise InputError(f"{each} does not contain a file named {PATTERN}, at any depth")
        files += inside
    if not files:
        raise InputError("prediction files are missing; give at least one")
    files.sort(key=lambda path: path.as_posix())
    for one, after in itertools.pairwise(files):
        if one == after:
            raise InputError(f"{one} is given twice; each file must be a different model")
    return files


def _step(file: Path) -> str | None:
    match = _STEP.fullmatch(file.name)
    return match.group(1) if match else None


def _name(folder: Path, root: Path, *more: str) -> str:
    return "/".join([*folder.relative_to(root).parts, *more]) or folder.name


def _checkpoints(files: list[Path], runs: list[str], wanted: str | Sequence[int]) -> list[int]:
    """Places of the files to read."""
    if wanted == "all":
        return list(range(len(files)))
    if isinstance(wanted, str) and wanted != "last":
        raise InputError(f"checkpoints is {wanted!r}; expected 'last', 'all', or the steps to keep")
    for file, run in zip(files, runs, strict=True):
        if _step(file) is None and (wanted != "last" or runs.count(run) > 1):
            raise InputError(
                f"the name of {file} does not match {PATTERN}, so its training step is not known; rename "
                "it, or use checkpoints='all'"
            )
    steps = [int(_step(file) or 0) for file in files]
    if wanted == "last":
        by_run: dict[str, list[int]] = {}
        for place, run in enumerate(runs):
            by_run.setdefault(run, []).append(place)
        return sorted(max(places, key=steps.__getitem__) for places in by_run.values())
    if missing := sorted(set(map(int, wanted)) - set(steps)):
        raise InputError(f"no file has step {missing[0]}; available steps: {sorted(set(steps))[:20]}")
    return [place for place, step in enumerate(steps) if step in set(wanted)]


# ----------------------------------------------------------------------------------------------- one file


class _Answers(NamedTuple):
    """What is kept of a file."""

    inside: tuple[int, ...]
    id_accuracy: float
    n_id: int
    labels: Int64[np.ndarray, " n"]
    domains: np.ndarray
    correct: UInt8[np.ndarray, " n"]


def _id_environments(file: Path, outside: tuple[int, ...], inside: Sequence[int] | None) -> tuple[int, ...]:
    if not outside:
        raise InputError("ood_env is empty; name an environment that none of the models was trained on")
    if len(set(outside)) < len(outside):
        raise InputError(f"ood_env is {list(outside)}; an environment is listed twice")
    if inside is None:
        others = sorted(set(_table(file)["environment"].tolist()) - set(outside))
        if not others:
            raise InputError(f"{file} has no environment besides {list(outside)}, so none is in distribution")
        return tuple(others)
    if shared := sorted(set(inside) & set(outside)):
        raise InputError(
            f"environment {shared[0]} is among id_envs and ood_env; it is either in or out of distribution"
        )
    if not inside:
        raise InputError("id_envs is empty; name the environments whose held-out part gives the accuracy")
    return tuple(dict.fromkeys(inside))


def _read(file: Path, outside: tuple[int, ...], inside: tuple[int, ...]) -> _Answers:
    import pandas as pd

    table = _table(file)
    environments, listed = table["environment"], ", ".join(sorted(table["domain"].unique()))
    within = environments.isin(inside) & (table["part"] == "out")
    for environment in inside:
        if not (within & (environments == environment)).any():
            raise InputError(
                f"{file} lacks rows of env{environment}_out, though {environment} is among id_envs; it has "
                f"{listed}"
            )
    for environment in outside:
        if not (environments == environment).any():
            raise InputError(
                f"{file} lacks rows of env{environment}_in or env{environment}_out, though ood_env is "
                f"{environment}; it has {listed}"
            )
    chosen = pd.concat([table[environments == environment] for environment in outside])
    return _Answers(
        inside=inside,
        id_accuracy=float(table["right"][within].mean()),
        n_id=int(within.sum()),
        labels=chosen["label"].to_numpy(),
        domains=chosen["domain"].to_numpy().astype(str),
        correct=chosen["right"].to_numpy().astype(np.uint8),
    )


def _table(file: Path) -> "pd.DataFrame":
    """One file: domain, environment and part (`in` or `out`), label, and whether the answer is right."""
    import pandas as pd

    try:
        header = pd.read_csv(file, nrows=0, index_col=False).columns.tolist()
        classes = _classes(file, header)
        frame = pd.read_csv(file, usecols=["domain", "label", *classes], index_col=False)
    except FileFormatError:
        raise
    except (OSError, ValueError) as error:  # pandas' parser errors are of these kinds
        raise FileFormatError(f"cannot read {file} as a table of predictions: {error}") from error
    if not len(frame):
        raise FileFormatError(f"{file} has no rows")
    domains = frame["domain"].astype(object).fillna("").astype(str)
    parts = domains.str.extract(f"^{_DOMAIN}$")
    if len(bad := np.flatnonzero(parts[0].isna())):
        raise FileFormatError(
            f"{file}, row {bad[0] + 1}: the domain is {domains.iloc[bad[0]]!r}; expected env<number>_in or "
            "env<number>_out"
        )
    labels = _numbers(file, frame["label"])
    if len(bad := np.flatnonzero((labels != np.floor(labels)) | (labels < 0) | (labels >= len(classes)))):
        raise FileFormatError(
            f"{file}, row {bad[0] + 1}: the label is {labels[bad[0]]:g}; with columns p_0 to "
            f"p_{len(classes) - 1} expected a whole number from 0 to {len(classes) - 1}"
        )
    scores = np.stack([_numbers(file, frame[name]) for name in classes], axis=1)
    return pd.DataFrame(
        {
            "domain": domains,
            "environment": parts[0].astype(np.int64),
            "part": parts[1],
            "label": labels.astype(np.int64),
            "right": scores.argmax(axis=1) == labels,
        }
    )


def _classes(file: Path, header: list[str]) -> list[str]:
    """The score columns in the order of their classes."""
    n_scores = sum(_SCORE.fullmatch(name) is not None for name in header)
    classes = [f"p_{place}" for place in range(max(2, n_scores))]
    missing = [name for name in ("domain", "label", *classes) if name not in header]
    if missing:
        raise FileFormatError(
            f"{file} lacks the column {missing[0]!r}; expected domain, label, p_0, p_1, ...; it has "
            f"{', '.join(map(str, header[:20]))}"
        )
    return classes


def _numbers(file: Path, column: "pd.Series[Any]") -> Float64[np.ndarray, " rows"]:
    """A column as numbers; row 1 is the first below the header."""
    import pandas as pd

    numbers: np.ndarray = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(np.isnan(numbers))
    if len(bad):
        cell = column.iloc[int(bad[0])]
        raise FileFormatError(
            f"{file}, row {bad[0] + 1}: {column.name} is {repr(cell) if isinstance(cell, str) else cell}, "
            f"not a number ({len(bad)} such rows). A missing or NaN score has no largest class: repair the "
            "file or remove it"
        )
    return numbers


def _check_alignment(answers: _Answers, file: Path, first: _Answers, first_file: Path) -> None:
    why = "rows have no id, so every file must hold the same examples in the same order"
    n, n_first = len(answers.labels), len(first.labels)
    if n != n_first:
        raise AlignmentError(f"{file} has {n} rows out of distribution, {first_file} has {n_first}; {why}")
    for name, one, other in (
        ("label", answers.labels, first.labels),
        ("domain", answers.domains, first.domains),
    ):
        if len(different := np.flatnonzero(one != other)):
            row = int(different[0])
            raise AlignmentError(
                f"row {row + 1} out of distribution of {file} has the {name} {one[row]}, in {first_file} it "
                f"is {other[row]} ({len(different)} rows differ). {why}: remove the file, or sort its rows "
                "as in the others"
            )

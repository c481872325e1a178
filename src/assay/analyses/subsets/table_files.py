"""Files of answers as one table: any separator, one file per model, prediction archives of WILDS."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.analyses.subsets.cells import same_class
from assay.analyses.subsets.header import ANSWERS, ROLES
from assay.analyses.subsets.sample_logs import AnswerFrame, inspect_answers, lm_eval_answers, unlogged
from assay.core.errors import AlignmentError, FileFormatError, InputError, MissingExtraError
from assay.core.parquet import read_parquet_file
from assay.core.untrusted import MALFORMED, parse_json


if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")
_SEPARATORS = ",;\t|"
_SAMPLE = 20  # lines that tell the separator
_DECIMAL_COMMA = re.compile(r"(^|;)\s*-?\d+,\d+\s*(;|$)")
_WILDS = re.compile(r".+_split:(?P<split>.+)_seed:(?P<seed>.+)_epoch:(?P<epoch>.+)_pred\.csv")


def read_table(path: Path, *names: str | int | None) -> "pd.DataFrame":
    """A text file with a header, whatever separates its cells; a Parquet file; or an object of JSON per line.

    Args:
        path: The file.
        *names: Columns that name things, by name or place: their cells are text, `00270` is not 270. So are
            those of the usual names of models, examples, runs and families, and of a first column where
            neither models nor examples are there.

    Raises:
        FileFormatError: If it is none of these, or two columns have one name.
    """
    import pandas as pd

    frame: pd.DataFrame
    try:
        if path.suffix == ".parquet":
            frame = read_parquet_file(path, extra="parquet").to_pandas()
            return frame
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8-sig") as lines:
                frame = pd.DataFrame([parse_json(line) for line in lines if line.strip()])
            return frame
        layout = _layout(path)
        columns = pd.read_csv(path, nrows=0, **layout).columns.tolist()
        known = {*ROLES["model"], *ROLES["example"]}
        texts = {*names, *known, *ROLES["group"], *ROLES["family"]}
        texts |= {columns[at] for at in names if isinstance(at, int) and at < len(columns)}
        if not known & set(columns):
            texts |= set(columns[:1])
        frame = pd.read_csv(path, dtype={name: str for name in columns if name in texts}, **layout)
        # In a column of names only an empty cell is missing; NA and None are names.
        if lacking := [name for name in columns if name in texts and frame[name].isna().any()]:
            strict: dict[str, Any] = {"dtype": str, "keep_default_na": False, "na_values": [""]}
            frame[lacking] = pd.read_csv(path, usecols=lacking, **strict, **layout)[lacking]
        return frame
    except (FileFormatError, MissingExtraError):
        raise
    # Pandas' own are ValueErrors, those of pyarrow RuntimeErrors too.
    except (OSError, MemoryError, csv.Error, *MALFORMED) as error:
        raise FileFormatError(f"cannot read {path} as a table: {error}") from error


def _layout(path: Path) -> dict[str, Any]:
    """Separator and decimal sign: the separator with the most columns of which every line has as many."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = [line for line, _ in zip(file, range(_SAMPLE), strict=False) if line.strip()]
    best, most = ",", 1
    for each in _SEPARATORS:
        widths = {len(row) for row in csv.reader(lines, delimiter=each)}
        if len(widths) == 1 and (width := widths.pop()) > most:
            best, most = each, width
    header = Counter(next(csv.reader(lines, delimiter=best), []))
    if twice := [name for name, n in header.items() if n > 1 and name]:
        raise FileFormatError(f"two columns of {path} are named {twice[0]!r}; names must be unique")
    decimal = "," if best == ";" and any(_DECIMAL_COMMA.search(line) for line in lines[1:]) else "."
    return {"sep": best, "decimal": decimal}


def read_answers(
    source: Path, columns: Mapping[str, str], truth: "pd.DataFrame | None", *names: str | None
) -> AnswerFrame:
    """The table that a file or a folder of files holds.

    Args:
        source: A table; or a folder of prediction files of WILDS, sample logs of lm-eval or inspect_ai, or
            tables of one model each, named by their paths.
        columns: Columns by role that the caller names.
        truth: What is known of the examples, for files that do not hold the true classes.
        *names: Further columns that hold names.

    Raises:
        FileFormatError: If nothing there can be read.
        AlignmentError: If files disagree about the examples.
    """
    texts = [*(columns.get(role) for role in ("model", "example", "group", "family")), *names]
    if (
        source.is_file()
        and source.suffix in (".csv", ".tsv", ".parquet")
        and not _WILDS.fullmatch(source.name)
    ):
        return AnswerFrame("frame", read_table(source, *texts))
    root = source if source.is_dir() else source.parent
    files = [source] if source.is_file() else sorted(each for each in source.rglob("*") if each.is_file())
    wanted = columns.get("correct") or columns.get("score")
    if predictions := [file for file in files if _WILDS.fullmatch(file.name)]:
        return _wilds(predictions, root, columns, truth)
    samples = [file for file in files if re.fullmatch(r"samples_.+\.jsonl", file.name)]
    results = [file for file in files if re.fullmatch(r"results_\d{4}-.+\.json", file.name)]
    logged = {file.parent for file in samples}
    empty = [file for file in results if file.parent not in logged]
    if empty and (samples or results == files):
        raise unlogged(empty, "lm_eval with --log_samples")
    if samples:
        return lm_eval_answers(samples, root, wanted)
    tables = [file for file in files if file.suffix in SUFFIXES]
    if logs := [file for file in files if file.suffix in (".eval", *(() if tables else (".json",)))]:
        return inspect_answers(logs, wanted)
    if tables:
        if source.is_file():
            return AnswerFrame("frame", read_table(source, *texts))
        return _file_per_model(tables, root, columns, texts)
    raise FileFormatError(
        f"{source} holds no answers; give tables ({', '.join(SUFFIXES)}), one per model, sample logs of "
        "lm-eval (samples_*.jsonl) or inspect_ai (.eval, .json), or prediction files of WILDS (*_pred.csv) "
        "or of OODSelect (global_step_K_predictions.csv)"
    )


def _column(columns: Mapping[str, str], role: str, there: Iterable[str], *more: str) -> str | None:
    """The column of a role in a file."""
    names = [columns[role]] if role in columns else [*ROLES[role], *more]
    return next((name for name in names if name in set(there)), None)


def _file_per_model(
    files: Sequence[Path], root: Path, columns: Mapping[str, str], texts: Sequence[str | None]
) -> AnswerFrame:
    """One table of all, with a column of models named by the paths."""
    import pandas as pd

    parts, by_place = [], {}
    for file in files:
        part = read_table(file, *texts)
        if _column(columns, "model", part.columns) is None:
            part.insert(0, columns.get("model", "model"), file.relative_to(root).with_suffix("").as_posix())
        if _column(columns, "example", part.columns) is None:
            part[columns.get("example", "example_id")] = [f"row_{place}" for place in range(len(part))]
            by_place[file] = len(part)
        parts.append(part)
    if by_place and (len(by_place) < len(files) or len(set(by_place.values())) > 1):
        first, n = next(iter(by_place.items()))
        other, m = next(((each, k) for each, k in by_place.items() if k != n), (files[-1], len(parts[-1])))
        raise AlignmentError(
            f"{first} has {n} rows without a column of examples, {other} has {m} rows; without names, rows "
            "are matched by place, so every file must hold the same examples in the same order. Name the "
            "column: --columns example=NAME"
        )
    for file, part in zip(files[1:], parts[1:], strict=True):
        if by_place and (name := _differing(parts[0], part, columns)) is not None:
            raise AlignmentError(
                f"{files[0]} and {file} have no column of examples and differ in {name!r}, so their rows "
                "cannot be matched by place. Name the column of examples, --columns example=NAME, or remove "
                f"{name!r} if it does not tell examples apart"
            )
    notes = ("rows of the files are matched by place",) if by_place else ()
    return AnswerFrame("a file per model", pd.concat(parts, ignore_index=True), notes=notes)


def _differing(one: "pd.DataFrame", other: "pd.DataFrame", columns: Mapping[str, str]) -> str | None:
    """A column, neither of answers nor the same in all rows of a file, that differs between two files."""
    answers = {columns.get(role) for role in ANSWERS}.union(*(ROLES[role] for role in ANSWERS))
    for name in other.columns.intersection(one.columns, sort=False):
        told = one[name], other[name]
        if name in answers or re.fullmatch(r"p_\d+", str(name)) or max(map(_n_values, told)) < 2:
            continue
        if (same_class(*told) == 0).any() or (told[0].isna() != told[1].isna()).any():
            return str(name)
    return None


def _n_values(column: "pd.Series[Any]") -> int:
    return column.astype(str).nunique()


def _wilds(
    files: Sequence[Path], root: Path, columns: Mapping[str, str], truth: "pd.DataFrame | None"
) -> AnswerFrame:
    """Predictions of WILDS, a class per line, beside the true classes of their splits."""
    import pandas as pd

    split, label = (
        None if truth is None else _column(columns, role, truth.columns, *more)
        for role, more in (("domain", ("split",)), ("label", ("y",)))
    )
    if truth is None or split is None or label is None:
        raise InputError(
            f"{files[0].name} holds predictions without true classes; give --examples FILE with a column of "
            "splits and one of classes, in the order of the data set: --columns domain=split,label=y"
        )
    named, epochs = _column(columns, "example", truth.columns), {_part(file, "epoch") for file in files}
    parts = []
    for file in files:
        known = truth[truth[split].astype(str) == _part(file, "split")]
        table = pd.read_csv(file, header=None)
        if table.shape != (len(known), 1):
            raise AlignmentError(
                f"{file} holds {table.shape[0]} rows of {table.shape[1]} numbers; expected one class for "
                f"each of the {len(known)} rows of the split {_part(file, 'split')!r} in --examples"
            )
        run = "/".join([*file.parent.relative_to(root).parts, _part(file, "seed")])
        places = [f"{_part(file, 'split')}/{place}" for place in range(len(known))]
        parts.append(
            known.assign(
                model=f"{run}/{_part(file, 'epoch')}" if len(epochs) > 1 else run,
                group=run,
                example_id=places if named is None else known[named],
                domain=_part(file, "split"),
                prediction=table[0].to_numpy(),
            )
        )
    told = {"model": "model", "example": "example_id", "domain": "domain", "label": label, "group": "group"}
    frame = pd.concat(parts, ignore_index=True)
    return AnswerFrame("WILDS", frame, told | {"prediction": "prediction"}, joined=True)


def _part(file: Path, name: str) -> str:
    found = _WILDS.fullmatch(file.name)
    return "" if found is None else found[name]

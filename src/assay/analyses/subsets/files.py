"""Files of answers: tables as programs write them, a file per model, sample logs of lm-eval."""

import csv
import gzip
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.analyses.subsets import predictions
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.tables import ROLES
from assay.core.errors import AlignmentError, FileFormatError, InputError, check_name
from assay.core.machine import free_memory
from assay.core.parquet import read_parquet_file
from assay.core.untrusted import malformed, parse_json


EACH_MODEL = "model"  # of groups or families: every model is one of its own
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".jsonl")
_MOST = 2_000_000_000  # bytes of a decoded table
_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A"]  # of cells
_SEPARATORS = ",;\t|"
_SAMPLE = 20  # lines that tell the separator
_DECIMAL_COMMA = re.compile(r"(^|;)\s*-?\d+,\d+\s*(;|$)")
_LOG = re.compile(r"samples_(?P<task>.+?)(_\d{4}-\d\d-\d\dT[-\d.:]+)?\.jsonl")
_METRICS = ("acc", "exact_match", "pass@1", "f1")  # of lm-eval, in this order


# ---------------------------------------------------------------------------------------------- tables


def read_table(path: Path, *, texts: Sequence[str | int] = ()) -> pd.DataFrame:
    """A text file with a header, whatever separates its cells; a Parquet file; or an object of JSON per line.

    Empty cells behind the last column are left out, as is a first line `sep=;`.

    Args:
        path: Ends in one of `SUFFIXES`.
        texts: Columns that name things, by name or place: their cells are text, `00270` is not 270, and only
            an empty one is missing. So are those of the usual names of models, examples, runs and families,
            and a first column where neither models nor examples are there.

    Raises:
        FileFormatError: If the file is none of these, is too large for the memory, or has a line that is not
            UTF-8, or is longer than the header.
    """
    most = min(_MOST, free_memory() // 4)
    try:
        with malformed(path, "a table"):
            if path.suffix == ".parquet":
                frame: pd.DataFrame = read_parquet_file(path, extra="parquet", most=most).to_pandas()
                return frame
            text = _text(path, most)
            if path.suffix == ".jsonl":
                return pd.DataFrame([parse_json(line) for line in text.split("\n") if line.strip()])
            return _csv_table(path, text, texts)
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error


def _text(path: Path, most: int) -> str:
    """The text of a file, unpacked."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise FileFormatError(
            f"{path} holds more than {most / 1e9:.1f} GB; split it over several files, or free memory"
        )
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FileFormatError(
            f"line {line} of {path} is not UTF-8 (byte {content[error.start]:#x}). Save the file as UTF-8"
        ) from None


def _csv_table(path: Path, text: str, texts: Sequence[str | int]) -> pd.DataFrame:
    lines = io.StringIO(text, newline="")
    sample = [line for line, _ in zip(lines, range(_SAMPLE), strict=False)]
    first = 1 if sample and re.fullmatch(r"sep=.\s*", sample[0]) else 0  # as Excel writes it
    sample = [line for line in sample[first:] if line.strip()]
    if not sample:
        raise FileFormatError(f"{path} is empty")
    separator, widths = _separator(sample)
    header = next(csv.reader(sample, delimiter=separator))
    while len(header) > 1 and not header[-1].strip():
        header.pop()
    if len(header) == 1 < min(widths[1:], default=1):
        raise FileFormatError(
            f"line {first + 1} of {path} has 1 value, the next {widths[1]}; the first line must name the "
            "columns. Remove the lines before it"
        )
    if empty := [place for place, name in enumerate(header) if place and not name.strip()]:
        raise FileFormatError(f"column {empty[0] + 1} of {path} has no name; name it, or remove it")
    if twice := [name for name, n in Counter(header).items() if n > 1]:
        raise FileFormatError(f"two columns of {path} are named {twice[0]!r}; names must be unique")
    usual = {*ROLES["model"], *ROLES["example"]}
    names = {*texts, *usual, *ROLES["group"], *ROLES["family"]}
    names |= {header[place] for place in texts if isinstance(place, int) and place < len(header)}
    if not usual & set(header):
        names.add(header[0])
    decimal = "," if separator == ";" and any(map(_DECIMAL_COMMA.search, sample[1:])) else "."
    beyond = [f"\0{place}" for place in range(max(1, max(widths) - len(header)))]
    named = [name for name in header if name in names]
    frame = pd.read_csv(
        io.StringIO(text),
        sep=separator,
        decimal=decimal,
        header=None,
        names=[*header, *beyond],
        skiprows=first + 1,
        index_col=False,
        dtype=dict.fromkeys(named, str),
        keep_default_na=False,  # NA and None are names
        na_values={name: [""] if name in named else _MISSING for name in (*header, *beyond)},
        low_memory=False,
    )
    if (longer := np.flatnonzero(frame[beyond].notna().any(axis=1))).size:
        n = len(header) + int(frame[beyond].iloc[longer[0]].notna().sum())
        numbers = [number for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        raise FileFormatError(
            f"line {numbers[first + 1 + longer[0]]} of {path} has {n} values, the header {len(header)} "
            f"({longer.size} such lines). Name every column"
        )
    return frame[header].copy()  # in one piece, where it was a block per column


def _separator(lines: Sequence[str]) -> tuple[str, list[int]]:
    """The separator that splits most lines into equally many values, more than one; and their numbers."""
    best, most, numbers = ",", 1, [1] * len(lines)
    plain = [re.sub('"[^"]*"', "", line) for line in lines]
    for each in _SEPARATORS:
        widths = [line.count(each) + 1 for line in plain]
        width, n = Counter(widths).most_common(1)[0]
        if width > most and 2 * n > len(lines):
            best, most, numbers = each, width, widths
    return best, numbers


# ---------------------------------------------------------------------------------------------- folders


def read_answers(
    source: Path,
    *,
    columns: Mapping[str, str] | None = None,
    texts: Sequence[str] = (),
    log_filter: str | None = None,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One table of a file, of a folder with a file per model, or of sample logs of lm-eval.

    Args:
        source: A table; or a folder.
        columns: Columns by role, as of `read_frame`; of logs `correct` is the metric.
        texts: Further columns that hold names.
        log_filter: Of logs: read the `first` or the `last` row of each sample.

    Returns:
        The table, and what the files tell of it: arguments of `read_frame`.

    Raises:
        FileFormatError: If nothing there can be read.
        AlignmentError: If files disagree about the examples.
    """
    columns = columns or {}
    texts = [*texts, *(columns[role] for role in ("model", "example", "group", "family") if role in columns)]
    root = source.parent if source.is_file() else source
    files = [source] if source.is_file() else sorted(each for each in source.rglob("*") if each.is_file())
    if logs := [file for file in files if _LOG.fullmatch(file.name)]:
        if results := {f.parent for f in files if f.name.startswith("results_")} - {f.parent for f in logs}:
            raise InputError(
                f"{min(results)} has results without samples. Evaluate again with --log_samples, or remove it"
            )
        return _lm_eval(logs, root, columns.get("correct") or columns.get("score"), log_filter)
    if log_filter is not None:
        raise InputError("log_filter (--filter) is for sample logs of lm-eval; remove it")
    if source.is_file():
        return read_table(source, texts=texts), {}
    tables = [file for file in files if file.name.endswith(SUFFIXES)]
    if not tables:
        raise FileFormatError(
            f"{source} holds no answers. Pass tables ({', '.join(SUFFIXES)}), one per model, sample logs of "
            "lm-eval (samples_*.jsonl), or prediction files of OODSelect (global_step_K_predictions.csv)"
        )
    return _file_per_model(tables, root, columns, texts), {"source": {"kind": "a file per model"}}


def _file_per_model(
    files: Sequence[Path], root: Path, columns: Mapping[str, str], texts: Sequence[str]
) -> pd.DataFrame:
    """One table of all; models are named by their paths, rows without names are matched by place."""
    ending = re.compile("|".join(map(re.escape, SUFFIXES)) + "$")
    parts = {
        ending.sub("", file.relative_to(root).as_posix()): read_table(file, texts=texts) for file in files
    }
    model, example = ([columns[role]] if role in columns else ROLES[role] for role in ("model", "example"))
    first = next(iter(parts.values()))
    answers = {columns.get(role) for role in ("correct", "prediction", "score")}
    answers.update(*(ROLES[role] for role in ("correct", "prediction", "score")))
    by_place = any(not set(example) & set(part) for part in parts.values())
    for name, part in parts.items():
        if not set(model) & set(part):
            part.insert(0, model[0], name)
        if not by_place:
            continue
        odd = [
            each for each in set(part) & set(first) - answers - set(model) if not re.match(r"p_\d", str(each))
        ]
        if len(part) != len(first) or any(not part[each].equals(first[each]) for each in odd):
            raise AlignmentError(
                f"{name} has {len(part)} rows, {next(iter(parts))} has {len(first)}, and no column names the "
                "examples. Name one (columns={'example': NAME}, --columns example=NAME), or give every model "
                "the same rows in the same order, equal in all columns but the answers"
            )
        part[example[0]] = [f"row_{place}" for place in range(len(part))]
    return pd.concat(parts.values(), ignore_index=True)


def _lm_eval(
    files: Sequence[Path], root: Path, metric: str | None, log_filter: str | None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What `lm_eval --log_samples` wrote: a folder per model, a file per task, a line per sample.

    The newest file of a model and task counts, and of each task one metric and one filter, the first of its
    first file, for all models. Samples are named by task and number; `doc_hash` must agree between models.
    """
    newest: dict[tuple[str, str], Path] = {}
    for file in files:
        model = "/".join(file.parent.relative_to(root).parts) or root.name
        newest[model, _LOG.sub(r"\g<task>", file.name)] = file
    logs = {key: _samples(file) for key, file in newest.items()}
    firsts: dict[str, dict[str, Any]] = {}
    for (_, task), samples in logs.items():
        firsts.setdefault(task, samples[0])
    read = _metrics(metric, firsts)
    rows = []
    hashes: dict[str, tuple[Any, str]] = {}
    for (model, task), samples in logs.items():
        for sample in _one_row_each(samples, firsts[task].get("filter"), log_filter, newest[model, task]):
            name, value = f"{task}/{sample['doc_id']}", sample.get(read[task])
            if value is not None and not isinstance(value, bool | int | float):
                raise InputError(
                    f"{newest[model, task]}: the metric {read[task]!r} of a sample is {str(value)[:40]!r}. "
                    "Choose one of single numbers: columns={'correct': METRIC}, --columns correct=METRIC"
                )
            rows.append((model, name, task, math.nan if value is None else float(value)))
            known, where = hashes.setdefault(name, (sample.get("doc_hash"), model))
            if known != sample.get("doc_hash"):
                raise AlignmentError(
                    f"sample {name!r} of {model!r} is not that of {where!r} (doc_hash differs), so their "
                    "answers cannot be compared. Use one version of the task for all models"
                )
    table = pd.DataFrame(rows, columns=["model", "example_id", "domain", "value"])
    kind = "correct" if table["value"].dropna().isin((0, 1)).all() else "score"
    notes = [f"{task}: metric {name}" for task, name in read.items()]
    if older := len(files) - len(newest):
        notes.append(f"{older} older files of the same model and task left out")
    told = {"orientation": "long", "columns": {}, "source": {"kind": "lm-eval", "notes": notes}}
    return table.rename(columns={"value": kind}), told


def _samples(file: Path) -> list[dict[str, Any]]:
    with malformed(file, "a sample log of lm-eval"):
        lines = file.read_text(encoding="utf-8").split("\n")
        samples = [dict(parse_json(line)) for line in lines if line.strip()]
        if any("doc_id" not in sample for sample in samples):
            raise ValueError("a sample has no doc_id")
    if not samples:
        raise InputError(f"{file} has no samples. Evaluate again with --log_samples, or remove it")
    return samples


def _metrics(asked: str | None, firsts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The metric of each task: as asked for, `METRIC` or `TASK:METRIC,...`, else the usual one."""
    there = {
        task: list(map(str, first.get("metrics") or [name for name in _METRICS if name in first]))
        for task, first in firsts.items()
    }
    by_task = dict(each.rsplit(":", 1) for each in (asked or "").split(",") if ":" in each)
    for task in by_task:
        check_name("task", task, there)
    general = None if by_task else asked
    read = {}
    for task, metrics in there.items():
        usual = next((name for name in (*_METRICS, *metrics) if name in metrics), "acc")
        read[task] = by_task.get(task, general or usual)
        if read[task] not in metrics:
            others = [each for each, names in there.items() if read[task] in names]
            raise InputError(
                f"the task {task!r} has no metric {read[task]!r}; it has {', '.join(metrics) or 'none'}. "
                f"Tasks with it: {', '.join(others) or 'none'}. Choose per task: "
                "columns={'correct': 'TASK:METRIC,...'}, --columns correct=TASK:METRIC,..."
            )
    return read


def _one_row_each(
    samples: Sequence[dict[str, Any]], usual: Any, log_filter: str | None, file: Path
) -> list[dict[str, Any]]:
    """One row of each sample: that of the usual filter, or the first or last."""
    kept = samples if log_filter else [sample for sample in samples if sample.get("filter") == usual]
    if not kept:
        raise InputError(
            f"{file} has no sample of the filter {usual!r}, which is read of the other models. Evaluate all "
            "models with one version of the task, or choose log_filter='first' or 'last' (--filter first)"
        )
    in_order = kept if log_filter == "last" else kept[::-1]
    by_sample = {sample["doc_id"]: sample for sample in in_order}  # the one that counts comes last
    if log_filter is None and len(by_sample) < len(kept):
        raise InputError(
            f"{file} has {len(kept)} rows for {len(by_sample)} samples, and no field 'filter' to tell them "
            "apart. Choose log_filter='first' or 'last' (--filter first)"
        )
    return [by_sample[name] for name in dict.fromkeys(sample["doc_id"] for sample in kept)]


# -------------------------------------------------------------------------------------------- any path


def read_data(
    source: Path,
    *,
    id_accuracy: str | None = None,
    groups: str | None = None,
    families: str | None = None,
    examples: Path | None = None,
    columns: Mapping[str, str] | None = None,
    id_envs: Sequence[str] | None = None,
    ood_env: Sequence[str] | None = None,
    checkpoints: str | None = None,
    log_filter: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    for_selection: bool = True,
    **options: Any,
) -> CorrectnessData:
    """The data that a path holds, with what other files know of models and examples.

    Args:
        source: A correctness archive (.npz); a table; a folder with a table per model, sample logs of
            lm-eval, or prediction CSVs of OODSelect.
        id_accuracy: Of a table: a column, or a file whose first columns are model and accuracy.
        groups: Training run of each model: a column of a table, a file whose first columns are model and run,
            or `model` if each is one of its own.
        families: Family of each model, likewise.
        examples: Of a table: a file of what is known of the examples, their names first.
        columns: Of a table: its columns by role, as of `read_frame`.
        id_envs: Environments of CSVs, or values of the column `domain`, in distribution.
        ood_env: The same out of distribution.
        checkpoints: Of prediction CSVs, as of `read_predictions`.
        log_filter: Of sample logs, as of `read_answers`.
        progress: Called while prediction CSVs are read.
        for_selection: As of `CorrectnessData.of`.
        **options: Of a table, as of `read_frame`; None where not given.

    Raises:
        InputError: For an option that the source has no use for, or lacks.
        FileFormatError: If nothing is there, or nothing that can be read.
    """
    if not source.exists():
        raise FileFormatError(
            f"{source} does not exist. Pass a correctness archive, a table, or a folder of prediction CSVs, "
            "tables or sample logs"
        )
    table: dict[str, Any] = {"id_accuracy": id_accuracy, "examples": examples, "columns": columns, **options}
    domains = {"id_envs": id_envs, "ood_env": ood_env}
    units = {"groups": groups, "families": families}
    if source.suffix == ".npz":
        _refuse("an archive", table | domains | {"checkpoints": checkpoints, "log_filter": log_filter})
        data = CorrectnessData.load(source, for_selection=for_selection)
    elif source.is_dir() and any(predictions.NAME.fullmatch(file.name) for file in source.rglob("*.csv")):
        _refuse("prediction CSVs", table | {"log_filter": log_filter})
        if ood_env is None:
            raise InputError(f"{source} holds prediction CSVs; give --ood-env, the one to select from")
        data = CorrectnessData.from_predictions(
            source,
            id_envs=None if id_envs is None else [*map(_environment, id_envs)],
            ood_env=[*map(_environment, ood_env)],
            checkpoints=checkpoints or "last",
            progress=progress,
        )
    else:
        _refuse("a table", {"checkpoints": checkpoints})
        texts = [name for name in units.values() if name is not None]
        frame, told = read_answers(source, columns=columns, texts=texts, log_filter=log_filter)
        if examples is not None:
            known = read_table(examples, texts=[0])
            table["examples"] = known.set_index(known.columns[0])
        if id_accuracy is not None and id_accuracy not in frame:
            table["id_accuracy"] = _by_model(Path(id_accuracy), "id-accuracy")
        for name, unit in units.items():
            if unit in frame and unit != EACH_MODEL:
                table[name], units[name] = unit, None
        table |= {"id_domains": id_envs, "ood_domains": ood_env} | told
        arguments = {name: value for name, value in table.items() if value is not None}
        with malformed(source, "a table of answers"):
            data = CorrectnessData.from_frame(frame, for_selection=for_selection, **arguments)
    given: dict[str, Any] = {
        name: data.model_ids if unit == EACH_MODEL else _by_model(Path(unit), name, texts=[1])
        for name, unit in units.items()
        if unit is not None
    }
    return CorrectnessData.of(data, **given, for_selection=for_selection)


def _refuse(kind: str, options: Mapping[str, object]) -> None:
    """Refuse options that a source has no use for."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"--{name.replace('_', '-')} has no effect for {kind}; remove it")


def _environment(text: str) -> int:
    if not text.strip().isdigit():
        raise InputError(f"{text!r} is not the number of an environment; prediction CSVs count them from 0")
    return int(text)


def _by_model(path: Path, option: str, texts: Sequence[int] = ()) -> pd.Series:
    """The second column of a file by the first, the models."""
    if not path.is_file():
        raise InputError(
            f"--{option} is {str(path)!r}, neither a file nor a column of the table. Pass a CSV file with a "
            "header and a line per model: MODEL,VALUE"
        )
    frame = read_table(path, texts=[0, *texts])
    if frame.shape[1] < 2:
        raise FileFormatError(f"{path} has {frame.shape[1]} column; the first two must be model and value")
    return frame.set_index(frame.columns[0])[frame.columns[1]]

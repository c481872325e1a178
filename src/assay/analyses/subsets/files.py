"""Files of answers: tables as programs write them, a file per model, sample logs of lm-eval."""

import csv
import gzip
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.analyses.subsets import predictions
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.tables import ROLES
from assay.core.errors import AlignmentError, FileFormatError, InputError, check_name
from assay.core.machine import free_memory
from assay.core.untrusted import malformed, parse_json, read_parquet_file


Answered = tuple[pd.DataFrame, dict[str, Any]]  # a table, and arguments of `read_frame`
EACH_MODEL = "model"  # of groups or families: every model is one of its own
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".jsonl")
_MOST = 2_000_000_000  # bytes of a decoded table
_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A"]  # of cells
_SEPARATORS = ",;\t|"
_SAMPLE = 20  # lines that tell the separator
_DECIMAL_COMMA = re.compile(r";\s*-?\d+,\d+\s*(;|$)")
_LOG = re.compile(r"samples_(?P<task>.+?)(_\d{4}-\d\d-\d\dT[-\d.:]+)?\.jsonl")
_METRICS = ("acc", "exact_match", "pass@1", "f1")  # of lm-eval, in this order


# ---------------------------------------------------------------------------------------------- tables


def read_table(path: Path, *, texts: Sequence[str] = (), n_names: int = 0) -> pd.DataFrame:
    """A text file with a header, whatever separates its cells; a Parquet file; or an object of JSON per line.

    Empty cells behind the last column are left out.

    Args:
        path: Ends in one of `SUFFIXES`.
        texts: Columns that name things: their cells are text, `00270` is not 270, and only an empty one is
            missing. So are those of the usual names of models, examples, runs and families, and a first
            column where neither models nor examples are there.
        n_names: The same of so many first columns.

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
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                content = file.read(most + 1)
            if len(content) > most:
                raise FileFormatError(f"{path} holds more than {most / 1e9:.1f} GB; split it, or free memory")
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
                raise FileFormatError(f"line {line} of {path} is not UTF-8 (byte {byte:#x})") from error
            if path.suffix == ".jsonl":
                return pd.DataFrame([parse_json(line) for line in text.split("\n") if line.strip()])
            return _csv_table(path, text, texts, n_names)
    except (OSError, EOFError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from error


def _csv_table(path: Path, text: str, texts: Sequence[str], n_names: int) -> pd.DataFrame:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    sample = text.split("\n", _SAMPLE)[:_SAMPLE]
    plain = [re.sub('"[^"]*"', "", line) for line in sample if line.strip()]
    if not plain:
        raise FileFormatError(f"{path} is empty")
    separator = max(_SEPARATORS, key=lambda each: [line.count(each) for line in plain[:2]])
    if text.endswith(separator) or f"{separator}\n" in text:
        text = re.sub(rf"{re.escape(separator)}+$", "", text, flags=re.MULTILINE)
    header: list[str] = []
    lines = csv.reader(sample, delimiter=separator)
    for values in lines:
        while values and not values[-1].strip():
            values.pop()
        header = header or values
        if len(values) > len(header):
            raise FileFormatError(
                f"line {lines.line_num} of {path} has {len(values)} values, the header {len(header)}. Name "
                "every column in the first line, and remove lines before it"
            )
    for place, name in enumerate(header):
        if (place and not name.strip()) or name in header[:place]:
            raise FileFormatError(
                f"column {place + 1} of {path} is named {name!r}; give it a name of its own"
            )
    usual = [ROLES[role] for role in ("model", "example", "group", "family")]
    first = max(n_names, 0 if {*usual[:2]} & {*header} else 1)
    named = [name for name in header if name in (*texts, *header[:first], *usual)]
    frame = pd.read_csv(
        io.BytesIO(text.encode()),
        sep=separator,
        decimal="," if separator == ";" and any(map(_DECIMAL_COMMA.search, sample[1:])) else ".",
        header=0,
        names=header,
        index_col=False,
        dtype=dict.fromkeys(named, str),
        keep_default_na=False,  # NA and None are names
        na_values={name: [""] if name in named else _MISSING for name in header},
        low_memory=False,
    )
    return frame.copy()  # in one piece, where it was a block per column


# ---------------------------------------------------------------------------------------------- folders


def read_answers(
    source: Path,
    *,
    columns: Mapping[str, str] | None = None,
    texts: Sequence[str] = (),
    log_filter: str | None = None,
) -> Answered:
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
        return _lm_eval(logs, root, columns.get("correct") or columns.get("score"), log_filter)
    if log_filter is not None:
        raise InputError("log_filter (--filter) is for sample logs of lm-eval; remove it")
    if source.is_file():
        return read_table(source, texts=texts), {}
    model, example = (columns.get(role, ROLES[role]) for role in ("model", "example"))
    parts = []
    for file in [file for file in files if file.name.endswith(SUFFIXES)]:
        part = read_table(file, texts=texts)
        if example not in part:
            raise AlignmentError(
                f"{file} has no column {example!r} of names of examples, which each file of a model needs: "
                "columns={'example': NAME}, --columns example=NAME"
            )
        name = re.sub(r"\.(csv|tsv|parquet|jsonl)(\.gz)?$", "", file.relative_to(root).as_posix())
        parts.append(part if model in part else part.assign(**{model: name}))
    if not parts:
        raise FileFormatError(
            f"{source} holds no answers. Pass tables ({', '.join(SUFFIXES)}), one per model, logs of lm-eval "
            "(samples_*.jsonl), or prediction files (global_step_K_predictions.csv)"
        )
    return pd.concat(parts, ignore_index=True), {"source": {"kind": "a file per model"}}


def _lm_eval(files: list[Path], root: Path, metric: str | None, log_filter: str | None) -> Answered:
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
    parts = []
    for (model, task), samples in logs.items():
        usual, file, name = firsts[task].get("filter"), newest[model, task], read[task]
        kept = samples if log_filter else [sample for sample in samples if sample.get("filter") == usual]
        part = pd.DataFrame(
            [(model, f"{task}/{s['doc_id']}", task, s.get(name), str(s.get("doc_hash"))) for s in kept],
            columns=["model", "example_id", "domain", "value", "hash"],
        )
        with malformed(file, f"a log with a number as {name!r} of each sample (--columns correct=METRIC)"):
            part["value"] = part["value"].astype(np.float64)
        parts.append(part.drop_duplicates("example_id", keep="last" if log_filter == "last" else "first"))
        if not kept or (log_filter is None and len(parts[-1]) < len(kept)):
            counts = f"{len(kept)} rows for {len(parts[-1])} samples"
            raise InputError(f"{file} has {counts} of the filter {usual!r}; choose --filter first or last")
    table = pd.concat(parts, ignore_index=True)
    known = table.groupby("example_id")[["hash", "model"]].transform("first")
    if len(other := table[table["hash"] != known["hash"]]):
        raise AlignmentError(
            f"sample {other['example_id'].iloc[0]!r} of {other['model'].iloc[0]!r} is not that of "
            f"{known['model'][other.index[0]]!r} (doc_hash differs); use one version of the task"
        )
    kind = "correct" if table["value"].dropna().isin((0, 1)).all() else "score"
    notes = [f"{task}: metric {name}" for task, name in read.items()]
    if older := len(files) - len(newest):
        notes.append(f"{older} older files of the same model and task left out")
    told = {"orientation": "long", "columns": {}, "source": {"kind": "lm-eval", "notes": notes}}
    return table.drop(columns="hash").rename(columns={"value": kind}), told


def _samples(file: Path) -> list[dict[str, Any]]:
    with malformed(file, "a sample log of lm-eval"):
        lines = file.read_text(encoding="utf-8").split("\n")
        samples = [dict(parse_json(line)) for line in lines if line.strip()]
        if not samples or any("doc_id" not in sample for sample in samples):
            raise ValueError("it has no samples, or one without doc_id; evaluate again with --log_samples")
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
    read = {}
    for task, metrics in there.items():
        usual = next((name for name in (*_METRICS, *metrics) if name in metrics), "acc")
        name = read[task] = by_task.get(task, usual if by_task else asked or usual)
        if name not in metrics:
            others = ", ".join(each for each, names in there.items() if name in names) or "none"
            raise InputError(
                f"the task {task!r} has no metric {name!r}; it has {', '.join(metrics) or 'none'}. Tasks "
                f"with it: {others}. Choose per task: --columns correct=TASK:METRIC,..."
            )
    return read


# -------------------------------------------------------------------------------------------- any path


def read_data(
    source: Path,
    *,
    groups: str | None = None,
    families: str | None = None,
    for_selection: bool = True,
    **options: Any,
) -> CorrectnessData:
    """The data that a path holds, with what other files know of models and examples.

    Args:
        source: A correctness archive (.npz); a table; a folder with a table per model, sample logs of
            lm-eval, or prediction CSVs of OODSelect.
        groups: Training run of each model: a column of a table, a file whose first columns are model and run,
            or `model` if each is one of its own.
        families: Family of each model, likewise.
        for_selection: As of `CorrectnessData.of`.
        **options: None where not given. Of a table: `id_accuracy`, a column, or a file whose first columns
            are model and accuracy; `examples`, a file of what is known of the examples, their names first;
            `id_envs` and `ood_env`, values of the column `domain` in and out of distribution; `log_filter` as
            of `read_answers`; others as of `read_frame`. Of prediction CSVs: `id_envs`, `ood_env` and
            `checkpoints`, as of `read_predictions`.

    Raises:
        InputError: For an option that the source has no use for, or lacks.
        FileFormatError: If nothing is there, or nothing that can be read.
    """
    if not source.exists():
        raise FileFormatError(
            f"{source} does not exist. Pass a correctness archive, a table, or a folder of them"
        )
    units = {name: unit for name, unit in (("groups", groups), ("families", families)) if unit is not None}
    given = {name: value for name, value in options.items() if value is not None}
    kind, unused = "a table", set(given) & {"checkpoints"}
    if source.suffix == ".npz":
        kind, unused = "an archive", set(given)
    elif source.is_dir() and any(predictions.NAME.fullmatch(file.name) for file in source.rglob("*.csv")):
        kind, unused = "prediction CSVs", set(given) - {"id_envs", "ood_env", "checkpoints"}
    if unused:
        raise InputError(f"--{min(unused).replace('_', '-')} has no effect for {kind}; remove it")
    if kind == "an archive":
        data = CorrectnessData.load(source, for_selection=for_selection)
    elif kind == "prediction CSVs":
        if "ood_env" not in given:
            raise InputError(f"{source} holds prediction CSVs; give --ood-env, the one to select from")
        data = CorrectnessData.of(**predictions.read_predictions(source, **given))
    else:
        given |= {"id_domains": given.pop("id_envs", None), "ood_domains": given.pop("ood_env", None)}
        told = {"columns": given.get("columns"), "log_filter": given.pop("log_filter", None)}
        frame, by_files = read_answers(source, texts=[*units.values()], **told)
        if "examples" in given:
            known = read_table(given["examples"], n_names=1)
            given["examples"] = known.set_index(known.columns[0])
        if "id_accuracy" in given and given["id_accuracy"] not in frame:
            given["id_accuracy"] = _by_model(Path(given["id_accuracy"]), "id-accuracy")
        inside = {name: unit for name, unit in units.items() if unit in frame and unit != EACH_MODEL}
        units = {name: unit for name, unit in units.items() if name not in inside}
        with malformed(source, "a table of answers"):
            data = CorrectnessData.from_frame(frame, for_selection=for_selection, **given | inside | by_files)
    facts: dict[str, Any] = {
        name: data.model_ids if unit == EACH_MODEL else _by_model(Path(unit), name, n_names=2)
        for name, unit in units.items()
    }
    return CorrectnessData.of(data, **facts, for_selection=for_selection)


def _by_model(path: Path, option: str, n_names: int = 1) -> pd.Series:
    """The second column of a file by the first, the models."""
    if not path.is_file():
        raise InputError(
            f"--{option} is {str(path)!r}, neither a file nor a column. Pass a CSV file of lines MODEL,VALUE"
        )
    frame = read_table(path, n_names=n_names)
    if frame.shape[1] < 2:
        raise FileFormatError(f"{path} has {frame.shape[1]} column; the first two must be model and value")
    return frame.set_index(frame.columns[0])[frame.columns[1]]

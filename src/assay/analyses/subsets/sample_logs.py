"""Sample logs of lm-eval and inspect_ai as one table with a row per model and sample."""

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay.analyses.subsets.file_kinds import DOCUMENTS
from assay.core.errors import AlignmentError, FileFormatError, InputError
from assay.core.untrusted import DAMAGED_ZIP, check_unpacked, malformed, parse_json
from assay.page.text import plural


if TYPE_CHECKING:
    import pandas as pd

_SAMPLES = re.compile(r"samples_(?P<task>.+?)(_\d{4}-\d\d-\d\dT[-\d.:]+)?\.jsonl")
_PREFERRED = ("acc", "exact_match", "pass@1", "f1")  # metrics of lm-eval, in this order
_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # of inspect_ai: correct, incorrect, partial, no answer


class AnswerFrame(NamedTuple):
    """A table of answers made of files.

    Attributes:
        kind: What the files are.
        frame: The table.
        columns: Columns by role that the files themselves tell.
        notes: What was decided while reading.
        joined: Whether what is known of the examples is part of the table already.
    """

    kind: str
    frame: "pd.DataFrame"
    columns: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    joined: bool = False


def lm_eval_answers(files: Sequence[Path], root: Path, metric: str | None) -> AnswerFrame:
    """What `lm_eval --log_samples` wrote: a folder per model, a file per task, a line per sample.

    The newest file of a model and task counts, and of each task one filter, the first of its first file, and
    one metric for all models. Samples are named by task and number; `doc_hash` must agree between models.

    Args:
        files: `samples_TASK_TIME.jsonl`, sorted.
        root: Folder from which models are named.
        metric: The number to read. Default: of each task, `acc`, else `exact_match`, `pass@1`, `f1`, else the
            first.

    Raises:
        FileFormatError: If a line is not such a sample.
        InputError: If the metric is not a single number, or a model lacks the filter or its samples.
        AlignmentError: If a sample differs between models.
    """
    import pandas as pd

    newest: dict[tuple[str, str], Path] = {}
    for file in files:
        task = _SAMPLES.fullmatch(file.name)
        newest["/".join(file.parent.relative_to(root).parts) or root.name, task["task"] if task else ""] = (
            file
        )
    rows: list[dict[str, Any]] = []
    hashes: dict[str, tuple[Any, str]] = {}
    chosen: dict[str, tuple[str, Any]] = {}  # metric and filter of each task
    for (model, task_name), file in newest.items():
        with malformed(file, "a sample log of lm-eval"), file.open(encoding="utf-8") as lines:
            samples = [parse_json(line) for line in lines if line.strip()]
            if not samples:
                raise unlogged([file], "lm_eval with --log_samples")
            first = samples[0]
            read, kept = chosen.setdefault(task_name, (metric or _metric(first), first.get("filter")))
            samples = [each for each in samples if each.get("filter") == kept]
            if not samples:
                raise InputError(
                    f"{file} has no sample of the filter {kept!r}, which is read for {task_name!r} of the "
                    "other models; evaluate all models with one version of the task"
                )
            for sample in samples:
                name = f"{task_name}/{sample['doc_id']}"
                value = _number(sample.get(read), read, file, sorted(sample.get("metrics", ())))
                rows.append({"model": model, "example_id": name, "domain": task_name, "value": value})
                known, where = hashes.setdefault(name, (sample.get("doc_hash"), model))
                if known != sample.get("doc_hash"):
                    raise AlignmentError(
                        f"sample {name!r} of {model!r} is not that of {where!r} (doc_hash differs), so their "
                        "answers cannot be compared; use one version of the task for all models"
                    )
    older = len(files) - len(newest)
    notes = [
        *(f"{task}: metric {read}, filter {kept}" for task, (read, kept) in chosen.items()),
        *([f"{older} older files of the same model and task left out"] if older else []),
    ]
    roles = {"model": "model", "example": "example_id", "domain": "domain", **_role(rows, "value")}
    return AnswerFrame("lm-eval", pd.DataFrame(rows), roles, tuple(notes))


def _metric(sample: dict[str, Any]) -> str:
    names = sample.get("metrics") or [name for name, value in sample.items() if name in _PREFERRED]
    return str(next((name for name in _PREFERRED if name in names), names[0]))


def _number(value: Any, metric: str, file: Path, known: Sequence[str]) -> float:
    if isinstance(value, bool | int | float):
        return float(value)
    raise InputError(
        f"{file}: the metric {metric!r} of a sample is {str(value)[:40]!r}, not one number; choose another, "
        f"--columns correct=METRIC: {', '.join(map(str, known))}"
    )


def inspect_answers(files: Sequence[Path], scorer: str | None) -> AnswerFrame:
    """Logs of inspect_ai, `.eval` or `.json`: one of a model and task each.

    A sample is named by task and id; C, P and I count 1, 0.5 and 0, N (no answer) 0. Of several epochs the
    mean is taken. The newest log of a model and task counts; logs of runs that did not succeed are left out.

    Args:
        files: The logs.
        scorer: The scorer to read. Default: the first of a sample.

    Raises:
        FileFormatError: If a file is not such a log.
        InputError: If no run succeeded, samples of one were not logged, or a score is not a single number.
    """
    import pandas as pd

    newest: dict[tuple[str, str], tuple[str, Path, list[dict[str, Any]]]] = {}
    failed: list[Path] = []
    for file in files:
        with malformed(file, "a log of inspect_ai"):
            header, samples = _inspect_log(file)
            if header.get("schema") in DOCUMENTS:
                raise InputError(f"{file} is {DOCUMENTS[header['schema']]}; give a table of answers, or logs")
            run = header["eval"]
            if header.get("status") != "success":
                failed.append(file)
                continue
            key, created = (str(run["model"]), str(run["task"])), str(run.get("created", ""))
            if key not in newest or created >= newest[key][0]:
                newest[key] = (created, file, samples)
    if not newest:
        raise InputError(
            f"none of the {len(files)} logs is of a run that succeeded; the first is {failed[0]}"
        )
    if empty := [file for _, file, samples in newest.values() if not samples]:
        raise unlogged(empty, "inspect_ai without --no-log-samples")
    values: dict[tuple[str, str, str], list[float]] = {}
    for (model, task), (_, file, samples) in newest.items():
        with malformed(file, "a log of inspect_ai"):
            for sample in samples:
                score = _score(sample, scorer, file)
                values.setdefault((model, task, str(sample["id"])), []).append(score)
    rows = [
        {"model": model, "example_id": f"{task}/{name}", "domain": task, "value": math.fsum(each) / len(each)}
        for (model, task, name), each in values.items()
    ]
    left = len(files) - len(newest)
    epochs = max(map(len, values.values()))
    notes = [
        f"scorer {scorer}" if scorer else "the first scorer of each sample",
        *([f"{left} logs left out ({len(failed)} did not succeed, the others are older)"] if left else []),
        *([f"mean over {epochs} epochs"] if epochs > 1 else []),
    ]
    roles = {"model": "model", "example": "example_id", "domain": "domain", **_role(rows, "value")}
    return AnswerFrame("inspect_ai", pd.DataFrame(rows), roles, tuple(notes))


def _inspect_log(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header of a log, and its samples, or their summaries, which hold the scores as well."""
    if file.suffix == ".json":
        log = parse_json(file.read_bytes())
        return log, log.get("samples") or []
    try:
        with zipfile.ZipFile(file) as archive:
            check_unpacked(archive, file)
            names = archive.namelist()
            header = parse_json(archive.read("header.json"))
            if "summaries.json" in names:
                return header, parse_json(archive.read("summaries.json"))
            samples = sorted(name for name in names if name.startswith("samples/"))
            return header, [parse_json(archive.read(name)) for name in samples]
    except DAMAGED_ZIP as error:
        raise FileFormatError(
            f"{file} is not a log of inspect_ai, is damaged, or its run was interrupted: {error}"
        ) from error


def unlogged(files: Sequence[Path], how: str) -> InputError:
    """The error about logs of models whose answers were not written down."""
    named = ", ".join(map(str, files[:3])) + (", ..." if len(files) > 3 else "")
    return InputError(
        f"{plural(len(files), 'log')} without samples, so the answers of these models are not known: "
        f"{named}. Evaluate again, {how}, or remove these files"
    )


def _score(sample: dict[str, Any], scorer: str | None, file: Path) -> float:
    """The score of a sample; NaN if it has none."""
    scores = sample.get("scores") or {}
    if not scores:
        return math.nan
    if scorer is not None and scorer not in scores:
        raise InputError(f"{file}: a sample has no scorer {scorer!r}; it has {', '.join(map(str, scores))}")
    value = scores[scorer or next(iter(scores))]["value"]
    found = _VALUES.get(value, value) if isinstance(value, str) else value
    if isinstance(found, bool | int | float):
        return float(found)
    raise InputError(
        f"{file}: a score is {str(value)[:40]!r}, not one number or C, P, I, N; choose another scorer, "
        f"--columns correct=SCORER: {', '.join(map(str, scores))}"
    )


def _role(rows: list[dict[str, Any]], column: str) -> Mapping[str, str]:
    """The role of a column of numbers: `correct` if all are 0 or 1, else `score`."""
    values = np.array([row[column] for row in rows], dtype=np.float64)
    present = values[~np.isnan(values)]
    return {"correct" if ((present == 0) | (present == 1)).all() else "score": column}

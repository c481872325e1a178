"""Prediction files of OODSelect's authors: one CSV per checkpoint, `domain,label,p_0,...,p_{C-1}`."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.core.errors import AlignmentError, FileFormatError, InputError, check_name
from assay.core.untrusted import malformed


NAME = re.compile(r"global_step_(\d+)_predictions\.csv")


def read_predictions(
    folder: str | os.PathLike[str],
    *,
    ood_env: int | Sequence[int | str],
    id_envs: Sequence[int | str] | None = None,
    checkpoints: str = "last",
) -> dict[str, Any]:
    """Read the prediction CSVs of OODSelect's authors: one per checkpoint, `domain,label,p_0,...,p_{C-1}`.

    y_i is the share of right answers over all rows of `env<e>_out`, e in `id_envs`, pooled. Row i of the
    matrix says for each row of `env<t>_in` and `env<t>_out`, t the out-of-distribution environment, whether
    the largest score (the first of equals) is that of the label; several such environments are put side by
    side. Rows carry no id, so they are matched by place and never reordered.

    Args:
        folder: Searched for `global_step_<k>_predictions.csv` at any depth; a folder is a training run.
        ood_env: Environment that no model was trained on, or several, in the order of the examples.
        id_envs: Environments whose held-out part gives y. Default: all others in the first file.
        checkpoints: `last` (one row per run, its highest step) or `all`.

    Returns:
        Arguments of `CorrectnessData.of`: models in the order of their sorted paths, named by path and step;
        the domain of each row as the column `domain`.

    Raises:
        FileFormatError: If a file is cut off or no such table; with the file and the row.
        AlignmentError: If the out-of-distribution rows of two files differ in number, label or domain.
        InputError: If no file is found, or an environment is missing.

    Notes:
        The authors' loader shuffles the rows of every file the same way before it selects; published indices
        count those shuffled rows.
    """
    check_name("choice of checkpoints", checkpoints, ("last", "all"))
    outside = [str(each) for each in ([ood_env] if isinstance(ood_env, int) else ood_env)]
    files = sorted(file for file in Path(folder).rglob("global_step_*") if NAME.fullmatch(file.name))
    if not files:
        raise InputError(f"{folder} has no file global_step_K_predictions.csv, at any depth")
    root = Path(os.path.commonpath([file.parent for file in files]))
    runs = {file: "/".join(file.parent.relative_to(root).parts) or file.parent.name for file in files}
    steps = {file: int(NAME.sub(r"\1", file.name)) for file in files}
    if checkpoints == "last":
        last = {runs[file]: file for file in sorted(files, key=steps.__getitem__)}
        files = [file for file in files if last[runs[file]] == file]
        if len(files) == 1:
            one = f"all files in {files[0].parent} count as checkpoints of one run"
            raise InputError(f"{one}. Give each run a folder, or --checkpoints all")
    chosen, rated = [], []
    inside = None if id_envs is None else [str(each) for each in id_envs]
    for file in files:
        with malformed(file, "a table of predictions"):
            table = _read(file)
        numbers, held_out = table["environment"], table["part"] == "out"
        inside = sorted(set(numbers) - set(outside)) if inside is None else inside
        lacking = set(inside) - set(numbers[held_out]) | set(outside) - set(numbers)
        if lacking or not inside or not outside or set(inside) & set(outside):
            there = ", ".join(sorted(set(table["domain"])))
            raise InputError(
                f"{file}: id_envs is {inside}, ood_env is {outside}, and the file has {there}. Name "
                "different environments that all have rows, those in distribution held-out ones (_out)"
            )
        rated.append(table.loc[numbers.isin(inside) & held_out, "right"])
        chosen.append(pd.concat([table[numbers == each] for each in outside], ignore_index=True))
        rows, first = (each[["label", "domain"]] for each in (chosen[-1], chosen[0]))
        if not rows.equals(first):
            raise AlignmentError(
                f"{file} has {len(rows)} rows out of distribution, {files[0]} has {len(first)}, or labels or "
                "domains differ. Rows have no id: every file must hold the same examples in the same order"
            )
    return {
        "correct": np.stack([rows["right"] for rows in chosen]),
        "id_accuracy": [float(rows.mean()) for rows in rated],
        "groups": [runs[file] for file in files],
        "model_ids": ["/".join([*file.parent.relative_to(root).parts, str(steps[file])]) for file in files],
        "labels": chosen[0]["label"].to_numpy(),
        "meta": {"domain": chosen[0]["domain"].to_numpy()},
        "source": {"kind": "predictions", "id_envs": inside, "ood_env": outside, "checkpoints": checkpoints},
    }


def _read(file: Path) -> pd.DataFrame:
    """One file: domain, environment and part (`in` or `out`), label, and whether the answer is right."""
    frame = pd.read_csv(file, index_col=False)
    n = max(2, sum(re.fullmatch(r"p_\d+", str(name)) is not None for name in frame))
    wanted = ["domain", "label", *(f"p_{place}" for place in range(n))]
    parts = frame["domain"].astype(str).str.extract(r"^env(?P<environment>\d+)_(?P<part>in|out)$")
    values = frame[wanted[1:]].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
    label, p = values[:, 0], values[:, 1:]
    bad = np.flatnonzero(parts["part"].isna() | ~np.isin(label, np.arange(n)) | np.isnan(p).any(axis=1))
    if len(bad) or frame.empty:
        row = f", row {bad[0] + 1}: {frame.iloc[bad[0]].to_dict()}" if len(bad) else " has no rows"
        raise FileFormatError(
            f"{file}{row} ({len(bad)} such rows). Expected a domain env<number>_in or env<number>_out, a "
            f"label from 0 to {n - 1}, and numbers as scores"
        )
    right = (p.argmax(axis=1) == label).astype(np.uint8)
    return parts.assign(domain=frame["domain"], label=label.astype(np.int64), right=right)

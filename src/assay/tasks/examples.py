"""Which examples of a task are different ones, and which of its prompts a circuit was found on."""

import base64
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Int64, UInt32

from assay.tasks.images import ImageTask
from assay.tasks.task import PairTask, prompt_tokens


AnyTask = TypeVar("AnyTask", bound=PairTask | ImageTask)

CODES = "clean_prompts"  # of the record of a task that something was found on
ENOUGH = 0.05  # share of shared prompts above which a measurement is not one of other prompts


def prompt_codes(task: PairTask) -> UInt32[np.ndarray, " n"]:
    """CRC-32 of the token ids of each clean prompt, without padding."""
    prompts = prompt_tokens(task.clean, task.lengths)
    return np.array([zlib.crc32(np.array(prompt, "<i8").tobytes()) for prompt in prompts], np.uint32)


def describe_discovery(task: PairTask | ImageTask) -> dict[str, Any]:
    """The record of a task that something is found on: its own, with the codes of its prompts.

    These are the distinct ones in ascending order, 4 bytes each, in base64.
    """
    if not isinstance(task, PairTask):
        return task.describe()
    codes = np.unique(prompt_codes(task)).astype("<u4").tobytes()
    return task.describe() | {CODES: base64.b64encode(codes).decode()}


def seen_prompts(provenance: Mapping[str, object], task: PairTask | ImageTask) -> Bool[np.ndarray, " n"]:
    """Rows of a task whose clean prompt is among those that a circuit was found on; all or none of images.

    Args:
        provenance: Of the circuit.
        task: What it is to be measured on.

    Notes:
        Images, and prompts of records without codes, are compared by the hash of all of them together.
    """
    record = provenance.get("task")
    if not isinstance(record, Mapping):
        return np.zeros(task.n, dtype=np.bool_)
    codes = record.get(CODES)
    if isinstance(task, PairTask) and isinstance(codes, str):
        return np.isin(prompt_codes(task), np.frombuffer(base64.b64decode(codes), dtype="<u4"))
    return np.full(task.n, record.get("data_hash") == task.data_hash)


def found_on(provenance: Mapping[str, object], task: PairTask | ImageTask) -> bool:
    """Whether a circuit was found on more than 5 % of these prompts, or on exactly these images."""
    return bool(seen_prompts(provenance, task).mean() > ENOUGH)


def example_codes(*tasks: PairTask | ImageTask, paired: bool) -> Int64[np.ndarray, " n"]:
    """Which different example each row of some tasks is, from 0; -1 for a row equal to its counterpart.

    Rows of one code are copies: the same prompts, read at the same positions, whatever their answers; or the
    same images.

    Args:
        tasks: One after the other.
        paired: Whether ablated edges carry what they carry on the counterpart. If not, an example is its
            clean input alone, and none has the code -1.
    """
    codes: dict[Hashable, int] = {}
    rows = (row for task in tasks for row in task.inputs(paired=paired))
    return np.array([-1 if a == b else codes.setdefault((a, b, at), len(codes)) for a, b, at in rows])


def first_rows(codes: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """True at the first row of each code of `example_codes`, except at -1."""
    first = np.zeros(len(codes), dtype=np.bool_)
    first[np.unique(codes, return_index=True)[1]] = True
    return first & (codes >= 0)


def example_notes(task: PairTask | ImageTask, codes: Int64[np.ndarray, " n"]) -> tuple[str, ...]:
    """How many rows of a task equal their counterparts, and how many are copies."""
    kind, equal = "pairs" if isinstance(task, PairTask) else "images", int((codes < 0).sum())
    copies, of = len(codes) - equal - int(first_rows(codes).sum()), f"of the {task.n} {kind} of {task.name!r}"
    left_out = f"{equal} {of} equal their counterparts; nothing is ablated on them, so they are left out"
    again = f"{copies} {of} are copies of others and are not counted again"
    return (left_out,) * bool(equal) + (again,) * bool(copies)


def different_examples(
    task: AnyTask, *, paired: bool, besides: Sequence[PairTask | ImageTask] = ()
) -> tuple[AnyTask, Int64[np.ndarray, " k"]]:
    """A task without copies and without rows equal to their counterparts, and the rows it keeps.

    One row stays where none would. The notes of the task count what was left out.

    Args:
        task: The examples.
        paired: As for `example_codes`.
        besides: Other tasks, copies of whose rows go as well.
    """
    codes = example_codes(*besides, task, paired=paired)
    kept = np.flatnonzero(first_rows(codes)[-task.n :])
    rows = kept if len(kept) else np.array([0])
    if len(rows) == task.n:
        return task, rows
    notes = (*task.notes, *example_notes(task, codes[-task.n :]))
    return cast(AnyTask, replace(task.subset(rows.tolist()), notes=notes)), rows

"""Which prompts a circuit was found on: a set of short codes that its record keeps."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt32

from assay.tasks.image_rows import ImageRows
from assay.tasks.task import PairTask


KEY = "clean_prompts"  # of the record of a task
ENOUGH = 0.05  # share of shared prompts above which a measurement is not one of other prompts


def prompt_codes(task: PairTask) -> UInt32[np.ndarray, " n"]:
    """CRC-32 of the token ids of each clean prompt, without padding."""
    clean, lengths = task.clean.numpy().astype("<i8"), task.lengths.tolist()
    return np.array(
        [zlib.crc32(row[:length].tobytes()) for row, length in zip(clean, lengths, strict=True)], np.uint32
    )


def prompt_set(task: PairTask) -> str:
    """The distinct codes in ascending order, 4 bytes each, in base64."""
    return base64.b64encode(np.unique(prompt_codes(task)).astype("<u4").tobytes()).decode()


def describe_discovery(task: PairTask | ImageRows) -> dict[str, Any]:
    """The record of a task that something is found on: its own, with the codes of its prompts."""
    return task.describe() | ({KEY: prompt_set(task)} if isinstance(task, PairTask) else {})


def seen_prompts(provenance: Mapping[str, object], task: PairTask) -> Bool[np.ndarray, " n"]:
    """Rows of a task whose clean prompt is among those that a circuit was found on.

    Args:
        provenance: Of the circuit.
        task: What it is to be measured on.

    Notes:
        Records of versions that kept no codes are compared by the hash of all prompts together.
    """
    record = provenance.get("task")
    if not isinstance(record, Mapping):
        return np.zeros(task.n, dtype=np.bool_)
    codes = record.get(KEY)
    if not isinstance(codes, str):
        return np.full(task.n, record.get("data_hash") == task.data_hash)
    return np.isin(prompt_codes(task), np.frombuffer(base64.b64decode(codes), dtype="<u4"))


def found_on(provenance: Mapping[str, object], task: PairTask) -> bool:
    """Whether more than 5 % of the prompts of a task are among those that a circuit was found on."""
    return bool(seen_prompts(provenance, task).mean() > ENOUGH)

"""Samples of pairs on disk: one safetensors file of arrays, with everything else in its metadata."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.analyses.worst_case.sampling import PairSample, PromptSet
from assay.circuits.files import read_arrays, write_arrays
from assay.core.errors import FileFormatError, InputError


_KIND = "worst_case"
_SIDES = ("clean", "corrupted", "reference")
_SLOT = ".slot."
_IDS = ("tokens", "lengths", "positions", "answers", "wrong")
_PLAIN: tuple[str, ...] = ("protocol", "independent", "paired", "reuse_clean", "own_rows")
_PLAIN += ("seed", "streams", "task", "ablation")


def write_pairs(
    path: Path, sample: PairSample, values: Mapping[str, np.ndarray], record: Mapping[str, Any]
) -> Path:
    """Write a sample, the values of its pairs and what else is known, whole or not at all.

    Args:
        path: `NAME.safetensors`.
        sample: The inputs and how they were drawn.
        values: Arrays of one number per pair, by name.
        record: JSON-able entries that are given back as they are.
    """
    if path.suffix != ".safetensors":
        raise InputError(f"a worst-case result is saved as NAME.safetensors; got {path.name!r}")
    known = {**values, **({} if sample.pairs is None else {"pairs": sample.pairs})}
    arrays = {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in known.items()}
    inputs: dict[str, Any] = {}
    for name in _SIDES:
        side: PromptSet | None = getattr(sample, name)
        if side is None or (name != "clean" and side is sample.clean):
            inputs[name] = None if side is None else "clean"
            continue
        arrays |= {f"{name}{_SLOT}{slot}": where for slot, where in side.slots.items()}
        # Copies: the two sides of a task's own rows share lengths and positions, which no file may hold.
        arrays |= {
            f"{name}.{key}": value.clone() for key in _IDS if (value := getattr(side, key)) is not None
        }
        # A list, since the text of the record sorts keys and fields have an order.
        inputs[name] = {"texts": side.texts, "fields": list(side.fields.items())}
    if sample.clean.images is not None:  # all sides number the same images
        arrays["images"] = sample.clean.images
    facts = {name: getattr(sample, name) for name in (*_PLAIN, "data_hash", "heatmap_fields")}
    metadata = {"kind": _KIND, "sample": facts, "inputs": inputs, **record}
    return write_arrays(path, {name: each.contiguous() for name, each in arrays.items()}, metadata)


def read_pairs(path: Path, values: Sequence[str]) -> tuple[PairSample, dict[str, Tensor], dict[str, Any]]:
    """What `write_pairs` wrote: the sample, the arrays of the file, and its record.

    Raises:
        FileFormatError: If the file is damaged, or its inputs are not those of its record.
        KeyError, TypeError, ValueError: If an entry is missing or does not fit.
    """
    arrays, record = read_arrays(path, _KIND)
    sample = _sample(record, arrays)
    for name in values:
        if tuple(arrays[name].shape) != sample.shape or arrays[name].is_complex():
            raise ValueError(
                f"{name} has shape {tuple(arrays[name].shape)}, but the pairs have {sample.shape}"
            )
    if sample.data_hash != record["sample"]["data_hash"]:
        raise FileFormatError(f"{path}: the inputs are not those of its record; run again")
    return sample, arrays, record


def _sample(record: dict[str, Any], arrays: dict[str, Tensor]) -> PairSample:
    facts, inputs = record["sample"], record["inputs"]
    sides: dict[str, Any] = {}
    for name in _SIDES:
        held = inputs[name]
        sides[name] = sides.get("clean") if held == "clean" else held and _side(name, held, arrays)
    if sides["clean"] is None or sides["corrupted"] is None:
        raise ValueError("a side of its inputs is missing")
    return PairSample(
        **sides,
        pairs=arrays["pairs"].numpy() if "pairs" in arrays else None,
        heatmap_fields=tuple((first, second) for first, second in facts["heatmap_fields"]),
        **{name: facts[name] for name in _PLAIN},
    )


def _side(name: str, held: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> PromptSet:
    """The inputs of one side, known to fit each other and to name images that are there."""
    slots = {
        key.removeprefix(name + _SLOT): where for key, where in arrays.items() if key.startswith(name + _SLOT)
    }
    side = PromptSet(
        # The hash of the file vouches for the arrays that must be there.
        **{key: arrays.get(f"{name}.{key}") for key in _IDS},  # type: ignore[arg-type]  # answers may be None
        texts=None if held["texts"] is None else tuple(map(str, held["texts"])),
        slots=slots,
        fields={str(field): list(values) for field, values in held["fields"]},
        images=arrays.get("images"),
    )
    columns = (side.lengths, side.positions, side.answers, side.wrong, side.texts)
    known = [*side.fields.values(), *slots.values(), *(each for each in columns if each is not None)]
    if any(len(values) != side.n for values in known):
        raise ValueError(f"what is known of the {name} inputs does not match their number, {side.n}")
    if bool(((side.lengths < 1) | (side.lengths > side.tokens.shape[1])).any()):
        raise ValueError(f"a length of the {name} inputs differs from the length of their tokens")
    if side.images is not None and not 0 <= int(side.tokens.min()) <= int(side.tokens.max()) < len(
        side.images
    ):
        raise ValueError(f"inputs name images beyond the {len(side.images)} that are there")
    return side

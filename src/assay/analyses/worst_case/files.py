"""Worst-case results on disk: one safetensors file of arrays, one JSON document beside it, hashes in both."""

import hashlib
import json
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from assay.analyses.worst_case.inputs import PairSample, PromptSet
from assay.circuits import Circuit, write_atomically
from assay.core.errors import FileFormatError, GraphMismatchError, InputError
from assay.core.record import canonical_json
from assay.core.untrusted import MALFORMED, malformed, read_object
from assay.models import Model


FORMAT = 1
_SIDES = ("clean", "corrupted", "reference")
_SLOT = ".slot."
_IDS = ("tokens", "lengths", "positions", "answers", "wrong")


def write_result(
    path: Path, sample: PairSample, values: Mapping[str, np.ndarray], record: Mapping[str, Any]
) -> Path:
    """Write both files; each appears only once it is complete, the document last.

    Args:
        path: `NAME.safetensors`; the document lies beside it.
        sample: The inputs and pairs.
        values: Values of the pairs, by name.
        record: What else the document holds, JSON-able.
    """
    if path.suffix != ".safetensors":
        raise InputError(f"a worst-case result is saved as NAME.safetensors; got {path.name!r}")
    extra = {"pairs": sample.pairs, "weights": sample.weights}
    known = {**values, **{name: each for name, each in extra.items() if each is not None}}
    arrays = {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in known.items()}
    inputs: dict[str, Any] = {}
    for name in _SIDES:
        side: PromptSet | None = getattr(sample, name)
        if side is None:
            continue
        if name != "clean" and side is sample.clean:
            inputs[name] = "clean"
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
    content = save({key: value.contiguous() for key, value in arrays.items()})
    text = canonical_json(
        {
            "format": FORMAT,
            "kind": "worst_case",
            "arrays": path.name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "sample": {**sample.describe(), "heatmap_fields": sample.heatmap_fields},
            "inputs": inputs,
            **record,
        }
    )
    whole = {"record_sha256": hashlib.sha256(text.encode()).hexdigest(), **json.loads(text)}
    write_atomically(path, content)
    write_atomically(path.with_suffix(".json"), json.dumps(whole, indent=1, ensure_ascii=False).encode())
    return path


def read_result(path: Path) -> tuple[dict[str, Any], PairSample, dict[str, Tensor]]:
    """Record, inputs and arrays of both files, verified against each other."""
    record = _read_record(path.with_suffix(".json"))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != record.get("sha256"):
        raise FileFormatError(
            f"{path} does not match its document (hash mismatch): one of the two was changed or truncated. "
            "Restore them or run again"
        )
    try:
        arrays = load(content)
    except (SafetensorError, *MALFORMED) as error:
        raise FileFormatError(f"{path} is not a readable safetensors file ({error})") from error
    with malformed(path, "a worst-case result"):
        sample = _sample(record, arrays)
        for name in ("divergence", "empty", "argmax_differs"):
            if tuple(arrays[name].shape) != sample.shape or arrays[name].is_complex():
                raise ValueError(
                    f"{name} has shape {tuple(arrays[name].shape)}, but the pairs have {sample.shape}"
                )
        if sample.pairs is not None:
            _check_ids(arrays["pairs"], len(sample.pairs), 2)
        if sample.data_hash != record["sample"]["data_hash"]:
            raise FileFormatError(
                f"{path}: the hash of the inputs differs from that in the document; run again"
            )
    return record, sample, arrays


def _read_record(path: Path) -> dict[str, Any]:
    record = read_object(path, "the document of a worst-case result")
    given = record.pop("record_sha256", None)
    if hashlib.sha256(canonical_json(record).encode()).hexdigest() != given:
        raise FileFormatError(f"{path} was changed after it was written (hash mismatch); restore it")
    if not isinstance(number := record.get("format"), int) or number > FORMAT:
        raise FileFormatError(
            f"{path} has format {number!r}, this version reads up to {FORMAT}; update assay"
        )
    return record


def _check_ids(array: Tensor, n: int, axes: int) -> None:
    if array.dtype != torch.int64 or array.ndim != axes or len(array) != n:
        raise ValueError(
            f"inputs are {array.dtype} of shape {tuple(array.shape)}; expected whole numbers of {n}"
        )


def _check_images(side: PromptSet) -> None:
    """Refuse images that a model cannot be given, and numbers of images that are not there."""
    images = side.images
    if images is None:
        return
    if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
        raise ValueError(f"images are {images.dtype} of shape {tuple(images.shape)}; expected [N, 3, H, W]")
    if side.tokens.shape[1] != 1 or not 0 <= int(side.tokens.min()) <= int(side.tokens.max()) < len(images):
        raise ValueError(f"inputs name images beyond the {len(images)} that are there")


def _sample(record: dict[str, Any], arrays: dict[str, Tensor]) -> PairSample:
    facts = record["sample"]
    sides: dict[str, PromptSet] = {}
    for name in filter(record["inputs"].__contains__, _SIDES):
        inputs = record["inputs"][name]
        if inputs == "clean":
            sides[name] = sides["clean"]
            continue
        several = arrays[f"{name}.positions"].ndim == 2  # an axis of reads
        axes = {"tokens": 2, "lengths": 1, "positions": 1 + several, "answers": 2 + several}
        for key in _IDS:
            if key in ("tokens", "lengths", "positions") or f"{name}.{key}" in arrays:
                n_axes = axes.get(key, 2 + several)
                _check_ids(arrays[f"{name}.{key}"], len(arrays[f"{name}.tokens"]), n_axes)
        sides[name] = PromptSet(
            # The hash of the file vouches for the arrays that must be there.
            **{key: arrays.get(f"{name}.{key}") for key in _IDS},  # type: ignore[arg-type]  # answers may be None
            texts=None if inputs["texts"] is None else tuple(map(str, inputs["texts"])),
            slots={
                key.removeprefix(name + _SLOT): where
                for key, where in arrays.items()
                if key.startswith(name + _SLOT)
            },
            fields={str(field): list(values) for field, values in inputs["fields"]},
            images=arrays.get("images"),
        )
        side = sides[name]
        listed: list[Sized] = [*side.fields.values(), *side.slots.values()]
        listed += [] if side.texts is None else [side.texts]
        if any(len(values) != side.n for values in listed):
            raise ValueError(
                f"texts or fields of the {name} inputs do not match the number of inputs, {side.n}"
            )
        _check_images(side)
        if bool(((side.lengths < 1) | (side.lengths > side.tokens.shape[1])).any()):
            raise ValueError(f"a length of the {name} inputs differs from the length of their tokens")
    return PairSample(
        protocol=facts["protocol"],
        clean=sides["clean"],
        corrupted=sides["corrupted"],
        ablation=facts.get("ablation", "resample"),
        reference=sides.get("reference"),
        pairs=arrays["pairs"].numpy() if "pairs" in arrays else None,
        weights=arrays["weights"].numpy() if "weights" in arrays else None,
        heatmap_fields=tuple((first, second) for first, second in facts["heatmap_fields"]),
        **{
            name: facts[name]
            for name in (
                *("independent", "paired", "reuse_clean", "own_rows"),
                *("population", "seed", "streams", "task"),
            )
        },
    )


def check_origin(document: Mapping[str, Any], model: Model, circuit: Circuit) -> None:
    """Refuse a model or a circuit other than those of a result."""
    for what, stored, given in (
        ("model", document["model"]["weight_hash"], model.weight_hash),
        ("circuit", document["circuit"]["hash"], circuit.hash),
    ):
        if stored != given:
            raise GraphMismatchError(
                f"the result belongs to the {what} {stored}, and {given} was given; give the {what} it was "
                "made with"
            )

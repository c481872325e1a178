"""The weights of a module: whether they can be computed with, and their hash."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import NonFiniteError, UnsupportedModelError


_SAMPLED = 2**14  # numbers of each parameter


def check_weights(module: nn.Module, name: str) -> None:
    """Refuse weights that nothing can be computed with.

    Raises:
        UnsupportedModelError: If a parameter was never given memory, or is stored in a type of one byte.
        NonFiniteError: If a parameter is NaN or infinite.
    """
    for path, parameter in module.named_parameters():
        if parameter.is_meta:
            raise UnsupportedModelError(
                f"weight {path!r} of {name} has no values (device 'meta'); load it first, e.g. with "
                "from_pretrained. Parts that accelerate keeps on the CPU or the disk have none either: give "
                "load_model the folder and device_map="
            )
        if parameter.is_floating_point() and parameter.dtype.itemsize == 1:
            raise UnsupportedModelError(
                f"weight {path!r} of {name} is stored as {parameter.dtype}, which layers cannot compute "
                "with; dequantise the weights first (model.dequantize())"
            )
        if not bool(torch.isfinite(parameter).all()):
            raise NonFiniteError(
                f"weight {path!r} of {name} holds NaN or infinite values; reload or retrain the model"
            )


def _bytes(values: Tensor) -> memoryview:
    data: memoryview = values.detach().cpu().contiguous().view(torch.uint8).numpy().data
    return data


def hash_weights(facts: Mapping[str, Any], parameters: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over facts and parameters, in order: names, shapes, types, bytes (16 hex digits)."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, parameter in parameters:
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(_bytes(parameter))
    return digest.hexdigest()[:16]


def weight_state(parameters: Iterable[tuple[str, Tensor]]) -> tuple[Any, ...]:
    """What differs once parameters have changed, for far less than a forward pass.

    Where each lies, its count of changes, and a checksum of its numbers (of more than 2^15 only of evenly
    spaced ones): changes through `.data` or a NumPy view are not counted.
    """
    check, places = 0, []
    for _, parameter in parameters:
        places.append((parameter.data_ptr(), parameter._version))
        step = parameter.numel() // _SAMPLED | 1  # odd: columns differ
        check = zlib.crc32(_bytes(parameter.detach().flatten()[::step]), check)
    return (check, *places)

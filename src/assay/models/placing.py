"""On which device and in which number type a model is loaded."""

from collections.abc import Mapping
from typing import Literal

import torch

from assay.core.errors import InputError


Device = str | torch.device | None
NumberType = torch.dtype | Literal["auto"] | None
# Where the parts of a model go: a way to deal them out, or path of a part -> device.
DeviceMap = str | Mapping[str, str | int | torch.device] | None

SPREADING = ("auto", "balanced", "sequential")  # of accelerate


def accelerator() -> torch.device | None:
    """The first accelerator of this machine that knows float64; None without one."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if kind is None or kind.type == "mps" else torch.device(kind.type, 0)


def check_device(name: str | torch.device) -> torch.device:
    """The device of a name.

    Raises:
        InputError: If this PyTorch does not have it, naming the devices there are.
    """
    devices = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        devices += [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
    try:
        asked = torch.device(name)
    except RuntimeError:  # no such type of device
        asked = None
    if asked is None or (asked.type != "cpu" and f"{asked.type}:{asked.index or 0}" not in devices):
        raise InputError(
            f"device {str(name)!r} does not exist: PyTorch {torch.__version__} here has {', '.join(devices)}"
        )
    return asked


def choose_device(device: Device) -> torch.device:
    """Where a model is put: `auto` is the accelerator if there is one, None the CPU.

    Raises:
        InputError: If the device does not exist.
    """
    if device == "auto":
        return accelerator() or torch.device("cpu")
    return check_device("cpu" if device is None else device)


def choose_dtype(dtype: NumberType, device: torch.device, stored: torch.dtype | None) -> torch.dtype:
    """The number type of the weights.

    Args:
        dtype: What was asked for; `auto` or None: float64 where the checkpoint has it, else the checkpoint's
            on an accelerator and float32 on a CPU.
        device: Where the model goes.
        stored: Number type of the checkpoint, if it is known.

    Raises:
        InputError: For anything but a floating-point type.
    """
    if isinstance(dtype, torch.dtype):
        if not dtype.is_floating_point or dtype.itemsize == 1:
            raise InputError(f"dtype is {dtype}; expected 'auto', bfloat16, float16, float32 or float64")
        return dtype
    if dtype not in ("auto", None):
        raise InputError(f"dtype is {dtype!r}; expected 'auto' or a torch.dtype such as torch.bfloat16")
    half = (torch.bfloat16, torch.float16)
    if stored == torch.float64 or (stored in half and device.type != "cpu"):
        return stored
    return torch.float32


def number_type(name: str | None) -> torch.dtype | None:
    """The number type of a name such as `float64`; None leaves it to the loader."""
    return None if name is None else getattr(torch, name)

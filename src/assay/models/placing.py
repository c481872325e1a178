"""On which device and in which number type a model is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from assay.core.errors import InputError, MissingExtraError
from assay.core.extras import install_command


Device = str | torch.device | None
NumberType = torch.dtype | Literal["auto"] | None
# Where the parts of a model go: a way to deal them out, or path of a part -> device.
DeviceMap = str | Mapping[str, str | int | torch.device] | None

SPREADING = ("auto", "balanced", "sequential")  # of accelerate
STREAM = "stream"


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


@dataclass(frozen=True, kw_only=True)
class PartsPlacement:
    """Where the parts of one model go.

    Attributes:
        main: Device of the embedding, of inputs, and of blocks whose weights stay in the checkpoint.
        parts: Path of a part -> its device; None where its weights stay in the checkpoint. The longest path
            counts.
    """

    main: torch.device
    parts: Mapping[str, torch.device | None]

    @property
    def streams(self) -> bool:
        """Whether some weights stay in the checkpoint."""
        return None in self.parts.values()

    def __getitem__(self, name: str) -> torch.device | None:
        """The device of a weight, or None."""
        fitting = [path for path in self.parts if not path or name == path or name.startswith(f"{path}.")]
        return self.parts[max(fitting, key=len)] if fitting else self.main

    def device_of(self, name: str) -> torch.device:
        """The device on which a weight is used."""
        return self[name] or self.main

    def devices_of(self, module: nn.Module) -> set[torch.device]:
        """The devices on which the weights of a module are used."""
        return {self.device_of(name) for name, _ in module.named_parameters()}


def check_device_map(device_map: DeviceMap, device: Device) -> None:
    """Refuse a map that nothing can be placed by.

    Raises:
        InputError: For an unknown word, a device that does not exist, or `device` beside a map that says
            where everything is.
        MissingExtraError: If accelerate is not installed.
    """
    if isinstance(device_map, str) and device_map not in (*SPREADING, STREAM):
        raise InputError(
            f"device_map is {device_map!r}; expected {', '.join(SPREADING)}, {STREAM}, or a dict from paths "
            "of parts to devices"
        )
    if device_map != STREAM and device not in ("auto", None):
        raise InputError(
            f"device={str(device)!r} and device_map={device_map!r} both say where the model goes; leave one "
            "out"
        )
    entries: Mapping[Any, Any] = {} if isinstance(device_map, str) else dict(device_map or {})
    for path, place in entries.items():
        if not isinstance(path, str) or isinstance(place, bool):
            raise InputError(f"device_map has {path!r}: {place!r}; expected a path and a device")
        _device_or_file(place)
    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"device_map needs accelerate, which cannot be imported ({error}); install it with "
            f"{install_command('placement')}"
        ) from error


def _device_or_file(place: str | int | torch.device) -> torch.device | None:
    """The device of an entry of a map; None for `disk`."""
    if place == "disk":
        return None
    if isinstance(place, int):
        kind = accelerator()
        place = f"cuda:{place}" if kind is None else f"{kind.type}:{place}"
    return check_device(place)


def place_parts(
    module: nn.Module, device_map: DeviceMap, device: Device, dtype: torch.dtype
) -> PartsPlacement:
    """Where each part of a module goes.

    Args:
        module: On the device `meta`.
        device_map: As checked by `check_device_map`.
        device: Where blocks that are streamed run.
        dtype: Number type of its weights.

    Raises:
        InputError: If a path of a map is not a part of the module, or a weight is under none.
    """
    if device_map == STREAM:
        main = choose_device(device)
        return PartsPlacement(main=main, parts={"": None})
    if isinstance(device_map, str):
        dealt: Mapping[str, Any] = _spread(module, device_map, dtype)
    else:
        dealt = dict(device_map or {})
        paths = {name for name, _ in (*module.named_modules(), *module.named_parameters())}
        _check_paths(module, dealt, paths)
    parts = {path: _device_or_file(place) for path, place in dealt.items()}
    used = [place for place in parts.values() if place is not None and place.type != "cpu"]
    if used:  # beside accelerators, what is on the CPU would only wait there
        parts = {
            path: None if place is None or place.type == "cpu" else place for path, place in parts.items()
        }
    return PartsPlacement(main=used[0] if used else torch.device("cpu"), parts=parts)


def _check_paths(module: nn.Module, dealt: Mapping[str, Any], paths: set[str]) -> None:
    unknown = [path for path in dealt if path not in paths]
    if unknown:
        raise InputError(
            f"device_map names {unknown[0]!r}, but {type(module).__name__} has no such part; its first parts "
            f"are {', '.join(name for name, _ in module.named_children())}"
        )
    rest = [
        name
        for name, _ in module.named_parameters()
        if not any(not path or name == path or name.startswith(f"{path}.") for path in dealt)
    ]
    if rest:
        raise InputError(
            f"device_map says nothing about {rest[0]!r} and {len(rest) - 1} more weights; add their part, or "
            "'' for all the rest"
        )


def _spread(module: nn.Module, way: str, dtype: torch.dtype) -> Mapping[str, Any]:
    """Parts dealt to the accelerators and memory of this machine; `disk` for what does not fit."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory, get_max_memory

    together = list(getattr(module, "_no_split_modules", None) or [])
    options: dict[str, Any] = {"no_split_module_classes": together, "dtype": dtype}
    room = get_max_memory() if way == "sequential" else get_balanced_memory(module, **options)
    dealt: Mapping[str, Any] = infer_auto_device_map(module, max_memory=room, **options)
    return dealt


def dispatch(module: nn.Module, placement: PartsPlacement) -> nn.Module:
    """A module whose parts lie on several devices, with the hooks of accelerate that take inputs to them."""
    if len(placement.devices_of(module)) == 1:
        return module
    from accelerate import dispatch_model

    parts = {path: place or placement.main for path, place in placement.parts.items()}
    dispatched: nn.Module = dispatch_model(module, parts, main_device=placement.main, force_hooks=True)
    return dispatched

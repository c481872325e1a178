"""Pretend devices on the CPU: tensors that say where they are, and operations that refuse to mix two places.

A tensor of a pretend device holds its numbers on the CPU. While `pretending()` is active, an operation on
tensors of two devices raises, as it does between two accelerators; only copies may cross, and a single number
on the CPU may go with anything. So a forgotten `.to(device)` fails on a machine without accelerators.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


KIND = "lazy"  # a type of device that this PyTorch knows by name and has no code for
FIRST, SECOND = f"{KIND}:0", f"{KIND}:1"
_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
# Places given on the CPU may pick from a tensor anywhere.
_PICKS = {
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
}


class Placed(Tensor):
    """A tensor on a pretend device."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor, device: torch.device) -> "Placed":
        placed = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=device,
        )
        placed.numbers = numbers
        return placed

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Placed({self.numbers!r}, {self.device})"

    def tolist(self) -> Any:
        return self.numbers.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Tensors made on a pretend device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """Lists in the place of tensors: PyTorch makes tensors of them without asking the mode above."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") is not None:
            return func(*args, **{**kwargs, "device": None}).to(kwargs["device"])
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(
                torch.tensor(each, dtype=None if each else torch.long) if isinstance(each, list) else each
                for each in index
            )
            args = (args[0], index, *args[2:])
        return func(*args, **kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    asked = kwargs.get("device")
    pretended = asked is not None and torch.device(asked).type == KIND
    places = {value.device for value in tensors if value.ndim or value.device.type == KIND}
    if func in _PICKS:
        places = {args[0].device} | {value.device for value in tensors if value.device.type == KIND}
    if func not in _COPIES and len(places) > 1:
        raise RuntimeError(f"{func} on tensors of several devices: {sorted(map(str, places))}")
    if asked is not None:
        place = torch.device(asked)
    elif func is _aten.copy_.default:
        place = args[0].device
    else:
        place = next(iter(places), torch.device("cpu"))
    if pretended:
        kwargs = {**kwargs, "device": torch.device("cpu")}

    def inner(value: Any) -> Any:
        return value.numbers if isinstance(value, Placed) else value

    if func is _aten.copy_.default and inner(args[0]).data_ptr() == inner(args[1]).data_ptr():
        return args[0]  # a view copied to itself: PyTorch cannot see that it is one
    result = func(*tree_map(inner, args), **tree_map(inner, kwargs))
    if place.type != KIND:
        return result
    held = {id(value.numbers): value for value in tensors if isinstance(value, Placed)}

    def outer(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return held[id(value)] if id(value) in held else Placed(value, place)

    return tree_map(outer, result)


@contextmanager
def pretending() -> Iterator[None]:
    """Pretend devices exist inside."""
    with _Factories(), _Literals():
        yield


def place(module: nn.Module, device_of: dict[str, str]) -> None:
    """Put the parts of a module on pretend devices, as accelerate dispatches it to real ones.

    Args:
        module: Any module on the CPU; changed in place.
        device_of: Path of a part -> its device; the longest path that fits counts.
    """
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    def of(path: str) -> torch.device:
        fitting = [each for each in device_of if path == each or path.startswith(f"{each}.") or not each]
        return torch.device(device_of[max(fitting, key=len)])

    moved: dict[int, nn.Parameter] = {}  # tied weights stay tied
    for path, part in module.named_modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                here = of(f"{path}.{name}" if path else name)
                if id(weight) not in moved:
                    moved[id(weight)] = nn.Parameter(Placed(weight.detach(), here), requires_grad=False)
                part._parameters[name] = moved[id(weight)]
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = Placed(value, of(f"{path}.{name}" if path else name))
        own = [value for value in (*part._parameters.values(), *part._buffers.values()) if value is not None]
        if not path or path in device_of or own:
            here = own[0].device if own else of(path)  # of a tied weight, where the first of its kind is
            add_hook_to_module(part, AlignDevicesHook(execution_device=here, io_same_device=not path))

"""Weights that stay in their checkpoint: read whenever an operation needs their numbers, then let go."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from assay.core.errors import FileFormatError, InputError, UnsafeFileError
from assay.models.placing import PartsPlacement, dispatch


T = TypeVar("T")

PIECE = 2**26  # bytes of a weight that are looked through at a time

_aten = torch.ops.aten
# Of these only the shape changes, so that they wait with the numbers.
_VIEWS = frozenset(
    {
        _aten.alias.default,
        _aten.detach.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.squeeze.dim,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unsqueeze.default,
        _aten.view.default,
        _aten._unsafe_view.default,
    }
)
_SAME = frozenset({_aten.alias.default, _aten.detach.default})  # the whole weight
# What transformers does with the matrices of experts: stacked, those of one expert joined by rows.
_OF_EXPERTS = ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])
# These take some rows, so that the others need not be read.
_PICKS = frozenset({_aten.embedding.default, _aten.index.Tensor, _aten.index_select.default})


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """Where the numbers of a weight are.

    Attributes:
        file: A file of safetensors.
        key: Name of the weight in it.
        state: Size and time of the file when the model was loaded.
    """

    file: Path
    key: str
    state: tuple[int, int]

    def mapped(self) -> Tensor:
        """The numbers as they are stored, in pages of the file; nothing is read before it is used.

        Raises:
            FileFormatError: If the file is gone, or another than when the model was loaded.
        """
        from safetensors import SafetensorError, safe_open

        try:
            if file_state(self.file) != self.state:
                raise FileFormatError(f"{self.file} has changed since its model was loaded; load it again")
            with safe_open(self.file, framework="pt") as file:
                stored: Tensor = file.get_tensor(self.key)
        except (OSError, SafetensorError) as error:
            raise FileFormatError(f"cannot read {self.key!r} of {self.file}: {error}") from error
        return stored

    def outline(self) -> Tensor:
        """A tensor of the shape and number type that are stored."""
        return self.mapped()


@dataclass(frozen=True, eq=False)
class StoredExperts:
    """Where the numbers of a matrix per expert are, which transformers puts together when it loads them.

    Attributes:
        experts: Of each expert, the stored matrices whose rows stand one under the other.
    """

    experts: tuple[tuple[StoredWeight, ...], ...]

    @property
    def file(self) -> Path:
        """The file of the first of them."""
        return self.experts[0][0].file

    @property
    def key(self) -> str:
        """Their names."""
        return f"{self.experts[0][0].key} to {self.experts[-1][-1].key}"

    def mapped(self) -> Tensor:
        """The numbers as they are stored, in memory.

        Raises:
            FileFormatError: As `StoredWeight.mapped`.
        """
        return torch.stack([torch.cat([part.mapped() for part in each]) for each in self.experts])

    def outline(self) -> Tensor:
        """A tensor of the shape and number type that are stored; it has no numbers."""
        meta = [[part.mapped().to("meta") for part in each] for each in self.experts]
        return torch.stack([torch.cat(parts) for parts in meta])

    def only(self, func: Any, more: Any) -> "StoredExperts | None":
        """The experts that an operation on the first axis leaves; None for another operation."""
        if func is _aten.select.int and more[0] == 0:
            return StoredExperts((self.experts[more[1]],))
        if func is _aten.slice.Tensor and more[:1] == (0,):
            start, end, step = (*more[1:], None, None, None)[:3]
            return StoredExperts(self.experts[start:end:step])
        return None


def file_state(file: Path) -> tuple[int, int]:
    """Size in bytes and time of change, which differ once a file is another."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


class StreamedWeight(Tensor):
    """A weight without memory of its own: shape, number type and device of one, its numbers in a file.

    Views of it are such weights too. Any other operation reads the numbers, converts them to the number type
    and device, and lets them go with its end. What a backward pass needs of a weight is this tensor, so that
    the numbers are read again for it.
    """

    stored: StoredWeight | StoredExperts
    views: tuple[Callable[[Tensor], Tensor], ...]

    @staticmethod
    def __new__(
        cls,
        stored: StoredWeight | StoredExperts,
        like: Tensor,
        dtype: torch.dtype,
        device: torch.device,
        views: tuple[Callable[[Tensor], Tensor], ...] = (),
    ) -> "StreamedWeight":
        weight = Tensor._make_wrapper_subclass(
            cls,
            like.size(),
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=dtype,
            device=device,
        )
        weight.stored, weight.views = stored, views
        return weight

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StreamedWeight({self.stored.key!r}, {tuple(self.shape)}, {self.dtype}, {self.device})"

    def _mapped(self) -> Tensor:
        mapped = self.stored.mapped()
        for view in self.views:
            mapped = view(mapped)
        return mapped

    def _read(self) -> Tensor:
        """The numbers in memory; a copy always, as pages of the file have no fixed place."""
        return self._mapped().to(self.device, self.dtype, copy=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        # Another tensor of the same file: modules convert their parameters in place.
        other: Tensor = StreamedWeight(self.stored, self, self.dtype, self.device, self.views)
        if isinstance(self, nn.Parameter):
            other = nn.Parameter(other, requires_grad=self.requires_grad)
        memo[id(self)] = other
        return other

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _VIEWS and isinstance(args[0], cls):
            return args[0]._viewed(func, args[1:], kwargs)
        if func in _PICKS and isinstance(args[0], cls):
            return args[0]._picked(func, args[1:], kwargs)
        changed = [
            value
            for value, argument in zip(args, func._schema.arguments, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if any(isinstance(value, cls) for value in tree_flatten(changed)[0]):
            raise InputError(
                "the weights of this model stay in its checkpoint and cannot be changed; load it without "
                "device_map, so that they are in memory"
            )
        args, kwargs = tree_map_only(cls, cls._read, (args, kwargs))
        return func(*args, **kwargs)

    def _viewed(self, func: Any, more: Any, kwargs: Any) -> "StreamedWeight":
        shape = func(torch.empty_strided(self.size(), self.stride(), device="meta"), *more, **kwargs)
        if isinstance(self.stored, StoredExperts) and not self.views:
            fewer = self.stored.only(func, more)
            if fewer is not None and fewer.experts:  # the others need not be read
                first = () if func is _aten.slice.Tensor else (lambda mapped: mapped[0],)
                return StreamedWeight(fewer, shape, self.dtype, self.device, first)
        views = self.views
        if func not in _SAME:
            views = (*views, lambda mapped: func(mapped, *more, **kwargs))
        return StreamedWeight(self.stored, shape, self.dtype, self.device, views)

    def _picked(self, func: Any, more: Any, kwargs: Any) -> Tensor:
        more, kwargs = tree_map_only(Tensor, Tensor.cpu, (more, kwargs))
        picked: Tensor = func(self._mapped(), *more, **kwargs)
        return picked.to(self.device, self.dtype)


def pieces(weight: Tensor) -> Iterator[Tensor]:
    """A weight in parts along its first axis, each in memory; one part where it is small."""
    weight = weight.detach()
    rows = max(1, PIECE // max(1, weight.nbytes // max(1, len(weight)))) if weight.ndim else 0
    for start in range(0, len(weight) if rows else 1, rows or 1):
        part = weight[start : start + rows] if rows else weight
        yield part.clone() if isinstance(part, StreamedWeight) else part


def streams(module: nn.Module) -> bool:
    """Whether some weights of a module stay in their checkpoint."""
    return any(isinstance(weight, StreamedWeight) for weight in module.parameters())


def per_block(module: nn.Module, make: Callable[[int], T]) -> Callable[[int], T]:
    """What a run needs of the weights of each block, by the number of the block.

    Made when it is first asked for; where weights stay in their checkpoint, each time, so that those of one
    block are in memory and not those of all.
    """
    return make if streams(module) else cache(make)


def streamed(
    module: nn.Module, files: Sequence[Path], placement: PartsPlacement, dtype: torch.dtype
) -> nn.Module:
    """A module whose matrices stay in its checkpoint, as placed; vectors are in memory.

    Args:
        module: Parameters on the device `meta`, buffers as they are computed. It is filled.
        files: Of safetensors.
        placement: Where the parts go.
        dtype: Number type of the parameters.

    Raises:
        UnsafeFileError: If the files are pickles.
        FileFormatError: If they lack a weight, or have it in another shape or in a type of one byte.
    """
    pickles = [file.name for file in files if file.suffix != ".safetensors"]
    if pickles:
        raise UnsafeFileError(
            f"{files[0].parent} has its weights as pickles ({', '.join(pickles[:3])}), of which no part can "
            "be read alone; save the model with save_pretrained, which writes safetensors, or leave "
            "device_map out"
        )
    where = _contents(module, files)
    filled: dict[str, nn.Parameter] = {}
    for name, parameter in module.named_parameters():
        if name not in where:
            continue  # perhaps tied to one that is there
        stored = where[name]
        like = stored.outline()
        if like.shape != parameter.shape or not like.is_floating_point() or like.dtype.itemsize == 1:
            raise FileFormatError(
                f"{stored.file} has {stored.key!r} as {tuple(like.shape)} of {like.dtype}; expected "
                f"{tuple(parameter.shape)} of floating-point numbers"
            )
        weight: Tensor = StreamedWeight(stored, like, dtype, placement.device_of(name))
        if parameter.ndim < 2 or placement[name] is not None:
            weight = weight.clone()
        filled[name] = nn.Parameter(weight, requires_grad=False)
    for name, parameter in filled.items():
        owner, _, last = name.rpartition(".")
        module.get_submodule(owner)._parameters[last] = parameter
    for name, buffer in list(module.named_buffers()):
        owner, _, last = name.rpartition(".")
        module.get_submodule(owner)._buffers[last] = buffer.to(placement.device_of(name))
    tie = getattr(module, "tie_weights", None)
    if tie is not None:
        tie()
    check_ties(module, placement)
    parameters = dict(module.named_parameters())
    absent = [name for name, parameter in parameters.items() if parameter.is_meta]
    if absent:
        raise FileFormatError(
            f"{files[0].parent} has no weights under the names {', '.join(absent[:5])}"
            f"{', ...' if len(absent) > 5 else ''} ({len(absent)} of {len(parameters)}). Either the "
            "checkpoint is not complete, or transformers makes them of others when it loads it, and then the "
            "model must be in memory: leave device_map out"
        )
    return dispatch(module, placement)


def check_ties(module: nn.Module, placement: PartsPlacement) -> None:
    """Refuse a streamed matrix of two names beside several devices: the hooks for those know memory only."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if isinstance(parameter, StreamedWeight):
            names.setdefault(id(parameter), []).append(name)
    tied = [each for each in names.values() if len(each) > 1]
    if tied and len(placement.devices_of(module)) > 1:
        raise InputError(
            f"device_map leaves {' and '.join(tied[0])}, which are one matrix, in the checkpoint and puts "
            "other parts on several devices; give that matrix a device, or use device_map='stream'"
        )


def _contents(module: nn.Module, files: Sequence[Path]) -> dict[str, StoredWeight | StoredExperts]:
    """Name of each parameter that is stored as it is, or expert by expert -> where.

    Older names are taken as transformers reads them.
    """
    from safetensors import safe_open
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    known: Any = module
    changes = get_model_conversion_mapping(known)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    wanted = module.state_dict()
    found: dict[str, StoredWeight | StoredExperts] = {}
    parts: dict[str, dict[str, list[StoredWeight]]] = {}
    for file in files:
        state = file_state(file)
        with safe_open(file, framework="pt") as opened:
            names = list(opened.keys())
        for stored in names:
            name, made_of = rename_source_key(stored, renamings, converters, known.base_model_prefix, wanted)
            if made_of is None:
                found[name] = StoredWeight(file, stored, state)
            else:
                parts.setdefault(name, {}).setdefault(made_of, []).append(StoredWeight(file, stored, state))
    kinds = {pattern: change for change in converters for pattern in change.source_patterns}
    for name, by_pattern in parts.items():
        change = kinds[next(iter(by_pattern))]
        if [(type(each).__name__, getattr(each, "dim", None)) for each in change.operations] in _OF_EXPERTS:
            rows = [sorted(by_pattern.get(each, ()), key=_expert) for each in change.source_patterns]
            if len({len(row) for row in rows}) == 1:
                found[name] = StoredExperts(tuple(zip(*rows, strict=True)))
    return found


def _expert(stored: StoredWeight) -> list[int]:
    """The numbers in the name of a weight: of its block, then of its expert."""
    return [int(number) for number in re.findall(r"\d+", stored.key)]

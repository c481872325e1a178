"""Whether the tensors of a task of pairs fit together."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.core.errors import InputError, ShapeError


if TYPE_CHECKING:
    from assay.tasks.task import PairTask


NO_TOKEN = -1  # fills `answers` and `wrong` where a row has fewer than the longest
NO_POSITION = -1  # fills `positions` where a prompt is read at fewer than others
PER_ROW = ("lengths", "positions", "ids")  # fields with a number, or some, for each pair


def integers(name: str, value: Any) -> Tensor:
    """An integer tensor as int64 on the CPU."""
    if not isinstance(value, Tensor):
        raise ShapeError(
            f"{name} is a {type(value).__name__}; give a tensor of token ids, e.g. torch.tensor([[5, 7]])"
        )
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise ShapeError(f"{name} has dtype {value.dtype}; token ids and positions are integers (torch.long)")
    return value.detach().to("cpu", torch.long)


def check_shapes(task: "PairTask") -> None:
    """Refuse tensors whose shapes do not fit together."""
    if task.clean.ndim != 2:
        raise ShapeError(
            f"clean has shape {tuple(task.clean.shape)}; expected [N, T], one row of ids per prompt"
        )
    if task.clean.numel() == 0:
        raise InputError(
            f"the task is empty: clean has shape {tuple(task.clean.shape)}; give at least one prompt"
        )
    shape, other = task.clean.shape, task.corrupted.shape
    if other != shape:
        raise ShapeError(
            f"clean has shape {tuple(shape)}, but corrupted {tuple(other)}; every corrupted prompt needs the "
            "token count of its clean one"
        )
    n = len(task.clean)
    rows: tuple[int, ...] = (n,)
    for name in PER_ROW:
        value = getattr(task, name)
        several = name == "positions" and value is not None and value.ndim == 2 and value.shape[1] > 1
        if value is not None and (len(value) != n or not (value.ndim == 1 or several)):
            or_more = f" (or [{n}, P] where several are read)" if name == "positions" else ""
            raise ShapeError(
                f"{name} has shape {tuple(value.shape)}; expected [{n}], one number per prompt{or_more}"
            )
        if name == "positions" and value is not None:
            rows = tuple(value.shape)
    for name in ("answers", "wrong"):
        value = getattr(task, name)
        if value is not None and (value.shape[:-1] != rows or value.shape[-1] == 0):
            expected = ", ".join(map(str, rows))
            each = "prompt" if len(rows) == 1 else "prompt and read position"
            raise ShapeError(
                f"{name} has shape {tuple(value.shape)}; expected [{expected}, at least 1]: one row of "
                f"single-token ids per {each} (-1 fills rows that have fewer)"
            )


def check_rows(task: "PairTask") -> None:
    """Whatever accompanies the ids has one entry per prompt."""
    per_prompt: dict[str, Any] = {f"field {name!r}": values for name, values in task.fields.items()}
    per_prompt |= {f"slot {name!r}": where for name, where in task.slots.items()}
    per_prompt |= {name: getattr(task, name) for name in ("texts", "corrupted_texts") if getattr(task, name)}
    for name, values in per_prompt.items():
        if isinstance(values, str) or len(values) != task.n:
            raise ShapeError(f"{name} has {len(values)} entries for {task.n} prompts; give one per prompt")


def check_values(task: "PairTask") -> None:
    """Refuse ids, lengths and positions out of range."""
    for name in ("clean", "corrupted"):
        _first(getattr(task, name) < 0, f"{name} holds a negative token id", "pad on the right with pad_id")
    for name in ("answers", "wrong"):
        ids = getattr(task, name)
        if ids is not None:
            _first(ids < NO_TOKEN, f"{name} holds a negative id other than -1", "-1 alone means 'none'")
            named = (ids >= 0).flatten(1).any(1)
            _first(~named, f"{name} names no token", "give every prompt one")
    width = task.length
    outside = (task.lengths < 1) | (task.lengths > width)
    _first(outside, f"lengths is out of range 1..{width}", "count the tokens before the padding")
    _check_positions(task)
    if task.wrong is not None:
        same = (task.answers[..., :, None] == task.wrong[..., None, :]) & (task.answers[..., :, None] >= 0)
        _first(same, "an answer is also a wrong answer", "an id can be only one of them")


def _check_positions(task: "PairTask") -> None:
    where = task.positions
    if where.ndim == 1:
        outside = (where < 0) | (where >= task.lengths)
    else:
        outside = (where < NO_POSITION) | (where >= task.lengths[:, None])
        read = where >= 0
        _first(~read.any(1), "positions names none", "give every prompt one; -1 only fills rows")
        for name in ("answers", "wrong"):
            ids = getattr(task, name)
            if ids is not None:
                named = (ids >= 0).any(2)
                _first(named & ~read, f"{name} names a token where no position is read", "fill with -1")
        _first(read & ~(task.answers >= 0).any(2), "a read position has no answer", "give each one")
    _first(outside, "positions lies outside its prompt", "count from 0; the last token is lengths - 1")


def _first(bad: Tensor, fact: str, remedy: str) -> None:
    """Raise for the first row in which `bad` holds."""
    if bool(bad.any()):
        row = int(bad.reshape(len(bad), -1).any(1).nonzero()[0])
        raise InputError(f"{fact} (prompt {row}); {remedy}")

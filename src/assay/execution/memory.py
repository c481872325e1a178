"""Peak memory of a run, predicted without doing it: the run itself on tensors with shapes and no numbers.

A copy of the model with such tensors for weights goes through the very code that a real run goes through,
while every array that comes into being and goes out of it is counted. So the prediction follows from what is
really kept (activations for a backward pass, gradients, differences, masks), for this model, length, batch,
number type and attention kernel, and takes no memory and no arithmetic: some 0.1 ms per operation.
What a kernel takes for itself while it works is not seen.
"""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from assay.core.errors import AssayError
from assay.models import Model
from assay.models.streaming import StreamedWeight, streams
from assay.tasks import Task


Run = Callable[[Model, Task], object]

SMALL = 2**18  # numbers that are worked out, not only counted
_SCALAR = torch.ops.aten._local_scalar_dense.default
_ALL = (torch.ops.aten.all.default, torch.ops.aten.all.dim)


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of all arrays that operations inside make and that are still held.

    Views and arrays that were there before count nothing. What does not come from weights (tokens, positions,
    masks of edges) keeps its numbers while it is small. Where an array has none, a question for a number is
    answered as in a healthy run: `all(...)` is true, `any(...)` is false, and numbers are 0.

    Args:
        model: Its weights and buffers count nothing.

    Attributes:
        held: Bytes held now.
        peak: The most bytes held at once.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of PyTorch
        self.held = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._conjunctions = WeakIdKeyDictionary()  # a set: what `all` gave
        self._before = [each.untyped_storage() for each in _weights(model)]
        self._known = {storage._cdata for storage in self._before}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        hollow = any(isinstance(each, FakeTensor) for each in given)
        if func is _SCALAR and hollow:
            return bool(args[0] in self._conjunctions) if args[0].dtype == torch.bool else 0
        result: object = None
        # Results may be large where what they come from is not, and the other way round.
        small = not hollow and _numbers(given) <= SMALL
        if not given or not small:
            result = func(*args, **kwargs)
        if small and _numbers(_tensors(result)) <= SMALL:
            with unset_fake_temporarily():
                result = func(*args, **kwargs)
            if _numbers(_tensors(result)) > SMALL:
                result = func(*args, **kwargs)
        for each in _tensors(result):
            self._count(each)
            if func in _ALL:
                self._conjunctions[each] = True
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or key in self._known:
            return
        self._sizes[key] = storage.nbytes()
        self.held += self._sizes[key]
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.held -= self._sizes.pop(key)


def _tensors(values: object) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def _numbers(tensors: list[Tensor]) -> int:
    return sum(each.numel() for each in tensors)


def _weights(model: Model) -> Iterator[Tensor]:
    yield from model.module.parameters()
    yield from model.module.buffers()


def weight_bytes(model: Model) -> int:
    """Memory of the weights, without those that stay in their checkpoint."""
    held = (each for each in model.module.parameters() if not isinstance(each, StreamedWeight))
    return sum(weight.nbytes for weight in held)


def peak_bytes(model: Model, task: Task, run: Run) -> int | None:
    """The most memory that a run holds at once beyond the weights, predicted without doing it.

    Args:
        model: The model.
        task: The examples, bound to the model, all of which `run` takes in one batch.
        run: What is done with a model and examples.

    Returns:
        Bytes; None where it cannot be known beforehand: the run asks for the numbers of an activation, as
        some methods do, or uses an operation that PyTorch cannot describe by shapes alone, or its weights
        are read from a checkpoint and let go.
    """
    if streams(model.module):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    hollow = _without_numbers(model, mode)
    meter = MemoryMeter(hollow)
    try:
        with _masks_as_in_a_run(), mode, meter:
            run(hollow, task)
    # An error of the run itself is met again when it is done; numbers that are not there may make others.
    except (AssayError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return None
    return meter.peak


def _without_numbers(model: Model, mode: FakeTensorMode) -> Model:
    """A copy of a model whose weights have shapes only."""
    bare = copy.copy(model)
    bare.tokenizer = None
    return copy.deepcopy(bare, {id(weight): mode.from_tensor(weight) for weight in _weights(model)})


@contextmanager
def _masks_as_in_a_run() -> Iterator[None]:
    """Without it, transformers gives attention a whole mask wherever tensors have no numbers."""
    from transformers import masking_utils

    with mock.patch.object(masking_utils, "is_tracing", return_value=False):
        yield


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A batch that fits.

    Attributes:
        size: Examples.
        bytes: What their run holds at most beyond the weights.
    """

    size: int
    bytes: int


def largest_batch(peak: Callable[[int], int | None], most: int, memory: int) -> Fit | None:
    """The largest batch found whose peak fits; one example where not even that does.

    Args:
        peak: Bytes from the number of examples; grows with it.
        most: Largest batch wanted.
        memory: Bytes to spend.

    Returns:
        The batch and its peak; None where the peak cannot be known.

    Notes:
        One prediction where `most` fits, else at most five: a straight line between a batch that fits and one
        that does not gives the next to try, less a tenth for each that proved too large.
    """
    over = peak(most)
    if over is None or over <= memory or most == 1:
        return None if over is None else Fit(size=most, bytes=over)
    above, least = most, peak(1)
    if least is None:
        return None
    fit, slack = Fit(size=1, bytes=least), 1.0
    for _ in range(3):
        if above - fit.size <= 1 or fit.bytes >= memory:
            break
        share = slack * (memory - fit.bytes) / (over - fit.bytes)
        size = min(above - 1, max(fit.size + 1, int(fit.size + share * (above - fit.size))))
        needed = peak(size)
        if needed is None:
            break
        if needed <= memory:
            fit = Fit(size=size, bytes=needed)
        else:
            above, over, slack = size, needed, slack - 0.1
    return fit

"""Where a correctness matrix is held: in memory, as numbers or bits, or on an accelerator."""

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Float64, Int8, Int64, Integer, Num, UInt8

from assay.analyses.subsets.layouts import (
    CHUNK,
    AnswerTable,
    DenseMatrix,
    PackedMatrix,
    ScoreMatrix,
    checked_correct,
    checked_places,
    require_memory,
    whole_weights,
)
from assay.core.errors import FreeMemoryError, InputError, check_name
from assay.core.machine import free_memory


if TYPE_CHECKING:
    import torch

Layout = Literal["auto", "dense", "packed", "accelerator"]
LAYOUTS: tuple[Layout, ...] = ("auto", "dense", "packed", "accelerator")

_DENSE_ENTRIES = 6.4e7  # largest matrix that "auto" holds as float32: 256 MB
_CACHED_ENTRIES = 2**19  # numbers of four bytes that a product on the CPU makes at a time: 2 MB
_UNPACKED: "weakref.WeakKeyDictionary[AnswerTable, weakref.ref[AnswerTable]]" = weakref.WeakKeyDictionary()
_UNPACKING = threading.Lock()  # two threads must not count the same free memory
_DEVICE_ENTRIES = 2**24  # numbers of four bytes that a product on a device makes at a time: 64 MB
_GPU_ROWS = 32  # a product of bytes on a GPU needs more than 16 rows; zeros fill them to a multiple of this


class DeviceMatrix(AnswerTable):
    """Int8 on a torch device, multiplied in chunks of examples.

    Weights are rounded to whole numbers on a grid of 2**-24 of the sum of their absolute values and cut into
    digits of eight bits, three or four; products of digits with 0/1 are exact in float32, with or without
    TF32, and in bytes summed as int32, so the result is the exact sum of the rounded weights on any device.
    A CPU without fast products of bytes multiplies the rounded weights whole, exact in its float32.

    Args:
        correct: 0/1, shape (m, N).
        device: Torch device; default the accelerator that torch finds, else the CPU.

    Raises:
        InputError: If the matrix does not fit the memory of the device.
    """

    name = "accelerator"
    few = 1.0  # both sides of an exchange together have at most as many rows as the set

    def __init__(
        self,
        correct: "UInt8[np.ndarray, 'm n'] | PackedMatrix",
        *,
        device: "str | torch.device | None" = None,
    ):
        import torch

        self.n_models, self.n_examples = shape_of(correct)
        self.device = device_of(device)
        require_memory(
            _rounded_up(self.n_models, 8) * _rounded_up(self.n_examples, 8),
            f"the int8 matrix of {self.n_models} x {self.n_examples} on {self.device}",
            free=_device_memory(self.device),
        )
        # Rows are examples: a chunk of them is contiguous, and a set of them is gathered whole. Zeros fill
        # both sides to a multiple of eight, which products of bytes on a GPU ask for; on a CPU PyTorch 2.13
        # sums the bytes of a single model wrongly.
        filled = [_rounded_up(n, 8) for n in (self.n_examples, self.n_models)]
        self._filled = torch.zeros(filled, dtype=torch.int8, device=self.device)
        self._rows = self._filled[: self.n_examples, : self.n_models]
        for start in range(0, self.n_examples, CHUNK):
            stop = min(start + CHUNK, self.n_examples)
            if isinstance(correct, PackedMatrix):
                rows = correct.by_example(start, stop)
            else:
                rows = np.ascontiguousarray(correct[:, start:stop].T)
            self._rows[start:stop] = torch.from_numpy(rows.view(np.int8)).to(self.device)

    @property
    def nbytes(self) -> int:
        return int(self._filled.nbytes)

    def weigh(self, weights: Float64[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
        return np.asarray(self.weigh_many(weights[None])[0])

    def weigh_many(self, weights: Float64[np.ndarray, "k m"]) -> Float[np.ndarray, "k n"]:
        import torch

        rounded = [whole_weights(each) for each in weights]
        whole, scale = np.stack([each for each, _ in rounded]), np.array([each for _, each in rounded])
        product_kind = _kind_of_product(self.device)
        if product_kind == "whole":
            return _unscaled(self._weigh_whole(whole), scale)
        digits = np.concatenate(_digits(whole))
        small = product_kind == "bytes"
        on_gpu = small and self.device.type == "cuda"
        kind, multiply = (torch.int8, torch._int_mm) if small else (torch.float32, torch.matmul)
        n_rows = _rounded_up(len(digits), _GPU_ROWS) if on_gpu else len(digits)
        asked = np.zeros((n_rows, self._filled.shape[1]), dtype=np.int8)
        asked[: len(digits), : self.n_models] = digits
        on_device = torch.from_numpy(asked).to(self.device, kind)
        sums = np.empty((len(weights), self.n_examples), dtype=np.float32)  # exact: whole, up to 2**24
        step = self._step(n_rows if on_gpu else self.n_models)
        for start in range(0, self.n_examples, step):
            rows = self._filled[start : start + step]
            product = multiply(on_device, rows.to(kind).T)[: len(digits)].to(torch.int32)
            total, *higher = product.chunk(len(digits) // len(weights))
            for place, each in enumerate(higher, 1):
                total.add_(each, alpha=256**place)  # the whole fits, whatever its parts
            stop = min(start + step, self.n_examples)
            sums[:, start:stop] = total[:, : stop - start].cpu().numpy()
        return _unscaled(sums, scale)

    def _weigh_whole(self, whole: Float64[np.ndarray, "k m"]) -> Float32[np.ndarray, "k n"]:
        """Whole weights with 0/1 in float32; a chunk of examples is converted and multiplied in the cache."""
        rows, sums = self._rows.numpy(), np.empty((len(whole), self.n_examples), dtype=np.float32)
        weights = np.zeros((self.n_models, _rounded_up(len(whole), 4)), dtype=np.float32)  # odd widths: 1.2x
        weights[:, : len(whole)] = whole.T
        held = np.empty((max(1, _CACHED_ENTRIES // self.n_models), self.n_models), dtype=np.float32)
        for start in range(0, self.n_examples, len(held)):
            chunk = held[: self.n_examples - start]
            np.copyto(chunk, rows[start : start + len(held)])
            sums[:, start : start + len(chunk)] = (chunk @ weights)[:, : len(whole)].T
        return sums

    def _step(self, n_numbers: int) -> int:
        """Examples at a time, where each takes so many numbers: a multiple of eight."""
        return max(8, _DEVICE_ENTRIES // n_numbers // 8 * 8)

    def count(self, examples: Int64[np.ndarray, " k"]) -> Int64[np.ndarray, " m"]:
        return self.gained(examples, examples[:0])

    def gained(
        self, entering: Int64[np.ndarray, " k"], leaving: Int64[np.ndarray, " j"]
    ) -> Int64[np.ndarray, " m"]:
        import torch

        examples = self.checked_examples(np.concatenate([entering, leaving]))
        total = torch.zeros(self.n_models, dtype=torch.int64, device=self.device)
        step = self._step(self.n_models)
        for start in range(0, len(examples), step):
            places = torch.from_numpy(examples[start : start + step]).to(self.device)
            rows, n_entering = self._rows.index_select(0, places), max(0, len(entering) - start)
            total += rows[:n_entering].sum(dim=0, dtype=torch.int64)
            total -= rows[n_entering:].sum(dim=0, dtype=torch.int64)
        return total.cpu().numpy()

    def column_sums(self) -> Int64[np.ndarray, " n"]:
        import torch

        return self._rows.sum(dim=1, dtype=torch.int64).cpu().numpy()

    def dense(self, examples: Int64[np.ndarray, " k"] | None = None) -> UInt8[np.ndarray, "m k"]:
        return np.ascontiguousarray(self._taken(examples).cpu().numpy().T).view(np.uint8)

    def tensor(self, dtype: "torch.dtype", examples: Int64[np.ndarray, " k"] | None = None) -> "torch.Tensor":
        import torch

        rows = self._taken(examples)
        require_memory(
            rows.numel() * dtype.itemsize,
            f"a matrix of {self.n_models} x {len(rows)} as floating-point numbers on {self.device}",
            free=_device_memory(self.device),
        )
        return torch.empty((self.n_models, len(rows)), dtype=dtype, device=self.device).copy_(rows.T)

    def _taken(self, examples: Int64[np.ndarray, " k"] | None) -> "torch.Tensor":
        import torch

        if examples is None:
            return self._rows
        places = torch.from_numpy(self.checked_examples(examples)).to(self.device)
        return self._rows.index_select(0, places)


def _rounded_up(n: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-n // unit) * unit


def _unscaled(sums: Float32[np.ndarray, "k n"], scale: Float64[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
    return sums if (scale == 1).all() else np.asarray(sums / scale[:, None])


def _digits(whole: Float64[np.ndarray, "k m"]) -> list[Int8[np.ndarray, "k m"]]:
    """Whole numbers as digits to the base 256 in [-128, 127], the lowest first: four up to 2**24."""
    left = whole.astype(np.int64)
    places: list[Int8[np.ndarray, "k m"]] = []
    while left.any() or not places:
        digit = (left + 128) % 256 - 128
        places.append(digit.astype(np.int8))
        left = (left - digit) // 256
    return places


def int8_is_fast() -> bool:
    """Whether this processor multiplies bytes four at a time (VNNI); without, float32 is faster."""
    import torch

    known = getattr(torch.cpu, "_is_vnni_supported", None)
    return bool(known and known()) and torch.backends.mkldnn.is_available()


def _kind_of_product(device: "torch.device") -> Literal["bytes", "digits", "whole"]:
    """The fastest exact one: NVIDIA's cards multiply bytes since Turing; TF32 would round whole weights."""
    import torch

    if device.type == "cpu":
        return "bytes" if int8_is_fast() else "whole"
    if device.type == "cuda" and torch.version.cuda is not None:
        return "bytes" if torch.cuda.get_device_capability(device) >= (7, 5) else "digits"
    return "digits"


def fewest_products() -> int:
    """Products at a time from which bytes cost less than bits on this processor."""
    return 3 if int8_is_fast() else 5


def for_many(matrix: AnswerTable, k: int) -> AnswerTable:
    """The same answers, held so that k products at a time cost least: bytes instead of bits where they fit.

    A byte per answer is eight times the memory of the packed layout. Threads that use the same matrix share
    the bytes, which live as long as one of them holds them: a job goes through many matrices. To make the
    bytes anew costs about as much as four products of eight weights with them, of the dozens that a solver
    takes. With fast products of bytes, eight at a time then cost a third of those in the packed layout and
    twenty-four a fifth; without, a half and a quarter.
    """
    if not isinstance(matrix, PackedMatrix) or k < fewest_products():
        return matrix
    with _UNPACKING:
        unpacked = _UNPACKED[matrix]() if matrix in _UNPACKED else None
        if unpacked is None and 2 * matrix.n_models * matrix.n_examples <= free_memory():
            with contextlib.suppress(FreeMemoryError):  # another process took the memory since
                unpacked = DeviceMatrix(matrix, device="cpu")
                _UNPACKED[matrix] = weakref.ref(unpacked)
        return matrix if unpacked is None else unpacked


def as_matrix(
    correct: np.ndarray | PackedMatrix,
    models: Integer[np.ndarray, " k"] | None = None,
    *,
    layout: str = "auto",
    device: "str | torch.device | None" = None,
) -> AnswerTable:
    """The rows of some models in the layout that suits their size.

    Args:
        correct: 0/1 uint8 of shape (models, examples), or packed; or scores as float32.
        models: Row indices, in the order wanted; default all.
        layout: `dense` (float32), `packed` (bits), `accelerator` (int8 on a device), or `auto`: dense up
            to 64 million entries, packed beyond, the accelerator only when `device` names one that is not the
            CPU.
        device: Torch device of the accelerator layout.

    Raises:
        InputError: If the layout is unknown or does not fit the memory.
    """
    check_name("layout", layout, LAYOUTS)
    n_models, n_examples = shape_of(correct)
    rows = None if models is None else checked_places(np.asarray(models, dtype=np.int64), n_models, "models")
    n_entries = (n_models if rows is None else len(rows)) * n_examples
    check_device(device, layout)
    if has_scores(correct):
        if layout not in ("auto", "dense"):
            raise InputError(
                f"layout is {layout!r}, which holds 0 and 1; scores need layout 'auto' or 'dense'"
            )
        if device is not None and str(device) != "cpu":
            raise InputError(f"device is {str(device)!r}, but scores are computed with on the CPU; remove it")
        return ScoreMatrix(rows_of(correct, rows))
    if layout == "auto" and device is not None and str(device) != "cpu":
        layout = "accelerator"
    elif layout == "auto":
        layout = "dense" if n_entries <= _DENSE_ENTRIES else "packed"
    if layout == "accelerator":
        return DeviceMatrix(rows_of(correct, rows), device=device)
    if layout == "packed":
        return rows_of(correct, rows) if isinstance(correct, PackedMatrix) else _packed_rows(correct, rows)
    require_memory(5 * n_entries, f"a dense matrix of {n_entries // n_examples} x {n_examples}")
    taken = rows_of(correct, rows)
    return DenseMatrix(taken.dense() if isinstance(taken, PackedMatrix) else taken)


def has_scores(correct: Any) -> bool:
    """Whether a matrix holds scores in [0, 1], as float32, not right and wrong answers."""
    return isinstance(correct, np.ndarray) and correct.dtype == np.float32


def shape_of(correct: np.ndarray | PackedMatrix) -> tuple[int, int]:
    """Models and examples."""
    if isinstance(correct, PackedMatrix):
        return correct.n_models, correct.n_examples
    if has_scores(correct):
        return correct.shape[0], correct.shape[1]
    n_models, n_examples = checked_correct(correct).shape
    return n_models, n_examples


def rows_of(correct: Any, models: Int64[np.ndarray, " k"] | None) -> Any:
    """The rows of some models (default: all), packed or not as they are."""
    if models is None:
        return correct
    return correct.take(models) if isinstance(correct, PackedMatrix) else correct[models]


def columns_of(correct: Any, examples: Int64[np.ndarray, " k"]) -> Num[np.ndarray, "m k"]:
    """Some columns, as 0 and 1, or scores."""
    return correct.dense(examples) if isinstance(correct, PackedMatrix) else correct[:, examples]


def row_of(correct: Any, model: int) -> Num[np.ndarray, " n"]:
    """The answers of one model, as 0 and 1, or its scores."""
    if isinstance(correct, PackedMatrix):
        return np.asarray((correct.bits[model // 8] >> (model % 8)) & 1)
    return np.asarray(correct[model])


def _packed_rows(correct: np.ndarray, rows: Int64[np.ndarray, " k"] | None) -> PackedMatrix:
    """Packs some rows of a dense array, eight at a time, so that no copy of all of them is made."""
    if rows is None:
        return PackedMatrix.pack(correct)
    bits = np.empty((-(-len(rows) // 8), correct.shape[1]), dtype=np.uint8)
    for row in range(len(bits)):
        bits[row] = np.packbits(correct[rows[8 * row : 8 * row + 8]], axis=0, bitorder="little")[0]
    return PackedMatrix(bits, len(rows))


def check_device(device: "str | torch.device | None", layout: str = "auto") -> None:
    """Refuse a device that PyTorch cannot use, or that a layout of main memory would leave idle.

    Raises:
        InputError: Naming the device.
    """
    if device is None or str(device) == "cpu":
        return
    if layout in ("dense", "packed"):
        raise InputError(
            f"device is {str(device)!r}, but layout {layout!r} uses main memory; remove one of them"
        )
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # an unknown name, no driver, or a build without it
        reason = str(error).splitlines()[0]
        raise InputError(f"PyTorch cannot use device {str(device)!r} here: {reason}") from error


def device_of(device: "str | torch.device | None") -> "torch.device":
    """The one that is named, else the accelerator that torch finds, else the CPU."""
    import torch

    if device is not None:
        return torch.device(device)
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None:
            return accelerator
    return torch.device("cpu")


def _device_memory(device: "torch.device") -> int | None:
    import torch

    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None

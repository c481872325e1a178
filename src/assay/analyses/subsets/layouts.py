"""Three ways to hold the correctness of m models on N examples, for the two products that a solver needs.

A solver asks for `weights @ X` over all examples (gradients, screening) and for the number of correct answers
of every model on a set of examples (the selected accuracy). Both are answered without ever forming the dense
matrix where it was not given: `PackedMatrix` holds eight models per byte, 32 times less than float32.

The same call on the same matrix gives the same bits. Where the weights are whole numbers whose absolute
values sum to at most 2**24, every partial sum is exact in float32, so all layouts, devices and thread counts
agree.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64, Num, UInt8

from assay.core.errors import FreeMemoryError, InputError, ShapeError
from assay.core.machine import free_memory


if TYPE_CHECKING:
    import torch

EXACT_WEIGHTS = 2**24  # whole weights whose absolute values sum to at most this are summed exactly in float32
_SMALLEST_WEIGHTS = 1e-290  # sums below this have no finite scale and count as zero
_COLUMNS = 16384  # examples per block of a packed product: index, gathered values and sums stay in cache
_PAIR_EXAMPLES = 16_000  # from here on a table of 65,536 sums costs less to fill than it saves
CHUNK = 4096  # examples unpacked at a time; a multiple of 64


class AnswerTable(ABC):
    """Correctness of models on examples: X[i, j] = 1 iff model i answers example j correctly, or its score.

    Attributes:
        name: Of the layout.
        n_models: m.
        n_examples: N.
        few: Share of the examples up to which counting the exchanged beats counting all members.
    """

    name: ClassVar[str]
    few: ClassVar[float] = 1 / 64
    n_models: int
    n_examples: int

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the matrix as held, in memory or on the device."""

    @abstractmethod
    def weigh(self, weights: Float64[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
        """One pass over the matrix, `weights @ X`, summed in float32; the module says when that is exact."""

    def weigh_many(self, weights: Float64[np.ndarray, "k m"]) -> Float[np.ndarray, "k n"]:
        """`weigh` for each row of weights."""
        return np.stack([self.weigh(each) for each in weights])

    @abstractmethod
    def column_sums(self) -> Num[np.ndarray, " n"]:
        """Models that answer each example correctly."""

    @abstractmethod
    def dense(self, examples: Int64[np.ndarray, " k"] | None = None) -> Num[np.ndarray, "m k"]:
        """The columns of `examples` (default: all) as a new array of 0 and 1, or of scores."""

    def tensor(self, dtype: "torch.dtype", examples: Int64[np.ndarray, " k"] | None = None) -> "torch.Tensor":
        """The same as a tensor of floating-point numbers, on the device of the layout."""
        import torch

        return torch.from_numpy(self.dense(examples)).to(dtype)

    def count(self, examples: Int64[np.ndarray, " k"]) -> Num[np.ndarray, " m"]:
        """Correct answers of every model on `examples`, exact; an example given twice counts twice."""
        return self._example_bits.count(self.checked_examples(examples))

    def gained(
        self, entering: Int64[np.ndarray, " k"], leaving: Int64[np.ndarray, " j"]
    ) -> Num[np.ndarray, " m"]:
        """Correct answers of every model on `entering`, less those on `leaving`."""
        return np.asarray(self.count(entering) - self.count(leaving))

    @cached_property
    def _example_bits(self) -> "_ExampleBits":
        n = self.n_examples
        chunks = (self.dense(np.arange(start, min(start + CHUNK, n))) for start in range(0, n, CHUNK))
        return _ExampleBits(self.n_models, n, chunks)

    def checked_examples(self, examples: np.ndarray) -> np.ndarray:
        """Places of examples, all of which the matrix has."""
        return checked_places(examples, self.n_examples, "examples")


class _ExampleBits:
    """The matrix packed along examples, 64 per word: counts on a set of examples by AND and population count.

    Words lie in rows of m, one row per 64 examples, so that a small set touches few rows.
    """

    def __init__(self, n_models: int, n_examples: int, chunks: Iterator[UInt8[np.ndarray, "m _"]]):
        self.n_examples = n_examples
        self.words = np.empty((-(-n_examples // 64), n_models), dtype=np.uint64)
        row = 0
        for chunk in chunks:  # every chunk but the last holds a multiple of 64 examples
            rows = -(-chunk.shape[1] // 64)
            packed = np.zeros((n_models, 8 * rows), dtype=np.uint8)
            part = np.packbits(chunk, axis=1, bitorder="little")
            packed[:, : part.shape[1]] = part
            self.words[row : row + rows] = packed.view("<u8").T
            row += rows

    def count(self, examples: Int64[np.ndarray, " k"]) -> Int64[np.ndarray, " m"]:
        repeats = np.bincount(examples, minlength=self.n_examples)
        total = np.zeros(self.words.shape[1], dtype=np.int64)
        for times in range(1, int(repeats.max(initial=0)) + 1):
            total += self._count(repeats >= times)
        return total

    def _count(self, chosen: np.ndarray) -> Int64[np.ndarray, " m"]:
        packed = np.zeros(8 * len(self.words), dtype=np.uint8)
        part = np.packbits(chosen, bitorder="little")
        packed[: len(part)] = part
        mask = packed.view("<u8")
        touched = np.flatnonzero(mask)
        total = np.zeros(self.words.shape[1], dtype=np.int64)
        step = max(1, 2**16 // max(1, len(total)))  # words at a time, in cache; at most 64 * step fits uint32
        for start in range(0, len(touched), step):
            rows = touched[start : start + step]
            if rows[-1] - rows[0] + 1 == len(rows):  # adjacent rows need no copy
                words = self.words[rows[0] : rows[-1] + 1] & mask[rows, None]
            else:
                words = self.words[rows]
                words &= mask[rows, None]
            total += np.add.reduce(np.bitwise_count(words), axis=0, dtype=np.uint32)
        return total


def checked_places(places: np.ndarray, n: int, what: str) -> np.ndarray:
    """Places of models or examples (`what`), all of which the matrix has."""
    if places.size and not (places.min() >= 0 and places.max() < n):
        raise InputError(
            f"{what} holds indices from {places.min()} to {places.max()}, but the matrix has {what} 0 "
            f"to {n - 1}"
        )
    return places


def checked_correct(correct: np.ndarray) -> np.ndarray:
    """uint8, models by examples."""
    if correct.ndim != 2 or correct.dtype != np.uint8:
        raise ShapeError(
            f"correct is {correct.dtype} of shape {correct.shape}; expected uint8 of shape (models, examples)"
        )
    return correct


class DenseMatrix(AnswerTable):
    """Float32, for BLAS: the fastest for small matrices and the largest.

    Args:
        correct: 0/1, shape (m, N).
    """

    name = "dense"

    def __init__(self, correct: UInt8[np.ndarray, "m n"]):
        self.n_models, self.n_examples = checked_correct(correct).shape
        require_memory(4 * correct.size, f"a dense matrix of {self.n_models} x {self.n_examples}")
        self.values = correct.astype(np.float32, order="C")

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def weigh(self, weights: Float64[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
        return weights.astype(np.float32) @ self.values

    def weigh_many(self, weights: Float64[np.ndarray, "k m"]) -> Float[np.ndarray, "k n"]:
        return weights.astype(np.float32) @ self.values

    def column_sums(self) -> Int64[np.ndarray, " n"]:
        # Exact: the sums are whole and below 2**24.
        return (np.ones(self.n_models, dtype=np.float32) @ self.values).astype(np.int64)

    def dense(self, examples: Int64[np.ndarray, " k"] | None = None) -> UInt8[np.ndarray, "m k"]:
        columns = slice(None) if examples is None else self.checked_examples(examples)
        # In order of rows, as every layout: products sum otherwise, with other bits.
        return self.values[:, columns].astype(np.uint8, order="C")


class ScoreMatrix(AnswerTable):
    """Scores in [0, 1] as float32, with examples as rows; a count is a sum of scores in float64.

    Args:
        scores: Shape (m, N).
    """

    name = "scores"

    def __init__(self, scores: Float32[np.ndarray, "m n"]):
        self.n_models, self.n_examples = scores.shape
        require_memory(4 * scores.size, f"a matrix of scores of {self.n_models} x {self.n_examples}")
        self._rows = np.ascontiguousarray(scores.T)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def weigh(self, weights: Float64[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
        return self._rows @ weights.astype(np.float32)

    def column_sums(self) -> Float64[np.ndarray, " n"]:
        return np.asarray(self._rows.sum(axis=1, dtype=np.float64))

    def dense(self, examples: Int64[np.ndarray, " k"] | None = None) -> Float32[np.ndarray, "m k"]:
        rows = self._rows if examples is None else self._rows[self.checked_examples(examples)]
        return np.ascontiguousarray(rows.T)

    def count(self, examples: Int64[np.ndarray, " k"]) -> Float64[np.ndarray, " m"]:
        return np.asarray(self._rows[self.checked_examples(examples)].sum(axis=0, dtype=np.float64))


_BITS_OF_BYTE = ((np.arange(256)[:, None] >> np.arange(8)) & 1).astype(np.float64)  # [byte, bit], LSB first


class PackedMatrix(AnswerTable):
    """Bit-packed along models: bit b of `bits[r, j]` is X[8 r + b, j], the least significant bit first.

    A product adds, for each row of bytes and each example, one of the 256 partial sums of the row's eight
    weights; with many examples, one of the 65,536 of two rows, a table that still fits the second-level
    cache. Counts use a second packing, along examples. Both second forms are made on first use, each as large
    as `bits`.

    Args:
        bits: Shape (ceil(m/8), N); bits beyond the last model are 0.
        n_models: m.

    Raises:
        ShapeError: If `bits` is not uint8 with ceil(m/8) rows.
        InputError: If a bit beyond the last model is set.
    """

    name = "packed"

    def __init__(self, bits: UInt8[np.ndarray, "rows n"], n_models: int):
        if bits.ndim != 2 or bits.dtype != np.uint8 or bits.shape[0] != -(-n_models // 8) or n_models < 1:
            raise ShapeError(
                f"bits is {bits.dtype} of shape {bits.shape}; expected uint8 with ceil(models / 8) rows, "
                f"{-(-n_models // 8)} for {n_models} models"
            )
        if n_models % 8 and bits[-1].max(initial=0) >> (n_models % 8):
            raise InputError(
                f"the last row of bits has bits set beyond model {n_models - 1}; pack with PackedMatrix.pack "
                "or numpy.packbits(correct, axis=0, bitorder='little')"
            )
        self.bits = np.ascontiguousarray(bits)
        self.n_models = n_models
        self.n_examples = bits.shape[1]

    @classmethod
    def pack(cls, correct: UInt8[np.ndarray, "m n"]) -> "PackedMatrix":
        """Packs a 0/1 array, a chunk of examples at a time; a memory map is read once."""
        n_models, n_examples = checked_correct(correct).shape
        bits = np.empty((-(-n_models // 8), n_examples), dtype=np.uint8)
        for start in range(0, n_examples, CHUNK):
            part = np.asarray(correct[:, start : start + CHUNK])
            bits[:, start : start + CHUNK] = np.packbits(part, axis=0, bitorder="little")
        return cls(bits, n_models)

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    @cached_property
    def _words(self) -> np.ndarray:
        """Pairs of rows of bytes as uint16, the lower row in the lower byte."""
        words = np.zeros((-(-len(self.bits) // 2), self.n_examples), dtype=np.uint16)
        for row, bits in enumerate(self.bits):
            words[row // 2] |= bits.astype(np.uint16) << 8 * (row % 2)
        return words

    def weigh(self, weights: Float64[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
        padded = np.zeros(16 * -(-self.n_models // 16))
        padded[: self.n_models] = weights
        by_byte = (padded.reshape(-1, 8) @ _BITS_OF_BYTE.T).astype(np.float32)
        total = np.zeros(self.n_examples, dtype=np.float32)
        index = np.empty(min(_COLUMNS, self.n_examples), dtype=np.intp)
        gathered = np.empty(len(index), dtype=np.float32)

        def add(table: np.ndarray, codes: np.ndarray) -> None:
            for start in range(0, self.n_examples, _COLUMNS):
                stop = min(start + _COLUMNS, self.n_examples)
                at, values = index[: stop - start], gathered[: stop - start]
                at[...] = codes[start:stop]
                table.take(at, out=values, mode="wrap")  # never out of range; "raise" would buffer the output
                total[start:stop] += values

        if self.n_examples < _PAIR_EXAMPLES:
            for table, codes in zip(by_byte, self.bits, strict=False):
                add(table, codes)
            return total
        # Sums of every high with every low entry: as a product of rank two, a third of the time of a
        # broadcast sum.
        pair = np.empty((256, 256), dtype=np.float32)
        high, low = np.ones((256, 2), dtype=np.float32), np.ones((2, 256), dtype=np.float32)
        for row, codes in enumerate(self._words):
            low[1], high[:, 0] = by_byte[2 * row], by_byte[2 * row + 1]
            add(np.matmul(high, low, out=pair).reshape(-1), codes)
        return total

    def take(self, models: Int64[np.ndarray, " k"]) -> "PackedMatrix":
        """The rows of `models`, in that order."""
        checked_places(models, self.n_models, "models")
        bits = np.zeros((-(-len(models) // 8), self.n_examples), dtype=np.uint8)
        for position, model in enumerate(models.tolist()):
            row = self.bits[model >> 3] >> (model & 7)
            row &= 1
            row <<= position & 7
            bits[position >> 3] |= row
        return PackedMatrix(bits, len(models))

    def column_sums(self) -> Int64[np.ndarray, " n"]:
        total = np.zeros(self.n_examples, dtype=np.int64)
        for start in range(0, self.n_examples, _COLUMNS):
            counts = np.bitwise_count(self.bits[:, start : start + _COLUMNS])
            np.add.reduce(counts, axis=0, dtype=np.int64, out=total[start : start + _COLUMNS])
        return total

    def dense(self, examples: Int64[np.ndarray, " k"] | None = None) -> UInt8[np.ndarray, "m k"]:
        columns = slice(None) if examples is None else self.checked_examples(examples)
        return unpacked(self.bits[:, columns], self.n_models)

    def by_example(self, start: int, stop: int) -> UInt8[np.ndarray, "k m"]:
        """The examples from `start` to before `stop` as rows of 0 and 1: bytes are turned, not answers."""
        turned = np.ascontiguousarray(self.bits[:, start:stop].T)
        return np.unpackbits(turned, axis=1, count=self.n_models, bitorder="little")


def unpacked(bits: UInt8[np.ndarray, "rows k"], n_models: int) -> UInt8[np.ndarray, "m k"]:
    """0/1 from bytes; shifting whole rows is many times faster than `numpy.unpackbits` on the first axis."""
    out = np.empty((n_models, bits.shape[1]), dtype=np.uint8)
    for bit in range(8):
        part = out[bit::8]
        np.right_shift(bits[: len(part)], bit, out=part)
        part &= 1
    return out


def whole_weights(weights: Float64[np.ndarray, " m"]) -> tuple[Float64[np.ndarray, " m"], float]:
    """Weights rounded to whole numbers that every layout sums exactly, and the scale that was applied.

    round(weights * scale), with absolute values that sum to at most `EXACT_WEIGHTS`. Examples with equal
    columns then have equal sums in every layout, on every machine, and ties are ties. The rounding error of a
    sum over m models, about sqrt(m/24) units, is some 1e-4 of the spread of the sums for thousands of models.

    Returns:
        Whole numbers as float64, and the scale; weights that are whole already come back unchanged, scale 1.
    """
    total = float(np.abs(weights).sum())
    if total <= EXACT_WEIGHTS and np.array_equal(weights, np.rint(weights)):
        return weights, 1.0
    if total < _SMALLEST_WEIGHTS:
        return np.zeros_like(weights), 1.0
    scale = (EXACT_WEIGHTS - len(weights)) / total
    return np.rint(weights * scale), scale


def require_memory(needed: int, what: str, *, free: int | None = None) -> None:
    """Raises `FreeMemoryError` unless so many bytes are free."""
    free = free_memory() if free is None else free
    if needed > free:
        raise FreeMemoryError(
            f"{what} needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free; use "
            'layout="packed", which stores eight models per byte'
        )

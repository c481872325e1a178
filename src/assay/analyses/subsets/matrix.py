"""Answers of models on examples, held once, with the exact products that a solver asks for.

Right and wrong answers are held as bits, 32 times smaller than float32. Weights of a product are whole
numbers whose absolute values sum to at most 2**24 (`whole_weights`): every partial sum is exact in
float32, so a product has the same bits whichever way it is computed and on any number of threads.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Float64, Int8, Int64, Num, UInt8


if TYPE_CHECKING:
    import torch

Binary = UInt8[np.ndarray, "m n"]
Weights = Float64[np.ndarray, "k m"]
Products = Float32[np.ndarray, "k n"]
Places = Int64[np.ndarray, " _"]

EXACT_WEIGHTS = 2**24  # whole weights whose absolute values sum to at most this are summed exactly in float32
_SMALLEST_WEIGHTS = 1e-290  # sums below this have no finite scale and count as zero
_ENTRIES = 2**19  # numbers of four bytes that a product on the CPU makes at a time: 2 MB
_COLUMNS = 16384  # examples per block of a product by table: index, gathered values and sums stay in cache
_FEW_PRODUCTS = 6  # below this many products at a time, tables of sums cost less than numbers made from bits
_BITS_OF_BYTE = ((np.arange(256)[:, None] >> np.arange(8)) & 1).astype(np.float64)  # [byte, bit], LSB first


class Answers(ABC):
    """X[i, j]: 1 where model i answers example j correctly, else 0; or its score in [0, 1].

    Attributes:
        n_models: m.
        n_examples: N.
    """

    n_models: int
    n_examples: int

    @staticmethod
    def of(correct: Binary | Float32[np.ndarray, "m n"], models: Places | None = None) -> "Answers":
        """The answers of some models.

        Args:
            correct: 0 and 1 as uint8, or scores in [0, 1] as float32.
            models: Rows, in the order wanted. Default: all.
        """
        rows = np.arange(len(correct)) if models is None else models
        return _Bits(correct, rows) if correct.dtype == np.uint8 else _Scores(correct, rows)

    @abstractmethod
    def weigh(self, weights: Weights) -> Products:
        """`weights @ X` for rows of whole weights."""

    @abstractmethod
    def count(self, examples: Places) -> Num[np.ndarray, " m"]:
        """Right answers of every model on different examples; of scores, their sum in float64."""

    @abstractmethod
    def columns(self, examples: Places) -> "torch.Tensor":
        """The columns of some examples as float32 `[m, k]`."""


class _Bits(Answers):
    """Packed along models for products and along examples for counts.

    Bit b of `_words[r, j]` is X[16 r + b, j], bit b of `_by_example[r, i]` is X[i, 64 r + b]; what is beyond
    the matrix is 0. A small set of examples touches few rows of the second.
    """

    def __init__(self, correct: Binary, rows: Places):
        self.n_models, self.n_examples = m, n = len(rows), correct.shape[1]
        self._words = np.zeros((-(-m // 16), n), dtype="<u2")
        self._by_example = np.zeros((-(-n // 64), m), dtype="<u8")
        for row in range(len(self._words)):  # sixteen models at a time, so that no copy of all is made
            answers = np.zeros((16, 64 * len(self._by_example)), dtype=np.uint8)
            chosen = rows[16 * row : 16 * row + 16]
            answers[: len(chosen), :n] = correct[chosen]
            low, high = np.packbits(answers[:, :n], axis=0, bitorder="little").astype("<u2")
            self._words[row] = low | high << 8
            turned = np.packbits(answers, axis=1, bitorder="little").view("<u8").T
            self._by_example[:, 16 * row : 16 * row + 16] = turned[:, : len(chosen)]

    def weigh(self, weights: Weights) -> Products:
        large, width = self.n_examples >= _COLUMNS, 16 * len(self._words)
        if large and len(weights) < _FEW_PRODUCTS:
            return np.stack([self._weigh_by_table(each) for each in weights])
        small = large and bytes_are_fast()
        parts = _digits(weights) if small else weights[None].astype(np.float32)
        padded = np.zeros((len(parts) * len(weights), width), parts.dtype)
        padded[:, : self.n_models] = parts.reshape(len(padded), -1)
        products = np.empty((len(weights), self.n_examples), dtype=np.float32)
        step = max(1, _ENTRIES // width)
        for start in range(0, self.n_examples, step):
            answers = self._unpacked(slice(start, start + step))
            sums = _bytes_product(padded, answers) if small else padded @ answers.astype(np.float32).T
            *lower, total = sums.reshape(len(parts), len(weights), -1)
            for digit in reversed(lower):
                total = total * 256 + digit
            products[:, start : start + step] = total
        return products

    def _unpacked(self, examples: Places | slice) -> UInt8[np.ndarray, "k m"]:
        """Examples as rows of 0 and 1, filled with zeros: words are turned, not answers."""
        words = np.ascontiguousarray(self._words[:, examples].T)
        return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")

    def _weigh_by_table(self, weights: Float64[np.ndarray, " m"]) -> Float32[np.ndarray, " n"]:
        """For each 16 models and each example, one of the 65,536 sums of their weights."""
        padded = np.zeros(16 * len(self._words))
        padded[: self.n_models] = weights
        by_byte = (padded.reshape(-1, 8) @ _BITS_OF_BYTE.T).astype(np.float32)
        total = np.zeros(self.n_examples, dtype=np.float32)
        index, gathered = np.empty(_COLUMNS, dtype=np.intp), np.empty(_COLUMNS, dtype=np.float32)
        # Sums of every high with every low entry: as a product of rank two, a third of the time of a
        # broadcast sum.
        table = np.empty((256, 256), dtype=np.float32)
        high, low = np.ones((256, 2), dtype=np.float32), np.ones((2, 256), dtype=np.float32)
        for row, words in enumerate(self._words):
            low[1], high[:, 0] = by_byte[2 * row], by_byte[2 * row + 1]
            np.matmul(high, low, out=table)
            for start in range(0, self.n_examples, _COLUMNS):
                codes = words[start : start + _COLUMNS]
                at, values = index[: len(codes)], gathered[: len(codes)]
                at[...] = codes
                table.take(at, out=values, mode="wrap")  # never out of range; "raise" would buffer the output
                total[start : start + _COLUMNS] += values
        return total

    def count(self, examples: Places) -> Int64[np.ndarray, " m"]:
        chosen = np.zeros(64 * len(self._by_example), dtype=bool)
        chosen[examples] = True
        mask = np.packbits(chosen, bitorder="little").view("<u8")
        touched = np.flatnonzero(mask)
        total = np.zeros(self.n_models, dtype=np.int64)
        step = max(1, 2**16 // self.n_models)  # words at a time, in cache; at most 64 * step fits uint32
        for start in range(0, len(touched), step):
            rows = touched[start : start + step]
            adjacent = rows[-1] - rows[0] + 1 == len(rows)  # these need no copy
            words = self._by_example[slice(rows[0], rows[-1] + 1) if adjacent else rows] & mask[rows, None]
            total += np.add.reduce(np.bitwise_count(words), axis=0, dtype=np.uint32)
        return total

    def columns(self, examples: Places) -> "torch.Tensor":
        import torch

        answers = self._unpacked(examples)[:, : self.n_models].T
        # In order of models: products sum otherwise, with other bits.
        return torch.from_numpy(answers.astype(np.float32, order="C"))


def bytes_are_fast() -> bool:
    """Whether this processor multiplies bytes four at a time (VNNI); without, float32 is faster."""
    import torch

    return torch.cpu._is_vnni_supported() and torch.backends.mkldnn.is_available()


def _bytes_product(weights: np.ndarray, answers: np.ndarray) -> np.ndarray:
    import torch

    return torch._int_mm(torch.from_numpy(weights), torch.from_numpy(answers.view(np.int8)).T).numpy()


def _digits(whole: Weights) -> Int8[np.ndarray, "digits k m"]:
    """Whole numbers up to 2**24 as digits to the base 256 in [-128, 127], the lowest first, none in vain."""
    shifted = (whole.astype(np.int64) + 0x80808080).astype("<u4")
    digits = (shifted.view(np.uint8).reshape(*whole.shape, 4) ^ 0x80).view(np.int8).transpose(2, 0, 1)
    return digits[: max(1, 4 - int(np.argmax(digits[::-1].any(axis=(1, 2)))))]


class _Scores(Answers):
    """Float32 with examples as rows, a product at a time: sums of scores are rounded, in one order only."""

    def __init__(self, scores: Float32[np.ndarray, "m n"], rows: Places):
        self.n_models, self.n_examples = len(rows), scores.shape[1]
        self._rows = np.ascontiguousarray(scores[rows].T)

    def weigh(self, weights: Weights) -> Products:
        return np.stack([self._rows @ each for each in weights.astype(np.float32)])

    def count(self, examples: Places) -> Float64[np.ndarray, " m"]:
        return np.asarray(self._rows[examples].sum(axis=0, dtype=np.float64))

    def columns(self, examples: Places) -> "torch.Tensor":
        import torch

        return torch.from_numpy(np.ascontiguousarray(self._rows[examples].T))


def whole_weights(weights: Float64[np.ndarray, " m"]) -> tuple[Float64[np.ndarray, " m"], float]:
    """Weights rounded to whole numbers that every product sums exactly, and the scale that was applied.

    round(weights * scale), with absolute values that sum to at most 2**24. Examples with equal columns then
    have equal sums on every machine, and ties are ties. The rounding error of a sum over m models, about
    sqrt(m/24) units, is some 1e-4 of the spread of the sums for thousands of models.

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

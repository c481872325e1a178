"""What the pairs of some inputs of one side share: worked out once per input, joined pair by pair."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from assay.models.attention import Tables


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedInputs:
    """What the pairs of some inputs of one side need, one row per input.

    Attributes:
        logits: Of the model at the last position, `[n, d_vocab]`.
        parts: Sums of sources and projected channels; every tensor has n rows.
        length: Tokens of each input.
        tables: Rotary tables of the positions behind the prefix, if the model has any.
    """

    logits: Float[Tensor, "n d_vocab"]
    parts: dict[Hashable, Tensor]
    length: int
    tables: dict[Hashable, Tables]

    @property
    def n(self) -> int:
        return len(self.logits)

    @property
    def nbytes(self) -> int:
        """Memory of all rows."""
        return self.logits.nbytes + sum(part.nbytes for part in self.parts.values())

    def rows(self, index: Int[Tensor, " k"]) -> "PreparedInputs":
        """Some of the inputs, in this order; a run of consecutive ones is a view, not a copy."""
        first, last = int(index[0]), int(index[-1]) + 1
        run = last - first == len(index) and bool((index[1:] > index[:-1]).all())
        chosen = slice(first, last) if run else index
        return PreparedInputs(
            logits=self.logits[chosen],
            parts={key: part[chosen] for key, part in self.parts.items()},
            length=self.length,
            tables=self.tables,
        )

    @staticmethod
    def concatenate(blocks: "Iterable[PreparedInputs]", n: int) -> "PreparedInputs":
        """The `n` inputs of several blocks, one after the other; no block is held once it is copied."""
        whole: PreparedInputs | None = None
        at = 0
        for block in blocks:
            if block.n == n:
                return block
            if whole is None:
                parts = {key: part.new_empty(n, *part.shape[1:]) for key, part in block.parts.items()}
                logits = block.logits.new_empty(n, *block.logits.shape[1:])
                whole = PreparedInputs(logits=logits, parts=parts, length=block.length, tables=block.tables)
            place = slice(at, at + block.n)
            whole.logits[place] = block.logits
            for key, part in block.parts.items():
                whole.parts[key][place] = part
            at += block.n
        assert whole is not None
        assert at == n
        return whole

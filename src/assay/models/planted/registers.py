"""Where the registers of a program lie in the stream, and the weights that are written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.models.planted.program import ONE, Readout


CONSTANT = 16.0  # both constants of the stream, +C and -C


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What an architecture offers to a program.

    Attributes:
        name: As in the model's name.
        rotary: Whether positions are rotations of queries and keys; else they are embedded.
        partial: Whether only the turning pairs of a head rotate.
        parallel: Whether the MLP reads the same stream as the attention.
        group: Query heads per key/value head.
    """

    name: str
    rotary: bool
    partial: bool = False
    parallel: bool = False
    group: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Registers:
    """Where each register lies in the stream."""

    start: Mapping[str, int]
    size: Mapping[str, int]
    width: int

    @classmethod
    def of(cls, sizes: Mapping[str, int], multiple: int) -> "Registers":
        """Registers side by side, the width rounded up to a multiple."""
        start, place = {}, 0
        for name, size in sizes.items():
            start[name] = place
            place += size
        return cls(start=start, size=dict(sizes), width=-(-place // multiple) * multiple)

    def at(self, name: str) -> slice:
        """The entries of a register."""
        return slice(self.start[name], self.start[name] + self.size[name])

    def reads(self, reading: Readout) -> Float[Tensor, "d_model rank"]:
        """The reading as a map from the stream."""
        matrix = torch.zeros(self.width, reading.map.shape[1], dtype=torch.float64)
        if reading.register == ONE:
            first = self.start["constant"]
            # Half of each constant: 1 = (C - (-C)) / 2C.
            matrix[first], matrix[first + 1] = (sign * reading.map[0] / (2 * CONSTANT) for sign in (1, -1))
        else:
            matrix[self.at(reading.register)] = reading.map
        return matrix

    def writes(self, name: str, output: Float[Tensor, "rank size"]) -> Float[Tensor, "rank d_model"]:
        """A map into a register as a map into the stream, with the balance that keeps its mean at zero."""
        matrix = torch.zeros(len(output), self.width, dtype=torch.float64)
        matrix[:, self.at(name)] = output
        return self.balanced(matrix)

    def balanced(self, matrix: Float[Tensor, "rank d_model"]) -> Float[Tensor, "rank d_model"]:
        """The same writes with the balance entry set to minus the sum of the others."""
        matrix[:, self.start["balance"]] -= matrix.sum(1)
        return matrix

    def mask(self, names: Sequence[str]) -> Bool[Tensor, " d_model"]:
        """True at the entries of these registers."""
        mask = torch.zeros(self.width, dtype=torch.bool)
        for name in names:
            mask[self.at(name)] = True
        return mask


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """Weights of the attention of one block, as maps from and to the stream."""

    q: Float[Tensor, "n_heads d_model d_head"]
    k: Float[Tensor, "n_kv_heads d_model d_head"]
    v: Float[Tensor, "n_kv_heads d_model d_head"]
    o: Float[Tensor, "n_heads d_head d_model"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Feedforward:
    """Weights of the MLP of one block: act(x @ into) @ out."""

    into: Float[Tensor, "d_model d_mlp"]
    out: Float[Tensor, "d_mlp d_model"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """All weights of a planted model, in no architecture's order yet.

    Attributes:
        embed: `[vocab, d_model]`.
        positions: `[length, d_model]`; None under rotary positions.
        attention, mlps: One per block.
        unembed: `[vocab, d_model]`.
        gain: Of every norm.
        one: `[d_model]`, reads the constant 1.
    """

    embed: Float[Tensor, "vocab d_model"]
    positions: Float[Tensor, "length d_model"] | None
    attention: tuple[Attention, ...]
    mlps: tuple[Feedforward, ...]
    unembed: Float[Tensor, "vocab d_model"]
    gain: float
    one: Float[Tensor, " d_model"]

    @property
    def d_model(self) -> int:
        """Width of the stream."""
        return self.embed.shape[1]

    @property
    def n_heads(self) -> int:
        """Query heads per block."""
        return len(self.attention[0].q)

    @property
    def n_kv_heads(self) -> int:
        """Key/value heads per block."""
        return len(self.attention[0].k)

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.attention[0].q.shape[2]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which node of the graph each part of a program is.

    Attributes:
        nodes: Part name to node name, `a0.h1` or `m1`.
        heads: Head name to (block, key/value head, query head).
        mlps: MLP name to block.
        n_blocks: Blocks of the model.
        n_kv_heads: Key/value heads of each block.
    """

    nodes: Mapping[str, str]
    heads: Mapping[str, tuple[int, int, int]]
    mlps: Mapping[str, int]
    n_blocks: int
    n_kv_heads: int

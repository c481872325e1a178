"""What a planted circuit computes, apart from any architecture: registers, heads, MLP units, and its truth.

The residual stream is cut into named registers. A program says which registers each part reads and writes;
who reads what another wrote, and whether it differs between a clean and a corrupted input, is its circuit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from assay.models.planted.planted import PlantedExamples


INPUT, LOGITS = "input", "logits"
TOKEN, POSITION, ONE, OUT = "token", "position", "one", "out"


@dataclass(frozen=True, kw_only=True, eq=False)
class Readout:
    """A linear reading of one register.

    Attributes:
        register: The register; `one` is the constant 1.
        map: `[register size, rank]`.
        varies: False where the two inputs of a pair always agree on what is read (positions, constants, which
            kind of token stands where), so that the edge carries nothing that resampling could change.
    """

    register: str
    map: Float[Tensor, "size rank"]
    varies: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Match:
    """A term of an attention score: strength * <query reading, key reading>, in nats."""

    query: Readout
    key: Readout
    strength: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Offset:
    """A term of an attention score that is largest `back` positions before the query.

    Attributes:
        gap: How far, in nats, every other position lies below at least.
        back: Distance, where it is the same for all queries.
        slots: Else, by query: `(token id, position it stands at, distance)`; other queries get no such term.
    """

    gap: float
    back: int = 0
    slots: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """An attention head of a program.

    Attributes:
        name: Name within the program.
        role: What it does, in a line.
        value: What it moves.
        writes: Register it writes.
        output: `[rank of value, size of the register]`.
        matches, offsets: Terms of its attention score; none: uniform attention.
    """

    name: str
    role: str
    value: Readout
    writes: str
    output: Float[Tensor, "rank size"]
    matches: tuple[Match, ...] = ()
    offsets: tuple[Offset, ...] = ()

    @property
    def ports(self) -> Mapping[str, tuple[Readout, ...]]:
        """What each channel reads (positions left out: they never vary)."""
        return {
            "q": tuple(match.query for match in self.matches),
            "k": tuple(match.key for match in self.matches),
            "v": (self.value,),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Mlp:
    """Units of an MLP: act(reading * slope + bias) / act_scale, written with `output`.

    Attributes:
        name: Name within the program.
        role: What it does, in a line.
        reads: `[register size, units]` readings.
        bias: `[units]`.
        writes: Register it writes.
        output: `[units, size of the register]`.
    """

    name: str
    role: str
    reads: Readout
    bias: Float[Tensor, " units"]
    writes: str
    output: Float[Tensor, "units size"]

    @property
    def ports(self) -> Mapping[str, tuple[Readout, ...]]:
        """What it reads."""
        return {"": (self.reads,)}


Part = Head | Mlp


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Parts that compute an answer, and inputs on which they do.

    Attributes:
        name: Name of the program.
        tokens: What each token id stands for.
        length: Tokens of every prompt.
        registers: Name to size, of those the parts write, `out` included.
        outputs: Token id of each entry of `out`.
        parts: In the order of computation.
        start: What the embedding writes into `out` for every token (a constant).
        draw: `(n, seed)` to pairs.
        notes: What holds of single cuts (silent on some pairs, say).
    """

    name: str
    tokens: tuple[str, ...]
    length: int
    registers: Mapping[str, int]
    outputs: tuple[int, ...]
    parts: tuple[Part, ...]
    draw: Callable[[int, int], PlantedExamples]
    start: tuple[float, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def writers(self, register: str) -> tuple[str, ...]:
        """Names of the nodes that write what varies into a register."""
        if register == TOKEN:
            return (INPUT,)
        return tuple(part.name for part in self.parts if part.writes == register)

    def wires(self) -> tuple[tuple[str, str, str], ...]:
        """The circuit: `(writer, reader, channel)` wherever a register that varies over pairs is read."""
        wires: dict[tuple[str, str, str], None] = {}
        for part in self.parts:
            for channel, readings in part.ports.items():
                for reading in readings:
                    if reading.varies:
                        for writer in self.writers(reading.register):
                            wires[writer, part.name, channel] = None
        for writer in self.writers(OUT):
            wires[writer, LOGITS, ""] = None
        return tuple(wires)

    def stages(self, *, parallel: bool) -> dict[str, int]:
        """Layer of each part: as early as what it reads allows.

        Args:
            parallel: Whether an MLP cannot read the heads of its own block.
        """
        stage: dict[str, int] = {}
        for part in self.parts:
            earliest = 0
            for readings in part.ports.values():
                for reading in readings:
                    for writer in self.writers(reading.register):
                        if writer != INPUT:
                            same_block = isinstance(part, Mlp) and not parallel
                            earliest = max(earliest, stage[writer] + (0 if same_block else 1))
            stage[part.name] = earliest
        return stage

"""The programs: what their parts read and write, and the prompts they run on.

The residual stream is cut into named registers. A program says which registers each part reads and writes;
who reads what another wrote, and whether it differs between a clean and a corrupted input, is its circuit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.random import stream


TOKEN, POSITION, ONE, OUT = "token", "position", "one", "out"
START = "<s>"
MATCH = 8.0  # nats by which a matching position beats one that does not match
SINK = 4.0  # nats of the first position, where heads rest that find no match
NEIGHBOUR = 7.0  # nats by which the position before beats any other

Pair = tuple[list[int], list[int], int, int]  # clean, corrupted, answer, wrong answer


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedExamples:
    """Pairs of a clean and a corrupted prompt of a planted model, as tensors; the last position is read.

    Attributes:
        clean: Token ids `[n, pos]`.
        corrupted: The counterparts, same shape: another draw of the same program, with another answer.
        answers: Right next token of each clean prompt `[n, 1]`.
        wrong: Tokens the answers are compared with `[n, 1]`.
        fields: Facts about each pair, name to a list of n.
    """

    clean: Int[Tensor, "n pos"]
    corrupted: Int[Tensor, "n pos"]
    answers: Int[Tensor, "n one"]
    wrong: Int[Tensor, "n one"]
    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)


class Readout(NamedTuple):
    """A linear reading of one register.

    Attributes:
        register: The register; `one` is the constant 1.
        map: `[register size, rank]`.
        varies: False where the two inputs of a pair always agree on what is read (positions, constants, which
            kind of token is where), so that the edge carries nothing that resampling could change.
    """

    register: str
    map: Float[Tensor, "size rank"]
    varies: bool = True


class Match(NamedTuple):
    """A term of an attention score: strength * <query reading, key reading>, in nats."""

    query: Readout
    key: Readout
    strength: float


class Head(NamedTuple):
    """An attention head of a program.

    Attributes:
        name: Name within the program.
        block: Block of the program that it is in.
        value: What it moves.
        writes: Register it writes.
        output: `[rank of value, size of the register]`.
        matches: Terms of its attention score.
        back: Nats by which the position before the query beats any other.
    """

    name: str
    block: int
    value: Readout
    writes: str
    output: Float[Tensor, "rank size"]
    matches: tuple[Match, ...] = ()
    back: float = 0.0

    def readings(self) -> Iterator[tuple[str, Readout]]:
        """What each channel reads (positions left out: they never vary)."""
        yield from (("q", match.query) for match in self.matches)
        yield from (("k", match.key) for match in self.matches)
        yield "v", self.value


class Mlp(NamedTuple):
    """Units of an MLP: act(reading + bias), written with `output`.

    Attributes:
        name: Name within the program.
        block: Block of the program that it is in.
        value: `[register size, units]` readings.
        bias: `[units]`.
        writes: Register it writes.
        output: `[units, size of the register]`.
    """

    name: str
    block: int
    value: Readout
    bias: Float[Tensor, " units"]
    writes: str
    output: Float[Tensor, "units size"]

    def readings(self) -> Iterator[tuple[str, Readout]]:
        """What it reads."""
        yield "", self.value


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Parts that compute an answer, and inputs on which they do.

    Attributes:
        name: Name of the program.
        tokens: What each token id stands for.
        length: Tokens of every prompt; the last one is read.
        registers: Name to size, of those the parts write, `out` included.
        outputs: Token id of each entry of `out`.
        parts: In the order of computation.
        sample: Draws one pair and facts about it.
        start: What the embedding writes into `out` for every token (a constant).
    """

    name: str
    tokens: tuple[str, ...]
    length: int
    registers: Mapping[str, int]
    outputs: Sequence[int]
    parts: tuple[Head | Mlp, ...]
    sample: Callable[[np.random.Generator], tuple[Pair, dict[str, Any]]]
    start: tuple[float, ...] = ()

    def wires(self) -> list[tuple[str, str, str]]:
        """The circuit: `(writer, reader, channel)` wherever a register that varies over pairs is read."""

        def writers(register: str) -> list[str]:
            written = [part.name for part in self.parts if part.writes == register]
            return ["input"] if register == TOKEN else written

        wires = [
            (writer, part.name, channel)
            for part in self.parts
            for channel, reading in part.readings()
            if reading.varies
            for writer in writers(reading.register)
        ]
        return list(dict.fromkeys([*wires, *((writer, "logits", "") for writer in writers(OUT))]))

    def examples(self, n: int, seed: int) -> PlantedExamples:
        """Pairs one after another from one stream, so that the first k do not depend on n."""
        rng = stream(seed, f"planted examples {self.name}")
        pairs, facts = zip(*(self.sample(rng) for _ in range(n)), strict=True)
        clean, corrupted, answers, wrong = zip(*pairs, strict=True)
        return PlantedExamples(
            clean=torch.tensor(clean),
            corrupted=torch.tensor(corrupted),
            answers=torch.tensor(answers)[:, None],
            wrong=torch.tensor(wrong)[:, None],
            fields={key: [fact[key] for fact in facts] for key in facts[0]},
        )


# ---- parts that programs share


def eye(size: int) -> Tensor:
    """The map that reads or writes a whole register."""
    return torch.eye(size, dtype=torch.float64)


def _any_of(size: int, ids: list[int]) -> Tensor:
    """`[size, 1]`: 1 at these entries."""
    return eye(size)[:, ids].sum(1, keepdim=True)


def _tokens(size: int, ids: list[int]) -> Readout:
    """One entry for each of these tokens."""
    return Readout(TOKEN, eye(size)[:, ids])


_CONSTANT_ONE = Readout(ONE, torch.ones(1, 1, dtype=torch.float64), varies=False)


def _key_bias(size: int, ids: list[int], strength: float) -> Match:
    """Raises the score of keys of a kind of token whose places the two inputs of a pair share."""
    return Match(_CONSTANT_ONE, Readout(TOKEN, _any_of(size, ids), varies=False), strength)


def _previous_token(size: int, letters: list[int], sharpness: float) -> Head:
    """Writes at each position the letter before it into register `previous`."""
    value, back = _tokens(size, letters), NEIGHBOUR * sharpness
    return Head("previous", 0, value, "previous", eye(len(letters)), back=back)


def _after_a_copy(size: int, query: Readout, letters: list[int], sharpness: float) -> tuple[Match, ...]:
    """Attends to positions whose previous letter is the one asked for, else rests at the start."""
    key = Readout("previous", eye(len(letters)))
    return Match(query, key, MATCH * sharpness), _key_bias(size, [0], SINK * sharpness)


def _choose(rng: np.random.Generator, ids: list[int], *but: int) -> int:
    """A token at random, none of those named."""
    return int(rng.choice([each for each in ids if each not in but]))


# ---- the programs


def induction(sharpness: float = 1.0) -> Program:
    """`... A B ... A` -> B: a previous-token head and an induction head that reads it.

    The induction head attends to where the letter before is the current one, and copies what stands there.

    Args:
        sharpness: Factor on every attention score; large: saturated softmaxes.
    """
    tokens = (START, *"abcdefghijkl")
    size, letters, length = len(tokens), list(range(1, 13)), 12

    def prompt(rng: np.random.Generator, repeated: int, avoid: int) -> tuple[list[int], int, int]:
        place = int(rng.integers(1, length - 2))
        ids = [0, *(_choose(rng, letters, repeated) for _ in range(length - 2)), repeated]
        ids[place], ids[place + 1] = repeated, _choose(rng, letters, repeated, avoid)
        return ids, ids[place + 1], place

    def sample(rng: np.random.Generator) -> tuple[Pair, dict[str, Any]]:
        one, other = (int(each) for each in rng.choice(letters, 2, replace=False))
        clean, answer, place = prompt(rng, one, 0)
        corrupted, wrong, _ = prompt(rng, other, answer)
        return (clean, corrupted, answer, wrong), {"letter": tokens[one], "place": place}

    letter = _tokens(size, letters)
    matches = _after_a_copy(size, letter, letters, sharpness)
    return Program(
        name="induction",
        tokens=tokens,
        length=length,
        registers={"previous": 12, OUT: 12},
        outputs=letters,
        parts=(
            _previous_token(size, letters, sharpness),
            Head("induction", 1, letter, OUT, eye(12), matches),
        ),
        sample=sample,
    )


def duplicate(sharpness: float = 1.0, *, vote: bool = False) -> Program:
    """`t1 ... t8` -> `yes` where the last token occurred before, else `no`.

    The duplicate head looks for positions whose previous letter is the current one, so it never finds
    the current position itself. It rests at the start, or attends behind an earlier copy and raises `yes`.
    Where the clean answer is `no`, a `yes` needs query and key of one run: one cut is silent.

    Args:
        sharpness: Factor on every attention score.
        vote: Write three redundant duplicate heads and an MLP that takes their majority: no single cut of an
            edge of a voter changes it.
    """
    tokens = (START, *"abcdefghijkl", "yes", "no")
    size, letters, length, yes, no = len(tokens), list(range(1, 13)), 9, 13, 14
    letter, is_letter = _tokens(size, letters), Readout(TOKEN, _any_of(size, letters), varies=False)

    def finder(name: str, writes: str, output: Tensor, sharpness: float) -> Head:
        return Head(name, 1, is_letter, writes, output, _after_a_copy(size, letter, letters, sharpness))

    def row(rng: np.random.Generator, *, occurred: bool) -> list[int]:
        last = _choose(rng, letters)
        ids = [0, *(_choose(rng, letters, last) for _ in range(length - 2)), last]
        if occurred:
            ids[int(rng.integers(1, length - 2))] = last
        return ids

    def sample(rng: np.random.Generator) -> tuple[Pair, dict[str, Any]]:
        occurred = bool(rng.random() < 0.5)
        clean, corrupted = row(rng, occurred=occurred), row(rng, occurred=not occurred)
        answer, wrong = (yes, no) if occurred else (no, yes)
        return (clean, corrupted, answer, wrong), {"occurred": occurred}

    parts: list[Head | Mlp] = [_previous_token(size, letters, sharpness)]
    if vote:
        # A voter that finds nothing must keep silent.
        one = torch.ones(1, 1, dtype=torch.float64)
        parts += [finder(f"voter {voter}", "votes", one, 1.5 * sharpness) for voter in range(3)]
        # With u = slope (votes - 1.5), (act(u + 1) - act(u - 1)) / 2 rises from 0 to 1 between -1 and 1.
        up = 16.0 * sharpness * torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
        bias = -1.5 * up + torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
        answers = torch.tensor([[0.5, 0], [-0.5, 0], [0, 0.5], [0, -0.5]], dtype=torch.float64)
        parts.append(Mlp("majority", 1, Readout("votes", up[None]), bias, OUT, answers))
    else:
        raises = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
        parts.append(finder("duplicate", OUT, raises, sharpness))
    return Program(
        name="duplicate",
        tokens=tokens,
        length=length,
        registers={"previous": 12, **({"votes": 1} if vote else {}), OUT: 2},
        outputs=(yes, no),
        parts=tuple(parts),
        sample=sample,
        start=(0.0, 0.0) if vote else (-0.5, 0.5),
    )


def greater_than(sharpness: float = 1.0) -> Program:
    """`fillers, one digit d, fillers >` -> any digit greater than d.

    A head attends to the digit and copies it to the end; an MLP has one unit per digit, which raises it where
    the copied digit is smaller.
    """
    tokens = (START, *"0123456789", *"wxyz", ">")
    size, digits, fillers, length = len(tokens), list(range(1, 11)), list(range(11, 15)), 8

    def row(rng: np.random.Generator, digit: int) -> list[int]:
        ids = [0, *(_choose(rng, fillers) for _ in range(length - 2)), 15]
        ids[int(rng.integers(1, length - 1))] = 1 + digit
        return ids

    def sample(rng: np.random.Generator) -> tuple[Pair, dict[str, Any]]:
        digit, other = (int(each) for each in rng.choice(9, 2, replace=False))
        # One of the two answers must change: the right one becomes wrong, or the wrong one right.
        answer = rng.integers(digit + 1, (other if digit < other else 9) + 1)
        wrong = rng.integers((0 if digit < other else other + 1), digit + 1)
        pair = (row(rng, digit), row(rng, other), 1 + int(answer), 1 + int(wrong))
        return pair, {"digit": digit, "corrupted.digit": other}

    slope = 4.0 * sharpness
    below = torch.ones(10, 10, dtype=torch.float64).triu(1)  # digit i speaks for unit j > i
    is_digit = Match(_CONSTANT_ONE, Readout(TOKEN, _any_of(size, digits)), MATCH * sharpness)
    bias = torch.full((10,), -slope, dtype=torch.float64)
    return Program(
        name="greater-than",
        tokens=tokens,
        length=length,
        registers={"digit": 10, OUT: 10},
        outputs=digits,
        parts=(
            Head("find", 0, _tokens(size, digits), "digit", eye(10), (is_digit,)),
            Mlp("greater", 0, Readout("digit", 2 * slope * below), bias, OUT, eye(10) / slope),
        ),
        sample=sample,
    )


def two_hop(sharpness: float = 1.0) -> Program:
    """`facts x y ;` in any order, among them `A B ;` and `B C ;`, then A -> C.

    Two look-ups, one layer after the other, over what a previous-token head wrote: the first finds what
    follows the query A and writes B into register `bridge`, the second finds what follows B and copies C.
    """
    tokens = (START, *"abcdefghijkl", ";")
    size, letters, end = len(tokens), list(range(1, 13)), 13

    def row(rng: np.random.Generator, avoid: tuple[int, ...]) -> tuple[list[int], list[int]]:
        chain = [int(each) for each in rng.choice(letters, 6, replace=False)]
        while chain[0] in avoid or chain[2] in avoid:
            chain = [int(each) for each in rng.choice(letters, 6, replace=False)]
        facts = [chain[0:2], chain[1:3], chain[3:5], chain[4:6]]
        order = rng.permutation(4)
        return [0, *(each for fact in order for each in (*facts[fact], end)), chain[0]], chain

    def sample(rng: np.random.Generator) -> tuple[Pair, dict[str, Any]]:
        clean, chain = row(rng, ())
        corrupted, other = row(rng, (chain[0], chain[2]))
        facts = {"query": tokens[chain[0]], "bridge": tokens[chain[1]]}
        return (clean, corrupted, chain[2], other[2]), facts

    letter = _tokens(size, letters)
    first = _after_a_copy(size, letter, letters, sharpness)
    second = _after_a_copy(size, Readout("bridge", eye(12)), letters, sharpness)
    behind = _key_bias(size, [end], -MATCH * sharpness)  # behind `A B` is the end of the fact
    return Program(
        name="two-hop",
        tokens=tokens,
        length=14,
        registers={"previous": 12, "bridge": 12, OUT: 12},
        outputs=letters,
        parts=(
            _previous_token(size, letters, sharpness),
            Head("first", 1, letter, "bridge", eye(12), first),
            Head("second", 2, letter, OUT, eye(12), (*second, behind)),
        ),
        sample=sample,
    )


PROGRAMS: dict[str, Callable[[float], Program]] = {
    "induction": induction,
    "duplicate": duplicate,
    "greater-than": greater_than,
    "two-hop": two_hop,
}

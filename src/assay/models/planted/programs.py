"""The six programs: what their parts read and write, and the prompts they run on."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from assay.models.planted.parts import (
    CONSTANT_ONE,
    Pair,
    any_of,
    choose_tokens,
    copier,
    drawn_pairs,
    key_bias,
    previous_token,
    select_tokens,
    soft_step,
    whole_register,
)
from assay.models.planted.program import OUT, TOKEN, Head, Match, Mlp, Offset, Part, Program, Readout


START = "<s>"
MATCH = 8.0  # nats by which a matching position beats one that does not match
SINK = 4.0  # nats of the first position, where heads rest that find no match

_LETTERS = list(range(1, 13))
_DUPLICATE_SIZE = 15  # tokens of the duplicate program


# ------------------------------------------------------------------------------------------------ induction


def induction(sharpness: float = 1.0) -> Program:
    """`... A B ... A` -> B: a previous-token head and an induction head that reads it.

    Args:
        sharpness: Factor on every attention score; large: saturated softmaxes.
    """
    tokens = (START, *"abcdefghijkl")
    size, letters, length = len(tokens), list(range(1, 13)), 12

    def prompt(
        generator: np.random.Generator, repeated: int, follower: int | None, avoid: int
    ) -> tuple[list[int], int, int]:
        place = int(generator.integers(1, length - 2))
        ids = [0, *(choose_tokens(generator, letters, repeated) for _ in range(length - 2)), repeated]
        ids[place] = repeated
        ids[place + 1] = choose_tokens(generator, letters, repeated, avoid) if follower is None else follower
        return ids, ids[place + 1], place

    def sample(generator: np.random.Generator) -> tuple[Pair, dict[str, object]]:
        one, other = (int(each) for each in generator.choice(letters, 2, replace=False))
        clean, answer, place = prompt(generator, one, None, 0)
        corrupted, wrong, _ = prompt(generator, other, None, answer)
        return (clean, corrupted, answer, wrong, length - 1), {"letter": tokens[one], "place": place}

    parts = (
        previous_token(size, letters, sharpness),
        copier(
            "induction",
            "induction head: attends to where the letter before is the current one, copies what stands there",
            size,
            letters,
            OUT,
            matches=(
                Match(
                    query=Readout(register=TOKEN, map=select_tokens(size, letters)),
                    key=Readout(register="previous", map=whole_register(12)),
                    strength=MATCH * sharpness,
                ),
                key_bias(size, [0], SINK * sharpness),
            ),
        ),
    )
    return Program(
        name="induction",
        tokens=tokens,
        length=length,
        registers={"previous": 12, OUT: 12},
        outputs=tuple(letters),
        parts=parts,
        draw=drawn_pairs("induction", sample),
    )


# -------------------------------------------------------------------------------------------------- reverse


def reverse(sharpness: float = 1.0) -> Program:
    """`x1 ... x6 | _1 ... _6` -> the letters in reverse order, letter x(7-j) at slot _j.

    Two heads share the slots. In rotary layouts the marker `_j` tells a head how far back to look; where
    positions are embedded, its position does.
    """
    count = 6
    tokens = (START, *"abcdefghij", "|", *(f"_{slot}" for slot in range(1, count + 1)))
    size, letters, length = len(tokens), list(range(1, 11)), 2 * count + 2

    def head(name: str, slots: range) -> Head:
        where = tuple((11 + slot, count + 1 + slot, 2 * slot) for slot in slots)
        return copier(
            name,
            f"slots {slots[0]} to {slots[-1]}: attends to the mirrored position and copies its letter",
            size,
            letters,
            OUT,
            matches=(key_bias(size, [0], SINK * sharpness),),
            offsets=(Offset(gap=2 * SINK * sharpness, slots=where),),
        )

    def sample(generator: np.random.Generator) -> tuple[Pair, dict[str, object]]:
        slot = int(generator.integers(1, count + 1))
        clean = [int(each) for each in generator.choice(letters, count)]
        corrupted = [choose_tokens(generator, letters, each) for each in clean]
        frame = [11, *range(12, 12 + count)]
        pair = ([0, *clean, *frame], [0, *corrupted, *frame], clean[count - slot], corrupted[count - slot])
        return (*pair, count + 1 + slot), {"slot": slot}

    return Program(
        name="reverse",
        tokens=tokens,
        length=length,
        registers={OUT: 10},
        outputs=tuple(letters),
        parts=(head("first", range(1, 4)), head("second", range(4, 7))),
        draw=drawn_pairs("reverse", sample),
        notes=(
            "Each head serves half of the slots, so its edges are silent on the other half of the pairs.",
        ),
    )


# ------------------------------------------------------------------------------------------------- fraction


def fraction(sharpness: float = 1.0) -> Program:
    """`t1 ... t9 ?` -> `many` where more than half of the t are x, else `few`.

    One head averages over all positions; an MLP turns the fraction into an answer with a soft step of
    which `sharpness` is the slope.
    """
    count = 9
    tokens = (START, *"xabc", "?", "many", "few")
    size, length = len(tokens), count + 2

    def row(generator: np.random.Generator, hits: int) -> list[int]:
        ids = [1] * hits + [choose_tokens(generator, [2, 3, 4]) for _ in range(count - hits)]
        return [0, *(int(each) for each in generator.permutation(ids)), 5]

    def sample(generator: np.random.Generator) -> tuple[Pair, dict[str, object]]:
        many, few = int(generator.integers(5, 9)), int(generator.integers(1, 5))
        rows = (row(generator, many), row(generator, few))
        if generator.random() < 0.5:
            return (*rows, 6, 7, length - 1), {"hits": many}
        return (*rows[::-1], 7, 6, length - 1), {"hits": few}

    parts: tuple[Part, ...] = (
        Head(
            name="count",
            role="uniform attention: the fraction of tokens equal to x, in register 'fraction'",
            value=Readout(register=TOKEN, map=any_of(size, [1])),
            writes="fraction",
            output=torch.full((1, 1), length / count, dtype=torch.float64),
        ),
        # 4 and 5 of 9 lie at -1 and +1 of the step's input.
        soft_step("threshold", "soft step at one half", "fraction", 0.5, 18.0 * sharpness),
    )
    return Program(
        name="fraction",
        tokens=tokens,
        length=length,
        registers={"fraction": 1, OUT: 2},
        outputs=(6, 7),
        parts=parts,
        draw=drawn_pairs("fraction", sample),
        notes=("The step is flat away from one half, so a gradient there says little.",),
    )


# ------------------------------------------------------------------------------------------------ duplicate


def duplicate(sharpness: float = 1.0) -> Program:
    """`t1 ... t8` -> `yes` where the last token occurred before, else `no`.

    The duplicate head looks for positions whose previous letter is the current one, so it never finds
    the current position itself.
    """
    role = "duplicate-token head: rests at the start, or attends behind an earlier copy and raises 'yes'"
    answer = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    return _duplicate(
        (_finder("duplicate", role, OUT, answer, sharpness),),
        {},
        sharpness,
        start=(-0.5, 0.5),
        note="Where the clean answer is 'no', a 'yes' needs query and key of one run, so cutting either edge "
        "alone is silent there; on the 'yes' half of the pairs each cut is enough.",
    )


def duplicate_by_vote(sharpness: float = 1.0) -> Program:
    """The duplicate program with three redundant duplicate heads and an MLP that takes their majority.

    No single cut of an edge of a voter changes the majority.
    """
    voters = 3
    vote = torch.ones(1, 1, dtype=torch.float64)
    heads = [
        _finder(
            f"voter {voter}",
            "duplicate-token head, one of three voters: no single cut of theirs changes the majority",
            "votes",
            vote,
            1.5 * sharpness,  # a voter that finds nothing must keep silent
        )
        for voter in range(voters)
    ]
    majority = soft_step("majority", "soft step at half of the votes", "votes", voters / 2, 16.0 * sharpness)
    return _duplicate(
        (*heads, majority),
        {"votes": 1},
        sharpness,
        start=(0.0, 0.0),
        note="Two of three voters are enough: cutting one edge of one voter is silent on every pair, and so "
        "is the gradient at the clean input, where the step is flat.",
    )


def _finder(name: str, role: str, writes: str, output: Tensor, sharpness: float) -> Head:
    """A head that attends behind an earlier copy of the current letter, else to the start."""
    return Head(
        name=name,
        role=role,
        value=Readout(register=TOKEN, map=any_of(_DUPLICATE_SIZE, _LETTERS), varies=False),
        writes=writes,
        output=output,
        matches=(
            Match(
                query=Readout(register=TOKEN, map=select_tokens(_DUPLICATE_SIZE, _LETTERS)),
                key=Readout(register="previous", map=whole_register(len(_LETTERS))),
                strength=MATCH * sharpness,
            ),
            key_bias(_DUPLICATE_SIZE, [0], SINK * sharpness),
        ),
    )


def _duplicate(
    parts: tuple[Part, ...],
    registers: dict[str, int],
    sharpness: float,
    *,
    start: tuple[float, float],
    note: str,
) -> Program:
    tokens = (START, *"abcdefghijkl", "yes", "no")
    length, yes, no = 9, 13, 14

    def row(generator: np.random.Generator, *, occurred: bool) -> list[int]:
        last = choose_tokens(generator, _LETTERS)
        ids = [0, *(choose_tokens(generator, _LETTERS, last) for _ in range(length - 2)), last]
        if occurred:
            ids[int(generator.integers(1, length - 2))] = last
        return ids

    def sample(generator: np.random.Generator) -> tuple[Pair, dict[str, object]]:
        occurred = bool(generator.random() < 0.5)
        clean, corrupted = row(generator, occurred=occurred), row(generator, occurred=not occurred)
        answer, wrong = (yes, no) if occurred else (no, yes)
        return (clean, corrupted, answer, wrong, length - 1), {"occurred": occurred}

    return Program(
        name="duplicate",
        tokens=tokens,
        length=length,
        registers={"previous": 12, **registers, OUT: 2},
        outputs=(yes, no),
        parts=(previous_token(_DUPLICATE_SIZE, _LETTERS, sharpness), *parts),
        draw=drawn_pairs("duplicate", sample),
        start=start,
        notes=(note,),
    )


# --------------------------------------------------------------------------------------------- greater than


def greater_than(sharpness: float = 1.0) -> Program:
    """`fillers, one digit d, fillers >` -> any digit greater than d.

    A head copies the digit to the end; an MLP raises every greater digit.
    """
    tokens = (START, *"0123456789", *"wxyz", ">")
    size, digits, fillers, length = len(tokens), list(range(1, 11)), list(range(11, 15)), 8

    def row(generator: np.random.Generator, digit: int) -> list[int]:
        ids = [0, *(choose_tokens(generator, fillers) for _ in range(length - 2)), 15]
        ids[int(generator.integers(1, length - 1))] = 1 + digit
        return ids

    def sample(generator: np.random.Generator) -> tuple[Pair, dict[str, object]]:
        digit, other = (int(each) for each in generator.choice(9, 2, replace=False))
        # One of the two answers must change: the right one becomes wrong, or the wrong one right.
        answer = generator.integers(digit + 1, (other if digit < other else 9) + 1)
        wrong = generator.integers((0 if digit < other else other + 1), digit + 1)
        ids = (row(generator, digit), row(generator, other), 1 + int(answer), 1 + int(wrong))
        return (*ids, length - 1), {"digit": digit, "corrupted.digit": other}

    slope = 4.0 * sharpness
    below = torch.ones(10, 10, dtype=torch.float64).triu(1)  # digit i speaks for unit j > i
    parts: tuple[Part, ...] = (
        copier(
            "find",
            "attends to the digit and copies it to the end, into register 'digit'",
            size,
            digits,
            "digit",
            matches=(
                Match(
                    query=CONSTANT_ONE,
                    key=Readout(register=TOKEN, map=any_of(size, digits)),
                    strength=MATCH * sharpness,
                ),
            ),
        ),
        Mlp(
            name="greater",
            role="one unit per digit: raises it where the copied digit is smaller",
            reads=Readout(register="digit", map=2 * slope * below),
            bias=torch.full((10,), -slope, dtype=torch.float64),
            writes=OUT,
            output=whole_register(10) / slope,
        ),
    )
    return Program(
        name="greater-than",
        tokens=tokens,
        length=length,
        registers={"digit": 10, OUT: 10},
        outputs=tuple(digits),
        parts=parts,
        draw=drawn_pairs("greater-than", sample),
    )


# -------------------------------------------------------------------------------------------------- two-hop


def two_hop(sharpness: float = 1.0) -> Program:
    """`facts x y ;` in any order, among them `A B ;` and `B C ;`, then A -> C.

    Two look-ups, one layer after the other, over what a previous-token head wrote.
    """
    tokens = (START, *"abcdefghijkl", ";")
    size, letters, length, end = len(tokens), list(range(1, 13)), 14, 13

    def row(generator: np.random.Generator, avoid: tuple[int, ...]) -> tuple[list[int], list[int]]:
        chain = [int(each) for each in generator.choice(letters, 6, replace=False)]
        while chain[0] in avoid or chain[2] in avoid:
            chain = [int(each) for each in generator.choice(letters, 6, replace=False)]
        facts = [chain[0:2], chain[1:3], chain[3:5], chain[4:6]]
        order = generator.permutation(4)
        return [0, *(each for fact in order for each in (*facts[fact], end)), chain[0]], chain

    def sample(generator: np.random.Generator) -> tuple[Pair, dict[str, object]]:
        clean, chain = row(generator, ())
        corrupted, other = row(generator, (chain[0], chain[2]))
        facts: dict[str, object] = {"query": tokens[chain[0]], "bridge": tokens[chain[1]]}
        return (clean, corrupted, chain[2], other[2], length - 1), facts

    def look_up(name: str, role: str, query: Readout, writes: str, *more: Match) -> Head:
        key = Readout(register="previous", map=whole_register(12))
        matches = (
            Match(query=query, key=key, strength=MATCH * sharpness),
            key_bias(size, [0], SINK * sharpness),
            *more,
        )
        return copier(name, role, size, letters, writes, matches=matches)

    parts = (
        previous_token(size, letters, sharpness),
        look_up(
            "first",
            "first look-up: finds what follows the query A, writes B into register 'bridge'",
            Readout(register=TOKEN, map=select_tokens(size, letters)),
            "bridge",
        ),
        look_up(
            "second",
            "second look-up: finds what follows B at the head of a fact, copies C",
            Readout(register="bridge", map=whole_register(12)),
            OUT,
            key_bias(size, [end], -MATCH * sharpness),  # behind `A B` stands the end of the fact
        ),
    )
    return Program(
        name="two-hop",
        tokens=tokens,
        length=length,
        registers={"previous": 12, "bridge": 12, OUT: 12},
        outputs=tuple(letters),
        parts=parts,
        draw=drawn_pairs("two-hop", sample),
    )


PROGRAMS: dict[str, Callable[[float], Program]] = {
    "induction": induction,
    "reverse": reverse,
    "fraction": fraction,
    "duplicate": duplicate,
    "greater-than": greater_than,
    "two-hop": two_hop,
}

"""Parts that planted programs share."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from assay.core.random import stream
from assay.models.planted.planted import PlantedExamples
from assay.models.planted.program import ONE, OUT, TOKEN, Head, Match, Mlp, Offset, Readout


NEIGHBOUR = 7.0  # nats by which the wanted distance beats any other


Pair = tuple[list[int], list[int], int, int, int]  # clean, corrupted, answer, wrong answer, read position


Sampler = Callable[[np.random.Generator], tuple[Pair, dict[str, object]]]


def select_tokens(size: int, ids: list[int]) -> Tensor:
    """`[size, len(ids)]`: one column for each of these entries."""
    return torch.eye(size, dtype=torch.float64)[:, ids]


def any_of(size: int, ids: list[int]) -> Tensor:
    """`[size, 1]`: 1 at these entries."""
    return select_tokens(size, ids).sum(1, keepdim=True)


def whole_register(size: int) -> Tensor:
    """The map that reads a whole register."""
    return torch.eye(size, dtype=torch.float64)


CONSTANT_ONE = Readout(register=ONE, map=torch.ones(1, 1, dtype=torch.float64), varies=False)


def key_bias(size: int, ids: list[int], strength: float) -> Match:
    """Raises the score of keys of a kind of token whose places the two inputs of a pair share."""
    key = Readout(register=TOKEN, map=any_of(size, ids), varies=False)
    return Match(query=CONSTANT_ONE, key=key, strength=strength)


def copier(name: str, role: str, size: int, letters: list[int], writes: str, **attention: object) -> Head:
    """A head that moves the letters it attends to into a register of one entry per letter."""
    return Head(
        name=name,
        role=role,
        value=Readout(register=TOKEN, map=select_tokens(size, letters)),
        writes=writes,
        output=whole_register(len(letters)),
        **attention,  # type: ignore[arg-type]  # fields of `Head`, which it checks itself
    )


def previous_token(size: int, letters: list[int], sharpness: float) -> Head:
    """A head that writes the letter before each position into register `previous`."""
    role = "previous-token head: writes at each position the letter before it into register 'previous'"
    return copier(
        "previous", role, size, letters, "previous", offsets=(Offset(gap=NEIGHBOUR * sharpness, back=1),)
    )


def soft_step(name: str, role: str, register: str, threshold: float, slope: float) -> Mlp:
    """Raises the first of two outputs where a register of one entry is above a threshold, else the second.

    With u = slope (x - threshold), (act(u + 1) - act(u - 1)) / 2 rises from 0 to 1 between about -1 and 1.
    """
    up = torch.tensor([slope, slope, -slope, -slope], dtype=torch.float64)
    return Mlp(
        name=name,
        role=f"{role}: raises the first answer above it, the second below",
        reads=Readout(register=register, map=up[None]),
        bias=-threshold * up + torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64),
        writes=OUT,
        output=torch.tensor([[0.5, 0], [-0.5, 0], [0, 0.5], [0, -0.5]], dtype=torch.float64),
    )


def drawn_pairs(program: str, sample: Sampler) -> Callable[[int, int], PlantedExamples]:
    """Examples one after another from one stream, so that the first k do not depend on n."""

    def draw(n: int, seed: int) -> PlantedExamples:
        generator = stream(seed, f"planted examples {program}")
        rows, facts = zip(*(sample(generator) for _ in range(n)), strict=True)
        clean, corrupted, answers, wrong, positions = zip(*rows, strict=True)
        return PlantedExamples(
            clean=torch.tensor(clean),
            corrupted=torch.tensor(corrupted),
            answers=torch.tensor(answers)[:, None],
            wrong=torch.tensor(wrong)[:, None],
            positions=torch.tensor(positions),
            fields={key: [fact[key] for fact in facts] for key in facts[0]},
        )

    return draw


def choose_tokens(generator: np.random.Generator, ids: list[int], *but: int) -> int:
    """A token at random, none of those named."""
    return int(generator.choice([each for each in ids if each not in but]))

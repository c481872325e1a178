"""Which tokens of a clean and a corrupted prompt stand at the same place, where the two differ in length."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core.errors import InputError, ShapeError


Part = tuple[int, int]  # first token of a part of a prompt, and the one behind its last
Span = tuple[Part, Part]  # the same part of the clean and of the corrupted prompt

NO_COUNTERPART = -1  # where a clean token has none in the corrupted prompt, and at padding


def align_prompts(
    lengths: Sequence[int],
    corrupted_lengths: Sequence[int],
    spans: Sequence[Sequence[Span]] | None = None,
) -> Int[Tensor, "n pos"]:
    """The corrupted token at the place of each clean one, of pairs whose prompts may differ in length.

    Spans and what lies between them divide both prompts of a pair into as many parts. Within a part the last
    tokens coincide, the tokens before the last ones, and so on until the shorter side ends.

    Args:
        lengths: Tokens of each clean prompt.
        corrupted_lengths: Tokens of each corrupted prompt.
        spans: For each pair, its spans in order: ranges of tokens `((start, stop), (start, stop))` of the
            clean and of the corrupted prompt; one side may be empty. Default: none, so that the last tokens
            of whole prompts coincide.

    Returns:
        Place of the corrupted token for each clean token `[N, T]`, T the longest clean prompt; -1 where there
        is none, and behind the prompt. `PairTask` takes it as `alignment`.

    Raises:
        ShapeError: If the three do not have one entry per pair.
        InputError: If spans of a pair overlap, differ in order or lie outside their prompt.

    Example:
        >>> align_prompts([4], [5]).tolist()
        [[1, 2, 3, 4]]
        >>> align_prompts([4], [5], [[((1, 2), (1, 3))]]).tolist()  # the second word has one token more
        [[0, 2, 3, 4]]
        >>> align_prompts([5], [4], [[((1, 3), (1, 2))]]).tolist()
        [[0, -1, 1, 2, 3]]
    """
    spans = [()] * len(lengths) if spans is None else spans
    if not len(lengths) == len(corrupted_lengths) == len(spans):
        raise ShapeError(
            f"there are {len(lengths)} lengths, {len(corrupted_lengths)} corrupted lengths and {len(spans)} "
            "lists of spans; give one of each per pair"
        )
    alignment = torch.full((len(lengths), max(lengths)), NO_COUNTERPART)
    for pair, (clean, corrupted, parts) in enumerate(zip(lengths, corrupted_lengths, spans, strict=True)):
        sides = [
            [0, *(edge for part in parts for edge in part[side]), length]
            for side, length in enumerate((clean, corrupted))
        ]
        for name, edges in zip(("clean", "corrupted"), sides, strict=True):
            if edges != sorted(edges):
                raise InputError(
                    f"pair {pair}: the spans of the {name} prompt are tokens {edges[1:-1]} of {edges[-1]}; "
                    "give ranges inside the prompt that do not overlap, in the order of both prompts"
                )
        for start, stop, other, end in zip(sides[0], sides[0][1:], sides[1], sides[1][1:], strict=False):
            shared = min(stop - start, end - other)
            alignment[pair, stop - shared : stop] = torch.arange(end - shared, end)
    return alignment


def one_by_one(
    alignment: Int[Tensor, "n pos"], lengths: Int[Tensor, " n"], corrupted_lengths: Int[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    """Pairs of one length in which tokens of one number stand at one place."""
    places = torch.arange(alignment.shape[1])
    own = torch.where(places < lengths[:, None], places, NO_COUNTERPART)
    return (alignment == own).all(1) & (lengths == corrupted_lengths)


def check_alignment(
    alignment: Int[Tensor, "n pos"],
    lengths: Int[Tensor, " n"],
    corrupted_lengths: Int[Tensor, " n"],
    positions: Int[Tensor, "n *reads"],
) -> None:
    """Refuse an alignment that does not fit its prompts.

    Raises:
        InputError: If it names tokens outside a prompt or not in order, or none where a prompt is read; the
            pair is named.
    """
    real = torch.arange(alignment.shape[1]) < lengths[:, None]
    known = alignment > NO_COUNTERPART
    highest = alignment.cummax(1).values
    before = torch.cat([torch.full_like(highest[:, :1], NO_COUNTERPART), highest[:, :-1]], 1)
    at_read = alignment.gather(1, positions.reshape(len(alignment), -1).clamp(min=0))
    read = positions.reshape(len(alignment), -1) >= 0
    for bad, fact in (
        ((alignment < NO_COUNTERPART) | (known & ~real), "names a token where there is none"),
        (alignment >= corrupted_lengths[:, None], "names a token outside the corrupted prompt"),
        (known & (alignment <= before), "names corrupted tokens out of order"),
        (
            read & (at_read < 0),
            "has no corrupted token where the prompt is read; declare spans so that it has one, or read "
            "elsewhere",
        ),
    ):
        if bool(bad.any()):
            raise InputError(f"alignment of pair {int(bad.any(1).nonzero()[0])} {fact}")

"""The worst pairs, readable: what was asked, what model and circuit answer, and what x~ alone would give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.inputs import PairSample, PromptSet
from assay.core.record import Record, same
from assay.stats import top_indices


TOP = 3  # tokens shown of each run
RUNS = ("model", "circuit", "corrupted")


@dataclass(frozen=True, kw_only=True)
class TopToken(Record):
    """One of the likeliest next tokens of a run.

    Attributes:
        token: Decoded by itself, white space included.
        id: Its id.
        logit: Raw, or less the mean over the vocabulary.
    """

    token: str
    id: int
    logit: float


@dataclass(frozen=True, kw_only=True)
class Answer(Record):
    """The right answer of a pair: of several, the one that the model ranks first.

    Attributes:
        text: Decoded.
        id: Token id.
        rank: 1 + number of tokens of larger logit, per run: `model`, `circuit`, `corrupted`.
        logit: Its logit per run.
    """

    text: str
    id: int
    rank: dict[str, int]
    logit: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class WorstPair(Record):
    """One pair of large divergence.

    Attributes:
        rank: 1 the worst.
        clean_index: Row of the clean input (the first that has these tokens).
        corrupted_index: Row of the corrupted input, likewise.
        multiplicity: Pairs of the sample with the same two inputs; 1 where duplicates are listed apart.
        divergence: Of circuit from model on this pair.
        empty: Of the empty circuit, i.e. of the model's output on the corrupted input.
        clean: Clean input as text; ids where there is none.
        corrupted: Corrupted input.
        clean_tokens: What each token of the clean input adds to its text; ids where there is no tokenizer;
            empty for images.
        corrupted_tokens: Tokens of the corrupted input.
        clean_fields: Fields of the clean input.
        corrupted_fields: Fields of the corrupted input.
        model: Top tokens of the model on the clean input.
        circuit: Top tokens of the circuit on the pair.
        corrupted_model: Top tokens of the model on the corrupted input; where the ablation reads none, of
            the empty circuit.
        answer: The right answer; None for inputs without answers.
    """

    record_layout = {
        **same("rank", "clean_index", "corrupted_index", "multiplicity", "divergence", "empty"),
        "clean": {"text": "clean", "tokens": "clean_tokens", "fields": "clean_fields"},
        "corrupted": {"text": "corrupted", "tokens": "corrupted_tokens", "fields": "corrupted_fields"},
        **same("differs", "answer"),
        "top": {**same("model", "circuit"), "corrupted": "corrupted_model"},
    }

    rank: int
    clean_index: int
    corrupted_index: int
    multiplicity: int
    divergence: float
    empty: float
    clean: str
    corrupted: str
    clean_tokens: tuple[str, ...]
    corrupted_tokens: tuple[str, ...]
    clean_fields: dict[str, Any]
    corrupted_fields: dict[str, Any]
    model: tuple[TopToken, ...]
    circuit: tuple[TopToken, ...]
    corrupted_model: tuple[TopToken, ...]
    answer: Answer | None = None

    @property
    def differs(self) -> tuple[bool, ...]:
        """Per position, whether the two inputs have different tokens."""
        return tuple(a != b for a, b in zip(self.clean_tokens, self.corrupted_tokens, strict=True))


@dataclass(frozen=True, kw_only=True)
class WorstInput(Record):
    """One input with what its pairs diverge by.

    Attributes:
        index: Row of the input (the first that has these tokens).
        text: As text; ids where there is none.
        mean: Mean divergence over its pairs.
        max: Largest one.
    """

    index: int
    text: str
    mean: float
    max: float


class WorstInputs(NamedTuple):
    """The inputs behind the tail, by mean divergence over their pairs."""

    clean: tuple[WorstInput, ...]
    corrupted: tuple[WorstInput, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedPairs:
    """Which pairs are worst.

    Attributes:
        clean_index: Row of each pair's clean input.
        corrupted_index: Row of its corrupted input.
        place: Flat index of each pair among the divergences.
        multiplicity: How often the sample holds it.
    """

    clean_index: Int64[np.ndarray, " k"]
    corrupted_index: Int64[np.ndarray, " k"]
    place: Int64[np.ndarray, " k"]
    multiplicity: Int64[np.ndarray, " k"]


def rank_pairs(
    values: Float64[np.ndarray, "..."], sample: PairSample, k: int, *, distinct: bool
) -> RankedPairs:
    """The k pairs of largest value; ties by clean index, then corrupted index, ascending."""
    clean, corrupted = sample.clean.distinct, sample.corrupted.distinct
    if sample.pairs is None:
        if not distinct:
            place = top_indices(values, k)
            multiplicity = np.ones(len(place), dtype=np.int64)
        else:
            distinct_values = values[np.ix_(clean.first_index, corrupted.first_index)]
            rows, columns = np.unravel_index(top_indices(distinct_values, k), distinct_values.shape)
            place = np.ravel_multi_index(
                (clean.first_index[rows], corrupted.first_index[columns]), values.shape
            )
            draws = [np.bincount(each.inverse) for each in (clean, corrupted)]
            multiplicity = draws[0][rows] * draws[1][columns]
        clean_index, corrupted_index = np.unravel_index(place, values.shape)
    else:
        ids = pair_ids(sample)
        _, first, counts = np.unique(ids, return_index=True, return_counts=True)
        if not distinct:
            first, counts = np.arange(len(ids)), np.ones(len(ids), dtype=np.int64)
        # By clean, then corrupted index, so that ties come out in this order.
        order = np.lexsort((sample.pairs[first, 1], sample.pairs[first, 0]))
        chosen = order[top_indices(values[first[order]], k)]
        place, multiplicity = first[chosen], counts[chosen]
        clean_index, corrupted_index = sample.pairs[place].T
    return RankedPairs(
        clean_index=np.asarray(clean_index, dtype=np.int64),
        corrupted_index=np.asarray(corrupted_index, dtype=np.int64),
        place=np.asarray(place, dtype=np.int64),
        multiplicity=np.asarray(multiplicity, dtype=np.int64),
    )


def pair_ids(sample: PairSample) -> Int64[np.ndarray, " n_pairs"]:
    """A number for each listed pair, equal for pairs of the same two inputs."""
    assert sample.pairs is not None
    clean, corrupted = sample.clean.distinct, sample.corrupted.distinct
    width = len(corrupted.first_index)
    return np.asarray(clean.inverse[sample.pairs[:, 0]] * width + corrupted.inverse[sample.pairs[:, 1]])


def count_pairs(sample: PairSample) -> int:
    """Number of distinct pairs."""
    if sample.pairs is not None:
        return len(np.unique(pair_ids(sample)))
    return len(sample.clean.distinct.first_index) * len(sample.corrupted.distinct.first_index)


def rank_inputs(
    values: Float64[np.ndarray, "..."], sample: PairSample, side: Literal["clean", "corrupted"], k: int
) -> tuple[WorstInput, ...]:
    """The k distinct inputs of one side with the largest mean over their pairs, ties by row."""
    inputs: PromptSet = getattr(sample, side)
    axis = 0 if side == "clean" else 1
    if axis == 1 and sample.protocol == "inputs":
        return ()  # there is no second input
    distinct = inputs.distinct
    n = len(distinct.first_index)
    if sample.pairs is None:
        rows = distinct.first_index
        kept = values[rows] if axis == 0 else values[:, rows].T
        means, largest = kept.mean(axis=1), kept.max(axis=1)
    else:
        unit = distinct.inverse[sample.pairs[:, axis]]
        means = np.bincount(unit, weights=values, minlength=n) / np.bincount(unit, minlength=n)
        largest = np.full(n, -np.inf)
        np.maximum.at(largest, unit, values)
    order = np.argsort(-means, kind="stable")[:k]
    return tuple(
        WorstInput(
            index=int(distinct.first_index[at]),
            text=text_of(inputs, int(distinct.first_index[at]), sample.tokenizer),
            mean=float(means[at]),
            max=float(largest[at]),
        )
        for at in order
    )


def describe_pairs(
    ranking: RankedPairs,
    values: Float64[np.ndarray, "..."],
    empty: Float64[np.ndarray, "..."],
    sample: PairSample,
    logits: Sequence[Float[Tensor, "k d_vocab"]],
    *,
    centred: bool,
) -> tuple[WorstPair, ...]:
    """The rows of a table of worst pairs.

    Args:
        ranking: Which pairs.
        values: Divergences of the sample.
        empty: Those of the empty circuit.
        sample: The inputs.
        logits: Of model, circuit and model on the corrupted input, for the ranked pairs.
        centred: Subtract the mean over the vocabulary from the logits.
    """
    tables = [each.double() for each in logits]
    if centred:
        tables = [each - each.mean(dim=-1, keepdim=True) for each in tables]
    flat, flat_empty = values.ravel(), empty.ravel()
    pairs_shown = []
    for row, (clean, corrupted, place, multiplicity) in enumerate(
        zip(
            *(each.tolist() for each in (ranking.clean_index, ranking.corrupted_index, ranking.place)),
            ranking.multiplicity.tolist(),
            strict=True,
        )
    ):
        runs = {name: table[row] for name, table in zip(RUNS, tables, strict=True)}
        tops = [_top(run, sample.tokenizer) for run in runs.values()]
        pairs_shown.append(
            WorstPair(
                rank=row + 1,
                clean_index=clean,
                corrupted_index=corrupted,
                multiplicity=multiplicity,
                divergence=float(flat[place]),
                empty=float(flat_empty[place]),
                clean=text_of(sample.clean, clean, sample.tokenizer),
                corrupted=text_of(sample.corrupted, corrupted, sample.tokenizer),
                clean_tokens=_tokens(sample.clean, clean, sample.tokenizer),
                corrupted_tokens=_tokens(sample.corrupted, corrupted, sample.tokenizer),
                clean_fields={name: each[clean] for name, each in sample.clean.fields.items()},
                corrupted_fields={name: each[corrupted] for name, each in sample.corrupted.fields.items()},
                model=tops[0],
                circuit=tops[1],
                corrupted_model=tops[2],
                answer=_answer(sample.clean, clean, runs, sample.tokenizer),
            )
        )
    return tuple(pairs_shown)


def decoded(token: int, tokenizer: Any) -> str:
    """One token by itself."""
    return str(token) if tokenizer is None else str(tokenizer.decode([token]))


def pieces_of(ids: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    """What each token adds to the text before it, so that the pieces joined are the whole text.

    A token decoded by itself loses the space that WordLevel and SentencePiece tokenizers set before it.
    """
    if tokenizer is None:
        return tuple(str(token) if place == 0 else f" {token}" for place, token in enumerate(ids))
    pieces, before = [], ""
    for end in range(1, len(ids) + 1):
        text = str(tokenizer.decode(ids[:end]))
        if text.endswith("\N{REPLACEMENT CHARACTER}") and end < len(ids):
            pieces.append("")  # the first bytes of a character: it comes with its last token
            continue
        # Most decoders only append; where one rewrites what came before, the piece begins at the change.
        same = [a == b for a, b in zip(before, text, strict=False)]
        pieces.append(text[same.index(False) if False in same else len(same) :])
        before = text
    return tuple(pieces)


def text_of(inputs: PromptSet, row: int, tokenizer: Any) -> str:
    """An input as text; its ids where there is no tokenizer."""
    if inputs.texts is not None:
        return inputs.texts[row]
    ids = inputs.tokens[row, : int(inputs.lengths[row])].tolist()
    return " ".join(map(str, ids)) if tokenizer is None else str(tokenizer.decode(ids))


def _tokens(inputs: PromptSet, row: int, tokenizer: Any) -> tuple[str, ...]:
    if inputs.images is not None:
        return ()
    return pieces_of(inputs.tokens[row, : int(inputs.lengths[row])].tolist(), tokenizer)


def _top(logits: Tensor, tokenizer: Any) -> tuple[TopToken, ...]:
    # A stable sort, so that equal logits come in order of their ids.
    order = torch.sort(logits, descending=True, stable=True).indices[:TOP]
    return tuple(
        TopToken(token=decoded(int(token), tokenizer), id=int(token), logit=float(logits[token]))
        for token in order
    )


def _answer(inputs: PromptSet, row: int, runs: dict[str, Tensor], tokenizer: Any) -> Answer | None:
    if inputs.answers is None:
        return None
    ids = inputs.answers[row]
    ids = ids[ids >= 0]
    if not len(ids):
        return None
    best = int(ids[runs["model"][ids].argmax()])
    return Answer(
        text=decoded(best, tokenizer),
        id=best,
        rank={name: 1 + int((logits > logits[best]).sum()) for name, logits in runs.items()},
        logit={name: float(logits[best]) for name, logits in runs.items()},
    )

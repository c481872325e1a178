"""The worst pairs, run once more and readable: what model, circuit and x~ alone would answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.divergence import Divergence, Kernel, get_divergence, pair_divergences
from assay.analyses.worst_case.sampling import PairSample, PromptSet, task_of
from assay.circuits import Circuit
from assay.core.errors import InconsistentRunError
from assay.core.record import Record, same
from assay.execution import run_circuit, run_model
from assay.models import Model
from assay.stats import top_indices


TOP = 3  # tokens shown of each run
RERUN_ABSOLUTE, RERUN_RELATIVE = 1e-3, 1e-3  # by how much a second run may differ
_HALF = 8  # units in the last place that divergences of number types below float32 are allowed

Rows = Int64[np.ndarray, " k"]


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


class RankedPairs(NamedTuple):
    """Which pairs are worst.

    Attributes:
        clean_index: Row of each pair's clean input.
        corrupted_index: Row of its corrupted input.
        place: Flat index of each pair among the divergences.
        multiplicity: How often the sample holds it.
    """

    clean_index: Rows
    corrupted_index: Rows
    place: Rows
    multiplicity: Rows


# -------------------------------------------------------------------------------------- which they are


def rank_pairs(
    values: Float64[np.ndarray, "..."], sample: PairSample, k: int, *, distinct: bool
) -> RankedPairs:
    """The k pairs of largest value; ties by clean index, then corrupted index, ascending."""
    clean, corrupted = sample.clean.distinct, sample.corrupted.distinct
    if sample.pairs is not None:
        if distinct:
            _, first, counts = np.unique(pair_ids(sample), return_index=True, return_counts=True)
        else:
            first, counts = np.arange(len(sample.pairs)), np.ones(len(sample.pairs), dtype=np.int64)
        # By clean, then corrupted index, so that ties come out in this order.
        order = np.lexsort((sample.pairs[first, 1], sample.pairs[first, 0]))
        chosen = order[top_indices(values[first[order]], k)]
        rows, columns = sample.pairs[first[chosen]].T
        return RankedPairs(rows, columns, first[chosen], counts[chosen])
    if distinct:
        shown = values[np.ix_(clean.first_index, corrupted.first_index)]
        at, other = np.unravel_index(top_indices(shown, k), shown.shape)
        rows, columns = clean.first_index[at], corrupted.first_index[other]
        place = np.ravel_multi_index((rows, columns), values.shape)
        return RankedPairs(
            rows, columns, place, np.bincount(clean.inverse)[at] * np.bincount(corrupted.inverse)[other]
        )
    place = top_indices(values, k)
    rows, columns = np.unravel_index(place, values.shape)
    return RankedPairs(rows, columns, place, np.ones(len(place), dtype=np.int64))


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
    rows, inverse = inputs.distinct
    if sample.pairs is None:
        kept = values[rows] if axis == 0 else values[:, rows].T
        means, largest = kept.mean(axis=1), kept.max(axis=1)
    else:
        unit = inverse[sample.pairs[:, axis]]
        means = np.bincount(unit, weights=values, minlength=len(rows)) / np.bincount(
            unit, minlength=len(rows)
        )
        largest = np.full(len(rows), -np.inf)
        np.maximum.at(largest, unit, values)
    return tuple(
        WorstInput(
            index=int(rows[at]),
            text=inputs.text(int(rows[at]), sample.tokenizer),
            mean=float(means[at]),
            max=float(largest[at]),
        )
        for at in np.argsort(-means, kind="stable")[:k]
    )


# ------------------------------------------------------------------------------------------- once more


class Logits(NamedTuple):
    """Logits of the same pairs in three runs, each `[k, d_vocab]`."""

    model: Float[Tensor, "k d_vocab"]
    circuit: Float[Tensor, "k d_vocab"]
    corrupted: Float[Tensor, "k d_vocab"]  # of the empty circuit, where no second input is read


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """How pairs of a result are run once more: one by one, by an engine that shares nothing with the first.

    Attributes:
        model: The model.
        circuit: The circuit.
        sample: The pairs.
        divergence: What was measured.
    """

    model: Model
    circuit: Circuit
    sample: PairSample
    divergence: str | Divergence | Kernel

    def logits(self, clean_index: Rows, corrupted_index: Rows) -> Logits:
        """Logits of the pairs of some rows."""
        model, carried = self.model, self.sample.carried
        task = task_of(self.sample.clean.subset(clean_index), self.sample.corrupted.subset(corrupted_index))
        if carried.paired:
            nothing = run_model(model, task, corrupted=True)
        else:
            nothing = run_circuit(Circuit.empty(self.circuit.graph), model, task, ablation=carried)
        runs = run_model(model, task), run_circuit(self.circuit, model, task, ablation=carried), nothing
        return Logits(*(each.detach().cpu() for each in runs))

    def confirmed(self, ranking: RankedPairs, stored: Float64[np.ndarray, " k"]) -> Logits:
        """The logits of ranked pairs, if their divergences are the stored ones.

        Raises:
            InconsistentRunError: If one of them is not: the run is not to be trusted.
        """
        logits = self.logits(ranking.clean_index, ranking.corrupted_index)
        clean = self.sample.clean.subset(ranking.clean_index)
        again = pair_divergences(get_divergence(self.divergence), logits.model, logits.circuit, clean)
        # Number types below float32 allow some units in the last place.
        eps = torch.finfo(self.model.dtype).eps
        allowed = max(RERUN_ABSOLUTE, _HALF * eps) + max(RERUN_RELATIVE, 2 * eps) * np.abs(stored)
        # Not `>`: a NaN of the second run is a disagreement too.
        agrees = np.abs(again - stored) <= allowed
        if not agrees.all():
            at = int(np.flatnonzero(~agrees)[0])
            raise InconsistentRunError(
                f"inconsistent_rerun: pair (clean {ranking.clean_index[at]}, corrupted "
                f"{ranking.corrupted_index[at]}) has divergence {stored[at]:.6g} in the run and "
                f"{again[at]:.6g} when run again. One of the two does not belong to this circuit, so use "
                "neither"
            )
        return logits


# -------------------------------------------------------------------------------------------- readable


def describe_pairs(
    ranking: RankedPairs,
    values: Float64[np.ndarray, "..."],
    empty: Float64[np.ndarray, "..."],
    sample: PairSample,
    logits: Logits,
    *,
    centred: bool,
) -> tuple[WorstPair, ...]:
    """The rows of a table of worst pairs.

    Args:
        ranking: Which pairs.
        values: Divergences of the sample.
        empty: Those of the empty circuit.
        sample: The inputs.
        logits: Of the ranked pairs.
        centred: Subtract the mean over the vocabulary from the logits.
    """
    tables = Logits(*(each.double() for each in logits))
    if centred:
        tables = Logits(*(each - each.mean(dim=-1, keepdim=True) for each in tables))
    clean, corrupted, names, shown = sample.clean, sample.corrupted, sample.tokenizer, []
    for at, (row, column, place, multiplicity) in enumerate(
        zip(*(each.tolist() for each in ranking), strict=True)
    ):
        runs = Logits(*(table[at] for table in tables))
        shown.append(
            WorstPair(
                rank=at + 1,
                multiplicity=multiplicity,
                divergence=float(values.flat[place]),
                empty=float(empty.flat[place]),
                **_shown(clean, row, "clean", names),
                **_shown(corrupted, column, "corrupted", names),
                model=_top(runs.model, names),
                circuit=_top(runs.circuit, names),
                corrupted_model=_top(runs.corrupted, names),
                answer=_answer(clean, row, runs, names),
            )
        )
    return tuple(shown)


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


def _shown(inputs: PromptSet, row: int, side: str, tokenizer: Any) -> dict[str, Any]:
    """What a `WorstPair` says of one of its inputs."""
    ids = inputs.tokens[row, : int(inputs.lengths[row])].tolist() if inputs.images is None else []
    return {
        f"{side}_index": row,
        side: inputs.text(row, tokenizer),
        f"{side}_tokens": pieces_of(ids, tokenizer),
        f"{side}_fields": {name: each[row] for name, each in inputs.fields.items()},
    }


def _top(logits: Tensor, tokenizer: Any) -> tuple[TopToken, ...]:
    # A stable sort, so that equal logits come in order of their ids.
    order = torch.sort(logits, descending=True, stable=True).indices[:TOP]
    return tuple(
        TopToken(token=decoded(int(token), tokenizer), id=int(token), logit=float(logits[token]))
        for token in order
    )


def _answer(inputs: PromptSet, row: int, runs: Logits, tokenizer: Any) -> Answer | None:
    ids = torch.empty(0) if inputs.answers is None else inputs.answers[row]
    ids = ids[ids >= 0]
    if not len(ids):
        return None
    best, by_run = int(ids[runs.model[ids].argmax()]), runs._asdict()
    return Answer(
        text=decoded(best, tokenizer),
        id=best,
        rank={name: 1 + int((logits > logits[best]).sum()) for name, logits in by_run.items()},
        logit={name: float(logits[best]) for name, logits in by_run.items()},
    )

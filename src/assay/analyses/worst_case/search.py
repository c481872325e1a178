"""Looking for the worst pairs: climbs over the grammar, one slot of one prompt at a time.

What a search finds bounds the maximum from below and can be read. It says nothing about percentiles, and no
certificate is made of it.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from assay.analyses.worst_case.attack import PREFIX, run_sample
from assay.analyses.worst_case.inputs import PairSample, names_of, prompt_set
from assay.analyses.worst_case.pair_divergence import Divergence, Kernel, get_divergence
from assay.analyses.worst_case.row_by_row import (
    DONOR,
    ablation_of,
    edge_ablation,
    evaluator_of,
    shares_inputs,
)
from assay.analyses.worst_case.rows import WorstPair
from assay.analyses.worst_case.sampling import INPUTS, grammar_of, sample_pairs
from assay.circuits import Circuit
from assay.circuits.naming import named_task
from assay.circuits.spans import check_everywhere
from assay.core.errors import InputError, NonFiniteError, check_least, check_name
from assay.core.random import stream
from assay.core.record import HIDDEN, Record
from assay.execution import PairRunner
from assay.execution.forward import check_circuit
from assay.models import Model
from assay.tasks import Grammar, Prompt, Task


Pair = tuple[Prompt, Prompt]  # clean, corrupted
EvaluatePrompts = Callable[[Sequence[Prompt], Sequence[Prompt]], Float[np.ndarray, " pairs"]]

BUDGET = 20_000
RESTARTS = 16
SIDES = ("clean", "corrupted")
SECONDS = ("corrupted", "clean", "same")  # what the second prompt of a pair is
LARGE_SLOT = 128  # of a slot with more fillers
TRIED = 16  # so many are evaluated
DRAWS = 100  # attempts to draw two prompts of one length
NOTE = (
    "found by search, not drawn: the maximum over the grammar is at least this large; neither percentiles "
    "nor certificates follow from these pairs"
)


# ---------------------------------------------------------------------------------------------------- climbs


@dataclass(frozen=True, kw_only=True)
class Ascent(Record):
    """One climb.

    Attributes:
        clean: Clean prompt at its end.
        corrupted: Corrupted prompt at its end.
        value: Divergence there.
        start: Divergence of the random pair it began with.
        sweeps: Passes over the slots, the last of which changed nothing unless the climb was cut short.
        finished: Whether no single slot leads further up, as far as its fillers were evaluated.
    """

    clean: Prompt = field(metadata=HIDDEN)
    corrupted: Prompt = field(metadata=HIDDEN)
    value: float
    start: float
    sweeps: int
    finished: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Climbs:
    """Several climbs with everything they evaluated.

    Attributes:
        ascents: In the order of their restarts.
        pairs: Every pair evaluated, once, in order of evaluation.
        values: Their divergences.
    """

    ascents: tuple[Ascent, ...]
    pairs: tuple[Pair, ...]
    values: Float64[np.ndarray, " n_evaluations"]


def grammar_ascent(
    evaluate_prompts: EvaluatePrompts,
    grammar: Grammar,
    *,
    restarts: int = RESTARTS,
    budget: int | None = None,
    seed: int = 0,
    large: int = LARGE_SLOT,
    tried: int = TRIED,
    second: str = "corrupted",
) -> Climbs:
    """Look for pairs of large divergence among all that a grammar can produce, by coordinate ascent.

    From a random pair: take every slot of either prompt in random order, evaluate all its fillers in one
    batch, keep the best; stop when a sweep over the slots changes nothing. Every prompt on the way is one
    that the grammar can draw, on its own side.

    Args:
        evaluate_prompts: `(clean prompts, corrupted prompts) -> [pairs]`, row by row.
        grammar: What the prompts are drawn from; it must describe its slots.
        restarts: Random pairs to begin with.
        budget: Most evaluations over all restarts, shared out among those still to come. Default: no limit.
        seed: Root seed; restart r draws from the stream `ascent:r`.
        large: Most fillers of a slot that are all evaluated.
        tried: Fillers evaluated of a larger one, drawn at random.
        second: What the second prompt of a pair is: `corrupted`; another `clean` one; or the `same`, of which
            then only the slots of the clean prompt are varied.

    Raises:
        InputError: If a count is below 1, the grammar describes no slots, or its prompts agree in no length.
        UnknownNameError: If `second` is another word.
        NonFiniteError: If a divergence is NaN or infinite.

    Notes:
        A pair met again costs nothing. Of equal fillers the first is kept, and only a larger divergence leads
        on, so climbs end.
    """
    check_name("second prompt of a pair", second, SECONDS)
    check_least(1, restarts=restarts, large=large, tried=tried)
    check_least(restarts, budget=restarts if budget is None else budget)
    evaluated = _Evaluated(evaluate_prompts)
    climbs = []
    for restart in range(restarts):
        if budget is not None:
            evaluated.limit = evaluated.n + (budget - evaluated.n) // (restarts - restart)
        climb = _Climb(grammar, evaluated, stream(seed, f"ascent:{restart}"), large, tried, second)
        climbs.append(climb.run())
    return Climbs(
        ascents=tuple(climbs),
        pairs=tuple(evaluated.pairs.values()),
        values=np.array(list(evaluated.values.values())),
    )


def n_tokens(prompt: Prompt, grammar: Grammar) -> int:
    """Tokens of a prompt, a beginning-of-sequence token not counted."""
    return len(grammar.tokens.ids(prompt.text) if prompt.ids is None else prompt.ids)


@dataclass
class _Evaluated:
    """Values of pairs, each evaluated once, until a limit is reached."""

    evaluate: EvaluatePrompts
    limit: int | None = None
    pairs: dict[object, Pair] = field(default_factory=dict)
    values: dict[object, float] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def exhausted(self) -> bool:
        return self.limit is not None and self.n >= self.limit

    def of(self, pairs: Sequence[Pair]) -> Float64[np.ndarray, " pairs"]:
        """Divergences; -infinity for pairs beyond the limit."""
        keys = [tuple((prompt.text, prompt.ids) for prompt in pair) for pair in pairs]
        new = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self.values}
        if self.limit is not None:
            new = dict(list(new.items())[: max(0, self.limit - self.n)])
        if new:
            clean, corrupted = zip(*new.values(), strict=True)
            values = np.asarray(self.evaluate(clean, corrupted), dtype=np.float64)
            for (key, pair), value in zip(new.items(), values.tolist(), strict=True):
                if not np.isfinite(value):
                    raise NonFiniteError(
                        f"the divergence of clean {pair[0]} and corrupted {pair[1]} is {value}"
                    )
                self.pairs[key], self.values[key] = pair, value
        return np.array([self.values.get(key, -np.inf) for key in keys])


@dataclass
class _Climb:
    """One restart on its way up."""

    grammar: Grammar
    known: _Evaluated
    draws: np.random.Generator
    large: int
    tried: int
    second: str

    @property
    def sides(self) -> tuple[str, ...]:
        """Sides whose slots are varied."""
        return SIDES[:1] if self.second == "same" else SIDES

    def run(self) -> Ascent:
        pair = self.random_pair()
        value = start = float(self.known.of([pair])[0])
        sweeps, moved = 0, True
        while moved and not self.known.exhausted:
            moved, sweeps = False, sweeps + 1
            for side, slot in self.shuffled_slots(pair):
                options = self.options(pair, side, slot)
                if not options:
                    continue
                found = self.known.of(options)
                best = int(found.argmax())
                if found[best] > value:
                    pair, value, moved = options[best], float(found[best]), True
        clean, corrupted = pair
        return Ascent(
            clean=clean, corrupted=corrupted, value=value, start=start, sweeps=sweeps, finished=not moved
        )

    def random_pair(self) -> Pair:
        """Two independent prompts of one length, or one that stands on both sides."""
        grammar, draws = self.grammar, self.draws
        lengths = set()
        for _ in range(DRAWS):
            clean, other = grammar.draw(2, draws)
            if self.second == "corrupted":
                other = grammar.corrupt([other], draws)[0]
            pair = (clean, clean if self.second == "same" else other)
            if not any(self.slots(pair, side) for side in self.sides):
                raise InputError(f"the grammar of {grammar.key} has no slots to vary")
            lengths_of_pair = [n_tokens(prompt, grammar) for prompt in pair]
            if lengths_of_pair[0] == lengths_of_pair[1]:
                return pair
            lengths.update(lengths_of_pair)
        raise InputError(
            f"{DRAWS} draws of {grammar.key} gave no clean and corrupted prompt of equal length (token "
            f"counts {', '.join(map(str, sorted(lengths)))}); choose one template"
        )

    def slots(self, pair: Pair, side: str) -> tuple[str, ...]:
        values = dict(pair[SIDES.index(side)].values)
        return self.grammar.slots(values, corrupted=self.corrupts(side))

    def corrupts(self, side: str) -> bool:
        """Whether prompts of a side obey the rules of corrupted ones."""
        return side == "corrupted" and self.second == "corrupted"

    def shuffled_slots(self, pair: Pair) -> list[tuple[str, str]]:
        named = [(side, slot) for side in self.sides for slot in self.slots(pair, side)]
        return [named[i] for i in self.draws.permutation(len(named))]

    def options(self, pair: Pair, side: str, slot: str) -> list[Pair]:
        """The pairs with another filler in one slot; some of a large slot."""
        if slot not in self.slots(pair, side):  # two names that were apart now stand together
            return []
        values = dict(pair[SIDES.index(side)].values)
        found = [
            self.grammar.render(each)
            for each in self.grammar.variants(values, slot, corrupted=self.corrupts(side))
        ]
        if len(found) > self.large:
            chosen = self.draws.choice(len(found), size=self.tried, replace=False)
            found = [found[int(i)] for i in np.sort(chosen)]
        if self.second == "same":
            return [(each, each) for each in found]
        return [(each, pair[1]) if side == "clean" else (pair[0], each) for each in found]


# ------------------------------------------------------------------------------------------------ the search


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SearchResult(Record):
    """The worst pairs that a search has found.

    Attributes:
        worst: Worst first, with texts and the likeliest tokens of model and circuit; run once more by the
            one-pair engine. Under an ablation without a second input, both sides are the same prompt.
        n_evaluations: Pairs evaluated in all.
        ascents: Where each climb began and ended.
        unit: Of the divergences.
        seed: Root seed of all random draws.
        budget: Most evaluations allowed.
        seconds: Time taken.
        sampled: Largest divergence of a sample beside which the search was made; None without one.
    """

    derived = ("max", "largest", "largest_from", "pairs", "note")

    worst: tuple[WorstPair, ...] = field(metadata=HIDDEN)
    n_evaluations: int
    ascents: tuple[Ascent, ...]
    unit: str = field(metadata=HIDDEN)
    seed: int
    budget: int
    seconds: float
    sampled: float | None = None

    @property
    def max(self) -> float:
        """Largest divergence found by search: a lower bound on the maximum."""
        return self.worst[0].divergence

    @property
    def largest(self) -> float:
        """The larger of what the search and the sample met: the better lower bound."""
        return self.max if self.sampled is None else max(self.max, self.sampled)

    @property
    def largest_from(self) -> str:
        """Where `largest` was met: `search` or `sample`."""
        return "search" if self.largest == self.max else "sample"

    @property
    def pairs(self) -> list[dict[str, Any]]:
        """The worst pairs as in documents."""
        return [pair.to_dict() for pair in self.worst]

    @property
    def note(self) -> str:
        """What follows from a search, and what does not."""
        if self.largest_from == "sample":
            return (
                f"max K >= {self.largest:.4g} {self.unit}, met in the sample: the search, of "
                f"{self.n_evaluations:,} evaluations, met {self.max:.4g} at most. A larger budget finds more"
            )
        return f"max K >= {self.max:.4g} {self.unit}: {NOTE}"

    def __str__(self) -> str:
        lines = [
            f"max K >= {self.largest:.4g} {self.unit}, by {self.largest_from} ({self.n_evaluations:,} "
            f"evaluations of the search, {self.max:.4g} at most)"
        ]
        for pair in self.worst:
            answers = " and ".join(
                f"{who} {tokens[0].token!r}"
                for who, tokens in (("model", pair.model), ("circuit", pair.circuit))
            )
            lines += [
                f"{pair.rank:3}. {pair.divergence:.4g} (empty circuit {pair.empty:.4g}; {answers})",
                f"     clean      {pair.clean}",
                *([] if pair.corrupted == pair.clean else [f"     corrupted  {pair.corrupted}"]),
            ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"SearchResult(max={self.max:.4g} {self.unit}, {self.n_evaluations:,} evaluations)"


def search_worst(
    circuit: Circuit,
    model: Model,
    task: Task | str | os.PathLike[str],
    *,
    ablation: str = "resample",
    budget: int = BUDGET,
    restarts: int = RESTARTS,
    k: int = 10,
    seed: int = 0,
    divergence: str | Divergence | Kernel = "kl",
) -> SearchResult:
    """Look for the pairs of a grammar on which a circuit departs furthest from its model.

    `restarts` climbs over the grammar from random pairs (`grammar_ascent`). Under an ablation that reads no
    second input the climbs go over single clean prompts.

    Args:
        circuit: Edges to keep.
        model: The model.
        task: A task with a grammar, or the key of a registered one.
        ablation: What cut edges carry, as for `worst_case`; means are those of `worst_case` with this seed.
        budget: Most pairs to evaluate; at least 4 per restart.
        restarts: Climbs.
        k: Pairs to return.
        seed: Root seed; the draws share no stream with those of a certificate.
        divergence: As for `worst_case`.

    Returns:
        The pairs, readable. The largest is a lower bound on the maximum over the grammar.

    Raises:
        InputError: If a count is out of range, prompts differ in length, or the task has no grammar whose
            slots could be varied: `worst_case` runs all pairs of inputs that are given.
        GraphMismatchError: If the circuit belongs to another graph.
        NonFiniteError: NaN or infinite logits, with the pair.

    Notes:
        The published repository follows gradients through convex combinations of embeddings; the result is
        not a prompt, so that is not offered.

    References:
        uit de Bos and Garriga-Alonso (2024), arXiv:2407.15166.

    Example:
        >>> model = load_model("mini")
        >>> circuit = Circuit.empty(model.graph)
        >>> found = search_worst(circuit, model, "greater-than", budget=300, restarts=2, k=3)
        >>> found.n_evaluations <= 300, len(found.worst), found.worst[0].divergence == found.max
        (True, 3, True)
    """
    began = time.perf_counter()
    check_least(1, restarts=restarts, k=k)
    check_least(4 * restarts, budget=budget)
    check_circuit(model, circuit)
    check_everywhere(circuit.spans, "search_worst", "circuit.anywhere()")
    if not isinstance(task, Task):
        task = named_task(os.fspath(task), model)
    task = model.bind(task)
    grammar = grammar_of(task)
    if grammar is None or not grammar.slots(grammar.choose(np.random.default_rng(seed))):
        raise InputError(
            f"a search varies the words of a grammar, but {task.name!r} has none to vary; worst_case runs "
            "every combination of the inputs that are given: protocol='all' (--protocol all)"
        )
    single = not edge_ablation(ablation).paired
    reference, carried = None, edge_ablation(ablation)
    if single:  # what cut edges carry is measured as by `worst_case`; the one input here is not run
        one = sample_pairs(task, INPUTS, 1, ablation=ablation, seed=seed, prefix=PREFIX)
        reference, carried = one.reference, ablation_of(one)
    measured = get_divergence(divergence)
    runner = PairRunner(model, circuit) if shares_inputs(model, circuit, ablation) else None

    def evaluate(clean: Sequence[Prompt], corrupted: Sequence[Prompt]) -> Float64[np.ndarray, " pairs"]:
        sides = [prompt_set(prompts, grammar.tokens) for prompts in (clean, corrupted)]
        rows = np.arange(len(clean))
        evaluator = evaluator_of(
            model, circuit, *sides, ablation=ablation, carried=carried, divergence=measured, runner=runner
        )
        return evaluator.pairs(rows, rows).divergence

    climbs = grammar_ascent(
        evaluate,
        grammar,
        restarts=restarts,
        budget=budget,
        seed=seed,
        second="same" if single else "clean" if ablation == DONOR else "corrupted",
    )
    sample = _worst_sample(climbs, grammar, k)
    found = PairSample(
        protocol=INPUTS if single else "file",
        clean=prompt_set([clean for clean, _ in sample], grammar.tokens),
        corrupted=prompt_set([corrupted for _, corrupted in sample], grammar.tokens),
        pairs=np.stack([np.arange(len(sample))] * 2, axis=1),
        independent=False,
        own_rows=True,
        population={"clean": None, "corrupted": None},
        seed=seed,
        streams={},
        tokenizer=names_of(task),
        task=task.describe(),
        ablation=ablation,
        reference=reference,
    )
    return SearchResult(
        worst=run_sample(circuit, model, found, divergence=measured).worst(len(sample)),
        n_evaluations=len(climbs.pairs),
        ascents=climbs.ascents,
        unit=measured.unit,
        seed=seed,
        budget=budget,
        seconds=round(time.perf_counter() - began, 1),
    )


def _worst_sample(climbs: Climbs, grammar: Grammar, k: int) -> list[Pair]:
    """The k worst pairs met, all of the length of the worst."""
    order = np.argsort(-climbs.values, kind="stable").tolist()
    length = n_tokens(climbs.pairs[order[0]][0], grammar)
    return [climbs.pairs[at] for at in order if n_tokens(climbs.pairs[at][0], grammar) == length][:k]

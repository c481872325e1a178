"""Looking for the worst pairs: climbs over the grammar, one slot of one prompt at a time.

What a search finds bounds the maximum from below and can be read. It says nothing about percentiles, and no
certificate is made of it.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from assay.analyses.worst_case.attack import PREFIX, run_sample
from assay.analyses.worst_case.divergence import Divergence, Kernel, get_divergence
from assay.analyses.worst_case.evaluation import PairEvaluator, shares_inputs
from assay.analyses.worst_case.rows import WorstPair
from assay.analyses.worst_case.sampling import (
    DONOR,
    INPUTS,
    edge_ablation,
    grammar_of,
    prompt_set,
    sample_pairs,
)
from assay.circuits import Circuit
from assay.circuits.naming import named_task
from assay.circuits.spans import check_everywhere
from assay.core.errors import InputError, check_least
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
LARGE_SLOT = 128  # of a slot with more fillers
TRIED = 16  # so many are evaluated
DRAWS = 100  # attempts to draw two prompts of one length


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


class Climbs:
    """Climbs of one grammar, which share what they evaluate: each pair once, until a limit is reached.

    From a random pair: take every slot of either prompt in random order, evaluate all its fillers in one
    batch, keep the best; stop when a sweep over the slots changes nothing. Every prompt on the way is one
    that the grammar can draw, on its own side. Of equal fillers the first is kept, and only a larger
    divergence leads on, so climbs end.

    Args:
        evaluate: `(clean prompts, corrupted prompts) -> [pairs]`, row by row.
        grammar: What the prompts are drawn from; it must describe its slots.
        second: What the second prompt of a pair is: `corrupted`; another `clean` one; or the `same`, of which
            then only the slots of the clean prompt are varied.

    Attributes:
        pairs: Every pair evaluated, once, in order of evaluation.
        values: Their divergences.
    """

    def __init__(self, evaluate: EvaluatePrompts, grammar: Grammar, second: str = "corrupted") -> None:
        self.evaluate, self.grammar, self.second = evaluate, grammar, second
        self.pairs: list[Pair] = []
        self.values: list[float] = []
        self._known: dict[object, float] = {}
        self._limit: int | None = None

    def climb(self, draws: np.random.Generator, limit: int | None = None) -> Ascent:
        """One climb, cut short at so many evaluations of all climbs.

        Raises:
            InputError: If prompts of the grammar agree in no length.
        """
        self._limit = limit
        pair = self._random_pair(draws)
        value = start = float(self._of([pair])[0])
        sweeps, moved = 0, True
        while moved and not (limit is not None and len(self.values) >= limit):
            moved, sweeps = False, sweeps + 1
            named = self._slots(pair)
            for at in draws.permutation(len(named)).tolist():
                if named[at] not in self._slots(pair):  # two names that were apart now stand together
                    continue
                options = self._options(pair, named[at], draws)
                found = self._of(options)
                best = int(found.argmax()) if options else 0
                if options and found[best] > value:
                    pair, value, moved = options[best], float(found[best]), True
        return Ascent(
            clean=pair[0], corrupted=pair[1], value=value, start=start, sweeps=sweeps, finished=not moved
        )

    def _of(self, pairs: Sequence[Pair]) -> Float64[np.ndarray, " pairs"]:
        """Divergences; -infinity for pairs beyond the limit."""
        keys = [tuple((prompt.text, prompt.ids) for prompt in pair) for pair in pairs]
        new = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._known}
        left = len(new) if self._limit is None else max(0, self._limit - len(self.values))
        new = dict(list(new.items())[:left])
        if new:
            values = np.asarray(self.evaluate(*zip(*new.values(), strict=True)), dtype=np.float64)
            self.pairs += new.values()
            self.values += values.tolist()
            self._known |= zip(new, values.tolist(), strict=True)
        return np.array([self._known.get(key, -np.inf) for key in keys])

    def _random_pair(self, draws: np.random.Generator) -> Pair:
        """Two independent prompts of one length, or one that stands on both sides."""
        grammar = self.grammar
        for _ in range(DRAWS):
            clean, other = grammar.draw(2, draws)
            if self.second == "corrupted":
                other = grammar.corrupt([other], draws)[0]
            pair = (clean, clean if self.second == "same" else other)
            if len({n_tokens(prompt, grammar) for prompt in pair}) == 1:
                return pair
        raise InputError(
            f"{DRAWS} draws of {grammar.key} gave no clean and corrupted prompt of equal length; choose one "
            "template"
        )

    def _slots(self, pair: Pair) -> list[tuple[str, str]]:
        """Side and name of every slot that is varied."""
        sides = SIDES[:1] if self.second == "same" else SIDES
        return [
            (side, slot)
            for side, prompt in zip(sides, pair, strict=False)
            for slot in self.grammar.variants(dict(prompt.values), corrupted=self._corrupts(side))
        ]

    def _corrupts(self, side: str) -> bool:
        """Whether prompts of a side obey the rules of corrupted ones."""
        return side == "corrupted" and self.second == "corrupted"

    def _options(self, pair: Pair, where: tuple[str, str], draws: np.random.Generator) -> list[Pair]:
        """The pairs with another filler in one slot; some of a large slot."""
        side, slot = where
        values = dict(pair[SIDES.index(side)].values)
        variants = self.grammar.variants(values, corrupted=self._corrupts(side))[slot]
        found = [self.grammar.render(each) for each in variants]
        if len(found) > LARGE_SLOT:
            chosen = draws.choice(len(found), size=TRIED, replace=False)
            found = [found[int(i)] for i in np.sort(chosen)]
        if self.second == "same":
            return [(each, each) for each in found]
        return [(each, pair[1]) if side == "clean" else (pair[0], each) for each in found]


def n_tokens(prompt: Prompt, grammar: Grammar) -> int:
    """Tokens of a prompt, a beginning-of-sequence token not counted."""
    return len(grammar.tokens.ids(prompt.text) if prompt.ids is None else prompt.ids)


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
        return (
            f"max K >= {self.largest:.4g} {self.unit}, by {self.largest_from} ({self.n_evaluations:,} "
            f"evaluations of the search, {self.max:.4g} at most): found, not drawn, so neither "
            "percentiles nor certificates follow from these pairs"
        )

    def __str__(self) -> str:
        lines = [self.note]
        for pair in self.worst:
            lines.append(f"{pair.rank:3}. {pair.divergence:.4g}  clean      {pair.clean}")
            lines.append(f"     {'':6}  corrupted  {pair.corrupted}")
        return "\n".join(lines)


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

    `restarts` climbs over the grammar from random pairs (`Climbs`). Under an ablation that reads no
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
    if grammar is None or not grammar.variants(grammar.choose(np.random.default_rng(seed))):
        raise InputError(
            f"a search varies the words of a grammar, but {task.name!r} has none to vary; worst_case runs "
            "every combination of the inputs that are given: protocol='all' (--protocol all)"
        )
    single = not edge_ablation(ablation).paired
    # What cut edges carry is measured as by `worst_case`; the one input here is not run.
    kind = (INPUTS, ablation) if single else ("file", "resample")
    drawn = sample_pairs(task, kind[0], 1, ablation=kind[1], seed=seed, prefix=PREFIX)
    measured = get_divergence(divergence)
    runner = PairRunner(model, circuit) if shares_inputs(model, circuit, drawn.carried) else None

    def evaluate(clean: Sequence[Prompt], corrupted: Sequence[Prompt]) -> Float64[np.ndarray, " pairs"]:
        sides = [prompt_set(prompts, grammar.tokens) for prompts in (clean, corrupted)]
        rows = np.arange(len(clean))
        how: dict[str, Any] = {"ablation": drawn.carried, "divergence": measured, "runner": runner}
        return PairEvaluator(model, circuit, *sides, **how).pairs(rows, rows).divergence

    climbs = Climbs(evaluate, grammar, "same" if single else "clean" if ablation == DONOR else "corrupted")
    ascents = []
    for restart in range(restarts):  # the budget is shared out among the climbs still to come
        limit = len(climbs.values) + (budget - len(climbs.values)) // (restarts - restart)
        ascents.append(climbs.climb(stream(seed, f"ascent:{restart}"), limit))
    # The k worst pairs met, all of the length of the worst.
    order = [climbs.pairs[at] for at in np.argsort(-np.array(climbs.values), kind="stable").tolist()]
    length = n_tokens(order[0][0], grammar)
    worst = [pair for pair in order if n_tokens(pair[0], grammar) == length][:k]
    found = replace(
        drawn,
        ablation=ablation,
        clean=prompt_set([clean for clean, _ in worst], grammar.tokens),
        corrupted=prompt_set([corrupted for _, corrupted in worst], grammar.tokens),
        pairs=np.stack([np.arange(len(worst))] * 2, axis=1),
        independent=False,
        own_rows=True,
        task=task.describe(),
    )
    return SearchResult(
        worst=run_sample(circuit, model, found, divergence=measured).worst(len(worst)),
        n_evaluations=len(climbs.pairs),
        ascents=tuple(ascents),
        unit=measured.unit,
        seed=seed,
        budget=budget,
        seconds=round(time.perf_counter() - began, 1),
    )

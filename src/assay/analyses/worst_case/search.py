"""Looking for the worst pairs: climbs over the grammar, then a matrix search over the inputs they met.

What a search finds bounds the maximum from below and can be read. It says nothing about percentiles, and no
certificate is made of it.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.worst_case.ascent import Ascent, Climbs, grammar_ascent, n_tokens, prompt_key
from assay.analyses.worst_case.attack import PREFIX, run_sample
from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.first_order import FirstOrder
from assay.analyses.worst_case.inputs import PairSample, PromptSet, names_of, prompt_set
from assay.analyses.worst_case.matrix import MatrixSearch, matrix_search
from assay.analyses.worst_case.pair_divergence import Divergence, Kernel, get_divergence
from assay.analyses.worst_case.row_by_row import (
    DONOR,
    RowEvaluator,
    ablation_of,
    edge_ablation,
    evaluator_of,
    shares_inputs,
)
from assay.analyses.worst_case.rows import WorstPair
from assay.analyses.worst_case.sampling import INPUTS, grammar_of, sample_pairs
from assay.circuits import Circuit
from assay.circuits.naming import named_task
from assay.circuits.slots import check_everywhere
from assay.core.errors import InputError, check_least
from assay.core.random import stream
from assay.core.record import HIDDEN, Record
from assay.execution import PairRunner
from assay.execution.forward import check_circuit
from assay.models import Model
from assay.tasks import Prompt, Task, check_read_once


BUDGET = 20_000
RESTARTS = 16
CLIMBING = 0.7  # share of the budget that the climbs may use
NOTE = (
    "found by search, not drawn: the maximum over the grammar is at least this large; neither percentiles "
    "nor certificates follow from these pairs"
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SearchResult(Record):
    """The worst pairs that a search has found.

    Attributes:
        worst: Worst first, with texts and the likeliest tokens of model and circuit; run once more by the
            one-pair engine. Under an ablation without a second input, both sides are the same prompt.
        n_evaluations: Pairs evaluated in all.
        ascents: Where each climb began and ended; empty for a task without a grammar.
        climbing_evaluations: Pairs that the climbs evaluated.
        matrix_shape: Clean and corrupted inputs that the matrix search combined; 0 and 0 without a second
            input.
        unit: Of the divergences.
        seed: Root seed of all random draws.
        budget: Most evaluations allowed.
        seconds: Time taken.
        sampled: Largest divergence of a sample beside which the search was made; None without one.
        pictures: The images of the worst pairs, by side and row, as PNG data URIs; None for prompts.
    """

    derived = ("max", "largest", "largest_from", "pairs", "note")

    worst: tuple[WorstPair, ...] = field(metadata=HIDDEN)
    n_evaluations: int
    ascents: tuple[Ascent, ...]
    climbing_evaluations: int
    matrix_shape: tuple[int, int]
    unit: str = field(metadata=HIDDEN)
    seed: int
    budget: int
    seconds: float
    sampled: float | None = None
    pictures: Mapping[str, Mapping[str, str]] | None = None

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
    """Look for the pairs on which a circuit departs furthest from its model.

    `restarts` climbs over the grammar from random pairs (`grammar_ascent`), then one `matrix_search` over the
    inputs that stood in the worst pairs met. A task without a grammar, and images, get the matrix search
    alone, over their own rows. So do prompts that are read at several positions, over what their grammar
    draws: the answer behind a corrupted prompt is that of the clean prompt it was made from, which a climb
    would leave behind. Under an ablation that reads no second input the climbs go over single clean prompts,
    and there is nothing to combine.

    Args:
        circuit: Edges to keep.
        model: The model.
        task: A task, the key of a registered one, or a JSONL file; for an image classifier images, or what
            `assay.load_images` takes.
        ablation: What cut edges carry, as for `worst_case`; means are those of `worst_case` with this seed.
        budget: Most pairs to evaluate; at least 4 per restart. The climbs use at most 70 % of it.
        restarts: Climbs.
        k: Pairs to return.
        seed: Root seed; the draws share no stream with those of a certificate.
        divergence: As for `worst_case`.

    Returns:
        The pairs, readable. The largest is a lower bound on the maximum over the grammar.

    Raises:
        InputError: If a count is out of range, prompts differ in length, or single inputs that are given are
            to be searched: `worst_case` runs them all.
        GraphMismatchError: If the circuit belongs to another graph.
        NonFiniteError: NaN or infinite logits, with the pair.

    Notes:
        In slots of more than 128 fillers the 16 of largest first-order change of KL are evaluated, whatever
        the divergence. The published repository follows gradients through convex combinations of
        embeddings; the result is not a prompt, so that is not offered.

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
    search = _PairSearch(model, circuit, model.bind(task), get_divergence(divergence), seed, ablation)
    climbs = search.climb(budget, restarts)
    done = 0 if climbs is None else climbs.n_evaluations
    table = search.gather(climbs, budget - done)
    result = search.combine(table, budget - done)
    n_known = 0 if table.start is None else table.start.n_evaluations
    worst, pictures = search.describe(table, result, k)
    return SearchResult(
        worst=worst,
        pictures=pictures,
        n_evaluations=done + result.n_evaluations - n_known,
        ascents=() if climbs is None else climbs.ascents,
        climbing_evaluations=done,
        matrix_shape=(0, 0) if search.single else result.shape,
        unit=search.divergence.unit,
        seed=seed,
        budget=budget,
        seconds=round(time.perf_counter() - began, 1),
    )


def reads_several(task: Task, seed: int = 0) -> bool:
    """Whether prompts of a task are read at several positions, or some of 100 that its grammar draws."""
    grammar = grammar_of(task)
    if grammar is None or task.positions.ndim == 2 or grammar.tokens.answer_tokens != "each":
        return task.positions.ndim == 2
    drawn = grammar.draw(100, stream(seed, "search:reads"))
    return prompt_set(drawn, grammar.tokens, keep=False).positions.ndim == 2


class _PairSearch:
    """The model and circuit of a search, its inputs as the stages need them."""

    def __init__(
        self,
        model: Model,
        circuit: Circuit,
        task: Task,
        divergence: Divergence,
        seed: int,
        ablation: str,
    ) -> None:
        self.model, self.circuit, self.task = model, circuit, task
        self.divergence, self.seed, self.ablation = divergence, seed, ablation
        self.single = not edge_ablation(ablation).paired
        several = reads_several(task, seed)
        grammar = None if several else grammar_of(task)
        example = None if grammar is None else grammar.choose(np.random.default_rng(seed))
        self.grammar = grammar if example is not None and grammar and grammar.slots(example) else None
        if self.single and self.grammar is None:
            raise InputError(
                f"under {ablation!r} ablation a search varies the words of single prompts, but the inputs of "
                f"{task.name!r} are given, or read at several positions, and cannot be varied; worst_case "
                "runs all of them"
            )
        self.reference, self.carried = None, edge_ablation(ablation)
        if self.single:  # what cut edges carry is measured as by `worst_case`; the one input here is not run
            one = sample_pairs(task, INPUTS, 1, ablation=ablation, seed=seed, prefix=PREFIX)
            self.reference, self.carried = one.reference, ablation_of(one)
        shared = not several and shares_inputs(model, circuit, ablation, task.positions)
        self.runner = PairRunner(model, circuit) if shared else None

    def evaluator(self, clean: PromptSet, corrupted: PromptSet) -> PairEvaluator | RowEvaluator:
        if self.grammar is not None:
            check_read_once(clean.positions, "a climb over a grammar")
        return evaluator_of(
            self.model,
            self.circuit,
            clean,
            corrupted,
            ablation=self.ablation,
            carried=self.carried,
            divergence=self.divergence,
            runner=self.runner,
        )

    def climb(self, budget: int, restarts: int) -> Climbs | None:
        """Climbs over the grammar; None without one."""
        if self.grammar is None:
            return None
        grammar = self.grammar

        def evaluate(clean: Sequence[Prompt], corrupted: Sequence[Prompt]) -> Float64[np.ndarray, " pairs"]:
            sides = [prompt_set(prompts, grammar.tokens) for prompts in (clean, corrupted)]
            rows = np.arange(len(clean))
            return self.evaluator(*sides).pairs(rows, rows).divergence

        return grammar_ascent(
            evaluate,
            grammar,
            restarts=restarts,
            budget=int(CLIMBING * budget),
            seed=self.seed,
            rank_fillers=FirstOrder(self.model, self.circuit, grammar, self.carried),
            second="same" if self.single else "clean" if self.ablation == DONOR else "corrupted",
        )

    def gather(self, climbs: Climbs | None, budget: int) -> "_InputTable":
        """The inputs to combine, as many as the budget supports, those of the worst pairs first."""
        # Eight evaluations per input of either side: twice what the effects need.
        most = max(1, budget // 8)
        if climbs is None:
            n = self.task.n if grammar_of(self.task) is None else most
            sample = sample_pairs(
                self.task, "all", n, n, ablation=self.ablation, seed=self.seed, prefix="search:"
            )
            sides = [
                side.subset(side.distinct.first_index[:most]) for side in (sample.clean, sample.corrupted)
            ]
            return _InputTable(clean=sides[0], corrupted=sides[1], start=None)
        assert self.grammar is not None
        order = np.argsort(-climbs.values, kind="stable")
        length = n_tokens(climbs.pairs[order[0]][0], self.grammar)
        rows: tuple[dict[object, int], ...] = ({}, {})
        prompts: tuple[list[Prompt], ...] = ([], [])
        known = []
        for at in order.tolist():
            keys = tuple(map(prompt_key, climbs.pairs[at]))
            for key, prompt, row, kept in zip(keys, climbs.pairs[at], rows, prompts, strict=True):
                if key not in row and len(kept) < most and n_tokens(prompt, self.grammar) == length:
                    row[key] = len(kept)
                    kept.append(prompt)
            if keys[0] in rows[0] and keys[1] in rows[1]:
                known.append((rows[0][keys[0]], rows[1][keys[1]], at))
        places = np.array(known, dtype=np.int64)
        return _InputTable(
            clean=prompt_set(prompts[0], self.grammar.tokens),
            corrupted=prompt_set(prompts[1], self.grammar.tokens),
            start=MatrixSearch(
                shape=(len(prompts[0]), len(prompts[1])),
                pairs=places[:, :2],
                values=climbs.values[places[:, 2]],
                seed=self.seed,
            ),
        )

    def combine(self, table: "_InputTable", budget: int) -> MatrixSearch:
        """Matrix search over the inputs; what the climbs know of them is known from the start."""
        if self.single:
            assert table.start is not None
            return table.start
        evaluator = self.evaluator(table.clean, table.corrupted)

        def evaluate(
            rows: Int64[np.ndarray, " pairs"], columns: Int64[np.ndarray, " pairs"]
        ) -> Float64[np.ndarray, " pairs"]:
            return evaluator.pairs(rows, columns).divergence

        sizes = table.clean.n, table.corrupted.n
        return matrix_search(evaluate, *sizes, budget, start=table.start, seed=self.seed)

    def describe(
        self, table: "_InputTable", found: MatrixSearch, k: int
    ) -> tuple[tuple[WorstPair, ...], Mapping[str, Mapping[str, str]] | None]:
        """The k worst pairs, run once more, and their images."""
        best = found.best(k)
        sample = PairSample(
            protocol=INPUTS if self.single else "file",
            clean=table.clean.subset([pair.clean_index for pair in best]),
            corrupted=table.corrupted.subset([pair.corrupted_index for pair in best]),
            pairs=np.stack([np.arange(len(best))] * 2, axis=1),
            independent=False,
            own_rows=True,
            population={"clean": None, "corrupted": None},
            seed=self.seed,
            streams={},
            tokenizer=names_of(self.task),
            task=self.task.describe(),
            ablation=self.ablation,
            reference=self.reference,
        )
        result = run_sample(self.circuit, self.model, sample, divergence=self.divergence)
        return result.worst(len(best)), result.pictures


@dataclass(frozen=True, kw_only=True, eq=False)
class _InputTable:
    """Inputs whose combinations are searched, and what is known of them."""

    clean: PromptSet
    corrupted: PromptSet
    start: MatrixSearch | None

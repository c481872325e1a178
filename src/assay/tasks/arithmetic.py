"""Sums and differences of two numbers of two digits."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import final

import numpy as np

from assay.core.errors import InputError, TokenizationError, check_name
from assay.tasks.grammar import (
    TASKS,
    Grammar,
    Prompt,
    Values,
    before_slot,
    chosen_templates,
    fill,
    pick,
    task_data,
    usable,
)
from assay.tasks.tokens import Tokens, comparable


@TASKS.register("arithmetic")
@final
class Arithmetic(Grammar):
    """Addition and subtraction: "Q: How much is 47 plus 25? A: " is continued by "72".

    Operation and pair of operands are uniform; of a difference the first operand is the larger one. The wrong
    answer is the result of the corrupted prompt. Where the tokenizer splits a result, the first token of each
    decides ("7" of "72"), and the corrupted prompt is drawn among those whose result begins with another; a
    note of the task counts the pairs that this leaves out.

    Args:
        tokens: The model's tokenizer; it decides which results can be used.
        corruption: `random`: both operands drawn anew, with another result.
        operations: `plus`, `minus` or both.
        templates: Own templates with the slots a and b, one for each operation; their text need not name it.
        operands: Numbers to draw from, each of the same number of tokens.

    Notes:
        The prompt ends in a space, so the result is a token without one.
    """

    key = "arithmetic"
    corruptions = ("random",)
    contrasts = True
    metadata_fields = ("a", "b", "op", "carry", "result", "n_tokens")
    heatmap_fields = (("a", "b"), ("op", "carry"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        operations: Sequence[str] = ("plus", "minus"),
        templates: Sequence[str] | None = None,
        operands: Sequence[int] = range(10, 100),
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        for operation in operations or ("",):
            check_name(f"operation of {self.key}", operation, _OPERATIONS)
        published = dict(zip(_OPERATIONS, task_data("other_tasks")[self.key]["templates"], strict=True))
        own = [published[each] for each in operations] if templates is None else templates
        if len(own) != len(operations):
            raise InputError(
                f"{self.key}: {len(own)} templates for {len(operations)} operations ("
                f"{', '.join(operations)}); give one for each"
            )
        chosen = chosen_templates(self.key, {}, (), own, needs=("a", "b"))
        self.templates = dict(zip(operations, chosen.values(), strict=True))
        self.operands = self._of_one_length([int(operand) for operand in operands])
        self.every = {
            operation: [(a, b) for a, b in product(self.operands, repeat=2) if operation == "plus" or a > b]
            for operation in self.templates
        }
        self.scored = {operation: self._scored(operation) for operation in self.templates}
        if tokens.answer_tokens == "one" and any(None in each.values() for each in self.scored.values()):
            self.tokens = tokens.by_first_token()
            self.scored = {operation: self._scored(operation) for operation in self.templates}
        self.sums = {operation: self._pairs(operation) for operation in self.templates}
        if self.tokens.answer_tokens == "first":
            self.notes = self._alike()

    def _of_one_length(self, operands: Sequence[int]) -> tuple[int, ...]:
        """The operands with the number of tokens that most have, so that all prompts are equally long."""
        counts = []
        for operand in operands:
            pieces = [
                self.tokens.continuation(context, space + str(operand))
                for template in self.templates.values()
                for context, space in (before_slot(template, slot) for slot in ("a", "b"))
            ]
            counts.append(tuple(0 if piece is None else len(piece) for piece in pieces))
        usual = Counter(counts).most_common(1)[0][0] if counts else ()
        keep = [count == usual and 0 not in count for count in counts]
        return usable(operands, keep, task=self.key, kind="operands", rule="as many tokens as the others")

    def _context(self, operation: str) -> str:
        return self.templates[operation].format(a=self.operands[0], b=self.operands[-1])

    def _scored(self, operation: str) -> dict[int, tuple[int, ...] | None]:
        """The ids by which each result is scored; None where it breaks the rule of the tokens."""
        context = self._context(operation)
        results = {_result(operation, *pair) for pair in self.every[operation]}
        self.tokens.learn(context, map(str, sorted(results)))
        return {each: self.tokens.scored_by(context, str(each)) for each in results}

    def _pairs(self, operation: str) -> tuple[tuple[int, int], ...]:
        """The pairs whose result can be scored; another result must exist."""
        scored, every = self.scored[operation], self.every[operation]
        # A result is compared with another of as many tokens, so each number of tokens needs two.
        counts = Counter(map(len, {ids for ids in scored.values() if ids is not None}))
        pairs = tuple(pair for pair in every if counts[len(scored[_result(operation, *pair)] or ())] > 1)
        if not pairs:
            n_scored = sum(scored[_result(operation, *pair)] is not None for pair in every)
            raise TokenizationError(
                f"{self.key}: the results of {n_scored} of {len(every)} pairs of operands can be scored "
                f"after {self._context(operation)!r} ({operation}), and their tokens tell none apart; pass "
                "other operands or another operation"
            )
        return pairs

    def _alike(self) -> tuple[str, ...]:
        """How many pairs of prompts are left out since their results begin alike."""
        left = total = 0
        for operation, pairs in self.sums.items():
            results = Counter(_result(operation, *pair) for pair in pairs)
            first = Counter(self.scored[operation][_result(operation, *pair)] for pair in pairs)
            same = sum(count**2 for count in results.values())
            left += sum(count**2 for count in first.values()) - same
            total += len(pairs) ** 2 - same
        note = (
            f"{self.key}: the first token of a result decides; {left} of {total} pairs of prompts with "
            "different results, which begin with the same token, are left out"
        )
        return (note,) if left else ()

    def choose(self, rng: np.random.Generator) -> Values:
        operation = pick(rng, tuple(self.templates))
        a, b = pick(rng, self.sums[operation])
        return {"op": operation, "a": a, "b": b}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        a, b = pick(rng, self._others(values))
        return {**values, "a": a, "b": b}

    def _others(self, values: Values) -> list[tuple[int, int]]:
        """The pairs of the same operation whose result is scored by another token."""
        operation = values["op"]
        scored = self.scored[operation]
        own = scored[_result(operation, values["a"], values["b"])] or ()
        return [
            pair for pair in self.sums[operation] if comparable(scored[_result(operation, *pair)] or (), own)
        ]

    def render(self, values: Values) -> Prompt:
        operation, a, b = values["op"], values["a"], values["b"]
        text, slots = fill(self.templates[operation], values)
        result = _result(operation, a, b)
        carry = a % 10 + b % 10 >= 10 if operation == "plus" else a % 10 < b % 10
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=(str(result),),
            fields={**values, "carry": carry, "result": result},
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("a", "b")

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        kept = "b" if slot == "a" else "a"
        for a, b in self.sums[values["op"]]:
            other = {**values, "a": a, "b": b}
            if other[kept] == values[kept] and other[slot] != values[slot]:
                yield other

    @property
    def population(self) -> int:
        return sum(map(len, self.sums.values()))

    @property
    def corrupted_population(self) -> int:
        return self.population

    def support(self) -> Iterator[tuple[Values, float]]:
        for operation, pairs in self.sums.items():
            for a, b in pairs:
                yield {"op": operation, "a": a, "b": b}, 1 / (len(self.sums) * len(pairs))

    def corrupted_support(self, values: Values) -> Iterator[tuple[Values, float]]:
        others = self._others(values)
        for a, b in others:
            yield {**values, "a": a, "b": b}, 1 / len(others)


_OPERATIONS = ("plus", "minus")


def _result(operation: str, a: int, b: int) -> int:
    return a + b if operation == "plus" else a - b

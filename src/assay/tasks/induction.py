"""The induction task: a random sequence of token ids and its beginning once more."""

from collections.abc import Iterator
from typing import final

import numpy as np

from assay.core.errors import InputError
from assay.tasks.grammar import TASKS, Grammar, Prompt, Values
from assay.tasks.tokens import Tokens


@TASKS.register("induction")
@final
class Induction(Grammar):
    """A random sequence and its beginning once more: s_1 .. s_n s_1 .. s_k is continued by s_(k+1).

    The ids of a sequence differ from each other (an id that stands twice has two successors, and then
    no right answer) unless `repeats`. The corrupted prompt has a fresh first copy; the wrong answer is
    the id at place k+1 there.

    Args:
        tokens: The model's tokenizer; special tokens are never drawn.
        corruption: `first_copy`.
        length: n, ids in the first copy.
        k: Ids of the second copy shown, 1 .. n-1; None draws it uniformly for each prompt, so prompts
            differ in length and are padded on the right.
        repeats: Draw the ids independently instead.
    """

    key = "induction"
    corruptions = ("first_copy",)
    metadata_fields = ("k", "n_tokens")

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        length: int = 24,
        k: int | None = None,
        repeats: bool = False,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        if length < 2:
            raise InputError(f"induction: length is {length}; expected at least 2 ids")
        if k is not None and not 1 <= k < length:
            raise InputError(f"induction: k is {k}; expected 1 to {length - 1} for length {length}")
        self.length, self.k, self.repeats = length, k, repeats
        self.vocabulary = np.asarray(tokens.ordinary_ids)
        if not repeats and length > len(self.vocabulary):
            raise InputError(
                f"induction: {length} ids are drawn, but the vocabulary has only {len(self.vocabulary)}; "
                "shorten `length` or pass repeats=True"
            )

    def _sequence(self, rng: np.random.Generator) -> tuple[int, ...]:
        tokens = rng.choice(self.vocabulary, size=self.length, replace=self.repeats)
        return tuple(int(i) for i in tokens)

    def choose(self, rng: np.random.Generator) -> Values:
        sequence = self._sequence(rng)
        k = self.k if self.k is not None else int(rng.integers(1, self.length))
        return {"first": sequence, "second": sequence[: k + 1], "distractor": self._other(sequence[k], rng)}

    def _other(self, token: int, rng: np.random.Generator) -> int:
        other = token
        while other == token:
            other = int(rng.choice(self.vocabulary))
        return other

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        k = len(values["second"]) - 1
        fresh = list(self._sequence(rng))
        fresh[k] = values["distractor"]
        return {**values, "first": tuple(fresh)}

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        first = tuple(f"s_{i + 1}" for i in range(self.length))
        return first + tuple(f"t_{i + 1}" for i in range(len(values["second"]) - 1) if corrupted)

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        first, second, k = list(values["first"]), list(values["second"]), len(values["second"]) - 1
        copy, place = slot.split("_")
        at = int(place) - 1
        own = first if copy == "s" else second
        for token in self.vocabulary.tolist():
            if token == own[at] or (token in own and not self.repeats):
                continue
            changed = [token if i == at else each for i, each in enumerate(own)]
            if copy == "t":
                yield {**values, "second": tuple(changed)}
            elif corrupted:
                # The wrong answer is at place k of the first copy, and differs from the right one.
                if at != k or token != second[k]:
                    wrong = token if at == k else values["distractor"]
                    yield {**values, "first": tuple(changed), "distractor": wrong}
            elif at != k or token != values["distractor"]:
                yield {**values, "first": tuple(changed), "second": tuple(changed[: k + 1])}

    def render(self, values: Values) -> Prompt:
        *shown, answer = values["second"]
        k, n = len(shown), self.length
        return Prompt(
            ids=(*values["first"], *shown),
            values=values,
            answers=(answer,),
            wrong=(values["distractor"],),
            slots={"s_k": (k - 1, k), "s_k+1": (k, k + 1), "second": (n, n + 1)},
            fields={"k": k},
        )

"""Training examples of `mini`: prompts of the task grammars with their continuation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from held_out import is_held_out
from transformers import PreTrainedTokenizerFast

from assay.tasks import TASKS, Grammar, Prompt, Tokens
from assay.tasks.grammar import fill
from assay.tasks.grammars import Docstring


KEYS = ("ioi", "greater-than", "docstring", "induction", "sva", "gendered-pronoun")
# Variants of each task; a batch takes one of them at random. Tasks not named come as they are.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ioi": [{"template_ids": range(20), "orders": ("ABBA", "BABA")}],
    "greater-than": [{}, {"template": "long"}],
    "docstring": [{}, {}, {"style": "goog"}],
    "gendered-pronoun": [{"template_ids": range(3)}],
}
BOS_SHARE = 0.2  # of the examples begin with <|endoftext|>


@dataclass(frozen=True, kw_only=True)
class Example:
    """Ids of a prompt with its continuation; `targets[i]` is what may follow position i, equally likely."""

    ids: tuple[int, ...]
    targets: Mapping[int, tuple[int, ...]]


class Source:
    """Draws the prompts of one task, those for training or those held out."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar, self.tokens = grammar, grammar.tokens

    def prompts(self, n: int, rng: np.random.Generator, *, held_out: bool) -> list[Prompt]:
        """`n` prompts from one side of the split."""
        found: list[Prompt] = []
        while len(found) < n:
            found += [p for p in self.grammar.draw(n, rng) if is_held_out(self.grammar.key, p) is held_out]
        return found[:n]

    def examples(self, n: int, rng: np.random.Generator) -> list[Example]:
        """`n` training examples."""
        prompts = self.prompts(n, rng, held_out=False)
        if self.grammar.key == "induction":
            return [self._repeated(prompt, rng) for prompt in prompts]
        if isinstance(self.grammar, Docstring):
            prompts = [varied_signature(prompt, self.grammar.template, rng) for prompt in prompts]
        coded = self.tokens.encode(prompts)
        return [
            self._answered(prompt, ids, places, rng)
            for prompt, (ids, places) in zip(prompts, coded, strict=True)
        ]

    def _answered(
        self, prompt: Prompt, ids: tuple[int, ...], where: dict[str, int], rng: np.random.Generator
    ) -> Example:
        answers = self._answer_ids(prompt)
        targets = {len(ids) - 1: answers}
        if "B_doc" in where:  # the second documented argument follows from the first
            targets[where["B_doc"] - 1] = (ids[where["B_doc"]],)
        with_answer = (*ids, answers[int(rng.integers(len(answers)))])
        return self._with_bos(Example(ids=with_answer, targets=targets), rng)

    def _repeated(self, prompt: Prompt, rng: np.random.Generator) -> Example:
        first: tuple[int, ...] = prompt.values["first"][: int(rng.integers(6, 25))]
        targets = {len(first) + i: (first[i + 1],) for i in range(len(first) - 1)}
        return self._with_bos(Example(ids=first + first, targets=targets), rng)

    def _with_bos(self, example: Example, rng: np.random.Generator) -> Example:
        if rng.random() > BOS_SHARE:
            return example
        bos = int(self.tokens.tokenizer.bos_token_id)
        return Example(ids=(bos, *example.ids), targets={i + 1: ids for i, ids in example.targets.items()})

    def _answer_ids(self, prompt: Prompt) -> tuple[int, ...]:
        found = [self.tokens.one_token(prompt.text, str(answer)) for answer in prompt.answers]
        known = tuple(i for i in found if i is not None)
        assert len(known) == len(found), prompt
        return known


def varied_signature(prompt: Prompt, template: str, rng: np.random.Generator) -> Prompt:
    """The prompt with 0 to 4 arguments before those documented and 0 to 3 after, so that place is no cue."""
    values = prompt.values
    spare = [*values["P"], *values["R"], *values["S"], *values["Q"]]
    before, after = int(rng.integers(5)), int(rng.integers(4))
    signature = spare[:before] + values["M"] + spare[before : before + after]
    (words1, words2), (doc1, doc2) = values["doc_words"], values["doc"]
    pieces = {
        "method": values["method"][0],
        "def_args_joined_by_comma_space": ", ".join(signature),
        "method_words_joined_by_space": " ".join(values["method_words"]),
        "doc1": doc1,
        "doc2": doc2,
        "words1": " ".join(words1),
        "words2": " ".join(words2),
    }
    text, spans = fill(template, pieces)
    return Prompt(text=text, slots={"B_doc": spans["doc2"]}, answers=prompt.answers, values=values)


def sources(tokenizer: PreTrainedTokenizerFast) -> dict[str, Sequence[Source]]:
    """The variants of the six tasks."""
    tokens = Tokens(tokenizer)
    return {key: [Source(TASKS[key](tokens, **kwargs)) for kwargs in OPTIONS.get(key, [{}])] for key in KEYS}

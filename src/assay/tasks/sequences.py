"""Docstring and induction: the tasks whose corruption is code, not a template."""

import itertools
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from assay.core.errors import InputError, check_name
from assay.tasks.grammar import (
    TASKS,
    Grammar,
    Prompt,
    Values,
    fill,
    pick_distinct,
    task_data,
)
from assay.tasks.tokens import Tokens


@TASKS.register("docstring")
@final
class Docstring(Grammar):
    """The third documented argument of a Python function, copied from its signature.

    Args:
        tokens: The model's tokenizer.
        corruption: `random_random` (three signature arguments and both documented ones replaced),
            `random_doc`, `random_def`, `random_answer`, `random_def_doc`, `random_answer_doc`.
        style: `rest` (":param name:") or `goog` ("Args:").
        arg_names: Argument names, at least 15.
        words: Description words.

    References:
        Heimersheim and Janiak (2023), "A circuit for Python docstrings in a 4-layer attention-only
        transformer". Conmy et al. (2023), arXiv:2304.14997.
    """

    key = "docstring"
    objective = "logit_diff_max"
    corruptions = (
        "random_random",
        "random_doc",
        "random_def",
        "random_answer",
        "random_def_doc",
        "random_answer_doc",
    )
    heatmap_fields = (("A", "corrupted.A_def"), ("C", "corrupted.C_def"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        style: str = "rest",
        arg_names: Sequence[str] | None = None,
        words: Sequence[str] | None = None,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data(self.key)
        check_name("docstring style", style, ("rest", "goog"))
        self.template: str = data[f"layout_{style}"]
        least = sum(_GROUPS.values())
        self.arg_names = self.words("arg_names", arg_names, data, after="self,", at_least=least, answers=True)
        self.description = self.words("words", words, data, after="load:", at_least=3)

    def choose(self, rng: np.random.Generator) -> Values:
        names = iter(pick_distinct(rng, self.arg_names, sum(_GROUPS.values())))
        groups = {group: list(itertools.islice(names, n)) for group, n in _GROUPS.items()}
        return {
            **groups,
            "def": groups["P"] + groups["M"] + groups["S"],
            "doc": groups["M"][:-1],
            "method_words": pick_distinct(rng, self.description, 3),
            "doc_words": [pick_distinct(rng, self.description, 2) for _ in range(2)],
        }

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        signature, documented = _CORRUPTIONS[self.corruption]
        matching = {
            "M": values["M"],
            "R": values["R"],
            "U": values["U"] + values["M"][-1:],
            "E": values["M"][:-1] + values["E"],
        }[signature]
        doc = {"M": values["M"][:-1], "Q": values["Q"], "U": values["U"]}[documented]
        return {**values, "def": values["P"] + matching + values["S"], "doc": doc}

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return tuple(_shown_names(values))

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        shown = _shown_names(values)
        for name in self.arg_names:
            if name not in shown.values():
                # The two names take each other's places, so that the fifteen names stay different.
                partner = {shown[slot]: name, name: shown[slot]}
                lists = {group: values[group] for group in (*_GROUPS, "def", "doc")}
                yield values | {
                    group: [partner.get(each, each) for each in names] for group, names in lists.items()
                }

    def render(self, values: Values) -> Prompt:
        (method,), signature, documented = values["method"], values["def"], values["doc"]
        pieces = {
            "method": method,
            "doc1": documented[0],
            "doc2": documented[1],
            "def_args_joined_by_comma_space": ", ".join(signature),
            "method_words_joined_by_space": " ".join(values["method_words"]),
            "words1": " ".join(values["doc_words"][0]),
            "words2": " ".join(values["doc_words"][1]),
        }
        text, spans = fill(self.template, pieces)
        slots = {"method": spans["method"], "A_doc": spans["doc1"], "B_doc": spans["doc2"]}
        start = spans["def_args_joined_by_comma_space"][0]
        for slot, argument in zip(_SIGNATURE, signature, strict=True):
            slots[slot] = (start, start + len(argument))
            start += len(argument) + 2
        answer = values["M"][-1]
        others = [name for group in "ERQUMPS" for name in values[group] if name != answer]
        named = dict(zip(_SIGNATURE, signature, strict=True))
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=(" " + answer,),
            wrong=tuple(" " + name for name in others),
            fields={
                "method": method,
                "def_args": tuple(signature),
                "doc_args": tuple(documented),
                **{letter: named[f"{letter}_def"] for letter in "ABC"},
                **{name: named[name] for name in ("P1", "P2", "S")},
                "answer": " " + answer,
                **{f"{letter}_def": named[f"{letter}_def"] for letter in "ABC"},
                "A_doc": documented[0],
                "B_doc": documented[1],
            },
        )


_SIGNATURE = ("P1", "P2", "A_def", "B_def", "C_def", "S")
_GROUPS = {"method": 1, "E": 1, "R": 3, "Q": 2, "U": 2, "M": 3, "P": 2, "S": 1}
# What stands in the three matching places of the signature and what is documented.
_CORRUPTIONS = {
    "random_random": ("R", "Q"),
    "random_doc": ("M", "U"),
    "random_def": ("U", "M"),
    "random_answer": ("E", "M"),
    "random_def_doc": ("U", "U"),
    "random_answer_doc": ("E", "U"),
}


def _shown_names(values: Values) -> dict[str, str]:
    """The different names that a prompt shows, by the first slot that shows them."""
    slots = ("method", *_SIGNATURE, "A_doc", "B_doc")
    names = (*values["method"], *values["def"], *values["doc"])
    # Backwards, so that the first slot of a name is the one that stays.
    first = {name: slot for slot, name in reversed(list(zip(slots, names, strict=True)))}
    return {slot: name for name, slot in reversed(first.items())}


@TASKS.register("induction")
@final
class Induction(Grammar):
    """A random sequence and its beginning once more: s_1 .. s_n s_1 .. s_k is continued by s_(k+1).

    The ids of a sequence differ from each other: an id that stands twice has two successors, and then
    no right answer. The corrupted prompt has a fresh first copy; the wrong answer is the id at place k+1
    there.

    Args:
        tokens: The model's tokenizer; special tokens are never drawn.
        corruption: `first_copy`.
        length: n, ids in the first copy.
        k: Ids of the second copy shown, 1 .. n-1; None draws it uniformly for each prompt, so prompts
            differ in length and are padded on the right.
    """

    key = "induction"
    corruptions = ("first_copy",)

    def __init__(
        self, tokens: Tokens, *, corruption: str | None = None, length: int = 24, k: int | None = None
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        self.length, self.k, self.vocabulary = length, k, np.asarray(tokens.ordinary_ids)
        if not 2 <= length <= len(self.vocabulary):
            raise InputError(
                f"induction: length is {length}; expected 2 to {len(self.vocabulary)} ids, as many as the "
                "vocabulary has"
            )
        if k is not None and not 1 <= k < length:
            raise InputError(f"induction: k is {k}; expected 1 to {length - 1} for length {length}")

    def _sequence(self, rng: np.random.Generator) -> tuple[int, ...]:
        return tuple(rng.choice(self.vocabulary, size=self.length, replace=False).tolist())

    def choose(self, rng: np.random.Generator) -> Values:
        sequence = self._sequence(rng)
        k = self.k if self.k is not None else int(rng.integers(1, self.length))
        distractor = sequence[k]
        while distractor == sequence[k]:
            distractor = int(rng.choice(self.vocabulary))
        return {"first": sequence, "second": sequence[: k + 1], "distractor": distractor}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        k = len(values["second"]) - 1
        fresh = self._sequence(rng)
        return {**values, "first": (*fresh[:k], values["distractor"], *fresh[k + 1 :])}

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        second = range(1, len(values["second"])) if corrupted else ()
        return (*(f"s_{i}" for i in range(1, self.length + 1)), *(f"t_{i}" for i in second))

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        first, second, k = values["first"], values["second"], len(values["second"]) - 1
        copy, place = slot.split("_")
        at = int(place) - 1
        own = first if copy == "s" else second
        for token in self.vocabulary.tolist():
            if token in own:
                continue
            changed = (*own[:at], token, *own[at + 1 :])
            if copy == "t":
                yield {**values, "second": changed}
            elif not corrupted and (at != k or token != values["distractor"]):
                yield {**values, "first": changed, "second": changed[: k + 1]}
            elif corrupted and (at != k or token != second[k]):
                # The wrong answer is at place k of the first copy, and differs from the right one.
                yield {**values, "first": changed, "distractor": changed[k]}

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

"""The docstring task: an argument name copied from a function's signature into its documentation."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import numpy as np

from assay.core.errors import check_name
from assay.tasks.grammar import (
    TASKS,
    Grammar,
    Prompt,
    Values,
    fill,
    one_token_words,
    pick,
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
            `random_doc`, `random_def`, `random_answer`, `random_def_doc`, `random_answer_doc`,
            `vary_length`, `vary_length_random_doc`.
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
        "vary_length",
        "vary_length_random_doc",
    )
    metadata_fields = ("method", "def_args", "doc_args", "A", "B", "C", "P1", "P2", "S", "answer", "n_tokens")
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
        self.arg_names = one_token_words(
            tokens,
            data["arg_names"] if arg_names is None else arg_names,
            task=self.key,
            kind="arg_names",
            after="self,",
            at_least=sum(n for _, n in _DOCSTRING_GROUPS),
            answers=True,
        )
        self.words = one_token_words(
            tokens,
            data["words"] if words is None else words,
            task=self.key,
            kind="words",
            after="load:",
            at_least=3,
        )

    @property
    def aligned(self) -> bool:
        return not self.corruption.startswith("vary_length")

    def choose(self, rng: np.random.Generator) -> Values:
        names = iter(pick_distinct(rng, self.arg_names, 15))
        groups = {group: list(itertools.islice(names, n)) for group, n in _DOCSTRING_GROUPS}
        return {
            **groups,
            "method": groups["method"][0],
            "def": groups["P"] + groups["M"] + groups["S"],
            "doc": groups["M"][:-1],
            "method_words": pick_distinct(rng, self.words, 3),
            "doc_words": [pick_distinct(rng, self.words, 2) for _ in range(2)],
        }

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        signature, documented = _DOCSTRING_CORRUPTIONS[self.corruption]
        matching = {
            "M": values["M"],
            "R": values["R"],
            "U": values["U"] + values["M"][-1:],
            "E": values["M"][:-1] + values["E"],
        }[signature]
        doc = {"M": values["M"][:-1], "Q": values["Q"], "U": values["U"]}[documented]
        changed = {**values, "def": values["P"] + matching + values["S"], "doc": doc}
        if self.corruption.startswith("vary_length"):
            changed["doc_words"] = _moved_words(values["doc_words"], rng)
        return changed

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return (*_shown_names(values), *_shown_words(values))

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        names, words = _shown_names(values), _shown_words(values)
        if slot in names:
            shown = set(names.values())
            for name in self.arg_names:
                if name not in shown:
                    yield _exchanged(values, names[slot], name)
        else:
            place = words[slot]
            taken = set(values[place.kind] if place.argument is None else values[place.kind][place.argument])
            if self.corruption.startswith("vary_length"):  # words have moved; any two may be of one pair
                taken.update(*values["doc_words"])
            yield from (_reworded(values, place, word) for word in self.words if word not in taken)

    def render(self, values: Values) -> Prompt:
        p1, p2, a, b, c, s = values["def"]
        (doc1, doc2), (words1, words2) = values["doc"], values["doc_words"]
        pieces = {
            "method": values["method"],
            "doc1": doc1,
            "doc2": doc2,
            "def_args_joined_by_comma_space": ", ".join(values["def"]),
            "method_words_joined_by_space": " ".join(values["method_words"]),
            "words1": " ".join(words1),
            "words2": " ".join(words2),
        }
        text, spans = fill(self.template, pieces)
        slots = {"method": spans["method"], "A_doc": spans["doc1"], "B_doc": spans["doc2"]}
        start = spans["def_args_joined_by_comma_space"][0]
        for name, argument in zip(("P1", "P2", "A_def", "B_def", "C_def", "S"), values["def"], strict=True):
            slots[name] = (start, start + len(argument))
            start += len(argument) + 2
        answer = values["M"][-1]
        others = [
            name for group in ("E", "R", "Q", "U", "M", "P", "S") for name in values[group] if name != answer
        ]
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=(" " + answer,),
            wrong=tuple(" " + name for name in others),
            fields={
                "method": values["method"],
                "def_args": tuple(values["def"]),
                "doc_args": (doc1, doc2),
                "A": a,
                "B": b,
                "C": c,
                "P1": p1,
                "P2": p2,
                "S": s,
                "answer": " " + answer,
                "A_def": a,
                "B_def": b,
                "C_def": c,
                "A_doc": doc1,
                "B_doc": doc2,
            },
        )


_DOCSTRING_GROUPS = (("method", 1), ("E", 1), ("R", 3), ("Q", 2), ("U", 2), ("M", 3), ("P", 2), ("S", 1))
# What stands in the three matching places of the signature and what is documented.
_DOCSTRING_CORRUPTIONS = {
    "random_random": ("R", "Q"),
    "random_doc": ("M", "U"),
    "random_def": ("U", "M"),
    "random_answer": ("E", "M"),
    "random_def_doc": ("U", "U"),
    "random_answer_doc": ("E", "U"),
    "vary_length": ("M", "M"),
    "vary_length_random_doc": ("M", "U"),
}


class _WordPlace(NamedTuple):
    """Where a description word stands: which list, whose (None: the method's), at which place."""

    kind: str
    argument: int | None
    at: int


def _shown_names(values: Values) -> dict[str, str]:
    """The different names that a prompt shows, by the first slot that shows them."""
    slots = ("method", "P1", "P2", "A_def", "B_def", "C_def", "S", "A_doc", "B_doc")
    names = (values["method"], *values["def"], *values["doc"])
    shown: dict[str, str] = {}
    for slot, name in zip(slots, names, strict=True):
        if name not in shown.values():
            shown[slot] = name
    return shown


def _shown_words(values: Values) -> dict[str, _WordPlace]:
    places = [_WordPlace("method_words", None, index) for index in range(len(values["method_words"]))]
    for argument, words in enumerate(values["doc_words"]):
        places += [_WordPlace("doc_words", argument, index) for index in range(len(words))]
    names = ("method_word", "A_word", "B_word")
    return {
        f"{names[0 if place.argument is None else place.argument + 1]}{place.at + 1}": place
        for place in places
    }


def _exchanged(values: Values, old: str, new: str) -> Values:
    """Two of the names in each other's places, so that the fifteen names stay different."""
    partner = {old: new, new: old}
    changed = dict(values)
    for group in ("E", "R", "Q", "U", "M", "P", "S", "def", "doc"):
        changed[group] = [partner.get(name, name) for name in values[group]]
    changed["method"] = partner.get(values["method"], values["method"])
    return changed


def _reworded(values: Values, place: _WordPlace, word: str) -> Values:
    if place.argument is None:
        words = list(values[place.kind])
        words[place.at] = word
        return {**values, place.kind: words}
    both = [list(words) for words in values[place.kind]]
    both[place.argument][place.at] = word
    return {**values, place.kind: both}


def _moved_words(words: list[list[str]], rng: np.random.Generator) -> list[list[str]]:
    """Description words moved at random between the arguments; each keeps its first word."""
    moved = [[first] for first, *_ in words]
    for word in itertools.chain.from_iterable(rest for _, *rest in words):
        pick(rng, moved).append(word)
    return moved

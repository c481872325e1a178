"""Docstrings and repeated sequences: the tasks whose answer stood in the prompt before."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.core.errors import InputError, check_name
from assay.tasks.encoding import Prompt
from assay.tasks.grammar import Grammar, Values, fill, pick_distinct, task_data


# ---- docstrings

_SIGNATURE = ("P1", "P2", "A_def", "B_def", "C_def", "S")
_GROUPS = {"method": 1, "E": 1, "R": 3, "Q": 2, "U": 2, "M": 3, "P": 2, "S": 1}
_N_NAMES = 15
# What stands in the three matching places of the signature and what is documented.
_CORRUPTIONS = {
    "random_random": ("R", "Q"),
    "random_doc": ("M", "U"),
    "random_def": ("U", "M"),
    "random_answer": ("E", "M"),
    "random_def_doc": ("U", "U"),
    "random_answer_doc": ("E", "U"),
}


@dataclass(eq=False, repr=False, kw_only=True)
class Docstring(Grammar):
    """The third documented argument of a Python function, copied from its signature.

    Args:
        tokens: The model's tokenizer.
        corruption: `random_random` (three signature arguments and both documented ones replaced),
            `random_doc`, `random_def`, `random_answer`, `random_def_doc`, `random_answer_doc`.
        style: `rest` (":param name:") or `goog` ("Args:").
        arg_names: Argument names, at least 15; of both lists, default: the published one.
        words: Description words.

    References:
        Heimersheim and Janiak (2023), "A circuit for Python docstrings in a 4-layer attention-only
        transformer". Conmy et al. (2023), arXiv:2304.14997.
    """

    key = "docstring"
    objective = "logit_diff_max"
    corruptions = tuple(_CORRUPTIONS)
    heatmap_fields = (("A", "corrupted.A_def"), ("C", "corrupted.C_def"))

    style: str = "rest"
    arg_names: Sequence[str] = ()
    words: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        data = task_data(self.key)
        check_name("docstring style", self.style, ("rest", "goog"))
        self.template: str = data[f"layout_{self.style}"]
        self.arg_names = self.one_token_words(
            "arg_names", self.arg_names or data["arg_names"], after="self,", at_least=_N_NAMES, answers=True
        )
        self.words = self.one_token_words("words", self.words or data["words"], after="load:", at_least=3)

    def choose(self, rng: np.random.Generator) -> Values:
        names = iter(pick_distinct(rng, self.arg_names, _N_NAMES))
        groups = {group: list(itertools.islice(names, n)) for group, n in _GROUPS.items()}
        return {
            **groups,
            "def": groups["P"] + groups["M"] + groups["S"],
            "doc": groups["M"][:-1],
            "method_words": pick_distinct(rng, self.words, 3),
            "doc_words": [pick_distinct(rng, self.words, 2) for _ in range(2)],
        }

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        signature, documented = _CORRUPTIONS[self.corruption]
        m, u = values["M"], values["U"]
        matching = {"M": m, "R": values["R"], "U": u + m[-1:], "E": m[:-1] + values["E"]}[signature]
        doc = {"M": m[:-1], "Q": values["Q"], "U": u}[documented]
        return {**values, "def": values["P"] + matching + values["S"], "doc": doc}

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
        named = dict(zip(_SIGNATURE, signature, strict=True))
        for slot, argument in named.items():
            slots[slot] = (start, start + len(argument))
            start += len(argument) + 2
        answer = values["M"][-1]
        wrong = [" " + name for group in "ERQUMPS" for name in values[group] if name != answer]
        fields = {"method": method, "def_args": tuple(signature), "doc_args": tuple(documented)}
        fields |= {letter: named[f"{letter}_def"] for letter in "ABC"} | named
        fields |= {"answer": " " + answer, "A_doc": documented[0], "B_doc": documented[1]}
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=(" " + answer,),
            wrong=tuple(wrong),
            fields=fields,
        )


# ---- induction


@dataclass(eq=False, repr=False, kw_only=True)
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

    length: int = 24
    k: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.vocabulary = np.asarray(self.tokens.ordinary_ids)
        if not 2 <= self.length <= len(self.vocabulary):
            most = f"{len(self.vocabulary)} ids, as many as the vocabulary has"
            raise InputError(f"induction: length is {self.length}; expected 2 to {most}")
        if self.k is not None and not 1 <= self.k < self.length:
            most = f"{self.length - 1} for length {self.length}"
            raise InputError(f"induction: k is {self.k}; expected 1 to {most}")

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

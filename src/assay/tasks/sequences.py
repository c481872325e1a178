"""Years, docstrings and repeated sequences: the tasks with rules that no template states."""

import itertools
from collections.abc import Iterator

import numpy as np

from assay.core.errors import InputError, check_name
from assay.tasks.encoding import Prompt, Tokens
from assay.tasks.grammar import TASKS, Grammar, Own, Values, fill, others, pick_distinct, task_data


# ---- years

# Which digits of yy the next token holds; the first that suits the tokenizer is taken.
_BOTH, _TENS, _UNITS = _ASKED = (slice(0, 2), slice(0, 1), slice(1, 2))


@TASKS.register("greater-than")
class GreaterThan(Grammar):
    """Years: "The war lasted from the year 1745 to 17" is continued by a two-digit number above 45.

    Noun and year are independent and uniform. The prompt ends in the second year, at the first border of
    tokens not before its century, and the next token is compared with that of the first year: greater ones
    are right, smaller ones wrong. The same one is wrong where the year ends with it, which is then no later
    year; where a digit follows, it is on neither side.

    - "45" is one token: yy+1 .. 99 are right, 00 .. yy wrong.
    - "4" and "5" are tokens: 5 .. 9 are right, 0 .. 3 wrong.
    - "174" and "5" are tokens: the prompt ends in "174", and 6 .. 9 are right, 0 .. 5 wrong.

    Args:
        tokens: The model's tokenizer; it decides which years can be used, and what of them is asked.
        corruption: `yy01`: the first year ends in 01, everything else stays. Where one digit is asked, it
            becomes 0 instead.
        template: `short`, `long` ("... to the year 17") or an own template with noun, century, yy.
        nouns: Nouns to draw from.
        centuries: First two digits of the years.
        above: Only years with yy > above (40 gives the auto-circuit variant).
        drop_extremes: Leave out the smallest and the largest usable year of every century. Where one digit is
            asked, the years in which it is 0 or 9 are left out instead, always.

    Notes:
        The variant used with EAP-IG is `template="long", drop_extremes=False` and a shorter list of nouns.

    References:
        Hanna et al. (2023), arXiv:2305.00586. Conmy et al. (2023), arXiv:2304.14997.
    """

    key = "greater-than"
    objective = "prob_diff"
    corruptions = ("yy01",)
    heatmap_fields = (("noun", "yy"), ("noun", "corrupted.noun"), ("yy", "corrupted.century"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template: str = "short",
        nouns: Own = None,
        centuries: Own = None,
        above: int = 1,
        drop_extremes: bool = True,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("greater_than")
        published = {"short": data["template"], "long": data["template_long"]}
        if "{" not in template:
            check_name("greater-than template", template, published)
        self.template: str = published.get(template, template)
        self.chosen_templates({}, (), [self.template], needs=("noun", "century", "yy"))
        self.nouns = self.words("nouns", nouns, data, after="The")
        chosen = data["centuries"] if centuries is None else [str(century) for century in centuries]
        stems: list[int] = []
        for self.asked in (*_ASKED, _BOTH):
            stems = [self._stem(century, _lowest("11", self.asked)) for century in chosen]
            if any(stems):
                break
        least = min(filter(None, stems), default=-1)
        rule = "a token of its years begins behind the century, or behind the digit after it"
        self.centuries = self.usable("centuries", chosen, [stem == least for stem in stems], rule)
        years: list[tuple[str, str]] = []
        for century in self.centuries:
            own = self._years_of(century, least)
            years += own[1:-1] if drop_extremes and self.asked == _BOTH else own
        years = [year for year in years if int(year[1]) > above]
        self.years = tuple(year for year in years if self.asked == _BOTH or year[1][self.asked] not in "09")
        if self.asked != _BOTH:
            self.notes = (
                f"{self.key}: the tokenizer splits years, so one digit is asked; "
                f"{len(years) - len(self.years)} of {len(years)} years, in which it is 0 or 9, are left out",
            )
        if len(self.years) < 2:
            raise InputError(
                f"{self.key}: {len(self.years)} years can be used (yy above {above}); expected at least 2. "
                "Lower `above`, or use a model whose tokenizer splits years into pairs of digits"
            )
        self.corrupted_years = tuple(dict.fromkeys((c, _lowest(yy, self.asked)) for c, yy in self.years))
        self.fillers = {"noun": self.nouns, "year": self.years}

    def _stem(self, century: str, yy: str) -> int:
        """Number of tokens of a year before the one that is asked; 0 where that is not one token."""
        shown, rest = f" {century}{yy[: self.asked.start]}", yy[self.asked.stop :]
        stem, token = self.tokens.continuation("year", shown), self.tokens.one_token(shown, yy[self.asked])
        year = self.tokens.continuation("year", f" {century}{yy}")
        if stem is None or token is None or year is None or self.tokens.tokenizer.unk_token_id in year:
            return 0
        split = year[: len(stem) + 1] == (*stem, token) and len(year) == len(stem) + 1 + len(rest)
        return len(stem) if split else 0

    def _years_of(self, century: str, stem: int) -> list[tuple[str, str]]:
        endings = [f"{yy:02d}" for yy in range(2, 99)]
        self.tokens.learn("year", [f" {century}{yy}" for yy in endings])
        self.tokens.learn(f" {century}", endings)
        return [(century, yy) for yy in endings if self._stem(century, yy) == stem]

    def choose(self, rng: np.random.Generator) -> Values:
        noun, (century, yy) = super().choose(rng).values()
        return {"noun": noun, "century": century, "yy": yy}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "yy": _lowest(values["yy"], self.asked)}

    def render(self, values: Values) -> Prompt:
        text, slots = fill(self.template, values)
        digits = values["yy"][self.asked]
        every = [f"{number:0{len(digits)}d}" for number in range(10 ** len(digits))]
        first = int(digits) + 1
        year = values["century"] + values["yy"]
        return Prompt(
            text=text + values["yy"][: self.asked.start],
            slots=slots,
            values=values,
            answers=tuple(every[first:]),
            wrong=tuple(every[: first - (self.asked == _TENS)]),
            fields={**values, "year": year, "n_valid_answers": len(every) - first},
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("noun", "century") if corrupted and self.asked == _BOTH else ("noun", "century", "yy")

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        if slot == "noun":
            return others(values, slot, self.nouns)
        kept = "yy" if slot == "century" else "century"
        years = [{"century": c, "yy": yy} for c, yy in (self.corrupted_years if corrupted else self.years)]
        fillers = (year[slot] for year in years if year[kept] == values[kept])
        return others(values, slot, fillers)

    @property
    def corrupted_population(self) -> int:
        return len(self.nouns) * len(self.corrupted_years)


def _lowest(yy: str, asked: slice) -> str:
    """The end of the corrupted year."""
    return "01" if asked == _BOTH else yy[: asked.start] + "0" + yy[asked.stop :]


# ---- docstrings

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


@TASKS.register("docstring")
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
    corruptions = tuple(_CORRUPTIONS)
    heatmap_fields = (("A", "corrupted.A_def"), ("C", "corrupted.C_def"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        style: str = "rest",
        arg_names: Own = None,
        words: Own = None,
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


def _shown_names(values: Values) -> dict[str, str]:
    """The different names that a prompt shows, by the first slot that shows them."""
    slots = ("method", *_SIGNATURE, "A_doc", "B_doc")
    names = (*values["method"], *values["def"], *values["doc"])
    # Backwards, so that the first slot of a name is the one that stays.
    first = {name: slot for slot, name in reversed(list(zip(slots, names, strict=True)))}
    return {slot: name for name, slot in reversed(first.items())}


# ---- induction


@TASKS.register("induction")
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

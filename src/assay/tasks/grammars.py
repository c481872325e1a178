"""The registered text tasks beside `ioi`: agreement, pronouns, capitals, years, docstrings, induction."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from assay.core.errors import InputError, check_name
from assay.tasks.encoding import Prompt
from assay.tasks.grammar import (
    Grammar,
    IndirectObject,
    ListedGrammar,
    TemplatedGrammar,
    Values,
    fill,
    filled,
    others,
    pick,
    pick_distinct,
)


@dataclass(eq=False, repr=False, kw_only=True)
class SubjectVerbAgreement(ListedGrammar):
    """Subject-verb agreement across an attractor: "The keys near the door" is continued by " are" or " were".

    Args:
        tokens: The model's tokenizer.
        corruption: `other_number`: the subject gets its other number.
        nouns: Pairs (singular, plural); of all three, default: the published ones.
        verbs: Pairs (singular, plural); every form that agrees is an answer, the others are wrong answers.
        preps: Prepositions.
    """

    key = "sva"
    published = ("other_tasks", "subject_verb_agreement")
    corruptions = ("other_number",)
    heatmap_fields = (("noun1", "noun2"), ("noun2", "prep"))

    nouns: Sequence[Sequence[str]] = ()
    verbs: Sequence[Sequence[str]] = ()
    preps: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.nouns, self.verbs = self._known("nouns", after="The"), self._known("verbs", after="door")
        self.fillers = {"subject": self.nouns, "number": (0, 1), "other": self.nouns, "number2": (0, 1)}
        self.fillers["prep"] = self.preps = self.one_token_words("preps", after="keys")

    def _known(self, kind: str, *, after: str) -> tuple[Sequence[str], ...]:
        """The pairs of a list of which both forms can be used."""
        pairs = self.listed(kind)
        for pair in pairs:
            if isinstance(pair, str) or len(pair) != 2:
                raise InputError(f"{self.key}: {kind} holds {pair!r}; give pairs (singular, plural)")

        def test(pair: Sequence[str]) -> bool:
            return all(self.tokens.one_token(after, " " + form) is not None for form in pair)

        return self.usable(kind, pairs, test, "both forms one token after a space")

    def choose(self, rng: np.random.Generator) -> Values:
        values = super().choose(rng)
        # What was drawn is whether the two nouns agree in number: 1 if so.
        return {**values, "number2": int(values["number2"] == values["number"])}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "number": 1 - values["number"]}

    def render(self, values: Values) -> Prompt:
        number, number2 = values["number"], values["number2"]
        nouns = {"noun1": values["subject"][number], "noun2": values["other"][number2]}
        words = {**nouns, "prep": values["prep"]}
        congruence = "congruent" if number == number2 else "incongruent"
        return filled(
            self.data["template"],
            words,
            values=values,
            answers=tuple(" " + pair[number] for pair in self.verbs),
            wrong=tuple(" " + pair[1 - number] for pair in self.verbs),
            fields={**words, "number": ("singular", "plural")[number], "attractor": congruence},
        )

    def variants(self, values: Values, *, corrupted: bool = False) -> dict[str, list[Values]]:
        found = super().variants(values, corrupted=corrupted)
        return found | {"number2": found.pop("number2")}  # the last slot that a search numbers


_OTHER_GENDER = {"female": "male", "male": "female"}


@dataclass(eq=False, repr=False, kw_only=True)
class GenderedPronoun(TemplatedGrammar):
    """Pronoun of a first name: "So Mary is a really great friend, isn't" is continued by " she".

    What is measured is a convention of US English in the model's training text.

    Args:
        tokens: The model's tokenizer.
        corruption: `other_gender`: a uniformly drawn name of the other list.
        template_ids: Templates out of the data file, drawn uniformly.
        female_names: Names answered by " she"; of both lists, default: the published one.
        male_names: Names answered by " he".
    """

    key = "gendered-pronoun"
    published = ("other_tasks", "gendered_pronoun")
    corruptions = ("other_gender",)
    heatmap_fields = (("name", "template_id"), ("name", "corrupted.name"))

    female_names: Sequence[str] = ()
    male_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answers: dict[str, str] = self.data["answers"]
        rule = "one token where the template puts it"
        self.names = {
            gender: self.usable(kind, self.listed(kind), lambda word: self.fits(word, "name"), rule)
            for gender, kind in (("female", "female_names"), ("male", "male_names"))
        }
        self.fillers = {"template_id": tuple(self.texts), "gender": tuple(self.names)}

    def choose(self, rng: np.random.Generator) -> Values:
        values = super().choose(rng)
        return {**values, "name": pick(rng, self.names[values["gender"]])}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        other = _OTHER_GENDER[values["gender"]]
        return {**values, "gender": other, "name": pick(rng, self.names[other])}

    def render(self, values: Values) -> Prompt:
        return filled(
            self.texts[values["template_id"]],
            values,
            values=values,
            answers=(self.answers[values["gender"]],),
            wrong=(self.answers[_OTHER_GENDER[values["gender"]]],),
            fields={name: values[name] for name in ("name", "gender", "template_id")},
        )

    def variants(self, values: Values, *, corrupted: bool = False) -> dict[str, list[Values]]:
        everyone = [{"gender": gender, "name": name} for gender, own in self.names.items() for name in own]
        shown = {slot: values[slot] for slot in ("gender", "name")}
        return {"name": [{**values, **each} for each in everyone if each != shown]}


@dataclass(eq=False, repr=False, kw_only=True)
class CapitalCountry(TemplatedGrammar):
    """Capital of a country: "The capital of France is the city of" is continued by " Paris".

    Template and country are uniform. The wrong answer is the capital of the corrupted prompt's country; a
    clean prompt by itself has none.

    Args:
        tokens: The model's tokenizer.
        corruption: `other_country`: another country, uniformly drawn.
        template_ids: Templates out of the data file, drawn uniformly.
        capitals: Country to capital; default: the published ones.
    """

    key = "capital-country"
    published = ("other_tasks", "capital_country")
    corruptions = ("other_country",)
    heatmap_fields = (("country", "template_id"), ("country", "corrupted.country"))

    capitals: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        texts, listed = self.texts.values(), self.capitals or self.data["pairs_single_token_gpt2"]
        # The token by which a capital is scored, for each template.
        self.scored = {
            country: [self.tokens.scored_by(text.format(country=country), " " + capital) for text in texts]
            for country, capital in listed.items()
        }
        spoken = [each for each in self.scored.values() if None not in each]

        def differs(country: str) -> bool:
            own = self.scored[country]
            return own in spoken and any(each != own for each in spoken) and self.fits(country, "country")

        rule = "country and capital one token each where the templates put them, and another capital differs"
        kept = self.usable("countries", tuple(listed), differs, rule)
        self.capitals = {country: listed[country] for country in kept}
        self.fillers = {"template_id": tuple(self.texts), "country": kept}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "country": pick(rng, self._rivals(values))}

    def _rivals(self, values: Values) -> list[str]:
        """The countries whose capital is scored by another token."""
        own = self.scored[values["country"]]
        return [country for country in self.capitals if self.scored[country] != own]

    def pairs(self, prompts: Sequence[Prompt], rng: np.random.Generator) -> list[tuple[Prompt, Prompt]]:
        pairs = super().pairs(prompts, rng)
        return [(replace(clean, wrong=other.answers), other) for clean, other in pairs]

    def render(self, values: Values) -> Prompt:
        capital = self.capitals[values["country"]]
        fields = {**values, "capital": capital}
        template = self.texts[values["template_id"]]
        return filled(template, values, values=values, answers=(" " + capital,), fields=fields)

    def variants(self, values: Values, *, corrupted: bool = False) -> dict[str, list[Values]]:
        return {"country": others(values, "country", self._rivals(values))}


# ---- years

# Which digits of yy the next token holds; the first that suits the tokenizer is taken.
_BOTH, _TENS, _UNITS = slice(0, 2), slice(0, 1), slice(1, 2)


@dataclass(eq=False, repr=False, kw_only=True)
class GreaterThan(ListedGrammar):
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
        template: `short` or `long` ("... to the year 17").
        nouns: Nouns to draw from; default: the published ones.
        centuries: First two digits of the years; default: the published ones.
        above: Only years with yy > above (40 gives the auto-circuit variant).
        drop_extremes: Leave out the smallest and the largest usable year of every century. Where one digit is
            asked, the years in which it is 0 or 9 are left out instead, always.

    Notes:
        The variant used with EAP-IG is `template="long", drop_extremes=False` and a shorter list of nouns.

    References:
        Hanna et al. (2023), arXiv:2305.00586. Conmy et al. (2023), arXiv:2304.14997.
    """

    key = "greater-than"
    published = ("greater_than",)
    objective = "prob_diff"
    corruptions = ("yy01",)
    heatmap_fields = (("noun", "yy"), ("noun", "corrupted.noun"), ("yy", "corrupted.century"))

    template: str = "short"
    nouns: Sequence[str] = ()
    centuries: Sequence[str] = ()
    above: int = 1
    drop_extremes: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        layouts = {"short": self.data["template"], "long": self.data["template_long"]}
        check_name("greater-than template", self.template, layouts)
        self.text = layouts[self.template]
        self.nouns = self.one_token_words("nouns", after="The")
        chosen = [str(century) for century in self.listed("centuries")]
        stems: dict[str, int] = {}
        for self.asked in (_BOTH, _TENS, _UNITS):
            stems = {century: self._stem(century, self._lowest("11")) for century in chosen}
            if any(stems.values()):
                break
        least = min(filter(None, stems.values()), default=-1)
        rule = "a token of its years begins behind the century, or behind the digit after it"
        self.centuries = self.usable("centuries", chosen, lambda century: stems[century] == least, rule)
        endings, whole = [f"{yy:02d}" for yy in range(2, 99)], self.asked == _BOTH
        years: list[tuple[str, str]] = []
        for century in self.centuries:
            own = [(century, yy) for yy in endings if self._stem(century, yy) == least]
            years += own[1:-1] if self.drop_extremes and whole else own
        years = [year for year in years if int(year[1]) > self.above]
        self.years = tuple(year for year in years if whole or year[1][self.asked] not in "09")
        if not whole:
            self.notes = (
                f"{self.key}: the tokenizer splits years, so one digit is asked; "
                f"{len(years) - len(self.years)} of {len(years)} years, in which it is 0 or 9, are left out",
            )
        if len(self.years) < 2:
            text = f"{self.key}: {len(self.years)} years can be used (yy above {self.above})"
            raise InputError(f"{text}; expected at least 2. Lower `above`, or use another tokenizer")
        self.fillers = {"noun": self.nouns, "year": self.years}

    def _lowest(self, yy: str) -> str:
        """The end of the corrupted year."""
        return "01" if self.asked == _BOTH else yy[: self.asked.start] + "0" + yy[self.asked.stop :]

    def _stem(self, century: str, yy: str) -> int:
        """Number of tokens of a year before the one that is asked; 0 where that is not one token."""
        shown, rest = f" {century}{yy[: self.asked.start]}", yy[self.asked.stop :]
        stem, year = (self.tokens.continuation("year", text) or () for text in (shown, f" {century}{yy}"))
        start = (*stem, self.tokens.one_token(shown, yy[self.asked]))
        split = year[: len(start)] == start and len(year) == len(start) + len(rest)
        return len(stem) if split and self.tokens.tokenizer.unk_token_id not in year else 0

    def choose(self, rng: np.random.Generator) -> Values:
        noun, (century, yy) = super().choose(rng).values()
        return {"noun": noun, "century": century, "yy": yy}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "yy": self._lowest(values["yy"])}

    def render(self, values: Values) -> Prompt:
        yy = values["yy"]
        digits = yy[self.asked]
        every = [f"{number:0{len(digits)}d}" for number in range(10 ** len(digits))]
        first = int(digits) + 1
        return filled(
            self.text + yy[: self.asked.start],
            values,
            values=values,
            answers=tuple(every[first:]),
            wrong=tuple(every[: first - (self.asked == _TENS)]),
            fields={**values, "year": values["century"] + yy, "n_valid_answers": len(every) - first},
        )

    def variants(self, values: Values, *, corrupted: bool = False) -> dict[str, list[Values]]:
        years = dict.fromkeys((century, self._lowest(yy) if corrupted else yy) for century, yy in self.years)
        fillers: dict[str, Sequence[str]] = {
            "noun": self.nouns,
            "century": [century for century, yy in years if yy == values["yy"]],
        }
        if not (corrupted and self.asked == _BOTH):  # where every year ends in 01
            fillers["yy"] = [yy for century, yy in years if century == values["century"]]
        return {slot: others(values, slot, words) for slot, words in fillers.items()}


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
class Docstring(ListedGrammar):
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
    published = ("docstring",)
    objective = "logit_diff_max"
    corruptions = tuple(_CORRUPTIONS)
    heatmap_fields = (("A", "corrupted.A_def"), ("C", "corrupted.C_def"))

    style: str = "rest"
    arg_names: Sequence[str] = ()
    words: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("docstring style", self.style, ("rest", "goog"))
        self.template: str = self.data[f"layout_{self.style}"]
        self.arg_names = self.one_token_words("arg_names", after="self,", at_least=_N_NAMES, answers=True)
        self.words = self.one_token_words("words", after="load:", at_least=3)

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
        named = dict(zip(_SIGNATURE, values["def"], strict=True))
        (one, two), (words1, words2) = values["doc"], values["doc_words"]
        pieces = {
            **named,
            "method": values["method"][0],
            "method_words_joined_by_space": " ".join(values["method_words"]),
            "doc1": one,
            "doc2": two,
            "words1": " ".join(words1),
            "words2": " ".join(words2),
        }
        signature = ", ".join(f"{{{name}}}" for name in named)
        text, spans = fill(self.template.replace("{def_args_joined_by_comma_space}", signature), pieces)
        shown = {"method": "method", "A_doc": "doc1", "B_doc": "doc2", **{name: name for name in named}}
        answer = values["M"][-1]
        fields = {slot: pieces[piece] for slot, piece in shown.items()} | {"answer": " " + answer}
        fields |= {letter: named[f"{letter}_def"] for letter in "ABC"}
        return Prompt(
            text=text,
            slots={slot: spans[piece] for slot, piece in shown.items()},
            values=values,
            answers=(" " + answer,),
            wrong=tuple(" " + name for each in "ERQUMPS" for name in values[each] if name != answer),
            fields={**fields, "def_args": tuple(values["def"]), "doc_args": tuple(values["doc"])},
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
        k, most = 1 if self.k is None else self.k, len(self.vocabulary)
        if not 1 <= k < self.length <= most:
            text = f"length is {self.length} and k is {self.k}; expected 1 <= k < length <= {most}"
            raise InputError(f"{self.key}: {text}, the ids of the vocabulary")

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


GRAMMARS: tuple[type[Grammar], ...] = (
    IndirectObject,
    SubjectVerbAgreement,
    GenderedPronoun,
    CapitalCountry,
    GreaterThan,
    Docstring,
    Induction,
)

"""The tasks written as templates: IOI, greater-than, subject-verb agreement, gendered pronoun."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import final

import numpy as np

from assay.core.errors import InputError, unknown_name
from assay.tasks.grammar import (
    TASKS,
    Grammar,
    Prompt,
    Values,
    before_slot,
    chosen_templates,
    fill,
    one_token_words,
    pick,
    task_data,
    usable,
)
from assay.tasks.tokens import Tokens


@TASKS.register("greater-than")
@final
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
    metadata_fields = ("noun", "century", "yy", "year", "n_valid_answers", "n_tokens")
    heatmap_fields = (("noun", "yy"), ("noun", "corrupted.noun"), ("yy", "corrupted.century"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template: str = "short",
        nouns: Sequence[str] | None = None,
        centuries: Sequence[str] | None = None,
        above: int = 1,
        drop_extremes: bool = True,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("greater_than")
        known: dict[str, str] = {"short": data["template"], "long": data["template_long"]}
        if template not in known and "{" not in template:
            raise unknown_name("greater-than template", template, known)
        self.template = known.get(template, template)
        chosen_templates(self.key, {}, (), [self.template], needs=("noun", "century", "yy"))
        self.nouns = one_token_words(
            tokens, data["nouns"] if nouns is None else nouns, task=self.key, kind="nouns", after="The"
        )
        chosen = data["centuries"] if centuries is None else [str(century) for century in centuries]
        stems: list[int] = []
        for self.asked in (*_ASKED, _BOTH):
            stems = [self._stem(century, _lowest("11", self.asked)) for century in chosen]
            if any(stems):
                break
        least = min(filter(None, stems), default=-1)
        self.centuries = usable(
            chosen,
            [stem == least for stem in stems],
            task=self.key,
            kind="centuries",
            rule="a token of its years begins behind the century, or behind the digit after it",
        )
        self.years = tuple(
            year
            for century in self.centuries
            for year in self._usable_years(century, least, drop_extremes)
            if int(year[1]) > above
        )
        if self.asked != _BOTH:
            every, asked = self.years, self.asked
            self.years = tuple(year for year in every if year[1][asked] not in "09")
            self.notes = (
                f"{self.key}: the tokenizer splits years, so one digit is asked; "
                f"{len(every) - len(self.years)} of {len(every)} years, in which it is 0 or 9, are left out",
            )
        if len(self.years) < 2:
            raise InputError(
                f"{self.key}: {len(self.years)} years can be used (yy above {above}); expected at least 2. "
                "Lower `above`, or use a model whose tokenizer splits years into pairs of digits"
            )
        self.corrupted_years = tuple(dict.fromkeys((c, _lowest(yy, self.asked)) for c, yy in self.years))

    def _stem(self, century: str, yy: str) -> int:
        """Number of tokens of a year before the one that is asked; 0 where that is not one token."""
        shown, rest = f" {century}{yy[: self.asked.start]}", yy[self.asked.stop :]
        stem, token = self.tokens.continuation("year", shown), self.tokens.one_token(shown, yy[self.asked])
        year = self.tokens.continuation("year", f" {century}{yy}")
        if stem is None or token is None or year is None or self.tokens.tokenizer.unk_token_id in year:
            return 0
        split = year[: len(stem) + 1] == (*stem, token) and len(year) == len(stem) + 1 + len(rest)
        return len(stem) if split else 0

    def _usable_years(self, century: str, stem: int, drop_extremes: bool) -> list[tuple[str, str]]:
        endings = [f"{yy:02d}" for yy in range(2, 99)]
        self.tokens.learn("year", [f" {century}{yy}" for yy in endings])
        self.tokens.learn(f" {century}", endings)
        years = [(century, yy) for yy in endings if self._stem(century, yy) == stem]
        return years[1:-1] if drop_extremes and self.asked == _BOTH else years

    def choose(self, rng: np.random.Generator) -> Values:
        noun, (century, yy) = pick(rng, self.nouns), pick(rng, self.years)
        return {"noun": noun, "century": century, "yy": yy}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "yy": _lowest(values["yy"], self.asked)}

    def render(self, values: Values) -> Prompt:
        text, slots = fill(self.template, values)
        text += values["yy"][: self.asked.start]
        digits = values["yy"][self.asked]
        every = [f"{number:0{len(digits)}d}" for number in range(10 ** len(digits))]
        first = int(digits) + 1
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=tuple(every[first:]),
            wrong=tuple(every[: first - (self.asked == _TENS)]),
            fields={
                **values,
                "year": values["century"] + values["yy"],
                "n_valid_answers": len(every) - first,
            },
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("noun", "century") if corrupted and self.asked == _BOTH else ("noun", "century", "yy")

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        if slot == "noun":
            yield from ({**values, "noun": noun} for noun in self.nouns if noun != values["noun"])
            return
        kept = "yy" if slot == "century" else "century"
        for century, yy in self.corrupted_years if corrupted else self.years:
            other = {**values, "century": century, "yy": yy}
            if other[kept] == values[kept] and other[slot] != values[slot]:
                yield other

    @property
    def population(self) -> int:
        return len(self.nouns) * len(self.years)

    @property
    def corrupted_population(self) -> int:
        return len(self.nouns) * len(self.corrupted_years)

    def support(self) -> Iterator[tuple[Values, float]]:
        for noun, (century, yy) in product(self.nouns, self.years):
            yield {"noun": noun, "century": century, "yy": yy}, 1 / self.population

    def corrupted_support(self, values: Values) -> Iterator[tuple[Values, float]]:
        yield {**values, "yy": _lowest(values["yy"], self.asked)}, 1.0


# Which digits of yy the next token holds; the first that suits the tokenizer is taken.
_BOTH, _TENS, _UNITS = _ASKED = (slice(0, 2), slice(0, 1), slice(1, 2))


def _lowest(yy: str, asked: slice) -> str:
    """The end of the corrupted year."""
    return "01" if asked == _BOTH else yy[: asked.start] + "0" + yy[asked.stop :]


@TASKS.register("sva")
@final
class SubjectVerbAgreement(Grammar):
    """Subject-verb agreement across an attractor: "The keys near the door" is continued by " are" or " were".

    Args:
        tokens: The model's tokenizer.
        corruption: `other_number`: the subject gets its other number.
        nouns: Pairs (singular, plural).
        verbs: Pairs (singular, plural); every form that agrees is an answer, the others are wrong answers.
        preps: Prepositions.
        attractor: Only `congruent` or `incongruent` second nouns; None draws either with equal chance.
    """

    key = "sva"
    corruptions = ("other_number",)
    metadata_fields = ("noun1", "number", "noun2", "attractor", "prep", "n_tokens")
    heatmap_fields = (("noun1", "noun2"), ("noun2", "prep"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        nouns: Sequence[Sequence[str]] | None = None,
        verbs: Sequence[Sequence[str]] | None = None,
        preps: Sequence[str] | None = None,
        attractor: str | None = None,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("other_tasks")["subject_verb_agreement"]
        if attractor not in (None, "congruent", "incongruent"):
            raise unknown_name("attractor", attractor, ("congruent", "incongruent"))
        self.template: str = data["template"]
        self.attractor = attractor
        self.nouns = self._pairs(data["nouns"] if nouns is None else nouns, "nouns", after="The")
        self.verbs = self._pairs(data["verbs"] if verbs is None else verbs, "verbs", after="door", at_least=1)
        self.preps = one_token_words(
            tokens, data["preps"] if preps is None else preps, task=self.key, kind="preps", after="keys"
        )

    def _pairs(
        self, pairs: Sequence[Sequence[str]], kind: str, *, after: str, at_least: int = 2
    ) -> tuple[Sequence[str], ...]:
        for pair in pairs:
            if isinstance(pair, str) or len(pair) != 2:
                raise InputError(f"{self.key}: {kind} holds {pair!r}; give pairs (singular, plural)")
        keep = [all(self.tokens.one_token(after, " " + form) is not None for form in pair) for pair in pairs]
        rule = "both forms one token after a space"
        return usable(pairs, keep, task=self.key, kind=kind, rule=rule, at_least=at_least)

    def choose(self, rng: np.random.Generator) -> Values:
        subject, number, other = pick(rng, self.nouns), int(rng.integers(2)), pick(rng, self.nouns)
        congruent = bool(rng.integers(2)) if self.attractor is None else self.attractor == "congruent"
        return self._values(subject, number, other, congruent, pick(rng, self.preps))

    @staticmethod
    def _values(
        subject: Sequence[str], number: int, other: Sequence[str], congruent: bool, prep: str
    ) -> Values:
        number2 = number if congruent else 1 - number
        return {"subject": subject, "number": number, "other": other, "number2": number2, "prep": prep}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "number": 1 - values["number"]}

    def render(self, values: Values) -> Prompt:
        number, number2 = values["number"], values["number2"]
        filled = {
            "noun1": values["subject"][number],
            "noun2": values["other"][number2],
            "prep": values["prep"],
        }
        text, slots = fill(self.template, filled)
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=tuple(" " + pair[number] for pair in self.verbs),
            wrong=tuple(" " + pair[1 - number] for pair in self.verbs),
            fields={
                **filled,
                "number": ("singular", "plural")[number],
                "attractor": "congruent" if number == number2 else "incongruent",
            },
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("subject", "number", "other", "prep", *(("number2",) if self.attractor is None else ()))

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        if slot in ("number", "number2"):
            # Where the task fixes whether the two agree, both change.
            flipped = (slot,) if self.attractor is None else ("number", "number2")
            yield {**values, **{each: 1 - values[each] for each in flipped}}
        else:
            fillers: Sequence[Sequence[str] | str] = self.preps if slot == "prep" else self.nouns
            yield from ({**values, slot: filler} for filler in fillers if filler != values[slot])

    @property
    def population(self) -> int:
        return 2 * len(self.nouns) ** 2 * len(self.preps) * (2 if self.attractor is None else 1)

    @property
    def corrupted_population(self) -> int:
        return self.population

    def support(self) -> Iterator[tuple[Values, float]]:
        kinds = (True, False) if self.attractor is None else (self.attractor == "congruent",)
        for choice in product(self.nouns, (0, 1), self.nouns, kinds, self.preps):
            yield self._values(*choice), 1 / self.population

    def corrupted_support(self, values: Values) -> Iterator[tuple[Values, float]]:
        yield {**values, "number": 1 - values["number"]}, 1.0


@TASKS.register("gendered-pronoun")
@final
class GenderedPronoun(Grammar):
    """Pronoun of a first name: "So Mary is a really great friend, isn't" is continued by " she".

    What is measured is a convention of US English in the model's training text.

    Args:
        tokens: The model's tokenizer.
        corruption: `other_gender`: a uniformly drawn name of the other list.
        template_ids: Templates out of the data file, drawn uniformly.
        templates: Own templates with the slot name; they take the place of `template_ids`.
        female_names: Names answered by " she".
        male_names: Names answered by " he".
    """

    key = "gendered-pronoun"
    corruptions = ("other_gender",)
    metadata_fields = ("name", "gender", "template_id", "n_tokens")
    heatmap_fields = (("name", "template_id"), ("name", "corrupted.name"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template_ids: Sequence[int] = (0,),
        templates: Sequence[str] | None = None,
        female_names: Sequence[str] | None = None,
        male_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("other_tasks")["gendered_pronoun"]
        known = dict(enumerate(data["templates"]))
        self.templates = chosen_templates(self.key, known, template_ids, templates, needs=("name",))
        self.answers: dict[str, str] = data["answers"]
        self.names = {
            gender: self._names(kind, data[kind] if words is None else words)
            for gender, kind, words in (
                ("female", "female_names", female_names),
                ("male", "male_names", male_names),
            )
        }

    def _names(self, kind: str, words: Sequence[str]) -> tuple[str, ...]:
        def stands_alone(name: str) -> bool:
            return all(
                self.tokens.one_token(context, piece + name) is not None
                for context, piece in (before_slot(text, "name") for text in self.templates.values())
            )

        rule = "one token where the template puts it"
        return usable(words, [stands_alone(w) for w in words], task=self.key, kind=kind, rule=rule)

    def choose(self, rng: np.random.Generator) -> Values:
        template_id, gender = pick(rng, tuple(self.templates)), pick(rng, ("female", "male"))
        return {"template_id": template_id, "gender": gender, "name": pick(rng, self.names[gender])}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        other = _OTHER_GENDER[values["gender"]]
        return {**values, "gender": other, "name": pick(rng, self.names[other])}

    def render(self, values: Values) -> Prompt:
        text, slots = fill(self.templates[values["template_id"]], values)
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=(self.answers[values["gender"]],),
            wrong=(self.answers[_OTHER_GENDER[values["gender"]]],),
            fields={name: values[name] for name in ("name", "gender", "template_id")},
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("name",)

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        for gender, names in self.names.items():
            for name in names:
                if (gender, name) != (values["gender"], values["name"]):
                    yield {**values, "gender": gender, "name": name}

    @property
    def population(self) -> int:
        return len(self.templates) * sum(len(names) for names in self.names.values())

    @property
    def corrupted_population(self) -> int:
        return self.population

    def support(self) -> Iterator[tuple[Values, float]]:
        for template_id, gender in product(self.templates, self.names):
            weight = 1 / (len(self.templates) * 2 * len(self.names[gender]))
            for name in self.names[gender]:
                yield {"template_id": template_id, "gender": gender, "name": name}, weight

    def corrupted_support(self, values: Values) -> Iterator[tuple[Values, float]]:
        other = _OTHER_GENDER[values["gender"]]
        for name in self.names[other]:
            yield {**values, "gender": other, "name": name}, 1 / len(self.names[other])


_OTHER_GENDER = {"female": "male", "male": "female"}

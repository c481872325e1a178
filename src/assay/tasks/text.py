"""The tasks written as templates: IOI, greater-than, subject-verb agreement, gendered pronoun, capitals."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from assay.core.errors import InputError, check_name
from assay.tasks.grammar import (
    TASKS,
    Grammar,
    Prompt,
    Values,
    chosen_templates,
    fill,
    filled,
    one_token_in,
    pick,
    pick_distinct,
    slot_names,
    task_data,
)
from assay.tasks.tokens import Tokens


@TASKS.register("ioi")
@final
class IndirectObject(Grammar):
    """Indirect object identification: "When Mary and John went out, John gave a ring to" " Mary".

    Two distinct names, a place and an object, each uniform; the answer is the name that stands once.

    Args:
        tokens: The model's tokenizer.
        corruption: `abc` (three distinct names drawn anew), `s2_rand`, `s2_io_flip`, `s1_io_flip`.
        template_ids: Templates out of the data file (0-14 base, 15-19 extra), drawn uniformly.
        templates: Own templates with the slots name1, name2, name3 and, if wanted, place and object;
            they take the place of `template_ids`.
        orders: `ABBA` (the answer stands first) and `BABA`, drawn uniformly.
        names: Names to draw from.
        places: Places to draw from.
        objects: Objects to draw from.
        avoid_clean_names: `abc` only: the three names differ from those of the clean prompt.

    References:
        Wang et al. (2022), arXiv:2211.00593. Conmy et al. (2023), arXiv:2304.14997.
    """

    key = "ioi"
    corruptions = ("abc", "s2_rand", "s2_io_flip", "s1_io_flip")
    heatmap_fields = (("place", "object"), ("object", "corrupted.object"), ("place", "corrupted.place"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template_ids: Sequence[int] = (0,),
        templates: Sequence[str] | None = None,
        orders: Sequence[str] = ("ABBA",),
        names: Sequence[str] | None = None,
        places: Sequence[str] | None = None,
        objects: Sequence[str] | None = None,
        avoid_clean_names: bool = False,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data(self.key)
        known = {entry["id"]: entry["text"] for entry in data["templates"]}
        self.templates = chosen_templates(
            self.key, known, template_ids, templates, needs=_NAME_SLOTS, allows=("place", "object")
        )
        for order in orders:
            check_name("IOI order", order, _ORDERS)
        self.orders, self.avoid_clean_names = tuple(orders), avoid_clean_names
        least = 5 if avoid_clean_names else 3
        self.names = self.words("names", names, data, after="the", at_least=least, answers=True)
        self.places = self.words("places", places, data, after="the")
        self.objects = self.words("objects", objects, data, after="the")

    def choose(self, rng: np.random.Generator) -> Values:
        template_id, order = pick(rng, tuple(self.templates)), pick(rng, self.orders)
        io, subject = pick_distinct(rng, self.names, 2)
        scene = {"place": pick(rng, self.places), "object": pick(rng, self.objects)}
        used = slot_names(self.templates[template_id])
        values = {"template_id": template_id, "order": order, **dict.fromkeys(_NAME_SLOTS)}
        shown = {slot: word if slot in used else None for slot, word in scene.items()}
        return _in_roles({**values, "IO": io, "S": subject, **shown})

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        first, second, third = (values[slot] for slot in _NAME_SLOTS)
        if self.corruption == "abc":
            pool = self._others(values) if self.avoid_clean_names else self.names
            first, second, third = pick_distinct(rng, pool, 3)
        elif self.corruption == "s2_rand":
            third = pick(rng, self._others(values))
        elif self.corruption == "s2_io_flip":
            third = values["IO"]
        else:
            first, second = second, first
        return _renamed(values, first, second, third)

    def _others(self, values: Values) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in (values["IO"], values["S"]))

    def render(self, values: Values) -> Prompt:
        answer, wrong = " " + values["IO"], " " + values["S"]
        return filled(
            self.templates[values["template_id"]],
            values,
            values=values,
            answers=(answer,),
            wrong=(wrong,),
            fields={**values, "answer": answer, "wrong_answer": wrong},
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        roles = not corrupted or self.corruption in ("s2_io_flip", "s1_io_flip")
        scene = tuple(slot for slot in ("place", "object") if values[slot] is not None)
        orders = ("order",) if roles and len(self.orders) > 1 else ()
        return (*(("IO", "S") if roles else _NAME_SLOTS), *scene, *orders)

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        if slot in ("place", "object"):
            words = self.places if slot == "place" else self.objects
            yield from ({**values, slot: word} for word in words if word != values[slot])
        elif slot == "order":
            yield _in_roles({**values, "order": "BABA" if values["order"] == "ABBA" else "ABBA"})
        elif slot in ("IO", "S"):
            yield from (_in_roles({**values, slot: name}) for name in self._others(values))
        else:
            shown = {values[each] for each in _NAME_SLOTS}
            for name in self.names:
                if name not in shown:
                    yield _renamed(values, *(({**values, slot: name})[each] for each in _NAME_SLOTS))

    @property
    def population(self) -> int:
        return len(self.orders) * len(self.names) * (len(self.names) - 1) * self._scenes()

    @property
    def corrupted_population(self) -> int | None:
        n = len(self.names)
        return n * (n - 1) * (n - 2) * self._scenes() if self.corruption == "abc" else None

    def _scenes(self) -> int:
        """Distinct templates with place and object filled in."""
        counts = {"place": len(self.places), "object": len(self.objects)}
        used = (set(slot_names(text)) & set(counts) for text in self.templates.values())
        return sum(math.prod(counts[slot] for slot in slots) for slots in used)


_NAME_SLOTS = ("name1", "name2", "name3")
_ORDERS = {"ABBA": "ABB", "BABA": "BAB"}  # role of each name slot; A is the answer


def _in_roles(values: Values) -> Values:
    """The fillers with the names where the order puts the roles."""
    role = {"A": values["IO"], "B": values["S"]}
    names = (role[letter] for letter in _ORDERS[values["order"]])
    return {**values, **dict(zip(_NAME_SLOTS, names, strict=True))}


def _renamed(values: Values, name1: str, name2: str, name3: str) -> Values:
    """The same scene with other names; order and roles are read off the names (ABC: no name twice)."""
    if name3 == name1 != name2:
        order, io, subject = "BABA", name2, name1
    elif name3 == name2 != name1:
        order, io, subject = "ABBA", name1, name2
    else:
        order, io, subject = "ABC", name1, name2
    names = {"name1": name1, "name2": name2, "name3": name3}
    return {**values, **names, "order": order, "IO": io, "S": subject}


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
        known = {"short": data["template"], "long": data["template_long"]}
        if "{" not in template:
            check_name("greater-than template", template, known)
        self.template: str = known.get(template, template)
        chosen_templates(self.key, {}, (), [self.template], needs=("noun", "century", "yy"))
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

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
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
        if attractor is not None:
            check_name("attractor", attractor, ("congruent", "incongruent"))
        self.template: str = data["template"]
        self.attractor = attractor
        self.nouns = self._pairs(data["nouns"] if nouns is None else nouns, "nouns", after="The")
        self.verbs = self._pairs(data["verbs"] if verbs is None else verbs, "verbs", after="door", at_least=1)
        self.preps = self.words("preps", preps, data, after="keys")

    def _pairs(
        self, pairs: Sequence[Sequence[str]], kind: str, *, after: str, at_least: int = 2
    ) -> tuple[Sequence[str], ...]:
        for pair in pairs:
            if isinstance(pair, str) or len(pair) != 2:
                raise InputError(f"{self.key}: {kind} holds {pair!r}; give pairs (singular, plural)")
        keep = [all(self.tokens.one_token(after, " " + form) is not None for form in pair) for pair in pairs]
        return self.usable(kind, pairs, keep, "both forms one token after a space", at_least=at_least)

    def choose(self, rng: np.random.Generator) -> Values:
        subject, number, other = pick(rng, self.nouns), int(rng.integers(2)), pick(rng, self.nouns)
        congruent = bool(rng.integers(2)) if self.attractor is None else self.attractor == "congruent"
        number2 = number if congruent else 1 - number
        prep = pick(rng, self.preps)
        return {"subject": subject, "number": number, "other": other, "number2": number2, "prep": prep}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "number": 1 - values["number"]}

    def render(self, values: Values) -> Prompt:
        number, number2 = values["number"], values["number2"]
        words = {
            "noun1": values["subject"][number],
            "noun2": values["other"][number2],
            "prep": values["prep"],
        }
        return filled(
            self.template,
            words,
            values=values,
            answers=tuple(" " + pair[number] for pair in self.verbs),
            wrong=tuple(" " + pair[1 - number] for pair in self.verbs),
            fields={
                **words,
                "number": ("singular", "plural")[number],
                "attractor": "congruent" if number == number2 else "incongruent",
            },
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("subject", "number", "other", "prep", *(("number2",) if self.attractor is None else ()))

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
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
        self.names = {}
        for gender, own in (("female", female_names), ("male", male_names)):
            kind = f"{gender}_names"
            words = data[kind] if own is None else own
            keep = [one_token_in(tokens, word, "name", self.templates.values()) for word in words]
            self.names[gender] = self.usable(kind, words, keep, "one token where the template puts it")

    def choose(self, rng: np.random.Generator) -> Values:
        template_id, gender = pick(rng, tuple(self.templates)), pick(rng, ("female", "male"))
        return {"template_id": template_id, "gender": gender, "name": pick(rng, self.names[gender])}

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        other = _OTHER_GENDER[values["gender"]]
        return {**values, "gender": other, "name": pick(rng, self.names[other])}

    def render(self, values: Values) -> Prompt:
        return filled(
            self.templates[values["template_id"]],
            values,
            values=values,
            answers=(self.answers[values["gender"]],),
            wrong=(self.answers[_OTHER_GENDER[values["gender"]]],),
            fields={name: values[name] for name in ("name", "gender", "template_id")},
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("name",)

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        for gender, names in self.names.items():
            for name in names:
                if (gender, name) != (values["gender"], values["name"]):
                    yield {**values, "gender": gender, "name": name}

    @property
    def population(self) -> int:
        return len(self.templates) * sum(map(len, self.names.values()))


_OTHER_GENDER = {"female": "male", "male": "female"}


@TASKS.register("capital-country")
@final
class CapitalCountry(Grammar):
    """Capital of a country: "The capital of France is the city of" is continued by " Paris".

    Template and country are uniform. The wrong answer is the capital of the corrupted prompt's country; a
    clean prompt by itself has none.

    Args:
        tokens: The model's tokenizer.
        corruption: `other_country`: another country, uniformly drawn.
        template_ids: Templates out of the data file, drawn uniformly.
        templates: Own templates with the slot country; they take the place of `template_ids`.
        capitals: Country to capital.
    """

    key = "capital-country"
    corruptions = ("other_country",)
    heatmap_fields = (("country", "template_id"), ("country", "corrupted.country"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template_ids: Sequence[int] = (0,),
        templates: Sequence[str] | None = None,
        capitals: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("other_tasks")["capital_country"]
        known = dict(enumerate(data["templates"]))
        self.templates = chosen_templates(self.key, known, template_ids, templates, needs=("country",))
        listed = data["pairs_single_token_gpt2"] if capitals is None else capitals
        # The token by which a capital is scored, for each template.
        self.scored = {
            country: [
                tokens.scored_by(text.format(country=country), " " + capital)
                for text in self.templates.values()
            ]
            for country, capital in listed.items()
        }
        spoken = [each for each in self.scored.values() if None not in each]
        keep = [
            self.scored[country] in spoken
            and any(other != self.scored[country] for other in spoken)
            and one_token_in(tokens, country, "country", self.templates.values())
            for country in listed
        ]
        rule = "country and capital one token each where the templates put them, and another capital differs"
        kept = self.usable("countries", tuple(listed), keep, rule)
        self.capitals = {country: listed[country] for country in kept}

    def choose(self, rng: np.random.Generator) -> Values:
        return {
            "template_id": pick(rng, tuple(self.templates)),
            "country": pick(rng, tuple(self.capitals)),
        }

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "country": pick(rng, self._others(values))}

    def _others(self, values: Values) -> list[str]:
        """The countries whose capital is scored by another token."""
        own = self.scored[values["country"]]
        return [country for country in self.capitals if self.scored[country] != own]

    def pairs(self, prompts: Sequence[Prompt], rng: np.random.Generator) -> list[tuple[Prompt, Prompt]]:
        found = super().pairs(prompts, rng)
        return [(replace(clean, wrong=other.answers), other) for clean, other in found]

    def render(self, values: Values) -> Prompt:
        capital = self.capitals[values["country"]]
        return filled(
            self.templates[values["template_id"]],
            values,
            values=values,
            answers=(" " + capital,),
            fields={**values, "capital": capital},
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("country",)

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        yield from ({**values, "country": country} for country in self._others(values))

    @property
    def population(self) -> int:
        return len(self.templates) * len(self.capitals)

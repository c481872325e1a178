"""Agreement, pronouns, capitals and years: the tasks whose answers follow from a word of the prompt."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from assay.core.errors import InputError, check_name
from assay.tasks.encoding import Prompt
from assay.tasks.grammar import Grammar, Values, fill, filled, others, pick, task_data


@dataclass(eq=False, repr=False, kw_only=True)
class SubjectVerbAgreement(Grammar):
    """Subject-verb agreement across an attractor: "The keys near the door" is continued by " are" or " were".

    Args:
        tokens: The model's tokenizer.
        corruption: `other_number`: the subject gets its other number.
        nouns: Pairs (singular, plural); of all three, default: the published ones.
        verbs: Pairs (singular, plural); every form that agrees is an answer, the others are wrong answers.
        preps: Prepositions.
    """

    key = "sva"
    corruptions = ("other_number",)
    heatmap_fields = (("noun1", "noun2"), ("noun2", "prep"))
    varied = ("subject", "number", "other", "prep", "number2")

    nouns: Sequence[Sequence[str]] = ()
    verbs: Sequence[Sequence[str]] = ()
    preps: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        data = task_data("other_tasks")["subject_verb_agreement"]
        self.template: str = data["template"]
        self.nouns = self._pairs("nouns", self.nouns or data["nouns"], "The", at_least=2)
        self.verbs = self._pairs("verbs", self.verbs or data["verbs"], "door", at_least=1)
        self.fillers = {"subject": self.nouns, "number": (0, 1), "other": self.nouns, "number2": (0, 1)}
        self.fillers["prep"] = self.one_token_words("preps", self.preps or data["preps"], after="keys")

    def _pairs(
        self, kind: str, pairs: Sequence[Sequence[str]], after: str, *, at_least: int
    ) -> tuple[Sequence[str], ...]:
        for pair in pairs:
            if isinstance(pair, str) or len(pair) != 2:
                raise InputError(f"{self.key}: {kind} holds {pair!r}; give pairs (singular, plural)")

        def known(pair: Sequence[str]) -> bool:
            return all(self.tokens.one_token(after, " " + form) is not None for form in pair)

        return self.usable(kind, pairs, known, "both forms one token after a space", at_least=at_least)

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
            self.template,
            words,
            values=values,
            answers=tuple(" " + pair[number] for pair in self.verbs),
            wrong=tuple(" " + pair[1 - number] for pair in self.verbs),
            fields={**words, "number": ("singular", "plural")[number], "attractor": congruence},
        )


_OTHER_GENDER = {"female": "male", "male": "female"}


@dataclass(eq=False, repr=False, kw_only=True)
class GenderedPronoun(Grammar):
    """Pronoun of a first name: "So Mary is a really great friend, isn't" is continued by " she".

    What is measured is a convention of US English in the model's training text.

    Args:
        tokens: The model's tokenizer.
        corruption: `other_gender`: a uniformly drawn name of the other list.
        template_ids: Templates out of the data file, drawn uniformly.
        templates: Own templates with the slot name; they take the place of `template_ids`.
        female_names: Names answered by " she"; of both lists, default: the published one.
        male_names: Names answered by " he".
    """

    key = "gendered-pronoun"
    corruptions = ("other_gender",)
    heatmap_fields = (("name", "template_id"), ("name", "corrupted.name"))
    varied = ("name",)

    template_ids: Sequence[int] = (0,)
    templates: Sequence[str] = ()
    female_names: Sequence[str] = ()
    male_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        data = task_data("other_tasks")["gendered_pronoun"]
        published = dict(enumerate(data["templates"]))
        self.texts = self.chosen_templates(published, self.template_ids, self.templates, needs=("name",))
        self.answers: dict[str, str] = data["answers"]
        self.names = {}
        for gender, own in (("female", self.female_names), ("male", self.male_names)):
            kind, rule = f"{gender}_names", "one token where the template puts it"
            self.names[gender] = self.usable(
                kind, own or data[kind], lambda word: self.fits(word, "name", self.texts.values()), rule
            )
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

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        for gender, names in self.names.items():
            for name in names:
                if (gender, name) != (values["gender"], values["name"]):
                    yield {**values, "gender": gender, "name": name}

    @property
    def population(self) -> int:
        return len(self.texts) * sum(map(len, self.names.values()))


@dataclass(eq=False, repr=False, kw_only=True)
class CapitalCountry(Grammar):
    """Capital of a country: "The capital of France is the city of" is continued by " Paris".

    Template and country are uniform. The wrong answer is the capital of the corrupted prompt's country; a
    clean prompt by itself has none.

    Args:
        tokens: The model's tokenizer.
        corruption: `other_country`: another country, uniformly drawn.
        template_ids: Templates out of the data file, drawn uniformly.
        templates: Own templates with the slot country; they take the place of `template_ids`.
        capitals: Country to capital; default: the published ones.
    """

    key = "capital-country"
    corruptions = ("other_country",)
    heatmap_fields = (("country", "template_id"), ("country", "corrupted.country"))
    varied = ("country",)

    template_ids: Sequence[int] = (0,)
    templates: Sequence[str] = ()
    capitals: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        data = task_data("other_tasks")["capital_country"]
        published = dict(enumerate(data["templates"]))
        self.texts = self.chosen_templates(published, self.template_ids, self.templates, needs=("country",))
        texts, listed = self.texts.values(), self.capitals or data["pairs_single_token_gpt2"]
        # The token by which a capital is scored, for each template.
        self.scored = {
            country: [self.tokens.scored_by(text.format(country=country), " " + capital) for text in texts]
            for country, capital in listed.items()
        }
        spoken = [each for each in self.scored.values() if None not in each]

        def differs(country: str) -> bool:
            own = self.scored[country]
            return (
                own in spoken and any(each != own for each in spoken) and self.fits(country, "country", texts)
            )

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

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        return others(values, slot, self._rivals(values))


# ---- years

# Which digits of yy the next token holds; the first that suits the tokenizer is taken.
_BOTH, _TENS, _UNITS = slice(0, 2), slice(0, 1), slice(1, 2)


@dataclass(eq=False, repr=False, kw_only=True)
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
        data = task_data("greater_than")
        published = {"short": data["template"], "long": data["template_long"]}
        if "{" not in self.template:
            check_name("greater-than template", self.template, published)
        self.template = published.get(self.template, self.template)
        self.chosen_templates({}, (), [self.template], needs=("noun", "century", "yy"))
        self.nouns = self.one_token_words("nouns", self.nouns or data["nouns"], after="The")
        chosen = [str(century) for century in self.centuries or data["centuries"]]
        stems: dict[str, int] = {}
        for self.asked in (_BOTH, _TENS, _UNITS, _BOTH):
            stems = {century: self._stem(century, self._lowest("11")) for century in chosen}
            if any(stems.values()):
                break
        least = min(filter(None, stems.values()), default=-1)
        rule = "a token of its years begins behind the century, or behind the digit after it"
        self.centuries = self.usable("centuries", chosen, lambda century: stems[century] == least, rule)
        years: list[tuple[str, str]] = []
        for century in self.centuries:
            own = self._years_of(century, least)
            years += own[1:-1] if self.drop_extremes and self.asked == _BOTH else own
        years = [year for year in years if int(year[1]) > self.above]
        self.years = tuple(year for year in years if self.asked == _BOTH or year[1][self.asked] not in "09")
        if self.asked != _BOTH:
            self.notes = (
                f"{self.key}: the tokenizer splits years, so one digit is asked; "
                f"{len(years) - len(self.years)} of {len(years)} years, in which it is 0 or 9, are left out",
            )
        if len(self.years) < 2:
            text = f"{self.key}: {len(self.years)} years can be used (yy above {self.above})"
            raise InputError(f"{text}; expected at least 2. Lower `above`, or use another tokenizer")
        self.corrupted_years = tuple(dict.fromkeys((c, self._lowest(yy)) for c, yy in self.years))
        self.fillers = {"noun": self.nouns, "year": self.years}

    def _lowest(self, yy: str) -> str:
        """The end of the corrupted year."""
        return "01" if self.asked == _BOTH else yy[: self.asked.start] + "0" + yy[self.asked.stop :]

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
        return {**values, "yy": self._lowest(values["yy"])}

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
        return others(values, slot, (year[slot] for year in years if year[kept] == values[kept]))

    @property
    def corrupted_population(self) -> int:
        return len(self.nouns) * len(self.corrupted_years)

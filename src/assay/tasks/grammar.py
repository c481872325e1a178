"""Seeded grammars: what a text task's prompts are, before any model sees them; tasks that are templates.

A grammar chooses the fillers of a prompt (`choose`), changes them (`corrupted`) and writes them out
(`render`). All draws come from the generator the caller passes, one prompt after the other, so the
first k prompts of a longer draw are the draw of k.
"""

import functools
import importlib.resources
import itertools
import json
import math
import string
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from assay.core.errors import AssayWarning, InputError, TokenizationError, check_name, unknown_name
from assay.core.registry import Registry
from assay.tasks.encoding import Prompt, Tokens


T = TypeVar("T")
Values = dict[str, Any]
Own = Sequence[str] | None  # a user's own list; None: the published one
OwnPairs = Sequence[Sequence[str]] | None


class Grammar(ABC):
    """The prompts of one text task for one tokenizer, and their corruption.

    Args:
        tokens: The model's tokenizer, which decides what fillers can be used.
        corruption: Key out of `corruptions`; the first is the default.

    Attributes:
        key: Registered name of the task.
        objective: Key of the objective the task is judged by unless told otherwise.
        corruptions: Kinds of corruption, the default first.
        heatmap_fields: Pairs of fields worth a table of their own in worst-case reports.
        varied: Slots that a search may vary one by one.
        fillers: Slot to what is drawn for it, uniformly, in the order of the draws.
        notes: What the tokenizer leaves out of the prompts, a sentence each.
    """

    key: ClassVar[str]
    objective: ClassVar[str] = "logit_diff"
    corruptions: ClassVar[tuple[str, ...]]
    heatmap_fields: ClassVar[tuple[tuple[str, str], ...]] = ()
    varied: ClassVar[tuple[str, ...]] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, tokens: Tokens, *, corruption: str | None = None) -> None:
        self.tokens = tokens
        self.fillers: dict[str, Sequence[Any]] = {}
        self.corruption = corruption or self.corruptions[0]
        check_name(f"corruption of {self.key}", self.corruption, self.corruptions)

    def choose(self, rng: np.random.Generator) -> Values:
        """Draw the fillers of one clean prompt."""
        return {slot: pick(rng, fillers) for slot, fillers in self.fillers.items()}

    @abstractmethod
    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        """The fillers of the corrupted prompt of a clean one."""

    @abstractmethod
    def render(self, values: Values) -> Prompt:
        """Write a prompt out."""

    def draw(self, n: int, rng: np.random.Generator) -> list[Prompt]:
        """Draw `n` clean prompts independently, with replacement."""
        return [self.render(self.choose(rng)) for _ in range(n)]

    def corrupt(self, prompts: Iterable[Prompt], rng: np.random.Generator) -> list[Prompt]:
        """The corrupted counterpart of each clean prompt, in order."""
        return [self.render(self.corrupted(dict(prompt.values), rng)) for prompt in prompts]

    def pairs(self, prompts: Sequence[Prompt], rng: np.random.Generator) -> list[tuple[Prompt, Prompt]]:
        """Each clean prompt, with its wrong answers, and its corrupted counterpart."""
        return list(zip(prompts, self.corrupt(prompts, rng), strict=True))

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        """What can be varied about a (clean or corrupted) prompt by itself; none unless declared."""
        return self.varied

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        """The same prompt with every other filler of one slot that the grammar can produce.

        A filler that appears in several places changes in all of them; fillers that the prompt holds
        elsewhere already, where the grammar keeps them apart, are left out.

        Args:
            values: Fillers of the prompt.
            slot: One of `slots(values, corrupted=corrupted)`.
            corrupted: Whether it is a corrupted prompt: the variants are then corrupted prompts of some
                clean one, not necessarily the same as before.
        """
        return others(values, slot, self.fillers[slot])

    @property
    def population(self) -> int | None:
        """Number of distinct clean prompts; None where they are not counted."""
        return math.prod(map(len, self.fillers.values())) if self.fillers else None

    @property
    def corrupted_population(self) -> int | None:
        """Number of distinct corrupted prompts over all clean ones; None where they are not counted."""
        return self.population

    # ---- what of a list the tokenizer can use

    def words(
        self,
        kind: str,
        own: Own,
        published: Mapping[str, Any],
        *,
        after: str,
        at_least: int | None = None,
        answers: bool = False,
    ) -> tuple[str, ...]:
        """The fillers that are one token after `after` and a space, of a user's own or the published ones.

        Two at least, or the only one that is given. With `answers`, they can also be scored as answers, which
        begin a turn in a chat. Errors as of `usable`.
        """
        words, tokens, rule = published[kind] if own is None else own, self.tokens, "one token after a space"
        tokens.learn(after, [" " + word for word in words])
        keep = [tokens.one_token(after, " " + word) is not None for word in words]
        if answers and tokens.chat:
            scored = (tokens.scored_by(after, word) is not None for word in words)
            keep, rule = [*map(min, keep, scored)], f"{rule} and as an answer"
        return self.usable(
            kind, words, keep, rule, at_least=min(2, len(words)) if at_least is None else at_least
        )

    def usable(
        self, kind: str, words: Sequence[T], keep: Sequence[bool], rule: str, *, at_least: int = 2
    ) -> tuple[T, ...]:
        """The fillers that satisfy a token rule; the others are named in a warning.

        Raises:
            InputError: If a filler is listed twice.
            TokenizationError: If fewer than `at_least` are left.
        """
        if twice := [repr(word) for i, word in enumerate(words) if word in words[:i]]:
            raise InputError(
                f"{self.key}: {kind} holds {', '.join(twice)} more than once; every filler must be different"
            )
        kept = tuple(itertools.compress(words, keep))
        dropped = ", ".join(repr(word) for word, good in zip(words, keep, strict=True) if not good)
        if len(kept) < at_least:
            raise TokenizationError(
                f"{self.key}: {len(kept)} of {len(words)} {kind} can be used ({rule}); expected at least "
                f"{at_least}{dropped and f'; dropped {dropped}'}. Pass other {kind}, or a model with another "
                "tokenizer"
            )
        if dropped:
            warnings.warn(
                f"{self.key}: dropped {len(words) - len(kept)} of {len(words)} {kind} ({rule}): {dropped}",
                AssayWarning,
                stacklevel=2,
            )
        return kept

    def chosen_templates(
        self,
        published: Mapping[int, str],
        ids: Sequence[int],
        own: Own,
        *,
        needs: Sequence[str],
        allows: Sequence[str] = (),
    ) -> dict[int, str]:
        """Template id to text: those of the data file by id, or a user's own, numbered from 0.

        Raises:
            UnknownNameError: If an id is not in the data file.
            InputError: If an own template has the wrong slots.
        """
        for template_id in ids if own is None else ():
            if template_id not in published:
                raise unknown_name(f"{self.key} template id", template_id, map(str, published))
        for template in own or ():
            names = set(slot_names(template))
            if not set(needs) <= names <= {*needs, *allows}:
                optional = f", and may have {', '.join(allows)}" if allows else ""
                raise InputError(
                    f"{self.key}: template {template!r} has the slots {', '.join(sorted(names)) or 'none'}; "
                    f"it must have {', '.join(needs)}{optional}"
                )
        return {each: published[each] for each in ids} if own is None else dict(enumerate(own))

    def fits(self, word: str, slot: str, templates: Iterable[str]) -> bool:
        """Whether a filler is one token wherever the templates put it."""
        before = [template.split(f"{{{slot}}}")[0] for template in templates]
        stems = [(text, text.rstrip(" ")) for text in before]
        return all(self.tokens.one_token(stem, text[len(stem) :] + word) is not None for text, stem in stems)


TASKS: Registry[type[Grammar]] = Registry("task", holds=Grammar, classes=True)


@functools.cache
def task_data(name: str) -> dict[str, Any]:
    """Word lists, templates and rules of one task file, e.g. `task_data("ioi")`."""
    source = importlib.resources.files("assay.tasks") / "data" / f"{name}.json"
    loaded: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return loaded


def fill(template: str, values: Mapping[str, Any]) -> tuple[str, dict[str, tuple[int, int]]]:
    """Fill the `{slots}` of a template; the span is that of a slot's first occurrence.

    Returns:
        The text, and slot name to `(start, end)` in characters.
    """
    text, slots = "", dict[str, tuple[int, int]]()
    for literal, name, _, _ in string.Formatter().parse(template):
        text += literal
        if name is not None:
            start = len(text)
            text += str(values[name])
            slots.setdefault(name, (start, len(text)))
    return text, slots


def filled(template: str, fillers: Mapping[str, Any], **facts: Any) -> Prompt:
    """A prompt of a template, with further facts about it."""
    text, slots = fill(template, fillers)
    return Prompt(text=text, slots=slots, **facts)


def slot_names(template: str) -> list[str]:
    """Names of the `{slots}` of a template."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One option, uniformly."""
    return options[int(rng.integers(len(options)))]


def pick_distinct(rng: np.random.Generator, options: Sequence[T], n: int) -> list[T]:
    """`n` different options in random order, uniformly without replacement."""
    return [options[int(i)] for i in rng.choice(len(options), size=n, replace=False)]


def others(values: Values, slot: str, fillers: Iterable[Any]) -> Iterator[Values]:
    """The same prompt with each filler of a slot but its own."""
    return ({**values, slot: filler} for filler in fillers if filler != values[slot])


# ---- indirect objects

_NAME_SLOTS = ("name1", "name2", "name3")
_ORDERS = {"ABBA": "ABB", "BABA": "BAB"}  # role of each name slot; A is the answer


@TASKS.register("ioi")
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
        templates: Own = None,
        orders: Sequence[str] = ("ABBA",),
        names: Own = None,
        places: Own = None,
        objects: Own = None,
        avoid_clean_names: bool = False,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data(self.key)
        published = {entry["id"]: entry["text"] for entry in data["templates"]}
        self.templates = self.chosen_templates(
            published, template_ids, templates, needs=_NAME_SLOTS, allows=("place", "object")
        )
        for order in orders:
            check_name("IOI order", order, _ORDERS)
        self.orders, self.avoid_clean_names = tuple(orders), avoid_clean_names
        least = 5 if avoid_clean_names else 3
        self.names = self.words("names", names, data, after="the", at_least=least, answers=True)
        self.scene = {
            "place": self.words("places", places, data, after="the"),
            "object": self.words("objects", objects, data, after="the"),
        }

    def choose(self, rng: np.random.Generator) -> Values:
        template_id, order = pick(rng, tuple(self.templates)), pick(rng, self.orders)
        io, subject = pick_distinct(rng, self.names, 2)
        scene = {slot: pick(rng, words) for slot, words in self.scene.items()}
        used = slot_names(self.templates[template_id])
        values = {"template_id": template_id, "order": order, **dict.fromkeys(_NAME_SLOTS)}
        shown = {slot: word if slot in used else None for slot, word in scene.items()}
        return _in_roles({**values, "IO": io, "S": subject, **shown})

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        first, second, third = (values[slot] for slot in _NAME_SLOTS)
        if self.corruption == "abc":
            pool = self._strangers(values) if self.avoid_clean_names else self.names
            first, second, third = pick_distinct(rng, pool, 3)
        elif self.corruption == "s2_rand":
            third = pick(rng, self._strangers(values))
        elif self.corruption == "s2_io_flip":
            third = values["IO"]
        else:
            first, second = second, first
        return _renamed(values, first, second, third)

    def _strangers(self, values: Values) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in (values["IO"], values["S"]))

    def render(self, values: Values) -> Prompt:
        answer, wrong = " " + values["IO"], " " + values["S"]
        fields = {**values, "answer": answer, "wrong_answer": wrong}
        template = self.templates[values["template_id"]]
        return filled(template, values, values=values, answers=(answer,), wrong=(wrong,), fields=fields)

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        roles = not corrupted or self.corruption in ("s2_io_flip", "s1_io_flip")
        scene = [slot for slot in self.scene if values[slot] is not None]
        orders = ("order",) if roles and len(self.orders) > 1 else ()
        return (*(("IO", "S") if roles else _NAME_SLOTS), *scene, *orders)

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        if slot in self.scene:
            return others(values, slot, self.scene[slot])
        if slot == "order":
            return map(_in_roles, others(values, slot, _ORDERS))
        if slot in ("IO", "S"):
            return (_in_roles({**values, slot: name}) for name in self._strangers(values))
        shown = [values[each] for each in _NAME_SLOTS]
        at = _NAME_SLOTS.index(slot)
        return (
            _renamed(values, *shown[:at], name, *shown[at + 1 :]) for name in self.names if name not in shown
        )

    @property
    def population(self) -> int:
        return len(self.orders) * math.perm(len(self.names), 2) * self._n_scenes()

    @property
    def corrupted_population(self) -> int | None:
        return math.perm(len(self.names), 3) * self._n_scenes() if self.corruption == "abc" else None

    def _n_scenes(self) -> int:
        """Distinct templates with place and object filled in."""
        used = (set(slot_names(text)) & set(self.scene) for text in self.templates.values())
        return sum(math.prod(len(self.scene[slot]) for slot in slots) for slots in used)


def _in_roles(values: Values) -> Values:
    """The fillers with the names where the order puts the roles."""
    role = {"A": values["IO"], "B": values["S"]}
    names = (role[letter] for letter in _ORDERS[values["order"]])
    return {**values, **dict(zip(_NAME_SLOTS, names, strict=True))}


def _renamed(values: Values, *names: str) -> Values:
    """The same scene with three other names; order and roles are read off them (ABC: no name twice)."""
    name1, name2, name3 = names
    order, io, subject = "ABC", name1, name2
    if name3 == name1 != name2:
        order, io, subject = "BABA", name2, name1
    elif name3 == name2 != name1:
        order = "ABBA"
    return {**values, **dict(zip(_NAME_SLOTS, names, strict=True)), "order": order, "IO": io, "S": subject}


# ---- agreement, pronouns, capitals


@TASKS.register("sva")
class SubjectVerbAgreement(Grammar):
    """Subject-verb agreement across an attractor: "The keys near the door" is continued by " are" or " were".

    Args:
        tokens: The model's tokenizer.
        corruption: `other_number`: the subject gets its other number.
        nouns: Pairs (singular, plural).
        verbs: Pairs (singular, plural); every form that agrees is an answer, the others are wrong answers.
        preps: Prepositions.
    """

    key = "sva"
    corruptions = ("other_number",)
    heatmap_fields = (("noun1", "noun2"), ("noun2", "prep"))
    varied = ("subject", "number", "other", "prep", "number2")

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        nouns: OwnPairs = None,
        verbs: OwnPairs = None,
        preps: Own = None,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("other_tasks")["subject_verb_agreement"]
        self.template: str = data["template"]
        pairs = self._pairs("nouns", data["nouns"] if nouns is None else nouns, "The", at_least=2)
        self.verbs = self._pairs("verbs", data["verbs"] if verbs is None else verbs, "door", at_least=1)
        self.fillers = {"subject": pairs, "number": (0, 1), "other": pairs, "number2": (0, 1)}
        self.fillers["prep"] = self.words("preps", preps, data, after="keys")

    def _pairs(
        self, kind: str, pairs: Sequence[Sequence[str]], after: str, *, at_least: int
    ) -> tuple[Sequence[str], ...]:
        for pair in pairs:
            if isinstance(pair, str) or len(pair) != 2:
                raise InputError(f"{self.key}: {kind} holds {pair!r}; give pairs (singular, plural)")
        keep = [all(self.tokens.one_token(after, " " + form) is not None for form in pair) for pair in pairs]
        return self.usable(kind, pairs, keep, "both forms one token after a space", at_least=at_least)

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


@TASKS.register("gendered-pronoun")
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
    varied = ("name",)

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template_ids: Sequence[int] = (0,),
        templates: Own = None,
        female_names: Own = None,
        male_names: Own = None,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("other_tasks")["gendered_pronoun"]
        published = dict(enumerate(data["templates"]))
        self.templates = self.chosen_templates(published, template_ids, templates, needs=("name",))
        self.answers: dict[str, str] = data["answers"]
        self.names = {}
        for gender, own in (("female", female_names), ("male", male_names)):
            words = data[f"{gender}_names"] if own is None else own
            keep = [self.fits(word, "name", self.templates.values()) for word in words]
            rule = "one token where the template puts it"
            self.names[gender] = self.usable(f"{gender}_names", words, keep, rule)
        self.fillers = {"template_id": tuple(self.templates), "gender": tuple(self.names)}

    def choose(self, rng: np.random.Generator) -> Values:
        values = super().choose(rng)
        return {**values, "name": pick(rng, self.names[values["gender"]])}

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

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        for gender, names in self.names.items():
            for name in names:
                if (gender, name) != (values["gender"], values["name"]):
                    yield {**values, "gender": gender, "name": name}

    @property
    def population(self) -> int:
        return len(self.templates) * sum(map(len, self.names.values()))


@TASKS.register("capital-country")
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
    varied = ("country",)

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template_ids: Sequence[int] = (0,),
        templates: Own = None,
        capitals: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("other_tasks")["capital_country"]
        published = dict(enumerate(data["templates"]))
        self.templates = self.chosen_templates(published, template_ids, templates, needs=("country",))
        texts = self.templates.values()
        listed = data["pairs_single_token_gpt2"] if capitals is None else capitals
        # The token by which a capital is scored, for each template.
        self.scored = {
            country: [tokens.scored_by(text.format(country=country), " " + capital) for text in texts]
            for country, capital in listed.items()
        }
        spoken = [each for each in self.scored.values() if None not in each]
        keep = [
            self.scored[country] in spoken
            and any(other != self.scored[country] for other in spoken)
            and self.fits(country, "country", texts)
            for country in listed
        ]
        rule = "country and capital one token each where the templates put them, and another capital differs"
        kept = self.usable("countries", tuple(listed), keep, rule)
        self.capitals = {country: listed[country] for country in kept}
        self.fillers = {"template_id": tuple(self.templates), "country": kept}

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
        template = self.templates[values["template_id"]]
        return filled(template, values, values=values, answers=(" " + capital,), fields=fields)

    def variants(self, values: Values, slot: str, *, corrupted: bool = False) -> Iterator[Values]:
        return others(values, slot, self._rivals(values))

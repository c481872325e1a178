"""Seeded grammars: what a text task's prompts are, before any model sees them; the task `ioi`.

A grammar chooses the fillers of a prompt (`choose`), changes them (`corrupted`) and writes them out
(`render`). All draws come from the generator the caller passes, one prompt after the other, so the
first k prompts of a longer draw are the draw of k.
"""

import functools
import importlib.resources
import json
import string
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from assay.core.errors import AssayWarning, InputError, TokenizationError, check_name
from assay.tasks.encoding import Prompt, Tokens


T = TypeVar("T")
Values = dict[str, Any]


@dataclass(eq=False, repr=False)
class Grammar(ABC):
    """The prompts of one text task for one tokenizer, and their corruption.

    Args:
        tokens: The model's tokenizer, which decides what fillers can be used.
        corruption: Key out of `corruptions`; default: the first.

    Attributes:
        key: Registered name of the task.
        objective: Key of the objective the task is judged by unless told otherwise.
        corruptions: Kinds of corruption, the default first.
        heatmap_fields: Pairs of fields worth a table of their own in worst-case reports.
        fillers: Slot to what is drawn for it, uniformly, in the order of the draws.
        notes: What the tokenizer leaves out of the prompts, a sentence each.
    """

    key: ClassVar[str]
    objective: ClassVar[str] = "logit_diff"
    corruptions: ClassVar[tuple[str, ...]]
    heatmap_fields: ClassVar[tuple[tuple[str, str], ...]] = ()

    tokens: Tokens
    _: KW_ONLY
    corruption: str = ""

    def __post_init__(self) -> None:
        self.fillers: dict[str, Sequence[Any]] = {}
        self.notes: tuple[str, ...] = ()
        self.corruption = self.corruption or self.corruptions[0]
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

    def variants(self, values: Values, *, corrupted: bool = False) -> dict[str, list[Values]]:
        """What a search can vary about a prompt: slot -> the prompt with each of the slot's other fillers.

        A filler that appears in several places changes in all of them; fillers that the prompt holds
        elsewhere already, where the grammar keeps them apart, are left out.

        Args:
            values: Fillers of the prompt.
            corrupted: Whether it is a corrupted prompt: the variants are then corrupted prompts of some
                clean one, not necessarily the same as before.
        """
        return {slot: others(values, slot, fillers) for slot, fillers in self.fillers.items()}


@dataclass(eq=False, repr=False, kw_only=True)
class ListedGrammar(Grammar):
    """A grammar whose words are lists, each the user's own or the published one.

    Attributes:
        published: Where the published lists are: a file, and the entry in it if it holds several tasks.
    """

    published: ClassVar[tuple[str, ...]]

    @property
    def data(self) -> Mapping[str, Any]:
        """The published lists and rules."""
        name, *entry = self.published
        return task_data(name)[entry[0]] if entry else task_data(name)

    def listed(self, kind: str) -> Sequence[Any]:
        """The user's own list of this name, or else the published one."""
        fillers: Sequence[Any] = getattr(self, kind) or self.data[kind]
        return fillers

    def one_token_words(
        self, kind: str, *, after: str, at_least: int = 1, answers: bool = False
    ) -> tuple[str, ...]:
        """The words of a list that are one token after `after` and a space.

        With `answers`, they can also be scored as answers, which begin a turn in a chat. Errors: `usable`.
        """
        tokens, scored = self.tokens, answers and self.tokens.chat

        def test(word: str) -> bool:
            single = tokens.one_token(after, " " + word) is not None
            return single and not (scored and tokens.scored_by(after, " " + word) is None)

        rule = "one token after a space" + (" and as an answer" if scored else "")
        return self.usable(kind, self.listed(kind), test, rule, at_least=at_least)

    def usable(
        self, kind: str, fillers: Sequence[T], test: Callable[[T], bool], rule: str, *, at_least: int = 1
    ) -> tuple[T, ...]:
        """The fillers that pass the test of a token rule; the others are named in a warning.

        Raises:
            InputError: If a filler is listed twice.
            TokenizationError: If fewer than `at_least` are left.
        """
        if twice := [repr(filler) for i, filler in enumerate(fillers) if filler in fillers[:i]]:
            raise InputError(f"{self.key}: {kind} holds {', '.join(twice)} more than once")
        kept = tuple(filter(test, fillers))
        dropped = ", ".join(repr(filler) for filler in fillers if filler not in kept)
        fact = f"{self.key}: {len(kept)} of {len(fillers)} {kind} can be used ({rule})"
        fact += f"; dropped {dropped}" if dropped else ""
        if len(kept) < at_least:
            raise TokenizationError(f"{fact}; expected at least {at_least}, pass other {kind}")
        if dropped:
            warnings.warn(fact, AssayWarning, stacklevel=2)
        return kept


@dataclass(eq=False, repr=False, kw_only=True)
class TemplatedGrammar(ListedGrammar):
    """A grammar with several templates, one of which is drawn for each prompt.

    Args:
        template_ids: Numbers of published templates.

    Attributes:
        texts: Number of a template -> template.

    Raises:
        UnknownNameError: If there is no published template of a number.
    """

    template_ids: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = [each if isinstance(each, str) else each["text"] for each in self.data["templates"]]
        for number in self.template_ids:
            check_name(f"{self.key} template id", str(number), [*map(str, range(len(texts)))])
        self.texts = {number: texts[number] for number in self.template_ids}

    def fits(self, word: str, slot: str) -> bool:
        """Whether a filler is one token wherever the templates put it."""
        before = [template.split(f"{{{slot}}}")[0] for template in self.texts.values()]
        stems = [(text, text.rstrip(" ")) for text in before]
        return all(self.tokens.one_token(stem, text[len(stem) :] + word) is not None for text, stem in stems)


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


def others(values: Values, slot: str, fillers: Iterable[Any]) -> list[Values]:
    """The same prompt with each filler of a slot but its own."""
    return [{**values, slot: filler} for filler in fillers if filler != values[slot]]


# ---- indirect objects

_NAME_SLOTS = ("name1", "name2", "name3")


@dataclass(eq=False, repr=False, kw_only=True)
class IndirectObject(TemplatedGrammar):
    """Indirect object identification: "When Mary and John went out, John gave a ring to" " Mary".

    Two distinct names, a place and an object, each uniform; the answer is the name that stands once.

    Args:
        tokens: The model's tokenizer.
        corruption: `abc` (three distinct names drawn anew), `s2_rand`, `s2_io_flip`, `s1_io_flip`.
        template_ids: Templates out of the data file (0-14 base, 15-19 extra), drawn uniformly.
        orders: `ABBA` (the answer stands first) and `BABA`, drawn uniformly.
        names: Names to draw from; of these three, default: the published ones.
        places: Places to draw from.
        objects: Objects to draw from.
        avoid_clean_names: `abc` only: the three names differ from those of the clean prompt.

    References:
        Wang et al. (2022), arXiv:2211.00593. Conmy et al. (2023), arXiv:2304.14997.
    """

    key = "ioi"
    published = ("ioi",)
    corruptions = ("abc", "s2_rand", "s2_io_flip", "s1_io_flip")
    heatmap_fields = (("place", "object"), ("object", "corrupted.object"), ("place", "corrupted.place"))

    orders: Sequence[str] = ("ABBA",)
    names: Sequence[str] = ()
    places: Sequence[str] = ()
    objects: Sequence[str] = ()
    avoid_clean_names: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for order in self.orders:
            check_name("IOI order", order, ("ABBA", "BABA"))
        least = 5 if self.avoid_clean_names else 3
        self.names = self.one_token_words("names", after="the", at_least=least, answers=True)
        self.scene = {slot: self.one_token_words(f"{slot}s", after="the") for slot in ("place", "object")}

    def choose(self, rng: np.random.Generator) -> Values:
        template_id, order = pick(rng, tuple(self.texts)), pick(rng, self.orders)
        io, subject = pick_distinct(rng, self.names, 2)
        scene = {slot: pick(rng, words) for slot, words in self.scene.items()}
        used = slot_names(self.texts[template_id])
        values = {"template_id": template_id, "order": order, **dict.fromkeys((*_NAME_SLOTS, "IO", "S"))}
        values |= {slot: word if slot in used else None for slot, word in scene.items()}
        return _renamed(values, *((io, subject) if order == "ABBA" else (subject, io)), subject)

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        first, second, third = (values[slot] for slot in _NAME_SLOTS)
        strangers = [name for name in self.names if name not in (first, second)]
        if self.corruption == "abc":
            first, second, third = pick_distinct(rng, strangers if self.avoid_clean_names else self.names, 3)
        elif self.corruption == "s2_rand":
            third = pick(rng, strangers)
        elif self.corruption == "s2_io_flip":
            third = values["IO"]
        else:
            first, second = second, first
        return _renamed(values, first, second, third)

    def render(self, values: Values) -> Prompt:
        answer, wrong = " " + values["IO"], " " + values["S"]
        fields = {**values, "answer": answer, "wrong_answer": wrong}
        template = self.texts[values["template_id"]]
        return filled(template, values, values=values, answers=(answer,), wrong=(wrong,), fields=fields)

    def variants(self, values: Values, *, corrupted: bool = False) -> dict[str, list[Values]]:
        shown = [values[slot] for slot in _NAME_SLOTS]
        strangers = [name for name in self.names if name not in shown]
        roles = not corrupted or self.corruption in ("s2_io_flip", "s1_io_flip")
        found = {  # a role changes in both of its places
            slot: [
                _renamed(values, *(new if old == values[slot] else old for old in shown)) for new in strangers
            ]
            for slot in (("IO", "S") if roles else _NAME_SLOTS)
        }
        scene = {slot: words for slot, words in self.scene.items() if values[slot] is not None}
        found |= {slot: others(values, slot, words) for slot, words in scene.items()}
        swapped = [_renamed(values, shown[1], shown[0], shown[2])]
        return found | ({"order": swapped} if roles and len(self.orders) > 1 else {})


def _renamed(values: Values, *names: str) -> Values:
    """The same scene with three other names; order and roles are read off them (ABC: no name twice)."""
    name1, name2, name3 = names
    order, io, subject = "ABC", name1, name2
    if name3 == name1 != name2:
        order, io, subject = "BABA", name2, name1
    elif name3 == name2 != name1:
        order = "ABBA"
    return {**values, **dict(zip(_NAME_SLOTS, names, strict=True)), "order": order, "IO": io, "S": subject}

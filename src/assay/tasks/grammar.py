"""Seeded grammars: what a text task's prompts are, before any model sees them.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from assay.core.errors import AssayWarning, InputError, TokenizationError, check_name, unknown_name
from assay.core.registry import Registry
from assay.tasks.tokens import Tokens


T = TypeVar("T")
Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of a grammar or of a file.

    Attributes:
        text: The prompt as the model reads it; "" when `ids` holds it.
        ids: Token ids of a prompt that has no text, else None.
        whole: Whether nothing is put before `ids`, since they are all that the model is to read.
        answers: Right continuations, as text or ids; each must be one token.
        wrong: Continuations to compare with.
        slots: Slot name to character span in `text`, or to a range `(start, stop)` of `ids`.
        fields: What the prompt is filled with; the names are the task's metadata fields.
        values: All choices behind the prompt, also those that only its corruption uses.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    whole: bool = False
    answers: tuple[str | int, ...] = ()
    wrong: tuple[str | int, ...] = ()
    slots: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return repr(self.text) if self.ids is None else f"ids {list(self.ids)}"


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
        notes: What the tokenizer leaves out of the prompts, a sentence each.
    """

    key: ClassVar[str]
    objective: ClassVar[str] = "logit_diff"
    corruptions: ClassVar[tuple[str, ...]]
    heatmap_fields: ClassVar[tuple[tuple[str, str], ...]] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, tokens: Tokens, *, corruption: str | None = None) -> None:
        self.tokens = tokens
        self.corruption = corruption or self.corruptions[0]
        check_name(f"corruption of {self.key}", self.corruption, self.corruptions)

    @abstractmethod
    def choose(self, rng: np.random.Generator) -> Values:
        """Draw the fillers of one clean prompt."""

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
        """What can be varied about a prompt by itself; none unless the grammar declares it.

        Args:
            values: Fillers of the prompt.
            corrupted: Whether it is a corrupted prompt.
        """
        return ()

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
        raise NotImplementedError(f"{type(self).__name__} declares slots, so it must implement variants")

    def words(
        self,
        kind: str,
        own: Sequence[str] | None,
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
        words, tokens = published[kind] if own is None else own, self.tokens
        tokens.learn(after, [" " + word for word in words])
        keep = [tokens.one_token(after, " " + word) is not None for word in words]
        rule = "one token after a space"
        if answers and tokens.chat:
            scored = [tokens.scored_by(after, word) is not None for word in words]
            keep = [both == (True, True) for both in zip(keep, scored, strict=True)]
            rule += " and as an answer"
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
        if twice := [word for i, word in enumerate(words) if word in words[:i]]:
            raise InputError(
                f"{self.key}: {kind} holds {_listed(twice)} more than once; every filler must be different"
            )
        kept = tuple(word for word, good in zip(words, keep, strict=True) if good)
        dropped = [word for word, good in zip(words, keep, strict=True) if not good]
        if len(kept) < at_least:
            reason = f"; dropped {_listed(dropped)}" if dropped else ""
            raise TokenizationError(
                f"{self.key}: {len(kept)} of {len(words)} {kind} can be used ({rule}); expected at least "
                f"{at_least}{reason}. Pass other {kind}, or a model with another tokenizer"
            )
        if dropped:
            warnings.warn(
                f"{self.key}: dropped {len(dropped)} of {len(words)} {kind} ({rule}): {_listed(dropped)}",
                AssayWarning,
                stacklevel=2,
            )
        return kept

    @property
    def population(self) -> int | None:
        """Number of distinct clean prompts; None where they are not counted."""
        return None

    @property
    def corrupted_population(self) -> int | None:
        """Number of distinct corrupted prompts over all clean ones; None where they are not counted."""
        return self.population


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


def one_token_in(tokens: Tokens, word: str, slot: str, templates: Iterable[str]) -> bool:
    """Whether a filler is one token wherever the templates put it."""
    before = (template.split(f"{{{slot}}}")[0] for template in templates)
    return all(
        tokens.one_token(text.rstrip(" "), text[len(text.rstrip(" ")) :] + word) is not None
        for text in before
    )


def chosen_templates(
    task: str,
    known: Mapping[int, str],
    ids: Sequence[int],
    own: Sequence[str] | None,
    *,
    needs: Sequence[str],
    allows: Sequence[str] = (),
) -> dict[int, str]:
    """Template id to text: those of the data file by id, or a user's own, numbered from 0.

    Raises:
        UnknownNameError: If an id is not in the data file.
        InputError: If an own template has the wrong slots.
    """
    if own is None:
        for template_id in ids:
            if template_id not in known:
                raise unknown_name(f"{task} template id", template_id, map(str, known))
        return {template_id: known[template_id] for template_id in ids}
    for template in own:
        names = set(slot_names(template))
        if not set(needs) <= names <= {*needs, *allows}:
            optional = f", and may have {', '.join(allows)}" if allows else ""
            raise InputError(
                f"{task}: template {template!r} has the slots {', '.join(sorted(names)) or 'none'}; "
                f"it must have {', '.join(needs)}{optional}"
            )
    return dict(enumerate(own))


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One option, uniformly."""
    return options[int(rng.integers(len(options)))]


def pick_distinct(rng: np.random.Generator, options: Sequence[T], n: int) -> list[T]:
    """`n` different options in random order, uniformly without replacement."""
    return [options[int(i)] for i in rng.choice(len(options), size=n, replace=False)]


def _listed(words: Sequence[Any]) -> str:
    return ", ".join(map(repr, words))

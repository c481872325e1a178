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
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from assay.core.errors import AssayWarning, InputError, TokenizationError, check_name, unknown_name
from assay.core.registry import Registry
from assay.tasks.tokens import Tokens


T = TypeVar("T")
Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Read:
    """A position at which a prompt is read.

    Attributes:
        position: Number of the token whose successor is read; negative: from the end.
        answers: Right continuations there, as text or ids; each must be one token.
        wrong: Continuations to compare with.
    """

    position: int
    answers: tuple[str | int, ...]
    wrong: tuple[str | int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of a grammar.

    Attributes:
        text: The prompt as the model reads it; "" when `ids` holds it.
        ids: Token ids of a prompt that has no text (induction), else None.
        whole: Whether nothing is put before `ids`, since they are all that the model is to read.
        answers: Right continuations, as text or ids; each must be one token.
        wrong: Continuations to compare with.
        reads: Where the prompt is read, with the answers there, instead of at its last token.
        slots: Slot name to character span in `text`, or to a range `(start, stop)` of `ids`.
        fields: What the prompt is filled with; the names are the task's metadata fields.
        values: All choices behind the prompt, also those that only its corruption uses.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    whole: bool = False
    answers: tuple[str | int, ...] = ()
    wrong: tuple[str | int, ...] = ()
    reads: tuple[Read, ...] = ()
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
        metadata_fields: Fields every prompt carries (`n_tokens` is added with the ids).
        heatmap_fields: Pairs of fields worth a table of their own in worst-case reports.
        contrasts: Whether the wrong answer of a pair is the right one of its corrupted prompt. A prompt by
            itself then has no wrong answer.
        notes: What the tokenizer leaves out of the prompts, a sentence each.
    """

    key: ClassVar[str]
    objective: ClassVar[str] = "logit_diff"
    corruptions: ClassVar[tuple[str, ...]]
    metadata_fields: ClassVar[tuple[str, ...]]
    heatmap_fields: ClassVar[tuple[tuple[str, str], ...]] = ()
    contrasts: ClassVar[bool] = False
    notes: tuple[str, ...] = ()

    def __init__(self, tokens: Tokens, *, corruption: str | None = None) -> None:
        self.tokens = tokens
        self.corruption = self.corruptions[0] if corruption is None else corruption
        if self.corruption not in self.corruptions:
            raise unknown_name(f"corruption of {self.key}", corruption, self.corruptions)

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

    def pairs(self, prompts: Iterable[Prompt], rng: np.random.Generator) -> list[tuple[Prompt, Prompt]]:
        """Each clean prompt, with its wrong answers, and its corrupted counterpart."""
        prompts = list(prompts)
        corrupted = self.corrupt(prompts, rng)
        if self.contrasts:
            prompts = [
                replace(one, wrong=other.answers) for one, other in zip(prompts, corrupted, strict=True)
            ]
        return list(zip(prompts, corrupted, strict=True))

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

        Raises:
            UnknownNameError: If the prompt has no such slot.
        """
        check_name(f"slot of {self.key}", slot, self.slots(values, corrupted=corrupted))
        return self._varied(values, slot, corrupted=corrupted)

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        """The variants of one of the slots that `slots` declares."""
        raise NotImplementedError(f"{type(self).__name__} declares slots, so it must implement _varied")

    @property
    def aligned(self) -> bool:
        """Whether position t means the same slot in a clean prompt and in its corrupted one."""
        return True

    @property
    def population(self) -> int | None:
        """Number of distinct clean prompts; None where they are not counted."""
        return None

    @property
    def corrupted_population(self) -> int | None:
        """Number of distinct corrupted prompts over all clean ones; None where they are not counted."""
        return None

    def support(self) -> Iterator[tuple[Values, float]]:
        """Every distinct choice of fillers with its probability.

        Raises:
            InputError: If the grammar does not enumerate its prompts.
        """
        raise InputError(f"the prompts of {self.key} cannot be enumerated; draw them instead")

    def corrupted_support(self, values: Values) -> Iterator[tuple[Values, float]]:
        """Every corrupted choice of one clean choice with its probability given that choice.

        Raises:
            InputError: If the grammar does not enumerate its prompts.
        """
        raise InputError(f"the corrupted prompts of {self.key} cannot be enumerated; draw them instead")


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
    text = ""
    slots: dict[str, tuple[int, int]] = {}
    for literal, name, _, _ in string.Formatter().parse(template):
        text += literal
        if name is not None:
            start = len(text)
            text += str(values[name])
            slots.setdefault(name, (start, len(text)))
    return text, slots


def slot_names(template: str) -> tuple[str, ...]:
    """Names of the `{slots}` of a template in order of first occurrence."""
    names = (name for _, name, _, _ in string.Formatter().parse(template) if name is not None)
    return tuple(dict.fromkeys(names))


def before_slot(template: str, slot: str) -> tuple[str, str]:
    """What is left of a slot: the context, and the white space that joins the token of the filler."""
    before = template.split(f"{{{slot}}}")[0]
    return before.rstrip(" "), before[len(before.rstrip(" ")) :]


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
        InputError: If there is no template, or an own template has the wrong slots.
    """
    if own is None:
        for template_id in ids:
            if template_id not in known:
                raise unknown_name(f"{task} template id", template_id, map(str, known))
        templates = {template_id: known[template_id] for template_id in ids}
    else:
        templates = dict(enumerate(own))
    if not templates:
        raise InputError(
            f"{task}: templates are missing; name at least one id out of {min(known)}..{max(known)}"
        )
    for template in templates.values():
        names = slot_names(template)
        if not set(needs) <= set(names) or not set(names) <= {*needs, *allows}:
            optional = f", and may have {', '.join(allows)}" if allows else ""
            raise InputError(
                f"{task}: template {template!r} has the slots {', '.join(names) or 'none'}; "
                f"it must have {', '.join(needs)}{optional}"
            )
    return templates


def usable(
    words: Sequence[T], keep: Sequence[bool], *, task: str, kind: str, rule: str, at_least: int = 2
) -> tuple[T, ...]:
    """The fillers that satisfy a token rule; the others are named in a warning.

    Raises:
        InputError: If a filler is listed twice.
        TokenizationError: If fewer than `at_least` are left.
    """
    twice = [word for i, word in enumerate(words) if word in words[:i]]
    if twice:
        raise InputError(
            f"{task}: {kind} holds {_listed(twice)} more than once; every filler must be different"
        )
    kept = tuple(word for word, good in zip(words, keep, strict=True) if good)
    dropped = [word for word, good in zip(words, keep, strict=True) if not good]
    if len(kept) < at_least:
        reason = f"; dropped {_listed(dropped)}" if dropped else ""
        raise TokenizationError(
            f"{task}: {len(kept)} of {len(words)} {kind} can be used ({rule}); expected at least "
            f"{at_least}{reason}. Pass other {kind}, or a model with another tokenizer"
        )
    if dropped:
        warnings.warn(
            f"{task}: dropped {len(dropped)} of {len(words)} {kind} ({rule}): {_listed(dropped)}",
            AssayWarning,
            stacklevel=2,
        )
    return kept


def one_token_words(
    tokens: Tokens,
    words: Sequence[str],
    *,
    task: str,
    kind: str,
    after: str,
    at_least: int | None = None,
    answers: bool = False,
) -> tuple[str, ...]:
    """The words that are one token after `after` and a space: 2 at least, or the only one that is given.

    With `answers`, they can also be scored as answers, which begin a turn in a chat.
    """
    if at_least is None:
        at_least = 1 if len(words) == 1 else 2
    tokens.learn(after, [" " + word for word in words])
    keep = [tokens.one_token(after, " " + word) is not None for word in words]
    rule = "one token after a space"
    if answers and tokens.chat:
        keep = [
            fits and tokens.scored_by(after, word) is not None for fits, word in zip(keep, words, strict=True)
        ]
        rule += " and as an answer"
    return usable(words, keep, task=task, kind=kind, rule=rule, at_least=at_least)


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One option, uniformly."""
    return options[int(rng.integers(len(options)))]


def pick_distinct(rng: np.random.Generator, options: Sequence[T], n: int) -> list[T]:
    """`n` different options in random order, uniformly without replacement."""
    return [options[int(i)] for i in rng.choice(len(options), size=n, replace=False)]


def _listed(words: Sequence[Any]) -> str:
    return ", ".join(repr(word) for word in words)

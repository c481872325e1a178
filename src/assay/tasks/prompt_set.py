"""Prompts without answers: what arrives at a deployed language model, and what a model makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64

from assay.core.errors import FileFormatError, InputError, TokenizationError
from assay.core.random import stream
from assay.core.untrusted import parse_json
from assay.tasks.encoding import encode_prompts
from assay.tasks.grammar import TASKS, Prompt
from assay.tasks.image_rows import checked_rows
from assay.tasks.task import PairTask
from assay.tasks.tokens import Tokens


DRAWN = "task:"  # how the prompts of a grammar are named
UNANSWERED = "unanswered"  # key in the `config` of tasks whose answers are not known
KEYS = ("prompt", "clean", "text")  # of a line, the first that it has
_FORM = '{"prompt": "..."}, or a text; a list of token ids in the place of a text'


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrivingPrompts:
    """Prompts of one origin, each text or token ids.

    Attributes:
        prompts: At least one.
        domain: Where they come from.
        config: How they were made (JSON values).
        skipped: Names of prompts that were left out because the model cannot read them.
        labels: None, as the right answers are unknown.
    """

    prompts: tuple[str | tuple[int, ...], ...]
    domain: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    labels: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InputError(f"{self.domain or 'the set'} has no prompts; give at least one")

    @property
    def n(self) -> int:
        """Number of prompts."""
        return len(self.prompts)

    def subset(self, indices: Int64[np.ndarray, " k"] | Sequence[int]) -> "ArrivingPrompts":
        """The prompts in these rows, in this order.

        Raises:
            InputError: If there is none, or one is out of range.
        """
        rows = checked_rows(np.asarray(indices), self.n)
        return replace(self, prompts=tuple(self.prompts[row] for row in rows))

    def task(self, model: Any) -> PairTask:
        """The prompts as a model reads them: next token, no counterparts, no answers.

        Shorter prompts are padded on the right, which changes no result. The objective is `kl` and the
        ablation `mean`, which need neither; the counterparts are the prompts, and the answers zeros that are
        not read.

        Args:
            model: A language model with its tokenizer.

        Raises:
            TokenizationError: If a prompt has no token, a word outside the vocabulary or too many tokens.
        """
        encoded = encode_prompts([_prompt(each) for each in self.prompts], _tokens(model))
        task = PairTask(
            clean=encoded.ids,
            corrupted=encoded.ids,
            answers=torch.zeros(self.n, 1, dtype=torch.long),
            lengths=encoded.lengths,
            name=self.domain or "prompts",
            objective="kl",
            ablation="mean",
            texts=encoded.texts,
            corrupted_texts=encoded.texts,
            tokenizer=model.tokenizer,
            config={**self.config, UNANSWERED: True},
        )
        task.validate(model.n_vocab, model.n_positions)
        return task


def prompt_text(content: str | tuple[int, ...]) -> str:
    """A prompt for reading."""
    return content if isinstance(content, str) else f"ids {', '.join(map(str, content))}"


def _prompt(content: str | tuple[int, ...]) -> Prompt:
    return Prompt(text=content) if isinstance(content, str) else Prompt(ids=content, whole=True)


def _tokens(model: Any) -> Tokens | None:
    rules = {name: value for name, value in model.prompt_rules.items() if name in ("bos", "chat")}
    return None if model.tokenizer is None else Tokens(model.tokenizer, **rules)


def read_prompt(line: str, model: Any, where: str) -> str | tuple[int, ...]:
    """The prompt of a line, checked to be one that the model reads.

    Args:
        line: JSON: a text, a list of token ids, or an object with one of these under `prompt`, `clean` or
            `text`.
        model: A language model with its tokenizer.
        where: What messages call the line.

    Raises:
        FileFormatError: If it holds no prompt.
        TokenizationError: If the model cannot read it.
    """
    try:
        content = parse_json(line)
    except ValueError as error:
        raise FileFormatError(f"{where}: not JSON ({error}); expected {_FORM}") from error
    if isinstance(content, dict):
        content = next((content[key] for key in KEYS if key in content), None)
    ids = isinstance(content, list) and all(type(each) is int and each >= 0 for each in content)
    if not content or not (isinstance(content, str) or ids):
        raise FileFormatError(f"{where}: got {line[:80]!r}; expected {_FORM}")
    prompt = content if isinstance(content, str) else tuple(content)
    if isinstance(prompt, str) and model.tokenizer is None:
        raise TokenizationError(f"{where}: the prompt is a text, but the model has no tokenizer; pass one")
    try:
        ArrivingPrompts(prompts=(prompt,)).task(model)
    except (InputError, OverflowError) as error:
        said = str(error)  # it may quote a long prompt
        said = said if len(said) <= 400 else f"{said[:150]} ... {said[-250:]}"
        raise TokenizationError(f"{where}: {said}") from error
    return prompt


def draw_prompts(source: str, model: Any, *, n: int, seed: int, name: str) -> ArrivingPrompts:
    """Clean prompts of a registered task.

    Args:
        source: `task:KEY`.
        model: A language model with its tokenizer.
        n: How many.
        seed: Root seed.
        name: Of the stream; prompts of another name are other draws.

    Raises:
        UnknownNameError: If there is no such task.
        TokenizationError: If the tokenizer does not suit it.
    """
    tokens, grammar = _tokens(model), TASKS[source.removeprefix(DRAWN)]
    if tokens is None:
        raise TokenizationError(f"{source} needs a tokenizer, but the model has none; pass one")
    prompts = grammar(tokens).draw(n, stream(seed, name))
    return ArrivingPrompts(
        prompts=tuple(each.text if each.ids is None else (*tokens.prefix, *each.ids) for each in prompts),
        domain=source.removeprefix(DRAWN),
        config={"task": grammar.key, "seed": seed, "stream": name},
    )

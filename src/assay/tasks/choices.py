"""Multiple-choice questions: the answer is the letter of the right choice."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from assay.core.errors import FileFormatError, InputError
from assay.tasks.grammar import TASKS, Grammar, Prompt, Values, pick, pick_distinct, task_data, usable
from assay.tasks.rows import read_rows
from assay.tasks.tokens import Tokens


MOST_CHOICES = 10
_KEYS = ("id", "question", "choices", "answer", "answerKey")


@dataclass(frozen=True)
class Question:
    """A question with its choices.

    Attributes:
        id: What the file calls it; else its number.
        text: The question.
        choices: The choices, 2 to 10.
        right: Place of the right one among them, from 0.
        fields: What else the file says about it.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    right: int
    fields: Mapping[str, Any] = field(default_factory=dict)


@TASKS.register("mcqa")
@final
class MultipleChoice(Grammar):
    r"""Multiple choice: a question, its choices under letters and "Answer:" are continued by a letter.

    "Which is a bird?\nT. stone\nC. crow\nK. lake\nX. road\nAnswer:" is continued by " C". The question is
    uniform, its choices stand as in the file, each under a letter drawn without replacement. The wrong
    answer is the letter of the right choice in the corrupted prompt.

    Args:
        tokens: The model's tokenizer.
        corruption: `symbol`: other letters, none of the clean ones; `answer_position`: the choices permuted
            so that the right one moves, under the same letters.
        questions: File of questions, or records of its form (see `question_of`). Default: questions about
            colors whose answer the question names.
        letters: Capital letters to draw from.

    References:
        Wiegreffe et al. (2024), arXiv:2407.15018. Mueller et al. (2025), arXiv:2504.13151.
    """

    key = "mcqa"
    corruptions = ("symbol", "answer_position")
    contrasts = True
    metadata_fields = ("question_id", "position", "symbol", "n_tokens")
    heatmap_fields = (("position", "symbol"), ("position", "corrupted.position"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        questions: str | Path | Sequence[Mapping[str, Any] | Question] | None = None,
        letters: Sequence[str] = string.ascii_uppercase,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        if isinstance(questions, str | Path):
            self.questions = read_questions(questions)
        else:
            records = task_data(self.key)["questions"] if questions is None else questions
            self.questions = tuple(
                record
                if isinstance(record, Question)
                else question_of(record, number, f"{self.key}: question {number}")
                for number, record in enumerate(records, start=1)
            )
        if not self.questions:
            raise InputError(f"{self.key}: questions is empty; give at least one")
        most = max(len(question.choices) for question in self.questions)
        self.letters = usable(
            tuple(letters),
            [self._is_usable(letter) for letter in letters],
            task=self.key,
            kind="letters",
            rule="one token at the start of a line and after a space",
            at_least=2 * most if self.corruption == "symbol" else most,
        )

    def _is_usable(self, letter: str) -> bool:
        inside = self.tokens.one_token("x\n", letter)
        return inside is not None and self.tokens.scored_by("Answer:", " " + letter) is not None

    def choose(self, rng: np.random.Generator) -> Values:
        return self.asked(int(rng.integers(len(self.questions))), rng)

    def asked(self, question: int, rng: np.random.Generator) -> Values:
        """One question under letters drawn for it."""
        n = len(self.questions[question].choices)
        return {
            "question": question,
            "order": tuple(range(n)),
            "symbols": tuple(pick_distinct(rng, self.letters, n)),
        }

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        order, symbols = values["order"], values["symbols"]
        if self.corruption == "symbol":
            others = [letter for letter in self.letters if letter not in symbols]
            return {**values, "symbols": tuple(pick_distinct(rng, others, len(symbols)))}
        right = self.questions[values["question"]].right
        place = order.index(right)
        rest = pick_distinct(rng, [each for each in order if each != right], len(order) - 1)
        moved = pick(rng, [each for each in range(len(order)) if each != place])
        return {**values, "order": (*rest[:moved], right, *rest[moved:])}

    def render(self, values: Values) -> Prompt:
        question = self.questions[values["question"]]
        text, slots = question.text, {"question": (0, len(question.text))}
        for place, (symbol, choice) in enumerate(zip(values["symbols"], values["order"], strict=True), 1):
            start = len(text) + 1
            text += f"\n{symbol}. {question.choices[choice]}"
            slots[f"symbol{place}"] = (start, start + 1)
            slots[f"choice{place}"] = (start + 3, len(text))
        position = values["order"].index(question.right)
        symbol = values["symbols"][position]
        return Prompt(
            text=f"{text}\nAnswer:",
            slots=slots,
            values=values,
            answers=(" " + symbol,),
            fields={
                **question.fields,
                "question_id": question.id,
                "position": position,
                "symbol": symbol,
            },
        )


QUESTION = '{"question": "...", "choices": ["...", "...", "...", "..."], "answer": 0}'


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """Questions of a JSON lines or parquet file, one a row.

    Raises:
        FileFormatError: If the file cannot be read; file and line are named.
    """
    rows = read_rows(path, what="questions", expected=QUESTION)
    return tuple(question_of(rows.record(number), number, rows.where(number)) for number in rows.contents)


def is_question(record: Mapping[str, Any]) -> bool:
    """Whether a row is a question, not a pair of prompts."""
    return "question" in record and "prompt" not in record and "clean" not in record


def question_of(record: Mapping[str, Any], number: int, where: str) -> Question:
    """A question out of one row.

    Three forms are read: `{"question", "choices": [...], "answer": 0}`; ARC as the `datasets` library has it,
    `{"question", "choices": {"text": [...], "label": [...]}, "answerKey": "B"}`; and ARC as first published,
    `{"question": {"stem", "choices": [{"text", "label"}, ...]}, "answerKey": "B"}`.

    Args:
        record: The row; `id` is its name.
        number: Its number, the name of a row without `id`.
        where: The row, for messages.

    Raises:
        FileFormatError: If it has another form.
    """
    text: Any = record.get("question")
    choices: Any = record.get("choices")
    if isinstance(text, Mapping):
        text, choices = text.get("stem"), text.get("choices")
    labels: list[Any] | None = None
    if isinstance(choices, Mapping):
        choices, labels = choices.get("text"), choices.get("label")
    elif isinstance(choices, list) and choices and all(isinstance(each, Mapping) for each in choices):
        choices, labels = [each.get("text") for each in choices], [each.get("label") for each in choices]
    if not isinstance(text, str) or not text.strip():
        raise FileFormatError(f"{where}: 'question' is {text!r}; expected text, as in {QUESTION}")
    if not _texts(choices) or not 2 <= len(choices) <= MOST_CHOICES or len(set(choices)) < len(choices):
        raise FileFormatError(
            f"{where}: 'choices' is {choices!r}; expected 2 to {MOST_CHOICES} different texts, as in "
            f"{QUESTION}"
        )
    if labels is None:
        key, right = "answer", record.get("answer")
    else:
        key, right = "answerKey", record.get("answerKey")
        if not _texts(labels) or len(labels) != len(choices):
            raise FileFormatError(f"{where}: the labels are {labels!r}; expected one text for each choice")
        right = labels.index(right) if right in labels else None
    if type(right) is not int or not 0 <= right < len(choices):
        allowed = f"0 to {len(choices) - 1}" if labels is None else f"one of {', '.join(labels)}"
        raise FileFormatError(f"{where}: {key!r} is {record.get(key)!r}; expected {allowed}")
    fields = {
        name: value
        for name, value in record.items()
        if name not in _KEYS and isinstance(value, str | int | float | bool)
    }
    return Question(str(record.get("id", number)), text, tuple(choices), right, fields)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)

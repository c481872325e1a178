"""Tasks from files: pairs of prompts, and rows of MIB's data sets (a prompt, its answer, counterfactuals)."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from assay.core.errors import (
    AssayError,
    AssayWarning,
    FileFormatError,
    InputError,
    TokenizationError,
    check_name,
)
from assay.core.random import stream
from assay.tasks.encoding import NoPairsError, pair_task
from assay.tasks.grammar import Prompt
from assay.tasks.rows import Rows, draw_rows, name_of, read_rows
from assay.tasks.task import PairTask
from assay.tasks.tokens import Tokens


Pair = tuple[Prompt, Prompt]

_PAIR = '{"clean": "...", "corrupted": "...", "answers": [" ..."], "wrong": [" ..."]}'
_LARGEST_ID = 1 << 31
# What the circuit track of MIB corrupts with, where a row has it.
USUAL = ("s2_io_flip", "symbol", "random")

_SUFFIX = "_counterfactual"
_ROW = (
    '{"prompt": "...", "choices": [" ..."] or {"label": ["A"], ...}, "answerKey": 0, '
    '"NAME_counterfactual": {"prompt": "...", ...}}, with "label" instead of choices for numbers'
)
_KEYS = ("clean", "corrupted", "answers", "wrong")


def read_pairs(
    path: Any,
    tokenizer: Any = None,
    *,
    n: int | None = None,
    seed: int = 0,
    bos: bool | None = None,
    chat: bool = False,
    answer_tokens: str = "one",
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> PairTask:
    """A task from a file with one JSON object per line, or a parquet file or a data set with one per row.

    The keys of the first row tell which of two forms the rows have.

    - Pairs: `clean` and `corrupted` (text, or a list of token ids), `answers` and, if wanted, `wrong` (lists
      of continuations, each one token with its leading space, or of ids); every other key is a field. A key
      `corrupted.NAME` is a field of the corrupted prompt. Pairs whose prompts differ in token count are left
      out, which a note of the task counts.
    - MIB: `prompt`, its answer and counterfactuals, as `published_pair` reads them. Rows that the tokenizer
      cannot use (an answer of several tokens, prompts of unequal length) are left out, with a warning.

    Args:
        path: The file, text in UTF-8; empty lines are skipped. Or a `datasets.Dataset`, or another map-style
            data set whose items are mappings.
        tokenizer: Needed for lines of text.
        n: Read only so many pairs, drawn at random; they keep their order. Default: all.
        seed: Root seed of that draw.
        bos: Begin every prompt with the tokenizer's beginning-of-sequence token; see `load_task`.
        chat: Make every prompt the user's turn of the tokenizer's chat template.
        answer_tokens: `one` or `first`; see `load_task`.
        columns: Key of a row -> the column that holds it, where the names differ.
        **options: `corruption` of MIB's rows (the counterfactual), and their `leading_space`.

    Raises:
        FileFormatError: If the file is missing or empty, or a line is malformed; file and line are named.
        InputError: If the rows do not take an option.
        MissingExtraError: If the file is parquet and pyarrow is not installed.
        TokenizationError: If a prompt or answer breaks a token rule; file and line are named.
    """
    if tokenizer is None and (chat or bos):
        raise TokenizationError(
            "chat=True and bos=True need the model's tokenizer; pass it, or leave them out"
        )
    tokens = None if tokenizer is None else Tokens(tokenizer, bos=bos, chat=chat, answer_tokens=answer_tokens)
    rows = read_rows(path, columns)
    if isinstance(path, str | Path):
        name, file = Path(path).stem, Path(path).name
    else:
        name, split = name_of(path)
        file = ", ".join((name, *split.values()))
    published = is_published(rows.record(rows.numbers[0]))
    for option in options:
        check_name("option of a task file", option, ("corruption", "leading_space") if published else ())
    if published:
        pairs = _usable(rows, tokens, n, seed, options)
    else:
        drawn = [rows.numbers[place] for place in draw_rows(len(rows.numbers), n, seed=seed, what="lines")]
        pairs = {number: _pair(rows.record(number), rows.where(number), whole=not bos) for number in drawn}
        if len({bool(clean.wrong) for clean, _ in pairs.values()}) == 2:
            raise FileFormatError(
                f"task file {rows.source}: only some lines have 'wrong' answers; give them on all or none"
            )
    rules = {"bos": False} if tokens is None else tokens.rules
    if all(prompt.whole for pair in pairs.values() for prompt in pair):
        rules["bos"] = False
    config: dict[str, Any] = {"task": name, "file": file, **rules, "n": len(pairs)}
    if options:
        config["options"] = dict(sorted(options.items()))
    if len(pairs) < len(rows.numbers):
        config["seed"] = seed
    try:
        task = _task(list(pairs.values()), tokens, name=name, config=config)
    except NoPairsError as error:
        raise NoPairsError(f"{rows.source}: {error}") from error
    except AssayError as error:
        raise TokenizationError(f"{_at_fault(rows, pairs, tokens)}: {error}") from error
    return replace(task, ids=torch.tensor(list(pairs))[task.ids])


def _task(pairs: Sequence[Pair], tokens: Tokens | None, **facts: Any) -> PairTask:
    clean, corrupted = zip(*pairs, strict=True)
    return pair_task(clean, corrupted, tokens, **{"name": "", **facts})


def _at_fault(rows: Rows, pairs: Mapping[int, Pair], tokens: Tokens | None) -> str:
    """The first row that makes no task by itself, as messages name it."""
    for number, pair in pairs.items():
        try:
            _task([pair], tokens)
        except NoPairsError:
            continue  # such a row would have been left out
        except AssayError:
            return rows.where(number)
    return str(rows.source)


def _pair(record: Mapping[str, Any], where: str, *, whole: bool) -> Pair:
    """Clean and corrupted prompt of one line."""
    missing = [key for key in _KEYS[:3] if key not in record]
    if missing:
        raise FileFormatError(
            f"{where}: no {' and no '.join(map(repr, missing))}; expected {_PAIR}, or their names with "
            "columns={'clean': 'COLUMN', ...}"
        )
    for key in ("clean", "corrupted"):
        if not (isinstance(record[key], str) or _all_ids(record[key])) or not record[key]:
            raise FileFormatError(
                f"{where}: {key!r} is {record[key]!r}; expected text or a list of token ids"
            )
    for key in ("answers", "wrong"):
        pieces = record.get(key) or []
        if not isinstance(pieces, list) or not all(isinstance(p, str) or _all_ids([p]) for p in pieces):
            raise FileFormatError(
                f"{where}: {key!r} is {pieces!r}; expected a list of continuations or token ids"
            )
    if not record["answers"]:
        raise FileFormatError(f"{where}: 'answers' is empty; give at least one correct continuation")
    fields = {key: value for key, value in record.items() if key not in _KEYS}
    other = {
        key.removeprefix("corrupted."): fields.pop(key)
        for key in list(fields)
        if key.startswith("corrupted.")
    }
    clean, corrupted = (
        Prompt(text=content) if isinstance(content, str) else Prompt(ids=tuple(content), whole=whole)
        for content in (record["clean"], record["corrupted"])
    )
    answers, wrong = tuple(record["answers"]), tuple(record.get("wrong") or ())
    return replace(clean, answers=answers, wrong=wrong, fields=fields), replace(corrupted, fields=other)


def _all_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(piece) is int and 0 <= piece < _LARGEST_ID for piece in value)


def _usable(
    rows: Rows, tokens: Tokens | None, n: int | None, seed: int, options: Mapping[str, Any]
) -> dict[int, Pair]:
    """`n` rows of MIB that the tokenizer can use, drawn without replacement, in the order of the file."""
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the rows")
    order = rows.numbers if n is None else stream(seed, "rows/sample").permutation(rows.numbers).tolist()
    kept: dict[int, Pair] = {}
    reasons: list[str] = []
    for number in order:
        if len(kept) == n:
            break
        where = rows.where(number)
        pair = published_pair(rows.record(number), where, **options)
        if pair is None:
            reasons.append(f"{where}: the counterfactual is empty")
            continue
        try:
            _task([pair], tokens)
            kept[number] = pair
        except AssayError as error:
            reasons.append(f"{where}: {error}")
    if not kept:
        raise TokenizationError(
            f"none of the {len(rows.numbers)} rows of {rows.source} can be used with this tokenizer. "
            f"{reasons[0]}"
        )
    if reasons:
        warnings.warn(
            f"{len(reasons)} of {len(reasons) + len(kept)} rows of {rows.source} are left out. {reasons[0]}",
            AssayWarning,
            stacklevel=4,
        )
    return dict(sorted(kept.items()))


def is_published(record: Mapping[str, Any]) -> bool:
    """Whether a row has the form of MIB."""
    return "prompt" in record and "clean" not in record


def published_pair(
    record: Mapping[str, Any],
    where: str,
    *,
    corruption: str | None = None,
    leading_space: bool | None = None,
) -> tuple[Prompt, Prompt] | None:
    """Clean and corrupted prompt of one row.

    The answer is as MIB's circuit track scores it: of a list of `choices` the one that `answerKey` names,
    against the other ones; of labelled `choices` the label, and without choices the row's `label`, against
    those of the counterfactual.

    Args:
        record: The row: `prompt`, its answer, and counterfactuals of the same form, each as
            `NAME_counterfactual` (or one as `counterfactual`).
        where: The row, for messages.
        corruption: NAME of the counterfactual. Default: MIB's choice (`s2_io_flip`, `symbol`, `random`), or
            the only one there is.
        leading_space: Whether answers begin with a space. Default: as MIB does, those of a list of choices
            only.

    Returns:
        The two prompts; None if the row has no such counterfactual but others of the file may have it.

    Raises:
        FileFormatError: If the row has another form.
        UnknownNameError: If it has no counterfactual of this name.

    References:
        Mueller et al. (2025), arXiv:2504.13151.
    """
    others = {key.removesuffix(_SUFFIX): record[key] for key in record if key.endswith(_SUFFIX)}
    others |= {"": record["counterfactual"]} if "counterfactual" in record else {}
    usual = [name for name in USUAL if name in others] or list(others)
    if corruption is not None:
        check_name(f"counterfactual of {where}", corruption.removesuffix(_SUFFIX), others)
    elif not others or (len(usual) > 1 and usual[0] not in USUAL):
        raise FileFormatError(
            f"{where}: there are {len(others)} counterfactuals ({', '.join(others)}); expected one, or "
            f"choose one with corruption=NAME: {_ROW}"
        )
    other = others[usual[0] if corruption is None else corruption.removesuffix(_SUFFIX)]
    if other is None or (isinstance(other, Mapping) and other.get("prompt") is None):
        return None
    prompts = [each.get("prompt") if isinstance(each, Mapping) else None for each in (record, other)]
    if not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise FileFormatError(f"{where}: the prompts are {prompts!r}; expected texts: {_ROW}")
    answer, wrong = _answer(record, where)
    listed = isinstance(record.get("choices"), list)
    if not listed:
        wrong = (_answer(other, f"{where}, counterfactual")[0],)
    space = " " if (listed if leading_space is None else leading_space) else ""
    clean = Prompt(
        text=str(prompts[0]),
        answers=(space + answer.lstrip(" "),),
        wrong=tuple(space + each.lstrip(" ") for each in wrong),
        fields=_fields(record),
    )
    return clean, Prompt(text=str(prompts[1]), fields=_fields(other))


def _answer(record: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    """The right answer of a prompt, and the other choices."""
    choices, key, label = (record.get(name) for name in ("choices", "answerKey", "label"))
    if choices is None and isinstance(label, str | int):
        return str(label), ()
    texts = choices.get("label") if isinstance(choices, Mapping) else choices
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise FileFormatError(f"{where}: 'choices' is {choices!r}, 'label' {label!r}; expected {_ROW}")
    if isinstance(key, str):
        places = [*texts, *map(str, range(len(texts)))]
        key = places.index(key) % len(texts) if key in places else None
    if type(key) is not int or not 0 <= key < len(texts):
        raise FileFormatError(
            f"{where}: 'answerKey' is {record.get('answerKey')!r}; expected 0 to {len(texts) - 1} or one of "
            f"{', '.join(texts)}"
        )
    return texts[key], (*texts[:key], *texts[key + 1 :])


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Facts about a prompt: its plain values, and those of its metadata."""
    metadata = record.get("metadata")
    facts = {**record, **(metadata if isinstance(metadata, Mapping) else {})}
    return {
        name: value
        for name, value in facts.items()
        if name != "prompt" and isinstance(value, str | int | float | bool)
    }

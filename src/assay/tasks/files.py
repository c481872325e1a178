"""Tasks from files: pairs of prompts, rows of MIB's data sets, multiple-choice questions."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from assay.core.errors import (
    AssayError,
    AssayWarning,
    FileFormatError,
    InputError,
    TokenizationError,
    check_name,
)
from assay.core.random import stream
from assay.tasks.choices import MultipleChoice, is_question, question_of
from assay.tasks.encoding import NoPairsError, pair_task
from assay.tasks.grammar import Prompt, Read
from assay.tasks.published import is_published, published_pair
from assay.tasks.rows import Rows, draw_rows, loaded_rows, name_of, read_rows
from assay.tasks.task import PairTask
from assay.tasks.tokens import Tokens


Pair = tuple[Prompt, Prompt]

_PAIR = '{"clean": "...", "corrupted": "...", "answers": [" ..."], "wrong": [" ..."]}'
_LARGEST_ID = 1 << 31
_KEYS = ("clean", "corrupted", "answers", "wrong", "positions")


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

    The keys of the first row tell which of three forms the rows have.

    - Pairs: `clean` and `corrupted` (text, or a list of token ids), `answers` and, if wanted, `wrong` (lists
      of continuations, each one token with its leading space, or of ids); every other key is a field. A key
      `corrupted.NAME` is a field of the corrupted prompt. With `positions` (numbers of the line's own tokens,
      whatever is put before them; negative ones from the end) a prompt is read at each of them; `answers` and
      `wrong` then hold a list for each. Pairs whose prompts differ in token count are left out, which a note
      of the task counts.
    - MIB: `prompt`, its answer and counterfactuals, as `published_pair` reads them. Rows that the tokenizer
      cannot use (an answer of several tokens, prompts of unequal length) are left out, with a warning.
    - Questions, as `question_of` reads them; each is asked once, with letters from the stream `questions`.

    Args:
        path: The file, text in UTF-8; empty lines are skipped. Or a data set, as `loaded_rows` takes it.
        tokenizer: Needed for lines of text.
        n: Read only so many pairs, drawn at random; they keep their order. Default: all.
        seed: Root seed of that draw, and of the letters of questions.
        bos: Begin every prompt with the tokenizer's beginning-of-sequence token; see `load_task`.
        chat: Make every prompt the user's turn of the tokenizer's chat template.
        answer_tokens: `one`, `first` or `each`; see `load_task`.
        columns: For a data set: key of a row -> the column that holds it.
        **options: `corruption` of MIB's rows (the counterfactual) and of questions; `leading_space` of MIB's
            rows; `letters` of questions.

    Raises:
        FileFormatError: If the file is missing or empty, or a line is malformed; file and line are named.
        InputError: If the rows do not take an option.
        MissingExtraError: If the file is parquet and pyarrow is not installed.
        TokenizationError: If a prompt or answer breaks a token rule; file and line are named.
    """
    tokens = None if tokenizer is None else Tokens(tokenizer, bos=bos, chat=chat, answer_tokens=answer_tokens)
    for name, asked in (("chat", chat), ("bos", bos)):
        if tokens is None and asked:
            raise TokenizationError(f"{name}=True needs the model's tokenizer; pass it, or leave {name} out")
    if isinstance(path, str | Path):
        _check_options({} if columns is None else {"columns": columns}, (), "a file")
        rows = read_rows(path, what="pairs", expected=_PAIR)
        name, file = Path(path).stem, Path(path).name
    else:
        rows = loaded_rows(path, columns=columns, expected=_PAIR)
        name, split = name_of(path)
        file = name if not split else f"{name}, {split['split']}"
    numbers = np.array(list(rows.contents), dtype=np.int64)
    first = rows.record(int(numbers[0]))
    if is_published(first):
        _check_options(options, ("corruption", "leading_space"), "a file of MIB's form")
        ids, pairs = _usable_rows(rows, numbers, tokens, n, seed, options)
    else:
        ids = numbers[draw_rows(len(numbers), n, seed=seed, what="lines")]
        if is_question(first):
            _check_options(options, ("corruption", "letters"), "a file of questions")
            pairs = _asked(rows, ids, tokens, seed, options)
        else:
            _check_options(options, (), "a task file")
            pairs = [_pair(rows.record(number), rows.where(number), whole=not bos) for number in ids.tolist()]
            _check_wrong(rows.path, pairs)
    told = {"bos": False} if tokens is None else tokens.rules
    if all(prompt.whole for pair in pairs for prompt in pair):
        told["bos"] = False
    config: dict[str, Any] = {"task": name, "file": file, **told, "n": len(pairs)}
    if options:
        config["options"] = dict(sorted(options.items()))
    if len(ids) < len(numbers) or is_question(first):
        config["seed"] = seed
    try:
        task = _task(pairs, tokens, name=name, config=config)
    except NoPairsError as error:
        raise NoPairsError(f"{rows.path}: {error}") from error
    except AssayError:
        for number, pair in zip(ids.tolist(), pairs, strict=True):
            try:
                _task([pair], tokens, name=name)
            except NoPairsError:
                continue  # another line is at fault
            except AssayError as error:
                raise TokenizationError(f"{rows.where(number)}: {error}") from error
        raise
    return replace(task, ids=torch.from_numpy(ids)[task.ids])


def _task(pairs: Sequence[Pair], tokens: Tokens | None, **facts: Any) -> PairTask:
    clean, corrupted = zip(*pairs, strict=True)
    return pair_task(clean, corrupted, tokens, **facts)


def _check_options(options: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    if options and not known:
        raise InputError(f"{what} takes no options; got {', '.join(sorted(options))}")
    for option in options:
        check_name(f"option of {what}", option, known)


# ------------------------------------------------------------------------------------------------- pairs


def _pair(record: Mapping[str, Any], where: str, *, whole: bool) -> Pair:
    """Clean and corrupted prompt of one line."""
    missing = [key for key in _KEYS[:3] if key not in record]
    if missing:
        raise FileFormatError(f"{where}: no {' and no '.join(map(repr, missing))}; expected {_PAIR}")
    for key in ("clean", "corrupted"):
        if not (isinstance(record[key], str) or _all_ids(record[key])) or not record[key]:
            raise FileFormatError(
                f"{where}: {key!r} is {record[key]!r}; expected text or a list of token ids"
            )
    reads = _reads(record, where) if "positions" in record else ()
    answers, wrong = ((), ()) if reads else (_pieces(record, key, where) for key in ("answers", "wrong"))
    if not (reads or answers):
        raise FileFormatError(f"{where}: 'answers' is empty; give at least one correct continuation")
    fields = {key: value for key, value in record.items() if key not in _KEYS}
    prefix = "corrupted."
    other = {key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)}
    own = {key: value for key, value in fields.items() if not key.startswith(prefix)}
    return (
        _prompt(record["clean"], whole, fields=own, answers=answers, wrong=wrong, reads=reads),
        _prompt(record["corrupted"], whole, fields=other),
    )


def _prompt(content: str | list[int], whole: bool, **facts: Any) -> Prompt:
    if isinstance(content, str):
        return Prompt(text=content, **facts)
    return Prompt(ids=tuple(content), whole=whole, **facts)


def _pieces(record: Mapping[str, Any], key: str, where: str) -> tuple[str | int, ...]:
    """The continuations under a key."""
    value = record.get(key, [])
    if not isinstance(value, list) or not all(isinstance(piece, str) or _all_ids([piece]) for piece in value):
        raise FileFormatError(f"{where}: {key!r} is {value!r}; expected a list of continuations or token ids")
    return tuple(value)


def _reads(record: Mapping[str, Any], where: str) -> tuple[Read, ...]:
    """Where a line is read, and what is right and wrong there."""
    places = record["positions"]
    if not isinstance(places, list) or not places or not all(type(place) is int for place in places):
        raise FileFormatError(
            f"{where}: 'positions' is {places!r}; expected a list of token numbers, e.g. [4, -1]"
        )
    known: dict[str, list[tuple[str | int, ...]]] = {"answers": [], "wrong": [()] * len(places)}
    for key in ("answers", "wrong"):
        value = record.get(key)
        if value is None and key == "wrong":
            continue
        if not isinstance(value, list) or len(value) != len(places):
            raise FileFormatError(
                f"{where}: {key!r} is {value!r}; with {len(places)} 'positions', expected a list of "
                f"{len(places)} lists of continuations"
            )
        known[key] = [_pieces({key: each}, key, where) for each in value]
    if not all(known["answers"]):
        raise FileFormatError(f"{where}: 'answers' has an empty list; give each position at least one")
    return tuple(
        Read(position=place, answers=answers, wrong=wrong)
        for place, answers, wrong in zip(places, *known.values(), strict=True)
    )


def _all_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(piece) is int and 0 <= piece < _LARGEST_ID for piece in value)


def _check_wrong(path: Path | str, pairs: Sequence[Pair]) -> None:
    have = {bool(clean.wrong) or any(read.wrong for read in clean.reads) for clean, _ in pairs}
    if len(have) == 2:
        raise FileFormatError(
            f"task file {path}: only some lines have 'wrong' answers; give them on all lines or on none"
        )


# --------------------------------------------------------------------------------------------- questions


def _asked(
    rows: Rows, ids: Int64[np.ndarray, " n"], tokens: Tokens | None, seed: int, options: Mapping[str, Any]
) -> list[Pair]:
    """Each question once; the letters of one do not depend on how many others are read."""
    if tokens is None:
        raise TokenizationError(f"{rows.path} holds questions, whose letters need the model's tokenizer")
    records = [rows.record(number) for number in ids.tolist()]
    questions = [
        question_of(each, number, rows.where(number))
        for each, number in zip(records, ids.tolist(), strict=True)
    ]
    grammar = MultipleChoice(tokens, questions=questions, **options)
    pairs = []
    for place, number in enumerate(ids.tolist()):
        rng = stream(seed, f"questions/{number}")
        pairs += grammar.pairs([grammar.render(grammar.asked(place, rng))], rng)
    return pairs


# --------------------------------------------------------------------------------------------------- MIB


def _usable_rows(
    rows: Rows,
    numbers: Int64[np.ndarray, " n_rows"],
    tokens: Tokens | None,
    n: int | None,
    seed: int,
    options: Mapping[str, Any],
) -> tuple[Int64[np.ndarray, " n"], list[Pair]]:
    """`n` rows that the tokenizer can use, drawn without replacement, in the order of the file."""
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the rows")
    order = numbers if n is None else stream(seed, "rows/sample").permutation(numbers)
    kept: dict[int, Pair] = {}
    reasons: list[str] = []
    for number in order.tolist():
        if n is not None and len(kept) == n:
            break
        where = rows.where(number)
        pair = published_pair(rows.record(number), where, **options)
        if pair is None:
            reasons.append(f"{where}: the counterfactual is empty")
            continue
        try:
            _task([pair], tokens, name="")
        except AssayError as error:
            reasons.append(f"{where}: {error}")
        else:
            kept[number] = pair
    if not kept:
        raise TokenizationError(
            f"none of the {len(numbers)} rows of {rows.path} can be used with this tokenizer. {reasons[0]}"
        )
    if reasons:
        warnings.warn(
            f"{len(reasons)} of {len(reasons) + len(kept)} rows of {rows.path} are left out. {reasons[0]}",
            AssayWarning,
            stacklevel=4,
        )
    ids = np.array(sorted(kept), dtype=np.int64)
    return ids, [kept[number] for number in ids.tolist()]

"""Tasks from files: pairs of prompts, and rows of MIB's data sets (a prompt, its answer, counterfactuals)."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
from assay.core.untrusted import parse_json, read_parquet_file
from assay.tasks.encoding import NoPairsError, Prompt, Tokens, pair_task
from assay.tasks.task import PairTask, draw_rows


Pair = tuple[Prompt, Prompt]

_PAIR = '{"clean": "...", "corrupted": "...", "answers": [" ..."], "wrong": [" ..."]}'
_LARGEST_ID = 1 << 31
# What the circuit track of MIB corrupts with, where a row has it.
_USUAL = ("s2_io_flip", "symbol", "random")
_SUFFIX = "_counterfactual"
_ROW = (
    '{"prompt": "...", "choices": [" ..."] or {"label": ["A"], ...}, "answerKey": 0, '
    '"NAME_counterfactual": {"prompt": "...", ...}}, with "label" instead of choices for numbers'
)


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
    tokens = Tokens(tokenizer, bos=bos, chat=chat, answer_tokens=answer_tokens)
    rows = _read_rows(path, columns or {})
    first = next(iter(rows.records.values()))
    published = "prompt" in first and "clean" not in first
    for option in options:
        check_name("option of a task file", option, ("corruption", "leading_space") if published else ())
    if published:
        pairs = _usable(rows, tokens, n, seed, options)
    else:
        numbers = [*rows.records]
        drawn = [numbers[place] for place in draw_rows(len(numbers), n, seed=seed, what="lines")]
        pairs = {number: _pair(rows.records[number], rows.where(number), whole=not bos) for number in drawn}
        if len({bool(clean.wrong) for clean, _ in pairs.values()}) == 2:
            raise FileFormatError(f"{rows.source}: only some lines have 'wrong' answers; give all or none")
    config: dict[str, Any] = {"task": rows.name, "file": rows.file, **tokens.rules, "n": len(pairs)}
    if all(prompt.whole for pair in pairs.values() for prompt in pair):
        config["bos"] = False
    if options:
        config["options"] = dict(sorted(options.items()))
    if len(pairs) < len(rows.records):
        config["seed"] = seed
    clean, corrupted = zip(*pairs.values(), strict=True)
    try:
        task = pair_task(clean, corrupted, tokens, name=rows.name, config=config)
    except NoPairsError as error:
        raise NoPairsError(f"{rows.source}: {error}") from error
    except AssayError as error:
        faults = ((number, _fault(pair, tokens)) for number, pair in pairs.items())
        # A row without a partner of its length would have been left out.
        bad = (number for number, fault in faults if fault and not isinstance(fault, NoPairsError))
        raise TokenizationError(f"{rows.where(next(bad))}: {error}") from error
    return replace(task, ids=torch.tensor(list(pairs))[task.ids])


def _fault(pair: Pair, tokens: Tokens) -> AssayError | None:
    """Why a row makes no task by itself."""
    try:
        pair_task(pair[:1], pair[1:], tokens, name="")
    except AssayError as error:
        return error
    return None


# ---- rows


class _Rows(NamedTuple):
    """Rows of a file or data set.

    Attributes:
        source: The file, or what messages call the data set.
        name: Name of the task.
        file: What its provenance says about where it came from.
        unit: What messages call a row.
        records: Number of each row, from 1, to the row; empty lines have none.
    """

    source: str
    name: str
    file: str
    unit: str
    records: Mapping[int, Mapping[str, Any]]

    def where(self, number: int) -> str:
        """A row, as messages name it."""
        return f"{self.source}, {self.unit} {number}"


def _read_rows(source: Any, columns: Mapping[str, str]) -> _Rows:
    """The rows of a JSON lines file, a parquet file, or a data set that is loaded already."""
    unit, path = "row", Path(source) if isinstance(source, str | Path) else None
    if path is None:
        loaded = check_loaded(source)
        plain = loaded.with_format(None) if hasattr(loaded, "column_names") else loaded
        name, split = name_of(source)
        place, file = f"data set {name}", ", ".join((name, *split.values()))
        rows = {number + 1: plain[number] for number in range(len(plain))}
    else:
        place, name, file = str(path), path.stem, path.name
        if path.suffix == ".parquet":
            rows = dict(enumerate(read_parquet_file(path, extra="parquet").to_pylist(), start=1))
        else:
            unit, rows = "line", _lines(path)
    if not rows:
        raise FileFormatError(f"task file {place} has no rows; expected one JSON object per {unit}")
    names = {column: name for name, column in columns.items()}
    records = {}
    for number, row in rows.items():
        if not isinstance(row, Mapping):
            text = f"{place}, {unit} {number}: got a {type(row).__name__}"
            raise FileFormatError(f"{text}; expected named columns, as an object of JSON")
        for column in columns.values():
            check_name(f"column of {place}", column, row)
        record = {names.get(str(column), str(column)): value for column, value in row.items()}
        # A text in one of these is the only one.
        texts = {key: [record[key]] for key in ("answers", "wrong") if isinstance(record.get(key), str)}
        records[number] = record | texts
    return _Rows(place, name, file, unit, records)


def _lines(path: Path) -> dict[int, Any]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"cannot read task file {path}: {error}") from error
    rows: dict[int, Any] = {}
    for number, line in enumerate(lines, start=1):
        try:
            rows |= {number: parse_json(line)} if line.strip() else {}
        except ValueError as error:
            raise FileFormatError(f"{path}, line {number}: not JSON ({error}); expected an object") from error
    return rows


def check_loaded(dataset: Any) -> Any:
    """The data set, if its rows have numbers.

    Raises:
        InputError: For several splits, a stream, anything else, and for no rows at all.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset))
        raise InputError(f"the data set is a {kind} of the splits {splits}; give one, e.g. dataset['train']")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        text = "expected a map-style data set (of PyTorch, or datasets.Dataset)"
        raise InputError(f"the data set is a {kind}, whose rows have no numbers; {text}")
    if len(dataset) == 0:
        raise InputError(f"the data set ({kind}) has no rows; give one that has some")
    return dataset


def name_of(dataset: object) -> tuple[str, dict[str, str]]:
    """What a data set is called, and its split, where it names one."""
    info = getattr(dataset, "info", None)
    name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
    split = getattr(dataset, "split", None)
    return str(name or type(dataset).__name__), {} if split is None else {"split": str(split)}


# ---- pairs


def _pair(record: Mapping[str, Any], where: str, *, whole: bool) -> Pair:
    """Clean and corrupted prompt of one line."""
    if missing := [key for key in ("clean", "corrupted", "answers") if key not in record]:
        text = f"{where}: no {' and no '.join(map(repr, missing))}; expected {_PAIR}"
        raise FileFormatError(f"{text}, or their names with columns={{'clean': 'COLUMN', ...}}")
    fields = dict(record)
    contents = {key: fields.pop(key) for key in ("clean", "corrupted")}
    scored = {key: fields.pop(key, None) or [] for key in ("answers", "wrong")}
    for key, value in contents.items():
        if not value or not (isinstance(value, str) or _all_ids(value)):
            raise FileFormatError(f"{where}: {key!r} is {value!r}; expected text or a list of token ids")
    for key, value in scored.items():
        if not isinstance(value, list) or not all(isinstance(p, str) or _all_ids([p]) for p in value):
            raise FileFormatError(f"{where}: {key!r} is {value!r}; expected a list of texts or token ids")
    if not scored["answers"]:
        raise FileFormatError(f"{where}: 'answers' is empty; give at least one correct continuation")
    clean, corrupted = (
        Prompt(text=content) if isinstance(content, str) else Prompt(ids=tuple(content), whole=whole)
        for content in contents.values()
    )
    others = [key for key in fields if key.startswith("corrupted.")]
    corrupted = replace(corrupted, fields={key[len("corrupted.") :]: fields.pop(key) for key in others})
    answers, wrong = map(tuple, scored.values())
    return replace(clean, answers=answers, wrong=wrong, fields=fields), corrupted


def _all_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(piece) is int and 0 <= piece < _LARGEST_ID for piece in value)


# ---- rows of MIB


def _usable(
    rows: _Rows, tokens: Tokens, n: int | None, seed: int, options: Mapping[str, Any]
) -> dict[int, Pair]:
    """`n` rows of MIB that the tokenizer can use, drawn without replacement, in the order of the file."""
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the rows")
    order = [*rows.records]
    if n is not None:
        order = stream(seed, "rows/sample").permutation(order).tolist()
    kept: dict[int, Pair] = {}
    reasons: list[str] = []
    for number in order:
        if len(kept) == n:
            break
        pair = published_pair(rows.records[number], rows.where(number), **options)
        fault = "the counterfactual is empty" if pair is None else _fault(pair, tokens)
        if fault or pair is None:
            reasons.append(f"{rows.where(number)}: {fault}")
        else:
            kept[number] = pair
    if not kept:
        text = f"none of the {len(rows.records)} rows of {rows.source} can be used with this tokenizer"
        raise TokenizationError(f"{text}. {reasons[0]}")
    if reasons:
        text = f"{len(reasons)} of {len(reasons) + len(kept)} rows of {rows.source} are left out"
        warnings.warn(f"{text}. {reasons[0]}", AssayWarning, stacklevel=4)
    return dict(sorted(kept.items()))


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
    others = {key.removesuffix(_SUFFIX): value for key, value in record.items() if key.endswith(_SUFFIX[1:])}
    usual = [name for name in _USUAL if name in others] or list(others)
    if corruption is None and (not others or (len(usual) > 1 and usual[0] not in _USUAL)):
        text = f"there are {len(others)} counterfactuals ({', '.join(others)})"
        raise FileFormatError(f"{where}: {text}; expected one, or choose one with corruption=NAME: {_ROW}")
    name = usual[0] if corruption is None else corruption.removesuffix(_SUFFIX)
    check_name(f"counterfactual of {where}", name, others)
    other = others[name]
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
    answers, wrong = (tuple(space + each.lstrip(" ") for each in texts) for texts in ((answer,), wrong))
    clean = Prompt(text=str(prompts[0]), answers=answers, wrong=wrong, fields=_fields(record))
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
        text = f"expected 0 to {len(texts) - 1} or one of {', '.join(texts)}"
        raise FileFormatError(f"{where}: 'answerKey' is {record.get('answerKey')!r}; {text}")
    return texts[key], (*texts[:key], *texts[key + 1 :])


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Facts about a prompt: its plain values, and those of its metadata."""
    metadata = record.get("metadata")
    facts = {**record, **(metadata if isinstance(metadata, Mapping) else {}), "prompt": None}
    return {name: value for name, value in facts.items() if isinstance(value, str | int | float | bool)}

"""Tasks from files: pairs of prompts, and rows of MIB's data sets (a prompt, its answer, counterfactuals)."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from assay.core.errors import AssayError, AssayWarning, FileFormatError, InputError, check_name
from assay.core.random import stream
from assay.core.untrusted import parse_json, read_parquet_file
from assay.tasks.encoding import Prompt, Tokens
from assay.tasks.task import NoPairsError, PairTask, draw_rows, pair_task


_PAIR = '{"clean": "...", "corrupted": "...", "answers": [" ..."], "wrong": [" ..."]}'
_LARGEST_ID = 1 << 31
_ROW = "'prompt', 'choices' with 'answerKey' (or 'label'), and 'NAME_counterfactual' of the same form"
_SUFFIX, _USUAL = "_counterfactual", ("s2_io_flip", "symbol", "random")  # what MIB's circuit track takes


def read_pairs(
    source: Any,
    tokenizer: Any = None,
    *,
    n: int | None = None,
    seed: int = 0,
    bos: bool | None = None,
    chat: bool = False,
    answer_tokens: str = "one",
    **options: Any,
) -> PairTask:
    """A task from a file with one JSON object per line, or a parquet file or a data set with one per row.

    The keys of the first row tell which of two forms the rows have.

    - Pairs: `clean` and `corrupted` (text, or a list of token ids), `answers` and, if wanted, `wrong` (lists
      of continuations, each one token with its leading space, or of ids; a text by itself is a list of one);
      every other key is a field. A key `corrupted.NAME` is a field of the corrupted prompt. Pairs whose
      prompts differ in token count are left out, which a note of the task counts.
    - MIB: `prompt`, its answer and counterfactuals, as `published_pair` reads them. Rows that the tokenizer
      cannot use (an answer of several tokens, prompts of unequal length) are left out, with a warning.

    Args:
        source: The file, text in UTF-8; empty lines are skipped. Or a `datasets.Dataset`, or another
            map-style data set whose items are mappings.
        tokenizer: Needed for lines of text.
        n: Read only so many pairs, drawn at random; they keep their order. Default: all.
        seed: Root seed of that draw.
        bos: Begin every prompt with the tokenizer's beginning-of-sequence token; see `load_task`.
        chat: Make every prompt the user's turn of the tokenizer's chat template.
        answer_tokens: `one` or `first`; see `load_task`.
        **options: `corruption` and `leading_space` of rows of MIB; see `published_pair`.

    Raises:
        FileFormatError: If the file is missing or empty, or a line is malformed; file and line are named.
        MissingExtraError: If the file is parquet and pyarrow is not installed.
        InputError: If an answer is also a wrong answer, or the rows do not take an option.
        TokenizationError: If a prompt or answer breaks a token rule; file and prompt are named.
    """
    tokens = Tokens(tokenizer, bos=bos, chat=chat, answer_tokens=answer_tokens)
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
    rows = {number: row if isinstance(row, Mapping) else {} for number, row in rows.items()}
    numbers, where = [*rows], f"{place}, {unit}"
    drawn = [numbers[at] for at in draw_rows(len(numbers), n, seed=seed, what="lines")]
    published = "prompt" in rows[numbers[0]] and "clean" not in rows[numbers[0]]
    for option in options:
        check_name("option of a task file", option, ("corruption", "leading_space") if published else ())
    if published:
        pairs = _usable(rows, where, n, seed, tokens, options)
    else:
        pairs = {number: _pair(rows[number], f"{where} {number}", whole=not bos) for number in drawn}
        if len({bool(clean.wrong) for clean, _ in pairs.values()}) == 2:
            raise FileFormatError(f"{place}: only some lines have 'wrong' answers; give all or none")
    config: dict[str, Any] = {"task": name, "file": file, **tokens.rules, "n": len(pairs)}
    config |= {"bos": False} if all(prompt.whole for pair in pairs.values() for prompt in pair) else {}
    config |= {"options": dict(sorted(options.items()))} if options else {}
    config |= {"seed": seed} if len(pairs) < len(rows) else {}
    clean, corrupted = zip(*pairs.values(), strict=True)
    try:
        task = pair_task(clean, corrupted, tokens, name=name, config=config)
    except AssayError as error:
        raise type(error)(f"{place}: {error}") from error
    bare = sum(_lacks_space(prompt, tokens) for prompt in clean if not published)
    note = f"{bare} of {len(clean)} answers begin without a space: 'Mary' and ' Mary' are different tokens"
    notes = (*task.notes, note) if bare else task.notes
    return replace(task, ids=torch.tensor([*pairs])[task.ids], notes=notes)


def _lacks_space(prompt: Prompt, tokens: Tokens) -> bool:
    """Whether the answer follows the prompt without the space with which it is another token."""
    word, joined = prompt.answers[0], bool(prompt.text[-1:].strip()) and not tokens.chat
    return joined and str(word)[:1].isalpha() and tokens.one_token(prompt.text, f" {word}") is not None


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


def _pair(row: Mapping[Any, Any], where: str, *, whole: bool) -> tuple[Prompt, Prompt]:
    """Clean and corrupted prompt of one line."""
    fields = {str(key): value for key, value in row.items()}
    if missing := [key for key in ("clean", "corrupted", "answers") if key not in fields]:
        raise FileFormatError(f"{where}: no {' and no '.join(map(repr, missing))}; expected {_PAIR}")
    prompts, scored = list[Prompt](), dict[str, Any]()
    for key in ("clean", "corrupted"):
        value = fields.pop(key)
        if not value or not (isinstance(value, str) or _all_ids(value)):
            raise FileFormatError(f"{where}: {key!r} is {value!r}; expected text or a list of token ids")
        text = isinstance(value, str)
        prompts.append(Prompt(text=value) if text else Prompt(ids=tuple(value), whole=whole))
    for key in ("answers", "wrong"):
        value = fields.pop(key, None) or []
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(
            isinstance(each, str) or _all_ids([each]) for each in value
        ):
            raise FileFormatError(f"{where}: {key!r} is {value!r}; expected a list of texts or token ids")
        scored[key] = tuple(value)
    if not scored["answers"]:
        raise FileFormatError(f"{where}: 'answers' is empty; give at least one correct continuation")
    others = [key for key in fields if key.startswith("corrupted.")]
    other = {key.removeprefix("corrupted."): fields.pop(key) for key in others}
    return replace(prompts[0], **scored, fields=fields), replace(prompts[1], fields=other)


def _all_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(piece) is int and 0 <= piece < _LARGEST_ID for piece in value)


# ---- rows of MIB


def _usable(
    rows: Mapping[int, Any], where: str, n: int | None, seed: int, tokens: Tokens, options: Mapping[str, Any]
) -> dict[int, tuple[Prompt, Prompt]]:
    """`n` rows that the tokenizer can use, drawn without replacement, in the order of the file."""
    order = [*rows] if n is None else stream(seed, "rows/sample").permutation([*rows]).tolist()
    kept, faults = dict[int, tuple[Prompt, Prompt]](), list[str]()
    while order and len(kept) != n:
        number = order.pop(0)
        try:
            pair = published_pair(rows[number], f"{where} {number}", **options)
            pair_task(pair[:1], pair[1:], tokens, name="")
            kept[number] = pair
        except InputError as error:
            faults.append(f"{where} {number}: {error}")
    if not kept:
        raise NoPairsError(f"none of the {len(rows)} rows can be used. {faults[0]}")
    if faults:
        text = f"{len(faults)} of {len(faults) + len(kept)} rows are left out. {faults[0]}"
        warnings.warn(text, AssayWarning, stacklevel=4)
    return dict(sorted(kept.items()))


def published_pair(
    row: Mapping[str, Any], where: str, *, corruption: str | None = None, leading_space: bool | None = None
) -> tuple[Prompt, Prompt]:
    """Clean and corrupted prompt of one row of MIB.

    The answer is as MIB's circuit track scores it: of a list of `choices` the one that `answerKey` names,
    against the other ones; of labelled `choices` the label, and without choices the row's `label`, against
    those of the counterfactual.

    Args:
        row: `prompt`, its answer, and counterfactuals of the same form, each as `NAME_counterfactual` (or one
            as `counterfactual`).
        where: The row, for messages.
        corruption: NAME of the counterfactual. Default: MIB's choice (`s2_io_flip`, `symbol`, `random`), or
            the only one there is.
        leading_space: Whether answers begin with a space. Default: as MIB does, those of a list of choices
            only.

    Raises:
        FileFormatError: If the row has another form.
        UnknownNameError: If it has no counterfactual of this name.
        NoPairsError: If that one is empty.

    References:
        Mueller et al. (2025), arXiv:2504.13151.
    """
    others = {str(key).removesuffix(_SUFFIX): row[key] for key in row if str(key).endswith(_SUFFIX[1:])}
    usual = [name for name in _USUAL if name in others][:1] or [*others]
    if corruption is None and len(usual) != 1:
        raise FileFormatError(f"{where}: give one counterfactual, or corruption=NAME of {[*others]}: {_ROW}")
    name = usual[0] if corruption is None else corruption.removesuffix(_SUFFIX)
    check_name("counterfactual", name, others)
    other = {} if others[name] is None else others[name]
    prompts: list[Any] = [each.get("prompt") if isinstance(each, Mapping) else "" for each in (row, other)]
    if prompts[1] is None:
        raise NoPairsError("the counterfactual is empty")
    if not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise FileFormatError(f"{where}: the prompts are {prompts!r}; expected texts: {_ROW}")
    answers, listed = _answers(row, where), isinstance(row.get("choices"), list)
    if not listed:
        answers = [answers[0], _answers(other, f"{where}, counterfactual")[0]]
    space = " " if (listed if leading_space is None else leading_space) else ""
    right, *wrong = (space + each.lstrip(" ") for each in answers)
    clean = Prompt(text=prompts[0], answers=(right,), wrong=tuple(wrong), fields=_facts(row))
    return clean, Prompt(text=prompts[1], fields=_facts(other))


def _answers(row: Mapping[str, Any], where: str) -> list[str]:
    """The right answer of a row, and behind it the other choices."""
    choices, key, label = (row.get(name) for name in ("choices", "answerKey", "label"))
    if choices is None and isinstance(label, str | int):
        return [str(label)]
    texts = choices.get("label") if isinstance(choices, Mapping) else choices
    texts = texts if isinstance(texts, list) and all(isinstance(each, str) for each in texts) else []
    named = {str(at): at for at in range(len(texts))} | {text: at for at, text in enumerate(texts)}
    at = named.get(key) if isinstance(key, str) else key
    if type(at) is not int or not 0 <= at < len(texts):
        raise FileFormatError(f"{where}: choices {choices!r}, key {key!r}, label {label!r}; expected {_ROW}")
    return [texts[at], *texts[:at], *texts[at + 1 :]]


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Facts about a prompt: its plain values, and those of its metadata."""
    facts = {**row, **(more if isinstance(more := row.get("metadata"), Mapping) else {}), "prompt": None}
    return {str(name): value for name, value in facts.items() if isinstance(value, str | int | float | bool)}


# ---- data sets that are loaded already


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

"""Text tasks by name or from a file: `load_task`."""

import contextlib
import inspect
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from assay.core.errors import AssayWarning, InputError, TokenizationError, check_name, unknown_name
from assay.core.random import stream
from assay.core.registry import Registry
from assay.tasks.digits import COLOUR_DIGITS, DIGIT_SWAPS
from assay.tasks.encoding import Tokens
from assay.tasks.files import read_pairs
from assay.tasks.grammar import Grammar
from assay.tasks.grammars import GRAMMARS
from assay.tasks.task import PairTask, draw_rows, pair_task


TASKS: Registry[type[Grammar]] = Registry("task", holds=Grammar, classes=True)
for _grammar in GRAMMARS:
    TASKS.add(_grammar.key, _grammar)

DEFAULT_N = 200
GENERATOR_VERSION = 1  # raised when the same options and seed draw other prompts than before


def is_task_file(name: str | PathLike[str]) -> bool:
    """Whether a task is named by a file, not by a registered key."""
    return Path(name).suffix in (".jsonl", ".parquet")


def load_task(
    name: Any,
    model: Any,
    *,
    n: int | None = None,
    seed: int = 0,
    bos: bool | None = None,
    chat: bool | None = None,
    answer_tokens: str | None = None,
    where: Mapping[str, Any] | None = None,
    **options: Any,
) -> PairTask:
    """A registered text task, or one from a file or a loaded data set, tokenised for a model.

    Clean prompts come from the stream `clean` of the seed, corruptions from the stream `corrupted`, so a
    longer draw begins with the shorter one.

    Args:
        name: Key of a registered task (`assay.list("tasks")`; `greater_than` and `greater-than` are the
            same), or the path of a `.jsonl` or `.parquet` file of pairs (`read_pairs`); or a
            `datasets.Dataset` or other map-style data set of such rows.
        model: A loaded model, or a tokenizer.
        n: Number of pairs. Default: 200, and all lines of a file. Of a file n lines are drawn at random, in
            their order (a file with fewer lines gives those, with a warning); `ids` are their line numbers.
        seed: Root seed of the draws.
        bos: Begin every prompt with the tokenizer's beginning-of-sequence token (BOS), or do not. Default: as
            the model has it (`assay.models.prompted`), else the ids of `tokenizer(text)`, without an end
            token behind them. A chat template begins its prompts itself, and token ids of a file are all that
            is read, unless True.
        chat: Make every prompt the user's turn of the tokenizer's chat template. The answer begins the next
            turn, without a leading space. Default: as the model has it (`assay.models.prompted`), else False.
        answer_tokens: `one`: answers are one token each. `first`: they are scored by their first token;
            pairs whose right and wrong ones begin with the same are left out, which a note of the task
            counts. Default: as the model has it, else `one`.
        where: Field to value: only the lines of a file that have these, of which `n` are drawn. Default: as
            the model has it, else all.
        **options: Arguments of the task's grammar, e.g. `corruption="s2_io_flip"`, `template_ids=[0, 1]`,
            `objects=["ring", "bone"]`; of rows of MIB, `corruption` and `leading_space`.

    Raises:
        UnknownNameError: If no task has this name, or an option has a value out of a fixed set.
        InputError: If `n` is below 1, or an option is unknown.
        TokenizationError: If a prompt or answer breaks a token rule; it is named.
        FileFormatError: If the file cannot be read; file and line are named.

    Example:
        >>> task = load_task("ioi", load_model("mini"), n=3)
        >>> task.length, task.slots["name1"].tolist()
        (15, [2, 2, 2])
    """
    if n is not None and n < 1:
        raise InputError(f"n is {n}; a task needs at least one pair")
    if getattr(model, "vision", None) is not None:
        raise InputError(f"{model.id} reads images, not prompts; use load_images(source, model)")
    if isinstance(model, str | Path):
        raise InputError(f"model is {str(model)!r}; give a loaded model, load_model(...), or a tokenizer")
    is_model = hasattr(model, "n_vocab")
    tokenizer = model.tokenizer if is_model else model
    asked = {"bos": bos, "chat": chat, "answer_tokens": answer_tokens, "where": where}
    rules = dict(getattr(model, "prompt_rules", {}))
    rules |= {key: value for key, value in asked.items() if value is not None}
    where = rules.pop("where", None)
    is_drawn = isinstance(name, str) and not is_task_file(name)
    key = name.replace("_", "-") if is_drawn and name not in TASKS else name
    if is_drawn and key not in TASKS:
        raise unknown_name("task", name, (*TASKS, "FILE.jsonl", "FILE.parquet"))
    for option in options if is_drawn else ():
        allowed = set(inspect.signature(TASKS[key]).parameters) - {"tokens"}
        check_name(f"option of task {key!r}", option, allowed)
    if not is_drawn:
        task = read_pairs(name, tokenizer, n=None if where else n, seed=seed, **rules, **options)
        if where:
            task = task.where(**where)
            task = task.subset(draw_rows(task.n, n, seed=seed, what="lines").tolist())
            task = replace(task, config={**task.config, "where": dict(where), "n": task.n, "seed": seed})
        if n is not None and n > (lines := task.config["n"]):
            text = f"holds {lines} pairs, fewer than the requested {n}; all of them are used"
            warnings.warn(f"{task.config['file']} {text}", AssayWarning, stacklevel=2)
    elif where:
        raise InputError(f"where chooses lines of a file, but {name} is drawn; use its options instead")
    elif tokenizer is None:
        raise TokenizationError(f"task {key!r} needs a tokenizer; pass load_model(tokenizer=...)")
    else:
        grammar = TASKS[key](Tokens(tokenizer, **rules), **options)
        task = draw_task(grammar, DEFAULT_N if n is None else n, seed=seed, options=options)
    if is_model:
        task.validate(model.n_vocab, model.n_positions)
    return task


def draw_task(
    grammar: Grammar, n: int, *, seed: int = 0, options: Mapping[str, Any] | None = None
) -> PairTask:
    """`n` pairs of a grammar: clean prompts of the stream `clean`, corrupted with the stream `corrupted`."""
    pairs = grammar.pairs(grammar.draw(n, stream(seed, "clean")), stream(seed, "corrupted"))
    clean, corrupted = zip(*pairs, strict=True)
    config = {
        "task": grammar.key,
        "generator_version": GENERATOR_VERSION,
        "corruption": grammar.corruption,
        "options": json.loads(json.dumps(dict(sorted((options or {}).items())), default=list)),
        **grammar.tokens.rules,
        "n": n,
        "seed": seed,
    }
    task = pair_task(clean, corrupted, grammar.tokens, name=grammar.key, grammar=grammar, config=config)
    return replace(task, notes=(*grammar.notes, *task.notes))


def digits_source(source: Any) -> dict[str, Any] | None:
    """Arguments of `digits_task` if a source of images is `colour-digits[:AGREEMENT[/SWAP]]`, else None.

    Raises:
        InputError: If the agreement is not a probability.
        UnknownNameError: If there is no such swap.

    Example:
        >>> digits_source("colour-digits:0.5/digit")
        {'agreement': 0.5, 'swap': 'digit'}
    """
    name, _, rest = str(source).partition(":")
    if name != COLOUR_DIGITS:
        return None
    share, _, swap = rest.partition("/")
    named: dict[str, Any] = {}
    if share:
        with contextlib.suppress(ValueError):
            named["agreement"] = float(share)
        if not 0 <= named.get("agreement", -1) <= 1:
            raise InputError(f"{source!r}: expected a probability, e.g. {COLOUR_DIGITS}:0.5/colour")
    if swap:
        check_name("swap of coloured digits", swap, DIGIT_SWAPS)
        named["swap"] = swap
    return named

"""Inputs from outside the grammar: the user's own words and templates, run like the rest, reported apart."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from assay.analyses.worst_case.attack import PREFIX as CERTIFIED
from assay.analyses.worst_case.attack import run_sample
from assay.analyses.worst_case.pair_divergence import Divergence, Kernel
from assay.analyses.worst_case.result import WorstCase
from assay.analyses.worst_case.row_by_row import edge_ablation
from assay.analyses.worst_case.rows import WorstPair, pieces_of
from assay.analyses.worst_case.sampling import INPUTS, check_lengths, sample_pairs
from assay.circuits import Circuit
from assay.circuits.given import takes_text
from assay.core.errors import FileFormatError, InputError, check_name
from assay.core.record import Record, same
from assay.models import Model
from assay.stats import summarize
from assay.tasks import Grammar, PairTask, Prompt, load_task


PREFIX = "outside:"  # streams of their own: nothing here is part of a certified sample
PERCENTILES = ("p50", "p95", "p99")
SHOWN_PAIRS = 10
CORRUPTED = ("changed", "ordinary")  # where corrupted inputs may come from


@dataclass(frozen=True, kw_only=True)
class FillerRow(Record):
    """What the pairs of one own filler diverge by.

    Attributes:
        option: The option that named it, e.g. `objects`.
        filler: The word or template.
        known: Whether the task's own list has it too.
        side: `clean` or `corrupted`: where it stands.
        n_inputs: Distinct inputs of that side that show it.
        n_pairs: Distinct pairs with such an input.
        mean: Mean divergence of these pairs; NaN without any.
        p50, p95, p99, max: Percentiles (type 7); None where less than one of the pairs lies beyond.
    """

    option: str
    filler: str
    known: bool
    side: str
    n_inputs: int
    n_pairs: int
    mean: float
    p50: float | None
    p95: float | None
    p99: float | None
    max: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Outside(Record):
    """A circuit on inputs that the task's grammar does not produce, beside ordinary inputs.

    Attributes:
        options: What was changed about the grammar.
        result: Divergences on the changed inputs.
        ordinary: Divergences on as many inputs of the task as it is.
        fillers: One row per own filler and side it stands on.
        warnings: What was dropped, and why.
    """

    record_layout = {
        "options": "options",
        "n_clean": "result.sample.clean.distinct.first_index.size",
        "n_corrupted": "result.sample.corrupted.distinct.first_index.size",
        "n_pairs": "result.n_distinct_pairs",
        "unit": "result.unit",
        "summary": "result.statistics.absolute",
        "anchor": "result.anchor.absolute",
        "argmax_differs": "result.share_argmax_differs",
        "ordinary": "ordinary.statistics.absolute",
        "ordinary_argmax_differs": "ordinary.share_argmax_differs",
        **same("fillers", "worst", "warnings", "note"),
    }
    note = "from outside the grammar: no percentile or certificate of the task speaks of them"

    options: Mapping[str, Any]
    result: WorstCase
    ordinary: WorstCase
    fillers: tuple[FillerRow, ...]
    warnings: tuple[str, ...]

    def worst(self, k: int = SHOWN_PAIRS) -> tuple[WorstPair, ...]:
        """The k worst pairs of the changed inputs."""
        return self.result.worst(min(k, self.result.n_distinct_pairs))

    def __repr__(self) -> str:
        own, ordinary = self.result.summary()["absolute"], self.ordinary.summary()["absolute"]
        return (
            f"Outside({', '.join(self.options)}; mean {own['mean']:.4g}, max {own['max']:.4g}; ordinary mean "
            f"{ordinary['mean']:.4g}, max {ordinary['max']:.4g} {self.result.unit})"
        )


@takes_text(untouched=("task",), reads=True)
def outside_grammar(
    circuit: Circuit,
    model: Model,
    task: PairTask | str | Path,
    *,
    n_clean: int = 200,
    n_corrupted: int = 200,
    ablation: str = "resample",
    corrupted: Literal["changed", "ordinary"] = "changed",
    seed: int = 0,
    divergence: str | Divergence | Kernel = "kl",
    **options: Any,
) -> Outside:
    """How far a circuit departs from its model on your own words or templates.

    The task's grammar with some of its options replaced, all pairs of `n_clean` clean and `n_corrupted`
    corrupted inputs drawn from it, beside as many of the task as it is.

    Args:
        circuit: Edges to keep.
        model: The model.
        task: Key of a registered task, or a task drawn from one; its other options stay.
        n_clean: Clean inputs.
        n_corrupted: Corrupted inputs.
        ablation: What cut edges carry, as for `worst_case`; means are those of `worst_case` with this seed,
            over ordinary prompts. Without a second input, `n_clean` prompts are run one by one.
        corrupted: Draw the corrupted inputs from the changed grammar too, or from the task as it is.
        seed: Root seed; the streams begin with `outside:`.
        divergence: As for `worst_case`.
        **options: Arguments of the task's grammar: `objects=["hammer"]`, `names=[...]`, `templates=[...]`,
            `nouns=[...]`. A `Path` is read with `read_words`.

    Returns:
        Both runs and a row per own filler.

    Raises:
        InputError: If no option is given, the task has no grammar, or clean and corrupted prompts differ in
            length.
        UnknownNameError: If the task has no such option, or `corrupted` is another word.
        TokenizationError: If too few of the words are single tokens of the model.

    Notes:
        Words that the tokenizer splits or does not know are left out with a warning, as always.

    Example:
        >>> model = load_model("mini")
        >>> circuit = Circuit.full(model.graph)
        >>> words = ["book", "letter"]
        >>> tried = outside_grammar(circuit, model, "ioi", n_clean=8, n_corrupted=3, objects=words)
        >>> [(row.filler, row.side) for row in tried.fillers if row.side == "clean"]
        [('book', 'clean'), ('letter', 'clean')]
    """
    check_name("source of corrupted inputs", corrupted, CORRUPTED)
    if not options:
        raise InputError('the task is unchanged; give your own words, e.g. objects=["hammer"]')
    usual = _ordinary_task(model, task)
    words = {name: read_words(value) if isinstance(value, Path) else value for name, value in options.items()}
    changed, dropped = _changed_task(model, usual, words)
    single = not edge_ablation(ablation).paired
    if single and corrupted == "ordinary":
        raise InputError(f"{ablation!r} ablation reads no corrupted prompts; remove corrupted='ordinary'")
    protocol = INPUTS if single else "all"
    redrawn = _redrawn(model, usual)
    prompts = [
        sample_pairs(each, protocol, n_clean, n_corrupted, ablation=ablation, seed=seed, prefix=PREFIX)
        for each in (changed, redrawn)
    ]
    if prompts[0].reference is not None:
        usual_values = sample_pairs(redrawn, protocol, 1, 1, ablation=ablation, seed=seed, prefix=CERTIFIED)
        prompts = [replace(each, reference=usual_values.reference) for each in prompts]
    if corrupted == "ordinary":
        prompts[0] = replace(prompts[0], corrupted=prompts[1].corrupted)
        check_lengths(prompts[0])
    result, ordinary = (run_sample(circuit, model, sample, divergence=divergence) for sample in prompts)
    assert changed.grammar is not None
    assert usual.grammar is not None
    return Outside(
        options=words,
        result=result,
        ordinary=ordinary,
        fillers=tuple(_filler_rows(result, words, changed.grammar, usual.grammar)),
        warnings=dropped,
    )


def read_words(path: Path) -> tuple[str, ...]:
    """Words of a text file, one per line; empty lines and lines that begin with # are skipped.

    Raises:
        FileFormatError: If the file cannot be read, or holds no word.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FileFormatError(f"cannot read word list {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"word list {path} is not UTF-8 text: {error}") from error
    words = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not words:
        raise FileFormatError(f"word list {path} is empty; write one word per line")
    return words


def unused_words(task: PairTask) -> tuple[str, ...]:
    """Words that are one token of the model's vocabulary and are in none of the task's lists.

    What could be tried in a slot: letters only, one token after a space; capitals first (names), then
    alphabetically.

    Raises:
        InputError: If the task has no grammar.
    """
    if task.grammar is None:
        raise InputError(f"task {task.name!r} has no grammar, so it has no word lists to compare with")
    tokens = task.grammar.tokens
    used = {word for value in vars(task.grammar).values() for word in _words(value)}
    words = {
        text[1:]
        # The second of two, since decoding sets no space before the first of a text.
        for text in (pieces_of([i, i], tokens.tokenizer)[1] for i in tokens.ordinary_ids)
        if re.fullmatch(r" [A-Za-z]+", text)
    }
    return tuple(sorted(word for word in words - used if len(word) > 1))


def _ordinary_task(model: Model, task: PairTask | str | Path) -> PairTask:
    if isinstance(task, str | Path):
        task = load_task(task, model, n=1)
    if task.grammar is None:
        raise InputError(
            f"task {task.name!r} has no grammar whose words could be replaced; name a registered task, or "
            "write the prompts to a file and use protocol 'file'"
        )
    return task


def _redrawn(model: Model, task: PairTask, **changed: Any) -> PairTask:
    """The task with some options replaced; what it holds does not matter, only its grammar is drawn from."""
    assert task.grammar is not None
    options = {**task.config.get("options", {}), **changed}
    corruption = options.pop("corruption", task.grammar.corruption)
    return load_task(
        task.grammar.key, model, n=1, **task.grammar.tokens.rules, corruption=corruption, **options
    )


def _changed_task(
    model: Model, usual: PairTask, given: Mapping[str, Any]
) -> tuple[PairTask, tuple[str, ...]]:
    """The task with its own words, and what was said about them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        changed = _redrawn(model, usual, **given)
    for warning in caught:
        warnings.warn(warning.message, category=warning.category, stacklevel=3)
    return changed, tuple(str(warning.message) for warning in caught)


def _filler_rows(
    result: WorstCase, given: Mapping[str, Any], changed: Grammar, usual: Grammar
) -> Iterator[FillerRow]:
    for option, value in given.items():
        usable = set(_words(getattr(changed, option, value)))
        own = set(_words(getattr(usual, option, ())))
        for filler in dict.fromkeys(_words(value)):
            if filler not in usable:
                continue
            sides = (result.sample.clean, result.sample.corrupted)[: result.divergence.ndim]
            for axis, side in enumerate(sides):
                rows = np.flatnonzero([_shows(prompt, filler, changed) for prompt in side.prompts or ()])
                if not len(rows):
                    continue
                values = result.divergence.take(rows, axis=axis).ravel()
                n_inputs = len(np.unique(side.distinct.inverse[rows]))
                other = (result.sample.corrupted, result.sample.clean)[axis]
                n_pairs = n_inputs * (1 if len(sides) == 1 else len(other.distinct.first_index))
                numbers = summarize(values).resolved(n_pairs).absolute
                yield FillerRow(
                    option=option,
                    filler=filler,
                    known=filler in own,
                    side=("clean", "corrupted")[axis],
                    n_inputs=n_inputs,
                    n_pairs=n_pairs,
                    mean=float(values.mean()),
                    max=float(values.max()),
                    **{name: numbers[name] for name in PERCENTILES},
                )


def _words(value: Any) -> Iterator[str]:
    """All texts in a filler list, of pairs and groups too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _words(each)
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        for each in value:
            yield from _words(each)


def _shows(prompt: Prompt, filler: str, grammar: Grammar) -> bool:
    """Whether a prompt is filled with a word, or made from a template."""
    if "{" in filler:
        templates = getattr(grammar, "templates", {0: getattr(grammar, "template", "")})
        return bool(templates.get(prompt.values.get("template_id", 0)) == filler)
    chosen = filler in set(_words(prompt.values)) or filler in set(_words(prompt.fields))
    return chosen and re.search(rf"(?<!\w){re.escape(filler)}(?!\w)", prompt.text) is not None

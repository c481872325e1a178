"""Which prompts or images a circuit is found on, and which others it is measured on."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.circuits import Circuit
from assay.circuits.naming import IMAGES
from assay.core.errors import AssayWarning, InputError
from assay.core.random import stream
from assay.models import Model
from assay.tasks import TASKS, ImageTask, PairTask, Task, digits_source, is_task_file, load_images, load_task
from assay.tasks.examples import seen_prompts
from assay.tasks.load import DEFAULT_N
from assay.tasks.task import prompt_tokens


FEWEST_PER_HALF = 20  # distinct prompts below which a task is not divided
DISCOVER, MEASURE = "discover", "measure"  # what prompts are drawn for
N, N_FULL = 100, 200  # prompts or images of either draw of an audit


@dataclass(frozen=True, kw_only=True, eq=False)
class Division:
    """Two sets of examples of one task.

    Attributes:
        discovery: What scores and size are chosen on.
        measured: What everything reported is measured on.
        held_out: Whether no example is in both; False where both are the same task.
    """

    discovery: Task
    measured: Task
    held_out: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnPrompts(Division):
    """Two sets of prompts of one task."""

    discovery: PairTask
    measured: PairTask


def warn_same(draws: Division, enough: str = f"{2 * FEWEST_PER_HALF} or more distinct prompts") -> None:
    """Warn about a circuit that is measured where it was found; `enough` examples would be divided."""
    if not draws.held_out:
        kind = "prompts" if isinstance(draws.measured, PairTask) else "images"
        warnings.warn(
            f"the circuit of {draws.measured.name!r} is measured on the {kind} that it was found on, so its "
            f"numbers are optimistic; {enough} are divided into halves",
            AssayWarning,
            stacklevel=3,
        )


def draw_prompts(
    model: Model,
    task: PairTask | str,
    *,
    n: int | None,
    seed: int,
    discover_on: PairTask | str | Path | None = None,
    measure_on: PairTask | str | Path | None = None,
) -> DrawnPrompts:
    """Prompts to discover on and, where there are enough, other prompts to measure on.

    A registered task is drawn once with 2 n prompts. Its distinct prompts are dealt in order of appearance:
    to discovery until that has n rows, the rest is held out; where few distinct prompts exist, half of
    them go to each side.

    Of a file or a task of your own, the distinct clean prompts are dealt at random to two halves; pairs of
    one clean prompt stay together. With fewer than 20 distinct prompts per half all of them serve for both.
    What is drawn is in random order.

    Args:
        model: Tokenises the prompts.
        task: Key of a registered task, a JSONL file or a task.
        n: Prompts of each set; of a registered task, repeated prompts can shift a few rows from one set to
            the other. Default: 200, and all prompts of a file or of a task of your own.
        seed: Root seed of the draw.
        discover_on: File or task to discover on, instead of a part of `task`; `task` is then measured on.
        measure_on: File or task to measure on, instead of a part of `task`.

    Raises:
        InputError: If a clean prompt is on both sides.
    """
    if discover_on is not None or measure_on is not None:
        sources = (task if each is None else each for each in (discover_on, measure_on))
        parts = zip(sources, (DISCOVER, MEASURE), strict=True)
        return _apart(*(_part(model, source, part, n=n, seed=seed) for source, part in parts))
    if _registered(task):
        return _drawn(model, str(task), n or DEFAULT_N, seed)
    whole = task if isinstance(task, PairTask) else load_task(task, model)
    keys = prompt_tokens(whole.clean, whole.lengths)
    distinct = list(dict.fromkeys(keys))
    if len(distinct) < 2 * FEWEST_PER_HALF:
        both = _sample(whole, range(whole.n), n, seed, "both")
        return DrawnPrompts(discovery=both, measured=both, held_out=False)
    order = stream(seed, "halves").permutation(len(distinct))
    first = {distinct[place] for place in order[: len(distinct) // 2].tolist()}
    rows = [[row for row, key in enumerate(keys) if (key in first) is side] for side in (True, False)]
    discovery, measured = (
        _sample(whole, each, n, seed, part) for each, part in zip(rows, (DISCOVER, MEASURE), strict=True)
    )
    return DrawnPrompts(discovery=discovery, measured=measured, held_out=True)


def prompts_to_measure(
    model: Model,
    task: str,
    *,
    n: int | None,
    seed: int,
    measure_on: str | Path | None = None,
    drawn: int = DEFAULT_N,
    circuit: object = None,
) -> PairTask:
    """Prompts to measure a circuit on that was found before: others than those it was found on.

    Prompts that the record of an edge circuit lists are left out, where at least 20 others (of a registered
    task as many as asked for) remain; else all serve, and `assay.tasks.examples.found_on` tells that of them.

    Args:
        model: Tokenises the prompts.
        task: Key of a registered task or a JSONL file.
        n: Prompts. Default: `drawn`, and all of a file.
        seed: Root seed of the draw.
        measure_on: File to measure on instead.
        drawn: Prompts of a registered task unless `n` is given.
        circuit: What is to be measured; only an edge circuit tells where it was found.
    """
    source = task if measure_on is None else measure_on
    provenance = circuit.provenance if isinstance(circuit, Circuit) else {}
    if _registered(source):
        return _unseen_drawn(model, str(source), provenance, n=n or drawn, seed=seed)
    whole = load_task(source, model)
    fresh = np.flatnonzero(~seen_prompts(provenance, whole)).tolist()
    prompts = prompt_tokens(whole.clean, whole.lengths)
    if len(fresh) == whole.n or len({prompts[row] for row in fresh}) < FEWEST_PER_HALF:
        return _sample(whole, range(whole.n), n, seed, MEASURE)
    note = (
        f"{whole.n - len(fresh)} of the {whole.n} prompts of {whole.name!r} are skipped, because the "
        "circuit was found on them"
    )
    return replace(_sample(whole, fresh, n, seed, MEASURE), notes=(*whole.notes, note))


def _unseen_drawn(
    model: Model, task: str, provenance: Mapping[str, object], *, n: int, seed: int
) -> PairTask:
    """`n` prompts of a registered task that a circuit was not found on, or a plain draw if too few exist."""
    plain = load_task(task, model, n=n, seed=seed)
    drawn = plain
    for _ in range(4):
        fresh = np.flatnonzero(~seen_prompts(provenance, drawn)).tolist()
        if len(fresh) >= n:
            return drawn if len(fresh) == drawn.n == n else drawn.subset(fresh[:n])
        drawn = load_task(task, model, n=4 * drawn.n, seed=seed)
    return plain


def _registered(task: PairTask | str | Path) -> bool:
    return isinstance(task, str) and task.replace("_", "-") in TASKS


def _drawn(model: Model, task: str, n: int, seed: int) -> DrawnPrompts:
    """Two sets of one draw of a registered task."""
    both = load_task(task, model, n=2 * n, seed=seed)
    _, group = np.unique(both.clean.numpy(), axis=0, return_inverse=True)
    prompts: dict[int, list[int]] = {}
    for row, prompt in enumerate(group.ravel().tolist()):
        prompts.setdefault(prompt, []).append(row)
    rows: list[int] = []
    for place, members in enumerate(prompts.values()):
        if len(rows) >= n or (place and 2 * place >= len(prompts)):
            break
        rows += members
    others = sorted(set(range(both.n)) - set(rows))
    if not others:
        return DrawnPrompts(discovery=both, measured=both, held_out=False)
    return DrawnPrompts(discovery=both.subset(sorted(rows)), measured=both.subset(others), held_out=True)


def _part(model: Model, task: PairTask | str | Path, part: str, *, n: int | None, seed: int) -> PairTask:
    """The pairs of a task for one purpose."""
    if isinstance(task, str) and _registered(task):
        return load_task(task, model, n=n, seed=seed)
    whole = task if isinstance(task, PairTask) else load_task(task, model)
    return _sample(whole, range(whole.n), n, seed, part)


def _sample(task: PairTask, rows: Sequence[int], n: int | None, seed: int, part: str) -> PairTask:
    """`n` of these rows in random order: later stages take the first of them where all cost too much.

    A task of which nothing is left out stays as it is, so that its data hash is that of the file.
    """
    if n is not None and n > len(rows):
        purpose = "discover and measure" if part == "both" else part
        warnings.warn(
            f"{task.name!r} has {len(rows)} prompts to {purpose} on, fewer than the requested {n}; all of "
            "them are used",
            AssayWarning,
            stacklevel=3,
        )
    if len(rows) == task.n and (n is None or n >= task.n):
        return task
    order = stream(seed, f"{part} on").permutation(len(rows))
    return task.subset([rows[place] for place in order[:n].tolist()])


def _apart(discovery: PairTask, measured: PairTask) -> DrawnPrompts:
    """Two sets that the user has divided.

    Raises:
        InputError: If they share a clean prompt.
    """
    first, second = (prompt_tokens(each.clean, each.lengths) for each in (discovery, measured))
    if shared := {*first} & {*second}:
        row = next(row for row, key in enumerate(second) if key in shared)
        text = "" if measured.texts is None else f", such as {measured.texts[row]!r}"
        raise InputError(
            f"{len(shared)} prompts to measure on are also prompts to discover on{text}; keep each clean "
            "prompt on one side"
        )
    return DrawnPrompts(discovery=discovery, measured=measured, held_out=True)


# ---- prompts or images ---------------------------------------------------------------------------


def draw_inputs(
    model: Model, task: ImageTask | str, *, n: int | None, seed: int, skip_bad: bool = False
) -> Division:
    """Examples to discover on and others to measure on, where there are others.

    Args:
        model: What reads them.
        task: Key of a registered task, a JSONL file, `images:SOURCE` with what `assay.load_images` takes, a
            name of coloured digits, or images.
        n: Examples of each set. Of images 2 n are taken and halved; where there are fewer, all serve for
            both, with a warning.
        seed: Root seed of the draw.
        skip_bad: Leave out image files that cannot be decoded, with a warning.
    """
    if isinstance(task, ImageTask):
        return _halves(task, max(task.n // 2, FEWEST_PER_HALF) if n is None else n, seed)
    images = _images_named(task, model)
    if images is not None or _of_planted(task, model):
        n = DEFAULT_N if n is None else n
        both = read_inputs(task, images, model, n=2 * n, seed=seed, skip_bad=skip_bad)
        return _halves(both, n, seed)
    draws = draw_prompts(model, task, n=n, seed=seed)
    warn_same(draws)
    return draws


def _of_planted(task: str, model: Model) -> bool:
    """Whether a task means the examples of a planted model."""
    return model.id.startswith("planted:") and task in ("ioi", "planted")


def _images_named(task: str, model: Model) -> str | None:
    """What `assay.load_images` takes, where a task names images; to a model of digits the usual task does."""
    if task == "ioi" and model.id == "colour-digits":
        return "colour-digits"
    return task.removeprefix(IMAGES) if task.startswith(IMAGES) or digits_source(task) is not None else None


def _halves(both: Task, n: int, seed: int) -> Division:
    """Two random halves: a folder lists its classes one after the other."""
    if both.n < 2 * n:
        draws = Division(discovery=both, measured=both, held_out=False)
        warn_same(draws, f"{2 * n} or more images, of which there are {both.n},")
        return draws
    order = stream(seed, "halves").permutation(both.n)[: 2 * n]
    discovery, measured = (both.subset(sorted(rows.tolist())) for rows in (order[:n], order[n:]))
    return Division(discovery=discovery, measured=measured, held_out=True)


def read_inputs(
    task: str, images: str | None, model: Model, *, n: int | None, seed: int, skip_bad: bool = False
) -> Task:
    """Prompts of a task, or images where they are named; what `--task` and `--images` mean.

    Args:
        task: Key of a registered task, a JSONL file, or a name of coloured digits. For a planted model the
            default `ioi` means its own examples, for `colour-digits` its own digits.
        images: Where images come from, instead of `task`.
        model: What reads them.
        n: Examples; default: 200, all of a file.
        seed: Root seed of the draw.
        skip_bad: Leave out image files that cannot be decoded, with a warning.
    """
    if images is None and _of_planted(task, model):
        from assay.analyses.benchmark import planted_task
        from assay.models.planted import planted_model

        return planted_task(planted_model(model.id.removeprefix("planted:")), n or 64, seed)
    if images is None and (images := _images_named(task, model)) is None:
        # Of a file read whole nothing is drawn; the seed still drives what is done with it.
        whole = n is None and is_task_file(task)
        read: Task = load_task(task, model, n=n, seed=0 if whole else seed)
    else:
        read = load_images(images, model, n=n, seed=seed, skip_bad=skip_bad)
    for note in read.notes:
        warnings.warn(note, AssayWarning, stacklevel=2)
    return read


def divide(
    model: Model,
    task: Task | str,
    *,
    n: int | None = None,
    full: bool = False,
    seed: int = 0,
    skip_bad: bool = False,
    **apart: Any,
) -> Division:
    """Examples to discover on and others to measure on; the arguments are those of `audit`."""
    task = task.for_model(model).held() if isinstance(task, ImageTask) else task
    named = isinstance(task, str) and (_images_named(task, model) is not None or _of_planted(task, model))

    def draw(count: int | None) -> Division:
        if isinstance(task, PairTask) or not (named or isinstance(task, ImageTask)):
            return draw_prompts(model, task, n=count, seed=seed, **apart)
        return draw_inputs(model, task, n=count, seed=seed, skip_bad=skip_bad)

    whole = draw(n)
    there = max(whole.discovery.n, whole.measured.n)
    if isinstance(task, str) and task.replace("_", "-") in TASKS:
        there = min(there, N_FULL)  # a generator's repeated prompts make one half somewhat larger
    return whole if n or full or there <= N else draw(N)

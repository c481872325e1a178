"""Examples by name: prompts or images, to find a circuit on and to measure it on."""

import warnings
from dataclasses import replace
from pathlib import Path

from assay.circuits.given import IMAGES
from assay.core.errors import AssayWarning
from assay.core.random import stream
from assay.models import Model
from assay.pipeline.prompts import FEWEST_PER_HALF, Division, draw_prompts, same_note
from assay.tasks import (
    TASKS,
    ImageStream,
    ImageTask,
    PairTask,
    Task,
    digits_source,
    is_task_file,
    load_images,
    load_task,
)
from assay.tasks.load import DEFAULT_N


N, N_FULL = 100, 200  # prompts or images of either draw of an audit


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
    if model.id == "colour-digits" and task == "ioi":
        task = model.id
    if model.id.startswith("planted:") and task in ("ioi", "planted"):
        both = read_inputs("ioi", None, model, n=2 * (n or DEFAULT_N), seed=seed)
        return _halves(both, n or DEFAULT_N, seed)
    source = task.removeprefix(IMAGES)
    if task.startswith(IMAGES) or digits_source(task) is not None:
        n = DEFAULT_N if n is None else n
        both = read_inputs("", source, model, n=2 * n, seed=seed, skip_bad=skip_bad)
        return _halves(both, n, seed)
    draws = draw_prompts(model, task, n=n, seed=seed)
    if not draws.held_out:
        warnings.warn(draws.note, AssayWarning, stacklevel=2)
    return draws


def _halves(both: Task, n: int, seed: int) -> Division:
    """Two random halves: a folder lists its classes one after the other."""
    if both.n < 2 * n:
        note = same_note(both.name, "images", f"{2 * n} or more images, of which there are {both.n},")
        warnings.warn(note, AssayWarning, stacklevel=3)
        return Division(discovery=both, measured=both, held_out=False)
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
    if model.id.startswith("planted:") and images is None and task in ("ioi", "planted"):
        from assay.analyses.benchmark import planted_task
        from assay.models.planted import planted_model

        return planted_task(planted_model(model.id.removeprefix("planted:")), n or 64, seed)
    if images is None and task == "ioi" and model.id == "colour-digits":
        task = "colour-digits"
    if images is None and digits_source(task) is not None:
        images = task
    if images is None:
        # Of a file read whole nothing is drawn; the seed still drives what is done with it.
        whole = n is None and is_task_file(task)
        return load_task(task, model, n=n, seed=0 if whole else seed)
    found = load_images(images, model, n=n, seed=seed, skip_bad=skip_bad)
    if not (skipped := found.config.get("skipped")):
        return found
    note = f"{skipped} files of {found.domain} were skipped"
    warnings.warn(note, AssayWarning, stacklevel=2)
    return replace(found, notes=(*found.notes, note))


def divide(
    model: Model,
    task: Task | str,
    *,
    n: int | None = None,
    full: bool = False,
    seed: int = 0,
    discover_on: PairTask | str | Path | None = None,
    measure_on: PairTask | str | Path | None = None,
    skip_bad: bool = False,
) -> Division:
    """Examples to discover on and others to measure on; the arguments are those of `audit`."""
    task = task.loaded() if isinstance(task, ImageStream) else task
    named_images = isinstance(task, str) and (
        task.startswith(IMAGES) or digits_source(task) is not None or model.id.startswith("planted:")
    )
    images = isinstance(task, ImageTask) or named_images or model.vision is not None

    def draw(count: int | None) -> Division:
        if images:
            assert not isinstance(task, PairTask)
            return draw_inputs(model, task, n=count, seed=seed, skip_bad=skip_bad)
        assert not isinstance(task, ImageTask)
        return draw_prompts(model, task, n=count, seed=seed, discover_on=discover_on, measure_on=measure_on)

    whole = draw(n)
    there = max(whole.discovery.n, whole.measured.n)
    if isinstance(task, str) and task.replace("_", "-") in TASKS:
        there = min(there, N_FULL)  # a generator's repeated prompts make one half somewhat larger
    return whole if n or full or there <= N else draw(N)

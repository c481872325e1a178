"""Examples by name: prompts or images, to find a circuit on and to measure it on."""

import warnings
from dataclasses import dataclass

from assay.errors import AssayWarning
from assay.models import Model
from assay.runner.prompts import draw_prompts
from assay.tasks import Task, digits_source, load_images, load_task
from assay.tasks.load import DEFAULT_N


IMAGES = "images:"  # begins a name of images where prompts are usual


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """Two sets of examples.

    Attributes:
        discovery: What scores and size are chosen on.
        measured: What everything reported is measured on.
        held_out: Whether no example is in both; False where both are the same.
    """

    discovery: Task
    measured: Task
    held_out: bool


def draw_inputs(model: Model, task: str, *, n: int | None, seed: int) -> Inputs:
    """Examples to discover on and others to measure on, where there are others.

    Args:
        model: What reads them.
        task: Key of a registered task, a JSONL file, `images:SOURCE` with what `assay.load_images` takes, or
            a name of coloured digits.
        n: Examples of each set. Of images 2 n are taken and halved; where there are fewer, all serve for
            both.
        seed: Root seed of the draw.
    """
    if model.id.startswith("planted:") and task in ("ioi", "planted"):
        both = read_inputs("ioi", None, model, n=2 * (n or DEFAULT_N), seed=seed)
        return _halves(both, n or DEFAULT_N)
    source = task.removeprefix(IMAGES)
    if task.startswith(IMAGES) or digits_source(task) is not None:
        n = DEFAULT_N if n is None else n
        return _halves(read_inputs("", source, model, n=2 * n, seed=seed), n)
    draws = draw_prompts(model, task, n=n, seed=seed)
    return Inputs(discovery=draws.discovery, measured=draws.measured, held_out=draws.held_out)


def _halves(both: Task, n: int) -> Inputs:
    if both.n < 2 * n:
        return Inputs(discovery=both, measured=both, held_out=False)
    return Inputs(discovery=both.subset(range(n)), measured=both.subset(range(n, 2 * n)), held_out=True)


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
        from assay.benchmark import planted_task
        from assay.models.planted import planted_model

        return planted_task(planted_model(model.id.removeprefix("planted:")), n or 64, seed)
    if images is None and task == "ioi" and model.id == "colour-digits":
        task = "colour-digits"
    if images is None and digits_source(task) is not None:
        images = task
    if images is None:
        return load_task(task, model, n=n, seed=seed)
    found = load_images(images, model, n=n, seed=seed, skip_bad=skip_bad)
    if skipped := found.config.get("skipped"):
        warnings.warn(f"{skipped} files of {found.domain} were skipped", AssayWarning, stacklevel=2)
    return found

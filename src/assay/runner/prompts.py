"""Which prompts a circuit is found on, and which other prompts it is measured on."""

from dataclasses import dataclass

import numpy as np

from assay.models import Model
from assay.tasks import TASKS, PairTask, load_task
from assay.tasks.load import DEFAULT_N


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """Two sets of prompts of one task.

    Attributes:
        discovery: What scores and size are chosen on.
        measured: What everything reported is measured on.
        held_out: Whether no prompt is in both; False where both are the same task.
    """

    discovery: PairTask
    measured: PairTask
    held_out: bool


def draw_prompts(model: Model, task: PairTask | str, *, n: int | None, seed: int) -> Draws:
    """Prompts to discover on and, where the task can be drawn, other prompts to measure on.

    A registered task is drawn once with 2 n prompts. Its distinct prompts are dealt in order of appearance:
    to discovery until that has n rows, the rest is held out; where few distinct prompts exist, half of
    them go to each side. A file or a task of one's own is used for both, and `held_out` says so.

    Args:
        model: Tokenises the prompts.
        task: Key of a registered task, a JSONL file or a task.
        n: Prompts of each set; repeated prompts can shift a few rows from one set to the other. Default:
            200, and all lines of a file.
        seed: Root seed of the draw.
    """
    if isinstance(task, PairTask):
        return Draws(discovery=task, measured=task, held_out=False)
    if task.replace("_", "-") not in TASKS:
        only = load_task(task, model, n=n, seed=seed)
        return Draws(discovery=only, measured=only, held_out=False)
    n = DEFAULT_N if n is None else n
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
        return Draws(discovery=both, measured=both, held_out=False)
    return Draws(discovery=both.subset(sorted(rows)), measured=both.subset(others), held_out=True)

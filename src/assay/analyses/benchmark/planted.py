"""Planted models as tasks: their own examples, bound to the ablation under which their truth holds."""

from typing import Any

from assay.core.errors import InputError
from assay.execution import run_model
from assay.models.planted import Planted
from assay.tasks import ImageTask, PairTask


PLANTED = "planted:"  # before the name of a planted model, as `load_model` reads it
ABLATION = "resample"  # the ablation under which the true edge set of a planted model is defined


def planted_task(planted: Planted, n: int = 64, seed: int = 0) -> PairTask | ImageTask:
    """Examples of a planted model as a task, under the ablation for which its circuit is known.

    Args:
        planted: The model with its truth, from `assay.models.planted.planted_model`.
        n: Number of examples, at least 1.
        seed: Root seed of the draw.

    Returns:
        Prompts or images with their counterparts; objective `logit_diff`, ablation `resample`.

    Raises:
        InputError: If `n` is below 1.

    Example:
        >>> from assay.models.planted import planted_model
        >>> task = planted_task(planted_model("induction/gpt2/bare"), n=8)
        >>> task.n, task.ablation
        (8, 'resample')
    """
    if n < 1:
        raise InputError(f"n is {n}; a task needs at least one example")
    examples = planted.examples(n, seed=seed)
    facts: dict[str, Any] = {
        "name": f"{PLANTED}{planted.name}",
        "objective": "logit_diff",
        "ablation": ABLATION,
        "config": {"planted": planted.name, "n": n, "seed": seed},
        "fields": dict(examples.fields),
    }
    if planted.model.vision is not None:
        task = ImageTask(
            images=examples.clean,
            corrupted=examples.corrupted,
            labels=examples.labels,
            domain="planted",
            **facts,
        )
        # Against the likeliest other class, which for two classes is the other one.
        return task.with_runner_up(run_model(planted.model, task))
    if examples.answers is None:
        raise InputError(f"{planted.name} draws prompts without answers; its examples need `answers` [n, 1]")
    places = {"positions": examples.positions, "lengths": examples.lengths}
    facts |= {name: value for name, value in places.items() if value is not None}
    return PairTask(
        clean=examples.clean,
        corrupted=examples.corrupted,
        answers=examples.answers,
        wrong=examples.wrong,
        **facts,
    )

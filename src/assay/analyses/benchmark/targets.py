"""A model and its examples by name: what `--model` and `--task` of a benchmark mean, planted models too."""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from assay.core.errors import InputError
from assay.models import Model, load_model
from assay.models.planted import Planted, planted_model
from assay.tasks import COLOUR_DIGITS, PairTask, Task, digits_source, load_images, load_task
from assay.tasks.digits import digits_task


DEFAULT_N = 200
PLANTED = "planted:"  # before the name of a planted model, as `load_model` reads it


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """What methods are judged on.

    Attributes:
        model: The model.
        task: The examples that methods see.
        held_out: Others to judge on; None leaves that to the benchmark.
        truth: Names of the true edges of a planted model, else None.
    """

    model: Model
    task: Task
    held_out: Task | None = None
    truth: Collection[str] | None = None


def find_target(
    model: str,
    task: str | None = None,
    *,
    images: str | None = None,
    n: int | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    device_map: str | None = None,
    bos: bool | None = None,
) -> Target:
    """The model, its examples and, for a planted model, its truth.

    Args:
        model: `mini`, `planted:NAME`, `colour-digits`, a hub id or a directory.
        task: Registered text task, JSONL file, or `colour-digits[:AGREEMENT[/SWAP]]`. Default: the examples
            of a planted model, the coloured digits of their model, else `ioi`.
        images: Source of images instead, as of `load_images`.
        n: Examples of each sample; default 200.
        seed: Root seed of what methods see; the examples to judge on are drawn with the next one.
        device: Where the model runs.
        dtype: Number type of the weights. Default: as of `load_model`.
        revision: Branch, tag or commit of a hub id.
        device_map: As of `load_model`.
        bos: As of `load_task`, for the prompts of a text task.

    Raises:
        UnknownNameError: For an unknown planted model, task or swap.
        InputError: For a model and a task of different kinds, or an agreement that is not a probability.
    """
    n = DEFAULT_N if n is None else n
    loaded = load_model(model, device=device, device_map=device_map, dtype=dtype, revision=revision)
    if model.startswith(PLANTED):
        if images is not None or task not in (None, "planted"):
            raise InputError(
                f"{model} has its own examples, for which its circuit is known; remove --task and --images"
            )
        planted = planted_model(model.removeprefix(PLANTED))
        seen, held_out = (planted_task(planted, n=n, seed=seed + more) for more in (0, 1))
        return Target(model=loaded, task=seen, held_out=held_out, truth=planted.edges)
    if images is not None:
        if task is not None:
            raise InputError("--task and --images exclude each other; give one of them")
        return Target(model=loaded, task=load_images(images, loaded, n=2 * n, seed=seed))
    if task is None and loaded.vision is None:
        task = "ioi"
    digits = digits_source(model if task is None else task)
    if digits is not None:  # the first n images and the next n
        own, others = (digits_task(loaded, n, seed=seed, start=start, **digits) for start in (0, n))
        return Target(model=loaded, task=own, held_out=others)
    if task is None:
        raise InputError(
            f"{model} reads images; give --images, e.g. --images shapes:flat, or --task {COLOUR_DIGITS}"
        )
    return Target(model=loaded, task=load_task(task, loaded, n=n, seed=seed, bos=bos))


def planted_task(planted: Planted, n: int = 64, seed: int = 0) -> PairTask:
    """Examples of a planted model as a task, under the ablation for which its circuit is known.

    Args:
        planted: The model with its truth, from `assay.models.planted.planted_model`.
        n: Number of examples, at least 1.
        seed: Root seed of the draw.

    Returns:
        Prompts with their counterparts; objective `logit_diff`, ablation `resample`.

    Example:
        >>> from assay.models.planted import planted_model
        >>> task = planted_task(planted_model("induction/gpt2/bare"), n=8)
        >>> task.n, task.ablation
        (8, 'resample')
    """
    examples = planted.examples(n, seed=seed)
    return PairTask(
        clean=examples.clean,
        corrupted=examples.corrupted,
        answers=examples.answers,
        wrong=examples.wrong,
        name=f"{PLANTED}{planted.name}",
        objective="logit_diff",
        ablation="resample",  # under which the true edge set is defined
        config={"planted": planted.name, "n": n, "seed": seed},
        fields=dict(examples.fields),
    )

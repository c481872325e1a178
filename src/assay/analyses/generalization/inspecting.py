"""Running models on the images of a domain, several at a time, with what was run before read from a cache."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from assay.analyses.generalization.inspection import (
    KIND,
    Inspection,
    InspectionSettings,
    load_inspection,
    save_inspection,
)
from assay.analyses.generalization.inspectors import Inspector, inspect_together
from assay.core.errors import InputError, unknown_name
from assay.core.record import library_version, record_id
from assay.models import Model
from assay.tasks import ImageInputs


# What can be asked for beyond the answers.
PARTS = ("logits", "features", "output-scores", "edge-scores", "sharpness")
LAYOUT = 2  # of the files in a cache: those of another one are made again


def inspect_model(
    model: Model,
    task: ImageInputs,
    parts: Iterable[str] = (),
    *,
    settings: InspectionSettings | None = None,
    cache: str | Path | None = None,
) -> Inspection:
    """Run a model on the images of one domain and keep what predictors of performance read.

    Args:
        model: An image classifier in evaluation mode.
        task: The images, at least 2.
        parts: Beyond the answers: `"logits"`; `"features"`, their spectrum; `"output-scores"`, scores of the
            edges into the logits by the fast path; `"edge-scores"`, scores of all edges, which give those
            too, and the dependency matrix with its resamples; `"sharpness"`, which needs labels.
        settings: How scores and sharpness are measured.
        cache: Folder of earlier inspections: one of the same weights, images, parts and settings is read
            instead of made again. Made if it does not exist.

    Raises:
        InputError: For fewer than 2 images, a model in training mode, images or labels that do not fit the
            model, or sharpness without labels.
        UnknownNameError: For another part.
        NonFiniteError: If a logit is NaN or infinite; the message names the image.
        FileFormatError: If a file of the cache was damaged.

    Notes:
        Costs one forward pass for answers and features together, the passes of `assay.discover` or of
        `output_scores`, and 41 forward and 20 backward passes per sharpness batch.
    """
    return next(inspect_models([model], [task], parts, settings=settings, cache=cache))


def inspect_models(
    models: Sequence[Model],
    tasks: Sequence[ImageInputs],
    parts: Iterable[str] = (),
    *,
    settings: InspectionSettings | None = None,
    cache: str | Path | None = None,
) -> Iterator[Inspection]:
    """Several models on the same images: a batch is read once for all of them; else as `inspect_model`.

    All models run before the first inspection is given; each is put together, or read, when it is asked for.

    Args:
        models: Image classifiers, in memory together.
        tasks: For each model the images as it reads them. Tasks of other images than the first one's are
            read by themselves.
        parts: As of `inspect_model`, as are the other arguments, and what is raised.
        settings: How scores and sharpness are measured.
        cache: Folder of earlier inspections.
    """
    settings = settings or InspectionSettings()
    wanted = _wanted(parts)
    for task in tasks:
        _check(task, wanted)
    ready = _run(models, tasks, wanted, settings, cache)
    for place in range(len(models)):
        yield ready.pop(place)()


def _run(
    models: Sequence[Model],
    tasks: Sequence[ImageInputs],
    wanted: tuple[str, ...],
    settings: InspectionSettings,
    cache: str | Path | None,
) -> dict[int, Callable[[], Inspection]]:
    """Run the models that were not run before; what gives the inspection of each, by its place."""
    ready: dict[int, Callable[[], Inspection]] = {}
    runs: dict[tuple[Any, ...], list[tuple[int, Inspector, dict[str, Any]]]] = {}
    for place, (model, task) in enumerate(zip(models, tasks, strict=True)):
        provenance = {
            "library": library_version(),
            "layout": LAYOUT,
            "model": model.describe(),
            "task": task.describe("source_hash"),
            "parts": sorted(wanted),
            "settings": settings.to_dict(),
        }
        path = _path(cache, provenance)
        if path is not None and path.exists():
            ready[place] = partial(load_inspection, path)
        else:
            inspector = Inspector(model, task, wanted, settings)
            runs.setdefault(tuple(task.ids.tolist()), []).append((place, inspector, provenance))
    for group in runs.values():
        inspect_together([inspector for _, inspector, _ in group])
        for place, inspector, key in group:
            provenance = {**key, "task": tasks[place].describe()}  # the images have been read by now
            ready[place] = partial(inspector.inspection, provenance)
            path = _path(cache, key)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                save_inspection(ready[place](), path)
                ready[place] = partial(load_inspection, path)
    return ready


def _path(cache: str | Path | None, provenance: dict[str, Any]) -> Path | None:
    return None if cache is None else Path(cache) / f"{record_id(KIND, provenance)}.safetensors"


def _wanted(parts: Iterable[str]) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(parts))
    for name in wanted:
        if name not in PARTS:
            raise unknown_name("part of an inspection", name, PARTS)
    if "edge-scores" in wanted:
        wanted = tuple(name for name in wanted if name != "output-scores")
    return wanted


def _check(task: ImageInputs, wanted: Sequence[str]) -> None:
    if task.n < 2:
        raise InputError(
            f"domain {task.domain or task.name!r} has {task.n} image, but mean ablation and intervals need "
            "2 or more"
        )
    if "sharpness" in wanted and task.labels is None:
        raise InputError(f"sharpness needs labels, but the images of {task.domain or task.name!r} have none")

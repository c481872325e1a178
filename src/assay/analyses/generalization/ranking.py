"""Which of several models to deploy: one table of models by metrics, with what picking by each is worth."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn

from assay.analyses.generalization.inspection import Inspection, InspectionSettings, inspect_model
from assay.analyses.generalization.ranking_builder import RankingBuilder
from assay.analyses.generalization.ranking_table import Ranking
from assay.core.errors import InputError
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageSet, ImageTask, load_images
from assay.zoo import Zoo


Progress = Callable[[str, int, int], None]
Images = ImageSet | ImageTask | Callable[[Model], ImageTask] | str | Path


@runtime_checkable
class HoldsModels(Protocol):
    """A zoo: keys of its models, and each of them when asked for."""

    @property
    def entries(self) -> Sequence[Any]:
        """Descriptions with a `key`."""

    def load(self, key: str) -> Model:
        """One model, in evaluation mode."""


OneModel = Model | str | Path | nn.Module | Callable[[], Model]
Models = HoldsModels | Mapping[str, OneModel] | Sequence[OneModel] | str | Path


def rank_models(
    models: Models,
    target: Images,
    *,
    id_data: Images | None = None,
    metrics: Sequence[str] | None = None,
    labels: bool | None = None,
    measure: str = "accuracy",
    ratio: float = 0.3,
    settings: InspectionSettings | None = None,
    level: float = 0.95,
    elsewhere: Sequence[Ranking] = (),
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Rank image classifiers by what their circuits and outputs say about a target domain.

    Args:
        models: A zoo or its folder, named models or functions that load them, or a list of models; a model
            may be what `load_model` takes. They are loaded one at a time and let go of, so a zoo need not fit
            in memory.
        target: Images of the domain to deploy on: 8-bit images, normalised for each model by its own
            transform; images as every model reads them; a function from a model to its images; or what
            `load_images` takes, e.g. a folder or "shapes:sketch".
        id_data: Labelled images of the domain that the models were trained for, likewise, not used in
            training. Metrics that learn from them are absent without.
        metrics: Keys of `PREDICTORS`. Default: all but `"sharpness"` and the two that
            need scores of all edges (`"ddb-deep"`, `"ddb-global"`), which also give the motif.
        labels: True: require labels of the target; False: leave them unused; None: use them if there are any.
        measure: True performance and ID accuracy: `"accuracy"`, or `"macro-f1"` over the classes that occur.
        ratio: tau of the depth bias, in (0, 0.5].
        settings: How scores are measured and images drawn; equal for all models.
        level: Coverage of the intervals.
        elsewhere: Rankings of the same models on other, labelled domains: they tell what picking by a metric
            cost there, which is all that can be said about regret where the target has no labels.
        cache: Folder in which what each model showed is kept under the hash of weights, images and settings;
            an interrupted call goes on from there.
        progress: Called with a stage, models done and models in all.

    Returns:
        The table with intervals, ranks, chances of being the best and, with labels, regrets and correlations.
        Resampled are the images (paired over the models); held fixed are the models and the means that
        ablated edges carry.

    Raises:
        InputError: For fewer than 2 models, fewer than 2 images, missing labels that were asked for, models
            or data of different classes, a ratio outside (0, 0.5], or data that differ between models.
        UnknownNameError: For an unknown metric or measure.
        GraphMismatchError: For models of different graphs where circuits are compared.

    Notes:
        A metric whose inputs are missing is in `absent` with the reason, never 0. The fast path of
        `"ddb-output"` costs about 7 forward passes per image, scores of all edges about 13.

    References:
        Peng et al. (2026), arXiv:2604.08192, sections 4 and 5.
    """
    settings = settings or InspectionSettings()
    judged = RankingBuilder(
        metrics, measure=measure, ratio=ratio, level=level, settings=settings, elsewhere=elsewhere
    )
    loaders = named_loaders(models)
    for place, (name, load) in enumerate(loaders):
        if progress is not None:
            progress("inspect models", place, len(loaders))
        model = load()
        shown, known = inspect_for_ranking(
            model, target, id_data, judged.needs, labels=labels, settings=settings, cache=cache
        )
        del model  # before the next one is loaded
        judged.add(name, shown, known)
    if progress is not None:
        progress("inspect models", len(loaders), len(loaders))
    return judged.ranking()


def inspect_for_ranking(
    model: Model,
    target: Images,
    id_data: Images | None,
    needs: Collection[str],
    *,
    labels: bool | None = None,
    settings: InspectionSettings,
    cache: str | Path | None = None,
) -> tuple[Inspection, Inspection | None]:
    """What one model shows on the target and, where metrics learn from it, on its own domain.

    Args:
        model: The model.
        target: As in `rank_models`, as are the other arguments.
        id_data: Labelled images of the model's own domain.
        needs: What the metrics read, see `Predictor.needs`.
        labels: Whether labels of the target may be used.
        settings: How scores are measured.
        cache: Folder of earlier inspections.
    """
    parts = sorted({"features", "output-scores", "edge-scores"} & set(needs))
    shown = inspect_model(model, _task(target, model, labels=labels), parts, settings=settings, cache=cache)
    if id_data is None or "known" not in needs:
        return shown, None
    task = _task(id_data, model)
    more = ["sharpness"] if "sharpness" in needs and task.labels is not None else []
    return shown, inspect_model(model, task, more, settings=settings, cache=cache)


def rank_inspections(
    targets: Mapping[str, Inspection],
    known: Mapping[str, Inspection] | None = None,
    *,
    metrics: Sequence[str] | None = None,
    measure: str = "accuracy",
    ratio: float = 0.3,
    settings: InspectionSettings | None = None,
    level: float = 0.95,
    elsewhere: Sequence[Ranking] = (),
) -> Ranking:
    """Rank models by what they showed earlier; nothing is run.

    Args:
        targets: Name of the model -> what it showed on the target.
        known: The same names -> what the models showed on labelled images of their own domain.
        metrics: As in `rank_models`, as are the other arguments.
        measure: True performance and ID accuracy.
        ratio: tau of the depth bias.
        settings: With which the inspections were made.
        level: Coverage of the intervals.
        elsewhere: Rankings of the same models on other domains.

    Raises:
        InputError: As `rank_models`, and for inspections made with other settings or of other names.
        GraphMismatchError: As `rank_models`.
    """
    if len(targets) < 2:
        raise InputError(f"{len(targets)} model(s) to rank; give at least 2")
    if known is not None and set(known) != set(targets):
        odd = ", ".join(sorted(set(known) ^ set(targets)))
        raise InputError(f"target and known images were not shown to the same models; only one has {odd}")
    settings = settings or InspectionSettings()
    judged = RankingBuilder(
        metrics, measure=measure, ratio=ratio, level=level, settings=settings, elsewhere=elsewhere
    )
    for name, shown in targets.items():
        judged.add(name, shown, None if known is None else known[name])
    return judged.ranking()


def named_loaders(models: Models) -> list[tuple[str, Callable[[], Model]]]:
    """Names and functions that give the models; a list of models is named by their ids, numbered where equal.

    Raises:
        InputError: For fewer than 2 models.
    """
    found: list[tuple[str, Callable[[], Model]]]
    if isinstance(models, str | Path):
        models = Zoo.open(models)
    if isinstance(models, Mapping):
        found = [(name, _model_loader(each)) for name, each in models.items()]
    elif isinstance(models, HoldsModels):
        keys = [str(entry.key) for entry in models.entries if getattr(entry, "status", "done") == "done"]
        found = [(key, _loader(models, key)) for key in keys]
    else:
        if not isinstance(models, Sequence):
            raise InputError(
                f"models is a {type(models).__name__}; give a zoo or its folder, a list of models, or a "
                "mapping from names to models"
            )
        ids = [each.id if isinstance(each, Model) else str(each) for each in models]
        names = [
            name if ids.count(name) == 1 else f"{name} ({ids[: place + 1].count(name)})"
            for place, name in enumerate(ids)
        ]
        found = [(name, _model_loader(each)) for name, each in zip(names, models, strict=True)]
    if len(found) < 2:
        raise InputError(f"{len(found)} model(s) to rank; give at least 2")
    return found


def _model_loader(given: object) -> Callable[[], Model]:
    """A function that gives one model, whatever it is named by."""
    if isinstance(given, Model):
        return lambda: given
    if isinstance(given, str | Path | nn.Module):
        return lambda: load_model(given)
    if callable(given):
        return given
    raise InputError(
        f"a model to rank is a {type(given).__name__}; expected a loaded model, what `load_model` takes, or "
        "a function that gives one"
    )


def _loader(zoo: HoldsModels, key: str) -> Callable[[], Model]:
    return lambda: zoo.load(key)


def _task(images: Images, model: Model, *, labels: bool | None = None) -> ImageTask:
    """The images as a model reads them, with the labels that may be used."""
    if isinstance(images, ImageTask):
        task = images
    elif isinstance(images, ImageSet):
        task = images.task(EvalTransform.for_model(model))
    elif isinstance(images, str | Path):
        task = load_images(images, model)
    elif callable(images):
        task = images(model)
    else:
        raise InputError(
            f"target is a {type(images).__name__}; expected images, what `load_images` takes, or a function "
            "from a model to its images"
        )
    if labels is True and task.labels is None:
        raise InputError(
            f"labels of {task.domain or task.name!r} were asked for and there are none; give labelled "
            "images, or leave labels out"
        )
    return replace(task, labels=None) if labels is False else task

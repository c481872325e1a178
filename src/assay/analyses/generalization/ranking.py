"""Which of several models to deploy: one table of models by metrics, with what picking by each is worth."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.generalization.baselines import MEASURES
from assay.analyses.generalization.dependency import DepthRule
from assay.analyses.generalization.inspecting import inspect_models
from assay.analyses.generalization.inspection import (
    STREAM,
    Inspection,
    InspectionSettings,
    check_comparable_inspections,
    copied_from,
    resamples,
)
from assay.analyses.generalization.picking import RankedMetric, column_of
from assay.analyses.generalization.predictor import PREDICTORS, MetricEstimate, MetricEvidence, performance
from assay.analyses.generalization.predictors import DEFAULT_METRICS, FAST_METRICS, affordable_transport
from assay.analyses.generalization.ranking_inputs import (
    Images,
    Models,
    missing_models,
    named_loaders,
    shared,
    task_for,
)
from assay.analyses.generalization.ranking_table import Ranking
from assay.core.errors import InputError, unknown_name
from assay.models import Model


Progress = Callable[[str, int, int], None]


def rank_models(
    models: Models,
    target: Images,
    *,
    id_data: Images | None = None,
    metrics: Sequence[str] | None = None,
    labels: bool | None = None,
    measure: str = "accuracy",
    ratio: float = 0.3,
    include_input: bool = False,
    sets: str = "symmetric",
    settings: InspectionSettings | None = None,
    level: float = 0.95,
    missing: Mapping[str, str] | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Rank image classifiers by what their circuits and outputs say about a target domain.

    Args:
        models: A zoo or its folder, named models or functions that load them, or a list of models; a model
            may be what `load_model` takes. They are loaded one at a time and let go of, so a zoo need not
            fit in memory.
        target: Images of the domain to deploy on: 8-bit images, normalised for each model by its own
            transform; images as every model reads them; a function from a model to its images; or what
            `load_images` takes, e.g. a folder or "shapes:sketch".
        id_data: Labelled images of the domain that the models were trained for, likewise, not used in
            training. Metrics that learn from them are absent without.
        metrics: Keys of `PREDICTORS`, in the order of the table: the first that ranks leads. Default: all
            but `"sharpness"`. Two need scores of all edges (`"ddb-deep"`, `"ddb-global"`) and about double
            the cost; they also give the motif.
        labels: True: require labels of the target; False: leave them unused; None: use them if there are any.
        measure: True performance and ID accuracy: `"accuracy"`, or `"macro-f1"` over the classes that occur.
        ratio: tau of the depth bias, in (0, 0.5]. It is a share of the blocks, so models of different depth
            may be ranked together; motifs then use relative positions of the layers.
        include_input: Count the input as a shallow source.
        sets: `"symmetric"`, or `"reference"` for the layers of the authors' code (12 blocks), see
            `DepthRule`.
        settings: How scores are measured and images drawn; equal for all models.
        level: Coverage of the intervals.
        missing: Name of a model that should be among them -> why it is not. Default: the models of the zoo
            whose training is not done.
        cache: Folder in which what each model showed is kept under the hash of weights, images and settings;
            an interrupted call goes on from there.
        progress: Called with a stage, models done and models in all.

    Returns:
        The table with intervals, ranks, chances of being the best and, with labels, regrets and correlations.
        Resampled are the images (paired over the models); held fixed are the models and the means that
        ablated edges carry. Copies of a model count once in correlations.

    Raises:
        InputError: For fewer than 2 models, fewer than 2 images, missing labels that were asked for, models
            or data of different classes, a ratio outside (0, 0.5], or data that differ between models.
        UnknownNameError: For an unknown metric or measure.

    Notes:
        A metric whose inputs are missing is in `absent` with the reason, never 0. The fast path of
        `"ddb-output"` costs about 7 forward passes per image, scores of all edges about 13.

    References:
        Peng et al. (2026), arXiv:2604.08192, sections 4 and 5.
    """
    settings = settings or InspectionSettings()
    judged = _Builder(
        metrics,
        measure=measure,
        rule=DepthRule(ratio=ratio, include_input=include_input, sets=sets),
        level=level,
        settings=settings,
    )
    loaders = named_loaders(models)
    target, id_data = shared(target), None if id_data is None else shared(id_data)
    for done, (name, load) in enumerate(loaders):
        if progress is not None:
            progress("inspect models", done, len(loaders))
        ((shown, known),) = inspect_for_ranking(
            [load()], target, id_data, judged.chosen, labels=labels, settings=settings, cache=cache
        )
        judged.add(name, shown, known)
    if progress is not None:
        progress("inspect models", len(loaders), len(loaders))
    return replace(judged.ranking(), missing=missing_models(models) if missing is None else missing)


def inspect_for_ranking(
    models: Sequence[Model],
    target: Images,
    id_data: Images | None,
    metrics: Sequence[str],
    *,
    labels: bool | None = None,
    settings: InspectionSettings,
    cache: str | Path | None = None,
) -> Iterator[tuple[Inspection, Inspection | None]]:
    """What models show on the target and, where metrics learn from it, on their own domain.

    Nothing runs before the first pair is asked for.

    Args:
        models: The models, in memory together.
        target: As in `rank_models`, as are the other arguments.
        id_data: Labelled images of the model's own domain.
        metrics: Keys of metrics.
        labels: Whether labels of the target may be used.
        settings: How scores are measured.
        cache: Folder of earlier inspections.
    """
    tasks = [task_for(target, model, labels=labels) for model in models]
    needs = frozenset[str]().union(*(PREDICTORS[key].needs for key in metrics))
    parts = {"logits", "features", "output-scores", "edge-scores"} & needs
    if "cot" not in _asked(metrics):
        sizes = zip(tasks, models, strict=True)
        if not all(affordable_transport(task.n, model.n_classes) for task, model in sizes):
            parts -= {"logits"}
    shown = inspect_models(models, tasks, parts, settings=settings, cache=cache)
    if id_data is None or "known" not in needs:
        return ((each, None) for each in shown)
    own = [task_for(id_data, model) for model in models]
    more = ["sharpness"] if "sharpness" in needs and all(task.labels is not None for task in own) else []
    return zip(shown, inspect_models(models, own, more, settings=settings, cache=cache), strict=True)


def rank_inspections(
    targets: Mapping[str, Inspection],
    known: Mapping[str, Inspection] | None = None,
    *,
    metrics: Sequence[str] | None = None,
    measure: str = "accuracy",
    ratio: float = 0.3,
    include_input: bool = False,
    sets: str = "symmetric",
    settings: InspectionSettings | None = None,
    level: float = 0.95,
) -> Ranking:
    """Rank models by what they showed earlier; nothing is run.

    Args:
        targets: Name of the model -> what it showed on the target.
        known: The same names -> what the models showed on labelled images of their own domain.
        metrics: As in `rank_models`, as are the other arguments.
        measure: True performance and ID accuracy.
        ratio: tau of the depth bias.
        include_input: As in `rank_models`.
        sets: As in `rank_models`.
        settings: With which the inspections were made.
        level: Coverage of the intervals.

    Raises:
        InputError: As `rank_models`, and for inspections made with other settings or of other names.
    """
    if len(targets) < 2:
        raise InputError(f"got {len(targets)} model(s); give at least 2 to rank")
    if known is not None and set(known) != set(targets):
        odd = ", ".join(sorted(set(known) ^ set(targets)))
        raise InputError(f"target and known images were shown to different models; only one has {odd}")
    settings = settings or InspectionSettings()
    judged = _Builder(
        metrics,
        measure=measure,
        rule=DepthRule(ratio=ratio, include_input=include_input, sets=sets),
        level=level,
        settings=settings,
    )
    for name, shown in targets.items():
        judged.add(name, shown, None if known is None else known[name])
    return judged.ranking()


# ---------------------------------------------------------------------------------------- in the making


class _Builder:
    """A ranking in the making: models come one after the other, and only what tables need of each is kept."""

    def __init__(
        self,
        metrics: Sequence[str] | None,
        *,
        measure: str,
        rule: DepthRule,
        level: float,
        settings: InspectionSettings,
    ) -> None:
        self.chosen = _chosen(metrics)
        if measure not in MEASURES:
            raise unknown_name("measure", measure, MEASURES)
        rule.check()
        self.asked = _asked(self.chosen)
        self.measure, self.rule, self.level = measure, rule, level
        self.settings = settings
        self.names: list[str] = []
        self.shown: list[MetricEvidence] = []
        self.rows: list[dict[str, MetricEstimate]] = []
        self.gaps: dict[str, str] = {}
        self._counts: dict[tuple[bytes, str], Float64[np.ndarray, "draws n"]] = {}

    def add(self, name: str, shown: Inspection, known: Inspection | None) -> None:
        """One more model, by what it showed."""
        for each in (shown, known):
            settings = {} if each is None else each.provenance.get("settings", {})
            for key, value in sorted(self.settings.to_dict().items()):
                if settings.get(key, value) != value:
                    raise InputError(
                        f"{name} was measured with {key}={settings[key]!r}, but this ranking uses "
                        f"{value!r}; measure all with the same"
                    )
        if known is not None and known.labels is None:
            self._lack("known", "the images of the models' own domain have no labels")
            known = None
        if self.shown:
            names = (self.names[0], name)
            check_comparable_inspections(names, self.shown[0].target, shown, what="target")
            if self.shown[0].known is not None and known is not None:
                check_comparable_inspections(names, self.shown[0].known, known, what="own-domain")
        evidence = MetricEvidence(
            target=shown,
            known=known,
            counts=self._resamples(shown.ids),
            known_counts=None if known is None else self._resamples(known.ids, "rank/known-images"),
            rule=self.rule,
            measure=self.measure,
            seed=self.settings.seed,
            asked=self.asked,
        )
        self._note_missing(evidence)
        alone = [key for key in self.chosen if key not in self.gaps and not PREDICTORS[key].together]
        self.rows.append({key: PREDICTORS[key].of([evidence])[0] for key in alone})
        self.shown.append(
            replace(evidence, target=_light(shown), known=None if known is None else _light(known))
        )
        self.names.append(name)

    def _lack(self, part: str, reason: str) -> None:
        for key in self.chosen:
            if part in PREDICTORS[key].needs:
                self.gaps.setdefault(key, reason)

    def _note_missing(self, evidence: MetricEvidence) -> None:
        """Keep the reason for each metric that needs what the evidence has not."""
        target, known = evidence.target, evidence.known
        if known is None:
            self._lack("known", "needs labelled images of the models' own domain (id_data, --id-images)")
        elif known.sharpness is None:
            self._lack("sharpness", "the models were not inspected for sharpness")
        for part, value in (
            ("features", target.spectra),
            ("output-scores", target.output_scores),
            ("edge-scores", target.dependency_draws),
        ):
            if value is None:
                self._lack(part, f"the models were inspected without {part.replace('-', ' ')}")

    def _resamples(self, ids: Int64[np.ndarray, " n"], name: str = STREAM) -> Float64[np.ndarray, "draws n"]:
        """Counts of some images; by default under the resamples that inspections use."""
        key = (ids.tobytes(), name)
        if key not in self._counts:
            self._counts[key] = resamples(ids, self.settings, name)
        return self._counts[key]

    def ranking(self) -> Ranking:
        """The table of the models so far."""
        truth = self._performance()
        distinct = copied_from([each.target for each in self.shown]) == np.arange(len(self.shown))
        columns: dict[str, RankedMetric] = {}
        absent = {key: self.gaps[key] for key in self.chosen if key in self.gaps}
        for key in (key for key in self.chosen if key not in self.gaps):
            metric = PREDICTORS[key]
            estimates = metric.of(list(self.shown)) if metric.together else [row[key] for row in self.rows]
            if all(math.isnan(each.value) for each in estimates):
                absent[key] = estimates[0].reason or "undefined on these images"
                continue
            columns[key] = column_of(
                metric,
                estimates,
                truth,
                distinct,
                level=self.level,
                seed=self.settings.seed,
            )
        first = self.shown[0]
        return Ranking(
            names=tuple(self.names),
            columns=columns,
            absent=absent,
            performance=truth,
            measure=self.measure,
            inspections=tuple(each.target for each in self.shown),
            target=_facts(first.target),
            known=None if first.known is None else _facts(first.known),
            rule=self.rule,
            settings=self.settings,
            level=self.level,
            costs=_total(
                [each for pair in self.shown for each in (pair.target, pair.known) if each is not None]
            ),
        )

    def _performance(self) -> RankedMetric | None:
        labels = self.shown[0].target.labels
        if labels is None:
            return None
        values = [performance(each.target, labels, each.counts, each.measure) for each in self.shown]
        metric = replace(
            PREDICTORS["id-accuracy"], key="performance", name=self.measure, summary="true performance"
        )
        return column_of(metric, values, None, level=self.level, seed=self.settings.seed)


def _chosen(metrics: Sequence[str] | None) -> tuple[str, ...]:
    """Keys in the order given, which is that of the table: the first that ranks models leads."""
    asked = tuple(DEFAULT_METRICS if metrics is None else dict.fromkeys(metrics))
    if not asked:
        raise InputError("metrics is empty; name some, or remove it for all")
    for key in asked:
        PREDICTORS[key]
    return asked


def _asked(chosen: Sequence[str]) -> frozenset[str]:
    """Metrics that are computed however long they take: those chosen by name."""
    return frozenset(() if tuple(chosen) in (DEFAULT_METRICS, FAST_METRICS) else chosen)


def _light(inspection: Inspection) -> Inspection:
    """Without what only metrics of single models read."""
    return replace(inspection, logits=None, spectra=None, output_draws=None, dependency_draws=None)


def _facts(inspection: Inspection) -> dict[str, Any]:
    task = inspection.provenance.get("task", {})
    return {
        "name": task.get("name", ""),
        "domain": task.get("domain", ""),
        "data_hash": task.get("data_hash"),
        "config": task.get("config", {}),
        "n": inspection.n,
        "n_classes": inspection.n_classes,
        "labelled": inspection.labels is not None,
    }


def _total(inspections: Sequence[Inspection]) -> dict[str, Any]:
    """Seconds of each stage over all models and images, and the passes that it makes per image."""
    stages: dict[str, dict[str, Any]] = {}
    for each in inspections:
        for name, spent in each.cost.items():
            stage = stages.setdefault(name, {"seconds": 0.0, "passes": spent["passes"]})
            stage["seconds"] += spent["seconds"]
    return stages

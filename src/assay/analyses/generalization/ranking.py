"""Which of several models to deploy: one table of models by metrics, with what picking by each is worth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.analyses.generalization.baselines import MEASURES, once, performance_of
from assay.analyses.generalization.dependency import DepthRule
from assay.analyses.generalization.inspection import (
    Inspection,
    InspectionSettings,
    check_comparable_inspections,
    copied_from,
    inspect_model,
)
from assay.analyses.generalization.metrics import (
    DEFAULT_METRICS,
    METRICS,
    Estimate,
    Shown,
    Weights,
    affordable_transport,
    estimate,
)
from assay.analyses.generalization.picking import RankedMetric
from assay.analyses.generalization.ranking_inputs import (
    Images,
    Models,
    missing_models,
    named_loaders,
    shared,
    task_for,
)
from assay.analyses.generalization.ranking_table import Ranking
from assay.core.errors import InputError, check_name
from assay.core.random import stream
from assay.models import Model
from assay.stats import poisson_weights


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
        metrics: Keys of `METRICS`, in the order of the table: the first that ranks leads. Default: all but
            `"sharpness"`, ID accuracy first where there is `id_data`. Two need scores of all edges
            (`"ddb-deep"`, `"ddb-global"`) and about double the cost; they also give the motif.
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
    rule = DepthRule(ratio=ratio, include_input=include_input, sets=sets)
    table = _Table(metrics, id_data is not None, measure=measure, rule=rule, level=level, settings=settings)
    loaders = named_loaders(models)
    target, id_data = shared(target), None if id_data is None else shared(id_data)
    for done, (name, load) in enumerate(loaders):
        if progress is not None:
            progress("inspect models", done, len(loaders))
        table.add(name, *table.inspect(load(), target, id_data, labels=labels, cache=cache))
    if progress is not None:
        progress("inspect models", len(loaders), len(loaders))
    return table.ranking(missing_models(models) if missing is None else missing)


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
    rule = DepthRule(ratio=ratio, include_input=include_input, sets=sets)
    table = _Table(metrics, known is not None, measure=measure, rule=rule, level=level, settings=settings)
    for name, shown in targets.items():
        table.add(name, shown, None if known is None else known[name])
    return table.ranking({})


# ---------------------------------------------------------------------------------------- in the making


class _Table:
    """A ranking in the making: models come one after the other, and only what tables need of each is kept."""

    def __init__(
        self,
        metrics: Sequence[str] | None,
        has_known: bool,
        *,
        measure: str,
        rule: DepthRule,
        level: float,
        settings: InspectionSettings,
    ) -> None:
        self.keys = _chosen(metrics, has_known)
        check_name("measure", measure, MEASURES)
        rule.check()
        self.measure, self.rule, self.level, self.settings = measure, rule, level, settings
        self.by_name = metrics is not None  # COT is then computed however long it takes
        self.names: list[str] = []
        self.shown: list[Shown] = []
        self.rows: list[dict[str, Estimate]] = []
        self.sizes: list[dict[str, int]] = []
        self.absent: dict[str, str] = {}
        self._weights: Weights | None = None

    def inspect(
        self,
        model: Model,
        target: Images,
        id_data: Images | None,
        *,
        labels: bool | None,
        cache: str | Path | None,
    ) -> Shown:
        """What a model shows on the target and, where metrics learn from it, on its own domain."""
        task = task_for(target, model, labels=labels)
        needs = frozenset[str]().union(*(METRICS[key].needs for key in self.keys))
        parts = {"logits", "features", "output-scores", "edge-scores"} & needs
        if not (self.by_name or affordable_transport(task.n, model.n_classes)):
            parts -= {"logits"}
        shown = inspect_model(model, task, parts, settings=self.settings, cache=cache)
        if id_data is None or "known" not in needs:
            return shown, None
        own = task_for(id_data, model)
        more = {"sharpness"} & needs if own.labels is not None else ()
        return shown, inspect_model(model, own, more, settings=self.settings, cache=cache)

    def add(self, name: str, target: Inspection, known: Inspection | None) -> None:
        """One more model, by what it showed."""
        for each in (target, known):
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
            first, first_known = self.shown[0]
            check_comparable_inspections((self.names[0], name), first, target, what="target")
            if first_known is not None and known is not None:
                check_comparable_inspections((self.names[0], name), first_known, known, what="own-domain")
        self._note_missing(target, known)
        weights = self._weights_of(target, known)
        alone = [METRICS[key] for key in self.keys if key not in self.absent and not METRICS[key].together]
        self.rows.append({each.key: estimate(each, [(target, known)], weights) for each in alone})
        self.sizes.append({key: METRICS[key].n(target, known) for key in self.keys if key not in self.absent})
        self.shown.append((_light(target), None if known is None else _light(known)))
        self.names.append(name)

    def _lack(self, part: str, reason: str) -> None:
        for key in self.keys:
            if part in METRICS[key].needs:
                self.absent.setdefault(key, reason)

    def _note_missing(self, target: Inspection, known: Inspection | None) -> None:
        """Keep the reason for each metric that needs what the inspections have not."""
        if known is None:
            self._lack("known", "needs labelled images of the models' own domain (id_data, --id-images)")
        elif known.sharpness is None:
            self._lack("sharpness", "the models were not inspected for sharpness")
        if not (self.by_name or affordable_transport(target.n, target.n_classes)):
            self._lack(
                "logits",
                f"its linear programme would have {target.n * target.n_classes:,} unknowns; name the metric "
                "to compute it anyway, or give fewer images",
            )
        for part, value in (
            ("logits", target.logits),
            ("features", target.spectra),
            ("output-scores", target.output_scores),
            ("edge-scores", target.dependency_draws),
        ):
            if value is None:
                self._lack(part, f"the models were inspected without {part.replace('-', ' ')}")

    def _weights_of(self, target: Inspection, known: Inspection | None) -> Weights:
        """The same for every model; those of the target are the weights that inspections use, too."""
        if self._weights is None:
            other = int(stream(self.settings.seed, "rank/known-images").integers(2**62))
            self._weights = Weights(
                target=self._resampled(target, self.settings.seed),
                known=None if known is None else self._resampled(known, other),
                rule=self.rule,
                measure=self.measure,
                seed=self.settings.seed,
            )
        return self._weights

    def _resampled(self, shown: Inspection, seed: int) -> Float64[np.ndarray, "rows n"]:
        drawn = poisson_weights(shown.ids, self.settings.draws, seed=seed).astype(np.float64)
        return np.concatenate([once(shown.n), drawn])

    def ranking(self, missing: Mapping[str, str]) -> Ranking:
        """The table of the models so far."""
        distinct = copied_from([target for target, _ in self.shown]) == np.arange(len(self.shown))
        truth = self._performance(distinct)
        columns: dict[str, RankedMetric] = {}
        absent = {key: self.absent[key] for key in self.keys if key in self.absent}
        for key in (key for key in self.keys if key not in self.absent):
            numbers, reasons = self._numbers(key)
            if np.isnan(numbers[0]).all():
                absent[key] = reasons[0] or "undefined on these images"
                continue
            columns[key] = RankedMetric(
                metric=METRICS[key],
                numbers=numbers,
                sizes=tuple(sizes[key] for sizes in self.sizes),
                reasons=reasons,
                truth=None if truth is None else truth.numbers,
                distinct=distinct,
                level=self.level,
                seed=self.settings.seed,
            )
        (target, known), every = self.shown[0], [each for pair in self.shown for each in pair if each]
        return Ranking(
            names=tuple(self.names),
            columns=columns,
            absent=absent,
            performance=truth,
            measure=self.measure,
            inspections=tuple(each for each, _ in self.shown),
            target=_facts(target),
            known=None if known is None else _facts(known),
            rule=self.rule,
            settings=self.settings,
            level=self.level,
            costs=_total(every),
            missing=missing,
        )

    def _numbers(self, key: str) -> tuple[Float64[np.ndarray, "rows models"], tuple[str | None, ...]]:
        """A metric of all models, and why it is undefined for some."""
        if METRICS[key].together:
            assert self._weights is not None  # there is a model
            numbers, reason = estimate(METRICS[key], self.shown, self._weights)
            return numbers, (reason,) * len(self.shown)
        found = [row[key] for row in self.rows]
        return np.concatenate([each.rows for each in found], axis=1), tuple(each.reason for each in found)

    def _performance(self, distinct: np.ndarray) -> RankedMetric | None:
        labels, weights = self.shown[0][0].labels, self._weights
        if labels is None or weights is None:
            return None
        rows = [
            performance_of(target.predictions, labels, weights.target, measure=self.measure)
            for target, _ in self.shown
        ]
        return RankedMetric(
            metric=replace(
                METRICS["id-accuracy"], key="performance", name=self.measure, summary="true performance"
            ),
            numbers=np.stack(rows, axis=1),
            sizes=(len(labels),) * len(rows),
            reasons=(None,) * len(rows),
            truth=None,
            distinct=distinct,
            level=self.level,
            seed=self.settings.seed,
        )


def _chosen(metrics: Sequence[str] | None, has_known: bool) -> tuple[str, ...]:
    """Keys in the order of the table: the first that ranks models leads."""
    if metrics is None:
        first = ("id-accuracy",) if has_known else ()
        return tuple(dict.fromkeys((*first, *DEFAULT_METRICS)))
    if not metrics:
        raise InputError("metrics is empty; name some, or remove it for all")
    for key in metrics:
        check_name("ranking metric", key, METRICS)
    return tuple(dict.fromkeys(metrics))


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

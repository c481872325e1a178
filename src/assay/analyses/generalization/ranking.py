"""Which of several models to deploy: one table of models by metrics, with what picking by each is worth."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from assay.analyses.generalization import dependency, inspection
from assay.analyses.generalization import metrics as table
from assay.analyses.generalization.baselines import MEASURES, once, performance_of
from assay.analyses.generalization.evaluation import ratio_ablation
from assay.analyses.generalization.inspection import Inspection, InspectionSettings, decoded_once
from assay.analyses.generalization.metrics import METRICS, Shown, Weights
from assay.analyses.generalization.picking import LEVEL, RankedMetric, ranked_metric
from assay.core.errors import InputError, check_name, unknown_name
from assay.core.plotted import Plotted
from assay.core.random import stream
from assay.core.record import Record, library_version, record_id, same
from assay.models import Model, load_model
from assay.stats import poisson_weights
from assay.tasks import EvalTransform, ImageTask, load_images
from assay.zoo import Zoo


if TYPE_CHECKING:
    import pandas as pd

Images = ImageTask | str | Path | Callable[[Model], ImageTask]
OneModel = Model | str | Path | nn.Module | Callable[[], Model]
Inspected = tuple[str, Inspection, Inspection | None]

RESAMPLED = (
    "Resampled are the images (Poisson bootstrap), {:,} times, the same resamples for every model; held "
    "fixed are the models and the means that ablated edges carry."
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ranking(Plotted, Record):
    """Models by metrics on one target domain.

    Attributes:
        models: Facts about each, in the order given: name, blocks, the class given most often, what it is a
            copy of.
        columns: Key of the metric -> its column, in the order of tables.
        absent: Metrics that were asked for and are not there, with the reason.
        performance: True performance of each model with its interval and replicates; None without labels.
        measure: `"accuracy"` or `"macro-f1"`.
        inspections: What each model showed on the target, less logits, spectra and replicates.
        target: Facts about the images: domain, number, whether labelled.
        known: Facts about the labelled images of the models' own domain; None if there were none.
        ratio: Share tau of the blocks on each side of the depth bias.
        ratios: Correlations of each depth bias with performance over values of tau; None without labels.
        layers: Names of the rows and columns of the motif.
        motif: Which dependencies between layers go with performance over these models: `values`, or the
            `reason` why there are none. None where scores of all edges were not asked for.
        dependency: Dependency matrices of the models that the leading metric ranks first and last.
        costs: Stage -> seconds, and passes per image.
        missing: Model that should be here -> why it is not, e.g. because its training is not done.
        settings: How scores were measured and images drawn.
    """

    drawn_by = "assay.analyses.generalization.ranking_page:plot_ranking"
    record_kind = "ranking"
    record_schema = "assay-ranking/1"
    record_layout = {
        **same("id", "target", "known", "measure", "ratio", "level", "resampled", "models", "missing"),
        "performance": "performance.rows",
        "metrics": "columns.values",
        **same("absent", "ratios", "layers", "motif", "dependency", "costs", "provenance"),
    }
    level = LEVEL

    models: Sequence[Mapping[str, Any]]
    columns: Mapping[str, RankedMetric]
    absent: Sequence[Mapping[str, str]]
    performance: RankedMetric | None
    measure: str
    inspections: Sequence[Inspection]
    target: Mapping[str, Any]
    known: Mapping[str, Any] | None
    ratio: float
    ratios: Mapping[str, Any] | None
    layers: Sequence[str]
    motif: Mapping[str, Any] | None
    dependency: Sequence[Mapping[str, Any]] | None
    costs: Mapping[str, Any]
    missing: Mapping[str, str]
    settings: InspectionSettings

    def __repr__(self) -> str:
        domain, n = self.target["domain"], self.target["n"]
        return f"Ranking({len(self.models)} models, {len(self.columns)} metrics, {domain=}, {n=})"

    @property
    def names(self) -> tuple[str, ...]:
        """The models, in the order given."""
        return tuple(each["name"] for each in self.models)

    def column(self, metric: str) -> RankedMetric:
        """One metric.

        Raises:
            InputError: If it was asked for and could not be had; the message says why.
            UnknownNameError: If it was not asked for.
        """
        for each in self.absent:
            if each["key"] == metric:
                raise InputError(f"{metric} is not in this ranking: {each['reason']}")
        if metric not in self.columns:
            raise unknown_name("metric of this ranking", metric, self.columns)
        return self.columns[metric]

    def order(self, metric: str = "ddb-output") -> tuple[str, ...]:
        """Names of the models, predicted best first; models without a value last.

        Raises:
            InputError: If the metric's source states no direction, or it is absent.
        """
        ranks = self.column(metric).ranks
        if ranks is None:
            raise InputError(f"{metric} does not order models: its source does not give a direction")
        return tuple(self.names[index] for index in np.argsort(ranks, kind="stable"))  # NaN last

    def best(self, metric: str = "ddb-output") -> str:
        """The model that a metric predicts best; the first of equals."""
        return self.order(metric)[0]

    def to_frame(self) -> "pd.DataFrame":
        """One row per metric and model, true performance first: metric, model, value, low, high, rank."""
        import pandas as pd

        shown = {} if self.performance is None else {self.measure: self.performance}
        rows = [
            {"metric": key, "model": name, **row}
            for key, column in (shown | dict(self.columns)).items()
            for name, row in zip(self.names, column.rows, strict=True)
        ]
        return pd.DataFrame(rows, columns=["metric", "model", "value", "low", "high", "rank"])

    def table(self) -> "pd.DataFrame":
        """One row per model: performance (if known) and every metric; the index is the model's name."""
        frame = self.to_frame().pivot_table("value", "model", "metric", sort=False, dropna=False)
        return frame.loc[list(self.names)]

    @property
    def id(self) -> str:
        """Hash of how it came to be."""
        return record_id("ranking", self.provenance)

    @property
    def provenance(self) -> dict[str, Any]:
        """How it came to be."""
        return {
            "library": library_version(),
            "models": [each.provenance.get("model") for each in self.inspections],
            **{name: getattr(self, name) for name in ("target", "known", "measure", "ratio", "level")},
            "metrics": [*self.columns, *(each["key"] for each in self.absent)],
            "settings": self.settings.to_dict(),
        }

    @property
    def resampled(self) -> str:
        """What the intervals are over."""
        return RESAMPLED.format(self.settings.draws)


# ----------------------------------------------------------------------------------------- models that run


def rank_models(
    models: Zoo | str | Path | Mapping[str, OneModel],
    target: Images,
    *,
    id_data: Images | None = None,
    metrics: Sequence[str] | None = None,
    measure: str = "accuracy",
    ratio: float = 0.3,
    settings: InspectionSettings | None = None,
    missing: Mapping[str, str] | None = None,
    cache: str | Path | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Ranking:
    """Rank image classifiers by what their circuits and outputs say about a target domain.

    Args:
        models: A zoo or its folder, or named models: each a model, what `load_model` takes, or a function
            that gives one. They are loaded one at a time and let go of, so a zoo need not fit in memory.
        target: Images of the domain to deploy on: images, normalised for each model by its own transform;
            what `load_images` takes, e.g. a folder or "shapes:sketch"; or a function from a model to its
            images. Their labels, where they have any, only check the order.
        id_data: Labelled images of the domain that the models were trained for, likewise, not used in
            training. Metrics that learn from them are absent without.
        metrics: Keys of `METRICS`, in the order of the table: the first that ranks leads. Default: all but
            `"sharpness"`, ID accuracy first. Two need scores of all edges (`"ddb-deep"`, `"ddb-global"`) and
            about double the cost; they also give the motif.
        measure: True performance and ID accuracy: `"accuracy"`, or `"macro-f1"` over the classes that occur.
        ratio: tau of the depth bias, in (0, 0.5]. It is a share of the blocks, so models of different depth
            may be ranked together; the motif then uses relative positions of the layers.
        settings: How scores are measured and images drawn; equal for all models.
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
        InputError: For fewer than 2 models, fewer than 2 images, models or data of different classes, a ratio
            outside (0, 0.5], or data that differ between models.
        UnknownNameError: For an unknown metric or measure.

    Notes:
        A metric whose inputs are missing is in `absent` with the reason, never 0. The fast path of
        `"ddb-output"` costs about 7 forward passes per image, scores of all edges about 13.

    References:
        Peng et al. (2026), arXiv:2604.08192, sections 4 and 5.
    """
    settings = settings or InspectionSettings()
    models = Zoo.open(models) if isinstance(models, str | Path) else models
    if isinstance(models, Zoo):
        models.check_done(2)
        missing = models.missing if missing is None else missing
        models = {key: partial(models.load, key) for key in models.keys}
    needs = frozenset[str]().union(*(METRICS[key].needs for key in _chosen(metrics)))
    read = shared_images(target)
    read_known = None if id_data is None or "known" not in needs else shared_images(id_data)

    def show(one: OneModel) -> tuple[Inspection, Inspection | None]:
        """What a model shows; it is let go of before its numbers are computed."""
        if not isinstance(one, Model):
            one = load_model(one) if isinstance(one, str | Path | nn.Module) else one()
        task = read(one)
        how: dict[str, Any] = {"settings": settings, "cache": cache}
        parts = {"logits", "features", "output-scores", "edge-scores"} & needs
        if metrics is None and not table.affordable_transport(task.n, one.n_classes):
            parts -= {"logits"}
        shown = inspection.inspect_model(one, task, parts, **how)
        if read_known is None:
            return shown, None
        return shown, inspection.inspect_model(one, read_known(one), {"sharpness"} & needs, **how)

    def inspected() -> Iterator[Inspected]:
        for done, (name, one) in enumerate(models.items()):
            progress("inspect models", done, len(models))
            yield name, *show(one)
        progress("inspect models", len(models), len(models))

    return rank_inspections(
        inspected(), metrics=metrics, measure=measure, ratio=ratio, settings=settings, missing=missing
    )


def shared_images(images: Images) -> Callable[[Model], ImageTask]:
    """Images for many models, listed, drawn and decoded once for all that want the same pixels."""
    if isinstance(images, ImageTask) and (images.images is not None or images.transform is not None):
        return lambda model: images
    if callable(images):
        return images
    listed, ready = images if isinstance(images, ImageTask) else None, dict[str, ImageTask]()

    def read(model: Model) -> ImageTask:
        transform = EvalTransform.for_model(model)
        pixels = {**transform.to_dict(), **dict.fromkeys(("mean", "std", "rescale"))}
        key = json.dumps([pixels, model.classes], sort_keys=True)
        if key not in ready:
            found = load_images(images, model, hold=False) if listed is None else listed.for_model(model)
            ready[key] = decoded_once(found)
        return ready[key].with_transform(transform)

    return read


# --------------------------------------------------------------------------------- from what models showed


def rank_inspections(
    inspected: Iterable[Inspected],
    *,
    metrics: Sequence[str] | None = None,
    measure: str = "accuracy",
    ratio: float = 0.3,
    settings: InspectionSettings | None = None,
    missing: Mapping[str, str] | None = None,
) -> Ranking:
    """Rank models by what they showed; nothing is run, and only what tables need of each is kept.

    Args:
        inspected: Of each model its name, what it showed on the target, and what on labelled images of its
            own domain, or None.
        metrics: As in `rank_models`, as are the other arguments.
        measure: True performance and ID accuracy.
        ratio: tau of the depth bias.
        settings: With which the inspections were made.
        missing: Models that should be among them.

    Raises:
        InputError: As `rank_models`, and for inspections made with other settings.
    """
    settings, keys, rule = (
        settings or InspectionSettings(),
        _chosen(metrics),
        dependency.DepthRule(ratio=ratio),
    )
    check_name("measure", measure, MEASURES)
    rule.check()
    names: list[str] = []
    shown: list[Shown] = []
    found: dict[str, list[table.Estimate]] = {key: [] for key in keys}
    sizes, costs = dict[str, int](), dict[str, dict[str, Any]]()
    for name, target, known in inspected:
        for each in filter(None, (target, known)):
            if odd := each.provenance.get("settings", {}).items() - settings.to_dict().items():
                raise InputError(f"{name} was measured with {dict(odd)}; measure all as this ranking does")
            for stage, spent in each.cost.items():
                cost = costs.setdefault(stage, {"seconds": 0.0, "passes": spent["passes"]})
                cost["seconds"] += spent["seconds"]
        if shown:
            inspection.check_comparable_inspections((names[0], name), shown[0][0], target, what="target")
            if known is not None and shown[0][1] is not None:
                inspection.check_comparable_inspections(
                    (names[0], name), shown[0][1], known, what="own-domain"
                )
        else:
            weights = _weights(target, known, rule, measure, settings)
        for key, metric in ((key, METRICS[key]) for key in keys):
            sizes[key] = metric.n(target, known)
            if not metric.together:
                found[key].append(table.estimate(metric, [(target, known)], weights))
        light = replace(target, logits=None, spectra=None, output_draws=None, dependency_draws=None)
        shown.append((light, known))
        names.append(name)
    if len(names) < 2:
        raise InputError(f"got {len(names)} model(s); give at least 2 to rank")
    inspections, (target, known) = [each for each, _ in shown], shown[0]
    copies = inspection.copied_from(inspections)
    distinct = np.unique(copies)
    how: dict[str, Any] = {"distinct": distinct, "seed": settings.seed}
    truth, performance = None, None
    if (labels := target.labels) is not None:
        rows = [performance_of(e.predictions, labels, weights.target, measure=measure) for e in inspections]
        truth, true = np.stack(rows, axis=1), replace(METRICS["id-accuracy"], key="performance", name=measure)
        performance = ranked_metric(true, truth, target.n, [None] * len(names), truth=None, **how)
    columns, absent = dict[str, RankedMetric](), []
    for key, metric in ((key, METRICS[key]) for key in keys):
        made = [table.estimate(metric, shown, weights)] if metric.together else found[key]
        numbers = np.concatenate([each.rows for each in made], axis=1)
        reasons = [each.reason for each in made] * (len(names) // len(made))
        if np.isnan(numbers[0]).all():
            reason = reasons[0] or "undefined on these images"
            absent.append({"key": key, "name": metric.name, "reason": reason})
        else:
            columns[key] = ranked_metric(metric, numbers, sizes[key], reasons, truth=truth, **how)
    return Ranking(
        models=[
            _model(name, each, None if copies[place] == place else names[copies[place]])
            for place, (name, each) in enumerate(zip(names, inspections, strict=True))
        ],
        columns=columns,
        absent=absent,
        performance=performance,
        measure=measure,
        inspections=inspections,
        target=_facts(target),
        known=None if known is None or known.labels is None else _facts(known),
        ratio=ratio,
        costs=costs,
        missing=missing or {},
        settings=settings,
        **_network(names, inspections, columns, None if truth is None else truth[0], distinct),
    )


def _chosen(metrics: Sequence[str] | None) -> Sequence[str]:
    """Keys in the order of the table: the first that ranks models leads."""
    if metrics is not None and not metrics:
        raise InputError("metrics is empty; name some, or remove it for all")
    for key in metrics or ():
        check_name("ranking metric", key, METRICS)
    return table.DEFAULT_METRICS if metrics is None else tuple(dict.fromkeys(metrics))


def _weights(
    target: Inspection,
    known: Inspection | None,
    rule: dependency.DepthRule,
    measure: str,
    settings: InspectionSettings,
) -> Weights:
    """The same for every model; those of the target are the weights that inspections use, too."""

    def resampled(shown: Inspection, seed: int) -> np.ndarray:
        return np.concatenate([once(shown.n), poisson_weights(shown.ids, settings.draws, seed=seed)])

    other = int(stream(settings.seed, "rank/known-images").integers(2**62))
    return Weights(
        target=resampled(target, settings.seed),
        known=once(0) if known is None else resampled(known, other),
        rule=rule,
        measure=measure,
        seed=settings.seed,
    )


def _model(name: str, shown: Inspection, copied: str | None) -> dict[str, Any]:
    model, counts = shown.provenance.get("model") or {}, np.bincount(shown.predictions)
    top = int(counts.argmax())
    return {
        "name": name,
        "id": model.get("id"),
        "weight_hash": model.get("weight_hash"),
        "blocks": shown.graph.n_layers,
        "top_class": str(top) if shown.classes is None else shown.classes[top],
        "top_share": counts[top] / shown.n,
        **({} if copied is None else {"copy_of": copied}),
    }


def _facts(shown: Inspection) -> dict[str, Any]:
    task = shown.provenance.get("task", {})
    facts = {name: task.get(name, "") for name in ("name", "domain", "data_hash")}
    facts |= {"config": task.get("config", {}), "n": shown.n, "n_classes": shown.n_classes}
    return facts | {"labelled": shown.labels is not None, "notes": task.get("notes", [])}


def _network(
    names: Sequence[str],
    inspections: Sequence[Inspection],
    columns: Mapping[str, RankedMetric],
    truth: np.ndarray | None,
    distinct: np.ndarray,
) -> dict[str, Any]:
    """Where in the network models differ: ratios, motif and matrices of a `Ranking`."""
    depths = [each.graph.n_layers for each in inspections]
    matrices = [each.dependency for each in inspections if each.dependency is not None]
    whole, ratios, pattern, ends = len(matrices) == len(inspections), None, None, None
    if truth is not None and len(distinct) > 2 and np.ptp(truth[distinct]) > 0:
        summed = matrices if whole else [_output_column(each) for each in inspections]
        ratios = {
            targets: [
                {"ratio": ratio, **vars(each)}
                for ratio, each in ratio_ablation(
                    [torch.from_numpy(summed[at]) for at in distinct], truth[distinct], targets=targets
                ).items()
            ]
            for targets in dependency.TARGETS
            if f"ddb-{targets}" in columns
        }
    if whole:
        try:
            if truth is None:
                raise InputError("a motif needs the performance of the models: the target has no labels")
            stacked = [dependency.at_relative_layers(matrices[at], min(depths)) for at in distinct]
            made = dependency.motif(np.stack(stacked), truth[distinct])
            facts = {name: getattr(made, name) for name in ("used", "correlation", "n")}
            pattern = {"values": made.loadings, **facts, "kind": "loadings", "reason": None}
        except InputError as error:
            pattern = {"values": None, "reason": str(error)}
        ranked = (each.ranks for each in columns.values() if each.ranks is not None)
        ranks = next((each for each in ranked if np.isfinite(each).any()), np.zeros(1))
        ends = [
            {"name": names[at], "values": matrices[at], "layers": dependency.layer_names(depths[at])}
            for at in dict.fromkeys((int(np.nanargmin(ranks)), int(np.nanargmax(ranks))))
        ]
    layers = dependency.layer_names(min(depths), relative=len(set(depths)) > 1)
    return {"layers": layers, "ratios": ratios or None, "motif": pattern, "dependency": ends}


def _output_column(shown: Inspection) -> np.ndarray:
    """The dependency matrix of a model whose edges into the logits alone were scored."""
    scores = np.zeros(shown.graph.n_sources) if shown.output_scores is None else shown.output_scores
    return np.asarray(dependency.layer_sums(shown.graph, np.abs(scores[None]))[0])

"""Which of several models to deploy: one table of models by metrics, with what picking by each is worth."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from jaxtyping import Float64
from torch import nn

from assay.analyses.generalization import dependency, inspection
from assay.analyses.generalization import metrics as table
from assay.analyses.generalization.baselines import MEASURES, once, performance_of
from assay.analyses.generalization.evaluation import TaskCorrelation, correlate
from assay.analyses.generalization.inspection import Inspection, InspectionSettings, decoded_once
from assay.analyses.generalization.metrics import METRICS, Metric, Numbers, Weights
from assay.core.errors import InputError, check_name, unknown_name
from assay.core.random import stream
from assay.core.record import Plotted, Record, library_version, record_id, same
from assay.core.verdict import Interval, undefined_interval
from assay.models import Model, load_model
from assay.stats import poisson_weights
from assay.stats.resampled import ResampledValue
from assay.tasks import EvalTransform, ImageTask, load_images
from assay.zoo import Zoo


if TYPE_CHECKING:
    import pandas as pd

Images = ImageTask | str | Path | Callable[[Model], ImageTask]
OneModel = Model | str | Path | nn.Module | Callable[[], Model]
Inspected = tuple[str, Inspection, Inspection | None]
Values = Float64[np.ndarray, " models"]

LEVEL = 0.95  # coverage of the intervals
UNDEFINED_SHARE = 0.05  # replicates that may be undefined before the interval is
_HEAVY = ("logits", "spectrum", "centred_spectrum", "output_draws", "dependency_draws")  # of an inspection
RESAMPLED = (
    "Resampled are the images (Poisson bootstrap), {:,} times, the same resamples for every model; held "
    "fixed are the models and the means that ablated edges carry."
)


# -------------------------------------------------------------------------------- what a metric is worth


@dataclass(frozen=True, kw_only=True)
class Regret(Record):
    """What is lost by picking a model by a metric instead of by true performance.

    Attributes:
        observed: Best performance - performance of the picked model, on the images at hand; ties among the
            picked count as a random choice.
        expected: Mean of the same over the resamples, metric and performance drawn together.
        interval: Percentiles of the same.
        random: Mean over the resamples for a model picked blindly.
    """

    observed: float
    expected: float
    interval: Interval
    random: float


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedMetric(Record):
    """One metric over all models.

    Attributes:
        metric: What it is.
        numbers: Value of each model, NaN where undefined, then its replicates, `[1 + draws, models]`.
        rows: Of each model `value`; `low`, `high`, `method`, `reason` of its interval over resampled images;
            `rank` (1 is predicted best); `chance`, the share of the resamples in which it is the best, ties
            shared equally. Rank and chance are None where the metric's source states no direction.
        regret: Of picking by it; None without labels or direction.
        correlation: With true performance; None without labels, for fewer than 3 models with a value, and
            where nothing varies.
    """

    record_layout = {
        **same("key", "name", "summary", "direction", "best_at", of="metric"),
        **same("rows", "regret", "correlation"),
    }

    metric: Metric
    numbers: Numbers
    rows: Sequence[Mapping[str, Any]]
    regret: Regret | None = None
    correlation: TaskCorrelation | None = None

    @property
    def values(self) -> Values:
        """The metric of each model."""
        return np.asarray(self.numbers[0])

    @property
    def ranks(self) -> Values | None:
        """1 is predicted best; None where the metric's source states no direction."""
        oriented = self.metric.oriented(self.values)
        return None if oriented is None else ranks(oriented)


def ranked_metric(
    metric: Metric, numbers: Numbers, n: int, reasons: Sequence[str | None], truth: Numbers | None = None
) -> RankedMetric:
    """One metric over all models.

    Args:
        metric: What it is.
        numbers: Values, then replicates, `[1 + draws, models]`.
        n: Images behind the number of each model.
        reasons: Why a number of a model is undefined.
        truth: True performance of the models under the same resamples; None without labels.
    """
    oriented, regret, correlation = metric.oriented(numbers), None, None
    places: Iterable[float | None] = [None] * len(reasons)
    chances = places
    if oriented is not None:
        places = ranks(oriented[0])
        if np.isfinite(oriented[1:]).any():
            chances = shares_of_best(oriented[1:]).mean(0)
        if truth is not None:
            regret = regret_of_picking(oriented, truth)
    rows = []
    for column, reason, rank, chance in zip(numbers.T, reasons, places, chances, strict=True):
        found = interval_of(column, n, metric)
        row = {"value": column[0], "low": found.low, "high": found.high, "method": found.method}
        rows.append({**row, "reason": reason or found.reason, "rank": rank, "chance": chance})
    if truth is not None:
        x, y = np.stack([numbers[0], truth[0]])[:, np.isfinite(numbers[0])]
        if len(x) >= 3 and np.ptp(x) > 0 and np.ptp(y) > 0:
            correlation = correlate(x, y)
    return RankedMetric(metric=metric, numbers=numbers, rows=rows, regret=regret, correlation=correlation)


def interval_of(numbers: Float64[np.ndarray, " rows"], n: int, metric: Metric) -> Interval:
    """The interval of a metric of one model on n images; undefined without replicates."""
    value, draws = float(numbers[0]), numbers[1:]
    defined = np.isfinite(draws)
    if math.isnan(value) or not defined.any():
        return undefined_interval(LEVEL, "resampled", "no_replicates")
    if defined.mean() < 1 - UNDEFINED_SHARE:
        return undefined_interval(LEVEL, "resampled", "undefined_replicates")
    return ResampledValue(value=value, draws=draws, n=n, bounds=metric.bounds).interval(level=LEVEL)


def ranks(oriented: Values) -> Values:
    """1 for the model predicted best; ties share the smaller rank; NaN where the metric is."""
    return np.asarray(scipy.stats.rankdata(-oriented, method="min", nan_policy="omit"), dtype=np.float64)


def shares_of_best(oriented: Numbers) -> Numbers:
    """Of each row: 1 / ties for each model at the top; all equal where no model has a value."""
    filled = np.where(np.isfinite(oriented), oriented, -np.inf)
    top = filled == filled.max(1, keepdims=True)
    return np.asarray(top / top.sum(1, keepdims=True))


def regret_of_picking(oriented: Numbers, performance: Numbers) -> Regret:
    """Regret of picking the model of the highest metric.

    E_b[ max_m perf_b(m) - perf_b(argmax_m metric_b(m)) ], b a resample of the images.

    Args:
        oriented: The metric of each model, higher predicted better; NaN is never picked. A metric without
            replicates picks the same model in every resample.
        performance: True performance of each model, under the same resamples.

    Returns:
        In the unit of performance, >= 0; lower is better. The maximum over resampled performances is a little
        too good, for every metric alike: `random` is the yardstick, not 0.
    """
    if not np.isfinite(oriented[1:]).any():
        oriented = np.tile(oriented[0], (len(performance), 1))
    best = performance.max(1)
    observed, *regrets = best - (shares_of_best(oriented) * performance).sum(1)
    low, high = np.quantile(regrets, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Regret(
        observed=float(observed),
        expected=float(np.mean(regrets)),
        interval=Interval(low=float(low), high=float(high), level=LEVEL, method="percentile"),
        random=float((best - performance.mean(1))[1:].mean()),
    )


# ------------------------------------------------------------------------------------------------ the ranking


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ranking(Plotted, Record):
    """Models by metrics on one target domain.

    Attributes:
        models: Facts about each, in the order given: name, blocks, the class given most often.
        columns: Key of the metric -> its column, in the order of tables.
        absent: Metrics that were asked for and are not there, with the reason.
        performance: True performance of each model with its interval and replicates; None without labels.
        measure: `"accuracy"` or `"macro-f1"`.
        inspections: What each model showed on the target, and its cost, less logits, spectra and replicates.
        target: Facts about the images: domain, number, whether labelled.
        known: Facts about the labelled images of the models' own domain; None if there were none.
        ratio: Share tau of the blocks on each side of the depth bias.
        motif: Which dependencies between layers go with performance over these models: `values`, or the
            `reason` why there are none. None where scores of all edges were not asked for.
        dependency: Dependency matrices of the models that the leading metric ranks first and last.
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
        **same("absent", "motif", "dependency", "provenance"),
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
    motif: Mapping[str, Any] | None
    dependency: Sequence[Mapping[str, Any]] | None
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


def rank_models(
    models: Zoo | str | Path | Mapping[str, OneModel],
    target: Images,
    *,
    id_data: Images | None = None,
    metrics: Sequence[str] | None = None,
    measure: str = "accuracy",
    ratio: float = 0.3,
    settings: InspectionSettings | None = None,
    device: str | None = None,
    cache: str | Path | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Ranking:
    """Rank image classifiers by what their circuits and outputs say about a target domain.

    Args:
        models: A zoo or its folder, of which the models that are done are ranked; or named models: each a
            model, what `load_model` takes, or a function that gives one. They are loaded one at a time and
            let go of, so a zoo need not fit in memory.
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
            may be ranked together; there is then no motif.
        settings: How scores are measured and images drawn; equal for all models.
        device: Where the models of a zoo run. Default: the CPU.
        cache: Folder in which what each model showed is kept under the hash of weights, images and settings;
            an interrupted call goes on from there.
        progress: Called with a stage, models done and models in all.

    Returns:
        The table with intervals, ranks, chances of being the best and, with labels, regrets and correlations.
        Resampled are the images (paired over the models); held fixed are the models and the means that
        ablated edges carry.

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
    settings, missing = settings or InspectionSettings(), dict[str, str]()
    models = Zoo.open(models) if isinstance(models, str | Path) else models
    if isinstance(models, Zoo):
        models.check_done(2)
        missing = dict(models.missing)
        models = {key: partial(models.load, key, device=device) for key in models.keys}
    needs = frozenset[str]().union(*(METRICS[key].needs for key in _chosen(metrics)))
    read = shared_images(target)
    read_known = None if id_data is None or "known" not in needs else shared_images(id_data)

    def show(one: OneModel) -> tuple[Inspection, Inspection | None]:
        """What a model shows; it is let go of before its numbers are computed."""
        if not isinstance(one, Model):
            one = load_model(one) if isinstance(one, str | Path | nn.Module) else one()
        task = read(one)
        parts = {"logits", "features", "output-scores", "edge-scores"} & needs
        if metrics is None and not table.affordable_transport(task.n, one.n_classes):
            parts -= {"logits"}
        inspect = partial(inspection.inspect_model, one, settings=settings, cache=cache)
        shown = inspect(task, parts)
        return shown, None if read_known is None else inspect(read_known(one), {"sharpness"} & needs)

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
    ready = dict[str, ImageTask]()

    def read(model: Model) -> ImageTask:
        transform = EvalTransform.for_model(model)
        pixels = {**transform.to_dict(), **dict.fromkeys(("mean", "std", "rescale"))}
        key = json.dumps([pixels, model.classes], sort_keys=True)
        if key not in ready:
            if isinstance(images, ImageTask):
                found = images.for_model(model)
            else:
                found = load_images(images, model, hold=False)
            ready[key] = decoded_once(found)
        return ready[key].with_transform(transform)

    return read


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
        InputError: As `rank_models`.
    """
    settings, keys = settings or InspectionSettings(), _chosen(metrics)
    check_name("measure", measure, MEASURES)
    rule = dependency.DepthRule(ratio=ratio)
    names, shown = list[str](), list[tuple[Inspection, Inspection | None]]()
    found: dict[str, list[table.Estimate]] = {key: [] for key in keys}
    light: dict[str, Any] = dict.fromkeys(_HEAVY)

    def resampled(shown: Inspection, seed: int) -> Numbers:
        """The same for every model; of the target, the weights that inspections use, too."""
        return np.concatenate([once(shown.n), poisson_weights(shown.ids, settings.draws, seed=seed)])

    for name, target, known in inspected:
        if shown:
            _refuse_unlike((names[0], name), shown[0], (target, known))
        else:
            other = int(stream(settings.seed, "rank/known-images").integers(2**62))
            weights = Weights(
                target=resampled(target, settings.seed),
                known=once(0) if known is None else resampled(known, other),
                rule=rule,
                measure=measure,
            )
        for key in keys:
            if not METRICS[key].together:
                found[key].append(table.estimate(METRICS[key], [(target, known)], weights))
        shown.append((replace(target, **light), known))
        names.append(name)
    if len(names) < 2:
        raise InputError(f"got {len(names)} model(s); give at least 2 to rank")
    inspections, (target, known) = [each for each, _ in shown], shown[0]
    truth, performance = None, None
    if (labels := target.labels) is not None:
        rows = [performance_of(e.predictions, labels, weights.target, measure=measure) for e in inspections]
        truth, true = np.stack(rows, axis=1), replace(METRICS["id-accuracy"], key="performance", name=measure)
        performance = ranked_metric(true, truth, target.n, [None] * len(names))
    columns, absent = dict[str, RankedMetric](), []
    for key, metric in ((key, METRICS[key]) for key in keys):
        made = [table.estimate(metric, shown, weights)] if metric.together else found[key]
        numbers = np.concatenate([each.rows for each in made], axis=1)
        reasons = [each.reason for each in made] * (len(names) // len(made))
        if np.isnan(numbers[0]).all():
            reason = reasons[0] or "undefined on these images"
            absent.append({"key": key, "name": metric.name, "reason": reason})
        else:
            n = known.n if known is not None and metric.over == "known" else target.n
            columns[key] = ranked_metric(metric, numbers, n, reasons, truth)
    return Ranking(
        models=[_model(name, each) for name, each in zip(names, inspections, strict=True)],
        columns=columns,
        absent=absent,
        performance=performance,
        measure=measure,
        inspections=inspections,
        target=_facts(target),
        known=None if known is None or known.labels is None else _facts(known),
        ratio=ratio,
        motif=_motif(inspections, truth),
        dependency=_first_and_last(names, inspections, columns),
        missing=missing or {},
        settings=settings,
    )


def _chosen(metrics: Sequence[str] | None) -> Sequence[str]:
    """Keys in the order of the table: the first that ranks models leads."""
    if metrics is not None and not metrics:
        raise InputError("metrics is empty; name some, or remove it for all")
    for key in metrics or ():
        check_name("ranking metric", key, METRICS)
    return table.DEFAULT_METRICS if metrics is None else tuple(dict.fromkeys(metrics))


def _refuse_unlike(
    names: tuple[str, str], first: Sequence[Inspection | None], second: Sequence[Inspection | None]
) -> None:
    """Numbers of models with other classes, or on other images, do not compare; their graphs may differ."""
    both = " and ".join(names)
    for what, one, other in zip(("target", "own-domain"), first, second, strict=True):
        if one is None or other is None:
            continue
        if (one.n_classes, one.classes) != (other.n_classes, other.classes):
            raise InputError(f"{both} have different classes ({one.classes} and {other.classes})")
        if not (np.array_equal(one.ids, other.ids) and np.array_equal(one.labels, other.labels)):  # type: ignore[arg-type]
            raise InputError(f"{both} were given different {what} images; give both the same")


def _model(name: str, shown: Inspection) -> dict[str, Any]:
    model, counts = shown.provenance.get("model") or {}, np.bincount(shown.predictions)
    top = int(counts.argmax())
    return {
        "name": name,
        "id": model.get("id"),
        "weight_hash": model.get("weight_hash"),
        "blocks": shown.graph.n_layers,
        "top_class": str(top) if shown.classes is None else shown.classes[top],
        "top_share": counts[top] / shown.n,
    }


def _facts(shown: Inspection) -> dict[str, Any]:
    task = shown.provenance.get("task", {})
    facts = {name: task.get(name, "") for name in ("name", "domain", "data_hash")}
    facts |= {"config": task.get("config", {}), "n": shown.n, "n_classes": shown.n_classes}
    return facts | {"labelled": shown.labels is not None, "notes": task.get("notes", [])}


def _motif(inspections: Sequence[Inspection], truth: Numbers | None) -> dict[str, Any] | None:
    """Where in the network models differ that perform differently."""
    matrices = [each.dependency for each in inspections if each.dependency is not None]
    if len(matrices) < len(inspections):
        return None
    try:
        if truth is None:
            raise InputError("a motif needs the performance of the models: the target has no labels")
        if len({each.graph.n_layers for each in inspections}) > 1:
            raise InputError("a motif needs models of one depth")
        made = dependency.motif(np.stack(matrices), truth[0])
    except InputError as error:
        return {"values": None, "reason": str(error)}
    facts = {name: getattr(made, name) for name in ("used", "correlation", "n", "kind")}
    return {"values": made.loadings, **facts, "reason": None}


def _first_and_last(
    names: Sequence[str], inspections: Sequence[Inspection], columns: Mapping[str, RankedMetric]
) -> list[dict[str, Any]] | None:
    """Dependency matrices of the models that the leading metric ranks first and last."""
    if any(each.dependency is None for each in inspections):
        return None
    order = next((each.ranks for each in columns.values() if each.ranks is not None), np.zeros(1))
    ends = dict.fromkeys((int(np.nanargmin(order)), int(np.nanargmax(order))))
    return [{"name": names[at], "values": inspections[at].dependency} for at in ends]

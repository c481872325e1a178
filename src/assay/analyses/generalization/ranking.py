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

from assay.analyses.generalization import inspection
from assay.analyses.generalization.alarms import TaskCorrelation, correlate, summarize_correlations
from assay.analyses.generalization.baselines import MEASURES, once, performance_of
from assay.analyses.generalization.dependency import motif
from assay.analyses.generalization.inspection import METRICS, Inspection, InspectionSettings, Numbers
from assay.core.errors import InputError, check_name
from assay.core.measurement import Interval
from assay.core.random import stream
from assay.core.record import Plotted, Record, library_version, plain, record_id, same
from assay.models import Model, load_model
from assay.stats import poisson_weights
from assay.stats.resampled import ResampledValue
from assay.tasks import EvalTransform, ImageTask, load_images
from assay.zoo import Zoo
from assay.zoo.archive import Progress


if TYPE_CHECKING:
    import pandas as pd

Images = ImageTask | str | Path
OneModel = Model | str | Path | Callable[[], Model]
Inspected = tuple[str, Inspection, Inspection | None]
Values = Float64[np.ndarray, " models"]


LEVEL = 0.95  # coverage of the intervals


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
        values: Of each model, NaN where undefined.
        ranks: 1 is predicted best; None where the metric's source states no direction.
        rows: Of each model `value`; `low`, `high`, `method`, `reason` of its interval over resampled images;
            `rank`; `chance`, the share of the resamples in which it is the best, ties shared equally, None
            without a direction.
        regret: Of picking by it; None without labels or direction.
        correlation: With true performance; None without labels, for fewer than 3 models with a value, and
            where nothing varies.
    """

    record_layout = {
        **same("key", "name", "summary", "direction", "best_at", of="metric"),
        **same("rows", "regret", "correlation"),
    }

    metric: inspection.Metric
    values: Values
    ranks: Values | None
    rows: Sequence[Mapping[str, Any]]
    regret: Regret | None
    correlation: TaskCorrelation | None


def ranked_metric(
    metric: inspection.Metric, numbers: Numbers, n: int, reasons: Sequence[str | None], truth: Numbers | None
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
    places = None if oriented is None else ranks(oriented[0])
    resampled = oriented is not None and np.isfinite(oriented[1:]).any()
    chances = shares_of_best(oriented[1:]).mean(0) if oriented is not None and resampled else None
    rows = []
    for place, (column, reason) in enumerate(zip(numbers.T, reasons, strict=True)):
        value = ResampledValue(value=float(column[0]), draws=column[1:], n=n, bounds=metric.bounds)
        ends = value.interval(level=LEVEL)
        row = {"value": column[0], "low": ends.low, "high": ends.high, "method": ends.method}
        row |= {"reason": reason or ends.reason, "rank": None if places is None else places[place]}
        rows.append(row | {"chance": None if chances is None else chances[place]})
    if truth is not None:
        regret = None if oriented is None else regret_of_picking(oriented, truth)
        x, y = np.stack([numbers[0], truth[0]])[:, np.isfinite(numbers[0])]
        if len(x) >= 3 and np.ptp(x) > 0 and np.ptp(y) > 0:
            correlation = correlate(x, y)
    return RankedMetric(
        metric=metric, values=numbers[0], ranks=places, rows=rows, regret=regret, correlation=correlation
    )


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
        names: The models, in the order given.
        inspections: What each showed on the target.
        own: What the first showed on labelled images of the models' own domain; None without these.
        columns: Key of the metric -> its column, in the order of tables.
        absent: Metrics that were asked for and are not there, with the reason.
        performance: True performance of each model with its interval; None without labels.
        measure: `"accuracy"` or `"macro-f1"`.
        missing: Model that should be here -> why it is not, e.g. because its training is not done.
        settings: How scores were measured and images drawn.
    """

    drawn_by = "assay.analyses.generalization.ranking_page:plot_ranking"
    record_kind = "ranking"
    record_schema = "assay-ranking/1"
    record_layout = {
        **same("id", "target", "known", "measure", "level", "models", "missing"),
        "performance": "performance.rows",
        "metrics": "columns.values",
        **same("absent", "motif", "dependency", "provenance"),
    }
    level = LEVEL

    names: Sequence[str]
    inspections: Sequence[Inspection]
    own: Inspection | None
    columns: Mapping[str, RankedMetric]
    absent: Sequence[Mapping[str, str]]
    performance: RankedMetric | None
    measure: str
    missing: Mapping[str, str]
    settings: InspectionSettings

    def __repr__(self) -> str:
        domain, n = self.target["domain"], self.target["n"]
        return f"Ranking({len(self.names)} models, {len(self.columns)} metrics, {domain=}, {n=})"

    @property
    def models(self) -> list[dict[str, Any]]:
        """Facts about each model: name, blocks, the class given most often."""
        facts = []
        for name, shown in zip(self.names, self.inspections, strict=True):
            model, counts = shown.provenance.get("model") or {}, np.bincount(shown.predictions)
            top = int(counts.argmax())
            row = {"name": name, "id": model.get("id"), "weight_hash": model.get("weight_hash")}
            row |= {"blocks": shown.graph.n_layers, "top_share": counts[top] / shown.n}
            facts.append(row | {"top_class": str(top) if shown.classes is None else shown.classes[top]})
        return facts

    @property
    def target(self) -> dict[str, Any]:
        """Facts about the images: domain, number, whether labelled."""
        return _facts(self.inspections[0])

    @property
    def known(self) -> dict[str, Any] | None:
        """Facts about the labelled images of the models' own domain; None if there were none."""
        return None if self.own is None or self.own.labels is None else _facts(self.own)

    @property
    def motif(self) -> dict[str, Any] | None:
        """Which dependencies between layers go with performance over these models.

        `values`, or the `reason` why there are none. None where scores of all edges were not asked for.
        """
        matrices = [each.dependency for each in self.inspections if each.dependency is not None]
        if len(matrices) < len(self.names):
            return None
        try:
            if self.performance is None:
                raise InputError("a motif needs the performance of the models: the target has no labels")
            if len({each.graph.n_layers for each in self.inspections}) > 1:
                raise InputError("a motif needs models of one depth")
            made = motif(np.stack(matrices), self.performance.values)
        except InputError as error:
            return {"values": None, "reason": str(error)}
        facts = {name: getattr(made, name) for name in ("used", "correlation", "n", "kind")}
        return {"values": made.loadings, **facts, "reason": None}

    @property
    def dependency(self) -> list[dict[str, Any]] | None:
        """Dependency matrices of the models that the leading metric ranks first and last."""
        if any(each.dependency is None for each in self.inspections):
            return None
        order = next((each.ranks for each in self.columns.values() if each.ranks is not None), np.zeros(1))
        ends = dict.fromkeys((int(np.nanargmin(order)), int(np.nanargmax(order))))
        return [{"name": self.names[at], "values": self.inspections[at].dependency} for at in ends]

    def column(self, metric: str) -> RankedMetric:
        """One metric.

        Raises:
            InputError: If it was asked for and could not be had; the message says why.
            UnknownNameError: If it was not asked for.
        """
        reasons = {each["key"]: each["reason"] for each in self.absent}
        if metric in reasons:
            raise InputError(f"{metric} is not in this ranking: {reasons[metric]}")
        check_name("metric of this ranking", metric, self.columns)
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
        facts = {name: getattr(self, name) for name in ("target", "known", "measure", "level")}
        facts |= {"metrics": [*self.columns, *(each["key"] for each in self.absent)]}
        models = [each.provenance.get("model") for each in self.inspections]
        return facts | {"library": library_version(), "models": models, "settings": self.settings.to_dict()}


def rank_models(
    models: Zoo | str | Path | Mapping[str, OneModel],
    target: Images,
    *,
    id_data: Images | None = None,
    metrics: Sequence[str] | None = None,
    settings: InspectionSettings | None = None,
    device: str | None = None,
    cache: str | Path | None = None,
    progress: Progress = lambda stage, done, total: None,
    **options: Any,
) -> Ranking:
    """Rank image classifiers by what their circuits and outputs say about a target domain.

    Args:
        models: A zoo or its folder, of which the models that are done are ranked; or named models: each a
            model, what `load_model` takes, or a function that gives one. They are loaded one at a time and
            let go of, so a zoo need not fit in memory.
        target: Images of the domain to deploy on: images, normalised for each model by its own transform;
            or what `load_images` takes, e.g. a folder or "shapes:sketch". Their labels, where they have any,
            only check the order.
        id_data: Labelled images of the domain that the models were trained for, likewise, not used in
            training. Metrics that learn from them are absent without.
        metrics: Keys of `METRICS`, in the order of the table: the first that ranks leads. Default: all but
            `"sharpness"`, and all but `"cot"` for more than 200,000 images times classes; ID accuracy first.
            Two need scores of all edges (`"ddb-deep"`, `"ddb-global"`) and about double the cost; they also
            give the motif.
        settings: How scores are measured and images drawn; equal for all models.
        device: Where the models of a zoo run. Default: the CPU.
        cache: Folder in which what each model showed is kept under the hash of weights, images and settings;
            an interrupted call goes on from there.
        progress: Called with a stage, models done and models in all.
        options: `measure` of `rank_inspections`.

    Returns:
        The table with intervals, ranks, chances of being the best and, with labels, regrets and correlations.
        Resampled are the images (paired over the models); held fixed are the models and the means that
        ablated edges carry.

    Raises:
        InputError: For fewer than 2 models, fewer than 2 images, models or data of different classes, or data
            that differ between models.
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
            one = load_model(one) if isinstance(one, str | Path) else one()
        task, parts = read(one), {"logits", "features", "output-scores", "edge-scores"} & needs
        if metrics is None and task.n * one.n_classes > inspection.COT_LIMIT:
            parts -= {"logits"}
        inspect = partial(inspection.inspect_model, one, settings=settings, cache=cache)
        shown = inspect(task, parts)
        return shown, None if read_known is None else inspect(read_known(one), {"sharpness"} & needs)

    def inspected() -> Iterator[Inspected]:
        for done, (name, one) in enumerate(models.items()):
            progress("inspect models", done, len(models))
            yield name, *show(one)
        progress("inspect models", len(models), len(models))

    return rank_inspections(inspected(), metrics, missing=missing, settings=settings, **options)


def shared_images(images: Images) -> Callable[[Model], ImageTask]:
    """Images for many models, listed, drawn and decoded once for all that want the same pixels."""
    if isinstance(images, ImageTask) and (images.images is not None or images.transform is not None):
        return lambda model: images
    ready = dict[str, ImageTask]()

    def read(model: Model) -> ImageTask:
        transform = EvalTransform.for_model(model)
        pixels = {**transform.to_dict(), **dict.fromkeys(("mean", "std", "rescale"))}
        key = json.dumps([pixels, model.classes], sort_keys=True)
        if key not in ready:
            drawn = images if isinstance(images, ImageTask) else load_images(images, model, hold=False)
            ready[key] = inspection.decoded_once(drawn.for_model(model))
        return ready[key].with_transform(transform)

    return read


def rank_inspections(
    inspected: Iterable[Inspected],
    metrics: Sequence[str] | None = None,
    *,
    measure: str = "accuracy",
    settings: InspectionSettings | None = None,
    missing: Mapping[str, str] | None = None,
) -> Ranking:
    """Rank models by what they showed; nothing is run.

    Args:
        inspected: Of each model its name, what it showed on the target, and what on labelled images of its
            own domain, or None.
        metrics: As in `rank_models`.
        measure: True performance and ID accuracy: `"accuracy"`, or `"macro-f1"` over the classes that occur.
        settings: With which the inspections were made.
        missing: Models that should be among them.

    Raises:
        InputError: As `rank_models`.
    """
    settings, keys = settings or InspectionSettings(), _chosen(metrics)
    check_name("measure", measure, MEASURES)
    names, shown = list[str](), list[inspection.Shown]()
    for name, target, known in inspected:
        if shown:
            _refuse_unlike((names[0], name), shown[0], (target, known))
        names.append(name)
        shown.append((target, known))
    if len(names) < 2:
        raise InputError(f"got {len(names)} model(s); give at least 2 to rank")

    def resampled(shown: Inspection, seed: int) -> Numbers:
        """The same for every model; of the target, the weights that inspections use, too."""
        return np.concatenate([once(shown.n), poisson_weights(shown.ids, settings.draws, seed=seed)])

    inspections, (target, known) = [each for each, _ in shown], shown[0]
    other = int(stream(settings.seed, "rank/known-images").integers(2**62))
    own = once(0) if known is None else resampled(known, other)
    weights = inspection.Weights(target=resampled(target, settings.seed), known=own, measure=measure)
    truth, performance = None, None
    if (labels := target.labels) is not None:
        rows = [performance_of(e.predictions, labels, weights.target, measure=measure) for e in inspections]
        truth, true = np.stack(rows, axis=1), replace(METRICS["id-accuracy"], key="performance", name=measure)
        performance = ranked_metric(true, truth, target.n, [None] * len(names), None)
    columns, absent = dict[str, RankedMetric](), []
    for key, metric in ((key, METRICS[key]) for key in keys):
        groups = [shown] if metric.together else [[each] for each in shown]
        made = [inspection.estimate(metric, group, weights) for group in groups]
        numbers = np.concatenate([rows for rows, _ in made], axis=1)
        reasons = [reason for _, reason in made] * (len(names) // len(made))
        if np.isnan(numbers[0]).all():
            reason = reasons[0] or "undefined on these images"
            absent.append({"key": key, "name": metric.name, "reason": reason})
        else:
            n = known.n if known is not None and metric.over == "known" else target.n
            columns[key] = ranked_metric(metric, numbers, n, reasons, truth)
    return Ranking(
        names=tuple(names),
        inspections=inspections,
        own=known,
        columns=columns,
        absent=absent,
        performance=performance,
        measure=measure,
        missing=missing or {},
        settings=settings,
    )


def _chosen(metrics: Sequence[str] | None) -> Sequence[str]:
    """Keys in the order of the table: the first that ranks models leads."""
    if metrics is not None and not metrics:
        raise InputError("metrics is empty; name some, or remove it for all")
    for key in metrics or ():
        check_name("ranking metric", key, METRICS)
    return inspection.DEFAULT_METRICS if metrics is None else tuple(dict.fromkeys(metrics))


def _refuse_unlike(
    names: tuple[str, str], first: Sequence[Inspection | None], second: Sequence[Inspection | None]
) -> None:
    """Numbers of models with other classes, or on other images, do not compare; their graphs may differ."""
    for what, *both in zip(("target", "own-domain"), first, second, strict=True):
        shown = [each for each in both if each is not None]
        if len({(each.n_classes, each.classes) for each in shown}) > 1:
            raise InputError(f"{' and '.join(names)} have different classes ({[e.classes for e in shown]})")
        if len({(each.ids.tobytes(), each.labels is None or each.labels.tobytes()) for each in shown}) > 1:
            raise InputError(f"{' and '.join(names)} were given different {what} images; give both the same")


def _facts(shown: Inspection) -> dict[str, Any]:
    task = shown.provenance.get("task", {})
    facts = {name: task.get(name, "") for name in ("name", "domain", "data_hash")}
    facts |= {"config": task.get("config", {}), "n": shown.n, "n_classes": shown.n_classes}
    return facts | {"labelled": shown.labels is not None, "notes": task.get("notes", [])}


# ------------------------------------------------------------------------------------------ several targets


def compare_rankings(rankings: Mapping[str, Sequence[Ranking]]) -> "pd.DataFrame":
    """Put rankings of several targets together.

    Args:
        rankings: Data set -> rankings of its targets.

    Returns:
        A row per metric, and one of a blind pick, that of the least regret first: `regret`, mean expected
        regret of picking by it; `average`, mean magnitude of its correlations in all data sets, and `sem`,
        its standard error over data sets, as published, NaN for one; `targets` with a correlation; and the
        signed `r2`, `srcc` and `krcc` of each data set, averaged over its targets.

    Raises:
        InputError: For no ranking.

    Notes:
        A target without labels, or on which a metric is undefined, is left out of that metric's means:
        metrics with different `targets` do not rest on the same ones.

    References:
        Peng et al. (2026), arXiv:2604.08192, Table 1.
    """
    import pandas as pd

    pairs = [(name, each) for name, several in rankings.items() for each in several]
    if not pairs:
        raise InputError("rankings are missing; give at least one")
    rows: dict[str, dict[str, float]] = {}
    for key in dict.fromkeys(key for _, ranking in pairs for key in ranking.columns):
        columns = [(name, ranking.columns[key]) for name, ranking in pairs if key in ranking.columns]
        regrets = [column.regret.expected for _, column in columns if column.regret is not None]
        tasks: dict[str, list[TaskCorrelation]] = {}
        for name, column in columns:
            if column.correlation is not None:
                tasks.setdefault(name, []).append(column.correlation)
        rows[key] = {"regret": float(np.mean(regrets)) if regrets else math.nan}
        rows[key] |= {"average": math.nan, "sem": math.nan, "targets": sum(map(len, tasks.values()))}
        if tasks:
            sizes, signed = (summarize_correlations(tasks, absolute=each) for each in (True, False))
            sem = sizes["sem"] if len(rankings) > 1 else math.nan
            rows[key] |= signed | {"average": sizes["average"], "sem": sem}
    regrets_of = ([c.regret for c in ranking.columns.values() if c.regret] for _, ranking in pairs)
    blind = [several[0].random for several in regrets_of if several]  # of a ranking, the same for each metric
    rows["blind pick"] = {"regret": float(np.mean(blind)) if blind else math.nan}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("metric").fillna({"targets": 0})
    return table.astype({"targets": int}).sort_values("regret", kind="stable")


def comparison_document(rankings: Mapping[str, Sequence[Ranking]]) -> dict[str, Any]:
    """The rankings of several targets and their table, as JSON: what `assay rank` writes."""
    ids = {name: [each.id for each in several] for name, several in rankings.items()}
    provenance = {"library": library_version(), "rankings": ids}
    kind, every = "ranking-comparison", [each for several in rankings.values() for each in several]
    document: dict[str, Any] = {"kind": kind, "schema": f"assay-{kind}/1", "id": record_id(kind, provenance)}
    document["metrics"] = compare_rankings(rankings).reset_index().to_dict("records")
    return dict(plain(document | {"rankings": every, "provenance": provenance}))

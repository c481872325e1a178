"""A pick that takes as many images as it needs: models are compared on more and more, and losers dropped."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from assay.analyses.generalization.cost import OWN_DOMAIN, passes_per_image
from assay.analyses.generalization.depth_bias import DepthRule
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.model_pool import ModelPool
from assay.analyses.generalization.picking import METRIC_FACTS
from assay.analyses.generalization.predictor import PREDICTORS, Predictor
from assay.analyses.generalization.ranking import Progress, rank_models
from assay.analyses.generalization.ranking_inputs import (
    Images,
    Models,
    missing_models,
    named_loaders,
    shared,
    task_for,
)
from assay.analyses.generalization.ranking_table import Ranking
from assay.core.errors import InputError
from assay.core.plotted import Plotted
from assay.core.random import stream
from assay.core.record import Record, library_version, record_id, same
from assay.models import Model
from assay.stats.elimination import ERROR, FIRST_LOOK, Candidates, Look, eliminate, look_sizes
from assay.tasks import ImageInputs


if TYPE_CHECKING:
    import pandas as pd

KIND, SCHEMA = "stable-pick", "assay-stable-pick/1"


@dataclass(frozen=True, kw_only=True)
class PickLook(Record):
    """The models that were still in when a number of images had been seen.

    Attributes:
        n: Images, the first n of the random order.
        error: Probability that this look drops the best model, at most.
        models: Name -> value of the metric with its interval (`value`, `low`, `high`).
        dropped: Name of a model that is out from here on -> name of the one that leads it most surely.
        passes: Passes of one image through one model that this look took, those on the models' own domain
            among them.
    """

    n: int
    error: float
    models: Mapping[str, Mapping[str, float]]
    dropped: Mapping[str, str]
    passes: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StablePick(Plotted, Record):
    """Which model a metric picks, and how many images that took.

    Attributes:
        metric: What it is picked by.
        names: All models, in the order given.
        looks: What was seen at n = 64, 128, ... images.
        pick: The model that leads the last look.
        chance: Share of the resamples of the last look in which `pick` is the best of the models measured
            there.
        remaining: Models that may still be the best, `pick` among them; one alone is a decision.
        stopped: Why it ended: `"decided"` or `"images"`, of which all were used.
        images: Images there were.
        first: Images of the first look.
        error: Probability that the best model was dropped, over all looks there could have been, at most.
        target: Facts about the images.
        known: Facts about the images of the models' own domain; None where the metric does not read any.
        settings: How scores were measured and images drawn.
        rule: Layers that the depth bias compares.
        models_made: What each model is, by name.
        missing: Model that should be among them -> why it is not, as in `Ranking`.
    """

    drawn_by = "assay.analyses.generalization.rank_plots:plot_pick"
    record_kind = KIND
    record_schema = SCHEMA
    record_layout = {
        "id": "id",
        "metric": "_metric_entry",
        **same("names", "missing", "looks", "pick", "chance", "remaining", "decided", "stopped"),
        **same("n", "images", "passes", "error", "target", "provenance"),
    }

    metric: Predictor
    names: tuple[str, ...]
    looks: tuple[PickLook, ...]
    pick: str
    chance: float
    remaining: tuple[str, ...]
    stopped: str
    images: int
    first: int
    error: float
    target: Mapping[str, Any]
    known: Mapping[str, Any] | None
    settings: InspectionSettings
    rule: DepthRule
    models_made: Mapping[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"StablePick({self.pick!r}, n={self.n}, {len(self.remaining)} of {len(self.names)} models left)"
        )

    @property
    def decided(self) -> bool:
        """Whether every other model was dropped."""
        return len(self.remaining) == 1

    @property
    def n(self) -> int:
        """Images that the pick took."""
        return self.looks[-1].n

    @property
    def passes(self) -> int:
        """Passes of one image through one model that all looks took."""
        return sum(look.passes for look in self.looks)

    def to_frame(self) -> "pd.DataFrame":
        """One row per look and model that was in: n, model, value, low, high, dropped (by whom, or None)."""
        import pandas as pd

        rows = [
            {"n": look.n, "model": name, **row, "dropped": look.dropped.get(name)}
            for look in self.looks
            for name, row in look.models.items()
        ]
        return pd.DataFrame(rows)

    def _metric_entry(self) -> dict[str, Any]:
        return {name: getattr(self.metric, name) for name in METRIC_FACTS}

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be."""
        facts = ("target", "known", "first", "error", "images")
        return {
            "library": library_version(),
            "models": [self.models_made[name] for name in self.names],
            "metric": self.metric.key,
            **{name: getattr(self, name) for name in facts},
            **vars(self.rule),
            "settings": self.settings.to_dict(),
        }

    @property
    def id(self) -> str:
        """Hash of how it came to be."""
        return record_id(KIND, self.provenance)


def pick_until_stable(
    models: Models,
    target: Images,
    *,
    metric: str = "ddb-output",
    id_data: Images | None = None,
    labels: bool | None = None,
    ratio: float = 0.3,
    include_input: bool = False,
    sets: str = "symmetric",
    settings: InspectionSettings | None = None,
    error: float = ERROR,
    first: int = FIRST_LOOK,
    missing: Mapping[str, str] | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> StablePick:
    """Pick a model with as many images as that takes.

    Images come in a random order. At n = 64, 128, 256, ... every model that is still in is ranked on the
    first n of them exactly as by `rank_models`, all pairs are compared by paired bootstrap intervals, and
    models that another one leads by more than the margin are dropped. It ends when one is left, or when
    the images are used up.

    Args:
        models: As in `rank_models`, as are the other arguments that are not named here.
        target: The images, read as a whole.
        metric: Key of `PREDICTORS`: one that puts models in order, looks at one at a time, and reads the
            target.
        id_data: Labelled images of the own domain, for metrics that learn from them; all are used at once.
        labels: Whether labels of the target may be used; only metrics that never read them are offered.
        ratio: tau of the depth bias.
        include_input: As in `rank_models`.
        sets: As in `rank_models`.
        settings: How scores are measured; its seed also gives the order of the images.
        error: Probability that the best model is dropped, over all looks together.
        first: Images of the first look.
        missing: As in `rank_models`.
        cache: Folder of inspections.
        progress: Called with a stage, models done and models in all.

    Raises:
        InputError: For a metric that cannot pick, and as `rank_models`.

    Notes:
        Look j may err by error / (j (j + 1)), over all pairs of models there were at the start; see
        `assay.stats.elimination`. What "the best" means is the metric on ever more such images; whether the
        metric tells performance is another question. Means that ablated edges carry are those of the n
        images, so each look scores all of them again: all looks cost at most twice the last one.
    """
    chosen = check_metric(metric, known=id_data is not None)
    settings = settings or InspectionSettings()
    loaders = named_loaders(models)
    pool, names = ModelPool(dict(loaders)), tuple(name for name, _ in loaders)
    first_model = pool.model(names[0])
    target, id_data = shared(target), None if id_data is None else shared(id_data)
    whole = task_for(target, first_model, labels=labels)
    n_own = task_for(id_data, first_model).n if id_data is not None and "known" in chosen.needs else 0
    order = stream(settings.seed, "rank/order").permutation(whole.n)
    race = _Race(
        pool=pool,
        names=names,
        images=_FirstImages(target=target, order=order, labels=labels),
        metric=chosen,
        settings=settings,
        rule=DepthRule(ratio=ratio, include_input=include_input, sets=sets),
        cost=LookCost.of_metric(metric, settings.steps, n_own=n_own, cached=cache is not None),
        further={"id_data": id_data, "cache": cache},
        progress=progress,
    )
    lacking = missing_models(models) if missing is None else missing
    return replace(race.run(whole, first, error), missing=lacking)


@dataclass(frozen=True, kw_only=True)
class LookCost:
    """What looks take, in passes of one image through one model; forward and backward count alike.

    Attributes:
        per_image: For a model, on each image of the look.
        own: For a model, on all images of its own domain.
        cached: Whether the own domain is run at the first look alone.
    """

    per_image: int
    own: int
    cached: bool

    @classmethod
    def of_metric(cls, metric: str, steps: int, *, n_own: int, cached: bool) -> "LookCost":
        """The cost of looks by one metric.

        Args:
            metric: Key of `PREDICTORS`.
            steps: Quadrature nodes.
            n_own: Images of the models' own domain that the metric learns from.
            cached: Whether what a model shows on these is kept.
        """
        stages = passes_per_image([metric], steps, known=n_own > 0)
        own = sum(each for name, each in stages.items() if name.endswith(OWN_DOMAIN))
        return cls(per_image=sum(stages.values()) - own, own=own * n_own, cached=cached)

    def of(self, look: int, n: int, n_models: int) -> int:
        """Passes of look 1, 2, ... at n images with so many models."""
        return n_models * (n * self.per_image + (0 if self.cached and look > 1 else self.own))


@dataclass(kw_only=True, eq=False)
class _Race:
    """Measures the models that are still in on more and more images, as `eliminate` asks."""

    pool: ModelPool
    names: tuple[str, ...]
    images: "_FirstImages"
    metric: Predictor
    settings: InspectionSettings
    rule: DepthRule
    cost: LookCost
    further: Mapping[str, Any]  # arguments of `rank_models`
    progress: Progress | None
    rankings: list[Ranking] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    def run(self, whole: ImageInputs, first: int, error: float) -> StablePick:
        """All looks; `whole` are the images as the first model reads them."""
        sizes = look_sizes(whole.n, first)
        looks = eliminate(len(self.names), sizes, self.measure, error=error)
        left = tuple(self.names[place] for place in looks[-1].left)
        last = self.rankings[-1]
        pick = next(name for name in last.order(self.metric.key) if name in left)
        chances = last.column(self.metric.key).chances
        assert chances is not None  # `_candidates` refuses a metric without replicates
        return StablePick(
            metric=self.metric,
            names=self.names,
            looks=tuple(map(self.shown, looks, self.rankings, self.passes)),
            pick=pick,
            chance=float(chances[last.names.index(pick)]),
            remaining=left,
            stopped="decided" if len(left) == 1 else "images",
            images=whole.n,
            first=first,
            error=error,
            target={**last.target, "n": whole.n, "data_hash": whole.source_hash},
            known=last.known,
            settings=self.settings,
            rule=self.rule,
            models_made=_made(self.rankings),
        )

    def measure(self, n: int, remaining: tuple[int, ...]) -> Candidates:
        """The models on the first n images."""
        passes = self.cost.of(len(self.passes) + 1, n, len(remaining))
        ranking = rank_models(
            self.pool.loaders(self.names[place] for place in remaining),
            replace(self.images, n=n),
            metrics=[self.metric.key],
            settings=self.settings,
            progress=None if self.progress is None else _at_look(self.progress, n),
            **vars(self.rule),
            **self.further,
        )
        self.rankings.append(ranking)
        self.passes.append(passes)
        return _candidates(ranking, self.metric.key)

    def shown(self, look: Look, ranking: Ranking, passes: int) -> PickLook:
        """A look with its models by name."""
        rows = zip(ranking.names, ranking.column(self.metric.key).rows(), strict=True)
        return PickLook(
            n=look.n,
            error=look.error,
            models={name: {key: row[key] for key in ("value", "low", "high")} for name, row in rows},
            dropped={self.names[out]: self.names[by] for out, by in look.dropped.items()},
            passes=passes,
        )


def check_metric(metric: str, *, known: bool) -> Predictor:
    """The metric of a key, which must be able to pick a model as images arrive.

    Args:
        metric: Key of `PREDICTORS`.
        known: Whether there are labelled images of the models' own domain.

    Raises:
        InputError: With the reason.
        UnknownNameError: If there is no such metric.
    """
    chosen = PREDICTORS[metric]
    why = ""
    if not chosen.ranks:
        why = "its source does not say which models are better"
    elif chosen.together:
        why = "it looks at all models at once, so it changes when one is dropped"
    elif not chosen.reads_target:
        why = "it does not read the target"
    elif "known" in chosen.needs and not known:
        why = "it needs labelled images of the models' own domain (id_data, --id-images)"
    if why:
        raise InputError(f"{metric} cannot pick a model as images arrive: {why}; take e.g. 'ddb-output'")
    return chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class _FirstImages:
    """The first n images of the target in a random order, as a model reads them."""

    target: Images
    order: Int64[np.ndarray, " n"]
    labels: bool | None
    n: int = 0

    def __call__(self, model: Model) -> ImageInputs:
        rows = np.sort(self.order[: self.n])  # ascending: shards are read from front to back
        return task_for(self.target, model, labels=self.labels).subset(rows.tolist())


def _at_look(progress: Progress, n: int) -> Progress:
    return lambda stage, done, total: progress(f"{n} images: {stage}", done, total)


def _candidates(ranking: Ranking, metric: str) -> Candidates:
    column = ranking.column(metric)
    if column.draws is None:
        reason = next((each for each in column.reasons if each), "it has no replicates")
        raise InputError(f"{metric} cannot pick a model: {reason}")
    values, draws = column.metric.oriented(column.values), column.metric.oriented(column.draws)
    assert values is not None
    assert draws is not None
    return Candidates(values=values, draws=draws)


def _made(rankings: list[Ranking]) -> dict[str, Any]:
    first = rankings[0]
    return {
        name: shown.provenance.get("model")
        for name, shown in zip(first.names, first.inspections, strict=True)
    }

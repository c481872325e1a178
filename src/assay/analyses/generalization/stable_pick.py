"""A pick that takes as many images as it needs: models are compared on more and more, and losers dropped."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.generalization.cost import passes_per_image
from assay.analyses.generalization.depth_bias import DepthRule
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.model_pool import ModelPool
from assay.analyses.generalization.picking import METRIC_FACTS
from assay.analyses.generalization.predictor import PREDICTORS, Predictor
from assay.analyses.generalization.ranking import Progress, rank_models
from assay.analyses.generalization.ranking_inputs import Images, Models, named_loaders, task_for
from assay.analyses.generalization.ranking_table import Ranking
from assay.core import display
from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.record import Record, library_version, record_id, same
from assay.models import Model
from assay.stats.elimination import ERROR, FIRST_LOOK, Candidates, eliminate, look_sizes
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
        passes: Passes of one image through one model that this look took.
    """

    n: int
    error: float
    models: Mapping[str, Mapping[str, float]]
    dropped: Mapping[str, str]
    passes: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StablePick(display.Shown, Record):
    """Which model a metric picks, and how many images that took.

    Attributes:
        metric: What it is picked by.
        names: All models, in the order given.
        looks: What was seen at n = 64, 128, ... images.
        pick: The model that leads the last look.
        chance: Share of the resamples of the last look in which it is the best of those in it.
        remaining: Models that may still be the best, `pick` among them; one alone is a decision.
        stopped: Why it ended: `"decided"`, `"images"` (all were used) or `"budget"`.
        images: Images there were.
        budget: Passes that could be spent; None: any number.
        error: Probability that the best model was dropped, over all looks there could have been, at most.
        target: Facts about the images.
        settings: How scores were measured and images drawn.
        rule: Layers that the depth bias compares.
        models_made: What each model is, by name.
    """

    drawn_by = "assay.analyses.generalization.rank_plots:plot_pick"
    record_kind = KIND
    record_schema = SCHEMA
    record_layout = {
        "id": "id",
        "metric": "_metric_entry",
        **same("names", "looks", "pick", "chance", "remaining", "decided", "stopped"),
        **same("n", "images", "passes", "budget", "error", "target", "provenance"),
    }

    metric: Predictor
    names: tuple[str, ...]
    looks: tuple[PickLook, ...]
    pick: str
    chance: float
    remaining: tuple[str, ...]
    stopped: str
    images: int
    budget: int | None
    error: float
    target: Mapping[str, Any]
    settings: InspectionSettings
    rule: DepthRule
    models_made: Mapping[str, Any]

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

    def _summary(self) -> str:
        state = "decided" if self.decided else f"undecided between {len(self.remaining)}"
        facts = (("pick", self.pick), ("images", self.n), ("of", self.images), ("passes", self.passes))
        return display.card(f"pick by {self.metric.name}: {state}", facts)

    def _metric_entry(self) -> dict[str, Any]:
        return {name: getattr(self.metric, name) for name in METRIC_FACTS}

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be."""
        return {
            "library": library_version(),
            "models": [self.models_made[name] for name in self.names],
            "metric": self.metric.key,
            **{name: getattr(self, name) for name in ("target", "budget", "error", "images")},
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
    budget: int | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> StablePick:
    """Pick a model with as many images as that takes.

    Images come in a random order. At n = 64, 128, 256, ... every model that is still in is ranked on the
    first n of them exactly as by `rank_models`, all pairs are compared by paired bootstrap intervals, and
    models that another one leads by more than the margin are dropped. It ends when one is left, or when
    images or budget are used up.

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
        budget: Passes of one image through one model that may be spent; a look that would take more is not
            begun. A backward pass counts as one, too.
        cache: Folder of inspections.
        progress: Called with a stage, models done and models in all.

    Raises:
        InputError: For a metric that cannot pick, a budget that does not cover the first look, and as
            `rank_models`.

    Notes:
        Look j may err by error / (j (j + 1)), over all pairs of models there were at the start; see
        `assay.stats.elimination`. What "the best" means is the metric on ever more such images; whether the
        metric tells performance is another question. Means that ablated edges carry are those of the n
        images, so each look scores all of them again: all looks cost at most twice the last one.
    """
    chosen = _pickable(metric)
    settings = settings or InspectionSettings()
    loaders = named_loaders(models)
    pool, names = ModelPool(dict(loaders)), tuple(name for name, _ in loaders)
    whole = task_for(target, pool.model(names[0]), labels=labels)
    order = stream(settings.seed, "rank/order").permutation(whole.n)
    costs = passes_per_image([metric], settings.steps, known=False)
    per_image = sum(costs.values())
    rankings: list[Ranking] = []
    spent = 0

    def measure(n: int, remaining: tuple[int, ...]) -> Candidates | None:
        nonlocal spent
        passes = n * len(remaining) * per_image
        if budget is not None and spent + passes > budget:
            return None
        ranking = rank_models(
            pool.loaders(names[place] for place in remaining),
            _FirstImages(target=target, rows=np.sort(order[:n]), labels=labels),
            id_data=id_data,
            metrics=[metric],
            ratio=ratio,
            include_input=include_input,
            sets=sets,
            settings=settings,
            cache=cache,
            progress=None if progress is None else _at_look(progress, n),
        )
        spent += passes
        rankings.append(ranking)
        return _candidates(ranking, metric)

    looks = eliminate(len(names), look_sizes(whole.n, first), measure, error=error)
    if not looks:
        least = min(first, whole.n) * len(names) * per_image
        raise InputError(
            f"budget is {budget} passes, but the first look at {min(first, whole.n)} images takes {least:,} "
            f"({len(names)} models, {per_image} passes each); allow at least that many"
        )
    column = rankings[-1].column(metric)
    assert column.chances is not None  # `_candidates` refuses a metric without replicates
    left = tuple(names[place] for place in looks[-1].left)
    pick = next(name for name in rankings[-1].order(metric) if name in left)
    return StablePick(
        metric=chosen,
        names=names,
        looks=tuple(
            PickLook(
                n=look.n,
                error=look.error,
                models={
                    name: {key: row[key] for key in ("value", "low", "high")}
                    for name, row in zip(ranking.names, ranking.column(metric).rows(), strict=True)
                },
                dropped={names[out]: names[by] for out, by in look.dropped.items()},
                passes=look.n * len(look.remaining) * per_image,
            )
            for look, ranking in zip(looks, rankings, strict=True)
        ),
        pick=pick,
        chance=float(column.chances[rankings[-1].names.index(pick)]),
        remaining=left,
        stopped="decided" if len(left) == 1 else "images" if looks[-1].n == whole.n else "budget",
        images=whole.n,
        budget=budget,
        error=error,
        target={**rankings[-1].target, "n": whole.n, "data_hash": whole.describe()["data_hash"]},
        settings=settings,
        rule=DepthRule(ratio=ratio, include_input=include_input, sets=sets),
        models_made=_made(rankings),
    )


def _pickable(metric: str) -> Predictor:
    chosen = PREDICTORS[metric]
    why = ""
    if not chosen.ranks:
        why = "its source does not say which models are better"
    elif chosen.together:
        why = "it looks at all models at once, so it changes when one is dropped"
    elif not chosen.reads_target:
        why = "it does not read the target"
    if why:
        raise InputError(f"{metric} cannot pick a model as images arrive: {why}; take e.g. 'ddb-output'")
    return chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class _FirstImages:
    """Some rows of the target, as a model reads them."""

    target: Images
    rows: np.ndarray
    labels: bool | None

    def __call__(self, model: Model) -> ImageInputs:
        return task_for(self.target, model, labels=self.labels).subset(self.rows.tolist())


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

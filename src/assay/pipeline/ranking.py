"""A ranking as a job: models of a zoo, the images they are ranked on, and the table of all."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from assay.analyses.generalization.cost import OWN_DOMAIN, passes_per_image
from assay.analyses.generalization.inspecting import inspect_model
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.model_pool import ModelPool
from assay.analyses.generalization.predictor import PREDICTORS
from assay.analyses.generalization.ranking import rank_models
from assay.analyses.generalization.ranking_table import Ranking
from assay.analyses.generalization.stable_pick import LookCost, StablePick, pick_until_stable
from assay.models import Model
from assay.models.placing import number_type
from assay.pipeline.cost import Forecast, Workload, run_bytes
from assay.pipeline.targets import Domain
from assay.stats.elimination import look_sizes
from assay.store import About, Store
from assay.tasks import ImageInputs
from assay.zoo import Zoo


TIMED = 32  # images of a timed pass
SHARPNESS_COST = 81  # in forward passes: 41, and 20 backward ones of twice the work


@dataclass(frozen=True, kw_only=True, eq=False)
class Lineup:
    """The models of a zoo and the images they are ranked on.

    Attributes:
        zoo: The models.
        targets: Images of the domains to deploy on.
        known: Labelled images of the models' own domain, if there are any.
        metrics: What they are ranked by.
        settings: How circuits are scored.
        device: Where models run.
        dtype: Number type of their weights, e.g. `float64`; None: as of `load_model`.
        prefix: What the names of models begin with, where models of several zoos stand on one page.
    """

    zoo: Zoo
    targets: tuple[Domain, ...]
    known: Domain | None
    metrics: tuple[str, ...]
    settings: InspectionSettings
    device: str | None = None
    dtype: str | None = None
    prefix: str = ""

    @property
    def target(self) -> Domain:
        """The only target, or the first."""
        return self.targets[0]

    @property
    def known_images(self) -> Callable[[Model], ImageInputs] | None:
        """Reads the known images for a model; None where there are none."""
        return None if self.known is None else self.known.read

    @cached_property
    def pool(self) -> ModelPool:
        """The models where they run, loaded once for all targets as far as there is room."""
        return ModelPool({self.prefix + key: functools.partial(self._load, key) for key in self.zoo.keys})

    def _load(self, key: str) -> Model:
        return self.zoo.load(key, device=self.device, dtype=number_type(self.dtype))

    def load(self, key: str) -> Model:
        """A model where it runs."""
        return self.pool.model(self.prefix + key)

    def __post_init__(self) -> None:
        self.zoo.check_done(2)

    @property
    def missing(self) -> dict[str, str]:
        """Models of the zoo whose training is not done -> their state."""
        return {self.prefix + key: why for key, why in self.zoo.missing.items()}

    @property
    def families(self) -> dict[str, str] | None:
        """Model to its initialisation; None where the zoo keeps no recipes."""
        inits = {key: self.zoo.entry(key).recipe.get("init") for key in self.zoo.keys}
        named = {self.prefix + key: str(init) for key, init in inits.items()}
        return named if all(inits.values()) else None

    def pick(self, metric: str, **options: Any) -> StablePick:
        """The pick with as many images as it needs; further options are those of `pick_until_stable`."""
        return pick_until_stable(
            self.pool.loaders(),
            self.target.read,
            metric=metric,
            missing=self.missing,
            **{"id_data": self.known_images, "settings": self.settings, **options},
        )

    def rank(self, target: Domain | None = None, **options: Any) -> Ranking:
        """The table; further options are those of `rank_models`, `cache` spares models that ran before."""
        return rank_models(
            self.pool.loaders(),
            (target or self.target).read,
            id_data=self.known_images,
            missing=self.missing,
            **{"metrics": self.metrics, "settings": self.settings, "families": self.families, **options},
        )


@dataclass(frozen=True, kw_only=True)
class RankingCost:
    """What a ranking costs.

    Attributes:
        metrics: Seconds of what each metric reads, by key; metrics share stages.
        forecast: All of it, each stage once.
    """

    metrics: Mapping[str, float]
    forecast: Forecast


def ranking_cost(lineup: Lineup) -> RankingCost:
    """Passes of a ranking and about how long they take, from the first model timed on a few images.

    All models count as fast as the first.
    """
    zoo, metrics, known = lineup.zoo, lineup.metrics, lineup.known
    per_image = passes_per_image(metrics, lineup.settings.steps, known=known is not None)
    model = lineup.load(zoo.keys[0])
    task = lineup.target.read(model)
    few = task.subset(range(min(TIMED, task.n)))
    needs = {metric: PREDICTORS[metric].needs | {"outputs"} for metric in metrics}
    union = frozenset[str]().union(*needs.values())
    if "edge-scores" in union:  # they hold the scores of the edges into the logits
        same = {"output-scores": "edge-scores"}
        needs = {metric: frozenset(same.get(part, part) for part in each) for metric, each in needs.items()}
        union = frozenset[str]().union(*needs.values())
    parts = sorted({"features", "output-scores", "edge-scores"} & union)
    inspect_model(model, few, parts, settings=lineup.settings)  # the first run also sets up the machine
    cost = inspect_model(model, few, parts, settings=lineup.settings).cost
    took = {stage: spent["seconds"] / few.n for stage, spent in cost.items()}
    n_target = sum(target.read(model).n for target in lineup.targets)
    n_known = 0 if known is None else known.read(model).n
    stages = {
        "outputs": took["inspect"] * n_target,
        "output-scores": took.get("output-scores", 0.0) * n_target,
        "edge-scores": (took.get("edge-scores", 0.0) + took.get("metrics", 0.0)) * n_target,
        "known": took["inspect"] * n_known,
        "sharpness": SHARPNESS_COST * took["inspect"] * n_known,
    }

    def seconds(read: frozenset[str]) -> float:
        each: float = sum(stages.get(stage, 0.0) for stage in read)
        return len(zoo.keys) * each

    models = len(zoo.keys)
    passes = {
        name: each * models * (n_known if name.endswith(OWN_DOMAIN) else n_target)
        for name, each in per_image.items()
    }
    return RankingCost(
        metrics={
            metric: seconds(needs[metric])
            for metric in metrics
            if known is not None or "known" not in needs[metric]
        },
        forecast=Forecast(
            model={"id": f"{models} models of {zoo.name}"},
            n=n_target,
            stages=tuple(Workload(stage=name, runs=models, passes=each) for name, each in passes.items()),
            pass_seconds=seconds(union) / max(sum(passes.values()), 1),
            bytes=run_bytes(model, few, batch_size=lineup.settings.batch_size or TIMED),
        ),
    )


def pick_cost(lineup: Lineup, metric: str, *, budget: int | None = None) -> RankingCost:
    """As `ranking_cost`, of a pick by one metric that drops no model: a stage for each look.

    Args:
        lineup: Models and images of one target.
        metric: Key of the metric.
        budget: Passes that may be spent; looks beyond are left out.

    Raises:
        InputError: If the budget does not cover the first look.
    """
    cost = ranking_cost(replace(lineup, metrics=(metric,)))
    model, n_models = lineup.load(lineup.zoo.keys[0]), len(lineup.zoo.keys)
    n_own = 0 if lineup.known is None else lineup.known.read(model).n
    each = LookCost.of_metric(metric, lineup.settings.steps, n_own=n_own, cached=True)
    looks = each.planned(look_sizes(cost.forecast.n), n_models, budget)
    stages = tuple(
        Workload(stage=f"look at {n} images", runs=n_models, passes=passes) for n, passes in looks.items()
    )
    return replace(cost, forecast=replace(cost.forecast, stages=stages))


def keep_ranking(store: Store, document: dict[str, Any]) -> str:
    """Store the document of a ranking, or of several compared; returns its id."""
    about = About()
    if target := document.get("target"):
        task, domain = target["name"], target["domain"]
        about = About(
            task=f"{task}:{domain}" if task and domain and task != domain else task or domain,
            metric=document.get("measure") or document["metric"]["key"],
            n=target["n"],
            seed=document["provenance"]["settings"]["seed"],
            name=f"{len(document.get('models') or document['names'])} models",
            ablation=document["provenance"]["settings"]["ablation"],
        )
    return store.put(document["kind"], document["provenance"], document, about=about)

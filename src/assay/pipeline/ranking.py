"""A ranking as a job: models of a zoo, the images they are ranked on, and the table of all."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.model_pool import ModelPool
from assay.analyses.generalization.ranking import rank_models
from assay.analyses.generalization.ranking_table import Ranking
from assay.analyses.generalization.stable_pick import StablePick, pick_until_stable
from assay.models import Model
from assay.models.placing import number_type
from assay.pipeline.targets import Domain
from assay.store import About, Store
from assay.tasks import ImageInputs
from assay.zoo import Zoo


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

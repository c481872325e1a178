"""A ranking as separate pieces of work: what each model of a zoo shows, then the table of all."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.errors import InputError
from assay.generalization.inspection import InspectionSettings
from assay.generalization.predictor import PREDICTORS
from assay.generalization.predictors import DEFAULT_METRICS
from assay.generalization.ranking import inspect_for_ranking, rank_models
from assay.generalization.ranking_table import Ranking
from assay.runner.targets import Target, known_target, targets
from assay.tasks import is_shapes
from assay.tasks.image_source import SHAPES
from assay.zoo import Zoo


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """The models of a zoo and the images they are ranked on.

    Attributes:
        zoo: The models.
        target: Images of the domain to deploy on.
        known: Labelled images of the models' own domain, if there are any.
        metrics: What they are ranked by.
        settings: How circuits are scored.
        device: Where models run.
    """

    zoo: Zoo
    target: Target
    known: Target | None
    metrics: tuple[str, ...]
    settings: InspectionSettings
    device: str | None = None

    def inspect(self, key: str, *, cache: Path) -> None:
        """Run one model and keep in `cache` what it shows."""
        needs = frozenset[str]().union(*(PREDICTORS[metric].needs for metric in self.metrics))
        inspect_for_ranking(
            self.zoo.load(key, device=self.device),
            self.target.read,
            None if self.known is None else self.known.read,
            needs,
            settings=self.settings,
            cache=cache,
        )

    def rank(self, *, cache: Path) -> Ranking:
        """The table; models run where `cache` does not hold what they show."""
        return rank_models(
            {key: functools.partial(self.zoo.load, key, device=self.device) for key in self.zoo.keys},
            self.target.read,
            id_data=None if self.known is None else self.known.read,
            metrics=self.metrics,
            settings=self.settings,
            cache=cache,
        )


def ranked(
    *,
    zoo: str | None,
    images: str,
    id_images: str | None = None,
    metrics: Sequence[str] | None = None,
    n: int | None = None,
    steps: int = 5,
    seed: int = 0,
    batch_size: int | None = None,
    device: str | None = None,
) -> Ranked:
    """Open a zoo and find the images of one domain.

    Args:
        zoo: Its folder; None: the embedded one.
        images: Folder or archive of one domain, or `shapes:STYLE`.
        id_images: Labelled images of the models' own domain; None: drawn for zoos trained on shapes.
        metrics: Keys of predictors; None: the usual ones.
        n: Images; None: all of a folder, 400 drawn ones.
        steps: Nodes of the quadrature.
        seed: Root seed.
        batch_size: Images per pass.
        device: Where models run.

    Raises:
        InputError: If `images` holds several domains.
        FileFormatError: If zoo or images cannot be read.
    """
    opened = Zoo.embedded() if zoo is None else Zoo.open(Path(zoo))
    drawn = [images.removeprefix(f"{SHAPES}:")] if is_shapes(images) else []
    found = targets([] if drawn else [Path(images)], drawn, n=n, seed=seed)
    if len(found) != 1:
        names = ", ".join(each.name for each in found)
        raise InputError(f"{images} holds {len(found)} domains ({names}); give the folder of one")
    return Ranked(
        zoo=opened,
        target=found[0],
        known=known_target(opened, None if id_images is None else Path(id_images), n=n, seed=seed),
        metrics=tuple(metrics or DEFAULT_METRICS),
        settings=InspectionSettings(steps=steps, seed=seed, batch_size=batch_size),
        device=device,
    )

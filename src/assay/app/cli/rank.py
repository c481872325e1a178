"""`assay rank`: which model of a zoo to deploy on images that may have no labels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from assay.app.cli.parsing import IMAGES, command
from assay.app.console import progress_on_stderr, remark
from assay.app.delivery import Computing, File, check_outputs, json_file
from assay.app.options import INPUTS, OUTPUT, Count, at_least, call, own_group
from assay.app.settings import Placed, Seeded, SkipBad
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.generalization.ranking import Ranking
    from assay.tasks import ImageTask
    from assay.zoo import Zoo

RANKING = own_group("Ranking")


@dataclass(frozen=True, kw_only=True)
class RankSettings(Computing, Seeded, Placed, SkipBad):
    """Which models are ranked, on what, and by which metrics.

    Attributes:
        zoo: Zoo, or a directory of model directories; repeat for several, whose own domains are not their
            targets. Default: the embedded zoo.
        images: Target images: DIR/CLASS/*, DIR/DOMAIN/CLASS/* (one target per domain), a folder of images,
            or shapes:STYLE; repeat for several. Default: shapes:sketch.
        id_images: Labelled in-distribution images, not used in training; one per zoo. Default: drawn for zoos
            on shapes.
        n: Images of each domain, in total. Default: all of a folder, 400 drawn ones.
        metrics: Metrics to rank by, separated by commas. Default: all but sharpness.
        measure: Measure of true performance: accuracy or macro-f1.
        steps: Quadrature nodes of the attribution.
        draws: Bootstrap resamples of the images, at least 20.
        out: Directory for the result and its page, ranking.json and report.html.
    """

    zoo: Annotated[tuple[Path, ...], INPUTS] = ()
    images: Annotated[tuple[str, ...], INPUTS] = ()
    id_images: Annotated[tuple[Path, ...], INPUTS] = ()
    n: Annotated[int | None, INPUTS, at_least(2)] = None
    metrics: Annotated[str | None, RANKING] = None
    measure: Annotated[str, RANKING] = "accuracy"
    steps: Annotated[Count, RANKING] = 5
    draws: Annotated[int, RANKING, at_least(20)] = 200
    out: Annotated[Path | None, OUTPUT] = None


@command(IMAGES, example="assay rank --zoo zoo --images photos --out choice")
def rank(settings: RankSettings) -> None:
    """Rank the models of a zoo on target images.

    By depth bias and by every baseline, before deployment; the images may have no labels.
    """
    from assay.analyses.generalization.comparison import compare_rankings

    lineups = list(_lineups(settings))
    check_outputs(settings)
    rankings: dict[str, list[Ranking]] = {}
    with progress_on_stderr() as progress:
        for lineup in lineups:
            rankings.setdefault(lineup.dataset, []).append(_ranking(settings, lineup, progress))
    alone = next(iter(rankings.values()))[0] if len(lineups) == 1 else None
    document = (alone or compare_rankings(rankings)).to_dict()
    _keep(settings, document)
    files = {}
    if settings.out is not None:
        document_file = json_file(settings.out / "ranking.json", document)
        files = {"document": document_file, "report": File(settings.out / "report.html")}
    settings.deliver(document, files, identity=document["id"])


def _keep(settings: RankSettings, document: dict[str, Any]) -> None:
    """Store the document of a ranking, or of several compared."""
    from assay.store import About

    about = About()
    if target := document.get("target"):
        about = About(
            task=":".join(dict.fromkeys(filter(None, (target["name"], target["domain"])))),
            metric=document["measure"],
            n=target["n"],
            seed=settings.seed,
            name=f"{len(document['models'])} models",
        )
    settings.open_store().put(document["kind"], document["provenance"], document, about=about)


class Lineup(NamedTuple):
    """A zoo, what its models are ranked on, and labelled images of their own domain."""

    zoo: "Zoo"
    prefix: str
    dataset: str
    target: "ImageTask"
    known: "ImageTask | None"


def _lineups(settings: RankSettings) -> Iterator[Lineup]:
    """Every zoo on every target but its own domain, in the order given."""
    from assay.pipeline.targets import known_target, targets
    from assay.zoo import Zoo
    from assay.zoo.archive import missing_text

    zoos = [Zoo.open(path) for path in settings.zoo] or [Zoo.embedded()]
    if len(settings.id_images) not in (0, len(zoos)):
        raise InputError(
            f"--id-images is given {len(settings.id_images)} times for {len(zoos)} zoo(s); give one per zoo, "
            "in their order, or none"
        )
    domains = call(settings, targets, settings.images or ("shapes:sketch",))
    for note in dict.fromkeys(note for _, images in domains for note in images.notes):
        remark(note)
    for zoo, path in zip(zoos, settings.id_images or [None] * len(zoos), strict=True):
        zoo.check_done(2)
        known = call(settings, known_target, zoo, path)
        if path is not None and zoo.data.get("config", {}).get("source") == path.name:
            remark(f"{path} bears the name of the images that {zoo.name} was trained on; use held-out ones")
        if zoo.missing:
            remark(f"{zoo.path}: {missing_text(zoo.missing, len(zoo.keys))}")
        others = domains
        if len(zoos) > 1 or len(domains) > 1:
            own = known.source_hash if known is not None else None
            others = [
                (name, each)
                for name, each in domains
                if each.source_hash != own and each.domain != zoo.id_domain
            ]
        if not others:
            raise InputError(f"no target is left for {zoo.name}, which was trained on {zoo.id_domain}")
        for left_out in (each.domain for _, each in domains if all(each is not kept for _, kept in others)):
            remark(f"{left_out} is the own domain of {zoo.name} and is not among its targets")
        for dataset, target in others:
            yield Lineup(zoo, f"{zoo.name}/" if len(zoos) > 1 else "", dataset, target, known)


def _ranking(settings: RankSettings, lineup: Lineup, progress: Callable[[str, int, int], None]) -> "Ranking":
    """The models of one zoo on one target."""
    from assay.analyses.generalization.inspection import InspectionSettings
    from assay.analyses.generalization.ranking import rank_models

    zoo, prefix, target, device = lineup.zoo, lineup.prefix, lineup.target, settings.place()

    def shown(stage: str, done: int, total: int) -> None:
        progress(f"{prefix}{target.domain}: {stage}", done, total)

    return call(
        settings,
        rank_models,
        {prefix + key: partial(zoo.load, key, device=device) for key in zoo.keys},
        target,
        id_data=lineup.known,
        metrics=None if settings.metrics is None else [each.strip() for each in settings.metrics.split(",")],
        missing={prefix + key: why for key, why in zoo.missing.items()},
        cache=settings.store_folder() / "inspections",
        progress=shown,
        settings=call(settings, InspectionSettings),
    )

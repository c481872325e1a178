"""`assay rank`: which model of a zoo to deploy on images that may have no labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.parsing import IMAGES, command
from assay.app.console import progress_on_stderr, remark
from assay.app.delivery import Computing, File, check_outputs, json_file
from assay.app.options import INPUTS, OUTPUT, Count, at_least, call, keywords, own_group
from assay.app.settings import Placed, Seeded, SkipBad
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.generalization.ranking_table import Ranking
    from assay.pipeline.targets import Domain
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
    lineups = _lineups(settings)
    check_outputs(settings)
    document = _document(_rankings(settings, lineups))
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
        task, domain = target["name"], target["domain"]
        about = About(
            task=f"{task}:{domain}" if task and domain and task != domain else task or domain,
            metric=document["measure"],
            n=target["n"],
            seed=settings.seed,
            name=f"{len(document['models'])} models",
        )
    settings.open_store().put(document["kind"], document["provenance"], document, about=about)


def _document(rankings: "Sequence[tuple[str, Ranking]]") -> dict[str, Any]:
    """The document of the ranking, or of several compared by data set."""
    from assay.analyses.generalization.comparison import compare_rankings

    if len(rankings) == 1:
        return rankings[0][1].to_dict()
    by_dataset: dict[str, list[Ranking]] = {}
    for dataset, ranking in rankings:
        by_dataset.setdefault(dataset, []).append(ranking)
    return compare_rankings(by_dataset).to_dict()


@dataclass(frozen=True, kw_only=True)
class Lineup:
    """The models of a zoo, the images they are ranked on, and labelled images of their own domain."""

    zoo: "Zoo"
    targets: "Sequence[Domain]"
    known: "Domain | None"
    prefix: str


def _lineups(settings: RankSettings) -> list[Lineup]:
    """Models and images, a line-up per zoo."""
    from assay.pipeline.targets import known_target, targets
    from assay.zoo import Zoo
    from assay.zoo.archive import missing_text

    if len(settings.id_images) not in (0, max(1, len(settings.zoo))):
        raise InputError(
            f"--id-images is given {len(settings.id_images)} times for {max(1, len(settings.zoo))} zoo(s); "
            "give one per zoo, in their order, or none"
        )
    zoos = [Zoo.open(path) for path in settings.zoo] or [Zoo.embedded()]
    images = settings.images or ("shapes:sketch",)
    styles = [each.removeprefix("shapes:") for each in images if each.startswith("shapes:")]
    folders = [Path(each) for each in images if not each.startswith("shapes:")]
    domains = call(settings, targets, folders, styles, note=remark)
    found = []
    for zoo, known in zip(zoos, settings.id_images or [None] * len(zoos), strict=True):
        zoo.check_done(2)
        others = [each for each in domains if len(zoos) == 1 or each.name != zoo.id_domain]
        if not others:
            raise InputError(f"no target is left for {zoo.name}, which was trained on {zoo.id_domain}")
        found.append(
            Lineup(
                zoo=zoo,
                targets=others,
                known=call(settings, known_target, zoo, known),
                prefix=f"{zoo.name}/" if len(zoos) > 1 else "",
            )
        )
        if zoo.missing:
            remark(f"{zoo.path}: {missing_text(zoo.missing, len(zoo.keys))}")
    return found


def _rankings(settings: RankSettings, lineups: Sequence[Lineup]) -> "list[tuple[str, Ranking]]":
    """Data set and ranking of every zoo on every target, in the order given."""
    found: list[tuple[str, Ranking]] = []
    with progress_on_stderr() as progress:
        for lineup in lineups:
            for target in lineup.targets:
                names = [lineup.zoo.name] * (len(lineups) > 1) + [target.name] * (len(lineup.targets) > 1)
                found.append((target.dataset, _ranking(settings, lineup, target, names, progress)))
    return found


def _ranking(
    settings: RankSettings,
    lineup: Lineup,
    target: "Domain",
    names: Sequence[str],
    progress: Callable[[str, int, int], None],
) -> "Ranking":
    """The models of one zoo on one target; `names` say which, before the stage in progress."""
    from assay.analyses.generalization.inspection import InspectionSettings
    from assay.analyses.generalization.ranking import rank_models

    metrics = None if settings.metrics is None else list(map(str.strip, settings.metrics.split(",")))
    device, zoo = settings.place(), lineup.zoo

    def shown(stage: str, done: int, total: int) -> None:
        progress(": ".join([*names, stage]), done, total)

    return rank_models(
        {lineup.prefix + key: partial(zoo.load, key, device=device) for key in zoo.keys},
        target.read,
        id_data=None if lineup.known is None else lineup.known.read,
        missing={lineup.prefix + key: why for key, why in zoo.missing.items()},
        cache=settings.store_folder() / "inspections",
        progress=shown,
        **keywords(settings, rank_models, metrics=metrics, settings=call(settings, InspectionSettings)),
    )

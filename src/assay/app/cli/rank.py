"""`assay rank`: which model of a zoo to deploy on images that may have no labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.parsing import IMAGES, command
from assay.app.delivery import Computing, File, check_outputs, json_file, progress_on_stderr, remark
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
        zoo: Zoo, or a directory of model directories. Default: the embedded zoo.
        images: Target images: DIR/CLASS, DIR/DOMAIN/CLASS (one target per domain), a folder of images, or
            shapes:STYLE; repeat for several. Default: shapes:sketch.
        id_images: Labelled in-distribution images, not used in training. Default: drawn for zoos on shapes.
        n: Images of each domain, in total. Default: all of a folder, 400 drawn ones.
        metrics: Metrics to rank by, separated by commas. Default: all but sharpness.
        measure: Measure of true performance: accuracy or macro-f1.
        steps: Quadrature nodes of the attribution.
        draws: Bootstrap resamples of the images, at least 20.
        out: Directory for the result and its page, ranking.json and report.html.
    """

    zoo: Annotated[Path | None, INPUTS] = None
    images: Annotated[tuple[str, ...], INPUTS] = ()
    id_images: Annotated[Path | None, INPUTS] = None
    n: Annotated[int | None, INPUTS, at_least(2)] = None
    metrics: Annotated[str | None, RANKING] = None
    measure: Annotated[str, RANKING] = "accuracy"
    steps: Annotated[Count, RANKING] = 5
    draws: Annotated[int, RANKING, at_least(20)] = 200
    out: Annotated[Path | None, OUTPUT] = None

    def domains(self, source: str | Path, start: int) -> "list[ImageTask]":
        """The domains of a source, less files that cannot be decoded."""
        from assay.tasks import find_domains

        found = find_domains(source, n=self.n, seed=self.seed, start=start, drawn=400).values()
        return [images.readable() if self.skip_bad else images for images in found]


@command(IMAGES, example="assay rank --zoo zoo --images photos --out choice")
def rank(settings: RankSettings) -> None:
    """Rank the models of a zoo on target images.

    By depth bias and by every baseline, before deployment; the images may have no labels.
    """
    from assay.analyses.generalization.inspection import InspectionSettings
    from assay.analyses.generalization.ranking import comparison_document, rank_models
    from assay.store import About
    from assay.zoo import Zoo

    zoo = Zoo.embedded() if settings.zoo is None else Zoo.open(settings.zoo)
    known = _known(settings, zoo)
    targets = _targets(settings, zoo, known)
    check_outputs(settings)
    metrics = None if settings.metrics is None else [each.strip() for each in settings.metrics.split(",")]
    how: dict[str, Any] = {"metrics": metrics, "measure": settings.measure, "device": settings.place()}
    how |= {"settings": call(settings, InspectionSettings), "cache": settings.store_folder() / "inspections"}
    rankings: dict[str, list[Ranking]] = {}
    with progress_on_stderr() as progress:
        for dataset, target in targets:

            def told(stage: str, done: int, total: int, label: str = target.domain) -> None:
                progress(f"{label}: {stage}", done, total)

            ranking = rank_models(zoo, target, id_data=known, progress=told, **how)
            rankings.setdefault(dataset, []).append(ranking)
    document = ranking.to_dict() if len(targets) == 1 else comparison_document(rankings)
    tasks = ", ".join(":".join(dict.fromkeys((each.name, each.domain))) for _, each in targets)
    n, who = sum(each.n for _, each in targets), f"{len(zoo.keys)} models"
    about = About(task=tasks, metric=settings.measure, n=n, seed=settings.seed, name=who)
    settings.keep(document["kind"], document["provenance"], document, about)
    files = {}
    if settings.out is not None:
        document_file = json_file(settings.out / "ranking.json", document)
        files = {"document": document_file, "report": File(settings.out / "report.html")}
    settings.deliver(document, files, identity=document["id"])


def _known(settings: RankSettings, zoo: "Zoo") -> "ImageTask | None":
    """Labelled images of the models' own domain: those given, or drawn for zoos trained on shapes."""
    from assay.tasks import SHAPE_DOMAINS, one_domain
    from assay.tasks.image_source import FIRST_KNOWN, SHAPES

    path = settings.id_images
    if path is None and (zoo.id_domain not in SHAPE_DOMAINS or zoo.data.get("name", SHAPES) != SHAPES):
        return None
    if path is not None and zoo.data.get("config", {}).get("source") == path.name:
        remark(f"{path} bears the name of the images that {zoo.name} was trained on; use held-out ones")
    source = f"{SHAPES}:{zoo.id_domain}" if path is None else path
    return one_domain({each.domain: each for each in settings.domains(source, FIRST_KNOWN)}, source)


def _targets(settings: RankSettings, zoo: "Zoo", known: "ImageTask | None") -> "list[tuple[str, ImageTask]]":
    """Each domain with the data set it is part of; of several, the zoo's own domain is left out."""
    from assay.tasks import is_shapes
    from assay.tasks.image_source import FIRST_FREE, SHAPES

    domains = [
        (SHAPES if is_shapes(source) else Path(source).absolute().name, images)
        for source in settings.images or ("shapes:sketch",)
        for images in settings.domains(source, FIRST_FREE)
    ]
    for note in dict.fromkeys(note for _, images in domains for note in images.notes):
        remark(note)
    if len(domains) == 1:
        return domains
    kept = []
    for dataset, images in domains:
        if images.domain == zoo.id_domain or (known and images.source_hash == known.source_hash):
            remark(f"{images.domain} is the own domain of {zoo.name} and is not among its targets")
        else:
            kept.append((dataset, images))
    if not kept:
        raise InputError(f"no target is left for {zoo.name}, which was trained on {zoo.id_domain}")
    return kept

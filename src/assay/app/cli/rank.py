"""`assay rank`: which model of a zoo to deploy on images that may have no labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import IMAGES, command
from assay.app.console import progress_on_stderr, remark
from assay.app.delivery import Reporting, check_outputs
from assay.app.options import INPUTS, RARE, Count, at_least, call, keywords, own_group
from assay.app.settings import Ablating, Quadrature, RunningModels, SkipBad, Typed
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.generalization.ranking_table import Ranking
    from assay.analyses.generalization.stable_pick import StablePick
    from assay.pipeline.ranking import Lineup
    from assay.pipeline.targets import Domain

RANKING = own_group("Ranking")
STOPPING = own_group("Stopping early", 41)


@dataclass(frozen=True, kw_only=True)
class RankSettings(RunningModels, Reporting, Typed, Ablating, Quadrature, SkipBad):
    """Which models are ranked, on what, and by which metrics.

    Attributes:
        zoo: Zoo, or a directory of model directories; repeat for several, whose own domains are not their
            targets. Default: the embedded zoo.
        images: Target images: DIR/CLASS/*, DIR/DOMAIN/CLASS/* (one target per domain), a folder of images, or
            .npz; repeat for several.
        shapes: Target style of the drawn shapes; repeat for several. Default: sketch.
        id_images: Labelled in-distribution images, not used in training; one per zoo. Default: drawn for zoos
            on shapes.
        labels: Require labels, or read folders as one unlabelled domain. Default: use labels if present.
        n: Images of each domain, in total. Default: all of a folder, 400 drawn ones.
        metrics: Metrics to rank by, separated by commas. Default: all but sharpness.
        fast: Score only edges into the logits: half the cost, without DDB deep and global and motifs.
        measure: Measure of true performance: accuracy or macro-f1.
        ratio: Share of blocks counted as deep, and as shallow; at most 0.5.
        include_input: Count the input as a shallow layer.
        sets: Layers compared: symmetric, or reference (those of the authors' code, 12 blocks).
        steps: Quadrature nodes of the attribution.
        draws: Bootstrap resamples of the images, at least 20.
        sharpness_batch: Images per sharpness batch.
        until: stable: compare on 64, 128, 256, ... images, drop models that cannot win, stop at one.
            By the metric of --metrics; default: DDB output.
        error: Probability that --until stable drops the best model, at most.
    """

    zoo: Annotated[tuple[Path, ...], INPUTS] = ()
    images: Annotated[tuple[Path, ...], INPUTS] = ()
    shapes: Annotated[tuple[str, ...], INPUTS] = ()
    id_images: Annotated[tuple[Path, ...], INPUTS] = ()
    labels: Annotated[bool | None, INPUTS, Parameter(negative="--no-labels")] = None
    n: Annotated[int | None, INPUTS, at_least(2)] = None
    metrics: Annotated[str | None, RANKING] = None
    fast: Annotated[bool, RANKING] = False
    measure: Annotated[str, RANKING] = "accuracy"
    ratio: Annotated[float, RANKING] = 0.3
    include_input: Annotated[bool, RARE] = False
    sets: Annotated[str, RARE] = "symmetric"
    steps: Annotated[Count, RANKING] = 5
    draws: Annotated[int, RANKING, at_least(20)] = 200
    sharpness_batch: Annotated[Count, RARE] = 256
    until: Annotated[str | None, STOPPING] = None
    error: Annotated[float, STOPPING] = 0.05


@command(IMAGES, example="assay rank --zoo zoo --images photos --report rank.html")
def rank(settings: RankSettings) -> None:
    """Rank the models of a zoo on target images.

    By depth bias and by every baseline, before deployment; the images may have no labels.
    """
    from assay.pipeline.ranking import keep_ranking

    lineups = _lineups(settings)
    metric = None if settings.until is None else _picked_by(settings, lineups)
    check_outputs(settings)
    if metric is not None:
        document, name = _pick(settings, lineups[0], metric).to_dict(), "pick.json"
    else:
        document, name = _document(_rankings(settings, lineups)), "ranking.json"
    keep_ranking(settings.open_store(), document)
    settings.deliver(document, settings.files(document, name), identity=document["id"])


def _document(rankings: "Sequence[tuple[str, Ranking]]") -> dict[str, Any]:
    """The document of the ranking, or of several compared by data set."""
    from assay.analyses.generalization.comparison import compare_rankings

    if len(rankings) == 1:
        return rankings[0][1].to_dict()
    by_dataset: dict[str, list[Ranking]] = {}
    for dataset, ranking in rankings:
        by_dataset.setdefault(dataset, []).append(ranking)
    return compare_rankings(by_dataset).to_dict()


def _lineups(settings: RankSettings) -> "list[Lineup]":
    """Models, images and metrics, a line-up per zoo."""
    from assay.analyses.generalization.inspection import InspectionSettings
    from assay.analyses.generalization.predictors import DEFAULT_METRICS, FAST_METRICS
    from assay.pipeline.ranking import Lineup
    from assay.pipeline.targets import known_target, targets
    from assay.zoo import Zoo
    from assay.zoo.archive import missing_text

    if len(settings.id_images) not in (0, max(1, len(settings.zoo))):
        raise InputError(
            f"--id-images is given {len(settings.id_images)} times for {max(1, len(settings.zoo))} zoo(s); "
            "give one per zoo, in their order, or none"
        )
    device = settings.place()
    zoos = [Zoo.open(path) for path in settings.zoo] or [Zoo.embedded()]
    styles = settings.shapes or (() if settings.images else ("sketch",))
    metrics = FAST_METRICS if settings.fast else DEFAULT_METRICS
    if settings.metrics:
        metrics = tuple(each.strip() for each in settings.metrics.split(","))
    domains = call(settings, targets, list(settings.images), list(styles), note=remark)
    found = []
    for zoo, known in zip(zoos, settings.id_images or [None] * len(zoos), strict=True):
        others = [each for each in domains if len(zoos) == 1 or each.name != zoo.id_domain]
        if not others:
            raise InputError(f"no target is left for {zoo.name}, which was trained on {zoo.id_domain}")
        found.append(
            Lineup(
                zoo=zoo,
                targets=tuple(others),
                known=call(settings, known_target, zoo, known),
                metrics=metrics,
                settings=call(settings, InspectionSettings),
                device=device,
                dtype=settings.dtype_name,
                prefix=f"{zoo.name}/" if len(zoos) > 1 else "",
            )
        )
        if zoo.missing:
            remark(f"{zoo.path}: {missing_text(zoo.missing, len(zoo.keys))}")
    return found


def _picked_by(settings: RankSettings, lineups: "Sequence[Lineup]") -> str:
    """The metric of a pick, which is among the models of one zoo for one target."""
    from assay.analyses.generalization.stable_pick import check_metric

    if len(lineups) > 1:
        raise InputError(f"--until stable picks among the models of one zoo, but there are {len(lineups)}")
    (lineup,) = lineups
    if len(lineup.targets) > 1:
        names = ", ".join(target.name for target in lineup.targets)
        raise InputError(f"--until stable picks for one target, but there are {len(lineup.targets)}: {names}")
    if len(lineup.metrics) > 1 and settings.metrics:
        raise InputError(f"--until stable picks by one metric, but --metrics names {len(lineup.metrics)}")
    metric = lineup.metrics[0] if settings.metrics else "ddb-output"
    check_metric(metric, known=lineup.known is not None)
    return metric


def _pick(settings: RankSettings, lineup: "Lineup", metric: str) -> "StablePick":
    """One model, with as many images as that takes."""
    from assay.analyses.generalization.stable_pick import pick_until_stable

    with progress_on_stderr() as progress:
        return lineup.pick(
            metric,
            cache=settings.store_folder() / "inspections",
            progress=progress,
            **keywords(settings, pick_until_stable, settings=lineup.settings),
        )


def _rankings(settings: RankSettings, lineups: "Sequence[Lineup]") -> "list[tuple[str, Ranking]]":
    """Data set and ranking of every zoo on every target, in the order given."""
    found: list[tuple[str, Ranking]] = []
    with progress_on_stderr() as progress:
        for lineup in lineups:
            rankings: dict[int, Ranking] = {}
            # Labelled targets first: they tell what a pick cost where the labels of others are unknown.
            order = sorted(enumerate(lineup.targets), key=lambda each: each[1].labelled is False)
            for place, target in order:
                names = [lineup.zoo.name] * (len(lineups) > 1) + [target.name] * (len(lineup.targets) > 1)
                elsewhere = [each for each in rankings.values() if each.performance is not None]
                rankings[place] = _ranking(settings, lineup, target, elsewhere, names, progress)
            found += [(target.dataset, rankings[place]) for place, target in enumerate(lineup.targets)]
    return found


def _ranking(
    settings: RankSettings,
    lineup: "Lineup",
    target: "Domain",
    elsewhere: "Sequence[Ranking]",
    names: Sequence[str],
    progress: Callable[[str, int, int], None],
) -> "Ranking":
    """The models of one zoo on one target; `names` say which, before the stage in progress."""
    from assay.analyses.generalization.ranking import rank_models

    def shown(stage: str, done: int, total: int) -> None:
        progress(": ".join([*names, stage]), done, total)

    return lineup.rank(
        target,
        cache=settings.store_folder() / "inspections",
        elsewhere=elsewhere,
        progress=shown,
        **keywords(settings, rank_models, metrics=lineup.metrics, settings=lineup.settings),
    )

"""`assay rank`: which model of a zoo to deploy on images that may have no labels."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.app.cli.border import (
    check_outputs,
    command,
    echo,
    make_room,
    open_store,
    print_json,
    print_table,
    progress_on_stderr,
    store_folder,
)
from assay.app.cli.commands import app
from assay.app.cli.options import (
    AblationOption,
    BatchOption,
    ConfigOption,
    DeviceOption,
    DryRunOption,
    JsonOption,
    ObjectiveOption,
    QuietOption,
    SeedOption,
    StoreOption,
    TracebackOption,
    option,
)


if TYPE_CHECKING:
    from assay.analyses.generalization.inspection import InspectionSettings
    from assay.analyses.generalization.ranking_table import Ranking
    from assay.pipeline.targets import Target
    from assay.zoo import Zoo


@app.command()
@command
def rank(
    zoo: Annotated[
        Path | None,
        option("--zoo", "A zoo, or a directory of model directories.  [default: the embedded zoo]"),
    ] = None,
    images: Annotated[
        list[Path] | None,
        option(
            "--images",
            "Target: DIR/CLASS/*, DIR/DOMAIN/CLASS/* (each domain a target), a folder of images, or .npz; "
            "may be repeated.",
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        option("--shapes", "Target: a style of the drawn shapes; may be repeated.  [default: sketch]"),
    ] = None,
    id_images: Annotated[
        Path | None,
        option(
            "--id-images",
            "Labelled images of the models' own domain, not trained on.  [default: drawn for zoos on shapes]",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        option("--metrics", "Metrics to rank by, separated by commas.  [default: all but sharpness]"),
    ] = None,
    fast: Annotated[
        bool,
        option(
            "--fast", "Score only edges into the logits: half the cost; no DDB deep and global, no motif."
        ),
    ] = False,
    labels: Annotated[
        bool | None,
        typer.Option(
            "--labels/--no-labels",
            help="Require labels, or read folders as one domain without labels.  [default: use those there]",
        ),
    ] = None,
    n: Annotated[
        int | None,
        option("--n", "Images per domain.  [default: all of a folder, 400 drawn ones]", min=2),
    ] = None,
    measure: Annotated[str, option("--measure", "True performance: accuracy or macro-f1.")] = "accuracy",
    ratio: Annotated[
        float, option("--ratio", "Share of blocks that are deep, and shallow; at most 0.5.")
    ] = 0.3,
    steps: Annotated[int, option("--steps", "Quadrature nodes of the attribution.", min=1)] = 5,
    draws: Annotated[int, option("--draws", "Bootstrap resamples of the images.", min=1)] = 1000,
    sharpness_batch: Annotated[
        int, option("--sharpness-batch", "Images of one sharpness batch.", min=1)
    ] = 256,
    objective: ObjectiveOption = None,
    ablation: AblationOption = None,
    skip_bad: Annotated[
        bool, option("--skip-bad", "Leave out image files that cannot be decoded; counted.")
    ] = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    store: StoreOption = None,
    out: Annotated[Path | None, option("--out", "JSON document to write.")] = None,
    report: Annotated[Path | None, option("--report", "HTML page to write.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Rank the models of a zoo on target images, by depth bias and by every baseline, before deployment."""
    from assay.analyses.generalization import comparison
    from assay.analyses.generalization.inspection import InspectionSettings
    from assay.analyses.generalization.predictors import AFFORDABLE, DEFAULT_METRICS
    from assay.analyses.generalization.ranking import rank_models
    from assay.circuits import write_atomically
    from assay.pipeline.targets import known_target, targets
    from assay.report import save_report

    chosen = (
        [each.strip() for each in metrics.split(",")]
        if metrics
        else list(DEFAULT_METRICS if fast else AFFORDABLE)
    )
    settings = InspectionSettings(
        objective=objective,
        ablation=ablation,
        steps=steps,
        sharpness_batch=sharpness_batch,
        draws=draws,
        seed=seed,
        batch_size=batch_size,
    )
    found = _opened(zoo)
    styles = shapes or ([] if images else ["sketch"])

    def note(text: str) -> None:
        if not quiet:
            echo(f"note: {text}", err=True)

    wanted = targets(images or [], styles, n=n, seed=seed, skip_bad=skip_bad, labels=labels, note=note)
    known = known_target(found, id_images, n=n, seed=seed, skip_bad=skip_bad)
    loaders = {key: functools.partial(found.load, key, device=device) for key in found.keys}
    if dry_run:
        _show_plan(found, wanted, chosen, known=known, settings=settings, device=device, as_json=as_json)
        return
    check_outputs(out, report, store=store)
    rankings: dict[int, Ranking] = {}
    with progress_on_stderr(quiet=quiet) as progress:
        # Labelled targets first: they tell what a pick cost where the labels of others are unknown.
        for place, target in sorted(enumerate(wanted), key=lambda each: each[1].labelled is False):
            prefix = f"{target.name}: " if len(wanted) > 1 else ""

            def shown(stage: str, done: int, total: int, prefix: str = prefix) -> None:
                progress(prefix + stage, done, total)

            rankings[place] = rank_models(
                loaders,
                target.read,
                id_data=None if known is None else known.read,
                metrics=chosen,
                labels=labels,
                measure=measure,
                ratio=ratio,
                settings=settings,
                elsewhere=[each for each in rankings.values() if each.performance is not None],
                cache=store_folder(store) / "inspections",
                progress=shown,
            )
    ordered = [rankings[place] for place in range(len(wanted))]
    compared = comparison.compare_rankings(ordered) if len(ordered) > 1 else None
    document = ordered[0].to_dict() if compared is None else compared.to_dict()
    kept = open_store(store)
    kept.put(document["kind"], document["provenance"], document)
    if out is not None:
        write_atomically(make_room(out), json.dumps(document, indent=1, allow_nan=False).encode())
    if report is not None:
        save_report(make_room(report), document)
    if as_json:
        print_json(document)
        return
    for each in ordered:
        print_ranking(each.to_dict())
    if compared is not None:
        print_comparison(document)
    for name, path in (("document", out), ("report", report)):
        if path is not None:
            echo(f"{name:<8} {path}")
    echo(f"result   {document['id']}")


def _opened(path: Path | None) -> "Zoo":
    from assay.zoo import Zoo

    return Zoo.embedded() if path is None else Zoo.open(path)


def _show_plan(
    zoo: "Zoo",
    wanted: "Sequence[Target]",
    metrics: Sequence[str],
    *,
    known: "Target | None",
    settings: "InspectionSettings",
    device: str | None,
    as_json: bool,
) -> None:
    """Passes per image and model, at most, and seconds per metric."""
    from assay.analyses.generalization.predictor import PREDICTORS
    from assay.page.text import number
    from assay.pipeline.ranking import timed_metrics

    needs = frozenset[str]().union(*(PREDICTORS[key].needs for key in metrics))
    stages = {"logits and features": 1}
    if "edge-scores" in needs:
        stages["scores of all edges"] = 2 + 2 * settings.steps
    elif "output-scores" in needs:
        stages["scores of edges into the logits"] = 2 + settings.steps
    if known is not None and "known" in needs:
        stages["logits, own domain"] = 1
        if "sharpness" in needs:
            stages["sharpness, own domain"] = 61
    seconds = timed_metrics(zoo, wanted, known, metrics, settings=settings, device=device)
    if as_json:
        plan = {
            "models": list(zoo.keys),
            "targets": [each.name for each in wanted],
            "passes_per_image": stages,
            "seconds": {"metrics": dict(seconds.metrics), "together": seconds.together},
        }
        print_json(plan)
        return
    echo(f"{len(zoo.keys)} models on {', '.join(each.name for each in wanted)}")
    print_table(
        "", ["stage", "passes per image and model"], [[name, str(count)] for name, count in stages.items()]
    )
    print_table(
        "",
        ["metric", "seconds"],
        [[PREDICTORS[key].name, number(value)] for key, value in seconds.metrics.items()],
    )
    echo(
        f"all together {number(seconds.together)} s, since metrics share stages: an estimate, from passes of "
        f"{zoo.keys[0]} timed on this machine just now"
    )


def print_ranking(document: Mapping[str, Any]) -> None:
    """The models in order, and what picking by each metric is worth."""
    from assay.analyses.generalization import rank_words as rank_figures
    from assay.analyses.generalization import rank_words as rank_page
    from assay.page import text as words

    target = document["target"]
    echo(f"{target['domain'] or target['name']}: {len(document['models'])} models, {target['n']} images")
    leading = rank_figures.leading(document)
    truth = document["performance"]
    others = [
        each for each in document["metrics"] if each is not leading and any(r["rank"] for r in each["rows"])
    ]
    rows = []
    for place in rank_figures.order(document):
        row = [document["models"][place]["name"]]
        if truth is not None:
            row.append(words.number(truth[place]["value"]))
        if leading is not None:
            shown = rank_page.cell(leading["rows"][place])
            row.append(f"{shown['value']} {shown['interval']}".strip())
        rows.append([*row, *(rank_page.cell(each["rows"][place])["rank"] for each in others)])
    columns = ["model", *([rank_figures.measure_name(document)] if truth is not None else [])]
    columns += [f"{leading['name']}, 95 % interval"] if leading is not None else []
    print_table("", [*columns, *(f"#{each['name']}" for each in others)], rows)
    echo()
    worth = rank_page.worth(document)
    told = [
        ("metric", "name"),
        ("picks", "pick"),
        ("best by it", "chance"),
        *([("expected regret", "regret"), ("R2", "r2"), ("rank corr.", "srcc")] if truth is not None else []),
        *([("regret elsewhere", "elsewhere")] if any(row["elsewhere"] for row in worth) else []),
    ]
    print_table("", [title for title, _ in told], [[row[key] for _, key in told] for row in worth])
    if truth is not None:
        echo(f"a blind pick has an expected regret of {rank_page.blind(document)}")
    for each in document["absent"]:
        echo(f"without {each['name']}: {each['reason']}")
    for text in rank_page.caveats(document):
        echo(text)
    echo()


def print_comparison(document: Mapping[str, Any]) -> None:
    """Metrics over all targets."""
    from assay.analyses.generalization.rank_words import fixed

    rows = [
        [
            each["name"],
            "" if each["average"] is None else f"{fixed(each['average'], 3)} ± {fixed(each['sem'], 3)}",
            fixed(each["regret"], 3),
            str(each["n_tasks"]),
        ]
        for each in document["metrics"]
    ]
    print_table("all targets", ["metric", "mean correlation ± SEM", "expected regret", "targets"], rows)
    echo()

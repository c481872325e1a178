"""`assay truth` and `assay benchmark`: discovery methods judged by planted truth, quality and cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.app.cli.border import command, echo, make_room, print_json, print_table, progress_on_stderr
from assay.app.cli.commands import app
from assay.app.cli.options import (
    AblationOption,
    BatchOption,
    ConfigOption,
    DeviceOption,
    JsonOption,
    ObjectiveOption,
    QuietOption,
    SeedOption,
    TracebackOption,
    option,
)
from assay.core.errors import InputError, OutputError


if TYPE_CHECKING:
    from assay.analyses.benchmark import DiscoveryBenchmark, TruthTable
    from assay.circuits import EdgeScores
    from assay.models import Model
    from assay.report.benchmark_tables import Table

benchmark_app = typer.Typer(
    name="benchmark",
    help="Judge methods against each other.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(benchmark_app)

MethodsOption = Annotated[
    list[str] | None,
    option(
        "--methods",
        "Methods, separated by commas or repeated; METHOD@WORD enters one twice.  [default: all registered]",
    ),
]
MethodOptionsOption = Annotated[
    list[str] | None,
    option("--option", "METHOD.NAME=VALUE, e.g. ugs.updates=300; may be repeated."),
]
QuickOption = Annotated[
    bool,
    option("--quick", "About a minute: fewer examples and updates, no method by single edges; says what."),
]
SampleOption = Annotated[int | None, option("--n", "Examples of each sample.  [default: 200]", min=1)]


@app.command()
@command
def truth(
    models: Annotated[
        list[str] | None,
        option(
            "--models", "Planted models, or beginnings of their names, separated by commas.  [default: all]"
        ),
    ] = None,
    methods: MethodsOption = None,
    objectives: Annotated[
        list[str] | None, option("--objectives", "Separated by commas.  [default: logit_diff,kl]")
    ] = None,
    n: Annotated[int | None, option("--n", "Examples of each model.  [default: 64]", min=1)] = None,
    options: MethodOptionsOption = None,
    quick: QuickOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    out: Annotated[
        Path | None, option("--out", "Directory for truth.json, .csv, .md and the picture.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Judge methods on models whose circuit is known: AUROC, average precision, recall at the true size."""
    from assay import pipeline
    from assay.analyses.benchmark import measure_truth
    from assay.analyses.benchmark.truth import OBJECTIVES, TRUTH_N
    from assay.pipeline.benchmark import write_truth

    chosen, settings, n = _competitors(methods, options, n, quick=quick, usual=TRUTH_N, quiet=quiet)
    _check_folder(out)
    pipeline.check_options(device=device)
    with progress_on_stderr(quiet=quiet) as progress:
        found = measure_truth(
            _planted(_split(models)),
            chosen,
            _split(objectives) or OBJECTIVES,
            n=n,
            options=settings,
            batch_size=batch_size,
            device=device,
            seed=seed,
            progress=progress,
        )
    _check_served([cell.reason for cell in found.cells])
    written = {} if out is None else write_truth(out, found)
    if as_json:
        print_json(found.to_dict())
        return
    _print_truth(found)
    _print_files(written)


@benchmark_app.command("discovery")
@command
def discovery(
    model: Annotated[
        str, option("--model", "mini, planted:NAME, colour-digits, a hub id, or a directory.")
    ] = "mini",
    task: Annotated[
        str | None,
        option(
            "--task",
            "Registered task, JSONL file, or colour-digits[:AGREEMENT[/SWAP]].  "
            "[default: what suits the model]",
        ),
    ] = None,
    images: Annotated[
        str | None, option("--images", "For an image classifier: shapes:DOMAIN, an .npz file, or a folder.")
    ] = None,
    methods: MethodsOption = None,
    options: MethodOptionsOption = None,
    objective: ObjectiveOption = None,
    ablation: AblationOption = None,
    n: SampleOption = None,
    evaluate: Annotated[
        str, option("--evaluate", "Judge circuits on held-out examples, or on the same ones.")
    ] = "held-out",
    imports: Annotated[
        list[Path] | None,
        option(
            "--import",
            "Scores of others: .safetensors, JSON of EAP-IG, a folder of a MIB submission; may be repeated.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        option("--export", "Directory for the scores as MIB-style submissions, a folder per method."),
    ] = None,
    scores_dir: Annotated[
        Path | None, option("--scores-dir", "Directory for every method's scores, METHOD.safetensors.")
    ] = None,
    quick: QuickOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    out: Annotated[
        Path | None, option("--out", "Directory for benchmark.json, .csv, .md and the picture.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Judge discovery methods on one model and task: CPR, CMD, seconds, memory, plain forward passes."""
    from assay import pipeline
    from assay.analyses.benchmark import benchmark_discovery
    from assay.analyses.benchmark.targets import DEFAULT_N, find_target
    from assay.pipeline.benchmark import write_benchmark

    chosen, settings, n = _competitors(methods, options, n, quick=quick, usual=DEFAULT_N, quiet=quiet)
    for folder in (out, export, scores_dir):
        _check_folder(folder)
    pipeline.check_options(device=device)
    with progress_on_stderr(quiet=quiet) as progress:
        progress("load", 0, 1)
        target = find_target(model, task, images=images, n=n, seed=seed, device=device)
        progress("load", 1, 1)
        found = benchmark_discovery(
            target.model,
            target.task,
            chosen,
            options=settings,
            objective=objective,
            ablation=ablation,
            evaluate=evaluate,
            held_out=target.held_out if evaluate == "held-out" else None,
            imports=_imported(imports, target.model, target.task.name),
            truth=target.truth,
            batch_size=batch_size,
            seed=seed,
            progress=progress,
        )
    _check_served([row.reason for row in found.rows])
    written = {} if out is None else write_benchmark(out, found)
    written |= _keep_scores(found, target.model, export=export, scores_dir=scores_dir)
    if as_json:
        print_json(found.to_dict())
        return
    _print_benchmark(found)
    _print_files(written)


# ------------------------------------------------------------------------------------------------- reading


def _split(texts: list[str] | None) -> list[str] | None:
    """Names from options that may be repeated and may hold commas."""
    if texts is None:
        return None
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("an option that lists names got none; name some, or leave the option out for all")
    return names


def _check_served(reasons: list[str | None]) -> None:
    """Refuse a comparison in which no method could take part, with the first reason."""
    if reasons and all(reason is not None for reason in reasons):
        raise InputError(f"no method could take part: {reasons[0]}")


def _competitors(
    methods: list[str] | None,
    options: list[str] | None,
    n: int | None,
    *,
    quick: bool,
    usual: int,
    quiet: bool,
) -> tuple[list[str] | None, Mapping[str, Mapping[str, Any]], int]:
    """Methods, their options and the number of examples; what a quick run shrinks is said on stderr."""
    from assay.analyses.benchmark import choose_entries
    from assay.pipeline.benchmark import parse_options, quick_settings

    chosen, settings = _split(methods), parse_options(options or [])
    if quick:
        shrunk = quick_settings(chosen, settings, n)
        chosen, n = list(shrunk.methods), shrunk.n
        settings = {name: dict(own) for name, own in shrunk.options.items()}
        for text in () if quiet else shrunk.said:
            echo(f"quick: {text}", err=True)
    choose_entries(chosen, settings)
    return chosen, settings, usual if n is None else n


def _planted(names: list[str] | None) -> list[str] | None:
    """Planted models by name or by the beginning of it: `induction`, `induction/gpt2`."""
    from assay.analyses.benchmark.planted import PLANTED
    from assay.core.errors import unknown_name
    from assay.models.planted import planted_names

    if names is None:
        return None
    known = planted_names()
    found: list[str] = []
    for name in names:
        plain = name.removeprefix(PLANTED)
        matching = [each for each in known if each == plain or each.startswith(f"{plain.rstrip('/')}/")]
        if not matching:
            raise unknown_name("planted model", plain, known)
        found += [each for each in matching if each not in found]
    return found


def _imported(paths: list[Path] | None, model: "Model", task: str) -> "dict[str, EdgeScores]":
    from assay.pipeline.benchmark import read_scores

    found: dict[str, EdgeScores] = {}
    for path in paths or []:
        name = path.stem if path.suffix else path.name
        if name in found:
            raise InputError(
                f"two imported files are called {name!r}; rename one, since rows go by that name"
            )
        found[name] = read_scores(path, model, task)
    return found


def _check_folder(folder: Path | None) -> None:
    """Refuse a directory that cannot be written, before the work is done."""
    from assay.pipeline import check_writable

    if folder is None:
        return
    if folder.is_file():
        raise OutputError(f"{folder} is a file; give a directory")
    check_writable(folder)


def _keep_scores(
    found: "DiscoveryBenchmark", model: "Model", *, export: Path | None, scores_dir: Path | None
) -> dict[str, Path]:
    """Scores of every method as files of ours, and as a submission that others read."""
    written: dict[str, Path] = {}
    if scores_dir is not None:
        for name, scores in found.scores.items():
            scores.save(make_room(scores_dir / f"{name}.safetensors"))
        written["scores"] = scores_dir
    if export is not None:
        from assay.pipeline.benchmark import export_submission

        written["submission"] = export_submission(export, found, model)
    return written


# ---------------------------------------------------------------------------------------------- for reading


def _print(table: "Table") -> None:
    print_table("", table.columns, table.rows, right=" ".join(table.right))


def _print_truth(table: "TruthTable") -> None:
    from assay.report import benchmark_tables

    summary = table.summary()
    echo(
        f"{len(table.models)} planted model{'' if len(table.models) == 1 else 's'}, "
        f"{len(table.methods)} methods, "
        f"{table.settings['n']} examples each, {table.settings['ablation']} ablation"
    )
    echo()
    _print(benchmark_tables.truth_methods_table(table))
    echo()
    _print(benchmark_tables.truth_models_table(table))
    echo()
    echo(benchmark_tables.TRUTH_LEGEND)
    lowest = benchmark_tables.share(summary.lowest_best)
    echo(f"AUROC of the best method on the model where that is lowest: {lowest}")
    for text in benchmark_tables.partly_measured(table):
        echo(f"note: {text}")
    for text in benchmark_tables.refusals(table):
        echo(f"not served: {text}")


def _print_benchmark(found: "DiscoveryBenchmark") -> None:
    from assay.report import benchmark_tables

    echo(benchmark_tables.heading(found))
    echo()
    _print(benchmark_tables.quality_table(found))
    echo()
    echo(benchmark_tables.LEGEND)
    echo()
    _print(benchmark_tables.order_of(found))
    for text in benchmark_tables.notes(found):
        echo(f"note: {text}")


def _print_files(written: Mapping[str, Path]) -> None:
    if written:
        echo()
    for kind, path in written.items():
        echo(f"{kind:<10} {path}")

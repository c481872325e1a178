"""`assay benchmark`: discovery methods judged by quality and cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command, family
from assay.app.delivery import File, check_outputs, make_room, print_pages, progress_on_stderr, remark
from assay.app.options import DISCOVERY, INPUTS, OUTPUT, RUNNING, Count, call, parse_options
from assay.app.settings import Ablating, OnAnyModel, RunningModels
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.benchmark import DiscoveryBenchmark
    from assay.circuits import EdgeScores
    from assay.models import Model

benchmark_app = family(CIRCUITS, "benchmark", "Judge methods against each other.")


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings(RunningModels, Ablating, OnAnyModel):
    """Which methods are judged on which model and task, and what is kept.

    Attributes:
        task: Registered task, JSONL file, or colour-digits[:AGREEMENT[/SWAP]]. Default: a task that suits the
            model.
        images: Images for an image classifier: shapes:DOMAIN, or a folder.
        methods: Methods, separated by commas or repeated; METHOD@WORD adds a second variant. Default: all
            registered.
        options: Option of a method, METHOD.NAME=VALUE, e.g. ugs.updates=300; repeat for several.
        quick: Take about a minute: fewer examples and updates, no method by single edges.
        n: Examples of each sample, to discover on and to judge on. Default: 200.
        evaluate: Examples that judge the circuits: held-out, or same as for discovery.
        imports: Scores from other tools: .safetensors, JSON of EAP-IG, a folder of a MIB submission; repeat
            for several.
        export: Directory for the scores as MIB-style submissions, one folder per method.
        scores_dir: Directory for the scores of every method, METHOD.safetensors.
        out: Directory for benchmark.json and report.html.
    """

    task: Annotated[str | None, INPUTS] = None
    images: Annotated[str | None, INPUTS] = None
    methods: Annotated[tuple[str, ...], DISCOVERY] = ()
    options: Annotated[tuple[str, ...], DISCOVERY, Parameter(name="--option")] = ()
    quick: Annotated[bool, RUNNING] = False
    n: Annotated[Count | None, INPUTS] = None
    evaluate: Annotated[str, DISCOVERY] = "held-out"
    imports: Annotated[tuple[Path, ...], DISCOVERY, Parameter(name="--import")] = ()
    export: Annotated[Path | None, OUTPUT] = None
    scores_dir: Annotated[Path | None, OUTPUT] = None
    out: Annotated[Path | None, OUTPUT] = None


@command(
    parent=benchmark_app, example="assay benchmark discovery --model mini --task ioi --quick --out bench"
)
def discovery(settings: BenchmarkSettings) -> None:
    """Judge discovery methods on one model and task.

    By CPR, CMD, seconds, memory and plain forward passes.
    """
    from assay.analyses.benchmark import benchmark_discovery, choose_entries
    from assay.analyses.benchmark.page import benchmark_page
    from assay.analyses.benchmark.targets import find_target
    from assay.discovery.edges import METHODS
    from assay.pipeline import benchmark as files

    names = [name.strip() for text in settings.methods for name in text.split(",") if name.strip()]
    methods, options, n = names or None, parse_options(settings.options), settings.n
    if settings.quick:
        variants = [name for name in options if "@" in name]
        methods = names or [*(key for key in METHODS if key not in files.QUICK_WITHOUT), *variants]
        options, n = files.quick_options(methods, options), n or files.QUICK_N
        without = "" if names else f", without {' and '.join(files.QUICK_WITHOUT)}"
        remark(f"quick: {n} examples, learned masks far from converged{without}")
    choose_entries(methods, options)  # wrong names cost no loading
    check_outputs(settings, folders=(settings.export, settings.scores_dir))
    with progress_on_stderr() as progress:
        progress("load", 0, 1)
        target = call(
            settings,
            find_target,
            *(settings.model, settings.task),
            n=n,
            device=settings.place(),
            dtype=settings.torch_dtype,
        )
        progress("load", 1, 1)
        result = call(
            settings,
            benchmark_discovery,
            *(target.model, target.task),
            methods=methods,
            options=options,
            held_out=target.held_out if settings.evaluate == "held-out" else None,
            imports=_imported(settings.imports, target.model),
            truth=target.truth,
            progress=progress,
        )
    reasons = [row.reason for row in result.rows]
    if reasons and None not in reasons:
        raise InputError(f"every method was rejected: {reasons[0]}")

    def save_scores(folder: Path) -> None:
        for name, scores in result.scores.items():
            scores.save(make_room(folder / f"{name}.safetensors"))

    def export(folder: Path) -> None:
        files.export_submission(folder, result, target.model)

    written = {
        "benchmark": File(settings.out, lambda folder: files.write_benchmark(folder, result)),
        "scores": File(settings.scores_dir, save_scores),
        "submission": File(settings.export, export),
    }
    identity = _keep(settings, result)
    document = result.to_dict()
    settings.deliver(document, written, show=lambda: print_pages(benchmark_page(document)), identity=identity)


def _imported(paths: Sequence[Path], model: "Model") -> "dict[str, EdgeScores]":
    """Scores of other tools, by the names of their files."""
    from assay.pipeline.benchmark import read_scores

    names = [path.stem if path.suffix else path.name for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two imported files are named {name!r}; rename one, because rows are labelled by that name"
            )
    return {name: read_scores(path, model) for name, path in zip(names, paths, strict=True)}


def _keep(settings: BenchmarkSettings, result: "DiscoveryBenchmark") -> str:
    """Store the benchmark; returns its id."""
    from assay.store import About

    document = result.to_dict()
    facts = {name: document[name] for name in ("model", "discovered_on", "evaluated_on", "settings")}
    # A method is known by its options, imported scores by what came of them.
    rows = [
        row if row["method"] is None else {name: row[name] for name in ("name", "method", "options")}
        for row in document["rows"]
    ]
    about = About(
        model=str(result.model["id"]),
        task=result.task,
        name=f"{len(rows)} methods",
        metric="cpr",
        n=result.evaluated_on["n"],
        seed=settings.seed,
        ablation=result.settings["ablation"],
    )
    return settings.keep("benchmark", {**facts, "methods": rows}, document, about)

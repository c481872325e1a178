"""`assay benchmark`: discovery methods judged by quality and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command, family
from assay.app.console import echo, echo_result, print_block, print_json, progress_on_stderr, remark
from assay.app.option_groups import DISCOVERY, INPUTS, OUTPUT, RUNNING, Count
from assay.app.options import Ablating, Beginning, OnModel
from assay.app.running import Batched, Computing, Seeded, call, make_room
from assay.core.errors import InputError, OutputError


if TYPE_CHECKING:
    from assay.analyses.benchmark import Contender, DiscoveryBenchmark
    from assay.analyses.benchmark.targets import Target
    from assay.circuits import EdgeScores
    from assay.models import Model

benchmark_app = family(CIRCUITS, "benchmark", "Judge methods against each other.")


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings(Computing, Seeded, Batched, Ablating, Beginning, OnModel):
    """Which methods are judged on which model and task, and what is kept.

    Attributes:
        task: Registered task, JSONL file, or colour-digits[:AGREEMENT[/SWAP]]. Default: a task that suits the
            model.
        images: Images for an image classifier: shapes:DOMAIN, an .npz file, or a folder.
        methods: Methods, separated by commas or repeated; METHOD@WORD adds a second variant. Default: all
            registered.
        options: Option of a method, METHOD.NAME=VALUE, e.g. ugs.updates=300; repeat for several.
        quick: Take about a minute: fewer examples and updates, no method by single edges; prints what.
        n: Examples of each sample, to discover on and to judge on. Default: 200.
        evaluate: Examples that judge the circuits: held-out, or same as for discovery.
        imports: Scores from other tools: .safetensors, JSON of EAP-IG, a folder of a MIB submission; repeat
            for several.
        export: Directory for the scores as MIB-style submissions, one folder per method.
        scores_dir: Directory for the scores of every method, METHOD.safetensors.
        out: Directory for benchmark.json, .csv, .md and the figure.
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
    from assay.pipeline.benchmark import write_benchmark

    entered = _competitors(settings)
    for folder in (settings.out, settings.export, settings.scores_dir):
        _check_folder(folder)
    result, model = _run(settings, entered)
    _check_served([row.reason for row in result.rows])
    written = {} if settings.out is None else write_benchmark(settings.out, result)
    written |= _keep_scores(result, model, export=settings.export, scores_dir=settings.scores_dir)
    identity = _keep_benchmark(settings, result)
    if settings.json:
        print_json(result.to_dict())
        return
    _print_benchmark(result)
    _print_files(written, identity)


# ------------------------------------------------------------------------------------------------- reading


def _split(texts: Sequence[str]) -> list[str] | None:
    """Names from options that may be repeated and may hold commas; None where there is no option."""
    if not texts:
        return None
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("an option that takes names is empty; give names, or remove the option for all")
    return names


def _check_served(reasons: list[str | None]) -> None:
    """Refuse a comparison in which no method could take part, with the first reason."""
    if reasons and all(reason is not None for reason in reasons):
        raise InputError(f"every method was rejected: {reasons[0]}")


class _Entered(NamedTuple):
    methods: list[str] | None
    options: Mapping[str, Mapping[str, Any]]
    n: int
    entries: "Sequence[Contender]"


def _competitors(settings: BenchmarkSettings) -> _Entered:
    """Methods, their options and the number of examples; what a quick run shrinks is said on stderr."""
    from assay.analyses.benchmark import choose_entries
    from assay.analyses.benchmark.targets import DEFAULT_N
    from assay.pipeline.benchmark import parse_options, quick_settings

    methods, options, n = _split(settings.methods), parse_options(list(settings.options)), settings.n
    if settings.quick:
        shrunk = quick_settings(methods, options, n)
        methods, n = list(shrunk.methods), shrunk.n
        options = {name: dict(own) for name, own in shrunk.options.items()}
        for text in shrunk.said:
            remark(f"quick: {text}")
    return _Entered(methods, options, DEFAULT_N if n is None else n, choose_entries(methods, options))


def _target(settings: BenchmarkSettings, entered: _Entered) -> "Target":
    from assay.analyses.benchmark.targets import find_target

    return call(
        settings,
        find_target,
        *(settings.model, settings.task),
        n=entered.n,
        device=settings.place(),
        dtype=settings.torch_dtype,
    )


def _run(settings: BenchmarkSettings, entered: _Entered) -> "tuple[DiscoveryBenchmark, Model]":
    """The judged methods, and the model they ran on."""
    from assay.analyses.benchmark import benchmark_discovery

    with progress_on_stderr() as progress:
        progress("load", 0, 1)
        target = _target(settings, entered)
        progress("load", 1, 1)
        result = call(
            settings,
            benchmark_discovery,
            *(target.model, target.task),
            methods=entered.methods,
            options=entered.options,
            held_out=target.held_out if settings.evaluate == "held-out" else None,
            imports=_imported(settings.imports, target.model, target.task.name),
            truth=target.truth,
            progress=progress,
        )
    return result, target.model


def _imported(paths: Sequence[Path], model: "Model", task: str) -> "dict[str, EdgeScores]":
    from assay.pipeline.benchmark import read_scores

    found: dict[str, EdgeScores] = {}
    for path in paths:
        name = path.stem if path.suffix else path.name
        if name in found:
            raise InputError(
                f"two imported files are named {name!r}; rename one, because rows are labelled by that name"
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


def _keep_benchmark(settings: BenchmarkSettings, result: "DiscoveryBenchmark") -> str:
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


def _print_benchmark(found: "DiscoveryBenchmark") -> None:
    from assay.analyses.benchmark import tables

    echo(tables.heading(found))
    echo()
    print_block(tables.quality_table(found))
    echo()
    echo(tables.LEGEND)
    echo()
    print_block(tables.order_of(found))
    for text in tables.notes(found):
        echo(f"note: {text}")


def _print_files(written: Mapping[str, Path], identity: str) -> None:
    if written or identity:
        echo()
    for kind, path in written.items():
        echo(f"{kind:<10} {path}")
    if identity:
        echo_result(identity)

"""`assay attack`: how far a circuit departs from its model in the worst case, and what that proves."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.border import (
    check_outputs,
    circuit_of,
    command,
    echo,
    load,
    make_room,
    open_store,
    print_json,
    print_table,
    progress_on_stderr,
    show_plan,
)
from assay.app.cli.commands import app
from assay.app.cli.options import (
    BatchOption,
    CircuitOption,
    ConfigOption,
    CountOption,
    DeviceOption,
    DryRunOption,
    JsonOption,
    MethodOption,
    ModelOption,
    ObjectiveOption,
    QuietOption,
    SeedOption,
    StepsOption,
    StoreOption,
    TargetOption,
    TaskOption,
    TracebackOption,
    option,
)
from assay.core.errors import InputError, OutputError


if TYPE_CHECKING:
    from assay.analyses.worst_case import WorstCase

SHOWN_PAIRS, SHOWN_FIELDS = 3, 10
FILLER_NUMBERS = ("mean", "p99", "max")
EXPLAINABLE = ("kl", "js")
ROWS = ("mean", "std", "min", "p50", "p95", "p99", "p99.9", "p99.99", "max")


IndependentOption = Annotated[
    bool,
    option(
        "--independent",
        "The rows of the file are independent draws that the circuit was not found on: certify.",
    ),
]
EdgesOption = Annotated[
    int | None, option("--edges", "Size of a discovered circuit, instead of --target.", min=1)
]


@app.command()
@command
def attack(
    circuit: CircuitOption = None,
    model: ModelOption = "mini",
    task: TaskOption = "ioi",
    protocol: Annotated[
        str | None,
        option(
            "--protocol",
            "all: every combination of clean and corrupted inputs; matched: prompts and their own "
            "corruptions; iid: independent pairs; file: the task's own pairs.  [default: all, file for a "
            "JSONL file]",
        ),
    ] = None,
    n_clean: Annotated[
        int | None,
        option("--n-clean", "Clean inputs of protocol all.  [default: 300, about a minute on mini]", min=1),
    ] = None,
    n_corrupted: Annotated[
        int | None, option("--n-corrupted", "Corrupted inputs of protocol all.  [default: 300]", min=1)
    ] = None,
    n_pairs: Annotated[
        int | None, option("--n-pairs", "Pairs of protocols matched and iid.  [default: 3000]", min=1)
    ] = None,
    enumerate: Annotated[  # noqa: A002 - the name of the Python argument
        bool, option("--enumerate", "Run every distinct input once, with its probability, not a sample.")
    ] = False,
    reuse_clean: Annotated[
        bool, option("--reuse-clean", "Corrupt the clean prompts of the sample, as the published runs did.")
    ] = False,
    independent: IndependentOption = False,
    divergence: Annotated[str, option("--divergence", "kl, reverse-kl, js, tv or logit-diff-gap.")] = "kl",
    threshold: Annotated[
        list[float] | None, option("--threshold", "Report the share of pairs above; repeat for several.")
    ] = None,
    percentile: Annotated[
        list[float] | None,
        option("--percentile", "Percentile to certify, as a share.  [default: 0.95, 0.99, 0.999]"),
    ] = None,
    delta: Annotated[float, option("--delta", "Confidence of a certificate.")] = 0.95,
    epsilon: Annotated[
        float | None,
        option("--epsilon", "Take the order statistic this far above the percentile, as the paper does."),
    ] = None,
    search: Annotated[
        int | None,
        option("--search", "Also look for worse pairs, with so many evaluations, e.g. 20000.", min=100),
    ] = None,
    explain: Annotated[
        bool, option("--explain", "Also say which missing edges would repair the worst pairs.")
    ] = False,
    words: Annotated[
        list[str] | None,
        option(
            "--words",
            "Also try own words or templates, reported apart: SLOT=a,b,c or SLOT=@FILE (one per line), "
            "e.g. objects=rose,letter; repeat for several.",
        ),
    ] = None,
    method: MethodOption = "eap-ig-inputs",
    objective: ObjectiveOption = None,
    n: CountOption = None,
    steps: StepsOption = 5,
    target: TargetOption = 0.9,
    edges: EdgesOption = None,
    resume: Annotated[
        Path | None, option("--resume", "Directory that keeps finished blocks, to go on after a stop.")
    ] = None,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    store: StoreOption = None,
    out: Annotated[
        Path | None, option("--out", "Result to write: NAME.safetensors and NAME.json, or NAME.json alone.")
    ] = None,
    report: Annotated[Path | None, option("--report", "HTML page to write.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Find the worst case of a circuit over pairs of inputs, and bound its percentiles."""
    from assay import pipeline
    from assay.analyses.worst_case.divergence import get_divergence
    from assay.analyses.worst_case.sampling import PROTOCOLS
    from assay.core.errors import unknown_name
    from assay.tasks import load_task

    pipeline.check_options(method=method, task=task, objective=objective, device=device)
    get_divergence(divergence)
    named = Path(task).suffix != ".jsonl"
    protocol = protocol or ("all" if named else "file")
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    size = pipeline.sizes(
        protocol, n_clean=n_clean, n_corrupted=n_corrupted, n_pairs=n_pairs, enumerate=enumerate
    )
    _check_certificates(percentile, delta, epsilon)
    if reuse_clean and (percentile or epsilon is not None):
        raise InputError("--reuse-clean gives no certificate; leave --percentile and --epsilon out")
    if explain and divergence not in EXPLAINABLE:
        raise InputError(
            f"--explain integrates gradients of {' or '.join(EXPLAINABLE)}; got --divergence {divergence}"
        )
    if search is not None and protocol == "matched":
        raise InputError("--search combines any clean with any corrupted prompt; protocol 'matched' does not")
    own = [_words(given) for given in words or ()]
    if own and Path(task).suffix == ".jsonl":
        raise InputError("--words changes the lists of a task's grammar, and a file has none")
    if out is not None and out.suffix not in (".safetensors", ".json"):
        raise InputError(f"--out is {out}; give NAME.safetensors, or NAME.json for the document alone")
    loaded = load(model, device)
    given = circuit_of(circuit, edges, "--edges", loaded.graph, store)
    # Of a named task the grammar counts; as many rows as are drawn would be taken for the draw.
    inputs = load_task(task, loaded, n=(1 if size.n_clean != 1 else 2) if named else None)
    if protocol == "file":
        size = pipeline.PairCounts(n_clean=inputs.n, n_corrupted=inputs.n)
    if dry_run:
        stages = [pipeline.plan_worst_case(protocol, size)]
        if given is None:
            stages.insert(
                0, pipeline.plan_discovery(loaded, method=method, n=n or pipeline.DEFAULT_N, steps=steps)
            )
        show_plan(loaded, n or pipeline.DEFAULT_N, stages, as_json=as_json)
        return
    check_outputs(out, report, store=store)
    if resume is not None and resume.is_file():
        raise OutputError(f"{resume} is a file; --resume takes a directory")
    for options in own:  # names and fillers are checked before anything is run
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_task(task, loaded, n=1, **options)
    kept = open_store(store)
    with progress_on_stderr(quiet=quiet) as progress:
        if given is None:
            given = pipeline.runs_of(
                loaded,
                task if named else inputs,
                None,
                method=method,
                objective=objective,
                ablation="resample",
                n=n,
                steps=steps,
                target=target,
                top=edges,
                batch_size=batch_size,
                seed=seed,
                store=kept,
                progress=progress,
            ).circuit
        found = pipeline.worst_case_stored(
            given,
            loaded,
            inputs,
            protocol,
            size,
            seed=seed,
            divergence=divergence,
            thresholds=threshold or (),
            reuse_clean=reuse_clean,
            independent=independent,
            enumerate=enumerate,
            directory=resume,
            store=kept,
            progress=progress,
        )
        result = pipeline.with_findings(
            found.result,
            given,
            loaded,
            inputs,
            search=search,
            explained=explain,
            words=own,
            seed=seed,
            divergence=divergence,
            progress=progress,
        )
    document = result.to_dict()
    if percentile or epsilon is not None or delta != 0.95:
        document["certificates"] = _certificates(result, percentile, delta, epsilon)
    _hand_over(result, document, out=out, report=report, as_json=as_json, quiet=quiet)
    if not as_json:
        cached = " (taken from the store)" if found.cached else ""
        echo(f"result   {result.id}{cached}")


def _check_certificates(percentiles: Sequence[float] | None, delta: float, epsilon: float | None) -> None:
    """Refuse what no sample could certify before a sample is run."""
    from assay.analyses.worst_case.bounds import CERTIFIED
    from assay.stats.percentile_bounds import order_of, share

    share(delta, "delta")
    for percentile in percentiles or CERTIFIED:
        share(percentile, "percentile")
        if epsilon is not None:
            order_of(1, percentile, epsilon)


def _words(given: str) -> dict[str, Any]:
    """`SLOT=a,b,c`, `SLOT=@FILE` or `templates=one template` as an option of a grammar."""
    from assay.analyses.worst_case.outside import read_words

    slot, equals, value = given.partition("=")
    if not equals or not slot or not value:
        raise InputError(f"--words is {given!r}; give SLOT=a,b,c or SLOT=@FILE, e.g. objects=rose,letter")
    if value.startswith("@"):
        return {slot: read_words(Path(value[1:]))}
    if "{" in value:  # a template; commas are part of it
        return {slot: [value] if slot.endswith("s") else value}
    return {slot: [word.strip() for word in value.split(",") if word.strip()]}


def _certificates(
    result: "WorstCase", percentiles: Sequence[float] | None, delta: float, epsilon: float | None
) -> list[dict[str, Any]]:
    """The certificates asked for; for crossed inputs the published bound beside the sound one."""
    from assay.analyses.worst_case.bounds import CERTIFIED

    crossed = result.sample.pairs is None and not result.sample.enumerated
    methods = (None, "published") if crossed else (None,)
    return [
        result.certificate(share, delta=delta, epsilon=epsilon, method=method).to_dict()
        for share in percentiles or CERTIFIED
        for method in methods
    ]


def _hand_over(
    result: "WorstCase",
    document: Mapping[str, Any],
    *,
    out: Path | None,
    report: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """The result to files and to stdout."""
    from assay.circuits import write_atomically
    from assay.report import save_report

    if out is not None and out.suffix == ".json":
        write_atomically(make_room(out), json.dumps(document, indent=1, allow_nan=False).encode())
    elif out is not None:
        result.save(make_room(out))
    if report is not None:
        save_report(report, document)
    if as_json:
        print_json(document)
        return
    if not quiet:
        for warning in document["warnings"]:
            echo(f"note: {warning['message']}", err=True)
    print_worst_case(document)
    for name, path in (("written", out), ("report", report)):
        if path is not None:
            echo(f"{name:<9}{path}")


def print_worst_case(document: Mapping[str, Any]) -> None:
    """A worst-case document for reading: percentiles, certificates, worst pairs, worse field values."""
    from assay.report import tail_verdict

    echo(tail_verdict(document))
    echo()
    _print_summary(document)
    if document["certificates"]:
        echo()
        _print_certificates(document)
    if document["worst"]:
        echo()
        _print_pairs(document["worst"][:SHOWN_PAIRS])
    echo()
    _print_fields(document["fields"]["tests"])
    for trend in document["fields"]["trends"]:
        if trend["significant"]:
            way = "rises" if trend["rho"] > 0 else "falls"
            echo(
                f"the divergence {way} with {trend['field']} (rank correlation {trend['rho']:.2f} over "
                f"{trend['n_inputs']} inputs, q {trend['q_value']:.2g})"
            )
    echo()
    if document["search"]:
        _print_search(document["search"], document["summary"]["absolute"]["max"])
    for outside in document["outside"] or ():
        _print_outside(outside)
    if document["explanation"]:
        _print_explanation(document["explanation"])


def _print_search(search: Mapping[str, Any], largest: float) -> None:
    """What a search found, beside the largest divergence of the sample."""
    echo(f"search, {search['n_evaluations']:,} evaluations: {search['note']}")
    if search["max"] <= largest:
        echo(f"nothing worse than in the sample ({_number(largest)}); a larger budget may find more")
    else:
        _print_pairs(search["pairs"][:1])
    echo()


def _print_outside(outside: Mapping[str, Any]) -> None:
    """Own words, the worst first, beside the ordinary prompts."""
    own, ordinary = outside["summary"], outside["ordinary"]
    given = ", ".join(outside["options"])
    echo(
        f"own {given}, {outside['n_pairs']:,} pairs: mean {_number(own['mean'])}, worst "
        f"{_number(own['max'])} (the task's own: mean {_number(ordinary['mean'])}, worst "
        f"{_number(ordinary['max'])}); {outside['note']}"
    )
    fillers = sorted(outside["fillers"], key=lambda row: -(row["mean"] or 0))
    rows = [
        [row["filler"], row["side"], str(row["n_inputs"]), *(_number(row[name]) for name in FILLER_NUMBERS)]
        for row in fillers[:SHOWN_FIELDS]
    ]
    print_table("", ["filler", "side", "inputs", *FILLER_NUMBERS], rows, right="inputs mean p99 max")
    echo()


def _print_explanation(explanation: Mapping[str, Any]) -> None:
    """The missing edges that account for most of the worst pairs."""
    missing = explanation["missing"]
    rows = [
        [f"{each['source']}->{each['target']}", _number(each["score"]), f"{each['share'] or 0:.1%}"]
        for each in missing["top"][:SHOWN_FIELDS]
    ]
    gap = missing["completeness_gap"]
    within = "" if gap is None else f"; all shares add up within {gap:.2%}"
    echo(f"missing edges that account for most of the {explanation['n_pairs']} worst pairs{within}")
    print_table("", ["edge", "nats", "share"], rows, right="nats share")
    echo()


def _print_summary(document: Mapping[str, Any]) -> None:
    summary, anchor = document["summary"], document["anchor"]
    circuit = document["circuit"]
    rows = [
        [
            key,
            _number(summary["absolute"][key]),
            _number(summary["z"].get(key)),
            _number(anchor["absolute"][key]),
        ]
        for key in ROWS
        if summary["absolute"][key] is not None or not key.startswith("p")
    ]
    n_pairs = document.get("n_distinct_pairs", document["n_pairs"])
    title = (
        f"{document['divergence']} in {document['unit']} over {n_pairs:,} distinct pairs "
        f"(protocol {document['protocol']}), circuit of {circuit['n_edges']:,} of "
        f"{circuit['n_graph_edges']:,} edges"
    )
    echo(title)
    print_table("", ["", "circuit", "z", "empty"], rows, right="circuit z empty")
    shares = [
        ("most likely token differs", summary["argmax_differs"]),
        ("worse than the empty circuit", anchor["share_above"]),
        *((f"above {each['threshold']:g}", each["share"]) for each in summary["above"]),
    ]
    echo("   ".join(f"{name}: {share:.3%}" for name, share in shares))


def _print_certificates(document: Mapping[str, Any]) -> None:
    rows = [
        [
            f"{100 * each['percentile']:.10g}",
            "none" if each["bound"] is None else _number(each["bound"]),
            "" if each["confidence"] is None else f"{each['confidence']:.6g}",
            each["method"] + ("" if each["rigorous"] else " (approximate)"),
            f"{each['n']:,}" + (f" of {each['n_needed']:,} needed" if each["n_needed"] else ""),
        ]
        for each in document["certificates"]
    ]
    columns = ["percentile", "bound", "confidence", "method", "independent"]
    print_table("", columns, rows, right="percentile bound confidence")


def _print_pairs(pairs: Sequence[Mapping[str, Any]]) -> None:
    for pair in pairs:
        times = f", {pair['multiplicity']} times" if pair["multiplicity"] > 1 else ""
        echo(f"{pair['rank']}. {_number(pair['divergence'])} (empty circuit {_number(pair['empty'])}{times})")
        echo(f"   clean      {pair['clean']['text']!r}")
        echo(f"   corrupted  {pair['corrupted']['text']!r}")
        answer = pair["answer"]
        for run, tokens in pair["top"].items():
            shown = "  ".join(f"{each['token']!r} {each['logit']:.2f}" for each in tokens)
            rank = "" if answer is None else f"  (answer {answer['text']!r} ranks {answer['rank'][run]})"
            echo(f"   {run:<11}{shown}{rank}")


def _print_fields(tests: Sequence[Mapping[str, Any]]) -> None:
    worse = [test for test in tests if test["significant"]]
    if not worse:
        echo(f"no field value is significantly worse than the rest ({len(tests)} tested)")
        return
    rows = [
        [
            test["field"],
            str(test["value"]),
            _number(test["mean"]),
            f"{test['exceed']:.2%}",
            f"{test['q_value']:.3g}",
            str(test["n_inputs"]),
        ]
        for test in worse[:SHOWN_FIELDS]
    ]
    title = (
        f"significantly worse values ({len(worse)} of {len(tests)} tested, 5 % false discoveries per field)"
    )
    echo(title)
    columns = ["field", "value", "mean", "beyond-p99", "q", "inputs"]
    print_table("", columns, rows, right="mean beyond-p99 q inputs")


def _number(value: float | None) -> str:
    """Four significant digits; nothing where undefined."""
    return "" if value is None else f"{value:.4g}"

"""What `assay attack` prints, for results from the store too."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.app.cli.border import echo, print_table


SHOWN_PAIRS, SHOWN_FIELDS = 3, 10
FILLER_NUMBERS = ("mean", "p99", "max")
ROWS = ("mean", "std", "min", "p50", "p95", "p99", "p99.9", "p99.99", "max")


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

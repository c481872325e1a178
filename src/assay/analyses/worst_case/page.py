"""A worst case as a page and a picture: how far, how often, what is guaranteed, which pairs are bad."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from assay.analyses.worst_case.divergence import DIVERGENCES
from assay.analyses.worst_case.page_parts import (
    Percentile,
    Words,
    field_blocks,
    missing_edges,
    percentiles,
    searched_pairs,
    significant,
    sound_certificate,
    worst_pairs,
)
from assay.analyses.worst_case.result import NOT_CERTIFIED
from assay.page.blocks import (
    PAGES,
    Block,
    Cell,
    Figure,
    Note,
    Page,
    PageForm,
    Row,
    Section,
    Table,
    columns,
    folded_record,
)
from assay.page.draw import MUTED, OPPOSES, RULE, SUPPORTS, axes_of
from assay.page.text import (
    NARROW,
    Text,
    cut_text,
    identity,
    number,
    percent,
    quiet,
    subject_of,
)


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.analyses.worst_case.result import WorstCase

Document = Mapping[str, Any]
PROMPT_LIMIT = 300  # characters of a prompt in a sentence
CARRIED = {
    "resample": "their values from the corrupted {of}",
    "resample-donor": "their values from the other {of}",
    "zero": "zeros",
    "mean": "the mean of their source over {of}s and positions",
    "mean-positional": "the mean of their source over {of}s, position by position",
}
METHODS = {
    "order-statistic": "order statistic of independent {what}",
    "ustat": "all {what}, as a U-statistic",
    "published": "as published",
}
FAR = 100.0  # a median that far below the largest value calls for a logarithmic axis
MARKED = ("p50", "p95", "p99", "p99.9", "p99.99", "max")
CIRCUIT: dict[str, Any] = {"marker": "o", "color": SUPPORTS, "markersize": 5}
BOUND: dict[str, Any] = {"marker": "|", "color": OPPOSES, "markersize": 10, "markeredgewidth": 2}
EMPTY: dict[str, Any] = {"marker": "s", "color": MUTED, "markersize": 4, "markerfacecolor": "none"}
PROTOCOLS = {
    "inputs": "{clean} distinct {of}s were run, each by itself: the ablation reads no second {of}.",
    "all": "Each of {clean} distinct clean {of}s was run with each of {corrupted} distinct {second} "
    "ones{drawn}: the pairs share {of}s.",
    "matched": "{pairs} distinct pairs were run, each a clean {of} with a corrupted version of itself.",
    "iid": "{pairs} distinct pairs were run, with clean and {second} {of}s drawn independently for each.",
    "file": "The {pairs} distinct pairs of the task were run unchanged.",
}


def worst_case_page(document: Document) -> Page:
    """Everything that is shown of a worst case.

    Args:
        document: What `WorstCase.to_dict` gave.
    """
    words, circuit = Words(document), document["circuit"]
    names = {
        "of": words.of,
        "second": words.second,
        "drawn": "" if document.get("own_rows") else ", drawn independently",
        **{what: words.count(what) for what in ("clean", "corrupted", "pairs")},
    }
    search, explanation, key = document.get("search"), document.get("explanation"), document["divergence"]
    extras = [searched_pairs(search, words)] if search else []
    extras += [missing_edges(explanation, words)] if explanation else []
    ablation = document.get("ablation") or "resample"
    carried = CARRIED[ablation].format(**names) if ablation in CARRIED else f"what {ablation} ablation gives"
    protocol = document["protocol"]
    drawn = PROTOCOLS[protocol].format(**names) if protocol in PROTOCOLS else f"Pairs by {protocol}."
    lede = (
        f"The circuit keeps {number(circuit['n_edges'])} of {number(circuit['n_graph_edges'])} edges. "
        f"{drawn} Edges outside the circuit carried {carried}. The "
        f"divergence is {DIVERGENCES[key].summary if key in DIVERGENCES else key}; 0 means no difference."
    )
    caveats = [str(each["message"]) for each in document.get("warnings") or ()]
    ratio = (document.get("anchor") or {}).get("ratio_of_means")
    if ratio is not None and ratio >= 0.9:
        caveats.append(
            "On average the circuit is hardly closer to the model than the empty circuit (ratio of means "
            f"{number(ratio)}): its numbers mainly show how sensitive the model is to the ablation."
        )
    fields = field_blocks(document.get("fields") or {}, words)
    return Page(
        **heading(document),
        caveats=caveats,
        lede=lede,
        sections=[
            Section(title="How far, and how often", blocks=[_tail(document, words)]),
            Section(title="What is guaranteed", blocks=[_certificates(document, words)]),
            Section(title=f"Which {words.of}s are hard", blocks=fields),
            Section(title=f"The worst {words.noun}", blocks=worst_pairs(document, words)),
            *extras,
        ],
        facts=_facts(document, words),
        records=[folded_record("Provenance", document.get("provenance") or {})],
        style="worst",
    )


def heading(document: Document) -> dict[str, Any]:
    """Kind, title, verdict and remark: how far at worst, against what, how sure, on which inputs."""
    words, absolute = Words(document), document["summary"]["absolute"]
    worst, mean = absolute["max"], absolute["mean"]
    times = f" ({significant(worst / mean)} times the mean of {significant(mean)})" if mean > 0 else ""
    pairs = words.count("pairs", f" distinct {words.noun}")
    verdict = f"Worst divergence over {pairs}: {significant(worst)} {words.unit}{times}."
    anchor = (document.get("anchor") or {}).get("absolute")
    if anchor:
        verdict += f" Empty circuit: mean {significant(anchor['mean'])}, worst {significant(anchor['max'])}."
    remark = ""
    if document["worst"]:
        pair = document["worst"][0]
        clean, corrupted = (
            f"“{cut_text(str(pair[side]['text']), PROMPT_LIMIT)}”" for side in ("clean", "corrupted")
        )
        remark = f"Worst pair: {clean} with the {words.second} {words.of} {corrupted}."
        if words.single:
            remark = f"Worst {words.of}: {clean}."
    return {
        "kind": "worst case",
        "title": "A circuit of {} at its worst on {}".format(*subject_of(document)),
        "verdict": f"{verdict} {_guarantee(document, words)}",
        "remark": remark,
    }


def _guarantee(document: Document, words: Words) -> str:
    """The strongest sound certificate, and the lowest percentile for which there is none."""
    shares = sorted({each["percentile"] for each in document["certificates"] if each["rigorous"]})
    certificates = [each for share in shares if (each := sound_certificate(document, share))]
    if not certificates:
        return f"No bound is certified: {_no_certificate(document)}."
    sentences = []
    if bounded := [each for each in certificates if each["bound"] is not None]:
        best = bounded[-1]
        # Three digits, never rounded up to certainty.
        sure = f"{best['confidence']:.3g}" if best["confidence"] < 0.9995 else "above 0.999"
        sentences.append(
            f"With confidence {sure}, at least {100 * best['percentile']:.10g}{NARROW}% of all {words.noun} "
            f"of this kind stay at or below {significant(best['bound'])} {words.unit}."
        )
    if missing := [each for each in certificates if each["bound"] is None]:
        least = missing[0]
        sentences.append(
            f"Percentile {100 * least['percentile']:g} cannot be bounded: it needs "
            f"{number(least['n_needed'])} independent {words.counted}; this sample has {number(least['n'])}."
        )
    return " ".join(sentences)


def _no_certificate(document: Document) -> str:
    """Why a document holds no certificate."""
    warnings = {each["name"]: str(each["message"]) for each in document.get("warnings") or ()}
    return warnings.get("not_certified", "no percentile was requested").removeprefix(NOT_CERTIFIED)


def _tail(document: Document, words: Words) -> Figure:
    """The distribution beside its percentiles."""
    counts, summary, what = document["histogram"]["counts"], document["summary"], words.noun
    share = counts[0] / max(sum(counts), 1)
    first = f"; {percent(share)} of the circuit’s {what} are in the first bin" if share > 0.5 else ""
    rows: list[list[Cell | Text]] = []
    for each in percentiles(document):
        bound: Text = "" if each.n_needed is None else quiet("none")
        if each.bound is not None:
            bound = f"\N{LESS-THAN OR EQUAL TO}\N{NO-BREAK SPACE}{significant(each.bound)}"
        z = Cell(text="" if each.z is None else number(each.z, 1), style="quiet")
        empty = "" if each.anchor is None else significant(each.anchor)
        rows.append([each.name, significant(each.value), z, bound, empty])
    shares = [(f"first {words.answer} differs", summary.get("argmax_differs"))]
    shares += [
        (f"above {significant(float(each['threshold']))}", each["share"])
        for each in summary.get("above") or ()
    ]
    rows += [[name, percent(value), "", "", ""] for name, value in shares if value is not None]
    compared = ""
    if anchor := document.get("anchor"):
        compared = (
            f" On {percent(anchor['share_above'])} of the {what} the circuit is further from the model than "
            f"the empty circuit is. Ratio of means {significant(anchor['ratio_of_means'])}, rank correlation "
            f"of the two {number(anchor['spearman'])}."
        )
    heads = columns(words.unit) + columns("circuit", "z", "certified", "empty circuit", numeric=True)
    return Figure(
        draw=partial(plot_tail, document),
        label="Histogram of the divergence of circuit and empty circuit, with percentiles; the numbers are "
        "in the table.",
        note=f"Blue: the circuit; grey: the empty circuit on the same {what}; the model would be at 0. "
        f"{what.capitalize()} per bin are on a logarithmic axis{first}.",
        blocks=[Table(columns=heads, rows=rows, style="percentiles")],
        caption="Percentiles are those of the sample; a certified bound is one on the percentile of the "
        f"distribution it was drawn from.{compared}",
        beside=True,
        style="tail",
        name="tail",
    )


def _certificates(document: Document, words: Words) -> Block:
    """The bounds that were asked for, sound ones and others."""
    if not document["certificates"]:
        return Note(text=f"Nothing: {_no_certificate(document)}.")
    what, of, shared = words.noun, words.of, document["protocol"] == "all"
    sharing = (
        f"Pairs share {of}s, so the smaller number of {of}s on a side is what counts. " if shared else ""
    )
    caption = (
        f"Upper bounds on percentiles over all {what} of this kind, not only these {what}. {sharing}Each row "
        "holds by itself with its confidence; several rows together hold with less. They cover only "
        f"{of}s drawn in the same way. "
    )
    exceedance = document.get("maximum_exceedance")
    if exceedance is not None:
        caption += (
            f"With confidence 0.95, a new {f'pair of new {of}s' if shared else what.removesuffix('s')} "
            f"exceeds the worst one here with probability at most {percent(exceedance)}."
        )
    rows = []
    for each in document["certificates"]:
        bound = confidence = "\N{EN DASH}"
        n, needed = number(each["n"]), number(each["n_needed"])
        remark = "" if each["rigorous"] else "no theorem: usually safe, but not for every distribution"
        if each["bound"] is None:
            remark = f"none: needs {needed} independent {words.counted}; there are {n}"
        else:
            bound, confidence = significant(each["bound"]), percent(each["confidence"])
            if each.get("reason") == "below_delta":
                asked = percent(each["delta"])
                remark = f"less than the requested {asked}; {needed} {words.counted} would be enough"
        rank = "" if each["order"] is None else f"{number(each['order'])} of {number(each['n_values'])}"
        method = METHODS.get(each["method"], each["method"]).replace("{what}", what)
        name = (method, quiet(" (theorem)") if each["rigorous"] else "")
        cells = [f"{100 * each['percentile']:g}", name, bound, confidence, rank, n, remark]
        rows.append(Row(cells=cells, style="sound" if each["rigorous"] else "unsound"))
    numbers = (
        f"at most, {words.unit}",
        "with confidence",
        "rank of the bound",
        f"independent {words.counted}",
    )
    return Table(
        columns=[*columns("percentile", "certificate"), *columns(*numbers, numeric=True), *columns("remark")],
        rows=rows,
        caption=caption,
        style="certificates",
    )


def _facts(document: Document, words: Words) -> list[tuple[str, Text]]:
    circuit = document["circuit"]
    edges = f"{number(circuit['n_edges'])} of {number(circuit['n_graph_edges'])} edges"
    drawn = f"{words.noun} drawn with seed {document['seed']}"
    how = f"{document['ablation']} ablation, {document['divergence']}"
    protocol: Text = (f"{document['protocol']} ", quiet(how))
    return [*identity(document, edges, drawn), ("protocol", protocol)]


# ------------------------------------------------------------------------------------------ the picture


def plot_worst_case(worst: "WorstCase", ax: "Axes | None" = None) -> "Axes":
    """Draw the divergences of all pairs and their percentiles; on given axes the histogram alone."""
    document = worst.distribution()
    return plot_tail(document) if ax is None else plot_histogram(document, ax)


def plot_tail(document: Document) -> "Axes":
    """Draw the histogram above, its percentiles below; returns the axes of the histogram."""
    from matplotlib.figure import Figure

    height = 0.7 + 0.27 * len(marks(document))
    figure = Figure(figsize=(7.6, height + 2.7), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2.7, height])
    plot_histogram(document, above)
    plot_percentiles(document, below)
    for ax in (above, below):
        ax.set_facecolor("none")
    return cast("Axes", above)


def marks(document: Document) -> list[Percentile]:
    """The percentiles that are drawn, ascending."""
    return [each for each in percentiles(document) if each.key in MARKED and each.value is not None]


def plot_histogram(document: Document, ax: "Axes") -> "Axes":
    """Draw the divergences of circuit and empty circuit, pairs on a logarithmic axis: the tail is news."""
    from matplotlib.ticker import NullFormatter

    ax, words, histogram = axes_of(ax, 7.6, 3.0), Words(document), document["histogram"]
    edges = np.array(histogram["edges"], dtype=float)
    if edges[-1] == edges[0]:  # all divergences are 0: one bin of no width
        edges = np.array([0.0, 1.0])
    ax.set_yscale("log")
    for name, colour, alpha, width in (("anchor_counts", MUTED, 0.22, 0.9), ("counts", SUPPORTS, 0.28, 1.4)):
        shown = np.array(histogram[name], dtype=float)
        shown[shown == 0] = np.nan
        ax.stairs(shown, edges, baseline=0.5, fill=True, color=colour, alpha=alpha)
        ax.stairs(shown, edges, baseline=0.5, color=colour, linewidth=width)
    ax.set_ylim(0.5, 2.5 * max(histogram["counts"] + histogram["anchor_counts"]))
    ax.set_xlim(0, edges[-1] * 1.02)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(f"divergence from the model, {words.unit}")
    ax.set_ylabel(f"{words.noun} per bin")
    return ax


def plot_percentiles(document: Document, ax: "Axes") -> "Axes":
    """Draw a row per percentile: the sample's, a line up to its certified bound, the empty circuit's.

    The axis is logarithmic where the circuit's median and the empty circuit's worst lie far apart.
    """
    from matplotlib.lines import Line2D

    rows, words, ax = marks(document), Words(document), axes_of(ax, 7.6, 3.0)
    shown = [value for row in rows for value in (row.value, row.anchor, row.bound) if value and value > 0]
    start, end = 0.0, max(shown, default=1.0) * 1.02
    if shown and end > FAR * min(shown):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        start, end = min(shown) / 1.3, end * 1.1
    ax.set_xlim(start, end)
    for place, row in enumerate(rows):
        assert row.value is not None
        ax.axhline(place, color=RULE, linewidth=0.6, zorder=0)
        if row.anchor is not None:
            ax.plot(row.anchor, place, **EMPTY, clip_on=False)
        if row.bound is not None:
            ax.plot([row.value, row.bound], [place] * 2, color=OPPOSES, linewidth=2, solid_capstyle="butt")
            ax.plot(row.bound, place, **BOUND, clip_on=False)
        ax.plot(row.value, place, **CIRCUIT, clip_on=False, zorder=4)
    names = [row.name if row.n_needed is None else f"{row.name}, no bound" for row in rows]
    ax.set_yticks(range(len(rows)), names)
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.tick_params(axis="y", left=False)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"divergence, {words.unit}")
    styles = {"circuit, this sample": CIRCUIT, "certified: at most here": BOUND, "empty circuit": EMPTY}
    ax.legend(
        handles=[Line2D([], [], linestyle="", label=name, **style) for name, style in styles.items()],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        labelcolor=MUTED,
        handletextpad=0.2,
        borderaxespad=0.1,
    )
    return ax


PAGES.add(
    "worst_case",
    PageForm(noun="worst case", schema="assay-worst-case/1", again="`assay attack`", make=worst_case_page),
)

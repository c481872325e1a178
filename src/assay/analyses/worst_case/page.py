"""A worst case as a page and a picture: how far, how often, what is guaranteed, which pairs are bad."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.worst_case.divergence import DIVERGENCES
from assay.analyses.worst_case.page_parts import (
    STATISTICS,
    Words,
    certified,
    field_blocks,
    missing_edges,
    searched_pairs,
    significant,
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
from assay.page.draw import LABEL_SIZE, MUTED, OPPOSES, SUPPORTS, axes_of
from assay.page.text import NARROW, Text, cut_text, identity, kept, number, percent, quiet, subject_of


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
    meaning = DIVERGENCES[key].summary if key in DIVERGENCES else key
    lede = (
        f"The circuit keeps {kept(circuit)}. {drawn} {str(circuit.get('level', 'edge')).title()}s outside "
        f"the circuit carried {carried}. The divergence is {meaning}; 0 means no difference."
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
    certificates = sorted(certified(document).values(), key=lambda each: each["percentile"])
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
    summary, what = document["summary"], words.noun
    anchor, z, sound = document.get("anchor") or {}, summary.get("z") or {}, certified(document)
    rows: list[list[Cell | Text]] = []
    for key, value in summary["absolute"].items():
        if key == "count" or (value is None and key.startswith("p")):
            continue  # a percentile that so few pairs do not resolve
        bound: Text = ""
        if key in sound:
            limit = sound[key]["bound"]
            below = f"\N{LESS-THAN OR EQUAL TO}\N{NO-BREAK SPACE}{significant(limit)}"
            bound = quiet("none") if limit is None else below
        score = Cell(text="" if z.get(key) is None else number(z[key], 1), style="quiet")
        empty = significant(anchor["absolute"][key]) if anchor else ""
        name = STATISTICS.get(key, f"percentile {key[1:]}")
        rows.append([name, significant(value), score, bound, empty])
    shares = [(f"first {words.answer} differs", summary.get("argmax_differs"))]
    shares += [
        (f"above {significant(float(each['threshold']))}", each["share"])
        for each in summary.get("above") or ()
    ]
    rows += [[name, percent(value), "", "", ""] for name, value in shares if value is not None]
    compared = ""
    if anchor:
        compared = (
            f" On {percent(anchor['share_above'])} of the {what} the circuit is further from the model than "
            f"the empty circuit is. Ratio of means {significant(anchor['ratio_of_means'])}, rank correlation "
            f"of the two {number(anchor['spearman'])}."
        )
    heads = columns(words.unit) + columns("circuit", "z", "certified", "empty circuit", numeric=True)
    return Figure(
        draw=partial(_histogram, document),
        label="Histogram of the divergence of circuit and empty circuit; the numbers are in the table.",
        note=f"Blue: the circuit; grey: the empty circuit on the same {what}; the model would be at 0. Both "
        "axes are logarithmic, and the first bin holds all that is less. Vertical lines: certified bounds.",
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
    drawn = f"{words.noun} drawn with seed {document['seed']}"
    how = f"{document['ablation']} ablation, {document['divergence']}"
    protocol: Text = (f"{document['protocol']} ", quiet(how))
    return [*identity(document, kept(circuit), drawn), ("protocol", protocol)]


# ------------------------------------------------------------------------------------------ the picture


def plot_worst_case(worst: "WorstCase", ax: "Axes | None" = None) -> "Axes":
    """Draw the divergences of circuit and empty circuit, and the certified bounds, as the page does."""
    return _histogram(worst.distribution(), ax)


def _histogram(document: Document, ax: "Axes | None" = None) -> "Axes":
    """Both axes are logarithmic, since the tail is what matters; a line at each certified bound."""
    from matplotlib.ticker import NullFormatter

    ax, words, histogram = axes_of(ax, 7.6, 3.0), Words(document), document["logarithmic_histogram"]
    edges = np.array(histogram["edges"], dtype=float)
    if edges[-1] == edges[0]:  # all divergences are 0: one bin of no width
        edges = np.array([0.5, 1.0])
    ax.set_xscale("log")
    ax.set_yscale("log")
    for name, label, colour, alpha in (
        ("anchor_counts", "empty circuit", MUTED, 0.22),
        ("counts", "circuit", SUPPORTS, 0.28),
    ):
        shown = np.array(histogram[name], dtype=float)
        shown[shown == 0] = np.nan
        ax.stairs(shown, edges, baseline=0.5, fill=True, color=colour, alpha=alpha)
        ax.stairs(shown, edges, baseline=0.5, color=colour, linewidth=1.2, label=label)
    ax.set_ylim(0.5, 12 * max(histogram["counts"] + histogram["anchor_counts"]))
    ax.set_xlim(edges[0], edges[-1] * 1.1)
    style: dict[str, Any] = {"rotation": 90, "ha": "left", "va": "top", "color": OPPOSES}
    style |= {"fontsize": LABEL_SIZE, "transform": ax.get_xaxis_transform()}
    for key, each in certified(document).items():
        if each["bound"] is not None:
            ax.axvline(each["bound"], color=OPPOSES, linewidth=1.2)
            ax.text(each["bound"], 0.98, f" {key} certified", **style)
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, labelcolor=MUTED)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(f"divergence from the model, {words.unit}")
    ax.set_ylabel(f"{words.noun} per bin")
    return ax


PAGES.add(
    "worst_case",
    PageForm(noun="worst case", schema="assay-worst-case/1", again="`assay attack`", make=worst_case_page),
)

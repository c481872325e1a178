"""An evaluation over domains as a page: what would have told how well the model does there."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from assay.analyses.generalization import monitor_plots as plots
from assay.core.record import plain
from assay.page.blocks import Block, Details, Figure, Note, Page, Section, Table, columns
from assay.page.form import PAGES, PageForm
from assay.page.matrix import plot_matrix
from assay.page.text import NARROW, Text, code, interval, model_text, number, plural, quiet, rounded


Document = Mapping[str, Any]


def evaluation_page(document: Document) -> Page:
    """Everything that is shown of an evaluation.

    Args:
        document: What `DomainEvaluation.to_dict` gave.
    """
    sections = [
        Section(title="Shift and performance", blocks=_domains(document)),
        Section(title="What goes with performance", blocks=_correlations(document)),
        Section(title="What an alarm would have been worth", blocks=_alarms(document)),
        Section(title="Where in the network", blocks=_layers(document)),
    ]
    record = plain({"reference": document["reference"], "settings": document["settings"]})
    return Page(
        kind="evaluation over domains",
        title=f"{document['model'].get('id', 'A model')} on {plural(len(document['test']), 'test domain')}",
        verdict=verdict(document),
        caveats=list(_caveats(document)),
        lede="Every domain has labels, so performance is known there. The page shows which number that needs "
        "no labels goes with it. The shift is the distance of the circuit on a domain from the circuit on "
        "images in distribution; sampling alone makes it positive.",
        sections=[section for section in sections if section.blocks],
        facts=list(_facts(document)),
        records=[
            Details(
                summary="The record of the reference circuit, and the settings",
                blocks=[Note(text=json.dumps(record, indent=2, ensure_ascii=False), style="code")],
            )
        ],
    )


def verdict(document: Document) -> str:
    """The range of performance, and what goes with it best."""
    rates = [each["performance"] for each in document["test"]]
    own, measure = document["own"], plots.measure_of(document)
    of_own = f"; in distribution it is {rounded(own['performance'])}" if own else ""
    text = f"Over {plural(len(rates), 'test domain')}, {measure} is {rounded(min(rates))} to "
    text += f"{rounded(max(rates))}{of_own}."
    found, ordered = document["correlations"], plots.by_agreement(document)
    if not ordered:
        return f"{text} Correlations with {measure} are undefined for fewer than three domains."
    shifts = document["test"][0]["shifts"]
    best = ordered[0]
    if plots.agreement(best, document) <= 0:
        return f"{text} No metric goes with {measure} in the direction that it states."
    ends = interval(found[best]["low"], found[best]["high"], 2) if found[best]["low"] is not None else ""
    text += f" {plots.metric_name(best, shifts)[:1].upper()}{plots.metric_name(best, shifts)[1:]} goes with "
    text += f"{measure} best (rank correlation {number(found[best]['srcc'], 2)} {ends}".rstrip() + ")"
    leading = document["distance"]
    if leading in ordered and leading != best:
        text += f"; the {leading} shift has {number(found[leading]['srcc'], 2)}"
    return f"{text}."


def _caveats(document: Document) -> Iterator[str]:
    groups = {each["group"] for each in document["test"]}
    if len(groups) < len(document["test"]):
        yield (
            f"The test domains are parts of {plural(len(groups), 'domain')}: parts of one domain differ by "
            "sampling alone and are not independent."
        )
    if len(groups) < 5:
        yield f"{plural(len(groups), 'domain')} are too few for an interval of a correlation."
    sizes = {each["n"] for each in document["test"]}
    if len(sizes) > 1:
        yield (
            f"Circuits rest on {min(sizes)} to {max(sizes)} images: a smaller domain has a larger shift by "
            "sampling alone."
        )
    if left_out := document["left_out"]:
        names = ", ".join(f"{each['domain']} ({each['n']})" for each in left_out[:6])
        more = f" and {len(left_out) - 6} more" if len(left_out) > 6 else ""
        were = "was" if len(left_out) == 1 else "were"
        yield f"{plural(len(left_out), 'domain')} had too few images and {were} left out: {names}{more}."
    for key, reason in _absent(document).items():
        yield f"{plots.NAMES.get(key, key)} is undefined on some domain: {reason}"


def _absent(document: Document) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in (*document["known"], *document["test"]):
        for key, reason in each.get("absent", {}).items():
            found.setdefault(key, reason)
    return found


# ----------------------------------------------------------------------------------------- the sections


def _domains(document: Document) -> list[Block]:
    key = document["distance"]
    known = plural(len(document["known"]), "calibration domain")
    figure = Figure(
        draw=partial(plots.plot_evaluation, document),
        label="Shift against performance of the domains; the numbers are in the table.",
        caption=f"{key} shift against {plots.measure_of(document)}: {known} (corrupted copies of images in "
        f"distribution) and {plural(len(document['test']), 'test domain')}.",
        name="domains",
    )
    return [figure, _table(document)]


def _table(document: Document) -> Table:
    key = document["distance"]
    first = document["test"][0]
    shown = [name for name in document["metrics"] if name in first["baselines"]]
    uses = {
        "in distribution": [document["own"]] if document["own"] else [],
        "test": document["test"],
        "calibration": document["known"],
    }
    rows = [
        [
            each["domain"] or use,
            use,
            str(each["n_labelled"]),
            str(each["n"]),
            number(each["accuracy"]),
            number(each["macro_f1"]),
            number(each["shifts"][key], 3),
            *(number(each["baselines"][name], 3) for name in shown),
        ]
        for use, domains in uses.items()
        for each in domains
    ]
    return Table(
        columns=[
            *columns("domain", "used for", sort=True),
            *columns("labelled", "of circuit", "accuracy", "macro-F1", numeric=True, sort=True),
            *columns(f"shift ({key})", *shown, numeric=True, sort=True),
        ],
        rows=rows,
        caption="Every domain: images that performance rests on, and images of the circuit, which all other "
        "numbers rest on. The file of the evaluation has all six distances.",
        tall=True,
    )


def _correlations(document: Document) -> list[Block]:
    found, shifts = document["correlations"], document["test"][0]["shifts"]
    drawn = plots.by_agreement(document)
    if not drawn:
        return []
    has_known = any(found[key]["known_srcc"] is not None for key in drawn)
    more = "; tick: the same over the calibration domains" if has_known else ""
    line = f"; line: 95{NARROW}% over resampled domains" if found[drawn[0]]["low"] is not None else ""
    figure = Figure(
        draw=partial(plots.plot_correlations, document),
        label="Rank correlation of every metric with performance; the numbers are in the table.",
        caption=f"Spearman's rank correlation with {plots.measure_of(document)} over the test domains{line}"
        f"{more}. Shifts are expected to be negative, baselines positive.",
        name="correlations",
    )
    table = Table(
        columns=columns("metric")
        + columns("R2", "SRCC", f"95{NARROW}% interval", "KRCC", "SRCC, calibration", numeric=True),
        rows=[
            [
                plots.metric_name(key, shifts),
                number(found[key]["r2"], 2),
                number(found[key]["srcc"], 2),
                "" if found[key]["low"] is None else interval(found[key]["low"], found[key]["high"], 2),
                number(found[key]["krcc"], 2),
                "" if found[key]["known_srcc"] is None else number(found[key]["known_srcc"], 2),
            ]
            for key in drawn
        ],
        caption="Signed correlations with performance: R2 (squared Pearson), Spearman, Kendall's tau-b.",
    )
    return [figure, table]


def _alarms(document: Document) -> list[Block]:
    curves = document["curves"]
    if curves is None:
        return []
    drawn, shifts = plots.drawn_curves(document), document["test"][0]["shifts"]
    deltas = next(iter(drawn.values()))["deltas"]
    step = max(1, len(deltas) // 10)
    figure = Figure(
        draw=partial(plots.plot_alarm_curves, document),
        label="F1 of the alarm against the performance threshold; the numbers are in the table.",
        caption="F1 of the alarm on the test domains, calibrated on random subsets of "
        f"{min(document['settings']['subset_size'], len(document['known']))} calibration domains: means, and "
        f"95{NARROW}% of the subsets for the first.",
        name="alarms",
    )
    summaries = {
        plots.metric_name(key, shifts): curve["summary"]
        for key, curve in curves.items()
        if curve["summary"] is not None
    }
    summary = Table(
        columns=columns("alarm on") + columns("mean F1", numeric=True),
        rows=[
            [name, number(value, 3)] for name, value in sorted(summaries.items(), key=lambda each: -each[1])
        ],
        caption="Mean F1 over the thresholds at which an alarm is due on some test domains, not on all.",
    )
    curve_rows = Table(
        columns=columns("performance threshold", *drawn, numeric=True),
        rows=[
            [rounded(deltas[place]), *(_number(curve["mean"][place]) for curve in drawn.values())]
            for place in range(0, len(deltas), step)
        ],
        named=False,
    )
    tables: list[Block] = [summary] if summaries else []
    return [figure, *tables, Details(summary="The curve as a table", blocks=[curve_rows])]


def _number(value: float | None) -> str:
    return "" if value is None else number(value, 2)


def _layers(document: Document) -> list[Block]:
    blocks: list[Block] = []
    if document["motif"]["values"] is not None:
        blocks.append(
            Figure(
                draw=partial(plot_matrix, plots.motif_matrix(document)),
                label="Motif over the test domains.",
                caption=f"Motif over {document['motif']['n']} test domains: correlation of the dependency "
                "between two layers with the direction that goes with performance. With more dependencies "
                "than domains it is a picture, not a predictor.",
                name="motif",
            )
        )
    maps: list[Block] = [
        Figure(
            draw=partial(plot_matrix, plots.shift_matrix(document, domain)),
            label=f"Rank-shift map of {domain['domain']}.",
            caption=f"Rank-shift map of {domain['domain']}, the {name} of the test domains "
            f"({plots.measure_of(document)} {rounded(domain['performance'])}): mean change of the ranks of "
            "the edges between two layers, as a share of all edges.",
            name=f"map-{name}",
        )
        for name, domain in plots.extremes(document).items()
    ]
    return [*blocks, Section(blocks=maps, style="pair")]


def _facts(document: Document) -> Iterator[tuple[str, Text]]:
    reference, settings = document["reference"], document["settings"]
    task = reference.get("task") or {}
    yield "model", model_text(document["model"])
    source = f"{task.get('name', '')} {task.get('domain', '')} "
    yield "reference", (source, quiet(f"{task.get('n', '')} images"))
    names = ("objective", "ablation", "steps", "quadrature")
    yield (
        "estimator",
        (
            f"{reference.get('method', '')} ",
            quiet(", ".join(f"{name} {reference[name]}" for name in names if reference.get(name))),
        ),
    )
    compared = [f"{name} {value}" for name, value in settings["view"].items() if value not in (None, False)]
    yield "compared", quiet(", ".join(compared))
    biased = f"ratio {settings['ratio']}, sets {settings['sets']}"
    yield "depth bias", quiet(biased + (", with the input" if settings["include_input"] else ""))
    yield "evaluation", code(document["id"])


PAGES.add(
    "domain-evaluation",
    PageForm(
        noun="evaluation over domains",
        schema="assay-domain-evaluation/1",
        again="`assay monitor evaluate`",
        make=evaluation_page,
    ),
)

"""An evaluation over domains as a page: what would have told how well the model does there."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from assay.analyses.generalization import monitor_plots as plots
from assay.analyses.generalization.domains import SUBSET
from assay.page.blocks import Block, Figure, Page, Section, Table, columns, folded_record
from assay.page.form import PAGES, PageForm
from assay.page.text import code, interval, listed, model_text, number, plural, rounded


Document = Mapping[str, Any]
LEFT_OUT = 6  # domains that a sentence names


def evaluation_page(document: Document) -> Page:
    """Everything that is shown of an evaluation.

    Args:
        document: What `DomainEvaluation.to_dict` gave.
    """
    reference, settings = document["reference"], document["settings"]
    task = reference.get("task") or {}
    sections = [
        Section(title="Shift and performance", blocks=_domains(document)),
        Section(title="What goes with performance", blocks=_correlations(document)),
        Section(title="What an alarm would have been worth", blocks=_alarms(document)),
    ]
    return Page(
        kind="evaluation over domains",
        title=f"{document['model'].get('id', 'A model')} on {plural(len(document['test']), 'test domain')}",
        verdict=verdict(document),
        caveats=list(_caveats(document)),
        lede="Every domain has labels, so performance is known there. The page shows which number that needs "
        "no labels goes with it. The shift is the distance of the circuit on a domain from the circuit on "
        "images in distribution; sampling alone makes it positive.",
        sections=[section for section in sections if section.blocks],
        facts=[
            ("model", model_text(document["model"])),
            ("reference", f"{task.get('n')} images of {task.get('name')} {task.get('domain', '')}".rstrip()),
            ("evaluation", code(document["id"])),
        ],
        records=[
            folded_record(
                "The record of the reference circuit, and the settings",
                {"reference": reference, "settings": settings},
            )
        ],
    )


def verdict(document: Document) -> str:
    """The range of performance, and what goes with it best."""
    rates = [each["performance"] for each in document["test"]]
    own, measure = document["own"], document["settings"]["measure"]
    of_own = f"; in distribution it is {rounded(own['performance'])}" if own else ""
    text = (
        f"Over {plural(len(rates), 'test domain')}, {measure} is {rounded(min(rates))} to "
        f"{rounded(max(rates))}{of_own}."
    )
    found, ordered = document["correlations"], plots.by_agreement(document)
    if not ordered:
        return f"{text} Correlations with {measure} are undefined for fewer than three domains."
    shifts, leading = document["test"][0]["shifts"], document["distance"]
    best = plots.agreement(ordered[0], document)
    if best <= 0:
        return f"{text} No metric goes with {measure} in the direction that it states."
    equal = [key for key in ordered if plots.agreement(key, document) > best - 1e-9]
    names = listed([plots.metric_name(key, shifts) for key in equal])
    text += f" {names[:1].upper()}{names[1:]} "
    if len(equal) > 1:
        text += f"go with {measure} best, equally well (rank correlation of size {number(best, 2)})"
    else:
        row = found[ordered[0]]
        ends = interval(row["low"], row["high"], 2)
        text += f"goes with {measure} best (rank correlation {number(row['srcc'], 2)} {ends}".rstrip() + ")"
    if leading in ordered and leading not in equal:
        text += f"; the {leading} shift has {number(found[leading]['srcc'], 2)}"
    return f"{text}."


def _caveats(document: Document) -> Iterator[str]:
    test, groups = document["test"], {each["group"] for each in document["test"]}
    if len(groups) < len(test):
        yield (
            f"The test domains are parts of {plural(len(groups), 'domain')}: parts of one domain differ by "
            "sampling alone and are not independent."
        )
    if len(groups) < 5:
        yield f"{plural(len(groups), 'domain')} are too few for an interval of a correlation."
    sizes = {each["n"] for each in test}
    if len(sizes) > 1:
        yield f"Circuits rest on {min(sizes)} to {max(sizes)} images: fewer images alone make a larger shift."
    if left_out := document["left_out"]:
        names = ", ".join(f"{each['domain']} ({each['n']})" for each in left_out[:LEFT_OUT])
        yield f"{plural(len(left_out), 'domain')} with too few images left out: {names}."
    absent = [each["absent"] for each in (*test, *document["known"]) if each.get("absent")]
    for key, reason in (absent[0] if absent else {}).items():
        yield f"{plots.NAMES.get(key, key)} is undefined on some domain: {reason}"


def _domains(document: Document) -> list[Block]:
    key, first = document["distance"], document["test"][0]
    shown = [name for name in document["metrics"] if name in first["baselines"]]
    uses = {"in distribution": [document["own"]] if document["own"] else []}
    uses |= {"test": document["test"], "calibration": document["known"]}
    figure = Figure(
        draw=partial(plots.plot_domains, document),
        label="Shift against performance of the domains; the numbers are in the table.",
        caption=f"{key} shift against {document['settings']['measure']}. Calibration domains are corrupted "
        "copies of images in distribution.",
        name="domains",
    )
    table = Table(
        columns=[
            *columns("domain", "used for", sort=True),
            *columns("labelled", "of circuit", "accuracy", "macro-F1", numeric=True, sort=True),
            *columns(f"shift ({key})", *shown, numeric=True, sort=True),
        ],
        rows=[
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
        ],
        caption="Every domain: images that performance rests on, and images of the circuit, which all other "
        "numbers rest on. The file of the evaluation has all six distances.",
        tall=True,
    )
    return [figure, table]


def _correlations(document: Document) -> list[Block]:
    found, keys = document["correlations"], plots.by_agreement(document)
    if not keys:
        return []
    figure = Figure(
        draw=partial(plots.plot_correlations, document),
        label="Rank correlation of every metric with performance; the numbers are in the table.",
        caption=f"Spearman's rank correlation with {document['settings']['measure']} over the test domains; "
        "line: 95 % over resampled domains; tick: the same over the calibration domains. Shifts are expected "
        "to be negative, baselines positive.",
        name="correlations",
    )
    table = Table(
        columns=columns("metric")
        + columns("R2", "SRCC", "95 % interval", "KRCC", "SRCC, calibration", numeric=True),
        rows=[
            [
                plots.metric_name(key, document["test"][0]["shifts"]),
                number(found[key]["r2"], 2),
                number(found[key]["srcc"], 2),
                interval(found[key]["low"], found[key]["high"], 2),
                number(found[key]["krcc"], 2),
                number(found[key]["known_srcc"], 2),
            ]
            for key in keys
        ],
        caption="Signed correlations with performance: R2 (squared Pearson), Spearman, Kendall's tau-b.",
    )
    return [figure, table]


def _alarms(document: Document) -> list[Block]:
    if document["curves"] is None:
        return []
    shifts = document["test"][0]["shifts"]
    curves = {
        plots.metric_name(key, shifts): curve["summary"]
        for key, curve in document["curves"].items()
        if curve["summary"] is not None
    }
    size = min(SUBSET, len(document["known"]))
    figure = Figure(
        draw=partial(plots.plot_alarm_curves, document),
        label="F1 of the alarm against the performance threshold; means are in the table.",
        caption=f"F1 of the alarm on the test domains, calibrated on random subsets of {size} calibration "
        "domains: means, and 95 % of the subsets for the first.",
        name="alarms",
    )
    table = Table(
        columns=columns("alarm on") + columns("mean F1", numeric=True),
        rows=[[name, number(value, 3)] for name, value in sorted(curves.items(), key=lambda each: -each[1])],
        caption="Mean F1 over the thresholds at which an alarm is due on some test domains, not on all.",
    )
    return [figure, table] if curves else [figure]


PAGES.add(
    "domain-evaluation",
    PageForm(
        noun="evaluation over domains",
        schema="assay-domain-evaluation/1",
        again="`assay monitor evaluate`",
        make=evaluation_page,
    ),
)

"""A monitor as a page: shift over the batches, alarms and their rate, where in the network it happened."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from assay.analyses.generalization import monitor_plots as plots
from assay.analyses.generalization.accuracy_estimate import WORTH
from assay.analyses.generalization.batches import BASELINES
from assay.analyses.generalization.monitor_batches import batch_details
from assay.analyses.generalization.monitor_words import (
    DRAWN,
    accuracy_words,
    alarm_reasons,
    caveats,
    in_excess,
    statistic,
    threshold_origin,
    verdict,
)
from assay.core.errors import InputError
from assay.core.record import plain
from assay.page.blocks import Block, Column, Details, Figure, Note, Page, Section, Table, columns
from assay.page.form import PAGES, PageForm
from assay.page.matrix import Matrix, plot_matrix
from assay.page.text import (
    NARROW,
    Span,
    Text,
    bold,
    code,
    interval,
    model_text,
    number,
    p_value,
    plural,
    quiet,
    rounded,
)


LISTED = 500  # readings of the table; the file beside the page has all
MOVED = 6  # pairs of layers listed
DRIFT = {
    "ks": "confidences, Kolmogorov-Smirnov",
    "mmd": "features, maximum mean discrepancy",
    "c2st": "features, classifier two-sample test",
}
Document = Mapping[str, Any]


def monitor_page(document: Document) -> Page:
    """Everything that is shown of a monitor.

    Args:
        document: What `Monitor.to_dict` gave; under `domains` it may hold the record of a calibration on
            domains.

    Raises:
        InputError: For a monitor without a reading.
    """
    readings = document["readings"]
    if not readings:
        raise InputError("the monitor has no reading yet; observe a batch first")
    distance, reference = document["distance"], document["reference"].get("task") or {}
    beyond = ": the noise floor, which the shift shown here does not include" if in_excess(document) else ""
    sections = [
        Section(title="What it can detect", blocks=_detectable(document)),
        Section(title="Shift over time", blocks=_shift(document)),
        Section(title="Accuracy without labels", blocks=_accuracy(document)),
        Section(title="Where in the network", blocks=_layers(document)),
        Section(title="What a shift means", blocks=_domains(document)),
    ]
    record = plain({**document["reference"], "settings": document["settings"]})
    return Page(
        kind="monitor",
        title=f"Circuit shift of {document['model'].get('id', 'a model')} on "
        f"{plural(len(readings), 'batch')} of images",
        verdict=verdict(document),
        remark=" ".join(filter(None, (document["guarantee"]["statement"], accuracy_words(document)))),
        reasons=alarm_reasons(document),
        caveats=caveats(document),
        lede=f"The shift is the distance ({distance['key']}: {distance['summary']}) between the circuit on "
        f"a batch and the circuit on {reference.get('n', 'known')} images in distribution. "
        f"Sampling alone makes it positive, more so for smaller batches{beyond}. A shift means that the "
        "model works differently, not that it works worse.",
        sections=[section for section in sections if section.blocks],
        facts=list(_facts(document, reference)),
        records=[
            Details(
                summary="The record of the reference circuit",
                blocks=[Note(text=json.dumps(record, indent=2, ensure_ascii=False), style="code")],
            )
        ],
        style="monitor",
    )


def _detectable(document: Document) -> list[Block]:
    """The smallest drops of performance that a batch detects, where corrupted domains were measured."""
    if document.get("domains") and document.get("rule") == "sequential":
        return [
            Note(
                text="The sequential rule decides over all batches together: no drop is stated that a single "
                "batch detects."
            )
        ]
    return [Note(text=each["statement"]) for each in document.get("detectable") or ()]


# ------------------------------------------------------------------------------------------- shift over time


def _shift(document: Document) -> list[Block]:
    """Shift and evidence over the batches, then the readings themselves."""
    drawn = {**document, "readings": document["readings"][-DRAWN:]}
    calibration = document.get("calibration")
    named = f" ({document['rule']} rule)" if document.get("rule") else ""
    known = f"; grey: {len(calibration['shifts'])} known batches of the same size" if calibration else ""
    beyond = " beyond its noise floor" if in_excess(document) else ""
    meant = "" if beyond else " of the mean shift of such batches (resampled over images)"
    blocks: list[Block] = [
        Figure(
            draw=partial(plots.plot_shift, drawn),
            label=f"Circuit shift of {len(drawn['readings'])} batches in order; the numbers are in the "
            "table.",
            caption=f"Shift of each batch{beyond}{known}. Diamonds raised the alarm{named}. Band: "
            f"{_level(document)} intervals{meant}.",
            name="shift",
        ),
        *batch_details(document),
    ]
    if any(each["e_value"] is not None for each in drawn["readings"]):
        alpha = document["alpha"]
        blocks.append(
            Figure(
                draw=partial(plots.plot_evidence, drawn),
                label="E-value of the sequential test over the batches; the numbers are in the table.",
                caption="Evidence that batches are no longer exchangeable with the known ones. If nothing "
                f"changes, it always stays below {1 / alpha:g} with probability at least {1 - alpha:g}.",
                name="evidence",
            )
        )
    return [*blocks, _readings(document)]


def _level(document: Document) -> str:
    return f"{round(100 * document['level'])}{NARROW}%"


def _readings(document: Document) -> Table:
    readings = document["readings"]
    left = max(0, len(readings) - LISTED)
    baselines = _baselines(readings)
    without = f", without the first {left}" if left else ""
    caption = f"The readings{without}. p: conformal p-value against the known batches."
    if in_excess(document):
        caption += " Beyond the floor: the shift without what noise makes of it, with its interval."
    if drift := _drift(readings):
        tests = ", ".join(f"{name.upper()} on {DRIFT[name]}" for name in drift)
        caption += f" p-values of single batches that no rule uses: {tests}."
    if baselines:
        caption += " On the right, label-free baselines; they fall as the model becomes less confident."
    return Table(
        columns=[
            *columns("batch", numeric=True, sort=True),
            *columns("time (UTC)", "origin", sort=True),
            *columns("images", "shift", numeric=True, sort=True),
            *(columns("beyond the floor", numeric=True, sort=True) if in_excess(document) else ()),
            *columns(f"{_level(document)} interval", numeric=True),
            *columns("p", "e-value", numeric=True, sort=True),
            *columns("alarm", sort=True),
            *(Column(name=f"p {name.upper()}", title=DRIFT[name], numeric=True, sort=True) for name in drift),
            *_baseline_columns(baselines),
        ],
        rows=[_reading(document, each, drift, baselines) for each in readings[left:]],
        caption=caption,
        tall=True,
        named=False,
    )


def _baselines(records: Sequence[Document]) -> list[str]:
    return [name for name in BASELINES if any(name in each["baselines"] for each in records)]


def _baseline_columns(names: Sequence[str]) -> list[Column]:
    return [Column(name=name.upper(), title=BASELINES[name], numeric=True, sort=True) for name in names]


def _drift(readings: Sequence[Document]) -> list[str]:
    return [name for name in DRIFT if any(name in (each.get("drift") or ()) for each in readings)]


def _reading(
    document: Document, reading: Document, drift: Sequence[str], baselines: Sequence[str]
) -> list[Text]:
    n: list[Text] = [str(reading["n"])]
    if skipped := reading["skipped"]:
        n += [" ", quiet(f"({len(skipped)} unreadable)", ", ".join(skipped))]
    alarm: list[Text] = [Span(bold("alarm"), "minus")] if reading["alarm"] else []
    if reading["alarm"] is False:
        alarm.append("no")
    others = [rule for rule, raised in reading["alarms"].items() if raised and not reading["alarm"]]
    if others:
        alarm.append(quiet(f" (but {', '.join(others)})"))
    p, e_value, values = reading["p_value"], reading["e_value"], reading["baselines"]
    tests, (value, low, high) = reading.get("drift") or {}, statistic(document, reading)
    return [
        str(reading["index"] + 1),
        reading["time"][:19].replace("T", " "),
        str(reading["domain"]),
        n,
        number(reading["shift"], 3),
        *([number(value, 3)] if in_excess(document) else ()),
        interval(low, high, 3),
        "" if p is None else number(p, 3),
        "" if e_value is None else number(e_value),
        alarm,
        *(number(tests[name], 3) if name in tests else "" for name in drift),
        *(number(values[name]) if name in values else "" for name in baselines),
    ]


# --------------------------------------------------------------------------------------------------- accuracy


def _accuracy(document: Document) -> list[Block]:
    """Estimated accuracy of the batches, and what it rests on; nothing without calibration domains."""
    estimator = document.get("estimator")
    readings = [each for each in document["readings"] if each.get("estimate")]
    if not estimator or not readings:
        return []
    test = estimator["backtest"]
    left = max(0, len(readings) - LISTED)
    facts = Table(
        columns=columns("estimate of families left out") + columns("mean absolute error", numeric=True),
        rows=[
            ["stack of the readings", number(test["error"], 3)],
            ["accuracy in distribution", number(test["id_error"], 3)],
            ["mean of the other families", number(test["mean_error"], 3)],
        ],
        caption=f"The estimate rests on {estimator['source']}. It is used only if it is better than both "
        f"constants, and than accuracies dealt out at random (p {p_value(test['p_value'])}, at most "
        f"{WORTH:g} is needed).",
        named=False,
    )
    rows: list[list[Text]] = [
        [str(each["index"] + 1), *estimate_cells(each["estimate"])] for each in readings[left:]
    ]
    table = Table(
        columns=columns("batch", "accuracy", "interval", "level", "support p", numeric=True)
        + columns("cannot say, because"),
        rows=rows,
        caption="Estimated accuracy on the images of each batch, with a conformal interval over families of "
        "calibration domains. It assumes that a batch comes from a domain like these. It cannot see labels "
        "that change while the images stay the same.",
        tall=True,
        named=False,
    )
    return [table, Details(summary="What the estimate rests on", blocks=[facts])]


def estimate_cells(estimate: Document) -> list[Text]:
    """Value, interval, level, p-value of the support test, and why it is silent."""
    ends = estimate["interval"]
    support = estimate["support"]
    tested = "" if support is None else number(support, 3)
    if ends is None:
        return ["", "", "", tested, estimate["reason"]]
    return [
        number(estimate["value"]),
        interval(ends["low"], ends["high"]),
        f"{round(100 * ends['level'])}{NARROW}%",
        tested,
        "",
    ]


# ---------------------------------------------------------------------------------------- layers and domains


def _layers(document: Document) -> list[Block]:
    """Rank-shift maps of the last and the worst reading, one where they are the same."""
    readings = document["readings"]
    last, worst = readings[-1], max(readings, key=lambda each: each["shift"])
    same = last["index"] == worst["index"]
    figures: list[Block] = []
    tables: list[Block] = []
    for name, reading in ({"last, and the worst": last} if same else {"last": last, "worst": worst}).items():
        layers, batch = plots.layers_matrix(document["graph"], reading), reading["index"] + 1
        if layers is None:
            continue
        figures.append(
            Figure(
                draw=partial(plot_matrix, layers),
                label=f"Rank-shift map of batch {batch}; the strongest cells are listed.",
                caption=f"Batch {batch} ({name}): mean change of the ranks of the edges between two layers, "
                "as a share of all edges. Blue: these edges gained weight relative to the others; orange: "
                "they lost it.",
                name=f"map-{name.split(',')[0]}",
            )
        )
        tables.append(_strongest(layers, batch))
    if not figures:
        return []
    return [
        Section(blocks=figures, style="pair"),
        Details(summary="The pairs of layers that changed most", blocks=tables),
    ]


def _strongest(layers: Matrix, batch: int) -> Table:
    """Pairs of layers whose edges moved most."""
    cells = [place for place in np.ndindex(layers.values.shape) if math.isfinite(layers.values[place])]
    cells.sort(key=lambda place: -abs(layers.values[place]))
    return Table(
        columns=columns(f"batch {batch}: from", "to") + columns("mean change", numeric=True),
        rows=[
            [layers.rows[row], layers.columns[column], number(float(layers.values[row, column]), 3)]
            for row, column in cells[:MOVED]
        ],
        style="gate-table",
        named=False,
    )


def _domains(document: Document) -> list[Block]:
    """The calibration on domains, where there is one: shift against performance, alarms, rows."""
    domains, distance = document.get("domains"), document["distance"]["key"]
    if not domains:
        return []
    known = plural(len(domains["known"]), "calibration domain")
    tests = f" and {plural(len(domains['test']), 'test domain')}" if domains["test"] else ""
    figures: list[Block] = [
        Figure(
            draw=partial(plots.plot_domains, document),
            label="Shift against performance of the domains; the numbers are in the table.",
            caption=f"Shift against {domains['measure']} on {known}{tests}. The solid line is the threshold "
            "in force, the dashed one the corresponding performance.",
            name="domains-scatter",
        )
    ]
    rows = _domains_table(domains, distance)
    tables: list[Block] = [Details(summary="The domains as a table", blocks=[rows])]
    if curves := _curves(domains.get("curves") or {}, distance):
        figures.append(
            Figure(
                draw=partial(plots.plot_curves, curves),
                label="F1 of the alarm against the performance threshold; the numbers are in the table.",
                caption="F1 of the alarm on the test domains, calibrated on random subsets of the "
                f"calibration domains: means, and 95{NARROW}% of the subsets for the shift. F1 is undefined "
                "if no alarm is due and none is raised.",
                name="domains-curve",
            )
        )
        tables.insert(0, Details(summary="The curve as a table", blocks=[_curves_table(curves)]))
    return [Section(blocks=figures, style="pair"), *tables]


def _curves(curves: Mapping[str, Document], distance: str) -> dict[str, Document]:
    """The curves under their names, that of the shift first, then what needs no circuit."""
    return {
        BASELINES.get(key, f"shift ({key})"): curves[key] for key in (distance, *BASELINES) if key in curves
    }


def _curves_table(curves: Mapping[str, Document]) -> Table:
    """About ten thresholds with the mean F1 of each metric."""
    deltas = next(iter(curves.values()))["deltas"]
    return Table(
        columns=columns("performance threshold", *curves, numeric=True),
        rows=[
            [rounded(deltas[place]), *(number(curve["mean"][place]) for curve in curves.values())]
            for place in range(0, len(deltas), max(1, len(deltas) // 10))
        ],
        named=False,
    )


def _domains_table(domains: Document, distance: str) -> Table:
    baselines = _baselines(domains["known"])
    beyond = all(
        distance in (each.get("excess") or ()) for kind in ("known", "test") for each in domains[kind]
    )
    return Table(
        columns=[
            *columns("domain", "used for", sort=True),
            *columns("images", "labelled", domains["measure"], "shift", numeric=True, sort=True),
            *(columns("beyond the floor", numeric=True, sort=True) if beyond else ()),
            *_baseline_columns(baselines),
        ],
        rows=[
            [
                each["domain"],
                use,
                str(each["n"]),
                str(each.get("n_labelled") or each["n"]),
                number(each["performance"]),
                number(each["shifts"][distance], 3),
                *([number(each["excess"][distance], 3)] if beyond else ()),
                *(number(each["baselines"][name]) if name in each["baselines"] else "" for name in baselines),
            ]
            for kind, use in (("known", "calibration"), ("test", "test"))
            for each in domains[kind]
        ],
        tall=True,
    )


def _facts(document: Document, reference: Document) -> Iterator[tuple[str, Text]]:
    settings, distance = document["settings"], document["distance"]
    yield "model", model_text(document["model"])
    source = f"{reference.get('name', '')} {reference.get('domain', '')} "
    yield "reference", (source, quiet(f"{reference.get('n', '')} images"))
    estimator = "{objective}, {ablation}, {steps} steps, {quadrature}".format_map(settings)
    yield "estimator", (f"{settings['method']} ", quiet(estimator))
    yield "distance", (f"{distance['key']} ", quiet(distance["published"]))
    batches, batch = document["reference"].get("batches", 1), document["reference"].get("batch")
    yield (
        "noise floor",
        (
            f"from {batches} batches of {batch} images"
            if in_excess(document)
            else quiet(": ".join(filter(None, ("none", document.get("without_floor")))))
        ),
    )
    if threshold := document.get("threshold"):
        origin = threshold_origin(threshold)
        value = number(threshold["value"], 3)
        if ends := threshold.get("interval"):
            value = f"{value} {interval(ends['low'], ends['high'], 3)}"
        if origin:
            origin = f" {origin}; the target is {rounded(threshold['target'])}"
        yield "threshold", (value, quiet(origin)) if origin else value
    yield "monitor", code(document["id"])


PAGES.add(
    "monitor",
    PageForm(noun="monitor", schema="assay-monitor/1", again="`assay monitor`", make=monitor_page),
)

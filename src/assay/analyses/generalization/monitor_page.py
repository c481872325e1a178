"""A monitor as a page: shift over the batches, alarms and their rate, where in the network it happened."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from assay.analyses.generalization import monitor_plots as plots
from assay.analyses.generalization.batches import BASELINES
from assay.analyses.generalization.monitor_words import (
    DRAWN,
    alarm_reasons,
    caveats,
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
    model_text,
    number,
    plural,
    quiet,
    rounded,
)


LISTED = 500  # readings of the table; the file beside the page has all
MOVED = 6  # pairs of layers listed
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
    sections = [
        Section(title="Shift over time", blocks=_shift(document)),
        Section(title="Where in the network", blocks=_layers(document)),
        Section(title="What a shift means", blocks=_domains(document)),
    ]
    record = plain({**document["reference"], "settings": document["settings"]})
    return Page(
        kind="monitor",
        title=f"Circuit shift of {document['model'].get('id', 'a model')} on "
        f"{plural(len(readings), 'batch')} of images",
        verdict=verdict(document),
        remark=document["guarantee"]["statement"],
        reasons=alarm_reasons(document),
        caveats=caveats(document),
        lede=f"The shift is the distance ({distance['key']}: {distance['summary']}) between the circuit on "
        f"a batch and the circuit on {reference.get('n', 'known')} images in distribution. "
        f"Sampling alone makes it positive, more so for smaller batches. A shift means that the "
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


# ------------------------------------------------------------------------------------------- shift over time


def _shift(document: Document) -> list[Block]:
    """Shift and evidence over the batches, then the readings themselves."""
    drawn = {**document, "readings": document["readings"][-DRAWN:]}
    calibration = document.get("calibration")
    named = f" ({document['rule']} rule)" if document.get("rule") else ""
    known = f"; grey: {len(calibration['shifts'])} known batches of the same size" if calibration else ""
    blocks: list[Block] = [
        Figure(
            draw=partial(plots.plot_shift, drawn),
            label=f"Circuit shift of {len(drawn['readings'])} batches in order; the numbers are in the "
            "table.",
            caption=f"Shift of each batch{known}. Diamonds raised the alarm{named}.",
            name="shift",
        ),
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


def _readings(document: Document) -> Table:
    readings = document["readings"]
    left = max(0, len(readings) - LISTED)
    baselines = _baselines(readings)
    without = f", without the first {left}" if left else ""
    caption = f"The readings{without}. p: conformal p-value against the known batches."
    if baselines:
        caption += " On the right, label-free baselines; they fall as the model becomes less confident."
    return Table(
        columns=[
            *columns("batch", numeric=True, sort=True),
            *columns("time (UTC)", "origin", sort=True),
            *columns("images", "shift", numeric=True, sort=True),
            *columns("p", "e-value", numeric=True, sort=True),
            *columns("alarm", sort=True),
            *_baseline_columns(baselines),
        ],
        rows=[_reading(each, baselines) for each in readings[left:]],
        caption=caption,
        tall=True,
        named=False,
    )


def _baselines(records: Sequence[Document]) -> list[str]:
    return [name for name in BASELINES if any(name in each["baselines"] for each in records)]


def _baseline_columns(names: Sequence[str]) -> list[Column]:
    return [Column(name=name.upper(), title=BASELINES[name], numeric=True, sort=True) for name in names]


def _reading(reading: Document, baselines: Sequence[str]) -> list[Text]:
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
    return [
        str(reading["index"] + 1),
        reading["time"][:19].replace("T", " "),
        str(reading["domain"]),
        n,
        number(reading["shift"], 3),
        "" if p is None else number(p, 3),
        "" if e_value is None else number(e_value),
        alarm,
        *(number(values[name]) if name in values else "" for name in baselines),
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
    return Table(
        columns=[
            *columns("domain", "used for", sort=True),
            *columns("images", "labelled", domains["measure"], "shift", numeric=True, sort=True),
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
    if threshold := document.get("threshold"):
        origin = threshold_origin(threshold)
        value = number(threshold["value"], 3)
        if origin:
            origin = f" {origin}; the target is {rounded(threshold['target'])}"
        yield "threshold", (value, quiet(origin)) if origin else value
    yield "monitor", code(document["id"])


PAGES.add(
    "monitor",
    PageForm(noun="monitor", schema="assay-monitor/1", again="`assay monitor`", make=monitor_page),
)

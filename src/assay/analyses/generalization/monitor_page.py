"""A monitor as a page: shift over the batches, alarms and their rate, where in the network it happened."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from assay.analyses.generalization import monitor_plots as plots
from assay.analyses.generalization.alarms import OUTPUTS
from assay.analyses.generalization.batches import READ
from assay.analyses.generalization.dependency import layer_names
from assay.analyses.generalization.metrics import METRICS
from assay.analyses.generalization.monitor_plots import known_shifts
from assay.analyses.generalization.ranking_plots import layer_matrix
from assay.core.errors import InputError
from assay.core.record import plain
from assay.page.blocks import Block, Column, Details, Figure, Note, Page, Section, Table, columns
from assay.page.form import PAGES, PageForm
from assay.page.matrix import plot_matrix
from assay.page.text import (
    Span,
    Text,
    bold,
    code,
    model_text,
    number,
    percent,
    plural,
    quiet,
    rounded,
)


LISTED = 500  # readings of the table; the file beside the page has all
DRAWN = 2_000  # readings of the pictures
ONE_CLASS = 0.9  # share of the images in one class from which a model says little
FAR = 0.05  # distance of a threshold's performance from its target that is worth a caveat
Document = Mapping[str, Any]
READINGS = {METRICS[key].name.lower(): METRICS[key] for key in READ}


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
        "model works differently, not that it works worse: on new domains of a study of photographs and "
        "drawings (PACS), the shift did not order accuracy.",
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
    if any(each["output_shift"] is not None for each in drawn["readings"]):
        blocks.append(
            Figure(
                draw=partial(plots.plot_shift, drawn, outputs=True),
                label="Shift of the outputs over the batches; the numbers are in the table.",
                caption="Largest distance of the distribution of a class's probability from that on known "
                "images.",
                name="outputs",
            )
        )
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
    caption = (
        f"The readings{without}. Outputs: largest distance of the distribution of a class's probability "
        "from that on known images. p: conformal p-values against the known batches."
    )
    if baselines:
        caption += " On the right, label-free baselines; they fall as the model becomes less confident."
    return Table(
        columns=[
            *columns("batch", numeric=True, sort=True),
            *columns("time (UTC)", "origin", sort=True),
            *columns("images", "shift", numeric=True, sort=True),
            *columns("p", "outputs", "p (outputs)", "e-value", numeric=True, sort=True),
            *columns("alarm", sort=True),
            *_baseline_columns(baselines),
        ],
        rows=[_reading(each, baselines) for each in readings[left:]],
        caption=caption,
        tall=True,
        named=False,
    )


def _baselines(records: Sequence[Document]) -> list[str]:
    return [name for name in READINGS if any(name in each["baselines"] for each in records)]


def _baseline_columns(names: Sequence[str]) -> list[Column]:
    return [
        Column(name=READINGS[name].name, title=READINGS[name].summary, numeric=True, sort=True)
        for name in names
    ]


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
    tests = [reading[name] for name in ("p_value", "output_shift", "output_p_value")]
    e_value, values = reading["e_value"], reading["baselines"]
    return [
        str(reading["index"] + 1),
        reading["time"][:19].replace("T", " "),
        str(reading["domain"]),
        n,
        number(reading["shift"], 3),
        *("" if each is None else number(each, 3) for each in tests),
        "" if e_value is None else number(e_value),
        alarm,
        *(number(values[name]) if name in values else "" for name in baselines),
    ]


# ---------------------------------------------------------------------------------------- layers and domains


def _layers(document: Document) -> list[Block]:
    """Rank-shift maps of the last and the worst reading, one where they are the same."""
    readings = document["readings"]
    last, worst = readings[-1], max(readings, key=lambda each: each["shift"])
    shown = (
        {"last": last, "worst": worst} if last["index"] != worst["index"] else {"last, and the worst": last}
    )
    names = layer_names(document["graph"]["n_layers"])
    figures: list[Block] = [
        Figure(
            draw=partial(plot_matrix, layer_matrix(reading["layers"], names)),
            label=f"Rank-shift map of batch {reading['index'] + 1}.",
            caption=f"Batch {reading['index'] + 1} ({name}): mean change of the ranks of the edges between "
            "two layers, as a share of all edges. Blue: these edges gained weight relative to the others; "
            "orange: they lost it.",
            name=f"map-{name.split(',')[0]}",
        )
        for name, reading in shown.items()
        if reading["layers"]
    ]
    return [Section(blocks=figures, style="pair")] if figures else []


def _domains(document: Document) -> list[Block]:
    """The calibration on domains, where there is one: shift against performance, rows."""
    domains, distance = document.get("domains"), document["distance"]["key"]
    if not domains:
        return []
    figure = Figure(
        draw=partial(plots.plot_domains, document),
        label="Shift against performance of the domains; the numbers are in the table.",
        caption=f"Shift against {domains['measure']} on {plural(len(domains['known']), 'calibration domain')}"
        ". The solid line is the threshold in force, the dashed one the corresponding performance.",
        name="domains-scatter",
    )
    baselines = _baselines(domains["known"])
    table = Table(
        columns=[
            *columns("domain", sort=True),
            *columns("images", "labelled", domains["measure"], "shift", numeric=True, sort=True),
            *_baseline_columns(baselines),
        ],
        rows=[
            [
                each["domain"],
                str(each["n"]),
                str(each["n_labelled"]),
                number(each["performance"]),
                number(each["shifts"][distance], 3),
                *(number(each["baselines"][name]) if name in each["baselines"] else "" for name in baselines),
            ]
            for each in domains["known"]
        ],
        tall=True,
    )
    return [figure, Details(summary="The domains as a table", blocks=[table])]


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


# ---------------------------------------------------------------------------------------------- sentences


def verdict(document: Document) -> str:
    """What the readings say, in a sentence or two."""
    readings = document["readings"]
    last, alarms = readings[-1], [each for each in readings if each["alarm"]]
    shift = f"The last batch has a shift of {number(last['shift'], 3)}"
    if known := known_shifts(document):
        least, largest = number(min(known), 3), number(max(known), 3)
        shift += f"; {len(known)} batches in distribution have {least} to {largest}"
    if document.get("rule") is None:
        return f"{shift}. No alarm is set."
    batches = plural(len(readings), "batch")
    if not alarms:
        return f"No alarm in {batches}. {shift}."
    stays = " and stays on" if document["rule"] == "sequential" else ""
    return (
        f"{number(len(alarms))} of {batches} raised the alarm, the first at batch {alarms[0]['index'] + 1}, "
        f"{alarms[0]['time'][:16].replace('T', ' ')} UTC{stays}. {shift}."
    )


def caveats(document: Document) -> list[str]:
    """What a reader must know before acting on the page."""
    notes = []
    readings, threshold = document["readings"], document.get("threshold") or {}
    if len(readings) > DRAWN:
        notes.append(
            f"The figures show the newest {DRAWN:,} of {len(readings):,} batches; the file beside the page, "
            "or the store, has all of them."
        )
    n_reference = (document["reference"].get("task") or {}).get("n")
    sizes = sorted({each["n"] for each in readings})
    if document.get("calibration") is None and n_reference is not None and sizes != [n_reference]:
        notes.append(
            f"The reference circuit is based on {n_reference} images, the batches on "
            f"{', '.join(map(str, sizes))}. Smaller batches have larger shifts by sampling alone, so "
            "thresholds from another batch size do not apply."
        )
    performance, target = threshold.get("performance"), threshold.get("target")
    if performance is not None and target is not None and abs(performance - target) > FAR:
        notes.append(
            f"The threshold corresponds to a performance of {rounded(performance)}, that of "
            f"{threshold['domain']}: no other calibration domain is closer to the target of "
            f"{rounded(target)}."
        )
    if one := [each for each in readings[-DRAWN:] if each["top_share"] > ONE_CLASS]:
        notes.append(
            f"The model gives one class to more than {percent(ONE_CLASS)} of the images of "
            f"{plural(len(one), 'batch')}, the last batch {one[-1]['index'] + 1} "
            f"({percent(one[-1]['top_share'])})."
        )
    notes += [
        f"{READINGS[key].name} of {plural(n, 'batch')} is 0 or 1, which is no estimate."
        for key in ("atc", "doc")
        if (n := sum(each["baselines"].get(key) in (0, 1) for each in readings[-DRAWN:]))
    ]
    if n := sum(len(each["skipped"]) for each in readings) + len(document.get("passed", ())):
        notes.append(
            f"{plural(n, 'image file')} could not be read and {'was' if n == 1 else 'were'} left out."
        )
    return notes


def alarm_reasons(document: Document) -> list[str]:
    """Why the alarm is or was last on: statistic, limit, since when; what it may mean; what to do.

    Returns:
        Three sentences or so; nothing where no alarm was raised.
    """
    episode = _last_episode(document["readings"])
    if not episode:
        return []
    first, last, n = episode[0], episode[-1], len(document["readings"])
    over = document["readings"][-1]["index"] - last["index"]
    since = f"since batch {first['index'] + 1} ({moment(first)} UTC)"
    if over:
        lasted = f"from batch {first['index'] + 1} ({moment(first)} UTC) to batch {last['index'] + 1}"
        when = f"The last alarm lasted {lasted}; {plural(over, 'batch')} since then did not raise it."
    elif len(episode) == n:
        when = f"The alarm is on {since}, the first batch."
    else:
        when = f"The alarm is on {since}, for {plural(len(episode), 'batch')} in a row."
    return [f"{when} {reason(document, last)}", *_meaning(document)]


def moment(reading: Document) -> str:
    """When a batch was observed, to the minute."""
    return str(reading["time"])[:16].replace("T", " ")


def evidence(e_value: float) -> str:
    """An e-value for reading; it may have hundreds of digits."""
    return number(e_value, 3) if e_value < 1e6 else f"{e_value:.2g}"


def reason(document: Document, reading: Document) -> str:
    """Which statistic of a batch is beyond which limit, by the rule in force; empty where none is."""
    if not reading["alarm"]:
        return ""
    batch, key = f"batch {reading['index'] + 1}", document["distance"]["key"]
    name = f"circuit shift ({key})" if reading["decided_by"] != OUTPUTS else "shift of the outputs"
    value = reading["shift"] if reading["value"] is None else reading["value"]
    shift = f"The {name} of {batch} is {number(value, 3)}"
    if document["rule"] == "threshold":
        threshold = document["threshold"]
        origin = f", which was {where}" if (where := threshold_origin(threshold)) else ""
        return f"{shift}, above the threshold of {number(threshold['value'], 3)}{origin}."
    if document["rule"] == "conformal":
        p_value = reading["output_p_value" if reading["decided_by"] == OUTPUTS else "p_value"]
        alpha = document["alpha"] / (2 if document.get("outputs") else 1)
        return (
            f"{shift}, above the limit of {number(reading['limit'], 3)} that {len(known_shifts(document))} "
            f"known batches set (p = {number(p_value, 3)}; the alarm is raised at {alpha:g} or less)."
        )
    needed = 1 / document["alpha"]
    return (
        f"The evidence against no change (e-value) is {evidence(reading['e_value'])} at {batch}; it has "
        f"reached {needed:g}, and the sequential rule stays on from then on."
    )


def threshold_origin(threshold: Document) -> str:
    """What a threshold was read off; empty for one that was given as a number."""
    if not threshold.get("domain") or threshold.get("performance") is None:
        return ""
    where = (
        "interpolated between corrupted domains"
        if threshold.get("method") == "isotonic"
        else f"read off {threshold['domain']}"
    )
    return f"{where}, where performance is {rounded(threshold['performance'])}"


def _last_episode(readings: Sequence[Document]) -> list[Document]:
    """The newest readings in a row that raised the alarm, oldest first."""
    found: list[Document] = []
    for each in reversed(readings):
        if each["alarm"]:
            found.append(each)
        elif found:
            break
    return found[::-1]


def _meaning(document: Document) -> Iterator[str]:
    target = (document.get("threshold") or {}).get("target")
    lower = (
        f" On domains like the calibration's, performance this far away is below {rounded(target)}."
        if document["rule"] == "threshold" and target is not None
        else ""
    )
    yield (
        "It may mean that the images come from another source, that they have changed (camera, light, "
        "processing), or that batches mix classes or days otherwise than the known ones. It does not by "
        f"itself mean that predictions are wrong.{lower}"
    )
    yield (
        "What to do: look at the images of these batches and at the layers that changed, and label some tens "
        "of images to compare the accuracy. If such images are to stay, calibrate a new monitor on them."
    )


PAGES.add(
    "monitor",
    PageForm(noun="monitor", schema="assay-monitor/1", again="`assay monitor`", make=monitor_page),
)

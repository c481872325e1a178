"""A monitor as a page: shift over the batches, alarms and their rate, where in the network it happened."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from assay.analyses.generalization import monitor_plots as plots
from assay.analyses.generalization.alarms import OUTPUTS
from assay.analyses.generalization.dependency import layer_names
from assay.analyses.generalization.monitor_plots import READINGS
from assay.analyses.generalization.ranking_page import layer_matrix
from assay.core.errors import InputError
from assay.page.blocks import Block, Column, Figure, Page, Section, Table, columns, folded_record
from assay.page.form import PAGES, PageForm
from assay.page.matrix import plot_matrix
from assay.page.text import Span, Text, bold, code, model_text, number, percent, plural, quiet, rounded


LISTED = 500  # readings of the table; the file beside the page has all
DRAWN = 2_000  # readings of the pictures
ONE_CLASS = 0.9  # share of the images in one class from which a model says little
FAR = 0.05  # distance of a threshold's performance from its target that is worth a caveat
Document = Mapping[str, Any]


def monitor_page(document: Document) -> Page:
    """Everything that is shown of a monitor.

    Args:
        document: What `Monitor.to_dict` gave; under `domains` it may hold that of a calibration on domains.

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
    return Page(
        kind="monitor",
        title=f"Circuit shift of {document['model'].get('id', 'a model')} on "
        f"{plural(len(readings), 'batch')} of images",
        verdict=verdict(document),
        remark=document["guarantee"],
        reasons=alarm_reasons(document),
        caveats=caveats(document),
        lede=f"The shift is the distance ({distance['key']}: {distance['summary']}) between the circuit on "
        f"a batch and the circuit on {reference.get('n', 'known')} images in distribution. "
        f"Sampling alone makes it positive, more so for smaller batches. A shift means that the "
        "model works differently, not that it works worse: on new domains of a study of photographs and "
        "drawings (PACS), the shift did not order accuracy.",
        sections=[section for section in sections if section.blocks],
        facts=[
            ("model", model_text(document["model"])),
            (
                "reference",
                f"{reference.get('n')} images of {reference.get('domain')}",
            ),
            ("threshold", _threshold(document["threshold"]) if document["threshold"] else "none"),
            ("monitor", code(document["id"])),
        ],
        records=[folded_record("The record of the reference circuit", document["reference"])],
        style="monitor",
    )


def _shift(document: Document) -> list[Block]:
    """Both shifts over the batches, then the readings themselves."""
    readings = document["readings"]
    drawn = {**document, "readings": readings[-DRAWN:]}
    known = document["calibration"]
    blocks: list[Block] = [
        Figure(
            draw=partial(plots.plot_shift, drawn),
            label=f"Circuit shift of {len(drawn['readings'])} batches in order; the numbers are in the "
            "table.",
            caption="Shift of each batch"
            + (f"; grey: {len(known['shifts'])} known batches of the same size" if known else "")
            + f". Diamonds raised the alarm ({document['rule'] or 'no'} rule).",
            name="shift",
        )
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
    names = [name for name in READINGS if any(name in each["baselines"] for each in readings)]
    left = max(0, len(readings) - LISTED)
    table = Table(
        columns=[
            *columns("batch", numeric=True, sort=True),
            *columns("time (UTC)", "origin", sort=True),
            *columns("images", "shift", numeric=True, sort=True),
            *columns("p", "outputs", "p (outputs)", "e-value", numeric=True, sort=True),
            *columns("alarm", sort=True),
            *(
                Column(name=READINGS[name].name, title=READINGS[name].summary, numeric=True, sort=True)
                for name in names
            ),
        ],
        rows=[_row(each, names) for each in readings[left:]],
        caption=f"The readings{f', without the first {left}' if left else ''}. Outputs: largest distance of "
        "the distribution of a class's probability from that on known images. p: conformal p-values against "
        "the known batches. e-value: evidence that batches are no longer exchangeable with the known ones. "
        "On the right, label-free baselines; they fall as the model becomes less confident.",
        tall=True,
        named=False,
    )
    return [*blocks, table]


def _row(reading: Document, baselines: Sequence[str]) -> list[Text]:
    n: list[Text] = [str(reading["n"])]
    if skipped := reading["skipped"]:
        n += [" ", quiet(f"({len(skipped)} unreadable)", ", ".join(skipped))]
    tests = [reading[name] for name in ("p_value", "output_shift", "output_p_value", "e_value")]
    return [
        str(reading["index"] + 1),
        _moment(reading),
        str(reading["domain"]),
        n,
        number(reading["shift"], 3),
        *("" if each is None else number(each, 3) for each in tests),
        Span(bold("alarm"), "minus") if reading["alarm"] else "no" if reading["alarm"] is False else "",
        *(number(reading["baselines"].get(name)) for name in baselines),
    ]


def _layers(document: Document) -> list[Block]:
    """The rank-shift map of the reading with the largest shift."""
    worst = max(document["readings"], key=lambda each: each["shift"])
    if not worst["layers"]:
        return []
    matrix = layer_matrix(worst["layers"], layer_names(document["graph"]["n_layers"]))
    return [
        Figure(
            draw=partial(plot_matrix, matrix),
            label=f"Rank-shift map of batch {worst['index'] + 1}.",
            caption=f"Batch {worst['index'] + 1}, with the largest shift: mean change of the ranks of the "
            "edges between two layers, as a share of all edges. Blue: these edges gained weight relative to "
            "the others; orange: they lost it.",
            name="map",
        )
    ]


def _domains(document: Document) -> list[Block]:
    """The calibration on domains, where there is one: shift against performance."""
    found = document.get("domains")
    if not found:
        return []
    figure = Figure(
        draw=partial(plots.plot_domains, found, threshold=document["threshold"]),
        label="Shift against performance of the domains; the file beside the page has the numbers.",
        caption=f"Shift against {found['settings']['measure']} on "
        f"{plural(len(found['known']), 'calibration domain')}. The solid line is the threshold in force, the "
        "dashed one the corresponding performance.",
        name="domains-scatter",
    )
    return [figure]


# ---------------------------------------------------------------------------------------------- sentences


def verdict(document: Document) -> str:
    """What the readings say, in a sentence or two."""
    readings = document["readings"]
    alarms = [each for each in readings if each["alarm"]]
    shift = f"The last batch has a shift of {number(readings[-1]['shift'], 3)}"
    if known := (document["calibration"] or {}).get("shifts"):
        least, largest = number(min(known), 3), number(max(known), 3)
        shift += f"; {len(known)} batches in distribution have {least} to {largest}"
    if document["rule"] is None:
        return f"{shift}. No alarm is set."
    batches = plural(len(readings), "batch")
    if not alarms:
        return f"No alarm in {batches}. {shift}."
    return (
        f"{number(len(alarms))} of {batches} raised the alarm, the first at batch {alarms[0]['index'] + 1}, "
        f"{_moment(alarms[0])} UTC. {shift}."
    )


def caveats(document: Document) -> list[str]:
    """What a reader must know before acting on the page."""
    notes = []
    readings, threshold = document["readings"], document["threshold"] or {}
    n_reference = (document["reference"].get("task") or {}).get("n")
    sizes = sorted({each["n"] for each in readings})
    if document["calibration"] is None and n_reference is not None and sizes != [n_reference]:
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
    if one := [each for each in readings if each["top_share"] > ONE_CLASS]:
        notes.append(
            f"The model gives one class to more than {percent(ONE_CLASS)} of the images of "
            f"{plural(len(one), 'batch')}, the last batch {one[-1]['index'] + 1} "
            f"({percent(one[-1]['top_share'])})."
        )
    notes += [
        f"{READINGS[key].name} of {plural(n, 'batch')} is 0 or 1: this estimate of accuracy is degenerate."
        for key in ("atc", "doc")
        if (n := sum(each["baselines"].get(key) in (0, 1) for each in readings))
    ]
    if n := sum(len(each["skipped"]) for each in readings) + len(document["skipped"]):
        notes.append(f"{plural(n, 'unreadable image file')} {'was' if n == 1 else 'were'} left out.")
    if len(readings) > DRAWN:
        notes.append(f"The figures show the newest {DRAWN:,} of {len(readings):,} batches.")
    return notes


def alarm_reasons(document: Document) -> list[str]:
    """Why the alarm is on or was last: statistic and limit; what it may mean; what to do.

    Returns:
        Three sentences or so; nothing where no alarm was raised.
    """
    last = next((each for each in reversed(document["readings"]) if each["alarm"]), None)
    if last is None:
        return []
    lower = ""
    if document["rule"] == "threshold" and (target := document["threshold"]["target"]) is not None:
        lower = f" On domains like the calibration's, performance this far away is below {rounded(target)}."
    return [
        _reason(document, last),
        "It may mean that the images come from another source, that they have changed (camera, light, "
        "processing), or that batches mix classes or days otherwise than the known ones. It does not by "
        f"itself mean that predictions are wrong.{lower}",
        "What to do: look at the images of these batches and at the layers that changed, and label some tens "
        "of images to compare the accuracy. If such images are to stay, calibrate a new monitor on them.",
    ]


def _reason(document: Document, reading: Document) -> str:
    """Which statistic of a batch is beyond which limit, by the rule in force."""
    batch, of_outputs = f"batch {reading['index'] + 1}", reading["decided_by"] == OUTPUTS
    name = "shift of the outputs" if of_outputs else f"circuit shift ({document['distance']['key']})"
    shift = f"The {name} of {batch} is {number(reading['value'], 3)}"
    if document["rule"] == "threshold":
        return f"{shift}, above the threshold of {_threshold(document['threshold'])}."
    if document["rule"] == "conformal":
        p_value = reading["output_p_value" if of_outputs else "p_value"]
        return (
            f"{shift}, above the limit of {number(reading['limit'], 3)} that "
            f"{len(document['calibration']['shifts'])} known batches set (p = {number(p_value, 3)}; the "
            f"alarm is raised at {document['alpha'] / len(document['limits']):g} or less)."
        )
    value = reading["value"]
    shown = number(value, 3) if value < 1e6 else f"{value:.2g}"
    return (
        f"The evidence against no change (e-value) is {shown} at {batch}; it has reached "
        f"{1 / document['alpha']:g}, and the sequential rule stays on from then on."
    )


def _threshold(threshold: Document) -> str:
    """A threshold, and what it was read off."""
    if not threshold["domain"]:
        return number(threshold["value"], 3)
    isotonic = threshold["method"] == "isotonic"
    where = "interpolated between corrupted domains" if isotonic else f"read off {threshold['domain']}"
    return (
        f"{number(threshold['value'], 3)}, {where}, where performance is {rounded(threshold['performance'])}"
    )


def _moment(reading: Document) -> str:
    """When a batch was observed, to the second."""
    return str(reading["time"])[:19].replace("T", " ")


PAGES.add(
    "monitor",
    PageForm(noun="monitor", schema="assay-monitor/1", again="`assay monitor`", make=monitor_page),
)

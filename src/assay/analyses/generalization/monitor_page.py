"""Pages and pictures of a monitor and of an evaluation over domains, from their documents alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.generalization.alarms import CIRCUIT, OUTPUTS
from assay.analyses.generalization.domains import DomainEvaluation, name_and_direction
from assay.analyses.generalization.ranking_page import (
    COLLAPSED,
    ONE_CLASS,
    chance_note,
    layers_figure,
    rows_table,
)
from assay.core.errors import InputError
from assay.page import text as texts
from assay.page.blocks import PAGES, Block, Figure, Page, PageForm, Section, Table, folded_record
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, SUPPORTS, axes_of
from assay.page.text import number, plural, rounded


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.analyses.generalization.monitor import Monitor

Document = Mapping[str, Any]
LISTED, DRAWN = 500, 2_000  # readings of the table, and of the pictures; the file beside the page has all
DASHED = (0, (4, 2))
ENOUGH = 10  # images of a batch whose features may have many directions
FAR = 0.05  # distance of a threshold's performance from its target that is worth a caveat


# ----------------------------------------------------------------------------------------- a monitor


def monitor_page(document: Document) -> Page:
    """Everything that is shown of a monitor.

    Args:
        document: What `Monitor.to_dict` gave.

    Raises:
        InputError: For a monitor without a reading.
    """
    readings = document["readings"]
    if not readings:
        raise InputError("the monitor has no reading yet; observe a batch first")
    distance, threshold = document["distance"], document["threshold"]
    worst = max(readings, key=lambda each: each["shift"])
    caption = (
        f"Batch {worst['index'] + 1}, with the largest shift: mean change of the ranks of the edges between "
        "two layers, as a share of all edges. Blue: gained weight; orange: lost it."
    )
    parts: dict[str, list[Block]] = {
        "Shift over time": [*_shifts(document), _readings(readings)],
        "Where in the network": [layers_figure("map", caption, worst["layers"])],
    }
    limit = f" Threshold: {number(threshold['value'], 3)}." if threshold else ""
    if threshold and threshold["domain"]:
        reached, nearest = rounded(threshold["performance"]), threshold["domain"]
        limit += f" It lies where performance is {reached}; the nearest corrupted domain is {nearest}."
    return _page(
        document,
        parts,
        kind="monitor",
        title=f"Circuit of {document['model'].get('id', 'a model')} on {plural(len(readings), 'batch')}",
        verdict=verdict(document),
        remark=document["guarantee"],
        reasons=alarm_reasons(document),
        caveats=list(caveats(document)),
        lede=f"The shift is the distance ({distance['key']}: {distance['summary']}) between the circuit on a "
        "batch and the reference circuit. Sampling alone makes it positive, more so for smaller batches. A "
        "shift means that the model works differently, not that it works worse: on new domains of a study "
        f"(PACS), the shift did not order accuracy.{limit}",
        style="monitor",
    )


def _page(document: Document, parts: Mapping[str, Sequence[Block]], **shown: Any) -> Page:
    """A page of what was measured on one model against a reference circuit."""
    task = document["reference"].get("task") or {}
    source = " ".join(dict.fromkeys(filter(None, (task.get("name"), task.get("domain")))))
    facts = {"model": texts.model_text(document["model"]), "reference": f"{task.get('n')} images of {source}"}
    return Page(
        sections=[Section(title=title, blocks=blocks) for title, blocks in parts.items()],
        facts=[*facts.items(), ("result", texts.code(document["id"]))],
        records=[folded_record("The record of the reference circuit", document["reference"])],
        **shown,
    )


def _shifts(document: Document) -> Iterator[Figure]:
    """Both shifts over the batches, where they were measured."""
    drawn = {**document, "readings": document["readings"][-DRAWN:]}
    moved = "Shift of the outputs, the largest distance of the distribution of a class's probability"
    for name, key, caption in (
        (CIRCUIT, "shift", f"Shift of the newest batches, {DRAWN:,} at most; grey: known ones of their size"),
        (OUTPUTS, "output_shift", f"{moved} from that on known images"),
    ):
        if any(each[key] is not None for each in drawn["readings"]):
            yield Figure(
                draw=partial(plot_shift, drawn, outputs=name == OUTPUTS),
                label=f"The {name} of {len(drawn['readings'])} batches in order, as in the table.",
                caption=f"{caption}. Diamonds raised the alarm ({document['rule'] or 'no'} rule).",
                name=key.replace("_", "-"),
            )


def _readings(readings: Sequence[Document]) -> Table:
    left, alarm = max(0, len(readings) - LISTED), texts.Span(texts.bold("alarm"), "minus")
    names = {key: name_and_direction(key)[0] for key in readings[-1]["baselines"]}
    rows = []
    for each in readings[left:]:
        row = {"batch": each["index"] + 1, "time (UTC)": _moment(each), "origin": str(each["domain"])}
        row |= {"images": each["n"], "unreadable": len(each["skipped"]) or None, "shift": each["shift"]}
        row |= {"p": each["p_value"], "outputs": each["output_shift"], "p (outputs)": each["output_p_value"]}
        row |= {"e-value": each["e_value"], "alarm": {None: "", False: "no", True: alarm}[each["alarm"]]}
        rows.append(row | {name: each["baselines"].get(key) for key, name in names.items()})
    return rows_table(
        rows,
        f"The readings{f', without the first {left}' if left else ''}. Outputs: largest distance of the "
        "distribution of a class's probability from that on known images. p: conformal p-values against the "
        "known batches. e-value: evidence that batches are no longer exchangeable with the known ones. "
        "On the right, label-free baselines, which fall as the model becomes less confident, and RankMe of "
        "the features.",
    )


def verdict(document: Document) -> str:
    """What the readings say, in a sentence or two."""
    readings = document["readings"]
    alarms = [each for each in readings if each["alarm"]]
    shift = f"The last batch has a circuit shift of {number(readings[-1]['shift'], 3)}"
    if known := (document["calibration"] or {}).get("shifts"):
        ends = f"{number(min(known), 3)} to {number(max(known), 3)}"
        shift += f"; {len(known)} batches in distribution have {ends}"
    if document["rule"] is None:
        return f"{shift}. No alarm is set."
    batches = plural(len(readings), "batch")
    if not alarms:
        return f"No alarm in {batches}. {shift}."
    first = f"batch {alarms[0]['index'] + 1} by its {alarms[0]['decided_by']}, {_moment(alarms[0])} UTC"
    return f"{number(len(alarms))} of {batches} raised the alarm, the first: {first}. {shift}."


def caveats(document: Document) -> Iterator[str]:
    """What a reader must know before acting on the page."""
    readings, threshold = document["readings"], document["threshold"] or {}
    record = document["reference"]
    n_reference = record.get("batch") or (record.get("task") or {}).get("n")  # noise is that of a batch
    sizes = sorted({each["n"] for each in readings})
    if document["calibration"] is None and n_reference is not None and sizes not in ([], [n_reference]):
        text = f"The reference circuit rests on batches of {n_reference} images, the readings on "
        yield f"{text}{', '.join(map(str, sizes))}: smaller batches have larger shifts by sampling alone."
    reached, target = threshold.get("performance"), threshold.get("target")
    if reached is not None and target is not None and abs(reached - target) > FAR:
        text = f"The threshold is that of {threshold['domain']}, performance {rounded(reached)}"
        yield f"{text}: no calibration domain is closer to the target of {rounded(target)}."
    if one := [each for each in readings if each["top_share"] > ONE_CLASS]:
        last = f"the last batch {one[-1]['index'] + 1} ({texts.percent(one[-1]['top_share'])})"
        most = f"more than {texts.percent(ONE_CLASS)} of the images of {plural(len(one), 'batch')}"
        yield f"The model gives one class to {most}, {last}."
    ranks = [each["baselines"].get("rankme", COLLAPSED) for each in readings if each["n"] >= ENOUGH]
    if n := sum(rank < COLLAPSED for rank in ranks):
        yield f"Features have collapsed (RankMe below 2) in {plural(n, 'batch')}."
    for name in ("ATC", "DoC"):
        if n := sum(each["baselines"].get(name.lower()) in (0, 1) for each in readings):
            yield f"{name} of {plural(n, 'batch')} is 0 or 1, which is not an estimate."
    if n := sum(len(each["skipped"]) for each in readings) + len(document["skipped"]):
        yield f"{plural(n, 'unreadable image file')} {'was' if n == 1 else 'were'} left out."


def alarm_reasons(document: Document) -> list[str]:
    """Why the alarm is on or was last: statistic and limit; what it may mean; what to do.

    Returns:
        Three sentences or so; nothing where no alarm was raised.
    """
    last = next((each for each in reversed(document["readings"]) if each["alarm"]), None)
    if last is None:
        return []
    what = f"The {last['decided_by']} of batch {last['index'] + 1} is {number(last['value'], 3)}"
    return [
        f"{what}; the limit of the {document['rule']} rule is {number(last['limit'], 3)}.",
        "The images may come from another source, may have changed (camera, light, processing), or batches "
        "may mix classes or days otherwise than the known ones. Predictions need not be wrong.",
        "What to do: look at the images of these batches and at the layers that changed, and label some tens "
        "of images to compare the accuracy. If such images are to stay, calibrate a new monitor on them.",
    ]


def _moment(reading: Document) -> str:
    """When a batch was observed, to the second."""
    return str(reading["time"])[:19].replace("T", " ")


# ------------------------------------------------------------------------- an evaluation over domains


def evaluation_page(document: Document) -> Page:
    """Everything that is shown of an evaluation: what would have told how well the model does on a domain.

    Args:
        document: What `DomainEvaluation.to_dict` gave.
    """
    measure, distance = document["settings"]["measure"], document["distance"]
    caption = f"{distance} shift against {measure}; calibration domains are corrupted known images."
    figure = Figure(draw=partial(plot_domains, document), label=caption, caption=caption, name="domains")
    parts: dict[str, list[Block]] = {"Shift and performance": [figure, _domains(document)]}
    if _defined(document):
        parts["What goes with performance"] = [_metrics(document)]
    return _page(
        document,
        parts,
        kind="evaluation over domains",
        title=f"{document['model'].get('id', 'A model')} on {plural(len(document['test']), 'test domain')}",
        verdict=evaluation_verdict(document),
        caveats=list(_doubts(document)),
        lede="Performance is known on every domain. The page shows which number that needs no labels goes "
        "with it. The shift is the distance of the circuit on a domain from that on images in distribution.",
    )


def _defined(document: Document) -> list[Document]:
    """Correlations with performance that are defined, the best metric first."""
    rows = ({"key": key, **row} for key, row in document["correlations"].items())
    return sorted((row for row in rows if row["agreement"] is not None), key=lambda row: -row["agreement"])


def evaluation_verdict(document: Document) -> str:
    """The range of performance, and what goes with it best."""
    rates = [each["performance"] for each in document["test"]]
    own, measure, leading = document["own"], document["settings"]["measure"], document["distance"]
    inside = f"; in distribution it is {rounded(own['performance'])}" if own else ""
    text = f"Over {plural(len(rates), 'test domain')}, {measure} is {rounded(min(rates))} to "
    text += f"{rounded(max(rates))}{inside}."
    if not (ordered := _defined(document)):
        return f"{text} Correlations with {measure} are undefined for fewer than three domains."
    if (best := ordered[0]["agreement"]) <= 0:
        return f"{text} No metric goes with {measure} in the direction that it states."
    names = [row["name"] for row in ordered if row["agreement"] > best - 1e-9]
    goes = f"Best rank correlation with {measure}: {number(best, 2)} in size, by"
    if best > 1 - 1e-9:
        goes = f"The exact order of {measure} (by chance: 1 in {math.factorial(len(rates)):,}) is that of"
    text += f" {goes} {texts.listed(names)}"
    return f"{text}; {leading} shift: {number(document['correlations'][leading]['srcc'], 2)}."


def _doubts(document: Document) -> Iterator[str]:
    test = document["test"]
    if document["sources"].get("parts", 1) > 1:
        yield "Test domains are parts of domains, which differ by sampling alone and are not independent."
    if len(test) > 2:
        yield chance_note(len(test), "domains")
    sizes = {each["n"] for each in test}
    if len(sizes) > 1:
        yield f"Circuits rest on {min(sizes)} to {max(sizes)} images: fewer images alone make a larger shift."
    if left_out := [f"{each['domain']} ({each['n']})" for each in document["left_out"]]:
        yield f"{plural(len(left_out), 'domain')} with too few images left out: {', '.join(left_out)}."


def _domains(document: Document) -> Table:
    frame: Any = DomainEvaluation.from_dict(dict(document)).to_frame()
    names = {"use": "used for", "n_labelled": "labelled", "n": "of circuit"}
    names |= {"performance": document["settings"]["measure"]}
    names |= {key: name_and_direction(key)[0] for key in document["metrics"]}
    others = [key for key in document["test"][0]["shifts"] if key != document["distance"]]
    return rows_table(
        frame.drop(columns=others).rename(columns=names).to_dict("records"),
        "Every domain: images that performance rests on, and images of the circuit, which all other "
        "numbers rest on. The file of the evaluation has all six distances.",
    )


def _metrics(document: Document) -> Table:
    f1, rows = document["alarm_f1"] or {}, []
    for row in _defined(document):
        shown = {"metric": row["name"], "R2": row["r2"], "SRCC": row["srcc"], "KRCC": row["krcc"]}
        rows.append(shown | {"SRCC, calibration": row["known_srcc"], "F1 of an alarm": f1.get(row["key"])})
    always = f" An alarm that is always on: {number(f1['always'], 3)}." if f1 else ""
    return rows_table(
        rows,
        f"Correlations with {document['settings']['measure']} over the test domains: R2 (squared Pearson), "
        "Spearman, Kendall's tau-b; Spearman over the calibration domains. Shifts are expected to be "
        "negative, baselines positive. F1 of an alarm that is calibrated on the calibration domains: mean "
        f"over the thresholds at which it is due on some test domains, not on all.{always}",
    )


# ------------------------------------------------------------------------------------------- pictures


def plot_monitor(monitor: "Monitor", ax: "Axes | None" = None) -> "Axes":
    """Draw the shift of every batch that a monitor observed.

    Raises:
        InputError: Before the first batch.
    """
    if not monitor.readings:
        raise InputError("this monitor has no reading yet; call `observe` with a batch")
    return plot_shift(monitor.to_dict(), ax)


def plot_shift(document: Document, ax: "Axes | None" = None, *, outputs: bool = False) -> "Axes":
    """Draw the shift of every batch, of the circuit or the outputs; known batches are left of the first."""
    ax = axes_of(ax, 8.6, 2.9 if outputs else 3.9)
    readings, kind = document["readings"], "output_shift" if outputs else "shift"
    x = np.array([each["index"] + 1 for each in readings])
    y = np.array([each[kind] for each in readings], dtype=float)
    alarm = np.array([bool(each["alarm"]) for each in readings])
    known = (document["calibration"] or {}).get(f"{kind}s") or ()
    room = max(1.0, 0.05 * len(x)) if len(known) else 0.0
    places = x[0] - 1 - room + 0.3 * room * np.resize([-1.0, 0.0, 1.0], len(known))
    ax.plot(places, known, "o", color=MUTED, markersize=3, alpha=0.7, linewidth=0, label="known batches")
    threshold = None if outputs else (document["threshold"] or {}).get("value")
    limit = document["limits"].get(OUTPUTS if outputs else CIRCUIT)
    for value, name, dash in ((threshold, "threshold", "solid"), (limit, "conformal limit", DASHED)):
        if value is not None:
            ax.axhline(value, color=INK, linewidth=0.9, linestyle=dash, zorder=1, label=name)
    ax.plot(x, y, color=SUPPORTS, linewidth=1.2, zorder=2)
    ax.plot(x[~alarm], y[~alarm], "o", color=SUPPORTS, markersize=4.5, zorder=3)
    ax.plot(x[alarm], y[alarm], "D", color=OPPOSES, markersize=5.5, zorder=4, label="alarm")
    ylabel = "shift of the outputs" if outputs else f"circuit shift ({document['distance']['key']})"
    ax.set(xlim=(x[0] - 0.7 - 2 * room, x[-1] + 0.7), ylim=(0, None), xlabel="batch", ylabel=ylabel)
    ax.set_xticks(x[:: -(-len(x) // 10)])  # none among the known batches
    ax.legend(loc="best", frameon=False, fontsize=8.5, labelcolor=MUTED)
    return ax


def plot_domains(document: Document, ax: "Axes | None" = None) -> "Axes":
    """Draw shift against performance over the domains of a `DomainEvaluation`."""
    ax = axes_of(ax, 5.4, 4.0)
    drawn: dict[str, Any] = {"color": SUPPORTS, "markerfacecolor": PAPER, "marker": "o"}
    for kind, name in (("known", "calibration"), ("test", "test")):
        x = [each["performance"] for each in document[kind]]
        y = [each["shifts"][document["distance"]] for each in document[kind]]
        if x:
            ax.plot(x, y, markersize=5, linewidth=0, label=f"{len(x)} {name} domains", **drawn)
        drawn = {"color": OPPOSES, "marker": "D"}
    ax.set(xlabel=document["settings"]["measure"], ylabel=f"circuit shift ({document['distance']})")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8.5, labelcolor=MUTED)
    return ax


for _noun, _again, _make in (
    ("monitor", "`assay monitor`", monitor_page),
    ("domain-evaluation", "`assay monitor evaluate`", evaluation_page),
):
    PAGES.add(_noun, PageForm(noun=_noun, schema=f"assay-{_noun}/1", again=_again, make=_make))

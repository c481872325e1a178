"""Pages and pictures of a monitor and of an evaluation over domains, from their documents alone."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.generalization.alarms import CIRCUIT, OUTPUTS
from assay.analyses.generalization.dependency import layer_names
from assay.analyses.generalization.domains import READ
from assay.analyses.generalization.metrics import METRICS, reading_direction
from assay.analyses.generalization.ranking_page import layer_matrix
from assay.core.errors import InputError
from assay.page import text as texts
from assay.page.blocks import PAGES, Block, Column, Figure, Page, PageForm, Section, Table, folded_record
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, SUPPORTS, axes_of, clipped, plot_matrix
from assay.page.text import number, plural, rounded


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.analyses.generalization.monitor import Monitor

Document = Mapping[str, Any]
NAMES = {metric.name.lower(): metric.name for metric in METRICS.values()}
NAMES["always"] = "an alarm that is always on"
READINGS = {METRICS[key].name.lower(): METRICS[key] for key in READ}
LISTED, DRAWN = 500, 2_000  # readings of the table, and of the pictures; the file beside the page has all
ONE_CLASS = 0.9  # share of the images in one class from which a model says little
DASHED = (0, (4, 2))
FAR = 0.05  # distance of a threshold's performance from its target that is worth a caveat


def _table(rows: Sequence[Mapping[str, Any]], caption: str) -> Table:
    """A column per key: numbers flush right with three digits, nothing where there is none."""
    numeric = {key for row in rows for key, value in row.items() if isinstance(value, int | float)}
    texts_of = [
        [number(value, 3) if isinstance(value, int | float) else value or "" for value in row.values()]
        for row in rows
    ]
    heads = [Column(name=key, numeric=key in numeric, sort=True) for key in rows[0]]
    return Table(columns=heads, rows=texts_of, caption=caption, tall=True)


# ----------------------------------------------------------------------------------------- a monitor


def monitor_page(document: Document) -> Page:
    """Everything that is shown of a monitor.

    Args:
        document: What `Monitor.to_dict` gave.

    Raises:
        InputError: For a monitor without a reading.
    """
    readings, reference = document["readings"], document["reference"].get("task") or {}
    if not readings:
        raise InputError("the monitor has no reading yet; observe a batch first")
    distance, threshold = document["distance"], document["threshold"]
    parts: dict[str, list[Block]] = {"Shift over time": [*_shifts(document), _readings(readings)]}
    worst = max(readings, key=lambda each: each["shift"])
    if worst["layers"]:
        matrix = layer_matrix(worst["layers"], layer_names(document["graph"]["n_layers"]))
        caption = (
            f"Batch {worst['index'] + 1}, with the largest shift: mean change of the ranks of the edges "
            "between two layers, as a share of all edges. Blue: gained weight; orange: lost it."
        )
        figure = Figure(
            draw=partial(plot_matrix, matrix), label="Ranks of edges", caption=caption, name="map"
        )
        parts["Where in the network"] = [figure]
    return Page(
        kind="monitor",
        title=f"Circuit shift of {document['model'].get('id', 'a model')} on "
        f"{plural(len(readings), 'batch')} of images",
        verdict=verdict(document),
        remark=document["guarantee"],
        reasons=alarm_reasons(document),
        caveats=list(caveats(document)),
        lede=f"The shift is the distance ({distance['key']}: {distance['summary']}) between the circuit on "
        f"a batch and the circuit on {reference.get('n', 'known')} images in distribution. "
        "Sampling alone makes it positive, more so for smaller batches. A shift means that the "
        "model works differently, not that it works worse: on new domains of a study of photographs and "
        "drawings (PACS), the shift did not order accuracy.",
        sections=[Section(title=title, blocks=blocks) for title, blocks in parts.items()],
        facts=[
            ("model", texts.model_text(document["model"])),
            ("reference", f"{reference.get('n')} images of {reference.get('domain')}"),
            ("threshold", _threshold(threshold) if threshold else "none"),
            ("monitor", texts.code(document["id"])),
        ],
        records=[folded_record("The record of the reference circuit", document["reference"])],
        style="monitor",
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
    shown = {key: each for key, each in READINGS.items() if any(key in one["baselines"] for one in readings)}
    left, alarm = max(0, len(readings) - LISTED), texts.Span(texts.bold("alarm"), "minus")
    rows = [
        {
            "batch": each["index"] + 1,
            "time (UTC)": _moment(each),
            "origin": str(each["domain"]),
            "images": each["n"],
            "unreadable": len(each["skipped"]) or None,
            "shift": each["shift"],
            "p": each["p_value"],
            "outputs": each["output_shift"],
            "p (outputs)": each["output_p_value"],
            "e-value": each["e_value"],
            "alarm": {None: "", False: "no", True: alarm}[each["alarm"]],
            **{metric.name: each["baselines"].get(key) for key, metric in shown.items()},
        }
        for each in readings[left:]
    ]
    return _table(
        rows,
        f"The readings{f', without the first {left}' if left else ''}. Outputs: largest distance of "
        "the distribution of a class's probability from that on known images. p: conformal p-values against "
        "the known batches. e-value: evidence that batches are no longer exchangeable with the known ones. "
        "On the right, label-free baselines; they fall as the model becomes less confident.",
    )


def verdict(document: Document) -> str:
    """What the readings say, in a sentence or two."""
    readings = document["readings"]
    alarms = [each for each in readings if each["alarm"]]
    shift = f"The last batch has a shift of {number(readings[-1]['shift'], 3)}"
    if known := (document["calibration"] or {}).get("shifts"):
        ends = f"{number(min(known), 3)} to {number(max(known), 3)}"
        shift += f"; {len(known)} batches in distribution have {ends}"
    if document["rule"] is None:
        return f"{shift}. No alarm is set."
    batches = plural(len(readings), "batch")
    if not alarms:
        return f"No alarm in {batches}. {shift}."
    first = f"the first at batch {alarms[0]['index'] + 1}, {_moment(alarms[0])} UTC"
    return f"{number(len(alarms))} of {batches} raised the alarm, {first}. {shift}."


def caveats(document: Document) -> Iterator[str]:
    """What a reader must know before acting on the page."""
    readings, threshold = document["readings"], document["threshold"] or {}
    record = document["reference"]
    n_reference = record.get("batch") or (record.get("task") or {}).get("n")  # noise is that of a batch
    sizes = sorted({each["n"] for each in readings})
    if document["calibration"] is None and n_reference is not None and sizes != [n_reference]:
        yield (
            f"The reference circuit rests on batches of {n_reference} images, the readings on "
            f"{', '.join(map(str, sizes))}. Smaller batches have larger shifts by sampling alone, so "
            "thresholds from another batch size do not apply."
        )
    reached, target = threshold.get("performance"), threshold.get("target")
    if reached is not None and target is not None and abs(reached - target) > FAR:
        yield (
            f"The threshold corresponds to a performance of {rounded(reached)}, that of {threshold['domain']}"
            f": no other calibration domain is closer to the target of {rounded(target)}."
        )
    if one := [each for each in readings if each["top_share"] > ONE_CLASS]:
        last = f"the last batch {one[-1]['index'] + 1} ({texts.percent(one[-1]['top_share'])})"
        most = f"more than {texts.percent(ONE_CLASS)} of the images of {plural(len(one), 'batch')}"
        yield f"The model gives one class to {most}, {last}."
    for key in ("atc", "doc"):
        if n := sum(each["baselines"].get(key) in (0, 1) for each in readings):
            name = READINGS[key].name
            yield f"{name} of {plural(n, 'batch')} is 0 or 1: this estimate of accuracy is degenerate."
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
    if document["rule"] == "threshold":
        reason = f"{what}, above the threshold of {_threshold(document['threshold'])}."
    elif document["rule"] == "conformal":
        p_value = last["output_p_value" if last["decided_by"] == OUTPUTS else "p_value"]
        reason = (
            f"{what}, above the limit of {number(last['limit'], 3)} that "
            f"{len(document['calibration']['shifts'])} known batches set (p = {number(p_value, 3)}; the "
            f"alarm is raised at {document['alpha'] / len(document['limits']):g} or less)."
        )
    else:
        reason = f"{what}: the evidence has reached {last['limit']:g}, and the sequential rule stays on."
    return [
        reason,
        "It may mean that the images come from another source, that they have changed (camera, light, "
        "processing), or that batches mix classes or days otherwise than the known ones. It does not by "
        "itself mean that predictions are wrong.",
        "What to do: look at the images of these batches and at the layers that changed, and label some tens "
        "of images to compare the accuracy. If such images are to stay, calibrate a new monitor on them.",
    ]


def _threshold(threshold: Document) -> str:
    """A threshold, and what it was read off."""
    value = number(threshold["value"], 3)
    if not threshold["domain"]:
        return value
    isotonic = threshold["method"] == "isotonic"
    where = "interpolated between corrupted domains" if isotonic else f"read off {threshold['domain']}"
    return f"{value}, {where}, where performance is {rounded(threshold['performance'])}"


def _moment(reading: Document) -> str:
    """When a batch was observed, to the second."""
    return str(reading["time"])[:19].replace("T", " ")


# ------------------------------------------------------------------------- an evaluation over domains


def evaluation_page(document: Document) -> Page:
    """Everything that is shown of an evaluation: what would have told how well the model does on a domain.

    Args:
        document: What `DomainEvaluation.to_dict` gave.
    """
    reference, measure = document["reference"], document["settings"]["measure"]
    task = reference.get("task") or {}
    figure = Figure(
        draw=partial(plot_domains, document),
        label="Shift against performance of the domains; the numbers are in the table.",
        caption=f"{document['distance']} shift against {measure}. Calibration domains are corrupted copies "
        "of images in distribution.",
        name="domains",
    )
    parts: dict[str, list[Block]] = {"Shift and performance": [figure, _domains(document)]}
    if by_agreement(document):
        parts["What goes with performance"] = [_metrics(document)]
    return Page(
        kind="evaluation over domains",
        title=f"{document['model'].get('id', 'A model')} on {plural(len(document['test']), 'test domain')}",
        verdict=evaluation_verdict(document),
        caveats=list(_doubts(document)),
        lede="Every domain has labels, so performance is known there. The page shows which number that needs "
        "no labels goes with it. The shift is the distance of the circuit on a domain from the circuit on "
        "images in distribution; sampling alone makes it positive.",
        sections=[Section(title=title, blocks=blocks) for title, blocks in parts.items()],
        facts=[
            ("model", texts.model_text(document["model"])),
            ("reference", f"{task.get('n')} images of {task.get('name')} {task.get('domain', '')}".rstrip()),
            ("evaluation", texts.code(document["id"])),
        ],
        records=[folded_record("The record of the reference circuit", reference)],
    )


def evaluation_verdict(document: Document) -> str:
    """The range of performance, and what goes with it best."""
    rates = [each["performance"] for each in document["test"]]
    own, measure, leading = document["own"], document["settings"]["measure"], document["distance"]
    text = f"Over {plural(len(rates), 'test domain')}, {measure} is {rounded(min(rates))} to "
    inside = f"; in distribution it is {rounded(own['performance'])}" if own else ""
    text += f"{rounded(max(rates))}{inside}."
    ordered = by_agreement(document)
    if not ordered:
        return f"{text} Correlations with {measure} are undefined for fewer than three domains."
    best = agreement(ordered[0], document)
    if best <= 0:
        return f"{text} No metric goes with {measure} in the direction that it states."
    equal = [key for key in ordered if agreement(key, document) > best - 1e-9]
    names = texts.listed([metric_name(key, document) for key in equal])
    text += f" {names[:1].upper()}{names[1:]} {'go' if len(equal) > 1 else 'goes'} with {measure} best"
    text += f" (rank correlation of size {number(best, 2)})"
    if leading in ordered and leading not in equal:
        text += f"; the {leading} shift has {number(document['correlations'][leading]['srcc'], 2)}"
    return f"{text}."


def _doubts(document: Document) -> Iterator[str]:
    test, groups = document["test"], {each["group"] for each in document["test"]}
    if len(groups) < len(test):
        parts = f"The test domains are parts of {plural(len(groups), 'domain')}"
        yield f"{parts}: parts of one domain differ by sampling alone and are not independent."
    if len(groups) < 5:
        yield f"{plural(len(groups), 'domain')} are too few for an interval of a correlation."
    sizes = {each["n"] for each in test}
    if len(sizes) > 1:
        yield f"Circuits rest on {min(sizes)} to {max(sizes)} images: fewer images alone make a larger shift."
    if left_out := [f"{each['domain']} ({each['n']})" for each in document["left_out"]]:
        yield f"{plural(len(left_out), 'domain')} with too few images left out: {', '.join(left_out)}."
    absent = [each["absent"] for each in (*test, *document["known"]) if each.get("absent")]
    for key, reason in (absent[0] if absent else {}).items():
        yield f"{NAMES.get(key, key)} is undefined on some domain: {reason}"


def _domains(document: Document) -> Table:
    key = document["distance"]
    uses = {"in distribution": [document["own"]] if document["own"] else []}
    uses |= {"test": document["test"], "calibration": document["known"]}
    rows = [
        {
            "domain": each["domain"] or use,
            "used for": use,
            "labelled": each["n_labelled"],
            "of circuit": each["n"],
            "accuracy": each["accuracy"],
            "macro-F1": each["macro_f1"],
            f"shift ({key})": each["shifts"][key],
            **{NAMES[name]: each["baselines"].get(name) for name in document["metrics"] if name in NAMES},
        }
        for use, domains in uses.items()
        for each in domains
    ]
    return _table(
        rows,
        "Every domain: images that performance rests on, and images of the circuit, which all other "
        "numbers rest on. The file of the evaluation has all six distances.",
    )


def _metrics(document: Document) -> Table:
    curves = document["curves"] or {}
    rows = []
    for key in [*by_agreement(document), *({"always"} & curves.keys())]:
        found = document["correlations"].get(key, {})
        row: dict[str, Any] = {"metric": metric_name(key, document)}
        row |= {name: found.get(name.lower()) for name in ("R2", "SRCC", "KRCC")}
        row["95 % of SRCC"] = texts.interval(found.get("low"), found.get("high"), 2)
        row["SRCC, calibration"] = found.get("known_srcc")
        row["F1 of an alarm"] = curves[key]["summary"] if key in curves else None
        rows.append(row)
    return _table(
        rows,
        f"Correlations with {document['settings']['measure']} over the test domains: R2 (squared Pearson), "
        "Spearman with 95 % over resampled domains, Kendall's tau-b; Spearman over the calibration domains. "
        "Shifts are expected to be negative, baselines positive. F1 of an alarm that is calibrated on the "
        "calibration domains: mean over the thresholds at which it is due on some test domains, not on all.",
    )


def metric_name(key: str, document: Document) -> str:
    """What a page calls a metric."""
    return f"shift ({key})" if key in document["test"][0]["shifts"] else NAMES.get(key, key)


def agreement(key: str, document: Document) -> float:
    """Rank correlation with performance, positive where it has the sign that the metric states."""
    found = document["correlations"][key]["srcc"]
    direction = -1 if key in document["test"][0]["shifts"] else reading_direction(key)
    return float(direction * found if direction else abs(found))


def by_agreement(document: Document) -> list[str]:
    """Metrics whose correlation with performance is defined, the best first."""
    keys = [key for key, row in document["correlations"].items() if row["srcc"] is not None]
    return sorted(keys, key=lambda key: -agreement(key, document))


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
    from matplotlib.ticker import MaxNLocator

    ax = axes_of(ax, 8.6, 2.9 if outputs else 3.9)
    readings, kind = document["readings"], "output_shift" if outputs else "shift"
    x = np.array([each["index"] + 1 for each in readings])
    y = np.array([each[kind] for each in readings], dtype=float)
    alarm = np.array([bool(each["alarm"]) for each in readings])
    start, room = x[0] - 1, max(1.0, 0.05 * len(x))
    known = (document["calibration"] or {}).get(f"{kind}s") or ()
    written: dict[str, Any] = {"color": MUTED, "fontsize": 8.5, "annotation_clip": False}
    written["textcoords"] = "offset points"
    if len(known):
        places = start - room + 0.3 * room * np.resize([-1.0, 0.0, 1.0], len(known))
        ax.plot(places, known, "o", color=MUTED, markersize=3, alpha=0.7, linewidth=0)
        below = ("data", "axes fraction")
        ax.annotate("known", (start - room, 0), (0, -12), below, ha="center", va="top", **written)
    threshold = None if outputs else (document["threshold"] or {}).get("value")
    limit = document["limits"].get("output shift" if outputs else "circuit shift")
    lines = (threshold, "threshold", "solid", "bottom"), (limit, "conformal limit", DASHED, "top")
    for value, name, dash, align in lines:
        if value is not None:
            ax.axhline(value, color=INK, linewidth=0.9, linestyle=dash, zorder=1)
            ax.annotate(name, (1, value), (4, 0), ("axes fraction", "data"), va=align, **written)
    ax.plot(x, y, color=SUPPORTS, linewidth=1.2, zorder=2)
    ax.plot(x[~alarm], y[~alarm], "o", color=SUPPORTS, markersize=4.5, zorder=3)
    ax.plot(x[alarm], y[alarm], "D", color=OPPOSES, markersize=5.5, zorder=4)
    runs = groupby(readings, key=lambda each: clipped(str(each["domain"]), 24))
    firsts = [(name, next(group)["index"] + 1) for name, group in runs]
    for name, batch in firsts if len(firsts) <= 12 else ():  # as many as fit above the axes
        ax.annotate(name, (batch - 0.4, 1), (0, 3), ("data", "axes fraction"), **written)
    ax.set_xlim(start - 2 * room if len(known) else start + 0.3, start + len(x) + 0.7)
    ticks = MaxNLocator(integer=True).tick_values(x[0], x[-1])
    ax.set_xticks(ticks[(ticks >= x[0]) & (ticks <= x[-1])])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("batch")
    ax.set_ylabel("shift of the outputs" if outputs else f"circuit shift ({document['distance']['key']})")
    return ax


def plot_domains(document: Document, ax: "Axes | None" = None) -> "Axes":
    """Draw shift against performance over the domains of a `DomainEvaluation`."""
    ax = axes_of(ax, 5.4, 4.0)
    for kind, name, colour, face, marker in (
        ("known", "calibration", SUPPORTS, PAPER, "o"),
        ("test", "test", OPPOSES, OPPOSES, "D"),
    ):
        x = [each["performance"] for each in document[kind]]
        y = [each["shifts"][document["distance"]] for each in document[kind]]
        if x:
            label = f"{len(x)} {name} domains"
            ax.plot(x, y, marker, color=colour, markerfacecolor=face, markersize=5, linewidth=0, label=label)
    ax.set_xlabel(document["settings"]["measure"])
    ax.set_ylabel(f"circuit shift ({document['distance']})")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8.5, labelcolor=MUTED)
    return ax


for _noun, _again, _make in (
    ("monitor", "`assay monitor`", monitor_page),
    ("domain-evaluation", "`assay monitor evaluate`", evaluation_page),
):
    PAGES.add(_noun, PageForm(noun=_noun, schema=f"assay-{_noun}/1", again=_again, make=_make))

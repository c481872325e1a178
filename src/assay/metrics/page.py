"""Measurements as a page, the table of them that other pages show, and the pictures of a curve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import InputError
from assay.core.measurement import FEW_PROMPTS, FEWEST_PROMPTS, SAME_PROMPTS, Measurement
from assay.core.record import Record
from assay.page import text as words
from assay.page.blocks import Cell, Column, Figure, Note, Page, Row, Section, Table, folded_record
from assay.page.draw import INK, MUTED, RULE, SUPPORTS, axes_of
from assay.page.text import NARROW, Span, Text, code


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.metrics.curve import FaithfulnessCurve


NOTABLE = 0.02  # overshoot above which a page speaks of it
RECORD = {"id", "name", "hash", "value", "n", "unit", "direction", "statistic", "provenance"}
Document = Mapping[str, Any]

LEGEND = (
    "Limits are those of the published rules. A verdict is given only if the whole interval agrees. Random: "
    "mean of random circuits of equal size."
)

DIRECTIONS = {
    "higher": "higher is better",
    "lower": "lower is better",
    "target": "closer to 1 is better",
    "report": "no verdict",
}

REASONS = {
    "zero_denominator": "undefined: the model has no margin on this task",
    "no_valid_prompt": "undefined: none of the prompts gave finite logits",
    "all_tied": "undefined: all values are equal",
    FEW_PROMPTS: "undefined: every example equals its counterpart, so nothing is ablated",
}


# Why there is no verdict on a number, by the reason of the verdict.
OPEN = {
    SAME_PROMPTS: "found on these examples",
    FEW_PROMPTS: f"fewer than {FEWEST_PROMPTS} different examples",
}


def is_measurement(document: object) -> bool:
    """Whether a document is the record of one measurement (`Measurement.to_dict`)."""
    return isinstance(document, Mapping) and "schema" not in document and document.keys() >= RECORD


def reason(measurement: Document) -> str:
    """A sentence on why a value is undefined."""
    key = str(measurement.get("reason") or "undefined")
    return REASONS.get(key, key if key.startswith("undefined") else f"undefined: {key.replace('_', ' ')}")


def measurements_page(records: Sequence[Document]) -> Page:
    """A table of measurements.

    Args:
        records: What `Measurement.to_dict` gave.
    """
    tasks, models = (
        sorted({_named(each, *path) for each in records} - {""})
        for path in (("task", "name"), ("model", "id"))
    )
    rows: list[Row] = []
    for record in records:
        place = f" on {_named(record, 'task', 'name')}" if len(tasks) > 1 else ""
        rows += measurement_rows([{**record, "name": record["name"] + place}])
    title = f"Measurement: {records[0]['name']}".replace("-", " ") if len(records) == 1 else "Measurements"
    title += "".join(
        f" {word} {' and '.join(names)}" for word, names in (("on", tasks), ("in", models)) if names
    )
    ablations = ", ".join(sorted({_named(each, "ablation") for each in records} - {""}))
    outside = (
        f"What is outside the circuit is ablated ({ablations}); another ablation may give another value."
    )
    remarks = dict.fromkeys(note for each in records for note in each.get("notes", ()))
    kept = [
        folded_record((str(each["name"]), " ", code(str(each["hash"]))), each["provenance"])
        for each in records
    ]
    blocks: list[Any] = [
        Figure(blocks=[measurement_table(rows)], caption=LEGEND, kind=""),
        *([Note(text=outside, style="quiet")] if ablations else []),
        *_norms(records),
        *(Note(text=f"{text}.") for text in remarks),
    ]
    return Page(kind="measurements", title=title, sections=[Section(title="", blocks=blocks)], records=kept)


def _norms(records: Sequence[Document]) -> Iterator[Note]:
    """What norms behind branches change, where they were not treated as `exact`."""
    others = {
        str(each["name"]): value
        for each in records
        if (value := each.get("details", {}).get("exact_norms")) is not None
    }
    if others:
        values = ", ".join(f"{name} {words.number(value)}" for name, value in others.items())
        treatment = _named(records[0], "model", "post_norm")
        yield Note(text=f"Norms behind branches: {treatment}. With exact ones: {values}.", style="quiet")


def _named(record: Document, *path: str) -> str:
    value: Any = record.get("provenance")
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return str(value or "")


def measurement_table(rows: Sequence[Row]) -> Table:
    """The rows of `measurement_rows` under their headings."""
    return Table(
        columns=[
            Column(name="measurement", sort=True),
            Column(name="value", numeric=True, sort=True),
            Column(name=f"95{NARROW}% interval"),
            Column(name="limit"),
            Column(name="random", numeric=True, sort=True),
            Column(name="n", numeric=True, sort=True),
            Column(name="verdict", sort=True),
        ],
        rows=rows,
        style="measurements",
    )


def limit(measurement: Document) -> str:
    """Where the published rule passes, with its unit; without a rule, which way is better."""
    threshold = ((measurement.get("verdict") or {}).get("thresholds") or {}).get("pass")
    direction, unit = str(measurement.get("direction") or "report"), _unit(measurement)
    if threshold is None or direction == "report":
        return DIRECTIONS.get(direction, "")
    return f"{'at most' if direction == 'lower' else 'at least'} {threshold:g} {unit}".strip()


def _unit(measurement: Document) -> str:
    unit = str(measurement.get("unit") or "")
    return "" if unit in ("fraction", "1", "none", "ratio") else unit


def measurement_rows(records: Sequence[Document]) -> list[Row]:
    """A row for each measurement and for each of its parts."""
    return [_measurement_row(name, each) for record in records for name, each in with_parts(record)]


def with_parts(record: Document) -> Iterator[tuple[str, Document]]:
    """A measurement and its parts by their names, less a part that is the measurement itself.

    Warnings of the measurement are not repeated at its parts.
    """
    yield record["name"], record
    said = record.get("warnings") or ()
    for name, part in (record.get("parts") or {}).items():
        if part.get("statistic") is None or part["statistic"] != record.get("statistic"):
            own = [each for each in part.get("warnings") or () if each not in said]
            yield f"{record['name']}: {name}", {**part, "warnings": own}


def _measurement_row(name: str, measurement: Document) -> Row:
    interval = measurement.get("interval") or {}
    random = ((measurement.get("baseline") or {}).get("random") or {}).get("value")
    status, value, n = measurement.get("status") or "none", measurement.get("value"), measurement.get("n")
    excluded, unit = measurement.get("n_excluded", 0), _unit(measurement)
    shown, between = words.estimate(value, interval.get("low"), interval.get("high"))
    beside = "" if random is None else words.number(random)
    between = between or str(interval.get("reason") or "").replace("_", " ")
    title = (Span(name.replace("-", " "), "name"), f" ({unit})" if unit else "")
    below = Span(_meaning_and_warnings(measurement), "meaning")
    return Row(
        cells=[
            Cell(text=title, below=below, title=str(measurement["id"])),
            Cell(text=shown, value="" if value is None else value),
            Cell(text=between, style="quiet", title=str(interval.get("method") or "")),
            limit(measurement) if value is not None else Span(reason(measurement), "undefined"),
            Cell(text=beside, value="" if random is None else random, style="quiet"),
            Cell(text=words.number(n), value=n, below=f"{excluded} excluded" if excluded else ""),
            Cell(status=status, below=_decided_by(measurement)),
        ],
        style=status.replace("none", "no-verdict"),
    )


def _decided_by(measurement: Document) -> str:
    """Why there is no verdict, or the parts that keep one on several quantities from a pass, with limits."""
    status, verdict = measurement.get("status"), measurement.get("verdict") or {}
    if verdict.get("reason") in OPEN:
        return OPEN[verdict["reason"]]
    limits, parts = verdict.get("thresholds") or {}, measurement.get("parts") or {}
    open_to = {"fail": ("fail",), "moderate": ("fail", "inconclusive")}.get(str(status), ())
    return "; ".join(
        f"{name} {words.number(part['value'])}, limit {words.number(limits[name])}"
        for name, part in parts.items()
        if name in limits and part["status"] in open_to
    )


def _meaning_and_warnings(measurement: Document) -> Text:
    warnings = ", ".join(measurement.get("warnings") or ()).replace("_", " ")
    meaning = str(measurement.get("meaning") or "")
    return (meaning, " ", Span(f"{warnings.capitalize()}.", "i")) if warnings else meaning


@dataclass(frozen=True, kw_only=True)
class CurveData(Record):
    """Faithfulness against circuit size, with its interval band and random circuits of the same sizes.

    Attributes:
        n_edges: Circuit sizes, ascending.
        fractions: The same as shares of all edges, in (0, 1].
        values, low, high: Normalised faithfulness (0 empty circuit, 1 model) and its interval; NaN undefined.
        random_fractions: Sizes at which random circuits ran; empty where none did.
        random_values, random_low, random_high: Their mean and range.
        target: The faithfulness asked for, or None.
        chosen: Share of edges that the reported circuit was cut from, or None.
        chosen_value: Its faithfulness, or None.
        n: Prompts behind each value.
        n_random: Random circuits of each size.
        cpr, cmd: Area under the curve of the published sizes, and its mean distance from 1.
        overshoot: The part of both that is above a faithfulness of 1.
        level: What is kept or cut: `edge`, `node` or `neuron`.
    """

    n_edges: tuple[int, ...]
    fractions: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    random_fractions: tuple[float, ...] = ()
    random_values: tuple[float, ...] = ()
    random_low: tuple[float, ...] = ()
    random_high: tuple[float, ...] = ()
    target: float | None = None
    chosen: float | None = None
    chosen_value: float | None = None
    n: int
    n_random: int
    cpr: float
    cmd: float
    overshoot: float = 0.0
    level: str = "edge"


def overshoot_text(curve: "CurveData | FaithfulnessCurve") -> str:
    """What CPR and CMD owe to a faithfulness above 1, in two sentences; empty where that is little."""
    if not curve.overshoot > NOTABLE:
        return ""
    clipped = [words.number(each - curve.overshoot) for each in (curve.cpr, curve.cmd)]
    return (
        "Faithfulness above 1 at some sizes counts as good in CPR and as bad in CMD: this overshoot is "
        f"{words.number(curve.overshoot)}. Without it CPR is {clipped[0]} and CMD {clipped[1]}."
    )


def plot_measurement(measurement: Measurement, ax: "Axes | None" = None) -> "Axes":
    """Draw a value with its interval, its parts of the same unit below it, and the limits of its rule.

    Raises:
        InputError: If the value and all its parts are undefined.
    """
    rows = {measurement.name: measurement, **measurement.parts}
    rows = {name: part for name, part in rows.items() if part.unit == measurement.unit}
    rows = {name: part for name, part in rows.items() if math.isfinite(part.value)}
    if not rows:
        raise InputError(f"cannot plot {measurement.name}: it is undefined ({measurement.reason})")
    ax = axes_of(ax, 6.6, 0.9 + 0.34 * max(2, len(rows)))
    for limit in measurement.rule.limits if measurement.rule else ():
        ax.axvline(limit, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2.5)))
    for place, part in enumerate(rows.values()):
        interval = part.interval()
        ax.plot([interval.low, interval.high], [place] * 2, color=SUPPORTS, linewidth=2.2)
        ax.plot(part.value, place, "o", color=SUPPORTS, markersize=6)
    ax.set_yticks(range(len(rows)), [name.replace("-", " ") for name in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    unit = f", {measurement.unit}" if measurement.unit else ""
    ax.set_xlabel(f"value{unit} (n = {measurement.n}; line: 95 % interval; dotted: limits)")
    return ax


def curve_data(
    curve: "FaithfulnessCurve", random: np.ndarray | None = None, at: np.ndarray | None = None
) -> CurveData:
    """What is drawn of a curve.

    Args:
        curve: The curve.
        random: Faithfulness of random circuits, `[n_draws, n_sizes]`; default: those of the curve.
        at: Their shares of all edges.
    """
    low, high = curve.band()
    lines = {"fractions": curve.fractions, "values": curve.values, "low": low, "high": high}
    if random is None or at is None:
        random, at = curve.random, curve.fractions
    if random is not None:
        lines |= {"random_fractions": at, "random_values": random.mean(0)}
        lines |= {"random_low": random.min(0), "random_high": random.max(0)}
    numbers: dict[str, Any] = {name: tuple(each.tolist()) for name, each in lines.items()}
    numbers |= {"n": curve.points[0].n, "n_random": 0 if random is None else len(random)}
    numbers |= {name: getattr(curve, name) for name in ("cpr", "cmd", "overshoot", "level")}
    return CurveData(n_edges=tuple(curve.n_edges.tolist()), **numbers)


def plot_faithfulness(curve: "FaithfulnessCurve", ax: "Axes | None" = None) -> "Axes":
    """Draw faithfulness against size with its interval, and random circuits of the same sizes."""
    return plot_curve(curve_data(curve), ax)


def plot_curve(data: CurveData, ax: "Axes | None" = None) -> "Axes":
    """Draw the faithfulness curve on a logarithmic axis of circuit size."""
    from matplotlib.ticker import NullFormatter

    ax = axes_of(ax, 6.6, 4.0)
    ax.set_xscale("log")
    for level in (0, 1):
        ax.axhline(level, color=RULE, linewidth=0.8, zorder=0)
    x, random_x = np.array(data.fractions), np.array(data.random_fractions)
    ax.fill_between(x, data.low, data.high, color=SUPPORTS, alpha=0.16, linewidth=0)
    ax.plot(
        x, data.values, "o-", color=SUPPORTS, linewidth=1.8, markersize=3.5, label=f"strongest {data.level}s"
    )
    if len(random_x):
        ax.fill_between(random_x, data.random_low, data.random_high, color=MUTED, alpha=0.16, linewidth=0)
        ax.vlines(random_x, data.random_low, data.random_high, color=MUTED, linewidth=0.6)
        ax.plot(
            random_x,
            data.random_values,
            "s--",
            color=MUTED,
            linewidth=1.2,
            markersize=3,
            label=f"random {data.level}s",
        )
    if data.target is not None:
        dotted = (0, (1, 2.5))
        ax.axhline(data.target, color=MUTED, linewidth=0.8, linestyle=dotted, label=f"target {data.target:g}")
    if data.chosen is not None and data.chosen_value is not None:
        at = [data.chosen], [data.chosen_value]
        ax.scatter(*at, s=81, facecolors="none", edgecolors=INK, zorder=5, label="this circuit")
    total, smallest = data.n_edges[-1] / data.fractions[-1], data.fractions[0]
    ticks = [tick for tick in (1e-4, 1e-3, 1e-2, 1e-1, 1.0) if tick >= smallest * 0.99]
    ax.set_xticks(ticks, [f"{100 * tick:g} %\n{max(1, round(tick * total)):,}" for tick in ticks])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(f"{data.level}s kept (share and number)")
    ax.set_ylabel("normalised faithfulness")
    finite = [value for value in (*data.values, *data.low, *data.high, 0, 1) if math.isfinite(value)]
    ax.set_ylim(max(min(finite), -1) - 0.05, min(max(finite), 4) + 0.08)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, labelcolor=MUTED)
    return ax

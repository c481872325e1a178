"""A monitor as a page: shift over the batches, alarms and their rate, where in the network it happened."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.errors import InputError
from assay.core.record import plain
from assay.report import figures, monitor_figures, words


KIND, SCHEMA = "monitor", "assay-monitor/1"
REQUIRED = (
    "model",
    "graph",
    "reference",
    "settings",
    "distance",
    "alpha",
    "level",
    "guarantee",
    "readings",
)
LISTED = 500  # readings of the table; the file beside the page has all
DRAWN = 2_000  # readings of the pictures
# The distance first, then what needs no circuit.
CURVE_ORDER = ("ac", "atc", "ane", "doc")
NAMES = {
    "ac": "average confidence",
    "ane": "negative entropy",
    "atc": "thresholded confidence",
    "doc": "difference of confidences",
}
Document = Mapping[str, Any]


def is_monitor(document: object) -> bool:
    """Whether a document is that of a monitor."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def monitor_view(document: Document, key: str) -> dict[str, Any]:
    """Everything the template of a monitor needs.

    Args:
        document: What `Monitor.to_dict` gave; under `domains` it may hold the record of a calibration on
            domains.
        key: Identifier of the article.

    Raises:
        InputError: For another schema, a document that lacks a part, or one without a reading.
    """
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"this monitor's document has schema {document.get('schema')!r}; this version reads {SCHEMA!r}: "
            "run `assay monitor` again to make it"
        )
    missing = [name for name in REQUIRED if name not in document]
    if missing:
        raise InputError(f"the document of the monitor lacks {', '.join(missing)}; it is incomplete")
    readings = document["readings"]
    if not readings:
        raise InputError("the monitor has no reading yet; observe a batch first")
    worst = max(readings, key=lambda each: each["shift"])
    return {
        "key": key,
        "monitor": document,
        "title": f"Circuit shift of {document['model'].get('id', 'a model')} on {len(readings)} "
        f"{'batch' if len(readings) == 1 else 'batches'} of images",
        "verdict": verdict(document),
        "caveats": caveats(document),
        "pictures": _pictures({**document, "readings": readings[-DRAWN:]}, key),
        "maps": _maps(document, worst, key),
        "rows": [_row(each) for each in readings[-LISTED:]],
        "left_out": max(0, len(readings) - LISTED),
        "columns": [name for name in NAMES if any(name in each["baselines"] for each in readings)],
        "names": NAMES,
        "domains": _domains(document, key),
        "record": json.dumps(plain({**document["reference"], "settings": document["settings"]}), indent=2),
        "reference": (document["reference"].get("task") or {}),
    }


def verdict(document: Document) -> str:
    """What the readings say, in a sentence or two."""
    readings = document["readings"]
    last = readings[-1]
    raised = [each for each in readings if each["alarm"]]
    ends = words.interval(last["interval"]["low"], last["interval"]["high"], 3)
    found = f"The last batch has a shift of {words.number(last['shift'], 3)} {ends}".strip()
    known = (document.get("calibration") or {}).get("shifts")
    if known:
        found += (
            f"; {len(known)} batches in distribution have {words.number(min(known), 3)} to "
            f"{words.number(max(known), 3)}"
        )
    if document.get("rule") is None:
        return f"{found}. No alarm is set."
    if not raised:
        return f"No alarm in {len(readings)} {_plural('batch', len(readings))}. {found}."
    first = raised[0]
    stays = " and stays on" if document["rule"] == "sequential" else ""
    return (
        f"{len(raised)} of {len(readings)} {_plural('batch', len(readings))} raised the alarm; it first went "
        f"off at batch {first['index'] + 1}, {first['time'][:16].replace('T', ' ')} UTC{stays}. {found}."
    )


def caveats(document: Document) -> list[str]:
    """What a reader must know before acting on the page."""
    notes = []
    readings = document["readings"]
    if len(readings) > DRAWN:
        notes.append(
            f"The pictures show the newest {DRAWN:,} of {len(readings):,} batches; the file beside the "
            "page, or the store, has all of them."
        )
    known, calibration = (document["reference"].get("task") or {}).get("n"), document.get("calibration")
    sizes = sorted({each["n"] for each in readings})
    if calibration is None and known is not None and sizes != [known]:
        shown = ", ".join(map(str, sizes))
        notes.append(
            f"The reference circuit rests on {known} images, the batches on {shown}. Smaller batches have "
            "larger shifts by sampling alone: compare the shift with no threshold found at another size."
        )
    threshold = document.get("threshold")
    if threshold and threshold.get("performance") is not None and threshold.get("target") is not None:
        distance = abs(threshold["performance"] - threshold["target"])
        if distance > 0.05:
            notes.append(
                f"The threshold was read off {threshold['domain']}, where performance is "
                f"{words.rounded(threshold['performance'])}: no calibration domain comes nearer to the "
                f"target of {words.rounded(threshold['target'])}."
            )
    skipped = sum(len(each["skipped"]) for each in readings) + len(document.get("passed", ()))
    if skipped:
        notes.append(
            f"{skipped} image {_plural('file', skipped)} could not be read and {_are(skipped)} left out."
        )
    return notes


def _plural(word: str, n: int) -> str:
    ending = "es" if word.endswith("ch") else "s"
    return word if n == 1 else f"{word}{ending}"


def _are(n: int) -> str:
    return "was" if n == 1 else "were"


def _pictures(document: Document, key: str) -> dict[str, str | None]:
    shift = monitor_figures.shift_data(document)
    evidence = monitor_figures.evidence_data(document)
    return {
        "shift": figures.to_svg(
            monitor_figures.plot_shift(shift),
            key=f"{key}-shift",
            label=f"Circuit shift of {len(shift.index)} batches in order; the numbers are in the table.",
        ),
        "evidence": None
        if evidence is None
        else figures.to_svg(
            monitor_figures.plot_evidence(evidence),
            key=f"{key}-evidence",
            label="E-value of the sequential test over the batches; the numbers are in the table.",
        ),
    }


def _maps(document: Document, worst: Document, key: str) -> list[dict[str, Any]]:
    """Rank-shift maps of the last and the worst reading, one where they are the same."""
    last = document["readings"][-1]
    chosen = [("last", last)] if last["index"] == worst["index"] else [("last", last), ("worst", worst)]
    found = []
    for name, reading in chosen:
        data = monitor_figures.layers_data(document, reading)
        if data is None:
            continue
        found.append(
            {
                "name": name if len(chosen) == 2 else "last, and the worst",
                "batch": reading["index"] + 1,
                "picture": figures.to_svg(
                    figures.plot_matrix(data),
                    key=f"{key}-map-{name}",
                    label=f"Rank-shift map of batch {reading['index'] + 1}; the strongest cells are listed.",
                ),
                "strongest": _strongest(data),
            }
        )
    return found


def _strongest(data: figures.MatrixData, most: int = 6) -> list[dict[str, str]]:
    """Pairs of layers whose edges moved most, as rows of a table."""
    cells = [
        (float(value), data.rows[row], data.columns[column])
        for row, values in enumerate(data.values)
        for column, value in enumerate(values)
        if math.isfinite(value)
    ]
    cells.sort(key=lambda cell: -abs(cell[0]))
    return [
        {"value": words.number(value, 3), "from": source, "to": target}
        for value, source, target in cells[:most]
    ]


def _row(reading: Document) -> dict[str, Any]:
    ends = reading["interval"]
    return {
        **reading,
        "number": reading["index"] + 1,
        "when": reading["time"][:19].replace("T", " "),
        "shown": words.number(reading["shift"], 3),
        "ends": words.interval(ends["low"], ends["high"], 3),
        "p": "" if reading["p_value"] is None else words.number(reading["p_value"], 3),
        "e": "" if reading["e_value"] is None else words.number(reading["e_value"]),
        "state": {None: "", True: "alarm", False: "no"}[reading["alarm"]],
        "others": [rule for rule, raised in reading["alarms"].items() if raised and not reading["alarm"]],
    }


def _domains(document: Document, article: str) -> dict[str, Any] | None:
    """The calibration on domains: scatter, curve of alarms, rows."""
    domains = document.get("domains")
    if not domains:
        return None
    key = document["distance"]["key"]
    curves = domains.get("curves") or {}
    order = [name for name in (key, *CURVE_ORDER) if name in curves]
    data = monitor_figures.curves_data(
        {"curves": {NAMES.get(name, f"shift ({name})"): curves[name] for name in order}}
    )
    scatter = monitor_figures.domains_data(document, domains)
    return {
        "n_known": len(domains["known"]),
        "n_test": len(domains["test"]),
        "measure": domains["measure"],
        "scatter": figures.to_svg(
            monitor_figures.plot_domains(scatter),
            key=f"{article}-domains-scatter",
            label="Shift against performance of the domains; the numbers are in the table.",
        ),
        "curve": None
        if data is None
        else figures.to_svg(
            monitor_figures.plot_curves(data),
            key=f"{article}-domains-curve",
            label="F1 of the alarm against the performance threshold; the numbers are in the table.",
        ),
        "curve_names": [] if data is None else data.names,
        "curve_rows": [] if data is None else _curve_rows(data),
        "rows": [
            {
                "domain": each["domain"],
                "kind": kind,
                "n": each["n"],
                "performance": words.number(each["performance"]),
                "shift": words.number(each["shifts"][key], 3),
                "baselines": {name: words.number(value) for name, value in each["baselines"].items()},
            }
            for kind in ("known", "test")
            for each in domains[kind]
        ],
        "columns": [name for name in NAMES if any(name in each["baselines"] for each in domains["known"])],
    }


def _curve_rows(data: monitor_figures.CurvesData) -> Sequence[tuple[str, list[str]]]:
    """Every fifth threshold with the mean F1 of each metric."""
    step = max(1, len(data.deltas) // 10)
    return [
        (words.rounded(delta), [words.number(mean[place]) for mean in data.mean])
        for place, delta in enumerate(data.deltas)
        if place % step == 0
    ]

"""The batches of a monitor that open to their images, on its page."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.analyses.generalization.monitor_words import evidence, in_excess, moment, reason, statistic
from assay.page.blocks import Details, Figure, Note, Picture
from assay.page.text import bounded, cut_text, interval, number, plural
from assay.page.thumbnail import png_source


NAMED = 12  # files of a batch that are named
Document = Mapping[str, Any]


def _words(document: Document, reading: Document) -> str:
    """A batch in a line."""
    value, low, high = statistic(document, reading)
    beyond = " beyond the noise floor" if in_excess(document) else ""
    p_value, e_value = reading["p_value"], reading["e_value"]
    parts = [
        f"Batch {reading['index'] + 1}",
        f"{moment(reading)} UTC",
        str(reading["domain"]),
        plural(reading["n"], "image"),
        f"shift {number(value, 3)} {interval(low, high, 3)}".strip() + beyond,
        "" if p_value is None else f"p {number(p_value, 3)}",
        "" if e_value is None else f"e-value {evidence(e_value)}",
        "alarm" if reading["alarm"] else "",
    ]
    return ", ".join(part for part in parts if part)


def batch_details(document: Document) -> list[Details]:
    """Batches whose images were kept, each behind a click, the newest first."""
    kept: Mapping[str, Sequence[Document]] = document.get("pictures") or {}
    readings = {each["index"]: each for each in document["readings"]}
    shown = [readings[index] for index in sorted(map(int, kept), reverse=True) if index in readings]
    if not shown:
        return []
    batches = [_batch(document, each, kept[str(each["index"])]) for each in shown]
    return [
        Details(
            summary=f"Images of {plural(len(batches), 'batch')}: the newest, and longer those with an alarm",
            blocks=batches,
            name="batches",
        )
    ]


def _batch(document: Document, reading: Document, pictures: Sequence[Document]) -> Details:
    names = list(map(str, reading["sources"]))
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    files = f"Files: {', '.join(bounded(names[:NAMED]))}{rest}." if names else ""
    why = reason(document, reading)
    gallery = Figure(
        pictures=[
            Picture(source=png_source(each["image"]), lines=[cut_text(str(each["name"]))])
            for each in pictures
        ]
    )
    return Details(
        summary=_words(document, reading),
        blocks=[
            *([Note(text=why)] if why else []),
            gallery,
            Note(text=f"{len(pictures)} of {plural(reading['n'], 'image')}. {files}", style="quiet"),
        ],
        name=f"batch-{reading['index'] + 1}",
        style="batch",
    )

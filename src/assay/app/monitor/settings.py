"""The options of a monitor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from assay.app.options import (
    DISCOVERY,
    INPUTS,
    OUTPUT,
    RARE,
    SECONDS,
    STEPS,
    Steps,
    at_least,
    own_group,
)
from assay.app.settings import OnClassifier, Seeded


ALARM, WATCHING = own_group("Alarm", 41), own_group("Watching")


@dataclass(frozen=True, kw_only=True)
class MonitorOptions(Seeded, OnClassifier):
    """What a monitor watches and how.

    Attributes:
        reference: Images in distribution (a folder, or shapes:STYLE), or a file of their edge scores.
            Default: shapes of the embedded zoo's style.
        images: Folder, or shapes:STYLE; repeat for several, in order.
        known: More in-distribution images to calibrate on. Default: those not used as the reference.
        n: Images to draw from each shapes:STYLE to watch, in total.
        skip_bad: Skip and count unreadable image files. Default: with --follow.
        exif: Turn images as their EXIF orientation says (turn), or leave them as stored (ignore).
        window: Images per batch.
        reference_n: Images in the reference. Default: 1,024, or all that calibration leaves.
        known_batches: Batches to calibrate on; 0 for none. Default: all available.
        follow: Wait for new images in the folder.
        flush_after: Close a batch that is not full once an image of it has waited this long with --follow,
            e.g. 45s, 10m or 2h. Default: never.
        threshold: Shift above which to raise the alarm.
        target: Accuracy below which to raise the alarm; calibrates on 39 corrupted domains.
        rule: threshold, conformal or sequential. Default: threshold if given, else conformal.
        alpha: Level of the conformal and the sequential rule.
        on_alarm: Shell command to run for each batch that raises the alarm; it reads the JSON of the
            reading on its standard input.
        metrics_file: File for Prometheus to write the state to after each batch.
        steps: Quadrature nodes, or auto. Default: 5, or those of a file of edge scores.
        out: Output directory. Resumes if it already holds readings.
    """

    reference: Annotated[str | None, INPUTS] = None
    images: Annotated[tuple[str, ...], INPUTS] = ()
    known: Annotated[str | None, INPUTS] = None
    n: Annotated[int, INPUTS, at_least(2)] = 384
    skip_bad: Annotated[bool | None, INPUTS, Parameter(negative="--no-skip-bad")] = None
    exif: Annotated[Literal["turn", "ignore"], INPUTS] = "turn"
    window: Annotated[int, WATCHING, at_least(2)] = 64
    reference_n: Annotated[int | None, RARE, at_least(2)] = None
    known_batches: Annotated[int | None, RARE, at_least(0)] = None
    follow: Annotated[bool, WATCHING] = False
    flush_after: Annotated[float | None, WATCHING, SECONDS] = None
    threshold: Annotated[float | None, ALARM] = None
    target: Annotated[float | None, ALARM] = None
    rule: Annotated[str | None, ALARM] = None
    alpha: Annotated[float, ALARM] = 0.05
    on_alarm: Annotated[str | None, ALARM, Parameter(metavar="COMMAND")] = None
    metrics_file: Annotated[Path | None, WATCHING] = None
    steps: Annotated[Steps | None, DISCOVERY, STEPS] = None
    out: Annotated[Path, OUTPUT] = Path("assay-monitor")

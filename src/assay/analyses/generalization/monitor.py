"""After deployment: batches of images in, two shifts out, and an alarm whose rate is kept.

A batch has a shift of the circuit, and a shift of the outputs: both are positive by sampling alone, so each
is compared with known batches of the same size.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import softmax

from assay.analyses.generalization import dependency
from assay.analyses.generalization.alarms import AlarmRules, Calibration, Threshold, batches_for
from assay.analyses.generalization.domains import READ
from assay.analyses.generalization.inspection import Inspection, inspect_model
from assay.analyses.generalization.inspection import readings as readings_of
from assay.circuits import EdgeScores
from assay.core.errors import FileFormatError, InputError, NonFiniteError, writing
from assay.core.random import stream
from assay.core.record import Plotted, Record, library_version, plain, record_id, same
from assay.core.untrusted import parse_json
from assay.discovery.edges import discover
from assay.models import Model
from assay.tasks import ImageTask
from assay.tasks.examples import describe_discovery


if TYPE_CHECKING:
    import pandas as pd

MOST_BATCHES = 100  # known ones, unless more are asked for


def discover_reference(model: Model, task: ImageTask, *, batch: int, **options: Any) -> EdgeScores:
    """The reference circuit of known images: the mean over disjoint batches of the size to be watched.

    Each batch is discovered alone, with its own replacement values, as a watched one is. So the reference has
    the bias of a batch of this size and a fraction of its noise.

    Args:
        model: The model to watch.
        task: Known images, in random order; those beyond the last whole batch are left out. Of
            files one batch at a time lies in memory.
        batch: Images of a batch, 2 or more: the window of the monitor.
        options: Method, objective, ablation, steps, seed and batch size, as in `assay.discover`.

    Returns:
        Their mean; the record holds `batches` and `batch`, their number and size. A single batch is what
        `discover` gives.

    Raises:
        InputError: For fewer images than a batch.
    """
    task = task.for_model(model)
    n_batches = task.n // batch
    if not n_batches:
        raise InputError(f"the reference holds {task.n} images, fewer than the {batch} of a batch; give more")
    total = torch.zeros(model.graph.valid.shape, dtype=torch.float64)
    for start in range(0, n_batches * batch, batch):
        some = task.subset(range(start, start + batch)).held()
        scores: EdgeScores = discover(model, some, **options)
        total += scores.values.detach().cpu().double()
    if n_batches == 1:
        return scores
    used = describe_discovery(task.subset(range(n_batches * batch)))
    record = {**scores.provenance, "task": used, "batches": n_batches, "batch": batch}
    return EdgeScores(model.graph, (total / n_batches).float(), provenance=record)


@dataclass(frozen=True, kw_only=True)
class Reading(Record):
    """What a monitor saw in one batch.

    Attributes:
        index: Number of the batch, from 0.
        time: When it was observed, ISO 8601 in UTC.
        n: Images.
        shift: Distance of the batch's circuit from the reference's; larger means more shift.
        alarm: What the monitor's rule says; None where it has no rule.
        p_value: Conformal p-value of the circuit's shift against the known batches; None without them.
        e_value: Capital of the sequential test, at most 1 on average while nothing changes; None without it.
        output_shift: Largest class-wise Kolmogorov distance of the outputs to those on known images, in
            [0, 1]; None without these.
        output_p_value: The conformal p-value of that.
        decided_by: Number that decided: `circuit shift`, `output shift` or `e-value`; of two shifts the one
            with the smaller p-value. Empty without a rule.
        value: That number.
        limit: What it must exceed for an alarm; the e-value must reach it.
        top_share: Share of the images that the model gives to the class it gives most often.
        baselines: Names of metrics in lower case -> value; they fall as the model is less sure, and RankMe as
            its features collapse.
        layers: Rank-shift map, `[L + 1][L + 1]`, rows write and columns read.
        domain: What the batch says of its origin.
        data_hash: Of the images.
        sources: Names of the files, where known.
        skipped: Files since the batch before that could not be read.
        page: File of the page that shows it, where there is one.
    """

    index: int
    time: str
    n: int
    shift: float
    alarm: bool | None
    p_value: float | None = None
    e_value: float | None = None
    output_shift: float | None = None
    output_p_value: float | None = None
    decided_by: str = ""
    value: float | None = None
    limit: float | None = None
    top_share: float = 0.0
    baselines: Mapping[str, float] = field(default_factory=dict)
    layers: tuple[tuple[float, ...], ...] = ()
    domain: str = ""
    data_hash: str = ""
    sources: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    page: str = ""

    @property
    def sentence(self) -> str:
        """The number that decided and its limit."""
        if self.limit is None:
            return f"circuit shift {self.shift:.3f} of batch {self.index + 1}"
        return f"{self.decided_by} {self.value:.3g} of batch {self.index + 1}, limit {self.limit:.3g}"


def append_line(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write one line to the log of a monitor, a file of JSON lines that only grows, and force it to the disk.

    A line counts once it ends in a line break. What an interrupted write left after the last one is cut off
    before the next is written, so a kill costs at most the line that was being written.

    Raises:
        OutputError: If the file cannot be written.
    """
    line = json.dumps({"kind": kind, **plain(content)}, allow_nan=False) + "\n"
    with writing(f"write to {path}", "the readings so far are saved; choose a writable place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.truncate(path.read_bytes().rfind(b"\n") + 1)
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def read_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """All complete lines of the log of a monitor as (kind, content), in order; empty where there is none.

    Raises:
        FileFormatError: If a complete line is not a JSON object with a kind.
    """
    entries = []
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            content = parse_json(line)
            entries.append((str(content.pop("kind")), content))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise FileFormatError(f"line {number} of {path} is not a record of a monitor") from error
    return entries


def read_readings(path: Path) -> list[Reading]:
    """The readings of the log of a monitor; empty where there is none.

    Raises:
        FileFormatError: If it is not such a log.
    """
    return [Reading.from_dict(content) for kind, content in read_lines(path) if kind == "reading"]


def probabilities(seen: Inspection) -> np.ndarray:
    """Softmax outputs, float64 `[n, n_classes]`, of an inspection that kept logits."""
    return np.asarray(softmax(np.asarray(seen.logits, dtype=np.float64), axis=1))


class Monitor(Plotted, Record):
    """Watches a deployed model: how far circuit and outputs on new images are from those on known ones.

    Every batch costs one discovery with the settings of the reference, and one forward pass. One of three
    rules raises the alarm:

    - `"threshold"`: the circuit's shift exceeds a threshold, from `calibrate_threshold` on domains with known
      performance: it corresponds to a performance. After `calibrate` its rate of false alarms is known, too.
    - `"conformal"`: one of the two shifts is larger than those of known batches, at most `alpha` false alarms
      per batch: each is tested at alpha / 2.
    - `"sequential"`: a bet on the circuit's shift of all batches together, at most `alpha` for a false alarm
      ever; it says nothing about performance, and stays on once raised.

    Args:
        model: In evaluation mode.
        reference: Its circuit on known images, which gives the settings: from `discover_reference` or
            `discover`.
        threshold: From `calibrate_threshold`, or a number: of the circuit's shift.
        outputs: Known images with whose outputs those of a batch are compared; none that `calibrate` gets.
            None: only the circuit is watched.
        distance: Key of a distance, see `assay.list("distances")`.
        rule: One of the three. Default: the threshold if there is one, else conformal once calibrated.
        alpha: Level of the conformal and the sequential rule, in (0, 1).
        labelled: Labelled images in distribution, which ATC and DoC learn from (one more run at the start).
        log: File of readings, JSON lines. If it exists, the monitor goes on where it ended.
        cache: Folder that keeps what the model answers on `outputs` and `labelled`.
        seed: Of the order of known images and of the draws that break ties.

    Attributes:
        rules: What raises the alarm: `guarantee` says how often in vain.
        calibrations: Known batches, by the number of their images; the first is the usual one.
        readings: Of all batches so far.
        skipped: Files since the last one that could not be read.

    Raises:
        GraphMismatchError: If the reference belongs to another model.
        InputError: If the reference does not say how it was found, the threshold is of a score that falls
            with shift, or the log belongs to another monitor.
        UnknownNameError: For another distance or rule.
        FileFormatError: If the log cannot be read.

    Notes:
        Rates hold for batches of the size of the known ones: a batch has a shift by sampling alone, which
        falls with its size. They need exchangeability: known batches that share no image with the reference
        or with each other, were not trained on, and are mixed as the watched ones are. Batches that hold one
        class each, or one day each, differ from mixed ones without any change of the source.

    References:
        Peng et al. (2026), arXiv:2604.08192, section 5.
    """

    drawn_by = "assay.analyses.generalization.monitor_page:plot_monitor"
    record_kind = "monitor"
    record_schema = "assay-monitor/1"
    record_layout = (
        same("**_header", "id")
        | same("rule", "calibration", "limits", "guarantee", of="rules")
        | same("readings", "skipped")
    )

    def __init__(
        self,
        model: Model,
        reference: EdgeScores,
        threshold: Threshold | float | None = None,
        *,
        outputs: ImageTask | None = None,
        distance: str = "spearman",
        rule: str | None = None,
        alpha: float = 0.05,
        labelled: ImageTask | None = None,
        log: str | Path | None = None,
        cache: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        entry = dependency.DISTANCES[distance]
        if threshold is not None and not isinstance(threshold, Threshold):
            threshold = Threshold(value=float(threshold))
        self.rules = AlarmRules(asked=rule, threshold=threshold, alpha=alpha, seed=seed)
        self.model, self.reference, self.distance = model, reference, distance
        self.readings: list[Reading] = []
        self.skipped: list[str] = []
        self.calibrations: dict[int, Calibration] = {}
        header: dict[str, Any] = {"library": library_version(), "model": model.describe()}
        header |= {"graph": model.graph.describe(), "reference": plain(dict(reference.provenance))}
        header["settings"] = dependency.check_reference(model, reference)
        header["distance"] = {name: getattr(entry, name) for name in ("key", "summary", "published")}
        header |= {"rule": rule, "alpha": alpha, "threshold": threshold and threshold.to_dict(), "seed": seed}
        self._header = header
        self._labelled = None if labelled is None else inspect_model(model, labelled, ["labels"], cache=cache)
        self._outputs: np.ndarray | None = None
        if outputs is not None:
            task = outputs.for_model(model)
            self._outputs = probabilities(inspect_model(model, task, ["logits"], cache=cache))
            self._header["known_outputs"] = {"n": task.n, "hash": task.source_hash[:16]}
        self._log, self._begun = None if log is None else Path(log), False
        if self._log is not None:
            self._resume(self._log)

    def __repr__(self) -> str:
        return f"Monitor({self.model.id!r}, {self.distance}, {len(self.readings)} readings)"

    @property
    def id(self) -> str:
        """Identity of what is watched and how, 16 hex digits."""
        return record_id("monitor", {name: each for name, each in self._header.items() if name != "library"})

    # ------------------------------------------------------------------------------------- calibration

    def calibrate(
        self, id_images: ImageTask, *, batch_size: int, n_batches: int | None = None
    ) -> Calibration:
        """Learn from known images how large the shifts of a batch are by sampling alone.

        The images are put into random order and cut into disjoint batches; each costs one discovery and one
        forward pass. Further calls with other sizes let `observe` take batches of these sizes, too: the
        conformal rule judges them, the sequential test leaves them out.

        Args:
            id_images: Images in distribution that are neither in the reference, nor in `outputs`, nor in the
                training data. Of files one batch at a time is in memory.
            batch_size: Images of a batch, 2 or more: the size of those to watch.
            n_batches: Batches, at most what the images give. Default: as many as they give, no more than 100.

        Returns:
            The shifts; also kept in the monitor and its log.

        Raises:
            InputError: If the images do not give the batches that the rule needs at this `alpha`, are those
                of the reference, or batches of this size were measured, or any observed, before the first.
        """
        if batch_size in self.calibrations or (self.readings and not self.calibrations):
            state = "been calibrated" if self.calibrations else "observed batches"
            raise InputError(f"this monitor has {state}; calibrate a new one")
        most, rules = id_images.n // batch_size, self.rules
        m = min(most, MOST_BATCHES) if n_batches is None else n_batches
        conformal = rules.asked == "conformal" or (rules.asked is None and rules.threshold is None)
        needed = max(batches_for(rules.alpha) if conformal else 1, n_batches or 0)
        if not needed <= m <= most:
            text = f"{id_images.n} known images give {most} batches of {batch_size}, but {needed} are needed"
            if conformal and self._outputs is not None:
                text += f" for the circuit's shift and {batches_for(rules.alpha / 2)} for both shifts"
            remedy = f"Give {needed * batch_size} images or more, smaller batches, or a larger alpha"
            raise InputError(f"{text}, besides those of the reference. {remedy}")
        order = stream(rules.seed, "monitor/calibration").permutation(id_images.n)
        found = [
            self._measured(id_images.subset(rows.tolist()).for_model(self.model).held())[2:]
            for rows in np.array_split(order[: m * batch_size], m)
        ]
        calibration = Calibration(
            shifts=tuple(shift for shift, _ in found),
            n=batch_size,
            output_shifts=tuple(moved for _, moved in found if moved is not None),
        )
        self._record("calibration", calibration)
        return calibration

    def _measured(self, task: ImageTask) -> tuple[EdgeScores, Inspection, float, float | None]:
        """The circuit of a batch, its outputs, and the shifts of both: one discovery, one forward pass."""
        if task.data_hash == (self.reference.provenance.get("task") or {}).get("data_hash"):
            raise InputError("these are the images of the reference circuit, whose shift is 0; give others")
        scores = dependency.circuit_like(self.model, task, self.reference)
        shift = dependency.circuit_shift(self.reference, scores, distance=self.distance)
        if not math.isfinite(shift):
            raise NonFiniteError(f"the {self.distance} shift is {shift}, because the scores do not vary")
        seen, known = inspect_model(self.model, task, ("logits", "features")), self._outputs
        moved = None if known is None else dependency.output_shift(known, probabilities(seen))
        return scores, seen, shift, moved

    # ------------------------------------------------------------------------------------- observation

    def observe(self, images: ImageTask, *, sources: Sequence[str] = (), page: str = "") -> Reading:
        """The shifts of one batch, and the alarm.

        Args:
            images: 2 or more.
            sources: Names of their files, kept in the reading.
            page: File of the page that will show the reading.

        Raises:
            InputError: If the batch has not the size of the known ones, holds one image, or is that of the
                reference.
            ShapeError, NonFiniteError: For images that the model cannot read, or a shift that is undefined.
        """
        task = images.for_model(self.model).held()
        if self.calibrations and task.n not in self.calibrations:
            sizes = ", ".join(map(str, self.calibrations))
            text = f"the batch holds {task.n} images, the known batches {sizes}"
            raise InputError(f"{text}, but shifts by sampling alone depend on the size; give equal sizes")
        scores, seen, shift, moved = self._measured(task)
        rules = self._after(shift, len(self.readings), task.n)
        rules = replace(rules, calibration=self.calibrations.get(task.n))
        moves = dependency.rank_shift_map(self.reference, scores)
        reading = Reading(
            index=len(self.readings),
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            n=task.n,
            shift=shift,
            output_shift=moved,
            **rules.verdict(shift, math.nan if moved is None else moved),
            top_share=float(np.bincount(seen.predictions).max() / seen.n),
            baselines=readings_of((*READ, "rankme"), seen, self._labelled),
            layers=tuple(map(tuple, moves.numpy().round(6).tolist())),
            domain=task.domain,
            data_hash=task.data_hash,
            sources=tuple(sources),
            skipped=tuple(self.skipped),
            page=page,
        )
        self._record("reading", reading)
        return reading

    def skip(self, name: str) -> None:
        """Note a file that cannot be read: the next reading counts it, and a restart knows it."""
        self._record("skipped", name)

    @property
    def done(self) -> set[str]:
        """Names of all files that were observed or skipped."""
        return {name for each in self.readings for name in (*each.sources, *each.skipped)} | {*self.skipped}

    def to_frame(self) -> "pd.DataFrame":
        """One row per batch: index, time, n, both shifts with their p-values, alarm, e_value, domain."""
        import pandas as pd

        columns = ["index", "time", "n", "shift", "alarm", "p_value", "output_shift", "output_p_value"]
        return pd.DataFrame([vars(each) for each in self.readings], columns=[*columns, "e_value", "domain"])

    # ----------------------------------------------------------------------------------------- the log

    def _record(self, kind: str, entry: Calibration | Reading | str) -> None:
        """Take what happened, once it is in the log, whose header comes first: a failed start leaves none."""
        if self._log is not None:
            if not self._begun:
                append_line(self._log, "monitor", {**self._header, "id": self.id})
                self._begun = True
            append_line(self._log, kind, {"name": entry} if isinstance(entry, str) else entry.to_dict())
        self._take(entry)

    def _take(self, entry: Calibration | Reading | str) -> None:
        if isinstance(entry, Calibration):
            if not self.calibrations:
                self.rules = self.rules.calibrated(entry)
            self.calibrations[entry.n] = entry
        elif isinstance(entry, Reading):
            self.rules = self._after(entry.shift, entry.index, entry.n)
            self.readings.append(entry)
            self.skipped.clear()  # the reading names them
        else:
            self.skipped.append(entry)

    def _after(self, shift: float, index: int, n: int) -> AlarmRules:
        """The rules once a batch was seen; shifts of another size do not join the sequential test."""
        usual = next(iter(self.calibrations), n)
        return self.rules.after(shift, index) if n == usual else self.rules

    def _resume(self, log: Path) -> None:
        """Take what the log holds."""
        for kind, content in read_lines(log):
            if not self._begun:
                if kind != "monitor" or content.get("id") != self.id:
                    names = (name for name in self._header if name != "library")
                    differs = [name for name in names if content.get(name) != plain(self._header[name])]
                    text = f"another monitor (different: {', '.join(differs) or 'its record'})"
                    raise InputError(f"the readings in {log} belong to {text}; choose another place")
                self._begun = True
            elif kind == "skipped":
                self._take(content["name"])
            else:
                self._take((Reading if kind == "reading" else Calibration).from_dict(content))

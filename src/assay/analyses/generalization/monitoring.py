"""After deployment: batches of images in, shift of the circuit out, and an alarm."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.generalization.alarms import (
    AlarmRules,
    Calibration,
    ConformalAlarm,
    Guarantee,
    Threshold,
    threshold_of,
)
from assay.analyses.generalization.batches import (
    Images,
    batch_task,
    check_reference,
    image_task,
    label_free,
    labelled_outputs,
    outputs_of,
)
from assay.analyses.generalization.journal import MonitorLog, Reading
from assay.analyses.generalization.shift import DISTANCES, USUAL_VIEW, ShiftView, rank_shift_map
from assay.analyses.generalization.shift_probe import ShiftProbe
from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.core.plotted import Plotted
from assay.core.random import stream
from assay.core.record import Record, library_version, plain, record_id, same
from assay.models import Model
from assay.tasks import EvalTransform, ImageSet, ImageStream, ImageTask


if TYPE_CHECKING:
    import pandas as pd

Known = ImageTask | ImageStream | ImageSet
SCHEMA = "assay-monitor/1"


class Monitor(Plotted, Record):
    """Watches a deployed model: how far its circuit on new images is from its circuit on known ones.

    Every batch costs one discovery with the settings of the reference, and one forward pass more for the
    baselines. Three rules can raise the alarm; all that apply are in each reading, one decides:

    - `"threshold"`: the shift exceeds a threshold, from `calibrate_threshold` on domains with known
      performance: it corresponds to a performance. After `calibrate` its rate of false alarms is known, too.
    - `"conformal"`: the shift is larger than those of known batches, at most `alpha` false alarms per batch.
    - `"sequential"`: a bet on all batches together, at most `alpha` for a false alarm ever; it says nothing
      about performance, and stays on once raised.

    Args:
        model: In evaluation mode.
        reference: Its circuit on known images, which gives the settings: from `discover_reference` or
            `discover`.
        threshold: From `calibrate_threshold`, or a number: of the shift.
        distance: Key of a distance, see `assay.list("distances")`.
        view: What the distance compares.
        rule: One of the three. Default: the threshold if there is one, else conformal once calibrated.
        alpha: Level of the conformal and the sequential rule, in (0, 1).
        labelled: Labelled images in distribution, which ATC and DoC learn from (one more run at the start).
        baselines: Run the model once per batch for the label-free baselines.
        transform: For 8-bit images; default: the model's own.
        batch_size: Images per pass; results do not depend on it.
        log: File of readings, JSON lines. If it exists, the monitor goes on where it ended.
        seed: Of the order of known images and of the draws that break ties.

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

    drawn_by = "assay.analyses.generalization.monitor_plots:plot_monitor"
    record_kind = "monitor"
    record_layout = same("**_header", "id", "rule", "calibration", "conformal", "guarantee", "readings")

    def __init__(
        self,
        model: Model,
        reference: EdgeScores,
        threshold: Threshold | float | None = None,
        *,
        distance: str = "spearman",
        view: ShiftView = USUAL_VIEW,
        rule: str | None = None,
        alpha: float = 0.05,
        labelled: ImageTask | ImageStream | ImageSet | None = None,
        baselines: bool = True,
        transform: EvalTransform | None = None,
        batch_size: int | None = None,
        log: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        DISTANCES[distance]  # an unknown name is refused before anything runs
        self.threshold, self.alpha = threshold_of(threshold, needed=rule == "threshold"), alpha
        self._rules = AlarmRules(asked=rule, threshold=self.threshold, alpha=alpha, seed=seed)
        settings = check_reference(model, reference)
        view.check(model.graph)
        self._probe = ShiftProbe(
            model=model,
            reference=reference,
            distance=distance,
            view=view,
            batch_size=batch_size,
        )
        self.model, self.reference_scores = model, reference
        self.distance, self.view = distance, view
        self.readings: list[Reading] = []
        self._baselines, self._seed = baselines, seed
        self._transform, self._batch_size = transform, batch_size
        self._known = None
        if labelled is not None and baselines:
            self._known = labelled_outputs(
                model, image_task(model, labelled, transform), batch_size=batch_size
            )
        self._header = self._described(settings)
        self._log = None if log is None else MonitorLog(Path(log), self._header, self.id)
        if self._log is not None:
            self._resume(self._log)

    def __repr__(self) -> str:
        return f"Monitor({self.model.id!r}, {self.distance}, {len(self.readings)} readings)"

    def _described(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What is watched and how: the head of logs and documents."""
        entry = DISTANCES[self.distance]
        header: dict[str, Any] = {
            "schema": SCHEMA,
            "library": library_version(),
            "model": self.model.describe(),
            "graph": self.model.graph.describe(),
            "reference": plain(dict(self.reference_scores.provenance)),
            "settings": dict(settings),
            "distance": {"key": entry.key, "summary": entry.summary, "published": entry.published},
            "rule": self._rules.asked,
            "alpha": self.alpha,
            "threshold": None if self.threshold is None else self.threshold.to_dict(),
            "seed": self._seed,
        }
        if self.view != USUAL_VIEW:  # the usual one has the identity that monitors always had
            header["view"] = self.view.to_dict()
        if self._transform is not None:  # else the model's own, which its record stands for
            header["transform"] = self._transform.to_dict()
        return header

    @property
    def rule(self) -> str | None:
        """The rule that decides; None where there is nothing to decide by."""
        return self._rules.rule

    @property
    def calibration(self) -> Calibration | None:
        """The known batches."""
        return self._rules.calibration

    @property
    def conformal(self) -> ConformalAlarm | None:
        """What the known batches give; None without enough of them."""
        return self._rules.conformal

    @property
    def id(self) -> str:
        """Identity of what is watched and how, 16 hex digits."""
        return record_id("monitor", {name: each for name, each in self._header.items() if name != "library"})

    def task(self, images: Images) -> ImageTask:
        """Images as the model reads them, as `observe` takes them."""
        return batch_task(self.model, images, self._transform)

    # ------------------------------------------------------------------------------------- calibration

    def calibrate(self, id_images: Known, *, batch_size: int, n_batches: int | None = None) -> Calibration:
        """Learn from known images how large the shift of a batch is by sampling alone.

        The images are put into random order and cut into disjoint batches; each costs one discovery.

        Args:
            id_images: Images in distribution that are neither in the reference nor in the training data. Of a
                stream one batch at a time is in memory.
            batch_size: Images of a batch, 2 or more: the size of those to watch.
            n_batches: Batches, at most what the images give. Default: as many as they give, no more than 100.

        Returns:
            The shifts; also kept in the monitor and its log.

        Raises:
            InputError: If the images do not give the batches that the rule needs at this `alpha`, are those
                of the reference, or batches were observed before.
        """
        if self.readings or self.calibration is not None:
            raise InputError(
                f"this monitor has {'been calibrated' if self.calibration else 'observed batches'}; "
                "calibrate a new one, so that earlier readings keep their meaning"
            )
        if batch_size < 2:
            raise InputError(f"batch_size is {batch_size}; a batch needs at least 2 images")
        m = self._rules.batches_of(id_images.n, batch_size, n_batches)
        order = stream(self._seed, "monitor/calibration").permutation(id_images.n)
        shifts = []
        for rows in np.array_split(order[: m * batch_size], m):
            task = self.task(id_images.subset(rows.tolist()))
            self._probe.check(task)
            shifts.append(self._probe.measure(task)[1])
        calibration = Calibration(shifts=tuple(shifts), n=batch_size, domain=id_images.domain)
        self._record("calibration", calibration)
        self._rules = self._rules.calibrated(calibration)
        return calibration

    # ------------------------------------------------------------------------------------- observation

    def observe(
        self,
        images: Images,
        *,
        sources: Sequence[str] = (),
        skipped: Sequence[str] = (),
        domain: str = "",
    ) -> Reading:
        """The shift of one batch, and the alarm.

        Args:
            images: An image task, an image set, or normalised images `[N, 3, H, W]`; 2 or more.
            sources: Names of their files, kept in the reading.
            skipped: Files since the batch before that could not be read, kept too.
            domain: Name of the origin; default: that of the images.

        Raises:
            InputError: If the batch has not the size of the known ones, holds one image, or is that of the
                reference.
            ShapeError, NonFiniteError: For images that the model cannot read, or a shift that is undefined.
        """
        task = self.task(images)
        if task.n < 2:
            raise InputError("the batch holds 1 image; a circuit needs 2 or more")
        if self.calibration is not None and task.n != self.calibration.n:
            raise InputError(
                f"the batch holds {task.n} images, the known batches {self.calibration.n}, but "
                "shifts by sampling alone depend on the size; give batches of the same size"
            )
        self._probe.check(task)
        scores, shift = self._probe.measure(task)
        readings = {}
        if self._baselines:
            outputs = outputs_of(self.model, task, batch_size=self._batch_size)
            readings = label_free(outputs, self._known)
        moved = rank_shift_map(self.reference_scores, scores)
        index = len(self.readings)
        rules = self._rules.after(shift, index)
        reading = Reading(
            index=index,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            n=task.n,
            shift=shift,
            **vars(rules.verdict(shift)),
            baselines=readings,
            layers=tuple(map(tuple, moved.numpy().round(6).tolist())),
            domain=domain or task.domain,
            data_hash=task.data_hash,
            sources=tuple(sources),
            skipped=tuple(skipped),
            seconds=float(scores.details.get("seconds", 0.0)),
        )
        self._record("reading", reading)
        self.readings.append(reading)
        self._rules = rules
        return reading

    # ------------------------------------------------------------------------------------- what it says

    @property
    def guarantee(self) -> Guarantee:
        """How often the rule in force raises a false alarm, and what that rests on."""
        return self._rules.guarantee

    def to_frame(self) -> "pd.DataFrame":
        """One row per batch: index, time, n, shift, alarm, p_value, e_value, domain."""
        import pandas as pd

        columns = ["index", "time", "n", "shift", "alarm", "p_value", "e_value", "domain"]
        return pd.DataFrame(
            [[getattr(each, name) for name in columns] for each in self.readings], columns=columns
        )

    # ------------------------------------------------------------------------------------------- resume

    def _record(self, kind: str, content: Record) -> None:
        if self._log is not None:
            self._log.add(kind, content.to_dict())

    def _resume(self, log: MonitorLog) -> None:
        """Take over what the log holds."""
        for kind, content in log.earlier():
            if kind == "calibration":
                self._rules = self._rules.calibrated(Calibration.from_dict(content))
            elif kind == "reading":
                reading = Reading.from_dict(content)
                self._rules = self._rules.after(reading.shift, reading.index)
                self.readings.append(reading)

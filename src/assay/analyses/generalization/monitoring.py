"""After deployment: batches of images in, shift of the circuit out, with an interval and an alarm."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.generalization.accuracy_estimate import AccuracyEstimate, AccuracyEstimator
from assay.analyses.generalization.alarms import (
    Calibration,
    ConformalAlarm,
    Guarantee,
    SequentialTest,
    batches_for,
    check_alpha,
    guarantee,
)
from assay.analyses.generalization.batches import (
    COMPARED,
    BatchTask,
    Inputs,
    Outputs,
    batch_task,
    check_reference,
    circuit_like,
    drift_tests,
    image_task,
    label_free,
    labelled_outputs,
    origin,
    outputs_of,
)
from assay.analyses.generalization.journal import Journal, Reading
from assay.analyses.generalization.noise_floor import Excess, rows_of
from assay.analyses.generalization.reference import Reference
from assay.analyses.generalization.resampled import resampled_shift
from assay.analyses.generalization.shift import (
    DISTANCES,
    USUAL_VIEW,
    ShiftView,
    circuit_shift,
    rank_shift_map,
)
from assay.analyses.generalization.thresholds import Threshold, threshold_of
from assay.circuits import EdgeScores
from assay.core import display
from assay.core.errors import InputError, NonFiniteError, unknown_name
from assay.core.random import stream
from assay.core.record import Record, library_version, plain, record_id, same
from assay.models import Model
from assay.tasks import EvalTransform, ImageSet, ImageTask, PairTask
from assay.tasks.prompt_set import ArrivingPrompts


if TYPE_CHECKING:
    import pandas as pd

Known = ImageTask | ImageSet | PairTask | ArrivingPrompts
SCHEMA = "assay-monitor/1"
LATEST = 8  # readings in the summary of a notebook
RULES = ("threshold", "conformal", "sequential")
MOST_BATCHES = 100  # known ones, unless more are asked for


class Monitor(display.Shown, Record):
    """Watches a deployed model: how far its circuit on new images is from its circuit on known ones.

    Every batch costs one discovery with the settings of the reference, and one forward pass more for the
    baselines. The rules compare batches by the excess, the shift beyond its noise floor, where the reference
    has one, else by the shift itself. Three rules can raise the alarm; all that apply are in each reading,
    one decides:

    - `"threshold"`: the excess exceeds a threshold, from `calibrate_threshold` on domains with known
      performance: it corresponds to a performance. After `calibrate` its rate of false alarms is known, too.
    - `"conformal"`: the excess is larger than those of known batches, at most `alpha` false alarms per batch.
    - `"sequential"`: a bet on all batches together, at most `alpha` for a false alarm ever; it says nothing
      about performance, and stays on once raised.

    Args:
        model: In evaluation mode.
        reference: Its circuit on known images, which gives the settings: from `discover_reference`, with a
            noise floor, or edge scores from `discover`, without.
        threshold: From `calibrate_threshold`, or a number: of the excess where there is a noise floor, else
            of the shift.
        distance: Key of a distance, see `assay.list("distances")`.
        view: What the distance compares. Another than the usual one has no noise floor.
        rule: One of the three. Default: the threshold if there is one, else conformal once calibrated.
        alpha: Level of the conformal and the sequential rule, in (0, 1).
        level: Coverage of the intervals.
        labelled: Labelled images in distribution, which ATC and DoC learn from (one more run at the start).
        drift: Images in distribution, labels not needed, that drift tests compare each batch with: at most
            512 of them; two more runs per batch. Default: no such tests.
        baselines: Run the model once per batch for the label-free baselines.
        estimator: From `DomainCalibration.accuracy_estimator`, learnt with the same `labelled` images:
            readings then carry an estimate of the accuracy. Needs `baselines`.
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
    record_layout = {
        **same("**_header", "id", "rule", "calibration"),
        "conformal": "_conformal",
        **same("guarantee", "estimator", "readings"),
    }

    def __init__(
        self,
        model: Model,
        reference: EdgeScores | Reference,
        threshold: Threshold | float | None = None,
        *,
        distance: str = "spearman",
        view: ShiftView = USUAL_VIEW,
        rule: str | None = None,
        alpha: float = 0.05,
        level: float = 0.95,
        labelled: ImageTask | ImageSet | None = None,
        drift: ImageTask | ImageSet | None = None,
        baselines: bool = True,
        estimator: AccuracyEstimator | None = None,
        transform: EvalTransform | None = None,
        batch_size: int | None = None,
        log: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        check_alpha(alpha)
        check_alpha(level, "level")
        DISTANCES[distance]  # an unknown name is refused before anything runs
        if rule is not None and rule not in RULES:
            raise unknown_name("rule of an alarm", rule, RULES)
        threshold = threshold_of(threshold, needed=rule == "threshold")
        scores = reference.scores if isinstance(reference, Reference) else reference
        settings = check_reference(model, scores)
        self.model, self.reference_scores, self.threshold = model, scores, threshold
        view.check(model.graph)
        self.view = view
        self._floor = None
        if isinstance(reference, Reference) and view == USUAL_VIEW:
            self._floor = reference.floor(distance)
        self.distance, self.alpha, self.level = distance, alpha, level
        self.estimator = estimator
        self.calibration: Calibration | None = None
        self.readings: list[Reading] = []
        self._rule, self._baselines, self._seed = rule, baselines, seed
        self._transform, self._batch_size = transform, batch_size
        self._conformal: ConformalAlarm | None = None
        self._sequential = SequentialTest.start(())
        self._known = None
        if labelled is not None and baselines:
            self._known = labelled_outputs(
                model, image_task(model, labelled, transform), batch_size=batch_size
            )
        self._outputs = None
        if drift is not None:
            rows = stream(seed, "monitor/drift").permutation(drift.n)[:COMPARED]
            self._outputs = self._read_outputs(image_task(model, drift.subset(rows.tolist()), transform))
        self._header = self._described(settings)
        self._journal = None if log is None else Journal(Path(log))
        self._logged = False
        if self._journal is not None:
            self._resume(self._journal)

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
            "rule": self._rule,
            "alpha": self.alpha,
            "level": self.level,
            "threshold": None if self.threshold is None else self.threshold.to_dict(),
            "seed": self._seed,
        }
        if self._inputs != "images":
            header["inputs"] = self._inputs
        if self.view != USUAL_VIEW:  # the usual one has the identity that monitors always had
            header["view"] = self.view.to_dict()
        if self._floor is not None:  # monitors without one keep the identity they always had
            header["statistic"] = "excess"
        if self._transform is not None:  # else the model's own, which its record stands for
            header["transform"] = self._transform.to_dict()
        return header

    @property
    def _inputs(self) -> str:
        """What is watched, in the plural."""
        return "images" if self.model.vision else "prompts"

    @property
    def rule(self) -> str | None:
        """The rule that decides; None where there is nothing to decide by."""
        if self._rule is not None:
            return self._rule
        if self.threshold is not None:
            return "threshold"
        return None if self._conformal is None else "conformal"

    @property
    def id(self) -> str:
        """Identity of what is watched and how, 16 hex digits."""
        return record_id("monitor", {name: each for name, each in self._header.items() if name != "library"})

    def task(self, inputs: Inputs) -> BatchTask:
        """Images or prompts as the model reads them, as `observe` takes them."""
        return batch_task(self.model, inputs, self._transform)

    # ------------------------------------------------------------------------------------- calibration

    def calibrate(self, id_images: Known, *, batch_size: int, n_batches: int | None = None) -> Calibration:
        """Learn from known images how large the shift of a batch is by sampling alone.

        The images are put into random order and cut into disjoint batches; each costs one discovery.

        Args:
            id_images: Images in distribution that are neither in the reference nor in the training data.
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
        most = id_images.n // batch_size
        m = min(most, MOST_BATCHES) if n_batches is None else n_batches
        conformal = self._rule == "conformal" or (self._rule is None and self.threshold is None)
        needed = batches_for(self.alpha) if conformal else 1
        if not needed <= m <= most:
            asked = "" if n_batches is None else f", {n_batches} asked for"
            why = f"alpha {self.alpha:g} needs" if conformal else "calibration needs"
            raise InputError(
                f"{id_images.n} images in distribution give {most} batches of {batch_size}{asked}; {why} at "
                f"least {needed}. Give {max(needed, m) * batch_size} images or more besides those of the "
                f"reference circuit, smaller batches, or {'a larger alpha' if conformal else 'fewer of them'}"
            )
        order = stream(self._seed, "monitor/calibration").permutation(id_images.n)
        self._check_size(batch_size)
        shifts, excess = [], []
        for rows in np.array_split(order[: m * batch_size], m):
            task = self.task(id_images.subset(rows.tolist()))
            self._check_new(task)
            shift, beyond = self._measured(self._circuit(task, per_example=self._floor is not None), task)
            shifts.append(shift)
            excess += [] if beyond is None else [beyond.value]
        calibration = Calibration(
            shifts=tuple(shifts), n=batch_size, domain=origin(id_images), excess=tuple(excess)
        )
        self._record("calibration", calibration.to_dict())
        self._take(calibration)
        return calibration

    def _take(self, found: Calibration) -> None:
        self.calibration = found
        if len(found.shifts) >= batches_for(self.alpha):
            self._conformal = ConformalAlarm(known=found.statistics, alpha=self.alpha)
        self._sequential = SequentialTest.start(found.statistics)

    # ------------------------------------------------------------------------------------- observation

    def observe(
        self, images: Inputs, *, sources: Sequence[str] = (), skipped: Sequence[str] = (), domain: str = ""
    ) -> Reading:
        """The shift of one batch, with its interval and the alarm.

        Args:
            images: An image task, an image set, or normalised images `[N, 3, H, W]`; for a language model
                prompts or a task of pairs. 2 or more.
            sources: Names of their files, kept in the reading.
            skipped: Files of this batch that could not be read, kept too.
            domain: Name of the origin; default: that of the images.

        Raises:
            InputError: If the batch has not the size of the known ones, holds one image, or is that of the
                reference.
            ShapeError, NonFiniteError: For images that the model cannot read, or a shift that is undefined.
        """
        task = self.task(images)
        if task.n < 2:
            raise InputError(
                f"the batch holds 1 {self._inputs[:-1]}; a circuit and its interval need 2 or more"
            )
        if self.calibration is not None and task.n != self.calibration.n:
            raise InputError(
                f"the batch holds {task.n} {self._inputs}, the known batches {self.calibration.n}, but "
                "shifts by sampling alone depend on the size; give batches of the same size"
            )
        self._check_size(task.n)
        self._check_new(task)
        scores = self._circuit(task, per_example=True)
        shift, excess = self._measured(scores, task)
        statistic = shift if excess is None else excess.value
        outputs = self._read_outputs(task) if self._baselines or self._outputs is not None else None
        readings = label_free(outputs, self._known) if outputs is not None and self._baselines else {}
        moved = rank_shift_map(self.reference_scores, scores)
        index = len(self.readings)
        test = self._sequential.observe(statistic, self._tie(index))
        alarms, p_value = self._verdicts(statistic, test)
        reading = Reading(
            index=index,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            n=task.n,
            shift=shift,
            interval=resampled_shift(
                self.reference_scores, scores, distance=self.distance, view=self.view
            ).interval(level=self.level),
            excess=excess,
            alarm=None if self.rule is None else alarms[self.rule],
            alarms=alarms,
            p_value=p_value,
            e_value=math.exp(min(test.log_capital, 700.0)) if self._tests_sequentially else None,
            baselines=readings,
            drift={}
            if self._outputs is None or outputs is None
            else drift_tests(self._outputs, outputs, seed=self._seed),
            layers=tuple(map(tuple, moved.numpy().round(6).tolist())),
            domain=domain or origin(task),
            data_hash=task.data_hash,
            sources=tuple(sources),
            skipped=tuple(skipped),
            seconds=float(scores.details.get("seconds", 0.0)),
            estimate=self._estimate(scores, readings, task.n),
        )
        self._record("reading", reading.to_dict())
        self.readings.append(reading)
        self._sequential = test
        return reading

    def _estimate(
        self, scores: EdgeScores, baselines: Mapping[str, float], n: int
    ) -> AccuracyEstimate | None:
        """The accuracy of a batch, where domains with labels were calibrated on."""
        if self.estimator is None:
            return None
        shifts = {
            key: circuit_shift(self.reference_scores, scores, distance=key, **vars(self.view))
            for key in self.estimator.names
            if key in DISTANCES
        }
        return self.estimator.estimate({**shifts, **baselines}, n=n)

    def _read_outputs(self, task: BatchTask) -> Outputs:
        return outputs_of(self.model, task, batch_size=self._batch_size)

    def _tie(self, index: int) -> float:
        """The draw that breaks ties of a batch, in (0, 1]: exactly 0 would make a p-value of 0."""
        return 1 - float(stream(self._seed, f"monitor/tie/{index}").random())

    @property
    def _tests_sequentially(self) -> bool:
        return self.calibration is not None or self._rule == "sequential"

    def _verdicts(self, statistic: float, test: SequentialTest) -> tuple[dict[str, bool], float | None]:
        alarms = {}
        if self.threshold is not None:
            alarms["threshold"] = self.threshold.alarm(statistic)
        if self._conformal is not None:
            alarms["conformal"] = self._conformal.alarm(statistic)
        elif self._rule == "conformal":
            raise InputError("the conformal rule needs known batches; call calibrate() first")
        if self._tests_sequentially:
            alarms["sequential"] = test.alarm(self.alpha)
        return alarms, None if self._conformal is None else self._conformal.p_value(statistic)

    def _circuit(self, task: BatchTask, *, per_example: bool) -> EdgeScores:
        return circuit_like(
            self.model, task, self.reference_scores, per_example=per_example, batch_size=self._batch_size
        )

    def _measured(self, scores: EdgeScores, task: BatchTask) -> tuple[float, Excess | None]:
        """Shift of a batch, and what it has beyond the noise floor."""
        shift = circuit_shift(self.reference_scores, scores, distance=self.distance, **vars(self.view))
        if not math.isfinite(shift):
            raise NonFiniteError(
                f"the {self.distance} shift of {origin(task) or 'the batch'} is {shift}, because the scores "
                "do not vary; check the model, or use another distance"
            )
        if self._floor is None:
            return shift, None
        excess = self._floor.excess(rows_of(scores), level=self.level)
        if not math.isfinite(excess.value):
            raise NonFiniteError(
                f"the halves of {origin(task) or 'the batch'} have no {self.distance} similarity, so its "
                "noise floor is undefined; use larger batches, or a reference without a noise floor"
            )
        return shift, excess

    def _check_size(self, n: int) -> None:
        if self._floor is not None and n != self._floor.n:
            raise InputError(
                f"the batch holds {n} images, the batches of the reference {self._floor.n}, but noise "
                "depends on the size; give batches of the same size, or discover the reference with this one"
            )

    def _check_new(self, task: BatchTask) -> None:
        known = (self.reference_scores.provenance.get("task") or {}).get("data_hash")
        if task.data_hash == known:
            raise InputError(
                "these are the images of the reference circuit, whose shift is 0 by construction; give "
                "other images"
            )

    # ------------------------------------------------------------------------------------- what it says

    @property
    def guarantee(self) -> Guarantee:
        """How often the rule in force raises a false alarm, and what that rests on."""
        return guarantee(self.rule, self.threshold, self.calibration, self.alpha, inputs=self._inputs)

    def to_frame(self) -> "pd.DataFrame":
        """One row per batch: index, time, n, shift, low, high, excess, alarm, p_value, e_value, domain."""
        import pandas as pd

        columns = [
            "index",
            "time",
            "n",
            "shift",
            "low",
            "high",
            "excess",
            "alarm",
            "p_value",
            "e_value",
            "domain",
        ]
        rows = [
            each.to_dict() | each.interval.to_dict() | {"excess": each.excess and each.excess.value}
            for each in self.readings
        ]
        return pd.DataFrame([[row[name] for name in columns] for row in rows], columns=columns)

    def _summary(self) -> str:
        rows = [
            (each.index + 1, each.shift, display.ends(each.interval.low, each.interval.high, self.level),
             {None: "no rule", True: "alarm", False: "quiet"}[each.alarm])
            for each in self.readings[-LATEST:]
        ]  # fmt: skip
        title = f"monitor of {self.model.id}: {len(self.readings)} batches, the latest"
        return display.table(
            title, ("batch", f"shift ({self.distance})", "interval", "alarm"), rows, id=self.id
        )

    # ------------------------------------------------------------------------------------------- resume

    def _record(self, kind: str, content: dict[str, Any]) -> None:
        """Add a line to the log; what is watched comes before the first, so a failed start leaves no log."""
        if self._journal is None:
            return
        if not self._logged:
            self._journal.append("monitor", {**self._header, "id": self.id})
            self._logged = True
        self._journal.append(kind, content)

    def _earlier(self, first: Mapping[str, Any]) -> str:
        """How to go on with a monitor that has no noise floor yet, as earlier versions had none."""
        n = ((first.get("reference") or {}).get("task") or {}).get("n")
        if self._floor is None or "statistic" in first or n is None:
            return ""
        return f". Its reference holds {n} images; a reference of this size (--reference-n {n}) resumes it"

    def _resume(self, journal: Journal) -> None:
        """Take over what the log holds."""
        entries = journal.read()
        if not entries:
            return
        kind, first = entries[0]
        if kind != "monitor" or first.get("id") != self.id:
            differs = [
                name
                for name, each in self._header.items()
                if name != "library" and first.get(name) != plain(each)
            ]
            raise InputError(
                f"the readings in {journal.path} belong to another monitor (different: "
                f"{', '.join(differs) or 'its record'}); choose another place for the readings of this one"
                f"{self._earlier(first)}"
            )
        self._logged = True
        for kind, content in entries[1:]:
            if kind == "calibration":
                self._take(Calibration.from_dict(content))
            elif kind == "reading":
                reading = Reading.from_dict(content)
                statistic = reading.shift if reading.excess is None else reading.excess.value
                self._sequential = self._sequential.observe(statistic, self._tie(reading.index))
                self.readings.append(reading)

"""A monitor as a job: started from a plan, observing, everything kept and taken up again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.analyses.generalization.domain_shifts import DomainCalibration, calibrate_on_corruptions
from assay.analyses.generalization.journal import Reading
from assay.analyses.generalization.known_parts import MOST_LABELLED, KnownParts, split_known
from assay.analyses.generalization.monitoring import Monitor
from assay.analyses.generalization.shift import USUAL_VIEW
from assay.circuits import EdgeScores, write_atomically
from assay.core.errors import FileFormatError, InputError
from assay.core.untrusted import malformed, parse_json
from assay.models import Model
from assay.pipeline.image_stream import Batch
from assay.pipeline.monitor_directory import DOCUMENT, DOMAINS, PAGE, READINGS
from assay.pipeline.monitor_plan import MonitorPlan
from assay.pipeline.monitor_reference import reference_of
from assay.pipeline.stage import Progress, silent
from assay.report import save_report
from assay.tasks import EvalTransform, ImageSet, ImageStream
from assay.zoo.scoring import images_hash


@dataclass(frozen=True, kw_only=True, eq=False)
class StartedMonitor:
    """A monitor ready to observe.

    Attributes:
        monitor: With known batches, if there are any, and earlier readings.
        domains: The calibration on corrupted domains; None without a target.
        out: Where everything is kept.
        passed: Names of files that could not be read since the last reading.
    """

    monitor: Monitor
    domains: DomainCalibration | None
    out: Path
    passed: list[str] = field(default_factory=list)

    @cached_property
    def _shown(self) -> list[dict[str, Any]]:
        return []

    @cached_property
    def _head(self) -> dict[str, Any]:
        """What stays the same while it observes."""
        head = self.monitor.to_dict()
        self._shown.extend(head.pop("readings"))
        if self.domains is None:
            return head
        return {**head, "domains": self.domains.to_dict()}

    @property
    def document(self) -> dict[str, Any]:
        """What the page shows: the monitor, and the domains if there are any; cheap to ask for again."""
        head = self._head
        new = self.monitor.readings[len(self._shown) :]
        self._shown.extend(each.to_dict() for each in new)
        return {
            **head,
            "readings": list(self._shown),
            "passed": list(self.passed),
        }

    def observe(self, batch: Batch) -> Reading:
        """Observe a batch; errors as `Monitor.observe`."""
        return self.monitor.observe(batch.inputs, sources=batch.sources, skipped=batch.skipped)

    @property
    def done(self) -> frozenset[str]:
        """Names of images observed or passed over before."""
        return frozenset(name for each in self.monitor.readings for name in each.names)

    def write(self, *, page: bool = True) -> None:
        """Write the document, and the page once there is a reading.

        Args:
            page: False leaves the page as it is.

        Raises:
            OutputError: If a file cannot be written.
        """
        document = self.document
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / DOCUMENT, json.dumps(document, indent=1, allow_nan=False).encode())
        if page and document["readings"]:
            save_report(self.out / PAGE, document)


def start_monitor(
    model: Model,
    plan: MonitorPlan,
    *,
    out: Path,
    transform: EvalTransform | None = None,
    progress: Progress | None = None,
) -> StartedMonitor:
    """Find or read the reference circuit, calibrate, and take up earlier readings.

    Args:
        model: The deployed model.
        plan: What to start from.
        out: Directory of readings, document and page; what lies there from an earlier run of the same plan is
            used again.
        transform: Of the images; default: the model's own.
        progress: Called with the name of a stage, what is done, and the total or 0.

    Raises:
        InputError: If images are too few or have no labels where they are needed, or `out` holds readings of
            another monitor.
        FileFormatError: If a file or folder cannot be read.
        OutputError: If something cannot be written.
    """
    transform = transform or EvalTransform.for_model(model)
    progress = progress or silent
    reference, pool = reference_of(model, plan, transform, out, progress)
    domains = None
    learn: ImageSet | ImageStream | None = None
    threshold: Any = plan.threshold
    if pool is not None and pool.labels is not None:
        learn = pool.sample(MOST_LABELLED, seed=plan.seed)  # folders list class after class
    if plan.target is not None:
        if pool is None:
            raise InputError(
                "a target needs labelled in-distribution images to corrupt; give --known, or a reference "
                "folder with more images than the window"
            )
        parts = split_known(pool, plan.window, seed=plan.seed)
        learn = parts.learn or learn
        domains = _domains(model, plan, reference, parts, transform, out, progress)
        threshold = domains.threshold(plan.target, metric=plan.distance)
    monitor = Monitor(
        model,
        reference,
        threshold,
        distance=plan.distance,
        view=plan.view,
        rule=plan.rule,
        alpha=plan.alpha,
        labelled=learn,
        transform=transform,
        batch_size=plan.batch_size,
        log=out / READINGS,
        seed=plan.seed,
    )
    _calibrate(monitor, plan, pool, progress)
    return StartedMonitor(monitor=monitor, domains=domains, out=out)


def _domains(
    model: Model,
    plan: MonitorPlan,
    reference: EdgeScores,
    parts: KnownParts,
    transform: EvalTransform,
    out: Path,
    progress: Progress,
) -> DomainCalibration:
    """The corrupted domains, from the directory where they were measured before."""
    images = parts.corrupt
    stored = out / DOMAINS
    wanted = {
        "reference": json.loads(json.dumps(dict(reference.provenance))),
        "domain": images.domain,
        "hash": images_hash(images),
        "learnt": None if parts.learn is None else images_hash(parts.learn),
        "n": min(plan.window, images.n),
        "seed": plan.seed,
        "view": {} if plan.view == USUAL_VIEW else plan.view.to_dict(),
    }
    if stored.is_file():
        calibration = _read_domains(stored)
        earlier = calibration.provenance["images"]
        if wanted == {
            "reference": calibration.provenance["reference"],
            **{name: earlier.get(name) for name in ("domain", "hash", "learnt", "n", "seed")},
            "view": calibration.provenance.get("view", {}),
        }:
            return calibration
    calibration = calibrate_on_corruptions(
        model,
        reference,
        images,
        n=wanted["n"],
        labelled=parts.learn,
        view=plan.view,
        transform=transform,
        batch_size=plan.batch_size,
        progress=lambda _, done, __: progress("corrupted domains", done, 39),
        seed=plan.seed,
    )
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(stored, json.dumps(calibration.to_dict(), indent=1, allow_nan=False).encode())
    return calibration


def _read_domains(path: Path) -> DomainCalibration:
    try:
        content: Mapping[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {path} ({error}); remove it to measure again") from error
    with malformed(path, "a calibration on corrupted domains"):
        return DomainCalibration.from_dict(content)


def _calibrate(monitor: Monitor, plan: MonitorPlan, pool: ImageStream | None, progress: Progress) -> None:
    """Known batches, unless there are some already or none are wanted."""
    if monitor.calibration is not None or monitor.readings or plan.known_batches == 0:
        return
    by_default = plan.known_batches is None and (
        plan.rule in ("threshold", "sequential") or (plan.rule is None and monitor.threshold is not None)
    )
    if pool is None or (by_default and pool.n < plan.window):
        if plan.known_batches is None:
            return
        raise InputError("no in-distribution images are left to calibrate on; give --known")
    progress("known batches", 0, plan.known_batches or 0)
    monitor.calibrate(pool, batch_size=plan.window, n_batches=plan.known_batches)

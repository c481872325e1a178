"""A monitor as a job: started from a plan, observing, everything kept and taken up again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.analyses.generalization.alarms import batches_for
from assay.analyses.generalization.domains import (
    MOST_LABELLED,
    DomainCalibration,
    KnownParts,
    calibrate_on_corruptions,
    split_known,
)
from assay.analyses.generalization.monitor import Monitor, Reading
from assay.circuits import EdgeScores, write_atomically
from assay.core.errors import FileFormatError, InputError
from assay.core.random import stream
from assay.core.untrusted import malformed, parse_json
from assay.models import Model
from assay.pipeline.image_stream import Batch
from assay.pipeline.monitor_directory import DOCUMENT, DOMAINS, PAGE, READINGS
from assay.pipeline.monitor_plan import USUAL_REFERENCE, MonitorPlan
from assay.pipeline.monitor_reference import known_outputs, reference_of
from assay.pipeline.stage import Progress, silent
from assay.report.save import save_report
from assay.tasks import EvalTransform, ImageTask


@dataclass(frozen=True, kw_only=True, eq=False)
class StartedMonitor:
    """A monitor ready to observe.

    Attributes:
        monitor: With known batches, if there are any, and earlier readings.
        domains: The calibration on corrupted domains; None without a target.
        out: Where everything is kept.
        pool: Images in distribution, from which known batches of other sizes are drawn.
        known_batches: Batches of each size; None: all that the images give.
        passed: Names of files that could not be read since the last reading.
    """

    monitor: Monitor
    domains: DomainCalibration | None
    out: Path
    pool: ImageTask | None = None
    known_batches: int | None = None
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
        """Observe a batch; one of another size than those before is compared with known ones of its size.

        Errors as `Monitor.observe` and `Monitor.calibrate`.
        """
        n = batch.inputs.n
        if self.monitor.calibration is not None and n not in self.monitor.sizes and self.pool is not None:
            self.monitor.calibrate(self.pool, batch_size=n, n_batches=self.known_batches)
        page = str(self.out / PAGE)
        return self.monitor.observe(batch.inputs, sources=batch.sources, skipped=batch.skipped, page=page)

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
    reference, images, pool = reference_of(model, plan, transform, out, progress)
    domains = None
    learn: ImageTask | None = None
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
    if images is None and pool is not None:
        images, pool = _parted(pool, plan)
    monitor = Monitor(
        model,
        reference,
        threshold,
        outputs=None if images is None else known_outputs(model, images, out),
        distance=plan.distance,
        rule=plan.rule,
        alpha=plan.alpha,
        labelled=learn,
        transform=transform,
        log=out / READINGS,
        seed=plan.seed,
    )
    _calibrate(monitor, plan, pool, progress)
    return StartedMonitor(
        monitor=monitor, domains=domains, out=out, pool=pool, known_batches=plan.known_batches
    )


def _parted(pool: ImageTask, plan: MonitorPlan) -> tuple[ImageTask | None, ImageTask]:
    """Known images to compare outputs with, and those to calibrate on, which must not be among them."""
    needed = 1 if plan.known_batches == 0 else plan.known_batches or batches_for(plan.alpha / 2)
    size = min(USUAL_REFERENCE, pool.n // 5, pool.n - plan.window * needed)
    if size < 2:
        return None, pool
    order = stream(plan.seed, "monitor/outputs").permutation(pool.n)
    return pool.subset(order[:size].tolist()), pool.subset(order[size:].tolist())


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
        "hash": images.source_hash[:16],
        "learnt": None if parts.learn is None else parts.learn.source_hash[:16],
        "n": min(plan.window, images.n),
        "seed": plan.seed,
    }
    if stored.is_file():
        calibration = _read_domains(stored)
        earlier = calibration.provenance["images"]
        if wanted == {
            "reference": calibration.provenance["reference"],
            **{name: earlier.get(name) for name in ("domain", "hash", "learnt", "n", "seed")},
        }:
            return calibration
    calibration = calibrate_on_corruptions(
        model,
        reference,
        images,
        n=wanted["n"],
        labelled=parts.learn,
        transform=transform,
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


def _calibrate(monitor: Monitor, plan: MonitorPlan, pool: ImageTask | None, progress: Progress) -> None:
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

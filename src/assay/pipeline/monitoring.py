"""A monitor as a job: started from a plan, observing, everything kept in a directory and taken up again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from filelock import lock_descriptor

from assay.analyses.generalization.alarms import batches_for
from assay.analyses.generalization.domains import (
    MOST_LABELLED,
    DomainEvaluation,
    EvaluationSettings,
    calibrate_on_corruptions,
    split_known,
)
from assay.analyses.generalization.monitor import Monitor, Reading, discover_reference
from assay.circuits import EdgeScores, load_scores, write_atomically
from assay.core.errors import InputError, OutputError, writing
from assay.core.random import stream
from assay.core.record import record_id
from assay.models import Model
from assay.pipeline.stage import Progress, silent
from assay.pipeline.targets import FIRST_KNOWN
from assay.report.save import save_report
from assay.tasks import EvalTransform, ImageTask, find_domains, is_shapes, is_table, one_domain


READINGS, DOCUMENT, PAGE = "readings.jsonl", "monitor.json", "monitor.html"
METHOD, STEPS, QUADRATURE = "eap-ig-inputs", 5, "midpoint"
USUAL_BATCHES = 39  # known ones drawn from `shapes:`: what two tests at half of alpha 0.05 take
LEAST_BATCHES = 4  # of a reference, where images suffice
USUAL_REFERENCE = 1024  # images of a reference, unless calibration needs them


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep a monitor's directory from a second process while entered; makes it if need be.

    Raises:
        OutputError: If another process holds it, or it cannot be written.
    """
    with writing(f"write to {out}", "choose another directory"):
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".lock").open("ab")
    with file:
        with writing(f"lock {out}", "choose another directory"):
            alone = lock_descriptor(file.fileno(), blocking=False)
        if not alone:
            raise OutputError(
                f"{out} is in use by another monitor that still runs; stop it, or choose another directory"
            )
        yield


@dataclass(frozen=True, kw_only=True)
class MonitorPlan:
    """What a monitor starts from.

    Attributes:
        reference: File of edge scores, folder of images, or `shapes:DOMAIN`.
        known: Source of further images in distribution. Default: those of the reference's that
            the reference circuit does not use.
        window: Images of a batch, 2 or more.
        reference_n: Those of the reference circuit if it is to be found; whole windows are used. None:
            1,024 or four windows, or all that calibration leaves.
        known_batches: Batches to calibrate on; 0: none; None: all available.
        threshold: Shift above which to raise the alarm.
        target: Performance below which to raise it: the threshold is then read off 39 corrupted domains.
        rule, alpha, distance: As in `Monitor`.
        steps: Of the reference circuit, by `eap-ig-inputs` and the midpoint rule; None: as of a file's
            circuit, else 5.
        seed: Root seed of all random draws.
        skip_bad: Pass over image files that cannot be read.
    """

    reference: str
    known: str | None = None
    window: int = 64
    reference_n: int | None = None
    known_batches: int | None = None
    threshold: float | None = None
    target: float | None = None
    rule: str | None = None
    alpha: float = 0.05
    distance: str = "spearman"
    steps: int | str | None = None
    seed: int = 0
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.threshold is not None and self.target is not None:
            raise InputError(
                "threshold and target exclude each other, because a target determines a threshold; give one"
            )
        if self.known == self.reference:
            raise InputError(
                f"known and reference images are both {self.known}; remove known, and the images are split"
            )

    @property
    def given(self) -> bool:
        """Whether the reference circuit is a file."""
        source = self.reference
        return not (is_shapes(source) or is_table(source) or Path(source).is_dir())

    @property
    def needed(self) -> int:
        """Known batches that are kept for calibration; one where none are measured."""
        asked = batches_for(self.alpha / 2) if self.known_batches is None else self.known_batches
        return max(asked, 1)

    @property
    def reference_batches(self) -> int:
        """Batches of the reference, at most; 0 for a file."""
        usual = max(LEAST_BATCHES, USUAL_REFERENCE // self.window)
        return 0 if self.given else usual if self.reference_n is None else self.reference_n // self.window

    def images(self, source: str, model: Model, transform: EvalTransform) -> ImageTask:
        """The images of a source in distribution, as the model reads them; decoded whenever they are read.

        Raises:
            InputError: If it holds several domains.
            FileFormatError: If it cannot be read.
        """
        batches = max(1, self.reference_batches) + max(
            self.needed, USUAL_BATCHES if self.known_batches is None else 1
        )
        domains = find_domains(source, seed=self.seed, start=FIRST_KNOWN, drawn=self.window * batches)
        images = one_domain(domains, source).for_model(model, transform)
        return images.readable() if self.skip_bad else images

    def reference_size(self, n: int) -> int:
        """Images of the reference circuit, whole windows, when so many are at hand.

        Raises:
            InputError: For fewer than a window, or than were asked for.
        """
        wanted = max(self.reference_n or 0, self.window)
        if n < wanted:
            raise InputError(
                f"{self.reference} holds {n} images, but the reference circuit needs {wanted}; give more "
                "images or a smaller window"
            )
        if self.reference_n is None and self.known is None and self.known_batches != 0:
            n -= self.window * self.needed
        return self.window * max(1, min(self.reference_batches, n // self.window))


class Reference(NamedTuple):
    """A reference circuit.

    Attributes:
        scores: The circuit.
        images: Those that it rests on; None where the circuit came from a file.
        pool: Further images in distribution; None where there are none.
    """

    scores: EdgeScores
    images: ImageTask | None
    pool: ImageTask | None


def reference_of(
    model: Model, plan: MonitorPlan, transform: EvalTransform, cache: Path, progress: Progress
) -> Reference:
    """The reference circuit, read, discovered or taken from the cache, and images in distribution.

    Raises:
        InputError: For too few images, or steps that differ from those of a file's circuit.
        GraphMismatchError: For a file of edge scores of another model.
    """
    pool = None if plan.known is None else plan.images(plan.known, model, transform)
    if plan.given:
        reference = load_scores(plan.reference, graph=model.graph)
        recorded = reference.provenance.get("steps")
        if plan.steps not in (None, recorded):
            raise InputError(
                f"steps is {plan.steps}, but the circuit of {plan.reference} was discovered with {recorded}, "
                "which must hold for every batch; remove steps, or give the images of the reference"
            )
        return Reference(reference, None, pool)
    images = plan.images(plan.reference, model, transform)
    order = stream(plan.seed, "monitor/reference").permutation(images.n)
    size = plan.reference_size(images.n)
    if pool is None and images.n > size:
        pool = images.subset(order[size:].tolist())
    known = images.subset(order[:size].tolist())
    settings: dict[str, Any] = {"steps": plan.steps or STEPS, "quadrature": QUADRATURE, "seed": plan.seed}
    record = {
        "model": model.describe(),
        "images": [known.source_hash, known.domain],
        "batch": plan.window,
        **settings,
    }
    path = cache / f"reference-{record_id('reference', record)}.safetensors"
    if path.is_file():
        return Reference(load_scores(path, graph=model.graph), known, pool)
    progress("reference", 0, 1)
    reference = discover_reference(model, known, METHOD, batch=plan.window, **settings)
    cache.mkdir(parents=True, exist_ok=True)
    reference.save(path)
    progress("reference", 1, 1)
    return Reference(reference, known, pool)


@dataclass(frozen=True, kw_only=True, eq=False)
class StartedMonitor:
    """A monitor ready to observe.

    Attributes:
        monitor: With known batches, if there are any, and earlier readings.
        domains: The calibration on corrupted domains; None without a target.
        out: Where everything is kept.
        pool: Images in distribution, from which known batches of other sizes are drawn.
        known_batches: Batches of each size; None: all that the images give.
    """

    monitor: Monitor
    domains: DomainEvaluation | None
    out: Path
    pool: ImageTask | None
    known_batches: int | None

    @property
    def document(self) -> dict[str, Any]:
        """What the page shows: the monitor, and the domains if there are any."""
        domains = {} if self.domains is None else {"domains": self.domains.to_dict()}
        return self.monitor.to_dict() | domains

    def observe(self, batch: ImageTask) -> Reading:
        """Observe a batch; one of another size than those before is compared with known ones of its size.

        Errors as `Monitor.observe` and `Monitor.calibrate`.
        """
        monitor = self.monitor
        if monitor.calibrations and batch.n not in monitor.calibrations and self.pool is not None:
            monitor.calibrate(self.pool, batch_size=batch.n, n_batches=self.known_batches)
        return monitor.observe(batch, sources=batch.fields["path"], page=str(self.out / PAGE))

    def write(self, *, page: bool = True) -> None:
        """Write the document, and the page once there is a reading.

        Args:
            page: False leaves the page as it is.

        Raises:
            OutputError: If a file cannot be written.
        """
        document = self.document
        write_atomically(self.out / DOCUMENT, json.dumps(document, indent=1, allow_nan=False).encode())
        if page and document["readings"]:
            save_report(self.out / PAGE, document)


def start_monitor(
    model: Model, plan: MonitorPlan, *, out: Path, progress: Progress = silent
) -> StartedMonitor:
    """Find or read the reference circuit, calibrate, and take up earlier readings.

    Args:
        model: The deployed model.
        plan: What to start from.
        out: Directory of readings, document and page; what lies there from an earlier run of the same plan is
            used again.
        progress: Called with the name of a stage, what is done, and the total or 0.

    Raises:
        InputError: If images are too few or have no labels where they are needed, or `out` holds readings of
            another monitor.
        FileFormatError: If a file or folder cannot be read.
        OutputError: If something cannot be written.
    """
    transform, cache = EvalTransform.for_model(model), out / "cache"
    reference, images, pool = reference_of(model, plan, transform, cache, progress)
    learn, domains, threshold = None, None, None
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
        domains = calibrate_on_corruptions(
            model,
            reference,
            parts.corrupt,
            settings=EvaluationSettings(n=min(plan.window, parts.corrupt.n), seed=plan.seed),
            labelled=parts.learn,
            transform=transform,
            cache=cache,
            progress=lambda _, done, __: progress("corrupted domains", done, 39),
        )
        threshold = domains.threshold(plan.target, metric=plan.distance)
    if images is None and pool is not None:
        images, pool = parted(pool, plan)
    monitor = Monitor(
        model,
        reference,
        threshold or plan.threshold,
        outputs=images,
        distance=plan.distance,
        rule=plan.rule,
        alpha=plan.alpha,
        labelled=learn,
        transform=transform,
        log=out / READINGS,
        cache=cache,
        seed=plan.seed,
    )
    _calibrate(monitor, plan, pool, progress)
    return StartedMonitor(
        monitor=monitor, domains=domains, out=out, pool=pool, known_batches=plan.known_batches
    )


def parted(pool: ImageTask, plan: MonitorPlan) -> tuple[ImageTask | None, ImageTask]:
    """Known images to compare outputs with, and those to calibrate on, which must not be among them."""
    size = min(USUAL_REFERENCE, pool.n // 5, pool.n - plan.window * plan.needed)
    if size < 2:
        return None, pool
    order = stream(plan.seed, "monitor/outputs").permutation(pool.n)
    return pool.subset(order[:size].tolist()), pool.subset(order[size:].tolist())


def _calibrate(monitor: Monitor, plan: MonitorPlan, pool: ImageTask | None, progress: Progress) -> None:
    """Known batches, unless there are some already or none are wanted."""
    if monitor.calibrations or monitor.readings or plan.known_batches == 0:
        return
    needed = plan.known_batches is not None or monitor.rules.rule in (None, "conformal")
    if pool is None or (pool.n < plan.window and not needed):
        if plan.known_batches is None:
            return
        raise InputError("no in-distribution images are left to calibrate on; give --known")
    progress("known batches", 0, plan.known_batches or 0)
    monitor.calibrate(pool, batch_size=plan.window, n_batches=plan.known_batches)

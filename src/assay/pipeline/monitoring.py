"""A monitor as a job: reference and known batches from images, everything kept and taken up again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.analyses.generalization.alarms import batches_for
from assay.analyses.generalization.batches import batch_task
from assay.analyses.generalization.detectable_drop import LEAST_BATCHES, DetectableDrop, detectable_drops
from assay.analyses.generalization.domain_shifts import DomainCalibration, calibrate_on_corruptions
from assay.analyses.generalization.journal import Reading
from assay.analyses.generalization.monitoring import MOST_BATCHES, Monitor
from assay.analyses.generalization.reference import Reference, discover_reference, load_reference
from assay.analyses.generalization.shift import USUAL_VIEW, ShiftView
from assay.circuits import EdgeScores, write_atomically
from assay.core.errors import FileFormatError, InputError
from assay.core.random import stream
from assay.core.untrusted import malformed, parse_json
from assay.models import Model
from assay.pipeline.batch_pictures import BatchPictures
from assay.pipeline.image_stream import Batch, known_images
from assay.pipeline.prompt_stream import is_drawn, is_prompts, known_prompts
from assay.pipeline.stage import Progress, silent
from assay.report import save_report
from assay.tasks import EvalTransform, ImageSet, ReadOptions, is_shapes
from assay.tasks.image_tables import is_table
from assay.tasks.prompt_set import ArrivingPrompts
from assay.zoo.scoring import images_hash


READINGS, DOCUMENT, PAGE = "readings.jsonl", "monitor.json", "monitor.html"
REFERENCE, DOMAINS = "reference.safetensors", "domains.json"
METHOD, STEPS, QUADRATURE = "eap-ig-inputs", 5, "midpoint"
USUAL_BATCHES = 39  # known ones drawn from `shapes:`: two of them lie above the limit of alpha 0.05
USUAL_REFERENCE = 1024  # images of a reference, unless calibration needs them
MOST_LABELLED = 1000  # images that ATC and DoC learn from, a sample: folders list class after class


@dataclass(frozen=True, kw_only=True)
class MonitorPlan:
    """What a monitor starts from.

    Attributes:
        reference: File of edge scores, folder of images, or `shapes:DOMAIN`; for a language model a JSON
            lines file of prompts, or `task:KEY`.
        known: Source of further images or prompts in distribution. Default: those of the reference's that
            the reference circuit does not use.
        window: Images or prompts of a batch.
        reference_n: Those of the reference circuit if it is to be found; whole windows are used. None:
            1,024, or all that calibration leaves.
        known_batches: Batches to calibrate on; 0: none; None: all available.
        threshold: Shift above which to raise the alarm.
        target: Performance below which to raise it: the threshold is then read off 39 corrupted domains.
        rule, alpha, distance, view: As in `Monitor`.
        method, objective, ablation, steps, quadrature: Of the reference circuit; None: as of a file's
            circuit, else `eap-ig-inputs`, what the images ask for, and 5 steps of the midpoint rule.
        seed: Root seed of all random draws.
        skip_bad: Pass over image files that cannot be read.
        batch_size: Images per pass.
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
    method: str | None = None
    objective: str | None = None
    ablation: str | None = None
    steps: int | str | None = None
    quadrature: str | None = None
    view: ShiftView = USUAL_VIEW
    seed: int = 0
    skip_bad: bool = False
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and self.target is not None:
            raise InputError(
                "threshold and target exclude each other, because a target determines a threshold; give one"
            )
        if self.target is not None and not 0 < self.target <= 1:
            raise InputError(f"target is {self.target}; expected a performance above 0 and at most 1")
        if self.window < 2:
            raise InputError(f"window is {self.window}; a batch needs at least 2 images")
        if self.reference_n is not None and self.reference_n < self.window:
            raise InputError(
                f"reference_n is {self.reference_n}, less than the window of {self.window}; the reference "
                "needs the images of at least one batch"
            )
        if self.reference_n is not None and self.given:
            raise InputError(
                f"reference_n has no effect on the circuit of {self.reference}, which is a file; remove it, "
                "or give the images of the reference"
            )

    @property
    def given(self) -> bool:
        """Whether the reference circuit is a file."""
        source = self.reference
        images = is_shapes(source) or is_table(source) or Path(source).is_dir()
        return not (images or is_prompts(source))

    @property
    def known_source(self) -> str | None:
        """Where known images come from; None: from nowhere."""
        return self.known or (None if self.given else self.reference)

    @property
    def most_batches(self) -> int:
        """Known batches, at most: those asked for, those drawn, or what a folder may give."""
        if self.known_source is None:
            return 0
        if self.known_batches is not None:
            return self.known_batches
        drawn = self.n_drawn // self.window - (self.known is None) * self.reference_batches
        return min(drawn, MOST_BATCHES) if is_drawn(self.known_source) else MOST_BATCHES

    @property
    def most_labelled(self) -> int:
        """Images that baselines learn from, at most; prompts have no labels."""
        if self.known_source is None or is_prompts(self.known_source):
            return 0
        drawn = self.n_drawn - (self.known is None) * self.reference_batches * self.window
        return min(drawn, MOST_LABELLED) if is_drawn(self.known_source) else MOST_LABELLED

    @property
    def n_drawn(self) -> int:
        """Known images to draw from a `shapes:` source."""
        batches = self.known_batches
        if batches is None:
            batches = max(USUAL_BATCHES, batches_for(self.alpha))
        return self.window * (max(1, self.reference_batches) + max(batches, 1))

    @property
    def reference_batches(self) -> int:
        """Batches of the reference, at most; 0 for a file."""
        if self.given:
            return 0
        return max(1, (self.reference_n or USUAL_REFERENCE) // self.window)

    def reference_size(self, n: int) -> int:
        """Images of the reference circuit, whole windows, when so many are at hand.

        Raises:
            InputError: For fewer than a window, or than were asked for.
        """
        wanted = self.reference_n or self.window
        if n < wanted:
            raise InputError(
                f"{self.reference} holds {n} images, but the reference circuit needs {wanted}; give more "
                f"images or a smaller {'window' if self.reference_n is None else 'reference'}"
            )
        left = n
        if self.reference_n is None and self.known is None and self.known_batches != 0:
            left -= self.window * (self.known_batches or batches_for(self.alpha))
        return self.window * max(1, min(self.reference_batches, left // self.window))


@dataclass(frozen=True, kw_only=True, eq=False)
class StartedMonitor:
    """A monitor ready to observe.

    Attributes:
        monitor: With known batches, if there are any, and earlier readings.
        domains: The calibration on corrupted domains; None without a target.
        out: Where everything is kept.
        passed: Names of files that could not be read since the last reading.
        undefined: Names of files of windows since then whose shift is undefined.
        without_floor: Why shifts are not corrected for a noise floor; empty where they are.
    """

    monitor: Monitor
    domains: DomainCalibration | None
    out: Path
    passed: list[str] = field(default_factory=list)
    undefined: list[str] = field(default_factory=list)
    without_floor: str = ""

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
        drops = [{**each.to_dict(), "statement": each.statement} for each in self.drops]
        return {**head, "domains": self.domains.to_dict(), "detectable": drops}

    @cached_property
    def drops(self) -> tuple[DetectableDrop, ...]:
        """The smallest drops that one batch detects by the rule in force.

        Empty without domains, with too few known batches, and under the sequential rule, which decides over
        many batches.
        """
        monitor, known = self.monitor, self.monitor.calibration
        if self.domains is None or known is None or monitor.rule == "sequential":
            return ()
        threshold = monitor.threshold if monitor.rule == "threshold" else None
        least = batches_for(monitor.alpha) if threshold is None else LEAST_BATCHES
        if len(known.shifts) < least or {each.n for each in self.domains.known} != {known.n}:
            return ()
        return detectable_drops(
            self.domains, known, metric=monitor.distance, threshold=threshold, alpha=monitor.alpha
        )

    @property
    def document(self) -> dict[str, Any]:
        """What the page shows: the monitor, and the domains if there are any; cheap to ask for again."""
        head = self._head
        new = self.monitor.readings[len(self._shown) :]
        self._shown.extend(each.to_dict() for each in new)
        pictures = self._pictures.to_dict()
        of_now = {"readings": self._shown, "passed": self.passed, "undefined": self.undefined}
        return {**head, **{name: list(each) for name, each in of_now.items()}, "pictures": pictures}

    @cached_property
    def _pictures(self) -> BatchPictures:
        return BatchPictures(self.out / DOCUMENT)

    def observe(self, batch: Batch) -> Reading:
        """Observe a batch and keep pictures of it; errors as `Monitor.observe`."""
        reading = self.monitor.observe(
            batch.inputs, sources=batch.sources, skipped=batch.skipped, undefined=batch.undefined
        )
        alarmed = frozenset(each.index for each in self.monitor.readings if each.alarm)
        self._pictures.add(batch, reading, alarmed)
        return reading

    @property
    def done(self) -> frozenset[str]:
        """Names of images observed or passed over before."""
        return frozenset(name for each in self.monitor.readings for name in each.names)

    @property
    def pictured(self) -> frozenset[str]:
        """Names of the images of batches that the page has pictures of."""
        kept = self._pictures.to_dict()
        return frozenset(
            name for each in self.monitor.readings if str(each.index) in kept for name in each.names
        )

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
    if model.vision:
        transform = transform or EvalTransform.for_model(model)
    elif plan.target is not None:
        raise InputError("a target corrupts labelled images, but the model reads prompts; give a threshold")
    progress = progress or silent
    reference, pool = reference_of(model, plan, transform, out, progress)
    domains = None
    threshold: Any = plan.threshold
    if plan.target is not None:
        assert isinstance(pool, ImageSet | None), "a target is refused for prompts"
        domains = _domains(model, plan, reference, pool, transform, out, progress)
        threshold = domains.threshold(plan.target, metric=plan.distance)
    monitor = Monitor(
        model,
        reference,
        threshold,
        distance=plan.distance,
        view=plan.view,
        rule=plan.rule,
        alpha=plan.alpha,
        labelled=pool.sample(MOST_LABELLED, seed=plan.seed)
        if isinstance(pool, ImageSet) and pool.labels is not None
        else None,
        estimator=None if domains is None else domains.accuracy_estimator(),
        drift=pool if isinstance(pool, ImageSet) else None,
        transform=transform,
        batch_size=plan.batch_size,
        log=out / READINGS,
        seed=plan.seed,
    )
    _calibrate(monitor, plan, pool, progress)
    without = "only the usual comparison of circuits has a noise floor"
    if plan.view == USUAL_VIEW:
        without = reference.without_floor(plan.distance)
    return StartedMonitor(monitor=monitor, domains=domains, out=out, without_floor=without)


def known_inputs(
    plan: MonitorPlan, source: str, model: Model, transform: EvalTransform | None, *, n: int | None = None
) -> ImageSet | ArrivingPrompts:
    """The images or prompts of a source in distribution, as the model reads; `n` of a drawn one.

    Raises:
        InputError: If the source holds the other kind.
        FileFormatError: If it cannot be read.
    """
    n = plan.n_drawn if n is None else n
    if is_prompts(source) == bool(model.vision):
        reads, others = ("images", "prompts") if model.vision else ("prompts", "images")
        raise InputError(f"{source} holds {others}, but {model.id} reads {reads}; give {reads}")
    if transform is None:
        return known_prompts(source, model, n=n, seed=plan.seed, skip_bad=plan.skip_bad)
    return known_images(
        source,
        transform,
        n=n,
        classes=model.classes,
        options=ReadOptions(seed=plan.seed, skip_bad=plan.skip_bad),
    )


def reference_of(
    model: Model, plan: MonitorPlan, transform: EvalTransform | None, out: Path, progress: Progress
) -> tuple[Reference, ImageSet | ArrivingPrompts | None]:
    """The reference circuit, and images in distribution that it does not rest on."""
    pool = None if plan.known is None else known_inputs(plan, plan.known, model, transform)
    if plan.given:
        reference = load_reference(plan.reference, model)
        _check_settings(plan, reference.scores)
        return reference, pool
    if plan.known is not None and plan.known == plan.reference:
        raise InputError(
            f"known and reference images are both {plan.known}; remove known, and the images are split"
        )
    images = known_inputs(plan, plan.reference, model, transform)
    order = stream(plan.seed, "monitor/reference").permutation(images.n)
    size = plan.reference_size(images.n)
    if pool is None and images.n > size:
        pool = images.subset(order[size:].tolist())
    task = batch_task(model, images.subset(order[:size].tolist()), transform)
    method = plan.method or METHOD
    steps = STEPS if plan.steps is None else plan.steps
    quadrature = plan.quadrature or QUADRATURE
    settings = {
        "method": method,
        "objective": plan.objective or task.objective,
        "ablation": plan.ablation or task.ablation,
        "seed": plan.seed,
    }
    stored = out / REFERENCE
    if stored.is_file():
        reference = load_reference(stored, model)
        record = reference.scores.provenance
        same = {name: record.get(name) for name in settings} == settings
        same &= record.get("steps") in (steps, None) and not record.get("options")
        same &= record.get("quadrature") in (quadrature, None)
        same &= (record.get("task") or {}).get("data_hash") == task.data_hash
        same &= record.get("batch", size) == (plan.window if size > plan.window else size)
        if same and (record.get("model") or {}).get("weight_hash") == model.weight_hash:
            return reference, pool
    progress("reference", 0, 1)
    reference = discover_reference(
        model,
        task,
        method,
        batch=plan.window,
        objective=plan.objective,
        ablation=plan.ablation,
        steps=steps,
        quadrature=quadrature,
        batch_size=plan.batch_size,
        seed=plan.seed,
    )
    out.mkdir(parents=True, exist_ok=True)
    if not (out / READINGS).exists():
        reference.save(stored)
    progress("reference", 1, 1)
    return reference, pool


def _check_settings(plan: MonitorPlan, scores: EdgeScores) -> None:
    """Every batch is measured as the file's circuit was; settings that ask for something else are refused."""
    for name in ("method", "objective", "ablation", "steps", "quadrature"):
        asked, recorded = getattr(plan, name), scores.provenance.get(name)
        if asked is not None and recorded is not None and asked != recorded:
            raise InputError(
                f"{name} is {asked}, but the circuit of {plan.reference} was discovered with {recorded}, "
                f"which must hold for every batch; remove {name}, or give the images of the reference"
            )


def _domains(
    model: Model,
    plan: MonitorPlan,
    reference: Reference,
    pool: ImageSet | None,
    transform: EvalTransform | None,
    out: Path,
    progress: Progress,
) -> DomainCalibration:
    """The corrupted domains, from the directory where they were measured before."""
    if pool is None:
        raise InputError(
            "a target needs labelled in-distribution images to corrupt; give --known, or a reference folder "
            "with more images than the window"
        )
    stored = out / DOMAINS
    wanted = {
        "reference": json.loads(json.dumps(dict(reference.scores.provenance))),
        "domain": pool.domain,
        "hash": images_hash(pool),
        "n": min(plan.window, pool.n),
        "seed": plan.seed,
        "view": {} if plan.view == USUAL_VIEW else plan.view.to_dict(),
    }
    if stored.is_file():
        calibration = _read_domains(stored)
        images = calibration.provenance["images"]
        if calibration.clean_domain is not None and wanted == {
            "reference": calibration.provenance["reference"],
            **{name: images.get(name) for name in ("domain", "hash", "n", "seed")},
            "view": calibration.provenance.get("view", {}),
        }:
            return calibration
    calibration = calibrate_on_corruptions(
        model,
        reference,
        pool,
        n=wanted["n"],
        labelled=pool.sample(MOST_LABELLED, seed=plan.seed),
        view=plan.view,
        transform=transform,
        batch_size=plan.batch_size,
        progress=lambda _, done, __: progress("corrupted domains", done, 40),
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


def _calibrate(
    monitor: Monitor, plan: MonitorPlan, pool: ImageSet | ArrivingPrompts | None, progress: Progress
) -> None:
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

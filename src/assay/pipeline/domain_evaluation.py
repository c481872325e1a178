"""An evaluation over labelled domains as a job: domains found and checked, measured, kept one by one."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.analyses.generalization.batches import (
    check_reference,
    decoded_once,
    labelled_inspection,
)
from assay.analyses.generalization.dependency import DepthRule, node_layers
from assay.analyses.generalization.domain_evaluation import DomainEvaluation, LeftOutDomain
from assay.analyses.generalization.domains import (
    MOST_LABELLED,
    WINDOWS,
    Domain,
    DomainProbe,
    EvaluationSettings,
    split_known,
)
from assay.circuits import load_scores, write_atomically
from assay.core.errors import FileFormatError, InputError
from assay.core.record import library_version, plain, record_id
from assay.core.untrusted import parse_json
from assay.models import Model
from assay.pipeline.image_stream import FIRST_WATCHED
from assay.pipeline.monitor_plan import MonitorPlan
from assay.pipeline.monitor_reference import reference_of
from assay.pipeline.stage import Progress, silent
from assay.tasks import (
    CORRUPTIONS,
    EvalTransform,
    ImageTask,
    corrupt,
    find_domains,
    is_shapes,
    is_table,
    one_domain,
)
from assay.tasks.image_reading import Files


N_CIRCUIT = 300  # images of a circuit where nothing else says how many
Measured = Iterator[Domain | LeftOutDomain]


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """What is evaluated, and on what.

    Attributes:
        start: How the reference circuit is found; its `window` is the number of images of a circuit.
        images: Sources of test domains, as `find_domains` takes them.
        by: Columns of a table that make domains; empty: those of its layout.
        parts: Random disjoint parts that each test domain is cut into.
        rated: Images that performance is measured on, at most, of a domain or part.
        least: Images below which a domain or part is left out.
        corruptions: Keys of the calibration domains.
        settings: What is measured.
    """

    start: MonitorPlan
    images: tuple[str, ...]
    by: tuple[str, ...] = ()
    parts: int = 1
    rated: int = 1000
    least: int = 50
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        for key in self.corruptions:
            CORRUPTIONS[key]
        small = [name for name in ("parts", "rated", "least") if getattr(self, name) < 1]
        if small:
            raise InputError(f"{small[0]} is {getattr(self, small[0])}; give 1 or more")

    @property
    def changed(self) -> int:
        """Images in distribution that are corrupted, at most."""
        return max(self.rated, WINDOWS * self.settings.n)

    @property
    def most_read(self) -> int:
        """Images read of a test domain, at most."""
        return self.parts * max(self.rated, self.settings.n)

    def domains(self) -> dict[str, ImageTask]:
        """The test domains, without the one that the reference is from; no image is read.

        Raises:
            InputError: If there is none, or two have one name.
            FileFormatError: If nothing is at a place.
        """
        found: dict[str, ImageTask] = {}
        for source in self.images:
            # An empty choice of columns means those of the layout of a table.
            domains = find_domains(
                source,
                by=self.by or (() if is_table(source) else None),
                n=self.most_read,
                seed=self.settings.seed,
                start=FIRST_WATCHED,
            )
            for name, images in domains.items():
                if self._is_reference(source, name, images):
                    continue
                if name in found:
                    raise InputError(f"two test domains are called {name!r}; rename the folder of one")
                found[name] = images
        if not found:
            raise InputError(
                f"{', '.join(self.images)} holds no domain besides that of the reference; give others"
            )
        return found

    def _is_reference(self, source: str, name: str, images: ImageTask) -> bool:
        reference = self.start.reference
        if is_shapes(reference):
            return is_shapes(source) and reference.endswith(f":{name}")
        root = images.source.root if isinstance(images.source, Files) and not is_table(source) else None
        return root is not None and root.resolve() == Path(reference).resolve()


def images_of_circuit(reference: str, n: int | None) -> int:
    """Images that every circuit rests on: `n`, else as many as a file of edge scores, else 300.

    Raises:
        InputError: If a file of edge scores rests on another number, as noise is distance, too.
    """
    if is_shapes(reference) or is_table(reference) or not Path(reference).is_file():
        return N_CIRCUIT if n is None else n
    record = load_scores(reference).provenance
    recorded = record.get("batch") or (record.get("task") or {}).get("n")
    if recorded is None:
        return N_CIRCUIT if n is None else n
    if n not in (None, recorded):
        raise InputError(
            f"n is {n}, but the circuit of {reference} rests on {recorded} images, and smaller samples have "
            f"larger shifts; remove --n, or give the images of the reference"
        )
    return int(recorded)


def known_batches(rated: int, n: int) -> int:
    """Batches in distribution besides the reference, at most: to be corrupted, and to learn from.

    Args:
        rated: Images that performance is measured on.
        n: Images of a batch.
    """
    corrupted = max(rated, WINDOWS * n)
    return -(-corrupted // n) + -(-min(corrupted, MOST_LABELLED) // n)


def check_domains(model: Model, plan: EvaluationPlan) -> dict[str, ImageTask]:
    """The test domains, and everything that can be refused before an image is read.

    Raises:
        InputError: For a text model, too few images for the classes, domains without labels or with classes
            that disagree, or settings that do not fit the model.
        GraphMismatchError: For a file of edge scores of another model.
    """
    if model.vision is None:
        raise InputError(f"{model.id} reads text; assay monitor evaluate needs an image classifier")
    plan.settings.view.check(model.graph)
    how = plan.settings
    DepthRule(ratio=how.ratio, sets=how.sets).layers(model.graph.n_layers)
    node_layers(model.graph, how.granularity)
    if max(plan.rated, how.n) < model.n_classes:
        raise InputError(
            f"{max(plan.rated, how.n)} images per domain are fewer than the {model.n_classes} classes of "
            f"{model.id}; raise --rated"
        )
    if plan.start.given:
        check_reference(model, load_scores(plan.start.reference, graph=model.graph))
    domains = plan.domains()
    unlabelled = [name for name, images in domains.items() if images.labels is None]
    if unlabelled:
        raise InputError(
            f"{', '.join(unlabelled)} has no labels, but an evaluation needs them; give a folder per class, "
            "or watch it with assay monitor"
        )
    return _of_known_classes(model, plan, domains)


def _of_known_classes(
    model: Model, plan: EvaluationPlan, domains: Mapping[str, ImageTask]
) -> dict[str, ImageTask]:
    """Labels in the order of the model's classes, or else the reference's; refuses a class it lacks."""
    known = model.classes
    if known is None and not plan.start.given:
        known = one_domain(find_domains(plan.start.reference), plan.start.reference).classes
    return {name: images.with_classes(known) for name, images in domains.items()}


def evaluate_domains(
    model: Model,
    plan: EvaluationPlan,
    *,
    cache: Path,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda text: None,
) -> DomainEvaluation:
    """Measure the model on further images in distribution, their corrupted copies, and every test domain.

    Args:
        model: The deployed model.
        plan: What to evaluate.
        cache: Folder in which every measured domain is kept; the same domain is not measured again.
        progress: Called with a stage, what is done, and the total or 0.
        note: Told which domains were left out.

    Raises:
        InputError: As `check_domains`; without labelled images in distribution for calibration domains; if
            every test domain is left out.
        FileFormatError: If images cannot be read.
        OutputError: If `cache` cannot be written.
    """
    domains = check_domains(model, plan)
    transform = EvalTransform.for_model(model)
    place = cache / "evaluations"
    asked = plain({"model": model.describe(), "start": vars(plan.start)})
    found, _, pool = reference_of(
        model, plan.start, transform, place / record_id("evaluation-reference", asked), progress
    )
    if plan.corruptions and (pool is None or pool.labels is None):
        raise InputError(
            "calibration domains are corrupted copies of labelled images in distribution, but there are none "
            "left; give --known, a reference folder per class with more images, or --corruptions none"
        )
    labelled, learn, corrupted = None, None, None
    if pool is not None and pool.labels is not None:
        _check_enough(model, pool)
        learn, corrupted = split_known(pool, plan.settings.n, seed=plan.settings.seed)
        if learn is not None:
            progress("labelled images", 0, 1)
            labelled = labelled_inspection(model, learn)
    probe = DomainProbe(
        model=model,
        reference=found,
        labelled=labelled,
        settings=plan.settings,
        unlearnt=_unlearnt(pool, plan) if labelled is None else "",
        transform=transform,
    )
    keep = _KeptDomains(
        probe=probe, folder=place, learnt="" if learn is None else learn.source_hash[:16], plan=plan
    )
    own: Domain | None = None
    known: list[Domain] = []
    if corrupted is not None:
        progress("in distribution", 0, 1)
        sample = decoded_once(corrupted.sample(plan.changed, seed=plan.settings.seed))
        own = keep.measure(sample)
        for done, key in enumerate(plan.corruptions):
            progress("corrupted domains", done, len(plan.corruptions))
            known.append(keep.measure(corrupt(sample, key, seed=plan.settings.seed)))
    test: list[Domain] = []
    left_out: list[LeftOutDomain] = []
    for done, (name, images) in enumerate(domains.items()):
        progress("test domains", done, len(domains))
        for each in _parts_of(keep, plan, name, images):
            (left_out if isinstance(each, LeftOutDomain) else test).append(each)  # type: ignore[arg-type]
    for each in left_out:
        note(f"left out {each.domain}: {each.reason}")
    if not test:
        raise InputError(
            f"every test domain was left out: {left_out[0].domain}: {left_out[0].reason}; lower --least, or "
            "give more images"
        )
    return _joined(keep, own, known, test, left_out)


def _joined(
    keep: "_KeptDomains",
    own: Domain | None,
    known: Sequence[Domain],
    test: Sequence[Domain],
    left_out: Sequence[LeftOutDomain],
) -> DomainEvaluation:
    probe, plan = keep.probe, keep.plan
    described, record = probe.model.describe(), plain(dict(probe.reference.provenance))
    return DomainEvaluation(
        model=described,
        graph=probe.model.graph.describe(),
        reference=record,
        settings=plan.settings,
        distance=plan.start.distance,
        own=own,
        known=tuple(known),
        test=tuple(test),
        left_out=tuple(left_out),
        provenance=plain(
            {
                "library": library_version(),
                "model": described,
                "reference": record,
                "settings": plan.settings.to_dict(),
                "distance": plan.start.distance,
                "skip_bad": plan.start.skip_bad,
                **{name: getattr(plan, name) for name in ("by", "parts", "rated", "least", "corruptions")},
                "domains": keep.identities,
                "left_out": [[each.domain, each.n] for each in left_out],
            }
        ),
    )


def _check_enough(model: Model, pool: ImageTask) -> None:
    if pool.n < model.n_classes:
        raise InputError(
            f"{pool.n} labelled images in distribution are left besides the reference, fewer than the "
            f"{model.n_classes} classes of {model.id}; give more with --known"
        )


def _unlearnt(pool: ImageTask | None, plan: EvaluationPlan) -> str:
    """Why no baseline learns from labels."""
    n = plan.settings.n
    images = 0 if pool is None or pool.labels is None else pool.n
    return (
        f"{images} labelled images in distribution are left besides the reference; baselines that learn from "
        f"labels need {2 * n}: {n} to learn from, and {n} to corrupt"
    )


def _parts_of(keep: "_KeptDomains", plan: EvaluationPlan, name: str, images: ImageTask) -> Measured:
    """The domain, or its parts, measured or left out."""
    model = keep.probe.model
    images = images.for_model(model)
    images = replace(images.readable() if plan.start.skip_bad else images, domain=name)
    least = max(plan.least, model.n_classes, 2)
    parts = images.parts(plan.parts, seed=plan.settings.seed) if 1 < plan.parts <= images.n else (images,)
    for part in parts:
        if part.n < least:
            why = f"{part.n} images, fewer than the {least} needed"
            if plan.least < model.n_classes:
                why += f" for {model.n_classes} classes"
            yield LeftOutDomain(domain=part.domain, n=part.n, reason=why)
        else:
            yield keep.measure(part, group=name)


@dataclass(frozen=True, kw_only=True, eq=False)
class _KeptDomains:
    """Measures domains and keeps each in a file, so that an interrupted evaluation goes on."""

    probe: DomainProbe
    folder: Path
    learnt: str
    plan: EvaluationPlan
    identities: list[str] = field(default_factory=list)  # of what was measured so far

    def measure(self, images: ImageTask, *, group: str = "") -> Domain:
        record: dict[str, Any] = {
            "library": library_version(),
            "model": self.probe.model.describe(),
            "reference": plain(dict(self.probe.reference.provenance)),
            "images": images.source_hash[:16],
            "domain": [images.domain, group],
            "learnt": self.learnt,
            "settings": self.plan.settings.to_dict(),
        }
        self.identities.append(record_id("evaluated-domain", record))
        path = self.folder / f"{self.identities[-1]}.json"
        if path.exists():
            try:
                return Domain.from_dict(parse_json(path.read_text(encoding="utf-8")))
            except (OSError, ValueError) as error:
                raise FileFormatError(f"cannot read {path} ({error}); remove it to measure again") from error
        found = self.probe.measure(images, group=group)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found.to_dict(), allow_nan=False).encode())
        return found

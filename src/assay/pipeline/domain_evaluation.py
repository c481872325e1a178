"""An evaluation over labelled domains as a job: domains found and checked, measured, kept one by one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from assay.analyses.generalization.domains import (
    MOST_LABELLED,
    WINDOWS,
    Domain,
    DomainEvaluation,
    EvaluationSettings,
    measure_domain,
    split_known,
)
from assay.analyses.generalization.inspection import decoded_once, labelled_inspection
from assay.circuits import load_scores
from assay.core.errors import InputError
from assay.core.record import plain
from assay.models import Model
from assay.pipeline.image_stream import FIRST_WATCHED
from assay.pipeline.monitoring import MonitorPlan, reference_of
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


def evaluate_domains(
    model: Model,
    *,
    reference: str,
    images: Sequence[str],
    known: str | None = None,
    by: Sequence[str] = (),
    parts: int = 1,
    n: int | None = None,
    rated: int = 1000,
    least: int = 50,
    corruptions: Sequence[str] = tuple(CORRUPTIONS),
    measure: str = "accuracy",
    distance: str = "spearman",
    steps: int | str | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    cache: Path,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda text: None,
) -> DomainEvaluation:
    """Measure the model on further images in distribution, their corrupted copies, and every test domain.

    Args:
        model: The deployed model.
        reference: Images in distribution, or a file of their edge scores.
        images: Sources of test domains, as `find_domains` takes them.
        known: Further labelled images in distribution. Default: those that the reference does not use.
        by: Columns of a table that make domains; empty: those of its layout.
        parts: Random disjoint parts that each test domain is cut into.
        n: Images that every circuit rests on. Default: as many as a file of edge scores, else 300.
        rated: Images that performance is measured on, at most, of a domain or part.
        least: Images below which a domain or part is left out.
        corruptions: Keys of the calibration domains.
        measure: `accuracy` or `macro-f1`.
        distance: The one that leads the page.
        steps: Of the reference circuit, as in `MonitorPlan`.
        seed: Root seed of all random draws.
        skip_bad: Pass over image files that cannot be read.
        cache: Folder in which every measured domain is kept; the same domain is not measured again.
        progress: Called with a stage, what is done, and the total or 0.
        note: Told which domains were left out, and what else a reader should know.

    Raises:
        InputError: For domains without labels or with classes that disagree; without labelled images in
            distribution for calibration domains; if every test domain is left out.
        FileFormatError: If images cannot be read.
        GraphMismatchError: For a file of edge scores of another model.
        OutputError: If `cache` cannot be written.
    """
    for key in corruptions:
        CORRUPTIONS[key]
    n = _images_of_circuit(reference, n)
    changed = max(rated, WINDOWS * n)
    start = MonitorPlan(
        reference=reference,
        known=known,
        window=n,
        known_batches=-(-changed // n) + -(-min(changed, MOST_LABELLED) // n),
        steps=steps,
        seed=seed,
        skip_bad=skip_bad,
    )
    domains: dict[str, ImageTask] = {}
    for source in images:
        # An empty choice of columns means those of the layout of a table.
        columns = by or (() if is_table(source) else None)
        found = find_domains(source, by=columns, n=parts * max(rated, n), seed=seed, start=FIRST_WATCHED)
        for name, each in found.items():
            if _is_reference(source, name, each, reference):
                continue
            if name in domains:
                raise InputError(f"two test domains are called {name!r}; rename the folder of one")
            domains[name] = each
    domains = _checked(model, start, domains, images)
    place, transform = cache / "evaluations", EvalTransform.for_model(model)
    settings = EvaluationSettings(measure=measure, n=n, seed=seed)
    scores, _, pool = reference_of(model, start, transform, place, progress)
    if pool is not None and pool.labels is None:
        pool = None
    if corruptions and pool is None:
        raise InputError(
            "calibration domains are corrupted copies of labelled images in distribution, but there are none "
            "left; give --known, a reference folder per class with more images, or --corruptions none"
        )
    learn, sample = None, None
    if pool is not None:
        learn, sample = split_known(pool, n, seed=seed)
        sample = decoded_once(sample.sample(changed, seed=seed))
    if learn is None:
        note(f"baselines that learn from labels need {2 * n} labelled images besides the reference")
    measured = partial(
        measure_domain,
        model,
        scores,
        settings=settings,
        labelled=None if learn is None else labelled_inspection(model, learn, cache=place),
        transform=transform,
        cache=place,
    )
    own = None if sample is None else measured(sample)
    calibration: list[Domain] = []
    for done, key in enumerate(corruptions if sample is not None else ()):
        progress("corrupted domains", done, len(corruptions))
        assert sample is not None
        calibration.append(measured(corrupt(sample, key, seed=seed)))
    test: list[Domain] = []
    left_out: list[dict[str, Any]] = []
    for done, (name, each) in enumerate(domains.items()):
        progress("test domains", done, len(domains))
        whole = replace(each.readable() if skip_bad else each, domain=name)
        for part in whole.parts(parts, seed=seed) if 1 < parts <= whole.n else (whole,):
            if part.n < max(least, model.n_classes, 2):
                why = f"{part.n} images, fewer than the {max(least, model.n_classes, 2)} needed"
                left_out.append({"domain": part.domain, "n": part.n, "reason": why})
                note(f"left out {part.domain}: {why}")
            else:
                test.append(measured(part, group=name))
        if each.source is not None and each.source.turned:
            note(f"{len(each.source.turned)} images of {name} were turned as their EXIF orientation says")
    if not test:
        raise InputError("every test domain was left out; lower --least, or give more images")
    return DomainEvaluation(
        model=model.describe(),
        reference=plain(dict(scores.provenance)),
        settings=settings,
        distance=distance,
        own=own,
        known=tuple(calibration),
        test=tuple(test),
        left_out=tuple(left_out),
        sources={
            "test": {name: each.source_hash for name, each in domains.items()},
            "known": [None if each is None else each.source_hash for each in (learn, sample)],
            "parts": parts,
            "least": least,
            "corruptions": list(corruptions),
        },
    )


def _images_of_circuit(reference: str, n: int | None) -> int:
    """Images that every circuit rests on.

    Raises:
        InputError: If a file of edge scores rests on another number, as noise is distance, too.
    """
    recorded = None
    if MonitorPlan(reference=reference).given and Path(reference).is_file():
        record = load_scores(reference).provenance
        recorded = record.get("batch") or (record.get("task") or {}).get("n")
    if recorded is not None and n not in (None, recorded):
        raise InputError(
            f"n is {n}, but the circuit of {reference} rests on {recorded} images, and smaller samples have "
            "larger shifts; remove --n, or give the images of the reference"
        )
    return int(recorded or n or N_CIRCUIT)


def _is_reference(source: str, name: str, images: ImageTask, reference: str) -> bool:
    if is_shapes(reference):
        return is_shapes(source) and reference.endswith(f":{name}")
    root = images.source.root if isinstance(images.source, Files) and not is_table(source) else None
    return root is not None and root.resolve() == Path(reference).resolve()


def _checked(
    model: Model, start: MonitorPlan, domains: Mapping[str, ImageTask], sources: Sequence[str]
) -> dict[str, ImageTask]:
    """The test domains as the model reads them; what can be refused is, before an image is read.

    Labels are in the order of the model's classes, or else the reference's.
    """
    if not domains:
        raise InputError(f"{', '.join(sources)} holds no domain besides that of the reference; give others")
    if unlabelled := [name for name, images in domains.items() if images.labels is None]:
        raise InputError(
            f"{', '.join(unlabelled)} has no labels, but an evaluation needs them; give a folder per class, "
            "or watch it with assay monitor"
        )
    classes = model.classes
    if classes is None and not start.given:
        classes = one_domain(find_domains(start.reference), start.reference).classes
    return {name: images.with_classes(classes).for_model(model) for name, images in domains.items()}

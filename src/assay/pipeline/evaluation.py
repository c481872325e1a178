"""An evaluation over labelled domains, behind `assay monitor evaluate`: found, checked, measured, kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from assay.analyses.generalization import domains as labelled
from assay.analyses.generalization.inspection import decoded_once, labelled_inspection
from assay.analyses.generalization.shift import DISTANCES
from assay.circuits import load_scores
from assay.core.errors import InputError
from assay.core.record import plain
from assay.models import Model
from assay.pipeline.image_stream import FIRST_WATCHED
from assay.pipeline.monitoring import is_images, reference_of
from assay.pipeline.stage import Progress
from assay.tasks import CORRUPTIONS, ImageTask, corrupt, find_domains, is_shapes, is_table, one_domain
from assay.tasks.image_reading import Files


def evaluate_domains(
    model: Model,
    reference: str,
    images: Sequence[str],
    *,
    known: str | None,
    domains_by: str | None,
    parts: int,
    n: int | None,
    rated: int,
    least: int,
    corruptions: str,
    measure: str,
    distance: str,
    steps: int | str | None,
    seed: int,
    skip_bad: bool,
    cache: Path,
    progress: Progress,
    tell: Callable[[str], None],
) -> labelled.DomainEvaluation:
    """Measure a model on further images in distribution, their corrupted copies, and every test domain.

    Args:
        model: The model to watch.
        reference: File of edge scores, folder of images, or `shapes:DOMAIN`.
        images: Sources of labelled test domains.
        known: Source of further images in distribution. None: those that the reference does not use.
        domains_by: Columns of a table that make domains, separated by commas. None: those of its layout.
        parts: Random disjoint parts that each test domain is cut into.
        n: Images of a domain that circuit and baselines rest on. None: 300, or those of a file's circuit.
        rated: Images that performance is measured on, at most, of a domain or part.
        least: Images below which a domain or part is left out; never fewer than the model's classes.
        corruptions: Of the calibration domains: `all`, `none`, or some, separated by commas.
        measure: `accuracy` or `macro-f1`.
        distance: The one that leads the page.
        steps: Of the circuit. None: those of a file's circuit, else 5.
        seed: Root seed of all random draws.
        skip_bad: Pass over image files that cannot be read.
        cache: Folder of measured domains; the same domain is not measured again.
        progress: Called with a stage, what is done, and the total or 0.
        tell: Hears which domains were left out, and what else a reader should know.

    Raises:
        InputError: For domains without labels or with classes that disagree; without labelled images in
            distribution for calibration domains; if every test domain is left out.
        FileFormatError: If images cannot be read.
        GraphMismatchError: For a file of edge scores of another model.
        OutputError: If the cache cannot be written.
        UnknownNameError: For another distance, measure or corruption.
    """
    DISTANCES[distance]
    keys = {"all": tuple(CORRUPTIONS), "none": ()}.get(corruptions, _listed(corruptions))
    for key in keys:
        CORRUPTIONS[key]
    n = _images_of_circuit(reference, n)
    domains: dict[str, ImageTask] = {}
    for source in images:
        # An empty choice of columns means those of the layout of a table.
        by = _listed(domains_by or "") or (() if is_table(source) else None)
        most = parts * max(rated, n)
        for name, task in find_domains(source, by=by, n=most, seed=seed, start=FIRST_WATCHED).items():
            if _is_reference(source, name, task, reference):
                continue
            if name in domains:
                raise InputError(f"two test domains are called {name!r}; rename the folder of one")
            domains[name] = task
    if not domains:
        raise InputError(f"{', '.join(images)} holds no domain besides that of the reference; give others")
    domains = as_read_by(model, reference, domains)
    changed = max(rated, labelled.WINDOWS * n)
    scores, _, pool = reference_of(
        model,
        reference,
        known=known,
        window=n,
        spare=-(-changed // n) + -(-min(changed, labelled.MOST_LABELLED) // n),
        steps=steps,
        seed=seed,
        skip_bad=skip_bad,
        cache=cache,
        progress=progress,
    )
    learn, sample = None, None
    if pool is not None and pool.labels is not None:
        learn, rest = labelled.split_known(pool, n, seed=seed)
        sample = decoded_once(rest.sample(changed, seed=seed))
    elif keys:
        raise InputError(
            "calibration domains are corrupted copies of labelled images in distribution, but there are none "
            "left; give --known, a reference folder per class with more images, or --corruptions none"
        )
    if learn is None:
        tell(f"baselines that learn from labels need {2 * n} labelled images besides the reference")
    settings = labelled.EvaluationSettings(measure=measure, n=n, seed=seed)
    measured = partial(
        labelled.measure_domains,
        model,
        scores,
        settings=settings,
        labelled=None if learn is None else labelled_inspection(model, learn, cache=cache),
        cache=cache,
    )
    copies = [] if sample is None else [sample, *(corrupt(sample, key, seed=seed) for key in keys)]
    calibration = measured(
        {each.domain: each for each in copies}, progress=lambda _, *done: progress("corrupted domains", *done)
    )
    chosen: dict[str, ImageTask] = {}
    groups: dict[str, str] = {}
    left_out, fewest = [], max(least, model.n_classes, 2)
    for name, task in domains.items():
        whole = replace(task.readable() if skip_bad else task, domain=name)
        for part in whole.parts(parts, seed=seed) if 1 < parts <= whole.n else (whole,):
            if part.n < fewest:
                left_out.append({"domain": part.domain, "n": part.n})
                tell(f"left out {part.domain}: {part.n} images, fewer than the {fewest} needed")
            else:
                chosen[part.domain], groups[part.domain] = part, name
    if not chosen:
        raise InputError("every test domain was left out; lower --least, or give more images")
    test = measured(chosen, progress=lambda _, *done: progress("test domains", *done))
    for name, task in domains.items():
        if task.source is not None and task.source.turned:
            tell(f"{len(task.source.turned)} images of {name} were turned as their EXIF orientation says")
    return labelled.DomainEvaluation(
        model=model.describe(),
        reference=plain(dict(scores.provenance)),
        settings=settings,
        distance=distance,
        own=calibration[0] if calibration else None,
        known=calibration[1:],
        test=tuple(replace(each, group=groups[each.domain]) for each in test),
        left_out=tuple(left_out),
        sources={
            "test": {name: task.source_hash for name, task in domains.items()},
            "known": [each and each.source_hash for each in (learn, sample)],
            "parts": parts,
            "least": least,
            "corruptions": list(keys),
        },
    )


def _images_of_circuit(reference: str, n: int | None) -> int:
    """Images that every circuit rests on: those of a file of edge scores, as noise is distance, too."""
    record = {} if is_images(reference) else load_scores(reference).provenance
    recorded = record.get("batch") or (record.get("task") or {}).get("n")
    if recorded and n not in (None, recorded):
        raise InputError(
            f"n is {n}, but the circuit of {reference} rests on {recorded} images; remove --n, or give the "
            "images of the reference"
        )
    return int(recorded or n or 300)


def _is_reference(source: str, name: str, images: ImageTask, reference: str) -> bool:
    if is_shapes(reference):
        return is_shapes(source) and reference.endswith(f":{name}")
    root = images.source.root if isinstance(images.source, Files) and not is_table(source) else None
    return root is not None and root.resolve() == Path(reference).resolve()


def as_read_by(model: Model, reference: str, domains: dict[str, ImageTask]) -> dict[str, ImageTask]:
    """Test domains as the model reads them; what can be refused is, before an image is read.

    Labels are in the order of the model's classes, or else the reference's.
    """
    if unlabelled := [name for name, images in domains.items() if images.labels is None]:
        raise InputError(f"{', '.join(unlabelled)} has no labels; give a folder per class")
    classes = model.classes
    if classes is None and is_images(reference):
        classes = one_domain(find_domains(reference), reference).classes
    return {name: images.with_classes(classes).for_model(model) for name, images in domains.items()}


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))

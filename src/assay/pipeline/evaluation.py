"""An evaluation over labelled domains, behind `assay monitor evaluate`: found, checked, measured, kept."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.analyses.generalization import domains as labelled
from assay.analyses.generalization.dependency import DISTANCES
from assay.analyses.generalization.inspection import decoded_once
from assay.circuits import load_scores
from assay.core.errors import InputError
from assay.core.record import plain
from assay.models import Model
from assay.pipeline.image_stream import FIRST_WATCHED
from assay.pipeline.monitoring import KnownImages, is_images
from assay.tasks import CORRUPTIONS, ImageTask, corrupt, find_domains, is_shapes, is_table, one_domain
from assay.tasks.image_reading import Files
from assay.tasks.image_source import SHAPES


def evaluate_domains(
    model: Model,
    known: KnownImages,
    images: Sequence[str],
    *,
    domains_by: str | None,
    parts: int,
    n: int | None,
    rated: int,
    least: int,
    corruptions: str,
    measure: str,
    distance: str,
    tell: Callable[[str], None],
) -> labelled.DomainEvaluation:
    """Measure a model on further images in distribution, their corrupted copies, and every test domain.

    Args:
        model: The model to watch.
        known: The reference and further images in distribution. Its `cache` keeps measured domains.
        images: Sources of labelled test domains.
        domains_by: Columns of a table that make domains, separated by commas. None: it is one domain.
        parts: Random disjoint parts that each test domain is cut into.
        n: Images of a domain that circuit and baselines rest on. None: 300, or those of a file's circuit.
        rated: Images that performance is measured on, at most, of a domain or part.
        least: Images below which a domain or part is left out; never fewer than the model's classes.
        corruptions: Of the calibration domains: `all`, `none`, or some, separated by commas.
        measure: `accuracy` or `macro-f1`.
        distance: The one that leads the page.
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
    n, seed = _images_of_circuit(known.source, n), known.seed
    found = _test_domains(images, known.source, _listed(domains_by or ""), parts * max(rated, n), seed)
    domains, changed = as_read_by(model, known.source, found), max(rated, labelled.WINDOWS * n)
    spare = -(-changed // n) + -(-min(changed, labelled.MOST_LABELLED) // n)
    scores, _, pool = known.reference(model, n, spare)
    learn, sample = None, None
    if pool is not None and pool.labels is not None:
        learn, rest = labelled.split_known(pool, n, seed=seed)
        sample = decoded_once(rest.sample(changed, seed=seed))
    elif keys:
        text = "no labelled images in distribution are left to make calibration domains of"
        raise InputError(f"{text}; give --known, a larger folder per class, or --corruptions none")
    if learn is None:
        tell(f"baselines that learn from labels need {2 * n} labelled images besides the reference")
    settings = labelled.EvaluationSettings(measure=measure, n=n, seed=seed)
    how: dict[str, Any] = {"settings": settings, "labelled": learn, "cache": known.cache}

    def measured(tasks: Iterable[ImageTask], stage: str) -> tuple[labelled.Domain, ...]:
        named = {each.domain: each for each in tasks}
        how["progress"] = lambda _, *done: known.progress(stage, *done)
        return labelled.measure_domains(model, scores, named, **how)

    copies = [] if sample is None else [sample, *(corrupt(sample, key, seed=seed) for key in keys)]
    calibration = measured(copies, "corrupted domains")
    chosen, left_out = [], []
    for part in _parts(domains, parts, known):
        if part.n >= (fewest := max(least, model.n_classes, 2)):
            chosen.append(part)
        else:
            left_out.append({"domain": part.domain, "n": part.n})
            tell(f"left out {part.domain}: {part.n} images, fewer than the {fewest} needed")
    if not chosen:
        raise InputError("every test domain was left out; lower --least, or give more images")
    test = measured(chosen, "test domains")
    for name, task in domains.items():
        if task.source is not None and task.source.turned:
            tell(f"{len(task.source.turned)} images of {name} were turned as their EXIF orientation says")
    sources = {"test": {name: task.source_hash for name, task in domains.items()}}
    known_images = [each and each.source_hash for each in (learn, sample)]
    return labelled.DomainEvaluation(
        model=model.describe(),
        reference=plain(dict(scores.provenance)),
        settings=settings,
        distance=distance,
        own=calibration[0] if calibration else None,
        known=calibration[1:],
        test=test,
        left_out=tuple(left_out),
        sources={**sources, "known": known_images, "parts": parts, "least": least, "corruptions": list(keys)},
    )


def _parts(domains: Mapping[str, ImageTask], parts: int, known: KnownImages) -> Iterator[ImageTask]:
    """The test domains, or random parts of them, less the images that cannot be read."""
    for name, task in domains.items():
        whole = replace(task.readable() if known.skip_bad else task, domain=name)
        yield from whole.parts(parts, seed=known.seed) if 1 < parts <= whole.n else (whole,)


def _images_of_circuit(reference: str, n: int | None) -> int:
    """Images that every circuit rests on: those of a file of edge scores, as noise is distance, too."""
    record = {} if is_images(reference) else load_scores(reference).provenance
    recorded = record.get("batch") or (record.get("task") or {}).get("n")
    if recorded and n not in (None, recorded):
        raise InputError(f"n is {n}, but the circuit of {reference} rests on {recorded} images; remove --n")
    return int(recorded or n or 300)


def _test_domains(
    sources: Sequence[str], reference: str, by: tuple[str, ...], most: int, seed: int
) -> dict[str, ImageTask]:
    """The domains of all sources but that of the reference."""
    domains: dict[str, ImageTask] = {}
    for source in sources:
        for name, task in find_domains(source, by=by, n=most, seed=seed, start=FIRST_WATCHED).items():
            root = task.source.root if isinstance(task.source, Files) and not is_table(source) else None
            own = is_shapes(source) and reference == f"{SHAPES}:{name}"
            if own or (root is not None and root.resolve() == Path(reference).resolve()):
                continue
            if name in domains:
                raise InputError(f"two test domains are called {name!r}; rename the folder of one")
            domains[name] = task
    if not domains:
        raise InputError(f"{', '.join(sources)} holds no domain besides that of the reference; give others")
    return domains


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

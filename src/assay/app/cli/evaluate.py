"""`assay monitor evaluate`: what would an alarm on the circuit have been worth on domains with labels?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from assay.app.cli.monitor import monitor  # noqa: F401 - the command that this one belongs to
from assay.app.cli.parsing import app, command
from assay.app.console import progress_on_stderr, remark
from assay.app.delivery import Computing, File, check_outputs, json_file
from assay.app.monitor.settings import ALARM
from assay.app.options import DISCOVERY, INPUTS, OUTPUT, RARE, STEPS, Count, Steps, at_least, call
from assay.app.settings import OnClassifier, Seeded, SkipBad
from assay.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(Computing, Seeded, SkipBad, OnClassifier):
    """Which domains are measured, how the circuit is found, and how the alarm is tried.

    Attributes:
        reference: Images in distribution, or a file of their edge scores. Default: shapes of the embedded
            zoo's style.
        known: More labelled images in distribution. Default: those not used as the reference.
        images: Labelled test domains: DIR/DOMAIN/CLASS/*, DIR/CORRUPTION/SEVERITY/CLASS/*, shapes,
            or a table such as camelyon17:DIR; repeat for several.
        domains_by: Columns of a table that make domains, e.g. region,year. Default: those of its layout.
        skip_bad: Skip and count image files that cannot be decoded.
        exif: Turn images as their EXIF orientation says (turn), or leave them as stored (ignore).
        parts: Random disjoint parts that each test domain is cut into.
        n: Images of each domain for its circuit and the baselines, in total. Default: 300, or as many as a
            file of edge scores rests on.
        rated: Images that performance is measured on, at most, of a domain or part.
        least: Images below which a domain or part is left out.
        corruptions: Calibration domains: all 39 corruptions, none, or some, separated by commas.
        measure: True performance: accuracy or macro-f1.
        distance: Distance of circuits: spearman, cosine, l2, laplacian, netlsd or jaccard.
        steps: Quadrature nodes, or auto. Default: 5, or those of a file of edge scores.
        out: Directory for evaluation.json, report.html and domains.csv.
    """

    reference: Annotated[str | None, INPUTS] = None
    known: Annotated[str | None, INPUTS] = None
    images: Annotated[tuple[str, ...], INPUTS] = ()
    domains_by: Annotated[str | None, INPUTS] = None
    skip_bad: Annotated[bool, INPUTS] = False
    exif: Annotated[Literal["turn", "ignore"], INPUTS] = "turn"
    parts: Annotated[Count, INPUTS] = 1
    n: Annotated[int | None, INPUTS, at_least(2)] = None
    rated: Annotated[Count, INPUTS] = 1000
    least: Annotated[Count, RARE] = 50
    corruptions: Annotated[str, ALARM] = "all"
    measure: Annotated[str, ALARM] = "accuracy"
    distance: Annotated[str, ALARM] = "spearman"
    steps: Annotated[Steps | None, DISCOVERY, STEPS] = None
    out: Annotated[Path | None, OUTPUT] = None


@command(
    parent=app["monitor"],
    example="assay monitor evaluate --model classifier --reference pacs/sketch --images pacs",
)
def evaluate(settings: EvaluateSettings) -> None:
    """Try a monitor on labelled domains before relying on it.

    Accuracy, circuit shifts and label-free baselines per domain, how they go together, and the F1 of alarms.
    """
    from assay.analyses.generalization import DISTANCES
    from assay.pipeline.domain_evaluation import evaluate_domains
    from assay.store import About
    from assay.tasks import CORRUPTIONS

    DISTANCES[settings.distance]
    model, style = settings.load_classifier(remark)
    images = settings.images or (("shapes",) if settings.model is None else ())
    if not images or (settings.reference is None and style is None):
        raise InputError(
            "your own model needs --reference, images it does well on, and --images, labelled test domains"
        )
    check_outputs(settings)
    with progress_on_stderr() as progress:
        result = call(
            settings,
            evaluate_domains,
            model,
            reference=settings.reference or f"shapes:{style}",
            images=images,
            by=_listed(settings.domains_by or ""),
            corruptions={"all": tuple(CORRUPTIONS), "none": ()}.get(
                settings.corruptions, _listed(settings.corruptions)
            ),
            cache=settings.store_folder(),
            progress=progress,
            note=remark,
        )
    document = result.to_dict()
    about = About(
        model=model.id,
        metric=settings.measure,
        n=sum(each.n for each in result.test),
        seed=settings.seed,
        name=f"{len(result.test)} domains",
    )
    identity = settings.open_store().put(document["kind"], document["provenance"], document, about=about)
    files: dict[str, File] = {}
    if (out := settings.out) is not None:
        files = {
            "document": json_file(out / "evaluation.json", document),
            "report": File(out / "report.html"),
            "table": File(out / "domains.csv", lambda path: result.to_frame().to_csv(path, index=False)),
        }
    settings.deliver(document, files, identity=identity)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))

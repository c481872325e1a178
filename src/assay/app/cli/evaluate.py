"""`assay monitor evaluate`: what would an alarm on the circuit have been worth on domains with labels?"""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.monitor import monitor  # noqa: F401 - the command that this one belongs to
from assay.app.cli.parsing import app, command
from assay.app.console import progress_on_stderr, remark
from assay.app.delivery import Computing, File, check_outputs, json_file
from assay.app.monitor.settings import ALARM
from assay.app.options import DISCOVERY, INPUTS, OUTPUT, RARE, STEPS, Count, Steps, at_least, call
from assay.app.settings import OnClassifier, Seeded, SkipBad
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.pipeline.domain_evaluation import EvaluationPlan


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

    DISTANCES[settings.distance]
    model, style = settings.load_classifier(remark)
    plan = _plan(settings, style)
    check_outputs(settings)
    with progress_on_stderr() as progress:
        result = evaluate_domains(model, plan, cache=settings.store_folder(), progress=progress, note=remark)
    _hand_over(settings, result.to_dict())


def _plan(settings: EvaluateSettings, style: str | None) -> "EvaluationPlan":
    """What to evaluate; an embedded model has images of its own."""
    from assay.analyses.generalization.domains import EvaluationSettings
    from assay.pipeline.domain_evaluation import EvaluationPlan, images_of_circuit, known_batches
    from assay.pipeline.monitor_plan import MonitorPlan

    images = settings.images or (("shapes",) if settings.model is None else ())
    if not images or (settings.reference is None and style is None):
        raise InputError(
            "your own model needs --reference, images it does well on, and --images, labelled test domains"
        )
    reference = settings.reference or f"shapes:{style}"
    n = images_of_circuit(reference, settings.n)
    start = call(
        settings,
        MonitorPlan,
        reference=reference,
        window=n,
        known_batches=known_batches(settings.rated, n),
    )
    how = call(settings, EvaluationSettings, n=n)
    by = () if settings.domains_by is None else tuple(map(str.strip, settings.domains_by.split(",")))
    return call(
        settings, EvaluationPlan, start=start, images=images, by=by, settings=how, **_corruptions(settings)
    )


def _corruptions(settings: EvaluateSettings) -> dict[str, Any]:
    from assay.tasks import CORRUPTIONS

    text = settings.corruptions
    named = {"all": tuple(CORRUPTIONS), "none": ()}
    return {"corruptions": named.get(text) if text in named else tuple(map(str.strip, text.split(",")))}


def _hand_over(settings: EvaluateSettings, document: dict[str, Any]) -> None:
    """The result to the store, to files and to stdout."""
    from assay.circuits import write_atomically
    from assay.store import About

    about = About(
        model=document["model"]["id"],
        metric=settings.measure,
        n=sum(each["n"] for each in document["test"]),
        seed=settings.seed,
        name=f"{len(document['test'])} domains",
    )
    identity = settings.open_store().put(document["kind"], document["provenance"], document, about=about)
    files: dict[str, File] = {}
    if settings.out is not None:
        files = {
            "document": json_file(settings.out / "evaluation.json", document),
            "report": File(settings.out / "report.html"),
            "table": File(
                settings.out / "domains.csv",
                lambda path: write_atomically(path, _table(document).encode()),
            ),
        }
    settings.deliver(document, files, identity=identity)


def _table(document: dict[str, Any]) -> str:
    """A row per domain: what it was used for, its sizes, performance, and every metric."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    facts = ("domain", "group", "n", "n_labelled", "accuracy", "macro_f1")
    scores = list(document["metrics"])
    biases = sorted(document["test"][0]["depth_bias"])
    writer.writerow(["use", *facts, *scores, *(f"ddb-{name}" for name in biases)])
    uses = {"in distribution": [document["own"]] if document["own"] else [], "calibration": document["known"]}
    for use, domains in (uses | {"test": document["test"]}).items():
        for each in domains:
            measured = each["shifts"] | each["baselines"]
            row = [each[name] for name in facts] + [measured.get(key) for key in scores]
            writer.writerow([use, *row, *(each["depth_bias"][name] for name in biases)])
    return text.getvalue()

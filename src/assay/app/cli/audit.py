"""`assay audit`: from a model and a task to a report in one command."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from assay.app.cli.border import (
    device_of,
    echo,
    echo_files,
    echo_result,
    load,
    print_json,
    print_measurements,
    progress_on_stderr,
    show_plan,
)
from assay.app.cli.parsing import CIRCUITS, command
from assay.app.settings import (
    DEFAULT_STORE,
    DISCOVERY,
    OUTPUT,
    Ablating,
    Batched,
    Count,
    Counted,
    DryRun,
    HeldOut,
    OnTask,
    Seeded,
    Sizing,
    Storing,
    Talking,
)


if TYPE_CHECKING:
    from assay.pipeline import Audit


@dataclass(frozen=True, kw_only=True)
class AuditSettings(Talking, DryRun, Seeded, Batched, Storing, Ablating, Sizing, Counted, HeldOut, OnTask):
    """What is audited, and where the report goes.

    Attributes:
        n_random: Random circuits to compare with.
        out: Directory for the report and the results.
    """

    n_random: Annotated[Count, DISCOVERY] = 20
    out: Annotated[Path, OUTPUT] = DEFAULT_STORE


@command(CIRCUITS, example="assay audit --model mini --task ioi --out assay-out")
def audit(settings: AuditSettings) -> None:
    """Discover a circuit, measure it, write a report.

    The report is report.html in the directory of --out, beside the results.
    """
    from assay import pipeline

    pipeline.check_options(
        method=settings.method,
        task=settings.task,
        ablation=settings.ablation,
        objective=settings.objective,
    )
    device = device_of(settings)
    if settings.dry_run:
        _show_plan(settings, device)
        return
    result = _run(settings, device)
    if settings.json:
        print_json(result.document)
    else:
        _print_audit(result, settings.out)


def _run(settings: AuditSettings, device: str | None) -> "Audit":
    from assay import pipeline

    with progress_on_stderr(quiet=settings.quiet) as progress:
        return pipeline.audit(
            # By its name where nothing else is asked for: then a wrong task costs no loading.
            settings.model
            if settings.torch_dtype is None
            else load(settings.model, device, settings.torch_dtype),
            settings.task,
            method=settings.method,
            objective=settings.objective,
            ablation=settings.ablation,
            n=settings.n,
            steps=settings.steps,
            target=settings.target,
            n_random=settings.n_random,
            seed=settings.seed,
            device=device,
            batch_size=settings.batch_size,
            discover_on=settings.discover_on,
            measure_on=settings.measure_on,
            store=settings.store or settings.out,
            out=settings.out,
            progress=progress,
        )


def _show_plan(settings: AuditSettings, device: str | None) -> None:
    from assay import pipeline

    model, n = load(settings.model, device, settings.torch_dtype), settings.n or pipeline.DEFAULT_N
    stages = pipeline.plan_audit(
        model, method=settings.method, n=n, steps=settings.steps, n_random=settings.n_random
    )
    show_plan(model, n, stages, as_json=settings.json)


def _print_audit(result: "Audit", out: Path) -> None:
    """The verdict, the measurements, the tail, the gates."""
    from assay.report import calibration_overview, tail_verdict, verdict

    document = result.document
    echo(verdict(document))
    echo()
    print_measurements([(document["task"]["name"], record) for record in result.measurements])
    echo()
    if document["worst_case"]:
        echo(tail_verdict(document["worst_case"]))
        echo()
    echo(calibration_overview(document["calibration"]))
    echo()
    echo_files(report=out / "report.html")
    echo_result(result.id, cached=result.cached)

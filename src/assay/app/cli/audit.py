"""`assay audit`: from a model and a task to a report in one command."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.delivery import DEFAULT_STORE, File, check_outputs, print_pages, progress_on_stderr
from assay.app.options import DISCOVERY, INPUTS, OUTPUT, Count, call, own_group
from assay.app.settings import Ablating, HeldOut, OnAnyImages, OnAnyTask, RunningModels, Sizing


if TYPE_CHECKING:
    from assay.pipeline.audit_result import Audit


SCOPE = own_group("Stages")


@dataclass(frozen=True, kw_only=True)
class AuditSettings(RunningModels, Ablating, Sizing, HeldOut, OnAnyImages, OnAnyTask):
    """What is audited, how far, and where the report goes.

    Attributes:
        level: What is scored, and what the size counts: edges, or nodes (heads, MLPs, input).
        n: Prompts or images in each half, to discover on and to measure on. Default: 100; with --full 200, or
            the whole file.
        full: Run every stage in its larger form, at many times the cost.
        skip: Stages to skip: attack, random, curve, minimality, calibrate.
        n_random: Random circuits to compare with. Default: 5; with --full 20.
        out: Directory for the report and the results.
    """

    level: Annotated[Literal["edge", "node"], DISCOVERY] = "edge"
    n: Annotated[Count | None, INPUTS] = None
    full: Annotated[bool, SCOPE] = False
    skip: Annotated[tuple[str, ...], SCOPE, Parameter(metavar="STAGE,...")] = ()
    n_random: Annotated[Count | None, DISCOVERY] = None
    out: Annotated[Path, OUTPUT] = DEFAULT_STORE


@command(CIRCUITS, example="assay audit --model mini --task ioi --out assay-out")
def audit(settings: AuditSettings) -> None:
    """Discover a circuit, measure it, write a report.

    The report is report.html in the directory of --out, beside the results. It lists what was not run.
    """
    from assay.pipeline.audit import audit as run_audit
    from assay.pipeline.audit_request import request_of, stored_answer
    from assay.pipeline.stage import check_options
    from assay.store import Store

    call(settings, check_options)
    check_outputs(settings, settings.out / "report.html")
    store, device = settings.store or settings.out, settings.place(lambda text: None)
    request = request_of(vars(settings), device)
    result = None if request is None else stored_answer(request, store)
    if result is None:
        with progress_on_stderr() as progress:
            result = call(
                settings,
                run_audit,
                settings.load_model(),
                settings.task,
                skip=[name.strip() for names in settings.skip for name in names.split(",") if name.strip()],
                store=store,
                progress=progress,
                out=settings.out,
            )
        if request is not None and request == request_of(vars(settings), device):  # no file changed meanwhile
            Store(store).keep_request(request, result.id)
    elif not result.is_saved(settings.out):
        result.save(settings.out)
    settings.deliver(
        result.to_dict() if settings.json else None,
        {"report": File(settings.out / "report.html", lambda path: None)},  # written with the results
        show=lambda: _print_audit(result),
        identity=result.id,
        cached=result.cached,
    )


def _print_audit(result: "Audit") -> None:
    """The page of the audit; of worst case and calibrations, which have pages of their own, the finding."""
    from assay.analyses.calibration import page as calibrations
    from assay.analyses.worst_case.page import heading
    from assay.page.blocks import Page

    findings, worst, gates = [], result.worst_case, result.calibration
    if worst is not None:
        findings.append(Page(**heading(worst)))
    if gates is not None:
        title, verdict = calibrations.title(gates), calibrations.overview(gates)
        findings.append(Page(kind="calibrations", title=title, verdict=verdict))
    print_pages(result.page(), *findings)

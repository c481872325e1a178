"""`assay audit`: from a model and a task to a report in one command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.border import (
    device_of,
    echo,
    echo_files,
    echo_result,
    load,
    print_json,
    print_measurements,
    print_table,
    progress_on_stderr,
)
from assay.app.cli.parsing import CIRCUITS, command
from assay.app.settings import (
    DEFAULT_STORE,
    DISCOVERY,
    INPUTS,
    OUTPUT,
    RUNNING,
    Ablating,
    Batched,
    Count,
    Counted,
    DryRun,
    HeldOut,
    OnImages,
    OnTask,
    Seeded,
    Sizing,
    Storing,
    Talking,
    own_group,
)


if TYPE_CHECKING:
    from assay.pipeline import Audit


SCOPE = own_group("Stages")


@dataclass(frozen=True, kw_only=True)
class AuditSettings(
    Talking, DryRun, Seeded, Batched, Storing, Ablating, Sizing, Counted, HeldOut, OnImages, OnTask
):
    """What is audited, how far, and where the report goes.

    Attributes:
        n: Prompts or images in each half. Default: 100; with --full 200, or the whole file.
        full: Run every stage in its larger form, at many times the cost.
        skip: Stages to skip: attack, random, curve, minimality, calibrate.
        budget: Limit: a number of passes, or a time such as 600s, 10m, 2h. Sets n and the stages that fit.
        n_random: Random circuits to compare with. Default: 5; with --full 20.
        dry_run: Print passes, estimated seconds and bytes; run nothing.
        out: Directory for the report and the results.
    """

    n: Annotated[Count | None, INPUTS] = None
    full: Annotated[bool, SCOPE] = False
    skip: Annotated[tuple[str, ...], SCOPE, Parameter(metavar="STAGE,...")] = ()
    budget: Annotated[str | None, SCOPE, Parameter(metavar="PASSES|TIME")] = None
    n_random: Annotated[Count | None, DISCOVERY] = None
    dry_run: Annotated[bool, RUNNING] = False
    out: Annotated[Path, OUTPUT] = DEFAULT_STORE


# Settings that are arguments of `assay.audit` under the same name.
OPTIONS = ("method", "ablation", "n", "steps", "seed", "n_random", "batch_size", "full", "budget")
INPUT_OPTIONS = ("discover_on", "measure_on", "skip_bad")


@command(CIRCUITS, example="assay audit --model mini --task ioi --budget 10m --out assay-out")
def audit(settings: AuditSettings) -> None:
    """Discover a circuit, measure it, write a report.

    The report is report.html in the directory of --out, beside the results. It lists what was not run.
    """
    from assay import pipeline

    pipeline.check_options(method=settings.method, ablation=settings.ablation, objective=settings.objective)
    device = device_of(settings)
    if settings.dry_run:
        _show_plan(settings, device)
        return
    result = _run(settings, device)
    if settings.json:
        print_json(result.document)
    else:
        _print_audit(result, settings.out)


def _options(settings: AuditSettings) -> dict[str, Any]:
    """The settings that are options of `assay.audit`."""
    skip = [name.strip() for names in settings.skip for name in names.split(",") if name.strip()]
    return {name: getattr(settings, name) for name in OPTIONS + INPUT_OPTIONS} | {"skip": skip}


def _run(settings: AuditSettings, device: str | None) -> "Audit":
    from assay import pipeline

    with progress_on_stderr(quiet=settings.quiet) as progress:
        return pipeline.audit(
            # By its name where nothing else is asked for: then a wrong task costs no loading.
            settings.model
            if settings.torch_dtype is None
            else load(settings.model, device, settings.torch_dtype),
            settings.task,
            **_options(settings),
            images=settings.images,
            objective=settings.objective,
            target=settings.target,
            device=device,
            store=settings.store or settings.out,
            out=settings.out,
            progress=progress,
        )


def _show_plan(settings: AuditSettings, device: str | None) -> None:
    """What would run, at most, and about how long it takes here."""
    from assay import pipeline

    task = settings.task if settings.images is None else f"images:{settings.images}"
    options = pipeline.AuditOptions(task=task, **_options(settings))
    cost = options.cost(load(settings.model, device, settings.torch_dtype))
    if settings.json:
        print_json(cost.to_dict())
        return
    echo(f"{cost.model['id']}, n = {cost.n}: maximum forward passes over one prompt or image")
    rows = [[each.stage, f"{each.runs:,}", f"{each.passes:,}"] for each in cost.stages]
    print_table(
        "", ["stage", "runs", "passes"], [*rows, ["total", "", f"{cost.passes:,}"]], right="runs passes"
    )
    echo(f"about {_time(cost.seconds)} here, at {1000 * cost.pass_seconds:.3g} ms a pass")
    echo(f"about {_size(cost.bytes)} of memory, {_size(cost.stored_bytes)} stored")
    _echo_left_out([each.to_dict() for each in cost.left_out])


def _time(seconds: float) -> str:
    """A duration for reading."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


def _size(count: int) -> str:
    """A number of bytes for reading."""
    for unit, length in (("GB", 1e9), ("MB", 1e6)):
        if count >= length:
            return f"{count / length:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def _echo_left_out(listed: Sequence[Mapping[str, Any]]) -> None:
    """A line for what is not run."""
    for each in listed:
        costs = f", at most {each['passes']:,} passes" if each["passes"] else ""
        how = f"; to run it: {each['option']}" if each["option"] else ""
        echo(f"not run: {each['what']} ({each['reason']}{costs}{how})")


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
    if document["calibration"]:
        echo(calibration_overview(document["calibration"]))
        echo()
    _echo_left_out(result.left_out)
    echo()
    echo_files(report=out / "report.html")
    echo_result(result.id, cached=result.cached)

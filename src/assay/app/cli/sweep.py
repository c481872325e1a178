"""`assay sweep`: a plan of many jobs on local processes or on Ray."""

import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.delivery import (
    Computing,
    check_outputs,
    note,
    print_pages,
    print_table,
    progress_on_stderr,
    remark,
    say,
)
from assay.app.options import RUNNING, Count
from assay.app.settings import Placed, Typed


if TYPE_CHECKING:
    from assay.pipeline.jobs import Job
    from assay.pipeline.plan import Limits, Plan
    from assay.pipeline.sweep import SweepOutcome
    from assay.pipeline.workers import Workers
    from assay.store import Store


@dataclass(frozen=True, kw_only=True)
class SweepSettings(Computing, Typed, Placed):
    """How a plan is run.

    Attributes:
        workers: Parallel jobs. Default: as in the plan, else one per accelerator, or one per core on a CPU.
        devices: Accelerators to deal the jobs to, e.g. cuda:0,cuda:1. Default: that of --device.
        ray: Run on Ray: local (this machine), auto or HOST:PORT (a cluster). Default: processes.
        dry_run: List the jobs; run nothing.
    """

    workers: Annotated[Count | None, RUNNING] = None
    devices: Annotated[str | None, RUNNING] = None
    ray: Annotated[str | None, RUNNING, Parameter(metavar="ADDRESS")] = None
    dry_run: Annotated[bool, RUNNING] = False

    def dealt(self) -> list[str]:
        """The CUDA devices that jobs are dealt to; none on a CPU or on Ray.

        Raises:
            InputError: For devices that are not there.
        """
        from assay.pipeline.stage import check_options

        if self.ray is not None:
            return []
        named = self.place(lambda text: None) if self.devices is None else self.devices
        devices = [name.strip() for name in (named or "").split(",") if name.strip().startswith("cuda")]
        for name in devices:
            check_options(device=name)
        return devices


@command(CIRCUITS, example="assay sweep plan.toml --workers 4 --dry-run")
def sweep(plan: Path, /, *, settings: SweepSettings) -> int:
    """Run a plan of many jobs; run it again to resume.

    Args:
        plan: TOML file of the plan.
        settings: The options.
    """
    from assay.pipeline.jobs import expand
    from assay.pipeline.plan import read_plan
    from assay.pipeline.workers import LocalWorkers, RayWorkers

    content = read_plan(plan)
    devices = settings.dealt()
    # Two jobs share a GPU only where their number is asked for.
    count = settings.workers or content.limits.workers or (len(devices) if settings.ray is None else 0)
    limits = replace(content.limits, workers=count or None)
    content = replace(content, limits=limits)
    if not settings.dry_run:
        check_outputs(settings)
    gpus = {"cpu": 0, "cuda": 1}.get(settings.device)
    workers: Workers = LocalWorkers(devices=devices)
    if settings.ray is not None:
        workers = RayWorkers(settings.ray, gpus=gpus)
    with closing(workers):
        device, here = _placed(settings, workers, devices, limits)
        note(f"{content.name}: loading models and tasks ...")
        jobs = expand(content, device=device, here=here, dtype=settings.dtype_name)
        if settings.dry_run:
            _show_jobs(settings, content, jobs)
            return 0
        return _run(settings, content, jobs, workers)


def _run(settings: SweepSettings, plan: "Plan", jobs: "Sequence[Job]", workers: "Workers") -> int:
    """Run the jobs that are left, and show what became of them."""
    from assay.pipeline.sweep import keep_sweep, run_jobs

    store = settings.open_store()
    with progress_on_stderr() as progress, redirect_stdout(sys.stderr):  # Ray tells stdout of dead workers
        outcome = run_jobs(
            jobs, store.location, workers=workers, limits=plan.limits, log=plan.name, progress=progress
        )
    identity = keep_sweep(store, plan, outcome.jobs) if outcome.ok else None
    _deliver(settings, plan, store, outcome, identity)
    return 0 if outcome.ok else 1


def _placed(
    settings: SweepSettings, workers: "Workers", devices: Sequence[str], limits: "Limits"
) -> tuple[str | None, str | None]:
    """Where models run, as the workers see it, and in this process where that differs.

    Raises:
        InputError: If the number type would be another one here than in workers on Ray, which may have GPUs
            that are not here.
    """
    from assay.core.errors import InputError
    from assay.models.loading import accelerator
    from assay.pipeline.workers import RayWorkers

    if not isinstance(workers, RayWorkers):
        # A worker sees the one it was dealt alone.
        return ("cuda:0", devices[0]) if devices else (settings.place(), None)
    if not workers.connect(limits):
        return "cpu", None
    here = accelerator()
    if here is None and settings.dtype_name is None:
        raise InputError(
            "workers on Ray get a GPU each, where models keep the number type of their checkpoint, but this "
            "machine has none and would read them in float32; give --dtype, or --device cpu"
        )
    return "cuda:0", str(here or "cpu")


def _show_jobs(settings: SweepSettings, plan: "Plan", jobs: "Sequence[Job]") -> None:
    """The jobs of the plan, and which of them the store already holds."""
    from assay.core.errors import InputError

    try:
        done = {row.id for row in settings.existing_store().query("job")}
    except InputError:  # there is no store yet
        done = set()
    listed = [
        {"id": job.id, "name": job.name, "kind": job.kind, "needs": [*job.needs], "done": job.id in done}
        for job in jobs
    ]

    def show() -> None:
        stored = sum(job.id in done for job in jobs)
        title = f"{plan.name}: {len(jobs):,} jobs, {stored:,} already in the store"
        rows = [[job.name, job.kind, "done" if job.id in done else ""] for job in jobs]
        print_table(title, ["job", "kind", ""], rows)

    settings.deliver({"plan": plan.name, "jobs": listed}, show=show)


def _deliver(
    settings: SweepSettings, plan: "Plan", store: "Store", outcome: "SweepOutcome", identity: str | None
) -> None:
    """What became of the jobs, and the numbers they left."""
    from assay.report.sweep import jobs_page, sweep_rows

    done = {"jobs_per_second": len(outcome.names("done")) / outcome.seconds, "jobs": outcome.jobs}

    def show() -> None:
        told = "Skipped jobs were in the store already. " * bool(outcome.names("skipped"))
        told += f"The run took {outcome.seconds:,.0f} s."
        print_pages(jobs_page(plan.name, sweep_rows(store, map(vars, outcome.jobs)), remark=told))

    document = {"plan": plan.name, "id": identity, "ok": outcome.ok, "seconds": outcome.seconds, **done}
    settings.deliver(document, show=show, identity=identity or "")
    for job in outcome.jobs:
        for text in job.notes:
            remark(f"{job.name}: {text}")
        if job.status == "failed":
            times = "1 attempt" if job.attempts == 1 else f"{job.attempts} attempts"
            say(f"failed: {job.name}, {times}: {job.error}")
    if not outcome.ok:
        log = store.directory / "sweeps" / f"{plan.name}.jsonl"
        say(f"see {log} for every failure; run the same command again to retry the failed jobs")

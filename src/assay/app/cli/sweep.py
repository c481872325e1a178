"""`assay sweep`: a plan of many jobs on local processes or on Ray."""

import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.console import bars_on_stderr, echo, is_quiet, note, print_json, print_table, remark, say
from assay.app.option_groups import DEFAULT_STORE, RUNNING, Count
from assay.app.options import Mapped, Typed
from assay.app.running import Computing, check_outputs
from assay.core.signals import handled, interrupt


if TYPE_CHECKING:
    from assay.pipeline.jobs import Job
    from assay.pipeline.limits import Limits
    from assay.pipeline.plan import Plan
    from assay.pipeline.progress import Report, SweepProgress
    from assay.pipeline.schedule import Executor, SweepOutcome
    from assay.store import Store

MEASURING = ("measure", "attack", "calibrate")  # kinds of jobs whose numbers are shown
LINE_SECONDS = 5.0  # between two lines of progress where there is no terminal


@dataclass(frozen=True, kw_only=True)
class SweepSettings(Computing, Typed, Mapped):
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
        """The CUDA devices of this machine that jobs are dealt to; none on a CPU or on Ray.

        Raises:
            InputError: For --devices that are not there, are no CUDA devices, or come with --device or --ray;
                for a --device of one GPU with --ray; for either with models spread over all devices.
        """
        from assay.core.errors import InputError
        from assay.pipeline import check_options

        if self.spreads:
            given = {"--devices": self.devices, "--ray": self.ray}
            for name in (name for name, value in given.items() if value is not None):
                raise InputError(
                    f"{name} deals a GPU to each job, but device_map {self.device_map!r} spreads every model "
                    "over all GPUs of this machine; leave one out"
                )
            return []
        if self.devices is None and self.ray is not None:
            if self.device not in ("auto", "cpu", "cuda"):
                raise InputError(
                    f"--device is {self.device!r}, but Ray deals out GPUs itself; give auto, cpu or cuda"
                )
            return []
        if self.devices is None:
            placed = self.place(lambda text: None)
            return [placed] if placed is not None and placed.startswith("cuda") else []
        if self.device != "auto" or self.ray is not None:
            other = "--device" if self.ray is None else "--ray, which deals out GPUs itself"
            raise InputError(f"--devices does not go together with {other}; leave one out")
        found = [name.strip() for name in self.devices.split(",")]
        for name in found:
            if not name.startswith("cuda"):
                raise InputError(f"--devices has {name!r}; expected CUDA devices, e.g. cuda:0,cuda:1")
            check_options(device=name)
        return found


@command(CIRCUITS, example="assay sweep plan.toml --workers 4 --dry-run")
def sweep(plan: Path, /, *, settings: SweepSettings) -> int:
    """Run a plan of many jobs; run it again to resume.

    Args:
        plan: TOML file of the plan.
        settings: The options.
    """
    from assay.pipeline.expand import expand
    from assay.pipeline.models import models_run_on
    from assay.pipeline.plan_file import read_plan

    read = read_plan(plan)
    settings = replace(settings, device_map=settings.device_map or read.limits.device_map)
    read = _limited(read, device_map=settings.device_map)
    devices = settings.dealt()
    # Two jobs share a GPU only where their number is asked for.
    workers = settings.workers or read.limits.workers or (len(devices) if settings.ray is None else None)
    if workers:
        read = _limited(read, workers=workers)
    if not settings.dry_run:
        check_outputs(settings)
    with closing(_executor(settings.ray, settings.device, devices)) as executor:
        place = _placed(settings, executor, devices, read.limits)
        note(f"{read.name}: loading models and tasks ...")
        with models_run_on(place.here):
            jobs = expand(read, device=place.jobs, dtype=settings.dtype_name)
            if settings.dry_run:
                _show_jobs(settings, read, jobs)
                return 0
        return _run(settings, read, jobs, executor)


def _limited(plan: "Plan", **limits: Any) -> "Plan":
    """A plan with some of its limits replaced."""
    return plan.model_copy(update={"limits": plan.limits.model_copy(update=limits)})


def _run(settings: SweepSettings, read: "Plan", jobs: "Sequence[Job]", executor: "Executor") -> int:
    """Run the jobs that are left, and show what became of them."""
    from assay.pipeline.outcome import keep_sweep
    from assay.pipeline.schedule import run_jobs

    store = settings.open_store()
    # A batch system's SIGTERM ends a sweep as Ctrl-C does: workers first.
    with _progress() as progress, handled(interrupt, signal.SIGTERM):
        outcome = run_jobs(
            jobs,
            settings.store or DEFAULT_STORE,
            executor=executor,
            limits=read.limits,
            log=read.name,
            progress=progress,
        )
    identity = keep_sweep(store, read, jobs) if outcome.ok else None
    _show_outcome(read, jobs, store, outcome, identity, as_json=settings.json)
    return 0 if outcome.ok else 1


def _executor(ray: str | None, device: str, devices: Sequence[str]) -> "Executor":
    from assay.pipeline.local import LocalWorkers

    if ray is None:
        return LocalWorkers(devices=devices)
    from assay.pipeline.cluster import RayWorkers

    return RayWorkers(ray, gpus={"cpu": 0, "cuda": 1}.get(device))


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where models run: `jobs` as their workers see it, `here` in this process where that differs."""

    jobs: str | None
    here: str | None = None


def _placed(
    settings: SweepSettings, executor: "Executor", devices: Sequence[str], limits: "Limits"
) -> _Place:
    """Where jobs and this process run models. Ray is asked what it has: it may have GPUs that are not here.

    Raises:
        InputError: If the number type would be another one here than in the workers.
    """
    if settings.ray is None:
        # A worker sees the one it was dealt alone.
        return _Place(jobs="cuda:0", here=devices[0]) if devices else _Place(jobs=settings.place())
    from assay.core.errors import InputError
    from assay.models.placing import accelerator
    from assay.pipeline.cluster import RayWorkers

    assert isinstance(executor, RayWorkers)
    if not executor.connect(limits):
        return _Place(jobs="cpu")
    here = accelerator()
    if here is None and settings.dtype_name is None:
        raise InputError(
            "workers on Ray get a GPU each, where models keep the number type of their checkpoint, but this "
            "machine has none and would read them in float32; give --dtype, or --device cpu"
        )
    return _Place(jobs="cuda:0", here=str(here or "cpu"))


# ---- before -------------------------------------------------------------------------------------


def _show_jobs(settings: SweepSettings, plan: "Plan", jobs: "Sequence[Job]") -> None:
    """The jobs of the plan, and which of them the store already holds."""
    from assay.core.errors import InputError

    try:
        held = settings.existing_store()
        done = {job.id for job in jobs if held.has(job.id)}
    except InputError:  # there is no store yet
        done = set()
    if settings.json:
        listed = [
            {
                "id": job.id,
                "name": job.name,
                "kind": job.kind,
                "needs": list(job.needs),
                "done": job.id in done,
            }
            for job in jobs
        ]
        print_json({"plan": plan.name, "jobs": listed})
        return
    echo(f"{plan.name}: {len(jobs):,} jobs, {len(done):,} already in the store")
    print_table(
        "", ["job", "kind", ""], [[job.name, job.kind, "done" if job.id in done else ""] for job in jobs]
    )


# ---- meanwhile ----------------------------------------------------------------------------------


@contextmanager
def _progress() -> "Iterator[Report | None]":
    """A bar on a terminal, a line every few seconds elsewhere; on stderr."""
    if is_quiet():
        yield None
        return
    if not sys.stderr.isatty():
        yield _PlainLines().tell
        return
    from rich.progress import TextColumn

    with bars_on_stderr(TextColumn("{task.description}", markup=False)) as bars:
        task = bars.add_task("")

        def bar(state: "SweepProgress") -> None:
            over = state.done + state.failed
            bars.update(task, total=state.total, completed=over, description=str(state))

        yield bar


class _PlainLines:
    """Lines where nothing can be drawn over: at once, then every few seconds, and the last."""

    def __init__(self) -> None:
        self._told = -LINE_SECONDS
        self._last = ""

    def tell(self, state: "SweepProgress") -> None:
        line, now = str(state), time.monotonic()
        over = state.done + state.failed == state.total
        if line != self._last and (over or now - self._told >= LINE_SECONDS):
            say(line)
            self._told, self._last = now, line


# ---- afterwards ---------------------------------------------------------------------------------


def _show_outcome(
    plan: "Plan",
    jobs: "Sequence[Job]",
    store: "Store",
    outcome: "SweepOutcome",
    identity: str | None,
    *,
    as_json: bool,
) -> None:
    """What became of the jobs, and the numbers they left."""
    from assay.pipeline.outcome import job_rows
    from assay.pipeline.progress import duration
    from assay.report.sweep import sweep_rows

    rows = job_rows(store, jobs, outcome)
    if as_json:
        facts = {"seconds": outcome.seconds, "jobs_per_second": outcome.throughput}
        print_json({"plan": plan.name, "id": identity, "ok": outcome.ok, **facts, "jobs": rows})
    else:
        measured = [each for each in sweep_rows(store, map(vars, rows)) if each["kind"] in MEASURING]
        if measured:
            columns = ["job", "result", "value", "95 % interval", "n", "verdict", "id"]
            print_table("", columns, list(map(_row, measured)), right="value n")
            echo()
        counts = [f"{len(outcome.done):,} jobs done", f"{len(outcome.skipped):,} found in the store"]
        if outcome.failed or outcome.blocked:
            counts += [f"{len(outcome.failed):,} failed", f"{len(outcome.blocked):,} blocked by them"]
        echo(f"{', '.join(counts)}; {duration(outcome.seconds)}")
        if identity is not None:
            echo(f"sweep  {identity}")
    for name, notes in outcome.notes.items():
        for text in notes:
            remark(f"{name}: {text}")
    for each in outcome.failed:
        times = "1 attempt" if each.attempts == 1 else f"{each.attempts} attempts"
        say(f"failed: {each.job.name}, {times}: {each.fault.message}")
    if outcome.failed:
        log = store.directory / "sweeps" / f"{plan.name}.jsonl"
        say(f"see {log} for every failure; run the same command again to retry the failed jobs")


def _row(found: Mapping[str, Any]) -> list[str]:
    from assay.page import text as words

    shown, between = words.estimate(found["value"], found["low"], found["high"])
    return [
        found["job"],
        found["measure"] or "",
        "" if found["value"] is None else shown,
        between,
        "" if found["n"] is None else f"{found['n']:,}",
        found["verdict"] or "",
        found["result"] or "",
    ]

"""Worker processes that die, hang, eat memory or cannot start; and that end when their sweep does."""

import multiprocessing
import os
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from test_schedule import InProcess, job
from work_functions import begun, behave, journal

from assay.core.errors import AssayError, InputError
from assay.pipeline import schedule
from assay.pipeline.failures import FailureLog
from assay.pipeline.jobs import Job
from assay.pipeline.limits import Limits
from assay.pipeline.local import LocalWorkers, visible_index
from assay.pipeline.schedule import SweepOutcome, run_jobs
from assay.pipeline.worker import _THREAD_VARIABLES, load_work
from assay.store import Store


MIB = 2**20


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "BACK_OFF_SECONDS", 0.01)


def sweep(location: Path, *jobs: Job, workers: int = 2, **limits: object) -> SweepOutcome:
    found = run_jobs(
        jobs,
        location,
        executor=LocalWorkers(),
        limits=Limits.model_validate({"workers": workers, **limits}),
        work=behave,
        log="plan",
    )
    assert no_workers_of(os.getpid())
    return found


def no_workers_of(process: int) -> bool:
    """Whether a process has no child that is a worker."""
    children = psutil.Process(process).children(recursive=True)
    return not [each for each in children if "spawn_main" in " ".join(each.cmdline())]


def faults(location: Path) -> list[str]:
    return [line["fault"] for line in FailureLog(location, "plan").read()]


def eventually(holds: Callable[[], bool], seconds: float = 240.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.05)
    return holds()


def test_workers_that_die_are_replaced_and_jobs_run_again_or_are_given_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    acts = {"killed": "kill", "faulty": "segfault"}
    victims = [job(name, act, "work") for name, act in acts.items()]
    bad = job("bad", "exit 3")
    after, talks = job("after", needs=[bad]), job("talks", "print")
    outcome = sweep(tmp_path, *victims, bad, after, talks, retries=1)
    assert outcome.done == (*victims, talks)
    assert [(each.job, each.attempts, each.fault.kind) for each in outcome.failed] == [(bad, 2, "died")]
    assert outcome.blocked == (after,)
    assert [begun(str(tmp_path), name) for name in acts] == [2, 2]
    said = {line["name"]: line["message"] for line in FailureLog(tmp_path, "plan").read()}
    assert said == {
        "killed": "the worker died (signal SIGKILL)",
        "faulty": "the worker died (signal SIGSEGV)",
        "bad": "the worker died (exit status 3)",
    }
    out, err = capfd.readouterr()
    assert out == "", "stdout belongs to the results of a command"
    assert "a line that no reader of JSON wants" in err


@pytest.mark.slow
def test_jobs_that_hang_or_eat_memory_are_ended(tmp_path: Path) -> None:
    jobs = [job("hangs", "hang"), job("eats", f"eat {1000 * MIB}"), job("fine")]
    outcome = sweep(tmp_path, *jobs, workers=1, timeout=3.0, memory=900 * MIB, retries=0)
    assert {each.job.name: each.fault.kind for each in outcome.failed} == {
        "hangs": "timeout",
        "eats": "memory",
    }
    reasons = {each.job.name: each.fault.message for each in outcome.failed}
    assert reasons["hangs"] == "it took longer than 3 s (limits.timeout)"
    assert reasons["eats"].endswith("above its budget of 900 MiB (limits.memory)")
    assert outcome.done == (jobs[2],)


def test_work_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="define it at the top level of a module"):
        run_jobs([job("j")], tmp_path, executor=LocalWorkers(1), work=lambda job, location: ())


def test_workers_that_cannot_load_their_work_end_the_sweep(tmp_path: Path) -> None:
    def absent(job: object, location: str) -> tuple[str, ...]:
        return ()

    absent.__qualname__ = absent.__name__ = "absent"
    absent.__module__ = "work_functions"
    with pytest.raises(AssayError, match=r"workers cannot load their work:(.|\n)*AttributeError.*absent"):
        run_jobs([job("j")], tmp_path, executor=LocalWorkers(1), work=absent)
    assert no_workers_of(os.getpid())


@pytest.mark.slow
def test_no_worker_outlives_its_sweep_and_the_next_goes_on(tmp_path: Path) -> None:
    """An interrupted one is in `test_cli_sweep.py`."""
    jobs = [*(job(f"j{place}", "sleep 0.1") for place in range(6)), job("last", "hang", "work")]
    run = partial(run_jobs, jobs, tmp_path, executor=LocalWorkers(2), work=behave)
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    try:
        assert eventually(lambda: begun(str(tmp_path), "last") == 1)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
    finally:
        process.kill()
    process.join()
    assert eventually(lambda: not [each for each in workers if each.is_running()])
    before = [name for what, name, _ in journal(str(tmp_path)) if what == "end"]
    outcome = run_jobs(jobs, tmp_path, executor=InProcess(1), work=behave)
    assert outcome.ok
    assert {each.name for each in outcome.skipped} == set(before)
    assert begun(str(tmp_path), "last") == 2
    assert Store(tmp_path).count("job") == 7


def test_a_worker_warms_up_before_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warmed_work.py").write_text(
        textwrap.dedent(
            """
            import os

            done = []

            def warm_up():
                done.append(os.environ["OMP_NUM_THREADS"])

            def work(job, location):
                return ()
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    threads = torch.get_num_threads()
    for variable in _THREAD_VARIABLES:
        monkeypatch.setenv(variable, str(threads))
    function = load_work("warmed_work:work", threads)
    assert function(None, "") == ()
    assert sys.modules["warmed_work"].done == [str(threads)]
    monkeypatch.delitem(sys.modules, "warmed_work")


@pytest.mark.slow
def test_each_worker_sees_a_device_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,7")
    jobs = [job(f"job {number}", "see") for number in range(6)]
    run_jobs(
        jobs,
        tmp_path,
        executor=LocalWorkers(devices=["cuda:0", "cuda:2"]),
        limits=Limits(workers=2),
        work=behave,
        log="plan",
    )
    seen = {(process, what) for what, _, process in journal(str(tmp_path)) if what.startswith("see ")}
    assert {what for _, what in seen} == {"see 4", "see 7"}
    assert len({process for process, _ in seen}) == len(seen) == 2


@pytest.mark.parametrize(
    ("device", "visible", "index"),
    [("cuda:1", "", "1"), ("cuda", "", "0"), ("cuda:1", "3,5", "5"), ("cuda:0", "GPU-a1,GPU-b2", "GPU-a1")],
)
def test_a_device_is_named_as_cuda_sees_it(
    device: str, visible: str, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_index(device) == index

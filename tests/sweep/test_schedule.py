"""Jobs run after what they need, each once, whatever workers do; work is shared and goes on after kills."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from store_content import content
from work_functions import begun, behave, journal

from assay.core.errors import AssayError, InputError
from assay.pipeline import schedule
from assay.pipeline.failures import FailureLog
from assay.pipeline.jobs import Job
from assay.pipeline.limits import Limits
from assay.pipeline.progress import SweepProgress, duration, seconds_of
from assay.pipeline.schedule import Executor, SweepOutcome, run_jobs
from assay.pipeline.worker import Ended, Work, attempt
from assay.store import Store


def job(name: str, *acts: str, needs: Sequence[Job] = ()) -> Job:
    record = {"name": name, "acts": list(acts or ["work"]), "needs": [each.id for each in needs]}
    return Job(name=name, kind="test", record=record, needs=tuple(each.id for each in needs))


class InProcess(Executor):
    """Jobs one after the other in this process; `free` slots are taken until the next wait, as elsewhere."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.taken: list[Job] = []
        self.stopped: list[str] = []
        self.closed = False

    def start(self, work: Work, location: str, limits: Limits, most: int) -> None:
        self.work, self.location, self.most = work, location, most

    @property
    def free(self) -> int:
        return self.slots - len(self.taken)

    def submit(self, job: Job) -> None:
        self.taken.append(job)

    def wait(self, seconds: float) -> list[Ended]:
        if not self.taken:
            time.sleep(seconds)
        ended = [attempt(self.work, each, self.location) for each in self.taken]
        self.taken = []
        return ended

    def stop(self, job: str) -> None:
        self.stopped.append(job)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further attempts follow at once."""
    monkeypatch.setattr(schedule, "BACK_OFF_SECONDS", 0.0)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[list[int], str]]:
    """Jobs as (places of what each needs, what it does), needs before the needing."""
    found = []
    for place in range(draw(st.integers(1, 12))):
        needs = draw(st.lists(st.integers(0, place - 1), unique=True, max_size=3)) if place else []
        found.append((needs, draw(st.sampled_from(["work", "work", "work", "fail", "refuse"]))))
    return found


@hypothesis.settings(max_examples=25)
@hypothesis.given(graph=graphs(), slots=st.integers(1, 3), order=st.randoms(use_true_random=False))
def test_order_is_kept_each_job_runs_once_and_failures_block_what_needs_them(
    tmp_path_factory: pytest.TempPathFactory, graph: list[tuple[list[int], str]], slots: int, order: Any
) -> None:
    location = tmp_path_factory.mktemp("store")
    jobs: list[Job] = []
    for place, (needs, act) in enumerate(graph):
        jobs.append(job(f"j{place}", act, needs=[jobs[each] for each in needs]))
    given = list(jobs)
    order.shuffle(given)
    outcome = run_jobs(given, location, executor=InProcess(slots), limits=Limits(retries=1), work=behave)
    behind: dict[str, set[str]] = {}  # all that a job needs, at any distance
    for each in jobs:
        near = {other.name for other in jobs if other.id in each.needs}
        behind[each.name] = near.union(*(behind[name] for name in near))
    bad = {each.name for each in jobs if each.record["acts"] != ["work"]}
    blocked = {each.name for each in jobs if behind[each.name] & bad}
    failed = bad - blocked
    assert {each.name for each in outcome.blocked} == blocked
    assert {each.job.name: each.attempts for each in outcome.failed} == {
        each.name: 1 if each.record["acts"] == ["refuse"] else 2 for each in jobs if each.name in failed
    }
    assert {each.name for each in outcome.done} == {each.name for each in jobs} - blocked - failed
    lines = journal(str(location))
    assert all(count == 1 for count in Counter(name for what, name, _ in lines if what == "end").values())
    ends = [name for what, name, _ in lines if what == "end"]
    assert all(behind[name] <= set(ends[:place]) for place, name in enumerate(ends))
    assert not {name for what, name, _ in lines if what == "begin"} & blocked
    assert outcome.ok == (not bad)


def test_jobs_found_in_the_store_are_not_run_again(tmp_path: Path) -> None:
    first, second = job("first"), job("second")
    run_jobs([first], tmp_path, executor=InProcess(1), work=behave)
    third = job("third", needs=[first])
    executor = InProcess(1)
    outcome = run_jobs([first, second, third], tmp_path, executor=executor, work=behave)
    assert executor.most == 2
    assert (outcome.skipped, outcome.done) == ((first,), (second, third))
    assert begun(str(tmp_path), "first") == 1
    idle = InProcess(1)
    again = run_jobs([first, second, third], tmp_path, executor=idle, work=behave)
    assert again.ok
    assert len(again.skipped) == 3
    assert not hasattr(idle, "work"), "no worker is brought up for nothing"


def test_what_is_needed_may_lie_in_the_store(tmp_path: Path) -> None:
    first = job("first")
    run_jobs([first], tmp_path, executor=InProcess(1), work=behave)
    second = job("second", needs=[first])
    assert run_jobs([second], tmp_path, executor=InProcess(1), work=behave).done == (second,)


def test_a_need_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"job 'second' needs [0-9a-f]{16}, which is neither a job of the plan nor"
    ):
        run_jobs([job("second", needs=[job("first")])], tmp_path, executor=InProcess(1), work=behave)


def test_a_circle_of_jobs_is_spelled_out(tmp_path: Path) -> None:
    a = job("a")
    b = Job(name="b", kind="test", record={"name": "b"}, needs=(a.id,))
    circle = [Job(name="a", kind="test", record=a.record, needs=(b.id,)), b]
    with pytest.raises(InputError, match=r"in a cycle: (a -> b -> a|b -> a -> b);"):
        run_jobs(circle, tmp_path, executor=InProcess(1), work=behave)


def test_the_longer_way_goes_first(tmp_path: Path) -> None:
    short, start = job("short"), job("start")
    end = job("end", needs=[start])
    run_jobs([short, start, end], tmp_path, executor=InProcess(1), work=behave)
    assert [name for what, name, _ in journal(str(tmp_path)) if what == "end"] == ["start", "short", "end"]


def test_failures_are_logged_and_are_no_results(tmp_path: Path) -> None:
    bad = job("bad", "crash", "fail")
    outcome = run_jobs(
        [bad], tmp_path, executor=InProcess(1), limits=Limits(retries=1), work=behave, log="plan"
    )
    assert outcome.failed[0].fault.message == "NonFiniteError: the logits are NaN"
    lines = FailureLog(tmp_path, "plan").read()
    assert [(line["name"], line["attempt"], line["fault"]) for line in lines] == [
        ("bad", 1, "error"),
        ("bad", 2, "error"),
    ]
    assert "ZeroDivisionError: by zero" in lines[0]["trace"]
    assert Store(tmp_path).count() == 0


def test_a_log_that_a_kill_cut_off_is_read_and_written_on(tmp_path: Path) -> None:
    log = FailureLog(tmp_path, "plan")
    assert log.read() == []
    log.add({"name": "a"})
    log.path.write_bytes(log.path.read_bytes() + b'{"name": "b", "mess')
    assert [line["name"] for line in log.read()] == ["a"]
    log.add({"name": "c"})
    assert [line["name"] for line in log.read()] == ["a", "c"]


def test_a_job_that_returns_without_its_row_has_failed(tmp_path: Path) -> None:
    outcome = run_jobs(
        [job("forgetful", "forget", "work")], tmp_path, executor=InProcess(1), work=behave, log="plan"
    )
    assert outcome.ok
    assert [line["fault"] for line in FailureLog(tmp_path, "plan").read()] == ["lost"]


def test_warnings_of_jobs_come_back(tmp_path: Path) -> None:
    outcome = run_jobs([job("warned", "warn")], tmp_path, executor=InProcess(1), work=behave)
    assert outcome.notes == {"warned": ("one value is constant",)}


def test_two_sweeps_on_a_store_at_once_end_as_one(tmp_path: Path) -> None:
    first = job("first", "sleep 0.05")
    jobs = [first, *(job(f"j{place}", "sleep 0.02", needs=[first]) for place in range(20))]
    Store(tmp_path)
    outcomes: list[SweepOutcome] = []

    def sweep() -> None:
        outcomes.append(run_jobs(jobs, tmp_path, executor=InProcess(1), work=behave))

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.ok for outcome in outcomes] == [True, True]
    for outcome in outcomes:
        assert len(outcome.done) + len(outcome.skipped) == len(jobs)
    run_jobs(jobs, tmp_path / "alone", executor=InProcess(1), work=behave)
    assert content(Store(tmp_path)) == content(Store(tmp_path / "alone"))


def test_interrupted_workers_are_closed(tmp_path: Path) -> None:
    class Interrupted(InProcess):
        def wait(self, seconds: float) -> list[Ended]:
            raise KeyboardInterrupt

    executor = Interrupted(1)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("only")], tmp_path, executor=executor, work=behave)
    assert executor.closed


def test_progress_counts(tmp_path: Path) -> None:
    told: list[SweepProgress] = []
    jobs = [job("a"), job("b"), job("c", "refuse")]
    run_jobs(jobs, tmp_path, executor=InProcess(1), work=behave, progress=told.append)
    assert (told[-1].done, told[-1].failed, told[-1].total, told[-1].running) == (2, 1, 3, ())
    assert [each.done for each in told] == sorted(each.done for each in told)
    assert str(told[-1]) == "2/3 done, 0 running, 1 failed"


def test_durations_are_rounded_before_they_are_divided() -> None:
    assert duration(59.6) == "1 min"


def test_an_executor_that_gives_up_ends_the_sweep(tmp_path: Path) -> None:
    class Gone(InProcess):
        def wait(self, seconds: float) -> list[Ended]:
            raise AssayError("no worker started")

    with pytest.raises(AssayError, match="no worker started"):
        run_jobs([job("only")], tmp_path, executor=Gone(1), work=behave)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("45", 45), ("1.5m", 90), (" 2 h ", 7200), ("1d", 86400), (30, 30)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["-1", "10 minutes", "", "h", "1e9", "nan", "9" * 400, -1.0])
def test_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(InputError, match="not a duration"):
        seconds_of(text)

"""Jobs run after what they need, each once, whatever workers do; the driver stores what they return."""

import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from store_content import content
from work_functions import InProcess, begun, behave, job, journal

from assay.core.errors import InputError, StoreError
from assay.pipeline.jobs import Job
from assay.pipeline.plan import Limits
from assay.pipeline.sweep import SweepOutcome, run_jobs
from assay.pipeline.workers import attempt
from assay.store import Outbox, Store


def run(location: Path, *jobs: Job, **options: Any) -> SweepOutcome:
    return run_jobs(jobs, location, workers=InProcess(), work=behave, **options)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[list[int], str]]:
    """Jobs as (places of what each needs, what it does), needs before the needing."""
    graph = []
    for place in range(draw(st.integers(1, 12))):
        needs = draw(st.lists(st.integers(0, place - 1), unique=True, max_size=3)) if place else []
        graph.append((needs, draw(st.sampled_from(["work", "work", "work", "fail", "refuse"]))))
    return graph


@hypothesis.settings(max_examples=25)
@hypothesis.given(graph=graphs(), order=st.randoms(use_true_random=False))
def test_order_is_kept_each_job_runs_once_and_failures_block_what_needs_them(
    tmp_path_factory: pytest.TempPathFactory, graph: list[tuple[list[int], str]], order: Any
) -> None:
    location = tmp_path_factory.mktemp("store")
    jobs: list[Job] = []
    for place, (needs, act) in enumerate(graph):
        jobs.append(job(f"j{place}", act, needs=[jobs[each] for each in needs]))
    shuffled = list(jobs)
    order.shuffle(shuffled)
    outcome = run(location, *shuffled, limits=Limits(retries=1))
    behind: dict[str, set[str]] = {}  # all that a job needs, at any distance
    for each in jobs:
        near = {other.name for other in jobs if other.id in each.needs}
        behind[each.name] = near.union(*(behind[name] for name in near))
    bad = {each.name for each in jobs if each.record["acts"] != ["work"]}
    blocked = {each.name for each in jobs if behind[each.name] & bad}
    attempts = {each.name: 1 if each.record["acts"] == ["refuse"] else 2 for each in jobs}
    assert set(outcome.names("blocked")) == blocked
    assert {each.name: each.attempts for each in outcome.jobs if each.status == "failed"} == {
        name: attempts[name] for name in bad - blocked
    }
    assert set(outcome.names("done")) == {each.name for each in jobs} - blocked - bad
    ends = [name for what, name, _ in journal(location) if what == "end"]
    assert len(set(ends)) == len(ends)
    assert all(behind[name] <= set(ends[:place]) for place, name in enumerate(ends))
    assert not {name for what, name, _ in journal(location) if what == "begin"} & blocked
    assert outcome.ok == (not bad)


def test_jobs_found_in_the_store_are_not_run_again(tmp_path: Path) -> None:
    first, second = job("first"), job("second")
    before = run(tmp_path, first)
    third = job("third", needs=[first])
    outcome = run(tmp_path, first, second, third)
    assert (outcome.names("skipped"), outcome.names("done")) == (["first"], ["second", "third"])
    assert outcome.jobs[0].results == before.jobs[0].results
    assert begun(tmp_path, "first") == 1
    idle = InProcess()
    assert run_jobs([first, second, third], tmp_path, workers=idle, work=behave).ok
    assert idle.count == 0, "no worker is brought up for nothing"
    assert run(tmp_path, job("fourth", needs=[first])).ok, "a need may lie in the store alone"
    with pytest.raises(InputError, match="which is neither among them nor in the store"):
        run(tmp_path, job("fifth", needs=[job("nowhere")]))


def test_a_worker_writes_nothing_and_the_driver_what_it_returns(tmp_path: Path) -> None:
    store, only = Store(tmp_path), job("only")
    ended = attempt(behave, only, str(tmp_path))
    assert (store.count(), (tmp_path / "arrays").exists()) == (0, False)
    for _ in range(2):  # a second time changes nothing
        store.add(ended.contents)
        behave(only, direct := Store(tmp_path / "direct"))
        assert content(store) == content(direct)
    assert store.has(only.id)
    with pytest.raises(InputError, match="there is no results store"):
        Outbox(tmp_path / "absent", [])


def test_failures_are_logged_and_are_no_results_and_warnings_and_counts_come_back(tmp_path: Path) -> None:
    counts: list[tuple[int, int]] = []
    jobs = [job("bad", "fail"), job("warned", "warn"), job("good")]
    outcome = run(tmp_path, *jobs, log="plan", progress=lambda stage, *count: counts.append(count))
    assert [(each.error, each.attempts, each.notes) for each in outcome.jobs] == [
        ("NonFiniteError: the logits are NaN", 3, ()),
        (None, None, ("one value is constant",)),
        (None, None, ()),
    ]
    lines = list(map(json.loads, (tmp_path / "sweeps" / "plan.jsonl").read_text().splitlines()))
    told = [(each["name"], each["attempt"], each["fault"]) for each in lines]
    assert told == [("bad", number, "error") for number in (1, 2, 3)]
    assert "NonFiniteError" in lines[0]["trace"]
    assert Store(tmp_path).count("job") == 2
    began = [name for what, name, _ in journal(tmp_path) if what == "begin"]
    assert began == ["bad", "warned", "good", "bad", "bad"], "what failed waits for all others"
    assert (counts[-1], sorted(counts)) == ((3, 3), counts)


def test_a_store_that_cannot_be_reached_ends_the_sweep_and_counts_against_no_job(tmp_path: Path) -> None:
    jobs = [job("first"), job("second", "lose", "work"), job("third")]
    with pytest.raises(StoreError, match="at S: connection refused; what is done is kept"):
        run(tmp_path, *jobs)
    assert not (tmp_path / "sweeps").exists(), "no attempt is noted"
    assert run(tmp_path, *jobs).names("skipped") == ["first"]

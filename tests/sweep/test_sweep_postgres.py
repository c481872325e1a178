"""A sweep on PostgreSQL whose server is restarted under it."""

import contextlib
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from store_content import content
from test_schedule import InProcess, job
from work_functions import behave

from assay.core.errors import OutputError
from assay.pipeline import schedule
from assay.pipeline.local import LocalWorkers
from assay.pipeline.progress import SweepProgress
from assay.pipeline.schedule import run_jobs
from assay.store import Store


@pytest.mark.slow
def test_a_server_that_is_restarted_costs_no_result(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep may end with it, and goes on when it is run again."""
    monkeypatch.setattr(schedule, "BACK_OFF_SECONDS", 0.1)
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    url = postgres.database(arrays=str(arrays))
    first = job("first")
    jobs = [first, *(job(f"j{place}", "sleep 0.3", needs=[first]) for place in range(5))]
    restarted = []

    def restart_once(state: SweepProgress) -> None:
        if state.done >= 3 and state.running and not restarted:
            restarted.append(state.done)
            postgres.restart("immediate")

    with contextlib.suppress(OutputError):
        run_jobs(jobs, url, executor=LocalWorkers(1), work=behave, progress=restart_once)
    outcome = run_jobs(jobs, url, executor=LocalWorkers(1), work=behave)
    assert restarted, "the server was restarted while a job ran"
    assert outcome.ok
    assert len(outcome.done) + len(outcome.skipped) == len(jobs)
    run_jobs(jobs, tmp_path / "calm", executor=InProcess(1), work=behave)
    assert content(Store(url)) == content(Store(tmp_path / "calm"))

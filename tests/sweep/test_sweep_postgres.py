"""A sweep on PostgreSQL whose server is restarted under it."""

from pathlib import Path

import pytest
from postgres_server import PostgresServer
from test_schedule import InProcess, job
from work_functions import behave

from assay.pipeline import schedule
from assay.pipeline.local import LocalWorkers
from assay.pipeline.progress import SweepProgress
from assay.pipeline.schedule import run_jobs
from assay.store import Store


@pytest.mark.slow
def test_a_server_that_is_restarted_costs_no_result(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It crashes; that it ends in order is in `store/test_postgres_store.py`."""
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

    outcome = run_jobs(jobs, url, executor=LocalWorkers(1), work=behave, progress=restart_once)
    assert restarted, "the server was restarted while a job ran"
    assert outcome.ok
    assert len(outcome.done) == len(jobs)
    run_jobs(jobs, tmp_path / "calm", executor=InProcess(1), work=behave)
    assert Store(url).digest() == Store(tmp_path / "calm").digest()

"""Workers as processes and on Ray: those that die or hang are replaced; the store is the same wherever."""

import contextlib
import json
import os
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command_line import invoke
from postgres_server import PostgresServer
from store_content import content
from work_functions import InProcess, begun, behave, job

from assay.core.errors import OutputError
from assay.pipeline.jobs import expand
from assay.pipeline.plan import Limits, read_plan
from assay.pipeline.sweep import keep_sweep, run_jobs
from assay.pipeline.workers import LocalWorkers, RayWorkers, Workers, visible_index
from assay.store import Store


PLAN = """
name = "small"
n = 6
models = ["mini"]
tasks = ["ioi"]
methods = ["eap"]
sizes = [50]
metrics = ["kl"]
attack = {n-clean = 6, n-corrupted = 6}
"""

# Ray leaves sockets and files to the garbage collector, in threads of its own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.slow
def test_ray_makes_the_store_that_this_process_makes(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    (tmp_path / "plan.toml").write_text(PLAN)
    on_ray = ("--ray", "local", "--workers", "1", "--device", "cpu")
    result = invoke("sweep", tmp_path / "plan.toml", "--store", tmp_path / "ray", *on_ray)
    assert result.exit_code == 0, result.stderr
    assert not ray.is_initialized()
    plan = read_plan(tmp_path / "plan.toml")
    outcome = run_jobs(expand(plan), tmp_path / "here", workers=InProcess())
    keep_sweep(Store(tmp_path / "here"), plan, outcome.jobs)
    assert content(Store(tmp_path / "ray")) == content(Store(tmp_path / "here"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of one node that says it has two GPUs; sweeps find it running and leave it so."""
    ray = pytest.importorskip("ray")
    own = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]  # workers import the work of tests
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("PYTHONPATH", os.pathsep.join([*own, os.environ.get("PYTHONPATH", "")]))
        warnings.simplefilter("ignore")  # its own: deprecations in its imports, unclosed sockets
        ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(params=["processes", pytest.param("ray", marks=pytest.mark.slow)])
def workers(request: pytest.FixtureRequest) -> Workers:
    if request.param == "processes":
        return LocalWorkers()
    request.getfixturevalue("cluster")
    return RayWorkers("auto", gpus=0)


def test_workers_that_die_or_hang_are_replaced_and_jobs_run_again_or_are_given_up(
    tmp_path: Path, workers: Workers, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = job("bad", "exit 3")
    jobs = [job("killed", "kill", "work"), job("hangs", "hang", "work"), bad]
    jobs += [job("after", needs=[bad]), job("refuses", "refuse"), job("talks", "print")]
    limits = Limits(workers=2, retries=1, timeout=4.0)
    outcome = run_jobs(jobs, tmp_path, workers=workers, limits=limits, work=behave)
    assert outcome.names("done") == ["killed", "hangs", "talks"]
    assert outcome.names("blocked") == ["after"]
    gave_up = {each.name: each.attempts for each in outcome.jobs if each.status == "failed"}
    assert gave_up == {"bad": 2, "refuses": 1}
    assert [begun(tmp_path, name) for name in ("killed", "hangs", "bad", "after")] == [2, 2, 2, 0]
    lines = list(map(json.loads, (tmp_path / "sweeps" / "jobs.jsonl").read_text().splitlines()))
    faults = {"killed": "died", "hangs": "timeout", "bad": "died", "refuses": "input"}
    assert {line["name"]: line["fault"] for line in lines} == faults
    messages = {line["message"] for line in lines}
    assert "it took longer than 4 s (limits.timeout)" in messages
    if isinstance(workers, LocalWorkers):
        assert capfd.readouterr().out == "", "stdout belongs to the results of a command"
        assert {"the worker died (SIGKILL)", "the worker died (exit status 3)"} <= messages
        children = psutil.Process().children(recursive=True)
        assert not [each for each in children if "spawn_main" in " ".join(each.cmdline())]


def test_work_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        run_jobs([job("j")], tmp_path, workers=LocalWorkers(), work=lambda job, store: ())


def test_a_worker_sees_the_device_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [visible_index(device) for device in ("cuda:1", "cuda")] == ["1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,7")
    assert visible_index("cuda:2") == "7"


@pytest.mark.slow
def test_a_database_server_restarted_costs_no_result(tmp_path: Path, postgres: PostgresServer) -> None:
    """The sweep may end with it, and goes on when it is run again."""
    (tmp_path / "arrays").mkdir()
    url = postgres.database(arrays=str(tmp_path / "arrays"))
    first = job("first")
    jobs = [first, *(job(f"j{place}", "sleep 0.3", needs=[first]) for place in range(5))]
    restarted, limits = [], Limits(workers=1)

    def restart_once(stage: str, done: int, total: int) -> None:
        if done >= 3 and not restarted:
            restarted.append(done)
            postgres.restart("immediate")

    with contextlib.suppress(OutputError):
        run_jobs(jobs, url, workers=LocalWorkers(), limits=limits, work=behave, progress=restart_once)
    outcome = run_jobs(jobs, url, workers=LocalWorkers(), limits=limits, work=behave)
    assert restarted, "the server was restarted while a job ran"
    assert outcome.ok
    run_jobs(jobs, tmp_path / "calm", workers=InProcess(), work=behave)
    assert content(Store(url)) == content(Store(tmp_path / "calm"))

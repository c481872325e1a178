"""The same jobs on Ray: the same store, and workers that die or hang are replaced there too."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import invoke
from store_content import content
from test_schedule import InProcess, job
from work_functions import begun, behave

from assay.core.errors import AssayError, MissingExtraError
from assay.pipeline import schedule
from assay.pipeline.cluster import RayWorkers
from assay.pipeline.expand import expand
from assay.pipeline.failures import FailureLog
from assay.pipeline.limits import Limits
from assay.pipeline.outcome import keep_sweep
from assay.pipeline.plan_file import read_plan
from assay.pipeline.schedule import run_jobs
from assay.store import Store


pytest.importorskip("ray")

# Ray leaves sockets and files to the garbage collector, in threads of its own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def ray_is_up() -> Iterator[None]:
    """Ray on this machine, started once: it takes seconds. Sweeps find it running and leave it so."""
    first = RayWorkers("local")
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("PYTHONPATH", paths)  # workers import the work of this folder
        warnings.simplefilter("ignore")  # its own: deprecations in its imports, unclosed sockets
        first.start(behave, "", Limits(workers=2), 0)
    yield
    first.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "BACK_OFF_SECONDS", 0.01)


@pytest.mark.usefixtures("ray_is_up")
def test_ray_makes_the_store_that_this_process_makes(tmp_path: Path) -> None:
    first = job("first")
    jobs = [first, *(job(f"j{place}", needs=[first]) for place in range(5))]
    for name, executor in (("ray", RayWorkers("local", 2)), ("here", InProcess(1))):
        assert run_jobs(jobs, tmp_path / name, executor=executor, work=behave).ok
    assert content(Store(tmp_path / "ray")) == content(Store(tmp_path / "here"))


PLAN = """
name = "small"
n = 6
models = ["mini"]
tasks = ["ioi"]
methods = ["eap"]
sizes = [50]
metrics = ["kl"]

[attack]
n-clean = 6
n-corrupted = 6
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ray_is_up")
def test_the_command_makes_the_same_store_on_ray(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    result = invoke(
        "sweep",
        tmp_path / "plan.toml",
        "--store",
        tmp_path / "ray",
        "--ray",
        "local",
        "--workers",
        "1",
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    assert {job["status"] for job in json.loads(result.stdout)["jobs"]} == {"done"}
    plan = read_plan(tmp_path / "plan.toml")
    jobs = expand(plan)
    assert run_jobs(jobs, tmp_path / "here", executor=InProcess(1)).ok
    keep_sweep(Store(tmp_path / "here"), plan, jobs)
    assert content(Store(tmp_path / "ray")) == content(Store(tmp_path / "here"))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_is_up")
def test_workers_on_ray_that_die_or_hang_are_replaced(tmp_path: Path) -> None:
    jobs = [job("dies", "kill", "work"), job("hangs", "hang", "work"), job("refuses", "refuse"), job("fine")]
    outcome = run_jobs(
        jobs,
        tmp_path,
        executor=RayWorkers("local", 2),
        limits=Limits(timeout=4.0, retries=1),
        work=behave,
        log="plan",
    )
    assert [each.name for each in outcome.done] == ["dies", "hangs", "fine"]
    assert [(each.job.name, each.attempts) for each in outcome.failed] == [("refuses", 1)]
    said = {line["name"]: line["fault"] for line in FailureLog(tmp_path, "plan").read()}
    assert said == {"dies": "died", "hangs": "timeout", "refuses": "input"}
    assert [begun(str(tmp_path), name) for name in ("dies", "hangs", "refuses", "fine")] == [2, 2, 1, 1]


@pytest.mark.usefixtures("ray_is_up")
def test_work_that_ray_workers_cannot_load_ends_the_sweep(tmp_path: Path) -> None:
    def absent(job: object, location: str) -> tuple[str, ...]:
        return ()

    absent.__qualname__ = absent.__name__ = "absent"
    absent.__module__ = "work_functions"
    with pytest.raises(AssayError, match=r"workers cannot load their work:(.|\n)*absent"):
        run_jobs([job("j")], tmp_path, executor=RayWorkers("local", 1), work=absent)


GPUS_OF_A_CLUSTER = """
import sys
import ray
from assay.core.errors import AssayError
from assay.pipeline.cluster import RayWorkers
from assay.pipeline.limits import Limits

ray.init(num_cpus=4, num_gpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
for asked in (None, 0, 1):
    workers = RayWorkers("auto", gpus=asked)
    try:
        each = workers.connect(Limits())
    except AssayError as error:
        print(asked, error)
        continue
    workers.start(len, "", Limits(), 8)
    print(asked, each, len(workers._workers))
    workers.close()
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "lines"),
    [
        ("2", ["None 1 2", "0 0 4", "1 1 2"]),
        ("0", ["None 0 4", "0 0 4", "1 each worker is to have 1 GPU, but the Ray cluster has 0"]),
    ],
)
def test_the_gpus_of_a_cluster_decide_not_those_of_this_machine(there: str, lines: list[str]) -> None:
    """PyTorch here sees none; Ray counts what its nodes say they have."""
    found = subprocess.run(
        [sys.executable, "-c", GPUS_OF_A_CLUSTER, there], capture_output=True, text=True, timeout=240
    )
    assert found.returncode == 0, found.stderr[-2000:]
    said = [line for line in found.stdout.splitlines() if line[:1] in "N01"]
    assert len(said) == 3
    assert all(line.startswith(wanted) for line, wanted in zip(said, lines, strict=True)), said


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'circuit-assay\[ray\]'"):
        RayWorkers("local")

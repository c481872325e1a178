"""`assay sweep` as users run it: killed, interrupted, twice at once; the results stay the same."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import Outcome, invoke
from processes import CommandProcess
from store_content import content
from thorough import one_of

from assay.core.errors import InputError
from assay.pipeline.workers import LocalWorkers
from assay.store import Store


PLAN = """
name = "small"
n = 12
models = ["mini"]
tasks = ["ioi"]
methods = ["eap", "clean-corrupted"]
sizes = [50, 80]
metrics = ["faithfulness-norm", "kl"]

[attack]
n-clean = 20
n-corrupted = 20

[limits]
workers = 1
"""
JOBS = 2 * (1 + 2 * 3)  # discover, and of each size select, measure, attack


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, plan: Path) -> tuple[Path, Outcome]:
    """The store of an undisturbed sweep with one worker, and what it printed."""
    store = tmp_path_factory.mktemp("calm") / "store"
    return store, run(plan, "--store", store)


def run(*arguments: object) -> Outcome:
    return invoke("sweep", *arguments)


def eventually(holds: Callable[[], bool], seconds: float = 240.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.1)
    return holds()


def done(store: Path) -> int:
    """Jobs whose row a store holds."""
    try:
        return Store(store, create=False).count("job")
    except InputError:  # it is being made
        return 0


def test_a_sweep_prints_its_results_and_leaves_a_row_of_itself(calm: tuple[Path, Outcome]) -> None:
    store, result = calm
    assert result.exit_code == 0, result.output
    assert "measure mini ioi eap 50 edges" in result.stdout
    assert "faithfulness-norm" in result.stdout
    assert f"{JOBS} jobs: {JOBS} done." in result.stdout
    assert "in the store already" not in result.stdout
    kept = list(Store(store).results("sweep"))
    assert len(kept) == 1
    assert kept[0].id in result.stdout
    assert kept[0].provenance["plan"]["methods"][0]["method"] == "eap"
    listed = kept[0].payload["jobs"]
    assert [each["id"] for each in listed] == kept[0].provenance["jobs"]
    assert all(Store(store).has(each) for job in listed for each in job["results"])
    assert not {"seconds", "created", "time"} & {key for job in listed for key in job}


def test_the_same_command_again_finds_everything(calm: tuple[Path, Outcome], plan: Path) -> None:
    store, _ = calm
    before = content(Store(store))
    result = run(plan, "--store", store, "--json", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["ok"]
    assert {job["status"] for job in document["jobs"]} == {"skipped"}
    assert len(document["jobs"]) == JOBS
    assert content(Store(store)) == before


def test_dry_run_lists_the_jobs_and_runs_nothing(
    calm: tuple[Path, Outcome], plan: Path, tmp_path: Path
) -> None:
    store = tmp_path / "none"
    result = run(plan, "--store", store, "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"small: {JOBS} jobs, 0 already in the store" in result.stdout
    assert "discover mini ioi" in result.stdout
    assert not store.exists()
    held = json.loads(run(plan, "--store", calm[0], "--dry-run", "--json", "--quiet").stdout)
    assert [job["done"] for job in held["jobs"]] == [True] * JOBS
    assert {"discover", "select", "measure"} <= {job["kind"] for job in held["jobs"]}


def test_a_failed_job_ends_with_1_and_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rest(self: LocalWorkers, busy: Sequence[Any], seconds: float) -> None:
        time.sleep(seconds)
        print("Ray says on stdout that a worker died")

    monkeypatch.setattr(LocalWorkers, "rest", rest)
    short = tmp_path / "short.toml"
    text = PLAN.replace('name = "small"', 'name = "short"').replace('"eap", "clean-corrupted"', '"eap"')
    short.write_text(text + "retries = 0\ntimeout = 0.001\n")
    store = tmp_path / "store"
    result = run(short, "--store", store, "--json")
    assert result.exit_code == 1
    statuses = [job["status"] for job in json.loads(result.stdout)["jobs"]]
    assert statuses == ["failed", *["blocked"] * 6]
    assert "failed: discover mini ioi eap, 1 attempt: it took longer than 0.001 s" in result.stderr
    lines = [json.loads(line) for line in (store / "sweeps" / "short.jsonl").read_text().splitlines()]
    assert [line["fault"] for line in lines] == ["timeout"]
    assert Store(store).count("sweep") == 0


def test_a_wrong_device_or_plan_is_refused_before_anything_is_made(plan: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(PLAN + "[atack]\n")
    device, field = "device 'cuda:77' does not exist", "unknown field 'atack'; did you mean 'attack'"
    for given, message in (((plan, "--devices", "cuda:77"), device), ((wrong,), field)):
        result = run(*given, "--store", tmp_path / "store")
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
        assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "signals",
    one_of(
        [
            (signal.SIGINT, signal.SIGKILL),
            (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL),
        ]
    ),
    ids=len,
)
def test_kills_interrupts_and_two_sweeps_at_once_leave_what_a_calm_one_leaves(
    calm: tuple[Path, Outcome], plan: Path, tmp_path: Path, signals: tuple[signal.Signals, ...]
) -> None:
    store = tmp_path / "store"

    def start(name: str) -> CommandProcess:
        return CommandProcess(tmp_path / name, "sweep", plan, "--store", store, "--json")

    for place, number in enumerate(signals):
        with start(f"{place}") as sweep:
            before = done(store)
            assert eventually(lambda before=before: done(store) > before), "no job was done"
            family = psutil.Process(sweep.pid).children(recursive=True)
            assert sweep.end(number).exit_code == (-number if number == signal.SIGKILL else 130)
        assert eventually(lambda family=family: not any(each.is_running() for each in family)), "workers live"
    left = JOBS - done(store)
    assert 0 < left < JOBS
    with start("first") as first, start("second") as second:
        outcomes = [sweep.end() for sweep in (first, second)]
    assert [each.exit_code for each in outcomes] == [0, 0]
    documents = [json.loads(each.stdout) for each in outcomes]
    assert content(Store(store)) == content(Store(calm[0]))
    assert Store(store).verify() == []
    assert documents[0]["id"] == documents[1]["id"]

"""Jobs: pure functions of their records, marked as done by their last row."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from store_content import content

import assay
from assay.core.errors import InputError
from assay.core.record import record_id
from assay.pipeline.jobs import Job, expand, run_job
from assay.pipeline.plan import parse_plan
from assay.pipeline.prompts import draw_prompts
from assay.store import Store


BASE: dict[str, Any] = {
    "name": "jobs",
    "n": 16,
    "models": ["mini"],
    "tasks": ["ioi"],
    "methods": ["eap"],
    "sizes": [80],
    "metrics": ["faithfulness", "kl"],
    "limits": {"batch-size": 8},
}
IMAGES = {"models": ["colour-digits"], "tasks": ["colour-digits"], "n": 8, "sizes": [40], "metrics": ["kl"]}


@pytest.fixture(scope="module")
def jobs() -> tuple[Job, ...]:
    return expand(parse_plan({**BASE, "gates": ["bootstrap-stability"]}))


def run_all(jobs: tuple[Job, ...], folder: Path) -> Store:
    store = Store(folder)
    for job in jobs:
        run_job(job, store)
    return store


def test_a_plan_becomes_jobs_after_what_they_need(jobs: tuple[Job, ...]) -> None:
    assert [job.kind for job in jobs] == ["discover", "select", "measure", "calibrate"]
    assert jobs[2].needs == (jobs[1].id,)
    assert jobs[2].name == "measure mini ioi eap 80 edges"
    several = expand(parse_plan({**BASE, "seeds": [0, 1], "metrics": ["kl"]}))
    assert len({job.id for job in several}) == len(several) == 6
    assert several[3].name == "discover mini ioi eap seed 1"
    with pytest.raises(InputError, match=r"sizes has 1,520, but model 'mini' has 1,519 edges"):
        expand(parse_plan({**BASE, "sizes": [80, 1519, 1520]}))


def test_the_numbers_are_those_of_the_python_interface(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = {job.kind: run_job(job, store) for job in jobs}
    model = assay.load_model("mini")
    draws = draw_prompts(model, "ioi", n=16, seed=0)
    scores = assay.discover(model, draws.discovery, "eap", batch_size=8)
    assert torch.equal(store.get(results["discover"][0]).arrays["values"], scores.values)
    circuit = scores.top(80).connected()
    assert store.get(results["select"][0]).payload["hash"] == circuit.hash
    for identity, metric in zip(results["measure"], ("faithfulness", "kl"), strict=True):
        own = assay.measure(circuit, model, draws.measured, metric, batch_size=8)
        assert store.get(identity).payload["value"] == own.value
    assert store.get(results["calibrate"][0]).kind == "calibration"


def test_a_job_is_done_once_its_row_is_there(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    store, job = Store(tmp_path), jobs[0]
    results = run_job(job, store)
    row = store.get(job.id)
    assert (row.kind, row.payload) == ("job", {"results": list(results)})
    before = content(store)
    assert run_job(job, store) == results
    assert content(store) == before
    moved = replace(job, name="other", source={"model": "elsewhere"})
    assert moved.id == job.id == record_id("job", {"job": job.kind, **job.record})
    assert replace(job, record={**job.record, "seed": 1}).id != job.id


def test_a_target_finds_the_size(tmp_path: Path) -> None:
    plan = {key: value for key, value in BASE.items() if key != "sizes"}
    (circuit,) = run_all(expand(parse_plan({**plan, "target": 0.5})), tmp_path).results("circuit")
    assert circuit.payload["faithfulness"] >= 0.5
    assert 0 < circuit.payload["n_edges"] <= circuit.payload["size"]


def test_learned_objectives_do_not_leak_into_measurements(tmp_path: Path) -> None:
    jobs = expand(parse_plan({**BASE, "methods": ["acdc"], "n": 8}))
    assert jobs[0].record["objective"] == "kl"  # the method's own
    assert jobs[2].record["objective"] == "logit_diff"  # the task's own
    assert run_all(jobs, tmp_path).count("measurement") == 2


@pytest.mark.parametrize(("ablation", "protocol"), [("resample", "file"), ("zero", "inputs")])
def test_images_are_measured_and_attacked_as_planned(ablation: str, protocol: str, tmp_path: Path) -> None:
    plan = parse_plan({**BASE, **IMAGES, "ablation": ablation, "attack": {}})
    store = run_all(expand(plan), tmp_path)
    (measured,), (worst,) = store.results("measurement"), store.results("worst_case")
    assert measured.payload["n"] == worst.payload["n_pairs"] == 8
    assert (worst.payload["protocol"], worst.payload["ablation"]) == (protocol, ablation)
    with pytest.raises(InputError, match="gates need prompts, but task 'colour-digits' has images"):
        expand(replace(plan, gates=("bootstrap-stability",)))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_jobs_of_a_device_that_only_workers_have_are_expanded_here() -> None:
    plan = parse_plan({**BASE, "n": 6})
    with pytest.raises(InputError, match="device 'cuda:0' does not exist"):
        expand(plan, device="cuda:0")
    jobs = expand(plan, device="cuda:0", here="cpu")
    assert {job.source["device"] for job in jobs} == {"cuda:0"}
    assert [job.id for job in jobs] == [job.id for job in expand(plan, device="cpu")]

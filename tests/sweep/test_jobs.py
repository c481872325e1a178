"""Jobs: pure functions of their records, marked as done by their last row."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from store_content import content

import assay
from assay.core.errors import FileFormatError, InputError
from assay.core.record import record_id
from assay.pipeline.expand import expand
from assay.pipeline.jobs import JOB_KINDS, Job, run_job, work
from assay.pipeline.plan_file import parse_plan
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


@pytest.fixture(scope="module")
def jobs() -> tuple[Job, ...]:
    return expand(parse_plan({**BASE, "gates": ["bootstrap-stability"]}))


def test_a_plan_becomes_jobs_after_what_they_need(jobs: tuple[Job, ...]) -> None:
    assert [job.kind for job in jobs] == ["discover", "select", "measure", "calibrate"]
    assert jobs[2].needs == (jobs[1].id,)
    assert jobs[2].name == "measure mini ioi eap 80 edges"


def test_a_size_beyond_the_graph_is_refused() -> None:
    with pytest.raises(InputError, match=r"1,520 edges was requested, .* model 'mini' has 1,519"):
        expand(parse_plan({**BASE, "sizes": [80, 1519, 1520]}))


def test_the_numbers_are_those_of_the_python_interface(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    store = Store(tmp_path)
    results = {job.kind: run_job(job, store) for job in jobs}
    model = assay.load_model("mini")
    draws = assay.pipeline.draw_prompts(model, "ioi", n=16, seed=0)  # type: ignore[attr-defined]
    scores = assay.discover(model, draws.discovery, "eap", batch_size=8)
    stored = store.get(results["discover"][0])
    assert torch.equal(stored.arrays["values"], scores.values)
    circuit = scores.top(80).connected()
    assert store.get(results["select"][0]).payload["hash"] == circuit.hash
    for identity, metric in zip(results["measure"], ("faithfulness", "kl"), strict=True):
        own = assay.measure(circuit, model, draws.measured, metric, batch_size=8)
        assert store.get(identity).payload["value"] == own.value
    assert store.get(results["calibrate"][0]).kind == "calibration"


def test_a_job_is_done_once_its_row_is_there(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not store.has(jobs[0].id)
    first = run_job(jobs[0], store)
    assert store.has(jobs[0].id)
    before = content(store)
    assert run_job(jobs[0], store) == first
    assert work(jobs[0], str(tmp_path)) == first
    assert content(store) == before
    row = store.get(jobs[0].id)
    assert (row.kind, row.payload) == ("job", {"results": list(first)})


def test_the_identity_is_the_record_and_not_the_place(jobs: tuple[Job, ...]) -> None:
    job = jobs[0]
    moved = Job(name="other", kind=job.kind, record=job.record, source={"model": "elsewhere"})
    assert moved.id == job.id == record_id("job", {"job": job.kind, **job.record})
    changed = Job(name=job.name, kind=job.kind, record={**job.record, "seed": 1}, source=job.source)
    assert changed.id != job.id


def test_jobs_travel_to_other_processes(jobs: tuple[Job, ...]) -> None:
    for job in jobs:
        again = pickle.loads(pickle.dumps(job))  # noqa: S301 - what multiprocessing does
        assert again == job
        assert again.id == job.id


def test_a_job_that_fails_leaves_no_mark(
    jobs: tuple[Job, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)

    def fails(job: Job, store: Store) -> tuple[str, ...]:
        raise FileFormatError("broken")

    monkeypatch.setitem(JOB_KINDS._entries, "discover", fails)
    with pytest.raises(FileFormatError, match="broken"):
        run_job(jobs[0], store)
    assert not store.has(jobs[0].id)


def test_other_weights_than_planned_are_refused(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    job = jobs[0]
    record = {**job.record, "model": {**job.record["model"], "weight_hash": "0" * 16}}
    other = Job(name=job.name, kind=job.kind, record=record, source=job.source)
    with pytest.raises(InputError, match="the model of job 'discover mini ioi eap' changed after"):
        run_job(other, Store(tmp_path))


def test_other_examples_than_planned_are_refused(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    job = jobs[0]
    other = Job(name=job.name, kind=job.kind, record=job.record, source={**job.source, "n": 17})
    with pytest.raises(InputError, match="the discovery of job 'discover mini ioi eap' changed after"):
        run_job(other, Store(tmp_path))


def test_a_circuit_whose_scores_are_gone_says_so(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="does not hold them"):
        run_job(jobs[1], Store(tmp_path))


def test_a_target_finds_the_size(tmp_path: Path) -> None:
    plan = parse_plan({key: value for key, value in BASE.items() if key != "sizes"} | {"target": 0.5})
    store = Store(tmp_path)
    found = [run_job(job, store) for job in expand(plan)]
    circuit = store.get(found[1][0])
    assert circuit.kind == "circuit"
    assert circuit.payload["faithfulness"] >= 0.5
    assert 0 < circuit.payload["n_edges"] <= circuit.payload["size"]


def test_learned_objectives_do_not_leak_into_measurements(tmp_path: Path) -> None:
    plan = parse_plan({**BASE, "methods": ["acdc"], "n": 8})
    discover, select, measure = expand(plan)
    assert discover.record["objective"] == "kl"  # the method's own
    assert measure.record["objective"] == "logit_diff"  # the task's own
    store = Store(tmp_path)
    for job in (discover, select, measure):
        run_job(job, store)
    assert store.count("measurement") == 2


def test_a_circuit_from_a_file_is_measured(tmp_path: Path) -> None:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=8)
    circuit = assay.discover(model, task, "eap").top(50).connected()
    circuit.save(tmp_path / "ioi.safetensors")
    single = {"name": "mine", "model": "mini", "task": "ioi", "circuit": "ioi.safetensors", "metrics": ["kl"]}
    plan = parse_plan({"name": "files", "n": 8, "job": [single]}, folder=tmp_path)
    read, measure = expand(plan)
    store = Store(tmp_path / "store")
    run_job(read, store)
    (identity,) = run_job(measure, store)
    assert store.get(identity).payload["name"] == "kl"
    assert store.get(identity).provenance["circuit"] == circuit.hash
    assay.discover(model, task, "eap").top(90).connected().save(tmp_path / "ioi.safetensors")
    with pytest.raises(InputError, match="the circuit of job 'read mini ioi mine' changed after"):
        run_job(read, Store(tmp_path / "other"))


def test_images_are_swept_too(tmp_path: Path) -> None:
    plan = parse_plan(
        {
            **BASE,
            "models": ["colour-digits"],
            "tasks": ["colour-digits"],
            "n": 8,
            "sizes": [40],
            "metrics": ["faithfulness"],
        }
    )
    jobs = expand(plan)
    store = Store(tmp_path)
    for job in jobs:
        run_job(job, store)
    (measured,) = store.results("measurement")
    assert measured.payload["n"] == 8
    with pytest.raises(InputError, match="gates are defined on prompts, but task 'colour-digits' has images"):
        expand(plan.model_copy(update={"gates": ("bootstrap-stability",)}))


@pytest.mark.parametrize(("ablation", "protocol"), [("resample", "file"), ("zero", "inputs")])
def test_images_are_attacked_under_the_ablation_of_the_plan(
    ablation: str, protocol: str, tmp_path: Path
) -> None:
    options = {"models": ["colour-digits"], "tasks": ["colour-digits"], "n": 8, "sizes": [40]}
    plan = parse_plan({**BASE, **options, "ablation": ablation, "attack": {}})
    store = Store(tmp_path)
    for job in expand(plan):
        run_job(job, store)
    (worst,) = store.results("worst_case")
    assert (worst.payload["protocol"], worst.payload["ablation"]) == (protocol, ablation)
    assert worst.payload["n_pairs"] == 8
    with pytest.raises(InputError, match="use protocol 'inputs' instead of 'all'"):
        expand(parse_plan({**BASE, "ablation": "zero", "attack": {"protocol": "all"}}))


def test_seeds_make_the_product_again_and_equal_jobs_once() -> None:
    jobs = expand(parse_plan({**BASE, "seeds": [0, 1], "metrics": ["kl"]}))
    assert len(jobs) == 6
    assert len({job.id for job in jobs}) == 6
    assert {job.name for job in jobs if job.kind == "discover"} == {
        "discover mini ioi eap seed 0",
        "discover mini ioi eap seed 1",
    }

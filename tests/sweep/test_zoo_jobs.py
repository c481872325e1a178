"""Trainings of a zoo as jobs of a sweep: the zoo of one command, resumed, with what diverges written down."""

from pathlib import Path

import pytest
from PIL import Image

from assay.core.errors import AssayWarning, FileFormatError, InputError
from assay.pipeline import parse_plan
from assay.pipeline.expand import expand
from assay.pipeline.jobs import Job, run_job
from assay.store import Store
from assay.tasks import SHAPE_CLASSES, draw_shapes
from assay.zoo import Grid, Zoo, train_zoo


GRID = """
name = "two"
[inits.scratch]
source = "scratch"
architecture = {hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, patch_size = 16}
[axes]
lr = [0.003, LARGER]
[fixed]
optimiser = "sgd"
steps = 4
warmup = 0
batch_size = 8
validate_every = 2
clip = 1e30
"""


def jobs_of(folder: Path, larger: str = "0.01", **zoo: object) -> tuple[Job, ...]:
    grid = folder / "grid.toml"
    grid.write_text(GRID.replace("LARGER", larger))
    told = {"grid": str(grid), "images": "shapes:flat", "n": 36, "out": str(folder / "zoo"), **zoo}
    return expand(parse_plan({"name": "zoo", "zoo": told}))


def run_all(jobs: tuple[Job, ...], store: Store) -> None:
    for job in jobs:
        run_job(job, store)


def test_jobs_make_the_zoo_that_one_command_makes(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path)
    assert [job.kind for job in jobs] == ["enrol", "train", "train", "zoo"]
    assert [job.needs for job in jobs[1:3]] == [(jobs[0].id,)] * 2
    assert jobs[-1].needs == tuple(job.id for job in jobs[1:3])
    store = Store(tmp_path / "store")
    run_all((jobs[0], jobs[2], jobs[1], jobs[3]), store)
    whole = train_zoo(Grid.read(tmp_path / "grid.toml"), draw_shapes("flat", 36), tmp_path / "whole")
    zoo = Zoo.open(tmp_path / "zoo")
    assert zoo.entries == whole.entries
    for key in zoo.keys:
        files = [each.folder(key) / "model.safetensors" for each in (zoo, whole)]
        assert files[0].read_bytes() == files[1].read_bytes()
    (found,) = store.find("zoo")
    assert [model["key"] for model in found.payload["models"]] == list(zoo.keys)
    written = (zoo.folder(zoo.keys[0]) / "training.json").stat().st_mtime_ns
    run_all(jobs_of(tmp_path), store)  # the same jobs: nothing is left to do
    assert (zoo.folder(zoo.keys[0]) / "training.json").stat().st_mtime_ns == written


def test_a_model_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    run_all(jobs_of(tmp_path, larger="1e30"), Store(tmp_path / "store"))
    zoo = Zoo.open(tmp_path / "zoo")
    assert [entry.status for entry in zoo.entries] == ["done", "failed"]
    assert "lower lr" in zoo.entries[1].reason


def test_images_that_changed_after_the_plan_was_read_are_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    job = jobs_of(tmp_path)[1]
    record = {**job.record, "images": {**job.record["images"], "train": "0" * 16}}
    with pytest.raises(InputError, match="images of job 'train scratch.* changed after the plan was read"):
        run_job(replace(job, record=record), Store(tmp_path / "store"))


def test_several_seeds_of_a_plan_are_refused() -> None:
    zoo = {"grid": "tiny", "images": "shapes:flat", "out": "zoo"}
    with pytest.raises(InputError, match=r"\[zoo\] is trained once, but the plan has seeds \[0, 1\]"):
        parse_plan({"name": "zoo", "seeds": [0, 1], "zoo": zoo})


def test_a_file_that_cannot_be_decoded_is_left_out_only_if_asked(tmp_path: Path) -> None:
    drawn = draw_shapes("flat", 36)
    assert drawn.labels is not None
    for row, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
        folder = tmp_path / "photos" / SHAPE_CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{row}.png")
    bad = tmp_path / "photos" / SHAPE_CLASSES[0] / "bad.png"
    bad.write_bytes((folder / f"{row}.png").read_bytes()[:60])
    photos = {"images": str(tmp_path / "photos"), "n": None}
    with pytest.raises(FileFormatError, match=r"bad\.png"):
        run_all(jobs_of(tmp_path, **photos), Store(tmp_path / "store"))
    with pytest.warns(AssayWarning, match=r"1 files of photos were skipped, e\.g\. .*bad\.png"):
        jobs = jobs_of(tmp_path, **photos, out=str(tmp_path / "patient"), skip_bad=True)
    run_all(jobs, Store(tmp_path / "store"))
    assert len(Zoo.open(tmp_path / "patient").keys) == 2


def test_models_of_a_zoo_in_jobs_of_their_own_give_the_ranking_of_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.analyses.generalization import predictors
    from assay.pipeline.ranking import lineup

    monkeypatch.setattr(predictors, "COT_LIMIT", 1)  # more is computed only if it is asked for
    metrics = ["id-accuracy", "ddb-output", "cot"]
    plan = parse_plan({"name": "zoo", "rank": {"images": ["shapes:sketch"], "n": 6, "metrics": metrics}})
    jobs = expand(plan)
    assert {job.kind for job in jobs} == {"inspect", "rank"}
    assert jobs[-1].kind == "rank"
    assert jobs[-1].needs == tuple(job.id for job in jobs[:-1])
    store = Store(tmp_path / "store")
    run_all(jobs[:-1], store)
    inspected = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store/inspections").iterdir()}
    assert len(inspected) == 2 * len(jobs[:-1])  # on the target and on the known images
    run_all(jobs[-1:], store)
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store/inspections").iterdir()}
    assert again == inspected  # the ranking runs no model
    (found,) = store.find("ranking")
    whole = lineup(
        zoo=None,
        images="shapes:sketch",
        metrics=metrics,
        n=6,
        batch_size=plan.limits.batch_size,
    ).rank(cache=tmp_path / "elsewhere")
    from assay.core.record import plain

    for table in ("columns", "names", "models"):
        if table in found.payload:
            assert found.payload[table] == plain(whole.to_dict())[table]

"""Selections as stored jobs: looked up, told apart, and gone on with after a kill during the verdict."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from planted_subsets import planted_matrix

from assay.analyses.subsets import CorrectnessData
from assay.core.errors import FileFormatError, InputError
from assay.pipeline.subsets import DIGITS, read_source, read_subsets, select_stored
from assay.store import Store


def planted() -> CorrectnessData:
    made = planted_matrix(60, 200, planted=0.3, slope=0.6, n_families=12, seed=5)
    return CorrectnessData.of(made.correct, made.id_accuracy, families=made.families)


def test_the_same_job_is_a_look_up_and_any_other_one_is_not(tmp_path: Path) -> None:
    store, data = Store(tmp_path), planted()
    first = select_stored(data, [20, 40], n_permutations=0, store=store)
    again = select_stored(data, [40, 20], n_permutations=0, folds=3, workers=2, store=store)
    assert (first.cached, again.cached, again.id) == (False, True, first.id)
    assert again.document == first.document
    labelled = CorrectnessData.of(data, labels=np.arange(200) % 2)  # the page shows the classes
    others = [
        select_stored(labelled, [20, 40], n_permutations=0, store=store),
        select_stored(data, [20], n_permutations=0, store=store),
        select_stored(data, [20, 40], n_permutations=0, seed=1, store=store),
    ]
    assert len({first.id, *(each.id for each in others)}) == 4
    (row,) = [each for each in store.query("subset-path") if each.id == first.id]
    assert row.status == "unjudged"


def test_subsets_are_read_from_files_and_stores(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    job = select_stored(planted(), [20, 40], n_permutations=0, store=store)
    (tmp_path / "selection.json").write_text(json.dumps(job.document))
    file = job.subsets[0].save(tmp_path / "subset.json")
    stored = read_subsets(job.id, lambda: store)
    assert [each.to_dict() for each in stored] == [each.to_dict() for each in job.subsets]
    assert stored[0].size == job.document["size"]
    again = read_subsets(str(tmp_path / "selection.json"), lambda: store)
    assert [each.id for each in again] == [each.id for each in stored]
    assert len(read_subsets(str(file), lambda: store)) == 1
    (tmp_path / "table.csv").write_text("model,a,b\nx,1,0\n")
    with pytest.raises(FileFormatError, match="is not a subset"):
        read_subsets(str(tmp_path / "table.csv"), lambda: store)


def test_digits_are_trained_once_per_store(tmp_path: Path) -> None:
    first = read_source(f"{DIGITS}:32", folder=tmp_path)
    (file,) = (tmp_path / "select").iterdir()
    written = file.stat().st_mtime_ns
    assert read_source(f"{DIGITS}:32", folder=tmp_path).hash == first.hash
    assert file.stat().st_mtime_ns == written
    with pytest.raises(InputError, match="digits:N for N classifiers"):
        read_source(f"{DIGITS}:many")


def test_a_killed_verdict_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    planted().save(tmp_path / "answers.npz")
    command = [
        sys.executable, "-m", "assay", "select", "answers.npz", "--sizes", "20,40", "--split", "family",
        "--permutations", "99", "--workers", "1", "--quiet",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "killed"
    running = subprocess.Popen([*command, "--out", str(out), "--store", "one"], cwd=tmp_path, env=environment)
    for _ in range(1200):
        kept = list(out.glob("permutations-*.jsonl"))
        if kept and kept[0].read_bytes().count(b"\n") > 1:
            break
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert kept
    before = kept[0].read_bytes()
    assert not (out / "selection.json").exists()
    for folder, store in (("killed", "one"), ("whole", "two")):
        subprocess.run(
            [*command, "--out", folder, "--store", store], cwd=tmp_path, env=environment, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    assert before.count(b"\n") > 1
    assert not list(out.glob("permutations-*"))
    for name in ("selection.json", "subset.json", "ids.csv", "sizes.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

"""Data from every kind of file, and the job of `assay select` kept in a store."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import invoke

from assay.analyses.subsets import CorrectnessData, default_sizes
from assay.core.errors import FileFormatError, InputError
from assay.pipeline.subset_data import read_data
from assay.pipeline.subsets import _Parts, job_record, select_stored
from assay.store import About, Store


N_MODELS, N_EXAMPLES = 40, 60


@pytest.fixture(scope="module")
def data() -> CorrectnessData:
    """On the first third of the examples better models do worse."""
    rng = np.random.default_rng(1)
    accuracy = np.round(rng.uniform(0.6, 0.95, N_MODELS), 6)
    night = np.arange(N_EXAMPLES) < 20
    chance = np.where(night, 1.45 - accuracy[:, None], accuracy[:, None])
    return CorrectnessData.of(
        rng.uniform(size=(N_MODELS, N_EXAMPLES)) < chance,
        accuracy,
        groups=[f"run{place // 2}" for place in range(N_MODELS)],
        families=[f"family{place // 4}" for place in range(N_MODELS)],
        model_ids=[f"m{place}" for place in range(N_MODELS)],
        example_ids=[f"e{place}" for place in range(N_EXAMPLES)],
        labels=np.where(np.arange(N_EXAMPLES) % 2, "cat", "dog"),
        meta={"light": np.where(night, "night", "day")},
    )


# --------------------------------------------------------------------------------------------- sources


def prediction_files(data: CorrectnessData, root: Path) -> None:
    """The answers as the authors' files: two classes, environment 0 to be in, 1 to be out of distribution."""
    assert isinstance(data.correct, np.ndarray)
    assert data.labels is not None
    n_id = 1000
    for place in range(data.n_models):
        right = np.arange(n_id) < round(data.id_accuracy[place] * n_id)
        rows = [("env0_out", 0, 1.0 if each else 0.0, 0.5) for each in right]
        for label, each in zip(data.labels, data.correct[place], strict=True):
            best = label if each else 1 - label
            rows.append(("env1_in", int(label), float(best == 0), float(best == 1)))
        folder = root / f"run{place // 2}"
        folder.mkdir(parents=True, exist_ok=True)
        frame = pd.DataFrame(rows, columns=["domain", "label", "p_0", "p_1"])
        frame.to_csv(folder / f"global_step_{300 * (1 + place % 2)}_predictions.csv", index=False)


def test_a_folder_of_prediction_files_has_a_row_per_run(data: CorrectnessData, tmp_path: Path) -> None:
    few = data.take_models(np.arange(12))
    prediction_files(few, tmp_path)
    last = read_data(tmp_path, ood_env="1", id_envs="0").data
    assert last.n_models == len(set(last.groups or ())) == 6
    every = read_data(tmp_path, ood_env="1", checkpoints="all").data
    names = [name.rsplit("/", 1) for name in every.model_ids]
    order = [2 * int(run.removeprefix("run")) + (step == "600") for run, step in names]
    assert sorted(order) == list(range(12))
    np.testing.assert_array_equal(every.correct, np.asarray(few.correct)[order])
    np.testing.assert_allclose(every.id_accuracy, few.id_accuracy[order], atol=1e-3)
    early = read_data(tmp_path, ood_env="1", checkpoints="300").data
    assert {name.rsplit("/", 1)[1] for name in early.model_ids} == {"300"}


def test_units_of_a_file_are_matched_by_name(data: CorrectnessData, tmp_path: Path) -> None:
    data.save(tmp_path / "answers.npz")
    assert data.families is not None
    lines = [f"{name},{family}x" for name, family in zip(data.model_ids, data.families, strict=True)]
    table = tmp_path / "families.csv"
    table.write_text("\n".join(["name,architecture", *lines[::-1]]))
    found = read_data(tmp_path / "answers.npz", families=str(table)).data
    assert found.families == tuple(f"{family}x" for family in data.families)
    table.write_text("\n".join(["name,architecture", *lines, lines[0]]))
    with pytest.raises(InputError, match="names the model 'm0' more than once"):
        read_data(tmp_path / "answers.npz", families=str(table))
    table.write_text("name\nm0\n")
    with pytest.raises(FileFormatError, match="has 1 column"):
        read_data(tmp_path / "answers.npz", families=str(table))


# --------------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("absent.npz", {}, FileFormatError, "does not exist; give a correctness archive"),
        ("answers.npz", {"ood_env": "1"}, InputError, "--ood-env has no effect for an archive"),
        ("answers.npz", {"digits_models": 40}, InputError, "for the built-in data"),
        ("answers.npz", {"groups": "runs"}, InputError, "'runs', which is not a file; give a CSV"),
        ("answers.csv", {"groups": "runs"}, InputError, "neither a file nor a column of the table"),
        ("answers.csv", {"facts": ["lihgt"]}, InputError, "did you mean 'light'"),
        ("broken.parquet", {}, FileFormatError, "cannot read"),
        ("notes.txt", {}, FileFormatError, "notes.txt holds no answers; give tables"),
        ("steps", {}, InputError, "give --ood-env"),
        ("folder", {"id_images": "photos"}, InputError, "give --images too"),
        ("folder", {"images": "photos", "ood_env": "1"}, InputError, "--ood-env has no effect for a zoo"),
        (None, {"id_envs": "1"}, InputError, "--id-envs has no effect for the built-in digits"),
        (None, {"digits_models": 31}, InputError, "n_models is 31"),
    ],
)
def test_wrong_use_is_answered_with_what_to_do(
    data: CorrectnessData,
    tmp_path: Path,
    name: str | None,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    data.save(tmp_path / "answers.npz")
    rows = [f"m{model},e{place},1,0.5,day" for model in range(4) for place in range(3)]
    table = "\n".join(["model,example_id,correct,id_accuracy,light", *rows])
    (tmp_path / "answers.csv").write_text(table)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "folder").mkdir()
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "global_step_100_predictions.csv").write_text("domain,label,p_0,p_1\n")
    with pytest.raises(error, match=message):
        read_data(None if name is None else tmp_path / name, **options)


# ------------------------------------------------------------------------------------------------ the job


def test_a_job_is_a_look_up_the_second_time(data: CorrectnessData, tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = select_stored(data, [8, 15], n_permutations=3, workers=1, store=store)
    again = select_stored(data, [15, 8], n_permutations=3, workers=2, store=store)
    assert (first.cached, again.cached) == (False, True)
    assert again.id == first.id == first.document["id"]
    assert again.document == first.document
    assert again.selections == first.selections
    assert set(first.selections) == {8, 15}
    assert first.headline["indices"] == first.document["indices"]
    assert store.get(first.id).kind == first.document["kind"] == "subset-path"


@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": [8]},
        {"n_permutations": 4},
        {"seed": 1},
        {"path": "nested"},
        {"strata": "label"},
        {"clip": "half"},
        {"folds": 4},
    ],
)
def test_whatever_changes_the_answer_is_another_job(data: CorrectnessData, changed: dict[str, Any]) -> None:
    given: dict[str, Any] = {"sizes": [8, 15], "n_permutations": 3}
    assert job_record(data, **given) == job_record(data, **(given | {"sizes": [15, 8]}))
    assert job_record(data, **(given | changed)) != job_record(data, **given)


def test_parts_that_another_process_removes_are_computed(
    data: CorrectnessData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    parts = _Parts(store=store, job="ab")
    assert parts.value("one", lambda: [1, 2]) == [1, 2]
    again = _Parts(store=store, job="ab")
    assert again.value("one", lambda: pytest.fail("it is there")) == [1, 2]
    has, query = Store.has, Store.query

    def removed(result: Any) -> Any:
        Store(tmp_path).remove([each.id for each in query(store, "subset-part")])
        return result

    monkeypatch.setattr(Store, "has", lambda self, identity: removed(has(self, identity)))
    assert again.value("one", lambda: [3]) == [3]
    monkeypatch.setattr(Store, "query", lambda self, *given, **asked: removed(query(self, *given, **asked)))
    again.remove()
    assert store.count("subset-part") == 0


# The job, killed at its `left`-th sweep over the sizes from now on; 0 lets it end. Prints its sweeps.
KILLED = """
import os, signal, sys
from pathlib import Path
from assay.analyses.subsets import CorrectnessData
from assay.analyses.subsets.document import N_HALVES
from assay.analyses.subsets.problem import Problem
from assay.pipeline.subsets import select_stored
from assay.store import Store

folder, left, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
solve, sweeps = Problem.solve_paths, []

def killed(self, sizes, accuracies, **named):
    sweeps.append(sizes)
    if len(sweeps) == left:
        os.kill(os.getpid(), signal.SIGKILL)
    return solve(self, sizes, accuracies, **named)

Problem.solve_paths = killed
data = CorrectnessData.load(folder / "answers.npz")
select_stored(data, [8, 15], n_permutations=3, folds=3, workers=workers, store=Store(folder / "store"))
print(len(sweeps))
"""


@pytest.mark.slow
def test_a_killed_job_goes_on_with_the_same_bytes(data: CorrectnessData, tmp_path: Path) -> None:
    """Killed in the selections, in the cross-fit, and twice in the permutations."""
    data.save(tmp_path / "answers.npz")
    (tmp_path / "job.py").write_text(KILLED)
    whole = Store(tmp_path / "whole")
    job = select_stored(data, [8, 15], n_permutations=3, folds=3, workers=1, store=whole)
    kept = []
    for left, workers in ((1, 1), (3, 1), (4, 2), (3, 1), (0, 2)):
        command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path), str(left), str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == (-signal.SIGKILL if left else 0), done.stderr
        kept.append(Store(tmp_path / "store").count("subset-part"))
    assert kept[0] == kept[-1] == 0  # nothing was finished; the parts go once the document is there
    assert 0 < kept[1] < kept[2] < kept[3]
    assert int(done.stdout) < 1 + 3 * (1 + 3) - 4
    store = Store(tmp_path / "store")
    assert json.dumps(store.get(job.id).payload) == json.dumps(whole.get(job.id).payload)
    assert store.count() == whole.count() == 1


def test_parts_that_nothing_waits_for_are_cleared(data: CorrectnessData, tmp_path: Path) -> None:
    """Those of a job that is done, and old ones."""
    store = Store(tmp_path)
    done = select_stored(data, [8], n_permutations=0, store=store).id
    parts = {
        job: store.put("subset-part", {"job": job, "part": "one"}, {"value": 1}, about=About(name=job))
        for job in (done, "killed")
    }

    def clean(*given: str) -> Any:
        outcome = invoke("store", "clean", "--store", str(tmp_path), "--json", *given)
        assert outcome.exit_code == 0, outcome.stderr
        return json.loads(outcome.stdout)

    assert clean() == {"files": [], "parts": [parts[done]]}
    assert clean("--older-than", "1h")["parts"] == []
    time.sleep(0.01)
    assert clean("--older-than", "0.01s")["parts"] == [parts["killed"]]
    assert store.count("subset-part") == 0
    assert store.has(done)
    assert invoke("store", "clean", "--store", str(tmp_path), "--older-than", "soon").exit_code == 2


def test_sizes_and_settings_are_checked(data: CorrectnessData) -> None:
    assert job_record(data, [30, 10])["sizes"] == [10, 30]
    assert job_record(data, None)["sizes"] == list(default_sizes(N_EXAMPLES))
    assert job_record(data, None, allowed=range(40), must_include=range(15))["sizes"] == [20, 40]
    wrong: tuple[tuple[list[int], dict[str, Any], str], ...] = (
        ([], {}, "sizes is empty"),
        ([10, 20, 10], {}, "size 10 is given more than once"),
        ([30], {"allowed": range(20)}, "allowed leaves only 20"),
        ([3], {"must_include": range(4)}, "must_include holds 4"),
        ([8], {"n_permutations": -1}, "n_permutations is -1"),
        ([8], {"path": "nestd"}, "did you mean 'nested'"),
        ([10, 55], {"path": "nested", "refine": 4}, "use path='independent'"),
    )
    for sizes, options, message in wrong:
        with pytest.raises(InputError, match=message):
            job_record(data, sizes, **options)

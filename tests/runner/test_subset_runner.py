"""Data from every kind of file, and the job of `assay select` kept in a store."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import invoke
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from assay.analyses.subsets import CorrectnessData, default_sizes, oodselect
from assay.analyses.subsets.document import N_HALVES
from assay.analyses.subsets.problem import Problem
from assay.core.errors import AssayWarning, FileFormatError, InputError
from assay.pipeline.subset_data import DIGITS_SIZES, read_data
from assay.pipeline.subsets import FOLDS, NOT_TESTED, _Parts, job_record, select_stored
from assay.store import About, Store
from assay.tasks import SHAPE_CLASSES, draw_shapes
from assay.zoo import Zoo


N_MODELS, N_EXAMPLES = 40, 60
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


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


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes that the solver of this process solves from now on, one entry per run."""
    solved: list[int] = []
    solve = Problem._solve_together

    def counted(self: Problem, tasks: Any, **named: Any) -> Any:
        solved.extend(size for size, *_ in tasks)
        return solve(self, tasks, **named)

    monkeypatch.setattr(Problem, "_solve_together", counted)
    return solved


def long_frame(data: CorrectnessData) -> pd.DataFrame:
    assert isinstance(data.correct, np.ndarray)
    assert data.groups is not None
    assert data.families is not None
    assert data.labels is not None
    assert data.label_names is not None
    models, examples = np.divmod(np.arange(data.correct.size), data.n_examples)
    return pd.DataFrame(
        {
            "model": np.array(data.model_ids)[models],
            "example_id": data.example_ids[examples],
            "correct": data.correct.ravel(),
            "id_accuracy": data.id_accuracy[models],
            "run": np.array(data.groups)[models],
            "family": np.array(data.families)[models],
            "label": np.array(data.label_names)[data.labels][examples],
            "light": data.meta["light"][examples],
        }
    )


def wide_frame(data: CorrectnessData) -> pd.DataFrame:
    assert isinstance(data.correct, np.ndarray)
    table = pd.DataFrame(data.correct, columns=data.example_ids)
    facts = {"model": data.model_ids, "id_accuracy": data.id_accuracy, "group": data.groups}
    return pd.concat([pd.DataFrame(facts), table], axis=1)


def same(found: CorrectnessData, data: CorrectnessData) -> None:
    assert isinstance(found.correct, np.ndarray)
    assert isinstance(data.correct, np.ndarray)
    np.testing.assert_array_equal(found.correct, data.correct)
    np.testing.assert_allclose(found.id_accuracy, data.id_accuracy, rtol=1e-12)
    assert found.model_ids == data.model_ids
    assert found.example_ids.tolist() == data.example_ids.tolist()
    assert found.groups == data.groups


# ------------------------------------------------------------------------------------------- every source


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_an_archive_is_read_as_it_was_written(data: CorrectnessData, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"answers{suffix}"
    data.save(path)
    found = read_data(path)
    same(found.data, data)
    assert found.data.hash == data.hash
    assert found.sizes is None


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_long_table_gives_models_examples_and_facts(
    data: CorrectnessData, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"answers{suffix}"
    frame = long_frame(data)
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    found = read_data(path, groups="run", facts=["light"]).data
    same(found, data)
    assert found.families == data.families
    assert found.meta["light"].tolist() == data.meta["light"].tolist()
    assert found.labels is not None


def test_predictions_of_a_long_table_are_compared_with_labels(data: CorrectnessData, tmp_path: Path) -> None:
    frame = long_frame(data)
    other = {"cat": "dog", "dog": "cat"}
    frame["prediction"] = np.where(frame["correct"] == 1, frame["label"], frame["label"].map(other))
    frame.drop(columns=["correct"]).to_csv(tmp_path / "answers.csv", index=False)
    same(read_data(tmp_path / "answers.csv", groups="run").data, data)


def test_a_wide_table_has_a_column_per_example(data: CorrectnessData, tmp_path: Path) -> None:
    wide_frame(data).to_csv(tmp_path / "answers.csv", index=False)
    known = pd.DataFrame({"name": data.example_ids, "light": data.meta["light"]})
    known.to_csv(tmp_path / "examples.csv", index=False)
    found = read_data(tmp_path / "answers.csv", examples=tmp_path / "examples.csv").data
    same(found, data)
    assert found.meta["light"].tolist() == data.meta["light"].tolist()


def prediction_files(data: CorrectnessData, root: Path) -> None:
    """The answers as the authors' files: two classes, environment 0 to be in, 1 to be out of distribution."""
    assert isinstance(data.correct, np.ndarray)
    assert data.labels is not None
    n_id = 1000
    for place in range(data.n_models):
        right = np.arange(n_id) < round(data.id_accuracy[place] * n_id)
        rows = [(f"env0_{'out'}", 0, 1.0 if each else 0.0, 0.5) for each in right]
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
    found = read_data(tmp_path, ood_env="1", id_envs="0").data
    assert found.n_models == 6
    assert found.groups is not None
    assert len(set(found.groups)) == 6
    every = read_data(tmp_path, ood_env="1", checkpoints="all").data
    assert isinstance(every.correct, np.ndarray)
    assert every.n_models == 12
    order = [few.model_ids.index(f"m{2 * int(run[3:]) + (step == '600')}") for run, step in (
        name.rsplit("/", 1) for name in every.model_ids)]  # fmt: skip
    assert isinstance(few.correct, np.ndarray)
    np.testing.assert_array_equal(every.correct, few.correct[order])
    np.testing.assert_allclose(every.id_accuracy, few.id_accuracy[order], atol=1e-3)
    last = read_data(tmp_path, ood_env="1", checkpoints="300").data
    assert {name.rsplit("/", 1)[1] for name in last.model_ids} == {"300"}


def test_models_of_a_folder_answer_images(tmp_path: Path) -> None:
    names = dict(enumerate(SHAPE_CLASSES))
    for seed in range(4):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = ViTConfig(
                hidden_size=24,
                num_hidden_layers=1,
                num_attention_heads=3,
                intermediate_size=32,
                image_size=32,
                patch_size=8,
                initializer_range=0.3,
                id2label=names,
                label2id={name: label for label, name in names.items()},
            )
            ViTForImageClassification(config).save_pretrained(tmp_path / "zoo" / f"model-{seed}")
        (tmp_path / "zoo" / f"model-{seed}" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    for domain in ("flat", "neon"):
        images = draw_shapes(domain, 12, seed=5)
        for row, label in enumerate(images.labels):
            folder = tmp_path / domain / SHAPE_CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.pixels[row]).save(folder / f"{row:02d}.png")
    places: dict[str, Any] = {"images": str(tmp_path / "neon"), "id_images": str(tmp_path / "flat")}
    found = read_data(tmp_path / "zoo", **places).data
    assert found.labels is not None
    assert found.label_names is not None
    assert (found.n_models, found.n_examples) == (4, 12)
    assert found.groups == found.model_ids
    assert found.n_id is not None
    assert set(found.n_id.tolist()) == {12}
    assert found.images is not None
    given: dict[str, Any] = {"images": str(tmp_path / "neon")}
    with pytest.raises(InputError, match="in-distribution accuracy of 4 models of the zoo is not known"):
        read_data(tmp_path / "zoo", **given)
    zoo = Zoo.open(tmp_path / "zoo")
    pending = tuple(replace(each, status="pending") for each in zoo.entries)
    replace(zoo, entries=(*zoo.entries[:3], pending[3])).save()
    given["id_images"] = str(tmp_path / "flat")
    said = r"1 of 4 planned models are missing: model-3 \(pending\); run the same"
    with pytest.warns(AssayWarning, match=said):
        assert read_data(tmp_path / "zoo", **given, at_least=3).data.n_models == 3
    with pytest.raises(InputError, match=f"3 trained models, but this needs at least 4; {said}"):
        read_data(tmp_path / "zoo", **given)
    replace(zoo, entries=pending).save()
    with pytest.raises(InputError, match="no trained model, but this needs at least 4; 4 of 4 planned"):
        read_data(tmp_path / "zoo", **given)


def test_digits_are_trained_once_per_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    first = read_data(digits_models=32, folder=tmp_path, progress=lambda stage, *_: told.append(stage))
    assert first.sizes == DIGITS_SIZES
    assert set(told) == {"train"}
    monkeypatch.setattr("assay.pipeline.subset_data.digits_data", None)
    again = read_data(digits_models=32, folder=tmp_path)
    same(again.data, first.data)
    assert again.data.hash == first.data.hash


# ------------------------------------------------------------------------------------------------- units


def test_every_model_can_be_a_run_of_its_own(data: CorrectnessData, tmp_path: Path) -> None:
    bare = CorrectnessData.of(np.asarray(data.correct), data.id_accuracy, model_ids=data.model_ids)
    bare.save(tmp_path / "bare.npz")
    assert read_data(tmp_path / "bare.npz").data.groups is None
    assert read_data(tmp_path / "bare.npz", groups="model").data.groups == data.model_ids


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
        ("answers.npz", {"images": "shapes:flat"}, InputError, "--images has no effect for an archive"),
        ("answers.npz", {"facts": ["light"]}, InputError, "--facts has no effect for an archive"),
        ("answers.npz", {"digits_models": 40}, InputError, "for the built-in data"),
        ("answers.npz", {"groups": "runs"}, InputError, "'runs', which is not a file; give a CSV"),
        ("answers.csv", {"groups": "runs"}, InputError, "neither a file nor a column of the table"),
        ("answers.csv", {"facts": ["lihgt"]}, InputError, "did you mean 'light'"),
        ("broken.parquet", {}, FileFormatError, "cannot read"),
        ("empty.csv", {}, FileFormatError, "cannot read"),
        ("notes.txt", {}, FileFormatError, "notes.txt holds no answers; give tables"),
        ("folder", {"ood_env": "1"}, FileFormatError, "folder holds no answers; give tables"),
        ("steps", {}, InputError, "give --ood-env"),
        ("steps", {"ood_env": "one"}, InputError, "--ood-env is 'one'"),
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
    long_frame(data).to_csv(tmp_path / "answers.csv", index=False)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "empty.csv").write_text("")
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


def test_other_facts_about_the_examples_are_another_job(data: CorrectnessData) -> None:
    other = replace(data, meta={"light": data.meta["light"][::-1]})
    assert other.hash == data.hash
    assert job_record(other, [8]) != job_record(data, [8])


def test_how_data_were_read_is_not_part_of_the_job(data: CorrectnessData) -> None:
    one, other, elsewhere = (
        replace(data, source={"kind": kind, "orientation": lies, "columns": {"model": lies}})
        for kind, lies in (("table", "long"), ("table", "wide"), ("zoo", "wide"))
    )
    assert job_record(one, [8]) == job_record(other, [8]) != job_record(elsewhere, [8])
    assert oodselect(one, size=8).id == oodselect(other, size=8).id


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


def test_without_permutations_every_verdict_says_so(data: CorrectnessData) -> None:
    found = select_stored(data, [8, 15], n_permutations=0)
    for row in found.document["rows"]:
        assert row["verdict"]["status"] == "inconclusive"
        assert row["verdict"]["p_value"] is None
        assert row["verdict"]["reasons"] == [NOT_TESTED]
    assert found.headline["verdict"]["reasons"] == [NOT_TESTED]


@pytest.mark.parametrize(
    ("n_permutations", "path"), [(0, "independent"), (1, "independent"), (1, "warm"), (1, "nested")]
)
def test_the_solver_runs_no_more_than_it_must(
    data: CorrectnessData, runs: list[int], n_permutations: int, path: str
) -> None:
    given: dict[str, Any] = {"n_permutations": n_permutations, "path": path, "split": "family"}
    found = select_stored(data, [15, 8], workers=1, **given)
    if n_permutations == 0:
        assert len(runs) == 2
        assert found.document["halves"] is None
    else:
        assert found.document["halves"]["null"] is not None
        n_selections = 3 if path == "warm" else 2  # of each size; warm from the smaller one, too
        assert len(runs) == n_selections + FOLDS * (1 + n_permutations) * n_selections + 2 * (1 + N_HALVES)


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


def test_a_job_that_another_finishes_meanwhile_is_the_same(data: CorrectnessData, tmp_path: Path) -> None:
    given: dict[str, Any] = {"n_permutations": 39, "folds": 3, "workers": 1}
    other: list[Any] = []

    def finish(stage: str, *_: int) -> None:
        if stage == "permutations" and not other:
            other.append(select_stored(data, [8, 15], store=Store(tmp_path), **given))

    store = Store(tmp_path)
    job = select_stored(data, [8, 15], store=store, progress=finish, **given)
    assert json.dumps(job.document) == json.dumps(other[0].document)
    assert [each.id for each in store.query()] == [job.id]


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
    told = invoke("store", "clean", "--store", str(tmp_path))
    assert told.stdout == "0 files and 0 parts of selections removed\n"
    assert invoke("store", "clean", "--store", str(tmp_path), "--older-than", "soon").exit_code == 2


def test_sizes_are_sorted_and_checked(data: CorrectnessData) -> None:
    def planned(sizes: Any, **options: Any) -> list[int]:
        return list(job_record(data, sizes, n_permutations=0, **options)["sizes"])

    assert planned([30, 10]) == [10, 30]
    assert planned(None) == list(default_sizes(N_EXAMPLES))
    assert planned(None, allowed=range(40), must_include=range(15)) == [20, 40]
    with pytest.raises(InputError, match="sizes is empty"):
        planned([])
    with pytest.raises(InputError, match="size 10 is given more than once"):
        planned([10, 20, 10])
    with pytest.raises(InputError, match="size is 30, but allowed leaves only 20"):
        planned([30], allowed=range(20))
    with pytest.raises(InputError, match="size is 3, but must_include holds 4"):
        planned([3], must_include=range(4))


@pytest.mark.parametrize("refine", [True, 4])
def test_refined_sizes_are_judged_and_stored(
    data: CorrectnessData, tmp_path: Path, refine: bool | int
) -> None:
    given: dict[str, Any] = {"n_permutations": 1, "folds": 3, "refine": refine}
    store = Store(tmp_path)
    found = select_stored(data, [10, 55], workers=1, store=store, **given)
    sizes = [row["size"] for row in found.document["rows"]]
    assert {10, 55} < set(sizes)
    assert len(sizes) - 2 <= (6 if refine is True else 11)
    assert found.document["verdict"]["sizes"] == sizes == sorted(sizes)
    assert set(found.selections) == set(sizes)
    assert found.document["largest"][0]["size"] == found.document["size"] >= 10
    assert select_stored(data, [10, 55], store=store, **given).cached
    with pytest.raises(InputError, match="use path='independent'"):
        job_record(data, [10, 55], path="nested", refine=refine)


def test_impossible_settings_are_refused(data: CorrectnessData) -> None:
    with pytest.raises(InputError, match="n_permutations is -1"):
        job_record(data, [8], n_permutations=-1)
    with pytest.raises(InputError, match="did you mean 'nested'"):
        job_record(data, [8], path="nestd")


@pytest.mark.parametrize("wide", [False, True])
def test_numbers_that_are_names_stay_as_they_are_written(tmp_path: Path, wide: bool) -> None:
    """`00270` is an example, `007` a model, `01` a family; none of them is a number."""
    models, examples = [f"00{place}" for place in range(4)], [f"0027{place}" for place in range(6)]
    generator = np.random.default_rng(0)
    rows = [
        [model, "0.5", f"0{place % 2}", *generator.integers(0, 2, 6).astype(str)]
        for place, model in enumerate(models)
    ]
    if wide:
        lines = [["model", "id_accuracy", "family", *examples], *rows]
    else:
        lines = [["model", "id_accuracy", "family", "example_id", "correct"]]
        lines += [
            [*row[:3], name, cell] for row in rows for name, cell in zip(examples, row[3:], strict=True)
        ]
    (tmp_path / "table.csv").write_text("\n".join(",".join(line) for line in lines))
    (tmp_path / "facts.csv").write_text("name,age\n" + "\n".join(f"{name},30" for name in examples))
    (tmp_path / "runs.csv").write_text("model,run\n" + "\n".join(f"{name},01" for name in models))
    data = read_data(
        tmp_path / "table.csv",
        examples=tmp_path / "facts.csv",
        families="family",
        groups=None,
    ).data
    assert data.example_ids.tolist() == examples
    assert list(data.model_ids) == models
    assert list(data.families) == ["00", "01", "00", "01"]
    assert data.meta["age"].tolist() == [30] * 6

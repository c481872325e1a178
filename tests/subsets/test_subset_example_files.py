"""Ids and embeddings of examples from files, crossed facts, and the table of R by size."""

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted_subsets import planted_matrix

import assay
from assay.analyses.subsets import CorrectnessData, prevalence_shift
from assay.analyses.subsets.example_files import read_places, with_crossed, with_embeddings
from assay.analyses.subsets.export import export_sizes, size_table
from assay.core.errors import AssayError, FileFormatError, InputError
from assay.pipeline.subset_data import read_data
from assay.pipeline.subsets import job_record


N = 60


@pytest.fixture(scope="module")
def data() -> CorrectnessData:
    planted = planted_matrix(60, N, planted=0.4, slope=0.6, n_families=12, seed=3)
    return CorrectnessData.of(
        planted.correct,
        planted.id_accuracy,
        families=planted.families,
        example_ids=[f"00{place}" for place in range(N)],
        labels=["cat" if place % 3 else "dog" for place in range(N)],
        meta={
            "sex": np.where(np.arange(N) % 2, "f", "m"),
            "light": np.where(np.arange(N) < 20, "night", ""),
            "age": np.linspace(20, 80, N),
        },
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ids.txt", "007\n\n 003 \n"),
        ("ids.csv", "rank,example_id,index,score\n1,007,7,-0.1\n2,003,3,0.2\n"),
        ("ids.csv", "picture,note\n007,x\n003,y\n"),
        ("ids.csv", "007\n003\n"),  # no header
    ],
)
def test_ids_are_read_as_they_are_written(
    data: CorrectnessData, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    assert read_places(tmp_path / name, data, "allowed").tolist() == [7, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "007\n0099\n0098\n",
            "--allowed: .*ids.txt: 2 of the 3 examples that it names are not among .*'0099'",
        ),
        ("007\n003\n007\n", "names the example '007' more than once"),
        ("\n", "names no example"),
        (None, "cannot read"),
    ],
)
def test_ids_that_do_not_fit_are_counted(
    data: CorrectnessData, tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "ids.txt").write_text(text)
    with pytest.raises(AssayError, match=message):
        read_places(tmp_path / "ids.txt", data, "allowed")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ids.csv", None, "--allowed: .*cannot read .*ids.csv"),
        ("ids.csv", "", "--allowed: .*cannot read .*ids.csv"),
        ("ids.jsonl", "", "--allowed: .*ids.jsonl names no example"),
        ("ids.csv", "rank,example_id\n1,007\n2,\n3,\n", "--allowed: .* has 2 of 3 rows without a name"),
    ],
)
def test_tables_of_ids_that_hold_no_names_are_told_by_the_option(
    data: CorrectnessData, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_places(tmp_path / name, data, "allowed")


def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, 5)).astype(np.float32)


@pytest.mark.parametrize("kind", ["npz", "parquet", "lists.parquet", "csv", "npy"])
def test_embeddings_are_matched_by_name(data: CorrectnessData, tmp_path: Path, kind: str) -> None:
    wanted, order = rows(), np.random.default_rng(1).permutation(N)
    mixed, names, path = wanted[order], data.example_ids[order], tmp_path / f"embeddings.{kind}"
    known = tmp_path / "known.npy"
    np.save(known, wanted[:9])
    table = pd.DataFrame(mixed).set_axis(list("abcde"), axis=1)
    if kind == "npz":
        np.savez(path, embedding=mixed, example_id=names, other=np.zeros(3))
    elif kind == "npy":
        np.save(path, wanted)
    elif kind == "lists.parquet":
        pd.DataFrame({"example_id": names, "embedding": list(mixed)}).to_parquet(path)
    elif kind == "parquet":
        table.assign(example_id=names).to_parquet(path)
    else:
        table.assign(example_id=names).to_csv(path, index=False)
    found = with_embeddings(data, path, known)
    assert found.embedding is not None
    assert found.id_embedding is not None
    np.testing.assert_allclose(found.embedding, wanted, rtol=1e-6)
    np.testing.assert_array_equal(found.id_embedding, wanted[:9])
    told = "in the order" if kind == "npy" else "by name"
    assert told in found.source["notes"][0]
    assert found.understood().notes
    assert found.hash == data.hash
    assert with_embeddings(data, None, None) is data


def test_embeddings_that_do_not_fit_are_refused(data: CorrectnessData, tmp_path: Path) -> None:
    def refused(name: str, message: str, id_name: str | None = None) -> None:
        with pytest.raises((InputError, FileFormatError), match=message):
            with_embeddings(data, tmp_path / name, None if id_name is None else tmp_path / id_name)

    np.savez(tmp_path / "few.npz", embedding=rows()[:50], example_id=data.example_ids[:50])
    refused("few.npz", "10 of the 60 examples of the data have no embedding there, the first is '0050'")
    np.save(tmp_path / "few.npy", rows()[:50])
    refused("few.npy", "embedding has shape .50, 5.; expected one row per example")
    np.save(tmp_path / "all.npy", rows())
    np.save(tmp_path / "wide.npy", np.ones((3, 6), np.float32))
    refused("all.npy", "embedding has width 5, id_embedding 6", "wide.npy")
    np.savez(tmp_path / "other.npz", vectors=rows())
    refused("other.npz", "expected an array 'embedding'")
    (tmp_path / "text.csv").write_text("example_id,a\n000,x\n")
    refused("text.csv", "not a file of embeddings")
    (tmp_path / "plain.csv").write_text("a,b\n1,2\n")
    refused("plain.csv", "no column 'example_id'")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "all.npy").read_bytes()[:300])
    refused("cut.npy", "not a file of embeddings")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    refused("objects.npy", "not a file of embeddings")
    refused("absent.npz", "is not a file")
    with pytest.raises(InputError, match="give --embeddings or --encoder"):
        with_embeddings(data, None, tmp_path / "all.npy")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"embedding": np.ones((50, 5))}, "'example_id' has 60 names for 50 rows"),
        ({"embedding": np.float32(3)}, r"'embedding' has shape \(\); expected one or more rows"),
        ({"embedding": np.ones(N)}, r"'embedding' has shape \(60,\)"),
        ({"embedding": np.ones((N, 0))}, r"'embedding' has shape \(60, 0\)"),
        (
            {"embedding": np.ones((N, 5)), "example_id": np.full((N, 2), "a")},
            r"shape \(60, 2\); give one name",
        ),
        ({"embedding": np.ones((N, 5)), "id_embedding": np.ones(5)}, r"'id_embedding' has shape \(5,\)"),
        ({"embedding": np.full((N, 5), "x")}, "not a file of embeddings"),
    ],
)
def test_arrays_that_are_no_rows_of_numbers_are_refused(
    data: CorrectnessData, tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **({"example_id": data.example_ids} | arrays))
    with pytest.raises(FileFormatError, match=message):
        with_embeddings(data, path, None)


def test_embeddings_of_a_file_replace_those_of_another_encoder(data: CorrectnessData, tmp_path: Path) -> None:
    source = {"kind": "archive", "encoder": "clip-A"}
    clip = replace(data, embedding=rows() + 1, id_embedding=rows()[:7], source=source)
    np.save(tmp_path / "own.npy", rows())
    np.save(tmp_path / "known.npy", rows()[:4])
    found = with_embeddings(clip, tmp_path / "own.npy", None)
    assert found.id_embedding is None
    assert "encoder" not in found.source
    beside = with_embeddings(clip, tmp_path / "own.npy", tmp_path / "known.npy")
    assert beside.id_embedding is not None
    np.testing.assert_array_equal(beside.id_embedding, rows()[:4])
    known = with_embeddings(clip, None, tmp_path / "known.npy")  # said to be by the encoder of the others
    assert known.source["encoder"] == "clip-A"
    assert known.embedding is clip.embedding


@pytest.mark.parametrize("kind", ["embedding", "id_embedding"])
def test_rows_without_a_direction_are_refused_on_reading(
    data: CorrectnessData, tmp_path: Path, kind: str
) -> None:
    bad = rows()
    bad[[3, 8]] = 0
    np.save(tmp_path / "own.npy", bad if kind == "embedding" else rows())
    np.save(tmp_path / "known.npy", bad if kind == "id_embedding" else rows())
    file = "own" if kind == "embedding" else "known"
    with pytest.raises(
        InputError, match=rf"/{file}.npy, array '{kind}': {kind}\[3\] has length 0.0 \(2 such"
    ):
        with_embeddings(data, tmp_path / "own.npy", tmp_path / "known.npy")


def test_in_distribution_embeddings_are_read_by_their_own_name(data: CorrectnessData, tmp_path: Path) -> None:
    np.save(tmp_path / "own.npy", rows())
    np.savez(tmp_path / "known.npz", id_embedding=rows()[:4])
    np.savez(tmp_path / "both.npz", embedding=rows(), id_embedding=rows()[:4])
    for own, known in (("own.npy", "known.npz"), ("own.npy", "both.npz"), ("both.npz", "both.npz")):
        found = with_embeddings(data, tmp_path / own, tmp_path / known)
        assert found.id_embedding is not None
        np.testing.assert_array_equal(found.id_embedding, rows()[:4])
    with pytest.raises(InputError, match="known.npz has no array 'embedding'; give its rows by --id"):
        with_embeddings(data, tmp_path / "known.npz", None)


def test_rows_of_no_example_are_counted_in_the_note(data: CorrectnessData, tmp_path: Path) -> None:
    names = [*data.example_ids, *(f"further-{place}" for place in range(20))]
    np.savez(tmp_path / "more.npz", embedding=np.ones((N + 20, 5)), example_id=names)
    (note,) = with_embeddings(data, tmp_path / "more.npz", None).source["notes"]
    assert note.endswith("matched by name; 20 of its 80 rows are of no example of the data and not used")


def test_a_table_of_names_alone_is_not_one_of_embeddings(data: CorrectnessData, tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    path.write_text("\n".join(["example_id", *data.example_ids]))
    with pytest.raises(FileFormatError, match=r"names.csv: 'embedding' has shape \(60, 0\)"):
        with_embeddings(data, path, None)


def test_crossed_facts_are_compared_as_in_python(data: CorrectnessData) -> None:
    subset = assay.oodselect(data, size=20)
    crossed = with_crossed(data, ["sex, light", "label,sex"])
    assert list(crossed.meta) == [*data.meta, "sex x light", "label x sex"]
    assert crossed.meta["sex x light"][[0, 21]].tolist() == ["m x night", "f x missing"]
    mine = prevalence_shift(assay.oodselect(crossed, size=20))
    theirs = prevalence_shift(subset, crossed=[("sex", "light"), ("label", "sex")])
    assert set(mine.rows) == set(theirs.rows)
    within = assay.oodselect(crossed, size=20, strata="sex x light")
    found = crossed.meta["sex x light"][within.indices].tolist()
    quotas = {"m x night": 3, "f x night": 3, "m x missing": 7, "f x missing": 7}
    assert {name: found.count(name) for name in set(found)} == quotas


@pytest.mark.parametrize(
    ("crossed", "message"),
    [
        ("sex", "--cross is 'sex'; give two or more"),
        ("sex,sex", "give two or more"),
        ("sex,lihgt", "did you mean 'light'"),
        ("sex,age", "unknown categorical attribute 'age'"),
    ],
)
def test_facts_that_cannot_be_crossed_are_named(data: CorrectnessData, crossed: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_crossed(data, [crossed])
    with pytest.raises(InputError, match="--facts or --examples"):
        with_crossed(replace(data, meta={}, labels=None), [crossed])


def document_of(r: float | None, n: int) -> dict[str, Any]:
    """What a table of one size reads."""
    test = {"r": r, "spearman": -0.4, "n": n}
    hard = {"r": None, "spearman": None}
    row = {"size": 50, "test": test, "random": {"r": 0.5, "spearman": 0.25}, "hard": hard}
    return {"data": {"source": {"kind": "table", "name": "PACS"}}, "rows": [row]}


def test_the_table_of_sizes_has_fisher_intervals_of_the_test_models() -> None:
    """By hand: n = 103, so the standard error of atanh R is 1 / 10."""
    table = size_table(document_of(-0.6, 103))
    (row,) = table.to_dict("records")
    margin = 1.959964 / 10
    low, high = math.tanh(math.atanh(-0.6) - margin), math.tanh(math.atanh(-0.6) + margin)
    assert row["pearson_ours_low"] == pytest.approx(low, abs=1e-7)
    assert row["pearson_ours_high"] == pytest.approx(high, abs=1e-7)
    assert row["pearson_ours_hw"] == pytest.approx((high - low) / 2, abs=1e-7)
    wider = margin * math.sqrt(1 + 0.4**2 / 2)
    assert row["spearman_ours_low"] == pytest.approx(math.tanh(math.atanh(-0.4) - wider), abs=1e-7)
    assert row["pearson_random"] == 0.5
    assert math.isnan(row["pearson_hard"])
    assert math.isnan(row["pearson_hard_hw"])
    assert (row["dataset"], row["n"], row["n_models"]) == ("PACS", 50, 103)


def test_the_table_names_what_was_read_and_a_renamed_file_is_the_same_job(tmp_path: Path) -> None:
    planted = planted_matrix(60, N, planted=0.4, slope=0.6, n_families=12, seed=3)
    long = pd.DataFrame(
        {
            "model": np.repeat([f"m{place}" for place in range(60)], 2 * N),
            "example_id": np.tile([f"e{place}" for place in range(2 * N)], 60),
            "domain": np.tile(np.repeat(["photo", "sketch"], N), 60),
            "correct": np.concatenate([planted.correct, planted.correct[:, ::-1]], axis=1).ravel(),
        }
    )
    records = []
    for name in ("PACS.csv", "renamed.csv"):
        long.to_csv(tmp_path / name, index=False)
        data = read_data(tmp_path / name, id_envs="photo", ood_env="sketch").data
        assert data.source["read_from"] == name
        records.append(job_record(data, [10]))
        read = document_of(-0.6, 103) | {"data": {"source": data.source}}
        (row,) = size_table(read).to_dict("records")
        assert (row["dataset"], row["ood"]) == (name, "sketch")
    assert records[0] == records[1]
    csvs = {"kind": "predictions", "ood_env": [1, 3]}
    (row,) = size_table(document_of(-0.6, 103) | {"data": {"source": csvs}}).to_dict("records")
    assert row["ood"] == "1, 3"


PUBLISHED = (
    "dataset,ood,n,pearson_ours,pearson_ours_hw,pearson_random,pearson_random_hw,pearson_hard,pearson_hard_hw,"
    "spearman_ours,spearman_ours_hw,spearman_random,spearman_random_hw,spearman_hard,spearman_hard_hw"
)


def test_the_table_begins_with_the_columns_of_the_published_one(
    unchecked: None, data: CorrectnessData, tmp_path: Path
) -> None:
    path = assay.selection_path(data, sizes=[10, 20])
    path.judge(n_permutations=1, folds=3, workers=1)
    document = path.to_document(n_halves=0)
    text = export_sizes(tmp_path / "sizes.csv", document).read_text()
    assert text.startswith(PUBLISHED)
    read = pd.read_csv(io.StringIO(text))
    assert read["n"].tolist() == [10, 20]
    for place, each in enumerate(path):
        test = each.correlation["test"]
        assert read["pearson_ours_low"][place] == pytest.approx(test.fisher_low, abs=1e-6)
        assert read["spearman_ours_high"][place] == pytest.approx(test.spearman_high, abs=1e-6)
    assert "pearson_marginal" in read

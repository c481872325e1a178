"""Scores instead of right and wrong: the numbers of 0 and 1, means by hand, files, what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted_subsets import planted_matrix

import assay
from assay.analyses.subsets import CorrectnessData
from assay.analyses.subsets.cells import scaled
from assay.analyses.subsets.layouts import PackedMatrix, ScoreMatrix
from assay.core.errors import InputError


LOSSES = np.array([[0.0, 5.0, 2.5], [1.0, 4.0, 2.5], [2.0, 3.0, 0.0], [5.0, 0.0, 1.0]])
ACCURACY = [0.9, 0.8, 0.7, 0.6]


def planted() -> Any:
    return planted_matrix(60, 120, planted=0.2, slope=0.6, n_families=12, seed=5)


def test_products_of_scores_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(7, 11)).astype(np.float32)
    matrix, some = ScoreMatrix(x), np.array([3, 3, 10])  # one twice
    weights = rng.normal(size=7)
    np.testing.assert_allclose(matrix.weigh(weights), weights @ x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(matrix.count(some), x[:, some].astype(float).sum(axis=1), rtol=1e-15)
    np.testing.assert_allclose(matrix.column_sums(), x.astype(float).sum(axis=0), rtol=1e-15)
    assert (matrix.dense(some) == x[:, some]).all()
    assert (matrix.dense() == x).all()
    assert matrix.nbytes == 7 * 11 * 4


def test_scores_that_are_0_and_1_select_as_bits_do() -> None:
    given = planted()
    bits = CorrectnessData.of(PackedMatrix.pack(given.correct), given.id_accuracy, families=given.families)
    scores = CorrectnessData.of(given.correct, given.id_accuracy, families=given.families, scores=True)
    assert scores.correct.dtype == np.float32
    one, other = (assay.oodselect(each, size=20, seed=1) for each in (bits, scores))
    assert one.indices.tolist() == other.indices.tolist()
    for part in ("train", "validation", "test"):
        assert one.correlation[part].r == other.correlation[part].r
    verdicts = [each.judge(n_permutations=3, folds=3) for each in (one, other)]
    assert verdicts[0].r == verdicts[1].r
    assert verdicts[0].p_value == verdicts[1].p_value
    assert bits.quality() == scores.quality()


def test_soft_scores_find_the_examples_that_were_planted() -> None:
    rng = np.random.default_rng(3)
    accuracy, turned = rng.uniform(0.6, 0.95, 80), np.arange(200) < 40
    mean = np.where(turned, 1.5 - accuracy[:, None], accuracy[:, None])
    x = np.clip(mean + rng.normal(0, 0.1, mean.shape), 0, 1)
    data = CorrectnessData.of(x, accuracy, groups=range(80), scores=True)
    found = assay.oodselect(data, size=40, seed=0)
    assert turned[found.indices].mean() > 0.9
    assert found.correlation["test"].r < -0.9
    np.testing.assert_allclose(data.accuracy_on(found.indices), x[:, found.indices].mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(data.accuracy(), x.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(data.example_accuracy(), x.mean(axis=0), rtol=1e-6)


def test_losses_are_mapped_by_their_ends_worked_by_hand() -> None:
    expected = [[1, 0, 0.5], [0.8, 0.2, 0.5], [0.6, 0.4, 1], [0, 1, 0.8]]
    frame = pd.DataFrame(LOSSES, index=list("abcd"), columns=list("xyz"))
    long = frame.rename_axis("model").reset_index().melt("model", var_name="example_id", value_name="score")
    accuracy = dict(zip("abcd", ACCURACY, strict=True))
    for table, options in ((frame, {"cells": "score"}), (frame.T, {}), (long, {})):
        data = CorrectnessData.from_frame(table, id_accuracy=accuracy, scores=(5, 0), **options)
        np.testing.assert_allclose(data.correct, expected, rtol=1e-6)
        assert data.accuracy().tolist() == pytest.approx([0.5, 0.5, 2 / 3, 0.6], rel=1e-6)
    with pytest.raises(InputError, match=r"run from 0 to 5, but their ends are 0 and 1 \(7 lie outside\)"):
        CorrectnessData.from_frame(frame, id_accuracy=accuracy, cells="score")
    with pytest.raises(InputError, match="two different numbers"):
        scaled(LOSSES, (1.0, 1.0))


def test_rows_in_distribution_give_the_mean_score() -> None:
    rows = [("a", "x", "ood", 0.5), ("a", "p", "id", 0.25), ("a", "q", "id", 0.75)]
    every = [(name, *rest) for name in "abcd" for _, *rest in rows]
    frame = pd.DataFrame(every, columns=["model", "example_id", "domain", "score"])
    data = CorrectnessData.from_frame(frame)
    assert data.id_accuracy.tolist() == [0.5] * 4
    assert np.asarray(data.correct).tolist() == [[0.5]] * 4


def test_scores_come_back_from_a_file(tmp_path: Path) -> None:
    data = CorrectnessData.of(LOSSES / 5, ACCURACY, scores=True)
    again = CorrectnessData.load(data.save(tmp_path / "scores.npz"))
    assert again.hash == data.hash
    assert again.correct.dtype == np.float32
    with pytest.raises(InputError, match="save scores as .npz"):
        data.save(tmp_path / "scores.parquet")
    taken = data.take_models(np.array([1, 0])).take_examples(np.array([2, 0]))
    np.testing.assert_allclose(taken.correct, (LOSSES / 5)[[1, 0]][:, [2, 0]], rtol=1e-6)
    assert dataclasses.replace(data, correct=data.correct * 0).hash != data.hash


def test_answers_kept_as_float32_are_answers(tmp_path: Path) -> None:
    answers = np.tile(np.array([[1, 0, 1], [0, 0, 1]]), (2, 1))
    loaded = []
    for kind in (np.uint8, np.float32):
        np.savez(tmp_path / "answers.npz", X=answers.astype(kind), y=[0.5, 0.6, 0.7, 0.8])
        loaded.append(CorrectnessData.load(tmp_path / "answers.npz"))
    assert [each.correct.dtype for each in loaded] == [np.uint8, np.uint8]
    assert loaded[0].hash == loaded[1].hash
    loaded[1].matrix(layout="packed")


def test_scores_must_be_asked_for_and_lie_between_0_and_1() -> None:
    with pytest.raises(InputError, match="every entry must be 0"):
        CorrectnessData.of(LOSSES / 5, ACCURACY)
    for odd in (1.5, -0.1, np.nan):
        x = LOSSES / 5
        x[2, 1] = odd
        with pytest.raises(InputError, match=r"correct\[2, 1\] is .*; every score must be from 0 to 1"):
            CorrectnessData.of(x, ACCURACY, scores=True)
    data = CorrectnessData.of(LOSSES / 5, ACCURACY, scores=True)
    for layout in ("packed", "accelerator"):
        with pytest.raises(InputError, match="scores need layout 'auto' or 'dense'"):
            data.matrix(layout=layout)

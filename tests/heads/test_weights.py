import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from assay.core.errors import InputError
from assay.discovery.heads.weights import (
    EffectiveRank,
    answer_directions,
    composition,
    edge_test,
    effective_rank,
    member_ratio,
    ov_norm,
    sv_entropy,
    weight_scores,
)
from assay.models import Model


GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "calibrations"
CASES = json.loads((GOLDEN / "effective_rank_moments.json").read_text())["effective_rank"]
RANKS = {
    EffectiveRank.ENTROPY: "entropy_effective_rank",
    EffectiveRank.SINGULAR_VALUES: "sv_participation",
    EffectiveRank.EIGENVALUES: "eig_participation",
    EffectiveRank.STABLE: "stable_rank",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{np.shape(case['matrix'])}")
def test_golden_effective_ranks(case: dict[str, Any]) -> None:
    s = np.linalg.svd(np.array(case["matrix"]), compute_uv=False)
    for kind, name in RANKS.items():
        assert effective_rank(s, kind) == pytest.approx(case[name], rel=1e-9)
    if case["sv_entropy_nats"] is None:
        assert math.isnan(sv_entropy(s))
    else:
        assert sv_entropy(s) == pytest.approx(case["sv_entropy_nats"], rel=1e-9, abs=1e-12)


def literal_heads(model: Model) -> list[dict[str, np.ndarray]]:
    """W_Q, W_K, W_V, W_O of every head, read off the block's channels one by one."""
    found = []
    for block in model.blocks:
        channels, out = block.qkv_weight().double().numpy(), block.out_weight().double().numpy()
        for head in range(model.n_heads):
            group = head // (model.n_heads // model.n_kv_heads)
            key = model.n_heads + group
            q, k, v = (channels[:, at] for at in (head, key, key + model.n_kv_heads))
            found.append({"q": q, "k": k, "v": v, "o": out[head]})
    return found


def test_spectra_are_those_of_the_full_matrices(model64: Model) -> None:
    scores = weight_scores(model64)
    for flat, head in enumerate(literal_heads(model64)):
        for name, matrix in (("ov", head["v"] @ head["o"]), ("qk", head["q"] @ head["k"].T)):
            s = np.linalg.svd(matrix, compute_uv=False)[: model64.d_head]
            assert scores[f"{name}-spectral-norm"].flat[flat] == pytest.approx(s[0], rel=1e-10)
            assert scores[f"{name}-frobenius-norm"].flat[flat] == pytest.approx(np.linalg.norm(matrix))
            assert scores[f"{name}-sv-gap"].flat[flat] == pytest.approx((s[0] - s[1]) / s[0], rel=1e-8)
            for kind in EffectiveRank:
                assert scores[f"{name}-{kind}"].flat[flat] == pytest.approx(effective_rank(s, kind))
        eigenvalues = np.linalg.eigvals(head["v"] @ head["o"])
        copying = eigenvalues.real.sum() / np.abs(eigenvalues).sum()
        assert scores["ov-copying"].flat[flat] == pytest.approx(copying, rel=1e-8)


def test_golden_norm_along_the_answer(golden: dict[str, Any], golden_model: Model) -> None:
    correct, incorrect = torch.tensor(golden["correct"]), torch.tensor(golden["incorrect"])
    every = answer_directions(golden_model, correct, incorrect, max_pairs=None)
    assert len(every) == len(set(zip(golden["correct"], golden["incorrect"], strict=True)))
    expected = golden["ov_norm_answer_direction_distinct_pairs"]
    np.testing.assert_allclose(ov_norm(golden_model, every).flat, expected, rtol=1e-9)
    first = answer_directions(golden_model, correct, incorrect, max_pairs=1)
    np.testing.assert_allclose(ov_norm(golden_model, first).flat, golden["ov_norm_first_pair"], rtol=1e-9)
    assert len(answer_directions(golden_model, correct, incorrect)) == 10


def test_member_ratio_by_hand_and_where_it_is_undefined() -> None:
    values, members = np.array([4.0, 2.0, 1.0, np.nan]), np.array([True, True, False, False])
    assert member_ratio(values, members) == 3.0
    assert math.isnan(member_ratio(values, np.zeros(4, dtype=bool)))
    assert math.isnan(member_ratio(values, np.ones(4, dtype=bool)))
    assert math.isnan(member_ratio(np.array([1.0, 0.0]), np.array([True, False])))


def test_composition_is_that_of_the_full_matrices(model64: Model) -> None:
    found, heads, norm = composition(model64), literal_heads(model64), np.linalg.norm
    n = model64.n_heads
    for sender in range(n):
        for receiver in range(n, 2 * n):
            ov, later = heads[sender]["v"] @ heads[sender]["o"], heads[receiver]
            qk = later["q"] @ later["k"].T
            for name, read in (("q", qk), ("k", qk.T), ("v", later["v"] @ later["o"])):
                expected = norm(ov @ read) / norm(ov) / norm(read)
                assert getattr(found, name)[sender, receiver] == pytest.approx(expected, rel=1e-9)
                assert 0 <= expected <= 1


def test_edge_test_by_hand() -> None:
    table = np.full((6, 6), np.nan)
    table[:2, 2:] = [[0.9, 0.1, 0.2, 0.3], [0.8, 0.2, 0.1, 0.2]]
    table[2:4, 4:] = [[0.1, 0.7], [0.3, 0.2]]
    edges = [(0, 0, 1, 0), (0, 1, 1, 0), (1, 0, 2, 1)]
    found = edge_test(table, edges, n_heads=2)
    a, b = np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.2, 0.1, 0.3, 0.2])
    se = math.sqrt(a.var(ddof=1) / 3 + b.var(ddof=1) / 9)
    assert found.statistic == pytest.approx((a.mean() - b.mean()) / se)
    assert (found.n_edges, found.n_others) == (3, 9)
    assert found.p_value < 0.01
    assert edge_test(-table, edges, n_heads=2).statistic == pytest.approx(-found.statistic)


@pytest.mark.parametrize("edge", [(1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 3, 0), (0, 2, 1, 0)])
def test_impossible_edges_are_refused(edge: tuple[int, int, int, int]) -> None:
    with pytest.raises(InputError, match="does not join two heads of the model to a later layer"):
        edge_test(np.ones((6, 6)), [edge], n_heads=2)


def test_the_permutation_p_is_the_share_of_choices_as_far_away() -> None:
    """Two of six pairs: among all 15 choices, counted one by one, those whose t is as far from 0."""
    values = np.array([0.1, 0.2, 0.25, 0.4, 0.9, 3.0])
    table = np.full((8, 8), np.nan)
    places = [(0, 4), (0, 5), (1, 4), (1, 5), (2, 4), (2, 5)]
    for (sender, receiver), value in zip(places, values, strict=True):
        table[sender, receiver] = value
    found = edge_test(table, [(0, 2, 1, 0), (0, 2, 1, 1)], n_heads=4)  # the last two
    t = [
        abs(stats.ttest_ind(values[list(rows)], np.delete(values, list(rows)), equal_var=False).statistic)
        for rows in itertools.combinations(range(6), 2)
    ]
    exact = np.mean([each >= abs(found.statistic) - 1e-9 for each in t])
    assert found.permutation_p == pytest.approx(exact, abs=0.05)
    other = edge_test(table, [(0, 2, 1, 0), (0, 2, 1, 1)], n_heads=4, seed=1)
    assert other.permutation_p != found.permutation_p

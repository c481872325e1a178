"""Divergences of blocks of pairs: by hand, against the per-row kernels, and their errors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.analyses.worst_case.pair_divergence import DIVERGENCES, get_divergence, table_divergences
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.metrics.outputs import divergences


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def test_kl_by_hand() -> None:
    """With p = (1/2, 1/2) and c = (1/4, 3/4): KL = 1/2 ln 2 + 1/2 ln 2/3."""
    model = logits_of(0.5, 0.5)[None]
    circuit = torch.stack([logits_of(0.25, 0.75), logits_of(0.5, 0.5) + 7])[None]
    found = table_divergences(get_divergence("kl"), model, circuit)
    np.testing.assert_allclose(found, [[0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0]], atol=1e-12)


def test_the_other_divergences_by_hand() -> None:
    model, circuit = logits_of(0.5, 0.5)[None], logits_of(0.25, 0.75)[None, None]
    half = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    reverse = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    middle = [0.375, 0.625]
    js = sum(p / 2 * math.log(p / m) for p, m in zip([0.5, 0.5], middle, strict=True))
    js += sum(c / 2 * math.log(c / m) for c, m in zip([0.25, 0.75], middle, strict=True))
    expected = {"kl": half, "reverse-kl": reverse, "js": js, "tv": 0.25}
    for key, value in expected.items():
        found = table_divergences(get_divergence(key), model, circuit)
        assert found.item() == pytest.approx(value, abs=1e-12)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 60))
def test_the_table_form_of_kl_is_the_sum_over_outputs(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = torch.randn(3, 11, generator=generator) * scale
    circuit = model[:, None] + torch.randn(3, 4, 11, generator=generator) * scale * 1e-3
    found = table_divergences(get_divergence("kl"), model, circuit)
    for j in range(4):
        expected = divergences(model.numpy(), circuit[:, j].numpy())["kl"]
        np.testing.assert_allclose(found[:, j], expected, rtol=1e-9, atol=1e-11)
    assert (found >= 0).all()


def test_logit_difference_gap_uses_the_answers_of_the_clean_input() -> None:
    model = torch.tensor([[3.0, 1.0, 0.0], [0.0, 5.0, 1.0]])
    circuit = torch.tensor([[[1.0, 1.0, 0.0]], [[0.0, 2.0, 2.0]]])
    found = table_divergences(
        get_divergence("logit-diff-gap"),
        model,
        circuit,
        answers=torch.tensor([[0, -1], [1, -1]]),
        wrong=torch.tensor([[1, 2], [2, -1]]),
    )
    # (3 - 0.5) - (1 - 0.5) = 2 and (5 - 1) - (2 - 2) = 4
    np.testing.assert_allclose(found, [[2.0], [4.0]])


def test_a_callable_is_a_divergence() -> None:
    def largest_gap(model: Tensor, circuit: Tensor) -> Tensor:
        return (model - circuit).abs().amax(1)

    divergence = get_divergence(largest_gap)
    assert (divergence.key, divergence.unit) == ("largest_gap", "user")
    model, circuit = torch.zeros(2, 3), torch.arange(12.0).view(2, 2, 3)
    found = table_divergences(divergence, model, circuit)
    np.testing.assert_allclose(found, [[2, 5], [8, 11]])


def test_a_callable_of_a_known_name_is_still_the_callers() -> None:
    def kl(model: Tensor, circuit: Tensor) -> Tensor:
        return (model - circuit).abs().amax(1)

    found = table_divergences(get_divergence(kl), torch.zeros(2, 3), torch.arange(12.0).view(2, 2, 3))
    np.testing.assert_allclose(found, [[2, 5], [8, 11]])


def test_a_callable_that_averages_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"returned \(\); expected one number per pair, shape \(2,\)"):
        table_divergences(
            get_divergence(lambda model, circuit: (model - circuit).mean()),
            torch.zeros(1, 3),
            torch.zeros(1, 2, 3),
        )


def test_missing_answers_are_refused() -> None:
    with pytest.raises(InputError, match="these inputs have none"):
        table_divergences(get_divergence("logit_diff_gap"), torch.zeros(1, 3), torch.zeros(1, 2, 3))


def test_nan_passes_on() -> None:
    found = table_divergences(get_divergence("kl"), torch.zeros(1, 3), torch.full((1, 2, 3), math.nan))
    assert np.isnan(found).all()


def test_names_are_forgiving_about_underscores_and_name_near_matches() -> None:
    assert get_divergence("reverse_kl") is DIVERGENCES["reverse-kl"]
    with pytest.raises(UnknownNameError, match="kl"):
        get_divergence("klx")

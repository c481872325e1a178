"""Generalization motifs: golden values, a canonical correlation by search, properties, refusals."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.generalization import motif, universal_motif
from assay.core.errors import DegenerateDataWarning, InputError, UnknownNameError


FOLDER = Path(__file__).parent.parent / "golden" / "generalization"
GOLDEN = json.loads((FOLDER / "motif.json").read_text())
with np.load(FOLDER / "motif.npz") as _file:
    ARRAYS = dict(_file)


def zoo(seed: int, n: int = 12, size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.rand(n, size, size, generator=generator, dtype=torch.float64).triu(1)
    return matrices, torch.rand(n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_motifs_equal_the_golden_ones(task: int) -> None:
    found = motif(ARRAYS[f"idm_{task}"], ARRAYS[f"gt_{task}"])
    np.testing.assert_allclose(found.loadings, ARRAYS[f"loadings_{task}"], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.weights, ARRAYS[f"weights_minnorm_{task}"], rtol=1e-8, atol=1e-10)
    expected = GOLDEN[f"task{task}"]
    assert found.correlation == pytest.approx(expected["canonical_corr_unregularised"], rel=1e-9)
    assert found.correlation == pytest.approx(expected["sklearn_cca_corr"], rel=1e-9)
    assert (found.n, int(found.used.sum())) == (expected["n"], expected["n_entries_used"])


@pytest.mark.parametrize("task", [0, 1, 2])
def test_ridge_equals_the_golden_weights(task: int) -> None:
    found = motif(ARRAYS[f"idm_{task}"], ARRAYS[f"gt_{task}"], kind="weights", ridge=1.0)
    np.testing.assert_allclose(found.values, ARRAYS[f"weights_ridge1_{task}"], rtol=1e-8, atol=1e-12)
    assert found.correlation == pytest.approx(GOLDEN[f"task{task}"]["canonical_corr_ridge1"], rel=1e-9)


@pytest.mark.parametrize("kind", ["loadings", "weights"])
def test_universal_motifs_equal_the_golden_ones(kind: str) -> None:
    motifs = [motif(ARRAYS[f"idm_{task}"], ARRAYS[f"gt_{task}"], kind=kind) for task in range(3)]
    expected = ARRAYS[f"universal_{kind}_maxabs"]
    np.testing.assert_allclose(universal_motif(motifs), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_loadings_are_correlations_with_performance_over_the_canonical_one(task: int) -> None:
    found = motif(ARRAYS[f"idm_{task}"], ARRAYS[f"gt_{task}"])
    expected = ARRAYS[f"pearson_{task}"] / found.correlation
    np.testing.assert_allclose(found.loadings, expected, rtol=1e-7, atol=1e-9)


def test_no_other_combination_correlates_more() -> None:
    matrices, performance = zoo(0, n=30)
    found = motif(matrices, performance)
    columns = matrices[:, found.used].numpy()
    generator = np.random.default_rng(0)
    best = max(
        abs(np.corrcoef(columns @ generator.normal(size=3), performance.numpy())[0, 1]) for _ in range(20_000)
    )
    assert best <= found.correlation + 1e-12
    assert best == pytest.approx(found.correlation, abs=2e-3)  # three directions, well covered


def test_a_case_worked_by_hand() -> None:
    """Entry (0, 1) rises with performance, (1, 2) falls with it, (0, 2) says nothing."""
    matrices = torch.zeros(4, 3, 3, dtype=torch.float64)
    matrices[:, 0, 1] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    matrices[:, 1, 2] = torch.tensor([5.0, 5.0, 2.0, 2.0])
    matrices[:, 0, 2] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    found = motif(list(matrices), [0.1, 0.1, 0.3, 0.3])
    expected = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(found.loadings, expected)
    torch.testing.assert_close(found.weights, expected / 2)  # least norm shares the work
    assert found.correlation == pytest.approx(1)


@given(st.integers(0, 1000), st.floats(0.01, 100), st.floats(-5, 5), st.sampled_from([0.0, 0.5]))
def test_units_do_not_matter_and_the_sign_of_performance_does(
    seed: int, scale: float, offset: float, ridge: float
) -> None:
    matrices, performance = zoo(seed)
    found = motif(matrices, performance, ridge=ridge)
    moved = motif(matrices * scale, performance * scale + offset, ridge=ridge)
    torch.testing.assert_close(moved.loadings, found.loadings, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(
        motif(matrices, -performance, ridge=ridge).loadings, -found.loadings, atol=1e-7, rtol=1e-7
    )
    assert 0 <= found.correlation <= 1
    assert float(found.loadings.abs().max()) <= 1


def test_arrays_tensors_and_lists_are_one() -> None:
    matrices, performance = zoo(0)
    expected = motif(matrices, performance).loadings
    assert torch.equal(motif(matrices.numpy(), performance.numpy()).loadings, expected)
    assert torch.equal(motif(list(matrices), performance.tolist()).loadings, expected)


def test_performance_that_goes_with_nothing_has_no_loadings() -> None:
    matrices = torch.zeros(4, 3, 3, dtype=torch.float64)
    matrices[:, 0, 1] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    with pytest.warns(DegenerateDataWarning, match="uncorrelated with every entry"):
        found = motif(matrices, [0.0, 0.0, 1.0, 1.0])
    assert math.isnan(found.loadings[0, 1])
    assert found.loadings[0, 2] == 0
    assert found.correlation == 0


def test_bad_input_is_refused() -> None:
    matrices, performance = zoo(0)
    bad = matrices.clone()
    bad[4, 0, 1] = math.nan
    for wrong in (
        (matrices[:2], performance[:2]),
        (list(matrices), performance[:11].tolist()),
        (bad, performance),
        (matrices, [math.inf, *performance.tolist()[1:]]),
    ):
        with pytest.raises(InputError, match="a motif needs 3 matrices or more, a performance of each"):
            motif(*wrong)
    with pytest.raises(InputError, match="ridge -1.0; a motif needs .* a ridge of 0 or more"):
        motif(matrices, performance, ridge=-1.0)
    for wrong in ((matrices, torch.full((12,), 0.5)), (matrices[:1].expand(12, 3, 3), performance)):
        with pytest.raises(InputError, match="all dependency matrices, or all performances, are equal"):
            motif(*wrong)
    with pytest.raises(UnknownNameError, match="did you mean 'loadings'"):
        motif(matrices, performance, kind="loading")


def test_universal_motifs_need_motifs_of_one_kind() -> None:
    found = motif(*zoo(0))
    with pytest.raises(InputError, match=r"mean of motifs of one kind and size; got \[\]"):
        universal_motif([])
    with pytest.raises(InputError, match="loadings of shape .*weights of shape"):
        universal_motif([found, motif(*zoo(1), kind="weights")])
    with pytest.raises(InputError, match="motif 1 is NaN, or 0"):
        universal_motif([found, replace(found, loadings=torch.zeros_like(found.loadings))])

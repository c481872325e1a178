"""Every registered score of heads, through `discover_heads`."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from assay.core.errors import InputError, UnknownNameError
from assay.discovery.heads import HEAD_METHODS, discover_heads, find_head_method
from assay.models import Model, load_model
from assay.tasks import PairTask


@pytest.fixture
def model(gpt2_tiny64: nn.Module) -> Model:
    return load_model(gpt2_tiny64)


@pytest.fixture
def task(make_task: Callable[..., PairTask]) -> PairTask:
    return make_task(12)


# ---- the contract of every method --------------------------------------------------------------------


@pytest.mark.parametrize("key", list(HEAD_METHODS))
def test_a_method_scores_every_head_and_leaves_the_model_alone(
    model: Model, task: PairTask, key: str
) -> None:
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    found = discover_heads(model, task, key)
    assert found.values.shape == (model.n_layers, model.n_heads)
    assert np.isfinite(found.values).all()
    if found.per_example is not None:
        assert found.per_example.shape == (task.n, model.n_layers, model.n_heads)
    assert found.provenance["method"]["key"] == key
    assert found.unit == HEAD_METHODS[key].unit
    found.to_dict()
    again = discover_heads(model, task, key)
    np.testing.assert_array_equal(found.values, again.values)
    after = model.module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any(parameter.grad is not None for parameter in model.module.parameters())


@pytest.mark.parametrize("key", [key for key in HEAD_METHODS if "batch_size" in HEAD_METHODS[key].options])
def test_scores_do_not_depend_on_batches(model: Model, task: PairTask, key: str) -> None:
    first, second = (discover_heads(model, task, key, batch_size=size) for size in (12, 5))
    np.testing.assert_allclose(first.values, second.values, rtol=1e-6, atol=1e-9)


# ---- what stands behind the keys ---------------------------------------------------------------------


def test_the_margin_is_the_tasks_own(model: Model, make_task: Callable[..., PairTask]) -> None:
    base = make_task(12)
    task = PairTask(
        clean=base.clean,
        corrupted=base.corrupted,
        answers=base.answers,
        wrong=base.wrong,
        objective="prob_diff",
    )
    for key in ("activation-patching", "mediation", "drop-effect", "attribution-patching"):
        found = discover_heads(model, task, key)
        assert found.provenance["objective"] == "prob_diff"
        other = discover_heads(model, task, key, objective="logit_diff")
        assert np.abs(found.values - other.values).max() > 1e-6


# ---- names ------------------------------------------------------------------------------------------


def test_methods_are_found_by_key_and_by_published_code() -> None:
    for name in ("ocse", "C7", "c7.ocse"):
        assert find_head_method(name).key == "ocse"
    assert find_head_method("activation_magnitude").key == "activation-magnitude"
    assert {find_head_method(spec.id).key for spec in HEAD_METHODS.values()} == set(HEAD_METHODS)
    with pytest.raises(UnknownNameError, match="head method 'mediaton'; did you mean 'mediation'"):
        find_head_method("mediaton")
    with pytest.raises(UnknownNameError, match="unknown head method 'X'"):
        find_head_method("X")


def test_options_are_checked_before_anything_runs(
    model: Model, task: PairTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "forward", lambda *_: pytest.fail("a pass was made"))
    with pytest.raises(UnknownNameError, match="option of head method 'mediation' 'position'.*'positions'"):
        discover_heads(model, task, "mediation", position="all")
    for key, options, message in (
        ("mediation", {"positions": "some"}, "known: all, last"),
        ("activation-patching", {"aggregate": "sum"}, "unknown aggregate"),
        ("spectral-norm", {"matrix": "o"}, "unknown matrix"),
        ("dla", {"direction": "wrong"}, "known: correct, difference"),
    ):
        with pytest.raises(InputError, match=message):
            discover_heads(model, task, key, **options)


def test_scores_that_compare_need_wrong_answers(model: Model, task: PairTask) -> None:
    bare = PairTask(clean=task.clean, corrupted=task.corrupted, answers=task.answers, objective="ce")
    for key in HEAD_METHODS:
        if key in ("dla", "ocse", "ov-norm"):
            with pytest.raises(InputError, match="wrong"):
                discover_heads(model, bare, key)
        else:
            assert np.isfinite(discover_heads(model, bare, key).values).all()

"""Every registered score of heads, through `discover_heads`."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.core.errors import InputError, UnknownNameError
from assay.discovery.heads import HEAD_METHODS, discover_heads, find_head_method
from assay.models import Model
from assay.tasks import PairTask


MakeTask = Callable[..., PairTask]


@pytest.fixture
def task(make_task: MakeTask) -> PairTask:
    return make_task(12)


@pytest.mark.parametrize("key", list(HEAD_METHODS))
def test_a_method_scores_every_head_and_leaves_the_model_alone(gpt2: Model, task: PairTask, key: str) -> None:
    before = {name: value.clone() for name, value in gpt2.module.state_dict().items()}
    found = discover_heads(gpt2, task, key)
    assert found.values.shape == (gpt2.n_layers, gpt2.n_heads)
    assert np.isfinite(found.values).all()
    if found.per_example is not None:
        assert found.per_example.shape == (task.n, gpt2.n_layers, gpt2.n_heads)
    assert found.provenance["method"]["key"] == key
    assert found.unit == HEAD_METHODS[key].unit
    found.to_dict()
    if "batch_size" in HEAD_METHODS[key].options:
        again = discover_heads(gpt2, task, key, batch_size=5)
        np.testing.assert_allclose(found.values, again.values, rtol=1e-6, atol=1e-9)
    after = gpt2.module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(each.grad is None and each.requires_grad for each in gpt2.module.parameters())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in gpt2.module.modules())


def test_the_margin_is_the_tasks_own(gpt2: Model, make_task: MakeTask) -> None:
    task = replace(make_task(12), objective="prob_diff")
    for key in ("activation-patching", "mediation", "drop-effect", "attribution-patching"):
        found = discover_heads(gpt2, task, key)
        assert found.provenance["objective"] == "prob_diff"
        other = discover_heads(gpt2, task, key, objective="logit_diff")
        assert np.abs(found.values - other.values).max() > 1e-6


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
    gpt2: Model, task: PairTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "forward", lambda *_: pytest.fail("a pass was made"))
    with pytest.raises(UnknownNameError, match="option of head method 'mediation' 'position'.*'positions'"):
        discover_heads(gpt2, task, "mediation", position="all")
    for key, options, message in (
        ("mediation", {"positions": "some"}, "known: all, last"),
        ("activation-patching", {"aggregate": "sum"}, "unknown aggregate"),
        ("spectral-norm", {"matrix": "o"}, "unknown matrix"),
        ("dla", {"direction": "wrong"}, "known: correct, difference"),
    ):
        with pytest.raises(InputError, match=message):
            discover_heads(gpt2, task, key, **options)


def test_scores_that_compare_need_wrong_answers(gpt2: Model, task: PairTask) -> None:
    bare = replace(task, wrong=None, objective="ce")
    for key in HEAD_METHODS:
        if key in ("dla", "ocse", "ov-norm"):
            with pytest.raises(InputError, match="wrong"):
                discover_heads(gpt2, bare, key)
        else:
            assert np.isfinite(discover_heads(gpt2, bare, key).values).all()

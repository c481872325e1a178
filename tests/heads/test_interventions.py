"""Heads replaced: the circuit engine, donors, noise, and errors."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from heads_under import logits_under
from torch import nn

from assay.core.errors import InputError
from assay.discovery.heads.interventions import INTERVENTIONS, Donor
from assay.discovery.heads.runs import run_with_heads_replaced
from assay.execution import run_model
from assay.execution.ablation import Setting
from assay.models import Model, load_model
from assay.tasks import PairTask


sys.path.insert(0, str(Path(__file__).parent.parent / "execution"))

from cut_models import random_prompts


def setting_of(model: Model, task: PairTask, **options: object) -> Setting:
    return Setting(model=model, task=task, reference=task, batch_size=3, **options)


def test_uniform_attention_of_shared_values(llama_tiny64: nn.Module) -> None:
    """Grouped heads average the values of their own group, over what they may attend to."""
    model = load_model(llama_tiny64)
    task = random_prompts(model)
    replacement = INTERVENTIONS["attn-uniform"].prepare_heads(setting_of(model, task))
    seen = []
    run_with_heads_replaced(model, task, [(1, 3)], lambda site: seen.append(site) or replacement(site))
    site, new = seen[0], replacement(seen[0])
    group = 3 * site.block.n_kv_heads // site.block.n_heads
    for position in range(task.length):
        expected = site.values[:, : position + 1, group].double().mean(1)
        torch.testing.assert_close(new[:, position, 3], expected)


def test_donors_share_the_length_and_the_answer(gpt2: Model) -> None:
    model, base = gpt2, random_prompts(gpt2, n=30, ragged=True, seed=3)
    task = replace(base, answers=base.answers % 2 + 1)
    lengths, answers = task.lengths.numpy(), task.answers[:, 0].numpy()
    for same in (False, True):
        donors = Donor(key="resample-donor", same_answer=same).donors_of(setting_of(model, task, seed=1))
        rows = np.flatnonzero(donors >= 0)
        assert len(rows) > 20
        assert (donors[rows] != rows).all()
        assert (lengths[donors[rows]] == lengths[rows]).all()
        assert not same or (answers[donors[rows]] == answers[rows]).all()


def test_a_prompt_alone_in_its_length_has_no_donor(gpt2: Model) -> None:
    model, base = gpt2, random_prompts(gpt2, n=3)
    task = replace(base, lengths=torch.tensor([7, 7, 5]), positions=torch.tensor([6, 6, 4]))
    setting = setting_of(model, task)
    assert Donor(key="resample-donor").donors_of(setting).tolist() == [1, 0, -1]
    for key in ("resample-donor", "resample-donor-same-class"):
        kept = logits_under(model, task, key, [(0, 0)], setting=setting)
        torch.testing.assert_close(kept[2], run_model(model, task)[2])
    task = replace(base, lengths=torch.tensor([7, 6, 5]), positions=torch.tensor([6, 5, 4]))
    with pytest.raises(InputError, match="the 3 prompts all have different lengths"):
        logits_under(model, task, "resample-donor", [(0, 0)], setting=setting_of(model, task))


def test_noise_has_the_spread_of_its_head_and_does_not_depend_on_batches(gpt2: Model) -> None:
    model = gpt2
    task = random_prompts(model, n=40, length=12)
    heads = [(0, 1), (1, 2)]
    results = [logits_under(model, task, "noise-additive", heads, batch_size=size) for size in (40, 7)]
    torch.testing.assert_close(*results)
    replacement = INTERVENTIONS["noise-additive"].prepare_heads(setting_of(model, task))
    changes = []

    def spy(site):
        new = replacement(site)
        changes.append((new - site.z)[:, :, 1] / site.z[:, :, 1].flatten(1).std(1)[:, None, None])
        return new

    run_with_heads_replaced(model, task, [(0, 1)], spy)
    assert float(torch.cat(changes).std()) == pytest.approx(1, rel=0.05)
    other = logits_under(model, task, "noise-additive", heads, setting=setting_of(model, task, draw=1))
    assert (other - results[0]).abs().max() > 1e-3

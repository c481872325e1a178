"""Heads replaced in every way: golden margins, the circuit engine, donors, noise, and errors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from heads_under import logits_under
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.discovery.heads.interventions import INTERVENTIONS, Donor, derangement
from assay.discovery.heads.runs import outside, run_with_heads_replaced
from assay.execution import run_circuit, run_model
from assay.execution.ablation import Setting
from assay.models import Model, load_model
from assay.tasks import PairTask


sys.path.insert(0, str(Path(__file__).parent.parent / "execution"))

from test_circuit_run import GOLDEN, golden_model, random_task


def setting_of(model: Model, task: PairTask, **options: object) -> Setting:
    return Setting(model=model, task=task, reference=task, batch_size=3, **options)


def test_golden_margins_of_every_intervention(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = golden_model("gpt2_tiny", torch.float64)
    stored = json.loads((GOLDEN / "tiny_gpt2_heads.json").read_text())
    correct, foil = (torch.tensor(stored[name])[:, None] for name in ("correct", "incorrect"))
    task = PairTask(
        clean=torch.tensor(stored["tokens"]),
        corrupted=torch.tensor(stored["corrupt_tokens"]),
        answers=correct,
        wrong=foil,
    )
    monkeypatch.setattr(Donor, "donors_of", lambda self, setting: np.array(stored["donor"]))
    setting = setting_of(model, task)
    ablated = outside([(layer, head) for layer, head in stored["circuit"]], model)
    assert set(stored["y_keep"]) <= set(INTERVENTIONS)
    for key, expected in stored["y_keep"].items():
        logits = logits_under(model, task, key, ablated, setting=setting)
        margins = logits.gather(1, correct) - logits.gather(1, foil)
        np.testing.assert_allclose(margins[:, 0].numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("key", ["zero", "mean", "mean-positional", "resample"])
def test_a_head_circuit_of_the_graph_says_the_same(module64: nn.Module, key: str) -> None:
    model = load_model(module64)
    task = random_task(model, ragged=key != "mean-positional")
    kept = [(0, 1), (1, 0), (1, 2)]
    expected = run_circuit(Circuit.from_heads(model.graph, kept), model, task, ablation=key)
    found = logits_under(model, task, key, outside(kept, model), setting=setting_of(model, task))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_uniform_attention_of_shared_values(llama_tiny64: nn.Module) -> None:
    """Grouped heads average the values of their own group, over what they may attend to."""
    model = load_model(llama_tiny64)
    task = random_task(model)
    seen = []
    replacement = INTERVENTIONS["attn-uniform"].prepare_heads(setting_of(model, task))

    def spy(site):
        new = replacement(site)
        seen.append((site, new))
        return new

    run_with_heads_replaced(model, task, [(1, 3)], spy)
    site, new = seen[0]
    group = 3 * site.block.n_kv_heads // site.block.n_heads
    for position in range(task.length):
        expected = site.values[:, : position + 1, group].double().mean(1)
        torch.testing.assert_close(new[:, position, 3], expected)


@given(n=st.integers(2, 40), seed=st.integers(0, 1000))
def test_derangements_move_everything(n: int, seed: int) -> None:
    order = derangement(n, np.random.default_rng(seed))
    assert sorted(order) == list(range(n))
    assert (order != np.arange(n)).all()


def test_donors_share_the_length_and_the_answer(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    base = random_task(model, n=30, ragged=True, seed=3)
    task = PairTask(
        clean=base.clean, corrupted=base.corrupted, answers=base.answers % 2 + 1, lengths=base.lengths
    )
    for same in (False, True):
        donors = Donor(key="resample-donor", same_answer=same).donors_of(setting_of(model, task, seed=1))
        rows = np.flatnonzero(donors >= 0)
        assert len(rows) > 20
        assert (donors[rows] != rows).all()
        lengths, answers = task.lengths.numpy(), task.answers[:, 0].numpy()
        assert (lengths[donors[rows]] == lengths[rows]).all()
        assert not same or (answers[donors[rows]] == answers[rows]).all()
        again = Donor(key="resample-donor", same_answer=same).donors_of(setting_of(model, task, seed=1))
        np.testing.assert_array_equal(donors, again)


def test_a_prompt_alone_in_its_length_has_no_donor(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    base = random_task(model, n=3)
    task = PairTask(
        clean=base.clean, corrupted=base.corrupted, answers=base.answers, lengths=torch.tensor([7, 7, 5])
    )
    setting = setting_of(model, task)
    assert Donor(key="resample-donor").donors_of(setting).tolist() == [1, 0, -1]
    for key in ("resample-donor", "resample-donor-same-class"):
        kept = logits_under(model, task, key, [(0, 0)], setting=setting)
        torch.testing.assert_close(kept[2], run_model(model, task)[2])
    lengths = torch.tensor([7, 6, 5])
    task = PairTask(clean=base.clean, corrupted=base.corrupted, answers=base.answers, lengths=lengths)
    with pytest.raises(InputError, match="the 3 prompts all have different lengths"):
        logits_under(model, task, "resample-donor", [(0, 0)], setting=setting_of(model, task))


def test_noise_has_the_spread_of_its_head_and_does_not_depend_on_batches(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = random_task(model, n=40, length=12)
    heads = [(0, 1), (1, 2)]
    sizes = ({"batch_size": size} for size in (40, 7))
    results = [logits_under(model, task, "noise-additive", heads, **size) for size in sizes]
    torch.testing.assert_close(*results)
    setting = setting_of(model, task)
    replacement = INTERVENTIONS["noise-additive"].prepare_heads(setting)
    changes = []

    def spy(site):
        new = replacement(site)
        changes.append((new - site.z)[:, :, 1] / site.z[:, :, 1].flatten(1).std(1)[:, None, None])
        return new

    run_with_heads_replaced(model, task, [(0, 1)], spy)
    assert float(torch.cat(changes).std()) == pytest.approx(1, rel=0.05)
    other = setting_of(model, task)
    other.draw = 1
    assert (logits_under(model, task, "noise-additive", heads, setting=other) - results[0]).abs().max() > 1e-3

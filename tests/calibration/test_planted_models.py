"""Tiny random transformers with a planted truth, through the measurement table and the gates."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from assay.analyses.calibration.agreement import convergent_validity, inter_rater
from assay.analyses.calibration.certified import certified_stability
from assay.analyses.calibration.sensitivity import derived_metrics
from assay.circuits import Circuit
from assay.discovery.heads import MeasurementTable
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.metrics import measure
from assay.models import load_model
from assay.tasks import PairTask


VOCABULARY = 61
LAYERS, HEADS, D_HEAD = 3, 4, 8
CIRCUIT = ((0, 1), (1, 0), (1, 3), (2, 2))
ALIVE = np.array([(at // HEADS, at % HEADS) in CIRCUIT for at in range(LAYERS * HEADS)])
METHODS = tuple(INTERVENTIONS)


# ----------------------------------------------------------------------------------------- models and tasks


def random_module(seed: int = 0) -> GPT2LMHeadModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=16,
                n_embd=HEADS * D_HEAD,
                n_layer=LAYERS,
                n_head=HEADS,
                initializer_range=0.25,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    return module.to(torch.float64).eval()


def random_task(module: nn.Module, n: int, seed: int = 0) -> PairTask:
    """Random prompts in three classes; the answer is the one of two outputs that the model prefers there."""
    rng = np.random.default_rng(seed)
    clean, corrupted = (torch.from_numpy(rng.integers(0, VOCABULARY, (n, 6))) for _ in range(2))
    of_class = np.arange(n) % 3
    outputs = torch.from_numpy(rng.permutation(VOCABULARY)[:6].reshape(3, 2)[of_class])
    with torch.no_grad():
        logits = module(clean).logits[:, -1].gather(1, outputs)
    for each in range(3):
        first, second = logits[of_class == each].mean(dim=0)
        if first < second:
            outputs[of_class == each] = outputs[of_class == each].flip(1)
    return PairTask(clean=clean, corrupted=corrupted, answers=outputs[:, :1], wrong=outputs[:, 1:])


def faithfulness(run: np.ndarray, full: np.ndarray) -> np.ndarray:
    """Ratio of sums; one per draw where a method draws."""
    return run.sum(axis=0) / full.sum()


# ----------------------------------------------------------------------------------------------- dead heads


@pytest.fixture(scope="module")
def dead_table() -> MeasurementTable:
    """Only the heads of the circuit write into the residual stream."""
    module = random_module()
    with torch.no_grad():
        for layer, head in (divmod(at, HEADS) for at in np.flatnonzero(~ALIVE).tolist()):
            module.transformer.h[layer].attn.c_proj.weight[head * D_HEAD : (head + 1) * D_HEAD] = 0.0
    model = load_model(module)
    circuit = Circuit.from_heads(model.graph, CIRCUIT)
    return MeasurementTable(model, random_task(module, 12), circuit)


@pytest.mark.parametrize("method", METHODS)
def test_dead_heads_may_be_replaced_by_anything(dead_table: MeasurementTable, method: str) -> None:
    full = dead_table.column("y_full")
    kept = dead_table.column(f"y_keep/{method}")
    np.testing.assert_allclose(faithfulness(kept, full), 1.0, rtol=1e-12)
    np.testing.assert_allclose(dead_table.column(f"kl_keep/{method}"), 0.0, atol=1e-12)
    # Without the circuit nothing is left: completeness is one less the faithfulness of no head at all.
    dropped, empty = (dead_table.column(f"y_{which}/{method}") for which in ("drop", "empty"))
    np.testing.assert_allclose(faithfulness(dropped, full), faithfulness(empty, full), rtol=1e-10)
    assert abs(faithfulness(dropped, full) - 1).min() > 1e-3


def test_dropping_a_dead_head_changes_exactly_nothing(dead_table: MeasurementTable) -> None:
    effects = dead_table.column("y_full")[:, None] - dead_table.column("y_drop1")
    assert (effects[:, ~ALIVE] == 0).all()
    assert (np.abs(effects[:, ALIVE]).max(axis=0) > 1e-3).all()
    listed = np.concatenate([np.flatnonzero(ALIVE), np.flatnonzero(~ALIVE)[:2]])
    found = certified_stability(effects[:, listed])
    assert found.details["labels"][-2:].tolist() == ["unstable", "unstable"]
    assert found.details["published_labels"][-2:].tolist() == ["unstable", "unstable"]


def test_every_rater_puts_dead_heads_last(dead_table: MeasurementTable) -> None:
    scores = {
        "drop effect": dead_table.column("y_full")[:, None] - dead_table.column("y_drop1"),
        "direct": dead_table.column("dla"),
        "norm": dead_table.column("ov_norm"),
    }
    for score in scores.values():
        size = np.abs(score.mean(axis=0) if score.ndim == 2 else score)
        assert (size[~ALIVE] == 0).all()
        assert size[ALIVE].min() > 0
    found = inter_rater(scores, members=ALIVE, n_boot=20, n_perm=20)
    assert found.values["mean_kappa"] == pytest.approx(1.0)
    sizes = {name: np.abs(score) for name, score in scores.items()}
    agreed = convergent_validity(sizes, members=ALIVE, n_boot=20, n_perm=20)
    assert set(agreed.details["jaccard"].values()) == {1.0}


# ------------------------------------------------------------------------------------------ duplicate heads


def with_head(factor: float, seed: int, *, doubled: bool) -> MeasurementTable:
    """The head (1, 0) scaled by `factor`; or that head and its copy (1, 2), each half as strong."""
    module = random_module(seed)
    attention, (first, copy) = module.transformer.h[1].attn, (slice(0, D_HEAD), slice(2 * D_HEAD, 3 * D_HEAD))
    with torch.no_grad():
        attention.c_proj.weight[first] *= factor / 2 if doubled else factor
        attention.c_proj.weight[copy] = attention.c_proj.weight[first] if doubled else 0.0
        for start in range(0, 3 * HEADS * D_HEAD, HEADS * D_HEAD):  # queries, keys, values
            for weights in (attention.c_attn.weight.T, attention.c_attn.bias):
                weights[start + copy.start : start + copy.stop] = weights[start : start + D_HEAD]
    return MeasurementTable(
        load_model(module), random_task(module, 12, seed), ((0, 1), (1, 0), (1, 2), (2, 2))
    )


def test_effects_of_a_doubled_head_add_up_and_neither_half_is_essential() -> None:
    """To first order; what is left falls with the strength. Minimality takes away one at a time."""
    gaps, essential = [], []
    for factor in (0.2, 0.1):
        tables = [with_head(factor, 1, doubled=doubled) for doubled in (False, True)]
        single, double = ((each.column("y_full")[:, None] - each.column("y_drop1")) for each in tables)
        np.testing.assert_allclose(tables[1].column("y_full"), tables[0].column("y_full"), rtol=1e-12)
        whole, halves = single[:, HEADS], double[:, [HEADS, HEADS + 2]]
        np.testing.assert_allclose(halves[:, 0], halves[:, 1], rtol=1e-9, atol=1e-13)
        gaps.append(np.abs(halves.sum(axis=1) - whole).mean() / np.abs(whole).mean())
    assert gaps[1] < 0.1
    assert gaps[1] == pytest.approx(gaps[0] / 2, rel=0.25)
    for doubled in (False, True):
        table = with_head(1.0, 29, doubled=doubled)
        full, kept = table.column("y_full"), table.column("y_keep/mean")
        losses = faithfulness(kept, full) - faithfulness(table.column("y_minus1"), full)
        rows = derived_metrics(table.members, minimality=losses[1:3]).sub_results
        essential.append(rows["minimality_mean_importance"].values["n_essential"])
    assert essential == [1, 0]


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_a_circuit_of_all_living_heads_agrees_with_the_model(
    dead_table: MeasurementTable, ablation: str
) -> None:
    given = (dead_table.circuit, dead_table.model, dead_table.task)
    ranks, kept = measure(*given, ["topk", "faithfulness"], ablation=ablation)
    assert [ranks.parts[key].value for key in ("acc@1", "acc@5", "tau@5")] == [1.0, 1.0, 1.0]
    assert kept.value == pytest.approx(1.0, rel=1e-12)

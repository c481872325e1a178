"""Worst cases under other ablations than resampling, and of circuits at spans of positions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from single_runs import half_of, literal
from transformers import Gemma2Config, Gemma2ForCausalLM

from assay.analyses.worst_case import WorstCase, worst_case
from assay.analyses.worst_case.sampling import task_of
from assay.circuits import Circuit, Spans
from assay.core.errors import InputError
from assay.models import Model, load_model
from assay.tasks import PairTask, load_task


TaskMaker = Callable[..., PairTask]
SINGLE = ("zero", "mean", "mean-positional")


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def ioi(mini: Model) -> PairTask:
    return load_task("ioi", mini, n=20)


@pytest.mark.parametrize("ablation", SINGLE)
def test_rows_of_a_file_are_runs_of_the_circuit(ablation: str, tiny: Model, ids_task: TaskMaker) -> None:
    task, circuit = ids_task(), half_of(tiny)
    found = worst_case(circuit, tiny, task, ablation=ablation)
    assert (found.protocol, found.divergence.shape) == ("inputs", (8,))
    assert found.divergence == pytest.approx(literal(tiny, task, circuit, ablation=ablation), rel=1e-4)
    nothing = literal(tiny, task, Circuit.empty(tiny.graph), ablation=ablation)
    assert found.empty == pytest.approx(nothing, rel=1e-4)
    assert found.divergence[0] == found.divergence[1]  # row 1 repeats row 0, and is run once
    assert found.n_distinct_pairs == 7
    assert worst_case(Circuit.full(tiny.graph), tiny, task, ablation=ablation).divergence.max() < 1e-6


@pytest.mark.parametrize("ablation", SINGLE)
def test_drawn_prompts_do_not_change_what_the_others_are_ablated_by(
    ablation: str, mini: Model, ioi: PairTask
) -> None:
    """The means are over other prompts, so each value is a function of its own input alone."""
    circuit = half_of(mini)
    few, more = (worst_case(circuit, mini, ioi, n_clean=n, ablation=ablation) for n in (4, 9))
    assert few.divergence == pytest.approx(more.divergence[:4], rel=1e-4)
    assert few.facts["ablation"] == ablation
    assert ("given_baseline" in few.warnings) is (ablation != "zero")
    if few.sample.reference is not None:
        apart = task_of(few.sample.reference, few.sample.reference)
        assert apart.n == 200
        # On the prompts that the means are over, the same values come out of a plain run.
        own = worst_case(circuit, mini, apart, ablation=ablation)
        assert own.divergence == pytest.approx(literal(mini, apart, circuit, ablation=ablation), rel=1e-3)


def check_pairs(found: WorstCase, model: Model, circuit: Circuit) -> None:
    """Each pair is a run of the circuit by itself."""
    for i, j in np.ndindex(found.divergence.shape):
        pair = task_of(found.sample.clean.subset([i]), found.sample.corrupted.subset([j]))
        by_hand = literal(model, pair, circuit, ablation="resample")
        assert found.divergence[i, j] == pytest.approx(by_hand[0], rel=1e-3, abs=1e-5)


def test_donors_are_clean_prompts_and_make_pairs(mini: Model, ioi: PairTask) -> None:
    circuit = half_of(mini)
    found = worst_case(circuit, mini, ioi, n_clean=3, n_corrupted=4, ablation="resample-donor")
    assert found.divergence.shape == (3, 4)
    resampled = worst_case(circuit, mini, ioi, n_clean=3, n_corrupted=4)
    assert torch.equal(found.sample.clean.tokens, resampled.sample.clean.tokens)
    assert not torch.equal(found.sample.corrupted.tokens, resampled.sample.corrupted.tokens)
    check_pairs(found, mini, circuit)


def test_a_circuit_at_spans_is_run_pair_by_pair(mini: Model, ioi: PairTask) -> None:
    spans = Spans.of(ioi, "slots", causal=True)
    everywhere = half_of(mini)
    options: dict[str, Any] = {"n_clean": 3, "n_corrupted": 4}
    same = worst_case(everywhere.everywhere(spans), mini, ioi, **options)
    assert same.divergence == pytest.approx(
        worst_case(everywhere, mini, ioi, **options).divergence, rel=1e-3, abs=1e-5
    )
    mask = everywhere.everywhere(spans).mask.clone()
    mask[spans.index("place")] = False  # ablated at one slot
    positional = Circuit(graph=mini.graph, spans=spans, mask=mask)
    found = worst_case(positional, mini, ioi, **options)
    assert np.abs(found.divergence - same.divergence).max() > 1e-3
    check_pairs(found, mini, positional)


def test_a_positional_circuit_under_positional_means_is_certified_and_kept(
    mini: Model, ioi: PairTask, tmp_path: Path
) -> None:
    spans = Spans.of(ioi, "slots", causal=True)
    circuit = half_of(mini).everywhere(spans)
    found = worst_case(circuit, mini, ioi, n_clean=60, ablation="mean-positional")
    certificate = found.certificate(0.95)
    assert (certificate.n, certificate.order, certificate.rigorous) == (60, 60, True)
    assert certificate.bound == found.divergence.max()
    found.save(tmp_path / "w.safetensors")
    loaded = WorstCase.load(tmp_path / "w.safetensors", model=mini, circuit=circuit)
    assert loaded.worst(2) == found.worst(2)
    assert loaded.warnings == found.warnings
    assert loaded.certificate(0.95) == certificate


def test_means_over_the_rows_that_are_run_certify_nothing(tiny: Model, ids_task: TaskMaker) -> None:
    task, circuit = ids_task(70), half_of(tiny)
    means = worst_case(circuit, tiny, task, ablation="mean", independent=True)
    with pytest.raises(InputError, match="measured on the inputs that were run"):
        means.certificate(0.95)
    assert means.to_dict()["certificates"] == []
    zeros = worst_case(circuit, tiny, task, ablation="zero", independent=True)
    assert zeros.certificate(0.95).bound is not None
    assert worst_case(circuit, tiny, task, ablation="zero").to_dict()["certificates"] == []


def test_norms_by_target_run_pair_by_pair(ids_task: TaskMaker) -> None:
    """Under `eap-ig` nothing is shared by pairs; values are those of single runs."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}
    module = Gemma2ForCausalLM(Gemma2Config(**sizes, **heads, attn_implementation="eager"))
    model = load_model(module.eval()).treating("eap-ig")
    task, circuit = ids_task(4), half_of(model)
    for ablation in ("resample", "mean"):
        found = worst_case(circuit, model, task, ablation=ablation)
        by_hand = literal(model, task, circuit, ablation=ablation)
        assert found.divergence == pytest.approx(by_hand, rel=1e-3, abs=1e-6)

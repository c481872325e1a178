"""Recovery and divergence with everything outside the circuit taken from other prompts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from golden_heads import every_head, golden_model, golden_task, literal_logits, margins, outputs, stored

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.discovery.heads.interventions import Donor
from assay.execution.ablation import Setting
from assay.metrics import measure
from assay.models import Model
from assay.tasks import PairTask


@pytest.fixture(scope="module")
def model() -> Model:
    return golden_model()


@pytest.fixture(scope="module")
def task() -> PairTask:
    return golden_task()


@pytest.fixture(scope="module")
def circuit(model: Model) -> Circuit:
    return Circuit.from_heads(model.graph, stored()["circuit"])


def test_the_scrubbed_margins_are_those_of_literal_runs(
    model: Model, task: PairTask, circuit: Circuit
) -> None:
    found = measure(circuit, model, task, "scrub-recovery", draws=3, seed=7, batch_size=9)
    divergence = measure(circuit, model, task, "scrub-kl", draws=3, seed=7)
    setting = Setting(model=model, task=task, reference=task, batch_size=24, seed=7)
    clean = outputs(model, task.clean)
    rest = [head for head in every_head(model) if head not in circuit.kept_heads()]
    full = literal_logits(model, task, [], clean)
    expected, nats = [], []
    for setting.draw in range(3):
        donors = torch.from_numpy(Donor(key="resample-donor").donors_of(setting))
        logits = literal_logits(model, task, rest, [z[donors] for z in clean])
        expected.append(margins(logits, task))
        nats.append((full.softmax(1) * (full.log_softmax(1) - logits.log_softmax(1))).sum(1).numpy())
    np.testing.assert_allclose(found.components["scrub"], np.mean(expected, axis=0), rtol=1e-8)
    by_draw = [one.sum() / margins(full, task).sum() for one in expected]
    assert found.value == pytest.approx(np.mean(by_draw), rel=1e-8)
    assert found.details["value_by_draw"] == pytest.approx(by_draw, rel=1e-8)
    assert found.details["sd_over_draws"] == pytest.approx(np.std(by_draw, ddof=1), rel=1e-6)
    assert divergence.value == pytest.approx(np.mean(nats), rel=1e-8)
    assert (divergence.unit, divergence.details["draws"]) == ("nats", 3)


@pytest.mark.parametrize("kind", ["heads", "edges"])
def test_nothing_is_scrubbed_outside_the_whole_model(model: Model, task: PairTask, kind: str) -> None:
    whole = (
        Circuit.from_heads(model.graph, every_head(model)) if kind == "heads" else Circuit.full(model.graph)
    )
    assert measure(whole, model, task, "scrub-recovery", draws=1).value == pytest.approx(1, abs=1e-9)
    assert measure(whole, model, task, "scrub-kl", draws=1).value == pytest.approx(0, abs=1e-9)


def test_an_empty_circuit_of_edges_sees_the_donor_alone(model: Model, task: PairTask) -> None:
    found = measure(Circuit.empty(model.graph), model, task, "scrub-recovery", draws=1)
    setting = Setting(model=model, task=task, reference=task, batch_size=24)
    donors = torch.from_numpy(Donor(key="resample-donor").donors_of(setting))
    plain = literal_logits(model, task, [], outputs(model, task.clean))
    np.testing.assert_allclose(found.components["scrub"], margins(plain[donors], task), rtol=1e-8)


def test_prompts_without_a_donor_of_their_answer_are_left_out(
    model: Model, task: PairTask, circuit: Circuit
) -> None:
    found = measure(circuit, model, task, "scrub-recovery", same_answer=True)
    counts = task.answers[:, 0].unique(return_counts=True)[1]
    alone = int((counts == 1).sum())
    assert alone > 0
    assert found.n_excluded == found.details["without_donor"] == alone
    nobody = replace(task, answers=torch.arange(task.n)[:, None], wrong=torch.full((task.n, 1), 90))
    empty = measure(circuit, model, nobody, "scrub-recovery", same_answer=True)
    assert (empty.reason, math.isnan(empty.value)) == ("no_valid_prompt", True)


def test_a_prompt_alone_in_its_length_is_left_out_and_counted(
    model: Model, task: PairTask, circuit: Circuit
) -> None:
    lengths = task.lengths.clone()
    lengths[5] -= 1
    ragged = replace(task, lengths=lengths, positions=lengths - 1)
    found = measure(circuit, model, ragged, "scrub-kl")
    assert (found.n, found.n_excluded, found.details["without_donor"]) == (task.n - 1, 1, 1)
    assert np.flatnonzero(np.isnan(found.per_example)).tolist() == [5]
    with pytest.raises(InputError, match="draws is 0; expected at least 1"):
        measure(circuit, model, task, "scrub-kl", draws=0)

"""How a mixture of experts is reported: choices of experts that the corrupted input changes."""

import warnings

import pytest
import torch
import transformers
from tiny_decoders import mixture

from assay.core.errors import AssayWarning
from assay.discovery.edges import discover
from assay.discovery.edges.routing import routing_change
from assay.models import Model, load_model
from assay.tasks import PairTask


N, LENGTH = 5, 6


@pytest.fixture(scope="module", params=["mixtral", "olmoe"])
def model(request: pytest.FixtureRequest) -> Model:
    config = mixture(request.param, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return load_model(transformers.AutoModelForCausalLM.from_config(config).double().eval())


@pytest.fixture(scope="module")
def task() -> PairTask:
    generator = torch.Generator().manual_seed(3)
    clean, corrupted = torch.randint(2, 61, (2, N, LENGTH), generator=generator)
    answers = torch.tensor([[[3]], [[4]]]).expand(2, N, 1)
    lengths = torch.tensor([6, 4, 5, 6, 3])
    return PairTask(clean=clean, corrupted=corrupted, answers=answers[0], wrong=answers[1], lengths=lengths)


def test_changed_choices_are_those_of_the_router_logits(model: Model, task: PairTask) -> None:
    """Counted token by token, from the logits that transformers returns."""
    changed = 0
    for row in range(N):
        length = int(task.lengths[row])
        chosen = []
        for ids in (task.clean, task.corrupted):
            output = model.module(ids[row : row + 1, :length], output_router_logits=True)
            chosen.append(
                [[set(token.topk(2).indices.tolist()) for token in each] for each in output.router_logits]
            )
        for layer in range(model.n_layers):
            changed += sum(chosen[0][layer][token] != chosen[1][layer][token] for token in range(length))
    choices = int(task.lengths.sum()) * model.n_layers
    assert 0 < changed < choices
    for size in (1, 2, 5):
        assert routing_change(model, task, size) == {"choices": choices, "changed": changed}
    found = discover(model, task, steps=1).details
    assert found["routing"] == {"choices": choices, "changed": changed}


def test_the_same_input_changes_no_choice(model: Model, task: PairTask) -> None:
    same = PairTask(
        clean=task.clean,
        corrupted=task.clean,
        answers=task.answers,
        wrong=task.wrong,
        lengths=task.lengths,
    )
    assert routing_change(model, same, 2)["changed"] == 0


def test_automatic_steps_stop_where_the_edges_hold_whatever_the_gap(
    model: Model, task: PairTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jumps of the routing leave a gap that no number of steps closes."""
    monkeypatch.setattr("assay.discovery.edges.running.TOLERANCE", 0.0)
    monkeypatch.setattr("assay.discovery.edges.running._moved", lambda model, before, after: 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AssayWarning)
        found = discover(model, task, steps="auto").details
    assert found["steps"] == 3
    assert found["completeness_gap"] > 0

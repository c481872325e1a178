"""Planted language models: their answers are right, their truth is what cutting edges shows."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.discovery.edges import discover
from assay.execution import run_circuit, run_model
from assay.models import planted as package
from assay.models.planted import Planted, planted_model, planted_names
from assay.models.planted.programs import PROGRAMS
from assay.tasks import PairTask


PLAIN = tuple(f"{program}/gpt2/{extras}" for program in PROGRAMS for extras in ("bare", "interfering"))
HARD = (*(f"{program}/gpt2/saturated" for program in PROGRAMS), "duplicate/gpt2/vote")
# Thousands of single cuts: the largest stays for `-m slow`.
BARE = [
    pytest.param(f"{program}/gpt2/bare", marks=[pytest.mark.slow] * (program == "two-hop"))
    for program in PROGRAMS
]


@cache
def build(name: str, seed: int = 0) -> Planted:
    return planted_model(name, seed=seed, dtype=torch.float64)


@cache
def task_of(name: str, n: int) -> PairTask:
    drawn = build(name).examples(n)
    return PairTask(
        clean=drawn.clean,
        corrupted=drawn.corrupted,
        answers=drawn.answers,
        wrong=drawn.wrong,
        fields=drawn.fields,
        name=name,
    )


def margins(task: PairTask, logits: Tensor) -> Tensor:
    assert task.wrong is not None
    return logits.gather(1, task.answers)[:, 0] - logits.gather(1, task.wrong).max(1).values


def truth_and_scores(name: str, method: str, n: int = 16) -> tuple[Tensor, Tensor]:
    """Whether each edge of the graph is true, and its |score|."""
    planted = build(name)
    circuit = Circuit.from_edges(planted.model.graph, planted.edges)
    scores = discover(planted.model, task_of(name, n), method, objective="logit_diff").values
    valid = planted.model.graph.valid
    return circuit.mask[valid], scores[valid].abs()


def test_equal_seeds_give_equal_weights_and_another_seed_the_same_circuit() -> None:
    def weights(seed: int) -> Tensor:
        module = planted_model("induction/gpt2/interfering", seed=seed).model.module
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    torch.manual_seed(1)
    assert sorted(planted_names()) == sorted((*PLAIN, *HARD))
    before = torch.random.get_rng_state()
    assert torch.equal(weights(0), weights(0))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(weights(0), weights(1))
    assert (
        planted_model("induction/gpt2/interfering", seed=1).edges == build("induction/gpt2/interfering").edges
    )


@pytest.mark.parametrize("name", [*PLAIN, *HARD])
def test_answers_are_right(name: str) -> None:
    planted, task = build(name), task_of(name, 128)
    with torch.no_grad():
        logits = planted.model.module(task.clean).logits[:, -1]
    assert (margins(task, logits) > 0).double().mean() >= 0.99
    if not name.startswith("greater-than"):  # which raises several digits
        assert (logits.argmax(1) == task.answers[:, 0]).double().mean() >= 0.99


Words = Sequence[str]


def _after(words: Words, sought: str) -> str:
    """What stands behind the first `sought`."""
    return words[list(words).index(sought) + 1]


def _two_hop(words: Words) -> str:
    facts = dict(zip(words[1:-1:3], words[2:-1:3], strict=True))
    return facts[facts[words[-1]]]


# Each program once more, in plain Python over the words.
LITERAL: dict[str, Callable[[Words], str]] = {
    "induction": lambda words: _after(words, words[-1]),
    "duplicate": lambda words: "yes" if words[-1] in words[:-1] else "no",
    "two-hop": _two_hop,
}


@pytest.mark.parametrize("program", sorted(LITERAL))
def test_examples_agree_with_the_program_in_plain_words(program: str) -> None:
    planted = build(f"{program}/gpt2/bare")
    drawn = planted.examples(200, seed=5)

    def said(ids: Tensor) -> list[list[str]]:
        return [[planted.program.tokens[token] for token in row] for row in ids.tolist()]

    for clean, corrupted, (answer,), (wrong,) in zip(
        *map(said, (drawn.clean, drawn.corrupted, drawn.answers, drawn.wrong)), strict=True
    ):
        assert LITERAL[program](clean) == answer
        assert LITERAL[program](corrupted) == wrong


def test_greater_than_pairs_change_one_of_their_two_answers() -> None:
    drawn = build("greater-than/gpt2/bare").examples(200, seed=5)
    digits = drawn.fields["digit"], drawn.fields["corrupted.digit"]
    for clean, corrupted, answer, wrong in zip(
        *digits, (drawn.answers[:, 0] - 1).tolist(), (drawn.wrong[:, 0] - 1).tolist(), strict=True
    ):
        assert answer > clean >= wrong
        assert (answer > corrupted) == (wrong > corrupted)


def test_the_wires_of_induction_by_hand() -> None:
    assert set(PROGRAMS["induction"](1.0).wires()) == {
        ("input", "previous", "v"),
        ("input", "induction", "q"),
        ("previous", "induction", "k"),
        ("input", "induction", "v"),
        ("induction", "logits", ""),
    }
    assert build("induction/gpt2/interfering").edges == (
        "input->a0.h0.v",
        "input->a2.h0.q",
        "input->a2.h0.v",
        "a0.h0->a2.h0.k",
        "a2.h0->logits",
    )


@pytest.mark.parametrize("name", [*PLAIN, *HARD])
def test_the_truth_file_is_what_the_builder_derives(name: str) -> None:
    planted, file = build(name), f"{name.replace('/', '-')}.json"
    truth = json.loads((Path(package.__file__).parent / "truth" / file).read_text(encoding="utf-8"))
    assert (truth["name"], truth["graph"]) == (name, planted.model.graph.fingerprint)
    assert truth["edges"] == list(planted.edges)


@pytest.mark.parametrize("name", [*PLAIN, *HARD])
def test_the_true_edges_alone_keep_the_behaviour(name: str) -> None:
    model, task = build(name).model, task_of(name, 64)
    circuit = Circuit.from_edges(model.graph, build(name).edges)
    alone = margins(task, run_circuit(circuit, model, task))
    empty = margins(task, run_circuit(Circuit.from_edges(model.graph, []), model, task)).mean()
    full = margins(task, run_model(model, task)).mean()
    assert (alone > 0).double().mean() >= 0.98
    assert float((alone.mean() - empty) / (full - empty)) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", BARE)
def test_cutting_a_true_edge_hurts_and_cutting_another_does_not(name: str) -> None:
    true, damage = truth_and_scores(name, "exact", n=8)
    full = margins(task_of(name, 8), run_model(build(name).model, task_of(name, 8))).mean()
    assert damage[true].min() > 0.3 * full
    assert damage[~true].max() < 0.02 * full


def test_a_flat_softmax_hides_edges_from_the_gradient_at_the_clean_input() -> None:
    true, local = truth_and_scores("duplicate/gpt2/saturated", "eap")
    _, integrated = truth_and_scores("duplicate/gpt2/saturated", "eap-ig-inputs")
    _, exact = truth_and_scores("duplicate/gpt2/saturated", "exact", n=8)
    assert roc_auc_score(true, local) < 0.8
    assert roc_auc_score(true, integrated) == 1
    assert roc_auc_score(true, exact) == 1


def test_a_majority_hides_its_voters_from_single_cuts() -> None:
    name = "duplicate/gpt2/vote"
    true, exact = truth_and_scores(name, "exact")
    _, integrated = truth_and_scores(name, "eap-ig-inputs")
    full = margins(task_of(name, 16), run_model(build(name).model, task_of(name, 16))).mean()
    assert int((exact[true] < 0.2 * full).sum()) == 9  # query, key and output of each of three voters
    assert integrated[true].min() > 0.1 * full
    assert roc_auc_score(true, integrated) == 1


# ---------------------------------------------------------------------------------------------------- errors


def test_models_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"planted model 'inductoin/.*; did you mean 'induction/"):
        planted_model("inductoin/gpt2/bare")
    with pytest.raises(InputError, match="n is 0"):
        build("induction/gpt2/bare").examples(0)

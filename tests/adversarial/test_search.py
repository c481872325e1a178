"""Climbs over a grammar, and the whole search."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from single_runs import literal

from assay.analyses.worst_case import sample_pairs, search, search_worst
from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.search import Ascent, Climbs
from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.core.random import stream
from assay.models import Model, load_model
from assay.tasks import IndirectObject, PairTask, Prompt, Tokens, load_task


NAMES = ("Mary", "John", "Lisa", "Mark", "Paul")
OPTIONS: dict[str, Any] = {
    "names": NAMES,
    "places": ["store", "garden", "school"],
    "objects": ["ring", "bone", "kiss"],
}


@pytest.fixture(scope="module")
def grammar(mini_tokenizer: Any) -> IndirectObject:
    return IndirectObject(Tokens(mini_tokenizer), **OPTIONS)


def score(clean: Prompt, corrupted: Prompt) -> float:
    """A known function of the fillers."""
    weights = dict(zip(NAMES, (3.0, 2.0, 1.5, 1.0, 5.0), strict=True))
    x, y = clean.values, corrupted.values
    return (
        weights[x["IO"]] + 0.5 * weights[x["S"]] * (x["place"] == "garden")
        + 10 * weights[y["name1"]] + 5 * weights[y["name2"]] + weights[y["name3"]]
        + (x["object"] == "bone") * (y["object"] == "kiss")
    )  # fmt: skip


class Scored:
    """`score` of every pair, with what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.batches: list[int] = []

    def __call__(self, clean: Sequence[Prompt], corrupted: Sequence[Prompt]) -> np.ndarray:
        self.asked += [(x.text, y.text) for x, y in zip(clean, corrupted, strict=True)]
        self.batches.append(len(clean))
        return np.array([score(x, y) for x, y in zip(clean, corrupted, strict=True)])


def climbs(evaluate: Any, grammar: IndirectObject, restarts: int, seed: int = 0) -> list[Ascent]:
    made = Climbs(evaluate, grammar)
    return [made.climb(stream(seed, f"ascent:{restart}")) for restart in range(restarts)]


def test_a_climb_ends_where_no_slot_leads_further_up(grammar: IndirectObject) -> None:
    for climb in climbs(Scored(), grammar, 4, seed=3):
        assert climb.finished
        assert climb.value == score(climb.clean, climb.corrupted) >= climb.start
        for side in (climb.clean, climb.corrupted):
            corrupted = side is climb.corrupted
            for variants in grammar.variants(dict(side.values), corrupted=corrupted).values():
                for each in variants:
                    other = grammar.render(each)
                    pair = (climb.clean, other) if corrupted else (other, climb.corrupted)
                    assert score(*pair) <= climb.value
    # Paul gives to, Mary gives in the garden; then Paul, Mary, John; a bone and a kiss.
    best = max(climb.value for climb in climbs(Scored(), grammar, 8))
    assert best == (5 + 0.5 * 3) + (10 * 5 + 5 * 3 + 2) + 1


def test_no_pair_is_evaluated_twice_and_the_limit_is_kept(grammar: IndirectObject) -> None:
    evaluate = Scored()
    found = Climbs(evaluate, grammar)
    climb = found.climb(stream(2, "ascent:0"), limit=20)
    assert len(evaluate.asked) == len(set(evaluate.asked)) == len(found.pairs) == len(found.values) == 20
    assert [(x.text, y.text) for x, y in found.pairs] == evaluate.asked
    assert not climb.finished
    drawn = {prompt.text for prompt in grammar.draw(4000, stream(0, "clean"))}
    assert {clean.text for clean, _ in found.pairs} <= drawn
    again = Scored()
    Climbs(again, grammar).climb(stream(2, "ascent:0"), limit=15)
    assert again.asked == evaluate.asked[:15]


def test_of_a_large_slot_some_fillers_are_evaluated(
    grammar: IndirectObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Scored()
    monkeypatch.setattr(search, "LARGE_SLOT", 1)
    monkeypatch.setattr(search, "TRIED", 1)
    climbs(evaluate, grammar, 1)
    assert max(evaluate.batches) == 1


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def circuit(mini: Model) -> Circuit:
    return Circuit.random(mini.graph, 300, seed=1)


def test_the_search_finds_worse_pairs_than_chance_and_says_how(mini: Model, circuit: Circuit) -> None:
    task = load_task("greater-than", mini, n=2, nouns=["plan", "study", "tour", "test", "trip", "attack"])
    found, again = (search_worst(circuit, mini, task, budget=300, restarts=2, k=4) for _ in range(2))
    assert (found.n_evaluations <= 300, len(found.ascents)) == (True, 2)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["max"] == record["pairs"][0]["divergence"] == found.max
    assert "neither percentiles nor certificates" in record["note"]
    assert found.worst[0].clean in str(found)
    assert {**again.to_dict(), "seconds": 0} == {**found.to_dict(), "seconds": 0}
    values = [pair.divergence for pair in found.worst]
    assert values == sorted(values, reverse=True)
    # The pair is run anew, in another batch: equal up to rounding.
    assert found.max == values[0] >= max(climb.value for climb in found.ascents) * (1 - 1e-5)
    sample = sample_pairs(task, "iid", 300, seed=1)
    drawn = PairEvaluator(mini, circuit, sample.clean, sample.corrupted).pairs(*np.indices((2, 300))[1])
    assert found.max > drawn.divergence.max()
    for pair in found.worst:
        ids = [torch.tensor([task.tokenizer(text)["input_ids"]]) for text in (pair.clean, pair.corrupted)]
        one = PairTask(clean=ids[0], corrupted=ids[1], answers=torch.tensor([[1]]))
        assert pair.divergence == pytest.approx(literal(mini, one, circuit)[0], rel=1e-3)


def test_what_cannot_be_searched_is_refused(mini: Model, circuit: Circuit) -> None:
    task = replace(load_task("ioi", mini, n=3), grammar=None)
    with pytest.raises(InputError, match="'ioi' has none to vary; worst_case runs every combination"):
        search_worst(circuit, mini, task, budget=40, restarts=1)
    with pytest.raises(InputError, match="budget is 7; expected at least 8"):
        search_worst(circuit, mini, "ioi", budget=7, restarts=2)

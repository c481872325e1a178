"""Climbs over a grammar, their first-order ranking, and the whole search."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.analyses.worst_case import PairSample, grammar_ascent, matrix_search, sample_pairs, search_worst
from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.first_order import FirstOrder
from assay.analyses.worst_case.inputs import prompt_set
from assay.circuits import Circuit
from assay.core.errors import InputError, NonFiniteError
from assay.execution import run_circuit
from assay.models import Model, load_model
from assay.tasks import PairTask, Prompt, Tokens, load_task
from assay.tasks.indirect_object import IndirectObject


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


# ---------------------------------------------------------------------------------------------- climbs


def test_a_climb_ends_where_no_slot_leads_further_up(grammar: IndirectObject) -> None:
    evaluate = Scored()
    found = grammar_ascent(evaluate, grammar, restarts=4, seed=3)
    for climb in found.ascents:
        assert climb.finished
        assert climb.value == score(climb.clean, climb.corrupted) >= climb.start
        for side in (climb.clean, climb.corrupted):
            corrupted = side is climb.corrupted
            for slot in grammar.slots(dict(side.values), corrupted=corrupted):
                for each in grammar.variants(dict(side.values), slot, corrupted=corrupted):
                    other = grammar.render(each)
                    pair = (climb.clean, other) if corrupted else (other, climb.corrupted)
                    assert score(*pair) <= climb.value


def test_climbs_find_the_best_of_all_pairs(grammar: IndirectObject) -> None:
    found = grammar_ascent(Scored(), grammar, restarts=8, seed=0)
    # Paul gives to, Mary gives in the garden; then Paul, Mary, John; a bone and a kiss.
    assert max(climb.value for climb in found.ascents) == (5 + 0.5 * 3) + (10 * 5 + 5 * 3 + 2) + 1


def test_every_prompt_on_the_way_is_one_of_the_grammar(grammar: IndirectObject) -> None:
    found = grammar_ascent(Scored(), grammar, restarts=2, seed=1)
    drawn = {grammar.render(values).text for values, _ in grammar.support()}
    assert {clean.text for clean, _ in found.pairs} <= drawn
    for _, corrupted in found.pairs:
        assert len({corrupted.values[name] for name in ("name1", "name2", "name3")}) == 3


def test_no_pair_is_evaluated_twice_and_the_budget_is_kept(grammar: IndirectObject) -> None:
    evaluate = Scored()
    found = grammar_ascent(evaluate, grammar, restarts=5, budget=40, seed=2)
    assert len(evaluate.asked) == len(set(evaluate.asked)) == found.n_evaluations == len(found.values) == 40
    assert [(x.text, y.text) for x, y in found.pairs] == evaluate.asked
    assert len(found.ascents) == 5  # the budget is shared out, no restart goes without
    assert not all(climb.finished for climb in found.ascents)


def test_climbs_depend_on_the_seed_alone(grammar: IndirectObject) -> None:
    runs = [Scored() for _ in range(3)]
    for run, seed in zip(runs, (0, 0, 1), strict=True):
        grammar_ascent(run, grammar, restarts=2, seed=seed)
    assert runs[0].asked == runs[1].asked != runs[2].asked
    longer = Scored()
    grammar_ascent(longer, grammar, restarts=3, seed=0)
    assert longer.asked[: len(runs[0].asked)] == runs[0].asked


def test_of_a_large_slot_only_the_promising_fillers_are_evaluated(grammar: IndirectObject) -> None:
    wanted = []

    def rank(pair: tuple[Prompt, Prompt], side: str, variants: Sequence[Prompt]) -> np.ndarray:
        assert side in ("clean", "corrupted")
        scores = np.arange(len(variants), dtype=np.float64)
        wanted.append({variants[-1].text, variants[-2].text})
        return scores

    evaluate = Scored()
    grammar_ascent(evaluate, grammar, restarts=1, seed=0, rank_fillers=rank, large=2, tried=2)
    shown = {text for pair in evaluate.asked for text in pair}
    assert all(texts <= shown for texts in wanted)
    assert max(evaluate.batches) == 2
    blind = Scored()
    grammar_ascent(blind, grammar, restarts=1, seed=0, large=1, tried=1)
    assert max(blind.batches) == 1


def test_climbs_refuse_what_they_cannot_do(grammar: IndirectObject, mini_tokenizer: Any) -> None:
    with pytest.raises(InputError, match="restarts is 0; expected at least 1"):
        grammar_ascent(Scored(), grammar, restarts=0)
    with pytest.raises(InputError, match="budget is 3; expected at least 5"):
        grammar_ascent(Scored(), grammar, restarts=5, budget=3)
    with pytest.raises(NonFiniteError, match=r"clean 'Then, .* and corrupted 'Then, .* is nan"):
        grammar_ascent(lambda x, y: np.full(len(x), np.nan), grammar)


# ---------------------------------------------------------------------------------------- first order


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def circuit(mini: Model) -> Circuit:
    return Circuit.random(mini.graph, 300, seed=1)


def test_the_gradient_is_that_of_the_divergence(mini: Model, circuit: Circuit) -> None:
    """Values are those of the evaluator; slopes those of finite differences along the embedding."""
    task = load_task("ioi", mini, n=3)
    assert task.grammar is not None
    ranking = FirstOrder(mini, circuit, task.grammar)
    values, gradients = ranking.gradients(task.clean, task.corrupted)
    sample = sample_pairs(task, "file")
    exact = PairEvaluator(mini, circuit, sample.clean, sample.corrupted).pairs(np.arange(3), np.arange(3))
    np.testing.assert_allclose(values.numpy(), exact.divergence, rtol=1e-3, atol=1e-5)
    embedding = mini.module.get_input_embeddings()
    for side, tokens in (("clean", task.clean), ("corrupted", task.corrupted)):
        token = int(tokens[0, 2])
        direction = torch.randn(embedding.weight.shape[1], generator=torch.Generator().manual_seed(0))
        slope = float(gradients[side][0, tokens[0] == token].sum(0) @ direction)
        moved = [_moved(ranking, task, side, token, step * direction) for step in (4e-3, -4e-3)]
        assert (moved[0] - moved[1]) / 8e-3 == pytest.approx(slope, rel=0.02, abs=5e-4)


def _moved(ranking: FirstOrder, task: PairTask, side: str, token: int, change: torch.Tensor) -> float:
    """KL of pair 0 with one token's embedding moved on one side."""
    passes = []

    def shift(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        passes.append(1)
        here = ("clean", "corrupted")[len(passes) - 1] == side  # the clean pass comes first
        return output + here * (args[0] == token)[..., None] * change

    handle = ranking.model.module.get_input_embeddings().register_forward_hook(shift)
    try:
        values, _ = ranking.gradients(task.clean[:1], task.corrupted[:1])
    finally:
        handle.remove()
    assert len(passes) == 2
    return float(values[0])


def test_variants_are_ranked_by_their_change_along_the_gradient(mini: Model, circuit: Circuit) -> None:
    task = load_task("ioi", mini, n=1)
    grammar = task.grammar
    assert grammar is not None
    sample = sample_pairs(task, "iid", 1, seed=4)
    assert sample.clean.prompts is not None
    assert sample.corrupted.prompts is not None
    pair = (sample.clean.prompts[0], sample.corrupted.prompts[0])
    ranking = FirstOrder(mini, circuit, grammar)
    variants = [
        grammar.render(each) for each in grammar.variants(dict(pair[1].values), "place", corrupted=True)
    ]
    scores = ranking(pair, "corrupted", variants)
    _, gradients = ranking.gradients(sample.clean.tokens, sample.corrupted.tokens)
    table = mini.module.get_input_embeddings().weight.detach()
    ids = prompt_set(variants, grammar.tokens).tokens
    change = table[ids] - table[sample.corrupted.tokens]
    np.testing.assert_allclose(
        scores, (change * gradients["corrupted"]).sum((1, 2)).numpy(), rtol=1e-3, atol=1e-6
    )
    assert not any(parameter.grad is not None for parameter in mini.module.parameters())


# ------------------------------------------------------------------------------------------ the search


def test_the_search_finds_worse_pairs_than_chance_and_says_how(mini: Model, circuit: Circuit) -> None:
    task = load_task("greater-than", mini, n=2, nouns=["plan", "study", "tour", "test", "trip", "attack"])
    found = search_worst(circuit, mini, task, budget=300, restarts=2, k=4, seed=0)
    assert found.climbing_evaluations <= 210 < found.n_evaluations <= 300
    assert len(found.ascents) == 2
    values = [pair.divergence for pair in found.worst]
    assert values == sorted(values, reverse=True)
    # The pair is run anew, in another batch: equal up to rounding.
    assert found.max == values[0] >= max(climb.value for climb in found.ascents) * (1 - 1e-5)
    sample = sample_pairs(task, "iid", 300, seed=1)
    drawn = PairEvaluator(mini, circuit, sample.clean, sample.corrupted).pairs(*np.indices((2, 300))[1])
    assert found.max > drawn.divergence.max()
    for pair in found.worst:
        again = encoded_pair(pair.clean, pair.corrupted, task)
        logits = run_circuit(mini, again, circuit, ablation="resample").double().log_softmax(-1)
        full = run_circuit(mini, again, Circuit.full(mini.graph)).double().log_softmax(-1)
        assert pair.divergence == pytest.approx(float((full.exp() * (full - logits)).sum()), rel=1e-3)


def encoded_pair(clean: str, corrupted: str, task: PairTask) -> PairTask:
    ids = [torch.tensor([task.tokenizer(text)["input_ids"]]) for text in (clean, corrupted)]
    return PairTask(clean=ids[0], corrupted=ids[1], answers=torch.tensor([[1]]))


def test_the_document_is_plain_and_complete(mini: Model, circuit: Circuit) -> None:
    found = search_worst(circuit, mini, "ioi", budget=150, restarts=1, k=2, seed=0)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["max"] == record["pairs"][0]["divergence"] == found.max
    assert 105 <= record["n_evaluations"] <= 150
    assert {"rank", "divergence", "empty", "clean", "corrupted", "differs", "top"} <= set(record["pairs"][0])
    assert "by search" in str(found)
    assert found.worst[0].clean in str(found)
    assert "neither percentiles nor certificates" in record["note"]
    again = search_worst(circuit, mini, "ioi", budget=150, restarts=1, k=2, seed=0).to_dict()
    assert {**again, "seconds": 0} == {**found.to_dict(), "seconds": 0}


def test_a_file_is_searched_over_its_own_rows(mini: Model, circuit: Circuit, tmp_path: Path) -> None:
    drawn = load_task("ioi", mini, n=12, seed=5)
    assert drawn.texts is not None
    assert drawn.corrupted_texts is not None
    lines = [
        {"clean": clean, "corrupted": corrupted, "answers": [" Mary"]}
        for clean, corrupted in zip(drawn.texts, drawn.corrupted_texts, strict=True)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = search_worst(circuit, mini, path, budget=200, restarts=1, k=3)
    assert found.ascents == ()
    assert found.matrix_shape == (12, 12)
    assert found.n_evaluations == 144  # all of them
    sample: PairSample = sample_pairs(load_task(path, mini), "all", 12, 12)
    table = PairEvaluator(mini, circuit, sample.clean, sample.corrupted).table(slice(None), slice(None))
    assert found.max == pytest.approx(table.divergence.max(), rel=1e-4)
    assert {pair.clean for pair in found.worst} <= set(drawn.texts)


def test_a_search_can_go_on_from_another() -> None:
    table = np.add.outer(np.arange(8.0), np.arange(9.0))
    asked: list[tuple[int, int]] = []

    def evaluate(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        asked.extend(zip(rows.tolist(), columns.tolist(), strict=True))
        return np.asarray(table[rows, columns])

    first = matrix_search(evaluate, 8, 9, 20, seed=1)
    both = matrix_search(evaluate, 8, 9, 30, start=first, seed=1)
    assert len(asked) == len(set(asked)) == both.n_evaluations == 50
    np.testing.assert_array_equal(both.pairs[:20], first.pairs)
    assert matrix_search(evaluate, 8, 9, 0, start=first).n_evaluations == 20


def test_bad_counts_of_a_search_are_named(mini: Model, circuit: Circuit) -> None:
    with pytest.raises(InputError, match="budget is 7; expected at least 8"):
        search_worst(circuit, mini, "ioi", budget=7, restarts=2)
    with pytest.raises(InputError, match="k is 0"):
        search_worst(circuit, mini, "ioi", k=0)

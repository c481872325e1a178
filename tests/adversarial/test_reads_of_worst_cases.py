"""Worst cases of prompts that are read at several positions: the mean over the reads of a pair."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reads import several_reads
from torch import nn
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from assay.analyses.worst_case import (
    WorstCase,
    explain,
    run_sample,
    sample_pairs,
    search_worst,
    worst_case,
)
from assay.analyses.worst_case.inputs import PromptSet, stacked
from assay.analyses.worst_case.page import worst_case_page
from assay.analyses.worst_case.pair_divergence import get_divergence
from assay.analyses.worst_case.reads import likeliest_differs, pair_divergences, read_divergences
from assay.analyses.worst_case.search import reads_several
from assay.circuits import Circuit
from assay.core.errors import InputError, TokenizationError
from assay.execution import get_ablation, run_circuit, run_model
from assay.execution.ablation import MeasuredOn
from assay.models import Model, load_model
from assay.page.html import render_pages
from assay.tasks import PairTask, load_task


@pytest.fixture(scope="module")
def tiny(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("gpt2", torch.float64))


@pytest.fixture(scope="module")
def circuit(tiny: Model) -> Circuit:
    draw = torch.rand(tiny.graph.valid.shape, generator=torch.Generator().manual_seed(0))
    return Circuit(graph=tiny.graph, mask=tiny.graph.valid & (draw < 0.6))


@pytest.fixture(scope="module")
def task(tiny: Model) -> PairTask:
    return several_reads(tiny, ragged=True)


@pytest.fixture(scope="module")
def aligned(tiny: Model) -> PairTask:
    """Prompts that are all read at the same two positions, so that any two make a pair."""
    plain = several_reads(tiny, n=5, ragged=False)
    assert plain.wrong is not None
    places = torch.tensor([[2, 6]]).repeat(5, 1)
    return replace(plain, positions=places, answers=plain.answers[:, :2], wrong=plain.wrong[:, :2])


@pytest.fixture(scope="module")
def capitals(
    tmp_path_factory: pytest.TempPathFactory, shared: Callable[[str], Path]
) -> tuple[Model, PairTask]:
    """Answers of several tokens, drawn by a grammar and read token by token, on a random model."""
    tokenizer = AutoTokenizer.from_pretrained(shared("data/gpt2_tokenizer"))
    path = tmp_path_factory.mktemp("capitals")
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16)).save_pretrained(path)
    model = load_model(path)
    capitals = {"France": "Paris", "Peru": "Bamako", "Spain": "Bamaga", "Italy": "Rome", "Chile": "Lima"}
    return model, load_task("capital-country", model, n=12, capitals=capitals, answer_tokens="each")


def literal_read(
    model: Model, task: PairTask, circuit: Circuit, pair: tuple[int, int], place: int, **options: Any
):
    """Log-probabilities of model, circuit and empty circuit on one pair at one position: runs of its own."""
    clean, corrupted = pair
    one = PairTask(
        clean=task.clean[clean : clean + 1],
        corrupted=task.corrupted[corrupted : corrupted + 1],
        answers=task.answers[clean : clean + 1, 0].clamp(min=0),
        lengths=task.lengths[clean : clean + 1],
        positions=torch.tensor([place]),
    )
    runs = (
        run_model(model, one),
        run_circuit(model, one, circuit, **options),
        run_circuit(model, one, Circuit.empty(circuit.graph), **options),
    )
    return [logits[0].double().log_softmax(0) for logits in runs]


def literal(
    model: Model, task: PairTask, circuit: Circuit, pairs: list[tuple[int, int]], **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean KL over the reads of each pair, of circuit and empty circuit, and whether any argmax differs."""
    found = []
    for clean, corrupted in pairs:
        reads = []
        for place in task.positions[clean].tolist():
            if place < 0:
                continue
            full, kept, empty = literal_read(model, task, circuit, (clean, corrupted), place, **options)
            reads.append(
                [float((full.exp() * (full - other)).sum()) for other in (kept, empty)]
                + [int(full.argmax()) != int(kept.argmax())]
            )
        columns = list(zip(*reads, strict=True))
        found.append([sum(columns[0]) / len(reads), sum(columns[1]) / len(reads), any(columns[2])])
    divergence, empty, differs = (np.array(column) for column in zip(*found, strict=True))
    return divergence, empty, differs


def check(worst: WorstCase, expected: tuple[np.ndarray, ...]) -> None:
    np.testing.assert_allclose(worst.divergence.ravel(), expected[0], atol=1e-9)
    np.testing.assert_allclose(worst.empty.ravel(), expected[1], atol=1e-9)
    np.testing.assert_array_equal(worst.argmax_differs.ravel(), expected[2])


# -------------------------------------------------------------------------------------------------- values


def one_sided(positions: list[list[int]], wrong: list[list[list[int]]] | None = None) -> PromptSet:
    n = len(positions)
    return PromptSet(
        tokens=torch.zeros(n, 4, dtype=torch.long),
        lengths=torch.full((n,), 4),
        positions=torch.tensor(positions),
        answers=torch.zeros(n, len(positions[0]), 1, dtype=torch.long),
        wrong=None if wrong is None else torch.tensor(wrong),
        fields={},
    )


def test_the_mean_over_reads_by_hand() -> None:
    # Two words. Read 1: model (3/4, 1/4), circuit (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2.
    # Read 2: the two agree: KL = 0. The second prompt is read once; what stands at the filler does not count.
    model = torch.tensor([[[3.0, 1.0], [1.0, 1.0]], [[3.0, 1.0], [1.0, 9.0]]]).double().log()
    circuit = torch.tensor([[[1.0, 1.0], [2.0, 2.0]], [[1.0, 1.0], [9.0, 1.0]]]).double().log()
    first = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    clean = one_sided([[0, 2], [1, -1]])
    kl = get_divergence("kl")
    np.testing.assert_allclose(pair_divergences(kl, model, circuit, clean), [first / 2, first], rtol=1e-12)
    by_read = read_divergences(kl, model, circuit, clean)
    np.testing.assert_allclose(by_read, [[first, 0], [first, np.nan]], atol=1e-12)
    assert likeliest_differs(model, circuit, clean).tolist() == [False, False]
    assert likeliest_differs(model, model.flip(2), clean).tolist() == [True, True]


def test_reads_without_a_wrong_answer_do_not_count_where_answers_are_compared() -> None:
    # Word 0 against word 1: at read 1 the gap is |2 - 0| = 2; read 2 has no wrong answer.
    model = torch.tensor([[[2.0, 0.0], [5.0, 0.0]]])
    circuit = torch.zeros(1, 2, 2)
    clean = one_sided([[0, 2]], [[[1], [-1]]])
    assert pair_divergences(get_divergence("logit-diff-gap"), model, circuit, clean).tolist() == [2.0]


@pytest.mark.parametrize("ablation", ["resample", "zero", "mean-positional"])
def test_own_pairs_are_a_loop_over_pairs_and_reads(
    tiny: Model, task: PairTask, circuit: Circuit, ablation: str
) -> None:
    protocol = "file" if ablation == "resample" else "inputs"
    worst = worst_case(circuit, tiny, task, protocol, ablation=ablation)
    carried = get_ablation(ablation)
    carried = MeasuredOn(carried, task) if carried.measured else carried
    check(worst, literal(tiny, task, circuit, [(i, i) for i in range(task.n)], ablation=carried))


@pytest.mark.parametrize("ablation", ["resample", "resample-donor"])
def test_all_combinations_are_a_loop_over_pairs_and_reads(
    tiny: Model, aligned: PairTask, circuit: Circuit, ablation: str
) -> None:
    worst = worst_case(circuit, tiny, aligned, "all", ablation=ablation)
    rows = aligned if ablation == "resample" else replace(aligned, corrupted=aligned.clean)
    pairs = [(i, j) for i in range(5) for j in range(5)]
    check(worst, literal(tiny, rows, circuit, pairs))


def test_one_read_twice_is_that_read(
    tiny: Model, circuit: Circuit, ids_task: Callable[..., PairTask]
) -> None:
    once = ids_task(6)
    assert once.wrong is not None
    twice = replace(
        once,
        positions=once.positions[:, None].repeat(1, 2),
        answers=once.answers[:, None].repeat(1, 2, 1),
        wrong=once.wrong[:, None].repeat(1, 2, 1),
    )
    for divergence in ("kl", "logit-diff-gap"):
        one, two = (worst_case(circuit, tiny, each, "all", divergence=divergence) for each in (once, twice))
        np.testing.assert_allclose(two.divergence, one.divergence, atol=1e-9)
        np.testing.assert_allclose(two.empty, one.empty, atol=1e-9)
        np.testing.assert_array_equal(two.argmax_differs, one.argmax_differs)


def test_a_certificate_holds_for_the_means(tiny: Model, aligned: PairTask, circuit: Circuit) -> None:
    worst = worst_case(circuit, tiny, aligned, "file", independent=True)
    bound = worst.certificate(0.5, delta=0.9)
    assert bound.bound in worst.divergence
    assert worst.document is None
    assert "not_certified" in worst_case(circuit, tiny, aligned, "file").warnings


def test_tables_with_and_without_an_axis_of_reads_are_stacked() -> None:
    both = stacked([torch.tensor([[1, 2, 3]]), torch.tensor([4])], -1)
    assert both.tolist() == [[1, 2, 3], [4, -1, -1]]
    answers = stacked([torch.tensor([[[1, 2]], [[3, 4]]]), torch.tensor([[5]])], -1)
    assert answers.tolist() == [[[1, 2]], [[3, 4]], [[5, -1]]]


# ---------------------------------------------------------------------------------- answers of several tokens


def test_a_drawn_corrupted_prompt_keeps_the_answer_of_the_prompt_it_was_made_from(
    capitals: tuple[Model, PairTask],
) -> None:
    model, task = capitals
    sample = sample_pairs(task, "matched", 30, seed=1)
    assert sample.clean.positions.ndim == 2
    assert torch.equal(sample.clean.positions, sample.corrupted.positions)
    several = (sample.clean.positions >= 0).sum(1) > 1
    assert bool(several.any())
    for row in several.nonzero()[:, 0].tolist():
        places = sample.clean.positions[row]
        behind = places[places >= 0][1:]
        assert sample.clean.tokens[row, behind].tolist() == sample.corrupted.tokens[row, behind].tolist()
        # The token behind a read is what was the right answer at the read before.
        answers = sample.clean.answers
        assert answers is not None
        assert sample.clean.tokens[row, behind[0]] == answers[row, 0, 0]
    circuit = Circuit.random(model.graph, 8, seed=0)
    rows = PairTask(
        clean=sample.clean.tokens,
        corrupted=sample.corrupted.tokens,
        answers=sample.clean.answers,  # type: ignore[arg-type]
        lengths=sample.clean.lengths,
        positions=sample.clean.positions,
    )
    drawn, own = run_sample(circuit, model, sample), worst_case(circuit, model, rows, "file")
    np.testing.assert_allclose(drawn.divergence, own.divergence, atol=1e-6)
    assert drawn.certificate(0.8).bound in drawn.divergence


def test_all_combinations_of_different_lengths_are_refused(capitals: tuple[Model, PairTask]) -> None:
    model, task = capitals
    with pytest.raises(TokenizationError, match="needs a single token count"):
        worst_case(Circuit.empty(model.graph), model, task, "all", 30, 30)
    with pytest.raises(InputError, match="tells prompts by their text, reads prompts at one position"):
        worst_case(Circuit.empty(model.graph), model, task, "all", enumerate=True, max_pairs=10**7)


# ------------------------------------------------------------------------------------- what is made of it


def test_the_worst_read_is_shown(tiny: Model, task: PairTask, circuit: Circuit, tmp_path: Path) -> None:
    worst = worst_case(circuit, tiny, task)
    for pair in worst.worst(task.n):
        row = pair.clean_index
        expected = {}
        for place in task.positions[row].tolist():
            if place >= 0:
                full, kept, _ = literal_read(tiny, task, circuit, (row, row), place)
                expected[place] = float((full.exp() * (full - kept)).sum())
        assert {read.position: pytest.approx(read.divergence, abs=1e-9) for read in pair.reads} == expected
        assert pair.reads[0].divergence == max(read.divergence for read in pair.reads)
        full, kept, _ = literal_read(tiny, task, circuit, (row, row), pair.reads[0].position)
        assert [token.id for token in pair.circuit] == kept.sort(descending=True).indices[:3].tolist()
        at = task.positions[row].tolist().index(pair.reads[0].position)
        assert pair.answer is not None
        assert pair.answer.id == int(task.answers[row, at, 0])
    document = worst.to_dict()
    most = document["worst"][0]["reads"][0]
    shown = render_pages([worst_case_page(document)])
    assert f"reads; the worst, below, is at token {most['position']}: " in shown


def test_a_saved_result_comes_back(tiny: Model, task: PairTask, circuit: Circuit, tmp_path: Path) -> None:
    worst = worst_case(circuit, tiny, task)
    path = worst.save(tmp_path / "worst.safetensors")
    loaded = WorstCase.load(path, model=tiny, circuit=circuit)
    assert torch.equal(loaded.sample.clean.positions, task.positions)
    assert [pair.to_dict() for pair in loaded.worst(2)] == [pair.to_dict() for pair in worst.worst(2)]


@pytest.mark.parametrize("ablation", ["resample", "zero"])
def test_an_explanation_shares_out_the_mean_over_reads(
    tiny: Model, task: PairTask, circuit: Circuit, ablation: str
) -> None:
    told = explain(
        circuit, tiny, task.clean, task.corrupted, positions=task.positions, ablation=ablation, steps=64
    )
    expected = literal(tiny, task, circuit, [(i, i) for i in range(task.n)], ablation=ablation)
    assert told.divergence == pytest.approx(expected[0].mean(), abs=1e-9)
    assert told.empty == pytest.approx(expected[1].mean(), abs=1e-9)
    assert told.missing.completeness_gap < 0.06  # of the midpoint rule


def test_a_search_goes_over_the_rows(tiny: Model, aligned: PairTask, circuit: Circuit) -> None:
    found = search_worst(circuit, tiny, aligned, budget=40, restarts=1, k=2)
    table = worst_case(circuit, tiny, aligned, "all").divergence
    assert (found.n_evaluations, found.matrix_shape) == (25, (5, 5))
    assert found.max == pytest.approx(table.max(), abs=1e-9)
    assert found.ascents == ()


def test_a_search_of_drawn_prompts_does_not_climb(capitals: tuple[Model, PairTask]) -> None:
    model, _ = capitals
    two = {"Peru": "Bamako", "Spain": "Bamaga"}
    task = load_task("capital-country", model, n=1, capitals=two, answer_tokens="each")
    circuit = Circuit.random(model.graph, 8, seed=0)
    found = search_worst(circuit, model, task, budget=64, restarts=1, k=1)
    assert (found.ascents, max(found.matrix_shape) <= 8) == ((), True)
    assert found.worst[0].reads
    with pytest.raises(InputError, match="or read at several positions, and cannot be varied"):
        search_worst(circuit, model, task, ablation="zero", budget=64, restarts=1)


def test_whether_a_grammar_draws_answers_of_several_tokens_is_seen_beforehand(
    capitals: tuple[Model, PairTask],
) -> None:
    model, _ = capitals
    options = {"capitals": {"France": "Paris", "Italy": "Rome", "Peru": "Bamako", "Spain": "Bamaga"}}
    first = next(
        seed
        for seed in range(20)
        if load_task("capital-country", model, n=1, seed=seed, answer_tokens="each", **options).positions.ndim
        == 1
    )
    one = load_task("capital-country", model, n=1, seed=first, answer_tokens="each", **options)
    assert reads_several(one)
    assert not reads_several(load_task("capital-country", model, n=1))


def test_a_search_of_single_prompts_is_refused(tiny: Model, task: PairTask, circuit: Circuit) -> None:
    with pytest.raises(InputError, match="are given, or read at several positions, and cannot be varied"):
        search_worst(circuit, tiny, task, ablation="zero", budget=40, restarts=1)

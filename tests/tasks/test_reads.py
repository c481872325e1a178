"""Prompts read at several positions: tensors, files, and answers scored at each of their tokens."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.errors import FileFormatError, InputError, ShapeError, TokenizationError
from assay.objectives import OBJECTIVES
from assay.tasks import PairTask, Prompt, Read, Tokens, load_task, pair_task


IDS = torch.tensor([[3, 4, 5, 6], [3, 7, 5, 6]])
ANSWERS = torch.tensor([[[1], [2]], [[0], [-1]]])
PLACES = torch.tensor([[1, 3], [3, -1]])


def small(**changed: Any) -> PairTask:
    return PairTask(
        **{"clean": IDS, "corrupted": IDS.flip(0), "answers": ANSWERS, "positions": PLACES, **changed}
    )


# ----------------------------------------------------------------------------------------------- by hand


def test_the_loss_of_a_prompt_is_the_mean_over_its_reads() -> None:
    task = small(wrong=torch.tensor([[[0], [-1]], [[1], [-1]]]))
    batch = next(iter(task.batches(2)))
    logits = torch.tensor([[[0.0, 2.0, 1.0], [1.0, 1.0, 4.0]], [[3.0, 0.5, 0.0], [9.0, 9.0, 9.0]]])
    clean = logits.flip(-1)
    # Prompt 0 has a wrong answer at its first position only: 2 - 0. Prompt 1 is read once: 3 - 0.5.
    found = OBJECTIVES["logit_diff"](logits, clean, batch)
    assert found.tolist() == [-2.0, -2.5]
    totals = [math.log(sum(math.exp(x) for x in row)) for row in logits.flatten(0, 1).tolist()]
    expected = [((totals[0] - 2) + (totals[1] - 4)) / 2, totals[2] - 3]
    assert OBJECTIVES["ce"](logits, clean, batch).tolist() == pytest.approx(expected, abs=1e-6)
    assert OBJECTIVES["kl"](logits, logits, batch).tolist() == [0, 0]


def test_gradients_flow_to_the_reads_that_count() -> None:
    batch = next(iter(small().batches(2)))
    logits = torch.zeros(2, 2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(OBJECTIVES["ce"](logits, logits.detach(), batch).sum(), logits)
    assert gradient[0, 0].tolist() == pytest.approx([1 / 6, -1 / 3, 1 / 6])
    assert gradient[1, 0].tolist() == pytest.approx([-2 / 3, 1 / 3, 1 / 3])
    assert gradient[1, 1].tolist() == [0, 0, 0]


# ----------------------------------------------------------------------------------------------- tensors


def test_rows_keep_their_reads() -> None:
    task = small()
    assert task.subset([1]).positions.tolist() == [[3, -1]]
    assert task.paired(torch.tensor([[1, 1]])).corrupted.tolist() == [IDS[0].tolist()]
    assert task.data_hash != small(positions=torch.tensor([[1, 3], [2, -1]])).data_hash
    batch = next(iter(task.batches(2)))
    rows = batch.by_read(batch.positions >= 0)
    assert (rows.indices.tolist(), rows.positions.tolist()) == ([0, 0, 1], [1, 3, 3])
    assert rows.answers.tolist() == [[1], [2], [0]]


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"answers": torch.tensor([[1], [2]])}, ShapeError, r"shape \(2, 1\); expected \[2, 2, at"),
        ({"positions": torch.zeros(2, 3).long()}, ShapeError, r"answers has .*expected \[2, 3, at"),
        ({"positions": torch.zeros(3, 2).long()}, ShapeError, r"shape \(3, 2\); expected \[2\]"),
        ({"positions": torch.tensor([[1, 4], [3, -1]])}, InputError, "positions lies outside its prompt"),
        ({"positions": torch.tensor([[1, 3], [-1, -1]])}, InputError, r"positions names none \(prompt 1\)"),
        ({"positions": torch.tensor([[1, 3], [3, 2]])}, InputError, "a read position has no answer"),
        ({"positions": torch.tensor([[1, -1], [3, -1]])}, InputError, "a token where no position is read"),
        ({"wrong": torch.full((2, 2, 1), -1)}, InputError, "wrong names no token"),
        ({"wrong": ANSWERS}, InputError, "an answer is also a wrong answer"),
    ],
)  # fmt: skip
def test_reads_that_do_not_fit_are_refused(
    changed: dict[str, Any], error: type[Exception], text: str, unchecked: None
) -> None:
    with pytest.raises(error, match=text):
        small(**changed)


# ------------------------------------------------------------------------------------------------- files


def written(path: Path, **changed: Any) -> Path:
    line = {
        "clean": "The keys near the door of the house",
        "corrupted": "The key near the door of the house",
        "positions": [1, -1],
        "answers": [[" near", " under"], [" are"]],
        "wrong": [[], [" is"]],
    }
    path.write_text(
        json.dumps({key: value for key, value in {**line, **changed}.items() if value is not None})
    )
    return path


def test_a_line_tells_where_it_is_read(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    task = load_task(written(tmp_path / "a.jsonl"), gpt2_tokenizer)
    words = (" near", " under", " are", " is")
    near, under, are, there = (gpt2_tokenizer(word)["input_ids"][0] for word in words)
    assert task.positions.tolist() == [[1, 7]]
    assert task.answers.tolist() == [[[near, under], [are, -1]]]
    assert task.wrong is not None
    assert task.wrong.tolist() == [[[-1], [there]]]
    begun = load_task(tmp_path / "a.jsonl", gpt2_tokenizer, bos=True)
    assert (begun.positions.tolist(), begun.answers.tolist()) == ([[2, 8]], task.answers.tolist())
    ids = {
        "clean": [5, 6, 7],
        "corrupted": [5, 8, 7],
        "positions": [0, 2],
        "answers": [[6], [9]],
        "wrong": None,
    }
    of_ids = load_task(written(tmp_path / "b.jsonl", **ids), None)
    assert (of_ids.positions.tolist(), of_ids.wrong) == ([[0, 2]], None)
    once = load_task(
        written(tmp_path / "c.jsonl", positions=[2], answers=[[" the"]], wrong=None), gpt2_tokenizer
    )
    assert (once.positions.tolist(), once.answers.shape) == ([2], (1, 1))


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"positions": 3}, FileFormatError, r"line 1: 'positions' is 3; expected a list of token numbers"),
        ({"answers": [[" are"]]}, FileFormatError, r"'answers' is .* with 2 'positions', expected a list"),
        ({"answers": [[" a"], []]}, FileFormatError, "'answers' has an empty list"),
        ({"positions": [1, 8]}, TokenizationError, "is read at position 8, but has 8 tokens"),
        ({"positions": [7, -1]}, TokenizationError, "is read at position 7 twice"),
        ({"answers": [[" near"], [" Bamako"]]}, TokenizationError, r"answer ' Bamako' of the .* is \d token"),
    ],
)  # fmt: skip
def test_lines_that_do_not_fit_are_refused(
    changed: dict[str, Any], error: type[Exception], text: str, tmp_path: Path, gpt2_tokenizer: Any
) -> None:
    with pytest.raises(error, match=text):
        load_task(written(tmp_path / "a.jsonl", **changed), gpt2_tokenizer)


def test_positions_exclude_chats_and_answers_of_several_tokens(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    path = written(tmp_path / "a.jsonl", answers=[[" near"], [" Bamako"]], wrong=None)
    with pytest.raises(TokenizationError, match=r"has an answer of several tokens at position 7"):
        load_task(path, gpt2_tokenizer, answer_tokens="each")
    templated = type(gpt2_tokenizer).from_pretrained(gpt2_tokenizer.name_or_path)
    templated.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}\n"
    with pytest.raises(TokenizationError, match="which a chat template moves; set chat to False"):
        load_task(path, templated, answer_tokens="each", chat=True)


# ------------------------------------------------------------------------------- each token of the answer


def each(gpt2_tokenizer: Any, answers: tuple[str, ...], wrong: tuple[str, ...] = ()) -> PairTask:
    tokens = Tokens(gpt2_tokenizer, answer_tokens="each")
    clean = [
        Prompt(text="The city of", answers=answers, wrong=wrong),
        Prompt(text="We are in", answers=(" it",)),
    ]
    if wrong:
        clean[1:] = [Prompt(text="We are in", answers=(" it",), wrong=(" a",))]
    return pair_task(clean, [Prompt(text="The town of"), Prompt(text="We were in")], tokens, name="x")


def test_an_answer_stands_behind_both_prompts_and_is_read_token_by_token(gpt2_tokenizer: Any) -> None:
    right, other = (gpt2_tokenizer(word)["input_ids"] for word in (" Bamako", " Bamaga"))
    assert (len(right), len(other), right[0] == other[0]) == (2, 2, True)
    task = each(gpt2_tokenizer, (" Bamako",), (" Bamaga",))
    clean, corrupted = (gpt2_tokenizer(text)["input_ids"] for text in ("The city of", "The town of"))
    assert task.clean[0].tolist() == clean + right[:1]
    assert task.corrupted[0].tolist() == corrupted + right[:1]
    assert task.lengths.tolist() == [4, 3]
    assert task.fields["n_tokens"] == [3, 3]
    assert task.positions.tolist() == [[2, 3], [2, -1]]
    assert task.answers[0].tolist() == [[token] for token in right]
    # The first tokens agree, so there is nothing to compare; behind them come the wrong answer's own.
    expected = [[-1 if a == b else b] for a, b in zip(right, other, strict=True)]
    assert task.wrong is not None
    assert task.wrong[0].tolist() == expected
    assert task.texts == ("The city of", "We are in")


def test_the_cross_entropy_is_that_of_the_whole_answer(
    gpt2_tokenizer: Any, tiny_module: Callable[..., Any]
) -> None:
    """Mean over tokens of -log p, so tokens times it is -log p(answer | prompt)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from assay.execution import run_model
    from assay.models import load_model

    torch.manual_seed(0)
    module = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16)).double().eval()
    model = load_model(module, tokenizer=gpt2_tokenizer)
    task = each(gpt2_tokenizer, (" Bamako",))
    logits = run_model(model, task)
    batch = next(iter(task.batches(2)))
    found = OBJECTIVES["ce"](logits, logits, batch)
    ids, prompt = gpt2_tokenizer(" Bamako")["input_ids"], gpt2_tokenizer("The city of")["input_ids"]
    total = 0.0
    for token in ids:
        with torch.no_grad():
            total -= float(module(torch.tensor([prompt])).logits[0, -1].log_softmax(0)[token])
        prompt = [*prompt, token]
    assert float(found[0]) * len(ids) == pytest.approx(total, abs=1e-9)


def test_answers_of_one_token_are_read_as_ever(gpt2_tokenizer: Any) -> None:
    for key in ("ioi", "greater-than"):
        found, usual = (load_task(key, gpt2_tokenizer, n=5, answer_tokens=each) for each in ("each", "one"))
        assert found.data_hash == usual.data_hash


@pytest.mark.parametrize(
    ("answers", "wrong", "text"),
    [
        ((" Bamako", " Paris"), (), "has 2 right answers, of which some have several tokens, but only one"),
        ((" Bamako",), (" Paris",), "wrong answer ' Paris' of the prompt .* is 1 token, the answer ' B"),
        ((" Bamako",), (" Bamako",), "they must differ and have the same number of tokens"),
    ],
)  # fmt: skip
def test_answers_that_cannot_be_compared_by_token_are_refused(
    answers: tuple[str, ...], wrong: tuple[str, ...], text: str, gpt2_tokenizer: Any
) -> None:
    with pytest.raises(TokenizationError, match=text):
        each(gpt2_tokenizer, answers, wrong)


def test_grammars_pair_answers_of_as_many_tokens(gpt2_tokenizer: Any) -> None:
    capitals = {"France": "Paris", "Peru": "Bamako", "Spain": "Bamaga", "Italy": "Rome"}
    task = load_task("capital-country", gpt2_tokenizer, n=40, capitals=capitals, answer_tokens="each")
    pairs = set(zip(task.fields["country"], task.fields["corrupted.country"], strict=True))
    assert pairs == {("Peru", "Spain"), ("Spain", "Peru"), ("France", "Italy"), ("Italy", "France")}
    assert task.config["answer_tokens"] == "each"
    with pytest.raises(TokenizationError, match="0 of 2 countries can be used .another capital has as many"):
        load_task(
            "capital-country",
            gpt2_tokenizer,
            capitals={"France": "Paris", "Peru": "Bamako"},
            answer_tokens="each",
        )


def test_reads_of_prompts_in_python(gpt2_tokenizer: Any) -> None:
    reads = (Read(position=0, answers=(" city",), wrong=(" town",)), Read(position=-1, answers=(" Rome",)))
    clean = [Prompt(text="The city of", reads=reads)]
    task = pair_task(clean, [Prompt(text="The town of")], Tokens(gpt2_tokenizer), name="x")
    assert task.positions.tolist() == [[0, 2]]
    with pytest.raises(TokenizationError, match="has no answer"):
        pair_task(
            [Prompt(text="The city of", reads=(Read(position=0, answers=()),))],
            [Prompt(text="The town of")],
            Tokens(gpt2_tokenizer),
            name="x",
        )

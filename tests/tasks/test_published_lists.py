"""The published word lists under GPT-2's own tokenizer."""

import json
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import AssayWarning
from assay.tasks import TASKS, GreaterThan, IndirectObject, Tokens, load_task, task_data


@pytest.fixture(scope="module")
def tokens(gpt2_tokenizer: Any) -> Tokens:
    return Tokens(gpt2_tokenizer)


@pytest.mark.parametrize("name", ["ioi", "greater_than", "docstring", "other_tasks"])
def test_the_package_ships_the_reference_lists_unchanged(name: str, shared: Callable[[str], Path]) -> None:
    assert task_data(name) == json.loads(shared(f"data/tasks/{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("key", list(TASKS))
def test_a_published_word_passes_the_one_token_checks_or_is_reported(key: str, gpt2_tokenizer: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task = load_task(key, gpt2_tokenizer, n=20)
    dropped = [str(entry.message) for entry in caught if issubclass(entry.category, AssayWarning)]
    assert dropped == []  # every published list passes under GPT-2
    assert task.n == 20


def test_every_ioi_template_has_its_published_token_positions(gpt2_tokenizer: Any) -> None:
    for entry in task_data("ioi")["templates"]:
        task = load_task("ioi", gpt2_tokenizer, n=4, template_ids=[entry["id"]])
        assert set(task.lengths.tolist()) == {entry["n_tokens_gpt2"]}
        for slot, (first, *_) in entry["slot_positions_gpt2"].items():
            assert set(task.slots[slot].tolist()) == {first}, (entry["id"], slot)


def test_ioi_has_its_published_words(tokens: Tokens) -> None:
    grammar = IndirectObject(tokens)
    assert (len(grammar.names), len(grammar.places), len(grammar.objects)) == (99, 8, 8)
    assert (grammar.population, grammar.corrupted_population) == (620_928, 99 * 98 * 97 * 64)
    orders = IndirectObject(tokens, orders=["ABBA", "BABA"], template_ids=[0, 4])
    assert orders.population == 2 * 99 * 98 * 65


def test_the_years_of_gpt2_are_the_published_604(tokens: Tokens) -> None:
    data = task_data("greater_than")
    grammar = GreaterThan(tokens)
    by_century = {c: [c + yy for century, yy in grammar.years if century == c] for c in grammar.centuries}
    assert by_century == data["years_gpt2"]
    assert Counter(c for c, _ in grammar.years) == {
        "11": 52, "12": 94, "13": 87, "14": 94, "15": 87, "16": 95, "17": 95,
    }  # fmt: skip
    kept = GreaterThan(tokens, drop_extremes=False)
    before = {c: [c + yy for century, yy in kept.years if century == c] for c in kept.centuries}
    assert before == data["years_gpt2_before_dropping_extremes"]


def test_greater_than_answers_are_the_published_two_digit_tokens(gpt2_tokenizer: Any) -> None:
    data = task_data("greater_than")
    task = load_task("greater-than", gpt2_tokenizer, n=100)
    positions = {name: set(where.tolist()) for name, where in task.slots.items()}
    assert task.length == 10
    assert positions == {"noun": {1}, "century": {6}, "yy": {7}}
    assert task.wrong is not None
    for row in range(task.n):
        yy = int(task.fields["yy"][row])
        digits = data["two_digit_tokens_gpt2"]
        assert [i for i in task.answers[row].tolist() if i >= 0] == digits[yy + 1 :]
        assert [i for i in task.wrong[row].tolist() if i >= 0] == digits[: yy + 1]
    assert set(task.corrupted[:, 7].tolist()) == {486}


def test_docstring_prompts_of_gpt2_have_one_length_per_pair(gpt2_tokenizer: Any) -> None:
    task = load_task("docstring", gpt2_tokenizer, n=50)
    assert task.fields["n_tokens"] == task.fields["corrupted.n_tokens"]
    for name in ("A_def", "B_def", "C_def", "A_doc", "B_doc"):
        ids = task.clean[range(task.n), task.slots[name]]
        assert gpt2_tokenizer.batch_decode(ids[:, None]) == [" " + word for word in task.fields[name]]


def test_names_that_gpt2_splits_at_the_start_of_a_prompt_are_reported_by_word(gpt2_tokenizer: Any) -> None:
    with pytest.warns(AssayWarning) as caught:
        task = load_task("gendered-pronoun", gpt2_tokenizer, n=100, template_ids=[1])
    male, female = sorted(str(entry.message) for entry in caught)
    assert "dropped 31 of 43 female_names" in female
    assert "'Alicia', 'Allison'" in female
    assert "dropped 12 of 51 male_names" in male
    assert set(task.slots["name"].tolist()) == {0}
    assert not set(task.fields["name"]) & {"Alicia", "Benjamin"}

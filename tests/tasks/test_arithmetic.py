"""Sums, differences and capitals, under GPT-2's tokenizer and under one that cuts numbers up."""

from collections import Counter
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import AssayWarning, InputError, TokenizationError, UnknownNameError
from assay.core.random import stream
from assay.tasks import TASKS, Arithmetic, CapitalCountry, Tokens, load_task


@pytest.fixture(scope="module")
def grammar(gpt2_tokenizer: Any) -> Arithmetic:
    return Arithmetic(Tokens(gpt2_tokenizer))


def test_a_pair_by_hand(grammar: Arithmetic) -> None:
    clean = grammar.render({"op": "plus", "a": 47, "b": 25})
    assert clean.text == "Q: How much is 47 plus 25? A: "
    assert (clean.answers, clean.wrong) == (("72",), ())
    assert dict(clean.fields) == {"op": "plus", "a": 47, "b": 25, "carry": True, "result": 72}
    other = grammar.render({"op": "minus", "a": 47, "b": 25})
    assert other.text == "Q: How much is 47 minus 25? A: "
    assert (other.answers, other.fields["carry"]) == (("22",), False)
    assert grammar.render({"op": "minus", "a": 45, "b": 27}).fields["carry"] is True
    assert [clean.text[slice(*clean.slots[slot])] for slot in ("a", "b")] == ["47", "25"]


def test_gpt2_reads_every_number_whole(grammar: Arithmetic) -> None:
    assert grammar.operands == tuple(range(10, 100))
    assert {op: len(pairs) for op, pairs in grammar.sums.items()} == {"plus": 90 * 90, "minus": 90 * 89 // 2}
    assert grammar.population == 8100 + 4005


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_corrupted_operands_give_another_result_of_the_same_operation(seed: int, grammar: Arithmetic) -> None:
    ((clean, other),) = grammar.pairs(grammar.draw(1, stream(seed, "clean")), stream(seed, "corrupted"))
    for prompt in (clean, other):
        a, b, op = (prompt.fields[name] for name in ("a", "b", "op"))
        assert op == clean.fields["op"]
        assert 10 <= b <= 99
        assert 10 <= a <= 99
        assert op == "plus" or a > b
        assert prompt.answers == (str(a + b if op == "plus" else a - b),)
    assert clean.wrong == other.answers != clean.answers
    assert other.wrong == ()


def test_the_task_reads_after_the_space_and_compares_two_results(gpt2_tokenizer: Any) -> None:
    task = load_task("arithmetic", gpt2_tokenizer, n=40, operations=["minus"])
    assert set(task.fields["op"]) == {"minus"}
    assert set(task.lengths.tolist()) == {12}
    assert task.wrong is not None
    assert gpt2_tokenizer.decode(task.clean[:, -1]) == " " * 40
    assert gpt2_tokenizer.batch_decode(task.answers) == [str(each) for each in task.fields["result"]]
    assert gpt2_tokenizer.batch_decode(task.wrong) == [str(r) for r in task.fields["corrupted.result"]]
    for slot in ("a", "b"):
        ids = task.clean[range(40), task.slots[slot]]
        assert gpt2_tokenizer.batch_decode(ids[:, None]) == [f" {each}" for each in task.fields[slot]]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_first_token_of_a_split_result_decides(width: int, splitting: Callable[[int], Any]) -> None:
    tokenizer = splitting(width)
    task = load_task("arithmetic", tokenizer, n=300)
    assert task.wrong is not None
    for right, wrong, result, other in zip(
        tokenizer.batch_decode(task.answers),
        tokenizer.batch_decode(task.wrong),
        task.fields["result"],
        task.fields["corrupted.result"],
        strict=True,
    ):
        assert right == str(result)[:width] != str(other)[:width] == wrong
    numbers = range(10, 100)
    left = total = 0
    for each in (
        Counter(a + b for a, b in product(numbers, repeat=2)),
        Counter(a - b for a, b in product(numbers, repeat=2) if a > b),
    ):
        for one, other in permutations(each, 2):
            total += each[one] * each[other]
            left += each[one] * each[other] * (str(one)[:width] == str(other)[:width])
    note = (
        f"arithmetic: the first token of a result decides; {left} of {total} pairs of prompts with different "
        "results, which begin with the same token, are left out"
    )
    assert task.notes == ((note,) if width < 3 else ())
    assert task.describe().get("notes", []) == list(task.notes)
    assert task.config.get("answer_tokens", "one") == ("one" if width == 3 else "first")


def test_operands_of_another_number_of_tokens_are_left_out(splitting: Callable[[int], Any]) -> None:
    with pytest.warns(AssayWarning, match=r"dropped 1 of 12 operands .*: 9"):
        grammar = Arithmetic(Tokens(splitting(1)), operations=["minus"], operands=range(9, 21))
    assert grammar.operands == tuple(range(10, 21))


def test_results_that_no_first_token_tells_apart_are_refused(splitting: Callable[[int], Any]) -> None:
    with pytest.raises(TokenizationError, match=r"^arithmetic: the results of 4 of 4 .* tell none apart"):
        load_task("arithmetic", splitting(1), operands=[10, 11], operations=["plus"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"operations": ["times"]}, UnknownNameError, "unknown operation of arithmetic 'times'"),
        ({"operations": []}, UnknownNameError, "unknown operation of arithmetic"),
        ({"templates": ["{a} + {b} = "]}, InputError, "1 templates for 2 operations"),
        ({"templates": ["{a}", "{b}"]}, InputError, "must have a, b"),
        ({"operands": [11]}, TokenizationError, "1 of 1 operands .*at least 2"),
    ],
)
def test_options_of_arithmetic_that_make_no_sense(
    options: Any, error: type[Exception], message: str, gpt2_tokenizer: Any
) -> None:
    with pytest.raises(error, match=message):
        load_task("arithmetic", gpt2_tokenizer, **options)


def test_own_templates_name_the_operation_as_they_like(gpt2_tokenizer: Any) -> None:
    task = load_task("arithmetic", gpt2_tokenizer, n=5, operations=["plus"], templates=["{a}+{b}="])
    assert task.texts is not None
    assert task.texts[0] == f"{task.fields['a'][0]}+{task.fields['b'][0]}="


# --------------------------------------------------------------------------------------------- capitals


def test_a_capital_by_hand(gpt2_tokenizer: Any) -> None:
    grammar = CapitalCountry(Tokens(gpt2_tokenizer), capitals={"France": "Paris", "Peru": "Lima"})
    ((clean, other),) = grammar.pairs(
        [grammar.render({"template_id": 0, "country": "France"})], stream(0, "corrupted")
    )
    assert clean.text == "The capital of France is the city of"
    assert other.text == "The capital of Peru is the city of"
    assert (clean.answers, clean.wrong) == ((" Paris",), (" Lima",))
    assert dict(clean.fields) == {"template_id": 0, "country": "France", "capital": "Paris"}


def test_the_published_capitals_all_pass_under_gpt2(gpt2_tokenizer: Any) -> None:
    task = load_task("capital-country", gpt2_tokenizer, n=60)
    assert len(task.grammar.capitals) == 35  # type: ignore[union-attr]
    assert task.wrong is not None
    for row in range(task.n):
        assert task.fields["country"][row] != task.fields["corrupted.country"][row]
        assert gpt2_tokenizer.decode(task.answers[row]) == " " + task.fields["capital"][row]
        assert gpt2_tokenizer.decode(task.wrong[row]) == " " + task.fields["corrupted.capital"][row]
    assert set(task.slots["country"].tolist()) == {3}


def test_a_country_at_the_start_of_a_prompt_is_judged_there(gpt2_tokenizer: Any) -> None:
    with pytest.warns(AssayWarning, match=r"capital-country: dropped \d+ of 35 countries"):
        task = load_task("capital-country", gpt2_tokenizer, n=30, template_ids=[1])
    assert set(task.slots["country"].tolist()) == {0}


def test_capitals_that_the_tokenizer_splits_are_dropped_or_refused(
    gpt2_tokenizer: Any, mini_tokenizer: Any
) -> None:
    given = {"France": "Paris", "Peru": "Lima", "Kenya": "Nairobi", "Mali": "Bamako"}
    with pytest.warns(AssayWarning, match=r"dropped 2 of 4 countries .*'Kenya', 'Mali'"):
        load_task("capital-country", gpt2_tokenizer, n=3, capitals=given)
    with pytest.raises(TokenizationError, match="capital-country: 0 of 35 countries can be used"):
        load_task("capital-country", mini_tokenizer)


def test_wrong_answers_belong_to_pairs_of_these_tasks_only() -> None:
    assert {key for key in TASKS if TASKS[key].contrasts} == {"arithmetic", "capital-country", "mcqa"}

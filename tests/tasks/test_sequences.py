"""Docstring and induction: the tasks whose corruption is code, not a template."""

from itertools import chain
from typing import Any

import pytest

from assay.core.random import stream
from assay.tasks import Docstring, Induction, Tokens, load_task


@pytest.fixture(scope="module")
def tokens(mini_tokenizer: Any) -> Tokens:
    return Tokens(mini_tokenizer)


def test_the_docstring_prompt_has_the_published_layout_and_positions(mini_tokenizer: Any) -> None:
    task = load_task("docstring", mini_tokenizer, n=20, bos=True)
    assert task.objective == "logit_diff_max"
    assert task.length == 41
    assert {name: set(where.tolist()) for name, where in task.slots.items()} == {
        "method": {3}, "P1": {7}, "P2": {9}, "A_def": {11}, "B_def": {13}, "C_def": {15}, "S": {17},
        "A_doc": {27}, "B_doc": {34},
    }  # fmt: skip
    assert set(task.clean[:, 0].tolist()) == {mini_tokenizer.bos_token_id}
    assert task.texts is not None
    assert task.wrong is not None
    for row in range(task.n):
        p1, p2, a, b, c, s = task.fields["def_args"][row]
        assert f"(self, {p1}, {p2}, {a}, {b}, {c}, {s}):" in task.texts[row]
        assert task.fields["doc_args"][row] == (a, b)
        assert mini_tokenizer.decode(task.answers[row]) == " " + c
        wrong = [mini_tokenizer.decode(i) for i in task.wrong[row].tolist()]
        assert len(set(wrong)) == 13
        assert " " + c not in wrong
        assert {" " + name for name in (p1, p2, a, b, s)} <= set(wrong)
        assert " " + task.fields["method"][row] not in wrong


def test_every_docstring_corruption_changes_what_its_rule_says(tokens: Tokens) -> None:
    def names(prompt: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return prompt.fields["def_args"], prompt.fields["doc_args"]

    for corruption in Docstring.corruptions:
        grammar = Docstring(tokens, corruption=corruption)
        for clean in grammar.draw(20, stream(1, "clean")):
            (other,) = grammar.corrupt([clean], stream(1, "corrupted"))
            (p1, p2, a, b, c, s), _ = names(clean)
            r, u, q, e = (tuple(clean.values[group]) for group in "RUQE")
            expected = {
                "random_random": ((p1, p2, *r, s), q),
                "random_doc": ((p1, p2, a, b, c, s), u),
                "random_def": ((p1, p2, *u, c, s), (a, b)),
                "random_answer": ((p1, p2, a, b, *e, s), (a, b)),
                "random_def_doc": ((p1, p2, *u, c, s), u),
                "random_answer_doc": ((p1, p2, a, b, *e, s), u),
            }[corruption]
            assert names(other) == expected
            assert other.fields["method"] == clean.fields["method"]
            assert other.values["method_words"] == clean.values["method_words"]
            assert other.values["doc_words"] == clean.values["doc_words"]


def test_the_google_style_ends_where_the_third_argument_would_stand(mini_tokenizer: Any) -> None:
    task = load_task("docstring", mini_tokenizer, style="goog", n=3)
    assert task.texts is not None
    assert all("Args:\n" in text and text.endswith("\n       ") for text in task.texts)


def test_the_fifteen_names_of_a_docstring_differ(tokens: Tokens) -> None:
    for prompt in Docstring(tokens).draw(50, stream(0, "clean")):
        groups = [prompt.values[group] for group in ("E", "R", "Q", "U", "M", "P", "S")]
        assert len({*prompt.values["method"], *chain.from_iterable(groups)}) == 15
        assert [len(group) for group in groups] == [1, 3, 2, 2, 3, 2, 1]
        assert len(set(prompt.values["method_words"])) == 3


def test_induction_repeats_the_beginning_and_asks_for_what_followed(mini_tokenizer: Any) -> None:
    task = load_task("induction", mini_tokenizer, n=100)
    special = set(mini_tokenizer.all_special_ids)
    assert task.wrong is not None
    assert set(task.fields["k"]) <= set(range(1, 24))
    assert len(set(task.fields["k"])) > 15
    for row in range(task.n):
        k, length = task.fields["k"][row], int(task.lengths[row])
        ids, other = task.clean[row].tolist(), task.corrupted[row].tolist()
        assert length == 24 + k
        assert int(task.positions[row]) == length - 1
        assert ids[24:length] == other[24:length] == ids[:k]
        assert task.answers[row].tolist() == [ids[k]]
        assert task.wrong[row].tolist() == [other[k]]
        assert ids[k] != other[k]
        assert len(set(ids[:24])) == 24
        assert not special & set(ids[:length])
        assert set(ids[length:]) <= {mini_tokenizer.pad_token_id}
        assert [int(task.slots[name][row]) for name in ("s_k", "s_k+1", "second")] == [k - 1, k, 24]


def test_a_fixed_k_gives_prompts_of_one_length(mini_tokenizer: Any) -> None:
    task = load_task("induction", mini_tokenizer, n=20, length=8, k=3, bos=True)
    assert set(task.lengths.tolist()) == {12}
    assert set(task.slots["s_k"].tolist()) == {3}
    assert task.clean[:, 1:4].tolist() == task.clean[:, 9:12].tolist()


def test_induction_ids_are_uniform_over_the_ordinary_vocabulary(tokens: Tokens) -> None:
    drawn = [i for p in Induction(tokens).draw(2000, stream(0, "clean")) for i in p.values["first"]]
    ordinary = tokens.ordinary_ids
    assert set(drawn) == set(ordinary)
    expected = len(drawn) / len(ordinary)
    counts = [0] * (max(ordinary) + 1)
    for i in drawn:
        counts[i] += 1
    assert max(counts) < expected + 6 * expected**0.5

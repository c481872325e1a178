"""Variants of a prompt in one slot: all of them, and nothing that the grammar cannot draw."""

from collections.abc import Callable
from typing import Any

import pytest

from assay.core.random import stream
from assay.tasks import TASKS, Docstring, Induction, Tokens


SMALL: dict[str, dict[str, Any]] = {
    "ioi": {
        "names": ["Mary", "John", "Lisa", "Mark"],
        "places": ["store", "garden"],
        "objects": ["ring", "bone"],
    },
    "greater-than": {"nouns": ["plan", "study"], "centuries": ["11", "17"], "above": 92},
    "sva": {"nouns": [["key", "keys"], ["child", "children"]], "preps": ["near", "with"]},
    "gendered-pronoun": {"female_names": ["Mary", "Lisa"], "male_names": ["John", "Mark", "Paul"]},
    "capital-country": {
        "capitals": {"France": "Paris", "Japan": "Tokyo", "China": "Beijing"},
        "template_ids": [0, 1],
    },
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("ioi", {"corruption": kind, "orders": orders}) for orders in (["ABBA"], ["BABA"], ["ABBA", "BABA"])
      for kind in TASKS["ioi"].corruptions),
    ("ioi", {"templates": ["Then, {name1} and {name2} met. {name3} called"], "avoid_clean_names": True,
             "names": ["Mary", "John", "Lisa", "Mark", "Paul"]}),
    ("greater-than", {}),
    ("sva", {}),
    ("sva", {"attractor": "congruent"}),
    ("sva", {"attractor": "incongruent"}),
    ("gendered-pronoun", {}),
    ("capital-country", {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokens(mini_tokenizer: Any) -> Tokens:
    return Tokens(mini_tokenizer)


@pytest.mark.parametrize(("key", "options"), CASES, ids=str)
def test_variants_differ_in_the_slot_and_can_be_drawn(
    key: str, options: dict[str, Any], tokenizer_of: Callable[[str], Any]
) -> None:
    """Of both sides: everything that a slot can become is a prompt that a long draw holds, too."""
    grammar = TASKS[key](Tokens(tokenizer_of(key)), **{**SMALL[key], **options})
    clean = grammar.draw(3000, stream(0, "clean"))
    for side, corrupted in (
        (clean, False),
        (grammar.corrupt(clean, stream(0, "corrupted")), True),
    ):
        drawn = {prompt.text for prompt in side}
        for prompt in side[:20]:
            values = dict(prompt.values)
            slots = grammar.slots(values, corrupted=corrupted)
            assert slots
            for slot in slots:
                found = list(grammar.variants(values, slot, corrupted=corrupted))
                texts = [grammar.render(each).text for each in found]
                assert len(set(texts)) == len(texts)
                assert set(texts) <= drawn - {prompt.text}
                assert all(each[slot] != values[slot] for each in found)


# --------------------------------------------------------------------------- docstring: too many to list


@pytest.mark.parametrize("kind", Docstring.corruptions)
def test_docstring_variants_keep_the_rules_of_the_draw(kind: str, tokens: Tokens) -> None:
    grammar = Docstring(tokens, corruption=kind)
    clean = grammar.choose(stream(0, "clean"))
    changed = grammar.corrupted(clean, stream(0, "corrupted"))
    for values, corrupted in ((clean, False), (changed, True)):
        before = grammar.render(values)
        slots = grammar.slots(values, corrupted=corrupted)
        assert {"method", "P1", "P2", "A_def", "B_def", "C_def", "S"} <= set(slots)
        for slot in slots:
            found = list(grammar.variants(values, slot, corrupted=corrupted))
            assert len(found) > 90
            for each in found[::40]:
                names = [name for group in ("E", "R", "Q", "U", "M", "P", "S") for name in each[group]]
                assert len({*names, *each["method"]}) == 15
                after = grammar.render(each)
                assert after.text != before.text


def test_a_docstring_argument_changes_wherever_it_stands(tokens: Tokens) -> None:
    grammar = Docstring(tokens)
    values = grammar.choose(stream(1, "clean"))
    old = values["M"][0]
    new = next(iter(grammar.variants(values, "A_def")))
    name = new["M"][0]
    text, changed = grammar.render(values).text, grammar.render(new)
    assert changed.text == text.replace(f", {old},", f", {name},").replace(
        f":param {old}:", f":param {name}:"
    )
    assert changed.fields["doc_args"][0] == name
    assert "A_doc" not in grammar.slots(values)
    answer = next(iter(grammar.variants(values, "C_def")))
    assert grammar.render(answer).answers == (" " + answer["M"][2],)


def test_corrupted_docstrings_vary_the_documented_names_apart(tokens: Tokens) -> None:
    grammar = Docstring(tokens)
    values = grammar.corrupted(grammar.choose(stream(2, "clean")), stream(2, "corrupted"))
    assert {"A_def", "A_doc", "B_doc"} <= set(grammar.slots(values, corrupted=True))
    before = grammar.render(values)
    for each in grammar.variants(values, "A_doc", corrupted=True):
        after = grammar.render(each)
        assert after.fields["def_args"] == before.fields["def_args"]
        assert after.fields["doc_args"][1] == before.fields["doc_args"][1]
        assert after.fields["doc_args"][0] not in (*before.fields["def_args"], before.fields["doc_args"][0])


# ------------------------------------------------------------------------------------------- induction


@pytest.mark.parametrize("corrupted", [False, True])
def test_induction_variants_stay_sequences_without_repeats(corrupted: bool, tokens: Tokens) -> None:
    grammar = Induction(tokens, length=6, k=3)
    values = grammar.choose(stream(0, "clean"))
    if corrupted:
        values = grammar.corrupted(values, stream(0, "corrupted"))
    before = grammar.render(values).ids
    assert before is not None
    for slot in grammar.slots(values, corrupted=corrupted):
        for each in list(grammar.variants(values, slot, corrupted=corrupted))[::300]:
            prompt = grammar.render(each)
            assert prompt.ids is not None
            changed = [i for i, (a, b) in enumerate(zip(before, prompt.ids, strict=True)) if a != b]
            at = int(slot.split("_")[1]) - 1
            shown_twice = not corrupted and at < 3
            assert changed == ([at, at + 6] if shown_twice else [at + 6 if slot[0] == "t" else at])
            assert len(set(prompt.ids[:6])) == 6
            assert prompt.answers[0] != prompt.wrong[0]
            if not corrupted:
                assert prompt.ids[6:] == prompt.ids[:3]
                assert prompt.answers == (prompt.ids[3],)
            else:
                assert prompt.wrong == (prompt.ids[3],)

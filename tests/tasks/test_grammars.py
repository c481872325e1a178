"""The registered tasks: what is drawn, corrupted, varied and refused; the published lists under GPT-2."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import chisquare

from assay.core.errors import AssayWarning, InputError, TokenizationError, UnknownNameError
from assay.core.random import stream
from assay.tasks import TASKS, Tokens, load_task
from assay.tasks.grammar import IndirectObject, task_data
from assay.tasks.grammars import Docstring, GenderedPronoun, GreaterThan


NAMES = ("Mary", "John", "Lisa", "Mark")


SMALL: dict[str, dict[str, Any]] = {
    "ioi": {"names": NAMES, "places": ["store", "garden"], "objects": ["ring", "bone"]},
    "greater-than": {"nouns": ["plan", "study"], "centuries": ["11", "17"], "above": 90},
    "sva": {"nouns": [["key", "keys"], ["child", "children"]], "preps": ["near", "with"]},
    "gendered-pronoun": {"female_names": ["Mary", "Lisa"], "male_names": ["John", "Mark"]},
    "capital-country": {"capitals": {"France": "Paris", "Peru": "Lima", "Cuba": "Havana"}},
}


# Beginnings of data hashes of 40 pairs of seed 7, in the order of the corruptions, as they have been drawn
# since version 1 of the generator.
FROZEN = {
    "ioi": "1eba365b86ef 5efdf7063b66 0e76cd0d3d0c 3cff1b797d7d",
    "greater-than": "24e02f1506f2",
    "sva": "556f961fa128",
    "gendered-pronoun": "90cd447fbad0",
    "capital-country": "2ce8d5a62a00",
    "docstring": "25b29293af80 5c7324c5b22b b955c1407c9f a56cc01c2101 7f7d3e11aef1 e90612702e32",
    "induction": "c3f413078831",
}


@pytest.fixture(scope="module")
def tokens(mini_tokenizer: Any) -> Tokens:
    return Tokens(mini_tokenizer)


# ---- any grammar


@pytest.mark.parametrize("key", FROZEN)
def test_prompts_are_the_frozen_ones_and_a_longer_draw_begins_with_a_shorter(
    key: str, tokenizer_of: Callable[[str], Any]
) -> None:
    drawn = [load_task(key, tokenizer_of(key), n=40, seed=7, corruption=k) for k in TASKS[key].corruptions]
    assert " ".join(task.data_hash[:12] for task in drawn) == FROZEN[key]
    short, long = load_task(key, tokenizer_of(key), n=7, seed=7), drawn[0]
    assert short.clean.tolist() == long.clean[:7, : short.length].tolist()
    assert short.corrupted.tolist() == long.corrupted[:7, : short.length].tolist()
    assert long.fields["n_tokens"] == long.fields["corrupted.n_tokens"] == long.lengths.tolist()
    assert bool((long.clean != long.corrupted).any(1).all())


def test_prompts_of_gpt2_are_the_frozen_ones_and_no_published_word_is_dropped(gpt2_tokenizer: Any) -> None:
    hashes = {key: load_task(key, gpt2_tokenizer, n=30).data_hash for key in TASKS}  # a warning is an error
    assert hashes["ioi"].startswith("daca86751983")
    assert hashes["greater-than"].startswith("127b9ee3776c")


@pytest.mark.parametrize("key", SMALL)
def test_every_prompt_is_drawn_as_often(key: str, tokenizer_of: Callable[[str], Any]) -> None:
    grammar = TASKS[key](Tokens(tokenizer_of(key)), **SMALL[key])
    drawn = Counter(prompt.text for prompt in grammar.draw(4000, stream(0, "clean")))
    assert chisquare(list(drawn.values())).pvalue > 1e-3
    (clean,) = grammar.draw(1, stream(5, "clean"))
    others = Counter(prompt.text for prompt in grammar.corrupt([clean] * 2000, stream(5, "corrupted")))
    assert clean.text not in others
    assert len(others) == 1 or chisquare(list(others.values())).pvalue > 1e-3


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("ioi", {"objects": ["Zyxw"]}, TokenizationError, "0 of 1 objects can be .*dropped 'Zyxw'; .*at least 1"),
    ("ioi", {"names": NAMES, "avoid_clean_names": True}, TokenizationError, "expected at least 5"),
    ("ioi", {"names": ["Mary", "John", "Mary"]}, InputError, "names holds 'Mary' more than once"),
    ("ioi", {"template_ids": [20]}, UnknownNameError, "unknown ioi template id '20'"),
    ("ioi", {"orders": ["ABAB"]}, UnknownNameError, "unknown IOI order 'ABAB'; did you mean 'BABA'"),
    ("ioi", {"corruption": "abcx"}, UnknownNameError, "unknown corruption of ioi .*did you mean .*abc"),
    ("greater-than", {"template": "lnog"}, UnknownNameError, "unknown greater-than template 'lnog'"),
    ("greater-than", {"above": 97}, InputError, "0 years can be used .*Lower `above`"),
    ("greater-than", {"centuries": ["31", "42"]}, TokenizationError, "0 of 2 centuries can be used"),
    ("sva", {"nouns": ["keys", "doors"]}, InputError, "nouns holds 'keys'; give pairs .singular, plural"),
    ("docstring", {"style": "google"}, UnknownNameError, "unknown docstring style .*did you mean 'goog'"),
    ("docstring", {"words": ["oil"]}, TokenizationError, "docstring: 1 of 1 words .*at least 3"),
    ("induction", {"length": 1}, InputError, "length is 1 and k is None; expected 1 <= k < length"),
    ("induction", {"length": 8, "k": 8}, InputError, "length is 8 and k is 8"),
    ("induction", {"length": 8, "k": 0}, InputError, "length is 8 and k is 0"),
]


@pytest.mark.parametrize(("key", "options", "error", "message"), REFUSED)
def test_options_that_make_no_sense_are_refused(
    key: str, options: Any, error: type[Exception], message: str, mini_tokenizer: Any
) -> None:
    with pytest.raises(error, match=message):
        load_task(key, mini_tokenizer, **options)


# ---- indirect objects


def test_ioi_by_default_is_the_first_template_in_the_order_abba(mini_tokenizer: Any) -> None:
    task = load_task("ioi", mini_tokenizer)
    assert (task.n, task.length) == (200, 15)
    for row, (text, answer, wrong) in enumerate(zip(task.texts, task.answers, task.wrong, strict=True)):
        fields = {name: values[row] for name, values in task.fields.items()}
        io, subject = fields["IO"], fields["S"]
        assert (fields["name1"], fields["name2"], fields["name3"]) == (io, subject, subject)
        scene = f"went to the {fields['place']}. {subject} gave a {fields['object']} to"
        assert text == f"Then, {io} and {subject} {scene}"
        assert mini_tokenizer.decode(answer) == fields["answer"] == " " + io != " " + subject
        assert mini_tokenizer.decode(wrong) == fields["wrong_answer"] == " " + subject
        assert fields["corrupted.place"] == fields["place"]
        assert fields["corrupted.object"] == fields["object"]
        assert len({fields[f"corrupted.name{i}"] for i in (1, 2, 3)}) == 3


@pytest.mark.parametrize("order", ["ABBA", "BABA"])
def test_ioi_corruptions_follow_their_rules(order: str, tokens: Tokens) -> None:
    def pairs(corruption: str, **options: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        grammar = IndirectObject(tokens, corruption=corruption, orders=[order], **options)
        clean = grammar.draw(200, stream(0, "clean"))
        corrupted = grammar.corrupt(clean, stream(0, "corrupted"))
        return [(dict(a.fields), dict(b.fields)) for a, b in zip(clean, corrupted, strict=True)]

    def three(fields: dict[str, Any]) -> tuple[str, str, str]:
        return fields["name1"], fields["name2"], fields["name3"]

    for clean, other in pairs("s2_rand"):
        assert three(other)[:2] == three(clean)[:2]
        assert other["name3"] not in (clean["IO"], clean["S"])
        assert other["order"] == "ABC"
    for clean, other in pairs("s2_io_flip"):
        assert three(other) == (clean["name1"], clean["name2"], clean["IO"])
        assert (other["IO"], other["answer"]) == (clean["S"], " " + clean["S"])
        assert other["order"] == {"ABBA": "BABA", "BABA": "ABBA"}[order]
    for clean, other in pairs("s1_io_flip"):
        assert three(other) == (clean["name2"], clean["name1"], clean["name3"])
        assert other["answer"] == clean["answer"]
    for _, other in pairs("abc"):
        assert len(set(three(other))) == 3
    meets = [bool({a["IO"], a["S"]} & set(three(b))) for a, b in pairs("abc", names=NAMES)]
    assert all(meets)  # of four names, three new ones meet two old ones
    for clean, other in pairs("abc", names=(*NAMES, "Paul"), avoid_clean_names=True):
        assert not {clean["IO"], clean["S"]} & set(three(other))


# ---- years


def splitting(width: int) -> Any:
    """A tokenizer that cuts numbers after so many digits: one as Gemma and SmolLM2, three as Llama 3."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["The", "war", "plan", "lasted", "from", "the", "year", "to"]
    numbers = [f"{n:0{digits}d}" for digits in range(1, width + 1) for n in range(10**digits)]
    pieces = dict.fromkeys(["[UNK]", " ", *words, *(" " + word for word in words), *numbers])
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    pattern = Regex(rf"\d{{1,{width}}}|\?| ?[^\s\d?]+|\s")
    backend.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


@pytest.mark.parametrize(("width", "shown", "asked"), [(1, 0, 1), (2, 0, 2), (3, 1, 1)])
def test_the_next_token_of_a_year_is_compared(width: int, shown: int, asked: int) -> None:
    tokenizer, every = splitting(width), [f"{n:0{asked}d}" for n in range(10**asked)]
    task = load_task("greater-than", tokenizer, n=300, nouns=["war", "plan"], drop_extremes=False)
    for row, (text, other) in enumerate(zip(task.texts, task.corrupted_texts, strict=True)):
        noun, century, yy = (task.fields[name][row] for name in ("noun", "century", "yy"))
        digit = yy[shown : shown + asked]
        low = "01" if asked == 2 else yy[:shown] + "0" + yy[shown + 1 :]
        for year, written in ((yy, text), (low, other)):
            assert written == f"The {noun} lasted from the year {century}{year} to {century}{yy[:shown]}"
        right, wrong = (
            [tokenizer.decode([i]) for i in ids[row] if i >= 0] for ids in (task.answers, task.wrong)
        )
        assert right == [each for each in every if each > digit]
        assert wrong == [each for each in every if each < digit or (each == digit and width > 1)]
        for answer in (*right, *wrong):  # as the tokenizer writes that year
            assert tokenizer(text + answer)["input_ids"][:-1] == task.clean[row].tolist()
        assert task.fields["n_valid_answers"][row] == len(right)
    years = [f"{yy:02d}" for yy in range(2, 99) if width == 2 or f"{yy:02d}"[shown] not in "09"]
    assert task.grammar.years == tuple((century, yy) for century in task.grammar.centuries for yy in years)
    note = f"digit is asked; {7 * (97 - len(years))} of 679 years, in which it is 0 or 9, are left out"
    assert [each.endswith(note) for each in task.notes] == [True] * (width != 2)


# ---- agreement and pronouns


def test_agreement_answers_with_every_verb_form_of_the_first_noun(mini_tokenizer: Any) -> None:
    task = load_task("sva", mini_tokenizer, n=60)
    singular, plural = {" is", " was", " has", " does"}, {" are", " were", " have", " do"}
    for row in range(task.n):
        right = {mini_tokenizer.decode(i) for i in task.answers[row].tolist()}
        wrong = {mini_tokenizer.decode(i) for i in task.wrong[row].tolist()}
        expected = (singular, plural) if task.fields["number"][row] == "singular" else (plural, singular)
        assert (right, wrong) == expected
        assert task.fields["corrupted.number"][row] != task.fields["number"][row]
        assert task.fields["corrupted.noun2"][row] == task.fields["noun2"][row]
    assert Counter(task.fields["attractor"]).keys() == {"congruent", "incongruent"}


def test_a_filler_that_cannot_be_used_is_left_out_and_named(tokens: Tokens) -> None:
    with pytest.warns(AssayWarning, match=r"ioi: 3 of 5 names .*dropped 'Zyxw', 'Mary Ann'"):
        names = IndirectObject(tokens, names=["Mary", "Zyxw", "John", "Mary Ann", "Lisa"]).names
    assert names == ("Mary", "John", "Lisa")
    # A name that begins the prompt is judged without its space.
    with pytest.warns(AssayWarning, match="2 of 3 female_names .*dropped 'Jamie'"):
        by_gender = GenderedPronoun(tokens, template_ids=[1], female_names=["Mary", "Jamie", "Lisa"]).names
    assert by_gender["female"] == ("Mary", "Lisa")


# ---- docstrings and sequences


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


# ---- the published lists


@pytest.mark.parametrize("name", ["ioi", "greater_than", "docstring", "other_tasks"])
def test_the_package_ships_the_reference_lists_unchanged(name: str, shared: Callable[[str], Path]) -> None:
    assert task_data(name) == json.loads(shared(f"data/tasks/{name}.json").read_text(encoding="utf-8"))


def test_ioi_has_its_published_words_and_positions(gpt2_tokenizer: Any) -> None:
    tokens = Tokens(gpt2_tokenizer)
    grammar = IndirectObject(tokens)
    assert (len(grammar.names), *map(len, grammar.scene.values())) == (99, 8, 8)
    for entry in task_data("ioi")["templates"]:
        task = load_task("ioi", gpt2_tokenizer, n=4, template_ids=[entry["id"]])
        assert set(task.lengths.tolist()) == {entry["n_tokens_gpt2"]}
        for slot, (first, *_) in entry["slot_positions_gpt2"].items():
            assert set(task.slots[slot].tolist()) == {first}, (entry["id"], slot)


def test_the_years_of_gpt2_are_the_published_604(gpt2_tokenizer: Any) -> None:
    tokens = Tokens(gpt2_tokenizer)
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
    assert min(yy for _, yy in GreaterThan(tokens, above=40).years) == "41"
    task, digits = load_task("greater-than", gpt2_tokenizer, n=100), data["two_digit_tokens_gpt2"]
    assert {name: set(where.tolist()) for name, where in task.slots.items()} == {
        "noun": {1}, "century": {6}, "yy": {7},
    }  # fmt: skip
    for row, yy in enumerate(map(int, task.fields["yy"])):
        assert [i for i in task.answers[row].tolist() if i >= 0] == digits[yy + 1 :]
        assert [i for i in task.wrong[row].tolist() if i >= 0] == digits[: yy + 1]
    assert set(task.corrupted[:, 7].tolist()) == {486}  # 01


# ---- variants in one slot


CASES: list[tuple[str, dict[str, Any]]] = [
    *(("ioi", {"corruption": kind, "orders": ["ABBA", "BABA"]}) for kind in TASKS["ioi"].corruptions),
    ("ioi", {"template_ids": [4], "avoid_clean_names": True, "names": [*NAMES, "Paul"]}),
    *((key, {}) for key in SMALL if key != "ioi"),
]  # fmt: skip


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
            found = grammar.variants(values, corrupted=corrupted)
            assert found
            for slot, others in found.items():
                texts = [grammar.render(each).text for each in others]
                assert len(set(texts)) == len(texts)
                assert set(texts) <= drawn - {prompt.text}
                assert all(each[slot] != values[slot] for each in others)

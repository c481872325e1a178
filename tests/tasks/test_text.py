from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from assay.core.errors import AssayWarning, InputError, TokenizationError, UnknownNameError
from assay.core.random import stream
from assay.tasks import TASKS, GreaterThan, IndirectObject, SubjectVerbAgreement, Tokens, load_task
from assay.tasks.text import GenderedPronoun


NAMES = ("Mary", "John", "Lisa", "Mark")
SMALL: dict[str, dict[str, Any]] = {
    "ioi": {
        "names": NAMES,
        "places": ["store", "garden"],
        "objects": ["ring", "bone"],
    },
    "greater-than": {"nouns": ["plan", "study"], "centuries": ["11", "17"], "above": 90},
    "sva": {"nouns": [["key", "keys"], ["child", "children"]], "preps": ["near", "with"]},
    "gendered-pronoun": {"female_names": ["Mary", "Lisa"], "male_names": ["John", "Mark"]},
    "capital-country": {"capitals": {"France": "Paris", "Peru": "Lima", "Cuba": "Havana"}},
}


@pytest.fixture(scope="module")
def tokens(mini_tokenizer: Any) -> Tokens:
    return Tokens(mini_tokenizer)


# ------------------------------------------------------------------------------------------- any grammar


@pytest.mark.parametrize("key", list(TASKS))
def test_clean_and_corrupted_prompts_differ_and_are_equally_long(
    key: str, tokenizer_of: Callable[[str], Any]
) -> None:
    task = load_task(key, tokenizer_of(key), n=50)
    assert task.fields["n_tokens"] == task.fields["corrupted.n_tokens"] == task.lengths.tolist()
    assert bool((task.clean != task.corrupted).any(1).all())


@pytest.mark.parametrize("key", list(TASKS))
def test_a_longer_draw_begins_with_the_shorter_one(key: str, tokenizer_of: Callable[[str], Any]) -> None:
    short, long = (load_task(key, tokenizer_of(key), n=n, seed=3) for n in (7, 20))
    width = short.length
    assert short.clean.tolist() == long.clean[:7, :width].tolist()
    assert short.corrupted.tolist() == long.corrupted[:7, :width].tolist()


@pytest.mark.parametrize("key", list(TASKS))
def test_the_seed_decides_everything(key: str, tokenizer_of: Callable[[str], Any]) -> None:
    hashes = [load_task(key, tokenizer_of(key), n=20, seed=seed).data_hash for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("key", SMALL)
def test_every_prompt_is_drawn_as_often(key: str, tokenizer_of: Callable[[str], Any]) -> None:
    grammar = TASKS[key](Tokens(tokenizer_of(key)), **SMALL[key])
    drawn = Counter(prompt.text for prompt in grammar.draw(4000, stream(0, "clean")))
    assert chisquare(list(drawn.values())).pvalue > 1e-3
    (clean,) = grammar.draw(1, stream(5, "clean"))
    others = Counter(prompt.text for prompt in grammar.corrupt([clean] * 2000, stream(5, "corrupted")))
    assert clean.text not in others
    assert len(others) == 1 or chisquare(list(others.values())).pvalue > 1e-3


@pytest.mark.parametrize("key", list(TASKS))
def test_an_unknown_corruption_is_refused_with_near_matches(
    key: str, tokenizer_of: Callable[[str], Any]
) -> None:
    near = TASKS[key].corruptions[0]
    with pytest.raises(UnknownNameError, match=f"unknown corruption of {key} .*did you mean .*{near}"):
        load_task(key, tokenizer_of(key), corruption=near + "x")


def test_fillers_that_are_not_one_token_are_dropped_and_listed(mini_tokenizer: Any) -> None:
    with pytest.warns(AssayWarning, match=r"ioi: dropped 2 of 5 names .*'Zyxw', 'Mary Ann'"):
        task = load_task("ioi", mini_tokenizer, n=30, names=["Mary", "Zyxw", "John", "Mary Ann", "Lisa"])
    assert set(task.fields["IO"]) == {"Mary", "John", "Lisa"}


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        (
            "ioi",
            {"objects": ["Zyxw", "ring"]},
            r"ioi: 1 of 2 objects can be used .*at least 2.*dropped 'Zyxw'",
        ),
        ("ioi", {"names": ["Mary", "John"]}, "ioi: 2 of 2 names can be used .*expected at least 3"),
        ("ioi", {"names": NAMES, "avoid_clean_names": True}, "expected at least 5"),
        (
            "docstring",
            {"arg_names": ["load", "size"]},
            "docstring: 2 of 2 arg_names .*expected at least 15",
        ),
        ("docstring", {"words": ["oil"]}, "docstring: 1 of 1 words .*at least 3"),
        ("sva", {"verbs": [["is", "blibber"]]}, "sva: 0 of 1 verbs .*expected at least 1"),
    ],
)
def test_too_few_usable_fillers_are_an_error(
    key: str, options: Any, message: str, mini_tokenizer: Any
) -> None:
    with pytest.raises(TokenizationError, match=message):
        load_task(key, mini_tokenizer, **options)


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        ("ioi", {"names": ["Mary", "John", "Mary"]}, "names holds 'Mary' more than once"),
        ("ioi", {"template_ids": [20]}, "unknown ioi template id 20"),
        (
            "ioi",
            {"templates": ["{name1} and {name2} saw"]},
            "must have name1, name2, name3, and may have place",
        ),
        ("ioi", {"templates": ["{name1} {name2} {name3} {thing}"]}, "slots name1, name2, name3, thing"),
        ("ioi", {"orders": ["ABAB"]}, "unknown IOI order 'ABAB'; did you mean 'BABA'"),
        ("greater-than", {"template": "lnog"}, "unknown greater-than template 'lnog'"),
        ("greater-than", {"template": "{noun} {yy}"}, "must have noun, century, yy"),
        ("greater-than", {"above": 97}, "greater-than: 0 years can be used .*Lower `above`"),
        ("sva", {"nouns": ["keys", "doors"]}, r"sva: nouns holds 'keys'; give pairs \(singular, plural\)"),
        ("sva", {"attractor": "incongrous"}, "unknown attractor 'incongrous'; did you mean 'incongruent'"),
        ("gendered-pronoun", {"template_ids": [7]}, "unknown gendered-pronoun template id 7"),
        ("docstring", {"style": "google"}, "unknown docstring style 'google'; did you mean 'goog'"),
        ("induction", {"length": 1}, "length is 1; expected 2 to"),
        ("induction", {"length": 8, "k": 8}, r"k is 8; expected 1 to 7 for length 8"),
        (
            "induction",
            {"length": 5000},
            "length is 5000; expected 2 to .* ids, as many as the vocabulary has",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(
    key: str, options: Any, message: str, mini_tokenizer: Any
) -> None:
    with pytest.raises(InputError, match=message):
        load_task(key, mini_tokenizer, **options)


# --------------------------------------------------------------------------------------------------- IOI


def test_ioi_by_default_is_the_first_template_in_the_order_abba(mini_tokenizer: Any) -> None:
    task = load_task("ioi", mini_tokenizer)
    assert (task.n, task.length) == (200, 15)
    assert {name: set(where.tolist()) for name, where in task.slots.items()} == {
        "name1": {2}, "name2": {4}, "place": {8}, "name3": {10}, "object": {13},
    }  # fmt: skip
    assert task.texts is not None
    for row in range(task.n):
        fields = {name: values[row] for name, values in task.fields.items()}
        assert fields["name1"] == fields["IO"] != fields["S"] == fields["name2"] == fields["name3"]
        assert task.texts[row] == (
            f"Then, {fields['IO']} and {fields['S']} went to the {fields['place']}. "
            f"{fields['S']} gave a {fields['object']} to"
        )
        assert mini_tokenizer.decode(task.answers[row]) == fields["answer"] == " " + fields["IO"]
        assert task.wrong is not None
        assert mini_tokenizer.decode(task.wrong[row]) == fields["wrong_answer"] == " " + fields["S"]
        assert fields["corrupted.place"] == fields["place"]
        assert fields["corrupted.object"] == fields["object"]
        assert len({fields[f"corrupted.name{i}"] for i in (1, 2, 3)}) == 3


def test_ioi_mixes_templates_and_orders_evenly(mini_tokenizer: Any) -> None:
    fields = load_task("ioi", mini_tokenizer, n=2000, template_ids=range(20), orders=("ABBA", "BABA")).fields
    counts = Counter(zip(fields["template_id"], fields["order"], strict=True))
    assert len(counts) == 40
    assert chisquare(list(counts.values())).pvalue > 1e-3


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


# ------------------------------------------------------------------------------------------ greater-than


def test_greater_than_asks_for_a_later_year(mini_tokenizer: Any) -> None:
    task = load_task("greater-than", mini_tokenizer, n=50)
    assert task.objective == "prob_diff"
    assert (task.length, {k: set(v.tolist()) for k, v in task.slots.items()}) == (
        10,
        {"noun": {1}, "century": {6}, "yy": {7}},
    )
    assert task.wrong is not None
    for row in range(task.n):
        yy = int(task.fields["yy"][row])
        answers = [int(mini_tokenizer.decode(i)) for i in task.answers[row].tolist() if i >= 0]
        wrong = [int(mini_tokenizer.decode(i)) for i in task.wrong[row].tolist() if i >= 0]
        assert answers == list(range(yy + 1, 100))
        assert wrong == list(range(yy + 1))
        assert task.fields["n_valid_answers"][row] == len(answers)
        assert task.fields["corrupted.year"][row] == task.fields["century"][row] + "01"
        assert task.fields["corrupted.noun"][row] == task.fields["noun"][row]


def test_the_years_lose_the_extremes_of_their_century(tokens: Tokens) -> None:
    assert GreaterThan(tokens, centuries=["11", "12"]).years[:1] == (("11", "03"),)
    assert GreaterThan(tokens, centuries=["11", "12"]).years[94:96] == (("11", "97"), ("12", "03"))
    assert len(GreaterThan(tokens, drop_extremes=False).years) == 7 * 97
    assert min(yy for _, yy in GreaterThan(tokens, above=40).years) == "41"


def test_greater_than_long_ends_with_the_word_year(mini_tokenizer: Any) -> None:
    task = load_task("greater-than", mini_tokenizer, n=3, template="long")
    assert task.texts is not None
    assert all(f"to the year {c}" in t for t, c in zip(task.texts, task.fields["century"], strict=True))
    assert task.length == 12


def test_a_tokenizer_without_two_token_years_is_refused(mini_tokenizer: Any) -> None:
    with pytest.raises(TokenizationError, match=r"greater-than: 0 of 2 centuries can be used"):
        load_task("greater-than", mini_tokenizer, centuries=["31", "42"])


@pytest.mark.parametrize(("width", "shown", "asked"), [(1, 0, 1), (2, 0, 2), (3, 1, 1)])
def test_the_next_token_of_a_year_is_compared(
    width: int, shown: int, asked: int, splitting: Callable[[int], Any]
) -> None:
    tokenizer, options = splitting(width), {"nouns": ["war", "plan"], "drop_extremes": False}
    task = load_task("greater-than", tokenizer, n=300, **options)
    assert task.texts is not None
    assert task.corrupted_texts is not None
    assert task.wrong is not None
    for row in range(task.n):
        noun, century, yy = (task.fields[name][row] for name in ("noun", "century", "yy"))
        digit = yy[shown : shown + asked]
        low = "01" if asked == 2 else yy[:shown] + "0" + yy[shown + 1 :]
        for year, text in ((yy, task.texts[row]), (low, task.corrupted_texts[row])):
            assert text == f"The {noun} lasted from the year {century}{year} to {century}{yy[:shown]}"
        right, wrong = (
            [tokenizer.decode([i]) for i in ids[row] if i >= 0] for ids in (task.answers, task.wrong)
        )
        every = [f"{n:0{asked}d}" for n in range(10**asked)]
        assert right == [each for each in every if each > digit]
        assert wrong == [each for each in every if each < digit or (each == digit and width > 1)]
        for answer in (*right, *wrong):  # as the tokenizer writes that year
            ids = tokenizer(task.texts[row] + answer)["input_ids"]
            assert ids[:-1] == task.clean[row].tolist()
    grammar = GreaterThan(Tokens(tokenizer), **options)
    years = [f"{yy:02d}" for yy in range(2, 99) if width == 2 or f"{yy:02d}"[shown] not in "09"]
    assert grammar.years == tuple((c, yy) for c in grammar.centuries for yy in years)
    note = (
        f"greater-than: the tokenizer splits years, so one digit is asked; {7 * (97 - len(years))} of 679 "
        "years, in which it is 0 or 9, are left out"
    )
    assert task.notes == grammar.notes == (() if width == 2 else (note,))


# ------------------------------------------------------------------------------ agreement and pronouns


def test_agreement_answers_with_every_verb_form_of_the_first_noun(mini_tokenizer: Any) -> None:
    task = load_task("sva", mini_tokenizer, n=60)
    singular, plural = {" is", " was", " has", " does"}, {" are", " were", " have", " do"}
    assert task.wrong is not None
    for row in range(task.n):
        right = {mini_tokenizer.decode(i) for i in task.answers[row].tolist()}
        wrong = {mini_tokenizer.decode(i) for i in task.wrong[row].tolist()}
        expected = (singular, plural) if task.fields["number"][row] == "singular" else (plural, singular)
        assert (right, wrong) == expected
        assert task.fields["corrupted.number"][row] != task.fields["number"][row]
        assert task.fields["corrupted.noun2"][row] == task.fields["noun2"][row]
    assert Counter(task.fields["attractor"]).keys() == {"congruent", "incongruent"}


def test_an_incongruent_attractor_disagrees_with_the_subject(tokens: Tokens) -> None:
    grammar = SubjectVerbAgreement(tokens, attractor="incongruent", verbs=[["is", "are"]])
    singular = {pair[0] for pair in grammar.nouns}
    for prompt in grammar.draw(50, np.random.default_rng(0)):
        assert prompt.fields["attractor"] == "incongruent"
        assert (prompt.fields["noun1"] in singular) != (prompt.fields["noun2"] in singular)
        assert prompt.answers == ((" is",) if prompt.fields["noun1"] in singular else (" are",))


def test_a_pronoun_follows_the_name_and_its_corruption_changes_the_gender(mini_tokenizer: Any) -> None:
    task = load_task("gendered_pronoun", mini_tokenizer, n=40, template_ids=[0, 2])
    for row in range(task.n):
        pronoun = {"female": " she", "male": " he"}[task.fields["gender"][row]]
        assert mini_tokenizer.decode(task.answers[row]) == pronoun
        assert task.fields["corrupted.gender"][row] != task.fields["gender"][row]
        assert task.fields["corrupted.template_id"][row] == task.fields["template_id"][row]


def test_a_name_that_begins_the_prompt_is_judged_without_its_space(tokens: Tokens) -> None:
    with pytest.warns(AssayWarning, match="dropped 1 of 3 female_names .*'Jamie'"):
        names = GenderedPronoun(tokens, template_ids=[1], female_names=["Mary", "Jamie", "Lisa"]).names
    assert names["female"] == ("Mary", "Lisa")

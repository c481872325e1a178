"""Prompts as turns of a chat, and answers scored by their first token."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from bos_tokenizers import adding
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import AssayWarning, TokenizationError, UnknownNameError
from assay.tasks import Prompt, Tokens, encode_prompts, load_task, pair_task


TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
TRIMMED = TEMPLATE.replace("['content'] }}", "['content'] | trim }}")
SHOUTED = TEMPLATE.replace("['content'] }}", "['content'] | upper }}")


@pytest.fixture(scope="module")
def chatty(gpt2_tokenizer: Any) -> Any:
    return templated(gpt2_tokenizer, TEMPLATE)


def templated(tokenizer: Any, template: str) -> Any:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


# ------------------------------------------------------------------------------------------------- chats


def test_a_prompt_becomes_a_turn_and_its_slots_follow(chatty: Any) -> None:
    prompt = Prompt(text="Mary met John", slots={"who": (0, 4), "whom": (9, 13)}, answers=(" Mary",))
    coded = encode_prompts([prompt], Tokens(chatty, chat=True))
    assert coded.texts == ("<user>\nMary met John\n<assistant>\n",)
    assert chatty.decode(coded.ids[0]) == coded.texts[0]
    assert {slot: chatty.decode(coded.ids[0, at]) for slot, at in coded.slots.items()} == {
        "who": "Mary",
        "whom": " John",
    }
    assert coded.positions.tolist() == [coded.ids.shape[1] - 1]
    assert chatty.decode(coded.ids[0, -1]) == "\n"
    assert coded.answers is not None
    assert chatty.batch_decode(coded.answers) == ["Mary"]


def test_a_chat_begins_once() -> None:
    tokenizer = templated(adding("bos"), "<s>{{ messages[0]['content'] }}")
    coded = encode_prompts([Prompt(text="Then, Mary", slots={"who": (6, 10)})], Tokens(tokenizer, chat=True))
    assert coded.ids.tolist() == [tokenizer("Then, Mary")["input_ids"]]
    assert (coded.texts, coded.slots["who"].tolist()) == (("<s>Then, Mary",), [3])


def test_a_registered_task_is_the_same_in_a_chat(chatty: Any) -> None:
    plain = load_task("capital-country", chatty, n=20)
    task = load_task("capital-country", chatty, n=20, chat=True, answer_tokens="first")
    assert task.texts is not None
    assert all(text.startswith("<user>\nThe capital of ") for text in task.texts)
    assert all(text.endswith(" is the city of\n<assistant>\n") for text in task.texts)
    starts = chatty.batch_decode(task.answers)
    assert all(map(str.startswith, task.fields["capital"], starts))
    assert chatty.batch_decode(task.clean[range(20), task.slots["country"]][:, None]) == [
        f" {country}" for country in task.fields["country"]
    ]
    assert task.data_hash != plain.data_hash
    assert (task.config["chat"], "chat" in plain.config) == (True, False)


def test_names_that_cannot_begin_a_turn_are_left_out(chatty: Any) -> None:
    with pytest.warns(
        AssayWarning, match=r"ioi: dropped \d+ of 99 names \(one token after a space and as an"
    ):
        task = load_task("ioi", chatty, n=30, chat=True)
    assert chatty.batch_decode(task.answers) == task.fields["IO"]
    assert task.corrupted_texts is not None
    assert all(text.endswith("<assistant>\n") for text in task.corrupted_texts)


@pytest.mark.slow
@given(
    text=st.text("ab \n.", min_size=1).filter(str.strip),
    template=st.sampled_from([TEMPLATE, TRIMMED]),
)
@settings(max_examples=60, deadline=None)
def test_a_turn_holds_the_text_where_its_shift_says(text: str, template: str, gpt2_tokenizer: Any) -> None:
    whole, shift = Tokens(templated(gpt2_tokenizer, template), chat=True).turn_of(text)
    for at, letter in enumerate(text):
        if not letter.isspace():
            assert whole[at + shift] == letter
    assert text.strip() in whole


def test_a_template_that_trims_keeps_the_slots(gpt2_tokenizer: Any) -> None:
    tokenizer = templated(gpt2_tokenizer, TRIMMED)
    prompt = Prompt(text="How much is 12 plus 34? A: ", slots={"b": (20, 22)})
    coded = encode_prompts([prompt], Tokens(tokenizer, chat=True))
    assert coded.texts == ("<user>\nHow much is 12 plus 34? A:\n<assistant>\n",)
    assert tokenizer.decode(coded.ids[0, coded.slots["b"]]) == " 34"


def test_a_chat_answer_of_two_tokens_is_reported_as_two(chatty: Any) -> None:
    """Behind a turn an answer is written without its space, and that is what is counted."""
    tokens = Tokens(chatty, chat=True)
    word = next(w for w in ("Mali", "Oslo", "Nairobi", "Bamako") if len(chatty(w)["input_ids"]) == 2)
    with pytest.raises(TokenizationError, match=f"answer ' {word}' of the prompt .* is 2 tokens"):
        encode_prompts([Prompt(text="The city of", answers=(f" {word}",))], tokens)


def test_a_chat_that_cannot_be_is_refused(
    gpt2_tokenizer: Any, chatty: Any, mini_tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(TokenizationError, match="chat=True needs a tokenizer with a chat template, but this"):
        load_task("ioi", gpt2_tokenizer, chat=True)
    with pytest.raises(TokenizationError, match="chat=True and bos=True exclude each other"):
        load_task("ioi", chatty, chat=True, bos=True)
    with pytest.raises(TokenizationError, match="chat template changes the text of the prompt 'Q: How"):
        Tokens(templated(gpt2_tokenizer, SHOUTED), chat=True).turn_of("Q: How")
    with pytest.raises(
        TokenizationError, match=r"prompt ids \[.*has no text that a chat template could wrap"
    ):
        load_task("induction", chatty, chat=True)
    path = tmp_path / "ids.jsonl"
    path.write_text(json.dumps({"clean": [1], "corrupted": [2], "answers": [3]}))
    with pytest.raises(TokenizationError, match="chat=True and bos=True need the model's tokenizer"):
        load_task(path, None, chat=True)


# ----------------------------------------------------------------------------------------------- answers


def first(gpt2_tokenizer: Any, answer: str, wrong: str) -> Any:
    tokens = Tokens(gpt2_tokenizer, answer_tokens="first")
    clean = Prompt(text="The city of", answers=(answer,), wrong=(wrong,))
    return pair_task([clean], [Prompt(text="The town of")], tokens, name="x")


def test_an_answer_is_scored_by_its_first_token(gpt2_tokenizer: Any) -> None:
    task = first(gpt2_tokenizer, " Bamako", " Nairobi")
    whole = [gpt2_tokenizer(city)["input_ids"] for city in (" Bamako", " Nairobi")]
    assert [len(ids) > 1 for ids in whole] == [True, True]
    assert (task.answers.tolist(), task.wrong.tolist()) == ([[whole[0][0]]], [[whole[1][0]]])
    with pytest.raises(
        TokenizationError,
        match=r"answer ' Bamako' of the prompt 'The city of' is \d tokens; .*answer_tokens='first' scores it",
    ):
        encode_prompts([Prompt(text="The city of", answers=(" Bamako",))], Tokens(gpt2_tokenizer))


def test_answers_that_begin_alike_are_refused(gpt2_tokenizer: Any) -> None:
    ids = [gpt2_tokenizer(city)["input_ids"] for city in (" Bamako", " Bamaga")]
    assert ids[0][0] == ids[1][0]
    with pytest.raises(
        TokenizationError,
        match=r"answers \(' Bamako',\) and wrong answers \(' Bamaga',\) of the prompt 'The .* begin with",
    ):
        first(gpt2_tokenizer, " Bamako", " Bamaga")


def test_pairs_whose_answers_begin_alike_are_left_out(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    rows = [
        {"clean": "The city of", "corrupted": "The town of", "answers": [right], "wrong": [wrong]}
        for right, wrong in ((" Bamako", " Bamaga"), (" Bamako", " Oslo"), (" Paris", " Bamaga"))
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    task = load_task(path, gpt2_tokenizer, answer_tokens="first")
    assert task.ids.tolist() == [2, 3]
    assert gpt2_tokenizer.batch_decode(task.wrong) == [" Oslo", " Bam"]
    assert task.notes == (
        "1 of 3 pairs, whose right and wrong answers begin with the same token, are left out",
    )
    path.write_text("\n".join(map(json.dumps, rows[:1] * 2)))
    with pytest.raises(TokenizationError, match=r"rows.jsonl: answers .* as in all 2 pairs"):
        load_task(path, gpt2_tokenizer, answer_tokens="first")
    path.write_text("\n".join(map(json.dumps, [rows[0], {**rows[1], "corrupted": "Of"}, *rows[1:]])))
    task = load_task(path, gpt2_tokenizer, answer_tokens="first")
    assert task.ids.tolist() == [3, 4]
    assert [note.split(",")[0] for note in task.notes] == ["1 of 4 pairs", "1 of 3 pairs"]


def test_grammars_pair_answers_that_differ_in_their_first_token(gpt2_tokenizer: Any) -> None:
    capitals = {"Kenya": "Nairobi", "France": "Paris", "Peru": "Bamako", "Spain": "Bamaga"}
    task = load_task("capital-country", gpt2_tokenizer, n=60, capitals=capitals, answer_tokens="first")
    pairs = set(zip(task.fields["country"], task.fields["corrupted.country"], strict=True))
    assert ("Peru", "France") in pairs
    assert not {("Peru", "Spain"), ("Spain", "Peru")} & pairs
    assert task.config["answer_tokens"] == "first"


def test_rows_of_a_file_are_scored_by_the_first_token_if_told(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    row = {
        "prompt": "Bamako is", "choices": ["Bamako", "Nairobi"], "answerKey": 0,
        "abc_counterfactual": {"prompt": "Bamako was", "choices": ["Oslo", "Rome"], "answerKey": 0},
    }  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(TokenizationError, match="none of the 1 rows .*answer_tokens='first' scores it"):
        load_task(path, gpt2_tokenizer)
    task = load_task(path, gpt2_tokenizer, answer_tokens="first")
    assert gpt2_tokenizer.decode(task.answers[0]) == gpt2_tokenizer.decode(
        gpt2_tokenizer(" Bamako")["input_ids"][0]
    )


def test_an_unknown_rule_of_answers_has_near_matches(gpt2_tokenizer: Any) -> None:
    with pytest.raises(UnknownNameError, match="unknown answer_tokens 'frist'; did you mean 'first'"):
        load_task("ioi", gpt2_tokenizer, answer_tokens="frist")

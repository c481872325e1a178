"""Prompts as token ids: what a tokenizer begins them with, chats, answers, and what a model can read."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bos_tokenizers import SHAPES, Letters, adding
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from assay.core.errors import AssayWarning, InputError, TokenizationError, UnknownNameError
from assay.models import load_model
from assay.tasks import PairTask, Prompt, Tokens, encode_prompts, load_task, read_pairs


def write(path: Path, *records: Any) -> Path:
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


PAIR = {
    "clean": "Then, Mary and John went to the store. John gave a ring to",
    "corrupted": "Then, Mary and Lisa went to the store. Paul gave a ring to",
    "answers": [" Mary"],
    "wrong": [" John"],
    "place": "store",
    "corrupted.speaker": "Paul",
}


class Loaded:
    """What a loaded model shows to a task."""

    def __init__(self, tokenizer: Any, n_vocab: int, n_positions: int | None = None) -> None:
        self.tokenizer, self.n_vocab, self.n_positions = tokenizer, n_vocab, n_positions


def test_a_task_is_found_by_either_spelling_and_knows_how_to_be_drawn_again(mini_tokenizer: Any) -> None:
    a, b = (load_task(name, mini_tokenizer, n=2) for name in ("greater_than", "greater-than"))
    assert (a.data_hash, a.name) == (b.data_hash, b.name)
    task = load_task("ioi", mini_tokenizer, n=4, seed=9, template_ids=range(2), corruption="s2_rand")
    assert json.loads(json.dumps(task.config)) == {
        "task": "ioi",
        "generator_version": 1,
        "corruption": "s2_rand",
        "options": {"template_ids": [0, 1], "corruption": "s2_rand"},
        "bos": False,
        "n": 4,
        "seed": 9,
    }


def test_what_a_model_cannot_read_is_refused(mini_tokenizer: Any) -> None:
    assert load_task("ioi", Loaded(mini_tokenizer, len(mini_tokenizer)), n=2).tokenizer is mini_tokenizer
    with pytest.raises(TokenizationError, match="clean holds id .*vocabulary ends at 9"):
        load_task("ioi", Loaded(mini_tokenizer, 10), n=2)
    with pytest.raises(TokenizationError, match="task 'ioi' needs a tokenizer, but the model has none"):
        load_task("ioi", Loaded(None, 10), n=2)
    with pytest.raises(TokenizationError, match="'induction' has 79 tokens, .* reads only 64"):
        load_task("induction", Loaded(mini_tokenizer, len(mini_tokenizer), 64), n=2, length=40, k=39)
    with pytest.raises(UnknownNameError, match="unknown task 'greater-then'; did you mean 'greater-than'"):
        load_task("greater-then", mini_tokenizer)
    with pytest.raises(UnknownNameError, match="unknown option of task 'ioi' 'object'; did you mean 'objec"):
        load_task("ioi", mini_tokenizer, object=["ring"])
    with pytest.raises(InputError, match=r"model is 'mini'; give a loaded model or a tokenizer"):
        load_task("ioi", "mini")


def test_prompts_longer_than_a_rotary_model_was_made_for_are_reported(llama_tiny64: nn.Module) -> None:
    model, most = load_model(llama_tiny64), llama_tiny64.config.max_position_embeddings
    ids = torch.arange(most + 1).expand(4, -1) % 80
    task = PairTask(clean=ids, corrupted=ids.flip(1), answers=torch.ones(4, 1, dtype=torch.long), name="long")
    with pytest.warns(AssayWarning, match=f"has {most + 1} tokens, .* was made for {most}"):
        model.bind(task)


# ---- the beginning of prompts


def ids_of(task: Any, side: str = "clean") -> list[list[int]]:
    rows = zip(getattr(task, side).tolist(), task.lengths.tolist(), strict=True)
    return [ids[:length] for ids, length in rows]


def first_words(tokenizer: Any, text: str) -> list[int]:
    """What a tokenizer makes of a text, without an end token behind it."""
    ids = tokenizer(text)["input_ids"]
    return ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids


MIB = {
    "prompt": PAIR["clean"],
    "choices": [" Mary", " John"],
    "answerKey": 0,
    "s2_io_flip_counterfactual": {"prompt": PAIR["corrupted"], "choices": [" Paul", " Lisa"], "answerKey": 0},
}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_are_what_the_tokenizer_makes_of_them(shape: str, stored: bool, tmp_path: Path) -> None:
    tokenizer = adding(shape)
    if stored:
        from transformers import AutoTokenizer

        tokenizer.save_pretrained(tmp_path / "stored")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "stored")
    sources: list[Any] = ["ioi", "sva", write(tmp_path / "a.jsonl", PAIR), write(tmp_path / "b.jsonl", MIB)]
    begins = shape not in ("eos", "none")
    shift = len(Tokens(tokenizer).prefix)
    for source in sources:
        task, without = (load_task(source, tokenizer, n=1, **named) for named in ({}, {"bos": False}))
        for side, texts in (("clean", task.texts), ("corrupted", task.corrupted_texts)):
            assert ids_of(task, side) == [first_words(tokenizer, text) for text in texts]
            plain = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
            assert ids_of(without, side) == plain
        # Answers, read positions and slots are those of the prompt's own words.
        assert torch.equal(task.answers, without.answers)
        assert (task.positions - without.positions).tolist() == [shift]
        assert all((task.slots[name] - at).tolist() == [shift] for name, at in without.slots.items())
        assert (task.config["bos"], without.config["bos"]) == (begins, False)
        assert (task.data_hash == without.data_hash) is not begins


def test_a_task_begins_as_its_tokenizer_does_in_python_too(tmp_path: Path) -> None:
    """A tokenizer without offsets; read positions move with what it puts before the words."""
    tokenizer = Letters()
    row = {"clean": "ab c", "corrupted": "ab d", "answers": ["e"]}
    task = load_task(write(tmp_path / "a.jsonl", row), tokenizer)
    assert ids_of(task) == [tokenizer("ab c")["input_ids"][:-1]]
    assert task.positions.tolist() == [4]
    without = load_task(tmp_path / "a.jsonl", tokenizer, bos=False)
    assert without.positions.tolist() == [3]


def test_token_ids_are_all_that_is_read_and_drawn_ones_are_begun(tmp_path: Path) -> None:
    tokenizer = adding("bos")
    bos = tokenizer.bos_token_id
    row = {"clean": [5, 6, 7], "corrupted": [5, 8, 7], "answers": [3]}
    path = write(tmp_path / "ids.jsonl", row)
    task, begun = load_task(path, tokenizer), load_task(path, tokenizer, bos=True)
    assert (ids_of(task), task.positions.tolist(), task.config["bos"]) == ([[5, 6, 7]], [2], False)
    assert (ids_of(begun), begun.positions.tolist(), begun.config["bos"]) == (
        [[bos, 5, 6, 7]],
        [3],
        True,
    )
    drawn, without = (load_task("induction", tokenizer, n=4, k=3, **named) for named in ({}, {"bos": False}))
    assert ids_of(drawn) == [[bos, *ids] for ids in ids_of(without)]
    assert (drawn.slots["second"] - without.slots["second"]).tolist() == [1] * 4
    with pytest.raises(TokenizationError, match="chat=True and bos=True need the model's tokenizer"):
        read_pairs(path, bos=True)


def test_a_prompt_that_holds_the_token_already_is_told(tmp_path: Path) -> None:
    tokenizer = adding("bos")
    written = {**PAIR, "clean": f"<s>{PAIR['clean']}", "corrupted": f"<s>{PAIR['corrupted']}"}
    path = write(tmp_path / "written.jsonl", written)
    with pytest.warns(AssayWarning, match="1 of 1 prompts begin with BOS twice, as '<s>Then.* set bos to"):
        task = load_task(path, tokenizer)
    assert ids_of(task) == [tokenizer(written["clean"])["input_ids"]]
    assert ids_of(load_task(path, tokenizer, bos=False)) == [tokenizer(PAIR["clean"])["input_ids"]]


def test_a_slot_is_the_last_token_of_its_filler(mini_tokenizer: Any) -> None:
    class Slow:
        """The same tokenizer without character offsets."""

        is_fast = False

        def __getattr__(self, name: str) -> Any:
            return getattr(mini_tokenizer, name)

        def __call__(self, text: Any, add_special_tokens: bool, return_offsets_mapping: bool = False) -> Any:
            assert not return_offsets_mapping
            return mini_tokenizer(text, add_special_tokens=add_special_tokens)

    text = "The keys near the door"
    prompt = Prompt(text=text, slots={"where": (9, len(text)), "first": (0, 3)})
    for tokenizer in (mini_tokenizer, Slow()):
        coded = encode_prompts([prompt], Tokens(tokenizer))
        assert {name: where.tolist() for name, where in coded.slots.items()} == {"where": [4], "first": [0]}


# ---- chats


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


def test_a_chat_answer_of_two_tokens_is_reported_as_two(chatty: Any) -> None:
    """Behind a turn an answer is written without its space, and that is what is counted."""
    tokens = Tokens(chatty, chat=True)
    word = next(w for w in ("Mali", "Oslo", "Nairobi", "Bamako") if len(chatty(w)["input_ids"]) == 2)
    with pytest.raises(TokenizationError, match=f"answer ' {word}' of the prompt .* is 2 tokens"):
        encode_prompts([Prompt(text="The city of", answers=(f" {word}",))], tokens)


def test_a_chat_that_cannot_be_is_refused(gpt2_tokenizer: Any, chatty: Any, mini_tokenizer: Any) -> None:
    with pytest.raises(TokenizationError, match="chat=True needs a tokenizer with a chat template, but this"):
        load_task("ioi", gpt2_tokenizer, chat=True)
    with pytest.raises(TokenizationError, match="chat=True and bos=True exclude each other"):
        load_task("ioi", chatty, chat=True, bos=True)
    with pytest.raises(TokenizationError, match="chat template changes the text of the prompt 'Q: How"):
        Tokens(templated(gpt2_tokenizer, SHOUTED), chat=True).turn_of("Q: How")
    with pytest.raises(TokenizationError, match=r"prompt ids \[.*has no text that a chat template could"):
        load_task("induction", chatty, chat=True)
    with pytest.raises(TokenizationError, match="bos=True needs a tokenizer with a beginning-of-sequence"):
        load_task("ioi", adding("none", bos_token=None), n=2, bos=True)


# ---- answers


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


def test_a_continuation_is_judged_in_its_context(mini_tokenizer: Any) -> None:
    tokens = Tokens(mini_tokenizer)
    assert tokens.one_token("gave a ring to", " Mary") == mini_tokenizer.convert_tokens_to_ids(" Mary")
    assert tokens.one_token("", "Mary") == mini_tokenizer.convert_tokens_to_ids("Mary")
    assert tokens.one_token("to 17", "45") == mini_tokenizer.convert_tokens_to_ids("45")
    assert tokens.one_token("to", " Mary and") is None
    assert tokens.one_token("to", " Zyxw") is None

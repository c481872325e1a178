"""Prompts as token ids: what a tokenizer begins them with, chats, slots, answers in context."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bos_tokenizers import SHAPES, Letters, adding
from torch import nn

from assay.core.errors import AssayWarning, InputError, TokenizationError, UnknownNameError
from assay.models import load_model
from assay.tasks import PairTask, Prompt, Tokens, encode_prompts, load_task, read_pairs


CLEAN = "Then, Mary and John went to the store. John gave a ring to"
CORRUPTED = "Then, Mary and Lisa went to the store. Paul gave a ring to"
PAIR = {"clean": CLEAN, "corrupted": CORRUPTED, "answers": [" Mary"], "wrong": [" John"]}


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def ids_of(task: Any, side: str = "clean") -> list[list[int]]:
    rows = zip(getattr(task, side).tolist(), task.lengths.tolist(), strict=True)
    return [ids[:length] for ids, length in rows]


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


def test_what_a_model_cannot_read_is_refused(mini_tokenizer: Any, llama_tiny64: nn.Module) -> None:
    known = len(mini_tokenizer)
    for name, model, options, error, message in (
        ("ioi", Loaded(mini_tokenizer, 10), {}, TokenizationError, "clean .* holds id .*lary ends at 9"),
        ("ioi", Loaded(None, 10), {}, TokenizationError, "task 'ioi' needs a tokenizer"),
        ("induction", Loaded(mini_tokenizer, known, 64), {"length": 40, "k": 39}, TokenizationError,
         "'induction' has 79 tokens, .* reads only 64"),
        ("greater-then", mini_tokenizer, {}, UnknownNameError, "did you mean 'greater-than'"),
        ("ioi", mini_tokenizer, {"object": ["ring"]}, UnknownNameError, "option of task 'ioi' 'object'; did"),
        ("ioi", "mini", {}, InputError, r"model is 'mini'; give a loaded model"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            load_task(name, model, n=2, **options)
    model, most = load_model(llama_tiny64), llama_tiny64.config.max_position_embeddings
    ids = torch.arange(most + 1).expand(4, -1) % 80
    task = PairTask(clean=ids, corrupted=ids.flip(1), answers=torch.ones(4, 1, dtype=torch.long), name="long")
    with pytest.warns(AssayWarning, match=f"has {most + 1} tokens, .* was made for {most}"):
        model.bind(task)


# ---- the beginning of prompts


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_are_what_the_tokenizer_makes_of_them(shape: str, stored: bool, tmp_path: Path) -> None:
    tokenizer = adding(shape)
    if stored:
        from transformers import AutoTokenizer

        tokenizer.save_pretrained(tmp_path / "stored")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "stored")

    def first_words(text: str) -> list[int]:
        """What the tokenizer makes of a text, without an end token behind it."""
        ids = tokenizer(text)["input_ids"]
        return ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids

    begins, shift = shape not in ("eos", "none"), len(Tokens(tokenizer).prefix)
    for source in ("ioi", "sva", write(tmp_path / "a.jsonl", PAIR)):
        task, without = (load_task(source, tokenizer, n=1, **named) for named in ({}, {"bos": False}))
        for side, texts in (("clean", task.texts), ("corrupted", task.corrupted_texts)):
            assert ids_of(task, side) == [first_words(text) for text in texts]
            plain = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
            assert ids_of(without, side) == plain
        # Answers, read positions and slots are those of the prompt's own words.
        assert torch.equal(task.answers, without.answers)
        assert (task.positions - without.positions).tolist() == [shift]
        assert all((task.slots[name] - at).tolist() == [shift] for name, at in without.slots.items())
        assert (task.config["bos"], without.config["bos"]) == (begins, False)
        assert (task.data_hash == without.data_hash) is not begins


def test_token_ids_are_all_that_is_read_and_drawn_ones_are_begun(tmp_path: Path) -> None:
    tokenizer = adding("bos")
    bos = tokenizer.bos_token_id
    path = write(tmp_path / "ids.jsonl", {"clean": [5, 6, 7], "corrupted": [5, 8, 7], "answers": [3]})
    task, begun = load_task(path, tokenizer), load_task(path, tokenizer, bos=True)
    assert (ids_of(task), task.positions.tolist(), task.config["bos"]) == ([[5, 6, 7]], [2], False)
    assert (ids_of(begun), begun.positions.tolist(), begun.config["bos"]) == ([[bos, 5, 6, 7]], [3], True)
    drawn, without = (load_task("induction", tokenizer, n=4, k=3, **named) for named in ({}, {"bos": False}))
    assert ids_of(drawn) == [[bos, *ids] for ids in ids_of(without)]
    assert (drawn.slots["second"] - without.slots["second"]).tolist() == [1] * 4
    with pytest.raises(TokenizationError, match="the tokenizer has no beginning-of-sequence"):
        read_pairs(path, bos=True)
    written = {**PAIR, "clean": f"<s>{CLEAN}", "corrupted": f"<s>{CORRUPTED}"}
    with pytest.warns(AssayWarning, match="1 of 1 prompts begin with BOS twice, as '<s>Then.* set bos to"):
        twice = load_task(write(path, written), tokenizer)
    assert ids_of(twice) == [tokenizer(written["clean"])["input_ids"]]


def test_slots_end_at_their_last_token_and_files_need_no_offsets(mini_tokenizer: Any, tmp_path: Path) -> None:
    text = "The keys near the door"
    prompt = Prompt(text=text, slots={"where": (9, len(text)), "first": (0, 3)})
    coded = encode_prompts([prompt], Tokens(mini_tokenizer))
    assert {name: where.tolist() for name, where in coded.slots.items()} == {"where": [4], "first": [0]}
    letters = Letters()  # written in Python, so it has no offsets
    task = load_task(
        write(tmp_path / "a.jsonl", {"clean": "ab c", "corrupted": "ab d", "answers": ["e"]}), letters
    )
    assert (ids_of(task), task.positions.tolist()) == ([letters("ab c")["input_ids"][:-1]], [4])


# ---- chats

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
TRIMMED, SHOUTED = (
    TEMPLATE.replace("['content'] }}", f"['content'] | {how} }}}}") for how in ("trim", "upper")
)


def templated(tokenizer: Any, template: str) -> Any:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


@pytest.fixture(scope="module")
def chatty(gpt2_tokenizer: Any) -> Any:
    return templated(gpt2_tokenizer, TEMPLATE)


def test_a_prompt_becomes_a_turn_and_its_slots_follow(chatty: Any) -> None:
    prompt = Prompt(text="Mary met John", slots={"who": (0, 4), "whom": (9, 13)}, answers=(" Mary",))
    coded = encode_prompts([prompt], Tokens(chatty, chat=True))
    assert coded.texts == ("<user>\nMary met John\n<assistant>\n",)
    assert chatty.decode(coded.ids[0]) == coded.texts[0]
    words = {slot: chatty.decode(coded.ids[0, at]) for slot, at in coded.slots.items()}
    assert words == {"who": "Mary", "whom": " John"}
    assert coded.positions.tolist() == [coded.ids.shape[1] - 1]
    assert chatty.batch_decode(coded.answers) == ["Mary"]
    trimmed = Tokens(templated(chatty, TRIMMED), chat=True)
    whole, shift = trimmed.turn_of(" Mary met ")
    assert (whole, whole[1 + shift :][:4]) == ("<user>\nMary met\n<assistant>\n", "Mary")
    begun = templated(adding("bos"), "<s>{{ messages[0]['content'] }}")
    coded = encode_prompts([Prompt(text="Then, Mary", slots={"who": (6, 10)})], Tokens(begun, chat=True))
    assert coded.ids.tolist() == [begun("Then, Mary")["input_ids"]], "it begins once"
    assert (coded.texts, coded.slots["who"].tolist()) == (("<s>Then, Mary",), [3])


def test_names_that_cannot_begin_a_turn_are_left_out(chatty: Any) -> None:
    with pytest.warns(AssayWarning, match=r"ioi: \d+ of 99 names can be .*one token after .* and as an"):
        task = load_task("ioi", chatty, n=30, chat=True)
    assert chatty.batch_decode(task.answers) == task.fields["IO"]
    assert all(text.endswith("<assistant>\n") for text in task.corrupted_texts)


def test_a_chat_that_cannot_be_is_refused(gpt2_tokenizer: Any, chatty: Any) -> None:
    word = next(w for w in ("Mali", "Oslo", "Nairobi", "Bamako") if len(chatty(w)["input_ids"]) == 2)
    two = [Prompt(text="The city of", answers=(f" {word}",))]
    shouted = templated(gpt2_tokenizer, SHOUTED)
    for call, message in (
        (lambda: load_task("ioi", gpt2_tokenizer, chat=True), "chat=True needs a chat template"),
        (lambda: Tokens(shouted, chat=True).turn_of("Q: How"), "changes the text of the prompt 'Q: How"),
        (
            lambda: load_task("induction", chatty, chat=True),
            r"ids \[.*has no text for a chat template",
        ),
        (
            lambda: load_task("ioi", adding("none", bos_token=None), bos=True),
            "no beginning-of-sequence",
        ),
        # Behind a turn an answer is written without its space, and that is what is counted.
        (lambda: encode_prompts(two, Tokens(chatty, chat=True)), f"answer ' {word}' of .* is 2 tokens"),
    ):
        with pytest.raises(TokenizationError, match=message):
            call()


# ---- answers


def test_pairs_whose_answers_begin_alike_are_left_out(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    rows = [
        {"clean": "The city of", "corrupted": "The town of", "answers": [right], "wrong": [wrong]}
        for right, wrong in ((" Bamako", " Bamaga"), (" Bamako", " Oslo"), (" Paris", " Bamaga"))
    ]
    path = write(tmp_path / "rows.jsonl", rows[0], {**rows[1], "corrupted": "Of"}, *rows[1:])
    task = load_task(path, gpt2_tokenizer, answer_tokens="first")
    assert task.ids.tolist() == [3, 4]
    assert gpt2_tokenizer.batch_decode(task.wrong) == [" Oslo", " Bam"]
    assert task.notes == (
        "1 of 4 pairs, whose prompts differ in token count, are left out",
        "1 of 3 pairs, whose right and wrong answers begin with the same token, are left out",
    )
    with pytest.raises(TokenizationError, match=r"rows.jsonl: pair 0.*2 of 2 pairs, whose right and"):
        load_task(write(path, *rows[:1] * 2), gpt2_tokenizer, answer_tokens="first")


def test_grammars_pair_answers_that_differ_in_their_first_token(gpt2_tokenizer: Any) -> None:
    capitals = {"Kenya": "Nairobi", "France": "Paris", "Peru": "Bamako", "Spain": "Bamaga"}
    task = load_task("capital-country", gpt2_tokenizer, n=60, capitals=capitals, answer_tokens="first")
    pairs = set(zip(task.fields["country"], task.fields["corrupted.country"], strict=True))
    assert ("Peru", "France") in pairs
    assert not {("Peru", "Spain"), ("Spain", "Peru")} & pairs
    assert task.config["answer_tokens"] == "first"

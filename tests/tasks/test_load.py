import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bos_tokenizers import SHAPES, Letters, adding

from assay.core.errors import AssayWarning, FileFormatError, InputError, TokenizationError, UnknownNameError
from assay.models import load_model, prompted
from assay.tasks import Prompt, Tokens, encode_prompts, load_task, read_pairs


class Loaded:
    """What a loaded model shows to a task."""

    def __init__(self, tokenizer: Any, n_vocab: int, n_positions: int | None = None) -> None:
        self.tokenizer, self.n_vocab, self.n_positions = tokenizer, n_vocab, n_positions


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


def test_a_task_is_found_by_either_spelling_of_its_name(mini_tokenizer: Any) -> None:
    a, b = (load_task(name, mini_tokenizer, n=2) for name in ("greater_than", "greater-than"))
    assert a.data_hash == b.data_hash
    assert a.name == b.name == "greater-than"


def test_the_config_says_how_to_draw_the_task_again(mini_tokenizer: Any) -> None:
    task = load_task("ioi", mini_tokenizer, n=4, seed=9, template_ids=range(2), corruption="s2_rand")
    assert task.config == {
        "task": "ioi",
        "generator_version": 1,
        "corruption": "s2_rand",
        "options": {"template_ids": [0, 1], "corruption": "s2_rand"},
        "bos": False,
        "n": 4,
        "seed": 9,
    }
    json.dumps(task.config)


@pytest.mark.parametrize(
    ("name", "beginning"),
    [("ioi", "daca86751983"), ("greater-than", "127b9ee3776c")],
)
def test_prompts_of_a_tokenizer_that_keeps_numbers_whole_stay(
    name: str, beginning: str, gpt2_tokenizer: Any
) -> None:
    """As they were drawn before tasks knew tokenizers that split numbers."""
    assert load_task(name, gpt2_tokenizer, n=30).data_hash.startswith(beginning)


def test_a_loaded_model_brings_its_tokenizer_and_its_vocabulary(mini_tokenizer: Any) -> None:
    assert load_task("ioi", Loaded(mini_tokenizer, len(mini_tokenizer)), n=2).tokenizer is mini_tokenizer
    with pytest.raises(TokenizationError, match="clean holds id .*vocabulary ends at 9"):
        load_task("ioi", Loaded(mini_tokenizer, 10), n=2)
    with pytest.raises(TokenizationError, match="task 'ioi' needs a tokenizer, but the model has none"):
        load_task("ioi", Loaded(None, 10), n=2)


def test_an_unknown_task_or_option_names_near_matches(mini_tokenizer: Any) -> None:
    with pytest.raises(UnknownNameError, match="unknown task 'greater-then'; did you mean 'greater-than'"):
        load_task("greater-then", mini_tokenizer)
    with pytest.raises(
        UnknownNameError, match="unknown option of task 'ioi' 'object'; did you mean 'objects'"
    ):
        load_task("ioi", mini_tokenizer, object=["ring"])


def test_prompts_longer_than_the_model_reads_are_refused(mini_tokenizer: Any) -> None:
    model = Loaded(mini_tokenizer, len(mini_tokenizer), 64)
    assert load_task("induction", model, n=2, length=32, k=31).length == 63
    with pytest.raises(TokenizationError, match="'induction' has 79 tokens, .* reads only 64"):
        load_task("induction", model, n=2, length=40, k=39)


# ----------------------------------------------------------------------------------- beginning of prompts


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


def test_bos_can_be_asked_for_where_there_is_one(mini_tokenizer: Any) -> None:
    with pytest.raises(TokenizationError, match="bos=True needs a tokenizer with a beginning-of-sequence"):
        load_task("ioi", adding("none", bos_token=None), n=2, bos=True)
    assert load_task("ioi", mini_tokenizer, n=2, bos=True).slots["name1"].tolist() == [3, 3]
    plain, asked = (load_task("ioi", mini_tokenizer, n=2, **named) for named in ({}, {"bos": False}))
    assert (plain.data_hash, plain.describe()) == (asked.data_hash, asked.describe())


# ------------------------------------------------------------------------------------------------- files


def test_a_file_of_text_becomes_a_task_with_its_fields(tmp_path: Path, mini_tokenizer: Any) -> None:
    other = {**PAIR, "answers": [" Mary", " Lisa"], "place": "shop"}
    path = write(tmp_path / "pairs.jsonl", PAIR, "", other)
    task = load_task(path, mini_tokenizer)
    assert (task.n, task.length, task.name) == (2, 15, "pairs")
    assert task.texts == (PAIR["clean"], PAIR["clean"])
    assert task.fields["place"] == ["store", "shop"]
    assert task.fields["corrupted.speaker"] == ["Paul", "Paul"]
    assert task.fields["n_tokens"] == [15, 15]
    assert mini_tokenizer.batch_decode(task.answers[:, :1]) == [" Mary", " Mary"]
    assert task.answers[0, 1] == -1
    assert task.config == {"task": "pairs", "file": "pairs.jsonl", "bos": False, "n": 2}
    assert load_task(str(path), mini_tokenizer, n=1).n == 1
    with pytest.warns(AssayWarning, match="holds 2 pairs, fewer than the requested 50"):
        assert load_task(str(path), mini_tokenizer, n=50).n == 2


def test_a_file_of_ids_needs_no_tokenizer(tmp_path: Path) -> None:
    records = [
        {"clean": [1, 2, 3], "corrupted": [1, 4, 3], "answers": [5], "wrong": [6, 7]},
        {"clean": [1, 2], "corrupted": [1, 4], "answers": [6], "wrong": [5]},
    ]
    task = read_pairs(write(tmp_path / "ids.jsonl", *records))
    assert task.clean.tolist() == [[1, 2, 3], [1, 2, 0]]
    assert task.lengths.tolist() == [3, 2]
    assert task.positions.tolist() == [2, 1]
    assert task.wrong is not None
    assert task.wrong.tolist() == [[6, 7], [5, -1]]
    assert task.texts is None


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in PAIR.items() if key not in keys}


MALFORMED: dict[str, tuple[Any, type[Exception], str]] = {
    "not JSON": ("{oops", FileFormatError, r"bad.jsonl, line 2: not JSON"),
    "not an object": ([1, 2], FileFormatError, "line 2: got a list; expected named columns"),
    "keys missing": (
        without("corrupted", "answers"),
        FileFormatError,
        "line 2: no 'corrupted' and no 'answers'",
    ),
    "a number as prompt": (
        {**PAIR, "clean": 3},
        FileFormatError,
        "line 2: 'clean' is 3; expected text or a list",
    ),
    "an empty prompt": ({**PAIR, "clean": ""}, FileFormatError, "line 2: 'clean' is ''"),
    "a negative id": ({**PAIR, "clean": [1, -2]}, FileFormatError, r"line 2: 'clean' is \[1, -2\]"),
    "answers as a number": (
        {**PAIR, "answers": 3},
        FileFormatError,
        "line 2: 'answers' is 3; expected a list",
    ),
    "no answer": ({**PAIR, "answers": []}, FileFormatError, "line 2: 'answers' is empty"),
    "an answer of two tokens": (
        {**PAIR, "answers": [" Mary Lisa"]},
        TokenizationError,
        r"bad.jsonl, line 2: answer ' Mary Lisa' of the prompt 'Then, .* is 2 tokens; expected exactly one",
    ),
    "an unknown answer": (
        {**PAIR, "wrong": [" Zyxw"]},
        TokenizationError,
        "line 2: wrong answer ' Zyxw' .* is unknown to the vocabulary",
    ),
    "an unknown word": (
        {**PAIR, "clean": "Then, Zyxw"},
        TokenizationError,
        r"line 2: prompt 'Then, Zyxw' has a word",
    ),
    "right and wrong": (
        {**PAIR, "wrong": [" Mary"]},
        TokenizationError,
        "line 2: an answer is also a wrong answer",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_line_is_named_with_its_file(case: str, tmp_path: Path, mini_tokenizer: Any) -> None:
    record, error, message = MALFORMED[case]
    with pytest.raises(error, match=message):
        load_task(write(tmp_path / "bad.jsonl", PAIR, record), mini_tokenizer)


SHORT = {**PAIR, "corrupted": "Then, Mary and John went to the store. John gave a ring"}


def test_pairs_of_unequal_token_count_are_left_out_and_counted(tmp_path: Path, mini_tokenizer: Any) -> None:
    path = write(tmp_path / "a.jsonl", SHORT, PAIR, SHORT, {**PAIR, "wrong": [" Lisa"]})
    task = load_task(path, mini_tokenizer)
    assert task.ids.tolist() == [2, 4]
    assert task.notes == ("2 of 4 pairs, whose prompts differ in token count, are left out",)
    assert task.describe()["notes"] == [*task.notes]
    alone = load_task(write(tmp_path / "b.jsonl", PAIR, {**PAIR, "wrong": [" Lisa"]}), mini_tokenizer)
    assert (task.data_hash, alone.notes) == (alone.data_hash, ())
    with pytest.warns(AssayWarning, match=r"holds 4 pairs, fewer than the requested 9"):
        load_task(path, mini_tokenizer, n=9)


def test_a_file_without_a_pair_of_equal_token_count_is_refused(tmp_path: Path, mini_tokenizer: Any) -> None:
    message = (
        r"bad.jsonl: pair 0: clean prompt 'Then, .* has 15 tokens, corrupted prompt 'Then, .* has 14 "
        r"\(all 2 pairs differ\)"
    )
    with pytest.raises(TokenizationError, match=message):
        load_task(write(tmp_path / "bad.jsonl", SHORT, SHORT), mini_tokenizer)
    wrong = {**PAIR, "wrong": [" Mary Lisa"]}
    with pytest.raises(TokenizationError, match=r"mixed.jsonl, line 2: wrong answer ' Mary Lisa'"):
        load_task(write(tmp_path / "mixed.jsonl", SHORT, wrong, PAIR), mini_tokenizer)


def test_a_file_that_cannot_be_a_task_is_refused(tmp_path: Path, mini_tokenizer: Any) -> None:
    with pytest.raises(FileFormatError, match=r"cannot read task file .*missing.jsonl: .*No such file"):
        load_task(tmp_path / "missing.jsonl", mini_tokenizer)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match=r"binary.jsonl: 'utf-8' codec"):
        load_task(tmp_path / "binary.jsonl", mini_tokenizer)
    with pytest.raises(FileFormatError, match=r"empty.jsonl has no rows; expected one JSON object"):
        load_task(write(tmp_path / "empty.jsonl", ""), mini_tokenizer)
    with pytest.raises(FileFormatError, match="only some lines have 'wrong' answers"):
        load_task(write(tmp_path / "mixed.jsonl", PAIR, without("wrong")), mini_tokenizer)
    with pytest.raises(
        TokenizationError, match=r"line 1: prompt 'Then, .* is text, but the tokenizer is missing"
    ):
        read_pairs(write(tmp_path / "text.jsonl", PAIR))
    with pytest.raises(InputError, match="unknown option of a task file 'corruption'"):
        load_task(write(tmp_path / "fine.jsonl", PAIR), mini_tokenizer, corruption="abc")


# ---------------------------------------------------------------------------------------------- encoding


def test_prompts_of_unequal_length_are_padded_on_the_right(mini_tokenizer: Any) -> None:
    texts = ("The keys near the door", "The keys near the door behind the house")
    coded = encode_prompts([Prompt(text=text) for text in texts], Tokens(mini_tokenizer))
    assert coded.lengths.tolist() == [5, 8]
    assert coded.positions.tolist() == [4, 7]
    assert coded.ids[0, 5:].tolist() == [mini_tokenizer.pad_token_id] * 3
    assert coded.answers is coded.wrong is None
    assert coded.texts == texts


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


def test_a_continuation_is_judged_in_its_context(mini_tokenizer: Any) -> None:
    tokens = Tokens(mini_tokenizer)
    assert tokens.one_token("gave a ring to", " Mary") == mini_tokenizer.convert_tokens_to_ids(" Mary")
    assert tokens.one_token("", "Mary") == mini_tokenizer.convert_tokens_to_ids("Mary")
    assert tokens.one_token("to 17", "45") == mini_tokenizer.convert_tokens_to_ids("45")
    assert tokens.one_token("to", " Mary and") is None
    assert tokens.one_token("to", " Zyxw") is None


def test_lines_of_a_file_are_chosen_by_their_fields(tmp_path: Path, mini_tokenizer: Any) -> None:
    path = write(tmp_path / "a.jsonl", *({**PAIR, "kind": kind} for kind in "abaab"))
    task = load_task(path, mini_tokenizer, where={"kind": "a"})
    assert (task.ids.tolist(), task.fields["kind"]) == ([1, 3, 4], ["a"] * 3)
    some = load_task(path, mini_tokenizer, where={"kind": "a"}, n=2, seed=1)
    assert set(some.ids.tolist()) < {1, 3, 4}
    assert (some.config["where"], some.config["n"], some.config["seed"]) == ({"kind": "a"}, 2, 1)
    model = prompted(load_model("mini"), where={"kind": "b"})
    assert load_task(path, model).ids.tolist() == [2, 5]
    with pytest.raises(InputError, match="where chooses lines of a file, but ioi is drawn"):
        load_task("ioi", model)


def test_lines_of_a_file_are_drawn_at_random_and_known_by_number(tmp_path: Path) -> None:
    records = [{"clean": [row], "corrupted": [row + 100], "answers": [1]} for row in range(60)]
    path = tmp_path / "ids.jsonl"
    path.write_text("\n" + "\n\n".join(map(json.dumps, records)))  # pair k is line 2 + 2 k
    whole = read_pairs(path)
    assert whole.ids.tolist() == list(range(2, 122, 2))
    few = read_pairs(path, n=10, seed=3)
    assert few.clean[:, 0].tolist() == [(line - 2) // 2 for line in few.ids.tolist()]
    assert sorted(few.ids.tolist()) == few.ids.tolist()
    assert few.ids.max() > 40  # not the first ten
    assert few.config["seed"] == 3
    assert read_pairs(path, n=10, seed=3).data_hash == few.data_hash
    assert load_task(path, None, n=10, seed=4).ids.tolist() != few.ids.tolist()
    assert few.subset([3, 1]).ids.tolist() == [few.ids[3], few.ids[1]]
    assert read_pairs(path, n=60).data_hash == read_pairs(path, n=99).data_hash == whole.data_hash

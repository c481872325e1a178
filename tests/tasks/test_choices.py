"""Multiple-choice questions: the built-in ones, and files in the forms in which they are published."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import FileFormatError, InputError, TokenizationError
from assay.core.random import stream
from assay.tasks import MultipleChoice, Question, Tokens, load_task, question_of, read_questions


PLAIN = {"question": "Which is a bird?", "choices": ["stone", "crow", "lake", "road"], "answer": 1}
ARC = {
    "id": "Mercury_1",
    "question": "Which is a bird?",
    "choices": {"text": ["stone", "crow", "lake", "road"], "label": ["A", "B", "C", "D"]},
    "answerKey": "B",
}
ARC_FIRST = {
    "id": "Mercury_1",
    "question": {
        "stem": "Which is a bird?",
        "choices": [
            {"text": text, "label": label}
            for text, label in zip(PLAIN["choices"], "1234", strict=True)  # type: ignore[call-overload]
        ],
    },
    "answerKey": "2",
}


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in records))
    return path


@pytest.fixture(scope="module")
def grammar(gpt2_tokenizer: Any) -> MultipleChoice:
    return MultipleChoice(Tokens(gpt2_tokenizer), questions=[PLAIN, {**ARC, "split": "measure"}])


# ------------------------------------------------------------------------------------------------ prompts


def test_a_question_by_hand(grammar: MultipleChoice) -> None:
    prompt = grammar.render({"question": 0, "order": (0, 1, 2, 3), "symbols": ("T", "C", "K", "X")})
    assert prompt.text == "Which is a bird?\nT. stone\nC. crow\nK. lake\nX. road\nAnswer:"
    assert prompt.answers == (" C",)
    assert dict(prompt.fields) == {"question_id": "1", "position": 1, "symbol": "C"}
    assert {slot: prompt.text[slice(*span)] for slot, span in prompt.slots.items()} == {
        "question": "Which is a bird?",
        "symbol1": "T", "choice1": "stone", "symbol2": "C", "choice2": "crow",
        "symbol3": "K", "choice3": "lake", "symbol4": "X", "choice4": "road",
    }  # fmt: skip
    moved = grammar.render({"question": 1, "order": (1, 3, 2, 0), "symbols": ("T", "C", "K", "X")})
    assert moved.text == "Which is a bird?\nT. crow\nC. road\nK. lake\nX. stone\nAnswer:"
    assert moved.answers == (" T",)
    assert dict(moved.fields) == {
        "split": "measure", "question_id": "Mercury_1", "position": 0, "symbol": "T"
    }  # fmt: skip


@given(seed=st.integers(0, 2**32 - 1), corruption=st.sampled_from(MultipleChoice.corruptions))
@settings(max_examples=80, deadline=None)
def test_each_corruption_changes_the_letter_and_nothing_else(
    seed: int, corruption: str, gpt2_tokenizer: Any
) -> None:
    grammar = MultipleChoice(Tokens(gpt2_tokenizer), corruption=corruption)
    ((clean, other),) = grammar.pairs(grammar.draw(1, stream(seed, "clean")), stream(seed, "corrupted"))
    (question, *lines, end), (question2, *lines2, end2) = (p.text.split("\n") for p in (clean, other))
    assert (question, end) == (question2, end2)
    letters, letters2 = ([line[0] for line in each] for each in (lines, lines2))
    choices, choices2 = ([line[3:] for line in each] for each in (lines, lines2))
    assert len(set(letters)) == 4
    assert clean.wrong == other.answers != clean.answers
    if corruption == "symbol":
        assert choices == choices2
        assert not set(letters) & set(letters2)
    else:
        assert letters == letters2
        assert sorted(choices) == sorted(choices2)
        assert clean.fields["position"] != other.fields["position"]
    right = grammar.questions[clean.values["question"]]
    for prompt, names, texts in ((clean, letters, choices), (other, letters2, choices2)):
        assert prompt.answers == (" " + names[texts.index(right.choices[right.right])],)


def test_the_right_choice_moves_to_every_other_place(gpt2_tokenizer: Any) -> None:
    grammar = MultipleChoice(Tokens(gpt2_tokenizer), corruption="answer_position", questions=[PLAIN])
    clean = grammar.choose(stream(0, "clean"))
    places = {
        tuple(grammar.corrupted(clean, stream(seed, "corrupted"))["order"]).index(1) for seed in range(60)
    }
    assert places == {0, 2, 3}


@pytest.mark.parametrize("corruption", MultipleChoice.corruptions)
def test_the_built_in_questions_align_under_gpt2(corruption: str, gpt2_tokenizer: Any) -> None:
    task = load_task("mcqa", gpt2_tokenizer, n=100, corruption=corruption)
    assert task.wrong is not None
    assert gpt2_tokenizer.batch_decode(task.answers) == [f" {each}" for each in task.fields["symbol"]]
    assert gpt2_tokenizer.batch_decode(task.wrong) == [f" {each}" for each in task.fields["corrupted.symbol"]]
    places = task.clean[range(100), task.slots["symbol3"]]
    assert task.texts is not None
    assert gpt2_tokenizer.batch_decode(places[:, None]) == [text.split("\n")[3][0] for text in task.texts]
    assert set(task.fields["position"]) == {0, 1, 2, 3}


def test_letters_that_are_no_token_are_an_error(mini_tokenizer: Any, gpt2_tokenizer: Any) -> None:
    with pytest.raises(TokenizationError, match="mcqa: 0 of 26 letters can be used .*at least 8"):
        load_task("mcqa", mini_tokenizer)
    with pytest.raises(TokenizationError, match="mcqa: 7 of 7 letters .*at least 8"):
        load_task("mcqa", gpt2_tokenizer, letters="ABCDEFG")
    assert load_task("mcqa", gpt2_tokenizer, n=2, letters="ABCD", corruption="answer_position").n == 2


# -------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("record", [PLAIN, ARC, ARC_FIRST], ids=["plain", "datasets", "published"])
def test_the_three_forms_are_the_same_question(record: dict[str, Any]) -> None:
    found = question_of(record, 1, "here")
    assert (found.text, found.choices, found.right) == (
        "Which is a bird?",
        ("stone", "crow", "lake", "road"),
        1,
    )
    assert found.id == record.get("id", "1")


MALFORMED: dict[str, tuple[Any, str]] = {
    "no question": ({**PLAIN, "question": " "}, "line 2: 'question' is ' '; expected text"),
    "one choice": ({**PLAIN, "choices": ["crow"]}, "line 2: 'choices' is .*expected 2 to 10 different"),
    "a choice twice": ({**PLAIN, "choices": ["a", "a"]}, "line 2: 'choices' is"),
    "no answer": ({k: v for k, v in PLAIN.items() if k != "answer"}, "'answer' is None; expected 0 to 3"),
    "an answer outside": ({**PLAIN, "answer": 4}, "line 2: 'answer' is 4; expected 0 to 3"),
    "an unknown key": ({**ARC, "answerKey": "E"}, "'answerKey' is 'E'; expected one of A, B, C, D"),
    "too few labels": (
        {**ARC, "choices": {"text": ["a", "b"], "label": ["A"]}},
        r"the labels are \['A'\]; expected one text for each choice",
    ),
    "not JSON": ("{", r"questions.jsonl, line 2: not JSON"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_question_is_named_by_file_and_line(
    case: str, tmp_path: Path, gpt2_tokenizer: Any
) -> None:
    record, message = MALFORMED[case]
    path = write(tmp_path / "questions.jsonl", PLAIN, record)
    for load in (
        lambda: read_questions(path),
        lambda: load_task(path, gpt2_tokenizer),
        lambda: load_task("mcqa", gpt2_tokenizer, questions=path),
    ):
        with pytest.raises(FileFormatError, match=message):
            load()


def test_a_file_of_questions_asks_each_once(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    records = [{**ARC, "id": f"q{i}", "question": f"Which of {i} is a bird?"} for i in range(20, 30)]
    path = write(tmp_path / "arc.jsonl", *records)
    task = load_task(path, gpt2_tokenizer)
    assert (task.name, task.n, task.ids.tolist()) == ("arc", 10, list(range(1, 11)))
    assert task.fields["question_id"] == [f"q{i}" for i in range(20, 30)]
    assert task.wrong is not None
    assert task.config == {"task": "arc", "file": "arc.jsonl", "bos": False, "n": 10, "seed": 0}
    some = load_task(path, gpt2_tokenizer, n=4, seed=0, corruption="answer_position")
    rows = [i - 1 for i in some.ids.tolist()]
    assert some.texts == tuple(task.texts[row] for row in rows)  # type: ignore[index]
    assert some.config["options"] == {"corruption": "answer_position"}
    assert load_task(path, gpt2_tokenizer, seed=1).texts != task.texts


def test_questions_of_a_file_are_drawn_with_replacement_by_name(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    path = write(tmp_path / "arc.jsonl", ARC, ARC_FIRST)
    task = load_task("mcqa", gpt2_tokenizer, n=9, questions=path)
    assert (task.n, set(task.fields["question_id"])) == (9, {"Mercury_1"})
    assert task.config["options"] == {"questions": str(path)}


def test_questions_of_a_parquet_file(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "test-00000-of-00001.parquet"
    parquet.write_table(arrow.Table.from_pylist([ARC, {**ARC, "answerKey": "D"}]), path)
    task = load_task(str(path), gpt2_tokenizer)
    assert task.fields["position"] == [1, 3]
    parquet.write_table(arrow.Table.from_pylist([ARC, {**ARC, "answerKey": "E"}]), path)
    with pytest.raises(FileFormatError, match=r"parquet, row 2: 'answerKey' is 'E'"):
        load_task(path, gpt2_tokenizer)


def test_what_a_file_of_questions_does_not_take(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    path = write(tmp_path / "arc.jsonl", ARC)
    with pytest.raises(InputError, match="unknown option of a file of questions 'corruptions'; did you mean"):
        load_task(path, gpt2_tokenizer, corruptions="symbol")
    with pytest.raises(TokenizationError, match="holds questions, whose letters need the model's tokenizer"):
        load_task(path, None)
    with pytest.raises(InputError, match="mcqa: questions is empty"):
        load_task("mcqa", gpt2_tokenizer, questions=[])


def test_questions_may_differ_in_their_number_of_choices(gpt2_tokenizer: Any) -> None:
    three = Question("3", "Which is a bird?", ("stone", "crow", "lake"), 1)
    task = load_task("mcqa", gpt2_tokenizer, n=20, questions=[three, PLAIN])
    assert len(set(task.lengths.tolist())) == 2
    assert "symbol3" in task.slots
    assert "symbol4" not in task.slots

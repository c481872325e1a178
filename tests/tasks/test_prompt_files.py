"""Tasks from files and data sets: pairs, and rows of MIB as they are published."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import AssayWarning, FileFormatError, InputError, TokenizationError
from assay.models import load_model, prompted
from assay.tasks import load_task, read_pairs


PAIR = {
    "clean": "Then, Mary and John went to the store. John gave a ring to",
    "corrupted": "Then, Mary and Lisa went to the store. Paul gave a ring to",
    "answers": [" Mary"],
    "wrong": [" John"],
    "place": "store",
    "corrupted.speaker": "Paul",
}
SHORT = {**PAIR, "corrupted": "Then, Mary and John went to the store. John gave a ring"}


def write(path: Path, *records: Any) -> Path:
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        parquet.write_table(arrow.Table.from_pylist(list(records)), path)
        return path
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


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
    assert task.notes == ()
    bare = load_task(write(path, {**PAIR, "answers": ["Mary"]}, PAIR), mini_tokenizer)
    assert bare.notes == ("1 of 2 answers begin without a space: 'Mary' and ' Mary' are different tokens",)
    some = load_task(write(path, SHORT, PAIR, SHORT, {**PAIR, "wrong": [" Lisa"]}), mini_tokenizer)
    assert some.ids.tolist() == [2, 4]
    assert some.notes == ("2 of 4 pairs, whose prompts differ in token count, are left out",)
    assert some.describe()["notes"] == [*some.notes]
    with pytest.warns(AssayWarning, match="holds 4 pairs, fewer than the requested 50"):
        assert load_task(str(path), mini_tokenizer, n=50).data_hash == some.data_hash


def test_lines_of_ids_need_no_tokenizer_are_drawn_at_random_and_known_by_number(tmp_path: Path) -> None:
    uneven = [
        {"clean": [1, 2, 3], "corrupted": [1, 4, 3], "answers": [5], "wrong": [6, 7]},
        {"clean": [1, 2], "corrupted": [1, 4], "answers": [6], "wrong": [5]},
    ]
    task = read_pairs(write(tmp_path / "uneven.jsonl", *uneven))
    assert (task.clean.tolist(), task.lengths.tolist()) == ([[1, 2, 3], [1, 2, 0]], [3, 2])
    assert (task.positions.tolist(), task.wrong.tolist()) == ([2, 1], [[6, 7], [5, -1]])
    assert task.texts is None
    records = [{"clean": [row], "corrupted": [row + 100], "answers": [1]} for row in range(60)]
    path = tmp_path / "ids.jsonl"
    path.write_text("\n" + "\n\n".join(map(json.dumps, records)))  # pair k is line 2 + 2 k
    whole, few = read_pairs(path), read_pairs(path, n=10, seed=3)
    assert whole.ids.tolist() == list(range(2, 122, 2))
    assert few.clean[:, 0].tolist() == [(line - 2) // 2 for line in few.ids.tolist()]
    assert sorted(few.ids.tolist()) == few.ids.tolist()
    assert few.ids.max() > 40  # not the first ten
    assert few.config["seed"] == 3
    assert read_pairs(path, n=10, seed=3).data_hash == few.data_hash
    assert load_task(path, None, n=10, seed=4).ids.tolist() != few.ids.tolist()
    assert few.subset([3, 1]).ids.tolist() == [few.ids[3], few.ids[1]]
    assert read_pairs(path, n=60).data_hash == read_pairs(path, n=99).data_hash == whole.data_hash


MALFORMED: list[tuple[Any, type[Exception], str]] = [
    ("{oops", FileFormatError, "bad.jsonl, line 2: not JSON"),
    ([1, 2], FileFormatError, "line 2: no 'clean' and no 'corrupted' and no 'answers'"),
    ({"clean": "a"}, FileFormatError, "line 2: no 'corrupted' and no 'answers'; expected"),
    ({**PAIR, "clean": 3}, FileFormatError, "line 2: 'clean' is 3; expected text or a list"),
    ({**PAIR, "clean": [1, -2]}, FileFormatError, r"line 2: 'clean' is \[1, -2\]"),
    ({**PAIR, "answers": 3}, FileFormatError, "line 2: 'answers' is 3; expected a list"),
    ({**PAIR, "answers": []}, FileFormatError, "line 2: 'answers' is empty"),
    ({**PAIR, "answers": [" Mary Lisa"]}, TokenizationError, "bad.jsonl: answer ' Mary Lisa' .* is 2 tokens"),
    ({**PAIR, "wrong": [" Zyxw"]}, TokenizationError, "bad.jsonl: wrong answer ' Zyxw' .* is unknown"),
    ({**PAIR, "clean": "Then, Zyxw"}, TokenizationError, "bad.jsonl: prompt 'Then, Zyxw' has a word"),
    ({**PAIR, "wrong": [" Mary"]}, InputError, r"bad.jsonl: an answer is also a wrong answer \(prompt 1"),
    ({key: PAIR[key] for key in ("clean", "corrupted", "answers")}, FileFormatError, "only some lines have"),
]


@pytest.mark.parametrize(("record", "error", "message"), MALFORMED)
def test_a_malformed_line_is_named_with_its_file(
    record: Any, error: type[Exception], message: str, tmp_path: Path, mini_tokenizer: Any
) -> None:
    with pytest.raises(error, match=message):
        load_task(write(tmp_path / "bad.jsonl", PAIR, record), mini_tokenizer)


def test_a_file_that_cannot_be_a_task_is_refused(tmp_path: Path, mini_tokenizer: Any) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    fine = write(tmp_path / "fine.jsonl", PAIR)
    short = write(tmp_path / "short.jsonl", SHORT, SHORT)
    equal = "short.jsonl: pair 0: clean prompt 'Then, .* has 15 tokens, .* has 14 .2 of 2 pairs, whose p"
    for path, tokenizer, options, error, message in (
        (tmp_path / "gone.jsonl", mini_tokenizer, {}, FileFormatError, "cannot read task file .*No such"),
        (tmp_path / "rows.parquet", mini_tokenizer, {}, FileFormatError, "cannot read .*rows.parquet as"),
        (write(tmp_path / "no.jsonl", ""), mini_tokenizer, {}, FileFormatError, "no.jsonl has no rows"),
        (short, mini_tokenizer, {}, TokenizationError, equal),
        (fine, None, {}, TokenizationError, "prompt 'Then, .* is text, but the tokenizer is missing"),
        (fine, mini_tokenizer, {"corruption": "abc"}, InputError, "option of a task file 'corruption'"),
    ):
        with pytest.raises(error, match=message):
            load_task(path, tokenizer, **options)


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


# ---- data sets that are loaded

OTHER = {key: PAIR[key].replace("John", "James") for key in ("clean", "corrupted")}
ROWS = [PAIR | {"answers": " Mary"}, PAIR | OTHER | {"answers": " Mary", "wrong": [" James"]}] * 2


class Table(list[Any]):
    """Rows with names, as of PyTorch."""


@pytest.mark.parametrize("kind", ["torch", "parquet", "datasets"])
def test_rows_of_a_data_set_are_pairs(kind: str, tmp_path: Path, mini_tokenizer: Any) -> None:
    if kind == "datasets":
        reason = "NOT TESTED: data sets of the library `datasets`, which is not installed"
        source = pytest.importorskip("datasets", reason=reason).Dataset.from_list(ROWS)
    else:
        source = Table(ROWS) if kind == "torch" else write(tmp_path / "pairs.parquet", *ROWS)
    task = load_task(source, mini_tokenizer)
    assert task.texts == tuple(row["clean"] for row in ROWS)
    assert task.corrupted_texts == tuple(row["corrupted"] for row in ROWS)
    assert mini_tokenizer.batch_decode(task.answers) == [" Mary"] * 4
    assert mini_tokenizer.batch_decode(task.wrong) == [row["wrong"][0] for row in ROWS]
    assert task.fields["place"] == ["store"] * 4
    drawn = load_task(source, mini_tokenizer, n=2, seed=1)
    assert (drawn.n, drawn.config["seed"]) == (2, 1)
    assert list(drawn.texts) == [ROWS[number - 1]["clean"] for number in drawn.ids.tolist()]


# ---- rows of MIB


def coloured(prompt: str, labels: str) -> dict[str, Any]:
    return {
        "prompt": prompt.format(*labels),
        "choices": {"label": [*labels], "text": ["red"]},
        "answerKey": 1,
    }


COLORS = "Coals are black. What color are coals?\n{}. red\n{}. black\nAnswer:"
FLIPPED = "Then, Mary and John went to the store. Mary gave a ring to"
IOI = {"prompt": PAIR["clean"], "choices": ["John", "Mary"], "answerKey": 1, "metadata": {"subject": "John"}}
IOI |= {"abc_counterfactual": {"prompt": PAIR["corrupted"]}, "s2_io_flip_counterfactual": {"prompt": FLIPPED}}
MCQA = {**coloured(COLORS, "AB"), "noun_counterfactual": coloured(COLORS.replace("oals", "rows"), "AB")}
MCQA |= {"symbol_counterfactual": coloured(COLORS, "KT")}
SUM = {"prompt": "The sum of 12 and 34 is ", "label": "46", "operand1": 12}
SUM |= {"random_counterfactual": {"prompt": "The sum of 55 and 21 is ", "label": "76", "operand1": 55}}
SUM |= {"ones_op1_counterfactual": {"prompt": "The sum of 13 and 34 is ", "label": "47"}}


@pytest.mark.parametrize(
    ("row", "options", "other", "answer", "wrong"),
    [
        (IOI, {}, "s2_io_flip", " Mary", " John"),
        (IOI, {"corruption": "abc", "leading_space": False}, "abc", "Mary", "John"),
        (MCQA, {}, "symbol", "B", "T"),
        (MCQA | {"answerKey": "B"}, {"leading_space": True}, "symbol", " B", " T"),
        (SUM, {"corruption": "ones_op1_counterfactual"}, "ones_op1", "46", "47"),
    ],
)
def test_answers_are_those_that_mib_scores(
    row: Any, options: Any, other: str, answer: str, wrong: str, tmp_path: Path, gpt2_tokenizer: Any
) -> None:
    task = load_task(write(tmp_path / "test.jsonl", row, row), gpt2_tokenizer, **options)
    assert (task.name, task.ids.tolist(), task.config.get("options", {})) == ("test", [1, 2], options)
    scored = [*gpt2_tokenizer.batch_decode(task.answers), *gpt2_tokenizer.batch_decode(task.wrong)]
    assert scored == [answer, answer, wrong, wrong]
    assert task.corrupted_texts == (row[f"{other}_counterfactual"]["prompt"],) * 2


def test_rows_that_cannot_be_used_are_left_out_and_counted(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    rows = [SUM | {"idx": i, "label": f"{50 + i}"} for i in range(9)]
    rows[1] |= {"random_counterfactual": None}
    rows[3] |= {"label": "123456789"}
    path = write(tmp_path / "sums.jsonl", *rows)
    with pytest.warns(AssayWarning, match=r"2 of 9 rows .*sums.jsonl, line 2: the counterfactual is empty"):
        task = load_task(path, gpt2_tokenizer)
    assert (task.fields["idx"], task.fields["corrupted.operand1"]) == ([0, 2, 4, 5, 6, 7, 8], [55] * 7)
    with pytest.warns(AssayWarning, match="rows are left out"):
        some = load_task(path, gpt2_tokenizer, n=6, seed=1)
    assert set(some.fields["idx"]) < set(task.fields["idx"])
    assert (some.n, some.fields["idx"], some.config["seed"]) == (6, sorted(some.fields["idx"]), 1)


UNREADABLE: list[tuple[Any, Any, type[Exception], str]] = [
    ({"prompt": "a", "label": "b"}, {}, FileFormatError, r"line 1: give one counterfactual, .* of \[\]"),
    (SUM | {"label": None}, {}, FileFormatError, "line 1: choices None, key None, label None; expected"),
    (IOI | {"prompt": 5}, {}, FileFormatError, r"line 1: the prompts are \[5, 'Then, Mary"),
    (IOI | {"answerKey": 2}, {}, FileFormatError, "line 1: choices .* key 2, label None"),
    (SUM | {"random_counterfactual": {"prompt": "x"}}, {}, FileFormatError, "line 1, counterfactual: choice"),
    (MCQA, {"corruption": "nown"}, TokenizationError, "line 1: unknown counterfactual .* mean 'noun'"),
    (MCQA, {"corruption": "noun"}, TokenizationError, "line 1: an answer is also a wrong answer"),
    (SUM, {"columns": {}}, InputError, "unknown option of a task file 'columns'"),
]


@pytest.mark.parametrize(("row", "options", "error", "message"), UNREADABLE)
def test_a_row_that_cannot_be_read_is_named(
    row: Any, options: Any, error: type[Exception], message: str, tmp_path: Path, gpt2_tokenizer: Any
) -> None:
    with pytest.raises(error, match=message):
        load_task(write(tmp_path / "rows.jsonl", row), gpt2_tokenizer, **options)

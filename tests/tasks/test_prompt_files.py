"""Tasks from files and data sets: pairs, and rows of MIB in the columns in which they are published."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import AssayWarning, FileFormatError, InputError, TokenizationError, UnknownNameError
from assay.models import load_model, prompted
from assay.tasks import load_task, read_pairs
from assay.tasks.files import published_pair


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
    ([1, 2], FileFormatError, "line 2: got a list; expected named columns"),
    ({"clean": "a"}, FileFormatError, "line 2: no 'corrupted' and no 'answers'.* columns={'clean': 'COLUMN'"),
    ({**PAIR, "clean": 3}, FileFormatError, "line 2: 'clean' is 3; expected text or a list"),
    ({**PAIR, "clean": [1, -2]}, FileFormatError, r"line 2: 'clean' is \[1, -2\]"),
    ({**PAIR, "answers": 3}, FileFormatError, "line 2: 'answers' is 3; expected a list"),
    ({**PAIR, "answers": []}, FileFormatError, "line 2: 'answers' is empty"),
    ({**PAIR, "answers": [" Mary Lisa"]}, TokenizationError, "line 2: answer ' Mary Lisa' .* is 2 tokens"),
    ({**PAIR, "wrong": [" Zyxw"]}, TokenizationError, "line 2: wrong answer ' Zyxw' .* is unknown"),
    ({**PAIR, "clean": "Then, Zyxw"}, TokenizationError, "line 2: prompt 'Then, Zyxw' has a word"),
    ({**PAIR, "wrong": [" Mary"]}, TokenizationError, "line 2: an answer is also a wrong answer"),
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
    fine, wrong = write(tmp_path / "fine.jsonl", PAIR), {**PAIR, "wrong": [" Mary Lisa"]}
    equal = r"short.jsonl: pair 0: clean prompt 'Then, .* has 15 tokens, .* has 14 \(all 2 pairs differ\)"
    for path, tokenizer, options, error, message in (
        (tmp_path / "gone.jsonl", mini_tokenizer, {}, FileFormatError, "cannot read task file .*No such"),
        (tmp_path / "rows.parquet", mini_tokenizer, {}, FileFormatError, "cannot read .*rows.parquet as"),
        (write(tmp_path / "no.jsonl", ""), mini_tokenizer, {}, FileFormatError, "no.jsonl has no rows"),
        (write(tmp_path / "short.jsonl", SHORT, SHORT), mini_tokenizer, {}, TokenizationError, equal),
        (write(tmp_path / "m.jsonl", SHORT, wrong, PAIR), mini_tokenizer, {}, TokenizationError,
         r"m.jsonl, line 2: wrong answer ' Mary Lisa'"),
        (fine, None, {}, TokenizationError, r"prompt 'Then, .* is text, but the tokenizer is missing"),
        (fine, mini_tokenizer, {"corruption": "abc"}, InputError, "option of a task file 'corruption'"),
        (fine, mini_tokenizer, {"columns": {"clean": "plac"}}, UnknownNameError, "did you mean 'place'"),
    ):  # fmt: skip
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

ROWS = [
    {
        "prompt": f"Then, {a} and {b} went to the store. {b} gave a ring to",
        "counterfactual": f"Then, {a} and {b} went to the store. {a} gave a ring to",
        "answer": f" {a}",
        "other": f" {b}",
        "topic": "rings",
    }
    for a, b in (("Mary", "John"), ("John", "Mary"), ("James", "Mary"))
]
COLUMNS = {"clean": "prompt", "corrupted": "counterfactual", "answers": "answer", "wrong": "other"}


class Table(list[Any]):
    """Rows with names, as of PyTorch."""


@pytest.mark.parametrize("kind", ["torch", "file", "datasets"])
def test_rows_of_a_data_set_are_pairs(kind: str, tmp_path: Path, mini_tokenizer: Any) -> None:
    if kind == "datasets":
        reason = "NOT TESTED: data sets of the library `datasets`, which is not installed"
        source = pytest.importorskip("datasets", reason=reason).Dataset.from_list(ROWS)
    else:
        source = Table(ROWS) if kind == "torch" else write(tmp_path / "pairs.jsonl", *ROWS)
    task = load_task(source, mini_tokenizer, columns=COLUMNS)
    assert task.texts == tuple(row["prompt"] for row in ROWS)
    assert task.corrupted_texts == tuple(row["counterfactual"] for row in ROWS)
    assert mini_tokenizer.batch_decode(task.answers) == [row["answer"] for row in ROWS]
    assert mini_tokenizer.batch_decode(task.wrong) == [row["other"] for row in ROWS]
    assert task.fields["topic"] == ["rings"] * 3
    drawn = load_task(source, mini_tokenizer, n=2, seed=1, columns=COLUMNS)
    assert (drawn.n, drawn.config["seed"]) == (2, 1)
    assert list(drawn.texts) == [ROWS[number - 1]["prompt"] for number in drawn.ids.tolist()]


# ---- rows of MIB

IOI = {
    "template": "...",
    "metadata": {"subject": "John", "indirect_object": "Mary", "random_c": "Lisa"},
    "prompt": "Then, Mary and John went to the store. John gave a ring to",
    "choices": ["John", "Mary"],
    "answerKey": 1,
    "abc_counterfactual": {
        "prompt": "Then, Lisa and Paul went to the store. Mark gave a ring to",
        "choices": ["Lisa", "Paul"],
        "answerKey": 0,
    },
    "s2_io_flip_counterfactual": {
        "prompt": "Then, Mary and John went to the store. Mary gave a ring to",
        "choices": ["John", "Mary"],
        "answerKey": 0,
    },
}
COLORS = "Question: Coals are black. What color are coals?\n{}. red\n{}. black\n{}. pink\n{}. blue\nAnswer:"


def coloured(prompt: str, labels: str) -> dict[str, Any]:
    texts = ["red", "black", "pink", "blue"]
    return {"prompt": prompt, "choices": {"label": list(labels), "text": texts}, "answerKey": 1}


MCQA = {
    "dataset": "colors",
    "idx": 3,
    **coloured(COLORS.format(*"ABCD"), "ABCD"),
    "noun_counterfactual": coloured(COLORS.format(*"ABCD").replace("oals", "rows"), "ABCD"),
    "symbol_counterfactual": coloured(COLORS.format(*"KTXQ"), "KTXQ"),
}
SUM = {
    "template": "The sum of {a} and {b} is ",
    "prompt": "The sum of 12 and 34 is ",
    "label": "46",
    "operator": "+",
    "operand1": 12,
    "operand2": 34,
    "random_counterfactual": {"prompt": "The sum of 55 and 21 is ", "label": "76", "operand1": 55},
    "ones_op1_counterfactual": {"prompt": "The sum of 13 and 34 is ", "label": "47"},
}
PUBLISHED = {"ioi": IOI, "mcqa": MCQA, "arithmetic": SUM}


@pytest.mark.parametrize(
    ("key", "options", "answer", "wrong"),
    [
        ("ioi", {}, " Mary", " John"),
        ("ioi", {"corruption": "abc"}, " Mary", " John"),
        ("ioi", {"leading_space": False}, "Mary", "John"),
        ("mcqa", {}, "B", "T"),
        ("mcqa", {"leading_space": True}, " B", " T"),
        ("arithmetic", {}, "46", "76"),
        ("arithmetic", {"corruption": "ones_op1_counterfactual"}, "46", "47"),
    ],
)
def test_answers_are_those_that_mib_scores(key: str, options: Any, answer: str, wrong: str) -> None:
    pair = published_pair(PUBLISHED[key], "here", **options)
    assert pair is not None
    assert (pair[0].answers, pair[0].wrong) == ((answer,), (wrong,))


@pytest.mark.parametrize("key", PUBLISHED)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_published_file_is_a_task(key: str, suffix: str, tmp_path: Path, gpt2_tokenizer: Any) -> None:
    path = write(tmp_path / f"test{suffix}", *[PUBLISHED[key]] * 3)
    task, pair = load_task(path, gpt2_tokenizer), published_pair(PUBLISHED[key], "here")
    assert (task.name, task.ids.tolist(), task.config["file"]) == ("test", [1, 2, 3], path.name)
    assert (task.texts, task.corrupted_texts) == ((pair[0].text,) * 3, (pair[1].text,) * 3)
    assert gpt2_tokenizer.batch_decode(task.answers) == list(pair[0].answers) * 3
    assert gpt2_tokenizer.batch_decode(task.wrong) == list(pair[0].wrong) * 3


def test_rows_that_cannot_be_used_are_left_out_and_counted(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    """Every third row has a counterfactual, and one an answer, that GPT-2 cannot use."""
    rows: list[dict[str, Any]] = []
    for i in range(12):
        rows.append({**SUM, "idx": i, "prompt": f"The sum of {10 + i} and 34 is ", "label": str(44 + i)})
        if i % 3 == 1:
            rows[i]["random_counterfactual"] = {"prompt": None, "label": None} if i % 2 else None
    rows[3]["label"] = "123456789"
    path = write(tmp_path / "sums.jsonl", *rows)
    message = r"5 of 12 rows of .*sums.jsonl are left out\. .*line 2: the counterfactual is empty"
    with pytest.warns(AssayWarning, match=message):
        task = load_task(path, gpt2_tokenizer)
    assert task.fields["idx"] == [0, 2, 5, 6, 8, 9, 11]
    with pytest.warns(AssayWarning, match="rows of .*are left out"):
        some = load_task(path, gpt2_tokenizer, n=4, seed=1)
    assert set(some.fields["idx"]) < set(task.fields["idx"])
    assert (some.n, some.fields["idx"], some.config["seed"]) == (4, sorted(some.fields["idx"]), 1)
    with pytest.raises(TokenizationError, match="none of the 1 rows of .* can be used .* answer '123456789'"):
        load_task(write(path, rows[3]), gpt2_tokenizer)
    same = write(tmp_path / "same.jsonl", {**MCQA, "symbol_counterfactual": None})
    with pytest.raises(TokenizationError, match="line 1: an answer is also a wrong answer"):
        load_task(same, gpt2_tokenizer, corruption="noun")
    with pytest.raises(UnknownNameError, match="unknown counterfactual .*line 1 'nown'; did you mean 'noun'"):
        load_task(same, gpt2_tokenizer, corruption="nown")


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "a", "label": "b"}, r"line 2: there are 0 counterfactuals \(\); expected one"),
    ({**SUM, "label": None}, "line 2: 'choices' is None, 'label' None; expected"),
    ({**IOI, "prompt": 5}, r"line 2: the prompts are \[5, 'Then, Mary .* expected texts"),
    ({**IOI, "answerKey": 2}, "line 2: 'answerKey' is 2; expected 0 to 1 or one of John, Mary"),
    ({**SUM, "random_counterfactual": {"prompt": "x"}}, "line 2, counterfactual: 'choices' is None, 'label'"),
    (
        {"prompt": "a", "label": "b", "x_counterfactual": {}, "y_counterfactual": {}},
        r"line 2: there are 2 counterfactuals \(x, y\); expected one, or choose one with corruption=NAME",
    ),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_a_malformed_row_is_named_by_file_and_line(
    row: dict[str, Any], message: str, tmp_path: Path, gpt2_tokenizer: Any
) -> None:
    with pytest.raises(FileFormatError, match=message):
        load_task(write(tmp_path / "rows.jsonl", SUM, row), gpt2_tokenizer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.sampled_from(["", "A", "1", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "label", "prompt", "choices", "answerKey"]), inner)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["prompt", "choices", "answerKey", "label", "metadata", "counterfactual", "abc_counterfactual", "id"]
)


@given(base=st.sampled_from([*PUBLISHED.values(), {}]), changes=st.dictionaries(KEYS, JSON))
@settings(max_examples=300, deadline=None)
def test_any_row_is_read_or_refused_by_name(base: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        found: object = published_pair({**base, **changes}, "here")
    except FileFormatError as error:
        found = str(error)
    assert found is None or isinstance(found, tuple) or str(found).startswith("here")

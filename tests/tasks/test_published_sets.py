"""Rows of MIB's data sets, in the columns in which they are published."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import (
    AssayWarning,
    FileFormatError,
    InputError,
    MissingExtraError,
    TokenizationError,
    UnknownNameError,
)
from assay.tasks import load_task, published_pair


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
TEXTS = ["red", "black", "pink", "blue"]
MCQA = {
    "dataset": "colors",
    "idx": 3,
    "prompt": COLORS.format(*"ABCD"),
    "choices": {"label": list("ABCD"), "text": TEXTS},
    "answerKey": 1,
    "noun_counterfactual": {
        "prompt": COLORS.format(*"ABCD").replace("oals", "rows"),
        "choices": {"label": list("ABCD"), "text": TEXTS},
        "answerKey": 1,
    },
    "symbol_counterfactual": {
        "prompt": COLORS.format(*"KTXQ"),
        "choices": {"label": list("KTXQ"), "text": TEXTS},
        "answerKey": 1,
    },
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
ROWS = {"ioi": IOI, "mcqa": MCQA, "arithmetic": SUM}


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, records)))
    return path


@pytest.mark.parametrize(
    ("key", "options", "answer", "wrong"),
    [
        ("ioi", {}, " Mary", (" John",)),
        ("ioi", {"corruption": "abc"}, " Mary", (" John",)),
        ("ioi", {"leading_space": False}, "Mary", ("John",)),
        ("mcqa", {}, "B", ("T",)),
        ("mcqa", {"leading_space": True}, " B", (" T",)),
        ("arithmetic", {}, "46", ("76",)),
        ("arithmetic", {"corruption": "ones_op1"}, "46", ("47",)),
        ("arithmetic", {"corruption": "ones_op1_counterfactual"}, "46", ("47",)),
    ],
)
def test_answers_are_those_that_mib_scores(
    key: str, options: dict[str, Any], answer: str, wrong: tuple[str, ...]
) -> None:
    pair = published_pair(ROWS[key], "here", **options)
    assert pair is not None
    assert (pair[0].answers, pair[0].wrong) == ((answer,), wrong)


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("ioi", "s2_io_flip_counterfactual"),
        ("mcqa", "symbol_counterfactual"),
        ("arithmetic", "random_counterfactual"),
    ],
)
def test_the_usual_counterfactual_is_that_of_the_circuit_track(key: str, column: str) -> None:
    pair = published_pair(ROWS[key], "here")
    assert pair is not None
    assert (pair[0].text, pair[1].text) == (ROWS[key]["prompt"], ROWS[key][column]["prompt"])


@pytest.mark.parametrize("key", ROWS)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_published_file_is_a_task(key: str, suffix: str, tmp_path: Path, gpt2_tokenizer: Any) -> None:
    path = write_rows(tmp_path / f"test{suffix}", [ROWS[key]] * 3)
    task = load_task(path, gpt2_tokenizer)
    assert (task.name, task.n, task.ids.tolist()) == ("test", 3, [1, 2, 3])
    pair = published_pair(ROWS[key], "here")
    assert pair is not None
    assert task.texts == (pair[0].text,) * 3
    assert task.corrupted_texts == (pair[1].text,) * 3
    assert gpt2_tokenizer.batch_decode(task.answers) == list(pair[0].answers) * 3
    assert task.wrong is not None
    assert gpt2_tokenizer.batch_decode(task.wrong) == list(pair[0].wrong) * 3
    assert task.config["file"] == path.name


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        return write(path, *rows)
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


def test_plain_values_and_metadata_become_fields(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    task = load_task(write(tmp_path / "ioi.jsonl", IOI), gpt2_tokenizer)
    assert {name: task.fields[name] for name in ("subject", "indirect_object", "answerKey")} == {
        "subject": ["John"], "indirect_object": ["Mary"], "answerKey": [1]
    }  # fmt: skip
    task = load_task(write(tmp_path / "sum.jsonl", SUM), gpt2_tokenizer)
    assert (task.fields["operator"], task.fields["corrupted.operand1"]) == (["+"], [55])


def sums(n: int) -> list[dict[str, Any]]:
    """Rows of which every third has a counterfactual, or an answer, that GPT-2 cannot use."""
    rows: list[dict[str, Any]] = []
    for i in range(n):
        row = {**SUM, "idx": i, "prompt": f"The sum of {10 + i} and 34 is ", "label": str(44 + i)}
        if i % 3 == 1:
            row["random_counterfactual"] = {"prompt": None, "label": None} if i % 2 else None
        rows.append({**row, "label": "123456789"} if i == 3 else row)
    return rows


def test_rows_that_cannot_be_used_are_left_out_and_counted(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    path = write(tmp_path / "sums.jsonl", *sums(12))
    with pytest.warns(
        AssayWarning,
        match=r"5 of 12 rows of .*sums.jsonl are left out\. .*line 2: the counterfactual is empty",
    ):
        task = load_task(path, gpt2_tokenizer)
    assert task.fields["idx"] == [0, 2, 5, 6, 8, 9, 11]
    with pytest.warns(AssayWarning, match="rows of .*are left out"):
        some = load_task(path, gpt2_tokenizer, n=4, seed=1)
    assert some.n == 4
    assert set(some.fields["idx"]) < set(task.fields["idx"])
    assert some.fields["idx"] == sorted(some.fields["idx"])
    assert some.config["seed"] == 1


def test_a_file_without_usable_rows_quotes_the_first(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    path = write(tmp_path / "sums.jsonl", {**SUM, "label": "123456789"})
    with pytest.raises(
        TokenizationError,
        match=r"none of the 1 rows of .*sums.jsonl can be used .*line 1: answer '123456789' of the prompt",
    ):
        load_task(path, gpt2_tokenizer)
    same = {**MCQA, "symbol_counterfactual": None}
    with pytest.raises(TokenizationError, match="line 1: an answer is also a wrong answer"):
        load_task(write(tmp_path / "same.jsonl", same), gpt2_tokenizer, corruption="noun")


MALFORMED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no counterfactual": (
        lambda: {"prompt": "a", "label": "b"},
        r"line 2: there are 0 counterfactuals \(\); expected one",
    ),
    "no answer": (
        lambda: {k: v for k, v in SUM.items() if k != "label"},
        "line 2: 'choices' is None, 'label' None; expected",
    ),
    "a prompt that is no text": (
        lambda: {**IOI, "prompt": 5},
        r"line 2: the prompts are \[5, 'Then, Mary .* expected texts",
    ),
    "a counterfactual that is text": (
        lambda: {**SUM, "random_counterfactual": "x"},
        r"line 2: the prompts are \['The sum of 12 and 34 is ', None\]; expected texts",
    ),
    "a key outside": (
        lambda: {**IOI, "answerKey": 2},
        "line 2: 'answerKey' is 2; expected 0 to 1 or one of John, Mary",
    ),
    "choices that are no texts": (lambda: {**IOI, "choices": [1, 2]}, r"line 2: 'choices' is \[1, 2\]"),
    "a counterfactual without answer": (
        lambda: {**SUM, "random_counterfactual": {"prompt": "x"}},
        "line 2, counterfactual: 'choices' is None, 'label' None",
    ),
    "several unknown counterfactuals": (
        lambda: {"prompt": "a", "label": "b", "x_counterfactual": {}, "y_counterfactual": {}},
        r"line 2: there are 2 counterfactuals \(x, y\); expected one, or choose one with corruption=NAME",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_row_is_named_by_file_and_line(case: str, tmp_path: Path, gpt2_tokenizer: Any) -> None:
    make, message = MALFORMED[case]
    with pytest.raises(FileFormatError, match=message):
        load_task(write(tmp_path / "rows.jsonl", SUM, make()), gpt2_tokenizer)


def test_answer_keys_may_be_labels_or_digits() -> None:
    for key in ("B", "1", 1):
        pair = published_pair({**MCQA, "answerKey": key}, "here")
        assert pair is not None
        assert pair[0].answers == ("B",)


def test_names_that_are_not_there_have_near_matches(tmp_path: Path, gpt2_tokenizer: Any) -> None:
    path = write(tmp_path / "ioi.jsonl", IOI)
    with pytest.raises(
        UnknownNameError, match="unknown counterfactual of .*line 1 'acb'; did you mean 'abc'"
    ):
        load_task(path, gpt2_tokenizer, corruption="acb")
    with pytest.raises(InputError, match="unknown option of a task file 'corruptions'"):
        load_task(path, gpt2_tokenizer, corruptions="abc")


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpt2_tokenizer: Any
) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(FileFormatError, match="cannot read .*rows.parquet as parquet"):
        load_task(path, gpt2_tokenizer)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        MissingExtraError, match=r"needs pyarrow; run: pip install 'circuit-assay\[parquet\]'"
    ):
        load_task(path, gpt2_tokenizer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.sampled_from(["", "A", "1", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "label", "prompt", "choices", "answerKey"]), inner)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["prompt", "choices", "answerKey", "label", "metadata", "counterfactual", "abc_counterfactual", "id",
     "question", "answer"]
)  # fmt: skip


@given(base=st.sampled_from([*ROWS.values(), {}]), changes=st.dictionaries(KEYS, JSON))
@settings(max_examples=300, deadline=None)
def test_any_row_is_read_or_refused_by_name(base: dict[str, Any], changes: dict[str, Any]) -> None:
    record = {**base, **changes}
    try:
        found: object = published_pair(record, "here")
    except FileFormatError as error:
        found = str(error)
    assert found is None or isinstance(found, tuple) or str(found).startswith("here")

"""Which tokens of prompts of different length belong together: by hand, from files, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.core.errors import (
    AssayError,
    AssayWarning,
    FileFormatError,
    InputError,
    ShapeError,
    TokenizationError,
    UnknownNameError,
)
from assay.tasks import (
    TASKS,
    PairTask,
    Prompt,
    Tokens,
    align_prompts,
    check_equal_lengths,
    load_task,
    pair_task,
)


PAIR: dict[str, Any] = {
    "clean": "Then, Mary and John went to the store. John gave a ring to",
    "corrupted": "Then, Mary went to the store. Lisa gave a ring to",
    "answers": [" Mary"],
    "wrong": [" John"],
}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(
    ("clean", "corrupted", "spans", "expected"),
    [
        (4, 4, (), [0, 1, 2, 3]),
        (4, 6, (), [2, 3, 4, 5]),
        (6, 4, (), [-1, -1, 0, 1, 2, 3]),
        # Then , | Mary | gave   against   Then , | E liza beth | gave
        (4, 6, [((2, 3), (2, 5))], [0, 1, 4, 5]),
        (6, 4, [((2, 5), (2, 3))], [0, 1, -1, -1, 2, 3]),
        # "not" stands in the clean prompt only: an empty span, and no other token moves.
        (5, 4, [((2, 3), (2, 2))], [0, 1, -1, 2, 3]),
        # One token more in the first span, one less in the second: equal lengths, yet the middle moves.
        (6, 6, [((1, 3), (1, 2)), ((4, 5), (3, 5))], [0, -1, 1, 2, 4, 5]),
        # What lies between two spans is aligned from its end too.
        (6, 5, [((0, 1), (0, 1)), ((5, 6), (4, 5))], [0, -1, 1, 2, 3, 4]),
    ],
)
def test_alignments_worked_by_hand(clean: int, corrupted: int, spans: Any, expected: list[int]) -> None:
    assert align_prompts([clean], [corrupted], [spans]).tolist() == [expected]


def test_rows_are_filled_behind_their_prompt() -> None:
    assert align_prompts([2, 4], [3, 4]).tolist() == [[1, 2, -1, -1], [0, 1, 2, 3]]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_within_every_part_as_many_tokens_meet_as_the_shorter_side_has(parts: list[tuple[int, int]]) -> None:
    parts = [*parts, (1, 1)]
    edges = [[0], [0]]
    for sizes in parts:
        for side, size in enumerate(sizes):
            edges[side].append(edges[side][-1] + size)
    spans = [((edges[0][i], edges[0][i + 1]), (edges[1][i], edges[1][i + 1])) for i in range(len(parts) - 1)]
    [row] = align_prompts([edges[0][-1]], [edges[1][-1]], [spans]).tolist()
    for (start, stop), (other, end) in spans:
        met = [place for place in row[start:stop] if place >= 0]
        assert met == list(range(end - min(stop - start, end - other), end))
    known = [place for place in row if place >= 0]
    assert known == sorted(set(known))


@pytest.mark.parametrize(
    ("spans", "error", "message"),
    [
        ([[((2, 4), (0, 1)), ((1, 3), (1, 2))]], InputError, r"pair 0: the spans of the clean prompt are"),
        ([[((0, 1), (2, 3)), ((1, 2), (0, 1))]], InputError, r"pair 0: the spans of the corrupted prompt"),
        ([[((0, 1), (0, 9))]], InputError, r"corrupted prompt are tokens \[0, 9\] of 5"),
        ([], ShapeError, "1 lengths, 1 corrupted lengths and 0 lists of spans"),
    ],
)
def test_spans_that_are_none_are_refused(spans: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        align_prompts([4], [5], spans)


# ---- tasks of tensors ------------------------------------------------------------------------------------


def ids(*shape: int) -> Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel()).view(shape)


def aligned(**changed: Any) -> PairTask:
    facts = {
        "clean": ids(2, 3),
        "corrupted": ids(2, 4),
        "answers": torch.tensor([[1], [2]]),
        "alignment": torch.tensor([[1, 2, 3], [0, 1, 2]]),
        "corrupted_lengths": torch.tensor([4, 3]),
    }
    return PairTask(**{**facts, **changed})


def test_a_task_knows_how_it_is_aligned() -> None:
    task = aligned()
    assert (task.length, task.longest, task.unequal) == (3, 4, 1)
    [batch] = task.batches(2)
    assert (batch.positions.tolist(), batch.corrupted_positions.tolist()) == ([2, 2], [3, 2])
    several = aligned(
        positions=torch.tensor([[2, 0], [1, -1]]), answers=torch.tensor([[[1], [2]], [[3], [-1]]])
    )
    assert next(several.batches(2)).corrupted_positions.tolist() == [[3, 1], [1, -1]]


def test_alignment_is_part_of_the_data_and_rows_keep_theirs() -> None:
    task = aligned()
    other = aligned(alignment=torch.tensor([[-1, 2, 3], [0, 1, 2]]))
    assert task.data_hash != other.data_hash
    assert task.subset([1, 0]).alignment.tolist() == task.alignment.flip(0).tolist()
    assert task.subset([1]).unequal == 0
    assert task.split(0.5).first.n == 1


def test_pairs_of_one_length_are_what_they_are_without_an_alignment() -> None:
    facts = {"clean": ids(2, 3), "corrupted": ids(2, 3).flip(0), "answers": torch.tensor([[9], [8]])}
    lengths = torch.tensor([3, 2])
    plain = PairTask(**facts, lengths=lengths)
    same = PairTask(
        **facts, lengths=lengths, corrupted_lengths=lengths, alignment=align_prompts([3, 2], [3, 2])
    )
    assert same.alignment is None
    assert (same.data_hash, same.describe()) == (plain.data_hash, plain.describe())
    check_equal_lengths(same, "anything")


@pytest.mark.parametrize("rows", [[1], [1, 1]])
def test_rows_of_one_length_are_ordinary_pairs_again(rows: list[int]) -> None:
    """Row 1 is padded to the longest prompts of either side, which are those of row 0."""
    for flipped in (False, True):  # the corrupted prompts are the longer ones, or the shorter ones
        task = aligned()
        if flipped:
            task = aligned(
                clean=task.corrupted,
                corrupted=task.clean,
                lengths=task.corrupted_lengths,
                corrupted_lengths=task.lengths,
                alignment=torch.tensor([[-1, 0, 1, 2], [0, 1, 2, -1]]),
            )
        alone = task.subset(rows)
        check_equal_lengths(alone, "anything")
        assert alone.alignment is None
        assert alone.corrupted.shape == alone.clean.shape
        assert torch.equal(alone.corrupted[:, :3], task.corrupted[rows, :3])


def test_donors_and_new_pairs() -> None:
    task = aligned()
    donated = task.with_donors(torch.tensor([1, 0]))
    assert donated.alignment is None
    assert donated.corrupted.tolist() == task.clean.flip(0).tolist()
    with pytest.raises(InputError, match="pairing prompts anew needs .* but 1 of 2 pairs of 'custom' differ"):
        task.paired(torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"alignment": None}, ShapeError, "or give alignment=align_prompts"),
        ({"alignment": torch.tensor([[1, 2, 3]])}, ShapeError, r"alignment has shape \(1, 3\)"),
        ({"alignment": torch.tensor([[2, 1, 3], [0, 1, 2]])}, InputError, "alignment of pair 0 .* order"),
        ({"alignment": torch.tensor([[1, 1, 3], [0, 1, 2]])}, InputError, "alignment of pair 0 .* order"),
        ({"alignment": torch.tensor([[1, 2, 3], [0, 1, 3]])}, InputError, "pair 1 .* outside the corrupted"),
        ({"alignment": torch.tensor([[1, 2, -2], [0, 1, 2]])}, InputError, "pair 0 .* there is none"),
        ({"alignment": torch.tensor([[1, 2, 3], [0, 1, -1]])}, InputError, "pair 1 .* where the prompt is"),
        ({"lengths": torch.tensor([2, 3])}, InputError, "alignment of pair 0 names a token where there is"),
        ({"corrupted_lengths": torch.tensor([4, 5])}, InputError, r"corrupted_lengths is out of range 1..4"),
        ({"corrupted_lengths": torch.tensor([4])}, ShapeError, "corrupted_lengths has shape"),
        (
            {"alignment": None, "corrupted": ids(2, 3), "corrupted_lengths": torch.tensor([3, 2])},
            InputError,
            "corrupted_lengths differs from lengths, but there is no alignment",
        ),
    ],
)
def test_alignments_that_do_not_fit_are_refused(
    changed: dict[str, Any], error: type[Exception], message: str, unchecked: None
) -> None:
    with pytest.raises(error, match=message):
        aligned(**changed)


def test_the_longer_side_must_fit_the_model() -> None:
    with pytest.raises(TokenizationError, match="has 4 tokens, but the model reads only 3"):
        aligned().validate(100, 3)


# ---- files -----------------------------------------------------------------------------------------------


def test_a_line_with_spans(tmp_path: Path, mini_tokenizer: Any) -> None:
    row = {**PAIR, "spans": {"names": ["Mary and John", "Mary"]}, "place": "store"}
    task = load_task(write(tmp_path / "pairs.jsonl", row), mini_tokenizer, lengths="aligned")
    # Then , | Mary and John | went to the store . ...  against  Then , | Mary | went to the store . ...
    assert (task.lengths.tolist(), task.corrupted_lengths.tolist()) == ([15], [13])
    assert task.alignment.tolist() == [[0, 1, -1, -1, 2, *range(3, 13)]]
    assert (task.slots["names"].tolist(), task.fields["place"]) == ([4], ["store"])
    assert task.config["lengths"] == "aligned"
    assert set(task.fields) == {"place", "n_tokens", "corrupted.n_tokens"}


def test_without_spans_whole_prompts_end_together(tmp_path: Path, mini_tokenizer: Any) -> None:
    path = write(tmp_path / "pairs.jsonl", PAIR)
    task = load_task(path, mini_tokenizer, lengths="aligned")
    assert task.alignment.tolist() == [[-1, -1, *range(13)]]
    begun = load_task(path, mini_tokenizer, lengths="aligned", bos=True)
    assert begun.alignment.tolist() == [[0, -1, -1, *range(1, 14)]]  # the beginning is a part of its own


def test_what_a_chat_template_begins_with_is_a_part_of_its_own(
    tmp_path: Path, mini_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% for m in messages %}Then, the {{ m['content'] }}.{% endfor %}"
    monkeypatch.setattr(mini_tokenizer, "chat_template", template, raising=False)
    row = {"clean": "store and garden", "corrupted": "office", "answers": ["John"]}
    task = load_task(write(tmp_path / "chat.jsonl", row), mini_tokenizer, lengths="aligned", chat=True)
    assert (task.lengths.tolist(), task.corrupted_lengths.tolist()) == ([7], [5])
    assert task.alignment.tolist() == [[0, 1, 2, -1, -1, 3, 4]]


def test_lines_of_ids_have_ranges(tmp_path: Path) -> None:
    row = {"clean": [5, 6, 7], "corrupted": [5, 8, 9, 7], "answers": [[3]], "spans": {"x": [[1, 2], [1, 3]]}}
    row["answers"] = [3]
    task = load_task(
        write(tmp_path / "ids.jsonl", row, {**row, "spans": {"x": [[1, 1], [1, 2]]}}), None, lengths="aligned"
    )
    assert task.alignment.tolist() == [[0, 2, 3], [0, 2, 3]]
    assert task.slots == {}  # the second line has no token there


def test_answers_of_several_tokens_stand_behind_both(tmp_path: Path, mini_tokenizer: Any) -> None:
    row = {**PAIR, "clean": PAIR["clean"][:-3], "corrupted": PAIR["corrupted"][:-3]}
    row |= {"answers": [" to Mary"], "wrong": [" to John"]}
    path = write(tmp_path / "pairs.jsonl", row)
    task = load_task(path, mini_tokenizer, lengths="aligned", answer_tokens="each")
    [batch] = task.batches(1)
    assert (batch.positions.tolist(), batch.corrupted_positions.tolist()) == ([[13, 14]], [[11, 12]])


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (["Mary"], r"line 1: 'spans' is \['Mary'\]; expected names"),
        ({"name": ["Mary"]}, "line 1: 'spans' is"),
        (
            {"name": ["Mary", "Paul"]},
            "span 'name' of the corrupted prompt is 'Paul'; expected text of it",
        ),
        ({"name": ["", "Mary"]}, "line 1: span 'name' of the clean prompt is ''"),
        (
            {"a": ["store", "store"], "b": ["Mary", "Mary"]},
            "span 'b' of the clean .* behind the spans",
        ),
        ({"name": [[1, 2], [1, 3]]}, "expected text of it"),
    ],
)
def test_malformed_spans_are_named(spans: Any, message: str, tmp_path: Path, mini_tokenizer: Any) -> None:
    path = write(tmp_path / "pairs.jsonl", {**PAIR, "spans": spans})
    with pytest.raises(FileFormatError, match=message):
        load_task(path, mini_tokenizer, lengths="aligned")


def test_a_read_position_needs_both_tokens(tmp_path: Path, mini_tokenizer: Any) -> None:
    row = {**PAIR, "positions": [3, -1], "answers": [[" and"], [" Mary"]], "wrong": [[], [" John"]]}
    row["spans"] = {"names": ["Mary and John", "Mary"]}
    path = write(tmp_path / "pairs.jsonl", row)
    with pytest.raises(AssayError, match="line 1: alignment of pair 0 has no corrupted token where"):
        load_task(path, mini_tokenizer, lengths="aligned")


def test_equal_lengths_stay_the_rule(tmp_path: Path, mini_tokenizer: Any) -> None:
    path = write(tmp_path / "pairs.jsonl", PAIR)
    with pytest.raises(TokenizationError, match="or align the prompts with lengths='aligned'"):
        load_task(path, mini_tokenizer)
    with pytest.raises(UnknownNameError, match="lengths"):
        load_task(path, mini_tokenizer, lengths="algined")
    same = {**PAIR, "corrupted": PAIR["clean"].replace("John gave", "Mary gave"), "spans": "a field"}
    task = load_task(write(tmp_path / "same.jsonl", same), mini_tokenizer)
    assert task.fields["spans"] == ["a field"]


@pytest.mark.parametrize("key", sorted(TASKS))
def test_drawn_tasks_of_one_length_do_not_change(key: str, tokenizer_of: Callable[[str], Any]) -> None:
    tokenizer = tokenizer_of(key)
    plain, told = (load_task(key, tokenizer, n=8, lengths=rule) for rule in ("equal", "aligned"))
    assert told.alignment is None
    assert told.describe() == plain.describe()


def test_slots_of_a_grammar_are_spans(mini_tokenizer: Any) -> None:
    clean = Prompt(text="Then, Mary and John went", answers=(" to",), slots={"name": (6, 19)})
    other = Prompt(text="Then, Lisa went", slots={"name": (6, 10)})
    task = pair_task([clean], [other], Tokens(mini_tokenizer), name="x", aligned=True)
    assert task.alignment.tolist() == [[0, 1, -1, -1, 2, 3]]


def test_rows_of_mib_are_kept(tmp_path: Path, mini_tokenizer: Any) -> None:
    row = {
        "prompt": PAIR["clean"],
        "choices": ["Mary", "John"],
        "answerKey": 0,
        "s2_io_flip_counterfactual": {
            "prompt": PAIR["corrupted"],
            "choices": ["Mary", "John"],
            "answerKey": 1,
        },
    }
    equal = {
        **row,
        "s2_io_flip_counterfactual": {**row, "prompt": PAIR["clean"].replace("John gave", "Mary gave")},
    }
    path = write(tmp_path / "mib.jsonl", row, equal)
    with pytest.warns(AssayWarning, match="1 of 2 rows"):
        assert load_task(path, mini_tokenizer).ids.tolist() == [2]
    task = load_task(path, mini_tokenizer, lengths="aligned")
    assert (task.ids.tolist(), task.unequal) == ([1, 2], 1)

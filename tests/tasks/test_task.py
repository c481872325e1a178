from typing import Any

import pytest
import torch
from torch.nn import functional

from assay.core.errors import InputError, ShapeError, TokenizationError, UnknownNameError
from assay.tasks import PairTask


def task(**changes: Any) -> PairTask:
    """Three prompts of up to four ids; the second is one shorter."""
    given: dict[str, Any] = {
        "clean": torch.tensor([[1, 2, 3, 4], [1, 5, 3, 0], [6, 2, 3, 4]]),
        "corrupted": torch.tensor([[1, 7, 3, 4], [1, 8, 3, 0], [6, 9, 3, 4]]),
        "answers": torch.tensor([[10, 11], [12, -1], [10, -1]]),
        "wrong": torch.tensor([[12], [10], [11]]),
        "lengths": torch.tensor([4, 3, 4]),
        "fields": {"place": ["store", "garden", "store"], "corrupted.place": ["a", "b", "c"]},
        "texts": ("one", "two", "three"),
        "slots": {"name": torch.tensor([1, 1, 0])},
    }
    return PairTask(**{**given, **changes})


def test_a_task_of_ids_alone_reads_the_last_token_of_each_prompt() -> None:
    ids = torch.tensor([[3, 4, 5], [3, 6, 5]])
    plain = PairTask(clean=ids, corrupted=ids.flip(0), answers=torch.tensor([[7], [8]]))
    assert (plain.n, plain.length) == (2, 3)
    assert plain.lengths.tolist() == [3, 3]
    assert plain.positions.tolist() == [2, 2]
    assert plain.fields == {}
    assert plain.name == "custom"
    assert (plain.objective, plain.ablation) == ("logit_diff", "resample")
    assert repr(plain) == "PairTask('custom', n=2, length=3, objective='logit_diff')"


def test_batches_hold_every_row_once_in_order_whatever_their_size() -> None:
    whole = task()
    for size in (1, 2, 3, 10):
        batches = list(whole.batches(size))
        assert torch.cat([b.indices for b in batches]).tolist() == [0, 1, 2]
        for name in ("clean", "corrupted", "answers", "wrong", "lengths", "positions"):
            assert torch.equal(torch.cat([getattr(b, name) for b in batches]), getattr(whole, name))
    assert next(task(wrong=None).batches(2)).wrong is None


def test_a_subset_takes_rows_with_everything_that_belongs_to_them() -> None:
    part = task().subset([2, 0])
    assert part.clean.tolist() == [[6, 2, 3, 4], [1, 2, 3, 4]]
    assert part.positions.tolist() == [3, 3]
    assert part.wrong is not None
    assert part.wrong.tolist() == [[11], [12]]
    assert part.fields == {"place": ["store", "store"], "corrupted.place": ["c", "a"]}
    assert part.texts == ("three", "one")
    assert part.slots["name"].tolist() == [0, 1]


def test_a_split_is_seeded_and_leaves_nothing_out() -> None:
    whole = PairTask(
        clean=torch.arange(20)[:, None],
        corrupted=torch.arange(20)[:, None],
        answers=torch.arange(20)[:, None],
    )
    first, second = whole.split(0.3, seed=1)
    assert (first.n, second.n) == (6, 14)
    assert sorted(first.clean.flatten().tolist() + second.clean.flatten().tolist()) == list(range(20))
    assert whole.split(0.3, seed=1)[0].data_hash == first.data_hash
    assert whole.split(0.3, seed=2)[0].data_hash != first.data_hash
    assert whole.split(0.001)[0].n == 1


@pytest.mark.parametrize("name", ["clean", "corrupted", "answers", "wrong", "lengths", "positions"])
def test_the_data_hash_sees_every_tensor(name: str) -> None:
    changed = {
        "clean": task().clean + torch.tensor([1, 0, 0, 0]),
        "corrupted": task().corrupted + torch.tensor([1, 0, 0, 0]),
        "answers": torch.tensor([[10, 13], [12, -1], [10, -1]]),
        "wrong": torch.tensor([[12], [10], [13]]),
        "lengths": torch.tensor([4, 4, 4]),
        "positions": torch.tensor([3, 1, 3]),
    }[name]
    given = {"positions": torch.tensor([3, 2, 3]), name: changed}
    assert task(**given).data_hash != task().data_hash
    assert task().data_hash == task().data_hash


def test_the_data_hash_does_not_see_padding() -> None:
    whole = task()
    padded = {name: functional.pad(getattr(whole, name), (0, 2), value=7) for name in ("clean", "corrupted")}
    more = functional.pad(whole.answers, (0, 1), value=-1)
    assert (
        task(**padded, answers=more, lengths=whole.lengths, positions=whole.positions).data_hash
        == whole.data_hash
    )
    short = task(lengths=torch.tensor([2, 4, 4]), positions=torch.tensor([1, 3, 3])).subset([0])
    again = {name: getattr(short, name)[:, :2] for name in ("clean", "corrupted")}
    facts = {name: getattr(short, name) for name in ("answers", "wrong", "positions")}
    assert PairTask(**again, **facts).data_hash == short.data_hash


THREE = torch.tensor([[1], [1], [2]])
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"corrupted": torch.ones(3, 5, dtype=torch.long)}, ShapeError, r"\(3, 4\), but corrupted \(3, 5\)"),
    ({"clean": torch.zeros(0, 4, dtype=torch.long)}, ShapeError, "one row of ids per prompt, at least one"),
    ({"clean": torch.ones(3, 4)}, ShapeError, "clean is torch.float32; give"),
    ({"clean": [[1, 2]]}, ShapeError, "clean is list; give a tensor"),
    ({"answers": torch.tensor([1, 2, 3])}, ShapeError, r"answers has shape \(3,\); expected \[3, at least 1"),
    ({"wrong": torch.zeros(3, 0, dtype=torch.long)}, ShapeError, r"wrong has shape \(3, 0\)"),
    ({"answers": -THREE}, InputError, r"answers holds a negative id other than -1, .* \(prompt 2\)"),
    ({"answers": THREE.where(THREE > 1, -1)}, InputError, r"answers names no token \(prompt 0\)"),
    ({"corrupted": -torch.ones(3, 4, dtype=torch.long)}, InputError, "corrupted holds a negative token id"),
    ({"lengths": torch.tensor([4, 0, 4])}, InputError, r"lengths is out of range 1..4 \(prompt 1\)"),
    ({"lengths": torch.tensor([4, 3])}, ShapeError, r"lengths has shape \(2,\); expected \[3\]"),
    ({"positions": torch.tensor([3, 3, 3])}, InputError, r"positions lies outside its prompt \(prompt 1\)"),
    ({"wrong": torch.tensor([[12], [12], [11]])}, InputError, r"also a wrong answer \(prompt 1\)"),
    ({"fields": {"place": ["x"]}}, ShapeError, "field 'place' has 1 entries for 3 prompts"),
    ({"slots": {"name": torch.tensor([1])}}, ShapeError, "slot 'name' has 1 entries"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_a_task_that_does_not_hold_together_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        task(**changes)


@pytest.mark.parametrize("name", ["clean", "corrupted", "answers", "wrong"])
def test_an_id_beyond_the_vocabulary_is_named(name: str) -> None:
    ids = getattr(task(), name).clone()
    ids[1, 0] = 99
    with pytest.raises(TokenizationError, match=rf"{name} holds id 99 \(prompt 1, place 0\).*ends at 49"):
        task(**{name: ids}).validate(50)
    task(**{name: ids}).validate(100)


def test_pairs_are_chosen_by_their_fields() -> None:
    whole = task(fields={"order": ["ABBA", "BABA", "ABBA"], "year": [1, 2, 3]})
    part = whole.where(order="ABBA", year="3")
    assert part.ids.tolist() == [2]
    assert part.notes == ("2 of 3 pairs have other values of order, year",)
    assert whole.where(order="ABBA").fields["year"] == [1, 3]
    with pytest.raises(UnknownNameError, match="unknown field of .* 'ordr'; did you mean 'order'"):
        whole.where(ordr="ABBA")
    with pytest.raises(InputError, match="none of the 3 pairs of .* has year=9"):
        whole.where(year=9)


@pytest.mark.usefixtures("unchecked")
def test_a_part_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="subset names rows 0 to 3, but there are 0 to 2"):
        task().subset([0, 3])
    with pytest.raises(InputError, match="at least one row number"):
        task().subset(torch.tensor([True, False, True]))
    with pytest.raises(InputError, match=r"fraction in \(0, 1\) and at least 2 pairs; got 1.0 and 3"):
        task().split(1.0)

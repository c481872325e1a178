"""A task of pairs: what it holds and refuses, how it is cut, and which of its rows are different examples."""

import base64
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from assay.core.errors import InputError, ShapeError, TokenizationError, UnknownNameError
from assay.discovery.edges import discover
from assay.models import load_model
from assay.tasks import ImageTask, PairTask, load_task
from assay.tasks.examples import (
    CODES,
    describe_discovery,
    different_examples,
    example_codes,
    found_on,
    prompt_codes,
    seen_prompts,
)


def task(**changes: Any) -> PairTask:
    """Three prompts of up to four ids; the second is one shorter."""
    given: dict[str, Any] = {
        "clean": torch.tensor([[1, 2, 3, 4], [1, 5, 3, 0], [6, 2, 3, 4]]),
        "corrupted": torch.tensor([[1, 7, 3, 4], [1, 8, 3, 0], [6, 9, 3, 4]]),
        "answers": torch.tensor([[10, 11], [12, -1], [10, -1]]),
        "wrong": torch.tensor([[12], [10], [11]]),
        "lengths": torch.tensor([4, 3, 4]),
        "fields": {"order": ["ABBA", "BABA", "ABBA"], "year": [1, 2, 3]},
        "texts": ("one", "two", "three"),
        "slots": {"name": torch.tensor([1, 1, 0])},
    }
    return PairTask(**{**given, **changes})


def test_rows_are_taken_with_everything_that_belongs_to_them() -> None:
    whole = task()
    for size in (1, 2, 10):
        batches = list(whole.batches(size))
        for name in ("clean", "corrupted", "answers", "wrong", "lengths", "positions"):
            assert torch.equal(torch.cat([getattr(each, name) for each in batches]), getattr(whole, name))
    assert next(task(wrong=None).batches(2)).wrong is None
    part = whole.subset([2, 0])
    assert part.clean.tolist() == [[6, 2, 3, 4], [1, 2, 3, 4]]
    assert (part.positions.tolist(), part.wrong.tolist()) == ([3, 3], [[11], [12]])
    assert part.fields == {"order": ["ABBA", "ABBA"], "year": [3, 1]}
    assert (part.texts, part.slots["name"].tolist()) == (("three", "one"), [0, 1])
    chosen = whole.where(order="ABBA", year="3")
    assert (chosen.ids.tolist(), chosen.notes) == ([2], ("2 of 3 pairs have other values of order, year",))


def test_a_split_is_seeded_and_leaves_nothing_out() -> None:
    ids = torch.arange(20)[:, None]
    whole = PairTask(clean=ids, corrupted=ids, answers=ids)
    first, second = whole.split(0.3, seed=1)
    assert (first.n, second.n) == (6, 14)
    assert sorted(first.clean.flatten().tolist() + second.clean.flatten().tolist()) == list(range(20))
    assert whole.split(0.3, seed=1)[0].data_hash == first.data_hash != whole.split(0.3, seed=2)[0].data_hash
    assert whole.split(0.001)[0].n == 1


def test_the_data_hash_sees_every_tensor_and_no_padding() -> None:
    changed = {
        "clean": task().clean + torch.tensor([1, 0, 0, 0]),
        "corrupted": task().corrupted + torch.tensor([1, 0, 0, 0]),
        "answers": torch.tensor([[10, 13], [12, -1], [10, -1]]),
        "wrong": torch.tensor([[12], [10], [13]]),
        "lengths": torch.tensor([4, 4, 4]),
        "positions": torch.tensor([3, 1, 3]),
    }
    for name, value in changed.items():
        given = {"positions": torch.tensor([3, 2, 3]), name: value}
        assert task(**given).data_hash != task().data_hash == task().data_hash
    whole = task()
    padded = {name: functional.pad(getattr(whole, name), (0, 2), value=7) for name in ("clean", "corrupted")}
    more = functional.pad(whole.answers, (0, 1), value=-1)
    assert task(**padded, answers=more).data_hash == whole.data_hash
    short = task(lengths=torch.tensor([2, 4, 4]), positions=torch.tensor([1, 3, 3])).subset([0])
    again = {name: getattr(short, name)[:, :2] for name in ("clean", "corrupted")}
    assert PairTask(**again, answers=short.answers, wrong=short.wrong).data_hash == short.data_hash


THREE = torch.tensor([[1], [1], [2]])
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"corrupted": torch.ones(3, 5, dtype=torch.long)}, ShapeError, r"\(3, 4\), but corrupted \(3, 5\)"),
    ({"clean": torch.zeros(0, 4, dtype=torch.long)}, ShapeError, "one row of ids per prompt, at least one"),
    ({"clean": torch.ones(3, 4)}, ShapeError, "clean is torch.float32; give"),
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
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_a_task_that_does_not_hold_together_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        task(**changes)


@pytest.mark.usefixtures("unchecked")
def test_a_part_that_is_not_there_is_refused() -> None:
    for call, error, message in (
        (lambda: task().subset([0, 3]), InputError, r"subset is \[0, 3\]; expected .* row number, 0 to 2"),
        (lambda: task().subset(torch.tensor([True, False, True])), InputError, "at least one row number"),
        (lambda: task().split(1.0), InputError, r"fraction in \(0, 1\) and at least 2 pairs; got 1.0 and 3"),
        (
            lambda: task().where(ordr="ABBA"),
            UnknownNameError,
            "unknown field .* 'ordr'; did you mean 'order'",
        ),
        (lambda: task().where(year=9), InputError, "none of the 3 pairs of .* has the values {'year': 9}"),
        (lambda: task().validate(12), TokenizationError, r"answers of .* holds id 12, .*at 11"),
        (lambda: task().validate(50, 3), TokenizationError, "has 4 tokens, but the model reads only 3"),
    ):
        with pytest.raises(error, match=message):
            call()
    task().validate(13, 4)


# ---- different examples


def prompts(*clean: list[int]) -> PairTask:
    width = max(map(len, clean))
    ids = torch.tensor([[*each, *[0] * (width - len(each))] for each in clean])
    lengths = torch.tensor([len(each) for each in clean])
    return PairTask(clean=ids, corrupted=ids, answers=torch.ones_like(lengths)[:, None], lengths=lengths)


def test_prompts_are_known_by_their_ids_without_padding() -> None:
    narrow, wide = prompts([1, 2]), prompts([1, 2], [3, 4, 5])
    assert prompt_codes(narrow)[0] == prompt_codes(wide)[0] != prompt_codes(prompts([1, 2, 0]))[0]
    record = {"task": describe_discovery(prompts([1, 2], [3], [1, 2]))}
    codes = np.frombuffer(base64.b64decode(record["task"][CODES]), dtype="<u4")
    assert len(codes) == 2
    assert codes[0] < codes[1]
    assert seen_prompts(record, prompts([3], [4], [1, 2, 0])).tolist() == [True, False, False]
    assert not seen_prompts({}, prompts([3])).any()
    whole = prompts([3], [4])
    assert seen_prompts({"task": {"data_hash": whole.data_hash}}, whole).all()
    assert not seen_prompts({"task": {"data_hash": "other"}}, whole).any()
    one = {"task": describe_discovery(prompts([1]))}
    assert not found_on(one, prompts(*[[each] for each in range(1, 21)])), "one in twenty may be shared"
    assert found_on(one, prompts(*[[each] for each in range(1, 20)]))


def test_a_discovered_circuit_knows_the_prompts_of_a_larger_draw() -> None:
    model = load_model("mini")
    scores = discover(model, load_task("ioi", model, n=4, seed=0), "eap")
    larger = load_task("ioi", model, n=8, seed=0)
    for made in (scores, scores.top(9), scores.top(9).connected(warn=False)):
        assert seen_prompts(made.provenance, larger).tolist() == [True] * 4 + [False] * 4


def test_rows_of_the_same_prompts_or_images_are_copies() -> None:
    copies = prompts([1, 2], [3], [1, 2, 0], [3])
    assert example_codes(copies, paired=False).tolist() == [0, 1, 2, 1]
    assert example_codes(copies, paired=True).tolist() == [-1] * 4
    assert example_codes(copies, prompts([9], [3]), paired=False).tolist() == [0, 1, 2, 1, 3, 1]
    images = torch.stack([torch.full((3, 4, 4), float(shade)) for shade in (0, 1, 0, 2)])
    shaded = ImageTask(images=images, corrupted=torch.zeros_like(images))
    assert example_codes(shaded, paired=True).tolist() == [-1, 0, -1, 1]
    assert example_codes(shaded, paired=False).tolist() == [0, 1, 0, 2]
    kept, rows = different_examples(shaded, paired=True)
    assert (rows.tolist(), kept.n) == ([1, 3], 2)
    assert kept.describe()["notes"] == list(kept.notes)
    assert kept.notes == (
        "2 of the 4 images of 'custom' equal their counterparts; nothing is ablated on them, so they are "
        "left out",
    )
    assert different_examples(copies, paired=True)[1].tolist() == [0]  # one stays
    assert different_examples(kept, paired=True)[0] is kept

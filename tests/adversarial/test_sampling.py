"""Which inputs the four protocols run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.worst_case import sampling
from assay.analyses.worst_case.inputs import PairSample, PromptSet
from assay.analyses.worst_case.sampling import sample_pairs
from assay.core.errors import InputError, TokenizationError, UnknownNameError
from assay.tasks import PairTask, load_task


@pytest.fixture(scope="module")
def ioi(mini_tokenizer: Any) -> PairTask:
    return load_task("ioi", mini_tokenizer, n=1)


@pytest.fixture(scope="module")
def years(mini_tokenizer: Any) -> PairTask:
    return load_task("greater-than", mini_tokenizer, n=1, nouns=["journey", "trip"], centuries=["16", "17"])


def rows_task(n: int = 4) -> PairTask:
    """Rows 0..n-1 with tokens that tell them apart; clean rows 0 and 2 are the same prompt."""
    clean = torch.arange(n)[:, None] * 10 + torch.arange(3)
    clean[2] = clean[0]
    return PairTask(
        clean=clean,
        corrupted=clean.flip(0) + 100,
        answers=torch.full((n, 1), 7),
        fields={"kind": [f"k{i}" for i in range(n)], "corrupted.kind": [f"c{i}" for i in range(n)]},
    )


def test_distinct_inputs_come_in_order_of_first_occurrence() -> None:
    inputs = PromptSet(
        tokens=torch.tensor([[9, 9], [1, 2], [9, 9], [1, 2], [3, 3]]),
        lengths=torch.full((5,), 2),
        positions=torch.full((5,), 1),
        fields={},
    )
    assert inputs.distinct.first_index.tolist() == [0, 1, 4]
    assert inputs.distinct.inverse.tolist() == [0, 1, 0, 1, 2]


def test_one_sequence_read_at_two_positions_is_two_inputs() -> None:
    inputs = PromptSet(
        tokens=torch.tensor([[1, 2, 0], [1, 2, 0], [1, 2, 0]]),
        lengths=torch.tensor([2, 3, 3]),
        positions=torch.tensor([1, 1, 2]),
        fields={},
    )
    assert len(inputs.distinct.first_index) == 3


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=1, max_size=12))
def test_inverse_rebuilds_the_rows(rows: list[list[int]]) -> None:
    n = len(rows)
    inputs = PromptSet(
        tokens=torch.tensor(rows),
        lengths=torch.full((n,), 2),
        positions=torch.full((n,), 1),
        fields={"row": list(range(n))},
    )
    first, inverse = inputs.distinct
    assert inputs.subset(first[inverse]).tokens.tolist() == rows
    assert len(first) == len({tuple(row) for row in rows})
    assert (np.diff(first) > 0).all()


def test_all_crosses_inputs_of_independent_streams(ioi: PairTask) -> None:
    sample = sample_pairs(ioi, "all", 30, 20, seed=3)
    assert sample.pairs is None
    assert sample.shape == (30, 20)
    assert sample.n_pairs == 600
    assert sample.independent
    assert not sample.reuse_clean
    assert not sample.own_rows
    scenes = [
        {(place, thing) for place, thing in zip(side.fields["place"], side.fields["object"], strict=True)}
        for side in (sample.clean, sample.corrupted)
    ]
    matched = [sample.clean.fields["object"][i] == sample.corrupted.fields["object"][i] for i in range(20)]
    assert scenes[0] & scenes[1]
    assert not all(matched)


@pytest.mark.parametrize("protocol", ["all", "matched", "iid"])
@pytest.mark.parametrize("task", ["ioi", "greater-than", "docstring", "sva"])
def test_the_first_k_draws_of_a_longer_sample_are_the_sample_of_k(
    task: str, protocol: str, mini_tokenizer: Any
) -> None:
    made = load_task(task, mini_tokenizer, n=1)
    short, long = sample_pairs(made, protocol, 5, 4), sample_pairs(made, protocol, 12, 9)
    for name in ("clean", "corrupted"):
        few, many = getattr(short, name), getattr(long, name)
        assert torch.equal(few.tokens, many.tokens[: few.n])
        assert few.texts == many.texts[: few.n]


@pytest.mark.parametrize("protocol", ["all", "matched", "iid"])
def test_drawing_piece_by_piece_changes_nothing(
    protocol: str, mini_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task("ioi", mini_tokenizer, n=1, template_ids=[0] if protocol != "matched" else [0, 1])
    whole = sample_pairs(task, protocol, 11, 8)
    monkeypatch.setattr(sampling, "PIECE", 3)
    monkeypatch.setattr(sampling, "KEPT_PROMPTS", 10)
    pieces = sample_pairs(task, protocol, 11, 8)
    assert pieces.data_hash == whole.data_hash
    for name in ("clean", "corrupted"):
        one, other = getattr(whole, name), getattr(pieces, name)
        assert (one.fields, one.texts) == (other.fields, other.texts)
    assert whole.clean.prompts is not None
    assert pieces.clean.prompts is None


def test_the_same_seed_gives_the_same_sample_and_another_seed_another(ioi: PairTask) -> None:
    first, again, other = (sample_pairs(ioi, "all", 10, 10, seed=seed) for seed in (1, 1, 2))
    assert first.data_hash == again.data_hash != other.data_hash


def test_a_prefix_gives_other_streams(ioi: PairTask) -> None:
    plain, other = (sample_pairs(ioi, "iid", 50, prefix=prefix) for prefix in ("", "repair-validation:"))
    assert other.streams["clean"] == "repair-validation:clean"
    assert plain.clean.texts != other.clean.texts
    assert plain.corrupted.texts != other.corrupted.texts


def test_the_number_of_clean_inputs_does_not_move_the_corrupted_ones(ioi: PairTask) -> None:
    one, two = sample_pairs(ioi, "all", 3, 6), sample_pairs(ioi, "all", 9, 6)
    assert one.corrupted.texts == two.corrupted.texts


def test_iid_pairs_row_by_row_what_all_would_cross(ioi: PairTask) -> None:
    crossed, paired = sample_pairs(ioi, "all", 7, 7), sample_pairs(ioi, "iid", 7)
    assert paired.pairs is not None
    assert paired.pairs.tolist() == [[i, i] for i in range(7)]
    assert paired.clean.texts == crossed.clean.texts
    assert paired.corrupted.texts == crossed.corrupted.texts
    assert paired.shape == (7,)


HELD = {  # section 3: what a matched pair shares, and what it changes
    "ioi": (("template_id", "place", "object"), ("name1", "name2", "name3")),
    "greater-than": (("noun", "century"), ("yy",)),
    "docstring": (("method", "P1", "P2", "S"), ("A_def", "B_def", "C_def", "A_doc", "B_doc")),
}


@pytest.mark.parametrize("task", sorted(HELD))
def test_matched_holds_fixed_what_the_table_says(task: str, mini_tokenizer: Any) -> None:
    sample = sample_pairs(load_task(task, mini_tokenizer, n=1), "matched", 60)
    fixed, changed = HELD[task]
    clean, corrupted = sample.clean.fields, sample.corrupted.fields
    for name in fixed:
        assert clean[name] == corrupted[name], name
    for name in changed:
        differ = np.mean([a != b for a, b in zip(clean[name], corrupted[name], strict=True)])
        assert differ > 0.9, name
    if task == "greater-than":
        assert set(corrupted["yy"]) == {"01"}
    if task == "ioi":
        names = zip(*(corrupted[f"name{i}"] for i in (1, 2, 3)), strict=True)
        assert all(len(set(each)) == 3 for each in names)


@pytest.mark.parametrize("protocol", ["all", "iid"])
def test_nothing_but_the_template_is_held_fixed_otherwise(protocol: str, ioi: PairTask) -> None:
    sample = sample_pairs(ioi, protocol, 60, 60)
    for name in ("place", "object"):
        same = [a == b for a, b in zip(sample.clean.fields[name], sample.corrupted.fields[name], strict=True)]
        assert 0 < np.mean(same) < 0.5


def test_reusing_the_clean_prompts_puts_matched_pairs_on_the_diagonal(ioi: PairTask) -> None:
    sample = sample_pairs(ioi, "all", 25, 25, reuse_clean=True)
    assert sample.reuse_clean
    assert sample.paired
    assert sample.clean.fields["object"] == sample.corrupted.fields["object"]
    fresh = sample_pairs(ioi, "all", 25, 25)
    assert fresh.clean.texts == sample.clean.texts
    assert fresh.corrupted.texts != sample.corrupted.texts


def test_reusing_clean_prompts_needs_equal_counts_and_protocol_all(ioi: PairTask) -> None:
    with pytest.raises(InputError, match="25 clean prompts, but n_corrupted is 20"):
        sample_pairs(ioi, "all", 25, 20, reuse_clean=True)
    with pytest.raises(InputError, match="protocol 'iid' does not use"):
        sample_pairs(ioi, "iid", 25, reuse_clean=True)


# ------------------------------------------------------------------------------------- tasks without grammar


def test_file_is_the_tasks_own_pairs_in_order() -> None:
    task = rows_task()
    sample = sample_pairs(task, "file", independent=False)
    assert sample.pairs is not None
    assert sample.pairs.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert torch.equal(sample.clean.tokens, task.clean)
    assert torch.equal(sample.corrupted.tokens, task.corrupted)
    assert not sample.independent
    assert sample.own_rows
    assert sample.clean.fields == {"kind": ["k0", "k1", "k2", "k3"]}
    assert sample.corrupted.fields == {"kind": ["c0", "c1", "c2", "c3"]}
    assert sample.population == {"clean": 3, "corrupted": 3}


def test_all_of_a_tasks_size_takes_its_rows_in_order_and_other_sizes_draw() -> None:
    task = rows_task()
    own = sample_pairs(task, "all", 4, 4)
    assert own.paired
    assert torch.equal(own.clean.tokens, task.clean)
    assert own.shape == (4, 4)
    drawn = sample_pairs(task, "all", 50, 30, seed=1)
    assert not drawn.paired
    assert drawn.shape == (50, 30)
    known = {tuple(row) for row in task.clean.tolist()}
    assert {tuple(row) for row in drawn.clean.tokens.tolist()} == known
    longer = sample_pairs(task, "all", 60, 30, seed=1)
    assert torch.equal(longer.clean.tokens[:50], drawn.clean.tokens)


def test_rows_can_be_drawn_matched_or_independently() -> None:
    task = rows_task()
    matched = sample_pairs(task, "matched", 40)
    assert [kind[1:] for kind in matched.clean.fields["kind"]] == [
        kind[1:] for kind in matched.corrupted.fields["kind"]
    ]
    iid = sample_pairs(task, "iid", 40)
    assert iid.clean.fields["kind"] == matched.clean.fields["kind"]
    assert [kind[1:] for kind in iid.corrupted.fields["kind"]] != [
        kind[1:] for kind in iid.clean.fields["kind"]
    ]


def test_a_jsonl_task_is_run_as_it_stands(tmp_path: Path, mini_tokenizer: Any) -> None:
    lines = [
        {"clean": [5, 4, 3, 2, 1], "corrupted": [1, 2, 3, 4, 5], "answers": [9], "era": era}
        for era in (1, 2, 2)
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    sample = sample_pairs(load_task(path, mini_tokenizer), "file")
    assert sample.clean.fields["era"] == [1, 2, 2]
    assert sample.clean.texts is None
    assert len(sample.clean.distinct.first_index) == 1


# -------------------------------------------------------------------------------------------------- bad input


def test_prompts_of_unequal_length_are_refused_in_a_product(mini_tokenizer: Any) -> None:
    task = load_task("ioi", mini_tokenizer, n=1, template_ids=[0, 1])
    with pytest.raises(TokenizationError, match=r"single token count.*15 tokens: 'Then.*19 tokens: 'Then"):
        sample_pairs(task, "all", 20, 20)
    with pytest.raises(TokenizationError, match=r"pair \d+: clean prompt 'Then.* has lengths 1[59], corr"):
        sample_pairs(task, "iid", 40)
    assert sample_pairs(task, "matched", 40).clean.lengths.unique().tolist() == [15, 19]


def test_rows_of_unequal_length_are_refused_in_a_product() -> None:
    task = PairTask(
        clean=torch.tensor([[1, 2, 3], [4, 5, 0]]),
        corrupted=torch.tensor([[3, 2, 1], [6, 7, 0]]),
        answers=torch.tensor([[8], [8]]),
        lengths=torch.tensor([3, 2]),
    )
    with pytest.raises(TokenizationError, match=r"2 tokens: ids \[4, 5\]; 3 tokens: ids \[1, 2, 3\]"):
        sample_pairs(task, "all", 2, 2)
    assert sample_pairs(task, "file").n_pairs == 2


@pytest.mark.parametrize(
    ("counts", "match"),
    [((0, 5), "n_clean is 0; expected at least 1"), ((5, -2), "n_corrupted is -2")],
)
def test_counts_start_at_one(counts: tuple[int, int], match: str, ioi: PairTask) -> None:
    with pytest.raises(InputError, match=match):
        sample_pairs(ioi, "all", *counts)


def test_an_unknown_protocol_names_the_near_one(ioi: PairTask) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'matched'"):
        sample_pairs(ioi, "match")


def test_the_description_is_plain_json(years: PairTask) -> None:
    for sample in (sample_pairs(years, "iid", 3), sample_pairs(rows_task(), "file")):
        assert isinstance(sample, PairSample)
        assert json.loads(json.dumps(sample.describe())) == sample.describe()

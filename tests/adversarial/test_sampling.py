"""Which inputs the four protocols run."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from assay.analyses.worst_case import sampling
from assay.analyses.worst_case.sampling import PromptSet, sample_pairs
from assay.core.errors import InputError, TokenizationError, UnknownNameError
from assay.tasks import PairTask, Prompt, load_task


@pytest.fixture(scope="module")
def ioi(mini_tokenizer: Any) -> PairTask:
    return load_task("ioi", mini_tokenizer, n=1)


@pytest.mark.parametrize("protocol", ["matched", "all"])
def test_prompts_exist_a_block_at_a_time(
    ioi: PairTask, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, drawn, grammar = sample_pairs(ioi, protocol, 50, 50, seed=1), list[int](), type(ioi.grammar)
    draw = grammar.draw

    def counted(self: Any, n: int, rng: np.random.Generator) -> list[Prompt]:
        drawn.append(n)
        return draw(self, n, rng)

    monkeypatch.setattr(grammar, "draw", counted)
    monkeypatch.setattr(sampling, "BLOCK", 16)
    blocks = sample_pairs(ioi, protocol, 50, 50, seed=1)
    assert drawn == [16, 16, 16, 2] * (1 if protocol == "matched" else 2)
    assert blocks.data_hash == whole.data_hash
    for side, other in ((blocks.clean, whole.clean), (blocks.corrupted, whole.corrupted)):
        assert (side.texts, list(side.fields), side.fields) == (other.texts, list(other.fields), other.fields)
        for name in ("answers", "wrong", "slots"):
            torch.testing.assert_close(getattr(side, name), getattr(other, name))


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
    tokens, ones = torch.tensor([[9, 9], [1, 2], [9, 9], [1, 2], [3, 3]]), torch.ones(5, dtype=torch.long)
    inputs = PromptSet(tokens=tokens, lengths=2 * ones, positions=ones, fields={})
    assert inputs.distinct.first_index.tolist() == [0, 1, 4]
    assert inputs.distinct.inverse.tolist() == [0, 1, 0, 1, 2]


def test_all_crosses_inputs_of_independent_streams_and_iid_takes_them_row_by_row(ioi: PairTask) -> None:
    sample = sample_pairs(ioi, "all", 30, 20, seed=3)
    assert sample_pairs(ioi, "all", 30, 20, seed=3).data_hash == sample.data_hash
    assert sample_pairs(ioi, "all", 30, 20, seed=4).data_hash != sample.data_hash
    other = sample_pairs(ioi, "all", 30, 20, seed=3, prefix="other:")
    assert (other.streams["clean"], other.clean.texts == sample.clean.texts) == ("other:clean", False)
    assert json.loads(json.dumps(sample.describe())) == sample.describe()
    assert (sample.pairs, sample.shape, sample.n_pairs) == (None, (30, 20), 600)
    assert (sample.independent, sample.reuse_clean, sample.own_rows) == (True, False, False)
    sides = [side.fields for side in (sample.clean, sample.corrupted)]
    scenes = [list(zip(fields["place"], fields["object"], strict=True)) for fields in sides]
    assert set(scenes[0]) & set(scenes[1])
    assert scenes[0][:20] != scenes[1]
    paired = sample_pairs(ioi, "iid", 20, seed=3)
    assert (paired.pairs.tolist(), paired.shape) == ([[i, i] for i in range(20)], (20,))
    assert paired.clean.texts == sample.clean.texts[:20]
    assert paired.corrupted.texts == sample.corrupted.texts


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


def test_reusing_the_clean_prompts_puts_matched_pairs_on_the_diagonal(ioi: PairTask) -> None:
    sample, fresh = (sample_pairs(ioi, "all", 25, 25, reuse_clean=reuse) for reuse in (True, False))
    assert (sample.reuse_clean, sample.paired) == (True, True)
    assert sample.clean.fields["object"] == sample.corrupted.fields["object"]
    assert fresh.clean.texts == sample.clean.texts
    assert fresh.corrupted.texts != sample.corrupted.texts


def test_rows_of_a_task_are_taken_in_order_or_drawn() -> None:
    task = rows_task()
    sample = sample_pairs(task, "file", independent=False)
    assert sample.pairs.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert torch.equal(sample.clean.tokens, task.clean)
    assert torch.equal(sample.corrupted.tokens, task.corrupted)
    assert (sample.independent, sample.own_rows) == (False, True)
    assert sample.clean.fields == {"kind": ["k0", "k1", "k2", "k3"]}
    assert sample.corrupted.fields == {"kind": ["c0", "c1", "c2", "c3"]}
    own = sample_pairs(task, "all", 4, 4)  # of the task's size
    assert (own.paired, own.shape, torch.equal(own.clean.tokens, task.clean)) == (True, (4, 4), True)
    drawn, longer = (sample_pairs(task, "all", n, 30, seed=1) for n in (50, 60))
    assert (drawn.paired, drawn.shape) == (False, (50, 30))
    assert {*map(tuple, drawn.clean.tokens.tolist())} == {*map(tuple, task.clean.tolist())}
    assert torch.equal(longer.clean.tokens[:50], drawn.clean.tokens)
    matched, iid = sample_pairs(task, "matched", 40), sample_pairs(task, "iid", 40)
    assert iid.clean.fields["kind"] == matched.clean.fields["kind"]
    for each, alike in ((matched, True), (iid, False)):
        kinds = [[kind[1:] for kind in side.fields["kind"]] for side in (each.clean, each.corrupted)]
        assert (kinds[0] == kinds[1]) is alike


def test_what_makes_no_sample_is_refused(ioi: PairTask, mini_tokenizer: Any) -> None:
    for options, error, match in (
        ({"protocol": "match"}, UnknownNameError, "did you mean 'matched'"),
        ({"n_clean": 0}, InputError, "n_clean is 0; expected at least 1"),
        ({"n_clean": 25, "n_corrupted": 20, "reuse_clean": True}, InputError, "make the counts equal"),
        ({"protocol": "iid", "reuse_clean": True}, InputError, "choose 'all'"),
        ({"protocol": "all", "ablation": "zero"}, InputError, "reads no second input; use protocol 'inputs'"),
        ({"protocol": "inputs"}, InputError, "reads a second input; use protocol 'all' or 'matched'"),
        ({"protocol": "matched", "ablation": "resample-donor"}, InputError, "use protocol 'all' or 'iid'"),
        ({"ablation": "noise-additive"}, InputError, "draws other values in every run"),
    ):
        with pytest.raises(error, match=match):
            sample_pairs(ioi, **options)
    task = load_task("ioi", mini_tokenizer, n=1, template_ids=[0, 1])
    with pytest.raises(
        TokenizationError, match=r"need one token count.* 1[59] tokens: 'Then.* 1[59] tokens: 'Then"
    ):
        sample_pairs(task, "all", 20, 20)
    with pytest.raises(TokenizationError, match=r"need one token count.* 1[59] tokens: 'Then"):
        sample_pairs(task, "iid", 40)
    assert sample_pairs(task, "matched", 40).clean.lengths.unique().tolist() == [15, 19]

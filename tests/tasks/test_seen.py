"""Which prompts of a task a circuit was found on."""

import base64

import numpy as np
import torch

from assay.discovery.edges import discover
from assay.models import Model, load_model
from assay.tasks import PairTask, load_task
from assay.tasks.seen import KEY, found_on, prompt_codes, prompt_set, seen_prompts


def task(*prompts: list[int]) -> PairTask:
    width = max(map(len, prompts))
    clean = torch.tensor([[*each, *[0] * (width - len(each))] for each in prompts])
    answers = torch.ones(len(prompts), 1, dtype=torch.long)
    lengths = torch.tensor([len(each) for each in prompts])
    return PairTask(clean=clean, corrupted=clean, answers=answers, wrong=answers + 1, lengths=lengths)


def test_padding_is_not_part_of_a_prompt() -> None:
    narrow, wide = task([1, 2]), task([1, 2], [3, 4, 5])
    assert prompt_codes(narrow)[0] == prompt_codes(wide)[0]
    assert prompt_codes(task([1, 2, 0]))[0] != prompt_codes(narrow)[0]


def test_a_set_is_sorted_distinct_and_four_bytes_a_prompt() -> None:
    codes = np.frombuffer(base64.b64decode(prompt_set(task([1, 2], [3], [1, 2]))), dtype="<u4")
    assert len(codes) == 2
    assert codes[0] < codes[1]


def test_rows_are_told_by_their_clean_prompt() -> None:
    record = {"task": {KEY: prompt_set(task([1, 2], [3]))}}
    assert seen_prompts(record, task([3], [4], [1, 2, 0])).tolist() == [True, False, False]
    assert not seen_prompts({}, task([3])).any()
    whole = task([3], [4])
    assert seen_prompts({"task": {"data_hash": whole.data_hash}}, whole).all()
    assert not seen_prompts({"task": {"data_hash": "other"}}, whole).any()


def test_one_prompt_in_twenty_may_be_shared() -> None:
    record = {"task": {KEY: prompt_set(task([1]))}}
    assert not found_on(record, task(*[[each] for each in range(1, 21)]))
    assert found_on(record, task(*[[each] for each in range(1, 20)]))


def test_a_discovered_circuit_knows_the_prompts_of_a_larger_draw() -> None:
    model: Model = load_model("mini")
    scores = discover(model, load_task("ioi", model, n=4, seed=0), "eap")
    larger = load_task("ioi", model, n=8, seed=0)
    for made in (scores, scores.top(9), scores.top(9).connected(warn=False)):
        assert seen_prompts(made.provenance, larger).tolist() == [True] * 4 + [False] * 4

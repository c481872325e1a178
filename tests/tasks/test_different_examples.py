"""Which prompts of a task a circuit was found on."""

import base64

import numpy as np
import torch

from assay.discovery.edges import discover
from assay.models import Model, load_model
from assay.tasks import ImageTask, PairTask, load_task
from assay.tasks.examples import (
    KEY,
    different_examples,
    example_codes,
    found_on,
    prompt_codes,
    prompt_set,
    seen_prompts,
)


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


def test_rows_of_the_same_prompts_or_images_are_copies() -> None:
    prompts = task([1, 2], [3], [1, 2, 0], [3])
    assert example_codes(prompts, paired=False).tolist() == [0, 1, 2, 1]
    assert example_codes(prompts, paired=True).tolist() == [-1] * 4
    assert example_codes(prompts, task([9], [3]), paired=False).tolist() == [0, 1, 2, 1, 3, 1]
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
    assert different_examples(prompts, paired=True)[1].tolist() == [0]  # one stays
    assert different_examples(kept, paired=True)[0] is kept

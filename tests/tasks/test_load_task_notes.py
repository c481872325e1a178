"""What a task file cannot give is said, and what a model was not made for."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from assay.circuits import Circuit
from assay.core.errors import AssayWarning
from assay.metrics import measure
from assay.models import load_model
from assay.tasks import PairTask, load_task


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    pairs = [
        {"clean": [1, 2, 3 + i], "corrupted": [1, 4, 3 + i], "answers": [5], "wrong": [6]} for i in range(3)
    ]
    path.write_text("\n".join(json.dumps(each) for each in pairs))
    return path


def test_more_pairs_than_a_file_has_are_said(lines: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_task(lines, None, n=3).n == 3
        assert load_task(lines, None, n=2, seed=5).n == 2  # drawn by the seed
    with pytest.warns(AssayWarning, match="holds 3 pairs, fewer than the requested 10"):
        assert load_task(lines, None, n=10).n == 3


def long_task(length: int, margin: int = 1) -> PairTask:
    ids = torch.arange(length).expand(4, length) % 80
    wrong, right = (torch.full((4, 1), each) for each in (7, 9))
    return PairTask(clean=ids, corrupted=ids.flip(1), answers=right, wrong=wrong, name="long")


def test_prompts_longer_than_a_rotary_model_was_made_for_are_said(llama_tiny64: nn.Module) -> None:
    model = load_model(llama_tiny64)
    most = llama_tiny64.config.max_position_embeddings
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.bind(long_task(most))
    with pytest.warns(AssayWarning, match=f"has {most + 1} tokens, .* was made for {most}"):
        model.bind(long_task(most + 1))


def test_a_divergence_of_a_model_that_fails_at_the_task_is_marked(llama_tiny64: nn.Module) -> None:
    model = load_model(llama_tiny64)
    task = long_task(8)
    turned = PairTask(
        clean=task.clean, corrupted=task.corrupted, answers=task.wrong, wrong=task.answers, name="x"
    )
    codes = [measure(Circuit.full(model.graph), model, each, "kl").warnings for each in (task, turned)]
    assert sorted("task_not_solved" in each for each in codes) == [False, True]

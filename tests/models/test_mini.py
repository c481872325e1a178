"""The embedded model: what is shipped, and that it solves the six tasks on prompts it never saw."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import assay.models
from assay import Model, load_model
from assay.core.random import stream
from assay.tasks import TASKS, PairTask, Prompt, Tokens, load_task, pair_task


MINI = Path(assay.models.__file__).parent / "mini"
RECIPE = Path(__file__).resolve().parents[2] / "experiments" / "mini" / "held_out.py"
OPTIONS: dict[str, dict[str, Any]] = {
    "ioi": {"template_ids": range(20), "orders": ("ABBA", "BABA")},
    "gendered-pronoun": {"template_ids": [0, 1, 2]},
}
LEAST = {
    "ioi": 0.99, "induction": 0.99, "greater-than": 0.95, "docstring": 0.95, "sva": 0.95,
    "gendered-pronoun": 0.95,
}  # fmt: skip


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def is_held_out() -> Callable[[str, Prompt], bool]:
    found: Callable[[str, Prompt], bool] = runpy.run_path(str(RECIPE))["is_held_out"]
    return found


def next_token(model: Model, task: PairTask) -> torch.Tensor:
    """Probabilities `[n, d_vocab]` at the read position."""
    with torch.no_grad():
        logits = model.module(task.clean).logits
    return logits[torch.arange(task.n), task.positions].softmax(1)


def accuracy(model: Model, task: PairTask) -> float:
    """Share of prompts whose most probable token, out of the whole vocabulary, is a right answer."""
    best = next_token(model, task).argmax(1, keepdim=True)
    return float((best == task.answers).any(1).double().mean())


@pytest.mark.parametrize("key", list(LEAST))
def test_mini_solves_prompts_it_was_not_trained_on(
    key: str, mini: Model, is_held_out: Callable[[str, Prompt], bool]
) -> None:
    grammar = TASKS[key](Tokens(mini.tokenizer), **OPTIONS.get(key, {}))
    rng = stream(2, "held out")
    prompts: list[Prompt] = []
    while len(prompts) < 250:
        prompts += [prompt for prompt in grammar.draw(250, rng) if is_held_out(key, prompt)]
    task = pair_task(prompts[:250], prompts[:250], grammar.tokens, name=key, grammar=grammar)
    assert accuracy(mini, task) >= LEAST[key]
    if key == "greater-than":
        mass = next_token(mini, task).gather(1, task.answers.clamp(min=0)).where(task.answers >= 0, 0).sum(1)
        assert float(mass.mean()) > 0.9


def test_the_corruption_takes_the_answer_away(mini: Model) -> None:
    for key in LEAST:
        task = load_task(key, mini, n=60)
        with torch.no_grad():
            logits = mini.module(task.corrupted).logits
        best = logits[torch.arange(task.n), task.positions].argmax(1, keepdim=True)
        if key != "greater-than":  # behind the year 01 the clean answers are right, too
            assert float((best == task.answers).any(1).double().mean()) < 0.2


def test_mini_is_a_small_gpt2_stored_in_sixteen_bits(mini: Model) -> None:
    assert sum(file.stat().st_size for file in MINI.iterdir() if file.is_file()) < 6_000_000
    with safe_open(MINI / "model.safetensors", framework="pt") as stored:
        assert {stored.get_slice(name).get_dtype() for name in stored.keys()} == {"F16"}  # noqa: SIM118
    assert (mini.family.key, mini.dtype) == ("gpt2", torch.float32)
    assert (mini.n_layers, mini.n_heads, mini.n_vocab) == (4, 8, len(mini.tokenizer))


def test_every_prompt_of_the_tasks_survives_encoding_and_decoding(mini: Model) -> None:
    for key in LEAST:  # warnings are errors here: no filler of the package is dropped
        task = load_task(key, mini, n=50, **OPTIONS.get(key, {}))
        for row, text in enumerate(task.texts or ()):
            assert mini.tokenizer.decode(task.clean[row, : int(task.lengths[row])]) == text

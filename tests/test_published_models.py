"""Published models on every registered task, beside transformers alone."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thorough import one_of

from assay.circuits import Circuit
from assay.execution import CircuitRuns
from assay.models import load_model
from assay.tasks import TASKS, load_task


FOLDER = Path(os.environ.get("ASSAY_REAL", Path(__file__).parents[1] / ".real"))


def of_numbers(key: str, fields: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Right and wrong continuations of a prompt of numbers, where each digit is a token."""
    if key == "arithmetic":
        return [str(fields["result"])[0]], [str(fields["corrupted.result"])[0]]
    tens = int(fields["year"][2])
    return [str(d) for d in range(tens + 1, 10)], [str(d) for d in range(tens)]


@torch.no_grad()
def alone_margin(
    model: Any, objective: str, ids: list[int], right: list[int], wrong: list[int]
) -> torch.Tensor:
    logits = model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1].double()
    if objective == "prob_diff":
        return logits.softmax(0)[right].sum() - logits.softmax(0)[wrong].sum()
    others = logits[wrong]
    return logits[right].mean() - (others.max() if objective == "logit_diff_max" else others.mean())


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:.*dropped:assay.core.errors.AssayWarning")  # words of several tokens
@pytest.mark.parametrize("name", one_of(["smollm2-135m", "gemma3-270m"]))
def test_accuracies_are_those_of_transformers_alone(name: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (FOLDER / name).is_dir():
        pytest.skip(f"{FOLDER / name} is absent; make real lays it there")
    model = load_model(FOLDER / name, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER / name)
    alone: Any = AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32).eval()
    for key in TASKS:
        task = load_task(key, model, n=60)
        found = CircuitRuns(model, task, Circuit.full(model.graph)).margins("full")
        assert task.wrong is not None
        rows: list[list[Any]] = []
        for row in range(task.n):
            sides = [[i for i in ids[row].tolist() if i >= 0] for ids in (task.answers, task.wrong)]
            if task.texts is None:  # induction: ids behind what the tokenizer begins with
                bos = tokenizer("")["input_ids"]
                rows.append([bos + task.clean[row, len(bos) : int(task.lengths[row])].tolist(), *sides])
                continue
            text, pieces = task.texts[row], [[tokenizer.decode([i]) for i in side] for side in sides]
            if key in ("arithmetic", "greater-than"):
                pieces = list(of_numbers(key, {name: each[row] for name, each in task.fields.items()}))
            ids = tokenizer(text)["input_ids"]
            whole = [[tokenizer(text + piece)["input_ids"] for piece in side] for side in pieces]
            assert all(each[:-1] == ids for side in whole for each in side)
            rows.append([ids, *([each[-1] for each in side] for side in whole)])
        margins = [alone_margin(alone, task.objective, *row) for row in rows]
        expected = torch.stack(margins).numpy()
        np.testing.assert_allclose(found, expected, atol=2e-4)
        accuracy = (expected > 0).mean()
        print(f"{name} {key}: right on {accuracy:.1%}, mean margin {expected.mean():.3f}")
        assert (found > 0).mean() == accuracy

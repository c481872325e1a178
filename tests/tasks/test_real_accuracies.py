"""Published models on every registered task, beside transformers alone."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.circuits import Circuit
from assay.execution import CircuitRuns
from assay.models import load_model
from assay.tasks import TASKS, load_task


FOLDER = Path(os.environ.get("ASSAY_REAL", Path(__file__).parents[2] / ".real"))


def answers(key: str, fields: dict[str, Any], decoded: tuple[list[str], list[str]]) -> tuple[list[str], ...]:
    """Right and wrong continuations; those of numbers by arithmetic of its own."""
    if key == "arithmetic":
        return [str(fields["result"])[0]], [str(fields["corrupted.result"])[0]]
    if key == "greater-than":
        tens = int(fields["year"][2])
        return [str(d) for d in range(tens + 1, 10)], [str(d) for d in range(tens)]
    return decoded


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
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
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
        rows: list[tuple[list[int], list[int], list[int]]] = []
        for row in range(task.n):
            decoded = [
                [tokenizer.decode([i]) for i in ids[row].tolist() if i >= 0]
                for ids in (task.answers, task.wrong)
            ]
            fields = {field: values[row] for field, values in task.fields.items()}
            if task.texts is None:  # induction: ids behind what the tokenizer begins with
                bos = tokenizer("")["input_ids"]
                own = task.clean[row, len(bos) : int(task.lengths[row])].tolist()
                rows.append(([*bos, *own], task.answers[row].tolist(), task.wrong[row].tolist()))
                continue
            text = task.texts[row]
            ids = tokenizer(text)["input_ids"]
            right, wrong = (
                [tokenizer(text + answer)["input_ids"] for answer in side]
                for side in answers(key, fields, (decoded[0], decoded[1]))
            )
            assert all(each[:-1] == ids for each in (*right, *wrong))
            rows.append((ids, [each[-1] for each in right], [each[-1] for each in wrong]))
        margins = [alone_margin(alone, task.objective, *row) for row in rows]
        expected = torch.stack(margins).numpy()
        np.testing.assert_allclose(found, expected, atol=2e-4)
        accuracy = (expected > 0).mean()
        print(f"{name} {key}: right on {accuracy:.1%}, mean margin {expected.mean():.3f}")
        assert (found > 0).mean() == accuracy

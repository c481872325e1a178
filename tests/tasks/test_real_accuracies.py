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
        margins = []
        for row in range(task.n):
            decoded = [
                [tokenizer.decode([i]) for i in ids[row].tolist() if i >= 0]
                for ids in (task.answers, task.wrong)
            ]
            fields = {field: values[row] for field, values in task.fields.items()}
            if task.texts is None:
                bos = tokenizer("")["input_ids"]
                ids = [*bos, *task.clean[row, len(bos) :].tolist()]
                right, wrong = (side[row].tolist() for side in (task.answers, task.wrong))
            else:
                text = task.texts[row]
                ids = tokenizer(text)["input_ids"]
                whole = [
                    [tokenizer(text + answer)["input_ids"] for answer in side]
                    for side in answers(key, fields, (decoded[0], decoded[1]))
                ]
                assert all(each[:-1] == ids for side in whole for each in side)
                right, wrong = ([each[-1] for each in side] for side in whole)
            with torch.no_grad():
                logits = alone(torch.tensor([ids])).logits[0, -1].double()
            if task.objective == "prob_diff":
                values = logits.softmax(0)
                margins.append(values[right].sum() - values[wrong].sum())
            else:
                least = logits[wrong].max() if task.objective == "logit_diff_max" else logits[wrong].mean()
                margins.append(logits[right].mean() - least)
        expected = torch.stack(margins).numpy()
        np.testing.assert_allclose(found, expected, atol=2e-4)
        accuracy = (expected > 0).mean()
        print(f"{name} {key}: right on {accuracy:.1%}, mean margin {expected.mean():.3f}")
        assert (found > 0).mean() == accuracy

"""The embedded image classifier: what is shipped, and that it has learned both cues, the colour more."""

import json
from pathlib import Path

import pytest
import torch

import assay
import assay.models
from assay import Model, discover, load_model
from assay.tasks import DIGIT_CLASSES, digits_task


FOLDER = Path(assay.models.__file__).parent / "colour_digits"
MEASURED = Path(__file__).resolve().parents[2] / "experiments" / "colour_digits" / "training.json"


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("colour-digits")


def test_it_is_loaded_by_name_without_a_network(model: Model) -> None:
    assert (FOLDER / "model.safetensors").stat().st_size < 300_000
    assert model.id == "colour-digits"
    assert model.classes == DIGIT_CLASSES
    assert model.image_size == (28, 28)
    assert model.dtype == torch.float32
    assert model.graph.n_edges == 262
    assert "colour-digits" in assay.list("models").keys


@pytest.mark.parametrize("agreement", [0.9, 0.5, 0.1])
def test_its_accuracy_is_what_was_measured(model: Model, agreement: float) -> None:
    stored = json.loads(MEASURED.read_text(encoding="utf-8"))["domains"][f"{agreement:g}"]["accuracy"]
    task = digits_task(model, 300, agreement=agreement, seed=5)
    assert task.labels is not None
    with torch.no_grad():
        answers = model.module(task.clean).logits.argmax(1)
    accuracy = float((answers == task.labels).double().mean())
    assert accuracy == pytest.approx(stored, abs=4 * (stored * (1 - stored) / 300) ** 0.5)
    assert f"{stored:.3f}" in (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_swapping_either_cue_damages_it(model: Model) -> None:
    for swap in ("digit", "colour"):
        task = digits_task(model, 100, swap=swap, agreement=1.0)
        assert task.labels is not None
        assert task.corrupted is not None
        with torch.no_grad():
            clean, swapped = (model.module(images).logits for images in (task.clean, task.corrupted))
        towards = torch.where(task.labels == 1, 1.0, -1.0)
        moved = ((clean - swapped)[:, 1] - (clean - swapped)[:, 0]) * towards
        assert float(moved.mean()) > 0.5


def test_the_colour_is_read_by_values_and_the_digit_by_keys_as_much(model: Model) -> None:
    def sums(swap: str, answer: str) -> dict[str, float]:
        task = digits_task(model, 40, swap=swap, answer=answer, agreement=0.5)
        values = discover(model, task, "eap-ig-inputs").values
        row = model.graph.source_index("input")
        heads = {
            channel: [model.graph.target_index(f"a0.h{head}.{channel}") for head in range(4)]
            for channel in ("k", "v")
        }
        return {channel: float(values[row, columns].sum()) for channel, columns in heads.items()}

    digit, colour = sums("digit", "label"), sums("colour", "colour")
    assert abs(colour["k"]) < 0.3 * colour["v"]
    assert digit["k"] > 0.5 * digit["v"] > 0

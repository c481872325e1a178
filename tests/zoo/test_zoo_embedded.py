"""The zoo that comes with the package is what its training script and its results say."""

import json
from pathlib import Path

import pytest

from assay.models import load_model
from assay.tasks import draw_shapes
from assay.zoo import Zoo
from assay.zoo.archive import EMBEDDED


REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = json.loads((REPOSITORY / "experiments" / "shapes_zoo" / "results.json").read_text())
ZOO = Zoo.embedded()


def test_it_is_small_and_has_the_models_of_the_results() -> None:
    assert [row["key"] for row in RESULTS["models"]] == list(ZOO.keys)
    assert [entry.id_accuracy for entry in ZOO.entries] == [row["validation"] for row in RESULTS["models"]]
    assert sum(path.stat().st_size for path in EMBEDDED.rglob("*.safetensors")) < 8_000_000
    for entry in ZOO.entries:
        model = ZOO.load(entry.key)
        assert (model.weight_hash, model.classes) == (entry.weight_hash, ZOO.classes)
        assert min(model.graph.n_layers, model.graph.n_heads) >= 4
        assert (ZOO.folder(entry.key) / "training.json").exists()


def test_the_first_model_can_be_followed_through_its_training() -> None:
    entry = ZOO.entries[0]
    assert [each["step"] for each in entry.checkpoints] == [0, 100, 250, 500, 750]
    hashes = {load_model(ZOO.path / each["path"]).weight_hash for each in entry.checkpoints}
    assert len(hashes | {entry.weight_hash}) == 6


@pytest.mark.slow
def test_accuracies_are_the_written_ones() -> None:
    # One image in 1,200 may lie so close to a boundary that another processor decides otherwise.
    for domain in ("flat", "relief"):
        test = draw_shapes(domain, RESULTS["n_test"], start=20_000)
        found = ZOO.correctness(test).accuracy
        assert found.tolist() == pytest.approx([row[domain] for row in RESULTS["models"]], abs=2 / 1200)

"""Models kept while there is room, and images read once for models that look together."""

import pytest
import torch
from small_vits import untrained_vit

import assay
from assay.analyses.generalization import model_pool
from assay.analyses.generalization.inspectors import shared_batches
from assay.analyses.generalization.model_pool import ModelPool, model_groups
from assay.models import Model
from assay.tasks import EvalTransform, ImageStream, draw_shapes


def load(seed: int) -> Model:
    return assay.load_model(untrained_vit(seed))


def test_a_model_is_loaded_once_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []

    def loader(seed: int) -> Model:
        loaded.append(seed)
        return load(seed)

    pool = ModelPool({"a": lambda: loader(0), "b": lambda: loader(1)})
    assert pool.model("a") is pool.model("a")
    assert [*pool.loaders()] == ["a", "b"]
    assert pool.loaders(["b"])["b"]().weight_hash == load(1).weight_hash
    assert loaded == [0, 1]
    monkeypatch.setattr(model_pool, "ROOM", 0.0)
    pool = ModelPool({"a": lambda: loader(0)})
    assert pool.model("a") is not pool.model("a")


def test_models_come_in_groups_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = [(f"m{seed}", lambda seed=seed: load(seed)) for seed in range(3)]
    assert [[*group] for group in model_groups(loaders)] == [["m0", "m1", "m2"]]
    monkeypatch.setattr(model_pool, "LARGEST_GROUP", 2)
    assert [[*group] for group in model_groups(loaders)] == [["m0", "m1"], ["m2"]]
    monkeypatch.setattr(model_pool, "ROOM", 0.0)
    assert [[*group] for group in model_groups(loaders)] == [["m0"], ["m1"], ["m2"]]


def test_streams_of_one_geometry_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images = draw_shapes("sketch", 7, size=32)
    one = images.stream(EvalTransform())
    other = one.with_transform(EvalTransform(resize=None, mean=(0.1, 0.2, 0.3)))
    held = images.task(EvalTransform())
    calls: list[int] = []
    decoded = ImageStream.decoded

    def counted(self: ImageStream, size: int):
        calls.append(size)
        return decoded(self, size)

    monkeypatch.setattr(ImageStream, "decoded", counted)
    found = list(shared_batches([one, held, other], 3))
    assert calls == [3]
    assert [len(batches[0].indices) for batches in found] == [3, 3, 1]
    for place, task in enumerate((one, held, other)):
        expected = torch.cat([batch.images for batch in task.batches(7)])
        torch.testing.assert_close(torch.cat([batches[place].images for batches in found]), expected)
        assert torch.cat([batches[place].ids for batches in found]).tolist() == images.ids.tolist()

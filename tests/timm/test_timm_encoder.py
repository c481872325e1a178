"""Encoders of timm: what they embed, at their own size, and `assay select` with them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from command_line import invoke
from PIL import Image
from safetensors.torch import save_file
from test_cli_select import planted
from timm.data import create_transform, resolve_model_data_config
from timm.models._hub import save_for_hf
from torch import nn
from type_checks import no_type_checks
from vit_conformance import randomise

from assay.analyses.subsets import encoder as encoders
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.encoder import Encoder, embed_examples
from assay.core.errors import UnsupportedModelError
from assay.pipeline.subset_data import read_data
from assay.pipeline.subsets import job_record
from assay.tasks import SHAPE_CLASSES, draw_shapes
from assay.zoo import Zoo


SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
MODELS: dict[str, dict[str, Any]] = {
    "class token": {"name": "vit_tiny_patch16_224", **SMALL},
    "mean of patches": {"name": "vit_tiny_patch16_224", "global_pool": "avg", **SMALL},
    "small by name": {"name": "test_vit"},
    "convolutions with batch norms": {"name": "test_resnet"},
}


def made(kind: str) -> nn.Module:
    """A module with random weights."""
    options = dict(MODELS[kind])
    name = options.pop("name")
    module = timm.create_model(name, pretrained=False, num_classes=6, **options)
    return randomise(module, seed=0).float().eval()


def saved(folder: Path, module: nn.Module) -> Path:
    save_for_hf(module, str(folder), safe_serialization=True)
    return folder


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (5, 40, 48, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", MODELS)
def test_an_embedding_is_what_the_head_of_the_model_reads(
    kind: str, pictures: np.ndarray, tmp_path: Path
) -> None:
    module = made(kind)
    encoder = Encoder.load(saved(tmp_path / "encoder", module), device="cpu")
    assert (encoder.reads_images, encoder.reads_texts) == (True, False)
    found = encoder.embed_images(pictures)
    size = MODELS[kind].get("img_size", 160)  # the settings of the architecture do not follow its size
    settings = resolve_model_data_config(module, {"input_size": (3, size, size)})
    transform: Any = create_transform(**settings, is_training=False)
    pixels = torch.stack([transform(Image.fromarray(each)) for each in pictures])
    read: list[torch.Tensor] = []
    head: Any = module.get_classifier()  # type: ignore[operator]  # a method of timm's
    head.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    with torch.inference_mode():
        module(pixels)
    np.testing.assert_allclose(found, read[0], rtol=1e-4, atol=1e-4)
    assert found.std(axis=0).max() > 1e-3  # images differ
    with pytest.raises(UnsupportedModelError, match="cannot embed texts: it reads images"):
        encoder.embed_texts(["a dog"])


def test_a_checkpoint_of_a_named_architecture_is_an_encoder(pictures: np.ndarray, tmp_path: Path) -> None:
    module = made("small by name")
    save_file(module.state_dict(), tmp_path / "mine.safetensors")
    named = Encoder.load(f"timm:test_vit@{tmp_path / 'mine.safetensors'}", device="cpu")
    assert named.name == "timm:test_vit@mine.safetensors"
    again = Encoder.load(saved(tmp_path / "folder", module), device="cpu")
    np.testing.assert_allclose(named.embed_images(pictures), again.embed_images(pictures), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "test_convnext",
        "test_efficientnet",
        "vgg11",
        "levit_128s",
        "deit_tiny_distilled_patch16_224",
    ],
)
def test_a_checkpoint_of_other_classes_than_the_default_is_an_encoder(name: str, tmp_path: Path) -> None:
    module = timm.create_model(name, pretrained=False, num_classes=6)
    save_file(module.state_dict(), tmp_path / "mine.safetensors")
    loaded: Any = Encoder.load(f"timm:{name}@{tmp_path / 'mine.safetensors'}", device="cpu").module
    assert loaded.num_classes == 6
    for key, values in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], values), key


def data_of(pictures: np.ndarray) -> CorrectnessData:
    rng = np.random.default_rng(0)
    accuracy = np.linspace(0.5, 0.9, 20)
    return CorrectnessData.of(
        rng.uniform(size=(20, len(pictures))) < accuracy[:, None], accuracy, groups=range(20), images=pictures
    )


@pytest.mark.parametrize("kind", ["class token", "convolutions with batch norms"])
def test_batches_change_neither_the_embedding_nor_the_job(
    kind: str, pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, data = made(kind), data_of(pictures)
    encoder = Encoder.load(saved(tmp_path / "encoder", module), device="cpu")
    together = embed_examples(data, encoder)
    monkeypatch.setattr(encoders, "BATCH", 2)
    apart = embed_examples(data, encoder)
    np.testing.assert_allclose(apart.embedding, together.embedding, rtol=1e-5, atol=1e-5)
    jobs = [job_record(each, [2]) for each in (together, apart)]
    assert jobs[0] == jobs[1]
    # Every buffer counts: the statistics of a batch norm are no parameters.
    name = "bn1.running_mean" if "bn1.running_mean" in module.state_dict() else "cls_token"
    module.state_dict()[name].add_(0.1)
    other = Encoder.load(saved(tmp_path / "other" / "encoder", module), device="cpu")
    assert job_record(embed_examples(data, other), [2]) != jobs[0]


def test_the_images_of_a_folder_are_read_at_the_size_of_the_encoder(tmp_path: Path) -> None:
    drawn = draw_shapes("neon", 12, size=48)
    assert drawn.labels is not None
    files = []
    for number, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
        files.append(tmp_path / "neon" / SHAPE_CLASSES[label] / f"{number:03}.png")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(files[-1])
    encoder = Encoder.load(saved(tmp_path / "encoder", made("class token")), device="cpu")
    data = read_data(Zoo.embedded().path, images=str(tmp_path / "neon"), encoder=encoder).data
    assert data.embedding is not None
    by_class = sorted(files)  # as the folder is listed
    np.testing.assert_allclose(data.embedding, encoder.embed_images(by_class), rtol=1e-5, atol=1e-5)


def test_select_embeds_the_images_of_an_archive(tmp_path: Path) -> None:
    data = planted()
    night = data.meta["light"] == "night"
    rng = np.random.default_rng(1)
    images = rng.integers(0, 60, (data.n_examples, 32, 32, 3)) + np.where(night, 0, 180)[:, None, None, None]
    CorrectnessData.of(
        data.correct, data.id_accuracy, groups=data.groups, example_ids=data.example_ids,
        images=images.astype(np.uint8),
    ).save(tmp_path / "answers.npz")  # fmt: skip
    saved(tmp_path / "encoder", made("class token"))
    with no_type_checks():
        found = invoke(
            "select", tmp_path / "answers.npz", "--encoder", tmp_path / "encoder", "--size", 40, "--quiet",
            "--permutations", 3, "--folds", 3, "--workers", 1, "--store", tmp_path / "store",
            "--out", tmp_path / "out",
        )  # fmt: skip
    assert found.exit_code == 0, found.output
    document = json.loads((tmp_path / "out" / "selection.json").read_text())
    assert (document["holdout"]["encoder"], document["holdout"]["n_features"]) == ("encoder", 24)
    assert document["holdout"]["describable"]  # dark images are where better models do worse
    assert document["holdout"]["auroc"] > 0.8
    assert "the embedding by encoder" in (tmp_path / "out" / "report.html").read_text().replace("\n", " ")

"""`assay rank` on a directory of timm checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
from command_line import invoke
from PIL import Image
from small_models import randomise
from timm.models._hub import save_for_hf

from assay.analyses.generalization import dependency_depth_bias
from assay.discovery.edges import discover
from assay.models import load_model
from assay.tasks import SHAPE_CLASSES, ImageTask, draw_shapes, find_domains


VARIANTS: dict[str, dict[str, Any]] = {
    "distilled": {"architecture": "deit_tiny_distilled_patch16_224"},
    "plain": {},
    "pooled": {"global_pool": "avg"},
    "registers": {"reg_tokens": 2, "init_values": 0.5},
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of drawn images by class, and models as timm saves them."""
    root = tmp_path_factory.mktemp("timm-zoo")
    for place, (name, options) in enumerate(VARIANTS.items()):
        sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 3}
        architecture = options.get("architecture", "vit_tiny_patch16_224")
        rest = {key: value for key, value in options.items() if key != "architecture"}
        module = timm.create_model(architecture, pretrained=False, num_classes=6, **sizes, **rest)
        save_for_hf(
            randomise(module, seed=place).float(),
            str(root / "models" / name),
            safe_serialization=True,
            model_config={"label_names": list(SHAPE_CLASSES)},
        )
    for domain in ("flat", "neon"):
        drawn = draw_shapes(domain, 36, size=32)
        assert drawn.labels is not None
        for number, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
            folder = root / domain / SHAPE_CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return root


def images_for(here: Path, name: str, domain: str) -> ImageTask:
    """A folder as the model of that name reads it."""
    (images,) = find_domains(here / domain).values()
    return images.for_model(load_model(here / "models" / name))


def test_rank_scores_them_as_the_library_does(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = invoke(
        "rank", "--zoo", here / "models", "--images", here / "neon", "--id-images", here / "flat",
        "--metrics", "ddb-output,ddb-deep,id-accuracy,average-confidence", "--steps", 2, "--draws", 20,
        "--store", "store", "--out", "ranked", "--quiet",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert all(name in found.stdout for name in VARIANTS)
    document = json.loads((tmp_path / "ranked" / "ranking.json").read_text())
    names = [each["name"] for each in document["models"]]
    assert sorted(names) == sorted(VARIANTS)
    metrics = {each["key"]: each["rows"] for each in document["metrics"]}
    for place, name in enumerate(names):
        model = load_model(here / "models" / name)
        scores = discover(model, images_for(here, name, "neon"), "eap-ig-inputs", steps=2)
        for targets in ("output", "deep"):
            expected = dependency_depth_bias(scores, targets=targets, ratio=0.3)
            assert metrics[f"ddb-{targets}"][place]["value"] == pytest.approx(expected, rel=1e-4)
        assert document["models"][place]["weight_hash"] == model.weight_hash
    ranks = [row["rank"] for row in metrics["ddb-output"]]
    assert sorted(ranks) == [1, 2, 3, 4]
    page = (tmp_path / "ranked" / "report.html").read_text()
    assert all(name in page for name in VARIANTS)

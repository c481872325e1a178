"""`assay rank` on small zoos written by the test: folders in, table, JSON and page out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Outcome, invoke
from PIL import Image
from tiny_classifier import draw_files, tiny_classifier
from transformers import ViTConfig, ViTForImageClassification

from assay.analyses.generalization import rank_models
from assay.analyses.generalization.inspection import InspectionSettings
from assay.models import load_model
from assay.pipeline.targets import targets
from assay.tasks import draw_shapes
from assay.zoo import Zoo


FEW = ["--n", "18", "--draws", "20", "--steps", "2", "--quiet"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three untrained classifiers of the shapes, as `save_pretrained` writes them."""
    root = tmp_path_factory.mktemp("zoo")
    for seed in range(3):
        tiny_classifier(root / f"model-{seed}", layers=2, seed=seed)
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of 18 images by class."""
    root = tmp_path_factory.mktemp("pictures")
    for domain in ("flat", "neon"):
        draw_files(root / domain, domain, 18, start=90, by_class=True)
    return root


def run(*arguments: str | Path) -> Outcome:
    return invoke("rank", *arguments)


def document(*arguments: str | Path) -> dict[str, Any]:
    found = run(*arguments, "--json")
    assert found.exit_code == 0, found.output
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def test_a_zoo_is_ranked_on_a_labelled_domain(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "made" / "out.json", tmp_path / "made" / "page.html"
    given = ("--zoo", zoo, "--images", pictures / "neon", "--id-images", pictures / "flat", *FEW)
    found = run(*given, "--store", tmp_path / "store", "--save", out, "--report", report)
    assert found.exit_code == 0, found.output
    assert "Which of 3 models to deploy on neon" in found.stdout
    written = json.loads(out.read_text())
    assert [each["name"] for each in written["models"]] == ["model-0", "model-1", "model-2"]
    assert written["known"]["domain"] == "flat"
    assert written["motif"] is not None
    few = InspectionSettings(draws=20, steps=2)
    same = rank_models(Zoo.open(zoo), pictures / "neon", id_data=pictures / "flat", settings=few).to_dict()
    assert [each["key"] for each in written["metrics"]] == [each["key"] for each in same["metrics"]]
    assert "Which of 3 models to deploy on neon" in report.read_text()
    before = sorted((tmp_path / "store" / "inspections").iterdir())
    assert document(*given, "--store", tmp_path / "store") == written
    assert sorted((tmp_path / "store" / "inspections").iterdir()) == before


def test_a_root_of_domains_is_several_targets_compared(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    given = ("--zoo", zoo, "--images", pictures, *FEW, "--fast", "--store", tmp_path)
    found = document(*given)
    assert found["kind"] == "ranking-comparison"
    assert [each["target"]["domain"] for each in found["rankings"]] == ["flat", "neon"]
    assert list(found["datasets"]) == [pictures.name]
    assert "ddb-deep" not in [each["key"] for each in found["metrics"]]
    text = run(*given).stdout
    assert "Metrics over 2 targets" in text


def test_several_zoos_share_one_table_by_data_set(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    found = document(
        "--zoo", zoo, "--zoo", zoo, "--images", pictures, "--shapes", "relief", "--fast",
        "--metrics", "ddb-output,average-confidence", "--quadrature", "left", "--include-input", *FEW,
        "--store", tmp_path,
    )  # fmt: skip
    assert set(found["datasets"]) == {"shapes", pictures.name}
    assert len(found["rankings"]) == 6
    names = [each["name"] for each in found["rankings"][0]["models"]]
    assert names == [f"{zoo.name}/model-{seed}" for seed in range(3)]
    settings = found["rankings"][0]["provenance"]["settings"]
    assert settings["quadrature"] == "left"


def test_a_pick_stops_when_it_is_stable(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    given = ("--zoo", zoo, "--images", pictures / "neon", *FEW, "--store", tmp_path)
    found = document(*given, "--until", "stable", "--metrics", "average-confidence")
    assert found["kind"] == "stable-pick"
    assert found["metric"]["key"] == "average-confidence"
    assert found["n"] == 18
    text = run(*given, "--until", "stable", "--report", tmp_path / "page.html").stdout
    assert "by DDB output" in text or "DDB output picks" in text
    for wrong, message in (
        (["--until", "stable", "--metrics", "atc"], "needs labelled images of the models' own"),
        (["--until", "stable", "--metrics", "ddb-output,rankme"], "picks by one metric"),
    ):
        assert message in run(*given, *wrong).stderr


def test_labels_left_out_make_one_domain_without_regret(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    found = document(
        "--zoo", zoo, "--images", pictures / "neon", "--no-labels", "--metrics", "average-confidence", *FEW,
        "--store", tmp_path,
    )  # fmt: skip
    assert found["performance"] is None
    assert found["target"]["labelled"] is False
    assert found["metrics"][0]["regret"] is None


def test_a_folder_of_loose_images_learns_its_regret_from_labelled_domains(
    zoo: Path, pictures: Path, tmp_path: Path
) -> None:
    loose = tmp_path / "loose"
    draw_files(loose, "relief", 12)
    found = document(
        "--zoo", zoo, "--images", loose, "--images", pictures / "neon", "--metrics", "average-confidence",
        *FEW, "--store", tmp_path / "store",
    )  # fmt: skip
    first, second = found["rankings"]
    assert first["target"]["domain"] == "loose"
    assert first["metrics"][0]["elsewhere"] == second["metrics"][0]["regret"]["expected"]


def test_unreadable_images_are_named_or_skipped_and_counted(zoo: Path, tmp_path: Path) -> None:
    broken = draw_files(tmp_path / "broken", "flat", 18, by_class=True)
    broken[3].write_bytes(b"no image")
    images = ("--zoo", zoo, "--images", tmp_path / "broken", "--metrics", "average-confidence")
    given = (*images, "--store", tmp_path / "store")
    failed = run(*given, "--draws", "20")
    assert failed.exit_code == 1
    assert broken[3].name in failed.stderr
    skipped = run(*given, "--draws", "20", "--skip-bad")
    assert skipped.exit_code == 0, skipped.output
    assert "1 files of broken were skipped" in skipped.stderr
    assert "17 images" in skipped.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "ddb-outptu"], "did you mean 'ddb-output'"),
        (["--shapes", "skech"], "did you mean 'sketch'"),
        (["--ratio", "0.7"], "ratio is 0.7"),
        (["--measure", "auc"], "unknown measure 'auc'"),
        (["--images", "absent"], "absent has no images"),
        (["--id-images", "a", "--id-images", "b"], "one per zoo"),
    ],
)
def test_wrong_use_is_answered_with_what_to_type(
    zoo: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    found = run("--zoo", zoo, "--store", tmp_path / "store", *FEW, *arguments)
    assert found.exit_code in (1, 2)
    assert message in found.stderr


def test_classes_that_the_models_do_not_know_are_refused(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    for name in ("dog", "cat"):
        (foreign / name).mkdir(parents=True)
        Image.fromarray(draw_shapes("flat", 1).pixels[0]).save(foreign / name / "0.png")
    found = run("--zoo", zoo, "--images", foreign, *FEW, "--store", tmp_path / "store")
    assert found.exit_code == 2
    assert "outside the classes" in found.stderr


def test_models_that_fit_images_differently_do_not_share_a_reading(tmp_path: Path) -> None:
    picture = np.zeros((40, 20, 3), dtype=np.uint8)
    picture[20:] = 255
    Image.fromarray(picture).save(tmp_path / "a.png")
    (found,) = targets([tmp_path], [])
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        image_size=(16, 24),
        patch_size=8,
    )
    model = load_model(ViTForImageClassification(config).eval())
    read = []
    for mode in ("squash", "center"):
        model.preprocessing = {"input_size": (3, 16, 24), "crop_pct": 0.5, "crop_mode": mode}
        read.append(found.read(model).loaded().images)
    assert not torch.equal(*read)

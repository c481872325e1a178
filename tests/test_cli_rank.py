"""`assay rank` on small zoos written by the test: folders in, table, JSON and page out."""

import dataclasses
import html
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Outcome, invoke
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from assay.analyses.generalization import rank_models
from assay.analyses.generalization.inspection import InspectionSettings
from assay.models import load_model
from assay.pipeline.targets import targets
from assay.tasks import SHAPE_CLASSES, draw_shapes
from assay.zoo import Zoo


PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
FEW = ["--n", "18", "--draws", "20", "--steps", "2", "--quiet"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three untrained classifiers of the shapes, as `save_pretrained` writes them."""
    root = tmp_path_factory.mktemp("zoo")
    names = dict(enumerate(SHAPE_CLASSES))
    for seed in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = ViTConfig(
                hidden_size=24,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=32,
                image_size=32,
                patch_size=8,
                initializer_range=0.3,
                id2label=names,
                label2id={name: label for label, name in names.items()},
            )
            ViTForImageClassification(config).save_pretrained(root / f"model-{seed}")
        (root / f"model-{seed}" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of 18 images by class."""
    root = tmp_path_factory.mktemp("pictures")
    for domain in ("flat", "neon"):
        images = draw_shapes(domain, 18, seed=5)
        for row, label in enumerate(images.labels):
            folder = root / domain / SHAPE_CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.pixels[row]).save(folder / f"{row:02d}.png")
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
    for part in ("metrics", "absent"):
        assert [each["key"] for each in written[part]] == [each["key"] for each in same[part]]
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
    output, _ = found["metrics"]
    assert set(output["per_dataset"]) == set(found["datasets"])
    assert [each["ratio"] for each in found["ratios"]["output"]] == [0.1, 0.2, 0.3, 0.4, 0.5]
    settings = found["rankings"][0]["provenance"]["settings"]
    assert settings["quadrature"] == "left"
    wrong = run("--zoo", zoo, "--zoo", zoo, "--images", pictures, "--id-images", pictures, *FEW)
    assert "one per zoo" in wrong.stderr


def test_a_pick_stops_when_it_is_stable(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    given = ("--zoo", zoo, "--images", pictures / "neon", *FEW, "--store", tmp_path)
    found = document(*given, "--until", "stable", "--metrics", "average-confidence")
    assert found["kind"] == "stable-pick"
    assert found["metric"]["key"] == "average-confidence"
    assert found["n"] == 18
    text = run(*given, "--until", "stable", "--report", tmp_path / "page.html").stdout
    assert "by DDB output" in text or "DDB output picks" in text
    for wrong, message in (
        (["--error", "0.1"], "--error has no effect without --until stable"),
        (["--until", "stable", "--measure", "macro-f1"], "--measure has no effect with --until stable"),
        (["--until", "stable", "--fast"], "--fast has no effect with --until stable"),
        (["--until", "stable", "--sharpness-batch", "8"], "--sharpness-batch has no effect with --until"),
        (["--until", "stable", "--metrics", "atc"], "needs labelled images of the models' own"),
        (["--until", "stable", "--metrics", "ddb-output,rankme"], "picks by one metric"),
    ):
        assert message in run(*given, *wrong).stderr


@pytest.mark.slow
def test_models_whose_training_is_not_done_are_named(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    plan = shutil.copytree(zoo, tmp_path / "plan")
    whole = Zoo.open(plan)

    def left(*states: tuple[str, str]) -> None:
        entries = [*whole.entries]
        for place, (status, reason) in enumerate(states):
            entries[place] = dataclasses.replace(entries[place], status=status, reason=reason)
        dataclasses.replace(whole, entries=tuple(entries)).save()

    given = ("--zoo", plan, "--images", pictures / "neon", "--metrics", "average-confidence", *FEW[:-1])
    kept = ("--store", tmp_path / "store", "--report", tmp_path / "page.html")
    left(("pending", ""))
    said = "1 of 3 planned models are missing: model-0 (pending); run the same `assay zoo train` command"
    for more in ((), ("--until", "stable")):
        found = run(*given, *kept, *more)
        assert found.exit_code == 0, found.output
        assert f"note: {plan}: {said}" in found.stderr
        assert said in html.unescape((tmp_path / "page.html").read_text()).replace("\n", " ")
        assert document(*given, *kept, *more)["missing"] == {"model-0": "pending"}
    ranking = rank_models(plan, draw_shapes("neon", 18), metrics=["rankme"])
    assert ranking.missing == {"model-0": "pending"}
    both = run(*given, "--shapes", "sketch", *kept, "--out", tmp_path / "both").stdout
    assert f"sketch: {said}" in both
    left(("pending", ""), ("failed", "the loss is NaN"))
    few = run(*given, *kept)
    assert few.exit_code == 2
    assert "note:" not in few.stderr
    assert "has 1 trained model, but this needs at least 2; 2 of 3 planned models are missing" in few.stderr
    assert "model-1 (failed: the loss is NaN)" in few.stderr
    left(*[("pending", "")] * 3)
    assert "has no trained model, but this needs at least 2; 3 of 3 planned" in run(*given, *kept).stderr


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
    loose.mkdir()
    for row, pixels in enumerate(draw_shapes("relief", 12).pixels):
        Image.fromarray(pixels).save(loose / f"{row}.png")
    found = document(
        "--zoo", zoo, "--images", loose, "--images", pictures / "neon", "--metrics", "average-confidence",
        *FEW, "--store", tmp_path / "store",
    )  # fmt: skip
    first, second = found["rankings"]
    assert first["target"]["domain"] == "loose"
    assert first["metrics"][0]["elsewhere"] == second["metrics"][0]["regret"]["expected"]


def test_drawn_shapes_need_no_files(zoo: Path, tmp_path: Path) -> None:
    found = document("--zoo", zoo, "--shapes", "sketch", "--metrics", "rankme", *FEW, "--store", tmp_path)
    assert found["target"]["domain"] == "sketch"
    assert found["target"]["n"] == 18


@pytest.mark.slow
def test_sharpness_runs_only_by_name(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    given = ("--zoo", zoo, "--images", pictures / "neon", "--id-images", pictures / "flat")
    found = document(*given, "--fast", *FEW, "--store", tmp_path)
    assert "sharpness" not in {each["key"] for each in found["metrics"]}
    assert "sharpness" not in {each["key"] for each in found["absent"]}
    asked = document(*given, "--metrics", "sharpness", *FEW, "--sharpness-batch", "9", "--store", tmp_path)
    assert [each["key"] for each in asked["metrics"]] == ["sharpness"]


def test_unreadable_images_are_named_or_skipped_and_counted(
    zoo: Path, pictures: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    for label, name in enumerate(SHAPE_CLASSES):
        (broken / name).mkdir(parents=True)
        for row in range(3):
            Image.fromarray(draw_shapes("flat", 6).pixels[label]).save(broken / name / f"{row}.png")
    (broken / "moon" / "1.png").write_bytes(b"no image")
    given = (
        "--zoo",
        zoo,
        "--images",
        broken,
        "--metrics",
        "average-confidence",
        "--store",
        tmp_path / "store",
    )
    few = run(*given, "--draws", "19")
    assert few.exit_code != 0
    assert "20" in few.stderr
    failed = run(*given, "--draws", "20")
    assert failed.exit_code == 1
    assert "moon/1.png" in failed.stderr
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
    ],
)
def test_wrong_use_is_answered_with_what_to_type(
    zoo: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    found = run("--zoo", zoo, "--store", tmp_path / "store", *FEW, *arguments)
    assert found.exit_code in (1, 2)
    assert message in found.stderr


def test_an_own_domain_of_several_folders_is_refused(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    found = run("--zoo", zoo, "--shapes", "neon", "--id-images", pictures, *FEW, "--store", tmp_path)
    assert found.exit_code == 2
    assert "--id-images holds 2 domains (flat, neon)" in found.stderr


def test_classes_that_the_models_do_not_know_are_refused(zoo: Path, pictures: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    for name in ("dog", "cat"):
        (foreign / name).mkdir(parents=True)
        Image.fromarray(draw_shapes("flat", 1).pixels[0]).save(foreign / name / "0.png")
    found = run("--zoo", zoo, "--images", foreign, *FEW, "--store", tmp_path / "store")
    assert found.exit_code == 2
    assert "outside the classes" in found.stderr


def test_an_archive_is_one_domain_with_the_labels_it_holds(tmp_path: Path) -> None:
    images = draw_shapes("flat", 12)
    np.savez(tmp_path / "some.npz", images=images.pixels, labels=images.labels)
    (found,) = targets([tmp_path / "some.npz"], [])
    assert (found.name, found.labelled) == ("some", None)


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

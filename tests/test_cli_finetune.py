"""`assay finetune`: what it prints, writes, goes on from and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from PIL import Image
from tiny_classifier import tiny_classifier

import assay
from assay.tasks import SHAPE_CLASSES, EvalTransform, draw_shapes, read_source
from assay.zoo import save_model, split
from assay.zoo.scoring import images_hash


Run = Callable[..., Any]
FEW = ("--train-steps", "4", "--validate-every", "2", "--train-batch", "8", "--n", "36", "--quiet")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a tiny untrained classifier of shapes."""
    return tiny_classifier(tmp_path_factory.mktemp("start") / "model", layers=2)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Path) -> Run:
    """The command in an empty directory, on the tiny model."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Any:
        return invoke("finetune", "--model", str(start), *arguments)

    return call


def test_a_table_a_verdict_a_model_and_a_picture(run: Run, tmp_path: Path) -> None:
    found = run(
        *("--shapes", "flat", "--watch-shapes", "sketch", "--out", "tuned", "--figure", "course.png", *FEW)
    )
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["step", "validation", "sketch", "bias", "deep", "shallow"]
    assert [line.split()[0] for line in lines[1:4]] == ["0", "2", "4"]
    assert sum("*" in line for line in lines[1:4]) == 1
    assert "verdict: " in found.stdout
    assert "selected by sketch, which uses its labels: step " in found.stdout
    with Image.open(tmp_path / "course.png") as picture:
        assert picture.size[0] > 300
    assert assay.load_model(tmp_path / "tuned").classes == SHAPE_CLASSES


def test_json_is_the_document_of_the_folder_and_a_second_call_reads_it(run: Run, tmp_path: Path) -> None:
    arguments = ("--shapes", "flat", "--out", "tuned", "--loss", "ratio", "--json", *FEW)
    first = json.loads(run(*arguments).stdout)
    assert first["folder"] == "tuned"
    assert first["circuit"]["loss"] == "ratio"
    written = json.loads((tmp_path / "tuned" / "circuit.json").read_text())
    assert {"folder": "tuned", **written} == first
    assert json.loads(run(*arguments).stdout) == first
    other = run(*arguments, "--lambda-circuit", "0.2")
    assert other.exit_code == 2
    assert "holds another training run" in other.stderr


def test_explicit_blocks_and_variants_reach_the_loss(run: Run) -> None:
    blocks = ("--shallow", "0", "--deep", "1-1", "--variant", "eap-ig-detach-actdiff", "--points", "3")
    found = run("--shapes", "flat", "--out", "tuned", *blocks, "--json", *FEW)
    circuit = json.loads(found.stdout)["circuit"]
    assert (circuit["shallow"], circuit["deep"]) == ([0, 0], [1, 1])
    assert (circuit["variant"], circuit["steps"]) == ("eap_ig_detach_actdiff", 3)


def test_drawn_images_to_train_on_and_to_watch_are_new_to_the_embedded_zoo(run: Run, tmp_path: Path) -> None:
    found = run("--shapes", "flat", "--watch-shapes", "flat", "--out", "tuned", *FEW)
    assert found.exit_code == 0, found.output
    record = json.loads((tmp_path / "tuned" / "training.json").read_text())
    drawn = draw_shapes("flat", 36, start=3_000_000)
    assert record["data"]["training"]["hash"] == images_hash(split(drawn, 0.2)[0])


def test_folders_of_images_are_read_at_the_model_s_size_with_its_classes(run: Run, tmp_path: Path) -> None:
    for domain, start in (("flat", 0), ("neon", 100)):
        images = draw_shapes(domain, 36, size=48, start=start)
        for number, pixels in enumerate(images.pixels):
            folder = tmp_path / domain / SHAPE_CLASSES[images.labels[number]]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    found = run("--images", "flat", "--watch", "neon", "--out", "tuned", "--json", *FEW)
    assert found.exit_code == 0, found.output
    assert set(json.loads(found.stdout)["selected"]["watched"]) == {"neon"}


def test_folders_are_read_with_the_transform_of_the_model(run: Run, start: Path, tmp_path: Path) -> None:
    cropping = EvalTransform(resize=40, crop=(32, 32), resample="bicubic")
    save_model(
        assay.load_model(start).module, tmp_path / "cropping", transform=cropping, classes=SHAPE_CLASSES
    )
    images = draw_shapes("flat", 36, size=48)
    for number, pixels in enumerate(images.pixels):
        folder = tmp_path / "flat" / SHAPE_CLASSES[images.labels[number]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[:, :44]).save(folder / f"{number}.png")
    found = run("--images", "flat", "--model", "cropping", "--out", "tuned", *FEW)
    assert found.exit_code == 0, found.output
    model = assay.load_model(tmp_path / "tuned")
    read = read_source(tmp_path / "flat", transform=EvalTransform.for_model(model), classes=model.classes)
    record = json.loads((tmp_path / "tuned" / "training.json").read_text())
    assert record["data"]["training"]["hash"] == images_hash(split(read["flat"], 0.2)[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--lambda-circuit", "-1"), "give 0 or more"),
        (("--points", "1"), r"steps (m) is 1"),
        (("--shallow", "0-1"), "give both sets or neither"),
        (("--shallow", "a", "--deep", "1"), "--shallow is 'a'; give the first and the last block"),
        (("--shallow", "0-1", "--deep", "1"), "overlap"),
        (("--loss", "lag"), "log"),
        (("--variant", "eap"), "target_logit"),
        (("--figure", "course.jpg"), "ending in .png or .svg"),
        (("--train-batch", "1"), "batches of 1 image"),
        (("--shapes", "sketch"), "2 domains are given"),
        (("--watch-shapes", "neon", "--watch-shapes", "neon"), "two watched sets are named 'neon'"),
    ],
)
def test_wrong_use_is_explained_and_writes_nothing(
    run: Run, tmp_path: Path, wrong: tuple[str, ...], message: str
) -> None:
    found = run("--shapes", "flat", "--out", "tuned", *FEW, *wrong)
    assert found.exit_code == 2
    assert message in found.stderr
    assert not (tmp_path / "tuned").exists()

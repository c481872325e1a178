"""Half precision in training, what validations report, and sizes from models."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

from assay.core.errors import InputError, UnknownNameError
from assay.tasks import draw_shapes
from assay.zoo import Grid, Recipe, train
from assay.zoo.precision import Precision
from assay.zoo.run_folder import Validation


TRAIN, VALIDATION = draw_shapes("flat", 48), draw_shapes("flat", 24, start=48)
RECIPE = Recipe(lr=0.01, steps=6, warmup=2, batch_size=16, validate_every=3, optimiser="adamw")
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 16}


def tiny() -> ViTForImageClassification:
    config = ViTConfig(**SMALL, intermediate_size=32, image_size=32, num_labels=6)
    torch.manual_seed(0)
    return ViTForImageClassification(config).eval()


def test_bfloat16_computes_in_bfloat16_and_keeps_weights_in_float32(tmp_path: Path) -> None:
    seen = set()

    class Watched(torch.nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            result = super().forward(given)
            seen.add(result.dtype)
            return result

    module = tiny()
    module.classifier.__class__ = Watched
    half = train(module, TRAIN, VALIDATION, RECIPE, tmp_path / "half", precision="bfloat16")
    whole = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "whole")
    assert seen == {torch.bfloat16, torch.float32}  # steps, and validations
    assert {each.dtype for each in half.module.parameters()} == {torch.float32}
    assert half.history["loss"] != whole.history["loss"]
    assert half.history["loss"] == pytest.approx(whole.history["loss"], rel=0.02)  # 8 bits of mantissa
    record = json.loads((half.folder / "training.json").read_text())
    assert record["precision"] == "bfloat16"


def test_a_run_of_another_precision_is_refused(tmp_path: Path) -> None:
    run = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run")
    with pytest.raises(InputError, match="precision is float32 there, but bfloat16 here"):
        train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run", precision="bfloat16")
    path = run.folder / "training.json"
    earlier = json.loads(path.read_text())
    del earlier["precision"]  # as earlier versions wrote it
    path.write_text(json.dumps(earlier))
    assert train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run").best_step == run.best_step
    with pytest.raises(InputError, match="precision is float32 there"):
        train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run", precision="bfloat16")


def test_float16_without_a_gpu_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="float16 needs a CUDA device to train on, and the device is cpu"):
        train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run", precision="float16")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UnknownNameError, match="did you mean 'float16' or 'bfloat16'"):
        Precision("float1", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_on_a_gpu_learns_and_goes_on_after_a_kill(tmp_path: Path, precision: str) -> None:
    class StoppedError(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if done == 4:
            raise StoppedError

    how = {"precision": precision, "device": "cuda", "save_every": 2}
    whole = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "whole", **how)
    with pytest.raises(StoppedError):
        train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "cut", progress=stop, **how)
    again = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "cut", **how)
    assert again.history["loss"] == pytest.approx(whole.history["loss"], rel=1e-3)


def test_validations_report_losses_and_score(tmp_path: Path) -> None:
    reports: list[Validation] = []
    run = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run", validated=reports.append)
    assert [report.step for report in reports] == [3, 6]
    loss = run.history["loss"]
    assert [report.training_loss for report in reports] == pytest.approx(
        [sum(loss[:3]) / 3, sum(loss[3:]) / 3]
    )
    assert [(r.score, r.loss) for r in reports] == [(row["score"], row["loss"]) for row in run.curve]
    first = reports[0]
    assert str(first) == (
        f"step 3 of 6: training loss {first.training_loss:.3f}, validation loss {first.loss:.3f}, "
        f"accuracy {first.score:.3f}"
    )


def test_the_size_of_images_comes_from_what_models_start_from(tmp_path: Path) -> None:
    stated = {"source": "scratch", "architecture": {**SMALL, "image_size": 48}}
    free = {"source": "scratch", "architecture": SMALL}
    assert Grid.from_dict({"inits": {"a": free}}).image_size() is None
    assert Grid.from_dict({"inits": {"a": free, "b": stated}}).image_size() == (48, 48)
    trained = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run")
    checkpoint = {"source": str(trained.folder)}
    assert Grid.from_dict({"inits": {"a": checkpoint}}).image_size() == (32, 32)
    with pytest.raises(InputError, match="'a' reads images of 32 x 32, but 'b' of 48 x 48"):
        Grid.from_dict({"inits": {"a": checkpoint, "b": stated}}).image_size()


def test_an_initial_loss_is_that_of_the_untrained_model(tmp_path: Path) -> None:
    """The first loss by hand: no step, dropout or crop has changed anything yet."""
    plain = {"min_area": 1.0, "max_aspect": 1.0, "flip": 0.0}
    recipe = Recipe.from_dict(
        {**RECIPE.to_dict(), "head_dropout": 0.0, "batch_size": 48, "augmentation": plain}
    )
    run = train(tiny(), TRAIN, VALIDATION, recipe, tmp_path / "run")
    images = torch.from_numpy(TRAIN.pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.inference_mode():
        loss = cross_entropy(tiny()(images).logits, torch.from_numpy(TRAIN.labels))
    assert run.history["loss"][0] == pytest.approx(float(loss), rel=1e-5)

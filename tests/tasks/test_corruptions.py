"""The 39 calibration domains: golden values of the published code, determinism, and what they may not do."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.tasks import CORRUPTIONS, EvalTransform, ImageTask, corrupt, read_files


GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "generalization"
STYLES = ("cartoon", "contour", "edge", "edge_enhance", "emboss", "posterize", "solarize")
BLURS = [f"defocus_blur/{severity}" for severity in range(1, 6)]
SAMPLE = ["fog-1", "frost-3", "snow-3", "cutout", "palette", "cartoon"]  # one of each kind of draw


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "corruptions.npz", allow_pickle=False) as archive:
        return dict(archive)


def repeated(pixels: np.ndarray, n: int = 1) -> ImageTask:
    pixels = np.repeat(pixels[None], n, axis=0)
    return ImageTask(pixels=pixels, domain="photo", fields={"row": list(range(n))})


def key_of(golden_name: str) -> str:
    return golden_name.replace("_", "-").replace("/", "-")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageTask:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for row in range(4):
        Image.fromarray(rng.integers(0, 256, (48, 40, 3), np.uint8)).save(folder / f"{row}.png")
    return read_files(sorted(folder.glob("*.png")), domain="photo")


def test_there_are_thirty_nine_and_the_cutout_is_one_square_of_the_published_share() -> None:
    severities = [entry.severity for entry in CORRUPTIONS.values()]
    assert (len(severities), severities.count(None)) == (39, 9)
    white = np.full((56, 70, 3), 255, dtype=np.uint8)
    made = pixels_of(corrupt(repeated(white, 20), "cutout"))
    assert (made == 0).all(3).sum((1, 2)).tolist() == [400] * 20  # 80 / 224 of 56 is 20
    with pytest.raises(UnknownNameError, match="gaussian-noise"):
        corrupt(repeated(white), "gaussian_noise")


@pytest.mark.parametrize("key", SAMPLE)
def test_files_are_corrupted_to_the_same_pixels(key: str, files: ImageTask) -> None:
    lazy = files.with_transform(EvalTransform(resize=36, crop=(32, 32)))
    lazy = replace(lazy, workers=int(key == "snow-3"))
    held, streamed = corrupt(lazy.held(), key, seed=7), corrupt(lazy, key, seed=7)
    assert (streamed.domain, streamed.config["corruption"]) == (held.domain, held.config["corruption"])
    expected = pixels_of(held)
    np.testing.assert_array_equal(pixels_of(streamed), expected)
    # A subset keeps the draws of its images, before the corruption and after it.
    np.testing.assert_array_equal(pixels_of(streamed.subset([2, 0])), expected[[2, 0]])
    for part in (lazy.subset([2, 0]), lazy.held().subset([2, 0])):
        np.testing.assert_array_equal(pixels_of(corrupt(part, key, seed=7)), expected[[2, 0]])
    assert torch.equal(torch.cat([each.images for each in streamed.batches(3)]), streamed.held().clean)


def pixels_of(images: ImageTask) -> np.ndarray:
    return images.held().pixels


def test_corrupted_images_are_known_by_their_corruption(files: ImageTask) -> None:
    images = files.with_transform(EvalTransform(resize=(32, 32)))
    hashes = {corrupt(images, key, seed=seed).source_hash for key in ("fog-1", "edge") for seed in (0, 1)}
    other = files.with_transform(EvalTransform(resize=36, crop=(32, 32)))
    hashes |= {images.source_hash, corrupt(other, "edge").source_hash}
    assert len(hashes) == 6
    assert corrupt(images, "edge").source_hash == corrupt(images, "edge").source_hash
    small = files.with_transform(EvalTransform(resize=(31, 40)))
    with pytest.raises(ShapeError, match="31 x 40"):
        corrupt(small, "edge")
    with pytest.raises(InputError, match="given normalised; corruptions need 8-bit pixels"):
        corrupt(ImageTask(images=images.clean), "edge")


@pytest.mark.parametrize("name", [*(f"style/{style}" for style in STYLES), *BLURS])
def test_what_draws_nothing_is_that_of_the_published_code(name: str, golden: dict[str, np.ndarray]) -> None:
    made = pixels_of(corrupt(repeated(golden["image"]), key_of(name.removeprefix("style/"))))[0]
    # OpenCV blurs in other arithmetic, and fractions are cut off: a whole value may fall to the one below.
    difference = np.abs(made.astype(int) - golden[name])
    assert difference.max() <= (1 if name in BLURS else 0)
    assert (difference > 0).mean() < 0.02


@pytest.mark.parametrize(
    "name", [f"{family}/{s}" for family in ("gaussian_noise", "shot_noise", "fog", "snow") for s in (1, 3, 5)]
)
def test_random_corruptions_have_the_published_statistics(name: str, golden: dict[str, np.ndarray]) -> None:
    published = json.loads((GOLDEN / "corruptions.json").read_text())["stochastic_statistics_100_draws"][name]
    clean = golden["image"].astype(float)
    draws = pixels_of(corrupt(repeated(golden["image"], 100), key_of(name))).astype(float)
    change = np.abs(draws - clean).mean((1, 2, 3))
    # Both means carry sampling error: six standard errors of their difference, or five per cent.
    error = 6 * np.hypot(published["mean_abs_change_sem"], change.std() / 10)
    reference = published["mean_abs_change"]
    assert abs(change.mean() - reference) <= max(error, 0.05 * reference)
    spread = draws.std(0).mean()
    assert spread == pytest.approx(published["std_over_draws"], rel=0.15)
    assert draws.mean() == pytest.approx(published["mean"], rel=0.05)


def test_severities_of_frost_which_draws_its_own_pictures_do_more_and_more_harm() -> None:
    rows, columns = np.mgrid[:33, :70]
    pattern = 127 + 100 * np.sin(rows / 3) * np.cos(columns / 4)
    images = repeated(np.repeat(pattern[..., None], 3, axis=2).astype(np.uint8), 8)
    # What is lost is the correlation with the clean image; a stronger one may change fewer grey levels.
    frosted = [pixels_of(corrupt(images, f"frost-{severity}")) for severity in range(1, 6)]
    kept = [np.corrcoef(each.ravel(), images.pixels.ravel())[0, 1] for each in frosted]
    assert kept[4] < kept[2] < kept[0] < 0.999

"""Where images come from, by name or path, and the task an image classifier gets of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.models import Model, load_model
from assay.tasks import (
    SHAPE_DOMAINS,
    EvalTransform,
    ReadOptions,
    draw_shapes,
    is_shapes,
    load_images,
    load_task,
    one_domain,
    read_source,
)
from assay.zoo import Zoo


TRANSFORM = EvalTransform(resize=(16, 16))


def classifier(classes: tuple[str, ...] = ("cat", "dog"), size: int = 16) -> Model:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=size,
        patch_size=8,
        id2label=dict(enumerate(classes)),
        label2id={name: index for index, name in enumerate(classes)},
    )
    model = load_model(ViTForImageClassification(config).eval())
    model.preprocessing = {
        "size": {"height": size, "width": size},
        "image_processor_type": "ViTImageProcessor",
    }
    return model


def write(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((16, 16, 3), value, dtype=np.uint8)).save(path)


def test_drawn_domains() -> None:
    assert is_shapes("shapes")
    assert is_shapes("shapes:flat")
    assert not is_shapes("flat")
    every = read_source("shapes", transform=TRANSFORM, drawn=2)
    assert list(every) == sorted(SHAPE_DOMAINS)
    one = read_source("shapes:neon", transform=TRANSFORM, options=ReadOptions(n=3, seed=5), start=7)
    assert np.array_equal(one["neon"].pixels, draw_shapes("neon", 3, seed=5, size=16, start=7).pixels)
    with pytest.raises(UnknownNameError, match="flat"):
        read_source("shapes:falt", transform=TRANSFORM)
    with pytest.raises(InputError, match="square"):
        read_source("shapes", transform=EvalTransform(resize=(16, 32)))


def test_a_folder_is_a_domain_or_holds_domains(tmp_path: Path) -> None:
    write(tmp_path / "one" / "cat" / "a.png", 1)
    write(tmp_path / "one" / "dog" / "b.png", 2)
    write(tmp_path / "two" / "dog" / "c.png", 3)
    both = read_source(tmp_path, transform=TRANSFORM)
    assert {name: images.n for name, images in both.items()} == {"one": 2, "two": 1}
    assert both["two"].labels.tolist() == [1]
    alone = read_source(tmp_path / "one", transform=TRANSFORM, classes=("dog", "cat"))
    assert one_domain(alone, "one").labels.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"2 domains \(one, two\)"):
        one_domain(both, tmp_path)


def test_files_of_a_folder_without_labels(tmp_path: Path) -> None:
    write(tmp_path / "new" / "a.png")
    write(tmp_path / "new" / "b.png")
    found = one_domain(read_source(tmp_path / "new", transform=TRANSFORM), "new")
    assert (found.domain, found.n, found.labels) == ("new", 2, None)
    (tmp_path / "new" / "deep").mkdir()
    with pytest.raises(InputError, match="mixes folders, archives and images"):
        read_source(tmp_path / "new", transform=TRANSFORM)


def test_severities_are_no_classes(tmp_path: Path) -> None:
    write(tmp_path / "fog" / "1" / "cat" / "a.png")
    with pytest.raises(InputError, match=r"layout of ImageNet-C.*fog/1"):
        read_source(tmp_path, transform=TRANSFORM)
    assert one_domain(read_source(tmp_path / "fog" / "1", transform=TRANSFORM), "").classes == ("cat",)


def test_archives(tmp_path: Path) -> None:
    pixels = np.zeros((3, 16, 16, 3), dtype=np.uint8)
    for name in ("photo", "sketch"):
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=np.array([0, 1, 1]))
    assert list(read_source(tmp_path, transform=TRANSFORM)) == ["photo", "sketch"]
    assert one_domain(read_source(tmp_path / "photo.npz", transform=TRANSFORM), "").domain == "photo"
    with pytest.raises(FileFormatError, match="has no images"):
        read_source(tmp_path / "art.npz", transform=TRANSFORM)


def test_load_images_gives_what_the_model_reads(tmp_path: Path) -> None:
    model = classifier()
    write(tmp_path / "cat" / "a.png", 255)
    write(tmp_path / "dog" / "b.png", 0)
    task = load_images(tmp_path, model)
    assert task.labels.tolist() == [0, 1]
    assert float(task.images[0].min()) == 1.0
    assert float(task.images[1].max()) == -1.0
    (tmp_path / "dog" / "c.png").write_bytes(b"no image")
    with pytest.raises(FileFormatError, match=r"c\.png"):
        load_images(tmp_path, model)
    assert load_images(tmp_path, model, skip_bad=True).config["skipped"] == 1


def test_drawn_images_are_none_that_the_embedded_zoo_was_trained_on() -> None:
    zoo = Zoo.embedded()
    assert load_images("shapes:flat", zoo.load(zoo.keys[0]), n=4).ids.tolist() == list(range(20_000, 20_004))


def test_the_classes_are_the_models(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "a.png")
    write(tmp_path / "cow" / "b.png")
    with pytest.raises(InputError, match="cow"):
        load_images(tmp_path, classifier())


def test_prompts_and_images_are_told_apart() -> None:
    with pytest.raises(InputError, match="reads images, not prompts"):
        load_task("ioi", classifier())
    with pytest.raises(InputError, match="reads prompts, not images"):
        load_images("shapes:flat", load_model("mini"))
    with pytest.raises(InputError, match="at least one image"):
        load_images("shapes:flat", classifier(), n=0)

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
    find_domains,
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


def test_every_corruption_and_severity_is_a_domain(tmp_path: Path) -> None:
    write(tmp_path / "fog" / "1" / "cat" / "a.png", 1)
    write(tmp_path / "fog" / "3" / "dog" / "a.png", 3)
    write(tmp_path / "snow" / "3" / "cat" / "a.png", 5)
    found = read_source(tmp_path, transform=TRANSFORM)
    assert {name: int(images.pixels[0, 0, 0, 0]) for name, images in found.items()} == {
        "fog/1": 1,
        "fog/3": 3,
        "snow/3": 5,
    }
    # A severity that lacks a class has the labels of the others.
    assert [images.labels.tolist() for images in found.values()] == [[0], [1], [0]]
    listed = {each.name: each.classes for each in find_domains(tmp_path)}
    assert listed == {"fog/1": ("cat",), "fog/3": ("dog",), "snow/3": ("cat",)}
    assert one_domain(read_source(tmp_path / "fog" / "1", transform=TRANSFORM), "").classes == ("cat",)


def camelyon(root: Path) -> Path:
    """Camelyon17 as WILDS lays it out: slide 0 and 1 of hospital 0, slide 20 of hospital 1."""
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for x, (patient, slide, hospital) in enumerate([("004", 0, 0), ("004", 1, 0), ("020", 20, 1)] * 2):
        lines.append(f"{x},{patient},4,{x},9,{x % 2},{slide},{hospital},0")
        write(root / f"patches/patient_{patient}_node_4/patch_patient_{patient}_node_4_x_{x}_y_9.png", x)
    (root / "metadata.csv").write_text("\n".join(lines))
    return root


def test_slides_of_hospitals_are_domains(tmp_path: Path) -> None:
    source = f"camelyon17:{camelyon(tmp_path)}"
    assert one_domain(read_source(source, transform=TRANSFORM), source).n == 6
    slides = find_domains(source, by=())
    assert [each.name for each in slides] == [
        "hospital 0/slide 0",
        "hospital 0/slide 1",
        "hospital 1/slide 20",
    ]
    second = slides[1].read(ReadOptions(transform=TRANSFORM), None)
    assert (second.domain, second.ids.tolist(), second.labels.tolist()) == (
        "hospital 0/slide 1",
        [1, 4],
        [1, 0],
    )
    assert [each.name for each in find_domains(f"{source}:slide!=0,1", by=["hospital"])] == ["hospital 1"]
    assert one_domain(read_source(f"{source}:slide=0", transform=TRANSFORM), source).ids.tolist() == [0, 3]
    with pytest.raises(UnknownNameError, match="did you mean 'slide'"):
        find_domains(source, by=["slides"])
    with pytest.raises(InputError, match="has slide=9"):
        find_domains(f"{source}:slide=9")
    with pytest.raises(InputError, match="need a table"):
        find_domains("shapes:flat", by=["slide"])


def test_regions_and_times_of_fmow_are_domains_and_other_is_not(tmp_path: Path) -> None:
    rows = [("val", "KEN", "2014"), ("val", "XXX", "2014"), ("test", "FRA", "2017"), ("train", "FRA", "2016")]
    lines = ["split,category,country_code,timestamp"]
    for number, (split, country, year) in enumerate(rows):
        lines.append(f"{split},zoo,{country},{year}-05-01T00:00:00Z")
        write(tmp_path / f"images/rgb_img_{number}.png", number)
    (tmp_path / "rgb_metadata.csv").write_text("\n".join(lines))
    (tmp_path / "country_code_mapping.csv").write_text("alpha-3,region\nFRA,Europe\nKEN,Africa\n")
    source = f"fmow:{tmp_path}"
    # Neither the region `Other` nor images of later years outside the official splits.
    assert [each.name for each in find_domains(source, by=())] == ["Africa/val", "Europe/test"]
    assert [each.name for each in find_domains(source, by=["region", "year"])] == [
        "Africa/year 2014",
        "Europe/year 2016",
        "Europe/year 2017",
    ]


def test_cameras_of_iwildcam_are_domains_and_labels_are_numbers(tmp_path: Path) -> None:
    lines = [",split,location_remapped,filename,y"]
    for number, (camera, species) in enumerate([(3, 10), (3, 2), (11, 0)]):
        lines.append(f"{number},test,{camera},{number}.jpg,{species}")
        write(tmp_path / f"train/{number}.jpg", number)
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    found = find_domains(f"iwildcam:{tmp_path}:wilds_split=test", by=())
    assert [each.name for each in found] == ["location_remapped 3", "location_remapped 11"]
    images = found[0].read(ReadOptions(transform=TRANSFORM), None)
    assert (images.classes, images.labels.tolist()) == (("0", "2", "10"), [2, 1])


def test_a_plain_table_names_paths_labels_and_domains(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.png")
    (tmp_path / "list.csv").write_text("path,label,site\na.png,cat,north\nb.png,dog,south\n")
    source = str(tmp_path / "list.csv")
    assert [each.name for each in find_domains(source, by=["site"])] == ["north", "south"]
    assert one_domain(read_source(f"{source}:site=south", transform=TRANSFORM), source).labels.tolist() == [1]
    with pytest.raises(InputError, match="which columns make domains"):
        find_domains(source, by=())


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

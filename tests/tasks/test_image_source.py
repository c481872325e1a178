"""Where images come from: folders, tables, loaded data sets, drawn domains; and what a model is given."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from picture_files import DRAWN, PIXELS, png, write
from PIL import Image
from torch.utils.data import Dataset, Subset
from zoo.zoo_cases import tiny

from assay.core.errors import FileFormatError, InputError, ShapeError, UnknownNameError
from assay.models import Model, load_model
from assay.tasks import (
    SHAPE_DOMAINS,
    EvalTransform,
    ImageTask,
    draw_shapes,
    find_domains,
    is_shapes,
    load_images,
    load_task,
    one_domain,
    read_dataset,
    read_table,
)
from assay.zoo import Zoo


TRANSFORM = EvalTransform(resize=(16, 16))
BLACK = Image.new("RGB", (8, 8))


def values(images: ImageTask) -> list[int]:
    return images.held().pixels[:, 0, 0, 0].tolist()


def labels(images: ImageTask) -> list[int]:
    return images.labels.tolist()


def test_drawn_domains() -> None:
    assert [is_shapes(name) for name in ("shapes", "shapes:flat", "flat")] == [True, True, False]
    assert list(find_domains("shapes", drawn=2)) == sorted(SHAPE_DOMAINS)
    found = find_domains("shapes:neon", n=3, seed=5, start=7)["neon"]
    neon = draw_shapes("neon", 3, seed=5, size=48, start=7)
    read = found.with_transform(EvalTransform(resize=(48, 48))).held()
    assert np.array_equal(read.pixels, neon.pixels)
    assert (labels(read), read.ids.tolist()) == (labels(neon), [7, 8, 9])
    with pytest.raises(InputError, match="square"):
        found.with_transform(EvalTransform(resize=(16, 32))).held()


# ---- folders ------------------------------------------------------------------------------------------


def test_domains_share_the_labels_of_all_classes(tmp_path: Path) -> None:
    for number, name in enumerate(["art/dog/1.png", "art/dog/2.jpg", "art/cat/1.png", "art/owl/sub/1.PNG"]):
        write(tmp_path / name, 10 * number)
    for name in ("photo/owl/1.png", "photo/.cache/1.png", "photo/owl/.1.png"):  # two are hidden
        write(tmp_path / name, 77)
    domains = find_domains(tmp_path)
    assert list(domains) == ["art", "photo"]
    art, photo = domains["art"], domains["photo"]
    assert art.classes == photo.classes == ("cat", "dog", "owl")
    assert (labels(art), labels(photo)) == ([0, 1, 1, 2], [2])
    assert art.fields["path"] == ["cat/1.png", "dog/1.png", "dog/2.jpg", "owl/sub/1.PNG"]
    assert values(art) == [20, 0, 10, 30]
    assert (art.n, art.domain, art.name) == (4, "art", "art")
    assert one_domain(find_domains(tmp_path / "photo"), "").classes == ("owl",)
    with pytest.raises(InputError, match="2 domains; name one of art, photo"):
        one_domain(domains, tmp_path)


def test_no_image_vanishes(tmp_path: Path) -> None:
    """What Pillow reads is read whatever its ending; other files are counted by their ending in a note."""
    for number, name in enumerate(("a.jfif", "b.JPE", "c.avif", "d.webp", "e.tga", "f.jp2")):
        path = write(tmp_path / "x/cat" / f"{name}.png", 10 * number)
        Image.open(path).save(path.with_suffix(""), {"jfif": "JPEG", "JPE": "JPEG"}.get(name[2:]))
        path.unlink()
    for name in ("y.heic", "z.heic", "README", ".hidden", "facts.txt"):
        (tmp_path / "x/cat" / name).write_bytes(b"")
    (found,) = find_domains(tmp_path / "x").values()
    assert values(found) == pytest.approx([0, 10, 20, 30, 40, 50], abs=3)
    note = "4 files of x were left out by their endings: 2 .heic, 1 .txt, 1 no ending"
    assert found.notes == (note,)
    assert found.with_transform(TRANSFORM).describe()["notes"] == [note]
    (loose,) = find_domains(tmp_path / "x/cat").values()
    assert (loose.notes, loose.labels) == ((note.replace("of x", "of cat"),), None)
    write(tmp_path / "x/cat/deep/c.png")
    with pytest.raises(InputError, match=r"mixes 1 folders and 6 images, e\.g\. "):
        find_domains(tmp_path / "x/cat")


def test_every_corruption_and_severity_is_a_domain(tmp_path: Path) -> None:
    for number, name in enumerate(("fog/1/cat/a.JPEG", "fog/3/dog/a.png", "snow/3/cat/a.png")):
        write(tmp_path / "c" / name, number)
    found = find_domains(tmp_path / "c")
    assert {name: values(images) for name, images in found.items()} == {
        "fog/1": [0], "fog/3": [1], "snow/3": [2]
    }  # fmt: skip
    # A severity that lacks a class has the labels of the others.
    assert [labels(images) for images in found.values()] == [[0], [1], [0]]
    (tmp_path / "c/rain/2/dog").mkdir(parents=True)
    with pytest.raises(InputError, match="domain 'rain/2' has no images"):
        find_domains(tmp_path / "c")
    with pytest.raises(FileFormatError, match="nowhere has no images; expected a folder, a .csv file"):
        find_domains(tmp_path / "nowhere")


def test_classes_that_are_called_1_to_5_are_not_severities(tmp_path: Path) -> None:
    for number in (1, 2, 5):
        write(tmp_path / f"photo/{number}/a.png", number)
    (found,) = find_domains(tmp_path).values()
    assert (found.domain, found.classes, labels(found)) == ("photo", ("1", "2", "5"), [0, 1, 2])
    write(tmp_path / "photo/3/sub/a.png")  # now it could be either
    with pytest.raises(InputError, match="mixes 0 folders and 1 images"):
        find_domains(tmp_path)


# ---- tables -------------------------------------------------------------------------------------------


def test_tables_of_wilds_are_read_as_they_are(tmp_path: Path) -> None:
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center"]
    lines += ["0,004,4,1,9,1,0,0", "1,004,4,2,9,0,1,0", "2,020,2,3,9,1,20,1"]
    for name, value in (("004_node_4", 1), ("004_node_4", 2), ("020_node_2", 3)):
        patient = f"patient_{name}"
        write(tmp_path / f"c/patches/{patient}/patch_{patient}_x_{value}_y_9.png", 10 * value)
    (tmp_path / "c/metadata.csv").write_text("\n".join(lines))
    camelyon = f"camelyon17:{tmp_path}/c"
    images = one_domain(find_domains(camelyon), camelyon)
    assert (images.classes, labels(images), values(images)) == (("0", "1"), [1, 0, 1], [10, 20, 30])
    assert images.fields["patient"] == ["004", "004", "020"]
    second = read_table(f"{camelyon}:center=1,2:tumor=1")
    assert (second.ids.tolist(), labels(second), second.domain) == ([2], [1], "center=1,2+tumor=1")
    slides = find_domains(camelyon, by=["center", "slide"])
    assert list(slides) == ["center 0/slide 0", "center 0/slide 1", "center 1/slide 20"]
    assert values(slides["center 1/slide 20"]) == [30]
    assert list(find_domains(f"{camelyon}:slide!=0,1", by=["center"])) == ["center 1"]
    for name in ("images/rgb_img_0.png", "images/rgb_img_2.png", "train/a.png"):
        write(tmp_path / name, ord(name[-5]))
    (tmp_path / "rgb_metadata.csv").write_text("split,category\ntrain,zoo\nseq,zoo\nval,airport\n")
    fmow = read_table(f"fmow:{tmp_path}:split!=seq")
    assert (values(fmow), fmow.ids.tolist(), labels(fmow)) == ([48, 50], [0, 2], [1, 0])
    (tmp_path / "metadata.csv").write_text("split,filename,y\ntrain,a.png,12\nval,b.png,3\n")
    traps = read_table(f"iwildcam:{tmp_path}")
    assert (values(traps.subset([0])), traps.classes, labels(traps)) == ([97], ("3", "12"), [1, 0])


def test_tables_that_do_not_fit_are_named(tmp_path: Path) -> None:
    for name, text in (
        ("whole", "path,label,center\na.png,0,1"), ("list", "path,label\n../a.png,0"),
        ("short", "path,label\na.png"), ("metadata", "filename\na.png"),
    ):  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(text)
    for source, error, message in (
        (f"{tmp_path}/whole.csv:centre=1", UnknownNameError, "did you mean 'center'"),
        (f"{tmp_path}/whole.csv:center=9", InputError, "has center=9"),
        (tmp_path / "none.csv", FileFormatError, r"cannot read the table .*none\.csv"),
        (tmp_path / "short.csv", FileFormatError, "do not have the columns of the header"),
        (tmp_path / "list.csv", FileFormatError, r"the image '\.\./a\.png', which must lie beside it"),
        (f"iwildcam:{tmp_path}", FileFormatError, r"metadata\.csv is not a table of iwildcam \(KeyError"),
    ):
        with pytest.raises(error, match=message):
            read_table(source)
    with pytest.raises(InputError, match="need a table"):
        find_domains("shapes:flat", by=["slide"])


# ---- loaded data sets ---------------------------------------------------------------------------------


class Items(Dataset[Any]):
    """The items given, one at a time; counts what is asked for."""

    def __init__(self, *items: Any) -> None:
        self.items, self.asked, self.inside = items, [0] * len(items), 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        self.inside += 1
        assert self.inside == 1, "two threads at once"
        time.sleep(0.001)
        self.asked[row] += 1
        self.inside -= 1
        return self.items[row]


FORMS = {
    "pil": lambda pixels, label: (Image.fromarray(pixels), label),
    "bytes": lambda pixels, label: (torch.from_numpy(pixels).permute(2, 0, 1), torch.tensor(label)),
    "floats": lambda pixels, label: (torch.from_numpy(pixels).permute(2, 0, 1) / 255, label),
    "array": lambda pixels, label: [pixels, np.int64(label), {"more": 1}],
}


@pytest.mark.parametrize("form", FORMS)
def test_items_of_a_torch_data_set_are_images_and_labels(form: str) -> None:
    items = Items(*map(FORMS[form], PIXELS, labels(DRAWN)))
    items.classes = list(DRAWN.classes)  # as those of torchvision
    images = replace(read_dataset(items), workers=4)
    assert items.asked == [1] * DRAWN.n  # for the labels
    assert (images.held().pixels == PIXELS).all()
    assert (images.labels == DRAWN.labels).all()
    assert (images.classes, images.domain, images.name) == (DRAWN.classes, "Items", "Items")
    sampled = read_dataset(items, n=5, seed=3)
    assert sum(items.asked) == 2 * DRAWN.n + 5
    assert (sampled.held().pixels == DRAWN.sample(5, seed=3).pixels).all()
    assert (read_dataset(Subset(items, [3, 1])).held().pixels == PIXELS[[3, 1]]).all()
    grey = torch.arange(64, dtype=torch.uint8).view(1, 8, 8)
    unlabelled = read_dataset([grey, grey[0], grey[0].numpy(), grey[0] / 255])
    assert unlabelled.labels is None
    assert (unlabelled.held().pixels == grey[0].numpy()[None, ..., None]).all()


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        ({"train": Items(BLACK)}, InputError, r"a dict of the splits train; give one, e.g. dataset\['train'"),
        (iter([BLACK]), InputError, "is a list_iterator, whose rows have no numbers; expected a map-style"),
        (Items((BLACK, "cat")), InputError, "the label 'cat'; expected the number of a class"),
        (Items((BLACK, 0), BLACK), InputError, "the label 'None'; expected the number of a class in every"),
        (Items((torch.randn(3, 8, 8), 0)), FileFormatError, "values from -.* expected 0 to 1 or 8"),
        (Items((torch.zeros(5, 8, 7), 0)), FileFormatError, r"of shape \(5, 8, 7\); expected .*\[3, H, W\]"),
        (Items((BLACK, 0), (Image.new("RGB", (9, 8)), 0)), ShapeError, "1 of Items is 8 x 9"),
    ],
)
def test_other_items_are_refused(dataset: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_dataset(dataset).held()


def test_columns_of_a_data_set_are_found_by_their_types_or_asked_for() -> None:
    reason = "NOT TESTED: data sets of the library `datasets`, which is not installed"
    datasets = pytest.importorskip("datasets", reason=reason)
    features = {
        "img": datasets.Image(),
        "fine": datasets.ClassLabel(names=list(DRAWN.classes)),
        "place": datasets.Value("string"),
        "box": datasets.List(datasets.Value("int64")),
    }
    columns = {
        "img": [{"bytes": png(each), "path": None} for each in PIXELS],
        "fine": labels(DRAWN),
        "place": [f"place {row % 3}" for row in range(DRAWN.n)],
        "box": [[1, 2]] * DRAWN.n,
    }
    pictures = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    images = read_dataset(pictures.with_format("torch"), n=7, seed=2)
    rows = images.ids.tolist()
    assert len(rows) == 7
    assert (images.held().pixels == PIXELS[rows]).all()
    assert (images.labels == DRAWN.labels[rows]).all()
    assert images.classes == DRAWN.classes
    assert images.fields == {"place": [f"place {row % 3}" for row in rows]}
    assert read_dataset(pictures.remove_columns("fine")).labels is None
    second = pictures.select_columns("img").rename_column("img", "img2")
    twice = datasets.concatenate_datasets([pictures, second], axis=1)
    assert read_dataset(twice, image="img2").n == DRAWN.n
    for dataset, asked, message in (
        (twice, {}, "columns img, img2 of type Image; choose one with image='img'"),
        (pictures, {"image": "imgs"}, "column of the data set 'imgs'"),
        (pictures.remove_columns("img"), {}, "columns fine, place, box; none, or None, is of type Image"),
        (pictures, {"label": "place"}, "the label 'place 0'"),
        (datasets.DatasetDict(train=pictures), {}, "DatasetDict of the splits train; give one"),
        (pictures.to_iterable_dataset(), {}, "is a IterableDataset, whose rows have no numbers"),
    ):
        with pytest.raises((InputError, UnknownNameError), match=message):
            read_dataset(dataset, **asked)


# ---- for a model --------------------------------------------------------------------------------------


def classifier(classes: tuple[str, ...]) -> Model:
    names = {"id2label": dict(enumerate(classes)), "label2id": {each: i for i, each in enumerate(classes)}}
    model = load_model(tiny(n_classes=len(classes), image_size=16, patch_size=8, **names))
    sides = {"height": 16, "width": 16}
    model.preprocessing = {"size": sides, "image_processor_type": "ViTImageProcessor"}
    return model


def test_load_images_gives_what_the_model_reads(tmp_path: Path) -> None:
    model = classifier(("dog", "cat"))
    write(tmp_path / "cat" / "a.png", 255)
    write(tmp_path / "dog" / "b.png", 0)
    task = load_images(tmp_path, model)
    assert labels(task) == [1, 0]
    assert (float(task.clean[0].min()), float(task.clean[1].max())) == (1.0, -1.0)
    (tmp_path / "dog" / "c.png").write_bytes(b"no image")
    with pytest.raises(FileFormatError, match=r"c\.png"):
        load_images(tmp_path, model)
    for hold in (True, False):
        assert load_images(tmp_path, model, skip_bad=True, hold=hold).config["skipped"] == 1
    zoo = Zoo.embedded()
    ids = load_images("shapes:flat", zoo.load(zoo.keys[0]), n=4).ids.tolist()
    assert ids == list(range(20_000, 20_004)), "none that a model of the zoo was trained on"
    write(tmp_path / "cow" / "b.png")
    for call, message in (
        (lambda: load_task("ioi", model), "reads images, not prompts"),
        (lambda: load_images("shapes:flat", load_model("mini")), "reads prompts, not images"),
        (lambda: load_images("shapes:flat", model, n=0), "give at least 1 image"),
        (lambda: classifier(DRAWN.classes).bind(DRAWN), "are 32 x 32, but the model reads 16 x 16"),
        (lambda: load_images(tmp_path, model, skip_bad=True), "has images of cow, which are not among"),
    ):
        with pytest.raises(InputError, match=message):
            call()

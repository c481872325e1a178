"""Where images come from: folders of every depth, tables, drawn domains; and what a model is given."""

from pathlib import Path

import numpy as np
import pytest
import torch
from picture_files import DRAWN, write
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.models import Model, load_model
from assay.tasks import (
    SHAPE_DOMAINS,
    EvalTransform,
    ImageTask,
    draw_digits,
    draw_shapes,
    find_domains,
    is_shapes,
    load_images,
    load_task,
    one_domain,
    read_table,
)
from assay.zoo import Zoo


TRANSFORM = EvalTransform(resize=(16, 16))


def classifier(classes: tuple[str, ...] = ("cat", "dog"), size: int = 16) -> Model:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=size,
        patch_size=8, id2label=dict(enumerate(classes)), label2id={each: i for i, each in enumerate(classes)},
    )  # fmt: skip
    model = load_model(ViTForImageClassification(config).eval())
    sides = {"height": size, "width": size}
    model.preprocessing = {"size": sides, "image_processor_type": "ViTImageProcessor"}
    return model


def values(images: ImageTask) -> list[int]:
    return images.held().pixels[:, 0, 0, 0].tolist()


def labels(images: ImageTask) -> list[int]:
    return images.labels.tolist()


# ---- drawn --------------------------------------------------------------------------------------------


def test_drawn_domains() -> None:
    assert [is_shapes(name) for name in ("shapes", "shapes:flat", "flat")] == [True, True, False]
    assert list(find_domains("shapes", drawn=2)) == sorted(SHAPE_DOMAINS)
    found = find_domains("shapes:neon", n=3, seed=5, start=7)["neon"]
    assert (found.ids.tolist(), labels(found)) == ([7, 8, 9], [1, 2, 3])
    digits = find_domains("colour-digits:0.5", n=4)["agreement-0.5"]
    neon = draw_shapes("neon", 3, seed=5, size=48, start=7)
    for lazy, side, drawn in ((found, 48, neon), (digits, 28, draw_digits(4, agreement=0.5, split="test"))):
        read = lazy.with_transform(EvalTransform(resize=(side, side))).held()
        assert np.array_equal(read.pixels, drawn.pixels)
        assert labels(read) == labels(drawn)
    with pytest.raises(UnknownNameError, match="flat"):
        find_domains("shapes:falt")
    with pytest.raises(InputError, match="square"):
        found.with_transform(EvalTransform(resize=(16, 32))).held()


# ---- folders ------------------------------------------------------------------------------------------


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    """Two domains, three classes; the second domain lacks one; a file that is not an image."""
    for number, name in enumerate(["art/dog/1.png", "art/dog/2.jpg", "art/cat/1.png", "art/owl/sub/1.PNG"]):
        write(tmp_path / name, 10 * number)
    write(tmp_path / "photo/owl/1.png", 77)
    (tmp_path / "art/dog/notes.txt").write_text("no image")
    return tmp_path


def test_domains_share_the_labels_of_all_classes(pacs: Path) -> None:
    domains = find_domains(pacs)
    assert list(domains) == ["art", "photo"]
    art, photo = domains["art"], domains["photo"]
    assert art.classes == photo.classes == ("cat", "dog", "owl")
    assert (labels(art), labels(photo)) == ([0, 1, 1, 2], [2])
    assert art.fields["path"] == ["cat/1.png", "dog/1.png", "dog/2.jpg", "owl/sub/1.PNG"]
    assert values(art) == [20, 0, 10, 30]
    assert (art.n, art.domain, art.name) == (4, "art", "art")
    assert one_domain(find_domains(pacs / "photo"), "").classes == ("owl",)
    with pytest.raises(InputError, match="2 domains; name one of art, photo"):
        one_domain(domains, pacs)


def test_no_image_vanishes(tmp_path: Path) -> None:
    """What Pillow reads is read whatever its ending; other files are counted by their ending in a note."""
    for number, name in enumerate(("a.jfif", "b.JPE", "c.avif", "d.webp", "e.tga", "f.jp2")):
        path = write(tmp_path / "x/cat" / f"{name}.png", 10 * number)
        Image.open(path).save(path.with_suffix(""), {"jfif": "JPEG", "JPE": "JPEG"}.get(name[2:]))
        path.unlink()
    for name in ("y.heic", "z.heic", "README", ".hidden", "facts.txt"):
        (tmp_path / "x/cat" / name).write_bytes(b"")
    (found,) = find_domains(tmp_path / "x").values()
    assert found.n == 6
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
    write(tmp_path / "fog" / "1" / "cat" / "a.JPEG", 1)
    write(tmp_path / "fog" / "3" / "dog" / "a.png", 3)
    write(tmp_path / "snow" / "3" / "cat" / "a.png", 5)
    found = find_domains(tmp_path)
    assert [(name, values(images)) for name, images in found.items()] == [
        ("fog/1", [1]), ("fog/3", [3]), ("snow/3", [5])
    ]  # fmt: skip
    # A severity that lacks a class has the labels of the others.
    assert [labels(images) for images in found.values()] == [[0], [1], [0]]
    assert one_domain(find_domains(tmp_path / "fog" / "1"), "").classes == ("cat",)
    with pytest.raises(FileFormatError, match="nowhere has no images; expected a folder, a .csv file"):
        find_domains(tmp_path / "nowhere")
    (tmp_path / "rain/2/dog").mkdir(parents=True)
    with pytest.raises(InputError, match="domain 'rain/2' has no images"):
        find_domains(tmp_path)


# ---- tables -------------------------------------------------------------------------------------------


@pytest.fixture
def camelyon(tmp_path: Path) -> Path:
    """Camelyon17 as WILDS lays it out."""
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    rows = [("004", 4, 1, 9, 1, 0, 0, 0), ("004", 4, 2, 9, 0, 1, 0, 1), ("020", 2, 3, 9, 1, 20, 1, 0)]
    rows.append(("041", 1, 4, 9, 0, 30, 2, 0))
    for number, row in enumerate(rows):
        lines.append(",".join(map(str, (number, *row))))
        patient, node, x, y = row[:4]
        folder = f"patches/patient_{patient}_node_{node}"
        write(tmp_path / f"{folder}/patch_patient_{patient}_node_{node}_x_{x}_y_{y}.png", 10 * int(x))
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    return tmp_path


def test_camelyon17_as_wilds_has_it(camelyon: Path) -> None:
    source = f"camelyon17:{camelyon}"
    images = one_domain(find_domains(source), source)
    assert images.classes == ("normal", "tumor")
    assert (labels(images), values(images)) == ([1, 0, 1, 0], [10, 20, 30, 40])
    assert images.fields["wilds_split"] == ["train", "id_val", "val", "test"]
    assert images.fields["patient"] == ["004", "004", "020", "041"]
    second = read_table(f"{source}:center=1,2:tumor=0")
    assert (second.ids.tolist(), second.domain) == ([3], "center=1,2+tumor=0")
    slides = find_domains(source, by=())
    names = ["hospital 0/slide 0", "hospital 0/slide 1", "hospital 1/slide 20", "hospital 2/slide 30"]
    assert list(slides) == names
    assert values(slides["hospital 1/slide 20"]) == [30]
    assert list(find_domains(f"{source}:slide!=0,1", by=["hospital"])) == ["hospital 1", "hospital 2"]


def test_regions_and_times_of_fmow_are_domains_and_other_is_not(tmp_path: Path) -> None:
    rows = [
        ("train", "zoo", "FRA", "2009-05-01T00:00:00Z"),
        ("seq", "zoo", "FRA", "2009-05-01T00:00:00Z"),
        ("val", "airport", "KEN", "2012-12-31T23:00:00Z"),
        ("val", "airport", "KEN", "2013-01-01T00:00:00Z"),
        ("test", "airport", "XXX", "2016-01-01T00:00:00Z"),
        ("train", "airport", "KEN", "2016-01-01T00:00:00Z"),
    ]
    table = ["split,category,country_code,timestamp", *(",".join(row) for row in rows)]
    (tmp_path / "rgb_metadata.csv").write_text("\n".join(table))
    (tmp_path / "country_code_mapping.csv").write_text("alpha-3,region\nFRA,Europe\nKEN,Africa\n")
    for number in (0, 2, 3, 4, 5):
        write(tmp_path / f"images/rgb_img_{number}.png", number)
    images = read_table(f"fmow:{tmp_path}")
    assert images.classes == ("airport", "zoo")
    assert values(images) == images.ids.tolist() == [0, 2, 3, 4, 5]
    assert images.fields["wilds_split"] == ["train", "id_val", "val", "test", ""]
    assert images.fields["region"] == ["Europe", "Africa", "Africa", "Other", "Africa"]
    # Neither the region `Other` nor images of later years outside the official splits.
    assert list(find_domains(f"fmow:{tmp_path}", by=())) == ["Africa/id_val", "Africa/val", "Europe/train"]
    years = find_domains(f"fmow:{tmp_path}", by=["region", "year"])
    assert list(years)[:2] == ["Africa/year 2012", "Africa/year 2013"]


def test_tables_that_do_not_fit_are_named(camelyon: Path) -> None:
    (camelyon / "list.csv").write_text("path,label\n../a.png,0\n")
    (camelyon / "rgb_metadata.csv").write_text("split,category,country_code,timestamp\ntrain,zoo,FRA,n/a\n")
    (camelyon / "country_code_mapping.csv").write_text("alpha-3,region\nFRA,Europe\n")
    (camelyon / "short.csv").write_text("path,label\na.png\n")
    for source, error, message in (
        (f"camelyon17:{camelyon}:centre=1", UnknownNameError, "did you mean 'center'"),
        (f"camelyon17:{camelyon}:center=9", InputError, "has center=9"),
        (camelyon / "none.csv", FileFormatError, r"cannot read the table .*none\.csv"),
        (camelyon / "short.csv", FileFormatError, "do not have the columns of the header"),
        (camelyon / "list.csv", FileFormatError, r"the image '\.\./a\.png', which must lie beside it"),
        (f"fmow:{camelyon}", FileFormatError, r"metadata\.csv is not a table of fmow \(ValueError"),
    ):
        with pytest.raises(error, match=message):
            read_table(source)
    with pytest.raises(InputError, match="need a table"):
        find_domains("shapes:flat", by=["slide"])


# ---- for a model --------------------------------------------------------------------------------------


def test_load_images_gives_what_the_model_reads(tmp_path: Path) -> None:
    model = classifier(("dog", "cat"))
    write(tmp_path / "cat" / "a.png", 255)
    write(tmp_path / "dog" / "b.png", 0)
    task = load_images(tmp_path, model)
    assert labels(task) == [1, 0]
    assert float(task.clean[0].min()) == 1.0
    assert float(task.clean[1].max()) == -1.0
    (tmp_path / "dog" / "c.png").write_bytes(b"no image")
    with pytest.raises(FileFormatError, match=r"c\.png"):
        load_images(tmp_path, model)
    for hold in (True, False):
        assert load_images(tmp_path, model, skip_bad=True, hold=hold).config["skipped"] == 1
    zoo = Zoo.embedded()
    ids = load_images("shapes:flat", zoo.load(zoo.keys[0]), n=4).ids.tolist()
    assert ids == list(range(20_000, 20_004)), "none that a model of the zoo was trained on"
    for call, message in (
        (lambda: load_task("ioi", model), "reads images, not prompts"),
        (lambda: load_images("shapes:flat", load_model("mini")), "reads prompts, not images"),
        (lambda: load_images("shapes:flat", model, n=0), "give at least 1 image"),
        (lambda: classifier(DRAWN.classes).bind(DRAWN), "are 32 x 32, but the model reads 16 x 16"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    write(tmp_path / "cow" / "b.png")
    with pytest.raises(InputError, match="cow"):
        load_images(tmp_path, model, skip_bad=True)

"""A pickle that poses as weights, arrays or a circuit is refused, and what it would run is not run."""

import contextlib
import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import assay
from assay.circuits import read_eap_ig
from assay.errors import FileFormatError, UnsafeFileError, UnsupportedModelError
from assay.heads.shelf import Shelf
from assay.models.loading import MINI
from assay.subsets import load_published
from assay.subsets.data import CorrectnessData
from assay.tasks import read_npz
from assay.zoo import Correctness, Zoo
from assay.zoo.folders import load_weights


class Payload:
    """Makes a directory when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What appears if a payload runs."""
    return tmp_path / "owned"


def test_the_payload_works_where_nobody_looks(place: Path) -> None:
    pickle.loads(pickle.dumps(Payload(place)))  # noqa: S301 - this is what must not happen elsewhere
    assert place.is_dir()


def as_pickle(content: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


def as_torch(content: object, path: Path) -> None:
    torch.save(content, path)


def as_old_torch(content: object, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


WRITERS = pytest.mark.parametrize("write", [as_pickle, as_torch, as_old_torch])
Write = Callable[[object, Path], None]


def model_folder(tmp_path: Path, **config: Any) -> Path:
    """The embedded model's folder without its weights."""
    folder = tmp_path / "model"
    shutil.copytree(MINI, folder)
    (folder / "model.safetensors").unlink()
    if config:
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | config))
    return folder


@WRITERS
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickled_weights_in_a_directory(write: Write, name: str, tmp_path: Path, place: Path) -> None:
    folder = model_folder(tmp_path)
    write({"weight": Payload(place)}, folder / name)
    with pytest.raises(UnsafeFileError, match="pickled weights"):
        assay.load_model(folder)
    assert not place.exists()


@WRITERS
def test_pickled_weights_named_safetensors(write: Write, tmp_path: Path, place: Path) -> None:
    folder = model_folder(tmp_path)
    write({"weight": Payload(place)}, folder / "model.safetensors")
    with pytest.raises(UnsafeFileError, match="under another name"):
        assay.load_model(folder)
    assert not place.exists()


@WRITERS
@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_allowed_pickles_still_run_nothing(write: Write, tmp_path: Path, place: Path) -> None:
    folder = model_folder(tmp_path)
    write({"weight": Payload(place)}, folder / "pytorch_model.bin")
    with pytest.raises(FileFormatError):
        assay.load_model(folder, allow_pickle=True)
    assert not place.exists()


@WRITERS
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors", "weights"])
def test_pickled_weights_for_timm(write: Write, name: str, tmp_path: Path, place: Path) -> None:
    write({"weight": Payload(place)}, tmp_path / name)
    with pytest.raises(UnsafeFileError):
        assay.load_model(f"timm:vit_tiny_patch16_224@{tmp_path / name}")
    assert not place.exists()


@WRITERS
def test_pickled_weights_in_a_zoo(write: Write, tmp_path: Path, place: Path) -> None:
    shutil.copytree(Zoo.embedded().path, tmp_path / "zoo")
    zoo = Zoo.open(tmp_path / "zoo")
    key = zoo.keys[0]
    weights = zoo.folder(key) / "model.safetensors"
    weights.unlink()
    write({"weight": Payload(place)}, weights)
    with pytest.raises(UnsafeFileError, match=key):
        zoo.load(key)
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(UnsafeFileError, match=key):
        zoo.load(key)
    assert not place.exists()


@WRITERS
def test_pickled_weights_to_go_on_training_from(write: Write, tmp_path: Path, place: Path) -> None:
    write({"weight": Payload(place)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsafeFileError):
        load_weights(torch.nn.Linear(2, 2), tmp_path)
    assert not place.exists()


@WRITERS
@pytest.mark.parametrize("read", [assay.load_circuit, assay.load_scores])
def test_pickles_as_circuits_and_scores(
    write: Write, read: Callable[[Path], object], tmp_path: Path, place: Path
) -> None:
    path = tmp_path / "circuit.safetensors"
    write({"mask": Payload(place)}, path)
    with pytest.raises(UnsafeFileError):
        read(path)
    assert not place.exists()


@WRITERS
@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_pickles_as_graph_files(write: Write, tmp_path: Path, place: Path) -> None:
    write({"cfg": Payload(place)}, tmp_path / "graph.pt")
    with pytest.raises(UnsafeFileError, match="could run code"):
        read_eap_ig(tmp_path / "graph.pt")
    assert not place.exists()


@WRITERS
def test_pickles_as_blocks_of_a_table(write: Write, tmp_path: Path, place: Path) -> None:
    shelf = Shelf(tmp_path / "table", "0" * 16, {"seed": 0})
    write({"values": Payload(place)}, tmp_path / "table" / "y_drop1.00000000.safetensors")
    with pytest.raises(UnsafeFileError):
        shelf.read("y_drop1")
    assert not place.exists()


NPZ_READERS = pytest.mark.parametrize(
    "read", [CorrectnessData.load, Correctness.load, load_published, read_npz]
)


@NPZ_READERS
def test_pickled_objects_in_archives(read: Callable[[Path], object], tmp_path: Path, place: Path) -> None:
    path = tmp_path / "data.npz"
    hostile = np.array([Payload(place)], dtype=object)
    for key in ("X", "y", "images", "ids", "meta_domain", "meta_x", "labels"):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, hostile, allow_pickle=True)
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("X", "y", "shape"):
                if name != key:
                    plain = io.BytesIO()
                    np.lib.format.write_array(plain, np.eye(4))
                    archive.writestr(f"{name}.npy", plain.getvalue())
            archive.writestr(f"{key}.npy", buffer.getvalue())
        with pytest.raises(FileFormatError):
            read(path)
        assert not place.exists()
    # As the only array that is looked at, it is named for what it is.
    known = ("X", "y") if read == CorrectnessData.load else ("images", "ids")
    np.savez(path, **dict.fromkeys(known, hostile), allow_pickle=True)
    with pytest.raises(UnsafeFileError, match="pickle"):
        read(path)
    assert not place.exists()


@NPZ_READERS
def test_pickles_named_npz(read: Callable[[Path], object], tmp_path: Path, place: Path) -> None:
    as_pickle(Payload(place), tmp_path / "data.npz")
    with pytest.raises(UnsafeFileError, match="pickle"):
        read(tmp_path / "data.npz")
    assert not place.exists()


# ------------------------------------------------------------------------------------------ remote code


@pytest.mark.parametrize("model_type", ["gpt2", "assay_made_up"])
def test_code_beside_a_checkpoint_is_never_run(
    model_type: str, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by itself nor after a question, which transformers asks by default."""

    def asked(*_: object) -> str:
        raise AssertionError("a question is asked")

    monkeypatch.setattr("builtins.input", asked)
    entries = {
        "AutoConfig": "hostile.Config",
        "AutoModelForCausalLM": "hostile.Model",
        "AutoTokenizer": ["hostile.Tokenizer", None],
    }
    folder = model_folder(tmp_path, auto_map=entries, model_type=model_type)
    code = (
        f"import os\nos.mkdir({str(place)!r})\nclass Config: pass\nclass Model: pass\nclass Tokenizer: pass\n"
    )
    (folder / "hostile.py").write_text(code)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"auto_map": entries}))
    shutil.copy(MINI / "model.safetensors", folder)
    if model_type == "gpt2":
        with contextlib.suppress(FileFormatError, UnsupportedModelError):
            assay.load_model(folder)  # the library's own class, if it fits
    else:
        with pytest.raises(FileFormatError):
            assay.load_model(folder)
    assert not place.exists()


def test_a_hub_id_that_looks_like_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("../nowhere", "/nowhere/at/all", "a/b/c/d", "..", "~/x", "a\0b", "file:///etc/passwd", ""):
        with pytest.raises(FileFormatError):
            assay.load_model(name)

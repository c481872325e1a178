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
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import assay
from assay.analyses.subsets import load_published
from assay.analyses.subsets.data import CorrectnessData
from assay.circuits import read_eap_ig
from assay.core.errors import FileFormatError, UnsafeFileError, UnsupportedModelError
from assay.discovery.heads.shelf import Shelf
from assay.models.loading import MINI
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


def index_of(folder: Path, name: str, path: Path) -> None:
    """An index that says of all weights of a file that they lie in another."""
    with safe_open(path, framework="pt") as file:
        named = dict.fromkeys(file.keys(), name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": named})
    )


def decoy(folder: Path) -> None:
    save_file({"weight": torch.zeros(1)}, folder / "decoy.safetensors")


@WRITERS
def test_pickled_weights_beside_a_decoy(write: Write, tmp_path: Path, place: Path) -> None:
    folder = model_folder(tmp_path)
    decoy(folder)
    write({"weight": Payload(place)}, folder / "pytorch_model.bin")
    with pytest.raises(UnsafeFileError, match="pickled weights"):
        assay.load_model(folder)
    timm = {"architecture": "vit_tiny_patch16_224"}
    (folder / "config.json").write_text(json.dumps(timm))
    for source in (folder, f"timm:local-dir:{folder}"):
        with pytest.raises(UnsafeFileError, match="pickled weights"):
            assay.load_model(source)
    assert not place.exists()


def test_pickled_weights_that_an_index_names(tmp_path: Path) -> None:
    """With true weights in them, which are refused for what they are and not for what they hold."""
    folder = model_folder(tmp_path)
    decoy(folder)
    torch.save(load_file(MINI / "model.safetensors"), folder / "pytorch_model.bin")
    index_of(folder, "pytorch_model.bin", MINI / "model.safetensors")
    with pytest.raises(UnsafeFileError, match=r"names 'pytorch_model.bin'; only plain names of safetensors"):
        assay.load_model(folder)
    assert assay.load_model(folder, allow_pickle=True).weight_hash == assay.load_model("mini").weight_hash


@pytest.mark.parametrize(
    "name",
    ["../elsewhere.safetensors", "{}/elsewhere.safetensors", "a/../x.safetensors", "..\\x.safetensors"],
)
def test_an_index_names_nothing_elsewhere(name: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "a").mkdir()
    for place in (tmp_path / "elsewhere.safetensors", folder / "x.safetensors"):
        shutil.copy(MINI / "model.safetensors", place)
    index_of(folder, name.format(tmp_path), MINI / "model.safetensors")
    for allowed in (False, True):
        with pytest.raises(UnsafeFileError, match="plain names of safetensors files"):
            assay.load_model(folder, allow_pickle=allowed)
    index_of(folder, "x.safetensors", MINI / "model.safetensors")
    assert assay.load_model(folder).weight_hash == assay.load_model("mini").weight_hash
    index_of(folder, "absent.safetensors", MINI / "model.safetensors")
    with pytest.raises(FileFormatError, match="1 of them do not exist beside it"):
        assay.load_model(folder)
    (folder / "absent.safetensors").write_bytes(pickle.dumps({}))
    with pytest.raises(UnsafeFileError, match="under another name"):
        assay.load_model(folder)


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', "{"])
def test_an_index_that_is_not_one(content: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(FileFormatError, match=r"index\.json"):
        assay.load_model(folder)


def test_a_configuration_does_not_name_its_weights(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, transformers_weights="adapter_model.bin")
    shutil.copy(MINI / "model.safetensors", folder)
    with pytest.raises(UnsafeFileError, match="names its own weight files"):
        assay.load_model(folder)


def test_an_index_of_a_hub_repository_is_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub" / "models--some--model"
    folder = cache / "snapshots" / ("0" * 40)
    shutil.copytree(MINI, folder)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    (folder / "model.safetensors").unlink()
    torch.save(load_file(MINI / "model.safetensors"), folder / "pytorch_model.bin")
    index_of(folder, "pytorch_model.bin", MINI / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UnsafeFileError, match="plain names of safetensors"):
        assay.load_model("some/model")


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
        with pytest.raises(UnsupportedModelError, match="'assay_made_up'.* is not supported"):
            assay.load_model(folder)
    assert not place.exists()


def test_a_configuration_loads_no_kernel(tmp_path: Path) -> None:
    """Of a repository it names for its attention; what it asks for is passed over."""
    wishes = {"attn_implementation": "some/kernel", "_attn_implementation": "kernels-community/flash-attn"}
    folder = model_folder(tmp_path, **wishes)
    shutil.copy(MINI / "model.safetensors", folder)
    found = assay.load_model(folder)
    assert found.module.config._attn_implementation in ("eager", "sdpa")
    assert found.weight_hash == assay.load_model("mini").weight_hash


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "fp8", "made up"])
def test_a_quantised_checkpoint_is_named(method: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, quantization_config={"quant_method": method, "load_in_8bit": True})
    shutil.copy(MINI / "model.safetensors", folder)
    with pytest.raises(
        UnsupportedModelError, match=r"has quantization_config.*dequantise it \(model\.dequantize"
    ):
        assay.load_model(folder)


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"model": {"type": "BPE"}}', '{"model": 3, "added_tokens": [1]}', "[" * 5000],
)
def test_a_malformed_tokenizer_is_named(content: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    shutil.copy(MINI / "model.safetensors", folder)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(FileFormatError, match="cannot read the tokenizer of"):
        assay.load_model(folder)


def test_a_hub_id_that_looks_like_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("../nowhere", "/nowhere/at/all", "a/b/c/d", "..", "~/x", "a\0b", "file:///etc/passwd", ""):
        with pytest.raises(FileFormatError):
            assay.load_model(name)

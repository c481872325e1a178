"""A pickle that poses as weights, arrays or a circuit is refused, and what it would run is not run."""

import contextlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import assay
from assay.analyses.subsets import CorrectnessData
from assay.circuits import read_eap_ig
from assay.core.errors import FileFormatError, UnsafeFileError, UnsupportedModelError
from assay.models.loading import MINI
from assay.zoo import Zoo


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


WRITERS: dict[str, Callable[[object, Path], object]] = {
    "pickle": lambda content, path: path.write_bytes(pickle.dumps(content)),
    "torch": torch.save,
    "old torch": lambda content, path: torch.save(content, path, _use_new_zipfile_serialization=False),
}


def model_folder(tmp_path: Path, *, weights: bool = False, **config: Any) -> Path:
    """The embedded model's folder, by default without its weights."""
    folder = tmp_path / "model"
    shutil.copytree(MINI, folder)
    if not weights:
        (folder / "model.safetensors").unlink()
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | config))
    return folder


def beside_a_decoy(tmp_path: Path, **config: Any) -> Path:
    folder = model_folder(tmp_path, **config)
    save_file({"weight": torch.zeros(1)}, folder / "decoy.safetensors")
    return folder


Place = tuple[Path, Callable[[], object]]  # where the pickle is put, and who reads it


def in_a_folder(folder: Path, name: str, **options: Any) -> Place:
    return folder / name, lambda: assay.load_model(folder, **options)


def in_a_zoo(tmp_path: Path) -> Place:
    shutil.copytree(Zoo.embedded().path, tmp_path / "zoo")
    zoo = Zoo.open(tmp_path / "zoo")
    return zoo.folder(zoo.keys[0]) / "model.safetensors", lambda: zoo.load(zoo.keys[0])


def alone(read: Callable[[Path], object], name: str) -> Callable[[Path], Place]:
    return lambda tmp_path: (tmp_path / name, lambda: read(tmp_path / name))


PLACES: dict[str, Callable[[Path], Place]] = {
    "weights": lambda at: in_a_folder(model_folder(at), "pytorch_model.bin"),
    "weights renamed": lambda at: in_a_folder(model_folder(at), "model.safetensors"),
    "decoy": lambda at: in_a_folder(beside_a_decoy(at), "pytorch_model.bin"),
    "zoo": in_a_zoo,
    "circuit": alone(assay.load_circuit, "circuit.safetensors"),
    "graph": alone(read_eap_ig, "graph.pt"),
    "allowed": lambda at: in_a_folder(model_folder(at), "pytorch_model.bin", allow_pickle=True),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_pickles_run_nothing_and_are_refused(name: str, writer: str, tmp_path: Path, place: Path) -> None:
    path, read = PLACES[name](tmp_path)
    path.unlink(missing_ok=True)
    WRITERS[writer]({"weight": Payload(place)}, path)
    with pytest.raises(FileFormatError if name == "allowed" else UnsafeFileError):
        read()
    assert not place.exists()


def test_pickles_in_archives(tmp_path: Path, place: Path) -> None:
    path = tmp_path / "data.npz"
    hostile = np.array([Payload(place)], dtype=object)
    np.savez(path, X=hostile, y=hostile, allow_pickle=True)
    with pytest.raises(UnsafeFileError, match="pickle"):
        CorrectnessData.load(path)
    assert not place.exists()


# ---- indices ------------------------------------------------------------------------------------


def index_of(folder: Path, name: str) -> None:
    """An index that says of all weights of the embedded model that they lie in one file."""
    with safe_open(MINI / "model.safetensors", framework="pt") as file:
        named = dict.fromkeys(file.keys(), name)
    index = {"metadata": {"total_size": 1}, "weight_map": named}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_an_index_names_no_pickle_and_nothing_elsewhere(tmp_path: Path) -> None:
    folder = beside_a_decoy(tmp_path)
    torch.save(load_file(MINI / "model.safetensors"), folder / "pytorch_model.bin")
    index_of(folder, "pytorch_model.bin")
    with pytest.raises(UnsafeFileError, match="files elsewhere are not read"):
        assay.load_model(folder)
    usual = assay.load_model("mini").weight_hash
    assert assay.load_model(folder, allow_pickle=True).weight_hash == usual
    (folder / "a").mkdir()
    for path in (tmp_path / "elsewhere.safetensors", folder / "x.safetensors"):
        shutil.copy(MINI / "model.safetensors", path)
    outside = str(tmp_path / "elsewhere.safetensors")
    for name in ("../elsewhere.safetensors", outside, "a/../x.safetensors"):
        index_of(folder, name)
        with pytest.raises(UnsafeFileError, match="files elsewhere are not read"):
            assay.load_model(folder, allow_pickle=True)
    index_of(folder, "x.safetensors")
    assert assay.load_model(folder).weight_hash == usual
    index_of(folder, "absent.safetensors")
    with pytest.raises(FileFormatError, match="absent.safetensors.*all files of its index"):
        assay.load_model(folder)


# ---- remote code --------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["gpt2", "assay_made_up"])
def test_code_beside_a_checkpoint_is_never_run(
    model_type: str, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by itself nor after a question, which transformers asks by default."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question is asked"))
    names = ("Config", "Model", "Tokenizer")
    classes = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    entries: dict[str, Any] = {key: f"hostile.{name}" for key, name in zip(classes, names, strict=True)}
    entries["AutoTokenizer"] = [entries["AutoTokenizer"], None]
    folder = model_folder(tmp_path, weights=True, auto_map=entries, model_type=model_type)
    code = "".join(f"class {name}: pass\n" for name in names)
    (folder / "hostile.py").write_text(f"import os\nos.mkdir({str(place)!r})\n{code}")
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"auto_map": entries}))
    refused = pytest.raises(UnsupportedModelError, match="'assay_made_up'")
    with contextlib.suppress(FileFormatError) if model_type == "gpt2" else refused:
        assay.load_model(folder)  # of GPT-2 the library's own class, if it fits
    assert not place.exists()


def test_a_configuration_names_neither_kernels_nor_weights(tmp_path: Path) -> None:
    wishes = {"attn_implementation": "some/kernel", "_attn_implementation": "kernels-community/flash-attn"}
    model = assay.load_model(model_folder(tmp_path, weights=True, **wishes))
    assert model.module.config._attn_implementation in ("eager", "sdpa")
    for name, wish, message in (
        ("one", {"transformers_weights": "adapter_model.bin"}, "names its own weight files"),
        ("two", {"quantization_config": {"quant_method": "gptq"}}, "has quantization_config.*dequantise it"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises((UnsafeFileError, UnsupportedModelError), match=message):
            assay.load_model(model_folder(tmp_path / name, weights=True, **wish))
    for path in ("../nowhere", "/nowhere/at/all", "a/b/c/d", "..", "~/x", "a\0b", "file:///etc/passwd", ""):
        with pytest.raises(FileFormatError):
            assay.load_model(path)

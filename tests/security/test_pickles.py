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
from assay.analyses.subsets import CorrectnessData, load_published
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


def zoo_model(tmp_path: Path) -> tuple[Zoo, str]:
    shutil.copytree(Zoo.embedded().path, tmp_path / "zoo")
    zoo = Zoo.open(tmp_path / "zoo")
    (zoo.folder(zoo.keys[0]) / "model.safetensors").unlink()
    return zoo, zoo.keys[0]


def in_a_zoo(tmp_path: Path, name: str) -> tuple[Path, Callable[[], object]]:
    zoo, key = zoo_model(tmp_path)
    return zoo.folder(key) / name, lambda: zoo.load(key)


def in_a_folder(folder: Path, name: str, **options: Any) -> tuple[Path, Callable[[], object]]:
    return folder / name, lambda: assay.load_model(folder, **options)


def in_a_table(tmp_path: Path) -> tuple[Path, Callable[[], object]]:
    shelf = Shelf(tmp_path / "table", "0" * 16, {"seed": 0})
    return tmp_path / "table" / "y_drop1.00000000.safetensors", lambda: shelf.read("y_drop1")


def alone(read: Callable[[Path], object], name: str) -> Callable[[Path], tuple[Path, Callable[[], object]]]:
    return lambda tmp_path: (tmp_path / name, lambda: read(tmp_path / name))


TIMM = "vit_tiny_patch16_224"
# Where a pickle is put and who reads it; what is said of it.
PLACES: dict[str, tuple[Callable[[Path], tuple[Path, Callable[[], object]]], str | None]] = {
    "weights": (lambda at: in_a_folder(model_folder(at), "pytorch_model.bin"), "pickled weights"),
    "weights pth": (lambda at: in_a_folder(model_folder(at), "weights.pth"), "pickled weights"),
    "weights renamed": (lambda at: in_a_folder(model_folder(at), "model.safetensors"), "under another name"),
    "decoy": (lambda at: in_a_folder(beside_a_decoy(at), "pytorch_model.bin"), "pickled weights"),
    "decoy of timm": (
        lambda at: in_a_folder(beside_a_decoy(at, architecture=TIMM), "pytorch_model.bin"),
        "pickled weights",
    ),
    "timm": (alone(lambda path: assay.load_model(f"timm:{TIMM}@{path}"), "weights.safetensors"), None),
    "timm without a suffix": (alone(lambda path: assay.load_model(f"timm:{TIMM}@{path}"), "weights"), None),
    "zoo": (lambda at: in_a_zoo(at, "model.safetensors"), "scratch-"),
    "zoo bin": (lambda at: in_a_zoo(at, "pytorch_model.bin"), "scratch-"),
    "training": (
        alone(lambda path: load_weights(torch.nn.Linear(2, 2), path.parent), "model.safetensors"),
        None,
    ),
    "circuit": (alone(assay.load_circuit, "circuit.safetensors"), None),
    "scores": (alone(assay.load_scores, "scores.safetensors"), None),
    "graph": (alone(read_eap_ig, "graph.pt"), "could run code"),
    "table": (in_a_table, None),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_pickles_are_refused_unread(name: str, writer: str, tmp_path: Path, place: Path) -> None:
    lay_out, message = PLACES[name]
    path, read = lay_out(tmp_path)
    WRITERS[writer]({"weight": Payload(place)}, path)
    with pytest.raises(UnsafeFileError, match=message):
        read()
    assert not place.exists()


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_allowed_pickles_still_run_nothing(writer: str, tmp_path: Path, place: Path) -> None:
    path, read = in_a_folder(model_folder(tmp_path), "pytorch_model.bin", allow_pickle=True)
    WRITERS[writer]({"weight": Payload(place)}, path)
    with pytest.raises(FileFormatError):
        read()
    assert not place.exists()


@pytest.mark.parametrize("read", [CorrectnessData.load, Correctness.load, load_published, read_npz])
def test_pickles_in_archives_and_named_like_them(
    read: Callable[[Path], object], tmp_path: Path, place: Path
) -> None:
    path = tmp_path / "data.npz"
    hostile = np.array([Payload(place)], dtype=object)
    known = ("X", "y") if read == CorrectnessData.load else ("images", "ids")
    np.savez(path, **dict.fromkeys(known, hostile), allow_pickle=True)
    with pytest.raises(UnsafeFileError, match="pickle"):
        read(path)
    for key in ("meta_x", "labels"):
        np.savez(path, **{"X": np.eye(4), "y": np.eye(4), key: hostile})
        with pytest.raises(FileFormatError):
            read(path)
    WRITERS["pickle"](Payload(place), path)
    with pytest.raises(UnsafeFileError, match="pickle"):
        read(path)
    assert not place.exists()


# ------------------------------------------------------------------------------------------ indices


def index_of(folder: Path, name: str) -> None:
    """An index that says of all weights of the embedded model that they lie in one file."""
    with safe_open(MINI / "model.safetensors", framework="pt") as file:
        named = dict.fromkeys(file.keys(), name)
    index = {"metadata": {"total_size": 1}, "weight_map": named}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_pickled_weights_that_an_index_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With true weights in them, which are refused for what they are and not for what they hold."""
    cache = tmp_path / "hub" / "models--some--model"
    folder = cache / "snapshots" / ("0" * 40)
    folder.parent.mkdir(parents=True)
    beside_a_decoy(tmp_path).rename(folder)
    torch.save(load_file(MINI / "model.safetensors"), folder / "pytorch_model.bin")
    index_of(folder, "pytorch_model.bin")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for source in (folder, "some/model"):
        with pytest.raises(UnsafeFileError, match="only plain names of safetensors"):
            assay.load_model(source)
    assert assay.load_model(folder, allow_pickle=True).weight_hash == assay.load_model("mini").weight_hash


def test_an_index_names_nothing_elsewhere(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "a").mkdir()
    for path in (tmp_path / "elsewhere.safetensors", folder / "x.safetensors"):
        shutil.copy(MINI / "model.safetensors", path)
    outside = str(tmp_path / "elsewhere.safetensors")
    for name in ("../elsewhere.safetensors", outside, "a/../x.safetensors", "..\\x.safetensors"):
        index_of(folder, name)
        for allowed in (False, True):
            with pytest.raises(UnsafeFileError, match="plain names of safetensors files"):
                assay.load_model(folder, allow_pickle=allowed)
    index_of(folder, "x.safetensors")
    assert assay.load_model(folder).weight_hash == assay.load_model("mini").weight_hash
    index_of(folder, "absent.safetensors")
    with pytest.raises(FileFormatError, match="1 of them do not exist"):
        assay.load_model(folder)
    (folder / "absent.safetensors").write_bytes(pickle.dumps({}))
    with pytest.raises(UnsafeFileError, match="under another name"):
        assay.load_model(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            ("model.safetensors.index.json", content, r"index\.json")
            for content in ("{}", "[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', "{")
        ),
        *(
            ("tokenizer.json", content, "cannot read the tokenizer")
            for content in ("", "[]", '{"model": 3, "added_tokens": [1]}', "[" * 5000)
        ),
    ],
)
def test_a_malformed_file_beside_the_weights_is_named(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path, weights=name == "tokenizer.json")
    (folder / name).write_text(content)
    with pytest.raises(FileFormatError, match=message):
        assay.load_model(folder)


# ------------------------------------------------------------------------------------------ remote code


@pytest.mark.parametrize("model_type", ["gpt2", "assay_made_up"])
def test_code_beside_a_checkpoint_is_never_run(
    model_type: str, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by itself nor after a question, which transformers asks by default."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question is asked"))
    entries = {
        "AutoConfig": "hostile.Config",
        "AutoModelForCausalLM": "hostile.Model",
        "AutoTokenizer": ["hostile.Tokenizer", None],
    }
    folder = model_folder(tmp_path, weights=True, auto_map=entries, model_type=model_type)
    classes = "".join(f"class {name}: pass\n" for name in ("Config", "Model", "Tokenizer"))
    (folder / "hostile.py").write_text(f"import os\nos.mkdir({str(place)!r})\n{classes}")
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"auto_map": entries}))
    with (
        contextlib.suppress(FileFormatError)
        if model_type == "gpt2"
        else pytest.raises(UnsupportedModelError, match="'assay_made_up'")
    ):
        assay.load_model(folder)  # of GPT-2 the library's own class, if it fits
    assert not place.exists()


def test_a_configuration_names_neither_kernels_nor_weights(tmp_path: Path) -> None:
    wishes = {"attn_implementation": "some/kernel", "_attn_implementation": "kernels-community/flash-attn"}
    model = assay.load_model(model_folder(tmp_path, weights=True, **wishes))
    assert model.module.config._attn_implementation in ("eager", "sdpa")
    assert model.weight_hash == assay.load_model("mini").weight_hash
    for name, wish, message in (
        ("one", {"transformers_weights": "adapter_model.bin"}, "names its own weight files"),
        ("two", {"quantization_config": {"quant_method": "gptq"}}, "has quantization_config.*dequantise it"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises((UnsafeFileError, UnsupportedModelError), match=message):
            assay.load_model(model_folder(tmp_path / name, weights=True, **wish))


def test_a_hub_id_that_looks_like_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("../nowhere", "/nowhere/at/all", "a/b/c/d", "..", "~/x", "a\0b", "file:///etc/passwd", ""):
        with pytest.raises(FileFormatError):
            assay.load_model(name)

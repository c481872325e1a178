"""A cache of the Hugging Face Hub whose repositories have the ids of well-known models and random weights."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

import assay


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
# Id -> model type, configuration, revisions.
LANGUAGE: dict[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    # The graph of GPT-2 small, so that its published circuits fit.
    "openai-community/gpt2": (
        "gpt2",
        {"n_embd": 48, "n_layer": 12, "n_head": 12, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0},
        ("main",),
    ),
    "EleutherAI/pythia-70m": ("gpt_neox", SMALL, ("main", "step1000", "step16000", "step143000")),
    "meta-llama/Llama-3.2-1B": ("llama", GROUPED, ("main",)),
    "google/gemma-2-2b": ("gemma2", GROUPED, ("main",)),
}
CLASSES = ("tabby", "goldfish", "daisy")


def fill_cache(folder: Path) -> None:
    """Write every repository, as the hub's client lays them out."""
    tokenizer = assay.load_model("mini").tokenizer
    for name, (model_type, entries, revisions) in LANGUAGE.items():
        for seed, revision in enumerate(revisions):
            torch.manual_seed(seed)
            config = transformers.AutoConfig.for_model(model_type, **entries, vocab_size=len(tokenizer))
            snapshot = _snapshot(folder, name, revision)
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(snapshot)
            tokenizer.save_pretrained(snapshot)
    snapshot = _snapshot(folder, "google/vit-base-patch16-224", "main")
    labels = dict(enumerate(CLASSES))
    vit = transformers.ViTConfig(
        **SMALL, image_size=32, patch_size=8, id2label=labels, label2id={v: k for k, v in labels.items()}
    )
    transformers.ViTForImageClassification(vit).save_pretrained(snapshot)
    (snapshot / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "ViTImageProcessor",
                "size": {"height": 32, "width": 32},
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            }
        )
    )


def _snapshot(folder: Path, name: str, revision: str) -> Path:
    repository = folder / f"models--{name.replace('/', '--')}"
    commit = hashlib.sha1(f"{name}@{revision}".encode()).hexdigest()
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    return snapshot


def draw_photos(folder: Path) -> None:
    """A folder of images per class."""
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")

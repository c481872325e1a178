"""The two golden vision transformers: weights under timm's names, run here as Hugging Face models."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from assay.models import Model, load_model
from assay.tasks import ImageTask


GOLDEN = Path(__file__).parent / "golden" / "generalization"
NAMES = ("vit_edges_a", "vit_edges_prenorm_c")


@cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """Every array of a golden model."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@cache
def facts(name: str) -> dict[str, Any]:
    """Its JSON part."""
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return content


def tensor(name: str, key: str) -> Tensor:
    """One golden array, float64 where it is floating."""
    values = torch.from_numpy(arrays(name)[key].copy())
    return values.double() if values.is_floating_point() else values


# timm's names -> those of ViTForImageClassification; q, k and v are rows of one matrix there.
_RENAMED = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "norm_pre": "vit.embeddings.dropout",
    "norm": "vit.layernorm",
    "head": "classifier",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.o_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def hugging_face_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state under timm's names, renamed."""
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        prefix, stem = "", name
        if name.startswith("blocks."):
            _, layer, stem = name.split(".", 2)
            prefix = f"vit.layers.{layer}."
        stem, _, kind = stem.rpartition(".") if stem.endswith(("weight", "bias")) else (stem, "", "")
        if stem == "attn.qkv":
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                renamed[f"{prefix}attention.{part}_proj.{kind}"] = rows
        else:
            renamed[prefix + _RENAMED[stem] + (f".{kind}" if kind else "")] = value
    return renamed


def module(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The golden network as a ViTForImageClassification."""
    config = facts(name)["config"]
    built = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=config["embed_dim"],
            num_hidden_layers=config["depth"],
            num_attention_heads=config["num_heads"],
            intermediate_size=int(config["embed_dim"] * config["mlp_ratio"]),
            image_size=config["img_size"],
            patch_size=config["patch_size"],
            num_labels=config["num_classes"],
            layer_norm_eps=config["norm_eps"],
        )
    )
    if config["pre_norm"]:
        # The last module before block 0 is this dropout, so a norm in its place is timm's pre-norm.
        built.vit.embeddings.dropout = nn.LayerNorm(config["embed_dim"], eps=config["norm_eps"])
    state = {
        key.removeprefix("state/"): torch.from_numpy(value.copy())
        for key, value in arrays(name).items()
        if key.startswith("state/")
    }
    # CLIP-like models cut patches without a bias; here it is one of zeros.
    state.setdefault("patch_embed.proj.bias", torch.zeros(config["embed_dim"]))
    built.load_state_dict(hugging_face_names(state))
    return built.to(dtype).eval()


def model(name: str, dtype: torch.dtype = torch.float64) -> Model:
    """The golden network behind the library's interface."""
    return load_model(module(name, dtype))


def task(name: str, dtype: torch.dtype = torch.float64) -> ImageTask:
    """Its 12 images with counterparts and labels."""
    found = arrays(name)
    return ImageTask(
        images=torch.from_numpy(found["images"].copy()).to(dtype),
        corrupted=torch.from_numpy(found["images_corrupt"].copy()).to(dtype),
        labels=torch.from_numpy(found["labels"].copy()),
    )

"""Encoders: models of Hugging Face or timm without their heads, of any layout."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from assay.core.errors import FileFormatError
from assay.models.hub import fetch_description, split_revision
from assay.models.hugging_face import encoder_from_pretrained, image_processor, stored_tokenizer
from assay.models.placing import Device, choose_device
from assay.models.timm_loading import from_timm, is_timm_directory, short_name
from assay.models.timm_reading import preprocessing


class EncoderParts(NamedTuple):
    """What was loaded.

    Attributes:
        module: In evaluation mode, float32, on its device.
        name: As results call it.
        preprocessing: What is stored of how images are prepared; None if nothing is.
        tokenizer: None for a model that does not read texts.
    """

    module: nn.Module
    name: str
    preprocessing: dict[str, Any] | None
    tokenizer: Any


def load_encoder(
    source: str | Path, *, device: Device = "auto", token: str | None = None, allow_pickle: bool = False
) -> EncoderParts:
    """Load the model that a user named; there is no default, and nothing else is fetched.

    Args:
        source: A directory of `save_pretrained` or of timm, a hub id (`OWNER/NAME` or `OWNER/NAME@REVISION`),
            `timm:NAME`, or `timm:NAME@checkpoint.safetensors`.
        device: Where the weights go. `"auto"`: the first accelerator, else the CPU.
        token: Access token of the hub. Default: `HF_TOKEN`, or the login of `hf auth login`.
        allow_pickle: Accept checkpoints that are pickles, which can run any code when opened.

    Raises:
        FileFormatError: If the files cannot be read as such a model, or weights are missing.
        HubError: If a repository is missing, gated or out of reach.
        UnsafeFileError: If the weights are pickles and `allow_pickle` is false.
        MissingExtraError: If the model needs timm and it is not installed.
    """
    text, place = str(source), choose_device(device)
    path, name, repository = Path(text), Path(text).name, None
    named = text.startswith("timm:")
    if not named and not path.is_dir():
        text, revision = split_revision(text, None)
        repository = fetch_description(text, revision=revision, token=token)
        path, name = repository.folder, text
    if not named and not (path / "config.json").is_file():
        raise FileFormatError(f"{source} has no config.json; give a directory written by save_pretrained")
    if repository is not None:
        repository.fetch_weights(allow_pickle=allow_pickle)
    if named or is_timm_directory(path):
        module = from_timm(text if named else str(path), allow_pickle=allow_pickle)
        sized = getattr(getattr(module, "patch_embed", None), "img_size", None) is not None
        described = preprocessing(module) if sized else dict(getattr(module, "pretrained_cfg", None) or {})
        tokenizer = None
        name = short_name(text) if named else name
    else:
        module = encoder_from_pretrained(path, allow_pickle=allow_pickle)
        described, tokenizer = image_processor(path), stored_tokenizer(path)
    return EncoderParts(module.to(place, torch.float32).eval(), name, described, tokenizer)

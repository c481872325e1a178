"""Model directories: what training writes so that `load_model` and other libraries read it."""

import copy
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from assay.core.errors import FileFormatError, OutputError, UnsupportedModelError
from assay.core.untrusted import refuse_pickle
from assay.models.hugging_face import without_progress_bars
from assay.tasks import EvalTransform
from assay.tasks.image_transform import RESAMPLE


def save_model(
    module: nn.Module, folder: str | Path, *, transform: EvalTransform, classes: Sequence[str] | None = None
) -> Path:
    """Write an image classifier, how it wants its images, and the names of its classes.

    Args:
        module: A Hugging Face model (written by `save_pretrained`) or a timm one (in the layout of its
            `save_for_hf_hub`).
        folder: Directory to make; an older one of that name is replaced once the new one is complete.
        transform: Its evaluation transform.
        classes: Names of the classes, label 0 first; None writes none.

    Raises:
        UnsupportedModelError: If the module is of neither library.
        OutputError: If the directory cannot be written.
    """
    from transformers import PreTrainedModel

    if isinstance(module, PreTrainedModel):

        def fill(place: Path) -> None:
            if classes is not None:
                module.config.id2label = dict(enumerate(classes))
                module.config.label2id = {name: number for number, name in enumerate(classes)}
            with without_progress_bars():
                module.save_pretrained(place)
            content = json.dumps(_processor(transform), indent=1)
            (place / "preprocessor_config.json").write_text(content, encoding="utf-8")

    elif type(module).__module__.partition(".")[0] == "timm":

        def fill(place: Path) -> None:
            from timm.models import save_for_hf

            about: dict[str, Any] = {"pretrained_cfg": _timm_config(transform)}
            if classes is not None:
                about["label_names"] = list(classes)
            save_for_hf(module, str(place), model_config=about, safe_serialization=True)

    else:
        raise UnsupportedModelError(
            f"{type(module).__name__} belongs to neither transformers nor timm; wrap or convert it to "
            "one of them"
        )
    return write_folder(Path(folder), fill)


def load_weights(module: nn.Module, folder: Path) -> nn.Module:
    """A copy of a module on the CPU, in evaluation mode, with the weights that `save_model` wrote.

    Raises:
        FileFormatError: If the directory does not hold weights for this module.
    """
    from transformers import PreTrainedModel

    loaded: nn.Module
    try:
        if isinstance(module, PreTrainedModel):
            with without_progress_bars():
                loaded = type(module).from_pretrained(
                    folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
                )
        else:
            loaded = copy.deepcopy(module).cpu()
            refuse_pickle(folder / "model.safetensors")
            loaded.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise FileFormatError(f"{folder} does not hold weights of this model: {error}") from error
    return loaded.eval()


def write_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Make a directory under a temporary name beside its place, then move it there.

    Raises:
        OutputError: If it cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error}; choose a writable directory") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _processor(transform: EvalTransform) -> dict[str, Any]:
    """What `EvalTransform.from_config` reads back."""
    config: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": transform.resize is not None,
        "do_center_crop": transform.crop is not None,
        "do_rescale": True,
        "do_normalize": True,
        "resample": int(RESAMPLE[transform.resample]),
        "rescale_factor": transform.rescale,
        "image_mean": list(transform.mean),
        "image_std": list(transform.std),
    }
    if isinstance(transform.resize, int):
        config["size"] = {"shortest_edge": transform.resize}
    elif transform.resize is not None:
        config["size"] = dict(zip(("height", "width"), transform.resize, strict=True))
    if transform.crop is not None:
        config["crop_size"] = dict(zip(("height", "width"), transform.crop, strict=True))
    return config


def _timm_config(transform: EvalTransform) -> dict[str, Any]:
    """What `EvalTransform.from_timm` reads back; timm has one crop share for both sides."""
    share, mode = 1.0, "squash"
    if transform.crop is not None and transform.resize is not None:
        whole = transform.resize if isinstance(transform.resize, int) else transform.resize[0]
        share, mode = transform.crop[0] / whole, "center" if isinstance(transform.resize, int) else "squash"
    return {
        "mean": list(transform.mean),
        "std": list(transform.std),
        "interpolation": transform.resample,
        "crop_pct": share,
        "crop_mode": mode,
    }

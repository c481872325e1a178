"""What a trained module says of images, and what training checks before it starts."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from assay.core.errors import InputError, NonFiniteError, ShapeError, UnsupportedModelError
from assay.tasks import EvalTransform, ImageSet, ImageStream
from assay.tasks.image_decoding import Decoding, Pictures
from assay.zoo.feeding import Images, labels_of, scored_batches, size_of
from assay.zoo.recipe import Recipe


EVALUATION_BATCH = 256


# Where the two libraries keep what turns features into logits.
_HEADS = ("classifier", "cls_classifier", "distillation_classifier", "head", "head_dist")


def score_of(
    module: nn.Module,
    images: Images,
    transform: EvalTransform,
    *,
    score: str = "accuracy",
    device: str | None = None,
) -> tuple[float, float]:
    """Score and mean cross entropy (nats) of a classifier on labelled images.

    Args:
        module: In evaluation mode.
        images: Labelled; in memory, of the size that the model reads.
        transform: Normalisation of the images, and geometry of those of a stream.
        score: `accuracy`, or `macro-f1`: the mean F1 over the classes that occur, as in WILDS.
        device: Where the module is. Default: the CPU.
    """
    from sklearn.metrics import f1_score

    labels = labels_of(images)
    if labels is None:
        raise InputError(f"the images of {images.domain!r} have no labels, but a score needs them")
    logits = logits_of(module, images, transform, device=device)
    loss = float(cross_entropy(logits.double(), torch.from_numpy(labels)))
    if not np.isfinite(loss):
        raise NonFiniteError(f"logits on {images.domain!r} are NaN or infinite; the model has diverged")
    predicted = logits.argmax(dim=1).numpy()
    if score == "accuracy":
        return float((predicted == labels).mean()), loss
    present = np.unique(labels)
    return float(f1_score(labels, predicted, labels=present, average="macro", zero_division=0)), loss


def logits_of(
    module: nn.Module, images: Images, transform: EvalTransform, *, device: str | None = None
) -> Float[Tensor, "n n_classes"]:
    """Logits of every image, float32 on the CPU, from a native module in evaluation mode."""
    dtype = next((each.dtype for each in module.parameters()), torch.float32)
    with torch.inference_mode():
        batches = [
            module_logits(module, batch.to(device or "cpu", dtype)).float().cpu()
            for batch in scored_batches(images, transform, EVALUATION_BATCH)
        ]
    return torch.cat(batches)


def head_names(module: nn.Module) -> tuple[str, ...]:
    """Names of the submodules that turn features into logits.

    Raises:
        UnsupportedModelError: If there is none under a name that transformers or timm use.
    """
    names = tuple(
        name
        for name, child in module.named_children()
        if name in _HEADS and any(True for _ in child.parameters())
    )
    if not names:
        raise UnsupportedModelError(
            f"{type(module).__name__} has none of the heads {', '.join(_HEADS)}; build it with one output "
            "per class"
        )
    return names


def weights_hash(module: nn.Module) -> str:
    """SHA-256 over names, types and bytes of all parameters and buffers, 16 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def images_hash(images: Images) -> str:
    """SHA-256 over pixels, labels and ids of a set, or what identifies a stream's, 16 hex digits."""
    if isinstance(images, ImageStream):
        return images.source_hash[:16]
    digest = hashlib.sha256()
    for array in (images.pixels, images.labels, images.ids):
        if array is not None:
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def module_logits(module: nn.Module, images: Tensor) -> Tensor:
    """Logits of a module, whatever it wraps them in."""
    output = module(images)
    return output if isinstance(output, Tensor) else output.logits


def check_training(
    module: nn.Module,
    sets: Mapping[str, Images],
    recipe: Recipe,
    checkpoints: Sequence[int],
    save_every: int | None,
) -> None:
    """Refuse modules, images and recipes that cannot be trained together."""
    training = sets["training"]
    for name, images in sets.items():
        if images.labels is None:
            raise InputError(f"the {name} images ({images.domain!r}) have no labels, but training needs them")
        if images.classes != training.classes:
            raise InputError(
                f"the {name} images have the classes {images.classes}, but the training images "
                f"{training.classes}; read both with the same classes="
            )
        if size_of(images) != size_of(training):
            raise InputError(
                f"the {name} images have {size_of(images)} pixels, but the training images "
                f"{size_of(training)}; read both with one transform"
            )
    if shared := _shared(training, sets["validation"]):
        raise InputError(
            f"{len(shared)} validation images are also in the training set, e.g. number {shared[0]}; give "
            "disjoint sets"
        )
    size = stated_size(module)
    read = size_of(training)
    if size is not None and size != read:
        raise ShapeError(
            f"the model reads images of {size[0]} x {size[1]}, but these are {read[0]} x {read[1]}; read "
            "them with an EvalTransform of that size"
        )
    for step in checkpoints:
        if not 0 <= step <= recipe.steps:
            raise InputError(f"a checkpoint after step {step} of {recipe.steps} does not exist")
    if save_every is not None and save_every < 1:
        raise InputError(f"save_every is {save_every}; give at least 1")
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise NonFiniteError(f"{name} holds NaN or infinite values before the first step")
    n_outputs = _n_outputs(module)
    n_classes = (
        int(max(int(images.labels.max()) for images in sets.values() if images.labels is not None)) + 1
        if training.classes is None
        else len(training.classes)
    )
    if n_outputs < n_classes or (training.classes is not None and n_outputs != n_classes):
        raise InputError(
            f"the model has {n_outputs} outputs, but the data {n_classes} classes; replace its head with "
            "`initial_module`"
        )


def _shared(training: Images, validation: Images) -> list[int]:
    """Numbers of the images that both hold: of one number, or one name in their source, and one picture."""
    if isinstance(training, ImageSet) and isinstance(validation, ImageSet):
        _, mine, theirs = np.intersect1d(training.ids, validation.ids, return_indices=True)
        pairs = zip(mine, theirs, strict=True)
        same = [j for i, j in pairs if np.array_equal(training.pixels[i], validation.pixels[j])]
    elif isinstance(training, ImageStream) and isinstance(validation, ImageStream):
        rows = {training.pictures.name(row): row for row in training.rows.tolist()}
        named = [
            (place, row, validation.pictures.name(row)) for place, row in enumerate(validation.rows.tolist())
        ]
        same = _equal(
            training.pictures,
            validation.pictures,
            [(place, rows[name], row) for place, row, name in named if name in rows],
        )
    else:
        return []
    return [int(validation.ids[place]) for place in same]


def _equal(first: Pictures, second: Pictures, pairs: Sequence[tuple[int, int, int]]) -> list[int]:
    """Of (place, row of the first, row of the second), of one name: the places where it is one picture.

    Two folders may use the same names for different files.
    """
    if first is second:
        return [place for place, row, other in pairs if row == other]
    alike = [each for each in pairs if [*first.marks([each[1]])] == [*second.marks([each[2]])]]
    decoding = Decoding(transform=None)
    mine = decoding.pieces(first, [[row] for _, row, _ in alike])
    theirs = decoding.pieces(second, [[other] for _, _, other in alike])
    return [
        place
        for (place, _, _), one, two in zip(alike, mine, theirs, strict=True)
        if one.pixels is not None and two.pixels is not None and torch.equal(one.pixels, two.pixels)
    ]


def _n_outputs(module: nn.Module) -> int:
    head = module.get_submodule(head_names(module)[0])
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise UnsupportedModelError(f"the head of {type(module).__name__} is not a linear layer")
    return layers[-1].out_features


def stated_size(module: nn.Module) -> tuple[int, int] | None:
    """Height and width that a model is built for, where it declares them."""
    for name in ("config.image_size", "patch_embed.img_size"):
        size: Any = module
        for part in name.split("."):
            size = getattr(size, part, None)
        if size is not None:
            return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return None

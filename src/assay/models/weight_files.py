"""What is checked of the files of a checkpoint before a model is made of them."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from assay.core.errors import (
    FileFormatError,
    UnsafeFileError,
)
from assay.core.untrusted import MALFORMED, printable, read_object, refuse_pickle
from assay.models import families  # noqa: F401 - its modules register themselves


# Whole numbers of a configuration that are not dimensions: ids, limits of positions and texts, and the like.
_NO_DIMENSION = re.compile(
    r"(token|words)_ids?$|tokens$|_id$|^max_|_max_|theta|rope|rotary|length|window|label2id"
)

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(directory: Path, *, timm: bool, allow_pickle: bool) -> list[Path]:
    """The files that weights are read from: `model.safetensors`, or what its index names.

    Of other files in the directory none is read, so none of them counts.

    Raises:
        UnsafeFileError: If there are only pickles, or the index names one, or a file elsewhere, and
            `allow_pickle` is false; a file elsewhere is always refused.
        FileFormatError: If there are no weights.
    """
    index = directory / INDEX
    if (directory / WEIGHTS).is_file():
        files = [directory / WEIGHTS]
    elif not timm and index.is_file():
        files = _shards(index, allow_pickle=allow_pickle)
    else:
        files = _pickles(directory, allow_pickle=allow_pickle)
    for each in files:
        if each.suffix == ".safetensors":
            refuse_pickle(each)
    return files


def shard_names(index: Path) -> list[str]:
    """Names of the files of an index, each once."""
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(each, str) for each in named.values()):
        raise FileFormatError(f"{index} lacks the table 'weight_map' from weights to file names")
    return sorted(set(named.values()))


def _shards(index: Path, *, allow_pickle: bool) -> list[Path]:
    """The files of an index, all of which must be there."""
    names = shard_names(index)
    for name in names:
        plain = Path(name).name == name and not set(name) & set("/\\\0")
        if not plain or not (allow_pickle or name.endswith(".safetensors")):
            raise UnsafeFileError(
                f"{index} names {name[:200]!r}; only plain names of safetensors files beside it are read"
                + (", or pass allow_pickle=True if you trust their origin" if plain else "")
            )
    absent = [name for name in names if not (index.parent / name).is_file()]
    if absent:
        raise FileFormatError(
            f"{index} names {len(names)} files of weights, but {len(absent)} of them do not exist beside it: "
            f"{', '.join(absent[:5])}{', ...' if len(absent) > 5 else ''}; fetch or copy them again"
        )
    return [index.parent / name for name in names]


def _pickles(directory: Path, *, allow_pickle: bool) -> list[Path]:
    """Weights of a directory without safetensors, if they are allowed."""
    pickles = sorted(file for pattern in ("*.bin", "*.pt", "*.pth") for file in directory.glob(pattern))
    if not pickles:
        raise FileFormatError(f"{directory} has no weights; expected {WEIGHTS} beside config.json")
    if not allow_pickle:
        raise UnsafeFileError(
            f"{directory} has only pickled weights ({', '.join(each.name for each in pickles)}), not "
            f"{WEIGHTS}. Opening a pickle can run any code; convert them to safetensors, or pass "
            "allow_pickle=True if you trust their origin"
        )
    return pickles


def stored_dtype(files: Sequence[Path]) -> torch.dtype | None:
    """The number type that most weights of safetensors have; None of other files and other types."""
    from safetensors import safe_open

    counts: Counter[str] = Counter()
    for each in files:
        if each.suffix != ".safetensors":
            return None
        with safe_open(each, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                part = file.get_slice(name)
                counts[part.get_dtype()] += math.prod(part.get_shape())
    return _DTYPES.get(counts.most_common(1)[0][0]) if counts else None


def check_sizes(config: Path, files: Sequence[Path], *, timm: bool = False) -> list[tuple[int, ...]] | None:
    """Refuse a configuration of a far larger model than the weights are, before anything is built.

    Every parameter is in the checkpoint, or tied to one that is, so no dimension of one is larger than all
    of them together. What is not a dimension, such as an id of a token, is left out by its name.

    Returns:
        Shapes of the weights; None where they are pickles, which are not looked into.
    """
    from safetensors import safe_open

    shapes: list[tuple[int, ...]] = []
    pickled = any(each.suffix != ".safetensors" for each in files)
    for each in () if pickled else files:
        try:
            with safe_open(each, framework="pt") as file:
                shapes += [tuple(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118 - not a dict
        except (SafetensorError, OSError, *MALFORMED) as error:
            if not timm:
                return None  # transformers reads the configuration first, and says what is wrong with them
            raise FileFormatError(f"cannot read {each}: {error}") from error
    # No number of a pickle takes less than a byte, and no tensor less than that.
    size = sum(each.stat().st_size for each in files)
    tensors = size if pickled else len(shapes)
    elements = size if pickled else sum(map(math.prod, shapes))
    check_content(read_object(config), config, tensors, elements)
    return None if pickled else shapes


def check_content(content: Mapping[str, Any], config: Path, tensors: int, elements: int) -> None:
    """Refuse the content of a configuration of a far larger model than the tensors of some weights."""
    arguments = content.get("model_args")
    for name, least in _least_sizes({**content, **(arguments if isinstance(arguments, dict) else {})}):
        if least > (tensors if name == "layers" else elements):
            raise _too_large(config, f"at least {least:,} {name}", tensors, elements)
    for key, value in _whole_numbers(content):
        if value > elements:
            raise _too_large(config, f"{key} = {printable(str(value)[:40])}", tensors, elements)


def _too_large(config: Path, what: str, tensors: int, elements: int) -> FileFormatError:
    return FileFormatError(
        f"{config} describes {what}, but the weights are {tensors:,} tensors of {elements:,} numbers in "
        "total; the two do not belong together"
    )


def _whole_numbers(content: object, key: str = "") -> Iterator[tuple[str, int]]:
    """Whole numbers of a configuration that may be dimensions or counts, with their names."""
    if isinstance(content, dict):
        for name, each in content.items():
            if not _NO_DIMENSION.search(name):
                yield from _whole_numbers(each, name)
    elif isinstance(content, list):
        for each in content:
            yield from _whole_numbers(each, key)
    elif type(content) is int:
        yield key, content


def _least_sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What any model of a configuration has at least: layers, and numbers in one kind of weight."""

    def size(*names: str, default: int = 1) -> int:
        return next((config[name] for name in names if type(config.get(name)) is int), default)

    layers = size("num_hidden_layers", "n_layer", "depth")
    width = size("hidden_size", "n_embd", "embed_dim")
    patch = max(1, size("patch_size"))
    yield "layers", layers
    yield "numbers in its layers", layers * width * max(width, size("intermediate_size", "n_inner"))
    yield "numbers in its embedding", width * size("vocab_size")
    yield (
        "numbers in its positions",
        width * size("n_positions", default=(size("image_size", "img_size") // patch) ** 2),
    )
    yield "numbers in its patches", width * patch**2 * size("num_channels")
    yield "numbers in its head", width * size("num_labels", "num_classes")


def check_shapes(build: Callable[[], nn.Module], shapes: Sequence[tuple[int, ...]], config: Path) -> None:
    """Refuse a configuration whose parameters the weights do not have, if those are larger than the weights.

    Whoever loads the weights names smaller ones that are missing or of another shape. The model is built
    without memory for its numbers (PyTorch's device `meta`).
    """
    with torch.device("meta"):
        module = build()
    held = set(shapes)
    named = module.named_parameters()
    absent = [(each.numel(), name) for name, each in named if tuple(each.shape) not in held]
    if sum(size for size, _ in absent) > (elements := sum(map(math.prod, shapes))):
        raise FileFormatError(
            f"{config} describes {max(absent)[1]} of {max(absent)[0]:,} numbers, but none of the "
            f"{len(shapes):,} weight tensors ({elements:,} numbers in total) has that shape; the two do not "
            "belong together"
        )

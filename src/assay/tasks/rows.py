"""Row numbers: samples of them, and data sets that are loaded already."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from assay.core.errors import InputError
from assay.core.random import stream


def draw_rows(total: int, n: int | None, *, seed: int, what: str = "images") -> Int64[np.ndarray, " k"]:
    """`n` of `total` row numbers without replacement, ascending; all of them if `n` is None or not smaller.

    The stream is `images/sample` of the seed, or that of another `what`.
    """
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the {what}")
    if n is None or n >= total:
        return np.arange(total)
    return np.sort(stream(seed, f"{what}/sample").choice(total, n, replace=False))


def chosen_rows(indices: Any, total: int) -> Int[Tensor, " k"]:
    """Row numbers of a task of `total` rows, for `subset`.

    Raises:
        InputError: If there is none, or one is out of range.
    """
    rows = torch.as_tensor(indices)
    if rows.ndim != 1 or len(rows) == 0 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise InputError(
            f"subset has {tuple(rows.shape)} of {rows.dtype}; expected a list of at least one row number"
        )
    if int(rows.min()) < 0 or int(rows.max()) >= total:
        raise InputError(
            f"subset names rows {int(rows.min())} to {int(rows.max())}, but there are 0 to {total - 1}"
        )
    return rows.long()


def by_size(value: str) -> tuple[int, str]:
    """Sorts numbers by size, and before words."""
    return (int(value), "") if value.isdecimal() else (2**63, value)


# ---- data sets that are loaded already ------------------------------------------------------------


def check_loaded(dataset: Any) -> Any:
    """The data set, if its rows have numbers.

    Raises:
        InputError: For several splits, a stream, anything else, and for no rows at all.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping):
        raise InputError(
            f"the data set is a {kind} of the splits {', '.join(map(str, dataset))}; give one, e.g. "
            f"dataset[{next(iter(dataset), '')!r}]"
        )
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(
            f"the data set is a {kind}, whose rows have no numbers; expected a map-style data set (of "
            "PyTorch, or datasets.Dataset). Take a part of a stream: "
            "datasets.Dataset.from_list(list(stream.take(1000)))"
        )
    if len(dataset) == 0:
        raise InputError(f"the data set ({kind}) has no rows; give one that has some")
    return dataset


def name_of(dataset: object) -> tuple[str, dict[str, str]]:
    """What a data set is called, and its split, where it names one."""
    info = getattr(dataset, "info", None)
    name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
    split = getattr(dataset, "split", None)
    return str(name or type(dataset).__name__), {} if split is None else {"split": str(split)}

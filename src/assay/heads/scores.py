"""One number per attention head, with what its sign means and how it came to be."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from assay.errors import DegenerateDataWarning, InputError, ShapeError
from assay.measurement import plain


if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadScores:
    """A signed number for each head of a model.

    Attributes:
        name: What was computed, e.g. `direct-attribution`.
        n_layers: Layers of the model.
        n_heads: Query heads per layer.
        values: `[H]`, H = n_layers * n_heads, index layer * n_heads + head; NaN where undefined. For scores
            per example their mean over the examples that are defined.
        per_example: `[P, H]`; NaN in the rows of excluded examples. None for scores of weights.
        sign: What a positive value means.
        unit: `logits`, `nats`, ...
        reason: Code of why values are undefined, else None.
        warnings: Codes of what makes the numbers less trustworthy than they look.
        details: Further facts, JSON values or arrays.
        provenance: How it came to be.

    Raises:
        ShapeError: If a table does not have one entry per head.
    """

    name: str
    n_layers: int
    n_heads: int
    values: Float64[np.ndarray, " H"]
    per_example: Float64[np.ndarray, "P H"] | None = None
    sign: str = ""
    unit: str = ""
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = self.n_layers * self.n_heads
        tables = {"values": self.values.shape}
        if self.per_example is not None:
            tables["per_example"] = self.per_example.shape[1:]
        for name, shape in tables.items():
            if shape != (count,):
                raise ShapeError(
                    f"{name} of {self.name!r} has {shape} entries; {self.n_layers} layers of "
                    f"{self.n_heads} heads need {count}"
                )

    def __repr__(self) -> str:
        examples = "" if self.per_example is None else f", {len(self.per_example)} examples"
        return f"HeadScores({self.name!r}, {self.n_layers} x {self.n_heads} heads{examples})"

    def __getitem__(self, head: tuple[int, int]) -> float:
        layer, index = head
        if not (0 <= layer < self.n_layers and 0 <= index < self.n_heads):
            raise InputError(
                f"head ({layer}, {index}) is out of range: there are {self.n_layers} layers of "
                f"{self.n_heads} heads, counted from 0"
            )
        return float(self.values[layer * self.n_heads + index])

    @property
    def table(self) -> Float64[np.ndarray, "n_layers n_heads"]:
        """The values by layer and head."""
        return self.values.reshape(self.n_layers, self.n_heads)

    @property
    def n_excluded(self) -> int:
        """Examples whose scores are undefined."""
        return 0 if self.per_example is None else int((~np.isfinite(self.per_example).all(axis=1)).sum())

    def top(self, k: int, *, magnitude: bool = False) -> tuple[tuple[int, int], ...]:
        """The k heads of largest score, best first; ties go to the lower layer, then the lower head.

        Args:
            k: 0 .. H.
            magnitude: Rank by |score| instead.

        Raises:
            InputError: For a k outside 0 .. H.
        """
        if not 0 <= k <= len(self.values):
            raise InputError(f"k is {k}; {self.name!r} has {len(self.values)} heads to choose from")
        order = ranking(np.abs(self.values) if magnitude else self.values)[:k]
        return tuple((int(flat) // self.n_heads, int(flat) % self.n_heads) for flat in order)

    def to_frame(self) -> "pd.DataFrame":
        """One row per head: layer, head, value."""
        import pandas as pd

        layer, head = np.divmod(np.arange(len(self.values)), self.n_heads)
        return pd.DataFrame({"layer": layer, "head": head, "value": self.values})

    def to_dict(self) -> dict[str, Any]:
        """Finite JSON without the per-example table; undefined numbers are null."""
        left_out = ("per_example",)
        record: dict[str, Any] = plain({name: v for name, v in vars(self).items() if name not in left_out})
        return record


def ranking(values: Float64[np.ndarray, " H"]) -> Int64[np.ndarray, " H"]:
    """Indices by falling value, ties by rising index; NaN ranks last, with a warning."""
    undefined = np.isnan(values)
    if undefined.any():
        warnings.warn(
            f"nan_scores: {int(undefined.sum())} of {len(values)} heads have no score and rank last",
            DegenerateDataWarning,
            stacklevel=3,
        )
    return np.argsort(-values, kind="stable")


def mean_over_examples(per_example: Float64[np.ndarray, "P H"]) -> Float64[np.ndarray, " H"]:
    """Mean over the rows that are finite throughout, independent of their order; NaN if there is none."""
    kept = per_example[np.isfinite(per_example).all(axis=1)]
    if len(kept) == 0:
        return np.full(per_example.shape[1], np.nan)
    return np.array([math.fsum(column) / len(kept) for column in kept.T])


def member_flags(
    members: "Bool[np.ndarray, ' H'] | tuple[tuple[int, int], ...]", n_layers: int, n_heads: int
) -> Bool[np.ndarray, " H"]:
    """A set of heads as one flag per head."""
    if isinstance(members, np.ndarray):
        if members.shape != (n_layers * n_heads,):
            raise ShapeError(f"members has shape {members.shape}; expected ({n_layers * n_heads},)")
        return members
    flags = np.zeros(n_layers * n_heads, dtype=bool)
    for layer, head in members:
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise InputError(
                f"head ({layer}, {head}) is out of range: there are {n_layers} layers of {n_heads} heads"
            )
        flags[layer * n_heads + head] = True
    return flags

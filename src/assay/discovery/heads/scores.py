"""One number per attention head, with what its sign means and how it came to be."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from assay.circuits.files import read_arrays, write_arrays
from assay.circuits.heads import check_heads
from assay.core.errors import DegenerateDataWarning, InputError, ShapeError
from assay.core.record import HIDDEN, Plotted, Record, library_version, plain
from assay.models import Model
from assay.page.draw import Matrix, plot_matrix
from assay.tasks import Task


if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_KIND = "head scores"
_DETAIL = "details."  # prefix of arrays among the details
_FACTS = ("name", "sign", "unit", "reason", "warnings", "provenance")


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadScores(Plotted, Record):
    """A signed number for each head of a model.

    Attributes:
        name: What was computed, e.g. `direct-attribution`.
        values: `[n_layers, n_heads]`; NaN where undefined. For scores per example their mean over the
            examples that are defined.
        per_example: `[P, n_layers, n_heads]`; NaN in the rows of excluded examples. None for scores of
            weights.
        sign: What a positive value means.
        unit: `logits`, `nats`, ...
        reason: Code of why values are undefined, else None.
        warnings: Codes of what makes the numbers less trustworthy than they look.
        details: Further facts, JSON values or arrays.
        provenance: How it came to be.

    Raises:
        ShapeError: If a table is not one number per layer and head.
    """

    name: str
    values: Float64[np.ndarray, "n_layers n_heads"]
    per_example: Float64[np.ndarray, "P n_layers n_heads"] | None = field(default=None, metadata=HIDDEN)
    sign: str = ""
    unit: str = ""
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        examples = self.values[None] if self.per_example is None else self.per_example
        if self.values.ndim != 2 or examples.shape[1:] != self.values.shape:
            raise ShapeError(
                f"{self.name!r} has values {self.values.shape} and per_example {examples.shape}; expected "
                "[n_layers, n_heads] and [P, n_layers, n_heads], see HeadScores.from_flat for rows of heads"
            )

    @classmethod
    def from_flat(
        cls,
        name: str,
        n_heads: int,
        values: Float64[np.ndarray, " H"] | None = None,
        *,
        per_example: Float64[np.ndarray, "P H"] | None = None,
        **facts: Any,
    ) -> "HeadScores":
        """Scores from heads in one row, head j of layer l at l * n_heads + j.

        Args:
            name: What was computed.
            n_heads: Heads per layer.
            values: `[H]`; default: the means of `per_example`.
            per_example: `[P, H]`.
            facts: The other attributes.

        Raises:
            ValueError: If H is not a number of whole layers.
        """
        by_layer = None
        if per_example is not None:
            values = mean_over_examples(per_example) if values is None else values
            by_layer = per_example.reshape(len(per_example), per_example.shape[1] // n_heads, n_heads)
        assert values is not None, f"{name} has no numbers"
        return cls(name=name, values=values.reshape(-1, n_heads), per_example=by_layer, **facts)

    def __repr__(self) -> str:
        examples = "" if self.per_example is None else f", {len(self.per_example)} examples"
        return f"HeadScores({self.name!r}, {self.n_layers} x {self.n_heads} heads{examples})"

    def __getitem__(self, head: tuple[int, int]) -> float:
        return float(self.values[head])

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return int(self.values.shape[0])

    @property
    def n_heads(self) -> int:
        """Query heads per layer."""
        return int(self.values.shape[1])

    @property
    def flat(self) -> Float64[np.ndarray, " H"]:
        """The values in one row, layer by layer."""
        return self.values.reshape(-1)

    @property
    def flat_examples(self) -> Float64[np.ndarray, "P H"] | None:
        """The scores per example, heads in one row."""
        examples = self.per_example
        return None if examples is None else examples.reshape(len(examples), self.values.size)

    @property
    def n_excluded(self) -> int:
        """Examples whose scores are undefined."""
        table = self.flat_examples
        return 0 if table is None else int((~defined_examples(table)).sum())

    def top(self, k: int, *, magnitude: bool = False) -> tuple[tuple[int, int], ...]:
        """The k heads of largest score, best first: of a score with a sign, those that help most.

        Args:
            k: 0 .. H. Ties go to the lower layer, then the lower head.
            magnitude: Rank by |score| instead: heads that work against the margin rank among the others.

        Raises:
            InputError: For a k outside 0 .. H.
        """
        if not 0 <= k <= self.values.size:
            raise InputError(f"k is {k}, but {self.name!r} has {self.values.size} heads to choose from")
        order = ranking(np.abs(self.flat) if magnitude else self.flat)[:k]
        return tuple((int(flat) // self.n_heads, int(flat) % self.n_heads) for flat in order)

    def to_frame(self) -> "pd.DataFrame":
        """One row per head: layer, head, value."""
        import pandas as pd

        layer, head = np.divmod(np.arange(self.values.size), self.n_heads)
        return pd.DataFrame({"layer": layer, "head": head, "value": self.flat})

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the score of each head as a cell: layers to the right, heads downwards."""
        matrix = Matrix(
            rows=tuple(f"head {head}" for head in range(self.n_heads)),
            columns=tuple(f"layer {layer}" for layer in range(self.n_layers)),
            values=self.values.T,
            row_title="head",
            column_title=f"layer: {self.name}" + (f", {self.unit}" if self.unit else ""),
        )
        return plot_matrix(matrix, ax)

    def save(self, path: str | Path) -> Path:
        """Write everything to a safetensors file; an existing file is replaced only once it is complete.

        Raises:
            OutputError: If the file cannot be written.
        """
        entries: dict[str, Any] = {"values": self.values, "per_example": self.per_example}
        entries |= {f"{_DETAIL}{name}": value for name, value in self.details.items()}
        arrays = {name: value for name, value in entries.items() if isinstance(value, np.ndarray)}
        kept = {name: value for name, value in self.details.items() if f"{_DETAIL}{name}" not in arrays}
        metadata = {name: plain(getattr(self, name)) for name in _FACTS} | {"details": plain(kept)}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        return write_arrays(Path(path), tensors, {"kind": _KIND, **metadata})


def load_head_scores(path: str | Path) -> HeadScores:
    """Read scores written by `HeadScores.save`; in `details`, lists stand where tuples were.

    Raises:
        FileFormatError: If the file is truncated, tampered with, of another kind or too new.
    """
    tensors, metadata = read_arrays(Path(path), _KIND)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    details = metadata["details"] | {
        name.removeprefix(_DETAIL): array for name, array in arrays.items() if name.startswith(_DETAIL)
    }
    facts = {name: metadata[name] for name in _FACTS} | {"warnings": tuple(metadata["warnings"])}
    if facts["sign"].startswith("negative = "):  # attribution patching of builds that kept the published sign
        facts["sign"] = facts["sign"].replace("negative", "positive")
        arrays |= {name: -arrays[name] for name in ("values", "per_example") if name in arrays}
    return HeadScores(
        values=arrays["values"], per_example=arrays.get("per_example"), details=details, **facts
    )


def provenance_of(model: Model, task: Task | None = None, **facts: Any) -> dict[str, Any]:
    """How scores came to be: the library, the model, the examples where there are any, and further facts.

    Scores of single heads cut no edge, so no treatment of norms behind branches is among them.
    """
    examples = {} if task is None else {"task": task.describe()}
    return {"library": library_version(), "model": model.uncut.describe(), **examples, **facts}


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


def defined_examples(per_example: Float64[np.ndarray, "P H"]) -> Bool[np.ndarray, " P"]:
    """Which examples have a number for every head that was scored at all."""
    finite = np.isfinite(per_example)
    scored = finite.any(axis=0)
    return np.asarray(finite[:, scored].all(axis=1) & scored.any())


def mean_over_examples(per_example: Float64[np.ndarray, "P H"]) -> Float64[np.ndarray, " H"]:
    """Mean over the examples that are defined, whatever their order; NaN where a head has no number."""
    kept = per_example[defined_examples(per_example)]
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
    flags[[layer * n_heads + head for layer, head in check_heads(members, n_layers, n_heads)]] = True
    return flags

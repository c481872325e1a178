"""Which model gets which example right, with what is known of models and examples."""

import dataclasses
import functools
import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64, Shaped, UInt8

from assay.analyses.subsets.arguments import checked
from assay.analyses.subsets.copies import MOST_EXAMPLES, copies_note, find_copies, joined, unit_codes
from assay.analyses.subsets.line import Places, Units
from assay.analyses.subsets.tables import read_as, read_frame
from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError, check_name
from assay.core.random import stream
from assay.core.record import plain
from assay.core.untrusted import load_npz, malformed, parse_json


PerModel = Any  # a sequence in the order of the models, or a mapping or series of pandas from their names
ORIGIN = ("kind", "name", "file", "domain")  # of a source
# The arrays of an archive, beside `meta_NAME`; `X` may be `X_bits` with `shape`.
ARRAYS = {"X": "correct", "y": "id_accuracy", "group": "groups", "family": "families", "label": "labels"}
ARRAYS |= {"model_id": "model_ids", "example_id": "example_ids", "label_name": "label_names"}
ARRAYS |= {name: name for name in ("embedding", "id_embedding", "images", "source")}
_META = "meta_"


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrectnessData:
    """A correctness matrix over out-of-distribution examples, and in-distribution accuracies; see `of`.

    Attributes:
        correct: X, `[M, N]`: 1 where a model is right, uint8; or scores in [0, 1], float32.
        id_accuracy: y, `[M]`: accuracy of each model on held-out in-distribution examples, in [0, 1]; NaN for
            all where it is not known.
        model_ids: `[M]`: unique names of the models.
        example_ids: `[N]`: unique names of the examples; selections carry them.
        groups: `[M]`: training run of each model; None where not known.
        families: `[M]`: architecture family of each model; None where not known.
        labels: `[N]`: class of each example; None where not known.
        label_names: Name of each class, in the order of `labels`.
        meta: What else is known of the examples: a row per example, in their order, indexed by name.
        embedding: `[N, d]`: the examples in an embedding space.
        id_embedding: `[N_id, d]`: in-distribution examples in the same space.
        images: `[N, H, W]` or `[N, H, W, 3]`, uint8: for galleries.
        source: Where it came from and how it was read.
    """

    correct: UInt8[np.ndarray, "m n"] | Float32[np.ndarray, "m n"]
    id_accuracy: Float64[np.ndarray, " m"]
    model_ids: Shaped[np.ndarray, " m"]
    example_ids: Shaped[np.ndarray, " n"]
    groups: Shaped[np.ndarray, " m"] | None = None
    families: Shaped[np.ndarray, " m"] | None = None
    labels: Int64[np.ndarray, " n"] | None = None
    label_names: tuple[str, ...] | None = None
    meta: pd.DataFrame = field(default_factory=pd.DataFrame)
    embedding: Float32[np.ndarray, "n d"] | None = None
    id_embedding: Float32[np.ndarray, "n_id d"] | None = None
    images: np.ndarray | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        correct: "np.ndarray | pd.DataFrame | CorrectnessData",
        id_accuracy: PerModel | None = None,
        *,
        scores: bool = False,
        for_selection: bool = True,
        **facts: Any,
    ) -> "CorrectnessData":
        """Check arrays and give what is missing its default.

        What belongs to a model or an example (`id_accuracy`, `groups`, `families`, `n_id`, `labels`, columns
        of `meta`) is a sequence in their order, or a mapping or series of pandas from their names.

        Args:
            correct: 0 and 1 (or booleans), models by examples; or a frame, as `from_frame` reads it; or data,
                of which what is given here replaces its own. An array of uint8 is not copied.
            id_accuracy: Accuracies as shares, not per cent.
            scores: `correct` holds scores from 0, the worse end, to 1 instead of 0 and 1; an accuracy on
                examples is then their mean, and `id_accuracy` the mean score in distribution.
            for_selection: At least 4 models, with accuracies in distribution. False for models that are only
                evaluated on a subset.
            **facts: Further attributes: `model_ids` (default: `model_0`, ...), `example_ids` (default:
                `row_0`, ...), `groups` (checkpoints of one training run share
                it), `families` (runs lie inside them), `labels` (counted from 0, or names), `label_names`,
                `meta`, `embedding`, `id_embedding`, `images`, `source`.

        Raises:
            InputError: Naming the argument and the value: an answer that is not 0 or 1 (by model and
                example), accuracies that are NaN or outside [0, 1], too few models, ids that repeat, a run in
                two families.
            ShapeError: If lengths differ.
        """
        known = {each.name for each in dataclasses.fields(cls)}
        for name in facts:
            check_name("fact of models or examples", name, known)
        facts = {name: value for name, value in facts.items() if value is not None}
        if isinstance(correct, pd.DataFrame):
            cells = "score" if scores else None
            options = {"id_accuracy": id_accuracy, "for_selection": for_selection, **facts}
            return cls.from_frame(correct, cells=cells, **options)
        if isinstance(correct, CorrectnessData):
            facts |= {} if id_accuracy is None else {"id_accuracy": id_accuracy}
            if not facts:
                return correct
            dropped = {"label_names"} if "labels" in facts else set()  # of other labels
            own = {name: getattr(correct, name) for name in known - dropped}
            own["meta"] = {name: column.to_numpy() for name, column in correct.meta.items()}
            scores, facts = correct.scores, own | facts
            correct, id_accuracy = facts.pop("correct"), facts.pop("id_accuracy")
        data = cls(**checked(correct, id_accuracy, facts, scores=scores, for_selection=for_selection))
        if data.groups is not None and data.families is not None:
            several = pd.Series(data.families).groupby(data.groups).nunique()
            if (torn := several.index[several > 1]).size:
                raise InputError(f"group {torn[0]!r} lies in {several[torn[0]]} families, not inside one")
        return data

    def __repr__(self) -> str:
        return f"CorrectnessData({self.n_models} models, {self.n_examples} examples)"

    # ----------------------------------------------------------------------------------- made elsewhere

    @classmethod
    def from_frame(
        cls, frame: pd.DataFrame, *, for_selection: bool = True, **options: Any
    ) -> "CorrectnessData":
        """Read a pandas frame of answers.

        Args:
            frame: A row per model and example, per model, or per example.
            for_selection: As of `of`.
            **options: As of `tables.read_frame`, and what `of` knows beside.
        """
        arguments = read_frame(frame, **options)
        with read_as(arguments["source"]["orientation"]):
            return cls.of(**arguments, for_selection=for_selection)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, for_selection: bool = True) -> "CorrectnessData":
        """Read an archive of `save`, of `assay zoo`, or made by hand.

        Args:
            path: An `.npz` file without pickles: `X` (models by examples, 0 and 1; or float32, scores between
                them) or `X_bits` with `shape` (bit b of `X_bits[r, j]` is X[8 r + b, j]); `y`; optional
                `model_id`, `group`, `family`, `example_id`, `label`, `label_name`, `meta_NAME`,
                `embedding`, `id_embedding`, `images`, `source` (JSON).
            for_selection: As of `of`.

        Raises:
            FileFormatError: If the file is missing, damaged, no such archive, or holds an array that no
                archive has.
            UnsafeFileError: If it holds pickled objects; they are not read.
            InputError: If an array holds what no data can.
        """
        path = Path(path)
        if not path.is_file():
            raise FileFormatError(f"{path} is not a file. Pass a correctness archive (.npz)")
        try:
            with malformed(path, "a correctness archive"):
                return cls.of(**_arguments(load_npz(path), path), for_selection=for_selection)
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an archive that `load` reads back unchanged.

        Args:
            path: Ends in `.npz`.

        Returns:
            The path.

        Raises:
            OutputError: If the file cannot be written.
        """
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {key: getattr(self, name) for key, name in ARRAYS.items()}
        for name, column in self.meta.items():
            numbers = pd.api.types.is_numeric_dtype(column)
            arrays[f"{_META}{name}"] = column.to_numpy() if numbers else column.to_numpy(dtype=str)
        arrays["source"] = json.dumps(plain(self.source))
        known = {key: np.asarray(value) for key, value in arrays.items() if value is not None}
        np.savez_compressed(buffer, allow_pickle=False, **known)
        return write_atomically(Path(path), buffer.getvalue())

    # ----------------------------------------------------------------------------------------- what it is

    @property
    def n_models(self) -> int:
        """M."""
        return len(self.model_ids)

    @property
    def n_examples(self) -> int:
        """N."""
        return len(self.example_ids)

    @property
    def scores(self) -> bool:
        """Whether the matrix holds scores, not right and wrong answers."""
        return self.correct.dtype.kind == "f"

    @property
    def unrated(self) -> bool:
        """Whether the models have no accuracies in distribution."""
        return bool(np.isnan(self.id_accuracy).all())

    @functools.cached_property
    def has_ids(self) -> bool:
        """Whether the examples have names of their own, not the numbers of their columns."""
        return list(self.example_ids) != [f"row_{place}" for place in range(self.n_examples)]

    @property
    def classes(self) -> np.ndarray | None:
        """Class `[N]` of each example, by name where classes have names; None where not known."""
        named = self.labels is not None and self.label_names is not None
        return np.array(self.label_names)[self.labels] if named else self.labels

    @property
    def origin(self) -> dict[str, Any]:
        """What of `source` identifies the data, besides `hash`; how they were read does not."""
        return {name: self.source[name] for name in ORIGIN if name in self.source}

    @property
    def unit_kind(self) -> str:
        """What models are taken to depend through: `family` where known, else `group`, else `model`."""
        return "family" if self.families is not None else "group" if self.groups is not None else "model"

    def units(self, kind: str | None = None) -> Units:
        """Codes `[M]` of the units of one kind, in which copies of a model are one unit.

        Args:
            kind: `family`, `group` or `model`. Default: `unit_kind`.

        Raises:
            InputError: If the units of that kind are not known.
        """
        known = {"family": self.families, "group": self.groups, "model": self.model_ids}
        if (names := known[kind or self.unit_kind]) is None:
            raise InputError(f"the {kind} of each model is unknown; give it to `CorrectnessData.of`")
        return joined(unit_codes(names), self.copies)

    @functools.cached_property
    def copies(self) -> Units:
        """Unit `[M]` of each model such that copies of a model share one, whatever names and groups say."""
        right = self.example_accuracy()
        places = np.flatnonzero((right > 0) & (right < 1))
        if len(places) > MOST_EXAMPLES:
            places = np.sort(stream(0, "copies").choice(places, MOST_EXAMPLES, replace=False))
        labels = None if self.labels is None else self.labels[places]
        return find_copies(self.correct[:, places], labels, self.id_accuracy)

    @functools.cached_property
    def hash(self) -> str:
        """16 hex digits of everything a selection or its verdict depends on, but the names of models."""
        digest = hashlib.sha256(self.id_accuracy.tobytes())
        # Which models share a unit, not what it is called.
        units = [None if each is None else unit_codes(each).tolist() for each in (self.groups, self.families)]
        for each in (*units, self.example_ids.tolist()):
            digest.update(repr(each).encode())
        bits = self.correct if self.scores else np.packbits(self.correct, axis=0, bitorder="little").T
        digest.update(bits.tobytes())
        return digest.hexdigest()[:16]

    # ----------------------------------------------------------------------------------------- numbers

    def accuracy(self, examples: Places | None = None) -> Float64[np.ndarray, " m"]:
        """Accuracy of each model on some examples (default: all), Eq. 3: the share it gets right, or the mean
        of its scores.

        Raises:
            InputError: If no example is given.
        """
        chosen = self.correct if examples is None else self.correct[:, np.asarray(examples)]
        if not chosen.size:
            raise InputError("the selection is empty, so its accuracy is undefined")
        # Right answers are counted exactly, scores summed in double precision.
        return np.asarray(chosen.sum(axis=1, dtype=np.float64) / chosen.shape[1])

    def example_accuracy(self, models: Places | None = None) -> Float64[np.ndarray, " n"]:
        """Share of some models (default: all) that gets each example right, or the mean of their scores."""
        rows = self.correct if models is None else self.correct[models]
        return np.asarray(rows.sum(axis=0, dtype=np.float64) / len(rows))

    def take(self, *, models: Places | None = None, examples: Places | None = None) -> "CorrectnessData":
        """The data of some models and examples, in the order of their places."""
        of_models = ("correct", "id_accuracy", "model_ids", "groups", "families")
        of_examples = ("example_ids", "labels", "embedding", "images")
        changes: dict[str, Any] = {"correct": self.correct, "meta": self.meta}
        for places, names in ((models, of_models), (examples, of_examples)):
            for name in names if places is not None else ():
                values = getattr(self, name)
                changes[name] = None if values is None else values[places]
        if examples is not None:
            changes |= {"correct": changes["correct"][:, examples], "meta": self.meta.iloc[examples]}
        return dataclasses.replace(self, **changes)

    def describe(self) -> pd.Series:
        """How the answers were read and what the matrix is made of, by name; None where it is not known."""
        right, source = self.example_accuracy(), self.source
        classes = () if self.labels is None else self.label_names or tuple(np.unique(self.labels))
        notes = (*source.get("notes", ()), copies_note(self.copies), _odd_names(self.example_ids.tolist()))
        return pd.Series(
            {
                "read as": source.get("kind", "arrays"),
                "orientation": source.get("orientation"),
                "columns": ", ".join(f"{role} = {name}" for role, name in source.get("columns", {}).items()),
                "cells": source.get("cells", "scores" if self.scores else "0 and 1"),
                "missing cells": source.get("missing", 0),
                "models": _some(self.model_ids.tolist()),
                "training runs": None if self.groups is None else len(set(self.groups)),
                "families": None if self.families is None else len(set(self.families)),
                "examples": _some(self.example_ids.tolist()),
                "classes": _some(classes) if classes else None,
                "facts": ", ".join(map(str, self.meta.columns)),
                "in-distribution accuracy": None if self.unrated else _ends(self.id_accuracy),
                "accuracy on the examples": _ends(self.accuracy()),
                "examples all right": int(np.count_nonzero(right == 1)),
                "examples all wrong": int(np.count_nonzero(right == 0)),
                "notes": "; ".join(filter(None, notes)),
            },
            dtype=object,
        )


def _some(names: Sequence[Any]) -> str:
    return f"{len(names):,}: {', '.join(map(str, names[:3]))}{', ...' if len(names) > 3 else ''}"


def _ends(shares: np.ndarray) -> str:
    return f"{shares.min():.1%} to {shares.max():.1%}"


def _odd_names(names: list[str]) -> str | None:
    """A note on examples, fewer than three, that are named unlike all others: columns of facts, perhaps."""
    kinds = [re.sub(r"\d+", "0", name) for name in names]
    usual, n = Counter(kinds).most_common(1)[0]
    odd = [name for name, kind in zip(names, kinds, strict=True) if kind != usual]
    if not (0 < len(odd) < 3 <= n):
        return None
    return (
        f"{' and '.join(map(repr, odd))} counted as {'an example' if len(odd) == 1 else 'examples'}, though "
        f"all others are named like {names[kinds.index(usual)]!r}; if it is not one, remove the column"
    )


# --------------------------------------------------------------------------------------------- archives


def _arguments(arrays: dict[str, np.ndarray], path: Path) -> dict[str, Any]:
    """The arguments of `CorrectnessData.of` that the arrays of an archive are."""
    for key in arrays:
        if not key.startswith(_META) and key not in (*ARRAYS, "X_bits", "shape", "n_id"):
            raise FileFormatError(f"{path} holds an unknown array {key!r}")
    if "X_bits" in arrays and "shape" in arrays:
        bits, shape = arrays["X_bits"], tuple(arrays["shape"].tolist())
        if len(bits) != -(-shape[0] // 8):
            raise ValueError(f"X_bits has shape {bits.shape}, shape is {shape}")
        arrays["X"] = np.unpackbits(bits, axis=0, count=shape[0], bitorder="little").reshape(shape)
    for key in ("X", "y"):
        if key not in arrays:
            raise FileFormatError(f"{path} lacks the array {key!r}; an archive holds X (or X_bits) and y")
    arguments: dict[str, Any] = {name: arrays[key] for key, name in ARRAYS.items() if key in arrays}
    arguments["meta"] = {key.removeprefix(_META): arrays[key] for key in arrays if key.startswith(_META)}
    matrix = arguments["correct"]
    arguments["scores"] = matrix.dtype == np.float32 and not ((matrix == 0) | (matrix == 1)).all()
    source = json.dumps({"kind": "archive", "file": path.name})
    return arguments | {"source": dict(parse_json(str(arrays.get("source", source))))}

"""Which model gets which example right, with what is known of models and examples."""

import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float32, Float64, Int64, Shaped, UInt8

from assay.analyses.subsets.arguments import checked
from assay.analyses.subsets.copies import MOST_EXAMPLES, Units, copies_note, find_copies, joined, unit_codes
from assay.analyses.subsets.line import probit
from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError, check_name
from assay.core.random import stream
from assay.core.record import plain
from assay.core.untrusted import load_npz, malformed, parse_json


PerModel = Any  # a sequence in the order of the models, or a mapping or series of pandas from their names
Places = Int64[np.ndarray, " _"]  # of some models or examples, counted from 0
ORIGIN = ("kind", "name", "file", "domain")  # of a source
# The arrays of an archive, beside `meta_NAME`; `X` may be `X_bits` with `shape`.
ARRAYS = {
    "X": "correct",
    "y": "id_accuracy",
    "n_id": "n_id",
    "model_id": "model_ids",
    "group": "groups",
    "family": "families",
    "example_id": "example_ids",
    "label": "labels",
    "label_name": "label_names",
    "embedding": "embedding",
    "id_embedding": "id_embedding",
    "images": "images",
    "source": "source",
}
_META = "meta_"
_DENSE_SAVED = 64_000_000  # entries of the largest matrix that is written as bytes
_BLOCK = 1 << 26  # entries hashed at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrectnessData:
    """A correctness matrix over out-of-distribution examples, and in-distribution accuracies; see `of`.

    Attributes:
        correct: X, `[M, N]`: 1 where a model is right, uint8; or scores in [0, 1], float32.
        id_accuracy: y, `[M]`: accuracy of each model on held-out in-distribution examples, in [0, 1]; NaN for
            all where it is not known.
        model_ids: `[M]`: unique names of the models.
        example_ids: `[N]`: unique names of the examples; selections carry them.
        n_id: `[M]`: in-distribution examples behind each accuracy; None where not known.
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
    n_id: Int64[np.ndarray, " m"] | None = None
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
                of which what is given here replaces its own.
            id_accuracy: Accuracies as shares, not per cent.
            scores: `correct` holds scores from 0, the worse end, to 1 instead of 0 and 1; an accuracy on
                examples is then their mean, and `id_accuracy` the mean score in distribution.
            for_selection: At least 4 models, with accuracies in distribution. False for models that are only
                evaluated on a subset.
            **facts: Further attributes: `model_ids` (default: `model_0`, ...), `example_ids` (default:
                `row_0`, ...), `n_id` (for all, or per model), `groups` (checkpoints of one training run share
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
            own = {name: getattr(correct, name) for name in known if getattr(correct, name) is not None}
            if "labels" in facts:
                own.pop("label_names", None)  # of other labels
            own["meta"] = {name: column.to_numpy() for name, column in correct.meta.items()}
            scores, facts = correct.scores, own | facts
            correct, id_accuracy = facts.pop("correct"), facts.pop("id_accuracy")
        data = cls(**checked(correct, id_accuracy, facts, scores=scores, for_selection=for_selection))
        if data.groups is not None and data.families is not None:
            several = pd.Series(data.families).groupby(data.groups).nunique()
            if (torn := several.index[several > 1]).size:
                raise InputError(
                    f"group {torn[0]!r} lies in {several[torn[0]]} families; runs lie inside one"
                )
        return data

    def __repr__(self) -> str:
        units = {"training runs": self.groups, "families": self.families}
        known = ", ".join(f"{len(set(each))} {of}" for of, each in units.items() if each is not None)
        known = f" ({known})" if known else ""
        return f"CorrectnessData({self.n_models} models{known}, {self.n_examples} examples)"

    # ----------------------------------------------------------------------------------- made elsewhere

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, **options: Any) -> "CorrectnessData":
        """Read a pandas frame of answers.

        Args:
            frame: A row per model and example, per model, or per example.
            **options: As of `tables.read_frame`, and what `of` knows beside.
        """
        from assay.analyses.subsets.tables import read_frame

        return read_frame(frame, **options)

    @classmethod
    def from_predictions(cls, folder: str | os.PathLike[str], **options: Any) -> "CorrectnessData":
        """Read the prediction CSVs of OODSelect's authors; see `read_predictions` for the options."""
        from assay.analyses.subsets.predictions import read_predictions

        return cls.of(**read_predictions(folder, **options))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, for_selection: bool = True) -> "CorrectnessData":
        """Read an archive of `save`, of `assay zoo`, or made by hand.

        Args:
            path: An `.npz` file without pickles: `X` (models by examples, 0 and 1; or float32, scores between
                them) or `X_bits` with `shape` (bit b of `X_bits[r, j]` is X[8 r + b, j]); `y`; optional
                `n_id`, `model_id`, `group`, `family`, `example_id`, `label`, `label_name`, `meta_NAME`,
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
        """Write an archive that `load` reads back unchanged; a large matrix of 0 and 1 as bits.

        Args:
            path: Ends in `.npz`.

        Returns:
            The path.

        Raises:
            InputError: If the suffix is another one.
            OutputError: If the file cannot be written.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(f"{path} ends in {path.suffix!r}; a correctness archive ends in .npz")
        arrays: dict[str, np.ndarray] = {
            key: np.asarray(value)
            for key, name in ARRAYS.items()
            if key != "source" and (value := getattr(self, name)) is not None
        }
        if not self.scores and self.correct.size > _DENSE_SAVED:
            arrays["X_bits"] = np.packbits(arrays.pop("X"), axis=0, bitorder="little")
            arrays["shape"] = np.array(self.correct.shape)
        for name, column in self.meta.items():
            numbers = pd.api.types.is_numeric_dtype(column)
            arrays[f"{_META}{name}"] = column.to_numpy() if numbers else column.to_numpy(dtype=str)
        arrays["source"] = np.array(json.dumps(plain(self.source)))
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **cast("dict[str, Any]", arrays))
        return write_atomically(path, buffer.getvalue())

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
        kind = kind or self.unit_kind
        names = {"family": self.families, "group": self.groups, "model": self.model_ids}[kind]
        if names is None:
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
        if self.scores:
            digest.update(self.correct.tobytes())
        else:
            wide = max(1, _BLOCK // self.n_models)
            for start in range(0, self.n_examples, wide):
                block = self.correct[:, start : start + wide]
                digest.update(np.ascontiguousarray(np.packbits(block, axis=0, bitorder="little").T).tobytes())
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
        return np.asarray(chosen.sum(axis=1, dtype=self._sums) / chosen.shape[1])

    def example_accuracy(self, models: Places | None = None) -> Float64[np.ndarray, " n"]:
        """Share of some models (default: all) that gets each example right, or the mean of their scores."""
        rows = self.correct if models is None else self.correct[models]
        return np.asarray(rows.sum(axis=0, dtype=self._sums) / len(rows))

    @property
    def _sums(self) -> type:
        """What entries are summed in: right answers exactly, scores in double precision."""
        return np.float64 if self.scores else np.int64

    def take(self, *, models: Places | None = None, examples: Places | None = None) -> "CorrectnessData":
        """The data of some models and examples, in the order of their places."""
        changes: dict[str, Any] = {}
        of_models = ("id_accuracy", "model_ids", "n_id", "groups", "families")
        of_examples = ("example_ids", "labels", "embedding", "images")
        for places, names in ((models, of_models), (examples, of_examples)):
            for name in names if places is not None else ():
                values = getattr(self, name)
                changes[name] = None if values is None else values[places]
        matrix = self.correct if models is None else self.correct[models]
        if examples is not None:
            matrix, changes["meta"] = matrix[:, examples], self.meta.iloc[examples]
        return dataclasses.replace(self, correct=matrix, **changes)

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
                "reliability": reliability(self.id_accuracy, self.n_id),
                "notes": "; ".join(filter(None, notes)),
            },
            dtype=object,
        )


def reliability(id_accuracy: Float64[np.ndarray, " m"], n_id: Int64[np.ndarray, " m"] | None) -> float:
    """Share of the variance of probit in-distribution accuracies that is not sampling noise.

    1 - mean(v_i) / var(probit(y)), v_i = y_i (1 - y_i) / (n_id phi(probit(y_i))^2) with the `n_id` examples
    behind each accuracy; NaN where they are not known, or all accuracies are equal.
    """
    z = probit(id_accuracy)
    spread = float(z.var())
    if n_id is None or spread == 0:
        return math.nan
    noise = id_accuracy * (1 - id_accuracy) / (n_id * scipy.stats.norm.pdf(z) ** 2)
    return float(1 - noise.mean() / spread)


def _some(names: Sequence[Any]) -> str:
    return f"{len(names):,}: {', '.join(map(str, names[:3]))}{', ...' if len(names) > 3 else ''}"


def _ends(shares: Float64[np.ndarray, " m"]) -> str:
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
    known = (*ARRAYS, "X_bits", "shape")
    if odd := [key for key in arrays if key not in known and not key.startswith(_META)]:
        raise FileFormatError(
            f"{path} holds an unknown array {odd[0]!r}; known: {', '.join(known)}, meta_NAME"
        )
    if "X_bits" in arrays and "shape" in arrays:
        bits, shape = arrays["X_bits"], tuple(arrays["shape"].tolist())
        if len(bits) != -(-shape[0] // 8):
            raise ValueError(f"X_bits has shape {bits.shape}, shape is {shape}")
        arrays["X"] = np.unpackbits(bits, axis=0, count=shape[0], bitorder="little").reshape(shape)
    if missing := [key for key in ("X", "y") if key not in arrays]:
        raise FileFormatError(
            f"{path} lacks the array {missing[0]!r}; an archive holds X (or X_bits, shape) and y"
        )
    arguments: dict[str, Any] = {name: arrays[key] for key, name in ARRAYS.items() if key in arrays}
    arguments["meta"] = {key.removeprefix(_META): arrays[key] for key in arrays if key.startswith(_META)}
    matrix = arguments["correct"]
    arguments["scores"] = matrix.dtype == np.float32 and not ((matrix == 0) | (matrix == 1)).all()
    if "n_id" in arrays and not arrays["n_id"].any():
        del arguments["n_id"]  # a zoo writes 0 for an unknown number
    source = json.dumps({"kind": "archive", "file": path.name})
    return arguments | {"source": dict(parse_json(str(arrays.get("source", source))))}

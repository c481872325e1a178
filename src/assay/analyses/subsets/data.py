"""Which model gets which example right, with what is known of models and examples."""

import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64, Shaped, UInt8
from scipy import stats as scipy_stats

from assay.analyses.subsets.layouts import Matrix, PackedMatrix, as_matrix
from assay.analyses.subsets.line import MIN_MODELS, probit
from assay.analyses.subsets.splits import unit_codes
from assay.core.errors import InputError, ShapeError
from assay.core.record import Record


if TYPE_CHECKING:
    import pandas as pd

    from assay.tasks.images import ImageSet
    from assay.zoo import Zoo

_BLOCK = 1 << 26  # bytes looked at or hashed at a time


@dataclass(frozen=True, kw_only=True)
class Quality(Record):
    """What a correctness matrix is made of.

    Attributes:
        n_models: M.
        n_examples: N.
        n_groups: Training runs; None where they are not known.
        n_families: Architecture families; None where they are not known.
        id_accuracy: Lowest and highest in-distribution accuracy.
        accuracy: Lowest and highest out-of-distribution accuracy of a model on all examples.
        n_all_right: Examples that every model gets right.
        n_all_wrong: Examples that every model gets wrong.
        n_constant_models: Models that get every example right, or every one wrong.
        n_duplicates: Models whose row equals that of an earlier one.
        reliability: Share of the variance of probit in-distribution accuracies that is not sampling noise of
            the `n_id` examples behind each, 1 - mean(v_i) / var(probit(y)),
            v_i = y_i (1 - y_i) / (n_id phi(probit(y_i))^2); NaN where `n_id` is not known.
    """

    n_models: int
    n_examples: int
    n_groups: int | None
    n_families: int | None
    id_accuracy: tuple[float, float]
    accuracy: tuple[float, float]
    n_all_right: int
    n_all_wrong: int
    n_constant_models: int
    n_duplicates: int
    reliability: float


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrectnessData:
    """A correctness matrix over out-of-distribution examples, and in-distribution accuracies; see `of`.

    Attributes:
        correct: X, `[M, N]`: 1 where a model is right; uint8, or bit-packed.
        id_accuracy: y, `[M]`: accuracy of each model on held-out in-distribution examples, in [0, 1].
        model_ids: Name of each model.
        example_ids: Name of each example, unique; selections carry them.
        n_id: `[M]`: in-distribution examples behind each accuracy; None where not known.
        groups: Training run of each model; None where not known.
        families: Architecture family of each model; None where not known.
        labels: `[N]`: class of each example; None where not known.
        label_names: Name of each class, in the order of `labels`.
        meta: Columns `[N]` of what else is known of the examples.
        embedding: `[N, d]`: the examples in an embedding space.
        id_embedding: `[N_id, d]`: in-distribution examples in the same space.
        images: `[N, H, W]` or `[N, H, W, 3]`, uint8: for galleries.
        source: Where it came from.
    """

    correct: UInt8[np.ndarray, "m n"] | PackedMatrix
    id_accuracy: Float64[np.ndarray, " m"]
    model_ids: tuple[str, ...]
    example_ids: Shaped[np.ndarray, " n"]
    n_id: Int64[np.ndarray, " m"] | None = None
    groups: tuple[str, ...] | None = None
    families: tuple[str, ...] | None = None
    labels: Int64[np.ndarray, " n"] | None = None
    label_names: tuple[str, ...] | None = None
    meta: Mapping[str, np.ndarray] = field(default_factory=dict)
    embedding: np.ndarray | None = None
    id_embedding: np.ndarray | None = None
    images: np.ndarray | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        correct: "np.ndarray | PackedMatrix | CorrectnessData",
        id_accuracy: Sequence[float] | np.ndarray | None = None,
        *,
        groups: Sequence[object] | np.ndarray | None = None,
        families: Sequence[object] | np.ndarray | None = None,
        model_ids: Sequence[object] | np.ndarray | None = None,
        example_ids: Sequence[object] | np.ndarray | None = None,
        n_id: int | Sequence[int] | np.ndarray | None = None,
        labels: Sequence[object] | np.ndarray | None = None,
        label_names: Sequence[object] | None = None,
        meta: Mapping[str, Any] | None = None,
        embedding: np.ndarray | None = None,
        id_embedding: np.ndarray | None = None,
        images: np.ndarray | None = None,
        source: Mapping[str, Any] | None = None,
        at_least: int = MIN_MODELS,
    ) -> "CorrectnessData":
        """Check arrays and give what is missing its default.

        Args:
            correct: 0 and 1 (or booleans), models by examples; or packed; or data, of which only `groups` and
                `families` are then replaced where given.
            id_accuracy: Accuracies as shares, not per cent.
            groups: Training run of each model: checkpoints of one run share it.
            families: Architecture family of each model; runs lie inside families.
            model_ids: Names. Default: `model_0`, ...
            example_ids: Unique names. Default: `row_0`, ...
            n_id: In-distribution examples behind the accuracies, for all or per model.
            labels: Class of each example: integers, or names.
            label_names: Names of integer classes.
            meta: Columns of other facts about the examples.
            embedding: Examples in an embedding space.
            id_embedding: In-distribution examples in that space.
            images: Of the examples, 8 bits per channel.
            source: Where it came from, as JSON.
            at_least: Models that are needed; 4 to select from.

        Raises:
            InputError: Naming the argument and the value: entries that are not 0 or 1, accuracies that are
                NaN or outside [0, 1], too few models, duplicate ids, a run in two families.
            ShapeError: If lengths differ.
        """
        if isinstance(correct, CorrectnessData):
            data = correct
            if id_accuracy is not None:
                raise InputError(
                    "id_accuracy is part of the data given; give arrays for both, or the data alone"
                )
            changed: dict[str, Any] = {
                name: _names(given, data.n_models, name)
                for name, given in (("groups", groups), ("families", families))
                if given is not None
            }
            found = replace(data, **changed) if changed else data
            found._check_nesting()
            return found
        matrix = _matrix(correct)
        n_models, n_examples = (
            (matrix.n_models, matrix.n_examples) if isinstance(matrix, PackedMatrix) else matrix.shape
        )
        if n_models < at_least:
            raise InputError(f"correct holds {n_models} models; at least {at_least} are needed")
        if n_examples < 1:
            raise InputError("correct holds no example")
        codes, names = _labels(labels, label_names, n_examples)
        columns = {str(name): np.array(column) for name, column in (meta or {}).items()}
        for name, column in columns.items():
            if column.shape != (n_examples,):
                raise ShapeError(f"meta[{name!r}] has shape {column.shape}; {n_examples} examples are given")
        found = cls(
            correct=matrix,
            id_accuracy=_accuracies(id_accuracy, n_models),
            model_ids=_model_ids(model_ids, n_models),
            example_ids=_example_ids(example_ids, n_examples),
            n_id=_n_id(n_id, n_models),
            groups=_names(groups, n_models, "groups"),
            families=_names(families, n_models, "families"),
            labels=codes,
            label_names=names,
            meta=columns,
            embedding=_rows(embedding, "embedding", n_examples),
            id_embedding=_rows(id_embedding, "id_embedding", None),
            images=_images(images, n_examples),
            source=dict(source or {}),
        )
        if found.embedding is not None and found.id_embedding is not None:
            width, id_width = found.embedding.shape[1], found.id_embedding.shape[1]
            if width != id_width:
                raise ShapeError(f"embedding is {width} wide, id_embedding {id_width}; use one encoder")
        found._check_nesting()
        return found

    def __repr__(self) -> str:
        units = [
            f"{len(set(names))} {word}"
            for names, word in ((self.groups, "training runs"), (self.families, "families"))
            if names is not None
        ]
        known = f" ({', '.join(units)})" if units else ""
        return f"CorrectnessData({self.n_models} models{known}, {self.n_examples} examples)"

    # ----------------------------------------------------------------------------------- made elsewhere

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CorrectnessData":
        """Read an archive, `.npz` or `.parquet`; see `assay.analyses.subsets.load_correctness`."""
        from assay.analyses.subsets.archive import load_correctness

        return load_correctness(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an archive, `.npz` or `.parquet`; see `assay.analyses.subsets.save_correctness`."""
        from assay.analyses.subsets.archive import save_correctness

        save_correctness(self, path)

    @classmethod
    def from_predictions(cls, paths: Any, **options: Any) -> "CorrectnessData":
        """Read the authors' prediction CSVs; see `assay.analyses.subsets.load_predictions`."""
        from assay.analyses.subsets.predictions import load_predictions

        return load_predictions(paths, **options)

    @classmethod
    def from_zoo(cls, zoo: "Zoo", images: "ImageSet", **options: Any) -> "CorrectnessData":
        """Ask every model of a zoo; see `assay.analyses.subsets.from_zoo`."""
        from assay.analyses.subsets.sources import from_zoo

        return from_zoo(zoo, images, **options)

    @classmethod
    def from_frame(cls, frame: "pd.DataFrame", **options: Any) -> "CorrectnessData":
        """Read a pandas frame of predictions; see `assay.analyses.subsets.from_frame`."""
        from assay.analyses.subsets.sources import from_frame

        return from_frame(frame, **options)

    @classmethod
    def from_estimators(cls, estimators: Any, *args: Any, **options: Any) -> "CorrectnessData":
        """Ask scikit-learn estimators; see `assay.analyses.subsets.from_estimators`."""
        from assay.analyses.subsets.sources import from_estimators

        return from_estimators(estimators, *args, **options)

    # ----------------------------------------------------------------------------------------- what it is

    @property
    def n_models(self) -> int:
        """M."""
        return len(self.id_accuracy)

    @property
    def n_examples(self) -> int:
        """N."""
        return len(self.example_ids)

    @functools.cached_property
    def has_ids(self) -> bool:
        """Whether the examples have names of their own, not the numbers of their columns."""
        return any(name != f"row_{place}" for place, name in enumerate(self.example_ids.tolist()))

    @property
    def unit_kind(self) -> str:
        """What models are taken to depend through: `family` where known, else `group`, else `model`."""
        return "family" if self.families is not None else "group" if self.groups is not None else "model"

    @property
    def units(self) -> Int64[np.ndarray, " m"]:
        """Code of the family of each model, or of its training run, or of itself; see `unit_kind`."""
        return self.unit_codes(self.unit_kind)

    def unit_codes(self, kind: str) -> Int64[np.ndarray, " m"]:
        """Codes of the units of one kind: `family`, `group` or `model`."""
        names = {"family": self.families, "group": self.groups, "model": range(self.n_models)}[kind]
        if names is None:
            raise InputError(f"the {kind} of each model is not known; give it to `CorrectnessData.of`")
        return unit_codes(np.asarray(names))

    @functools.cached_property
    def hash(self) -> str:
        """16 hex digits of everything a selection or its verdict depends on."""
        digest = hashlib.sha256()
        for each in (self.id_accuracy, self.groups, self.families, self.example_ids.tolist()):
            digest.update(each.tobytes() if isinstance(each, np.ndarray) else repr(each).encode())
        packed = self.correct if isinstance(self.correct, PackedMatrix) else None
        wide = max(1, _BLOCK // max(1, self.n_models))
        for start in range(0, self.n_examples, wide):
            # Always the packed bits, so that one matrix has one hash in either storage.
            if packed is not None:
                bits = packed.bits[:, start : start + wide]
            else:
                assert isinstance(self.correct, np.ndarray)
                bits = np.packbits(self.correct[:, start : start + wide], axis=0, bitorder="little")
            digest.update(np.ascontiguousarray(bits.T).tobytes())
        return digest.hexdigest()[:16]

    # ----------------------------------------------------------------------------------------- numbers

    def matrix(
        self,
        models: Int64[np.ndarray, " k"] | None = None,
        *,
        layout: str = "auto",
        device: str | None = None,
    ) -> Matrix:
        """The rows of some models in a layout to compute with."""
        return as_matrix(self.correct, models, layout=layout, device=device)

    def accuracy_on(
        self, examples: Int64[np.ndarray, " k"], models: Int64[np.ndarray, " m"] | None = None
    ) -> Float64[np.ndarray, " m"]:
        """Eq. 3: share of some examples that each model gets right."""
        if len(examples) == 0:
            raise InputError("no example is selected: an accuracy on none is not defined")
        if isinstance(self.correct, PackedMatrix):
            counts = self.correct.count(np.asarray(examples, dtype=np.int64))
            counts = counts if models is None else counts[models]
        else:
            rows = self.correct if models is None else self.correct[models]
            counts = rows[:, examples].sum(axis=1, dtype=np.int64)
        return np.asarray(counts / len(examples))

    def accuracy(self, models: Int64[np.ndarray, " m"] | None = None) -> Float64[np.ndarray, " m"]:
        """Out-of-distribution accuracy of each model on all examples."""
        return self._accuracy if models is None else self._accuracy[models]

    @functools.cached_property
    def _accuracy(self) -> Float64[np.ndarray, " m"]:
        if isinstance(self.correct, PackedMatrix):
            return np.asarray(self.correct.count(np.arange(self.n_examples)) / self.n_examples)
        return np.asarray(self.correct.sum(axis=1, dtype=np.int64) / self.n_examples)

    def example_accuracy(self, models: Int64[np.ndarray, " k"] | None = None) -> Float64[np.ndarray, " n"]:
        """Share of some models that gets each example right."""
        n = self.n_models if models is None else len(models)
        if n == 0:
            raise InputError("no model is given: the share of them that is right is not defined")
        if isinstance(self.correct, PackedMatrix):
            packed = self.correct if models is None else self.correct.take(models)
            return np.asarray(packed.column_sums() / n)
        rows = self.correct if models is None else self.correct[models]
        return np.asarray(rows.sum(axis=0, dtype=np.int64) / n)

    def columns(self, examples: Int64[np.ndarray, " k"]) -> UInt8[np.ndarray, "m k"]:
        """Columns of the matrix as 0 and 1, all models."""
        if isinstance(self.correct, PackedMatrix):
            return self.correct.dense(np.asarray(examples, dtype=np.int64))
        return self.correct[:, examples]

    def take_models(self, models: Int64[np.ndarray, " k"]) -> "CorrectnessData":
        """The data of some models."""
        x = self.correct

        def named(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
            return None if names is None else tuple(names[place] for place in models)

        return replace(
            self,
            correct=x.take(models) if isinstance(x, PackedMatrix) else x[models],
            id_accuracy=self.id_accuracy[models],
            model_ids=tuple(self.model_ids[place] for place in models),
            n_id=None if self.n_id is None else self.n_id[models],
            groups=named(self.groups),
            families=named(self.families),
        )

    def take_examples(self, examples: Int64[np.ndarray, " k"]) -> "CorrectnessData":
        """The data of some examples."""
        if isinstance(self.correct, PackedMatrix):
            correct: Any = PackedMatrix(
                np.ascontiguousarray(self.correct.bits[:, examples]), self.correct.n_models
            )
        else:
            correct = self.correct[:, examples]
        return replace(
            self,
            correct=correct,
            example_ids=self.example_ids[examples],
            labels=None if self.labels is None else self.labels[examples],
            meta={name: column[examples] for name, column in self.meta.items()},
            embedding=None if self.embedding is None else self.embedding[examples],
            images=None if self.images is None else self.images[examples],
        )

    def quality(self) -> Quality:
        """What the matrix is made of; see `Quality`."""
        right = self.example_accuracy()
        accuracy = self.accuracy()
        return Quality(
            n_models=self.n_models,
            n_examples=self.n_examples,
            n_groups=None if self.groups is None else len(set(self.groups)),
            n_families=None if self.families is None else len(set(self.families)),
            id_accuracy=(float(self.id_accuracy.min()), float(self.id_accuracy.max())),
            accuracy=(float(accuracy.min()), float(accuracy.max())),
            n_all_right=int(np.count_nonzero(right == 1)),
            n_all_wrong=int(np.count_nonzero(right == 0)),
            n_constant_models=int(np.count_nonzero((accuracy == 0) | (accuracy == 1))),
            n_duplicates=self.n_models - len({self._row_digest(place) for place in range(self.n_models)}),
            reliability=self._reliability(),
        )

    def _row_digest(self, place: int) -> bytes:
        row = (
            (self.correct.bits[place // 8] >> (place % 8)) & 1
            if isinstance(self.correct, PackedMatrix)
            else self.correct[place]
        )
        return hashlib.sha256(np.packbits(row).tobytes()).digest()

    def _reliability(self) -> float:
        z = probit(self.id_accuracy)
        spread = float(z.var())
        if self.n_id is None or spread == 0:
            return math.nan
        y = self.id_accuracy
        noise = y * (1 - y) / (self.n_id * scipy_stats.norm.pdf(z) ** 2)
        return float(1 - noise.mean() / spread)

    def _check_nesting(self) -> None:
        if self.groups is None or self.families is None:
            return
        family_of: dict[str, str] = {}
        for group, family in zip(self.groups, self.families, strict=True):
            if family_of.setdefault(group, family) != family:
                raise InputError(
                    f"group {group!r} lies in the families {family_of[group]!r} and {family!r}; the models "
                    "of one training run share a family"
                )


# ----------------------------------------------------------------------------------------------- checks


def _matrix(correct: Any) -> Any:
    if isinstance(correct, PackedMatrix):
        return correct
    given = np.asarray(correct)
    if given.ndim != 2:
        raise ShapeError(f"correct has shape {given.shape}; models by examples is needed")
    if given.dtype == bool:
        return given.astype(np.uint8)
    if given.dtype.kind not in "iuf":
        raise InputError(f"correct holds {given.dtype}; 0 and 1, models by examples, are needed")
    rows = max(1, _BLOCK // max(1, given.shape[1] * given.itemsize))
    for start in range(0, len(given), rows):
        block = given[start : start + rows]
        bad = ~((block == 0) | (block == 1))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise InputError(
                f"correct[{start + row}, {column}] is {block[row, column]}; every entry must be 0 (wrong) or "
                "1 (right)"
            )
    return given.astype(np.uint8)


def _accuracies(given: Any, n_models: int) -> Float64[np.ndarray, " m"]:
    if given is None:
        raise InputError("id_accuracy is missing: the in-distribution accuracy of each model is needed")
    y = np.array(given, dtype=np.float64)
    if y.shape != (n_models,):
        raise ShapeError(f"id_accuracy has shape {y.shape}; correct holds {n_models} models")
    bad = np.flatnonzero(~((y >= 0) & (y <= 1)))
    if len(bad):
        value = y[bad[0]]
        per_cent = np.isfinite(y).all() and y.min() >= 0 and 1 < y.max() <= 100
        hint = "; these look like per cent: divide them by 100" if per_cent else ""
        raise InputError(f"id_accuracy[{bad[0]}] is {value}; accuracies are shares between 0 and 1{hint}")
    return y


def _names(given: Any, n_models: int, name: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    listed = np.atleast_1d(given).tolist() if isinstance(given, np.ndarray) else list(given)
    if len(listed) != n_models:
        raise ShapeError(f"{name} holds {len(listed)} names; correct holds {n_models} models")
    for place, each in enumerate(listed):
        if each is None or each != each:  # NaN is what a missing cell of a table becomes
            raise InputError(
                f"{name}[{place}] is {each}; name the unit of every model, or leave models without one out"
            )
    return tuple(map(str, listed))


def _model_ids(given: Any, n_models: int) -> tuple[str, ...]:
    found = _names(given, n_models, "model_ids")
    if found is None:
        return tuple(f"model_{place}" for place in range(n_models))
    if len(set(found)) < n_models:
        twice = next(name for place, name in enumerate(found) if name in found[:place])
        raise InputError(f"model_ids holds {twice!r} more than once; an id stands for one model")
    return found


def _example_ids(given: Any, n_examples: int) -> np.ndarray:
    if given is None:
        return np.array([f"row_{place}" for place in range(n_examples)])
    found = np.array(given).astype(str)
    if found.shape != (n_examples,):
        raise ShapeError(f"example_ids has shape {found.shape}; correct holds {n_examples} examples")
    names, counts = np.unique(found, return_counts=True)
    if len(names) < n_examples:
        raise InputError(
            f"example_ids holds {str(names[counts > 1][0])!r} {counts.max()} times; an id stands for one "
            f"example ({n_examples - len(names)} repetitions in all)"
        )
    return found


def _n_id(given: Any, n_models: int) -> Int64[np.ndarray, " m"] | None:
    if given is None:
        return None
    found = np.asarray(given)
    if found.shape not in ((), (n_models,)):
        raise ShapeError(f"n_id has shape {found.shape}; one number, or one per model ({n_models})")
    if found.dtype.kind not in "iu" or (found < 1).any():
        raise InputError("n_id holds a value that is no count of at least 1")
    return np.broadcast_to(found, (n_models,)).astype(np.int64)


def _labels(given: Any, names: Any, n_examples: int) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    if given is None:
        return None, None if names is None else tuple(map(str, names))
    found = np.asarray(given)
    if found.shape != (n_examples,):
        raise ShapeError(f"labels has shape {found.shape}; correct holds {n_examples} examples")
    if found.dtype.kind in "iub":
        codes = found.astype(np.int64)
        if len(codes) and codes.min() < 0:
            raise InputError(f"labels holds {codes.min()}; classes are counted from 0")
        listed = None if names is None else tuple(map(str, names))
        if listed is not None and len(codes) and codes.max() >= len(listed):
            raise InputError(f"labels holds class {codes.max()}; label_names lists {len(listed)}")
        return codes, listed
    if names is not None:
        raise InputError("label_names goes with integer labels; the labels given are names already")
    listed_names, codes = np.unique(found.astype(str), return_inverse=True)
    return codes.astype(np.int64), tuple(listed_names.tolist())


def _rows(given: Any, name: str, n: int | None) -> np.ndarray | None:
    if given is None:
        return None
    found = np.asarray(given, dtype=np.float32)
    if found.ndim != 2 or (n is not None and len(found) != n):
        raise ShapeError(f"{name} has shape {found.shape}; {'one row per example' if n else 'rows'} needed")
    if not np.isfinite(found).all():
        raise InputError(f"{name} holds NaN or infinite numbers")
    return found


def _images(given: Any, n_examples: int) -> np.ndarray | None:
    if given is None:
        return None
    found = np.asarray(given)
    if found.dtype != np.uint8 or found.ndim not in (3, 4) or len(found) != n_examples:
        raise ShapeError(
            f"images are {found.dtype} {found.shape}; uint8 [{n_examples}, height, width] or "
            f"[{n_examples}, height, width, 3] is needed"
        )
    if found.ndim == 4 and found.shape[3] != 3:
        raise ShapeError(f"images have {found.shape[3]} channels; grey or RGB is needed")
    return found

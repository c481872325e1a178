"""Which model gets which example right, with what is known of models and examples."""

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float32, Float64, Int64, Num, Shaped, UInt8

from assay.analyses.subsets._arrays import Accuracies, Places, Units
from assay.analyses.subsets._checks import (
    by_name,
    check_embeddings,
    check_nesting,
    checked_arguments,
    checked_names,
    checked_rows,
)
from assay.analyses.subsets.archive import naming_arrays, read_archive, write_archive
from assay.analyses.subsets.copies import MOST_EXAMPLES, find_copies
from assay.analyses.subsets.header import PerModel, lying
from assay.analyses.subsets.layouts import AnswerTable, PackedMatrix
from assay.analyses.subsets.line import MIN_MODELS
from assay.analyses.subsets.placement import as_matrix, columns_of, has_scores, row_of, rows_of
from assay.analyses.subsets.quality import Quality, Understood, reliability
from assay.analyses.subsets.splits import copies_note, joined, unit_codes
from assay.core.errors import InputError
from assay.core.random import stream


if TYPE_CHECKING:
    import pandas as pd

    from assay.tasks.image_set import ImageSet
    from assay.zoo import Zoo

ORIGIN = ("kind", "name", "file", "domain")  # of a source
_BLOCK = 1 << 26  # bytes hashed at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrectnessData:
    """A correctness matrix over out-of-distribution examples, and in-distribution accuracies; see `of`.

    Attributes:
        correct: X, `[M, N]`: 1 where a model is right; uint8, or bit-packed. Or scores in [0, 1], float32.
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

    correct: UInt8[np.ndarray, "m n"] | Float32[np.ndarray, "m n"] | PackedMatrix
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
        correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
        id_accuracy: PerModel | None = None,
        *,
        groups: PerModel | None = None,
        families: PerModel | None = None,
        model_ids: Sequence[object] | np.ndarray | None = None,
        example_ids: Sequence[object] | np.ndarray | None = None,
        n_id: PerModel | None = None,
        labels: Any = None,
        label_names: Sequence[object] | None = None,
        meta: Mapping[str, Any] | None = None,
        embedding: np.ndarray | None = None,
        id_embedding: np.ndarray | None = None,
        images: np.ndarray | None = None,
        source: Mapping[str, Any] | None = None,
        scores: bool = False,
        at_least: int = MIN_MODELS,
        unrated: bool = False,
    ) -> "CorrectnessData":
        """Check arrays and give what is missing its default.

        What belongs to a model or an example (`id_accuracy`, `groups`, `families`, `n_id`, `labels`, columns
        of `meta`) is a sequence in their order, or a mapping or series of pandas from their names.

        Args:
            correct: 0 and 1 (or booleans), models by examples; or packed; or a frame, which `from_frame`
                reads; or data, of which only `groups`, `families` and embeddings are then replaced where
                given.
            id_accuracy: Accuracies as shares, not per cent. The index of a series names models without
                `model_ids`, unless it counts them.
            groups: Training run of each model: checkpoints of one run share it.
            families: Architecture family of each model; runs lie inside families.
            model_ids: Names. Default: `model_0`, ...
            example_ids: Unique names. Default: `row_0`, ...
            n_id: In-distribution examples behind the accuracies, for all or per model.
            labels: Class of each example: integers, or names.
            label_names: Names of integer classes.
            meta: Columns of other facts about the examples.
            embedding: Examples in an embedding space, in their order.
            id_embedding: In-distribution examples in that space.
            images: Of the examples, 8 bits per channel.
            source: Where it came from, as JSON.
            scores: `correct` holds scores from 0, the worse end, to 1 instead of 0 and 1; an accuracy on
                examples is then their mean, and `id_accuracy` the mean score in distribution.
            at_least: Models that are needed; 4 to select from.
            unrated: Whether the models may have no accuracies in distribution (None, or NaN for all): they
                can be evaluated on a subset, but not selected with.

        Raises:
            InputError: Naming the argument and the value: entries that are not 0 or 1, accuracies that are
                NaN or outside [0, 1], too few models, duplicate ids, a run in two families.
            ShapeError: If lengths differ.
        """
        if isinstance(correct, CorrectnessData):
            if id_accuracy is not None:
                raise InputError(
                    "id_accuracy is already part of the data; give arrays for both, or the data alone"
                )
            return correct._with(groups, families, embedding, id_embedding)
        of_models = {"id_accuracy": id_accuracy, "groups": groups, "families": families, "n_id": n_id}
        of_examples = {"example_ids": example_ids, "labels": labels, "label_names": label_names, "meta": meta}
        spaces = {"embedding": embedding, "id_embedding": id_embedding, "images": images}
        given = of_models | {"model_ids": model_ids} | of_examples | spaces | {"source": source}
        if hasattr(correct, "iloc"):  # of pandas
            from assay.analyses.subsets.frames import framed

            frame, cells = cast("pd.DataFrame", correct), "score" if scores else None
            held = framed(frame, given, cells=cells, unrated=unrated)
            with lying(held["source"]["orientation"]):
                return cls.of(**held, at_least=at_least)
        options: dict[str, Any] = {"scores": scores, "at_least": at_least, "unrated": unrated}
        return cls(**checked_arguments(correct, given, **options))._checked()

    def _with(
        self,
        groups: PerModel | None,
        families: PerModel | None,
        embedding: np.ndarray | None,
        id_embedding: np.ndarray | None,
    ) -> "CorrectnessData":
        """These data with what is given instead of their own."""
        given: dict[str, Any] = {
            name: checked_names(by_name(each, self.model_ids, name), self.n_models, name)
            for name, each in {"groups": groups, "families": families}.items()
        }
        given["embedding"] = checked_rows(embedding, "embedding", self.n_examples)
        given["id_embedding"] = checked_rows(id_embedding, "id_embedding", None)
        changed = {name: each for name, each in given.items() if each is not None}
        return (replace(self, **changed) if changed else self)._checked()

    def _checked(self) -> "CorrectnessData":
        check_embeddings(self.embedding, self.id_embedding)
        check_nesting(self.groups, self.families)
        return self

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
        """Read an archive of `save`, of `assay zoo`, or made by hand.

        Its keys are in `assay.analyses.subsets.archive`. A matrix that would take more than half of the free
        memory as bytes is packed while it is read; `source` then has an entry `packed_while_read`.

        Args:
            path: Ends in `.npz` or `.parquet`.

        Raises:
            FileFormatError: If the file is missing, truncated, no such archive, lacks `X` or `y`, or holds an
                array that no archive has.
            UnsafeFileError: If it holds pickled objects; they are not read.
            InputError: If an array holds what no data can: entries that are not 0 or 1, NaN accuracies or
                accuracies in per cent, ids that repeat, lengths that differ (`ShapeError`); or if it does not
                fit in memory.
            MissingExtraError: If pyarrow is needed and not installed.
        """
        arguments = read_archive(Path(path))
        with naming_arrays(Path(path)):
            return cls.of(**arguments)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an archive that `load` reads back unchanged.

        A packed matrix, and one of more than 64 million entries, is written as bits.

        Args:
            path: Ends in `.npz` or `.parquet`.

        Returns:
            The path.

        Raises:
            InputError: If the suffix is another one, or a metadata column holds neither text nor numbers.
            MissingExtraError: If pyarrow is needed and not installed.
            OutputError: If the file cannot be written.
        """
        return write_archive({each.name: getattr(self, each.name) for each in fields(self)}, path)

    @classmethod
    def from_predictions(cls, paths: Any, **options: Any) -> "CorrectnessData":
        """Read the authors' prediction CSVs; see `predictions.read_predictions` for the options."""
        from assay.analyses.subsets.predictions import read_predictions

        return cls.of(**read_predictions(paths, **options))

    @classmethod
    def from_zoo(cls, zoo: "Zoo", images: "ImageSet", **options: Any) -> "CorrectnessData":
        """Ask every model of a zoo; see `sources.ask_zoo` for the options."""
        from assay.analyses.subsets.sources import ask_zoo

        return cls.of(**ask_zoo(zoo, images, **options))

    @classmethod
    def from_frame(cls, frame: "pd.DataFrame", **options: Any) -> "CorrectnessData":
        """Read a pandas frame of predictions; see `frames.read_frame` for the options."""
        from assay.analyses.subsets.frames import read_frame

        held = read_frame(frame, **options)
        with lying(held["source"]["orientation"]):
            return cls.of(**held)

    @classmethod
    def from_estimators(
        cls, estimators: Any, X_id: Any, y_id: Any, X_ood: Any, y_ood: Any, **options: Any
    ) -> "CorrectnessData":
        """Ask scikit-learn estimators; see `sources.ask_estimators` for the options."""
        from assay.analyses.subsets.sources import ask_estimators

        return cls.of(**ask_estimators(estimators, X_id, y_id, X_ood, y_ood, **options))

    # ----------------------------------------------------------------------------------------- what it is

    @property
    def n_models(self) -> int:
        """M."""
        return len(self.id_accuracy)

    @property
    def n_examples(self) -> int:
        """N."""
        return len(self.example_ids)

    @property
    def unrated(self) -> bool:
        """Whether the models have no accuracies in distribution."""
        return bool(np.isnan(self.id_accuracy).all())

    @functools.cached_property
    def has_ids(self) -> bool:
        """Whether the examples have names of their own, not the numbers of their columns."""
        names = enumerate(self.example_ids.tolist())
        return not self.source.get("unnamed") and any(name != f"row_{place}" for place, name in names)

    @property
    def own_model_ids(self) -> tuple[str, ...] | None:
        """Names of the models; None where these are the numbers of their rows."""
        named = any(name not in (f"model_{place}", f"{place}") for place, name in enumerate(self.model_ids))
        return self.model_ids if named else None

    @property
    def unit_kind(self) -> str:
        """What models are taken to depend through: `family` where known, else `group`, else `model`."""
        return "family" if self.families is not None else "group" if self.groups is not None else "model"

    @property
    def units(self) -> Units:
        """Code of the family of each model, or of its training run, or of itself; see `unit_kind`."""
        return self.unit_codes(self.unit_kind)

    def unit_codes(self, kind: str) -> Units:
        """Codes of the units of one kind, `family`, `group` or `model`, in which copies are one unit."""
        names = {"family": self.families, "group": self.groups, "model": range(self.n_models)}[kind]
        if names is None:
            raise InputError(f"the {kind} of each model is unknown; give it to `CorrectnessData.of`")
        return joined(unit_codes(np.asarray(names)), self.copies)

    @functools.cached_property
    def copies(self) -> Units:
        """Unit of each model such that copies of a model share one, whatever names and groups say."""
        right = self.example_accuracy()
        places = np.flatnonzero((right > 0) & (right < 1))
        if len(places) > MOST_EXAMPLES:
            places = np.sort(stream(0, "copies").choice(places, MOST_EXAMPLES, replace=False))
        labels = None if self.labels is None else self.labels[places]
        return find_copies(self.columns(places), labels, self.id_accuracy)

    def kind_of_units(self, *, by_family: bool) -> str:
        """What a bootstrap draws: training runs where known, or families where those are kept whole."""
        if self.groups is not None and not (by_family and self.families is not None):
            return "group"
        return self.unit_kind

    @functools.cached_property
    def hash(self) -> str:
        """16 hex digits of everything a selection or its verdict depends on."""
        digest = hashlib.sha256()
        # Which models share a unit, not what it is called.
        units = (each and unit_codes(each).tolist() for each in (self.groups, self.families))
        for each in (self.id_accuracy, *units, self.example_ids.tolist()):
            digest.update(each.tobytes() if isinstance(each, np.ndarray) else repr(each).encode())
        # Always the packed bits, so that one matrix has one hash in either storage.
        x = self.correct
        if isinstance(x, np.ndarray) and has_scores(x):
            digest.update(x.tobytes())
            return digest.hexdigest()[:16]
        bits = (x if isinstance(x, PackedMatrix) else PackedMatrix.pack(x)).bits
        wide = max(1, _BLOCK // len(bits))
        for start in range(0, self.n_examples, wide):
            digest.update(np.ascontiguousarray(bits[:, start : start + wide].T).tobytes())
        return digest.hexdigest()[:16]

    @property
    def cells(self) -> dict[str, Any]:
        """What answers are: `kind` is `scores`, or `bits` for right and wrong; `ends` of scores, if known.

        `named` says whether they are on examples with names of their own.
        """
        ends = self.source.get("ends")
        scored = ends is not None or (isinstance(self.correct, np.ndarray) and has_scores(self.correct))
        return {"kind": "scores" if scored else "bits", "ends": ends, "named": self.has_ids}

    @property
    def origin(self) -> dict[str, Any]:
        """What of `source` identifies the data, besides `hash`; how they were read does not."""
        return {name: self.source[name] for name in ORIGIN if name in self.source}

    # ----------------------------------------------------------------------------------------- numbers

    def matrix(
        self, models: Places | None = None, *, layout: str = "auto", device: str | None = None
    ) -> AnswerTable:
        """The rows of some models in a layout to compute with."""
        return as_matrix(self.correct, models, layout=layout, device=device)

    def accuracy_on(self, examples: Places, models: Places | None = None) -> Accuracies:
        """Eq. 3: share of some examples that each model gets right."""
        if len(examples) == 0:
            raise InputError("the selection is empty, so its accuracy is undefined")
        x, examples = self.correct, np.asarray(examples, dtype=np.int64)
        if isinstance(x, PackedMatrix):
            counts = x.count(examples)
        else:
            counts = x[:, examples].sum(axis=1, dtype=_sums(x))
        return np.asarray((counts if models is None else counts[models]) / len(examples))

    def accuracy(self, models: Places | None = None) -> Accuracies:
        """Out-of-distribution accuracy of each model on all examples."""
        return self._accuracy if models is None else self._accuracy[models]

    @functools.cached_property
    def _accuracy(self) -> Accuracies:
        x = self.correct
        if isinstance(x, PackedMatrix):
            return np.asarray(x.count(np.arange(self.n_examples)) / self.n_examples)
        return np.asarray(x.sum(axis=1, dtype=_sums(x)) / self.n_examples)

    def example_accuracy(self, models: Places | None = None) -> Float64[np.ndarray, " n"]:
        """Share of some models that gets each example right."""
        rows = rows_of(self.correct, models)
        n = self.n_models if models is None else len(models)
        if n == 0:
            raise InputError("the list of models is empty, so the share of correct models is undefined")
        packed = isinstance(rows, PackedMatrix)
        return np.asarray((rows.column_sums() if packed else rows.sum(axis=0, dtype=_sums(rows))) / n)

    def columns(self, examples: Places) -> Num[np.ndarray, "m k"]:
        """Columns of the matrix as 0 and 1, or scores, all models."""
        return columns_of(self.correct, np.asarray(examples, dtype=np.int64))

    def take_models(self, models: Places) -> "CorrectnessData":
        """The data of some models."""
        names: dict[str, Any] = {
            name: None if (each := getattr(self, name)) is None else tuple(each[place] for place in models)
            for name in ("model_ids", "groups", "families")
        }
        return replace(
            self,
            correct=rows_of(self.correct, models),
            id_accuracy=self.id_accuracy[models],
            n_id=None if self.n_id is None else self.n_id[models],
            **names,
        )

    def take_examples(self, examples: Places) -> "CorrectnessData":
        """The data of some examples."""
        x = self.correct
        columns: dict[str, Any] = {
            name: None if (each := getattr(self, name)) is None else each[examples]
            for name in ("example_ids", "labels", "embedding", "images")
        }
        taken = (
            PackedMatrix(x.bits[:, examples], x.n_models) if isinstance(x, PackedMatrix) else x[:, examples]
        )
        return replace(
            self,
            correct=taken,
            meta={name: column[examples] for name, column in self.meta.items()},
            **columns,
        )

    def quality(self) -> Quality:
        """What the matrix is made of; see `Quality`."""
        right, accuracy = self.example_accuracy(), self.accuracy()
        rows = {
            hashlib.sha256(row_of(self.correct, place).tobytes()).digest() for place in range(self.n_models)
        }

        def ends(values: Float64[np.ndarray, " n"]) -> tuple[float, float]:
            return float(values.min()), float(values.max())

        return Quality(
            n_models=self.n_models,
            n_examples=self.n_examples,
            n_groups=None if self.groups is None else len(set(self.groups)),
            n_families=None if self.families is None else len(set(self.families)),
            id_accuracy=ends(self.id_accuracy),
            accuracy=ends(accuracy),
            n_all_right=int(np.count_nonzero(right == 1)),
            n_all_wrong=int(np.count_nonzero(right == 0)),
            n_constant_models=int(np.count_nonzero((accuracy == 0) | (accuracy == 1))),
            n_duplicates=self.n_models - len(rows),
            reliability=reliability(self.id_accuracy, self.n_id),
        )

    def understood(self) -> Understood:
        """How the answers were read; see `Understood`."""
        source, codes = self.source, self.labels
        classes = None if codes is None else self.label_names or tuple(map(str, np.unique(codes).tolist()))
        return Understood(
            kind=str(source.get("kind", "arrays")),
            orientation=source.get("orientation"),
            columns=source.get("columns", {}),
            answers=source.get("answers", "scores" if has_scores(self.correct) else "0 and 1"),
            id_accuracy=source.get("id_accuracy", "given"),
            models=self.model_ids[:3],
            examples=tuple(map(str, self.example_ids[:3].tolist())),
            classes=classes,
            facts=tuple(self.meta),
            missing=source.get("missing", 0),
            left_out=source.get("left_out", {}),
            notes=tuple(filter(None, (*source.get("notes", ()), copies_note(self.copies)))),
            quality=self.quality(),
        )


def _sums(x: np.ndarray) -> type:
    """What entries are summed in: right answers exactly, scores in double precision."""
    return np.float64 if has_scores(x) else np.int64

"""`Zoo`: models on disk with how they were made; read from `zoo.json`, or found in a plain directory.

What a model says of images is kept below the zoo under a hash of its weights and of the images, and is not
computed again.
"""

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64, UInt8

from assay.circuits import write_atomically
from assay.core.errors import AssayError, FileFormatError, InputError, check_name
from assay.core.record import BRIEF, HIDDEN, Record, record_id
from assay.core.untrusted import load_npz, read_object
from assay.execution import run_model
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask


Progress = Callable[[str, int, int], None]
"""Told the stage, what is done and all there is to do."""

EMBEDDED = Path(__file__).parent / "embedded"
_KEY = re.compile(r"[A-Za-z0-9][\w.+=,@ -]{0,199}", re.ASCII)
SHOWN = 5  # models that are named in a sentence


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Correctness:
    """Which model gets which image right: the matrix that OODSelect reads.

    Attributes:
        correct: 1 where model i (row) classifies image j rightly `[M, N]`.
        id_accuracy: Accuracy of each model in distribution, 0 .. 1 `[M]`; NaN where unknown.
        keys: Names of the models.
        families: What each model started from; its own name where unknown.
        ids: Number of each image in its data set `[N]`.
        labels: Class of each image `[N]`.
        domain: Where the images come from.
        n_id: Images behind each in-distribution accuracy; 0 if unknown.
    """

    correct: UInt8[np.ndarray, "m n"]
    id_accuracy: Float64[np.ndarray, " m"]
    keys: tuple[str, ...]
    families: tuple[str, ...]
    ids: Int64[np.ndarray, " n"]
    labels: Int64[np.ndarray, " n"]
    domain: str
    n_id: int

    @property
    def accuracy(self) -> Float64[np.ndarray, " m"]:
        """Accuracy of each model on these images, 0 .. 1."""
        return np.asarray(self.correct.mean(axis=1))

    def save(self, path: str | Path) -> Path:
        """Write the archive that OODSelect reads.

        It holds `X`, `y`, `n_id`, `model_id`, `group` (the model: one per training run), `family`,
        `example_id`, `label`, and the columns `meta_id` and `meta_domain`; no pickles.

        Raises:
            InputError: If an in-distribution accuracy is unknown, or two images have one id.
            OutputError: If the file cannot be written.
        """
        if len(unknown := np.flatnonzero(np.isnan(self.id_accuracy))):
            what = f"accuracy of {len(unknown)} models is unknown, e.g. of {self.keys[unknown[0]]}"
            raise InputError(f"the in-distribution {what}; give labelled in-distribution images")
        examples = np.array([f"{self.domain}/{number}" for number in self.ids])
        if len(np.unique(examples)) < len(examples):
            raise InputError(f"two images of {self.domain!r} have the same id; ids must be unique")
        return _write_arrays(
            Path(path),
            X=self.correct,
            y=self.id_accuracy,
            n_id=np.array(self.n_id),
            model_id=np.array(self.keys),
            group=np.array(self.keys),
            family=np.array(self.families),
            example_id=examples,
            label=self.labels,
            meta_id=self.ids,
            meta_domain=np.array([self.domain] * len(self.ids)),
        )


@final
@dataclass(frozen=True, kw_only=True)
class ZooEntry(Record):
    """One model of a zoo.

    Attributes:
        key: Its name, unique in the zoo.
        path: Its directory, relative to the zoo.
        status: `done`, `failed` or `pending`.
        id_accuracy: Share of the held-out in-distribution images it gets right, 0 .. 1; None if unknown.
        best_step: Training step it was kept at; None if unknown.
        recipe: How it was trained; empty if unknown.
        weight_hash: `Model.weight_hash`; None if unknown.
        checkpoints: The model on its way: `step`, the training steps done, and `path`, relative to the zoo.
        reason: Why training failed.
    """

    key: str
    path: str
    status: str = "done"
    id_accuracy: float | None = None
    best_step: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    weight_hash: str | None = None
    checkpoints: tuple[Mapping[str, Any], ...] = ()
    reason: str = field(default="", metadata=BRIEF)

    def check(self) -> None:
        """Raises `FileFormatError` unless what is written under the key and the paths stays in the zoo."""
        if not _KEY.fullmatch(self.key):
            raise FileFormatError(f"invalid model name {self.key!r}; use letters, digits and '._+=,@-'")
        for place in (self.path, *(str(each.get("path", "")) for each in self.checkpoints)):
            if Path(place).is_absolute() or ".." in Path(place).parts:
                raise FileFormatError(f"the model {self.key!r} lies at {place!r}, outside the zoo")


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Zoo(Record):
    """Models that are compared with each other.

    Attributes:
        path: Directory of the zoo.
        name: What it is called.
        id_domain: Domain the models were trained on; None if unknown.
        classes: Names of the classes, label 0 first; None if unknown.
        data: Facts about the training images.
        selection: How its configurations were chosen; None if they were not.
        entries: The models, failed and pending ones included.

    Example:
        >>> zoo = Zoo.embedded()
        >>> zoo.id_domain, zoo.load(zoo.keys[0]).n_classes
        ('flat', 6)
    """

    record_schema = "assay-zoo/1"

    path: Path = field(default=Path(), metadata=HIDDEN)
    name: str
    id_domain: str | None = None
    classes: tuple[str, ...] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    selection: Mapping[str, Any] | None = None
    entries: tuple[ZooEntry, ...] = field(default=(), metadata={"key": "models"})

    def __repr__(self) -> str:
        return f"Zoo({self.name!r}, {len(self.keys)} models, id_domain={self.id_domain!r})"

    @classmethod
    def open(cls, path: str | Path) -> "Zoo":
        """A zoo that `train_zoo` wrote, or a plain directory with a directory per model.

        Args:
            path: Holds `zoo.json`; otherwise every directory in it that has a `config.json` is a model, in
                the order of names, in-distribution accuracy unknown.

        Raises:
            FileFormatError: If there is no such directory, `zoo.json` is damaged or of a newer kind, or no
                directory holds a model.
        """
        path = Path(path)
        if not path.is_dir():
            raise FileFormatError(f"{path} is not a directory; give a zoo, or a directory of models")
        if (path / "zoo.json").exists():
            document = read_object(path / "zoo.json", "a description of a zoo")
            try:
                zoo = replace(cls.from_dict(document), path=path)
                for entry in zoo.entries:
                    entry.check()
            except FileFormatError as error:
                raise FileFormatError(f"{path / 'zoo.json'}: {error}") from error
            return zoo
        folders = sorted(each.name for each in path.iterdir() if (each / "config.json").is_file())
        if not folders:
            raise FileFormatError(f"{path} has neither zoo.json nor directories with a config.json")
        return cls(path=path, name=path.name, entries=tuple(ZooEntry(key=f, path=f) for f in folders))

    @classmethod
    def embedded(cls) -> "Zoo":
        """The small ViTs on `shapes` that come with the package; no download."""
        return cls.open(EMBEDDED)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the models that are done."""
        return tuple(entry.key for entry in self.entries if entry.status == "done")

    @property
    def missing(self) -> dict[str, str]:
        """Models that are planned and not done -> their state, with the reason of a failure."""
        rest = [entry for entry in self.entries if entry.status != "done"]
        return {each.key: f"{each.status}: {each.reason}" if each.reason else each.status for each in rest}

    def check_done(self, fewest: int = 1) -> None:
        """Raises `InputError` unless that many models are done; it names those that are missing."""
        if len(self.keys) >= fewest:
            return
        found = f"{len(self.keys) or 'no'} trained model{'s' * (len(self.keys) > 1)}"
        rest = missing_text(self.missing, len(self.keys)) or "train or add more"
        raise InputError(f"the zoo {self.path} has {found}, but this needs at least {fewest}; {rest}")

    def entry(self, key: str) -> ZooEntry:
        """The entry of a name.

        Raises:
            UnknownNameError: If the zoo has no such model.
        """
        entries = {entry.key: entry for entry in self.entries}
        check_name("model of the zoo", key, entries)
        return entries[key]

    def folder(self, key: str) -> Path:
        """Directory of a model.

        Raises:
            UnknownNameError: If the zoo has no such model.
            InputError: If its training is not done.
        """
        entry = self.entry(key)
        if entry.status != "done":
            raise InputError(f"the training of {key} is {self.missing[key]}, so it has no model")
        return self.path / entry.path

    def load(self, key: str, *, device: str | None = None, dtype: torch.dtype | None = None) -> Model:
        """A model; numbers as of `load_model` by default.

        Raises:
            UnknownNameError: If the zoo has no such model.
            AssayError: Of `load_model`, with the name of the model in front.
        """
        folder = self.folder(key)
        with self._named(key):
            model = load_model(folder, device=device, dtype=dtype)
            if model.vision is None:
                raise InputError("it reads text; remove it from the zoo")
        return model

    def predict(self, key: str, images: ImageTask, **options: Any) -> Float32[np.ndarray, "n n_classes"]:
        """Logits of one model on images, from the zoo's records `records/KEY/HASH.npz` if they are there.

        What is computed is recorded, but for the embedded zoo.

        Args:
            key: Name of the model.
            images: Of the size that the model reads; the model's own normalisation is applied.
            options: Of `load`: `device`, `dtype`.

        Raises:
            InputError: If model and images do not have the same classes.
            ShapeError: If the model takes another size.
            NonFiniteError: If a logit is NaN or infinite.
            OutputError: If the record cannot be written.
        """
        model = self.load(key, **options)
        with self._named(key):
            task = images.with_transform(EvalTransform.for_model(model))
            task.validate(model.image_size, model.classes)
            identity = record_id("predictions", {"weights": model.weight_hash, "images": task.data_hash})
            place = self.path / "records" / key / f"{identity}.npz"
            if (logits := _read_logits(place)) is None:
                logits = run_model(model, task).float().cpu().numpy()
                if self.path != EMBEDDED:
                    _write_arrays(place, logits=logits)
        return logits

    def correctness(
        self,
        images: ImageTask,
        *,
        id_images: ImageTask | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Correctness:
        """Which model gets which image right, of those that are done, in their order.

        The answer of a model is its largest logit, the first of equals.

        Args:
            images: Labelled images, in or out of distribution.
            id_images: Labelled in-distribution images to measure `id_accuracy` on. Default: what the zoo
                knows from the validation of its training.
            progress: Called with the stage, the models done and all models.
            options: Of `load`: `device`, `dtype`.

        Raises:
            InputError: If labels are missing, the zoo has no model that is done, or classes differ.
            AssayError: As `predict`, with the name of the model in front.
        """
        self.check_done()
        sets, truths = [images, *([] if id_images is None else [id_images])], []
        for each in sets:
            if each.labels is None:
                raise InputError(f"images of {each.domain!r} have no labels, but correctness needs them")
            truths.append(each.labels.numpy())
        rows, accuracies = [], []
        for number, key in enumerate(self.keys, 1):
            answers = [self.predict(key, each, **options).argmax(axis=1) for each in sets]
            hits = [answer == truth for answer, truth in zip(answers, truths, strict=True)]
            rows.append(hits[0])
            accuracies.append(self.entry(key).id_accuracy if id_images is None else float(hits[1].mean()))
            if progress is not None:
                progress(f"predict {images.domain}".rstrip(), number, len(self.keys))
        return Correctness(
            correct=np.stack(rows).astype(np.uint8),
            id_accuracy=np.array(accuracies, dtype=np.float64),
            keys=self.keys,
            families=tuple(str(self.entry(key).recipe.get("init", key)) for key in self.keys),
            ids=images.ids.numpy(),
            labels=truths[0],
            domain=images.domain,
            n_id=id_images.n if id_images is not None else int(self.data.get("n_validation", 0)),
        )

    def save(self) -> Path:
        """Write `zoo.json`; an older one is replaced once the new one is complete."""
        content = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        return write_atomically(self.path / "zoo.json", content.encode())

    def with_entry(self, entry: ZooEntry) -> "Zoo":
        """The zoo with this entry instead of the one of the same name, or added."""
        entries = {each.key: each for each in self.entries} | {entry.key: entry}
        return replace(self, entries=tuple(entries.values()))

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Errors about one model say which it is."""
        try:
            yield
        except AssayError as error:
            # OSError and ImportError among the leaves take other arguments, a single text suits all.
            raise type(error)(f"model {key!r} of the zoo {self.name!r}: {error}") from error


def missing_text(missing: Mapping[str, str], done: int) -> str:
    """Which models of a zoo's plan are not there, and how to get them; empty where none is missing.

    Args:
        missing: As of `Zoo.missing`.
        done: Models that are there.
    """
    if not missing:
        return ""
    shown = ", ".join(f"{key} ({why})" for key, why in [*missing.items()][:SHOWN])
    text = f"{len(missing)} of {len(missing) + done} planned models are missing, e.g. {shown}"
    if all(why.startswith("failed") for why in missing.values()):
        return f"{text}; change the recipes that failed"
    return f"{text}; run the same `assay zoo train` command again, which goes on where it stopped"


def _read_logits(path: Path) -> np.ndarray | None:
    """The logits of a record, None where there is no whole one."""
    try:
        return load_npz(path)["logits"]
    except (FileFormatError, KeyError):  # cut off, or not there: it is made again
        return None


def _write_arrays(path: Path, **arrays: np.ndarray) -> Path:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with suppress(OSError):  # writing tells what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, buffer.getvalue())

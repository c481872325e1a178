"""What the models of a zoo say about images: logits, right answers, circuits; each made once and kept.

A file on disk carries the hash of the weights and of the images it was made with. One made with others, or
cut off half-way, is made again. Predictions also carry a hash of the model's files, so that reading them
loads no model.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64, UInt8

from assay.circuits import EdgeScores, load_scores, write_atomically
from assay.core.errors import AssayError, FileFormatError, InputError, OutputError, UnsafeFileError
from assay.core.record import Record, library_version, record_id
from assay.core.untrusted import load_npz, malformed, parse_json
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model
from assay.models.merging import CONFIG as ADAPTER
from assay.models.placing import choose_device
from assay.tasks import EvalTransform, ImageSet, ImageTask
from assay.zoo.scoring import images_hash


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Logits of one model on one set of images.

    Attributes:
        key: Name of the model.
        logits: `[N, n_classes]`, float32.
        labels: Class of each image `[N]`; -1 where unknown.
        ids: Number of each image in its data set `[N]`.
        weight_hash: Of the model.
        data_hash: Of the images.
    """

    key: str
    logits: Float32[np.ndarray, "n n_classes"]
    labels: Int64[np.ndarray, " n"]
    ids: Int64[np.ndarray, " n"]
    weight_hash: str
    data_hash: str

    @property
    def correct(self) -> UInt8[np.ndarray, " n"]:
        """1 where the largest logit (the first of equals) is that of the label, else 0.

        Raises:
            InputError: If a label is unknown.
        """
        if (self.labels < 0).any():
            raise InputError(
                f"{int((self.labels < 0).sum())} of {len(self.labels)} images have no label, but "
                "correctness needs labels"
            )
        right: UInt8[np.ndarray, " n"] = (self.logits.argmax(axis=1) == self.labels).astype(np.uint8)
        return right

    @property
    def accuracy(self) -> float:
        """Share of the images that the model gets right, 0 .. 1."""
        return float(self.correct.mean())


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
        shares: Float64[np.ndarray, " m"] = self.correct.mean(axis=1)
        return shares

    def save(self, path: str | Path) -> Path:
        """Write the archive that OODSelect reads.

        It holds `X`, `y`, `n_id`, `model_id`, `group` (the model: one per training run), `family`,
        `example_id`, `label`, and the columns `meta_id` and `meta_domain`; no pickles.

        Raises:
            InputError: If an in-distribution accuracy is unknown, or two images have one id.
            OutputError: If the file cannot be written.
        """
        if unknown := [k for k, y in zip(self.keys, self.id_accuracy, strict=True) if np.isnan(y)]:
            raise InputError(
                f"the in-distribution accuracy of {len(unknown)} models is unknown, e.g. of {unknown[0]}; "
                "give labelled in-distribution images to measure it on"
            )
        examples = np.array([f"{self.domain}/{number}" for number in self.ids])
        if len(np.unique(examples)) < len(examples):
            raise InputError(f"two images of {self.domain!r} have the same id; ids must be unique")
        content = _archive(
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
        return write_atomically(Path(path), content)

    @classmethod
    def load(cls, path: str | Path) -> "Correctness":
        """The matrix of a file that `save` wrote.

        Raises:
            FileFormatError: If the file is no such archive.
        """
        try:
            arrays = load_npz(path)
        except UnsafeFileError:
            raise
        except FileFormatError as error:
            raise FileFormatError(f"{path} is not a correctness matrix of a zoo: {error}") from error
        with malformed(path, "a correctness matrix of a zoo"):
            matrix = cls(
                correct=arrays["X"],
                id_accuracy=arrays["y"],
                keys=tuple(map(str, arrays["model_id"])),
                families=tuple(map(str, arrays["family"])),
                ids=arrays["meta_id"],
                labels=arrays["label"],
                domain=str(arrays["meta_domain"][0]),
                n_id=int(arrays["n_id"]),
            )
            shape = (len(matrix.keys), len(matrix.ids))
            if (
                matrix.correct.shape != shape
                or len(matrix.families) != shape[0]
                or matrix.labels.shape != shape[1:]
            ):
                raise ValueError(
                    f"X has shape {matrix.correct.shape}, but {shape} models and images are named"
                )
        return matrix


@runtime_checkable
class ModelFolder(Protocol):
    """A zoo, as far as the records below it need one.

    Attributes:
        name: What it is called.
        path: Its directory.
        keeps_records: Whether results are written there by default.
    """

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def keeps_records(self) -> bool: ...

    def folder(self, key: str, step: int | None = None) -> Path:
        """Directory of a model of the zoo."""
        ...

    def load(
        self,
        key: str,
        *,
        step: int | None = None,
        device: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Model:
        """A model of the zoo."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class ImageReading(Record):
    """What of a model decides how its images are read; `EvalTransform.for_model` takes it.

    Attributes:
        image_size: Height and width in pixels.
        preprocessing: What was stored with the model of how images are prepared; None if nothing is.
        classes: Names of its classes, label 0 first; None if it does not know them.
        files_hash: Of the files that it was loaded from.
    """

    image_size: tuple[int, int]
    preprocessing: Mapping[str, Any] | None
    classes: tuple[str, ...] | None
    files_hash: str


def image_reading(zoo: ModelFolder, key: str, *, keep: bool | Path | None = None) -> ImageReading:
    """How a model reads images; it is loaded the first time, and again once its files have changed.

    Args:
        zoo: The zoo.
        key: Name of a model in it.
        keep: As of `predict`; the record is `KEY.json`.

    Raises:
        AssayError: Of `ModelFolder.load`.
        OutputError: If the record cannot be written.
    """
    place, files_hash = _place(zoo, keep, f"{key}.json"), _files_hash(zoo.folder(key))
    if place is not None and place.is_file():
        try:
            record = ImageReading.from_dict(parse_json(place.read_text(encoding="utf-8")))
        except (ValueError, OSError):  # cut off, or of another version: it is made again
            record = None
        if record is not None and record.files_hash == files_hash != "":
            return record
    model = zoo.load(key)
    reading = ImageReading(
        image_size=model.image_size,
        preprocessing=model.preprocessing,
        classes=model.classes,
        files_hash=files_hash,
    )
    if place is not None and files_hash:
        _make_folder(place.parent)
        write_atomically(place, json.dumps(reading.to_dict()).encode())
    return reading


def predict(
    zoo: ModelFolder,
    key: str,
    images: ImageSet,
    *,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    keep: bool | Path | None = None,
) -> Predictions:
    """Logits of one model on images, from the zoo's records if they are there.

    Args:
        zoo: The zoo.
        key: Name of a model in it.
        images: Of the size that the model reads; the model's own normalisation is applied.
        batch_size: Images per pass. Default: by free memory.
        device: Where to run. Default: the CPU.
        dtype: Number type of the weights. Default: as of `load_model`.
        keep: Read and write `records/DATASET/KEY.npz` below the zoo, or `DATASET/KEY.npz` below this folder.
            Default: below the zoo, unless it is the embedded one.

    Raises:
        InputError: If model and images do not have the same classes.
        ShapeError: If the model takes another size.
        NonFiniteError: If a logit is NaN or infinite.
        OutputError: If the record cannot be written.
    """
    content = images_hash(images)
    place = _place(zoo, keep, f"{_data_key(images, content)}/{key}.npz")
    with _named(zoo, key):
        record = None if place is None else _read_record(place)
        request = _request_hash(zoo.folder(key), images.classes, content, device=device, dtype=dtype)
        if record is not None and request and str(record.get("request_hash")) == request:
            return _predictions(key, record)
        model = zoo.load(key, device=device, dtype=dtype)
        task = task_for(model, images)
        hashes = {"weight_hash": model.weight_hash, "data_hash": _record_hash(task)}
        if record is not None and all(str(record[name]) == value for name, value in hashes.items()):
            if place is not None and request:  # the next time the model is not needed
                with suppress(OutputError):  # a zoo that is read-only is read as it is
                    _write(place, record | {"request_hash": np.array(request)})
            return _predictions(key, record)
        logits = run_model(model, task, batch_size=batch_size).float().cpu().numpy()
    labels = np.full(images.n, -1, dtype=np.int64) if images.labels is None else images.labels
    arrays = {"logits": logits, "labels": labels, "ids": images.ids}
    arrays |= {name: np.array(value) for name, value in (hashes | {"request_hash": request}).items()}
    if place is not None:
        _write(place, arrays)
    return _predictions(key, arrays)


def _write(place: Path, arrays: Mapping[str, np.ndarray]) -> None:
    _make_folder(place.parent)
    write_atomically(place, _archive(**arrays))


def _predictions(key: str, arrays: Mapping[str, np.ndarray]) -> Predictions:
    return Predictions(
        key=key,
        logits=arrays["logits"],
        labels=arrays["labels"],
        ids=arrays["ids"],
        weight_hash=str(arrays["weight_hash"]),
        data_hash=str(arrays["data_hash"]),
    )


def edge_scores(
    zoo: ModelFolder,
    key: str,
    images: ImageSet,
    *,
    method: str = "eap-ig-inputs",
    objective: str | None = None,
    ablation: str | None = None,
    steps: int = 5,
    seed: int = 0,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    keep: bool | None = None,
) -> EdgeScores:
    """Edge scores of one model on images, from `circuits/` below the zoo if they are there.

    Args:
        zoo: The zoo.
        key: Name of a model in it.
        images: Of the size that the model reads; labels are used only by an objective that needs them.
        method: As for `assay.discover`, like the five that follow.
        objective: Loss to attribute.
        ablation: What a cut edge carries.
        steps: Quadrature nodes.
        seed: Root seed of all random draws.
        batch_size: Images per pass.
        device: Where to run. Default: the CPU.
        dtype: Number type of the weights. Default: as of `load_model`.
        keep: Read and write `circuits/DATASET/KEY.safetensors` below the zoo. Default: unless it is the
            embedded one.

    Raises:
        AssayError: Of `discover`, with the name of the model in front.
        OutputError: If the file cannot be written.
    """
    options: dict[str, Any] = {
        "method": method,
        "objective": objective,
        "ablation": ablation,
        "steps": steps,
        "seed": seed,
    }
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:6]
    keep = zoo.keeps_records if keep is None else keep
    place = zoo.path / "circuits" / f"{data_key(images)}-{digest}" / f"{key}.safetensors"
    with _named(zoo, key):
        model = zoo.load(key, device=device, dtype=dtype)
        task = task_for(model, images)
        if keep and (earlier := _read_circuit(place, model, task)) is not None:
            return earlier
        scores = discover(model, task, batch_size=batch_size, **options)
    if keep:
        _make_folder(place.parent)
        scores.save(place)
    return scores


def task_for(model: Model, images: ImageSet) -> ImageTask:
    """The images as a model reads them, checked for their size and classes."""
    task = images.task(EvalTransform.for_model(model))
    task.validate(model.image_size, model.classes)
    return task


def data_key(images: ImageSet) -> str:
    """Name of a set of images in folders: its domain and the start of its hash."""
    return _data_key(images, images_hash(images))


def _data_key(images: ImageSet, content: str) -> str:
    domain = re.sub(r"[^A-Za-z0-9]+", "-", images.domain or images.name).strip("-").lower()
    return f"{domain}-{content[:8]}"


def _place(zoo: ModelFolder, keep: bool | Path | None, name: str) -> Path | None:
    """Where a record lies; None where none is kept."""
    if isinstance(keep, Path):
        return keep / name
    return zoo.path / "records" / name if (zoo.keeps_records if keep is None else keep) else None


def _request_hash(
    folder: Path,
    classes: Sequence[str] | None,
    content: str,
    *,
    device: str | None,
    dtype: torch.dtype | None,
) -> str:
    """Hash of all that logits are a function of, known without the model; empty where it is not.

    The kind of device decides the number type where none is asked for.
    """
    facts = {
        "files": _files_hash(folder),
        "images": content,
        "classes": classes,
        "device": choose_device(device).type,
        "dtype": str(dtype),
    }
    return record_id("zoo-predictions", facts) if facts["files"] else ""


def _files_hash(folder: Path) -> str:
    """Hash of the files that a model is loaded from, and of the version that reads them.

    Empty for an adapter, whose base lies elsewhere.
    """
    if not folder.is_dir() or (folder / ADAPTER).is_file():
        return ""
    digest = hashlib.sha256(library_version().encode())
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors") and path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.name} {content} ".encode())
    return digest.hexdigest()[:16]


def _record_hash(task: ImageTask) -> str:
    """Hash of images after normalisation, labels and ids."""
    ids = hashlib.sha256(task.ids.numpy().tobytes()).hexdigest()
    return hashlib.sha256(f"{task.data_hash} {ids}".encode()).hexdigest()[:16]


def _archive(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _read_record(path: Path) -> dict[str, Any] | None:
    """The arrays of a record, None where there is no whole one."""
    try:
        file = load_npz(path)
    except FileFormatError:  # cut off, or not there: it is made again
        return None
    return file if file.keys() >= {"logits", "labels", "ids", "weight_hash", "data_hash"} else None


def _read_circuit(path: Path, model: Model, task: ImageTask) -> EdgeScores | None:
    if not path.exists():
        return None
    try:
        scores = load_scores(path, model.graph)
    except AssayError:  # cut off, or of another model: it is made again
        return None
    provenance = scores.provenance
    same = (
        provenance["model"]["weight_hash"] == model.weight_hash
        and provenance["task"]["data_hash"] == task.data_hash
    )
    return scores if same else None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot make {folder}: {error.strerror}; copy the zoo to a writable place"
        ) from error


@contextmanager
def _named(zoo: ModelFolder, key: str) -> Iterator[None]:
    """Errors about one model say which it is."""
    try:
        yield
    except AssayError as error:
        if str(error).startswith(f"model {key!r}"):
            raise
        raise type(error)(f"model {key!r} of the zoo {zoo.name!r}: {error}") from error

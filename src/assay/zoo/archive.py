"""`Zoo`: models on disk with how they were made; read from `zoo.json`, or found in a plain directory."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from assay.circuits import write_atomically
from assay.core.errors import AssayError, FileFormatError, InputError, unknown_name
from assay.core.record import BRIEF, Record, named
from assay.core.untrusted import MALFORMED, parse_json
from assay.models import Model, load_model
from assay.tasks import ImageSet
from assay.zoo.records import Correctness, predict
from assay.zoo.training import Progress


SCHEMA = "assay-zoo/1"
_KEY = re.compile(r"[A-Za-z0-9][\w.+=,@ -]{0,199}", re.ASCII)
SHOWN = 5  # models that are named in a sentence
EMBEDDED = Path(__file__).parent / "embedded"


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint(Record):
    """A model on its way: training steps done, and its directory, relative to the zoo."""

    step: int
    path: str


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
        kept: Its checkpoints.
        reason: Why training failed.
    """

    key: str
    path: str
    status: str = "done"
    id_accuracy: float | None = None
    best_step: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    weight_hash: str | None = None
    kept: tuple[Checkpoint, ...] = field(default=(), metadata=named("checkpoints"))
    reason: str = field(default="", metadata=BRIEF)

    @property
    def checkpoints(self) -> dict[int, str]:
        """Training step to directory, relative to the zoo."""
        return {each.step: each.path for each in self.kept}

    def check(self) -> None:
        """Raises `FileFormatError` unless what is written under the key and the paths stays in the zoo."""
        if not _KEY.fullmatch(self.key):
            raise FileFormatError(
                f"invalid model name {self.key!r}: it becomes a file name. Use letters, digits and any of "
                "'._+=,@-', beginning with a letter or digit"
            )
        for place in (self.path, *self.checkpoints.values()):
            if Path(place).is_absolute() or ".." in Path(place).parts:
                raise FileFormatError(
                    f"the model {self.key!r} lies at {place!r}, outside the zoo; move it inside"
                )


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Zoo:
    """Models that are compared with each other.

    Attributes:
        path: Directory of the zoo.
        name: What it is called.
        entries: The models, failed and pending ones included.
        id_domain: Domain the models were trained on; None if unknown.
        classes: Names of the classes, label 0 first; None if unknown.
        data: Facts about the training images.
        selection: How its configurations were chosen; None if they were not.

    Example:
        >>> zoo = Zoo.embedded()
        >>> zoo.id_domain, zoo.load(zoo.keys[0]).n_classes
        ('flat', 6)
    """

    path: Path
    name: str
    entries: tuple[ZooEntry, ...]
    id_domain: str | None = None
    classes: tuple[str, ...] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    selection: Mapping[str, Any] | None = None

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
            raise FileFormatError(
                f"{path} is not a directory; give a zoo, or a directory of model directories"
            )
        if not (path / "zoo.json").exists():
            return cls._plain(path)
        try:
            content = parse_json((path / "zoo.json").read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise FileFormatError(
                    f"{path / 'zoo.json'} has schema {content['schema']!r}; this version reads {SCHEMA!r}"
                )
            return cls(
                path=path,
                name=content["name"],
                entries=tuple(map(_entry, content["models"])),
                id_domain=content["id_domain"],
                classes=None if content["classes"] is None else tuple(content["classes"]),
                data=content["data"],
                selection=content["selection"],
            )
        except (OSError, *MALFORMED) as error:
            if isinstance(error, AssayError):
                raise
            raise FileFormatError(f"{path / 'zoo.json'} is not a description of a zoo: {error!r}") from error

    @classmethod
    def _plain(cls, path: Path) -> "Zoo":
        folders = sorted(each.name for each in path.iterdir() if (each / "config.json").is_file())
        if not folders:
            raise FileFormatError(
                f"{path} has neither zoo.json nor directories with a config.json; give a zoo, or a "
                "directory of model directories"
            )
        return cls(path=path, name=path.name, entries=tuple(ZooEntry(key=f, path=f) for f in folders))

    @classmethod
    def embedded(cls) -> "Zoo":
        """The small ViTs on `shapes` that come with the package; no download."""
        return cls.open(EMBEDDED)

    @property
    def keeps_records(self) -> bool:
        """Whether what its models say is kept below it; not below the embedded zoo."""
        return self.path != EMBEDDED

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the models that are done."""
        return tuple(entry.key for entry in self.entries if entry.status == "done")

    @property
    def missing(self) -> dict[str, str]:
        """Models that are planned and not done -> their state, with the reason of a failure."""
        return {
            entry.key: f"{entry.status}: {entry.reason}" if entry.reason else entry.status
            for entry in self.entries
            if entry.status != "done"
        }

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
        for entry in self.entries:
            if entry.key == key:
                return entry
        raise unknown_name("model of the zoo", key, [entry.key for entry in self.entries])

    def folder(self, key: str, step: int | None = None) -> Path:
        """Directory of a model, or of its checkpoint after a training step.

        Raises:
            UnknownNameError: If the zoo has no such model.
            InputError: If it has no such checkpoint, or its training is not done.
        """
        entry = self.entry(key)
        if step is not None:
            if step not in entry.checkpoints:
                steps = sorted(entry.checkpoints)
                raise InputError(f"{key} has no checkpoint after step {step}; available steps: {steps}")
            return self.path / entry.checkpoints[step]
        if entry.status != "done":
            why = f" ({entry.reason})" if entry.reason else ""
            raise InputError(f"the training of {key} is {entry.status}{why}, so it has no model")
        return self.path / entry.path

    def load(
        self,
        key: str,
        *,
        step: int | None = None,
        device: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Model:
        """A model, or its checkpoint after a training step; numbers as of `load_model` by default.

        Raises:
            UnknownNameError: If the zoo has no such model.
            AssayError: Of `load_model`, with the name of the model in front.
        """
        folder = self.folder(key, step)
        try:
            model = load_model(folder, device=device, dtype=dtype)
        except AssayError as error:
            # OSError and ImportError among the leaves take other arguments, a single text suits all.
            raise type(error)(f"model {key!r} of the zoo {self.name!r}: {error}") from error
        if model.vision is None:
            raise InputError(f"model {key!r} of the zoo {self.name!r} reads text; remove it from the zoo")
        return model

    def correctness(
        self,
        images: ImageSet,
        *,
        id_images: ImageSet | None = None,
        batch_size: int | None = None,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        keep: bool | Path | None = None,
        progress: Progress | None = None,
    ) -> Correctness:
        """Which model gets which image right, of those that are done, in their order.

        Args:
            images: Labelled images, in or out of distribution.
            id_images: Labelled in-distribution images to measure `id_accuracy` on. Default: what the zoo
                knows from the validation of its training.
            batch_size: Images per pass. Default: by free memory.
            device: Where to run. Default: the CPU.
            dtype: Number type of the weights. Default: as of `load_model`.
            keep: Read and write the zoo's records, or those in this folder. Default: the zoo's, unless it is
                the embedded one.
            progress: Called with the stage, the models done and all models.

        Raises:
            InputError: If labels are missing, the zoo has no model that is done, or classes differ.
            AssayError: As `predict`, with the name of the model in front.
        """
        self.check_done()
        for given in (images, id_images):
            if given is not None and given.labels is None:
                raise InputError(f"the images of {given.domain!r} have no labels, but correctness needs them")
        options: dict[str, Any] = {"batch_size": batch_size, "device": device, "dtype": dtype, "keep": keep}

        def answers(key: str, given: ImageSet) -> np.ndarray:
            return predict(self, key, given, **options).correct

        rows, within = [], []
        for number, key in enumerate(self.keys):
            if progress is not None:
                progress("predict", number, len(self.keys))
            rows.append(answers(key, images))
            if id_images is not None:
                within.append(answers(key, id_images).mean())
            else:
                accuracy = self.entry(key).id_accuracy
                within.append(np.nan if accuracy is None else accuracy)
        if progress is not None:
            progress("predict", len(self.keys), len(self.keys))
        assert images.labels is not None
        return Correctness(
            correct=np.stack(rows),
            id_accuracy=np.array(within, dtype=np.float64),
            keys=self.keys,
            families=tuple(str(self.entry(key).recipe.get("init", key)) for key in self.keys),
            ids=images.ids,
            labels=images.labels,
            domain=images.domain,
            n_id=id_images.n if id_images is not None else int(self.data.get("n_validation", 0)),
        )

    def save(self) -> Path:
        """Write `zoo.json`; an older one is replaced once the new one is complete."""
        content = {
            "schema": SCHEMA,
            "name": self.name,
            "id_domain": self.id_domain,
            "classes": None if self.classes is None else list(self.classes),
            "data": dict(self.data),
            "selection": None if self.selection is None else dict(self.selection),
            "models": [entry.to_dict() for entry in self.entries],
        }
        return write_atomically(
            self.path / "zoo.json", json.dumps(content, indent=1, allow_nan=False).encode()
        )

    def with_entry(self, entry: ZooEntry) -> "Zoo":
        """The zoo with this entry instead of the one of the same name, or added."""
        if entry.key in [each.key for each in self.entries]:
            entries = tuple(entry if each.key == entry.key else each for each in self.entries)
        else:
            entries = (*self.entries, entry)
        return replace(self, entries=entries)


def missing_text(missing: Mapping[str, str], done: int) -> str:
    """Which models of a zoo's plan are not there, and how to get them; empty where none is missing.

    Args:
        missing: As of `Zoo.missing`.
        done: Models that are there.
    """
    if not missing:
        return ""
    shown = [f"{key} ({why})" for key, why in missing.items()][:SHOWN]
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    text = f"{len(missing)} of {len(missing) + done} planned models are missing: {', '.join(shown)}{more}"
    if all(why.startswith("failed") for why in missing.values()):
        return f"{text}; change the recipes that failed"
    return f"{text}; run the same `assay zoo train` command again, which goes on where it stopped"


def _entry(document: object) -> ZooEntry:
    """The entry of a `zoo.json`: records of a model are written under its key, below the zoo."""
    entry = ZooEntry.from_dict(document)
    entry.check()
    return entry

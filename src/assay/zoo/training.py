"""Training image classifiers, one by a recipe or a zoo by a grid; a run that was killed goes on.

All chance of a step comes from streams named after the seed and the step's number: the order of the images,
the augmentation, dropout. A state file therefore holds only tensors and the course of the run, no state of a
generator, and a run that goes on ends with the weights of one that was never stopped.
"""

import copy
import json
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float, Int64
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from assay.circuits import write_atomically
from assay.core.errors import AssayWarning, FileFormatError, InputError, NonFiniteError, check_name
from assay.core.random import stream
from assay.core.record import HIDDEN, Record
from assay.core.untrusted import parse_json, read_object
from assay.models import load_model
from assay.tasks import EvalTransform, ImageTask
from assay.tasks.image_reading import ahead
from assay.zoo.archive import Progress, Zoo, ZooEntry
from assay.zoo.grid import Grid, Recipe
from assay.zoo.models import head_names, initial_module, module_logits, save_model, weights_hash


PRECISIONS = ("float32", "bfloat16")
EVALUATION_BATCH = 256
LOCK = ".lock"  # held while `zoo.json` is read and written again: shards share it
Row = Mapping[str, Any]
"""A validation: `step`, `score`, `loss` (mean cross entropy, nats)."""


# --------------------------------------------------------------------------------------------------- images


def labels_of(images: ImageTask) -> Int64[np.ndarray, " n"]:
    """Class of each image.

    Raises:
        InputError: If it is unknown.
    """
    if images.labels is None:
        raise InputError(f"the images of {images.domain!r} have no labels, but training and scores need them")
    return np.asarray(images.labels, dtype=np.int64)


def split(images: ImageTask, share: float, *, seed: int = 0) -> tuple[ImageTask, ImageTask]:
    """Images to train on and images to validate on, drawn at random within each class.

    Args:
        images: Labelled images of one domain.
        share: Share of every class that is held out, rounded, at least one image; between 0 and 1.
        seed: Seed of the stream `zoo/split`.

    Raises:
        InputError: If labels are missing, the share is out of range, or a class has a single image.
    """
    labels = labels_of(images)
    if not 0 < share < 1:
        raise InputError(f"the held-out share is {share}; expected a fraction between 0 and 1")
    rng = stream(seed, "zoo/split")
    held = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < 2:
            raise InputError(f"class {label} of {images.domain!r} has only one image; add more or remove it")
        held.append(rows[: max(1, min(len(rows) - 1, round(share * len(rows))))])
    held_out = np.sort(np.concatenate(held))
    kept = np.setdiff1d(np.arange(images.n), held_out)
    return images.subset(kept), images.subset(held_out)


def shared(training: ImageTask, validation: ImageTask) -> list[int]:
    """Numbers of the validation images that are trained on; of images in files, those of one source."""
    theirs = validation.ids.tolist()
    if training.pixels is not None and validation.pixels is not None:
        mine = dict(zip(training.ids.tolist(), training.pixels, strict=True))
        pairs = zip(theirs, validation.pixels, strict=True)
        return [number for number, pixels in pairs if number in mine and np.array_equal(mine[number], pixels)]
    if training.source is None or training.source is not validation.source:
        return []
    both = np.isin(validation.rows, training.rows)
    return [number for number, hit in zip(theirs, both, strict=True) if hit]


def transform_for(images: ImageTask, stored: EvalTransform | None) -> EvalTransform:
    """How a model reads images: as its checkpoint says, else resized and scaled to [-1, 1].

    Images in memory have their size: the arithmetic of a checkpoint holds for them, its geometry does not.
    """
    if stored is not None and images.source is not None:
        return stored
    return replace(stored or EvalTransform(), resize=images.image_size, crop=None, fit="squash")


def batch_rows(n: int, batch_size: int, step: int, *, seed: int) -> Int64[np.ndarray, " batch"]:
    """Rows of the training set in the batch of a step; every epoch has its own order, its rest is left out.

    Args:
        n: Images of the training set.
        batch_size: Images per step; `n` if that is smaller.
        step: Number of the step, from 0.
        seed: Seed of the streams `zoo/epoch/NUMBER`.
    """
    size = min(batch_size, n)
    epoch, place = divmod(step, n // size)
    order = stream(seed, f"zoo/epoch/{epoch}").permutation(n)
    return order[place * size : (place + 1) * size]


class TrainingBatches:
    """The batches of a training by the number of the step: the same in any thread, in any order.

    Args:
        images: Labelled.
        recipe: Batch size, augmentation, seed.
        transform: Size and normalisation.
    """

    def __init__(self, images: ImageTask, recipe: Recipe, transform: EvalTransform) -> None:
        self._images, self._recipe, self._transform = images, recipe, transform
        self._labels = labels_of(images)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of the batch of a step."""
        rows = batch_rows(len(self._labels), self._recipe.batch_size, step, seed=self._recipe.seed)
        rng = stream(self._recipe.seed, f"zoo/augment/{step}")
        pixels = self._recipe.augmentation.apply(self._pixels(rows), rng)
        return self._transform.normalised(pixels), torch.from_numpy(self._labels[rows])

    def _pixels(self, rows: Int64[np.ndarray, " batch"]) -> np.ndarray:
        images = self._images
        if images.pixels is not None:
            held: np.ndarray = images.pixels[rows]
            return held
        assert images.source is not None  # normalised images take no transform
        places = images.rows[torch.from_numpy(rows)].tolist()
        return np.stack([images.source.decoded(at, self._transform) for at in places])

    def from_step(self, first: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of each step from `first` to the last, on the device.

        Raises:
            FileFormatError: If an image cannot be decoded.
        """
        on_gpu = torch.device(device).type == "cuda"

        def batch(step: int) -> tuple[Tensor, Tensor]:
            images, labels = self[step]
            return (images.pin_memory(), labels.pin_memory()) if on_gpu else (images, labels)

        steps = range(first, self._recipe.steps)
        for images, labels in ahead(batch, steps, self._images.decoding_workers):
            yield images.to(device, non_blocking=on_gpu), labels.to(device, non_blocking=on_gpu)


def score_of(
    module: nn.Module,
    images: ImageTask,
    transform: EvalTransform,
    *,
    score: str = "accuracy",
    device: str | None = None,
) -> tuple[float, float]:
    """Score and mean cross entropy (nats) of a classifier on labelled images.

    Args:
        module: In evaluation mode.
        images: Labelled; in memory, of the size that the model reads.
        transform: Normalisation of the images, and geometry of those in files.
        score: `accuracy`, or `macro-f1`: the mean F1 over the classes that occur, as in WILDS.
        device: Where the module is. Default: the CPU.
    """
    from sklearn.metrics import f1_score

    labels = labels_of(images)
    dtype = next((each.dtype for each in module.parameters()), torch.float32)
    with torch.inference_mode():
        answers = [
            module_logits(module, batch.images.to(device or "cpu", dtype)).float().cpu()
            for batch in images.with_transform(transform).batches(EVALUATION_BATCH)
        ]
    logits = torch.cat(answers)
    loss = float(cross_entropy(logits.double(), torch.from_numpy(labels)))
    if not np.isfinite(loss):
        raise NonFiniteError(f"logits on {images.domain!r} are NaN or infinite; the model has diverged")
    predicted = logits.argmax(dim=1).numpy()
    if score == "accuracy":
        return float((predicted == labels).mean()), loss
    present = np.unique(labels)
    return float(f1_score(labels, predicted, labels=present, average="macro", zero_division=0)), loss


# ---------------------------------------------------------------------------------------------------- a run


class Term(NamedTuple):
    """What a loss term adds to the mean cross entropy of a batch, and numbers for the history of the run."""

    value: Float[Tensor, ""]
    readings: Mapping[str, float]


class LossTerm(ABC):
    """A quantity added to the cross entropy of every batch, e.g. a penalty on the circuit."""

    @abstractmethod
    def on(self, module: nn.Module) -> Callable[[Float[Tensor, "batch 3 h w"]], Term]:
        """The term of a module, which is in evaluation mode when it is called with the images of a batch."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Every setting as JSON values: part of what a run is told by."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRun(Record):
    """A run, as `training.json` holds it.

    Attributes:
        folder: Where it lies, as `load_model` reads it.
        recipe: How it is trained.
        initial_weights: Hash of the weights it started from.
        data: Domain, size and hash of each set of images.
        classes: Names of the classes.
        transform: How the model reads images.
        loss_term: Settings of what was added to the cross entropy; None if nothing was.
        precision: Number type of the passes of a step.
        checkpoints: Steps at which the model was kept on the way, as `checkpoints/STEP` of the folder.
        best_step: Number of steps after which the validation score was best (the first of equals).
        best_score: That score, 0 .. 1.
        weights: Hash of the weights at the best step.
        seconds: Time of the steps.
        curve: A row per validation: `step`, `score`, `loss` (mean cross entropy, nats).
        history: A value per step of `loss` (cross entropy of the batch, nats) and, with a loss term, of
            `term` and each of its readings.
    """

    record_schema = "assay-training/1"

    folder: Path = field(default=Path(), metadata=HIDDEN)
    recipe: Recipe
    initial_weights: str
    data: Mapping[str, Any]
    classes: Sequence[str] | None
    transform: Mapping[str, Any]
    loss_term: Mapping[str, Any] | None = None
    precision: str = "float32"
    checkpoints: tuple[int, ...] = ()
    best_step: int = 0
    best_score: float = -1.0
    weights: str = ""
    seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)
    history: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path) -> "TrainingRun | None":
        """The finished run of a folder; None if there is none.

        Raises:
            FileFormatError: If `training.json` is damaged.
        """
        path = Path(folder) / "training.json"
        if not path.exists():
            return None
        return replace(cls.from_dict(read_object(path, "the record of a training run")), folder=Path(folder))

    @property
    def facts(self) -> dict[str, Any]:
        """What the result depends on, as JSON values."""
        course = ("best_step", "best_score", "weights", "seconds", "curve", "history")
        return {name: value for name, value in self.to_dict().items() if name not in course}


def _check_equal(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any], of: str = "") -> None:
    """Refuse a folder in which something else was made; names the first fact that differs."""
    for name in {**there, **here}:
        old, new = there.get(name), here.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            _check_equal(folder, old, new, f"{of}{name}.")
        elif old != new:
            raise InputError(f"{folder} is of another training: {of}{name} is {old} there, {new} here")


def train(
    module: nn.Module,
    train_set: ImageTask,
    validation_set: ImageTask,
    recipe: Recipe,
    folder: str | Path,
    *,
    transform: EvalTransform | None = None,
    loss_term: LossTerm | None = None,
    checkpoints: Sequence[int] = (),
    device: str | None = None,
    precision: str = "float32",
    progress: Progress | None = None,
    validated: Callable[[Row], None] | None = None,
) -> TrainingRun:
    """Train a classifier and keep the weights of the best validation.

    The same call goes on after the last validation of a run that was stopped, and reads a finished one. It
    ends with the weights of a run that was never stopped, bit by bit (on the same CPU and number of threads).

    Args:
        module: A Hugging Face or timm image classifier with an output per class. Not changed.
        train_set: Labelled images: in memory, of the size the model reads, or in files, whose crops are cut
            from the resized images.
        validation_set: More of them; they choose the best step.
        recipe: How to train.
        folder: Directory of the run. Ends as a model directory with `training.json`.
        transform: Kept with the model. Default: to [-1, 1], and resizing to the size of the images.
        loss_term: Added to the cross entropy of every batch.
        checkpoints: Numbers of steps after which the model is kept as well, 0 (untrained) .. steps.
        device: Where to train. Default: the CPU.
        precision: Number type of the passes of a step: `float32` or `bfloat16`. Weights are float32 always,
            and so are validations, because the model is used that way.
        progress: Called with the stage, the steps done and all steps.
        validated: Called after each validation with its row of the curve.

    Raises:
        InputError: If labels are missing, class lists differ, sets overlap, a checkpoint lies outside the
            run, or the folder holds another run.
        ShapeError: If the model does not take images of this size.
        NonFiniteError: If the loss is NaN or infinite.
        FileFormatError: If the state file or the record of a finished run is damaged.

    Notes:
        On an accelerator two runs agree only as far as its kernels are deterministic.

    References:
        Peng et al. (CVPR 2026), appendix and code: the defaults of `Recipe`.

    Example:
        >>> from tempfile import mkdtemp
        >>> from transformers import ViTConfig, ViTForImageClassification
        >>> from assay.tasks import draw_shapes
        >>> config = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        ...                    intermediate_size=32, image_size=32, patch_size=16, num_labels=6)
        >>> images = draw_shapes("flat", 24), draw_shapes("flat", 12, start=24)
        >>> recipe = Recipe(steps=2, warmup=1, batch_size=12)
        >>> run = train(ViTForImageClassification(config), *images, recipe, mkdtemp() + "/run")
        >>> run.best_step, len(run.history["loss"])
        (2, 2)
    """
    folder, device = Path(folder), device or "cpu"
    sets = {"training": train_set, "validation": validation_set}
    _check(sets, recipe, checkpoints, precision)
    transform = transform or EvalTransform(resize=train_set.image_size)
    data = {k: {"domain": s.domain, "n": s.n, "hash": s.source_hash[:16]} for k, s in sets.items()}
    run = TrainingRun(
        folder=folder,
        recipe=recipe,
        initial_weights=weights_hash(module),
        data=data,
        classes=train_set.classes,
        transform=transform.to_dict(),
        loss_term=None if loss_term is None else loss_term.to_dict(),
        precision=precision,
        checkpoints=tuple(sorted({*checkpoints})),
    )
    if (earlier := TrainingRun.read(folder)) is not None:
        _check_equal(folder, earlier.facts, run.facts)
        return earlier

    state = _State(copy.deepcopy(module).to(device).eval(), run)
    state.resume()
    term = None if loss_term is None else loss_term.on(state.module)
    write = partial(save_model, state.module, transform=transform, classes=train_set.classes)
    if 0 in checkpoints and state.step == 0:
        write(folder / "checkpoints" / "0")
    batches = TrainingBatches(train_set, recipe, transform).from_step(state.step, device)
    for step, (images, labels) in enumerate(batches, state.step + 1):
        state.advance(images, labels, term)
        if step in checkpoints:
            write(folder / "checkpoints" / str(step))
        if progress is not None:
            progress("train", step, recipe.steps)
        if step % recipe.validate_every == 0 or step == recipe.steps:
            score, loss = score_of(state.module, validation_set, transform, score=recipe.score, device=device)
            row = state.note(score, loss)
            if validated is not None:
                validated(row)
            state.save()

    state.module.load_state_dict(state.best)
    write(folder)
    run = replace(state.run, weights=weights_hash(state.module), seconds=round(state.run.seconds, 1))
    content = json.dumps(run.to_dict(), indent=1, allow_nan=False)
    write_atomically(folder / "training.json", content.encode())  # last: it marks the run as done
    state.file.unlink(missing_ok=True)
    return run


def _check(sets: Mapping[str, ImageTask], recipe: Recipe, checkpoints: Sequence[int], precision: str) -> None:
    """Refuse what would train something else than was meant, or fail after hours."""
    classes = sets["training"].classes
    check_name("precision", precision, PRECISIONS)
    if wrong := [step for step in checkpoints if not 0 <= step <= recipe.steps]:
        raise InputError(f"a checkpoint after step {wrong[0]} of {recipe.steps} does not exist")
    for name, images in sets.items():
        labels_of(images)
        if images.classes != classes:
            raise InputError(f"the {name} images have the classes {images.classes}; training has {classes}")
    if both := shared(sets["training"], sets["validation"]):
        raise InputError(f"{len(both)} validation images are also in the training set, e.g. number {both[0]}")


class _State:
    """What the steps of a run change: weights, moments of the optimiser, the best weights, the course."""

    def __init__(self, module: nn.Module, run: TrainingRun) -> None:
        self.module, self.run, self.recipe = module, run, run.recipe
        self.file = run.folder / "state.safetensors"
        self.best: dict[str, Tensor] = {}
        self.heads = [module.get_submodule(name) for name in head_names(module)]
        if self.recipe.mode == "linear":
            module.requires_grad_(False)
            for head in self.heads:
                head.requires_grad_(True)
        self.trained = [each for each in module.parameters() if each.requires_grad]
        adamw, sgd = torch.optim.AdamW, partial(torch.optim.SGD, momentum=self.recipe.momentum)
        rule: Any = adamw if self.recipe.optimiser == "adamw" else sgd
        self.optimiser = rule(self.trained, lr=self.recipe.lr, weight_decay=self.recipe.weight_decay)

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.run.history.get("loss", ()))

    def advance(self, images: Tensor, labels: Tensor, term: Callable[[Tensor], Term] | None) -> None:
        """One step of the optimiser."""
        started = time.monotonic()
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.learning_rate(self.step)
        half = self.run.precision == "bfloat16"
        with self._training_mode(images.device), torch.autocast(images.device.type, torch.bfloat16, half):
            logits = module_logits(self.module, images)
        loss = total = cross_entropy(logits.float(), labels)
        values = {"loss": float(loss.detach())}
        if term is not None:
            added, readings = term(images)
            total = loss + added
            values |= {"term": float(added.detach()), **readings}
        if not torch.isfinite(total):
            where = f"the loss of step {self.step + 1} is {float(total.detach())}"
            raise NonFiniteError(f"{where}; lower lr, lengthen the warm-up, or clip the gradient")
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.trained, self.recipe.clip)
        self.optimiser.step()
        for name, value in values.items():
            self.run.history.setdefault(name, []).append(value)
        self.run = replace(self.run, seconds=self.run.seconds + time.monotonic() - started)

    @contextmanager
    def _training_mode(self, device: torch.device) -> Iterator[None]:
        """Dropout on, its draws fixed by the number of the step; evaluation mode and generators come back."""
        share = self.recipe.head_dropout

        def drop(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (dropout(inputs[0], share), *inputs[1:])

        seed = int(stream(self.recipe.seed, f"zoo/dropout/{self.step}").integers(2**63 - 1))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            hooks = [head.register_forward_pre_hook(drop) for head in self.heads if share > 0]
            for part in (self.module,) if self.recipe.mode == "full" else self.heads:
                part.train()
            try:
                yield
            finally:
                self.module.eval()
                for hook in hooks:
                    hook.remove()

    def note(self, score: float, loss: float) -> Row:
        """Write a validation down; its weights are kept if they are the best so far."""
        row = {"step": self.step, "score": score, "loss": loss}
        self.run.curve.append(row)
        if score > self.run.best_score:
            self.run = replace(self.run, best_step=self.step, best_score=score)
            self.best = _copies(self.module.state_dict())
        return row

    def save(self) -> None:
        """Everything the next step depends on, in one file that is whole or not there."""
        groups = {"model": self.module.state_dict(), "best": self.best}
        groups |= {str(number): state for number, state in self.optimiser.state_dict()["state"].items()}
        arrays = {f"{group} {name}": each for group in groups for name, each in groups[group].items()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, save(_copies(arrays), {"run": json.dumps(self.run.to_dict())}))

    def resume(self) -> None:
        """Take the state of an interrupted run of the same facts, if there is one."""
        if not self.file.exists():
            return
        groups: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(self.file, "pt") as file:
                earlier = TrainingRun.from_dict(parse_json((file.metadata() or {})["run"]))
                for place in file.keys():  # noqa: SIM118 - no mapping
                    group, _, name = place.partition(" ")
                    groups.setdefault(group, {})[name] = file.get_tensor(place)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            text = f"{self.file} is not a state of a training run ({error}); remove it to start over"
            raise FileFormatError(text) from error
        _check_equal(self.file.parent, earlier.facts, self.run.facts)
        self.run = replace(earlier, folder=self.run.folder)
        self.module.load_state_dict(groups.pop("model"))
        self.best = groups.pop("best")
        moments = {int(number): state for number, state in groups.items()}
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": moments})


def _copies(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """What safetensors can write; SGD without momentum has None for it."""
    return {
        name: each.detach().cpu().contiguous().clone() for name, each in tensors.items() if each is not None
    }


# ---------------------------------------------------------------------------------------------------- a zoo


def train_zoo(
    grid: Grid,
    images: ImageTask,
    validation: ImageTask,
    folder: str | Path,
    *,
    shard: tuple[int, int] = (1, 1),
    device: str | None = None,
    progress: Progress | None = None,
    validated: Callable[[str, Row], None] | None = None,
    **options: Any,
) -> Zoo:
    """Train a model for every recipe of a grid on one domain.

    The same call goes on where an earlier one stopped, also in the middle of a model. Recipes of another grid
    are added to a zoo of the same images, with a warning. A model that diverges is written down as failed,
    and the rest is trained. Models read images as `transform_for` says.

    Args:
        grid: The recipes and what they start from.
        images: Labelled images of the in-distribution domain with class names: in memory, of the size the
            models read, or in files.
        validation: More of them, to choose the best steps by; `split` holds some out.
        folder: Directory of the zoo; made if it does not exist.
        shard: `(i, n)` trains every n-th recipe, from the i-th: shards 1 .. n, in processes that share the
            folder, train the whole grid.
        device: Where to train and score. Default: the CPU.
        progress: Called with the key of a model, the steps done and all steps.
        validated: Called after each validation with the key of the model and the row of its curve.
        options: Of `train`: `checkpoints`, `precision`.

    Returns:
        The zoo, as the folder holds it at the end.

    Raises:
        InputError: If class names or labels are missing, the shard does not exist, or the folder holds a zoo
            of other images.
        AssayError: Of `initial_module` and `train`.
    """
    folder = Path(folder)
    if not 1 <= shard[0] <= shard[1]:
        raise InputError(f"the shard is {shard[0]}/{shard[1]}; give i/n with i from 1 to n")
    zoo = _enrolled(grid, images, validation, folder)
    for recipe in grid.recipes()[shard[0] - 1 :: shard[1]]:
        entry = zoo.entry(recipe.key)
        place = folder / entry.path
        if entry.status == "done" and (place / "training.json").exists():
            continue
        reads: dict[str, Any] = {"classes": zoo.classes or (), "image_size": images.image_size}
        start = initial_module(**entry.recipe["start"], **reads, seed=recipe.seed)
        rule = transform_for(images, start.transform)
        held_out = validation.with_transform(rule)
        told: Any = progress and (lambda stage, *of, key=recipe.key: progress(f"{stage} {key}", *of))
        noted = validated and partial(validated, recipe.key)
        options |= {"transform": rule, "device": device, "progress": told, "validated": noted}
        try:
            run = train(start.module, images.with_transform(rule), held_out, recipe, place, **options)
        except NonFiniteError as error:
            entry = replace(entry, status="failed", reason=str(error))
        else:
            entry = _done(entry, run, held_out, device)
        with FileLock(folder / LOCK):
            zoo = Zoo.open(folder).with_entry(entry)
            zoo.save()
    return zoo


def _enrolled(grid: Grid, images: ImageTask, validation: ImageTask, folder: Path) -> Zoo:
    """The zoo of a folder with an entry for every recipe of a grid, written down; new ones are pending."""
    if images.classes is None:
        raise InputError(f"the images of {images.domain!r} have no class names; read them with classes=")
    if [*folder.glob("[!.]*")] and not (folder / "zoo.json").exists():  # in this order: shards begin at once
        raise InputError(f"{folder} is not empty and is not a zoo; give a new directory")
    sets = {"train": images, "validation": validation}
    facts: dict[str, Any] = {f"n_{name}": each.n for name, each in sets.items()}
    facts |= {f"{name}_hash": each.source_hash[:16] for name, each in sets.items()}
    zoo = Zoo(path=folder, name=grid.name, id_domain=images.domain, classes=images.classes, data=facts)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):
        if (folder / "zoo.json").exists():
            new, zoo = zoo, Zoo.open(folder)
            _check_equal(folder, _trained_on(zoo), _trained_on(new))
        old = {each.key: each.recipe.get("start") for each in zoo.entries}
        for recipe in grid.recipes():
            start = grid.initialisations[recipe.init].to_dict()
            if old.get(recipe.key, start) != start:
                text = f"{folder} has {recipe.key} from {old[recipe.key]}, not {start}"
                raise InputError(f"{text}; rename the init")
            if recipe.key not in old:
                facts, place = {**recipe.to_dict(), "start": start}, f"models/{recipe.key}"
                zoo = zoo.with_entry(ZooEntry(key=recipe.key, path=place, status="pending", recipe=facts))
        if old and (added := len(zoo.entries) - len(old)):
            text = f"the zoo {folder} has {len(old)} models; {added} more of this grid are added to it"
            warnings.warn(text, AssayWarning, stacklevel=3)
        zoo.save()
    return zoo


def _trained_on(zoo: Zoo) -> dict[str, Any]:
    """What all models of a zoo share."""
    hashes = {name: zoo.data.get(name) for name in ("train_hash", "validation_hash")}
    return {"id_domain": zoo.id_domain, "classes": zoo.classes, **hashes}


def _done(entry: ZooEntry, run: TrainingRun, validation: ImageTask, device: str | None) -> ZooEntry:
    """The entry of a model that was trained."""
    model, accuracy = load_model(run.folder, device=device), run.best_score
    if run.recipe.score != "accuracy":
        accuracy, _ = score_of(model.module, validation, EvalTransform.for_model(model), device=device)
    kept = tuple({"step": step, "path": f"{entry.path}/checkpoints/{step}"} for step in run.checkpoints)
    facts: dict[str, Any] = {
        "id_accuracy": accuracy,
        "best_step": run.best_step,
        "weight_hash": model.weight_hash,
    }
    return replace(entry, status="done", checkpoints=kept, **facts)

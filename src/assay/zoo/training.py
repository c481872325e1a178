"""Training one image classifier, so that a run that was killed goes on to the same weights.

All chance of a step comes from streams named after the seed and the step's number: the order of the images,
the augmentation, dropout. A state file therefore holds only tensors and the history, no state of a generator.
"""

import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, NonFiniteError
from assay.core.random import stream
from assay.core.untrusted import parse_json
from assay.tasks import EvalTransform
from assay.zoo.feeding import Images, TrainingBatches, size_of
from assay.zoo.folders import save_model
from assay.zoo.loss_term import LossTerm
from assay.zoo.precision import Precision
from assay.zoo.recipe import Recipe
from assay.zoo.run_folder import TrainingRun, Validation, check_same, finished, finished_run, state_file
from assay.zoo.scoring import check_training, head_names, images_hash, module_logits, score_of, weights_hash


SCHEMA = "assay-training/1"


Progress = Callable[[str, int, int], None]
Validated = Callable[[Validation], None]


def train(
    module: nn.Module,
    train_set: Images,
    validation_set: Images,
    recipe: Recipe,
    folder: str | Path,
    *,
    transform: EvalTransform | None = None,
    loss_term: LossTerm | None = None,
    checkpoints: Sequence[int] = (),
    watch: Mapping[str, Images] | None = None,
    save_every: int | None = None,
    device: str | None = None,
    precision: str = "float32",
    progress: Progress | None = None,
    validated: Validated | None = None,
) -> TrainingRun:
    """Train an image classifier and keep the step with the best validation score.

    SGD with momentum or AdamW on the mean cross entropy, linear warm-up and cosine decay, the gradient
    clipped by its norm. The same call continues a run that was stopped, to weights that are equal bit by bit
    on the same CPU and number of threads; a finished run is read from its folder.

    Args:
        module: A classifier of transformers or timm with as many outputs as there are classes. It is copied,
            not changed.
        train_set: Labelled images: 8-bit ones in memory, of the size that the model reads, or a stream, whose
            crops are cut from the originals by its workers. The weights do not depend on their number.
        validation_set: More of them, of the same classes, none of which is trained on.
        recipe: Learning rate, batch size and the rest.
        folder: Directory of this run. Ends with the model (`config.json`, `model.safetensors`,
            `preprocessor_config.json`), `training.json` and `checkpoints/STEP/`.
        transform: Normalisation of the images, and geometry of those of a stream. Default: pixels to [-1, 1],
            resized to the size of the images.
        loss_term: Added to the cross entropy of every step.
        checkpoints: Numbers of steps after which the model is kept as well, 0 (untrained) .. steps.
        watch: Further labelled sets whose score is written down at each validation; they choose nothing.
        save_every: Steps between state files. Default: at each validation.
        device: Where to train. Default: the CPU.
        precision: Number type of the passes of a step: `float32`, `bfloat16`, or `float16` on CUDA. Weights
            are float32 always, and so are validations, because the model is used that way.
        progress: Called with the stage, the steps done and all steps.
        validated: Called after each validation with what it showed.

    Returns:
        The run, with the best model.

    Raises:
        InputError: If labels are missing, class lists differ, sets overlap, a checkpoint lies outside the
            run, the folder holds another run, or the device does not compute in `precision`.
        ShapeError: If the model does not take images of this size.
        NonFiniteError: If a weight or the loss is NaN or infinite.
        FileFormatError: If the state file is damaged.

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
    folder = Path(folder)
    transform = transform or EvalTransform(resize=size_of(train_set))
    sets = {"training": train_set, "validation": validation_set, **(watch or {})}
    check_training(module, sets, recipe, checkpoints, save_every)
    numbers = Precision(precision, device or "cpu")
    run = _TrainingState(
        module, sets, recipe, folder, transform, loss_term, tuple(sorted(set(checkpoints))), device, numbers
    )
    identity = run.identity(module)
    if (earlier := finished(folder, identity)) is not None:
        return finished_run(earlier, module, recipe, folder)
    run.resume(identity)
    while run.step < recipe.steps:
        if run.step in run.checkpoints:
            run.keep_checkpoint()
        run.advance()
        if run.step % recipe.validate_every == 0 or run.step == recipe.steps:
            report = run.validate()
            if validated is not None:
                validated(report)
        if run.step % (save_every or recipe.validate_every) == 0 and run.step < recipe.steps:
            run.save(identity)
        if progress is not None:
            progress("train", run.step, recipe.steps)
    if recipe.steps in run.checkpoints:
        run.keep_checkpoint()
    return finished_run(run.finish(identity), module, recipe, folder)


# --------------------------------------------------------------------------------------------------- a run


class _TrainingState:
    """The changing part of a run: weights, optimiser, history, and the number of steps done."""

    def __init__(
        self,
        module: nn.Module,
        sets: Mapping[str, Images],
        recipe: Recipe,
        folder: Path,
        transform: EvalTransform,
        term: LossTerm | None,
        checkpoints: tuple[int, ...],
        device: str | None,
        precision: Precision,
    ) -> None:
        self.module = copy.deepcopy(module).to(device or "cpu")
        self.sets, self.recipe, self.folder, self.transform = sets, recipe, folder, transform
        self.term, self.checkpoints, self.device = term, checkpoints, device or "cpu"
        self.precision = precision
        self.batches: Iterator[tuple[Tensor, Tensor]] | None = None
        self.heads = head_names(self.module)
        if recipe.mode == "linear":
            prefixes = tuple(f"{name}." for name in self.heads)
            for name, parameter in self.module.named_parameters():
                parameter.requires_grad_(name.startswith(prefixes))
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.optimiser = _optimiser(recipe, self.parameters)
        self.step = 0
        self.best: dict[str, Tensor] = {}
        self.best_step, self.best_score = 0, -1.0
        self.curve: list[dict[str, Any]] = []
        self.history: dict[str, list[float]] = {"loss": []}
        self.seconds = 0.0

    def identity(self, module: nn.Module) -> dict[str, Any]:
        """What the result depends on, as JSON values."""
        return {
            "recipe": self.recipe.to_dict(),
            "initial_weights": weights_hash(module),
            "data": {
                name: {"domain": images.domain, "n": images.n, "hash": images_hash(images)}
                for name, images in self.sets.items()
            },
            "classes": None if self.sets["training"].classes is None else list(self.sets["training"].classes),
            "transform": self.transform.to_dict(),
            "loss_term": None if self.term is None else self.term.describe(),
            "precision": self.precision.name,
            "checkpoints": list(self.checkpoints),
        }

    # ------------------------------------------------------------------------------------------ steps

    def advance(self) -> None:
        """One step of the optimiser."""
        started = time.monotonic()
        recipe = self.recipe
        if self.batches is None:  # begun here, because `resume` sets the step
            self.batches = TrainingBatches(self.sets["training"], recipe, self.transform).from_step(
                self.step, self.device
            )
        images, labels = next(self.batches)
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.learning_rate(self.step)
        with self._training_mode():
            with self.precision.passes():
                logits = module_logits(self.module, images)
            logits = logits.float()
            loss = cross_entropy(logits, labels)
            added = None if self.term is None else self.term(self.module, images, labels, logits)
            total = loss if added is None else loss + added
            if not torch.isfinite(total):
                raise NonFiniteError(
                    f"the loss of step {self.step + 1} is {float(total.detach())} with lr {recipe.lr:g}; "
                    "lower lr, lengthen the warm-up, or clip the gradient"
                )
            self.precision.step(total, self.optimiser, self.parameters, recipe.clip)
        readings = {"loss": float(loss.detach())}
        if self.term is not None and added is not None:
            readings |= {"term": float(added.detach()), **self.term.readings()}
        for name, value in readings.items():
            self.history.setdefault(name, []).append(value)
        self.step += 1
        self.seconds += time.monotonic() - started

    @contextmanager
    def _training_mode(self) -> Iterator[None]:
        """Dropout on, its draws fixed by the number of the step; evaluation mode and generators come back."""
        share = self.recipe.head_dropout

        def drop(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            # A loss term may run the model in evaluation mode inside the step; nothing is dropped then.
            return (dropout(inputs[0], share), *inputs[1:]) if head.training else inputs

        seed = int(stream(self.recipe.seed, f"zoo/dropout/{self.step}").integers(2**63 - 1))
        devices = [self.device] if str(self.device).startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            hooks = [
                self.module.get_submodule(name).register_forward_pre_hook(drop)
                for name in self.heads
                if share > 0
            ]
            if self.recipe.mode == "full":
                self.module.train()
            for name in self.heads:
                self.module.get_submodule(name).train()
            try:
                yield
            finally:
                self.module.eval()
                for hook in hooks:
                    hook.remove()

    def validate(self) -> Validation:
        """Score the current weights; keep them if they are the best so far."""
        score, loss = self._score("validation")
        row: dict[str, Any] = {"step": self.step, "score": score, "loss": loss}
        if watched := [name for name in self.sets if name not in ("training", "validation")]:
            row["watch"] = {name: self._score(name)[0] for name in watched}
        self.curve.append(row)
        if score > self.best_score:
            self.best_step, self.best_score = self.step, score
            self.best = _tensors(self.module)
        since = self.step - (self.curve[-2]["step"] if len(self.curve) > 1 else 0)
        return Validation(
            step=self.step,
            steps=self.recipe.steps,
            training_loss=float(np.mean(self.history["loss"][-since:])),
            loss=loss,
            measure=self.recipe.score,
            score=score,
        )

    def _score(self, name: str) -> tuple[float, float]:
        self.module.eval()
        return score_of(
            self.module, self.sets[name], self.transform, score=self.recipe.score, device=self.device
        )

    def keep_checkpoint(self) -> None:
        place = self.folder / "checkpoints" / str(self.step)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.module.eval()
        save_model(self.module, place, transform=self.transform, classes=self.sets["training"].classes)

    # --------------------------------------------------------------------------------------- the state

    def save(self, identity: Mapping[str, Any]) -> None:
        """Everything the next step depends on, in one file that is whole or not there."""
        arrays = {f"model/{name}": tensor for name, tensor in _tensors(self.module).items()}
        arrays |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            for name, value in state.items():
                if value is not None:
                    arrays[f"optimiser/{number}/{name}"] = _plain(value)
        if self.term is not None:
            arrays |= {f"term/{name}": _plain(value) for name, value in self.term.state().items()}
        facts = {
            "schema": SCHEMA,
            "identity": identity,
            "step": self.step,
            "best_step": self.best_step,
            "best_score": self.best_score,
            "curve": self.curve,
            "history": self.history,
            "seconds": self.seconds,
            "precision": self.precision.state(),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(state_file(self.folder), save(arrays, {"training": json.dumps(facts)}))

    def resume(self, identity: Mapping[str, Any]) -> None:
        """Take the state of an interrupted run of the same identity, if there is one."""
        path = state_file(self.folder)
        if not path.exists():
            return
        try:
            with safe_open(path, "pt") as file:
                facts = parse_json((file.metadata() or {})["training"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise FileFormatError(
                f"{path} is not a state of a training run ({error}); remove it to start over"
            ) from error
        check_same(self.folder, facts["identity"], identity)
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimiser": {}, "term": {}}
        for name, tensor in arrays.items():
            group, _, rest = name.partition("/")
            groups[group][rest] = tensor
        self.module.load_state_dict(groups["model"])
        self.best = groups["best"]
        packed = self.optimiser.state_dict()
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in groups["optimiser"].items():
            number, _, rest = name.partition("/")
            states.setdefault(int(number), {})[rest] = tensor
        self.optimiser.load_state_dict({**packed, "state": states})
        if self.term is not None:
            self.term.restore({name: value.to(self.device) for name, value in groups["term"].items()})
        self.step, self.best_step, self.best_score = facts["step"], facts["best_step"], facts["best_score"]
        self.curve, self.history, self.seconds = facts["curve"], facts["history"], facts["seconds"]
        self.precision.restore(facts.get("precision", {}))

    def finish(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Write the best model and the record; the record comes last and marks the run as done."""
        self.module.load_state_dict(self.best)
        self.module.eval().requires_grad_(True)
        staged = self.folder / ".best"
        self.folder.mkdir(parents=True, exist_ok=True)
        save_model(self.module, staged, transform=self.transform, classes=self.sets["training"].classes)
        for file in sorted(staged.iterdir()):
            os.replace(file, self.folder / file.name)
        staged.rmdir()
        record = {
            "schema": SCHEMA,
            **identity,
            "best_step": self.best_step,
            "best_score": self.best_score,
            "weights": weights_hash(self.module),
            "seconds": round(self.seconds, 1),
            "curve": self.curve,
            "history": self.history,
        }
        content = json.dumps(record, indent=1, allow_nan=False)
        write_atomically(self.folder / "training.json", content.encode())
        state_file(self.folder).unlink(missing_ok=True)
        return record


def _optimiser(recipe: Recipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if recipe.optimiser == "adamw":
        return torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().clone()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: _plain(tensor) for name, tensor in module.state_dict().items()}

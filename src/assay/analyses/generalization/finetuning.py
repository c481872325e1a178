"""Fine-tuning with a circuit loss beside the cross-entropy."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from assay.analyses.generalization.circuit_loss import CircuitLoss, CircuitSettings
from assay.analyses.generalization.dynamics import Dynamics, training_dynamics
from assay.analyses.generalization.live_scores import SECOND_ORDER
from assay.circuits import write_atomically
from assay.core.errors import InputError
from assay.core.record import Record, same
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask
from assay.zoo import Augmentation, Recipe, TrainingRun, train
from assay.zoo.archive import Progress


SCHEMA = "assay-finetune/1"
# The published settings (batch 32, lr 1e-4, weight decay 5e-7, no clipping); published runs last 40 epochs.
DEFAULT_RECIPE = Recipe(
    init="given",
    lr=1e-4,
    batch_size=32,
    weight_decay=5e-7,
    warmup=0,
    optimiser="adamw",
    clip=None,
    head_dropout=0.0,
    augmentation=Augmentation(),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FineTuning(Record):
    """A finished fine-tuning.

    Attributes:
        run: The training run; `run.folder` is a model directory, `run.curve` and `run.history` its course.
        circuit: Settings of the circuit loss; None for plain training.
        dynamics: Depth bias, Num and Den, and scores at every evaluation.
        step: Steps done by the selected model, chosen by the validation set (in distribution).
        score: Its validation score.
        watched: Its score on each watched set.
    """

    record_schema = SCHEMA
    record_layout = {
        "circuit": "circuit",
        "recipe": "run.recipe",
        "weights": "weights",
        "selected": {"by": "chosen_by", **same("step", "score", "watched")},
        "dynamics": "dynamics",
    }
    chosen_by = "validation"

    run: TrainingRun
    circuit: CircuitSettings | None
    dynamics: Dynamics
    step: int
    score: float
    watched: Mapping[str, float]

    @property
    def weights(self) -> Any:
        """Hash of the selected weights."""
        return self.run.weights


def finetune(
    model: Model | str | Path | nn.Module,
    train_set: ImageTask,
    validation_set: ImageTask,
    folder: str | Path,
    *,
    circuit: CircuitSettings | None = None,
    recipe: Recipe | None = None,
    watch: Mapping[str, ImageTask] | None = None,
    checkpoints: Sequence[int] | None = None,
    n_images: int = 128,
    steps: int = 5,
    transform: EvalTransform | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> FineTuning:
    """Train an image classifier on cross-entropy plus a loss on its circuit, and report what that did to it.

    The circuit loss asks for larger scores of the edges from deep blocks into the logits relative to those
    from shallow blocks. The step with the best validation score is kept. The circuits of the checkpoints are
    then measured on validation images with the estimator of `discover`, so that both sides of the ratio are
    seen.

    Args:
        model: The classifier to start from: a model, a module, or anything that `load_model` reads. Not
            changed.
        train_set: Labelled 8-bit images of the size that the model reads.
        validation_set: More of them from the same distribution; it chooses the step, and circuits are
            measured on it.
        folder: Directory of the run. Ends as a model directory with `training.json`, `circuit.json` and
            `checkpoints/STEP/`. The same call goes on with a run that was stopped, to identical results.
        circuit: The circuit loss. Default: first order, weight 0.1. A weight of 0 trains plainly.
        recipe: Learning rate, batch size and the rest. Default: `DEFAULT_RECIPE`.
        watch: Labelled sets, e.g. out of distribution, whose scores are written down; they choose nothing.
        checkpoints: Steps at which the model is kept and its circuit measured. Default: 0 and every
            validation. Each takes the room of the weights; give fewer for a large model.
        n_images: Validation images that circuits are measured on, drawn with the recipe's seed; 2 or more.
        steps: Quadrature nodes of these measurements.
        transform: Normalisation of the images. Default: the model's own.
        batch_size: Images per pass of the measurements. Default: by free memory.
        device: Where to train and measure. Default: the CPU.
        progress: Called with the stage, the steps done and all steps.

    Returns:
        The run and the readings.

    Raises:
        InputError: If the batches hold one image, `mode="linear"` is asked for with a circuit loss that does
            not reach the head, `n_images` is below 2, classes differ, sets overlap, or the folder holds
            another run.
        ShapeError: If the model does not take images of this size.
        NonFiniteError: If a weight or the loss is NaN or infinite.

    Notes:
        Cost of a step in forward passes with backward ones counted double: 3 plainly, about 6 + (m - 1) with
        the first-order loss, about 6 + 4 (m - 1) with the second-order one. The circuit is that of the model
        in evaluation mode; dropout acts on the cross-entropy alone.

    References:
        Peng et al. (2026), arXiv:2604.08192, named there as future work; the loss follows the public code.
    """
    circuit = circuit or CircuitSettings()
    recipe = recipe or DEFAULT_RECIPE
    start = model if isinstance(model, Model) else load_model(model, device=None)
    _check(start, train_set, validation_set, recipe, circuit, n_images)
    rule = transform or EvalTransform.for_model(start)
    probe = validation_set.sample(n_images, seed=recipe.seed)
    start.bind(probe.with_transform(rule))  # classes and size, before hours of training
    if checkpoints is None:
        checkpoints = [*range(0, recipe.steps, recipe.validate_every), recipe.steps]
    run = train(
        start.module,
        train_set,
        validation_set,
        recipe,
        folder,
        transform=rule,
        loss_term=CircuitLoss(circuit) if circuit.weight > 0 else None,
        checkpoints=checkpoints,
        watch=watch,
        device=device,
        progress=progress,
    )
    sets = {"validation": validation_set, **(watch or {})}
    dynamics = training_dynamics(
        {**run.checkpoints, run.best_step: run.folder},
        probe,
        settings=circuit,
        watch=sets,
        known=_known(run),
        steps=steps,
        transform=rule,
        batch_size=batch_size,
        device=device,
    )
    result = FineTuning(
        run=run,
        circuit=circuit if circuit.weight > 0 else None,
        dynamics=dynamics,
        step=run.best_step,
        score=run.best_score,
        watched={name: dynamics.at(run.best_step).scores[name] for name in watch or {}},
    )
    content = json.dumps(result.to_dict(), indent=1, allow_nan=False)
    write_atomically(run.folder / "circuit.json", content.encode())
    return result


def _check(
    model: Model,
    train_set: ImageTask,
    validation_set: ImageTask,
    recipe: Recipe,
    circuit: CircuitSettings,
    n_images: int,
) -> None:
    if model.vision is None:
        raise InputError(f"{model.id} is a language model, but finetune trains image classifiers")
    circuit.sets(model.n_layers)
    if min(n_images, validation_set.n) < 2:
        raise InputError(
            f"n_images is {n_images} of {validation_set.n} validation images; circuits need 2 or more"
        )
    if circuit.weight == 0:
        return
    size = min(recipe.batch_size, train_set.n)
    if size < 2:
        raise InputError(
            f"the circuit loss compares images with the batch mean, so batches of {size} image cannot be "
            "used; set batch_size to 2 or more"
        )
    if recipe.mode == "linear" and circuit.variant != SECOND_ORDER:
        raise InputError(
            f"mode 'linear' trains the head alone, but the variant {circuit.variant} keeps the head "
            f"constant, so the circuit loss would have no effect; use mode 'full', or {SECOND_ORDER}"
        )


def _known(run: TrainingRun) -> dict[int, dict[str, float]]:
    """Scores that the training run wrote down, by step."""
    return {
        int(row["step"]): {"validation": float(row["score"]), **row.get("watch", {})} for row in run.curve
    }

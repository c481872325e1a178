"""Where a circuit draws from while a model is trained: both sides of the depth bias at every checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from assay.analyses.generalization.circuit_loss import CircuitSettings, depth_loss
from assay.analyses.generalization.dependency import RESAMPLES, resampled_depth_bias
from assay.core.errors import InputError
from assay.core.plotted import Plotted
from assay.core.record import Record, same
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask
from assay.zoo import TrainingRun
from assay.zoo.scoring import score_of


if TYPE_CHECKING:
    import pandas as pd

    from assay.discovery.edges import OutputScores

SCHEMA = "assay-dynamics/1"


@dataclass(frozen=True, kw_only=True)
class DepthReading(Record):
    """The output circuit of one checkpoint.

    Attributes:
        step: Training steps done.
        deep: Num, sum of |score| of the edges from deep blocks into the logits, nats.
        shallow: Den, the same of the shallow blocks.
        depth_bias: log(deep / shallow), any sign; NaN where both are 0.
        low: Lower end of its 95 % interval over images; None where there is none.
        high: Upper end.
        scores: Score, 0 to 1, on each labelled set that is watched.
    """

    step: int
    deep: float
    shallow: float
    depth_bias: float
    low: float | None = None
    high: float | None = None
    scores: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Dynamics(Plotted, Record):
    """Readings along a training run.

    Attributes:
        readings: By step, ascending.
        facts: What they are a function of: weights of the checkpoints, images, watched sets, sets of blocks,
            estimator.
    """

    drawn_by = "assay.report.dynamics:plot_run"
    record_schema = SCHEMA
    record_layout = same("**facts", "readings")

    readings: tuple[DepthReading, ...]
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Dynamics({len(self.readings)} checkpoints)"

    def at(self, step: int) -> DepthReading:
        """The reading of a step.

        Raises:
            InputError: If there is no checkpoint of that step.
        """
        for reading in self.readings:
            if reading.step == step:
                return reading
        steps = ", ".join(str(reading.step) for reading in self.readings)
        raise InputError(f"step {step} has no checkpoint; available steps: {steps}")

    def to_frame(self) -> "pd.DataFrame":
        """One row per checkpoint: step, deep, shallow, depth_bias, low, high, and each score by its name."""
        import pandas as pd

        rows = [each.to_dict() for each in self.readings]
        return pd.DataFrame([row | row.pop("scores") for row in rows])


def training_dynamics(
    run: str | Path | Mapping[int, str | Path | Model],
    images: ImageTask,
    *,
    settings: CircuitSettings | None = None,
    watch: Mapping[str, ImageTask] | None = None,
    known: Mapping[int, Mapping[str, float]] | None = None,
    steps: int = 5,
    transform: EvalTransform | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: torch.dtype | None = None,
) -> Dynamics:
    """Depth bias, both its sides, and scores at every checkpoint of a training run.

    Args:
        run: Folder of a run with `checkpoints/STEP/` directories, as `assay.zoo.train` and `finetune` write
            it; or step to model or model directory.
        images: Images that the circuits are measured on, 2 or more, of the training distribution or of
            another; no labels are needed. They should be none of those trained on.
        settings: Its `ratio`, or `shallow` and `deep`, say which blocks are compared; the rest is not used.
        watch: Labelled sets, e.g. out of distribution, whose accuracy is reported beside; by name.
        known: Scores that are known already, by step and name; they are not computed again.
        steps: Quadrature nodes of the scores.
        transform: Normalisation of the images. Default: each model's own.
        batch_size: Images per pass. Default: by free memory.
        device: Where to run. Default: the CPU.
        dtype: Number type of the weights of checkpoints on disk. Default: as of `load_model`.

    Returns:
        A reading per checkpoint. `depth_bias` is `dependency_depth_bias(..., targets="output")` of EAP-IG
        scores (KL objective, mean ablation, midpoint rule): not the training estimate, so that a loss which
        only fools its own estimate shows.

    Raises:
        InputError: If there is no checkpoint, a watched set has no labels, or there is one image.
        FileFormatError: If a checkpoint cannot be read.

    Notes:
        Cost per checkpoint: about steps + 2 forward passes over the images, one over each watched set.

    References:
        Peng et al. (2026), arXiv:2604.08192: on PACS a model that generalises goes from 2.6 to 4.1, one that
        does not stays near -0.9.
    """
    from assay.discovery.edges import output_scores

    checkpoints = dict(run) if isinstance(run, Mapping) else checkpoints_of(run)
    settings = settings or CircuitSettings()
    watch, known = dict(watch or {}), dict(known or {})
    _check_given(checkpoints, images, watch)
    readings, weights = [], {}
    for step, place in sorted(checkpoints.items()):
        model = place if isinstance(place, Model) else load_model(place, device=device, dtype=dtype)
        weights[step] = model.weight_hash
        rule = transform or EvalTransform.for_model(model)
        scores = output_scores(
            model,
            images.with_transform(rule),
            steps=steps,
            batch_size=batch_size,
            per_example=False,
            resamples=RESAMPLES,
        )
        before = dict(known.get(step, {}))
        found = {
            name: before[name] if name in before else score_of(model.module, each, rule, device=device)[0]
            for name, each in watch.items()
        }
        readings.append(_reading(step, scores, settings, before | found))
    sets = settings.sets(model.n_layers)
    facts = {
        "checkpoints": weights,
        "images": {"name": images.name, "domain": images.domain, "n": images.n},
        "watched": {name: {"n": each.n, "hash": each.source_hash[:16]} for name, each in watch.items()},
        "ratio": settings.ratio if settings.shallow is None else None,
        "shallow_blocks": [sets.low[0] - 1, sets.low[1] - 1],
        "deep_blocks": [sets.high[0] - 1, sets.high[1] - 1],
        "estimator": dict(scores.provenance),
    }
    return Dynamics(readings=tuple(readings), facts=facts)


def _check_given(
    checkpoints: Mapping[int, object], images: ImageTask, watch: Mapping[str, ImageTask]
) -> None:
    """Refuse a run without checkpoints, a single image, and watched sets without labels."""
    if not checkpoints:
        raise InputError("checkpoints are missing; give at least one step")
    if images.n < 2:
        raise InputError(
            f"{images.n} image is too few for circuits, which are compared with the mean of the images; "
            "give 2 or more"
        )
    for name, each in watch.items():
        if each.labels is None:
            raise InputError(f"the watched set {name!r} has no labels, but its score needs them")


def _reading(
    step: int, scores: "OutputScores", settings: CircuitSettings, watched: Mapping[str, float]
) -> DepthReading:
    """Both sides of the depth bias of a checkpoint, with an interval where a ratio names the blocks."""
    term = depth_loss(scores.graph, scores.values.double(), settings.sets(scores.graph.n_layers))
    interval = None
    if settings.shallow is None and term.defined:
        interval = resampled_depth_bias(scores, ratio=float(settings.ratio)).interval()
    return DepthReading(
        step=step,
        deep=float(term.deep),
        shallow=float(term.shallow),
        depth_bias=-float(term.value) if term.defined else math.nan,
        low=None if interval is None else _finite(interval.low),
        high=None if interval is None else _finite(interval.high),
        scores=watched,
    )


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def checkpoints_of(run: str | Path) -> dict[int, Path]:
    """Step to checkpoint of the folder of a training run, the selected step among them.

    Raises:
        InputError: If there is no checkpoint.
    """
    folder = Path(run) / "checkpoints"
    folders = {int(each.name): each for each in folder.glob("*") if each.is_dir() and each.name.isdigit()}
    if folders and (finished := TrainingRun.read(run)) is not None:
        folders.setdefault(finished.best_step, Path(run))
    if not folders:
        raise InputError(
            f"{folder} has no checkpoint; train with checkpoints=, or pass a mapping from step to directory"
        )
    return folders

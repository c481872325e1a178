"""Where a circuit draws from while a model is trained: both sides of the depth bias at every checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.analyses.generalization.circuit_loss import depth_loss
from assay.analyses.generalization.dependency import DepthRule, resampled_depth_bias
from assay.core.errors import InputError
from assay.core.record import Plotted, Record, same
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask
from assay.zoo import TrainingRun
from assay.zoo.scoring import score_of


if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RESAMPLES = 200  # behind the intervals


@dataclass(frozen=True, kw_only=True)
class Dynamics(Plotted, Record):
    """Readings along a training run.

    Attributes:
        readings: Of each checkpoint, by step, ascending: `step`; `deep` (Num) and `shallow` (Den), the sums
            of |score| of the edges from these blocks into the logits, nats; `depth_bias`,
            log(deep / shallow), NaN where both are 0, and `low` and `high`, its 95 % interval over images;
            `scores`, accuracy on each watched set.
        facts: What they are a function of: weights of the checkpoints, images, watched sets, sets of blocks,
            estimator.
    """

    drawn_by = "assay.analyses.generalization.dynamics:plot_course"
    record_schema = "assay-dynamics/1"
    record_layout = same("**facts", "readings")

    readings: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Dynamics({len(self.readings)} checkpoints)"

    def to_frame(self) -> "pd.DataFrame":
        """One row per checkpoint: step, deep, shallow, depth_bias, low, high, and each score by its name."""
        import pandas as pd

        rows = [{**row, **row["scores"]} for row in self.readings]
        return pd.DataFrame(rows).drop(columns="scores").astype(float).astype({"step": int})


def training_dynamics(
    run: str | Path | Mapping[int, str | Path | Model],
    images: ImageTask,
    *,
    rule: DepthRule | None = None,
    watch: Mapping[str, ImageTask] | None = None,
    transform: EvalTransform | None = None,
    device: str | None = None,
) -> Dynamics:
    """Depth bias, both its sides, and scores at every checkpoint of a training run.

    Args:
        run: Folder of a run with `checkpoints/STEP/` directories, as `assay.zoo.train` and `finetune` write
            it; or step to model or model directory.
        images: Images that the circuits are measured on, 2 or more, of the training distribution or of
            another; no labels are needed. They should be none of those trained on.
        rule: Which blocks are compared. Default: 0.3 of them on each side.
        watch: Labelled sets, e.g. out of distribution, whose accuracy is reported beside; by name.
        transform: Normalisation of the images. Default: each model's own.
        device: Where to run. Default: the CPU.

    Returns:
        A reading per checkpoint. `depth_bias` is `dependency_depth_bias(..., targets="output")` of EAP-IG
        scores (KL objective, mean ablation, midpoint rule): not the training estimate, so that a loss which
        only fools its own estimate shows.

    Raises:
        InputError: If there is no checkpoint, a watched set has no labels, or there is one image.
        FileFormatError: If a checkpoint cannot be read.

    Notes:
        Cost per checkpoint: about 7 forward passes over the images, one over each watched set.

    References:
        Peng et al. (2026), arXiv:2604.08192: on PACS a model that generalises goes from 2.6 to 4.1, one that
        does not stays near -0.9.
    """
    from assay.discovery.edges import output_scores

    rule, watch = rule or DepthRule(), watch or {}
    places = run if isinstance(run, Mapping) else checkpoints_of(run)
    if not places or images.n < 2:  # circuits are compared with the mean of the images
        raise InputError(
            f"got {len(places)} checkpoints and {images.n} images; give 1, and 2 images, or more"
        )
    readings, weights = [], {}
    for step, place in sorted(places.items()):
        model = place if isinstance(place, Model) else load_model(place, device=device)
        weights[step] = model.weight_hash
        reads = transform or EvalTransform.for_model(model)
        scores = output_scores(model, images.with_transform(reads), per_example=False, resamples=RESAMPLES)
        sides = rule.layers(model.n_layers)
        _, deep, shallow = depth_loss(scores.graph, scores.values.double(), sides)
        bias = resampled_depth_bias(scores, **vars(rule))
        numbers = {"deep": float(deep), "shallow": float(shallow), "depth_bias": bias.value}
        ends = {"low": bias.interval().low, "high": bias.interval().high}
        seen = {n: score_of(model.module, each, reads, device=device)[0] for n, each in watch.items()}
        readings.append({"step": step, **numbers, **ends, "scores": seen})
    facts = {
        "checkpoints": weights,
        "images": {"name": images.name, "domain": images.domain, "n": images.n},
        "watched": {name: {"n": each.n, "hash": each.source_hash[:16]} for name, each in watch.items()},
        "shallow_blocks": [sides[0].start - 1, sides[0].stop - 2],
        "deep_blocks": [sides[1].start - 1, sides[1].stop - 2],
        "estimator": dict(scores.provenance),
    }
    return Dynamics(readings=tuple(readings), facts=facts)


def checkpoints_of(run: str | Path) -> dict[int, Path]:
    """Step to checkpoint of the folder of a training run, the selected step among them.

    Raises:
        InputError: If there is no checkpoint.
    """
    folder = Path(run) / "checkpoints"
    folders = {int(each.name): each for each in folder.glob("*") if each.name.isdigit()}
    if not folders:
        raise InputError(f"{folder} has no checkpoint; train with checkpoints=, or give step to directory")
    if (finished := TrainingRun.read(run)) is not None:
        folders.setdefault(finished.best_step, Path(run))
    return folders


def plot_course(dynamics: Dynamics, ax: "Axes | None" = None) -> "Axes":
    """Draw the depth bias along a run with its 95 % interval over images, and the scores beside it."""
    from assay.page.draw import INK, MUTED, OPPOSES, SUPPORTS, axes_of

    ax, frame = axes_of(ax, 5.2, 3.2), dynamics.to_frame()
    ax.axhline(0, color=MUTED, linewidth=0.7)
    ax.fill_between(frame["step"], frame["low"], frame["high"], color=INK, alpha=0.15, linewidth=0)
    ax.plot(frame["step"], frame["depth_bias"], color=INK, marker="o", markersize=3.5, linewidth=1.2)
    ax.set(xlabel=f"training steps (circuits of {dynamics.facts['images']['n']} images)")
    ax.set_ylabel("depth bias, log(deep / shallow)")
    beside = axes_of(ax.twinx(), 0.0, 0.0)
    beside.set(ylim=(0, 1), ylabel="score (dashed)")
    marks = cycle(((SUPPORTS, "s"), (OPPOSES, "^"), (MUTED, "D"), (INK, "v")))
    for name, (colour, marker) in zip(frame.columns[6:], marks, strict=False):
        beside.plot(frame["step"], frame[name], "--", color=colour, marker=marker, markersize=3.5, label=name)
    if len(frame.columns) > 6:
        beside.legend(frameon=False, fontsize=7.5)
    return ax

"""What an audit runs, and what it leaves out and why."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.core.errors import InputError, check_name
from assay.core.record import Record
from assay.execution import Ablation
from assay.metrics import find_metric
from assay.models import Model
from assay.pipeline.checks import usual_replacement
from assay.pipeline.inputs import N_FULL, N
from assay.pipeline.sizing import COARSE, FINE, SizeSearch
from assay.tasks import ImageTask, PairTask, Task


# Stages that an audit can do without.
STAGES = ("attack", "random", "curve", "minimality", "calibrate")
METRICS = ("faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk")
HEADLINE = ("faithfulness-norm", "faithfulness", "topk")  # what the first sentence of a report needs
OF_LABELS = ("ce-delta", "topk")  # need right answers
OTHER_ABLATIONS = ("zero", "mean")  # that the first number of a report is shown under beside its own
MINIMALITY_HEADS = 64  # models of at most so many heads get minimality in a full audit: one run per head
RANDOM_PER_SIZE = 4  # random circuits at each published size of the curve of a full audit
RANDOM, RANDOM_FULL = 5, 20  # random circuits of the chosen size

# Why a stage does not run on some inputs.
SERVES = {
    "images": "needs prompts; the inputs are images",
    "reads": "serves prompts that are read at one position each",
    "lengths": "serves pairs whose prompts are of one length",
    "edges": "the ablation is defined for edges alone; gates then take the mean",
}
WHAT = {
    "curve": "faithfulness by size, with CPR and CMD",
    "random": "random circuits of the same size",
    "minimality": "minimality: one run per head",
    "attack": "the worst pairs, or single inputs",
    "calibrate": "the gates",
}
LARGER = {
    "curve": f"a finer curve, with {RANDOM_PER_SIZE} random circuits at each size",
    "attack": "the worst case over fresh prompts, or over all pairs of images",
    "calibrate": "the gates that need further runs of the model",
}


@dataclass(frozen=True, kw_only=True)
class LeftOut(Record):
    """A stage, or the larger form of one, that is not run.

    Attributes:
        stage: Of an audit, or the key of a metric.
        what: What it is.
        reason: Why it is not run.
        option: Option that runs it; empty where none does.
    """

    stage: str
    what: str
    reason: str
    option: str = ""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What an audit runs on a task.

    Attributes:
        full: Whether every stage takes its larger form.
        causes: Why a stage does not run at all, by its name: `default`, `skip`, or a key of `SERVES`.
        metrics: Keys of what is measured.
        other_ablations: Keys of the ablations that the first number is also measured under.
        n_random: Random circuits of the chosen size.
        left_out: What is not run, for the reader.
    """

    full: bool
    causes: Mapping[str, str]
    metrics: tuple[str, ...]
    other_ablations: tuple[str, ...]
    n_random: int
    left_out: tuple[LeftOut, ...]

    @property
    def search(self) -> SizeSearch:
        """How closely the size is searched for."""
        return FINE if self.full else COARSE

    def describe(self) -> dict[str, Any]:
        """Its part of the audit's record."""
        return {
            "metrics": list(self.metrics),
            "other_ablations": list(self.other_ablations),
            "n_random": self.n_random,
            "random_per_size": RANDOM_PER_SIZE,
            "scope": {
                "larger": sorted(STAGES) if self.full else [],
                "left_out": dict(sorted(self.causes.items())),
                "search": [self.search.resolution, self.search.growth],
            },
        }


def check_counts(
    *, n: int | None, n_random: int | None, target: float, skip: Collection[str], full: bool
) -> None:
    """Refuse counts, a target or stages that no audit has.

    Raises:
        InputError: A number out of range.
        UnknownNameError: An unknown stage.
    """
    if n is not None and n < 2:
        usual = N_FULL if full else N
        raise InputError(f"n is {n}; an audit needs at least 2 prompts (default {usual})")
    if n_random is not None and n_random < 1:
        usual = RANDOM_FULL if full else RANDOM
        raise InputError(
            f"n_random is {n_random}; give at least 1 random circuit (default {usual}), or skip the stage "
            "with skip"
        )
    if not 0 < target <= 1:
        raise InputError(f"target is {target}; expected a normalised faithfulness in (0, 1], e.g. 0.9")
    for name in skip:
        check_name("stage to skip", name, STAGES)


def scope_of(
    model: Model,
    task: Task,
    ablation: Ablation,
    *,
    metrics: Sequence[str] | None,
    n_random: int | None,
    full: bool,
    skip: Collection[str],
) -> Scope:
    """What an audit runs on measured examples; the arguments are those of `audit`."""
    causes = _causes(task, ablation.key, full=full, skip=skip)
    keys = _metric_keys(model, task, metrics, causes)
    return Scope(
        full=full,
        causes=causes,
        metrics=keys,
        other_ablations=tuple(key for key in OTHER_ABLATIONS if not ablation.key.startswith(key)),
        n_random=0 if "random" in causes else n_random or (RANDOM_FULL if full else RANDOM),
        left_out=tuple(_left_out(model, task, ablation, causes, keys, full=full)),
    )


def _causes(task: Task, ablation: str, *, full: bool, skip: Collection[str]) -> dict[str, str]:
    """Stages that are not run at all, and why."""
    causes: dict[str, str] = {} if full else {"minimality": "default"}
    if isinstance(task, ImageTask):
        causes["calibrate"] = "images"
    causes |= dict.fromkeys(skip, "skip")
    if task.positions.ndim > 1:
        causes.setdefault("calibrate", "reads")
    if isinstance(task, PairTask) and task.alignment is not None:
        causes = {"attack": "lengths", "calibrate": "lengths", **causes}
    if not full and usual_replacement(ablation) != ablation:
        causes.setdefault("calibrate", "edges")
    return causes


def _metric_keys(
    model: Model, task: Task, metrics: Sequence[str] | None, causes: Mapping[str, str]
) -> tuple[str, ...]:
    """What is measured: what a report needs first, then what was asked for or is usual."""
    keys = [*METRICS] if metrics is None else [*HEADLINE, *(find_metric(key).key for key in metrics)]
    if metrics is None and _few_heads(model) and "minimality" not in causes:
        keys.append("minimality")
    labelled = not isinstance(task, ImageTask) or task.labels is not None
    return tuple(key for key in dict.fromkeys(keys) if labelled or key not in OF_LABELS)


def _few_heads(model: Model) -> bool:
    """Whether a run per head is cheap enough for a full audit."""
    return model.n_layers * model.n_heads <= MINIMALITY_HEADS


def _left_out(
    model: Model,
    task: Task,
    ablation: Ablation,
    causes: Mapping[str, str],
    keys: Collection[str],
    *,
    full: bool,
) -> list[LeftOut]:
    """What is not run, why, and how it is had."""
    listed = []
    for stage in STAGES:
        cause, what, option = causes.get(stage), WHAT[stage], "--full"
        if stage == "attack" and ablation.draws > 1:
            cause = "the ablation draws other values in every run, so no divergence belongs to an input"
            option = ""
        elif stage == "minimality" and "minimality" in keys:
            continue
        elif stage == "minimality" and cause in (None, "default") and not _few_heads(model):
            cause = f"the model has more than {MINIMALITY_HEADS} heads"
            option = "assay measure --metric minimality"
        elif cause == "skip":
            cause, option = "left out by --skip", f"no --skip {stage}"
        elif cause in SERVES:
            option = "" if cause == "images" else option
            cause = SERVES[cause]
        elif cause is None and not full and stage in LARGER:
            what, cause = LARGER[stage], "not part of a default audit"
        elif cause == "default" or (cause is None and stage == "minimality"):
            cause = "not part of a default audit"
        if cause is not None:
            listed.append(LeftOut(stage=stage, what=what, reason=cause, option=option))
    if isinstance(task, ImageTask) and task.labels is None:
        reason = "the images have no labels"
        listed += [LeftOut(stage=key, what=find_metric(key).name, reason=reason) for key in OF_LABELS]
    return listed

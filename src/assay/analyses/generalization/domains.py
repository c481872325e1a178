"""Domains with labels: how far a circuit moves there, how well the model does, and what threshold follows."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.analyses.generalization import baselines
from assay.analyses.generalization.alarms import Threshold, calibrate_threshold
from assay.analyses.generalization.batches import (
    FURTHER,
    READ,
    circuit_like,
    decoded_once,
    image_task,
    labelled_inspection,
)
from assay.analyses.generalization.dependency import (
    TARGETS,
    DepthRule,
    dependency_depth_bias,
    dependency_matrix,
)
from assay.analyses.generalization.evaluation import (
    DELTAS,
    AlarmCurve,
    TaskCorrelation,
    alarm_curve,
    correlate,
)
from assay.analyses.generalization.inspection import Inspection, InspectionSettings, inspect_model
from assay.analyses.generalization.metrics import reading_direction, readings
from assay.analyses.generalization.shift import (
    DISTANCES,
    USUAL_VIEW,
    ShiftView,
    circuit_shifts,
    rank_shift_map,
)
from assay.circuits import EdgeScores
from assay.core.errors import InputError, unknown_name
from assay.core.random import stream
from assay.core.record import BRIEF, Record
from assay.models import Model
from assay.stats import spearman
from assay.tasks import CORRUPTIONS, EvalTransform, ImageTask, corrupt


Progress = Callable[[str, int, int], None]
Rows = tuple[tuple[float, ...], ...]
MOST_LABELLED = 1000  # images that baselines learn from
WINDOWS = 4  # batches kept for the domains before baselines learn from more than one


# ------------------------------------------------------------------------------------------- one domain


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Record):
    """What is measured on each domain, and how the alarm is tried.

    Attributes:
        measure: True performance: `accuracy` or `macro-f1`.
        n: Images of a domain that circuit and baselines rest on, at most, drawn anew for each domain, so that
            their errors are independent.
        view: What shifts compare.
        granularity: Of dependency matrices and rank-shift maps: `block` or `sublayer`.
        ratio: tau of the depth bias.
        sets: Its shallow and deep layers: `symmetric` or `reference`.
        include_input: Count the input as shallow.
        deltas: Performance thresholds of the alarm curve.
        n_subsets: Subsets of the calibration domains per threshold.
        subset_size: Domains of a subset, at most.
        seed: Of samples, subsets and resamples.
    """

    measure: str = "accuracy"
    n: int = 300
    view: ShiftView = field(default_factory=ShiftView)
    granularity: str = "block"
    ratio: float = 0.3
    sets: str = "symmetric"
    include_input: bool = False
    deltas: tuple[float, ...] = DELTAS
    n_subsets: int = 100
    subset_size: int = 20
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Domain(Record):
    """A domain: how far the circuit moved on it, and how well the model does there.

    Attributes:
        domain: Its name.
        n: Images that shift and baselines were measured on.
        performance: Accuracy or macro-F1 on all labelled images, in [0, 1].
        shifts: Distance -> circuit shift.
        baselines: Names of metrics in lower case -> value on the images of the shift.
        n_labelled: Images that performance was measured on.
        group: The domain that it is a part of; its own name where it is whole.
        accuracy: On all labelled images, in [0, 1]; this and the rest of an evaluation alone.
        macro_f1: Mean F1 of the classes that occur, in [0, 1].
        depth_bias: Depth bias by its targets: `output`, `deep`, `global`.
        dependency: Dependency matrix, `[layers][layers]`.
        layers: Rank-shift map against the reference, `[layers][layers]`, in (-1, 1).
        absent: Baseline -> why it is undefined here.
    """

    domain: str
    n: int
    performance: float
    shifts: Mapping[str, float]
    baselines: Mapping[str, float] = field(default_factory=dict)
    n_labelled: int = 0
    group: str = field(default="", metadata=BRIEF)
    accuracy: float | None = field(default=None, metadata=BRIEF)
    macro_f1: float | None = field(default=None, metadata=BRIEF)
    depth_bias: Mapping[str, float] = field(default_factory=dict, metadata=BRIEF)
    dependency: Rows = field(default=(), metadata=BRIEF)
    layers: Rows = field(default=(), metadata=BRIEF)
    absent: Mapping[str, str] = field(default_factory=dict, metadata=BRIEF)

    @property
    def scores(self) -> dict[str, float]:
        """Every number of it: shifts, then baselines."""
        return {**self.shifts, **self.baselines}

    def score(self, metric: str) -> float:
        """A shift or a baseline by its key in `scores`.

        Raises:
            UnknownNameError: If it was not measured.
        """
        scores = self.scores
        if metric not in scores:
            raise unknown_name("metric of a domain", metric, scores)
        return scores[metric]


@dataclass(frozen=True, kw_only=True, eq=False)
class DomainProbe:
    """Measures one model on domain after domain, all in one way.

    Attributes:
        model: The deployed model.
        reference: Its circuit on known data, gives the settings of discovery.
        labelled: Answers on labelled images in distribution, which no domain is made of: for the baselines
            that learn from them.
        settings: What is measured.
        whole: Measure everything of an evaluation; False: shifts, performance and the monitor's baselines.
        unlearnt: Why there are no such images; empty where there are.
        transform: For 8-bit images; None: the model's own.
        batch_size: Images per pass.
    """

    model: Model
    reference: EdgeScores
    labelled: Inspection | None
    settings: EvaluationSettings
    whole: bool = True
    unlearnt: str = ""
    transform: EvalTransform | None = None
    batch_size: int | None = None

    def measure(self, images: ImageTask, *, name: str = "", group: str = "") -> Domain:
        """Performance on all of the images, circuit and baselines on a sample of them.

        Args:
            images: Labelled images of one domain; circuits and baselines take `settings.n` of them.
            name: Of the domain. Default: that of the images.
            group: The domain that these are a part of.

        Returns:
            Its numbers; costs a discovery on the sample and a forward pass over all.

        Raises:
            InputError: If the images have no labels, or a label is outside the classes.
        """
        how, name = self.settings, name or images.domain
        task = decoded_once(image_task(self.model, images, self.transform))
        everything = labelled_inspection(self.model, task, batch_size=self.batch_size)
        assert everything.labels is not None  # checked
        rates = {
            each: float(baselines.performance_of(everything.predictions, everything.labels, measure=each)[0])
            for each in baselines.MEASURES
        }
        sample = task
        if how.n < task.n:
            rows = np.sort(stream(how.seed, f"domains/{name}").permutation(task.n)[: how.n])
            sample = task.subset(rows).held()
        parts = ("logits", "features") if self.whole else ("logits",)
        settings = InspectionSettings(batch_size=self.batch_size)
        seen = inspect_model(self.model, sample, parts, settings=settings)
        values, absent = readings((*READ, *(FURTHER if self.whole else ())), seen, self.labelled)
        if self.unlearnt:
            absent["atc"] = self.unlearnt
        scores = circuit_like(self.model, sample, self.reference, batch_size=self.batch_size)
        more = self._more(scores, rates, group or name) if self.whole else {}
        return Domain(
            domain=name,
            n=sample.n,
            performance=rates[how.measure],
            shifts=circuit_shifts(self.reference, scores, **vars(how.view)),
            baselines=values,
            n_labelled=task.n,
            absent=absent if self.whole else {},
            **more,
        )

    def _more(self, scores: EdgeScores, rates: Mapping[str, float], group: str) -> dict[str, Any]:
        """What an evaluation has beside shifts and baselines."""
        how = self.settings
        rule = DepthRule(ratio=how.ratio, sets=how.sets, include_input=how.include_input)
        moved = rank_shift_map(self.reference, scores, granularity=how.granularity)
        matrix = dependency_matrix(scores, granularity=how.granularity)
        return {
            "group": group,
            "accuracy": rates["accuracy"],
            "macro_f1": rates["macro-f1"],
            "depth_bias": {
                targets: dependency_depth_bias(scores, targets=targets, ratio=how.ratio, **rule.options)
                for targets in TARGETS
            },
            "dependency": tuple(map(tuple, matrix.tolist())),
            "layers": tuple(map(tuple, moved.tolist())),
        }


# ------------------------------------------------------------------------------------ calibration domains


@dataclass(frozen=True, kw_only=True)
class DomainCalibration(Record):
    """Calibration domains, and test domains if any, of one model and one reference circuit.

    Attributes:
        known: Calibration domains.
        test: Domains that the alarm is tried on.
        measure: `accuracy` or `macro-f1`.
        provenance: Model, reference and settings.
    """

    record_kind = "domain-shifts"
    record_schema = "assay-domain-shifts/1"

    known: tuple[Domain, ...]
    test: tuple[Domain, ...] = ()
    measure: str = "accuracy"
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Everything that every domain was measured by: shifts first, then baselines."""
        scores = [each.scores for each in (*self.known, *self.test)]
        keys = dict.fromkeys((*DISTANCES, *(key for each in scores for key in each)))
        return tuple(key for key in keys if all(key in each for each in scores))

    def higher_is_shift(self, metric: str) -> bool:
        """Whether the alarm is above the threshold of a metric.

        True for distances. Metrics whose source states no direction take the sign of their rank correlation
        with performance over the calibration domains; all others fall with performance.
        """
        direction = -1 if metric in DISTANCES else reading_direction(metric)
        if direction or len(self.known) < 3:
            return direction < 0
        scores, performance = (
            np.array(each)
            for each in zip(*((each.score(metric), each.performance) for each in self.known), strict=True)
        )
        return spearman(scores, performance) < 0

    def threshold(self, target: float, *, metric: str = "spearman", method: str = "isotonic") -> Threshold:
        """The threshold of a metric that corresponds to a performance, see `calibrate_threshold`.

        Args:
            target: Performance below which the alarm is due.
            metric: A distance or a baseline.
            method: `isotonic` or `nearest`.
        """
        return calibrate_threshold(
            {each.domain: each.score(metric) for each in self.known},
            {each.domain: each.performance for each in self.known},
            target,
            higher_is_shift=self.higher_is_shift(metric),
            method=method,
        )

    def correlations(self) -> dict[str, TaskCorrelation]:
        """How each metric goes with performance over the test domains; NaN for fewer than three."""
        performance = [each.performance for each in self.test]
        return {key: correlate([each.score(key) for each in self.test], performance) for key in self.metrics}

    def curves(
        self,
        *,
        deltas: Sequence[float] = DELTAS,
        n_subsets: int = 100,
        subset_size: int = 20,
        seed: int = 0,
    ) -> dict[str, AlarmCurve]:
        """F1 of the alarm of each metric over performance thresholds, see `alarm_curve`.

        Args:
            deltas: Performance thresholds.
            n_subsets: Subsets of the calibration domains per threshold.
            subset_size: Domains of a subset.
            seed: Of the subsets; every metric gets the same.

        Raises:
            InputError: Without test domains, or for subsets larger than the calibration domains.
        """
        if not self.test:
            raise InputError("test domains are missing; measure some with measure_domains")
        return {
            key: alarm_curve(
                [each.score(key) for each in self.known],
                [each.performance for each in self.known],
                [each.score(key) for each in self.test],
                [each.performance for each in self.test],
                deltas=deltas,
                n_subsets=n_subsets,
                subset_size=subset_size,
                higher_is_shift=self.higher_is_shift(key),
                seed=seed,
            )
            for key in self.metrics
        }


def measure_domains(
    model: Model,
    reference: EdgeScores,
    domains: Mapping[str, ImageTask] | Iterable[tuple[str, ImageTask]],
    *,
    labelled: ImageTask | Inspection | None = None,
    n: int | None = None,
    measure: str = "accuracy",
    view: ShiftView = USUAL_VIEW,
    transform: EvalTransform | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> tuple[Domain, ...]:
    """Circuit shift under every distance, performance and baselines on each of some labelled domains.

    Args:
        model: The model of the reference.
        reference: Its circuit on known data; gives the settings.
        domains: Name -> labelled images; pairs may be made one at a time. Sizes should equal each other and
            the reference's: noise is distance, too.
        labelled: Labelled images in distribution, for `atc` and what else learns from them; none of those
            that domains are made of.
        n: Images that shift and baselines are measured on, drawn anew for each domain, so that their errors
            are independent; performance is that on all. Default: all.
        measure: `accuracy` or `macro-f1`.
        view: What shifts compare.
        transform: For 8-bit images; default: the model's own.
        batch_size: Images per pass.
        progress: Called with the domain, its number, and 0 as the total.
        seed: Of the draws.

    Returns:
        One per domain, in order; each costs a discovery, and a forward pass over all of its images.

    Raises:
        InputError: For no domain, a domain without labels, or one name twice.
    """
    known = labelled
    if known is not None and not isinstance(known, Inspection):
        known = labelled_inspection(model, image_task(model, known, transform), batch_size=batch_size)
    probe = DomainProbe(
        model=model,
        reference=reference,
        labelled=known,
        settings=EvaluationSettings(measure=measure, n=n or sys.maxsize, view=view, seed=seed),
        whole=False,
        transform=transform,
        batch_size=batch_size,
    )
    shifts: dict[str, Domain] = {}
    for name, images in domains.items() if isinstance(domains, Mapping) else domains:
        if name in shifts:
            raise InputError(f"domain {name!r} is given twice; give each domain its own name")
        if progress is not None:
            progress(name, len(shifts), 0)
        shifts[name] = probe.measure(images, name=name)
    if not shifts:
        raise InputError("domains are missing; a threshold needs domains with known performance")
    return tuple(shifts.values())


def calibrate_on_corruptions(
    model: Model,
    reference: EdgeScores,
    images: ImageTask,
    *,
    n: int | None = None,
    corruptions: Sequence[str] | None = None,
    labelled: ImageTask | None = None,
    measure: str = "accuracy",
    view: ShiftView = USUAL_VIEW,
    transform: EvalTransform | None = None,
    frost_textures: str | Path | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> DomainCalibration:
    """Shift and performance on corrupted copies of known images: 39 domains, from mild to severe.

    Args:
        model: The model to watch.
        reference: Its circuit on known images.
        images: Labelled images in distribution at the size the model reads, not those of the reference, whose
            shift would be too small: the part `corrupt` of `split_known`. Performance on a domain is that on
            all of them. Files of up to 256 MiB of pixels are decoded once and held in 8 bits; more are
            decoded anew for each domain.
        n: Images of each domain that the shift is measured on. Default: those of a batch of the reference.
        corruptions: Keys. Default: all that are registered.
        labelled: For `atc` and what else learns from known images: the part `learn`. Default: without those
            readings.
        measure: `accuracy` or `macro-f1`.
        view: What shifts compare.
        transform: Default: the model's own.
        frost_textures: Photographs of frost, see `assay.tasks.corrupt`.
        batch_size: Images per pass.
        progress: Called with the domain, its number, and 0 as the total.
        seed: Of the sample and of the corruptions.

    Returns:
        Domains named by their corruption. `threshold(target)` gives what a `Monitor` takes.

    Raises:
        InputError: If the images have no labels.
        UnknownNameError: For another corruption.
        ShapeError: For images below 32 pixels a side.

    Notes:
        Costs 39 discoveries of `n` images and 40 forward passes over all. A batch to watch should hold `n`
        images: a smaller one has a larger shift on the same domain.

    References:
        Peng et al. (2026), arXiv:2604.08192, section 5 and the appendix on monitoring.
    """
    keys = tuple(CORRUPTIONS) if corruptions is None else tuple(corruptions)
    for key in keys:
        CORRUPTIONS[key]
    if n is None:
        task = reference.provenance.get("task") or {}
        n = min(int(reference.provenance.get("batch") or task.get("n") or images.n), images.n)
    images = image_task(model, images, transform)
    held = decoded_once(images)
    corrupted = ((key, corrupt(held, key, seed=seed, frost_textures=frost_textures)) for key in keys)
    shifts = measure_domains(
        model,
        reference,
        corrupted,
        labelled=labelled,
        n=n,
        measure=measure,
        view=view,
        transform=transform,
        batch_size=batch_size,
        progress=progress,
        seed=seed,
    )
    return DomainCalibration(
        known=shifts,
        measure=measure,
        provenance={
            "model": model.describe(),
            "reference": dict(reference.provenance),
            "images": {
                "domain": images.domain,
                "hash": images.source_hash[:16],
                "learnt": None if labelled is None else labelled.source_hash[:16],
                "n": n,
                "config": dict(images.config),
                "seed": seed,
            },
            "frost": "plasma" if frost_textures is None else "photographs",
        }
        | ({} if view == USUAL_VIEW else {"view": view.to_dict()}),
    )


class KnownParts(NamedTuple):
    """Labelled images in distribution, split once.

    Attributes:
        learn: What ATC and other readings learn from; None where the images are too few to split.
        corrupt: What calibration domains are made of.
    """

    learn: ImageTask | None
    corrupt: ImageTask


def split_known(images: ImageTask, n: int, *, seed: int = 0) -> KnownParts:
    """Split labelled images, so that no reading of a calibration domain has seen the labels of its images.

    With N images, min(N // 2, max(N - 4 n, n), 1000) are to learn from and the rest to corrupt: four batches
    are kept for the domains before learning gets more than one. Fewer than 2 n images are not split.

    Args:
        images: In distribution, not those of the reference circuit.
        n: Images of a batch to watch.
        seed: Of the stream `domains/known`.

    Notes:
        Which images are where depends on their ids alone, not on their order; images of one id stay together.
    """
    ids = np.unique(np.asarray(images.ids))
    size = learning_size(len(ids), n)
    if not size:
        return KnownParts(learn=None, corrupt=images)
    learns = np.isin(np.asarray(images.ids), stream(seed, "domains/known").permutation(ids)[:size])
    return KnownParts(
        learn=images.subset(np.flatnonzero(learns)), corrupt=images.subset(np.flatnonzero(~learns))
    )


def learning_size(n_images: int, n: int) -> int:
    """Images that `split_known` gives to learn from; 0 where they are too few to split."""
    return 0 if n_images < 2 * n else min(n_images // 2, max(n_images - WINDOWS * n, n), MOST_LABELLED)

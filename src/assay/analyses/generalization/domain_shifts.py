"""Domains with known performance: what a threshold is calibrated on, and what an alarm is tested by."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assay.analyses.generalization.alarms import Threshold, calibrate_threshold
from assay.analyses.generalization.batches import (
    BASELINES,
    Labelled,
    decoded_once,
    image_task,
    labelled_outputs,
)
from assay.analyses.generalization.domain_measurement import BatchProbe, DomainShift
from assay.analyses.generalization.evaluation import (
    DELTAS,
    AlarmCurve,
    TaskCorrelation,
    alarm_curve,
    correlate,
)
from assay.analyses.generalization.shift import DISTANCES, USUAL_VIEW, ShiftView
from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.core.record import Record, plain
from assay.models import Model
from assay.stats import spearman
from assay.tasks import CORRUPTIONS, EvalTransform, ImageSet, ImageStream, ImageTask, corrupt
from assay.zoo.scoring import images_hash


SCHEMA = "assay-domain-shifts/1"
UNDIRECTED = ("mde", "alpha-req")  # their sources do not say which way they go with performance
LabelledImages = ImageSet | ImageTask | ImageStream
Progress = Callable[[str, int, int], None]


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
    record_schema = SCHEMA

    known: tuple[DomainShift, ...]
    test: tuple[DomainShift, ...] = ()
    measure: str = "accuracy"
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Everything that every domain was measured by: shifts first, then baselines."""
        scores = [each.scores for each in (*self.known, *self.test)]
        keys = dict.fromkeys((*DISTANCES, *BASELINES, *(key for each in scores for key in each)))
        return tuple(key for key in keys if all(key in each for each in scores))

    def higher_is_shift(self, metric: str) -> bool:
        """Whether the alarm is above the threshold of a metric.

        True for distances. Metrics whose source states no direction (`UNDIRECTED`) take the sign of their
        rank correlation with performance over the calibration domains; all others fall with performance.
        """
        if metric not in UNDIRECTED or len(self.known) < 3:
            return metric in DISTANCES
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

    def to_dict(self, curves: Mapping[str, AlarmCurve] | None = None) -> dict[str, Any]:
        """Finite JSON: the domains with their numbers.

        Args:
            curves: What `curves` gave, to go with them into a report.
        """
        record = super().to_dict()
        if curves is not None:
            shown = ("deltas", "mean", "std", "low", "high")
            record["curves"] = plain(
                {key: {name: getattr(each, name) for name in shown} for key, each in curves.items()}
            )
        return record

    @classmethod
    def from_dict(cls, document: object) -> "DomainCalibration":
        """What `to_dict` gave; curves are passed over.

        Raises:
            FileFormatError: If the document is of another kind.
        """
        if isinstance(document, Mapping):
            document = {name: value for name, value in document.items() if name != "curves"}
        return super().from_dict(document)


def measure_domains(
    model: Model,
    reference: EdgeScores,
    domains: Mapping[str, LabelledImages] | Iterable[tuple[str, LabelledImages]],
    *,
    labelled: LabelledImages | Labelled | None = None,
    n: int | None = None,
    measure: str = "accuracy",
    view: ShiftView = USUAL_VIEW,
    transform: EvalTransform | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> tuple[DomainShift, ...]:
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
    if known is not None and not isinstance(known, Labelled):
        known = labelled_outputs(model, image_task(model, known, transform), batch_size=batch_size)
    probe = BatchProbe(
        model=model,
        reference=reference,
        labelled=known,
        n=n,
        measure=measure,
        view=view,
        transform=transform,
        batch_size=batch_size,
        seed=seed,
    )
    shifts: dict[str, DomainShift] = {}
    for name, images in domains.items() if isinstance(domains, Mapping) else domains:
        if name in shifts:
            raise InputError(f"domain {name!r} is given twice; give each domain its own name")
        if progress is not None:
            progress(name, len(shifts), 0)
        shifts[name] = probe.look(name, images).shift
    if not shifts:
        raise InputError("domains are missing; a threshold needs domains with known performance")
    return tuple(shifts.values())


def calibrate_on_corruptions(
    model: Model,
    reference: EdgeScores,
    images: ImageSet | ImageStream,
    *,
    n: int | None = None,
    corruptions: Sequence[str] | None = None,
    labelled: LabelledImages | None = None,
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
            all of them. A stream of up to 256 MiB
            of pixels is decoded once and held in 8 bits; a larger one is decoded anew for each domain.
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
                "hash": images_hash(images),
                "learnt": images_hash(labelled) if isinstance(labelled, ImageSet | ImageStream) else None,
                "n": n,
                "config": dict(images.config),
                "seed": seed,
            },
            "frost": "plasma" if frost_textures is None else "photographs",
        }
        | ({} if view == USUAL_VIEW else {"view": view.to_dict()}),
    )

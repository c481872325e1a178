"""One model over labelled domains: how far its circuit moves, how well it does, and what goes with that."""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay.analyses.generalization import baselines
from assay.analyses.generalization import shift as shifts
from assay.analyses.generalization.alarms import Threshold, calibrate_threshold
from assay.analyses.generalization.evaluation import DELTAS, alarm_curve, correlate
from assay.analyses.generalization.inspection import (
    Inspection,
    decoded_once,
    image_task,
    inspect_model,
    labelled_inspection,
)
from assay.analyses.generalization.metrics import reading_direction, readings
from assay.circuits import EdgeScores, write_atomically
from assay.core.errors import DegenerateDataWarning, InputError, unknown_name
from assay.core.random import stream
from assay.core.record import BRIEF, Record, library_version, plain, record_id
from assay.core.untrusted import read_object
from assay.models import Model
from assay.stats import spearman
from assay.tasks import CORRUPTIONS, EvalTransform, ImageTask, corrupt


if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, int, int], None]
READ = ("average-confidence", "negative-entropy", "atc", "doc", "cot")  # of every batch that is watched
FURTHER = ("energy", "rankme", "alpha-req")  # of every domain, too
MOST_LABELLED = 1000  # images that baselines learn from
WINDOWS = 4  # batches kept for the domains before baselines learn from more than one
N_SUBSETS, SUBSET = 100, 20  # subsets of the calibration domains for an alarm curve, and domains of one
DRAWS = 1000  # resamples of the domains
LEAST_GROUPS = 5  # domains, parts of one counted once, below which a resample of them says nothing


@dataclass(frozen=True, kw_only=True)
class Domain(Record):
    """A domain: how far the circuit moved on it, and how well the model does there.

    Attributes:
        domain: Its name.
        group: The domain that it is a part of; its own name where it is whole.
        n: Images that shifts and baselines were measured on.
        n_labelled: Images that performance was measured on.
        performance: Accuracy or macro-F1 on all labelled images, in [0, 1].
        accuracy: On all labelled images, in [0, 1].
        macro_f1: Mean F1 of the classes that occur, in [0, 1].
        shifts: Distance -> circuit shift.
        baselines: Names of metrics in lower case -> value on the images of the shift.
        absent: Baseline -> why it is undefined here.
    """

    domain: str
    group: str = ""
    n: int
    n_labelled: int = 0
    performance: float
    accuracy: float | None = None
    macro_f1: float | None = None
    shifts: Mapping[str, float]
    baselines: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict, metadata=BRIEF)

    @property
    def scores(self) -> dict[str, float]:
        """Every number of it: shifts, then baselines."""
        return {**self.shifts, **self.baselines}


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Record):
    """What is measured on each domain.

    Attributes:
        measure: True performance: `accuracy` or `macro-f1`.
        n: Images of a domain that circuit and baselines rest on, at most, drawn anew for each domain, so that
            their errors are independent. None: all.
        seed: Of samples, subsets and resamples.
    """

    measure: str = "accuracy"
    n: int | None = None
    seed: int = 0


def measure_domain(
    model: Model,
    reference: EdgeScores,
    images: ImageTask,
    *,
    settings: EvaluationSettings | None = None,
    labelled: Inspection | None = None,
    name: str = "",
    group: str = "",
    transform: EvalTransform | None = None,
    cache: Path | None = None,
) -> Domain:
    """Performance on all images of a domain; circuit and baselines on a sample of them.

    Args:
        model: The model of the reference.
        reference: Its circuit on known data; gives the settings.
        images: Labelled images of one domain.
        settings: What is measured.
        labelled: Answers on labelled images in distribution, which no domain is made of: for `atc` and what
            else learns from them.
        name: Of the domain. Default: that of the images.
        group: The domain that these are a part of.
        transform: For 8-bit images; default: the model's own.
        cache: Folder of domains that were measured before; the same domain is not measured again.

    Returns:
        Its numbers; costs a discovery on the sample and a forward pass over all.

    Raises:
        InputError: If the images have no labels, or a label is outside the classes.
    """
    how, name = settings or EvaluationSettings(), name or images.domain
    record = {
        "library": library_version(),
        "model": model.describe(),
        "reference": dict(reference.provenance),
        "images": images.source_hash,
        "transform": None if transform is None else transform.to_dict(),
        "domain": [name, group],
        "labelled": labelled and labelled.provenance["task"],
        "settings": how.to_dict(),
    }
    path = None if cache is None else cache / f"{record_id('evaluated-domain', record)}.json"
    if path is not None and path.exists():
        return load_domain(path)
    task = decoded_once(image_task(model, images, transform))
    seen = labelled_inspection(model, task)
    assert seen.labels is not None  # checked
    rates = {
        each: float(baselines.performance_of(seen.predictions, seen.labels, measure=each)[0])
        for each in baselines.MEASURES
    }
    sample = task
    if how.n is not None and how.n < task.n:
        rows = np.sort(stream(how.seed, f"domains/{name}").permutation(task.n)[: how.n])
        sample = task.subset(rows).held()
    shown = inspect_model(model, sample, ("logits", "features"))
    values, absent = readings((*READ, *FURTHER), shown, labelled)
    scores = shifts.circuit_like(model, sample, reference)
    found = Domain(
        domain=name,
        group=group or name,
        n=sample.n,
        n_labelled=task.n,
        performance=rates[how.measure],
        accuracy=rates["accuracy"],
        macro_f1=rates["macro-f1"],
        shifts=shifts.circuit_shifts(reference, scores),
        baselines=values,
        absent=absent,
    )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found.to_dict(), allow_nan=False).encode())
    return found


def load_domain(path: Path) -> Domain:
    """A domain from the cache.

    Raises:
        FileFormatError: If it is not one.
    """
    return Domain.from_dict(read_object(path, "a measured domain; remove it to measure again"))


def measure_domains(
    model: Model,
    reference: EdgeScores,
    domains: Mapping[str, ImageTask] | Iterable[tuple[str, ImageTask]],
    *,
    labelled: ImageTask | Inspection | None = None,
    transform: EvalTransform | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Domain, ...]:
    """Circuit shift under every distance, performance and baselines on each of some labelled domains.

    Args:
        model: The model of the reference.
        reference: Its circuit on known data; gives the settings.
        domains: Name -> labelled images; pairs may be made one at a time. Sizes should equal each other and
            the reference's: noise is distance, too.
        labelled: Labelled images in distribution, for `atc` and what else learns from them; none of those
            that domains are made of.
        transform: For 8-bit images; default: the model's own.
        progress: Called with the domain, its number, and 0 as the total.
        options: `settings` and `cache`, as in `measure_domain`.

    Returns:
        One per domain, in order; each costs a discovery, and a forward pass over all of its images.

    Raises:
        InputError: For no domain, a domain without labels, or one name twice.
    """
    if isinstance(labelled, ImageTask):
        labelled = labelled_inspection(model, image_task(model, labelled, transform))
    options |= {"labelled": labelled, "transform": transform}
    found: dict[str, Domain] = {}
    for name, images in domains.items() if isinstance(domains, Mapping) else domains:
        if name in found:
            raise InputError(f"domain {name!r} is given twice; give each domain its own name")
        if progress is not None:
            progress(name, len(found), 0)
        found[name] = measure_domain(model, reference, images, name=name, **options)
    if not found:
        raise InputError("domains are missing; a threshold needs domains with known performance")
    return tuple(found.values())


# ------------------------------------------------------------------------------------------- evaluation


@dataclass(frozen=True, kw_only=True)
class DomainEvaluation(Record):
    """What was measured over all domains of one model, and how it goes with performance.

    Attributes:
        model: Record of the model.
        reference: Record of the reference circuit.
        settings: What was measured.
        distance: The one that leads the page and names the alarm.
        own: Further images in distribution, measured like a domain: the shift by sampling alone.
        known: Calibration domains.
        test: Domains that the alarm is tried on.
        left_out: Domains that were not measured: `domain`, `n` images, `reason`.
        sources: What the domains are made of.
    """

    record_kind = "domain-evaluation"
    record_schema = "assay-domain-evaluation/1"
    derived = ("id", "provenance", "metrics", "correlations", "curves")

    model: Mapping[str, Any]
    reference: Mapping[str, Any]
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)
    distance: str = "spearman"
    own: Domain | None = None
    known: tuple[Domain, ...] = ()
    test: tuple[Domain, ...] = ()
    left_out: tuple[Mapping[str, Any], ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict)

    @property
    def provenance(self) -> dict[str, Any]:
        """All that the numbers are a function of."""
        names = ("model", "reference", "settings", "distance", "sources")
        return {"library": library_version(), **{name: getattr(self, name) for name in names}}

    @property
    def id(self) -> str:
        """Identity of what was evaluated and how, 16 hex digits."""
        return record_id(self.record_kind, self.provenance)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Everything that every domain was measured by: shifts first, then baselines."""
        scores = [each.scores for each in (*self.known, *self.test)]
        keys = dict.fromkeys((*shifts.DISTANCES, *(key for each in scores for key in each)))
        return tuple(key for key in keys if all(key in each for each in scores))

    def _columns(self, metric: str, domains: Sequence[Domain]) -> tuple[np.ndarray, np.ndarray]:
        """A metric, and performance, of some domains."""
        if metric not in self.metrics:
            raise unknown_name("metric of a domain", metric, self.metrics)
        scores = [each.scores[metric] for each in domains]
        return np.array(scores), np.array([each.performance for each in domains])

    def higher_is_shift(self, metric: str) -> bool:
        """Whether the alarm is above the threshold of a metric.

        True for distances. Metrics whose source states no direction take the sign of their rank correlation
        with performance over the calibration domains; all others fall with performance.
        """
        direction = -1 if metric in shifts.DISTANCES else reading_direction(metric)
        return (direction or spearman(*self._columns(metric, self.known))) < 0

    def threshold(self, target: float, *, metric: str = "spearman", method: str = "isotonic") -> Threshold:
        """The threshold of a metric that corresponds to a performance, see `calibrate_threshold`.

        Args:
            target: Performance below which the alarm is due.
            metric: A distance or a baseline.
            method: `isotonic` or `nearest`.
        """
        scores, performance = self._columns(metric, self.known)
        names = [each.domain for each in self.known]
        return calibrate_threshold(
            dict(zip(names, scores.tolist(), strict=True)),
            dict(zip(names, performance.tolist(), strict=True)),
            target,
            higher_is_shift=self.higher_is_shift(metric),
            method=method,
        )

    @cached_property
    def correlations(self) -> dict[str, dict[str, float | None]]:
        """How each metric goes with performance over the test domains.

        `r2` (squared Pearson, in [0, 1]), `srcc` (Spearman) and `krcc` (Kendall's tau-b) in [-1, 1], signed;
        `low` and `high`: 95 % of `srcc` over 1,000 resamples of whole domains, None below 5 of them;
        `known_srcc`: the same correlation over the calibration domains, None below 3.
        """
        names = [each.group for each in self.test]
        groups = [np.flatnonzero(np.array(names) == name) for name in dict.fromkeys(names)]
        chooser = stream(self.settings.seed, "evaluation/domains")
        draws = chooser.integers(0, len(groups), (DRAWS, len(groups))) if len(groups) >= LEAST_GROUPS else ()
        resamples = [np.concatenate([groups[place] for place in draw]) for draw in draws]
        found: dict[str, dict[str, float | None]] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateDataWarning)  # NaN says the same
            for key in self.metrics if self.test else ():
                scores, performance = self._columns(key, self.test)
                values = [spearman(scores[rows], performance[rows]) for rows in resamples]
                low, high = np.nanquantile(values, [0.025, 0.975]).tolist() if values else (None, None)
                own = correlate(scores, performance)
                known = spearman(*self._columns(key, self.known)) if len(self.known) > 2 else None
                found[key] = {"r2": own.r2, "srcc": own.srcc, "krcc": own.krcc, "low": low, "high": high}
                found[key]["known_srcc"] = known
        return found

    @cached_property
    def curves(self) -> dict[str, Any] | None:
        """F1 of the alarm of each metric over performance thresholds; None without domains of both kinds.

        Of each metric `deltas`, `mean`, `low`, `high` (of random subsets of the calibration domains, 20 or
        all), and `summary`: mean F1 over the thresholds at which an alarm is due on some test domains and not
        on others; None if there is none. Under `always` the same for an alarm that always goes off.
        """
        if not self.known or not self.test:
            return None
        due = np.array([each.performance for each in self.test]) < np.array(DELTAS)[:, None]
        telling = due.any(1) & ~due.all(1)
        share = due.mean(1)
        always = np.divide(2 * share, 1 + share, out=np.full(len(share), np.nan), where=share > 0)
        curves = {}
        for key in self.metrics:
            curve = alarm_curve(
                *self._columns(key, self.known),
                *self._columns(key, self.test),
                n_subsets=N_SUBSETS,
                subset_size=min(SUBSET, len(self.known)),
                higher_is_shift=self.higher_is_shift(key),
                seed=self.settings.seed,
            )
            curves[key] = {name: getattr(curve, name) for name in ("mean", "low", "high")}
        curves["always"] = dict.fromkeys(("mean", "low", "high"), always)
        for each in curves.values():
            defined = each["mean"][telling & np.isfinite(each["mean"])]
            each |= {"deltas": list(DELTAS), "summary": float(defined.mean()) if len(defined) else None}
        return dict(plain(curves))

    def to_frame(self) -> "pd.DataFrame":
        """A row per domain: what it was used for, its sizes, performance, and every metric."""
        import pandas as pd

        own = () if self.own is None else (self.own,)
        uses = {"in distribution": own, "calibration": self.known, "test": self.test}
        facts = ("domain", "group", "n", "n_labelled", "accuracy", "macro_f1")
        rows = [
            {"use": use, **{name: getattr(each, name) for name in facts}, **each.scores}
            for use, domains in uses.items()
            for each in domains
        ]
        return pd.DataFrame(rows, columns=["use", *facts, *self.metrics])


def calibrate_on_corruptions(
    model: Model,
    reference: EdgeScores,
    images: ImageTask,
    *,
    settings: EvaluationSettings | None = None,
    corruptions: Sequence[str] | None = None,
    transform: EvalTransform | None = None,
    **options: Any,
) -> DomainEvaluation:
    """Shift and performance on corrupted copies of known images: 39 domains, from mild to severe.

    Args:
        model: The model to watch.
        reference: Its circuit on known images.
        images: Labelled images in distribution at the size the model reads, not those of the reference, whose
            shift would be too small: the part `corrupt` of `split_known`. Performance on a domain is that on
            all of them. Files of up to 256 MiB of pixels are decoded once and held in 8 bits; more are
            decoded anew for each domain.
        settings: What is measured. Default: accuracy, shifts on as many images as a batch of the reference.
        corruptions: Keys. Default: all that are registered.
        transform: Default: the model's own.
        options: `labelled`, `cache` and `progress`, as in `measure_domains`.

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
    record = reference.provenance
    settings = settings or EvaluationSettings(n=record.get("batch") or (record.get("task") or {}).get("n"))
    held = decoded_once(image_task(model, images, transform))
    corrupted = ((key, corrupt(held, key, seed=settings.seed)) for key in keys)
    known = measure_domains(model, reference, corrupted, settings=settings, transform=transform, **options)
    return DomainEvaluation(
        model=model.describe(),
        reference=plain(dict(record)),
        settings=settings,
        known=known,
        sources={"images": images.source_hash[:16], "corruptions": keys},
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
    ids = np.unique(images.ids.numpy())
    size = min(len(ids) // 2, max(len(ids) - WINDOWS * n, n), MOST_LABELLED)
    if len(ids) < 2 * n:
        return KnownParts(learn=None, corrupt=images)
    learns = np.isin(images.ids.numpy(), stream(seed, "domains/known").permutation(ids)[:size])
    return KnownParts(
        learn=images.subset(np.flatnonzero(learns)), corrupt=images.subset(np.flatnonzero(~learns))
    )

"""One model over labelled domains: how far its circuit moves, how well it does, and what goes with that."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.generalization import alarms, dependency, inspection
from assay.analyses.generalization.alarms import DELTAS, Threshold, correlate
from assay.analyses.generalization.baselines import performance_of
from assay.analyses.generalization.inspection import METRICS, Inspection, inspect_model
from assay.circuits import EdgeScores, write_atomically
from assay.core.errors import DegenerateDataWarning, check_name
from assay.core.random import stream
from assay.core.record import Record, library_version, plain, record_id
from assay.core.untrusted import read_object
from assay.models import Model
from assay.tasks import CORRUPTIONS, ImageTask, corrupt
from assay.zoo.archive import Progress


if TYPE_CHECKING:
    import pandas as pd

READ = ("average-confidence", "negative-entropy", "atc", "doc", "cot")  # of every batch that is watched
FURTHER = ("energy", "rankme", "alpha-req")  # of every domain, too
MOST_LABELLED = 1000  # images that baselines learn from
WINDOWS = 4  # batches kept for the domains before baselines learn from more than one


def name_and_direction(key: str) -> tuple[str, float]:
    """What a table calls a distance or a reading; 1 where it rises with performance, -1 falls, 0 unknown."""
    if key in dependency.DISTANCES:
        return f"shift ({key})", -1.0
    facts = {each.name.lower(): (each.name, float(each.direction)) for each in METRICS.values()}
    return facts.get(key, (key, 1.0))


@dataclass(frozen=True, kw_only=True)
class Domain(Record):
    """A domain: how far the circuit moved on it, and how well the model does there.

    Attributes:
        domain: Its name.
        n: Images that shifts and baselines were measured on.
        n_labelled: Images that performance was measured on.
        performance: Accuracy, or mean F1 of the classes that occur, on all labelled images, in [0, 1].
        shifts: Distance -> circuit shift.
        baselines: Names of metrics in lower case -> value on the images of the shift; those that are
            undefined on them are left out.
    """

    domain: str
    n: int
    n_labelled: int = 0
    performance: float
    shifts: Mapping[str, float]
    baselines: Mapping[str, float] = field(default_factory=dict)

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


def measure_domains(
    model: Model,
    reference: EdgeScores,
    domains: Mapping[str, ImageTask],
    *,
    labelled: ImageTask | None = None,
    settings: EvaluationSettings | None = None,
    cache: Path | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> tuple[Domain, ...]:
    """Circuit shift under every distance, performance and baselines on each of some labelled domains.

    Args:
        model: The model of the reference.
        reference: Its circuit on known data; gives the settings.
        domains: Name -> labelled images. Performance is that on all of them, circuit and baselines rest on a
            sample. Sizes should equal each other and the reference's: noise is distance, too.
        labelled: Labelled images in distribution, for `atc` and what else learns from them; none of those of
            which domains are made.
        settings: What is measured.
        cache: Folder of domains that were measured before; the same domain is not measured again.
        progress: Called with the domain, its number, and the number of domains.

    Returns:
        One per domain, in order; each costs a discovery on the sample and a forward pass over all images.

    Raises:
        InputError: If images have no labels, or a label is outside the classes.
        FileFormatError: If a file of the cache is not a domain.
    """
    how, found = settings or EvaluationSettings(), list[Domain]()
    known = None if labelled is None else inspect_model(model, labelled, ["labels"], cache=cache)
    for name, images in domains.items():
        progress(name, len(found), len(domains))
        task = replace(images.for_model(model), domain=name)
        record: dict[str, Any] = {"library": library_version(), "model": model.describe(), "domain": name}
        record |= {"reference": dict(reference.provenance), "settings": how.to_dict()}
        record |= {"images": task.source_hash, "transform": task.transform and task.transform.to_dict()}
        record["labelled"] = known and known.provenance["task"]
        path = None if cache is None else cache / f"{record_id('evaluated-domain', record)}.json"
        if path is not None and path.exists():
            found.append(Domain.from_dict(read_object(path, "a measured domain; remove it to measure again")))
            continue
        found.append(_measured(model, reference, task, how, known))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(found[-1].to_dict(), allow_nan=False).encode())
    return tuple(found)


def _measured(
    model: Model, reference: EdgeScores, images: ImageTask, how: EvaluationSettings, known: Inspection | None
) -> Domain:
    sample = task = inspection.decoded_once(images)
    seen = inspect_model(model, task, ["labels"])
    assert seen.labels is not None  # checked
    (performance,) = performance_of(seen.predictions, seen.labels, measure=how.measure)
    if how.n is not None and how.n < task.n:
        rows = np.sort(stream(how.seed, f"domains/{task.domain}").permutation(task.n)[: how.n])
        sample = task.subset(rows).held()
    shown = inspect_model(model, sample, ["logits", "features"])
    return Domain(
        domain=task.domain,
        n=sample.n,
        n_labelled=task.n,
        performance=float(performance),
        shifts=dependency.circuit_shifts(reference, dependency.circuit_like(model, sample, reference)),
        baselines=inspection.readings((*READ, *FURTHER), shown, known),
    )


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
        left_out: Domains that were not measured: `domain` and `n` images.
        sources: What the domains are made of.
    """

    record_kind = "domain-evaluation"
    record_schema = "assay-domain-evaluation/1"
    derived = ("id", "provenance", "metrics", "correlations", "alarm_f1")

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
        keys = dict.fromkeys((*dependency.DISTANCES, *(key for each in scores for key in each)))
        return tuple(key for key in keys if all(key in each for each in scores))

    def _columns(self, metric: str, domains: Sequence[Domain]) -> tuple[np.ndarray, np.ndarray]:
        """A metric, and performance, of some domains."""
        scores = [each.scores[metric] for each in domains]
        return np.array(scores), np.array([each.performance for each in domains])

    def _srcc(self, metric: str, domains: Sequence[Domain]) -> float:
        return correlate(*self._columns(metric, domains)).srcc if domains else math.nan

    def direction(self, metric: str) -> float:
        """Above 0 where a metric is said to rise with performance, below where it falls, as shifts do.

        For metrics whose source says neither, the rank correlation with performance over the calibration
        domains.
        """
        return name_and_direction(metric)[1] or self._srcc(metric, self.known)

    def threshold(self, target: float, *, metric: str = "spearman", method: str = "isotonic") -> Threshold:
        """The threshold of a metric that corresponds to a performance, see `calibrate_threshold`.

        Args:
            target: Performance below which the alarm is due.
            metric: A distance or a baseline.
            method: `isotonic` or `nearest`.
        """
        check_name("metric of a domain", metric, self.metrics)
        scores = {each.domain: each.scores[metric] for each in self.known}
        performance = {each.domain: each.performance for each in self.known}
        higher = self.direction(metric) < 0
        return alarms.calibrate_threshold(scores, performance, target, higher_is_shift=higher, method=method)

    @cached_property
    def correlations(self) -> dict[str, dict[str, Any]]:
        """How each metric goes with performance over the test domains; NaN below 3 of them.

        `r2` (squared Pearson, in [0, 1]), `srcc` (Spearman) and `krcc` (Kendall's tau-b) in [-1, 1], signed;
        `known_srcc`: the rank correlation over the calibration domains; `agreement`: that over the test
        domains, positive where it has the sign that the metric states; `name`: what a page calls the metric.
        """
        found: dict[str, dict[str, Any]] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateDataWarning)  # NaN says the same
            for key in self.metrics if self.test else ():
                row = found[key] = vars(correlate(*self._columns(key, self.test))).copy()
                row["name"], stated = name_and_direction(key)
                row["known_srcc"] = self._srcc(key, self.known)
                row["agreement"] = stated * row["srcc"] if stated else abs(row["srcc"])
        return found

    @cached_property
    def alarm_f1(self) -> dict[str, float] | None:
        """Mean F1 of the alarm of each metric, and under `always` of one that always goes off.

        Over the thresholds of performance at which an alarm is due on some test domains and not on others,
        and over 100 random subsets of the calibration domains (20 of them, or all), as in `alarm_curve`. None
        if there is no such threshold, or no calibration domain.
        """
        due = np.array([each.performance for each in self.test]) < np.array(DELTAS)[:, None]
        telling = due.any(1) & ~due.all(1)
        if not self.known or not telling.any():
            return None
        how: dict[str, Any] = {"deltas": np.array(DELTAS)[telling].tolist(), "seed": self.settings.seed}
        share, found = due[telling].mean(1), dict[str, float]()
        for key in self.metrics:
            known, test = (self._columns(key, each) for each in (self.known, self.test))
            f1 = alarms.alarm_curve(*known, *test, higher_is_shift=self.direction(key) < 0, **how)
            found[key] = float(f1.mean(1).mean())
        return {**found, "always": float((2 * share / (1 + share)).mean())}

    def to_frame(self) -> "pd.DataFrame":
        """A row per domain: what it was used for, its sizes, performance, and every metric."""
        import pandas as pd

        facts, rows = ("domain", "n_labelled", "n", "performance"), []
        own = () if self.own is None else (self.own,)
        for use, domains in (("in distribution", own), ("calibration", self.known), ("test", self.test)):
            rows += [{"use": use, **vars(each), **each.scores} for each in domains]
        return pd.DataFrame(rows, columns=["domain", "use", *facts[1:], *self.metrics])


def calibrate_on_corruptions(
    model: Model,
    reference: EdgeScores,
    images: ImageTask,
    *,
    settings: EvaluationSettings | None = None,
    corruptions: Sequence[str] | None = None,
    **options: Any,
) -> DomainEvaluation:
    """Shift and performance on corrupted copies of known images: 39 domains, from mild to severe.

    Args:
        model: The model to watch.
        reference: Its circuit on known images.
        images: Labelled images in distribution at the size the model reads, not those of the reference, whose
            shift would be too small: the second part of `split_known`. Performance on a domain is that on
            all of them. Files of up to 256 MiB of pixels are decoded once and held in 8 bits; more are
            decoded anew for each domain.
        settings: What is measured. Default: accuracy, shifts on as many images as a batch of the reference.
        corruptions: Keys. Default: all that are registered.
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
    record = reference.provenance
    settings = settings or EvaluationSettings(n=record.get("batch") or (record.get("task") or {}).get("n"))
    task = inspection.decoded_once(images.for_model(model))
    corrupted = {key: corrupt(task, key, seed=settings.seed) for key in keys}
    return DomainEvaluation(
        model=model.describe(),
        reference=plain(dict(record)),
        settings=settings,
        known=measure_domains(model, reference, corrupted, settings=settings, **options),
        sources={"images": images.source_hash[:16], "corruptions": keys},
    )


def split_known(images: ImageTask, n: int, *, seed: int = 0) -> tuple[ImageTask | None, ImageTask]:
    """Split labelled images, so that no reading of a calibration domain has seen the labels of its images.

    With N images, min(N // 2, max(N - 4 n, n), 1000) are to learn from and the rest to corrupt: four batches
    are kept for the domains before learning gets more than one. Fewer than 2 n images are not split.

    Args:
        images: In distribution, not those of the reference circuit.
        n: Images of a batch to watch.
        seed: Of the stream `domains/known`.

    Returns:
        What ATC and other readings learn from, None where the images are too few to split; and what
        calibration domains are made of.

    Notes:
        Which images are where depends on their ids alone, not on their order; images of one id stay together.
    """
    ids = np.unique(images.ids.numpy())
    size = min(len(ids) // 2, max(len(ids) - WINDOWS * n, n), MOST_LABELLED)
    if len(ids) < 2 * n:
        return None, images
    learns = np.isin(images.ids.numpy(), stream(seed, "domains/known").permutation(ids)[:size])
    return images.subset(np.flatnonzero(learns)), images.subset(np.flatnonzero(~learns))

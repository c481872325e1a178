"""A ranking in the making: models are added as they come, and of each only what tables need is kept."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.analyses.generalization.dependency import layer_sets
from assay.analyses.generalization.inspection import Inspection, InspectionSettings, resamples
from assay.analyses.generalization.predictor import PREDICTORS, Estimate, Evidence, performance
from assay.analyses.generalization.predictors import DEFAULT_METRICS, ORDER
from assay.analyses.generalization.ranking_table import Column, Ranking, column_of
from assay.core.errors import GraphMismatchError, InputError, unknown_name
from assay.core.random import stream
from assay.stats.intervals import draw_counts


MEASURES = ("accuracy", "macro-f1")


class RankingBuilder:
    """The models of a ranking as they come, one after the other; of each only what tables need is kept."""

    def __init__(
        self,
        metrics: Sequence[str] | None,
        *,
        measure: str,
        ratio: float,
        level: float,
        settings: InspectionSettings,
        elsewhere: Sequence[Ranking],
    ) -> None:
        self.chosen = _chosen(metrics)
        if measure not in MEASURES:
            raise unknown_name("measure", measure, MEASURES)
        layer_sets(2, ratio)  # refuses a ratio out of range before any model runs
        self.needs = frozenset[str]().union(*(PREDICTORS[key].needs for key in self.chosen))
        self.asked = frozenset(metrics or ())
        self.measure, self.ratio, self.level = measure, ratio, level
        self.settings, self.elsewhere = settings, elsewhere
        self.names: list[str] = []
        self.kept: list[Evidence] = []
        self.rows: list[dict[str, Estimate]] = []
        self.gaps: dict[str, str] = {}
        self._counts: dict[tuple[int, str], Float64[np.ndarray, "draws n"]] = {}

    def add(self, name: str, shown: Inspection, known: Inspection | None) -> None:
        """One more model, by what it showed."""
        for each in (shown, known):
            made = {} if each is None else each.provenance.get("settings", {})
            if differing := sorted(
                key for key, value in self.settings.record().items() if made.get(key, value) != value
            ):
                raise InputError(
                    f"what {name} showed was measured with {differing[0]}={made[differing[0]]!r}, and this "
                    f"ranking uses {self.settings.record()[differing[0]]!r}; measure all with the same"
                )
        if known is not None and known.labels is None:
            self._lack("known", "the images of the models' own domain have no labels")
            known = None
        if self.kept:
            circuits = bool(self.needs & {"output-scores", "edge-scores"})
            _check_alike(self.kept[0], shown, known, (self.names[0], name), circuits=circuits)
        evidence = Evidence(
            target=shown,
            known=known,
            counts=self._resamples(shown.n),
            known_counts=None if known is None else self._resamples(known.n, "rank/known-images"),
            ratio=self.ratio,
            measure=self.measure,
            seed=self.settings.seed,
            asked=self.asked,
        )
        for part, missing in _missing(evidence).items():
            self._lack(part, missing)
        alone = [key for key in self.chosen if key not in self.gaps and not PREDICTORS[key].together]
        self.rows.append({key: PREDICTORS[key].of([evidence])[0] for key in alone})
        self.kept.append(
            replace(evidence, target=_light(shown), known=None if known is None else _light(known))
        )
        self.names.append(name)

    def _lack(self, part: str, reason: str) -> None:
        for key in self.chosen:
            if part in PREDICTORS[key].needs:
                self.gaps.setdefault(key, reason)

    def _resamples(self, n: int, name: str = "") -> Float64[np.ndarray, "draws n"]:
        """Counts of `n` images; by default under the resamples that inspections use."""
        if (n, name) not in self._counts:
            self._counts[n, name] = (
                draw_counts(n, self.settings.draws, stream(self.settings.seed, name))
                if name
                else resamples(n, self.settings)
            )
        return self._counts[n, name]

    def ranking(self) -> Ranking:
        """The table of the models so far."""
        truth = self._performance()
        columns: dict[str, Column] = {}
        absent = {key: self.gaps[key] for key in self.chosen if key in self.gaps}
        for key in self.chosen:
            if key in self.gaps:
                continue
            metric = PREDICTORS[key]
            found = metric.of(list(self.kept)) if metric.together else [row[key] for row in self.rows]
            if all(math.isnan(each.value) for each in found):
                absent[key] = found[0].reason or "undefined on these images"
                continue
            columns[key] = column_of(
                metric, found, truth, level=self.level, seed=self.settings.seed, elsewhere=self.elsewhere
            )
        first = self.kept[0]
        shown = [each for pair in self.kept for each in (pair.target, pair.known) if each is not None]
        return Ranking(
            names=tuple(self.names),
            columns=columns,
            absent=absent,
            performance=truth,
            measure=self.measure,
            inspections=tuple(each.target for each in self.kept),
            target=_facts(first.target),
            known=None if first.known is None else _facts(first.known),
            ratio=self.ratio,
            settings=self.settings,
            level=self.level,
            costs=_total(shown),
        )

    def _performance(self) -> Column | None:
        labels = self.kept[0].target.labels
        if labels is None:
            return None
        found = [performance(each.target, labels, each.counts, each.measure) for each in self.kept]
        metric = replace(
            PREDICTORS["id-accuracy"], key="performance", name=self.measure, summary="true performance"
        )
        return column_of(metric, found, None, level=self.level, seed=self.settings.seed)


def _chosen(metrics: Sequence[str] | None) -> tuple[str, ...]:
    """Keys in the order of tables; those of other packages last."""
    asked = tuple(DEFAULT_METRICS if metrics is None else dict.fromkeys(metrics))
    if not asked:
        raise InputError("no metric to rank by; name some, or leave metrics out for all")
    for key in asked:
        PREDICTORS[key]
    return tuple(sorted(asked, key=lambda key: ORDER.index(key) if key in ORDER else len(ORDER)))


def _missing(evidence: Evidence) -> dict[str, str]:
    """Parts of the evidence that metrics may need and that are not there, with the reason."""
    target, known = evidence.target, evidence.known
    found = {}
    if known is None:
        found["known"] = "needs labelled images of the models' own domain (id_data)"
    elif known.sharpness is None:
        found["sharpness"] = "the models were not inspected for sharpness"
    for part, value in (
        ("features", target.features),
        ("output-scores", target.output_scores),
        ("edge-scores", target.dependency_draws),
    ):
        if value is None:
            found[part] = f"the models were inspected without {part.replace('-', ' ')}"
    return found


def _light(inspection: Inspection) -> Inspection:
    """Without what only metrics of single models read."""
    return replace(inspection, features=None, dependency_draws=None)


def _check_alike(
    first: Evidence,
    shown: Inspection,
    known: Inspection | None,
    names: tuple[str, str],
    *,
    circuits: bool,
) -> None:
    """Refuse models whose numbers do not compare."""
    one, other = names
    if circuits and first.target.graph != shown.graph:
        raise GraphMismatchError(
            f"{one} and {other} have different graphs ({first.target.graph.describe()} and "
            f"{shown.graph.describe()}), so their circuits do not compare; rank them apart, or by metrics "
            "that read no circuit"
        )
    for what, a, b in (("target", first.target, shown), ("own-domain", first.known, known)):
        if a is None or b is None:
            continue
        if a.logits.shape[1] != b.logits.shape[1] or a.classes != b.classes:
            raise InputError(
                f"{one} and {other} tell different classes apart ({_classes(a)} and {_classes(b)}); rank "
                "models of one class list"
            )
        same_labels = (a.labels is None) == (b.labels is None) and (
            a.labels is None or b.labels is None or np.array_equal(a.labels, b.labels)
        )
        if not np.array_equal(a.ids, b.ids) or not same_labels:
            raise InputError(f"{one} and {other} were given different {what} images; give both the same")


def _classes(inspection: Inspection) -> str:
    if inspection.classes is None:
        return f"{inspection.logits.shape[1]} unnamed"
    more = ", ..." if len(inspection.classes) > 4 else ""
    return f"{len(inspection.classes)}: {', '.join(inspection.classes[:4])}{more}"


def _facts(inspection: Inspection) -> dict[str, Any]:
    task = inspection.provenance.get("task", {})
    return {
        "name": task.get("name", ""),
        "domain": task.get("domain", ""),
        "data_hash": task.get("data_hash"),
        "config": task.get("config", {}),
        "n": inspection.n,
        "n_classes": inspection.logits.shape[1],
        "labelled": inspection.labels is not None,
    }


def _total(inspections: Sequence[Inspection]) -> dict[str, Any]:
    """Seconds of each stage over all models and images, and the passes that it makes per image."""
    stages: dict[str, dict[str, Any]] = {}
    for each in inspections:
        for name, spent in each.cost.items():
            stage = stages.setdefault(name, {"seconds": 0.0, "passes": spent["passes"]})
            stage["seconds"] += spent["seconds"]
    return stages

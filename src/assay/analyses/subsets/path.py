"""Subsets of several sizes: which to show first, how they overlap, other subsets, and what a page shows."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from assay.analyses.subsets.baselines import baselines
from assay.analyses.subsets.coherence import (
    class_names,
    example_correlations,
    facts_of,
    models_needed,
    prevalence_shift,
    replicate_examples,
)
from assay.analyses.subsets.data import PerModel
from assay.analyses.subsets.line import AOTIL, LEVEL, Places, fit_line
from assay.analyses.subsets.overlap import selection_consistency
from assay.analyses.subsets.problem import Correct, Problem, checked_sizes, default_sizes, make_problem
from assay.analyses.subsets.selection import Subset, subsets_of
from assay.analyses.subsets.splits import PARTS
from assay.analyses.subsets.verdict import Progress, SubsetVerdict
from assay.core.errors import InputError, check_name
from assay.core.plotted import Plotted
from assay.core.random import stream
from assay.core.record import Record, record_id
from assay.page.thumbnail import thumbnail
from assay.stats import fisher_z_interval


RULES = ("val", "ci", "paper")
SHOWN = 48  # single examples on either side of a page
FACTS = 6  # facts beside a single example


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionPath(Plotted, Record):
    """Subsets of several sizes of the same data, with the same split.

    Attributes:
        subsets: Ascending by size.
        problem: Data, split, settings and answers behind them.
        baselines: As `baselines` gives them.
    """

    drawn_by = "assay.analyses.subsets.plots:plot_path"
    record_kind = "subset-path"
    record_schema = "assay-subset-path/2"
    record_layout = {
        "id": "id",
        "size": "headline.size",
        "largest_supported": "largest_supported.size",
        "largest": "_largest",
        "subsets": "subsets",
        "baselines": "_baseline_rows",
        "contents": "_contents",
        "provenance": "provenance",
    }

    subsets: tuple[Subset, ...]
    problem: Problem
    baselines: pd.DataFrame

    def __getitem__(self, size: int) -> Subset:
        if size not in self.sizes:
            raise InputError(f"size {size} is not on the path; choose one of {self.sizes}")
        return self.subsets[self.sizes.index(size)]

    def __iter__(self) -> Iterator[Subset]:
        return iter(self.subsets)

    def __len__(self) -> int:
        return len(self.subsets)

    def __repr__(self) -> str:
        correlations = ", ".join(f"{each.size}: {each.correlation['test'].r:.2f}" for each in self.subsets)
        return f"SelectionPath(R over test models by size {correlations})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Examples of the subsets, ascending."""
        return tuple(each.size for each in self.subsets)

    def judge(self, **options: Any) -> tuple[SubsetVerdict, ...]:
        """A verdict per size, corrected for having looked at all of them; see `Subset.judge`."""
        self.subsets[0].judge(**options)
        return self.verdicts

    @property
    def verdicts(self) -> tuple[SubsetVerdict, ...]:
        """One per size, computed when first asked for, with the defaults of `judge`."""
        return tuple(each.verdict for each in self.subsets)

    @property
    def headline(self) -> Subset:
        """The subset to show first: that of the lowest cross-fitted R among the supported.

        Where none is supported, the lowest cross-fitted R of all; where none is judged, the largest with
        validation R at most -0.3, else the lowest.
        """
        judged = [each for each in self.subsets if each.known_verdict is not None]
        tested = [each for each in judged if not math.isnan(each.verdict.r)]
        if tested:
            supported = [each for each in tested if each.verdict.supported]
            return min(supported or tested, key=lambda each: each.verdict.r)
        by_validation = np.array([each.correlation["validation"].r for each in self.subsets])
        lowest = int(np.argmin(np.where(np.isnan(by_validation), 2, by_validation)))
        return self.largest_aotil() or self.subsets[lowest]

    @property
    def largest_supported(self) -> Subset | None:
        """The largest subset whose verdict is known to be supported; None where there is none."""
        known = (each for each in reversed(self.subsets) if each.known_verdict is not None)
        return next((each for each in known if each.verdict.supported), None)

    def largest_aotil(self, rule: str = "val") -> Subset | None:
        """The largest subset on which accuracy is on the inverse line, R <= -0.3; None where there is none.

        Args:
            rule: `val` chooses by the validation models; `ci` also wants the whole interval of the test
                correlation at or below -0.3; `paper` chooses by the test correlation itself.

        References:
            Salaudeen et al. (2025), arXiv:2510.24884, Table 1.
        """
        check_name("rule for the largest subset", rule, RULES)
        for subset in reversed(self.subsets):
            test, validation = subset.correlation["test"], subset.correlation["validation"]
            inverse = validation.r <= AOTIL and (rule == "val" or test.high <= AOTIL)
            if test.r <= AOTIL if rule == "paper" else inverse:
                return subset
        return None

    @functools.cached_property
    def consistency(self) -> pd.DataFrame:
        """Overlap of the subsets over sizes, between random (0) and nested (1); no sign that one is real."""
        pool = self.problem.pool
        sets = [np.searchsorted(pool, each.indices) for each in self.subsets]
        return selection_consistency(sets, len(pool))

    def table(self) -> pd.DataFrame:
        """R over the test models by size, as Table A.3 of the paper; see `size_table`."""
        return size_table(self.subsets, self.baselines)

    def to_frame(self) -> pd.DataFrame:
        """One row per size and set of examples: size, kind (`selection` or a baseline), r, low, high.

        R is over the test models.
        """
        tests = [each.correlation["test"] for each in self.subsets]
        own = {name: [getattr(test, name) for test in tests] for name in ("r", "low", "high")}
        table = pd.DataFrame({"size": self.sizes, "kind": "selection"} | own)
        return pd.concat([table, self.baselines[table.columns]], ignore_index=True)

    # -------------------------------------------------------------------------------------------- files

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be."""
        made = self.subsets[0].provenance
        return {name: made[name] for name in ("library", "data", "split", "sweep", "settings")}

    @property
    def id(self) -> str:
        """Hash of the provenance."""
        return record_id(self.record_kind, self.provenance)

    @property
    def document(self) -> Mapping[str, Any]:
        """What its page shows, the verdicts included; see `assay.save_report`."""
        _ = self.verdicts
        return self.to_dict()

    def _largest(self) -> dict[str, int | None]:
        largest = {rule: self.largest_aotil(rule) for rule in RULES}
        return {rule: None if each is None else each.size for rule, each in largest.items()}

    def _baseline_rows(self) -> list[dict[str, Any]]:
        return [{str(key): each for key, each in row.items()} for row in self.baselines.to_dict("records")]

    def _contents(self) -> dict[str, Any]:
        """What the page shows of the headline beyond its record; what the data do not tell is empty."""
        subset = self.headline
        data, pool, split = subset.require_data("a page"), subset.pool, subset.split
        kind = "group" if data.groups is not None else data.unit_kind  # as the verdict counts them
        units, runs = data.units(kind), data.units("model" if data.groups is None else "group")
        part_of = np.full(data.n_models, "unused", dtype=object)
        for name in PARTS:
            part_of[split.part(name)] = name
        y, right = data.id_accuracy, {"all": data.accuracy(), "chosen": data.accuracy(subset.indices)}
        outside = np.setdiff1d(pool, subset.indices)
        rng = stream(subset.settings.seed, "examples of a report")
        others = np.sort(rng.choice(outside, min(SHOWN, len(outside)), replace=False)).astype(np.int64)
        return {
            "data": {
                "n_models": data.n_models,
                "n_examples": data.n_examples,
                "unit_kind": data.unit_kind,
            },
            "description": {name: each for name, each in data.describe().dropna().items() if each != ""},
            "split": {
                "unit_kind": kind,
                "n_models": {name: len(split.part(name)) for name in PARTS},
                "n_units": {name: len(np.unique(units[split.part(name)])) for name in PARTS},
            },
            "consistency": self.consistency.to_numpy() if len(self) > 1 else None,
            "prevalence": [] if facts_of(subset).empty else prevalence_shift(subset).to_dict("records"),
            "replication": _replication(replicate_examples(subset)),
            "models_needed": models_needed(y, right["all"], groups=runs, seed=subset.settings.seed),
            "models": {"model": data.model_ids, "part": part_of, "id_accuracy": y} | right,
            "lines": {name: fit_line(y[split.test], each[split.test]) for name, each in right.items()},
            "examples": {
                "chosen": _described(subset, subset.indices[:SHOWN]),
                "others": _described(subset, others),
            },
        }


def _replication(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Shares of single examples that go against better models, of the chosen and of all others."""
    sides = {}
    for name, rows in (("chosen", table[table["chosen"]]), ("others", table[~table["chosen"]])):
        r, tested = rows["r"].dropna(), rows["q_value"].notna().any()
        sides[name] = {
            "negative": float((r < 0).mean()) if len(r) else math.nan,
            "discovered": float((rows["q_value"] <= LEVEL).mean()) if tested else math.nan,
        }
    return sides


def _described(subset: Subset, places: Places) -> list[dict[str, Any]]:
    """Single examples with what is known of them, and a picture where there is one."""
    data, test = subset.require_data("a page"), subset.split.test
    answers, meta = data.correct[test][:, places], data.meta.iloc[places, :FACTS]
    r, right = example_correlations(answers, data.id_accuracy[test]), answers.mean(axis=0, dtype=np.float64)
    labels = None if data.labels is None else class_names(subset)[places]
    return [
        {
            "id": str(data.example_ids[index]),
            "label": None if labels is None else str(labels[row]),
            "facts": ", ".join(f"{name} {_fact(meta[name].iloc[row])}" for name in meta),
            "right": right[row],
            "r": r[row],
            "image": None if data.images is None else thumbnail(data.images[index]),
        }
        for row, index in enumerate(places.tolist())
    ]


def _fact(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def size_table(subsets: Sequence[Subset], baselines: pd.DataFrame) -> pd.DataFrame:
    """R over the test models by size, for subsets and their baselines, as Table A.3 of the paper.

    Returns:
        A row per size: `n` (examples) and `n_models` (test models); of `ours` and each baseline
        `pearson_KIND`, `spearman_KIND` and half the width of its interval through atanh (`_hw`), which takes
        models as independent; `cross_fitted`, `p_value`, `status` of the verdict, where it is known.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Table A.3.
    """
    rows = []
    for subset in subsets:
        test, verdict = subset.correlation["test"], subset.known_verdict
        others = baselines[(baselines["size"] == subset.size) & (baselines["kind"] != "all")]
        kinds = {"ours": (test.r, test.spearman)}
        kinds |= {row["kind"]: (row["r"], row["spearman"]) for row in others.to_dict("records")}
        row: dict[str, Any] = {"n": subset.size, "n_models": test.n}
        for place, statistic in enumerate(("pearson", "spearman")):
            for kind, pair in kinds.items():
                interval = fisher_z_interval(pair[place], test.n, kind=statistic)
                row[f"{statistic}_{kind}"] = pair[place]
                row[f"{statistic}_{kind}_hw"] = (interval.high - interval.low) / 2
        if verdict is not None:
            row |= {"cross_fitted": verdict.r, "p_value": verdict.p_value, "status": verdict.status}
        rows.append(row)
    return pd.DataFrame(rows)


def path_of(problem: Problem, subsets: tuple[Subset, ...]) -> SelectionPath:
    """Subsets of a problem with their baselines."""
    others = baselines(problem, [each.size for each in subsets])
    return SelectionPath(subsets=subsets, problem=problem, baselines=others)


def selection_path(
    correct: Correct | Problem,
    id_accuracy: PerModel | None = None,
    sizes: Sequence[int] | np.ndarray | None = None,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> SelectionPath:
    """Select subsets of several sizes, each by itself, and evaluate random, hardest and other ones beside.

    Args:
        correct: X, models by examples: 1 where a model is right; a frame, which `from_frame` reads; or data.
        id_accuracy: y: in-distribution accuracy of each model, a share; None with data.
        sizes: Subset sizes. Default: 10, 20, 50, 100, 250, ... and all.
        progress: Called with the stage, the sizes done and all sizes.
        settings: As of `oodselect`.

    Raises:
        InputError: As `oodselect`, and for a size given twice.
    """
    problem = correct if isinstance(correct, Problem) else make_problem(correct, id_accuracy, **settings)
    ascending = default_sizes(problem) if sizes is None else checked_sizes(sizes, problem)
    return path_of(problem, subsets_of(problem, ascending, progress))

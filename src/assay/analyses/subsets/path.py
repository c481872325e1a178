"""Subsets of several sizes: which to show first, how they overlap, other subsets, and what a page shows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from assay.analyses.subsets import coherence
from assay.analyses.subsets.baselines import baselines
from assay.analyses.subsets.data import PerModel
from assay.analyses.subsets.line import AOTIL, LEVEL, Places, Progress, fit_line
from assay.analyses.subsets.overlap import selection_consistency
from assay.analyses.subsets.problem import Correct, Problem, checked_sizes, default_sizes, make_problem
from assay.analyses.subsets.selection import Subset, subsets_of
from assay.analyses.subsets.splits import PARTS
from assay.analyses.subsets.verdict import SubsetVerdict
from assay.core.errors import InputError, check_name
from assay.core.random import stream
from assay.core.record import Plotted, Record, record_id
from assay.page.draw import thumbnail
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
        judged = [each for each in self if each.known_verdict and not math.isnan(each.verdict.r)]
        if judged:
            supported = [each for each in judged if each.verdict.supported]
            return min(supported or judged, key=lambda each: each.verdict.r)
        lowest = min(self, key=lambda each: np.nan_to_num(each.correlation["validation"].r, nan=2))
        return self.largest_aotil() or lowest

    @property
    def largest_supported(self) -> Subset | None:
        """The largest subset whose verdict is known to be supported; None where there is none."""
        supported = [each for each in self if each.known_verdict and each.verdict.supported]
        return supported[-1] if supported else None

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

    @property
    def consistency(self) -> pd.DataFrame:
        """Overlap of the subsets over sizes, between random (0) and nested (1); no sign that one is real."""
        pool = self.problem.pool
        return selection_consistency([np.searchsorted(pool, each.indices) for each in self], len(pool))

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

    @property
    def provenance(self) -> dict[str, Any]:
        """How it came to be."""
        return {name: each for name, each in self.subsets[0].provenance.items() if name != "size"}

    @property
    def id(self) -> str:
        """Hash of the provenance."""
        return record_id(self.record_kind, self.provenance)

    def _largest(self) -> dict[str, int | None]:
        largest = {rule: self.largest_aotil(rule) for rule in RULES}
        return {rule: None if each is None else each.size for rule, each in largest.items()}

    def _baseline_rows(self) -> list[dict[Any, Any]]:
        return self.baselines.to_dict("records")

    def _contents(self) -> dict[str, Any]:
        """What the page shows of the headline beyond its record; what the data do not tell is empty."""
        subset = self.headline
        data, split, seed = subset.require_data("a page"), subset.split, subset.settings.seed
        kind = "group" if data.groups is not None else data.unit_kind  # as the verdict counts them
        units, runs = data.units(kind), data.units("model" if data.groups is None else "group")
        parts = {name: split.part(name) for name in PARTS}
        part_of = np.full(data.n_models, "unused", dtype=object)
        for name, places in parts.items():
            part_of[places] = name
        y, right = data.id_accuracy, {"all": data.accuracy(), "chosen": data.accuracy(subset.indices)}
        outside, rng = np.setdiff1d(self.problem.pool, subset.indices), stream(seed, "examples of a report")
        others = np.sort(rng.choice(outside, min(SHOWN, len(outside)), replace=False)).astype(np.int64)
        single = coherence.replicate_examples(subset)
        sides = {"chosen": single[single["chosen"]], "others": single[~single["chosen"]]}
        return {
            "data": {name: getattr(data, name) for name in ("n_models", "n_examples", "unit_kind")},
            "description": {name: each for name, each in data.describe().dropna().items() if each != ""},
            "split": {
                "unit_kind": kind,
                "n_models": {name: len(places) for name, places in parts.items()},
                "n_units": {name: len(np.unique(units[places])) for name, places in parts.items()},
            },
            "consistency": self.consistency.to_numpy() if len(self.subsets) > 1 else None,
            "prevalence": []
            if coherence.facts_of(subset).empty
            else coherence.prevalence_shift(subset).to_dict("records"),
            "replication": {name: _replication(rows) for name, rows in sides.items()},
            "models_needed": coherence.models_needed(y, right["all"], groups=runs, seed=seed),
            "models": {"model": data.model_ids, "part": part_of, "id_accuracy": y} | right,
            "lines": {name: fit_line(y[split.test], each[split.test]) for name, each in right.items()},
            "examples": {
                "chosen": _described(subset, subset.indices[:SHOWN]),
                "others": _described(subset, others),
            },
        }


def _replication(rows: pd.DataFrame) -> dict[str, float]:
    """Shares of single examples that go against better models, and that do so significantly."""
    r, tested = rows["r"].dropna(), rows["q_value"].notna().any()
    return {
        "negative": float((r < 0).mean()) if len(r) else math.nan,
        "discovered": float((rows["q_value"] <= LEVEL).mean()) if tested else math.nan,
    }


def _described(subset: Subset, places: Places) -> list[dict[Any, Any]]:
    """Single examples with what is known of them, and a picture where there is one."""
    data, test = subset.require_data("a page"), subset.split.test
    answers, meta = data.correct[test][:, places], data.meta.iloc[places, :FACTS]
    table = pd.DataFrame({"id": data.example_ids[places]})
    table["label"] = None if data.classes is None else data.classes[places].astype(str)
    table["facts"] = [
        ", ".join(
            f"{name} {f'{each:.4g}' if isinstance(each, float) else each}" for name, each in row.items()
        )
        for row in meta.to_dict("records")
    ]
    table["right"] = answers.mean(axis=0, dtype=np.float64)
    table["r"] = coherence.example_correlations(answers, data.id_accuracy[test])
    table["image"] = None if data.images is None else [*map(thumbnail, data.images[places])]
    return table.to_dict("records")


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
        kinds = {"ours": {"r": test.r, "spearman": test.spearman}}
        kinds |= {row["kind"]: row for row in others.to_dict("records")}
        row: dict[str, Any] = {"n": subset.size, "n_models": test.n}
        for statistic, key in (("pearson", "r"), ("spearman", "spearman")):
            for kind, each in kinds.items():
                interval = fisher_z_interval(each[key], test.n, kind=statistic)
                row[f"{statistic}_{kind}"] = each[key]
                row[f"{statistic}_{kind}_hw"] = (interval.high - interval.low) / 2
        if verdict is not None:
            row |= {"cross_fitted": verdict.r, "p_value": verdict.p_value, "status": verdict.status}
        rows.append(row)
    return pd.DataFrame(rows)


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
    subsets = subsets_of(problem, ascending, progress)
    return SelectionPath(subsets=subsets, problem=problem, baselines=baselines(problem, ascending))

"""Subsets of many sizes, and the largest on which accuracy is on the inverse line."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import AOTIL, Correlation
from assay.analyses.subsets.selection import (
    PATHS,
    Problem,
    Progress,
    Settings,
    Subset,
    check_size,
    make_problem,
    make_selection,
)
from assay.analyses.subsets.splits import ModelSplit
from assay.core.errors import InputError, unknown_name
from assay.core.record import library_version, plain, record_id


if TYPE_CHECKING:
    from assay.analyses.subsets.baselines import BaselineRow
    from assay.analyses.subsets.consistency import SelectionConsistency
    from assay.analyses.subsets.verdict import SubsetVerdict

RULES = ("val", "ci", "paper")
KIND, SCHEMA = "subset-path", "assay-selection-path/1"
_REFINED = 0.05  # relative width at which the search for the largest subset stops
_FIRST_SIZES = (10, 20, 50, 100, 250, 500, 750, 1000, 2500, 5000, 7500)


def default_sizes(n_examples: int) -> tuple[int, ...]:
    """The usual grid: 10 to 7500, then every 5000 to 50,000, then every 10,000, cut at N, and N itself."""
    grid = [*_FIRST_SIZES, *range(10_000, 50_000, 5000), *range(50_000, n_examples, 10_000)]
    return tuple(sorted({size for size in grid if size < n_examples} | {n_examples}))


def possible_sizes(settings: Settings, n_examples: int) -> tuple[int, ...]:
    """The usual grid among the examples that may be selected, from as many as must be."""
    n_allowed = n_examples if settings.allowed is None else int(settings.allowed.sum())
    least = 1 if settings.must_include is None else len(settings.must_include)
    return tuple(size for size in default_sizes(n_allowed) if size >= least)


@dataclass(frozen=True, kw_only=True)
class LargestSubset:
    """The largest subset on the inverse line, by a rule.

    Attributes:
        rule: `val`: validation R at most -0.3; `ci`: also the upper end of the test interval; `paper`: test
            R, which looks at the test models to choose.
        size: Its size; None where no size qualifies.
        selection: The subset; None where there is none.
        sizes: Every size looked at, refined ones included.
    """

    rule: str
    size: int | None
    selection: Subset | None
    sizes: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Finite JSON; the correlations are those of the chosen subset."""
        chosen = self.selection
        correlation = (
            None if chosen is None else {name: each.to_dict() for name, each in chosen.correlation.items()}
        )
        record: dict[str, Any] = plain(
            {"rule": self.rule, "size": self.size, "sizes": list(self.sizes), "correlation": correlation}
        )
        return record


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionPath:
    """Subsets of several sizes of the same data, with the same split.

    Attributes:
        sizes: Ascending.
        selections: One per size.
        path: `independent`, `warm` or `nested`.
        problem: Data, split, settings and matrices behind them.
        baselines: By kind (`random`, `hard`, `marginal`, `distance`), one row per size, on the test models.
    """

    sizes: tuple[int, ...]
    selections: tuple[Subset, ...]
    path: str
    problem: Problem
    baselines: Mapping[str, "tuple[BaselineRow, ...]"]
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, size: int) -> Subset:
        if size not in self.sizes:
            raise InputError(f"size {size} is not on the path; it holds {', '.join(map(str, self.sizes))}")
        return self.selections[self.sizes.index(size)]

    def __iter__(self) -> Any:
        return iter(self.selections)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def data(self) -> CorrectnessData:
        """Where the subsets were selected."""
        return self.problem.data

    @property
    def split(self) -> ModelSplit:
        """The parts of the models."""
        return self.problem.split

    @property
    def full(self) -> Mapping[str, Correlation]:
        """The correlation on all examples, for each part of the models."""
        return self.selections[0].full

    # ----------------------------------------------------------------------------------------- verdict

    def judge(
        self,
        *,
        n_permutations: int = 99,
        folds: int = 5,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> "tuple[SubsetVerdict, ...]":
        """A verdict per size, corrected for having looked at all of them; see `judge_sizes`.

        Args:
            n_permutations: Permutations of the accuracies, each followed by a whole sweep.
            folds: Of the cross-fit.
            workers: Threads. Default: one per CPU. The result does not depend on it.
            progress: Called with the stage, the runs done and all runs.
        """
        from assay.analyses.subsets.verdict import judge_sizes

        found = judge_sizes(
            self.data,
            self.selections,
            path=self.path,
            n_permutations=n_permutations,
            folds=folds,
            workers=workers,
            progress=progress,
        )
        self.keep_verdicts(found)
        return found

    def keep_verdicts(self, verdicts: "Sequence[SubsetVerdict]") -> None:
        """Take verdicts reached elsewhere, one per size."""
        for selection, verdict in zip(self.selections, verdicts, strict=True):
            selection.keep_verdict(verdict)
        self._kept["verdicts"] = tuple(verdicts)

    @property
    def verdicts(self) -> "tuple[SubsetVerdict, ...]":
        """One per size, computed when first asked for, with the defaults of `judge`."""
        return self._kept["verdicts"] if "verdicts" in self._kept else self.judge()

    @property
    def judged(self) -> bool:
        """Whether the verdicts are known already."""
        return "verdicts" in self._kept

    # --------------------------------------------------------------------------------------- questions

    @functools.cached_property
    def consistency(self) -> "SelectionConsistency":
        """Overlap of the subsets over sizes, between random (0) and nested (1); no sign that one is real."""
        from assay.analyses.subsets.consistency import consistency_within

        return consistency_within([each.indices for each in self.selections], self.headline.pool)

    def largest_aotil(self, rule: str = "val", *, refine: bool = True) -> LargestSubset:
        """The largest subset on which accuracy is on the inverse line, R <= -0.3.

        Args:
            rule: `val` chooses by the validation models; `ci` also wants the whole default interval of the
                test correlation at or below -0.3; `paper` chooses by the test correlation itself.
            refine: Bisect between the largest qualifying size and the next of the grid, to 5 %. A refined
                subset is selected by itself, whatever the path, and its verdict is corrected for all sizes
                tried.

        References:
            Salaudeen et al. (2025), arXiv:2510.24884, Table 1.
        """
        if rule not in RULES:
            raise unknown_name("rule for the largest subset", rule, RULES)
        good = [place for place, each in enumerate(self.selections) if _qualifies(each, rule)]
        if not good:
            return LargestSubset(rule=rule, size=None, selection=None, sizes=self.sizes)
        place = good[-1]
        best, seen = self.selections[place], list(self.sizes)
        low, high = self.sizes[place], self.sizes[min(place + 1, len(self.sizes) - 1)]
        while refine and high - low > max(1.0, _REFINED * low):
            middle = (low + high) // 2
            seen = sorted({*seen, middle})
            found = make_selection(self.problem, self.problem.solve(middle), sweep=seen)
            if _qualifies(found, rule):
                low, best = middle, found
            else:
                high = middle
        return LargestSubset(rule=rule, size=best.size, selection=best, sizes=tuple(seen))

    @functools.cached_property
    def headline(self) -> Subset:
        """The subset to show first: the largest of the grid with validation R <= -0.3, else the lowest.

        The test models have no part in the choice.
        """
        chosen = self.largest_aotil("val", refine=False).selection
        if chosen is not None:
            return chosen
        found = [each.correlation["validation"].r for each in self.selections]
        if all(map(math.isnan, found)):
            return self.selections[0]
        return self.selections[int(np.nanargmin(found))]

    # -------------------------------------------------------------------------------------------- files

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be."""
        return {
            "library": library_version(),
            "data": dict(self.selections[0].facts),
            "split": self.split.to_dict(),
            "sizes": list(self.sizes),
            "path": self.path,
            "settings": self.problem.settings.record(),
        }

    @property
    def id(self) -> str:
        """Hash of the provenance."""
        return record_id(KIND, self.provenance)

    def to_dict(self) -> dict[str, Any]:
        """Finite JSON with everything but the data; verdicts where they are known."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "id": self.id,
            "path": self.path,
            "sizes": list(self.sizes),
            "selections": [each.to_dict() for each in self.selections],
            "baselines": {kind: [row.to_dict() for row in rows] for kind, rows in self.baselines.items()},
            "provenance": self.provenance,
        }

    @property
    def document(self) -> Mapping[str, Any]:
        """Everything a report shows, the verdicts included; see `assay.save_report`."""
        from assay.analyses.subsets.document import path_document

        return path_document(self)


def _qualifies(selection: Subset, rule: str) -> bool:
    test, validation = selection.correlation["test"], selection.correlation["validation"]
    if rule == "paper":
        return test.r <= AOTIL
    return validation.r <= AOTIL and (rule == "val" or test.high <= AOTIL)


def selection_path(
    correct: "np.ndarray | PackedMatrix | CorrectnessData",
    id_accuracy: Sequence[float] | np.ndarray | None = None,
    sizes: Sequence[int] | np.ndarray | None = None,
    *,
    path: str = "independent",
    baselines: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> SelectionPath:
    """Select subsets of several sizes.

    Args:
        correct: X, models by examples: 1 where a model is right; or `CorrectnessData`.
        id_accuracy: y: in-distribution accuracy of each model, a share; None with data.
        sizes: Subset sizes. Default: `default_sizes` of the examples.
        path: `independent`: each size by itself; `warm`: also started from the previous set extended by the
            best gradients, the better by validation kept; `nested`: members of the previous set stay.
        baselines: Whether random, hardest, marginal and (with embeddings) most distant examples are evaluated
            beside.
        progress: Called with the stage, the sizes done and all sizes.
        options: All others of `oodselect`.

    Raises:
        InputError: As `oodselect`, and for a size given twice.
    """
    if path not in PATHS:
        raise unknown_name("kind of path", path, PATHS)
    problem = make_problem(correct, id_accuracy, **options)
    if path != "independent" and problem.settings.solver != "swap":
        raise InputError(
            f"path={path!r} starts a size from the one before, which solver "
            f"{problem.settings.solver!r} cannot; use solver='swap' or path='independent'"
        )
    n_examples = problem.data.n_examples
    asked = possible_sizes(problem.settings, n_examples) if sizes is None else sizes
    wanted = [check_size(size, n_examples) for size in asked]
    if not wanted:
        raise InputError("sizes is empty; give at least one subset size")
    if len(set(wanted)) < len(wanted):
        raise InputError(f"sizes names {max(wanted, key=wanted.count)} more than once")
    wanted.sort()
    found = problem.solve_path(wanted, path=path, progress=progress)
    selections = tuple(make_selection(problem, each, sweep=wanted, path=path) for each in found)
    rows: Mapping[str, tuple[BaselineRow, ...]] = {}
    if baselines:
        from assay.analyses.subsets.baselines import baseline_rows

        rows = baseline_rows(problem, wanted)
    return SelectionPath(
        sizes=tuple(wanted), selections=selections, path=path, problem=problem, baselines=rows
    )

"""Subsets of many sizes, and the largest on which accuracy is on the inverse line."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from assay.analyses.subsets.baselines import BaselineRow, baseline_rows
from assay.analyses.subsets.consistency import SelectionConsistency, consistency_within
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.document import subset_document
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import AOTIL, Correlation
from assay.analyses.subsets.objective import Found
from assay.analyses.subsets.problem import (
    PATHS,
    Problem,
    Progress,
    Shelf,
    check_sizes,
    computed,
    make_problem,
    possible_sizes,
)
from assay.analyses.subsets.selection import Subset, make_selection, make_sweep
from assay.analyses.subsets.settings import SelectionOptions
from assay.analyses.subsets.splits import ModelSplit
from assay.analyses.subsets.verdict import JudgeOptions, SubsetVerdict
from assay.core import display
from assay.core.errors import InputError, check_name
from assay.core.record import HIDDEN, Record, record_id, same


if TYPE_CHECKING:
    import pandas as pd

RULES = ("val", "ci", "paper")
KIND, SCHEMA = "subset-path", "assay-selection-path/1"
DOCUMENT_SCHEMA = "assay-subset-path/1"
_REFINED = 0.05  # relative width at which the search for the largest subset stops


@dataclass(frozen=True, kw_only=True)
class LargestSubset(Record):
    """The largest subset on the inverse line, by a rule.

    Attributes:
        rule: `val`: validation R at most -0.3; `ci`: also the upper end of the test interval; `paper`: test
            R, which looks at the test models to choose.
        size: Its size; None where no size qualifies.
        selection: The subset; None where there is none.
        sizes: Every size looked at, refined ones included.
    """

    derived = ("correlation",)

    rule: str
    size: int | None
    sizes: tuple[int, ...]
    selection: Subset | None = field(default=None, metadata=HIDDEN)

    @property
    def correlation(self) -> Mapping[str, Correlation] | None:
        """The correlations of the subset; None where there is none."""
        return None if self.selection is None else self.selection.correlation


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionPath(display.Shown, Record):
    """Subsets of several sizes of the same data, with the same split.

    Attributes:
        sizes: Ascending.
        selections: One per size.
        path: `independent`, `warm` or `nested`.
        problem: Data, split, settings and matrices behind them.
        baselines: By kind (`random`, `hard`, `marginal`, `distance`), one row per size, on the test models.
    """

    drawn_by = "assay.analyses.subsets.plots:plot_path"
    record_kind = KIND
    record_schema = SCHEMA
    record_layout = same("id", "path", "sizes", "selections", "baselines", "provenance")

    sizes: tuple[int, ...]
    selections: tuple[Subset, ...]
    path: str
    problem: Problem
    baselines: Mapping[str, tuple[BaselineRow, ...]]

    def __getitem__(self, size: int) -> Subset:
        if size not in self.sizes:
            raise InputError(
                f"size {size} is not on the path; choose one of {', '.join(map(str, self.sizes))}"
            )
        return self.selections[self.sizes.index(size)]

    def __iter__(self) -> Iterator[Subset]:
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

    def __repr__(self) -> str:
        found = ", ".join(f"{each.size}: {each.correlation['test'].r:.2f}" for each in self.selections)
        return f"SelectionPath(R over test models by size {found})"

    def _summary(self) -> str:
        rows = [
            (each.size, display.number(test.r), display.ends(test.low, test.high, test.level))
            for each in self.selections
            for test in (each.correlation["test"],)
        ]
        return display.table("subsets by size", ("size", "R over test models", "interval"), rows, id=self.id)

    def to_frame(self) -> "pd.DataFrame":
        """One row per size and set of examples: size, examples (`selection` or a baseline), r, low, high.

        R is over the test models.
        """
        import pandas as pd

        rows: list[tuple[int, str, Correlation | BaselineRow]] = [
            (each.size, "selection", each.correlation["test"]) for each in self.selections
        ]
        rows += [(row.size, kind, row) for kind, baseline in self.baselines.items() for row in baseline]
        table = [(size, name, each.r, each.low, each.high) for size, name, each in rows]
        return pd.DataFrame(table, columns=["size", "examples", "r", "low", "high"])

    # ----------------------------------------------------------------------------------------- verdict

    def judge(self, **options: Unpack[JudgeOptions]) -> tuple[SubsetVerdict, ...]:
        """A verdict per size, corrected for having looked at all of them; see `Subset.judge`.

        Args:
            options: As of `Subset.judge`; each permutation is followed by a whole sweep.
        """
        self.selections[0].judge(**options)
        return self.verdicts

    @property
    def verdicts(self) -> tuple[SubsetVerdict, ...]:
        """One per size, computed when first asked for, with the defaults of `judge`."""
        return tuple(each.verdict for each in self.selections)

    @property
    def judged(self) -> bool:
        """Whether the verdicts are known already."""
        return all(each.judged for each in self.selections)

    # --------------------------------------------------------------------------------------- questions

    @functools.cached_property
    def consistency(self) -> SelectionConsistency:
        """Overlap of the subsets over sizes, between random (0) and nested (1); no sign that one is real."""
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
        check_name("rule for the largest subset", rule, RULES)
        best, seen = self._largest(rule), self.sizes
        if best is None:
            return LargestSubset(rule=rule, size=None, sizes=seen)
        low, high = best.size, min((size for size in seen if size > best.size), default=best.size)
        while refine and high - low > max(1.0, _REFINED * low):
            middle = (low + high) // 2
            seen = tuple(sorted({*seen, middle}))
            subset = make_selection(self.problem, self.problem.solve(middle), sweep=seen)
            if _qualifies(subset, rule):
                low, best = middle, subset
            else:
                high = middle
        return LargestSubset(rule=rule, size=best.size, selection=best, sizes=seen)

    @functools.cached_property
    def headline(self) -> Subset:
        """The subset to show first: the largest of the grid with validation R <= -0.3, else the lowest.

        The test models have no part in the choice.
        """
        largest = self._largest("val")
        if largest is not None:
            return largest
        r = [each.correlation["validation"].r for each in self.selections]
        return self.selections[0 if all(map(math.isnan, r)) else int(np.nanargmin(r))]

    def _largest(self, rule: str) -> Subset | None:
        """The largest of the grid that qualifies."""
        return next((each for each in reversed(self.selections) if _qualifies(each, rule)), None)

    # -------------------------------------------------------------------------------------------- files

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be."""
        provenance = self.selections[0].provenance
        shared = {name: provenance[name] for name in ("library", "data", "split", "settings")}
        return shared | {"sizes": list(self.sizes), "path": self.path}

    @property
    def id(self) -> str:
        """Hash of the provenance."""
        return record_id(KIND, self.provenance)

    @property
    def document(self) -> Mapping[str, Any]:
        """Everything a report shows, the verdicts included; see `assay.save_report`."""
        return self.to_document()

    def to_document(
        self, *, n_halves: int | None = None, workers: int | None = None, shelf: Shelf = computed
    ) -> dict[str, Any]:
        """Everything a report shows of subsets of many sizes; details are those of the headline size.

        Args:
            n_halves: As in `Subset.to_document`.
            workers: Threads. Default: one per core. The result does not depend on it.
            shelf: Of an interrupted run: the selections on halves of the models.
        """
        header = {"kind": KIND, "schema": DOCUMENT_SCHEMA, "id": self.id, "path": self.path}
        return subset_document(
            header
            | {
                "largest": [self._largest_of_grid(rule) for rule in RULES],
                "consistency": self.consistency,
                "provenance": self.provenance,
            },
            self.headline,
            dict(zip(self.selections, self.verdicts, strict=True)),
            self.baselines,
            n_halves=n_halves,
            workers=workers,
            shelf=shelf,
        )

    def _largest_of_grid(self, rule: str) -> dict[str, Any]:
        """The largest size of the grid on the inverse line, with the verdict at that size."""
        largest = self._largest(rule)
        if largest is None:
            return {"rule": rule, "size": None}
        test = largest.correlation["test"]
        ends = {name: getattr(test, name) for name in ("r", "low", "high")}
        return {"rule": rule, "size": largest.size, **ends, "status": largest.verdict.status}


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
    shelf: Shelf = computed,
    **options: Unpack[SelectionOptions],
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
        shelf: Of an interrupted run: the selections.
        options: All others of `oodselect`.

    Raises:
        InputError: As `oodselect`, and for a size given twice.
    """
    check_name("kind of path", path, PATHS)
    problem = make_problem(correct, id_accuracy, **options)
    if path != "independent" and problem.settings.solver != "swap":
        raise InputError(
            f"path={path!r} starts each size from the previous one, which solver "
            f"{problem.settings.solver!r} cannot do; use solver='swap' or path='independent'"
        )
    n_examples = problem.data.n_examples
    grid = possible_sizes(problem.settings, n_examples) if sizes is None else sizes
    ascending = tuple(sorted(check_sizes(grid, n_examples)))
    swept = shelf(
        "selections",
        lambda: [each.to_dict() for each in problem.solve_path(ascending, path=path, progress=progress)],
    )
    solved = [Found.from_dict(each) for each in swept]
    return SelectionPath(
        sizes=ascending,
        selections=make_sweep(problem, solved, path=path),
        path=path,
        problem=problem,
        baselines=baseline_rows(problem, ascending) if baselines else {},
    )

"""Subsets of many sizes, and the largest on which accuracy is on the inverse line."""

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from assay.analyses.subsets.baselines import BaselineRow, baseline_rows
from assay.analyses.subsets.consistency import SelectionConsistency, consistency_within
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.document import subset_document
from assay.analyses.subsets.header import PerModel
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import AOTIL, Correlation
from assay.analyses.subsets.objective import Found, check_inverse
from assay.analyses.subsets.problem import Problem, Progress, Shelf, computed, make_problem
from assay.analyses.subsets.selection import Subset, make_selection, swept
from assay.analyses.subsets.settings import SelectionOptions
from assay.analyses.subsets.splits import ModelSplit
from assay.analyses.subsets.verdict import JudgeOptions, SubsetVerdict
from assay.core.errors import InputError, check_least, check_name
from assay.core.plotted import Plotted
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
class SelectionPath(Plotted, Record):
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
        correlations = ", ".join(f"{each.size}: {each.correlation['test'].r:.2f}" for each in self.selections)
        return f"SelectionPath(R over test models by size {correlations})"

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

        Raises:
            InputError: As `Subset.judge`.
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

    def largest_aotil(self, rule: str = "val", *, refine: bool | int | None = None) -> LargestSubset:
        """The largest subset on which accuracy is on the inverse line, R <= -0.3.

        Args:
            rule: `val` chooses by the validation models; `ci` also wants the whole default interval of the
                test correlation at or below -0.3; `paper` chooses by the test correlation itself.
            refine: As of `refined`; False looks at the sizes of the path alone. Default: True for a path of
                several independent sizes, else False.

        Raises:
            InputError: For an unknown rule, for subsets selected with the objective `r2`, and as `refined`.

        References:
            Salaudeen et al. (2025), arXiv:2510.24884, Table 1.
        """
        check_name("rule for the largest subset", rule, RULES)
        check_inverse(self.problem.settings.objective, "a largest subset on the inverse line")
        if refine is None:
            refine = self.path == "independent" and len(self) > 1
        path = self.refined(refine, rule=rule) if refine else self
        best = path._largest(rule)
        return LargestSubset(
            rule=rule, size=None if best is None else best.size, sizes=path.sizes, selection=best
        )

    def refined(
        self,
        by: bool | int = True,
        *,
        rule: str = "val",
        progress: Progress | None = None,
        shelf: Shelf = computed,
    ) -> "SelectionPath":
        """This path with more sizes, between the largest on the inverse line and the next one.

        Verdicts of the new path are corrected for all sizes tried.

        Args:
            by: True: bisect until the two differ by 5 %; a number: try every so many examples.
            rule: As of `largest_aotil`.
            progress: Called with the stage, the sizes done and all sizes, if all are known.
            shelf: Of an interrupted run: the selections.

        Raises:
            InputError: For a path of one size or whose sizes are not independent, a step that is not a
                whole number of at least 1, or the objective `r2`.
        """
        by = check_refinement(by, self.path, self.sizes)
        check_inverse(self.problem.settings.objective, "the refinement of sizes")
        best = self._largest(rule)
        above = next((size for size in self.sizes if best is not None and size > best.size), None)
        if best is None or above is None:
            return self
        low, high = best.size, above
        records = shelf(
            "refined", lambda: [each.to_dict() for each in self._between(low, high, by, rule, progress)]
        )
        if not records:
            return self
        new = [make_selection(self.problem, Found.from_dict(each)) for each in records]
        subsets = sorted((*self.selections, *new), key=lambda each: each.size)
        rows = baseline_rows(
            self.problem,
            [each.size for each in new],
            kinds=[kind for kind in self.baselines if kind != "all"],
        )
        return replace(
            self,
            sizes=tuple(each.size for each in subsets),
            selections=swept(subsets),
            baselines={
                kind: tuple(sorted((*known, *rows.get(kind, ())), key=lambda row: row.size))
                for kind, known in self.baselines.items()
            },
        )

    def _between(
        self, low: int, high: int, by: bool | int, rule: str, progress: Progress | None
    ) -> list[Found]:
        """What the solver finds for the sizes that are tried between two of the path."""
        if by is not True:
            steps = range(low + by, high, by)
            return self.problem.solve_path(steps, progress=progress) if steps else []
        solutions = []
        while high - low > max(1.0, _REFINED * low):
            middle = (low + high) // 2
            solutions.append(self.problem.solve(middle))
            if _qualifies(make_selection(self.problem, solutions[-1]), rule):
                low = middle
            else:
                high = middle
        return solutions

    @functools.cached_property
    def headline(self) -> Subset:
        """The subset to show first: the largest of the grid with validation R <= -0.3, else the lowest.

        With the objective `r2` it is the one with the weakest validation R. The test models have no part in
        the choice.
        """
        largest = self._largest("val")
        if largest is not None:
            return largest
        r = np.array([each.correlation["validation"].r for each in self.selections])
        order = r**2 if self._weakest else r
        return self.selections[0 if np.isnan(r).all() else int(np.nanargmin(order))]

    @property
    def _weakest(self) -> bool:
        """Whether the weakest correlation was selected for, so that no size is to be on the inverse line."""
        return self.problem.settings.objective == "r2"

    def _largest(self, rule: str) -> Subset | None:
        """The largest of the grid that qualifies; none where the weakest correlation was selected for."""
        if self._weakest:
            return None
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
                "largest": None if self._weakest else [self._largest_of_grid(rule) for rule in RULES],
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


def check_refinement(by: bool | int, path: str, sizes: Sequence[int]) -> bool | int:
    """True or a step of at least 1; refuses sizes that depend on one another, and one size alone."""
    if path != "independent":
        raise InputError(
            f"refined sizes are selected by themselves, but path is {path!r}; use path='independent'"
        )
    if len(sizes) < 2:
        raise InputError(
            f"refined sizes lie between two sizes, but {sizes[0]} is the only one; give several, "
            "or do not refine"
        )
    if isinstance(by, bool | np.bool_):
        by = bool(by)
    else:
        try:
            by = operator.index(by)
        except TypeError:
            raise InputError(
                f"refine is {by!r}; expected True (bisection) or a whole number of examples"
            ) from None
    check_least(1, step=by)
    return by


def _qualifies(selection: Subset, rule: str) -> bool:
    test, validation = selection.correlation["test"], selection.correlation["validation"]
    if rule == "paper":
        return test.r <= AOTIL
    return validation.r <= AOTIL and (rule == "val" or test.high <= AOTIL)


def selection_path(
    correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
    id_accuracy: PerModel | None = None,
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
        correct: X, models by examples: 1 where a model is right; a frame, which `from_frame` reads; or data.
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
    problem = make_problem(correct, id_accuracy, **options)
    return path_of(problem, sizes, path=path, baselines=baselines, progress=progress, shelf=shelf)


def path_of(
    problem: Problem,
    sizes: Sequence[int] | np.ndarray | None = None,
    *,
    path: str = "independent",
    baselines: bool = True,
    progress: Progress | None = None,
    shelf: Shelf = computed,
) -> SelectionPath:
    """`selection_path` of a problem that is there, so that its split is not made, and warned of, twice."""
    ascending = problem.grid(sizes, path=path)
    records = shelf(
        "selections",
        lambda: [each.to_dict() for each in problem.solve_path(ascending, path=path, progress=progress)],
    )
    return SelectionPath(
        sizes=ascending,
        selections=swept([make_selection(problem, Found.from_dict(each), path=path) for each in records]),
        path=path,
        problem=problem,
        baselines=baseline_rows(problem, ascending) if baselines else {},
    )

"""A selection problem: data, a split of the models and settings, solved for one size or for several."""

import math
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from jaxtyping import Float64

from assay.analyses.subsets._arrays import Accuracies, Places
from assay.analyses.subsets._exchange import Pool
from assay.analyses.subsets.adam import adam
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.header import PerModel
from assay.analyses.subsets.layouts import AnswerTable, PackedMatrix
from assay.analyses.subsets.line import UNRATED, Correlation, clip_of, correlate, line_correlation, probit
from assay.analyses.subsets.objective import Found
from assay.analyses.subsets.placement import has_scores
from assay.analyses.subsets.settings import SelectionOptions, Settings, make_settings
from assay.analyses.subsets.splits import ModelSplit, split_models
from assay.analyses.subsets.swap import SwapTask, swap_together
from assay.core.errors import InputError, check_name


if TYPE_CHECKING:
    import pandas as pd

PATHS = ("independent", "warm", "nested")
_MAKING = threading.Lock()  # threads share matrices; each is made once
_FIRST_SIZES = (10, 20, 50, 100, 250, 500, 750, 1000, 2500, 5000, 7500)

Progress = Callable[[str, int, int], None]
# Gives the JSON value of a named part of a long job: computes it, or reads what an interrupted run left.
Shelf = Callable[[str, Callable[[], Any]], Any]


def computed(part: str, compute: Callable[[], Any]) -> Any:
    """Keeps nothing."""
    del part
    return compute()


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, a split and settings, with the matrices that the solver reads: made once, solved often.

    Attributes:
        data: Models by examples.
        split: Models to train, validate and report on.
        settings: The solver and its options.
    """

    data: CorrectnessData
    split: ModelSplit
    settings: Settings

    _rows: dict[str, AnswerTable] = field(default_factory=dict, repr=False)

    @property
    def train(self) -> AnswerTable:
        """Rows of the training models."""
        return self._part("train")

    @property
    def validation(self) -> AnswerTable:
        """Rows of the validation models."""
        return self._part("validation")

    @property
    def test(self) -> AnswerTable:
        """Rows of the test models, which no solver reads."""
        return self._part("test")

    def _part(self, part: str) -> AnswerTable:
        with _MAKING:
            if part not in self._rows:
                settings, layout = self.settings, self.settings.layout
                # Only counts are asked of models that no gradient is taken over: bits give them fastest.
                counted = part != "train" and layout == "auto" and not settings.on_accelerator
                self._rows[part] = self.data.matrix(
                    self.split.part(part),
                    layout="packed" if counted and not has_scores(self.data.correct) else layout,
                    device=settings.device,
                )
            return self._rows[part]

    @property
    def interval_units(self) -> str:
        """What the bootstrap draws: families after a split by family, else runs, where they are known."""
        return self.data.kind_of_units(by_family=self.split.kind == "family")

    def accuracy(self, examples: Places, part: str = "test") -> Float64[np.ndarray, " n"]:
        """Accuracy of the models of a part on examples."""
        matrix: AnswerTable = getattr(self, part)
        return np.asarray(matrix.count(examples), dtype=np.float64) / len(examples)

    def correlation(self, examples: Places, id_accuracy: Accuracies, part: str = "test") -> float:
        """R of a part on examples; NaN where it is undefined."""
        eps = self.settings.eps
        clip = clip_of(self.settings.clip, len(examples), eps)
        y = id_accuracy[self.split.part(part)]
        return line_correlation(y, self.accuracy(examples, part), eps=clip, id_eps=eps)

    def correlate(
        self,
        examples: Places | None = None,
        part: str = "test",
        *,
        unit_kind: str | None = None,
        **options: Any,
    ) -> Correlation:
        """The correlation of a part on examples (default: all) with its intervals.

        Args:
            examples: Places of examples.
            part: Models.
            unit_kind: What the bootstrap draws. Default: `interval_units`.
            options: Of `correlate`, instead of those of the settings.
        """
        models, settings = self.split.part(part), self.settings
        if examples is None:
            accuracy = self.data.accuracy(models)
        else:
            accuracy = self.data.accuracy_on(examples, models)
            options = {"size": len(examples), "clip": settings.clip} | options
        units = self.data.unit_codes(unit_kind or self.interval_units)[models]
        common: dict[str, Any] = {"units": units, "eps": settings.eps, "seed": settings.seed} | options
        return correlate(self.data.id_accuracy[models], accuracy, **common)

    def grid(
        self, sizes: Sequence[int] | np.ndarray | None = None, *, path: str = "independent"
    ) -> tuple[int, ...]:
        """Sizes in ascending order, none of which the settings rule out.

        Args:
            sizes: Default: those of the usual grid of what may be selected that the settings allow.
            path: How one size leads to the next.

        Raises:
            InputError: As `check_sizes`; for a size that allowed, compulsory or stratified examples make
                impossible; for a path that the solver cannot follow.
        """
        check_name("kind of path", path, PATHS)
        settings, n_examples = self.settings, self.data.n_examples
        if path != "independent" and settings.solver != "swap":
            raise InputError(
                f"path={path!r} starts each size from the previous one, which solver {settings.solver!r} "
                "cannot do; use solver='swap' or path='independent'"
            )
        if sizes is None:
            return self._possible(default_sizes(len(settings.pool(n_examples))))
        ascending = tuple(sorted(check_sizes(sizes, n_examples)))
        for size in ascending:
            self._check_pool(size)
        return ascending

    def _check_pool(self, size: int) -> None:
        """Refuse a size that allowed, compulsory or stratified examples make impossible."""
        settings = self.settings
        Pool(
            self.data.n_examples,
            size,
            strata=settings.strata,
            stratum_names=settings.stratum_names,
            allowed=settings.allowed,
            locked={"must_include": settings.must_include},
        )

    def _possible(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Those of some ascending sizes that the settings allow; where they allow none, the last refusal."""
        possible: list[int] = []
        for size in sizes:
            try:
                self._check_pool(size)
            except InputError:
                if size == sizes[-1] and not possible:
                    raise
            else:
                possible.append(size)
        return tuple(possible)

    def constant_part(self, id_accuracy: Accuracies) -> str | None:
        """The part, of those that a solver reads, whose models do not differ in in-distribution accuracy."""
        for part in ("train", "validation"):
            if np.ptp(probit(id_accuracy[self.split.part(part)], eps=self.settings.eps)) == 0:
                return part
        return None

    def solve(self, size: int, *, id_accuracy: Accuracies | None = None, **constraints: Any) -> Found:
        """Run the solver for one size.

        Args:
            size: Examples to select.
            id_accuracy: Of all models of the data, instead of the data's: a permutation of them.
            constraints: `strata`, `allowed` and `must_include` instead of those of the settings.
        """
        y = self.data.id_accuracy if id_accuracy is None else id_accuracy
        return self._solve_together([(size, y, {})], **constraints)[0]

    def _solve_together(
        self, tasks: Sequence[tuple[int, Accuracies, dict[str, Any]]], **constraints: Any
    ) -> list[Found]:
        """Run the solver for tasks of which none leads to another; `swap` takes them side by side.

        Args:
            tasks: Size, in-distribution accuracies of all models, and `start` or `fixed` of `swap`.
            constraints: As of `solve`.
        """
        settings, split = self.settings, self.split
        for _, y, _ in tasks:
            if part := self.constant_part(y):
                raise InputError(
                    f"id_accuracy is the same for all {len(split.part(part))} {part} models, but a "
                    "correlation needs models that differ; give other models, or another split"
                )
        own = {name: getattr(settings, name) for name in ("strata", "allowed", "must_include")}
        given: dict[str, Any] = {
            "validation": self.validation,
            "objective": settings.objective,
            "eps": settings.eps,
            **(own | constraints),
            **settings.options,
        }
        # One array for each accuracy: runs that share it share what follows from it.
        train = {id(y): y[split.train] for _, y, _ in tasks}
        if settings.solver == "swap":
            each = [
                SwapTask(size=size, id_train=train[id(y)], id_validation=y[split.validation], **members)
                for size, y, members in tasks
            ]
            return swap_together(self.train, each, **given)
        return [
            adam(
                self.train,
                train[id(y)],
                size,
                id_validation=y[split.validation],
                seed=settings.seed,
                **given,
            )
            for size, y, _ in tasks
        ]

    def solve_path(
        self, sizes: Sequence[int], *, path: str = "independent", progress: Progress | None = None
    ) -> list[Found]:
        """Run the solver for ascending sizes; see `solve_paths`."""
        return self.solve_paths(sizes, [self.data.id_accuracy], path=path, progress=progress)[0]

    def solve_paths(
        self,
        sizes: Sequence[int],
        accuracies: Sequence[Accuracies],
        *,
        path: str = "independent",
        progress: Progress | None = None,
    ) -> list[list[Found]]:
        """Run the solver for ascending sizes under each of several in-distribution accuracies, side by side.

        Args:
            sizes: Examples to select.
            accuracies: Of all models of the data: the data's, or permutations of them.
            path: `independent`: each size by itself; `warm`: also from the previous set, and the better of
                the two by validation kept; `nested`: the previous set stays.
            progress: Called with the stage, the sizes done and all sizes.

        Returns:
            Per accuracy, one set per size; the same as alone.
        """
        told = progress or (lambda stage, done, total: None)
        solved: list[list[Found]] = [[] for _ in accuracies]
        together = len(sizes) if path == "independent" and self.settings.solver == "swap" else 1
        for place in range(0, len(sizes), together):
            told("select", place, len(sizes))
            tasks: list[tuple[int, Accuracies, dict[str, Any]]] = []
            for y, before in zip(accuracies, solved, strict=True):
                kept = {"fixed": before[-1].indices} if before and path == "nested" else {}
                tasks += [(size, y, kept) for size in sizes[place : place + together]]
                if before and path == "warm":
                    tasks.append((sizes[place], y, {"start": before[-1].indices}))
            found, each = self._solve_together(tasks), len(tasks) // len(solved)
            for row, sets in enumerate(solved):
                new = found[row * each : (row + 1) * each]
                sets += [min(new, key=self._validated)] if sets and path == "warm" else new
        told("select", len(sizes), len(sizes))
        return solved

    def _validated(self, found: Found) -> float:
        """What is compared: lower is better, and an undefined correlation loses to any."""
        if math.isnan(found.r_validation):
            return math.inf
        return found.r_validation**2 if self.settings.objective == "r2" else found.r_validation


def make_problem(
    correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
    id_accuracy: PerModel | None = None,
    **options: Unpack[SelectionOptions],
) -> Problem:
    """Data, split and settings from the arguments of `oodselect`, all but the size."""
    own: dict[str, Any] = dict(options)
    units = {name: own.pop(name, None) for name in ("groups", "families")}
    data = CorrectnessData.of(correct, id_accuracy, **units)
    if data.unrated:
        raise InputError(f"{UNRATED}, which a selection needs; give id_accuracy")
    parts = split_models(
        data.n_models,
        split=own.pop("split", None),
        compat=own.pop("compat", False),
        seed=own.get("seed", 0),
        groups=data.groups,
        families=data.families,
        copies=data.copies,
    )
    return Problem(data, parts, make_settings(data, **own))


def check_size(size: Any, n_examples: int) -> int:
    """A size as an integer.

    Raises:
        InputError: If it is not a whole number between 1 and `n_examples`.
    """
    try:
        number = operator.index(size)
    except TypeError:
        raise InputError(f"size is {size!r}; expected a whole number of examples") from None
    if not 1 <= number <= n_examples:
        raise InputError(f"size is {number}; expected 1 to {n_examples}, the number of examples given")
    return number


def check_sizes(sizes: Sequence[int] | np.ndarray, n_examples: int) -> tuple[int, ...]:
    """Sizes as integers, in the order given.

    Raises:
        InputError: For no size, one given twice, or one that is not between 1 and `n_examples`.
    """
    checked = tuple(check_size(size, n_examples) for size in sizes)
    if not checked:
        raise InputError("sizes is empty; give at least one subset size")
    if len(set(checked)) < len(checked):
        raise InputError(f"size {max(checked, key=checked.count)} is given more than once")
    return checked


def default_sizes(n_examples: int) -> tuple[int, ...]:
    """The usual grid: 10 to 7500, then every 5000 to 50,000, then every 10,000, cut at N, and N itself."""
    grid = [*_FIRST_SIZES, *range(10_000, 50_000, 5000), *range(50_000, n_examples, 10_000)]
    return tuple(sorted({size for size in grid if size < n_examples} | {n_examples}))

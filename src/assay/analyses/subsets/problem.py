"""A selection problem: data, a split of the models and settings, solved for one size or for several."""

import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import Matrix, PackedMatrix
from assay.analyses.subsets.line import clip_of, line_correlation, probit
from assay.analyses.subsets.objective import Found
from assay.analyses.subsets.settings import SOLVERS, Settings, make_settings
from assay.analyses.subsets.splits import ModelSplit, split_models
from assay.core.errors import InputError


PATHS = ("independent", "warm", "nested")
_FIRST_SIZES = (10, 20, 50, 100, 250, 500, 750, 1000, 2500, 5000, 7500)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Data, a split and settings, with the matrices that the solver reads: made once, solved often.

    Attributes:
        data: Where the matrices come from.
        split: Models to train and validate on.
        settings: The solver and its options.
        train: Rows of the training models.
        validation: Rows of the validation models.
    """

    data: CorrectnessData
    split: ModelSplit
    settings: Settings
    train: Matrix
    validation: Matrix

    @classmethod
    def of(cls, data: CorrectnessData, split: ModelSplit, settings: Settings) -> "Problem":
        """Lay the matrices out as the settings ask."""
        layout: dict[str, Any] = {"layout": settings.layout, "device": settings.device}
        return cls(
            data=data,
            split=split,
            settings=settings,
            train=data.matrix(split.train, **layout),
            validation=data.matrix(split.validation, **layout),
        )

    @functools.cached_property
    def test(self) -> Matrix:
        """Rows of the test models, which no solver reads."""
        return self.data.matrix(self.split.test, layout=self.settings.layout, device=self.settings.device)

    def accuracy(self, examples: Int64[np.ndarray, " size"], part: str = "test") -> Float64[np.ndarray, " n"]:
        """Accuracy of the models of a part on examples."""
        matrix: Matrix = getattr(self, part)
        return np.asarray(matrix.count(examples), dtype=np.float64) / len(examples)

    def correlation(
        self,
        examples: Int64[np.ndarray, " size"],
        id_accuracy: Float64[np.ndarray, " m"],
        part: str = "test",
    ) -> float:
        """R of a part on examples; NaN where it is undefined."""
        eps = clip_of(self.settings.clip, len(examples), self.settings.eps)
        return line_correlation(
            id_accuracy[self.split.part(part)],
            self.accuracy(examples, part),
            eps=eps,
            id_eps=self.settings.eps,
        )

    def solve(
        self,
        size: int,
        *,
        id_accuracy: Float64[np.ndarray, " m"] | None = None,
        start: Int64[np.ndarray, " size"] | None = None,
        fixed: Int64[np.ndarray, " k"] | None = None,
        keep_path: bool = False,
    ) -> Found:
        """Run the solver.

        Args:
            size: Examples to select.
            id_accuracy: Of all models of the data, instead of the data's: a permutation of them.
            start: A first set to improve; a smaller one is extended first (`swap`).
            fixed: Members that may not leave (`swap`).
            keep_path: Whether `extras["path"]` gets every set passed (`swap`).
        """
        settings = self.settings
        y = self.data.id_accuracy if id_accuracy is None else id_accuracy
        for name in ("train", "validation"):
            side = probit(y[self.split.part(name)], eps=settings.eps)
            if np.ptp(side) == 0:
                raise InputError(
                    f"id_accuracy is the same for all {len(side)} {name} models; a correlation over models "
                    "needs models that differ: give others, or another split"
                )
        only_swap = {"start": start, "fixed": fixed, "keep_path": keep_path or None}
        given: dict[str, Any] = {name: value for name, value in only_swap.items() if value is not None}
        if given and settings.solver != "swap":
            raise InputError(
                f"solver {settings.solver!r} cannot take {', '.join(given)}; use solver='swap' for warm and "
                "nested paths"
            )
        for name in ("strata", "allowed", "must_include"):
            if getattr(settings, name) is not None:
                given[name] = getattr(settings, name)
        solver = SOLVERS[settings.solver]
        if "seed" in inspect.signature(solver).parameters:
            given["seed"] = settings.seed
        return solver(
            self.train,
            y[self.split.train],
            size,
            validation=self.validation,
            id_validation=y[self.split.validation],
            objective=settings.objective,
            eps=settings.eps,
            **given,
            **settings.options,
        )

    def solve_path(
        self,
        sizes: Sequence[int],
        *,
        path: str = "independent",
        id_accuracy: Float64[np.ndarray, " m"] | None = None,
        progress: Progress | None = None,
    ) -> list[Found]:
        """Run the solver for ascending sizes.

        Args:
            sizes: Examples to select.
            path: `independent`: each size by itself; `warm`: also from the previous set, and the better of
                the two by validation kept; `nested`: the previous set stays.
            id_accuracy: Of all models of the data, instead of the data's.
            progress: Called with the stage, the sizes done and all sizes.
        """
        found: list[Found] = []
        for place, size in enumerate(sizes):
            if progress is not None:
                progress("select", place, len(sizes))
            previous = found[-1].indices if found else None
            if previous is not None and path == "nested":
                best = self.solve(size, id_accuracy=id_accuracy, fixed=previous)
            else:
                best = self.solve(size, id_accuracy=id_accuracy)
            if previous is not None and path == "warm":
                warm = self.solve(size, id_accuracy=id_accuracy, start=previous)
                best = warm if self._validated(warm) < self._validated(best) else best
            found.append(best)
        if progress is not None:
            progress("select", len(sizes), len(sizes))
        return found

    def _validated(self, found: Found) -> float:
        """What is compared: lower is better, and an undefined correlation loses to any."""
        if math.isnan(found.r_validation):
            return math.inf
        return found.r_validation**2 if self.settings.objective == "r2" else found.r_validation


def make_problem(
    correct: "np.ndarray | PackedMatrix | CorrectnessData",
    id_accuracy: Sequence[float] | np.ndarray | None = None,
    *,
    split: str | ModelSplit | Mapping[str, Any] | Sequence[Any] | None = None,
    compat: bool = False,
    seed: int = 0,
    groups: Sequence[object] | np.ndarray | None = None,
    families: Sequence[object] | np.ndarray | None = None,
    **options: Any,
) -> Problem:
    """Data, split and settings from the arguments of `oodselect`, all but the size."""
    data = CorrectnessData.of(correct, id_accuracy, groups=groups, families=families)
    parts = split_models(
        data.n_models, split=split, seed=seed, compat=compat, groups=data.groups, families=data.families
    )
    return Problem.of(data, parts, make_settings(data, seed=seed, **options))


def check_size(size: Any, n_examples: int) -> int:
    """A size as an integer.

    Raises:
        InputError: If it is not a whole number between 1 and `n_examples`.
    """
    try:
        found = operator.index(size)
    except TypeError:
        raise InputError(f"size is {size!r}; a whole number of examples is needed") from None
    if not 1 <= found <= n_examples:
        raise InputError(f"size is {found}; between 1 and the {n_examples} examples given can be selected")
    return found


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


def possible_sizes(settings: Settings, n_examples: int) -> tuple[int, ...]:
    """The usual grid among the examples that may be selected, from as many as must be."""
    n_allowed = len(settings.pool(n_examples))
    least = 1 if settings.must_include is None else len(settings.must_include)
    return tuple(size for size in default_sizes(n_allowed) if size >= least)

"""A selection problem: data, a split of the models and settings, with the answers that a solver reads."""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64

from assay.analyses.subsets.adam import adam
from assay.analyses.subsets.data import CorrectnessData, PerModel
from assay.analyses.subsets.line import Accuracies, Correlation, Places, correlate, line_correlation
from assay.analyses.subsets.matrix import Answers
from assay.analyses.subsets.splits import PARTS, ModelSplit, interval_unit_kind, split_models
from assay.analyses.subsets.swap import Pool, Solution, swap
from assay.core.errors import InputError, ShapeError, check_least, check_name
from assay.core.record import Record


OPTIONS: Mapping[str, tuple[str, ...]] = {
    "swap": (),
    "adam": ("trials", "epochs", "patience", "penalty", "parameters"),
}
_FIRST_SIZES = (10, 20, 50, 100, 250, 500, 750, 1000, 2500, 5000, 7500)

Correct = np.ndarray | CorrectnessData | pd.DataFrame


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings(Record):
    """How subsets are selected, apart from data, size and split.

    Attributes:
        solver: `swap`, or `adam` (the paper's).
        seed: Root seed of all random draws.
        strata: Stratum of each example, codes from 0: each keeps its share; None for no quotas.
        strata_name: What the strata are: a column, or `given`.
        allowed: Examples that may be selected; None for all.
        options: Of the solver alone: `trials`, `epochs`, `patience`, `penalty`, `parameters` of `adam`.
    """

    solver: str = "swap"
    seed: int = 0
    strata: Int64[np.ndarray, " n"] | None = None
    strata_name: str | None = None
    allowed: Bool[np.ndarray, " n"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        data: CorrectnessData,
        *,
        strata: str | Sequence[object] | np.ndarray | None = None,
        allowed: Sequence[int] | np.ndarray | None = None,
        **settings: Any,
    ) -> "Settings":
        """Settings with their arrays resolved against the data.

        Args:
            data: What is selected from.
            strata: `label`, a column of the data's `meta`, or a stratum per example.
            allowed: A mask over the examples, or their places.
            settings: `solver` and `seed`, as the attributes; all others are options of the solver.

        Raises:
            InputError: For an unknown name, or strata that miss a value.
            ShapeError: For an array that does not fit the data.
        """
        solver, seed = settings.pop("solver", cls.solver), settings.pop("seed", cls.seed)
        check_name("solver", solver, OPTIONS)
        for option in settings:
            check_name(f"option of the solver {solver!r}", option, OPTIONS[solver])
        check_least(0, seed=seed)
        name, n, codes, mask = None, data.n_examples, None, None
        if strata is not None:
            name = strata if isinstance(strata, str) else "given"
            columns: dict[str, Any] = {str(each): data.meta[each] for each in data.meta}
            columns |= {} if data.labels is None else {"label": data.labels}
            if isinstance(strata, str):
                check_name("column to stratify by", strata, columns)
            column = columns[strata] if isinstance(strata, str) else strata
            codes = pd.factorize(pd.Series(np.asarray(column)), sort=True)[0].astype(np.int64)
            if len(codes) != n or codes.min() < 0:
                missing = int((codes < 0).sum())
                raise ShapeError(f"strata has {len(codes)} values, {missing} of them missing; expected {n}")
        if allowed is not None:
            mask = np.zeros(n, dtype=bool)
            mask[np.asarray(allowed)] = True
        return cls(solver=solver, seed=seed, strata=codes, strata_name=name, allowed=mask, options=settings)


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, a split of the models and settings, with the answers that the solver reads.

    Attributes:
        data: Models by examples.
        split: Models to train, validate and report on.
        settings: The solver and its options.
    """

    data: CorrectnessData
    split: ModelSplit
    settings: Settings = field(default_factory=Settings)

    @functools.cached_property
    def answers(self) -> dict[str, Answers]:
        """Answers of the models of each part; no solver reads those of `test`."""
        return {part: Answers.of(self.data.correct, self.split.part(part)) for part in PARTS}

    @property
    def pool(self) -> Places:
        """Examples that may be selected, ascending."""
        allowed = self.settings.allowed
        return np.arange(self.data.n_examples) if allowed is None else np.flatnonzero(allowed)

    def solve(self, sizes: Sequence[int], accuracies: Sequence[Accuracies]) -> list[list[Solution]]:
        """What the solver finds per in-distribution accuracies (of all models) and size."""
        settings, split = self.settings, self.split
        sides = [(y[split.train], y[split.validation]) for y in accuracies]
        common: dict[str, Any] = {"strata": settings.strata, "allowed": settings.allowed}
        common |= {"validation": self.answers["validation"], **settings.options}
        if settings.solver == "swap":
            found = swap(self.answers["train"], [(size, *side) for side in sides for size in sizes], **common)
        else:
            common |= {"seed": settings.seed}
            found = [adam(self.answers["train"], size, *side, **common) for side in sides for size in sizes]
        return [found[start : start + len(sizes)] for start in range(0, len(found), len(sizes))]

    def select_all(self, sizes: Sequence[int], accuracies: Sequence[Accuracies]) -> list[list[Places]]:
        """Per in-distribution accuracies the selection of each size."""
        return [[found.indices for found in row] for row in self.solve(sizes, accuracies)]

    def accuracy(self, examples: Places) -> Float64[np.ndarray, " n"]:
        """Accuracy of the test models on examples."""
        return np.asarray(self.answers["test"].count(examples), dtype=np.float64) / len(examples)

    def tested(self, sets: Sequence[Places], id_accuracy: Accuracies) -> list[float]:
        """R of the test models on each of some sets, under in-distribution accuracies of all models."""
        y = id_accuracy[self.split.test]
        return [line_correlation(y, self.accuracy(each)) for each in sets]

    def correlate(self, examples: Places | None = None, part: str = "test") -> Correlation:
        """The correlation of a part of the models on examples (default: all) with its intervals."""
        data, models = self.data, self.split.part(part)
        units = data.units(interval_unit_kind(data, self.split))[models]
        accuracy = data.accuracy(examples)[models]
        return correlate(data.id_accuracy[models], accuracy, units, seed=self.settings.seed)


def make_problem(
    correct: Correct,
    id_accuracy: PerModel | None = None,
    *,
    groups: PerModel | None = None,
    families: PerModel | None = None,
    split: str | ModelSplit | None = None,
    compat: bool = False,
    **settings: Any,
) -> Problem:
    """Data, split and settings from the arguments of `oodselect`, all but the size."""
    data = CorrectnessData.of(correct, id_accuracy, groups=groups, families=families)
    if data.unrated:
        raise InputError("a selection needs the accuracies of the models in distribution; give id_accuracy")
    chosen = Settings.of(data, **settings)
    return Problem(data, split_models(data, split, seed=chosen.seed, compat=compat), chosen)


def default_sizes(problem: Problem) -> tuple[int, ...]:
    """The usual grid of the examples that may be selected.

    10 to 7500, then every 5000 to 50,000, then every 10,000, and all; with strata none below their number.
    """
    n, strata = len(problem.pool), problem.settings.strata
    grid = {*_FIRST_SIZES, *range(10_000, 50_000, 5000), *range(50_000, n, 10_000), n}
    fewest = 1 if strata is None else len(np.unique(strata[problem.pool]))
    return tuple(sorted(size for size in grid if fewest <= size <= n))


def checked_sizes(sizes: Sequence[Any] | np.ndarray, problem: Problem) -> tuple[int, ...]:
    """Ascending sizes.

    Raises:
        InputError: For no size, one given twice, or one that is not a whole number that can be selected.
    """
    checked = tuple(sorted(map(operator.index, sizes)))
    if not checked or len(set(checked)) < len(checked):
        raise InputError(f"sizes are {list(checked)}; give at least one, each once")
    for size in checked:
        Pool(problem.data.n_examples, size, problem.settings.strata, problem.settings.allowed)
    return checked

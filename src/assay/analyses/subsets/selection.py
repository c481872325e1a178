"""Select the examples on which better in-distribution accuracy means worse accuracy, and what came of it."""

import functools
import hashlib
import inspect
import json
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.adam import adam
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import Matrix, PackedMatrix, check_device
from assay.analyses.subsets.line import EPS, Correlation, Line, clip_of, correlate, fit_line, probit
from assay.analyses.subsets.objective import OBJECTIVES, Found
from assay.analyses.subsets.splits import PARTS, ModelSplit, split_models
from assay.analyses.subsets.swap import swap
from assay.circuits import write_atomically
from assay.core import display
from assay.core.errors import FileFormatError, InputError, OutputError, ShapeError, unknown_name
from assay.core.record import library_version, plain, record_id
from assay.core.untrusted import MALFORMED, parse_json


if TYPE_CHECKING:
    import pandas as pd

    from assay.analyses.subsets.composition import ClassComposition
    from assay.analyses.subsets.verdict import SubsetVerdict

SOLVERS: Mapping[str, Callable[..., Found]] = {"swap": swap, "adam": adam}
REFERENCES = ("greedy", "exhaustive")  # solvers of the tests
PATHS = ("independent", "warm", "nested")
KIND, SCHEMA = "subset", "assay-selection/1"
_SET_HERE = frozenset(
    ("train", "id_train", "size", "validation", "id_validation", "start", "fixed", "keep_path")
)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """How subsets are selected, apart from data, size and split.

    Attributes:
        solver: `swap` or `adam`.
        objective: `r`: the most negative correlation; `r2`: the weakest.
        strata: Stratum of each example `[N]`: each keeps its share; None for no quotas.
        strata_name: What the strata are, for the record.
        allowed: Boolean `[N]`: examples that may be selected; None for all.
        must_include: Examples that are selected in any case.
        layout: Of the matrix: `auto`, `dense`, `packed` or `accelerator`.
        device: Of the accelerator.
        eps: Clip of accuracies.
        clip: Clip of reported subset accuracies: `eps`, or `half` an example.
        seed: Root seed.
        options: Of the solver alone.
    """

    solver: str = "swap"
    objective: str = "r"
    strata: Int64[np.ndarray, " n"] | None = None
    strata_name: str | None = None
    allowed: np.ndarray | None = None
    must_include: Int64[np.ndarray, " k"] | None = None
    layout: str = "auto"
    device: str | None = None
    eps: float | int = EPS
    clip: str = "eps"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def pool(self, n_examples: int) -> Int64[np.ndarray, " pool"]:
        """Examples that may be selected of `n_examples`, ascending."""
        return np.arange(n_examples) if self.allowed is None else np.flatnonzero(self.allowed)

    def record(self) -> dict[str, Any]:
        """JSON of what decides the selection, arrays as hashes; layout and device do not."""
        record: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("solver", "objective", "strata_name", "eps", "clip", "seed")
        }
        for name in ("strata", "allowed", "must_include"):
            given = getattr(self, name)
            record[name] = None if given is None else hashlib.sha256(given.tobytes()).hexdigest()[:16]
        found: dict[str, Any] = plain(record | {"options": dict(self.options)})
        return found

    def arrays(self) -> dict[str, list[int]]:
        """What `record` only has the hashes of: strata, and the places of allowed and included examples."""
        given = {
            "strata": self.strata,
            "allowed": None if self.allowed is None else np.flatnonzero(self.allowed),
            "must_include": self.must_include,
        }
        return {name: values.tolist() for name, values in given.items() if values is not None}


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


@dataclass(frozen=True, kw_only=True)
class Evaluation(Correlation):
    """Other models on a subset: the correlation over them, and how they do. The verdict is the subset's.

    Attributes:
        full: The same models on all examples of their matrix.
        line: Least squares through them in probit axes.
        accuracy: Of each model on the subset.
    """

    full: Correlation
    line: Line
    accuracy: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Subset:
    """A subset of the examples, with the correlation on each part of the models.

    Attributes:
        indices: Selected examples, most harmful first, `[size]`.
        scores: What they are ordered by, ascending: the derivative of the solver's objective by the weight of
            each; of `adam` minus its logits.
        example_ids: Their names.
        correlation: Of `train`, `validation` and `test` models on the subset. Only `test` is a result: the
            subset was optimised on `train` and stopped by `validation`.
        full: The same on all examples.
        split: The parts of the models.
        settings: How it was selected.
        trace: What the solver passed through.
        facts: Of the data: `hash`, `n_models`, `n_examples`, units.
        sweep: All sizes that were looked at together with this one; the verdict is corrected for them.
        path: How one size of the sweep led to the next.
        data: The data; None after loading without them.
    """

    indices: Int64[np.ndarray, " size"]
    scores: Float64[np.ndarray, " size"]
    example_ids: tuple[str, ...]
    correlation: Mapping[str, Correlation]
    full: Mapping[str, Correlation]
    split: ModelSplit
    settings: Settings
    trace: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    sweep: tuple[int, ...]
    path: str = "independent"
    data: CorrectnessData | None = None
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def _repr_html_(self) -> str:
        rows = [
            (
                f"r over {on.n} {part} models",
                f"{display.number(on.r)} {display.ends(on.low, on.high, on.level)}; on all examples "
                f"{display.number(self.full[part].r)}",
            )
            for part, on in self.correlation.items()
        ]
        return display.card(
            "subset of the examples",
            (("examples", self.size), *rows, ("solver", self.settings.record().get("solver"))),
            id=self.id,
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row per selected example, most harmful first: example, index, score."""
        import pandas as pd

        return pd.DataFrame({"example": list(self.example_ids), "index": self.indices, "score": self.scores})

    @property
    def size(self) -> int:
        """S."""
        return len(self.indices)

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be; its hash is the identity of the result."""
        made: dict[str, Any] = plain(
            {
                "library": library_version(),
                "data": dict(self.facts),
                "split": self.split.to_dict(),
                "size": self.size,
                "sweep": list(self.sweep),
                "path": self.path,
                "settings": self.settings.record(),
            }
        )
        made.update(self._kept.get("made by", {}))
        return made

    @property
    def id(self) -> str:
        """Hash of the provenance."""
        return record_id(KIND, self.provenance)

    def require_data(self, what: str) -> CorrectnessData:
        """The data, or the error that says how to give them.

        Raises:
            InputError: After loading without data.
        """
        if self.data is None:
            raise InputError(
                f"{what} needs the data that the subset was selected on; give them to "
                "`assay.load_subset(path, data)`"
            )
        return self.data

    # ----------------------------------------------------------------------------------------- verdict

    @property
    def verdict(self) -> "SubsetVerdict":
        """Whether the subset is real; computed when first asked for, with the defaults of `judge`."""
        if "verdict" not in self._kept:
            self.judge()
        found: SubsetVerdict = self._kept["verdict"]
        return found

    @property
    def judged(self) -> bool:
        """Whether the verdict is known already."""
        return "verdict" in self._kept

    def judge(
        self,
        *,
        n_permutations: int = 99,
        folds: int = 5,
        workers: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> "SubsetVerdict":
        """Cross-fit the selection and compare with permuted accuracies; see `judge_sizes`.

        A subset of a sweep is judged with all sizes of the sweep, and p is corrected for them.

        Args:
            n_permutations: Permutations of the accuracies, each a selection per fold and size: seconds with
                `swap`, hours with `adam`. 19 is the least that can reach p = 0.05.
            folds: Of the cross-fit.
            workers: Threads. Default: one per CPU. The result does not depend on it.
            progress: Called with the stage, the runs done and all runs.
        """
        from assay.analyses.subsets.verdict import judge_sizes

        data = self.require_data("a verdict")
        found = judge_sizes(
            data,
            self._swept(data),
            path=self.path,
            n_permutations=n_permutations,
            folds=folds,
            workers=workers,
            progress=progress,
        )
        self._kept["verdict"] = found[self.sweep.index(self.size)]
        return self.verdict

    def _swept(self, data: CorrectnessData) -> "tuple[Subset, ...]":
        """This subset among those of the other sizes of its sweep, which are selected again."""
        if len(self.sweep) == 1:
            return (self,)
        problem = Problem.of(data, self.split, self.settings)
        found = problem.solve_path(self.sweep, path=self.path)
        return tuple(
            self if size == self.size else make_selection(problem, each)
            for size, each in zip(self.sweep, found, strict=True)
        )

    def keep_verdict(self, verdict: "SubsetVerdict") -> None:
        """Take a verdict reached elsewhere, as that of a sweep over sizes."""
        self._kept["verdict"] = verdict

    # --------------------------------------------------------------------------------------- what it is

    def accuracies(self, models: Int64[np.ndarray, " k"] | None = None) -> Float64[np.ndarray, " k"]:
        """Accuracy of each model of the data on the subset."""
        return self.require_data("the accuracies of the models").accuracy_on(self.indices, models)

    def line(self, part: str = "test") -> Line:
        """Least-squares line of a part of the models on the subset, in probit axes."""
        data = self.require_data("a line")
        models = self.split.part(part)
        eps = self.settings.eps
        clip = clip_of(self.settings.clip, self.size, eps)
        return fit_line(data.id_accuracy[models], self.accuracies(models), eps=clip, id_eps=eps)

    @property
    def pool(self) -> Int64[np.ndarray, " pool"]:
        """Examples that could have been selected, ascending: what the subset is compared with."""
        return self.settings.pool(self.facts["n_examples"])

    def composition(self) -> "ClassComposition":
        """Shares of the classes in the subset and in the pool; see `class_composition`."""
        from assay.analyses.subsets.composition import class_composition

        return class_composition(self)

    def evaluate(
        self,
        correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
        id_accuracy: float | Sequence[float] | np.ndarray | None = None,
        *,
        example_ids: Sequence[object] | np.ndarray | None = None,
        order: str | None = None,
        groups: Sequence[object] | np.ndarray | None = None,
        families: Sequence[object] | np.ndarray | None = None,
    ) -> Evaluation:
        """Other models on the same subset, or one of them.

        Args:
            correct: Correctness of the other models on any examples among which are those of the subset:
                models by examples, `[n_examples]` for one model, or a frame as `from_frame` reads it.
            id_accuracy: In-distribution accuracy of each of them; a number for one model.
            example_ids: Names of the columns of an array.
            order: `"data"`: the columns are the examples that the subset was selected from, in their order.
                Needed where no names say which column is which example.
            groups: Training runs of the models, for the interval.
            families: Families of the models, for the interval.

        Returns:
            Accuracies on the subset; the correlation is NaN for one model.

        Raises:
            InputError: If nothing says which column is which example, an example of the subset is missing,
                and as `CorrectnessData.of`.
        """
        data = _others(correct, id_accuracy, example_ids, groups, families)
        if order not in (None, "data"):
            raise unknown_name("order of columns", order, ("data",))
        named = example_ids is not None or _is_frame(correct) or (data.has_ids and self._has_ids)
        if order is None and not named:
            raise InputError(
                "the columns of correct have no names, so they cannot be matched with the examples of the "
                "subset. Give example_ids=, a frame whose columns are their names, or order='data' if they "
                "are the examples it was selected from, in the same order"
            )
        if order is None:
            place = {name: column for column, name in enumerate(data.example_ids.tolist())}
            missing = [name for name in self.example_ids if name not in place]
            if missing:
                raise InputError(
                    f"{len(missing)} of the {self.size} examples of the subset are not among the "
                    f"{data.n_examples} given, {missing[0]!r} first; give the same example ids"
                )
            columns = np.array([place[name] for name in self.example_ids], dtype=np.int64)
        elif data.n_examples != self.facts["n_examples"]:
            raise ShapeError(
                f"correct holds {data.n_examples} examples, the subset was selected from "
                f"{self.facts['n_examples']}; give the same columns, or example_ids= instead of order="
            )
        else:
            columns = self.indices
        accuracy = data.accuracy_on(columns)
        kind = "family" if self.split.kind == "family" and data.families is not None else None
        kind = kind or ("group" if data.groups is not None else data.unit_kind)
        options: dict[str, Any] = {
            "units": data.unit_codes(kind),
            "eps": self.settings.eps,
            "seed": self.settings.seed,
        }
        found = correlate(data.id_accuracy, accuracy, size=self.size, clip=self.settings.clip, **options)
        return Evaluation(
            **vars(found),
            full=correlate(data.id_accuracy, data.accuracy(), **options),
            line=fit_line(
                data.id_accuracy,
                accuracy,
                eps=clip_of(self.settings.clip, self.size, self.settings.eps),
                id_eps=self.settings.eps,
            ),
            accuracy=tuple(accuracy.tolist()),
        )

    @property
    def _has_ids(self) -> bool:
        """Whether the examples have names of their own, not the numbers of their columns."""
        named = zip(self.indices.tolist(), self.example_ids, strict=True)
        return any(name != f"row_{place}" for place, name in named)

    # ------------------------------------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """Finite JSON with everything but the data; the verdict where it is known."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "id": self.id,
            "size": self.size,
            "indices": self.indices.tolist(),
            "example_ids": list(self.example_ids),
            "scores": plain(self.scores),
            "correlation": {name: found.to_dict() for name, found in self.correlation.items()},
            "full": {name: found.to_dict() for name, found in self.full.items()},
            "trace": plain(list(self.trace)),
            "arrays": self.settings.arrays(),
            "verdict": self._kept["verdict"].to_dict() if self.judged else None,
            "provenance": self.provenance,
        }

    @property
    def document(self) -> Mapping[str, Any]:
        """Everything a report shows, the verdict included; see `assay.save_report`."""
        from assay.analyses.subsets.document import selection_document

        return selection_document(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the subset as JSON: example ids, correlations, how it was made, and its verdict if known.

        Raises:
            OutputError: If the file cannot be written; an old one is then left as it was.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make {path.parent}: {error.strerror}; choose another place") from error
        return write_atomically(path, json.dumps(self.to_dict(), allow_nan=False).encode())


def oodselect(
    correct: "np.ndarray | PackedMatrix | CorrectnessData",
    id_accuracy: Sequence[float] | np.ndarray | None = None,
    size: int | None = None,
    *,
    solver: str = "swap",
    split: str | ModelSplit | Mapping[str, Any] | Sequence[Any] | None = None,
    compat: bool = False,
    seed: int = 0,
    groups: Sequence[object] | np.ndarray | None = None,
    families: Sequence[object] | np.ndarray | None = None,
    strata: str | Sequence[object] | np.ndarray | None = None,
    allowed: np.ndarray | Sequence[bool] | None = None,
    must_include: np.ndarray | Sequence[int] | None = None,
    objective: str = "r",
    layout: str = "auto",
    device: str | None = None,
    clip: str = "eps",
    eps: float | int = EPS,
    **options: Any,
) -> Subset:
    """Select the examples on which models with better in-distribution accuracy do worse (OODSelect).

    min_s R_train(s) subject to s in {0, 1}^N, sum s = size: R(s) is the correlation over models of the probit
    of in-distribution accuracy and of accuracy on the selected examples. Selected on training models, stopped
    by validation models, reported on test models. A negative R is not yet a finding: ask for `verdict`.

    Args:
        correct: X, models by examples: 1 where a model is right; or `CorrectnessData`.
        id_accuracy: y: in-distribution accuracy of each model, a share; None with data.
        size: S: examples to select, 1 to N.
        solver: `swap` (default) or `adam` (the paper's).
        split: Parts of the models; see `split_models`.
        compat: The authors' random split of the models.
        seed: Root seed of split and solver.
        groups: Training run of each model: checkpoints of one run share it.
        families: Architecture family of each model.
        strata: Keep the share of each stratum: `label`, a column of the data's `meta`, or one per example.
        allowed: Examples that may be selected: a mask, or their places.
        must_include: Places of examples that are selected in any case.
        objective: `r` (most negative) or `r2` (weakest correlation).
        layout: `auto`, `dense`, `packed` (32 times smaller) or `accelerator`.
        device: Of the accelerator, e.g. `cuda`.
        clip: Clip of the reported accuracies: `eps`, or `half` an example.
        eps: Clip of accuracies before the probit.
        options: Of the solver, e.g. `trials=20` of `adam`.

    Returns:
        The selection: `indices` (most harmful first), `correlation["test"]`, `verdict`, `evaluate`, `save`.

    Raises:
        InputError: Naming the argument, what came and what is allowed.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eqs. 3 to 5.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> skill = rng.uniform(0.5, 0.95, 100)
        >>> inverse = np.arange(200) < 40
        >>> chance = np.where(inverse, 1.4 - skill[:, None], skill[:, None])
        >>> correct = rng.uniform(size=(100, 200)) < chance
        >>> sub = oodselect(correct, skill, 20, groups=range(100))
        >>> bool(inverse[sub.indices].all()), round(sub.correlation["test"].r, 2)
        (True, -0.85)
    """
    problem = make_problem(
        correct,
        id_accuracy,
        solver=solver,
        split=split,
        compat=compat,
        seed=seed,
        groups=groups,
        families=families,
        strata=strata,
        allowed=allowed,
        must_include=must_include,
        objective=objective,
        layout=layout,
        device=device,
        clip=clip,
        eps=eps,
        **options,
    )
    if size is None:
        raise InputError(f"size is missing: how many of the {problem.data.n_examples} examples to select")
    return make_selection(problem, problem.solve(check_size(size, problem.data.n_examples)))


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
        InputError: If it is no whole number between 1 and `n_examples`.
    """
    try:
        found = operator.index(size)
    except TypeError:
        raise InputError(f"size is {size!r}; a whole number of examples is needed") from None
    if not 1 <= found <= n_examples:
        raise InputError(f"size is {found}; between 1 and the {n_examples} examples given can be selected")
    return found


def make_settings(
    data: CorrectnessData,
    *,
    solver: str = "swap",
    objective: str = "r",
    strata: Any = None,
    allowed: Any = None,
    must_include: Any = None,
    layout: str = "auto",
    device: str | None = None,
    clip: str = "eps",
    eps: float | int = EPS,
    seed: int = 0,
    **options: Any,
) -> Settings:
    """Settings with their arrays resolved against the data and every name checked.

    Raises:
        InputError: For an unknown name, or an array that does not fit the data.
    """
    clip_of(clip, 2, eps)
    if seed < 0:
        raise InputError(f"seed is {seed}; 0 or more is needed")
    if solver in REFERENCES:
        raise InputError(
            f"solver is {solver!r}; greedy and exhaustive are test references now. Use 'swap' (the default) "
            "or 'adam' (as published)"
        )
    if solver not in SOLVERS:
        raise unknown_name("solver", solver, SOLVERS)
    if objective not in OBJECTIVES:
        raise unknown_name("objective of a selection", objective, OBJECTIVES)
    known = set(inspect.signature(SOLVERS[solver]).parameters) - _SET_HERE
    known -= set(Settings.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise unknown_name(f"option of the solver {solver!r}", name, known)
    codes, strata_name = _strata(data, strata)
    check_device(device, layout)
    return Settings(
        solver=solver,
        objective=objective,
        strata=codes,
        strata_name=strata_name,
        allowed=None if allowed is None else _mask(allowed, data.n_examples),
        must_include=None if must_include is None else _places(must_include, data.n_examples, "must_include"),
        layout=layout,
        device=device,
        clip=clip,
        eps=eps,
        seed=seed,
        options=options,
    )


def make_selection(
    problem: Problem, found: Found, *, sweep: Sequence[int] = (), path: str = "independent"
) -> Subset:
    """What a solver found, evaluated on every part of the models.

    Args:
        problem: Where it was found.
        found: What the solver returned.
        sweep: All sizes looked at. Default: this one.
        path: How they led to one another.
    """
    data, split, settings = problem.data, problem.split, problem.settings
    kind = interval_units(data, split)
    units = data.unit_codes(kind)
    accuracy = data.accuracy_on(found.indices)
    correlation, full = {}, {}
    for name in PARTS:
        models = split.part(name)
        common: dict[str, Any] = {"units": units[models], "eps": settings.eps, "seed": settings.seed}
        y = data.id_accuracy[models]
        correlation[name] = correlate(
            y, accuracy[models], size=len(found.indices), clip=settings.clip, **common
        )
        full[name] = correlate(y, data.accuracy(models), **common)
    return Subset(
        indices=found.indices,
        scores=found.scores,
        example_ids=tuple(data.example_ids[found.indices].tolist()),
        correlation=correlation,
        full=full,
        split=split,
        settings=settings,
        trace=tuple(found.trace),
        facts={
            "hash": data.hash,
            "n_models": data.n_models,
            "n_examples": data.n_examples,
            "interval_units": kind,
            "source": dict(data.source),
        },
        sweep=tuple(sweep) or (len(found.indices),),
        path=path,
        data=data,
    )


def interval_units(data: CorrectnessData, split: ModelSplit) -> str:
    """What the bootstrap draws: families after a split by family, else runs, where they are known."""
    if data.groups is not None and not (split.kind == "family" and data.families is not None):
        return "group"
    return data.unit_kind


def load_subset(path: str | os.PathLike[str], data: CorrectnessData | None = None) -> Subset:
    """Read a subset that `Subset.save` wrote.

    Args:
        path: The file.
        data: The data it was selected on, needed for a verdict, a report or the accuracies of the models.
            Other models are evaluated without them, by `Subset.evaluate`.

    Raises:
        FileFormatError: If the file is no subset, is cut off, or of a newer version.
        InputError: If `data` are others than the subset was selected on.
    """
    from assay.analyses.subsets.verdict import SubsetVerdict

    path = Path(path)
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give a file that `Subset.save` wrote") from None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} holds no subset: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        got = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise FileFormatError(f"{path} holds no subset: its schema is {got!r}, this version reads {SCHEMA!r}")
    try:
        provenance = record["provenance"]
        facts, given = provenance["data"], provenance["settings"]
        given = {**given, "options": dict(given["options"])}
        indices = np.array(record["indices"], dtype=np.int64)
        ids = tuple(map(str, record["example_ids"]))
        if len(ids) != len(indices) or len(np.unique(indices)) != len(indices) or len(indices) == 0:
            raise ValueError(f"{len(indices)} indices and {len(ids)} example ids do not name one set")
        if indices.min() < 0 or indices.max() >= facts["n_examples"]:
            raise ValueError(f"an index lies outside the {facts['n_examples']} examples")
        names = ("solver", "objective", "strata_name", "eps", "clip", "seed", "options")
        arrays: dict[str, Any] = {
            name: np.array(places, dtype=np.int64) for name, places in record["arrays"].items()
        }
        if "allowed" in arrays:
            arrays["allowed"] = _mask(arrays["allowed"], facts["n_examples"])
        kept: dict[str, Any] = {"made by": {"library": provenance["library"]}}
        if record["verdict"] is not None:
            kept["verdict"] = SubsetVerdict.from_dict(record["verdict"])
        found = Subset(
            indices=indices,
            scores=np.array(
                [math.nan if score is None else score for score in record["scores"]], dtype=float
            ),
            example_ids=ids,
            correlation={name: Correlation.from_dict(each) for name, each in record["correlation"].items()},
            full={name: Correlation.from_dict(each) for name, each in record["full"].items()},
            split=ModelSplit.from_dict(provenance["split"]),
            settings=Settings(**{name: given[name] for name in names}, **arrays),
            trace=tuple(record["trace"]),
            facts=facts,
            sweep=tuple(map(int, provenance["sweep"])),
            path=provenance["path"],
            data=data,
            _kept=kept,
        )
    except MALFORMED as error:
        raise FileFormatError(f"{path} holds no whole subset: {error}") from error
    if data is not None and data.hash != facts["hash"]:
        raise InputError(
            f"{path} was selected on other data (hash {facts['hash']}, these have {data.hash}); evaluate "
            "other models with `Subset.evaluate`"
        )
    if data is not None and tuple(data.example_ids[found.indices].tolist()) != found.example_ids:
        raise FileFormatError(f"{path}: its indices and its example ids name different examples")
    return found


def _strata(data: CorrectnessData, given: Any) -> tuple[Int64[np.ndarray, " n"] | None, str | None]:
    if given is None:
        return None, None
    if isinstance(given, str):
        known = {**data.meta, **({} if data.labels is None else {"label": data.labels})}
        if given not in known:
            raise unknown_name("column to stratify by", given, known)
        column, name = known[given], given
    else:
        column, name = np.asarray(given), "given"
    if column.shape != (data.n_examples,):
        raise ShapeError(f"strata has shape {column.shape}; one stratum per example ({data.n_examples})")
    missing = [each for each in column.tolist() if each is None or each != each]
    if missing:
        raise InputError(f"strata holds {missing[0]} {len(missing)} times; give every example a stratum")
    return np.unique(column, return_inverse=True)[1].astype(np.int64), name


def _mask(given: Any, n_examples: int) -> np.ndarray:
    found = np.asarray(given)
    if found.dtype != bool:
        mask = np.zeros(n_examples, dtype=bool)
        mask[_places(found, n_examples, "allowed")] = True
        return mask
    if found.shape != (n_examples,):
        raise ShapeError(f"allowed has shape {found.shape}; a mask over the {n_examples} examples is needed")
    return found


def _places(given: Any, n_examples: int, name: str) -> Int64[np.ndarray, " k"]:
    found = np.asarray(given)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise InputError(f"{name} is no list of places of examples: {found.dtype} of shape {found.shape}")
    outside = found[(found < 0) | (found >= n_examples)]
    if len(outside):
        raise InputError(f"{name} holds {outside[0]}; there are {n_examples} examples, counted from 0")
    if len(np.unique(found)) < len(found):
        raise InputError(f"{name} names an example more than once")
    return found.astype(np.int64)


def _is_frame(given: object) -> "TypeGuard[pd.DataFrame]":
    import pandas as pd

    return isinstance(given, pd.DataFrame)


def _others(
    correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
    id_accuracy: float | Sequence[float] | np.ndarray | None,
    example_ids: Sequence[object] | np.ndarray | None,
    groups: Sequence[object] | np.ndarray | None,
    families: Sequence[object] | np.ndarray | None,
) -> CorrectnessData:
    """Models to evaluate, one or more, whatever holds them."""
    rates: Any = [id_accuracy] if isinstance(id_accuracy, int | float) else id_accuracy
    if isinstance(correct, CorrectnessData):
        return CorrectnessData.of(correct, rates, groups=groups, families=families)
    if _is_frame(correct):
        if example_ids is not None:
            raise InputError("a frame names its examples itself; leave example_ids out")
        return CorrectnessData.from_frame(
            correct, id_accuracy=rates, group=groups, family=families, at_least=1
        )
    matrix = correct if isinstance(correct, PackedMatrix) else np.atleast_2d(np.asarray(correct))
    return CorrectnessData.of(
        matrix, rates, example_ids=example_ids, groups=groups, families=families, at_least=1
    )

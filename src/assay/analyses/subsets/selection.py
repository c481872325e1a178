"""A subset of the examples on which better models do worse: selected, judged, kept; other models on it."""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from assay.analyses.subsets.data import CorrectnessData, PerModel
from assay.analyses.subsets.line import Correlation, Places, Progress, correlate
from assay.analyses.subsets.problem import Correct, Problem, Settings, checked_sizes, make_problem
from assay.analyses.subsets.splits import PARTS, ModelSplit, interval_unit_kind
from assay.analyses.subsets.verdict import SubsetVerdict, judge
from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError, check_name, writing
from assay.core.record import HIDDEN, Plotted, Record, library_version, record_id
from assay.core.untrusted import MALFORMED, parse_json
from assay.stats import bounded_mean, clopper_pearson


LEAST_MATCHED = 0.5  # share of a subset that must be among the examples of other models


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation(Record):
    """Other models on a subset. The verdict is the subset's.

    Attributes:
        model_ids: `[m]` the models.
        part: Of each model in the selection, by name: models of `train` and `validation` selected the subset,
            so they do worse on it than new ones would; `test` models tested it; others are `new`, or
            `unknown` where either side does not name its models.
        accuracy: `[m]` on the subset, in [0, 1].
        low: Lower end of its 95 % interval: Clopper and Pearson for shares, `stats.bounded_mean` for scores.
        high: Its upper end.
        accuracy_all: `[m]` on all examples given.
        correlation: Over the models, of accuracy on the subset with in-distribution accuracy; NaN where that
            is not known.
        with_all: Of accuracy on the subset with accuracy on all examples: the paper's check of models that
            have no in-distribution data, such as zero-shot ones. Both sides are out of distribution, so a
            high correlation does not show that a model is robust.
        size: Examples of the subset.
        n_matched: Of these, among the examples given.
    """

    record_kind = "subset-evaluation"
    record_schema = "assay-subset-evaluation/2"

    model_ids: tuple[str, ...]
    part: tuple[str, ...]
    accuracy: Float64[np.ndarray, " m"]
    low: Float64[np.ndarray, " m"]
    high: Float64[np.ndarray, " m"]
    accuracy_all: Float64[np.ndarray, " m"]
    correlation: Correlation
    with_all: Correlation
    size: int
    n_matched: int

    def to_frame(self) -> pd.DataFrame:
        """One row per model: model, part, accuracy, low, high, accuracy_all."""
        names = ("part", "accuracy", "low", "high", "accuracy_all")
        return pd.DataFrame({"model": self.model_ids} | {name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True, eq=False)
class Subset(Plotted, Record):
    """A subset of the examples, with the correlation on each part of the models.

    Attributes:
        id: Hash of how it came to be.
        indices: Selected examples, most harmful first, `[size]`.
        scores: What they are ordered by, ascending: the derivative of the solver's objective by the weight of
            each; of `adam` minus its logits.
        example_ids: Their names.
        has_ids: Whether these are names of their own, not the numbers of columns.
        correlation: Of `train`, `validation` and `test` models on the subset. Only `test` is a result: the
            subset was optimised on `train` and stopped by `validation`.
        full: The same on all examples.
        trace: What the solver passed through.
        known_verdict: The verdict, once it was asked for.
        library: Version that selected it.
        facts: Of the data: `hash`, `n_models`, `n_examples`, `interval_units`, `source`.
        model_ids: Names of the models, in the order that `split` counts; empty where not known.
        split: The parts of the models.
        settings: How it was selected.
        sweep: All sizes that were looked at together with this one; the verdict is corrected for them.
        answers: `right and wrong`, or `scores`; empty where not known.
        data: The data; None after loading without them.
        together: The subsets of the sweep.
    """

    drawn_by = "assay.analyses.subsets.plots:plot_subset"
    record_kind = "subset"
    record_schema = "assay-selection/2"
    derived = ("size",)

    id: str = ""
    indices: Int64[np.ndarray, " size"]
    scores: Float64[np.ndarray, " size"]
    example_ids: tuple[str, ...]
    has_ids: bool
    correlation: Mapping[str, Correlation]
    full: Mapping[str, Correlation]
    trace: tuple[Mapping[str, Any], ...]
    known_verdict: SubsetVerdict | None = field(default=None, metadata={"key": "verdict"})
    library: str
    facts: Mapping[str, Any]
    model_ids: tuple[str, ...]
    split: ModelSplit
    settings: Settings
    sweep: tuple[int, ...]
    answers: str
    data: CorrectnessData | None = field(default=None, metadata=HIDDEN)
    together: tuple["Subset", ...] = field(default=(), metadata=HIDDEN, repr=False)

    def __repr__(self) -> str:
        return f"Subset({self.size} examples, R {self.correlation['test'].r:.2f} over test models)"

    @property
    def size(self) -> int:
        """S."""
        return len(self.indices)

    @property
    def provenance(self) -> dict[str, Any]:
        """How it came to be; its hash is the identity of the subset."""
        made = {"library": self.library, "data": dict(self.facts), "split": self.split.to_dict()}
        return made | {"size": self.size, "sweep": list(self.sweep), "settings": self.settings.to_dict()}

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem that the subset solves."""
        return Problem(self.require_data("a selection"), self.split, self.settings)

    def require_data(self, what: str) -> CorrectnessData:
        """The data.

        Raises:
            InputError: After loading without data, with how to give them.
        """
        if self.data is None:
            raise InputError(
                f"{what} needs the data that the subset was selected on; see `assay.load_subset`"
            )
        return self.data

    def to_frame(self) -> pd.DataFrame:
        """One row per selected example, most harmful first: example, index, score."""
        return pd.DataFrame({"example": self.example_ids, "index": self.indices, "score": self.scores})

    # ----------------------------------------------------------------------------------------- verdict

    @property
    def verdict(self) -> SubsetVerdict:
        """Whether the subset is real; computed when first asked for, with the defaults of `judge`."""
        return self.judge() if self.known_verdict is None else self.known_verdict

    def judge(self, **options: Any) -> SubsetVerdict:
        """Cross-fit the selection and compare with permuted accuracies.

        A subset of a sweep is judged with all sizes of the sweep, and p is corrected for them. The others
        keep their verdicts too.

        Args:
            options: `n_permutations` of the accuracies (99), each a selection per fold and size: seconds with
                `swap`, hours with `adam`; 19 is the least that can reach p = 0.05. `folds` of the cross-fit
                (5). `workers`: threads, one per CPU by default; the result does not depend on it. `keep`:
                file of finished permutations, from which a killed verdict goes on. `progress`: called with
                the stage, the runs done and all runs.

        Raises:
            InputError: After loading without data, and as `verdict.judge`.
        """
        together = self.together or subsets_of(self.problem, self.sweep)
        own = {each.size: each.correlation["test"] for each in together}
        for subset, verdict in zip(together, judge(self.problem, own, **options), strict=True):
            for each in (subset, self) if subset.size == self.size else (subset,):
                object.__setattr__(each, "known_verdict", verdict)
        return self.verdict

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the subset as JSON: example ids, correlations, how it was made, and its verdict if known.

        Raises:
            OutputError: If the file cannot be written; an old one is then left as it was.
        """
        path = Path(path)
        with writing(f"make {path.parent}", "choose another place"):
            path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomically(path, json.dumps(self.to_dict(), allow_nan=False).encode())

    # -------------------------------------------------------------------------------------- other models

    def evaluate(
        self,
        correct: Correct,
        id_accuracy: float | PerModel | None = None,
        *,
        order: str | None = None,
        **facts: Any,
    ) -> Evaluation:
        """Other models on the same subset, or one of them.

        Args:
            correct: Answers of the other models, on any examples among which is at least half of the subset:
                models by examples, `[n_examples]` for one model, a frame as `from_frame` reads it, or data.
            id_accuracy: In-distribution accuracy of each of them; a number for one model; None if not known.
            order: `"data"`: the columns are the examples that the subset was selected from, in their order.
                Needed where no names say which column is which example.
            facts: Further arguments of `CorrectnessData.of`: `example_ids`, `model_ids`, `groups`,
                `families`.

        Raises:
            InputError: If nothing says which column is which example, more than half of the subset is
                missing, or the answers are of another kind than those selected from.
        """
        correct = np.atleast_2d(correct) if isinstance(correct, np.ndarray) else correct
        y: Any = [id_accuracy] if isinstance(id_accuracy, int | float) else id_accuracy
        data = CorrectnessData.of(correct, y, for_selection=False, **facts)
        columns = self._columns_in(data, order)
        n, accuracy, everything = len(columns), data.accuracy(columns), data.accuracy()
        intervals = [
            bounded_mean(row[columns].astype(np.float64)) if data.scores else clopper_pearson(round(a * n), n)
            for row, a in zip(data.correct, accuracy, strict=True)
        ]
        named, names = PARTS if self.model_ids else (), _model_names(data)
        known = {self.model_ids[at]: part for part in named for at in self.split.part(part).tolist()}
        unknown = "new" if known and names else "unknown"
        units, seed = data.units(interval_unit_kind(data, self.split)), self.settings.seed
        return Evaluation(
            model_ids=tuple(data.model_ids.tolist()),
            part=tuple(known.get(name, unknown) for name in names or [""] * data.n_models),
            accuracy=accuracy,
            low=np.array([each.low for each in intervals]),
            high=np.array([each.high for each in intervals]),
            accuracy_all=everything,
            correlation=correlate(data.id_accuracy, accuracy, units, seed=seed),
            with_all=correlate(everything, accuracy, units, seed=seed),
            size=self.size,
            n_matched=n,
        )

    def _columns_in(self, data: CorrectnessData, order: str | None) -> Places:
        """Places of the subset among the examples of other models."""
        if self.answers and self.answers != (given := _answers(data)):
            raise InputError(
                f"the subset was selected from {self.answers} answers, these are {given} (--cells)"
            )
        if order is not None:
            check_name("order of the examples", order, ("data",))
            if data.n_examples != (n := self.facts["n_examples"]):
                raise InputError(
                    f"order='data' means the {n} examples of the selection, not {data.n_examples}"
                )
            return self.indices
        if not (data.has_ids and self.has_ids):
            which = "of the subset" if data.has_ids else "given"
            raise InputError(
                f"the examples {which} have no names of their own. Name them, here and for the selection, or "
                "give order='data' (--order data) if these are the original examples in their order"
            )
        places = pd.Index(data.example_ids).get_indexer(pd.Index(self.example_ids))
        if (places >= 0).mean() < LEAST_MATCHED:
            raise InputError(
                f"{(places < 0).sum()} of the {self.size} examples of the subset are missing from the "
                f"{data.n_examples} given, e.g. {self.example_ids[int(np.argmin(places))]!r}; first given: "
                f"{data.example_ids[0]!s:.80}. Give the same example ids"
            )
        return np.asarray(places[places >= 0], dtype=np.int64)


def _model_names(data: CorrectnessData) -> tuple[str, ...]:
    """Names of the models; empty where they are only numbered."""
    names = tuple(data.model_ids.tolist())
    return () if names == tuple(f"model_{place}" for place in range(len(names))) else names


def _answers(data: CorrectnessData) -> str:
    return "scores" if data.scores else "right and wrong"


def subsets_of(
    problem: Problem, sizes: Sequence[int], progress: Progress | None = None
) -> tuple[Subset, ...]:
    """Subsets of ascending sizes, evaluated on every part of the models; they are judged together."""
    data = problem.data
    if progress is not None:
        progress("select", 0, len(sizes))
    facts = {name: getattr(data, name) for name in ("hash", "n_models", "n_examples")}
    facts |= {"interval_units": interval_unit_kind(data, problem.split), "source": data.origin}
    full = {part: problem.correlate(None, part) for part in PARTS}
    subsets = []
    for found in problem.solve(sizes, [data.id_accuracy])[0]:
        subset = Subset(
            indices=found.indices,
            scores=found.scores,
            example_ids=tuple(data.example_ids[found.indices].tolist()),
            has_ids=data.has_ids,
            correlation={part: problem.correlate(found.indices, part) for part in PARTS},
            full=full,
            trace=tuple(found.trace),
            library=library_version(),
            facts=facts,
            model_ids=_model_names(data),
            split=problem.split,
            settings=problem.settings,
            sweep=tuple(sizes),
            answers=_answers(data),
            data=data,
        )
        subsets.append(replace(subset, id=record_id("subset", subset.provenance)))
    for subset in subsets:
        object.__setattr__(subset, "together", tuple(subsets))
        subset.__dict__["problem"] = problem
    return tuple(subsets)


def oodselect(
    correct: Correct, id_accuracy: PerModel | None = None, size: int | None = None, **settings: Any
) -> Subset:
    """Select the examples on which models with better in-distribution accuracy do worse (OODSelect).

    min_s R_train(s) subject to s in {0, 1}^N, sum s = size: R(s) is the correlation over models of the probit
    of in-distribution accuracy and of accuracy on the selected examples. Selected on training models, stopped
    by validation models, reported on test models. A negative R is not yet a finding: ask for `verdict`.

    Args:
        correct: X, models by examples: 1 where a model is right; a frame, which `from_frame` reads; or data.
        id_accuracy: y: in-distribution accuracy of each model, a share; None with data.
        size: S: examples to select, 1 to N.
        settings: The settings below, and options of the solver, e.g. `trials=20` of `adam`.

    Settings:
        solver: `swap` (default) or `adam` (the paper's).
        split: Parts of the models; see `split_models`.
        compat: The authors' random split of the models.
        seed: Root seed of split and solver.
        groups: Training run of each model: checkpoints of one run share it. In order, or by their names.
        families: Architecture family of each model, likewise.
        strata: Keep the share of each stratum: `label`, a column of the data's `meta`, or one per example.
        allowed: Examples that may be selected: a mask, or their places.

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
        (True, -0.76)
    """
    problem = make_problem(correct, id_accuracy, **settings)
    if size is None:
        raise InputError(f"size is missing: choose some of the {problem.data.n_examples} examples")
    return subsets_of(problem, checked_sizes([size], problem))[0]


def load_subset(path: str | os.PathLike[str], data: CorrectnessData | None = None) -> Subset:
    """Read a subset that `Subset.save` wrote.

    Args:
        path: The file.
        data: The data it was selected on, needed for a verdict or a report. Other models are evaluated
            without them, by `Subset.evaluate`.

    Raises:
        FileFormatError: If the file is not a subset, is cut off, or of a newer version.
        InputError: If `data` are others than the subset was selected on.
    """
    try:
        document = parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} is not a subset: {error}; give a file of `Subset.save`") from error
    return read_subset(document, path, data)


def read_subset(document: Any, path: object, data: CorrectnessData | None = None) -> Subset:
    """A subset from what `Subset.to_dict` gave, as `load_subset`; `path` is what errors call it."""
    try:
        subset = Subset.from_dict(document)
        n, indices = subset.facts["n_examples"], subset.indices
        one_set = 0 < len(np.unique(indices)) == len(indices) == len(subset.example_ids)
        if not one_set or indices.min() < 0 or indices.max() >= n:
            raise FileFormatError(f"indices and example ids do not describe one set of the {n} examples")
        _ = [(subset.correlation[part], subset.full[part]) for part in PARTS]
    except MALFORMED as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise FileFormatError(f"{path} is not a complete subset: {what}") from error
    if data is None:
        return subset
    named = data.example_ids[indices].tolist() if data.hash == subset.facts["hash"] else []
    if named != list(subset.example_ids):
        raise InputError(
            f"{path} was selected on other data (hash {subset.facts['hash']}, these have {data.hash}), or is "
            "altered; evaluate other models with `Subset.evaluate`"
        )
    return replace(subset, data=data)

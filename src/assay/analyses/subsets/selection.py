"""Select the examples on which better in-distribution accuracy means worse accuracy; keep and read them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.baselines import baseline_rows
from assay.analyses.subsets.composition import ClassComposition, class_composition
from assay.analyses.subsets.crossfit import plan_folds
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.document import subset_document
from assay.analyses.subsets.file_kinds import kind_of_file
from assay.analyses.subsets.header import PerModel
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import Correlation, FittedLine, clip_of, fitted_line
from assay.analyses.subsets.members import KIND, SelectedExamples, SubsetProvenance
from assay.analyses.subsets.objective import Found, check_inverse
from assay.analyses.subsets.problem import Problem, check_size, make_problem
from assay.analyses.subsets.settings import SelectionOptions, Settings
from assay.analyses.subsets.splits import PARTS
from assay.analyses.subsets.verdict import WEAKEST, JudgeOptions, SubsetVerdict, judge_sizes, untested
from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError, writing
from assay.core.plotted import Plotted
from assay.core.record import BRIEF, Record, library_version, same
from assay.core.untrusted import MALFORMED, parse_json


if TYPE_CHECKING:
    import pandas as pd

SCHEMA, DOCUMENT_SCHEMA = "assay-selection/1", "assay-subset/1"
_MEMBERS = ("indices", "scores", "example_ids", "correlation", "full", "trace", "lines", "model_ids", "cells")


@dataclass(frozen=True, kw_only=True, eq=False)
class SubsetFile(Record):
    """A subset in a file: everything but the data.

    Attributes:
        id: Hash of the provenance.
        size: Examples selected.
        indices: Their places, most harmful first.
        example_ids: Their names.
        scores: What they are ordered by.
        correlation: On the subset, for each part of the models.
        full: On all examples.
        trace: What the solver passed through.
        arrays: Strata, and places of allowed and included examples.
        verdict: None where it was not asked for.
        provenance: How the subset came to be.
        lines: Of the test models on the subset and on all examples; None in older files.
        model_ids: Names of the models of the data; None in older files, and where the data do not name them.
        cells: As `CorrectnessData.cells`; None in older files.
    """

    record_kind = KIND
    record_schema = SCHEMA

    id: str
    size: int
    indices: Int64[np.ndarray, " size"]
    example_ids: tuple[str, ...]
    scores: Float64[np.ndarray, " size"]
    correlation: Mapping[str, Correlation]
    full: Mapping[str, Correlation]
    trace: tuple[Mapping[str, Any], ...]
    arrays: Mapping[str, Int64[np.ndarray, " _"]]
    verdict: SubsetVerdict | None
    provenance: SubsetProvenance
    lines: Mapping[str, FittedLine] | None = field(default=None, metadata=BRIEF)
    model_ids: tuple[str, ...] | None = field(default=None, metadata=BRIEF)
    cells: Mapping[str, Any] | None = field(default=None, metadata=BRIEF)

    def check(self) -> None:
        """Raises `FileFormatError` unless indices and ids name one set of the examples."""
        n, n_ids, n_examples = len(self.indices), len(self.example_ids), self.provenance.data["n_examples"]
        if not n or n_ids != n or len(np.unique(self.indices)) != n:
            raise FileFormatError(f"{n} indices and {n_ids} example ids do not describe one set")
        if self.indices.min() < 0 or self.indices.max() >= n_examples:
            raise FileFormatError(f"an index lies outside the {n_examples} examples")
        if self.cells is not None and not _are_cells(**self.cells):
            raise FileFormatError(f"'cells' is {self.cells}; expected the kind of the answers and their ends")


def _are_cells(kind: object = None, ends: object = (), **_: object) -> bool:
    """Whether a file says of answers what `CorrectnessData.cells` does."""
    pair = isinstance(ends, list | tuple) and len(ends) == 2 and all(isinstance(e, int | float) for e in ends)
    return kind in ("bits", "scores") and (pair or ends is None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Subset(Plotted, SelectedExamples, Record):
    """A subset of the examples, its verdict, its composition, and other models on it.

    `indices`, `scores`, `correlation` and `full` are those of `SelectedExamples`.
    """

    drawn_by = "assay.analyses.subsets.plots:plot_subset"
    record_kind = KIND
    record_schema = SCHEMA
    record_layout = {
        **same("id", "size", "indices", "example_ids", "scores", "correlation", "full", "trace"),
        "arrays": "settings.arrays",
        "verdict": "known_verdict",
        "provenance": "made",
        "optional": "**_optional_entries",
    }

    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        test = self.correlation["test"]
        return f"Subset({self.size} examples, R {test.r:.2f} over {test.n} test models)"

    def to_frame(self) -> "pd.DataFrame":
        """One row per selected example, most harmful first: example, index, score."""
        import pandas as pd

        return pd.DataFrame({"example": list(self.example_ids), "index": self.indices, "score": self.scores})

    # ----------------------------------------------------------------------------------------- verdict

    @property
    def verdict(self) -> SubsetVerdict:
        """Whether the subset is real; computed when first asked for, with the defaults of `judge`.

        With the objective `r2`: inconclusive, because nothing is tested.
        """
        if "verdict" not in self._kept:
            if self.settings.objective == "r2":
                data = self.require_data("a verdict")
                self.keep_verdict(untested(data, self, plan_folds(data), self.sweep, (WEAKEST,)))
            else:
                self.judge()
        verdict: SubsetVerdict = self._kept["verdict"]
        return verdict

    @property
    def known_verdict(self) -> SubsetVerdict | None:
        """The verdict where it is known already."""
        return self._kept.get("verdict")

    @property
    def judged(self) -> bool:
        """Whether the verdict is known already."""
        return "verdict" in self._kept

    def _optional_entries(self) -> dict[str, Any]:
        """Entries that older files lack, and a subset that was read from one."""
        entries = {"lines": self.lines, "model_ids": self.model_ids, "cells": self.cells}
        return {name: value for name, value in entries.items() if value is not None}

    def judge(self, **options: Unpack[JudgeOptions]) -> SubsetVerdict:
        """Cross-fit the selection and compare with permuted accuracies; see `judge_sizes`.

        A subset of a sweep is judged with all sizes of the sweep, and p is corrected for them. The others
        keep their verdicts too.

        Args:
            options: `n_permutations` of the accuracies (99), each a selection per fold and size: seconds with
                `swap`, hours with `adam`; 19 is the least that can reach p = 0.05. `folds` of the cross-fit
                (5). `workers`: threads, one per CPU by default; the result does not depend on it.
                `progress`: called with the stage, the runs done and all runs.

        Raises:
            InputError: After loading without data, for the objective `r2`, and as `judge_sizes`.
        """
        check_inverse(self.settings.objective, "a verdict")
        data, swept = self.require_data("a verdict"), self._swept()
        for subset, verdict in zip(swept, judge_sizes(data, swept, path=self.path, **options), strict=True):
            subset.keep_verdict(verdict)
        return self.verdict

    def _swept(self) -> "tuple[Subset, ...]":
        """This subset among those of the other sizes of its sweep, which are selected again where unknown."""
        if "swept" not in self._kept:
            others = self.problem.solve_path(self.sweep, path=self.path) if len(self.sweep) > 1 else ()
            subsets = {len(each.indices): make_selection(self.problem, each) for each in others}
            subsets[self.size] = self
            self._kept["swept"] = tuple(subsets[size] for size in self.sweep)
        swept: tuple[Subset, ...] = self._kept["swept"]
        return swept

    def keep_verdict(self, verdict: SubsetVerdict) -> None:
        """Take a verdict reached elsewhere, as that of a sweep over sizes."""
        self._kept["verdict"] = verdict

    # ------------------------------------------------------------------------------------ what it holds

    def composition(self) -> ClassComposition:
        """Shares of the classes in the subset and in the pool; see `class_composition`."""
        return class_composition(self)

    # ------------------------------------------------------------------------------------------- files

    @property
    def document(self) -> Mapping[str, Any]:
        """Everything a report shows, the verdict included; see `assay.save_report`."""
        return self.to_document()

    def to_document(self, *, n_halves: int | None = None) -> dict[str, Any]:
        """Everything a report shows: finite JSON, undefined numbers null.

        What the data do not tell (labels, facts, images, families) is null or empty.

        Args:
            n_halves: Permutations behind the overlap of halves; 0 leaves it out. Default: 19.

        Raises:
            InputError: After loading without data.
        """
        self.require_data("a report")
        header = {"kind": KIND, "schema": DOCUMENT_SCHEMA, "id": self.id, "path": None}
        return subset_document(
            header | {"largest": None, "consistency": None, "provenance": self.provenance},
            self,
            {self: self.verdict},
            baseline_rows(self.problem, [self.size]),
            n_halves=n_halves,
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the subset as JSON: example ids, correlations, how it was made, and its verdict if known.

        Raises:
            OutputError: If the file cannot be written; an old one is then left as it was.
        """
        path = Path(path)
        with writing(f"make {path.parent}", "choose another place"):
            path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomically(path, json.dumps(self.to_dict(), allow_nan=False).encode())


def oodselect(
    correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
    id_accuracy: PerModel | None = None,
    size: int | None = None,
    **options: Unpack[SelectionOptions],
) -> Subset:
    """Select the examples on which models with better in-distribution accuracy do worse (OODSelect).

    min_s R_train(s) subject to s in {0, 1}^N, sum s = size: R(s) is the correlation over models of the probit
    of in-distribution accuracy and of accuracy on the selected examples. Selected on training models, stopped
    by validation models, reported on test models. A negative R is not yet a finding: ask for `verdict`.

    Args:
        correct: X, models by examples: 1 where a model is right; a frame, which `from_frame` reads; or data.
        id_accuracy: y: in-distribution accuracy of each model, a share; None with data.
        size: S: examples to select, 1 to N.
        options: The settings below, and options of the solver, e.g. `trials=20` of `adam`.

    Settings:
        solver: `swap` (default) or `adam` (the paper's).
        split: Parts of the models; see `split_models`.
        compat: The authors' random split of the models.
        seed: Root seed of split and solver.
        groups: Training run of each model: checkpoints of one run share it. In order, or by their names.
        families: Architecture family of each model, likewise.
        strata: Keep the share of each stratum: `label`, a column of the data's `meta`, or one per example.
        allowed: Examples that may be selected: a mask, or their places.
        must_include: Places of examples that are selected in any case.
        objective: `r` (most negative) or `r2` (weakest correlation).
        layout: `auto`, `dense`, `packed` (32 times smaller) or `accelerator`.
        device: Of the accelerator, e.g. `cuda`.
        clip: Clip of the reported accuracies: `eps`, or `half` an example.
        eps: Clip of accuracies before the probit.

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
    problem = make_problem(correct, id_accuracy, **options)
    if size is None:
        raise InputError(
            f"size is missing: give the number of examples to select, of {problem.data.n_examples}"
        )
    return make_selection(problem, problem.solve(check_size(size, problem.data.n_examples)))


def make_selection(problem: Problem, found: Found, *, path: str = "independent") -> Subset:
    """What a solver found, evaluated on every part of the models.

    Args:
        problem: Where it was found.
        found: What the solver returned.
        path: How one size led to the next.
    """
    data, size = problem.data, len(found.indices)
    models, eps = problem.split.test, problem.settings.eps
    units = data.unit_codes(problem.interval_units)[models]
    tested = {
        "selected": (data.accuracy_on(found.indices, models), clip_of(problem.settings.clip, size, eps)),
        "all": (data.accuracy(models), eps),
    }
    facts = {
        "hash": data.hash,
        "n_models": data.n_models,
        "n_examples": data.n_examples,
        "interval_units": problem.interval_units,
        "source": data.origin,
    }
    return Subset(
        indices=found.indices,
        scores=found.scores,
        example_ids=tuple(data.example_ids[found.indices].tolist()),
        correlation={part: problem.correlate(found.indices, part) for part in PARTS},
        full={part: problem.correlate(None, part) for part in PARTS},
        settings=problem.settings,
        trace=tuple(found.trace),
        lines={
            name: fitted_line(data.id_accuracy[models], accuracy, units, eps=clip, id_eps=eps)
            for name, (accuracy, clip) in tested.items()
        },
        model_ids=data.own_model_ids,
        cells=data.cells,
        made=SubsetProvenance(
            library=library_version(),
            data=facts,
            split=problem.split,
            size=size,
            sweep=(size,),
            path=path,
            settings=problem.settings.record(),
        ),
        data=data,
    )


def swept(subsets: Sequence[Subset]) -> tuple[Subset, ...]:
    """Subsets of ascending sizes, each of which knows the others: they are judged together, and anew."""
    sweep = tuple(each.size for each in subsets)
    together = tuple(replace(each, made=replace(each.made, sweep=sweep), _kept={}) for each in subsets)
    for subset in together:
        subset._kept["swept"] = together
    return together


def load_subset(path: str | os.PathLike[str], data: CorrectnessData | None = None) -> Subset:
    """Read a subset that `Subset.save` wrote.

    Args:
        path: The file.
        data: The data it was selected on, needed for a verdict, a report or the accuracies of the models.
            Other models are evaluated without them, by `Subset.evaluate`.

    Raises:
        FileFormatError: If the file is not a subset, is cut off, or of a newer version.
        InputError: If `data` are others than the subset was selected on.
    """
    path = Path(path)
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give a file that `Subset.save` wrote") from None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} is not a subset: {error}") from error
    return read_subset(document, path, data)


def read_subset(document: object, path: object, data: CorrectnessData | None = None) -> Subset:
    """A subset from what `Subset.to_dict` gave, as `load_subset`; `path` is what errors call it."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise FileFormatError(
            f"{path} is not a subset but {kind_of_file(Path(str(path)), document)}; this version reads "
            f"{SCHEMA!r}, the file of `Subset.save` or --subset"
        )
    try:
        saved = SubsetFile.from_dict(document)
        saved.check()
        facts = saved.provenance.data
        settings = Settings.of_record(saved.provenance.settings, saved.arrays, facts["n_examples"])
    except MALFORMED as error:
        raise FileFormatError(f"{path} is not a complete subset: {error}") from error
    if data is not None and data.hash != facts["hash"]:
        raise InputError(
            f"{path} was selected on other data (hash {facts['hash']}, these have {data.hash}); evaluate "
            "other models with `Subset.evaluate`"
        )
    if data is not None and tuple(data.example_ids[saved.indices].tolist()) != saved.example_ids:
        raise FileFormatError(f"{path}: its indices and its example ids name different examples")
    return Subset(
        **{name: getattr(saved, name) for name in _MEMBERS},
        settings=settings,
        made=saved.provenance,
        data=data,
        _kept={} if saved.verdict is None else {"verdict": saved.verdict},
    )

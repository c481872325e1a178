"""Every method against models whose circuit is known: does a true edge score higher than any other?"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from assay.analyses.benchmark.contenders import Contender, choose_entries, take_turn
from assay.analyses.benchmark.detection import Detected, detect
from assay.analyses.benchmark.files import read_record, write_record
from assay.analyses.benchmark.targets import ABLATION, planted_task
from assay.core.errors import InputError, check_least
from assay.core.plotted import Plotted
from assay.core.record import Record, library_version, plain
from assay.discovery.edges.method import METHODS
from assay.models.planted import Planted, planted_model, planted_names
from assay.objectives import get_objective


if TYPE_CHECKING:
    import pandas as pd

OBJECTIVES = ("logit_diff", "kl")
TRUTH_N = 64  # examples of each model
GOOD, NEARLY_PERFECT = 0.95, 0.99  # AUROCs whose shares of models a summary counts
_SAME = ("n", "seed", "ablation", "dtype")  # settings of tables that may be merged

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class TruthCell(Record):
    """One method on one planted model under one objective.

    Attributes:
        model: Name of the planted model, `program/layout/extras`.
        method: Name of the competitor.
        objective: Key of the objective that was attributed.
        n_edges: Edges of the model.
        n_true: Edges of its circuit.
        found: How well the method finds it; None where it serves no such model or objective.
        reason: Why not, in the words of the method; None where it serves.
        seconds: Of the discovery; NaN where there was none.
        warnings: What the method warned of.
        details: What it reports beside its scores.
    """

    model: str
    method: str
    objective: str
    n_edges: int
    n_true: int
    found: Detected | None
    reason: str | None = None
    seconds: float = math.nan
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def auroc(self) -> float:
        """AUROC of |score|; NaN where the method did not serve."""
        return math.nan if self.found is None else self.found.auroc


@dataclass(frozen=True, kw_only=True)
class MethodTruth(Record):
    """One method and objective over all models.

    Attributes:
        method, objective: Which.
        served: Models that it served.
        of: Models that it was measured on; shares are of these, so one that it does not serve counts as
            missed, and one that it was not measured on does not count.
        good: Share of models with an AUROC of at least 0.95.
        nearly_perfect: The same for 0.99.
        median: Median AUROC of the models served; NaN where none was.
        lowest: Lowest AUROC; NaN where none was served.
        hardest: The model that has it; None where none was served.
        average_precision, recall: Means over the models served.
        seconds: Sum over the models served.
    """

    method: str
    objective: str
    served: int
    of: int
    good: float
    nearly_perfect: float
    median: float
    lowest: float
    hardest: str | None
    average_precision: float
    recall: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ModelTruth(Record):
    """The best that any method did on one model: its AUROC, and every `METHOD (OBJECTIVE)` that has it."""

    model: str
    n_edges: int
    n_true: int
    auroc: float
    best: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TruthSummary(Record):
    """A truth table in short: a row per method and objective, a row per model."""

    derived = ("lowest_best",)

    methods: tuple[MethodTruth, ...]
    models: tuple[ModelTruth, ...]

    @property
    def lowest_best(self) -> float:
        """AUROC of the best method on the model where that is lowest; NaN where a model has none."""
        values = [each.auroc for each in self.models]
        return math.nan if not values or any(math.isnan(value) for value in values) else min(values)


@dataclass(frozen=True, kw_only=True)
class TruthTable(Plotted, Record):
    """Methods judged on planted models.

    Attributes:
        cells: One per model, method and objective that were measured together; a merged table may lack some.
        settings: How they came to be, JSON-able.
    """

    drawn_by = "assay.analyses.benchmark.plots:plot_truth"
    record_header = {"format": "assay-truth-table/1"}
    derived = ("summary",)

    cells: tuple[TruthCell, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"TruthTable({len(self.models)} models, {len(self.methods)} methods, {len(self.cells)} cells)"

    @property
    def models(self) -> tuple[str, ...]:
        """Planted models, in order."""
        return tuple(dict.fromkeys(cell.model for cell in self.cells))

    @property
    def methods(self) -> tuple[str, ...]:
        """Competitors, in order."""
        return tuple(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def objectives(self) -> tuple[str, ...]:
        """Objectives, in order."""
        return tuple(dict.fromkeys(cell.objective for cell in self.cells))

    def cell(self, model: str, method: str, objective: str) -> TruthCell:
        """One cell.

        Raises:
            InputError: If the table has no such cell.
        """
        for each in self.cells:
            if (each.model, each.method, each.objective) == (model, method, objective):
                return each
        raise InputError(
            f"the table has no cell of {model!r}, {method!r}, {objective!r}; it has the methods "
            f"{', '.join(self.methods)} under {', '.join(self.objectives)} on {len(self.models)} models"
        )

    def summary(self) -> TruthSummary:
        """Shares of models that each method gets right, and the best method of each model."""
        pairs = dict.fromkeys((cell.method, cell.objective) for cell in self.cells)
        methods = tuple(self._of_method(method, objective) for method, objective in pairs)
        return TruthSummary(methods=methods, models=tuple(self._of_model(name) for name in self.models))

    def _of_method(self, method: str, objective: str) -> MethodTruth:
        cells = [cell for cell in self.cells if (cell.method, cell.objective) == (method, objective)]
        served = [cell for cell in cells if cell.found is not None]
        detections = [cell.found for cell in served if cell.found is not None]
        lowest = min(served, key=lambda cell: cell.auroc, default=None)
        n = len(cells)
        return MethodTruth(
            method=method,
            objective=objective,
            served=len(served),
            of=n,
            good=sum(each.auroc >= GOOD for each in detections) / n,
            nearly_perfect=sum(each.auroc >= NEARLY_PERFECT for each in detections) / n,
            median=median(each.auroc for each in detections) if detections else math.nan,
            lowest=math.nan if lowest is None else lowest.auroc,
            hardest=None if lowest is None else lowest.model,
            average_precision=_mean(each.average_precision for each in detections),
            recall=_mean(each.recall for each in detections),
            seconds=sum((cell.seconds for cell in served), 0.0),
        )

    def _of_model(self, model: str) -> ModelTruth:
        cells = [cell for cell in self.cells if cell.model == model]
        best = max((cell.auroc for cell in cells if cell.found is not None), default=math.nan)
        names = tuple(f"{cell.method} ({cell.objective})" for cell in cells if cell.auroc == best)
        return ModelTruth(
            model=model, n_edges=cells[0].n_edges, n_true=cells[0].n_true, auroc=best, best=names
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row per cell."""
        import pandas as pd

        blank = dict.fromkeys((each.name for each in fields(Detected)), math.nan)
        rows = []
        for cell in self.cells:
            own = {
                name: getattr(cell, name) for name in ("model", "method", "objective", "n_edges", "n_true")
            }
            measures = blank if cell.found is None else vars(cell.found)
            rows.append({**own, **measures, "seconds": cell.seconds, "reason": cell.reason})
        return pd.DataFrame(rows)

    def save(self, path: str | Path) -> Path:
        """Write the table as one JSON file, whole or not at all."""
        return write_record(path, self)

    @classmethod
    def load(cls, path: str | Path) -> "TruthTable":
        """Read what `save` wrote.

        Raises:
            FileFormatError: If the file is missing or holds something else.
        """
        return read_record(path, cls, "a table of truth")

    def merged(self, other: "TruthTable") -> "TruthTable":
        """Both tables as one; where both have a cell, that of `other` stands.

        Options may differ by method, and are kept for the methods that have cells left.

        Raises:
            InputError: If the tables differ in n, seed, ablation or dtype.
        """
        differing = [name for name in _SAME if self.settings.get(name) != other.settings.get(name)]
        if differing:
            ours, theirs = (
                ", ".join(f"{name} {table.settings.get(name)}" for name in differing)
                for table in (self, other)
            )
            raise InputError(
                f"tables of {ours} and of {theirs} cannot be merged, because their cells are not "
                "comparable; measure both with the same settings"
            )
        newer = {(cell.model, cell.method, cell.objective): cell for cell in other.cells}
        older = {(cell.model, cell.method, cell.objective): cell for cell in self.cells}
        together = older | newer
        left = {method for _, method, _ in older.keys() - newer.keys()}
        own = self.settings.get("options", {})
        options = {name: own[name] for name in own if name in left} | dict(other.settings.get("options", {}))
        models = list(dict.fromkeys((*self.models, *other.models)))
        methods = list(dict.fromkeys((*METHODS, *self.methods, *other.methods)))
        objectives = list(dict.fromkeys((*self.objectives, *other.objectives)))
        cells = sorted(
            together.values(),
            key=lambda cell: (
                models.index(cell.model),
                methods.index(cell.method),
                objectives.index(cell.objective),
            ),
        )
        settings = {**self.settings, **other.settings}
        if "options" in settings:
            settings["options"] = options
        return TruthTable(cells=tuple(cells), settings=settings)


def measure_truth(
    models: Sequence[str | Planted] | None = None,
    methods: Sequence[str] | None = None,
    objectives: Sequence[str] = OBJECTIVES,
    *,
    n: int = TRUTH_N,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> TruthTable:
    """Judge discovery methods on models whose circuit is known by construction.

    Args:
        models: Names of planted models, or planted models. Default: all of `planted_names()`.
        methods: Keys of methods, or `KEY@WORD` for a second one with options of its own. Default: all.
        objectives: Objectives to attribute, each in turn.
        n: Examples drawn from each model.
        options: Options by name of the competitor.
        batch_size: Examples per pass; default: by free memory.
        device: Where the models run; default: where they are.
        dtype: Number type of the weights of named models. Default: float32.
        seed: Root seed of examples, random scores and learned masks.
        progress: Called with (model, cells done, cells in all).

    Returns:
        A cell for every combination; one that a method refuses says why.

    Raises:
        UnknownNameError: For an unknown model, method, option or objective.
        InputError: For an empty list, or `n` below 1.

    Notes:
        Scores are by |score| and by signed score: a method can find every edge and get signs wrong.

    Example:
        >>> table = measure_truth(["induction/gpt2/bare"], ["random", "eap"], ["logit_diff"], n=8)
        >>> len(table.cells), table.cell("induction/gpt2/bare", "eap", "logit_diff").reason is None
        (2, True)
    """
    names = list(planted_names() if models is None else models)
    for what, values in (("models", names), ("objectives", list(objectives))):
        if not values:
            raise InputError(f"{what} is empty; name at least one, or remove it")
    for objective in objectives:
        get_objective(objective)
    entries = choose_entries(methods, options)
    check_least(1, n=n)
    total = len(names) * len(entries) * len(objectives)
    cells: list[TruthCell] = []
    for name in names:
        planted = planted_model(name, dtype=dtype or torch.float32) if isinstance(name, str) else name
        if device is not None:
            planted.model.module.to(device)
        task = planted_task(planted, n=n, seed=seed)
        for entry in entries:
            for objective in objectives:
                if progress is not None:
                    progress(planted.name, len(cells), total)
                cells.append(_measure(entry, planted, task, objective, batch_size=batch_size, seed=seed))
    if progress is not None:
        progress("done", total, total)
    settings: dict[str, Any] = {
        "library": library_version(),
        "n": n,
        "seed": seed,
        "ablation": ABLATION,
        "options": {entry.name: plain(entry.options) for entry in entries if entry.options},
    }
    if dtype is not None:
        settings["dtype"] = str(dtype).removeprefix("torch.")
    return TruthTable(cells=tuple(cells), settings=settings)


def _measure(
    entry: Contender, planted: Planted, task: Any, objective: str, *, batch_size: int | None, seed: int
) -> TruthCell:
    turn = take_turn(
        entry, planted.model, task, objective=objective, ablation=None, batch_size=batch_size, seed=seed
    )
    return TruthCell(
        model=planted.name,
        method=entry.name,
        objective=objective,
        n_edges=planted.model.graph.n_edges,
        n_true=len(planted.edges),
        found=None if turn.scores is None else detect(turn.scores, planted.edges),
        reason=turn.reason,
        seconds=math.nan if turn.scores is None else turn.cost.seconds,
        warnings=turn.warnings,
        details=turn.details,
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan

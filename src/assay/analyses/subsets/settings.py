"""How subsets are selected, apart from data, size and split: the solver, its options and constraints."""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Int64

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets._checks import by_name
from assay.analyses.subsets.adam import CHOICES, adam
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.header import PerModel
from assay.analyses.subsets.line import EPS, clip_of
from assay.analyses.subsets.objective import OBJECTIVES, Found
from assay.analyses.subsets.placement import check_device, device_of
from assay.analyses.subsets.splits import ModelSplit
from assay.analyses.subsets.swap import swap
from assay.core.errors import InputError, ShapeError, check_name
from assay.core.record import plain


SOLVERS: Mapping[str, Callable[..., Found]] = {"swap": swap, "adam": adam}
REFERENCES = ("greedy", "exhaustive")  # solvers of the tests
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "swap": (),
    "adam": ("trials", "epochs", "patience", "penalty", "keep", "search", "parameters", "precision"),
}
_WRITTEN = ("solver", "objective", "strata_name", "eps", "clip", "seed")
_HASHED = ("strata", "allowed", "must_include")


class SelectionOptions(TypedDict, total=False):
    """Keywords of `assay.oodselect` and `assay.selection_path`, which says what they are.

    The last eight are of the solver `adam`.
    """

    solver: str
    split: str | ModelSplit | Mapping[str, Any] | Sequence[Any] | None
    compat: bool
    seed: int
    groups: PerModel | None
    families: PerModel | None
    strata: str | Sequence[object] | np.ndarray | None
    allowed: np.ndarray | Sequence[bool] | None
    must_include: np.ndarray | Sequence[int] | None
    objective: str
    layout: str
    device: str | None
    clip: str
    eps: float | int
    trials: int
    epochs: int
    patience: int
    penalty: str
    keep: str
    search: str
    parameters: Mapping[str, float | int] | None
    precision: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """How subsets are selected, apart from data, size and split.

    Attributes:
        solver: `swap` or `adam`.
        objective: `r`: the most negative correlation; `r2`: the weakest.
        strata: Stratum of each example `[N]`: each keeps its share; None for no quotas.
        strata_name: What the strata are, for the record.
        stratum_names: Of each code, for messages.
        allowed: Boolean `[N]`: examples that may be selected; None for all.
        must_include: Examples that are selected in any case.
        layout: Of the matrix: `auto`, `dense`, `packed` or `accelerator`.
        device: Of the accelerator.
        eps: Clip of accuracies.
        clip: Clip of reported subset accuracies: `eps`, or `half` an example.
        seed: Root seed of all random draws.
        options: Of the solver alone.
    """

    solver: str = "swap"
    objective: str = "r"
    strata: Int64[np.ndarray, " n"] | None = None
    strata_name: str | None = None
    stratum_names: tuple[str, ...] = ()
    allowed: np.ndarray | None = None
    must_include: Int64[np.ndarray, " k"] | None = None
    layout: str = "auto"
    device: str | None = None
    eps: float | int = EPS
    clip: str = "eps"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def on_accelerator(self) -> bool:
        """Whether an accelerator holds the matrix: by its layout, or by a device that is not the CPU."""
        named = self.device is not None and str(self.device) != "cpu"
        return self.layout == "accelerator" or (self.layout == "auto" and named)

    def pool(self, n_examples: int) -> Places:
        """Examples that may be selected of `n_examples`, ascending."""
        return np.arange(n_examples) if self.allowed is None else np.flatnonzero(self.allowed)

    def record(self) -> dict[str, Any]:
        """JSON of what decides the selection, arrays as hashes.

        Layout and device do not, but for `adam` a kind of device that is not the CPU: its sums round
        differently. It says where the selection was made, and `of_record` does not ask for it again.
        """
        record: dict[str, Any] = {name: getattr(self, name) for name in _WRITTEN}
        for name in _HASHED:
            array = getattr(self, name)
            record[name] = None if array is None else hashlib.sha256(array.tobytes()).hexdigest()[:16]
        if self.solver == "adam" and self.on_accelerator:
            kind = device_of(self.device).type
            record |= {} if kind == "cpu" else {"device": kind}
        finite: dict[str, Any] = plain(record | {"options": dict(self.options)})
        return finite

    @classmethod
    def of_record(
        cls, record: Mapping[str, Any], arrays: Mapping[str, Places], n_examples: int
    ) -> "Settings":
        """The inverse of `record` and `arrays`."""
        fields: dict[str, Any] = {name: record[name] for name in (*_WRITTEN, "options")} | dict(arrays)
        if "allowed" in arrays:
            fields["allowed"] = _mask(arrays["allowed"], n_examples)
        return cls(**fields)

    def arrays(self) -> dict[str, Places]:
        """What `record` only has the hashes of: strata, and the places of allowed and included examples."""
        columns = {name: getattr(self, name) for name in _HASHED}
        if self.allowed is not None:
            columns["allowed"] = np.flatnonzero(self.allowed)
        return {name: values for name, values in columns.items() if values is not None}


def make_settings(
    data: CorrectnessData,
    *,
    strata: Any = None,
    allowed: Any = None,
    must_include: Any = None,
    **options: Any,
) -> Settings:
    """Settings with their arrays resolved against the data and every name checked.

    Args:
        data: What is selected from.
        strata: A column of the data by name, or a stratum per example.
        allowed: Mask or places.
        must_include: Places.
        options: All other fields of `Settings`, and options of the solver.

    Raises:
        InputError: For an unknown name, or an array that does not fit the data.
    """
    common = {name: options.pop(name) for name in list(options) if name in Settings.__dataclass_fields__}
    codes, strata_name, stratum_names = _strata(data, strata)
    if hasattr(allowed, "iloc") and allowed.dtype.kind == "b":  # a series
        allowed = by_name(allowed, data.example_ids.tolist(), "allowed", "example")
    settings = Settings(
        strata=codes,
        strata_name=strata_name,
        stratum_names=stratum_names,
        allowed=None if allowed is None else _mask(allowed, data.n_examples),
        must_include=None if must_include is None else _places(must_include, data.n_examples, "must_include"),
        options=_changed(common.get("solver", "swap"), options),
        **common,
    )
    if settings.allowed is not None and settings.must_include is not None:
        banned = settings.must_include[~settings.allowed[settings.must_include]]
        if len(banned):
            raise InputError(
                f"must_include holds example {str(data.example_ids[banned[0]])!r}, which allowed excludes "
                f"({len(banned)} in total); --must-include and --allowed must agree"
            )
    _check(settings)
    return settings


def _changed(solver: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a solver without those that are as they are by default."""
    if solver not in SOLVERS:
        return dict(options)
    parameters = inspect.signature(SOLVERS[solver]).parameters
    return {
        name: value
        for name, value in options.items()
        if name not in OPTIONS[solver] or value != parameters[name].default
    }


def _check(settings: Settings) -> None:
    """Raises `InputError` for an unknown name, a value out of range, or settings that do not go together."""
    clip_of(settings.clip, 2, settings.eps)
    if settings.seed < 0:
        raise InputError(f"seed is {settings.seed}; expected 0 or more")
    if settings.solver in REFERENCES:
        raise InputError(
            f"solver is {settings.solver!r}, which is now only a test reference; use 'swap' (the default) "
            "or 'adam' (as published)"
        )
    check_name("solver", settings.solver, SOLVERS)
    check_name("objective of a selection", settings.objective, OBJECTIVES)
    for name, value in settings.options.items():
        owner = next((each for each, names in OPTIONS.items() if name in names), settings.solver)
        if owner != settings.solver:
            raise InputError(
                f"{name} is an option of the solver {owner!r}, but the solver is {settings.solver!r}; remove "
                f"{name}, or choose the other solver: solver={owner!r}, --solver {owner}"
            )
        check_name(f"option of the solver {owner!r}", name, OPTIONS[owner])
        if name in CHOICES:
            check_name(name, value, CHOICES[name])
    check_device(settings.device, settings.layout)


def _strata(
    data: CorrectnessData, strata: Any
) -> tuple[Int64[np.ndarray, " n"] | None, str | None, tuple[str, ...]]:
    """Codes, what the strata are, and the name of each code."""
    if strata is None:
        return None, None, ()
    name, column = "given", np.asarray(by_name(strata, data.example_ids.tolist(), "strata", "example"))
    if isinstance(strata, str):
        columns = {**data.meta, **({} if data.labels is None else {"label": data.labels})}
        check_name("column to stratify by", strata, columns)
        name, column = strata, columns[strata]
    if column.shape != (data.n_examples,):
        raise ShapeError(
            f"strata has shape {column.shape}; expected one stratum per example ({data.n_examples})"
        )
    missing = [each for each in column.tolist() if each is None or each != each]
    if missing:
        raise InputError(f"strata holds {missing[0]} {len(missing)} times; give every example a stratum")
    values = np.unique(column).tolist()
    if name == "label" and data.labels is not None and data.label_names is not None:
        values = [data.label_names[value] for value in values]
    codes = np.unique(column, return_inverse=True)[1].astype(np.int64)
    return codes, name, tuple(map(str, values))


def _mask(allowed: Any, n_examples: int) -> np.ndarray:
    mask = np.asarray(allowed)
    if mask.dtype != bool:
        places = _places(mask, n_examples, "allowed")
        mask = np.zeros(n_examples, dtype=bool)
        mask[places] = True
    if mask.shape != (n_examples,):
        raise ShapeError(f"allowed has shape {mask.shape}; expected a mask over the {n_examples} examples")
    return mask


def _places(examples: Any, n_examples: int, name: str) -> Places:
    places = np.asarray(examples)
    if places.ndim != 1 or (len(places) and places.dtype.kind not in "iu"):
        raise InputError(
            f"{name} is {places.dtype} of shape {places.shape}; expected a list of example positions"
        )
    outside = places[(places < 0) | (places >= n_examples)]
    if len(outside):
        raise InputError(f"{name} holds {outside[0]}, but there are {n_examples} examples, counted from 0")
    if len(np.unique(places)) < len(places):
        raise InputError(f"{name} names an example more than once")
    return places.astype(np.int64)

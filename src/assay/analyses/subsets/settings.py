"""How subsets are selected, apart from data, size and split: the solver, its options and constraints."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int64

from assay.analyses.subsets.adam import adam
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import EPS, clip_of
from assay.analyses.subsets.objective import OBJECTIVES, Found
from assay.analyses.subsets.placement import check_device
from assay.analyses.subsets.swap import swap
from assay.core.errors import InputError, ShapeError, unknown_name
from assay.core.record import plain


SOLVERS: Mapping[str, Callable[..., Found]] = {"swap": swap, "adam": adam}
REFERENCES = ("greedy", "exhaustive")  # solvers of the tests
_SET_HERE = frozenset(
    ("train", "id_train", "size", "validation", "id_validation", "start", "fixed", "keep_path")
)


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
            array = getattr(self, name)
            record[name] = None if array is None else hashlib.sha256(array.tobytes()).hexdigest()[:16]
        finite: dict[str, Any] = plain(record | {"options": dict(self.options)})
        return finite

    @classmethod
    def of_record(
        cls, record: Mapping[str, Any], arrays: Mapping[str, Int64[np.ndarray, " _"]], n_examples: int
    ) -> "Settings":
        """The inverse of `record` and `arrays`."""
        names = ("solver", "objective", "strata_name", "eps", "clip", "seed", "options")
        given: dict[str, Any] = {name: record[name] for name in names} | dict(arrays)
        if "allowed" in arrays:
            given["allowed"] = _mask(arrays["allowed"], n_examples)
        return cls(**given)

    def arrays(self) -> dict[str, Int64[np.ndarray, " _"]]:
        """What `record` only has the hashes of: strata, and the places of allowed and included examples."""
        arrays = {
            "strata": self.strata,
            "allowed": None if self.allowed is None else np.flatnonzero(self.allowed),
            "must_include": self.must_include,
        }
        return {name: values for name, values in arrays.items() if values is not None}


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
        raise InputError(f"{name} is not a list of places of examples: {found.dtype} of shape {found.shape}")
    outside = found[(found < 0) | (found >= n_examples)]
    if len(outside):
        raise InputError(f"{name} holds {outside[0]}; there are {n_examples} examples, counted from 0")
    if len(np.unique(found)) < len(found):
        raise InputError(f"{name} names an example more than once")
    return found.astype(np.int64)

"""Parts of the models: train to select on, validation to stop by, test to report, touched once."""

import math
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from assay.analyses.subsets.copies import copies_note, joined, unit_codes
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import MIN_MODELS, Units
from assay.core.errors import AssayWarning, InputError, check_name
from assay.core.random import stream
from assay.core.record import Record


PerUnit = Int64[np.ndarray, " units"]
PARTS = ("train", "validation", "test")
KINDS = ("family", "group", "random")
TEST_SHARE = 0.2
MIN_UNITS = 2  # in any part
COMPAT_SEED = 42
FEW_MODELS = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelSplit(Record):
    """Which models are selected on, validated on and reported on.

    Attributes:
        train: Places of the models, int64.
        validation: Places of the models, int64.
        test: Places of the models, int64.
        kind: `group`, `family`, `random`, `given`, or `fold` of a cross-fit.
        seed: Behind the shuffle.
        compat: Whether it follows the authors' code.
    """

    train: Int64[np.ndarray, " n_train"]
    validation: Int64[np.ndarray, " n_validation"]
    test: Int64[np.ndarray, " n_test"]
    kind: str = "given"
    seed: int = 0
    compat: bool = False

    @classmethod
    def by_code(cls, part_of: Units, **facts: Any) -> "ModelSplit":
        """The split of models whose part is a place of `PARTS`."""
        places: dict[str, Any] = {name: np.flatnonzero(part_of == part) for part, name in enumerate(PARTS)}
        return cls(**places, **facts)

    def part(self, name: str) -> Int64[np.ndarray, " n"]:
        """Places of the models of `train`, `validation` or `test`."""
        return np.asarray(getattr(self, name))

    def straddling(self, units: Units) -> int:
        """How many units have models in more than one part."""
        parts_of = Counter(unit for name in PARTS for unit in np.unique(units[self.part(name)]).tolist())
        return sum(n > 1 for n in parts_of.values())


def interval_unit_kind(data: CorrectnessData, split: ModelSplit) -> str:
    """What intervals on a part draw: families after a split by family, else training runs where known."""
    if data.groups is not None and not (split.kind == "family" and data.families is not None):
        return "group"
    return data.unit_kind


def split_models(
    data: CorrectnessData, split: str | ModelSplit | None = None, *, seed: int = 0, compat: bool = False
) -> ModelSplit:
    """Train, validation and test models, 60 : 20 : 20.

    `group` and `family` keep the checkpoints of a training run, or all models of a family, and copies in one
    part: units, in the order of their first models, are shuffled by `numpy.random.default_rng(seed)` and fill
    test until it holds a fifth of the models, then validation, then train. Where a part would then hold fewer
    than 2 units or 4 models, units are dealt again, the largest first; each part holds as many wherever any
    deal gives them to it.

    Args:
        data: Enough models for 4 in each part.
        split: `group`, `family`, `random` or a `ModelSplit`. Default: `random` with `compat`, else `group`
            where groups are known, else `family` where families are, else every model as a run of its own.
        seed: Of the shuffle.
        compat: The indices of the authors' code, whose seed is 42 whatever `seed` is; needs `random`.

    Raises:
        InputError: If a part would hold fewer than 4 models or 2 units, models of a given split overlap or do
            not exist, or what `split` asks for is not known.

    Warns:
        AssayWarning: With fewer than 20 models.
    """
    if data.n_models < FEW_MODELS:
        few = f"{data.n_models} models: with fewer than {FEW_MODELS} a correlation over models is unreliable"
        warnings.warn(few, AssayWarning, stacklevel=3)
    if isinstance(split, ModelSplit):
        models, counts = np.unique(np.concatenate([split.part(name) for name in PARTS]), return_counts=True)
        if len(odd := models[(counts > 1) | (models < 0) | (models >= data.n_models)]):
            raise InputError(f"split names model {odd[0]} twice or beyond the {data.n_models} models")
        return _checked(split)
    if split is None:
        units_known = data.families is not None and data.groups is None
        split = "random" if compat else "family" if units_known else "group"
    check_name("split of the models", split, KINDS)
    if compat and split != "random":
        raise InputError(f"compat=True follows the authors' random split; got split={split!r}")
    if split == "random":
        return _checked(_random(data.n_models, seed, compat=compat))
    names = data.families if split == "family" else data.groups
    if split == "family" and names is None:
        raise InputError("split='family' (--split family) needs families= (--families), one name per model")
    units = joined(np.arange(data.n_models) if names is None else unit_codes(names), data.copies)
    counts = np.bincount(units)
    order = np.random.default_rng(seed).permutation(len(counts))
    part_of = _in_turn(order, counts)
    if not _filled(part_of, counts):
        part_of = _largest_first(order[np.argsort(-counts[order], kind="stable")], counts)
    if not _filled(part_of, counts):
        word, note = {"family": "families", "group": "groups"}[split], copies_note(data.copies)
        parts = ", ".join(f"{name} {np.sum(part_of == part)}" for part, name in enumerate(PARTS))
        raise InputError(
            f"split={split!r} (--split {split}) leaves too few {word} or models in a part ({parts} of "
            f"{len(counts)}; each needs at least {MIN_UNITS} with {MIN_MODELS} models). Give more of them, "
            f"or choose another split. {note or ''}".rstrip(". ")
        )
    return ModelSplit.by_code(part_of[units], kind=split, seed=seed)


def _random(n_models: int, seed: int, *, compat: bool) -> ModelSplit:
    n_test = math.ceil(TEST_SHARE * n_models)
    n_validation = math.ceil(0.25 * (n_models - n_test))
    rng = stream(seed, "model-split")

    # The legacy generator, seeded anew for each permutation, is what the authors' code draws from.
    def permuted(n: int) -> np.ndarray:
        return np.asarray((np.random.RandomState(COMPAT_SEED) if compat else rng).permutation(n), np.int64)

    test, rest = np.split(permuted(n_models), [n_test])
    validation, train = np.split(rest[permuted(len(rest))], [n_validation])
    seed = COMPAT_SEED if compat else seed
    return ModelSplit(train=train, validation=validation, test=test, kind="random", seed=seed, compat=compat)


def _filled(part_of: PerUnit, counts: PerUnit) -> bool:
    """Whether each part has the fewest units and models that it needs."""
    n_units, n_models = (np.bincount(part_of, each, len(PARTS)) for each in (None, counts))
    return bool((n_units >= MIN_UNITS).all() and (n_models >= MIN_MODELS).all())


def _in_turn(order: PerUnit, counts: PerUnit) -> PerUnit:
    """The part of each unit, as a place of `PARTS`: test is filled, then validation, then train."""
    part_of, sizes = np.zeros(len(counts), dtype=np.int64), [0, 0, 0]
    for unit in order.tolist():
        part = next((part for part in (2, 1) if sizes[part] < TEST_SHARE * counts.sum()), 0)
        part_of[unit] = part
        sizes[part] += int(counts[unit])
    return part_of


def _largest_first(order: PerUnit, counts: PerUnit) -> PerUnit:
    """The part of each unit, in descending order of size: each to the part that lacks most.

    First of what any part needs. A unit counts there as fewer models than are needed, so that a part with
    enough has two units; then what a part lacks is 4 models at most, and taking the largest unit for the part
    with fewest meets all three needs wherever that is possible. Then of its share of the models.
    """
    part_of, models = np.zeros(len(counts), dtype=np.int64), np.zeros(len(PARTS))
    needed, shares = np.zeros(len(PARTS)), np.array([1 - 2 * TEST_SHARE, TEST_SHARE, TEST_SHARE])
    for unit in order.tolist():
        lacking = shares * counts.sum() - models
        part_of[unit] = part = int(np.lexsort((-lacking, np.minimum(needed, MIN_MODELS)))[0])
        models[part] += counts[unit]
        needed[part] += min(int(counts[unit]), MIN_MODELS - 1)
    return part_of


def _checked(split: ModelSplit, copies: Units | None = None) -> ModelSplit:
    for name in PARTS:
        places = split.part(name)
        n = len(places if copies is None else np.unique(copies[places]))
        if n < MIN_MODELS:
            raise InputError(f"the {name} part holds {n} models; each part needs at least {MIN_MODELS}")
    return split


def folds(units: Units, k: int = 5, *, seed: int = 0, copies: Units | None = None) -> list[ModelSplit]:
    """Splits for cross-fitting: every model is tested once, units stay whole.

    Units go to `k` folds, the largest first, equal ones in an order that `seed` draws, each to the fold with
    fewest models so far (ties: lower fold). Split j tests on fold j, validates on fold j + 1 and trains on
    the rest.

    Raises:
        InputError: If there are fewer units than folds, fewer than 3 folds, or fewer than 4 models in a fold,
            each unit of `copies` counted once.
    """
    names, of_model, counts = np.unique(units, return_inverse=True, return_counts=True)
    if not len(PARTS) <= k <= len(names):
        raise InputError(f"{k} folds of {len(names)} units; expected at least {len(PARTS)}, each with a unit")
    fold_of, sizes = np.empty(len(names), dtype=np.int64), np.zeros(k, dtype=np.int64)
    order = stream(seed, "model-folds").permutation(len(names))
    for place in order[np.argsort(-counts[order], kind="stable")]:
        fold_of[place] = int(np.argmin(sizes))
        sizes[fold_of[place]] += counts[place]
    of_model, places = fold_of[of_model], np.arange(k)[:, None]
    # Test is the fold itself, validation the next one.
    codes = 2 * (of_model == places) + (of_model == (places + 1) % k)
    return [_checked(ModelSplit.by_code(each, kind="fold", seed=seed), copies) for each in codes]

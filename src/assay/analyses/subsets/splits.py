"""Parts of the models: train to select on, validation to stop by, test to report, touched once."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.analyses.subsets._arrays import Places, Units
from assay.analyses.subsets.line import MIN_MODELS
from assay.core.errors import AssayWarning, InputError, ShapeError, check_name
from assay.core.random import stream
from assay.core.record import Record


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
    kind: str
    seed: int = 0
    compat: bool = False

    def part(self, name: str) -> Int64[np.ndarray, " n"]:
        """Places of the models of `train`, `validation` or `test`."""
        check_name("part of the models", name, PARTS)
        places: Int64[np.ndarray, " n"] = getattr(self, name)
        return places

    def n_units(self, name: str, units: Units) -> int:
        """How many units the models of a part come from."""
        return len(np.unique(units[self.part(name)]))

    def straddling(self, units: Units) -> int:
        """How many units have models in more than one part."""
        parts_of = Counter(unit for name in PARTS for unit in np.unique(units[self.part(name)]).tolist())
        return sum(n > 1 for n in parts_of.values())


def unit_codes(names: Sequence[object] | np.ndarray) -> Units:
    """Units as codes 0, 1, ... in the order of their first models, whatever the names."""
    _, first, codes = np.unique(np.asarray(names), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes].astype(np.int64)


def connected(n: int, pairs: Int64[np.ndarray, "p 2"]) -> Units:
    """Codes of n models such that pairs share one, as do pairs of pairs."""
    links = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    return unit_codes(connected_components(links, directed=False)[1])


def joined(units: Units, copies: Units) -> Units:
    """Units that also hold copies together."""
    firsts = [np.unique(each, return_index=True)[1][each] for each in (units, copies)]
    pairs = [np.stack([np.arange(len(units)), first], axis=1) for first in firsts]
    return connected(len(units), np.concatenate(pairs))


def copies_note(copies: Units) -> str | None:
    """How many models are copies of how many; None without copies."""
    counts = np.bincount(copies)
    several = counts[counts > 1]
    if not len(several):
        return None
    return (
        f"{several.sum()} models are copies of {len(several)}: {len(counts)} units. Their answers differ far "
        "less than those of separately trained models, so copies count as one, whatever names or groups say"
    )


def split_models(
    n_models: int,
    *,
    split: str | ModelSplit | Mapping[str, Any] | Sequence[Any] | None = None,
    seed: int = 0,
    compat: bool = False,
    groups: Sequence[object] | np.ndarray | None = None,
    families: Sequence[object] | np.ndarray | None = None,
    copies: Units | None = None,
) -> ModelSplit:
    """Train, validation and test models, 60 : 20 : 20.

    `group` and `family` keep the checkpoints of a training run, or all models of a family, and copies in one
    part: units, in the order of their first models, are shuffled by `numpy.random.default_rng(seed)` and fill
    test until it holds a fifth of the models, then validation, then train.

    Args:
        n_models: Number of models M: enough for 4 in each part.
        split: `group`, `family`, `random`, a `ModelSplit`, or the places of the models: a mapping of `train`,
            `validation` (or `val`) and `test`, or three sequences in that order. Default: `random` with
            `compat`, else `group` where groups are given, else `family` where families are, else every model
            as a run of its own.
        seed: Of the shuffle.
        compat: The indices of the authors' code, whose seed is 42 whatever `seed` is; needs `random`.
        groups: Training run of each model.
        families: Architecture family of each model.
        copies: Unit of each model that is kept whole in any case (`find_copies`).

    Raises:
        InputError: If a part would hold fewer than 4 models or 2 units, models of a given split overlap or do
            not exist, or what `split` asks for is not known.

    Warns:
        AssayWarning: With fewer than 20 models.
    """
    if n_models < FEW_MODELS:
        warnings.warn(
            f"{n_models} models: with fewer than {FEW_MODELS} a correlation over models is unreliable",
            AssayWarning,
            stacklevel=3,
        )
    if split is not None and not isinstance(split, str):
        return _given(split, n_models)
    if split is None:
        split = "random" if compat else "family" if families is not None and groups is None else "group"
    check_name("split of the models", split, KINDS)
    if compat and split != "random":
        raise InputError(f"compat=True follows the authors' random split; got split={split!r}")
    if split == "random":
        return _checked(_random(n_models, seed, compat=compat))
    names: Sequence[object] | np.ndarray | None = families if split == "family" else groups
    if split == "family" and names is None:
        raise InputError(
            "split='family' (--split family) needs families= (--families), one name per model; give them, or "
            "split='group' (--split group)"
        )
    names = np.arange(n_models) if names is None else np.asarray(names)
    if len(names) != n_models:
        raise ShapeError(
            f"{split} names {len(names)} models, but there are {n_models}; give one name per model"
        )
    return _by_units(
        unit_codes(names), seed, kind=split, copies=np.arange(n_models) if copies is None else copies
    )


def _given(split: ModelSplit | Mapping[str, Any] | Sequence[Any], n_models: int) -> ModelSplit:
    parts = split if isinstance(split, ModelSplit) else _listed(split, n_models)
    every = np.concatenate([parts.part(name) for name in PARTS])
    outside = every[(every < 0) | (every >= n_models)]
    if len(outside):
        raise InputError(f"split names model {outside[0]}, but there are {n_models}, counted from 0")
    models, counts = np.unique(every, return_counts=True)
    if len(models) < len(every):
        raise InputError(f"split names model {models[counts > 1][0]} more than once; parts must not overlap")
    return _checked(parts)


def _listed(split: Mapping[str, Any] | Sequence[Any], n_models: int) -> ModelSplit:
    """A split from places or masks of the models of each part."""
    if not isinstance(split, Mapping):
        if len(split) != len(PARTS):
            raise InputError(f"split holds {len(split)} parts; give train, validation and test")
        split = dict(zip(PARTS, split, strict=True))
    named: dict[str, Any] = {
        "validation" if name == "val" else str(name): np.asarray(part) for name, part in split.items()
    }
    if sorted(named) != sorted(PARTS):
        raise InputError(f"split has the parts {', '.join(sorted(named))}; give {', '.join(PARTS)}")
    for name, part in named.items():
        if part.dtype == bool and part.shape == (n_models,):
            part = np.flatnonzero(part)
        elif part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
            raise InputError(
                f"split[{name!r}] is {part.dtype} {part.shape}; expected a list of model positions"
            )
        named[name] = part.astype(np.int64)
    parts: dict[str, Any] = named
    return ModelSplit(**parts, kind="given")


def _random(n_models: int, seed: int, *, compat: bool) -> ModelSplit:
    n_test = math.ceil(TEST_SHARE * n_models)
    n_validation = math.ceil(0.25 * (n_models - n_test))
    rng = stream(seed, "model-split")

    def permuted(n: int) -> np.ndarray:
        # The legacy generator, seeded anew for each permutation, is what the authors' code draws from.
        order = (np.random.RandomState(COMPAT_SEED) if compat else rng).permutation(n)
        return np.asarray(order, dtype=np.int64)

    shuffled = permuted(n_models)
    rest = shuffled[n_test:]
    rest = rest[permuted(len(rest))]
    return ModelSplit(
        train=rest[n_validation:],
        validation=rest[:n_validation],
        test=shuffled[:n_test],
        kind="random",
        seed=COMPAT_SEED if compat else seed,
        compat=compat,
    )


def _by_units(units: Units, seed: int, *, kind: str, copies: Units) -> ModelSplit:
    units = joined(units, copies)
    names, counts = np.unique(units, return_counts=True)
    wanted = TEST_SHARE * len(units)
    parts: dict[str, list[int]] = {name: [] for name in PARTS}
    sizes = dict.fromkeys(PARTS, 0)
    for unit in np.random.default_rng(seed).permutation(names):
        part = next((name for name in ("test", "validation") if sizes[name] < wanted), "train")
        parts[part].append(int(unit))
        sizes[part] += int(counts[np.searchsorted(names, unit)])
    if min(map(len, parts.values())) < MIN_UNITS:
        word = {"family": "families", "group": "groups"}[kind]
        got = ", ".join(f"{name} {len(part)}" for name, part in parts.items())
        raise InputError(
            f"split={kind!r} (--split {kind}) leaves too few {word} in a part ({got} of {len(names)}; each "
            f"needs at least {MIN_UNITS}). Give more of them, or choose another split"
            + (f". {note}" if (note := copies_note(copies)) else "")
        )
    places: dict[str, Any] = {name: np.flatnonzero(np.isin(units, part)) for name, part in parts.items()}
    return _checked(ModelSplit(**places, kind=kind, seed=seed))


def _checked(split: ModelSplit, copies: Units | None = None) -> ModelSplit:
    for name in PARTS:
        n = len(split.part(name)) if copies is None else split.n_units(name, copies)
        if n < MIN_MODELS:
            raise InputError(
                f"the {name} part holds {n} models; each part needs at least "
                f"{MIN_MODELS}. Give more models, or another split"
            )
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
    names, counts = np.unique(units, return_counts=True)
    if k < len(PARTS):
        raise InputError(f"{k} folds cannot train, validate and test; expected at least {len(PARTS)}")
    if len(names) < k:
        raise InputError(f"{len(names)} units cannot fill {k} folds; each fold needs at least one unit")
    fold_of = np.empty(len(names), dtype=np.int64)
    sizes = np.zeros(k, dtype=np.int64)
    order = stream(seed, "model-folds").permutation(len(names))
    for place in order[np.argsort(-counts[order], kind="stable")]:
        fold_of[place] = int(np.argmin(sizes))
        sizes[fold_of[place]] += counts[place]
    of_model = fold_of[np.searchsorted(names, units)]
    splits = []
    for fold in range(k):
        test, validation = of_model == fold, of_model == (fold + 1) % k
        masks = {"train": ~(test | validation), "validation": validation, "test": test}
        parts: dict[str, Any] = {name: np.flatnonzero(mask) for name, mask in masks.items()}
        splits.append(_checked(ModelSplit(**parts, kind="fold", seed=seed), copies))
    return splits


def halves(
    models: Places, units: Units, *, seed: int = 0
) -> tuple[Int64[np.ndarray, " a"], Int64[np.ndarray, " b"]]:
    """The models in two halves that share no unit.

    Args:
        models: Places of the models to halve.
        units: Unit of every model, not only of those.
        seed: Of the shuffle of the units; they go to the first half until it holds half of the models.

    Raises:
        InputError: If a half would hold fewer than 4 models.
    """
    names, counts = np.unique(units[models], return_counts=True)
    order = stream(seed, "model-halves").permutation(len(names))
    before = np.cumsum(counts[order]) - counts[order]
    in_first = np.isin(units[models], names[order[before < len(models) / 2]])
    first, second = models[in_first], models[~in_first]
    if min(len(first), len(second)) < MIN_MODELS:
        raise InputError(
            f"halves of {len(models)} models in {len(names)} units hold {len(first)} and {len(second)}; "
            f"each needs at least {MIN_MODELS}"
        )
    return first, second

"""What a selection may hold: allowed and compulsory examples, quotas of strata, and the swaps they leave."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer, Real

from assay.analyses.subsets._arrays import Places
from assay.core.errors import InputError


class Pairs(NamedTuple):
    """Members and outsiders to be exchanged, position by position, the largest gain first."""

    leaving: Int64[np.ndarray, " k"]
    entering: Int64[np.ndarray, " k"]


def stratum_quota(strata: Integer[np.ndarray, " n"], size: int) -> Int64[np.ndarray, " strata"]:
    """Members per stratum in proportion to its share, by largest remainder; ties to the lower stratum.

    Args:
        strata: Stratum of every example of the pool, codes >= 0.
        size: Members in all, at most the pool.

    Returns:
        One number per code up to the largest; they sum to `size` and none exceeds its stratum.

    Raises:
        InputError: If `size` is larger than the pool.

    Example:
        >>> stratum_quota(np.array([0, 0, 0, 1, 1, 2]), 4).tolist()
        [2, 1, 1]
    """
    if not 0 <= size <= len(strata):
        raise InputError(f"size is {size}; these strata hold 0 to {len(strata)} examples")
    present = np.bincount(strata).astype(np.int64)
    quota, remainder = np.divmod(present * size, max(1, len(strata)))
    quota[np.argsort(-remainder, kind="stable")[: size - int(quota.sum())]] += 1
    return quota


class Pool:
    """The examples that a selection of `size` may come from.

    Args:
        n_examples: N.
        size: S.
        strata: Stratum code (>= 0) of every example, or None.
        stratum_names: Of each code, for messages; empty where only codes are known.
        allowed: Which examples may be selected; None is all.
        locked: By argument name, examples that are always selected.

    Raises:
        InputError: If no selection meets all of them; the message says which.
    """

    def __init__(
        self,
        n_examples: int,
        size: int,
        *,
        strata: Integer[np.ndarray, " strata"] | None = None,
        stratum_names: Sequence[str] = (),
        allowed: Bool[np.ndarray, " mask"] | None = None,
        locked: Mapping[str, Integer[np.ndarray, " _"] | None],
    ):
        if not 1 <= size <= n_examples:
            raise InputError(f"size is {size}; choose between 1 and the {n_examples} examples")
        self.n_examples, self.size = n_examples, size
        self.allowed = np.ones(n_examples, dtype=bool) if allowed is None else allowed
        self.locked = np.zeros(n_examples, dtype=bool)
        for name, examples in locked.items():
            if examples is not None:
                self.locked[self.checked(examples, name)] = True
        if self.allowed.sum() < size:
            raise InputError(f"size is {size}, but allowed leaves only {self.allowed.sum()} examples")
        if self.locked.sum() > size:
            raise InputError(
                f"size is {size}, but {self._names(locked)} already holds {self.locked.sum()} examples"
            )
        self.strata, self.quota = None, np.array([size], dtype=np.int64)
        if strata is not None:
            self.strata = strata.astype(np.int64)
            n_strata = len(np.unique(self.strata[self.allowed]))
            if n_strata > size:
                raise InputError(
                    f"size is {size}, but strata has {n_strata} values: some strata would get no example. "
                    "Merge values, or choose a larger size"
                )
            self._divide(self._names(locked), stratum_names, nested=locked.get("fixed") is not None)
        # A sort by this many bits of index below a whole gradient is the stable sort by gradient.
        self._bits = n_examples.bit_length()

    @staticmethod
    def _names(locked: Mapping[str, np.ndarray | None]) -> str:
        return " and ".join(name for name, examples in locked.items() if examples is not None)

    def checked(self, examples: Integer[np.ndarray, " k"], name: str) -> Places:
        """At most `size` different examples that may be selected, else an error that names them."""
        examples = np.unique(examples.astype(np.int64))
        if not self.allowed[examples].all():
            banned = examples[~self.allowed[examples]]
            raise InputError(
                f"{name} holds example {banned[0]}, which allowed excludes ({len(banned)} in total)"
            )
        if len(examples) > self.size:
            raise InputError(f"size is {self.size}, but {name} holds {len(examples)} examples")
        return examples

    def _divide(self, names: str, stratum_names: Sequence[str], *, nested: bool) -> None:
        assert self.strata is not None
        n_strata = int(self.strata.max()) + 1
        quota = stratum_quota(self.strata[self.allowed], self.size)
        self.quota = np.pad(quota, (0, n_strata - len(quota)))
        n_locked = np.bincount(self.strata[self.locked], minlength=n_strata)
        if nested:
            self._keep_held(n_locked)
        if (over := np.flatnonzero(n_locked > self.quota)).size:
            stratum = repr(stratum_names[over[0]]) if stratum_names else over[0]
            raise InputError(
                f"{names} holds {n_locked[over[0]]} examples of stratum {stratum}, whose quota at size "
                f"{self.size} is {self.quota[over[0]]}; lock fewer of them or raise size"
            )

    def _keep_held(self, held: Int64[np.ndarray, " strata"]) -> None:
        """Largest remainders can take a place from a stratum as the size grows; members of a nested set stay.

        Strata that hold more than their quota keep what they hold; the others give way, those furthest above
        what they hold first, ties to the lower stratum.
        """
        self.quota = np.maximum(self.quota, held)
        for _ in range(int(self.quota.sum()) - self.size):
            self.quota[np.argmax(self.quota - held)] -= 1

    def lowest(self, scores: Real[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """The selection of lowest scores: locked examples, then by quota; ties to the lower index."""
        inside = self.locked.copy()
        free = np.flatnonzero(self.allowed & ~self.locked)
        free = free[np.argsort(scores[free], kind="stable")]
        if self.strata is None:
            inside[free[: self.size - int(inside.sum())]] = True
            return inside
        missing = self.quota - np.bincount(self.strata[inside], minlength=len(self.quota))
        free, rank = self._by_stratum(free)
        inside[free[rank < missing[self.strata[free]]]] = True
        return inside

    def pairs(self, gradient: Real[np.ndarray, " n"], inside: Bool[np.ndarray, " n"], block: int) -> Pairs:
        """At most `block` exchanges that lower the linearised objective.

        The members of largest and the outsiders of smallest gradient, paired by rank, inside strata; ties go
        to the lower index, between strata to the lower stratum.

        Args:
            gradient: Whole numbers below 2**40.
            inside: The members.
            block: Largest number of pairs.
        """
        whole = gradient.astype(np.int64)
        most = block if self.strata is None else self.n_examples
        leaving = self._ascending(-whole, inside & ~self.locked, most)
        entering = self._ascending(whole, self.allowed & ~inside, most)
        if self.strata is None:
            k = min(len(leaving), len(entering))
            leaving, entering = leaving[:k], entering[:k]
            gain = whole[leaving] - whole[entering]
            order = np.flatnonzero(gain > 0)  # by rank, hence by gain
            return Pairs(leaving[order], entering[order])
        leaving, entering = self._matched(leaving, entering)
        gain = whole[leaving] - whole[entering]
        order = np.argsort(-gain, kind="stable")[:block]
        order = order[gain[order] > 0]
        return Pairs(leaving[order], entering[order])

    def _ascending(self, whole: Int64[np.ndarray, " n"], among: Bool[np.ndarray, " n"], most: int) -> Places:
        candidates = np.flatnonzero(among)
        key = (whole[candidates] << self._bits) | candidates
        if most < len(key):
            key = np.partition(key, most)[:most]
        key.sort()
        return key & ((1 << self._bits) - 1)

    def _by_stratum(self, ordered: Places) -> tuple[Places, Places]:
        """Stable sort by stratum, and the rank of each inside its own."""
        assert self.strata is not None
        grouped = ordered[np.argsort(self.strata[ordered], kind="stable")]
        sizes = np.bincount(self.strata[grouped], minlength=len(self.quota))
        return grouped, np.arange(len(grouped)) - np.repeat(np.cumsum(sizes) - sizes, sizes)

    def _matched(self, leaving: Places, entering: Int64[np.ndarray, " j"]) -> Pairs:
        """Pairs by rank inside every stratum, the lower stratum first."""
        assert self.strata is not None
        sides = [self._by_stratum(leaving), self._by_stratum(entering)]
        sizes = [np.bincount(self.strata[side], minlength=len(self.quota)) for side, _ in sides]
        shared = np.minimum(*sizes)
        return Pairs(*(side[rank < shared[self.strata[side]]] for side, rank in sides))

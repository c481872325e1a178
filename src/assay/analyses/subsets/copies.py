"""Units of models: codes of their names, and copies of a model, which are one unit whatever their names.

Copies are models whose answers differ far less than those of separately trained models.

Two models of their accuracies, independent given the difficulty of an example (and its class, where that is
known), would differ in E answers; they differ in D. Separately trained models share failures, so D < E, but
they differ where models like them differ; copies with altered answers differ anywhere. A pair are copies if D
is a hundredth of E, or if it is a third of E at most and spread evenly: neither where their nearest relatives
differ nor over some classes. Candidates are neighbours in the order of the answers to random blocks of
examples, so the work grows with the number of models, not of pairs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from jaxtyping import Int64, Num
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.core.random import stream


Units = Int64[np.ndarray, " m"]  # a code per model

MOST_EXAMPLES = 8192  # that are compared
_SURE, _LIKE = 0.01, 0.33  # D / E up to which a pair are copies: in any case; if differences are even
_FEWEST = 10  # E below which nothing is said
_FEWEST_OF_TWINS = 3  # the same of equal answers and equal accuracies in distribution
_CHANCE = 0.01  # p of so few differences between models that would differ in half of E
_RELATED, _CLASSES = 4.0, 1e-6  # standard errors, and p, from which differences are not even
_LEVELS, _CLASS_SIZE = 16, 50  # levels of difficulty; examples of a class looked at by itself
_ROUNDS, _BLOCK, _STEPS = 96, 64, (1, 2)  # blocks of so many examples, and neighbours in their order
_RELATIVES, _KNOWN = 12, 2048  # nearest models to a pair, of so many


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
    alike = "Copies, whose answers hardly differ, count as one, whatever names or groups say"
    return f"{several.sum()} models are copies of {len(several)}: {len(counts)} units. {alike}"


def find_copies(answers: Num[np.ndarray, "m k"], labels: Any = None, id_accuracy: Any = None) -> Units:
    """Unit of each model, codes in the order of the models: copies of a model share one.

    Args:
        answers: 0 and 1, or scores from 0 to 1; examples on which all models are equal say nothing.
        labels: Class of each example.
        id_accuracy: Of each model. Equal answers and equal accuracies make copies of models that would differ
            in as few as 3 answers.

    Notes:
        The limits are from simulation (docs/theory/oodselect.md). Where two models of their accuracies would
        hardly differ (few examples, or all models accurate on them), copies are not found.
    """
    if len(answers) < 2 or not answers.shape[1]:
        return np.arange(len(answers))
    binary = answers.dtype == np.uint8
    rows = np.packbits(answers, axis=1) if binary else answers  # in the same order, an eighth as large
    _, first, same = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    distinct = _Distinct(answers[first] if binary else answers[first].astype(np.float64), labels)
    expected = np.array([distinct.expected(row, row) for row in range(len(first))])[same]
    exact = [(place, first[same[place]]) for place in np.flatnonzero(expected >= _FEWEST).tolist()]
    if id_accuracy is not None:
        both = np.stack([same.astype(np.float64), id_accuracy], axis=1)
        _, head, twin = np.unique(both, axis=0, return_index=True, return_inverse=True)
        exact += [
            (place, head[twin[place]]) for place in np.flatnonzero(expected >= _FEWEST_OF_TWINS).tolist()
        ]
    near = [first[[a, b]] for a, b in distinct.candidates() if distinct.are_copies(a, b)]
    return connected(len(answers), np.array([*exact, *near], dtype=np.int64).reshape(-1, 2))


class _Distinct:
    """Models no two of which are equal: how much two of their accuracies would differ, and which do far less.

    Model i is right with probability p = 1 / (1 + exp(-(d + s))): d the log odds of the share of all models
    that is right, s such that the mean of p is the accuracy of the model in the class.
    """

    def __init__(self, x: Num[np.ndarray, "u k"], labels: Int64[np.ndarray, " k"] | None) -> None:
        self.x, self.rng = x, stream(0, "copies")
        self.bits = x > x.mean(axis=0)
        self.packed = np.packbits(self.bits, axis=1)
        share = (x.sum(axis=0) + 0.5) / (len(x) + 1)
        self.by_share = np.argsort(share, kind="stable")
        self.known = np.sort(self.rng.permutation(len(x))[:_KNOWN])
        group = np.zeros_like(self.by_share) if labels is None else 1 + labels - labels.min()
        group[np.bincount(group)[group] < _CLASS_SIZE] = 0
        group = np.unique(group, return_inverse=True)[1]
        self.groups = np.eye(group.max() + 1)[group]
        level = np.argsort(self.by_share) * _LEVELS // len(share)
        cells, cell, self.n = np.unique(group * _LEVELS + level, return_inverse=True, return_counts=True)
        odds = np.bincount(cell, weights=scipy.special.logit(share)) / self.n
        within, size = np.eye(group.max() + 1)[cells // _LEVELS], self.groups.sum(axis=0)
        right = np.stack([x[:, group == each].sum(axis=1) for each in range(len(size))], axis=1)
        shift = np.full((len(x), len(size)), -40.0)
        for step in 40.0 * 0.5 ** np.arange(40):
            p = scipy.special.expit(odds + (shift + step) @ within.T)
            shift += np.where((p * self.n) @ within < right, step, 0.0)
        self.p = scipy.special.expit(odds + shift @ within.T)
        self.spread = 1.0
        if x.dtype != np.uint8:  # scores spread less than answers of the same mean
            mean = x.mean(axis=0)
            self.spread = float(x.var(axis=0).sum() / (mean * (1 - mean)).sum())

    def expected(self, a: int, b: int) -> float:
        """Sum over the examples of the expected squared difference of two models."""
        p, q = self.p[a], self.p[b]
        return float((self.spread * (p * (1 - p) + q * (1 - q)) + (p - q) ** 2) @ self.n)

    def _apart(self, a: Int64[np.ndarray, " p"], b: Int64[np.ndarray, " p"]) -> Int64[np.ndarray, " p"]:
        """Examples on which two models are on different sides of the mean."""
        return np.asarray(np.bitwise_count(self.packed[a] ^ self.packed[b]).sum(axis=1, dtype=np.int64))

    def candidates(self) -> list[tuple[int, int]]:
        """Pairs that answer some block of the examples alike and differ in few others."""
        pairs: set[tuple[int, int]] = set()
        n, share = len(self.by_share), self.bits.mean(axis=1)
        for _ in range(_ROUNDS):
            # A block of one difficulty, since only some are hard or easy enough to tell two models apart.
            width = max(min(n, _BLOCK), n >> int(self.rng.integers(5)))
            start = int(self.rng.integers(n - width + 1))
            block = self.by_share[start + self.rng.permutation(width)[:_BLOCK]]
            order = np.lexsort(np.packbits(self.bits[:, block], axis=1).T)
            for step in _STEPS:
                a, b = np.sort([order[:-step], order[step:]], axis=0)
                close = self._apart(a, b) <= _LIKE * n * (share[a] + share[b] - 2 * share[a] * share[b])
                pairs |= set(zip(a[close].tolist(), b[close].tolist(), strict=True))
        return sorted(pairs)

    def are_copies(self, a: int, b: int) -> bool:
        """Whether two models differ far less than models of their accuracies, wherever they differ."""
        differs = (self.x[a].astype(np.float64) - self.x[b]) ** 2
        found, expected = float(differs.sum()), self.expected(a, b)
        by_chance = scipy.special.pdtr(found, expected / 2) > _CHANCE
        if expected < _FEWEST or found > _LIKE * expected or by_chance:
            return False
        if found <= _SURE * expected:
            return True
        weight, share = float((differs**2).sum()), self.groups.mean(axis=0)
        uneven = ((differs @ self.groups - found * share) ** 2 / (weight * share)).sum()
        if len(share) > 1 and scipy.special.chdtrc(len(share) - 1, uneven) < _CLASSES:
            return False
        others = self.known[~np.isin(self.known, (a, b))]
        far = np.minimum(*(self._apart(np.full_like(others, each), others) for each in (a, b)))
        contested = self.x[others[np.argsort(far, kind="stable")[:_RELATIVES]]].var(axis=0)
        even = contested.std() * np.sqrt(weight)
        return bool((contested - contested.mean()) @ differs <= _RELATED * even)

"""The part of a shift that sampling alone makes, and what is left without it.

The mean scores of n images carry noise, and noise is distance. A reference made of J disjoint batches of n
images shows how much: each of its batches has a distance from the mean of the others without any shift.
Halves of a batch, beside halves of the reference's batches, say whether this batch is noisier than those.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float64

from assay.analyses.generalization.signatures import SIGNATURES, Scores, Signature, Vectors
from assay.circuits import EdgeScores
from assay.core.errors import InputError, ShapeError, unknown_name
from assay.core.random import stream
from assay.core.record import Record
from assay.core.verdict import Interval, undefined_interval
from assay.graph import Graph


BLOCKS = 8  # of the images of a batch
LEAST_BATCHES = 4  # of a reference: below, the spread of its batches is a guess
# Seven halvings of the blocks in which every two blocks are apart equally often: McCarthy's half-samples.
HALVINGS = np.asarray(scipy.linalg.hadamard(BLOCKS)[1:] > 0)

Blocks = Float64[np.ndarray, "n_blocks n_edges"]
BlocksOfBatches = Float64[np.ndarray, "batches n_blocks n_edges"]
Values = Float64[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class Excess(Record):
    """A shift without its noise.

    Attributes:
        floor: The shift expected of a batch of this size and noise where nothing has changed.
        value: What the shift has beyond the floor, see `NoiseFloor.excess`; 0 on average where nothing has
            changed, and below 0 by chance.
        interval: Of the value.
    """

    floor: float
    value: float
    interval: Interval


class _Side(NamedTuple):
    """What is read off a batch: whole, and without each of its blocks."""

    near: float  # to the reference
    own: float  # its halves to each other
    left_near: Values
    left_own: Values


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseFloor:
    """How far batches are from a reference although nothing has changed.

    Attributes:
        graph: Of the scores.
        blocks: Signed mean scores of the 8 blocks of each batch of the reference, see `block_means`,
            `[J, 8, n_edges]`, edges row-major over `graph.valid`.
        n: Images of a batch.
        distance: Key of a distance.

    Raises:
        InputError: For fewer than 4 batches, or batches of fewer than 8 images.
        UnknownNameError: For a distance without a floor.
    """

    graph: Graph
    blocks: BlocksOfBatches
    n: int
    distance: str = "spearman"

    def __post_init__(self) -> None:
        if self.distance not in SIGNATURES:
            raise unknown_name("distance with a noise floor", self.distance, SIGNATURES)
        if reason := without_floor(self.n, len(self.blocks)):
            raise InputError(reason)

    def excess(self, per_example: Float64[np.ndarray, "n n_edges"], *, level: float = 0.95) -> Excess:
        """The floor of a batch, and its shift beyond the floor.

        For similarities s = 1 - shift (`spearman`, `cosine`, `jaccard`), the similarity corrected for
        attenuation:

            floor = 1 - s_0 sqrt(s_bb / s_rr),   excess = 1 - s / (s_0 sqrt(s_bb / s_rr))

        and for Euclidean distances (`l2`, `laplacian`, `netlsd`), in squares, signed:

            floor^2 = d_0^2 d_bb^2 / d_rr^2,   excess = sign(shift^2 - floor^2) sqrt(|shift^2 - floor^2|)

        s_0, d_0: mean over the batches of the reference, each against the mean of the others; s_rr, d_rr:
        mean over these batches of one half against the other, in seven balanced halvings of 8 random
        blocks; s_bb, d_bb: the same of the new batch. A batch whose halves have nothing in common, s_bb at
        most its jackknife error, is compared with the reference's own floor: s_bb / s_rr = 1. Its noise
        cannot be told from a change, and a known batch is not like that, so the whole shift counts.

        Args:
            per_example: Signed scores of the images, `[n, n_edges]`.
            level: Coverage of the interval.

        Returns:
            In the unit of the distance. The error of the interval is the spread of the same number over the
            batches of the reference, times how much larger the jackknife over blocks is for this batch than
            for those, with Student's t.

        Raises:
            ShapeError: If the batch has another number of images or edges.

        Notes:
            The classical correction r_xy / sqrt(r_xx r_yy), in which sqrt(r_xx r_yy) is not extrapolated from
            halves by the Spearman-Brown formula: magnitudes of noisy means have a mean of their own, so this
            formula would overstate their reliability and leave an excess where nothing has changed. It serves
            for the step from J - 1 to J batches alone. The jackknife alone would be too wide by a factor of 2
            to 3, because magnitudes fold at 0; the spread of the reference's batches is not. Nominal 95 %
            intervals held the excess in 94 to 99 of 100 cases of a simulation without shift and with small
            shifts; with shifts of several times the floor, `cosine` and `l2` in 86. No run of a model: 79
            vectors per batch.

        References:
            Spearman (1904), "The proof and measurement of association between two things"; Spearman (1910),
            Brown (1910), for halves; McCarthy (1969), "Pseudo-replication: half samples".
        """
        if per_example.shape != (self.n, self.blocks.shape[2]):
            raise ShapeError(
                f"the batch has scores {list(per_example.shape)}; expected "
                f"[{self.n}, {self.blocks.shape[2]}], like the batches of the reference"
            )
        return self.of_blocks(block_means(per_example), level=level)

    def of_blocks(self, blocks: Blocks, *, level: float = 0.95) -> Excess:
        """The same of the mean scores of a batch's blocks, see `block_means`."""
        known, batch = self._known, self._side(blocks, self._mean)
        value, left = self._values(batch)
        floor = float(self._floors(batch)[0])
        noisier = _jackknife(left) / known.jackknife if known.jackknife else 1.0
        j = len(self.blocks)
        interval = _interval(
            value,
            known.spread * (noisier + 1 / j),
            degrees=1 / (1 / (j - 1) + 1 / (BLOCKS - 1)),  # of a product of two variances
            level=level,
        )
        if self._form.similarity is None:
            value, floor = _root(value), _root(floor)
            interval = replace(interval, low=_root(interval.low), high=_root(interval.high))
        return Excess(floor=floor, value=value, interval=interval)

    @property
    def common(self) -> bool:
        """Whether the batches of the reference have anything in common, halves and wholes."""
        return self._form.similarity is None or (self._halves > 0 and self._null > 0)

    @property
    def _form(self) -> Signature:
        return SIGNATURES[self.distance]

    def _vectors(self, rows: Scores) -> Vectors:
        return self._form.vectors(self.graph, rows)

    def _near(self, a: Vectors, b: Vectors) -> Float64[np.ndarray, "..."]:
        """Similarities, or squared distances, of pairs of rows."""
        if self._form.similarity is not None:
            return self._form.similarity(a, b)
        return np.asarray(((a - b) ** 2).sum(-1))

    @cached_property
    def _sizes(self) -> Values:
        return block_sizes(self.n)

    @cached_property
    def _batches(self) -> Float64[np.ndarray, "batches n_edges"]:
        return np.asarray(np.einsum("b,jbe->je", self._sizes / self.n, self.blocks))

    @cached_property
    def _mean(self) -> Vectors:
        return np.asarray(self._vectors(self._batches.mean(0)[None])[0])

    @cached_property
    def _sides(self) -> list[_Side]:
        """The batches of the reference, each against the mean of the others."""
        j = len(self.blocks)
        others = self._vectors((self._batches.sum(0) - self._batches) / (j - 1))
        return [self._side(each, rest) for each, rest in zip(self.blocks, others, strict=True)]

    @cached_property
    def _halves(self) -> float:
        return float(np.mean([each.own for each in self._sides]))

    @cached_property
    def _null(self) -> float:
        """Closeness without shift to the mean of J batches, from that to the mean of J - 1."""
        j, near = len(self.blocks), float(np.mean([each.near for each in self._sides]))
        return near * self._growth(j)

    def _growth(self, j: int) -> float:
        if self._form.similarity is None:
            return (1 + 1 / j) / (1 + 1 / (j - 1))
        whole, less = (spearman_brown(self._halves, 2.0 * each) for each in (j, j - 1))
        return math.sqrt(whole / less) if whole > 0 and less > 0 else math.nan

    @cached_property
    def _known(self) -> "_KnownSpread":
        growth = self._growth(len(self.blocks))
        found = [
            self._values(each._replace(near=each.near * growth, left_near=each.left_near * growth))
            for each in self._sides
        ]
        return _KnownSpread(
            spread=float(np.var([value for value, _ in found], ddof=1)),
            jackknife=float(np.mean([_jackknife(left) for _, left in found])),
        )

    def _values(self, side: _Side) -> tuple[float, Values]:
        """The excess (squared for Euclidean distances), whole and without each block."""
        near, floors = np.array([side.near, *side.left_near]), self._floors(side)
        # Without a block, halves are smaller: only their differences count, so no constant is adapted.
        values = near - floors if self._form.similarity is None else 1 - near / (1 - floors)
        return float(values[0]), values[1:]

    def _floors(self, side: _Side) -> Values:
        """Floors of a batch (squared for Euclidean distances), whole and without each block."""
        own = np.array([side.own, *side.left_own])
        if self._form.similarity is None:
            return self._null * (own / self._halves if self._halves else np.ones_like(own))
        if not self.common:
            return np.full(len(own), math.nan)
        if not side.own > math.sqrt(_jackknife(side.left_own)):
            own[:] = self._halves
        return 1 - self._null * np.sqrt(np.where(own > 0, own, self._halves) / self._halves)

    def _side(self, blocks: Blocks, reference: Vectors) -> _Side:
        sizes = self._sizes
        sums = blocks * sizes[:, None]
        total = sums.sum(0)
        rows = np.concatenate([total[None] / self.n, (total - sums) / (self.n - sizes)[:, None]])
        near = self._near(self._vectors(rows), reference)
        sides = np.concatenate([HALVINGS, ~HALVINGS]).astype(np.float64)
        halves = self._vectors(sides @ sums / (sides @ sizes)[:, None])
        k = len(HALVINGS)
        own = self._near(halves[:k], halves[k:])
        left_own = np.empty(BLOCKS)
        for block in range(BLOCKS):
            holds = sides[:, block] > 0
            less = sides[holds].copy()
            less[:, block] = 0
            without = self._vectors(less @ sums / (less @ sizes)[:, None])
            left_own[block] = self._near(without, np.roll(halves, k, axis=0)[holds]).mean()
        return _Side(near=float(near[0]), own=float(own.mean()), left_near=near[1:], left_own=left_own)


class _KnownSpread(NamedTuple):
    spread: float
    jackknife: float


def without_floor(n: int, batches: int) -> str:
    """Why a reference of so many batches of n images gives no noise floor; empty where it does."""
    if n < BLOCKS:
        return f"a batch of {n} inputs is too small for halves; a noise floor needs {BLOCKS} inputs or more"
    if batches < LEAST_BATCHES:
        return (
            f"the reference holds {batches} batches of {n} inputs; a noise floor needs {LEAST_BATCHES} or "
            f"more, which are {LEAST_BATCHES * n} inputs"
        )
    return ""


def rows_of(scores: EdgeScores) -> Float64[np.ndarray, "n n_edges"]:
    """Signed scores of each example, edges row-major over `graph.valid`.

    Raises:
        InputError: Without scores per example.
    """
    if scores.per_example is None:
        raise InputError("scores per example are missing; use discover(..., per_example=True)")
    return np.asarray(scores.per_example.detach().cpu()[:, scores.graph.valid].double().numpy())


def block_sizes(n: int) -> Values:
    """Images of each of the 8 blocks of a batch."""
    return np.array([len(each) for each in np.array_split(np.arange(n), BLOCKS)], dtype=np.float64)


def block_means(per_example: Float64[np.ndarray, "n n_edges"]) -> Blocks:
    """Mean scores of the 8 blocks that the images of a batch are dealt into, at random but always alike.

    Args:
        per_example: Signed scores, 8 images or more.
    """
    order = stream(0, "noise-floor/blocks").permutation(len(per_example))
    return np.stack([per_example[rows].mean(0) for rows in np.array_split(order, BLOCKS)])


def spearman_brown(reliability: float, times: float) -> float:
    """Reliability of a mean of `times` as many images: k r / (1 + (k - 1) r).

    Example:
        >>> spearman_brown(0.5, 2.0)
        0.6666666666666666
    """
    return times * reliability / (1 + (times - 1) * reliability)


def _root(square: float) -> float:
    return math.copysign(math.sqrt(abs(square)), square)


def _jackknife(left: Values) -> float:
    """Variance by leaving out each block in turn."""
    return (len(left) - 1) / len(left) * float(((left - left.mean()) ** 2).sum())


def _interval(value: float, variance: float, *, degrees: float, level: float) -> Interval:
    if not math.isfinite(value) or not math.isfinite(variance):
        return undefined_interval(level, "jackknife", "undefined")
    if not variance:
        return Interval(low=value, high=value, level=level, method="jackknife", reason="degenerate")
    margin = float(scipy.stats.t.ppf((1 + level) / 2, degrees)) * math.sqrt(variance)
    return Interval(low=value - margin, high=value + margin, level=level, method="jackknife")

"""Running sums of scores: what batches give, added up without keeping an example."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from assay.core.errors import InputError
from assay.graph import Graph
from assay.stats import poisson_weights


@dataclass(kw_only=True, eq=False)
class WeightedSums:
    """Sums over examples under the weights of a Poisson bootstrap.

    Kept as sums of (w - 1) times the scores: rounding is then relative to how far a resample departs from the
    examples, not to the total.

    Attributes:
        departures: Sum over examples of (w_bx - 1) s_x, `[B, n]`.
        weights: Sum over examples of w_bx, float64 `[B]`.
        squares: Sum over examples of w_bx^2, float64 `[B]`.
    """

    departures: Float[Tensor, "n_resamples n"]
    weights: Float[Tensor, " n_resamples"]
    squares: Float[Tensor, " n_resamples"]

    @classmethod
    def of(
        cls, scores: Float[Tensor, "batch n"], ids: Int[Tensor, " batch"], n_resamples: int, seed: int
    ) -> "WeightedSums":
        """Those of some examples."""
        weights = torch.from_numpy(poisson_weights(ids.cpu().numpy(), n_resamples, seed=seed))
        return cls(
            departures=(weights - 1).to(scores) @ scores,
            weights=weights.double().sum(1),
            squares=weights.double().square().sum(1),
        )

    @property
    def key(self) -> str:
        """What tells resamples apart, 16 hex digits: equal for the same ids, seed and number."""
        drawn = torch.cat([self.weights, self.squares])
        return hashlib.sha256(drawn.cpu().numpy().tobytes()).hexdigest()[:16]

    def __add__(self, other: "WeightedSums") -> "WeightedSums":
        return WeightedSums(
            departures=self.departures + other.departures,
            weights=self.weights + other.weights,
            squares=self.squares + other.squares,
        )

    def means(self, total: Float[Tensor, " n"], n: int) -> Float32[Tensor, "n_resamples n"]:
        """Mean scores m + d_b / c_b of each resample, given the plain sum over `n` examples.

        d_b is the departure of the weighted mean from m, and c_b = sqrt(n sum (w - mean w)^2) / sum w that of
        its weights. With more edges than examples the length of d_b is that of its weights, whose relative
        spread is sqrt(3 / n) / 2 beyond that of sets of examples; this takes it off. NaN for a resample
        without examples, or one that weighs all the same.
        """
        mean = total.double() / n
        away = self.departures.cpu().double() - (self.weights - n)[:, None] * mean
        spread = (n * (self.squares - self.weights.square() / n)).clamp(min=0).sqrt()
        return (mean + away / spread.where(spread > 0, torch.nan)[:, None]).float()


@dataclass(kw_only=True, eq=False)
class BatchScores:
    """Scores of one batch.

    Attributes:
        scores: `[batch, S, R]` if examples are kept apart, else `[1, S, R]`, their sum.
        forward, backward: Passes over the batch that were spent.
        input_effect: Sum over the batch of J(run with `input` ablated) - J(clean), where known.
    """

    scores: Float[Tensor, "rows ..."]
    forward: float | int = 0
    backward: int = 0
    input_effect: float | None = None


@dataclass(kw_only=True, eq=False)
class Sweep:
    """Scores added up over examples.

    Attributes:
        total: Sum over the examples of the scores, float64 `[S, R]`: the mean must not depend on how examples
            fall into batches.
        n: Examples so far, where batches are added.
        parts: Scores of each example, batch by batch, where asked for.
        resampled: Weighted sums of the scores of the edges, where asked for.
        forward, backward: Passes spent, over the examples.
        input_effect: Sum over the examples of J(run with `input` ablated) - J(clean), where known.
        details: What the method reports beside: JSON-able values.
    """

    total: Float[Tensor, "..."]
    n: int = 0
    parts: list[Tensor] = field(default_factory=list)
    resampled: WeightedSums | None = None
    forward: float = 0.0
    backward: float = 0.0
    input_effect: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)

    @classmethod
    def empty(cls, graph: Graph) -> "Sweep":
        """No example yet."""
        return cls(total=torch.zeros(graph.valid.shape, dtype=torch.float64))

    def add(self, batch: BatchScores, n: int) -> None:
        """Take in the scores of a batch of `n` examples."""
        self.n += n
        self.total = self.total + batch.scores.double().cpu().sum(0)
        self.forward += batch.forward * n
        self.backward += batch.backward * n
        if batch.input_effect is not None:
            self.input_effect = (self.input_effect or 0.0) + batch.input_effect

    def resample(
        self, scores: Float[Tensor, "batch n"], ids: Int[Tensor, " batch"], n_resamples: int, seed: int
    ) -> None:
        """Take the scores of a batch into the weighted sums.

        Raises:
            InputError: If an example comes again: its weights would be tied. It is named.
        """
        numbers = set(ids.tolist())
        again = self.ids & numbers
        if again or len(numbers) < len(ids):
            twice = min(again or (each for each in numbers if ids.tolist().count(each) > 1))
            raise InputError(
                f"image id {twice} came twice, so both would have the same weights in every resample and "
                "intervals would be wrong; give every image an id of its own, or use resamples=0"
            )
        self.ids |= numbers
        sums = WeightedSums.of(scores, ids, n_resamples, seed)
        self.resampled = sums if self.resampled is None else self.resampled + sums

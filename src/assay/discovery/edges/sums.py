"""Running sums of scores: what batches give, added up without keeping an example."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from assay.core.errors import InputError
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
class BatchPart:
    """What one batch gives a sweep.

    Attributes:
        ids: Numbers of its examples in their data set.
        total: Sum over its examples of the scores, float64 `[S, R]`.
        coarse: The same of a coarser quadrature rule, if any.
        per_example: Scores of each of its examples, where asked for.
        resampled: Weighted sums of the scores of the edges, where asked for.
        forward, backward: Passes over the batch that it cost.
        input_effect: Its sum of J(run with `input` ablated) - J(clean), where known.
    """

    ids: Int[Tensor, " batch"]
    total: Float[Tensor, "n_sources n_targets"]
    coarse: Float[Tensor, "n_sources n_targets"] | None = None
    per_example: Float[Tensor, "rows n_sources n_targets"] | None = None
    resampled: WeightedSums | None = None
    forward: float = 0.0
    backward: float = 0.0
    input_effect: float | None = None


@dataclass(kw_only=True, eq=False)
class Sweep:
    """What one sweep over the data gave.

    Attributes:
        total: Sum over the examples of the scores, float64 `[S, R]`.
        per_example: Scores of each example `[N, S, R]`, where asked for.
        resampled: Weighted sums of the scores of the edges, where asked for.
        coarse: Sum of the scores of a coarser quadrature rule, if any.
        passes: Forward and backward passes that were spent per example.
        input_effect: Sum over the examples of J(run with `input` ablated) - J(clean), where known.
        details: What the method reports beside: JSON-able values.
    """

    total: Float[Tensor, "n_sources n_targets"]
    per_example: Float[Tensor, "n_examples n_sources n_targets"] | None = None
    resampled: WeightedSums | None = None
    coarse: Float[Tensor, "n_sources n_targets"] | None = None
    passes: dict[str, float] = field(default_factory=dict)
    input_effect: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


class DistinctIds:
    """Numbers of examples that came, to refuse one that comes again: its weights would be tied."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def add(self, ids: Int[Tensor, " batch"]) -> None:
        """Take some in.

        Raises:
            InputError: If one was there before; it is named.
        """
        for each in ids.tolist():
            if each in self._seen:
                raise InputError(
                    f"image id {each} came twice, so both would have the same weights in every resample and "
                    "intervals would be wrong; give every image an id of its own, or use resamples=0"
                )
            self._seen.add(each)


class SweepSums:
    """The sweep over all batches, from what each gave, in their order.

    Args:
        shape: Of the scores: sources and targets.

    Attributes:
        n: Examples so far.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.n = 0
        # float64 sums: the mean must not depend on how examples fall into batches.
        self._sweep = Sweep(
            total=torch.zeros(shape, dtype=torch.float64), passes={"forward": 0.0, "backward": 0.0}
        )
        self._kept: list[Tensor] = []
        self._ids = DistinctIds()

    def add(self, part: BatchPart) -> None:
        """Take in what a batch gave.

        Raises:
            InputError: If an image whose weights are drawn comes a second time.
        """
        sweep = self._sweep
        if part.resampled is not None:
            self._ids.add(part.ids)
            before = sweep.resampled
            sweep.resampled = part.resampled if before is None else before + part.resampled
        self.n += len(part.ids)
        sweep.total = sweep.total + part.total
        if part.coarse is not None:
            sweep.coarse = part.coarse if sweep.coarse is None else sweep.coarse + part.coarse
        if part.per_example is not None:
            self._kept.append(part.per_example)
        sweep.passes["forward"] += part.forward * len(part.ids)
        sweep.passes["backward"] += part.backward * len(part.ids)
        if part.input_effect is not None:
            sweep.input_effect = (sweep.input_effect or 0.0) + part.input_effect

    def sweep(self, *, measured: bool) -> Sweep:
        """The sweep so far; `measured`: a pass over all examples was made for the ablation, and counts.

        Raises:
            InputError: Before the first example.
        """
        if self.n == 0:
            raise InputError("no batch has been added, so there are no scores; add at least one batch")
        passes = {name: count / self.n for name, count in self._sweep.passes.items()}
        passes["forward"] += measured
        per_example = torch.cat(self._kept) if self._kept else None
        return replace(self._sweep, passes=passes, per_example=per_example)

"""Phrases against images: how far a phrase fits some images better than others, in a space of both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy
from jaxtyping import Float64, Int64

from assay.core.errors import NonFiniteError, ShapeError
from assay.core.record import Record
from assay.stats import auroc, benjamini_hochberg


DIGITS = 12  # equal images must tie, in whatever order a matrix product added them up


@runtime_checkable
class Ranker(Protocol):
    """Images and texts in one space, in which the cosine says how well they fit each other."""

    def embed_images(self, images: Any) -> Any:
        """`[n, d]`, one row per image."""

    def embed_texts(self, texts: Any) -> Any:
        """`[k, d]`, one row per text."""


@dataclass(frozen=True, kw_only=True)
class PhraseScore(Record):
    """How far a phrase holds more of the selected images than of the comparison.

    Attributes:
        phrase: The phrase.
        difference: Mean cosine with the selected images less mean cosine with the comparison, in [-2, 2].
            Above 0: more true of the selected.
        low: Lower end of its bootstrap interval.
        high: Upper end.
        rel_diff: |difference| over the mean cosine of the comparison, as published; the direction is lost.
            NaN where that mean is 0.
        auroc: Probability that the phrase fits a random selected image better than a random other one, ties
            counting half; 1/2 at chance.
        auroc_low: Lower end of its bootstrap interval.
        auroc_high: Upper end.
        p_value: Two-sided, of the rank-sum test of selected against comparison.
        q_value: Benjamini-Hochberg over all phrases of the call.
        significant: Whether `q_value` is at most the level asked for.
    """

    phrase: str
    difference: float
    low: float
    high: float
    rel_diff: float
    auroc: float
    auroc_low: float
    auroc_high: float
    p_value: float
    q_value: float
    significant: bool


def _unit(values: Any, n_rows: int, what: str) -> Float64[np.ndarray, "n d"]:
    """Rows of length 1."""
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != n_rows:
        raise ShapeError(
            f"the ranker returned {what} embeddings of shape {rows.shape}; expected ({n_rows}, d)"
        )
    lengths = np.linalg.norm(rows, axis=1)
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        bad = int(np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))[0])
        raise NonFiniteError(
            f"the {what} embedding in row {bad} has norm {lengths[bad]}; expected a norm above 0"
        )
    unit: np.ndarray = rows / lengths[:, None]
    return unit


def score_phrases(
    phrases: Sequence[str],
    selected: Any,
    comparison: Any,
    ranker: Ranker,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    q: float = 0.05,
    n_resamples: int = 1000,
) -> tuple[PhraseScore, ...]:
    """Score, interval and test of each phrase.

    Args:
        phrases: At least one.
        selected: Images, as the ranker takes them.
        comparison: Likewise.
        ranker: Embeds both; rows are brought to length 1.
        rng: Source of the resamples of the images of either side, the same for all phrases.
        level: Coverage of the intervals.
        q: Share of false discoveries that is accepted among the significant phrases.
        n_resamples: Bootstrap resamples.

    Returns:
        By descending AUROC, equals in the order they came.

    Raises:
        ShapeError: Embeddings that are not one per image or text, or not of one space.
        NonFiniteError: Embeddings with NaN or of norm 0.
    """
    texts = _unit(ranker.embed_texts(list(phrases)), len(phrases), "text")
    sides = []
    for name, images in (("selected", selected), ("comparison", comparison)):
        rows = _unit(ranker.embed_images(images), len(images), f"{name} image")
        if rows.shape[1] != texts.shape[1]:
            raise ShapeError(
                f"the ranker embeds images in {rows.shape[1]} and texts in {texts.shape[1]} dimensions; "
                "expected the same dimension"
            )
        sides.append(np.round(rows @ texts.T, DIGITS))
    weights = [
        rng.multinomial(len(each), np.full(len(each), 1 / len(each)), size=n_resamples) for each in sides
    ]
    p_values = np.array([rank_sum_p(sides[0][:, k], sides[1][:, k]) for k in range(len(phrases))])
    q_values = benjamini_hochberg(p_values)
    members = np.repeat([True, False], [len(each) for each in sides])
    tails = ((1 - level) / 2, (1 + level) / 2)
    scores = []
    for k, phrase in enumerate(phrases):
        one, other = sides[0][:, k], sides[1][:, k]
        gaps = weights[0] @ one / len(one) - weights[1] @ other / len(other)
        low, high = np.quantile(gaps, tails).tolist()
        auroc_low, auroc_high = np.quantile(_resampled_auroc(one, other, *weights), tails).tolist()
        difference, reference = float(one.mean() - other.mean()), float(other.mean())
        scores.append(
            PhraseScore(
                phrase=phrase,
                difference=difference,
                low=low,
                high=high,
                rel_diff=abs(difference) / reference if reference != 0 else math.nan,
                auroc=auroc(np.concatenate([one, other]), members).value,
                auroc_low=auroc_low,
                auroc_high=auroc_high,
                p_value=float(p_values[k]),
                q_value=float(q_values[k]),
                significant=bool(q_values[k] <= q),
            )
        )
    return tuple(sorted(scores, key=lambda each: -each.auroc))  # a stable sort


def rank_sum_p(one: Float64[np.ndarray, " a"], other: Float64[np.ndarray, " b"]) -> float:
    """Two-sided p of Mann and Whitney; 1 where nothing differs, NaN where a side is empty."""
    if not len(one) or not len(other):
        return math.nan
    if np.ptp(np.concatenate([one, other])) == 0:
        return 1.0
    return float(scipy.stats.mannwhitneyu(one, other, alternative="two-sided").pvalue)


def _resampled_auroc(
    one: Float64[np.ndarray, " a"],
    other: Float64[np.ndarray, " b"],
    weights_one: Int64[np.ndarray, "draws a"],
    weights_other: Int64[np.ndarray, "draws b"],
) -> Float64[np.ndarray, " draws"]:
    """AUROC of each resample: sum over pairs of [one > other] + [one = other] / 2, with multiplicities."""
    gap = one[:, None] - other[None, :]
    wins = (gap > 0) + 0.5 * (gap == 0)
    areas: np.ndarray = ((weights_one @ wins) * weights_other).sum(axis=1) / (len(one) * len(other))
    return areas

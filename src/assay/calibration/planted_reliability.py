"""Synthetic tables with a known truth, for the gates on reliability, stability and invariance.

Each world says what it holds; gates must pass in one and fail in the other, and counting how often they err
is the test of the gates themselves.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy import stats

from assay.errors import InputError


MARGIN = 3.0  # mean logit difference of the full model
SPREAD = 0.5


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of a model and of a circuit on the same prompts.

    Attributes:
        y_full: `[n]` logit difference of the full model.
        y_circuit: `[n]` of the circuit alone.
        groups: `[n]` group of each prompt; zeros where there is one.
    """

    y_full: Float64[np.ndarray, " n"]
    y_circuit: Float64[np.ndarray, " n"]
    groups: Int64[np.ndarray, " n"]


def allowed_errors(repetitions: int, failure: float = 0.05) -> int:
    """Errors that a gate wrong with probability `failure` exceeds in one of a hundred counts.

    Example:
        >>> allowed_errors(200), allowed_errors(60)
        (18, 7)
    """
    return int(stats.binom.ppf(0.99, repetitions, failure))


def runs(
    rng: np.random.Generator,
    n: int,
    *,
    sd: float,
    faithfulness: float = 0.8,
    shifts: tuple[float, ...] = (0.0,),
) -> Runs:
    """A circuit whose per-prompt faithfulness is normal around one value per group.

    Args:
        rng: Source of the draws.
        n: Prompts, dealt to the groups in turn.
        sd: Of the per-prompt faithfulness; the standard error of the whole is sd / root n.
        faithfulness: Mean over the groups if the shifts sum to 0.
        shifts: Of each group.
    """
    y_full = rng.normal(MARGIN, SPREAD, n)
    groups = np.arange(n) % len(shifts)
    values = faithfulness + np.array(shifts)[groups] + rng.normal(0.0, sd, n)
    return Runs(y_full=y_full, y_circuit=values * MARGIN + faithfulness * (y_full - MARGIN), groups=groups)


def methods(
    rng: np.random.Generator,
    n: int,
    *,
    sd: float,
    shifts: tuple[float, ...],
    names: tuple[str, ...] = ("zero", "mean", "resample"),
    faithfulness: float = 0.8,
) -> tuple[Float64[np.ndarray, " n"], dict[str, Float64[np.ndarray, " n"]]]:
    """A circuit under several ablations, with independent errors.

    Args:
        rng: Source of the draws.
        n: Prompts.
        sd: Of the per-prompt faithfulness under each method.
        shifts: Of each method's faithfulness.
        names: Of the methods.
        faithfulness: Before shifts.

    Returns:
        Logit differences of the full model, and of the circuit by method.
    """
    if len(shifts) != len(names):
        raise InputError(f"{len(shifts)} shifts for {len(names)} methods; one each is needed")
    y_full = rng.normal(MARGIN, SPREAD, n)
    return y_full, {
        name: faithfulness * y_full + MARGIN * (shift + rng.normal(0.0, sd, n))
        for name, shift in zip(names, shifts, strict=True)
    }


def profile(
    rng: np.random.Generator, n: int, n_heads: int, *, reliability: float
) -> Float64[np.ndarray, "n n_heads"]:
    """Head effects whose profile over `n` prompts has a given reliability.

    Heads differ with variance 1; noise of variance n (1 - reliability) / reliability makes ICC(3,n) what was
    asked for.
    """
    noise = math.sqrt(n * (1 - reliability) / reliability)
    return rng.normal(0.0, 1.0, n_heads) + rng.normal(0.0, noise, (n, n_heads))


def items(
    rng: np.random.Generator, n: int, n_items: int, *, alpha: float
) -> Float64[np.ndarray, "n n_items"]:
    """Effects of heads that share one factor over prompts, with a given alpha in expectation."""
    r = alpha / (n_items - (n_items - 1) * alpha)
    factor = rng.normal(0.0, 1.0, (n, 1))
    return math.sqrt(r) * factor + math.sqrt(1 - r) * rng.normal(0.0, 1.0, (n, n_items))


def head_effects(
    rng: np.random.Generator, n: int, means: tuple[float, ...], *, sd: float = 1.0
) -> Float64[np.ndarray, "n n_heads"]:
    """Effects of heads with given means, independent over prompts."""
    return np.array(means) + rng.normal(0.0, sd, (n, len(means)))

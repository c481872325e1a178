"""What replacing one head at a time does to the margin: scores from columns of runs.

Runs give raw columns, one number per prompt and head (`single_heads`). What becomes of a column is a function
of arrays, so a stored table of columns gives the same scores without a model.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.core.errors import ShapeError, check_name
from assay.discovery.heads.scores import HeadScores, defined_examples, mean_over_examples


SMALLEST = 1e-8  # margins closer than this, per prompt, are not a scale to compare an effect with
AGGREGATES = ("ratio_of_sums", "mean_of_ratios")

Heads = Collection[Sequence[int]]


def patching_scores(
    y_full: Float64[np.ndarray, " P"],
    y_corrupted: Float64[np.ndarray, " P"],
    y_patched: Float64[np.ndarray, "P H"],
    *,
    n_heads: int,
    aggregate: str = "ratio_of_sums",
    unit: str = "fraction",
    **facts: Any,
) -> HeadScores:
    """Share of the margin that each head's clean output restores in the corrupted run.

    a_j = sum_i (y_patched_ij - y_corrupted_i) / |sum_i (y_full_i - y_corrupted_i)|, or the mean over i of the
    ratios, without magnitudes (`mean_of_ratios`, as published).

    Args:
        y_full: Margins of the clean run.
        y_corrupted: Margins of the corrupted run, for the clean prompt's answers.
        y_patched: Margins of the corrupted run with one head's clean output.
        n_heads: Heads per layer.
        aggregate: `ratio_of_sums` or `mean_of_ratios`; the latter is ruled by prompts of small gap.
        unit: Of the scores.
        facts: Further attributes of `HeadScores`.

    Returns:
        1: the head alone restores the whole margin; negative: it lowers the margin (of `mean_of_ratios` only
        if the clean margins are the larger ones). `per_example` averages
        to the values: under `ratio_of_sums` single differences over the mean gap. `details`: `gap` `[P]`, its
        mean, `aggregate`. NaN with `zero_denominator` where the gaps add up to less than 1e-8 per prompt,
        with `no_valid_prompt` where no prompt is left.

    Raises:
        InputError: For another aggregate.
        ShapeError: If the columns do not fit together.

    Notes:
        Prompts whose gap is below 1e-8 or not a number are left out: NaN rows.

    References:
        Wang et al. (2022), arXiv:2211.00593; Heimersheim and Nanda (2024), arXiv:2404.15255.
    """
    check_name("aggregate", aggregate, AGGREGATES)
    _check_columns(y_patched, y_full=y_full, y_corrupted=y_corrupted)
    gap = np.where(np.abs(y_full - y_corrupted) >= SMALLEST, y_full - y_corrupted, np.nan)
    effect = _excluding(y_patched - y_corrupted[:, None], gap)
    used = defined_examples(effect)
    mean_gap = float(gap[used].mean()) if used.any() else np.nan
    reason = None if used.any() else "no_valid_prompt"
    if aggregate == "mean_of_ratios":
        effect = effect / gap[:, None]
    elif used.any() and abs(mean_gap) < SMALLEST:
        effect, reason = np.full_like(effect, np.nan), "zero_denominator"
    else:
        effect = effect / abs(mean_gap)
    return HeadScores.from_flat(
        "activation-patching",
        n_heads,
        per_example=effect,
        sign="positive = restores the margin",
        unit=unit,
        reason=reason,
        details={"aggregate": aggregate, "gap": gap, "mean_gap": mean_gap},
        **facts,
    )


def mediation_scores(
    y_full: Float64[np.ndarray, " P"],
    y_corrupted: Float64[np.ndarray, " P"],
    y_crossed: Float64[np.ndarray, "P H"],
    *,
    n_heads: int,
    unit: str = "logits",
    **facts: Any,
) -> HeadScores:
    """Natural indirect effect of corrupting the prompt that goes through each head.

    NIE_ij = y_full_i - y_crossed_ij, TE_i = y_full_i - y_corrupted_i, NDE = TE - NIE.

    Args:
        y_full: Margins of the clean run.
        y_corrupted: Margins of the corrupted run, for the clean prompt's answers.
        y_crossed: Margins of the clean run with one head's corrupted output.
        n_heads: Heads per layer.
        unit: Of the margins.
        facts: Further attributes of `HeadScores`.

    Returns:
        Mean NIE per head; positive: corrupting the head lowers the margin. `details`: `total_effect` `[P]`
        and its mean; `direct_effect` and `fraction`, sum NIE / sum TE, by layer and head; the fractions are
        NaN, and `fraction_reason` says `zero_denominator`, where |sum TE| is below 1e-8 per prompt.

    Raises:
        ShapeError: If the columns do not fit together.

    References:
        Pearl (2001), Direct and indirect effects, arXiv:1301.2300; Vig et al. (2020), arXiv:2004.12265.
    """
    _check_columns(y_crossed, y_full=y_full, y_corrupted=y_corrupted)
    total = y_full - y_corrupted
    indirect = _excluding(y_full[:, None] - y_crossed, total)
    used = defined_examples(indirect)
    mean_total = float(total[used].mean()) if used.any() else np.nan
    found = mean_over_examples(indirect)
    small = not abs(mean_total) >= SMALLEST
    by_head = {
        "direct_effect": (mean_total - found).reshape(-1, n_heads),
        "fraction": (np.full_like(found, np.nan) if small else found / mean_total).reshape(-1, n_heads),
    }
    return HeadScores.from_flat(
        "mediation",
        n_heads,
        found,
        per_example=indirect,
        sign="positive = mediates the loss of the margin",
        unit=unit,
        reason=None if used.any() else "no_valid_prompt",
        details={
            "total_effect": total,
            "mean_total_effect": mean_total,
            **by_head,
            "fraction_reason": "zero_denominator" if small and used.any() else None,
        },
        **facts,
    )


def drop_scores(
    y_full: Float64[np.ndarray, " P"],
    y_dropped: Float64[np.ndarray, "P H"],
    *,
    n_heads: int,
    unit: str = "logits",
    **facts: Any,
) -> HeadScores:
    """What the margin loses when one head is ablated, E_ij = y_full_i - y_dropped_ij.

    Args:
        y_full: Margins of the clean run.
        y_dropped: Margins with one head ablated.
        n_heads: Heads per layer.
        unit: Of the margins.
        facts: Further attributes of `HeadScores`.

    Returns:
        Mean effect per head; positive: the head helps.

    Raises:
        ShapeError: If the columns do not fit together.
    """
    _check_columns(y_dropped, y_full=y_full)
    effect = _excluding(y_full[:, None] - y_dropped, y_full)
    return HeadScores.from_flat(
        "drop-effect",
        n_heads,
        per_example=effect,
        sign="positive = helps the margin",
        unit=unit,
        reason=None if defined_examples(effect).any() else "no_valid_prompt",
        **facts,
    )


def _check_columns(table: Float64[np.ndarray, "P H"], **columns: Float64[np.ndarray, " P"]) -> None:
    if table.ndim != 2:
        raise ShapeError(f"the runs of single heads have shape {table.shape}; expected [prompts, heads]")
    for name, column in columns.items():
        if column.shape != (len(table),):
            raise ShapeError(
                f"{name} has shape {column.shape}; expected ({len(table)},), one value per prompt"
            )


def _excluding(
    effect: Float64[np.ndarray, "P H"], needed: Float64[np.ndarray, " P"]
) -> Float64[np.ndarray, "P H"]:
    """NaN rows where `needed` is not finite, or a head that was run has no finite effect."""
    effect = np.where(np.isfinite(needed)[:, None], effect, np.nan)
    effect[~defined_examples(effect)] = np.nan
    return effect

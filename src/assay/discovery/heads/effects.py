"""What replacing one head at a time does to the margin: patching, mediation, dropping.

Runs give raw columns, one number per prompt and head. What becomes of a column is a function of arrays, so a
stored table of columns gives the same scores without a model.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from assay.core.errors import check_name
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.runs import HeadMargins, OneByOne, Run, base_run, head_margins, heads_replaced
from assay.discovery.heads.scores import HeadScores, defined_examples, mean_over_examples, provenance_of
from assay.execution.ablation import Replacement, Setting
from assay.execution.batches import choose_batch_size
from assay.models import Model, Trace
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Task


SMALLEST = 1e-8  # margins closer than this, per prompt, are not a scale to compare an effect with
AGGREGATES = ("ratio_of_sums", "mean_of_ratios")
POSITIONS = ("last", "all")


def patching_scores(
    margins: HeadMargins,
    *,
    n_heads: int,
    aggregate: str = "ratio_of_sums",
    unit: str = "fraction",
    **facts: Any,
) -> HeadScores:
    """Share of the margin that each head's clean output restores in the corrupted run.

    a_j = sum_i (y_one_ij - y_corrupted_i) / |sum_i (y_full_i - y_corrupted_i)|, or the mean over i of the
    ratios, without magnitudes (`mean_of_ratios`, as published).

    Args:
        margins: `y_one` of the corrupted run with one head's clean output.
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
        UnknownNameError: For another aggregate.

    Notes:
        Prompts whose gap is below 1e-8 or not a number are left out: NaN rows.

    References:
        Wang et al. (2022), arXiv:2211.00593; Heimersheim and Nanda (2024), arXiv:2404.15255.
    """
    check_name("aggregate", aggregate, AGGREGATES)
    gap = margins.y_full - margins.y_corrupted
    gap = np.where(np.abs(gap) >= SMALLEST, gap, np.nan)
    effect = _excluding(margins.y_one - margins.y_corrupted[:, None], gap)
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


def mediation_scores(margins: HeadMargins, *, n_heads: int, unit: str = "logits", **facts: Any) -> HeadScores:
    """Natural indirect effect of corrupting the prompt that goes through each head.

    NIE_ij = y_full_i - y_one_ij, TE_i = y_full_i - y_corrupted_i, NDE = TE - NIE.

    Args:
        margins: `y_one` of the clean run with one head's corrupted output.
        n_heads: Heads per layer.
        unit: Of the margins.
        facts: Further attributes of `HeadScores`.

    Returns:
        Mean NIE per head; positive: corrupting the head lowers the margin. `details`: `total_effect` `[P]`
        and its mean; `direct_effect` and `fraction`, sum NIE / sum TE, by layer and head; the fractions are
        NaN, and `fraction_reason` says `zero_denominator`, where |sum TE| is below 1e-8 per prompt.

    References:
        Pearl (2001), Direct and indirect effects, arXiv:1301.2300; Vig et al. (2020), arXiv:2004.12265.
    """
    total = margins.y_full - margins.y_corrupted
    indirect = _excluding(margins.y_full[:, None] - margins.y_one, total)
    used = defined_examples(indirect)
    mean_total = float(total[used].mean()) if used.any() else np.nan
    found = mean_over_examples(indirect)
    small = not abs(mean_total) >= SMALLEST
    fraction = np.full_like(found, np.nan) if small else found / mean_total
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
            "direct_effect": (mean_total - found).reshape(-1, n_heads),
            "fraction": fraction.reshape(-1, n_heads),
            "fraction_reason": "zero_denominator" if small and used.any() else None,
        },
        **facts,
    )


def drop_scores(margins: HeadMargins, *, n_heads: int, unit: str = "logits", **facts: Any) -> HeadScores:
    """What the margin loses when one head is ablated, E_ij = y_full_i - y_one_ij.

    Args:
        margins: `y_one` with one head ablated.
        n_heads: Heads per layer.
        unit: Of the margins.
        facts: Further attributes of `HeadScores`.

    Returns:
        Mean effect per head; positive: the head helps.
    """
    effect = _excluding(margins.y_full[:, None] - margins.y_one, margins.y_full)
    return HeadScores.from_flat(
        "drop-effect",
        n_heads,
        per_example=effect,
        sign="positive = helps the margin",
        unit=unit,
        reason=None if defined_examples(effect).any() else "no_valid_prompt",
        **facts,
    )


def _excluding(
    effect: Float64[np.ndarray, "P H"], needed: Float64[np.ndarray, " P"]
) -> Float64[np.ndarray, "P H"]:
    """NaN rows where `needed` is not finite, or a head that was run has no finite effect."""
    effect = np.where(np.isfinite(needed)[:, None], effect, np.nan)
    effect[~defined_examples(effect)] = np.nan
    return effect


# ---- by runs ----


def patched(clean: Trace, corrupted: Trace, one: OneByOne) -> Tensor:
    """A head's clean output, at all positions, in the corrupted run."""
    return one.everywhere(corrupted, clean.head_z)


def crossed(clean: Trace, corrupted: Trace, one: OneByOne) -> Tensor:
    """A head's corrupted output, at the read position, in the clean run."""
    return one.at_read(clean, corrupted.head_z)


def crossed_everywhere(clean: Trace, corrupted: Trace, one: OneByOne) -> Tensor:
    """The same at all positions."""
    return one.everywhere(clean, corrupted.head_z)


def dropped(replacements: Sequence[Replacement], others: Sequence[tuple[int, int]] = ()) -> Run:
    """A head's replacement in the clean run, or with `others` replaced too; several are averaged."""

    def run(clean: Trace, corrupted: Trace, one: OneByOne) -> Tensor:
        columns = []
        for each in replacements:
            with heads_replaced(one.model, others, each, one.batch):
                base = base_run(one.model, one.batch.clean) if others else clean
                columns.append(one.dropped(base, each))
        return torch.stack(columns).mean(0)

    return run


def _by_runs(
    model: Model,
    task: Task,
    run: Run,
    score: str,
    *,
    objective: str | Objective | Loss | None,
    batch_size: int | None,
    paired: bool = True,
    **how: Any,
) -> tuple[HeadMargins, dict[str, Any]]:
    """Margins of the runs of a score, and facts of the scores that are made of them."""
    loss = get_objective(objective or task.objective)
    margins = head_margins(model, model.bind(task), run, objective=loss, batch_size=batch_size, paired=paired)
    provenance = provenance_of(model, task, score=score, objective=loss.key, **how)
    return margins, {"n_heads": model.n_heads, "unit": loss.unit, "provenance": provenance}


def activation_patching(
    model: Model,
    task: Task,
    *,
    aggregate: str = "ratio_of_sums",
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
) -> HeadScores:
    """Denoising: each head's clean output, at all positions, put into the run on the corrupted prompt.

    Args:
        model: The model.
        task: Clean prompts and their corrupted partners.
        aggregate: See `patching_scores`.
        objective: Loss whose negative is the margin; default: the task's own.
        batch_size: Prompts per pass; default: by free memory. Results do not depend on it.

    Returns:
        As `patching_scores`.

    Raises:
        UnknownNameError: For an unknown aggregate.

    Notes:
        Cost per prompt: two passes, and one from the head's block upwards per head, on average half a pass.
        Published results score the circuit's heads only.
    """
    check_name("aggregate", aggregate, AGGREGATES)
    how: dict[str, Any] = {"objective": objective, "batch_size": batch_size, "aggregate": aggregate}
    margins, facts = _by_runs(model, task, patched, "activation-patching", **how)
    return patching_scores(margins, **facts | {"aggregate": aggregate, "unit": "fraction"})


def mediation(
    model: Model,
    task: Task,
    *,
    positions: str = "last",
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
) -> HeadScores:
    """Noising: each head's output on the corrupted prompt put into the clean run.

    Args:
        model: The model.
        task: Clean prompts and their corrupted partners.
        positions: `last`: at the read position only, as published; `all`: everywhere.
        objective: Loss whose negative is the margin; default: the task's own.
        batch_size: Prompts per pass; default: by free memory. Results do not depend on it.

    Returns:
        As `mediation_scores`.

    Raises:
        UnknownNameError: For other positions.

    Notes:
        Cost per prompt: two passes, and per head one token (`last`), or a pass from the head's block upwards
        (`all`). With `last`, what a head does at earlier positions is not seen.
    """
    check_name("positions", positions, POSITIONS)
    run = crossed if positions == "last" else crossed_everywhere
    how: dict[str, Any] = {"objective": objective, "batch_size": batch_size, "positions": positions}
    margins, facts = _by_runs(model, task, run, "mediation", **how)
    return mediation_scores(margins, **facts)


def drop_effect(
    model: Model,
    task: Task,
    *,
    ablation: str = "mean",
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    seed: int = 42,
) -> HeadScores:
    """Necessity of each head: the margin lost when it alone is ablated.

    Args:
        model: The model.
        task: Its clean prompts are run.
        ablation: Key of an intervention (`assay.list("interventions")`).
        objective: Loss whose negative is the margin; default: the task's own.
        batch_size: Prompts per pass; default: by free memory. Results do not depend on it.
        seed: Root seed of donors and noise, of which several draws are averaged.

    Returns:
        As `drop_scores`. Prompts without a donor of their own answer (`resample-donor-same-class`) are NaN
        rows.

    Raises:
        InputError: For prompts that the intervention cannot serve.
        UnknownNameError: For an unknown intervention.

    Notes:
        Cost per prompt: one pass for means or donors, and per draw one pass and for each head one from its
        block upwards. Nothing below the head changes, so an intervention that reads the head's own
        activations finds those of the clean run.
    """
    intervention = INTERVENTIONS[ablation]
    size, draws = choose_batch_size(model, task, asked=batch_size), intervention.draws
    setting = Setting(model=model, task=task, reference=task, batch_size=size, seed=seed)
    run = dropped([intervention.prepare_heads(replace(setting, draw=draw)) for draw in range(draws)])
    details = {"ablation": intervention.key, "draws": draws}
    how: dict[str, Any] = {"objective": objective, "batch_size": batch_size, "paired": False, **details}
    how |= {"seed": seed} if draws > 1 else {}
    margins, facts = _by_runs(model, task, run, "drop-effect", **how)
    margins.y_one[~intervention.served(setting)] = np.nan
    return drop_scores(margins, details=details, **facts)

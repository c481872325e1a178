"""What replacing one head at a time does to the margin, measured by runs: patching, mediation, dropping.

The runs give raw columns, one number per prompt and head. What becomes of a column is a function of arrays,
so a stored table of columns gives the same scores without a model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from assay.circuits.heads import check_heads
from assay.core.errors import InputError, ShapeError
from assay.core.record import Record, library_version
from assay.discovery.heads.interventions import (
    INTERVENTIONS,
    Donor,
    Intervention,
    Replacement,
    Setting,
    replaced_outputs,
)
from assay.discovery.heads.runs import (
    Reading,
    base_run,
    bytes_of_base,
    one_head_replaced,
    one_head_replaced_at_read,
)
from assay.discovery.heads.scores import HeadScores, defined_examples, mean_over_examples, member_flags
from assay.execution.forward import choose_batch_size
from assay.models import Model, Trace
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Batch, Task, map_tensors


SMALLEST = 1e-8  # margins closer than this, per prompt, are no scale to compare an effect with
STRONG, WEAK = 0.7, 0.3  # published readings of a mediated fraction
AGGREGATES = ("ratio_of_sums", "mean_of_ratios")
POSITIONS = ("last", "all")

Heads = Collection[Sequence[int]]


# ---- from columns to scores -------------------------------------------------------------------------


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

    a_j = sum_i (y_patched_ij - y_corrupted_i) / sum_i (y_full_i - y_corrupted_i), or the mean over i of the
    ratios (`mean_of_ratios`, as published).

    Args:
        y_full: Margins of the clean run.
        y_corrupted: Margins of the corrupted run, for the clean prompt's answers.
        y_patched: Margins of the corrupted run with one head's clean output.
        n_heads: Heads per layer.
        aggregate: `ratio_of_sums` or `mean_of_ratios`; the latter is ruled by prompts of small gap.
        unit: Of the scores.
        facts: Further attributes of `HeadScores`.

    Returns:
        1: the head alone restores the whole margin; negative: it makes matters worse. `per_example` averages
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
    _check_choice("aggregate", aggregate, AGGREGATES)
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
        effect = effect / mean_gap
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


def mediation_reading(fraction: float) -> str | None:
    """The published reading of a mediated fraction; None between 0.3 and 0.7, and where undefined."""
    if fraction > STRONG:
        return "strong_mediator"
    return "bypassed" if fraction < WEAK else None


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


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"{name}={value!r} is not offered; choose {' or '.join(map(repr, allowed))}")


def _check_columns(table: Float64[np.ndarray, "P H"], **columns: Float64[np.ndarray, " P"]) -> None:
    if table.ndim != 2:
        raise ShapeError(f"the runs of single heads have shape {table.shape}; expected [prompts, heads]")
    for name, column in columns.items():
        if column.shape != (len(table),):
            raise ShapeError(f"{name} has shape {column.shape}; expected ({len(table)},), as the heads' runs")


def _excluding(
    effect: Float64[np.ndarray, "P H"], needed: Float64[np.ndarray, " P"]
) -> Float64[np.ndarray, "P H"]:
    """NaN rows where `needed` is not finite, or a head that was run has no finite effect."""
    effect = np.where(np.isfinite(needed)[:, None], effect, np.nan)
    effect[~defined_examples(effect)] = np.nan
    return effect


@dataclass(frozen=True, kw_only=True)
class CircuitEffect(Record):
    """The summed scores of a circuit's heads, beside those of random sets of as many heads.

    Attributes:
        value: Sum over the circuit.
        expected: Mean over all sets of k heads, exact.
        deviation: Standard deviation over them, exact.
        k: Heads of the circuit that have a score.
        n_heads: Heads that have a score.
    """

    derived = ("z",)

    value: float
    expected: float
    deviation: float
    k: int
    n_heads: int

    @property
    def z(self) -> float:
        """Deviations above the random sets; NaN where these do not vary."""
        return (self.value - self.expected) / self.deviation if self.deviation else float("nan")


def circuit_effect(
    scores: HeadScores, members: Bool[np.ndarray, " H"] | Sequence[tuple[int, int]]
) -> CircuitEffect:
    """Sum of a score over a circuit, with its exact mean and spread over random sets of as many heads.

    Expected k mean(a); deviation root(k var(a) (H - k) / (H - 1)) with the population variance, as for draws
    without replacement.

    Args:
        scores: One number per head; heads without one do not count.
        members: (layer, head) pairs or one flag per head.

    Raises:
        InputError: If no head has a score, or a member is out of range.
    """
    flags = member_flags(
        members if isinstance(members, np.ndarray) else tuple((layer, head) for layer, head in members),
        scores.n_layers,
        scores.n_heads,
    )
    defined = np.isfinite(scores.flat)
    values, flags = scores.flat[defined], flags[defined]
    n, k = len(values), int(flags.sum())
    if not n:
        raise InputError(f"no head has a score of {scores.name!r} ({scores.reason or 'all are undefined'})")
    left = (n - k) / (n - 1) if n > 1 else 0.0
    return CircuitEffect(
        value=float(values[flags].sum()),
        expected=k * float(values.mean()),
        deviation=float(np.sqrt(k * values.var() * left)),
        k=k,
        n_heads=n,
    )


# ---- runs -------------------------------------------------------------------------------------------


def activation_patching(
    model: Model,
    task: Task,
    *,
    heads: Heads | None = None,
    aggregate: str = "ratio_of_sums",
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
) -> HeadScores:
    """Denoising: each head's clean output, at all positions, put into the run on the corrupted prompt.

    Args:
        model: The model.
        task: Clean prompts and their corrupted partners.
        heads: (layer, head) pairs to score; default: all. The others are NaN.
        aggregate: See `patching_scores`.
        objective: Loss whose negative is the margin; default: the task's own.
        batch_size: Prompts per pass; default: by free memory. Results do not depend on it.

    Returns:
        As `patching_scores`; see `circuit_effect` for a circuit's sum.

    Raises:
        InputError: For an unknown aggregate or impossible heads.

    Notes:
        Cost per prompt: two passes, and one from the head's block upwards per head, on average half a pass.
        Published results score the circuit's heads only.
    """
    _check_choice("aggregate", aggregate, AGGREGATES)
    found = _measured(model, task, _patched, heads=heads, objective=objective, batch_size=batch_size)
    assert found.y_corrupted is not None
    return patching_scores(
        found.y_full,
        found.y_corrupted,
        found.y_one,
        n_heads=model.n_heads,
        aggregate=aggregate,
        provenance=_provenance(model, task, "activation-patching", objective, aggregate=aggregate),
    )


def mediation(
    model: Model,
    task: Task,
    *,
    heads: Heads | None = None,
    positions: str = "last",
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
) -> HeadScores:
    """Noising: each head's output on the corrupted prompt put into the clean run.

    Args:
        model: The model.
        task: Clean prompts and their corrupted partners.
        heads: (layer, head) pairs to score; default: all. The others are NaN.
        positions: `last`: at the read position only, as published; `all`: everywhere.
        objective: Loss whose negative is the margin; default: the task's own.
        batch_size: Prompts per pass; default: by free memory. Results do not depend on it.

    Returns:
        As `mediation_scores`.

    Raises:
        InputError: For other positions or impossible heads.

    Notes:
        Cost per prompt: two passes, and per head one token (`last`), or a pass from the head's block upwards
        (`all`). With `last`, what a head does at earlier positions is not seen.
    """
    _check_choice("positions", positions, POSITIONS)
    run = _crossed_at_read if positions == "last" else _crossed
    chosen = get_objective(objective or task.objective)
    found = _measured(model, task, run, heads=heads, objective=chosen, batch_size=batch_size)
    assert found.y_corrupted is not None
    return mediation_scores(
        found.y_full,
        found.y_corrupted,
        found.y_one,
        n_heads=model.n_heads,
        unit=chosen.unit,
        provenance=_provenance(model, task, "mediation", objective, positions=positions),
    )


def drop_effect(
    model: Model,
    task: Task,
    *,
    heads: Heads | None = None,
    ablation: str | Intervention = "mean",
    reference: Task | None = None,
    draws: int | None = None,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    seed: int = 42,
) -> HeadScores:
    """Necessity of each head: the margin lost when it alone is ablated.

    Args:
        model: The model.
        task: Its clean prompts are run.
        heads: (layer, head) pairs to score; default: all. The others are NaN.
        ablation: Key of an intervention (`assay.list("interventions")`) or an object.
        reference: Prompts that means are taken over; default: the task's.
        draws: Draws that are averaged where donors or noise are drawn; default: the intervention's own, 5.
        objective: Loss whose negative is the margin; default: the task's own.
        batch_size: Prompts per pass; default: by free memory. Results do not depend on it.
        seed: Root seed of donors and noise.

    Returns:
        As `drop_scores`. Prompts without a donor of their own answer (`resample-donor-same-class`) are NaN
        rows.

    Raises:
        InputError: For fewer than 1 draw, impossible heads, prompts that the intervention cannot serve.
        UnknownNameError: For an unknown intervention.

    Notes:
        Cost per prompt: one pass for means or donors, and per draw one pass and for each head one from its
        block upwards. Nothing below the head changes, so an intervention that reads the head's own
        activations finds those of the clean run.
    """
    chosen = INTERVENTIONS[ablation] if isinstance(ablation, str) else ablation
    draws = chosen.draws if draws is None else draws
    if draws < 1:
        raise InputError(f"draws is {draws}; give at least 1")
    size = choose_batch_size(model, task, asked=batch_size)
    setting = Setting(model=model, task=task, reference=reference or task, batch_size=size, seed=seed)
    tables = []
    for draw in range(draws):
        setting.draw = draw
        run = _dropped(chosen.prepare(setting))
        tables.append(
            _measured(
                model, task, run, heads=heads, objective=objective, batch_size=batch_size, corrupted=False
            )
        )
    dropped = np.mean([table.y_one for table in tables], axis=0)
    if isinstance(chosen, Donor):
        dropped[chosen.donors_of(setting) < 0] = np.nan
    settings = {"ablation": chosen.key, "draws": draws}
    if draws > 1:
        settings["seed"] = seed
    if reference is not None:
        settings["reference"] = reference.describe()
    return drop_scores(
        tables[0].y_full,
        dropped,
        n_heads=model.n_heads,
        unit=get_objective(objective or task.objective).unit,
        details={"ablation": chosen.key, "draws": draws},
        provenance=_provenance(model, task, "drop-effect", objective, **settings),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Columns:
    """Margins of whole runs `[P]` and of runs with one head replaced `[P, H]`."""

    y_full: Float64[np.ndarray, " P"]
    y_corrupted: Float64[np.ndarray, " P"] | None
    y_one: Float64[np.ndarray, "P H"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Prompts:
    """A batch with the runs that single-head runs start from; `corrupted` where it was asked for."""

    model: Model
    batch: Batch
    clean: Trace
    corrupted: Trace
    reading: Reading
    heads: Sequence[tuple[int, int]]


_Run = Callable[[_Prompts], Tensor]


def _patched(at: _Prompts) -> Tensor:
    return one_head_replaced(
        at.model, at.corrupted, at.clean.z, at.batch.positions, at.reading, heads=at.heads
    )


def _crossed(at: _Prompts) -> Tensor:
    return one_head_replaced(
        at.model, at.clean, at.corrupted.z, at.batch.positions, at.reading, heads=at.heads
    )


def _crossed_at_read(at: _Prompts) -> Tensor:
    read = at.batch.positions
    rows = torch.arange(len(read), device=read.device)
    last = [z[rows, read] for z in at.corrupted.z]
    return one_head_replaced_at_read(at.model, at.clean, last, read, at.reading, heads=at.heads)


def _dropped(replacement: Replacement) -> _Run:
    def run(at: _Prompts) -> Tensor:
        values = replaced_outputs(at.model, at.clean, replacement, at.batch)
        return one_head_replaced(at.model, at.clean, values, at.batch.positions, at.reading, heads=at.heads)

    return run


def _measured(
    model: Model,
    task: Task,
    run: _Run,
    *,
    heads: Heads | None,
    objective: str | Objective | Loss | None,
    batch_size: int | None,
    corrupted: bool = True,
) -> _Columns:
    """Margins of the whole runs and of those with one head replaced; heads not asked for are NaN."""
    task = model.bind(task)
    every = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    chosen = check_heads(every if heads is None else heads, model.n_layers, model.n_heads)
    places = [layer * model.n_heads + head for layer, head in chosen]
    loss = get_objective(objective or task.objective)
    extra = bytes_of_base(model, task.length)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra)
    full, other, one = [], [], []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        clean = base_run(model, batch.clean)
        logits = _read(model, clean, batch)
        reading = margin_reading(loss, batch, logits)
        rows = torch.arange(len(batch.indices), device=model.device)
        full.append(reading(logits, rows))
        counterpart = base_run(model, batch.corrupted) if corrupted else clean
        if corrupted:
            other.append(reading(_read(model, counterpart, batch), rows))
        one.append(
            run(
                _Prompts(
                    model=model,
                    batch=batch,
                    clean=clean,
                    corrupted=counterpart,
                    reading=reading,
                    heads=chosen,
                )
            )
        )
    table = np.full((task.n, len(every)), np.nan)
    table[:, places] = torch.cat(one).numpy()
    return _Columns(y_full=_float64(full), y_corrupted=_float64(other) if corrupted else None, y_one=table)


def margin_reading(
    objective: Objective, batch: Batch, clean_logits: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """From logits of some runs, and the prompts of a batch they belong to, to their margins (-loss)."""

    def reading(logits: Tensor, rows: Tensor) -> Tensor:
        chosen = map_tensors(batch, lambda tensor: tensor[rows])
        return -objective(logits.double(), clean_logits[rows].double(), chosen)

    return reading


@torch.no_grad()
def _read(model: Model, base: Trace, batch: Batch) -> Tensor:
    """Logits at the read position of a finished run."""
    assert base.final_in is not None
    return model.read(model.final_norm.module(base.final_in), batch.positions).to(model.result_dtype)


def _float64(parts: Sequence[Tensor]) -> Float64[np.ndarray, " P"]:
    return torch.cat(list(parts)).double().cpu().numpy()


def _provenance(
    model: Model, task: Task, score: str, objective: str | Objective | Loss | None, **settings: Any
) -> Mapping[str, Any]:
    return {
        "library": library_version(),
        "model": model.describe(),
        "task": task.describe(),
        "score": score,
        "objective": get_objective(objective or task.objective).key,
        **settings,
    }

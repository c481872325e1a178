"""What replacing one head at a time does to the margin, measured by runs: patching, mediation, dropping."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from assay.core.errors import check_least, check_name
from assay.discovery.heads.effects import (
    AGGREGATES,
    Heads,
    drop_scores,
    mediation_scores,
    patching_scores,
)
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.replacing import heads_of_model
from assay.discovery.heads.runs import OneByOne, base_run, bytes_of_base
from assay.discovery.heads.scores import HeadScores, provenance_of
from assay.execution import Ablation
from assay.execution.batches import choose_batch_size
from assay.execution.replacements import Replacement, Setting
from assay.models import Model, Trace
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Batch, Task, map_tensors


POSITIONS = ("last", "all")


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
        As `patching_scores`.

    Raises:
        InputError: For an unknown aggregate or impossible heads.

    Notes:
        Cost per prompt: two passes, and one from the head's block upwards per head, on average half a pass.
        Published results score the circuit's heads only.
    """
    check_name("aggregate", aggregate, AGGREGATES)
    chosen = get_objective(objective or task.objective)
    found = _measured(
        model,
        task,
        lambda clean, corrupted, one: one.everywhere(corrupted, clean.head_z),
        heads=heads,
        objective=chosen,
        batch_size=batch_size,
    )
    assert found.y_corrupted is not None
    return patching_scores(
        found.y_full,
        found.y_corrupted,
        found.y_one,
        n_heads=model.n_heads,
        aggregate=aggregate,
        provenance=provenance_of(
            model, task, score="activation-patching", objective=chosen.key, aggregate=aggregate
        ),
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
    check_name("positions", positions, POSITIONS)

    def crossed(clean: Trace, corrupted: Trace, one: OneByOne) -> Tensor:
        run = one.at_read if positions == "last" else one.everywhere
        return run(clean, corrupted.head_z)

    chosen = get_objective(objective or task.objective)
    found = _measured(model, task, crossed, heads=heads, objective=chosen, batch_size=batch_size)
    assert found.y_corrupted is not None
    return mediation_scores(
        found.y_full,
        found.y_corrupted,
        found.y_one,
        n_heads=model.n_heads,
        unit=chosen.unit,
        provenance=provenance_of(model, task, score="mediation", objective=chosen.key, positions=positions),
    )


def drop_effect(
    model: Model,
    task: Task,
    *,
    heads: Heads | None = None,
    ablation: str | Ablation = "mean",
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
    loss = get_objective(objective or task.objective)
    draws = chosen.draws if draws is None else draws
    check_least(1, draws=draws)
    size = choose_batch_size(model, task, asked=batch_size)
    setting = Setting(model=model, task=task, reference=reference or task, batch_size=size, seed=seed)
    tables = []
    for draw in range(draws):
        setting.draw = draw
        tables.append(
            _measured(
                model,
                task,
                partial(_dropped, chosen.prepare_heads(setting)),
                heads=heads,
                objective=loss,
                batch_size=batch_size,
                corrupted=False,
            )
        )
    dropped = np.mean([table.y_one for table in tables], axis=0)
    dropped[~chosen.served(setting)] = np.nan
    settings = {"ablation": chosen.key, "draws": draws}
    if draws > 1:
        settings["seed"] = seed
    if reference is not None:
        settings["reference"] = reference.describe()
    return drop_scores(
        tables[0].y_full,
        dropped,
        n_heads=model.n_heads,
        unit=loss.unit,
        details={"ablation": chosen.key, "draws": draws},
        provenance=provenance_of(model, task, score="drop-effect", objective=loss.key, **settings),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _HeadMargins:
    """Margins of whole runs `[P]` and of runs with one head replaced `[P, H]`."""

    y_full: Float64[np.ndarray, " P"]
    y_corrupted: Float64[np.ndarray, " P"] | None
    y_one: Float64[np.ndarray, "P H"]


# From the clean run, the corrupted one where it was asked for, and what starts from them, to margins.
_Run = Callable[[Trace, Trace, OneByOne], Tensor]


def _dropped(replacement: Replacement, clean: Trace, corrupted: Trace, one: OneByOne) -> Tensor:
    return one.dropped(clean, replacement)


def _measured(
    model: Model,
    task: Task,
    run: _Run,
    *,
    heads: Heads | None,
    objective: Objective,
    batch_size: int | None,
    corrupted: bool = True,
) -> _HeadMargins:
    """Margins of the whole runs and of those with one head replaced; heads not asked for are NaN."""
    task = model.bind(task)
    chosen = heads_of_model(model, heads)
    places = [layer * model.n_heads + head for layer, head in chosen]
    extra = bytes_of_base(model, task.length)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra)
    full, other, one = [], [], []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        clean = base_run(model, batch.clean)
        logits = _read(model, clean, batch)
        reading = margin_reading(objective, batch, logits)
        rows = torch.arange(len(batch.indices), device=model.device)
        full.append(reading(logits, rows))
        counterpart = base_run(model, batch.corrupted) if corrupted else clean
        if corrupted:
            other.append(reading(_read(model, counterpart, batch), rows))
        runs = OneByOne(model=model, batch=batch, reading=reading, heads=chosen)
        one.append(run(clean, counterpart, runs))
    table = np.full((task.n, model.n_layers * model.n_heads), np.nan)
    table[:, places] = torch.cat(one).numpy()
    return _HeadMargins(
        y_full=_float64(full), y_corrupted=_float64(other) if corrupted else None, y_one=table
    )


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
    return model.read(model.final_norm(base.final_in), batch.positions).to(model.result_dtype)


def _float64(parts: Sequence[Tensor]) -> Float64[np.ndarray, " P"]:
    return torch.cat(list(parts)).double().cpu().numpy()

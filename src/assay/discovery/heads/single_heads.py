"""What replacing one head at a time does to the margin, measured by runs: patching, mediation, dropping."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from assay.circuits.heads import check_heads
from assay.core.errors import InputError
from assay.core.record import library_version
from assay.discovery.heads.effects import (
    AGGREGATES,
    Heads,
    check_choice,
    drop_scores,
    mediation_scores,
    patching_scores,
)
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.replacing import replaced_outputs
from assay.discovery.heads.runs import (
    Reading,
    base_run,
    bytes_of_base,
    one_head_replaced,
    one_head_replaced_at_read,
)
from assay.discovery.heads.scores import HeadScores
from assay.execution import Ablation
from assay.execution.forward import choose_batch_size
from assay.execution.sites import Replacement, Setting
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
        As `patching_scores`; see `circuit_effect` for a circuit's sum.

    Raises:
        InputError: For an unknown aggregate or impossible heads.

    Notes:
        Cost per prompt: two passes, and one from the head's block upwards per head, on average half a pass.
        Published results score the circuit's heads only.
    """
    check_choice("aggregate", aggregate, AGGREGATES)
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
    check_choice("positions", positions, POSITIONS)
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
    draws = chosen.draws if draws is None else draws
    if draws < 1:
        raise InputError(f"draws is {draws}; give at least 1")
    size = choose_batch_size(model, task, asked=batch_size)
    setting = Setting(model=model, task=task, reference=reference or task, batch_size=size, seed=seed)
    tables = []
    for draw in range(draws):
        setting.draw = draw
        run = _dropped(chosen.prepare_heads(setting))
        tables.append(
            _measured(
                model, task, run, heads=heads, objective=objective, batch_size=batch_size, corrupted=False
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
        unit=get_objective(objective or task.objective).unit,
        details={"ablation": chosen.key, "draws": draws},
        provenance=_provenance(model, task, "drop-effect", objective, **settings),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _HeadMargins:
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
) -> _HeadMargins:
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

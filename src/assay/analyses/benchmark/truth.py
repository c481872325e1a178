"""Every method against models whose circuit is known: does a true edge score higher than any other?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from assay.analyses.benchmark.contenders import choose_entries, take_turn
from assay.analyses.benchmark.detection import Detected, detect
from assay.analyses.benchmark.targets import planted_task
from assay.core.errors import InputError, check_least
from assay.models.planted import Planted, planted_model, planted_names
from assay.objectives import get_objective


if TYPE_CHECKING:
    import pandas as pd

OBJECTIVES = ("logit_diff", "kl")
TRUTH_N = 64  # examples of each model

Progress = Callable[[str, int, int], None]


def measure_truth(
    models: Sequence[str | Planted] | None = None,
    methods: Sequence[str] | None = None,
    objectives: Sequence[str] = OBJECTIVES,
    *,
    n: int = TRUTH_N,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    progress: Progress | None = None,
) -> "pd.DataFrame":
    """Judge discovery methods on models whose circuit is known by construction.

    Args:
        models: Names of planted models, or planted models. Default: all of `planted_names()`.
        methods: Keys of methods, or `KEY@WORD` for a second one with options of its own. Default: all.
        objectives: Objectives to attribute, each in turn.
        n: Examples drawn from each model.
        options: Options by name of the competitor.
        batch_size: Examples per pass; default: by free memory.
        device: Where the models run; default: where they are.
        dtype: Number type of the weights of named models.
        seed: Root seed of examples, random scores and learned masks.
        progress: Called with (model, rows done, rows in all).

    Returns:
        A row for every model, method and objective: `n_edges`, `n_true`, the measures of `Detected` and the
        `seconds` of the discovery, NaN where the method refuses, with its `reason`.

    Raises:
        UnknownNameError: For an unknown model, method, option or objective.
        InputError: For an empty list, or `n` below 1.

    Notes:
        Scores are judged by |score| and by signed score: a method can find every edge and get signs wrong.

    Example:
        >>> table = measure_truth(["induction/gpt2/bare"], ["random", "eap"], ["logit_diff"], n=8)
        >>> float(table.set_index("method").auroc["eap"])
        1.0
    """
    import pandas as pd

    names = list(planted_names() if models is None else models)
    for what, values in (("models", names), ("objectives", list(objectives))):
        if not values:
            raise InputError(f"{what} is empty; name at least one, or remove it")
    for objective in objectives:
        get_objective(objective)
    entries = choose_entries(methods, options)
    check_least(1, n=n)
    total = len(names) * len(entries) * len(objectives)
    unknown = dict.fromkeys((each.name for each in fields(Detected)), math.nan)
    rows: list[dict[str, Any]] = []
    for name in names:
        planted = planted_model(name, dtype=dtype) if isinstance(name, str) else name
        if device is not None:
            planted.model.module.to(device)
        task = planted_task(planted, n=n, seed=seed)
        how: dict[str, Any] = {"ablation": None, "batch_size": batch_size, "seed": seed}
        for entry in entries:
            for objective in objectives:
                if progress is not None:
                    progress(planted.name, len(rows), total)
                turn = take_turn(entry, planted.model, task, objective=objective, **how)
                rows.append(
                    {
                        "model": planted.name,
                        "method": entry.name,
                        "objective": objective,
                        "n_edges": planted.model.graph.n_edges,
                        "n_true": len(planted.edges),
                        **(unknown if turn.scores is None else vars(detect(turn.scores, planted.edges))),
                        "seconds": math.nan if turn.scores is None else turn.cost.seconds,
                        "reason": turn.reason,
                    }
                )
    if progress is not None:
        progress("done", total, total)
    return pd.DataFrame(rows)

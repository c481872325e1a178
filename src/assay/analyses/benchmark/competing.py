"""One competitor's turn: its scores with what they cost, or why there are none."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.analyses.benchmark.cost import Cost, measured
from assay.analyses.benchmark.entries import Contender
from assay.circuits import EdgeScores
from assay.core.errors import AssayError, AssayWarning, InputError
from assay.core.record import plain
from assay.discovery.edges import discover
from assay.execution import Ablation
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """What one method gave.

    Attributes:
        scores: Its edge scores; None where it gave none.
        reason: Why not: what the method itself says; None where it gave some.
        cost: Seconds and memory.
        warnings: What it warned of, such as masks that did not converge.
        details: What it reports beside its scores, JSON-able.
    """

    scores: EdgeScores | None
    reason: str | None
    cost: Cost
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


def take_turn(
    entry: Contender,
    model: Model,
    task: Task,
    *,
    objective: str | Objective | Loss | None,
    ablation: str | Ablation | None,
    batch_size: int | None,
    seed: int,
) -> Turn:
    """Let one method score the edges; a refusal of these settings is a result, not a failure.

    Errors that are not the package's own pass through.
    """
    asked: dict[str, Any] = {"objective": objective, "batch_size": batch_size} | dict(entry.options)
    with warnings.catch_warnings(record=True) as caught, measured(model) as cost:
        warnings.simplefilter("always")
        scores, reason = None, None
        try:
            scores = discover(model, task, entry.key, ablation=ablation, seed=seed, **asked)
        except AssayError as error:
            reason = str(error)
    said = tuple(
        dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, AssayWarning))
    )
    details = {} if scores is None else json_details(scores.details)
    return Turn(scores=scores, reason=reason, cost=cost, warnings=said, details=details)


def json_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Details as JSON can say them; what it cannot is written out as text."""
    kept: dict[str, Any] = {}
    for name, value in details.items():
        try:
            kept[str(name)] = plain(value)
        except InputError:
            kept[str(name)] = str(value)
    return kept

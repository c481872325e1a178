"""What an audit costs here, and the richest one that a budget of passes or of time allows."""

import math
import re
from dataclasses import dataclass, replace

from assay.core.errors import InputError
from assay.objectives import Objective
from assay.pipeline.audit_plan import BUDGET, DEFAULT, N_FULL, STAGES, AuditPlan, N, Scope
from assay.pipeline.cost import Forecast, cost_of
from assay.pipeline.sizing import COARSE, FINE
from assay.tasks import Task


FEWEST = 10  # prompts of either draw that a budget may choose
_UNITS = {"s": 1, "m": 60, "h": 3600}


def read_budget(budget: str | int) -> tuple[float, str]:
    """A budget as a number and its unit, `passes` or `seconds`.

    Args:
        budget: Passes as a whole number, or a time: `600s`, `10m`, `2h`, `1.5h`.

    Raises:
        InputError: For any other text, and for 0.
    """
    wrong = InputError(f"budget is {budget!r}; give passes as a whole number, or a time as 600s, 10m or 2h")
    if isinstance(budget, bool) or not isinstance(budget, str | int):
        raise wrong
    match = re.fullmatch(r"([0-9]+)|([0-9]+(?:\.[0-9]+)?)([smh])", str(budget).strip())
    if match is None:
        raise wrong
    amount = float(match[1] or match[2]) * _UNITS.get(match[3], 1)
    if amount <= 0 or not math.isfinite(amount):
        raise wrong
    return amount, "seconds" if match[3] else "passes"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What an audit may cost.

    Attributes:
        passes: Forward-equivalents over single examples.
        text: As the user wrote it, for messages.
    """

    passes: int
    text: str

    def __str__(self) -> str:
        if self.text.isdecimal():
            return f"a budget of {self.passes:,} passes"
        return f"a budget of {self.text} (about {self.passes:,} passes here)"


def fitted(plan: AuditPlan, budget: Budget, *, fixed: bool, full: bool) -> AuditPlan:
    """The richest plan within a budget.

    Tried in this order: a full audit of 200 and of 100 prompts, one without the gates that need further
    runs, one without all pairs of fresh prompts too; the default audit of 200, 100, 50 and 20 prompts; then
    without curve and random circuits of 20 and 10.

    Args:
        plan: Model, method, the prompts there are, and what the user leaves out.
        budget: What it may cost.
        fixed: Whether the number of prompts is the user's and stays.
        full: Begin with the stages of a full audit and leave out whole stages, never take the smaller form.

    Raises:
        InputError: If the budget is below the cost of discovery, or of the smallest audit.
    """
    candidates = [
        replace(plan, n=count, scope=scope)
        for scope, counts in _ladder(plan.scope, full=full)
        for count in ((plan.n,) if fixed else (min(each, plan.n) for each in counts))
    ]
    for candidate in candidates:
        if candidate.passes <= budget.passes:
            return candidate
    smallest = candidates[-1]
    discovery = smallest.stages[0].passes
    if budget.passes < discovery:
        raise InputError(
            f"{budget} is below the cost of discovery: {discovery:,} passes for n = {smallest.n}; give more"
        )
    raise InputError(
        f"{budget} is below the cost of the smallest audit: {smallest.passes:,} passes for n = {smallest.n}, "
        f"of which discovery takes {discovery:,}; give more"
    )


def _ladder(scope: Scope, *, full: bool) -> list[tuple[Scope, tuple[int, ...]]]:
    """Scopes with the numbers of prompts to try each with, richest first."""
    small = replace(scope, larger=frozenset(), search=COARSE).without(("minimality",), BUDGET)
    whole = {stage: cause for stage, cause in scope.causes.items() if cause != DEFAULT}
    large = replace(scope, larger=frozenset(STAGES), causes=whole, search=FINE)
    bare = (("calibrate",), ("calibrate", "minimality"), ("calibrate", "minimality", "curve"), STAGES)
    if full:
        steps = [(large.without(less, BUDGET), (N_FULL, N, 50)) for less in ((), *bare)]
        return [*steps, (steps[-1][0], (20, FEWEST))]
    return [
        (large, (N_FULL, N)),
        (replace(large, larger=large.larger - {"calibrate"}), (N,)),
        (replace(large, larger=large.larger - {"calibrate", "attack"}), (N,)),
        (small, (N_FULL, N, 50, 20)),
        (small.without(("curve",), BUDGET), (20,)),
        (small.without(("curve", "random"), BUDGET), (20, FEWEST)),
    ]


def audit_cost(
    plan: AuditPlan,
    task: Task,
    *,
    objective: str | Objective | None = None,
    batch_size: int | None = None,
) -> Forecast:
    """What a plan costs on these examples."""
    model = plan.model
    table = model.graph.n_sources * model.graph.n_targets
    return replace(
        cost_of(
            model,
            plan.n,
            plan.stages,
            task,
            batch_size=batch_size,
            method=plan.method,
            steps=plan.steps,
            objective=objective,
            ablation=plan.ablation,
        ),
        stored_bytes=2 * (4 * table) + table + 64 * plan.n * len(plan.metric_keys),
        left_out=tuple(plan.left_out),
    )

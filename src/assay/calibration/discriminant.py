"""Do the heads of a circuit matter for their task more than for others."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.calibration._samples import FEWEST, sample
from assay.calibration._tables import percentile_bounds, scored_heads
from assay.calibration.gate import SEED, gate, gate_stream, positive, undefined
from assay.errors import InputError, ShapeError
from assay.measurement import Rule, Verdict
from assay.stats import draw_counts


CAP = 1000.0  # a ratio whose denominator nearly vanishes
SHARED = 0.3  # overlap of circuits above which effects on each other are no surprise
_TINY = 1e-8  # added to the published denominator


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    """Effects on one task: per-prompt sums over heads need only these two."""

    effects: Float64[np.ndarray, "n H"]
    gaps: Float64[np.ndarray, " n"]
    members: Bool[np.ndarray, " H"]
    n_dropped: int

    @property
    def n(self) -> int:
        return len(self.gaps)


def _own_ratio(
    own: Float64[np.ndarray, "*draws"], off: Float64[np.ndarray, "*draws"]
) -> Float64[np.ndarray, "*draws"]:
    """Own effect over the size of the mean effect elsewhere, within -1000 and 1000; 0 where both vanish."""
    size = np.abs(off)
    ratio = np.divide(own, size, out=np.where(np.isnan(own + off), np.nan, 0.0), where=size > 0)
    capped = size * CAP < np.abs(own)
    return np.asarray(np.where(capped, np.sign(own) * CAP, ratio))


@gate(
    key="discriminant-validity",
    code="C17",
    name="Discriminant validity",
    criterion="M3 discriminant validity",
    needs=("effects", "circuits"),
    question="Do the heads of a circuit matter more for their own task than for others?",
    on_pass="the heads matter for their task more than for others",
    on_fail="shared computation or too broad a circuit (expected for overlapping tasks)",
    weakness="the mean over other tasks lets effects of opposite sign cancel",
    source="mechanistic-validity framework",
)
def discriminant_validity(
    effects: Mapping[str, Any],
    circuits: Mapping[str, Bool[np.ndarray, " H"]],
    *,
    gaps: Mapping[str, Any] | None = None,
    unit_id: Mapping[str, Shaped[np.ndarray, " P"]] | None = None,
    n_boot: int = 1000,
    seed: int = SEED,
) -> Verdict:
    """Effect of each circuit's heads on its own task over their effect on the other tasks.

    E[a][b] is the mean over the heads of circuit a of their patching effects on task b, the ratio of a
    E[a][a] / |mean over b of E[a][b]|, and the value the mean of the ratios.

    Args:
        effects: Task -> `[P, H]` patching effects, P free to differ between tasks; NaN marks a head without a
            score (a whole column, then dropped from all tasks) or a prompt to drop.
        circuits: Task -> the heads of its circuit.
        gaps: Task -> `[P]` clean minus corrupted margin: effects are then unnormalised differences, and the
            effect of a head is the ratio of the sums. None: the mean of the effects given.
        unit_id: Task -> label of each prompt; prompts of one label are drawn together. Those of tasks
            without labels stand alone.
        n_boot: Resamples of the prompts within each task.
        seed: Roots the random stream.

    Returns:
        Passes where the mean ratio is above 3; `sub_results` has each task. Ratios are capped at 1000.
        `details`: effect `matrix`, `z` of each off-diagonal effect against random sets of as many heads,
        `jaccard` of circuits; pairs that overlap by more than 0.3 are `shared_heads`, and the ratio without
        their common heads stands in `ratio_without_shared`. An own effect of 0 or less fails the published
        rule, with reason `no_own_effect`. `not_applicable` below two tasks with a circuit.
    """
    positive("n_boot", n_boot)
    limits: dict[str, float | None] = {"pass": 3.0, "fail": 3.0}
    if set(effects) != set(circuits):
        raise InputError(f"effects has tasks {sorted(effects)}, circuits {sorted(circuits)}; give the same")
    if gaps is not None and not set(effects) <= set(gaps):
        raise InputError(f"gaps has tasks {sorted(gaps)}, effects {sorted(effects)}; give gaps for each")
    if unit_id is not None and not set(unit_id) <= set(effects):
        raise InputError(f"unit_id has tasks {sorted(unit_id)}, effects {sorted(effects)}; name only these")
    empty = [name for name in effects if not circuits[name].any()]
    tasks, heads = _tasks(
        {name: table for name, table in effects.items() if name not in empty}, circuits, gaps, unit_id
    )
    warnings = [*(["empty_circuit"] if empty else []), *([] if heads.all() else ["missing_heads"])]
    warnings += ["prompts_dropped"] if any(task.n_dropped for task in tasks.values()) else []
    notes: dict[str, Any] = {"skipped": empty, "n_prompts": {name: task.n for name, task in tasks.items()}}
    short = [name for name, task in tasks.items() if task.n < FEWEST]
    reason = None
    if len(tasks) < 2:
        reason = "not_applicable"
    elif short:
        reason = "too_few" if all(task.n for task in tasks.values()) else "no_valid_prompt"
    elif any(not abs(task.gaps.mean()) >= _TINY for task in tasks.values()):
        reason = "zero_denominator"
    elif any(not task.members.any() for task in tasks.values()):
        reason = "missing_heads"
    if reason:
        return undefined(reason, thresholds=limits, warnings=tuple(warnings), details=notes)

    names = tuple(tasks)
    every = [np.ones((1, task.n)) for task in tasks.values()]
    rng = gate_stream("C17", seed=seed)  # not by name: relabelled tasks keep their draws
    drawn = [draw_counts(task.n, n_boot, rng) for task in tasks.values()]
    circuits_used = [task.members for task in tasks.values()]
    matrix = _effect_matrix(tasks, circuits_used, every)[0]
    ratios, off = _ratios(matrix[None])
    resampled, _ = _ratios(_effect_matrix(tasks, circuits_used, drawn))
    n = min(task.n for task in tasks.values())
    overlap, shared, alone = _shared(tasks, circuits_used)
    if (overlap[np.triu_indices(len(names), k=1)] == 1).any():
        warnings.append("identical_circuits")
    rule = Rule(pass_at=3.0)
    parts = {}
    for i, name in enumerate(names):
        own = float(matrix[i, i])
        others = np.delete(matrix[i], i)
        published = own / (abs(float(off[0, i])) + _TINY)
        each = rule.judge(
            float(ratios[0, i]), percentile_bounds(float(ratios[0, i]), resampled[:, i]), tasks[name].n
        )
        parts[name] = replace(
            each,
            published=rule.published(published),
            values={
                "value": float(ratios[0, i]),
                "own_effect": own,
                "off_mean": float(off[0, i]),
                "ratio_published": published,
                "ratio_mean_abs": own / float(np.abs(others).mean()) if others.any() else None,
                "ratio_without_shared": alone[i],
            },
            reason="no_own_effect" if own <= 0 else each.reason,
            warnings=tuple(
                code
                for code, found in (
                    ("ratio_capped", abs(ratios[0, i]) == CAP),
                    ("shared_heads", any(name in pair for pair in shared)),
                )
                if found
            ),
        )
    value = float(ratios[0].mean())
    baseline = [_random_set(tasks[b], k=int(tasks[a].members.sum())) for a in names for b in names]
    mean, sd = (np.array([each[part] for each in baseline]).reshape(len(names), -1) for part in (0, 1))
    z = np.divide(matrix - mean, sd, out=np.full(matrix.shape, np.nan), where=sd > 0)
    np.fill_diagonal(z, np.nan)
    measured = z[np.isfinite(z)]
    published_value = float(np.mean([part.values["ratio_published"] for part in parts.values()]))
    whole = rule.judge(value, percentile_bounds(value, resampled.mean(axis=1)), n)
    return replace(
        whole,
        published=rule.published(published_value),
        values={
            "value": value,
            "mean_ratio_published": published_value,
            "share_off_diagonal_like_random": float((np.abs(measured) < 2).mean()) if len(measured) else None,
        },
        reason="no_own_effect" if (np.diag(matrix) <= 0).all() else whole.reason,
        sub_results=parts,
        warnings=(*warnings, *(["shared_heads"] if shared else [])),
        details={
            **notes,
            "tasks": names,
            "matrix": matrix,
            "random_mean": mean,
            "random_sd": sd,
            "z": z,
            "jaccard": overlap,
            "shared_heads": [list(pair) for pair in shared],
        },
    )


def _tasks(
    effects: Mapping[str, Any],
    circuits: Mapping[str, Bool[np.ndarray, " H"]],
    gaps: Mapping[str, Any] | None,
    unit_id: Mapping[str, Shaped[np.ndarray, " P"]] | None,
) -> tuple[dict[str, _Task], Bool[np.ndarray, " H"]]:
    """Each task's effects on the heads that all tasks score, and which heads these are."""
    tables = {name: np.asarray(table, dtype=np.float64) for name, table in effects.items()}
    if not tables:
        return {}, np.zeros(0, dtype=np.bool_)
    shapes = {name: (table.shape, circuits[name].shape) for name, table in tables.items()}
    if any(table.ndim != 2 for table in tables.values()) or (
        len({table.shape[1] for table in tables.values()} | {len(circuits[name]) for name in tables}) > 1
    ):
        raise ShapeError(f"effects must be [prompts, H] and circuits [H] with the same H, got {shapes}")
    heads = np.all(
        [scored_heads(table) for table in tables.values() if len(table)] or [np.ones(1, dtype=np.bool_)],
        axis=0,
    )
    heads = np.broadcast_to(heads, next(iter(tables.values())).shape[1:])
    found = {}
    for name, table in tables.items():
        gap = np.ones(len(table)) if gaps is None else gaps[name]
        kept = sample(None if unit_id is None else unit_id.get(name), effects=table[:, heads], gaps=gap)
        found[name] = _Task(
            effects=kept.vectors[0],
            gaps=kept.vectors[1],
            members=circuits[name][heads],
            n_dropped=kept.n_dropped,
        )
    return found, np.asarray(heads)


def _effect_matrix(
    tasks: Mapping[str, _Task],
    circuits: list[Bool[np.ndarray, " H"]],
    counts: list[Float64[np.ndarray, "draws _"]],
) -> Float64[np.ndarray, "draws T T"]:
    """E[a][b] from how often each prompt of task b is drawn; NaN for an empty circuit."""
    columns = []
    for task, drawn in zip(tasks.values(), counts, strict=True):
        means = np.stack(
            [
                task.effects[:, members].mean(axis=1) if members.any() else np.full(task.n, np.nan)
                for members in circuits
            ],
            axis=1,
        )
        columns.append((drawn @ means) / (drawn @ task.gaps)[:, None])
    return np.stack(columns, axis=2)


def _ratios(
    matrix: Float64[np.ndarray, "draws T T"],
) -> tuple[Float64[np.ndarray, "draws T"], Float64[np.ndarray, "draws T"]]:
    """Ratio and off-diagonal mean of each circuit."""
    own = np.diagonal(matrix, axis1=1, axis2=2)
    off = (matrix.sum(axis=2) - own) / (matrix.shape[1] - 1)
    return _own_ratio(own, off), np.asarray(off)


def _random_set(task: _Task, *, k: int) -> tuple[float, float]:
    """Exact mean and spread of the mean effect of k random heads on a task."""
    effect = task.effects.sum(axis=0) / task.gaps.sum()
    n = len(effect)
    finite_population = (n - k) / (n - 1) if n > 1 else 0.0
    return float(effect.mean()), math.sqrt(effect.var() / k * finite_population)


def _shared(
    tasks: Mapping[str, _Task], circuits: list[Bool[np.ndarray, " H"]]
) -> tuple[Float64[np.ndarray, "T T"], list[tuple[str, str]], list[float | None]]:
    """Jaccard of each pair, pairs that share many heads, ratios without the heads shared by such pairs."""
    flags = np.stack(circuits).astype(np.float64)
    both = flags @ flags.T
    sizes = flags.sum(axis=1)
    overlap = both / (sizes[:, None] + sizes[None] - both)
    pairs = [(a, b) for a, b in itertools.combinations(range(len(circuits)), 2) if overlap[a, b] > SHARED]
    left = [members.copy() for members in circuits]
    for a, b in pairs:
        common = circuits[a] & circuits[b]
        left[a] &= ~common
        left[b] &= ~common
    ratios, _ = _ratios(_effect_matrix(tasks, left, [np.ones((1, task.n)) for task in tasks.values()]))
    concerned = {i for pair in pairs for i in pair}
    names = tuple(tasks)
    alone = [float(ratios[0, i]) if i in concerned and left[i].any() else None for i in range(len(circuits))]
    return overlap, [(names[a], names[b]) for a, b in pairs], alone

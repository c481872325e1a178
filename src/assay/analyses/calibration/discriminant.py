"""Do the heads of a circuit matter for their task more than for others."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration._tables import scored_heads
from assay.analyses.calibration.gate import N_STUDENTIZED, SEED, Draft, gate, gate_stream
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.samples import FEWEST, FEWEST_AT_A_THIRD, cautious_alpha, sample
from assay.core.errors import InputError, ShapeError, check_least, unknown_name
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, Verdict, n_to_settle, undefined_interval
from assay.stats import draw_counts, outermost, resampled_ratios, studentized_interval


TIMES = 3.0  # an own effect of so many times the mean effect on other tasks passes
CAP = 1000.0  # a ratio whose denominator nearly vanishes, where it is shown
SHARED = 0.3  # overlap of circuits above which effects on each other are not surprising
_TINY = 1e-8  # added to the published denominator
_PLAIN_FROM = 40  # prompts, from which bootstrap-t bounds hold for exponential effects
_RULE = Rule(pass_at=0.0)
_PUBLISHED = Rule(pass_at=TIMES)


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
    criterion="M3 Baseline separation",
    question="Do the heads of a circuit matter more for their own task than for others?",
    on_pass="the heads matter for their task more than for others",
    on_fail="shared computation or too broad a circuit (expected for overlapping tasks)",
    weakness=(
        "the published value is the mean ratio over all circuits, so that another task's circuit can decide; "
        "the mean over other tasks lets effects of opposite sign cancel"
    ),
    number=Quantity(label="effect on the own task less three times that on others", published=None),
    reasons={
        "not_applicable": (
            "It needs a second task with its own circuit.",
            "Name one with --against (against= in Python).",
        )
    },
    parts_share_reasons=False,
)
def discriminant_validity(
    effects: Mapping[str, Any],
    circuits: Mapping[str, Bool[np.ndarray, " H"]],
    *,
    own: str | None = None,
    gaps: Mapping[str, Any] | None = None,
    unit_id: Mapping[str, Shaped[np.ndarray, " P"]] | None = None,
    n_boot: int = N_STUDENTIZED,
    seed: int = SEED,
) -> Verdict:
    """Effect of a circuit's heads on their own task against their effect on the other tasks.

    E[a][b] is the mean over the heads of circuit a of their patching effects on task b; E = E[own][own], m
    the mean over the other tasks b of E[own][b]. Published: the mean over circuits of E / |m|, above 3. With
    confidence: E - 3 |m| above 0 for the circuit of `own`, that is both E - 3 m and E + 3 m. Their bounds are
    the outermost of Student's and bootstrap-t ones over prompts, without a division by m.

    Args:
        effects: Task -> `[P, H]` patching effects, P free to differ between tasks; NaN marks a head without a
            score (a whole column, then dropped from all tasks) or a prompt to drop.
        circuits: Task -> the heads of its circuit.
        own: The task whose circuit is judged. Needed with more than one circuit.
        gaps: Task -> `[P]` clean minus corrupted margin: effects are then unnormalised differences, and the
            effect of a head is the ratio of the sums. None: the mean of the effects given.
        unit_id: Task -> label of each prompt; prompts of one label are drawn together. Those of tasks
            without labels stand alone.
        n_boot: Resamples of the prompts within each task.
        seed: Roots the random stream.

    Returns:
        The verdict on E - 3 |m| (`value`); `ratio`, E / |m| within -1000 and 1000, is for display.
        `sub_results` judges each circuit alike. An end is the lower of those of E - 3 m and E + 3 m; a pass
        needs both, so lower ends are at 5 %, a fail one, so upper ends are at 2.5 %. Open below 5 prompts of
        some task (`too_few`); below 40 bounds are taken at a third of 5 %. `details`: effect `matrix`, `z` of
        each off-diagonal effect against random sets of as many heads, `jaccard` of circuits; pairs that
        overlap by more than 0.3 are `shared_heads`, and the ratio without their common heads stands in
        `ratio_without_shared`. An own effect of 0 or less is flagged by reason `no_own_effect`.
        `not_applicable` below two tasks with a circuit, or where `own` has none.

    Raises:
        InputError: If `own` is missing, or the tasks of `effects` and `circuits` differ.
        UnknownNameError: If `own` is not one of the tasks.
    """
    check_least(1, n_boot=n_boot)
    empty = _without_circuit(effects, circuits, own, gaps, unit_id)
    tasks, heads = _tasks(
        {name: table for name, table in effects.items() if name not in empty}, circuits, gaps, unit_id
    )
    draft = Draft(
        thresholds={"pass": 0.0, "fail": 0.0, "ratio": TIMES},
        details={
            "own": own,
            "skipped": empty,
            "n_prompts": {name: task.n for name, task in tasks.items()},
        },
    )
    draft.warn("empty_circuit", bool(empty))
    draft.warn("missing_heads", not heads.all())
    draft.warn("prompts_dropped", any(task.n_dropped for task in tasks.values()))
    if reason := _undefined(tasks, own if own not in empty else None):
        return draft.undefined(reason)
    assert own is not None
    # The stream is not by name: relabelled tasks keep their draws.
    sampled = _effects(tasks, gate_stream("C17", seed=seed), n_boot)
    overlap, shared, alone = _shared(tasks)
    draft.warn("identical_circuits", bool((overlap[np.triu_indices(len(tasks), k=1)] == 1).any()))
    draft.warn("shared_heads", bool(shared))
    parts = {
        name: _judged(
            sampled,
            i,
            draft.thresholds,
            {"ratio_without_shared": alone[i]},
            ("shared_heads",) if any(name in pair for pair in shared) else (),
        )
        for i, name in enumerate(tasks)
    }
    random = _random_sets(tasks, sampled.matrix)
    measured = random["z"][np.isfinite(random["z"])]
    published = float(np.mean([part.values["ratio_published"] for part in parts.values()]))
    draft.details |= {
        "tasks": tuple(tasks),
        "matrix": sampled.matrix,
        **random,
        "jaccard": overlap,
        "shared_heads": [list(pair) for pair in shared],
    }
    draft.values = {
        **{name: parts[own].values[name] for name in ("value", "ratio", "own_effect", "off_mean")},
        "mean_ratio_published": published,
        "share_off_diagonal_like_random": float((np.abs(measured) < 2).mean()) if len(measured) else None,
    }
    return draft.verdict(parts[own], published=_PUBLISHED.published(published), sub_results=parts)


def _without_circuit(
    effects: Mapping[str, Any],
    circuits: Mapping[str, Bool[np.ndarray, " H"]],
    own: str | None,
    gaps: Mapping[str, Any] | None,
    unit_id: Mapping[str, Shaped[np.ndarray, " P"]] | None,
) -> list[str]:
    """Tasks whose circuit is empty, once all names are known to fit together."""
    if set(effects) != set(circuits):
        raise InputError(
            f"effects has tasks {sorted(effects)}, circuits {sorted(circuits)}; give the same tasks"
        )
    if gaps is not None and not set(effects) <= set(gaps):
        raise InputError(f"gaps has tasks {sorted(gaps)}, effects {sorted(effects)}; give gaps for each")
    if unit_id is not None and not set(unit_id) <= set(effects):
        raise InputError(f"unit_id has tasks {sorted(unit_id)}, effects {sorted(effects)}; name only these")
    if own is not None and own not in effects:
        raise unknown_name("own task", own, effects)
    empty = [name for name in effects if not circuits[name].any()]
    if own is None and len(effects) - len(empty) > 1:
        raise InputError(f"own= is missing; name the task whose circuit is judged, one of {sorted(effects)}")
    return empty


def _undefined(tasks: Mapping[str, _Task], own: str | None) -> str | None:
    """Why there is nothing to compare, or None."""
    if len(tasks) < 2 or own is None:
        return "not_applicable"
    if any(task.n < FEWEST for task in tasks.values()):
        return "too_few" if all(task.n for task in tasks.values()) else "no_valid_prompt"
    if any(not abs(task.gaps.mean()) >= _TINY for task in tasks.values()):
        return "zero_denominator"
    return "missing_heads" if any(not task.members.any() for task in tasks.values()) else None


def _random_sets(
    tasks: Mapping[str, _Task], matrix: Float64[np.ndarray, "T T"]
) -> dict[str, Float64[np.ndarray, "T T"]]:
    """Mean and spread of random sets of as many heads on each task, and z of the circuits beside them."""
    sets = [
        _random_set(on, k=int(circuit.members.sum())) for circuit in tasks.values() for on in tasks.values()
    ]
    mean, sd = (np.array([each[part] for each in sets]).reshape(matrix.shape) for part in (0, 1))
    z = np.divide(matrix - mean, sd, out=np.full(matrix.shape, np.nan), where=sd > 0)
    np.fill_diagonal(z, np.nan)
    return {"random_mean": mean, "random_sd": sd, "z": z}


def _judged(
    sampled: "_Effects",
    i: int,
    thresholds: Mapping[str, float | None],
    values: Mapping[str, float | None],
    warnings: tuple[str, ...],
) -> Verdict:
    """Whether E - 3 |m| of one circuit is above 0: both E - 3 m and E + 3 m."""
    n = min(sampled.n_prompts)
    effect, others = float(sampled.matrix[i, i]), np.delete(sampled.matrix[i], i)
    ratios, means = _ratios(sampled.matrix)
    published = effect / (abs(float(means[i])) + _TINY)
    point, lows, highs = _both_signs(sampled, i, cautious_alpha(n, _PLAIN_FROM))
    defined = all(each.defined for each in (*lows, *highs))
    interval = Interval(
        low=min(each.low for each in lows),
        high=min(each.high for each in highs),
        level=ONE_SIDED_95,
        method="bootstrap-t",
    )
    status, reason, needed = _RULE.rigorous(interval), "no_own_effect" if effect <= 0 else None, None
    if all(each.reason == "degenerate" for each in lows):
        # Nothing varies between prompts: the limit itself does not pass, as in the published rule.
        status = "pass" if point > 0 else "fail"
    elif n < FEWEST_AT_A_THIRD:
        status, reason, needed = "inconclusive", "too_few", FEWEST_AT_A_THIRD
    elif not defined:
        status, reason = "inconclusive", "undefined_replicates"
    elif status == "inconclusive":
        needed = n_to_settle(n, point, interval, 0.0)
    return Verdict(
        status=status,
        published=_PUBLISHED.published(published),
        values={
            "value": point,
            "ratio": float(ratios[i]),
            "own_effect": effect,
            "off_mean": float(means[i]),
            "ratio_published": published,
            "ratio_mean_abs": effect / float(np.abs(others).mean()) if others.any() else None,
            **values,
        },
        thresholds=thresholds,
        interval=interval if defined else undefined_interval(ONE_SIDED_95, "bootstrap-t", str(reason)),
        n_needed=needed,
        reason=reason,
        warnings=(("ratio_capped",) if abs(ratios[i]) == CAP else ()) + warnings,
    )


def _both_signs(
    sampled: "_Effects", i: int, alpha: float
) -> tuple[float, tuple[Interval, ...], tuple[Interval, ...]]:
    """The lesser of E - 3 m and E + 3 m, and bounds of each: for the lower end, and for the upper one."""
    n_tasks = len(sampled.n_prompts)
    combinations = np.full((2, n_tasks), TIMES / (n_tasks - 1)) * np.array([[-1.0], [1.0]])
    combinations[:, i] = 1.0
    point = min(float(sampled.matrix[i] @ each) for each in combinations)
    lows, highs = (
        tuple(sampled.bounds(i, each, level) for each in combinations) for level in (1 - 2 * alpha, 1 - alpha)
    )
    return point, lows, highs


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
        raise ShapeError(
            f"effects and circuits have shapes {shapes}; expected [prompts, H] and [H] with the same H"
        )
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Effects:
    """E[a][b], its standard error, and both in resamples of the prompts of each task.

    Attributes:
        matrix, errors: `[T, T]` circuit, task.
        replicates, replicate_errors: `[draws, T, T]`.
        n_prompts: Of each task.
    """

    matrix: Float64[np.ndarray, "T T"]
    errors: Float64[np.ndarray, "T T"]
    replicates: Float64[np.ndarray, "draws T T"]
    replicate_errors: Float64[np.ndarray, "draws T T"]
    n_prompts: tuple[int, ...]

    def bounds(self, i: int, weights: Float64[np.ndarray, " T"], level: float) -> Interval:
        """The outermost of Student's and bootstrap-t ends of a weighted sum over tasks."""
        point = float(self.matrix[i] @ weights)
        parts = (weights * self.errors[i]) ** 2
        error = math.sqrt(parts.sum())
        found = studentized_interval(
            point,
            error,
            self.replicates[:, i] @ weights,
            np.sqrt(self.replicate_errors[:, i] ** 2 @ weights**2),
            level=level,
        )
        if error == 0:
            return found
        # Prompts of different tasks are independent; degrees of freedom: Welch (1947), Satterthwaite (1946).
        freedom = parts.sum() ** 2 / (parts**2 / (np.array(self.n_prompts) - 1)).sum()
        reach = float(scipy.stats.t.ppf((1 + level) / 2, freedom)) * error
        student = Interval(low=point - reach, high=point + reach, level=level, method="student")
        return outermost(found, student)


def _mean_effects(task: _Task, circuits: list[Bool[np.ndarray, " H"]]) -> Float64[np.ndarray, "n n_circuits"]:
    """Mean effect of each circuit's heads on each prompt; NaN for an empty circuit."""
    columns = [
        task.effects[:, members].mean(axis=1) if members.any() else np.full(task.n, np.nan)
        for members in circuits
    ]
    return np.stack(columns, axis=1)


def _effects(tasks: Mapping[str, _Task], rng: np.random.Generator, n_boot: int) -> _Effects:
    circuits = [task.members for task in tasks.values()]
    values, errors = [], []
    for task in tasks.values():
        counts = np.concatenate([np.ones((1, task.n)), draw_counts(task.n, n_boot, rng)])
        found = resampled_ratios(_mean_effects(task, circuits), task.gaps, counts)
        values.append(found[0])
        errors.append(found[1])
    every, their_errors = np.stack(values, axis=2), np.stack(errors, axis=2)
    return _Effects(
        matrix=every[0],
        errors=their_errors[0],
        replicates=every[1:],
        replicate_errors=their_errors[1:],
        n_prompts=tuple(task.n for task in tasks.values()),
    )


def _ratios(
    matrix: Float64[np.ndarray, "T T"],
) -> tuple[Float64[np.ndarray, " T"], Float64[np.ndarray, " T"]]:
    """Ratio and off-diagonal mean of each circuit."""
    own = np.diagonal(matrix)
    off = (matrix.sum(axis=1) - own) / (len(matrix) - 1)
    return _own_ratio(own, off), np.asarray(off)


def _random_set(task: _Task, *, k: int) -> tuple[float, float]:
    """Exact mean and spread of the mean effect of k random heads on a task."""
    effect = task.effects.sum(axis=0) / task.gaps.sum()
    n = len(effect)
    finite_population = (n - k) / (n - 1) if n > 1 else 0.0
    return float(effect.mean()), math.sqrt(effect.var() / k * finite_population)


def _shared(
    tasks: Mapping[str, _Task],
) -> tuple[Float64[np.ndarray, "T T"], list[tuple[str, str]], list[float | None]]:
    """Jaccard of each pair, pairs that share many heads, ratios without the heads shared by such pairs."""
    circuits = [task.members for task in tasks.values()]
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
    columns = [_mean_effects(task, left).sum(axis=0) / task.gaps.sum() for task in tasks.values()]
    ratios, _ = _ratios(np.stack(columns, axis=1))
    concerned = {i for pair in pairs for i in pair}
    names = tuple(tasks)
    alone = [float(ratios[i]) if i in concerned and left[i].any() else None for i in range(len(circuits))]
    return overlap, [(names[a], names[b]) for a, b in pairs], alone

"""C17, discriminant validity: do the heads of a circuit matter for their task more than for others?"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Shaped

from assay import stats
from assay.analyses.calibration.gate import Found, Quantity, Sampling, Undetermined, gate, gate_stream
from assay.analyses.calibration.samples import cautious_alpha, sample
from assay.core.errors import InputError, ShapeError, check_name
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, undefined_interval
from assay.page.blocks import Cell, Table, heat_map
from assay.page.text import number


TIMES = 3.0  # an own effect of so many times the mean effect on other tasks passes
CAP = 1000.0  # a ratio whose denominator nearly vanishes, where it is shown
_TINY = 1e-8  # added to the published denominator
_VALUE = Quantity(label="effect on the own task less 3 times others", rule=Rule(pass_at=0.0), published=None)

Matrix = Float64[np.ndarray, "draws T T"]  # circuit, task
Row = Float64[np.ndarray, "draws T"]
Flags = Bool[np.ndarray, "T H"]


def _heat(details: Mapping[str, Any]) -> Table | None:
    """The effects of each task's circuit on each task."""
    if not details.get("tasks"):
        return None
    matrix, z = (np.array(details[name], dtype=np.float64) for name in ("matrix", "z"))
    names = [str(task) for task in details["tasks"]][:12]
    shares = np.abs(matrix) / (float(np.nanmax(np.abs(matrix))) or 1.0)

    def cell(i: int, j: int) -> Cell:
        value, share = number(matrix[i, j]), shares[i, j]
        apart = f"; {number(z[i, j], 1)} standard deviations from as many random heads"
        style = ("minus" if matrix[i, j] < 0 else "plus") + " deep" * bool(share > 0.7) + " found" * (i == j)
        known = apart if math.isfinite(z[i, j]) else ""
        title = f"circuit of {names[i]}, effect on {names[j]}: {value}{known}"
        return Cell(text=value, ink=round(6 + 74 * share), style=style, title=title)

    places = range(len(names))
    rows: list[list[Any]] = [[names[i], *(cell(i, j) for j in places)] for i in places]
    title, corner = "Mean effect of each circuit on each task", "circuit \\ task"
    note = "Outlined: a circuit on its own task, which should be far larger than the rest of its row."
    table = heat_map(title, corner=corner, names=names, rows=rows, style="effects")
    return replace(table, note=note, left=len(matrix) - len(names))


def _columns(c: Any) -> dict[str, Any]:
    """What heads restore in this task and in the others; a second task of a name has a stroke behind it."""
    every = [c.table, *c.tables]
    names = [each.task.name for each in every]
    names = [name + "'" * names[:at].count(name) for at, name in enumerate(names)]
    own, tables = names[0], dict(zip(names, every, strict=True))
    if len(tables) < 2:
        raise Undetermined("not_applicable", details={"needs": "another task with a circuit of its own"})
    return {
        "effects": {name: c.restored(each) for name, each in tables.items()},
        "circuits": {name: each.members for name, each in tables.items()},
        "own": own,
        "gaps": {name: c.gap(each) for name, each in tables.items()},
        "unit_id": None if c.unit_id is None else {own: c.unit_id},
    }


@gate(
    code="C17",
    criterion="M3 Baseline separation",
    question="Do the heads of a circuit matter more for their own task than for others?",
    on_pass="the heads matter for their task more than for others",
    on_fail="shared computation or too broad a circuit (expected for overlapping tasks)",
    weakness="the published value is the mean over all circuits, so that another task's circuit can decide",
    number=_VALUE,
    reasons={"not_applicable": ("It needs a second task with a circuit.", "Name one: --against (against=).")},
    parts_share_reasons=False,
    figure=_heat,
    columns=_columns,
    reads=("seed",),
)
def discriminant_validity(
    effects: Mapping[str, Any],
    circuits: Mapping[str, Bool[np.ndarray, " H"]],
    *,
    own: str | None = None,
    gaps: Mapping[str, Any] | None = None,
    unit_id: Mapping[str, Shaped[np.ndarray, " P"]] | None = None,
    n_boot: int = 999,
    how: Sampling,
) -> Found:
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
        how: Its seed roots the random stream.

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
        InputError: If `own` is missing.
        KeyError: If a task has no circuit, or no gaps.
        ShapeError: If tables or circuits differ in their number of heads.
        UnknownNameError: If `own` is not one of the tasks.
    """
    for name in unit_id or ():
        check_name("task of unit_id", name, effects)
    names = [name for name in effects if circuits[name].any()]
    skipped = [name for name in effects if name not in names]
    if own is not None:
        check_name("own task", own, effects)
    elif len(names) > 1:
        raise InputError(f"own= is missing; name the task whose circuit is judged, one of {sorted(effects)}")
    tables = {name: np.asarray(effects[name], dtype=np.float64) for name in names}
    shapes = {name: (table.shape, circuits[name].shape) for name, table in tables.items()}
    if len({shape[-1:] for each in shapes.values() for shape in each}) > 1:
        raise ShapeError(f"effects, circuits have shapes {shapes}; expected [prompts, H] and [H], the same H")
    heads = np.all([np.isfinite(each).any(axis=0) | (not len(each)) for each in tables.values()], axis=0)
    flags = np.array([circuits[name][heads] for name in names])
    kept = []
    for name, table in tables.items():
        gap = np.ones(len(table)) if gaps is None else gaps[name]
        kept.append(sample((unit_id or {}).get(name), effects=table[:, heads], gaps=gap))
    sizes = [each.n for each in kept]
    about = {"own": own, "skipped": skipped, "n_prompts": dict(zip(names, sizes, strict=True))}
    found = Found(thresholds={"ratio": TIMES}, details=about)
    found.warn(empty_circuit=bool(skipped), missing_heads=not heads.all())
    found.warn(prompts_dropped=any(each.n_dropped for each in kept))
    if len(names) < 2 or own not in names:
        raise Undetermined("not_applicable", found)
    found.stop_if(min(sizes) < 3, "too_few" if all(sizes) else "no_valid_prompt")
    found.stop_if(not all(abs(each.vectors[1].mean()) >= _TINY for each in kept), "zero_denominator")
    found.stop_if(not flags.any(axis=1).all(), "missing_heads")
    # The stream is not by name: relabelled tasks keep their draws.
    rng, drawn = gate_stream("C17", seed=how.seed), []
    for each in kept:
        counts = np.concatenate([np.ones((1, each.n)), stats.draw_counts(each.n, n_boot, rng)])
        drawn.append(stats.resampled_ratios(_means(each.vectors[0], flags), each.vectors[1], counts))
    values, errors = (np.stack(parts, axis=2) for parts in zip(*drawn, strict=True))
    both, k = flags.astype(np.float64) @ flags.T, flags.sum(axis=1)[:, None]
    overlap, left = both / (k + k.T - both), flags.copy()
    # Of circuits that share many heads, an effect on each other is not surprising.
    shared = [pair for pair in itertools.combinations(range(len(names)), 2) if overlap[pair] > 0.3]
    for a, b in shared:
        left[[a, b]] &= ~(flags[a] & flags[b])
    without = [_means(each.vectors[0], left).sum(axis=0) / each.vectors[1].sum() for each in kept]
    same, alone = overlap[np.triu_indices(len(names), k=1)] == 1, np.stack(without, axis=1)
    found.warn(identical_circuits=same.any(), shared_heads=bool(shared))
    for i, name in enumerate(names):
        part, sharing = _specific(values, errors, sizes, i), any(i in pair for pair in shared)
        part.values["ratio_without_shared"] = _ratio(alone, i) if sharing and left[i].any() else None
        part.warn(shared_heads=sharing)
        found.parts = {**found.parts, name: _VALUE.judge(part)}
    # Exact mean and spread of the mean effect on a task of as many random heads as each circuit has.
    matrix, n_heads = values[0], flags.shape[1]
    single = [each.vectors[0].sum(axis=0) / each.vectors[1].sum() for each in kept]
    mean = np.tile([effect.mean() for effect in single], (len(names), 1))
    sd = np.sqrt([effect.var() for effect in single] / k * (n_heads - k) / max(n_heads - 1, 1))
    z = np.divide(matrix - mean, sd, out=np.full(matrix.shape, np.nan), where=sd > 0)
    np.fill_diagonal(z, np.nan)
    found.details |= {"tasks": tuple(names), "matrix": matrix, "random_mean": mean, "random_sd": sd, "z": z}
    found.details |= {"jaccard": overlap, "shared_heads": [[names[a], names[b]] for a, b in shared]}
    judged, like_random = found.parts[own], np.abs(z[np.isfinite(z)]) < 2
    published = float(np.mean([part.values["ratio_published"] for part in found.parts.values()]))
    found.values = {name: judged.values[name] for name in ("value", "ratio", "own_effect", "off_mean")}
    found.values["mean_ratio_published"] = published
    found.values["share_off_diagonal_like_random"] = float(like_random.mean()) if len(like_random) else None
    told = f"The heads matter {number(found.values['ratio'])} times as much for {own} as for the others"
    found.details["finding"] = f"{told}; a pass requires 3."
    found.interval, found.published = judged.interval, Rule(pass_at=TIMES).published(published)
    found.status, found.reason, found.n_needed = judged.status, judged.reason, judged.n_needed
    return found


def _means(effects: Float64[np.ndarray, "n H"], flags: Flags) -> Float64[np.ndarray, "n T"]:
    """Mean effect of each circuit's heads on each prompt; NaN for an empty circuit."""
    nothing = np.full(len(effects), np.nan)
    return np.stack([effects[:, each].mean(axis=1) if each.any() else nothing for each in flags], axis=1)


def _ratio(matrix: Float64[np.ndarray, "T T"], i: int) -> float:
    """Own effect over the size of the mean effect elsewhere, within -1000 and 1000; 0 where both vanish."""
    own, size = float(matrix[i, i]), abs(float(np.delete(matrix[i], i).mean()))
    if size * CAP < abs(own):
        return math.copysign(CAP, own)
    return own / size if size else own * size


def _specific(values: Matrix, errors: Matrix, sizes: list[int], i: int) -> Found:
    """Whether E - 3 |m| of one circuit is above 0: both E - 3 m and E + 3 m."""
    x, error, n, n_tasks = values[:, i], errors[:, i], min(sizes), len(sizes)
    row = x[0]
    effect, others = float(row[i]), np.delete(row, i)
    off, ratio = float((row.sum() - effect) / (n_tasks - 1)), _ratio(values[0], i)
    published = effect / (abs(off) + _TINY)
    weights = np.full((2, n_tasks), TIMES / (n_tasks - 1)) * np.array([[-1.0], [1.0]])
    weights[:, i] = 1.0
    point, alpha = min(float(row @ each) for each in weights), cautious_alpha(n, 40)
    lows, highs = ([_bounds(x, error, sizes, w, at) for w in weights] for at in (1 - 2 * alpha, 1 - alpha))
    low, high = min(each.low for each in lows), min(each.high for each in highs)
    found = Found(n=n, published=Rule(pass_at=TIMES).published(published), thresholds={"ratio": TIMES})
    found.interval = Interval(low=low, high=high, level=ONE_SIDED_95, method="bootstrap-t")
    found.reason = "no_own_effect" if effect <= 0 else None
    found.values = {"value": point, "ratio": ratio, "own_effect": effect, "off_mean": off}
    mean_abs = effect / float(np.abs(others).mean()) if others.any() else None
    found.values |= {"ratio_published": published, "ratio_mean_abs": mean_abs}
    found.warn(ratio_capped=abs(ratio) == CAP)
    defined = all(each.defined for each in (*lows, *highs))
    if all(each.reason == "degenerate" for each in lows):
        # Nothing varies between prompts: the limit itself does not pass, as in the published rule.
        found.status = "pass" if point > 0 else "fail"
    elif n < 5:  # even at a third of 5 % bounds do not hold for fewer skewed values
        found.open("too_few", 5)
    elif not defined:
        found.open("undefined_replicates")
    if not defined:
        found.interval = undefined_interval(ONE_SIDED_95, "bootstrap-t", str(found.reason))
    return found


def _bounds(values: Row, errors: Row, sizes: list[int], weights: Any, level: float) -> Interval:
    """The outermost of Student's and bootstrap-t ends of a weighted sum over tasks."""
    point, parts = float(values[0] @ weights), (weights * errors[0]) ** 2
    error, spread = math.sqrt(parts.sum()), np.sqrt(errors[1:] ** 2 @ weights**2)
    found = stats.studentized_interval(point, error, values[1:] @ weights, spread, level=level)
    if error == 0:
        return found
    # Prompts of different tasks are independent; degrees of freedom: Welch (1947), Satterthwaite (1946).
    freedom = parts.sum() ** 2 / (parts**2 / (np.array(sizes) - 1)).sum()
    reach = float(scipy.stats.t.ppf((1 + level) / 2, freedom)) * error
    student = Interval(low=point - reach, high=point + reach, level=level, method="student")
    return stats.outermost(found, student)

"""C13, measurement invariance: is it one number for all templates of the prompts?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Real, Shaped

from assay.analyses.calibration.gate import Found, Quantity, Sampling, Undetermined, gate, named
from assay.analyses.calibration.samples import inner_metric, sample, summed
from assay.core.errors import check_name
from assay.core.measurement import ONE_SIDED_95, Rule
from assay.page.text import number
from assay.stats import group_differences
from assay.stats.estimate import varies
from assay.stats.significance import FEWEST_PER_GROUP
from assay.tasks import PairTask


Labels = Shaped[np.ndarray, " n"]
Row = Float64[np.ndarray, " _"]
Run = Real[np.ndarray, " n"]

# Fields that prompts are grouped by unless told otherwise, in this order; `KEY_id` stands in for KEY.
GROUP_FIELDS = ("template", "type", "category", "class", "domain", "corruption")
FEWEST = 20  # prompts in groups
SHARE_BETWEEN_GROUPS = Quantity(
    label="share of the spread that lies between groups",
    value="eta_squared",
    rule=Rule(pass_at=0.06, higher=False),  # of the population's eta squared
    published="eta_squared",
    published_rule=Rule(pass_at=0.01, fail_at=0.06, higher=False),
    qualified_by="groups_from",
    fewest=FEWEST,
)


def group_labels(*tasks: PairTask) -> dict[str, Labels]:
    """Labels of the prompts of some tasks, by those of `GROUP_FIELDS` that all of the tasks have."""
    found = {}
    for key in GROUP_FIELDS:
        name = key if key in tasks[0].fields else f"{key}_id"
        if all(name in each.fields for each in tasks):
            found[key] = np.array([str(value) for each in tasks for value in each.fields[name]])
    return found


def choose_groups(metadata: Mapping[str, Labels], lengths: Any = None) -> tuple[Labels | None, str]:
    """The groups in which prompts are compared: the first usable of `GROUP_FIELDS`, else length.

    Args:
        metadata: Labels of the prompts by key, e.g. `group_labels`.
        lengths: Token lengths; short, medium and long prompts where no key has two groups of three.

    Returns:
        Labels, and the key that they come from or `length`; no labels where nothing has two groups of at
        least three prompts.
    """
    groupings = [(metadata[key], key) for key in GROUP_FIELDS if key in metadata]
    if lengths is not None and len(lengths) >= 9:
        cuts = np.searchsorted(np.quantile(lengths, (1 / 3, 2 / 3)), lengths, side="left")
        groupings.append((np.array(("short", "medium", "long"))[cuts], "length"))
    return next((each for each in groupings if _comparable(each[0])), (None, ""))


def _comparable(labels: Labels) -> bool:
    """Whether two groups have three prompts or more; smaller ones are left out."""
    return bool((np.unique(labels, return_counts=True)[1] >= FEWEST_PER_GROUP).sum() > 1)


def _columns(c: Any) -> dict[str, Any]:
    """Runs on the pool with their groups or, without any, the fields that repeat often enough to make some.

    Those have at most 12 values, two of them three times.
    """
    (labels, source), task = c.grouping(pool=True, lengths=True), c.table.task
    if labels is not None:
        return {**c.pool_runs, "groups": labels, "groups_from": source}
    fields = {name: each for name, each in task.fields.items() if not name.startswith("corrupted.")}
    counts = {name: np.unique([*map(str, each)], return_counts=True)[1] for name, each in fields.items()}
    usable = [name for name, each in counts.items() if len(each) <= 12 and (each >= 3).sum() > 1]
    told = f"Fields that repeat often enough to group by: {named(usable)}." if usable else ""
    return {**c.pool_runs, "groups": None, "details": {"fields": usable, "finding": told}}


@gate(
    code="C13",
    criterion="M2 Invariance",
    question="Does the score depend on the group of prompts that it is taken on?",
    on_pass="One number describes all groups of prompts.",
    on_fail="Report a number per group only, and the pair furthest apart; the aggregate misleads.",
    weakness="Eta squared is biased upwards: on 60 prompts invariant circuits exceed 0.06 one time in six.",
    number=SHARE_BETWEEN_GROUPS,
    reasons={"not_applicable": ("The prompts have no groups.", "Name a field: --groups FIELD (groups=).")},
    sized=True,
    columns=_columns,
)
def measurement_invariance(
    y_full: Run,
    y_circuit: Run,
    groups: Labels | None = None,
    *,
    groups_from: str = "given",
    inner: str = "faithfulness",
    dependent: str = "influence",
    n_boot: int = 2000,
    how: Sampling,
) -> Found:
    """Share of the variance of per-prompt faithfulness that lies between groups of prompts.

    Published: eta squared below 0.01 passes, above 0.06 fails. With confidence: bounds of the population's
    eta squared (noncentral F) on the same side of 0.06, each taken at 3 %, since at 5 % they miss up to 7.7 %
    of exponential scores.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: Of the circuit, as `inner` says.
        groups: Label of each prompt; groups of fewer than three are left out.
        groups_from: What the labels are, for pages; see `choose_groups`.
        inner: `faithfulness` or `completeness`.
        dependent: `influence`, the score plus the influence of the prompt, whose group means are the groups'
            scores to first order; `ratio`, per prompt; `clean_logit_diff`, the published code's, which does
            not look at the circuit.
        n_boot: Resamples for the simultaneous interval of the groups' differences.
        how: Where units lie in several groups (`units_cross_groups`), bounds are the wider of those of
            independent cells and of a bootstrap of units.

    Returns:
        Below 20 prompts in groups the verdict with confidence is inconclusive (`too_few`). Not applicable
        with fewer than two groups. Without any variance within groups eta squared is 0, or 1
        where their scores differ (`zero_variance`).

    References:
        Welch (1951); Steiger (2004), doi:10.1037/1082-989X.9.2.164; Brown and Forsythe (1974).
    """
    statistic, data = inner_metric(inner), sample(None, y_circuit=y_circuit, y_full=y_full)
    found = data.found("C13.measurement_invariance", dependent=dependent)
    found.thresholds = {"published_pass": 0.01, "published_fail": 0.06}
    labels = np.empty(0) if groups is None else data.label(groups, "groups")
    found.stop_if(not _comparable(labels), "not_applicable")
    found.details["groups_from"] = groups_from
    table, (names, group) = data.table, np.unique(labels, return_inverse=True)
    unit = np.arange(len(group))
    if how.unit_id is not None:  # sums over the prompts of one unit in one group are what is independent
        unit = np.unique(data.label(how.unit_id, "unit_id"), return_inverse=True)[1]
        cells, cell = np.unique(unit * len(names) + group, return_inverse=True)
        table, (unit, group) = summed(table.T, cell).T, np.divmod(cells, len(names))
    crossed = len(unit) > len(np.unique(unit))
    value = float(statistic.of_sums(table.sum(axis=1), table.shape[1]))
    found.stop_if(math.isnan(value), "zero_denominator")
    found.warn(unstable_denominator=statistic.unstable(table))
    variables = {"influence": statistic.linearised(table), "ratio": statistic.of_sums(table.T, 1)}
    variables["clean_logit_diff"] = table[1]
    check_name("dependent variable", dependent, variables)
    x = np.asarray(variables[dependent])
    parts = [x[np.isfinite(x) & (group == at)] for at in range(len(names))]
    compared = group_differences(parts)
    # At 94 % the two ends are 95 % bounds of skewed scores, too.
    bounds = group_differences(parts, level=0.94).eta_squared.interval
    if compared.eta_squared.reason is not None or bounds is None:
        raise Undetermined("not_applicable", found)
    varied = any(varies(x[group == at]) for at in compared.used)
    found.warn(zero_variance=not varied, units_cross_groups=crossed)
    found.interval, found.n = replace(bounds, level=ONE_SIDED_95), len(x)
    rng = how.stream("C13")
    if crossed:
        low, high = _eta_bounds(x, np.eye(len(names))[group], _drawn(unit, n_boot, rng))
        low, high = min(found.interval.low, low), max(found.interval.high, high)
        found.interval = replace(found.interval, low=low, high=high, method=f"{bounds.method}+bootstrap")
    used, tables = [str(names[at]) for at in compared.used], [table[:, group == at] for at in compared.used]
    scores = np.array([statistic.of_sums(each.sum(axis=1), each.shape[1]) for each in tables])
    largest: dict[str, Any] = {"reason": "zero_denominator"}
    if np.isfinite(scores).all():
        # Units are drawn together where they lie in several groups, otherwise each group draws its own.
        together = _drawn(unit, n_boot, rng) if crossed else None
        drawn = [
            _drawn(np.arange(each.shape[1]), n_boot, rng) if together is None else together[:, group == at]
            for at, each in zip(compared.used, tables, strict=True)
        ]
        again = [statistic.of_sums(n @ each.T, each.shape[1]) for n, each in zip(drawn, tables, strict=True)]
        largest = _furthest_apart(used, scores, np.stack(again, axis=1))
    if pair := largest.get("pair"):
        ends = " and ".join(number(scores[used.index(name)]) for name in pair)
        found.details["finding"] = f"Furthest apart: {named(pair)}, with scores {ends}."
    found.details |= {"groups": dict(zip(used, scores, strict=True)), "sizes": list(compared.sizes)}
    found.details |= {"comparison": compared.to_dict(), "largest_difference": largest}
    for name in ("eta_squared", "omega_squared", "epsilon_squared"):
        found.values[name] = getattr(compared, name).value
    for name in ("welch", "brown_forsythe", "kruskal_wallis"):
        found.values[f"{name}_p"] = getattr(compared, name).p_value
    found.values |= {"expected_eta_squared": compared.expected_eta_squared, inner: value}
    found.values |= {"welch_f": compared.welch.statistic, "range": float(np.ptp(scores))}
    claim, p = "the score differs between groups of prompts", compared.welch.p_value
    numbers = {"value": compared.eta_squared.value, "baseline": compared.expected_eta_squared}
    found.claim("C13/welch", claim, p, "F", claimed="fail", n=data.n_prompts, **numbers)
    if sum(compared.sizes) < FEWEST:
        found.open("too_few", FEWEST)
    return found


def _drawn(unit: Any, n_boot: int, rng: Any) -> Any:
    """How often each cell is drawn, `[n_boot, cells]`, where whole units are."""
    n_units = int(unit.max()) + 1
    return rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_boot)[:, unit].astype(float)


def _furthest_apart(names: Sequence[str], scores: Row, drawn: Any) -> dict[str, Any]:
    """The two groups furthest apart, with a margin that holds for all pairs of groups at once.

    The margin is the 95 % quantile over resamples of the largest change of any difference.
    """
    one, other = np.triu_indices(len(scores), k=1)
    change = np.abs((drawn - scores)[:, one] - (drawn - scores)[:, other]).max(axis=1)
    change = change[np.isfinite(change)]
    margin = float(np.quantile(change, 0.95)) if len(change) else math.nan
    gaps = np.abs(scores[one] - scores[other])
    worst = int(gaps.argmax())
    gap, pair = float(gaps[worst]), [names[one[worst]], names[other[worst]]]
    ends = {"low": max(gap - margin, 0.0), "high": gap + margin, "level": 0.95, "margin": margin}
    return {"pair": pair, "difference": gap, **ends}


def _eta_bounds(x: Row, member: Float64[np.ndarray, "n G"], weights: Float64[np.ndarray, "n_boot n"]) -> Any:
    """5 % and 95 % quantiles of eta squared over resamples of units, less its bias."""
    size, sums = weights @ member, weights @ (member * x[:, None])
    n, total = weights.sum(axis=1), weights @ x
    means = np.divide(sums, size, out=np.zeros_like(sums), where=size > 0)
    between = (size * (means - (total / n)[:, None]) ** 2).sum(axis=1)
    whole = (weights * (x[None] - (total / n)[:, None]) ** 2).sum(axis=1)
    within = (whole - between) / np.maximum(n - size.shape[1], 1)
    # Chance adds (G - 1) times the variance within to the sum of squares between, once when the sample was
    # drawn and once when it was resampled.
    chance = 2 * (size.shape[1] - 1) * within
    shares = np.divide(between - chance, whole, out=np.zeros(len(weights)), where=whole > 0)
    low, high = np.quantile(np.maximum(shares, 0.0), (0.05, 0.95))
    return float(low), float(high)

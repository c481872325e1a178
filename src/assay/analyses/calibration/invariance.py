"""Is it one number for all templates of the prompts?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, Real, Shaped

from assay.analyses.calibration.gate import SEED, gate, gate_stream, left_open
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.reasons import below
from assay.analyses.calibration.samples import Sample, circuit_flags, inner_metric, judged, sample, summed
from assay.core.errors import check_least, check_name
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, Verdict
from assay.stats import GroupDifferences, RatioOfSums, group_differences
from assay.stats._checks import varies
from assay.stats.anova import FEWEST_PER_GROUP
from assay.tasks import PairTask


N_BOOT = 2000
# Fields that prompts are grouped by unless told otherwise, in this order; `KEY_id` stands in for KEY.
GROUP_FIELDS = ("template", "type", "category", "class", "domain", "corruption")
_DEPENDENT = ("influence", "ratio", "clean_logit_diff")
_SAME_GROUPS = Rule(pass_at=0.06, higher=False)  # of the population's eta squared
_BOUNDS = 0.94  # level of the noncentral F whose two ends are 95 % bounds of skewed scores, too
_FEWEST = 20  # prompts in groups from which they are
_PUBLISHED_GROUPS = Rule(pass_at=0.01, fail_at=0.06, higher=False)
SHARE_BETWEEN_GROUPS = Quantity(
    label="share of the spread that lies between groups",
    value="eta_squared",
    published="eta_squared",
    higher=False,
    least=0.0,
    most=1.0,
    qualified_by="groups_from",
)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Groups of prompts and where they come from.

    Attributes:
        labels: `[n]`; prompts of groups below three are labelled too.
        source: Metadata key, or `length` for thirds of token length.
    """

    labels: Shaped[np.ndarray, " n"]
    source: str


def group_labels(*tasks: PairTask) -> dict[str, Shaped[np.ndarray, " n"]]:
    """Labels of the prompts of some tasks, by those of `GROUP_FIELDS` that all of the tasks have."""
    names = {key: key if key in tasks[0].fields else f"{key}_id" for key in GROUP_FIELDS}
    return {
        key: np.array([str(value) for each in tasks for value in each.fields[name]])
        for key, name in names.items()
        if all(name in each.fields for each in tasks)
    }


def choose_groups(
    metadata: Mapping[str, Shaped[np.ndarray, " n"]], lengths: Real[np.ndarray, " n"] | None = None
) -> Grouping | None:
    """The groups in which prompts are compared: the first usable of `GROUP_FIELDS`, else length.

    Args:
        metadata: Labels of the prompts by key, e.g. `group_labels`.
        lengths: Token lengths; short, medium and long prompts where no key has two groups of three.

    Returns:
        None where nothing has two groups of at least three prompts.
    """
    for key in GROUP_FIELDS:
        if key in metadata and _enough(metadata[key]):
            return Grouping(labels=metadata[key], source=key)
    if lengths is not None and len(lengths) >= 9:
        cuts = np.quantile(lengths, (1 / 3, 2 / 3))
        thirds = np.array(("short", "medium", "long"))[np.searchsorted(cuts, lengths, side="left")]
        if _enough(thirds):
            return Grouping(labels=thirds, source="length")
    return None


def _enough(labels: Shaped[np.ndarray, " n"]) -> bool:
    return int((np.unique(labels, return_counts=True)[1] >= FEWEST_PER_GROUP).sum()) > 1


@gate(
    key="measurement-invariance",
    code="C13",
    name="Measurement invariance",
    criterion="M2 Invariance",
    question="Does the score depend on the group of prompts that it is taken on?",
    on_pass="One number describes all groups of prompts.",
    on_fail="Report a number per group only, and the pair furthest apart; the aggregate misleads.",
    weakness="Eta squared is biased upwards: with three groups and 60 prompts a perfectly invariant circuit "
    "is below 0.01 in a quarter of samples and above 0.06 in a sixth.",
    number=SHARE_BETWEEN_GROUPS,
    reasons={
        "not_applicable": (
            "These prompts have no groups to compare.",
            "Use a task with several templates, or group the prompts by one of its fields: --groups FIELD "
            "(groups= in Python).",
        ),
        **below(_FEWEST, "no bounds hold for skewed scores", of="prompts in groups"),
    },
)
def measurement_invariance(
    y_full: Real[np.ndarray, " n"],
    y_circuit: Real[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"] | None = None,
    *,
    lengths: Real[np.ndarray, " n"] | None = None,
    inner: str = "faithfulness",
    dependent: str = "influence",
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    circuit_size: int | None = None,
    n_heads: int | None = None,
    n_boot: int = N_BOOT,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """Share of the variance of per-prompt faithfulness that lies between groups of prompts.

    Published: eta squared below 0.01 passes, above 0.06 fails. With confidence: bounds of the population's
    eta squared (noncentral F) on the same side of 0.06, each taken at 3 %, since at 5 % they miss up to 7.7 %
    of exponential scores.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: Of the circuit, as `inner` says.
        groups: Label of each prompt; groups of fewer than three are left out.
        lengths: Token lengths, whose thirds are the groups where `groups` has fewer than two.
        inner: `faithfulness` or `completeness`.
        dependent: `influence`, the score plus the influence of the prompt, whose group means are the groups'
            scores to first order; `ratio`, per prompt; `clean_logit_diff`, the published code's, which does
            not look at the circuit.
        unit_id: Prompts that belong together. Where units lie in several groups (`units_cross_groups`),
            bounds are the wider of those of independent cells and of a bootstrap of units.
        circuit_size: Heads in the circuit, for the flags of odd circuits.
        n_heads: Heads of the model.
        n_boot: Resamples for the simultaneous interval of the groups' differences.
        task: Names the random stream.
        seed: Its root.

    Returns:
        Below 20 prompts in groups the verdict with confidence is inconclusive (`too_few`). Not applicable
        with fewer than two groups. Without any variance within groups eta squared is 0, or 1
        where their scores differ (`zero_variance`).

    References:
        Welch (1951); Steiger (2004), doi:10.1037/1082-989X.9.2.164; Brown and Forsythe (1974).
    """
    check_least(1, n_boot=n_boot)
    check_name("dependent variable", dependent, _DEPENDENT)
    statistic = inner_metric(inner)
    data = sample(None, y_circuit=y_circuit, y_full=y_full)
    odd = circuit_flags(circuit_size, n_heads)
    draft = data.draft(_SAME_GROUPS, "C13.measurement_invariance", *odd, dependent=dependent)
    draft.thresholds = {**draft.thresholds, "published_pass": 0.01, "published_fail": 0.06}
    if reason := data.missing():
        return draft.undefined(reason)
    labelled = {} if groups is None else {"template": data.label(groups, "groups")}
    grouping = choose_groups(labelled, None if lengths is None else data.label(lengths, "lengths"))
    if grouping is None:
        return draft.undefined("not_applicable")
    draft.details["groups_from"] = "given" if grouping.source == "template" else grouping.source
    cells = _cells(data, grouping.labels, None if unit_id is None else data.label(unit_id, "unit_id"))
    value = float(statistic.of_sums(cells.table.sum(axis=1), cells.table.shape[1]))
    if math.isnan(value):
        return draft.undefined("zero_denominator")
    draft.warn("unstable_denominator", statistic.unstable(cells.table))
    x = _dependent(dependent, statistic, cells.table)
    usable = np.isfinite(x)
    parts = [x[usable & (cells.group == at)] for at in range(len(cells.names))]
    found = group_differences(parts)
    bounds = group_differences(parts, level=_BOUNDS).eta_squared.interval
    eta = found.eta_squared
    if eta.reason is not None or bounds is None:
        return draft.undefined("not_applicable")
    draft.warn("zero_variance", not any(varies(x[cells.group == at]) for at in found.used))
    interval = replace(bounds, level=ONE_SIDED_95)
    rng = gate_stream("C13", task, seed=seed)
    if cells.crossed:
        draft.warn("units_cross_groups")
        interval = _wider(interval, _unit_bounds(x, cells, rng, n_boot))
    scores = _group_scores(statistic, cells, found)
    draft.details |= {
        "groups": {str(cells.names[at]): score for at, score in zip(found.used, scores, strict=True)},
        "sizes": list(found.sizes),
        "comparison": found.to_dict(),
        "largest_difference": _largest_difference(statistic, cells, found, scores, rng, n_boot),
    }
    draft.values = {**_statistics(found), "range": float(np.ptp(scores)), inner: value}
    verdict = draft.verdict(
        judged(_SAME_GROUPS, eta.value, eta.value, interval, len(x)),
        published=_PUBLISHED_GROUPS.published(eta.value),
    )
    return left_open(verdict, "too_few", _FEWEST) if sum(found.sizes) < _FEWEST else verdict


def _statistics(found: GroupDifferences) -> dict[str, float | None]:
    """Effect sizes, and p of the tests reported beside them."""
    return {
        "eta_squared": found.eta_squared.value,
        "omega_squared": found.omega_squared.value,
        "epsilon_squared": found.epsilon_squared.value,
        "expected_eta_squared": found.expected_eta_squared,
        "welch_f": found.welch.statistic,
        "welch_p": found.welch.p_value,
        "brown_forsythe_p": found.brown_forsythe.p_value,
        "kruskal_wallis_p": found.kruskal_wallis.p_value,
    }


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """Sums of the runs over the prompts of one unit in one group: what is taken for independent."""

    table: Float64[np.ndarray, "2 n"]
    group: Int64[np.ndarray, " n"]
    unit: Int64[np.ndarray, " n"]
    names: Shaped[np.ndarray, " G"]
    crossed: bool


def _cells(
    data: Sample,
    labels: Shaped[np.ndarray, " n_prompts"],
    unit_id: Shaped[np.ndarray, " n_prompts"] | None,
) -> _Cells:
    names, group = np.unique(labels, return_inverse=True)
    group = group.reshape(-1).astype(np.int64)
    table = data.table
    if unit_id is None:
        return _Cells(table=table, group=group, unit=np.arange(len(group)), names=names, crossed=False)
    unit = np.unique(unit_id, return_inverse=True)[1].reshape(-1).astype(np.int64)
    pairs, cell = np.unique(unit * len(names) + group, return_inverse=True)
    unit_of, group_of = np.divmod(pairs, len(names))
    return _Cells(
        table=summed(table.T, cell.reshape(-1).astype(np.int64)).T,
        group=group_of,
        unit=unit_of,
        names=names,
        crossed=len(pairs) > len(np.unique(unit_of)),
    )


def _dependent(
    kind: str, statistic: RatioOfSums, table: Float64[np.ndarray, "2 n"]
) -> Float64[np.ndarray, " n"]:
    if kind == "influence":
        return np.asarray(statistic.linearised(table))
    if kind == "clean_logit_diff":
        return np.asarray(table[1])
    return np.asarray(statistic.of_sums(table.T, 1))


def _group_scores(
    statistic: RatioOfSums, cells: _Cells, found: GroupDifferences
) -> Float64[np.ndarray, " G_used"]:
    """Ratio of sums in each group."""
    sums = [cells.table[:, cells.group == at] for at in found.used]
    return np.array([float(statistic.of_sums(part.sum(axis=1), part.shape[1])) for part in sums])


def _largest_difference(
    statistic: RatioOfSums,
    cells: _Cells,
    found: GroupDifferences,
    scores: Float64[np.ndarray, " G_used"],
    rng: np.random.Generator,
    n_boot: int,
) -> dict[str, Any]:
    """The two groups furthest apart, with a margin that holds for all pairs of groups at once.

    The margin is the 95 % quantile over resamples of the largest change of any difference. Units are drawn
    together where they lie in several groups, otherwise each group draws its own.
    """
    rows, columns = np.triu_indices(len(scores), k=1)
    if not np.isfinite(scores).all():
        return {"reason": "zero_denominator"}
    drawn = np.empty((n_boot, len(scores)))
    weights = None
    if cells.crossed:
        n_units = int(cells.unit.max()) + 1
        weights = rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_boot)[:, cells.unit]
    for at, group in enumerate(found.used):
        members = np.flatnonzero(cells.group == group)
        n = len(members)
        counts = (
            rng.multinomial(n, np.full(n, 1 / n), size=n_boot) if weights is None else weights[:, members]
        )
        drawn[:, at] = statistic.of_sums(counts @ cells.table[:, members].T, n)
    change = np.abs((drawn - scores)[:, rows] - (drawn - scores)[:, columns]).max(axis=1)
    margin = float(np.quantile(change[np.isfinite(change)], 0.95)) if np.isfinite(change).any() else math.nan
    gaps = np.abs(scores[rows] - scores[columns])
    worst = int(gaps.argmax())
    return {
        "pair": [str(cells.names[found.used[side[worst]]]) for side in (rows, columns)],
        "difference": float(gaps[worst]),
        "low": max(float(gaps[worst]) - margin, 0.0),
        "high": float(gaps[worst]) + margin,
        "level": 0.95,
        "margin": margin,
    }


def _unit_bounds(
    x: Float64[np.ndarray, " n"], cells: _Cells, rng: np.random.Generator, n_boot: int
) -> tuple[float, float]:
    """5 % and 95 % quantiles of eta squared over resamples of units, less its bias."""
    n_units, n_groups = int(cells.unit.max()) + 1, len(cells.names)
    weights = rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_boot)[:, cells.unit].astype(
        float
    )
    member = (cells.group[:, None] == np.arange(n_groups)).astype(np.float64)
    size, sums = weights @ member, weights @ (member * x[:, None])
    total, n = weights @ x, weights.sum(axis=1)
    means = np.divide(sums, size, out=np.zeros_like(sums), where=size > 0)
    between = (size * (means - (total / n)[:, None]) ** 2).sum(axis=1)
    whole = (weights * (x[None] - (total / n)[:, None]) ** 2).sum(axis=1)
    within = (whole - between) / np.maximum(n - n_groups, 1)
    # Chance adds (G - 1) times the variance within to the sum of squares between, once when the sample was
    # drawn and once when it was resampled.
    shares = np.divide(between - 2 * (n_groups - 1) * within, whole, out=np.zeros(n_boot), where=whole > 0)
    low, high = np.quantile(np.maximum(shares, 0.0), (0.05, 0.95))
    return float(low), float(high)


def _wider(interval: Interval, other: tuple[float, float]) -> Interval:
    return replace(
        interval,
        low=min(interval.low, other[0]),
        high=max(interval.high, other[1]),
        method=f"{interval.method}+bootstrap",
    )

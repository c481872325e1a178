"""C13, measurement invariance: is it one number for all templates of the prompts?"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, Real, Shaped

from assay.analyses.calibration.gate import Found, Heads, Quantity, Undetermined, gate, named
from assay.analyses.calibration.samples import SEED, gate_stream, inner_metric, sample, summed
from assay.core.errors import check_least, check_name
from assay.core.verdict import ONE_SIDED_95, Rule, Verdict
from assay.page.text import number
from assay.stats import RatioOfSums, group_differences
from assay.stats._checks import varies
from assay.stats.anova import FEWEST_PER_GROUP
from assay.tasks import PairTask


Labels = Shaped[np.ndarray, " n"]
Row = Float64[np.ndarray, " _"]
Rng = np.random.Generator

# Fields that prompts are grouped by unless told otherwise, in this order; `KEY_id` stands in for KEY.
GROUP_FIELDS = ("template", "type", "category", "class", "domain", "corruption")
FEWEST = 20  # prompts in groups from which the bounds are 95 % bounds of skewed scores, too
SHARE_BETWEEN_GROUPS = Quantity(
    label="share of the spread that lies between groups",
    value="eta_squared",
    rule=Rule(pass_at=0.06, higher=False),  # of the population's eta squared
    published="eta_squared",
    published_rule=Rule(pass_at=0.01, fail_at=0.06, higher=False),
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


def choose_groups(metadata: Mapping[str, Labels], lengths: Any = None) -> Grouping | None:
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


def group_test(verdict: Verdict, heads: Heads = ()) -> Iterator[dict[str, Any]]:
    """Welch's test of C13, claimed where the gate fails: that is what a fail says."""
    yield {
        "name": "the score differs between groups of prompts",
        "test_key": "C13/welch",
        "p": verdict.values.get("welch_p"),
        "p_kind": "F",
        "passed": verdict.status == "fail",
        "value": verdict.values.get("eta_squared"),
        "baseline": verdict.values.get("expected_eta_squared"),
        "n": verdict.details.get("n_prompts"),
    }


def _furthest(verdict: Verdict, heads: Heads) -> str:
    groups = verdict.details.get("groups", {})
    pair = verdict.details.get("largest_difference", {}).get("pair")
    if not pair:
        fields = verdict.details.get("fields")
        return f"Fields that repeat often enough to group by: {named(fields)}." if fields else ""
    return (
        f"Furthest apart: {named(pair)}, with scores {' and '.join(number(groups[name]) for name in pair)}."
    )


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
        "too_few": (
            "Below 20 prompts in groups, no bounds hold for skewed scores.",
            "Measure at least 20 prompts.",
        ),
    },
    sized=True,
    finding=_furthest,
    tests=group_test,
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
    n_boot: int = 2000,
    task: str = "",
    seed: int = SEED,
) -> Found:
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
    statistic = inner_metric(inner)
    dependents: dict[str, Callable[[Any], Any]] = {
        "influence": statistic.linearised,
        "ratio": lambda table: statistic.of_sums(table.T, 1),
        "clean_logit_diff": lambda table: table[1],
    }
    check_name("dependent variable", dependent, dependents)
    data = sample(None, y_circuit=y_circuit, y_full=y_full)
    found = data.found("C13.measurement_invariance", dependent=dependent)
    found.thresholds = {"published_pass": 0.01, "published_fail": 0.06}
    labelled = {} if groups is None else {"template": data.label(groups, "groups")}
    grouping = choose_groups(labelled, None if lengths is None else data.label(lengths, "lengths"))
    if grouping is None:
        raise Undetermined("not_applicable", found)
    found.details["groups_from"] = "given" if grouping.source == "template" else grouping.source
    units = None if unit_id is None else data.label(unit_id, "unit_id")
    cells = _Cells.of(statistic, data.table, grouping.labels, units)
    value = float(statistic.of_sums(cells.table.sum(axis=1), cells.table.shape[1]))
    if math.isnan(value):
        raise Undetermined("zero_denominator", found)
    found.warn("unstable_denominator", statistic.unstable(cells.table))
    x = np.asarray(dependents[dependent](cells.table))
    parts = [x[np.isfinite(x) & (cells.group == at)] for at in range(len(cells.names))]
    compared = group_differences(parts)
    # At 94 % the two ends are 95 % bounds of skewed scores, too.
    bounds = group_differences(parts, level=0.94).eta_squared.interval
    if compared.eta_squared.reason is not None or bounds is None:
        raise Undetermined("not_applicable", found)
    found.warn("zero_variance", not any(varies(x[cells.group == at]) for at in compared.used))
    found.interval, found.n = replace(bounds, level=ONE_SIDED_95), len(x)
    rng = gate_stream("C13", task, seed=seed)
    if cells.crossed:
        found.warn("units_cross_groups")
        low, high = cells.eta_bounds(x, rng, n_boot)
        low, high = min(found.interval.low, low), max(found.interval.high, high)
        found.interval = replace(found.interval, low=low, high=high, method=f"{bounds.method}+bootstrap")
    scores = np.array([cells.score(at) for at in compared.used])
    found.details |= {
        "groups": {str(cells.names[at]): score for at, score in zip(compared.used, scores, strict=True)},
        "sizes": list(compared.sizes),
        "comparison": compared.to_dict(),
        "largest_difference": cells.furthest(compared.used, scores, rng, n_boot),
    }
    found.values = {
        "eta_squared": compared.eta_squared.value,
        "omega_squared": compared.omega_squared.value,
        "epsilon_squared": compared.epsilon_squared.value,
        "expected_eta_squared": compared.expected_eta_squared,
        "welch_f": compared.welch.statistic,
        "welch_p": compared.welch.p_value,
        "brown_forsythe_p": compared.brown_forsythe.p_value,
        "kruskal_wallis_p": compared.kruskal_wallis.p_value,
        "range": float(np.ptp(scores)),
        inner: value,
    }
    if sum(compared.sizes) < FEWEST:
        found.open("too_few", FEWEST)
    return found


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """Sums of the runs over the prompts of one unit in one group: what is taken for independent."""

    statistic: RatioOfSums
    table: Float64[np.ndarray, "2 n"]
    group: Int64[np.ndarray, " n"]
    unit: Int64[np.ndarray, " n"]
    names: Shaped[np.ndarray, " G"]
    crossed: bool = False

    @classmethod
    def of(cls, statistic: RatioOfSums, table: Any, labels: Any, unit_id: Any) -> "_Cells":
        names, group = np.unique(labels, return_inverse=True)
        if unit_id is None:
            units = np.arange(len(group))
            return cls(statistic=statistic, table=table, group=group, unit=units, names=names)
        unit = np.unique(unit_id, return_inverse=True)[1]
        pairs, cell = np.unique(unit * len(names) + group, return_inverse=True)
        units, group = np.divmod(pairs, len(names))
        sums, crossed = summed(table.T, cell).T, len(pairs) > len(np.unique(units))
        return cls(statistic=statistic, table=sums, group=group, unit=units, names=names, crossed=crossed)

    def score(self, group: int, counts: Any = None) -> Any:
        """Ratio of sums in one group, of the sample or of each draw of its cells."""
        part = self.table[:, self.group == group]
        sums = part.sum(axis=1) if counts is None else counts @ part.T
        return self.statistic.of_sums(sums, part.shape[1])

    def drawn(self, rng: np.random.Generator, n_boot: int) -> Int64[np.ndarray, "n_boot n"]:
        """How often each cell is drawn where whole units are."""
        n_units = int(self.unit.max()) + 1
        return rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_boot)[:, self.unit]

    def furthest(self, used: Sequence[int], scores: Row, rng: Rng, n_boot: int) -> dict[str, Any]:
        """The two groups furthest apart, with a margin that holds for all pairs of groups at once.

        The margin is the 95 % quantile over resamples of the largest change of any difference. Units are
        drawn together where they lie in several groups, otherwise each group draws its own.
        """
        if not np.isfinite(scores).all():
            return {"reason": "zero_denominator"}
        together = self.drawn(rng, n_boot) if self.crossed else None
        drawn = np.empty((n_boot, len(scores)))
        for at, group in enumerate(used):
            own = self.group == group
            alone = np.full(own.sum(), 1 / own.sum())
            counts = rng.multinomial(own.sum(), alone, size=n_boot) if together is None else together[:, own]
            drawn[:, at] = self.score(group, counts)
        one, other = np.triu_indices(len(scores), k=1)
        change = np.abs((drawn - scores)[:, one] - (drawn - scores)[:, other]).max(axis=1)
        change = change[np.isfinite(change)]
        margin = float(np.quantile(change, 0.95)) if len(change) else math.nan
        gaps = np.abs(scores[one] - scores[other])
        worst = int(gaps.argmax())
        return {
            "pair": [str(self.names[used[side[worst]]]) for side in (one, other)],
            "difference": float(gaps[worst]),
            "low": max(float(gaps[worst]) - margin, 0.0),
            "high": float(gaps[worst]) + margin,
            "level": 0.95,
            "margin": margin,
        }

    def eta_bounds(self, x: Row, rng: Rng, n_boot: int) -> tuple[float, float]:
        """5 % and 95 % quantiles of eta squared over resamples of units, less its bias."""
        weights = self.drawn(rng, n_boot).astype(float)
        member = np.eye(len(self.names))[self.group]
        size, sums = weights @ member, weights @ (member * x[:, None])
        total, n = weights @ x, weights.sum(axis=1)
        means = np.divide(sums, size, out=np.zeros_like(sums), where=size > 0)
        between = (size * (means - (total / n)[:, None]) ** 2).sum(axis=1)
        whole = (weights * (x[None] - (total / n)[:, None]) ** 2).sum(axis=1)
        within = (whole - between) / np.maximum(n - size.shape[1], 1)
        # Chance adds (G - 1) times the variance within to the sum of squares between, once when the sample
        # was drawn and once when it was resampled.
        chance = 2 * (size.shape[1] - 1) * within
        shares = np.divide(between - chance, whole, out=np.zeros(n_boot), where=whole > 0)
        low, high = np.quantile(np.maximum(shares, 0.0), (0.05, 0.95))
        return float(low), float(high)

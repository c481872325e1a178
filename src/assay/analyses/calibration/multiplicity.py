"""M93, many results at once: which claims survive that there were so many."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool

from assay import stats
from assay.analyses.calibration.gate import Found, Heads, Quantity, find_gate, gate, head_name, named
from assay.analyses.calibration.samples import ALPHA
from assay.core.errors import InputError, check_name
from assay.core.measurement import JUDGED, Rule, Verdict


_RULE = Rule(pass_at=0.5, open_ended=True)
P_KINDS = ("exact", "permutation", "t", "F", "bootstrap")
_SHARE = Quantity(
    label="share of claims established, at least",
    value="share_proven",
    rule=_RULE,
    published="published_value",
)


@dataclass(frozen=True, kw_only=True)
class PooledResult:
    """One result among many, with what is known of its chance.

    Attributes:
        name: What was tested; reports say it.
        task: The task it belongs to.
        value: The number, and `baseline` what it is compared with: together the published stand-in for p.
        baseline: See `value`.
        n: Examples behind the value.
        ci: Ends of its 95 % interval.
        passed: Its verdict.
        p: A real p-value, in the direction declared before looking.
        p_kind: How it was found: `exact`, `permutation`, `t`, `F` or `bootstrap`.
        e: An e-value: expectation at most 1 under the null.
        test_key: Reports of the same test share it; the first counts.

    Raises:
        InputError: For a p outside [0, 1], or a p without a known kind.
    """

    name: str
    task: str = ""
    value: float | None = None
    baseline: float | None = None
    n: int | None = None
    ci: tuple[float, float] | None = None
    passed: bool | None = None
    p: float | None = None
    p_kind: str | None = None
    e: float | None = None
    test_key: str | None = None

    def __post_init__(self) -> None:
        if self.p is not None:
            check_name("p_kind", self.p_kind, P_KINDS)
            if not 0 <= self.p <= 1:
                raise InputError(f"{self.name}: p is {self.p}; expected a p-value in [0, 1]")

    @property
    def tested_p(self) -> float | None:
        """The p-value, else min(1, 1 / e), which is one by Markov's inequality; None without either."""
        if self.p is not None:
            return self.p
        return None if self.e is None else 1 / max(1.0, self.e)


def claims_of(verdict: Verdict, heads: Heads = ()) -> Iterator[dict[str, Any]]:
    """What a gate claimed with a p-value, as fields of a `PooledResult`.

    Args:
        verdict: Of the gate.
        heads: (layer, head) of the circuit's heads, to name them; without it they are counted.
    """
    for each in verdict.details.get("claims", ()):
        told = dict(each)
        at, claimed = told.pop("head", None), told.pop("claimed")
        passed = verdict.status == claimed if isinstance(claimed, str) else claimed
        name = told["name"] if at is None else told["name"].format(head_name(at, heads))
        yield {**told, "name": name, "passed": passed}


def pooled_results(
    verdicts: Mapping[str, Verdict], task: str = "", *, heads: Heads = ()
) -> list[PooledResult]:
    """What M93 pools of the verdicts on one task: every real p-value, and the word of gates without one.

    A p-value enters with its direction declared before looking, and counts as claimed (`passed`) where the
    gate makes the claim; whether p is below 0.05 is for M93 to see.

    | gate | test, in the direction of the claim | claimed where |
    |---|---|---|
    | C12 | each pair of methods orders the heads alike: rho (permutation, two-sided) | pass, and rho > 0 |
    | F59 | raters agree more than by chance: W (permutation) | pass |
    | S1 | members rank above the other heads in direct effect: AUROC (permutation) | pass |
    | M3b | each head contributes: mean effect above 0, opposing heads below (sign flips) | certified |
    | S3 | mean, and spread, of each head differ between groups (Welch, Brown-Forsythe) | listed unstable |
    | C13 | the score differs between groups of prompts (Welch's F) | fail: that is what a fail says |
    | C14 | head edges compose more than other pairs: v, q, k (Welch's t, two-sided) | pass, and t > 0 |
    | C23 | mean layers of the roles rise with pathway depth (exact permutation, or random ones) | pass |
    | C36 | the circuit is more faithful than the random sets of each kind (Monte Carlo) | pass |

    A two-sided p beside a claim with a sign is at least the one-sided one, so it errs on the safe side.
    The other gates compute no p: their thresholds lie away from a null value (C11, C16, C30, M98, E1b), and
    C17 reports z against random sets without one. Left out as well are numbers reported beside a claim
    without making it: Brown-Forsythe and Kruskal-Wallis of C13, chi-square of F59, t of M3b, and the
    published p of C23 over heads, which are not independent. A head of M3b whose effect is the same on every
    prompt has no test and stays out.

    Args:
        verdicts: Gate (key or code) -> its verdict; M93's own is left out.
        task: The task they belong to.
        heads: (layer, head) of the circuit's heads in their order, to name them in the results of M3b and S3;
            without it they are counted.

    Returns:
        Gates without a p-value come with their published word alone (`passed`), which the published rule of
        M93 counts and the status does not; those without such a word are left out. Each test has a
        `test_key`, so that C14's copy of C13 is counted once.

    Raises:
        UnknownNameError: For a name that is not a gate.
    """
    found: list[PooledResult] = []
    for gate_name, verdict in verdicts.items():
        gate = find_gate(gate_name)
        if gate.key == "multiple-comparisons":
            continue
        tests = [*claims_of(verdict, heads)]
        tests = [each for each in tests if each["p"] is not None and not math.isnan(each["p"])]
        for each in tests:
            own = {"p": min(float(each["p"]), 1.0), "name": f"{gate.code}: {each['name']}", "task": task}
            found.append(PooledResult(**(each | own)))
        if not tests and verdict.published in JUDGED:
            found.append(PooledResult(name=gate.code, task=task, passed=verdict.published == "pass"))
    return found


def published_p_value(result: PooledResult) -> float | None:
    """The framework's stand-in for a p-value.

    Two-sided normal p of |value - baseline| / se, with se = interval width / 3.92, or
    max(|value|, |baseline|, 1e-8) / root n without an interval of positive width. A result without a baseline
    or a value counts 0.01 where it passed, 0.50 where not.

    Returns:
        None below two examples and where nothing is known.
    """
    if result.value is None or result.baseline is None:
        return None if result.passed is None else 0.01 if result.passed else 0.50
    if result.n is None or result.n < 2:
        return None
    difference = abs(result.value - result.baseline)
    if difference == 0:
        return 1.0
    width = result.ci[1] - result.ci[0] if result.ci is not None else 0.0
    size = max(abs(result.value), abs(result.baseline), 1e-8)
    error = width / 3.92 if width > 0 else size / math.sqrt(result.n)
    return 0.0 if error < 1e-15 else float(2 * scipy.special.ndtr(-difference / error))


def _judge(pool: Sequence[PooledResult]) -> Found:
    """Both verdicts on one pool of results."""
    known = np.array([q for each in pool if (q := published_p_value(each)) is not None])
    counted: dict[str, float | None] = {"published_m": float(len(known)), "published_value": None}
    if len(known):
        nominal = float((known < ALPHA).sum())
        surviving = float((stats.benjamini_hochberg(known) <= ALPHA).sum())
        counted |= {"published_nominal": nominal, "published_bh": surviving}
        counted["published_bonferroni"] = float((stats.bonferroni(known) <= ALPHA).sum())
        counted["published_value"] = surviving / nominal if nominal else 0.0
    first: dict[object, PooledResult] = {}  # report of each test
    with_p = [each for each in pool if each.tested_p is not None]
    for each in with_p:
        first.setdefault((each.task, each.test_key) if each.test_key else id(each), each)
    tested = list(first.values())
    p = np.array([each.tested_p for each in tested], dtype=np.float64)
    share = counted["published_value"]
    found = Found(thresholds={"alpha": ALPHA}, values={**counted, "m": float(len(p))})
    found.details = {"without_p": len(pool) - len(with_p), "duplicates": len(with_p) - len(tested)}
    found.published = "inconclusive" if share is None else _RULE.published(share)
    if not len(p) or (p == 1).all():
        return found.undefined("not_applicable")
    e_values = np.array([math.nan if each.e is None else each.e for each in tested])
    adjusted = {"bh": stats.benjamini_hochberg(p), "by": stats.benjamini_yekutieli(p)}
    adjusted |= {"holm": stats.holm(p), "bonferroni": stats.bonferroni(p)}
    adjusted["e_bh"] = stats.e_benjamini_hochberg(e_values)
    claimed: Bool[np.ndarray, " m"] = np.array([bool(each.passed) for each in tested]) & (p < ALPHA)
    survivors = claimed & (adjusted["bh"] <= ALPHA)
    n_claimed, n_survivors = float(claimed.sum()), float(survivors.sum())
    proven = stats.true_discoveries(p, claimed, alpha=ALPHA) / n_claimed if n_claimed else None
    value = n_survivors / n_claimed if n_claimed else None
    found.values = {"value": value, "share_proven": proven, "m": float(len(p)), "n_survivors": n_survivors}
    found.values |= {"n_nominal": float((p < ALPHA).sum()), "n_claimed": n_claimed, **counted}
    found.values |= {f"n_{name}": float((q <= ALPHA).sum()) for name, q in adjusted.items()}
    found.details["lost"] = lost = [tested[i].name for i in np.flatnonzero(claimed & ~survivors)]
    found.details["finding"] = f"Lost: {named(lost)}." if lost else ""
    found.details["results"] = [
        {"name": each.name, "task": each.task, "p": float(p[i]), "claimed": bool(claimed[i])}
        | {name: float(q[i]) for name, q in adjusted.items()}
        for i, each in enumerate(tested)
    ]
    if proven is None:
        return found.undefined("not_applicable")
    found.status = "pass"
    if proven <= 0.5:
        found.open("not_proven")
    return found


@gate(
    code="M93",
    criterion="M5 Statistical Rigor",
    question="Do the claims survive that so many results were looked at?",
    on_pass="more than half of the claims are true, allowing for their number",
    on_fail="it never does, for no p-value proves a claim false; drop the lost claims or collect more data",
    generalises_over="claims like these",
    weakness="a pass flag taken for p = 0.01 survives as soon as a fifth of the pooled checks passed",
    source="mechanistic-validity framework; Benjamini and Hochberg (1995); Goeman and Solari (2011)",
    number=_SHARE,
    reasons={
        "not_applicable": ("No claim has a p-value, so none can be lost.", "Give results with a p-value."),
        "not_proven": ("Not half of the claims are established.", "Drop the lost ones, or take more data."),
    },
    columns=lambda c: {"results": pooled_results(c.verdicts, c.table.task.name, heads=c.table.heads)},
)
def multiple_comparisons(results: Sequence[PooledResult]) -> Found:
    """Whether more than half of the claims are true, allowing for how many results were looked at.

    Args:
        results: All that was looked at. Only those with a real p-value or e-value count for the status.

    Returns:
        A claim is a result that passed with p < 0.05; it survives with a Benjamini-Hochberg q of at most
        0.05. Passes where the lower 95 % bound of how many claims are true (`assay.stats.true_discoveries`)
        is more than half of them: a share of survivors is not a bound, some may be false. Otherwise
        inconclusive (`not_proven`), and never a fail: a weak effect looks like none. Over the pool of all
        tasks; `sub_results` has the same per task. `not_applicable` without a p-value, where all are 1, and
        where nothing is claimed.
        `details["results"]` has q-values after Benjamini-Hochberg, Benjamini-Yekutieli (valid however results
        depend, as those that share prompts do), Holm, Bonferroni and e-BH; `details["lost"]` names the claims
        that do not survive.
    """
    tasks = list(dict.fromkeys(each.task for each in results))
    found = _judge(results)
    if len(tasks) > 1:
        parts = {task: _judge([each for each in results if each.task == task]) for task in tasks}
        found.parts = {task: _SHARE.judge(each) for task, each in parts.items()}
    return found

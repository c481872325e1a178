"""Many results at once: which claims survive that there were so many."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.analyses.calibration.gate import ALPHA, Draft, gate, left_open
from assay.analyses.calibration.quantity import Quantity
from assay.core.errors import InputError, check_name
from assay.core.verdict import Verdict
from assay.stats import (
    benjamini_hochberg,
    benjamini_yekutieli,
    bonferroni,
    e_benjamini_hochberg,
    holm,
    true_discoveries,
)


P_KINDS = ("exact", "permutation", "t", "F", "bootstrap")
_PASSED, _NOT_PASSED = 0.01, 0.50  # the published stand-ins for a p-value
_SURVIVING = 0.5


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
        InputError: For a p outside [0, 1], a p without a known kind, or a negative e.
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
        if self.e is not None and not self.e >= 0:
            raise InputError(f"{self.name}: e is {self.e}; expected an e-value of at least 0")

    @property
    def tested_p(self) -> float | None:
        """The p-value, else min(1, 1 / e), which is one by Markov's inequality; None without either."""
        if self.p is not None:
            return self.p
        return None if self.e is None else 1 / max(1.0, self.e)


def published_p_value(result: PooledResult) -> float | None:
    """The framework's stand-in for a p-value.

    Two-sided normal p of |value - baseline| / se, with se = interval width / 3.92, or
    max(|value|, |baseline|, 1e-8) / root n without an interval of positive width. A result without a baseline
    or a value counts 0.01 where it passed, 0.50 where not.

    Returns:
        None below two examples and where nothing is known.
    """
    if result.value is None or result.baseline is None:
        return None if result.passed is None else _PASSED if result.passed else _NOT_PASSED
    if result.n is None or result.n < 2:
        return None
    difference = abs(result.value - result.baseline)
    if difference == 0:
        return 1.0
    width = result.ci[1] - result.ci[0] if result.ci is not None else 0.0
    error = (
        width / 3.92
        if width > 0
        else max(abs(result.value), abs(result.baseline), 1e-8) / math.sqrt(result.n)
    )
    return 0.0 if error < 1e-15 else float(2 * scipy.special.ndtr(-difference / error))


def _published(pool: Sequence[PooledResult]) -> tuple[str, dict[str, float | None]]:
    """The published rule on the published p-values."""
    known = [found for result in pool if (found := published_p_value(result)) is not None]
    if not known:
        return "inconclusive", {"published_m": 0.0, "published_value": None}
    p = np.array(known)
    nominal = int((p < ALPHA).sum())
    share = float((benjamini_hochberg(p) <= ALPHA).sum()) / nominal if nominal else 0.0
    return (
        "pass" if share > _SURVIVING else "fail",
        {
            "published_m": float(len(p)),
            "published_nominal": float(nominal),
            "published_bh": float((benjamini_hochberg(p) <= ALPHA).sum()),
            "published_bonferroni": float((bonferroni(p) <= ALPHA).sum()),
            "published_value": share,
        },
    )


def _tested(pool: Sequence[PooledResult]) -> list[PooledResult]:
    """Results with a p-value, the first report of each test."""
    seen: set[tuple[str, str]] = set()
    tested: list[PooledResult] = []
    for result in pool:
        if result.tested_p is None or (result.test_key and (result.task, result.test_key) in seen):
            continue
        if result.test_key:
            seen.add((result.task, result.test_key))
        tested.append(result)
    return tested


def _judge(pool: Sequence[PooledResult]) -> Verdict:
    """Both verdicts on one pool of results."""
    published, counted = _published(pool)
    tested = _tested(pool)
    p = np.array([each.tested_p for each in tested], dtype=np.float64)
    left_out = sum(each.tested_p is None for each in pool)
    draft = Draft(
        thresholds={"pass": _SURVIVING, "alpha": ALPHA},
        values={**counted, "m": float(len(p))},
        details={"without_p": left_out, "duplicates": len(pool) - left_out - len(tested)},
    )
    if not len(p) or (p == 1).all():
        return draft.undefined("not_applicable", published=published)
    adjusted = _adjusted(tested, p)
    claimed: Bool[np.ndarray, " m"] = np.array([bool(each.passed) for each in tested]) & (p < ALPHA)
    survivors = claimed & (adjusted["bh"] <= ALPHA)
    proven = float(true_discoveries(p, claimed, alpha=ALPHA) / claimed.sum()) if claimed.any() else None
    draft.values = {
        "value": float(survivors.sum() / claimed.sum()) if claimed.any() else None,
        "share_proven": proven,
        "m": float(len(p)),
        "n_nominal": float((p < ALPHA).sum()),
        "n_claimed": float(claimed.sum()),
        "n_survivors": float(survivors.sum()),
        **{f"n_{name}": float((q <= ALPHA).sum()) for name, q in adjusted.items()},
        **counted,
    }
    draft.details |= {
        "results": [
            {
                "name": each.name,
                "task": each.task,
                "p": float(p[i]),
                "claimed": bool(claimed[i]),
                **{name: float(q[i]) for name, q in adjusted.items()},
            }
            for i, each in enumerate(tested)
        ],
        "lost": [each.name for each, lost in zip(tested, claimed & ~survivors, strict=True) if lost],
    }
    if proven is None:
        return draft.undefined("not_applicable", published=published)
    verdict = Verdict(status="pass", published=published, **vars(draft))
    return verdict if proven > _SURVIVING else left_open(verdict, "not_proven")


def _adjusted(
    tested: Sequence[PooledResult], p: Float64[np.ndarray, " m"]
) -> dict[str, Float64[np.ndarray, " m"]]:
    """Q-values by each procedure."""
    e = np.array([math.nan if each.e is None else each.e for each in tested], dtype=np.float64)
    return {
        "bh": benjamini_hochberg(p),
        "by": benjamini_yekutieli(p),
        "holm": holm(p),
        "bonferroni": bonferroni(p),
        "e_bh": e_benjamini_hochberg(e),
    }


@gate(
    key="multiple-comparisons",
    code="M93",
    name="Multiple comparisons",
    criterion="M5 Statistical Rigor",
    question="Do the claims survive that so many results were looked at?",
    on_pass="more than half of the claims are true, allowing for their number",
    on_fail="it never does, for no p-value proves a claim false; drop the lost claims or collect more data",
    generalises_over="claims like these",
    weakness=(
        "a pass flag turned into p = 0.01 survives as soon as a fifth of the pooled checks passed; the "
        "stand-in for a standard error takes the coefficient of variation to be 1"
    ),
    source="mechanistic-validity framework; Benjamini and Hochberg (1995), Goeman and Solari (2011, "
    "doi:10.1214/11-STS356), Wang and Ramdas (2022, arXiv:2009.02824)",
    number=Quantity(
        label="share of claims established, at least",
        value="share_proven",
        published="published_value",
        open_ended=True,
        least=0.0,
        most=1.0,
    ),
    reasons={
        "not_applicable": (
            "None of the claimed results has its own p-value, so no claim can be lost.",
            "Give results with a p-value, an e-value, or a measured test.",
        ),
        "not_proven": (
            "More than half of the claims are not established after correction for the number of results.",
            "Drop the lost claims, or collect more data.",
        ),
    },
)
def multiple_comparisons(results: Sequence[PooledResult]) -> Verdict:
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
    pooled = _judge(results)
    tasks = tuple(dict.fromkeys(each.task for each in results))
    per_task = {task: _judge([each for each in results if each.task == task]) for task in tasks}
    return replace(pooled, sub_results=per_task if len(tasks) > 1 else {})

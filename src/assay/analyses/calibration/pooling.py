"""The p-values of one run, each with the claim that it speaks for: what M93 adjusts for their number."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assay.analyses.calibration.gate import ALPHA, GATES, find_gate
from assay.analyses.calibration.multiplicity import PooledResult
from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.core.verdict import Verdict
from assay.stats.permutation import EXACT_RANKS, EXACT_SIGNS


Heads = Sequence[tuple[int, int]]


def pooled_results(
    verdicts: Mapping[str, Verdict], task: str = "", *, heads: Heads | None = None
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
            without it they are counted from 0.

    Returns:
        Gates without a p-value come with their published word alone (`passed`), which the published rule of
        M93 counts and the status does not; those without such a word are left out. Each test has a
        `test_key`, so that C14's copy of C13 is counted once.

    Raises:
        UnknownNameError: For a name that is not a gate.
        InputError: If `heads` lists fewer heads than a verdict speaks of.
    """
    found: list[PooledResult] = []
    for name, verdict in verdicts.items():
        gate = find_gate(name)
        if gate.key == "multiple-comparisons":
            continue
        tests = [each for each in _TESTS.get(gate.key, _none)(verdict, heads) if each.p is not None]
        found += [replace(each, name=f"{gate.code}: {each.name}", task=task) for each in tests]
        if not tests and verdict.published in ("pass", "moderate", "fail"):
            found.append(PooledResult(name=gate.code, task=task, passed=verdict.published == "pass"))
    return found


def pooled(thing: Any, *, task: str = "", p_kind: str = "exact", first: int = 1) -> list[PooledResult]:
    """Anything that M93 can pool.

    Args:
        thing: A pooled result; a measurement, with a Monte Carlo p where it was compared with random
            circuits; a verdict, of which only the published word counts; a p-value or an array of them,
            claimed where below 0.05; or a mapping: of gates to verdicts, of tasks to such mappings, else of
            names to any of these.
        task: The task of what does not tell.
        p_kind: How bare p-values were found.
        first: Number of the first result without a name.

    Raises:
        InputError: For anything else, and for p-values outside [0, 1].
    """
    if isinstance(thing, Mapping):
        return _of_mapping(thing, task, p_kind)
    if isinstance(thing, np.ndarray):
        return [
            _of_one(f"result {at}", each, task, p_kind)
            for at, each in enumerate(thing.reshape(-1), start=first)
        ]
    return [_of_one(f"result {first}", thing, task, p_kind)]


def _of_mapping(held: Mapping[str, Any], task: str, p_kind: str) -> list[PooledResult]:
    known = {*GATES, *(gate.code for gate in GATES.values())}
    if held and all(isinstance(each, Verdict) for each in held.values()) and set(held) <= known:
        return pooled_results(held, task)
    found: list[PooledResult] = []
    for name, each in held.items():
        if isinstance(each, Mapping):
            found += _of_mapping(each, str(name), p_kind)
        elif isinstance(each, list | tuple | np.ndarray):
            found += [
                _of_one(f"{name} {at}", one, task, p_kind)
                for at, one in enumerate(np.asarray(each).tolist(), start=1)
            ]
        else:
            found.append(_of_one(str(name), each, task, p_kind))
    return found


def _of_one(name: str, thing: Any, task: str, p_kind: str) -> PooledResult:
    if isinstance(thing, PooledResult):
        return thing
    if isinstance(thing, Measurement):
        return _of_measurement(thing, task)
    if isinstance(thing, Verdict):
        word = thing.published
        passed = word == "pass" if word in ("pass", "moderate", "fail") else None
        return PooledResult(name=str(thing.details.get("metric", name)), task=task, passed=passed)
    if isinstance(thing, int | float | np.integer | np.floating) and not isinstance(thing, bool):
        p = float(thing)
        return PooledResult(name=name, task=task, p=p, p_kind=p_kind, passed=p < ALPHA)
    raise InputError(
        f"M93 takes verdicts by gate, measurements, pooled results and p-values; {name} is a "
        f"{type(thing).__name__}"
    )


def _of_measurement(measurement: Measurement, task: str) -> PooledResult:
    """The value against random circuits of the same size, if it was measured with any."""
    told = measurement.provenance.get("task")
    named = str(told.get("name")) if isinstance(told, Mapping) and not task else task
    random = measurement.baseline.get("random", {})
    others = np.asarray(random.get("values", []), dtype=np.float64)
    others = others[np.isfinite(others)]
    p = None
    if len(others) and math.isfinite(measurement.value):
        turned = -1.0 if measurement.direction == "lower" else 1.0
        p = (1 + int(np.count_nonzero(turned * others >= turned * measurement.value))) / (1 + len(others))
    interval = measurement.interval()
    return PooledResult(
        name=f"{measurement.id}: better than random circuits" if p is not None else measurement.id,
        task=named,
        value=measurement.value if math.isfinite(measurement.value) else None,
        baseline=float(others.mean()) if len(others) else None,
        n=measurement.n,
        ci=(interval.low, interval.high) if interval.defined else None,
        passed=measurement.passed,
        p=p,
        p_kind=None if p is None else "permutation",
        test_key=f"measurement/{measurement.id_hash}",
    )


# ---- the tests of a gate ----------------------------------------------------------------------------
#
# Each is a claim with its p, none where the test is undefined; `passed` says whether the gate makes the
# claim, and is None instead of False where the published code has no such test, so that its rule does not
# count one that failed. Verdicts that report the same test share its `test_key`.


def _none(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    yield from ()


def _p(value: Any) -> float | None:
    """A p-value; None where it is undefined."""
    found = _number(value)
    return min(found, 1.0) if math.isfinite(found) else None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _numbers(values: Any) -> Any:
    """An array of numbers, NaN for null."""
    return np.asarray(values, dtype=np.float64)


def _named(at: int, heads: Heads | None) -> str:
    if heads is None:
        return f"head {at}"
    if at >= len(heads):
        raise InputError(
            f"a verdict refers to head {at} of the circuit, but heads lists only {len(heads)}; list all"
        )
    layer, head = heads[at]
    return f"a{layer}.h{head}"


def _pairs(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    n = verdict.details.get("n_heads_common", 0)
    for pair, p in verdict.details.get("p_values", {}).items():
        rho = _number(verdict.details["pairs"][pair])
        yield PooledResult(
            name=f"{pair} order the heads alike",
            test_key=f"C12/{pair}",
            p=_p(p),
            p_kind="exact" if n <= EXACT_RANKS else "permutation",
            passed=verdict.status == "pass" and rho > 0,
            value=rho,
            baseline=0.0,
            n=n,
        )


def _raters(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    yield PooledResult(
        name="raters agree more than by chance",
        test_key="F59/w",
        p=_p(verdict.values.get("p_permutation")),
        p_kind="permutation",
        passed=verdict.status == "pass",
        value=verdict.values.get("w"),
        baseline=verdict.values.get("chance"),
        n=verdict.details.get("n_heads"),
    )


def _area(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    yield PooledResult(
        name="members rank above the other heads in direct effect",
        test_key="S1/auroc",
        p=_p(verdict.values.get("auroc_p")),
        p_kind="permutation",
        passed=verdict.status == "pass",
        value=verdict.values.get("auroc"),
        baseline=0.5,
        n=verdict.details.get("n"),
    )


def _head_effects(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    details = verdict.details
    n = details.get("n_units", 0)
    p, means = _numbers(details.get("p", [])), _numbers(details.get("mean_effects", []))
    # A sign-flip p is at least 2^-n: 0 marks a head with the same effect on every prompt, which has no test.
    for at in np.flatnonzero(p > 0).tolist():
        yield PooledResult(
            name=f"{_named(at, heads)} contributes",
            test_key=f"M3b/{at}",
            p=_p(p[at]),
            p_kind="exact" if n <= EXACT_SIGNS else "permutation",
            passed=str(details["labels"][at]) == "certified",
            value=float(means[at]),
            baseline=0.0,
            n=n,
        )


def _head_groups(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    part = verdict.sub_results.get("groups")
    if part is None or "p" not in part.details:
        return
    columns, unstable = verdict.details["columns"], set(np.asarray(part.details["unstable"]).tolist())
    for kind, row in zip(("mean", "spread"), _numbers(part.details["p"]), strict=True):
        for at, p in enumerate(row.tolist()):
            yield PooledResult(
                name=f"the {kind} of {_named(int(columns[at]), heads)} differs between groups",
                test_key=f"S3/{kind}/{int(columns[at])}",
                p=_p(p),
                p_kind="F",
                passed=True if at in unstable else None,
            )


def _groups(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    yield PooledResult(
        name="the score differs between groups of prompts",
        test_key="C13/welch",
        p=_p(verdict.values.get("welch_p")),
        p_kind="F",
        passed=verdict.status == "fail",
        value=verdict.values.get("eta_squared"),
        baseline=verdict.values.get("expected_eta_squared"),
        n=verdict.details.get("n_prompts"),
    )


def _composed(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    rows = verdict.sub_results
    for channel in ("ov", "q", "k"):
        row = rows.get(f"{channel}_composition_pval")
        if row is not None:
            yield PooledResult(
                name=f"head edges compose more than other pairs ({channel})",
                test_key=f"C14/{channel}",
                p=_p(row.values.get("value")),
                p_kind="t",
                passed=row.status == "pass",
            )
    if "partial_eta_sq" in rows:
        yield from _groups(rows["partial_eta_sq"], heads)


def _roles(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    yield PooledResult(
        name="roles lie in the order of their pathways",
        test_key="C23/roles",
        p=_p(verdict.values.get("role_level_p")),
        p_kind="exact" if verdict.details.get("exact") else "permutation",
        passed=verdict.status == "pass",
        value=verdict.values.get("role_level_rho"),
        baseline=0.0,
        n=len(verdict.details.get("roles", ())),
    )


def _random_sets(verdict: Verdict, heads: Heads | None) -> Iterator[PooledResult]:
    for name, found in verdict.details.get("others", {}).items():
        if "p" in found:
            yield PooledResult(
                name=f"the circuit is more faithful than {name}",
                test_key=f"C36/{name}",
                p=_p(found["p"]),
                p_kind="permutation",
                passed=verdict.status == "pass",
                value=verdict.values.get("faithfulness"),
                baseline=_number(found["mean"]),
                n=verdict.details.get("n"),
            )


_TESTS: Mapping[str, Callable[[Verdict, Heads | None], Iterator[PooledResult]]] = {
    "convergent-validity": _pairs,
    "inter-rater": _raters,
    "distributional-characterization": _area,
    "certified-stability": _head_effects,
    "distributional-stability": _head_groups,
    "measurement-invariance": _groups,
    "derived-metrics": _composed,
    "nomological-validity": _roles,
    "incremental-validity": _random_sets,
}

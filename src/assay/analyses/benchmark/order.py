"""The published order of methods by CPR, and where a benchmark of ours differs from it."""

import math
from dataclasses import dataclass

from assay.analyses.benchmark.results import Bounded, DiscoveryBenchmark


# (worse, whether strictly, better): Random < IFR < EAP <= EAP-IG <= UGS.
PUBLISHED_ORDER: tuple[tuple[str, bool, str], ...] = (
    ("random", True, "ifr"),
    ("ifr", True, "eap"),
    ("eap", False, "eap-ig-inputs"),
    ("eap-ig-inputs", False, "ugs"),
)
AS_PUBLISHED, REVERSED, OPEN, ABSENT = "as published", "reversed", "not distinguished", "not measured"


@dataclass(frozen=True, kw_only=True)
class OrderLink:
    """One step of the published order.

    Attributes:
        worse, better: The methods as published.
        strict: Whether the better one is better, or at least as good.
        difference: CPR of the better less that of the worse one, on the same examples; None if not measured.
        verdict: `as published`: the whole interval is above 0 (for "at least as good", not below 0).
            `reversed`: all of it is below 0. `not distinguished`: it reaches over 0. `not measured`: one of
            the two has no CPR.
        reason: Why it was not measured.
    """

    worse: str
    better: str
    strict: bool
    difference: Bounded | None
    verdict: str
    reason: str | None = None

    def __str__(self) -> str:
        relation = "<" if self.strict else "≤"
        shown = "" if self.difference is None else f", CPR differs by {self.difference:+.3f}"
        return f"{self.worse} {relation} {self.better}: {self.verdict}{shown}"


def examine_order(benchmark: DiscoveryBenchmark) -> tuple[OrderLink, ...]:
    """Each step of the published order, set beside what was measured.

    Args:
        benchmark: Rows are found by their names, the plain keys of the methods.

    Returns:
        A link per step: random, ifr, eap, eap-ig-inputs, ugs.

    References:
        Peng et al. (2026), arXiv:2604.08192, Tables 10 and 11; Li and Janson (2024), arXiv:2409.09951.
    """
    links = []
    for worse, strict, better in PUBLISHED_ORDER:
        reason = next((why for name in (worse, better) if (why := _absent(benchmark, name))), None)
        difference = None if reason else benchmark.difference(better, worse)
        links.append(
            OrderLink(
                worse=worse,
                better=better,
                strict=strict,
                difference=difference,
                verdict=ABSENT if difference is None else _verdict(difference, strict=strict),
                reason=reason,
            )
        )
    return tuple(links)


def _absent(benchmark: DiscoveryBenchmark, name: str) -> str | None:
    row = next((each for each in benchmark.rows if each.name == name), None)
    if row is None:
        return f"{name} did not compete"
    return None if row.served else f"{name}: {row.reason}"


def _verdict(found: Bounded, *, strict: bool) -> str:
    if math.isnan(found.value) or math.isnan(found.low):
        return OPEN
    if found.high < 0:
        return REVERSED
    return AS_PUBLISHED if found.low > 0 or (not strict and found.low >= 0) else OPEN

"""The one number of a gate that its picture shows, with the interval and the limits that belong to it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


Record = Mapping[str, Any]
Stretch = tuple[float, float]

# The parts that a gate's verdict is made of, where it is the worst of several.
DECISIVE = {
    "C14": ("d_prime", "hit_rate", "false_alarm_rate"),
    "C16": ("test_retest", "split_half", "cronbach_alpha"),
}
_WORST_FIRST = ("fail", "inconclusive", "moderate", "pass", "none")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Where to find the number of a gate, or of a part of one, in its verdict.

    Attributes:
        label: What the number is called.
        value: Entry of `values` that the interval belongs to.
        published: Entry that the published rule judges; None where it judges something on another scale.
        limit: Entry of `thresholds` that a pass has to clear.
        higher: Whether larger numbers pass.
        least, most: Ends of what the number can be.
        ratio: Whether the number is a ratio, better seen on a logarithmic axis.
        unit: Distance from a limit of 0 that is worth speaking of; None: the limit itself is the unit.
        reaching: Whether the limit itself passes.
        open_ended: Whether no number is a fail with confidence, as of the p of a test.
    """

    label: str
    value: str = "value"
    published: str | None = "value"
    limit: str = "pass"
    higher: bool = True
    least: float = -math.inf
    most: float = math.inf
    ratio: bool = False
    unit: float | None = None
    reaching: bool = False
    open_ended: bool = False


# In the order of the page. C14 and C16 have a number per part; the one that decides is shown.
RULES: dict[str, Rule] = {
    "C11": Rule(
        label="standard error of the score",
        value="standard_error",
        published="sigma",
        least=0.0,
        higher=False,
        reaching=True,
    ),
    "C12": Rule(
        label="mean rank correlation of methods",
        value="mean_rho",
        published="mean_rho_zero_filled",
        least=-1.0,
        most=1.0,
    ),
    "C13": Rule(
        label="share of the spread that lies between groups",
        value="eta_squared",
        published="eta_squared",
        higher=False,
        least=0.0,
        most=1.0,
    ),
    "C14": Rule(
        label="distance of members’ scores from the others’ (d′)",
        value="d_prime",
        published="d_prime",
        limit="d_prime",
    ),
    "C16": Rule(label="the part that decides", published=None),
    "C17": Rule(label="effect on the own task less three times that on others", published=None),
    "C23": Rule(
        label="chance that roles in random order follow depth as well",
        value="role_level_p",
        published=None,
        limit="p",
        higher=False,
        least=0.0,
        most=1.0,
    ),
    "C30": Rule(
        label="standard error of the score over the score",
        value="relative_standard_error",
        published="coefficient_of_variation",
        higher=False,
        least=0.0,
    ),
    "C36": Rule(label="faithfulness gained over the baseline", unit=0.1),
    "F59": Rule(
        label="concordance of the raters (W)", value="w", published="w", limit="w", least=0.0, most=1.0
    ),
    "S1": Rule(label="attribution inside over outside the circuit", ratio=True, least=0.0),
    "S3": Rule(
        label="share of heads that are stable",
        value="share_stable",
        published="share_passing",
        least=0.0,
        most=1.0,
        reaching=True,
    ),
    "M93": Rule(
        label="share of claims proven true, at least",
        value="share_proven",
        published="published_value",
        least=0.0,
        most=1.0,
        open_ended=True,
    ),
    "M98": Rule(
        label="widest gap between two ablations",
        value="divergence",
        published="divergence",
        higher=False,
        least=0.0,
    ),
    "E1b": Rule(
        label="1 less the widest gap between two ablations",
        value="method_invariance",
        published="method_invariance",
        most=1.0,
    ),
    "M3b": Rule(
        label="share of heads with an effect above 0 that is not negligible",
        value="share_positive",
        published="published_share_certified",
        least=0.0,
        most=1.0,
        reaching=True,
    ),
}

_P_VALUE = Rule(label="p of the circuit’s edges", higher=False, least=0.0, most=1.0, open_ended=True)

# Parts whose number is not simply `value`, larger is better.
PARTS: dict[str, Rule] = {
    "C11.completeness": replace(RULES["C11"], label="standard error of completeness"),
    "C12.icc": Rule(label="agreement of standardised scores (ICC)", least=-1.0, most=1.0),
    "C14.d_prime": Rule(label="d′ of the scores"),
    "C14.llc_d_prime": Rule(label="d′ of the learning coefficient, sign reversed"),
    "C14.node_overlap_jaccard": Rule(
        label="overlap with the published heads", least=0.0, most=1.0, reaching=True
    ),
    "C14.hit_rate": Rule(label="members found by the prediction", least=0.0, most=1.0),
    "C14.false_alarm_rate": Rule(
        label="other heads that the prediction names", higher=False, least=0.0, most=1.0
    ),
    "C14.partial_eta_sq": Rule(
        label="share of the spread between groups (C13)",
        value="eta_squared",
        published="eta_squared",
        higher=False,
        least=0.0,
        most=1.0,
    ),
    "C14.ov_composition_pval": replace(_P_VALUE, label="OV composition on the edges, p"),
    "C14.q_composition_pval": replace(_P_VALUE, label="query composition on the edges, p"),
    "C14.k_composition_pval": replace(_P_VALUE, label="key composition on the edges, p"),
    "C14.attribution_auroc": Rule(label="chance that a member outranks another head", least=0.0, most=1.0),
    "C14.sparsity": Rule(label="share of heads in the circuit", least=0.0, most=1.0),
    "C14.spectral_norm_ratio": Rule(label="spectral norm, members over others"),
    "C14.sv_entropy_ratio": Rule(label="entropy of singular values, members over others"),
    "C14.pc_ratio_circuit_mean": Rule(label="pc_ratio, mean of members"),
    "C14.pc_ratio_noncircuit_mean": Rule(label="pc_ratio, mean of the others"),
    "C14.pc_ratio_d_prime": Rule(label="pc_ratio, d′"),
    "C14.faithfulness": Rule(label="faithfulness", reaching=True),
    "C14.completeness": Rule(label="completeness", reaching=True),
    "C14.minimality_mean_importance": Rule(label="mean loss without one of the heads"),
    "C14.logit_diff_recovery": Rule(label="margin recovered by scrubbing"),
    "C16.test_retest": Rule(
        label="test-retest: standard error over the score",
        value="relative_standard_error",
        published=None,
        higher=False,
        least=0.0,
    ),
    "C16.split_half": Rule(
        label="split halves: reliability of the profile of heads",
        value="icc",
        published="split_half",
        most=1.0,
    ),
    "C16.cronbach_alpha": Rule(
        label="internal consistency: Cronbach’s α", value="alpha", published="alpha", most=1.0
    ),
    "C16.cronbach_alpha.sign_aligned": Rule(
        label="the same, signs of opposing heads reversed", value="alpha", published="alpha", most=1.0
    ),
    "C16.split_half_published": Rule(
        label="split halves as published", value="split_half", published="split_half", most=1.0
    ),
    "C23.layer_density_correlation": Rule(
        label="layer against number of heads, rank correlation", value="rho"
    ),
    "C36.substantial": Rule(label="the same gain against 0.1"),
    "F59.kendalls_w": replace(RULES["F59"], limit="pass"),
    "F59.mean_spearman": Rule(label="mean rank correlation of raters", least=-1.0, most=1.0),
    "F59.mean_kappa": Rule(label="agreement on the best heads (κ)", least=-1.0, most=1.0),
    "S1.difference": replace(RULES["S1"], label="the same of effects on right less wrong answer"),
    "S3.difference": replace(RULES["S3"], label="the same of effects on right less wrong answer"),
    "S3.groups": Rule(label="heads that differ between groups", value="n_unstable", higher=False, least=0.0),
    "M3b.anytime": Rule(
        label="certified whenever one looks", value="share_certified", least=0.0, most=1.0, reaching=True
    ),
    "M3b.edits": Rule(
        label="certified against edited prompts", value="share_certified", least=0.0, most=1.0, reaching=True
    ),
}


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What the picture of a gate shows.

    Attributes:
        label: What the number is called.
        value: The number that the interval belongs to; None where it is undefined.
        published: The number that the published rule judges, on the same scale; else None.
        low, high: Ends of the interval; None without one.
        level: Its coverage.
        passes, fails: Stretches of the axis on which the verdict would be a pass, a fail.
        limits: The thresholds, as they are drawn.
        least, most: Ends of what the number can be.
        ratio: Whether a logarithmic axis suits it.
        scale: Distance from the first limit that counts as one.
        higher: Whether larger numbers pass.
        reaching: Whether the limit itself passes.
        part: Part of the gate that the number belongs to, if it is not the gate's own.
    """

    label: str
    value: float | None
    published: float | None
    low: float | None
    high: float | None
    level: float | None
    passes: tuple[Stretch, ...]
    fails: tuple[Stretch, ...]
    limits: tuple[float, ...]
    least: float
    most: float
    ratio: bool
    scale: float
    higher: bool
    reaching: bool = False
    part: str | None = None

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None and self.high is not None


def headline(gate: Record) -> Headline:
    """The number of a gate that its picture shows, with what it is judged by.

    A verdict's interval and thresholds belong together, but to which of its `values` depends on the gate:

    - the entry named in `RULES` for most;
    - C14 and C16 are the worst of several parts: the number of that part (fail, inconclusive, moderate, pass;
      the first of equals). C14's own interval is that of d', one of them;
    - C13's number is called after the field that groups the prompts;
    - C23 is a test: its p, without an interval, passing below 0.05, failing where the opposite order does;
    - M93 counts claims, M3b and S3 heads: a share without an interval, whose majority is tested as a whole.

    Args:
        gate: A record of the document: `code` and `verdict` are read.
    """
    code, verdict = str(gate["code"]), gate["verdict"]
    rule = RULES.get(code, Rule(label=str(gate.get("name", code))))
    if code in DECISIVE:
        return _of_part(code, rule, verdict)
    found = _read(rule, verdict)
    if code == "C13" and (by := (verdict.get("details") or {}).get("groups_from")):
        return replace(found, label=f"{found.label} ({'as given' if by == 'given' else f'by {by}'})")
    if code == "C23" and found.limits:
        # The opposite order has a p below 0.05 only where this one is above 0.95.
        return replace(found, fails=((1 - found.limits[0], 1.0),))
    return found


def side(shown: Headline, value: float | None) -> str:
    """Where a number lies: `pass` or `fail` beyond a limit, `moderate` between two, else empty."""
    if value is None or not shown.limits:
        return ""
    if any(low < value < high for low, high in shown.passes):
        return "pass"
    if any(low < value < high for low, high in shown.fails):
        return "fail"
    if value == shown.limits[0]:
        return "pass" if shown.reaching else "fail" if len(shown.limits) == 1 else "moderate"
    return "moderate" if len(shown.limits) > 1 else ""


def part_headline(name: str, verdict: Record) -> Headline:
    """The same of a part, by its name after the gate's code: `C14.hit_rate`."""
    rule = PARTS.get(name)
    if rule is None:
        last = name.rpartition(".")[2].replace("_", " ")
        whole = RULES.get(name.partition(".")[0])
        # Tasks and variants are judged as the gate is, if their number goes by the same name.
        alike = whole is not None and whole.value in (verdict.get("values") or {})
        rule = replace(whole, label=last or "no task") if whole and alike else Rule(label=last or "no task")
    return _read(rule, verdict)


def _number(found: Record, name: str | None) -> float | None:
    value = found.get(name) if name else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _read(rule: Rule, verdict: Record) -> Headline:
    values, thresholds = verdict.get("values") or {}, verdict.get("thresholds") or {}
    interval = verdict.get("interval") or {}
    ends = [_number(interval, name) for name in ("low", "high")]
    at = _number(thresholds, rule.limit)
    fail_at = _number(thresholds, "fail")
    fail_at = at if fail_at is None else fail_at
    passes: tuple[Stretch, ...] = ()
    fails: tuple[Stretch, ...] = ()
    limits: tuple[float, ...] = ()
    if at is not None and fail_at is not None:
        passes = ((at, math.inf),) if rule.higher else ((-math.inf, at),)
        if not rule.open_ended:
            fails = ((-math.inf, fail_at),) if rule.higher else ((fail_at, math.inf),)
        limits = (at,) if at == fail_at else (at, fail_at)
    return Headline(
        label=rule.label,
        value=_number(values, rule.value),
        published=_number(values, rule.published),
        low=None if None in ends else ends[0],
        high=None if None in ends else ends[1],
        level=_number(interval, "level"),
        passes=passes,
        fails=fails,
        limits=limits,
        least=rule.least,
        most=rule.most,
        ratio=rule.ratio,
        scale=rule.unit or abs(at or 1.0),
        higher=rule.higher,
        reaching=rule.reaching,
    )


def _of_part(code: str, rule: Rule, verdict: Record) -> Headline:
    """The part that decides: of the worst status, the first."""
    parts = verdict.get("sub_results") or {}
    known = [
        name
        for name in DECISIVE[code]
        if name in parts and (code == "C16" or parts[name].get("reason") != "not_applicable")
    ]
    if not known:
        return _read(rule, verdict)
    name = min(known, key=lambda each: _WORST_FIRST.index(parts[each]["status"]))
    return replace(part_headline(f"{code}.{name}", parts[name]), part=name)

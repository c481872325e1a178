"""What the verdict of a gate says to readers without statistics, and what to do next."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.analyses.calibration.names import (
    circuit_heads,
    claim_name,
    head_name,
    method_name,
    named,
    sentence,
)
from assay.analyses.calibration.quantity import Judged
from assay.core.errors import InputError
from assay.page.blocks import STATUSES
from assay.page.text import MINUS, number, rounded


Record = Mapping[str, Any]

FAR_TOO_MANY = 100_000
MOST_DIGITS = 6
OTHER_TASKS = ("greater-than", "ioi")  # to name as an example
OPEN_STATES = ("not applicable", "undefined", "inconclusive")

JUDGED = ("pass", "fail", "moderate")
KINDS = {
    **{name: STATUSES[name] for name in (*JUDGED, "inconclusive")},
    "not applicable": ("\N{EN DASH}", "not applicable"),
    "undefined": ("\N{EN DASH}", "undefined"),
    "none": STATUSES["none"],
}


def judged_of(record: Record) -> Judged:
    """What a gate, or a part of one, decided about its number.

    Raises:
        InputError: For a document without it, as earlier versions wrote.
    """
    if "judged" not in record:
        raise InputError("these calibrations do not name what was judged; run `assay calibrate` again")
    return Judged.from_dict(record["judged"])


def published_words(published: str) -> tuple[str, str]:
    """Mark and word of a published verdict."""
    return KINDS[published] if published in JUDGED else ("\N{EN DASH}", "says nothing")


def scope(gate: Record) -> str:
    """What the verdict with confidence of a gate generalises over; nothing where its record does not tell."""
    over = str(gate.get("generalises_over") or "")
    # Scores without prompts leave only the heads to resample.
    if (gate["verdict"].get("details") or {}).get("resampled") == "heads":
        over = "heads like these"
    return f"The verdict with confidence generalises over {over}." if over else ""


def advice(gate: Record, document: Record) -> list[str]:
    """What to do about the verdict of a gate, by the names and numbers of the document that holds it.

    Args:
        gate: One of the document's `gates`.
        document: Calibrations, as `assay.calibrate_all(...).to_dict()` gives them.

    Returns:
        Sentences; empty after a plain pass.
    """
    judged, verdict = judged_of(gate["verdict"]), gate["verdict"]
    steps: list[str] = []
    if judged.state in OPEN_STATES:
        n_prompts = (document.get("table") or {}).get("n_prompts")
        task = str((document.get("task") or {}).get("name") or "")
        remedy = _remedy(gate["code"], judged, verdict.get("details") or {}, task)
        steps += [judged.because, _needed(gate["code"], verdict, n_prompts) or remedy]
    elif judged.state == "fail":
        steps.append(judged.because)
    if judged.state != "pass":
        steps.append(findings(gate, circuit_heads(document)))
    return [each for each in steps if each]


def _remedy(code: str, judged: Judged, details: Record, task: str) -> str:
    """What would give a verdict, with the task or the fields of the prompts that could be named."""
    if judged.reason == "not_applicable" and code == "C17":
        other = next(each for each in OTHER_TASKS if each != task)
        return f"Name one, for example --against {other} (against= in Python)."
    fields = details.get("fields")
    if judged.reason != "not_applicable" or code != "C13" or fields is None:
        return judged.remedy
    if not fields:
        return (
            "No field of the task repeats often enough to group by; give a label of each prompt as groups= "
            "in Python."
        )
    options = " or ".join(f"--groups {name}" for name in fields)
    return f"Group them by a field of the task: {options} (groups= in Python)."


def _needed(code: str, verdict: Record, n_prompts: int | None) -> str:
    """How many prompts would settle an open verdict."""
    needed = verdict.get("n_needed")
    if needed is None:
        return ""
    details = verdict.get("details") or {}
    have = details.get("n_prompts", details.get("n", n_prompts))
    have = min(have.values(), default=None) if isinstance(have, Mapping) else have
    if have is not None and needed <= have:
        return "The result is close; a few more prompts should settle it."
    if needed > FAR_TOO_MANY:
        return (
            "The number is so close to its limit that no feasible number of prompts would settle it; treat "
            "it as lying on the limit."
        )
    here = f" (here: {number(have)})" if have is not None else ""
    if code == "C30":
        return f"A pool of about {number(_round_up(needed))} prompts would settle it{here}."
    return f"About {number(_round_up(needed))} prompts would settle it{here}, if the spread stays the same."


def _round_up(count: int) -> int:
    """Two digits, upwards: more would claim a precision that such forecasts lack."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return int(math.ceil(count / unit) * unit)


def disagreement(gate: Record) -> str:
    """Why the published rule says something else, where it does."""
    judged = judged_of(gate["verdict"])
    published, state = judged.published, judged.state
    if published not in JUDGED or published == state:
        return ""
    weakness = sentence(str(gate.get("weakness") or ""))
    if state in ("not applicable", "undefined"):
        return f"The published rule says {published} all the same. {weakness}".strip()
    crosses = state == "inconclusive" and _crosses(judged)
    own = judged.side(judged.value)
    if crosses and own == published:
        where = {"pass": "where the check passes", "fail": "where it fails"}.get(
            published, "between its limits"
        )
        return (
            f"The published rule says {published}, because the number itself lies {where}. Its interval is "
            "not entirely there, so with confidence the check stays open."
        )
    other, number_judged = "", judged.published_value
    if number_judged is not None and judged.value is not None and judged.side(number_judged) != own:
        other = f", because it judges another number, {number(number_judged)}"
    here = " Here the interval reaches across the limit, so with confidence the check stays open."
    return f"The published rule says {published}{other}.{here if crosses else ''} {weakness}".strip()


def _crosses(judged: Judged) -> bool:
    """Whether the interval has ends on two sides of a limit."""
    interval = judged.interval
    return interval is not None and judged.side(interval.low) != judged.side(interval.high)


def findings(gate: Record, heads: Sequence[Sequence[int]] = ()) -> str:
    """Where a gate points: the pair, the part, the heads or the claims that stand out; nothing if none do."""
    code, verdict = str(gate["code"]), gate["verdict"]
    details = verdict.get("details") or {}
    if code == "C16":
        return _weak_parts(verdict, heads)
    if code == "M3b":
        return _uncertified(details, heads)
    if code == "C14":
        return _weak_rows(verdict, judged_of(verdict).part)
    finder = {
        "C12": _least_alike,
        "C13": _furthest_groups,
        "C17": _weak_tasks,
        "F59": _least_alike,
        "M93": _lost_claims,
        "M98": _widest_pair,
        "E1b": _widest_pair,
    }.get(code)
    return finder(verdict, details) if finder else ""


def _uncertified(details: Record, heads: Sequence[Sequence[int]]) -> str:
    labels = details.get("labels") or []
    parts = []
    for label in ("contingent", "unstable"):
        names = [head_name(at, heads) for at, each in enumerate(labels) if each == label]
        parts += [f"{label} {named(names)}"] if names else []
    return sentence("; ".join(parts))


def _least_alike(verdict: Record, details: Record) -> str:
    """The methods, or raters, whose orders of the heads agree least."""
    pair = details.get("lowest_pair") or details.get("worst_pair")
    if not pair:
        return ""
    who = "methods" if "lowest_pair" in details else "raters"
    rho = (details.get("pairs") or {}).get("/".join(pair))
    return f"The {who} that agree least: {named([*map(method_name, pair)])} (rank correlation {number(rho)})."


def _furthest_groups(verdict: Record, details: Record) -> str:
    found = details.get("largest_difference") or {}
    groups = details.get("groups") or {}
    pair = found.get("pair")
    if not pair or not all(name in groups for name in pair):
        return ""
    scores = " and ".join(number(groups[name]) for name in pair)
    return f"Furthest apart: {named(pair)}, with scores {scores}."


def _weak_rows(verdict: Record, shown: str | None) -> str:
    """The rows that prevent a pass, besides the one whose number is shown."""
    rows = verdict.get("sub_results") or {}
    short = [
        f"{words} {number((rows[name].get('values') or {}).get('value'))}"
        for name, words in (
            ("d_prime", "d′"),
            ("hit_rate", "hits"),
            ("false_alarm_rate", "false alarms"),
        )
        if name in rows
        and name != shown
        and rows[name]["status"] in ("fail", "inconclusive")
        and not rows[name].get("reason")
    ]
    return f"Also not established: {named(short)}." if short else ""


def _weak_parts(verdict: Record, heads: Sequence[Sequence[int]]) -> str:
    parts = verdict.get("sub_results") or {}
    words = {"test_retest": "test-retest", "split_half": "split halves", "cronbach_alpha": "consistency"}
    by_status = {
        status: [words[name] for name in words if name in parts and parts[name]["status"] == status]
        for status in ("fail", "inconclusive")
    }
    found = []
    if by_status["fail"]:
        # Alone at 5 %; the suite fails only where a part does at its share of that.
        alone = (
            ""
            if verdict["status"] == "fail"
            else ", though not with enough confidence for one of several tests"
        )
        found.append(f"Failing: {named(by_status['fail'])}{alone}.")
    if by_status["inconclusive"]:
        found.append(f"Open: {named(by_status['inconclusive'])}.")
    alpha = parts.get("cronbach_alpha") or {}
    erratic = (alpha.get("details") or {}).get("erratic")
    if erratic and alpha["status"] in ("fail", "inconclusive") and alpha.get("interval"):
        names = [head_name(int(at), heads) for at in erratic]
        found.append(f"Not moving with the others: {named(names)}.")
    return " ".join(found)


def _weak_tasks(verdict: Record, details: Record) -> str:
    own, ratio = details.get("own"), (verdict.get("values") or {}).get("ratio")
    if ratio is None:
        return ""
    found = (
        f"The heads matter {number(ratio)} times as much for {own} as for the other tasks; a pass requires 3."
    )
    parts = verdict.get("sub_results") or {}
    others = [name for name, part in parts.items() if part["status"] == "fail" and name != own]
    if not others:
        return found
    either = " either" if verdict["status"] == "fail" else ""
    return f"{found} Not specific{either}: the circuit{'s' * (len(others) > 1)} of {named(others)}."


def _lost_claims(verdict: Record, details: Record) -> str:
    lost = details.get("lost")
    return f"Lost: {named([claim_name(each) for each in lost])}." if lost else ""


def _widest_pair(verdict: Record, details: Record) -> str:
    pair = details.get("pair")
    if not pair:
        return ""
    scores = " and ".join(number((verdict.get("values") or {}).get(name)) for name in pair)
    found = f"Furthest apart: {named(pair)} ablation, with scores {scores}."
    level = (details.get("levels") or {}).get("fail")
    if verdict["status"] != "fail" or level is None:
        return found
    return (
        f"{found} The gap lies beyond the limit at {100 * level:.1f} %, the level of a fail among all pairs."
    )


def number_line(judged: Judged) -> tuple[str, str]:
    """The number of a gate with its interval, and where it passes."""
    interval = judged.interval
    if judged.value is None or interval is None or interval.high <= interval.low:
        return number(judged.value), passes_words(judged)
    least = 2 if abs(judged.value) < 10 else 0
    digits = min(MOST_DIGITS, max(least, 1 - math.floor(math.log10(interval.high - interval.low))))
    ends = (judged.value, interval.low, interval.high)
    digits = next(
        (each for each in range(digits, MOST_DIGITS + 1) if not _meets(ends, each, judged.limits)), digits
    )
    value, low, high = (rounded(each, digits) for each in ends)
    return f"{value} [{low}, {high}]", passes_words(judged)


def _meets(values: Sequence[float], digits: int, limits: Sequence[float]) -> bool:
    """Whether one of the numbers would read like a limit that it is not."""
    return any(
        value != limit and round(value, digits) == round(limit, digits)
        for value in values
        for limit in limits
    )


def passes_words(judged: Judged) -> str:
    """A sentence on where it passes and fails."""
    if judged.rule is None:
        return ""
    side, other = ("above", "below") if judged.rule.higher else ("below", "above")
    first, *more = map(_limit, judged.limits)
    words = f"passes {side} {first}" if judged.rule.strict else f"passes at {first} or {side}"
    return f"{words}, fails {other} {more[0]}" if more else words


def _limit(value: float) -> str:
    return f"{value:g}".replace("-", MINUS)


def picture_words(judged: Judged) -> str:
    """What the picture of a gate shows, for those who do not see it."""
    value, passes = number_line(judged)
    known = judged.published_value is not None
    published = f"; the published rule judges {number(judged.published_value, 3)}" if known else ""
    state = KINDS.get(judged.state, KINDS["none"])[1]
    return f"{judged.label}: {value}; {passes or 'no limit'}{published}; {state} with confidence"

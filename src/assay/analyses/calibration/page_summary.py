"""What a page of calibrations says before its gates: the verdicts, what is judged, and what to know first."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.analyses.calibration.names import sentence
from assay.analyses.calibration.page_words import JUDGED, KINDS, judged_of
from assay.analyses.calibration.quantity import Judged
from assay.analyses.calibration.reasons import REASONS
from assay.page.text import listed, number, percent, precision, rounded, subject_of


Record = Mapping[str, Any]

RECOMMENDED, RECOMMENDED_GROUPS = 100, 300  # prompts
NEAR_ZERO = "score_near_zero"


_VERBS = {
    "pass": ("passes", "pass"),
    "moderate": ("lies in between", "lie in between"),
    "fail": ("fails", "fail"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "not applicable": ("does not apply", "do not apply"),
    "undefined": ("is undefined on these data", "are undefined on these data"),
    "none": ("has no verdict", "have no verdict"),
}


def title(document: Record) -> str:
    """What the page is about."""
    return "What can be trusted of the measurements on a circuit of {} for {}".format(*subject_of(document))


def overview(document: Record) -> str:
    """Every check with its verdict with confidence, then by its published rule; there is no overall score."""
    gates = document["gates"]
    states: dict[str, list[str]] = {name: [] for name in KINDS}
    published: dict[str, list[str]] = {name: [] for name in JUDGED}
    for gate in gates:
        judged, code = judged_of(gate["verdict"]), str(gate["code"])
        state = judged.state if judged.state in states else "none"
        states[state].append(f"{code} {str(gate['name']).lower()}{_lacking(judged)}")
        published.get(judged.published, []).append(code)
    rules = _verdicts(published)
    rest = len(gates) - sum(map(len, published.values()))
    others = f"; {'the others decide' if rest > 1 else 'the other one decides'} nothing" if rest else ""
    said = f"By the published rules, which take numbers at face value, {rules}{others}."
    return f"With confidence, {_verdicts(states)}. {said if rules else 'The published rules decide nothing.'}"


def _verdicts(checks: Mapping[str, Sequence[str]]) -> str:
    """Checks by what they say: `C11 and S1 pass; C12 fails`."""
    return "; ".join(
        f"{listed(names)} {_VERBS[state][len(names) > 1]}" for state, names in checks.items() if names
    )


def _lacking(judged: Judged) -> str:
    """Why a check has no number, behind its name; nothing where it has one."""
    if judged.state not in ("not applicable", "undefined") or not judged.because:
        return ""
    first = judged.because.partition(". ")[0].rstrip(".")
    return f" ({first[0].lower()}{first[1:]})"


def subject_words(document: Record) -> str:
    """What is judged, in two sentences: the score, the circuit, the ablation and the prompts.

    Args:
        document: Calibrations, as `assay.calibrate_all(...).to_dict()` gives them.

    Returns:
        The circuit, then the score that C11 judges with its interval, left out where C11 was not judged; so
        is whatever the document does not say. Empty where it says nothing.
    """
    table, task = document.get("table") or {}, document.get("task") or {}
    score, found = _score(document)
    circuit = _circuit_words(document.get("circuit") or {})
    ablation = table.get("ablation")
    rest = f", the rest under {ablation} ablation" if ablation else ""
    what = sentence(f"the circuit is {circuit}{rest}") if circuit else ""
    if score is not None:
        low, high = found.get("low"), found.get("high")
        digits = precision(low, high)
        shown = rounded(score, digits)
        if low is not None and high is not None:
            level = percent(found.get("level") or 0.95)
            shown += f" [{rounded(low, digits)}, {rounded(high, digits)}] ({level} interval)"
        what = f"{what} The score that is judged, plain faithfulness (share of the model’s margin): {shown}."
    n, pool, name = table.get("n_prompts"), table.get("n_pool"), task.get("name")
    where = ""
    if isinstance(n, int):
        where = f"Measured on {number(n)} prompt{'' if n == 1 else 's'}{f' of {name}' if name else ''}"
        if isinstance(pool, int) and pool > n:
            where += f", and on a pool of {number(pool)} to estimate the variation over prompts"
        where += "."
    return " ".join(each for each in (what.strip(), where) if each)


def _score(document: Record) -> tuple[float | None, Record]:
    """The faithfulness that C11 judges, and its interval; None where C11 was not judged or found none."""
    verdict: Record = next((gate["verdict"] for gate in document["gates"] if gate["code"] == "C11"), {})
    value = (verdict.get("values") or {}).get("faithfulness")
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None, {}
    return float(value), (verdict.get("details") or {}).get("interval") or {}


def _circuit_words(circuit: Record) -> str:
    """Its heads and edges: `4 of 32 heads (78 edges)`, or `78 edges on 4 of 32 heads` of an edge circuit."""
    k, n_heads, n_edges = (circuit.get(name) for name in ("k", "n_heads", "n_edges"))
    heads = f"{number(k)} of {number(n_heads)} heads" if k is not None and n_heads is not None else ""
    edges = "" if n_edges is None else f"{number(n_edges)} edge{'' if n_edges == 1 else 's'}"
    if circuit.get("kind") == "edges" and edges:
        return f"{edges} on {heads}" if heads else edges
    return f"{heads} ({edges})" if heads and edges else heads or edges


def caveats(document: Record) -> list[str]:
    """What to know before trusting any of the verdicts, the gravest first."""
    table = document.get("table") or {}
    notes = [*_odd_circuit(document.get("circuit") or {}), *_near_zero(document)]
    if same := (document.get("provenance") or {}).get("same_prompts"):
        notes.append(
            f"{_checks(len(same))} based on prompts that the circuit was found on. "
            f"{REASONS['same_prompts'][1]}"
        )
    notes += [f"{text}." for text in (document.get("task") or {}).get("notes", ())]
    n = table.get("n_prompts")
    if isinstance(n, int) and n < RECOMMENDED:
        notes.append(
            f"The table is based on {number(n)} prompt{'' if n == 1 else 's'}. {RECOMMENDED} or more are "
            f"recommended, and {RECOMMENDED_GROUPS} for the comparison of groups: with fewer, many checks "
            "stay open."
        )
    return notes


def _checks(n: int) -> str:
    return "One check is" if n == 1 else f"{number(n)} checks are"


def _odd_circuit(circuit: Record) -> list[str]:
    """That a circuit is empty or the whole model, where it is."""
    k, n_heads = circuit.get("k"), circuit.get("n_heads")
    edges = circuit.get("kind") == "edges"
    if k == 0:
        return [
            "The circuit contains no head, so checks of its heads do not apply."
            if edges and circuit.get("n_edges")
            else "The circuit is empty, so its score describes a model without any edges, not a circuit."
        ]
    if k is not None and k == n_heads:
        return [
            "The circuit touches every head, so checks that compare its heads with others do not apply."
            if edges
            else "The circuit holds every head, so it agrees with the model by construction. Its score and "
            "the checks that it passes are not evidence."
        ]
    return []


def _near_zero(document: Record) -> list[str]:
    """That the score may be 0, where its interval holds 0 or a gate warns that it is near."""
    score, found = _score(document)
    low, high = found.get("low"), found.get("high")
    held = score is not None and low is not None and high is not None and low <= 0 <= high
    warned = any(NEAR_ZERO in (gate["verdict"].get("warnings") or ()) for gate in document["gates"])
    if not held and not warned:
        return []
    where = "cannot be distinguished from 0" if held else "lies within three standard errors of 0"
    return [
        f"The score {where}: the circuit may keep none of the behaviour, even if checks of its precision or "
        "constancy pass."
    ]

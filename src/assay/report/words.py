"""Sentences for the numbers of a report: the verdict sentence, meanings, number formats."""

import math
from collections.abc import Mapping
from typing import Any


MINUS, NARROW = "\N{MINUS SIGN}", "\N{NARROW NO-BREAK SPACE}"

# What each measurement means, by its code.
MEANINGS = {
    "D02.faithfulness": "Share of the model’s margin that remains when only the circuit’s edges are kept.",
    "D02.faithfulness_norm": "The same share, counted from the empty circuit (0) to the whole model (1).",
    "D02.completeness": "Share of the margin that is lost when the circuit itself is ablated.",
    "D01.output_divergence": "Mean divergence between the output distributions of circuit and model.",
    "D03.kl": "Mean information lost when the circuit’s output replaces the model’s.",
    "D03.reverse-kl": "The same with the roles of circuit and model exchanged.",
    "D03.js": "Jensen-Shannon divergence, symmetric, at most 0.69.",
    "D03.tv": "Total variation: probability mass that changes place.",
    "D03.kl_faithfulness": "One minus the divergence relative to the empty circuit’s.",
    "D04.ce_delta_drop": "Rise of the cross-entropy of the right answer when the circuit is ablated.",
    "D04.ce_delta_keep": "Rise of the cross-entropy of the right answer when only the circuit is kept.",
    "D04.ce_ratio": "Harm of ablating the circuit over harm of ablating everything else.",
    "D05.acc_at_K": "Share of prompts on which circuit and model predict the same token. "
    "The verdict asks for the top five too.",
    "D05.acc_at_5": "Mean overlap of the circuit’s five likeliest tokens with the model’s.",
    "D05.acc_at_10": "Mean overlap of the ten likeliest tokens.",
    "D05.tau_5": "Rank agreement (Kendall) inside the model’s top five.",
    "D05.tau_10": "Rank agreement (Kendall) inside the model’s top ten.",
    "D05.label_top1_full": "Share of prompts on which the model ranks a right answer first.",
    "D05.label_top1_circuit": "Share of prompts on which the circuit does.",
    "C4b.minimality": "Mean loss of faithfulness when one head is taken out of the circuit.",
    "MIB.cpr": "Area under the faithfulness curve: how fast growing circuits recover the behaviour.",
    "MIB.cmd": "Mean distance of the faithfulness curve from 1.",
}

UNITS = {"fraction": "", "1": "", "none": "", "ratio": ""}

DIRECTIONS = {
    "higher": "higher is better",
    "lower": "lower is better",
    "target": "closer to 1 is better",
    "report": "no verdict",
}

STATUSES = {
    "pass": ("\N{BLACK CIRCLE}", "pass"),
    "moderate": ("\N{CIRCLE WITH LEFT HALF BLACK}", "moderate"),
    "fail": ("\N{WHITE CIRCLE}", "fail"),
    "inconclusive": ("\N{DOTTED CIRCLE}", "inconclusive"),
    "none": ("\N{EN DASH}", "no verdict"),
}

REASONS = {
    "zero_denominator": "undefined: the model has no margin on this task",
    "no_valid_prompt": "undefined: no prompt gave finite logits",
    "all_tied": "undefined: all values tie",
}


def number(value: float | int | None, digits: int = 2) -> str:
    """A number for reading: two decimals near 1, two significant digits when small, `n/a` when undefined."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "n/a"
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    size = abs(value)
    if size == 0 or 10**-digits <= size < 1000:
        text = f"{value:.{digits}f}"
    elif size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 10 ** -(digits + 2):
        text = f"{value:.{digits - 1 - math.floor(math.log10(size))}f}"
    else:
        text = f"{value:.1e}"
    return text.replace("-", MINUS)


def rounded(value: float) -> str:
    """Two decimals whatever the size, and no minus before zero: for sentences."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", MINUS)


def percent(fraction: float | None) -> str:
    """A share as a percentage, one decimal below 10 %."""
    if fraction is None or not math.isfinite(fraction):
        return "n/a"
    value = 100 * fraction
    text = (
        f"{value:.2f}"
        if 0 < value < 0.1
        else f"{value:.1f}"
        if value < 99.95 and value % 1
        else f"{value:.0f}"
    )
    return f"{text}{NARROW}%"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """`[low, high]`, or nothing where there is none."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{number(low, digits)}, {number(high, digits)}]"


def precision(low: float | None, high: float | None) -> int:
    """Decimals that tell the ends of an interval apart: 2, or more where it is narrow."""
    if low is None or high is None or not 0 < high - low < math.inf:
        return 2
    return min(6, max(2, -math.floor(math.log10(high - low))))


def solved(document: Mapping[str, Any]) -> bool:
    """Whether the model shows a behaviour on the measured prompts that a circuit could keep."""
    codes = {code for each in document["measurements"][:1] for code in each.get("warnings", [])}
    undefined = document["circuit"]["faithfulness"]["value"] is None
    return not undefined and not codes & {"task_not_solved", "unstable_denominator"}


def _plain_share(document: Mapping[str, Any]) -> str:
    """Faithfulness without the empty circuit in it, where it is another number; else nothing."""
    value = document["circuit"]["faithfulness"]["value"]
    named = {each.get("id"): each for each in document["measurements"]}
    found = named.get("D02.faithfulness") or {}
    if found.get("value") is None or rounded(found["value"]) == rounded(value):
        return ""
    ends = found.get("interval") or {}
    shown = f"{rounded(found['value'])} {interval(ends.get('low'), ends.get('high'))}".strip()
    return f" and a plain faithfulness of {shown} (share of the model’s margin)"


def verdict(document: Mapping[str, Any]) -> str:
    """The finding of an audit in one sentence."""
    circuit, graph, random = document["circuit"], document["graph"], document.get("random") or {}
    task, faithfulness = document["task"], circuit["faithfulness"]
    size = (
        f"{number(circuit['n_edges'])} of {number(graph['n_edges'])} edges ({percent(circuit['fraction'])})"
    )
    if not solved(document):
        right = (
            "" if task.get("accuracy") is None else f" (right on {percent(task['accuracy'])} of the prompts)"
        )
        return (
            f"{document['model']['id']} does not do {task['name']}{right}: "
            "there is no margin that a circuit could be said to keep."
        )
    range_ = interval(faithfulness.get("low"), faithfulness.get("high"))
    kept = f"{rounded(faithfulness['value'])} {range_}".strip()
    plain = _plain_share(document)
    sentence = f"{size} reach a normalised faithfulness of {kept} (0: empty circuit, 1: model){plain}"
    if random.get("mean") is not None:
        many = random.get("n_circuits", 2) > 1
        other = "random circuits of that size reach" if many else "a random circuit of that size reaches"
        sentence += f"; {other} {rounded(random['mean'])}{' normalised' if plain else ''}"
    if circuit["fraction"] >= 1:
        sentence = f"No circuit smaller than the model reaches {number(circuit['target'])}: {sentence}"
    return sentence + "."


def caveats(document: Mapping[str, Any]) -> list[str]:
    """What a reader must know before trusting the verdict; empty when there is nothing."""
    notes = []
    circuit, discovery = document["circuit"], document["discovery"]
    value, target = circuit["faithfulness"]["value"], circuit["target"]
    low, high = circuit["faithfulness"].get("low"), circuit["faithfulness"].get("high")
    if not solved(document):
        shown = "undefined" if value is None else number(value)
        notes.append(
            f"Faithfulness ({shown}) divides by the model’s gain over its corrupted run, which is not told "
            "apart from zero here. The pictures below describe the model’s arithmetic, not a behaviour."
        )
    elif value is not None and value < target:
        inside = low is not None and high is not None and low <= target <= high
        ending = ", with the target inside the interval." if inside else "."
        notes.append(
            f"The size was chosen to reach {number(target)} on the discovery prompts; on the prompts "
            f"measured here the circuit’s normalised faithfulness is {number(value)}{ending}"
        )
    if not discovery["held_out"]:
        notes.append(
            "Discovery and measurement used the same prompts, so the numbers are optimistic and no verdict "
            "is more than inconclusive. Give 40 or more distinct prompts, of which half are then held out, "
            "or other prompts with --measure-on FILE."
        )
    gap = document["method"].get("completeness_gap")
    if gap is not None and gap > 0.05:
        notes.append(
            f"The completeness gap of the attribution is {percent(gap)}: "
            "more integration steps would change the scores."
        )
    return notes


def meaning(measurement: Mapping[str, Any]) -> str:
    """What a measurement means, from the document itself or from `MEANINGS`."""
    return str(measurement.get("meaning") or MEANINGS.get(str(measurement.get("id")), ""))


def reason(measurement: Mapping[str, Any]) -> str:
    """A sentence on why a value is undefined."""
    code = str(measurement.get("reason") or "undefined")
    return REASONS.get(code, code if code.startswith("undefined") else f"undefined: {code.replace('_', ' ')}")

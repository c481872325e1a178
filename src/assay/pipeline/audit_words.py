"""What a report says of an audit in sentences: its finding, and what weakens it."""

import math
from collections.abc import Mapping
from typing import Any

from assay.core.verdict import FEW_PROMPTS
from assay.page import text as words
from assay.page.graph import signed
from assay.page.text import listed, number, percent, plain_text, rounded
from assay.pipeline.audit import Audit


STRONGEST = 5  # heads that a sentence names
MOST_APART = 0.20  # of faithfulness under two ablations, from which a sentence names the ablations
Document = Mapping[str, Any]


def inputs(audit: Audit) -> str:
    """What an audit ran on: `prompts` or `images`."""
    return str(audit.task.get("inputs") or "prompts")


def solved(audit: Audit) -> bool:
    """Whether the model shows a behaviour on the measured prompts that a circuit could keep."""
    codes = {key for each in audit.measurements[:1] for key in each.get("warnings", [])}
    undefined = audit.reported["faithfulness"]["value"] is None
    return not undefined and not codes & {"task_not_solved", "unstable_denominator"}


def verdict(audit: Audit) -> str:
    """The finding of an audit in one sentence."""
    circuit, graph, random = audit.reported, audit.graph, audit.random or {}
    task, faithfulness = audit.task, circuit["faithfulness"]
    share = percent(circuit["fraction"])
    size = f"{number(circuit['n_edges'])} of {number(graph['n_edges'])} edges ({share})"
    first = (audit.measurements or [{}])[0]
    if first.get("n") == 0 and first.get("reason") == FEW_PROMPTS:
        return (
            f"Every pair of {task['name']} equals its counterpart, so nothing is ablated and faithfulness is "
            "undefined."
        )
    if not solved(audit):
        accuracy = task.get("accuracy")
        right = "" if accuracy is None else f" (right on {percent(accuracy)} of the {inputs(audit)})"
        return f"{audit.model['id']} does not solve {task['name']}{right}, so faithfulness is undefined."
    ends = words.interval(faithfulness.get("low"), faithfulness.get("high"))
    kept = f"{rounded(faithfulness['value'])} {ends}".strip()
    plain = _plain_share(audit)
    sentence = f"{size} reach a normalised faithfulness of {kept} (0: empty circuit, 1: model){plain}"
    if random.get("mean") is not None:
        many = random.get("n_circuits", 2) > 1
        other = "random circuits of that size reach" if many else "a random circuit of that size reaches"
        sentence += f"; {other} {rounded(random['mean'])}{' normalised' if plain else ''}"
    if circuit["fraction"] >= 1:
        sentence = f"No circuit smaller than the model reaches {number(circuit['target'])}: {sentence}"
    return sentence + "."


def _plain_share(audit: Audit) -> str:
    """Faithfulness without the empty circuit in it, where it is another number; else nothing."""
    value = audit.reported["faithfulness"]["value"]
    named = {each.get("id"): each for each in audit.measurements}
    plain = named.get("D02.faithfulness") or {}
    if plain.get("value") is None or rounded(plain["value"]) == rounded(value):
        return ""
    ends = plain.get("interval") or {}
    shown = f"{rounded(plain['value'])} {words.interval(ends.get('low'), ends.get('high'))}".strip()
    return f" and a plain faithfulness of {shown} (share of the model’s margin)"


def caveats(audit: Audit) -> list[str]:
    """What a reader must know before trusting the verdict; empty when there is nothing."""
    notes, kind = [f"{text}." for text in audit.task.get("notes", [])], inputs(audit)
    circuit, discovery = audit.reported, audit.discovery
    value, target = circuit["faithfulness"]["value"], circuit["target"]
    low, high = circuit["faithfulness"].get("low"), circuit["faithfulness"].get("high")
    if not solved(audit):
        shown = "undefined" if value is None else number(value)
        notes.append(
            f"Faithfulness ({shown}) divides by the model’s gain over its corrupted run, which cannot be "
            "distinguished from zero here. The figures below describe the model’s arithmetic, not a "
            "behaviour."
        )
    elif value is not None and value < target:
        inside = low is not None and high is not None and low <= target <= high
        ending = ", with the target inside the interval." if inside else "."
        notes.append(
            f"The size was chosen to reach {number(target)} on the discovery {kind}; on the {kind} "
            f"measured here the circuit’s normalised faithfulness is {number(value)}{ending}"
        )
    notes += [] if not solved(audit) else _ablations_apart(audit)
    if not discovery["held_out"]:
        notes.append(
            f"Discovery and measurement used the same {kind}, so the numbers are optimistic and every "
            f"verdict is at most inconclusive. Give 40 or more distinct {kind}; half of them are then held "
            "out" + (", or other prompts with --measure-on FILE." if kind == "prompts" else ".")
        )
    gap = audit.method.get("completeness_gap")
    routing = audit.method.get("routing")
    apart = audit.model.get("experts") == "nodes"
    if routing is not None:
        notes.append(_kept_routing(routing) if apart else _changed_routing(routing))
    if gap is not None and gap > 0.05 and (routing is None or apart):
        notes.append(
            f"The completeness gap of the attribution is {percent(gap)}: "
            "more integration steps would change the scores."
        )
    return notes


def _ablations_apart(audit: Audit) -> list[str]:
    """That the first number is another one under other ablations, where it differs by more than 0.20."""
    value, own = audit.reported["faithfulness"]["value"], audit.task["ablation"]
    others = [each for each in audit.other_ablations if each["value"] is not None]
    if not any(abs(each["value"] - value) > MOST_APART for each in others):
        return []
    named = [f"{rounded(each['value'])} under {each['provenance']['ablation']}" for each in others]
    return [
        f"Normalised faithfulness is {rounded(value)} under {own} ablation, but {listed(named)}: name the "
        "ablation with the number."
    ]


def _changed_routing(routing: Document) -> str:
    """What it means that the corrupted input goes to other experts."""
    return (
        f"{routing['changed']:,} of {routing['choices']:,} choices of experts (one for each token and "
        "block) differ between clean and corrupted input. Gradients do not see a choice change, so more "
        "integration steps do not close the completeness gap."
    )


def _kept_routing(routing: Document) -> str:
    """What it means that tokens of every run go where the clean run sends them."""
    kept = (
        "Each expert is a node: in every run, tokens go to the experts of the clean input. The corrupted "
        f"input alone would change {routing['changed']:,} of {routing['choices']:,} choices (one for each "
        "token and block)."
    )
    if "kept" not in routing:
        return kept
    return (
        f"{kept} Its mean loss is {number(routing['kept'])} with the experts of the clean input, which is "
        f"the empty circuit, and {number(routing['followed'])} with its own."
    )


def strongest_heads(audit: Audit) -> str:
    """The heads of the circuit with the largest attribution."""
    inside = set(audit.reported["nodes"])
    heads = [
        (abs(value), f"a{layer}.h{head} ({plain_text(signed(value))})")
        for layer, row in enumerate(audit.per_head)
        for head, value in enumerate(row)
        if f"a{layer}.h{head}" in inside and math.isfinite(value)
    ]
    if not heads:
        return "The circuit contains no head."
    names = [name for _, name in sorted(heads, key=lambda each: -each[0])[:STRONGEST]]
    return f"Strongest heads of the circuit, by summed outgoing attribution: {listed(names)}."

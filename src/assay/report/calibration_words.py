"""What the verdicts of calibrations say to readers without statistics, and what to do next."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.page.blocks import STATUSES
from assay.page.text import MINUS, number, percent, precision
from assay.report.calibration_headlines import DECISIVE, Headline, headline, side
from assay.report.calibration_names import circuit_heads, claim_name, compared, head_name, method_name


Record = Mapping[str, Any]

LISTED = 4
RECOMMENDED, RECOMMENDED_GROUPS = 100, 300
FAR_TOO_MANY = 100_000
MOST_DIGITS = 6
OTHER_TASKS = ("greater-than", "ioi")  # to name as an example
NEAR_ZERO = "score_near_zero"

JUDGED = ("pass", "fail", "moderate")
KINDS = {
    **{name: STATUSES[name] for name in (*JUDGED, "inconclusive")},
    "not applicable": ("\N{EN DASH}", "not applicable"),
    "undefined": ("\N{EN DASH}", "undefined"),
    "none": STATUSES["none"],
}

# Why there is no verdict, and what would give one; by code.
REASONS: dict[str, tuple[str, str]] = {
    "not_applicable": ("It does not apply: something that it needs was not given.", ""),
    "not_proven": (
        "It is not proven, allowing for how many results were looked at.",
        "Drop the lost claims, or collect more data.",
    ),
    "no_upper_bound": (
        "It can fail and never pass: no upper bound of a kurtosis was found to hold, up to 1,000 prompts.",
        "",
    ),
    "too_few": (
        "There are too few prompts, or heads, to know anything about their spread.",
        "Measure more prompts.",
    ),
    "no_valid_prompt": (
        "No prompt gave a finite number in all of the runs that are compared.",
        "Look for infinite or missing logits in the runs.",
    ),
    "zero_denominator": (
        "It divides by something that is zero here: the model shows no margin on these prompts, or the heads "
        "outside the circuit have no effect at all.",
        "Check that the model solves the task.",
    ),
    "zero_mean": (
        "The score itself is 0, so there is nothing to compare its error with.",
        "Look at the score before its error.",
    ),
    "zero_variance": (
        "All values are equal, so nothing varies that could be compared.",
        "Use prompts, or heads, that differ.",
    ),
    "unbounded": (
        "The model’s margin cannot be distinguished from zero, so the ratio to it could be anything.",
        "Measure more prompts, or a task that the model solves.",
    ),
    "undefined_replicates": (
        "In more than one resample of a hundred the number has no value, so there are no bounds.",
        "Measure more prompts.",
    ),
    "degenerate": ("All resamples give the same number, so the interval has no width.", ""),
    "bca_undefined": (
        "The corrected interval is undefined here; plain percentiles are shown instead.",
        "",
    ),
    "no_interval": ("The number came without bounds, so nothing is said with confidence.", ""),
    "undefined": ("These data do not determine it.", ""),
    "no_members": ("The circuit has no heads.", "Give a circuit with at least one head."),
    "no_others": (
        "The circuit holds every head, so there is nothing to compare it with.",
        "Give a smaller circuit.",
    ),
    "no_heads": ("No head of the circuit has a finite number.", "Look for missing values in the table."),
    "missing_heads": (
        "No head of one of the circuits has a score on every task.",
        "Measure the heads that are missing.",
    ),
    "no_own_effect": (
        "The heads have no helpful effect on their own task, so there is nothing to set against other tasks.",
        "Check the circuit on its own task first.",
    ),
    "method_missing": (
        "One of the ablations that are compared gave no usable run, and the others alone cannot answer.",
        "Add prompts that allow it; donors need two prompts of the same number of tokens.",
    ),
    "stricter_level": (
        "A pair lies beyond the limit at the level of a pass. A fail shares its 5 % between all pairs, and "
        "at that level the pair does not.",
        "",
    ),
    "one_category": (
        "The set of best heads is empty or holds all heads, so agreement on it means nothing.",
        "Give a circuit of some, but not all heads.",
    ),
    "identical_samples": (
        "The samples hold the same prompts: that they agree says nothing.",
        "Draw the samples with different seeds, or give a larger pool.",
    ),
    "too_few_samples": (
        "Fewer than two samples gave a score.",
        "Give prompts for at least two samples.",
    ),
    "pool_too_small": (
        "The pool of prompts is no larger than a single sample, so samples cannot differ.",
        "Measure a pool of at least three times as many prompts.",
    ),
    "order_means_nothing": (
        "Neighbours in the list of prompts have nothing in common, so comparing odd with even places says "
        "nothing.",
        "Name the natural pairs of prompts, if there are any.",
    ),
    "unreliable_scores": (
        "The scores of a method differ so much between halves of the prompts that its order of heads is "
        "mostly noise, and a correlation with it cannot be corrected.",
        "Measure more prompts, or leave that method out.",
    ),
    "same_set": (
        "The baseline picks the very heads of the circuit, so there is no difference to judge.",
        "Compare with another baseline.",
    ),
    "too_few_heads": (
        "So few heads on a side do not show how heads like them are spread: it takes 5 to fail, 15 to pass.",
        "Give a circuit of 15 heads or more that leaves out 15 or more.",
    ),
    "normal_only": (
        "Its bounds hold for normal values only, so nothing is said with confidence.",
        "Read the split half over random halves beside it.",
    ),
    "units_cross_groups": (
        "The same unit (one image, one sentence) appears in several groups, so groups are not independent.",
        "Compare groups that share nothing.",
    ),
    "no_difference_found": (
        "No head was found to differ between groups, which does not prove that none does.",
        "",
    ),
    "too_few_groups": (
        "Fewer than two groups have enough prompts.",
        "Give prompts of at least two groups, three of each.",
    ),
    "no_target_variance": ("All heads have the same mean, so no order of theirs can be reproduced.", ""),
    "negative_variance": ("The estimated variance is negative, so the ratio has no meaning.", ""),
    "pole": (
        "The halves are perfectly opposed; the correction for their length has no value there.",
        "",
    ),
    "drift": ("The values drift, so that no single mean fits all of them.", "Shuffle the prompts."),
    "same_prompts": (
        "The circuit was found on these very prompts, so its numbers are optimistic and nothing is known "
        "with confidence.",
        "Measure on other prompts: another --seed, --measure-on FILE, or a file of 40 or more distinct "
        "prompts, of which half are then held out.",
    ),
    "below_delta": ("The confidence reached is less than was asked for.", "Measure more prompts."),
}

# What makes a verdict less trustworthy than it looks; by code.
WARNINGS: dict[str, str] = {
    "prompts_dropped": "Prompts without a finite number in every run were left out.",
    "empty_circuit": "A circuit without heads was measured.",
    "trivial_circuit": "The circuit holds every head, so it agrees with the model by construction.",
    "zero_variance": "Some values do not vary at all, so the verdict goes by their sign or size alone.",
    "score_near_zero": "The score lies within three standard errors of 0: look at it before its error.",
    "method_missing": "One of the ablations gave no usable run and is left out.",
    "unstable_denominator": "The model’s margin is near zero for its spread, so ratios to it are shaky.",
    "constant_method": "A method that gives all heads the same score was left out.",
    "missing_heads": "Heads that some method does not score were left out everywhere.",
    "kappa_undefined": "Agreement on the best heads is undefined, and with it the published rule.",
    "identical_circuits": "Two tasks have the very same circuit, so the comparison is one of tasks only.",
    "shared_heads": "Circuits share many heads, so an effect on each other’s tasks is to be expected.",
    "ratio_capped": "The effect on other tasks is so near zero that the ratio was cut at 1,000.",
    "units_cross_groups": "The same unit (one image, one sentence) appears in several groups.",
    "overlapping_samples": "The samples share prompts, so they agree more than independent ones would.",
    "sample_missing": "A sample without a usable prompt was left out.",
    "head_dropped": "Heads without a finite effect were left out.",
    "unpaired_prompts": "Prompts without a partner were left out.",
    "head_not_finite": "A head without a finite effect counts as unstable.",
    "smallest_is_zero": "No smallest effect is known, so a head is negligible only if its effect is below 0.",
    "circular_bands": "The bands of the roles are ranges of layers, so the published correlation is true by "
    "definition.",
    "proxy": "Only the size of the published circuit is known; the overlap is the ratio of the sizes.",
    "heads_of_edges": "The circuit keeps single edges, the baseline whole heads, which is more.",
    "same_prompts": "The circuit was found on these very prompts.",
    "partial_heads": "Only some heads outside the circuit were measured, to save passes.",
}

_NOISY_SCORES = (
    "Below 20 prompts the noise in the scores is not known well enough to be allowed for.",
    "Measure at least 20 prompts.",
)
_ONE_ABLATION = ("It needs the circuit under two ablations or more.", "Measure another ablation.")

# Where the general sentence of a reason can say more.
SPECIAL: dict[tuple[str, str], tuple[str, str]] = {
    ("C12", "not_applicable"): (
        "It needs two or more methods that score the same five or more heads.",
        "Measure another family of scores.",
    ),
    ("C13", "not_applicable"): (
        "These prompts fall into no groups that could be compared.",
        "Use a task with several templates, or group the prompts by one of its fields: --groups FIELD "
        "(groups= in Python).",
    ),
    ("C11", "too_few"): (
        "Below 40 prompts a heavy tail that the sample has not shown could hide most of the spread.",
        "Measure at least 40 prompts.",
    ),
    ("C16", "too_few"): (
        "A relative error needs 100 prompts over all samples, alpha 20 and a profile of heads 6.",
        "Measure more prompts; the parts say which of them is short.",
    ),
    ("C30", "too_few"): (
        "In a pool below 100 prompts a heavy tail that has not shown could hide most of the spread.",
        "Draw from a pool of at least 100 prompts.",
    ),
    ("C14", "not_applicable"): (
        "It needs a score of every head, inside the circuit and outside.",
        "Measure all heads; a limit of passes may have left some out.",
    ),
    ("C14", "stricter_level"): (
        "A part fails at 5 %. A fail of the whole shares its 5 % between the parts, and at that level none "
        "fails.",
        "",
    ),
    ("C12", "too_few"): _NOISY_SCORES,
    ("F59", "too_few"): _NOISY_SCORES,
    ("S1", "too_few"): (
        "Below 5 prompts nothing is known of the spread of the effects.",
        "Measure at least 5 prompts.",
    ),
    ("C14", "too_few"): (
        "With a single head inside the circuit, or outside, nothing is known of the spread on that side.",
        "Give a circuit of two heads or more that leaves out two or more.",
    ),
    ("C17", "not_applicable"): (
        "It needs a second task with a circuit of its own.",
        "Name one with --against (against= in Python).",
    ),
    ("C23", "not_applicable"): (
        "The circuit’s heads have no roles.",
        "Give a circuit whose heads have roles, bands and pathways, such as a published one.",
    ),
    ("C23", "too_few"): (
        "With so few roles even the best order comes up by chance too often.",
        "It takes at least four roles at different depths.",
    ),
    ("C36", "same_set"): (
        "The baseline is the circuit itself, or gives the same outputs: there is no difference to judge.",
        "Compare with another baseline.",
    ),
    ("F59", "not_applicable"): (
        "It needs two or more raters that tell heads apart.",
        "Measure another family of scores.",
    ),
    ("M93", "not_applicable"): (
        "No result with a p-value of its own was claimed, so no claim can be lost.",
        "Give results with a p-value, an e-value, or a measured test.",
    ),
    ("M93", "not_proven"): (
        "More than half of the claims are not proven true, allowing for how many results were looked at.",
        "Drop the lost claims, or collect more data.",
    ),
    ("C36", "too_few"): (
        "Below 20 prompts no bounds of a difference hold for skewed scores.",
        "Measure at least 20 prompts.",
    ),
    ("C13", "too_few"): (
        "Below 20 prompts in groups no bounds hold for skewed scores.",
        "Measure at least 20 prompts.",
    ),
    ("M98", "not_applicable"): _ONE_ABLATION,
    ("E1b", "not_applicable"): _ONE_ABLATION,
    ("M3b", "not_applicable"): ("The circuit has no heads.", "Give a circuit with at least one head."),
    ("M3b", "too_few"): (
        "Below 20 prompts the test of a mean does not hold for skewed effects.",
        "Measure at least 20 prompts.",
    ),
    ("S3", "too_few"): (
        "Below 40 prompts no bounds of a relative error hold for skewed attributions.",
        "Measure at least 40 prompts.",
    ),
}

# What to do about an open verdict that more prompts do not settle by a number that can be said.
OPEN: dict[str, str] = {
    "C12": "The correlation lies too near its limit; scores per prompt for more methods would narrow the "
    "bounds.",
    "C14": "The bounds come from the heads, of which there are no more: a clearer score or a better circuit "
    "would settle it.",
    "C23": "Neither order is established, and the roles are all there are.",
    "F59": "The correlation lies too near its limit; scores per prompt for more raters would narrow the "
    "bounds.",
    "M3b": "Neither is proven: that half of the heads have an effect above 0, or that more than half have "
    "a negligible one. Heads that this hinges on lie too close to a limit to say how many prompts it takes.",
}


def kind(record: Record, shown: Headline) -> str:
    """The verdict with confidence as the page names it; undefined and open verdicts have different names."""
    status = str(record.get("status"))
    if status != "inconclusive":
        return status if status in KINDS else "none"
    if record.get("reason") == "not_applicable":
        return "not applicable"
    return "undefined" if shown.value is None and record.get("reason") else "inconclusive"


def published_words(published: str) -> tuple[str, str]:
    """Mark and word of a published verdict."""
    return KINDS[published] if published in JUDGED else ("\N{EN DASH}", "says nothing")


def sentence(text: str) -> str:
    """Text with a capital and a full stop."""
    text = text.strip()
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.?!' else '.'}"


def why(code: str, reason: str) -> tuple[str, str]:
    """Why there is no verdict, and what to do about it."""
    return SPECIAL.get((code, reason)) or REASONS.get(reason) or (sentence(reason.replace("_", " ")), "")


def warning(code: str) -> str:
    """A warning in a sentence; an unknown code as it stands."""
    return WARNINGS.get(code) or sentence(code.replace("_", " "))


def named(names: Sequence[object]) -> str:
    """Names in a row: a, b and c; the rest counted."""
    found = [str(each) for each in names]
    if len(found) > LISTED:
        found = [*found[:LISTED], f"{len(found) - LISTED} more"]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}" if found else ""


# --------------------------------------------------------------------------------------------------- one gate


def meaning(gate: Record, state: str) -> str:
    """What the verdict of a gate means."""
    on_pass, on_fail = sentence(str(gate["on_pass"])), sentence(str(gate["on_fail"]))
    found = {
        "pass": on_pass,
        "fail": on_fail,
        "moderate": "Better than the limit of a fail and short of that of a pass: use the number with care.",
    }.get(state, f"If it passed: {on_pass} If it failed: {on_fail}")
    # Both ask whether heads are ordered alike, by other measures of them.
    who = {"C12": "methods", "F59": "raters"}.get(str(gate["code"]))
    names = compared(gate["verdict"].get("details") or {}) if who else []
    return f"{found} The {who}: {named(names)}." if names else found


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
    return next_steps(
        gate,
        kind(gate["verdict"], headline(gate)),
        (document.get("table") or {}).get("n_prompts"),
        circuit_heads(document),
        task=str((document.get("task") or {}).get("name") or ""),
    )


def next_steps(
    gate: Record,
    state: str,
    n_prompts: int | None = None,
    heads: Sequence[Sequence[int]] = (),
    *,
    task: str = "",
) -> list[str]:
    """What to do about a verdict, in sentences; empty after a plain pass.

    Args:
        gate: Its record.
        state: As `kind` names it.
        n_prompts: Prompts of the table, where the verdict itself does not say.
        heads: (layer, head) of the circuit's heads, in the order of the table.
        task: Its name, so that another one can be named.
    """
    code, verdict = str(gate["code"]), gate["verdict"]
    reason = str(verdict.get("reason") or "")
    found: list[str] = []
    if state in ("not applicable", "undefined", "inconclusive"):
        because, then = why(code, reason) if reason else ("", "")
        otherwise = "" if reason else OPEN.get(code, "More prompts narrow the interval.")
        then = _remedy(code, reason, verdict.get("details") or {}, task) or then
        found += [because, _needed(code, verdict, n_prompts) or then or otherwise]
    elif state == "fail" and reason:
        found.append(why(code, reason)[0])
    if state != "pass":
        found.append(findings(gate, heads))
    return [each for each in found if each]


def _remedy(code: str, reason: str, details: Record, task: str) -> str:
    """Advice that names a task or the fields of the prompts, where a gate lacks its input."""
    if reason != "not_applicable":
        return ""
    if code == "C17":
        other = next(each for each in OTHER_TASKS if each != task)
        return f"Name one, for example --against {other} (against= in Python)."
    fields = details.get("fields")
    if code != "C13" or fields is None:
        return ""
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
        return "It is a close call; a few more prompts should settle it."
    if needed > FAR_TOO_MANY:
        return (
            "The number lies so close to its limit that no feasible number of prompts would settle it; "
            "take it as lying on the limit."
        )
    here = f" (here: {number(have)})" if have is not None else ""
    if code == "C30":
        return f"A pool of about {number(_round_up(needed))} prompts would settle it{here}."
    return f"About {number(_round_up(needed))} prompts would settle it{here}, if the spread stays the same."


def _round_up(count: int) -> int:
    """Two digits, upwards: more would claim a precision that such forecasts lack."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return int(math.ceil(count / unit) * unit)


def disagreement(gate: Record, state: str) -> str:
    """Why the published rule says something else, where it does."""
    published = str(gate["verdict"].get("published"))
    if published not in JUDGED or published == state:
        return ""
    shown = headline(gate)
    weakness = sentence(str(gate.get("weakness") or ""))
    if state in ("not applicable", "undefined"):
        return f"The published rule says {published} all the same. {weakness}".strip()
    judged = shown.value if shown.published is None else shown.published
    crosses = state == "inconclusive" and _crosses(shown)
    if crosses and side(shown, shown.value) == published:
        where = {"pass": "where the check passes", "fail": "where it fails"}.get(
            published, "between its limits"
        )
        return (
            f"The published rule says {published}, for the number itself lies {where}. Its interval does not "
            "lie there as a whole, so with confidence the check stays open."
        )
    other = ""
    if judged is not None and shown.value is not None and side(shown, judged) != side(shown, shown.value):
        other = f", for it judges another number, {number(judged)}"
    here = " Here the interval reaches across the limit, so with confidence the check stays open."
    return f"The published rule says {published}{other}.{here if crosses else ''} {weakness}".strip()


def _crosses(shown: Headline) -> bool:
    """Whether the interval has ends on two sides of a limit."""
    return shown.bounded and side(shown, shown.low) != side(shown, shown.high)


def findings(gate: Record, heads: Sequence[Sequence[int]] = ()) -> str:
    """Where a gate points: the pair, the part, the heads or the claims that stand out; nothing if none do."""
    code, verdict = str(gate["code"]), gate["verdict"]
    details = verdict.get("details") or {}
    if code == "C16":
        return _weak_parts(verdict, heads)
    if code == "M3b":
        return _uncertified(details, heads)
    if code == "C14":
        return _weak_rows(verdict, headline(gate).part)
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
    return f"Also in the way: {named(short)}." if short else ""


def _weak_parts(verdict: Record, heads: Sequence[Sequence[int]]) -> str:
    parts = verdict.get("sub_results") or {}
    words = {"test_retest": "test-retest", "split_half": "split halves", "cronbach_alpha": "consistency"}
    by_status = {
        status: [words[name] for name in DECISIVE["C16"] if name in parts and parts[name]["status"] == status]
        for status in ("fail", "inconclusive")
    }
    found = []
    if by_status["fail"]:
        # Alone at 5 %; the suite fails only where a part does at its share of that.
        alone = "" if verdict["status"] == "fail" else ", though not surely enough for one of several tests"
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
    found = f"The heads matter {number(ratio)} times as much for {own} as for the other tasks; 3 are asked."
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


def number_line(shown: Headline) -> tuple[str, str]:
    """The number of a gate with its interval, and where it passes."""
    if shown.value is None or shown.low is None or shown.high is None:
        return number(shown.value), passes_words(shown)
    width = shown.high - shown.low
    if width <= 0:
        return number(shown.value), passes_words(shown)
    least = 2 if abs(shown.value) < 10 else 0
    digits = min(MOST_DIGITS, max(least, 1 - math.floor(math.log10(width))))
    ends = (shown.value, shown.low, shown.high)
    digits = next(
        (each for each in range(digits, MOST_DIGITS + 1) if not _meets(ends, each, shown.limits)), digits
    )
    value, low, high = (_fixed(each, digits) for each in ends)
    return f"{value} [{low}, {high}]", passes_words(shown)


def _meets(values: Sequence[float], digits: int, limits: Sequence[float]) -> bool:
    """Whether one of the numbers would read like a limit that it is not."""
    return any(
        value != limit and round(value, digits) == round(limit, digits)
        for value in values
        for limit in limits
    )


def _fixed(value: float, digits: int) -> str:
    """So many decimals, whatever the size, and no minus before zero."""
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", MINUS)


def passes_words(shown: Headline) -> str:
    """A sentence on where it passes and fails."""
    if not shown.limits:
        return ""
    side, other = ("above", "below") if shown.higher else ("below", "above")
    first = _limit(shown.limits[0])
    words = f"passes at {first} or {side}" if shown.reaching else f"passes {side} {first}"
    return words + (f", fails {other} {_limit(shown.limits[1])}" if len(shown.limits) > 1 else "")


def _limit(value: float) -> str:
    return f"{value:g}".replace("-", MINUS)


def picture_words(shown: Headline, state: str) -> str:
    """What the picture of a gate shows, for those who do not see it."""
    value, passes = number_line(shown)
    known = shown.published is not None
    published = f"; the published rule judges {number(shown.published, 3)}" if known else ""
    return f"{shown.label}: {value}; {passes or 'no limit'}{published}; {KINDS[state][1]} with confidence"


# ------------------------------------------------------------------------------------------------ all of them


def counts(gates: Sequence[Record]) -> dict[str, int]:
    """How many gates have each verdict with confidence, in the order of `KINDS`."""
    states = [kind(gate["verdict"], headline(gate)) for gate in gates]
    return {name: states.count(name) for name in KINDS if name in states}


def published_counts(gates: Sequence[Record]) -> dict[str, int]:
    """The same of the published rules, which say nothing about some."""
    states = [str(gate["verdict"].get("published")) for gate in gates]
    return {name: states.count(name) for name in JUDGED if name in states}


_VERBS = {
    "pass": ("passes", "pass"),
    "moderate": ("lies in between", "lie in between"),
    "fail": ("fails", "fail"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "not applicable": ("does not apply", "do not apply"),
    "undefined": ("is undefined on these data", "are undefined on these data"),
    "none": ("has no verdict", "have no verdict"),
}


def _counted(found: Mapping[str, int]) -> str:
    parts = [f"{count} {_VERBS[name][count != 1]}" for name, count in found.items()]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def overview(document: Record) -> str:
    """The counts of both kinds of verdict in two sentences; there is no overall score."""
    gates = document["gates"]
    published = published_counts(gates)
    if len(gates) == 1:
        (state,) = counts(gates)
        text = f"One check: it {_VERBS[state][0]}."
        if not published:
            return f"{text} The published rule does not decide."
        (state,) = published
        return f"{text} By the published rule, which takes numbers at face value, it {_VERBS[state][0]}."
    text = f"{number(len(gates))} checks: {_counted(counts(gates))}."
    if not published:
        return f"{text} The published rules decide none."
    return f"{text} Of the published rules, which take numbers at face value, {_counted(published)}."


def subject_words(document: Record) -> str:
    """What is judged, in two sentences: the score, the circuit, the ablation and the prompts.

    Args:
        document: Calibrations, as `assay.calibrate_all(...).to_dict()` gives them.

    Returns:
        The score is that of C11, with its interval, and left out where C11 was not judged; so is whatever
        the document does not say. Empty where it says nothing.
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
        shown = _fixed(score, digits)
        if low is not None and high is not None:
            level = percent(found.get("level") or 0.95)
            shown += f" [{_fixed(low, digits)}, {_fixed(high, digits)}] ({level} interval)"
        what = f"Faithfulness {shown}{f' of {circuit}{rest}' if circuit else ''}."
    n, pool, name = table.get("n_prompts"), table.get("n_pool"), task.get("name")
    where = ""
    if isinstance(n, int):
        where = f"Measured on {number(n)} prompt{'' if n == 1 else 's'}{f' of {name}' if name else ''}"
        if isinstance(pool, int) and pool > n:
            where += f", and on a pool of {number(pool)} for what other prompts would give"
        where += "."
    return " ".join(each for each in (what, where) if each)


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
            f"{_checks(len(same))} on prompts that the circuit was found on. {REASONS['same_prompts'][1]}"
        )
    notes += [warning(str(code)) for code in document.get("warnings") or ()]
    partial = warning("partial_heads")
    if table.get("partial_heads") and partial not in notes:
        notes.append(partial)
    n = table.get("n_prompts")
    if isinstance(n, int) and n < RECOMMENDED:
        notes.append(
            f"The table rests on {number(n)} prompt{'' if n == 1 else 's'}. {RECOMMENDED} or more are "
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
            "The circuit touches no head: checks that look at its heads have nothing to judge."
            if edges and circuit.get("n_edges")
            else "The circuit is empty: its score is that of a model of which nothing is kept, and says "
            "nothing about any circuit."
        ]
    if k is not None and k == n_heads:
        return [
            "The circuit touches every head: checks that compare its heads with others have nothing to "
            "compare."
            if edges
            else "The circuit holds every head: it agrees with the model by construction, so its score and "
            "the checks that it passes say nothing."
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
    where = "cannot be told from 0" if held else "lies within three standard errors of 0"
    return [
        f"The score {where}: the circuit may keep none of the behaviour, and passed checks of "
        "its precision or constancy are not a sign that it keeps any."
    ]

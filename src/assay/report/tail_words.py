"""What the numbers of a worst case say, in sentences."""

import math
from collections.abc import Mapping
from typing import Any

from assay.page.text import MINUS, number, percent
from assay.report.tail_figures import sound_certificate


Document = Mapping[str, Any]
LISTED = 4

METHODS = {
    "order-statistic": "order statistic of independent pairs",
    "ustat": "all pairs, as a U-statistic",
    "disjoint": "one pair per input",
    "asymptotic": "normal approximation",
    "published": "as published",
    "exact": "all pairs there are",
}
DIVERGENCES = {
    "kl": "KL divergence of the model’s next-token distribution from the circuit’s",
    "reverse-kl": "KL divergence of the circuit’s next-token distribution from the model’s",
    "js": "Jensen-Shannon divergence of the two next-token distributions",
    "tv": "total variation between the two next-token distributions",
    "logit-diff-gap": "gap between the two logit differences",
}


def significant(value: float | int | None) -> str:
    """A divergence with three significant digits, since tails span orders of magnitude; `n/a` undefined."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".").replace("-", MINUS)


def unit_of(document: Document) -> str:
    """Unit of the divergence as it stands behind a number."""
    return {"fraction": "of 1", "user": "units"}.get(str(document["unit"]), str(document["unit"]))


def tail_verdict(document: Document) -> str:
    """The finding of a worst-case evaluation in a few sentences: how far at worst, against what, how sure."""
    absolute, unit = document["summary"]["absolute"], unit_of(document)
    worst, mean = absolute["max"], absolute["mean"]
    times = f", {significant(worst / mean)} times its mean of {significant(mean)}" if mean > 0 else ""
    model = document["model"].get("id", "the model")
    sentence = (
        f"At worst the circuit departs from {model} by {significant(worst)} {unit}"
        f"{times}, over {_count(document, 'pairs')} distinct pairs{_draws(document, 'pairs')}"
    )
    anchor = (document.get("anchor") or {}).get("absolute")
    if anchor:
        sentence += (
            f"; no circuit at all: mean {significant(anchor['mean'])}, worst {significant(anchor['max'])}"
        )
    return f"{sentence}. {guarantee(document)}"


def _count(document: Document, what: str) -> str:
    """Distinct `pairs`, `clean` or `corrupted` inputs; of documents without that number, all of them."""
    return number(document.get(f"n_distinct_{what}", document[f"n_{what}"]))


def _draws(document: Document, what: str) -> str:
    """How many draws they come from, where some were drawn more than once."""
    drawn = document[f"n_{what}"]
    return "" if drawn == document.get(f"n_distinct_{what}", drawn) else f" ({number(drawn)} draws)"


def guarantee(document: Document) -> str:
    """The strongest sound certificate, and the lowest percentile for which there is none."""
    if document.get("enumerated"):
        return "These are all the pairs there are, so its percentiles are exact."
    shares = sorted({each["percentile"] for each in document["certificates"] if each["rigorous"]})
    made = [sound_certificate(document, share) for share in shares]
    bounded = [each for each in made if each and each["bound"] is not None]
    missing = [each for each in made if each and each["bound"] is None]
    if not made:
        return f"Nothing is certified: {no_certificate(document)}."
    sentences = []
    if bounded:
        best = bounded[-1]
        sentences.append(
            f"With confidence {_confidence(best['confidence'])}, at least "
            f"{100 * best['percentile']:.10g}\N{NARROW NO-BREAK SPACE}% of all pairs of this kind stay "
            f"at or below {significant(best['bound'])} {unit_of(document)}."
        )
    if missing:
        least = missing[0]
        sentences.append(
            f"Nothing can be promised about percentile {100 * least['percentile']:g}: that takes "
            f"{number(least['n_needed'])} independent {counted(document)}, this sample has "
            f"{number(least['n'])}."
        )
    return " ".join(sentences)


def _confidence(confidence: float) -> str:
    """Three digits, never rounded up to certainty."""
    return f"{confidence:.3g}" if confidence < 0.9995 else "above 0.999"


def counted(document: Document) -> str:
    """What of the sample is independent: inputs where pairs share them, else the pairs."""
    return "inputs" if document["protocol"] == "all" else "pairs"


def no_certificate(document: Document) -> str:
    """Why a document holds no certificate."""
    if document.get("reuse_clean"):
        return "the corrupted prompts were made from the clean ones of the same sample"
    if not document["independent"]:
        if document["protocol"] == "file":
            return "the pairs of the file were not declared independent draws"
        return "the inputs are not independent draws"
    return "no percentile was asked for"


def tail_caveats(document: Document) -> list[str]:
    """What to know before trusting the numbers: warnings of the run, and an anchor that is hardly beaten."""
    notes = [str(each["message"]) for each in document.get("warnings") or ()]
    anchor = document.get("anchor") or {}
    ratio = anchor.get("ratio_of_means")
    if ratio is not None and ratio >= 0.9:
        notes.append(
            f"On average the circuit is hardly closer to the model than no circuit at all (ratio of means "
            f"{number(ratio)}): read its numbers as the model’s sensitivity to the corrupted prompt."
        )
    return notes


def protocol_sentence(document: Document) -> str:
    """How the pairs came about."""
    clean, corrupted, pairs = (_count(document, what) for what in ("clean", "corrupted", "pairs"))
    drawn = {what: _draws(document, what) for what in ("clean", "corrupted", "pairs")}
    if document.get("enumerated"):
        if document.get("own_rows"):
            return f"All {pairs} distinct pairs of the rows given were run, each counted by its frequency."
        return f"All {pairs} pairs that the task’s grammar allows were run, each counted by its probability."
    return {
        "all": f"Each of {clean} distinct clean prompts{drawn['clean']} was run with each of {corrupted} "
        f"distinct corrupted ones{drawn['corrupted']}, drawn independently: the pairs share prompts.",
        "matched": f"{pairs} distinct pairs{drawn['pairs']} were run, each a clean prompt with a corrupted "
        "version of itself.",
        "iid": f"{pairs} distinct pairs{drawn['pairs']} were run, their clean and corrupted prompts drawn "
        "anew and independently for each.",
        "file": f"The {pairs} distinct pairs{drawn['pairs'].replace('draws', 'rows')} of the task were run "
        "as they stand.",
    }.get(document["protocol"], f"{pairs} pairs were run (protocol {document['protocol']}).")


def certificate_note(made: Mapping[str, Any], of: str) -> str:
    """What a certificate lacks, or that it is not a theorem; `of` names what is counted as independent."""
    if made["bound"] is None:
        return f"none: takes {number(made['n_needed'])} independent {of}, there are {number(made['n'])}"
    if made.get("reason") == "below_delta":
        return f"short of the {percent(made['delta'])} asked for; {number(made['n_needed'])} {of} would do"
    return "" if made["rigorous"] else "no theorem: usually safe, not for every distribution"


def trend_sentence(trends: list[Mapping[str, Any]]) -> str:
    """Numeric fields with which the divergence rises or falls, as a sentence; empty where there is none."""
    found = [each for each in trends if each["significant"]]
    if not found:
        return ""
    parts = [
        f"{'rises' if each['rho'] > 0 else 'falls'} with {field_name(str(each['field']))} "
        f"(rank correlation {each['rho']:.2f} over {number(each['n_inputs'])} prompts)"
        for each in found[:LISTED]
    ]
    return f"The divergence {' and '.join(parts)}."


def field_sentence(tests: list[Mapping[str, Any]]) -> str:
    """A sentence on the field values of bad pairs."""
    bad = [each for each in tests if each["significant"]]
    if not tests:
        return "The prompts of this task carry no fields to compare."
    share = percent(tests[0]["pooled"])
    if not bad:
        return (
            f"None of {number(len(tests))} field values lies above the pooled 99th percentile more often "
            f"than chance explains ({share} of all pairs do)."
        )
    listed = [
        f"{field_name(str(each['field']))} “{each['value']}” ({percent(each['exceed'])} of its pairs)"
        for each in bad[:LISTED]
    ]
    listed += [f"{len(bad) - LISTED} more"] if len(bad) > LISTED else []
    joined = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
    verb = "lies" if len(bad) == 1 else "lie"
    return (
        f"{joined[0].upper()}{joined[1:]} {verb} above the pooled 99th percentile more often than chance "
        f"explains; of all pairs {share} do."
    )


def field_name(field: str) -> str:
    """A field with the side that it belongs to, when that is the corrupted one."""
    name = field.removeprefix("corrupted.").replace("_", " ")
    return f"corrupted {name}" if field.startswith("corrupted.") else name


def following(top: Mapping[str, Any]) -> tuple[str, bool]:
    """Whom the circuit's first token agrees with, and whether that is the corrupted prompt alone."""
    first = {
        name: tokens[0].get("id", tokens[0].get("token")) if tokens else None for name, tokens in top.items()
    }
    if first.get("circuit") is None:
        return "", False
    if first["circuit"] == first.get("model"):
        return "First token as the model’s.", False
    if first["circuit"] == first.get("corrupted"):
        return "The circuit follows the corrupted prompt.", True
    return "First token neither the model’s nor the corrupted prompt’s.", False

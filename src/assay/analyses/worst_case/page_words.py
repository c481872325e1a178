"""What the numbers of a worst case say: its percentiles with their bounds, and sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.analyses.worst_case.bounds import NOT_CERTIFIED
from assay.page.text import MINUS, NARROW, cut_text, listed, number, percent, subject_of


Document = Mapping[str, Any]
LISTED = 4  # field values and trends named in a sentence
PROMPT_LIMIT = 300  # characters of a prompt in a sentence

METHODS = {
    "order-statistic": "order statistic of independent pairs",
    "ustat": "all pairs, as a U-statistic",
    "published": "as published",
}
DIVERGENCES = {
    "kl": "KL divergence of the model’s {over} distribution from the circuit’s",
    "reverse-kl": "KL divergence of the circuit’s {over} distribution from the model’s",
    "js": "Jensen-Shannon divergence of the two {over} distributions",
    "tv": "total variation between the two {over} distributions",
    "logit-diff-gap": "gap between the two logit differences",
}
CARRIED = {
    "resample": "their values from the corrupted {input}",
    "resample-donor": "their values from the other {input}",
    "zero": "zeros",
    "mean": "the mean of their source over {input}s and positions",
    "mean-positional": "the mean of their source over {input}s, position by position",
}
STATISTICS = {"mean": "mean", "std": "standard deviation", "min": "least", "p50": "median", "max": "worst"}


def significant(value: float | int | None) -> str:
    """A divergence with three significant digits, since tails span orders of magnitude; `n/a` undefined."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".").replace("-", MINUS)


def single(document: Document) -> bool:
    """Whether each value belongs to one prompt, as the ablation reads no second one."""
    return bool(document["protocol"] == "inputs")


def kind(document: Document) -> str:
    """What an input is: a prompt or an image."""
    return "prompt" if document.get("pictures") is None else "image"


def noun(document: Document) -> str:
    """What a value belongs to, in the plural."""
    return f"{kind(document)}s" if single(document) else "pairs"


def divergence_name(document: Document) -> str:
    """What the divergence is of."""
    name = DIVERGENCES.get(document["divergence"], str(document["divergence"]))
    return name.format(over="next-token" if kind(document) == "prompt" else "class")


def second(document: Document) -> str:
    """What the second input of a pair is called."""
    return "donor" if document.get("ablation") == "resample-donor" else "corrupted"


def ablation_sentence(document: Document) -> str:
    """What cut edges carried."""
    key = document.get("ablation", "resample")
    carried = CARRIED.get(key, f"what {key} ablation gives")
    return f"Edges outside the circuit carried {carried.format(input=kind(document))}."


def unit_of(document: Document) -> str:
    """Unit of the divergence as it stands behind a number."""
    unit = str(document["unit"])
    return {"fraction": "of 1", "user": "units"}.get(unit, unit)


def count(document: Document, what: str) -> str:
    """Distinct `pairs`, `clean` or `corrupted` inputs; of documents without that number, all of them."""
    return number(document.get(f"n_distinct_{what}", document[f"n_{what}"]))


def draws(document: Document, what: str) -> str:
    """How many draws they come from, where some were drawn more than once; else nothing."""
    n = document[f"n_{what}"]
    return "" if n == document.get(f"n_distinct_{what}", n) else f"{number(n)} draws"


# --------------------------------------------------------------------------------------------- percentiles


@dataclass(frozen=True, kw_only=True)
class Percentile:
    """A statistic of the sample and what is certified about that of the distribution.

    Attributes:
        key: `mean`, `p99`, `max`, ...
        value: Of the circuit in this sample; None where undefined.
        z: The same in standard deviations from the mean, or None.
        anchor: Of the empty circuit, or None.
        bound: Certified upper bound, or None.
        n_needed: Independent values that a bound takes where there is none for lack of them, else None.
    """

    key: str
    value: float | None
    z: float | None
    anchor: float | None
    bound: float | None
    n_needed: int | None

    @property
    def name(self) -> str:
        """What a reader calls it."""
        return STATISTICS.get(self.key, f"percentile {self.key[1:]}")


def percentiles(document: Document) -> list[Percentile]:
    """The summary of a worst case, less percentiles that so few pairs do not resolve."""
    summary, anchor = document["summary"], (document.get("anchor") or {}).get("absolute") or {}
    rows = []
    for key, value in summary["absolute"].items():
        ranked = key.startswith("p")
        if key == "count" or (value is None and ranked):
            continue
        certificate = (sound_certificate(document, float(key[1:]) / 100) if ranked else None) or {}
        bound = certificate.get("bound")
        rows.append(
            Percentile(
                key=key,
                value=value,
                z=(summary.get("z") or {}).get(key),
                anchor=anchor.get(key),
                bound=bound,
                n_needed=certificate.get("n_needed") if bound is None else None,
            )
        )
    return rows


def sound_certificate(document: Document, share: float) -> Mapping[str, Any] | None:
    """The first certificate of a percentile that holds for every distribution; one with a bound if any."""
    sound = [
        each
        for each in document["certificates"]
        if each["rigorous"] and abs(each["percentile"] - share) < 1e-12
    ]
    return next((each for each in sound if each["bound"] is not None), sound[0] if sound else None)


def counted(document: Document) -> str:
    """What of the sample is independent: inputs where pairs share them, else the pairs."""
    return "inputs" if document["protocol"] in ("all", "inputs") else "pairs"


# --------------------------------------------------------------------------------------------- the heading


def title(document: Document) -> str:
    """What the page is about."""
    return "A circuit of {} at its worst on {}".format(*subject_of(document))


def tail_verdict(document: Document) -> str:
    """The finding of a worst-case evaluation in a few sentences: how far at worst, against what, how sure."""
    absolute, unit = document["summary"]["absolute"], unit_of(document)
    worst, mean = absolute["max"], absolute["mean"]
    times = f" ({significant(worst / mean)} times the mean of {significant(mean)})" if mean > 0 else ""
    pairs = f"{count(document, 'pairs')} distinct {noun(document)}{_bracketed(draws(document, 'pairs'))}"
    sentences = [f"Worst divergence over {pairs}: {significant(worst)} {unit}{times}."]
    anchor = (document.get("anchor") or {}).get("absolute")
    if anchor:
        mean, worst = significant(anchor["mean"]), significant(anchor["max"])
        sentences.append(f"Empty circuit: mean {mean}, worst {worst}.")
    return " ".join([*sentences, guarantee(document)])


def worst_pair(document: Document) -> str:
    """The inputs of the worst pair; nothing where no pair was kept."""
    if not document["worst"]:
        return ""
    if single(document):
        return (
            f"Worst {kind(document)}: “{cut_text(str(document['worst'][0]['clean']['text']), PROMPT_LIMIT)}”."
        )
    texts = (str(document["worst"][0][side]["text"]) for side in ("clean", "corrupted"))
    clean, corrupted = (f"“{cut_text(text, PROMPT_LIMIT)}”" for text in texts)
    return f"Worst pair: {clean} with the {second(document)} {kind(document)} {corrupted}."


def _bracketed(text: str) -> str:
    return f" ({text})" if text else ""


def guarantee(document: Document) -> str:
    """The strongest sound certificate, and the lowest percentile for which there is none."""
    shares = sorted({each["percentile"] for each in document["certificates"] if each["rigorous"]})
    certificates = [sound_certificate(document, share) for share in shares]
    if not certificates:
        return f"No bound is certified: {no_certificate(document)}."
    bounded = [each for each in certificates if each and each["bound"] is not None]
    missing = [each for each in certificates if each and each["bound"] is None]
    sentences = []
    if bounded:
        best = bounded[-1]
        sentences.append(
            f"With confidence {_confidence(best['confidence'])}, at least "
            f"{100 * best['percentile']:.10g}{NARROW}% of all {noun(document)} of this kind stay "
            f"at or below {significant(best['bound'])} {unit_of(document)}."
        )
    if missing:
        least = missing[0]
        sentences.append(
            f"Percentile {100 * least['percentile']:g} cannot be bounded: it needs "
            f"{number(least['n_needed'])} independent {counted(document)}; this sample has "
            f"{number(least['n'])}."
        )
    return " ".join(sentences)


def _confidence(confidence: float) -> str:
    """Three digits, never rounded up to certainty."""
    return f"{confidence:.3g}" if confidence < 0.9995 else "above 0.999"


def no_certificate(document: Document) -> str:
    """Why a document holds no certificate."""
    if document.get("reuse_clean"):
        return f"the corrupted {kind(document)}s were made from the clean ones of the same sample"
    if not document["independent"]:
        if document["protocol"] == "file":
            return "the pairs were not declared independent draws"
        return "the inputs are not independent draws"
    for warning in document.get("warnings") or ():
        if warning["name"] == "not_certified":
            return str(warning["message"]).removeprefix(NOT_CERTIFIED)
    return "no percentile was requested"


def tail_caveats(document: Document) -> list[str]:
    """What to know before trusting the numbers: warnings of the run, and an anchor that is hardly beaten."""
    notes = [str(each["message"]) for each in document.get("warnings") or ()]
    ratio = (document.get("anchor") or {}).get("ratio_of_means")
    if ratio is not None and ratio >= 0.9:
        notes.append(
            "On average the circuit is hardly closer to the model than the empty circuit (ratio of means "
            f"{number(ratio)}): its numbers mainly show how sensitive the model is to the "
            f"{'ablation' if single(document) else f'{second(document)} {kind(document)}'}."
        )
    return notes


def protocol_sentence(document: Document) -> str:
    """How the pairs came about."""
    clean, corrupted, pairs = (count(document, what) for what in ("clean", "corrupted", "pairs"))
    of = kind(document)
    drawn = {what: _bracketed(draws(document, what)) for what in ("clean", "corrupted", "pairs")}
    return {
        "inputs": f"{clean} distinct {of}s{drawn['clean']} were run, each by itself: the ablation reads no "
        f"second {of}.",
        "all": f"Each of {clean} distinct clean {of}s{drawn['clean']} was run with each of {corrupted} "
        f"distinct {second(document)} ones{drawn['corrupted']}"
        f"{'' if document.get('own_rows') else ', drawn independently'}: the pairs share {of}s.",
        "matched": f"{pairs} distinct pairs{drawn['pairs']} were run, each a clean {of} with a corrupted "
        "version of itself.",
        "iid": f"{pairs} distinct pairs{drawn['pairs']} were run, with clean and {second(document)} {of}s "
        "drawn independently for each.",
        "file": f"The {pairs} distinct pairs{drawn['pairs'].replace('draws', 'rows')} of the task were run "
        "unchanged.",
    }.get(document["protocol"], f"{pairs} pairs were run (protocol {document['protocol']}).")


# ----------------------------------------------------------------------------------------------- the parts


def certificate_note(certificate: Mapping[str, Any], of: str) -> str:
    """What a certificate lacks, or that it is not a theorem; `of` names what is counted as independent."""
    n, needed = number(certificate["n"]), number(certificate["n_needed"])
    if certificate["bound"] is None:
        return f"none: needs {needed} independent {of}; there are {n}"
    if certificate.get("reason") == "below_delta":
        return f"less than the requested {percent(certificate['delta'])}; {needed} {of} would be enough"
    return "" if certificate["rigorous"] else "no theorem: usually safe, but not for every distribution"


def field_name(field: str) -> str:
    """A field with the side that it belongs to, when that is the corrupted one."""
    name = field.removeprefix("corrupted.").replace("_", " ")
    return f"corrupted {name}" if field.startswith("corrupted.") else name


def trend_sentence(trends: Sequence[Mapping[str, Any]], of: str = "prompt") -> str:
    """Numeric fields with which the divergence rises or falls, as a sentence; empty where there is none."""
    parts = [
        f"{'rises' if each['rho'] > 0 else 'falls'} with {field_name(str(each['field']))} "
        f"(rank correlation {each['rho']:.2f} over {number(each['n_inputs'])} {of}s)"
        for each in trends
        if each["significant"]
    ]
    return f"The divergence {' and '.join(parts[:LISTED])}." if parts else ""


def field_sentence(tests: Sequence[Mapping[str, Any]], what: str = "pairs", of: str = "prompt") -> str:
    """A sentence on the field values of bad pairs, or of bad prompts or images."""
    if not tests:
        return f"The {of}s of this task have no fields to compare."
    bad, share = [each for each in tests if each["significant"]], percent(tests[0]["pooled"])
    if not bad:
        return (
            f"None of {number(len(tests))} field values lies above the pooled 99th percentile more often "
            f"than chance explains ({share} of all {what} do)."
        )
    values = [
        f"{field_name(str(each['field']))} “{each['value']}” ({percent(each['exceed'])} of its {what})"
        for each in bad[:LISTED]
    ]
    values += [f"{len(bad) - LISTED} more"] if len(bad) > LISTED else []
    names = listed(values)
    return (
        f"{names[0].upper()}{names[1:]} {'lies' if len(bad) == 1 else 'lie'} above the pooled 99th "
        f"percentile more often than chance explains; of all {what} {share} do."
    )


def following(
    top: Mapping[str, Any], other: str = "the corrupted prompt", answer: str = "token"
) -> tuple[str, bool]:
    """Whom the circuit's first answer agrees with, and whether that is the other run alone."""
    first = {
        name: tokens[0].get("id", tokens[0].get("token")) if tokens else None for name, tokens in top.items()
    }
    if first.get("circuit") is None:
        return "", False
    if first["circuit"] == first.get("model"):
        return f"First {answer} as the model’s.", False
    if first["circuit"] == first.get("corrupted"):
        return f"The circuit follows {other}.", True
    return f"First {answer} neither the model’s nor {other}’s.", False

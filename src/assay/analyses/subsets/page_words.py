"""A chosen subset as sentences: title, verdict, caveats, and the numbers in them."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from assay.analyses.subsets.line import AOTIL, EPS, LEVEL
from assay.core.errors import by_option
from assay.page import text as words
from assay.page.text import MINUS, NARROW


UNITS = {
    "family": ("family", "families"),
    "group": ("training run", "training runs"),
    "model": ("model", "models"),
}
NAMES = {
    "selection": "chosen subset",
    "random": "random subset",
    "holdout": "picked by a rule",
    "hard": "hardest examples",
    "marginal": "one-pass screening",
    "distance": "furthest from the known data",
}
BASELINES = ("random", "hard", "marginal", "distance")
FEW_MODELS = 20
RELIABLE = 0.8  # share of the variance of in-distribution accuracies that is not sampling noise
CLIPPED = 0.05  # share of models at accuracy 0 or 1
MIXED = 0.75  # share of chosen examples that go against better models each by itself
SHIFTED = 2.0  # ratio of class shares that calls for a notice
Document = Mapping[str, Any]


class ClassShares(NamedTuple):
    """A class with its share of the chosen examples and of the pool."""

    name: str
    chosen: float
    pool: float


# ----------------------------------------------------------------------------------------------- reading


def headline_row(document: Document) -> Document:
    """The row of the size that the page is about."""
    row: Document = next(row for row in document["rows"] if row["size"] == document["size"])
    return row


def baselines(document: Document) -> list[str]:
    """The baselines that a document has at any size, in the order of the pictures."""
    return [kind for kind in BASELINES if any(row.get(kind) for row in document["rows"])]


def class_shares(document: Document) -> list[ClassShares]:
    """The classes at the size that the page is about; empty without labels."""
    composition = document["composition"]
    if not composition:
        return []
    own = next(row["shares"] for row in composition["rows"] if row["size"] == document["size"])
    chosen, pool = (np.array(shares, dtype=float).tolist() for shares in (own, composition["pool"]))
    return [ClassShares(*each) for each in zip(composition["names"], chosen, pool, strict=True)]


def status(document: Document) -> str:
    """`supported`, `inconclusive`, or `unjudged` where no verdict was asked for."""
    return str((document["verdict"] or {}).get("status") or "unjudged")


# ----------------------------------------------------------------------------------------------- numbers


def signed(value: float | int | None, digits: int = 2) -> str:
    """So many decimals, a real minus sign, none before zero; `n/a` where undefined."""
    if value is None or not math.isfinite(value):
        return "n/a"
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", MINUS)


def ends(low: float | int | None, high: float | int | None) -> str:
    """The ends of an interval, or nothing where there is none."""
    if low is None or high is None:
        return ""
    return f"[{signed(low)}, {signed(high)}]"


def p_value(value: float | int) -> str:
    """A p-value: two significant digits, or as many as tell it from the level; never 0."""
    if value < 0.001:
        return "< 0.001"
    texts = (f"{value:.{digits}g}" for digits in range(2, 18))  # 17 tell any two numbers apart
    return next(text for text in texts if value == LEVEL or float(text) != LEVEL)


def share(fraction: float | int | None) -> str:
    """A share as a percentage with at most one decimal; `n/a` where undefined."""
    if fraction is None or not math.isfinite(fraction):
        return "n/a"
    if 0 < abs(fraction) < 0.001:
        return words.percent(fraction)
    return f"{round(100 * fraction, 1) + 0.0:.1f}".removesuffix(".0") + f"{NARROW}%"


def unit_name(kind: str, n: int = 2) -> str:
    """What models are kept together in: families, training runs, or each model by itself."""
    one, several = UNITS[kind]
    return one if n == 1 else several


def tested_units(document: Document) -> str:
    """What the folds of the cross-fit keep whole."""
    return unit_name((document["verdict"] or document["data"])["unit_kind"])


# --------------------------------------------------------------------------------------------- sentences


def weakest(document: Document) -> bool:
    """Whether the weakest correlation was selected for, not the most negative."""
    return bool(document["settings"]["objective"] == "r2")


def title(document: Document) -> str:
    """What the page is about; says that better models do worse only where the verdict does."""
    size, pool = words.number(document["size"]), words.number(document["data"]["n_examples"])
    chosen = f"All {pool} examples" if size == pool else f"The {size} of {pool} examples"
    if weakest(document):
        return f"{chosen} chosen for the weakest correlation"
    if status(document) == "supported":
        return f"{chosen} where better models do worse"
    if status(document) == "inconclusive":
        return f"Among {pool} examples, none were shown on which better models do worse"
    return f"{chosen} chosen against better models"


def verdict(document: Document) -> str:
    """The finding as a sentence; R only together with its caveats."""
    judged = document["verdict"]
    size = words.number(document["size"])
    if weakest(document):
        r = headline_row(document)["test"]
        return (
            f"Not tested. {size} examples were chosen so that accuracy on them depends least on accuracy in "
            f"distribution: R over test models is {signed(r['r'])} {ends(r['low'], r['high'])}".strip()
            + ". The test for examples on which better models do worse does not apply to this search."
        )
    if judged is None:
        return (
            f"Not judged. {size} examples were chosen so that models better in distribution do worse on "
            "them. Whether this also holds for other models was not tested."
        )
    r = f"R is {signed(judged['r'])} {ends(judged['low'], judged['high'])}".strip()
    over = f"over held-out {tested_units(document)}"
    tested = len(judged.get("sizes") or ()) or 1
    corrected = f", corrected for {tested} sizes" if tested > 1 else ""
    p = judged["p_value"]
    chance = "" if p is None else f" (p {'' if p < 0.001 else '= '}{p_value(p)}{corrected})"
    if judged["status"] != "supported" and not judged["n_permutations"] and judged["r"] is None:
        return (
            f"Inconclusive. {size} examples were chosen against better models, but this was not tested on "
            "models that took no part in the selection. Do not use the subset as evidence."
        )
    if judged["status"] != "supported":
        return (
            f"Inconclusive. {size} examples were chosen against better models, but the effect is not "
            f"established: cross-fitted {over}, {r}{chance}. Do not use the subset as evidence."
        )
    strength = f"The effect is weak: R is above {MINUS}0.3, the limit of an inverse line."
    if judged["aotil"]:
        strength = "Accuracy is on the inverse line."
    return (
        f"Supported. On such a subset of {size} examples, models that are better in distribution do worse, "
        f"including models that took no part in the selection: cross-fitted {over}, {r}{chance}. {strength}"
    )


def lede(document: Document) -> str:
    """What R is, and what the search makes of it."""
    meaning = (
        "R is the correlation, over models, of accuracy on the chosen examples with in-distribution "
        "accuracy, both on probit axes. Below 0, models with higher in-distribution accuracy do worse here. "
    )
    if weakest(document):
        return meaning + (
            "The search looked for the R closest to 0, not for a negative one. It finds one among its own "
            "models in any data; only R on the test models says whether it holds for others."
        )
    return meaning + (
        "A search finds a negative R among its own models in any data. The verdict therefore uses "
        f"{tested_units(document)} that the search did not see, the same search on shuffled "
        "accuracies, and a correction for every size tried."
    )


def departures(document: Document) -> list[str]:
    """The settings of the selection that are not the defaults, apart from the solver and the seed."""
    settings = document["settings"]
    how = {
        "weakest correlation (objective r2)": weakest(document),
        "accuracies clipped at half an example": settings.get("clip") == "half",
        "only allowed examples": settings.get("allowed"),
        "with compulsory examples": settings.get("must_include"),
        f"shares of {settings.get('strata_name')} kept": settings.get("strata_name"),
        f"{document.get('path')} path": document.get("path", "independent") != "independent",
        f"eps {settings.get('eps')}": settings.get("eps", EPS) != EPS,
    }
    options = settings.get("options") or {}
    return [text for text, given in how.items() if given] + [f"{name} {options[name]}" for name in options]


def sentences(document: Document, name: str) -> list[str]:
    """`reasons` or `notes` of the verdict as sentences, with options as the command line names them."""
    # A sentence that opens with a symbol (p = ...) keeps it.
    return [
        f"{text[0] if text[1:2] == ' ' else text[0].upper()}{text[1:].rstrip('.')}."
        for text in map(by_option, (document["verdict"] or {}).get(name) or ())
        if text
    ]


def caveats(document: Document) -> list[str]:
    """What a reader must know before believing or using the subset."""
    data = document["data"]
    notes = [*_inverse_pool(document), *_class_notice(document), *_straddling(document["split"])]
    if data["unit_kind"] == "model":
        notes.append(
            "Training runs and families of the models are unknown. Intervals treat each model as "
            "independent and are too narrow if some are not."
        )
    if data["n_models"] < FEW_MODELS:
        notes.append(f"{data['n_models']} models are too few for a reliable correlation over models.")
    return [*notes, *_test_caveats(document), *_reliability(data)]


def _inverse_pool(document: Document) -> list[str]:
    """A notice where better models do worse on the whole pool, so that no subset of it is hidden."""
    r = document["full"]["test"]["r"]
    if r is None or r > AOTIL:
        return []
    return [
        f"On all {words.number(document['data']['n_examples'])} examples together R is already {signed(r)}: "
        "the pool as a whole is inverse, and its average hides nothing. If that surprises you, check that "
        "accuracies in distribution are accuracies, not errors, and that 1 means right."
    ]


def _class_notice(document: Document) -> list[str]:
    """A notice where one class is more than twice as frequent in the subset as in the pool."""
    ratios = [(each.chosen / each.pool, *each) for each in class_shares(document) if each.pool > 0]
    ratio, name, chosen, pool = max(ratios, default=(0.0, "", 0.0, 0.0))
    if ratio <= SHIFTED:
        return []
    return [
        f"Class composition: {share(chosen)} of the subset is of class {name}, {share(pool)} of the pool. "
        "The subset may represent a class rather than a failure mode; select with --strata label to see "
        "whether an effect remains at a fixed class mix."
    ]


def _straddling(split: Document) -> list[str]:
    n = split["straddling"]
    if not n:
        return []
    return [
        f"{words.number(n)} {unit_name(split['unit_kind'], n)} {'has' if n == 1 else 'have'} models both "
        "among those that chose the subset and among those that test it, so R on the test models does not "
        "test new ones."
    ]


def _test_caveats(document: Document) -> list[str]:
    """What the test models say against R on them."""
    notes = []
    row = headline_row(document)
    test = row["test"]
    if test.get("caution") and document["verdict"] is None:  # a verdict has a note of its own on that
        notes.append(f"Test part of the main split: {test['caution']}.")
    clipped = test.get("frac_clipped") or 0.0
    if clipped > CLIPPED:
        notes.append(
            f"{share(clipped)} of the test models have accuracy 0 or 1 on the subset; R depends on them, "
            "and on how such accuracies are clipped."
        )
    negative = (document["replication"] or {"selected": {"negative": None}})["selected"]["negative"]
    if status(document) == "supported" and negative is not None and negative < MIXED:
        notes.append(
            f"Only {share(negative)} of the chosen examples have a correlation below 0 on the test models: "
            "a subset of this size includes unrelated examples. Choose a smaller one."
        )
    hard = (row.get("hard") or {}).get("r")
    if not weakest(document) and test["r"] is not None and hard is not None and hard < test["r"]:
        notes.append(
            f"The {words.number(document['size'])} examples that the fewest training models classify "
            f"correctly have R {signed(hard)} on the test models, below the {signed(test['r'])} of the "
            "subset: difficulty may explain the result."
        )
    return notes


def _reliability(data: Document) -> list[str]:
    reliability = (data.get("quality") or {}).get("reliability")
    if reliability is None or reliability >= RELIABLE:
        return []
    return [
        f"Reliability of the in-distribution accuracies is {signed(reliability)}: "
        f"{share(min(1.0, 1 - reliability))} of their variance is sampling noise from too few examples, "
        "which moves every R towards 0."
    ]


def holdout(document: Document) -> str:
    """What the hold-out of examples shows, and what that means."""
    found = document["holdout"]
    if found["correlation"] is None:
        return f"Whether a rule picks new examples of the kind was not tested: {found['reason']}."
    space = f"the embedding by {found['encoder']}" if found["encoder"] else "the embedding of the examples"
    own, folds = found["correlation"], len(found["strengths"])
    asked = (
        f"Can the subset be described? A rule on {space}, learned on {folds - 1} of {folds} parts of the "
        "examples, picks new ones in the part left out. "
    )
    for r, where in ((own["r"], "the examples that it picks"), (found["random_low"], "random subsets")):
        if r is None:
            return f"{asked}R of the test models is undefined on {where}, so this was not tested."
    shown = (
        f"{asked}On the {words.number(found['size'])} examples that "
        f"it picked R is {signed(own['r'])} {ends(own['low'], own['high'])} over the test models; on random "
        f"subsets it is {signed(found['random_mean'])} {ends(found['random_low'], found['random_high'])}. "
        f"AUROC of membership: {signed(found['auroc'])} (chance 0.5). "
    )
    if found["describable"]:
        return shown + (
            "The subset is a describable kind of input: the rule finds new examples on which better models "
            "do worse."
        )
    if own["r"] < found["random_low"]:
        return shown + (
            "The rule finds examples that favour better models less than random ones do, but R is not "
            "shown to be below 0 on them: this embedding describes the subset in part at most."
        )
    return shown + (
        "The rule finds no such examples: by this embedding the subset is a list of single examples, not a "
        "recognisable kind of input. Another encoder may see more."
    )


def description(described: Document) -> list[str]:
    """What is to be said of phrases for the subset, the reason where describing it failed among it."""
    if reason := described.get("failed"):
        return [f"Describing the subset failed: {reason}. The selection and its verdict do not depend on it."]
    proposed = "" if described["scores"] else f"Phrases, not scored: {'; '.join(described['phrases'])}."
    return [text for text in (proposed, *described["notes"]) if text]


def settled(document: Document) -> str:
    """A sentence on whether there are enough models."""
    needed = document["models_needed"]
    n = words.number(needed["n_models"])
    if needed["median"] is None or not math.isfinite(needed["median"]):
        return (
            f"In most random orders R on all examples has not settled at {n} models: more models would "
            "still change it."
        )
    return (
        "In half of the random orders R on all examples has settled (each further step changes it by "
        f"less than 1{NARROW}%) by {needed['median']:.0f} models; there are {n}."
    )

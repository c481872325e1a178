"""A chosen subset as a page: the verdict as a sentence, then what it rests on and what is in the subset."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.analyses.subsets.path import SelectionPath
from assay.analyses.subsets.selection import Subset
from assay.core.errors import InputError
from assay.core.record import plain
from assay.report import figures, subset_figures, words
from assay.report.subset_data import (
    BASELINES,
    DRAWN_MODELS,
    NAMES,
    headline_row,
    number,
    series_kinds,
    signed,
)


KIND, SCHEMA = "subset", "assay-subset/1"
PATH_KIND, PATH_SCHEMA = "subset-path", "assay-subset-path/1"
UNITS = {
    "family": ("family", "families"),
    "group": ("training run", "training runs"),
    "model": ("model", "models"),
}
# Heads of the columns of the table by size.
HEADS = {"random": "random", "hard": "hardest", "marginal": "one-pass", "distance": "furthest"}
SUBSETS = (Subset, SelectionPath)
STORED = ("assay-selection/1", "assay-selection-path/1")
REQUIRED = (
    "data",
    "interval_units",
    "split",
    "size",
    "rows",
    "full",
    "verdict",
    "null",
    "largest",
    "consistency",
    "composition",
    "prevalence",
    "replication",
    "halves",
    "models_needed",
    "models",
    "lines",
    "examples",
    "settings",
    "provenance",
)
FEW_MODELS = 20
RELIABLE = 0.8  # share of the variance of in-distribution accuracies that is not sampling noise
CLIPPED = 0.05  # share of models at accuracy 0 or 1
MIXED = 0.75  # share of chosen examples that go against better models each by itself
SHIFTED = 2.0  # ratio of class shares that calls for a notice
PNG = "data:image/png;base64,"
PICTURES = 48  # examples of a side, at most
LISTED_VALUES = 40
LONGEST_RECORD = 40_000  # characters of provenance on the page
Document = Mapping[str, Any]


def is_subset(document: object) -> bool:
    """Whether a document is that of a chosen subset or of a path over sizes."""
    return isinstance(document, Mapping) and document.get("kind") in (KIND, PATH_KIND)


def subset_view(document: Document, key: str) -> dict[str, Any]:
    """Everything the template of a subset needs.

    Args:
        document: What `Subset.document` or `SelectionPath.document` gave.
        key: Identifier of the article.

    Raises:
        InputError: For another schema, or a document that lacks a part.
    """
    schema = SCHEMA if document["kind"] == KIND else PATH_SCHEMA
    if document.get("schema") in STORED:
        raise InputError(
            "this is a stored selection without its data, of which a page cannot be made: read it with "
            "`assay.load_subset(path, data)` and give that"
        )
    if document.get("schema") != schema:
        raise InputError(
            f"this subset has schema {document.get('schema')!r}; this version reads {schema!r}: run "
            "`assay select` again to make it"
        )
    missing = [name for name in REQUIRED if name not in document]
    if missing:
        raise InputError(f"the document of the subset lacks {', '.join(missing)}; it is incomplete")
    return {
        "key": key,
        "subset": document,
        "title": title(document),
        "verdict": verdict(document),
        "status": status(document),
        "reasons": sentences(document, "reasons"),
        "notes": sentences(document, "notes"),
        "caveats": caveats(document),
        "units": _tested_units(document),
        "n_tested": len((document["verdict"] or {}).get("sizes") or ()),
        "drawn_units": unit_name(document["interval_units"]),
        "halved_units": unit_name(document["data"]["unit_kind"]),
        "full": _cell(document["full"]["test"]),
        "kinds": series_kinds(document)[1:],
        "names": NAMES,
        "heads": HEADS,
        "pictures": _pictures(document, key),
        "rows": table(document),
        "largest": [_largest(each) for each in document["largest"] or ()],
        "folds": _folds(document),
        "replication": _replication(document),
        "halves": _halves(document),
        "settled": _settled(document),
        "composition": _composition(document),
        "prevalence": _prevalence(document),
        "examples": {side: _examples(document, side) for side in ("selected", "others")},
        "drawn": min(document["full"]["test"]["n"], DRAWN_MODELS),
        "parts": _parts(document),
        "quality": _quality(document),
        "parameters": _record(
            {"settings": document["settings"], "split": _without_places(document["split"])}
        ),
        "record": _record(document["provenance"]),
    }


# ------------------------------------------------------------------------------------------------- words


def status(document: Document) -> str:
    """`supported`, `inconclusive`, or `unjudged` where no verdict was asked for."""
    return str((document["verdict"] or {}).get("status") or "unjudged")


def title(document: Document) -> str:
    """What the page is about; says that better models do worse only where the verdict does."""
    size, pool = words.number(document["size"]), words.number(document["data"]["n_examples"])
    if status(document) == "supported":
        return f"The {size} of {pool} examples where better models do worse"
    if status(document) == "inconclusive":
        return f"Not shown: examples, among {pool}, where better models do worse"
    return f"The {size} of {pool} examples chosen against better models"


def verdict(document: Document) -> str:
    """The finding as a sentence; R only together with its caveats."""
    judged = document["verdict"]
    size = words.number(document["size"])
    if judged is None:
        return (
            f"Not judged. {size} examples were chosen so that models better in distribution do worse on "
            "them; whether that holds beyond the models they were chosen with was not tested."
        )
    r = f"R is {signed(number(judged['r']))} {_ends(judged['low'], judged['high'])}".strip()
    over = f"over held-out {_tested_units(document)}"
    tested = len(judged.get("sizes") or ()) or 1
    corrected = f", corrected for {tested} sizes" if tested > 1 else ""
    p = judged["p_value"]
    chance = "" if p is None else f" (p {'' if p < 0.001 else '= '}{_p(p)}{corrected})"
    if judged["status"] != "supported" and not judged["n_permutations"] and judged["r"] is None:
        return (
            f"Inconclusive. {size} examples were chosen against better models; whether better models do "
            "worse on them beyond the models that chose them was not tested. Do not use the subset as "
            "evidence."
        )
    if judged["status"] != "supported":
        return (
            f"Inconclusive. {size} examples were chosen against better models, but that better models do "
            f"worse on them is not shown: cross-fitted {over}, {r}{chance}. Do not use the subset as "
            "evidence."
        )
    strength = (
        "Accuracy is on the inverse line."
        if judged["aotil"]
        else "The tendency is weak: R is above −0.3, short of what counts as an inverse line.".replace(
            "−", words.MINUS
        )
    )
    return (
        f"Supported. On such a subset of {size} examples, models that are better in distribution do worse, "
        f"also models that had no part in choosing it: cross-fitted {over}, {r}{chance}. {strength}"
    )


def sentences(document: Document, name: str) -> list[str]:
    """`reasons` or `notes` of the verdict, each with a capital and a full stop."""
    found = (document["verdict"] or {}).get(name) or ()
    # A sentence that opens with a symbol (p = ...) keeps it.
    return [
        f"{text[0] if text[1:2] == ' ' else text[0].upper()}{text[1:].rstrip('.')}." for text in found if text
    ]


def _p(value: float | int) -> str:
    """A p-value: two significant digits, never 0."""
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"


def share(fraction: float | int | None) -> str:
    """A share as a percentage with at most one decimal; `n/a` where undefined."""
    if fraction is None or not math.isfinite(fraction):
        return "n/a"
    if 0 < abs(fraction) < 0.001:
        return words.percent(fraction)
    return f"{round(100 * fraction, 1) + 0.0:.1f}".removesuffix(".0") + f"{words.NARROW}%"


def _ends(low: float | int | None, high: float | int | None) -> str:
    if low is None or high is None:
        return ""
    return f"[{signed(low)}, {signed(high)}]"


def unit_name(kind: str, n: int = 2) -> str:
    """What models are kept together in: families, training runs, or each model by itself."""
    one, several = UNITS[kind]
    return one if n == 1 else several


def _tested_units(document: Document) -> str:
    """What the folds of the cross-fit keep whole."""
    return unit_name((document["verdict"] or document["data"])["unit_kind"])


def caveats(document: Document) -> list[str]:
    """What a reader must know before believing or using the subset."""
    notes = []
    data, split = document["data"], document["split"]
    row = headline_row(document)
    test = row["test"]
    notice = _class_notice(document)
    if notice:
        notes.append(notice)
    if split["straddling"]:
        n = split["straddling"]
        notes.append(
            f"{words.number(n)} {unit_name(split['unit_kind'], n)} {'has' if n == 1 else 'have'} models both "
            "among those that chose the subset and among those that test it: R on the test models is then no "
            "test of new ones."
        )
    if data["unit_kind"] == "model":
        notes.append(
            "Nothing is known of which models share a training run or a family; intervals take each model as "
            "independent and are too narrow where some are not."
        )
    if data["n_models"] < FEW_MODELS:
        notes.append(f"{data['n_models']} models: too few for a correlation over models to say much.")
    if test.get("caution") and document["verdict"] is None:  # a verdict has a note of its own on that
        notes.append(f"Test part of the main split: {test['caution']}.")
    clipped = test.get("frac_clipped") or 0.0
    if clipped > CLIPPED:
        notes.append(
            f"{share(clipped)} of the test models have accuracy 0 or 1 on the subset; R leans on them, "
            "and on where such accuracies are clipped."
        )
    negative = (document["replication"] or {"selected": {"negative": None}})["selected"]["negative"]
    if status(document) == "supported" and negative is not None and negative < MIXED:
        notes.append(
            f"Only {share(negative)} of the chosen examples are themselves below 0 on the test models: a "
            "subset of this size carries others along. A smaller one is purer."
        )
    hard = (row.get("hard") or {}).get("r")
    if test["r"] is not None and hard is not None and hard < test["r"]:
        notes.append(
            f"The {words.number(document['size'])} examples that the fewest training models get right have R "
            f"{signed(hard)} on the test models, below the {signed(test['r'])} of the subset: difficulty "
            "may be what was found."
        )
    reliability = (data.get("quality") or {}).get("reliability")
    if reliability is not None and reliability < RELIABLE:
        notes.append(
            f"Reliability of the in-distribution accuracies is {signed(reliability)}: "
            f"{share(min(1.0, 1 - reliability))} of their variance is noise of too few examples behind "
            "each, which pulls every R towards 0."
        )
    return notes


def _class_notice(document: Document) -> str | None:
    """A notice where one class is more than twice as frequent in the subset as in the pool."""
    found = subset_figures.composition_data(document)
    if found is None:
        return None
    ratios = [
        (chosen / pool, name, chosen, pool)
        for name, chosen, pool in zip(found.names, found.chosen, found.pool, strict=True)
        if pool > 0
    ]
    ratio, name, chosen, pool = max(ratios, default=(0.0, "", 0.0, 0.0))
    if ratio <= SHIFTED:
        return None
    return (
        f"Class composition: {share(chosen)} of the subset is of class {name}, "
        f"{share(pool)} of the pool. The subset may represent a class rather than for a way of failing; "
        "select with strata=label to see whether one remains at a fixed mix of classes."
    )


# -------------------------------------------------------------------------------------------- tables


def table(document: Document) -> list[dict[str, Any]]:
    """The rows of the table by size."""
    return [_row(row, document) for row in document["rows"]]


def _row(row: Document, document: Document) -> dict[str, Any]:
    """A size of the table."""
    judged = row.get("verdict")
    mark = {"supported": "\N{BLACK CIRCLE}", "inconclusive": "\N{DOTTED CIRCLE}"}
    cells = {kind: _cell(row.get(kind)) for kind in BASELINES}
    return {
        "size": row["size"],
        "shown": words.number(row["size"]),
        "share": share(row["size"] / document["data"]["n_examples"]),
        "headline": row["size"] == document["size"],
        "status": "not judged" if judged is None else judged["status"],
        "mark": "\N{EN DASH}" if judged is None else mark[judged["status"]],
        "p": "" if judged is None or judged["p_value"] is None else _p(judged["p_value"]),
        "crossed": _cell(judged),
        "test": _cell(row["test"]),
        "spearman": _cell(row["test"], "spearman"),
        "validation": _cell(row["validation"]),
        "cells": cells,
    }


def _cell(record: Document | None, name: str = "r") -> dict[str, str]:
    """A correlation with its interval: what is shown and what the column is sorted by."""
    prefix = "" if name == "r" else f"{name}_"
    if record is None or record.get(name) is None:
        return {"value": "", "shown": "" if record is None else "undefined", "interval": ""}
    return {
        "value": f"{record[name]:.6f}",
        "shown": signed(record[name]),
        "interval": _ends(record.get(f"{prefix}low"), record.get(f"{prefix}high")),
    }


RULES = {
    "val": "R on the validation models at most −0.3",
    "ci": "and the upper end of the interval on the test models too",
    "paper": "R on the test models at most −0.3, as published (looks at the test models)",
}


def _largest(found: Document) -> dict[str, str]:
    size = found["size"]
    return {
        "rule": found["rule"],
        "meaning": RULES[found["rule"]].replace("−", words.MINUS),
        "size": "none" if size is None else words.number(size),
        "r": "" if size is None else signed(number(found.get("r"))),
        "interval": "" if size is None else _ends(found.get("low"), found.get("high")),
        "status": "" if size is None else str(found["status"]),
    }


def _folds(document: Document) -> dict[str, Any] | None:
    """What each fold of the cross-fit gave."""
    judged = document["verdict"]
    if judged is None or not judged.get("fold_correlations"):
        return None
    return {
        "rows": [
            {"name": str(place), "r": signed(number(r)), "value": number(r), "n": words.number(n)}
            for place, (r, n) in enumerate(
                zip(judged["fold_correlations"], judged["fold_sizes"], strict=True), start=1
            )
        ],
        "consistency": ""
        if judged.get("mean_consistency") is None
        else signed(number(judged["mean_consistency"])),
        "n": judged["n_permutations"],
        "p": "" if judged["p_unadjusted"] is None else _p(judged["p_unadjusted"]),
    }


def _replication(document: Document) -> dict[str, str] | None:
    found = document["replication"]
    if not found:
        return None
    return {
        f"{side}_{name}": share(found[side][name])
        for side in ("selected", "pool")
        for name in ("negative", "discovered")
    }


def _halves(document: Document) -> dict[str, str] | None:
    found = document["halves"]
    if not found or found.get("overlap") is None:
        return None
    return {
        "overlap": signed(number(found["overlap"])),
        "null": "" if found["null_mean"] is None else signed(number(found["null_mean"])),
        "n": words.number(len(found["null"])),
        "p": "" if found["p_value"] is None else _p(found["p_value"]),
    }


def _settled(document: Document) -> str | None:
    """A sentence on whether there are enough models."""
    data = subset_figures.models_data(document)
    if data is None:
        return None
    if math.isfinite(data.stable):
        return (
            "In half of the random orders R on all examples has settled (each further step changes it by "
            f"less than 1{words.NARROW}%) by {data.stable:.0f} models; there are "
            f"{words.number(data.n_models)}."
        )
    return (
        f"In most random orders R on all examples has not settled at {words.number(data.n_models)} models: "
        "more models would still move it."
    )


def _composition(document: Document) -> list[dict[str, str]] | None:
    """Classes by share among the chosen examples at the size of the page."""
    found = subset_figures.composition_data(document)
    if found is None:
        return None
    per_class = {each["label"]: each for each in (document["composition"].get("per_class") or ())}
    rows = []
    for place, name in enumerate(found.names):
        chosen, pool = found.chosen[place], found.pool[place]
        own = per_class.get(name) or {}
        rows.append(
            {
                "name": name,
                "chosen": share(chosen),
                "chosen_value": f"{chosen:.6f}",
                "pool": share(pool),
                "pool_value": f"{pool:.6f}",
                "ratio": "" if pool == 0 else words.number(chosen / pool),
                "r": "" if own.get("r") is None else signed(number(own["r"])),
                "n": "" if own.get("n") is None else words.number(int(own["n"])),
            }
        )
    return sorted(rows, key=lambda row: -float(row["chosen_value"]))


def _prevalence(document: Document) -> dict[str, Any] | None:
    """Attribute values with their shares, surest difference first; means of numbers apart."""
    found = document["prevalence"]
    if not found:
        return None
    ordered = sorted(
        found["rows"],
        key=lambda row: (1.0 if row["q_value"] is None else row["q_value"], -abs(row["difference"] or 0.0)),
    )
    shown: list[dict[str, Any]] = []
    for row in ordered[:LISTED_VALUES]:
        plainly = (lambda value: words.number(number(value), 3)) if row.get("numeric") else share
        shown.append(
            {
                "attribute": row["attribute"],
                "value": "mean" if row.get("numeric") else row["value"],
                "selected": plainly(row["selected"]),
                "pool": plainly(row["pool"]),
                "difference": words.number(number(row["difference"]), 3),
                "interval": words.interval(row["low"], row["high"], 3),
                "ratio": "" if row.get("ratio") is None else words.number(number(row["ratio"])),
                "q": "" if row["q_value"] is None else words.number(number(row["q_value"]), 3),
                "significant": row["significant"],
                **{f"{name}_value": row[name] for name in ("selected", "pool", "difference", "q_value")},
            }
        )
    return {
        "rows": shown,
        "left": len(ordered) - len(shown),
        "n": len(ordered),
        "n_significant": sum(bool(row["significant"]) for row in ordered),
    }


def _examples(document: Document, side: str) -> list[dict[str, str]]:
    """Single examples, the most harmful first or random others."""
    return [
        {
            "id": str(each["id"]),
            "label": "" if each["label"] is None else str(each["label"]),
            "meta": ", ".join(f"{name} {value}" for name, value in (each.get("meta") or {}).items()),
            "right": share(each["right"]),
            "right_value": "" if each["right"] is None else f"{each['right']:.6f}",
            "r": signed(number(each["r"])),
            "r_value": "" if each["r"] is None else f"{each['r']:.6f}",
            "image": _picture(each.get("image")),
        }
        for each in document["examples"][side][:PICTURES]
    ]


def _picture(source: object) -> str:
    """An image that the document holds; never an address, which a page would fetch."""
    found = str(source or "")
    if found and not found.startswith(PNG):
        raise InputError(f"an example's image is {found[:40]!r}; documents hold images as {PNG}... only")
    return found


def _parts(document: Document) -> list[dict[str, str]]:
    """Models and units of the parts of the main split."""
    kind = document["split"]["unit_kind"]
    return [
        {
            "name": name,
            "models": words.number(part["n_models"]),
            "units": ""
            if kind == "model"
            else f"of {words.number(part['n_units'])} {unit_name(kind, part['n_units'])}",
        }
        for name, part in document["split"]["parts"].items()
    ]


def _quality(document: Document) -> list[tuple[str, str]]:
    """What the correctness matrix is made of."""
    data = document["data"]
    found = data.get("quality") or {}
    facts = [
        ("models", words.number(data["n_models"])),
        ("examples", words.number(data["n_examples"])),
    ]
    if data["n_groups"] is not None:
        facts.append(("training runs", words.number(data["n_groups"])))
    if data["n_families"] is not None:
        facts.append(("families", words.number(data["n_families"])))
    if found:
        facts += [
            ("accuracy in distribution", _span(found["id_accuracy"])),
            ("accuracy on all examples", _span(found["accuracy"])),
            ("all models right", f"{words.number(found['n_all_right'])} examples"),
            ("all models wrong", f"{words.number(found['n_all_wrong'])} examples"),
            ("repeated models", words.number(found["n_duplicates"])),
        ]
        if found.get("reliability") is not None:
            facts.append(("reliability in distribution", signed(found["reliability"])))
    return facts


def _span(ends: Sequence[float | int]) -> str:
    return f"{share(ends[0])} to {share(ends[1])}"


def _without_places(split: Document) -> dict[str, Any]:
    """The split without the places of every model, which stay in the document."""
    return {name: value for name, value in split.items() if name not in ("train", "validation", "test")}


def _record(record: Any) -> str:
    text = json.dumps(plain(record), indent=2, sort_keys=True)
    if len(text) > LONGEST_RECORD:
        return (
            f"{text[:LONGEST_RECORD]}\n… {len(text) - LONGEST_RECORD:,} characters more are in the document"
        )
    return text


# ------------------------------------------------------------------------------------------------ pictures


def _pictures(document: Document, key: str) -> dict[str, str | None]:
    """Every picture that the document has data for."""
    several = len(document["rows"]) > 1
    n = document["full"]["test"]["n"]
    scatter = subset_figures.scatter_data(document)
    found: dict[str, tuple[Any, str] | None] = {
        "size": (
            subset_figures.plot_size(subset_figures.size_data(document)),
            f"Correlation over {n} held-out models against subset size",
        )
        if several
        else None,
        "ranks": (
            subset_figures.plot_size(subset_figures.size_data(document, "spearman")),
            f"Rank correlation over {n} held-out models against subset size",
        )
        if several
        else None,
        "comparison": None
        if several
        else (
            subset_figures.plot_comparison(subset_figures.comparison_data(document)),
            f"Correlation over {n} held-out models on the subset and on others of its size",
        ),
        "scatter": (subset_figures.plot_scatter(scatter), "Accuracy of held-out models, probit axes"),
        "three": (
            subset_figures.plot_three(scatter),
            "Accuracy of held-out models on all, the chosen and the other examples",
        )
        if len(scatter.clouds) == 3
        else None,
        "accuracies": (
            subset_figures.plot_accuracies(subset_figures.accuracy_data(document)),
            "Histograms of accuracy in and out of distribution",
        ),
        "null": _drawn(
            subset_figures.plot_null, subset_figures.null_data(document), "Null distribution of the lowest R"
        ),
        "replication": _drawn(
            subset_figures.plot_replication,
            subset_figures.replication_data(document),
            "Correlations of single examples over held-out models",
        ),
        "composition": _drawn(
            subset_figures.plot_composition, subset_figures.composition_data(document), "Class shares"
        ),
        "prevalence": _drawn(
            subset_figures.plot_prevalence,
            subset_figures.prevalence_data(document),
            "Differences of shares between subset and pool",
        ),
        "consistency": _drawn(
            subset_figures.plot_consistency,
            subset_figures.consistency_data(document),
            "Overlap of the subsets of every two sizes",
        ),
        "models": _drawn(
            subset_figures.plot_models,
            subset_figures.models_data(document),
            "Correlation against the number of models",
        ),
    }
    return {
        name: None
        if drawing is None
        else figures.to_svg(drawing[0], key=f"{key}-{name}", label=f"{drawing[1]}; the text has the numbers.")
        for name, drawing in found.items()
    }


def _drawn(plot: Any, data: Any, label: str) -> tuple[Any, str] | None:
    return None if data is None else (plot(data), label)

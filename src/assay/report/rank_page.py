"""A ranking as a page: the table of models by metrics, what picking by each is worth, the motif, the cost."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.errors import InputError
from assay.core.record import plain
from assay.report import figures, rank_figures, words


KIND, SCHEMA = "ranking", "assay-ranking/1"
COMPARISON_KIND, COMPARISON_SCHEMA = "ranking-comparison", "assay-ranking-comparison/1"
REQUIRED = (
    "target",
    "measure",
    "models",
    "performance",
    "metrics",
    "absent",
    "layers",
    "motif",
    "costs",
    "provenance",
)
COMPARISON_REQUIRED = ("datasets", "metrics", "motif", "rankings", "provenance")
FEW_MODELS = 12  # below that, correlations over models are anecdotes
FEW_IMAGES = 100
Document = Mapping[str, Any]


def is_ranking(document: object) -> bool:
    """Whether a document is that of a ranking or of several side by side."""
    return isinstance(document, Mapping) and document.get("kind") in (KIND, COMPARISON_KIND)


def ranking_views(document: Document, key: str) -> list[dict[str, Any]]:
    """Everything the templates need: one article for a ranking; a comparison's is followed by its rankings'.

    Args:
        document: What `Ranking.to_dict` or `RankingComparison.to_dict` gave.
        key: Identifier of the article.

    Raises:
        InputError: For another schema, or a document that lacks a part.
    """
    if document["kind"] == KIND:
        return [_ranking_view(_checked(document, SCHEMA, REQUIRED), key)]
    checked = _checked(document, COMPARISON_SCHEMA, COMPARISON_REQUIRED)
    views = [_comparison_view(checked, key)]
    for place, each in enumerate(checked["rankings"], start=1):
        views += ranking_views(each, f"{key}-{place}")
    return views


def _checked(document: Document, schema: str, required: Sequence[str]) -> Document:
    if document.get("schema") != schema:
        raise InputError(
            f"this ranking has schema {document.get('schema')!r}; this version reads {schema!r}: run "
            "`assay rank` again to make it"
        )
    missing = [name for name in required if name not in document]
    if missing:
        raise InputError(f"the document of the ranking lacks {', '.join(missing)}; it is incomplete")
    return document


def _ranking_view(document: Document, key: str) -> dict[str, Any]:
    forest, scatter = rank_figures.forest_data(document), rank_figures.scatter_data(document)
    domain = document["target"].get("domain") or document["target"].get("name") or "the target"
    motif = document["motif"] or {}
    return {
        "key": key,
        "ranking": document,
        "title": f"Which of {len(document['models'])} models to deploy on {domain}",
        "verdict": _verdict(document),
        "caveats": caveats(document),
        "measure": rank_figures.measure_name(document),
        "table": table(document),
        "worth": worth(document),
        "blind": blind(document),
        "forest": _svg(
            rank_figures.plot_forest(forest),
            f"{key}-forest",
            "Models with intervals; the numbers are in the table.",
        )
        if forest
        else None,
        "scatter": _svg(
            rank_figures.plot_scatter(scatter),
            f"{key}-scatter",
            "Each metric against true performance; the correlations are in the table.",
        )
        if scatter
        else None,
        "motif": _matrix(
            motif.get("values"), document["layers"], f"{key}-motif", "The generalization motif."
        ),
        "motif_reason": motif.get("reason"),
        "motif_facts": motif,
        "motif_exact": motif.get("values") is not None and motif["n"] <= sum(map(sum, motif["used"])),
        "matrices": [
            {
                "name": each["name"],
                "picture": _matrix(
                    each["values"],
                    document["layers"],
                    f"{key}-m{place}",
                    f"Dependencies between layers of {each['name']}.",
                ),
            }
            for place, each in enumerate(document.get("dependency") or ())
        ],
        "ratios": _ratios(document),
        "cost": _svg(
            rank_figures.plot_cost(rank_figures.cost_data(document["costs"])),
            f"{key}-cost",
            "Seconds of each stage.",
        )
        if document["costs"]
        else None,
        "record": json.dumps(plain(document["provenance"]), indent=2, sort_keys=True),
    }


def _svg(axes: Any, key: str, label: str) -> str:
    return figures.to_svg(axes, key=key, label=label)


def _matrix(values: Any, layers: Sequence[str], key: str, label: str) -> str | None:
    if values is None:
        return None
    return _svg(rank_figures.plot_motif(rank_figures.motif_data(values, layers)), key, label)


def picked(metric: Document) -> list[int]:
    """Places of the models that a metric ranks first."""
    return [place for place, row in enumerate(metric["rows"]) if row["rank"] == 1]


def _picks(document: Document, places: Sequence[int]) -> str:
    """Names of the models that a metric ranks first, of many only how many."""
    names = [document["models"][place]["name"] for place in places]
    if len(names) > 2:
        return f"{names[0]} and {len(names) - 1} others that tie"
    return " and ".join(names)


def _verdict(document: Document) -> str:
    """Which model the leading metric picks, how surely, and what that cost where it is known."""
    metric = rank_figures.leading(document)
    if metric is None:
        return "No metric puts these models in order."
    names = picked(metric)
    chance = metric["rows"][picked(metric)[0]]["chance"]
    text = f"{metric['name']} picks {_picks(document, names)}"
    if chance is not None and len(names) == 1:
        text += f", the best by it in {words.percent(chance)} of the resamples"
    text += "."
    truth = document["performance"]
    if truth is not None and len(names) == 1:
        best = max(range(len(truth)), key=lambda place: truth[place]["value"])
        own = truth[picked(metric)[0]]["value"]
        measure = rank_figures.measure_name(document)
        if truth[best]["value"] == own:
            text += f" It has the highest {measure}, {words.number(own)}."
        else:
            highest = words.number(truth[best]["value"])
            name = document["models"][best]["name"]
            text += f" Its {measure} is {words.number(own)}; the highest is {highest}, of {name}."
    return text


def caveats(document: Document) -> list[str]:
    """What to mind before the table is believed."""
    notes = []
    if document["performance"] is None:
        told = any(metric.get("elsewhere") is not None for metric in document["metrics"])
        notes.append(
            "The images have no labels: what picking by a metric costs here is not known"
            + (", only what it cost on other domains." if told else ".")
        )
    elif len(document["models"]) < FEW_MODELS:
        notes.append(
            f"{len(document['models'])} models: correlations over so few of them say little about a metric; "
            "mind their intervals."
        )
    n = document["target"]["n"]
    if n < FEW_IMAGES:
        notes.append(f"{n} images: differences between models may be differences between images.")
    return notes


def table(document: Document) -> dict[str, Any]:
    """Models by metrics, predicted best first by the leading metric."""
    truth = document["performance"]
    own = {"name": rank_figures.measure_name(document), "arrow": ""}
    columns = ([] if truth is None else [own]) + [
        {"name": metric["name"], "arrow": arrow(metric)} for metric in document["metrics"]
    ]
    rows = []
    for place in rank_figures.order(document):
        cells = [cell(truth[place])] if truth is not None else []
        cells += [cell(metric["rows"][place]) for metric in document["metrics"]]
        rows.append({"name": document["models"][place]["name"], "cells": cells})
    return {"columns": columns, "rows": rows}


def arrow(metric: Document) -> str:
    """Which way a metric is read: up, down, towards a value, or not at all."""
    if metric["best_at"] is not None:
        return f"\N{RIGHTWARDS ARROW}{metric['best_at']:g}"
    return {1: "\N{UPWARDS ARROW}", -1: "\N{DOWNWARDS ARROW}", 0: ""}[metric["direction"]]


def cell(row: Document) -> dict[str, str]:
    """A value with its interval and rank; the reason where it is missing."""
    digits = words.precision(row["low"], row["high"])
    return {
        "value": words.number(row["value"], digits) if row["value"] is not None else "",
        "interval": words.interval(row["low"], row["high"], digits),
        "rank": "" if row["rank"] is None else f"{row['rank']:g}",
        "reason": str(row["reason"] or "").replace("_", " ")
        if row["value"] is None or row["low"] is None
        else "",
    }


def worth(document: Document) -> list[dict[str, str]]:
    """What picking by each metric is worth: the pick, its chance, regret, correlations."""
    rows = []
    for metric in document["metrics"]:
        first = picked(metric)
        chance = metric["rows"][first[0]]["chance"] if len(first) == 1 else None
        regret, together = metric["regret"], metric["correlation"]
        rows.append(
            {
                "name": metric["name"],
                "summary": metric["summary"],
                "pick": _picks(document, first) or "none: its source states no direction",
                "chance": "" if chance is None else words.percent(chance),
                "regret": "" if regret is None else fixed(regret["expected"], 3),
                "regret_interval": "" if regret is None else _interval(regret["interval"], 3),
                "observed": "" if regret is None else fixed(regret["observed"], 3),
                "elsewhere": "" if metric["elsewhere"] is None else fixed(metric["elsewhere"], 3),
                **{name: "" if together is None else fixed(together[name]["value"], 2) for name in _NAMES},
                **{
                    f"{name}_interval": "" if together is None else _interval(together[name]["interval"], 2)
                    for name in _NAMES
                },
            }
        )
    return rows


_NAMES = ("r2", "srcc", "krcc")


def _interval(record: Document, digits: int) -> str:
    if record["low"] is None:
        return ""
    return f"[{fixed(record['low'], digits)}, {fixed(record['high'], digits)}]"


def fixed(value: float | None, digits: int) -> str:
    """So many decimals whatever the size, and no minus before zero: for columns of shares."""
    if value is None:
        return ""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", words.MINUS)


def blind(document: Document) -> str:
    """Expected regret of a blind pick."""
    found = next((metric["regret"]["random"] for metric in document["metrics"] if metric["regret"]), None)
    return fixed(found, 3)


def _ratios(document: Document) -> dict[str, Any] | None:
    """Correlations of the depth bias with performance over tau."""
    if not document["ratios"]:
        return None
    ratios = [each["ratio"] for each in next(iter(document["ratios"].values()))]
    rows = [
        {
            "name": f"DDB {targets}",
            "cells": [fixed(each["srcc"], 2) for each in listed],
        }
        for targets, listed in document["ratios"].items()
    ]
    return {"ratios": [f"{ratio:g}" for ratio in ratios], "rows": rows}


def _comparison_view(document: Document, key: str) -> dict[str, Any]:
    motif = document["motif"]
    rows = []
    for metric in document["metrics"]:
        cells = []
        for dataset in document["datasets"]:
            found = (metric["per_dataset"] or {}).get(dataset)
            cells += ["" if found is None else fixed(found[name], 2) for name in _NAMES]
        average = metric["average"]
        sem = "" if average is None else f"{fixed(average, 3)} ± {fixed(metric['sem'], 3)}"
        rows.append(
            {
                "name": metric["name"],
                "cells": cells,
                "average": sem,
                "regret": fixed(metric["regret"], 3),
                "n": metric["n_tasks"],
                "missing": metric["missing"],
            }
        )
    known = [metric for metric in document["metrics"] if metric["average"] is not None]
    best = max(known, key=lambda metric: metric["average"], default=None)
    return {
        "key": key,
        "rank_comparison": document,
        "title": f"Metrics over {len(document['rankings'])} targets",
        "verdict": "No target has labels: metrics cannot be compared."
        if best is None
        else f"{best['name']} goes with performance best on average: {fixed(best['average'], 3)}.",
        "rows": rows,
        "random": fixed(document["random"], 3),
        "motif": _matrix(motif["values"], motif["layers"], f"{key}-universal", "The universal motif."),
        "motif_reason": motif["reason"],
        "tasks": motif["tasks"],
        "record": json.dumps(plain(document["provenance"]), indent=2, sort_keys=True),
    }

"""A ranking as sentences and short texts: what its page and the command line say of a document."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.page import text as words
from assay.zoo.archive import missing_text


FEW_MODELS = 12  # below that, correlations over models are anecdotes
FEW_IMAGES = 100
CORRELATIONS = ("r2", "srcc", "krcc")
Document = Mapping[str, Any]


def leading(document: Document) -> Document | None:
    """The metric that puts the models in order on the page: the first that can."""
    return next((each for each in document["metrics"] if any(row["rank"] for row in each["rows"])), None)


def order(document: Document) -> list[int]:
    """Places of the models, predicted best first by the leading metric; as given where none leads."""
    metric = leading(document)
    places = list(range(len(document["models"])))
    if metric is None:
        return places
    return sorted(places, key=lambda place: (metric["rows"][place]["rank"] or math.inf, place))


def measure_name(document: Document) -> str:
    """True performance, as axes call it."""
    return {"accuracy": "accuracy", "macro-f1": "macro-F1"}[document["measure"]]


def picked(metric: Document) -> list[int]:
    """Places of the models that a metric ranks first."""
    return [place for place, row in enumerate(metric["rows"]) if row["rank"] == 1]


def picks(document: Document, places: Sequence[int]) -> str:
    """Names of the models that a metric ranks first, of many only how many."""
    names = [document["models"][place]["name"] for place in places]
    if len(names) > 2:
        return f"{names[0]} and {len(names) - 1} others that tie"
    return " and ".join(names)


def verdict(document: Document) -> str:
    """Which model the leading metric picks, how surely, and what that cost where it is known."""
    metric = leading(document)
    if metric is None:
        return "None of the metrics orders these models."
    places = picked(metric)
    chance = metric["rows"][places[0]]["chance"]
    text = f"{metric['name']} picks {picks(document, places)}"
    if chance is not None and len(places) == 1:
        text += f", the best by it in {words.percent(chance)} of the resamples"
    text += "."
    truth = document["performance"]
    if truth is None or len(places) > 1:
        return text
    best = max(range(len(truth)), key=lambda place: truth[place]["value"])
    own, highest = truth[places[0]]["value"], truth[best]["value"]
    measure = measure_name(document)
    if highest == own:
        return f"{text} It has the highest {measure}, {words.number(own)}."
    name = document["models"][best]["name"]
    return f"{text} Its {measure} is {words.number(own)}; the highest is {words.number(highest)}, of {name}."


def caveats(document: Document) -> list[str]:
    """What to mind before the table is believed."""
    notes = missing_note(document, len(document["models"]))
    copies = [each["name"] for each in document["models"] if "copy_of" in each]
    n_distinct = len(document["models"]) - len(copies)
    if copies:
        notes.append(
            f"{len(copies)} of the {len(document['models'])} models are copies, which show the same as an "
            f"earlier one ({', '.join(copies[:3])}{', ...' if len(copies) > 3 else ''}): correlations are "
            f"over {n_distinct} models."
        )
    if document["performance"] is None:
        notes.append("The images have no labels: the cost of picking by a metric is not known.")
    elif n_distinct < FEW_MODELS:
        notes.append(f"With only {n_distinct} models, correlations are uncertain; note their intervals.")
    depths = sorted({each["blocks"] for each in document["models"] if each.get("blocks")})
    if len(depths) > 1:
        notes.append(
            f"Models have {depths[0]} to {depths[-1]} blocks. Depth biases compare the first and the last "
            f"{words.percent(document['ratio'])} of the blocks of each model, and the motif compares layers "
            "at the same share of the depth; sums of scores and single layers are not compared."
        )
    n = document["target"]["n"]
    if n < FEW_IMAGES:
        notes.append(f"With {n} images, differences between models may be due to the choice of images.")
    return notes


def missing_note(document: Document, n_models: int) -> list[str]:
    """That models of the zoo are not among those ranked; nothing where all are."""
    text = missing_text(document.get("missing") or {}, n_models)
    return [f"{text}."] if text else []


def data_text(data: Document) -> words.Text:
    """Images as the foot of a page names them: name and domain, once where they are the same, and hash."""
    name = " ".join(dict.fromkeys(each for each in (data["name"], data["domain"]) if each))
    shown = words.code((data.get("data_hash") or "")[:16])
    return (f"{name} ", words.quiet("hash of the data"), " ", shown)


def arrow(metric: Document) -> str:
    """Which way a metric is read: up, down, towards a value, or not at all."""
    if metric["best_at"] is not None:
        return f"\N{RIGHTWARDS ARROW}{metric['best_at']:g}"
    return {1: "\N{UPWARDS ARROW}", -1: "\N{DOWNWARDS ARROW}", 0: ""}[metric["direction"]]


def fixed(value: float | None, digits: int) -> str:
    """So many decimals whatever the size, and no minus before zero: for columns of shares."""
    if value is None:
        return ""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", words.MINUS)


def blind(document: Document) -> str:
    """Expected regret of a blind pick."""
    regrets = (metric["regret"]["random"] for metric in document["metrics"] if metric["regret"])
    return fixed(next(regrets, None), 3)

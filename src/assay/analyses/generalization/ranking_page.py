"""Pages and pictures of rankings: models by metrics, what picking by each is worth, many targets."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from assay.analyses.generalization.alarms import CORRELATIONS
from assay.analyses.generalization.baselines import MEASURES
from assay.analyses.generalization.inspection import METRICS
from assay.core.errors import InputError
from assay.page.blocks import PAGES, Block, Cell, Column, Figure, Note, Page, PageForm, Section, Table
from assay.page.blocks import columns as headings
from assay.page.blocks import folded_record as folded
from assay.page.draw import INK, SUPPORTS, Matrix, axes_of, plot_matrix
from assay.page.text import Span, Text, bold, code, estimate, interval, listed, number, percent, rounded
from assay.zoo.archive import missing_text


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.analyses.generalization.dependency import Motif
    from assay.analyses.generalization.ranking import Ranking

Document = Mapping[str, Any]
ONE_CLASS = 0.9  # share of the images in one class from which a model says little
COLLAPSED = 2.0  # RankMe below which the features lie on a line
TALL = 24  # models of a table that is not scrolled
LABELLED = 40  # models named on an axis; more are drawn without names
BLIND = "blind pick"


# ----------------------------------------------------------------------------------------- what it says


def picked(metric: Document) -> list[int]:
    """Places of the models that a metric ranks first."""
    return [place for place, row in enumerate(metric["rows"]) if row["rank"] == 1]


def leading(document: Document) -> Document | None:
    """The metric that puts the models in order on the page: the first that can."""
    return next((each for each in document["metrics"] if picked(each)), None)


def order(document: Document) -> list[int]:
    """Places of the models, predicted best first by the leading metric; as given where none leads."""
    rows = (leading(document) or {"rows": [{"rank": 1}] * len(document["models"])})["rows"]
    return sorted(range(len(rows)), key=lambda place: (rows[place]["rank"] or math.inf, place))


def _names(document: Document, places: Sequence[int] | np.ndarray) -> str:
    """Names of models, of many only how many."""
    names = [document["models"][place]["name"] for place in places]
    return listed(names if len(names) <= 2 else [names[0], f"{len(names) - 1} others"])


def verdict(document: Document) -> str:
    """Which model the metrics pick, led by accuracy on labelled images where those were given."""
    ranking = [each for each in document["metrics"] if picked(each)]
    if not ranking:
        return "None of the metrics orders these models."
    lead = next((each for each in ranking if each["key"] == "id-accuracy"), ranking[0])
    places, known, measure = picked(lead), document["known"], MEASURES[document["measure"]]
    row, tied, names = lead["rows"][places[0]], len(places) > 1, _names(document, places)
    text = f"{lead['name']} picks {names}"
    if lead["key"] == "id-accuracy":
        source = f"{number(known['n'])} labelled images of {known['domain'] or known['name']}"
        value, _ = estimate(row["value"], row["low"], row["high"])
        text = f"On {source}, {names} {'tie for' if tied else 'has'} the highest {measure}, {value}"
    if row["chance"] is not None and not tied:
        text += f" (best in {percent(row['chance'])} of resamples of these images)"
    others = [each for each in ranking if each is not lead]
    agreeing = [each for each in others if set(picked(each)) <= set(places)]
    if tied and agreeing:
        first, pick = agreeing[0], _names(document, picked(agreeing[0]))
        text += f"; {first['name']} ({first['key']}) picks {pick} among them"
    elif others:
        agree = f"{listed([each['name'] for each in agreeing])} agree{'s' * (len(agreeing) == 1)}"
        text += f"; {agree if agreeing else 'no other metric agrees'}"
    truth = document["performance"]
    if truth is None or tied:
        return f"{text}."
    best = max(range(len(truth)), key=lambda place: truth[place]["value"])
    own, highest = (truth[place]["value"] for place in (places[0], best))
    if highest == own:
        return f"{text}. It has the highest {measure} on the target, {number(own)}."
    better = f"the highest is {number(highest)}, of {document['models'][best]['name']}"
    return f"{text}. Its {measure} on the target is {number(own)}; {better}."


def caveats(document: Document) -> list[str]:
    """What to mind before the table is believed: what has failed first."""
    models, metrics, target = document["models"], document["metrics"], document["target"]
    values = {each["key"]: [row["value"] for row in each["rows"]] for each in metrics}
    notes: list[str] = []

    def add(text: str, where: list[bool]) -> None:
        if any(where):
            notes.append(text.format(_names(document, np.flatnonzero(where))))

    most = f"More than {percent(ONE_CLASS)} of the images are given one class by {{}}."
    add(most, [each["top_share"] > ONE_CLASS for each in models])
    collapsed = [value is not None and value < COLLAPSED for value in values.get("rankme", ())]
    add("Features have collapsed (RankMe below 2) in {}.", collapsed)
    for name in ("ATC", "DoC"):
        degenerate = [value in (0, 1) for value in values.get(name.lower(), ())]
        add(f"{name} is 0 or 1, which is not an estimate, for {{}}.", degenerate)
    picks: dict[str, list[str]] = {}
    for metric in metrics:
        if places := picked(metric):
            picks.setdefault(_names(document, places), []).append(metric["name"])
    if len(picks) > 1:
        said = [f"{pick} by {listed(by)}" for pick, by in picks.items()]
        notes.append(f"Metrics disagree on the pick: {'; '.join(said)}.")
    if target["data_hash"] == (document["known"] or {}).get("data_hash", ""):
        notes.append("The target is the labelled images themselves: ID accuracy is the accuracy here.")
    if document["performance"] is None:
        notes.append("The images have no labels: the cost of picking by a metric is not known.")
    elif len(models) > 2:
        notes.append(chance_note(len(models), "models"))
    return [*notes, *target["notes"], *missing_note(document)]


def chance_note(n: int, what: str) -> str:
    """How large a rank correlation over n models or domains becomes by chance."""
    t = scipy.stats.t.ppf(0.975, n - 2)
    r = rounded(t / math.sqrt(n - 2 + t**2), 2)
    return f"With {n} {what}, unrelated numbers have a rank correlation of −{r} to {r} in 19 of 20 cases."


def missing_note(document: Document) -> list[str]:
    """That models of the zoo are not among those ranked; nothing where all are."""
    text = missing_text(document["missing"], len(document["models"]))
    return [f"{text}."] if text else []


# ----------------------------------------------------------------------------------------------- the page


def rows_table(rows: Sequence[Document], caption: str) -> Table:
    """A column per key: numbers flush right with three digits, nothing where there is none."""
    numeric = {key for row in rows for key, value in row.items() if isinstance(value, int | float)}
    cells = [
        [number(value, 3) if isinstance(value, int | float) else value or "" for value in row.values()]
        for row in rows
    ]
    heads = [Column(name=key, numeric=key in numeric, sort=True) for key in rows[0]]
    return Table(columns=heads, rows=cells, caption=caption, tall=True)


def ranking_page(document: Document) -> Page:
    """Everything that is shown of a ranking.

    Args:
        document: What `Ranking.to_dict` gave.
    """
    target, truth, n = document["target"], document["performance"], len(document["models"])
    labels = "which have no labels" if truth is None else "whose labels are used only to check the order"
    draws = document["provenance"]["settings"]["draws"]
    parts = {
        "Models by metrics": [_models(document)],
        "What picking by each metric is worth": [_worth(document)],
        "Where in the network": _network(document),
    }
    if leading(document) is not None or truth is not None:
        caption = "Models, predicted best on top. Models whose intervals overlap may be equally good."
        draw = partial(plot_forest, document)
        parts["Models by metrics"] += [Figure(draw=draw, label=caption, caption=caption, name="forest")]
    images = {"target": target, "own domain": document["known"]}
    return Page(
        kind="ranking",
        title=f"Which of {n} models to deploy on {target['domain'] or target['name']}",
        verdict=verdict(document),
        caveats=caveats(document),
        lede=f"Metrics were computed on {number(target['n'])} images, {labels}. Images were resampled "
        f"{draws:,} times (Poisson bootstrap), alike for every model; models and the means that ablated "
        "edges carry were not.",
        sections=[Section(title=title, blocks=each) for title, each in parts.items() if each],
        facts=[("result", code(document["id"])), *((key, _images(of)) for key, of in images.items() if of)],
        records=[folded("Provenance", document["provenance"])],
        style="rank",
    )


def _images(data: Document) -> Text:
    name = " ".join(dict.fromkeys(each for each in (data["name"], data["domain"]) if each))
    return f"{number(data['n'])} images of {name} ", code((data["data_hash"] or "")[:16])


def _models(document: Document) -> Block:
    shown = list(document["metrics"])
    if document["performance"] is not None:
        shown.insert(0, {"name": MEASURES[document["measure"]], "rows": document["performance"]})
    return Table(
        columns=headings("model") + headings(*(each["name"] for each in shown), numeric=True),
        rows=[
            [document["models"][place]["name"], *(_cell(each["rows"][place]) for each in shown)]
            for place in order(document)
        ],
        caption="Value, rank (#1, bold: predicted best) and 95 % interval over resampled images. A metric "
        "whose source gives no direction has no ranks.",
        style="rank-table",
        tall=len(document["models"]) > TALL,
    )


def _cell(row: Document) -> Cell:
    """A value, bold where it ranks first, with its rank and its interval; the reason where one is missing."""
    low, high, rank = row["low"], row["high"], row["rank"]
    reason = "" if None not in (row["value"], low) else str(row["reason"] or "").replace("_", " ")
    if row["value"] is None:
        return Cell(text="undefined", style="quiet", title=reason)
    shown, between = estimate(row["value"], low, high)
    value: Text = bold(shown) if rank == 1 else shown
    place = value if rank is None else (value, " ", Span(f"#{rank:g}", "place"))
    return Cell(text=place, below=between or "no interval", title=reason)


def _worth(document: Document) -> Block:
    """What picking by each metric is worth; the metrics that are absent below."""
    metrics, rows, labelled = document["metrics"], [], document["performance"] is not None
    caption = "Best in: share of the resamples of these images in which the pick is first by that metric."
    named = ["best in", *(["expected regret", "regret here", "R²", "rank corr.", "Kendall"] * labelled)]
    if labelled:
        blind = next((each["regret"]["random"] for each in metrics if each["regret"]), None)
        measure = MEASURES[document["measure"]]
        caption += f" Regret: {measure} of the best model minus that of the pick, here and expected over "
        caption += f"resamples (a blind pick: {fixed(blind, 3)}). Correlations: over models."
    for each in metrics:
        places, regret, together = picked(each), each["regret"] or {}, each["correlation"] or {}
        chance = each["rows"][places[0]]["chance"] if len(places) == 1 else None
        ends = regret.get("interval") or {"low": None, "high": None}
        row: list[Cell | Text] = [
            Cell(text=bold(each["name"]), below=each["summary"]),
            _names(document, places) if places else "none: its source does not give a direction",
            "" if chance is None else percent(chance),
            Cell(text=fixed(regret.get("expected"), 3), below=interval(ends["low"], ends["high"], 3)),
            fixed(regret.get("observed"), 3),
            *(fixed(together.get(name), 2) for name in CORRELATIONS),
        ]
        rows.append(row[: 2 + len(named)])
    for each in document["absent"]:
        reason = Cell(text=f"absent: {each['reason']}", style="quiet", span=1 + len(named))
        rows.append([bold(each["name"]), reason])
    heads = headings("metric", "picks") + headings(*named, numeric=True)
    return Table(columns=heads, rows=rows, caption=caption, style="rank-worth")


def fixed(value: float | None, digits: int) -> str:
    """So many decimals, nothing where undefined: for columns."""
    return "" if value is None else rounded(value, digits)


def _network(document: Document) -> list[Block]:
    """The motif, and the dependencies of the best and the worst model."""
    motif, blocks = document["motif"] or {}, list[Block]()
    if motif.get("reason"):
        blocks.append(Note(text=f"No motif: {motif['reason']}.", style="quiet"))
    elif motif:
        caption = (
            "Generalization motif: correlation of each dependency between layers with the direction that "
            "predicts performance. Blue: models that depend on it more perform better; vermilion: worse. "
            f"{motif['n']} models, {np.sum(motif['used'])} cells: no more models than cells fit exactly."
        )
        blocks.append(layers_figure("motif", caption, motif["values"]))
    for place, each in zip(("first", "last"), document["dependency"] or (), strict=False):
        caption = f"Dependencies between layers of {each['name']}, ranked {place}."
        blocks.append(layers_figure(place, caption, each["values"]))
    return blocks


def comparison_page(document: Document) -> Page:
    """What is shown of several rankings side by side; their own pages follow.

    Args:
        document: What `comparison_document` gave.
    """
    metrics, rankings = document["metrics"], document["rankings"]
    names = {key: metric.name for key, metric in METRICS.items()}
    rows = [{**each, "metric": names.get(each["metric"], each["metric"])} for each in metrics]
    regrets = {row["metric"]: fixed(row["regret"], 3) for row in rows if row["regret"] is not None}
    verdict = "No target has labels, so metrics cannot be compared."
    if regrets:
        blind = regrets.pop(BLIND)
        best = [name for name, regret in regrets.items() if regret == min(regrets.values(), key=float)]
        verdict = f"Picking by {listed(best)} loses least: its expected regret is {regrets[best[0]]}, "
        verdict += f"that of a {BLIND} {blind}."
    table = rows_table(
        rows,
        "Regret: expected regret. Average: mean size of the correlations; sem: its standard error over data "
        "sets, which describes spread, not confidence: cells share models and images. On the right, signed "
        "correlations over models of each data set, averaged over its targets; that of sharpness should be "
        "negative.",
    )
    return Page(
        kind="comparison of rankings",
        title=f"Metrics over {len(rankings)} targets",
        verdict=verdict,
        caveats=[f"{each['target']['domain']}: {note}" for each in rankings for note in missing_note(each)],
        sections=[Section(title="What picking by each metric costs", blocks=[table])],
        facts=[("result", code(document["id"]))],
        records=[folded("Provenance", document["provenance"])],
        style="rank",
    )


for _kind, _noun, _make in (
    ("ranking", "ranking", ranking_page),
    ("ranking-comparison", "comparison of rankings", comparison_page),
):
    PAGES.add(_kind, PageForm(noun=_noun, schema=f"assay-{_kind}/1", again="`assay rank`", make=_make))


# ---------------------------------------------------------------------------------------------- pictures


def layers_figure(name: str, caption: str, values: Any) -> Figure:
    """A matrix of layers by layers on a page."""
    return Figure(draw=partial(plot_matrix, layer_matrix(values)), label=caption, caption=caption, name=name)


def plot_ranking(ranking: "Ranking", ax: "Axes | None" = None) -> "Axes":
    """Draw the leading metric with intervals, or performance where no metric leads.

    Raises:
        InputError: If no metric puts the models in order and their performance is not known.
    """
    return plot_forest(ranking.to_dict(), ax)


def plot_motif(motif: "Motif", ax: "Axes | None" = None) -> "Axes":
    """Draw the loadings of a motif, layers by layers."""
    return plot_matrix(layer_matrix(np.asarray(motif.loadings)), ax)


def layer_matrix(values: Sequence[Sequence[float | None]] | np.ndarray) -> Matrix:
    """A motif or a dependency, layers by layers, without the first column and last row, which hold nothing.

    Cells that no edge joins are NaN: below the diagonal, and a layer with itself but for heads to their MLP.
    """
    table = np.array(values, dtype=float)
    rows, targets = np.indices(table.shape)
    table[(targets < rows) | ((targets == rows) & (table == 0))] = math.nan
    layers = ("input", *(f"block {layer}" for layer in range(len(table) - 2)), "logits")
    names = {"row_title": "source layer", "column_title": "target layer"}
    return Matrix(rows=layers[:-1], columns=layers[1:], values=table[:-1, 1:], **names)


def plot_forest(document: Document, ax: "Axes | None" = None) -> "Axes":
    """Draw the leading metric with its intervals, or performance where none leads; predicted best on top."""
    places, shown = order(document), leading(document)
    if shown is None:
        shown = {"name": MEASURES[document["measure"]], "rows": document["performance"]}
    if shown["rows"] is None:
        raise InputError("none of the metrics orders these models, and their performance is not known")
    ax = axes_of(ax, 7.3, min(0.9 + 0.3 * len(places), 14))
    rows = [shown["rows"][place] for place in places]
    values, low, high = (np.array([row[key] for row in rows], float) for key in ("value", "low", "high"))
    ax.hlines(range(len(places)), low, high, color=SUPPORTS, linewidth=2.0, alpha=0.55)
    ax.plot(values, range(len(places)), "o", color=INK, markersize=4.5)
    names = [document["models"][place]["name"] if len(places) <= LABELLED else "" for place in places]
    ax.set_yticks(range(len(places)), names)
    ax.set(ylim=(len(places) - 0.5, -0.5), xlabel=shown["name"])
    return ax

"""A ranking as a page: models by metrics, what picking by each is worth, the motif."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from assay.analyses.generalization.picking import CORRELATIONS
from assay.analyses.generalization.ranking_plots import (
    MEASURES,
    layer_matrix,
    leading,
    order,
    picked,
    plot_forest,
    plot_scatter,
)
from assay.page.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Note,
    Page,
    Row,
    Section,
    Table,
    columns,
    folded_record,
)
from assay.page.form import PAGES, PageForm
from assay.page.matrix import plot_matrix
from assay.page.text import (
    MINUS,
    NARROW,
    Span,
    Text,
    bold,
    code,
    estimate,
    listed,
    number,
    percent,
    quiet,
)
from assay.zoo.archive import missing_text


Document = Mapping[str, Any]
FEW_MODELS = 12  # below that, correlations over models are anecdotes
FEW_IMAGES = 100
ONE_CLASS = 0.9  # share of the images in one class from which a model says little
COLLAPSED = 2.0  # RankMe below which the features lie on a line
TALL = 24  # models of a table that is not scrolled


# --------------------------------------------------------------------------------------------- sentences


def _names(document: Document, places: Sequence[int], most: int = 2) -> str:
    """Names of models, of many only how many."""
    names = [document["models"][place]["name"] for place in places]
    return listed(names if len(names) <= most else [names[0], f"{len(names) - 1} others"])


def verdict(document: Document) -> str:
    """Which model the metrics pick, led by accuracy on labelled images where those were given."""
    ranking = [each for each in document["metrics"] if picked(each)]
    if not ranking:
        return "None of the metrics orders these models."
    lead = next((each for each in ranking if each["key"] == "id-accuracy"), ranking[0])
    places = picked(lead)
    row, pick = lead["rows"][places[0]], _names(document, places)
    start = f"{lead['name']} picks {pick}"
    if lead["key"] == "id-accuracy":
        known = document["known"]
        start = (
            f"On {number(known['n'])} labelled images of {known['domain'] or known['name']}, {pick} "
            f"{'has' if len(places) == 1 else 'have'} the highest {MEASURES[document['measure']]}, "
            f"{number(row['value'])}"
        )
    if row["chance"] is not None and len(places) == 1:
        start += f" (best in {percent(row['chance'])} of resamples of these images)"
    others = [each for each in ranking if each is not lead]
    agreeing = [each["name"] for each in others if set(picked(each)) & set(places)]
    if others:
        agree = "pick among them" if len(places) > 1 else "agree" if len(agreeing) > 1 else "agrees"
        start += f"; {listed(agreeing)} {agree}" if agreeing else "; no other metric agrees"
    truth = document["performance"]
    if truth is None or len(places) > 1:
        return f"{start}."
    best = max(range(len(truth)), key=lambda place: truth[place]["value"])
    own, highest, measure = truth[places[0]]["value"], truth[best]["value"], MEASURES[document["measure"]]
    if highest == own:
        return f"{start}. It has the highest {measure} on the target, {number(own)}."
    return (
        f"{start}. Its {measure} on the target is {number(own)}; the highest is {number(highest)}, of "
        f"{document['models'][best]['name']}."
    )


def caveats(document: Document) -> list[str]:
    """What to mind before the table is believed, the worst first."""
    return [*_warnings(document), *_remarks(document)]


def _warnings(document: Document) -> list[str]:
    """Models that have failed, estimates that say nothing, and metrics that contradict each other."""
    notes, metrics = [], {each["key"]: each for each in document["metrics"]}

    def where(key: str, fails: Any) -> list[int]:
        rows = metrics[key]["rows"] if key in metrics else []
        return [place for place, row in enumerate(rows) if row["value"] is not None and fails(row["value"])]

    one = [place for place, each in enumerate(document["models"]) if each["top_share"] > ONE_CLASS]
    if one:
        first = document["models"][one[0]]
        notes.append(
            f"{_names(document, one)} {'give' if len(one) > 1 else 'gives'} one class to more than "
            f"{percent(ONE_CLASS)} of the images ({first['top_class']}: {percent(first['top_share'])})."
        )
    if places := where("rankme", lambda value: value < COLLAPSED):
        notes.append(f"The features of {_names(document, places)} have collapsed (RankMe below 2).")
    notes += [
        f"{metrics[key]['name']} of {_names(document, places)} is 0 or 1, which is no estimate."
        for key in ("atc", "doc")
        if (places := where(key, lambda value: value in (0, 1)))
    ]
    picks: dict[str, list[str]] = {}
    for each in document["metrics"]:
        if places := picked(each):
            picks.setdefault(_names(document, places), []).append(each["name"])
    if len(picks) > 1:
        text = "; ".join(
            f"{listed(names)} {'pick' if len(names) > 1 else 'picks'} {pick}" for pick, names in picks.items()
        )
        notes.append(f"Metrics disagree on the pick: {text}.")
    return notes


def _remarks(document: Document) -> list[str]:
    models = document["models"]
    notes = missing_note(document)
    copies = [each["name"] for each in models if "copy_of" in each]
    n_distinct = len(models) - len(copies)
    if copies:
        notes.append(
            f"{len(copies)} of the {len(models)} models are copies, which show the same as an earlier one "
            f"({', '.join(copies[:3])}{', ...' if len(copies) > 3 else ''}): correlations are over "
            f"{n_distinct} models."
        )
    if document["performance"] is None:
        notes.append("The images have no labels: the cost of picking by a metric is not known.")
    elif n_distinct < FEW_MODELS:
        notes.append(f"With only {n_distinct} models, correlations are uncertain; note their intervals.")
    depths = sorted({each["blocks"] for each in models if each.get("blocks")})
    if len(depths) > 1:
        notes.append(
            f"Models have {depths[0]} to {depths[-1]} blocks. Depth biases compare the first and the last "
            f"{percent(document['ratio'])} of the blocks of each model, and the motif compares layers at the "
            "same share of the depth; sums of scores and single layers are not compared."
        )
    if (n := document["target"]["n"]) < FEW_IMAGES:
        notes.append(f"With {n} images, differences between models may be due to the choice of images.")
    return notes


def missing_note(document: Document) -> list[str]:
    """That models of the zoo are not among those ranked; nothing where all are."""
    text = missing_text(document.get("missing") or {}, len(document["models"]))
    return [f"{text}."] if text else []


# ----------------------------------------------------------------------------------------------- the page


def ranking_page(document: Document) -> Page:
    """Everything that is shown of a ranking.

    Args:
        document: What `Ranking.to_dict` gave.
    """
    target, labelled = document["target"], document["performance"] is not None
    domain = target.get("domain") or target.get("name") or "the target"
    labels = "whose labels are used only to check the order" if labelled else "which have no labels"
    sections = [
        Section(title="Models by metrics", blocks=_models(document)),
        Section(title="What picking by each metric is worth", blocks=_worth(document)),
        Section(title="Where in the network", blocks=_network(document)),
        Section(title="What it cost", blocks=_cost(document)),
    ]
    return Page(
        kind="ranking",
        title=f"Which of {len(document['models'])} models to deploy on {domain}",
        verdict=verdict(document),
        caveats=caveats(document),
        lede=f"Models are ordered by metrics computed on {number(target['n'])} images of the target, "
        f"{labels}. {document['resampled']}",
        sections=[section for section in sections if section.blocks],
        facts=[
            ("result", code(document["id"])),
            ("target", _data_text(target)),
            *([("own domain", _data_text(document["known"]))] if document.get("known") else []),
        ],
        records=[folded_record("Provenance", document["provenance"])],
        style="rank",
    )


def _data_text(data: Document) -> Text:
    """Images as the foot of a page names them: name and domain, once where they are the same, and hash."""
    name = " ".join(dict.fromkeys(each for each in (data["name"], data["domain"]) if each))
    return (f"{name} ", quiet("hash of the data"), " ", code((data.get("data_hash") or "")[:16]))


def _models(document: Document) -> list[Block]:
    """Models by metrics, predicted best first by the leading metric."""
    truth, known, metrics = document["performance"], document.get("known"), document["metrics"]
    level = f"{round(100 * document['level'])}{NARROW}%"
    names = [] if truth is None else [MEASURES[document["measure"]]]
    heads = [
        *columns("model"),
        *columns(*names, numeric=True),
        *(Column(name=each["name"], numeric=True, arrow=arrow(each)) for each in metrics),
    ]
    lists = [*([] if truth is None else [truth]), *(each["rows"] for each in metrics)]
    caption = (
        f"Value, rank among the models (#1, bold: first) and {level} interval over resampled images. Arrows "
        "point towards better models. A metric without an arrow ranks nothing, because its source does not "
        "give the direction."
    )
    if known:
        caption += (
            " Metrics that learn from labelled images of the models’ own domain use "
            f"{number(known['n'])} images of {known['domain'] or known['name']}."
        )
    table = Table(
        columns=heads,
        rows=[
            [document["models"][place]["name"], *(_cell(rows[place]) for rows in lists)]
            for place in order(document)
        ],
        caption=caption,
        style="rank-table",
        tall=len(document["models"]) > TALL,
    )
    if leading(document) is None and truth is None:
        return [table]
    forest = Figure(
        draw=partial(plot_forest, document),
        label="Models with intervals; the numbers are in the table.",
        caption=f"The models, predicted best on top, with {level} intervals. Where intervals overlap, "
        "these images may not distinguish the models.",
        name="forest",
    )
    return [table, forest]


def _cell(row: Document) -> Cell:
    """A value, bold where it ranks first, with its rank and its interval; the reason where one is missing."""
    low, high, rank = row["low"], row["high"], row["rank"]
    reason = "" if None not in (row["value"], low) else str(row["reason"] or "").replace("_", " ")
    if row["value"] is None:
        return Cell(text=quiet("undefined"), title=reason)
    shown, between = estimate(row["value"], low, high)
    value: Text = bold(shown) if rank == 1 else shown
    return Cell(
        text=value if rank is None else (value, " ", Span(f"#{rank:g}", "place")),
        below=between or "no interval",
        title=reason,
    )


def arrow(metric: Document) -> str:
    """Which way a metric is read: up, down, towards a value, or not at all."""
    if metric["best_at"] is not None:
        return f"\N{RIGHTWARDS ARROW}{metric['best_at']:g}"
    return {1: "\N{UPWARDS ARROW}", -1: "\N{DOWNWARDS ARROW}", 0: ""}[metric["direction"]]


def _worth(document: Document) -> list[Block]:
    """What picking by each metric is worth; the metrics that are absent below."""
    metrics, labelled = document["metrics"], document["performance"] is not None
    named = ["best in"]
    if labelled:
        named += ["expected regret", "regret here", "R²", "rank corr.", "Kendall"]
    caption = (
        "Best in: share of the resamples of these images in which the picked model is first by that metric."
    )
    if labelled:
        regrets = (metric["regret"]["random"] for metric in metrics if metric["regret"])
        caption += (
            f" Expected regret: {MEASURES[document['measure']]} of the best model minus that of the pick, "
            "averaged over the resamples. The maximum over resamples favours the best model slightly, so "
            f"compare with a blind pick ({fixed(next(regrets, None), 3)}), not with 0. Correlations are "
            f"over {number(len(document['models']))} models; their intervals resample models and images."
        )
    else:
        caption += " Without labels the regret of a pick is unknown."
    absent = [
        Row(
            cells=[
                bold(each["name"]),
                Cell(text=f"absent: {each['reason']}", style="quiet", span=1 + len(named)),
            ],
            style="inconclusive",
        )
        for each in document["absent"]
    ]
    table = Table(
        columns=columns("metric", "picks") + columns(*named, numeric=True),
        rows=[*(_worth_row(document, each) for each in metrics), *absent],
        caption=caption,
        style="rank-worth",
    )
    if not (labelled and metrics):
        return [table]
    scatter = Figure(
        draw=partial(plot_scatter, document),
        label="Each metric against true performance; the correlations are in the table.",
        caption=f"Each metric against true {MEASURES[document['measure']]}, a point per model, lines are "
        "intervals.",
        name="scatter",
    )
    return [table, scatter]


def _worth_row(document: Document, metric: Document) -> list[Cell | Text]:
    places = picked(metric)
    chance = metric["rows"][places[0]]["chance"] if len(places) == 1 else None
    cells: list[Cell | Text] = [
        Cell(text=bold(metric["name"]), below=metric["summary"]),
        _names(document, places) if places else "none: its source does not give a direction",
        "" if chance is None else Cell(text=percent(chance), below="of resamples of these images"),
    ]
    if document["performance"] is not None:
        regret, together = metric["regret"] or {}, metric["correlation"] or {}
        cells += [_estimate(regret, "expected", 3), fixed(regret.get("observed"), 3)]
        cells += [_estimate(together.get(name) or {}, "value", 2) for name in CORRELATIONS]
    return cells


def _estimate(record: Document, key: str, digits: int) -> Cell:
    """A number above its interval."""
    ends = [(record.get("interval") or {}).get(end) for end in ("low", "high")]
    below = "" if ends[0] is None else f"[{', '.join(fixed(end, digits) for end in ends)}]"
    return Cell(text=fixed(record.get(key), digits), below=below)


def fixed(value: float | None, digits: int) -> str:
    """So many decimals whatever the size, and no minus before zero: for columns of shares."""
    if value is None:
        return ""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", MINUS)


def _network(document: Document) -> list[Block]:
    """The motif, the dependencies of the best and the worst model, the depth bias over ratios."""
    motif, layers = document["motif"] or {}, document["layers"]
    blocks = no_motif("motif", motif)
    if motif.get("values") is not None:
        exact = motif["n"] <= sum(map(sum, motif["used"]))
        fit = ", no more than there are cells: the fit is exact, so interpret the pattern, not single cells"
        caption = (
            "Generalization motif: correlation of each dependency between layers with the direction that "
            "predicts performance. Blue: models that depend on it more perform better; vermilion: worse. "
            f"{motif['n']} models{fit if exact else ''}."
        )
        picture = partial(plot_matrix, layer_matrix(motif["values"], layers))
        label = "The generalization motif."
        blocks.append(Figure(draw=picture, label=label, caption=caption, name="motif", beside=True))
    pictures: list[Block] = [
        Figure(
            draw=partial(plot_matrix, layer_matrix(each["values"], each["layers"])),
            label=f"Dependencies between layers of {each['name']}.",
            caption=(
                bold(each["name"]),
                f", ranked {'last' if place else 'first'}: sum of the magnitudes of all edges from layer to "
                "layer.",
            ),
            name=f"m{place}",
            kind="",
        )
        for place, each in enumerate(document.get("dependency") or ())
    ]
    if pictures:
        blocks.append(Section(blocks=pictures, style="pair"))
    if blocks and document["ratios"]:
        blocks.append(_ratios(document))
    return blocks


def no_motif(what: str, motif: Document) -> list[Block]:
    """Why there is no motif; nothing where none was asked for."""
    return [Note(text=f"No {what}: {motif['reason']}.", style="quiet")] if motif.get("reason") else []


def _ratios(document: Document) -> Table:
    """Correlations of the depth bias with performance over the share of blocks that count as deep."""
    ratios = [each["ratio"] for each in next(iter(document["ratios"].values()))]
    names = {"r2": "R²", "srcc": "rank correlation", "krcc": "Kendall"}
    return Table(
        columns=columns("metric", "correlation at ratio")
        + columns(*(f"{ratio:g}" for ratio in ratios), numeric=True),
        rows=[
            [f"DDB {targets}", name, *(fixed(each[key], 2) for each in values)]
            for targets, values in document["ratios"].items()
            for key, name in names.items()
        ],
        caption="How the share of blocks counted as deep and as shallow changes what the depth bias "
        f"predicts; the ranking uses {number(document['ratio'])}.",
        style="gate-table",
    )


def _cost(document: Document) -> list[Block]:
    """Seconds and passes of each stage, the most expensive first."""
    costs = document["costs"]
    if not costs:
        return []
    table = Table(
        columns=columns("stage") + columns("seconds", "passes per image", numeric=True),
        rows=[
            [
                name,
                number(costs[name]["seconds"], 3),
                ", ".join(f"{count:g} {kind}" for kind, count in costs[name]["passes"].items() if count),
            ]
            for name in sorted(costs, key=lambda name: -costs[name]["seconds"])
        ],
        caption="Time of each stage over all models and images when it ran; results of an earlier call were "
        "reused.",
    )
    return [table]


PAGES.add(
    "ranking",
    PageForm(noun="ranking", schema="assay-ranking/1", again="`assay rank`", make=ranking_page),
)

"""A ranking as a page: the table of models by metrics, what picking by each is worth, the motif, the cost."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from assay.analyses.generalization import rank_plots as plots
from assay.analyses.generalization import rank_words as words
from assay.page.blocks import (
    Block,
    Cell,
    Column,
    Details,
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
    NARROW,
    Span,
    Text,
    bold,
    code,
    estimate,
    number,
    percent,
    quiet,
)


TALL = 24  # models of a table that is not scrolled
Document = Mapping[str, Any]


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
        verdict=words.verdict(document),
        caveats=words.caveats(document),
        lede=f"Models are ordered by metrics computed on {number(target['n'])} images of the target, "
        f"{labels}. {document['resampled']}",
        sections=[section for section in sections if section.blocks],
        facts=[
            ("result", code(document["id"])),
            ("target", words.data_text(target)),
            *([("own domain", words.data_text(document["known"]))] if document.get("known") else []),
        ],
        records=[provenance(document)],
        style="rank",
    )


def provenance(document: Document) -> Details:
    """How a result came to be, folded away."""
    return folded_record("Provenance", document["provenance"])


# ------------------------------------------------------------------------------------------------ models


def _models(document: Document) -> list[Block]:
    level = f"{round(100 * document['level'])}{NARROW}%"
    blocks: list[Block] = [_models_table(document, level)]
    if words.leading(document) is not None or document["performance"] is not None:
        forest = Figure(
            draw=partial(plots.plot_forest, document),
            label="Models with intervals; the numbers are in the table.",
            caption=f"The models, predicted best on top, with {level} intervals. Where intervals overlap, "
            "these images may not distinguish the models.",
            name="forest",
        )
        blocks.append(forest)
    return blocks


def _models_table(document: Document, level: str) -> Table:
    """Models by metrics, predicted best first by the leading metric."""
    truth, known = document["performance"], document.get("known")
    metrics = document["metrics"]
    heads = columns("model") + columns(
        *([] if truth is None else [words.measure_name(document)]), numeric=True
    )
    heads += [Column(name=each["name"], numeric=True, arrow=words.arrow(each)) for each in metrics]
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
    return Table(
        columns=heads,
        rows=[
            [document["models"][place]["name"], *(_cell(rows[place]) for rows in lists)]
            for place in words.order(document)
        ],
        caption=caption,
        style="rank-table",
        tall=len(document["models"]) > TALL,
    )


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


# ------------------------------------------------------------------------------------------------- worth


def _worth(document: Document) -> list[Block]:
    blocks: list[Block] = [_worth_table(document)]
    if document["performance"] is not None and document["metrics"]:
        scatter = Figure(
            draw=partial(plots.plot_scatter, document),
            label="Each metric against true performance; the correlations are in the table.",
            caption=f"Each metric against true {words.measure_name(document)}, a point per model, lines are "
            "intervals.",
            name="scatter",
        )
        blocks.append(scatter)
    return blocks


def _worth_table(document: Document) -> Table:
    """What picking by each metric is worth; the metrics that are absent below."""
    metrics, labelled = document["metrics"], document["performance"] is not None
    named = ["best by it"]
    if labelled:
        named += ["expected regret", "regret here", "R²", "rank corr.", "Kendall"]
    caption = "Best by it: share of the resamples in which the picked model is first by that metric."
    if labelled:
        caption += (
            f" Expected regret: {words.measure_name(document)} of the best model minus that of the pick, "
            "averaged over the resamples. The maximum over resamples favours the best model slightly, so "
            f"compare with a blind pick ({words.blind(document)}), not with 0. Correlations are over "
            f"{number(len(document['models']))} models; their intervals resample models and images."
        )
    else:
        caption += " Without labels the regret of a pick is unknown."
    return Table(
        columns=columns("metric", "picks") + columns(*named, numeric=True),
        rows=[
            *(_worth_row(document, each) for each in metrics),
            *(
                Row(
                    cells=[
                        bold(each["name"]),
                        Cell(text=f"absent: {each['reason']}", style="quiet", span=1 + len(named)),
                    ],
                    style="inconclusive",
                )
                for each in document["absent"]
            ),
        ],
        caption=caption,
        style="rank-worth",
    )


def _worth_row(document: Document, metric: Document) -> list[Cell | Text]:
    places = words.picked(metric)
    chance = metric["rows"][places[0]]["chance"] if len(places) == 1 else None
    cells: list[Cell | Text] = [
        Cell(text=bold(metric["name"]), below=metric["summary"]),
        words.picks(document, places) or "none: its source does not give a direction",
        "" if chance is None else percent(chance),
    ]
    if document["performance"] is not None:
        regret, together = metric["regret"] or {}, metric["correlation"] or {}
        cells += [_estimate(regret, "expected", 3), words.fixed(regret.get("observed"), 3)]
        cells += [_estimate(together.get(name) or {}, "value", 2) for name in words.CORRELATIONS]
    return cells


def _estimate(record: Document, key: str, digits: int) -> Cell:
    """A number above its interval."""
    ends = [(record.get("interval") or {}).get(end) for end in ("low", "high")]
    below = "" if ends[0] is None else f"[{', '.join(words.fixed(end, digits) for end in ends)}]"
    return Cell(text=words.fixed(record.get(key), digits), below=below)


# ----------------------------------------------------------------------------------------------- network


def _network(document: Document) -> list[Block]:
    """The motif, the dependencies of the best and the worst model, the depth bias over ratios."""
    layers = document["layers"]
    blocks: list[Block] = _motif(document["motif"] or {}, layers)
    pictures = [
        matrix_figure(
            f"m{place}",
            each["values"],
            each.get("layers", layers),
            f"Dependencies between layers of {each['name']}.",
            (
                bold(each["name"]),
                f", ranked {'last' if place else 'first'}: sum of the magnitudes of all edges from layer to "
                "layer.",
            ),
            kind="",
        )
        for place, each in enumerate(document.get("dependency") or ())
    ]
    if pictures:
        blocks.append(Section(blocks=pictures, style="pair"))
    if blocks and document["ratios"]:
        blocks.append(_ratios(document))
    return blocks


def _motif(motif: Document, layers: Sequence[str]) -> list[Block]:
    if motif.get("values") is None:
        return no_motif("motif", motif.get("reason"))
    exact = motif["n"] <= sum(map(sum, motif["used"]))
    fit = ", no more than there are cells: the fit is exact, so interpret the pattern, not single cells"
    caption = (
        "Generalization motif: correlation of each dependency between layers with the direction that "
        "predicts performance. Blue: models that depend on it more perform better; vermilion: worse. "
        f"{motif['n']} models{fit if exact else ''}."
    )
    return [
        matrix_figure("motif", motif["values"], layers, "The generalization motif.", caption, beside=True)
    ]


def no_motif(what: str, reason: str | None) -> list[Block]:
    """Why there is no motif; nothing where none was asked for."""
    return [Note(text=f"No {what}: {reason}.", style="quiet")] if reason else []


def matrix_figure(
    name: str, values: Any, layers: Sequence[str], label: str, caption: Text, **options: Any
) -> Figure:
    """A matrix of layers by layers."""
    draw = partial(plot_matrix, plots.layer_matrix(values, layers))
    return Figure(draw=draw, label=label, caption=caption, name=name, **options)


def _ratios(document: Document) -> Table:
    """Correlations of the depth bias with performance over the share of blocks that count as deep."""
    ratios = [each["ratio"] for each in next(iter(document["ratios"].values()))]
    names = {"r2": "R²", "srcc": "rank correlation", "krcc": "Kendall"}
    return Table(
        columns=columns("metric", "correlation at ratio")
        + columns(*(f"{ratio:g}" for ratio in ratios), numeric=True),
        rows=[
            [f"DDB {targets}", name, *(words.fixed(each[key], 2) for each in values)]
            for targets, values in document["ratios"].items()
            for key, name in names.items()
        ],
        caption="How the share of blocks counted as deep and as shallow changes what the depth bias "
        f"predicts; the ranking uses {number(document['ratio'])}.",
        style="gate-table",
    )


def _cost(document: Document) -> list[Block]:
    if not document["costs"]:
        return []
    return [
        Figure(
            draw=partial(plots.plot_cost, document["costs"]),
            label="Seconds of each stage.",
            caption="Time of each stage when it ran; results kept from an earlier call were reused.",
            name="cost",
        )
    ]


PAGES.add(
    "ranking",
    PageForm(noun="ranking", schema="assay-ranking/1", again="`assay rank`", make=ranking_page),
)

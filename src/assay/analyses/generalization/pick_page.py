"""A stable pick as a page: which model, after how many images, who was dropped when and by whom."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from assay.analyses.generalization import rank_plots as plots
from assay.analyses.generalization.rank_words import data_text, missing_note
from assay.page.blocks import Cell, Figure, Page, Section, Table, columns, folded_record
from assay.page.form import PAGES, PageForm
from assay.page.text import (
    NARROW,
    Text,
    bold,
    code,
    estimate,
    number,
    percent,
    plural,
    quiet,
)


Document = Mapping[str, Any]


def verdict(document: Document) -> str:
    """The pick, the images it took, and how sure it is."""
    name, n, images = document["pick"], number(document["n"]), number(document["images"])
    metric, sure = document["metric"]["name"], percent(1 - document["error"])
    if document["decided"]:
        return (
            f"{metric} picks {name} after {n} of {images} images: no other model can be the best by it, with "
            f"probability of at least {sure}."
        )
    left = len(document["remaining"])
    return (
        f"Undecided after {n} of {images} images (all were used): {left} of {len(document['names'])} models "
        f"may be the best by {metric}. {name} leads, and is first in {percent(document['chance'])} of the "
        "resamples."
    )


def stable_pick_page(document: Document) -> Page:
    """Everything that is shown of a stable pick.

    Args:
        document: What `StablePick.to_dict` gave.
    """
    target = document["target"]
    domain = target.get("domain") or target.get("name") or "the target"
    figure = Figure(
        draw=partial(plots.plot_pick_document, document),
        label="The metric of each model over the number of images; the numbers are in the table.",
        caption=f"{document['metric']['name']} of each model at each look with 95{NARROW}% "
        "intervals, until it was dropped. The pick is drawn thick.",
        name="looks",
    )
    return Page(
        kind="stable pick",
        title=f"Which of {len(document['names'])} models to deploy on {domain}, with as few images as needed",
        verdict=verdict(document),
        caveats=_caveats(document),
        lede="Images come in a random order. At each look all pairs of models are compared on the images so "
        "far by paired bootstrap intervals, and models that another one leads by more than the margin are "
        f"dropped. All looks together drop the best model with probability of at most "
        f"{percent(document['error'])}; “best” is meant by this metric, on ever more such images.",
        sections=[
            Section(title="Models", blocks=[_models(document), figure]),
            Section(title="Looks", blocks=[_looks(document)]),
        ],
        facts=[
            ("result", code(document["id"])),
            ("passes", number(document["passes"])),
            ("target", data_text(target)),
        ],
        records=[
            folded_record("Provenance", document["provenance"]),
        ],
        style="rank",
    )  # fmt: skip


def _caveats(document: Document) -> list[str]:
    notes = missing_note(document, len(document["names"]))
    if document["decided"]:
        return notes
    return [
        *notes,
        "The models that remain are not shown to be equal: more images may still decide between them.",
    ]


def _last(document: Document) -> dict[str, tuple[int, Mapping[str, Any], str | None]]:
    """Per model: the last look it was in (its number of images, its row), and who dropped it."""
    found = {}
    for look in document["looks"]:
        for name, row in look["models"].items():
            found[name] = (look["n"], row, look["dropped"].get(name))
    return found


def _models(document: Document) -> Table:
    """Models, the pick first, then those that stayed longest."""
    last = _last(document)
    order = sorted(
        document["names"],
        key=lambda name: (name != document["pick"], name not in document["remaining"], -last[name][0]),
    )
    rows: list[list[Cell | Text]] = []
    for name in order:
        n, row, by = last[name]
        shown, between = estimate(row["value"], row["low"], row["high"])
        value = Cell(
            text=shown if row["value"] is not None else quiet("undefined"),
            below=between or "no interval",
        )
        state = "dropped" if by else "may still be the best"
        if name == document["pick"]:
            state = "picked" if document["decided"] else "leads"
        rows.append([bold(name) if name == document["pick"] else name, state, number(n), value, by or ""])
    return Table(
        columns=columns("model", "state") + columns("images", document["metric"]["name"], numeric=True)
        + columns("led most surely by"),
        rows=rows,
        caption="The metric on the images of the last look that the model was in, with its "
        f"95{NARROW}% interval. Pairs are compared by intervals of their differences, which may be narrower.",
        style="rank-table",
    )  # fmt: skip


def _looks(document: Document) -> Table:
    return Table(
        columns=columns("images") + columns("models", "dropped", "error", "passes", numeric=True),
        rows=[
            [
                number(look["n"]),
                number(len(look["models"])),
                number(len(look["dropped"])),
                f"{100 * look['error']:.2f}{NARROW}%",
                number(look["passes"]),
            ]
            for look in document["looks"]
        ],
        caption=f"{plural(len(document['looks']), 'look')}. Error: probability that this look drops the best "
        "model, at most, over all pairs. Passes: of one image through one model, forward and backward alike.",
        style="gate-table",
    )


PAGES.add(
    "stable-pick",
    PageForm(
        noun="stable pick",
        schema="assay-stable-pick/1",
        again="`assay rank --until stable`",
        make=stable_pick_page,
    ),
)

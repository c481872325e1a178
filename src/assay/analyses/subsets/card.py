"""The card of a chosen subset: what it is, from which models, whether it is real, licence of the data."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from assay.analyses.subsets import page_words as words
from assay.analyses.subsets.data import ORIGIN
from assay.analyses.subsets.page_tables import prevalence_table
from assay.core.record import library_version
from assay.page.blocks import Table, columns
from assay.page.markdown import markdown_table
from assay.page.text import TEXT_LIMIT, cut_text, number, out_of, record_text


Document = Mapping[str, Any]


def subset_card(document: Document, licence: str | None = None) -> dict[str, Any]:
    """The card as JSON, from what `Subset.document` or `SelectionPath.document` gave.

    Args:
        document: The document.
        licence: Licence of the data, e.g. `CC-BY-4.0` or an address; the data do not tell it.

    Returns:
        The finding as sentences (`title`, `finding`, `reasons` why it is inconclusive, `caveats`, `notes` of
        the verdict), R over the test models on the subset (`test`) and on all examples (`all`), and entries
        of the document. `prevalence` is None where nothing is known of the examples.
    """
    copied = ("id", "size", "data", "verdict", "prevalence", "provenance")
    return {
        "kind": "subset-card",
        "schema": "assay-subset-card/1",
        "library": library_version(),
        "title": words.title(document),
        "finding": words.verdict(document),
        "caveats": words.caveats(document),
        **{name: words.sentences(document, name) for name in ("reasons", "notes")},
        "licence": licence,
        **{name: document[name] for name in copied},
        "split": {name: document["split"][name] for name in ("kind", "seed", "parts")},
        "test": words.headline_row(document)["test"],
        "all": document["full"]["test"],
    }


def card_text(card: Document) -> str:
    """A card as Markdown."""
    parts = [f"# {card['title']}", card["finding"], _fact_table(_facts(card).items())]
    listed = {
        "Why it is inconclusive": card["reasons"],
        "Read before use": [*card["caveats"], *card["notes"]],
    }
    for title, texts in listed.items():
        if texts:
            parts += [f"## {title}", "\n".join(f"- {one_line(each, TEXT_LIMIT)}" for each in texts)]
    if card["prevalence"]:
        parts += ["## What is in it", markdown_table(prevalence_table(card["prevalence"]))]
    use = "assay select evaluate subset.json new.csv --gate 'accuracy >= 0.6'"
    parts += [
        "## Evaluate a model on it",
        f"```console\n$ {use}\n```",
        f"## Provenance\n\n```json\n{record_text(card['provenance']).replace('```', '')}\n```",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _fact_table(rows: Iterable[tuple[str, object]]) -> str:
    """Facts with their names as a table."""
    lines = [[name, one_line(value)] for name, value in rows]
    return markdown_table(Table(columns=columns("fact", "value"), rows=lines))


def one_line(value: object, limit: int = 200) -> str:
    """Text on one line that is not read as markup."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(cut_text(str(value), limit).split()))


def _facts(card: Document) -> dict[str, object]:
    data, split, judged = card["data"], card["split"], card["verdict"] or {}
    source = [str(data["source"][name]) for name in ORIGIN if name in data["source"]]
    units = {"training runs": data["n_groups"], "families": data["n_families"]}
    p = judged.get("p_value")
    return {
        "selection": card["id"],
        "examples": out_of(card["size"], data["n_examples"], "example"),
        "data": ", ".join([*source, f"hash {data['hash']}"]),
        "licence of the data": card["licence"] or "not stated",
        "selected with": f"{number(data['n_models'])} models",
        **{name: "unknown" if n is None else number(n) for name, n in units.items()},
        "split of the models": f"by {split['kind']}, seed {split['seed']}",
        "verdict": judged.get("status", "not judged"),
        "p": "not tested" if p is None else words.p_value(p),
        **{
            f"R on {on}, test models": f"{words.signed(r['r'])} {words.ends(r['low'], r['high'])}"
            for on, r in (("the subset", card["test"]), ("all examples", card["all"]))
        },
        "made with": f"assay {card['library']}",
    }

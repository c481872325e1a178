"""An audit as a page: the circuit, its curve, where it lives, every number."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from assay.report import figures, words
from assay.report.bounds import EDGES_LIMIT, cut_text, record_text
from assay.report.layout import circuit_layout
from assay.report.measurement_page import measurement_rows


SCHEMA = "assay-audit/1"
LISTED_WORDS = 6
EXAMPLES = 12  # prompts shown
PROMPT_LIMIT = 600  # characters of a prompt: what differs is found word by word
Document = Mapping[str, Any]


def audit_view(document: Document, key: str) -> dict[str, Any]:
    """Everything the template of an audit needs.

    Args:
        document: What `assay.audit` made.
        key: Identifier of the article.
    """
    n_edges = len(document["edges"])
    document = {**document, "edges": document["edges"][:EDGES_LIMIT]}
    curve, agreement = figures.curve_data(document), figures.agreement_data(document)
    layers, heads = figures.layer_data(document), figures.head_data(document)
    layout = circuit_layout(document)
    kept = [edge.get("kept", False) for edge in document["edges"]]
    on = {0, len(layout.nodes) - 1}
    for edge, keep in zip(layout.edges, kept, strict=True):
        if keep:
            on |= {edge.source, *edge.feeds}
    return {
        "key": key,
        "title": document["title"],
        "document": document,
        "n_edges_left": n_edges - len(document["edges"]),
        "verdict": words.verdict(document),
        "caveats": words.caveats(document),
        "examples": [_example(example) for example in document["task"].get("examples", [])[:EXAMPLES]],
        "layout": layout,
        "kept": kept,
        "on": on,
        "script_data": {
            "size": document["circuit"]["size"],
            "total": document["graph"]["n_edges"],
            "nodes": [node.name for node in layout.nodes],
            "edges": [[edge.source, list(edge.feeds), edge.target_name, edge.score] for edge in layout.edges],
            "curve": {"n_edges": curve.n_edges, "values": document["curve"]["values"]},
        },
        "curve": curve,
        "agreement": agreement,
        "layers": layers,
        "heads": heads,
        "pictures": {
            name: figures.to_svg(axes, key=f"{key}-{name}", label=f"{label}; the numbers are in the table.")
            for name, axes, label in (
                (
                    "curve",
                    figures.plot_curve(curve),
                    f"Faithfulness against circuit size on {curve.n} prompts",
                ),
                (
                    "agreement",
                    figures.plot_agreement(agreement),
                    f"Top-K agreement of circuit and model on {agreement.n} prompts",
                ),
                ("heads", figures.plot_matrix(heads), "Attribution of each head, signed"),
                (
                    "layers",
                    figures.plot_matrix(layers, percent=True),
                    "Share of all attribution between each writing and reading layer",
                ),
            )
        },
        "rows": [row for measurement in document["measurements"] for row in measurement_rows(measurement)],
        "record": record_text(document["provenance"].get("record", {})),
    }


def _example(example: Document) -> dict[str, Any]:
    clean, corrupted = (cut_text(str(example[side]), PROMPT_LIMIT) for side in ("clean", "corrupted"))
    return {
        "clean": _changed_words(clean, corrupted),
        "corrupted": _changed_words(corrupted, clean),
        "answers": _shortened(example.get("answers", [])),
        "wrong": _shortened(example.get("wrong", [])),
        "margin": example.get("margin"),
    }


def _shortened(found: Sequence[object]) -> list[str]:
    """Words as they are, or the first and the last few of many."""
    listed = [str(word) for word in found]
    if len(listed) <= LISTED_WORDS:
        return listed
    return [*listed[:3], "\N{HORIZONTAL ELLIPSIS}", listed[-1], f"({len(listed)} in all)"]


def _changed_words(text: str, other: str) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it differs from the other prompt."""
    pieces, others = re.findall(r"\s+|\w+|[^\w\s]", text), re.findall(r"\s+|\w+|[^\w\s]", other)
    result = []
    for tag, start, stop, _, _ in difflib.SequenceMatcher(None, pieces, others, autojunk=False).get_opcodes():
        if stop > start:
            result.append(("".join(pieces[start:stop]), tag != "equal"))
    return result

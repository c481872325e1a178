"""Where the edges of a graph are: each everywhere, or span by span; their names, tables and counts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.circuits.spans import Spans
from assay.core.errors import InputError
from assay.graph import Graph


if TYPE_CHECKING:
    import pandas as pd


def edge_slots(graph: Graph, spans: Spans | None = None) -> Bool[Tensor, "*spans n_sources n_targets"]:
    """True where there is an edge; at a span every edge but those into logits that are not read there."""
    if spans is None:
        return graph.valid
    slots = graph.valid.expand(len(spans), -1, -1).clone()
    slots[~spans.read, :, -1] = False
    return slots


def slot_names(graph: Graph, spans: Spans | None, index: Tensor) -> list[str]:
    """Names of edges, `a0.h1->a2.h0.q`, with `@span` where there are spans; `index` as `nonzero` gives it."""
    names = []
    for *span, row, column in index.tolist():
        at = f"@{spans.names[span[0]]}" if spans is not None else ""
        names.append(graph.edge_name(row, column) + at)
    return names


def mask_of(
    graph: Graph, spans: Spans | None, edges: Iterable[str | Sequence[str]]
) -> Bool[Tensor, "*spans n_sources n_targets"]:
    """The mask of named edges (see `Circuit.from_edges`); of spans without `@` at every span.

    Raises:
        UnknownNameError: For the first edge or span that there is not.
        InputError: For an edge into `logits` at a span where they are not read.
    """
    slots = edge_slots(graph, spans)
    mask = torch.zeros_like(slots)
    for edge in edges:
        text = edge if isinstance(edge, str) else "->".join(edge)
        if _is_placeholder(text):
            continue
        name, at, span = text.partition("@") if spans is not None else (text, "", "")
        row, column = graph.edge_index(name)
        if spans is None or not at:
            mask[..., row, column] = slots[..., row, column]
            continue
        number = spans.index(span)
        if not bool(slots[number, row, column]):
            raise InputError(f"edge {text!r}: the logits are not read in span {span!r}")
        mask[number, row, column] = True
    return mask


def _is_placeholder(name: str) -> bool:
    """ACDC's internal edges from a head's input to its channel to its result."""
    inner = (".attn.hook_q", ".attn.hook_k", ".attn.hook_v")
    source, _, target = name.partition("->")
    return any(end.strip().partition("[")[0].endswith(inner) for end in (source, target))


def edge_frame(
    graph: Graph, spans: Spans | None, mask: Bool[Tensor, "*spans n_sources n_targets"]
) -> "pd.DataFrame":
    """One row per true entry: span where there are spans, source, target."""
    import pandas as pd

    *numbers, rows, columns = mask.nonzero(as_tuple=True)
    where = {} if spans is None else {"span": [spans.names[number] for number in numbers[0].tolist()]}
    return pd.DataFrame(
        {
            **where,
            "source": [graph.sources[row] for row in rows.tolist()],
            "target": [graph.targets[column] for column in columns.tolist()],
        }
    )


def check_everywhere(spans: Spans | None, what: str, instead: str) -> None:
    """Refuse edges at spans of positions where `what` serves only edges that are kept or cut everywhere.

    Raises:
        InputError: If there are spans; it names what to give instead.
    """
    if spans is not None:
        raise InputError(f"{what} does not accept edges at spans of positions; give {instead}")


def check_n_edges(
    graph: Graph, n_edges: int, *, allow_zero: bool = False, spans: Spans | None = None
) -> None:
    """Refuse a circuit size outside the graph, or outside the pairs of an edge and a span."""
    low, most = 0 if allow_zero else 1, int(edge_slots(graph, spans).sum())
    if type(n_edges) is not int:  # True is an int, but not a size
        raise InputError(f"the number of edges is {n_edges!r}; give a whole number")
    if not low <= n_edges <= most:
        there = "this graph has" if spans is None else "pairs of an edge and a span:"
        raise InputError(f"cannot keep {n_edges} edges: {there} {most}; choose k from {low} to {most}")

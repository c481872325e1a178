"""Spans: named groups of positions at which an edge is kept, cut or scored by itself.

A template has the same roles at the same places ("the subject", "the last token"), and a span is one of them.
Prompts of different lengths have the same spans at different places, so a span is a label per prompt and
position, not a number. (Haklay et al. 2025, arXiv:2502.04577, call the naming of spans a schema.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from assay.core.errors import InputError, ShapeError, check_name, unknown_name
from assay.graph import Graph
from assay.tasks import Task


if TYPE_CHECKING:
    import pandas as pd

Place = int | slice | Sequence[int]
Choice = str | Mapping[str, Place]

NO_SPAN = -1  # label of a padded position
REST = "rest"


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """The spans of a task and how information can pass between them.

    Attributes:
        names: One per span.
        reach: `[P, P]`, true where attention can carry something from a position of the first span to one of
            the second: in a causal model to the same or a later position of some prompt, in an image
            classifier anywhere.
        read: `[P]`, true where the logits are read in some prompt.
        rule: How the positions of a task are labelled, JSON-able; see `label`.

    Raises:
        ShapeError: If `reach` or `read` does not fit the names.
        InputError: If a name stands twice or holds "@" or "->".
    """

    names: tuple[str, ...]
    reach: Bool[Tensor, "n_spans n_spans"]
    read: Bool[Tensor, " n_spans"]
    rule: Mapping[str, Any]

    def __post_init__(self) -> None:
        n = len(self.names)
        if len(set(self.names)) != n or any(not name or "@" in name or "->" in name for name in self.names):
            raise InputError(
                f"spans are named {list(self.names)}; give different names without '@' and '->', which edge "
                "names use"
            )
        if (tuple(self.reach.shape), tuple(self.read.shape)) != ((n, n), (n,)):
            raise ShapeError(
                f"reach is {tuple(self.reach.shape)} and read {tuple(self.read.shape)} for {n} spans; "
                f"expected ({n}, {n}) and ({n},)"
            )

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Number of a span; near names are listed where there is none of this name."""
        check_name("span", name, self.names)
        return self.names.index(name)

    def describe(self) -> dict[str, Any]:
        """What `Spans.restored` needs to make them again; JSON-able."""
        return {
            "names": list(self.names),
            "reach": self.reach.int().tolist(),
            "read": self.read.int().tolist(),
            "rule": dict(self.rule),
        }

    @classmethod
    def restored(cls, described: Mapping[str, Any]) -> "Spans":
        """Spans out of `describe`."""
        return cls(
            names=tuple(map(str, described["names"])),
            reach=torch.tensor(described["reach"], dtype=torch.bool),
            read=torch.tensor(described["read"], dtype=torch.bool),
            rule=described["rule"],
        )

    @classmethod
    def of(cls, task: Task, choice: Choice, *, causal: bool, pools: bool = False) -> "Spans":
        """The spans of a task.

        Args:
            task: Prompts, or images bound to a model (see `Model.bind`).
            choice: `"each"`: every position by itself, for prompts of one length. `"slots"`: every slot of
                the task's template, the text behind each up to the next (`name1+`), what stands before the
                first (`start`), and the read position (`end`). A mapping of
                names to places: an int, a list of ints or a slice of each prompt, negative ones counted from
                its end; what no name covers becomes the span `rest`.
            causal: Whether a position attends only to itself and earlier ones.
            pools: Whether the logits read all positions.

        Raises:
            InputError: For prompts of several lengths with "each", overlapping or empty places, places
                outside a prompt, a task without slots.
            UnknownNameError: For another text than "each" or "slots".
        """
        labels, names = _labelled(task, choice)
        reach = _later(labels, len(names)) if causal else torch.ones(len(names), len(names)).bool()
        read = torch.full((len(names),), pools)
        read[labels[torch.arange(task.n), task.positions]] = True
        return cls(names=names, reach=reach, read=read, rule=_rule(choice))

    def label(self, task: Task) -> Int64[Tensor, "n pos"]:
        """The span of every position of a task, by the rule that made these spans; -1 at padded positions.

        Args:
            task: Prompts, or images bound to a model.

        Raises:
            InputError: If the task has a span that these do not know, prompts of another length, or a prompt
                that is read in another span.
        """
        labels, names = _labelled(task, _choice(self.rule))
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise InputError(
                f"{task.name!r} has a span {unknown[0]!r}, but the circuit has {', '.join(self.names)}; run "
                "it on prompts of the same template and length"
            )
        labels = torch.tensor([*map(self.names.index, names), NO_SPAN])[labels]
        at = labels[torch.arange(task.n), task.positions]
        elsewhere = (~self.read[at]).nonzero().flatten().tolist()
        if elsewhere:
            row, expected = elsewhere[0], [self.names[span] for span in self.read.nonzero().flatten()]
            raise InputError(
                f"prompt {row} of {task.name!r} is read in span {self.names[at[row]]!r}, but these spans "
                f"have edges into the logits only at {', '.join(expected)}"
            )
        return labels


# ---- labels of positions --------------------------------------------------------------------------------


def _rule(choice: Choice) -> dict[str, Any]:
    """A choice of spans in its JSON form."""
    if isinstance(choice, str):
        return {"kind": choice}
    places = {
        name: {"slice": [at.start, at.stop, at.step]} if isinstance(at, slice) else at
        for name, at in choice.items()
    }
    return {"kind": "places", "places": places}


def _choice(rule: Mapping[str, Any]) -> Choice:
    """The choice of spans behind its JSON form."""
    if rule["kind"] != "places":
        return str(rule["kind"])
    stored: dict[str, Any] = rule["places"]
    return {name: slice(*at["slice"]) if isinstance(at, dict) else at for name, at in stored.items()}


def _labelled(task: Task, choice: Choice) -> tuple[Int64[Tensor, "n pos"], tuple[str, ...]]:
    """Labels of a task, and the names of its spans in the order of their numbers."""
    if isinstance(choice, str) and choice not in ("each", "slots"):
        raise unknown_name("spans", choice, ("each", "slots", "a mapping of names to positions"))
    lengths = task.lengths.tolist()
    if choice == "each" and len(set(lengths)) > 1:
        raise InputError(
            f"spans='each' needs prompts of one length, but these have {min(lengths)} to {max(lengths)} "
            "tokens; use spans='slots' or a mapping of names to positions"
        )
    rows = [_names_of(task, row, length, choice) for row, length in enumerate(lengths)]
    listed = [] if isinstance(choice, str) else [name for name in choice if name != REST]
    # In order of appearance; a prompt whose slots are in another order adds what it alone has.
    names = tuple(dict.fromkeys([*listed, *(name for names in rows for name in names)]))
    number = {name: index for index, name in enumerate(names)}
    labels = torch.full((task.n, task.length), NO_SPAN)
    for row, own in enumerate(rows):
        labels[row, : len(own)] = torch.tensor([number[name] for name in own])
    return labels, names


def _names_of(task: Task, row: int, length: int, choice: Choice) -> list[str]:
    """The span of each real position of one prompt."""
    if isinstance(choice, Mapping):
        return _names_at_places(choice, row, length)
    if choice == "each":
        return [str(position) for position in range(length)]
    slots: Mapping[str, Tensor] = getattr(task, "slots", {})
    if not slots:
        raise InputError(f"{task.name!r} has no slots; use spans='each' or a mapping of names to positions")
    begins = {int(task.positions[row]): "end"}
    begins |= {int(places[row]): name for name, places in reversed(list(slots.items()))}
    names, behind = [], "start"
    for position in range(length):
        names.append(begins.get(position, behind))
        behind = f"{begins[position]}+" if position in begins else behind
    return names


def _names_at_places(places: Mapping[str, Place], row: int, length: int) -> list[str]:
    """The span of each position of a prompt of `length` tokens, by a mapping of names to places."""
    names = [REST] * length
    for name, place in places.items():
        try:
            here = np.atleast_1d(np.arange(length)[place]).tolist()
        except IndexError:
            here = []
        if not here or len(set(here)) < len(here) or any(names[at] != REST for at in here):
            raise InputError(
                f"span {name!r} at {place!r} is empty, outside or overlaps another place in prompt {row} of "
                f"{length} tokens; give each position one span"
            )
        for at in here:
            names[at] = name
    return names


def _later(labels: Int64[Tensor, "n pos"], n_spans: int) -> Bool[Tensor, "n_spans n_spans"]:
    """True where a position of the first span comes before, or is, one of the second in some prompt."""
    reach = torch.zeros(n_spans, n_spans, dtype=torch.bool)
    place = torch.arange(labels.shape[1])
    for row in labels.unique(dim=0):
        member = row == torch.arange(n_spans)[:, None]
        present = member.any(1)
        first = torch.where(member, place, labels.shape[1]).amin(1)
        last = torch.where(member, place, -1).amax(1)
        reach |= present[:, None] & present & (first[:, None] <= last)
    return reach


# ---- edges at spans -------------------------------------------------------------------------------------


def edge_slots(graph: Graph, spans: Spans | None = None) -> Bool[Tensor, "*spans n_sources n_targets"]:
    """True where there is an edge; at a span every edge but those into logits that are not read there."""
    if spans is None:
        return graph.valid
    slots = graph.valid.expand(len(spans), -1, -1).clone()
    slots[~spans.read, :, -1] = False
    return slots


def slot_frame(graph: Graph, spans: Spans | None, mask: Bool[Tensor, "..."]) -> "pd.DataFrame":
    """One row per true entry: span where there are spans, source, target."""
    import pandas as pd

    *spanned, rows, columns = (places.tolist() for places in mask.nonzero(as_tuple=True))
    frame = {} if spans is None else {"span": [spans.names[span] for span in spanned[0]]}
    frame["source"] = [graph.sources[row] for row in rows]
    frame["target"] = [graph.targets[column] for column in columns]
    return pd.DataFrame(frame)


def slot_names(graph: Graph, spans: Spans | None, mask: Bool[Tensor, "..."]) -> list[str]:
    """Names of the true entries, `a0.h1->a2.h0.q`, with `@span` where there are spans."""
    return [
        graph.edge_name(row, column) + (f"@{spans.names[span[0]]}" if spans is not None else "")
        for *span, row, column in mask.nonzero().tolist()
    ]


def check_everywhere(spans: Spans | None, what: str, instead: str) -> None:
    """Refuse edges at spans of positions where `what` serves only edges that are kept or cut everywhere."""
    if spans is not None:
        raise InputError(f"{what} does not accept edges at spans of positions; give {instead}")


def check_n_edges(n_edges: int, slots: Bool[Tensor, "..."], least: int = 1) -> None:
    """Refuse a circuit size outside the graph, or outside the pairs of an edge and a span."""
    most = int(slots.sum())
    if not least <= n_edges <= most:
        raise InputError(f"cannot keep {n_edges} edges; choose k from {least} to {most}")

"""Spans: named groups of positions at which an edge is kept, cut or scored by itself.

A template has the same roles at the same places ("the subject", "the last token"), and a span is one of them.
Prompts of different lengths have the same spans at different places, so a span is a label per prompt and
position, not a number. (Haklay et al. 2025, arXiv:2502.04577, call the naming of spans a schema.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from assay.core.errors import InputError, check_name
from assay.tasks import Task


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
        InputError: If a name stands twice or holds "@" or "->".
    """

    names: tuple[str, ...]
    reach: Bool[Tensor, "n_spans n_spans"]
    read: Bool[Tensor, " n_spans"]
    rule: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self) or any(
            not name or "@" in name or "->" in name for name in self.names
        ):
            raise InputError(
                f"spans are named {list(self.names)}; give different names without '@' and '->', which edge "
                "names use"
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
    def restored(cls, described: Mapping[str, Any] | None) -> "Spans | None":
        """Spans out of `describe`; None out of None."""
        if described is None:
            return None
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
        rule = _rule(choice)
        labels, names = _labelled(task, rule)
        reach = _later(labels, len(names)) if causal else torch.ones(len(names), len(names)).bool()
        read = torch.full((len(names),), pools)
        read[labels[torch.arange(task.n), task.positions]] = True
        return cls(names=names, reach=reach, read=read, rule=rule)

    def label(self, task: Task) -> Int64[Tensor, "n pos"]:
        """The span of every position of a task, by the rule that made these spans; -1 at padded positions.

        Args:
            task: Prompts, or images bound to a model.

        Raises:
            InputError: If the task has a span that these do not know, prompts of another length, or a prompt
                that is read in another span.
        """
        labels, names = _labelled(task, self.rule)
        if unknown := [name for name in names if name not in self.names]:
            raise InputError(
                f"{task.name!r} has a span {unknown[0]!r}, but the circuit has {', '.join(self.names)}; run "
                "it on prompts of the same template and length"
            )
        labels = torch.tensor([*map(self.names.index, names), NO_SPAN])[labels]
        at = labels[torch.arange(task.n), task.positions]
        if elsewhere := (~self.read[at]).nonzero().flatten().tolist():
            row, expected = elsewhere[0], [self.names[span] for span in self.read.nonzero().flatten()]
            raise InputError(
                f"prompt {row} of {task.name!r} is read in span {self.names[at[row]]!r}, but these spans "
                f"have edges into the logits only at {', '.join(expected)}"
            )
        return labels


# ---- labels of positions --------------------------------------------------------------------------------


def _rule(choice: Choice) -> dict[str, Any]:
    """A choice of spans in its JSON form."""
    if isinstance(choice, Mapping):
        places = {
            name: {"slice": [at.start, at.stop, at.step]} if isinstance(at, slice) else at
            for name, at in choice.items()
        }
        return {"kind": "places", "places": places}
    check_name("spans", choice, ("each", "slots"))
    return {"kind": choice}


def _labelled(task: Task, rule: Mapping[str, Any]) -> tuple[Int64[Tensor, "n pos"], tuple[str, ...]]:
    """Labels of a task, and the names of its spans in the order of their numbers."""
    lengths, places = task.lengths.tolist(), rule.get("places", {})
    if rule["kind"] == "each" and len(set(lengths)) > 1:
        raise InputError(
            f"spans='each' needs prompts of one length, but these have {min(lengths)} to {max(lengths)} "
            "tokens; use spans='slots' or a mapping of names to positions"
        )
    rows = []
    for row, length in enumerate(lengths):
        if rule["kind"] == "each":
            rows.append([str(position) for position in range(length)])
        elif rule["kind"] == "slots":
            rows.append(_names_of_slots(task, row, length))
        else:
            rows.append(_names_at_places(places, row, length))
    # In order of appearance; a prompt whose slots are in another order adds what it alone has.
    listed = [name for name in places if name != REST]
    names = tuple(dict.fromkeys([*listed, *(name for names in rows for name in names)]))
    labels = torch.full((task.n, task.length), NO_SPAN)
    for row, own in enumerate(rows):
        labels[row, : len(own)] = torch.tensor([names.index(name) for name in own])
    return labels, names


def _names_of_slots(task: Task, row: int, length: int) -> list[str]:
    """The span of each position of a prompt, by the slots of its template."""
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


def _names_at_places(places: Mapping[str, Any], row: int, length: int) -> list[str]:
    """The span of each position of a prompt of `length` tokens, by a mapping of names to places."""
    names = [REST] * length
    for name, stored in places.items():
        place = slice(*stored["slice"]) if isinstance(stored, dict) else stored
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


def check_everywhere(spans: Spans | None, what: str, instead: str) -> None:
    """Refuse edges at spans of positions where `what` serves only edges that are kept or cut everywhere."""
    if spans is not None:
        raise InputError(f"{what} does not accept edges at spans of positions; give {instead}")


def check_n_edges(n: int, slots: Bool[Tensor, "..."], least: int = 1, level: str = "edge") -> None:
    """Refuse a circuit size outside the graph, or outside the pairs of an edge and a span."""
    most = int(slots.sum())
    if not least <= n <= most:
        raise InputError(f"cannot keep {n} {level}s; choose k from {least} to {most}")

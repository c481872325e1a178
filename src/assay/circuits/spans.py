"""Spans: named groups of positions at which an edge is kept, cut or scored by itself.

A template has the same roles at the same places ("the subject", "the last token"), and a span is one of them.
Prompts of different lengths have the same spans at different places, so a span is a label per prompt and
position, not a number. (Haklay et al. 2025, arXiv:2502.04577, call the naming of spans a schema.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from assay.core.errors import InputError, ShapeError, UnknownNameError, check_name
from assay.tasks import Task


Place = int | slice | Sequence[int]
Choice = str | Mapping[str, Place] | Int64[Tensor, "n pos"]

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
        InputError: If there is no span, a name stands twice or holds "@" or "->", or no span is read.
    """

    names: tuple[str, ...]
    reach: Bool[Tensor, "n_spans n_spans"]
    read: Bool[Tensor, " n_spans"]
    rule: Mapping[str, Any]

    def __post_init__(self) -> None:
        n = len(self.names)
        if n == 0 or len(set(self.names)) != n:
            raise InputError(f"spans are named {list(self.names)}; give at least one, each name once")
        for name in self.names:
            if not name or "@" in name or "->" in name:
                raise InputError(f"span name {name!r} is empty or holds '@' or '->', which edge names use")
        if tuple(self.reach.shape) != (n, n) or tuple(self.read.shape) != (n,):
            raise ShapeError(
                f"reach is {tuple(self.reach.shape)} and read {tuple(self.read.shape)} for {n} spans; "
                f"expected ({n}, {n}) and ({n},)"
            )
        if not bool(self.read.any()):
            raise InputError(
                "none of the spans holds the read position, where the logits are read; add it to one"
            )

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Number of a span.

        Raises:
            UnknownNameError: If there is none of this name; near ones are named.
        """
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
    def each(cls, length: int, *, causal: bool = True, read: int | None = -1) -> "Spans":
        """Every position of prompts of one length by itself, named by its number.

        Args:
            length: Positions, >= 1.
            causal: Whether a position attends only to itself and earlier ones.
            read: Position whose logits are read; None where all are (a classifier that pools).
        """
        if length < 1 or (read is not None and not -length <= read < length):
            raise InputError(
                f"spans of {length} positions, read at {read}; give a length >= 1 and a position inside it"
            )
        reads = torch.zeros(length, dtype=torch.bool)
        reads[slice(None) if read is None else read] = True
        reach = torch.ones(length, length, dtype=torch.bool)
        return cls(
            names=tuple(map(str, range(length))),
            reach=reach.triu() if causal else reach,
            read=reads,
            rule={"kind": "each", "length": length},
        )

    @classmethod
    def of(cls, task: Task, choice: Choice, *, causal: bool, pools: bool = False) -> "Spans":
        """The spans of a task.

        Args:
            task: Prompts, or images bound to a model (see `Model.bind`).
            choice: `"each"`: every position by itself, for prompts of one length. `"slots"`: every slot of
                the task's template, the text behind each up to the next (`name1+`), what stands before the
                first (`start`), and the read position (`end`; several are `end1`, `end2`, ...). A mapping of
                names to places: an int, a list of ints or a slice of each prompt, negative ones counted from
                its end; what no name covers becomes the span `rest`. Labels `[N, T]`, one span per real
                position, numbered from 0, -1 at padding.
            causal: Whether a position attends only to itself and earlier ones.
            pools: Whether the logits read all positions.

        Raises:
            InputError: For prompts of several lengths with "each", overlapping or empty places, places
                outside a prompt, real positions without a label, a task without slots.
            ShapeError: If labels do not fit the task.
            UnknownNameError: For another text than "each" or "slots".
        """
        labels, names, rule = _labelled(task, choice)
        reach = torch.ones(len(names), len(names), dtype=torch.bool)
        if causal:
            reach = _later(labels, len(names))
        read = torch.zeros(len(names), dtype=torch.bool)
        if pools:
            read[:] = True
        else:
            read[_where_read(task, labels)[1]] = True
        return cls(names=names, reach=reach, read=read, rule=rule)

    def label(self, task: Task, labels: Int64[Tensor, "n pos"] | None = None) -> Int64[Tensor, "n pos"]:
        """The span of every position of a task, by the rule that made these spans.

        Args:
            task: Prompts, or images bound to a model.
            labels: For spans that were given as labels: those of this task.

        Returns:
            `[N, T]`, -1 at padded positions.

        Raises:
            InputError: If the task has a span that these do not know, prompts of another length, a prompt
                that is read in another span, or labels are missing.
        """
        choice = self._choice() if labels is None else labels
        found, names, _ = _labelled(task, choice)
        if labels is not None:
            if int(found.max()) >= len(self):
                raise InputError(
                    f"labels name span {int(found.max())}, but there are only 0 to {len(self) - 1}"
                )
            return self._read_where_expected(task, found)
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise InputError(
                f"{task.name!r} has a span {unknown[0]!r}, but the circuit has {', '.join(self.names)}; run "
                "it on prompts of the same template and length, or give labels="
            )
        places = torch.tensor([self.names.index(name) for name in names] + [NO_SPAN])
        return self._read_where_expected(task, places[found])

    def _read_where_expected(self, task: Task, labels: Tensor) -> Tensor:
        """The labels, once every prompt is known to be read in a span that has edges into the logits."""
        if bool(self.read.all()):
            return labels
        rows, read = _where_read(task, labels)
        elsewhere = (~self.read[read]).nonzero().flatten()
        if len(elsewhere):
            row = int(rows[elsewhere[0]])
            expected = [name for name, here in zip(self.names, self.read.tolist(), strict=True) if here]
            raise InputError(
                f"prompt {row} of {task.name!r} is read in span {self.names[int(read[elsewhere[0]])]!r}, "
                f"but these spans have edges into the logits only at {', '.join(expected)}"
            )
        return labels

    def _choice(self) -> Choice:
        kind = self.rule["kind"]
        if kind == "labels":
            raise InputError(
                "these spans were given as labels, which belong to one task; give labels= [N, T] of this task"
            )
        if kind != "places":
            return str(kind)
        return {name: _place(stored) for name, stored in self.rule["places"].items()}


def _where_read(task: Task, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Row and span of every read position of a task."""
    places = task.positions if task.positions.ndim == 2 else task.positions[:, None]
    rows, column = (places >= 0).nonzero(as_tuple=True)
    return rows, labels[rows, places[rows, column]]


def _place(stored: Any) -> Place:
    """A place as it was given, from its JSON form."""
    if isinstance(stored, Mapping):
        return slice(*stored["slice"])
    return stored if isinstance(stored, int) else [int(place) for place in stored]


def _labelled(task: Task, choice: Choice) -> tuple[Tensor, tuple[str, ...], dict[str, Any]]:
    """Labels of a task, names of its spans in order of their numbers, and the rule behind them."""
    if isinstance(choice, Tensor):
        return _given(task, choice)
    if isinstance(choice, Mapping):
        return _placed(task, choice)
    if choice == "each":
        return _each(task)
    if choice == "slots":
        return _slotted(task)
    if isinstance(choice, str):
        raise UnknownNameError(
            f"unknown spans {choice!r}; choose 'each' or 'slots', or give a mapping of names to positions, "
            "or labels [N, T]"
        )
    raise InputError(
        f"spans is a {type(choice).__name__}; give 'each', 'slots', a mapping of names to positions, or "
        "labels [N, T]"
    )


def _real(task: Task) -> Bool[Tensor, "n pos"]:
    return torch.arange(task.length) < task.lengths[:, None]


def _each(task: Task) -> tuple[Tensor, tuple[str, ...], dict[str, Any]]:
    other = (task.lengths != task.lengths[0]).nonzero().flatten()
    if len(other):
        row = int(other[0])
        raise InputError(
            f"spans='each' needs prompts of one length, but prompt 0 has {int(task.lengths[0])} tokens and "
            f"prompt {row} has "
            f"{int(task.lengths[row])}; use spans='slots', a mapping of names to positions, or labels [N, T]"
        )
    length = int(task.lengths[0])
    labels = torch.where(_real(task), torch.arange(task.length), NO_SPAN)
    return labels, tuple(map(str, range(length))), {"kind": "each", "length": length}


def _placed(task: Task, places: Mapping[str, Place]) -> tuple[Tensor, tuple[str, ...], dict[str, Any]]:
    if not places:
        raise InputError("spans is an empty mapping; give at least one name with its positions")
    labels = torch.full((task.n, task.length), NO_SPAN)
    names = list(places)
    for row, length in enumerate(task.lengths.tolist()):
        for number, (name, place) in enumerate(places.items()):
            here = _positions(name, place, length, row)
            taken = labels[row, here]
            if bool((taken != NO_SPAN).any()):
                other = names[int(taken.max())]
                raise InputError(
                    f"spans {other!r} and {name!r} overlap in prompt {row}; each position has one span"
                )
            labels[row, here] = number
    left = (labels == NO_SPAN) & _real(task)
    if bool(left.any()):
        if REST in names:
            row, column = left.nonzero()[0].tolist()
            raise InputError(
                f"position {column} of prompt {row} is in no span and would get the name {REST!r}, which is "
                "already used; rename that span"
            )
        labels[left] = len(names)
        names.append(REST)
    stored = {
        name: {"slice": [p.start, p.stop, p.step]} if isinstance(p, slice) else p
        for name, p in places.items()
    }
    stored = {name: list(p) if isinstance(p, Sequence) else p for name, p in stored.items()}
    return labels, tuple(names), {"kind": "places", "places": stored}


def _positions(name: str, place: Place, length: int, row: int) -> list[int]:
    """Positions of one span in a prompt of `length` tokens."""
    if isinstance(place, slice):
        here = list(range(length)[place])
        if not here:
            raise InputError(f"span {name!r} is empty in prompt {row}, which has {length} tokens")
        return here
    listed = [place] if isinstance(place, int) else list(place)
    for position in listed:
        if isinstance(position, bool) or not isinstance(position, int):
            raise InputError(f"span {name!r} holds {position!r}; give whole numbers or a slice")
        if not -length <= position < length:
            raise InputError(f"span {name!r} holds position {position}, but prompt {row} has {length} tokens")
    here = [position % length for position in listed]
    if not here or len(set(here)) != len(here):
        raise InputError(
            f"span {name!r} holds {listed} in prompt {row} of {length} tokens; give each position once"
        )
    return here


def _slotted(task: Task) -> tuple[Tensor, tuple[str, ...], dict[str, Any]]:
    slots: Mapping[str, Tensor] = getattr(task, "slots", {})
    if not slots:
        raise InputError(
            f"{task.name!r} has no slots; use spans='each', a mapping of names to positions, or labels [N, T]"
        )
    rows = []
    for row, length in enumerate(task.lengths.tolist()):
        at = _read_names(task, row) | {int(where[row]): name for name, where in reversed(list(slots.items()))}
        current, written = "start", []
        for position in range(length):
            written.append(at.get(position, current))
            if position in at:
                current = f"{at[position]}+"
        rows.append(written)
    # In order of appearance; a prompt whose slots are in another order adds what it alone has.
    names = tuple(dict.fromkeys(name for written in rows for name in written))
    number = {name: index for index, name in enumerate(names)}
    labels = torch.full((task.n, task.length), NO_SPAN)
    for row, written in enumerate(rows):
        labels[row, : len(written)] = torch.tensor([number[name] for name in written])
    return labels, names, {"kind": "slots"}


def _read_names(task: Task, row: int) -> dict[int, str]:
    """Names of the read positions of a prompt: `end`, or where there are several `end1`, `end2`, ..."""
    if task.positions.ndim == 1:
        return {int(task.positions[row]): "end"}
    places = [place for place in task.positions[row].tolist() if place >= 0]
    return {place: f"end{number}" for number, place in enumerate(places, start=1)}


def _given(task: Task, labels: Tensor) -> tuple[Tensor, tuple[str, ...], dict[str, Any]]:
    if labels.dtype != torch.int64 or tuple(labels.shape) != (task.n, task.length):
        raise ShapeError(
            f"labels are {labels.dtype} {tuple(labels.shape)}; expected torch.int64 ({task.n}, "
            f"{task.length}), a span number per prompt and position"
        )
    labels = labels.cpu()
    real = _real(task)
    bad = (real & (labels < 0)) | (labels < NO_SPAN)
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise InputError(
            f"position {column} of prompt {row} has label {int(labels[row, column])}; number the spans of "
            "real positions from 0, padding is -1"
        )
    labels = labels.where(real, NO_SPAN)
    return labels, tuple(map(str, range(int(labels.max()) + 1))), {"kind": "labels"}


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

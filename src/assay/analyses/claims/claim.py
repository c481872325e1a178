"""What a claim says: heads with roles, what runs without or with only them must and must not show."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.circuits.heads import Head
from assay.core.record import Record, canonical_json, same


SCHEMA = "assay-claim/1"

CIRCUIT = "circuit"  # all heads of the claim
EACH_HEAD = "each head"  # every head of the claim by itself

# Relation -> runs it can be about. The size of each is a share of the model's margin, or margin units.
RELATIONS: Mapping[str, tuple[str, ...]] = {
    "lowers_by_at_least": ("dropping",),
    "raises_by_at_least": ("dropping",),
    "changes_at_most": ("dropping", "keeping"),
    "retains_at_least": ("keeping",),
    "retains_at_most": ("keeping",),
}
RUNS = ("dropping", "keeping")
UNITS = ("share", "margin")
DRAWN = ("random", "layer-matched")  # controls whose heads are drawn once the model is known
MAGNITUDE = "magnitude"  # rival: as many heads of the largest activations


def content_hash(content: Mapping[str, Any]) -> str:
    """SHA-256 of a content as canonical JSON, 64 hex digits."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def head_name(head: Head) -> str:
    """`a3.h4` for (3, 4)."""
    return f"a{head[0]}.h{head[1]}"


def _by_name(heads: tuple[Head, ...] | str) -> str | list[str]:
    return heads if isinstance(heads, str) else [head_name(head) for head in heads]


@dataclass(frozen=True, kw_only=True)
class ClaimedRole(Record):
    """Heads said to do one job.

    Attributes:
        heads: (layer, head), zero-based, ascending.
        sign: 1, or -1 for heads said to work against the task, whose loss raises the margin.
    """

    record_layout = {"heads": "heads_by_name", "sign": "sign"}

    heads: tuple[Head, ...]
    sign: int = 1

    @property
    def heads_by_name(self) -> list[str]:
        """The heads as text."""
        return [*map(head_name, self.heads)]


@dataclass(frozen=True, kw_only=True)
class Prediction(Record):
    """What a run must show.

    Attributes:
        what: `dropping` ablates the heads named, `keeping` all others.
        of: `circuit`, a role, or `each head`.
        on: Task it is about.
        relation: A key of `RELATIONS`.
        size: Of the relation, at least 0.
        unit: `share` of the model's own mean margin, or `margin`: the margin's own unit.
    """

    record_layout = same("what", "of", "on", "**bound", "unit")

    what: str
    of: str
    on: str
    relation: str
    size: float
    unit: str = "share"

    @property
    def bound(self) -> dict[str, float]:
        """The size under the name of its relation."""
        return {self.relation: self.size}

    @property
    def text(self) -> str:
        """The prediction as a sentence without its subject."""
        subject = "the circuit" if self.of == CIRCUIT else self.of
        amount = f"{self.size:g}" + ("" if self.unit == "share" else " in margin units")
        return f"{self.what} {subject} on {self.on} {self.relation.replace('_', ' ')} {amount}"


@dataclass(frozen=True, kw_only=True)
class Control(Record):
    """Heads that must not do what the claim's heads do.

    Attributes:
        heads: The heads; `random` ones outside the set they stand for, or as many of each layer
            (`layer-matched`).
        of: The set they stand for: `circuit` or a role.
        draws: How many random sets are averaged; 1 for listed heads.
    """

    record_layout = {"heads": "heads_by_name", "of": "of", **same("**drawn")}

    heads: tuple[Head, ...] | str
    of: str = CIRCUIT
    draws: int = 1

    @property
    def heads_by_name(self) -> str | list[str]:
        """The heads as text; the rule that draws them."""
        return _by_name(self.heads)

    @property
    def drawn(self) -> dict[str, int]:
        """How many sets, where they are drawn."""
        return {"draws": self.draws} if isinstance(self.heads, str) else {}

    @property
    def text(self) -> str:
        """What a table calls it."""
        if isinstance(self.heads, str):
            what = f"{self.draws} {self.heads} sets"
        else:
            what = ", ".join(map(head_name, self.heads))
        return what if self.of == CIRCUIT else f"{what} for {self.of}"


@dataclass(frozen=True, kw_only=True)
class Rival(Record):
    """Another circuit, which must depart further from the model than the claim's.

    Attributes:
        name: What a table calls it.
        heads: The heads, or `magnitude`: as many as the claim has, of the largest mean activation norm. Where
            those are the claim's own, it is not a rival and is not tested.
    """

    record_layout = {"name": "name", "heads": "heads_by_name"}

    name: str
    heads: tuple[Head, ...] | str

    @property
    def heads_by_name(self) -> str | list[str]:
        """The heads as text; the rule that chooses them."""
        return _by_name(self.heads)


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim(Record):
    """Predictions about a set of heads, to be registered before anything is measured.

    `load_claim` and `parse_claim` make and check it.

    Attributes:
        name: What results call it.
        statement: The claim in a sentence.
        model: Model to load: `mini`, a hub id or a directory.
        task: Task that the heads are said to do: a registered name or a `.jsonl` file.
        n: Prompts of each task.
        seed: Root seed of prompts, donors, controls and flips.
        ablation: How heads are ablated; an intervention's key.
        roles: Role -> heads; each head has one.
        predictions: At least one.
        controls: Negative controls.
        rivals: Circuits to beat.
        files: Name of each task file -> SHA-256 of its content.
        folder: Where the names of task files start; no part of the content.
    """

    record_schema = SCHEMA
    record_layout = {
        "claim": same("name", "statement", "model", "task", "n", "seed", "ablation"),
        "heads": "roles",
        "predicts": "predictions",
        **same("controls", "rivals", "**task_files"),
    }

    name: str
    statement: str
    model: str
    task: str
    n: int
    seed: int
    ablation: str
    roles: Mapping[str, ClaimedRole]
    predictions: tuple[Prediction, ...]
    controls: tuple[Control, ...] = ()
    rivals: tuple[Rival, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()

    def __repr__(self) -> str:
        return f"Claim({self.name!r}, {len(self.heads)} heads, {len(self.predictions)} predictions)"

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """All heads, ascending."""
        return tuple(sorted(head for role in self.roles.values() for head in role.heads))

    @cached_property
    def sign_of(self) -> Mapping[Head, int]:
        """1 or -1 for each head."""
        return {head: role.sign for role in self.roles.values() for head in role.heads}

    def heads_of(self, of: str) -> tuple[Head, ...]:
        """Heads of `circuit` or of a role."""
        return self.heads if of == CIRCUIT else self.roles[of].heads

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The claim's task, then the others its predictions speak of."""
        return tuple(dict.fromkeys((self.task, *(each.on for each in self.predictions))))

    @property
    def task_files(self) -> dict[str, Any]:
        """The files, where there are any."""
        return {"files": self.files} if self.files else {}

    @cached_property
    def hash(self) -> str:
        """Hash of the content: comments, order of keys and spelt-out defaults do not count."""
        return content_hash(self.to_dict())
